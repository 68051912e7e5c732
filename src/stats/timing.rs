//! Durations of commands and turns, by the processor's time stamp counter.

use super::histogram::Histogram;
use crate::config::Config;

/// The time stamp counter, and thresholds in its ticks: each command costs one reading, each turn
/// two.
pub struct Timing {
    clock: quanta::Clock,
    /// Reading at the end of the previous command.
    last: u64,
    /// Ticks of all commands; commands within a script count once.
    command_ticks: u64,
    /// Reading after the loop's wait for events.
    turn_begun: u64,
    /// Turns that have ended, and their ticks without the wait for events.
    turns: u64,
    turn_ticks: u64,
    last_turn_ticks: u64,
    /// The longest turn since the last call of [`Timing::take_longest_turn_us`].
    longest_turn_ticks: u64,
    turn_times: Histogram,
    /// Ticks from which a command may go to the slow log or latency monitor. u64::MAX: both are
    /// off.
    notable_ns: u64,
    /// Bytes of arguments or of a reply from which a command may go to the command log.
    notable_bytes: usize,
    /// Whether every command is notable: somebody asks for hot keys.
    watches_all: bool,
}

/// The beginning of a command that runs others: see [`Timing::go_back`].
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    /// Reading at its beginning.
    begun: u64,
    /// Ticks of all commands before it.
    command_ticks: u64,
}

/// The largest part of a request that is neither argument nor between arguments, in bytes.
const REQUEST_FRAME_MAX: usize = 64;

impl Timing {
    pub fn new(clock: quanta::Clock) -> Self {
        Timing {
            clock,
            last: 0,
            command_ticks: 0,
            turn_begun: 0,
            turns: 0,
            turn_ticks: 0,
            last_turn_ticks: 0,
            longest_turn_ticks: 0,
            turn_times: Histogram::default(),
            notable_ns: u64::MAX,
            notable_bytes: usize::MAX,
            watches_all: false,
        }
    }

    /// Starts a turn, after the wait for events.
    pub fn begin_turn(&mut self) {
        self.turn_begun = self.clock.raw();
    }

    /// Ends a turn, before the wait for events.
    pub fn end_turn(&mut self) {
        self.turns += 1;
        let ticks = self.clock.raw().saturating_sub(self.turn_begun);
        self.turn_ticks += ticks;
        self.last_turn_ticks = ticks;
        self.longest_turn_ticks = self.longest_turn_ticks.max(ticks);
        self.turn_times.record_us(self.clock.delta_as_nanos(0, ticks) / 1000);
    }

    /// Microseconds of the last turn, without the wait for events.
    pub fn last_turn_us(&self) -> u64 {
        self.clock.delta_as_nanos(0, self.last_turn_ticks) / 1000
    }

    /// Microseconds of the longest turn since the last call, without the wait for events.
    pub fn take_longest_turn_us(&mut self) -> u64 {
        self.clock.delta_as_nanos(0, std::mem::take(&mut self.longest_turn_ticks)) / 1000
    }

    /// Number of ended turns.
    pub fn turns(&self) -> u64 {
        self.turns
    }

    /// Microseconds of all turns, without the wait for events.
    pub fn turns_us(&self) -> u64 {
        self.clock.delta_as_nanos(0, self.turn_ticks) / 1000
    }

    /// The durations of turns, without the wait for events.
    pub fn turn_times(&self) -> &Histogram {
        &self.turn_times
    }

    /// Microseconds of all commands; those called by a script are part of it.
    pub fn commands_us(&self) -> u64 {
        self.clock.delta_as_nanos(0, self.command_ticks) / 1000
    }

    /// Resets the sums.
    pub fn reset(&mut self) {
        (self.turns, self.turn_ticks, self.command_ticks) = (0, 0, 0);
        self.turn_times = Histogram::default();
    }

    /// Starts the next command's time.
    #[inline]
    pub fn start(&mut self) {
        self.last = self.clock.raw();
    }

    /// The running command's start, for [`Timing::go_back`].
    pub fn mark(&self) -> Mark {
        Mark { begun: self.last, command_ticks: self.command_ticks }
    }

    /// Makes the next lap count from a mark: for a command that has run others, whose times are a
    /// part of its own.
    pub fn go_back(&mut self, mark: Mark) {
        self.last = mark.begun;
        // A command in between may have reset the sum.
        self.command_ticks = self.command_ticks.min(mark.command_ticks);
    }

    /// Nanoseconds from a mark to now.
    pub fn since(&self, mark: Mark) -> u64 {
        self.clock.delta_as_nanos(mark.begun, self.clock.raw())
    }

    /// Nanoseconds since the start or the last lap.
    #[inline]
    pub fn lap(&mut self) -> u64 {
        let before = std::mem::replace(&mut self.last, self.clock.raw());
        self.command_ticks += self.last.saturating_sub(before);
        self.clock.delta_as_nanos(before, self.last)
    }

    /// Whether a duration reaches a threshold.
    #[inline]
    pub fn is_notable(&self, nanoseconds: u64) -> bool {
        nanoseconds >= self.notable_ns
    }

    /// Whether this many bytes of arguments or of a reply reach a threshold.
    #[inline]
    pub fn is_large(&self, bytes: usize) -> bool {
        bytes >= self.notable_bytes
    }

    /// Sets whether every command is notable.
    pub fn watch_all(&mut self, watches_all: bool, config: &Config) {
        self.watches_all = watches_all;
        self.set_thresholds(config);
    }

    /// Sets the thresholds of the command log, the latency monitor and the costs of slots.
    pub fn set_thresholds(&mut self, config: &Config) {
        let slow = u64::try_from(config.slowlog_log_slower_than);
        let slow = slow.map_or(u64::MAX, |us| us.saturating_mul(1000));
        let latency = match u64::try_from(config.latency_monitor_threshold) {
            Ok(0) | Err(_) => u64::MAX,
            Ok(ms) => ms.saturating_mul(1_000_000),
        };
        // While the costs of slots or keys are counted, every command counts as notable.
        let are_slots_counted = config.cluster_enabled && config.cluster_slot_stats_enabled;
        let is_each = are_slots_counted || self.watches_all;
        self.notable_ns = if is_each { 0 } else { slow.min(latency) };
        let bytes = |threshold| usize::try_from(threshold).unwrap_or(usize::MAX);
        let request = bytes(config.commandlog_request_larger_than);
        let request = request.saturating_sub(REQUEST_FRAME_MAX);
        self.notable_bytes = request.min(bytes(config.commandlog_reply_larger_than));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_script_calls_is_counted_once_and_waiting_not_at_all() {
        let (clock, mock) = quanta::Clock::mock();
        let mut timing = Timing::new(clock);
        mock.increment(5_000u64);
        timing.begin_turn();
        timing.start();
        mock.increment(10_000u64);
        assert_eq!(timing.lap(), 10_000);
        // A script that calls two commands and takes a while itself.
        let begun = timing.mark();
        for _ in 0..2 {
            mock.increment(3_000u64);
            timing.start();
            mock.increment(20_000u64);
            assert_eq!(timing.lap(), 20_000);
        }
        timing.go_back(begun);
        mock.increment(5_000u64);
        assert_eq!(timing.lap(), 51_000);
        mock.increment(7_000u64);
        timing.end_turn();
        assert_eq!((timing.turns(), timing.turns_us(), timing.commands_us()), (1, 68, 61));
        timing.reset();
        assert_eq!((timing.turns(), timing.turns_us(), timing.commands_us()), (0, 0, 0));
    }
}
