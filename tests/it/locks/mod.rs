//! Locks that outlive what happens to servers and clients.

mod model;
mod replicas;
pub(crate) mod survival;
