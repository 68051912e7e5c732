//! Slots that move to another node all at once: the jobs (`cluster/slot_job.rs`), and the loop's
//! state for each.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::moving::Payload;
use super::{Core, State};
use crate::cluster::node::NodeId;
use crate::cluster::slot_job::{Job, Jobs};
use crate::collections::hash_slot::{SlotRanges, SlotSet, parse_ranges, slots_in};
use crate::ids::ClientId;
use crate::keyspace::DbIndex;
use crate::resp::args::Args;
use crate::sys::log::{notice, warning};

/// A piece of the bytes to be sent.
pub enum Part {
    /// Bytes, of which those before the offset are sent.
    Bytes(Vec<u8>, usize),
    /// Commands that a thread makes of a large value.
    Later(Payload),
    /// Commands that a thread has made. Those before the offset are sent.
    Made(Vec<u8>, usize),
}

/// The source's end of a move.
#[derive(Default)]
pub struct Export {
    /// The connection. None: it was not made yet, or is gone.
    pub line: Option<usize>,
    /// The last copied key: a database, and a number in the order of the slots' keys. Changes of
    /// later keys are not passed on, because they will be copied with those keys.
    pub copied: Option<(DbIndex, u64)>,
    pub is_copied: bool,
    /// When the next key is to be copied, by `rdb-key-save-delay`: boot-time clock, microseconds.
    pub next_copy_us: i64,
    /// The bytes to be sent after those that the connection has, in order.
    pub parts: VecDeque<Part>,
    /// Bytes of the parts that are made.
    pub queued: usize,
    /// The database selected at the end of the parts.
    pub selected: Option<DbIndex>,
    /// When ACK was last sent: Unix seconds.
    pub said_s: i64,
    /// Since when the unread bytes of the target exceed the soft limit of replicas: boot-time
    /// clock, microseconds.
    pub over_soft_limit_since_us: Option<i64>,
    /// CANCELSLOTMIGRATIONS came after the grant.
    pub is_cancelled: bool,
}

impl Export {
    /// Bytes of a large value at the front. They may be many even if the target reads fast.
    pub fn bytes_of_large(&self) -> usize {
        match self.parts.front() {
            Some(Part::Made(bytes, sent)) => bytes.len() - sent,
            _ => 0,
        }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.queued += bytes.len();
        match self.parts.back_mut() {
            Some(Part::Bytes(last, _)) if last.len() < 64 * 1024 => last.extend_from_slice(bytes),
            _ => self.parts.push_back(Part::Bytes(bytes.to_vec(), 0)),
        }
    }
}

/// The target's end of a move.
#[derive(Clone, Copy, Debug)]
pub struct Import {
    /// The source's connection.
    pub client: ClientId,
    /// When bytes or a command of the source last came, and when ACK was last sent: Unix seconds.
    pub heard_s: i64,
    pub said_s: i64,
    /// The bytes that had come then.
    pub heard: u64,
    /// When this node asked for the slots: boot-time clock, microseconds.
    pub asked_us: i64,
    /// A command of the source has failed, for lack of memory or otherwise.
    pub has_failed: bool,
    pub is_out_of_memory: bool,
}

/// See the module.
#[derive(Default)]
pub struct SlotMoves {
    pub jobs: Jobs,
    /// The moves by the names of their jobs.
    pub exports: BTreeMap<NodeId, Export>,
    pub imports: BTreeMap<NodeId, Import>,
    /// Changes since the last turn, as replicas get them, while exports exist.
    pub changes: Vec<u8>,
    /// The database selected at the end of the changes.
    pub selected: DbIndex,
    /// Payloads that threads are making.
    pub encoding: usize,
    /// DEBUG SLOTMIGRATION: no pause takes place, or no takeover.
    pub prevents_pause: bool,
    pub prevents_failover: bool,
    /// A database was flushed.
    pub is_flushed: bool,
    /// The loop is to look at the jobs without waiting for an event.
    pub is_due: bool,
}

impl SlotMoves {
    /// Whether the loop has nothing to do for moves.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.exports.is_empty() && self.imports.is_empty() && !self.is_due
    }

    /// Bytes of changes and copies that were not sent to targets yet. Eviction ignores them,
    /// because evicting keys would add to them.
    pub fn bytes_behind(&self) -> usize {
        self.changes.len() + self.exports.values().map(|export| export.queued).sum::<usize>()
    }

    /// Ends the moves in progress, because a database was flushed.
    pub fn note_flush(&mut self) {
        if self.jobs.is_importing() || self.jobs.is_exporting() {
            self.is_flushed = true;
            self.is_due = true;
        }
    }

    /// The job of a client that brings keys.
    pub fn import_of(&mut self, client: ClientId) -> Option<(NodeId, &mut Import)> {
        let found = self.imports.iter_mut().find(|(_, import)| import.client == client);
        found.map(|(name, import)| (*name, import))
    }
}

impl State {
    /// Notes that a command of another node that brings keys has run or has failed.
    #[cold]
    pub fn note_import(&mut self, client: Option<ClientId>, has_failed: bool, args: Args<'_>) {
        let now_s = self.now.unix_seconds();
        let is_full = self.config.maxmemory > 0;
        let Some((job, import)) = client.and_then(|client| self.node.moves.import_of(client))
        else {
            return;
        };
        import.heard_s = now_s;
        if !has_failed || import.has_failed {
            return;
        }
        import.has_failed = true;
        let id = import.client;
        // Another node's commands are refused for no other reason.
        import.is_out_of_memory = is_full;
        self.node.moves.is_due = true;
        let name = args.get(0);
        let name = String::from_utf8_lossy(&name[..name.len().min(64)]);
        warning!(self, "Slot migration {job}: the command {name} has failed.");
        // What it has sent after that does not run.
        self.clients.close(id);
    }
}

impl Core {
    /// Sets the slots whose keys are hidden: slots that are still arriving, and slots whose keys
    /// are being deleted.
    pub fn note_hidden(&mut self) {
        let mut hidden = self.state.node.moves.jobs.hidden();
        if let Some(drops) = &self.state.node.work.slots_to_empty {
            hidden.get_or_insert_default().extend(drops.iter());
        }
        self.keyspace.hide_slots(hidden);
    }

    /// Creates jobs for the imports named in a file. A job that is running here is kept. Entries
    /// that overlap an earlier one are ignored: only a damaged file has them, and their number has
    /// no bound.
    pub fn track_imports(&mut self, imports: Vec<(NodeId, SlotRanges)>) {
        if self.state.node.cluster.is_none() {
            return;
        }
        let now_s = self.state.now.unix_seconds();
        let (mut names, mut slots) = (BTreeSet::new(), SlotSet::default());
        let mut jobs = Vec::new();
        for (name, ranges) in imports {
            let job = Job::tracked(name, ranges, now_s);
            let is_named = self.state.node.moves.imports.contains_key(&name);
            let is_known = is_named || job.slots.iter().any(|slot| slots.contains(slot));
            if is_known || job.slots.is_empty() || !names.insert(name) {
                continue;
            }
            notice!(self.state, "New slot import job created: {}.", job.description());
            slots.extend(job.slots.iter());
            jobs.push(job);
        }
        jobs.reverse();
        let known = &mut self.state.node.moves.jobs.0;
        known.retain(|job| !names.contains(&job.name));
        known.splice(0..0, jobs);
        self.note_hidden();
    }

    /// Learns the slots whose keys the primary, or the server that wrote a file, was deleting:
    /// ranges, nothing if there are none.
    pub fn track_drops(&mut self, text: &[u8]) {
        if self.state.node.cluster.is_none() {
            return;
        }
        let ranges = std::str::from_utf8(text).ok().and_then(parse_ranges);
        self.state.node.work.slots_to_empty = ranges.map(|ranges| slots_in(&ranges));
        self.state.node.work.is_announced = true;
        self.note_hidden();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deleted_data_concerns_only_moves_that_are_under_way() {
        let name = NodeId::from_bytes(&[b'a'; NodeId::BYTES]).expect("a name");
        let mut moves = SlotMoves::default();
        moves.note_flush();
        assert!(moves.is_idle(), "the loop would not sleep");
        moves.jobs.add(Job::tracked(name, Vec::new(), 0));
        moves.note_flush();
        assert!(moves.is_flushed && moves.is_due);
    }
}
