//! A restarted primary cannot know whether it is still the primary. A replica may have been
//! promoted, and its replicas may have data that it has lost.
//!
//! ```text
//! primary-restart-read-only N        no writes until replicas have been connected for N seconds
//! repl-protect-empty-primary yes     started without data, or with that of an older file: no snapshot for a replica with more data,
//!                                    which it would delete
//! ```
//!
//! Both end when this server becomes a replica, or an operator confirms it as the primary
//! (`REPLICAOF NO ONE`). While it refuses replicas, sentinels get errors for their PING, so that
//! they promote one of those replicas.

use crate::client::{Client, ClientId};
use crate::error::CommandError;
use crate::keyspace::{DbIndex, Keyspace};
use crate::replication::Restart;
use crate::state::{Core, State};
use crate::sys::log::warning;

/// A refused replica asks again each second. After this time without a request it has another
/// primary, or is gone. Unit: microseconds.
const ASKS_AGAIN_US: i64 = 10_000_000;
/// Sentinels that have found another primary make this server its replica after some ten seconds of
/// good health. Writes are refused for this time after a refused replica's last request. Unit:
/// microseconds.
const DEMOTED_US: i64 = 60_000_000;
/// Replicas with data are refused for this time after the start, even after a write. Unit:
/// microseconds.
const FIRST_US: i64 = 60_000_000;
/// The limit of remembered histories that have ended.
const ENDED_MAX: usize = 16;
/// Interval of log lines about refused replicas. Unit: microseconds.
const TELLS_AGAIN_US: i64 = 60_000_000;

/// The reply to a refused replica, which then asks again and keeps its data.
pub const HELD_OFF: CommandError = CommandError::Text(
    "NOMASTERLINK Can't SYNC: this primary has started without data that you have (repl-protect-empty-primary)",
);
/// The reply to a sentinel's PING while replicas are refused. Sentinels accept some errors as a
/// sign of health, but not this one.
const UNHEALTHY: CommandError =
    CommandError::Text("ERR this primary has started without data that its replicas have");
/// Notes that loading has ended, for a primary or a replica.
pub fn begin(core: &mut Core) {
    if core.state.replication.is_replica() {
        return;
    }
    let waits = core.state.config.primary_restart_read_only > 0;
    core.state.replication.restart =
        Restart { data_end: data_end(core), is_read_only: waits, ..Restart::default() };
    if waits {
        let seconds = core.state.config.primary_restart_read_only;
        warning!(
            core.state,
            "Started as a primary: writes are refused until replicas have been connected for {seconds} seconds, or \
                 REPLICAOF NO ONE."
        );
    }
    core.state.refresh_fast_path();
}

/// The offset of the loaded data. None: the data comes from an AOF, which has every answered write.
/// A file without an offset counts as 0: any replica then has more.
fn data_end(core: &Core) -> Option<u64> {
    let is_logged = core.state.config.appendonly && !is_empty(&core.keyspace);
    let ancestor = core.state.replication.ancestor.as_ref();
    (!is_logged).then(|| ancestor.map_or(0, |ancestor| ancestor.end - 1))
}

fn is_empty(keyspace: &Keyspace) -> bool {
    DbIndex::all(keyspace.databases()).all(|database| keyspace.table_of(database).is_empty())
}

/// Notes that this primary begins another history. A replica that returns with the old one lacks
/// data, but has no data of another primary.
pub fn note_end_of_history(state: &mut State) {
    let replication = &mut state.replication;
    if replication.restart.data_end.is_some() {
        replication.restart.ended.truncate(ENDED_MAX - 1);
        replication.restart.ended.insert(0, replication.id.clone());
    }
}

/// Notes that an operator has confirmed this server as the primary.
pub fn confirm(state: &mut State) {
    let restart = std::mem::take(&mut state.replication.restart);
    if restart.is_read_only || restart.held_off_us.is_some() {
        warning!(
            state,
            "REPLICAOF NO ONE has confirmed that this is the primary: it takes writes, and gives replicas its data."
        );
    }
    state.refresh_fast_path();
}

/// The reply to a sentinel's PING, if the sentinel is to consider this server down.
pub fn unhealthy(state: &State, client: Option<ClientId>) -> Option<CommandError> {
    let asked_us = state.replication.restart.held_off_us?;
    let client = state.clients.get(client?)?;
    let is_sentinel = client.name.starts_with(b"sentinel-");
    (is_sentinel && state.now.boot_us - asked_us < ASKS_AGAIN_US).then_some(UNHEALTHY)
}

/// Whether to refuse a replica that would need a snapshot, because the snapshot would delete its
/// data. `from` is the first offset of its history that it lacks. Offsets of different histories
/// can be compared, because a promoted replica continues them.
pub fn holds_off(core: &mut Core, id: ClientId, history: &[u8], from: u64) -> bool {
    let mut ours =
        std::iter::once(&core.state.replication.id).chain(&core.state.replication.restart.ended);
    let is_ours = ours.any(|id| history.eq_ignore_ascii_case(id.as_bytes()));
    let data_end = core.state.replication.restart.data_end.filter(|&end| from > end + 1);
    let Some(data_end) = data_end.filter(|_| !history.starts_with(b"?") && !is_ours) else {
        return false;
    };
    let protects = core.state.config.repl_protect_empty_primary;
    let now_us = core.state.now.boot_us;
    // Replicas ask each second. A write shortly after the start therefore does not make this
    // server's data the better one.
    let is_young = now_us - core.state.process.identity.started_us < FIRST_US;
    let goes_on = is_young
        || core.state.replication.restart.held_off_us.is_some()
        || is_empty(&core.keyspace);
    if !protects || core.state.replication.is_replica() || !goes_on {
        return false;
    }
    let restart = &mut core.state.replication.restart;
    restart.held_off_us = Some(now_us);
    if restart.logged_us.is_none_or(|logged_us| now_us - logged_us >= TELLS_AGAIN_US) {
        restart.logged_us = Some(now_us);
        let name = core.state.clients.get(id).map(Client::replica_name).unwrap_or_default();
        let (history, offset) = (String::from_utf8_lossy(history), from - 1);
        let has = match data_end {
            0 => format!("without data, and replica {name} has some"),
            _ => format!("with the data of offset {data_end}, and replica {name} has more"),
        };
        warning!(
            core.state,
            "This primary has started {has} (history {history}, offset {offset}): it is not sent a snapshot, which would \
                 delete it, and writes are refused. Make a replica the primary and this server its replica, as sentinels do, or \
                 send REPLICAOF NO ONE here to delete it."
        );
    }
    core.state.refresh_fast_path();
    true
}

/// Checks whether the uncertainty is over. Call it several times a second, and after CONFIG SET.
pub fn look(state: &mut State) {
    if !state.replication.restart.is_read_only && state.replication.restart.held_off_us.is_none() {
        return;
    }
    look_for_replicas(state);
    let protects = state.config.repl_protect_empty_primary;
    let now_us = state.now.boot_us;
    let restart = &mut state.replication.restart;
    if restart.held_off_us.is_some_and(|asked_us| !protects || now_us - asked_us >= DEMOTED_US) {
        restart.held_off_us = None;
        let text = match protects {
            true => "No replica with data has asked for a minute: writes are accepted again.",
            false => {
                "repl-protect-empty-primary is off: replicas get this server's data, and writes are accepted again."
            }
        };
        warning!(state, "{text}");
    }
    state.refresh_fast_path();
}

/// Accepts writes again once enough replicas have been connected for long enough.
fn look_for_replicas(state: &mut State) {
    let seconds = state.config.primary_restart_read_only;
    let wanted = state.config.min_replicas_to_write.max(1);
    let are_there = state.replication.good_replicas >= wanted;
    let now_us = state.now.boot_us;
    let restart = &mut state.replication.restart;
    if !restart.is_read_only {
        return;
    }
    restart.replicas_since_us = match (are_there, restart.replicas_since_us) {
        (true, since_us) => Some(since_us.unwrap_or(now_us)),
        (false, _) => None,
    };
    let since_us = restart.replicas_since_us;
    let is_over = since_us.is_some_and(|us| now_us - us >= i64::from(seconds) * 1_000_000);
    if seconds == 0 || is_over {
        restart.is_read_only = false;
        warning!(state, "The primary's part is certain: writes are accepted.");
    }
}

/// The remaining seconds for which replicas must stay connected. None: writes are accepted.
pub fn seconds_left(state: &State) -> Option<i64> {
    let restart = &state.replication.restart;
    let seconds = i64::from(state.config.primary_restart_read_only);
    let been_us = restart.replicas_since_us.map_or(0, |us| state.now.boot_us - us);
    restart.is_read_only.then(|| (seconds - been_us / 1_000_000).max(0))
}
