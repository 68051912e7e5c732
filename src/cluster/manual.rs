//! Manual failover: the primary stops writing until the replica that takes its place has
//! everything.

use super::action::Action;
use super::node::NodeIndex;
use super::wire::{Body, Header, Kind, Marks};
use super::{Cluster, Todo};

/// A failover on demand that is under way.
#[derive(Clone, Debug)]
pub struct Manual {
    ends_ms: i64,
    pub(super) part: Part,
}

#[derive(Clone, Debug)]
pub(super) enum Part {
    /// This node is the primary. `replica`: None if it has been forgotten, as it may still win.
    /// `turns`: turns that have ended since the pause was requested.
    Primary { replica: Option<NodeIndex>, turns: u32 },
    /// This node is the replica. `offset`: where the primary's stream stands still. `may_start`:
    /// this node has all of it, or the failover is forced.
    Replica { offset: Option<u64>, may_start: bool },
}

/// The pause is in force when this many turns have ended.
const TURNS_TO_PAUSE: u32 = 2;

/// Time in which a primary that pauses hears that its replica has won. Unit: milliseconds.
const NEWS_MS: i64 = 2_000;

/// The reason for which an election is given up.
const ANOTHER: &str = "received a new manual failover. Resetting the election.";

impl Manual {
    /// Whether the next turn must come at once.
    pub fn wants_turn(&self) -> bool {
        matches!(self.part, Part::Primary { turns, .. } if turns < TURNS_TO_PAUSE)
    }
}

impl Cluster {
    /// Asks the primary to stop writing, or with `is_forced` continues without it.
    pub(super) fn begin_manual_failover(&mut self, primary: NodeIndex, is_forced: bool) {
        let ends_ms = self.now() + self.settings.manual_failover_ms;
        self.manual =
            Some(Manual { ends_ms, part: Part::Replica { offset: None, may_start: is_forced } });
        if is_forced {
            self.reset_election(ANOTHER);
        } else {
            self.warn("Manual failover user request accepted.".into());
            self.send_to(primary, Body::ManualFailoverStart, Marks::default());
        }
    }

    /// Pauses writes for a replica that is to take this node's place. The replica waits while
    /// another one is to take that place: both could win, and the second would lack the writes that
    /// the first has received since. It also waits while slots are granted to another node: it
    /// would claim them, perhaps without knowing that they have been taken.
    pub(super) fn pause_for(&mut self, replica: NodeIndex) {
        self.pause_until(replica, self.now() + self.settings.manual_failover_ms);
    }

    /// `until_ms`: when the replica gives up.
    fn pause_until(&mut self, replica: NodeIndex, until_ms: i64) {
        let is_mine = self.node(replica).primary == Some(self.myself);
        if !is_mine || !self.myself().is_primary() {
            return;
        }
        let is_taken = self.is_handing_over() && self.heir() != Some(replica);
        if is_taken || !self.granted.is_empty() {
            self.waiting_heir = Some((replica, until_ms));
            return;
        }
        let limit_ms = self.settings.manual_failover_ms;
        // The replica may win at the end of its own time.
        let ends_ms = until_ms + limit_ms.min(NEWS_MS);
        let part = Part::Primary { replica: Some(replica), turns: 0 };
        self.manual = Some(Manual { ends_ms, part });
        self.out.push(Action::PauseWrites { until_boot_ms: until_ms + limit_ms });
        let id = self.node(replica).id;
        self.warn(format!("Manual failover requested by replica {id}."));
    }

    /// The replica for which this primary pauses writes.
    fn heir(&self) -> Option<NodeIndex> {
        match self.manual.as_ref()?.part {
            Part::Primary { replica, .. } => replica,
            Part::Replica { .. } => None,
        }
    }

    /// Whether headers tell this node that the stream stands still: the pause is in force for it
    /// alone, and the offset includes every write of the turn in which the pause began.
    pub(super) fn is_pausing_for(&self, index: NodeIndex) -> bool {
        self.manual.as_ref().is_some_and(|manual| {
            let is_for = matches!(manual.part, Part::Primary { replica, turns }
                if replica == Some(index) && turns >= TURNS_TO_PAUSE);
            is_for && manual.ends_ms >= self.now()
        })
    }

    /// Takes in the offset at which the primary's stream stands still, if this node knows of all
    /// slots that the primary claims: a successor that leaves some out would make it a second
    /// primary of the shard. Otherwise a later header has the offset.
    pub(super) fn take_pause(&mut self, primary: NodeIndex, header: &Header) {
        if header.slots.iter().any(|slot| self.owner(slot) != Some(primary)) {
            return;
        }
        let part = self.manual.as_mut().map(|manual| &mut manual.part);
        if let Some(Part::Replica { offset: offset @ None, .. }) = part {
            let paused = header.offset;
            *offset = Some(paused);
            self.warn(format!(
                "Received replication offset for paused master manual failover: {paused}"
            ));
            self.go_on_with_manual_failover();
        }
    }

    /// At the end of a turn: tells the replica the offset, or begins the election when all has
    /// arrived.
    pub(super) fn go_on_with_manual_failover(&mut self) {
        // Without the link the offset may belong to another history.
        let own = self.outside.is_link_up.then_some(self.outside.offset);
        let mut told = None;
        match self.manual.as_mut().map(|manual| &mut manual.part) {
            Some(Part::Primary { replica, turns }) if *turns < TURNS_TO_PAUSE => {
                *turns += 1;
                told = replica.filter(|_| *turns == TURNS_TO_PAUSE);
            }
            Some(Part::Replica { offset: Some(offset), may_start: may_start @ false })
                if own.is_some_and(|own| own >= *offset) =>
            {
                *may_start = true;
                self.warn(
                    "All master replication stream processed, manual failover can start.".into(),
                );
                self.reset_election(ANOTHER);
                self.go_on_with_election();
            }
            _ => {}
        }
        if let Some(link) = told.and_then(|replica| self.open_link(replica)) {
            self.send_ping(link, Kind::Ping);
        }
    }

    /// Whether this replica may ask for votes, or take the place with those that it has. Not when
    /// its time is over: after this its primary serves writes again. Votes that arrive while the
    /// process is stopped are read before the next tick ends the failover.
    pub(super) fn manual_failover_may_start(&self) -> bool {
        self.manual.as_ref().is_some_and(|manual| {
            let may_start = matches!(manual.part, Part::Replica { may_start: true, .. });
            may_start && manual.ends_ms >= self.now()
        })
    }

    /// Whether this primary pauses writes for a replica that is to take its place.
    pub fn is_handing_over(&self) -> bool {
        let part = self.manual.as_ref().map(|manual| &manual.part);
        matches!(part, Some(Part::Primary { .. }))
    }

    /// Continues with a manual failover that has waited for granted slots or for another replica's
    /// failover, unless its replica has given up meanwhile.
    pub(super) fn serve_waiting_heir(&mut self) {
        if let Some((replica, until_ms)) = self.waiting_heir
            && self.granted.is_empty()
            && !self.is_handing_over()
        {
            self.waiting_heir = None;
            if self.now() < until_ms {
                self.pause_until(replica, until_ms);
            }
        }
    }

    pub(super) fn check_manual_failover(&mut self) {
        if self.manual.as_ref().is_some_and(|manual| manual.ends_ms < self.now()) {
            self.warn("Manual failover timed out.".into());
            self.end_manual_failover();
        }
    }

    pub(super) fn end_manual_failover(&mut self) {
        if let Some(Manual { part: Part::Primary { .. }, .. }) = self.manual.take() {
            self.out.push(Action::EndPause);
            self.todo |= Todo::UPDATE_STATE;
        }
    }

    /// Forgets a node that may take part in a manual failover. The pause goes on: the node may have
    /// the votes of others.
    pub(super) fn forget_heir(&mut self, index: NodeIndex) {
        if let Some(Manual { part: Part::Primary { replica, .. }, .. }) = &mut self.manual
            && *replica == Some(index)
        {
            *replica = None;
        }
        self.waiting_heir = self.waiting_heir.filter(|(heir, _)| *heir != index);
    }

    /// Ends a manual failover whose replica follows another primary: it has given up.
    pub(super) fn end_manual_failover_with(&mut self, index: NodeIndex) {
        if self.heir() == Some(index) {
            self.end_manual_failover();
        }
    }
}
