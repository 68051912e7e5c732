//! What outlives the process: the append-only file. Hands requests up to be run; never runs one itself.

pub mod aof;
pub mod check;
