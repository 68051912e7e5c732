//! Fences: the numbers of grants.

/// Fences below 2^53, which every client's numbers can represent: an epoch of 32 bits and a count
/// of 21 bits.
const COUNT_BITS: u32 = 21;
const TEN_YEARS_SECONDS: u64 = 10 * 366 * 24 * 3600;

/// The source of fences: numbers that grow with each grant.
///
/// A fence is an epoch and a count within it, which carries into the epoch. Each gain of authority
/// (a start, a promotion) begins a new epoch: later than all known epochs, and not before the wall
/// clock's seconds.
#[derive(Clone, Debug, Default)]
pub struct Fences {
    last: u64,
    /// Whether `last` was granted, here or elsewhere. If not, it is the beginning of an epoch.
    is_used: bool,
    /// Greater fences cannot have been granted by any server: they are ten years ahead of the
    /// clock.
    ceiling: u64,
}

impl Fences {
    /// Begins an epoch at a time in Unix seconds.
    pub fn begin_epoch(&mut self, unix_seconds: i64) {
        let epoch = ((self.last >> COUNT_BITS) + 1).max(unix_seconds.max(0) as u64);
        self.last = epoch << COUNT_BITS;
        self.ceiling = (unix_seconds.max(0) as u64 + TEN_YEARS_SECONDS).max(epoch) << COUNT_BITS;
    }

    /// Begins the epoch of a time in Unix seconds, unless the present one is not earlier. Locks
    /// that come from another server, whose epoch is as old as its authority, then get greater
    /// fences.
    pub fn renew_epoch(&mut self, unix_seconds: i64) {
        self.last = self.last.max((unix_seconds.max(0) as u64) << COUNT_BITS);
    }

    /// The fence of the next grant.
    pub fn grant(&mut self) -> u64 {
        self.is_used = true;
        self.last += 1;
        self.last
    }

    /// Learns of a fence that was granted elsewhere or earlier.
    pub fn learn(&mut self, fence: u64) {
        // Ignore a fence that no server can have granted.
        if fence < self.ceiling.min(1 << 53) {
            self.is_used |= fence > 0;
            self.last = self.last.max(fence);
        }
    }

    /// Whether a lock was ever granted.
    pub fn is_used(&self) -> bool {
        self.is_used
    }

    /// The last fence granted or learnt.
    pub fn last(&self) -> u64 {
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fences_grow_when_slots_come_from_a_server_that_was_started_later() {
        let (mut source, mut target) = (Fences::default(), Fences::default());
        target.begin_epoch(1_700_000_000);
        source.begin_epoch(1_700_000_050);
        let first = source.grant();
        target.renew_epoch(1_700_000_060);
        let second = target.grant();
        assert!(second > first);
        target.renew_epoch(1_700_000_060);
        assert_eq!(target.grant(), second + 1);
        // The clock was set back.
        target.renew_epoch(-1);
        assert_eq!(target.grant(), second + 2);
    }

    #[test]
    fn fences_grow_over_epochs_and_clocks_that_are_set_back() {
        let mut fences = Fences::default();
        fences.begin_epoch(1_700_000_000);
        let first = fences.grant();
        assert_eq!(first, (1_700_000_000 << COUNT_BITS) + 1);
        assert_eq!(fences.grant(), first + 1);
        fences.begin_epoch(1_600_000_000);
        assert_eq!(fences.grant() >> COUNT_BITS, 1_700_000_001);
        fences.learn(1_800_000_000 << COUNT_BITS);
        assert_eq!(fences.grant(), (1_800_000_000 << COUNT_BITS) + 1);
        fences.learn(u64::MAX);
        fences.learn((1 << 53) - 1);
        fences.learn(5);
        assert_eq!(fences.grant(), (1_800_000_000 << COUNT_BITS) + 2);
        fences.last = (7 << COUNT_BITS) - 1;
        assert_eq!(fences.grant(), 7 << COUNT_BITS);
    }
}
