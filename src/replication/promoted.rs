//! The promotion of a replica by sentinels, as its former primary notices it. `roles/promoted.rs`
//! asks and acts.

use std::collections::VecDeque;

use crate::error::CommandError;

/// Refuses writes once a replica is known to be the primary.
const PROMOTED: CommandError = CommandError::Text(
    "READONLY Sentinels have made a replica of this server the primary (sentinel-step-down).",
);

/// The most names and replicas that are remembered.
const NAMES_MAX: usize = 64;
const REPLICAS_MAX: usize = 64;
/// The longest name of a host, and of what sentinels call a primary.
const TEXT_MAX: usize = 256;

/// A server's address, as sentinels and replicas name it.
pub type Place = (String, u16);

/// What a sentinel has said in its channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The sentinels' name of the primary.
    pub name: String,
    pub primary: Place,
    pub epoch: u64,
}

impl Hello {
    /// Reads `ip,port,runid,epoch,name,primary's ip,primary's port,primary's epoch`. None: it is
    /// something else.
    pub fn parse(message: &[u8]) -> Option<Self> {
        let fields: Vec<&str> = str::from_utf8(message).ok()?.split(',').collect();
        let [_, _, _, _, name, ip, port, epoch] = fields[..] else { return None };
        if name.len() > TEXT_MAX || ip.len() > TEXT_MAX {
            return None;
        }
        let primary = (ip.to_owned(), port.parse().ok().filter(|port| *port != 0)?);
        Some(Hello { name: name.to_owned(), primary, epoch: epoch.parse().ok()? })
    }
}

/// Why a server is asked for its role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Its connection as a replica has ended.
    Left,
    /// A sentinel has named it.
    Named,
}

/// A question to a server.
#[derive(Debug)]
pub struct Question {
    pub place: Place,
    pub cause: Cause,
    /// The connection, once it has been begun, and whether the request was sent.
    pub line: Option<usize>,
    pub is_sent: bool,
    /// When it is given up: boot-time clock, microseconds.
    pub until_us: i64,
}

/// Notices of promotions.
#[derive(Debug, Default)]
pub struct Promoted {
    /// The last that sentinels have said of each primary, which once was this server.
    hellos: Vec<Hello>,
    /// When a sentinel was last heard: boot-time clock, microseconds.
    pub heard_us: Option<i64>,
    /// Replicas that are or were connected, the last one first. No other address is asked: anybody
    /// who may publish can name one.
    replicas: VecDeque<Place>,
    /// Questions, the present one first.
    pub questions: VecDeque<Question>,
    /// The replica that is the primary, and when that was last confirmed.
    pub by: Option<(Place, i64)>,
}

impl Promoted {
    /// The error for clients' writes, if they are refused.
    #[inline]
    pub fn refusal(&self) -> Option<CommandError> {
        self.by.as_ref().map(|_| PROMOTED)
    }

    /// Remembers a replica's address.
    pub fn note_replica(&mut self, place: Place) {
        if self.replicas.front() != Some(&place) {
            self.replicas.retain(|known| *known != place);
            self.replicas.truncate(REPLICAS_MAX - 1);
            self.replicas.push_front(place);
        }
    }

    /// Notes what a sentinel has said. True: it names a replica of this server as the primary, in a
    /// later epoch than this server's.
    pub fn hear(&mut self, hello: &Hello, now_us: i64) -> bool {
        self.heard_us = Some(now_us);
        let names_replica = self.replicas.contains(&hello.primary);
        match self.hellos.iter_mut().find(|known| known.name == hello.name) {
            // The first place that is no replica's is this server's own.
            None if names_replica => false,
            None => {
                self.hellos.truncate(NAMES_MAX - 1);
                self.hellos.insert(0, hello.clone());
                false
            }
            Some(known) if known.primary == hello.primary => {
                known.epoch = known.epoch.max(hello.epoch);
                false
            }
            // The first message after this server's own promotion may have named its predecessor,
            // which follows it by now.
            Some(known)
                if !names_replica
                    && hello.epoch > known.epoch
                    && self.replicas.contains(&known.primary) =>
            {
                *known = hello.clone();
                false
            }
            Some(known) => names_replica && hello.epoch > known.epoch,
        }
    }

    /// Adds a question, unless the same one is being asked.
    pub fn ask(&mut self, place: Place, cause: Cause, until_us: i64) {
        let is_same = |question: &Question| question.place == place && question.cause == cause;
        if !self.questions.iter().any(is_same) && self.questions.len() < REPLICAS_MAX {
            let question = Question { place, cause, line: None, is_sent: false, until_us };
            self.questions.push_back(question);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(text: &str) -> Hello {
        Hello::parse(text.as_bytes()).expect("a sentinel's message")
    }

    #[test]
    fn messages_are_eight_fields() {
        let read = hello("127.0.0.1,26379,abc,7,main,10.0.0.1,6379,3");
        let place = ("10.0.0.1".to_owned(), 6379);
        assert_eq!(read, Hello { name: "main".into(), primary: place, epoch: 3 });
        for text in [
            "",
            ",,,,,,,",
            "a,1,b,2,main,10.0.0.1,0,3",
            "a,1,b,2,main,10.0.0.1,65536,3",
            "a,1,b,2,main,h,1,-1",
            "a,1,b,2,main,h,1,1,1",
        ] {
            assert_eq!(Hello::parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(Hello::parse(b"\xff,1,b,2,main,h,1,1"), None);
    }

    #[test]
    fn a_predecessor_named_first_can_be_promoted_again() {
        let mut promoted = Promoted::default();
        assert!(!promoted.hear(&hello("s,1,b,2,main,old,1,3"), 5));
        assert!(!promoted.hear(&hello("s,1,b,2,main,own,1,4"), 5));
        promoted.note_replica(("old".into(), 1));
        assert!(!promoted.hear(&hello("s,1,b,2,main,own,1,4"), 5));
        assert!(promoted.hear(&hello("s,1,b,2,main,old,1,5"), 5));
    }

    #[test]
    fn only_a_replica_in_a_later_epoch_is_a_claim() {
        let mut promoted = Promoted::default();
        promoted.note_replica(("r".into(), 2));
        let mut hear = |text: &str| promoted.hear(&hello(text), 5);
        assert!(!hear("s,1,b,2,main,r,2,9"), "nothing was said of this server before");
        assert!(!hear("s,1,b,2,main,p,1,3"));
        assert!(!hear("s,1,b,2,main,r,2,3"), "the same epoch");
        assert!(!hear("s,1,b,2,main,x,7,4"), "no replica");
        assert!(!hear("s,1,b,2,other,r,2,4"), "another name");
        assert!(hear("s,1,b,2,main,r,2,4"));
        assert!(!hear("s,1,b,2,main,p,1,6"));
        assert!(!hear("s,1,b,2,main,r,2,4"), "an earlier one");
        assert_eq!(promoted.heard_us, Some(5));
        for number in 0..1000 {
            promoted.hear(&hello(&format!("s,1,b,2,n{number},p,1,3")), 5);
            promoted.note_replica(("r".into(), number));
            promoted.ask(("r".into(), number), Cause::Left, 0);
        }
        let sizes = (promoted.hellos.len(), promoted.replicas.len(), promoted.questions.len());
        assert_eq!(sizes, (NAMES_MAX, REPLICAS_MAX, REPLICAS_MAX));
    }
}
