//! Calls, time and latency of each command.

/// A command's counters.
#[derive(Debug, Default)]
pub struct CommandStats {
    pub calls: u64,
    pub nanoseconds: u64,
    /// Refused before they ran.
    pub rejected: u64,
    /// Ran and answered with an error.
    pub failed: u64,
    /// Were added to the slow log.
    pub slow: u32,
    pub histogram: Option<Box<Histogram>>,
}

/// Latencies in log-linear buckets: 32 to each power of two, so that a percentile is right to 3%.
/// Unit: nanoseconds.
#[derive(Debug)]
pub struct Histogram {
    counts: [u64; BUCKETS],
}

const SUB_BITS: u32 = 5;
/// Values of 2^30 ns (1.07 s) and more fall into the last bucket, as in Redis.
const MAX_BITS: u32 = 30;
const BUCKETS: usize = ((MAX_BITS - SUB_BITS + 1) << SUB_BITS) as usize;

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: [0; BUCKETS] }
    }
}

impl Histogram {
    /// Counts one value.
    #[inline]
    pub fn record(&mut self, nanoseconds: u64) {
        self.counts[Self::bucket(nanoseconds)] += 1;
    }

    #[inline]
    fn bucket(value: u64) -> usize {
        let bits = 64 - (value | 1).leading_zeros();
        if bits > MAX_BITS {
            return BUCKETS - 1;
        }
        if bits <= SUB_BITS {
            return value as usize;
        }
        let shift = bits - SUB_BITS - 1;
        // The leading bit is implied: bucket group (shift + 1), position (the next five bits).
        (((shift + 1) << SUB_BITS) + ((value >> shift) as u32 & ((1 << SUB_BITS) - 1))) as usize
    }

    /// The largest value of a bucket.
    fn upper(bucket: usize) -> u64 {
        let group = (bucket >> SUB_BITS) as u32;
        let position = (bucket & ((1 << SUB_BITS) - 1)) as u64;
        if group == 0 {
            return position;
        }
        let shift = group - 1;
        (((1 << SUB_BITS) + position + 1) << shift) - 1
    }

    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The value that `percent` of all values do not exceed. Unit: nanoseconds; 0 if there are
    /// none.
    pub fn percentile(&self, percent: f64) -> u64 {
        let total = self.total();
        if total == 0 {
            return 0;
        }
        let wanted = ((percent / 100.0 * total as f64) + 0.5).max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return Self::upper(bucket);
            }
        }
        Self::upper(BUCKETS - 1)
    }

    /// As [`Self::percentile`], for several, in one pass over the buckets.
    pub fn percentiles(&self, percents: &[f64]) -> Vec<u64> {
        let total = self.total();
        let wanted = |percent: f64| ((percent / 100.0 * total as f64) + 0.5).max(1.0) as u64;
        let mut values =
            vec![if total == 0 { 0 } else { Self::upper(BUCKETS - 1) }; percents.len()];
        let mut left: Vec<usize> = (0..if total == 0 { 0 } else { percents.len() }).collect();
        left.sort_unstable_by_key(|&index| std::cmp::Reverse(wanted(percents[index])));
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            while let Some(&index) = left.last()
                && seen >= wanted(percents[index])
            {
                values[index] = Self::upper(bucket);
                left.pop();
            }
            if left.is_empty() {
                break;
            }
        }
        values
    }

    /// Number of values up to `limit` nanoseconds, to the precision of a bucket.
    pub fn at_most(&self, limit: u64) -> u64 {
        self.counts
            .iter()
            .enumerate()
            .filter(|(b, _)| Self::upper(*b) <= limit)
            .map(|(_, c)| c)
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_falls_into_a_bucket_that_holds_it() {
        let mut below = 0;
        for bucket in 0..BUCKETS {
            let upper = Histogram::upper(bucket);
            assert_eq!(Histogram::bucket(upper), bucket, "upper end of {bucket}");
            assert_eq!(Histogram::bucket(below), bucket, "lower end of {bucket}");
            below = upper + 1;
        }
        assert_eq!(below, 1 << MAX_BITS);
        assert_eq!(Histogram::bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles_are_right_to_three_percent() {
        let mut histogram = Histogram::default();
        for value in 1..=100_000 {
            histogram.record(value);
        }
        for (percent, exact) in [(50.0, 50_000.0), (99.0, 99_000.0), (99.9, 99_900.0)] {
            let got = histogram.percentile(percent) as f64;
            assert!((got / exact - 1.0).abs() < 0.04, "p{percent}: {got}");
        }
        let percents = [99.0, 50.0, 100.0, 0.0, 99.9];
        let each = percents.map(|percent| histogram.percentile(percent));
        assert_eq!(histogram.percentiles(&percents), each);
        assert_eq!(Histogram::default().percentiles(&percents), [0; 5]);
    }
}
