//! The commands: a folder or file for each family, and in it, side by side, a command's specification and its handler.

pub(crate) mod connection;
pub(crate) mod hash;
pub(crate) mod help;
pub(crate) mod key;
pub(crate) mod list;
pub(crate) mod pubsub;
pub(crate) mod script;
pub(crate) mod server;
pub(crate) mod set;
pub(crate) mod sorted_set;
pub(crate) mod stream;
pub(crate) mod string;
pub(crate) mod transaction;

pub use connection::client::{
    check_output_limit, clients_memory_max, count_clients_memory, describe_client, evict_clients,
    forget_client, output_limit,
};
pub use connection::needs_password;
pub use pubsub::publish_events;
pub use server::config::{apply_config, listen, log_level, set_oom_score, set_process_title};
