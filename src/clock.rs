//! The only reader of the time.
//!
//! `Clock::now` reads the clocks once per turn of the loop (and once more per command that asks for
//! it, such as TIME); the result, [`Now`], is passed down, so that time stands still within a
//! command, a script and an EXEC. Tests move a [`ManualClock`] instead of sleeping.
//!
//! Deadlines of relative TTLs (EX, PX, EXPIRE) count on the boot-time clock, absolute ones (EXAT,
//! PEXPIREAT) on the wall clock: a step of the wall clock neither frees a lock early nor keeps it.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::sys::system;

/// The least time between two runs of work that is done each second. An idle server wakes once a
/// second, give or take some milliseconds, and none of these wakes may be too early.
pub const ABOUT_A_SECOND_US: i64 = 950_000;

/// When a part of the server has to run next, on the boot-time clock. The earliest is the least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Due(i64);

impl Due {
    /// There is work that waits for nothing.
    pub const NOW: Self = Due(i64::MIN);
    /// An event will come first.
    pub const NEVER: Self = Due(i64::MAX);

    pub fn now_if(has_work: bool) -> Self {
        if has_work { Due::NOW } else { Due::NEVER }
    }

    /// At this time, if there is one: boot-time clock, microseconds.
    pub fn at(us: impl Into<Option<i64>>) -> Self {
        us.into().map_or(Due::NEVER, Due)
    }

    /// The time left.
    pub fn left(self, now_us: i64) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(now_us)).unwrap_or(0))
    }
}

/// Milliseconds since 1970-01-01 00:00 UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnixMillis(pub i64);

/// The instant after which a key is expired. 64 bits: the highest is the clock (1: boot time, 0:
/// wall), the rest are milliseconds. Made only by [`Now`] (and from another deadline's bits).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline(u64);

const BOOT: u64 = 1 << 63;

impl Deadline {
    /// The bits, as stored in an entry.
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// The deadline with these bits. Any value is valid.
    pub fn from_bits(bits: u64) -> Self {
        Deadline(bits)
    }

    /// Whether it counts on the boot-time clock; on the wall clock otherwise.
    pub fn is_on_boot_clock(self) -> bool {
        self.0 & BOOT != 0
    }

    /// Milliseconds on its clock.
    pub fn ms(self) -> i64 {
        (self.0 & !BOOT) as i64
    }

    /// The deadline in milliseconds of the boot-time clock, given how far the wall clock is ahead
    /// of that.
    pub fn boot_ms(self, wall_offset_ms: i64) -> i64 {
        let ms = (self.0 & !BOOT) as i64;
        if self.0 & BOOT != 0 { ms } else { ms.saturating_sub(wall_offset_ms) }
    }

    /// The deadline as wall-clock time, as in EXPIRETIME and in files. The offset must be the
    /// keyspace's, which only changes with the wall clock: one computed from each reading varies by
    /// a millisecond.
    pub fn unix(self, wall_offset_ms: i64) -> UnixMillis {
        let ms = self.ms();
        UnixMillis(if self.is_on_boot_clock() { ms.saturating_add(wall_offset_ms) } else { ms })
    }
}

/// The effect on a deadline when its value is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    Clear,
    Keep,
    At(Deadline),
}

impl Expiry {
    /// The new deadline. `old` returns the previous one, and is called only if needed.
    #[inline]
    pub fn replacing(self, old: impl FnOnce() -> Option<Deadline>) -> Option<Deadline> {
        match self {
            Expiry::Clear => None,
            Expiry::Keep => old(),
            Expiry::At(deadline) => Some(deadline),
        }
    }
}

/// The server that decides when keys expire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpiryBy {
    /// This one: a key is deleted at its deadline.
    Server,
    /// The primary that this server follows: an expired key stays, hidden, until the primary
    /// deletes it.
    Primary,
    /// The source of an import (`import-mode`): as with a primary, and a deadline in the past may
    /// be set. Nothing is evicted.
    ImportSource,
}

/// One reading of the clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Wall clock, microseconds since 1970.
    pub wall_us: i64,
    /// Boot-time clock, microseconds; it runs while the machine sleeps, and is never set.
    pub boot_us: i64,
    /// No deadline is ever past: see [`crate::keyspace::Keyspace::ignore_deadlines`].
    pub ignores_deadlines: bool,
}

impl Now {
    pub fn unix(&self) -> UnixMillis {
        UnixMillis(self.wall_us.div_euclid(1000))
    }

    pub fn unix_seconds(&self) -> i64 {
        self.wall_us.div_euclid(1_000_000)
    }

    pub fn boot_ms(&self) -> i64 {
        self.boot_us / 1000
    }

    /// How far the wall clock is ahead of the boot-time clock, in milliseconds.
    pub fn wall_offset_ms(&self) -> i64 {
        (self.wall_us - self.boot_us).div_euclid(1000)
    }

    /// As [`Self::wall_offset_ms`], rounded up, so that a deadline sent as a Unix time never comes
    /// earlier at another server: it may be a lock's.
    pub fn shown_offset_ms(&self) -> i64 {
        -(self.boot_us - self.wall_us).div_euclid(1000)
    }

    /// The deadline on the boot-time clock. It comes no earlier than on the wall clock, if nobody
    /// sets that clock.
    pub fn on_boot_clock(&self, deadline: Deadline) -> Deadline {
        Deadline(deadline.boot_ms(self.wall_offset_ms()).max(0) as u64 | BOOT)
    }

    /// The deadline `ms` from now; negative values lie in the past. Saturates.
    pub fn after(&self, ms: i64) -> Deadline {
        Deadline(self.boot_ms().saturating_add(ms).max(0) as u64 | BOOT)
    }

    /// The deadline at a wall-clock time. Times before 1970 count as 1970: both are past.
    pub fn at(&self, when: UnixMillis) -> Deadline {
        Deadline(when.0.max(0) as u64)
    }

    /// Whether a key with this deadline is expired: strictly later, as in Redis, so that rounding
    /// down to milliseconds never ends a lock early.
    pub fn is_past(&self, deadline: Deadline) -> bool {
        self.remaining_ms(deadline) < 0 && !self.ignores_deadlines
    }

    /// Whether a new deadline is due already, so that its key must be deleted at once.
    pub fn has_come(&self, deadline: Deadline) -> bool {
        self.remaining_ms(deadline) <= 0 && !self.ignores_deadlines
    }

    /// Milliseconds left; negative once past.
    pub fn remaining_ms(&self, deadline: Deadline) -> i64 {
        let ms = (deadline.0 & !BOOT) as i64;
        let now = if deadline.0 & BOOT != 0 { self.boot_ms() } else { self.unix().0 };
        ms.saturating_sub(now)
    }
}

/// The source of the time.
#[derive(Clone, Debug)]
pub enum Clock {
    System,
    Manual(ManualClock),
}

/// The function that a simulation runs while a server sleeps for these microseconds.
pub type Pass = fn(&ManualClock, i64);

/// A clock that only tests move. Clones share the time.
#[derive(Clone, Debug)]
pub struct ManualClock {
    time: Arc<ManualTime>,
}

#[derive(Debug)]
struct ManualTime {
    wall_us: AtomicI64,
    boot_us: AtomicI64,
    /// The time by which each reading moves the clock. Unit: microseconds.
    tick_us: AtomicI64,
    /// See [`ManualClock::call_for_sleep`].
    on_sleep: OnceLock<Pass>,
}

impl Clock {
    pub fn now(&self) -> Now {
        match self {
            Clock::System => {
                let wall = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
                Now {
                    wall_us: wall.tv_sec * 1_000_000 + wall.tv_nsec as i64 / 1000,
                    boot_us: system::boot_us(),
                    ignores_deadlines: false,
                }
            }
            Clock::Manual(clock) => clock.read(),
        }
    }

    /// Sleeps, or calls the function that a simulation has set instead.
    pub fn sleep(&self, duration: Duration) {
        match self.simulated() {
            Some((clock, pass)) => pass(clock, duration.as_micros() as i64),
            None => std::thread::sleep(duration),
        }
    }

    /// Whether a simulation lets the time pass.
    pub fn is_simulated(&self) -> bool {
        self.simulated().is_some()
    }

    fn simulated(&self) -> Option<(&ManualClock, Pass)> {
        let Clock::Manual(clock) = self else { return None };
        clock.time.on_sleep.get().map(|&pass| (clock, pass))
    }
}

impl ManualClock {
    /// Wall clock at `start`, boot-time clock at one hour.
    pub fn new(start: UnixMillis) -> Self {
        let time = ManualTime {
            wall_us: AtomicI64::new(start.0 * 1000),
            boot_us: AtomicI64::new(3_600_000_000),
            tick_us: AtomicI64::new(0),
            on_sleep: OnceLock::new(),
        };
        ManualClock { time: Arc::new(time) }
    }

    fn read(&self) -> Now {
        let ManualTime { wall_us, boot_us, tick_us, .. } = &*self.time;
        let tick_us = tick_us.load(Ordering::SeqCst);
        Now {
            wall_us: wall_us.fetch_add(tick_us, Ordering::SeqCst),
            boot_us: boot_us.fetch_add(tick_us, Ordering::SeqCst),
            ignores_deadlines: false,
        }
    }

    /// Makes each reading move the time: for tests of time limits.
    pub fn set_tick_us(&self, us: i64) {
        self.time.tick_us.store(us, Ordering::SeqCst);
    }

    /// Makes a sleep call this instead of waiting, with its length in microseconds: for
    /// simulations.
    pub fn call_for_sleep(&self, pass: Pass) {
        // A clock belongs to one simulation.
        let _ = self.time.on_sleep.set(pass);
    }

    /// The boot-time clock, without moving it. Unit: microseconds.
    pub fn boot_us(&self) -> i64 {
        self.time.boot_us.load(Ordering::SeqCst)
    }

    /// Moves both clocks.
    pub fn advance_us(&self, us: i64) {
        self.time.wall_us.fetch_add(us, Ordering::SeqCst);
        self.time.boot_us.fetch_add(us, Ordering::SeqCst);
    }

    /// Sets the wall clock back or forth.
    pub fn step_wall_us(&self, us: i64) {
        self.time.wall_us.fetch_add(us, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_of_the_wall_clock_moves_only_absolute_deadlines() {
        let manual = ManualClock::new(UnixMillis(1_700_000_000_000));
        let clock = Clock::Manual(manual.clone());
        let now = clock.now();
        let relative = now.after(100);
        let absolute = now.at(UnixMillis(1_700_000_000_100));
        manual.step_wall_us(50_000);
        let now = clock.now();
        assert_eq!(now.remaining_ms(relative), 100);
        assert_eq!(now.remaining_ms(absolute), 50);
        manual.advance_us(100_000);
        assert!(!clock.now().is_past(relative));
        manual.advance_us(1_000);
        assert!(clock.now().is_past(relative));
    }

    #[test]
    fn the_largest_deadlines_saturate() {
        let now =
            Now { wall_us: 1_700_000_000_000_000, boot_us: 5_000_000, ignores_deadlines: false };
        assert!(!now.is_past(now.after(i64::MAX)));
        assert_eq!(now.on_boot_clock(now.at(UnixMillis(1_700_000_000_250))).ms(), 5250);
        assert_eq!(
            now.at(UnixMillis(9_223_372_036_854_770_000)).unix(now.wall_offset_ms()).0,
            9_223_372_036_854_770_000
        );
    }

    #[test]
    fn a_deadline_that_is_told_as_a_unix_time_comes_no_earlier_elsewhere() {
        for (grant_us, offset_us) in [(7_999, 999), (7_000, 1), (7_400, 700), (7_000, 0)] {
            let wall = 1_700_000_000_000_000 + offset_us;
            let at = |boot_us| Now { wall_us: wall + boot_us, boot_us, ignores_deadlines: false };
            let granted = at(grant_us);
            let told = granted.after(20).unix(granted.shown_offset_ms());
            // A server with another boot-time clock, whose wall clock is the same.
            for ahead_us in [0, 1, 300, 999] {
                let elsewhere = |us: i64| Now { boot_us: us + ahead_us, ..at(us) };
                let until = elsewhere(grant_us + 10_000).on_boot_clock(granted.at(told));
                let ends_us = (grant_us..).find(|&us| elsewhere(us).is_past(until));
                let ends_us = ends_us.expect("it ends") - grant_us;
                assert!((20_000..23_000).contains(&ends_us), "{grant_us} {offset_us}: {ends_us}");
                assert!(!elsewhere(grant_us + 20_000).is_past(granted.at(told)));
            }
        }
    }
}
