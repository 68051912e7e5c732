//! Closing clients, and removing them from everything that refers to them.

use crate::client::ClientId;
use crate::gate::{publish, tracking};
use crate::state::{Core, State};

/// Closes a client: it is inactive at once, but its socket is closed at the end of the turn.
pub fn close_client(core: &mut Core, id: ClientId) {
    forget_client(&mut core.state, id);
    tracking::close(core, id);
    core.state.clients.close(id);
}

/// Removes a client that is about to be closed from all lists that refer to it.
pub fn forget_client(state: &mut State, id: ClientId) {
    publish::unsubscribe_all(state, id);
    state.remove_monitor(id);
    state.forget_replica(id);
}
