//! The one place that says whether writes are possible now: for requests (`gate/admit.rs`), the
//! calls of scripts, and all that time starts without a request (alarms of due members, leases,
//! graces, confirmations, expiry, eviction, moves).
//!
//! - While writes are **postponed** ([`State::stands_still`]), nothing changes: a replica may be
//!   about to take over with the data that it has.
//! - While writes are **refused** ([`State::refuses_writes`]), no client gets anything that a write
//!   takes: no element, lock or permit. Ends that time brings continue, as expiry and eviction do:
//!   nobody is told that they were kept.

use super::{Core, State};
use crate::error::CommandError;
use crate::keyspace::waiting::Until;

/// A rule by which writes are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteRule {
    /// The disk fails: MISCONF.
    Disk,
    /// `min-replicas-to-write`
    Replicas,
    /// `primary-restart-read-only`, `repl-protect-empty-primary`, `sentinel-step-down`
    Restart,
    /// A replica.
    ReadOnly,
}

impl WriteRule {
    /// In Redis's order for requests. For a script's calls it is the reverse.
    pub const ALL: [WriteRule; 4] =
        [WriteRule::Disk, WriteRule::Replicas, WriteRule::Restart, WriteRule::ReadOnly];
}

impl State {
    /// The error of a rule, if it refuses writes now.
    pub fn refusal_by(&self, rule: WriteRule) -> Option<CommandError> {
        match rule {
            WriteRule::Disk => self.disk_refusal(),
            // Libraries look for another primary after READONLY, not after NOREPLICAS.
            WriteRule::Replicas if self.replication.promoted.by.is_some() => None,
            WriteRule::Replicas => self.lacks_replicas().then_some(CommandError::NoReplicas),
            WriteRule::Restart => {
                self.replication.restart.refusal().or_else(|| self.replication.promoted.refusal())
            }
            WriteRule::ReadOnly => self.is_read_only().then_some(CommandError::ReadOnlyReplica),
        }
    }

    /// Whether writes are postponed: until the end of a pause nothing may change.
    #[inline]
    pub fn stands_still(&self) -> bool {
        self.pauses.strictest().is_some()
    }

    /// Whether no grant is taken back now: writes are postponed, if only those to slots that are
    /// about to leave.
    pub fn takes_nothing_back(&self) -> bool {
        self.stands_still() || self.moving.is_pausing()
    }

    /// Whether a client's write would be refused.
    pub fn refuses_writes(&self) -> bool {
        WriteRule::ALL.into_iter().any(|rule| self.refusal_by(rule).is_some())
    }

    /// Whether clients that wait for elements, due members, locks or permits get nothing, for a
    /// reason that would refuse or postpone a write.
    #[inline]
    pub fn withholds_writes(&self) -> bool {
        !self.fast_path().takes_writes() && (self.stands_still() || self.refuses_writes())
    }

    /// Whether clients that wait for locks and permits are granted nothing.
    pub fn grants_nothing(&self) -> bool {
        self.postpones_grants().is_some()
    }

    /// What must be possible again before locks and permits are granted. None: they are granted.
    pub fn postpones_grants(&self) -> Option<Until> {
        match self.is_recovering_locks() {
            true => Some(Until::Grants),
            false => self.withholds_writes().then_some(Until::Writes),
        }
    }
}

impl Core {
    /// Runs a part of the turn that no request starts. While writes are postponed it changes
    /// nothing.
    pub fn by_time(&mut self, part: impl FnOnce(&mut Core)) {
        let (stood_still, before) = (self.state.stands_still(), self.keyspace.dirty());
        part(self);
        debug_assert!(
            !(stood_still && self.state.stands_still()) || self.keyspace.dirty() == before,
            "data has changed during a pause"
        );
    }
}
