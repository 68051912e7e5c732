//! This server's role: REPLICAOF, ROLE.

use crate::command::set_oom_score;
use crate::error::CommandError;
use crate::gate::limits::describe_for_log;
use crate::roles::{following, promoted, restart};
use crate::state::context::{CommandResult, Context, Outcome};
use crate::state::spec::{Categories, CommandSpec, Flags, Group, spec};
use crate::sys::log::notice;

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    spec("ROLE", role).exactly(1).flags(Flags::LOADING_STALE.union(Flags::FAST).union(Flags::NOSCRIPT)).categories(Categories::ADMIN_DANGEROUS)
        .group(Group::Server).since("2.8.12")
        .docs("", "Returns the server's role in replication.", "O(1)"),
    spec("REPLICAOF", replicaof).exactly(3).flags(REPLICAOF_FLAGS).with(Flags::NEEDS_CLIENT).group(Group::Server).since("5.0.0")
        .docs("<host port | NO ONE>", "Makes this server a replica of another one, or a primary.", "O(1)"),
    spec("SLAVEOF", replicaof).exactly(3).flags(REPLICAOF_FLAGS).with(Flags::NEEDS_CLIENT).group(Group::Server).since("1.0.0")
        .deprecated("5.0.0", "`REPLICAOF`")
        .docs("<host port | NO ONE>", "Makes this server a replica of another one, or a primary.", "O(1)"),
];

const REPLICAOF_FLAGS: Flags =
    Flags::ADMIN.union(Flags::NOSCRIPT).union(Flags::STALE).union(Flags::NO_ASYNC_LOADING);

/// `ROLE`: at a primary, an array of `master`, the replication offset and the replicas; at a
/// replica, of `slave`, the primary's host and port, the state of the link and the offset that was
/// applied, -1 without a link.
fn role(ctx: &mut Context<'_>) -> CommandResult {
    let replication = &ctx.core.state.replication;
    let Some(following) = replication.following.as_deref() else {
        let online: Vec<_> =
            ctx.core.state.replicas().filter(|(_, replica)| replica.is_online()).collect();
        ctx.reply.array(3);
        ctx.reply.bulk(b"master");
        ctx.reply.integer(replication.offset as i64);
        ctx.reply.array(online.len());
        for (client, replica) in online {
            ctx.reply.array(3);
            ctx.reply.bulk(client.replica_address().as_bytes());
            ctx.reply.bulk_integer(replica.port.into());
            ctx.reply.bulk_integer(replica.acknowledged.unwrap_or(0) as i64);
        }
        return Ok(Outcome::Replied);
    };
    ctx.reply.array(5);
    ctx.reply.bulk(b"slave");
    ctx.reply.bulk(&following.host);
    ctx.reply.integer(following.port.into());
    ctx.reply.bulk(following.progress.name().as_bytes());
    ctx.reply.integer(if following.is_connected() { replication.offset as i64 } else { -1 });
    Ok(Outcome::Replied)
}

/// Makes this replica a primary. This changes the leases of sessions, and the changes are
/// replicated.
pub(super) fn take_over(ctx: &mut Context<'_>) {
    let before = ctx.core.keyspace.changes_by_commands();
    following::unfollow(ctx.core);
    ctx.note_own_effects(before);
}

/// `REPLICAOF host port`, `REPLICAOF NO ONE`: OK.
fn replicaof(ctx: &mut Context<'_>) -> CommandResult {
    if ctx.core.state.config.cluster_enabled {
        return Err(CommandError::Text("ERR REPLICAOF not allowed in cluster mode."));
    }
    if ctx.core.state.replication.failover.is_some() {
        return Err(CommandError::Text("ERR REPLICAOF not allowed while failing over."));
    }
    let (host, port) = (ctx.args.get(1), ctx.args.get(2));
    let (id, is_replica) = (ctx.client_id(), ctx.core.state.replication.is_replica());
    if host.eq_ignore_ascii_case(b"no") && port.eq_ignore_ascii_case(b"one") {
        restart::confirm(&mut ctx.core.state);
        promoted::forget(&mut ctx.core.state);
        if is_replica {
            take_over(ctx);
            tell_system(ctx);
            let client = describe_for_log(&ctx.core.state, id);
            notice!(ctx.core.state, "MASTER MODE enabled (user request from '{client}')");
        }
        ctx.reply.ok();
        return Ok(Outcome::Replied);
    }
    if ctx.core.state.replication.replicas.contains(&id) {
        return Err(CommandError::Text("ERR Command is not valid when client is a replica."));
    }
    const INVALID_PORT: CommandError = CommandError::Text("ERR Invalid master port");
    let port = ctx.args.integer(2).map_err(|_| INVALID_PORT)?;
    let port = u16::try_from(port).map_err(|_| INVALID_PORT)?;
    if let Some(now) = ctx.core.state.replication.following.as_deref()
        && now.host.eq_ignore_ascii_case(host)
        && now.port == port
    {
        let text = "REPLICAOF would result into synchronization with the master we are already connected with. No operation \
                    performed.";
        notice!(ctx.core.state, "{text}");
        ctx.reply.simple("OK Already connected to specified master");
        return Ok(Outcome::Replied);
    }
    following::follow(ctx.core, host, port, false);
    tell_system(ctx);
    let client = describe_for_log(&ctx.core.state, id);
    let host = String::from_utf8_lossy(host);
    notice!(ctx.core.state, "REPLICAOF {host}:{port} enabled (user request from '{client}')");
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// Sets the process' OOM score for the role, if `oom-score-adj` is on.
fn tell_system(ctx: &mut Context<'_>) {
    // A failure is logged; it is no error of this command.
    let _ = set_oom_score(&mut ctx.core.state);
}
