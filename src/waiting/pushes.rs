//! Push messages that answer waits of clients that are not blocked: LOCK.ACQUIRE and LOCK.MACQUIRE
//! with ASYNC.

use crate::client::ClientId;
use crate::client::acks::write_keys;
use crate::client::waits::Wait;
use crate::gate::limits;
use crate::resp::reply::{Protocol, ReplyWriter};
use crate::state::State;

/// Sends a push message to a client of RESP3. A push is no reply, so CLIENT REPLY does not suppress
/// it.
pub fn push(state: &mut State, id: ClientId, write: impl FnOnce(&mut ReplyWriter<'_>)) {
    let Some(client) = state.clients.get_to_push(id) else { return };
    if client.protocol != Protocol::Resp3 {
        return;
    }
    write(&mut ReplyWriter::new(&mut client.output, Protocol::Resp3));
    limits::check_output_limit(state, id);
}

/// The push `lock-timeout key owner`.
pub fn push_timeout(state: &mut State, wait: &Wait) {
    push_ended(state, wait, (b"lock-timeout", None));
}

/// The push `lock-failed key owner error`.
pub fn push_failed(state: &mut State, wait: &Wait, error: &[u8]) {
    push_ended(state, wait, (b"lock-failed", Some(error)));
}

fn push_ended(state: &mut State, wait: &Wait, (kind, error): (&[u8], Option<&[u8]>)) {
    let names = wait.names();
    let Some((owner, keys)) = names.split_last() else { return };
    // Even one key is an array then.
    let is_array = state.commands.get(wait.command).spec.name == "LOCK.MACQUIRE";
    push(state, wait.client, |push| {
        push.push(3 + error.iter().len());
        push.bulk(kind);
        write_keys(push, keys, is_array);
        push.bulk(owner);
        error.iter().for_each(|error| push.bulk(error));
    });
}
