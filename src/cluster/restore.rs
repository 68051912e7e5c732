//! Writes a cluster's state to the text of nodes.conf, and restores it from there.

use super::Cluster;
use super::config_file::{NodeLine, NodesConf};
use super::node::{Node, NodeFlags, NodeIndex};
use super::settings::Settings;
use crate::collections::hash_slot::slots_in;

/// Flags that a file keeps.
const KEPT: NodeFlags = NodeFlags::PRIMARY
    .union(NodeFlags::REPLICA)
    .union(NodeFlags::PFAIL)
    .union(NodeFlags::FAIL)
    .union(NodeFlags::MYSELF)
    .union(NodeFlags::NOADDR)
    .union(NodeFlags::NOFAILOVER);

impl Cluster {
    /// The cluster that a file describes, which names this node. Nodes that the file cannot mean
    /// are left out: those whose primary is missing are nobody's replicas until they say so again.
    pub fn restore(conf: &NodesConf, settings: Settings, seed: u64) -> Option<Cluster> {
        let own = conf.nodes.iter().find(|line| line.flags.contains(NodeFlags::MYSELF))?;
        let mut cluster = Cluster::new(own.id, settings, seed);
        for line in &conf.nodes {
            let index = match line.id == own.id {
                true => cluster.myself,
                false => cluster.add_node(Node::new(line.id))?,
            };
            cluster.restore_node(index, line);
        }
        for line in &conf.nodes {
            let index = cluster.find(&line.id)?;
            if let Some(primary) = line.primary.as_ref().and_then(|id| cluster.find(id))
                && primary != index
                && line.flags.contains(NodeFlags::REPLICA)
            {
                cluster.set_as_replica(index, Some(primary));
            }
            for slot in slots_in(&line.slots).iter() {
                cluster.set_owner(slot, Some(index));
            }
        }
        for (list, open) in
            [(&own.migrating, &mut cluster.migrating), (&own.importing, &mut cluster.importing)]
        {
            for (slot, id) in list {
                if let Some(other) = cluster.by_id.get(id) {
                    open.insert(*slot, *other);
                }
            }
        }
        for slot in slots_in(&conf.unclaimed).iter() {
            if cluster.owner(slot).is_some_and(|owner| owner != cluster.myself) {
                cluster.unclaimed.insert(slot);
            }
        }
        cluster.current_epoch = conf.current_epoch;
        cluster.last_vote_epoch = conf.last_vote_epoch;
        // If no voting node were counted, the majority would be 1: this node alone.
        cluster.count_voting();
        Some(cluster)
    }

    fn restore_node(&mut self, index: NodeIndex, line: &NodeLine) {
        let is_myself = index == self.myself;
        let is_tls = self.settings.tls_cluster;
        let is_announced = !self.settings.announce_ip.is_empty();
        let node = self.node_mut(index);
        node.flags = line.flags & KEPT;
        if !node.flags.contains(NodeFlags::REPLICA) {
            node.flags |= NodeFlags::PRIMARY;
            node.config_epoch = line.config_epoch;
        }
        // A line may have both flags.
        if node.flags.contains(NodeFlags::REPLICA) {
            node.flags -= NodeFlags::PRIMARY;
        }
        node.shard_id = line.shard_id.unwrap_or(line.id);
        node.pong_received_ms = 0;
        if is_myself {
            if !is_announced {
                node.address.ip.clone_from(&line.address.ip);
            }
            node.flags -= NodeFlags::FAIL | NodeFlags::PFAIL;
            return;
        }
        node.address.clone_from(&line.address);
        if is_tls && node.address.tls_port == 0 {
            // The line's only port is that for TLS in a cluster over TLS.
            (node.address.tcp_port, node.address.tls_port) = (0, line.address.tcp_port);
        }
        node.announced.clone_from(&line.announced);
        if node.flags.contains(NodeFlags::FAIL) {
            node.failed_since_ms = 1;
        }
    }

    /// The text of nodes.conf.
    pub(super) fn file_text(&self) -> Vec<u8> {
        let is_kept = |node: &Node| !node.flags.contains(NodeFlags::HANDSHAKE);
        let nodes =
            self.nodes().filter(|(_, node)| is_kept(node)).map(|(index, _)| self.node_line(index));
        let conf = NodesConf {
            nodes: nodes.collect(),
            current_epoch: self.current_epoch,
            last_vote_epoch: self.last_vote_epoch,
            unclaimed: self.unclaimed.ranges(),
        };
        conf.write(self.settings.as_valkey).into_bytes()
    }
}
