//! nodes.conf: opened and read at the start, later saved by a thread beside the loop.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use crate::persist::nodes_file::{NodesFile, OpenError, SaveError};
use crate::state::State;
use crate::sys::disk::ReplaceStep;
use crate::sys::log::{Level, warning};
use crate::sys::process;

/// Time until a failed save is tried again, if the failure does not end the server. Unit:
/// microseconds.
const RETRY_US: i64 = 1_000_000;
/// Interval of log lines about failed saves. Unit: microseconds.
const LOG_EVERY_US: i64 = 30_000_000;

/// Opens and locks nodes.conf. Returns its text, empty if the file did not exist. Errors: a text
/// for the log.
pub fn open(state: &mut State) -> Result<Vec<u8>, String> {
    let name = OsStr::from_bytes(&state.config.cluster_config_file);
    let shown = name.to_string_lossy();
    let folder = std::path::absolute(&state.config.dir)
        .map_err(|error| format!("Can't find the folder of {shown}: {error}"))?;
    let disk = state.persistence.disk().clone();
    match NodesFile::open(disk, &folder, name.as_ref()) {
        Ok((file, text)) => {
            state.node.work.file = Some(file);
            Ok(text)
        }
        Err(OpenError::Locked) => {
            let program = match state.config.compatible_with.is_valkey() {
                true => "Valkey",
                false => "Redis",
            };
            Err(format!(
                "Sorry, the cluster configuration file {shown} is already used by a different {program} Cluster node. \
                 Please make sure that different nodes use different cluster configuration files."
            ))
        }
        Err(OpenError::Io(error)) => {
            Err(format!("Can't open {shown} in order to acquire a lock: {error}"))
        }
    }
}

/// Saves pending changes, and waits until they are saved. Errors: a text for the log.
pub fn save_first(state: &mut State) -> Result<(), String> {
    let Some(file) = &mut state.node.work.file else { return Ok(()) };
    file.finish(state.persistence.background()).map_err(|failure| failure_text(&failure))
}

/// Queues a save of the cluster's state. If it `is_awaited`, later messages wait for it.
pub fn save(state: &mut State, number: u64, text: Arc<[u8]>, is_awaited: bool) {
    let Some(file) = &mut state.node.work.file else { return };
    file.save(number, text);
    for (_, save) in &mut state.node.work.unconfirmed {
        save.get_or_insert(number);
    }
    if is_awaited {
        state.net.bus.await_save(number);
    }
}

/// Starts queued saves. When one has ended, sends the messages that waited for it.
pub fn go_on(state: &mut State) {
    let Some(file) = &mut state.node.work.file else { return };
    if file.is_idle() || state.node.work.next_save_us > state.now.boot_us {
        return;
    }
    let wake = state.persistence.wake();
    match file.go_on(state.persistence.background(), &wake) {
        Ok(None) => {}
        Ok(Some(number)) => {
            let is_later = |save: &Option<u64>| save.is_none_or(|save| save > number);
            state.node.work.unconfirmed.retain(|(_, save)| is_later(save));
            state.net.bus.note_saved(number);
            state.net.bus.flush();
        }
        Err(failure) => fail(state, &failure),
    }
}

/// Saves the unsaved changes when the server ends.
pub fn finish(state: &mut State) {
    let Some(mut file) = state.node.work.file.take() else { return };
    if let Err(failure) = file.finish(state.persistence.background()) {
        warning!(state, "{}", failure_text(&failure));
    }
}

/// Handles a failed save: by `cluster-config-save-behavior`, the server ends or continues without
/// it.
#[cold]
fn fail(state: &mut State, failure: &SaveError) {
    let text = failure_text(failure);
    if state.config.cluster_config_save_behavior == "sync" {
        warning!(state, "{text}");
        warning!(state, "Fatal: can't update cluster config file.");
        process::end(1);
    }
    let now_us = state.now.boot_us;
    let work = &mut state.node.work;
    work.next_save_us = now_us + RETRY_US;
    let is_told = work.failure_logged_us.is_some_and(|logged_us| now_us - logged_us < LOG_EVERY_US);
    if !is_told {
        work.failure_logged_us = Some(now_us);
        let rest =
            "Cluster config updated even though writing the cluster config file to disk failed.";
        state.log(Level::Warning, format_args!("{text}. {rest}"));
    }
    state.node.work.unconfirmed.clear();
    state.net.bus.wait_for_no_save();
}

fn failure_text(failure: &SaveError) -> String {
    let step = match failure.step {
        ReplaceStep::Create => "open temp cluster config file",
        ReplaceStep::Write => "write temp cluster config file",
        ReplaceStep::Sync => "sync temp cluster config file",
        ReplaceStep::Rename => "rename tmp cluster config file",
        ReplaceStep::SyncFolder => "sync cluster config file dir",
    };
    format!("Could not {step}: {}", failure.error)
}
