//! Sends each client's output in one write at the end of the turn, and closes connections.

use std::io;

use mio::Token;

use super::Turn;
use crate::client::readiness::LogWait;
use crate::client::{Client, ClientId};
use crate::gate::closing::forget_client;
use crate::gate::limits::clients_memory_max;
use crate::gate::{sessions, tracking, transaction};
use crate::http;
use crate::state::persistence::Persistence;
use crate::sys::log::verbose;
use crate::waiting;

/// The most empty output buffers kept for the next turn. A buffer that is not kept grows again from
/// nothing, and copies its bytes several times.
const SPARE_BUFFERS: usize = 64;
/// Larger ones, for pipelined replies of some KiB each, are few; still larger ones are not kept.
const LARGE_SPARE_BUFFERS: usize = 8;
const LARGE_BYTES: usize = 64 * 1024;
const SPARE_BYTES_MAX: usize = 256 * 1024;

/// Whether an empty buffer of this capacity is kept beside those that are kept already.
fn is_worth_keeping(kept: &[Vec<u8>], capacity: usize) -> bool {
    if kept.len() >= SPARE_BUFFERS {
        return false;
    }
    let is_large = |capacity: usize| capacity > LARGE_BYTES;
    let large = || kept.iter().filter(|other| is_large(other.capacity())).count();
    (1..=SPARE_BYTES_MAX).contains(&capacity)
        && (!is_large(capacity) || large() < LARGE_SPARE_BUFFERS)
}

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
        let now_us = self.core.state.now.boot_us;
        for id in std::mem::take(&mut self.core.state.clients.to_flush) {
            let Some(client) = self.core.state.clients.get_mut(id) else { continue };
            if self.is_nested && client.reading.is_held {
                self.core.state.clients.to_flush.push(id);
                continue;
            }
            if !check_log_allows_sending(&self.core.state.persistence, client) {
                self.core.state.clients.to_flush.push(id);
                continue;
            }
            let unconfirmed = &self.core.state.cluster_work.unconfirmed;
            if unconfirmed.iter().any(|(waiting, _)| *waiting == id) && !client.is_closing_now() {
                self.core.state.clients.to_flush.push(id);
                continue;
            }
            client.is_flush_queued = false;
            if client.log_wait.is_begun() {
                // The client was not read, so it could not show life.
                client.active_us = now_us;
            }
            if client.log_wait.end() {
                self.core.state.clients.read_later(id);
            }
            let Some(client) = self.core.state.clients.get_mut(id) else { continue };
            if client.is_closing_now() || !client.writability.begin_write() {
                self.count_memory(id);
                continue;
            }
            let result = match client.output.is_empty() {
                true => io::Write::flush(&mut client.stream).map(|()| 0),
                false => client.output.write_to(&mut client.stream),
            };
            self.core.state.stats.counters.writes += 1;
            match result {
                Ok(sent) => {
                    client.bytes_out += sent as u64;
                    if sent > 0 {
                        client.active_us = self.core.state.now.boot_us;
                    }
                    self.core.state.stats.counters.bytes_out += sent as u64;
                }
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                    ) => {}
                Err(error) => {
                    verbose!(self.core.state, "Error writing to client: {error}");
                    self.core.state.clients.close(id);
                    continue;
                }
            }
            self.after_write(id);
            self.count_memory(id);
        }
    }

    /// Counts a client's memory towards `maxmemory-clients`, if that is set.
    pub(super) fn count_memory(&mut self, id: ClientId) {
        if clients_memory_max(&self.core.state) > 0 {
            self.core.state.clients.count_memory(id);
        }
    }

    /// If all was sent: keeps the buffer as a spare or closes the client. Otherwise waits for
    /// writability.
    fn after_write(&mut self, id: ClientId) {
        let Some(client) = self.core.state.clients.get_mut(id) else { return };
        client.log_wait = match client.output.is_empty() {
            true => LogWait::Needless(0),
            false => LogWait::Unknown,
        };
        let done = client.output.is_empty() && !client.stream.has_unsent();
        let waited = client.writability.is_registered();
        if done && client.is_closing() {
            self.core.state.clients.informed.insert(id);
            return self.core.state.clients.close(id);
        }
        if waited || !done {
            // Registered again even if it was registered: the output may have more pieces than one
            // write takes. The socket may then still be writable, and would not be announced again.
            client.writability.set_full(!done);
            let token = Token(id.slot as usize);
            let registry = self.core.state.net.poll.registry();
            if client.stream.reregister(registry, token, !done).is_err() {
                return self.core.state.clients.close(id);
            }
        }
        if done {
            client.over_soft_limit_since_us = None;
            self.keep_spare(id);
        }
    }

    /// Takes an idle client's empty buffer as a spare.
    pub(super) fn keep_spare(&mut self, id: ClientId) {
        let Some(client) = self.core.state.clients.get_mut(id) else { return };
        let storage = client.output.take_storage();
        let spare_buffers = &mut self.core.state.clients.spare_buffers;
        if is_worth_keeping(spare_buffers, storage.capacity()) {
            spare_buffers.push(storage);
        }
    }

    /// Closes the clients marked for it: the only place where clients are removed, before and after
    /// [`Self::flush`].
    pub(super) fn close_clients(&mut self) {
        for id in std::mem::take(&mut self.core.state.clients.to_close) {
            if self.is_nested && self.is_held(id) {
                self.core.state.clients.to_close.push(id);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_buffers_are_many_small_and_few_large_ones() {
        let keep = |sizes: &[usize]| {
            let mut kept = Vec::new();
            for &size in sizes {
                if is_worth_keeping(&kept, size) {
                    kept.push(Vec::with_capacity(size));
                }
            }
            kept.iter().map(Vec::capacity).sum::<usize>() >> 10
        };
        assert_eq!(keep(&[0, SPARE_BYTES_MAX + 1, usize::MAX]), 0);
        // Sixteen replies of 4 KB, for which a buffer has doubled.
        assert_eq!(keep(&[128 << 10]), 128);
        assert_eq!(keep(&[SPARE_BYTES_MAX; 20]), 8 * 256);
        assert_eq!(keep(&[LARGE_BYTES; 100]), 64 * 64);
        let mixed: Vec<_> = [SPARE_BYTES_MAX, 1024].into_iter().cycle().take(40).collect();
        assert_eq!(keep(&mixed), 8 * 256 + 20);
    }
}
