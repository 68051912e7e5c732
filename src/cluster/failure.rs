//! Failure detection: the reports of other primaries, and the agreement of a majority of them.

use super::node::{FailureReport, NodeFlags, NodeIndex};
use super::wire::{Body, Marks};
use super::{Cluster, Todo};

impl Cluster {
    /// The time for which a report counts. Unit: milliseconds.
    fn report_validity_ms(&self) -> i64 {
        self.settings.node_timeout_ms.saturating_mul(2)
    }

    pub(super) fn add_report(&mut self, index: NodeIndex, report: FailureReport) {
        let name = self.node(report.by).id;
        let reports = &mut self.node_mut(index).reports;
        if let Some(known) = reports.iter_mut().find(|known| known.by == report.by) {
            known.at_ms = report.at_ms;
            return;
        }
        reports.push(report);
        let id = self.node(index).id;
        self.log(format!("Node {name} reported node {id} as not reachable."));
    }

    pub(super) fn remove_report(&mut self, index: NodeIndex, by: NodeIndex) {
        let reports = &mut self.node_mut(index).reports;
        let before = reports.len();
        reports.retain(|report| report.by != by);
        if reports.len() < before {
            let (name, id) = (self.node(by).id, self.node(index).id);
            self.log(format!("Node {name} reported node {id} is back online."));
        }
    }

    /// Reports of a node's failure that still count.
    pub(super) fn count_reports(&mut self, index: NodeIndex) -> usize {
        let oldest_ms = self.now() - self.report_validity_ms();
        let reports = &mut self.node_mut(index).reports;
        reports.retain(|report| report.at_ms >= oldest_ms);
        reports.len()
    }

    /// Marks a node that this one cannot reach as failed, if a majority of the primaries cannot
    /// either.
    pub(super) fn mark_failed_if_agreed(&mut self, index: NodeIndex) {
        let flags = self.node(index).flags;
        if !flags.contains(NodeFlags::PFAIL) || flags.contains(NodeFlags::FAIL) {
            return;
        }
        let by = self.count_reports(index) + usize::from(self.myself().is_voting());
        if !self.is_majority(by) {
            return;
        }
        let id = self.node(index).id;
        self.log(format!("Marking node {id} as failing (quorum reached)."));
        self.fail(index);
    }

    /// Marks a node as failed, and tells all nodes if this one is a primary.
    pub(super) fn fail(&mut self, index: NodeIndex) {
        let id = self.node(index).id;
        self.set_failed(index);
        // Only primaries announce a failure.
        if self.myself().is_primary() {
            self.broadcast(Body::Fail(id), Marks::default());
        }
    }

    pub(super) fn set_failed(&mut self, index: NodeIndex) {
        let now = self.now();
        let node = self.node_mut(index);
        node.flags -= NodeFlags::PFAIL;
        node.flags |= NodeFlags::FAIL;
        node.failed_since_ms = now;
        node.is_failure_told = false;
        self.version += 1;
        self.todo |= Todo::UPDATE_STATE | Todo::SAVE;
        self.vote_belatedly(index);
    }

    /// Takes in a node's message that another one has failed.
    pub(super) fn take_failure(&mut self, sender: NodeIndex, index: NodeIndex) {
        if self.node(index).flags.intersects(NodeFlags::FAIL | NodeFlags::MYSELF) {
            if self.node(sender).is_primary() {
                self.node_mut(index).is_failure_told = true;
                self.hasten_election(index);
            }
            return;
        }
        let (by, id) = (self.node(sender).id, self.node(index).id);
        self.log(format!("FAIL message received from {by} about {id}"));
        self.set_failed(index);
        if self.node(sender).is_primary() {
            self.node_mut(index).is_failure_told = true;
            self.hasten_election(index);
        }
    }

    /// Clears the failure of a node that answers again, if that is due.
    pub(super) fn clear_failure_if_due(&mut self, index: NodeIndex) {
        let now = self.now();
        let node = self.node(index);
        let (id, has_slots) = (node.id, !node.slots.is_empty());
        let text = if node.is_replica() || !has_slots {
            let role = if node.is_replica() { "replica" } else { "master without slots" };
            format!("Clear FAIL state for node {id}: {role} is reachable again.")
        } else if now - node.failed_since_ms > self.report_validity_ms() {
            format!(
                "Clear FAIL state for node {id}: is reachable again and nobody is serving its slots after some time."
            )
        } else {
            return;
        };
        self.log(text);
        self.node_mut(index).flags -= NodeFlags::FAIL;
        self.version += 1;
        self.todo |= Todo::UPDATE_STATE | Todo::SAVE;
    }
}
