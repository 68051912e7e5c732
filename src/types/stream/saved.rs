//! Saving and loading streams: nodes with their deleted entries, and building a stream from such
//! nodes.
//!
//! Node boundaries are observable by approximate trimming, so they are preserved.

use super::node::Walk;
use super::{Elements, Entries, NODE_BYTES_MAX, NewEntry, Node, StreamId};

/// A node, for reading.
#[derive(Clone, Copy, Debug)]
pub struct SavedNode<'a>(&'a Node);

/// An entry of a node.
#[derive(Clone, Debug)]
pub struct SavedEntry<'a> {
    pub id: StreamId,
    pub is_deleted: bool,
    /// Number of fields.
    pub fields: usize,
    /// Whether its fields are stored with the values, instead of being the node's.
    pub has_own_fields: bool,
    /// Values, each preceded by its field if stored with them.
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

    /// Entries that are deleted.
    pub fn deleted(&self) -> u32 {
        self.0.dead
    }

    /// The number of fields of the first entry, and the fields.
    pub fn fields(&self) -> (usize, Elements<'a>) {
        self.0.names()
    }

    /// All entries in order, including deleted ones.
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

/// Builds a stream's entries from saved nodes.
#[derive(Debug, Default)]
pub struct Loader {
    entries: Entries,
    is_in_node: bool,
}

/// Why an entry is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoaderError {
    /// Its ID is not greater than those of the entries before it that were not deleted.
    NotAbove,
    TooLarge,
}

impl Loader {
    /// Starts a new node with the next entry.
    pub fn begin_node(&mut self) {
        self.end_node();
    }

    /// Adds an entry of `fields` fields; `piece` returns fields and values alternately. A deleted
    /// entry may have a greater ID than later ones: XSETID may have set the stream back.
    pub fn push<'p>(
        &mut self,
        id: StreamId,
        is_deleted: bool,
        fields: usize,
        piece: impl Fn(usize) -> &'p [u8],
    ) -> Result<(), LoaderError> {
        if self.top().is_some_and(|top| id <= top) {
            return Err(LoaderError::NotAbove);
        }
        // The IDs of a node ascend.
        if self.is_in_node && self.entries.nodes.back().is_some_and(|node| id <= node.last) {
            self.end_node();
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

    /// A node with only deleted entries is dropped.
    fn end_node(&mut self) {
        if std::mem::take(&mut self.is_in_node)
            && let Some(mut node) = self.entries.nodes.pop_back()
            && node.live > 0
        {
            node.close();
            self.entries.nodes.push_back(node);
        }
    }

    /// The greatest ID of the entries, without deleted ones.
    pub fn top(&self) -> Option<StreamId> {
        self.entries.top()
    }

    /// The entries, without statistics: see [`Entries::set_remembered`].
    pub fn finish(mut self) -> Entries {
        self.end_node();
        self.entries
    }
}
