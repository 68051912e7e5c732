//! CLUSTER COUNTKEYSINSLOT and GETKEYSINSLOT: this node's keys of a slot, in the selected database;
//! FLUSHSLOT deletes them in all.

use super::enabled::{cluster, slot as slot_of_text};
use crate::collections::hash_slot::{HashSlot, SlotSet};
use crate::error::CommandError;
use crate::roles::cluster::{is_dropping, lists};
use crate::state::context::{CommandResult, Context, Outcome};

/// `CLUSTER COUNTKEYSINSLOT slot`: an integer.
pub fn count_keys(ctx: &mut Context<'_>) -> CommandResult {
    cluster(&ctx.core.state)?;
    let slot = slot_number(ctx, "ERR Invalid slot")?;
    // Keys that are being deleted in steps do not count, as if they had been deleted at once.
    let count = match is_dropping(&ctx.core.state, &SlotSet::from_iter([slot])) {
        true => 0,
        false => ctx.core.keyspace.count_in_slot(ctx.core.keyspace.selected(), slot),
    };
    ctx.reply.integer(count as i64);
    Ok(Outcome::Replied)
}

/// `CLUSTER GETKEYSINSLOT slot count`: an array of at most `count` keys.
pub fn get_keys(ctx: &mut Context<'_>) -> CommandResult {
    const INVALID: &str = "ERR Invalid slot or number of keys";
    cluster(&ctx.core.state)?;
    ctx.args.integer(2)?;
    let count = ctx.args.integer(3)?;
    let slot = slot_number(ctx, INVALID)?;
    let count = usize::try_from(count).map_err(|_| CommandError::Text(INVALID))?;
    let in_slot = ctx.core.keyspace.count_in_slot(ctx.core.keyspace.selected(), slot);
    if count.min(in_slot) > 0 && !lists::ask_for_command(ctx) {
        return Ok(Outcome::Postponed);
    }
    let array = ctx.reply.defer_array();
    let mut found = 0;
    let table = ctx.core.keyspace.table();
    let list = table.slot_list();
    // Without a list there is nothing to list.
    for at in list.into_iter().flat_map(|list| list.keys_in_slot(slot)).take(count) {
        ctx.reply.bulk(table.entry(at).key());
        found += 1;
    }
    ctx.reply.finish(array, found);
    Ok(Outcome::Replied)
}

/// `CLUSTER FLUSHSLOT slot [ASYNC | SYNC]`: OK. A thread frees the memory with either word. O(N), N
/// being the number of keys.
pub fn flush(ctx: &mut Context<'_>) -> CommandResult {
    cluster(&ctx.core.state)?;
    if ctx.args.len() > 4 {
        return Err(ctx.wrong_subcommand());
    }
    let slot = slot_of_text(ctx.args.get(2))?;
    let mut arguments = ctx.args.cursor(3);
    if !arguments.is_at_end() && !arguments.take_word("ASYNC") && !arguments.take_word("SYNC") {
        return Err(CommandError::Syntax);
    }
    if ctx.core.keyspace.has_keys_in_slot(slot) && !lists::ask_for_command(ctx) {
        return Ok(Outcome::Postponed);
    }
    while let Some((database, key)) = ctx.core.keyspace.key_in_slot(slot) {
        ctx.core.keyspace.in_database(database, |keyspace| {
            let key = keyspace.key(&key);
            keyspace.delete(key, "del")
        });
        // Redis's replicas do not know this command, and it would hold up those that do.
        ctx.instead_of(database, [&b"DEL"[..], &key].into_iter());
    }
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// The slot in the first argument.
fn slot_number(ctx: &Context<'_>, invalid: &'static str) -> Result<HashSlot, CommandError> {
    let number = usize::try_from(ctx.args.integer(2)?).ok();
    number.and_then(HashSlot::new).ok_or(CommandError::Text(invalid))
}

/// Whether this node has keys of a slot, in any database.
pub fn has_keys_in(ctx: &Context<'_>, slot: HashSlot) -> bool {
    ctx.core.keyspace.has_keys_in_slot(slot)
}
