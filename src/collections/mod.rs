//! Data structures without knowledge of clients, commands or configuration. Some use `unsafe`.
//!
//! - `table` is the hash table of a keyspace, with `hash`, `prefetch` and `scan`; `find` finds
//!   numbers, `glob` matches names.
//! - Small collections: `packed` elements, `listpack`, `intset`; large ones: `packed_table`,
//!   `score_tree`, and `quicklist`, which is made of `run`s.
//! - `hash_slot` divides the keys of a cluster; `numbers` lists those of each slot. `sparse` lets
//!   standard tables shrink.
//! - `lent` lets outputs refer to a table's values.
//! - Copy-on-write: `shared`, `shared_bytes`, `shared_map`, `shared_tree`.

mod find;
pub mod glob;
pub mod hash;
pub mod hash_slot;
pub mod intset;
pub mod lent;
pub mod listpack;
pub mod numbers;
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
pub mod sparse;
pub mod table;
