//! CLUSTER COUNTKEYSINSLOT and GETKEYSINSLOT: this node's keys of a slot, in the selected database.

use super::enabled::cluster;
use crate::collections::hash_slot::HashSlot;
use crate::error::CommandError;
use crate::state::context::{CommandResult, Context, Outcome};

/// `CLUSTER COUNTKEYSINSLOT slot`: an integer.
pub fn count_keys(ctx: &mut Context<'_>) -> CommandResult {
    cluster(ctx.state)?;
    let slot = slot_number(ctx, "ERR Invalid slot")?;
    let count = ctx.keyspace.count_in_slot(ctx.keyspace.selected(), slot);
    ctx.reply.integer(count as i64);
    Ok(Outcome::Replied)
}

/// `CLUSTER GETKEYSINSLOT slot count`: an array of at most so many keys.
pub fn get_keys(ctx: &mut Context<'_>) -> CommandResult {
    const INVALID: &str = "ERR Invalid slot or number of keys";
    cluster(ctx.state)?;
    ctx.args.integer(2)?;
    let count = ctx.args.integer(3)?;
    let slot = slot_number(ctx, INVALID)?;
    let count = usize::try_from(count).map_err(|_| CommandError::Text(INVALID))?;
    let array = ctx.reply.defer_array();
    let mut found = 0;
    for key in ctx.keyspace.keys_in_slot(ctx.keyspace.selected(), slot, count) {
        ctx.reply.bulk(key);
        found += 1;
    }
    ctx.reply.finish(array, found);
    Ok(Outcome::Replied)
}

/// The slot in the first argument.
fn slot_number(ctx: &Context<'_>, invalid: &'static str) -> Result<HashSlot, CommandError> {
    let number = usize::try_from(ctx.args.integer(2)?).ok();
    number.and_then(HashSlot::new).ok_or(CommandError::Text(invalid))
}

/// Whether this node has keys of a slot, in any database.
pub fn has_keys_in(ctx: &Context<'_>, slot: HashSlot) -> bool {
    ctx.keyspace.has_keys_in_slot(slot)
}
