//! The clients that wait for locks, blocked or not, for display.

use crate::client::ClientId;
use crate::client::blocked::Blocked;
use crate::keyspace::DbIndex;
use crate::keyspace::waiting::{Ticket, Wanted};
use crate::resp::args::Args;
use crate::state::State;

/// A client's wait for a lock or several.
pub struct LockWait<'a> {
    pub client: ClientId,
    pub database: DbIndex,
    /// The keys, and the owner for whom it waits.
    names: Vec<&'a [u8]>,
    /// Whether it asks to read, together with other readers.
    pub is_shared: bool,
    /// When it began: boot-time clock, microseconds.
    pub since_us: i64,
    /// None: it waits for ever.
    pub deadline_us: Option<i64>,
}

impl<'a> LockWait<'a> {
    pub fn owner(&self) -> &'a [u8] {
        self.names.last().copied().unwrap_or_default()
    }

    pub fn keys(&self) -> &[&'a [u8]] {
        &self.names[..self.names.len().saturating_sub(1)]
    }

    fn of_blocked(client: ClientId, blocked: &'a Blocked) -> Self {
        LockWait {
            client,
            database: blocked.database,
            names: blocked.keys_and_next(),
            is_shared: asks_to_read(blocked.args(), blocked.keys().last().map(|(index, _)| index)),
            since_us: blocked.since_us,
            deadline_us: blocked.deadline_us,
        }
    }
}

/// Whether a request for locks has the option SHARED. The owner follows the last key. Every other
/// option after the owner is another word or a number.
fn asks_to_read(args: Args<'_>, last_key: Option<usize>) -> bool {
    let mut options = last_key.into_iter().flat_map(|index| args.iter_from(index + 2));
    options.any(|option| option.eq_ignore_ascii_case(b"SHARED"))
}

impl State {
    /// The wait with this place, of this client.
    pub fn lock_wait(&self, ticket: Ticket, client: ClientId) -> Option<LockWait<'_>> {
        if let Some(wait) = self.blocking.asynchronous.get(ticket) {
            return Some(LockWait {
                client,
                database: wait.database,
                names: wait.names(),
                is_shared: {
                    let ranges = wait.request.ranges();
                    let args = Args::new(wait.request.bytes(), &ranges);
                    asks_to_read(args, usize::from(wait.keys.1).checked_sub(1))
                },
                since_us: wait.since_us,
                deadline_us: Some(wait.deadline_us).filter(|at| *at < i64::MAX),
            });
        }
        let blocked = self.clients.get(client)?.blocked.as_deref()?;
        Some(LockWait::of_blocked(client, blocked))
    }

    /// The longest waits for locks, the longest first.
    pub fn longest_lock_waits(&self, most: usize) -> Vec<LockWait<'_>> {
        let blocked = self.blocking.for_locks().filter_map(|(_, id)| {
            let blocked = self.clients.get(id)?.blocked.as_deref()?;
            (blocked.wanted() == Some(Wanted::Lock)).then(|| LockWait::of_blocked(id, blocked))
        });
        let asynchronous = self.blocking.asynchronous.iter();
        let asynchronous =
            asynchronous.filter_map(|(ticket, wait)| self.lock_wait(ticket, wait.client));
        let mut waits: Vec<_> = blocked.take(most).chain(asynchronous.take(most)).collect();
        waits.sort_by_key(|wait| wait.since_us);
        waits.truncate(most);
        waits
    }
}
