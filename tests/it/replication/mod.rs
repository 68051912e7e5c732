//! Primaries and replicas: the stream, the link, and what both promise.

mod effect_forms;
pub(crate) mod effects;
pub(crate) mod following;
mod foreign_peers;
mod moving;
mod pairs;
mod promoted;
pub(crate) mod replicas;
mod safety;
mod streams;
