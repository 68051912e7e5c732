//! CLUSTER ADDSLOTS, DELSLOTS, FLUSHSLOTS and SETSLOT: a slot's owner, and the nodes between which
//! it moves.

use super::change::{change, change_unconfirmed, finish_drops, has_keys};
use super::enabled::{cluster, node, slot};
use super::keys;
use crate::cluster::Cluster;
use crate::cluster::action::{Action, Outside};
use crate::cluster::node::NodeIndex;
use crate::collections::hash_slot::{HashSlot, SlotSet};
use crate::command::timeout::TimeoutUnit;
use crate::error::CommandError;
use crate::keyspace::waiting::Wanted;
use crate::replication::replica::Replica;
use crate::resp::args::Args;
use crate::resp::owned::OwnedRequest;
use crate::state::context::{
    AcksAwaited, Caller, CommandResult, Context, On, Origin, Outcome, Replicas,
};

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
    let cluster = cluster(&ctx.core.state)?;
    let slots = ctx.args.iter_from(2).map(slot).collect::<Result<Vec<HashSlot>, _>>()?;
    let mut chosen = SlotSet::default();
    slots.into_iter().try_for_each(|slot| choose(cluster, how, slot, &mut chosen))?;
    assign(ctx, how, &chosen)
}

fn assign_ranges(ctx: &mut Context<'_>, how: Assigns) -> CommandResult {
    let cluster = cluster(&ctx.core.state)?;
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
        finish_drops(ctx, slots);
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
    cluster(&ctx.core.state)?;
    if has_keys(ctx) {
        return Err(CommandError::Text("ERR DB must be empty to perform CLUSTER FLUSHSLOTS."));
    }
    let own = cluster(&ctx.core.state)?.myself().slots.clone();
    change(ctx, |cluster, outside, actions| cluster.delete_slots(&own, outside, actions));
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

const ON_REPLICA: CommandError = CommandError::Text("ERR Please use SETSLOT only with masters.");
const BAD_ACTION: CommandError = CommandError::Text(
    "ERR Invalid CLUSTER SETSLOT action or number of arguments. Try CLUSTER HELP",
);
const NOT_PRIMARY: CommandError = CommandError::Text("ERR Target node is not a master");

/// A change by CLUSTER SETSLOT.
#[derive(Clone, Copy)]
enum Change {
    Migrates(NodeIndex),
    Imports(NodeIndex),
    Stays,
    Assigns(NodeIndex),
}

/// The time that SETSLOT without TIMEOUT waits for replicas. Unit: milliseconds.
const REPETITION_MS: i64 = 2_000;

/// The first version of Valkey whose replicas repeat SETSLOT.
const REPEATS_SINCE: u32 = 8;

/// `CLUSTER SETSLOT slot <MIGRATING node-id | IMPORTING node-id | NODE node-id | STABLE> [TIMEOUT
/// milliseconds]`: OK.
///
/// As in Valkey, replicas make the change first: a change that a primary has confirmed is not lost
/// with it.
pub fn set(ctx: &mut Context<'_>) -> CommandResult {
    if cluster(&ctx.core.state)?.myself().is_replica() && ctx.caller != Caller::Primary {
        return Err(ON_REPLICA);
    }
    let jobs = &ctx.core.state.node.moves.jobs;
    if jobs.is_importing() {
        return Err(CommandError::Text("ERR Slot import in progress."));
    }
    if jobs.is_exporting() {
        return Err(CommandError::Text("ERR Slot export in progress."));
    }
    let slot = slot(ctx.args.get(2))?;
    let (wanted, after) = wanted(ctx, slot)?;
    let deadline_us = deadline(ctx, after)?;
    let replicas = replicas_that_repeat(ctx);
    if replicas > 0 {
        ctx.repeat_message();
        let may_wait = ctx.may_wait();
        ctx.core.state.replication.wants_acks |= may_wait;
        let (offset, replicas) = (ctx.core.state.stream_end(), Replicas::Count(replicas));
        let awaited = AcksAwaited { offset, replicas, on_disk: None };
        if may_wait {
            let on = On::Repetition(Box::new(awaited));
            let mut wait = ctx.wait(Wanted::Acks, on, deadline_us);
            wait.request = OwnedRequest::new(ctx.args.iter_from(0));
            return Ok(Outcome::Waits(wait));
        }
    }
    carry_out(ctx, slot, wanted);
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// The requested change, if it is possible now, and the index of the argument after it.
fn wanted(ctx: &mut Context<'_>, slot: HashSlot) -> Result<(Change, usize), CommandError> {
    let (number, count) = (slot.number(), ctx.args.len());
    let takes_more = cluster(&ctx.core.state)?.settings().as_valkey;
    let is = |word: &str, words: usize| {
        (count == words || takes_more && count > words)
            && ctx.args.get(3).eq_ignore_ascii_case(word.as_bytes())
    };
    let myself = cluster(&ctx.core.state)?.my_index();
    let owner = cluster(&ctx.core.state)?.owner(slot);
    if is("MIGRATING", 5) {
        if owner != Some(myself) && !cluster(&ctx.core.state)?.myself().is_replica() {
            let text = format!("ERR I'm not the owner of hash slot {number}");
            return Err(CommandError::formatted(text));
        }
        return Ok((Change::Migrates(other(ctx)?), 5));
    }
    if is("IMPORTING", 5) {
        if owner == Some(myself) {
            let text = format!("ERR I'm already the owner of hash slot {number}");
            return Err(CommandError::formatted(text));
        }
        return Ok((Change::Imports(other(ctx)?), 5));
    }
    if is("STABLE", 4) {
        return Ok((Change::Stays, 4));
    }
    if is("NODE", 5) {
        let target = primary(ctx, "Unknown node")?;
        if owner == Some(myself) && target != myself && keys::has_keys_in(ctx, slot) {
            return Err(CommandError::formatted(format!(
                "ERR Can't assign hashslot {number} to a different node while I still hold keys for this hash slot."
            )));
        }
        return Ok((Change::Assigns(target), 5));
    }
    Err(BAD_ACTION)
}

/// The deadline for replicas to repeat the request, from the arguments from `first` on. Words other
/// than TIMEOUT mean nothing, as in Valkey.
fn deadline(ctx: &Context<'_>, first: usize) -> Result<Option<i64>, CommandError> {
    let now_us = ctx.core.state.now.boot_us;
    let mut deadline_us = Some(now_us.saturating_add(REPETITION_MS * 1000));
    for index in first..ctx.args.len() {
        if !ctx.args.get(index).eq_ignore_ascii_case(b"TIMEOUT") {
            continue;
        }
        if index + 1 >= ctx.args.len() {
            return Err(CommandError::Text("ERR Missing timeout value"));
        }
        deadline_us = ctx.timeout(index + 1, TimeoutUnit::Milliseconds)?;
    }
    Ok(deadline_us)
}

/// The number of replicas that are to repeat the request before this node runs it; 0 for one that
/// they have repeated already.
fn replicas_that_repeat(ctx: &Context<'_>) -> i64 {
    let state = &ctx.core.state;
    let as_valkey = state.node.cluster.as_ref().is_some_and(|cluster| cluster.settings().as_valkey);
    let has_been_repeated = matches!(ctx.origin, Origin::Woken(_)) || ctx.caller.client().is_none();
    if has_been_repeated || state.replication.is_replica() || !as_valkey {
        return 0;
    }
    let repeats = |replica: &Replica| {
        replica.is_online() && replica.version.is_some_and(|version| version >= REPEATS_SINCE)
    };
    state.replicas().filter(|(_, replica)| repeats(replica)).count() as i64
}

fn carry_out(ctx: &mut Context<'_>, slot: HashSlot, wanted: Change) {
    let myself = ctx.core.state.node.cluster.as_ref().map(|cluster| cluster.my_index());
    let takes = matches!(wanted, Change::Assigns(target) if Some(target) == myself);
    if takes || matches!(wanted, Change::Imports(_)) {
        finish_drops(ctx, &SlotSet::from_iter([slot]));
    }
    let has_keys = keys::has_keys_in(ctx, slot);
    let carry_out =
        |cluster: &mut Cluster, outside: &Outside, actions: &mut Vec<Action>| match wanted {
            Change::Migrates(target) => cluster.set_migrating(slot, target, outside, actions),
            Change::Imports(source) => cluster.set_importing(slot, source, outside, actions),
            Change::Stays => cluster.set_stable(slot, outside, actions),
            Change::Assigns(target) => {
                cluster.assign_slot(slot, target, has_keys, outside, actions);
            }
        };
    // If the two confirmed changes were lost, clients would not be sent to the node with their
    // keys. If another is lost in a crash, the administrator asks the target again, or the owner
    // claims the slot.
    match takes || matches!(wanted, Change::Migrates(_)) {
        true => change(ctx, carry_out),
        false => change_unconfirmed(ctx, carry_out),
    };
}

/// The primary in argument 4. As in Valkey, if that is emulated, this node itself is refused.
fn other(ctx: &Context<'_>) -> Result<NodeIndex, CommandError> {
    const UNKNOWN: &str = "I don't know about node";
    let is_myself = node(ctx, 4, UNKNOWN)? == cluster(&ctx.core.state)?.my_index();
    match is_myself && cluster(&ctx.core.state)?.settings().as_valkey {
        true => Err(CommandError::Text("ERR Target node is myself")),
        false => primary(ctx, UNKNOWN),
    }
}

/// The primary in argument 4. `unknown`: the error's words if there is no such node.
fn primary(ctx: &Context<'_>, unknown: &str) -> Result<NodeIndex, CommandError> {
    let index = node(ctx, 4, unknown)?;
    match cluster(&ctx.core.state)?.node(index).is_replica() {
        true => Err(NOT_PRIMARY),
        false => Ok(index),
    }
}
