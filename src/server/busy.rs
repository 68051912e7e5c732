//! Turns within a turn, while a script runs on and on: others are accepted, read, and told that the server is busy, or get to
//! run the few commands that are allowed then, SCRIPT KILL above all.
//!
//! The same while a file is loaded when the server starts.
//!
//! A script that has run for `busy-reply-threshold` is interrupted every few milliseconds, and [`serve`] does what a turn of
//! the loop does for clients, with an arena and a batch of its own: the loop's are full of what it is doing. The client that
//! runs the script and those whose requests wait behind it ([`ClientFlags::HELD`]) are left alone. Time stands still as it
//! does for the script, no key expires, and no blocked client is served.

use std::time::Duration;

use mio::Events;

use super::Turn;
use super::intake::Intake;
use crate::client::{ClientFlags, ClientId};
use crate::gate::following;
use crate::gate::state::State;
use crate::keyspace::Keyspace;
use crate::sys::log::Level;

/// Serves clients for a moment.
pub(super) fn serve(keyspace: &mut Keyspace, state: &mut State) {
    let (client, is_first) = match (&mut state.scripts.running, state.persistence.loading) {
        (Some(running), _) => (running.client, !std::mem::replace(&mut running.others_heard, true)),
        // Before a file no client was served, so none is in the middle of its requests.
        (None, Some(_)) => (None, false),
        (None, None) => return,
    };
    let database = keyspace.selected();
    let (no_touch, keeps_expired) = (keyspace.no_touch, keyspace.keeps_expired);
    let begun = state.stats.timing.mark();
    if let Some(client) = client.and_then(|id| state.clients.get_mut(id)) {
        client.flags |= ClientFlags::HELD;
    }
    let turn = &mut Turn { keyspace, state, intake: &mut Intake::default(), is_nested: true };
    take_turn(turn, is_first);
    keyspace.select(database);
    (keyspace.no_touch, keyspace.keeps_expired) = (no_touch, keeps_expired);
    state.stats.timing.go_back(begun);
}

/// A nested turn; `is_first`: of those while this script runs.
fn take_turn(turn: &mut Turn<'_>, is_first: bool) {
    let mut events = Events::with_capacity(256);
    match turn.state.net.poll.poll(&mut events, Some(Duration::ZERO)) {
        Err(error) if error.kind() != std::io::ErrorKind::Interrupted => {
            turn.state.log(Level::Warning, format_args!("Waiting for events: {error}"));
            return;
        }
        _ => {}
    }
    following::look(turn.state, &events);
    turn.take_in(&events);
    if is_first {
        // What was announced to the loop it may not have come to; it is not announced again.
        turn.run_batch();
        let left_alone = ClientFlags::HELD | ClientFlags::READ_PENDING;
        let others =
            turn.state.clients.iter().filter(|client| !client.flags.intersects(left_alone));
        let others: Vec<ClientId> = others.map(|client| client.id).collect();
        others.into_iter().for_each(|id| turn.read(id));
    }
    turn.run_batch();
    turn.flush();
    turn.shake_hands();
    turn.close_clients();
}
