//! The commands a client has queued since MULTI, and its watched keys.

use std::collections::HashMap;

use crate::facts::Flags;
use crate::ids::CommandId;
use crate::keyspace::DbIndex;
use crate::resp::args::Args;
use crate::resp::request::Range;

/// The queued commands of a client.
#[derive(Default)]
pub struct Transaction {
    commands: Vec<Queued>,
    ranges: Vec<Range>,
    buffer: Vec<u8>,
    hashes: Vec<u64>,
    /// A command was refused: EXEC will fail.
    pub failed: bool,
    /// The selected database after the last command, if a command selects another one. Only for
    /// users with restricted permissions.
    pub database: Option<DbIndex>,
    /// The union of all commands' flags.
    flags: Flags,
    /// Flags that at least one command lacks.
    lacking: Flags,
}

/// A queued command.
struct Queued {
    command: CommandId,
    args: std::ops::Range<u32>,
    /// The hashes of its keys at fixed positions, as far as they are known.
    hashes: std::ops::Range<u32>,
}

/// The largest storage kept for the next transaction. Unit: bytes.
const SPARE_BYTES_MAX: usize = 16 * 1024;

impl Transaction {
    /// Commands queued.
    pub fn len(&self) -> usize {
        self.commands.len()
    }

    pub fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// Bytes of memory held.
    pub fn memory(&self) -> usize {
        size_of::<Transaction>()
            + self.buffer.capacity()
            + self.ranges.capacity() * size_of::<Range>()
            + self.hashes.capacity() * size_of::<u64>()
            + self.commands.capacity() * size_of::<Queued>()
    }

    /// The flags of all commands together.
    pub fn flags(&self) -> Flags {
        self.flags
    }

    /// Whether one of the commands has one of these flags.
    pub fn has_any(&self, flags: Flags) -> bool {
        self.flags.intersects(flags)
    }

    /// Whether all of the commands have these flags.
    pub fn all_have(&self, flags: Flags) -> bool {
        !self.lacking.intersects(flags)
    }

    /// Queues a command with the flags for the checks. False: no room, because offsets have 32
    /// bits.
    pub fn queue(
        &mut self,
        command: CommandId,
        flags: Flags,
        arguments: Args<'_>,
        hashes: &[u64],
    ) -> bool {
        let (args, known) = (self.ranges.len() as u32, self.hashes.len() as u32);
        if self.ranges.len() + arguments.len() > u32::MAX as usize
            || !arguments.copy_behind(&mut self.buffer, &mut self.ranges)
        {
            return false;
        }
        self.hashes.extend_from_slice(hashes);
        self.commands.push(Queued {
            command,
            args: args..self.ranges.len() as u32,
            hashes: known..self.hashes.len() as u32,
        });
        self.flags |= flags;
        self.lacking |= !flags;
        true
    }

    /// The commands in their order.
    pub fn requests(&self) -> impl Iterator<Item = (CommandId, Args<'_>, &[u64])> {
        let of = |range: &std::ops::Range<u32>| range.start as usize..range.end as usize;
        self.commands.iter().map(move |queued| {
            let hashes = &self.hashes[of(&queued.hashes)];
            let args = Args::new(&self.buffer, &self.ranges[of(&queued.args)]);
            (queued.command, args, hashes)
        })
    }

    /// The emptied storage for reuse, unless it is too large.
    pub fn emptied(mut self: Box<Self>) -> Option<Box<Self>> {
        if self.memory() > SPARE_BYTES_MAX {
            return None;
        }
        let Transaction { mut commands, mut ranges, mut buffer, mut hashes, .. } =
            std::mem::take(&mut *self);
        commands.clear();
        ranges.clear();
        buffer.clear();
        hashes.clear();
        *self = Transaction { commands, ranges, buffer, hashes, ..Transaction::default() };
        Some(self)
    }

    /// Drops the commands and fails the transaction.
    pub fn mark_failed(&mut self) {
        self.failed = true;
        self.buffer = Vec::new();
        self.ranges = Vec::new();
        self.hashes = Vec::new();
        self.commands = Vec::new();
    }
}

/// Watched keys of one database, each with its count of changes at the time of WATCH.
type WatchedKeys = HashMap<Box<[u8]>, u64>;

/// The keys a client watches.
#[derive(Default)]
pub struct Watching {
    /// The keys by database; most clients watch in only one.
    databases: Vec<(DbIndex, WatchedKeys)>,
    /// Bytes of all keys.
    key_bytes: usize,
}

impl Watching {
    /// Bytes of memory held.
    pub fn memory(&self) -> usize {
        let slots: usize = self.databases.iter().map(|(_, keys)| keys.capacity()).sum();
        let databases = self.databases.capacity() * size_of::<(DbIndex, WatchedKeys)>();
        let slot_bytes = size_of::<(Box<[u8]>, u64)>() + 1;
        size_of::<Watching>() + databases + slots * slot_bytes + self.key_bytes
    }

    /// Whether a key of a database is watched.
    pub fn contains(&self, database: DbIndex, key: &[u8]) -> bool {
        self.databases.iter().any(|(other, keys)| *other == database && keys.contains_key(key))
    }

    /// Watches a key that is not watched yet. `changes`: its count of changes.
    pub fn insert(&mut self, database: DbIndex, key: &[u8], changes: u64) {
        let place = match self.databases.iter().position(|(other, _)| *other == database) {
            Some(place) => place,
            None => {
                self.databases.push((database, WatchedKeys::new()));
                self.databases.len() - 1
            }
        };
        self.databases[place].1.insert(key.into(), changes);
        self.key_bytes += key.len();
    }

    /// All watched keys, each with its database and count of changes.
    pub fn keys(&self) -> impl Iterator<Item = (DbIndex, &[u8], u64)> {
        self.databases.iter().flat_map(|(database, keys)| {
            keys.iter().map(|(key, changes)| (*database, &**key, *changes))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn storage_that_is_used_again_knows_nothing_of_the_commands_before() {
        let mut transaction = Box::<Transaction>::default();
        let ranges = [Range { start: 0, len: 3 }];
        let args = Args::new(b"GET", &ranges);
        assert!(transaction.queue(CommandId(1), Flags::WRITE, args, &[]));
        assert!(transaction.has_any(Flags::WRITE) && !transaction.all_have(Flags::STALE));
        let mut transaction = transaction.emptied().expect("it is small");
        assert!(transaction.queue(CommandId(1), Flags::STALE, args, &[]));
        assert!(!transaction.has_any(Flags::WRITE) && transaction.all_have(Flags::STALE));
        let texts: Vec<_> = transaction.requests().map(|(_, args, _)| args.get(0)).collect();
        assert_eq!(texts, [b"GET"]);
    }
}
