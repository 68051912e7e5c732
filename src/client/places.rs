//! Kept places of absent clients in the queues of locks. With SESSION a waiting client keeps its
//! place while it reconnects, or if it asks again after its BLOCK has ended. A client that is away
//! is skipped.

use std::collections::{BTreeSet, HashMap};

use crate::collections::sparse::Sparse;
use crate::keyspace::DbIndex;
use crate::keyspace::waiting::{Ticket, Wanted};

/// An owner and the keys for which it waits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Asker(Box<[u8]>);

impl Asker {
    /// `names`: the keys and the owner.
    pub fn new(wanted: Wanted, database: DbIndex, names: &[&[u8]]) -> Self {
        let mut bytes = vec![u8::from(wanted == Wanted::Semaphore)];
        bytes.extend((database.get() as u64).to_le_bytes());
        for name in names {
            bytes.extend((name.len() as u64).to_le_bytes());
            bytes.extend_from_slice(name);
        }
        Asker(bytes.into_boxed_slice())
    }
}

/// The places that are kept.
#[derive(Debug, Default)]
pub struct KeptPlaces {
    places: HashMap<Asker, (Ticket, i64)>,
    /// The end of each place: boot-time clock, microseconds.
    ends: BTreeSet<(i64, Asker)>,
    /// While a script's changes can be undone: the places that it has taken, and their ends.
    undoable: Option<Vec<(Asker, Ticket, i64)>>,
}

impl KeptPlaces {
    pub fn len(&self) -> usize {
        self.places.len()
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Keeps a place until `until_us`, boot-time clock.
    pub fn keep(&mut self, asker: Asker, ticket: Ticket, until_us: i64) {
        self.remove(&asker);
        self.ends.insert((until_us, asker.clone()));
        self.places.insert(asker, (ticket, until_us));
    }

    /// Removes the place kept for `asker` and returns it.
    pub fn take(&mut self, asker: &Asker) -> Option<Ticket> {
        let (ticket, until_us) = self.remove(asker)?;
        if let Some(taken) = &mut self.undoable {
            taken.push((asker.clone(), ticket, until_us));
        }
        Some(ticket)
    }

    fn remove(&mut self, asker: &Asker) -> Option<(Ticket, i64)> {
        let (ticket, until_us) = self.places.remove(asker)?;
        self.places.shrink_if_sparse();
        self.ends.remove(&(until_us, asker.clone()));
        Some((ticket, until_us))
    }

    /// Makes places that are taken from now on restorable until [`Self::end_undo`].
    pub fn begin_undo(&mut self) {
        self.undoable = Some(Vec::new());
    }

    /// Makes it final that places were taken, or restores them.
    pub fn end_undo(&mut self, rolls_back: bool) {
        for (asker, ticket, until_us) in self.undoable.take().unwrap_or_default() {
            if rolls_back && !self.places.contains_key(&asker) {
                self.keep(asker, ticket, until_us);
            }
        }
    }

    /// Forgets the places that have ended.
    pub fn expire(&mut self, now_us: i64) {
        while let Some((until_us, _)) = self.ends.first()
            && *until_us <= now_us
            && let Some((_, asker)) = self.ends.pop_first()
        {
            self.places.remove(&asker);
            self.places.shrink_if_sparse();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_kept_for_its_asker_and_for_a_time() {
        let mut kept = KeptPlaces::default();
        let asker = |name: &str| Asker::new(Wanted::Lock, DbIndex::ZERO, &[b"k", name.as_bytes()]);
        kept.keep(asker("a"), 7, 100);
        kept.keep(asker("b"), 8, 200);
        kept.keep(asker("a"), 7, 300);
        kept.expire(200);
        assert_eq!((kept.len(), kept.take(&asker("b"))), (1, None));
        assert_eq!(kept.take(&asker("a")), Some(7));
        assert!(kept.is_empty() && kept.take(&asker("a")).is_none());
        for (rolls_back, left) in [(true, 1), (false, 0)] {
            kept.keep(asker("a"), 9, 400);
            kept.begin_undo();
            assert_eq!(kept.take(&asker("a")), Some(9));
            kept.end_undo(rolls_back);
            assert_eq!(kept.len(), left);
        }
        let joined = Asker::new(Wanted::Lock, DbIndex::ZERO, &[b"ka", b""]);
        assert_ne!(joined, Asker::new(Wanted::Lock, DbIndex::ZERO, &[b"k", b"a"]));
    }
}
