//! Clients wait while the server asks them to: CLIENT PAUSE, SHUTDOWN, FAILOVER.

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
}

/// Whose requests wait, and until when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// Boot-time clock, microseconds.
    pub until_us: i64,
    /// Only commands that may write wait.
    pub writes_only: bool,
}

/// The pauses that are on, and who waits for their end.
#[derive(Debug, Default)]
pub struct Pauses {
    /// By [`PauseCause`].
    by_cause: [Option<Pause>; 3],
    /// What they come to together.
    strictest: Option<Pause>,
    /// Who waits, in the order they came.
    pub waiting: Vec<ClientId>,
}

impl Pauses {
    /// The strictest of all pauses, and when the last such ends.
    #[inline]
    pub fn strictest(&self) -> Option<Pause> {
        self.strictest
    }

    /// What a single cause asks for.
    pub fn by(&self, cause: PauseCause) -> Option<Pause> {
        self.by_cause[cause as usize]
    }

    /// For [`State::set_pause`](super::State::set_pause), which looks at the gate again.
    pub(super) fn set(&mut self, cause: PauseCause, pause: Option<Pause>) {
        self.by_cause[cause as usize] = pause;
        let on = || self.by_cause.iter().flatten();
        let writes_only = on().all(|pause| pause.writes_only);
        let strict = on().filter(|pause| pause.writes_only == writes_only);
        self.strictest = strict.max_by_key(|pause| pause.until_us).copied();
    }
}
