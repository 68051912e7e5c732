//! Persistence: the RDB format, snapshots, the append-only file, and the tools that check files. Requests read from a
//! file are handed to the caller, never run here.

pub mod ahead;
pub mod aof;
pub mod check;
pub mod leftovers;
pub mod rdb;
pub mod saver;
