//! Bare data structures. They know nothing of clients, commands or configuration; `unsafe` lives here.

pub mod glob;
pub mod hash;
pub mod listpack;
pub mod intset;
pub mod packed;
pub mod quicklist;
pub mod run;
pub mod packed_table;
pub mod score_tree;
pub mod table;
