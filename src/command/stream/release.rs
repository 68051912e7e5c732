//! XNACK: a consumer gives pending entries back, without having dealt with them.
//!
//! Released entries have no owner. They may be claimed at once, in the order in which they were
//! released, or after a pause (DELAY). Files and replicas get XCLAIM to a consumer of its own,
//! which Redis 7.0 knows, with the end of the pause as the time of delivery.

use super::claims::Claims;
use super::group::no_key_or_group;
use super::owner::Owner;
use super::{INVALID_ID, stream_spec};
use crate::error::CommandError;
use crate::resp::args::Args;
use crate::resp::number;
use crate::state::context::{CommandResult, Context, Outcome};
use crate::state::spec::{CommandSpec, Flags, KeyFlags, key};
use crate::types::stream::{RELEASED, StreamId};

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    stream_spec("XNACK", xnack, "8.8.0", Flags::WRITE_FAST).at_least(7).keys(&[key(1, KeyFlags::RW_UPDATE)])
        .docs("key group <SILENT | FAIL | FATAL> <IDS numids id [id ...]> [RETRYCOUNT count] [FORCE] [OWNER consumer] [DELAY milliseconds]",
            "Releases pending entries, so that any consumer may claim them.", "O(log N) for each entry, N being the number of pending ones"),
];

const NO_MODE: CommandError = CommandError::Text("ERR ERR mode must be SILENT, FAIL, or FATAL");
const NO_IDS: CommandError = CommandError::Text("ERR ERR syntax error, expected IDS keyword");
const NOT_POSITIVE: CommandError = CommandError::Text("ERR numids must be a positive integer");
const UNEQUAL: CommandError = CommandError::Text("ERR ERR number of IDs doesn't match numids");
const BAD_COUNT: CommandError =
    CommandError::Text("ERR ERR Invalid RETRYCOUNT value, must be >= 0");

/// The longest pause: 100 years.
const DELAY_MS_MAX: i64 = 36_525 * 86_400_000;

/// What a release does to the number of deliveries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// The last delivery does not count.
    Silent,
    Fail,
    /// No number is greater: the entry is for those that look for what cannot be dealt with.
    Fatal,
}

struct Options<'a> {
    mode: Mode,
    ids: Vec<StreamId>,
    deliveries: Option<i64>,
    force: bool,
    owner: Owner<'a>,
    delay_ms: i64,
}

impl<'a> Options<'a> {
    /// `<SILENT | FAIL | FATAL> <IDS numids id [id ...]> [RETRYCOUNT count] [FORCE] [OWNER
    /// consumer] [DELAY milliseconds]`, from argument 3 on. OWNER may also come before IDS.
    fn parse(args: Args<'a>) -> Result<Self, CommandError> {
        let mut cursor = args.cursor(3);
        let mode = match () {
            () if cursor.take_word("SILENT") => Mode::Silent,
            () if cursor.take_word("FAIL") => Mode::Fail,
            () if cursor.take_word("FATAL") => Mode::Fatal,
            () => return Err(NO_MODE),
        };
        let mut owner = Owner::default();
        owner.take(&mut cursor)?;
        if !cursor.take_word("IDS") {
            return Err(NO_IDS);
        }
        let count = cursor.take_positive(NOT_POSITIVE)?;
        if count > cursor.remaining() {
            return Err(UNEQUAL);
        }
        let names: Vec<&[u8]> =
            (0..count).map(|_| cursor.take()).collect::<Result<_, CommandError>>()?;
        let (mut deliveries, mut force, mut delay_ms) = (None, false, 0);
        while !cursor.is_at_end() {
            if cursor.remaining() >= 2 && cursor.take_word("RETRYCOUNT") {
                let count = number::parse_i64(cursor.take()?).filter(|count| *count >= 0);
                deliveries = Some(count.ok_or(BAD_COUNT)?);
            } else if cursor.take_word("FORCE") {
                force = true;
            } else if owner.take(&mut cursor)? {
                continue;
            } else if cursor.remaining() >= 2 && cursor.take_word("DELAY") {
                delay_ms = cursor.take_integer()?;
                if !(0..=DELAY_MS_MAX).contains(&delay_ms) {
                    return Err(CommandError::NotInteger);
                }
            } else {
                let parts: [&[u8]; 3] =
                    [b"ERR ERR Unrecognized XNACK option '", cursor.take()?, b"'"];
                return Err(CommandError::of_parts(&parts));
            }
        }
        if force && owner.is_given() || mode == Mode::Fatal && delay_ms > 0 {
            return Err(CommandError::Syntax);
        }
        let ids = names.iter().map(|name| StreamId::parse(name, 0).ok_or(INVALID_ID));
        let ids = ids.collect::<Result<_, _>>()?;
        Ok(Options { mode, ids, deliveries, force, owner, delay_ms })
    }

    /// The deliveries of a released entry; `before`: those of one that was pending.
    fn deliveries(&self, before: Option<i64>) -> i64 {
        self.deliveries.unwrap_or(match (self.mode, before) {
            (Mode::Fatal, _) => i64::MAX,
            (Mode::Silent, Some(before)) => before.saturating_sub(1).max(0),
            (Mode::Fail, Some(before)) => before,
            (Mode::Silent | Mode::Fail, None) => 0,
        })
    }
}

/// `XNACK key group <SILENT | FAIL | FATAL> <IDS numids id [id ...]> [RETRYCOUNT count] [FORCE]
/// [OWNER consumer] [DELAY milliseconds]`: how many were released. A pending entry that was deleted from the stream is no
/// longer pending then: nobody could claim it.
fn xnack(ctx: &mut Context<'_>) -> CommandResult {
    let (key, name) = (ctx.args.get(1), ctx.args.get(2));
    let (unix_ms, now_ms) = (ctx.core.state.now.unix().0, ctx.core.keyspace.lease_ms());
    let slot = ctx.core.keyspace.find_for_write(ctx.key(1));
    let slot = slot.ok_or_else(|| no_key_or_group(key, name, ""))?;
    if !ctx.core.keyspace.stream_at(slot)?.groups.contains_key(name) {
        return Err(no_key_or_group(key, name, ""));
    }
    let options = Options::parse(ctx.args)?;
    let mut claims = Claims::new(ctx, key, name);
    let (entries, groups) = ctx.core.keyspace.groups_mut(slot)?;
    let group = groups.get_mut(name).ok_or_else(|| no_key_or_group(key, name, ""))?;
    let fence = options.owner.fence(group);
    let from_ms = (options.delay_ms > 0).then(|| now_ms.saturating_add(options.delay_ms));
    let mut released = 0;
    for &id in &options.ids {
        if !fence.admits(group, id) {
            continue;
        }
        let before = group.pending().get(&id).copied();
        match (before, entries.contains(id)) {
            (Some(before), false) => {
                // Repeated as a claim of its consumer, which then finds that it is deleted.
                claims.assigned(&group.consumer(before.consumer).name, id, before, group.last);
                group.acknowledge(id);
            }
            (before, true) if before.is_some() || options.force => {
                let deliveries = options.deliveries(before.map(|before| before.deliveries));
                let pending = group.release(id, deliveries, from_ms, unix_ms);
                group.consumer_mut(pending.consumer).active_ms = Some(unix_ms);
                claims.assigned(RELEASED, id, pending, group.last);
            }
            _ => continue,
        }
        released += 1;
    }
    if released > 0 {
        claims.repeat(ctx, true);
        ctx.core.keyspace.changed_aside(key, released);
        ctx.core.keyspace.pending_changed(key);
    }
    ctx.reply.integer(released as i64);
    Ok(Outcome::Replied)
}
