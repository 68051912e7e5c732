//! CLUSTER INFO, NODES, LINKS and other reports on this node and those that it knows.

use super::cached;
use super::change::change;
use super::enabled::{cluster, node};
use crate::client::Client;
use crate::cluster::Cluster;
use crate::cluster::node::NodeIndex;
use crate::error::CommandError;
use crate::figures::databases::cluster_info;
use crate::gate::cluster::{ip, port};
use crate::resp::reply::ReplyWriter;
use crate::state::State;
use crate::state::cluster_work::Asked;
use crate::state::context::{CommandResult, Context, Outcome};

/// `CLUSTER MYID`: this node's name.
pub fn my_id(ctx: &mut Context<'_>) -> CommandResult {
    let id = cluster(&ctx.core.state)?.myself().id;
    ctx.reply.bulk(id.as_bytes());
    Ok(Outcome::Replied)
}

/// `CLUSTER MYSHARDID`: the name of this node's shard.
pub fn my_shard_id(ctx: &mut Context<'_>) -> CommandResult {
    let id = cluster(&ctx.core.state)?.myself().shard_id;
    ctx.reply.bulk(id.as_bytes());
    Ok(Outcome::Replied)
}

/// `CLUSTER INFO`: lines `name:value`.
pub fn info(ctx: &mut Context<'_>) -> CommandResult {
    cluster(&ctx.core.state)?;
    let text = cluster_info(&ctx.core.state).unwrap_or_default();
    ctx.reply.verbatim(b"txt", text.as_bytes());
    Ok(Outcome::Replied)
}

/// `CLUSTER NODES`: a line for each node, as in nodes.conf.
pub fn nodes(ctx: &mut Context<'_>) -> CommandResult {
    cached::reply(ctx, Asked::Nodes, write_nodes)
}

fn write_nodes(state: &State, client: Option<&Client>, reply: &mut ReplyWriter<'_>) {
    let Some(cluster) = state.node.cluster.as_deref() else { return };
    let lines = cluster.nodes().map(|(index, _)| line(state, client, cluster, index) + "\n");
    let text: String = lines.collect();
    reply.verbatim(b"txt", text.as_bytes());
}

/// A node's line, with the address for the calling client.
fn line(state: &State, client: Option<&Client>, cluster: &Cluster, index: NodeIndex) -> String {
    let node = cluster.node(index);
    cluster.line(index, ip(node, client), port(&state.config, node, client))
}

/// `CLUSTER REPLICAS node-id`: an array of the lines of a primary's replicas.
pub fn replicas(ctx: &mut Context<'_>) -> CommandResult {
    let cluster = cluster(&ctx.core.state)?;
    let primary = cluster.node(node(ctx, 2, "Unknown node")?);
    if primary.is_replica() {
        return Err(CommandError::Text("ERR The specified node is not a master"));
    }
    let client = ctx.caller.client().and_then(|id| ctx.core.state.clients.get(id));
    let replicas = primary.replicas.iter();
    let lines: Vec<String> =
        replicas.map(|&index| line(&ctx.core.state, client, cluster, index)).collect();
    ctx.reply.array(lines.len());
    lines.iter().for_each(|line| ctx.reply.bulk(line.as_bytes()));
    Ok(Outcome::Replied)
}

/// `CLUSTER COUNT-FAILURE-REPORTS node-id`: the number of nodes that report it as failing.
pub fn count_failure_reports(ctx: &mut Context<'_>) -> CommandResult {
    cluster(&ctx.core.state)?;
    let index = node(ctx, 2, "Unknown node")?;
    let reports = change(ctx, |cluster, outside, _| cluster.failure_reports(index, outside));
    ctx.reply.integer(reports.unwrap_or(0) as i64);
    Ok(Outcome::Replied)
}

/// `CLUSTER LINKS`: an array of maps, one for each connection to and from other nodes.
pub fn links(ctx: &mut Context<'_>) -> CommandResult {
    let cluster = cluster(&ctx.core.state)?;
    let array = ctx.reply.defer_array();
    let mut count = 0;
    for (_, node) in cluster.nodes() {
        let links = [("to", node.outbound), ("from", node.inbound)];
        for (direction, link) in links.into_iter().filter_map(|(it, link)| Some((it, link?))) {
            let Some(facts) = ctx.core.state.net.bus.facts(link) else { continue };
            let reply = &mut ctx.reply;
            reply.map(6);
            for (name, value) in [("direction", direction), ("node", node.id.as_str())] {
                reply.bulk(name.as_bytes());
                reply.bulk(value.as_bytes());
            }
            reply.bulk(b"create-time");
            reply.integer(facts.created_ms);
            reply.bulk(b"events");
            reply.bulk(if facts.waits_to_write { b"rw" } else { b"r" });
            reply.bulk(b"send-buffer-allocated");
            reply.integer(facts.queued as i64);
            reply.bulk(b"send-buffer-used");
            reply.integer(facts.queued as i64);
            count += 1;
        }
    }
    ctx.reply.finish(array, count);
    Ok(Outcome::Replied)
}
