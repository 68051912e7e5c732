//! The clients that are replicas, for rules, limits and INFO. `roles/replicas.rs` serves them.

use super::State;
use crate::client::{Client, ClientId};
use crate::replication::backlog::Backlog;
use crate::replication::replica::{Replica, Stage};
use crate::sys::log::notice;

impl State {
    /// All replicas and their state.
    pub fn replicas(&self) -> impl Iterator<Item = (&Client, &Replica)> {
        self.replication.replicas.iter().filter_map(|&id| {
            let client = self.clients.get(id)?;
            Some((client, client.replica.as_deref()?))
        })
    }

    /// Removes a client that is being closed from the replicas.
    pub fn forget_replica(&mut self, id: ClientId) {
        if !self.replication.replicas.contains(&id) {
            return;
        }
        let client = self.clients.get(id);
        let name = client.map(Client::replica_name).unwrap_or_default();
        let awaits_file = |replica: &Replica| matches!(replica.stage, Stage::AwaitsFile);
        if client.and_then(|client| client.replica.as_deref()).is_some_and(awaits_file) {
            self.replication.file_lost_replica = true;
        }
        let place = client.and_then(|client| {
            let replica = client.replica.as_deref().filter(|replica| replica.is_online())?;
            Some((client.replica_address(), replica.port))
        });
        self.replication.replicas.retain(|&replica| replica != id);
        notice!(self, "Connection with replica {name} lost.");
        if self.replication.replicas.is_empty() {
            self.replication.without_replicas_since_us = self.now.boot_us;
        }
        self.count_good_replicas();
        place.into_iter().for_each(|place| self.note_left(place));
    }

    /// Counts the good replicas for `min-replicas-to-write`.
    pub fn count_good_replicas(&mut self) {
        let now_us = self.now.boot_us;
        let lag_us = i64::from(self.config.min_replicas_max_lag) * 1_000_000;
        let is_good = |replica: &Replica| {
            // Compares whole seconds, as in Redis.
            replica.is_online() && now_us - replica.acknowledged_us < lag_us + 1_000_000
        };
        let good = self.replicas().filter(|(_, replica)| is_good(replica)).count();
        self.replication.good_replicas = good as u32;
        self.refresh_fast_path();
    }

    /// Frees bytes of the stream beyond the backlog's size that no replica lacks.
    pub fn trim_backlog(&mut self) {
        let following = self.replicas().filter(|(_, replica)| replica.needs_stream());
        let needed = following.map(|(_, replica)| replica.next).min();
        if let Some(backlog) = &mut self.replication.backlog {
            backlog.trim(needed);
        }
    }

    /// Bytes of the stream kept beyond the backlog's size for slow replicas. Eviction ignores them,
    /// because evicting keys would add to them.
    pub fn bytes_behind(&self) -> usize {
        let backlog = self.replication.backlog.as_ref();
        let kept = backlog.map_or(0, Backlog::memory);
        kept.saturating_sub(self.config.repl_backlog_size as usize)
    }

    /// Bytes of snapshots on their way to replicas: from the writing thread, or read from a file.
    pub fn bytes_of_snapshots(&self) -> usize {
        let broadcast = self.replication.broadcast.as_ref();
        broadcast.map_or(0, |broadcast| broadcast.pipe.memory() + broadcast.bytes.memory())
            + self.replicas().map(|(_, replica)| replica.file_bytes()).sum::<usize>()
    }
}
