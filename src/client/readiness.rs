//! Whether a client can be read, and its output be sent.

use crate::persist::aof::log::LogOffset;

/// The state of a client's input.
#[derive(Clone, Copy, Debug, Default)]
pub struct InputState {
    /// Whether the client is in the list of clients to be read in the next turn, or of handshakes
    /// to continue.
    pub is_queued: bool,
    /// The other end has closed its writing side; bytes sent before may still arrive.
    pub is_end_announced: bool,
    /// Its requests are part of an outer turn: nested turns during a script skip it.
    pub is_held: bool,
}

/// Whether a client's socket takes output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Writability {
    /// Not known to be full.
    #[default]
    Assumed,
    /// Full after a partial write; registered for writability.
    Awaited,
    /// Writable again; still registered.
    Announced,
}

impl Writability {
    /// Whether the socket was full at the last write.
    pub fn is_registered(self) -> bool {
        self != Writability::Assumed
    }

    /// Notes a write. If it filled the socket, the socket is registered for writability.
    pub fn set_full(&mut self, is_full: bool) {
        *self = if is_full { Writability::Awaited } else { Writability::Assumed };
    }

    /// Notes that the system announces writability. False: it was not awaited.
    pub fn announce(&mut self) -> bool {
        if self.is_registered() {
            *self = Writability::Announced;
        }
        self.is_registered()
    }

    /// Whether a write may be tried. Each announcement allows one.
    pub fn begin_write(&mut self) -> bool {
        let may = *self != Writability::Awaited;
        if *self == Writability::Announced {
            *self = Writability::Awaited;
        }
        may
    }
}

/// Whether a client's output waits for the AOF: replies that show a change wait for its policy.
#[derive(Clone, Copy, Debug)]
pub enum LogWait {
    /// None of the output, of this length, shows stored data: it need not wait.
    Needless(usize),
    /// Decided when the output is sent.
    Unknown,
    /// The output waits until the AOF is on disk up to an offset, and so do further requests.
    Waits {
        offset: LogOffset,
        /// The output's length when the offset was noted.
        length: usize,
        /// Whether the client is read again when the output has been sent.
        then_reads: bool,
    },
}

impl LogWait {
    /// Whether output of this length need not wait.
    pub fn is_needless(&self, length: usize) -> bool {
        matches!(self, LogWait::Needless(of) if *of == length)
    }

    /// Notes the output's length, if none of it shows stored data.
    pub fn note_plain(&mut self, length: Option<usize>) {
        match (&self, length) {
            (_, Some(length)) => *self = LogWait::Needless(length),
            (LogWait::Needless(_), None) => *self = LogWait::Unknown,
            _ => {}
        }
    }

    pub fn is_begun(&self) -> bool {
        matches!(self, LogWait::Waits { .. })
    }

    /// Notes that output of this length depends on the AOF up to this offset.
    pub fn wait_for(&mut self, offset: LogOffset, length: usize) {
        let then_reads = matches!(self, LogWait::Waits { then_reads: true, .. });
        *self = LogWait::Waits { offset, length, then_reads };
    }

    /// Notes that the output may be sent. Returns whether the client is to be read then.
    pub fn end(&mut self) -> bool {
        let LogWait::Waits { then_reads, .. } = *self else { return false };
        *self = LogWait::Unknown;
        then_reads
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_announcement_of_writability_is_for_one_write() {
        let mut writability = Writability::Assumed;
        assert!(!writability.announce(), "nobody has waited for it");
        assert!(writability.begin_write());
        writability.set_full(true);
        assert!(!writability.begin_write());
        assert!(writability.announce());
        assert!(writability.begin_write());
        assert!(!writability.begin_write());
        assert!(writability.is_registered());
    }
}
