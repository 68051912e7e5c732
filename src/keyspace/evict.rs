//! Access bits (LRU or LRM clock, or LFU counter) and the choice of keys to evict.
//!
//! The evicted key is the best of a pool of candidates that is kept between evictions: each
//! eviction samples some keys of every database, and the pool keeps the best so far, so that a few
//! samples come close to the true order. How much to evict, and for how long, is decided in
//! `gate/evict.rs`.

use std::collections::BTreeMap;

use super::db_index::DbIndex;
use crate::clock::Now;
use crate::collections::glob;
use crate::collections::shared::given_up_bytes;
use crate::collections::table::{Entry, PINNED, Slot, Table, ValueRef};
use crate::config::{AccessKind, KeyspaceEvents, MaxmemoryPolicy};
use crate::types::{Value, lock, type_name};

use super::deletions::Deleted;
use super::{Cause, Key, Keyspace};

/// The access bits hold 24 bits.
const LRU_MASK: u32 = (1 << 24) - 1;
/// The access bits of a blessed key, which is never evicted: BLESS SET. They are no other key's.
pub const BLESSED: u32 = PINNED;
/// A new key's LFU counter: high enough that it is not evicted first.
pub const LFU_INITIAL: u32 = 5;
/// The most candidates in the pool.
const POOL_SIZE: usize = 16;
/// The most draws to find a key that is not spared.
const SPARED_TRIES: usize = 100;
/// The most keys sampled of each database for one eviction, independent of `maxmemory-samples`:
/// about 20 take a microsecond.
const SAMPLES_MAX: usize = 1024;

/// The parameters of access bits: `maxmemory-policy`, `lfu-log-factor`, `lfu-decay-time`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessPolicy {
    pub kind: AccessKind,
    pub lfu_log_factor: u32,
    /// Minutes after which a counter is decremented.
    pub lfu_decay_minutes: u32,
}

impl Default for AccessPolicy {
    fn default() -> Self {
        AccessPolicy { kind: AccessKind::Used, lfu_log_factor: 10, lfu_decay_minutes: 1 }
    }
}

/// The state kept between evictions.
#[derive(Debug, Default)]
pub struct Eviction {
    pool: Pool,
    /// The last eviction ran out of time: the loop continues next turn.
    pub unfinished: bool,
    /// Since the last check whether evictions free anything: bytes of the evicted keys, and bytes
    /// that their eviction has freed.
    pub evicted_bytes: i64,
    pub freed_bytes: i64,
    /// The last eviction freed nothing, and is not to be tried again for a while.
    pub in_vain: Option<InVain>,
    /// When memory began to exceed its limit; boot-time clock, microseconds.
    pub over_since_us: Option<i64>,
    /// Total time over the limit in earlier periods. Unit: microseconds.
    pub over_us: u64,
    /// Patterns of keys that are never evicted: `maxmemory-protect`.
    pub protected: Vec<Vec<u8>>,
    /// Keys evicted since the log said so, by the names of their types.
    pub untold: BTreeMap<&'static str, u64>,
    /// When the log last said so, and how many requests had been refused by then.
    pub told: Option<Told>,
}

/// What the log has said about evictions. Boot-time clock, microseconds.
#[derive(Clone, Copy, Debug)]
pub struct Told {
    pub at_us: i64,
    pub refused: u64,
}

/// An eviction that freed nothing. Boot-time clock, microseconds.
#[derive(Clone, Copy, Debug)]
pub struct InVain {
    pub until_us: i64,
    pub pause_us: i64,
}

/// The best candidates seen so far.
#[derive(Debug, Default)]
struct Pool {
    /// The policy of the candidates' scores.
    policy: Option<MaxmemoryPolicy>,
    /// Sorted by score, the best last.
    candidates: Vec<Candidate>,
}

/// A key that may be evicted, preferably if its score is high.
#[derive(Debug)]
struct Candidate {
    score: i64,
    database: DbIndex,
    key: Box<[u8]>,
}

impl Pool {
    /// Adds a key, unless the pool is full of better ones.
    fn offer(&mut self, score: i64, database: DbIndex, key: &[u8]) {
        let mut place = self.candidates.partition_point(|candidate| candidate.score < score);
        if self.candidates.len() == POOL_SIZE {
            if place == 0 {
                return;
            }
            self.candidates.remove(0);
            place -= 1;
        }
        self.candidates.insert(place, Candidate { score, database, key: key.into() });
    }
}

/// When or how often a key was used, as RESTORE and RDB files give it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accessed {
    /// Source: IDLETIME.
    SecondsAgo(u64),
    /// The counter of an LFU policy. Source: FREQ.
    Frequency(u8),
}

/// The LRU clock at a time: seconds, 24 bits. One second in 194 days lasts two, because [`BLESSED`]
/// is no time.
#[inline]
pub(super) fn lru_clock_at(now: Now) -> u32 {
    ((now.unix_seconds() as u32) & LRU_MASK).min(BLESSED - 1)
}

impl Keyspace {
    /// The LRU clock: see [`lru_clock_at`].
    pub fn lru_clock(&self) -> u32 {
        self.lru_clock
    }

    /// The LFU clock: minutes, 16 bits.
    fn lfu_minutes(&self) -> u32 {
        (self.now.unix_seconds() / 60) as u32 & 0xffff
    }

    /// The access bits of a new key.
    #[inline]
    pub fn fresh_access(&self) -> u32 {
        match self.access.kind {
            AccessKind::Counted => self.lfu_minutes() << 8 | LFU_INITIAL,
            AccessKind::Used | AccessKind::Modified => self.lru_clock(),
        }
    }

    /// Whether the key at `slot` is blessed: never evicted.
    pub fn is_blessed(&self, slot: Slot) -> bool {
        self.entry(slot).access() == BLESSED
    }

    /// The number of blessed keys in all databases.
    pub fn blessed_len(&self) -> usize {
        self.tables.iter().map(Table::pinned_len).sum()
    }

    /// Blesses the key at `slot`, or ends that. It lasts as long as the key, whatever its value.
    pub fn set_blessed(&mut self, slot: Slot, is_blessed: bool) {
        let access = if is_blessed { BLESSED } else { self.fresh_access() };
        self.tables.set_blessing(self.selected, slot, access);
    }

    /// Sets the access bits of the key at `slot`, if `accessed` has the policy's form.
    pub fn set_accessed(&mut self, slot: Slot, accessed: Accessed) {
        let counts = self.access.kind == AccessKind::Counted;
        let access = match accessed {
            Accessed::Frequency(counter) if counts => self.lfu_minutes() << 8 | u32::from(counter),
            Accessed::SecondsAgo(seconds) if !counts => {
                self.lru_clock().wrapping_sub(seconds as u32) & LRU_MASK
            }
            Accessed::Frequency(_) | Accessed::SecondsAgo(_) => return,
        };
        self.set_access(slot, access.min(BLESSED - 1));
    }

    /// Sets the access bits of the key at `slot`, unless it is blessed.
    #[inline]
    pub fn set_access(&mut self, slot: Slot, access: u32) {
        self.tables.update_access(self.selected, slot, |_| access);
    }

    /// Updates the access bits of the key at `slot`.
    #[inline]
    pub(super) fn mark_access(&mut self, slot: Slot) {
        if self.mode.no_touch {
            return;
        }
        let access = match self.access.kind {
            AccessKind::Used => self.lru_clock,
            AccessKind::Counted => self.lfu_after_access(slot),
            AccessKind::Modified => return,
        };
        self.set_access(slot, access);
    }

    /// Notes the time of a change in the access bits of a key, if it still exists.
    #[cold]
    pub(super) fn mark_modified(&mut self, database: DbIndex, key: &[u8]) {
        let Key { bytes, hash } = self.key(key);
        let clock = self.lru_clock;
        if let Some(slot) = self.tables[database].find(hash, bytes) {
            self.tables.update_access(database, slot, |_| clock);
        }
    }

    #[cold]
    fn lfu_after_access(&self, slot: Slot) -> u32 {
        let counter = self.lfu_counter(self.entry(slot).access());
        let counter = lfu_increment(counter, self.access.lfu_log_factor);
        (self.lfu_minutes() << 8 | counter).min(BLESSED - 1)
    }

    /// The LFU counter in access bits, after decay. That of a blessed key is the greatest.
    pub fn lfu_counter(&self, access: u32) -> u32 {
        let counter = access & 0xff;
        if access == BLESSED {
            return counter;
        }
        if self.access.lfu_decay_minutes == 0 {
            return counter;
        }
        let elapsed = self.lfu_minutes().wrapping_sub(access >> 8) & 0xffff;
        counter.saturating_sub(elapsed / self.access.lfu_decay_minutes)
    }

    /// Seconds since the last access or change, from access bits; 0 if the key is blessed.
    pub fn idle_seconds(&self, access: u32) -> u32 {
        if access == BLESSED {
            return 0;
        }
        self.lru_clock().wrapping_sub(access) & LRU_MASK
    }

    /// Evicts the best key by the policy, sampling `samples` keys of each database. Returns the
    /// key's bytes, without bytes that another key or a snapshot shares; None if no key may be
    /// evicted. Announces `evicted`. An expired key is deleted as `expired` instead.
    pub fn evict_one(&mut self, policy: MaxmemoryPolicy, samples: usize) -> Option<usize> {
        self.delete_found_expired();
        let samples = samples.clamp(1, SAMPLES_MAX);
        let victim = match policy {
            MaxmemoryPolicy::NoEviction => None,
            MaxmemoryPolicy::AllkeysRandom | MaxmemoryPolicy::VolatileRandom => {
                self.random_victim(policy.is_volatile(), samples)
            }
            _ => self.best_victim(policy, samples),
        };
        let (database, slot) = victim?;
        let entry = self.tables[database].entry(slot);
        debug_assert!(
            !self.is_spared(database, &entry),
            "a lock, a coming, a protected or a blessed key is not evicted"
        );
        let object_bytes = match entry.value() {
            ValueRef::Object(object) => object.heap_bytes(),
            ValueRef::Bytes { .. } => 0,
        };
        let bytes = entry.allocated() + object_bytes;
        let given_up_before = given_up_bytes();
        self.in_database(database, |db| db.remove_evicted(slot));
        Some(bytes.saturating_sub(given_up_bytes() - given_up_before))
    }

    fn remove_evicted(&mut self, slot: Slot) {
        let deadline = self.entry(slot).deadline();
        if deadline.is_some_and(|deadline| self.now.is_past(deadline)) {
            return self.remove_expired(slot);
        }
        let name = type_name(self.entry(slot).value());
        let owned = self.tables.remove_for_good(self.selected, slot);
        self.stats.evicted += 1;
        *self.stats.evicted_by_type.entry(name).or_default() += 1;
        *self.eviction.untold.entry(name).or_default() += 1;
        self.deletions.note_key(self.selected, owned.key(), Deleted::Evicted);
        self.touch(self.selected, owned.key(), 0, Cause::Server);
        self.notify(KeyspaceEvents::EVICTED, "evicted", owned.key());
        self.lazyfree.discard(owned);
    }

    /// A random key, or a random key with a deadline. Draws again, from all databases, if only
    /// spared keys were drawn.
    fn random_victim(&self, volatile_only: bool, samples: usize) -> Option<(DbIndex, Slot)> {
        (0..SPARED_TRIES).find_map(|_| self.draw(volatile_only, samples))
    }

    /// Draws such a key, from larger databases more often. None: it drew only spared keys.
    fn draw(&self, volatile_only: bool, samples: usize) -> Option<(DbIndex, Slot)> {
        let eligible = |database: DbIndex| match volatile_only {
            true => self.tables[database].volatile_len(),
            false => self.tables[database].len(),
        };
        let total: usize = DbIndex::all(self.tables.len()).map(eligible).sum();
        if total == 0 {
            return None;
        }
        let mut rank = fastrand::usize(..total);
        let mut database = DbIndex::ZERO;
        while rank >= eligible(database) {
            rank -= eligible(database);
            database = database.next();
        }
        let table = &self.tables[database];
        if !volatile_only {
            let slot = table.random()?;
            return (!self.is_spared(database, &table.entry(slot))).then_some((database, slot));
        }
        // Choose among some neighbours: otherwise the first key after many without deadlines would
        // be chosen too often.
        let (mut chosen, mut seen) = (None, 0);
        table.sample(samples, true, |slot, entry| {
            if self.is_spared(database, &entry) {
                return;
            }
            seen += 1;
            if fastrand::usize(..seen) == 0 {
                chosen = Some((database, slot));
            }
        });
        chosen
    }

    /// The pool's best candidate, after sampling each database.
    fn best_victim(&mut self, policy: MaxmemoryPolicy, samples: usize) -> Option<(DbIndex, Slot)> {
        let mut pool = std::mem::take(&mut self.eviction.pool);
        if pool.policy != Some(policy) {
            pool = Pool { policy: Some(policy), candidates: Vec::with_capacity(POOL_SIZE) };
        }
        let mut tries = SPARED_TRIES;
        let victim = loop {
            let (mut found_any, mut found_spared) = (false, false);
            for (database, table) in self.tables.numbered() {
                table.sample(samples, policy.is_volatile(), |_, entry| {
                    if self.is_spared(database, &entry) {
                        found_spared = true;
                        return;
                    }
                    if let Some(score) = self.score(policy, &entry) {
                        found_any = true;
                        pool.offer(score, database, entry.key());
                    }
                });
            }
            let valid = std::iter::from_fn(|| pool.candidates.pop())
                .find_map(|candidate| self.still_valid(policy, &candidate));
            // If there are keys, the second round finds one: the pool is empty and all samples are
            // new. If all drawn keys are spared, draw again.
            if valid.is_some() || !found_any && (tries == 0 || !found_spared) {
                break valid;
            }
            tries = tries.saturating_sub(usize::from(!found_any));
        };
        self.eviction.pool = pool;
        victim
    }

    /// A candidate's slot, unless it was deleted, used, given a later deadline, or became a lock
    /// since sampling.
    fn still_valid(
        &self,
        policy: MaxmemoryPolicy,
        candidate: &Candidate,
    ) -> Option<(DbIndex, Slot)> {
        let Key { bytes, hash } = self.key(&candidate.key);
        let table = &self.tables[candidate.database];
        let slot = table.find(hash, bytes)?;
        let entry = table.entry(slot);
        let score = self.score(policy, &entry)?;
        let is_valid = score >= candidate.score && !self.is_spared(candidate.database, &entry);
        is_valid.then_some((candidate.database, slot))
    }

    /// Whether a key is spared: it is a lock or a semaphore, or blessed, its slot is hidden, or
    /// `maxmemory-protect` names it. A slot's present owner decides about keys that are still
    /// coming here.
    pub fn is_spared(&self, database: DbIndex, entry: &Entry<'_, Value>) -> bool {
        let is_protected = |pattern: &Vec<u8>| glob::matches(pattern, entry.key(), false);
        if entry.access() == BLESSED
            || self.is_hidden(entry.key())
            || self.eviction.protected.iter().any(is_protected)
        {
            return true;
        }
        self.has_spared()
            && (self.locks.is_held(database, entry.key())
                || entry.deadline().is_some() && lock::is_semaphore(entry.value())
                || self.coming.is_shown(database, entry.key()))
    }

    /// Whether there may be locks or semaphores.
    fn has_spared(&self) -> bool {
        self.locks.fences.is_used() || !self.semaphores.is_empty() || self.coming.has_shown()
    }

    /// A key's score for eviction by a policy; None: it may not be evicted.
    fn score(&self, policy: MaxmemoryPolicy, entry: &Entry<'_, Value>) -> Option<i64> {
        let deadline = entry.deadline();
        if policy.is_volatile() && deadline.is_none() {
            return None;
        }
        match policy {
            MaxmemoryPolicy::VolatileTtl => deadline.map(|at| -self.now.remaining_ms(at)),
            _ if policy.is_lfu() => Some(255 - i64::from(self.lfu_counter(entry.access()))),
            _ => Some(self.idle_seconds(entry.access()).into()),
        }
    }
}

/// Increments a logarithmic counter with a probability that falls as the counter grows.
fn lfu_increment(counter: u32, log_factor: u32) -> u32 {
    if counter >= 255 {
        return 255;
    }
    let base = counter.saturating_sub(LFU_INITIAL) as f64;
    let chance = 1.0 / (base * log_factor as f64 + 1.0);
    if fastrand::f64() < chance { counter + 1 } else { counter }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, ManualClock, UnixMillis};
    use crate::collections::hash::KeyHasher;
    use crate::keyspace::Expiry;
    use crate::keyspace::locks::{At, Held};
    use proptest::prelude::*;

    const DAY_MS: i64 = 86_400_000;

    struct World {
        hands: ManualClock,
        db: Keyspace,
    }

    impl World {
        fn new(policy: MaxmemoryPolicy) -> Self {
            let hands = ManualClock::new(UnixMillis(1_700_000_000_000));
            let now = Clock::Manual(hands.clone()).now();
            let mut db = Keyspace::new(3, KeyHasher::new([1, 2]), now);
            db.access.kind = policy.access_kind();
            World { hands, db }
        }

        fn pass_seconds(&mut self, seconds: i64) {
            self.hands.advance_us(seconds * 1_000_000);
            self.db.set_now(Clock::Manual(self.hands.clone()).now());
        }

        fn set(&mut self, key: &str, ttl_ms: Option<i64>) {
            let expiry = ttl_ms.map_or(Expiry::Clear, |ms| Expiry::At(self.db.now().after(ms)));
            let key = self.db.key(key.as_bytes());
            self.db.set_string(key, b"value", expiry);
        }

        fn read(&mut self, key: &str) -> bool {
            let key = self.db.key(key.as_bytes());
            self.db.find_for_read(key).is_some()
        }

        fn keys(&self) -> Vec<String> {
            let mut keys: Vec<String> = DbIndex::all(self.db.databases())
                .flat_map(|index| self.db.table_of(index).iter())
                .map(|entry| String::from_utf8_lossy(entry.key()).into_owned())
                .collect();
            keys.sort();
            keys
        }
    }

    #[test]
    fn protected_keys_stay_under_each_policy_and_what_went_is_counted_by_type() {
        for policy in [
            MaxmemoryPolicy::AllkeysLru,
            MaxmemoryPolicy::AllkeysLfu,
            MaxmemoryPolicy::AllkeysRandom,
            MaxmemoryPolicy::VolatileRandom,
            MaxmemoryPolicy::VolatileTtl,
        ] {
            let mut world = World::new(policy);
            world.db.eviction.protected = vec![b"job:*".to_vec(), b"lock".to_vec()];
            for key in ["a", "b", "c", "job:1", "job:2", "lock"] {
                world.set(key, Some(60_000));
                world.pass_seconds(1);
            }
            let gone = std::iter::from_fn(|| world.db.evict_one(policy, 5)).count();
            assert_eq!(
                (gone, world.keys()),
                (3, vec!["job:1".into(), "job:2".into(), "lock".into()])
            );
            assert_eq!(world.db.eviction.untold, BTreeMap::from([("string", 3)]));
            world.pass_seconds(100);
            assert!(!world.read("lock"), "{policy:?}: protected keys expire");
        }
    }

    #[test]
    fn the_key_used_longest_ago_goes_first() {
        let mut world = World::new(MaxmemoryPolicy::AllkeysLru);
        for key in ["a", "b", "c", "d"] {
            world.set(key, None);
            world.pass_seconds(10);
        }
        assert!(world.read("a"));
        for left in [vec!["a", "c", "d"], vec!["a", "d"], vec!["a"], vec![]] {
            assert!(world.db.evict_one(MaxmemoryPolicy::AllkeysLru, 100).is_some());
            assert_eq!(world.keys(), left);
        }
        assert!(world.db.evict_one(MaxmemoryPolicy::AllkeysLru, 100).is_none());
        assert_eq!(world.db.stats.evicted, 4);
    }

    #[test]
    fn a_candidate_that_was_used_meanwhile_is_spared() {
        let mut world = World::new(MaxmemoryPolicy::AllkeysLru);
        for key in ["a", "b", "c"] {
            world.set(key, None);
            world.pass_seconds(10);
        }
        assert!(world.db.evict_one(MaxmemoryPolicy::AllkeysLru, 100).is_some());
        assert!(world.read("b"));
        assert!(world.db.evict_one(MaxmemoryPolicy::AllkeysLru, 100).is_some());
        assert_eq!(world.keys(), ["b"]);
    }

    #[test]
    fn a_candidate_that_became_a_lock_meanwhile_is_spared() {
        let mut world = World::new(MaxmemoryPolicy::AllkeysLru);
        for key in ["a", "b", "c"] {
            world.set(key, None);
        }
        assert!(world.db.evict_one(MaxmemoryPolicy::AllkeysLru, 100).is_some());
        let left = world.keys();
        let fence = world.db.locks.fences.grant();
        let held = Held::new(fence, 0);
        world.db.locks.insert(At::key(DbIndex::ZERO, left[0].as_bytes()), held.clone());
        world.db.locks.insert(At::key(DbIndex::ZERO, left[1].as_bytes()), held);
        assert!(world.db.evict_one(MaxmemoryPolicy::AllkeysLru, 100).is_none());
        assert_eq!(world.keys(), left);
    }

    #[test]
    fn blessed_keys_stay_under_each_policy_for_as_long_as_they_exist() {
        for policy in [
            MaxmemoryPolicy::AllkeysLru,
            MaxmemoryPolicy::AllkeysLfu,
            MaxmemoryPolicy::AllkeysRandom,
            MaxmemoryPolicy::VolatileRandom,
            MaxmemoryPolicy::VolatileTtl,
        ] {
            let mut world = World::new(policy);
            for key in ["a", "b", "blessed", "c", "moved", "new"] {
                world.set(key, Some(DAY_MS));
            }
            for key in ["blessed", "moved", "new"] {
                let slot = world.db.find(world.db.key(key.as_bytes())).expect("it was set");
                world.db.set_blessed(slot, true);
                assert_eq!(world.db.idle_seconds(world.db.entry(slot).access()), 0);
            }
            // Neither a read nor another value nor a name ends it; a key of the same name is new.
            world.pass_seconds(DAY_MS / 2000);
            assert!(world.read("blessed"));
            world.set("blessed", Some(DAY_MS));
            let (from, to) = (world.db.key(b"moved"), world.db.key(b"here"));
            assert!(world.db.transfer(from, DbIndex::ZERO, to));
            let key = world.db.key(b"new");
            let slot = world.db.find(key).expect("it was set");
            world.db.delete_at(slot, key, "del");
            world.set("new", Some(DAY_MS));
            for _ in 0..4 {
                assert!(world.db.evict_one(policy, 5).is_some(), "{policy:?}");
            }
            assert!(world.db.evict_one(policy, 5).is_none(), "{policy:?}");
            assert_eq!(world.keys(), ["blessed", "here"], "{policy:?}");
            let slot = world.db.find(world.db.key(b"here")).expect("it was moved");
            world.db.set_blessed(slot, false);
            assert!(world.db.evict_one(policy, 5).is_some(), "{policy:?}");
            assert_eq!(world.keys(), ["blessed"], "{policy:?}");
        }
    }

    #[test]
    fn no_clock_blesses_a_key() {
        for policy in [MaxmemoryPolicy::AllkeysLru, MaxmemoryPolicy::AllkeysLfu] {
            let mut world = World::new(policy);
            let (minutes, seconds) = (1 << 16, 1 << 24);
            let now = world.db.now().unix_seconds();
            let last = match policy.is_lfu() {
                true => minutes * 60 - now.rem_euclid(minutes * 60) - 30,
                false => seconds - now.rem_euclid(seconds) - 1,
            };
            world.pass_seconds(last);
            world.set("k", None);
            let slot = world.db.find(world.db.key(b"k")).expect("it was set");
            assert!(!world.db.is_blessed(slot), "{policy:?}");
            for accessed in [Accessed::Frequency(255), Accessed::SecondsAgo(0)] {
                world.db.set_accessed(slot, accessed);
                assert!(!world.db.is_blessed(slot), "{policy:?}");
            }
            assert!(world.read("k") && !world.db.is_blessed(slot), "{policy:?}");
        }
    }

    #[test]
    fn the_key_changed_longest_ago_goes_first_however_often_it_is_read() {
        let mut world = World::new(MaxmemoryPolicy::AllkeysLrm);
        for key in ["read", "written", "later"] {
            world.set(key, None);
            world.pass_seconds(1);
        }
        world.db.set_string(world.db.key(b"written"), b"w", Expiry::Keep);
        world.db.changed(KeyspaceEvents::STRING, "set", b"written");
        world.pass_seconds(1);
        assert!(world.read("read"));
        for left in [vec!["later", "written"], vec!["written"]] {
            assert!(world.db.evict_one(MaxmemoryPolicy::AllkeysLrm, 100).is_some());
            assert_eq!(world.keys(), left);
        }
    }

    #[test]
    fn the_key_used_least_often_goes_first() {
        let mut world = World::new(MaxmemoryPolicy::AllkeysLfu);
        for key in ["often", "once", "sometimes"] {
            world.set(key, None);
        }
        (0..1000).for_each(|_| assert!(world.read("often")));
        (0..30).for_each(|_| assert!(world.read("sometimes")));
        assert!(world.db.evict_one(MaxmemoryPolicy::AllkeysLfu, 100).is_some());
        assert!(world.db.evict_one(MaxmemoryPolicy::AllkeysLfu, 100).is_some());
        assert_eq!(world.keys(), ["often"]);
    }

    #[test]
    fn the_nearest_deadline_goes_first_and_others_stay() {
        let mut world = World::new(MaxmemoryPolicy::VolatileTtl);
        world.set("forever", None);
        world.set("day", Some(DAY_MS));
        world.set("minute", Some(60_000));
        world.set("hour", Some(3_600_000));
        for left in [vec!["day", "forever", "hour"], vec!["day", "forever"], vec!["forever"]] {
            assert!(world.db.evict_one(MaxmemoryPolicy::VolatileTtl, 100).is_some());
            assert_eq!(world.keys(), left);
        }
        assert!(world.db.evict_one(MaxmemoryPolicy::VolatileTtl, 100).is_none());
    }

    #[test]
    fn a_key_past_its_deadline_goes_as_expired() {
        let mut world = World::new(MaxmemoryPolicy::AllkeysRandom);
        world.set("due", Some(1000));
        world.pass_seconds(2);
        assert!(world.db.evict_one(MaxmemoryPolicy::AllkeysRandom, 5).is_some());
        assert_eq!((world.db.stats.evicted, world.db.stats.expired), (0, 1));
    }

    #[test]
    fn few_samples_come_close_to_the_true_order() {
        let mut world = World::new(MaxmemoryPolicy::AllkeysLru);
        for index in 0..1000 {
            world.set(&format!("{index:04}"), None);
            world.pass_seconds(1);
        }
        for _ in 0..500 {
            assert!(world.db.evict_one(MaxmemoryPolicy::AllkeysLru, 5).is_some());
        }
        let younger = world.keys().iter().filter(|key| key.as_str() >= "0500").count();
        assert!(younger > 400, "of the younger half only {younger} of 500 are left");
    }

    fn policy() -> impl Strategy<Value = MaxmemoryPolicy> {
        use MaxmemoryPolicy::*;
        prop::sample::select(vec![
            VolatileLru,
            VolatileLfu,
            VolatileRandom,
            VolatileTtl,
            AllkeysLru,
            AllkeysLfu,
            AllkeysRandom,
            NoEviction,
        ])
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        #[test]
        fn all_that_may_go_goes_and_nothing_else(
            policy in policy(),
            keys in prop::collection::vec((0..3usize, any::<bool>()), 0..200),
            samples in 1..8usize,
        ) {
            let mut world = World::new(policy);
            for (index, &(database, volatile)) in keys.iter().enumerate() {
                world.db.select(DbIndex::new(database));
                world.set(&index.to_string(), volatile.then_some(DAY_MS));
            }
            world.db.select(DbIndex::new(1));
            let may_go = keys.iter().filter(|(_, volatile)| match policy {
                MaxmemoryPolicy::NoEviction => false,
                _ => *volatile || !policy.is_volatile(),
            });
            for _ in 0..may_go.count() {
                prop_assert!(world.db.evict_one(policy, samples).is_some());
            }
            prop_assert!(world.db.evict_one(policy, samples).is_none());
            prop_assert_eq!(world.db.selected(), DbIndex::new(1));
        }
    }
}
