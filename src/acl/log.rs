//! What was denied, and to whom: ACL LOG. Events that are alike within a minute are one entry.

use std::collections::VecDeque;

use super::Reason;

/// How a request came that was denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    TopLevel,
    Transaction,
    Script,
}

impl Place {
    pub fn word(self) -> &'static str {
        match self {
            Place::TopLevel => "toplevel",
            Place::Transaction => "multi",
            Place::Script => "lua",
        }
    }
}

/// Something that was denied.
#[derive(Debug)]
pub struct Event {
    pub reason: Reason,
    pub place: Place,
    /// The command, key or channel; of AUTH and HELLO the name as it was sent.
    pub object: Box<[u8]>,
    pub user: Box<[u8]>,
    /// Wall clock, milliseconds.
    pub at_ms: i64,
    /// The line of CLIENT LIST of the client.
    pub client: String,
}

/// One event, or several that are alike: the last of them.
#[derive(Debug)]
pub struct Entry {
    pub id: u64,
    pub count: u64,
    /// When the first one was.
    pub created_ms: i64,
    pub last: Event,
}

/// Events are alike within this time. Unit: milliseconds.
const ALIKE_MS: i64 = 60_000;
/// As many entries are looked at for one that is alike.
const LOOKED_AT: usize = 10;

/// The latest entries first.
#[derive(Debug, Default)]
pub struct Log {
    entries: VecDeque<Entry>,
    next_id: u64,
}

impl Log {
    /// Notes an event. What is beyond `max_len` entries is forgotten.
    pub fn note(&mut self, event: Event, max_len: usize) {
        let alike = |Entry { last: known, .. }: &Entry| {
            (known.reason, known.place) == (event.reason, event.place)
                && (event.at_ms - known.at_ms).abs() <= ALIKE_MS
                && known.object == event.object
                && known.user == event.user
        };
        let known = self.entries.iter().take(LOOKED_AT).position(alike);
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
        self.entries.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(object: &str, at_ms: i64) -> Event {
        Event {
            reason: Reason::Key,
            place: Place::TopLevel,
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
    fn what_is_alike_within_a_minute_is_one_entry() {
        let mut log = Log::default();
        for (object, at_ms) in [("a", 0), ("b", 1), ("a", 60_000), ("b", 60_002)] {
            log.note(event(object, at_ms), 3);
        }
        let expected = [("b", 1, 60_002), ("a", 2, 60_000), ("b", 1, 1)];
        assert_eq!(shown(&log), expected.map(|(text, count, at)| (text.to_owned(), count, at)));
        log.note(event("c", 60_003), 3);
        assert_eq!(shown(&log).len(), 3);
        let ids: Vec<(u64, i64)> = log.iter().map(|entry| (entry.id, entry.created_ms)).collect();
        assert_eq!(ids, [(3, 60_003), (2, 60_002), (0, 0)]);
        log.note(Event { place: Place::Script, ..event("c", 60_003) }, 3);
        assert_eq!(
            log.iter().next().map(|entry| (entry.last.place, entry.count)),
            Some((Place::Script, 1))
        );
    }

    #[test]
    fn only_the_latest_are_looked_at() {
        let mut log = Log::default();
        log.note(event("old", 0), 100);
        for number in 0..LOOKED_AT {
            log.note(event(&number.to_string(), 0), 100);
        }
        log.note(event("old", 0), 100);
        assert_eq!(log.iter().len(), LOOKED_AT + 2);
    }
}
