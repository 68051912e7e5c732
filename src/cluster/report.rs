//! What CLUSTER NODES and INFO say.

use std::fmt::Write;

use crate::cluster::Cluster;
use crate::cluster::node::{NodeFlags, NodeIndex};

const FLAG_NAMES: &[(NodeFlags, &str)] = &[
    (NodeFlags::MYSELF, "myself"),
    (NodeFlags::PRIMARY, "master"),
    (NodeFlags::REPLICA, "slave"),
    (NodeFlags::PFAIL, "fail?"),
    (NodeFlags::FAIL, "fail"),
    (NodeFlags::HANDSHAKE, "handshake"),
    (NodeFlags::NOADDR, "noaddr"),
    (NodeFlags::NOFAILOVER, "nofailover"),
];

impl Cluster {
    /// A node's line, without its end, with this address and port.
    pub fn line(&self, index: NodeIndex, ip: &str, port: u16) -> String {
        let node = self.node(index);
        let mut line = format!("{} {ip}:{port}@{}", node.id, node.address.bus_port);
        if !node.announced.hostname.is_empty() {
            line = format!("{line},{}", node.announced.hostname);
        }
        let names = FLAG_NAMES.iter().filter(|(flag, _)| node.flags.contains(*flag));
        let names: Vec<&str> = names.map(|(_, name)| *name).collect();
        let flags = if names.is_empty() { "noflags".into() } else { names.join(",") };
        let primary = node.primary.map(|index| self.node(index));
        let primary_id = primary.map_or("-", |primary| primary.id.as_str());
        let epoch = primary.map_or(node.config_epoch, |primary| primary.config_epoch);
        let is_linked = node.outbound.is_some() || index == self.my_index();
        let link = if is_linked { "connected" } else { "disconnected" };
        let (ping, pong) = (node.ping_sent_ms, node.pong_received_ms);
        let _ = write!(line, " {flags} {primary_id} {ping} {pong} {epoch} {link}");
        for (first, last) in node.slots.ranges() {
            let (first, last) = (first.number(), last.number());
            let _ = if first == last {
                write!(line, " {first}")
            } else {
                write!(line, " {first}-{last}")
            };
        }
        if index == self.my_index() {
            for (slot, other) in &self.migrating {
                let _ = write!(line, " [{}->-{}]", slot.number(), self.node(*other).id);
            }
            for (slot, other) in &self.importing {
                let _ = write!(line, " [{}-<-{}]", slot.number(), self.node(*other).id);
            }
        }
        line
    }

    /// The lines of CLUSTER INFO.
    pub fn info(&self) -> String {
        let owners = self.owners.iter().flatten().map(|&owner| self.node(owner).flags);
        let count = |flag| owners.clone().filter(|flags| flags.contains(flag)).count();
        let (pfail, fail) = (count(NodeFlags::PFAIL), count(NodeFlags::FAIL));
        let assigned = owners.clone().count();
        let size = self.nodes.iter().filter(|(_, node)| node.is_voting()).count();
        let mut text = String::new();
        let _ = write!(
            text,
            "cluster_state:{}\r\ncluster_slots_assigned:{assigned}\r\ncluster_slots_ok:{}\r\n\
             cluster_slots_pfail:{pfail}\r\ncluster_slots_fail:{fail}\r\n\
             cluster_known_nodes:{}\r\ncluster_size:{size}\r\n\
             cluster_current_epoch:{}\r\ncluster_my_epoch:{}\r\n",
            if self.is_ok { "ok" } else { "fail" },
            assigned - pfail - fail,
            self.nodes.len(),
            self.current_epoch,
            self.myself().config_epoch,
        );
        text
    }
}
