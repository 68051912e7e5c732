//! Strings.

use super::context::{CommandResult, Context, Outcome};
use super::spec::{CommandSpec, Flags, Group, KeyFlags, key, spec};
use crate::error::CommandError;
use crate::keyspace::Expiry;
use crate::config::KeyspaceEvents;

pub const COMMANDS: &[CommandSpec] = &[
    spec("GET", get)
        .exactly(2)
        .keys(&[key(1, KeyFlags::RO.union(KeyFlags::ACCESS))])
        .flags(Flags::READONLY.union(Flags::FAST))
        .group(Group::String)
        .since("1.0.0")
        .docs("key", "Returns the string a key holds.", "O(1)"),
    spec("SET", set)
        .at_least(3)
        .keys(&[key(1, KeyFlags::RW.union(KeyFlags::ACCESS).union(KeyFlags::UPDATE))])
        .flags(Flags::WRITE.union(Flags::DENYOOM))
        .group(Group::String)
        .since("1.0.0")
        .docs("key value", "Sets a key to a string.", "O(1)"),
];

/// `GET key`: the string, or nil.
fn get(ctx: &mut Context<'_>) -> CommandResult {
    match ctx.db.string(ctx.key(1))? {
        Some(value) => ctx.reply.bulk(value),
        None => ctx.reply.null(),
    }
    Ok(Outcome::Replied)
}

/// `SET key value`.
fn set(ctx: &mut Context<'_>) -> CommandResult {
    if ctx.args.len() > 3 {
        return Err(CommandError::Syntax);
    }
    let key = ctx.key(1);
    ctx.db.set_string(key, ctx.args.get(2), Expiry::Clear);
    ctx.db.changed(KeyspaceEvents::STRING, "set", key.bytes);
    ctx.reply.ok();
    Ok(Outcome::Replied)
}
