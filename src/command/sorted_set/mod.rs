//! Sorted sets: commands on members, scores, ranks and random samples.
//!
//! Ranges are in `range.rs`, unions and the like in `combine.rs`, popping and blocking in `pop.rs`,
//! moves between sorted sets in `moving.rs`.
//! The data structure is `types::sorted_set`.

pub(crate) mod combine;
pub(crate) mod due;
pub(crate) mod geo;
pub(crate) mod moving;
pub(crate) mod pop;
pub(crate) mod range;

use std::collections::BTreeSet;

use smallvec::SmallVec;

use crate::command::key::scan::{MemberScan, count_left, scan_cursor};
use crate::config::KeyspaceEvents;
use crate::error::CommandError;
use crate::resp::Protocol;
use crate::resp::args::Args;
use crate::resp::number::{self, f64_as_i64};
use crate::resp::reply::{OutputBuffer, ReplyWriter};
use crate::state::context::{CommandResult, Context, Outcome};
use crate::state::spec::{CommandSpec, Flags, Group, KeyFlags, KeySpec, key, spec};
use crate::types::journal::Edit;
use crate::types::lock;
use crate::types::sorted_set::{Limits, SortedSet, SortedSetView, Updated};

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    spec("ZADD", zadd).at_least(4).keys(KeySpec::RW_UPDATE).flags(Flags::WRITE_DENYOOM_FAST).group(Group::SortedSet).since("1.2.0")
        .docs("key [NX | XX] [GT | LT] [CH] [INCR] score member [score member ...]",
            "Adds members with their scores to a sorted set, or changes the scores of existing ones.",
            "O(log(N)) for each member, N being the size of the sorted set."),
    spec("ZINCRBY", zincrby).exactly(4).keys(&[key(1, KeyFlags::RW_ACCESS_UPDATE)]).flags(Flags::WRITE_DENYOOM_FAST).group(Group::SortedSet).since("1.2.0")
        .docs("key increment member", "Adds to a member's score; a new member begins at 0.", "O(log(N)), N being the size of the sorted set."),
    spec("ZREM", zrem).at_least(3).keys(&[key(1, KeyFlags::RW_DELETE)]).flags(Flags::WRITE_FAST).group(Group::SortedSet).since("1.2.0")
        .docs("key member [member ...]", "Removes members from a sorted set.", "O(log(N)) for each member, N being the size of the sorted set."),
    spec("ZCARD", zcard).exactly(2).keys(&[key(1, KeyFlags::RO)]).flags(Flags::READONLY_FAST).group(Group::SortedSet).since("1.2.0")
        .docs("key", "Counts the members of a sorted set.", "O(1)"),
    spec("ZSCORE", zscore).exactly(3).keys(KeySpec::RO_ACCESS).flags(Flags::READONLY_FAST).group(Group::SortedSet).since("1.2.0")
        .docs("key member", "Returns a member's score.", "O(1)"),
    spec("ZMSCORE", zmscore).at_least(3).keys(KeySpec::RO_ACCESS).flags(Flags::READONLY_FAST).group(Group::SortedSet).since("6.2.0")
        .docs("key member [member ...]", "Returns the scores of members.", "O(1) for each member"),
    spec("ZRANK", zrank).at_least(3).keys(KeySpec::RO_ACCESS).flags(Flags::READONLY_FAST).group(Group::SortedSet).since("2.0.0")
        .docs("key member [WITHSCORE]", "Returns a member's rank, counted from the lowest score.", "O(log(N)), N being the size of the sorted set."),
    spec("ZREVRANK", zrevrank).at_least(3).keys(KeySpec::RO_ACCESS).flags(Flags::READONLY_FAST).group(Group::SortedSet).since("2.0.0")
        .docs("key member [WITHSCORE]", "Returns a member's rank, counted from the highest score.", "O(log(N)), N being the size of the sorted set."),
    spec("ZRANDMEMBER", zrandmember).at_least(2).keys(KeySpec::RO_ACCESS).flags(Flags::READONLY).group(Group::SortedSet).since("6.2.0")
        .tips(&["nondeterministic_output"])
        .docs("key [count [WITHSCORES]]", "Returns random members.", "O(N log(M)) with N the members returned and M the size of the sorted set."),
    spec("ZSCAN", zscan).at_least(3).keys(KeySpec::RO_ACCESS).flags(Flags::READONLY).group(Group::SortedSet).since("2.8.0").tips(&["nondeterministic_output"])
        .docs("key cursor [MATCH pattern] [COUNT count] [NOSCORES]", "Iterates over the members of a sorted set, some in each call.",
            "O(COUNT) for each call, O(N) for the whole walk."),
];

const NX_WITH_XX: CommandError =
    CommandError::Text("ERR XX and NX options at the same time are not compatible");
const GT_WITH_LT: CommandError =
    CommandError::Text("ERR GT, LT, and/or NX options at the same time are not compatible");
const ONE_INCREMENT: CommandError =
    CommandError::Text("ERR INCR option supports a single increment-element pair");
const NOT_A_NUMBER: CommandError = CommandError::Text("ERR resulting score is not a number (NaN)");

/// The configured limits of listpacks.
pub(crate) fn limits(ctx: &Context<'_>) -> Limits {
    Limits {
        entries: ctx.core.state.config.zset_max_listpack_entries,
        value: ctx.core.state.config.zset_max_listpack_value,
    }
}

/// `ZADD key [NX | XX] [GT | LT] [CH] [INCR] score member [score member ...]`.
#[derive(Default)]
pub(crate) struct AddOptions {
    pub only_new: bool,
    pub only_there: bool,
    pub only_greater: bool,
    pub only_less: bool,
    pub counts_changed: bool,
    pub increments: bool,
}

impl AddOptions {
    /// Parses the options; also returns the index of the first score.
    fn parse(args: Args<'_>, increments: bool) -> Result<(Self, usize), CommandError> {
        let mut options = AddOptions { increments, ..AddOptions::default() };
        let mut arguments = args.cursor(2);
        // Most scores begin like no option.
        while arguments.peek().and_then(<[u8]>::first).is_some_and(u8::is_ascii_alphabetic) {
            if arguments.take_word("NX") {
                options.only_new = true;
            } else if arguments.take_word("XX") {
                options.only_there = true;
            } else if arguments.take_word("CH") {
                options.counts_changed = true;
            } else if arguments.take_word("INCR") {
                options.increments = true;
            } else if arguments.take_word("GT") {
                options.only_greater = true;
            } else if arguments.take_word("LT") {
                options.only_less = true;
            } else {
                break;
            }
        }
        if arguments.is_at_end() || !arguments.remaining().is_multiple_of(2) {
            return Err(CommandError::Syntax);
        }
        if options.only_new && options.only_there {
            return Err(NX_WITH_XX);
        }
        let conditions = [options.only_new, options.only_greater, options.only_less];
        if conditions.iter().filter(|&&condition| condition).count() > 1 {
            return Err(GT_WITH_LT);
        }
        if options.increments && arguments.remaining() > 2 {
            return Err(ONE_INCREMENT);
        }
        Ok((options, arguments.position()))
    }

    /// A member's new score; None if it does not change. `old` is None for a new member.
    #[inline]
    fn decide(&self, old: Option<f64>, score: f64) -> Option<f64> {
        let Some(old) = old else {
            return (!self.only_there).then_some(score);
        };
        if self.only_new {
            return None;
        }
        let score = if self.increments { old + score } else { score };
        let is_refused = (self.only_less && score >= old) || (self.only_greater && score <= old);
        (!is_refused).then_some(score)
    }
}

/// `ZADD key [options] score member [score member ...]`: the number of members added (with CH: or
/// changed); with INCR the new score, or nil if a condition fails.
fn zadd(ctx: &mut Context<'_>) -> CommandResult {
    add(ctx, false)
}

/// `ZINCRBY key increment member`: the new score. Parses ZADD's options, as Redis does, although
/// the arity leaves no room for them.
fn zincrby(ctx: &mut Context<'_>) -> CommandResult {
    add(ctx, true)
}

/// The results of all pairs.
#[derive(Default)]
struct Added {
    new: u64,
    changed: u64,
    /// The score of the last pair; None if a condition failed.
    score: Option<f64>,
    is_nan: bool,
}

fn add(ctx: &mut Context<'_>, increments: bool) -> CommandResult {
    let (options, first) = AddOptions::parse(ctx.args, increments)?;
    let args = ctx.args;
    let pairs: SmallVec<[(f64, &[u8]); 8]> = (first..args.len())
        .step_by(2)
        .map(|index| {
            let score = number::parse_f64(args.get(index)).ok_or(CommandError::NotFloat)?;
            Ok((score, args.get(index + 1)))
        })
        .collect::<Result<_, CommandError>>()?;
    add_pairs(ctx, &options, &pairs)
}

/// Adds scores and members according to the options, and replies.
pub(crate) fn add_pairs(
    ctx: &mut Context<'_>,
    options: &AddOptions,
    pairs: &[(f64, &[u8])],
) -> CommandResult {
    let key = ctx.key(1);
    let found = ctx.core.keyspace.slot_of::<SortedSet>(key)?;
    let keyspace = &mut ctx.core.keyspace;
    if (ctx.caller.is_repeating() || keyspace.hidden_slots.is_some())
        && pairs.first().is_some_and(|(_, member)| lock::is_permit(member))
    {
        match keyspace.is_hidden(key.bytes) {
            true => keyspace.note_coming(key.bytes),
            false if ctx.caller.is_repeating() => {
                keyspace.semaphores.note(keyspace.selected(), key.bytes);
                let fences = pairs.iter().map(|(_, permit)| lock::fence_of_permit(permit));
                fences.for_each(|fence| keyspace.locks.fences.learn(fence));
            }
            false => {}
        }
    }
    if found.is_none() && options.only_there {
        if options.increments {
            ctx.reply.null()
        } else {
            ctx.reply.integer(0)
        }
        return Ok(Outcome::Replied);
    }
    let limits = limits(ctx);
    let edit = |set: &mut Edit<'_, SortedSet>| {
        let mut added = Added::default();
        for &(score, member) in pairs {
            let outcome = set.update(member, limits, |old| {
                let new = options.decide(old, score);
                added.is_nan |= new.is_some_and(f64::is_nan);
                added.score = new.filter(|score| !score.is_nan());
                added.score
            });
            added.new += u64::from(outcome == Updated::Added);
            added.changed += u64::from(outcome == Updated::Changed);
        }
        added
    };
    let added = match found {
        Some(slot) => ctx.core.keyspace.edit(slot, edit),
        None => {
            let mut set = SortedSet::new();
            let added = edit(&mut Edit::unnoted(&mut set));
            ctx.core.keyspace.insert_collection(key, set);
            added
        }
    };
    if added.is_nan {
        return Err(NOT_A_NUMBER);
    }
    if added.new + added.changed > 0 {
        let event = if options.increments { "zincr" } else { "zadd" };
        ctx.core.keyspace.changed_by(
            added.new + added.changed,
            KeyspaceEvents::ZSET,
            event,
            key.bytes,
        );
    }
    match added.score {
        Some(score) if options.increments => ctx.reply.double(score),
        None if options.increments => ctx.reply.null(),
        _ if options.counts_changed => ctx.reply.integer((added.new + added.changed) as i64),
        _ => ctx.reply.integer(added.new as i64),
    }
    Ok(Outcome::Replied)
}

/// `ZREM key member [member ...]`: the number of removed members.
fn zrem(ctx: &mut Context<'_>) -> CommandResult {
    let key = ctx.key(1);
    let Some(slot) = ctx.core.keyspace.slot_of::<SortedSet>(key)? else {
        ctx.reply.integer(0);
        return Ok(Outcome::Replied);
    };
    let members = ctx.args.iter_from(2);
    let removed = ctx.core.keyspace.edit(slot, |set: &mut Edit<'_, SortedSet>| {
        members.filter(|member| set.remove(member).is_some()).count()
    });
    if removed > 0 {
        ctx.core.keyspace.changed_by(removed as u64, KeyspaceEvents::ZSET, "zrem", key.bytes);
        ctx.core.keyspace.delete_if_empty::<SortedSet>(slot, key);
    }
    ctx.reply.integer(removed as i64);
    Ok(Outcome::Replied)
}

/// `ZCARD key`: an integer.
fn zcard(ctx: &mut Context<'_>) -> CommandResult {
    let count = ctx.core.keyspace.read::<SortedSet>(ctx.key(1))?.map_or(0, |set| set.len());
    ctx.reply.integer(count as i64);
    Ok(Outcome::Replied)
}

/// `ZSCORE key member`: a double (RESP2: a bulk string), or nil.
fn zscore(ctx: &mut Context<'_>) -> CommandResult {
    let set = ctx.core.keyspace.read::<SortedSet>(ctx.key(1))?;
    reply_score(&mut ctx.reply, set.and_then(|set| set.score(ctx.args.get(2))));
    Ok(Outcome::Replied)
}

/// `ZMSCORE key member [member ...]`: an array of ZSCORE's replies.
fn zmscore(ctx: &mut Context<'_>) -> CommandResult {
    let set = ctx.core.keyspace.read::<SortedSet>(ctx.key(1))?;
    let members = ctx.args.iter_from(2);
    ctx.reply.array(members.len());
    for member in members {
        reply_score(&mut ctx.reply, set.and_then(|set| set.score(member)));
    }
    Ok(Outcome::Replied)
}

fn reply_score(reply: &mut ReplyWriter<'_>, score: Option<f64>) {
    match score {
        Some(score) => reply.double(score),
        None => reply.null(),
    }
}

/// `ZRANK key member [WITHSCORE]`: an integer, or an array of rank and score; nil if the member
/// does not exist.
fn zrank(ctx: &mut Context<'_>) -> CommandResult {
    rank(ctx, false)
}

/// `ZREVRANK key member [WITHSCORE]`: the same, counted from the highest score.
fn zrevrank(ctx: &mut Context<'_>) -> CommandResult {
    rank(ctx, true)
}

fn rank(ctx: &mut Context<'_>, is_reversed: bool) -> CommandResult {
    if ctx.args.len() > 4 {
        return Err(CommandError::WrongArity(ctx.name().into()));
    }
    let with_score = ctx.args.len() == 4;
    if with_score && !ctx.args.get(3).eq_ignore_ascii_case(b"WITHSCORE") {
        return Err(CommandError::Syntax);
    }
    let set = ctx.core.keyspace.read::<SortedSet>(ctx.key(1))?;
    let found = set.and_then(|set| {
        let (rank, score) = set.rank(ctx.args.get(2))?;
        Some((if is_reversed { set.len() - 1 - rank } else { rank }, score))
    });
    match found {
        Some((rank, score)) if with_score => {
            ctx.reply.array(2);
            ctx.reply.integer(rank as i64);
            ctx.reply.double(score);
        }
        Some((rank, _)) => ctx.reply.integer(rank as i64),
        None if with_score => ctx.reply.null_array(),
        None => ctx.reply.null(),
    }
    Ok(Outcome::Replied)
}

// ---- samples ------------------------------------------------------------------------------------

/// `ZRANDMEMBER key [count [WITHSCORES]]`: a member or nil; with a count an array, of different
/// members, or, if it is negative, with repetitions.
fn zrandmember(ctx: &mut Context<'_>) -> CommandResult {
    if ctx.args.len() == 2 {
        match ctx.core.keyspace.read::<SortedSet>(ctx.key(1))? {
            Some(set) => {
                let chosen = set.get(fastrand::usize(0..set.len()));
                ctx.reply.bulk(chosen.expect("the rank is less than the length").1.as_ref());
            }
            None => ctx.reply.null(),
        }
        return Ok(Outcome::Replied);
    }
    let count = ctx.args.integer(2)?;
    if count == i64::MIN {
        let text = format!("ERR value is out of range, value must between -{0} and {0}", i64::MAX);
        return Err(CommandError::formatted(text));
    }
    let with_scores = ctx.args.len() == 4;
    if ctx.args.len() > 4 || (with_scores && !ctx.args.get(3).eq_ignore_ascii_case(b"WITHSCORES")) {
        return Err(CommandError::Syntax);
    }
    if with_scores && count.unsigned_abs() > i64::MAX as u64 / 2 {
        return Err(CommandError::ValueOutOfRange(""));
    }
    if count < 0 {
        ctx.check_draws(count.unsigned_abs())?;
    }
    let Some(set) = ctx.core.keyspace.read::<SortedSet>(ctx.key(1))? else {
        ctx.reply.array(0);
        return Ok(Outcome::Replied);
    };
    let mut reply = Pairs { reply: &mut ctx.reply, with_scores };
    if count < 0 {
        reply.begin(count.unsigned_abs() as usize);
        for _ in 0..count.unsigned_abs() {
            let chosen = set.get(fastrand::usize(0..set.len()));
            let (score, member) = chosen.expect("the rank is less than the length");
            reply.push(score, member.as_ref());
            if reply.reply.is_cut() {
                break;
            }
        }
        return Ok(Outcome::Replied);
    }
    let (count, len) = (usize::try_from(count).unwrap_or(usize::MAX), set.len());
    if count >= len {
        reply.begin(len);
        set.each(0..len, false, |score, member| reply.push(score, member));
        return Ok(Outcome::Replied);
    }
    reply.begin(count);
    choose_ranks(len, count).into_iter().for_each(|rank| {
        let (score, member) = set.get(rank).expect("the rank is less than the length");
        reply.push(score, member.as_ref());
    });
    Ok(Outcome::Replied)
}

/// `count` different numbers below `len`, all choices equally likely: Floyd's algorithm.
fn choose_ranks(len: usize, count: usize) -> BTreeSet<usize> {
    let mut chosen = BTreeSet::new();
    for last in len - count..len {
        let rank = fastrand::usize(0..=last);
        if !chosen.insert(rank) {
            chosen.insert(last);
        }
    }
    chosen
}

/// Replies an array of members, optionally with scores: flat in RESP2, nested pairs in RESP3.
pub(crate) struct Pairs<'w, 'a> {
    pub reply: &'w mut ReplyWriter<'a>,
    pub with_scores: bool,
}

impl Pairs<'_, '_> {
    pub fn begin(&mut self, len: usize) {
        let is_flat = self.with_scores && self.reply.protocol() == Protocol::Resp2;
        self.reply.array(if is_flat { 2 * len } else { len });
    }

    #[inline]
    pub fn push(&mut self, score: f64, member: &[u8]) {
        if !self.with_scores {
            return self.reply.bulk(member);
        }
        if self.reply.protocol() == Protocol::Resp3 {
            self.reply.array(2);
        }
        self.reply.bulk(member);
        self.reply.double(score);
    }
}

// ---- ZSCAN --------------------------------------------------------------------------------------

/// `ZSCAN key cursor [MATCH pattern] [COUNT count] [NOSCORES]`: the next cursor and an array of
/// members and scores, all of them bulk strings.
fn zscan(ctx: &mut Context<'_>) -> CommandResult {
    let cursor = scan_cursor(ctx, 2)?;
    let protocol = ctx.reply.protocol();
    let Some(set) = ctx.core.keyspace.read::<SortedSet>(ctx.key(1))? else {
        ctx.reply.array(2);
        ctx.reply.bulk(b"0");
        ctx.reply.array(0);
        return Ok(Outcome::Replied);
    };
    let options = MemberScan::parse(ctx.args.cursor(3), "NOSCORES")?;
    let mut elements = OutputBuffer::default();
    let mut writer = ReplyWriter::new(&mut elements, protocol);
    let is_listpack = set.encoding() == "listpack";
    let (mut seen, mut found) = (0, 0);
    // Our cursors are boundaries of 32 bits; any other counts as the end.
    let mut boundary = u32::try_from(cursor).unwrap_or(u32::MAX);
    loop {
        boundary = set.scan(boundary, count_left(options.count, seen), |score, member| {
            seen += 1;
            if options.wants(member) {
                found += 1;
                writer.bulk(member);
                if !options.names_only {
                    found += 1;
                    write_scanned_score(&mut writer, score, is_listpack);
                }
            }
        });
        if boundary == 0 || seen >= options.count {
            break;
        }
    }
    ctx.reply.array(2);
    ctx.reply.bulk_integer(boundary.into());
    ctx.reply.array(found);
    ctx.reply.output().append(&elements);
    Ok(Outcome::Replied)
}

/// Writes a score for ZSCAN: a listpack's integers without the exponent that they would otherwise
/// have.
fn write_scanned_score(writer: &mut ReplyWriter<'_>, score: f64, is_listpack: bool) {
    match f64_as_i64(score).filter(|_| is_listpack) {
        Some(integer) => writer.bulk_integer(integer),
        None => writer.bulk(&number::format_double_17g(score)),
    }
}

/// The ranks of ZRANGE's indices, which may count from the end; an empty range if there are none.
pub(crate) fn ranks_between(
    set: SortedSetView<'_>,
    start: i64,
    end: i64,
) -> std::ops::Range<usize> {
    let len = set.len() as i64;
    let start = if start < 0 { start.saturating_add(len).max(0) } else { start };
    let end = if end < 0 { end.saturating_add(len) } else { end.min(len - 1) };
    if start > end || start >= len { 0..0 } else { start as usize..end as usize + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_chosen_without_repetition() {
        for (len, count) in [(1, 1), (10, 3), (10, 9), (1000, 500)] {
            let chosen = choose_ranks(len, count);
            assert_eq!(chosen.len(), count);
            assert!(chosen.iter().all(|&rank| rank < len));
        }
        let mut seen = [false; 4];
        while seen.contains(&false) {
            choose_ranks(4, 2).into_iter().for_each(|rank| seen[rank] = true);
        }
    }
}
