//! Freeing large values in a background thread, so that the loop never waits for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};

use crate::collections::table::{Drained, Owned, ValueRef};
use crate::types::Value;

/// A value that takes more allocations than this is freed in the background.
const EFFORT_MAX: usize = 64;

/// What the thread gets: something to drop, and how many keys it counts for.
struct Garbage {
    keys: usize,
    dropped: Box<dyn Send>,
}

/// The way to the background thread. It ends when this is dropped, after freeing what it has.
pub struct LazyFree {
    sender: Sender<Garbage>,
    pending: Arc<AtomicUsize>,
    freed: Arc<AtomicUsize>,
}

impl LazyFree {
    /// Starts the thread.
    pub fn start() -> Self {
        let (sender, receiver) = channel::<Garbage>();
        let pending = Arc::new(AtomicUsize::new(0));
        let freed = Arc::new(AtomicUsize::new(0));
        let (pending_there, freed_there) = (pending.clone(), freed.clone());
        std::thread::Builder::new()
            .name("lazyfree".into())
            .spawn(move || {
                for garbage in receiver {
                    drop(garbage.dropped);
                    pending_there.fetch_sub(garbage.keys, Ordering::Relaxed);
                    freed_there.fetch_add(garbage.keys, Ordering::Relaxed);
                }
            })
            .expect("a thread can be started when the server starts");
        LazyFree { sender, pending, freed }
    }

    /// Frees an entry, here if it is small.
    #[inline]
    pub fn discard(&self, entry: Owned<Value>) {
        let large = |value: ValueRef<'_, Value>| matches!(value, ValueRef::Object(value) if value.free_effort() > EFFORT_MAX);
        if large(entry.value()) {
            self.send(1, Box::new(entry));
        }
    }

    /// Frees a value, here if it is small.
    pub fn discard_value(&self, value: Box<Value>) {
        if value.free_effort() > EFFORT_MAX {
            self.send(1, value);
        }
    }

    /// Frees a whole database of `keys` keys.
    pub fn discard_all(&self, table: Drained<Value>, keys: usize) {
        self.send(keys, Box::new(table));
    }

    fn send(&self, keys: usize, dropped: Box<dyn Send>) {
        self.pending.fetch_add(keys, Ordering::Relaxed);
        // If the thread is gone the message comes back and is dropped here.
        let _ = self.sender.send(Garbage { keys, dropped });
    }

    /// Keys that wait to be freed.
    pub fn pending(&self) -> usize {
        self.pending.load(Ordering::Relaxed)
    }

    /// Keys freed since the start or the last reset.
    pub fn freed(&self) -> usize {
        self.freed.load(Ordering::Relaxed)
    }

    pub fn reset_freed(&self) {
        self.freed.store(0, Ordering::Relaxed);
    }
}
