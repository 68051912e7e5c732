//! Resumes a RESTORE when a thread has decoded its value (`state/arriving.rs`).

use crate::client::ClientFlags;
use crate::state::State;

/// Resumes clients whose values are there. Values that nobody waits for any more are freed by a thread: they are large.
pub fn turn(state: &mut State) {
    if state.arriving.is_empty() {
        return;
    }
    let clients = &state.clients;
    let waits = |id| clients.get(id).is_some_and(|it| it.flags.intersects(ClientFlags::WAITS));
    for unwanted in state.arriving.take_unwanted(waits) {
        // Without a thread they are freed here.
        _ = state.persistence.background().spawn("restore", move || drop(unwanted));
    }
    state.net.pending.resumed.extend(state.arriving.take_arrived());
}
