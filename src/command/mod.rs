//! Commands: what they are (`spec`, `table`), the one gate they pass (`execute`), and a file for each family.

pub mod args;
pub mod context;
pub mod execute;
pub mod keys;
pub mod spec;
pub mod table;

mod bitmap;
mod client;
mod config;
mod connection;
mod debug;
mod docs;
mod expire;
mod help;
mod hyperloglog;
mod info;
mod introspection;
mod key;
mod latency;
mod memory;
mod pubsub;
mod scan;
mod server;
mod string;

pub use client::{check_output_limit, describe_client, forget_client};
pub use config::apply_config;
pub use info::reset_stats;
pub use pubsub::publish_events;
