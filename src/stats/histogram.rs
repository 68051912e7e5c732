//! Durations counted in buckets whose limits are powers of two microseconds: a few instructions
//! each.

/// Limits: 2^4 us = 16 us ... 2^32 us = 72 min, each four times the one before.
const FIRST_BITS: u32 = 4;
const STEP_BITS: u32 = 2;
const BUCKETS: usize = 15;

/// Counts of durations.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    /// The last count: durations longer than the last limit.
    counts: [u64; BUCKETS + 1],
    sum_us: u64,
}

impl Histogram {
    #[inline]
    pub fn record_us(&mut self, us: u64) {
        self.record_many_us(us, 1);
    }

    /// Adds several durations of the same length.
    #[inline]
    pub fn record_many_us(&mut self, us: u64, count: u64) {
        // Bits of the largest number not above the limit's.
        let bits = 64 - us.saturating_sub(1).leading_zeros();
        let bucket = (bits.saturating_sub(FIRST_BITS)).div_ceil(STEP_BITS) as usize;
        self.counts[bucket.min(BUCKETS)] += count;
        self.sum_us = self.sum_us.saturating_add(us.saturating_mul(count));
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub fn sum_us(&self) -> u64 {
        self.sum_us
    }

    /// The least limit within which this part of all durations lies, in microseconds; None: there
    /// are no durations, or they exceed all limits.
    pub fn part_within_us(&self, part: f64) -> Option<u64> {
        let wanted = ((self.count() as f64 * part).ceil() as u64).max(1);
        self.cumulative().find(|(_, count)| *count >= wanted).map(|(limit_us, _)| limit_us)
    }

    /// Each limit in microseconds, with the number of durations up to it.
    pub fn cumulative(&self) -> impl Iterator<Item = (u64, u64)> {
        let mut count = 0;
        (0..BUCKETS).map(move |bucket| {
            count += self.counts[bucket];
            (1 << (FIRST_BITS + STEP_BITS * bucket as u32), count)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_within_the_limit_that_it_does_not_exceed() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.part_within_us(0.5), None);
        [10, 60, 60, 5000].into_iter().for_each(|us| histogram.record_us(us));
        assert_eq!(histogram.part_within_us(0.25), Some(16));
        assert_eq!(histogram.part_within_us(0.5), Some(64));
        assert_eq!(histogram.part_within_us(1.0), Some(16_384));
        histogram.record_us(1 << 50);
        assert_eq!(histogram.part_within_us(1.0), None);
    }

    #[test]
    fn a_duration_counts_up_to_its_limit() {
        for (us, limit) in
            [(0, 16), (1, 16), (16, 16), (17, 64), (64, 64), (65, 256), (1 << 32, 1 << 32)]
        {
            let mut histogram = Histogram::default();
            histogram.record_us(us);
            let first = histogram.cumulative().find(|(_, count)| *count == 1);
            assert_eq!(first, Some((limit, 1)), "{us}");
        }
        let mut histogram = Histogram::default();
        histogram.record_us((1 << 32) + 1);
        assert!(histogram.cumulative().all(|(_, count)| count == 0));
        assert_eq!((histogram.count(), histogram.sum_us()), (1, (1 << 32) + 1));
    }
}
