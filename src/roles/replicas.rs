//! A primary's work for its replicas: snapshots for new ones, the stream for all, and which ones
//! are disconnected.
//!
//! ```text
//!   PSYNC -> partial: the stream continues from the backlog
//!         -> full: waits -> a snapshot to a pipe or file, at a noted offset -> the stream from that offset on
//! ```
//!
//! [`turn`] is called at the end of each turn, after the AOF is written, because replicas get only
//! what the AOF's policy allows to be sent; [`periodic`] some times a second. Log texts are
//! Redis's, as people and tests look for them.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mio::Token;

use crate::client::{Client, ClientFlags, ClientId};
use crate::clock::ABOUT_A_SECOND_US;
use crate::config::system_text;
use crate::durability::persistence::{self, EndedJob};
use crate::gate::limits;
use crate::persist::rdb::Version;
use crate::replication::backlog::Backlog;
use crate::replication::pipe::Pipe;
use crate::replication::replica::{FileSending, Filter, Replica, Sent, Stage};
use crate::replication::{Ancestor, Broadcast};
use crate::roles::restart;
use crate::state::persistence::Purpose;
use crate::state::{Core, Pause, PauseCause, Shutdown, State};
use crate::sys::log::{notice, warning};
use crate::sys::random;

/// The most sent to one replica in a turn. Unit: bytes.
const TURN_BYTES: usize = 1 << 20;
/// The first version (`REPLCONF version`) that supports deadlines of hash fields.
const FIELD_DEADLINES_SINCE: u32 = 9;
const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";
const GETACK: &[u8] = b"*3\r\n$8\r\nREPLCONF\r\n$6\r\nGETACK\r\n$1\r\n*\r\n";

fn name_of(state: &State, id: ClientId) -> String {
    state.clients.get(id).map(Client::replica_name).unwrap_or_default()
}

fn replica_of(state: &mut State, id: ClientId) -> Option<&mut Replica> {
    state.clients.get_mut(id)?.replica.as_deref_mut()
}

// ---- adding and removing replicas ---------------------------------------------------------------

/// Makes a client a replica.
fn make_replica(state: &mut State, id: ClientId) {
    close_former_link(state, id);
    state.replication.replicas.push(id);
    let now_us = state.now.boot_us;
    if let Some(client) = state.clients.get_mut(id) {
        client.flags |= ClientFlags::REPLICA;
        let replica = client.replica.get_or_insert_default();
        (replica.acknowledged_us, replica.sent_us, replica.last_sign_us) = (now_us, now_us, now_us);
        (replica.acknowledged, replica.synced) = (None, None);
    }
    state.clients.note_eviction(id);
    if state.repeats_names() && !reads_names(state, id) {
        state.replication.had_older_replica = true;
        let name = name_of(state, id);
        notice!(
            state,
            "Replica {name} may not know XADD with IDMP: the names of IDMP stay on this server from now on"
        );
    }
}

/// Whether a replica reads the names of IDMP: Latchkey does, and by `compatible-with` all those
/// that tell no version, as Redis. Whoever wants only a file may keep it for such a server.
fn reads_names(state: &State, id: ClientId) -> bool {
    let is_redis_8 = state.newer().volatile == Version::REDIS_12;
    let replica = state.clients.get(id).and_then(|client| client.replica.as_deref());
    replica.is_some_and(|replica| {
        replica.snapshot_only || replica.run_id.is_some() || is_redis_8 && replica.version.is_none()
    })
}

/// Closes the former connection of a replica that has reconnected, which may still look alive here:
/// WAIT and other counts must not count the replica twice.
fn close_former_link(state: &mut State, id: ClientId) {
    let run_id_of = |id: ClientId| state.clients.get(id)?.replica.as_deref()?.run_id.as_deref();
    let Some(run_id) = run_id_of(id) else { return };
    let is_former = |other: &ClientId| *other != id && run_id_of(*other) == Some(run_id);
    let former: Vec<ClientId> =
        state.replication.replicas.iter().copied().filter(is_former).collect();
    for other in former {
        let name = name_of(state, other);
        notice!(state, "Replica {name} has connected anew: closing its former connection.");
        state.clients.close(other);
    }
}

/// Continues a replica's stream from an offset for which
/// [`crate::replication::Replication::can_continue`] is true.
pub fn continue_stream(state: &mut State, id: ClientId, from: u64) {
    make_replica(state, id);
    let history = state.replication.id.clone();
    if let Some(replica) = replica_of(state, id) {
        let new_id =
            if replica.accepts_new_history { format!(" {history}") } else { String::new() };
        replica.preamble = format!("+CONTINUE{new_id}\r\n").into_bytes();
        replica.stage = Stage::Online { awaits_ack: false };
        replica.next = from;
    }
    let bytes = state.replication.backlog.as_ref().map_or(0, |backlog| backlog.end() - from);
    state.stats.counters.partial_syncs += 1;
    state.count_good_replicas();
    let name = name_of(state, id);
    notice!(
        state,
        "Partial resynchronization request from {name} accepted. Sending {bytes} bytes of backlog starting from offset {from}."
    );
}

/// Makes a replica wait for a new snapshot, or share one being saved if it can use that.
pub fn await_snapshot(core: &mut Core, id: ClientId) {
    core.state.stats.counters.full_syncs += 1;
    make_replica(&mut core.state, id);
    if core.state.config.repl_disable_tcp_nodelay
        && let Some(client) = core.state.clients.get_mut(id)
    {
        // A failure only makes the transfer slower.
        let _ = client.stream.set_nodelay(false);
    }
    if let Some(replica) = replica_of(&mut core.state, id) {
        replica.stage = Stage::AwaitsSnapshot;
    }
    if core.state.replication.backlog.is_none() {
        begin_backlog(core);
    }
    match core.state.persistence.purpose() {
        Some(Purpose::Save) if join_file(&mut core.state, id) => {
            notice!(core.state, "Waiting for end of BGSAVE for SYNC");
        }
        Some(Purpose::Save) => notice!(
            core.state,
            "Can't attach the replica to the current BGSAVE. Waiting for next BGSAVE for SYNC"
        ),
        Some(Purpose::Sync) => {
            notice!(
                core.state,
                "Current BGSAVE has socket target. Waiting for next BGSAVE for SYNC"
            )
        }
        Some(Purpose::Rewrite) => notice!(
            core.state,
            "No BGSAVE in progress, but another BG operation is active. BGSAVE for replication delayed"
        ),
        None if core.state.config.repl_diskless_sync
            && core.state.config.repl_diskless_sync_delay > 0 =>
        {
            notice!(core.state, "Delay next BGSAVE for diskless SYNC");
        }
        None => {}
    }
}

/// Begins a new history, and the backlog that keeps the end of its stream.
fn begin_backlog(core: &mut Core) {
    persistence::spread_effects(&mut core.state);
    let size = core.state.config.repl_backlog_size as usize;
    let replication = &mut core.state.replication;
    replication.begin_history();
    replication.backlog = Some(Backlog::new(size, replication.offset + 1));
    let id = core.state.replication.id.clone();
    persistence::note_listeners(core);
    notice!(
        core.state,
        "Replication backlog created, my new replication IDs are '{id}' and '{}'",
        "0".repeat(40)
    );
}

/// Makes a replica share the file that another one waits for. False: there is none that it can use.
fn join_file(state: &mut State, id: ClientId) -> bool {
    let Some(client) = state.clients.get(id) else { return false };
    let Some(joining) = client.replica.as_deref() else { return false };
    let can_share = |other: &Replica| {
        matches!(other.stage, Stage::AwaitsFile)
            && (!other.snapshot_only || joining.snapshot_only)
            && (joining.accepts_eof_mark || !other.accepts_eof_mark)
            && (joining.accepts_new_history || !other.accepts_new_history)
            && joining.filter == other.filter
    };
    let found = state.replicas().find(|(_, other)| can_share(other));
    let Some(next) = found.map(|(_, other)| other.next) else { return false };
    begin_full(state, id, Stage::AwaitsFile, next);
    true
}

/// Sends a replica its snapshot's position in the stream: `next` is the first offset that is not in
/// the snapshot.
fn begin_full(state: &mut State, id: ClientId, stage: Stage, next: u64) {
    let (history, now_us) = (state.replication.id.clone(), state.now.boot_us);
    if let Some(replica) = replica_of(state, id) {
        if !replica.uses_sync {
            let line = format!("+FULLRESYNC {history} {}\r\n", next - 1);
            replica.preamble.extend_from_slice(line.as_bytes());
        }
        (replica.stage, replica.next, replica.sent_us) = (stage, next, now_us);
    }
}

/// Notes a replica's acknowledged offset, and the one on its disk. Clients of WAIT are answered at
/// the end of the turn, by `waking::serve_acks`.
pub fn note_ack(state: &mut State, id: ClientId, offset: u64, synced: Option<u64>) {
    let now_us = state.time_us();
    let Some(replica) = replica_of(state, id) else { return };
    replica.acknowledged = replica.acknowledged.max(Some(offset));
    replica.synced = replica.synced.max(synced);
    replica.acknowledged_us = now_us;
    if let Stage::Online { awaits_ack } = &mut replica.stage {
        *awaits_ack = false;
    }
}

/// Whether a shutdown must wait for lagging replicas, up to `shutdown-timeout`. If so, the order is
/// kept and checked again each turn. Otherwise replicas that still lag are logged.
pub fn hold_shutdown(state: &mut State, order: Shutdown) -> bool {
    let (timeout, now_us) = (state.config.shutdown_timeout, state.now.boot_us);
    let have_all = {
        persistence::spread_effects(state);
        state.replicas().all(|(_, replica)| has_all(state, replica))
    };
    let waits = match order.waits_until_us {
        Some(until_us) => now_us < until_us,
        None => !order.now && timeout > 0,
    };
    if have_all || !waits {
        log_laggards(state);
        return false;
    }
    let mut order = order;
    if order.waits_until_us.is_none() {
        order.waits_until_us = Some(now_us + i64::from(timeout) * 1_000_000);
        if !state.stands_still() && !state.replication.is_replica() {
            state.replication.feed_ping(GETACK);
        }
        let pause = Pause { until_us: i64::MAX, writes_only: true };
        state.set_pause(PauseCause::Shutdown, Some(pause));
        notice!(state, "Waiting for replicas before shutting down.");
    }
    state.process.shutdown = Some(order);
    true
}

/// Whether a replica has acknowledged all changes. Pings do not count: if a new ping is always sent
/// just before the last one is acknowledged, no replica ever has everything. As in Redis, the
/// server does not wait for a replica that loads its first snapshot while the stream is empty.
fn has_all(state: &State, replica: &Replica) -> bool {
    let replication = &state.replication;
    match replica.acknowledged {
        Some(acknowledged) => acknowledged >= replication.changes_end(),
        None => replication.offset == 0,
    }
}

fn log_laggards(state: &State) {
    let offset = state.replication.offset;
    let (count, mut lagging) = (state.replicas().count(), 0);
    for (client, replica) in state.replicas() {
        if has_all(state, replica) {
            continue;
        }
        lagging += 1;
        warning!(
            state,
            "Lagging replica {} reported offset {} behind master, lag={}, state={}.",
            client.replica_name(),
            offset as i64 - replica.acknowledged.unwrap_or(0) as i64,
            lag_seconds(state, replica),
            replica.stage_name()
        );
    }
    if count > 0 {
        notice!(state, "{} of {count} replicas are in sync when shutting down.", count - lagging);
    }
}

/// Seconds since a replica's last acknowledgement; 0 before it is online.
pub fn lag_seconds(state: &State, replica: &Replica) -> i64 {
    match replica.is_online() {
        true => (state.time_us() - replica.acknowledged_us) / 1_000_000,
        false => 0,
    }
}

// ---- snapshots ----------------------------------------------------------------------------------

/// Replicas for which a snapshot must start.
struct Due {
    replicas: Vec<ClientId>,
    filter: Filter,
    by_pipe: bool,
    /// The version of the snapshot if it has deadlines of fields.
    volatile: Option<Version>,
    /// Whether the snapshot has the producers that streams remember, and all can read them.
    producers: bool,
    /// Whether a snapshot by pipe can be sent.
    finds_end: bool,
}

/// The replicas that wait for a snapshot, if it must start now.
fn due(state: &State) -> Option<Due> {
    let config = &state.config;
    let waits = |(_, replica): &(&Client, &Replica)| matches!(replica.stage, Stage::AwaitsSnapshot);
    let filter = state.replicas().find(waits)?.1.filter;
    let waiting = || state.replicas().filter(waits).filter(|(_, other)| other.filter == filter);
    let find_end = waiting().all(|(_, replica)| replica.accepts_eof_mark);
    let count = waiting().count();
    let since_us = waiting().map(|(client, _)| client.active_us).min()?;
    let delay_us = i64::from(config.repl_diskless_sync_delay) * 1_000_000;
    let max = config.repl_diskless_sync_max_replicas as usize;
    let is_due = !config.repl_diskless_sync
        || !find_end
        || max > 0 && count >= max
        || state.now.boot_us - since_us >= delay_us;
    let by_pipe = (config.repl_diskless_sync || filter.is_some()) && find_end;
    // The previous broadcast must end first.
    if !is_due || by_pipe && state.replication.broadcast.is_some() {
        return None;
    }
    let replicas = waiting().map(|(client, _)| client.id).collect();
    let finds_end = find_end;
    Some(Due { replicas, filter, by_pipe, volatile: None, producers: false, finds_end })
}

/// Starts the snapshot that replicas wait for.
fn begin_snapshot(core: &mut Core) {
    if core.state.persistence.under_way().is_some() {
        return;
    }
    let Some(mut due) = due(&core.state) else { return };
    choose_version(core, &mut due);
    choose_producers(core, &mut due);
    if due.replicas.is_empty() || due.by_pipe && core.state.replication.broadcast.is_some() {
        return;
    }
    let target = if due.by_pipe { "replicas sockets" } else { "disk" };
    notice!(core.state, "Starting BGSAVE for SYNC with target: {target}");
    let begun = match due.by_pipe {
        true => begin_broadcast(core, &due),
        false => begin_file(core, &due),
    };
    if let Err(why) = begun {
        warning!(core.state, "BGSAVE for replication failed: {why}");
        due.replicas.iter().for_each(|&id| refuse(&mut core.state, id, &why));
    }
}

/// Chooses the version of a snapshot with deadlines of fields: that of the first replica, while
/// replicas that read another one wait for the next snapshot. Replicas that read none are refused,
/// a second after they have asked: some ask again at once.
fn choose_version(core: &mut Core, due: &mut Due) {
    const REFUSED_AFTER_US: i64 = 1_000_000;
    if due.filter.keys || !core.keyspace.has_volatile_fields() {
        return;
    }
    let ours = core.state.newer().volatile;
    // A file is this server's own too.
    let mut chosen = (!due.by_pipe).then_some(ours);
    let now_us = core.state.now.boot_us;
    let mut refused = Vec::new();
    due.replicas.retain(|&id| {
        let waited_us = core.state.clients.get(id).map_or(0, |client| now_us - client.active_us);
        let Some(replica) = replica_of(&mut core.state, id) else { return false };
        let read = match replica.version {
            // Who wants only the file keeps it for a server that can read it. This server reads
            // both.
            _ if replica.snapshot_only || replica.run_id.is_some() => Some(ours),
            Some(version) => (version >= FIELD_DEADLINES_SINCE).then_some(Version::VALKEY_80),
            // Replicas of Redis tell no version.
            None => (ours == Version::REDIS_12).then_some(ours),
        };
        match read {
            Some(read) if *chosen.get_or_insert(read) == read => true,
            Some(_) if due.by_pipe => false,
            _ => {
                refused.extend((waited_us >= REFUSED_AFTER_US).then_some(id));
                false
            }
        }
    });
    due.volatile = chosen;
    for id in refused {
        let name = name_of(&core.state, id);
        let why = "fields of hashes have deadlines, which it cannot read";
        warning!(core.state, "Can't synchronize replica {name}: {why}");
        refuse(&mut core.state, id, why);
    }
}

/// Chooses whether a snapshot has the producers that streams remember. A file always has them:
/// whoever cannot read them gets the snapshot by pipe.
fn choose_producers(core: &mut Core, due: &mut Due) {
    if !core.state.newer().producers || !core.keyspace.may_have_producers() {
        return;
    }
    due.producers = due.replicas.iter().all(|&id| reads_names(&core.state, id));
    due.by_pipe |= !due.producers && due.finds_end;
}

/// Refuses a replica that asked for a snapshot.
fn refuse(state: &mut State, id: ClientId, why: &str) {
    state.replication.replicas.retain(|&replica| replica != id);
    let Some(client) = state.clients.get_to_push(id) else { return };
    client.flags.remove(ClientFlags::REPLICA);
    client.replica = None;
    let text = format!("-ERR BGSAVE failed, replication can't continue: {why}\r\n");
    client.output.push(text.as_bytes());
    state.clients.close_after_reply(id, state.now);
}

fn begin_broadcast(core: &mut Core, due: &Due) -> Result<(), String> {
    persistence::spread_effects(&mut core.state);
    let next = core.state.replication.offset + 1;
    let pipe = Arc::new(Pipe::new(
        core.state.persistence.wake(),
        core.state.persistence.background().has_threads(),
    ));
    // Only Redis or Valkey 7.2 and later announce a version. RDB version 11 stores when stream
    // consumers were active.
    let has_version = |&id: &ClientId| {
        let client = core.state.clients.get(id);
        client.and_then(|client| client.replica.as_deref()?.version).is_some()
    };
    let all_have = due.replicas.iter().all(has_version);
    let version = if all_have { Version::REDIS_11 } else { Version::REDIS_10 };
    let version = match due.producers {
        true => Version::REDIS_13,
        false => due.volatile.unwrap_or(version),
    };
    // Servers of another kind take the end of a pause for the time of a delivery.
    let is_ours = |&id: &ClientId| {
        let client = core.state.clients.get(id);
        client.and_then(|client| client.replica.as_deref()?.run_id.as_deref()).is_some()
    };
    let read_by = persistence::ReadBy { version, knows_pauses: due.replicas.iter().all(is_ours) };
    let begun = persistence::begin_sync(core, pipe.clone(), due.filter, read_by);
    begun.map_err(|error| system_text(&error))?;
    core.state.effects.select_anew();
    let (mark, filter) = (random::hex_id(), due.filter);
    for &id in &due.replicas {
        begin_full(&mut core.state, id, Stage::ReceivesSnapshot { at: 0 }, next);
        if let Some(replica) = replica_of(&mut core.state, id) {
            replica.preamble.extend_from_slice(format!("$EOF:{mark}\r\n").as_bytes());
        }
    }
    let bytes = Backlog::new(0, 0);
    let broadcast = Broadcast { pipe, bytes, is_complete: false, mark, filter };
    core.state.replication.broadcast = Some(broadcast);
    let pid = std::process::id();
    notice!(core.state, "Background RDB transfer started by pid {pid}");
    Ok(())
}

fn begin_file(core: &mut Core, due: &Due) -> Result<(), String> {
    persistence::spread_effects(&mut core.state);
    let next = core.state.replication.offset + 1;
    if !persistence::begin_save(core) {
        return Err("the file cannot be written".into());
    }
    core.state.effects.select_anew();
    core.state.replication.file_for_replicas =
        core.state.config.rdb_del_sync_files.then(|| core.state.rdb_path());
    due.replicas.iter().for_each(|&id| begin_full(&mut core.state, id, Stage::AwaitsFile, next));
    Ok(())
}

/// Gives replicas the result of a background job.
pub fn job_ended(state: &mut State, ended: Option<EndedJob>) {
    match ended {
        None => {}
        Some(EndedJob::Saved(path)) => file_is_saved(state, Some(&path)),
        Some(EndedJob::SaveFailed) => file_is_saved(state, None),
        Some(EndedJob::Sent) => snapshot_is_written(state, Ok(())),
        Some(EndedJob::SendFailed(Some(why))) => snapshot_is_written(state, Err(why)),
        Some(EndedJob::SendFailed(None)) => end_broadcast(state),
    }
}

/// Cancels the background job of this purpose ([`persistence::abort`]), also for the replicas that
/// wait for it.
pub fn abort_job(core: &mut Core, purpose: Purpose) {
    let ended = persistence::abort(core, purpose);
    job_ended(&mut core.state, ended);
}

/// Switches the append-only file on ([`persistence::begin_aof`]). A running save is cancelled for
/// it.
pub fn begin_aof(core: &mut Core, in_transaction: bool) -> Result<(), String> {
    if !core.state.persistence.is_aof_on() {
        abort_job(core, Purpose::Save);
    }
    persistence::begin_aof(core, in_transaction)
}

/// Switches the append-only file on or off if `appendonly` has been changed during loading. If that
/// fails it is off, and so is the parameter.
pub fn follow_appendonly(core: &mut Core, in_transaction: bool) -> Result<(), String> {
    if core.state.persistence.loading.is_some() {
        return Ok(());
    }
    match (core.state.config.appendonly, core.state.persistence.is_aof_on()) {
        (true, false) => begin_aof(core, in_transaction).inspect_err(|why| {
            warning!(core.state, "Can't switch the AOF on: {why}");
            core.state.config.appendonly = false;
        }),
        (false, true) => {
            persistence::end_aof(core);
            Ok(())
        }
        _ => Ok(()),
    }
}

/// The snapshot for the pipe is written or has failed.
fn snapshot_is_written(state: &mut State, written: Result<(), String>) {
    let Some(broadcast) = &mut state.replication.broadcast else { return };
    match written {
        Ok(()) => {
            take_from_pipe(broadcast);
            broadcast.bytes.append(broadcast.mark.as_bytes());
            broadcast.is_complete = true;
            let receives = |(_, replica): &(&Client, &Replica)| {
                matches!(replica.stage, Stage::ReceivesSnapshot { .. })
            };
            let count = state.replicas().filter(receives).count();
            warning!(
                state,
                "Diskless rdb transfer, done reading from pipe, {count} replicas still up."
            );
            notice!(state, "Background RDB transfer terminated with success");
        }
        Err(why) => {
            warning!(state, "Background transfer error: {why}");
            end_broadcast(state);
        }
    }
}

/// A save, for which replicas may wait, has ended.
fn file_is_saved(state: &mut State, saved: Option<&Path>) {
    let Some(path) = saved else {
        return close_failed(state, |stage| matches!(stage, Stage::AwaitsFile));
    };
    for id in state.replication.replicas.clone() {
        let disk = state.persistence.disk().clone();
        let now_us = state.now.boot_us;
        let Some(replica) = replica_of(state, id) else { continue };
        if !matches!(replica.stage, Stage::AwaitsFile) {
            continue;
        }
        let opened = disk.open_read(path).and_then(|file| Ok((file, disk.size(path)?)));
        match opened {
            Ok((reader, bytes)) => {
                replica.preamble.extend_from_slice(format!("${bytes}\r\n").as_bytes());
                replica.stage = Stage::ReceivesFile(FileSending::new(reader, bytes));
                replica.sent_us = now_us;
            }
            Err(error) => {
                warning!(state, "SYNC failed. Can't open/stat DB after BGSAVE: {error}");
                state.clients.close(id);
            }
        }
    }
}

/// Closes the replicas whose snapshot has failed.
fn close_failed(state: &mut State, has_failed: impl Fn(&Stage) -> bool) {
    for id in state.replication.replicas.clone() {
        let Some(client) = state.clients.get(id) else { continue };
        let is_closing = client.is_closing_now();
        let replica = client.replica.as_deref();
        if !is_closing && replica.is_some_and(|replica| has_failed(&replica.stage)) {
            warning!(state, "SYNC failed. BGSAVE child returned an error");
            state.clients.close(id);
        }
    }
}

/// Ends a broadcast, and closes the replicas that have not received all of it.
fn end_broadcast(state: &mut State) {
    if let Some(broadcast) = state.replication.broadcast.take() {
        broadcast.pipe.close();
        close_failed(state, |stage| matches!(stage, Stage::ReceivesSnapshot { .. }));
    }
}

/// Ends a broadcast without receivers, or lets its writer continue as far as the slowest receiver
/// allows.
fn advance_broadcast(core: &mut Core) {
    let offsets = core.state.replicas().filter_map(|(client, replica)| match replica.stage {
        Stage::ReceivesSnapshot { at } if !client.is_closing_now() => Some(at),
        _ => None,
    });
    let slowest = offsets.min();
    let Some(broadcast) = &mut core.state.replication.broadcast else { return };
    match slowest {
        Some(offset) => {
            broadcast.bytes.trim(Some(offset));
            broadcast.pipe.release(offset);
        }
        None => {
            let is_complete = broadcast.is_complete;
            end_broadcast(&mut core.state);
            if !is_complete {
                warning!(
                    core.state,
                    "Diskless rdb transfer, last replica dropped, killing fork child."
                );
                abort_job(core, Purpose::Sync);
            }
        }
    }
}

fn take_from_pipe(broadcast: &mut Broadcast) {
    broadcast.pipe.take().into_iter().for_each(|piece| broadcast.bytes.append_owned(piece));
}

// ---- each turn ----------------------------------------------------------------------------------

/// Starts snapshots that are due, and sends to replicas. Call this at the end of a turn, after the
/// log is written.
pub fn turn(core: &mut Core) {
    if core.state.replication.backlog.is_none() {
        return;
    }
    if !core.state.replication.replicas.is_empty() {
        begin_snapshot(core);
    }
    send(&mut core.state);
    if core.state.replication.broadcast.is_some() {
        advance_broadcast(core);
    }
    if std::mem::take(&mut core.state.replication.file_lost_replica) {
        end_useless_file(core);
    }
}

/// Cancels a save that was started for replicas of which none is left, if `save` is not configured.
fn end_useless_file(core: &mut Core) {
    let awaits = |(_, replica): (&Client, &Replica)| matches!(replica.stage, Stage::AwaitsFile);
    let is_useful = !core.state.config.save.is_empty() || core.state.replicas().any(awaits);
    if !is_useful && core.state.persistence.purpose() == Some(Purpose::Save) {
        abort_job(core, Purpose::Save);
    }
}

/// Asks replicas for acknowledgements if a client waits for them. Call this before the turn's
/// effects are spread.
pub fn ask_for_acks(state: &mut State) {
    if state.replication.wants_acks && !state.stands_still() {
        state.replication.wants_acks = false;
        if !state.replication.is_replica() {
            persistence::spread_effects(state);
            state.replication.feed_ping(GETACK);
        }
    }
}

/// Sends pending bytes to all replicas, and frees the bytes that no replica needs.
pub fn send(state: &mut State) {
    let State { persistence, replication, .. } = state;
    let end = replication.compute_sendable_end(|offset| persistence.may_leave(offset));
    replication.has_more = false;
    if let Some(broadcast) = &mut replication.broadcast {
        take_from_pipe(broadcast);
    }
    for at in 0..state.replication.replicas.len() {
        if let Some(&id) = state.replication.replicas.get(at) {
            send_to(state, id, end);
        }
    }
    state.trim_backlog();
}

fn send_to(state: &mut State, id: ClientId, end: u64) {
    let State { clients, replication, .. } = state;
    let Some(client) = clients.get_mut(id) else { return };
    if client.is_closing() {
        return;
    }
    if !client.output.is_empty() {
        return disconnect_answered(state, id);
    }
    if !client.writability.begin_write() {
        limits::check_output_limit(state, id);
        return;
    }
    let (Some(replica), Some(backlog)) = (client.replica.as_deref_mut(), &replication.backlog)
    else {
        return;
    };
    let broadcast = replication.broadcast.as_ref();
    let snapshot = broadcast.map(|broadcast| (&broadcast.bytes, broadcast.is_complete));
    let stream = &mut client.stream;
    // Bytes that TLS accepted earlier may still wait for the socket.
    let result = stream.flush().and_then(|()| {
        let mut sent = match stream.has_unsent() {
            true => Sent::default(),
            false => replica.send(stream, backlog, end, snapshot, TURN_BYTES)?,
        };
        sent.is_full |= stream.has_unsent();
        Ok(sent)
    });
    match result {
        Ok(mut sent) => {
            if client.stream.has_unsent() {
                // Accepted by TLS, but not sent to the socket.
                (sent.is_full, sent.is_snapshot_sent) = (true, false);
            }
            after_sending(state, id, sent);
        }
        Err(error) => {
            let (is_online, name) = (replica.is_online(), client.replica_name());
            let what = if is_online {
                "Error writing to replica"
            } else {
                "Write error sending DB to replica"
            };
            warning!(state, "{what} {name}: {}", system_text(&error));
            state.clients.close(id);
        }
    }
}

/// Disconnects a replica whose command was answered: real replicas send no such commands.
fn disconnect_answered(state: &mut State, id: ClientId) {
    let command = state.clients.get(id).and_then(|client| client.last_command);
    let command = command.map_or("", |command| &state.commands.get(command).full_name);
    let client = state.clients.get_mut(id);
    let output = client.map(|client| std::mem::take(&mut client.output)).unwrap_or_default();
    if let Some(error) = output.whole().strip_prefix(b"-") {
        let error = String::from_utf8_lossy(error);
        let error = error.trim_end();
        warning!(
            state,
            "== CRITICAL == This master is sending an error to its replica: '{error}' after processing the command '{command}'"
        );
        state.stats.counters.unexpected_error_replies += 1;
    }
    let line = limits::describe_for_log(state, id);
    warning!(state, "Replica generated a reply to command '{command}', disconnecting it: {line}");
    state.clients.close(id);
}

fn after_sending(state: &mut State, id: ClientId, sent: Sent) {
    let State { clients, replication, stats, net, now, .. } = state;
    let Some(client) = clients.get_mut(id) else { return };
    client.bytes_out += sent.bytes as u64;
    stats.counters.bytes_out += sent.bytes as u64;
    stats.counters.replica_bytes_out += sent.bytes as u64;
    replication.has_more |= sent.has_more;
    if sent.bytes > 0
        && let Some(replica) = client.replica.as_deref_mut()
    {
        replica.sent_us = now.boot_us;
    }
    if sent.is_full != client.writability.is_registered() {
        client.writability.set_full(sent.is_full);
        let token = Token(id.slot as usize);
        if client.stream.reregister(net.poll.registry(), token, sent.is_full).is_err() {
            return clients.close(id);
        }
    }
    if sent.is_snapshot_sent {
        put_online(state, id);
    }
    limits::check_output_limit(state, id);
}

/// Puts a replica online that has been sent its whole snapshot.
fn put_online(state: &mut State, id: ClientId) {
    let (name, now_us) = (name_of(state, id), state.now.boot_us);
    let Some(replica) = replica_of(state, id) else { return };
    let by_pipe = matches!(replica.stage, Stage::ReceivesSnapshot { .. });
    if replica.snapshot_only {
        notice!(
            state,
            "RDB transfer completed, rdb only replica ({name}) should be disconnected asap"
        );
        return state.clients.close(id);
    }
    replica.stage = Stage::Online { awaits_ack: by_pipe };
    (replica.acknowledged_us, replica.last_sign_us) = (now_us, now_us);
    if by_pipe {
        notice!(
            state,
            "Streamed RDB transfer with replica {name} succeeded (socket). Waiting for REPLCONF ACK from slave to enable streaming"
        );
    } else {
        // The stream follows at once.
        state.replication.has_more = true;
    }
    notice!(state, "Synchronization with replica {name} succeeded");
    state.count_good_replicas();
}

// ---- at the start -------------------------------------------------------------------------------

/// Before a primary loads its file: begins the stream, for deletions of expired keys.
pub fn begin_stream_at_start(state: &mut State) {
    let size = state.config.repl_backlog_size as usize;
    state.replication.backlog = Some(Backlog::new(size, state.replication.offset + 1));
}

/// Continues the history named in the loaded file, so that its replicas can continue too. If the
/// file names none, drops the stream.
pub fn continue_history_of_file(core: &mut Core) {
    persistence::spread_effects(&mut core.state);
    let moment = std::mem::take(&mut core.state.persistence.moment);
    let replication = &mut core.state.replication;
    if let (Some(id), Some(offset), Some(backlog)) =
        (moment.id, moment.offset, &mut replication.backlog)
    {
        replication.ancestor = Some(Ancestor { id, end: offset + 1 });
        replication.offset += offset;
        backlog.rebase(offset);
        replication.without_replicas_since_us = core.state.now.boot_us;
    } else {
        replication.backlog = None;
        replication.offset = 0;
    }
    persistence::note_listeners(core);
}

// ---- periodic work ------------------------------------------------------------------------------

/// Done each second: pings, timeouts, and an unused backlog.
pub fn periodic(core: &mut Core) {
    let now_us = core.state.now.boot_us;
    if !ping_each_second(&mut core.state, now_us) {
        return;
    }
    for id in core.state.replication.replicas.clone() {
        close_if_silent(&mut core.state, id);
    }
    free_backlog(core);
    remove_file(&mut core.state);
    core.state.count_good_replicas();
    restart::look(&mut core.state);
}

/// In nested turns, while a script or a loading keeps the server busy: pings replicas, which would
/// consider it dead.
pub fn keep_alive(state: &mut State) {
    ping_each_second(state, state.time_us());
}

/// Sends all replicas a sign of life, if a second has passed. False: none has.
fn ping_each_second(state: &mut State, now_us: i64) -> bool {
    if now_us < state.replication.next_second_us {
        return false;
    }
    state.replication.next_second_us = now_us + ABOUT_A_SECOND_US;
    ping(state);
    for id in state.replication.replicas.clone() {
        send_newline(state, id);
    }
    true
}

/// Excuses peers for the time in which a script kept this server busy: it did not listen, so no
/// peer counts as silent. Call this after the script.
pub fn excuse_silence(state: &mut State) {
    let now_us = state.now.boot_us;
    for id in state.replication.replicas.clone() {
        if let Some(replica) = replica_of(state, id) {
            (replica.last_sign_us, replica.sent_us) = (now_us, now_us);
        }
    }
    if let Some(following) = state.replication.following.as_deref_mut() {
        following.last_sign_us = now_us;
    }
}

fn ping(state: &mut State) {
    let period = u64::from(state.config.repl_ping_replica_period.max(1));
    let is_due = state.replication.seconds.is_multiple_of(period);
    state.replication.seconds += 1;
    // A failover waits for a replica to reach the end of the stream: a ping would move it.
    let is_failing_over = state.replication.failover.is_some()
        || state.pauses.by(PauseCause::ClusterFailover).is_some();
    let has_replicas = !state.replication.replicas.is_empty();
    if is_due && has_replicas && !is_failing_over && !state.replication.is_replica() {
        // Only the unfinished unit of a running script stays back: it follows the ping.
        persistence::spread_effects(state);
        state.replication.feed_ping(PING);
    }
}

/// Sends a newline to a replica that waits for a snapshot, so that it does not time out.
fn send_newline(state: &mut State, id: ClientId) {
    let Some(replica) = replica_of(state, id) else { return };
    // Not if the previous one is still unsent.
    if matches!(replica.stage, Stage::AwaitsSnapshot | Stage::AwaitsFile)
        && replica.preamble.is_empty()
    {
        replica.preamble.push(b'\n');
    }
}

fn close_if_silent(state: &mut State, id: ClientId) {
    let timeout_us = i64::from(state.config.repl_timeout) * 1_000_000;
    let now_us = state.now.boot_us;
    let Some(client) = state.clients.get(id) else { return };
    let Some(replica) = client.replica.as_deref() else { return };
    let (since_us, what) = match replica.stage {
        // A replica that loads its snapshot sends newlines only.
        Stage::Online { .. } if !replica.uses_sync => {
            (replica.last_sign_us.max(client.active_us), "streaming sync")
        }
        Stage::ReceivesSnapshot { .. } => (replica.sent_us, "full sync"),
        _ => return,
    };
    // A replica that has read everything waits for the snapshot to be written: it is not stuck.
    let is_stuck = what == "streaming sync" || client.writability.is_registered();
    if is_stuck && now_us - since_us > timeout_us {
        let name = name_of(state, id);
        warning!(state, "Disconnecting timedout replica ({what}): {name}");
        state.clients.close(id);
    }
}

/// Frees the backlog of a primary without replicas for `repl-backlog-ttl`. The history ends, as its
/// offset no longer counts changes.
fn free_backlog(core: &mut Core) {
    let ttl = core.state.config.repl_backlog_ttl;
    let replication = &mut core.state.replication;
    let idle_us = core.state.now.boot_us - replication.without_replicas_since_us;
    if ttl == 0
        || replication.backlog.is_none()
        || replication.is_replica()
        || !replication.replicas.is_empty()
        || idle_us <= ttl.saturating_mul(1_000_000)
    {
        return;
    }
    persistence::spread_effects(&mut core.state);
    restart::note_end_of_history(&mut core.state);
    core.state.replication.begin_history();
    core.state.replication.backlog = None;
    core.state.replication.logged.clear();
    persistence::note_listeners(core);
    notice!(
        core.state,
        "Replication backlog freed after {ttl} seconds without connected replicas."
    );
}

/// `rdb-del-sync-files`: removes a file that was saved for replicas, if persistence is off.
fn remove_file(state: &mut State) {
    if !state.config.rdb_del_sync_files {
        state.replication.file_for_replicas = None;
    }
    let persists = !state.config.save.is_empty() || state.persistence.is_aof_on();
    let is_needed = state.replicas().any(|(_, replica)| replica.is_syncing());
    if persists || is_needed {
        return;
    }
    let disk = state.persistence.disk();
    let is_there = |path: &mut PathBuf| disk.size(path).is_ok();
    if let Some(path) = state.replication.file_for_replicas.take_if(is_there) {
        notice!(
            state,
            "Removing the RDB file used to feed replicas in a persistence-less instance"
        );
        if let Err(error) = state.persistence.disk().remove(&path)
            && error.kind() != io::ErrorKind::NotFound
        {
            warning!(state, "{}: {error}", path.display());
        }
    }
}

/// Applies `repl-backlog-size`.
pub fn resize_backlog(state: &mut State) {
    let size = state.config.repl_backlog_size as usize;
    if let Some(backlog) = &mut state.replication.backlog {
        backlog.resize(size);
    }
}
