//! Replication: following a primary, being followed, and waiting for those who follow.

pub(crate) mod role;
pub(crate) mod sync;
pub(crate) mod wait;
