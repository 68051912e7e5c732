//! Persistence at the server's start and end: opening the append-only file after loading, and closing all files.

use std::sync::{Arc, Mutex};

use super::{Purpose, abort, open_folder, plan, save, switch_on, write_log};
use crate::config::system_text;
use crate::gate::state::State;
use crate::keyspace::Keyspace;
use crate::persist::aof::folder::AofFolder;
use crate::persist::aof::log::AppendLog;
use crate::persist::saver::write_now;
use crate::sys::log::Level;

/// Opens the append-only file after loading: from now on changes are appended.
pub fn begin_aof_at_start(
    db: &mut Keyspace,
    server: &mut State,
    mut folder: AofFolder,
    loaded_bytes: u64,
    base_bytes: u64,
) -> Result<(), String> {
    let plan = plan(db, server, true);
    let increment = folder
        .open_at_start(plan.form.base_format(), |file| write_now(db, file, &plan).map(drop))
        .map_err(|error| error.to_string())?;
    let folder = Arc::new(Mutex::new(folder));
    let wake = server.persistence.wake.clone();
    let wake = Box::new(move || wake());
    let policy = server.config.appendfsync;
    let mut log = AppendLog::new(folder.clone(), increment, loaded_bytes, base_bytes, policy, wake);
    if server.persistence.background.has_threads() {
        log.spawn().map_err(|error| system_text(&error))?;
    }
    switch_on(db, server, folder, log, false);
    Ok(())
}

/// Marks the just-loaded data as saved.
pub fn note_loaded(db: &Keyspace, server: &mut State) {
    server.persistence.saved_changes = db.dirty();
}

/// Opens the append-only folder, taking over an old single file.
pub fn folder_at_start(server: &State) -> Result<AofFolder, String> {
    let mut folder = open_folder(server)?;
    let taken = folder.take_over_single_file().map_err(|error| error.to_string())?;
    if taken {
        let text = "Successfully migrated an old-style AOF configuration into the AOF directory";
        server.log(Level::Notice, format_args!("{text}"));
    }
    Ok(folder)
}

/// Finishes all files before the process ends: writes and syncs the log, and saves if requested or if save points are
/// configured. False: this failed, and the process must go on.
pub fn shut_down(
    db: &mut Keyspace,
    server: &mut State,
    save_asked: Option<bool>,
    force: bool,
) -> bool {
    if server.persistence.aof.as_ref().is_some_and(|aof| aof.is_aside) {
        // The existing file has not all of the data.
        if !force {
            let text = "Writing initial AOF, can't exit.";
            server.log(Level::Warning, format_args!("{text}"));
            return false;
        }
        server.log(Level::Warning, format_args!("Writing initial AOF. Exit anyway."));
    }
    if let Some((purpose, ..)) = server.persistence.under_way() {
        let text = match purpose {
            Purpose::Save => "There is a child saving an .rdb. Killing it!",
            Purpose::Rewrite => "There is a child rewriting the AOF. Killing it!",
            Purpose::Sync => "There is a child sending an .rdb to replicas. Killing it!",
        };
        server.log(Level::Warning, format_args!("{text}"));
        abort(db, server, purpose);
    }
    if server.persistence.aof.is_some() {
        let text = "Calling fsync() on the AOF file.";
        server.log(Level::Notice, format_args!("{text}"));
        if let Err(fatal) = write_log(server) {
            server.log(Level::Warning, format_args!("{fatal}"));
        }
    }
    let saves = save_asked.unwrap_or(!server.config.save.is_empty());
    if saves {
        let text = "Saving the final RDB snapshot before exiting.";
        server.log(Level::Notice, format_args!("{text}"));
        if save(db, server).is_err() {
            if !force {
                let text = "Error trying to save the DB, can't exit.";
                server.log(Level::Warning, format_args!("{text}"));
                return false;
            }
            let text = "Error trying to save the DB. Exit anyway.";
            server.log(Level::Warning, format_args!("{text}"));
        }
    }
    let now = server.now;
    if let Some(aof) = server.persistence.aof.take()
        && let Err(fatal) = aof.log.close(now)
    {
        server.log(Level::Warning, format_args!("{fatal}"));
    }
    true
}
