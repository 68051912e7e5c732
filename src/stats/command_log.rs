//! The command logs: requests slower than `slowlog-log-slower-than`, and those larger, or with a
//! larger reply, than `commandlog-request-larger-than` and `commandlog-reply-larger-than`.

use std::collections::VecDeque;

/// Longer arguments are truncated to this many bytes, and longer requests to this many arguments.
const ARGUMENT_BYTES_MAX: usize = 128;
const ARGUMENTS_MAX: usize = 32;

/// Why a request is logged; each kind has a log of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogKind {
    /// The slow log.
    Slow,
    LargeRequest,
    LargeReply,
}

/// Indexed by [`LogKind`].
pub type CommandLogs = [CommandLog; 3];

/// A logged request.
#[derive(Debug)]
pub struct LoggedCommand {
    pub id: u64,
    /// Unix time, seconds.
    pub time: i64,
    /// Microseconds taken, bytes of the request or bytes of the reply.
    pub value: u64,
    pub args: Vec<Box<[u8]>>,
    pub peer: String,
    pub client_name: Box<[u8]>,
}

/// The latest requests of one kind, newest first.
#[derive(Debug, Default)]
pub struct CommandLog {
    entries: VecDeque<LoggedCommand>,
    next_id: u64,
}

impl CommandLog {
    /// Adds a truncated request, and drops the oldest beyond `max_len`.
    pub fn push<'a>(
        &mut self,
        args: impl ExactSizeIterator<Item = &'a [u8]>,
        time: i64,
        value: u64,
        peer: String,
        client_name: &[u8],
        max_len: usize,
    ) {
        let count = args.len();
        let kept = if count > ARGUMENTS_MAX { ARGUMENTS_MAX - 1 } else { count };
        // Not `collect`, which could reuse, and keep, the allocation of a vector of all arguments.
        let mut cut = Vec::with_capacity(count.min(ARGUMENTS_MAX));
        cut.extend(args.take(kept).map(cut_argument));
        if kept < count {
            cut.push(format!("... ({} more arguments)", count - kept).into_bytes().into());
        }
        let id = self.next_id;
        self.next_id += 1;
        let client_name = client_name.into();
        self.entries.push_front(LoggedCommand { id, time, value, args: cut, peer, client_name });
        self.entries.truncate(max_len);
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = &LoggedCommand> {
        self.entries.iter()
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn clear(&mut self) {
        self.entries = VecDeque::new();
    }
}

fn cut_argument(argument: &[u8]) -> Box<[u8]> {
    if argument.len() <= ARGUMENT_BYTES_MAX {
        return argument.into();
    }
    let more = argument.len() - ARGUMENT_BYTES_MAX;
    let mut cut = argument[..ARGUMENT_BYTES_MAX].to_vec();
    cut.extend_from_slice(format!("... ({more} more bytes)").as_bytes());
    cut.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_request_is_kept_short() {
        let mut log = CommandLog::default();
        let argument = [b'x'; 200];
        let args = vec![&argument[..]; 100_000];
        log.push(args.into_iter(), 0, 1, String::new(), b"", 10);
        let entry = log.iter().next().expect("an entry");
        assert_eq!(&*entry.args[0], [&[b'x'; 128], &b"... (72 more bytes)"[..]].concat());
        assert_eq!(&*entry.args[31], b"... (99969 more arguments)");
        assert!(entry.args.capacity() <= 32, "room for {} arguments", entry.args.capacity());
    }
}
