//! WAIT and WAITAOF: waiting until replicas have the client's writes. Once a turn,
//! `waiting/waking.rs` (`serve_acks`) ends the waits for which enough replicas have acknowledged.
//! `waiting/acks.rs` counts the replicas and writes the reply.

use crate::client::ClientFlags;
use crate::client::acks::{LOST, OnDisk};
use crate::command::timeout::TimeoutUnit;
use crate::durability::persistence;
use crate::error::CommandError;
use crate::keyspace::waiting::Wanted;
use crate::persist::aof::log::LogOffset;
use crate::state::context::{AcksAwaited, CommandResult, Context, On, Outcome, Replicas};
use crate::state::spec::{Categories, CommandSpec, Flags, Group, spec};
use crate::waiting::acks;

const TIPS: &[&str] = &["request_policy:all_shards", "response_policy:agg_min"];

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    spec("WAIT", wait).exactly(3).flags(Flags::NO_SCRIPT_BEFORE_7_2.union(Flags::NEEDS_CLIENT)).categories(Categories::CONNECTION).group(Group::Generic)
        .since("3.0.0").tips(TIPS)
        .docs("<numreplicas | ALL> timeout", "Waits until replicas have this connection's writes.", "O(1)"),
    spec("WAITAOF", wait_aof).exactly(4).flags(Flags::BLOCKING.union(Flags::NEEDS_CLIENT)).categories(Categories::CONNECTION).group(Group::Generic)
        .since("7.2.0").tips(TIPS)
        .docs("numlocal numreplicas timeout", "Waits until this connection's writes are on disk, here and on replicas.", "O(1)"),
];

const WAIT_ON_REPLICA: CommandError = CommandError::Text(
    "ERR WAIT cannot be used with replica instances. Please also note that since Redis 4.0 if a replica is configured to be \
     writable (which is not the default) writes to replicas are just local and are not propagated.",
);
const WAITAOF_ON_REPLICA: CommandError = CommandError::Text(
    "ERR WAITAOF cannot be used with replica instances. Please also note that writes to replicas are just local and are not \
     propagated.",
);
const ALL_UNKNOWN: CommandError = CommandError::Text(
    "ERR WAIT ALL needs to know how many replicas could be promoted: set 'wait-all-replicas'",
);

/// The offset after everything that the client's commands have changed or seen.
fn offset(ctx: &mut Context<'_>) -> u64 {
    let end = ctx.core.state.stream_end();
    let client = ctx.client();
    if client.flags.contains(ClientFlags::LOST_WRITES) {
        return LOST;
    }
    let (commands, reached) = client.reached;
    // Commands after the noted ones ran in this turn: the end of the stream covers them.
    if client.commands == commands { reached.min(end) } else { end }
}

/// `WAIT numreplicas timeout`: the number of replicas that have the client's writes, as soon as
/// `numreplicas` have them, or when the time is up. The timeout is in milliseconds, 0 means for
/// ever; within a transaction there is no wait.
///
/// `WAIT ALL timeout`: the same for all replicas that could be promoted, `wait-all-replicas` at
/// least. NOTALL if, when the time is up, some have not acknowledged all writes of this server, by
/// any client.
fn wait(ctx: &mut Context<'_>) -> CommandResult {
    if ctx.core.state.replication.is_replica() {
        return Err(WAIT_ON_REPLICA);
    }
    let replicas = match ctx.args.get(1) {
        word if word.eq_ignore_ascii_case(b"ALL") => Replicas::All,
        _ => Replicas::Count(ctx.args.integer(1)?),
    };
    let deadline_us = ctx.timeout(2, TimeoutUnit::Milliseconds)?;
    let offset = match replicas {
        Replicas::All if ctx.core.state.config.wait_all_replicas == 0 => return Err(ALL_UNKNOWN),
        // With a pool or a proxy, the connection that waits need not be the one that wrote.
        Replicas::All => ctx.core.state.stream_end(),
        Replicas::Count(_) => offset(ctx),
    };
    finish(ctx, AcksAwaited { offset, replicas, on_disk: None }, deadline_us)
}

/// `WAITAOF numlocal numreplicas timeout`: an array of 1 if the client's writes are on this
/// server's disk, else 0, and the number of replicas that have them on disk.
fn wait_aof(ctx: &mut Context<'_>) -> CommandResult {
    let local = match ctx.args.integer(1)? {
        local @ (0 | 1) => local,
        _ => return Err(CommandError::ValueOutOfRange("value must between 0 and 1")),
    };
    let replicas = match ctx.args.integer(2)? {
        count @ 0.. => Replicas::Count(count),
        _ => return Err(CommandError::ValueOutOfRange("must be positive")),
    };
    let deadline_us = ctx.timeout(3, TimeoutUnit::Milliseconds)?;
    if ctx.core.state.replication.is_replica() {
        return Err(WAITAOF_ON_REPLICA);
    }
    if local == 1 && !ctx.core.state.persistence.is_aof_on() {
        return Err(CommandError::Text(acks::WITHOUT_LOG));
    }
    let offset = offset(ctx);
    persistence::spread_effects(&mut ctx.core.state);
    let logged = match offset {
        LOST => LogOffset(u64::MAX),
        _ => ctx.core.state.persistence.depends_on(),
    };
    let on_disk = Some(OnDisk { logged, here_too: local == 1 });
    finish(ctx, AcksAwaited { offset, replicas, on_disk }, deadline_us)
}

fn finish(ctx: &mut Context<'_>, awaited: AcksAwaited, deadline_us: Option<i64>) -> CommandResult {
    // Nobody waits for a lost offset.
    let is_over = awaited.offset == LOST || acks::are_enough(&ctx.core.state, &awaited);
    if !ctx.may_wait() || is_over {
        acks::reply(&ctx.core.state, &awaited, &mut ctx.reply);
        return Ok(Outcome::Replied);
    }
    ctx.core.state.replication.wants_acks = true;
    let on = On::Acks(Box::new(awaited));
    Ok(Outcome::Waits(ctx.wait(Wanted::Acks, on, deadline_us)))
}
