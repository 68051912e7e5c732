//! What is wrong with a queue, and the commands that help, for people who look at the page.

use super::locks::shell_word;
use crate::config::{Choice, MaxmemoryPolicy};
use crate::types::stream::{Group, PAUSED};

/// A consumer that has not read for so long counts as gone. Unit: milliseconds.
const SILENT_MS: i64 = 60_000;
/// Consumers of a group that are named.
const CONSUMERS_MAX: usize = 3;
/// Times further ahead are taken for a mistake. Unit: milliseconds.
const AHEAD_MAX_MS: i64 = 365 * 24 * 3_600_000;

/// Sentences and commands about a queue.
#[derive(Default)]
pub struct Care {
    pub warnings: Vec<String>,
    /// For a shell.
    pub commands: Vec<String>,
}

/// A queue as this looks at it.
pub struct Place<'a> {
    /// The call of redis-cli for the queue's database.
    pub cli: &'a str,
    pub key: &'a [u8],
    /// Clients that wait for items of it.
    pub waiting: usize,
    pub unix_ms: i64,
}

impl Care {
    /// Adds what concerns a group. `ready` entries have been read by nobody; None: unknown.
    pub fn look_at_group(
        &mut self,
        place: &Place<'_>,
        name: &[u8],
        group: &Group,
        ready: Option<i64>,
    ) {
        let Place { cli, unix_ms, .. } = *place;
        let (key, word) = (shell_word(place.key), shell_word(name));
        let title = format!("group {}", String::from_utf8_lossy(name));
        let silence = |seen_ms: i64| (unix_ms - seen_ms).max(0);
        let consumers = || group.shown_consumers().filter(|one| *one.name != *PAUSED);
        if group.is_paused() {
            self.warnings.push(format!("{title} is paused"));
            self.commands.push(format!("{cli} XGROUP DELCONSUMER {key} {word} :paused"));
        } else {
            self.commands.push(format!("{cli} XGROUP CREATECONSUMER {key} {word} :paused"));
            let is_read = place.waiting > 0
                || consumers().any(|consumer| silence(consumer.seen_ms) < SILENT_MS);
            let to_give = ready.unwrap_or(0).max(0) + group.released_len() as i64;
            if to_give > 0 && !is_read {
                self.warnings.push(format!("{title}: {to_give} entries, and nobody reads"));
            }
        }
        let gone = consumers().filter(|consumer| {
            !consumer.pending().is_empty() && silence(consumer.seen_ms) >= SILENT_MS
        });
        for consumer in gone.take(CONSUMERS_MAX) {
            self.warnings.push(format!(
                "{title}: consumer {} holds {} entries and has not read for {} s",
                String::from_utf8_lossy(&consumer.name),
                consumer.pending().len(),
                silence(consumer.seen_ms) / 1000
            ));
            let consumer = shell_word(&consumer.name);
            self.commands.push(format!("{cli} XGROUP DELCONSUMER {key} {word} {consumer} RELEASE"));
        }
        if group.buried > 0 {
            let text = format!("{title}: {} dead letters since the start", group.buried);
            self.warnings.push(text);
            self.commands.push(format!("{cli} XREDRIVE DEADLETTERS {key} COUNT 100"));
        }
        if group.gone > 0 {
            self.warnings.push(format!("{title}: {} pending entries had no data", group.gone));
        }
    }

    /// Adds what concerns a sorted set by due times, given its first member and that one's time.
    pub fn look_at_due(&mut self, place: &Place<'_>, member: &[u8], due_ms: i64) {
        if due_ms <= place.unix_ms {
            return;
        }
        if due_ms - place.unix_ms > AHEAD_MAX_MS {
            let text = "the next item is due in more than a year: is its time in another unit?";
            self.warnings.push(text.into());
        }
        let (key, member) = (shell_word(place.key), shell_word(member));
        self.commands.push(format!("{} ZADD {key} XX 0 {member}", place.cli));
    }

    /// Adds a warning about a queue that may be evicted.
    pub fn look_at_eviction(&mut self, policy: MaxmemoryPolicy, limit: u64, is_protected: bool) {
        if limit > 0 && policy.word().starts_with("allkeys-") && !is_protected {
            self.warnings.push(format!(
                "it may be evicted as a whole ({}): maxmemory-protect names keys that are not",
                policy.word()
            ));
        }
    }
}
