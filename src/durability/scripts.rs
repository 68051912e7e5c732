//! Scripts that survive a restart (`script-cache-persist`): written to the append-only file and for
//! replicas as SCRIPT LOAD, and read from there and from snapshots.
//!
//! ```text
//!   SCRIPT LOAD, EVAL again -> due (script/cache.rs) -> here, once a turn -> effects
//!   snapshot, file, primary -> restore -> compiled when it is used
//! ```
//!
//! A script is content-addressed: one too many does no harm, so a synchronization removes none.

use crate::script::LoadError;
use crate::script::cache::{Due, Source, Written};
use crate::state::context::Caller;
use crate::state::{Core, State};
use crate::sys::log::warning;

/// Sources written in one turn: CONFIG SET may make all of them due at once. Unit: bytes.
const TURN_BYTES: usize = 1 << 20;

/// Where a script comes from that this caller loads, if it is no client.
pub fn source(caller: Caller) -> Option<Source> {
    match caller {
        Caller::Client(_) => None,
        Caller::Load => Some(Source::File),
        Caller::Primary => Some(Source::Primary),
    }
}

/// Applies the configuration and the role.
pub fn set_rule(state: &mut State) {
    let writes = match (state.config.script_cache_persist, state.replication.is_replica()) {
        (false, _) => Written::Nothing,
        (true, true) => Written::OfPrimary,
        (true, false) => Written::All,
    };
    let limit = usize::try_from(state.config.script_cache_persist_limit).unwrap_or(usize::MAX);
    state.scripts.write(writes, limit);
}

/// Adds a script that another server or process has written.
pub fn restore(state: &mut State, body: &[u8], source: Source) -> Result<(), LoadError> {
    set_rule(state);
    let Some(mut engine) = state.take_engine() else { return Ok(()) };
    let restored = engine.restore(body, source);
    state.scripts.put_engine(engine);
    restored
}

/// Adds a script of a snapshot, if scripts survive here. One that cannot be read is logged.
pub fn restore_saved(state: &mut State, body: &[u8]) {
    if !state.config.script_cache_persist {
        return;
    }
    if restore(state, body, Source::File).is_err() {
        warning!(
            state,
            "A script of the snapshot is skipped: its first line is not understood here"
        );
    }
}

/// Writes scripts that are due, in each turn.
pub fn turn(core: &mut Core) {
    set_rule(&mut core.state);
    if core.state.scripts.is_due() {
        write_some(core, TURN_BYTES);
    }
}

/// Writes all scripts that are due.
pub fn write_all(core: &mut Core) {
    set_rule(&mut core.state);
    if core.state.scripts.is_due() {
        write_some(core, usize::MAX);
    }
}

#[cold]
fn write_some(core: &mut Core, bytes_max: usize) {
    // A replica may be about to take over: nothing is added to its stream.
    if core.state.stands_still() {
        return;
    }
    let Due { flush, bodies } = core.state.scripts.take_due(bytes_max);
    let effects = &mut core.state.effects;
    if !effects.is_heard() {
        return;
    }
    let database = effects.selected().unwrap_or(core.keyspace.selected());
    let apart = effects.begin_apart();
    if flush {
        effects.push(database, [&b"SCRIPT"[..], b"FLUSH"].into_iter());
        effects.end_apart(apart);
    }
    for body in &bodies {
        effects.push(database, [&b"SCRIPT"[..], b"LOAD", body].into_iter());
        effects.end_apart(apart);
    }
}
