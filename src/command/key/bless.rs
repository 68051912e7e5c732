//! BLESS, as Redis 8.12 has it: keys that are never evicted.
//!
//! A blessing lasts as long as its key: another value, a deadline and another name do not end it.
//! It is kept in the key's access bits (`keyspace/evict.rs`).

use crate::command::help::help_from_specs;
use crate::command::key::scan::{is_alive, reply_scanned, scan_cursor};
use crate::config::KeyspaceEvents;
use crate::error::CommandError;
use crate::keyspace::evict::BLESSED;
use crate::state::context::{CommandResult, Context, Outcome};
use crate::state::spec::{Categories, CommandSpec, Flags, Handler, KeyFlags, container, key, spec};

const fn bless(name: &'static str, handler: Handler) -> CommandSpec {
    spec(name, handler).since("8.12.0")
}

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    container("BLESS", &[
        bless("SET", set).exactly(4).flags(Flags::WRITE_DENYOOM_FAST).categories(Categories::DANGEROUS).keys(&[key(2, KeyFlags::RW_UPDATE)])
            .docs("key NO-EVICT", "Protects a key from eviction.", "O(1)"),
        bless("CLEAR", clear).exactly(4).flags(Flags::WRITE_FAST).categories(Categories::DANGEROUS).keys(&[key(2, KeyFlags::RW_UPDATE)])
            .docs("key NO-EVICT", "Ends the protection of a key from eviction.", "O(1)"),
        bless("GET", get).exactly(3).flags(Flags::READONLY_FAST).keys(&[key(2, KeyFlags::RO)])
            .docs("key", "Returns what a key is protected from.", "O(1)"),
        bless("SCAN", scan).at_least(4).flags(Flags::READONLY).categories(Categories::KEYSPACE)
            .tips(&["nondeterministic_output", "request_policy:special"])
            .docs("cursor NO-EVICT [COUNT count]", "Iterates over the protected keys of the database, some in each call.",
                "O(COUNT) for each call, O(N) for the whole walk, N being the number of all keys"),
        bless("HELP", help_from_specs).exactly(2).flags(Flags::LOADING_STALE).docs("", "Prints this help.", "O(1)"),
    ]).since("8.12.0")
        .docs("", "Commands about keys that are never evicted.", "Depends on the subcommand"),
];

/// The keys that BLESS SCAN visits in a call.
const COUNT_DEFAULT: u64 = 1024;

/// Checks the argument that must be `NO-EVICT`.
fn check_protection(ctx: &Context<'_>, index: usize) -> Result<(), CommandError> {
    match ctx.args.get(index).eq_ignore_ascii_case(b"NO-EVICT") {
        true => Ok(()),
        false => Err(CommandError::Syntax),
    }
}

/// `BLESS SET key NO-EVICT`: 1, or 0 if it is protected already.
fn set(ctx: &mut Context<'_>) -> CommandResult {
    change(ctx, true)
}

/// `BLESS CLEAR key NO-EVICT`: 1, or 0 if it is not protected.
fn clear(ctx: &mut Context<'_>) -> CommandResult {
    change(ctx, false)
}

fn change(ctx: &mut Context<'_>, is_blessed: bool) -> CommandResult {
    check_protection(ctx, 3)?;
    let key = ctx.key(2);
    let keyspace = &mut ctx.core.keyspace;
    let slot = keyspace.find(key).ok_or(CommandError::NoSuchKey)?;
    let changes = keyspace.is_blessed(slot) != is_blessed;
    if changes {
        keyspace.set_blessed(slot, is_blessed);
        let event = if is_blessed { "bless" } else { "unbless" };
        keyspace.changed(KeyspaceEvents::GENERIC, event, key.bytes);
    }
    ctx.reply.integer(changes.into());
    Ok(Outcome::Replied)
}

/// `BLESS GET key`: an array, `NO-EVICT` or nothing.
fn get(ctx: &mut Context<'_>) -> CommandResult {
    let slot = ctx.core.keyspace.find(ctx.key(2)).ok_or(CommandError::NoSuchKey)?;
    let is_blessed = ctx.core.keyspace.is_blessed(slot);
    ctx.reply.array(is_blessed.into());
    if is_blessed {
        ctx.reply.bulk(b"NO-EVICT");
    }
    Ok(Outcome::Replied)
}

/// `BLESS SCAN cursor NO-EVICT [COUNT count]`: the next cursor and an array of keys, as SCAN.
fn scan(ctx: &mut Context<'_>) -> CommandResult {
    let cursor = scan_cursor(ctx, 2)?;
    check_protection(ctx, 3)?;
    let mut count = COUNT_DEFAULT;
    let mut arguments = ctx.args.cursor(4);
    while !arguments.is_at_end() {
        if arguments.remaining() < 2 || !arguments.take_word("COUNT") {
            return Err(CommandError::Syntax);
        }
        let given = u64::try_from(arguments.take_integer()?);
        count = given.ok().filter(|&count| count > 0).ok_or(CommandError::Syntax)?;
    }
    reply_scanned(ctx, cursor, count, |now, entry| {
        entry.access() == BLESSED && is_alive(now, entry)
    });
    Ok(Outcome::Replied)
}
