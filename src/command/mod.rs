//! Commands: what they are (`spec`, `table`), the one gate they pass (`execute`), and a file for each family.

pub mod args;
pub mod context;
pub mod execute;
pub mod keys;
pub mod spec;
pub mod table;
pub mod transaction;

pub mod blocking;
pub mod client_tracking;

mod bitmap;
mod client;
mod client_filter;
mod cluster;
mod config;
mod connection;
mod debug;
mod docs;
mod due;
mod evict;
mod expire;
mod function;
mod geo;
mod hash;
mod hash_expiry;
mod help;
mod hyperloglog;
mod info;
mod introspection;
mod key;
mod latency;
mod list;
mod list_blocking;
mod memory;
mod module;
mod monitor;
mod object;
mod pubsub;
mod scan;
pub mod script;
mod server;
mod set;
mod sort;
mod sorted_set;
mod sorted_set_combine;
mod sorted_set_pop;
mod sorted_set_range;
mod stream;
mod stream_group;
mod stream_info;
mod stream_read;
mod string;
mod string_edit;
mod string_lcs;
mod string_options;

pub use client::{
    check_output_limit, clients_memory_max, count_clients_memory, describe_client, evict_clients,
    forget_client, output_limit,
};
pub use config::{apply_config, listen, log_level, set_oom_score, set_process_title};
pub use connection::needs_password;
pub use evict::{Room, evict};
pub use pubsub::publish_events;
