//! HIMPORT, as Redis 8.10 has it: hashes with the same fields, whose names are sent once.
//!
//! A hash that is made in this way is like any other. The names belong to the connection
//! (`client/field_sets.rs`); replicas and files get DEL and HSET, or HSET, HDEL and PERSIST if the
//! key is blessed.

use std::collections::HashSet;

use crate::client::field_sets::FieldSets;
use crate::clock::Expiry;
use crate::command::hash::limits;
use crate::command::help::help_from_specs;
use crate::config::KeyspaceEvents;
use crate::error::CommandError;
use crate::state::context::{CommandResult, Context, Origin, Outcome};
use crate::state::spec::{CommandSpec, Flags, Group, Handler, KeyFlags, container, key, spec};
use crate::types::hash::Hash;
use crate::types::journal::Edit;

const fn himport(name: &'static str, handler: Handler) -> CommandSpec {
    spec(name, handler).flags(Flags::NEEDS_CLIENT).group(Group::Hash).since("8.10.0")
}

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    container("HIMPORT", &[
        himport("PREPARE", prepare).at_least(4).with(Flags::DENYOOM).tips(&["request_policy:all_shards"])
            .docs("fieldset field [field ...]", "Names the fields of hashes that this connection will set.", "O(N) where N is the number of fields"),
        himport("SET", set).at_least(5).with(Flags::WRITE_DENYOOM).keys(&[key(2, KeyFlags::OW_UPDATE)])
            .docs("key fieldset value [value ...]", "Sets a hash with the fields that were named before.", "O(N) where N is the number of fields"),
        himport("DISCARD", discard).exactly(3).tips(&["request_policy:all_shards"])
            .docs("fieldset", "Forgets the names of fields.", "O(N) where N is the number of fields"),
        himport("DISCARDALL", discard_all).exactly(2).tips(&["request_policy:all_shards"])
            .docs("", "Forgets all names of fields of this connection.", "O(N) where N is the number of fields"),
        spec("HELP", help_from_specs).exactly(2).flags(Flags::LOADING_STALE).group(Group::Hash).since("8.10.0")
            .docs("", "Prints this help.", "O(1)"),
    ]).group(Group::Hash).since("8.10.0")
        .docs("", "Commands that set hashes with the same fields.", "Depends on the subcommand"),
];

const NO_SUCH_SET: CommandError = CommandError::Text("ERR no such fieldset");
const FIELD_TWICE: CommandError = CommandError::Text("ERR duplicate field name in fieldset");
const OTHER_COUNT: CommandError =
    CommandError::Text("ERR value count does not match fieldset field count");
const TOO_MUCH: CommandError =
    CommandError::Text("ERR the fieldsets of a connection may take at most 16 MB");

/// The sets of the connection, or of the script that runs.
fn sets<'c>(ctx: &'c mut Context<'_>) -> &'c mut FieldSets {
    match ctx.origin {
        Origin::Script => &mut ctx.core.state.in_script.field_sets,
        _ => ctx.client().field_sets.get_or_insert_default(),
    }
}

/// `HIMPORT PREPARE fieldset field [field ...]`: OK.
fn prepare(ctx: &mut Context<'_>) -> CommandResult {
    let (args, mut seen) = (ctx.args, HashSet::new());
    if !args.iter_from(3).all(|field| seen.insert(field)) {
        return Err(FIELD_TWICE);
    }
    if !sets(ctx).prepare(args.get(2), args.iter_from(3)) {
        return Err(TOO_MUCH);
    }
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// `HIMPORT SET key fieldset value [value ...]`: OK. The hash has only these fields then, and no
/// deadline.
fn set(ctx: &mut Context<'_>) -> CommandResult {
    let (key, args) = (ctx.key(2), ctx.args);
    let found = ctx.core.keyspace.slot_of::<Hash>(key)?;
    let fields = sets(ctx).get(args.get(3)).ok_or(NO_SUCH_SET)?;
    let values = args.iter_from(4);
    if fields.len() != values.len() {
        return Err(OTHER_COUNT);
    }
    let (limits, now) = (limits(ctx), ctx.core.keyspace.now());
    // A blessing ends with its key, and a Redis that does not know BLESS would refuse the whole
    // transaction with it: so replicas and files do not delete a blessed key.
    let is_blessed = found.is_some_and(|slot| ctx.core.keyspace.is_blessed(slot));
    let mut gone = Vec::new();
    if is_blessed && let Some(old) = ctx.core.keyspace.read::<Hash>(key)? {
        let kept: HashSet<&[u8]> = fields.iter().map(|field| &**field).collect();
        old.for_each(&now, |field, _| {
            if !kept.contains(field) {
                gone.push(field.to_vec());
            }
        });
    }
    let pairs = || fields.iter().map(|field| &**field).zip(args.iter_from(4));
    let mut hash = Hash::default();
    let mut edit = Edit::unnoted(&mut hash);
    edit.prepare(pairs().flat_map(|(field, value)| [field, value]), &limits);
    for (field, value) in pairs() {
        edit.set(field, value, Expiry::Clear, &limits, &now);
    }
    ctx.core.keyspace.set_collection(found, key, hash, Expiry::Clear);
    ctx.core.keyspace.changed_by(fields.len() as u64, KeyspaceEvents::HASH, "hset", key.bytes);
    ctx.core.keyspace.notify_fields("hset", key.bytes, pairs().map(|(field, _)| field));
    if found.is_some() && !is_blessed {
        ctx.instead(&[b"DEL", key.bytes]);
    }
    let words = pairs().flat_map(|(field, value)| [field, value]);
    let request = [&b"HSET"[..], key.bytes].into_iter().chain(words);
    ctx.instead(&request.collect::<Vec<_>>());
    if !gone.is_empty() {
        let request = [&b"HDEL"[..], key.bytes].into_iter().chain(gone.iter().map(Vec::as_slice));
        ctx.instead(&request.collect::<Vec<_>>());
    }
    if is_blessed {
        ctx.instead(&[b"PERSIST", key.bytes]);
    }
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// `HIMPORT DISCARD fieldset`: 1, or 0 if there is none of this name.
fn discard(ctx: &mut Context<'_>) -> CommandResult {
    let name = ctx.args.get(2);
    let was_there = sets(ctx).discard(name);
    ctx.reply.integer(was_there.into());
    Ok(Outcome::Replied)
}

/// `HIMPORT DISCARDALL`: the number of sets.
fn discard_all(ctx: &mut Context<'_>) -> CommandResult {
    let sets = std::mem::take(sets(ctx));
    ctx.reply.integer(sets.len() as i64);
    Ok(Outcome::Replied)
}
