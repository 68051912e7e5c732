//! SYNC, PSYNC and REPLCONF: the requests of replicas to their primary.

use super::role::take_over;
use crate::client::ClientFlags;
use crate::cluster::node::NodeId;
use crate::durability::persistence;
use crate::error::CommandError;
use crate::gate::limits::describe_for_log;
use crate::replication::link::RUN_ID;
use crate::replication::replica::{Filter, Replica};
use crate::resp::number;
use crate::roles::{replicas, restart};
use crate::state::context::{CommandResult, Context, Outcome};
use crate::state::spec::{CommandSpec, Flags, Group, spec};
use crate::sys::log::{notice, warning};

const SYNC: Flags = Flags::ADMIN
    .union(Flags::NO_ASYNC_LOADING)
    .union(Flags::NO_MULTI)
    .union(Flags::NOSCRIPT)
    .union(Flags::NEEDS_CLIENT);

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    spec("SYNC", sync).exactly(1).flags(SYNC).group(Group::Server).since("1.0.0")
        .docs("", "Turns the connection into a replica's, which gets all data and then the stream.", "O(N), N keys"),
    spec("PSYNC", psync).at_least(3).flags(SYNC).group(Group::Server).since("2.8.0")
        .docs("replicationid offset", "Turns the connection into a replica's, which gets the data it lacks.", "O(1), or O(N) for N keys where it lacks all"),
    spec("REPLCONF", replconf).at_least(1)
        .flags(Flags::ADMIN.union(Flags::ALLOW_BUSY).union(Flags::LOADING).union(Flags::NOSCRIPT).union(Flags::STALE).union(Flags::NEEDS_CLIENT))
        .group(Group::Server).since("3.0.0")
        .docs("", "Informs a primary about its replica and the replica's offset.", "O(1)"),
];

const PENDING_OUTPUT: CommandError =
    CommandError::Text("ERR SYNC and PSYNC are invalid with pending output");
const FILTERED_WITHOUT_END: CommandError =
    CommandError::Text("ERR Filtered replica requires EOF capability");
const NO_PRIMARY_LINK: CommandError =
    CommandError::Text("NOMASTERLINK Can't SYNC while not connected with my master");

const FAILING_OVER: CommandError = CommandError::Text("NOMASTERLINK Can't SYNC while failing over");
const FAILOVER_TO_PRIMARY: CommandError =
    CommandError::Text("ERR PSYNC FAILOVER can't be sent to a master.");
const FAILOVER_OF_OTHER: CommandError =
    CommandError::Text("ERR PSYNC FAILOVER replid must match my replid.");

const FAILOVER_WITHOUT_DATA: CommandError =
    CommandError::Text("ERR PSYNC FAILOVER can't be sent to a replica that has lost its data.");

const FAILOVER_OF_ENDING: CommandError =
    CommandError::Text("ERR PSYNC FAILOVER can't be sent to a server that is shutting down.");

/// The longest address that a replica may announce.
const ADDRESS_BYTES_MAX: usize = 255;
const RUN_ID_BYTES_MAX: usize = 64;

/// `SYNC`: no reply; a snapshot as a bulk string without an end, then the stream.
fn sync(ctx: &mut Context<'_>) -> CommandResult {
    if ctx.client().flags.contains(ClientFlags::REPLICA) {
        return Ok(Outcome::Replied);
    }
    check_can_sync(ctx)?;
    ctx.client().replica.get_or_insert_default().uses_sync = true;
    replicas::await_snapshot(ctx.core, ctx.client_id());
    Ok(Outcome::Replied)
}

/// `PSYNC replicationid offset`: `CONTINUE [id]` and the stream from that offset on, or `FULLRESYNC
/// id offset`, a snapshot, and the stream after that offset. The id `?` asks for a snapshot.
fn psync(ctx: &mut Context<'_>) -> CommandResult {
    if ctx.client().flags.contains(ClientFlags::REPLICA) {
        return Ok(Outcome::Replied);
    }
    if ctx.args.len() > 3 && ctx.args.get(3).eq_ignore_ascii_case(b"FAILOVER") {
        take_part(ctx)?;
    }
    check_can_sync(ctx)?;
    let (history, offset) = (ctx.args.get(1), number::parse_i64(ctx.args.get(2)));
    let id = ctx.client_id();
    let Some(offset) = offset else {
        let name = ctx.client().replica_name();
        warning!(ctx.core.state, "Replica {name} asks for synchronization but with a wrong offset");
        return Err(CommandError::NotInteger);
    };
    ctx.client().replica.get_or_insert_default().uses_sync = false;
    // The end of the stream includes effects that have not been spread yet.
    persistence::spread_effects(&mut ctx.core.state);
    let from = u64::try_from(offset).unwrap_or(0);
    if ctx.core.state.replication.can_continue(&history.to_ascii_lowercase(), from) {
        replicas::continue_stream(&mut ctx.core.state, id, from);
        return Ok(Outcome::Replied);
    }
    if !history.starts_with(b"?") {
        ctx.core.state.stats.counters.partial_syncs_refused += 1;
    }
    if restart::holds_off(ctx.core, id, history, from) {
        return Err(restart::HELD_OFF);
    }
    log_refusal(ctx, history, offset);
    replicas::await_snapshot(ctx.core, id);
    Ok(Outcome::Replied)
}

/// Takes over from a primary that fails over to this replica.
fn take_part(ctx: &mut Context<'_>) -> Result<(), CommandError> {
    let history = ctx.args.get(1);
    let asked = String::from_utf8_lossy(history);
    warning!(ctx.core.state, "Failover request received for replid {asked}.");
    if !ctx.core.state.replication.is_replica() {
        return Err(FAILOVER_TO_PRIMARY);
    }
    if !history.eq_ignore_ascii_case(ctx.core.state.replication.id.as_bytes()) {
        return Err(FAILOVER_OF_OTHER);
    }
    // A transfer that broke off has deleted this replica's data: with it as the primary, all
    // servers would lose theirs.
    if ctx
        .core
        .state
        .replication
        .following
        .as_ref()
        .is_some_and(|following| !following.knows_history)
    {
        return Err(FAILOVER_WITHOUT_DATA);
    }
    // This server is shutting down: there would be no primary.
    if ctx.core.state.process.shutdown.is_some() {
        return Err(FAILOVER_OF_ENDING);
    }
    take_over(ctx);
    let line = describe_for_log(&ctx.core.state, ctx.client_id());
    notice!(ctx.core.state, "MASTER MODE enabled (failover request from '{line}')");
    Ok(())
}

fn check_can_sync(ctx: &mut Context<'_>) -> Result<(), CommandError> {
    let replication = &ctx.core.state.replication;
    if replication.failover.is_some() {
        return Err(FAILING_OVER);
    }
    if replication.following.as_ref().is_some_and(|following| !following.is_connected()) {
        return Err(NO_PRIMARY_LINK);
    }
    if !ctx.reply.output().is_empty() || !ctx.client().output.is_empty() {
        return Err(PENDING_OUTPUT);
    }
    let replica = ctx.client().replica.as_deref();
    if replica.is_some_and(|replica| replica.filter.is_some() && !replica.accepts_eof_mark) {
        return Err(FILTERED_WITHOUT_END);
    }
    let name = ctx.client().replica_name();
    notice!(ctx.core.state, "Replica {name} asks for synchronization");
    Ok(())
}

/// Logs the reason why a replica cannot continue at its offset.
fn log_refusal(ctx: &mut Context<'_>, history: &[u8], offset: i64) {
    let name = ctx.client().replica_name();
    let state = &ctx.core.state;
    let replication = &state.replication;
    let is_known = |id: &str| history.eq_ignore_ascii_case(id.as_bytes());
    let none = "0".repeat(40);
    let (second, second_end) = match &replication.ancestor {
        Some(ancestor) => (&ancestor.id, ancestor.end as i64),
        None => (&none, -1),
    };
    if history.starts_with(b"?") {
        notice!(state, "Full resync requested by replica {name}");
    } else if !is_known(&replication.id) && !is_known(second) {
        let (asked, id) = (String::from_utf8_lossy(history), &replication.id);
        notice!(
            state,
            "Partial resynchronization not accepted: Replication ID mismatch (Replica asked for '{asked}', my \
                 replication IDs are '{id}' and '{second}')"
        );
    } else if !is_known(&replication.id) && offset > second_end {
        notice!(
            state,
            "Partial resynchronization not accepted: Requested offset for second ID was {offset}, but I can reply up to \
                 {second_end}"
        );
    } else {
        notice!(
            state,
            "Unable to partial resync with replica {name} for lack of backlog (Replica request was: {offset})."
        );
        if offset > replication.offset as i64 {
            warning!(
                state,
                "Warning: replica {name} tried to PSYNC with an offset that is greater than the master replication offset."
            );
        }
    }
}

/// `REPLCONF option value [option value ...]`: `OK`; nothing to `ACK` and `GETACK`.
fn replconf(ctx: &mut Context<'_>) -> CommandResult {
    if ctx.args.len().is_multiple_of(2) {
        return Err(CommandError::Syntax);
    }
    for at in (1..ctx.args.len()).step_by(2) {
        let (option, value) = (ctx.args.get(at), ctx.args.get(at + 1));
        let id = ctx.client_id();
        match option.to_ascii_lowercase().as_slice() {
            b"ack" => {
                note_ack(ctx, at);
                return Ok(Outcome::Replied);
            }
            // Only a primary sends it to its replicas; the link to the primary answers.
            b"getack" => return Ok(Outcome::Replied),
            _ => {}
        }
        let node_id = match option.eq_ignore_ascii_case(b"set-cluster-node-id") {
            true => Some(known_node(ctx, value)?),
            false => None,
        };
        let Some(client) = ctx.core.state.clients.get_mut(id) else { break };
        let replica = client.replica.get_or_insert_default();
        match node_id {
            Some(id) => replica.node_id = Some(id),
            None => set_option(replica, option, value)?,
        }
    }
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// The node of the cluster that a replica claims to be.
fn known_node(ctx: &Context<'_>, name: &[u8]) -> Result<NodeId, CommandError> {
    let Some(cluster) = &ctx.core.state.node.cluster else {
        return Err(CommandError::CLUSTER_DISABLED);
    };
    let id = NodeId::from_bytes(name).filter(|id| cluster.find(id).is_some());
    id.ok_or_else(|| CommandError::of_parts(&[b"ERR Unknown node ", name]))
}

/// `ACK offset [FACK offset]` from a replica.
fn note_ack(ctx: &mut Context<'_>, at: usize) {
    if !ctx.client().flags.contains(ClientFlags::REPLICA) {
        return;
    }
    let offset = |at: usize| number::parse_i64(ctx.args.get(at)).map(|it| it.max(0) as u64);
    let Some(acknowledged) = offset(at + 1) else { return };
    let has_synced = ctx.args.len() > at + 3 && ctx.args.get(at + 2).eq_ignore_ascii_case(b"FACK");
    let synced = if has_synced { offset(at + 3) } else { None };
    let id = ctx.client_id();
    replicas::note_ack(&mut ctx.core.state, id, acknowledged, synced);
}

fn set_option(replica: &mut Replica, option: &[u8], value: &[u8]) -> Result<(), CommandError> {
    match option.to_ascii_lowercase().as_slice() {
        b"listening-port" => {
            let port = number::parse_i64(value).ok_or(CommandError::NotInteger)?;
            replica.port = port.clamp(0, i64::from(u16::MAX)) as u16;
        }
        // INFO shows the address in a line, which control characters would break.
        b"ip-address" if value.iter().any(u8::is_ascii_control) => {
            return Err(CommandError::Text(
                "ERR REPLCONF ip-address provided by replica instance has control characters",
            ));
        }
        b"ip-address" if value.len() <= ADDRESS_BYTES_MAX => {
            replica.address = Some(String::from_utf8_lossy(value).into());
        }
        b"ip-address" => {
            return Err(CommandError::formatted(format!(
                "ERR REPLCONF ip-address provided by replica instance is too long: {} bytes",
                value.len()
            )));
        }
        b"capa" if value.eq_ignore_ascii_case(b"eof") => replica.accepts_eof_mark = true,
        b"capa" if value.eq_ignore_ascii_case(b"psync2") => replica.accepts_new_history = true,
        // Unknown capabilities are ignored, as nothing here uses them.
        b"capa" => {
            let run_id = value.strip_prefix(RUN_ID).filter(|id| id.len() <= RUN_ID_BYTES_MAX);
            replica.run_id = run_id.map(Into::into).or(replica.run_id.take());
        }
        b"version" => {
            let first = value.split(|&byte| byte == b'.').next().unwrap_or_default();
            let first = number::parse_i64(first).ok_or(CommandError::NotInteger)?;
            replica.version = u32::try_from(first).ok();
        }
        b"rdb-only" => match number::parse_i64(value).ok_or(CommandError::NotInteger)? {
            wanted @ (0 | 1) => replica.snapshot_only = wanted == 1,
            _ => return Err(CommandError::ValueOutOfRange("value must between 0 and 1")),
        },
        b"rdb-filter-only" => replica.filter = filter(value)?,
        _ => {
            return Err(CommandError::of_parts(&[b"ERR Unrecognized REPLCONF option: ", option]));
        }
    }
    Ok(())
}

/// The filter for a snapshot with only the parts that these words name.
fn filter(words: &[u8]) -> Result<Filter, CommandError> {
    let mut filter = Filter { keys: true, functions: true };
    for word in words.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty()) {
        if !word.eq_ignore_ascii_case(b"functions") {
            return Err(CommandError::of_parts(&[
                b"ERR Unsupported rdb-filter-only option: ",
                word,
            ]));
        }
        filter.functions = false;
    }
    Ok(filter)
}
