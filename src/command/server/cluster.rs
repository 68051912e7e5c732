//! CLUSTER, READONLY, READWRITE and ASKING of a server with `cluster-enabled no`: all are refused, HELP too, as in
//! Redis. Clients still look up arity, flags and documentation.

use crc::{CRC_16_XMODEM, Crc};

use crate::client::ClientFlags;
use crate::error::CommandError;
use crate::state::context::{CommandResult, Context, Outcome};
use crate::state::spec::{Categories, CommandSpec, Flags, Group, Handler, container, spec};

const NONDETERMINISTIC: &[&str] = &["nondeterministic_output"];

/// A subcommand that reads the cluster's state.
const fn asks(name: &'static str) -> CommandSpec {
    spec(name, refuse).exactly(2).flags(Flags::STALE).group(Group::Cluster).since("3.0.0")
}

/// A subcommand for the cluster's administrators that reads its state.
const fn inspects(name: &'static str) -> CommandSpec {
    asks(name).flags(Flags::ADMIN.union(Flags::STALE))
}

/// A subcommand that changes the cluster.
const fn changes(name: &'static str) -> CommandSpec {
    asks(name).flags(Flags::ADMIN.union(Flags::STALE).union(Flags::NO_ASYNC_LOADING))
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

pub const COMMANDS: &[CommandSpec] = &[
    container(
        "CLUSTER",
        &[
            changes("ADDSLOTS").at_least(3).docs(
                "slot [slot ...]",
                "Assigns slots to this node.",
                "O(N), N being the number of slots",
            ),
            changes("ADDSLOTSRANGE").at_least(4).since("7.0.0").docs(
                "start-slot end-slot [start-slot end-slot ...]",
                "Assigns ranges of slots to this node.",
                "O(N), N being the number of slots in the ranges",
            ),
            changes("BUMPEPOCH").tips(NONDETERMINISTIC).docs(
                "",
                "Raises the configuration epoch.",
                "O(1)",
            ),
            changes("CANCELSLOTMIGRATIONS").since("9.0.0").docs(
                "",
                "Cancels the migration of slots to other nodes.",
                "O(N), N being the number of moves",
            ),
            inspects("COUNT-FAILURE-REPORTS").exactly(3).tips(NONDETERMINISTIC).docs(
                "node-id",
                "Counts the nodes that report a node as failing.",
                "O(N), N being the number of reports",
            ),
            asks("COUNTKEYSINSLOT").exactly(3).docs(
                "slot",
                "Counts this node's keys in a slot.",
                "O(1)",
            ),
            changes("DELSLOTS").at_least(3).docs(
                "slot [slot ...]",
                "Unassigns slots, as this node sees them.",
                "O(N), N being the number of slots",
            ),
            changes("DELSLOTSRANGE").at_least(4).since("7.0.0").docs(
                "start-slot end-slot [start-slot end-slot ...]",
                "Unassigns ranges of slots, as this node sees them.",
                "O(N), N being the number of slots in the ranges",
            ),
            changes("FAILOVER").at_least(2).docs(
                "[FORCE | TAKEOVER]",
                "Makes a replica take the place of its primary.",
                "O(1)",
            ),
            changes("FLUSHSLOT")
                .at_least(3)
                .flags(Flags::WRITE.union(Flags::ADMIN).union(Flags::NO_ASYNC_LOADING))
                .categories(Categories::KEYSPACE)
                .since("9.0.0")
                .docs(
                    "slot [ASYNC | SYNC]",
                    "Deletes the keys of a slot.",
                    "O(N), N being the number of keys",
                ),
            changes("FLUSHSLOTS").docs("", "Unassigns all slots of this node.", "O(1)"),
            changes("FORGET").exactly(3).docs(
                "node-id",
                "Makes this node forget another one.",
                "O(1)",
            ),
            asks("GETKEYSINSLOT").exactly(4).tips(NONDETERMINISTIC).docs(
                "slot count",
                "Returns names of this node's keys in a slot.",
                "O(log(N)), N being the number of keys asked for",
            ),
            changes("GETSLOTMIGRATIONS").since("9.0.0").docs(
                "",
                "Returns the migrations of slots.",
                "O(N), N being the number of moves",
            ),
            asks("HELP").flags(Flags::LOADING_STALE).since("5.0.0").docs(
                "",
                "Explains CLUSTER.",
                "O(1)",
            ),
            asks("INFO").tips(NONDETERMINISTIC).docs(
                "",
                "Returns the state of the cluster as this node sees it.",
                "O(1)",
            ),
            spec("KEYSLOT", key_slot)
                .exactly(3)
                .flags(Flags::STALE)
                .group(Group::Cluster)
                .since("3.0.0")
                .docs(
                    "key",
                    "Returns the slot of a key.",
                    "O(N), N being the number of bytes in the key",
                ),
            asks("LINKS").since("7.0.0").tips(NONDETERMINISTIC).docs(
                "",
                "Returns the connections between this node and others.",
                "O(N), N being the number of nodes",
            ),
            changes("MEET").at_least(4).docs(
                "ip port [cluster_bus_port]",
                "Makes this node join another one.",
                "O(1)",
            ),
            changes("MIGRATESLOTS").at_least(4).since("9.0.0").docs(
                "SLOTSRANGE start-slot end-slot [start-slot end-slot ...] NODE node-id [...]",
                "Moves slots to another node.",
                "O(N), N being the number of ranges",
            ),
            asks("MYID").docs("", "Returns the id of this node.", "O(1)"),
            asks("MYSHARDID")
                .flags(Flags::LOADING.union(Flags::STALE))
                .since("7.2.0")
                .tips(NONDETERMINISTIC)
                .docs("", "Returns the id of this node's shard.", "O(1)"),
            asks("NODES").tips(NONDETERMINISTIC).docs(
                "",
                "Returns the nodes and their slots as this node sees them.",
                "O(N), N being the number of nodes",
            ),
            inspects("REPLICAS").exactly(3).since("5.0.0").tips(NONDETERMINISTIC).docs(
                "node-id",
                "Returns the replicas of a primary.",
                "O(1)",
            ),
            changes("REPLICATE").exactly(3).docs(
                "node-id",
                "Makes this node a replica of a primary.",
                "O(1)",
            ),
            changes("RESET")
                .flags(Flags::ADMIN.union(Flags::NOSCRIPT).union(Flags::STALE))
                .at_least(2)
                .docs(
                    "[HARD | SOFT]",
                    "Makes this node forget the cluster.",
                    "O(N), N being the number of nodes",
                ),
            changes("SAVECONFIG").docs("", "Writes the state of the cluster to disk.", "O(1)"),
            changes("SET-CONFIG-EPOCH").exactly(3).docs(
                "config-epoch",
                "Sets the configuration epoch of a new node.",
                "O(1)",
            ),
            changes("SETSLOT").at_least(4).docs(
                "slot <IMPORTING node-id | MIGRATING node-id | NODE node-id | STABLE>",
                "Sets the node of a slot, or the nodes between which it moves.",
                "O(1)",
            ),
            asks("SHARDS").since("7.0.0").tips(NONDETERMINISTIC).docs(
                "",
                "Returns the slots and their nodes.",
                "O(N), N being the number of nodes",
            ),
            inspects("SLAVES")
                .exactly(3)
                .tips(NONDETERMINISTIC)
                .deprecated("5.0.0", "`CLUSTER REPLICAS`")
                .docs("node-id", "Returns the replicas of a primary.", "O(1)"),
            asks("SLOT-STATS")
                .at_least(4)
                .flags(Flags::LOADING.union(Flags::STALE))
                .since("8.0.0")
                .tips(&["nondeterministic_output", "request_policy:all_shards"])
                .docs(
                    "<SLOTSRANGE start-slot end-slot | ORDERBY metric [LIMIT limit] [ASC | DESC]>",
                    "Returns statistics of slots.",
                    "O(N log N), N being the number of slots",
                ),
            asks("SLOTS").tips(NONDETERMINISTIC).deprecated("7.0.0", "`CLUSTER SHARDS`").docs(
                "",
                "Returns the ranges of slots and their nodes.",
                "O(N), N being the number of nodes",
            ),
            changes("SYNCSLOTS").at_least(3).since("9.0.0").docs(
                "argument [argument ...]",
                "Synchronises nodes while slots migrate; used by the nodes themselves.",
                "O(1)",
            ),
        ],
    )
    .group(Group::Cluster)
    .since("3.0.0")
    .docs("", "Commands about the cluster.", "Depends on the subcommand"),
    spec("CLUSTERSCAN", refuse)
        .at_least(2)
        .flags(Flags::READONLY)
        .categories(Categories::KEYSPACE)
        .group(Group::Cluster)
        .since("9.1.0")
        .tips(&["nondeterministic_output", "request_policy:special", "response_policy:special"])
        .docs(
            "cursor [MATCH pattern] [COUNT count] [TYPE type] [SLOT slot]",
            "Iterates over the keys of the cluster, some in each call.",
            "O(N), N being the number of keys returned",
        ),
    connection("ASKING", refuse).flags(Flags::FAST).docs(
        "",
        "Lets the next command access a slot that is moving here.",
        "O(1)",
    ),
    connection("READONLY", read_only).docs(
        "",
        "Allows a replica to serve this connection's reads.",
        "O(1)",
    ),
    connection("READWRITE", read_write).docs("", "Cancels READONLY.", "O(1)"),
];

/// `CLUSTER KEYSLOT key`: an integer if Valkey is emulated, which needs no cluster for it; else an error.
fn key_slot(ctx: &mut Context<'_>) -> CommandResult {
    if !ctx.state.config.compatible_with.is_valkey() {
        return refuse(ctx);
    }
    ctx.reply.integer(slot_of(ctx.args.get(2)).into());
    Ok(Outcome::Replied)
}

/// A key's slot: a hash of the part between its first `{` and the next `}` if not empty, else of the whole key.
fn slot_of(key: &[u8]) -> u16 {
    const SLOTS: u16 = 16384;
    let position = |text: &[u8], wanted| text.iter().position(|&byte| byte == wanted);
    let tag = position(key, b'{').map(|open| &key[open + 1..]);
    let tag = tag.and_then(|rest| position(rest, b'}').map(|close| &rest[..close]));
    Crc::<u16>::new(&CRC_16_XMODEM).checksum(tag.filter(|tag| !tag.is_empty()).unwrap_or(key))
        % SLOTS
}

/// `READONLY`: OK. Only for clients with CLIENT CAPA REDIRECT, and for all if Valkey is emulated.
fn read_only(ctx: &mut Context<'_>) -> CommandResult {
    read_here(ctx, true)
}

/// `READWRITE`: OK, for the same.
fn read_write(ctx: &mut Context<'_>) -> CommandResult {
    read_here(ctx, false)
}

fn read_here(ctx: &mut Context<'_>, on: bool) -> CommandResult {
    let is_valkey = ctx.state.config.compatible_with.is_valkey();
    if !is_valkey && !ctx.client().flags.contains(ClientFlags::CAN_REDIRECT) {
        return refuse(ctx);
    }
    ctx.client().flags.set(ClientFlags::READS_HERE, on);
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// All others: an error.
fn refuse(_: &mut Context<'_>) -> CommandResult {
    Err(CommandError::Text("ERR This instance has cluster support disabled"))
}

#[cfg(test)]
mod tests {
    use super::slot_of;

    #[test]
    fn a_slot_is_that_of_the_tag_or_of_the_whole_key() {
        // As valkey-server 9.1.2 answers CLUSTER KEYSLOT.
        for (key, slot) in [("k", 7629), ("a", 15495), ("{a}b", 15495), ("x{a}{b}", 15495)] {
            assert_eq!(slot_of(key.as_bytes()), slot, "{key}");
        }
        assert_ne!(slot_of(b"{}a"), slot_of(b""));
        assert_ne!(slot_of(b"{a"), 15495);
    }
}
