//! The number of permits that are held: an index of the permits' deadlines, only for statistics.
//!
//! A semaphore is a plain sorted set, which any command may change. Changed semaphores are noted,
//! and read again before the numbers are shown
//! ([`Keyspace::review_semaphores`](super::Keyspace::review_semaphores)). A permit ends by time
//! without a change.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::Keyspace;
use super::db_index::{DbIndex, PerDatabase};
use super::permits::PermitSessions;
use crate::collections::sparse::Sparse;
use crate::types::sorted_set::SortedSet;
use crate::types::{Collection, lock};

#[derive(Default)]
struct Semaphore {
    /// The permits' deadlines in Unix milliseconds, in order.
    deadlines: Vec<i64>,
    is_changed: bool,
}

/// The known semaphores of a database.
#[derive(Default)]
struct Database {
    semaphores: HashMap<Box<[u8]>, Semaphore>,
    /// The number of permits that end at each time, in Unix milliseconds. Not before
    /// [`Semaphores::ended_before`].
    ends: BTreeMap<i64, u64>,
    /// The first deadline of each semaphore that has been read.
    firsts: BTreeSet<(i64, Box<[u8]>)>,
    held: u64,
}

impl Database {
    fn add(&mut self, at_ms: i64) {
        self.held += 1;
        *self.ends.entry(at_ms).or_default() += 1;
    }

    fn remove(&mut self, at_ms: i64) {
        if let Some(count) = self.ends.get_mut(&at_ms) {
            self.held -= 1;
            *count -= 1;
            if *count == 0 {
                self.ends.remove(&at_ms);
            }
        }
    }
}

/// The known semaphores of all databases.
#[derive(Default)]
pub struct Semaphores {
    databases: PerDatabase<Database>,
    len: usize,
    changed: Vec<(DbIndex, Box<[u8]>)>,
    ended_before: i64,
    pub sessions: PermitSessions,
}

impl Semaphores {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Notes a semaphore that is new or has changed.
    pub fn note(&mut self, database: DbIndex, key: &[u8]) {
        let semaphores = &mut self.databases.entry(database).semaphores;
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
    pub fn note_change(&mut self, database: DbIndex, key: &[u8]) {
        if self.len > 0 {
            self.note_if_known(database, key);
        }
    }

    #[cold]
    fn note_if_known(&mut self, database: DbIndex, key: &[u8]) {
        let known = self.databases.get(database);
        if known.is_some_and(|known| known.semaphores.contains_key(key)) {
            self.note(database, key);
        }
    }

    /// Records that any key of a database may have changed, or may exist again.
    pub fn note_all(&mut self, database: DbIndex) {
        let known = self.databases.get(database).into_iter().flat_map(|it| it.semaphores.keys());
        for key in known.cloned().collect::<Vec<_>>() {
            self.note(database, &key);
        }
    }

    /// Forgets a database that is emptied. Returns the values whose freeing may take long.
    pub fn clear(&mut self, database: DbIndex) -> Option<impl Send + 'static + use<>> {
        let known = self.databases.get_mut(database).filter(|it| !it.semaphores.is_empty())?;
        let known = std::mem::take(known);
        self.len -= known.semaphores.len();
        Some(known)
    }

    /// Exchanges two databases.
    pub fn swap(&mut self, a: DbIndex, b: DbIndex) {
        if self.len == 0 {
            return;
        }
        self.databases.entry(a.max(b));
        self.databases.swap(a, b);
        for (database, _) in &mut self.changed {
            *database = match *database {
                it if it == a => b,
                it if it == b => a,
                other => other,
            };
        }
    }

    /// Sets the deadlines of a semaphore's permits. None: the semaphore does not exist.
    fn set(&mut self, database: DbIndex, key: &[u8], found: Option<Vec<i64>>) {
        let is_gone = found.is_none();
        let deadlines = found.unwrap_or_default();
        let Some(database) = self.databases.get_mut(database) else { return };
        let Some(known) = database.semaphores.get_mut(key) else { return };
        known.is_changed = false;
        let before = std::mem::take(&mut known.deadlines);
        if let Some(&first) = before.first() {
            database.firsts.remove(&(first, key.into()));
        }
        if let Some(&first) = deadlines.first() {
            database.firsts.insert((first, key.into()));
        }
        if is_gone {
            database.semaphores.remove(key);
            database.semaphores.shrink_if_sparse();
            self.len -= 1;
        } else {
            known.deadlines.clone_from(&deadlines);
        }
        let counts = |at_ms: &i64| *at_ms >= self.ended_before;
        before.into_iter().filter(counts).for_each(|at_ms| database.remove(at_ms));
        deadlines.into_iter().filter(counts).for_each(|at_ms| database.add(at_ms));
    }

    /// Forgets permits that have ended by `now_ms`. If somebody has set the clock back, all are
    /// counted anew.
    fn advance(&mut self, now_ms: i64) {
        let is_set_back = now_ms < self.ended_before;
        self.ended_before = now_ms;
        for database in self.databases.iter_mut().filter(|it| !it.semaphores.is_empty()) {
            if is_set_back {
                (database.ends, database.held) = (BTreeMap::new(), 0);
                let all = database.semaphores.values().flat_map(|known| &known.deadlines);
                for at_ms in all.copied().collect::<Vec<_>>() {
                    database.add(at_ms);
                }
            }
            while let Some(first) = database.ends.first_entry().filter(|it| *it.key() < now_ms) {
                database.held -= first.remove();
            }
        }
    }

    /// The semaphores of which a permit has ended before `now_ms`, Unix milliseconds, if they have
    /// been read since they changed.
    pub fn ended(&self, now_ms: i64) -> Vec<(DbIndex, Box<[u8]>)> {
        let of = |(database, known): (DbIndex, &Database)| {
            let ended = known.firsts.iter().take_while(|(first, _)| *first < now_ms);
            ended.map(|(_, key)| (database, key.clone())).collect::<Vec<_>>()
        };
        self.databases.numbered().flat_map(of).collect()
    }

    /// When the first permit ends: Unix milliseconds.
    pub fn first_end_ms(&self) -> Option<i64> {
        let firsts = self.databases.iter().filter_map(|known| known.firsts.first());
        firsts.map(|(first, _)| *first).min()
    }

    /// The known semaphores with the deadlines of their permits, in order. One that has changed has
    /// those of before, until it is read again.
    pub fn known(&self) -> impl Iterator<Item = (DbIndex, &[u8], &[i64])> {
        self.databases.numbered().flat_map(|(database, known)| {
            let all = known.semaphores.iter();
            all.map(move |(key, one)| (database, &**key, one.deadlines.as_slice()))
        })
    }

    /// Permits held at `now_ms`, Unix milliseconds. Cheap if changed semaphores have been read
    /// lately.
    pub fn held(&self, now_ms: i64) -> u64 {
        let of = |known: &Database| {
            known.held - known.ends.range(..now_ms).map(|(_, count)| count).sum::<u64>()
        };
        self.databases.iter().map(of).sum()
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
            let deadlines = set.map(|set| {
                let permits = set.iter().filter(|(deadline, _)| *deadline < lock::LIMIT_SCORE);
                permits.map(|(deadline, _)| deadline as i64).collect::<Vec<i64>>()
            });
            if deadlines.as_ref().is_none_or(Vec::is_empty) {
                self.semaphores.sessions.forget_key(database, &key);
            }
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
        semaphores.note_change(DbIndex::ZERO, b"unknown");
        assert!(semaphores.changed.is_empty());
        semaphores.note(DbIndex::ZERO, b"a");
        semaphores.note(DbIndex::ZERO, b"a");
        semaphores.note(DbIndex::new(3), b"b");
        assert_eq!(semaphores.changed.len(), 2);
        semaphores.set(DbIndex::ZERO, b"a", Some(vec![10, 20, 20]));
        semaphores.set(DbIndex::new(3), b"b", Some(vec![5, 30]));
        assert_eq!([0, 10, 11, 21, 31].map(|now| semaphores.held(now)), [5, 4, 3, 1, 0]);
        semaphores.advance(15);
        // One permit has ended since, another is renewed.
        semaphores.set(DbIndex::ZERO, b"a", Some(vec![20, 40]));
        assert_eq!((semaphores.held(15), semaphores.held(25)), (3, 2));
        semaphores.advance(25);
        semaphores.advance(1);
        assert_eq!(semaphores.held(1), 4);
        semaphores.set(DbIndex::new(3), b"b", None);
        semaphores.set(DbIndex::ZERO, b"a", None);
        assert_eq!(
            (semaphores.held(1), semaphores.len, semaphores.databases[DbIndex::ZERO].ends.len()),
            (0, 0, 0)
        );
    }

    #[test]
    fn databases_are_exchanged_and_emptied() {
        let mut semaphores = Semaphores::default();
        semaphores.note(DbIndex::ZERO, b"a");
        semaphores.set(DbIndex::ZERO, b"a", Some(vec![10]));
        semaphores.swap(DbIndex::ZERO, DbIndex::new(2));
        assert_eq!(semaphores.changed, [(DbIndex::new(2), b"a"[..].into())]);
        assert!(semaphores.clear(DbIndex::ZERO).is_none());
        assert_eq!(semaphores.held(0), 1);
        assert!(semaphores.clear(DbIndex::new(2)).is_some());
        assert_eq!((semaphores.held(0), semaphores.len), (0, 0));
        // Earlier notes are gone.
        semaphores.set(DbIndex::new(2), b"a", Some(vec![10]));
        assert_eq!(semaphores.held(0), 0);
    }
}
