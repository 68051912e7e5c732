//! Slots that move to another node all at once (CLUSTER MIGRATESLOTS of Valkey 9): the progress of
//! each move at both ends.
//!
//! ```text
//! source                                      target
//! CLUSTER SYNCSLOTS ESTABLISH ... ---------->  its answer, the only one on this connection
//! ACK --------------------------------------->
//! the keys, as commands; SNAPSHOT-EOF ------->
//! changes since ----------------------------->
//!                   <------------------------- REQUEST-PAUSE
//! PAUSED; after this nothing changes -------->
//!                   <------------------------- REQUEST-FAILOVER, when all has been applied
//! FAILOVER-GRANTED -------------------------->  takes the slots, with a new epoch, and tells all nodes
//! ```
//!
//! Both send ACK once a second. The source sees the end when the slots have a new owner. Nothing
//! here knows connections, keys or clocks: a job takes in the other end's words ([`Job::hear`]) and
//! returns the answer.
//!
//! Source: `cluster_migrateslots.c` of Valkey 9.1.2, whose words and texts these are.

use super::node::NodeId;
use crate::collections::hash_slot::{
    HashSlot, SlotRanges, SlotSet, parse_ranges, ranges_text, slots_in,
};

/// The progress of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    // At the target.
    WaitingForAck,
    ReceivingSnapshot,
    WaitingForPaused,
    FailoverRequested,
    /// The slots may be taken.
    MayTake,
    /// It has failed; the keys that came are being deleted.
    CleaningUp,
    /// This node only repeats its primary's reports.
    OccurringOnPrimary,
    // At the source.
    Connecting,
    ReadingAuth,
    ReadingEstablish,
    Snapshotting,
    Replicating,
    WaitingToPause,
    FailoverPaused,
    FailoverGranted,
    // At both.
    Success,
    Cancelled,
    Failed,
}

impl Phase {
    /// The name in CLUSTER GETSLOTMIGRATIONS.
    pub fn name(self) -> &'static str {
        match self {
            Phase::WaitingForAck => "waiting-for-ack",
            Phase::ReceivingSnapshot => "receiving-snapshot",
            Phase::WaitingForPaused => "waiting-for-paused",
            Phase::FailoverRequested => "failover-requested",
            Phase::MayTake | Phase::FailoverGranted => "failover-granted",
            Phase::CleaningUp => "cleaning-up",
            Phase::OccurringOnPrimary => "occurring-on-primary",
            Phase::Connecting => "connecting",
            Phase::ReadingAuth => "reading-auth-response",
            Phase::ReadingEstablish => "reading-establish-response",
            Phase::Snapshotting => "snapshotting",
            Phase::Replicating => "replicating",
            Phase::WaitingToPause => "waiting-to-pause",
            Phase::FailoverPaused => "failover-paused",
            Phase::Success => "success",
            Phase::Cancelled => "cancelled",
            Phase::Failed => "failed",
        }
    }

    pub fn is_finished(self) -> bool {
        matches!(self, Phase::Success | Phase::Cancelled | Phase::Failed)
    }

    /// Whether this node still tries to move the slots.
    pub fn is_in_progress(self) -> bool {
        !self.is_finished() && self != Phase::CleaningUp
    }
}

/// The words that the two nodes exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    Ack,
    SnapshotEof,
    RequestPause,
    Paused,
    RequestFailover,
    FailoverGranted,
    /// A node's capabilities: none is defined yet.
    Capa,
}

impl Word {
    pub const ALL: [Word; 7] = [
        Word::Ack,
        Word::SnapshotEof,
        Word::RequestPause,
        Word::Paused,
        Word::RequestFailover,
        Word::FailoverGranted,
        Word::Capa,
    ];

    pub fn text(self) -> &'static str {
        match self {
            Word::Ack => "ACK",
            Word::SnapshotEof => "SNAPSHOT-EOF",
            Word::RequestPause => "REQUEST-PAUSE",
            Word::Paused => "PAUSED",
            Word::RequestFailover => "REQUEST-FAILOVER",
            Word::FailoverGranted => "FAILOVER-GRANTED",
            Word::Capa => "CAPA",
        }
    }

    pub fn parse(text: &[u8]) -> Option<Word> {
        Word::ALL.into_iter().find(|word| text.eq_ignore_ascii_case(word.text().as_bytes()))
    }
}

/// A slot migration, as one of its ends sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// 40 hexadecimal digits.
    pub name: NodeId,
    pub is_import: bool,
    pub ranges: SlotRanges,
    pub slots: SlotSet,
    /// None: this node only repeats another one's reports.
    pub target: Option<NodeId>,
    pub source: Option<NodeId>,
    /// Unix seconds.
    pub created_s: i64,
    pub updated_s: i64,
    pub acked_s: i64,
    pub phase: Phase,
    pub message: String,
    /// The phase that follows [`Phase::CleaningUp`].
    pub after_cleanup: Phase,
    /// When the pause of the source's writes ends, by the boot-time clock in milliseconds; 0: no
    /// pause.
    pub pause_end_ms: i64,
}

/// The reason for which a move fails.
pub const UNEXPECTED: &str = "Unexpected state machine transition";
pub const PAUSE_OVER: &str = "Unpaused before failover completed";

impl Job {
    fn new(name: NodeId, is_import: bool, ranges: SlotRanges, phase: Phase, now_s: i64) -> Job {
        Job {
            name,
            is_import,
            slots: slots_in(&ranges),
            ranges,
            target: None,
            source: None,
            created_s: now_s,
            updated_s: now_s,
            acked_s: now_s,
            phase,
            message: String::new(),
            after_cleanup: Phase::Failed,
            pause_end_ms: 0,
        }
    }

    /// A move from this node, `source`, to another one.
    pub fn export(
        name: NodeId,
        ranges: SlotRanges,
        source: NodeId,
        target: NodeId,
        now_s: i64,
    ) -> Job {
        let job = Job::new(name, false, ranges, Phase::Connecting, now_s);
        Job { source: Some(source), target: Some(target), ..job }
    }

    /// A move to this node, `target`.
    pub fn import(
        name: NodeId,
        ranges: SlotRanges,
        source: NodeId,
        target: NodeId,
        now_s: i64,
    ) -> Job {
        let job = Job::new(name, true, ranges, Phase::WaitingForAck, now_s);
        Job { source: Some(source), target: Some(target), ..job }
    }

    /// A move to this node's primary, or a move that began before a restart.
    pub fn tracked(name: NodeId, ranges: SlotRanges, now_s: i64) -> Job {
        Job::new(name, true, ranges, Phase::OccurringOnPrimary, now_s)
    }

    /// Whether this node has no connection for it.
    pub fn is_tracked(&self) -> bool {
        self.source.is_none()
    }

    /// `0-10 20-20`
    pub fn ranges_text(&self) -> String {
        ranges_text(&self.ranges)
    }

    /// As the log names it.
    pub fn description(&self) -> String {
        let (operation, other, id) = match self.is_import {
            true => ("import", "source_node", self.source),
            false => ("export", "target_node", self.target),
        };
        let id = id.map_or_else(|| "unknown".to_owned(), |id| id.to_string());
        let slots = self.ranges_text();
        format!("{{name: {}, operation: {operation}, {other}_id: {id}, slots: {slots}}}", self.name)
    }

    pub fn set_phase(&mut self, phase: Phase, now_s: i64) {
        self.phase = phase;
        self.updated_s = now_s;
    }

    /// Takes in the other end's word, and returns the answer to it. Errors: why the move fails.
    pub fn hear(
        &mut self,
        word: Word,
        now_s: i64,
        now_ms: i64,
    ) -> Result<Option<Word>, &'static str> {
        if word == Word::Ack {
            self.acked_s = now_s;
        }
        let (next, answer) = match (word, self.phase) {
            (Word::Capa, _) => return Ok(None),
            (Word::Ack, Phase::WaitingForAck) => (Phase::ReceivingSnapshot, None),
            (Word::Ack, _) => return Ok(None),
            (Word::SnapshotEof, Phase::ReceivingSnapshot) => {
                (Phase::WaitingForPaused, Some(Word::RequestPause))
            }
            (Word::Paused, Phase::WaitingForPaused) => {
                (Phase::FailoverRequested, Some(Word::RequestFailover))
            }
            (Word::FailoverGranted, Phase::FailoverRequested) => (Phase::MayTake, None),
            (Word::RequestPause, Phase::Snapshotting | Phase::Replicating) => {
                (Phase::WaitingToPause, None)
            }
            // Writes may have resumed.
            (Word::RequestFailover, Phase::FailoverPaused) if now_ms >= self.pause_end_ms => {
                return Err(PAUSE_OVER);
            }
            (Word::RequestFailover, Phase::FailoverPaused) => {
                (Phase::FailoverGranted, Some(Word::FailoverGranted))
            }
            _ => return Err(UNEXPECTED),
        };
        self.set_phase(next, now_s);
        Ok(answer)
    }

    /// Whether the other end has been silent for too long. After its grant, the source waits for
    /// the end of its pause instead.
    pub fn is_timed_out(&self, heard_s: i64, now_s: i64, timeout_s: i64) -> bool {
        let waits = !matches!(self.phase, Phase::FailoverGranted | Phase::OccurringOnPrimary);
        self.phase.is_in_progress() && waits && now_s - heard_s > timeout_s
    }

    /// Whether the source has granted the slots: the target may own them already, so writes must
    /// wait until the new owner is known, or the grant is over.
    pub fn is_granted(&self) -> bool {
        self.phase == Phase::FailoverGranted
    }

    /// Whether ACK may be sent now.
    pub fn says_ack(&self) -> bool {
        match self.is_import {
            true => {
                self.phase.is_in_progress()
                    && !matches!(self.phase, Phase::WaitingForAck | Phase::OccurringOnPrimary)
            }
            false => matches!(
                self.phase,
                Phase::Snapshotting
                    | Phase::Replicating
                    | Phase::WaitingToPause
                    | Phase::FailoverPaused
            ),
        }
    }
}

/// All moves, the newest first; those that have ended stay for a while.
#[derive(Clone, Debug, Default)]
pub struct Jobs(pub Vec<Job>);

impl Jobs {
    pub fn find(&self, name: &NodeId) -> Option<&Job> {
        self.0.iter().find(|job| job.name == *name)
    }

    pub fn find_mut(&mut self, name: &NodeId) -> Option<&mut Job> {
        self.0.iter_mut().find(|job| job.name == *name)
    }

    pub fn add(&mut self, job: Job) {
        self.0.insert(0, job);
    }

    fn unfinished(&self, is_import: bool) -> impl Iterator<Item = &Job> {
        self.0.iter().filter(move |job| job.is_import == is_import && !job.phase.is_finished())
    }

    pub fn is_importing(&self) -> bool {
        self.unfinished(true).next().is_some()
    }

    pub fn is_exporting(&self) -> bool {
        self.unfinished(false).next().is_some()
    }

    pub fn imports(&self, slot: HashSlot) -> bool {
        self.unfinished(true).any(|job| job.slots.contains(slot))
    }

    pub fn exports(&self, slot: HashSlot) -> bool {
        self.unfinished(false).any(|job| job.slots.contains(slot))
    }

    /// The slots whose keys are hidden here: those that are being moved to this node.
    pub fn hidden(&self) -> Option<SlotSet> {
        let mut hidden: Option<SlotSet> = None;
        for job in self.unfinished(true) {
            let hidden = hidden.get_or_insert_default();
            hidden.extend(job.slots.iter());
        }
        hidden
    }

    /// The moves to this node that have not ended, as a file names them:
    /// `NAME:0-10 20-20,NAME:7-7`.
    pub fn imports_text(&self) -> String {
        let texts = self.unfinished(true).map(|job| format!("{}:{}", job.name, job.ranges_text()));
        texts.collect::<Vec<_>>().join(",")
    }

    /// Forgets the moves of which this node only repeats another one's reports, and whose end it
    /// has missed.
    pub fn forget_tracked(&mut self, concerns: impl Fn(&Job) -> bool) {
        self.0.retain(|job| job.phase != Phase::OccurringOnPrimary || !concerns(job));
    }

    /// Forgets the oldest moves that have ended, as long as there are more than `len_max`.
    pub fn trim(&mut self, len_max: usize) {
        while self.0.len() > len_max {
            let Some(at) = self.0.iter().rposition(|job| job.phase.is_finished()) else { return };
            self.0.remove(at);
        }
    }
}

/// The moves of [`Jobs::imports_text`]. What is no such text is left out.
pub fn parse_imports(text: &[u8]) -> Vec<(NodeId, SlotRanges)> {
    let Ok(text) = std::str::from_utf8(text) else { return Vec::new() };
    let job = |text: &str| {
        let (name, ranges) = text.split_once(':')?;
        Some((NodeId::from_bytes(name.as_bytes())?, parse_ranges(ranges)?))
    };
    text.split(',').filter_map(job).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(digit: u8) -> NodeId {
        NodeId::from_bytes(&[digit; NodeId::BYTES]).expect("a name")
    }

    fn slot(number: usize) -> HashSlot {
        HashSlot::new(number).expect("a slot")
    }

    fn pair() -> (Job, Job) {
        let ranges = vec![(slot(3), slot(5)), (slot(9), slot(9))];
        let source = Job::export(id(b'a'), ranges.clone(), id(b'1'), id(b'2'), 100);
        (source, Job::import(id(b'a'), ranges, id(b'1'), id(b'2'), 100))
    }

    #[test]
    fn both_ends_come_to_the_grant() {
        let (mut source, mut target) = pair();
        assert_eq!((source.ranges_text(), source.slots.len()), ("3-5 9-9".into(), 4));
        source.set_phase(Phase::Snapshotting, 100);
        assert_eq!(target.hear(Word::Ack, 101, 0), Ok(None));
        assert_eq!(target.hear(Word::Ack, 102, 0), Ok(None));
        let asked = target.hear(Word::SnapshotEof, 102, 0);
        assert_eq!(asked, Ok(Some(Word::RequestPause)));
        assert_eq!(source.hear(Word::RequestPause, 102, 0), Ok(None));
        assert_eq!(source.phase, Phase::WaitingToPause);
        source.set_phase(Phase::FailoverPaused, 102);
        source.pause_end_ms = 500;
        let asked = target.hear(Word::Paused, 103, 0);
        assert_eq!(asked, Ok(Some(Word::RequestFailover)));
        let mut late = source.clone();
        assert_eq!(late.hear(Word::RequestFailover, 103, 500), Err(PAUSE_OVER));
        let granted = source.hear(Word::RequestFailover, 103, 499);
        assert_eq!(granted, Ok(Some(Word::FailoverGranted)));
        assert_eq!(target.hear(Word::FailoverGranted, 103, 0), Ok(None));
        assert_eq!(
            (source.phase.name(), target.phase.name()),
            ("failover-granted", "failover-granted")
        );
        assert_eq!((target.acked_s, target.updated_s), (102, 103));
    }

    #[test]
    fn what_was_not_asked_for_ends_it() {
        let phases = [
            Phase::WaitingForAck,
            Phase::ReceivingSnapshot,
            Phase::WaitingForPaused,
            Phase::FailoverRequested,
            Phase::Snapshotting,
            Phase::WaitingToPause,
            Phase::FailoverPaused,
            Phase::FailoverGranted,
        ];
        let mut accepted = 0;
        for phase in phases {
            for word in Word::ALL {
                let (_, mut job) = pair();
                (job.phase, job.pause_end_ms) = (phase, 1);
                accepted += usize::from(job.hear(word, 0, 0).is_ok());
                assert_eq!(Word::parse(word.text().to_lowercase().as_bytes()), Some(word));
            }
        }
        // ACK and CAPA are always accepted, and one word in each of five phases.
        assert_eq!(accepted, 2 * phases.len() + 5);
    }

    #[test]
    fn a_file_names_the_moves_that_have_not_ended() {
        let (source, target) = pair();
        let mut jobs = Jobs::default();
        assert_eq!(jobs.imports_text(), "");
        jobs.add(source);
        jobs.add(target.clone());
        jobs.add(Job::tracked(id(b'b'), vec![(slot(7), slot(7))], 100));
        jobs.add(Job { phase: Phase::Success, ..target });
        let (one, other) = ("b".repeat(40), "a".repeat(40));
        let text = jobs.imports_text();
        assert_eq!(text, format!("{one}:7-7,{other}:3-5 9-9"));
        let read = parse_imports(text.as_bytes());
        assert_eq!(read[0], (id(b'b'), vec![(slot(7), slot(7))]));
        assert_eq!(read[1], (id(b'a'), vec![(slot(3), slot(5)), (slot(9), slot(9))]));
        let twice = format!("{one}:0-16383 5-5");
        for bad in
            ["", ":", "x:1-2", &twice, &format!("{one}:"), &format!("{one}:5-3,{other}:1-16384")]
        {
            assert_eq!(parse_imports(bad.as_bytes()), []);
        }
        assert_eq!(parse_imports(&[0xff]), []);
        jobs.forget_tracked(|job| job.slots.contains(slot(8)));
        assert!(jobs.imports(slot(7)));
        jobs.forget_tracked(|_| true);
        assert!(!jobs.imports(slot(7)) && jobs.imports(slot(9)));
    }

    #[test]
    fn only_what_has_ended_is_forgotten() {
        let (source, target) = pair();
        let mut jobs = Jobs::default();
        jobs.add(Job { phase: Phase::Failed, ..source.clone() });
        jobs.add(target);
        jobs.add(Job { phase: Phase::Success, ..source });
        assert!(jobs.imports(slot(4)) && !jobs.imports(slot(6)) && !jobs.exports(slot(4)));
        assert_eq!(jobs.hidden().map(|slots| slots.len()), Some(4));
        jobs.trim(2);
        let phases = jobs.0.iter().map(|job| job.phase).collect::<Vec<_>>();
        assert_eq!(phases, [Phase::Success, Phase::WaitingForAck]);
        jobs.trim(0);
        assert_eq!((jobs.0.len(), jobs.is_importing()), (1, true));
    }
}
