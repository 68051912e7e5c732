//! Figures of the last ten minutes, second by second.

use std::collections::VecDeque;

/// Seconds that are kept.
const SECONDS_MAX: usize = 600;
const SECOND_US: i64 = 1_000_000;

/// The figures of a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Second {
    /// Its end: wall clock, Unix milliseconds.
    pub at_ms: i64,
    /// Commands per second.
    pub commands: u64,
    /// The longest turn of the loop. Unit: microseconds.
    pub longest_turn_us: u64,
    /// Bytes in use.
    pub memory: usize,
    /// Waits for locks and permits.
    pub waits: usize,
    /// The lag of the replica that is last, or of this one. None: there is no replica.
    pub lag_seconds: Option<i64>,
}

/// The last ten minutes.
#[derive(Debug, Default)]
pub struct History {
    seconds: VecDeque<Second>,
    /// Boot-time clock, microseconds, at the last one's end, and all commands until then.
    last_us: i64,
    commands: u64,
}

impl History {
    /// Whether a second has passed since the last one.
    pub fn is_due(&self, now_us: i64) -> bool {
        now_us - self.last_us >= SECOND_US
    }

    /// Adds a second, given the boot-time clock in microseconds and the number of all commands.
    pub fn add(&mut self, now_us: i64, commands: u64, second: Second) {
        let elapsed_us = (now_us - self.last_us).max(1) as u64;
        let made = commands.saturating_sub(self.commands);
        let is_first = self.last_us == 0;
        (self.last_us, self.commands) = (now_us, commands);
        if is_first {
            return;
        }
        if self.seconds.len() == SECONDS_MAX {
            self.seconds.pop_front();
        }
        let commands = made.saturating_mul(SECOND_US as u64) / elapsed_us;
        self.seconds.push_back(Second { commands, ..second });
    }

    /// The seconds that ended after a time, Unix milliseconds.
    pub fn after(&self, at_ms: i64) -> impl Iterator<Item = &Second> + Clone {
        self.seconds.iter().filter(move |second| second.at_ms > at_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ten_minutes_are_kept_and_commands_count_per_second() {
        let mut history = History::default();
        assert!(history.is_due(SECOND_US));
        for number in 1..=700 {
            let now_us = number * SECOND_US;
            assert!(history.is_due(now_us) && !history.is_due(now_us - SECOND_US));
            let second = Second { at_ms: number, memory: number as usize, ..Second::default() };
            history.add(now_us, number as u64 * 50, second);
        }
        assert_eq!(history.after(0).count(), SECONDS_MAX);
        assert_eq!(history.after(0).map(|second| second.commands).max(), Some(50));
        let last: Vec<usize> = history.after(698).map(|second| second.memory).collect();
        assert_eq!(last, [699, 700]);
        // The loop stood still for two seconds, and CONFIG RESETSTAT has set the count back.
        history.add(702 * SECOND_US, 100, Second { at_ms: 701, ..Second::default() });
        history.add(704 * SECOND_US, 300, Second { at_ms: 702, ..Second::default() });
        let last: Vec<u64> = history.after(700).map(|second| second.commands).collect();
        assert_eq!(last, [0, 100]);
    }
}
