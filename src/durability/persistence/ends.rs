//! Persistence at the server's start and end: opening the append-only file after loading, and
//! closing all files.

use std::sync::{Arc, Mutex};

use super::{EndedJob, abort, open_folder, plan, save, switch_on, write_log};
use crate::config::{AppendFsync, system_text};
use crate::persist::aof::folder::AofFolder;
use crate::persist::aof::log::{AppendLog, Fatal};
use crate::persist::saver::write_now;
use crate::state::persistence::Purpose;
use crate::state::{Core, State};
use crate::sys::log::{notice, warning};

/// Opens the append-only file after loading: from now on changes are appended.
pub fn begin_aof_at_start(
    core: &mut Core,
    mut folder: AofFolder,
    mut loaded_bytes: u64,
    mut base_bytes: u64,
) -> Result<(), String> {
    let plan = plan(core, true);
    let was_marked = folder.is_marked();
    if was_marked {
        warning!(
            core.state,
            "An earlier process could not fsync the AOF file. Writing the loaded data to a new AOF base file."
        );
    }
    let increment = folder
        .open_at_start(plan.form.base_format(), |file| {
            write_now(&mut core.keyspace, file, &plan).map(drop)
        })
        .map_err(|error| error.to_string())?;
    if was_marked {
        base_bytes = folder.base_size();
        loaded_bytes = base_bytes;
    }
    let folder = Arc::new(Mutex::new(folder));
    let wake = core.state.persistence.wake.clone();
    let wake = Box::new(move || wake());
    let policy = core.state.config.appendfsync;
    let mut log = AppendLog::new(folder.clone(), increment, loaded_bytes, base_bytes, policy, wake);
    if core.state.persistence.background.has_threads() {
        log.spawn().map_err(|error| system_text(&error))?;
    }
    switch_on(core, folder, log, false);
    Ok(())
}

/// Marks the just-loaded data as saved.
pub fn note_loaded(core: &mut Core) {
    core.state.persistence.saves.changes = core.keyspace.dirty();
}

/// Opens the append-only folder, taking over an old single file.
pub fn folder_at_start(state: &State) -> Result<AofFolder, String> {
    let mut folder = open_folder(state)?;
    folder.check_not_moved().map_err(|error| error.to_string())?;
    let taken = folder.take_over_single_file().map_err(|error| error.to_string())?;
    if taken {
        notice!(
            state,
            "Successfully migrated an old-style AOF configuration into the AOF directory"
        );
    }
    let unlisted = folder.unlisted();
    if !unlisted.is_empty() {
        warning!(
            state,
            "The AOF manifest {} does not name these files, whose data is not loaded: {}",
            folder.manifest_path().display(),
            unlisted.join(", ")
        );
    }
    Ok(folder)
}

/// The result of closing the files at the end.
#[derive(Debug)]
pub enum Closing {
    Done,
    /// The server must continue: a part could not be written, and the end is not forced.
    Refused,
    /// The process ends without the last changes: replies that are not sent yet must not leave.
    Failed(Fatal),
}

/// Gives up the background job before the process ends. Errors: the end is refused.
pub fn begin_shut_down(core: &mut Core, force: bool) -> Result<Option<EndedJob>, Closing> {
    if core.state.persistence.aof.as_ref().is_some_and(|aof| aof.is_aside) {
        // The existing file lacks some of the data.
        if !force {
            warning!(core.state, "Writing initial AOF, can't exit.");
            return Err(Closing::Refused);
        }
        warning!(core.state, "Writing initial AOF. Exit anyway.");
    }
    let Some(purpose) = core.state.persistence.purpose() else { return Ok(None) };
    let text = match purpose {
        Purpose::Save => "There is a child saving an .rdb. Killing it!",
        Purpose::Rewrite => "There is a child rewriting the AOF. Killing it!",
        Purpose::Sync => "There is a child sending an .rdb to replicas. Killing it!",
    };
    warning!(core.state, "{text}");
    Ok(abort(core, purpose))
}

/// Finishes all files before the process ends, after [`begin_shut_down`]: writes and syncs the AOF,
/// and saves if requested or if save points are configured.
///
/// If the AOF cannot be written, the end is refused, as after a failed save. Under `always` it
/// fails.
pub fn shut_down(core: &mut Core, save_asked: Option<bool>, force: bool) -> Closing {
    if let Err(closing) = write_out(&mut core.state, force) {
        return closing;
    }
    let saves = save_asked.unwrap_or(!core.state.config.save.is_empty());
    if saves {
        notice!(core.state, "Saving the final RDB snapshot before exiting.");
        if save(core).is_err() {
            if !force {
                warning!(core.state, "Error trying to save the DB, can't exit.");
                return Closing::Refused;
            }
            warning!(core.state, "Error trying to save the DB. Exit anyway.");
        }
    }
    let now = core.state.now;
    match core.state.persistence.aof.take().map(|aof| aof.log.close(now)) {
        Some(Err(fatal)) => Closing::Failed(fatal),
        None | Some(Ok(())) => Closing::Done,
    }
}

/// Writes the rest of the AOF. Errors: the end is refused or fails.
fn write_out(state: &mut State, force: bool) -> Result<(), Closing> {
    if state.persistence.aof.is_some() {
        notice!(state, "Calling fsync() on the AOF file.");
    }
    // Also if the AOF was switched off: that may have failed in this turn.
    write_log(state).map_err(Closing::Failed)?;
    let now = state.now;
    let Some(aof) = &mut state.persistence.aof else { return Ok(()) };
    let written = aof.log.write_out(now);
    let is_always = aof.log.policy() == AppendFsync::Always;
    for (level, line) in aof.log.take_notices() {
        state.log(level, format_args!("{line}"));
    }
    state.refresh_fast_path();
    match written {
        Ok(()) => Ok(()),
        Err(fatal) if is_always => Err(Closing::Failed(fatal)),
        Err(why) if !force => {
            warning!(state, "{why}");
            warning!(state, "Error trying to write the AOF, can't exit.");
            Err(Closing::Refused)
        }
        Err(why) => {
            warning!(state, "{why}");
            warning!(state, "Error trying to write the AOF. Exit anyway.");
            Ok(())
        }
    }
}
