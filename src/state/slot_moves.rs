//! Slots that move to another node all at once: the jobs (`cluster/slot_job.rs`), and what the loop
//! keeps for each.

use std::collections::{BTreeMap, VecDeque};

use super::State;
use super::moving::Payload;
use crate::cluster::node::NodeId;
use crate::cluster::slot_job::Jobs;
use crate::ids::ClientId;
use crate::keyspace::DbIndex;
use crate::resp::args::Args;
use crate::sys::log::warning;

/// A piece of what is to be sent.
pub enum Part {
    /// Sent up to an offset.
    Bytes(Vec<u8>, usize),
    /// Commands that a thread makes of a large value.
    Later(Payload),
    /// The same, made and sent up to an offset.
    Made(Vec<u8>, usize),
}

/// The source's end of a move.
#[derive(Default)]
pub struct Export {
    /// The connection. None: it is to be made, or is gone.
    pub line: Option<usize>,
    /// The keys up to here have been copied: a database, and a number in the order of the slots'
    /// keys. What happens to others is not told, as they will be copied with it.
    pub copied: Option<(DbIndex, u64)>,
    pub is_copied: bool,
    /// When the next key is to be copied, by `rdb-key-save-delay`: boot-time clock, microseconds.
    pub next_copy_us: i64,
    /// What is to be sent after what the connection has, in order.
    pub parts: VecDeque<Part>,
    /// Bytes of the parts that are there.
    pub queued: usize,
    /// The database selected at the end of the parts.
    pub selected: Option<DbIndex>,
    /// When ACK was said last: Unix seconds.
    pub said_s: i64,
    /// Since when the target leaves more than the soft limit of replicas unread: boot-time clock,
    /// microseconds.
    pub over_soft_limit_since_us: Option<i64>,
}

impl Export {
    /// Bytes of a large value at the front, which are many whatever the target reads.
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
    /// When it was heard, and when ACK was said last: Unix seconds.
    pub heard_s: i64,
    pub said_s: i64,
    /// When the slots were asked for: boot-time clock, microseconds.
    pub asked_us: i64,
    /// A command of the source has failed, for lack of memory or otherwise.
    pub has_failed: bool,
    pub is_out_of_memory: bool,
}

/// See the module.
#[derive(Default)]
pub struct SlotMoves {
    pub jobs: Jobs,
    /// By the names of their jobs.
    pub exports: BTreeMap<NodeId, Export>,
    pub imports: BTreeMap<NodeId, Import>,
    /// Changes since the last turn, as replicas get them, while there are exports.
    pub changes: Vec<u8>,
    /// The database selected at the end of the changes.
    pub selected: DbIndex,
    /// Payloads that threads are making.
    pub encoding: usize,
    /// DEBUG SLOTMIGRATION: no pause, or no takeover, takes place.
    pub prevents_pause: bool,
    pub prevents_failover: bool,
    /// All data was deleted.
    pub is_flushed: bool,
    /// The loop is to look at the jobs without waiting for an event.
    pub is_due: bool,
}

impl SlotMoves {
    /// Whether nothing is going on.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.exports.is_empty() && self.imports.is_empty() && !self.is_due
    }

    /// Bytes of changes and copies that targets have still to be sent. Eviction ignores them:
    /// evicting keys would add to them.
    pub fn bytes_behind(&self) -> usize {
        self.changes.len() + self.exports.values().map(|export| export.queued).sum::<usize>()
    }

    /// All data is deleted: moves that are under way end.
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
    /// A command of another node that brings keys has run, or has failed.
    #[cold]
    pub fn note_import(&mut self, client: Option<ClientId>, has_failed: bool, args: Args<'_>) {
        let now_s = self.now.unix_seconds();
        let is_full = self.config.maxmemory > 0;
        let Some((job, import)) = client.and_then(|client| self.slot_moves.import_of(client))
        else {
            return;
        };
        import.heard_s = now_s;
        if !has_failed || import.has_failed {
            return;
        }
        import.has_failed = true;
        // Nothing else is refused to it.
        import.is_out_of_memory = is_full;
        self.slot_moves.is_due = true;
        let name = args.get(0);
        let name = String::from_utf8_lossy(&name[..name.len().min(64)]);
        warning!(self, "Slot migration {job}: the command {name} has failed.");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::slot_job::Job;

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
