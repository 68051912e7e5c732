//! How long commands and turns take: one reading of the processor's counter for each.

use crate::config::Config;

/// The processor's time stamp counter and the thresholds in its ticks: each command costs one reading, each turn two.
pub struct Timing {
    clock: quanta::Clock,
    /// Reading at the end of the last command.
    last: u64,
    /// Ticks that commands have taken, those within a script once.
    command_ticks: u64,
    /// Reading when the loop had waited.
    turn_begun: u64,
    /// Turns that have ended, and their ticks without the wait for events.
    turns: u64,
    turn_ticks: u64,
    /// A command that took as many ticks is looked at more closely: slow log or latency monitor. u64::MAX: neither is on.
    notable_ns: u64,
    /// As many bytes of arguments or of a reply may be for the command log.
    notable_bytes: usize,
}

/// Bytes of a request at most that are no arguments nor between them.
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
            notable_ns: u64::MAX,
            notable_bytes: usize::MAX,
        }
    }

    /// The loop has waited; a turn's work begins now.
    pub fn begin_turn(&mut self) {
        self.turn_begun = self.clock.raw();
    }

    /// The turn's work is done.
    pub fn end_turn(&mut self) {
        self.turns += 1;
        self.turn_ticks += self.clock.raw().saturating_sub(self.turn_begun);
    }

    /// Turns that have ended.
    pub fn turns(&self) -> u64 {
        self.turns
    }

    /// Microseconds that the turns took, without the wait for events.
    pub fn turns_us(&self) -> u64 {
        self.clock.delta_as_nanos(0, self.turn_ticks) / 1000
    }

    /// Microseconds that commands took; what a script calls is part of the script.
    pub fn commands_us(&self) -> u64 {
        self.clock.delta_as_nanos(0, self.command_ticks) / 1000
    }

    /// Begins the sums anew.
    pub fn reset(&mut self) {
        (self.turns, self.turn_ticks, self.command_ticks) = (0, 0, 0);
    }

    /// The next command begins now.
    #[inline]
    pub fn start(&mut self) {
        self.last = self.clock.raw();
    }

    /// The beginning of the command that runs, to come back to with [`Timing::go_back`].
    pub fn mark(&self) -> u64 {
        self.last
    }

    /// Has the next lap count from a mark: the command that began there has run others.
    pub fn go_back(&mut self, mark: u64) {
        let nested = self.last.saturating_sub(mark);
        self.command_ticks = self.command_ticks.saturating_sub(nested);
        self.last = mark;
    }

    /// Nanoseconds from a mark to now.
    pub fn since(&self, mark: u64) -> u64 {
        self.clock.delta_as_nanos(mark, self.clock.raw())
    }

    /// Nanoseconds since the start or the last lap.
    #[inline]
    pub fn lap(&mut self) -> u64 {
        let before = std::mem::replace(&mut self.last, self.clock.raw());
        self.command_ticks += self.last.saturating_sub(before);
        self.clock.delta_as_nanos(before, self.last)
    }

    /// Whether a duration is worth a closer look.
    #[inline]
    pub fn is_notable(&self, nanoseconds: u64) -> bool {
        nanoseconds >= self.notable_ns
    }

    /// Whether this many bytes of a request's arguments or of its reply may be worth a closer look.
    #[inline]
    pub fn is_large(&self, bytes: usize) -> bool {
        bytes >= self.notable_bytes
    }

    /// Takes the thresholds of the command log and of the latency monitor.
    pub fn set_thresholds(&mut self, config: &Config) {
        let slow = u64::try_from(config.slowlog_log_slower_than);
        let slow = slow.map_or(u64::MAX, |us| us.saturating_mul(1000));
        let latency = match u64::try_from(config.latency_monitor_threshold) {
            Ok(0) | Err(_) => u64::MAX,
            Ok(ms) => ms.saturating_mul(1_000_000),
        };
        self.notable_ns = slow.min(latency);
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
            mock.increment(20_000u64);
            assert_eq!(timing.lap(), 20_000);
        }
        timing.go_back(begun);
        mock.increment(5_000u64);
        assert_eq!(timing.lap(), 45_000);
        mock.increment(7_000u64);
        timing.end_turn();
        assert_eq!((timing.turns(), timing.turns_us(), timing.commands_us()), (1, 62, 55));
        timing.reset();
        assert_eq!((timing.turns(), timing.turns_us(), timing.commands_us()), (0, 0, 0));
    }
}
