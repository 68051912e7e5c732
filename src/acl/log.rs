//! The log of denials: ACL LOG. Similar events within a minute are one entry.

use std::collections::VecDeque;

use super::Reason;

/// Where a denied request came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogContext {
    TopLevel,
    Transaction,
    Script,
}

impl LogContext {
    /// As in ACL LOG.
    pub fn word(self) -> &'static str {
        match self {
            LogContext::TopLevel => "toplevel",
            LogContext::Transaction => "multi",
            LogContext::Script => "lua",
        }
    }
}

/// A denial.
#[derive(Debug)]
pub struct Event {
    pub reason: Reason,
    pub context: LogContext,
    /// The command, key or channel; for a wrong password the command's name as sent.
    pub object: Box<[u8]>,
    pub user: Box<[u8]>,
    /// Wall clock, milliseconds.
    pub at_ms: i64,
    /// The client's line of CLIENT LIST.
    pub client: String,
}

/// An event, or several similar ones.
#[derive(Debug)]
pub struct Entry {
    pub id: u64,
    pub count: u64,
    /// The time of the first event. Wall clock, milliseconds.
    pub created_ms: i64,
    pub last: Event,
}

/// Events within this time may be similar. Unit: milliseconds.
const SIMILAR_MS: i64 = 60_000;
/// The number of latest entries that are compared with a new event.
const COMPARED: usize = 10;

/// The entries, the latest first.
#[derive(Debug, Default)]
pub struct Log {
    entries: VecDeque<Entry>,
    next_id: u64,
}

impl Log {
    /// Adds an event. Entries beyond `max_len` are deleted.
    pub fn add(&mut self, event: Event, max_len: usize) {
        let is_similar = |Entry { last: known, .. }: &Entry| {
            (known.reason, known.context) == (event.reason, event.context)
                && (event.at_ms - known.at_ms).abs() <= SIMILAR_MS
                && known.object == event.object
                && known.user == event.user
        };
        let known = self.entries.iter().take(COMPARED).position(is_similar);
        match known.and_then(|at| self.entries.remove(at)) {
            Some(known) => {
                self.entries.push_front(Entry { count: known.count + 1, last: event, ..known });
            }
            None => {
                let (id, created_ms) = (self.next_id, event.at_ms);
                self.next_id += 1;
                self.entries.push_front(Entry { id, count: 1, created_ms, last: event });
                self.entries.truncate(max_len);
            }
        }
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Entry> {
        self.entries.iter()
    }

    pub fn clear(&mut self) {
        self.entries = VecDeque::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(object: &str, at_ms: i64) -> Event {
        Event {
            reason: Reason::Key,
            context: LogContext::TopLevel,
            object: object.as_bytes().into(),
            user: b"u"[..].into(),
            at_ms,
            client: format!("at {at_ms}"),
        }
    }

    fn shown(log: &Log) -> Vec<(String, u64, i64)> {
        let text = |entry: &Entry| String::from_utf8_lossy(&entry.last.object).into_owned();
        log.iter().map(|entry| (text(entry), entry.count, entry.last.at_ms)).collect()
    }

    #[test]
    fn similar_events_within_a_minute_are_one_entry() {
        let mut log = Log::default();
        for (object, at_ms) in [("a", 0), ("b", 1), ("a", 60_000), ("b", 60_002)] {
            log.add(event(object, at_ms), 3);
        }
        let expected = [("b", 1, 60_002), ("a", 2, 60_000), ("b", 1, 1)];
        assert_eq!(shown(&log), expected.map(|(text, count, at)| (text.to_owned(), count, at)));
        log.add(event("c", 60_003), 3);
        assert_eq!(shown(&log).len(), 3);
        let ids: Vec<(u64, i64)> = log.iter().map(|entry| (entry.id, entry.created_ms)).collect();
        assert_eq!(ids, [(3, 60_003), (2, 60_002), (0, 0)]);
        log.add(Event { context: LogContext::Script, ..event("c", 60_003) }, 3);
        assert_eq!(
            log.iter().next().map(|entry| (entry.last.context, entry.count)),
            Some((LogContext::Script, 1))
        );
    }

    #[test]
    fn only_the_latest_entries_are_compared() {
        let mut log = Log::default();
        log.add(event("old", 0), 100);
        for number in 0..COMPARED {
            log.add(event(&number.to_string(), 0), 100);
        }
        log.add(event("old", 0), 100);
        assert_eq!(log.iter().len(), COMPARED + 2);
    }
}
