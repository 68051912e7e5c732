//! What outlives the process: values as bytes, the append-only file, the tools that check both. Hands requests up to be run;
//! never runs one itself.

pub mod ahead;
pub mod aof;
pub mod check;
pub mod leftovers;
pub mod rdb;
pub mod saver;
