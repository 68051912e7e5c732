//! Closing clients, and removing them from everything that refers to them.

use crate::client::ClientId;
use crate::gate::{publish, tracking};
use crate::keyspace::Keyspace;
use crate::state::State;

/// Closes a client: it is inactive at once, but its socket is closed at the end of the turn.
pub fn close_client(keyspace: &mut Keyspace, state: &mut State, id: ClientId) {
    forget_client(state, id);
    tracking::stop(keyspace, state, id);
    state.clients.close(id);
}

/// Removes a client that is about to be closed from all lists that refer to it.
pub fn forget_client(state: &mut State, id: ClientId) {
    publish::unsubscribe_all(state, id);
    state.remove_monitor(id);
    state.forget_replica(id);
}
