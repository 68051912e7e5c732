//! Keyspace events: collected while a command runs, published by the gate after it.

use super::db_index::DbIndex;
use crate::config::KeyspaceEvents;

/// One event, not yet published.
#[derive(Debug)]
pub struct Event {
    pub name: &'static str,
    pub database: DbIndex,
    pub key: Box<[u8]>,
    /// The fields of a hash that it is about, for the channels of fields; None: for those of keys.
    pub fields: Option<Vec<Box<[u8]>>>,
}

/// The wanted classes, and the events to be published.
#[derive(Debug)]
pub struct Events {
    classes: KeyspaceEvents,
    pending: Vec<Event>,
}

impl Default for Events {
    fn default() -> Self {
        Events { classes: KeyspaceEvents::empty(), pending: Vec::new() }
    }
}

impl Events {
    /// Sets the wanted classes. Without K, E, or a letter of fields nothing is ever published.
    pub fn set_classes(&mut self, classes: KeyspaceEvents) {
        let published = classes.intersects(KeyspaceEvents::OF_KEYS | KeyspaceEvents::OF_FIELDS);
        self.classes = if published { classes } else { KeyspaceEvents::empty() };
    }

    pub fn classes(&self) -> KeyspaceEvents {
        self.classes
    }

    #[inline]
    pub fn wants(&self, class: KeyspaceEvents) -> bool {
        self.classes.intersects(class)
    }

    #[cold]
    pub fn push(&mut self, name: &'static str, database: DbIndex, key: &[u8]) {
        if self.wants(KeyspaceEvents::OF_KEYS) {
            self.pending.push(Event { name, database, key: key.into(), fields: None });
        }
    }

    /// Whether events about fields of hashes are wanted.
    #[inline]
    pub fn wants_fields(&self) -> bool {
        self.classes.intersects(KeyspaceEvents::OF_FIELDS) && self.wants(KeyspaceEvents::HASH)
    }

    #[cold]
    pub fn push_fields(
        &mut self,
        name: &'static str,
        database: DbIndex,
        key: &[u8],
        fields: Vec<Box<[u8]>>,
    ) {
        let fields = Some(fields).filter(|fields| !fields.is_empty());
        if fields.is_some() {
            self.pending.push(Event { name, database, key: key.into(), fields });
        }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Takes the events to be published, in order.
    pub fn take(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.pending)
    }
}
