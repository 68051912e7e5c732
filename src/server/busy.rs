//! Nested turns during a long-running script: clients are accepted and read, and get an error that
//! the server is busy, or run the few commands that are allowed then, above all SCRIPT KILL.
//!
//! Also used while a file is loaded, at the start and by DEBUG RELOAD and LOADAOF.
//!
//! A script that runs longer than `busy-reply-threshold` is interrupted every few milliseconds.
//! Then [`serve`] does a turn's work for clients. It has its own arena and batch, because those of
//! the loop are in use. It skips the client that runs the script, and clients with requests in the
//! outer turn ([`crate::client::readiness::Reading::is_held`]). The commands' time stands still, as
//! for the script; no key expires, and no blocked client is served. Replicas and the primary get
//! signs of life, because the script may run longer than `repl-timeout`. Other nodes of the cluster
//! are answered.

use std::time::Duration;

use mio::Events;

use super::intake::{Intake, note_readiness};
use super::{Turn, die};
use crate::client::{Client, ClientId};
use crate::durability::persistence;
use crate::roles::cluster;
use crate::roles::following;
use crate::roles::replicas;
use crate::state::Core;
use crate::sys::log::warning;

/// Serves clients for a moment.
pub(super) fn serve(core: &mut Core) {
    let (client, others_heard) =
        match (&mut core.state.scripts.running, &mut core.state.persistence.loading) {
            (Some(running), _) => (running.client, &mut running.others_heard),
            (None, Some(loading)) => (None, &mut loading.others_heard),
            (None, None) => return,
        };
    let is_first = !std::mem::replace(others_heard, true);
    let database = core.keyspace.selected();
    let mode = core.keyspace.mode;
    let begun = core.state.stats.timing.mark();
    if let Some(client) = client.and_then(|id| core.state.clients.get_mut(id)) {
        client.reading.is_held = true;
    }
    let turn = &mut Turn { core, intake: &mut Intake::default(), is_nested: true };
    take_turn(turn, is_first);
    core.keyspace.select(database);
    core.keyspace.mode = mode;
    core.state.stats.timing.go_back(begun);
}

/// Runs a nested turn. `is_first`: the first one during this script or loading.
fn take_turn(turn: &mut Turn<'_>, is_first: bool) {
    let mut events = Events::with_capacity(256);
    match turn.core.state.net.poll.poll(&mut events, Some(Duration::ZERO)) {
        Err(error) if error.kind() != std::io::ErrorKind::Interrupted => {
            warning!(turn.core.state, "Waiting for events: {error}");
            return;
        }
        _ => {}
    }
    note_readiness(&mut turn.core.state, &events);
    cluster::nested_turn(&mut turn.core.state);
    turn.take_in(&events);
    if is_first {
        // Events that the outer turn has not handled yet are not announced again.
        (0..turn.core.state.net.listeners.len()).for_each(|listener| turn.accept(listener));
        turn.run_batch();
        let is_left_alone = |client: &Client| client.reading.is_held || client.reading.is_queued;
        let others = turn.core.state.clients.iter().filter(|client| !is_left_alone(client));
        let others: Vec<ClientId> = others.map(|client| client.id).collect();
        others.into_iter().for_each(|id| turn.read(id));
    }
    turn.run_batch();
    replicas::keep_alive(&mut turn.core.state);
    if let Err(fatal) = persistence::write_log(&mut turn.core.state) {
        die(&turn.core.state, &fatal);
    }
    replicas::send(&mut turn.core.state);
    following::keep_alive(&mut turn.core.state);
    turn.send();
    turn.close_clients();
}
