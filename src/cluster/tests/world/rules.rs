//! The rules that always hold, checked after each event of a node, and at each vote, request for
//! votes, promotion and failure.

use std::collections::{BTreeMap, BTreeSet};

use super::{CALM_MS, Key, Safe, World, name, used_slots};
use crate::cluster::Cluster;
use crate::cluster::admin::Failover;
use crate::cluster::config_file;
use crate::cluster::node::{NodeFlags, NodeId};
use crate::cluster::wire::{self, Body, Decoded};
use crate::collections::hash_slot::HashSlot;

/// The greatest age of a suspicion that delayed messages may report. Unit: milliseconds.
const SUSPICION_MS: i64 = 60_000;

/// Replicas hear of a failure at the same time if at most this time lies between. Unit:
/// milliseconds.
const HEARING_MS: i64 = 30;
/// The time between two checks of an election by its node. Unit: milliseconds.
const TICK_MS: i64 = 100;

/// A slot as a node sees it.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    owner: NodeId,
    epoch: u64,
    /// Its owner has stopped claiming it.
    is_free: bool,
}

/// The voter and the epoch of a vote.
fn vote_in(message: &[u8]) -> Option<(NodeId, u64)> {
    if wire::type_of(message) != wire::AUTH_ACK {
        return None;
    }
    let Ok(Decoded::Full(message)) = wire::decode(message) else { return None };
    let header = &message.header;
    (message.body == Body::AuthAck).then_some((header.sender, header.current_epoch))
}

impl World {
    /// Checks after a node's turn that no slot has gone to an owner without a greater epoch. Notes
    /// the nodes that the node suspects.
    pub(super) fn watch(&mut self, index: usize) {
        for (place, slot) in used_slots().enumerate() {
            let machine = &mut self.machines[index];
            let cluster = &machine.cluster;
            let now = cluster.owner(slot).map(|owner| {
                let (node, is_free) = (cluster.node(owner), cluster.unclaimed.contains(slot));
                Known { owner: node.id, epoch: node.config_epoch, is_free }
            });
            let before = std::mem::replace(&mut machine.known[place], now);
            if let (Some(before), Some(now)) = (before, now)
                && before.owner != now.owner
                && !before.is_free
                && now.epoch <= before.epoch
                // A node yields to one that was elected with the same epoch in its absence.
                && !(now.epoch == before.epoch && before.owner == name(index))
                && !self.moving.contains(&slot.number())
            {
                self.fail(&format!(
                    "{index}: slot {} goes back: {before:?} {now:?}",
                    slot.number()
                ));
            }
        }
        // A replica's suspicion counts for those that have not heard of its role.
        let cluster = &self.machines[index].cluster;
        let (now, id) = (self.now, cluster.myself().id);
        let suspects = cluster.nodes().filter(|(_, node)| node.is_failing());
        self.suspected.extend(suspects.map(|(_, node)| ((id, node.id), now)));
    }

    /// Checks the decisions of a node, which appear in its log.
    pub(super) fn watch_log(&mut self, index: usize, text: &str) {
        if let Some(rest) = text.strip_prefix("Marking node ") {
            let failed = rest.get(..NodeId::BYTES).and_then(|id| NodeId::from_bytes(id.as_bytes()));
            let suspected = self.suspected.iter();
            let by = suspected.filter(|((_, other), at)| {
                Some(*other) == failed && self.now - **at <= SUSPICION_MS
            });
            let (by, majority) = (by.count(), self.machines[index].cluster.majority());
            if by < majority {
                let cluster = &self.machines[index].cluster;
                let node = failed.and_then(|id| cluster.find(&id)).map(|node| cluster.node(node));
                let reports = node.map(|node| node.reports.iter()).into_iter().flatten();
                let reports: Vec<_> =
                    reports.map(|it| (cluster.node(it.by).id, it.at_ms)).collect();
                self.fail(&format!(
                    "{index} takes a node for failed that {by} suspect, of {majority}: {reports:?}"
                ));
            }
        }
        // BUMPEPOCH, a takeover, or a collision: an election may give the same epoch to another
        // node.
        if let Some((_, epoch)) = text.split_once("onfigEpoch set to ")
            && let Ok(epoch) = epoch.parse()
        {
            self.unagreed.insert(epoch);
        }
        let is_scheduled = text.starts_with("Start of election delayed");
        if is_scheduled {
            self.machines[index].scheduled_ms = self.now;
        }
        // A rival that has not heard of this node's request asks in the same epoch.
        if self.has_contests && is_scheduled && !text.contains("for 0 milliseconds") {
            let rivals: Vec<usize> = (0..self.machines.len())
                .filter(|other| {
                    let rival = &self.machines[*other];
                    *other != index && rival.is_alive && rival.follows.is_some()
                })
                .collect();
            if let Some(rival) = self.random.choice(&rivals).copied() {
                self.machines[index].deaf_until = self.now + self.random.i64(100..1_500);
                self.disturb(index);
                let delay = self.random.i64(1..60);
                self.after(delay, super::Due::TakeOver { at: rival });
            }
        }
    }

    /// Whether a node has voted in this epoch for slots that another one has taken: where it is cut
    /// off from that one, its vote counts among nodes that have not heard of it either, and the
    /// majorities of two sets of voters need not meet. So it is in Redis.
    fn has_stale_voter(&self, epoch: u64) -> bool {
        let voters = self.votes.keys().filter(|(_, of)| *of == epoch).map(|(voter, _)| *voter);
        let is_stale = |voter: NodeId| {
            let found = self.machines.iter().find(|it| it.cluster.myself().id == voter);
            let Some(own) = found.map(|machine| &machine.cluster) else { return false };
            let has_taken = |other: &Cluster| {
                let is_later = other.myself().config_epoch > own.myself().config_epoch;
                is_later && used_slots().any(|slot| own.owns(slot) && other.owns(slot))
            };
            self.machines.iter().any(|machine| has_taken(&machine.cluster))
        };
        voters.into_iter().any(is_stale)
    }

    /// Checks, when a replica asks for votes, that its data is not too old.
    pub(super) fn check_age(&self, index: usize) {
        let machine = &self.machines[index];
        let settings = &machine.settings;
        let forced = machine.by_hand_ms.is_some_and(|at| self.now - at < 2 * CALM_MS);
        let age_max_ms = settings
            .repl_ping_ms
            .saturating_add(settings.node_timeout_ms.saturating_mul(settings.validity_factor + 1));
        let age_ms = self.outside(index).data_age_ms;
        if settings.validity_factor != 0 && !forced && age_ms > age_max_ms {
            self.fail(&format!("{index} asks for votes with data of {age_ms} ms ago"));
        }
    }

    /// Checks, when a vote arrives, that it is on its node's disk.
    pub(super) fn check_vote_is_saved(&self, from: usize, message: &[u8]) {
        let Some((voter, epoch)) = vote_in(message) else { return };
        let conf = config_file::parse(&self.machines[from].file);
        if conf.is_ok_and(|conf| conf.last_vote_epoch < epoch) {
            self.fail(&format!("{voter} has voted in epoch {epoch}, and would forget it"));
        }
    }

    /// Checks that a replica that takes over by agreement with its primary has all data.
    fn check_agreed(&self, index: usize, before: usize) {
        let (machine, old) = (&self.machines[index], &self.machines[before]);
        let Some(asked_ms) = machine.by_hand_ms.filter(|_| machine.by_hand == Failover::Agreed)
        else {
            return;
        };
        let is_failed = machine
            .cluster
            .find(&name(before))
            .is_none_or(|primary| machine.cluster.node(primary).flags.contains(NodeFlags::FAIL));
        let is_agreed = self.now - asked_ms < machine.settings.manual_failover_ms
            && !is_failed
            && old.is_alive
            && old.follows.is_none()
            && old.disturbed_ms < asked_ms
            && old.paused_until > self.now;
        let last = old.history.last().map(|last| last.number);
        if is_agreed && !machine.history.iter().rev().any(|known| Some(known.number) == last) {
            self.fail(&format!(
                "{index} takes over by agreement with {} of {} changes",
                machine.history.len(),
                old.history.len()
            ));
        }
    }

    pub fn fail(&self, text: &str) -> ! {
        let from = self.trace.len().saturating_sub(4_000);
        self.trace[from..].iter().for_each(|line| eprintln!("{line}"));
        panic!("seed {} at {}: {text}", self.seed, self.now);
    }

    /// Checks that an arrived vote is the only one of its node in its epoch.
    pub(super) fn note_vote(&mut self, from: usize, to: usize, message: &[u8]) {
        let Some((voter, epoch)) = vote_in(message) else { return };
        let before = self.votes.insert((voter, epoch), to);
        if before.is_some_and(|before| before != to) {
            self.fail(&format!("{voter} votes twice in epoch {epoch}"));
        }
        if self.random.u8(0..10) < self.crashing_voters {
            self.kill(from);
            let delay = self.random.i64(1..60);
            self.restart_after(from, delay);
        }
    }

    /// Checks that a replica that becomes a primary is the only one elected in its epoch, and the
    /// right one.
    pub(super) fn promote(&mut self, index: usize) {
        let before = self.machines[index].follows.take();
        self.machines[index].syncs_until = None;
        let cluster = &self.machines[index].cluster;
        let (epoch, id) = (cluster.myself().config_epoch, cluster.myself().id);
        let forced = self.machines[index].by_hand_ms.is_some_and(|at| self.now - at < 2 * CALM_MS);
        self.log(format!("{index} is promoted in epoch {epoch}, after {before:?}"));
        self.promotions += 1;
        let known = self.elected.insert(epoch, id);
        if known.is_some_and(|known| known != id) && !self.has_stale_voter(epoch) {
            self.fail(&format!("two winners of epoch {epoch}"));
        }
        let Some(before) = before else { return };
        self.check_agreed(index, before);
        let is_calm = |other: &usize| {
            let machine = &self.machines[*other];
            let reaches_all = (0..self.machines.len()).all(|third| {
                third == *other
                    || !self.machines[third].is_alive
                    || (self.reaches(*other, third) && self.reaches(third, *other))
            });
            machine.is_alive
                && reaches_all
                // Who was cut off has yet to learn of the others' data.
                && self.now - self.healed_ms > CALM_MS
                && self.now - machine.disturbed_ms > CALM_MS
                && machine.slow_until + CALM_MS < self.now
        };
        let others: Vec<usize> = (0..self.machines.len())
            .filter(|other| *other != index && self.machines[*other].follows == Some(before))
            .filter(is_calm)
            .collect();
        let own = self.machines[index].history.len();
        for other in others {
            let theirs = self.machines[other].history.len();
            let may_vote = !self.machines[other].settings.no_failover
                && self.machines[other].settings.validity_factor == 0;
            // After a failed attempt, each replica tries again at a time of its own.
            let is_first = self.machines[other].asked_ms.is_empty()
                && self.machines[index].asked_ms.len() == 1;
            // A replica that hears late of the failure asks late.
            let heard_ms = self.machines[other].scheduled_ms - self.machines[index].scheduled_ms;
            let heard_too = heard_ms.abs() <= HEARING_MS;
            // With a short node timeout, the delays of two ranks differ by less than the time
            // between two checks.
            let differs = [index, other]
                .iter()
                .all(|index| 2 * self.machines[*index].cluster.delay_ms() >= TICK_MS + HEARING_MS);
            let has_its_turn = may_vote && is_calm(&index) && is_first && heard_too && differs;
            if theirs > own && !forced && has_its_turn {
                self.fail(&format!(
                    "{index} with {own} changes is promoted before {other} with {theirs}"
                ));
            }
        }
        // Writes that this replica does not have are lost, unless a replica that has them could
        // have taken over.
        let cluster = &self.machines[index].cluster;
        let slots: BTreeSet<u16> =
            used_slots().filter(|slot| cluster.owns(*slot)).map(HashSlot::number).collect();
        let keys = &self.machines[index].keys;
        let holder_was_there = |safe: &Safe| {
            safe.holders.iter().any(|holder| {
                *holder != index
                    && self.machines[*holder].follows == Some(before)
                    && is_calm(holder)
                    && !self.machines[*holder].settings.no_failover
                    && self.machines[*holder].settings.validity_factor == 0
            })
        };
        let lost: Vec<Key> = self
            .safe
            .iter()
            .filter(|(key, safe)| {
                slots.contains(&key.0)
                    && keys.get(*key).is_none_or(|value| *value < safe.value)
                    && !(holder_was_there(safe)
                        && !forced
                        && is_calm(&index)
                        && self.machines[index].asked_ms.len() == 1)
            })
            .map(|(key, _)| *key)
            .collect();
        for key in lost {
            self.log(format!("{key:?} is forgiven"));
            self.safe.remove(&key);
        }
        // A failover in the middle of a move leaves keys at both nodes.
        let moving: Vec<HashSlot> =
            self.moving.iter().filter_map(|slot| HashSlot::new((*slot).into())).collect();
        moving.into_iter().for_each(|slot| self.forgive(slot));
    }

    /// Checks that at most one node takes a slot's writes in an epoch that was won by election. A
    /// slot that is being moved may have two, if an epoch was taken without consent at that moment:
    /// its source does not know yet.
    pub(super) fn check_owners(&self) {
        for slot in used_slots().filter(|slot| !self.moving.contains(&slot.number())) {
            let mut epochs = BTreeMap::new();
            for (index, machine) in self.machines.iter().enumerate() {
                let cluster = &machine.cluster;
                if machine.is_alive
                    && machine.follows.is_none()
                    && cluster.owns(slot)
                    && cluster.is_ok()
                    && !self.unagreed.contains(&cluster.myself().config_epoch)
                    && let Some(other) = epochs.insert(cluster.myself().config_epoch, index)
                {
                    let epoch = cluster.myself().config_epoch;
                    self.fail(&format!(
                        "{index} and {other} both own slot {} in epoch {epoch}",
                        slot.number()
                    ));
                }
            }
        }
    }
}
