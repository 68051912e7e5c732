//! Elections: a replica whose primary has failed asks the other primaries for their votes.

use super::action::Action;
use super::node::{NodeFlags, NodeId, NodeIndex};
use super::wire::{Body, Header, Marks};
use super::{Cluster, Todo};

/// The longest part of a delay. Unit: milliseconds.
const DELAY_MAX_MS: i64 = 500;
/// An election lasts at least this long. Unit: milliseconds.
const ELECTION_LEAST_MS: i64 = 2_000;

/// This replica's attempt to be elected.
#[derive(Clone, Debug, Default)]
pub struct Election {
    /// When the votes are or were requested; None: no attempt yet.
    start_ms: Option<i64>,
    /// The epoch for which votes were requested.
    epoch: Option<u64>,
    rank: usize,
    /// The part of the delay that applies until a primary announces that this replica's primary has
    /// failed.
    untold_ms: i64,
    pub votes: Vec<NodeIndex>,
}

/// A request for a vote that came before this node knew of the failure.
#[derive(Clone, Debug)]
pub struct EarlyRequest {
    candidate: NodeId,
    primary: NodeIndex,
    header: Box<Header>,
}

impl Election {
    /// Whether the end of a turn may advance the election.
    pub fn is_under_way(&self) -> bool {
        self.start_ms.is_some()
    }
}

impl Cluster {
    /// The time to wait for votes. Unit: milliseconds.
    fn election_ms(&self) -> i64 {
        self.settings.node_timeout_ms.saturating_mul(2).max(ELECTION_LEAST_MS)
    }

    /// The unit of delays: long enough for other primaries to hear of the failure.
    pub(super) fn delay_ms(&self) -> i64 {
        (self.settings.node_timeout_ms / 30).min(DELAY_MAX_MS)
    }

    pub(super) fn go_on_with_election(&mut self) {
        let now = self.now();
        let is_manual = self.manual_failover_may_start();
        let myself = self.myself();
        let Some(primary) = myself.primary.filter(|_| myself.is_replica()) else {
            self.election = Election::default();
            return;
        };
        let failed = self.node(primary);
        let may_be = is_manual
            || (failed.flags.contains(NodeFlags::FAIL)
                && !myself.flags.contains(NodeFlags::NOFAILOVER));
        if !may_be || failed.slots.is_empty() {
            self.election = Election::default();
            return;
        }
        if !is_manual && self.is_data_too_old() {
            return;
        }
        let (election_ms, delay_ms) = (self.election_ms(), self.delay_ms());
        let age_ms = self.election.start_ms.map(|start_ms| now - start_ms);
        let is_due_anew = age_ms.is_none_or(|age_ms| age_ms > election_ms.saturating_mul(2));
        let was_automatic = is_manual && self.election.epoch.is_none();
        if is_due_anew || (was_automatic && age_ms.is_some_and(|age_ms| age_ms < 0)) {
            self.schedule_election(primary, is_manual);
            // A manual failover waits for nobody.
            if !is_manual {
                return;
            }
        }
        let Some(mut start_ms) = self.election.start_ms else { return };
        if self.election.epoch.is_none() && !is_manual {
            let rank = self.rank(primary);
            if rank != self.election.rank {
                let steps = rank as i64 - self.election.rank as i64;
                start_ms += steps * 2 * delay_ms;
                self.election.start_ms = Some(start_ms);
                self.election.rank = rank;
                self.log(format!(
                    "Replica rank updated to #{rank}, added {} milliseconds of delay.",
                    steps * 2 * delay_ms
                ));
            }
        }
        if now < start_ms || now.saturating_sub(start_ms) > election_ms {
            return;
        }
        let (epoch, votes) = (self.election.epoch, self.election.votes.len());
        match epoch {
            None => self.ask_for_votes(),
            Some(epoch) if self.is_majority(votes) => {
                self.warn("Failover election won: I'm the new master.".into());
                if self.myself().config_epoch < epoch {
                    self.myself_mut().config_epoch = epoch;
                    self.warn(format!("configEpoch set to {epoch} after successful failover"));
                }
                self.take_over(primary);
            }
            Some(_) => {}
        }
    }

    /// Gives up an election that cannot be won, so that the next one begins at once.
    pub(super) fn reset_election(&mut self, why: &str) {
        if self.election.is_under_way() {
            let epoch = self.election.epoch.unwrap_or(0);
            self.warn(format!("Failover election in progress for epoch {epoch}, but {why}"));
            self.election = Election::default();
        }
    }

    /// Notes a primary's epoch, by its own word or another node's. An election for this epoch or an
    /// earlier one is lost.
    pub(super) fn note_epoch(&mut self, sender: NodeIndex, epoch: u64) {
        self.node_mut(sender).config_epoch = epoch;
        if self.election.epoch.is_some_and(|asked| epoch >= asked) {
            let (id, name) = (self.node(sender).id, &self.node(sender).announced.human_nodename);
            let why = format!(
                "received a claim from node {id} ({name}) with an equal or higher epoch {epoch}. Resetting the election \
                 since we cannot win an election in the past."
            );
            self.reset_election(&why);
        }
    }

    fn is_data_too_old(&self) -> bool {
        let timeout_ms = self.settings.node_timeout_ms;
        let factor = self.settings.validity_factor;
        let mut age_ms = self.outside.data_age_ms;
        if age_ms > timeout_ms {
            age_ms -= timeout_ms;
        }
        factor != 0
            && age_ms > self.settings.repl_ping_ms.saturating_add(timeout_ms.saturating_mul(factor))
    }

    /// Counts the primary's replicas that have more of its stream, or as much and a smaller name.
    fn rank(&self, primary: NodeIndex) -> usize {
        let own = self.outside.offset;
        let id = self.myself().id;
        let is_before = |index: &&NodeIndex| {
            let node = self.node(**index);
            **index != self.myself
                && !node.flags.contains(NodeFlags::NOFAILOVER)
                && (node.repl_offset > own
                    || (node.repl_offset == own && node.id < id && !node.is_failing()))
        };
        self.node(primary).replicas.iter().filter(is_before).count()
    }

    /// Counts the failed primaries that precede this replica's, so that their replicas do not all
    /// ask at once.
    fn rank_of_primary(&self, primary: NodeIndex) -> usize {
        let shard = self.node(primary).shard_id;
        let is_failed = |index: NodeIndex| self.node(index).flags.contains(NodeFlags::FAIL);
        let shards = self.nodes().filter(|(index, node)| node.is_voting() && is_failed(*index));
        shards.filter(|(_, node)| node.shard_id < shard).count()
    }

    fn schedule_election(&mut self, primary: NodeIndex, is_manual: bool) {
        let now = self.now();
        let unit_ms = self.delay_ms();
        let rank = self.rank(primary);
        let (mut delay_ms, mut untold_ms) = (0, 0);
        if !is_manual {
            delay_ms = unit_ms + self.random.i64(0..=unit_ms);
            delay_ms += rank as i64 * 2 * unit_ms + self.rank_of_primary(primary) as i64 * unit_ms;
            if self.outside.offset == 0 {
                delay_ms += DELAY_MAX_MS;
            }
            // Voters that have not heard of the failure would deny their votes.
            if !self.node(primary).is_failure_told {
                untold_ms = DELAY_MAX_MS;
                delay_ms += untold_ms;
            }
        }
        self.election = Election {
            start_ms: Some(now + delay_ms),
            epoch: None,
            rank,
            untold_ms,
            votes: Vec::new(),
        };
        let offset = self.outside.offset;
        self.warn(format!(
            "Start of election delayed for {delay_ms} milliseconds (rank #{rank}, offset {offset})."
        ));
        // The others learn of this node's offset, and compute their ranks by it.
        self.broadcast_pong_to_shard();
    }

    /// Drops a part of the delay: a primary has announced that this node's has failed, so all know.
    pub(super) fn hasten_election(&mut self, failed: NodeIndex) {
        let untold_ms = std::mem::take(&mut self.election.untold_ms);
        if self.myself().primary == Some(failed)
            && let Some(start_ms) = &mut self.election.start_ms
        {
            *start_ms -= untold_ms;
        }
    }

    /// Votes for a candidate that asked before this node knew of the failure, if nobody else has
    /// received the vote since.
    pub(super) fn vote_belatedly(&mut self, failed: NodeIndex) {
        let Some(early) = self.early.take_if(|early| early.primary == failed) else { return };
        if let Some(candidate) = self.find(&early.candidate)
            && early.header.current_epoch == self.current_epoch
        {
            self.vote_if_allowed(candidate, &early.header);
        }
    }

    fn ask_for_votes(&mut self) {
        self.current_epoch = self.current_epoch.saturating_add(1);
        let epoch = self.current_epoch;
        self.election.epoch = Some(epoch);
        self.election.votes.clear();
        self.warn(format!("Starting a failover election for epoch {epoch}."));
        let marks = if self.manual.is_some() { Marks::FORCE_ACK } else { Marks::default() };
        // Clients of a manual failover need not wait for this disk: after a crash the same replica
        // asks for the same epoch, in which nobody votes twice. A replica that replaces a failed
        // node first shows that its disk works.
        self.save(self.manual.is_none());
        self.broadcast(Body::AuthRequest, marks);
        self.todo |= Todo::UPDATE_STATE;
    }

    /// Handles another node's request for this one's vote.
    pub(super) fn vote_if_allowed(&mut self, candidate: NodeIndex, header: &Header) {
        if !self.myself().is_voting() {
            return;
        }
        let (id, asked) = (self.node(candidate).id, header.current_epoch);
        let epoch = self.current_epoch;
        let denied = |why: String| format!("Failover auth denied to {id}: {why}");
        if asked < epoch {
            return self.warn(denied(format!("reqEpoch ({asked}) < curEpoch({epoch})")));
        }
        if self.last_vote_epoch == epoch {
            return self.warn(denied(format!("already voted for epoch {epoch}")));
        }
        // The node that won this epoch's election gave nobody its vote, nor did those that have
        // become primaries since: together they could elect another winner.
        let winner =
            self.nodes().find_map(|(_, node)| (node.config_epoch == epoch).then_some(node.id));
        if let Some(winner) = winner {
            return self.warn(denied(format!("epoch {epoch} is that of node {winner}")));
        }
        let primary = self.node(candidate).primary;
        let Some(primary) = primary.filter(|_| self.node(candidate).is_replica()) else {
            return self.warn(denied("it is a master node".into()));
        };
        let is_forced = header.marks.contains(Marks::FORCE_ACK);
        if !self.node(primary).flags.contains(NodeFlags::FAIL) && !is_forced {
            if self.node(primary).flags.contains(NodeFlags::PFAIL) {
                let (candidate, header) = (id, Box::new(header.clone()));
                self.early = Some(EarlyRequest { candidate, primary, header });
            }
            return self.warn(denied("its master is up".into()));
        }
        let claimed = header.slots.iter().filter(|slot| !self.unclaimed.contains(*slot));
        let newer = claimed.filter_map(|slot| Some((slot, self.owner(slot)?)));
        let mut newer = newer.map(|(slot, owner)| (slot, owner, self.node(owner).config_epoch));
        if let Some((slot, owner, epoch)) = newer.find(|(_, _, epoch)| *epoch > header.config_epoch)
        {
            let (slot, claimed) = (slot.number(), header.config_epoch);
            self.warn(denied(format!("slot {slot} epoch ({epoch}) > reqEpoch ({claimed})")));
            // The candidate learns why, and does not ask in vain again.
            return self.send_update(candidate, owner);
        }
        if self.open_link(candidate).is_none() {
            return;
        }
        self.last_vote_epoch = epoch;
        // The vote is on disk before it leaves: a restarted node must not vote twice.
        self.save(true);
        self.send_to(candidate, Body::AuthAck, Marks::default());
        self.warn(format!("Failover auth granted to {id} for epoch {epoch}"));
    }

    /// Counts another node's vote.
    pub(super) fn take_vote(&mut self, voter: NodeIndex, epoch: u64) {
        let asked = self.election.epoch;
        if asked.is_none_or(|asked| epoch < asked) || !self.node(voter).is_voting() {
            return;
        }
        if !self.election.votes.contains(&voter) {
            self.election.votes.push(voter);
            self.go_on_with_election();
        }
    }

    /// Takes the place of the primary, whose slots become this node's.
    pub(super) fn take_over(&mut self, primary: NodeIndex) {
        self.set_as_primary(self.myself);
        self.out.push(Action::Promote);
        // In an agreed failover the primary is alive: slots it no longer claims belong to another
        // node, even if its claim has not reached us. If the primary has failed, nobody else may
        // claim them, so we do.
        let is_agreed = self.manual_failover_may_start() && !self.node(primary).is_failing();
        let slots = self.node(primary).slots.clone();
        for slot in slots.iter() {
            if !is_agreed || !self.unclaimed.contains(slot) {
                self.set_owner(slot, Some(self.myself));
            }
        }
        self.election = Election::default();
        self.end_manual_failover();
        self.todo -= Todo::UPDATE_STATE;
        self.update_state();
        self.save(true);
        self.broadcast_pong();
    }
}
