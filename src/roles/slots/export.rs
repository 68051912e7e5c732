//! The source's end of a move.
//!
//! ```text
//! keys in the order of their slots -> commands that create them  \
//! changes of keys that were copied -> as replicas get them        > connection
//! ```
//!
//! Nothing is frozen for the copy. A key is copied as it is when its turn comes; only later changes
//! of the key are passed on. If only some of the keys of a change were copied, the change is not
//! passed on: those keys are copied again instead.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use super::{ACK_S, HANDED_OVER, NEWS_MS, Phase, finish, log_transition, said, set_phase};
use crate::cluster::node::{NodeId, NodeIndex};
use crate::cluster::slot_job::{Job, UNEXPECTED, Word};
use crate::collections::hash_slot::{HashSlot, SlotRanges, SlotSet};
use crate::collections::table::{Slot, ValueRef};
use crate::config::ClientClass;
use crate::durability::persistence;
use crate::gate::keys::keys_of;
use crate::keyspace::{DbIndex, Keyspace};
use crate::net::lines::Peer;
use crate::net::primary::ReadResult;
use crate::persist::aof::rewrite::CommandWriter;
use crate::persist::rdb::{LeaseTimes, SavedEntry};
use crate::persist::saver::lock;
use crate::resp::answer::Answer;
use crate::resp::args::Args;
use crate::resp::request::{Limits, Parsed, Parser, Range, encode, encode_auth};
use crate::roles::cluster::lists;
use crate::roles::moving::{self, Connecting, ENCODED_HERE_MAX, ENCODERS_MAX};
use crate::state::moving::Payload;
use crate::state::slot_moves::{Export, Part};
use crate::state::spec::KeyPosition;
use crate::state::table::Command;
use crate::state::{Core, State};
use crate::sys::log::{notice, warning};
use crate::sys::random;
use crate::types::Value;

const LOST: &str = "Connection lost to target. Check CLUSTER GETSLOTMIGRATIONS on the target node for more information.";
const NOT_MINE: &str = "Slots are no longer owned by myself";
const STREAMING_LATE: &str = "Timed out before streaming completed";
const UNPAUSED: &str =
    "Unpaused before migration completed (migration may have succeeded with lost writes)";
const BAD_REPLY: &str = "Response to establish job is larger than buffer limit";

/// Time for copying in a turn. Unit: microseconds.
const TURN_US: i64 = 500;
/// Limits of the bytes given to a connection that the system has not taken yet, and of the bytes
/// made ahead of these.
const UNSENT_MAX: usize = 256 * 1024;
const AHEAD_MAX: usize = 1024 * 1024;
/// Keys between two readings of the clock.
const STEP: usize = 32;
/// The longest reply, or request of the target. Unit: bytes.
const INPUT_MAX: usize = 16 * 1024;

/// Begins to move slots of this node to another one.
pub fn begin_export(core: &mut Core, ranges: SlotRanges, target: NodeIndex) {
    let now_s = core.state.now.unix_seconds();
    let Some(cluster) = core.state.node.cluster.as_deref() else { return };
    let Some(name) = NodeId::from_bytes(random::hex_id().as_bytes()) else { return };
    let job = Job::export(name, ranges, cluster.myself().id, cluster.node(target).id, now_s);
    let description = job.description();
    notice!(
        core.state,
        "Slot migration initiated through CLUSTER MIGRATESLOTS command: {description}"
    );
    core.state.node.moves.jobs.add(job);
    core.state.node.moves.exports.insert(name, Export::default());
    core.state.node.moves.is_due = true;
    persistence::note_listeners(core);
}

/// Cancels the moves from this node. A target may have taken granted slots: their moves end with
/// the grant, until which writes wait. False: there was no move.
pub fn cancel_exports(core: &mut Core) -> bool {
    let jobs = core.state.node.moves.jobs.0.iter();
    let jobs = jobs.filter(|job| !job.is_import && job.phase.is_in_progress());
    let jobs: Vec<(NodeId, bool)> = jobs.map(|job| (job.name, job.is_granted())).collect();
    for (name, is_granted) in &jobs {
        match core.state.node.moves.exports.get_mut(name).filter(|_| *is_granted) {
            None => finish(core, name, Phase::Cancelled, ""),
            Some(export) => {
                export.is_cancelled = true;
                // A target that has not taken the slots yet does not take them any more.
                if let Some(line) = export.line.take() {
                    core.state.net.lines.close(line);
                }
            }
        }
    }
    !jobs.is_empty()
}

/// When a delayed export copies its next key: boot-time clock, microseconds.
pub(super) fn next_us(state: &State) -> Option<i64> {
    let exports = state.node.moves.exports.values().filter(|export| !export.is_copied);
    exports.map(|export| export.next_copy_us).filter(|next_us| *next_us > state.now.boot_us).min()
}

pub(super) fn wants_turn(state: &State) -> bool {
    state.node.moves.exports.iter().any(|(name, export)| has_work(state, name, export))
}

fn has_work(state: &State, name: &NodeId, export: &Export) -> bool {
    let Some(job) = state.node.moves.jobs.find(name) else { return false };
    let Some(line) = export.line.and_then(|line| state.net.lines.get(line)) else {
        return job.phase == Phase::Connecting && export.line.is_none();
    };
    let copies = job.phase == Phase::Snapshotting
        && !export.is_copied
        && export.next_copy_us <= state.now.boot_us
        && export.queued < AHEAD_MAX
        && state.node.moves.encoding < ENCODERS_MAX;
    let has_part = matches!(export.parts.front(), Some(Part::Bytes(..) | Part::Made(..)));
    line.socket.may_read()
        || line.socket.may_write() && (line.socket.unsent() > 0 || has_part || copies)
}

/// Ends the connection of a job.
pub(super) fn close(core: &mut Core, name: &NodeId) {
    if let Some(export) = core.state.node.moves.exports.remove(name) {
        let later = export.parts.iter().filter(|part| matches!(part, Part::Later(_))).count();
        core.state.node.moves.encoding -= later;
        if let Some(line) = export.line {
            core.state.net.lines.close(line);
        }
    }
    note_pauses(&mut core.state);
    persistence::note_listeners(core);
}

/// Pauses writes to the slots of all jobs that ask for it, and notes which slots may be claimed.
fn note_pauses(state: &mut State) {
    let mut paused: Option<SlotSet> = None;
    let mut granted = Vec::new();
    for job in state.node.moves.jobs.0.iter().filter(|job| job.pause_end_ms > 0) {
        let paused = paused.get_or_insert_default();
        paused.extend(job.slots.iter());
        let target = job.target.and_then(|id| state.node.cluster.as_deref()?.find(&id));
        if let Some(target) = target.filter(|_| job.phase == Phase::FailoverGranted) {
            granted.push((job.slots.clone(), target));
        }
    }
    if let Some(cluster) = &mut state.node.cluster {
        cluster.set_granted(granted);
    }
    state.moving.pause(paused);
    let freed = state.moving.take_freed();
    state.net.pending.resumed.extend(freed);
    state.refresh_fast_path();
}

/// Continues all exports.
pub(super) fn turn(core: &mut Core) {
    let names: Vec<NodeId> = core.state.node.moves.exports.keys().copied().collect();
    if feed(core) {
        super::data_flushed(core);
    }
    for name in names {
        let Some(mut export) = core.state.node.moves.exports.remove(&name) else { continue };
        let gone_on = go_on(core, &name, &mut export);
        core.state.node.moves.exports.insert(name, export);
        match gone_on {
            Ok(None) => {}
            Ok(Some(phase)) => finish(core, &name, phase, ""),
            Err(why) => finish(core, &name, Phase::Failed, &why),
        }
    }
}

fn phase_of(state: &State, name: &NodeId) -> Phase {
    state.node.moves.jobs.find(name).map_or(Phase::Failed, |job| job.phase)
}

/// Continues an export. `Some`: it has ended. Errors: why it failed.
fn go_on(core: &mut Core, name: &NodeId, export: &mut Export) -> Result<Option<Phase>, String> {
    if let Some(ended) = look_at_owner(&core.state, name, export)? {
        return Ok(Some(ended));
    }
    if core.state.replication.is_replica() {
        return Err(NOT_MINE.into());
    }
    if phase_of(&core.state, name) == Phase::Connecting && !connect(&mut core.state, name, export)?
    {
        return Ok(None);
    }
    let Some(line) = export.line else { return Ok(None) };
    let reading = core.state.net.lines.read(line);
    take_input(&mut core.state, name, export, line)?;
    if phase_of(&core.state, name) == Phase::Snapshotting {
        copy(core, name, export);
    }
    send(&mut core.state, export, line)?;
    try_to_pause(&mut core.state, name, export);
    say_ack(&core.state, name, export);
    send(&mut core.state, export, line)?;
    check_output_limit(&mut core.state, name, export)?;
    if let ReadResult::Ended(_) = reading {
        if phase_of(&core.state, name) != Phase::FailoverGranted {
            return Err(LOST.into());
        }
        // The target may have taken the slots; then the cluster bus will report it.
        core.state.net.lines.close(line);
        export.line = None;
    }
    Ok(None)
}

/// Checks whether the slots have their new owner, or the grant of a cancelled move is over
/// (`Some`). Errors: another node has them, or a pause is over.
fn look_at_owner(state: &State, name: &NodeId, export: &Export) -> Result<Option<Phase>, String> {
    let Some(job) = state.node.moves.jobs.find(name) else { return Err(NOT_MINE.into()) };
    let Some(cluster) = state.node.cluster.as_deref() else { return Err(NOT_MINE.into()) };
    match cluster.owner_of_all(&job.slots) {
        Some(owner) if owner == cluster.my_index() => {}
        Some(owner) if Some(cluster.node(owner).id) == job.target => {
            let job = job.description();
            notice!(state, "Slot migration {job} slots are now owned by target node.");
            return Ok(Some(Phase::Success));
        }
        _ => return Err(NOT_MINE.into()),
    }
    let is_over = job.pause_end_ms > 0 && state.now.boot_us / 1000 >= job.pause_end_ms;
    match job.phase {
        Phase::FailoverPaused if is_over => Err(STREAMING_LATE.into()),
        Phase::FailoverGranted if is_over && export.is_cancelled => Ok(Some(Phase::Cancelled)),
        Phase::FailoverGranted if is_over => {
            let job = job.description();
            warning!(
                state,
                "Write loss risk! During slot migration {job}, new owner did not broadcast ownership before we unpaused \
                 ourselves. Any writes we have recorded since unpausing may be lost!"
            );
            Err(UNPAUSED.into())
        }
        _ => Ok(None),
    }
}

// ---- the connection -----------------------------------------------------------------------------

/// Begins or continues to connect. True: the connection stands.
fn connect(state: &mut State, name: &NodeId, export: &mut Export) -> Result<bool, String> {
    let failed = |error: &io::Error| format!("Unable to connect to target node: {error}");
    let line = match export.line {
        Some(line) => line,
        None => {
            let peer = peer_of(state, name)
                .ok_or("Unable to connect to target node: target node not found")?;
            let (host, port) = (String::from_utf8_lossy(&peer.host).into_owned(), peer.port);
            let job = state.node.moves.jobs.find(name).map(Job::description).unwrap_or_default();
            notice!(state, "Connecting slot migration {job} (ip: {host}, port {port})");
            let line = moving::make(state, peer).map_err(|error| failed(&error))?;
            export.line = Some(line);
            line
        }
    };
    match moving::connect_line(state, line) {
        Ok(Connecting::Stands) => {}
        Ok(Connecting::Waits | Connecting::Progress) => return Ok(false),
        Err(error) => return Err(failed(&error)),
    }
    let config = &state.config;
    let mut request = Vec::new();
    encode_auth(&config.masteruser, &config.masterauth, &mut request);
    if request.is_empty() {
        request = establish(state, name);
        set_phase(state, name, Phase::ReadingEstablish);
    } else {
        set_phase(state, name, Phase::ReadingAuth);
    }
    if let Some(line) = state.net.lines.get_mut(line) {
        line.socket.push(&mut request);
    }
    Ok(true)
}

/// The clients' port of the target, as a replica would use it.
fn peer_of(state: &State, name: &NodeId) -> Option<Peer> {
    let cluster = state.node.cluster.as_deref()?;
    let target = cluster.find(&state.node.moves.jobs.find(name)?.target?)?;
    let address = &cluster.node(target).address;
    let is_tls = state.config.tls_replication && address.tls_port != 0;
    let port = if is_tls { address.tls_port } else { address.tcp_port };
    (!address.ip.is_empty() && port != 0).then(|| Peer {
        host: address.ip.clone().into_bytes().into(),
        port,
        is_tls,
    })
}

fn establish(state: &State, name: &NodeId) -> Vec<u8> {
    let mut request = Vec::new();
    let Some(job) = state.node.moves.jobs.find(name) else { return request };
    let Some(source) = job.source else { return request };
    let numbers = job.ranges.iter().flat_map(|(first, last)| [first.number(), last.number()]);
    let numbers: Vec<String> = numbers.map(|number| number.to_string()).collect();
    let words = [
        &b"CLUSTER"[..],
        b"SYNCSLOTS",
        b"ESTABLISH",
        b"SOURCE",
        source.as_bytes(),
        b"NAME",
        name.as_bytes(),
        b"SLOTSRANGE",
    ];
    let words: Vec<&[u8]> =
        words.into_iter().chain(numbers.iter().map(|number| number.as_bytes())).collect();
    encode(words, &mut request);
    request
}

/// Takes the replies, and then the target's messages.
fn take_input(
    state: &mut State,
    name: &NodeId,
    export: &mut Export,
    number: usize,
) -> Result<(), String> {
    loop {
        let phase = phase_of(state, name);
        let Some(line) = state.net.lines.get_mut(number) else { return Ok(()) };
        if !matches!(phase, Phase::ReadingAuth | Phase::ReadingEstablish) {
            break;
        }
        let Some(end) = line.input.iter().position(|byte| *byte == b'\n') else {
            return if line.input.len() > INPUT_MAX { Err(BAD_REPLY.into()) } else { Ok(()) };
        };
        let reply: Vec<u8> = line.input.drain(..=end).collect();
        let reply = reply.trim_ascii_end();
        let text = String::from_utf8_lossy(reply).into_owned();
        let is_done = Answer::of(reply) == Answer::Done;
        match phase {
            Phase::ReadingAuth if !is_done => {
                return Err(format!("Failed to AUTH to target node: {text}"));
            }
            Phase::ReadingAuth => {
                let mut request = establish(state, name);
                if let Some(line) = state.net.lines.get_mut(number) {
                    line.socket.push(&mut request);
                }
                set_phase(state, name, Phase::ReadingEstablish);
            }
            _ if !is_done => {
                return Err(format!("Received error during handshake to target: {text}"));
            }
            _ => {
                export.push(&said(Word::Ack));
                let job = state.node.moves.jobs.find(name).map(Job::description);
                let job = job.unwrap_or_default();
                notice!(state, "Beginning snapshot of slot migration {job}.");
                set_phase(state, name, Phase::Snapshotting);
            }
        }
    }
    take_words(state, name, export, number)
}

fn take_words(
    state: &mut State,
    name: &NodeId,
    export: &mut Export,
    number: usize,
) -> Result<(), String> {
    let Some(line) = state.net.lines.get_mut(number) else { return Ok(()) };
    let mut input = std::mem::take(&mut line.input);
    let limits =
        Limits { bulk_len_max: 1024, request_bytes_max: INPUT_MAX as u64, ..Limits::TRUSTED };
    let (mut at, mut ranges) = (0, Vec::new());
    let broken = loop {
        ranges.clear();
        let (rest, mut len) = (&mut input[at..], 0);
        match Parser::default().next(rest, &mut len, &mut ranges, &limits) {
            Ok(Parsed::Incomplete) => break None,
            Err(_) => break Some(UNEXPECTED),
            Ok(Parsed::Empty | Parsed::Request) => {}
        }
        let args = Args::new(&input[at..], &ranges);
        at += len;
        let is_word = args.len() >= 3
            && args.get(0).eq_ignore_ascii_case(b"CLUSTER")
            && args.get(1).eq_ignore_ascii_case(b"SYNCSLOTS");
        let word = is_word.then(|| Word::parse(args.get(2))).flatten();
        let heard = match word {
            Some(word) => hear(state, name, export, word),
            None => Err("Unknown SYNCSLOTS subcommand used"),
        };
        if let Err(why) = heard {
            break Some(why);
        }
    };
    input.drain(..at);
    if let Some(line) = state.net.lines.get_mut(number) {
        line.input = input;
    }
    broken.map_or(Ok(()), |why| Err(why.into()))
}

fn hear(
    state: &mut State,
    name: &NodeId,
    export: &mut Export,
    word: Word,
) -> Result<(), &'static str> {
    let (now_s, now_ms) = (state.now.unix_seconds(), state.now.boot_us / 1000);
    let Some(job) = state.node.moves.jobs.find_mut(name) else { return Err(UNEXPECTED) };
    // The target has all keys only after SNAPSHOT-EOF.
    let is_early = word == Word::RequestPause && !export.is_copied;
    let before = job.phase;
    // The replica that takes over would claim slots that the target has just taken.
    let cluster = state.node.cluster.as_deref();
    let is_handed_over =
        word == Word::RequestFailover && cluster.is_some_and(|cluster| cluster.is_handing_over());
    let answer = match (is_early, is_handed_over) {
        (true, _) => Err(UNEXPECTED),
        (_, true) => Err(HANDED_OVER),
        _ => job.hear(word, now_s, now_ms),
    };
    if answer == Ok(Some(Word::FailoverGranted)) {
        job.pause_end_ms = job.pause_end_ms.max(now_ms + NEWS_MS);
    }
    if before != job.phase {
        log_transition(state, name, before);
    }
    if let Some(word) = answer? {
        export.push(&said(word));
        note_pauses(state);
    }
    Ok(())
}

/// Sends as many bytes as the system takes.
fn send(state: &mut State, export: &mut Export, number: usize) -> Result<(), String> {
    let Some(line) = state.net.lines.get_mut(number) else { return Ok(()) };
    while line.socket.unsent() < UNSENT_MAX {
        let bytes = match export.parts.front_mut() {
            None => break,
            Some(Part::Bytes(bytes, sent) | Part::Made(bytes, sent)) => {
                let end = bytes.len().min(*sent + UNSENT_MAX);
                let is_last = end == bytes.len();
                let piece = match *sent {
                    0 if is_last => std::mem::take(bytes),
                    from => bytes[from..end].to_vec(),
                };
                *sent = end;
                if is_last {
                    export.parts.pop_front();
                }
                piece
            }
            Some(Part::Later(payload)) => {
                let Some(made) = lock(payload).take() else { break };
                state.node.moves.encoding -= 1;
                export.queued += made.len();
                *export.parts.front_mut().expect("it was looked at") = Part::Made(made, 0);
                continue;
            }
        };
        export.queued -= bytes.len();
        state.stats.counters.slot_bytes_out += bytes.len() as u64;
        let mut bytes = bytes;
        line.socket.push(&mut bytes);
    }
    line.socket.write().map_err(|_| LOST.to_owned())
}

fn say_ack(state: &State, name: &NodeId, export: &mut Export) {
    let now_s = state.now.unix_seconds();
    let says = state.node.moves.jobs.find(name).is_some_and(Job::says_ack);
    if says && now_s - export.said_s >= ACK_S {
        export.said_s = now_s;
        export.push(&said(Word::Ack));
    }
}

/// Bytes that the target has not been sent yet.
pub fn remaining(state: &State, name: &NodeId) -> usize {
    state.node.moves.exports.get(name).map_or(0, |export| bytes_behind(state, export))
}

fn bytes_behind(state: &State, export: &Export) -> usize {
    let line = export.line.and_then(|line| state.net.lines.get(line));
    export.queued + line.map_or(0, |line| line.socket.unsent())
}

/// Checks the bytes that the target leaves unread. Errors: they exceed the
/// `client-output-buffer-limit` of replicas.
fn check_output_limit(state: &mut State, name: &NodeId, export: &mut Export) -> Result<(), String> {
    let limit = state.config.client_output_buffer_limit[ClientClass::Replica as usize];
    let used = (bytes_behind(state, export) - export.bytes_of_large()) as u64;
    let since_us = &mut export.over_soft_limit_since_us;
    // After the grant no bytes are added, and the target may have taken the slots.
    if !limit.is_exceeded(used, since_us, state.now.boot_us)
        || phase_of(state, name) == Phase::FailoverGranted
    {
        return Ok(());
    }
    state.stats.counters.output_buffer_limit_disconnections += 1;
    let job = state.node.moves.jobs.find(name).map(Job::description).unwrap_or_default();
    warning!(
        state,
        "Slot migration {job}: {used} bytes wait for the target, which exceeds client-output-buffer-limit of replicas."
    );
    Err(LOST.into())
}

/// Pauses writes to the slots, if few enough bytes are left to send.
fn try_to_pause(state: &mut State, name: &NodeId, export: &mut Export) {
    if phase_of(state, name) != Phase::WaitingToPause || state.node.moves.prevents_pause {
        return;
    }
    let left = bytes_behind(state, export);
    let has_later = export.parts.iter().any(|part| matches!(part, Part::Later(_)));
    let left_max = u64::try_from(state.config.slot_migration_max_failover_repl_bytes);
    if has_later || left_max.is_ok_and(|max| left as u64 > max) {
        return;
    }
    let pause_ms = 2 * i64::from(state.config.cluster_manual_failover_timeout);
    let end_ms = state.now.boot_us / 1000 + pause_ms;
    let Some(job) = state.node.moves.jobs.find_mut(name) else { return };
    job.pause_end_ms = end_ms;
    let job = job.description();
    notice!(
        state,
        "Pausing writes (remaining_repl_size is {left}) to allow slot migration {job} to finalize failover."
    );
    set_phase(state, name, Phase::FailoverPaused);
    note_pauses(state);
    export.push(&said(Word::Paused));
}

// ---- keys and changes ---------------------------------------------------------------------------

/// Selects the database of the next command for the target, if another one is selected.
fn select(export: &mut Export, database: DbIndex, out: &mut Vec<u8>) {
    if export.selected != Some(database) {
        export.selected = Some(database);
        let number = database.to_string();
        encode([&b"SELECT"[..], number.as_bytes()], out);
    }
}

/// Copies the next keys, for a bounded time.
fn copy(core: &mut Core, name: &NodeId, export: &mut Export) {
    // A unit that is not complete yet would be passed on after this copy, as if it came later.
    if export.is_copied || !core.state.effects.is_empty() {
        return;
    }
    let Some(slots) = core.state.node.moves.jobs.find(name).map(|job| job.slots.clone()) else {
        return;
    };
    let begun_us = core.state.clock.now().boot_us;
    if begun_us < export.next_copy_us || !lists::ask(core) {
        return;
    }
    let (until_us, delay_us) =
        (begun_us + TURN_US, i64::from(core.state.config.rdb_key_save_delay));
    let (first, mut after) = match export.copied {
        Some((database, number)) => (database, Some(number)),
        None => (DbIndex::ZERO, None),
    };
    let mut steps = 0;
    for database in DbIndex::all(core.keyspace.databases()).skip(first.get()) {
        core.keyspace.select(database);
        for slot in slots.iter() {
            loop {
                let Some(list) = core.keyspace.table().slot_list() else { return };
                let Some((number, keys)) = list.keys_after(slot, after) else { break };
                if export.queued >= AHEAD_MAX || core.state.node.moves.encoding >= ENCODERS_MAX {
                    return;
                }
                if delay_us > 0 && steps > 0 {
                    export.next_copy_us = begun_us + delay_us;
                    return;
                }
                steps += 1;
                if steps % STEP == 0 && core.state.clock.now().boot_us >= until_us {
                    return;
                }
                keys.into_iter().for_each(|at| copy_key(core, export, database, at));
                (after, export.copied) = (Some(number), Some((database, number)));
            }
        }
        after = None;
        export.copied = Some((database, u64::MAX));
    }
    export.is_copied = true;
    export.push(&said(Word::SnapshotEof));
    if let Some(job) = core.state.node.moves.jobs.find(name) {
        let job = job.description();
        notice!(core.state, "Slot migration {job} snapshot finished, starting streaming.");
    }
    set_phase(&mut core.state, name, Phase::Replicating);
}

/// Adds the commands that create a key of the selected database.
fn copy_key(core: &mut Core, export: &mut Export, database: DbIndex, at: Slot) {
    let now = core.keyspace.now();
    let entry = core.keyspace.entry(at);
    if entry.deadline().is_some_and(|deadline| now.is_past(deadline)) {
        return;
    }
    let deadline_ms =
        entry.deadline().map(|deadline| deadline.unix(core.keyspace.shown_offset_ms()).0);
    let mut out = Vec::new();
    select(export, database, &mut out);
    export.push(&out);
    if let ValueRef::Object(value) = entry.value()
        && value.heap_bytes() > ENCODED_HERE_MAX
        && let Ok(payload) = encode_entry_beside(core, entry.key(), value.clone(), deadline_ms)
    {
        core.state.node.moves.encoding += 1;
        export.parts.push_back(Part::Later(payload));
        return;
    }
    let saved = SavedEntry {
        key: entry.key(),
        value: entry.value(),
        deadline_ms,
        idle_seconds: None,
        frequency: None,
        // The target may not know BLESS.
        is_blessed: false,
    };
    export.push(&commands(&saved, &now, leases(&core.keyspace), core.state.newer().producers));
}

fn leases(keyspace: &Keyspace) -> LeaseTimes {
    LeaseTimes { shift_ms: keyspace.lease_shift_ms(), latest_ms: None }
}

fn commands(
    saved: &SavedEntry<'_>,
    now: &crate::clock::Now,
    leases: LeaseTimes,
    has_producers: bool,
) -> Vec<u8> {
    let mut out = Vec::new();
    let mut writer = CommandWriter::new(&mut out, None, leases, has_producers);
    // Writing to memory does not fail.
    let _ = writer.entry(saved, now).and_then(|()| writer.finish());
    out
}

/// Makes the commands of a large value in a thread. Errors: no thread can be started.
fn encode_entry_beside(
    core: &Core,
    key: &[u8],
    value: Value,
    deadline_ms: Option<i64>,
) -> io::Result<Payload> {
    let (key, now, leases) = (key.to_vec(), core.state.clock.now(), leases(&core.keyspace));
    let has_producers = core.state.newer().producers;
    moving::make_beside(&core.state, "slots", move || {
        let value = ValueRef::Object(&value);
        let saved = SavedEntry {
            key: &key,
            value,
            deadline_ms,
            idle_seconds: None,
            frequency: None,
            is_blessed: false,
        };
        commands(&saved, &now, leases, has_producers)
    })
}

/// Passes this turn's changes on to the targets. True: a database was emptied.
fn feed(core: &mut Core) -> bool {
    let mut changes = std::mem::take(&mut core.state.node.moves.changes);
    let mut exports = std::mem::take(&mut core.state.node.moves.exports);
    let mut again: BTreeMap<NodeId, ToCopy> = BTreeMap::new();
    let (mut at, mut ranges, mut is_flushed) = (0, Vec::<Range>::new(), false);
    while at < changes.len() {
        ranges.clear();
        let mut len = 0;
        let parsed =
            Parser::default().next(&mut changes[at..], &mut len, &mut ranges, &Limits::TRUSTED);
        if !matches!(parsed, Ok(Parsed::Request)) {
            break;
        }
        let request = &changes[at..at + len];
        at += len;
        let args = Args::new(request, &ranges);
        let verb = args.get(0);
        if verb.eq_ignore_ascii_case(b"SELECT") {
            let number = args.integer(1).ok().and_then(DbIndex::read);
            core.state.node.moves.selected = number.unwrap_or(DbIndex::ZERO);
            continue;
        }
        is_flushed |=
            verb.eq_ignore_ascii_case(b"FLUSHALL") || verb.eq_ignore_ascii_case(b"FLUSHDB");
        let commands = core.state.commands;
        let Some(mut command) = core.state.find_trusted(verb) else { continue };
        if !command.subcommands.is_empty() && args.len() > 1 {
            let Some(subcommand) = commands.find_subcommand(command, args.get(1)) else { continue };
            command = subcommand;
        }
        let keys = keys_of(command.spec, args);
        let Some(first) = keys.first() else { continue };
        let slot = HashSlot::of(args.get(first.index));
        let database = core.state.node.moves.selected;
        for (name, export) in &mut exports {
            let job = core.state.node.moves.jobs.find(name);
            if job.is_some_and(|job| job.slots.contains(slot)) {
                let places = places(command, args, database, &keys);
                let change = Change { database, request, places };
                let again = again.entry(*name).or_default();
                tell(&mut core.keyspace, export, &change, again);
            }
        }
    }
    for (name, keys) in again {
        let Some(export) = exports.get_mut(&name) else { continue };
        for (database, key) in keys {
            copy_again(core, export, database, &key);
        }
    }
    core.state.node.moves.exports = exports;
    is_flushed
}

/// A request of the stream that changes keys.
struct Change<'a> {
    database: DbIndex,
    request: &'a [u8],
    places: Vec<Place<'a>>,
}

/// A key that a change reads or writes.
struct Place<'a> {
    database: DbIndex,
    key: &'a [u8],
    is_written: bool,
}

/// The keys of a change, each with its database: MOVE and COPY also write the last key in the
/// database that an argument names.
fn places<'a>(
    command: &Command,
    args: Args<'a>,
    selected: DbIndex,
    keys: &[KeyPosition],
) -> Vec<Place<'a>> {
    let place = |key: &KeyPosition| Place {
        database: selected,
        key: args.get(key.index),
        is_written: key.flags.may_change(),
    };
    let mut places: Vec<Place<'a>> = keys.iter().map(place).collect();
    let named = command.spec.databases.arguments(args);
    let other = named.last().and_then(|index| DbIndex::read(args.integer(*index).ok()?));
    if let (Some(other), Some(last)) = (other, places.last_mut()) {
        match keys.len() {
            1 => {
                let key = last.key;
                places.push(Place { database: other, key, is_written: true });
            }
            _ => last.database = other,
        }
    }
    places
}

/// Keys that must be copied again.
type ToCopy = BTreeSet<(DbIndex, Vec<u8>)>;

/// Passes a change on to a target, or notes the keys that must be copied again.
fn tell(keyspace: &mut Keyspace, export: &mut Export, change: &Change<'_>, again: &mut ToCopy) {
    let Some(copied) = export.copied else { return };
    let mut is_copied = |place: &Place<'_>| {
        keyspace.select(place.database.min(keyspace.last_database()));
        (place.database, keyspace.number_in_slots(keyspace.key(place.key))) <= copied
    };
    let places: Vec<(&Place<'_>, bool)> =
        change.places.iter().map(|place| (place, is_copied(place))).collect();
    let to_copy = |place: &Place<'_>| (place.database, place.key.to_vec());
    let is_mixed = places.iter().any(|(place, _)| again.contains(&to_copy(place)));
    if places.iter().all(|(_, is_copied)| *is_copied) && !is_mixed {
        let mut out = Vec::new();
        select(export, change.database, &mut out);
        out.extend_from_slice(change.request);
        return export.push(&out);
    }
    let changed = places.iter().filter(|(place, is_copied)| *is_copied && place.is_written);
    again.extend(changed.map(|(place, _)| to_copy(place)));
}

/// Copies a key again, in place of the target's copy.
fn copy_again(core: &mut Core, export: &mut Export, database: DbIndex, name: &[u8]) {
    let mut out = Vec::new();
    select(export, database, &mut out);
    encode([&b"DEL"[..], name], &mut out);
    export.push(&out);
    core.keyspace.select(database);
    let key = core.keyspace.key(name);
    if let Some(at) = core.keyspace.find_quietly(key) {
        copy_key(core, export, database, at);
    }
}
