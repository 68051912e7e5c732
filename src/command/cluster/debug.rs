//! DEBUG's subcommands for clusters: tests make nodes lose messages and connections.

use crate::cluster::Faults;
use crate::cluster::node::NodeId;
use crate::collections::hash_slot::checksum;
use crate::error::CommandError;
use crate::state::context::{CommandResult, Context, Outcome};

/// `DEBUG DROP-CLUSTER-PACKET-FILTER type`: drops messages of the type; -1 drops none, -2 all.
pub fn drop_packets(ctx: &mut Context<'_>) -> CommandResult {
    let kind = ctx.args.integer(2)?;
    if let Some(cluster) = &mut ctx.core.state.node.cluster {
        cluster.faults().dropped = kind;
    }
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// `DEBUG CLOSE-CLUSTER-LINK-ON-PACKET-DROP flag`, `DISABLE-CLUSTER-RANDOM-PING flag` and
/// `DISABLE-CLUSTER-RECONNECTION flag`.
pub fn switch(ctx: &mut Context<'_>, choose: fn(&mut Faults) -> &mut bool) -> CommandResult {
    let is_on = ctx.args.integer(2)? != 0;
    if let Some(cluster) = &mut ctx.core.state.node.cluster {
        *choose(cluster.faults()) = is_on;
    }
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// `DEBUG INTERNAL_SECRET`: the checksum of the secret that nodes of Redis 8 share, 0 if none of
/// them is known.
pub fn internal_secret(ctx: &mut Context<'_>) -> CommandResult {
    let Some(cluster) = &ctx.core.state.node.cluster else {
        return Err(CommandError::Text("ERR Internal secret is missing"));
    };
    ctx.reply.integer(cluster.secret().map_or(0, checksum).into());
    Ok(Outcome::Replied)
}

/// `DEBUG SLOTMIGRATION <PREVENT-PAUSE | PREVENT-FAILOVER> <0 | 1>`: slot migrations do not reach
/// their pause, or not their end.
pub fn slot_migration(ctx: &mut Context<'_>) -> CommandResult {
    let on = ctx.args.integer(3)? != 0;
    let moves = &mut ctx.core.state.node.moves;
    match ctx.args.get(2).to_ascii_lowercase().as_slice() {
        b"prevent-pause" => moves.prevents_pause = on,
        b"prevent-failover" => moves.prevents_failover = on,
        _ => return Err(CommandError::Syntax),
    }
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// `DEBUG CLUSTERLINK KILL <to|from|all> node-id`.
pub fn kill_link(ctx: &mut Context<'_>) -> CommandResult {
    let outside = ctx.core.state.outside();
    let Some(cluster) = &mut ctx.core.state.node.cluster else {
        return Err(CommandError::Text(
            "ERR Debug option only available for cluster mode enabled setup!",
        ));
    };
    let id = ctx.args.get(4);
    let Some(index) = NodeId::from_bytes(id).and_then(|id| cluster.find(&id)) else {
        let shown = String::from_utf8_lossy(id);
        return Err(CommandError::formatted(format!("ERR Unknown node {shown}")));
    };
    let (to, from) = match ctx.args.get(3).to_ascii_lowercase().as_slice() {
        b"to" => (true, false),
        b"from" => (false, true),
        b"all" => (true, true),
        direction => {
            let shown = String::from_utf8_lossy(direction).into_owned();
            return Err(CommandError::formatted(format!("ERR Unknown direction {shown}")));
        }
    };
    cluster.kill_links(index, to, from, &outside, &mut ctx.core.state.node.actions);
    ctx.reply.ok();
    Ok(Outcome::Replied)
}
