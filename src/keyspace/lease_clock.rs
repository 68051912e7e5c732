//! The clock on which leases of pending entries count: the wall clock as if nobody had set it since
//! the start. Otherwise one step of it would end all leases at once.
//!
//! Files, effects and replies have Unix times.

use super::Keyspace;
use crate::clock::Now;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeaseClock {
    /// How far the wall clock was ahead of the boot-time clock at the start. Unit: microseconds.
    base_us: i64,
    ms: i64,
    /// How far the wall clock has been set forward since.
    shift_ms: i64,
}

impl LeaseClock {
    pub fn new(now: Now) -> Self {
        LeaseClock { base_us: now.wall_us - now.boot_us, ms: now.unix().0, shift_ms: 0 }
    }

    #[inline]
    pub fn set_now(&mut self, now: Now) {
        self.ms = (now.boot_us + self.base_us).div_euclid(1000);
    }

    /// Call this when the wall clock has been set.
    pub fn note_step(&mut self, now: Now) {
        let set_forward_us = now.wall_us - now.boot_us - self.base_us;
        self.shift_ms = (set_forward_us + 500).div_euclid(1000);
    }
}

impl Keyspace {
    /// The present time of this clock, in milliseconds.
    #[inline]
    pub fn lease_ms(&self) -> i64 {
        self.lease_clock.ms
    }

    /// Microseconds until a time of this clock.
    pub fn until_lease_us(&self, at_ms: i64) -> i64 {
        let now_us = self.now.boot_us + self.lease_clock.base_us;
        at_ms.saturating_mul(1000).saturating_sub(now_us)
    }

    /// How far Unix times are ahead of this clock's.
    #[inline]
    pub fn lease_shift_ms(&self) -> i64 {
        self.lease_clock.shift_ms
    }
}
