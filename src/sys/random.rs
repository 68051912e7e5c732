//! Random numbers nobody may guess, from the system's random source: the secret of the keys' hash, run and replication ids,
//! names of temporary files.
//!
//! What only chooses fairly (RANDOMKEY, SPOP, samples for eviction) takes `fastrand`, which is fast and whose next numbers
//! can be computed from some of those it has shown. Nothing of the one comes from the other: `fastrand` is seeded from here,
//! and `tests/tidy.rs` lists who uses it for what.

use std::io;

/// Whether the system has a random source. Error: it has none, or it fails; nothing may be served then.
pub fn check() -> io::Result<()> {
    Ok(getrandom::fill(&mut [0; 8])?)
}

/// 64 random bits. Panics if the source fails that [`check`] has found at the start: a number that can be guessed would be worse.
pub fn number() -> u64 {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).expect("the system's random source answers as it did at the start");
    u64::from_le_bytes(bytes)
}

/// 40 random hexadecimal digits, as run and replication ids are made of.
pub fn hex_id() -> String {
    let digits: String = (0..3).map(|_| format!("{:016x}", number())).collect();
    digits[..40].to_owned()
}

/// Has this thread's `fastrand` begin where nobody can tell: its own seed is made of a clock and the thread's number.
pub fn seed_statistics() {
    fastrand::seed(number());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_here_follows_from_the_seed_of_statistics() {
        let drawn = || {
            fastrand::seed(7);
            (number(), hex_id())
        };
        let (first, second) = (drawn(), drawn());
        assert_ne!(first.0, second.0);
        assert_ne!(first.1, second.1);
        assert!(first.1.len() == 40 && first.1.bytes().all(|digit| digit.is_ascii_hexdigit()));
    }

    #[test]
    fn statistics_begin_elsewhere_each_time() {
        let drawn = || {
            fastrand::seed(7);
            seed_statistics();
            fastrand::u64(..)
        };
        assert_ne!(drawn(), drawn());
    }
}
