//! The options of XREADGROUP that Redis does not have: DUE, MAXDELIVERIES and DEADLETTER. What they
//! ask for happens before a stream is read.

use super::bury::{self, Limit};
use crate::command::sorted_set::due::{self, DueMove};
use crate::error::CommandError;
use crate::gate::evict;
use crate::gate::keys::ReadOption;
use crate::keyspace::due::Unit;
use crate::resp::args::{Args, Cursor};
use crate::state::context::Context;
use crate::types::sorted_set::SortedSet;
use crate::types::stream::StreamId;

const MAXDELIVERIES_NOT_POSITIVE: CommandError =
    CommandError::Text("ERR MAXDELIVERIES must be a positive integer");
const DEADLETTER_IS_READ: CommandError =
    CommandError::Text("ERR DEADLETTER must not be a stream of the command");

/// Options that Redis does not have.
#[derive(Default)]
pub(super) struct JobOptions<'a> {
    /// The sorted sets whose due members move to the streams, in the order of these.
    pub due: Vec<DueMove<'a>>,
    /// The index of the argument after the last of these: UNIT and FIELD may follow there.
    due_end: usize,
    deliveries: Option<i64>,
    /// The index of DEADLETTER's key.
    dead_letter_at: Option<usize>,
    limit: Option<Limit>,
}

impl<'a> JobOptions<'a> {
    /// Parses an option whose name was taken.
    pub fn take(
        &mut self,
        option: ReadOption,
        cursor: &mut Cursor<'a>,
    ) -> Result<(), CommandError> {
        let at = cursor.position();
        let is_after_due = at == self.due_end + 1 && !self.due.is_empty();
        match option {
            ReadOption::MaxDeliveries if self.deliveries.is_none() => {
                let most = cursor.take_positive(MAXDELIVERIES_NOT_POSITIVE)?;
                self.deliveries = i64::try_from(most).ok();
            }
            ReadOption::DeadLetter if self.dead_letter_at.is_none() => {
                self.dead_letter_at = Some(at);
                cursor.take()?;
            }
            ReadOption::Due => {
                cursor.take()?;
                self.due.push(DueMove::new(at));
                self.due_end = cursor.position();
            }
            ReadOption::Unit | ReadOption::Field if is_after_due => {
                let last = self.due.last_mut().ok_or(CommandError::Syntax)?;
                let value = cursor.take()?;
                match option {
                    ReadOption::Unit => {
                        last.unit = Unit::parse(value).ok_or(CommandError::Syntax)?;
                    }
                    _ => last.field = value,
                }
                self.due_end = cursor.position();
            }
            _ => return Err(CommandError::Syntax),
        }
        Ok(())
    }

    /// Checks the options together, when all have been taken. `keys_at`: the index of the first key
    /// among the streams. `claims`: CLAIM is above 0.
    pub fn finish(
        &mut self,
        args: Args<'a>,
        (keys_at, streams): (usize, usize),
        claims: bool,
    ) -> Result<(), CommandError> {
        let ids = keys_at + streams..keys_at + 2 * streams;
        if self.due.len() > streams || ids.clone().any(|at| args.get(at) != b">") {
            return Err(CommandError::Syntax);
        }
        self.limit = match (self.deliveries, self.dead_letter_at) {
            (Some(deliveries), Some(dead_letter_at)) if claims => {
                if (keys_at..ids.start).any(|at| args.get(at) == args.get(dead_letter_at)) {
                    return Err(DEADLETTER_IS_READ);
                }
                Some(Limit { deliveries, dead_letter_at })
            }
            (None, None) => None,
            _ => return Err(CommandError::Syntax),
        };
        Ok(())
    }

    /// Checks the keys besides the streams. Errors: one has another type.
    pub fn check(&self, ctx: &mut Context<'_>) -> Result<(), CommandError> {
        for due in &self.due {
            if let Some(slot) = ctx.core.keyspace.find(ctx.key(due.key_at)) {
                ctx.core.keyspace.view::<SortedSet>(slot)?;
            }
        }
        if let Some(limit) = self.limit
            && let Some(slot) = ctx.core.keyspace.find(ctx.key(limit.dead_letter_at))
        {
            ctx.core.keyspace.stream_at(slot)?;
        }
        Ok(())
    }

    /// Moves due members to the stream with this index and key, and buries what was delivered too
    /// often. Returns the entries that a reader of the group may claim after `claim` milliseconds,
    /// at most `most`, if that is known. Nothing happens while the group is paused. The stream's
    /// slot may move.
    pub fn prepare(
        &self,
        ctx: &mut Context<'_>,
        (group, claim): (&[u8], Option<i64>),
        (index, key_at): (usize, usize),
        most: usize,
    ) -> Result<Option<Vec<StreamId>>, CommandError> {
        let key = ctx.key(key_at);
        if ctx.core.keyspace.is_paused(key.bytes, group) {
            return Ok(None);
        }
        if let Some(due) = self.due.get(index)
            && !evict::is_over(ctx.core)
        {
            due::move_to_stream(ctx, due, key, due::MOVED_MAX)?;
        }
        match (self.limit, claim) {
            (Some(limit), Some(idle_ms)) => {
                bury::claimable(ctx, (key_at, group), limit, (idle_ms, most)).map(Some)
            }
            _ => Ok(None),
        }
    }
}
