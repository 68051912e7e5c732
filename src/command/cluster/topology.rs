//! CLUSTER SLOTS and SHARDS: the owners of slots, in replies for clients.

use std::collections::BTreeMap;

use super::cached;
use crate::client::Client;
use crate::cluster::Cluster;
use crate::cluster::node::{Node, NodeFlags, NodeId, NodeIndex};
use crate::collections::hash_slot::HashSlot;
use crate::gate::cluster::{endpoint, ip, port};
use crate::resp::reply::ReplyWriter;
use crate::state::State;
use crate::state::cluster_work::Asked;
use crate::state::context::{CommandResult, Context};

/// `CLUSTER SLOTS`: an array of ranges, each `[first, last, primary, replica ...]`; a node is
/// `[endpoint, port, id, map]`.
pub(super) fn slots(ctx: &mut Context<'_>) -> CommandResult {
    cached::reply(ctx, Asked::Slots, write_slots)
}

fn write_slots(state: &State, client: Option<&Client>, reply: &mut ReplyWriter<'_>) {
    let Some(cluster) = state.node.cluster.as_deref() else { return };
    let ranges = owned_ranges(cluster);
    reply.array(ranges.len());
    for (first, last, owner) in ranges {
        let owner = cluster.node(owner);
        let replicas = || owner.replicas.iter().map(|&index| cluster.node(index));
        let is_told = |replica: &&Node| {
            !replica.flags.contains(NodeFlags::FAIL) && offset(state, replica) != 0
        };
        reply.array(3 + replicas().filter(is_told).count());
        reply.integer(first.number().into());
        reply.integer(last.number().into());
        for node in std::iter::once(owner).chain(replicas().filter(is_told)) {
            reply_node(state, client, node, reply);
        }
    }
}

/// The slots that have an owner, as ranges from first to last in order.
fn owned_ranges(cluster: &Cluster) -> Vec<(HashSlot, HashSlot, NodeIndex)> {
    let mut ranges: Vec<(HashSlot, HashSlot, NodeIndex)> = Vec::new();
    for slot in HashSlot::all() {
        let Some(owner) = cluster.owner(slot) else { continue };
        match ranges.last_mut() {
            Some((_, last, other)) if *other == owner && last.index() + 1 == slot.index() => {
                *last = slot;
            }
            _ => ranges.push((slot, slot, owner)),
        }
    }
    ranges
}

fn reply_node(state: &State, client: Option<&Client>, node: &Node, reply: &mut ReplyWriter<'_>) {
    let config = &state.config;
    let preferred = config.cluster_preferred_endpoint_type;
    reply.array(4);
    match endpoint(config, node, client) {
        Some(endpoint) => reply.bulk(endpoint.as_bytes()),
        None => reply.null(),
    }
    reply.integer(port(config, node, client).into());
    reply.bulk(node.id.as_bytes());
    let hostname = &node.announced.hostname;
    let more = [
        ("ip", ip(node, client), preferred != "ip"),
        ("hostname", hostname, preferred != "hostname" && !hostname.is_empty()),
        zone(state, node),
    ];
    let more = more.into_iter().filter(|(.., is_told)| *is_told);
    reply.map(more.clone().count());
    for (name, value, _) in more {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    }
}

/// A node's zone, which Valkey shows.
fn zone<'a>(state: &State, node: &'a Node) -> (&'static str, &'a str, bool) {
    let zone = &node.announced.availability_zone;
    let is_told = !zone.is_empty() && state.config.compatible_with.is_valkey();
    ("availability-zone", zone, is_told)
}

/// A node's offset in its shard's history.
fn offset(state: &State, node: &Node) -> u64 {
    match node.flags.contains(NodeFlags::MYSELF) {
        true => state.outside().offset,
        false => node.repl_offset,
    }
}

/// `CLUSTER SHARDS`: an array of maps of slots (first and last of each range) and nodes. As in
/// Redis 7.0 each primary has a map; as in Valkey each shard has one, with an id.
pub(super) fn shards(ctx: &mut Context<'_>) -> CommandResult {
    cached::reply(ctx, Asked::Shards, write_shards)
}

fn write_shards(state: &State, client: Option<&Client>, reply: &mut ReplyWriter<'_>) {
    let Some(cluster) = state.node.cluster.as_deref() else { return };
    let is_valkey = state.config.compatible_with.is_valkey();
    let shards = match is_valkey {
        true => by_shard_id(cluster),
        false => by_primary(cluster),
    };
    reply.array(shards.len());
    for nodes in shards {
        let nodes: Vec<&Node> = nodes.into_iter().map(|index| cluster.node(index)).collect();
        reply.map(2 + usize::from(is_valkey));
        reply.bulk(b"slots");
        // There may be two primaries for a while.
        let owner = nodes.iter().find(|node| node.is_primary() && !node.slots.is_empty());
        let ranges = owner.map_or(Vec::new(), |owner| owner.slots.ranges());
        reply.array(2 * ranges.len());
        for (first, last) in ranges {
            reply.integer(first.number().into());
            reply.integer(last.number().into());
        }
        reply.bulk(b"nodes");
        reply.array(nodes.len());
        for node in &nodes {
            reply_shard_node(state, client, node, reply);
        }
        if is_valkey {
            reply.bulk(b"id");
            reply.bulk(nodes.first().map_or(&[], |node| &node.shard_id.as_bytes()[..]));
        }
    }
}

fn by_primary(cluster: &Cluster) -> Vec<Vec<NodeIndex>> {
    let primaries = cluster.nodes().filter(|(_, node)| node.is_primary());
    let with_replicas = |(index, node): (NodeIndex, &Node)| {
        std::iter::once(index).chain(node.replicas.iter().copied()).collect()
    };
    primaries.map(with_replicas).collect()
}

fn by_shard_id(cluster: &Cluster) -> Vec<Vec<NodeIndex>> {
    let mut shards: BTreeMap<NodeId, Vec<NodeIndex>> = BTreeMap::new();
    let known = cluster.nodes().filter(|(_, node)| !node.flags.contains(NodeFlags::HANDSHAKE));
    known.for_each(|(index, node)| shards.entry(node.shard_id).or_default().push(index));
    shards.into_values().collect()
}

fn reply_shard_node(
    state: &State,
    client: Option<&Client>,
    node: &Node,
    reply: &mut ReplyWriter<'_>,
) {
    let (announced, address) = (&node.announced, &node.address);
    let shown = |announced: u16, own: u16| if announced != 0 && own != 0 { announced } else { own };
    let offset = offset(state, node);
    let map = reply.defer_map();
    let mut count = 0;
    let mut word = |reply: &mut ReplyWriter<'_>, name: &str, value: &[u8]| {
        reply.bulk(name.as_bytes());
        reply.bulk(value);
        count += 1;
    };
    word(reply, "id", node.id.as_bytes());
    let tls_port = match state.config.tls_cluster || state.config.compatible_with.is_valkey() {
        true => shown(announced.client_tls_port, address.tls_port),
        false => 0,
    };
    let ports = [("port", shown(announced.client_port, address.tcp_port)), ("tls-port", tls_port)];
    let ports = ports.into_iter().filter(|(_, port)| *port != 0);
    let number_count = ports.clone().count() + 1;
    for (name, port) in ports {
        reply.bulk(name.as_bytes());
        reply.integer(port.into());
    }
    word(reply, "ip", ip(node, client).as_bytes());
    word(reply, "endpoint", endpoint(&state.config, node, client).unwrap_or_default().as_bytes());
    if !announced.hostname.is_empty() {
        word(reply, "hostname", announced.hostname.as_bytes());
    }
    word(reply, "role", if node.is_replica() { b"replica" } else { b"master" });
    reply.bulk(b"replication-offset");
    reply.integer(offset as i64);
    let health: &[u8] = match node.flags.contains(NodeFlags::FAIL) {
        true => b"fail",
        false if node.is_replica() && offset == 0 => b"loading",
        false => b"online",
    };
    word(reply, "health", health);
    if let (name, zone, true) = zone(state, node) {
        word(reply, name, zone.as_bytes());
    }
    reply.finish(map, count + number_count);
}
