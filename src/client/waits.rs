//! The registry of all that clients wait for: changes of keys, locks (blocked or not), replicas,
//! the end of a MIGRATE. A wait also stays here while its client is away, if its place is kept.
//!
//! A client can wait for thousands of locks at once, so each wait is kept small: it has its request
//! in one piece, and little more. `waiting/` begins and ends waits.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;

use crate::client::acks::{AcksAwaited, Grant};
use crate::collections::sparse::Sparse;
use crate::ids::{ClientId, CommandId};
use crate::keyspace::DbIndex;
use crate::keyspace::waiting::{Ticket, Wanted};
use crate::resp::owned::OwnedRequest;

/// The end of a wait that has no timeout.
pub const NEVER: i64 = i64::MAX;

/// What ends a wait.
#[derive(Clone, Debug)]
pub enum On {
    /// A change of a key, after which the request runs again. The indices of the key arguments.
    Keys(Range<u32>),
    /// The same for keys that are not next to each other: DUE of XREADGROUP.
    ScatteredKeys(Box<ScatteredKeys>),
    /// WAIT, WAITAOF.
    Acks(Box<AcksAwaited>),
    /// Replicas repeat the request before this server runs it (CLUSTER SETSLOT).
    Repetition(Box<AcksAwaited>),
    /// Replicas acknowledge the grant of a lock.
    Confirmation(Box<Grant>),
    /// The MIGRATE with this number ends.
    Move(u64),
}

/// The indices of the key arguments that are next to each other, and of the others.
#[derive(Clone, Debug)]
pub struct ScatteredKeys {
    pub together: Range<u32>,
    pub others: Vec<u32>,
}

/// The way in which a client learns of the end of its wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// By the reply: it is blocked.
    Reply,
    /// By a push message.
    Push,
    /// The client is away. Its wait is in no queue, only its place is kept until the deadline.
    Kept,
}

/// A client's wait.
#[derive(Clone, Debug)]
pub struct Wait {
    pub ticket: Ticket,
    pub client: ClientId,
    pub on: On,
    pub answer: Answer,
    pub command: CommandId,
    pub database: DbIndex,
    /// Boot-time clock, microseconds; or [`NEVER`].
    pub deadline_us: i64,
    /// When it began: boot-time clock, microseconds.
    pub since_us: i64,
    /// How long the place is kept while the client is away: milliseconds; 0: not at all.
    pub grace_ms: i64,
    /// Empty if it does not run again.
    pub request: OwnedRequest,
}

/// Bytes of memory that a wait costs in queues and indexes.
const PLACE_BYTES: usize = 160;

/// The longest wait is looked for among this number of first ones.
const LONGEST_AMONG: usize = 32;

const _: () = assert!(size_of::<Wait>() <= 96, "allocators have nothing between 96 and 112 bytes");

impl Wait {
    /// Whether the client waits for changes of keys.
    pub fn is_on_keys(&self) -> bool {
        matches!(self.on, On::Keys(_) | On::ScatteredKeys(_))
    }

    /// Whether the client waits without being blocked, for a push message.
    pub fn is_async(&self) -> bool {
        self.answer == Answer::Push
    }

    /// Whether the client waits for locks or permits.
    pub fn is_for_lock(&self) -> bool {
        self.ticket.is_for(Wanted::Lock) || self.ticket.is_for(Wanted::Semaphore)
    }

    /// The grant that replicas have to acknowledge.
    pub fn grant(&self) -> Option<&Grant> {
        match &self.on {
            On::Confirmation(grant) => Some(grant),
            _ => None,
        }
    }

    /// Whether its command has run, and is counted already.
    pub fn is_counted(&self) -> bool {
        self.answer == Answer::Push || matches!(self.on, On::Confirmation(_) | On::Move(_))
    }

    /// None: it has no timeout.
    pub fn deadline(&self) -> Option<i64> {
        Some(self.deadline_us).filter(|at_us| *at_us < NEVER)
    }

    /// Approximate bytes of memory.
    pub fn memory(&self) -> usize {
        size_of::<Wait>() + PLACE_BYTES + self.request.memory()
    }

    fn key_indices(&self) -> Range<usize> {
        match &self.on {
            On::Keys(indices) => indices.start as usize..indices.end as usize,
            On::ScatteredKeys(keys) => keys.together.start as usize..keys.together.end as usize,
            _ => 0..0,
        }
    }

    /// The awaited keys, each with its argument index.
    pub fn keys(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let Range { start, end } = self.key_indices();
        let others = match &self.on {
            On::ScatteredKeys(keys) => &*keys.others,
            _ => &[],
        };
        let together = self.request.iter().enumerate().skip(start).take(end - start);
        let others = others.iter().map(|index| *index as usize);
        together.chain(others.filter_map(|index| Some((index, self.request.iter().nth(index)?))))
    }

    /// The owner for whom a client waits for locks: the argument after the keys.
    pub fn owner(&self) -> &[u8] {
        self.request.iter().nth(self.key_indices().end).unwrap_or_default()
    }

    /// The keys and the argument after them: the owner for whom a client waits for locks.
    pub fn names(&self) -> Vec<&[u8]> {
        if let Some(grant) = self.grant() {
            return grant.keys.iter().chain([&grant.owner]).map(|name| &**name).collect();
        }
        let Range { start, end } = self.key_indices();
        self.request.iter().skip(start).take(end - start + 1).collect()
    }

    /// Whether a request for locks has the option SHARED. The owner follows the last key. Every
    /// other option after the owner is another word or a number.
    pub fn asks_to_read(&self) -> bool {
        let mut options = self.request.iter().skip(self.key_indices().end + 1);
        options.any(|option| option.eq_ignore_ascii_case(b"SHARED"))
    }
}

/// Deadlines of waits.
#[derive(Default)]
pub struct Deadlines(BTreeSet<(i64, Ticket)>);

impl Deadlines {
    /// The next one: boot-time clock, microseconds.
    pub fn next_us(&self) -> Option<i64> {
        self.0.first().map(|(at_us, _)| *at_us)
    }

    /// A wait whose deadline has passed.
    pub fn overdue(&self, now_us: i64) -> Option<Ticket> {
        self.0.first().filter(|(at_us, _)| *at_us <= now_us).map(|(_, ticket)| *ticket)
    }
}

/// All waits.
#[derive(Default)]
pub struct Waits {
    waits: BTreeMap<Ticket, Box<Wait>>,
    /// The deadlines of all waits but those for confirmations.
    pub deadlines: Deadlines,
    /// The deadlines of waits for confirmations: a pause postpones these.
    pub confirmations: Deadlines,
    /// The waits of a client that push messages answer, including some that have ended.
    by_client: HashMap<ClientId, Vec<Ticket>>,
    /// Such waits for keys, and those of clients that are away: see [`Self::asker`].
    by_asker: HashMap<u64, Ticket>,
    hasher: RandomState,
    /// The numbers of waits by what is wanted, without those of clients that are away.
    counts: [usize; Wanted::COUNT],
    kept: usize,
    /// Blocked clients with a timeout, without those whose grants are to be confirmed.
    timing_out: usize,
    /// Blocked clients by command number.
    by_command: Vec<usize>,
    /// The latest offset that too few replicas have acknowledged in time, and the number of
    /// replicas that have acknowledged it by now. A grant that needs more replicas is not tried
    /// until they have acknowledged this offset.
    pub failed: Option<(u64, i64)>,
    /// Waits for confirmations that have ended without one. Their grants are taken back before the
    /// turn ends, outside of any command.
    pub given_up: Vec<Wait>,
    /// While a script's changes can be undone: the kept waits whose places it has taken.
    undoable: Option<Vec<Wait>>,
}

impl Waits {
    /// Adds a wait. Returns the one that it replaces: a client has asked for the same locks again,
    /// and keeps its ticket.
    pub fn insert(&mut self, wait: Box<Wait>) -> Option<Box<Wait>> {
        let (ticket, mut before) = (wait.ticket, None);
        if wait.answer == Answer::Push {
            before = self.remove(ticket);
            let own = self.by_client.entry(wait.client).or_default();
            if own.len() == own.capacity() {
                own.retain(|ticket| self.waits.contains_key(ticket));
            }
            own.push(ticket);
        }
        if let Some(asker) = self.asker_of(&wait) {
            self.by_asker.insert(asker, ticket);
        }
        if wait.deadline_us < NEVER {
            self.deadlines_of(ticket).0.insert((wait.deadline_us, ticket));
        }
        self.count(&wait, 1);
        self.waits.insert(ticket, wait);
        before
    }

    pub fn remove(&mut self, ticket: Ticket) -> Option<Box<Wait>> {
        let wait = self.waits.remove(&ticket)?;
        if wait.deadline_us < NEVER {
            self.deadlines_of(ticket).0.remove(&(wait.deadline_us, ticket));
        }
        if let Some(asker) = self.asker_of(&wait)
            && self.by_asker.get(&asker) == Some(&ticket)
        {
            self.by_asker.remove(&asker);
            self.by_asker.shrink_if_sparse();
        }
        self.count(&wait, -1);
        if self.waits.is_empty() && !self.by_client.is_empty() {
            // No memory is kept for waits that have ended.
            (self.by_client, self.by_asker) = Default::default();
        }
        Some(wait)
    }

    fn deadlines_of(&mut self, ticket: Ticket) -> &mut Deadlines {
        if ticket.is_for(Wanted::Confirmation) {
            &mut self.confirmations
        } else {
            &mut self.deadlines
        }
    }

    fn count(&mut self, wait: &Wait, by: isize) {
        let add = |count: &mut usize| *count = count.wrapping_add_signed(by);
        if wait.answer == Answer::Kept {
            return add(&mut self.kept);
        }
        add(&mut self.counts[wait.ticket.wanted() as usize]);
        if wait.answer != Answer::Reply {
            return;
        }
        let command = wait.command.index();
        if self.by_command.len() <= command {
            self.by_command.resize(command + 1, 0);
        }
        add(&mut self.by_command[command]);
        if wait.deadline_us < NEVER && !wait.ticket.is_for(Wanted::Confirmation) {
            add(&mut self.timing_out);
        }
    }

    pub fn get(&self, ticket: Ticket) -> Option<&Wait> {
        self.waits.get(&ticket).map(|wait| &**wait)
    }

    pub fn get_mut(&mut self, ticket: Ticket) -> Option<&mut Wait> {
        self.waits.get_mut(&ticket).map(|wait| &mut **wait)
    }

    /// All waits, by what is wanted and then in the order of arrival.
    pub fn iter(&self) -> impl Iterator<Item = &Wait> {
        self.waits.values().map(|wait| &**wait)
    }

    /// The waits for one thing, in the order of arrival.
    pub fn of(&self, wanted: Wanted) -> impl Iterator<Item = &Wait> {
        self.waits.range(Ticket::all(wanted)).map(|(_, wait)| &**wait)
    }

    // ---- clients that are not blocked, or away --------------------------------------------------

    /// The waits of a client that push messages answer.
    pub fn pushed_to(&self, client: ClientId) -> Vec<Ticket> {
        let own = self.by_client.get(&client).into_iter().flatten().copied();
        // The place of one that has ended may be kept, whatever becomes of the client.
        let is_pushed = |wait: &Wait| wait.answer == Answer::Push;
        own.filter(|ticket| self.get(*ticket).is_some_and(is_pushed)).collect()
    }

    /// Forgets a client without waits.
    pub fn forget_client(&mut self, client: ClientId) {
        self.by_client.remove(&client);
        self.by_client.shrink_if_sparse();
    }

    /// The hash of an owner, the keys for which it waits, and its client. `names`: the keys and the
    /// owner. `client`: None if it is away.
    fn asker(
        &self,
        client: Option<ClientId>,
        is_for_permits: bool,
        database: DbIndex,
        names: &[&[u8]],
    ) -> u64 {
        self.hasher.hash_one((client, is_for_permits, database, names))
    }

    fn asker_of(&self, wait: &Wait) -> Option<u64> {
        let client = match wait.answer {
            Answer::Push if wait.is_on_keys() => Some(wait.client),
            Answer::Kept => None,
            Answer::Push | Answer::Reply => return None,
        };
        let is_for_permits = wait.ticket.is_for(Wanted::Semaphore);
        Some(self.asker(client, is_for_permits, wait.database, &wait.names()))
    }

    /// The wait of an owner for these keys: that of this client, or of one that is away.
    pub fn find(
        &self,
        client: Option<ClientId>,
        wanted: Wanted,
        (database, names): (DbIndex, &[&[u8]]),
    ) -> Option<Ticket> {
        if self.by_asker.is_empty() {
            return None;
        }
        let asker = self.asker(client, wanted == Wanted::Semaphore, database, names);
        let found = self.get(*self.by_asker.get(&asker)?)?;
        let is_same = client == Some(found.client).filter(|_| found.answer != Answer::Kept)
            && found.ticket.is_for(wanted)
            && found.database == database
            && found.names() == names;
        is_same.then_some(found.ticket)
    }

    /// Keeps the place of a wait that has ended, for its grace period: its client is away, or may
    /// ask again.
    pub fn keep(&mut self, wait: &Wait, now_us: i64) {
        if wait.grace_ms == 0 {
            return;
        }
        let names = (wait.database, &*wait.names());
        if let Some(earlier) = self.find(None, wait.ticket.wanted(), names) {
            self.remove(earlier);
        }
        let deadline_us = now_us.saturating_add(wait.grace_ms.saturating_mul(1000));
        self.insert(Box::new(Wait { answer: Answer::Kept, deadline_us, ..wait.clone() }));
    }

    /// Gives up the place kept for an owner that is away, and returns it.
    pub fn take_kept(&mut self, wanted: Wanted, names: (DbIndex, &[&[u8]])) -> Option<Ticket> {
        let wait = self.find(None, wanted, names).and_then(|ticket| self.remove(ticket))?;
        let ticket = wait.ticket;
        if let Some(taken) = &mut self.undoable {
            taken.push(*wait);
        }
        Some(ticket)
    }

    /// Whether places are kept.
    #[inline]
    pub fn has_kept(&self) -> bool {
        self.kept > 0
    }

    /// Makes places that are taken from now on restorable until [`Self::end_undo`].
    #[inline]
    pub fn begin_undo(&mut self) {
        self.undoable = Some(Vec::new());
    }

    /// Makes it final that places were taken, or restores them.
    #[inline]
    pub fn end_undo(&mut self, rolls_back: bool) {
        if let Some(taken) = self.undoable.take()
            && rolls_back
        {
            taken.into_iter().for_each(|wait| drop(self.insert(Box::new(wait))));
        }
    }

    // ---- numbers --------------------------------------------------------------------------------

    /// Number of blocked clients by command, of those commands that have any.
    pub fn by_command(&self) -> impl Iterator<Item = (CommandId, usize)> {
        let counts = self.by_command.iter().enumerate().filter(|(_, count)| **count > 0);
        counts.map(|(index, count)| (CommandId::new(index), *count))
    }

    /// Number of blocked clients with a timeout.
    pub fn timing_out(&self) -> usize {
        self.timing_out
    }

    /// Number of waits, without those of clients that are away.
    pub fn len_of(&self, wanted: Wanted) -> usize {
        self.counts[wanted as usize]
    }

    /// Number of clients that wait until a sorted set's member is due.
    pub fn due_waiters(&self) -> usize {
        self.len_of(Wanted::DueSeconds) + self.len_of(Wanted::DueMilliseconds)
    }

    /// Whether clients wait for locks or permits.
    pub fn has_lock_waiters(&self) -> bool {
        self.len_of(Wanted::Lock) > 0 || self.len_of(Wanted::Semaphore) > 0
    }

    /// Number of waits for locks and permits, including those of clients that are away, and for
    /// confirmations.
    pub fn all_lock_waiters(&self) -> usize {
        let wanted = [Wanted::Lock, Wanted::Semaphore, Wanted::Confirmation];
        wanted.into_iter().map(|wanted| self.len_of(wanted)).sum::<usize>() + self.kept
    }

    /// The first waits for locks or permits in the order of places. It is that of time but for
    /// waits at the head of a queue, and clients that have come back to their places.
    fn first_for(&self, wanted: Wanted) -> impl Iterator<Item = &Wait> {
        self.of(wanted).filter(|wait| wait.answer != Answer::Kept)
    }

    /// The longest waits for locks, the longest first; of equal ones those of blocked clients.
    pub fn longest_for_locks(&self, most: usize) -> Vec<&Wait> {
        let mut waits: Vec<_> = self.first_for(Wanted::Lock).take(most).collect();
        waits.sort_by_key(|wait| (wait.since_us, wait.answer == Answer::Push, wait.client));
        waits
    }

    /// When the longest wait for a lock or permits began: boot-time clock, microseconds.
    pub fn for_lock_since_us(&self) -> Option<i64> {
        let first = |wanted| self.first_for(wanted).take(LONGEST_AMONG);
        let first = first(Wanted::Lock).chain(first(Wanted::Semaphore));
        first.map(|wait| wait.since_us).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyspace::waiting::Waiting;

    const OWNER: ClientId = ClientId { slot: 0, number: 1 };
    const OTHER: ClientId = ClientId { slot: 1, number: 2 };

    fn wait(queues: &mut Waiting, client: ClientId, key: &[u8], deadline_us: i64) -> Box<Wait> {
        let request: [&[u8]; 3] = [b"LOCK.ACQUIRE", key, b"owner"];
        Box::new(Wait {
            ticket: queues.next_ticket(Wanted::Lock, false),
            client,
            on: On::Keys(1..2),
            answer: Answer::Push,
            command: CommandId(0),
            database: DbIndex::ZERO,
            deadline_us,
            since_us: 0,
            grace_ms: 1,
            request: OwnedRequest::new(request.into_iter()),
        })
    }

    fn find(waits: &Waits, client: Option<ClientId>, key: &[u8]) -> Option<Ticket> {
        waits.find(client, Wanted::Lock, (DbIndex::ZERO, &[key, b"owner"]))
    }

    #[test]
    fn a_client_has_one_place_for_the_same_lock() {
        let (mut waits, mut queues) = (Waits::default(), Waiting::default());
        let first = wait(&mut queues, OWNER, b"a", 50);
        let (ticket, names) = (first.ticket, [&b"a"[..], b"owner"]);
        assert_eq!(first.names(), names);
        waits.insert(first);
        assert_eq!(find(&waits, Some(OWNER), b"a"), Some(ticket));
        for (client, key) in [(Some(OTHER), b"a"), (Some(OWNER), b"b"), (None, b"a")] {
            assert_eq!(find(&waits, client, key), None);
        }
        waits.insert(Box::new(Wait { ticket, ..*wait(&mut queues, OWNER, b"a", 90) }));
        let second = wait(&mut queues, OWNER, b"b", NEVER);
        let second_ticket = second.ticket;
        waits.insert(second);
        let overdue = |waits: &Waits, now_us| waits.deadlines.overdue(now_us);
        assert_eq!((overdue(&waits, 89), overdue(&waits, 90)), (None, Some(ticket)));
        let mut own = waits.pushed_to(OWNER);
        own.dedup();
        assert_eq!(own, [ticket, second_ticket]);
        waits.remove(ticket);
        assert_eq!(find(&waits, Some(OWNER), b"a"), None);
        assert_eq!((waits.len_of(Wanted::Lock), waits.deadlines.next_us()), (1, None));
        waits.remove(second_ticket);
        assert_eq!((waits.all_lock_waiters(), waits.by_client.len()), (0, 0));
    }

    #[test]
    fn a_place_is_kept_for_its_owner_and_for_a_time() {
        let (mut waits, mut queues) = (Waits::default(), Waiting::default());
        let names = (DbIndex::ZERO, &[&b"a"[..], b"owner"][..]);
        let first = wait(&mut queues, OWNER, b"a", 50);
        let second = wait(&mut queues, OTHER, b"a", 50);
        let (first_ticket, second_ticket) = (first.ticket, second.ticket);
        waits.insert(first);
        let first = waits.remove(first_ticket).expect("it was added");
        waits.keep(&first, 100);
        assert_eq!((waits.len_of(Wanted::Lock), waits.all_lock_waiters()), (0, 1));
        assert_eq!(waits.longest_for_locks(9).len(), 0);
        assert_eq!(find(&waits, None, b"a"), Some(first_ticket));
        // The place of the same owner that is kept later replaces it.
        waits.keep(&second, 200);
        assert_eq!((waits.all_lock_waiters(), waits.deadlines.next_us()), (1, Some(1200)));
        for (rolls_back, left) in [(true, 1), (false, 0)] {
            waits.begin_undo();
            assert_eq!(waits.take_kept(Wanted::Semaphore, names), None);
            assert_eq!(waits.take_kept(Wanted::Lock, names), Some(second_ticket));
            assert!(!waits.has_kept() && waits.take_kept(Wanted::Lock, names).is_none());
            waits.end_undo(rolls_back);
            assert_eq!(waits.all_lock_waiters(), left);
        }
        let joined = [&b"ka"[..], b""];
        let apart = [&b"k"[..], b"a"];
        let asker = |names| waits.asker(None, false, DbIndex::ZERO, names);
        assert_ne!(asker(&joined), asker(&apart));
    }

    /// A wait of any kind.
    fn any_wait(queues: &mut Waiting, random: &mut fastrand::Rng) -> Wait {
        let wanted = Wanted::ALL[random.usize(..Wanted::COUNT)];
        let can_push = matches!(wanted, Wanted::Lock | Wanted::Confirmation);
        let key = [b'a' + random.u8(..3)];
        let on = match wanted {
            Wanted::Acks | Wanted::Move => On::Move(1),
            Wanted::Confirmation => On::Confirmation(Box::new(Grant {
                replicas: 1,
                offset: 0,
                keys: vec![key.into()],
                owner: b"owner"[..].into(),
                fence: 1,
                confirmed: crate::client::acks::Confirmed::Locks,
                taken: Vec::new(),
                counted_hold: false,
                former: Vec::new(),
            })),
            _ => On::Keys(1..2),
        };
        let answer = if can_push && random.bool() { Answer::Push } else { Answer::Reply };
        let grace_ms = if wanted.is_lock() { random.i64(0..3) } else { 0 };
        let deadline_us = if random.bool() { random.i64(1..50) } else { NEVER };
        let client = if random.bool() { OWNER } else { OTHER };
        let command = CommandId(random.u16(..3));
        let ticket = queues.next_ticket(wanted, random.bool());
        Wait { ticket, on, answer, command, grace_ms, ..*wait(queues, client, &key, deadline_us) }
    }

    /// What the registry answers, from a plain list of waits.
    fn compare(waits: &Waits, all: &[Wait]) {
        let here = || all.iter().filter(|wait| wait.answer != Answer::Kept);
        for wanted in Wanted::ALL {
            let is_it = |wait: &&Wait| wait.ticket.is_for(wanted);
            assert_eq!(waits.len_of(wanted), here().filter(is_it).count());
            let mut tickets: Vec<_> = all.iter().filter(is_it).map(|wait| wait.ticket).collect();
            tickets.sort_unstable();
            assert_eq!(waits.of(wanted).map(|wait| wait.ticket).collect::<Vec<_>>(), tickets);
        }
        let kept = all.len() - here().count();
        let counted = |wanted| here().filter(|wait| wait.ticket.is_for(wanted)).count();
        let wanted = [Wanted::Lock, Wanted::Semaphore, Wanted::Confirmation];
        let expected = wanted.into_iter().map(counted).sum::<usize>() + kept;
        assert_eq!((waits.all_lock_waiters(), waits.has_kept()), (expected, kept > 0));
        let blocked = || here().filter(|wait| wait.answer == Answer::Reply);
        let is_confirmation = |wait: &&Wait| wait.ticket.is_for(Wanted::Confirmation);
        let timed = blocked().filter(|wait| wait.deadline().is_some());
        assert_eq!(waits.timing_out(), timed.filter(|wait| !is_confirmation(wait)).count());
        let of_command = |id: CommandId| blocked().filter(|wait| wait.command == id).count();
        let by_command: Vec<_> = (0..3).map(CommandId).map(|id| (id, of_command(id))).collect();
        let by_command = by_command.into_iter().filter(|(_, count)| *count > 0);
        assert!(waits.by_command().eq(by_command));
        let next = |of_confirmations| {
            let alike = all.iter().filter(|wait| is_confirmation(wait) == of_confirmations);
            alike.filter_map(Wait::deadline).min()
        };
        assert_eq!(
            (waits.deadlines.next_us(), waits.confirmations.next_us()),
            (next(false), next(true))
        );
        for client in [OWNER, OTHER] {
            let own = here().filter(|wait| wait.client == client && wait.answer == Answer::Push);
            let mut own: Vec<_> = own.map(|wait| wait.ticket).collect();
            let mut pushed = waits.pushed_to(client);
            own.sort_unstable();
            pushed.sort_unstable();
            pushed.dedup();
            assert_eq!(pushed, own);
        }
    }

    #[test]
    fn the_registry_agrees_with_a_plain_list() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..50 {
            let (mut waits, mut queues) = (Waits::default(), Waiting::default());
            let mut all: Vec<Wait> = Vec::new();
            for _ in 0..60 {
                let names_of = |wait: &Wait| wait.names().concat();
                let chosen = (!all.is_empty()).then(|| random.usize(..all.len()));
                match (random.u8(..4), chosen) {
                    (0, Some(index)) => {
                        let wait = all.swap_remove(index);
                        let removed = waits.remove(wait.ticket).expect("it is there");
                        assert_eq!((removed.ticket, removed.client), (wait.ticket, wait.client));
                        // A client that goes keeps its place.
                        if wait.answer != Answer::Kept && wait.grace_ms > 0 {
                            let wanted = wait.ticket.wanted();
                            let is_same = |one: &Wait| {
                                one.answer == Answer::Kept
                                    && one.ticket.is_for(wanted)
                                    && names_of(one) == names_of(&wait)
                            };
                            all.retain(|one| !is_same(one));
                            waits.keep(&wait, 10);
                            let deadline_us = 10 + wait.grace_ms * 1000;
                            all.push(Wait { answer: Answer::Kept, deadline_us, ..wait });
                        }
                    }
                    (1, Some(index)) if all[index].answer == Answer::Kept => {
                        let wait = all.swap_remove(index);
                        let rolls_back = random.bool();
                        waits.begin_undo();
                        let names = (wait.database, &*wait.names());
                        let taken = waits.take_kept(wait.ticket.wanted(), names);
                        assert_eq!(taken, Some(wait.ticket));
                        waits.end_undo(rolls_back);
                        if rolls_back {
                            all.push(wait);
                        }
                    }
                    (1, Some(index)) if all[index].answer == Answer::Push => {
                        // The client asks again, with another timeout.
                        let deadline_us = random.i64(1..50);
                        all[index] = Wait { deadline_us, ..all[index].clone() };
                        assert!(waits.insert(Box::new(all[index].clone())).is_some());
                    }
                    _ => {
                        let wait = any_wait(&mut queues, &mut random);
                        assert!(waits.insert(Box::new(wait.clone())).is_none());
                        all.push(wait);
                    }
                }
                compare(&waits, &all);
            }
        }
    }
}
