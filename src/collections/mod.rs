//! Data structures without knowledge of clients, commands or configuration. Some use `unsafe`.

pub mod glob;
pub mod hash;
pub mod intset;
pub mod listpack;
pub mod packed;
pub mod packed_table;
pub mod prefetch;
pub mod quicklist;
pub mod run;
mod scan;
pub mod score_tree;
pub mod shared;
pub mod shared_bytes;
pub mod shared_map;
pub mod shared_tree;
pub mod table;
