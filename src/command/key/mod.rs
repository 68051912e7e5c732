//! Commands on keys of any type, and on whole databases.

pub(crate) mod bless;
pub(crate) mod dump;
pub(crate) mod expire;
pub(crate) mod migrate;
pub(crate) mod object;
pub(crate) mod scan;
pub(crate) mod sort;

use crate::config::KeyspaceEvents;
use crate::durability::persistence;
use crate::error::CommandError;
use crate::keyspace::{DbIndex, Key, Keyspace};
use crate::roles::replicas;
use crate::state::context::{CommandResult, Context, Effect, Origin, Outcome};
use crate::state::persistence::Purpose;
use crate::state::spec::{
    Categories, CommandSpec, DatabaseUse, Flags, Group, KeyFlags, key, keys, spec,
};
use crate::types::type_name;

const SUM_OF_SHARDS: &[&str] = &["request_policy:multi_shard", "response_policy:agg_sum"];
const ALL_SHARDS_SUCCEED: &[&str] = &["request_policy:all_shards", "response_policy:all_succeeded"];

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    spec("DEL", delete).at_least(2).keys(&[keys(1, -1, 1, KeyFlags::RM_DELETE)]).flags(Flags::WRITE).categories(Categories::KEYSPACE).since("1.0.0")
        .docs("key [key ...]", "Deletes keys and their values.", "O(1) for each key.").tips(SUM_OF_SHARDS),
    spec("UNLINK", delete).at_least(2).keys(&[keys(1, -1, 1, KeyFlags::RM_DELETE)]).flags(Flags::WRITE_FAST).categories(Categories::KEYSPACE).since("4.0.0")
        .docs("key [key ...]", "Deletes keys; their memory is freed in the background.", "O(1) for each key.").tips(SUM_OF_SHARDS),
    spec("EXISTS", exists).at_least(2).keys(&[keys(1, -1, 1, KeyFlags::RO)]).flags(Flags::READONLY_FAST).categories(Categories::KEYSPACE).since("1.0.0")
        .docs("key [key ...]", "Counts the given keys that exist.", "O(1) for each key.").tips(SUM_OF_SHARDS),
    spec("TOUCH", touch).at_least(2).keys(&[keys(1, -1, 1, KeyFlags::RO)]).flags(Flags::READONLY_FAST).categories(Categories::KEYSPACE).since("3.2.1")
        .docs("key [key ...]", "Marks keys as just used, and counts those that exist.", "O(1) for each key.").tips(SUM_OF_SHARDS),
    spec("TYPE", type_of).exactly(2).keys(&[key(1, KeyFlags::RO)]).flags(Flags::READONLY_FAST).categories(Categories::KEYSPACE).since("1.0.0")
        .docs("key", "Returns the type of a key's value.", "O(1)"),
    spec("RENAME", rename).exactly(3).keys(&[key(1, KeyFlags::RW_ACCESS_DELETE), key(2, KeyFlags::OW_UPDATE)]).flags(Flags::WRITE)
        .categories(Categories::KEYSPACE).since("1.0.0")
        .docs("key newkey", "Renames a key, replacing any key of the new name.", "O(1)"),
    spec("RENAMENX", rename_if_absent).exactly(3).keys(&[key(1, KeyFlags::RW_ACCESS_DELETE), key(2, KeyFlags::OW_INSERT)]).flags(Flags::WRITE_FAST)
        .categories(Categories::KEYSPACE).since("1.0.0")
        .docs("key newkey", "Renames a key, unless the new name exists.", "O(1)"),
    spec("COPY", copy).at_least(3).keys(&[key(1, KeyFlags::RO_ACCESS), key(2, KeyFlags::OW_UPDATE)]).databases(DatabaseUse::Options(3))
        .flags(Flags::WRITE_DENYOOM).categories(Categories::KEYSPACE).since("6.2.0")
        .docs("source destination [DB destination-db] [REPLACE]", "Copies a key's value to another key.",
            "O(N), N being the number of elements; O(1) for strings."),
    spec("MOVE", move_key).exactly(3).keys(&[key(1, KeyFlags::RW_ACCESS_UPDATE)]).databases(DatabaseUse::Named(&[2])).flags(Flags::WRITE_FAST)
        .categories(Categories::KEYSPACE).since("1.0.0")
        .docs("key db", "Moves a key to another database.", "O(1)"),
    spec("RANDOMKEY", random_key).exactly(1).flags(Flags::READONLY).categories(Categories::KEYSPACE).since("1.0.0")
        .docs("", "Returns a random key of the database.", "O(1)").tips(&["request_policy:all_shards", "nondeterministic_output"]),
    spec("DBSIZE", database_size).exactly(1).flags(Flags::READONLY_FAST).categories(Categories::KEYSPACE).with(Flags::MARKS_ACCESS).group(Group::Server)
        .since("1.0.0").tips(&["request_policy:all_shards", "response_policy:agg_sum"])
        .docs("", "Counts the keys of the database.", "O(1)"),
    spec("SWAPDB", swap_databases).exactly(3).databases(DatabaseUse::Named(&[1, 2])).flags(Flags::WRITE_FAST).categories(Categories::KEYSPACE_DANGEROUS)
        .group(Group::Server).since("4.0.0")
        .docs("index1 index2", "Swaps two databases for all clients.", "O(1)"),
    spec("FLUSHDB", flush_database).at_least(1).flags(Flags::WRITE).categories(Categories::KEYSPACE_DANGEROUS).group(Group::Server).since("1.0.0")
        .docs("[ASYNC | SYNC]", "Empties the database.", "O(1); O(N) for N keys with SYNC.").tips(ALL_SHARDS_SUCCEED),
    spec("FLUSHALL", flush_all).at_least(1).databases(DatabaseUse::All).flags(Flags::WRITE).categories(Categories::KEYSPACE_DANGEROUS).group(Group::Server)
        .since("1.0.0").tips(ALL_SHARDS_SUCCEED)
        .docs("[ASYNC | SYNC]", "Empties all databases.", "O(1); O(N) for N keys with SYNC."),
];

const NO_COPY: CommandError =
    CommandError::Text("ERR Copying to another database is not allowed in cluster mode");
const NO_MOVE: CommandError = CommandError::Text("ERR MOVE is not allowed in cluster mode");
const NO_SWAPDB: CommandError = CommandError::Text("ERR SWAPDB is not allowed in cluster mode");
const SAME_OBJECT: CommandError =
    CommandError::Text("ERR source and destination objects are the same");
const NOT_AN_INT: CommandError =
    CommandError::ValueOutOfRange("value must between -2147483648 and 2147483647");

/// `DEL key [key ...]` and `UNLINK`: the number of deleted keys. Both free large values in the
/// background.
fn delete(ctx: &mut Context<'_>) -> CommandResult {
    count_keys(ctx, |keyspace, key| keyspace.delete(key, "del"))
}

/// `EXISTS key [key ...]`: the number of existing keys; a repeated one counts again.
fn exists(ctx: &mut Context<'_>) -> CommandResult {
    count_keys(ctx, |keyspace, key| keyspace.find_untouched(key).is_some())
}

/// `TOUCH key [key ...]`: as EXISTS, but counts as an access.
fn touch(ctx: &mut Context<'_>) -> CommandResult {
    // It touches keys even for CLIENT NO-TOUCH ON, in scripts and transactions too.
    let no_touch = std::mem::replace(&mut ctx.core.keyspace.mode.no_touch, false);
    let result = count_keys(ctx, |keyspace, key| keyspace.find_for_read(key).is_some());
    ctx.core.keyspace.mode.no_touch = no_touch;
    result
}

/// Replies with the number of keys for which `counts` returns true.
fn count_keys(
    ctx: &mut Context<'_>,
    mut counts: impl FnMut(&mut Keyspace, Key<'_>) -> bool,
) -> CommandResult {
    let mut count = 0;
    for index in 1..ctx.args.len() {
        let key = ctx.key(index);
        count += counts(&mut ctx.core.keyspace, key) as i64;
    }
    ctx.reply.integer(count);
    Ok(Outcome::Replied)
}

/// `TYPE key`: a simple string, `none` if there is no such key.
fn type_of(ctx: &mut Context<'_>) -> CommandResult {
    let name = match ctx.core.keyspace.find_untouched(ctx.key(1)) {
        Some(slot) => type_name(ctx.core.keyspace.entry(slot).value()),
        None => "none",
    };
    ctx.reply.simple(name);
    Ok(Outcome::Replied)
}

/// `RENAME key newkey`: OK.
fn rename(ctx: &mut Context<'_>) -> CommandResult {
    rename_key(ctx, true)?;
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// `RENAMENX key newkey`: 1, or 0 if `newkey` exists.
fn rename_if_absent(ctx: &mut Context<'_>) -> CommandResult {
    let renamed = rename_key(ctx, false)?;
    ctx.reply.integer(renamed as i64);
    Ok(Outcome::Replied)
}

/// Renames a key; false if the new name exists and may not be overwritten.
fn rename_key(ctx: &mut Context<'_>, overwrite: bool) -> Result<bool, CommandError> {
    let (from, to) = (ctx.key(1), ctx.key(2));
    if ctx.core.keyspace.find_for_write(from).is_none() {
        return Err(CommandError::NoSuchKey);
    }
    if from.bytes == to.bytes {
        return Ok(false);
    }
    let found = ctx.core.keyspace.find_for_write(to);
    if found.is_some() && !overwrite {
        return Ok(false);
    }
    let before = ctx.core.keyspace.type_to_announce(found);
    ctx.core.keyspace.transfer(from, ctx.core.keyspace.selected(), to);
    ctx.core.keyspace.notify(KeyspaceEvents::GENERIC, "rename_from", from.bytes);
    ctx.core.keyspace.changed(KeyspaceEvents::GENERIC, "rename_to", to.bytes);
    ctx.core.keyspace.announce_overwritten(to, before);
    Ok(true)
}

/// COPY's options: `COPY source destination [DB destination-db] [REPLACE]`.
struct CopyOptions {
    database: DbIndex,
    replace: bool,
}

impl CopyOptions {
    fn parse(ctx: &Context<'_>) -> Result<Self, CommandError> {
        let mut options = CopyOptions { database: ctx.core.keyspace.selected(), replace: false };
        let mut refused = Ok(());
        let mut cursor = ctx.args.cursor(3);
        while !cursor.is_at_end() {
            if cursor.take_word("REPLACE") {
                options.replace = true;
            } else if cursor.remaining() >= 2 && cursor.take_word("DB") {
                let is_one = ctx.core.state.has_one_database();
                let databases = match is_one {
                    true => ctx.core.state.config.databases as usize,
                    false => ctx.core.keyspace.databases(),
                };
                options.database = database(cursor.take_integer()?, databases)?;
                if is_one && options.database != DbIndex::ZERO {
                    // A later option may be wrong, whose error comes first.
                    refused = Err(NO_COPY);
                    options.database = DbIndex::ZERO;
                }
            } else {
                return Err(CommandError::Syntax);
            }
        }
        refused.map(|()| options)
    }
}

/// `COPY source destination [DB destination-db] [REPLACE]`: 1, or 0 if there is no source, or the
/// destination exists and REPLACE is not given.
fn copy(ctx: &mut Context<'_>) -> CommandResult {
    let CopyOptions { database, replace } = CopyOptions::parse(ctx)?;
    let (from, to) = (ctx.key(1), ctx.key(2));
    if database == ctx.core.keyspace.selected() && from.bytes == to.bytes {
        return Err(SAME_OBJECT);
    }
    let is_copied = ctx.core.keyspace.find_for_read(from).is_some()
        && (ctx
            .core
            .keyspace
            .in_database(database, |keyspace| keyspace.find_for_write(to))
            .is_none()
            || replace);
    if is_copied {
        let before = ctx.core.keyspace.in_database(database, |keyspace| {
            let found = keyspace.find_quietly(to);
            keyspace.type_to_announce(found)
        });
        ctx.core.keyspace.duplicate(from, database, to);
        ctx.core.keyspace.in_database(database, |keyspace| {
            keyspace.changed(KeyspaceEvents::GENERIC, "copy_to", to.bytes);
            keyspace.announce_overwritten(to, before);
        });
    }
    ctx.reply.integer(is_copied as i64);
    Ok(Outcome::Replied)
}

/// `MOVE key db`: 1, or 0 if there is no such key, or it exists in the other database.
fn move_key(ctx: &mut Context<'_>) -> CommandResult {
    if ctx.core.state.has_one_database() {
        return Err(NO_MOVE);
    }
    let database = database(ctx.args.integer(2)?, ctx.core.keyspace.databases())?;
    if database == ctx.core.keyspace.selected() {
        return Err(SAME_OBJECT);
    }
    let key = ctx.key(1);
    let is_moved = ctx.core.keyspace.find_for_write(key).is_some()
        && ctx
            .core
            .keyspace
            .in_database(database, |keyspace| keyspace.find_for_write(key))
            .is_none();
    if is_moved {
        ctx.core.keyspace.transfer(key, database, key);
        ctx.core.keyspace.notify(KeyspaceEvents::GENERIC, "move_from", key.bytes);
        ctx.core.keyspace.in_database(database, |keyspace| {
            keyspace.changed(KeyspaceEvents::GENERIC, "move_to", key.bytes);
        });
    }
    ctx.reply.integer(is_moved as i64);
    Ok(Outcome::Replied)
}

/// Checks a database number of COPY and MOVE.
fn database(index: i64, databases: usize) -> Result<DbIndex, CommandError> {
    let index = i32::try_from(index).map_err(|_| NOT_AN_INT)?;
    DbIndex::checked(index, databases).ok_or(CommandError::DbIndexOutOfRange)
}

/// `RANDOMKEY`: a random key, uniformly, or nil.
fn random_key(ctx: &mut Context<'_>) -> CommandResult {
    match ctx.core.keyspace.random_key() {
        Some(key) => ctx.reply.bulk(&key),
        None => ctx.reply.null(),
    }
    Ok(Outcome::Replied)
}

/// `DBSIZE`: the number of keys.
fn database_size(ctx: &mut Context<'_>) -> CommandResult {
    let selected = ctx.core.keyspace.selected();
    ctx.reply.integer(ctx.core.keyspace.shown_len(selected) as i64);
    Ok(Outcome::Replied)
}

/// `SWAPDB index1 index2`: OK.
fn swap_databases(ctx: &mut Context<'_>) -> CommandResult {
    if ctx.core.state.node.cluster.is_some() {
        return Err(NO_SWAPDB);
    }
    let number = |index: usize, error: &'static str| {
        let number = ctx.args.integer(index).ok().and_then(|number| i32::try_from(number).ok());
        number.ok_or(CommandError::Text(error))
    };
    let first = number(1, "ERR invalid first DB index")?;
    let second = number(2, "ERR invalid second DB index")?;
    let databases = ctx.core.keyspace.databases();
    ctx.core.keyspace.swap(database(first.into(), databases)?, database(second.into(), databases)?);
    ctx.effect = Effect::Forced;
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// `FLUSHDB [ASYNC | SYNC]`: OK.
fn flush_database(ctx: &mut Context<'_>) -> CommandResult {
    let sync = flushes_synchronously(ctx)?;
    let selected = ctx.core.keyspace.selected();
    ctx.core.state.node.moves.note_flush();
    ctx.core.keyspace.clear(selected, sync);
    ctx.effect = Effect::Forced;
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// `FLUSHALL [ASYNC | SYNC]`: OK.
fn flush_all(ctx: &mut Context<'_>) -> CommandResult {
    let sync = flushes_synchronously(ctx)?;
    ctx.core.state.node.moves.note_flush();
    ctx.core.keyspace.clear_all(sync);
    ctx.effect = Effect::Forced;
    // A snapshot being saved would restore the old data at the next start.
    replicas::abort_job(ctx.core, Purpose::Save);
    if !ctx.core.state.config.save.is_empty()
        && ctx.origin == Origin::Client
        && ctx.caller.client().is_some()
        && ctx.core.state.persistence.under_way().is_none()
    {
        // An error is logged; the data is deleted anyway.
        let _ = persistence::save(ctx.core);
    }
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

/// Whether memory is freed before the reply: only with SYNC, as nothing else is observable.
fn flushes_synchronously(ctx: &Context<'_>) -> Result<bool, CommandError> {
    let mut cursor = ctx.args.cursor(1);
    let sync = cursor.take_word("SYNC");
    if !sync {
        cursor.take_word("ASYNC");
    }
    if cursor.is_at_end() { Ok(sync) } else { Err(CommandError::Syntax) }
}
