//! Periodic work: connections, pings, and nodes that do not answer.
//!
//! Most calls would find nothing to do: in a calm cluster each node is pinged every few seconds. So
//! each call computes when time alone gives the next one something to do, and the server need not
//! call before. Whatever else may change that makes a call due at once.

use super::action::LinkId;
use super::node::{Node, NodeFlags, NodeIndex};
use super::wire::Kind;
use super::{Cluster, Todo};

/// A node chosen at random is pinged once in this time. Unit: milliseconds.
const RANDOM_PING_MS: i64 = 1_000;
/// The interval of calls in which something is due. Unit: milliseconds.
const TICK_MS: i64 = 100;
/// The nodes drawn at random, of which the one silent for longest is pinged.
const RANDOM_PING_CHOICES: usize = 5;
/// The most connections begun in one call: a peer that names many absent nodes must not hold up the
/// loop.
const CONNECTS_MAX: usize = 256;
/// A handshake lasts at least this long. Unit: milliseconds.
const HANDSHAKE_LEAST_MS: i64 = 1_000;
/// In clusters with more voting nodes, gossip alone spreads a suspicion: pings from all nodes to
/// all would be a flood.
const TOLD_AT_ONCE_MAX: usize = 64;

impl Cluster {
    pub(super) fn run_cron(&mut self) {
        let now = self.now();
        self.ticks += 1;
        self.connect_all();
        if now >= self.random_ping_ms {
            // A late call does not make the next ping late.
            let least_ms = now + RANDOM_PING_MS - TICK_MS;
            self.random_ping_ms = (self.random_ping_ms + RANDOM_PING_MS).max(least_ms);
            if !self.faults.pings_nobody {
                self.ping_one();
            }
        }
        self.check_all();
        self.blacklist.retain(|_, until| *until > now);
        if self.myself().is_replica() {
            if !self.outside.is_link_up {
                // The server does nothing if it follows that address already.
                self.follow_address();
            }
            self.migrate_to_orphan();
        }
        self.check_manual_failover();
        self.serve_waiting_heir();
        self.go_on_with_election();
        if !self.is_ok {
            self.todo |= Todo::UPDATE_STATE;
        }
        self.finish_todo();
        self.due_ms = self.next_due_ms();
    }

    /// When the next call has something to do if nothing but the time changes; 0: always.
    fn next_due_ms(&self) -> i64 {
        // What a replica does also depends on its link and its primary's other replicas.
        if !self.is_ok || self.myself().is_replica() {
            return 0;
        }
        let nodes = self.nodes().map(|(index, node)| self.due_of(index, node));
        nodes.fold(self.random_ping_ms, i64::min)
    }

    /// When a node is next to be connected to, pinged or given up if it stays silent; 0: at each
    /// call. Before, [`Self::check`] would do nothing.
    fn due_of(&self, index: NodeIndex, node: &Node) -> i64 {
        if node.flags.intersects(NodeFlags::MYSELF | NodeFlags::NOADDR) {
            return i64::MAX;
        }
        let is_unsettled = node.outbound.is_none()
            || (node.inbound.is_none() && node.flags.contains(NodeFlags::LIGHT_MODULE))
            || node.flags.contains(NodeFlags::HANDSHAKE)
            || node.is_failing();
        if is_unsettled || self.is_pausing_for(index) {
            return 0;
        }
        let (last_ms, limit_ms) = match node.ping_sent_ms {
            0 => (node.pong_received_ms, self.ping_interval_ms()),
            sent_ms => (sent_ms.max(node.data_received_ms), self.settings.node_timeout_ms / 2),
        };
        last_ms.saturating_add(limit_ms).saturating_add(1)
    }

    /// The next deadline after a message that only updated the sender's timestamps: the earlier of
    /// `due_ms` and the sender's own.
    pub(super) fn due_after_message(&self, link: LinkId, due_ms: i64) -> i64 {
        let node = self.links.get(&link).and_then(|link| link.node);
        let node_due_ms = node.map_or(i64::MAX, |index| self.due_of(index, self.node(index)));
        due_ms.min(node_due_ms)
    }

    /// The nodes for which something is due.
    fn due_indexes(&self) -> Vec<NodeIndex> {
        let now = self.now();
        let due = self.nodes().filter(|(index, node)| self.due_of(*index, node) <= now);
        due.map(|(index, _)| index).collect()
    }

    /// How long a handshake may take. Unit: milliseconds.
    pub(super) fn handshake_ms(&self) -> i64 {
        self.settings.node_timeout_ms.max(HANDSHAKE_LEAST_MS)
    }

    /// A node is pinged this long after its last answer. Somewhat longer than half of the time-out,
    /// after which Redis pings: pings to all nodes are most of an idle node's work.
    fn ping_interval_ms(&self) -> i64 {
        let timeout_ms = self.settings.node_timeout_ms;
        match self.settings.ping_interval_ms {
            0 => timeout_ms / 2 + timeout_ms / 16,
            interval_ms => interval_ms,
        }
    }

    fn connect_all(&mut self) {
        let now = self.now();
        let handshake_ms = self.handshake_ms();
        let mut without = Vec::new();
        for index in self.due_indexes() {
            let node = self.node(index);
            if node.flags.contains(NodeFlags::HANDSHAKE) && now - node.created_ms > handshake_ms {
                self.remove_node(index);
            } else if node.outbound.is_none() && !self.faults.stays_apart {
                without.push(index);
            }
        }
        // If there are too many, each gets its turn.
        if without.len() > CONNECTS_MAX {
            let first = (self.ticks as usize).wrapping_mul(CONNECTS_MAX) % without.len();
            without.rotate_left(first);
            without.truncate(CONNECTS_MAX);
        }
        without.into_iter().for_each(|index| self.connect(index));
    }

    /// Pings one of a few nodes drawn at random: the one that has been silent for longest.
    fn ping_one(&mut self) {
        let is_quiet = |node: &Node| {
            node.ping_sent_ms == 0
                && !node.flags.intersects(NodeFlags::MYSELF | NodeFlags::HANDSHAKE)
        };
        let quiet: Vec<NodeIndex> =
            self.nodes().filter(|(_, node)| is_quiet(node)).map(|(index, _)| index).collect();
        if quiet.is_empty() {
            return;
        }
        let chosen: Vec<NodeIndex> =
            (0..RANDOM_PING_CHOICES).map(|_| quiet[self.random.usize(..quiet.len())]).collect();
        let chosen = chosen.into_iter().filter(|index| self.open_link(*index).is_some());
        if let Some(index) = chosen.min_by_key(|index| self.node(*index).pong_received_ms) {
            self.ping(index);
        }
    }

    fn ping(&mut self, index: NodeIndex) {
        if let Some(link) = self.open_link(index) {
            self.send_ping(link, Kind::Ping);
        }
    }

    fn check_all(&mut self) {
        for index in self.due_indexes() {
            if !self.node(index).flags.contains(NodeFlags::HANDSHAKE) {
                self.check(index);
            }
        }
    }

    /// Checks one node: whether its connection is stuck, whether a ping is due, and whether it has
    /// failed.
    fn check(&mut self, index: NodeIndex) {
        let now = self.now();
        let timeout_ms = self.settings.node_timeout_ms;
        let interval_ms = self.ping_interval_ms();
        let node = self.node(index);
        let (ping_sent_ms, data_ms) = (node.ping_sent_ms, node.data_received_ms);
        let is_failing = node.is_failing();
        if let Some(link) = node.outbound
            && let Some(created_ms) = self.links.get(&link).map(|link| link.created_ms)
            && now - created_ms > timeout_ms
            && ping_sent_ms != 0
            && now - ping_sent_ms > timeout_ms / 2
            && (now - data_ms > timeout_ms / 2 || is_failing)
        {
            // Perhaps only the connection is broken: reconnect before the node is given up. Only an
            // answer ends a failure, whatever else comes from that node.
            self.close(link);
        }
        self.meet_again_if_unknown(index);
        if self.open_link(index).is_some() && ping_sent_ms == 0 {
            let is_due = now - self.node(index).pong_received_ms > interval_ms;
            if is_due || self.is_pausing_for(index) {
                self.ping(index);
                return;
            }
        } else if self.is_pausing_for(index) {
            self.ping(index);
        }
        let node = self.node(index);
        if node.ping_sent_ms == 0 {
            return;
        }
        let silence_ms = (now - node.ping_sent_ms).min(now - node.data_received_ms);
        if silence_ms > timeout_ms && !node.is_failing() {
            let id = node.id;
            self.log(format!("*** NODE {id} possibly failing"));
            self.node_mut(index).flags |= NodeFlags::PFAIL;
            self.version += 1;
            self.todo |= Todo::UPDATE_STATE | Todo::SAVE;
            self.ask_others_of_failure();
        }
        self.mark_failed_if_agreed(index);
    }

    /// Sends MEET again to a node that has opened no connection although this one has: it does not
    /// know this one. Only nodes of Valkey 8.1 and later expect that.
    fn meet_again_if_unknown(&mut self, index: NodeIndex) {
        let now = self.now();
        let wait_ms = self.handshake_ms();
        let Some(link) = self.open_link(index) else { return };
        let node = self.node(index);
        let last_ms = node.inbound_lost_ms.max(node.meet_sent_ms).max(node.created_ms);
        let is_expected = node.flags.contains(NodeFlags::LIGHT_MODULE);
        if node.inbound.is_some() || now - last_ms <= wait_ms || !is_expected {
            return;
        }
        let (id, name) = (node.id, node.announced.human_nodename.clone());
        self.log(format!(
            "Sending MEET packet to node {id} ({name}) because there is no inbound link for it"
        ));
        self.node_mut(index).flags |= NodeFlags::MEET;
        self.send_ping(link, Kind::Meet);
    }

    /// Pings the other primaries at once when this node suspects another one, rather than at their
    /// next turn, so that they agree sooner.
    fn ask_others_of_failure(&mut self) {
        if !self.myself().is_voting() || self.size > TOLD_AT_ONCE_MAX {
            return;
        }
        for index in self.others() {
            let node = self.node(index);
            if node.is_voting() && !node.is_failing() && node.ping_sent_ms == 0 {
                self.ping(index);
            }
        }
    }
}
