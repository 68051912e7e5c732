//! The stage of a client's life, the reason why its requests wait, and the replies that it gets.

/// The stage of a client's life, which only advances.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Life {
    #[default]
    Open,
    /// Further requests are ignored; the client is closed when its output is sent.
    ClosingAfterReply,
    /// The client is closed at the end of the turn.
    ClosingNow,
}

/// The reason why a client's requests are kept. The later reason in this order prevails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Suspension {
    /// The requests are not kept.
    #[default]
    None,
    /// Its first request runs later: after a pause, a key's move, or a thread's work.
    UntilRetry,
    /// The last request is answered later: the client is blocked, or waits for the shutdown.
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
    /// The running request gets no reply, also if it waits and is answered later.
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

    /// ON. Keeps a SKIP of the same transaction.
    #[must_use]
    pub fn turned_on(self) -> Replies {
        Replies { mode: Mode::Sent, ..self }
    }

    /// OFF.
    #[must_use]
    pub fn turned_off(self) -> Replies {
        Replies { mode: Mode::Off, ..self }
    }

    /// SKIP: no effect if replies are off.
    #[must_use]
    pub fn skipping_next(self) -> Replies {
        Replies { skips_next: self.skips_next || self.mode != Mode::Off, ..self }
    }

    /// The state while the next request runs.
    #[must_use]
    pub fn at_request(self) -> Replies {
        match self.mode {
            Mode::Sent if self.skips_next => Replies { mode: Mode::Skipped, skips_next: false },
            mode => Replies { mode, skips_next: false },
        }
    }

    /// RESET: as at the beginning. A RESET after SKIP gets no reply itself.
    #[must_use]
    pub fn reset(self) -> Replies {
        let mode = if self.mode == Mode::Skipped { Mode::Skipped } else { Mode::Sent };
        Replies { mode, skips_next: false }
    }

    /// The state after a request. A request that did not run will not get its reply later either.
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
        assert_eq!(skipping.at_request().reset().after_request(true), Replies::default());
        assert!(!skipping.at_request().reset().are_sent());
        assert!(Replies::default().turned_off().at_request().reset().are_sent());
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
