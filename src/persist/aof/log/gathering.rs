//! Group commit: the time that a sync waits for the writers released by the previous sync.
//!
//! Most of them send their next write at once. A sync that begins before their writes arrive serves
//! only the writers that wrote during the previous sync. Then two halves of the writers take turns,
//! each sync serves one half, and each writer waits for two syncs. A short wait lets one sync serve
//! all. If the writers do not come back, waits become rarer.

/// No sync waits longer than this. Unit: microseconds.
const WAIT_MAX_US: i64 = 2_000;
/// The most syncs in a row that begin at once after waits in vain.
const SKIPS_MAX: u32 = 63;

#[derive(Debug, Default)]
pub(super) struct Gathering {
    /// Units that are durable.
    synced: u64,
    /// The next sync waits until this number of units is written. 0: it does not wait.
    wanted: u64,
    /// The end of that wait, in microseconds.
    until_us: i64,
    /// The number of syncs that begin at once after the last wait in vain; `skips_left` of them
    /// remain.
    skips: u32,
    skips_left: u32,
}

impl Gathering {
    /// Notes a finished sync. It took `took_us`; `synced` units are durable in total, and `written`
    /// units are written in total.
    pub(super) fn sync_ended(&mut self, synced: u64, written: u64, took_us: i64, now_us: i64) {
        let released = synced.saturating_sub(self.synced);
        self.synced = synced;
        self.wanted = 0;
        if self.skips_left > 0 {
            self.skips_left -= 1;
        } else {
            // The last eighth of the writers is not worth a wait.
            self.wanted = written.max(synced) + released - released / 8;
            self.until_us = now_us + took_us.min(WAIT_MAX_US);
        }
    }

    /// The number of units to wait for, or 0.
    pub(super) fn wanted(&self) -> u64 {
        self.wanted
    }

    /// The time to wait before the sync of `written` units, in microseconds. None: it begins now.
    pub(super) fn wait_us(&mut self, written: u64, now_us: i64) -> Option<i64> {
        if written < self.wanted && now_us < self.until_us {
            return Some(self.until_us - now_us);
        }
        if written < self.wanted {
            self.skips = (2 * self.skips + 1).min(SKIPS_MAX);
            self.skips_left = self.skips;
        } else if self.wanted > 0 {
            self.skips = 0;
        }
        self.wanted = 0;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sync_waits_for_those_that_the_last_one_has_released() {
        let mut gathering = Gathering::default();
        assert_eq!(gathering.wait_us(1, 0), None, "nobody was released yet");
        // 25 of 50 writers were served; the other 25 wrote during that sync.
        gathering.sync_ended(25, 50, 500, 1_000);
        assert_eq!(gathering.wait_us(50, 1_000), Some(500));
        assert_eq!(gathering.wait_us(60, 1_200), Some(300));
        assert_eq!(gathering.wait_us(72, 1_250), None, "nearly all are there");
    }

    #[test]
    fn a_writer_that_is_alone_does_not_wait() {
        let mut gathering = Gathering::default();
        for count in 1..100 {
            assert_eq!(gathering.wait_us(count, count as i64 * 1_000), None);
            gathering.sync_ended(count, count, 600, count as i64 * 1_000 + 600);
        }
    }

    #[test]
    fn where_nobody_comes_back_waits_become_rare() {
        let mut gathering = Gathering::default();
        let (mut now_us, mut written, mut waits) = (0, 1, 0);
        for _ in 0..1_000 {
            while let Some(wait_us) = gathering.wait_us(written, now_us) {
                waits += 1;
                now_us += wait_us;
            }
            // Each writer writes once, and another one arrives during the sync.
            now_us += 400;
            gathering.sync_ended(written, written + 1, 400, now_us);
            written += 1;
        }
        assert!((10..25).contains(&waits), "{waits}");
    }

    #[test]
    fn no_wait_is_long() {
        let mut gathering = Gathering::default();
        gathering.sync_ended(10, 10, 5_000_000, 0);
        assert_eq!(gathering.wait_us(11, 0), Some(WAIT_MAX_US));
    }
}
