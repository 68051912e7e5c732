//! Undo records of changes of a stream's entries: a script that adds one to a million entries needs
//! no copy of them.
//!
//! Nodes change in few ways: the last one grows, entries are marked as deleted, and whole nodes are
//! removed, which move into the journal. All are undone exactly, so an offset in a node stays
//! valid. Each record also has the stream's statistics before the change.

use super::{Entries, Node, NodeLimits, StreamId, has_room};
use crate::types::journal::{self, Edit, NO_TEXT};

/// The inverse of a change.
#[derive(Debug)]
pub struct Note {
    before: Remembered,
    change: Change,
}

/// The state of a stream besides its entries.
#[derive(Clone, Copy, Debug)]
struct Remembered {
    len: u64,
    first: StreamId,
    top: StreamId,
    last: StreamId,
    max_deleted: StreamId,
    added: i64,
}

#[derive(Debug)]
pub(super) enum Change {
    /// Only the state besides the entries has changed.
    Remembered,
    /// The last node ended here.
    Grown(super::node::End),
    /// The last node did not exist.
    Begun,
    /// The entry at an offset of a node was not deleted.
    Marked { index: usize, offset: u32 },
    /// This node was removed.
    Gone { index: usize, node: Node },
}

impl Entries {
    /// Whether the nodes take more than `bytes` bytes.
    pub(in crate::types) fn are_more_than(&self, bytes: usize) -> bool {
        // Summing over many nodes costs more than checking their number.
        self.nodes.len() > bytes / 64 || self.heap_bytes() > bytes
    }

    /// Undoes a change.
    pub(in crate::types) fn put_back(&mut self, note: Note) {
        match note.change {
            Change::Remembered => {}
            Change::Grown(end) => {
                let node = self.nodes.back_mut().expect("a node that has grown is there");
                node.cut_off(end);
            }
            Change::Begun => drop(self.nodes.pop_back()),
            Change::Marked { index, offset } => self.nodes[index].unmark_deleted(offset),
            Change::Gone { index, node } => self.nodes.insert(index, node),
        }
        let Remembered { len, first, top, last, max_deleted, added } = note.before;
        (self.len, self.first, self.top) = (len, first, top);
        (self.last, self.max_deleted, self.added) = (last, max_deleted, added);
    }
}

impl Edit<'_, Entries> {
    /// Records a change, before or after it, but before the stream's statistics change.
    #[inline]
    pub(super) fn note_change(&mut self, change: impl FnOnce() -> Change) {
        if let Some(journal) = &mut self.journal {
            let Entries { len, first, top, last, max_deleted, added, .. } = *self.value;
            let before = Remembered { len, first, top, last, max_deleted, added };
            let note = Box::new(Note { before, change: change() });
            journal.note(journal::Note::Stream(note), NO_TEXT);
        }
    }

    #[inline]
    pub(super) fn note_gone(&mut self, index: usize, node: Option<Node>) {
        if let Some(node) = node {
            self.note_change(|| Change::Gone { index, node });
        }
    }

    /// Records that an entry with this ID and of `bytes` bytes is about to be added.
    #[inline]
    pub(super) fn note_growth(&mut self, id: StreamId, bytes: usize, limits: NodeLimits) {
        if self.journal.is_some() {
            let change = match self.nodes.back() {
                Some(node) if has_room(node, id, bytes, limits) => Change::Grown(node.end()),
                _ => Change::Begun,
            };
            self.note_change(|| change);
        }
    }
}
