//! DUMP and RESTORE: a value in the RDB format (`persist/rdb/payload.rs`).

use crate::client::life::Suspension;
use crate::clock::{Now, UnixMillis};
use crate::config::KeyspaceEvents;
use crate::durability::load::rdb_limits;
use crate::error::CommandError;
use crate::keyspace::Accessed;
use crate::persist::rdb::payload::{self, PayloadError};
use crate::persist::rdb::value_type;
use crate::roles::arriving::PAYLOAD;
use crate::state::arriving::{Restored, Taken};
use crate::state::context::{CommandResult, Context, Origin, Outcome};
use crate::state::spec::{Categories, CommandSpec, Flags, Group, Handler, KeySpec, spec};
use crate::sys::log::Level;

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    spec("DUMP", dump).exactly(2).keys(KeySpec::RO_ACCESS).flags(Flags::READONLY).categories(Categories::KEYSPACE).since("2.6.0")
        .docs("key", "Returns a key's value as bytes for RESTORE.", "O(N), N being the bytes of the value.").tips(&["nondeterministic_output"]),
    restores("RESTORE", Flags::empty()).since("2.6.0"),
    restores("RESTORE-ASKING", Flags::ASKING).group(Group::Server).since("3.0.0"),
];

const fn restores(name: &'static str, more: Flags) -> CommandSpec {
    let handler: Handler = restore;
    spec(name, handler)
        .at_least(4)
        .keys(KeySpec::OW_UPDATE)
        .flags(Flags::WRITE.union(Flags::DENYOOM).union(more))
        .categories(Categories::KEYSPACE_DANGEROUS)
        .docs(
            "key ttl serialized-value [REPLACE] [ABSTTL] [IDLETIME seconds] [FREQ frequency]",
            "Creates a key from the bytes returned by DUMP.",
            "O(N), N being the bytes of the value; O(N*log(N)) for sorted sets.",
        )
}

const BUSY_KEY: CommandError = CommandError::Text("BUSYKEY Target key name already exists.");
const INVALID_IDLE_TIME: CommandError =
    CommandError::Text("ERR Invalid IDLETIME value, must be >= 0");
const INVALID_FREQUENCY: CommandError =
    CommandError::Text("ERR Invalid FREQ value, must be >= 0 and <= 255");
const INVALID_TTL: CommandError = CommandError::Text("ERR Invalid TTL value, must be >= 0");
const BAD_FOOTER: CommandError =
    CommandError::Text("ERR DUMP payload version or checksum are wrong");
/// Larger payloads are decoded by a thread. Unit: bytes.
const DECODED_HERE_MAX: usize = 128 * 1024;
const BAD_DATA: CommandError = CommandError::Text("ERR Bad data format");

/// `DUMP key`: a bulk string, or nil if there is no such key.
fn dump(ctx: &mut Context<'_>) -> CommandResult {
    match ctx.core.keyspace.find_for_read(ctx.key(1)) {
        Some(slot) => {
            let now = ctx.core.keyspace.now();
            let encoder = ctx.core.state.payload_encoder(ctx.core.keyspace.lease_shift_ms());
            let payload =
                payload::dump_as_in_files(encoder, ctx.core.keyspace.entry(slot).value(), &now);
            ctx.reply.bulk(&payload);
        }
        None => ctx.reply.null(),
    }
    Ok(Outcome::Replied)
}

/// RESTORE's options: `key ttl serialized-value [REPLACE] [ABSTTL] [IDLETIME seconds] [FREQ
/// frequency]`.
struct RestoreOptions {
    replace: bool,
    absolute: bool,
    accessed: Option<Accessed>,
}

impl RestoreOptions {
    fn parse(ctx: &Context<'_>) -> Result<Self, CommandError> {
        let mut options = RestoreOptions { replace: false, absolute: false, accessed: None };
        let mut cursor = ctx.args.cursor(4);
        while !cursor.is_at_end() {
            let has_value = cursor.remaining() >= 2;
            if cursor.take_word("REPLACE") {
                options.replace = true;
            } else if cursor.take_word("ABSTTL") {
                options.absolute = true;
            } else if has_value
                && !matches!(options.accessed, Some(Accessed::Frequency(_)))
                && cursor.take_word("IDLETIME")
            {
                let seconds = u64::try_from(cursor.take_integer()?);
                let seconds = seconds.map_err(|_| INVALID_IDLE_TIME)?;
                options.accessed = Some(Accessed::SecondsAgo(seconds));
            } else if has_value
                && !matches!(options.accessed, Some(Accessed::SecondsAgo(_)))
                && cursor.take_word("FREQ")
            {
                let counter = u8::try_from(cursor.take_integer()?);
                options.accessed =
                    Some(Accessed::Frequency(counter.map_err(|_| INVALID_FREQUENCY)?));
            } else {
                return Err(CommandError::Syntax);
            }
        }
        Ok(options)
    }
}

/// Decodes the payload; a client's large payload is decoded by a thread. None: the client waits for
/// the thread, and then the request runs again.
fn decode(ctx: &mut Context<'_>, now: Now) -> Option<Restored> {
    let payload = ctx.args.get(PAYLOAD);
    // A string is only copied, which would not be cheaper in a thread.
    let is_large = payload.len() > DECODED_HERE_MAX && payload.first() != Some(&value_type::STRING);
    let client = ctx.caller.client().filter(|_| is_large && ctx.origin == Origin::Client);
    let taken = client.map_or(Taken::NoThread, |id| ctx.core.state.arriving.take(id, payload));
    if let Taken::Value(restored) = taken {
        return Some(restored);
    }
    let limits = rdb_limits(ctx.core);
    let checks = !ctx.core.state.debug.skips_payload_checksum;
    if let (Taken::Absent, Some(id)) = (taken, client) {
        let decode = move |payload: &[u8]| payload::restore_checked(payload, &limits, now, checks);
        ctx.core.state.arriving.ask(id, payload, Box::new(decode));
        ctx.core.state.clients.suspend(id, Suspension::UntilRetry);
        return None;
    }
    Some(payload::restore_checked(payload, &limits, now, checks))
}

/// `RESTORE key ttl serialized-value [REPLACE] [ABSTTL] [IDLETIME seconds] [FREQ frequency]`: OK.
/// `ttl` in milliseconds, with ABSTTL as Unix time; 0: no deadline. With a past time the key does
/// not exist afterwards.
///
/// Its effect has ABSTTL, or is a DEL if it only deleted a key.
fn restore(ctx: &mut Context<'_>) -> CommandResult {
    let options = RestoreOptions::parse(ctx)?;
    let key = ctx.key(1);
    if !options.replace && ctx.core.keyspace.find_for_write(key).is_some() {
        return Err(BUSY_KEY);
    }
    let ttl = ctx.args.integer(2)?;
    if ttl < 0 {
        return Err(INVALID_TTL);
    }
    let now = ctx.core.keyspace.now();
    let Some(restored) = decode(ctx, now) else { return Ok(Outcome::Postponed) };
    let value = restored.map_err(|error| match error {
        PayloadError::Footer => BAD_FOOTER,
        PayloadError::Value(error) => {
            let form = value_type::name(*ctx.args.get(PAYLOAD).first().unwrap_or(&u8::MAX));
            let text = format_args!("Payload of RESTORE: {form} integrity check failed: {error}");
            ctx.core.state.log(Level::Warning, text);
            BAD_DATA
        }
    })?;
    let deadline = match (ttl, options.absolute) {
        (0, _) => None,
        (ttl, true) => Some(now.at(UnixMillis(ttl))),
        (ttl, false) => Some(now.after(ttl)),
    };
    if deadline.is_some_and(|deadline| now.has_come(deadline)) {
        if ctx.core.keyspace.delete(key, "del") {
            ctx.instead_deleted(key.bytes);
        }
        if ctx.core.state.config.compatible_with.is_redis_8() {
            ctx.core.keyspace.stats.expired += 1;
        }
        ctx.reply.ok();
        return Ok(Outcome::Replied);
    }
    let found = ctx.core.keyspace.find(key);
    let before = ctx.core.keyspace.type_to_announce(found);
    let slot = ctx.core.keyspace.restore(key, value, deadline);
    ctx.core.keyspace.note_restored(slot, key.bytes, ctx.is_repeated());
    ctx.core.keyspace.changed(KeyspaceEvents::GENERIC, "restore", key.bytes);
    ctx.core.keyspace.announce_overwritten(key, before);
    if let Some(accessed) = options.accessed {
        ctx.core.keyspace.set_accessed(slot, accessed);
    }
    if let Some(deadline) = deadline
        && !options.absolute
        && ctx.is_heard()
    {
        let at = deadline.unix(ctx.core.keyspace.shown_offset_ms()).0.to_string();
        let mut request: Vec<&[u8]> = ctx.args.iter_from(0).collect();
        request[2] = at.as_bytes();
        request.push(b"ABSTTL");
        ctx.instead(&request);
    }
    ctx.reply.ok();
    Ok(Outcome::Replied)
}
