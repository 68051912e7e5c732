//! Unions, intersections and differences of sorted sets, and of plain sets, whose members have the
//! score 1.
//!
//! All keys are looked up, and their types checked, before options are parsed: Redis's order of
//! errors. The result is built as a sorted set, then replied or stored.

use crate::collections::table::{Entry, Slot};
use crate::command::sorted_set::range::{repeat_stored, store};
use crate::command::sorted_set::{Pairs, limits};
use crate::error::CommandError;
use crate::keyspace::{Key, Keyspace};
use crate::resp::args::{BadKeyCount, Cursor};
use crate::resp::number;
use crate::state::context::{CommandResult, Context, Outcome};
use crate::state::spec::{
    CommandSpec, Flags, Group, Handler, KeyFlags, KeySpec, counted_keys, key, spec,
};
use crate::types::set::{Set, SetView};
use crate::types::sorted_set::{SortedSet, SortedSetView};
use crate::types::{Collection, Value};

const SOURCES: &[KeySpec] = &[counted_keys(1, KeyFlags::RO_ACCESS)];
const DESTINATION_AND_SOURCES: &[KeySpec] =
    &[key(1, KeyFlags::OW_UPDATE), counted_keys(2, KeyFlags::RO_ACCESS)];
const UNION_COST: &str =
    "O(N + M log(M)) with N the members of all sources and M those of the result.";
const INTERSECTION_COST: &str =
    "O(NK + M log(M)) with N the members of the smallest of K sources and M those of the result.";
const DIFFERENCE_COST: &str =
    "O(NK + M log(M)) with N the members of the first of K sources and M those of the result.";

const fn reading(name: &'static str, handler: Handler) -> CommandSpec {
    spec(name, handler)
        .at_least(3)
        .keys(SOURCES)
        .flags(Flags::READONLY)
        .group(Group::SortedSet)
        .since("6.2.0")
}

const fn storing(name: &'static str, handler: Handler) -> CommandSpec {
    spec(name, handler)
        .at_least(4)
        .keys(DESTINATION_AND_SOURCES)
        .flags(Flags::WRITE_DENYOOM)
        .group(Group::SortedSet)
        .since("2.0.0")
}

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    reading("ZUNION", zunion)
        .docs("numkeys key [key ...] [WEIGHTS weight [weight ...]] [AGGREGATE <SUM | MIN | MAX | COUNT>] [WITHSCORES]",
            "Returns the members of any of several sorted sets.", UNION_COST),
    storing("ZUNIONSTORE", zunionstore)
        .docs("destination numkeys key [key ...] [WEIGHTS weight [weight ...]] [AGGREGATE <SUM | MIN | MAX | COUNT>]",
            "Stores the members of any of several sorted sets.", UNION_COST),
    reading("ZINTER", zinter)
        .docs("numkeys key [key ...] [WEIGHTS weight [weight ...]] [AGGREGATE <SUM | MIN | MAX | COUNT>] [WITHSCORES]",
            "Returns the members that all of several sorted sets have.", INTERSECTION_COST),
    storing("ZINTERSTORE", zinterstore)
        .docs("destination numkeys key [key ...] [WEIGHTS weight [weight ...]] [AGGREGATE <SUM | MIN | MAX | COUNT>]",
            "Stores the members that all of several sorted sets have.", INTERSECTION_COST),
    reading("ZINTERCARD", zintercard).since("7.0.0")
        .docs("numkeys key [key ...] [LIMIT limit]", "Counts the members that several sorted sets have in common.",
            "O(NK) with N the members of the smallest of K sources."),
    reading("ZDIFF", zdiff)
        .docs("numkeys key [key ...] [WITHSCORES]", "Returns the members of the first of several sorted sets that no other has.", DIFFERENCE_COST),
    storing("ZDIFFSTORE", zdiffstore).since("6.2.0")
        .docs("destination numkeys key [key ...]", "Stores the members of the first of several sorted sets that no other has.", DIFFERENCE_COST),
];

const NOT_A_WEIGHT: CommandError = CommandError::Text("ERR weight value is not a float");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Union,
    Intersection,
    Difference,
}

/// The kind of reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Reply,
    Store,
    Count,
}

/// How a member's scores in several sources are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aggregate {
    Sum,
    Min,
    Max,
    /// The sum of the weights of the sources that have the member. Source: Redis 8.8.
    Count,
}

impl Aggregate {
    fn apply(self, score: f64, other: f64) -> f64 {
        match self {
            Aggregate::Sum | Aggregate::Count => number_or_zero(score + other),
            Aggregate::Min if other < score => other,
            Aggregate::Max if other > score => other,
            Aggregate::Min | Aggregate::Max => score,
        }
    }
}

/// Infinities that cancel out give 0.
fn number_or_zero(score: f64) -> f64 {
    if score.is_nan() { 0.0 } else { score }
}

/// `ZUNION numkeys key [key ...] [options]`: as ZRANGE.
fn zunion(ctx: &mut Context<'_>) -> CommandResult {
    combine(ctx, Operation::Union, Purpose::Reply)
}

/// `ZUNIONSTORE destination numkeys key [key ...] [options]`: the number of members stored.
fn zunionstore(ctx: &mut Context<'_>) -> CommandResult {
    combine(ctx, Operation::Union, Purpose::Store)
}

/// `ZINTER numkeys key [key ...] [options]`: as ZRANGE.
fn zinter(ctx: &mut Context<'_>) -> CommandResult {
    combine(ctx, Operation::Intersection, Purpose::Reply)
}

/// `ZINTERSTORE destination numkeys key [key ...] [options]`: the number of members stored.
fn zinterstore(ctx: &mut Context<'_>) -> CommandResult {
    combine(ctx, Operation::Intersection, Purpose::Store)
}

/// `ZINTERCARD numkeys key [key ...] [LIMIT limit]`: an integer, at most the limit.
fn zintercard(ctx: &mut Context<'_>) -> CommandResult {
    combine(ctx, Operation::Intersection, Purpose::Count)
}

/// `ZDIFF numkeys key [key ...] [WITHSCORES]`: as ZRANGE.
fn zdiff(ctx: &mut Context<'_>) -> CommandResult {
    combine(ctx, Operation::Difference, Purpose::Reply)
}

/// `ZDIFFSTORE destination numkeys key [key ...]`: the number of members stored.
fn zdiffstore(ctx: &mut Context<'_>) -> CommandResult {
    combine(ctx, Operation::Difference, Purpose::Store)
}

/// `[WEIGHTS weight ...] [AGGREGATE <SUM | MIN | MAX | COUNT>] [WITHSCORES] [LIMIT limit]`,
/// depending on the command.
struct CombineOptions {
    weights: Vec<f64>,
    aggregate: Aggregate,
    with_scores: bool,
    /// The most members to count.
    limit: usize,
}

impl CombineOptions {
    fn parse(
        mut arguments: Cursor<'_>,
        sources: usize,
        operation: Operation,
        purpose: Purpose,
    ) -> Result<Self, CommandError> {
        let mut options = CombineOptions {
            weights: vec![1.0; sources],
            aggregate: Aggregate::Sum,
            with_scores: false,
            limit: usize::MAX,
        };
        let has_scores = operation != Operation::Difference && purpose != Purpose::Count;
        while !arguments.is_at_end() {
            let remaining = arguments.remaining();
            if has_scores && remaining > sources && arguments.take_word("WEIGHTS") {
                for weight in &mut options.weights {
                    *weight = number::parse_f64(arguments.take()?).ok_or(NOT_A_WEIGHT)?;
                }
            } else if has_scores && remaining > 1 && arguments.take_word("AGGREGATE") {
                options.aggregate = if arguments.take_word("SUM") {
                    Aggregate::Sum
                } else if arguments.take_word("MIN") {
                    Aggregate::Min
                } else if arguments.take_word("MAX") {
                    Aggregate::Max
                } else if arguments.take_word("COUNT") {
                    Aggregate::Count
                } else {
                    return Err(CommandError::Syntax);
                };
            } else if purpose == Purpose::Reply && arguments.take_word("WITHSCORES") {
                options.with_scores = true;
            } else if purpose == Purpose::Count && remaining > 1 && arguments.take_word("LIMIT") {
                let limit =
                    number::parse_i64(arguments.take()?).ok_or(CommandError::NEGATIVE_LIMIT)?;
                options.limit =
                    match usize::try_from(limit).map_err(|_| CommandError::NEGATIVE_LIMIT)? {
                        0 => usize::MAX,
                        limit => limit,
                    };
            } else {
                return Err(CommandError::Syntax);
            }
        }
        Ok(options)
    }
}

/// A set to combine.
#[derive(Clone, Copy)]
struct Source<'a> {
    members: Members<'a>,
    weight: f64,
}

#[derive(Clone, Copy)]
enum Members<'a> {
    None,
    Scored(SortedSetView<'a>),
    /// Each with score 1.
    Plain(SetView<'a>),
}

impl<'a> Members<'a> {
    /// A value's members; None if it is of another type.
    fn of(entry: Entry<'a, Value>) -> Option<Members<'a>> {
        let scored = SortedSet::view(entry.value()).map(Members::Scored);
        scored.or_else(|| <Set as Collection>::view(entry.value()).map(Members::Plain))
    }
}

impl<'a> Source<'a> {
    /// Looks up a key, and checks its type.
    fn look_up(keyspace: &mut Keyspace, key: Key<'_>) -> Result<Option<Slot>, CommandError> {
        let slot = keyspace.find_for_read(key);
        slot.map(|slot| Members::of(keyspace.entry(slot)).ok_or(CommandError::WrongType))
            .transpose()?;
        Ok(slot)
    }

    /// Reads a looked-up key.
    fn read(keyspace: &'a Keyspace, slot: Option<Slot>, weight: f64) -> Source<'a> {
        let members = slot.and_then(|slot| Members::of(keyspace.entry(slot)));
        Source { members: members.unwrap_or(Members::None), weight }
    }

    fn len(&self) -> usize {
        match self.members {
            Members::None => 0,
            Members::Scored(set) => set.len(),
            Members::Plain(set) => set.len(),
        }
    }

    fn score(&self, member: &[u8]) -> Option<f64> {
        match self.members {
            Members::None => None,
            Members::Scored(set) => set.score(member),
            Members::Plain(set) => set.contains(member).then_some(1.0),
        }
    }

    /// What the score of a member contributes to the result.
    fn weighted(&self, score: f64, aggregate: Aggregate) -> f64 {
        if aggregate == Aggregate::Count { self.weight } else { self.weight * score }
    }

    /// Visits the members until `visit` returns false.
    fn each_while(&self, mut visit: impl FnMut(f64, &[u8]) -> bool) {
        match self.members {
            Members::None => {}
            Members::Scored(set) => set.each_while(0..set.len(), visit),
            Members::Plain(set) => set.visit(|member| visit(1.0, member.text().as_ref())),
        }
    }

    fn each(&self, mut visit: impl FnMut(f64, &[u8])) {
        self.each_while(|score, member| {
            visit(score, member);
            true
        });
    }
}

fn combine(ctx: &mut Context<'_>, operation: Operation, purpose: Purpose) -> CommandResult {
    let numkeys = if purpose == Purpose::Store { 2 } else { 1 };
    let mut arguments = ctx.args.cursor(numkeys);
    let keys = arguments.take_keys(1, 1).map_err(|bad| match bad {
        BadKeyCount::NotInteger => CommandError::NotInteger,
        BadKeyCount::TooSmall => {
            let text = format!("ERR at least 1 input key is needed for '{}' command", ctx.name());
            CommandError::formatted(text)
        }
        BadKeyCount::TooLarge(_) => CommandError::Syntax,
    })?;
    let mut slots = Vec::with_capacity(keys.len());
    for index in keys {
        let key = ctx.key(index);
        slots.push(Source::look_up(&mut ctx.core.keyspace, key)?);
    }
    let options = CombineOptions::parse(arguments, slots.len(), operation, purpose)?;
    let mut sources: Vec<Source<'_>> = slots
        .into_iter()
        .zip(&options.weights)
        .map(|(slot, &weight)| Source::read(&ctx.core.keyspace, slot, weight))
        .collect();
    if operation != Operation::Difference {
        // Redis's order, which affects the rounding of sums; intersections start with the smallest
        // set.
        sources.sort_by_key(Source::len);
    }
    if purpose == Purpose::Count {
        let mut common = 0;
        intersect(&sources, options.aggregate, |_, _| {
            common += 1;
            common < options.limit
        });
        ctx.reply.integer(common as i64);
        return Ok(Outcome::Replied);
    }
    let mut result = SortedSet::for_result();
    match operation {
        Operation::Union => unite(&sources, options.aggregate, &mut result),
        Operation::Intersection => intersect(&sources, options.aggregate, |score, member| {
            result.put(member, |_| score);
            true
        }),
        Operation::Difference => sources[0].each(|score, member| {
            if sources[1..].iter().all(|source| source.score(member).is_none()) {
                result.put(member, |_| score);
            }
        }),
    }
    if purpose == Purpose::Store {
        let result = result.settle(limits(ctx));
        let event = match operation {
            Operation::Union => "zunionstore",
            Operation::Intersection => "zinterstore",
            Operation::Difference => "zdiffstore",
        };
        let key = ctx.key(1);
        let was_there = ctx.core.keyspace.find(key).is_some();
        let count = store(ctx, key, result, event, 1);
        if options.aggregate == Aggregate::Count {
            // Servers before Redis 8.8 do not know the word.
            repeat_stored(ctx, key, was_there);
        }
        ctx.reply.integer(count as i64);
        return Ok(Outcome::Replied);
    }
    let mut reply = Pairs { reply: &mut ctx.reply, with_scores: options.with_scores };
    let set = result.as_view();
    reply.begin(set.len());
    set.each(0..set.len(), false, |score, member| reply.push(score, member));
    Ok(Outcome::Replied)
}

fn unite(sources: &[Source<'_>], aggregate: Aggregate, result: &mut SortedSet) {
    for source in sources {
        source.each(|score, member| {
            let score = number_or_zero(source.weighted(score, aggregate));
            result.put(member, |old| old.map_or(score, |old| aggregate.apply(old, score)));
        });
    }
}

/// Visits the members that all sources have, until `visit` returns false.
fn intersect(
    sources: &[Source<'_>],
    aggregate: Aggregate,
    mut visit: impl FnMut(f64, &[u8]) -> bool,
) {
    let (smallest, others) = sources.split_first().expect("there is at least one source");
    smallest.each_while(|score, member| {
        let mut total = number_or_zero(smallest.weighted(score, aggregate));
        for other in others {
            let Some(score) = other.score(member) else { return true };
            total = aggregate.apply(total, other.weighted(score, aggregate));
        }
        visit(total, member)
    });
}
