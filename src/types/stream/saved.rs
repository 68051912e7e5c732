//! Streams as they are saved: nodes with their deleted entries, and a stream put together from such nodes again.
//!
//! Where nodes end shows in approximate trimming, so they are kept as they were.

use super::node::Walk;
use super::{Elements, Entries, NODE_BYTES_MAX, NewEntry, Node, StreamId};

/// A node, to be read.
#[derive(Clone, Copy, Debug)]
pub struct SavedNode<'a>(&'a Node);

/// An entry of a node.
#[derive(Clone, Debug)]
pub struct SavedEntry<'a> {
    pub id: StreamId,
    pub is_deleted: bool,
    /// How many fields.
    pub fields: usize,
    /// Whether its fields stand between the values; else they are the node's.
    pub has_own_fields: bool,
    /// Values, each behind its field if that stands there.
    pub pieces: Elements<'a>,
}

impl<'a> SavedNode<'a> {
    /// ID of the first entry, deleted or not.
    pub fn first(&self) -> StreamId {
        self.0.first
    }

    /// Entries that are not deleted.
    pub fn live(&self) -> u32 {
        self.0.live
    }

    /// Entries that are.
    pub fn deleted(&self) -> u32 {
        self.0.dead
    }

    /// The fields of the first entry: how many, and what they are.
    pub fn fields(&self) -> (usize, Elements<'a>) {
        self.0.names()
    }

    /// All entries in their order, the deleted ones included.
    pub fn entries(&self) -> impl Iterator<Item = SavedEntry<'a>> + use<'a> {
        let node = self.0;
        let walk: Walk<'a> = node.walk();
        walk.map(move |place| SavedEntry {
            id: place.id,
            is_deleted: place.is_deleted,
            fields: place.fields as usize,
            has_own_fields: place.own_fields,
            pieces: node.pieces(&place),
        })
    }
}

impl Entries {
    /// The nodes in their order.
    pub fn saved_nodes(&self) -> impl ExactSizeIterator<Item = SavedNode<'_>> {
        self.nodes.iter().map(SavedNode)
    }
}

/// Puts a stream's entries together from saved nodes.
#[derive(Debug, Default)]
pub struct Loader {
    entries: Entries,
    /// The greatest ID so far, of a deleted entry too.
    top: Option<StreamId>,
    is_in_node: bool,
}

/// Why an entry cannot follow those before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoaderError {
    /// Its ID is not above theirs.
    NotAbove,
    TooLarge,
}

impl Loader {
    /// The next entry begins a node.
    pub fn begin_node(&mut self) {
        self.end_node();
    }

    /// Adds an entry of `fields` fields; `piece` gives fields and values in turn.
    pub fn push<'p>(
        &mut self,
        id: StreamId,
        is_deleted: bool,
        fields: usize,
        piece: impl Fn(usize) -> &'p [u8],
    ) -> Result<(), LoaderError> {
        if self.top.is_some_and(|top| id <= top) {
            return Err(LoaderError::NotAbove);
        }
        let entry = NewEntry { id, fields, piece };
        let nodes = &mut self.entries.nodes;
        match nodes.back_mut() {
            Some(node) if self.is_in_node && node.len() > NODE_BYTES_MAX => {
                return Err(LoaderError::TooLarge);
            }
            Some(node) if self.is_in_node => node.push(&entry),
            _ => nodes.push_back(Node::new(&entry, 0)),
        }
        self.is_in_node = true;
        self.top = Some(id);
        if is_deleted {
            if let Some(node) = nodes.back_mut() {
                node.mark_last_deleted();
            }
            return Ok(());
        }
        if self.entries.len == 0 {
            self.entries.first = id;
        }
        self.entries.len += 1;
        self.entries.top = id;
        Ok(())
    }

    /// A node whose entries are all deleted is none.
    fn end_node(&mut self) {
        if std::mem::take(&mut self.is_in_node)
            && let Some(mut node) = self.entries.nodes.pop_back()
            && node.live > 0
        {
            node.close();
            self.entries.nodes.push_back(node);
        }
    }

    /// The greatest ID of all entries, deleted ones included.
    pub fn top(&self) -> Option<StreamId> {
        self.top
    }

    /// The entries, which remember nothing yet: see [`Entries::set_remembered`].
    pub fn finish(mut self) -> Entries {
        self.end_node();
        self.entries
    }
}
