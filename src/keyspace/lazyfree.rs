//! Freeing large values in a background thread, so that the loop never waits for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SendError, Sender, channel};

use super::snapshot::Chunk;
use crate::collections::table::{Drained, Owned, ValueRef};
use crate::types::Value;

/// A value that takes more allocations than this is freed in the background.
const EFFORT_MAX: usize = 64;

/// A message to the thread: the values to drop, and the number of their keys and bytes.
struct Garbage {
    keys: usize,
    bytes: usize,
    dropped: Box<dyn Send>,
}

/// The sender to the background thread. When dropped, the thread frees the queued values and ends.
pub struct LazyFree {
    sender: Sender<Garbage>,
    pending: Arc<AtomicUsize>,
    pending_bytes: Arc<AtomicUsize>,
    freed: Arc<AtomicUsize>,
}

impl LazyFree {
    /// Starts the thread.
    pub fn start() -> Self {
        let (sender, receiver) = channel::<Garbage>();
        let pending = Arc::new(AtomicUsize::new(0));
        let pending_bytes = Arc::new(AtomicUsize::new(0));
        let freed = Arc::new(AtomicUsize::new(0));
        let (pending_there, freed_there) = (pending.clone(), freed.clone());
        let bytes_there = pending_bytes.clone();
        std::thread::Builder::new()
            .name("lazyfree".into())
            .spawn(move || {
                for garbage in receiver {
                    drop(garbage.dropped);
                    bytes_there.fetch_sub(garbage.bytes, Ordering::Relaxed);
                    pending_there.fetch_sub(garbage.keys, Ordering::Relaxed);
                    freed_there.fetch_add(garbage.keys, Ordering::Relaxed);
                }
            })
            .expect("a thread can be started when the server starts");
        LazyFree { sender, pending, pending_bytes, freed }
    }

    /// Frees an entry, directly if it is small.
    #[inline]
    pub fn discard(&self, entry: Owned<Value>) {
        if let ValueRef::Object(value) = entry.value()
            && value.free_effort() > EFFORT_MAX
        {
            let bytes = value.heap_bytes();
            self.send(1, bytes, Box::new(entry));
        }
    }

    /// Frees a value, directly if it is small.
    pub fn discard_value(&self, value: Box<Value>) {
        if value.free_effort() > EFFORT_MAX {
            self.send(1, value.heap_bytes(), value);
        }
    }

    /// Frees a whole database of `keys` keys and about `bytes` bytes.
    pub fn discard_all(&self, table: Drained<Value>, keys: usize, bytes: usize) {
        self.send(keys, bytes, Box::new(table));
    }

    /// Frees copies that a snapshot no longer needs.
    pub fn discard_copies(&self, copies: Chunk) {
        if !copies.is_empty() {
            self.send(0, 0, Box::new(copies));
        }
    }

    /// Frees an index of about `bytes` bytes.
    pub fn discard_index(&self, index: impl Send + 'static, bytes: usize) {
        self.send(0, bytes, Box::new(index));
    }

    fn send(&self, keys: usize, bytes: usize, dropped: Box<dyn Send>) {
        self.pending.fetch_add(keys, Ordering::Relaxed);
        self.pending_bytes.fetch_add(bytes, Ordering::Relaxed);
        // If the thread is gone, the message is returned and dropped here.
        if let Err(SendError(garbage)) = self.sender.send(Garbage { keys, bytes, dropped }) {
            drop(garbage.dropped);
            self.pending_bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.pending.fetch_sub(keys, Ordering::Relaxed);
            self.freed.fetch_add(keys, Ordering::Relaxed);
        }
    }

    /// Ends the thread. From now on all garbage is freed at once.
    pub fn end_thread(&mut self) {
        (self.sender, _) = channel();
    }

    /// Keys waiting to be freed.
    pub fn pending(&self) -> usize {
        self.pending.load(Ordering::Relaxed)
    }

    /// Bytes waiting to be freed, about.
    pub fn pending_bytes(&self) -> usize {
        self.pending_bytes.load(Ordering::Relaxed)
    }

    /// Keys freed since the start or the last reset.
    pub fn freed(&self) -> usize {
        self.freed.load(Ordering::Relaxed)
    }

    pub fn reset_freed(&self) {
        self.freed.store(0, Ordering::Relaxed);
    }
}
