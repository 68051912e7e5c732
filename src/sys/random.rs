//! Unpredictable random numbers, from the system's random source: for the keys' hash, run and
//! replication IDs, and names of temporary files.
//!
//! Choices that only must be fair (RANDOMKEY, SPOP, eviction samples) use `fastrand`, which is fast
//! but predictable from some of its numbers. Neither is derived from the other: `fastrand` is
//! seeded from here, and `tests/tidy.rs` lists the uses of each.

use std::cell::Cell;
use std::io;

thread_local! {
    /// Set by a simulation; None: the system's source is used.
    static REPEATED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Checks the system's random source. Errors: there is none, or it fails; the server must not start
/// then.
pub fn check() -> io::Result<()> {
    Ok(getrandom::fill(&mut [0; 8])?)
}

/// 64 random bits. Panics if the source, checked at the start by [`check`], fails: a predictable
/// number would be worse.
pub fn number() -> u64 {
    if let Some(state) = REPEATED.get() {
        return next_repeated(state);
    }
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).expect("the system's random source answers as it did at the start");
    u64::from_le_bytes(bytes)
}

/// For reproducible simulations: all further numbers of this thread, including `fastrand`'s, follow
/// from a seed. `tests/tidy.rs` ensures that the server itself never calls this.
pub fn repeat_from(seed: u64) {
    REPEATED.set(Some(seed));
    fastrand::seed(seed);
}

/// SplitMix64.
fn next_repeated(state: u64) -> u64 {
    let state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    REPEATED.set(Some(state));
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// 40 random hexadecimal digits, for run and replication IDs.
pub fn hex_id() -> String {
    let digits: String = (0..3).map(|_| format!("{:016x}", number())).collect();
    digits[..40].to_owned()
}

/// Seeds this thread's `fastrand` unpredictably: its own seed comes from a clock and the thread's
/// number.
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
    fn a_simulation_draws_the_same_numbers_again_and_its_thread_alone() {
        let drawn = || {
            repeat_from(7);
            (number(), number(), hex_id(), fastrand::u64(..))
        };
        let (first, second) = std::thread::spawn(move || (drawn(), drawn())).join().unwrap();
        assert_eq!(first, second);
        assert_ne!(first.0, first.1);
        assert_ne!(number(), first.0);
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
