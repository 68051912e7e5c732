//! The memory of snapshots, which is not data. Eviction does not count it, because it is freed when
//! the snapshots are written.
//!
//! A snapshot holds chunks with copies of entries, tables of emptied databases, parts of values
//! that the data has given up since ([`given_up_bytes`]), and the allocations of the thread that
//! writes it. The count, with any error in it, ends with the snapshot. An example of an error: a
//! part that two keys share, as after COPY, counts when the data gives up one of the keys.

use std::sync::atomic::{AtomicIsize, Ordering};
use std::sync::{Arc, Weak};

use crate::collections::shared::given_up_bytes;
use crate::sys::alloc;

/// The memory held by one snapshot. All owners of the snapshot's memory also own this.
#[derive(Debug)]
pub struct Held {
    bytes: AtomicIsize,
    /// [`given_up_bytes`] when the snapshot began.
    given_up_before: usize,
    /// The allocated bytes when the snapshot began: the data cannot give up more to it.
    given_up_max: usize,
}

impl Held {
    fn new() -> Held {
        Held {
            bytes: AtomicIsize::new(0),
            given_up_before: given_up_bytes(),
            given_up_max: alloc::allocated(),
        }
    }

    /// Counts the allocations and frees of `run` on this thread.
    pub fn count<R>(&self, run: impl FnOnce() -> R) -> R {
        alloc::counted(Some(&self.bytes), run)
    }

    /// Counts the allocations of `run`, at less cost. `run` must drop only memory that it has
    /// allocated.
    #[inline]
    pub fn count_made<R>(&self, run: impl FnOnce() -> R) -> R {
        let before = alloc::balance();
        let made = run();
        self.add(alloc::balance() - before);
        made
    }

    /// Counts bytes that the snapshot receives, or, if negative, passes on.
    pub fn add(&self, bytes: isize) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The snapshot's bytes, if the data has given up at most `given_up` bytes to it.
    fn total(&self, given_up: usize) -> usize {
        let given_up = given_up.min(self.given_up_max) as isize;
        (self.bytes.load(Ordering::Relaxed) + given_up).max(0) as usize
    }
}

/// The memory held by all snapshots.
#[derive(Debug, Default)]
pub struct HeldBySnapshots {
    /// The newest is the last. An aborted one ends when its thread notices the abort.
    alive: Vec<Weak<Held>>,
}

impl HeldBySnapshots {
    /// The count for a new snapshot.
    pub fn begin(&mut self) -> Arc<Held> {
        self.alive.retain(|held| held.strong_count() > 0);
        let held = Arc::new(Held::new());
        self.alive.push(Arc::downgrade(&held));
        held
    }

    /// Bytes held now.
    pub fn bytes(&self) -> usize {
        // Memory given up since the newest began counts for the newest.
        let mut until = given_up_bytes();
        let alive = self.alive.iter().filter_map(Weak::upgrade).rev();
        alive
            .map(|held| {
                let given_up = until - held.given_up_before.min(until);
                until = until.min(held.given_up_before);
                held.total(given_up)
            })
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_ends_with_its_snapshot() {
        let mut snapshots = HeldBySnapshots::default();
        assert_eq!(snapshots.bytes(), 0);
        let first = snapshots.begin();
        let chunk = first.count_made(|| vec![0u8; 1 << 20]);
        assert!(snapshots.bytes() >= 1 << 20);
        let second = snapshots.begin();
        second.add(1 << 20);
        assert!(snapshots.bytes() >= 2 << 20);
        second.add(-2 << 20);
        assert!(snapshots.bytes() >= 1 << 20, "a snapshot does not make up for another one");
        let thread = first.clone();
        let written = std::thread::spawn(move || thread.count(|| drop(chunk)));
        written.join().expect("it does not panic");
        assert!(first.bytes.load(Ordering::Relaxed).abs() < 1 << 10);
        first.add(1 << 20);
        drop((first, second));
        assert_eq!(snapshots.bytes(), 0);
    }
}
