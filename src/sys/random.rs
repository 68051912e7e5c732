//! Random numbers nobody may guess, from the system's random source: the secret of the keys' hash, run and replication ids,
//! names of temporary files.
//!
//! What only chooses fairly (RANDOMKEY, SPOP, samples for eviction) takes `fastrand`, which is fast and whose next numbers
//! can be computed from some of those it has shown. Nothing of the one comes from the other: `fastrand` is seeded from here,
//! and `tests/tidy.rs` lists who uses it for what.

use std::cell::Cell;
use std::io;

thread_local! {
    /// What a simulation has set; None: the system's source is asked.
    static REPEATED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Whether the system has a random source. Error: it has none, or it fails; nothing may be served then.
pub fn check() -> io::Result<()> {
    Ok(getrandom::fill(&mut [0; 8])?)
}

/// 64 random bits. Panics if the source fails that [`check`] has found at the start: a number that can be guessed would be worse.
pub fn number() -> u64 {
    if let Some(state) = REPEATED.get() {
        return next_repeated(state);
    }
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).expect("the system's random source answers as it did at the start");
    u64::from_le_bytes(bytes)
}

/// For a simulation, which is to run the same way again: all numbers that this thread draws from now on follow from a seed, those of
/// statistics too. `tests/tidy.rs` sees to it that the server itself never asks for this.
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
