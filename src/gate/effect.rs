//! The requests by which a command's changes reach the append-only file and replicas
//! ([`crate::replication::effects`]).
//!
//! A command that has changed something is replicated as it was sent, unless its handler gives
//! other requests instead ([`Context::instead`]): effects that depend on time, chance or waiting
//! clients are replicated as their results. Expired and evicted keys are replicated as DEL.

use crate::collections::table::{Slot, ValueRef};
use crate::keyspace::{DbIndex, Expiry, Key};
use crate::replication::effects::Unlinks;
use crate::state::context::{Context, Effect};
use crate::state::{Core, State};
use crate::types::Value;

/// Words of a stored value in one request: an even number, as members have scores.
const WORDS_REPEATED_MAX: usize = 2048;

impl Context<'_> {
    /// Whether the effects are used at all. If not, requests to be replicated need not be built.
    #[inline]
    pub fn is_heard(&self) -> bool {
        self.core.state.effects.is_heard()
    }

    /// Repeats this request instead of the command's own. Several requests keep the order of the
    /// calls.
    #[inline]
    pub fn instead(&mut self, request: &[&[u8]]) {
        self.effect = Effect::Instead;
        if self.is_heard() {
            self.instead_of(self.core.keyspace.selected(), request.iter().copied());
        }
    }

    /// Repeats a stored key, which is not there yet: its value as arguments of `verb`, divided
    /// among several requests. `words` returns the value's arguments.
    pub fn instead_stored(
        &mut self,
        key: Key<'_>,
        verb: &[u8],
        words: impl FnOnce(ValueRef<'_, Value>) -> Option<Vec<Vec<u8>>>,
    ) {
        if !self.is_heard() {
            return;
        }
        let Some(slot) = self.core.keyspace.find(key) else { return };
        let Some(words) = words(self.core.keyspace.entry(slot).value()) else { return };
        for some in words.chunks(WORDS_REPEATED_MAX) {
            let request = [verb, key.bytes].into_iter().chain(some.iter().map(Vec::as_slice));
            self.instead(&request.collect::<Vec<_>>());
        }
        self.bless_again(key);
    }

    /// Repeats that a key is blessed, after a DEL that was not meant for it.
    fn bless_again(&mut self, key: Key<'_>) {
        let keyspace = &mut self.core.keyspace;
        if keyspace.find(key).is_some_and(|slot| keyspace.is_blessed(slot)) {
            self.instead(&[b"BLESS", b"SET", key.bytes, b"NO-EVICT"]);
        }
    }

    /// Notes that the changes since `before` ([`Keyspace::changes_by_commands`]) are in the stream
    /// already.
    pub fn note_own_effects(&mut self, before: u64) {
        if self.core.keyspace.changes_by_commands() != before {
            self.effect = Effect::Instead;
        }
    }

    /// As [`Self::instead`], in any database.
    pub fn instead_of<'b>(
        &mut self,
        database: DbIndex,
        request: impl ExactSizeIterator<Item = &'b [u8]>,
    ) {
        self.effect = Effect::Instead;
        if self.is_heard() {
            note_deletions(self.core);
            self.core.state.effects.push(database, request);
        }
    }

    /// As [`Self::instead`], for arguments that are collected one by one. `gather` runs only if the
    /// stream is taken.
    pub fn instead_gathered(&mut self, gather: impl FnOnce(&Self, &mut Vec<Vec<u8>>)) {
        self.effect = Effect::Instead;
        if self.is_heard() {
            let mut request = Vec::new();
            gather(self, &mut request);
            let database = self.core.keyspace.selected();
            self.instead_of(database, request.iter().map(Vec::as_slice));
        }
    }

    /// As [`Self::instead`], with one number appended to the arguments.
    #[inline]
    pub fn instead_with(&mut self, request: &[&[u8]], number: i64) {
        self.effect = Effect::Instead;
        if self.is_heard() {
            self.instead_with_digits(request, number);
        }
    }

    #[cold]
    fn instead_with_digits(&mut self, request: &[&[u8]], number: i64) {
        let mut digits = itoa::Buffer::new();
        let number = digits.format(number).as_bytes();
        let database = self.core.keyspace.selected();
        let all: smallvec::SmallVec<[&[u8]; 8]> = request.iter().copied().chain([number]).collect();
        self.instead_of(database, all.into_iter());
    }

    /// Adds this request, a message, to the replicas' stream.
    pub fn repeat_message(&mut self) {
        let replication = &self.core.state.replication;
        if replication.backlog.is_some() && !replication.is_replica() {
            note_deletions(self.core);
            let database = self.core.keyspace.selected();
            self.core.state.effects.push_message(database, self.args.iter_from(0));
        }
    }

    /// Deletes a key whose new deadline is in the past, and replicates the deletion.
    pub fn delete_overdue(&mut self, slot: Slot, key: Key<'_>) {
        match self.core.state.config.compatible_with.is_valkey() {
            true => self.core.keyspace.delete_as_expired(slot, key),
            false => self.core.keyspace.delete_at(slot, key, "del"),
        }
        let unlinks = self.core.state.config.lazyfree_lazy_expire;
        self.instead(&[if unlinks { b"UNLINK" } else { b"DEL" }, key.bytes]);
    }

    /// Repeats the deletion of a key by a command with another purpose. Redis before 8 writes DEL,
    /// whichever way the memory is freed.
    pub fn instead_deleted(&mut self, key: &[u8]) {
        let config = &self.core.state.config;
        let dialect = config.compatible_with;
        let unlinks =
            config.lazyfree_lazy_server_del && (dialect.is_valkey() || dialect.is_redis_8());
        self.instead(&[if unlinks { b"UNLINK" } else { b"DEL" }, key]);
    }

    /// Repeats `SET key value` with the deadline as a Unix time, instead of the command.
    pub fn instead_set(&mut self, key: &[u8], value: &[u8], expiry: Expiry) {
        match expiry {
            Expiry::Clear => self.instead(&[b"SET", key, value]),
            Expiry::Keep => self.instead(&[b"SET", key, value, b"KEEPTTL"]),
            Expiry::At(deadline) => {
                let at = deadline.unix(self.core.keyspace.shown_offset_ms()).0;
                self.instead_with(&[b"SET", key, value, b"PXAT"], at);
            }
        }
    }
}

fn unlinks(state: &State) -> Unlinks {
    Unlinks {
        expired: state.config.lazyfree_lazy_expire,
        evicted: state.config.lazyfree_lazy_eviction,
    }
}

/// Adds the keys that expired or were evicted since the last call.
#[inline]
pub fn note_deletions(core: &mut Core) {
    if !core.keyspace.deletions.is_empty() {
        note_all_deletions(core);
    }
}

#[cold]
fn note_all_deletions(core: &mut Core) {
    let unlinks = unlinks(&core.state);
    let effects = &mut core.state.effects;
    core.keyspace
        .deletions
        .take()
        .iter()
        .for_each(|deletion| effects.push_deletion(deletion, unlinks));
}

/// Adds keys that were deleted outside of commands, each as a unit of its own; inside a unit, to
/// that unit.
pub fn note_deletions_apart(core: &mut Core) {
    let apart = core.state.effects.begin_apart();
    let unlinks = unlinks(&core.state);
    for deletion in core.keyspace.deletions.take() {
        core.state.effects.push_deletion(&deletion, unlinks);
        core.state.effects.end_apart(apart);
    }
}
