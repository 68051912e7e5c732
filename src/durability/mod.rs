//! Durability: writes to the disk while commands run, and reads from it at the start.
//!
//! - `persistence` writes effects and snapshots; `persistence/spread` passes effects on,
//!   `persistence/switch` switches the append-only file on and off, `persistence/ends` is the start
//!   and the end.
//! - `load` reads files, and runs their requests through the gate; `unexpected` reports requests
//!   that fail.
//! - `scripts` writes and reads sources of scripts that survive a restart.
//!
//! A finished background job is returned as a value: this room does not know which clients wait for
//! it.

pub mod load;
pub mod persistence;
pub mod scripts;
pub mod unexpected;
