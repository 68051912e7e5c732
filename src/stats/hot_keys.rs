//! The keys that take most of the server's time and of the network, while somebody asks for them:
//! HOTKEYS.
//!
//! A ranking knows a bounded number of keys. A further one takes the place of the last key and
//! begins with its sum: so a key that takes a large share is always among those that are shown, and
//! sums may be too high where there are many keys (the algorithm is Space-Saving).

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::collections::hash_slot::HashSlot;
use crate::sys::machine::CpuTimes;

/// Keys that a ranking knows for each that it shows, so that sums are exact for as many.
const KNOWN_FOR_EACH: usize = 64;
/// Longer keys are not ranked: they would be kept. Unit: bytes.
const KEY_BYTES_MAX: usize = 64 << 10;

/// Keys in the order of sums.
#[derive(Debug)]
pub struct Ranking {
    shown: usize,
    sums: HashMap<Arc<[u8]>, u64>,
    order: BTreeSet<(u64, Arc<[u8]>)>,
    total: u64,
}

impl Ranking {
    pub fn new(shown: usize) -> Self {
        Ranking { shown, sums: HashMap::new(), order: BTreeSet::new(), total: 0 }
    }

    fn add(&mut self, key: &[u8], value: u64) {
        self.total += value;
        if key.len() > KEY_BYTES_MAX {
            return;
        }
        let known = self.sums.get_key_value(key).map(|(name, sum)| (name.clone(), *sum));
        let (name, before) = match known {
            Some(known) => {
                self.order.remove(&(known.1, known.0.clone()));
                known
            }
            None if self.sums.len() >= self.shown * KNOWN_FOR_EACH => {
                let last = self.order.pop_first();
                let (sum, last) = last.unwrap_or_default();
                self.sums.remove(&last);
                (key.into(), sum)
            }
            None => (key.into(), 0),
        };
        self.sums.insert(name.clone(), before + value);
        self.order.insert((before + value, name));
    }

    /// The sum over all keys.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The first keys with their sums.
    pub fn first(&self) -> impl ExactSizeIterator<Item = (&[u8], u64)> {
        let count = self.shown.min(self.order.len());
        (0..count).zip(self.order.iter().rev()).map(|(_, (sum, name))| (&**name, *sum))
    }
}

/// Time and bytes of commands.
#[derive(Clone, Copy, Debug, Default)]
pub struct Costs {
    pub nanoseconds: u64,
    /// Bytes of requests and replies.
    pub bytes: u64,
}

impl Costs {
    fn add(&mut self, other: Costs) {
        self.nanoseconds += other.nanoseconds;
        self.bytes += other.bytes;
    }
}

/// What to look for.
#[derive(Clone, Debug)]
pub struct Order {
    pub cpu: bool,
    pub net: bool,
    /// Keys that are shown.
    pub count: usize,
    /// Unit: microseconds; None: until it is stopped.
    pub duration_us: Option<i64>,
    /// One of this number of keys is looked at, by chance.
    pub ratio: u64,
    /// The slots whose keys are looked at, in order; None: all.
    pub slots: Option<Vec<HashSlot>>,
}

/// A time at which the server looks at its keys.
#[derive(Debug)]
pub struct HotKeys {
    pub order: Order,
    /// In nanoseconds.
    pub cpu: Option<Ranking>,
    /// In bytes.
    pub net: Option<Ranking>,
    /// Unix milliseconds.
    pub begun_ms: i64,
    /// Boot-time clock, microseconds.
    begun_us: i64,
    ended_us: Option<i64>,
    pub begun_cpu: CpuTimes,
    pub ended_cpu: Option<CpuTimes>,
    /// Of all commands with keys, of those with keys in the slots, and of those that were looked
    /// at.
    pub all: Costs,
    pub selected: Costs,
    pub sampled: Costs,
}

impl HotKeys {
    pub fn new(order: Order, begun_ms: i64, begun_us: i64, begun_cpu: CpuTimes) -> Self {
        HotKeys {
            cpu: order.cpu.then(|| Ranking::new(order.count)),
            net: order.net.then(|| Ranking::new(order.count)),
            order,
            begun_ms,
            begun_us,
            ended_us: None,
            begun_cpu,
            ended_cpu: None,
            all: Costs::default(),
            selected: Costs::default(),
            sampled: Costs::default(),
        }
    }

    /// When it ends by itself, or has ended.
    fn end_us(&self) -> Option<i64> {
        let by_itself = self.order.duration_us.map(|duration| self.begun_us + duration);
        self.ended_us.or(by_itself)
    }

    /// Whether it has not ended.
    pub fn is_active(&self, now_us: i64) -> bool {
        self.end_us().is_none_or(|end| now_us < end)
    }

    /// Ends it, unless it has ended.
    pub fn end(&mut self, now_us: i64, now_cpu: CpuTimes) {
        self.ended_us = Some(self.end_us().unwrap_or(now_us).min(now_us));
        self.ended_cpu.get_or_insert(now_cpu);
    }

    pub fn duration_us(&self, now_us: i64) -> i64 {
        self.end_us().unwrap_or(now_us).min(now_us) - self.begun_us
    }

    /// Adds a command's costs, divided among its keys.
    pub fn add<'k>(&mut self, costs: Costs, keys: impl ExactSizeIterator<Item = &'k [u8]> + Clone) {
        let count = keys.len() as u64;
        let each = Costs {
            nanoseconds: costs.nanoseconds / count.max(1),
            bytes: costs.bytes / count.max(1),
        };
        let is_selected = |key: &[u8]| match &self.order.slots {
            Some(slots) => slots.binary_search(&HashSlot::of(key)).is_ok(),
            None => true,
        };
        self.all.add(costs);
        if keys.clone().any(is_selected) {
            self.selected.add(costs);
        }
        let ratio = self.order.ratio;
        let is_chosen =
            |key: &[u8]| is_selected(key) && (ratio == 1 || fastrand::u64(..ratio) == 0);
        let chosen: Vec<&[u8]> = keys.filter(|key| is_chosen(key)).collect();
        if !chosen.is_empty() {
            self.sampled.add(costs);
        }
        for key in chosen {
            if let Some(cpu) = &mut self.cpu {
                cpu.add(key, each.nanoseconds);
            }
            if let Some(net) = &mut self.net {
                net.add(key, each.bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_with_a_large_share_is_shown_however_many_others_there_are() {
        let mut ranking = Ranking::new(2);
        let random = &mut fastrand::Rng::with_seed(3);
        for number in 0..100_000u32 {
            match number % 20 {
                0 => ranking.add(b"first", 3),
                1 => ranking.add(b"second", 2),
                _ => ranking.add(&random.u32(..50_000).to_be_bytes(), 1),
            }
            assert!(ranking.sums.len() <= 2 * KNOWN_FOR_EACH);
        }
        let first: Vec<&[u8]> = ranking.first().map(|(key, _)| key).collect();
        assert_eq!(first, [&b"first"[..], b"second"]);
        assert_eq!(ranking.total(), 5_000 * 3 + 5_000 * 2 + 90_000);
    }

    #[test]
    fn sums_are_exact_where_there_are_few_keys() {
        let mut ranking = Ranking::new(3);
        for (key, value) in [("a", 5), ("b", 1), ("a", 2), ("c", 9), ("d", 1), ("b", 3)] {
            ranking.add(key.as_bytes(), value);
        }
        let first: Vec<(&[u8], u64)> = ranking.first().collect();
        assert_eq!(first, [(&b"c"[..], 9), (b"a", 7), (b"b", 4)]);
    }
}
