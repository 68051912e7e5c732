//! The protocol state of each client, and their registry.
//!
//! A client is identified by a [`ClientId`]: its slot in the registry and its unique number. Code
//! that keeps an ID across a command looks the client up again. Closing is only requested: it is
//! done in one place, at the end of the turn.
//!
//! `life` is the stage of a client's life, the reason why its requests wait, and the replies that
//! it gets; `readiness` states whether the client can be read and its output be sent; `queues` are
//! the lists of clients to be read, flushed or closed. `waits` has all waits, and `acks` those for
//! replicas; `tracking` and `transaction` are the state that a client has only while it tracks, or
//! is within MULTI; `field_sets` is that of HIMPORT. `handed` keeps what is on its way to a client.

pub mod acks;
pub mod field_sets;
pub mod handed;
pub mod life;
pub mod queues;
pub mod readiness;
pub mod tracking;
pub mod transaction;
pub mod waits;

use std::collections::{HashMap, HashSet};
use std::io;

use bitflags::bitflags;
use slab::Slab;

use crate::clock::Now;
use crate::collections::sparse::Sparse;
pub use crate::ids::ClientId;
use crate::ids::{CommandId, UserId};
use crate::keyspace::DbIndex;
use crate::keyspace::waiting::Ticket;
use crate::net::stream::{Address, Stream};
use crate::pubsub::Subscriptions;
use crate::replication::replica::Replica;
use crate::resp::reply::{OutputBuffer, Protocol};
use crate::resp::request::Parser;
use field_sets::FieldSets;
use life::{Life, Replies, Suspension};
use queues::Queues;
use readiness::{InputState, LogWait, Writability};
use tracking::ClientTracking;
use transaction::{Transaction, Watching};

bitflags! {
    /// Facts about a client, in any combination. The flags in [`ClientFlags::NEEDS_FULL_CHECKS`]
    /// end the gate's fast path.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct ClientFlags: u16 {
        const AUTHENTICATED = 1 << 0;
        /// Its user has restricted permissions: each request is checked.
        const RESTRICTED = 1 << 1;
        const MONITOR = 1 << 2;
        /// A replica: SYNC or PSYNC was accepted.
        const REPLICA = 1 << 3;
        /// Has subscriptions; in RESP2 only a few commands are allowed then.
        const SUBSCRIBED = 1 << 4;
        /// In MULTI: its commands are queued.
        const IN_TRANSACTION = 1 << 5;
        const NO_EVICT = 1 << 6;
        const NO_TOUCH = 1 << 7;
        /// CLIENT CACHING: the next command is an exception to tracking.
        const CACHING = 1 << 8;
        /// CLIENT IMPORT-SOURCE: in import mode it sees expired keys.
        const IMPORT_SOURCE = 1 << 9;
        /// CLIENT CAPA REDIRECT: it understands redirects.
        const CAN_REDIRECT = 1 << 10;
        /// READONLY: a replica serves its reads, although it could redirect them to the primary or
        /// to another node of the cluster.
        const READS_HERE = 1 << 11;
        /// ASKING: its next command may access slots that are being moved here.
        const ASKING = 1 << 12;
        /// Another node, from which this one imports slots. It is trusted like a primary.
        const BRINGS_SLOTS = 1 << 13;
        /// A full synchronisation has discarded the client's writes, and the client has changed
        /// nothing since: no replica will ever acknowledge these writes.
        const LOST_WRITES = 1 << 14;
        /// The client is closed at the end of the turn, or not all its replies are sent. Set
        /// together with these states, so that the fast path compares one mask.
        const CLOSING_OR_MUTED = 1 << 15;

        /// The flags that end the gate's fast path.
        const NEEDS_FULL_CHECKS = Self::CLOSING_OR_MUTED.bits()
            | Self::SUBSCRIBED.bits() | Self::NO_TOUCH.bits() | Self::IN_TRANSACTION.bits()
            | Self::CACHING.bits() | Self::REPLICA.bits() | Self::RESTRICTED.bits()
            | Self::BRINGS_SLOTS.bits() | Self::CAN_REDIRECT.bits() | Self::ASKING.bits();
    }
}

/// A client's input that has not run.
#[derive(Default)]
pub enum Input {
    /// Nothing: an idle client owns no buffer.
    #[default]
    Empty,
    /// An incomplete request, or requests of a suspended client; parsed from the start later.
    Waiting(Vec<u8>),
    /// An incomplete large request in its own buffer; parsing continues where it stopped.
    Large(Box<LargeInput>),
    /// A thread has this number of bytes, and gives them back (`state/arriving.rs`). Until then the
    /// client is not read.
    Lent(usize),
}

/// A request of which this many bytes have arrived is taken seriously: memory is reserved for the
/// rest.
const EARNEST_BYTES: usize = 1 << 20;
/// Limit of memory reserved for announced bytes that have not arrived.
const ROOM_MAX: usize = 32 << 20;
/// The least room for which a large request is read to its place.
const READ_MIN: usize = 16 << 10;

/// An incomplete large request.
#[derive(Default)]
pub struct LargeInput {
    /// The request from its first byte on.
    pub buffer: Vec<u8>,
    pub parser: Parser,
}

impl LargeInput {
    /// Whether `bytes` more do not fit.
    pub fn is_short_of(&self, bytes: usize) -> bool {
        self.buffer.capacity() - self.buffer.len() < bytes
    }

    /// Reserves memory for `bytes` received and part of the `announced` rest. Untrusted clients: at
    /// most four times what has arrived, so an empty promise is cheap. Trusted clients, once
    /// `EARNEST_BYTES` have arrived: up to `ROOM_MAX`, because repeated growth would copy large
    /// requests. Never more than `spare`. `maxmemory-clients` counts the capacity.
    pub fn make_room(&mut self, bytes: usize, announced: usize, (trusted, spare): (bool, usize)) {
        if self.is_short_of(bytes) {
            let come = self.buffer.len() + bytes;
            let trusted = if come >= EARNEST_BYTES && trusted { ROOM_MAX } else { 0 };
            // Doubled at least: otherwise the bytes would be copied again and again.
            let room = trusted.max(3 * come).min(spare).max(come);
            self.buffer.reserve_exact(bytes + announced.min(room));
        }
    }
}

impl Input {
    /// Bytes held.
    pub fn len(&self) -> usize {
        match self {
            Input::Empty => 0,
            Input::Waiting(bytes) => bytes.len(),
            Input::Large(large) => large.buffer.len(),
            Input::Lent(bytes) => *bytes,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes that are here.
    pub fn into_bytes(self) -> Vec<u8> {
        match self {
            Input::Empty | Input::Lent(_) => Vec::new(),
            Input::Waiting(bytes) => bytes,
            Input::Large(large) => large.buffer,
        }
    }

    /// Bytes of a large request's complete arguments.
    pub fn parsed(&self) -> usize {
        match self {
            Input::Large(large) => large.parser.bytes_parsed().min(large.buffer.len()),
            _ => 0,
        }
    }

    /// Bytes of memory held.
    pub fn capacity(&self) -> usize {
        match self {
            Input::Empty => 0,
            Input::Waiting(bytes) => bytes.capacity(),
            Input::Large(large) => large.buffer.capacity(),
            Input::Lent(bytes) => *bytes,
        }
    }
}

/// One client.
pub struct Client {
    pub id: ClientId,
    pub flags: ClientFlags,
    life: Life,
    replies: Replies,
    suspension: Suspension,
    pub user: UserId,
    pub database: DbIndex,
    pub stream: Stream,
    pub peer: Address,
    pub local: Address,
    pub input: Input,
    pub reading: InputState,
    /// Replies not sent yet. Taken out while the client's own commands run: messages that other
    /// clients push in that time go to an empty output, and are appended afterwards.
    pub output: OutputBuffer,
    pub log_wait: LogWait,
    /// Whether the client is in the list of clients to be flushed.
    pub is_flush_queued: bool,
    pub writability: Writability,
    pub protocol: Protocol,
    pub name: Box<[u8]>,
    pub library_name: Box<[u8]>,
    pub library_version: Box<[u8]>,
    /// Boot-time clock, microseconds.
    pub created_us: i64,
    pub active_us: i64,
    /// When the output began to exceed its soft limit; boot-time clock, microseconds.
    pub over_soft_limit_since_us: Option<i64>,
    pub last_command: Option<CommandId>,
    pub commands: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    /// None: no subscriptions.
    pub subscriptions: Option<Box<Subscriptions>>,
    /// The commands queued since MULTI.
    pub transaction: Option<Box<Transaction>>,
    /// Its watched keys.
    pub watching: Option<Box<Watching>>,
    /// CLIENT TRACKING state.
    pub tracking: Option<Box<ClientTracking>>,
    /// The names of fields of HIMPORT.
    pub field_sets: Option<Box<FieldSets>>,
    /// The wait for which it is blocked.
    pub blocked: Option<Ticket>,
    /// Bytes of memory of all its waits.
    pub waits_bytes: usize,
    /// REPLCONF state of a replica, or of a client that will become one.
    pub replica: Option<Box<Replica>>,
    /// The count of its commands at the end of its last turn, and the offset of the stream after
    /// them: WAIT waits for this offset.
    pub reached: (u64, u64),
    /// Its part of [`Clients::memory`], and the category in which this is counted.
    pub counted_memory: usize,
    pub counted_as: Eviction,
}

/// Whether a client can be closed to free its memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Eviction {
    #[default]
    Possible,
    /// CLIENT NO-EVICT.
    Refused,
    /// The client is being closed; its memory is freed at the end of the turn.
    Under,
}

impl Client {
    /// Reads more of a large request to the end of its buffer, where there is room for announced
    /// bytes. Returns also the number of bytes asked for. None: there is too little room, or the
    /// bytes have to be decoded first.
    pub fn read_to_its_place(&mut self, most: usize) -> Option<(io::Result<usize>, usize)> {
        let Input::Large(large) = &mut self.input else { return None };
        let wanted = large.parser.bytes_wanted();
        let room = (large.buffer.capacity() - large.buffer.len()).min(most);
        if wanted == 0 || room < wanted.min(READ_MIN) {
            return None;
        }
        Some((self.stream.read_to_spare(&mut large.buffer, room)?, room))
    }

    /// A new client, on database 0 and in RESP2. `now_us`: boot-time clock.
    pub fn new(
        id: ClientId,
        flags: ClientFlags,
        stream: Stream,
        peer: Address,
        local: Address,
        now_us: i64,
    ) -> Self {
        Client {
            id,
            flags,
            life: Life::Open,
            replies: Replies::default(),
            suspension: Suspension::None,
            user: UserId::DEFAULT,
            database: DbIndex::ZERO,
            stream,
            peer,
            local,
            input: Input::Empty,
            reading: InputState::default(),
            output: OutputBuffer::default(),
            log_wait: LogWait::Needless(0),
            is_flush_queued: false,
            writability: Writability::Assumed,
            protocol: Protocol::Resp2,
            name: Box::default(),
            library_name: Box::default(),
            library_version: Box::default(),
            created_us: now_us,
            active_us: now_us,
            over_soft_limit_since_us: None,
            last_command: None,
            commands: 0,
            bytes_in: 0,
            bytes_out: 0,
            subscriptions: None,
            transaction: None,
            watching: None,
            tracking: None,
            field_sets: None,
            blocked: None,
            waits_bytes: 0,
            replica: None,
            reached: (0, 0),
            counted_memory: 0,
            counted_as: Eviction::default(),
        }
    }

    fn eviction(&self) -> Eviction {
        if self.is_closing_now() {
            Eviction::Under
        } else if self.flags.intersects(ClientFlags::NO_EVICT | ClientFlags::REPLICA) {
            Eviction::Refused
        } else {
            Eviction::Possible
        }
    }

    pub fn life(&self) -> Life {
        self.life
    }

    /// Whether it is closed at the end of this turn.
    pub fn is_closing_now(&self) -> bool {
        self.life == Life::ClosingNow
    }

    /// Whether it is closed at the end of this turn, or after its reply.
    pub fn is_closing(&self) -> bool {
        self.life != Life::Open
    }

    fn set_life(&mut self, life: Life) {
        self.life = life;
        self.note_full_checks();
    }

    pub fn replies(&self) -> Replies {
        self.replies
    }

    pub fn set_replies(&mut self, replies: Replies) {
        self.replies = replies;
        self.note_full_checks();
    }

    /// Adds the reply to a request that has waited, if the client gets one.
    pub fn push_reply(&mut self, reply: &OutputBuffer) {
        if self.replies.are_sent() {
            self.output.append(reply);
        }
        self.set_replies(self.replies.after_request(true));
    }

    /// Counts a command that has run.
    #[inline]
    pub fn count_command(&mut self, command: CommandId) {
        self.last_command = Some(command);
        self.commands += 1;
    }

    fn note_full_checks(&mut self) {
        let is_needed = self.is_closing_now() || self.replies != Replies::default();
        self.flags.set(ClientFlags::CLOSING_OR_MUTED, is_needed);
    }

    pub fn suspension(&self) -> Suspension {
        self.suspension
    }

    /// Whether its requests are kept.
    pub fn is_suspended(&self) -> bool {
        self.suspension != Suspension::None
    }

    /// Milliseconds since the client last showed life. A waiting client shows life. So does one
    /// whose output waits for the AOF, because the server does not read from it in that time.
    /// `now_us`: boot-time clock.
    pub fn silent_ms(&self, now_us: i64) -> i64 {
        let waits = self.blocked.is_some() || self.log_wait.is_begun();
        if waits { 0 } else { (now_us - self.active_us) / 1000 }
    }

    /// Whether it waits, blocked or not.
    pub fn has_waits(&self) -> bool {
        self.waits_bytes > 0
    }

    /// A replica's name in the log and INFO: address and port where it accepts clients.
    pub fn replica_name(&self) -> String {
        let port = self.replica.as_deref().map_or(0, |replica| replica.port);
        match (self.replica_address(), port) {
            (ip, 0) => format!("{ip}:<unknown-replica-port>"),
            (ip, port) if ip.contains(':') => format!("[{ip}]:{port}"),
            (ip, port) => format!("{ip}:{port}"),
        }
    }

    /// The address that a replica has announced, else that of its connection.
    pub fn replica_address(&self) -> String {
        let announced = self.replica.as_deref().and_then(|replica| replica.address.as_deref());
        match (announced, &self.peer) {
            (Some(announced), _) if !announced.is_empty() => announced.to_owned(),
            (_, Address::Tcp(address)) => address.ip().to_canonical().to_string(),
            (_, Address::Unix(_)) => "/unixsocket".to_owned(),
            (_, Address::Unknown) => "?".to_owned(),
        }
    }

    /// Bytes of memory the client holds.
    pub fn memory(&self) -> usize {
        let subscriptions = self.subscriptions.as_deref().map_or(0, Subscriptions::memory);
        let names = self.name.len() + self.library_name.len() + self.library_version.len();
        let buffers = self.input.capacity() + self.output.capacity();
        let watching = self.watching.as_deref().map_or(0, Watching::memory);
        let transaction = self.transaction.as_deref().map_or(0, Transaction::memory);
        let tracking = self.tracking.as_deref().map_or(0, ClientTracking::memory);
        let field_sets = self.field_sets.as_deref().map_or(0, FieldSets::memory);
        let replica = self.replica.as_deref().map_or(0, Replica::memory);
        let own = size_of::<Client>() + names + buffers + replica;
        own + subscriptions + self.waits_bytes + transaction + watching + tracking + field_sets
    }
}

/// All clients.
#[derive(Default)]
pub struct Clients {
    slab: Slab<Box<Client>>,
    /// The slot of each client number.
    by_number: HashMap<u64, u32>,
    last_number: u64,
    /// Number of clients that are suspended.
    suspended: usize,
    /// Sums of the clients' counted memory by [`Eviction`]: see `maxmemory-clients`.
    memory: [usize; 3],
    /// Whether the log already says that the clients exceed the limit and none can be closed.
    pub is_over_logged: bool,
    /// Clients that are closed once their output is sent.
    last_replies: Vec<ClientId>,
    /// Clients closed in this turn that were sent all their output: what they were given is theirs.
    pub informed: HashSet<ClientId>,
    pub queues: Queues,
    /// Those that receive all requests (MONITOR).
    pub monitors: Vec<ClientId>,
    /// Storage of an ended transaction for reuse.
    pub spare_transaction: Option<Box<Transaction>>,
    /// Look-ups of a client, for the test that counts them.
    #[cfg(test)]
    pub look_ups: std::cell::Cell<usize>,
}

impl Clients {
    /// Adds a client, made by `make` for its new ID.
    pub fn insert(&mut self, make: impl FnOnce(ClientId) -> Client) -> ClientId {
        let number = self.take_number();
        let entry = self.slab.vacant_entry();
        let id = ClientId { slot: entry.key() as u32, number };
        entry.insert(Box::new(make(id)));
        self.by_number.insert(id.number, id.slot);
        id
    }

    /// A number for a connection that is no client.
    pub fn take_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    #[inline(always)]
    fn note_look_up(&self) {
        #[cfg(test)]
        self.look_ups.update(|count| count + 1);
    }

    /// The client, unless it is gone.
    #[inline]
    pub fn get_mut(&mut self, id: ClientId) -> Option<&mut Client> {
        self.get_with_queues(id).map(|(client, _)| client)
    }

    /// The client, unless it is gone, and the queues in which it can be put.
    #[inline]
    pub fn get_with_queues(&mut self, id: ClientId) -> Option<(&mut Client, &mut Queues)> {
        self.note_look_up();
        match self.slab.get_mut(id.slot as usize) {
            Some(client) if client.id == id => Some((client, &mut self.queues)),
            _ => None,
        }
    }

    /// The client, unless it is gone, with a spare buffer for its output if it has none.
    #[inline]
    pub fn get_with_buffer(&mut self, id: ClientId) -> Option<&mut Client> {
        let (client, queues) = self.get_with_queues(id)?;
        queues.give_spare(client);
        Some(client)
    }

    /// As [`Self::get_with_buffer`], and flushes the client at the end of this turn.
    #[inline]
    pub fn get_to_push(&mut self, id: ClientId) -> Option<&mut Client> {
        let (client, queues) = self.get_with_queues(id)?;
        queues.flush_later(client);
        queues.give_spare(client);
        Some(client)
    }

    pub fn get(&self, id: ClientId) -> Option<&Client> {
        self.note_look_up();
        match self.slab.get(id.slot as usize) {
            Some(client) if client.id == id => Some(client),
            _ => None,
        }
    }

    /// The client in a slot, and the queues in which it can be put.
    #[inline]
    pub fn at_slot(&mut self, slot: usize) -> Option<(&mut Client, &mut Queues)> {
        self.note_look_up();
        self.slab.get_mut(slot).map(|client| (&mut **client, &mut self.queues))
    }

    /// The client with this number.
    pub fn by_number(&self, number: u64) -> Option<&Client> {
        let slot = *self.by_number.get(&number)?;
        self.slab.get(slot as usize).map(|client| &**client)
    }

    /// Removes a client from the registry.
    pub fn remove(&mut self, id: ClientId) -> Option<Box<Client>> {
        self.get(id)?;
        self.by_number.remove(&id.number);
        self.by_number.shrink_if_sparse();
        let client = self.slab.remove(id.slot as usize);
        self.suspended -= usize::from(client.is_suspended());
        self.memory[client.counted_as as usize] -= client.counted_memory;
        Some(client)
    }

    /// Suspends a client. False: it is gone.
    pub fn suspend(&mut self, id: ClientId, suspension: Suspension) -> bool {
        self.note_look_up();
        let Some(client) = self.slab.get_mut(id.slot as usize).filter(|client| client.id == id)
        else {
            return false;
        };
        self.suspended += usize::from(!client.is_suspended());
        client.suspension = client.suspension.max(suspension);
        true
    }

    /// Ends a client's suspension.
    pub fn release(&mut self, id: ClientId) {
        self.note_look_up();
        let Some(client) = self.slab.get_mut(id.slot as usize).filter(|client| client.id == id)
        else {
            return;
        };
        self.suspended -= usize::from(client.is_suspended());
        client.suspension = Suspension::None;
    }

    /// Number of clients that are suspended.
    pub fn suspended(&self) -> usize {
        debug_assert_eq!(
            self.suspended,
            self.iter().filter(|client| client.is_suspended()).count(),
            "only `suspend` and `release` change that"
        );
        self.suspended
    }

    pub fn len(&self) -> usize {
        self.slab.len()
    }

    pub fn is_empty(&self) -> bool {
        self.slab.is_empty()
    }

    /// Sum of the counted memory. Unit: bytes.
    pub fn memory(&self) -> usize {
        self.memory.iter().sum()
    }

    /// Sum of the memory of clients that are not being closed. Unit: bytes.
    pub fn memory_that_stays(&self) -> usize {
        self.memory() - self.memory[Eviction::Under as usize]
    }

    /// Sum of the memory of clients that can be closed to free it. Unit: bytes.
    pub fn evictable_memory(&self) -> usize {
        self.memory[Eviction::Possible as usize]
    }

    /// Recounts a client's memory.
    pub fn count_memory(&mut self, id: ClientId) {
        let memory = self.get(id).map_or(0, Client::memory);
        self.count_as(id, memory);
    }

    /// Moves a client's counted memory to another category after its flags have changed.
    pub fn note_eviction(&mut self, id: ClientId) {
        let memory = self.get(id).map_or(0, |client| client.counted_memory);
        self.count_as(id, memory);
    }

    fn count_as(&mut self, id: ClientId, memory: usize) {
        self.note_look_up();
        let Some(client) = self.slab.get_mut(id.slot as usize).filter(|client| client.id == id)
        else {
            return;
        };
        let eviction = client.eviction();
        self.memory[client.counted_as as usize] -= client.counted_memory;
        self.memory[eviction as usize] += memory;
        (client.counted_memory, client.counted_as) = (memory, eviction);
    }

    /// All clients, by slot.
    pub fn iter(&self) -> impl Iterator<Item = &Client> {
        self.slab.iter().map(|(_, client)| &**client)
    }

    /// The clients in this slot and later ones.
    pub fn from_slot(&self, slot: usize) -> impl Iterator<Item = &Client> {
        let slots = slot..self.slots();
        slots.filter_map(|slot| self.slab.get(slot).map(|client| &**client))
    }

    /// An upper bound of the slots in use.
    fn slots(&self) -> usize {
        self.slab.capacity()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Client> {
        self.slab.iter_mut().map(|(_, client)| &mut **client)
    }

    /// Marks a client to be closed at the end of this turn.
    pub fn close(&mut self, id: ClientId) {
        if let Some(client) = self.get_mut(id) {
            client.set_life(Life::ClosingNow);
            self.queues.to_close.push(id);
            self.note_eviction(id);
        }
    }

    /// Closes a client after its output is sent; nothing more is read from it. If the client takes
    /// no output for too long from now on, the periodic work closes it.
    pub fn close_after_reply(&mut self, id: ClientId, now: Now) {
        if let Some(client) = self.get_mut(id)
            && !client.is_closing()
        {
            client.set_life(Life::ClosingAfterReply);
            client.active_us = now.boot_us;
            self.last_replies.push(id);
            self.flush_later(id);
        }
    }

    /// Closes clients that have taken none of their last output for `limit_us`: no output limit
    /// would ever close them.
    pub fn close_stuck(&mut self, now: Now, limit_us: i64) {
        let mut waiting = std::mem::take(&mut self.last_replies);
        waiting.retain(|&id| {
            let Some(client) = self.get(id) else { return false };
            let is_stuck = now.boot_us - client.active_us >= limit_us;
            if is_stuck {
                self.close(id);
            }
            !is_stuck
        });
        self.last_replies.append(&mut waiting);
    }

    /// Whether clients are closed after some time: those that leave their last replies unread or
    /// exceed a soft limit.
    pub fn has_overdue(&self) -> bool {
        !self.last_replies.is_empty() || !self.queues.over_soft_limit.is_empty()
    }

    /// Queues a client to be read in the next turn.
    pub fn read_later(&mut self, id: ClientId) {
        if let Some((client, queues)) = self.get_with_queues(id) {
            queues.read_later(client);
        }
    }

    /// Queues a client to be flushed at the end of this turn.
    #[inline]
    pub fn flush_later(&mut self, id: ClientId) {
        if let Some((client, queues)) = self.get_with_queues(id) {
            queues.flush_later(client);
        }
    }
}

#[cfg(test)]
mod tests {
    use bitflags::Flags;

    use super::*;

    #[test]
    fn each_flag_has_a_bit_of_its_own() {
        let mut taken = ClientFlags::empty();
        for flag in ClientFlags::FLAGS.iter().filter(|flag| flag.name() != "NEEDS_FULL_CHECKS") {
            assert!(
                !taken.intersects(*flag.value()),
                "{} stands for something else too",
                flag.name()
            );
            taken |= *flag.value();
        }
    }
}
