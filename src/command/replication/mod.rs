//! Replication: following a primary, serving replicas, and waiting for them.

pub(crate) mod failover;
pub(crate) mod role;
pub(crate) mod sync;
pub(crate) mod wait;
