//! Moving the append-only file to another folder, after CONFIG SET dir.
//!
//! The move is a rewrite whose base and increment are made in the folder that `dir` names now.
//! Until both are durable there, with their manifest, the AOF in the old folder gets everything too
//! and decides what is answered. So at each moment one of the two folders has all that was
//! answered.

use std::sync::{Arc, Mutex};

use super::{RewriteError, abort_rewrite, begin_rewrite, open_folder, spread_effects};
use crate::config::system_text;
use crate::persist::aof::folder::AofFolder;
use crate::persist::saver::lock;
use crate::state::persistence::Placed;
use crate::state::{Core, State};
use crate::sys::log::{notice, warning};

type Folder = Arc<Mutex<AofFolder>>;

/// Whether the append-only file is still in another folder than `dir` names.
pub fn is_moving(state: &State) -> bool {
    let aof = state.persistence.aof.as_ref();
    aof.is_some_and(|aof| !lock(&aof.folder).is_in(&state.config.dir))
}

/// Begins to move the append-only file, if it is on, to the present `dir`. A transaction's effects
/// are one unit, so after a transaction. Errors: it stays where it is.
pub fn follow_dir(core: &mut Core, in_transaction: bool) -> Result<(), String> {
    let Some(aof) = &core.state.persistence.aof else { return Ok(()) };
    if aof.log.is_moving() {
        // It went to a folder that is no longer wanted.
        abort_rewrite(core);
    }
    if !is_moving(&core.state) {
        return Ok(());
    }
    if core.state.persistence.aof.as_ref().is_some_and(|aof| aof.is_aside) {
        return Err(
            "the append only file is being switched on: wait for the end of its first rewrite"
                .into(),
        );
    }
    // Looks whether it can be used, and unlocks it until the move begins.
    open_free_folder(&core.state)?;
    if in_transaction || core.state.persistence.under_way().is_some() {
        core.state.persistence.queued.rewrite = true;
        return Ok(());
    }
    spread_effects(&mut core.state);
    match begin_rewrite(core) {
        Ok(()) => Ok(()),
        Err(RewriteError::Failed(why)) => Err(why),
        Err(RewriteError::Fatal(fatal)) => {
            // The next turn ends the process.
            let why = fatal.to_string();
            core.state.persistence.fatal = Some(fatal);
            Err(why)
        }
    }
}

fn open_free_folder(state: &State) -> Result<AofFolder, String> {
    let folder = open_folder(state)?;
    if let Some(aof) = &state.persistence.aof {
        folder.check_free(&lock(&aof.folder)).map_err(|error| error.to_string())?;
    }
    Ok(folder)
}

/// Makes the AOF write to the new folder too. Returns that folder.
pub(super) fn begin(state: &mut State) -> Result<Folder, String> {
    let mut folder = open_free_folder(state)?;
    let increment = folder.increment_aside().map_err(|error| error.to_string())?;
    let first_kept = increment.seq;
    let folder = Arc::new(Mutex::new(folder));
    let wake = state.persistence.wake.clone();
    let Some(aof) = &mut state.persistence.aof else { return Ok(folder) };
    if let Err(error) = aof.log.begin_move(folder.clone(), increment, Box::new(move || wake())) {
        lock(&folder).give_up();
        return Err(system_text(&error));
    }
    aof.first_kept = Some(first_kept);
    notice!(state, "Moving the append only file to {}", lock(&folder).path().display());
    Ok(folder)
}

/// Gives up a move.
pub(super) fn give_up(state: &mut State, folder: &Folder) {
    let Some(aof) = &mut state.persistence.aof else { return };
    if aof.log.is_moving() {
        aof.log.give_up_move();
        aof.first_kept = None;
        lock(folder).give_up();
    }
}

/// Marks the folder of the file that was switched off, after one in another folder has taken its
/// place: it lacks what was written since. If somebody else has used that folder since, it is left
/// alone.
pub(super) fn mark_closed(state: &mut State) {
    let Some(closed) = state.persistence.closed_at.take() else { return };
    let Some(aof) = &state.persistence.aof else { return };
    if lock(&aof.folder).is_in(&closed.dir) {
        return;
    }
    let (disk, config) = (state.persistence.disk.clone(), &state.config);
    let (dirname, filename) = (&config.appenddirname, &config.appendfilename);
    let Ok(mut old) = AofFolder::open(disk.clone(), &closed.dir, dirname, filename) else { return };
    if old.manifest().text() != closed.manifest {
        return;
    }
    let marked = AofFolder::open_locked(disk, &closed.dir, dirname, filename).and_then(|folder| {
        old = folder;
        old.mark_moved(&lock(&aof.folder))
    });
    if let Err(error) = marked {
        warning!(state, "A start in the old folder would not be refused: {error}");
    }
}

/// Ends a rewrite in another folder than the AOF's, whose base is in its place or not.
pub(super) fn end(state: &mut State, folder: &Folder, placed: Placed) -> Placed {
    let now = state.now;
    let Some(aof) = &mut state.persistence.aof else { return placed };
    let completed = placed.and_then(|bytes| {
        aof.log.complete_successor(now)?;
        Ok(bytes)
    });
    if completed.is_err() {
        give_up(state, folder);
        return completed;
    }
    // From here on the new folder may have more than the old one.
    let marked = lock(&aof.folder).mark_moved(&lock(folder));
    aof.log.end_move(now);
    let old = std::mem::replace(&mut aof.folder, folder.clone());
    if let Err(error) = marked {
        warning!(state, "A start in the old folder would not be refused: {error}");
    }
    let (from, to) = (lock(&old), lock(folder));
    let (from, to) = (from.path().display(), to.path().display());
    notice!(state, "The append only file has moved from {from} to {to}");
    completed
}
