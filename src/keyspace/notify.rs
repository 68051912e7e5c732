//! Keyspace events: collected while a command runs, published by the gate after it.

use super::db_index::DbIndex;
use crate::config::KeyspaceEvents;

/// One event, not yet published.
#[derive(Debug)]
pub struct Event {
    pub name: &'static str,
    pub database: DbIndex,
    pub key: Box<[u8]>,
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
    /// Sets the wanted classes. Without K or E nothing is ever published.
    pub fn set_classes(&mut self, classes: KeyspaceEvents) {
        let published = classes.intersects(KeyspaceEvents::KEYSPACE | KeyspaceEvents::KEYEVENT);
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
        self.pending.push(Event { name, database, key: key.into() });
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
