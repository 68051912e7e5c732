//! CLUSTERSCAN: iterates over the keys of a whole cluster, some in each call.
//!
//! A cursor is `fingerprint-{tag}-place`. Its hash tag, which is the shortest key of a slot, leads
//! clients and proxies to the node that owns the slot, as a key would. The place is a position in
//! the order of the slot's keys, which depends on the secret for hashing keys; at a node with
//! another secret, shown by the fingerprint, the slot begins anew. A call covers adjacent slots of
//! one owner; after them the cursor leads to the next owner, and after all slots it is 0. So a key
//! that exists all the time is returned at least once, and exactly once if no slot moves.

use super::enabled::cluster;
use crate::collections::hash_slot::{HashSlot, SLOTS};
use crate::collections::table::Table;
use crate::command::key::scan::ScanOptions;
use crate::error::CommandError;
use crate::resp::reply::{OutputBuffer, ReplyWriter};
use crate::roles::cluster::lists;
use crate::state::context::{CommandResult, Context, Outcome};
use crate::types::Value;

const INVALID: CommandError = CommandError::Text("ERR Invalid cursor");
const OTHER_SLOT: CommandError = CommandError::Text("ERR Cursor slot mismatch with SLOT argument");

/// Keys looked at for each requested one: limits a call whose options want few of them.
const STEPS_PER_KEY: u64 = 10;

/// `CLUSTERSCAN cursor [MATCH pattern] [COUNT count] [TYPE type] [SLOT slot]`: the next cursor and
/// an array of keys.
pub fn scan(ctx: &mut Context<'_>) -> CommandResult {
    cluster(&ctx.core.state)?;
    let options = ScanOptions::parse(ctx, true)?;
    let of_pattern = options.slot_of_pattern();
    let is_nothing = matches!((options.slot, of_pattern), (Some(a), Some(b)) if a != b);
    if ctx.args.get(1) == b"0" {
        let first = HashSlot::new(0).expect("there is a slot 0");
        let slot = options.slot.or(of_pattern).unwrap_or(first);
        return reply_only(ctx, (!is_nothing).then_some(slot));
    }
    let (slot, place) = parse(ctx)?;
    if options.slot.is_some_and(|wanted| wanted != slot) {
        return Err(OTHER_SLOT);
    }
    if let Some(wanted) = of_pattern.filter(|wanted| *wanted != slot) {
        // The cursor never goes back to an earlier slot.
        return reply_only(ctx, (!is_nothing && wanted > slot).then_some(wanted));
    }
    let goes_on = options.slot.is_none() && of_pattern.is_none();
    let last = if goes_on { last_with_owner(ctx, slot)? } else { slot };
    let mut slots = (slot.index()..=last.index()).filter_map(HashSlot::new);
    let has_keys = slots.any(|slot| ctx.core.keyspace.table().count_in_slot(slot) > 0);
    if has_keys && !lists::ask_for_command(ctx) {
        return Ok(Outcome::Postponed);
    }

    let now = ctx.core.keyspace.now();
    let table = ctx.core.keyspace.table();
    let list = table.slot_list();
    let mut found = 0;
    let mut keys = OutputBuffer::default();
    let mut writer = ReplyWriter::new(&mut keys, ctx.reply.protocol());
    let (mut next, mut last_place) = (None, None);
    for (seen, (place, at)) in
        (0u64..).zip(list.into_iter().flat_map(|list| list.keys_from(place, last)))
    {
        let is_enough =
            found >= options.count || seen >= options.count.saturating_mul(STEPS_PER_KEY);
        // Keys of one place come together.
        if is_enough && last_place != Some(place) {
            next = Some(place);
            break;
        }
        last_place = Some(place);
        let entry = table.entry(at);
        if options.wants(&now, &entry) {
            found += 1;
            writer.bulk(entry.key());
        }
    }
    let cursor = match next.and_then(|place| Some((place, Table::<Value>::slot_of_place(place)?))) {
        Some((place, slot)) => format!("{}-{{{}}}-{place}", fingerprint(ctx), slot.tag()),
        None => first_cursor(HashSlot::new(last.index() + 1).filter(|_| goes_on)),
    };
    ctx.reply.array(2);
    ctx.reply.bulk(cursor.as_bytes());
    ctx.reply.array(found as usize);
    ctx.reply.output().append(&keys);
    Ok(Outcome::Replied)
}

/// Replies a cursor for the beginning of a slot, or the last one, without keys.
fn reply_only(ctx: &mut Context<'_>, slot: Option<HashSlot>) -> CommandResult {
    ctx.reply.array(2);
    ctx.reply.bulk(first_cursor(slot).as_bytes());
    ctx.reply.array(0);
    Ok(Outcome::Replied)
}

/// The cursor for the beginning of a slot; without a slot, the last cursor.
fn first_cursor(slot: Option<HashSlot>) -> String {
    slot.map_or_else(|| "0".to_owned(), |slot| format!("0-{{{}}}-0", slot.tag()))
}

/// The slot and the place of the cursor in argument 1.
fn parse(ctx: &Context<'_>) -> Result<(HashSlot, u64), CommandError> {
    let mut parts = ctx.args.get(1).splitn(3, |&byte| byte == b'-');
    let (Some(print), Some(tag), Some(place)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(INVALID);
    };
    let slot = HashSlot::of(tag);
    let is_number = !place.is_empty() && place.iter().all(u8::is_ascii_digit);
    let place = std::str::from_utf8(place).ok().filter(|_| is_number);
    let place: u64 = place.and_then(|place| place.parse().ok()).ok_or(INVALID)?;
    let first = Table::<Value>::first_place(slot);
    let is_known = print == fingerprint(ctx).as_bytes();
    Ok((slot, if is_known { place.max(first) } else { first }))
}

/// The last of the slots from this one on that have the same owner.
fn last_with_owner(ctx: &Context<'_>, slot: HashSlot) -> Result<HashSlot, CommandError> {
    let cluster = cluster(&ctx.core.state)?;
    let owner = cluster.owner(slot);
    let rest = (slot.index() + 1..SLOTS).filter_map(HashSlot::new);
    Ok(rest.take_while(|next| cluster.owner(*next) == owner).last().unwrap_or(slot))
}

/// Six characters for the order of this node's keys.
fn fingerprint(ctx: &Context<'_>) -> String {
    let order = ctx.core.keyspace.table().hash(b"fingerprint") as u32;
    (0..6).rev().map(|digit| char::from(b'0' + (order >> (6 * digit) & 63) as u8)).collect()
}
