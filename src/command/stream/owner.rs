//! OWNER and XGUARD: a consumer that comes back late does no harm to the one that has taken over.
//!
//! A name fences, not the number of deliveries, which XNACK SILENT lowers and JUSTID does not
//! raise. So each worker needs a name of its own.

use super::{parse_ids, stream_spec};
use crate::error::CommandError;
use crate::resp::args::{Args, Cursor};
use crate::state::context::{CommandResult, Context, Outcome};
use crate::state::spec::{CommandSpec, Flags, KeySpec};
use crate::types::stream::{ConsumerId, Group, RELEASED, StreamId};

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    stream_spec("XGUARD", xguard, "0.2.0", Flags::READONLY_FAST.union(Flags::GUARDS)).at_least(5).keys(KeySpec::RO_ACCESS)
        .docs("key group consumer id [id ...]",
            "Returns whether entries are pending for a consumer. EXEC tests it first, and otherwise runs nothing.",
            "O(log N) for each entry, N being the number of pending ones"),
];

/// `OWNER consumer`: the consumer for which entries must be pending. None: for any.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Owner<'a>(Option<&'a [u8]>);

impl<'a> Owner<'a> {
    /// Takes the option if it is next, and arguments follow it. Errors: it is given twice.
    #[inline]
    pub fn take(&mut self, cursor: &mut Cursor<'a>) -> Result<bool, CommandError> {
        if cursor.remaining() < 2 || !cursor.take_word("OWNER") {
            return Ok(false);
        }
        match self.0.replace(cursor.take()?) {
            Some(_) => Err(CommandError::Syntax),
            None => Ok(true),
        }
    }

    /// Whether the option is given.
    pub fn is_given(self) -> bool {
        self.0.is_some()
    }

    /// The test in a group.
    pub fn fence(self, group: &Group) -> Fence {
        match self.0 {
            None => Fence::Open,
            // A released entry is pending for nobody.
            Some(name) if *name == *RELEASED => Fence::Closed,
            Some(name) => group.find_consumer(name).map_or(Fence::Closed, Fence::Only),
        }
    }
}

/// The entries of a group that may be touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fence {
    Open,
    /// Those that are pending for this consumer.
    Only(ConsumerId),
    Closed,
}

impl Fence {
    /// Whether an entry may be touched.
    #[inline]
    pub fn admits(self, group: &Group, id: StreamId) -> bool {
        match self {
            Fence::Open => true,
            Fence::Only(consumer) => {
                group.pending().get(&id).is_some_and(|pending| pending.consumer == consumer)
            }
            Fence::Closed => false,
        }
    }
}

/// `XGUARD key group consumer id [id ...]`: 1 if all of these are pending for the consumer, else 0.
fn xguard(ctx: &mut Context<'_>) -> CommandResult {
    let holds = is_guarded(ctx, ctx.args)?;
    ctx.reply.integer(i64::from(holds));
    Ok(Outcome::Replied)
}

/// Whether the entries that an XGUARD names are pending for its consumer.
pub(in crate::command) fn is_guarded(
    ctx: &mut Context<'_>,
    args: Args<'_>,
) -> Result<bool, CommandError> {
    let ids = parse_ids(args, 4)?;
    let key = ctx.core.keyspace.key(args.get(1));
    let Some(slot) = ctx.core.keyspace.find_for_read(key) else { return Ok(false) };
    let stream = ctx.core.keyspace.stream_at(slot)?;
    let Some(group) = stream.groups.get(args.get(2)) else { return Ok(false) };
    let fence = Owner(Some(args.get(3))).fence(group);
    Ok(ids.into_iter().all(|id| fence.admits(group, id)))
}
