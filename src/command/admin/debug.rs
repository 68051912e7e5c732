//! DEBUG: subcommands for tests, if `enable-debug-command` allows them.

use std::time::Duration;

use sha1::{Digest, Sha1};

use crate::collections::glob;
use crate::collections::table::{Entry, Slot, ValueRef};
use crate::command::admin::effects::effects;
use crate::command::admin::{reload, restart};
use crate::command::cluster;
use crate::command::help::reply_help;
use crate::command::key::object::encoding_name;
use crate::config::{AccessKind, parse_memory};
use crate::durability::persistence;
use crate::error::CommandError;
use crate::keyspace::{DbIndex, Expiry, Key, Keyspace};
use crate::resp::number;
use crate::resp::reply::Protocol;
use crate::resp::request::encode;
use crate::state::context::{CommandResult, Context, Outcome};
use crate::state::spec::{CommandSpec, Flags, Group, spec};
use crate::sys::log::{Level, warning};
use crate::sys::{alloc, crash, jemalloc};
use crate::types::hash::Hash;
use crate::types::list::List;
use crate::types::set::Set;
use crate::types::sorted_set::SortedSet;
use crate::types::stream::{Stream, StreamId};
use crate::types::string::StringView;
use crate::types::{Collection, Value};

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    spec("DEBUG", debug).at_least(2).flags(Flags::ADMIN.union(Flags::NOSCRIPT).union(Flags::LOADING).union(Flags::STALE).union(Flags::PROTECTED))
        .group(Group::Server).since("1.0.0")
        .docs("subcommand [arg [arg ...]]", "Inspects the server, for tests.", "Depends on the subcommand"),
];

/// `DEBUG subcommand [arg ...]`.
fn debug(ctx: &mut Context<'_>) -> CommandResult {
    let name = ctx.args.get(1).to_ascii_lowercase();
    let count = ctx.args.len();
    // As in Redis a subcommand with a wrong number of arguments is an unknown one.
    match (name.as_slice(), count) {
        (b"help", 2) => help(ctx),
        (b"sleep", 3) => sleep(ctx),
        (b"set-active-expire", 3) => {
            ctx.core.keyspace.expiring.is_active = flag(ctx);
            ok(ctx)
        }
        (b"pause-cron", 3) => {
            ctx.core.state.debug.cron_paused = flag(ctx);
            ok(ctx)
        }
        (b"set-skip-checksum-validation", 3) => {
            ctx.core.state.debug.skips_payload_checksum = flag(ctx);
            ok(ctx)
        }
        (b"aof-flush-sleep", 3) => {
            let micros = u64::try_from(ctx.args.integer(2)?).unwrap_or(0);
            persistence::set_flush_delay(&mut ctx.core.state, Duration::from_micros(micros));
            ok(ctx)
        }
        (b"object", 3..) => object(ctx),
        (b"sdslen", 3) => sdslen(ctx),
        (b"htstats", 3) => htstats(ctx),
        (b"htstats-key", 3) => htstats_key(ctx),
        (b"reload" | b"loadaof" | b"effects", _)
            if ctx.core.state.persistence.loading.is_some() =>
        {
            Err(CommandError::LOADING)
        }
        (b"reload", 2..) => reload::reload(ctx),
        (b"loadaof", 2) => reload::load_aof(ctx),
        (b"restart", 2..) => restart::restart(ctx),
        (b"crash-and-recover", 2..) => restart::crash_and_recover(ctx),
        (b"digest", 2) => digest(ctx),
        (b"digest-value", 2..) => digest_value(ctx),
        (b"populate", 3..=5) => populate(ctx),
        (b"protocol", 3) => protocol(ctx),
        (b"quicklist-packed-threshold", 3) => quicklist_packed_threshold(ctx),
        (b"replybuffer", 4) => reply_buffer(ctx),
        (b"log", 3) => log(ctx),
        (b"config-rewrite-force-all", 2) => match ctx.core.state.config.rewrite_all() {
            Ok(()) => ok(ctx),
            Err(error) => Err(CommandError::formatted(error.reply())),
        },
        (b"effects", 3..) => effects(ctx),
        (b"error", 3) => error(ctx),
        (b"change-repl-id", 2) => change_replication_id(ctx),
        (b"replicate", 3..) => replicate(ctx),
        (b"mallctl", 3..) => mallctl(ctx),
        (b"mallctl-str", 3..) => mallctl_text(ctx),
        (b"stringmatch-len", 4) => {
            let found = glob::matches(ctx.args.get(2), ctx.args.get(3), false);
            ctx.reply.integer(found as i64);
            Ok(Outcome::Replied)
        }
        (b"segfault", 2) => crash::access_bad_memory(),
        (b"panic", 2) => fail(ctx, "DEBUG PANIC asked for it"),
        (b"assert", 2) => fail(ctx, "DEBUG ASSERT asked for it: 1 == 2 does not hold"),
        (b"oom", 2) => {
            // More than available: the allocator's failure ends the process.
            std::hint::black_box(Vec::<u8>::with_capacity(isize::MAX as usize));
            fail(ctx, "the allocator has granted memory that is not there")
        }
        (b"drop-cluster-packet-filter", 3) => cluster::debug::drop_packets(ctx),
        (b"close-cluster-link-on-packet-drop", 3) => {
            cluster::debug::switch(ctx, |faults| &mut faults.closes_on_drop)
        }
        (b"disable-cluster-random-ping", 3) => {
            cluster::debug::switch(ctx, |faults| &mut faults.pings_nobody)
        }
        (b"disable-cluster-reconnection", 3) => {
            cluster::debug::switch(ctx, |faults| &mut faults.stays_apart)
        }
        (b"internal_secret", 2) => cluster::debug::internal_secret(ctx),
        (b"slotmigration", 4) => cluster::debug::slot_migration(ctx),
        (b"clusterlink", 5) if ctx.args.get(2).eq_ignore_ascii_case(b"kill") => {
            cluster::debug::kill_link(ctx)
        }
        (b"set-disable-deny-scripts", 3) => {
            ctx.core.state.scripts.denies_nothing = flag(ctx);
            ok(ctx)
        }
        _ => Err(unknown(ctx)),
    }
}

fn ok(ctx: &mut Context<'_>) -> CommandResult {
    ctx.reply.ok();
    Ok(Outcome::Replied)
}

fn unknown(ctx: &Context<'_>) -> CommandError {
    let name = ctx.args.get(1);
    CommandError::wrong_subcommand("DEBUG", &name[..name.len().min(128)])
}

/// Argument 2 as C's `atoi` reads a switch: anything but a non-zero number is off.
fn flag(ctx: &Context<'_>) -> bool {
    number::parse_i64(ctx.args.get(2)).is_some_and(|number| number != 0)
}

/// The key in argument 2, even if expired and not deleted yet. Not an access.
fn find(ctx: &mut Context<'_>) -> Result<Slot, CommandError> {
    let key = ctx.key(2);
    ctx.core.keyspace.table().find(key.hash, key.bytes).ok_or(CommandError::NoSuchKey)
}

/// `DEBUG SLEEP seconds`: blocks the whole server.
fn sleep(ctx: &mut Context<'_>) -> CommandResult {
    let seconds = number::parse_f64(ctx.args.get(2)).unwrap_or(0.0);
    // Negative and infinite durations are ignored.
    ctx.core.state.clock.sleep(Duration::try_from_secs_f64(seconds).unwrap_or_default());
    // After a transaction, woken clients must see the expiry of keys during it. In a script time
    // stands still.
    if ctx.core.state.scripts.running.is_none() {
        let now = ctx.core.state.clock.now();
        ctx.core.state.now = now;
        ctx.core.keyspace.set_now(now);
    }
    ok(ctx)
}

/// Bytes of a string in an RDB file, without compression.
fn serialized_len(bytes: &[u8]) -> usize {
    match number::parse_i64(bytes) {
        Some(value) if i8::try_from(value).is_ok() => return 2,
        Some(value) if i16::try_from(value).is_ok() => return 3,
        Some(value) if i32::try_from(value).is_ok() => return 5,
        _ => {}
    }
    let header = match bytes.len() {
        0..64 => 1,
        64..16_384 => 2,
        16_384..=0xffff_ffff => 5,
        _ => 9,
    };
    header + bytes.len()
}

/// `DEBUG OBJECT key`: a status line.
fn object(ctx: &mut Context<'_>) -> CommandResult {
    let slot = find(ctx)?;
    let keyspace = &ctx.core.keyspace;
    let entry = keyspace.entry(slot);
    let serialized = keyspace.string_at(slot).map_or(0, |text| serialized_len(&text.whole()));
    let idle = if keyspace.access.kind == AccessKind::Counted {
        0
    } else {
        keyspace.idle_seconds(entry.access())
    };
    let text = format!(
        "Value at:{:p} refcount:1 encoding:{} serializedlength:{serialized} lru:{} \
         lru_seconds_idle:{idle}",
        entry.key().as_ptr(),
        encoding_name(entry.value(), &ctx.core.state.config.redis_version),
        entry.access(),
    );
    ctx.reply.simple(text);
    Ok(Outcome::Replied)
}

/// `DEBUG SDSLEN key`: lengths and allocated sizes of key and value.
fn sdslen(ctx: &mut Context<'_>) -> CommandResult {
    let slot = find(ctx)?;
    let entry = ctx.core.keyspace.entry(slot);
    let (len, spare, allocated) = match entry.value() {
        ValueRef::Bytes { bytes, .. } => (bytes.len(), 0, 0),
        ValueRef::Object(Value::String(bytes)) => {
            let spare = bytes.spare();
            (bytes.len(), spare, alloc::size_class(bytes.len() + spare))
        }
        ValueRef::Object(_) => (0, 0, 0),
    };
    // Key and value share an allocation, which is counted as the key's.
    let text = format!(
        "key_sds_len:{}, key_sds_avail:0, key_zmalloc: {}, val_sds_len:{len}, \
         val_sds_avail:{spare}, val_zmalloc: {allocated}",
        entry.key().len(),
        entry.allocated(),
    );
    ctx.reply.simple(text);
    Ok(Outcome::Replied)
}

/// `DEBUG HTSTATS db`: statistics of a database's table.
fn htstats(ctx: &mut Context<'_>) -> CommandResult {
    let number = ctx.args.integer(2)?;
    let Some(database) = DbIndex::checked(number, ctx.core.keyspace.databases()) else {
        return Err(CommandError::Text("ERR Out of range database"));
    };
    let table = ctx.core.keyspace.table_of(database);
    let text = format!(
        "[Dictionary HT]\nHash table 0 stats (main hash table):\n number of elements: {}\n \
         bytes: {}\n[Expires HT]\n number of elements: {}\n",
        table.len(),
        table.memory(),
        table.volatile_len(),
    );
    ctx.reply.verbatim(b"txt", text.as_bytes());
    Ok(Outcome::Replied)
}

/// `DEBUG HTSTATS-KEY key`: statistics of the hash table of a large hash, set or sorted set.
fn htstats_key(ctx: &mut Context<'_>) -> CommandResult {
    let slot = find(ctx)?;
    match ctx.core.keyspace.entry(slot).value() {
        ValueRef::Object(value) if matches!(value.encoding(), "hashtable" | "skiplist") => {
            let text = format!(
                "[Dictionary HT]\nHash table 0 stats (main hash table):\n bytes: {}\n \
                 allocations: {}\n",
                value.heap_bytes(),
                value.free_effort(),
            );
            ctx.reply.verbatim(b"txt", text.as_bytes());
            Ok(Outcome::Replied)
        }
        _ => Err(CommandError::Text(
            "ERR The value stored at the specified key is not represented using an hash table",
        )),
    }
}

/// `DEBUG LOG message`: a line in the log.
fn log(ctx: &mut Context<'_>) -> CommandResult {
    let message = String::from_utf8_lossy(ctx.args.get(2));
    warning!(ctx.core.state, "DEBUG LOG: {message}");
    ok(ctx)
}

/// `DEBUG CHANGE-REPL-ID`: starts a new replication history.
fn change_replication_id(ctx: &mut Context<'_>) -> CommandResult {
    ctx.core.state.replication.begin_history();
    let message = format_args!("Changing replication IDs after receiving change-repl-id");
    ctx.core.state.log(Level::Warning, message);
    ok(ctx)
}

/// `DEBUG REPLICATE argument [argument ...]`: adds a request to the replication stream.
fn replicate(ctx: &mut Context<'_>) -> CommandResult {
    persistence::spread_effects(&mut ctx.core.state);
    let mut request = Vec::new();
    encode(ctx.args.iter_from(2), &mut request);
    if !ctx.core.state.replication.is_replica() {
        ctx.core.state.replication.feed(&request);
    }
    ok(ctx)
}

// ---- digest -------------------------------------------------------------------------------------

/// A digest that is independent of the order in which parts are added by [`DataDigest::add`].
#[derive(Clone, Copy, Default)]
struct DataDigest([u8; 20]);

impl DataDigest {
    /// Adds a part, in any order.
    fn add(&mut self, bytes: &[u8]) {
        self.add_pieces([bytes].into_iter());
    }

    /// The same for bytes in pieces.
    fn add_pieces<'a>(&mut self, pieces: impl Iterator<Item = &'a [u8]>) {
        let mut hash = Sha1::new();
        pieces.for_each(|piece| hash.update(piece));
        let hash = hash.finalize();
        self.0.iter_mut().zip(hash.iter()).for_each(|(byte, hash)| *byte ^= hash);
    }

    /// Adds a part whose order matters.
    fn mix(&mut self, bytes: &[u8]) {
        self.mix_pieces([bytes].into_iter());
    }

    /// The same for bytes in pieces.
    fn mix_pieces<'a>(&mut self, pieces: impl Iterator<Item = &'a [u8]>) {
        self.add_pieces(pieces);
        let hash = Sha1::digest(self.0);
        self.0.copy_from_slice(&hash);
    }

    fn hex(&self) -> String {
        base16ct::lower::encode_string(&self.0)
    }
}

/// Type numbers in digests.
const STRING_TYPE: u32 = 0;
const LIST_TYPE: u32 = 1;
const SET_TYPE: u32 = 2;
const SORTED_SET_TYPE: u32 = 3;
const HASH_TYPE: u32 = 4;
const STREAM_TYPE: u32 = 6;

/// Mixes a value and whether it has a deadline into a digest.
fn mix_value(digest: &mut DataDigest, entry: Entry<'_, Value>) {
    mix_contents(digest, entry);
    if entry.deadline().is_some() {
        digest.add(b"!!expire!!");
    }
}

/// Mixes a value's type and content into a digest.
fn mix_contents(digest: &mut DataDigest, entry: Entry<'_, Value>) {
    if let Some(list) = List::view(entry.value()) {
        digest.mix(&LIST_TYPE.to_be_bytes());
        list.forwards(0).for_each(|element| digest.mix(element.text().as_ref()));
        return;
    }
    if let Some(set) = Set::view(entry.value()) {
        digest.mix(&SET_TYPE.to_be_bytes());
        set.for_each(|member| digest.add(member.text().as_ref()));
        return;
    }
    if let Some(set) = SortedSet::view(entry.value()) {
        digest.mix(&SORTED_SET_TYPE.to_be_bytes());
        set.each(0..set.len(), false, |score, member| {
            let mut element = DataDigest::default();
            element.mix(member);
            element.mix(&number::format_double_17g(score));
            digest.add(&element.0);
        });
        return;
    }
    if let Some(hash) = Hash::view(entry.value()) {
        digest.mix(&HASH_TYPE.to_be_bytes());
        hash.for_each_kept(|field, value| {
            let mut pair = DataDigest::default();
            pair.mix(field);
            pair.mix(value);
            digest.add(&pair.0);
        });
        return;
    }
    if let ValueRef::Object(Value::Stream(stream)) = entry.value() {
        digest.mix(&STREAM_TYPE.to_be_bytes());
        mix_stream(digest, stream);
        return;
    }
    digest.mix(&STRING_TYPE.to_be_bytes());
    let text = StringView::new(entry.value()).unwrap_or_default();
    digest.mix_pieces(text.pieces(0..text.len()));
}

/// Mixes a stream's entries into a digest, an ID with a dot in it.
fn mix_stream(digest: &mut DataDigest, stream: &Stream) {
    for entry in stream.entries().range(StreamId::MIN, StreamId::MAX) {
        digest.mix(format!("{}.{}", entry.id.ms, entry.id.seq).as_bytes());
        for (field, value) in entry {
            digest.mix(field.text().as_ref());
            digest.mix(value.text().as_ref());
        }
    }
}

/// `DEBUG DIGEST`: 40 hexadecimal digits; equal data has equal digits, also on Redis.
fn digest(ctx: &mut Context<'_>) -> CommandResult {
    let text = digest_of(&ctx.core.keyspace).hex();
    ctx.reply.simple(text);
    Ok(Outcome::Replied)
}

fn digest_of(keyspace: &Keyspace) -> DataDigest {
    let mut all = DataDigest::default();
    for index in DbIndex::all(keyspace.databases()) {
        let table = keyspace.table_of(index);
        if table.is_empty() {
            continue;
        }
        all.mix(&(index.get() as u32).to_be_bytes());
        for entry in table.iter() {
            let mut one = DataDigest::default();
            one.mix(entry.key());
            mix_value(&mut one, entry);
            all.add(&one.0);
        }
    }
    all
}

/// `DEBUG DIGEST-VALUE [key ...]`: an array of digests of the values alone; zeros for absent keys.
fn digest_value(ctx: &mut Context<'_>) -> CommandResult {
    let count = ctx.args.len() - 2;
    ctx.reply.array(count);
    for index in 0..count {
        let mut digest = DataDigest::default();
        let key = ctx.key(index + 2);
        if let Some(slot) = ctx.core.keyspace.find(key) {
            mix_value(&mut digest, ctx.core.keyspace.entry(slot));
        }
        ctx.reply.simple(digest.hex());
    }
    Ok(Outcome::Replied)
}

// ---- data and replies ---------------------------------------------------------------------------

/// A count that must not be negative.
fn positive(ctx: &Context<'_>, index: usize) -> Result<u64, CommandError> {
    let number =
        number::parse_i64(ctx.args.get(index)).and_then(|number| u64::try_from(number).ok());
    number.ok_or(CommandError::ValueOutOfRange("must be positive"))
}

/// `DEBUG QUICKLIST-PACKED-THRESHOLD size`: changes nothing, see the help. The size is checked.
fn quicklist_packed_threshold(ctx: &mut Context<'_>) -> CommandResult {
    const BYTES_MAX: u64 = (1 << 32) - (1 << 20);
    match parse_memory(ctx.args.get(2)) {
        Some(0..=BYTES_MAX) => ok(ctx),
        _ => Err(CommandError::Text(
            "ERR argument must be a memory value bigger than 1 and smaller than 4gb",
        )),
    }
}

/// `DEBUG POPULATE count [prefix] [size]`: creates keys `prefix:0` ... with values `value:0` ...,
/// padded with zeros or truncated to `size` bytes. Existing keys are kept.
fn populate(ctx: &mut Context<'_>) -> CommandResult {
    let count = positive(ctx, 2)?;
    let prefix: &[u8] = if ctx.args.len() > 3 { ctx.args.get(3) } else { b"key" };
    let size = if ctx.args.len() > 4 { positive(ctx, 4)? } else { 0 };
    if size > ctx.size_limits().string {
        return Err(CommandError::StringTooLong);
    }
    for number in 0..count {
        let name = [prefix, b":", number.to_string().as_bytes()].concat();
        let key = Key { bytes: &name, hash: ctx.core.keyspace.hash(&name) };
        let found = ctx.core.keyspace.find(key);
        if found.is_some() {
            continue;
        }
        let mut value = format!("value:{number}").into_bytes();
        if size > 0 {
            value.resize(size as usize, 0);
        }
        ctx.core.keyspace.set_string_at(found, key, &value, Expiry::Clear);
    }
    ok(ctx)
}

/// `DEBUG PROTOCOL type`: a sample of each type of reply.
fn protocol(ctx: &mut Context<'_>) -> CommandResult {
    let reply = &mut ctx.reply;
    match ctx.args.get(2).to_ascii_lowercase().as_slice() {
        b"string" => reply.bulk(b"Hello World"),
        b"integer" => reply.integer(12345),
        b"double" => reply.double_text(b"3.141"),
        b"null" => reply.null(),
        b"array" => {
            reply.array(3);
            (0..3).for_each(|number| reply.integer(number));
        }
        b"set" => {
            reply.set(3);
            (0..3).for_each(|number| reply.integer(number));
        }
        b"map" => {
            reply.map(3);
            for number in 0..3 {
                reply.integer(number);
                reply.boolean(number == 1);
            }
        }
        b"attrib" => {
            if reply.attribute(1) {
                reply.bulk(b"key-popularity");
                reply.array(2);
                reply.bulk(b"key:123");
                reply.integer(90);
            }
            reply.bulk(b"Some real reply following the attribute");
        }
        b"push" if reply.protocol() == Protocol::Resp2 => {
            return Err(CommandError::Text("ERR RESP2 is not supported by this command"));
        }
        b"push" => {
            reply.push(2);
            reply.bulk(b"server-cpu-usage");
            reply.integer(42);
            reply.bulk(b"Some real reply following the push reply");
        }
        b"true" => reply.boolean(true),
        b"false" => reply.boolean(false),
        b"verbatim" => reply.verbatim(b"txt", b"This is a verbatim\nstring"),
        b"bignum" => reply.big_number("1234567999999999999999999999999999999"),
        _ => {
            return Err(CommandError::Text(
                "ERR Wrong protocol type name. Please use one of the following: string|integer|\
                 double|bignum|null|array|set|map|attrib|push|verbatim|true|false",
            ));
        }
    }
    Ok(Outcome::Replied)
}

/// `DEBUG REPLYBUFFER PEAK-RESET-TIME NEVER|RESET|ms` and `RESIZING 0|1`: without effect, as an
/// idle client owns no buffer.
fn reply_buffer(ctx: &mut Context<'_>) -> CommandResult {
    let mut cursor = ctx.args.cursor(2);
    if cursor.take_word("PEAK-RESET-TIME") {
        if !cursor.take_word("NEVER") && !cursor.take_word("RESET") {
            cursor.take_integer()?;
        }
        return ok(ctx);
    }
    if cursor.take_word("RESIZING") {
        return ok(ctx);
    }
    Err(unknown(ctx))
}

/// `DEBUG ERROR string`: replies an error with this text and code. Not counted in statistics.
fn error(ctx: &mut Context<'_>) -> CommandResult {
    let text = ctx.args.get(2).iter().map(|byte| if b"\r\n".contains(byte) { b' ' } else { *byte });
    let text: Vec<u8> = text.collect();
    ctx.reply.raw(&[b"-", text.as_slice(), b"\r\n"].concat());
    Ok(Outcome::Replied)
}

// ---- allocator and crashes ----------------------------------------------------------------------

/// A system's error number as a reply.
fn system_error(number: i32) -> CommandError {
    let text = std::io::Error::from_raw_os_error(number).to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    CommandError::formatted(format!("ERR {text}"))
}

/// `DEBUG MALLCTL name [value]`: a numeric setting of jemalloc, before it was changed.
fn mallctl(ctx: &mut Context<'_>) -> CommandResult {
    let name = String::from_utf8_lossy(ctx.args.get(2)).into_owned();
    let value = if ctx.args.len() > 3 { Some(ctx.args.integer(3)? as u64) } else { None };
    let number = jemalloc::number(&name, value).map_err(system_error)?;
    ctx.reply.integer(number as i64);
    Ok(Outcome::Replied)
}

/// `DEBUG MALLCTL-STR name [VOID]`: a text setting of jemalloc; with VOID, runs an action.
fn mallctl_text(ctx: &mut Context<'_>) -> CommandResult {
    let name = String::from_utf8_lossy(ctx.args.get(2)).into_owned();
    if ctx.args.len() > 3 && ctx.args.get(3).eq_ignore_ascii_case(b"VOID") {
        jemalloc::run(&name).map_err(system_error)?;
        return ok(ctx);
    }
    if ctx.args.len() > 3 {
        return Err(system_error(libc::EINVAL));
    }
    let text = jemalloc::text(&name).map_err(system_error)?;
    ctx.reply.bulk(text.as_bytes());
    Ok(Outcome::Replied)
}

/// Reports a bug, and ends the process.
fn fail(ctx: &mut Context<'_>, what: &str) -> ! {
    crash::report_bug(format_args!("{what}"));
    crash::end_process(ctx.core.state.config.use_exit_on_panic)
}

/// `DEBUG HELP`: an array of lines.
fn help(ctx: &mut Context<'_>) -> CommandResult {
    reply_help(
        ctx,
        &[
            "ASSERT | OOM | PANIC | SEGFAULT",
            "    End the process as such a failure would.",
            "AOF-FLUSH-SLEEP <microseconds>",
            "    Sleep before each write to the append-only file.",
            "CHANGE-REPL-ID",
            "    Generate another replication id.",
            "REPLICATE <command> [<argument> ...]",
            "    Send a command to the replicas that is not run here.",
            "CRASH-AND-RECOVER [<milliseconds>]",
            "    End without saving anything, and start again after a delay (default: 0).",
            "CONFIG-REWRITE-FORCE-ALL",
            "    CONFIG REWRITE, with lines for defaults too.",
            "DIGEST",
            "    Return digits that are the same for the same data.",
            "DIGEST-VALUE <key> [<key> ...]",
            "    The same, only for the values of these keys.",
            "EFFECTS ON | OFF | TAKE | LOAD <part> [<part> ...]",
            "    Collect the commands for the append-only file, return them, or run them.",
            "ERROR <string>",
            "    Reply with this error.",
            "HTSTATS <dbid>",
            "    Return statistics of a database's hash table.",
            "HTSTATS-KEY <key>",
            "    Return statistics of a key's hash table.",
            "LOADAOF",
            "    Delete all data and load the append-only file.",
            "LOG <message>",
            "    Write <message> to the log.",
            "MALLCTL <name> [<value>]",
            "    Get or set a number of the allocator.",
            "MALLCTL-STR <name> [VOID]",
            "    Get a text of the allocator, or make it do something.",
            "OBJECT <key>",
            "    Show how a key's value is stored.",
            "PAUSE-CRON <0|1>",
            "    Stop the periodic work.",
            "POPULATE <count> [<prefix>] [<size>]",
            "    Create <count> keys, <prefix>:0 (default prefix: key) and so on.",
            "PROTOCOL <type>",
            "    Reply with a sample of a type: string, integer, double, bignum, null, array, set,",
            "    map, attrib, push, verbatim, true, false.",
            "QUICKLIST-PACKED-THRESHOLD <size>",
            "    Accepted for tests; large elements of lists are stored like others here.",
            "RELOAD [NOSAVE] [NOFLUSH] [MERGE]",
            "    Save all data, delete it, and load it again; without saving or deleting it",
            "    (NOSAVE, NOFLUSH), or with keys of the file in the place of those there are (MERGE).",
            "REPLYBUFFER PEAK-RESET-TIME <NEVER|RESET|ms> | RESIZING <0|1>",
            "    Accepted for tests; no buffers are resized here.",
            "RESTART [<milliseconds>]",
            "    End as after SHUTDOWN NOW, with the configuration rewritten, and start again after a",
            "    delay (default: 0).",
            "SDSLEN <key>",
            "    Show the lengths of a key and its string.",
            "SET-ACTIVE-EXPIRE <0|1>",
            "    Delete expired keys when they are due (1), or only when they are accessed (0).",
            "SET-DISABLE-DENY-SCRIPTS <0|1>",
            "    Let scripts call commands that are forbidden to them (1), or not (0).",
            "SLEEP <seconds>",
            "    Stop the whole server for <seconds>, which may have decimals.",
            "STRINGMATCH-LEN <pattern> <string>",
            "    Return whether a pattern matches.",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_redis() {
        // SET foo bar on Redis 7.0.15: DEBUG DIGEST-VALUE foo, and DEBUG DIGEST with nothing else
        // there.
        let mut value = DataDigest::default();
        value.mix(&STRING_TYPE.to_be_bytes());
        value.mix(b"bar");
        assert_eq!(value.hex(), "68467c70ae30376e7ce005bcc8827f5ba7fd67dc");
        let mut one = DataDigest::default();
        one.mix(b"foo");
        one.mix(&STRING_TYPE.to_be_bytes());
        one.mix(b"bar");
        let mut all = DataDigest::default();
        all.mix(&0u32.to_be_bytes());
        all.add(&one.0);
        assert_eq!(all.hex(), "d2ab4820c1be0580ea28efbfe8bfa1dc05bb802a");
    }

    #[test]
    fn serialized_strings_have_the_length_of_their_rdb_form() {
        for (text, len) in [("bar", 4), ("12", 2), ("-300", 3), ("70000", 5), ("", 1)] {
            assert_eq!(serialized_len(text.as_bytes()), len, "{text}");
        }
        assert_eq!(serialized_len(&[b'x'; 64]), 66);
    }
}
