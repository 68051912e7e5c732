//! Nodes of a cluster, as threads of this process.

mod faults;
mod foreign_nodes;
mod keys;
mod locks;
pub(crate) mod nodes;
mod setslot;
pub(crate) mod slot_migration;
