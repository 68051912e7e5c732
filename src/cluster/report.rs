//! The replies of CLUSTER NODES and INFO.

use std::fmt::Write;

use super::Cluster;
use super::config_file::NodeLine;
use super::node::{Node, NodeFlags, NodeIndex};
use super::wire::{MODULE, PUBLISH, PUBLISH_SHARD, TYPE_NAMES};

impl Cluster {
    /// A node's line as data, with the address at which other nodes reach it.
    pub(super) fn node_line(&self, index: NodeIndex) -> NodeLine {
        let node = self.node(index);
        let primary = node.primary.map(|index| self.node(index));
        let is_myself = index == self.myself;
        let ids = |open: &std::collections::BTreeMap<_, NodeIndex>| match is_myself {
            true => open.iter().map(|(slot, other)| (*slot, self.node(*other).id)).collect(),
            false => Vec::new(),
        };
        let mut address = node.address.clone();
        if self.settings.tls_cluster && !self.settings.as_valkey {
            address.tcp_port = address.tls_port;
        }
        NodeLine {
            id: node.id,
            address,
            announced: node.announced.clone(),
            shard_id: Some(node.shard_id),
            flags: node.flags,
            primary: primary.map(|primary| primary.id),
            ping_sent_ms: self.shown(node.ping_sent_ms),
            pong_received_ms: self.shown(node.pong_received_ms),
            config_epoch: primary.map_or(node.config_epoch, |primary| primary.config_epoch),
            is_connected: is_myself || self.open_link(index).is_some(),
            slots: node.slots.ranges(),
            migrating: ids(&self.migrating),
            importing: ids(&self.importing),
        }
    }

    /// A node's line of CLUSTER NODES, without its end, with this address and port.
    pub fn line(&self, index: NodeIndex, ip: &str, port: u16) -> String {
        let mut line = self.node_line(index);
        ip.clone_into(&mut line.address.ip);
        line.address.tcp_port = port;
        let mut text = String::new();
        line.write(false, &mut text);
        text
    }

    /// The slots that are being moved by hand, for a replica that takes this node's data.
    pub fn open_slots(&self) -> String {
        let here = self.importing.iter().map(|(slot, from)| (slot, '<', from));
        let all = here.chain(self.migrating.iter().map(|(slot, to)| (slot, '>', to)));
        all.map(|(slot, sign, node)| format!("{}{sign}{},", slot.number(), self.node(*node).id))
            .collect()
    }

    /// The lines of CLUSTER INFO, except that of links over their limit, which the server counts.
    pub fn info(&self) -> String {
        let owners = self.owners.iter().flatten().map(|&owner| self.node(owner).flags);
        let count = |flag| owners.clone().filter(|flags| flags.contains(flag)).count();
        let (pfail, fail) = (count(NodeFlags::PFAIL), count(NodeFlags::FAIL));
        let assigned = owners.clone().count();
        let my_epoch = self.my_primary().map_or(0, |primary| self.node(primary).config_epoch);
        let is_valkey = self.settings.as_valkey;
        let mut text = format!(
            "cluster_state:{}\r\ncluster_slots_assigned:{assigned}\r\ncluster_slots_ok:{}\r\n\
             cluster_slots_pfail:{pfail}\r\ncluster_slots_fail:{fail}\r\n",
            if self.is_ok { "ok" } else { "fail" },
            assigned - pfail - fail,
        );
        if is_valkey {
            let nodes = |flag, votes: bool| {
                let has = |node: &Node| node.flags.contains(flag) && (!votes || node.is_voting());
                self.nodes.iter().filter(|(_, node)| has(node)).count()
            };
            for (name, votes) in [("nodes", false), ("voting_nodes", true)] {
                let (pfail, fail) = (nodes(NodeFlags::PFAIL, votes), nodes(NodeFlags::FAIL, votes));
                let _ =
                    write!(text, "cluster_{name}_pfail:{pfail}\r\ncluster_{name}_fail:{fail}\r\n");
            }
        }
        let _ = write!(
            text,
            "cluster_known_nodes:{}\r\ncluster_size:{}\r\n\
             cluster_current_epoch:{}\r\ncluster_my_epoch:{my_epoch}\r\n",
            self.nodes.len(),
            self.nodes.iter().filter(|(_, node)| node.is_voting()).count(),
            self.current_epoch,
        );
        for (word, counts) in [("sent", &self.counts.sent), ("received", &self.counts.received)] {
            for (name, count) in TYPE_NAMES.iter().zip(counts).filter(|(_, count)| **count > 0) {
                let _ = write!(text, "cluster_stats_messages_{name}_{word}:{count}\r\n");
            }
            let all: u64 = counts.iter().sum();
            let _ = write!(text, "cluster_stats_messages_{word}:{all}\r\n");
        }
        if is_valkey {
            let all = |kinds: &[usize], bytes: &[u64; 11]| -> u64 {
                kinds.iter().map(|kind| bytes[*kind]).sum()
            };
            let kinds: [(&str, &[usize]); 3] = [
                ("", &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
                ("pubsub_", &[PUBLISH, PUBLISH_SHARD]),
                ("module_", &[MODULE]),
            ];
            for (name, kinds) in kinds {
                let sent = all(kinds, &self.counts.bytes_sent);
                let received = all(kinds, &self.counts.bytes_received);
                let _ = write!(
                    text,
                    "cluster_stats_{name}bytes_sent:{sent}\r\ncluster_stats_{name}bytes_received:{received}\r\n"
                );
            }
        }
        text
    }
}
