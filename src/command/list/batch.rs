//! LMOVEM and BLMOVEM: several elements are moved from one list to another.

use crate::command::list::{
    MOVE, changed, limits, list_spec, parse_end, pop_command, pop_event, push_elements, push_event,
};
use crate::command::timeout::TimeoutUnit;
use crate::error::CommandError;
use crate::keyspace::waiting::Wanted;
use crate::resp::args::Args;
use crate::state::context::{CommandResult, Context, Outcome, WaitForKeys};
use crate::state::spec::{CommandSpec, Flags};
use crate::types::journal::Edit;
use crate::types::list::{End, List};

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    list_spec("LMOVEM", lmovem, "8.10.0", Flags::WRITE_DENYOOM).at_least(5).keys(MOVE)
        .docs("source destination <LEFT | RIGHT> <LEFT | RIGHT> [<COUNT count | EXACTLY count> <OBO | BULK>]",
            "Moves elements from an end of a list to an end of another.", "O(N) where N is the number of elements moved"),
    list_spec("BLMOVEM", blmovem, "8.10.0", Flags::WRITE_BLOCKING.union(Flags::DENYOOM)).at_least(6).keys(MOVE)
        .docs("source destination <LEFT | RIGHT> <LEFT | RIGHT> timeout [<COUNT count | EXACTLY count> <OBO | BULK>]",
            "Moves elements from an end of a list to an end of another, or waits for some.", "O(N) where N is the number of elements moved"),
];

/// Which elements are moved, and how.
struct Batch {
    from: End,
    to: End,
    count: usize,
    /// All of them or none (EXACTLY).
    is_exact: bool,
    /// They keep their order (BULK), instead of being moved one by one.
    keeps_order: bool,
}

impl Batch {
    /// `<LEFT | RIGHT> <LEFT | RIGHT>` from argument 3 on, and after `options` `[<COUNT count |
    /// EXACTLY count> <OBO | BULK>]`.
    fn parse(args: Args<'_>, options: usize) -> Result<Self, CommandError> {
        let mut batch = Batch {
            from: parse_end(args.get(3))?,
            to: parse_end(args.get(4))?,
            count: 1,
            is_exact: false,
            keeps_order: false,
        };
        let mut cursor = args.cursor(options);
        if cursor.is_at_end() {
            return Ok(batch);
        }
        batch.is_exact = cursor.take_word("EXACTLY");
        if !batch.is_exact && !cursor.take_word("COUNT") {
            return Err(CommandError::Syntax);
        }
        batch.count = cursor.take_positive(CommandError::SMALL_COUNT)?;
        batch.keeps_order = cursor.take_word("BULK");
        if (!batch.keeps_order && !cursor.take_word("OBO")) || !cursor.is_at_end() {
            return Err(CommandError::Syntax);
        }
        Ok(batch)
    }

    /// Moves elements and replies them in the order in which they lie in the destination. False:
    /// there are none, or not enough.
    fn run(&self, ctx: &mut Context<'_>) -> Result<bool, CommandError> {
        let (key, target) = (ctx.key(1), ctx.key(2));
        let Some(source) = ctx.core.keyspace.slot_of::<List>(key)? else { return Ok(false) };
        let len = ctx.core.keyspace.view::<List>(source)?.len();
        if self.is_exact && len < self.count {
            return Ok(false);
        }
        let count = self.count.min(len);
        let destination = ctx.core.keyspace.slot_of::<List>(target)?;
        let limits = limits(ctx);
        let is_same = destination == Some(source);
        // At the same end of the same list they stay in their order.
        let stays = is_same && self.keeps_order && self.from == self.to;
        let (mut elements, is_emptied) =
            ctx.core.keyspace.edit(source, |list: &mut Edit<'_, List>| {
                let mut elements: Vec<Vec<u8>> = Vec::new();
                for _ in 0..count {
                    let popped = list.pop(self.from, |element| element.text().as_ref().to_vec());
                    elements.extend(popped);
                }
                // In the order in which they are pushed.
                if self.keeps_order && self.from == self.to {
                    elements.reverse();
                }
                if is_same {
                    list.make_room(elements.iter().map(Vec::len).sum(), elements.len(), &limits);
                    elements.iter().for_each(|element| list.push(self.to, element, &limits));
                }
                list.settle(&limits);
                (elements, list.is_empty())
            });
        if !is_same {
            let pushed = elements.iter().map(Vec::as_slice);
            push_elements(ctx, destination, target, self.to, pushed);
        }
        if !stays {
            changed(ctx, push_event(self.to), target, 0);
            changed(ctx, pop_event(self.from), key, count);
            self.repeat(ctx, &elements, is_same);
        }
        if is_emptied {
            // A new destination may have moved the source.
            let slot = ctx.core.keyspace.find(key).expect("it stays until it is deleted");
            ctx.core.keyspace.delete_if_empty::<List>(slot, key);
        }
        if self.to == End::Front {
            elements.reverse();
        }
        ctx.reply.array(elements.len());
        elements.iter().for_each(|element| ctx.reply.bulk(element));
        Ok(true)
    }

    /// Repeats the move by requests that Redis 7.0 knows.
    fn repeat(&self, ctx: &mut Context<'_>, pushed: &[Vec<u8>], is_same: bool) {
        let (key, target) = (ctx.args.get(1), ctx.args.get(2));
        if is_same || pushed.len() == 1 {
            // Popped altogether, the list would be deleted and lose its deadline.
            let word = |end| if end == End::Front { &b"left"[..] } else { b"right" };
            for _ in pushed {
                ctx.instead(&[b"LMOVE", key, target, word(self.from), word(self.to)]);
            }
            return;
        }
        let push = if self.to == End::Front { &b"LPUSH"[..] } else { b"RPUSH" };
        let words = [push, target].into_iter().chain(pushed.iter().map(Vec::as_slice));
        ctx.instead(&words.collect::<Vec<_>>());
        ctx.instead_with(&[pop_command(self.from), key], pushed.len() as i64);
    }
}

/// `LMOVEM source destination <LEFT | RIGHT> <LEFT | RIGHT> [<COUNT count | EXACTLY count> <OBO |
/// BULK>]`: the elements as they lie in the destination; a nil array if there are none, or with
/// EXACTLY not enough.
fn lmovem(ctx: &mut Context<'_>) -> CommandResult {
    let batch = Batch::parse(ctx.args, 5)?;
    if !batch.run(ctx)? {
        ctx.reply.null_array();
    }
    Ok(Outcome::Replied)
}

/// `BLMOVEM source destination <LEFT | RIGHT> <LEFT | RIGHT> timeout [<COUNT count | EXACTLY count>
/// <OBO | BULK>]`: the same; a nil array when the time is up.
fn blmovem(ctx: &mut Context<'_>) -> CommandResult {
    let batch = Batch::parse(ctx.args, 6)?;
    let deadline_us = ctx.timeout(5, TimeoutUnit::Seconds)?;
    if batch.run(ctx)? {
        return Ok(Outcome::Replied);
    }
    ctx.block(WaitForKeys::new(Wanted::List, 1..2, deadline_us))
}
