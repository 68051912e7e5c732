//! When members of a sorted set are due: scores read as times. When pending entries of a stream may
//! be claimed.

use super::Keyspace;
use super::waiting::Wanted;
use crate::types::sorted_set::SortedSet;

/// The unit of the scores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    #[default]
    Seconds,
    Milliseconds,
}

impl Unit {
    /// Parses the argument after `UNIT`.
    pub fn parse(text: &[u8]) -> Option<Unit> {
        match text {
            b"S" | b"s" => Some(Unit::Seconds),
            text if text.eq_ignore_ascii_case(b"MS") => Some(Unit::Milliseconds),
            _ => None,
        }
    }

    pub fn wanted(self) -> Wanted {
        match self {
            Unit::Seconds => Wanted::DueSeconds,
            Unit::Milliseconds => Wanted::DueMilliseconds,
        }
    }

    /// The Unix time in milliseconds at which a score is due; `i64::MAX`: never.
    pub fn due_ms(self, score: f64) -> i64 {
        // `as` saturates: a score too large for the clock is never due.
        match self {
            Unit::Seconds => (score * 1000.0).ceil() as i64,
            Unit::Milliseconds => score.ceil() as i64,
        }
    }
}

impl Keyspace {
    /// When the sorted set's first member is due, with its scores in this unit: Unix milliseconds.
    /// None: never, or the key is no sorted set.
    pub fn next_due_ms(&mut self, key: &[u8], wanted: Wanted) -> Option<i64> {
        let unit = match wanted {
            Wanted::DueSeconds => Unit::Seconds,
            Wanted::DueMilliseconds | Wanted::Semaphore => Unit::Milliseconds,
            _ => return None,
        };
        let slot = self.find(self.key(key))?;
        let (score, _) = self.view::<SortedSet>(slot).ok()?.first()?;
        // A permit is held until its deadline has passed.
        let later = i64::from(wanted == Wanted::Semaphore);
        Some(unit.due_ms(score).saturating_add(later)).filter(|&ms| ms < i64::MAX)
    }

    /// When the first entry of a group may be claimed by clients that claim after `idle_ms`, as
    /// [`Self::lease_ms`] counts. None: never; nobody reads while a group is paused.
    pub fn next_claim_ms(&mut self, key: &[u8], group: &[u8], idle_ms: i64) -> Option<i64> {
        let slot = self.find(self.key(key))?;
        let group = self.stream_at(slot).ok()?.groups.get(group)?;
        let at_ms = if group.is_paused() { None } else { group.next_claim_ms(idle_ms) };
        at_ms.filter(|&ms| ms < i64::MAX)
    }

    /// Whether a group is paused.
    pub fn is_paused(&mut self, key: &[u8], group: &[u8]) -> bool {
        let slot = self.find(self.key(key));
        let stream = slot.and_then(|slot| self.stream_at(slot).ok());
        stream.and_then(|stream| stream.groups.get(group)).is_some_and(|group| group.is_paused())
    }
}
