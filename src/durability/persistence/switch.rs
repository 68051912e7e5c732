//! Switching the append-only file on and off, and applying its parameters.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{
    RewriteError, abort_rewrite, begin_rewrite, note_listeners, pause_syncs, spread_effects,
};
use crate::config::{AppendFsync, system_text};
use crate::persist::aof::folder::AofFolder;
use crate::persist::aof::log::AppendLog;
use crate::persist::saver::lock;
use crate::state::persistence::{Aof, ClosedAof};
use crate::state::{Core, State};
use crate::sys::log::{notice, warning};

/// Applies `appendfsync` and related parameters.
pub fn apply_parameters(state: &mut State) {
    let (policy, timestamps) = (state.config.appendfsync, state.config.aof_timestamp_enabled);
    if let Some(aof) = &mut state.persistence.aof {
        aof.log.set_policy(policy);
        aof.log.set_timestamps(timestamps);
        aof.log.set_flush_delay(state.persistence.flush_delay);
        if !state.config.aof_disable_auto_gc {
            remove_history(state);
        }
    }
    pause_syncs(state);
}

/// Removes files that rewrites have replaced and `aof-disable-auto-gc` has kept.
fn remove_history(state: &State) {
    let Some(aof) = &state.persistence.aof else { return };
    // If the folder is locked, a thread is renaming a file, and will remove these files.
    let Ok(mut folder) = aof.folder.try_lock() else { return };
    for file in folder.manifest().history() {
        let name = String::from_utf8_lossy(&file.name);
        notice!(state, "Removing the history file {name} in the background");
    }
    if let Err(error) = folder.remove_history() {
        warning!(state, "{error}");
    }
}

/// `DEBUG AOF-FLUSH-SLEEP`: the loop sleeps this long before each write to the AOF.
pub fn set_flush_delay(state: &mut State, delay: Duration) {
    state.persistence.flush_delay = delay;
    apply_parameters(state);
}

/// Opens and locks the folder, to write. It must not be open in this process already.
pub(super) fn open_folder(state: &State) -> Result<AofFolder, String> {
    let config = &state.config;
    let disk = state.persistence.disk.clone();
    AofFolder::open_locked(disk, &config.dir, &config.appenddirname, &config.appendfilename)
        .map_err(|error| error.to_string())
}

/// Opens the folder, to read.
pub fn read_folder(state: &State) -> Result<AofFolder, String> {
    let config = &state.config;
    let disk = state.persistence.disk.clone();
    AofFolder::open(disk, &config.dir, &config.appenddirname, &config.appendfilename)
        .map_err(|error| error.to_string())
}

pub(super) fn switch_on(
    core: &mut Core,
    folder: Arc<Mutex<AofFolder>>,
    log: AppendLog,
    is_aside: bool,
) {
    core.state.persistence.aof = Some(Aof { log, folder, first_kept: None, is_aside });
    apply_parameters(&mut core.state);
    note_listeners(core);
    core.state.refresh_fast_path();
}

/// `CONFIG SET appendonly yes` on a running server: changes go to a new increment, and the present
/// data becomes the base. Until the base is complete, the folder's previous content stays valid.
/// The caller has cancelled a running save. A transaction's effects are one unit, so the base is
/// started after the transaction.
pub fn begin_aof(core: &mut Core, in_transaction: bool) -> Result<(), String> {
    if core.state.persistence.aof.is_some() {
        return Ok(());
    }
    // Earlier effects do not belong in this AOF, because its base contains them.
    spread_effects(&mut core.state);
    abort_rewrite(core);
    let mut folder = open_folder(&core.state)?;
    let increment = folder.increment_aside().map_err(|error| error.to_string())?;
    let first_kept = increment.seq;
    let folder = Arc::new(Mutex::new(folder));
    let wake = core.state.persistence.wake.clone();
    let policy = core.state.config.appendfsync;
    let wake = Box::new(move || wake());
    let log = AppendLog::new(folder.clone(), increment, 0, 0, policy, wake);
    let mut log = log.behind(core.state.persistence.closed_log);
    if core.state.persistence.background.has_threads() {
        log.spawn().map_err(|error| system_text(&error))?;
    }
    switch_on(core, folder, log, true);
    // A snapshot for waiting replicas goes first.
    let syncs = core.state.persistence.work.running().is_some();
    if in_transaction || syncs {
        let text = if syncs {
            "AOF was enabled but there is already another background operation. An AOF background was scheduled to start when possible."
        } else {
            "AOF was enabled during a transaction. An AOF background was scheduled to start when possible."
        };
        warning!(core.state, "{text}");
        // The scheduled rewrite will start another increment, and this one is dropped.
        core.state.persistence.queued.rewrite = true;
        return Ok(());
    }
    if let Some(aof) = &mut core.state.persistence.aof {
        aof.first_kept = Some(first_kept);
    }
    match begin_rewrite(core) {
        Ok(()) => Ok(()),
        Err(RewriteError::Failed(why)) => {
            end_aof(core);
            Err(why)
        }
        Err(RewriteError::Fatal(fatal)) => Err(fatal.to_string()),
    }
}

/// `CONFIG SET appendonly no`. The log ends before the unit that has begun, if one has.
pub fn end_aof(core: &mut Core) {
    abort_rewrite(core);
    core.state.persistence.queued.rewrite = false;
    let now = core.state.now;
    spread_effects(&mut core.state);
    if let Some(aof) = core.state.persistence.aof.take() {
        core.state.persistence.closed_log = aof.log.end();
        // The same CONFIG SET may give another policy.
        let is_always = aof.log.policy() == AppendFsync::Always;
        if let Err(fatal) = aof.log.close(now) {
            warning!(core.state, "{fatal}");
            if is_always {
                core.state.persistence.fatal = Some(fatal);
            }
        }
        let mut folder = lock(&aof.folder);
        if !aof.is_aside {
            let (dir, manifest) = (folder.parent().to_owned(), folder.manifest().text());
            core.state.persistence.closed_at = Some(ClosedAof { dir, manifest });
        }
        if let Some(name) = folder.drop_aside() {
            let name = String::from_utf8_lossy(&name);
            notice!(core.state, "Removing the temp incr aof file {name} in the background");
        }
    }
    note_listeners(core);
    core.state.refresh_fast_path();
}
