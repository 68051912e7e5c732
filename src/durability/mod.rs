//! Durability: what is written to the disk while commands run, and read from it at the start.
//!
//! - `persistence` writes effects and snapshots; `persistence/spread` passes effects on,
//!   `persistence/switch` switches the append-only file on and off, `persistence/ends` is the start
//!   and the end.
//! - `load` reads files, and runs their requests through the gate; `unexpected` reports those that
//!   fail.
//!
//! A background job that has ended is returned as a value: who waits for it is not known here.

pub mod load;
pub mod persistence;
pub mod unexpected;
