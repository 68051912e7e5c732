//! A server that somebody else drives, turn by turn: a simulation of several servers in one thread, which moves their clocks and the
//! bytes between them.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use mio::Events;

use super::Server;
use crate::net::dialer::Dialer;
use crate::net::stream::{Address, Stream};
use crate::sys::disk::Disk;

/// Events taken in one turn; the others come in the next one.
const EVENTS: usize = 256;

impl Server {
    /// Leaves the server to be driven: it reaches its primary through `dialer`, its files are on `disk`, and what threads would do
    /// is done between turns. To be called before anything is loaded.
    pub fn give_reins(&mut self, dialer: Box<dyn Dialer>, disk: Arc<dyn Disk>) {
        self.state.net.dialer = dialer;
        self.state.persistence.set_apart(disk);
    }

    /// Takes in a connection, as a listener would.
    pub fn take_in(&mut self, stream: Stream, peer: Address, local: Address) {
        self.clients().welcome(stream, false, peer, local);
    }

    /// Takes one turn, without waiting for events. False: the server has ended.
    pub fn turn_now(&mut self) -> io::Result<bool> {
        self.turn(&mut Events::with_capacity(EVENTS), Some(Duration::ZERO))?;
        if self.stopping {
            self.finish();
        }
        Ok(!self.stopping)
    }

    /// Does what threads would have done meanwhile. A snapshot is written when all of it is there.
    pub fn do_background(&mut self) {
        self.state.persistence.sync_log();
        if !self.keyspace.has_snapshot() {
            self.state.persistence.background().run();
        }
    }

    /// The history of changes that this server has, and how far: `master_replid`, `master_repl_offset`.
    pub fn history(&self) -> (&str, u64) {
        (&self.state.replication.id, self.state.replication.offset)
    }
}
