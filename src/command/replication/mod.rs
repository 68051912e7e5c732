//! Replication: roles.

pub mod role;
