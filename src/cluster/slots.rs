//! The owners of slots: of the primaries that claim a slot the greatest epoch wins, and of two
//! primaries with equal epochs one takes a new epoch.

use std::collections::BTreeMap;

use super::action::Action;
use super::node::{NodeFlags, NodeIndex};
use super::wire::{Body, Header, Marks};
use super::{Cluster, Todo};
use crate::collections::hash_slot::{HashSlot, SlotSet};

/// The node that a move of a single slot comes from or goes to, seen from this node.
enum OtherEnd {
    Source,
    Target,
}

impl Cluster {
    /// Takes in the slots that a header claims, for the sender or for its primary.
    pub(super) fn take_claims(&mut self, sender: NodeIndex, header: &Header) {
        let is_primary = self.node(sender).is_primary();
        let claimant = if is_primary { Some(sender) } else { self.node(sender).primary };
        let Some(claimant) = claimant else { return };
        if is_primary && self.settings.as_valkey && !self.migrating.is_empty() {
            self.follow_target(sender, header);
        }
        if is_primary {
            self.note_left(sender, header);
        }
        if self.node(claimant).slots == header.slots {
            if is_primary && !self.unclaimed.is_empty() {
                header.slots.iter().for_each(|slot| self.note_claim(slot));
            }
            return;
        }
        if is_primary {
            let yields = header.is_ok && self.may_have_been_replaced_by(sender);
            self.take_slots(sender, header.config_epoch, &header.slots, yields);
        }
        // A node that claims slots of an owner with a greater epoch is told so, about one owner at
        // a time.
        let claimed = header.slots.iter().filter(|slot| !self.unclaimed.contains(*slot));
        let newer = claimed.filter_map(|slot| self.owner(slot)).find(|owner| {
            *owner != sender
                && Some(*owner) != self.node(sender).primary
                && self.node(*owner).config_epoch > header.config_epoch
        });
        if let Some(owner) = newer {
            let (by, id) = (self.node(sender).id, self.node(owner).id);
            self.log(format!(
                "Node {by} has old slots configuration, sending an UPDATE message about {id}"
            ));
            self.send_update(sender, owner);
        }
    }

    /// Redirects slot migrations to the sender, if it is the successor of their targets.
    fn follow_target(&mut self, sender: NodeIndex, header: &Header) {
        let shard_id = self.node(sender).shard_id;
        let is_successor_of = |target: NodeIndex| {
            let node = self.node(target);
            let is_replaced = node.config_epoch < header.config_epoch || node.is_replica();
            target != sender && node.shard_id == shard_id && is_replaced
        };
        let slots: Vec<HashSlot> = self
            .migrating
            .iter()
            .filter(|(slot, target)| is_successor_of(**target) && !header.slots.contains(**slot))
            .map(|(slot, _)| *slot)
            .collect();
        self.redirect(OtherEnd::Target, &slots, sender);
    }

    /// Tells a node which slots another one owns.
    pub(super) fn send_update(&mut self, to: NodeIndex, owner: NodeIndex) {
        let node = self.node(owner);
        let mut slots = self.claims_of(owner);
        for slot in self.unclaimed.iter() {
            slots.remove(slot);
        }
        let body = Body::Update { config_epoch: node.config_epoch, id: node.id, slots };
        self.send_to(to, body, Marks::default());
    }

    /// Takes in a node's message about the slots that another one owns.
    pub(super) fn take_update(&mut self, index: NodeIndex, config_epoch: u64, slots: &SlotSet) {
        if index == self.myself || self.node(index).config_epoch >= config_epoch {
            return;
        }
        self.set_as_primary(index);
        self.note_epoch(index, config_epoch);
        self.todo |= Todo::SAVE;
        self.take_slots(index, config_epoch, slots, false);
    }

    /// Gives a primary the slots that it claims, unless their owners have greater epochs. A node
    /// whose shard has lost its last slot to it follows it. `yields`: this node's slots also go to
    /// an equal epoch.
    fn take_slots(&mut self, sender: NodeIndex, config_epoch: u64, slots: &SlotSet, yields: bool) {
        if sender == self.myself {
            return;
        }
        let my_primary = self.my_primary();
        let yields = yields && self.myself().config_epoch == config_epoch;
        let mut lost_here = SlotSet::default();
        let mut taken_from_shard = 0;
        let mut is_contested = false;
        for slot in slots.iter() {
            let owner = self.owner(slot);
            if owner == Some(sender) {
                self.note_claim(slot);
                continue;
            }
            let is_granted =
                self.granted.iter().any(|(slots, to)| *to == sender && slots.contains(slot));
            if self.may_be_old(slot, sender, config_epoch) && !is_granted {
                is_contested |= config_epoch > self.myself().config_epoch;
                continue;
            }
            let is_free = is_granted
                || yields && owner == Some(self.myself)
                || self.unclaimed.contains(slot)
                || owner.is_none_or(|owner| self.node(owner).config_epoch < config_epoch);
            if !is_free {
                continue;
            }
            // A slot that is being imported comes from its owner, also after a failover. In Valkey
            // a new owner in another shard is an operator's decision, which ends the import.
            if let Some(source) = self.importing.get(&slot).copied() {
                let is_of_shard = self.node(source).shard_id == self.node(sender).shard_id;
                match is_of_shard || !self.settings.as_valkey {
                    true => self.importing.insert(slot, sender),
                    false => self.importing.remove(&slot),
                };
            }
            if self.settings.as_valkey && self.node(sender).shard_id != self.myself().shard_id {
                self.migrating.remove(&slot);
            }
            if owner == Some(self.myself) {
                lost_here.insert(slot);
            }
            if owner.is_some() && owner == my_primary {
                taken_from_shard += 1;
            }
            self.set_owner(slot, Some(sender));
        }
        if is_contested {
            self.raise_epoch();
            self.todo |= Todo::BROADCAST;
        }
        let given_up: Vec<_> =
            self.node(sender).slots.iter().filter(|slot| !slots.contains(*slot)).collect();
        for slot in given_up {
            if !self.unclaimed.contains(slot) {
                self.unclaimed.insert(slot);
                // Otherwise this node might bring the former owner's claim up against the next one
                // after a restart.
                self.todo |= Todo::SAVE;
            }
        }
        if self.settings.as_valkey && self.myself().is_primary() {
            self.finish_imports(sender, slots);
        }
        // A node goes to another shard only if it may. That of its own shard is its successor,
        // which may have had other slots.
        let is_whole = self.settings.allows_replica_migration
            || self.node(sender).shard_id == self.myself().shard_id
            || slots.len() == taken_from_shard;
        let is_left_empty = my_primary.is_some_and(|primary| self.node(primary).slots.is_empty());
        if taken_from_shard > 0 && is_left_empty && is_whole {
            let id = self.node(sender).id;
            self.warn(format!(
                "Configuration change detected. Reconfiguring myself as a replica of {id}"
            ));
            self.follow(sender);
            return;
        }
        if taken_from_shard > 0 && is_left_empty && self.myself().is_primary() {
            self.tell_empty(sender);
        }
        if !lost_here.is_empty() {
            self.out.push(Action::DropKeys(lost_here));
        }
    }

    /// Notes that a slot's owner claims it.
    fn note_claim(&mut self, slot: HashSlot) {
        if self.unclaimed.contains(slot) {
            self.unclaimed.remove(slot);
            self.todo |= Todo::SAVE;
        }
    }

    /// Tells that the last slot went to another shard, which this primary does not follow.
    pub(super) fn tell_empty(&mut self, owner: NodeIndex) {
        let (id, shard) = (self.node(owner).id, self.node(owner).shard_id);
        self.log(format!(
            "My last slot was migrated to node {id} in shard {shard}. I am now an empty primary."
        ));
    }

    /// Takes the slots that are being imported and that their source has given up: perhaps no node
    /// is left to assign them. Not those that are known to be another node's. A node that may have
    /// missed such news takes none yet: it would do so with a new epoch, greater than that of a
    /// replica that was elected in its place.
    fn finish_imports(&mut self, source: NodeIndex, claimed: &SlotSet) {
        if self.may_be_outdated() {
            return;
        }
        let is_over = |(slot, from): (&HashSlot, &NodeIndex)| {
            (*from == source && !claimed.contains(*slot)).then_some(*slot)
        };
        let over: Vec<HashSlot> = self.importing.iter().filter_map(is_over).collect();
        for slot in over {
            let (number, id) = (slot.number(), self.node(source).id);
            self.log(format!(
                "Slot {number} is no longer being imported from node {id}; Clear my importing source for the slot."
            ));
            self.importing.remove(&slot);
            self.changed();
            if self.owner(slot).is_none_or(|owner| owner == source) {
                self.set_owner(slot, Some(self.myself));
                self.raise_epoch();
            }
        }
    }

    /// Takes a new epoch if this primary and another have the same and this one has the smaller
    /// name. Not while another node may have taken its slots with an epoch in between, whose writes
    /// would be lost: then it waits until just before it serves clients
    /// ([`Self::part_known_epochs`]).
    pub(super) fn part_equal_epochs(&mut self, sender: NodeIndex, config_epoch: u64) {
        let is_equal = config_epoch == self.myself().config_epoch;
        let may_lose = !self.myself().slots.is_empty() && self.may_be_outdated();
        if is_equal && self.yields_its_epoch_to(sender) && !may_lose {
            self.leave_epoch_to(sender);
        }
    }

    /// Takes a new epoch if any other primary has the same, before this node serves clients.
    pub(super) fn part_known_epochs(&mut self) {
        let epoch = self.myself().config_epoch;
        let equal = self
            .nodes()
            .find(|(index, node)| node.config_epoch == epoch && self.yields_its_epoch_to(*index));
        if let Some((other, _)) = equal {
            self.leave_epoch_to(other);
        }
    }

    fn yields_its_epoch_to(&self, other: NodeIndex) -> bool {
        let (other, myself) = (self.node(other), self.myself());
        other.is_primary() && myself.is_primary() && other.id > myself.id
    }

    /// Whether a node that serves this one's slots with the same epoch was elected for them: while
    /// this one was away, or when it had just taken the epoch without asking anybody. In the latter
    /// case both may think so, and the one with the smaller name yields.
    fn may_have_been_replaced_by(&self, other: NodeIndex) -> bool {
        let is_away = !self.is_ok && self.may_be_outdated();
        let is_of_shard = self.node(other).shard_id == self.myself().shard_id;
        let is_unasked = self.unasked_epoch == Some(self.myself().config_epoch);
        is_away || is_unasked && is_of_shard && self.yields_its_epoch_to(other)
    }

    fn leave_epoch_to(&mut self, other: NodeIndex) {
        self.current_epoch = self.current_epoch.saturating_add(1);
        let epoch = self.current_epoch;
        self.myself_mut().config_epoch = epoch;
        self.unasked_epoch = Some(epoch);
        self.version += 1;
        self.save(true);
        let id = self.node(other).id;
        self.warn(format!(
            "WARNING: configEpoch collision with node {id}. configEpoch set to {epoch}"
        ));
    }

    /// Takes in the sender's role from a header.
    pub(super) fn take_role(&mut self, sender: NodeIndex, header: &Header) {
        let Some(id) = header.primary else {
            self.set_as_primary(sender);
            return self.leave_replica();
        };
        let primary = self.find(&id).filter(|primary| *primary != sender);
        if self.node(sender).is_primary() || self.node(sender).primary != primary {
            if let Some(successor) = primary.filter(|node| self.replaces(*node, sender, header)) {
                self.hand_on(sender, successor, header);
            }
            self.set_as_replica(sender, primary);
        }
        let failed = header.flags & NodeFlags::PRIMARY_FAILED;
        let node = self.node_mut(sender);
        node.flags = (node.flags - NodeFlags::PRIMARY_FAILED) | failed;
        self.leave_replica();
    }

    /// Follows another primary of this node's shard, if that has slots and a greater epoch, and
    /// this one has no slots: its successor, which need not have taken the last of them.
    pub(super) fn follow_successor(&mut self, sender: NodeIndex) {
        let (other, myself) = (self.node(sender), self.myself());
        let is_successor = other.is_primary()
            && other.shard_id == myself.shard_id
            && other.config_epoch > myself.config_epoch
            && !other.slots.is_empty();
        if is_successor && myself.is_primary() && myself.slots.is_empty() {
            let id = other.id;
            self.warn(format!(
                "Configuration change detected. Reconfiguring myself as a replica of {id}"
            ));
            self.follow(sender);
        }
    }

    /// Follows the primary of this replica's primary, if that has become a replica: perhaps it has
    /// lost its slots in this node's view before the successor claimed them.
    fn leave_replica(&mut self) {
        let Some(former) = self.myself().primary else { return };
        let Some(primary) = self.node(former).primary else { return };
        if primary == self.myself || !self.node(primary).is_primary() {
            return;
        }
        let (id, former) = (self.node(primary).id, self.node(former).id);
        self.log(format!(
            "I'm a sub-replica! Reconfiguring myself as a replica of {id} from {former}"
        ));
        self.follow(primary);
    }

    /// Whether a primary that has become a replica tells of its successor before that one does.
    fn replaces(&self, successor: NodeIndex, former: NodeIndex, header: &Header) -> bool {
        let (new, old) = (self.node(successor), self.node(former));
        successor != self.myself
            && new.is_replica()
            && old.is_primary()
            && new.shard_id == old.shard_id
            // A replica keeps the epoch that it had as a primary, and may take over with it.
            && header.config_epoch >= new.config_epoch
            && header.config_epoch > old.config_epoch
    }

    /// Gives the slots of a former primary to its successor at once. Otherwise nobody would own
    /// them until the successor's own message comes.
    fn hand_on(&mut self, former: NodeIndex, successor: NodeIndex, header: &Header) {
        let owned = self.node(former).slots.clone();
        let is_news = header.config_epoch > self.node(successor).config_epoch;
        self.set_as_primary(successor);
        self.note_epoch(successor, header.config_epoch);
        let mut count = 0;
        // The former owner knows best which slots it gave to nodes of other shards.
        for slot in owned.iter().filter(|slot| header.slots.contains(*slot)) {
            self.set_owner(slot, Some(successor));
            count += 1;
        }
        self.changed();
        let (old, new) = (self.shown_node(former), self.shown_node(successor));
        let (shard, epoch) = (self.node(successor).shard_id, header.config_epoch);
        self.log(format!(
            "A failover occurred in shard {shard}; node {old} lost {count} slot(s) and failed over to node {new} with a config \
             epoch of {epoch}"
        ));
        self.redirect_moves(former, successor);
        if is_news {
            // An UPDATE with this epoch would tell nothing new from here on.
            self.take_slots(successor, header.config_epoch, &header.slots, false);
        }
    }

    /// Lets moves of single slots from and to a node go on with its successor.
    fn redirect_moves(&mut self, former: NodeIndex, successor: NodeIndex) {
        let with_former = |moves: &BTreeMap<HashSlot, NodeIndex>| -> Vec<HashSlot> {
            let found = moves.iter().filter(|(_, node)| **node == former);
            found.map(|(slot, _)| *slot).collect()
        };
        let (from, to) = (with_former(&self.importing), with_former(&self.migrating));
        self.redirect(OtherEnd::Source, &from, successor);
        if self.settings.as_valkey {
            self.redirect(OtherEnd::Target, &to, successor);
        }
    }

    /// Lets moves of single slots go on with the successor of the node at their other end.
    fn redirect(&mut self, end: OtherEnd, slots: &[HashSlot], successor: NodeIndex) {
        if slots.is_empty() {
            return;
        }
        let moves = match end {
            OtherEnd::Source => &mut self.importing,
            OtherEnd::Target => &mut self.migrating,
        };
        moves.extend(slots.iter().map(|slot| (*slot, successor)));
        self.changed();
        let (new, shard) = (self.shown_node(successor), self.node(successor).shard_id);
        let to = format!("to node {new} in shard {shard}");
        for number in slots.iter().map(|slot| slot.number()) {
            let what = match end {
                OtherEnd::Source => format!("source. Update importing source for slot {number}"),
                OtherEnd::Target => format!("target. Slot {number} is now being migrated"),
            };
            self.log(format!("Failover occurred in migration {what} {to}."));
        }
        let what = match end {
            OtherEnd::Source => "source. Update importing source",
            OtherEnd::Target => "target. Update migrating target",
        };
        let count = slots.len();
        self.log(format!("A failover occurred in migration {what} of {count} slot(s) {to}."));
    }

    /// A node's id and name, for the log.
    fn shown_node(&self, index: NodeIndex) -> String {
        let node = self.node(index);
        format!("{} ({})", node.id, node.announced.human_nodename)
    }
}
