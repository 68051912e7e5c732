//! Ranges of sorted sets, by rank, score or member: reading, counting, storing, removing.
//!
//! A range is parsed, converted to a range of ranks, and limited by LIMIT; from there on all three
//! kinds are handled alike.

use std::ops::Range;

use crate::collections::score_tree::Place;
use crate::command::sorted_set::{Pairs, limits, ranks_between};
use crate::config::KeyspaceEvents;
use crate::error::CommandError;
use crate::keyspace::{Expiry, Key};
use crate::resp::args::{Args, before_nul};
use crate::resp::number::{self, format_double_17g};
use crate::state::context::{CommandResult, Context, Outcome};
use crate::state::spec::{CommandSpec, Flags, Group, KeyFlags, KeySpec, key, spec};
use crate::types::Collection;
use crate::types::journal::Edit;
use crate::types::sorted_set::{SortedSet, SortedSetView};

const COST: &str =
    "O(log(N)+M) with N the size of the sorted set and M the number of members in the range.";
const COUNT_COST: &str = "O(log(N)), N being the size of the sorted set.";

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    spec("ZRANGE", zrange).at_least(4).keys(KeySpec::RO_ACCESS).flags(Flags::READONLY).group(Group::SortedSet).since("1.2.0")
        .docs("key start stop [BYSCORE | BYLEX] [REV] [LIMIT offset count] [WITHSCORES]", "Returns a range of members, by rank, score or member.", COST),
    spec("ZRANGESTORE", zrangestore).at_least(5).keys(&[key(1, KeyFlags::OW_UPDATE), key(2, KeyFlags::RO_ACCESS)]).flags(Flags::WRITE_DENYOOM)
        .group(Group::SortedSet).since("6.2.0")
        .docs("dst src min max [BYSCORE | BYLEX] [REV] [LIMIT offset count]", "Stores a range of members in another key.", COST),
    spec("ZREVRANGE", zrevrange).at_least(4).keys(KeySpec::RO_ACCESS).flags(Flags::READONLY).group(Group::SortedSet).since("1.2.0")
        .deprecated("6.2.0", "`ZRANGE` with the `REV` argument")
        .docs("key start stop [WITHSCORES]", "Returns a range of members by rank, the highest score first.", COST),
    spec("ZRANGEBYSCORE", zrangebyscore).at_least(4).keys(KeySpec::RO_ACCESS).flags(Flags::READONLY).group(Group::SortedSet).since("1.0.5")
        .deprecated("6.2.0", "`ZRANGE` with the `BYSCORE` argument")
        .docs("key min max [WITHSCORES] [LIMIT offset count]", "Returns the members with scores in a range.", COST),
    spec("ZREVRANGEBYSCORE", zrevrangebyscore).at_least(4).keys(KeySpec::RO_ACCESS).flags(Flags::READONLY).group(Group::SortedSet).since("2.2.0")
        .deprecated("6.2.0", "`ZRANGE` with the `REV` and `BYSCORE` arguments")
        .docs("key max min [WITHSCORES] [LIMIT offset count]", "Returns the members with scores in a range, the highest score first.", COST),
    spec("ZRANGEBYLEX", zrangebylex).at_least(4).keys(KeySpec::RO_ACCESS).flags(Flags::READONLY).group(Group::SortedSet).since("2.8.9")
        .deprecated("6.2.0", "`ZRANGE` with the `BYLEX` argument")
        .docs("key min max [LIMIT offset count]", "Returns the members between two byte strings, where all scores are equal.", COST),
    spec("ZREVRANGEBYLEX", zrevrangebylex).at_least(4).keys(KeySpec::RO_ACCESS).flags(Flags::READONLY).group(Group::SortedSet).since("2.8.9")
        .deprecated("6.2.0", "`ZRANGE` with the `REV` and `BYLEX` arguments")
        .docs("key max min [LIMIT offset count]", "Returns the members between two byte strings in reverse order, where all scores are equal.", COST),
    spec("ZCOUNT", zcount).exactly(4).keys(KeySpec::RO_ACCESS).flags(Flags::READONLY_FAST).group(Group::SortedSet).since("2.0.0")
        .docs("key min max", "Counts the members with scores in a range.", COUNT_COST),
    spec("ZLEXCOUNT", zlexcount).exactly(4).keys(KeySpec::RO_ACCESS).flags(Flags::READONLY_FAST).group(Group::SortedSet).since("2.8.9")
        .docs("key min max", "Counts the members between two byte strings, where all scores are equal.", COUNT_COST),
    spec("ZREMRANGEBYRANK", zremrangebyrank).exactly(4).keys(KeySpec::RW_DELETE).flags(Flags::WRITE).group(Group::SortedSet).since("2.0.0")
        .docs("key start stop", "Removes a range of members, by rank.", COST),
    spec("ZREMRANGEBYSCORE", zremrangebyscore).exactly(4).keys(KeySpec::RW_DELETE).flags(Flags::WRITE).group(Group::SortedSet).since("1.2.0")
        .docs("key min max", "Removes the members with scores in a range.", COST),
    spec("ZREMRANGEBYLEX", zremrangebylex).exactly(4).keys(KeySpec::RW_DELETE).flags(Flags::WRITE).group(Group::SortedSet).since("2.8.9")
        .docs("key min max", "Removes the members between two byte strings, where all scores are equal.", COST),
];

const NOT_A_SCORE: CommandError = CommandError::Text("ERR min or max is not a float");
const NOT_A_MEMBER: CommandError = CommandError::Text("ERR min or max not valid string range item");
const LIMIT_BY_RANK: CommandError = CommandError::Text(
    "ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX",
);
const SCORES_BY_MEMBER: CommandError =
    CommandError::Text("ERR syntax error, WITHSCORES not supported in combination with BYLEX");

/// The kind of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Rank,
    Score,
    Member,
}

/// An end of a range of scores or members.
#[derive(Clone, Copy, Debug)]
enum End<'a> {
    First,
    At(Place<'a>),
    Last,
}

impl End<'_> {
    /// The number of members before this end.
    fn rank(self, set: SortedSetView<'_>) -> usize {
        match self {
            End::First => 0,
            End::At(place) => set.rank_of(place),
            End::Last => set.len(),
        }
    }
}

/// A range, parsed.
#[derive(Clone, Copy, Debug)]
enum Between<'a> {
    Ranks(i64, i64),
    Ends(End<'a>, End<'a>),
}

impl<'a> Between<'a> {
    fn parse(args: Args<'a>, min: usize, max: usize, by: By) -> Result<Self, CommandError> {
        Ok(match by {
            By::Rank => Between::Ranks(args.integer(min)?, args.integer(max)?),
            By::Score => Between::Ends(
                score_end(args.get(min), false).ok_or(NOT_A_SCORE)?,
                score_end(args.get(max), true).ok_or(NOT_A_SCORE)?,
            ),
            By::Member => Between::Ends(
                member_end(args.get(min), false).ok_or(NOT_A_MEMBER)?,
                member_end(args.get(max), true).ok_or(NOT_A_MEMBER)?,
            ),
        })
    }

    /// The ranks of a set's members in this range.
    fn ranks(self, set: SortedSetView<'_>) -> Range<usize> {
        match self {
            Between::Ranks(start, end) => ranks_between(set, start, end),
            Between::Ends(min, max) => {
                let start = min.rank(set);
                start..max.rank(set).max(start)
            }
        }
    }
}

/// Parses an end of a range of scores: `1.5`, or `(1.5` to exclude it.
fn score_end(text: &[u8], is_max: bool) -> Option<End<'_>> {
    let (is_open, text) = match text {
        [b'(', rest @ ..] => (true, rest),
        _ => (false, text),
    };
    let score = parse_bound(text)?;
    Some(match is_max == is_open {
        // These need no search.
        true if score == f64::NEG_INFINITY => End::First,
        false if score == f64::INFINITY => End::Last,
        true => End::At(Place::BeforeScore(score)),
        false => End::At(Place::AfterScore(score)),
    })
}

/// Parses a whole text as C's `strtod`: leading white space is skipped, the empty text is 0, and
/// overflow is infinite.
fn parse_bound(text: &[u8]) -> Option<f64> {
    let text = before_nul(text);
    if text.is_empty() {
        return Some(0.0);
    }
    let digits = text.trim_ascii_start();
    let digits = digits.strip_prefix(b"\x0b").map_or(digits, <[u8]>::trim_ascii_start);
    let lenient = || std::str::from_utf8(digits).ok()?.parse().ok();
    number::parse_f64(digits).or_else(lenient).filter(|score: &f64| !score.is_nan())
}

/// Parses an end of a range of members: `[m`, `(m` to exclude it, `-` or `+`.
fn member_end(text: &[u8], is_max: bool) -> Option<End<'_>> {
    match text {
        b"-" => Some(End::First),
        b"+" => Some(End::Last),
        [b'[', member @ ..] if is_max => Some(End::At(Place::AfterMember(member))),
        [b'[', member @ ..] => Some(End::At(Place::BeforeMember(member))),
        [b'(', member @ ..] if is_max => Some(End::At(Place::BeforeMember(member))),
        [b'(', member @ ..] => Some(End::At(Place::AfterMember(member))),
        _ => None,
    }
}

/// `<src> <min> <max> [BYSCORE | BYLEX] [REV] [LIMIT offset count] [WITHSCORES]`.
struct RangeOptions<'a> {
    between: Between<'a>,
    is_reversed: bool,
    with_scores: bool,
    offset: i64,
    /// Negative: all.
    count: i64,
}

impl<'a> RangeOptions<'a> {
    /// `source` is the index of the source key. `by` and direction are parsed as options if not
    /// given.
    fn parse(
        args: Args<'a>,
        source: usize,
        by: Option<By>,
        is_reversed: Option<bool>,
        is_store: bool,
    ) -> Result<Self, CommandError> {
        let (mut kind, mut reversed) = (by, is_reversed);
        let (mut with_scores, mut offset, mut count) = (false, 0, -1);
        let mut arguments = args.cursor(source + 3);
        while !arguments.is_at_end() {
            if !is_store && arguments.take_word("WITHSCORES") {
                with_scores = true;
            } else if arguments.remaining() > 2 && arguments.take_word("LIMIT") {
                (offset, count) = (arguments.take_integer()?, arguments.take_integer()?);
            } else if is_reversed.is_none() && reversed.is_none() && arguments.take_word("REV") {
                reversed = Some(true);
            } else if kind.is_none() && arguments.take_word("BYLEX") {
                kind = Some(By::Member);
            } else if kind.is_none() && arguments.take_word("BYSCORE") {
                kind = Some(By::Score);
            } else {
                return Err(CommandError::Syntax);
            }
        }
        let (by, is_reversed) = (kind.unwrap_or(By::Rank), reversed.unwrap_or(false));
        if count != -1 && by == By::Rank {
            return Err(LIMIT_BY_RANK);
        }
        if with_scores && by == By::Member {
            return Err(SCORES_BY_MEMBER);
        }
        let (mut min, mut max) = (source + 1, source + 2);
        if is_reversed && by != By::Rank {
            (min, max) = (max, min);
        }
        let between = Between::parse(args, min, max, by)?;
        Ok(RangeOptions { between, is_reversed, with_scores, offset, count })
    }

    /// The requested ranks, counted from the lowest score.
    fn ranks(&self, set: SortedSetView<'_>) -> Range<usize> {
        let Range { start, end } = self.between.ranks(set);
        if let Between::Ranks(..) = self.between {
            // A reversed range counts ranks from the end.
            let len = set.len();
            return if self.is_reversed && start < end {
                len - end..len - start
            } else {
                start..end
            };
        }
        let len = end - start;
        let skipped = usize::try_from(self.offset).map_or(len, |offset| offset.min(len));
        let taken =
            usize::try_from(self.count).map_or(len, |count| count.min(len)).min(len - skipped);
        if self.is_reversed {
            end - skipped - taken..end - skipped
        } else {
            start + skipped..start + skipped + taken
        }
    }
}

/// `ZRANGE key start stop [BYSCORE | BYLEX] [REV] [LIMIT offset count] [WITHSCORES]`: an array of
/// members; with scores flat in RESP2, of pairs in RESP3.
fn zrange(ctx: &mut Context<'_>) -> CommandResult {
    reply_range(ctx, None, None)
}

/// `ZREVRANGE key start stop [WITHSCORES]`: as ZRANGE.
fn zrevrange(ctx: &mut Context<'_>) -> CommandResult {
    reply_range(ctx, Some(By::Rank), Some(true))
}

/// `ZRANGEBYSCORE key min max [WITHSCORES] [LIMIT offset count]`: as ZRANGE.
fn zrangebyscore(ctx: &mut Context<'_>) -> CommandResult {
    reply_range(ctx, Some(By::Score), Some(false))
}

/// `ZREVRANGEBYSCORE key max min [WITHSCORES] [LIMIT offset count]`: as ZRANGE.
fn zrevrangebyscore(ctx: &mut Context<'_>) -> CommandResult {
    reply_range(ctx, Some(By::Score), Some(true))
}

/// `ZRANGEBYLEX key min max [LIMIT offset count]`: as ZRANGE.
fn zrangebylex(ctx: &mut Context<'_>) -> CommandResult {
    reply_range(ctx, Some(By::Member), Some(false))
}

/// `ZREVRANGEBYLEX key max min [LIMIT offset count]`: as ZRANGE.
fn zrevrangebylex(ctx: &mut Context<'_>) -> CommandResult {
    reply_range(ctx, Some(By::Member), Some(true))
}

fn reply_range(ctx: &mut Context<'_>, by: Option<By>, is_reversed: Option<bool>) -> CommandResult {
    let options = RangeOptions::parse(ctx.args, 1, by, is_reversed, false)?;
    let Some(set) = ctx.core.keyspace.read::<SortedSet>(ctx.key(1))? else {
        ctx.reply.array(0);
        return Ok(Outcome::Replied);
    };
    let ranks = options.ranks(set);
    let mut reply = Pairs { reply: &mut ctx.reply, with_scores: options.with_scores };
    reply.begin(ranks.len());
    set.each(ranks, options.is_reversed, |score, member| reply.push(score, member));
    Ok(Outcome::Replied)
}

/// `ZRANGESTORE dst src min max [BYSCORE | BYLEX] [REV] [LIMIT offset count]`: the number of
/// members stored. An empty range deletes the destination.
fn zrangestore(ctx: &mut Context<'_>) -> CommandResult {
    let options = RangeOptions::parse(ctx.args, 2, None, None, true)?;
    let limits = limits(ctx);
    let mut result = SortedSet::new();
    if let Some(set) = ctx.core.keyspace.read::<SortedSet>(ctx.key(2))? {
        let ranks = options.ranks(set);
        // Redis's order and first encoding: a listpack makes -0 a 0, a skiplist does not.
        if matches!(options.between, Between::Ranks(..)) && ranks.len() > limits.entries {
            result = SortedSet::for_result();
        }
        set.each(ranks, options.is_reversed, |score, member| {
            Edit::unnoted(&mut result).insert(score, member, limits);
        });
    }
    let count = store(ctx, ctx.key(1), result, "zrangestore", 1);
    ctx.reply.integer(count as i64);
    Ok(Outcome::Replied)
}

/// Stores a result; an empty one deletes the key. Returns its length.
pub(crate) fn store(
    ctx: &mut Context<'_>,
    key: Key<'_>,
    result: SortedSet,
    event: &'static str,
    changes: u64,
) -> usize {
    let count = result.len();
    if count == 0 {
        ctx.core.keyspace.delete(key, "del");
    } else {
        let found = ctx.core.keyspace.find(key);
        ctx.core.keyspace.set_collection(found, key, result, Expiry::Clear);
        ctx.core.keyspace.changed_by(changes, KeyspaceEvents::ZSET, event, key.bytes);
    }
    count
}

/// Repeats the members of a stored result instead of the request.
pub(crate) fn repeat_stored(ctx: &mut Context<'_>, key: Key<'_>, was_there: bool) {
    if was_there {
        ctx.instead(&[b"DEL", key.bytes]);
    }
    ctx.instead_stored(key, b"ZADD", |value| {
        let set = SortedSet::view(value)?;
        let mut words = Vec::with_capacity(2 * set.len());
        set.each(0..set.len(), false, |score, member| {
            words.extend([format_double_17g(score).as_ref().to_vec(), member.to_vec()]);
        });
        Some(words)
    });
}

/// `ZCOUNT key min max`: an integer.
fn zcount(ctx: &mut Context<'_>) -> CommandResult {
    count(ctx, By::Score)
}

/// `ZLEXCOUNT key min max`: an integer.
fn zlexcount(ctx: &mut Context<'_>) -> CommandResult {
    count(ctx, By::Member)
}

fn count(ctx: &mut Context<'_>, by: By) -> CommandResult {
    let between = Between::parse(ctx.args, 2, 3, by)?;
    let set = ctx.core.keyspace.read::<SortedSet>(ctx.key(1))?;
    ctx.reply.integer(set.map_or(0, |set| between.ranks(set).len()) as i64);
    Ok(Outcome::Replied)
}

/// `ZREMRANGEBYRANK key start stop`: the number of removed members.
fn zremrangebyrank(ctx: &mut Context<'_>) -> CommandResult {
    remove_range(ctx, By::Rank, "zremrangebyrank")
}

/// `ZREMRANGEBYSCORE key min max`: the number of removed members.
fn zremrangebyscore(ctx: &mut Context<'_>) -> CommandResult {
    remove_range(ctx, By::Score, "zremrangebyscore")
}

/// `ZREMRANGEBYLEX key min max`: the number of removed members.
fn zremrangebylex(ctx: &mut Context<'_>) -> CommandResult {
    remove_range(ctx, By::Member, "zremrangebylex")
}

fn remove_range(ctx: &mut Context<'_>, by: By, event: &'static str) -> CommandResult {
    let between = Between::parse(ctx.args, 2, 3, by)?;
    let key = ctx.key(1);
    let mut removed = 0;
    if let Some(slot) = ctx.core.keyspace.slot_of::<SortedSet>(key)? {
        let ranks = between.ranks(ctx.core.keyspace.view::<SortedSet>(slot)?);
        removed = ranks.len();
        if removed > 0 {
            ctx.core.keyspace.edit(slot, |set: &mut Edit<'_, SortedSet>| set.remove_ranks(ranks));
            ctx.core.keyspace.changed_by(removed as u64, KeyspaceEvents::ZSET, event, key.bytes);
            ctx.core.keyspace.delete_if_empty::<SortedSet>(slot, key);
        }
    }
    ctx.reply.integer(removed as i64);
    Ok(Outcome::Replied)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_read_as_c_reads_numbers() {
        for (text, bound) in [
            (&b""[..], 0.0),
            (b"1", 1.0),
            (b" 1", 1.0),
            (b"\x0b1", 1.0),
            (b"+.5", 0.5),
            (b"5.", 5.0),
            (b"0x10", 16.0),
            (b"1e400", f64::INFINITY),
            (b"-1e400", f64::NEG_INFINITY),
            (b"1e-400", 0.0),
            (b"-Inf", f64::NEG_INFINITY),
            (b"1\x00x", 1.0),
        ] {
            assert_eq!(parse_bound(text), Some(bound), "{}", text.escape_ascii());
        }
        for text in [&b" "[..], b"1 ", b"nan", b"-nan", b"x", b"(1", b"1e", b"."] {
            assert_eq!(parse_bound(text), None, "{}", text.escape_ascii());
        }
    }
}
