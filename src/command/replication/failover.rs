//! FAILOVER: hands a primary's role to a replica.

use crate::error::CommandError;
use crate::roles::failover;
use crate::state::context::{CommandResult, Context, Outcome};
use crate::state::spec::{CommandSpec, Flags, Group, spec};

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    spec("FAILOVER", fail_over).at_least(1).flags(Flags::ADMIN.union(Flags::NOSCRIPT).union(Flags::STALE)).group(Group::Server).since("6.2.0")
        .docs("[TO <host port [FORCE]>] [ABORT] [TIMEOUT milliseconds]", "Makes a replica the primary, and this server its replica.", "O(1)"),
];

const IN_CLUSTER: CommandError = CommandError::Text(
    "ERR FAILOVER not allowed in cluster mode. Use CLUSTER FAILOVER command instead.",
);
const NONE_IN_PROGRESS: CommandError = CommandError::Text("ERR No failover in progress.");
const TIMEOUT_TOO_SMALL: CommandError =
    CommandError::Text("ERR FAILOVER timeout must be greater than 0");
const IN_PROGRESS: CommandError = CommandError::Text("ERR FAILOVER already in progress.");
const ON_REPLICA: CommandError =
    CommandError::Text("ERR FAILOVER is not valid when server is a replica.");
const NO_REPLICAS: CommandError = CommandError::Text("ERR FAILOVER requires connected replicas.");
const FORCE_ALONE: CommandError = CommandError::Text(
    "ERR FAILOVER with force option requires both a timeout and target HOST and IP.",
);
const NO_SUCH_REPLICA: CommandError =
    CommandError::Text("ERR FAILOVER target HOST and PORT is not a replica.");
const NOT_ONLINE: CommandError = CommandError::Text("ERR FAILOVER target replica is not online.");

/// The options of FAILOVER.
#[derive(Debug, Default)]
struct Order {
    target: Option<(String, i64)>,
    timeout_ms: Option<i64>,
    forces: bool,
}

impl Order {
    fn parse(ctx: &Context<'_>) -> Result<Self, CommandError> {
        let mut order = Order::default();
        let mut cursor = ctx.args.cursor(1);
        while !cursor.is_at_end() {
            let left = cursor.remaining();
            if left > 1 && order.timeout_ms.is_none() && cursor.take_word("TIMEOUT") {
                match cursor.take_integer()? {
                    ms @ 1.. => order.timeout_ms = Some(ms),
                    _ => return Err(TIMEOUT_TOO_SMALL),
                }
            } else if left > 2 && order.target.is_none() && cursor.take_word("TO") {
                let host = String::from_utf8_lossy(cursor.take()?).into_owned();
                order.target = Some((host, cursor.take_integer()?));
            } else if !order.forces && cursor.take_word("FORCE") {
                order.forces = true;
            } else {
                return Err(CommandError::Syntax);
            }
        }
        Ok(order)
    }
}

/// `FAILOVER [TO host port [FORCE]] [ABORT] [TIMEOUT milliseconds]`: OK. INFO shows the progress as
/// `master_failover_state`.
fn fail_over(ctx: &mut Context<'_>) -> CommandResult {
    if ctx.core.state.config.cluster_enabled {
        return Err(IN_CLUSTER);
    }
    if ctx.args.len() == 2 && ctx.args.get(1).eq_ignore_ascii_case(b"ABORT") {
        if ctx.core.state.replication.failover.is_none() {
            return Err(NONE_IN_PROGRESS);
        }
        let before = ctx.core.keyspace.changes_by_commands();
        failover::abort(ctx.core, "Failover manually aborted");
        ctx.note_own_effects(before);
        ctx.reply.ok();
        return Ok(Outcome::Replied);
    }
    let order = Order::parse(ctx)?;
    if ctx.core.state.replication.failover.is_some() {
        return Err(IN_PROGRESS);
    }
    if ctx.core.state.replication.is_replica() {
        return Err(ON_REPLICA);
    }
    if ctx.core.state.replication.replicas.is_empty() {
        return Err(NO_REPLICAS);
    }
    if order.forces && (order.timeout_ms.is_none() || order.target.is_none()) {
        return Err(FORCE_ALONE);
    }
    let target = order.target.map(|(host, port)| find(ctx, host, port)).transpose()?;
    failover::begin(&mut ctx.core.state, target, order.timeout_ms, order.forces);
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// The replica at that address, if it is online.
fn find(ctx: &Context<'_>, host: String, port: i64) -> Result<(String, u16), CommandError> {
    let found = ctx.core.state.replicas().find(|(client, replica)| {
        host.eq_ignore_ascii_case(&client.replica_address()) && i64::from(replica.port) == port
    });
    match found {
        None => Err(NO_SUCH_REPLICA),
        Some((_, replica)) if !replica.is_online() => Err(NOT_ONLINE),
        Some((_, replica)) => Ok((host, replica.port)),
    }
}
