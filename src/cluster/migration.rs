//! Replicas migrate to primaries that have none left.

use super::Cluster;
use super::node::{NodeFlags, NodeIndex};

/// The time that a primary has no working replica before another shard gives it one. Unit:
/// milliseconds.
const ORPHANED_MS: i64 = 5_000;

impl Cluster {
    /// Counts the reachable replicas of a primary.
    fn working_replicas(&self, primary: NodeIndex) -> usize {
        let replicas = &self.node(primary).replicas;
        replicas.iter().filter(|replica| !self.node(**replica).is_failing()).count()
    }

    /// Follows a primary without replicas, if of all replicas this node is the one that should.
    pub(super) fn migrate_to_orphan(&mut self) {
        let now = self.now();
        let Some(mine) = self.myself().primary else { return };
        let mut orphan = None;
        let mut most = 0;
        let primaries: Vec<NodeIndex> =
            self.nodes().filter(|(_, node)| node.is_primary()).map(|(index, _)| index).collect();
        for primary in &primaries {
            let working = self.working_replicas(*primary);
            most = most.max(working);
            let node = self.node_mut(*primary);
            let is_orphan = working == 0
                && !node.slots.is_empty()
                && !node.flags.contains(NodeFlags::FAIL)
                && node.flags.contains(NodeFlags::MIGRATE_TO);
            if !is_orphan {
                node.orphaned_since_ms = 0;
                continue;
            }
            if node.orphaned_since_ms == 0 {
                node.orphaned_since_ms = now.max(1);
            }
            if now - node.orphaned_since_ms > ORPHANED_MS {
                orphan.get_or_insert(*primary);
            }
        }
        let Some(orphan) = orphan else { return };
        let own = self.working_replicas(mine);
        if !self.settings.allows_replica_migration
            || !self.is_ok
            || most < 2
            || own < most
            || own <= self.settings.migration_barrier
        {
            return;
        }
        // Of all replicas of the primaries with the most, the one with the smallest name migrates.
        let richest = primaries.iter().filter(|primary| self.working_replicas(**primary) == most);
        let replicas = richest.flat_map(|primary| &self.node(*primary).replicas);
        let working = replicas.filter(|replica| !self.node(**replica).is_failing());
        let first = working.min_by_key(|replica| self.node(**replica).id);
        if first == Some(&self.myself) {
            let id = self.node(orphan).id;
            let role = if self.settings.as_valkey { "primary" } else { "master" };
            self.warn(format!("Migrating to orphaned {role} {id}"));
            self.follow(orphan);
        }
    }
}
