//! CLUSTER SLOT-STATS: keys and costs of the slots of this node's shard.

use std::cmp::Reverse;

use super::enabled::{cluster, slot as slot_of_text};
use crate::collections::hash_slot::{HashSlot, SLOTS};
use crate::error::CommandError;
use crate::gate::slot_costs;
use crate::keyspace::DbIndex;
use crate::state::context::{CommandResult, Context, Outcome};
use crate::stats::slots::SlotCosts;

const BAD_METRIC: CommandError = CommandError::Text("ERR Unrecognized sort metric for ORDERBY.");
const BAD_LIMIT: CommandError =
    CommandError::Text("ERR Limit has to lie in between 1 and 16384 (maximum number of slots).");
const TWICE: CommandError =
    CommandError::Text("ERR Multiple filters of the same type are disallowed.");

/// The figure by which slots are sorted.
#[derive(Clone, Copy)]
enum Metric {
    Keys,
    Cpu,
    BytesIn,
    BytesOut,
}

/// `CLUSTER SLOT-STATS SLOTSRANGE start-slot end-slot`, or `ORDERBY metric [LIMIT limit] [ASC |
/// DESC]`: an array of `[slot, map of its figures]`.
pub fn slot_stats(ctx: &mut Context<'_>) -> CommandResult {
    cluster(&ctx.core.state)?;
    slot_costs::follow_owners(&mut ctx.core.state);
    let mut arguments = ctx.args.cursor(2);
    if ctx.args.len() == 5 && arguments.take_word("SLOTSRANGE") {
        let (first, last) = (slot_of_text(ctx.args.get(3))?, slot_of_text(ctx.args.get(4))?);
        if first > last {
            let (first, last) = (first.number(), last.number());
            return Err(CommandError::formatted(format!(
                "ERR Start slot number {first} is greater than end slot number {last}"
            )));
        }
        let slots = own_slots(ctx)?.into_iter().filter(|slot| (first..=last).contains(slot));
        let slots: Vec<HashSlot> = slots.collect();
        reply(ctx, &slots);
    } else if arguments.take_word("ORDERBY") {
        let (metric, limit, is_falling) = parse_order(ctx)?;
        let mut slots = own_slots(ctx)?;
        match is_falling {
            true => slots.sort_by_key(|slot| Reverse(figure(ctx, metric, *slot))),
            false => slots.sort_by_key(|slot| figure(ctx, metric, *slot)),
        }
        slots.truncate(limit);
        reply(ctx, &slots);
    } else {
        return Err(ctx.wrong_subcommand());
    }
    Ok(Outcome::Replied)
}

/// `ORDERBY metric [LIMIT limit] [ASC | DESC]`: the metric, the limit, and whether the greatest
/// come first.
fn parse_order(ctx: &Context<'_>) -> Result<(Metric, usize, bool), CommandError> {
    let is_counted = slot_costs::are_counted(&ctx.core.state);
    let mut arguments = ctx.args.cursor(3);
    let metric = match () {
        () if arguments.take_word("KEY-COUNT") => Metric::Keys,
        () if is_counted && arguments.take_word("CPU-USEC") => Metric::Cpu,
        () if is_counted && arguments.take_word("NETWORK-BYTES-IN") => Metric::BytesIn,
        () if is_counted && arguments.take_word("NETWORK-BYTES-OUT") => Metric::BytesOut,
        () => return Err(BAD_METRIC),
    };
    let (mut limit, mut is_falling) = (None, None);
    while !arguments.is_at_end() {
        let is_again = if arguments.remaining() > 1 && arguments.take_word("LIMIT") {
            let number = usize::try_from(arguments.take_integer().map_err(|_| BAD_LIMIT)?).ok();
            let number = number.filter(|number| (1..=SLOTS).contains(number)).ok_or(BAD_LIMIT)?;
            limit.replace(number).is_some()
        } else if arguments.take_word("ASC") {
            is_falling.replace(false).is_some()
        } else if arguments.take_word("DESC") {
            is_falling.replace(true).is_some()
        } else {
            return Err(CommandError::Syntax);
        };
        if is_again {
            return Err(TWICE);
        }
    }
    Ok((metric, limit.unwrap_or(SLOTS), is_falling.unwrap_or(true)))
}

/// The slots of this node's shard, in order.
fn own_slots(ctx: &Context<'_>) -> Result<Vec<HashSlot>, CommandError> {
    let cluster = cluster(&ctx.core.state)?;
    let myself = cluster.myself();
    let primary = if myself.is_primary() {
        Some(myself)
    } else {
        myself.primary.map(|index| cluster.node(index))
    };
    Ok(primary.map_or_else(Vec::new, |primary| primary.slots.iter().collect()))
}

fn costs(ctx: &Context<'_>, slot: HashSlot) -> SlotCosts {
    ctx.core.state.node.slot_stats.as_ref().map_or_else(SlotCosts::default, |stats| stats.get(slot))
}

/// Keys of a slot in all databases.
fn keys(ctx: &Context<'_>, slot: HashSlot) -> u64 {
    let databases = DbIndex::all(ctx.core.keyspace.databases());
    databases.map(|database| ctx.core.keyspace.count_in_slot(database, slot) as u64).sum()
}

fn figure(ctx: &Context<'_>, metric: Metric, slot: HashSlot) -> u64 {
    match metric {
        Metric::Keys => keys(ctx, slot),
        Metric::Cpu => costs(ctx, slot).cpu_us,
        Metric::BytesIn => costs(ctx, slot).bytes_in,
        Metric::BytesOut => costs(ctx, slot).bytes_out,
    }
}

fn reply(ctx: &mut Context<'_>, slots: &[HashSlot]) {
    let is_counted = slot_costs::are_counted(&ctx.core.state);
    ctx.reply.array(slots.len());
    for &slot in slots {
        let keys = keys(ctx, slot);
        let costs = costs(ctx, slot);
        let figures = [
            ("key-count", keys),
            ("cpu-usec", costs.cpu_us),
            ("network-bytes-in", costs.bytes_in),
            ("network-bytes-out", costs.bytes_out),
        ];
        let figures = &figures[..if is_counted { 4 } else { 1 }];
        ctx.reply.array(2);
        ctx.reply.integer(slot.number().into());
        ctx.reply.map(figures.len());
        for (name, value) in figures {
            ctx.reply.bulk(name.as_bytes());
            ctx.reply.integer(*value as i64);
        }
    }
}
