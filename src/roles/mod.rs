//! The roles of a server, as a primary or a replica.
//!
//! - `following` runs the link to the primary: `following/sync` takes its snapshot,
//!   `following/ahead` looks ahead in its stream.
//! - `replicas` serves the replicas of this server.
//! - `cluster` runs a node of a cluster, `moving` the MIGRATEs under way, `slots` what CLUSTER
//!   MIGRATESLOTS moves; `arriving` resumes a RESTORE whose value a thread has decoded.
//! - `failover` and `restart` are a change of role, and protection against a wrong one; `promoted`
//!   steps down for a replica that sentinels have promoted.

pub mod arriving;
pub mod cluster;
pub mod failover;
pub mod following;
pub mod moving;
pub mod promoted;
pub mod replicas;
pub mod restart;
pub mod slots;
