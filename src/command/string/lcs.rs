//! LCS: its options and replies; the algorithm is `types::lcs`.

use crate::collections::table::Slot;
use crate::error::CommandError;
use crate::resp::args::Args;
use crate::resp::reply::ReplyWriter;
use crate::state::context::{CommandResult, Context, Outcome};
use crate::types::lcs::{LcsError, Subsequence, length, subsequence};
use crate::types::string::StringView;

const NOT_STRINGS: CommandError =
    CommandError::Text("ERR The specified keys must contain string values");
const LEN_WITH_IDX: CommandError =
    CommandError::Text("ERR If you want both the length and indexes, please just use IDX.");

/// The kind of LCS's reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Text,
    Length,
    Indices { len_min: u64, with_len: bool },
}

impl Wanted {
    /// `[LEN] [IDX] [MINMATCHLEN min-match-len] [WITHMATCHLEN]`. The latter two have no effect
    /// without IDX.
    fn parse(args: Args<'_>) -> Result<Wanted, CommandError> {
        let (mut len, mut idx, mut len_min, mut with_len) = (false, false, 0, false);
        let mut cursor = args.cursor(3);
        while !cursor.is_at_end() {
            if cursor.take_word("IDX") {
                idx = true;
            } else if cursor.take_word("LEN") {
                len = true;
            } else if cursor.take_word("WITHMATCHLEN") {
                with_len = true;
            } else if cursor.take_word("MINMATCHLEN") {
                len_min = cursor.take_integer()?;
            } else {
                return Err(CommandError::Syntax);
            }
        }
        match (len, idx) {
            (true, true) => Err(LEN_WITH_IDX),
            (true, false) => Ok(Wanted::Length),
            (false, true) => {
                let len_min = u64::try_from(len_min).unwrap_or(0);
                Ok(Wanted::Indices { len_min, with_len })
            }
            (false, false) => Ok(Wanted::Text),
        }
    }
}

/// `LCS key1 key2 [LEN] [IDX] [MINMATCHLEN min-match-len] [WITHMATCHLEN]`: the subsequence, its
/// length, or a map of the matching ranges (from the last to the first) and the length. An absent
/// key counts as the empty string.
pub(crate) fn lcs(ctx: &mut Context<'_>) -> CommandResult {
    // Errors are returned below: those of keys with other types come first.
    let wanted = Wanted::parse(ctx.args);
    let keys = [ctx.key(1), ctx.key(2)];
    let [a, b] = keys.map(|key| ctx.core.keyspace.find_for_read(key));
    let text = |found: Option<Slot>| match found {
        Some(slot) => ctx.core.keyspace.string_at(slot).map_err(|_| NOT_STRINGS),
        None => Ok(StringView::default()),
    };
    // The work and the table far exceed the strings, so copies cost nothing in comparison.
    let (a, b) = (text(a)?.whole(), text(b)?.whole());
    let (a, b) = (&*a, &*b);
    let table_bytes_max = ctx.size_limits().string;
    match wanted? {
        Wanted::Length => {
            let length = length(a, b, table_bytes_max).map_err(refusal)?;
            ctx.reply.integer(length as i64);
        }
        Wanted::Text => {
            let found = subsequence(a, b, table_bytes_max).map_err(refusal)?;
            ctx.reply.bulk(&found.bytes);
        }
        Wanted::Indices { len_min, with_len } => {
            let found = subsequence(a, b, table_bytes_max).map_err(refusal)?;
            write_indices(&mut ctx.reply, &found, len_min, with_len);
        }
    }
    Ok(Outcome::Replied)
}

fn refusal(error: LcsError) -> CommandError {
    CommandError::Text(match error {
        LcsError::StringTooLong => "ERR String too long for LCS",
        LcsError::TableTooLarge => {
            "ERR Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len"
        }
        LcsError::OutOfMemory => {
            "ERR Insufficient memory, failed allocating transient memory for LCS"
        }
    })
}

/// A map of `matches`, each with its range in both strings (both ends included), and `len`.
fn write_indices(reply: &mut ReplyWriter<'_>, found: &Subsequence, len_min: u64, with_len: bool) {
    reply.map(2);
    reply.bulk(b"matches");
    let matches = found.matches.iter().filter(|run| run.len as u64 >= len_min);
    reply.array(matches.clone().count());
    for run in matches {
        reply.array(2 + with_len as usize);
        for start in [run.a_start, run.b_start] {
            reply.array(2);
            reply.integer(start as i64);
            reply.integer((start + run.len - 1) as i64);
        }
        if with_len {
            reply.integer(run.len as i64);
        }
    }
    reply.bulk(b"len");
    reply.integer(found.bytes.len() as i64);
}
