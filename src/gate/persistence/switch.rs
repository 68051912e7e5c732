//! Switching the append-only file on and off, and applying its parameters.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{
    Aof, Purpose, RewriteError, abort, begin_rewrite, note_listeners, pause_syncs, spread_effects,
};
use crate::config::system_text;
use crate::gate::state::State;
use crate::keyspace::Keyspace;
use crate::persist::aof::folder::AofFolder;
use crate::persist::aof::log::AppendLog;
use crate::persist::saver::lock;
use crate::sys::log::Level;

/// Applies `appendfsync` and related parameters.
pub fn apply_parameters(server: &mut State) {
    let (policy, timestamps) = (server.config.appendfsync, server.config.aof_timestamp_enabled);
    if let Some(aof) = &mut server.persistence.aof {
        aof.log.set_policy(policy);
        aof.log.set_timestamps(timestamps);
        aof.log.set_flush_delay(server.persistence.flush_delay);
        if !server.config.aof_disable_auto_gc {
            remove_history(server);
        }
    }
    pause_syncs(server);
}

/// Removes files that rewrites have replaced and `aof-disable-auto-gc` has kept.
fn remove_history(server: &State) {
    let Some(aof) = &server.persistence.aof else { return };
    // Locked: a thread is renaming a file, and will remove them.
    let Ok(mut folder) = aof.folder.try_lock() else { return };
    for file in folder.manifest().history() {
        let name = String::from_utf8_lossy(&file.name);
        let text = "Removing the history file";
        server.log(Level::Notice, format_args!("{text} {name} in the background"));
    }
    if let Err(error) = folder.remove_history() {
        server.log(Level::Warning, format_args!("{error}"));
    }
}

/// `DEBUG AOF-FLUSH-SLEEP`: the loop sleeps this long before each write to the log.
pub fn set_flush_delay(server: &mut State, delay: Duration) {
    server.persistence.flush_delay = delay;
    apply_parameters(server);
}

pub(super) fn open_folder(server: &State) -> Result<AofFolder, String> {
    let config = &server.config;
    let disk = server.persistence.disk.clone();
    let folder = AofFolder::open(disk, &config.dir, &config.appenddirname, &config.appendfilename);
    folder.map_err(|error| error.to_string())
}

pub(super) fn switch_on(
    db: &mut Keyspace,
    server: &mut State,
    folder: Arc<Mutex<AofFolder>>,
    log: AppendLog,
    is_aside: bool,
) {
    server.persistence.aof = Some(Aof { log, folder, first_kept: None, is_aside });
    apply_parameters(server);
    note_listeners(db, server);
    server.note_gate();
}

/// `CONFIG SET appendonly yes` on a running server: changes go to a new increment, and the present data becomes the
/// base. Until the base is complete, the folder's previous content stays valid. Within a transaction, whose effects
/// are one unit, the base is started after it.
pub fn begin_aof(
    db: &mut Keyspace,
    server: &mut State,
    in_transaction: bool,
) -> Result<(), String> {
    if server.persistence.aof.is_some() {
        return Ok(());
    }
    if !in_transaction {
        // Earlier effects are not for this log: its base contains them.
        spread_effects(server);
    }
    // A running save is cancelled for it.
    abort(db, server, Purpose::Save);
    abort(db, server, Purpose::Rewrite);
    let mut folder = open_folder(server)?;
    let increment = folder.increment_aside().map_err(|error| error.to_string())?;
    let first_kept = increment.seq;
    let folder = Arc::new(Mutex::new(folder));
    let wake = server.persistence.wake.clone();
    let policy = server.config.appendfsync;
    let wake = Box::new(move || wake());
    let log = AppendLog::new(folder.clone(), increment, 0, 0, policy, wake);
    let mut log = log.behind(server.persistence.closed_log);
    if server.persistence.background.has_threads() {
        log.spawn().map_err(|error| system_text(&error))?;
    }
    switch_on(db, server, folder, log, true);
    // A snapshot for waiting replicas goes first.
    let syncs = server.persistence.running.is_some();
    if in_transaction || syncs {
        let text = if syncs {
            "AOF was enabled but there is already another background operation. An AOF background was scheduled to start when possible."
        } else {
            "AOF was enabled during a transaction. An AOF background was scheduled to start when possible."
        };
        server.log(Level::Warning, format_args!("{text}"));
        // The scheduled rewrite will start another increment, and this one is dropped.
        server.persistence.rewrite_is_scheduled = true;
        return Ok(());
    }
    if let Some(aof) = &mut server.persistence.aof {
        aof.first_kept = Some(first_kept);
    }
    match begin_rewrite(db, server) {
        Ok(()) => Ok(()),
        Err(RewriteError::Failed(why)) => {
            end_aof(db, server);
            Err(why)
        }
        Err(RewriteError::Fatal(fatal)) => Err(fatal.to_string()),
    }
}

/// `CONFIG SET appendonly no`.
pub fn end_aof(db: &mut Keyspace, server: &mut State) {
    abort(db, server, Purpose::Rewrite);
    server.persistence.rewrite_is_scheduled = false;
    let now = server.now;
    spread_effects(server);
    if let Some(aof) = server.persistence.aof.take() {
        server.persistence.closed_log = aof.log.end();
        if let Err(fatal) = aof.log.close(now) {
            server.log(Level::Warning, format_args!("{fatal}"));
        }
        if let Some(name) = lock(&aof.folder).drop_aside() {
            let name = String::from_utf8_lossy(&name);
            let text = "Removing the temp incr aof file";
            server.log(Level::Notice, format_args!("{text} {name} in the background"));
        }
    }
    note_listeners(db, server);
    server.note_gate();
}
