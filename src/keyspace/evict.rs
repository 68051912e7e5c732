//! Access bits (LRU clock or LFU counter) and the choice of keys to evict.

use crate::collections::table::Slot;

use super::Keyspace;

/// The access bits hold 24 bits.
const LRU_MASK: u32 = (1 << 24) - 1;
/// A new key's LFU counter, so that it is not the first to go.
pub const LFU_INITIAL: u32 = 5;

impl Keyspace {
    /// The LRU clock: seconds, 24 bits.
    pub fn lru_clock(&self) -> u32 {
        (self.now.unix_seconds() as u32) & LRU_MASK
    }

    /// The LFU clock: minutes, 16 bits.
    fn lfu_minutes(&self) -> u32 {
        (self.now.unix_seconds() / 60) as u32 & 0xffff
    }

    /// Access bits of a key made now.
    #[inline]
    pub(super) fn fresh_access(&self) -> u32 {
        if self.access.lfu { self.lfu_minutes() << 8 | LFU_INITIAL } else { self.lru_clock() }
    }

    /// Marks that the key at `slot` was used now.
    #[inline]
    pub(super) fn mark_access(&mut self, slot: Slot) {
        if self.no_touch {
            return;
        }
        let access = if self.access.lfu { self.lfu_after_access(slot) } else { self.lru_clock() };
        self.table_mut().set_access(slot, access);
    }

    #[cold]
    fn lfu_after_access(&self, slot: Slot) -> u32 {
        let counter = self.lfu_counter(self.entry(slot).access());
        let counter = lfu_increment(counter, self.access.lfu_log_factor);
        self.lfu_minutes() << 8 | counter
    }

    /// The LFU counter in access bits, less what it lost by time.
    pub fn lfu_counter(&self, access: u32) -> u32 {
        let counter = access & 0xff;
        if self.access.lfu_decay_minutes == 0 {
            return counter;
        }
        let elapsed = self.lfu_minutes().wrapping_sub(access >> 8) & 0xffff;
        counter.saturating_sub(elapsed / self.access.lfu_decay_minutes)
    }

    /// Seconds since the last access, from LRU access bits.
    pub fn idle_seconds(&self, access: u32) -> u32 {
        self.lru_clock().wrapping_sub(access) & LRU_MASK
    }
}

/// Adds one to a logarithmic counter, by chance: the larger it is the less likely.
fn lfu_increment(counter: u32, log_factor: u32) -> u32 {
    if counter >= 255 {
        return 255;
    }
    let base = counter.saturating_sub(LFU_INITIAL) as f64;
    let chance = 1.0 / (base * log_factor as f64 + 1.0);
    if fastrand::f64() < chance { counter + 1 } else { counter }
}
