//! Sends each client's output in one write at the end of the turn, and closes connections.

use std::io;

use mio::{Registry, Token};

use super::Turn;
use crate::client::queues::Queues;
use crate::client::readiness::LogWait;
use crate::client::{Client, ClientId};
use crate::gate::closing::forget_client;
use crate::gate::limits::clients_memory_max;
use crate::gate::{sessions, tracking, transaction};
use crate::http;
use crate::state::persistence::Persistence;
use crate::sys::log::verbose;
use crate::waiting;

/// Whether a client's output may be sent: replies that show a change wait for the AOF's policy. If
/// not, marks the client as waiting for the AOF.
fn check_log_allows_sending(persistence: &Persistence, client: &mut Client) -> bool {
    let length = client.output.len();
    let may_leave = |offset| client.is_closing_now() || persistence.may_leave(offset);
    match client.log_wait {
        LogWait::Needless(of) if of == length => true,
        LogWait::Waits { offset, length: before, .. } if length <= before => may_leave(offset),
        _ => {
            let offset = persistence.depends_on();
            let may = may_leave(offset);
            if !may || client.log_wait.is_begun() {
                client.log_wait.wait_for(offset, length);
            }
            may
        }
    }
}

impl Turn<'_> {
    /// Sends replies, also to TLS's handshakes and HTTP's requests.
    pub(super) fn send(&mut self) {
        self.flush();
        self.run_handshakes();
        http::turn(self.core);
    }

    /// Sends pending outputs, one write per client. Killed clients are closed first, so they are
    /// gone when the reply of CLIENT KILL is read.
    pub(super) fn flush(&mut self) {
        self.close_clients();
        for id in std::mem::take(&mut self.core.state.clients.queues.to_flush) {
            self.flush_client(id);
            self.count_memory(id);
        }
    }

    /// Sends a client's output, or queues the client again if its output has to wait.
    fn flush_client(&mut self, id: ClientId) {
        let state = &mut self.core.state;
        let Some((client, queues)) = state.clients.get_with_queues(id) else { return };
        let is_unconfirmed =
            || state.node.work.unconfirmed.iter().any(|(waiting, _)| *waiting == id);
        if self.is_nested && client.reading.is_held
            || !check_log_allows_sending(&state.persistence, client)
            || is_unconfirmed() && !client.is_closing_now()
        {
            queues.to_flush.push(id);
            return;
        }
        client.is_flush_queued = false;
        if client.log_wait.is_begun() {
            // The client was not read, so it could not show life.
            client.active_us = state.now.boot_us;
        }
        if client.log_wait.end() {
            queues.read_later(client);
        }
        if client.is_closing_now() || !client.writability.begin_write() {
            return;
        }
        let result = match client.output.is_empty() {
            true => io::Write::flush(&mut client.stream).map(|()| 0),
            false => client.output.write_to(&mut client.stream),
        };
        state.stats.counters.writes += 1;
        match result {
            Ok(sent) => {
                client.bytes_out += sent as u64;
                if sent > 0 {
                    client.active_us = state.now.boot_us;
                }
                state.stats.counters.bytes_out += sent as u64;
            }
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) => {}
            Err(error) => {
                verbose!(state, "Error writing to client: {error}");
                return state.clients.close(id);
            }
        }
        match after_write(client, queues, state.net.poll.registry()) {
            Written::Stays => {}
            Written::Closes => state.clients.close(id),
            Written::ClosesInformed => {
                state.clients.informed.insert(id);
                state.clients.close(id);
            }
        }
    }

    /// Counts a client's memory towards `maxmemory-clients`, if that is set.
    pub(super) fn count_memory(&mut self, id: ClientId) {
        if clients_memory_max(&self.core.state) > 0 {
            self.core.state.clients.count_memory(id);
        }
    }

    /// Closes the clients marked for it: the only place where clients are removed, before and after
    /// [`Self::flush`].
    pub(super) fn close_clients(&mut self) {
        for id in std::mem::take(&mut self.core.state.clients.queues.to_close) {
            if self.is_nested && self.is_held(id) {
                self.core.state.clients.queues.to_close.push(id);
                continue;
            }
            waiting::forget(self.core, id);
            sessions::forget(self.core, id);
            forget_client(&mut self.core.state, id);
            tracking::close(self.core, id);
            if let Some(mut client) = self.core.state.clients.remove(id) {
                transaction::abandon(&mut self.core.keyspace, &mut client);
                // Fails harmlessly if the system has dropped the socket already.
                let _ = client.stream.deregister(self.core.state.net.poll.registry());
            }
        }
    }
}

/// What becomes of a client after a write.
enum Written {
    Stays,
    Closes,
    /// It is closed, and all its output was sent.
    ClosesInformed,
}

/// If all was sent: keeps the buffer as a spare or closes the client. Otherwise waits for
/// writability.
fn after_write(client: &mut Client, queues: &mut Queues, registry: &Registry) -> Written {
    client.log_wait = match client.output.is_empty() {
        true => LogWait::Needless(0),
        false => LogWait::Unknown,
    };
    let done = client.output.is_empty() && !client.stream.has_unsent();
    let waited = client.writability.is_registered();
    if done && client.is_closing() {
        return Written::ClosesInformed;
    }
    if waited || !done {
        // Registered again even if it was registered: the output may have more pieces than one
        // write takes. The socket may then still be writable, and would not be announced again.
        client.writability.set_full(!done);
        let token = Token(client.id.slot as usize);
        if client.stream.reregister(registry, token, !done).is_err() {
            return Written::Closes;
        }
    }
    if done {
        client.over_soft_limit_since_us = None;
        queues.keep_spare(client);
    }
    Written::Stays
}
