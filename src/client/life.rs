//! How far a client's life has gone, why its requests wait, and which replies it gets.

/// How far a client's life has gone: only towards its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Life {
    #[default]
    Open,
    /// No further requests; closed when its output is sent.
    ClosingAfterReply,
    /// Closed at the end of the turn.
    ClosingNow,
}

/// Why a client's requests are kept. The later reason in this order prevails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Suspension {
    /// They are not.
    #[default]
    None,
    /// Its first request runs later: after a pause, a key's move, or a thread's work.
    UntilRetry,
    /// Its last request is answered later: it is blocked, or waits for the shutdown.
    UntilReply,
}

/// Which replies a client gets: CLIENT REPLY.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replies {
    mode: Mode,
    /// SKIP: the next request gets no reply.
    skips_next: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Mode {
    #[default]
    Sent,
    /// Not that of the running request.
    Skipped,
    Off,
}

impl Replies {
    /// Whether the running request gets a reply.
    pub fn are_sent(self) -> bool {
        self.mode == Mode::Sent
    }

    pub fn are_off(self) -> bool {
        self.mode == Mode::Off
    }

    /// ON. A SKIP in the same transaction stays.
    #[must_use]
    pub fn turned_on(self) -> Replies {
        Replies { mode: Mode::Sent, ..self }
    }

    /// OFF.
    #[must_use]
    pub fn turned_off(self) -> Replies {
        Replies { mode: Mode::Off, ..self }
    }

    /// SKIP: nothing if they are off.
    #[must_use]
    pub fn skipping_next(self) -> Replies {
        Replies { skips_next: self.skips_next || self.mode != Mode::Off, ..self }
    }

    /// For the next request.
    #[must_use]
    pub fn at_request(self) -> Replies {
        match self.mode {
            Mode::Sent if self.skips_next => Replies { mode: Mode::Skipped, skips_next: false },
            mode => Replies { mode, skips_next: false },
        }
    }

    /// After a request; one that did not run will not get its reply later either.
    #[must_use]
    pub fn after_request(self, has_run: bool) -> Replies {
        match self.mode {
            Mode::Skipped => Replies { mode: Mode::Sent, skips_next: self.skips_next || !has_run },
            _ => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skip_is_for_the_next_request_that_runs() {
        let skipping = Replies::default().skipping_next();
        assert!(skipping.are_sent(), "SKIP itself has no reply to skip");
        assert!(!skipping.at_request().are_sent());
        assert_eq!(skipping.at_request().after_request(false), skipping);
        assert_eq!(skipping.at_request().after_request(true), Replies::default());
        assert_eq!(skipping.at_request().skipping_next().after_request(true), skipping);
    }

    #[test]
    fn off_stays_until_on() {
        let off = Replies::default().turned_off();
        assert_eq!(off.skipping_next(), off);
        assert_eq!(off.at_request().after_request(true), off);
        assert_eq!(off.turned_on(), Replies::default());
        assert_eq!(Replies::default().skipping_next().turned_off().at_request(), off);
    }
}
