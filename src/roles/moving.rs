//! MIGRATE beside the clients' requests: connects, sends keys in bounded pieces, and deletes the
//! keys that the other server has accepted.
//!
//! ```text
//! keys -> RESTORE requests, large values by a thread -> connection -> replies -> DEL here, the client's answer
//! ```
//!
//! A key may not be written from the time its value is read until the other server has answered
//! (`gate/moving.rs`), nor by a waiting command that is woken. Some changes happen all the same,
//! such as a field that expires: the key's count of changes shows them, and the key is sent again.
//! While writes are paused no key is deleted, so clients get no answer either.

use std::io;
use std::mem;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use crate::clock::{Due, Now};
use crate::collections::table::ValueRef;
use crate::config::system_text;
use crate::error::CommandError;
use crate::gate::effect::note_deletions_apart;
use crate::gate::publish::publish_events;
use crate::ids::ClientId;
use crate::keyspace::{Key, Keyspace};
use crate::net::lines::{Line, Peer};
use crate::net::primary::{ReadResult, Socket};
use crate::persist::rdb::{Encoder, LeaseTimes, payload};
use crate::persist::saver::lock;
use crate::resp::answer::Answer;
use crate::resp::number::parse_i64;
use crate::resp::request::{encode, encode_argument, encode_length};
use crate::state::moving::{Awaited, Migration, MoveOrder, Outgoing, Payload, Sent, ThreadResult};
use crate::state::{Core, State};
use crate::sys::log::verbose;
use crate::types::Value;
use crate::waiting::{self, confirm};

const CONNECTING_FAILED: CommandError =
    CommandError::Text("IOERR error or timeout connecting to the client");
const WRITING_FAILED: CommandError =
    CommandError::Text("IOERR error or timeout writing to target instance");
const READING_FAILED: CommandError =
    CommandError::Text("IOERR error or timeout reading to target instance");
const UNSTABLE: CommandError =
    CommandError::Text("TRYAGAIN A key has changed again and again while it was moved");

/// The largest part of the other server's error that is shown. Unit: bytes.
const SHOWN_MAX: usize = 1022;
/// Time for all MIGRATEs in a turn. Unit: microseconds.
const TURN_US: i64 = 1_000;
/// Limit of the bytes given to a connection that the system has not taken yet.
const UNSENT_MAX: usize = 256 * 1024;
/// Values that use more memory are encoded by a thread. Unit: bytes.
pub const ENCODED_HERE_MAX: usize = 64 * 1024;
/// The most values encoded by threads at a time.
pub const ENCODERS_MAX: usize = 2;
/// The most keys of a MIGRATE whose replies are awaited.
const AWAITED_MAX: usize = 4096;
/// How many keys one MIGRATE sends again, for each key that it names. A key that keeps changing
/// stays here.
const REPEATS_MAX: usize = 3;
/// The longest reply. Unit: bytes.
const REPLY_MAX: usize = 16 * 1024;
/// How often a MIGRATE that blocks the loop asks for a thread's result.
const THREADS_PERIOD: Duration = Duration::from_millis(1);
/// Keys or replies between two readings of the clock.
const STEP: usize = 32;

/// The error with which a MIGRATE ends.
type Broken = CommandError;

/// Starts a MIGRATE of a client; returns its number.
pub fn begin(state: &mut State, client: ClientId, order: MoveOrder) -> u64 {
    let now_us = state.clock.now().boot_us;
    state.moving.begin(client, Migration::new(order, now_us))
}

/// Runs a MIGRATE to its end while all clients wait, as in Redis. Also returns the keys deleted
/// here; the caller replicates their deletion. Errors: why it failed.
pub fn run(core: &mut Core, order: MoveOrder) -> (Migration, Result<(), CommandError>) {
    let mut migration = Migration::new(order, core.state.clock.now().boot_us);
    let ended = loop {
        if let Some(ended) = go_on(core, &mut migration, i64::MAX).transpose() {
            break ended;
        }
        if !has_work(&core.state, &migration) && !await_progress(core, &migration) {
            break Err(late(&core.state, &migration));
        }
    };
    let ended = end(core, &mut migration, ended);
    core.state.refresh_fast_path();
    (migration, ended)
}

/// Waits for the other server or a thread. False: nothing until the MIGRATE's time was over.
fn await_progress(core: &mut Core, migration: &Migration) -> bool {
    let left = Due::at(migration.late_us()).left(core.state.clock.now().boot_us);
    let line = migration.line.and_then(|line| core.state.net.lines.get_mut(line));
    let line = line.filter(|line| migration.encoding.is_none() && !line.socket.is_resolving());
    match line {
        Some(line) => line.socket.await_ready(left),
        // Nothing wakes this thread: the one that resolves or encodes wakes the loop.
        None => {
            thread::sleep(THREADS_PERIOD);
            true
        }
    }
}

/// When [`turn`] has work without an event.
pub fn due(state: &State) -> Due {
    let all = || state.moving.migrations.values().map(|(_, migration)| migration);
    if !state.stands_still() && all().any(|migration| has_work(state, migration)) {
        return Due::NOW;
    }
    let timed = all().filter(|migration| migration.encoding.is_none());
    Due::at(timed.map(|migration| migration.late_us()).min())
}

fn has_work(state: &State, migration: &Migration) -> bool {
    let Some(line) = migration.line.and_then(|line| state.net.lines.get(line)) else { return true };
    let has_more = migration.next < migration.order.names.len() || !migration.again.is_empty();
    let has_more = has_more && migration.encoding.is_none() && may_encode(state, migration);
    line.socket.may_read()
        || line.input.contains(&b'\n')
        || line.socket.may_write()
            && (line.socket.unsent() > 0 || !migration.request.is_empty() || has_more)
        || line.socket.is_connected() && migration.is_done()
}

fn may_encode(state: &State, migration: &Migration) -> bool {
    migration.awaited.len() < AWAITED_MAX && state.moving.encoding < ENCODERS_MAX
}

/// Continues all MIGRATEs, for a bounded time.
pub fn turn(core: &mut Core) {
    if core.state.moving.migrations.is_empty() {
        return;
    }
    note_deletions_apart(core);
    publish_events(core);
    let until_us = core.state.clock.now().boot_us + TURN_US;
    for (number, (client, mut migration)) in mem::take(&mut core.state.moving.migrations) {
        let ended = if core.state.is_read_only() {
            Some(Err(CommandError::Text(CommandError::DEMOTED)))
        } else if core.state.stands_still() {
            // Paused clients must find the data unchanged.
            migration.progress_us = core.state.clock.now().boot_us;
            None
        } else {
            go_on(core, &mut migration, until_us).transpose()
        };
        replicate_deletions(core, &mut migration);
        match ended {
            None => _ = core.state.moving.migrations.insert(number, (client, migration)),
            Some(ended) => {
                let ended = end(core, &mut migration, ended);
                waiting::end_move(core, client, number, ended.err().as_ref());
            }
        }
    }
    let freed = core.state.moving.take_freed();
    core.state.net.pending.resumed.extend(freed);
    core.state.refresh_fast_path();
}

/// Ends a MIGRATE: its keys may be written again. Returns the result for its client.
fn end(
    core: &mut Core,
    migration: &mut Migration,
    ended: Result<(), Broken>,
) -> Result<(), CommandError> {
    let is_whole = migration.is_done() && ended.is_ok();
    give_up_sent(core, migration);
    if let Some(line) = migration.line {
        // An unrequested byte would be taken for a reply to the next request.
        let rests = core.state.net.lines.get(line).is_some_and(|line| line.input.is_empty());
        match is_whole && rests {
            true => {
                if let Some(line) = core.state.net.lines.get_mut(line) {
                    let is_selected = migration.refused.is_none();
                    let database = parse_i64(&migration.order.target_database);
                    line.database = database.filter(|_| is_selected);
                }
                let now_us = core.state.clock.now().boot_us;
                core.state.net.lines.keep(line, now_us);
            }
            false => core.state.net.lines.close(line),
        }
    }
    match &migration.refused {
        Some(error) => Err(refused_by_target(error)),
        None if migration.is_unstable => ended.and(Err(UNSTABLE)),
        None => ended,
    }
}

/// The error that reports the target's error to the client.
fn refused_by_target(error: &[u8]) -> CommandError {
    let shown = &error[..error.len().min(SHOWN_MAX)];
    CommandError::formatted([b"ERR Target instance replied with error: ", shown].concat())
}

/// Unlocks the keys that were sent but not answered, and queues them to be sent again.
fn give_up_sent(core: &mut Core, migration: &mut Migration) {
    let encoding = migration.encoding.take();
    if encoding.is_some() {
        core.state.moving.encoding -= 1;
    }
    let awaited =
        mem::take(&mut migration.awaited).into_iter().filter_map(|awaited| match awaited {
            Awaited::Key(sent) => Some(sent),
            Awaited::Preamble => None,
        });
    for sent in awaited.chain(encoding.map(|(sent, _)| sent)) {
        unlock(core, &migration.order, sent);
        migration.again.push_back((sent.name, sent.replaces));
    }
    migration.request = Outgoing::default();
}

fn unlock(core: &mut Core, order: &MoveOrder, sent: Sent) {
    if !order.copies {
        let name = order.names.get(sent.name);
        core.keyspace.watch.remove(order.database, name);
        core.state.moving.unlock(order.database, name);
    }
}

/// Continues a MIGRATE. `Some`: it has ended. Errors: why it failed.
fn go_on(core: &mut Core, migration: &mut Migration, until_us: i64) -> Result<Option<()>, Broken> {
    let line = match migration.line {
        Some(line) => line,
        None => open(&mut core.state, migration)?,
    };
    if !connect(&mut core.state, migration, line)? {
        return check_time(&core.state, migration);
    }
    let moved = exchange(core, migration, line, until_us);
    if let Err(broken) = moved {
        // The other server may have closed a kept connection at any time.
        if mem::take(&mut migration.is_kept_line) {
            give_up_sent(core, migration);
            core.state.net.lines.close(line);
            migration.line = None;
            return Ok(None);
        }
        return Err(broken);
    }
    if migration.is_done() {
        return Ok(Some(()));
    }
    check_time(&core.state, migration)
}

fn check_time(state: &State, migration: &mut Migration) -> Result<Option<()>, Broken> {
    let now_us = state.clock.now().boot_us;
    if migration.encoding.is_some() {
        migration.progress_us = now_us;
    }
    match now_us >= migration.late_us() {
        true => Err(late(state, migration)),
        false => Ok(None),
    }
}

/// The error of a MIGRATE whose time is over.
fn late(state: &State, migration: &Migration) -> Broken {
    match migration.line.and_then(|line| state.net.lines.get(line)) {
        Some(line) if !line.socket.is_connected() => CONNECTING_FAILED,
        Some(line) if line.socket.unsent() > 0 => WRITING_FAILED,
        Some(_) => READING_FAILED,
        None => CONNECTING_FAILED,
    }
}

// ---- connecting ---------------------------------------------------------------------------------

/// Takes a kept connection, or begins to make one.
fn open(state: &mut State, migration: &mut Migration) -> Result<usize, Broken> {
    let peer = &migration.order.peer;
    migration.has_begun = false;
    migration.progress_us = state.clock.now().boot_us;
    let kept = state.net.lines.take(peer);
    migration.is_kept_line = kept.is_some();
    let line = match kept {
        Some(line) => line,
        None => make(state, peer.clone()).map_err(|error| told(&error))?,
    };
    migration.line = Some(line);
    Ok(line)
}

/// Begins to connect. Errors: the attempt fails at once.
pub fn make(state: &mut State, peer: Peer) -> io::Result<usize> {
    let host = str::from_utf8(&peer.host).map_err(|_| io::ErrorKind::InvalidInput)?.to_owned();
    let too_many = || io::Error::from(io::ErrorKind::QuotaExceeded);
    let Some(ip) = host.parse().ok() else {
        let (background, wake) = (state.persistence.background(), state.persistence.wake());
        let socket = Socket::resolving(host, peer.port, background, wake, 0)?;
        return state.net.lines.add(peer, socket).ok_or_else(too_many);
    };
    let address = SocketAddr::new(ip, peer.port);
    let stream = state.net.dial(&state.config, address, peer.is_tls)?;
    let line = state.net.lines.add(peer, Socket::connecting(stream, address, 0));
    let line = line.ok_or_else(too_many)?;
    let net = &mut state.net;
    let registered = net.lines.register(net.poll.registry(), line);
    if registered.is_err() {
        net.lines.close(line);
    }
    registered.map(|()| line)
}

/// Continues to connect. True: the connection stands. Errors: all addresses have failed.
fn connect(state: &mut State, migration: &mut Migration, line: usize) -> Result<bool, Broken> {
    match connect_line(state, line) {
        Ok(Connecting::Stands) => Ok(true),
        Ok(Connecting::Waits) => Ok(false),
        Ok(Connecting::Progress) => {
            migration.progress_us = state.clock.now().boot_us;
            Ok(false)
        }
        Err(error) => {
            verbose!(state, "MIGRATE cannot connect: {}", system_text(&error));
            Err(told(&error))
        }
    }
}

/// The progress of a connection.
pub enum Connecting {
    Waits,
    /// It has made a step.
    Progress,
    Stands,
}

/// Continues to connect a line. If an address of its host fails, tries the next one. Errors: that
/// of the last address.
pub fn connect_line(state: &mut State, number: usize) -> io::Result<Connecting> {
    let Some(line) = state.net.lines.get_mut(number) else {
        return Err(io::ErrorKind::NotConnected.into());
    };
    if line.socket.is_connected() {
        return Ok(Connecting::Stands);
    }
    let mut next = match line.socket.take_resolved() {
        Some(found) => found?,
        None => match line.socket.continue_connecting() {
            Ok(true) => return Ok(Connecting::Stands),
            Ok(false) => return Ok(Connecting::Waits),
            Err(error) => line.socket.take_other().ok_or(error)?,
        },
    };
    loop {
        let Some(line) = state.net.lines.get(number) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let dialed = state.net.dial(&state.config, next, line.peer.is_tls).and_then(|stream| {
            let net = &mut state.net;
            let Some(line) = net.lines.get_mut(number) else {
                return Err(io::ErrorKind::NotConnected.into());
            };
            line.socket.connect(stream);
            net.lines.register(net.poll.registry(), number)
        });
        match dialed {
            Ok(()) => return Ok(Connecting::Progress),
            Err(error) => {
                let line = state.net.lines.get_mut(number);
                next = line.and_then(|line| line.socket.take_other()).ok_or(error)?;
            }
        }
    }
}

fn told(error: &io::Error) -> Broken {
    match error.kind() {
        // Redis notices a refused connection only when it writes.
        io::ErrorKind::ConnectionRefused | io::ErrorKind::HostUnreachable => WRITING_FAILED,
        _ => CONNECTING_FAILED,
    }
}

// ---- sending and receiving ----------------------------------------------------------------------

/// Sends and receives as much as is possible now. Errors: the connection has broken.
fn exchange(
    core: &mut Core,
    migration: &mut Migration,
    line: usize,
    until_us: i64,
) -> Result<(), Broken> {
    fill(core, migration, line, until_us);
    let now_us = core.state.clock.now().boot_us;
    if let Some(line) = core.state.net.lines.get_mut(line) {
        let before = line.socket.unsent();
        line.socket.write().map_err(|_| WRITING_FAILED)?;
        if line.socket.unsent() < before {
            migration.progress_us = now_us;
        }
    }
    let reading = core.state.net.lines.read(line);
    if matches!(reading, ReadResult::Bytes(_)) {
        migration.progress_us = now_us;
    }
    take_replies(core, migration, line, until_us)?;
    match reading {
        ReadResult::Ended(_) if !migration.is_done() => Err(READING_FAILED),
        _ => Ok(()),
    }
}

/// Gives the connection requests to send.
fn fill(core: &mut Core, migration: &mut Migration, line: usize, until_us: i64) {
    begin_line(&mut core.state, migration, line);
    let mut steps = 0;
    loop {
        let Some(Line { socket, .. }) = core.state.net.lines.get_mut(line) else { return };
        let room = UNSENT_MAX.saturating_sub(socket.unsent());
        if room == 0 {
            return;
        }
        if !migration.request.is_empty() {
            socket.push(&mut migration.request.take(room));
            continue;
        }
        steps += 1;
        let is_late = steps % STEP == 0 && core.state.clock.now().boot_us >= until_us;
        if is_late || !next_request(core, migration) {
            return;
        }
    }
}

/// Sends the first requests on a connection.
fn begin_line(state: &mut State, migration: &mut Migration, line: usize) {
    if mem::replace(&mut migration.has_begun, true) {
        return;
    }
    let Some(line) = state.net.lines.get_mut(line) else { return };
    let order = &migration.order;
    let mut requests = Vec::new();
    if !order.credentials.is_empty() {
        let auth = std::iter::once(&b"AUTH"[..]).chain(order.credentials.iter().map(|it| &**it));
        encode(auth.collect::<Vec<_>>(), &mut requests);
        migration.awaited.push_back(Awaited::Preamble);
    }
    if line.database.is_none() || line.database != parse_i64(&order.target_database) {
        encode([&b"SELECT"[..], &order.target_database], &mut requests);
        migration.awaited.push_back(Awaited::Preamble);
    }
    line.socket.push(&mut requests);
}

/// Makes the request for the next key. False: there is none now.
fn next_request(core: &mut Core, migration: &mut Migration) -> bool {
    if let Some((sent, payload)) = &migration.encoding {
        let sent = *sent;
        let Some(payload) = lock(payload).take() else { return false };
        migration.encoding = None;
        core.state.moving.encoding -= 1;
        push_request(core, migration, sent, payload);
        return true;
    }
    if migration.preamble_refused {
        // The other server would refuse each key.
        migration.next = migration.order.names.len();
        migration.again.clear();
    }
    if !may_encode(&core.state, migration) {
        return false;
    }
    let (name, replaces) = match migration.again.pop_front() {
        Some(again) => again,
        None if migration.next < migration.order.names.len() => {
            migration.next += 1;
            (migration.next - 1, migration.order.replaces)
        }
        None => return false,
    };
    begin_key(core, migration, Sent { name, changes: 0, replaces });
    true
}

/// Reads a key's value; from now on the key may not be written. Skips a key that does not exist.
fn begin_key(core: &mut Core, migration: &mut Migration, mut sent: Sent) {
    let MoveOrder { database, copies, .. } = migration.order;
    let bytes = migration.order.names.get(sent.name);
    core.keyspace.select(database);
    let key = core.keyspace.key(bytes);
    let Some(slot) = core.keyspace.find_quietly(key) else { return };
    if !copies {
        sent.changes = core.keyspace.watch.add(database, bytes);
        core.state.moving.lock(database, bytes);
    }
    let now = core.state.clock.now();
    let value = core.keyspace.entry(slot).value();
    // Without a thread, the value is encoded here.
    if let ValueRef::Object(value) = value
        && value.heap_bytes() > ENCODED_HERE_MAX
        && let Ok(payload) = encode_value_beside(core, value.clone(), now)
    {
        core.state.moving.encoding += 1;
        migration.encoding = Some((sent, payload));
        return;
    }
    let encoder = core.state.payload_encoder(core.keyspace.lease_shift_ms());
    let payload = payload::dump_as_in_files(encoder, value, &now);
    push_request(core, migration, sent, payload);
}

fn encode_value_beside(core: &Core, value: Value, now: Now) -> io::Result<Payload> {
    let state = &core.state;
    let (compresses, newer) = (state.config.rdbcompression, state.newer());
    let leases = LeaseTimes { shift_ms: core.keyspace.lease_shift_ms(), latest_ms: None };
    make_beside(state, "migrate", move || {
        let mut encoder = Encoder::new(compresses).with_newer(newer).with_leases(leases);
        // The thread drops the value too, perhaps its last copy.
        payload::dump_as_in_files(&mut encoder, ValueRef::Object(&value), &now)
    })
}

/// Makes a value in a thread, and then wakes the loop. Errors: no thread can be started.
pub fn make_beside<T: Send + 'static>(
    state: &State,
    thread: &str,
    make: impl FnOnce() -> T + Send + 'static,
) -> io::Result<ThreadResult<T>> {
    let (place, wake) = (ThreadResult::default(), state.persistence.wake());
    let theirs = ThreadResult::clone(&place);
    state.persistence.background().spawn(thread, move || {
        let made = make();
        *lock(&theirs) = Some(made);
        wake();
    })?;
    Ok(place)
}

/// Makes the RESTORE of a key. In a cluster it is a RESTORE-ASKING, because the target may not own
/// the slot yet.
fn push_request(core: &mut Core, migration: &mut Migration, sent: Sent, payload: Vec<u8>) {
    let order = &migration.order;
    let name = order.names.get(sent.name);
    core.keyspace.select(order.database);
    let deadline = {
        let slot = core.keyspace.find_quietly(core.keyspace.key(name));
        slot.and_then(|slot| core.keyspace.entry(slot).deadline())
    };
    let ttl_ms = match deadline.map(|deadline| core.state.clock.now().remaining_ms(deadline)) {
        Some(..0) => return unlock(core, &migration.order, sent),
        // 0 would mean no deadline.
        Some(ms) => ms.max(1),
        None => 0,
    };
    let restore: &[u8] =
        if core.state.node.cluster.is_some() { b"RESTORE-ASKING" } else { b"RESTORE" };
    let ttl = ttl_ms.to_string();
    let (mut head, mut tail) = (Vec::new(), b"\r\n".to_vec());
    encode_length(b'*', if sent.replaces { 5 } else { 4 }, &mut head);
    [restore, name, ttl.as_bytes()].into_iter().for_each(|arg| encode_argument(arg, &mut head));
    encode_length(b'$', payload.len(), &mut head);
    if sent.replaces {
        encode_argument(b"REPLACE", &mut tail);
    }
    migration.request = match payload.len() > ENCODED_HERE_MAX {
        true => Outgoing::new([head, payload, tail]),
        false => Outgoing::new([[head, payload, tail].concat()]),
    };
    migration.awaited.push_back(Awaited::Key(sent));
}

/// Takes the replies that have arrived, and deletes the keys that the other server has.
fn take_replies(
    core: &mut Core,
    migration: &mut Migration,
    line: usize,
    until_us: i64,
) -> Result<(), Broken> {
    let Some(line) = core.state.net.lines.get_mut(line) else { return Err(READING_FAILED) };
    let mut input = mem::take(&mut line.input);
    let (mut at, mut broken) = (0, None);
    while let Some(length) = input[at..].iter().position(|byte| *byte == b'\n') {
        let reply = input[at..at + length].strip_suffix(b"\r").unwrap_or(&input[at..at + length]);
        migration.is_kept_line = false;
        let Some(awaited) = migration.awaited.pop_front() else {
            broken = (!migration.is_done()).then_some(READING_FAILED);
            break;
        };
        at += length + 1;
        let answer = Answer::of(reply);
        if answer == Answer::Foreign {
            // Nor do later lines say what became of a key.
            migration.awaited.push_front(awaited);
            broken = Some(READING_FAILED);
            break;
        }
        take_reply(core, migration, awaited, answer);
        if migration.taken.len() % STEP == STEP - 1 && core.state.clock.now().boot_us >= until_us {
            break;
        }
    }
    input.drain(..at);
    if input.len() > REPLY_MAX && !input.contains(&b'\n') {
        broken = Some(READING_FAILED);
    }
    if let Some(line) = migration.line.and_then(|line| core.state.net.lines.get_mut(line)) {
        line.input = input;
    }
    broken.map_or(Ok(()), Err)
}

/// Takes a reply. If the other server has the key, deletes it here.
fn take_reply(core: &mut Core, migration: &mut Migration, awaited: Awaited, answer: Answer<'_>) {
    if let Answer::Refused(error) = answer
        && migration.refused.is_none()
    {
        migration.refused = Some(error.to_vec());
    }
    let Awaited::Key(sent) = awaited else {
        migration.preamble_refused |= answer != Answer::Done;
        return;
    };
    let MoveOrder { database, copies, .. } = migration.order;
    if !copies && answer == Answer::Done && !migration.preamble_refused {
        let name = migration.order.names.get(sent.name);
        core.keyspace.select(database);
        if core.keyspace.watch.has_changed(database, name, sent.changes) {
            send_again(&mut core.keyspace, migration, sent.name);
        } else {
            core.keyspace.locks.note_moved(database, name);
            confirm::follow(core, database, name);
            let key = core.keyspace.key(name);
            migration.taken.extend(core.keyspace.delete(key, "del").then_some(sent.name));
        }
    }
    unlock(core, &migration.order, sent);
}

/// Sends a key that has changed on its way again, if it still exists.
fn send_again(keyspace: &mut Keyspace, migration: &mut Migration, name: usize) {
    let key: Key<'_> = keyspace.key(migration.order.names.get(name));
    if keyspace.find_quietly(key).is_none() {
        return;
    }
    if migration.repeated >= REPEATS_MAX * migration.order.names.len() {
        migration.is_unstable = true;
        return;
    }
    migration.repeated += 1;
    migration.again.push_back((name, true));
}

/// Replicates the deletions since the last call, to the AOF too, and announces them.
fn replicate_deletions(core: &mut Core, migration: &mut Migration) {
    let taken = mem::take(&mut migration.taken);
    if taken.is_empty() {
        return;
    }
    if core.state.effects.is_heard() {
        let names = taken.iter().map(|&name| migration.order.names.get(name));
        let request: Vec<&[u8]> = std::iter::once(&b"DEL"[..]).chain(names).collect();
        let apart = core.state.effects.begin_apart();
        core.state.effects.push(migration.order.database, request.into_iter());
        core.state.effects.end_apart(apart);
    }
    publish_events(core);
}
