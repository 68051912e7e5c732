//! Lists: the non-blocking commands. Blocking ones are in `list/blocking.rs`,
//! moves of several elements in `list/batch.rs`.
//!
//! Elements are copied from the request into the list and from the list into the reply without a
//! copy in between, except for LMOVE. Each command reads `list-max-listpack-size`, which decides
//! the list's form.

pub(crate) mod batch;
pub(crate) mod blocking;

use crate::collections::lent::Lender;
use crate::collections::packed::Element;
use crate::collections::table::Slot;
use crate::config::KeyspaceEvents;
use crate::error::CommandError;
use crate::keyspace::Key;
use crate::resp::args::{Args, BadKeyCount, Cursor};
use crate::resp::number::parse_i64;
use crate::resp::reply::ReplyWriter;
use crate::state::context::{CommandResult, Context, Outcome};
use crate::state::spec::{
    CommandSpec, Flags, Group, Handler, KeyFlags, KeySpec, counted_keys, key, spec,
};
use crate::types::journal::Edit;
use crate::types::list::{End, Limits, List, ListView};

/// A source that is popped from and a destination that is pushed to.
pub(crate) const MOVE: &[KeySpec] =
    &[key(1, KeyFlags::RW_ACCESS_DELETE), key(2, KeyFlags::RW_INSERT)];

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    push("LPUSH", lpush, "1.0.0")
        .docs("key element [element ...]", "Adds elements at the front of a list, creating it if necessary.", "O(N) for N elements"),
    push("RPUSH", rpush, "1.0.0")
        .docs("key element [element ...]", "Adds elements at the end of a list, creating it if necessary.", "O(N) for N elements"),
    push("LPUSHX", lpushx, "2.2.0")
        .docs("key element [element ...]", "Adds elements at the front of a list if it exists.", "O(N) for N elements"),
    push("RPUSHX", rpushx, "2.2.0")
        .docs("key element [element ...]", "Adds elements at the end of a list if it exists.", "O(N) for N elements"),
    pop("LPOP", lpop)
        .docs("key [count]", "Removes and returns the first elements of a list.", "O(N) for N elements"),
    pop("RPOP", rpop)
        .docs("key [count]", "Removes and returns the last elements of a list, the last one first.", "O(N) for N elements"),
    list_spec("LLEN", llen, "1.0.0", Flags::READONLY_FAST).exactly(2).keys(&[key(1, KeyFlags::RO)])
        .docs("key", "Counts the elements of a list.", "O(1)"),
    list_spec("LRANGE", lrange, "1.0.0", Flags::READONLY).exactly(4).keys(&[key(1, KeyFlags::RO_ACCESS)])
        .docs("key start stop", "Returns a part of a list.", "O(S+N) where S is the way to the part from the nearer end, and N the part's length"),
    list_spec("LINDEX", lindex, "1.0.0", Flags::READONLY).exactly(3).keys(&[key(1, KeyFlags::RO_ACCESS)])
        .docs("key index", "Returns one element of a list.", "O(N) where N is the way to the element from the nearer end"),
    list_spec("LSET", lset, "1.0.0", Flags::WRITE_DENYOOM).exactly(4).keys(&[key(1, KeyFlags::RW_UPDATE)])
        .docs("key index element", "Replaces one element of a list.", "O(N) where N is the way to the element from the nearer end"),
    list_spec("LINSERT", linsert, "2.2.0", Flags::WRITE_DENYOOM).exactly(5).keys(&[key(1, KeyFlags::RW_INSERT)])
        .docs("key <BEFORE | AFTER> pivot element", "Adds an element before or after the first one with a given value.",
            "O(N) where N is the way to that element from the front"),
    list_spec("LREM", lrem, "1.0.0", Flags::WRITE).exactly(4).keys(KeySpec::RW_DELETE)
        .docs("key count element", "Removes elements with a given value, beginning at the front or at the end.", "O(N) where N is the length of the list"),
    list_spec("LTRIM", ltrim, "1.0.0", Flags::WRITE).exactly(4).keys(KeySpec::RW_DELETE)
        .docs("key start stop", "Removes all elements outside of a part of a list.", "O(N) where N is the number of elements removed"),
    list_spec("LPOS", lpos, "6.0.6", Flags::READONLY).at_least(3).keys(&[key(1, KeyFlags::RO_ACCESS)])
        .docs("key element [RANK rank] [COUNT num-matches] [MAXLEN len]", "Returns the indexes of an element in a list.",
            "O(N) where N is the number of elements compared"),
    list_spec("LMOVE", lmove, "6.2.0", Flags::WRITE_DENYOOM).exactly(5).keys(MOVE)
        .docs("source destination <LEFT | RIGHT> <LEFT | RIGHT>", "Moves an element from an end of a list to an end of another and returns it.", "O(1)"),
    list_spec("RPOPLPUSH", rpoplpush, "1.2.0", Flags::WRITE_DENYOOM).exactly(3).keys(MOVE).deprecated("6.2.0", "`LMOVE` with the `RIGHT` and `LEFT` arguments")
        .docs("source destination", "Moves the last element of a list to the front of another and returns it.", "O(1)"),
    list_spec("LMPOP", lmpop, "7.0.0", Flags::WRITE).at_least(4).keys(&[counted_keys(1, KeyFlags::RW_ACCESS_DELETE)])
        .docs("numkeys key [key ...] <LEFT | RIGHT> [COUNT count]", "Removes and returns elements of the first list that exists.",
            "O(N+M) where N is the number of keys and M that of the elements"),
];

/// Starts a line in a table of list commands.
pub(crate) const fn list_spec(
    name: &'static str,
    handler: Handler,
    since: &'static str,
    flags: Flags,
) -> CommandSpec {
    spec(name, handler).group(Group::List).since(since).flags(flags)
}

const fn push(name: &'static str, handler: Handler, since: &'static str) -> CommandSpec {
    list_spec(name, handler, since, Flags::WRITE_DENYOOM_FAST).at_least(3).keys(KeySpec::RW_INSERT)
}

const fn pop(name: &'static str, handler: Handler) -> CommandSpec {
    list_spec(name, handler, "1.0.0", Flags::WRITE_FAST).at_least(2).keys(KeySpec::RW_ACCESS_DELETE)
}

pub(crate) fn limits(ctx: &Context<'_>) -> Limits {
    Limits::from_setting(ctx.core.state.config.list_max_listpack_size)
}

/// An element as a bulk string.
#[inline]
fn reply_element(reply: &mut ReplyWriter<'_>, element: Element<'_>) {
    match element {
        Element::Bytes(bytes) => reply.bulk(bytes),
        Element::Integer(value) => reply.bulk_integer(value),
    }
}

/// As [`reply_element`]; a long element is lent.
#[inline]
fn lend_element<'e>(
    reply: &mut ReplyWriter<'_>,
    element: Element<'e>,
    lender: &mut Lender<'e, '_>,
) {
    match element {
        Element::Bytes(bytes) => reply.bulk_or_lent(bytes, lender),
        Element::Integer(value) => reply.bulk_integer(value),
    }
}

fn reply_all<'e>(reply: &mut ReplyWriter<'_>, elements: impl Iterator<Item = Element<'e>>) {
    elements.for_each(|element| reply_element(reply, element));
}

/// The event of a push to this end.
fn push_event(end: End) -> &'static str {
    match end {
        End::Front => "lpush",
        End::Back => "rpush",
    }
}

/// The event of a pop from this end.
fn pop_event(end: End) -> &'static str {
    match end {
        End::Front => "lpop",
        End::Back => "rpop",
    }
}

/// Records that `count` elements of a list changed.
fn changed(ctx: &mut Context<'_>, event: &'static str, key: Key<'_>, count: usize) {
    ctx.core.keyspace.changed_by(count as u64, KeyspaceEvents::LIST, event, key.bytes);
}

// ---- push and pop -------------------------------------------------------------------------------

/// `LPUSH key element [element ...]`: the new length.
fn lpush(ctx: &mut Context<'_>) -> CommandResult {
    push_all(ctx, End::Front, true)
}

/// `RPUSH key element [element ...]`: the new length.
fn rpush(ctx: &mut Context<'_>) -> CommandResult {
    push_all(ctx, End::Back, true)
}

/// `LPUSHX key element [element ...]`: the new length; 0 without a list.
fn lpushx(ctx: &mut Context<'_>) -> CommandResult {
    push_all(ctx, End::Front, false)
}

/// `RPUSHX key element [element ...]`: the new length; 0 without a list.
fn rpushx(ctx: &mut Context<'_>) -> CommandResult {
    push_all(ctx, End::Back, false)
}

fn push_all(ctx: &mut Context<'_>, end: End, create: bool) -> CommandResult {
    let key = ctx.key(1);
    let found = ctx.core.keyspace.slot_of::<List>(key)?;
    if found.is_none() && !create {
        ctx.reply.integer(0);
        return Ok(Outcome::Replied);
    }
    let elements = ctx.args.iter_from(2);
    let count = elements.len();
    let length = push_elements(ctx, found, key, end, elements);
    changed(ctx, push_event(end), key, count);
    ctx.reply.integer(length as i64);
    Ok(Outcome::Replied)
}

/// Adds elements to a looked-up list, creating it if absent. Returns the new length.
pub(super) fn push_elements<'e>(
    ctx: &mut Context<'_>,
    found: Option<Slot>,
    key: Key<'_>,
    end: End,
    elements: impl ExactSizeIterator<Item = &'e [u8]> + Clone,
) -> usize {
    let limits = limits(ctx);
    let add = |list: &mut Edit<'_, List>| {
        let count = elements.len();
        let bytes = elements.clone().map(<[u8]>::len).sum();
        list.make_room(bytes, count, &limits);
        elements.for_each(|element| list.push(end, element, &limits));
        list.len()
    };
    match found {
        Some(slot) => ctx.core.keyspace.edit(slot, add),
        None => {
            let mut list = List::default();
            let length = add(&mut Edit::unnoted(&mut list));
            ctx.core.keyspace.insert_collection(key, list);
            length
        }
    }
}

/// `LPOP key [count]`: the element or nil; with a count, an array or a nil array.
fn lpop(ctx: &mut Context<'_>) -> CommandResult {
    pop_some(ctx, End::Front)
}

/// `RPOP key [count]`: the element or nil; with a count, an array or a nil array.
fn rpop(ctx: &mut Context<'_>) -> CommandResult {
    pop_some(ctx, End::Back)
}

fn pop_some(ctx: &mut Context<'_>, end: End) -> CommandResult {
    let count = match ctx.args.len() {
        2 => None,
        3 => Some(parse_count(ctx.args.get(2))?),
        _ => return Err(CommandError::WrongArity(ctx.name().into())),
    };
    let key = ctx.key(1);
    let Some(slot) = ctx.core.keyspace.slot_of::<List>(key)? else {
        match count {
            Some(_) => ctx.reply.null_array(),
            None => ctx.reply.null(),
        }
        return Ok(Outcome::Replied);
    };
    match count {
        None => pop_one(ctx, slot, key, end),
        Some(0) => ctx.reply.array(0),
        Some(count) => _ = pop_array(ctx, slot, key, end, count),
    }
    Ok(Outcome::Replied)
}

/// A count of elements, at least 0.
fn parse_count(text: &[u8]) -> Result<usize, CommandError> {
    let count = parse_i64(text).and_then(|count| usize::try_from(count).ok());
    count.ok_or(CommandError::ValueOutOfRange("must be positive"))
}

/// Pops the element at an end of a list and replies it.
pub(crate) fn pop_one(ctx: &mut Context<'_>, slot: Slot, key: Key<'_>, end: End) {
    let limits = limits(ctx);
    let reply = &mut ctx.reply;
    ctx.core.keyspace.edit(slot, |list: &mut Edit<'_, List>| {
        list.pop(end, |element| reply_element(reply, element));
        list.settle(&limits);
    });
    popped(ctx, slot, key, end, 1);
}

/// Pops up to `count` elements, at least one, from an end of a list and replies them as an array.
/// Returns their number.
fn pop_array(ctx: &mut Context<'_>, slot: Slot, key: Key<'_>, end: End, count: usize) -> usize {
    let limits = limits(ctx);
    let reply = &mut ctx.reply;
    let count = ctx.core.keyspace.edit(slot, |list: &mut Edit<'_, List>| {
        let view = list.as_view();
        let count = count.min(view.len());
        reply.array(count);
        match end {
            End::Front => reply_all(reply, view.forwards(0).take(count)),
            End::Back => reply_all(reply, view.backwards(view.len()).take(count)),
        }
        list.drop_many(end, count);
        list.settle(&limits);
        count
    });
    popped(ctx, slot, key, end, count);
    count
}

/// The command that pops from an end.
pub(crate) fn pop_command(end: End) -> &'static [u8] {
    match end {
        End::Front => b"LPOP",
        End::Back => b"RPOP",
    }
}

/// The same for LMPOP and BLMPOP: with the key's name before the array.
pub(crate) fn pop_named_array(
    ctx: &mut Context<'_>,
    slot: Slot,
    key: Key<'_>,
    end: End,
    count: usize,
) {
    ctx.reply.array(2);
    ctx.reply.bulk(key.bytes);
    let count = pop_array(ctx, slot, key, end, count);
    ctx.instead_with(&[pop_command(end), key.bytes], count as i64);
}

fn popped(ctx: &mut Context<'_>, slot: Slot, key: Key<'_>, end: End, count: usize) {
    changed(ctx, pop_event(end), key, count);
    ctx.core.keyspace.delete_if_empty::<List>(slot, key);
}

// ---- reading ------------------------------------------------------------------------------------

/// `LLEN key`: 0 without a list.
fn llen(ctx: &mut Context<'_>) -> CommandResult {
    let length = ctx.core.keyspace.read::<List>(ctx.key(1))?.map_or(0, |list| list.len());
    ctx.reply.integer(length as i64);
    Ok(Outcome::Replied)
}

/// `LRANGE key start stop`: an array.
fn lrange(ctx: &mut Context<'_>) -> CommandResult {
    let (start, stop) = (ctx.args.integer(2)?, ctx.args.integer(3)?);
    let key = ctx.key(1);
    let Context { core, reply, .. } = ctx;
    let read = core.keyspace.lend_read::<List, _>(key, |list, lender| {
        let range = resolve_range(start, stop, list.len());
        reply.array(range.len());
        let elements = list.forwards(range.start).take(range.len());
        elements.for_each(|element| lend_element(reply, element, lender));
    })?;
    if read.is_none() {
        reply.array(0);
    }
    Ok(Outcome::Replied)
}

/// The elements between two indexes, both included, negative ones counted from the end.
fn resolve_range(start: i64, stop: i64, length: usize) -> std::ops::Range<usize> {
    let length = length as i64;
    let from_end = |index: i64| if index < 0 { index + length } else { index };
    let start = from_end(start).max(0);
    let stop = from_end(stop).min(length - 1);
    if start > stop {
        return 0..0;
    }
    start as usize..stop as usize + 1
}

/// The position of an index; None if it is out of range.
fn resolve_index(index: i64, length: usize) -> Option<usize> {
    let index = if index < 0 { index + length as i64 } else { index };
    usize::try_from(index).ok().filter(|&index| index < length)
}

/// `LINDEX key index`: the element or nil. Without a list the index is not checked.
fn lindex(ctx: &mut Context<'_>) -> CommandResult {
    let (args, key) = (ctx.args, ctx.key(1));
    let Context { core, reply, .. } = ctx;
    let read: Option<Result<(), CommandError>> =
        core.keyspace.lend_read::<List, _>(key, |list, lender| {
            let index = resolve_index(args.integer(2)?, list.len());
            match index.and_then(|index| list.get(index)) {
                Some(element) => lend_element(reply, element, lender),
                None => reply.null(),
            }
            Ok(())
        })?;
    match read {
        Some(read) => read?,
        None => reply.null(),
    }
    Ok(Outcome::Replied)
}

/// Options of `LPOS key element [RANK rank] [COUNT num-matches] [MAXLEN len]`.
struct PositionOptions {
    /// Matches to skip.
    skipped: usize,
    from: End,
    /// None: reply a single index.
    count: Option<usize>,
    /// Elements to compare.
    most: usize,
}

impl PositionOptions {
    fn parse(mut args: Cursor<'_>) -> Result<Self, CommandError> {
        const RANK_IS_ZERO: CommandError = CommandError::Text(
            "ERR RANK can't be zero: use 1 to start from the first match, 2 from the second ... or use negative to \
             start from the end of the list",
        );
        let mut options =
            PositionOptions { skipped: 0, from: End::Front, count: None, most: usize::MAX };
        let mut has_rank_without_opposite = false;
        let number = |args: &mut Cursor<'_>, error| {
            let number = parse_i64(args.take()?).and_then(|number| usize::try_from(number).ok());
            number.ok_or(CommandError::Text(error))
        };
        while !args.is_at_end() {
            let has_more = args.remaining() > 1;
            if has_more && args.take_word("RANK") {
                let rank = args.take_integer()?;
                has_rank_without_opposite |= rank == i64::MIN;
                let number = usize::try_from(rank.unsigned_abs()).unwrap_or(usize::MAX);
                options.skipped = number.checked_sub(1).ok_or(RANK_IS_ZERO)?;
                options.from = if rank < 0 { End::Back } else { End::Front };
            } else if has_more && args.take_word("COUNT") {
                options.count = Some(number(&mut args, "ERR COUNT can't be negative")?);
            } else if has_more && args.take_word("MAXLEN") {
                options.most = match number(&mut args, "ERR MAXLEN can't be negative")? {
                    0 => usize::MAX,
                    most => most,
                };
            } else {
                return Err(CommandError::Syntax);
            }
        }
        if has_rank_without_opposite {
            // Redis 7.0 finds the first match, so other options' errors come first.
            return Err(CommandError::ValueOutOfRange(
                "value must between -9223372036854775807 and 9223372036854775807",
            ));
        }
        Ok(options)
    }

    /// The indices of an element, as requested.
    fn matches(
        &self,
        list: ListView<'_>,
        element: Element<'_>,
        mut show: impl FnMut(usize),
    ) -> usize {
        let length = list.len();
        let wanted = match self.count {
            None => 1,
            Some(0) => usize::MAX,
            Some(count) => count,
        };
        let walk = |elements: &mut dyn Iterator<Item = Element<'_>>,
                    show: &mut dyn FnMut(usize)| {
            let found = elements.take(self.most).enumerate().filter(|(_, other)| *other == element);
            found.skip(self.skipped).take(wanted).map(|(number, _)| show(number)).count()
        };
        match self.from {
            End::Front => walk(&mut list.forwards(0), &mut show),
            End::Back => walk(&mut list.backwards(length), &mut |number| show(length - 1 - number)),
        }
    }
}

/// `LPOS key element [RANK rank] [COUNT num-matches] [MAXLEN len]`: an index or nil; with COUNT, an
/// array.
fn lpos(ctx: &mut Context<'_>) -> CommandResult {
    let options = PositionOptions::parse(ctx.args.cursor(3))?;
    let element = Element::new(ctx.args.get(2));
    let list = ctx.core.keyspace.read::<List>(ctx.key(1))?;
    let reply = &mut ctx.reply;
    match (list, options.count) {
        (Some(list), Some(_)) => {
            let array = reply.defer_array();
            let count = options.matches(list, element, |index| reply.integer(index as i64));
            reply.finish(array, count);
        }
        (Some(list), None) => {
            if options.matches(list, element, |index| reply.integer(index as i64)) == 0 {
                reply.null();
            }
        }
        (None, Some(_)) => reply.array(0),
        (None, None) => reply.null(),
    }
    Ok(Outcome::Replied)
}

// ---- changing in the middle ---------------------------------------------------------------------

/// `LSET key index element`: OK.
fn lset(ctx: &mut Context<'_>) -> CommandResult {
    let key = ctx.key(1);
    let slot = ctx.core.keyspace.slot_of::<List>(key)?.ok_or(CommandError::NoSuchKey)?;
    let (index, text) = (ctx.args.integer(2)?, ctx.args.get(3));
    let limits = limits(ctx);
    let set = ctx.core.keyspace.edit(slot, |list: &mut Edit<'_, List>| {
        // Looked up first: a failing command must not change the form.
        let Some(index) = resolve_index(index, list.len()) else { return false };
        list.make_room(text.len(), 1, &limits);
        let set = list.set(index, text, &limits);
        if set {
            list.settle(&limits);
        }
        set
    });
    if !set {
        return Err(CommandError::IndexOutOfRange);
    }
    changed(ctx, "lset", key, 1);
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// `LINSERT key <BEFORE | AFTER> pivot element`: the new length; -1 without the pivot, 0 without a
/// list.
fn linsert(ctx: &mut Context<'_>) -> CommandResult {
    let behind = match ctx.args.get(2) {
        word if word.eq_ignore_ascii_case(b"AFTER") => true,
        word if word.eq_ignore_ascii_case(b"BEFORE") => false,
        _ => return Err(CommandError::Syntax),
    };
    let key = ctx.key(1);
    let Some(slot) = ctx.core.keyspace.slot_of::<List>(key)? else {
        ctx.reply.integer(0);
        return Ok(Outcome::Replied);
    };
    let (pivot, text) = (ctx.args.get(3), ctx.args.get(4));
    let limits = limits(ctx);
    let length = ctx.core.keyspace.edit(slot, |list: &mut Edit<'_, List>| {
        // Without the pivot nothing may change, not even the form, because nothing is replicated
        // elsewhere.
        let is_pivot = |element| element == Element::new(pivot);
        if list.outgrows(text.len(), 1, &limits) && !list.as_view().forwards(0).any(is_pivot) {
            return None;
        }
        list.make_room(text.len(), 1, &limits);
        list.insert(pivot, behind, text, &limits).then(|| list.len())
    });
    if length.is_some() {
        changed(ctx, "linsert", key, 1);
    }
    ctx.reply.integer(length.map_or(-1, |length| length as i64));
    Ok(Outcome::Replied)
}

/// `LREM key count element`: the number of removed elements. A negative count begins at the back, 0
/// means all.
fn lrem(ctx: &mut Context<'_>) -> CommandResult {
    let count = ctx.args.integer(2)?;
    let key = ctx.key(1);
    let Some(slot) = ctx.core.keyspace.slot_of::<List>(key)? else {
        ctx.reply.integer(0);
        return Ok(Outcome::Replied);
    };
    let end = if count < 0 { End::Back } else { End::Front };
    let most = match count.unsigned_abs() {
        0 => usize::MAX,
        most => usize::try_from(most).unwrap_or(usize::MAX),
    };
    let text = ctx.args.get(3);
    let limits = limits(ctx);
    let removed = ctx.core.keyspace.edit(slot, |list: &mut Edit<'_, List>| {
        let removed = list.remove(end, text, most, &limits);
        list.settle(&limits);
        removed
    });
    if removed > 0 {
        changed(ctx, "lrem", key, removed);
        ctx.core.keyspace.delete_if_empty::<List>(slot, key);
    }
    ctx.reply.integer(removed as i64);
    Ok(Outcome::Replied)
}

/// `LTRIM key start stop`: OK.
fn ltrim(ctx: &mut Context<'_>) -> CommandResult {
    let (start, stop) = (ctx.args.integer(2)?, ctx.args.integer(3)?);
    let key = ctx.key(1);
    if let Some(slot) = ctx.core.keyspace.slot_of::<List>(key)? {
        let limits = limits(ctx);
        let removed = ctx.core.keyspace.edit(slot, |list: &mut Edit<'_, List>| {
            let length = list.len();
            let kept = resolve_range(start, stop, length);
            list.drop_many(End::Back, length - kept.end);
            list.drop_many(End::Front, kept.start);
            list.settle(&limits);
            length - kept.len()
        });
        changed(ctx, "ltrim", key, removed);
        ctx.core.keyspace.delete_if_empty::<List>(slot, key);
    }
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

// ---- from list to list --------------------------------------------------------------------------

/// Parses LEFT or RIGHT.
pub(crate) fn parse_end(word: &[u8]) -> Result<End, CommandError> {
    if word.eq_ignore_ascii_case(b"LEFT") {
        Ok(End::Front)
    } else if word.eq_ignore_ascii_case(b"RIGHT") {
        Ok(End::Back)
    } else {
        Err(CommandError::Syntax)
    }
}

/// `LMOVE source destination <LEFT | RIGHT> <LEFT | RIGHT>`: the element or nil.
fn lmove(ctx: &mut Context<'_>) -> CommandResult {
    let (from, to) = (parse_end(ctx.args.get(3))?, parse_end(ctx.args.get(4))?);
    move_or_null(ctx, from, to)
}

/// `RPOPLPUSH source destination`: the element or nil.
fn rpoplpush(ctx: &mut Context<'_>) -> CommandResult {
    move_or_null(ctx, End::Back, End::Front)
}

fn move_or_null(ctx: &mut Context<'_>, from: End, to: End) -> CommandResult {
    match ctx.core.keyspace.slot_of::<List>(ctx.key(1))? {
        Some(source) => move_one(ctx, source, from, to),
        None => {
            ctx.reply.null();
            Ok(Outcome::Replied)
        }
    }
}

/// Pops an element from an end of the list at `source`, the first key, pushes it to an end of the
/// second key's, and replies it.
pub(crate) fn move_one(ctx: &mut Context<'_>, source: Slot, from: End, to: End) -> CommandResult {
    let (key, target) = (ctx.key(1), ctx.key(2));
    let destination = ctx.core.keyspace.slot_of::<List>(target)?;
    let limits = limits(ctx);
    let pop = |list: &mut Edit<'_, List>| {
        let element = list.pop(from, |element| element.text().as_ref().to_vec());
        (element.unwrap_or_default(), list.is_empty())
    };
    let mut is_emptied = false;
    let element = if destination == Some(source) {
        ctx.core.keyspace.edit(source, |list: &mut Edit<'_, List>| {
            let (element, _) = pop(list);
            list.make_room(element.len(), 1, &limits);
            list.push(to, &element, &limits);
            list.settle(&limits);
            element
        })
    } else {
        let (element, is_empty) = ctx.core.keyspace.edit(source, |list: &mut Edit<'_, List>| {
            let popped = pop(list);
            list.settle(&limits);
            popped
        });
        is_emptied = is_empty;
        push_elements(ctx, destination, target, to, [&element[..]].into_iter());
        element
    };
    changed(ctx, push_event(to), target, 0);
    changed(ctx, pop_event(from), key, 1);
    if is_emptied {
        // A new destination may have moved the source.
        let slot = ctx.core.keyspace.find(key).expect("an emptied list stays until it is deleted");
        ctx.core.keyspace.delete_if_empty::<List>(slot, key);
    }
    ctx.reply.bulk(&element);
    Ok(Outcome::Replied)
}

// ---- several lists ------------------------------------------------------------------------------

/// Options of LMPOP and BLMPOP.
pub(crate) struct MultiPop {
    /// The indices of the key arguments.
    pub keys: std::ops::Range<usize>,
    pub end: End,
    pub count: usize,
}

impl MultiPop {
    /// Parses `numkeys key [key ...] <LEFT | RIGHT> [COUNT count]` from argument `at` on.
    pub(crate) fn parse(args: Args<'_>, at: usize) -> Result<Self, CommandError> {
        let mut cursor = args.cursor(at);
        let keys = cursor.take_keys(1, 1).map_err(|bad| match bad {
            BadKeyCount::TooLarge(_) => CommandError::Syntax,
            BadKeyCount::NotInteger | BadKeyCount::TooSmall => CommandError::FEW_KEYS,
        })?;
        let end = parse_end(cursor.take()?)?;
        let mut count = None;
        while !cursor.is_at_end() {
            if count.is_some() || cursor.remaining() < 2 || !cursor.take_word("COUNT") {
                return Err(CommandError::Syntax);
            }
            count = Some(cursor.take_positive(CommandError::SMALL_COUNT)?);
        }
        Ok(MultiPop { keys, end, count: count.unwrap_or(1) })
    }
}

/// `LMPOP numkeys key [key ...] <LEFT | RIGHT> [COUNT count]`: the key and an array of elements, or
/// a nil array.
fn lmpop(ctx: &mut Context<'_>) -> CommandResult {
    let MultiPop { keys, end, count } = MultiPop::parse(ctx.args, 1)?;
    for index in keys {
        let key = ctx.key(index);
        if let Some(slot) = ctx.core.keyspace.slot_of::<List>(key)? {
            pop_named_array(ctx, slot, key, end, count);
            return Ok(Outcome::Replied);
        }
    }
    ctx.reply.null_array();
    Ok(Outcome::Replied)
}
