//! CLUSTER ADDSLOTS, DELSLOTS, FLUSHSLOTS and SETSLOT: who owns a slot, and between whom it moves.

use super::change::{change, has_keys};
use super::enabled::{cluster, node, slot};
use super::keys;
use crate::cluster::Cluster;
use crate::cluster::node::NodeIndex;
use crate::collections::hash_slot::{HashSlot, SlotSet};
use crate::error::CommandError;
use crate::resp::args::Args;
use crate::roles::cluster::finish_drops;
use crate::state::context::{CommandResult, Context, Outcome};

/// Whether slots are assigned to this node, or unassigned.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Assigns {
    Yes,
    No,
}

/// `CLUSTER ADDSLOTS slot [slot ...]`: OK.
pub fn add(ctx: &mut Context<'_>) -> CommandResult {
    assign_single(ctx, Assigns::Yes)
}

/// `CLUSTER DELSLOTS slot [slot ...]`: OK.
pub fn delete(ctx: &mut Context<'_>) -> CommandResult {
    assign_single(ctx, Assigns::No)
}

/// `CLUSTER ADDSLOTSRANGE first last [first last ...]`: OK.
pub fn add_ranges(ctx: &mut Context<'_>) -> CommandResult {
    assign_ranges(ctx, Assigns::Yes)
}

/// `CLUSTER DELSLOTSRANGE first last [first last ...]`: OK.
pub fn delete_ranges(ctx: &mut Context<'_>) -> CommandResult {
    assign_ranges(ctx, Assigns::No)
}

fn assign_single(ctx: &mut Context<'_>, how: Assigns) -> CommandResult {
    let cluster = cluster(ctx.state)?;
    let slots = ctx.args.iter_from(2).map(slot).collect::<Result<Vec<HashSlot>, _>>()?;
    let mut chosen = SlotSet::default();
    slots.into_iter().try_for_each(|slot| choose(cluster, how, slot, &mut chosen))?;
    assign(ctx, how, &chosen)
}

fn assign_ranges(ctx: &mut Context<'_>, how: Assigns) -> CommandResult {
    let cluster = cluster(ctx.state)?;
    if !ctx.args.len().is_multiple_of(2) {
        return Err(CommandError::WrongArity(ctx.command.full_name.clone()));
    }
    let mut chosen = SlotSet::default();
    for index in (2..ctx.args.len()).step_by(2) {
        let (first, last) = range(ctx.args, index)?;
        let slots = HashSlot::all().skip(first.index()).take(last.index() + 1 - first.index());
        slots.into_iter().try_for_each(|slot| choose(cluster, how, slot, &mut chosen))?;
    }
    assign(ctx, how, &chosen)
}

/// The range in two arguments, of which `index` is the first.
fn range(args: Args<'_>, index: usize) -> Result<(HashSlot, HashSlot), CommandError> {
    let (first, last) = (slot(args.get(index))?, slot(args.get(index + 1))?);
    if first > last {
        let (first, last) = (first.number(), last.number());
        return Err(CommandError::formatted(format!(
            "ERR start slot number {first} is greater than end slot number {last}"
        )));
    }
    Ok((first, last))
}

/// Adds a slot to those that are assigned or unassigned.
fn choose(
    cluster: &Cluster,
    how: Assigns,
    slot: HashSlot,
    chosen: &mut SlotSet,
) -> Result<(), CommandError> {
    let number = slot.number();
    let error = |what: &str| Err(CommandError::formatted(format!("ERR Slot {number} {what}")));
    match (how, cluster.owner(slot)) {
        (Assigns::Yes, Some(_)) => error("is already busy"),
        (Assigns::No, None) => error("is already unassigned"),
        _ if !chosen.insert(slot) => error("specified multiple times"),
        _ => Ok(()),
    }
}

fn assign(ctx: &mut Context<'_>, how: Assigns, slots: &SlotSet) -> CommandResult {
    if how == Assigns::Yes {
        finish_drops(ctx.keyspace, ctx.state, slots);
    }
    change(ctx, |cluster, outside, actions| match how {
        Assigns::Yes => cluster.add_slots(slots, outside, actions),
        Assigns::No => cluster.delete_slots(slots, outside, actions),
    });
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// `CLUSTER FLUSHSLOTS`: OK. This node owns no slots any more.
pub fn flush(ctx: &mut Context<'_>) -> CommandResult {
    cluster(ctx.state)?;
    if has_keys(ctx) {
        return Err(CommandError::Text("ERR DB must be empty to perform CLUSTER FLUSHSLOTS."));
    }
    let own = cluster(ctx.state)?.myself().slots.clone();
    change(ctx, |cluster, outside, actions| cluster.delete_slots(&own, outside, actions));
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

const ON_REPLICA: CommandError = CommandError::Text("ERR Please use SETSLOT only with masters.");
const BAD_ACTION: CommandError = CommandError::Text(
    "ERR Invalid CLUSTER SETSLOT action or number of arguments. Try CLUSTER HELP",
);
const NOT_PRIMARY: CommandError = CommandError::Text("ERR Target node is not a master");

/// `CLUSTER SETSLOT slot <MIGRATING node-id | IMPORTING node-id | NODE node-id | STABLE>`: OK.
pub fn set(ctx: &mut Context<'_>) -> CommandResult {
    let myself = cluster(ctx.state)?.my_index();
    if cluster(ctx.state)?.myself().is_replica() {
        return Err(ON_REPLICA);
    }
    let jobs = &ctx.state.slot_moves.jobs;
    if jobs.is_importing() {
        return Err(CommandError::Text("ERR Slot import in progress."));
    }
    if jobs.is_exporting() {
        return Err(CommandError::Text("ERR Slot export in progress."));
    }
    let slot = slot(ctx.args.get(2))?;
    let number = slot.number();
    let is = |word: &str, count: usize| {
        ctx.args.len() == count && ctx.args.get(3).eq_ignore_ascii_case(word.as_bytes())
    };
    let owner = cluster(ctx.state)?.owner(slot);
    if is("MIGRATING", 5) {
        if owner != Some(myself) {
            let text = format!("ERR I'm not the owner of hash slot {number}");
            return Err(CommandError::formatted(text));
        }
        let target = primary(ctx, "I don't know about node")?;
        change(ctx, |cluster, outside, actions| {
            cluster.set_migrating(slot, target, outside, actions);
        });
    } else if is("IMPORTING", 5) {
        if owner == Some(myself) {
            let text = format!("ERR I'm already the owner of hash slot {number}");
            return Err(CommandError::formatted(text));
        }
        let source = primary(ctx, "I don't know about node")?;
        finish_drops(ctx.keyspace, ctx.state, &SlotSet::from_iter([slot]));
        change(ctx, |cluster, outside, actions| {
            cluster.set_importing(slot, source, outside, actions);
        });
    } else if is("STABLE", 4) {
        change(ctx, |cluster, outside, actions| cluster.set_stable(slot, outside, actions));
    } else if is("NODE", 5) {
        let target = primary(ctx, "Unknown node")?;
        if target == myself {
            finish_drops(ctx.keyspace, ctx.state, &SlotSet::from_iter([slot]));
        }
        let has_keys = keys::has_keys_in(ctx, slot);
        if owner == Some(myself) && target != myself && has_keys {
            return Err(CommandError::formatted(format!(
                "ERR Can't assign hashslot {number} to a different node while I still hold keys for this hash slot."
            )));
        }
        change(ctx, |cluster, outside, actions| {
            cluster.assign_slot(slot, target, has_keys, outside, actions);
        });
    } else {
        return Err(BAD_ACTION);
    }
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// The primary in argument 4. `unknown`: the error's words if there is no such node.
fn primary(ctx: &Context<'_>, unknown: &str) -> Result<NodeIndex, CommandError> {
    let index = node(ctx, 4, unknown)?;
    match cluster(ctx.state)?.node(index).is_replica() {
        true => Err(NOT_PRIMARY),
        false => Ok(index),
    }
}
