//! How many permits of semaphores are held: an index of the permits' deadlines, for the figures alone.
//!
//! A semaphore is a plain sorted set, which any command may change. Changed ones are noted, and read again before somebody
//! looks at the figures ([`Keyspace::review_semaphores`](super::Keyspace::review_semaphores)). A permit ends by time without
//! a change.

use std::collections::{BTreeMap, HashMap};

use super::Keyspace;
use crate::types::sorted_set::SortedSet;
use crate::types::{Collection, lock};

#[derive(Default)]
struct Semaphore {
    /// The permits' deadlines in Unix milliseconds, in order.
    deadlines: Vec<i64>,
    is_changed: bool,
}

/// The known semaphores of all databases.
#[derive(Default)]
pub struct Semaphores {
    /// By database, then by key.
    databases: Vec<HashMap<Box<[u8]>, Semaphore>>,
    len: usize,
    changed: Vec<(usize, Box<[u8]>)>,
    /// How many permits end at each time, in Unix milliseconds; not before `ended_before`.
    ends: BTreeMap<i64, u64>,
    held: u64,
    ended_before: i64,
}

impl Semaphores {
    /// Notes a semaphore that is new or has changed.
    pub fn note(&mut self, database: usize, key: &[u8]) {
        if self.databases.len() <= database {
            self.databases.resize_with(database + 1, HashMap::new);
        }
        let semaphores = &mut self.databases[database];
        if let Some(known) = semaphores.get_mut(key) {
            if !known.is_changed {
                known.is_changed = true;
                self.changed.push((database, key.into()));
            }
            return;
        }
        semaphores.insert(key.into(), Semaphore { deadlines: Vec::new(), is_changed: true });
        self.len += 1;
        self.changed.push((database, key.into()));
    }

    /// Records that a key changed.
    #[inline]
    pub fn note_change(&mut self, database: usize, key: &[u8]) {
        if self.len > 0 {
            self.note_if_known(database, key);
        }
    }

    #[cold]
    fn note_if_known(&mut self, database: usize, key: &[u8]) {
        if self.databases.get(database).is_some_and(|known| known.contains_key(key)) {
            self.note(database, key);
        }
    }

    /// Records that any key of a database may have changed, and may have come from another one.
    pub fn note_all(&mut self, database: usize, other: usize) {
        for from in [database, other] {
            let known = self.databases.get(from).into_iter().flat_map(HashMap::keys);
            for key in known.cloned().collect::<Vec<_>>() {
                self.note(database, &key);
            }
        }
    }

    /// Sets the deadlines of a semaphore's permits; none: there is no such semaphore.
    fn set(&mut self, database: usize, key: &[u8], deadlines: Vec<i64>) {
        let Some(semaphores) = self.databases.get_mut(database) else { return };
        let Some(known) = semaphores.get_mut(key) else { return };
        known.is_changed = false;
        let before = std::mem::take(&mut known.deadlines);
        if deadlines.is_empty() {
            semaphores.remove(key);
            self.len -= 1;
        } else {
            known.deadlines.clone_from(&deadlines);
        }
        for at_ms in before.into_iter().filter(|at_ms| *at_ms >= self.ended_before) {
            if let Some(count) = self.ends.get_mut(&at_ms) {
                self.held -= 1;
                *count -= 1;
                if *count == 0 {
                    self.ends.remove(&at_ms);
                }
            }
        }
        for at_ms in deadlines.into_iter().filter(|at_ms| *at_ms >= self.ended_before) {
            self.held += 1;
            *self.ends.entry(at_ms).or_default() += 1;
        }
    }

    /// Forgets permits that have ended by `now_ms`. If somebody has set the clock back, all are counted anew.
    fn advance(&mut self, now_ms: i64) {
        if now_ms < self.ended_before {
            self.ends.clear();
            for at_ms in
                self.databases.iter().flat_map(HashMap::values).flat_map(|it| &it.deadlines)
            {
                *self.ends.entry(*at_ms).or_default() += 1;
            }
            self.held = self.ends.values().sum();
        }
        self.ended_before = now_ms;
        while let Some(first) = self.ends.first_entry().filter(|first| *first.key() < now_ms) {
            self.held -= first.remove();
        }
    }

    /// Permits held at `now_ms`, Unix milliseconds. Cheap if changed semaphores have been read lately.
    pub fn held(&self, now_ms: i64) -> u64 {
        self.held - self.ends.range(..now_ms).map(|(_, count)| count).sum::<u64>()
    }
}

impl Keyspace {
    /// Reads the semaphores that have changed.
    pub fn review_semaphores(&mut self) {
        let now_ms = self.now.unix().0;
        for (database, key) in std::mem::take(&mut self.semaphores.changed) {
            let table = self.table_of(database);
            let slot = table.find(self.hash(&key), &key);
            let value = slot.map(|slot| table.entry(slot).value());
            let set = value.filter(|value| lock::is_semaphore(*value)).and_then(SortedSet::view);
            let deadlines = set.map_or_else(Vec::new, |set| {
                set.iter().map(|(deadline, _)| deadline as i64).collect()
            });
            self.semaphores.set(database, &key, deadlines);
        }
        self.semaphores.advance(now_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_count_until_their_time_whatever_the_clock_does() {
        let mut semaphores = Semaphores::default();
        semaphores.note_change(0, b"unknown");
        assert!(semaphores.changed.is_empty());
        semaphores.note(0, b"a");
        semaphores.note(0, b"a");
        semaphores.note(3, b"b");
        assert_eq!(semaphores.changed.len(), 2);
        semaphores.set(0, b"a", vec![10, 20, 20]);
        semaphores.set(3, b"b", vec![5, 30]);
        assert_eq!([0, 10, 11, 21, 31].map(|now| semaphores.held(now)), [5, 4, 3, 1, 0]);
        semaphores.advance(15);
        // One of them ended in the meantime, another is renewed.
        semaphores.set(0, b"a", vec![20, 40]);
        assert_eq!((semaphores.held(15), semaphores.held(25)), (3, 2));
        semaphores.advance(25);
        semaphores.advance(1);
        assert_eq!(semaphores.held(1), 4);
        semaphores.set(3, b"b", Vec::new());
        semaphores.set(0, b"a", Vec::new());
        assert_eq!((semaphores.held(1), semaphores.len, semaphores.ends.len()), (0, 0, 0));
    }

    #[test]
    fn exchanged_databases_are_read_both() {
        let mut semaphores = Semaphores::default();
        semaphores.note(0, b"a");
        semaphores.set(0, b"a", vec![10]);
        semaphores.changed.clear();
        semaphores.note_all(0, 1);
        semaphores.note_all(1, 0);
        let changed = [(0, b"a"[..].into()), (1, b"a"[..].into())];
        assert_eq!(semaphores.changed, changed);
    }
}
