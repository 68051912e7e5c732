//! CLUSTER, READONLY, READWRITE and ASKING. With `cluster-enabled no` all are refused, HELP too, as
//! in Redis.
//!
//! - `enabled` is the check that all begin with: without a cluster they are refused.
//! - `topology` shows the owners of slots, from replies that `cached` keeps, and `reports` other
//!   facts. `keys` has the keys of a slot, `scan` iterates over those of all nodes, and
//!   `slot_stats` shows the costs of slots.
//! - `moves` moves slots to another node all at once.
//! - `slots` changes owners of slots, `nodes` members and roles, by the functions of
//!   `crate::cluster`; both use `change`. `debug` has DEBUG's subcommands.

mod cached;
mod change;
pub mod debug;
pub(super) mod enabled;
mod keys;
mod moves;
mod nodes;
mod reports;
mod scan;
mod slot_stats;
mod slots;
mod topology;

use crate::client::ClientFlags;
use crate::collections::hash_slot::HashSlot;
use crate::command::help::help_from_specs;
use crate::state::context::{CommandResult, Context, Outcome};
use crate::state::spec::{
    Categories, CommandSpec, DatabaseUse, Flags, Group, Handler, KeyFlags, KeySpec, container, key,
    spec,
};
use enabled::cluster;

const NONDETERMINISTIC: &[&str] = &["nondeterministic_output"];

/// A cursor leads to a node, as a key does.
const CURSOR: &[KeySpec] = &[key(1, KeyFlags::NOT_KEY)];

/// A subcommand that reads the cluster's state.
const fn asks(name: &'static str, handler: Handler) -> CommandSpec {
    spec(name, handler).exactly(2).flags(Flags::STALE).group(Group::Cluster).since("3.0.0")
}

/// A subcommand for the cluster's administrators that reads its state.
const fn inspects(name: &'static str, handler: Handler) -> CommandSpec {
    asks(name, handler).flags(Flags::ADMIN.union(Flags::STALE))
}

/// A subcommand that changes the cluster.
const fn changes(name: &'static str, handler: Handler) -> CommandSpec {
    asks(name, handler).flags(Flags::ADMIN.union(Flags::STALE).union(Flags::NO_ASYNC_LOADING))
}

/// A command on a connection's use of the cluster.
const fn connection(name: &'static str, handler: Handler) -> CommandSpec {
    spec(name, handler)
        .exactly(1)
        .flags(Flags::LOADING.union(Flags::STALE).union(Flags::FAST).union(Flags::NEEDS_CLIENT))
        .categories(Categories::CONNECTION)
        .group(Group::Cluster)
        .since("3.0.0")
}

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    container("CLUSTER", &[
        changes("ADDSLOTS", slots::add).at_least(3)
            .docs("slot [slot ...]", "Assigns slots to this node.", "O(N), N being the number of slots"),
        changes("ADDSLOTSRANGE", slots::add_ranges).at_least(4).since("7.0.0")
            .docs("start-slot end-slot [start-slot end-slot ...]", "Assigns ranges of slots to this node.", "O(N), N being the number of slots in the ranges"),
        changes("BUMPEPOCH", nodes::bump_epoch).tips(NONDETERMINISTIC)
            .docs("", "Raises the configuration epoch.", "O(1)"),
        changes("CANCELSLOTMIGRATIONS", moves::cancel).databases(DatabaseUse::All).since("9.0.0")
            .docs("", "Cancels the migration of slots to other nodes.", "O(N), N being the number of moves"),
        inspects("COUNT-FAILURE-REPORTS", reports::count_failure_reports).exactly(3).tips(NONDETERMINISTIC)
            .docs("node-id", "Counts the nodes that report a node as failing.", "O(N), N being the number of reports"),
        asks("COUNTKEYSINSLOT", keys::count_keys).exactly(3)
            .docs("slot", "Counts this node's keys in a slot.", "O(1)"),
        changes("DELSLOTS", slots::delete).at_least(3)
            .docs("slot [slot ...]", "Unassigns slots, as this node sees them.", "O(N), N being the number of slots"),
        changes("DELSLOTSRANGE", slots::delete_ranges).at_least(4).since("7.0.0")
            .docs("start-slot end-slot [start-slot end-slot ...]", "Unassigns ranges of slots, as this node sees them.",
                "O(N), N being the number of slots in the ranges"),
        changes("FAILOVER", nodes::failover).at_least(2)
            .docs("[FORCE | TAKEOVER]", "Makes a replica take the place of its primary.", "O(1)"),
        changes("FLUSHSLOT", keys::flush).at_least(3).flags(Flags::WRITE.union(Flags::ADMIN).union(Flags::NO_ASYNC_LOADING)).with(Flags::NAMES_SLOT)
            .categories(Categories::KEYSPACE).databases(DatabaseUse::All).since("9.0.0")
            .docs("slot [ASYNC | SYNC]", "Deletes the keys of a slot.", "O(N), N being the number of keys"),
        changes("FLUSHSLOTS", slots::flush).docs("", "Unassigns all slots of this node.", "O(1)"),
        changes("FORGET", nodes::forget).exactly(3)
            .docs("node-id", "Makes this node forget another one.", "O(1)"),
        asks("GETKEYSINSLOT", keys::get_keys).with(Flags::NAMES_SLOT).exactly(4).tips(NONDETERMINISTIC)
            .docs("slot count", "Returns names of this node's keys in a slot.", "O(log(N)), N being the number of keys asked for"),
        changes("GETSLOTMIGRATIONS", moves::list).since("9.0.0")
            .docs("", "Returns the migrations of slots.", "O(N), N being the number of moves"),
        asks("HELP", help).flags(Flags::LOADING_STALE).since("5.0.0")
            .docs("", "Explains CLUSTER.", "O(1)"),
        asks("INFO", reports::info).tips(NONDETERMINISTIC)
            .docs("", "Returns the state of the cluster as this node sees it.", "O(1)"),
        spec("KEYSLOT", key_slot).exactly(3).flags(Flags::STALE).group(Group::Cluster).since("3.0.0")
            .docs("key", "Returns the slot of a key.", "O(N), N being the number of bytes in the key"),
        asks("LINKS", reports::links).since("7.0.0").tips(NONDETERMINISTIC)
            .docs("", "Returns the connections between this node and others.", "O(N), N being the number of nodes"),
        changes("MEET", nodes::meet).at_least(4)
            .docs("ip port [cluster_bus_port]", "Makes this node join another one.", "O(1)"),
        changes("MIGRATESLOTS", moves::migrate).at_least(4).databases(DatabaseUse::All).since("9.0.0")
            .docs("SLOTSRANGE start-slot end-slot [start-slot end-slot ...] NODE node-id [...]", "Moves slots to another node.",
                "O(N), N being the number of ranges"),
        changes("MIGRATION", moves::migration).at_least(4).since("8.4.0")
            .docs("<IMPORT start-slot end-slot [start-slot end-slot ...] | CANCEL <ID id | ALL> | STATUS <ID id | ALL>>",
                "Moves slots as nodes of Redis do, which is refused here.", "O(1)"),
        asks("MYID", reports::my_id).docs("", "Returns the id of this node.", "O(1)"),
        asks("MYSHARDID", reports::my_shard_id).flags(Flags::LOADING.union(Flags::STALE)).since("7.2.0").tips(NONDETERMINISTIC)
            .docs("", "Returns the id of this node's shard.", "O(1)"),
        asks("NODES", reports::nodes).tips(NONDETERMINISTIC)
            .docs("", "Returns the nodes and their slots as this node sees them.", "O(N), N being the number of nodes"),
        inspects("REPLICAS", reports::replicas).exactly(3).since("5.0.0").tips(NONDETERMINISTIC)
            .docs("node-id", "Returns the replicas of a primary.", "O(1)"),
        changes("REPLICATE", nodes::replicate).at_least(3)
            .docs("node-id | NO ONE", "Makes this node a replica of a primary, or an empty primary.", "O(1)"),
        changes("RESET", nodes::reset).flags(Flags::ADMIN.union(Flags::NOSCRIPT).union(Flags::STALE)).at_least(2)
            .docs("[HARD | SOFT]", "Makes this node forget the cluster.", "O(N), N being the number of nodes"),
        changes("SAVECONFIG", nodes::save)
            .docs("", "Writes the state of the cluster to disk.", "O(1)"),
        changes("SET-CONFIG-EPOCH", nodes::set_epoch).exactly(3)
            .docs("config-epoch", "Sets the configuration epoch of a new node.", "O(1)"),
        changes("SETSLOT", slots::set).at_least(4)
            .docs("slot <IMPORTING node-id | MIGRATING node-id | NODE node-id | STABLE> [TIMEOUT milliseconds]",
                "Sets the node of a slot, or the nodes between which it moves.", "O(1)"),
        asks("SHARDS", topology::shards).since("7.0.0").tips(NONDETERMINISTIC)
            .docs("", "Returns the slots and their nodes.", "O(N), N being the number of nodes"),
        inspects("SLAVES", reports::replicas).exactly(3).tips(NONDETERMINISTIC).deprecated("5.0.0", "`CLUSTER REPLICAS`")
            .docs("node-id", "Returns the replicas of a primary.", "O(1)"),
        asks("SLOT-STATS", slot_stats::slot_stats).at_least(4).flags(Flags::LOADING.union(Flags::STALE)).since("8.0.0")
            .tips(&["nondeterministic_output", "request_policy:all_shards"])
            .docs("<SLOTSRANGE start-slot end-slot | ORDERBY metric [LIMIT limit] [ASC | DESC]>", "Returns statistics of slots.",
                "O(N log N), N being the number of slots"),
        asks("SLOTS", topology::slots).tips(NONDETERMINISTIC).deprecated("7.0.0", "`CLUSTER SHARDS`")
            .docs("", "Returns the ranges of slots and their nodes.", "O(N), N being the number of nodes"),
        changes("SYNCSLOTS", moves::sync).at_least(3).since("9.0.0")
            .docs("argument [argument ...]", "Synchronises nodes while slots migrate; used by the nodes themselves.", "O(1)"),
    ]).group(Group::Cluster).since("3.0.0")
        .docs("", "Commands about the cluster.", "Depends on the subcommand"),
    spec("CLUSTERSCAN", scan::scan).at_least(2).keys(CURSOR).flags(Flags::READONLY).with(Flags::NAMES_SLOT).categories(Categories::KEYSPACE)
        .group(Group::Cluster).since("9.1.0").tips(&["nondeterministic_output", "request_policy:special", "response_policy:special"])
        .docs("cursor [MATCH pattern] [COUNT count] [TYPE type] [SLOT slot]", "Iterates over the keys of the cluster, some in each call.",
            "O(N), N being the number of keys returned"),
    connection("ASKING", asking).flags(Flags::FAST.union(Flags::NEEDS_CLIENT).union(Flags::KEEPS_ASKING))
        .docs("", "Lets the next command access a slot that is moving here.", "O(1)"),
    connection("READONLY", read_only)
        .docs("", "Allows a replica to serve this connection's reads.", "O(1)"),
    connection("READWRITE", read_write).docs("", "Cancels READONLY.", "O(1)"),
];

/// `CLUSTER KEYSLOT key`: an integer. In Valkey it needs no cluster.
fn key_slot(ctx: &mut Context<'_>) -> CommandResult {
    if !ctx.core.state.config.compatible_with.is_valkey() {
        cluster(&ctx.core.state)?;
    }
    ctx.reply.integer(HashSlot::of(ctx.args.get(2)).number().into());
    Ok(Outcome::Replied)
}

/// `ASKING`: OK.
fn asking(ctx: &mut Context<'_>) -> CommandResult {
    cluster(&ctx.core.state)?;
    if !is_scripted(ctx) {
        ctx.client().flags.insert(ClientFlags::ASKING);
    }
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// `READONLY`: OK in a cluster. Without one, OK only for clients with CLIENT CAPA REDIRECT, and for
/// all if Valkey is emulated.
fn read_only(ctx: &mut Context<'_>) -> CommandResult {
    read_here(ctx, true)
}

/// `READWRITE`: OK under the same conditions.
fn read_write(ctx: &mut Context<'_>) -> CommandResult {
    read_here(ctx, false)
}

fn read_here(ctx: &mut Context<'_>, on: bool) -> CommandResult {
    let is_valkey = ctx.core.state.config.compatible_with.is_valkey();
    if !is_valkey && !ctx.client().flags.contains(ClientFlags::CAN_REDIRECT) {
        cluster(&ctx.core.state)?;
    }
    if !is_scripted(ctx) {
        ctx.client().flags.set(ClientFlags::READS_HERE, on);
    }
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// Whether a script calls: then the flags of its caller's connection stay. A script is served at
/// the node where its caller is served.
fn is_scripted(ctx: &Context<'_>) -> bool {
    ctx.core.state.scripts.running.is_some()
}

/// `CLUSTER HELP`: the subcommands.
fn help(ctx: &mut Context<'_>) -> CommandResult {
    cluster(&ctx.core.state)?;
    help_from_specs(ctx)
}
