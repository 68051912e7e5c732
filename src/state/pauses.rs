//! Pauses of clients: CLIENT PAUSE, SHUTDOWN, FAILOVER, CLUSTER FAILOVER, SENTINEL FAILOVER.

use crate::client::ClientId;

/// Why clients are paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseCause {
    /// CLIENT PAUSE
    Asked,
    /// SHUTDOWN waits for replicas.
    Shutdown,
    /// FAILOVER waits for a replica.
    Failover,
    /// A replica in the cluster takes over, after it has asked for that by CLUSTER FAILOVER.
    ClusterFailover,
    /// A replica has left, and sentinels may have made it the primary.
    Promotion,
}

impl PauseCause {
    pub const ALL: [PauseCause; 5] = [
        PauseCause::Asked,
        PauseCause::Shutdown,
        PauseCause::Failover,
        PauseCause::ClusterFailover,
        PauseCause::Promotion,
    ];
}

/// The paused commands, and the end of the pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// Boot-time clock, microseconds.
    pub until_us: i64,
    /// Only commands that may write are paused.
    pub writes_only: bool,
}

/// The active pauses, and the clients postponed by them.
#[derive(Debug, Default)]
pub struct Pauses {
    /// Indexed by [`PauseCause`].
    by_cause: [Option<Pause>; PauseCause::ALL.len()],
    /// The strictest of the pauses.
    strictest: Option<Pause>,
    /// Postponed clients, in the order they came.
    pub waiting: Vec<ClientId>,
    /// Clients that were closed during a pause or a script. The grace periods of their sessions
    /// begin after it.
    pub closed: Vec<ClientId>,
}

impl Pauses {
    /// The strictest of all pauses. Among equally strict ones, the one with the latest end.
    #[inline]
    pub fn strictest(&self) -> Option<Pause> {
        self.strictest
    }

    /// The pause of a single cause.
    pub fn by(&self, cause: PauseCause) -> Option<Pause> {
        self.by_cause[cause as usize]
    }

    /// For [`State::set_pause`](super::State::set_pause), which also recomputes the gate.
    pub(super) fn set(&mut self, cause: PauseCause, pause: Option<Pause>) {
        self.by_cause[cause as usize] = pause;
        let on = || self.by_cause.iter().flatten();
        let writes_only = on().all(|pause| pause.writes_only);
        let strict = on().filter(|pause| pause.writes_only == writes_only);
        self.strictest = strict.max_by_key(|pause| pause.until_us).copied();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_of_any_cause_counts_until_its_own_end() {
        let pause = |until_us, writes_only| Some(Pause { until_us, writes_only });
        for cause in PauseCause::ALL {
            for other in PauseCause::ALL.into_iter().filter(|&other| other != cause) {
                let mut pauses = Pauses::default();
                pauses.set(cause, pause(2, true));
                assert_eq!(pauses.strictest(), pause(2, true), "{cause:?}");
                pauses.set(other, pause(1, false));
                assert_eq!(pauses.strictest(), pause(1, false), "{cause:?} and {other:?}");
                pauses.set(other, pause(3, true));
                assert_eq!(pauses.strictest(), pause(3, true), "{cause:?} and {other:?}");
                pauses.set(other, None);
                assert_eq!(pauses.strictest(), pause(2, true), "{cause:?} after {other:?}");
                pauses.set(cause, None);
                assert_eq!(pauses.strictest(), None, "{cause:?}");
            }
        }
    }
}
