//! CLUSTER MEET, FORGET, REPLICATE, FAILOVER, RESET and the subcommands on epochs: the cluster's
//! nodes and their roles.

use std::net::IpAddr;

use super::change::{change, has_keys};
use super::enabled::{cluster, node};
use crate::cluster::admin::Failover;
use crate::cluster::node::{NodeFlags, NodeId};
use crate::error::CommandError;
use crate::resp::number::parse_i64;
use crate::state::context::{Caller, CommandResult, Context, Outcome};
use crate::sys::random;

/// `CLUSTER MEET ip port [cluster_bus_port]`: OK, before the other node is contacted.
pub fn meet(ctx: &mut Context<'_>) -> CommandResult {
    cluster(&ctx.core.state)?;
    if ctx.args.len() > 5 {
        return Err(ctx.wrong_subcommand());
    }
    let is_valkey = ctx.core.state.config.compatible_with.is_valkey();
    let invalid = |what: &str, text: &[u8]| {
        let word = if is_valkey { "" } else { "TCP " };
        let before = format!("ERR Invalid {word}{what} port specified: ");
        CommandError::of_parts(&[before.as_bytes(), text])
    };
    let number = |index: usize, what: &str| {
        let text = ctx.args.get(index);
        parse_i64(text).ok_or_else(|| invalid(what, text))
    };
    let port = number(3, "base")?;
    if is_valkey && !(1..=65_535).contains(&port) {
        return Err(CommandError::Text("ERR Port number is out of range"));
    }
    let bus_port = match ctx.args.len() {
        5 => number(4, "bus")?,
        _ => port.saturating_add(BUS_PORT_DISTANCE),
    };
    if is_valkey && !(1..=65_535).contains(&bus_port) {
        return Err(CommandError::Text("ERR Cluster bus port number is out of range"));
    }
    let ip = std::str::from_utf8(ctx.args.get(2)).ok().and_then(|ip| ip.parse::<IpAddr>().ok());
    let port = u16::try_from(port).ok().filter(|&port| port != 0);
    let bus_port = u16::try_from(bus_port).ok().filter(|&port| port != 0);
    let (Some(ip), Some(port), Some(bus_port)) = (ip, port, bus_port) else {
        let before = &b"ERR Invalid node address specified: "[..];
        return Err(CommandError::of_parts(&[before, ctx.args.get(2), b":", ctx.args.get(3)]));
    };
    change(ctx, |cluster, outside, actions| cluster.meet(ip, port, bus_port, outside, actions));
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// The distance from a node's port to its bus port.
const BUS_PORT_DISTANCE: i64 = 10_000;

/// `CLUSTER FORGET node-id`: OK.
pub fn forget(ctx: &mut Context<'_>) -> CommandResult {
    let known = cluster(&ctx.core.state)?;
    // Another node may have made this one forget it already, as in Valkey: a client that asks each
    // node in turn gets OK from all.
    if let Some(id) = NodeId::from_bytes(ctx.args.get(2))
        && known.is_blacklisted(&id)
    {
        ctx.reply.ok();
        return Ok(Outcome::Replied);
    }
    let index = node(ctx, 2, "Unknown node")?;
    if index == known.my_index() {
        return Err(CommandError::Text("ERR I tried hard but I can't forget myself..."));
    }
    if known.myself().primary == Some(index) {
        return Err(CommandError::Text("ERR Can't forget my master!"));
    }
    change(ctx, |cluster, outside, actions| cluster.forget(index, outside, actions));
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// `CLUSTER REPLICATE node-id`, or `NO ONE`: OK.
pub fn replicate(ctx: &mut Context<'_>) -> CommandResult {
    let known = cluster(&ctx.core.state)?;
    if ctx.args.len() > 3 {
        return follow_nobody(ctx);
    }
    let index = node(ctx, 2, "Unknown node")?;
    if index == known.my_index() {
        return Err(CommandError::Text("ERR Can't replicate myself"));
    }
    if known.node(index).is_replica() {
        let text = "ERR I can only replicate a master, not a replica.";
        return Err(CommandError::Text(text));
    }
    let myself = known.myself();
    if myself.is_primary() && (!myself.slots.is_empty() || has_keys(ctx)) {
        return Err(CommandError::Text(
            "ERR To set a master the node must be empty and without assigned slots.",
        ));
    }
    change(ctx, |cluster, outside, actions| cluster.replicate(index, outside, actions));
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// Makes a replica an empty primary of a new shard; a primary stays as it is.
fn follow_nobody(ctx: &mut Context<'_>) -> CommandResult {
    let mut words = ctx.args.cursor(2);
    if !(words.take_word("NO") && words.take_word("ONE") && words.is_at_end()) {
        return Err(match ctx.core.state.config.compatible_with.is_valkey() {
            true => ctx.wrong_subcommand(),
            false => CommandError::WrongArity(ctx.name().into()),
        });
    }
    if cluster(&ctx.core.state)?.myself().is_replica() {
        change(ctx, |cluster, outside, actions| cluster.follow_nobody(outside, actions));
    }
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// `CLUSTER FAILOVER [FORCE | TAKEOVER]`: OK, when it begins.
pub fn failover(ctx: &mut Context<'_>) -> CommandResult {
    let known = cluster(&ctx.core.state)?;
    let by_primary = ctx.caller == Caller::Primary;
    if ctx.args.len() > 3 && !by_primary && !ctx.core.state.config.compatible_with.is_valkey() {
        return Err(ctx.wrong_subcommand());
    }
    let mut options = ctx.args.cursor(2);
    let (mut how, mut heir) = (Failover::Agreed, None);
    while !options.is_at_end() {
        match () {
            () if options.take_word("FORCE") => {
                how = if how == Failover::Takeover { how } else { Failover::Forced };
            }
            () if options.take_word("TAKEOVER") => how = Failover::Takeover,
            // A primary that is ending names its successor.
            () if by_primary && options.take_word("REPLICAID") => heir = Some(options.take()?),
            () => return Err(CommandError::Syntax),
        }
    }
    if heir.is_some_and(|heir| heir != known.myself().id.as_bytes()) {
        ctx.reply.ok();
        return Ok(Outcome::Replied);
    }
    let myself = known.myself();
    if myself.is_primary() {
        return Err(CommandError::Text("ERR You should send CLUSTER FAILOVER to a replica"));
    }
    let Some(primary) = myself.primary.map(|index| known.node(index)) else {
        return Err(CommandError::Text("ERR I'm a replica but my master is unknown to me"));
    };
    // Without the primary's stream the pause would be in vain.
    let is_linked = primary.outbound.is_some() && ctx.core.state.outside().is_link_up;
    if how == Failover::Agreed && (primary.flags.contains(NodeFlags::FAIL) || !is_linked) {
        return Err(CommandError::Text(
            "ERR Master is down or failed, please use CLUSTER FAILOVER FORCE",
        ));
    }
    change(ctx, |cluster, outside, actions| {
        cluster.fail_over(how, by_primary, outside, actions);
    });
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// `CLUSTER RESET [HARD | SOFT]`: OK.
pub fn reset(ctx: &mut Context<'_>) -> CommandResult {
    let known = cluster(&ctx.core.state)?;
    if ctx.args.len() > 3 {
        return Err(ctx.wrong_subcommand());
    }
    let mut options = ctx.args.cursor(2);
    let is_hard = options.take_word("HARD");
    if !is_hard && !options.is_at_end() && !options.take_word("SOFT") {
        return Err(CommandError::Syntax);
    }
    if known.myself().is_primary() && has_keys(ctx) {
        return Err(CommandError::Text(
            "ERR CLUSTER RESET can't be called with master nodes containing keys",
        ));
    }
    let id = NodeId::from_bytes(random::hex_id().as_bytes()).expect("a name is 40 digits");
    let id = is_hard.then_some(id);
    change(ctx, |cluster, outside, actions| cluster.reset(id, outside, actions));
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// `CLUSTER SAVECONFIG`: OK.
pub fn save(ctx: &mut Context<'_>) -> CommandResult {
    cluster(&ctx.core.state)?;
    change(ctx, |cluster, _, _| cluster.save_soon());
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// `CLUSTER BUMPEPOCH`: `BUMPED epoch`, or `STILL epoch` if this node's is the greatest.
pub fn bump_epoch(ctx: &mut Context<'_>) -> CommandResult {
    cluster(&ctx.core.state)?;
    let is_new = change(ctx, |cluster, outside, actions| cluster.bump_epoch(outside, actions));
    let word = if is_new == Some(true) { "BUMPED" } else { "STILL" };
    let epoch = cluster(&ctx.core.state)?.myself().config_epoch;
    ctx.reply.simple(format!("{word} {epoch}"));
    Ok(Outcome::Replied)
}

/// `CLUSTER SET-CONFIG-EPOCH config-epoch`: OK.
pub fn set_epoch(ctx: &mut Context<'_>) -> CommandResult {
    let known = cluster(&ctx.core.state)?;
    let number = ctx.args.integer(2)?;
    let Ok(epoch) = u64::try_from(number) else {
        let text = format!("ERR Invalid config epoch specified: {number}");
        return Err(CommandError::formatted(text));
    };
    if known.nodes().nth(1).is_some() {
        return Err(CommandError::Text(
            "ERR The user can assign a config epoch only when the node does not know any other node.",
        ));
    }
    if known.myself().config_epoch != 0 {
        return Err(CommandError::Text("ERR Node config epoch is already non-zero"));
    }
    change(ctx, |cluster, outside, actions| cluster.set_epoch(epoch, outside, actions));
    ctx.reply.ok();
    Ok(Outcome::Replied)
}
