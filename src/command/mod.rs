//! The commands: a folder or file for each family, with each command's specification beside its
//! handler.
//!
//! Several families share `deadline`, `timeout` and `help`.

pub(crate) mod admin;
pub(crate) mod cluster;
pub(crate) mod connection;
pub(crate) mod deadline;
pub(crate) mod describe;
pub(crate) mod hash;
pub(crate) mod help;
pub(crate) mod key;
pub(crate) mod list;
pub(crate) mod lock;
pub(crate) mod observe;
pub(crate) mod pubsub;
pub(crate) mod replication;
pub(crate) mod script;
pub(crate) mod set;
pub(crate) mod sorted_set;
pub(crate) mod stream;
pub(crate) mod string;
pub(crate) mod timeout;
pub(crate) mod transaction;

use std::sync::LazyLock;

use crate::state::spec::CommandSpec;
use crate::state::table::CommandTable;

pub(crate) use admin::acl::load_file as load_users;
pub use admin::config::{
    apply_config, configure_tls, listen, listen_for_http, log_level, set_oom_score,
    set_process_title,
};
pub(crate) use admin::restart::FAILED as RESTART_FAILED;

/// The families, in the order of `COMMAND LIST`.
static FAMILIES: &[&[CommandSpec]] = &[
    string::COMMANDS,
    string::limit::COMMANDS,
    string::bitmap::COMMANDS,
    hash::COMMANDS,
    hash::import::COMMANDS,
    string::hyperloglog::COMMANDS,
    list::COMMANDS,
    list::blocking::COMMANDS,
    list::batch::COMMANDS,
    set::COMMANDS,
    stream::COMMANDS,
    stream::read::COMMANDS,
    stream::group::COMMANDS,
    stream::idempotent::COMMANDS,
    stream::info::COMMANDS,
    stream::bury::COMMANDS,
    stream::owner::COMMANDS,
    stream::references::COMMANDS,
    stream::release::COMMANDS,
    sorted_set::COMMANDS,
    sorted_set::range::COMMANDS,
    sorted_set::pop::COMMANDS,
    sorted_set::combine::COMMANDS,
    sorted_set::geo::COMMANDS,
    sorted_set::due::COMMANDS,
    sorted_set::moving::COMMANDS,
    lock::COMMANDS,
    lock::report::COMMANDS,
    lock::semaphore::COMMANDS,
    key::COMMANDS,
    key::sort::COMMANDS,
    key::expire::COMMANDS,
    key::dump::COMMANDS,
    key::migrate::COMMANDS,
    key::scan::COMMANDS,
    key::bless::COMMANDS,
    key::object::COMMANDS,
    connection::COMMANDS,
    connection::client::COMMANDS,
    cluster::COMMANDS,
    observe::monitor::COMMANDS,
    pubsub::COMMANDS,
    transaction::COMMANDS,
    replication::sync::COMMANDS,
    replication::failover::COMMANDS,
    replication::wait::COMMANDS,
    script::COMMANDS,
    script::function::COMMANDS,
    admin::acl::COMMANDS,
    admin::config::COMMANDS,
    observe::info::COMMANDS,
    describe::COMMANDS,
    admin::COMMANDS,
    replication::role::COMMANDS,
    admin::save::COMMANDS,
    observe::memory::COMMANDS,
    admin::module::COMMANDS,
    observe::command_log::COMMANDS,
    observe::hot_keys::COMMANDS,
    observe::latency::COMMANDS,
    admin::debug::COMMANDS,
];

/// All commands. The server keeps a reference, so that the hot path need not check whether the
/// table is initialized.
pub static TABLE: LazyLock<CommandTable> = LazyLock::new(|| CommandTable::build(FAMILIES));
