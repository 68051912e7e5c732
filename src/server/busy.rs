//! The stand-in for the loop while a script runs on and on: others are accepted, read, and told that the server is busy, or
//! get to run the few commands that are allowed then, SCRIPT KILL above all.
//!
//! The same while a file is loaded when the server starts.
//!
//! A script that has run for `busy-reply-threshold` is interrupted every few milliseconds, and [`serve`] does what a turn of
//! the loop would do for clients, with arms of its own: the loop's are full of what it is doing. Who is in the loop's hands
//! (the client that runs the script, and those whose requests wait behind it) is left alone. Time stands still as it does
//! for the script, no key expires, and nobody who is blocked is woken.

use std::time::Duration;

use mio::Events;

use super::hands::{Hands, Intake};
use crate::client::{ClientFlags, ClientId};
use crate::gate::state::State;
use crate::keyspace::Keyspace;
use crate::sys::log::Level;

/// Serves clients for a moment.
pub(super) fn serve(keyspace: &mut Keyspace, state: &mut State) {
    let (client, is_first) = match (&mut state.scripts.running, state.persistence.loading) {
        (Some(running), _) => (running.client, !std::mem::replace(&mut running.others_heard, true)),
        // Nobody was heard before the file, and nobody's requests are in the loop's hands.
        (None, Some(_)) => (None, false),
        (None, None) => return,
    };
    let database = keyspace.selected();
    let (no_touch, keeps_expired) = (keyspace.no_touch, keyspace.keeps_expired);
    let begun = state.timing.mark();
    if let Some(client) = client.and_then(|id| state.clients.get_mut(id)) {
        client.flags |= ClientFlags::HELD;
    }
    stand_in(
        &mut Hands { keyspace, state, intake: &mut Intake::default(), stands_in: true },
        is_first,
    );
    keyspace.select(database);
    (keyspace.no_touch, keyspace.keeps_expired) = (no_touch, keeps_expired);
    state.timing.go_back(begun);
}

fn stand_in(hands: &mut Hands<'_>, is_first: bool) {
    let mut events = Events::with_capacity(256);
    match hands.state.poll.poll(&mut events, Some(Duration::ZERO)) {
        Err(error) if error.kind() != std::io::ErrorKind::Interrupted => {
            hands.state.log(Level::Warning, format_args!("Waiting for events: {error}"));
            return;
        }
        _ => {}
    }
    hands.take_in(&events);
    if is_first {
        // What was announced to the loop it may not have come to; it is not announced again.
        hands.run_batch();
        let in_hand = ClientFlags::HELD | ClientFlags::READ_PENDING;
        let others = hands.state.clients.iter().filter(|client| !client.flags.intersects(in_hand));
        let others: Vec<ClientId> = others.map(|client| client.id).collect();
        others.into_iter().for_each(|id| hands.read(id));
    }
    hands.run_batch();
    hands.flush();
    hands.shake_hands();
    hands.close_clients();
}
