//! A server whose turns are called from outside: by a simulation of several servers in one thread, which controls
//! their clocks and moves the bytes between them.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use mio::Events;

use super::Server;
use crate::net::dialer::Dialer;
use crate::net::stream::{Address, Stream};
use crate::sys::disk::Disk;

/// Events handled in one turn; the others follow in the next.
const EVENTS: usize = 256;

impl Server {
    /// Prepares the server for simulation: it reaches its primary through `dialer`, its files are on `disk`, and
    /// threads' work is done between turns. To be called before anything is loaded.
    pub fn prepare_simulation(&mut self, dialer: Box<dyn Dialer>, disk: Arc<dyn Disk>) {
        self.state.net.dialer = dialer;
        self.state.persistence.set_apart(disk);
    }

    /// Adds a connection, as if accepted.
    pub fn take_in(&mut self, stream: Stream, peer: Address, local: Address) {
        self.clients().add_client(stream, false, peer, local);
    }

    /// Runs one turn, without waiting for events. False: the server has ended.
    pub fn turn_now(&mut self) -> io::Result<bool> {
        self.turn(&mut Events::with_capacity(EVENTS), Some(Duration::ZERO))?;
        if self.stopping {
            self.finish();
        }
        Ok(!self.stopping)
    }

    /// Does the work of threads. A snapshot is written once all of it is there.
    pub fn do_background(&mut self) {
        self.state.persistence.sync_log();
        if !self.keyspace.has_snapshot() {
            self.state.persistence.background().run();
        }
    }

    /// The server's replication ID and offset: `master_replid`, `master_repl_offset`.
    pub fn history(&self) -> (&str, u64) {
        (&self.state.replication.id, self.state.replication.offset)
    }
}
