//! A server whose turns are called from outside: by a simulation of several servers in one thread,
//! which controls their clocks and moves the bytes between them.
//!
//! Nothing here depends on real time, on threads, or on the other servers. Each server has an
//! account of the memory it uses, and its commands take no time for the statistics. Where a process
//! would end, the turn unwinds ([`process::Ended`]).
//!
//! The account has the memory that the server's turns really allocate. Starts and loads are
//! different: at some time, threads free some of the bytes that these have allocated. So after each
//! of them the account begins anew, with the memory of the data.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mio::Events;

use super::Server;
use crate::client::Client;
use crate::clock::Clock;
use crate::collections::table::ValueRef;
use crate::config::Config;
use crate::durability::load::LoadError;
use crate::gate::evict::not_counted;
use crate::keyspace::DbIndex;
use crate::net::dialer::Dialer;
use crate::net::stream::{Address, Stream};
use crate::replication::backlog::Backlog;
use crate::roles::cluster;
use crate::state::Core;
use crate::stats::timing::Timing;
use crate::sys::alloc::{Account, allocated};
use crate::sys::disk::Disk;
use crate::sys::log::Logger;
use crate::sys::process;

/// Events handled in one turn; the others follow in the next.
const EVENTS: usize = 256;

/// The assumed memory of an empty server. Unit: bytes.
const EMPTY_BYTES: usize = 512 << 10;

/// A server in a simulation.
pub struct DrivenServer {
    server: Server,
    account: &'static Account,
    /// The count of loaded keys when the account began.
    keys_loaded: u64,
    /// Must be dropped last.
    left: Left,
}

/// Makes the thread leave the account when dropped: the account then also has the memory that the
/// server frees at its end.
#[derive(Default)]
struct Left(Option<&'static Account>);

impl Drop for Left {
    fn drop(&mut self) {
        if let Some(former) = self.0 {
            former.enter();
        }
    }
}

impl Drop for DrivenServer {
    fn drop(&mut self) {
        self.left.0 = Some(self.account.enter());
    }
}

/// While this exists, the thread's memory counts for a server.
struct Entered(&'static Account);

impl Entered {
    fn into(account: &'static Account) -> Self {
        Entered(account.enter())
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.enter();
    }
}

impl Server {
    /// Runs one turn, without waiting for events. False: the server has ended.
    pub fn turn_now(&mut self) -> io::Result<bool> {
        self.turn(&mut Events::with_capacity(EVENTS), Some(Duration::ZERO))?;
        if self.stopping {
            self.finish();
        }
        Ok(!self.stopping)
    }
}

impl DrivenServer {
    /// Creates a server. It reaches its primary through `dialer`, its files are on `disk`, and
    /// [`DrivenServer::do_background`] does the work of threads. Errors: those of
    /// [`Server::start`].
    pub fn start(
        config: Config,
        clock: Clock,
        logger: Logger,
        dialer: Box<dyn Dialer>,
        disk: Arc<dyn Disk>,
    ) -> Result<Self, String> {
        process::simulate_ends();
        let account = Account::open();
        let _entered = Entered::into(account);
        let mut server = Server::start(config, clock, logger)?;
        server.core.state.net.dialer = dialer;
        server.core.state.persistence.set_apart(disk);
        server.core.keyspace.lazyfree.end_thread();
        server.core.state.stats.timing = Timing::new(quanta::Clock::mock().0);
        let mut driven = DrivenServer { server, account, keys_loaded: 0, left: Left::default() };
        driven.begin_account();
        Ok(driven)
    }

    /// Sets the account to the memory of the data, plus that of an empty server.
    fn begin_account(&mut self) {
        let core = &self.server.core;
        let Core { keyspace, state } = core;
        let entries =
            DbIndex::all(keyspace.databases()).flat_map(|index| keyspace.table_of(index).iter());
        let bytes = entries.map(|entry| {
            let value = match entry.value() {
                ValueRef::Bytes { .. } => 0,
                ValueRef::Object(value) => value.heap_bytes(),
            };
            entry.allocated() + value
        });
        // A server that reloads its data has clients, and a stream that replicas or the AOF have
        // not taken completely yet.
        let clients: usize = state.clients.iter().map(Client::memory).sum();
        let backlog = state.replication.backlog.as_ref().map_or(0, Backlog::memory);
        let kept = backlog - state.bytes_behind();
        let rest = clients + kept + not_counted(core);
        self.account.set(EMPTY_BYTES + rest + bytes.sum::<usize>());
        self.keys_loaded = state.persistence.loads.keys;
    }

    /// Loads the data. Call this once, before the first turn. Errors: logged already.
    pub fn load(&mut self) -> Result<(), LoadError> {
        let _entered = Entered::into(self.account);
        let loaded = self.server.load();
        self.begin_account();
        loaded
    }

    /// Adds a connection, as if accepted.
    pub fn take_in(&mut self, stream: Stream, peer: Address, local: Address) {
        let _entered = Entered::into(self.account);
        self.server.clients().add_client(stream, false, peer, local);
    }

    /// Adds a connection for HTTP, as if accepted by a listener that only this machine reaches.
    pub fn take_in_http(&mut self, stream: Stream, peer: Address) {
        let _entered = Entered::into(self.account);
        let state = &mut self.server.core.state;
        let now_us = state.now.boot_us;
        state.net.http.take_in(state.net.poll.registry(), stream, peer, true, now_us);
    }

    /// Adds a connection of another node of the cluster, as if accepted at the bus port.
    pub fn take_in_bus(&mut self, stream: Stream, peer: Address, local: Address) {
        let _entered = Entered::into(self.account);
        cluster::take_in_link(&mut self.server.core.state, stream, &peer, &local);
    }

    /// Runs one turn, without waiting for events. False: the server has ended. Unwinds with
    /// [`process::Ended`] if the process ends at once; then drop the server.
    pub fn turn_now(&mut self) -> io::Result<bool> {
        let _entered = Entered::into(self.account);
        let goes_on = self.server.turn_now()?;
        if self.server.core.state.persistence.loads.keys != self.keys_loaded {
            self.begin_account();
        }
        Ok(goes_on)
    }

    /// Keys evicted since the start or CONFIG RESETSTAT, and the memory limit; 0: no limit.
    pub fn evictions(&self) -> (u64, u64) {
        (self.server.core.keyspace.stats.evicted, self.server.core.state.config.maxmemory)
    }

    /// Does the work of threads. Writes a snapshot only once it is complete.
    pub fn do_background(&mut self) {
        let _entered = Entered::into(self.account);
        let Core { keyspace, state } = &mut self.server.core;
        state.persistence.sync_log();
        if !keyspace.has_snapshot() {
            state.persistence.background().run();
        }
    }

    /// Sends a signal, which the next turn takes.
    pub fn signal(&self, number: i32) {
        self.server.stop.store(number as usize, Ordering::SeqCst);
    }

    /// Bytes of memory that the server uses.
    pub fn used_memory(&self) -> usize {
        let _entered = Entered::into(self.account);
        allocated()
    }

    /// The server's replication ID and offset: `master_replid`, `master_repl_offset`.
    pub fn history(&self) -> (&str, u64) {
        (&self.server.core.state.replication.id, self.server.core.state.replication.offset)
    }

    /// The end of the pause during which writes are postponed (boot-time clock, microseconds), and
    /// the count of changes that no load has brought. None: writes are not postponed here.
    pub fn stands_still(&self) -> Option<(i64, u64)> {
        let Core { keyspace, state } = &self.server.core;
        let pause = state.pauses.strictest().filter(|_| !state.replication.is_replica())?;
        Some((pause.until_us, keyspace.dirty() + (state.persistence.loads.keys << 32)))
    }

    /// The time until the next turn that nothing but time starts.
    pub fn next_turn_in(&self) -> Option<Duration> {
        self.server.timeout()
    }

    /// The history that the present one continues, and the offset at which that history ended:
    /// `master_replid2`, `second_repl_offset` less one.
    pub fn ancestor(&self) -> Option<(&str, u64)> {
        let ancestor = self.server.core.state.replication.ancestor.as_ref()?;
        Some((&ancestor.id, ancestor.end.saturating_sub(1)))
    }
}
