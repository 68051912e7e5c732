//! Persistence: the RDB format, snapshots, the append-only file, and the tools that check files.
//! Requests read from a file are handed to the caller, never run here.
//!
//! - `rdb` is the format, `aof` the append-only file. `saver` writes a snapshot; `ahead` reads one
//!   for loading.
//! - `nodes_file` is the file of a cluster's node.
//! - `check` is the tools that check files; `leftovers` removes those of processes that were
//!   killed.

pub mod ahead;
pub mod aof;
pub mod check;
pub mod leftovers;
pub mod nodes_file;
pub mod rdb;
pub mod saver;
