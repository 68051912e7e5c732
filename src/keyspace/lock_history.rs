//! The ends of locks: involuntary ends of all locks, and the last holdings of those that are taken
//! most.
//!
//! This memory is the server's own, and bounded: a held lock costs nothing here. The history of a
//! lock outlasts the lock, so that grants and typical times are known of a lock that is taken again
//! and again.

use std::collections::{BTreeMap, VecDeque};

use smallvec::SmallVec;

use super::Key;
use super::db_index::DbIndex;

/// Involuntary ends remembered for LOCK.INFO.
pub const ENDS_KEPT: usize = 256;
/// The number of locks whose holdings are remembered: `SETS` sets of `SET_SIZE` locks.
const SETS: usize = 256;
const SET_SIZE: usize = 4;
/// Holdings remembered of each lock.
const HOLDINGS_KEPT: usize = 10;
/// Locks with longer names are not remembered. Unit: bytes.
const NAME_MAX: usize = 4096;
/// The largest weight of a lock. A lock that is taken often has a large weight, and keeps its place
/// longer.
const WEIGHT_MAX: u8 = 100;

/// The end of a lock without its release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    pub database: DbIndex,
    pub key: Box<[u8]>,
    pub fence: u64,
    pub reason: EndReason,
    /// Unix milliseconds.
    pub at_ms: i64,
    /// Its owner, or else the name or address of the client that asked for it; empty: unknown.
    pub who: Box<[u8]>,
}

/// The reason why a lock ended without its release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// The lease ended.
    Expired,
    /// Its lease ended after the connection of its session had gone.
    SessionEnded,
    /// The same after this server was promoted and the owner did not come back.
    Promoted,
    /// LOCK.BREAK.
    Broken,
    /// Its key was deleted, renamed or exchanged.
    Deleted,
    /// Its key has another value.
    Overwritten,
    /// Its key was moved to another server, where the lock goes on.
    Moved,
}

impl EndReason {
    pub fn name(self) -> &'static str {
        match self {
            EndReason::Expired => "expired",
            EndReason::SessionEnded => "session",
            EndReason::Promoted => "promoted",
            EndReason::Broken => "broken",
            EndReason::Deleted => "deleted",
            EndReason::Overwritten => "overwritten",
            EndReason::Moved => "moved",
        }
    }
}

/// The end of a holding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldingEnd {
    Released,
    Lost(EndReason),
    /// The only reader became the writer, by another grant.
    Exchanged,
    /// The grant was taken back: its reply could not be sent, or too few replicas had it.
    TakenBack,
}

impl HoldingEnd {
    pub fn name(self) -> &'static str {
        match self {
            HoldingEnd::Released => "released",
            HoldingEnd::Lost(reason) => reason.name(),
            HoldingEnd::Exchanged => "exchanged",
            HoldingEnd::TakenBack => "taken-back",
        }
    }
}

/// A holding that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    pub fence: u64,
    /// When it ended, in Unix milliseconds, and how long it lasted, in microseconds.
    pub at_ms: i64,
    pub held_us: u64,
    pub end: HoldingEnd,
    /// The owner; empty: unknown.
    pub owner: Vec<u8>,
}

/// The history of one lock.
pub struct History {
    database: DbIndex,
    hash: u64,
    key: Vec<u8>,
    /// Holdings that have ended.
    ended: u64,
    weight: u8,
    last: VecDeque<Holding>,
}

impl History {
    fn new(database: DbIndex, key: Key<'_>) -> Self {
        let (hash, key) = (key.hash, key.bytes.to_vec());
        History { database, hash, key, ended: 0, weight: 0, last: VecDeque::new() }
    }

    /// Adds a holding that has ended.
    fn note(&mut self, ended: Ended<'_>) {
        self.ended += 1;
        self.weight = (self.weight + 1).min(WEIGHT_MAX);
        let Ended { fence, at_ms, held_us, end, owner } = ended;
        let is_full = self.last.len() == HOLDINGS_KEPT;
        let oldest = if is_full { self.last.pop_front() } else { None };
        let mut buffer = oldest.map_or_else(Vec::new, |oldest| oldest.owner);
        buffer.clear();
        buffer.extend_from_slice(owner);
        self.last.push_back(Holding { fence, at_ms, held_us, end, owner: buffer });
    }

    /// Adds later holdings.
    fn append(&mut self, later: History) {
        self.ended += later.ended;
        self.weight = self.weight.saturating_add(later.weight).min(WEIGHT_MAX);
        self.last.extend(later.last);
        self.last.drain(..self.last.len().saturating_sub(HOLDINGS_KEPT));
    }

    fn is_of(&self, database: DbIndex, key: Key<'_>) -> bool {
        self.hash == key.hash && self.database == database && *self.key == *key.bytes
    }

    /// The number of its holdings that have ended.
    pub fn ended(&self) -> u64 {
        self.ended
    }

    /// The last holdings, the latest last.
    pub fn last(&self) -> impl DoubleEndedIterator<Item = &Holding> {
        self.last.iter()
    }

    /// The median duration of the last holdings. Unit: microseconds.
    pub fn median_us(&self) -> u64 {
        let mut all: SmallVec<[u64; HOLDINGS_KEPT]> =
            self.last.iter().map(|holding| holding.held_us).collect();
        all.sort_unstable();
        all.get(all.len() / 2).copied().unwrap_or(0)
    }
}

/// Database and key.
type Name = (DbIndex, Box<[u8]>);

/// The remembered holdings and ends of all locks.
#[derive(Default)]
pub struct LockHistory {
    ends: VecDeque<End>,
    /// Each lock has its place in one set, by its key's hash. Empty until the first holding has
    /// ended.
    sets: Vec<[Option<Box<History>>; SET_SIZE]>,
    /// Whether a script's changes can be undone.
    is_undoable: bool,
    /// Then: the holdings that it has ended. Of most scripts there are none, so that the map is
    /// neither made nor dropped for each.
    undoable: BTreeMap<Name, History>,
}

impl LockHistory {
    /// Remembers an involuntary end.
    pub fn note_end(&mut self, end: End) {
        if end.key.len() > NAME_MAX {
            return;
        }
        if self.ends.len() == ENDS_KEPT {
            self.ends.pop_front();
        }
        self.ends.push_back(end);
    }

    /// The involuntary ends that are remembered, the latest last.
    pub fn ends(&self) -> impl DoubleEndedIterator<Item = &End> {
        self.ends.iter()
    }

    /// A key's last involuntary end, if it is still remembered.
    pub fn last_end(&self, database: DbIndex, key: &[u8]) -> Option<&End> {
        self.ends.iter().rev().find(|end| end.database == database && *end.key == *key)
    }

    /// The history of a lock; None: no holding is remembered.
    pub fn of(&self, database: DbIndex, key: Key<'_>) -> Option<&History> {
        let set = self.sets.get(set_of(key))?;
        set.iter().flatten().map(|history| &**history).find(|one| one.is_of(database, key))
    }

    /// The locks with a history: databases and keys.
    pub fn locks(&self) -> impl Iterator<Item = (DbIndex, &[u8])> {
        let all = self.sets.iter().flatten().flatten();
        all.map(|history| (history.database, &*history.key))
    }

    /// Remembers a holding that has ended.
    pub fn note_holding(&mut self, database: DbIndex, key: Key<'_>, ended: Ended<'_>) {
        if key.bytes.len() > NAME_MAX {
            return;
        }
        if self.is_undoable {
            let history = self.undoable.entry((database, key.bytes.into()));
            history.or_insert_with(|| History::new(database, key)).note(ended);
        } else {
            self.place(database, key).note(ended);
        }
    }

    /// The number of a lock's holdings that have ended, as far as they are remembered.
    pub fn ended(&self, database: DbIndex, key: Key<'_>) -> u64 {
        let lately = match self.undoable.is_empty() {
            true => None,
            false => self.undoable.get(&(database, key.bytes.into())),
        };
        self.of(database, key).map_or(0, History::ended) + lately.map_or(0, History::ended)
    }

    /// Makes holdings that end from now on undoable until [`Self::end_undo`].
    #[inline]
    pub fn begin_undo(&mut self) {
        self.is_undoable = true;
    }

    /// Makes the ends since [`Self::begin_undo`] final.
    #[inline]
    pub fn end_undo(&mut self) {
        self.is_undoable = false;
        while let Some((_, later)) = self.undoable.pop_first() {
            let name = later.key.clone();
            let key = Key { bytes: &name, hash: later.hash };
            self.place(later.database, key).append(later);
        }
    }

    /// Forgets the ends since [`Self::begin_undo`].
    pub fn roll_back(&mut self) {
        self.is_undoable = false;
        self.undoable.clear();
    }

    fn place(&mut self, database: DbIndex, key: Key<'_>) -> &mut History {
        if self.sets.is_empty() {
            self.sets.resize_with(SETS, Default::default);
        }
        place(&mut self.sets[set_of(key)], database, key)
    }
}

/// A holding that has just ended.
pub struct Ended<'a> {
    pub fence: u64,
    /// Unix milliseconds.
    pub at_ms: i64,
    pub held_us: u64,
    pub end: HoldingEnd,
    pub owner: &'a [u8],
}

fn set_of(key: Key<'_>) -> usize {
    key.hash as usize % SETS
}

/// A lock's place in its set. A lock without a place takes that of the lock with the least weight,
/// and the weight of the others falls. So locks that are taken once take places from each other,
/// and not from locks that are taken often.
fn place<'s>(
    set: &'s mut [Option<Box<History>>; SET_SIZE],
    database: DbIndex,
    key: Key<'_>,
) -> &'s mut History {
    let known = set.iter().position(|it| it.as_ref().is_some_and(|it| it.is_of(database, key)));
    let index = known.unwrap_or_else(|| {
        // Empty places come first.
        let weight = |index: &usize| set[*index].as_ref().map(|history| history.weight);
        let least = (0..SET_SIZE).min_by_key(weight).unwrap_or(0);
        for history in set.iter_mut().flatten() {
            history.weight = history.weight.saturating_sub(1);
        }
        least
    });
    let history = set[index].get_or_insert_with(|| Box::new(History::new(database, key)));
    if known.is_none() {
        history.key.clear();
        history.key.extend_from_slice(key.bytes);
        history.last.clear();
        (history.database, history.hash) = (database, key.hash);
        (history.ended, history.weight) = (0, 0);
    }
    history
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(fence: u64, owner: &[u8]) -> Ended<'_> {
        let end = HoldingEnd::Released;
        Ended { fence, at_ms: fence as i64, held_us: fence * 10, end, owner }
    }

    fn key(bytes: &[u8], hash: u64) -> Key<'_> {
        Key { bytes, hash }
    }

    #[test]
    fn the_last_ten_holdings_of_a_lock_are_remembered() {
        let mut history = LockHistory::default();
        assert!(history.of(DbIndex::ZERO, key(b"a", 1)).is_none());
        for fence in 1..=25 {
            history.note_holding(
                DbIndex::ZERO,
                key(b"a", 1),
                ended(fence, &[b'x'; 100][..fence as usize * 3]),
            );
        }
        let found = history.of(DbIndex::ZERO, key(b"a", 1)).expect("it was just noted");
        let last: Vec<_> = found.last().map(|one| (one.fence, one.owner.len() as u64)).collect();
        assert_eq!(last, (16..=25).map(|fence| (fence, fence * 3)).collect::<Vec<_>>());
        assert_eq!((found.ended(), found.median_us()), (25, 210));
        assert!(
            history.of(DbIndex::new(1), key(b"a", 1)).is_none()
                && history.of(DbIndex::ZERO, key(b"b", 1)).is_none()
        );
    }

    #[test]
    fn holdings_that_a_script_has_ended_count_once_they_are_final() {
        let mut history = LockHistory::default();
        let end = |history: &mut LockHistory, fences: std::ops::Range<u64>| {
            fences.for_each(|fence| {
                history.note_holding(DbIndex::ZERO, key(b"a", 1), ended(fence, b"me"));
            });
        };
        end(&mut history, 0..5);
        history.begin_undo();
        end(&mut history, 5..12);
        assert_eq!(history.ended(DbIndex::ZERO, key(b"a", 1)), 12);
        history.roll_back();
        assert_eq!(history.ended(DbIndex::ZERO, key(b"a", 1)), 5);
        history.begin_undo();
        end(&mut history, 20..28);
        history.end_undo();
        let found = history.of(DbIndex::ZERO, key(b"a", 1)).expect("it was noted");
        let last: Vec<_> = found.last().map(|one| one.fence).collect();
        assert_eq!(last, (3..5).chain(20..28).collect::<Vec<_>>());
        assert_eq!((found.ended(), found.weight), (13, 13));
    }

    #[test]
    fn a_lock_with_a_huge_name_leaves_no_memory_behind() {
        let mut history = LockHistory::default();
        let name = [b'k'; NAME_MAX + 1];
        history.note_holding(DbIndex::ZERO, key(&name, 1), ended(1, b"me"));
        assert_eq!(history.locks().count(), 0);
        history.note_holding(DbIndex::ZERO, key(&name[1..], 1), ended(1, b"me"));
        assert_eq!(history.locks().count(), 1);
    }

    #[test]
    fn locks_that_are_taken_once_do_not_push_out_one_that_is_taken_often() {
        let mut history = LockHistory::default();
        for fence in 0..50 {
            history.note_holding(DbIndex::ZERO, key(b"often", 7), ended(fence, b"me"));
        }
        for number in 0..30u64 {
            let name = number.to_be_bytes();
            history.note_holding(
                DbIndex::ZERO,
                key(&name, 7 + number * SETS as u64),
                ended(number, b"you"),
            );
            history.note_holding(DbIndex::ZERO, key(b"often", 7), ended(number, b"me"));
        }
        assert_eq!(history.of(DbIndex::ZERO, key(b"often", 7)).map(History::ended), Some(80));
        // One that is not taken any more is forgotten in the end.
        for number in 100..400u64 {
            let name = number.to_be_bytes();
            history.note_holding(
                DbIndex::ZERO,
                key(&name, 7 + number * SETS as u64),
                ended(number, b"you"),
            );
        }
        assert!(history.of(DbIndex::ZERO, key(b"often", 7)).is_none());
        assert_eq!(history.sets.iter().flatten().flatten().count(), SET_SIZE);
    }
}
