//! CLUSTER MIGRATESLOTS, GETSLOTMIGRATIONS, CANCELSLOTMIGRATIONS and SYNCSLOTS: slots that move to
//! another node all at once (`crate::cluster::slot_job`).

use super::change::finish_drops;
use super::enabled::{cluster, slot};
use crate::cluster::Cluster;
use crate::cluster::node::{NodeId, NodeIndex};
use crate::cluster::slot_job::{Phase, Word};
use crate::collections::hash_slot::{HashSlot, SlotRanges, slots_in};
use crate::error::CommandError;
use crate::resp::args::{Args, before_nul};
use crate::resp::number::parse_i64;
use crate::roles::cluster::drop_keys;
use crate::roles::slots;
use crate::state::context::{CommandResult, Context, Effect, Outcome};

const NOT_PRIMARY: CommandError =
    CommandError::Text("ERR Slot migration can only be used on primary nodes.");
const IMPORTED_BY_HAND: CommandError = CommandError::Text("ERR Slots are being manually imported");
const MIGRATED_BY_HAND: CommandError = CommandError::Text("ERR Slots are being manually migrated");
const NONE_ONGOING: CommandError = CommandError::Text("ERR No migrations ongoing");
const UNKNOWN_SOURCE: CommandError =
    CommandError::Text("ERR Target node does not know the source node");
const OWN_SOURCE: CommandError = CommandError::Text("ERR Source node is target node itself");
const COMES_ALREADY: CommandError =
    CommandError::Text("ERR Slot is already being imported on the target by a different migration");
const OTHER_OWNER: CommandError =
    CommandError::Text("ERR Target node does not agree about current slot ownership");
const NO_JOB: CommandError = CommandError::Text("ERR No such slot migration job");

/// Nodes of Redis 8.4 move slots by a protocol of their own.
const NOT_AS_REDIS: CommandError = CommandError::Text(
    "ERR CLUSTER MIGRATION IMPORT is not supported. Move slots with CLUSTER MIGRATESLOTS, or with CLUSTER SETSLOT and MIGRATE",
);

/// `CLUSTER MIGRATION <IMPORT slots | CANCEL id | STATUS id>`: an import is refused, so there is
/// none to show or cancel.
pub fn migration(ctx: &mut Context<'_>) -> CommandResult {
    cluster(&ctx.core.state)?;
    let mut words = ctx.args.cursor(2);
    match () {
        () if words.take_word("IMPORT") => return Err(NOT_AS_REDIS),
        () if words.take_word("CANCEL") => ctx.reply.integer(0),
        () if words.take_word("STATUS") => ctx.reply.array(0),
        () => return Err(CommandError::UNKNOWN_ARGUMENT),
    }
    Ok(Outcome::Replied)
}

fn error(text: String) -> CommandError {
    CommandError::formatted(text)
}

/// Whether this node can move slots at all.
fn check(cluster: &Cluster) -> Result<(), CommandError> {
    if cluster.myself().is_replica() {
        return Err(NOT_PRIMARY);
    }
    let is_open = |moves: fn(&Cluster, HashSlot) -> Option<NodeIndex>| {
        cluster.has_open_slots() && HashSlot::all().any(|slot| moves(cluster, slot).is_some())
    };
    if is_open(Cluster::importing_from) {
        return Err(IMPORTED_BY_HAND);
    }
    if is_open(Cluster::migrating_to) {
        return Err(MIGRATED_BY_HAND);
    }
    Ok(())
}

/// The ranges of slots from argument `first` on, the index after them, and the owner of all.
/// `owned`: whether they must have one owner.
fn ranges(
    cluster: &Cluster,
    args: Args<'_>,
    first: usize,
    owned: bool,
) -> Result<(SlotRanges, usize, Option<NodeIndex>), CommandError> {
    let (mut ranges, mut owner, mut at) = (SlotRanges::new(), None, first);
    // An argument that is no number is the next option.
    while at < args.len() && parse_i64(args.get(at)).is_some() {
        let start = slot(args.get(at))?;
        if at + 1 >= args.len() {
            return Err(CommandError::Text("ERR No end slot for final slot range"));
        }
        let end = slot(args.get(at + 1))?;
        let (from, to) = (start.number(), end.number());
        if start > end {
            return Err(error(format!(
                "ERR Start slot number {from} is greater than end slot number {to}."
            )));
        }
        for slot in slots_in(&[(start, end)]).iter().filter(|_| owned) {
            let Some(found) = cluster.owner(slot) else {
                return Err(error(format!("ERR Slot {} has no node served.", slot.number())));
            };
            if *owner.get_or_insert(found) != found {
                return Err(CommandError::Text("ERR Requested slots span multiple shards"));
            }
        }
        let earlier = ranges.iter().find(|(first, last)| *last >= start && *first <= end);
        if let Some((first, last)) = earlier {
            return Err(error(format!(
                "ERR Slot range {from}-{to} overlaps with previous range {}-{}.",
                first.number(),
                last.number()
            )));
        }
        ranges.push((start, end));
        at += 2;
    }
    if ranges.is_empty() {
        return Err(CommandError::Text("ERR No slot ranges specified"));
    }
    Ok((ranges, at, owner))
}

/// `CLUSTER MIGRATESLOTS SLOTSRANGE first last [first last ...] NODE node-id [SLOTSRANGE ...]`: OK.
/// The slots begin to move.
pub fn migrate(ctx: &mut Context<'_>) -> CommandResult {
    let own = cluster(&ctx.core.state)?;
    check(own)?;
    let args = ctx.args;
    // valkey-cli sends SLOTSRANGE with a NUL.
    let is = |index: usize, word: &str| {
        index < args.len() && before_nul(args.get(index)).eq_ignore_ascii_case(word.as_bytes())
    };
    let mut moves: Vec<(SlotRanges, NodeIndex)> = Vec::new();
    let mut at = 2;
    while at < args.len() {
        if !is(at, "SLOTSRANGE") {
            return Err(CommandError::Syntax);
        }
        let (asked, after, owner) = ranges(own, args, at + 1, true)?;
        if owner != Some(own.my_index()) {
            return Err(CommandError::Text("ERR Slots are not served by this node."));
        }
        let slots = slots_in(&asked);
        if let Some(slot) = slots.iter().find(|slot| ctx.core.state.node.moves.jobs.exports(*slot))
        {
            return Err(error(format!("ERR I am already migrating slot {}.", slot.number())));
        }
        if moves.iter().any(|(other, _)| slots_in(other).iter().any(|slot| slots.contains(slot))) {
            return Err(CommandError::Text("ERR Slot ranges in migrations overlap"));
        }
        if after + 1 >= args.len() || !is(after, "NODE") {
            return Err(CommandError::Syntax);
        }
        moves.push((asked, target(own, args.get(after + 1))?));
        at = after + 2;
    }
    for (ranges, target) in moves {
        slots::begin_export(ctx.core, ranges, target);
    }
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

fn target(cluster: &Cluster, name: &[u8]) -> Result<NodeIndex, CommandError> {
    let shown = before_nul(name);
    let error = |text: &str| CommandError::of_parts(&[text.as_bytes(), shown]);
    if name.len() != NodeId::BYTES {
        return Err(error("ERR Invalid node name: "));
    }
    let found = NodeId::from_bytes(name).and_then(|id| cluster.find(&id));
    let found = found.ok_or_else(|| error("ERR Unknown node name: "))?;
    match found == cluster.my_index() {
        true => Err(CommandError::Text("ERR Target node can not be this node.")),
        false => Ok(found),
    }
}

/// `CLUSTER CANCELSLOTMIGRATIONS`: OK. Moves from this node end. Granted ones end with the grant.
pub fn cancel(ctx: &mut Context<'_>) -> CommandResult {
    cluster(&ctx.core.state)?;
    if !slots::cancel_exports(ctx.core) {
        return Err(NONE_ONGOING);
    }
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// `CLUSTER GETSLOTMIGRATIONS`: an array of maps, the newest move first.
pub fn list(ctx: &mut Context<'_>) -> CommandResult {
    cluster(&ctx.core.state)?;
    let jobs = &ctx.core.state.node.moves.jobs.0;
    let reply = &mut ctx.reply;
    reply.array(jobs.len());
    for job in jobs {
        let mut texts = vec![
            ("name", job.name.to_string()),
            ("operation", if job.is_import { "IMPORT" } else { "EXPORT" }.to_owned()),
            ("slot_ranges", job.ranges_text()),
        ];
        if let (Some(target), Some(source)) = (job.target, job.source) {
            texts.push(("target_node", target.to_string()));
            texts.push(("source_node", source.to_string()));
        }
        reply.map(texts.len() + 7);
        for (name, text) in texts {
            reply.bulk(name.as_bytes());
            reply.bulk(text.as_bytes());
        }
        let times = [
            ("create_time", job.created_s),
            ("last_update_time", job.updated_s),
            ("last_ack_time", job.acked_s),
        ];
        for (name, time) in times {
            reply.bulk(name.as_bytes());
            reply.integer(time);
        }
        reply.bulk(b"state");
        reply.bulk(job.phase.name().as_bytes());
        reply.bulk(b"message");
        reply.bulk(job.message.as_bytes());
        // There is no fork, so no copy-on-write.
        reply.bulk(b"cow_size");
        reply.integer(0);
        reply.bulk(b"remaining_repl_size");
        reply.integer(slots::remaining(&ctx.core.state, &job.name) as i64);
    }
    Ok(Outcome::Replied)
}

/// `CLUSTER SYNCSLOTS word [argument ...]`: the messages between two nodes while slots move.
pub fn sync(ctx: &mut Context<'_>) -> CommandResult {
    cluster(&ctx.core.state)?;
    let word = ctx.args.get(2);
    if word.eq_ignore_ascii_case(b"ESTABLISH") {
        return establish(ctx);
    }
    if word.eq_ignore_ascii_case(b"FINISH") {
        return finish(ctx);
    }
    let client = ctx.caller.client();
    // Messages between a primary and its source do not concern its replicas.
    let Some(client) = client else { return Ok(Outcome::Replied) };
    let Some(word) = Word::parse(word) else { return Err(CommandError::Syntax) };
    if word == Word::Capa {
        return Ok(Outcome::Replied);
    }
    if slots::hear_source(ctx.core, client, word).is_none() {
        let word = word.text();
        return Err(error(format!(
            "ERR CLUSTER SYNCSLOTS {word} should only be used by slot migration clients"
        )));
    }
    Ok(Outcome::Replied)
}

/// A name of 40 bytes after the argument `index`. Errors: there is none.
fn name_after(args: Args<'_>, index: usize) -> Result<NodeId, CommandError> {
    let found = (index + 1 < args.len()).then(|| args.get(index + 1));
    found.and_then(NodeId::from_bytes).ok_or(CommandError::Syntax)
}

/// `CLUSTER SYNCSLOTS ESTABLISH SOURCE node-id NAME name SLOTSRANGE first last [first last ...]`:
/// OK, the last answer to this client.
fn establish(ctx: &mut Context<'_>) -> CommandResult {
    let own = cluster(&ctx.core.state)?;
    let client = ctx.caller.client();
    if client.is_some() {
        check(own)?;
    }
    let (args, mut at) = (ctx.args, 3);
    let (mut source, mut name, mut asked) = (None, None, None);
    while at < args.len() {
        let is = |word: &str| args.get(at).eq_ignore_ascii_case(word.as_bytes());
        if is("SOURCE") && source.is_none() {
            let id = name_after(args, at)?;
            at += 2;
            if client.is_none() {
                // The source is not checked: this node may see the cluster differently, or the
                // cluster may have changed since.
                continue;
            }
            let found = own.find(&id).ok_or(UNKNOWN_SOURCE)?;
            if found == own.my_index() {
                return Err(OWN_SOURCE);
            }
            source = Some((id, found));
        } else if is("NAME") && name.is_none() {
            name = Some(name_after(args, at)?);
            at += 2;
        } else if is("SLOTSRANGE") && asked.is_none() {
            let (found, after, owner) = ranges(own, args, at + 1, client.is_some())?;
            let jobs = &ctx.core.state.node.moves.jobs;
            // A primary knows better than this node which moves have ended.
            let may_refuse = client.is_some();
            if may_refuse && slots_in(&found).iter().any(|slot| jobs.imports(slot)) {
                return Err(COMES_ALREADY);
            }
            asked = Some((found, owner));
            at = after;
        } else {
            return Err(CommandError::Syntax);
        }
    }
    let (Some(name), Some((ranges, owner))) = (name, asked) else {
        return Err(CommandError::Syntax);
    };
    let source = match client {
        None => None,
        Some(client) => {
            let (id, index) = source.ok_or(CommandError::Syntax)?;
            if owner != Some(index) {
                return Err(OTHER_OWNER);
            }
            Some((id, client))
        }
    };
    if source.is_some() {
        // Arriving keys must not mix with keys that were left behind here, nor be taken for them.
        let slots = slots_in(&ranges);
        drop_keys(ctx.core, slots.clone());
        finish_drops(ctx, &slots);
    }
    slots::begin_import(ctx.core, (name, ranges), source);
    ctx.effect = Effect::Forced;
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// `CLUSTER SYNCSLOTS FINISH STATE <success | failed> NAME name [MESSAGE text]`: OK. A primary
/// reports the end of a move to it.
fn finish(ctx: &mut Context<'_>) -> CommandResult {
    let (args, mut at) = (ctx.args, 3);
    let (mut name, mut is_success, mut message) = (None, None, None);
    while at < args.len() {
        let is = |word: &str| args.get(at).eq_ignore_ascii_case(word.as_bytes());
        let value = (at + 1 < args.len()).then(|| args.get(at + 1)).ok_or(CommandError::Syntax)?;
        if is("STATE") && is_success.is_none() {
            let success = value.eq_ignore_ascii_case(b"success");
            if !success && !value.eq_ignore_ascii_case(b"failed") {
                return Err(CommandError::Syntax);
            }
            is_success = Some(success);
        } else if is("NAME") && name.is_none() {
            name = Some(name_after(args, at)?);
        } else if is("MESSAGE") && message.is_none() {
            message = Some(value);
        } else {
            return Err(CommandError::Syntax);
        }
        at += 2;
    }
    let (Some(name), Some(is_success)) = (name, is_success) else {
        return Err(CommandError::Syntax);
    };
    // Only the node that tracks a move, or a repeated request, may report its end.
    let is_tracked = ctx
        .core
        .state
        .node
        .moves
        .jobs
        .find(&name)
        .is_some_and(|job| job.phase == Phase::OccurringOnPrimary || ctx.caller.is_repeating());
    let message = String::from_utf8_lossy(message.unwrap_or_default()).into_owned();
    // This node may not have received the request that began the move.
    if !is_tracked && ctx.caller.is_repeating() {
        return Ok(Outcome::Replied);
    }
    if !is_tracked || !slots::finish_tracked(ctx.core, &name, is_success, &message) {
        return Err(NO_JOB);
    }
    ctx.effect = Effect::Forced;
    ctx.reply.ok();
    Ok(Outcome::Replied)
}
