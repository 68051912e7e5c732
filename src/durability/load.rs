//! Loading the RDB file, or the append-only file with its base.
//!
//! The decoder checks the entries of an RDB image, which go straight into the tables. Requests of
//! an append-only file run through the gate, with full rights and without a client. Nothing expires
//! during loading, because the AOF was written when the keys still existed.

use std::path::Path;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use thiserror::Error;

use crate::client::ClientId;
use crate::cluster::node::NodeId;
use crate::cluster::slot_job::parse_imports;
use crate::config::{AccessKind, system_text};
use crate::durability::persistence;
use crate::durability::scripts;
use crate::durability::unexpected;
use crate::gate::effect;
use crate::gate::execute::Gate;
use crate::gate::looked_up::LookedUp;
use crate::keyspace::DbIndex;
use crate::keyspace::beside::StagedDatabases;
use crate::keyspace::snapshot::LoadedEntry;
use crate::persist::ahead::{
    BATCHES_AHEAD, Batch, DecodedEntry, EntryDecoder, Failure, KeysExpected, ReadAhead, Record,
};
use crate::persist::aof::ahead::Batch as Requests;
use crate::persist::aof::folder::AofFolder;
use crate::persist::aof::load::{Cuts, Loaded, Sink};
use crate::persist::aof::reader;
use crate::persist::leftovers;
use crate::persist::rdb::{FileError, Limits, Place, RawEntry, Version, VersionCheck, value_type};
use crate::persist::saver::SCRIPT_FIELD;
use crate::resp::args::Args;
use crate::resp::number::parse_i64;
use crate::resp::queue::RequestQueue;
use crate::resp::reply::{OutputBuffer, Protocol, ReplyWriter};
use crate::resp::request::Range;
use crate::state::context::{Caller, Origin};
use crate::state::persistence::{
    LAST_FENCE, LoadStats, Loading, Purpose, SLOT_DROPS, SLOT_IMPORTS,
};
use crate::state::table::Command;
use crate::state::{Core, State};
use crate::sys::alloc::Account;
use crate::sys::disk::DiskReader;
use crate::sys::jemalloc;
use crate::sys::log::{Level, notice, warning};
use crate::types::{hash, list, set, sorted_set};

/// The encoding limits for decoding values.
pub fn rdb_limits(core: &Core) -> Limits {
    let config = &core.state.config;
    Limits {
        list: list::Limits::from_setting(config.list_max_listpack_size),
        hash: hash::Limits {
            entries_max: config.hash_max_listpack_entries,
            bytes_max: config.hash_max_listpack_value,
            hasher: core.keyspace.hasher(),
        },
        set: set::Limits {
            intset_entries: config.set_max_intset_entries,
            listpack_entries: config.set_max_listpack_entries,
            listpack_value: config.set_max_listpack_value,
            hasher: core.keyspace.hasher(),
        },
        sorted_set: sorted_set::Limits {
            entries: config.zset_max_listpack_entries,
            value: config.zset_max_listpack_value,
        },
    }
}

/// How often clients are served while a file is loaded. Unit: microseconds.
const SERVE_EVERY_US: i64 = 5_000;
/// How often the progress of a long loading is logged. Unit: microseconds.
const LOG_EVERY_US: i64 = 5_000_000;

/// The error when the server is shut down while loading.
pub const INTERRUPTED: &str = "The server is ended while it loads";

/// Serves clients and logs progress while a file is loaded.
struct Progress {
    steps: u32,
    /// When clients were last served.
    served_us: i64,
    /// When the progress was last logged.
    logged_us: i64,
    /// Bytes of the files before the current one.
    earlier_bytes: u64,
}

impl Progress {
    fn new(state: &State) -> Progress {
        let now_us = state.clock.now().boot_us;
        Progress { steps: 0, served_us: now_us, logged_us: now_us, earlier_bytes: 0 }
    }

    /// Called after each group of entries or requests, or after each single one if `key-load-delay`
    /// is set. `bytes`: the bytes of the file read so far. Errors: the server must shut down.
    fn step(&mut self, core: &mut Core, bytes: u64) -> Result<(), String> {
        let delay = core.state.config.key_load_delay;
        self.steps += 1;
        if delay > 0 {
            core.state.clock.sleep(Duration::from_micros(delay as u64));
        } else if delay < 0 && self.steps.is_multiple_of(delay.unsigned_abs()) {
            core.state.clock.sleep(Duration::from_micros(1));
        }
        let now = core.state.clock.now();
        if now.boot_us - self.served_us < SERVE_EVERY_US {
            return Ok(());
        }
        self.served_us = now.boot_us;
        core.state.now = now;
        core.keyspace.set_now(now);
        if let Some(loading) = &mut core.state.persistence.loading {
            loading.loaded_bytes = self.earlier_bytes + bytes;
        }
        if now.boot_us - self.logged_us >= LOG_EVERY_US {
            self.logged_us = now.boot_us;
            log_progress(core);
        }
        let serve = core.state.serve_while_busy;
        serve(core);
        if !is_to_end(&core.state) {
            return Ok(());
        }
        if let Some(loading) = &mut core.state.persistence.loading {
            loading.is_interrupted = true;
        }
        Err(INTERRUPTED.into())
    }
}

/// Whether the server was stopped during loading. A shutdown that waits for replicas or for the end
/// of DEBUG PAUSE-CRON does not count, because it was ordered earlier.
fn is_to_end(state: &State) -> bool {
    let order = state.process.shutdown;
    order.is_some_and(|order| !order.by_signal && order.waits_until_us.is_none())
        || state.persistence.is_stopped()
}

/// Logs the progress.
fn log_progress(core: &Core) {
    let Some(Loading { loaded_bytes, total_bytes, .. }) = core.state.persistence.loading else {
        return;
    };
    let keys = DbIndex::all(core.keyspace.databases())
        .map(|database| core.keyspace.table_of(database).len())
        .sum::<usize>();
    let percent = loaded_bytes as f64 * 100.0 / total_bytes.max(1) as f64;
    let megabytes = total_bytes >> 20;
    notice!(core.state, "Loading: {percent:.1}% of {megabytes} MB, {keys} keys so far");
}

/// The treatment of expired keys in a file, and of keys that exist already.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    /// Expired keys are loaded: the requests that follow delete them.
    pub keeps_expired: bool,
    /// An existing key or function library is replaced, for DEBUG RELOAD MERGE; otherwise it is an
    /// error.
    pub merges: bool,
    /// Replicas, which may continue from the file's offset, get deletions of skipped expired keys.
    pub reports_expired: bool,
}

/// The decoder for a file that is loaded now.
pub fn entry_decoder(core: &Core, rules: Rules) -> EntryDecoder {
    EntryDecoder {
        limits: rdb_limits(core),
        now: core.state.now,
        databases: core.keyspace.databases(),
        fresh_access: core.keyspace.fresh_access(),
        is_lfu: core.keyspace.access.kind == AccessKind::Counted,
        keeps_expired: rules.keeps_expired,
        hides_keys: core.state.config.hide_user_data_from_log,
    }
}

/// The versions of files that are read.
pub fn version_check(state: &State) -> VersionCheck {
    match state.config.rdb_version_check {
        "relaxed" => VersionCheck::Relaxed,
        _ => VersionCheck::Strict,
    }
}

/// The reason why a file cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{text}")]
pub struct LoadError {
    /// A line for the log, with file, key, type and offset if known.
    pub text: String,
    /// For a file that is refused by its version: Redis's line, see [`FileError::refusal`].
    pub refusal: Option<String>,
}

impl From<String> for LoadError {
    fn from(text: String) -> Self {
        LoadError { text, refusal: None }
    }
}

impl LoadError {
    pub fn of_file(state: &State, error: FileError) -> Self {
        let is_valkey = state.config.compatible_with.is_valkey();
        let refusal = error.refusal(version_check(state), is_valkey);
        LoadError { text: error.text(state.config.hide_user_data_from_log), refusal }
    }

    /// Makes an error whose text is written to the log now.
    pub fn logged(state: &State, text: String) -> Self {
        let error = LoadError::from(text);
        error.log(state);
        error
    }

    pub fn log(&self, state: &State) {
        warning!(state, "{}", self.text);
        self.log_refusal(state);
    }

    /// Logs Redis's line, if the error has one.
    pub fn log_refusal(&self, state: &State) {
        if let Some(refusal) = &self.refusal {
            warning!(state, "{refusal}");
        }
    }

    /// The error with the file's name in its text.
    fn at(self, path: &Path) -> Self {
        let path = path.display();
        let text = match &self.refusal {
            Some(_) => format!("{path}: {}", self.text),
            None => format!("Fatal error loading the DB, check server logs. {path}: {}", self.text),
        };
        LoadError { text, ..self }
    }
}

/// Loads the RDB image at the start of a file of `file_bytes` bytes. Returns the image's length.
/// Errors: a text, with key, type and offset if known; part of the data is loaded then.
pub fn load_rdb(
    core: &mut Core,
    source: &mut dyn DiskReader,
    file_bytes: u64,
    rules: Rules,
) -> Result<u64, LoadError> {
    let version_check = version_check(&core.state);
    let (decoder, checks) = (entry_decoder(core, rules), core.state.config.rdbchecksum);
    let reports_expired = rules.reports_expired;
    let arena = jemalloc::arena();
    std::thread::scope(|scope| {
        let (sender, batches) = sync_channel(BATCHES_AHEAD);
        let ahead = ReadAhead {
            source,
            checks,
            version_check,
            decoder,
            reports_expired,
            arena,
            account: Account::of_thread(),
            batches: sender,
        };
        let thread = std::thread::Builder::new().name("loader".into());
        let spawned = thread.spawn_scoped(scope, || ahead.run());
        spawned.map_err(|error| system_text(&error))?;
        let loaded = insert_batches(core, batches, file_bytes, rules);
        core.keyspace.fit_tables();
        loaded
    })
}

/// Inserts the entries from the thread that reads the file. The thread ends when the channel is
/// closed.
fn insert_batches(
    core: &mut Core,
    batches: Receiver<Batch>,
    file_bytes: u64,
    rules: Rules,
) -> Result<u64, LoadError> {
    let mut progress = Progress::new(&core.state);
    let mut expected = KeysExpected::of_file(file_bytes);
    let mut imports = Vec::new();
    for Batch { entries, expired, offset, record } in batches {
        insert(core, entries, rules, &mut |core| progress.step(core, offset))?;
        core.state.persistence.loads.expired += expired;
        match record {
            None => {}
            Some(Record::Function(text)) => {
                let mut request: Vec<&[u8]> = vec![b"FUNCTION", b"LOAD"];
                if rules.merges {
                    request.push(b"REPLACE");
                }
                request.push(&text);
                run(core, &request)?;
            }
            Some(Record::Aux { name, value }) if name == SLOT_IMPORTS.as_bytes() => {
                imports.extend(parse_imports(&value));
            }
            Some(Record::Aux { name, value }) if name == SLOT_DROPS.as_bytes() => {
                core.track_drops(&value);
            }
            Some(Record::Aux { name, value }) if name == SCRIPT_FIELD.as_bytes() => {
                scripts::restore_saved(&mut core.state, &value);
            }
            Some(Record::Aux { name, value }) => note_aux(core, &name, &value),
            Some(Record::SlotImport { name, ranges }) => {
                imports.extend(NodeId::from_bytes(&name).map(|name| (name, ranges)));
            }
            Some(Record::ResizeDb { database, keys }) => {
                core.keyspace.expect_keys(database, expected.take(keys));
            }
            Some(Record::Expired { database, key }) => {
                core.state.persistence.loads.expired += 1;
                feed_expired(&mut core.state, database, &key);
                progress.step(core, offset)?;
            }
            Some(Record::Empty(key)) => skip_empty(&mut core.state, &key),
            Some(Record::End) => {
                core.track_imports(imports);
                return Ok(offset);
            }
            Some(Record::Failed(Failure::File(error))) => {
                return Err(LoadError::of_file(&core.state, error));
            }
            Some(Record::Failed(Failure::Entry(why))) => return Err(why.into()),
        }
    }
    // The thread's last message is a result, unless it panicked.
    Err("the thread that reads the file has ended".to_owned().into())
}

/// Inserts decoded entries, calling `step` after each group. Errors: a key exists already, or an
/// error of `step`.
fn insert(
    core: &mut Core,
    entries: Vec<LoadedEntry>,
    rules: Rules,
    step: &mut dyn FnMut(&mut Core) -> Result<(), String>,
) -> Result<(), String> {
    let mut entries = entries.into_iter();
    while let Some(first) = entries.as_slice().first() {
        let count = match rules.merges || core.state.config.key_load_delay != 0 {
            true => 1,
            false => GROUP_ENTRIES.min(entries.len()),
        };
        if rules.merges {
            let key = first.entry.key().to_vec();
            core.keyspace
                .in_database(first.database, |keyspace| keyspace.clear_way(keyspace.key(&key)));
        }
        core.keyspace.load_some(&mut entries, count).map_err(|duplicate| {
            let hides_key = core.state.config.hide_user_data_from_log;
            let key = (!hides_key).then(|| duplicate.entry.key().to_vec());
            let place = Place { db: duplicate.database.get() as u64, key, ..Place::default() };
            format!("{place}the key is there already")
        })?;
        core.state.persistence.loads.keys += count as u64;
        step(core)?;
    }
    Ok(())
}

/// The most empty keys that are logged by name.
const EMPTY_KEYS_LOGGED: u64 = 10;

/// Skips the key of an empty collection, as Redis does; old versions of it saved such keys.
fn skip_empty(state: &mut State, key: &[u8]) {
    if state.persistence.loads.empty_skipped < EMPTY_KEYS_LOGGED {
        let text = "rdbLoadObject skipping empty key";
        if state.config.hide_user_data_from_log {
            warning!(state, "{text}");
        } else {
            warning!(state, "{text}: {}", key.escape_ascii());
        }
    }
    state.persistence.loads.empty_skipped += 1;
}

/// Adds the deletion of an expired key, skipped in the file, to the stream: replicas may still have
/// it.
fn feed_expired(state: &mut State, database: DbIndex, key: &[u8]) {
    let unlinks = state.config.lazyfree_lazy_expire;
    let verb: &[u8] = if unlinks { b"UNLINK" } else { b"DEL" };
    state.effects.push(database, [verb, key].into_iter());
    state.effects.end_unit();
    if state.effects.are_many() {
        persistence::spread_effects(state);
        // No replica gets the stream before the file is loaded.
        state.trim_backlog();
    }
}

/// Notes a field about the file itself, for the log and INFO.
fn note_aux(core: &mut Core, name: &[u8], value: &[u8]) {
    core.state.persistence.moment.note(name, value);
    let text = String::from_utf8_lossy(value);
    let number = || parse_i64(value).unwrap_or(0);
    let notice = |line: std::fmt::Arguments<'_>| core.state.log(Level::Notice, line);
    match name {
        b"redis-ver" | b"valkey-ver" => {
            notice(format_args!("Loading RDB produced by version {text}"));
        }
        b"ctime" => {
            let age = core.state.now.unix_seconds().saturating_sub(number()).max(0);
            notice(format_args!("RDB age {age} seconds"));
        }
        b"used-mem" => {
            let megabytes = number() as f64 / (1 << 20) as f64;
            notice(format_args!("RDB memory usage when created {megabytes:.2} Mb"));
            if let Some(loading) = &mut core.state.persistence.loading {
                loading.memory_then = number().max(0) as u64;
            }
        }
        b"aof-preamble" if number() != 0 => notice(format_args!("RDB has an AOF tail")),
        b"aof-base" if number() != 0 => notice(format_args!("RDB is base AOF")),
        _ if name == LAST_FENCE.as_bytes() => {
            core.keyspace.locks.fences.learn(u64::try_from(number()).unwrap_or(0));
        }
        _ => {}
    }
}

/// Entries in one group.
const GROUP_ENTRIES: usize = 64;

/// Inserts an entry into databases beside the served ones. Errors: a text.
pub fn load_beside(
    core: &mut Core,
    decoder: &EntryDecoder,
    raw: &RawEntry<'_>,
    beside: &mut StagedDatabases,
) -> Result<(), String> {
    match decoder.decode(raw)? {
        DecodedEntry::Expired => core.state.persistence.loads.expired += 1,
        DecodedEntry::Empty => skip_empty(&mut core.state, &raw.key),
        DecodedEntry::Entry(loaded) => {
            if !core.keyspace.load_beside(beside, loaded.database, loaded.entry) {
                return Err(format!("{}the key is there already", raw.place()));
            }
            core.state.persistence.loads.keys += 1;
        }
    }
    Ok(())
}

/// Runs a request. Errors: the text of an error reply.
pub fn run(core: &mut Core, args: &[&[u8]]) -> Result<(), String> {
    let (mut buffer, mut ranges) = (Vec::new(), Vec::new());
    for arg in args {
        ranges.push(Range { start: buffer.len() as u32, len: arg.len() as u32 });
        buffer.extend_from_slice(arg);
    }
    let mut output = OutputBuffer::default();
    let args = Args::new(&buffer, &ranges);
    let looked_up = LookedUp::without_key(&core.state, args);
    run_request(core, args, &looked_up, &mut output)?;
    match output.whole().strip_prefix(b"-") {
        Some(error) => Err(String::from_utf8_lossy(error).trim_end().to_owned()),
        None => Ok(()),
    }
}

/// Runs a request of a file. Errors: it cannot run at all.
fn run_request(
    core: &mut Core,
    args: Args<'_>,
    looked_up: &LookedUp,
    output: &mut OutputBuffer,
) -> Result<(), String> {
    let request = looked_up.request(args, Origin::Client);
    let reply = ReplyWriter::new(output, Protocol::Resp2);
    let mut gate = Gate::new(core, Caller::Load, reply);
    let ran = gate.run_trusted(&request);
    ran.map_err(|error| match request.command.is_unknown() {
        true => {
            let name = String::from_utf8_lossy(request.args.get(0)).into_owned();
            format!("Unknown command '{name}' reading the append only file")
        }
        false => String::from_utf8_lossy(&error.wire()).into_owned(),
    })
}

/// Applies the files of the append-only folder.
struct Loader<'a> {
    core: &'a mut Core,
    /// The open transaction's requests.
    queued: RequestQueue,
    /// The commands and hashes of the next requests, in their order.
    ahead: Vec<LookedUp>,
    /// The next request's index in `ahead`.
    next: usize,
    output: OutputBuffer,
    progress: Progress,
    /// Size of the file being loaded.
    file_bytes: u64,
}

impl Loader<'_> {
    fn apply(&mut self, args: Args<'_>, looked_up: Option<LookedUp>) -> Result<(), String> {
        if args.get(0).eq_ignore_ascii_case(b"SELECT") {
            let number = if args.len() == 2 { args.integer(1).ok() } else { None };
            let databases = self.core.keyspace.databases();
            let database = number.and_then(|number| DbIndex::checked(number, databases));
            self.core.keyspace.select(database.ok_or("a SELECT of a database that is not there")?);
            return Ok(());
        }
        self.output.clear();
        let looked_up = looked_up.unwrap_or_else(|| LookedUp::without_key(&self.core.state, args));
        run_request(self.core, args, &looked_up, &mut self.output)?;
        match self.output.whole().starts_with(b"-") {
            true => {
                refuse_module(looked_up.command, args)?;
                self.note_error(looked_up.command)
            }
            false => Ok(()),
        }
    }

    /// A logged request has failed: the data may differ from the original. Errors: the server must
    /// not start.
    #[cold]
    fn note_error(&mut self, command: &Command) -> Result<(), String> {
        let name = &command.full_name;
        let told = unexpected::note(&mut self.core.state, Caller::Load, name, &self.output.whole());
        told.map_or(Ok(()), Err)
    }
}

/// Errors: the request is a RESTORE of a module's value. The start is refused then, as that of a
/// file with such a value: the next rewrite would lose the key for good.
fn refuse_module(command: &Command, args: Args<'_>) -> Result<(), String> {
    let is_restore = command.full_name.starts_with("restore");
    let kind = is_restore.then(|| args.iter_from(3).next()?.first().copied()).flatten();
    match kind {
        Some(value_type::MODULE | value_type::MODULE_2) => {
            let key = String::from_utf8_lossy(args.get(1)).into_owned();
            Err(format!("Key '{key}' is a module's value, which cannot be read without the module"))
        }
        _ => Ok(()),
    }
}

impl Sink for Loader<'_> {
    fn file_begins(&mut self, _: &[u8], bytes: u64) {
        self.progress.earlier_bytes += std::mem::replace(&mut self.file_bytes, bytes);
        self.core.keyspace.select(DbIndex::ZERO);
        self.transaction_abandoned();
    }

    fn rdb(&mut self, source: &mut dyn DiskReader, bytes: u64) -> Result<u64, String> {
        let rules = Rules { keeps_expired: true, ..Rules::default() };
        load_rdb(self.core, source, bytes, rules).map_err(|error| {
            error.log_refusal(&self.core.state);
            error.text
        })
    }

    /// Looks up the commands, and prefetches their keys' entries.
    fn prefetch(&mut self, batch: &Requests, requests: std::ops::Range<usize>) {
        self.ahead.clear();
        self.next = 0;
        for index in requests {
            let request = batch.get(index);
            let args = Args::new(request.buf, request.args);
            self.ahead.push(LookedUp::of(self.core, args));
        }
        let hashes = self.ahead.iter().filter_map(|looked_up| looked_up.hash);
        self.core.keyspace.table_of(self.core.keyspace.selected()).prefetch(hashes);
    }

    fn request(&mut self, request: &reader::Request<'_>) -> Result<(), String> {
        let looked_up = self.ahead.get(self.next).copied();
        if self.next == 0 || self.core.state.config.key_load_delay != 0 {
            self.progress.step(self.core, request.end)?;
        }
        self.next += 1;
        if !request.in_transaction {
            return self.apply(Args::new(request.buf, request.args), looked_up);
        }
        let name = request.args[0].of(request.buf);
        if name.eq_ignore_ascii_case(b"MULTI") {
            self.transaction_abandoned();
        } else if name.eq_ignore_ascii_case(b"EXEC") {
            let mut queued = std::mem::take(&mut self.queued);
            queued.iter().try_for_each(|args| self.apply(args, None))?;
            queued.clear();
            self.queued = queued;
        } else {
            self.queued.push(Args::new(request.buf, request.args));
        }
        Ok(())
    }

    fn transaction_abandoned(&mut self) {
        self.queued.clear();
    }
}

fn begin(core: &mut Core, total_bytes: u64) {
    let started_unix = core.state.now.unix_seconds();
    let loading = Loading { started_unix, total_bytes, ..Loading::default() };
    core.state.persistence.loading = Some(loading);
    core.state.refresh_fast_path();
    core.keyspace.begin_loading();
}

fn end(core: &mut Core) {
    core.keyspace.select(DbIndex::ZERO);
    if core.state.persistence.loading.is_some_and(|loading| loading.is_interrupted) {
        return;
    }
    core.keyspace.end_loading();
    core.state.persistence.loading = None;
    core.state.refresh_fast_path();
}

/// Whether deletions of keys that have expired in the RDB file are added to the stream. Not on a
/// replica, whose primary decides about them.
pub fn reports_expired(state: &State) -> bool {
    let is_replica =
        state.node.cluster.as_ref().is_some_and(|cluster| cluster.myself().is_replica());
    !state.config.appendonly && state.config.replicaof.is_none() && !is_replica
}

/// Loads the append-only file if it is on, else the RDB file. After an error the server must not
/// start. If [`reports_expired`], the stream has begun before.
pub fn load_at_start(core: &mut Core) -> Result<(), LoadError> {
    remove_leftovers(&core.state);
    let started_us = core.state.clock.now().boot_us;
    let seconds = |state: &State| (state.clock.now().boot_us - started_us) as f64 / 1e6;
    if !core.state.config.appendonly {
        let path = core.state.rdb_path();
        let reports_expired = reports_expired(&core.state);
        let loaded = load_file(
            core,
            &path,
            Rules { reports_expired, keeps_expired: !reports_expired, ..Rules::default() },
        )?;
        if loaded {
            let LoadStats { keys, expired, empty_skipped: empty } = core.state.persistence.loads;
            notice!(
                core.state,
                "Done loading RDB, keys loaded: {keys}, keys expired: {expired}, empty keys skipped: {empty}."
            );
            let took = seconds(&core.state);
            notice!(core.state, "DB loaded from disk: {took:.3} seconds");
        }
        persistence::note_loaded(core);
        return Ok(());
    }
    let folder = persistence::folder_at_start(&core.state)?;
    let bytes = folder.size().map_err(|error| error.to_string())?;
    let unread = core.state.rdb_path();
    if folder.manifest().is_empty() && core.state.persistence.disk().size(&unread).is_ok() {
        warning!(
            core.state,
            "The append only file is new, so the server starts without the data of {}, which the next save overwrites. To keep \
             that data, stop the server without saving, start it with 'appendonly no', and use CONFIG SET appendonly yes",
            unread.display()
        );
    }
    if !folder.manifest().is_empty() {
        note_unread(&core.state, &folder, bytes);
    }
    let config = &core.state.config;
    let cuts = Cuts {
        truncated: config.aof_load_truncated,
        corrupt_bytes_max: config.aof_load_corrupt_tail_max_size.max(0) as u64,
    };
    let loaded = load_folder(core, &folder, bytes, cuts)?;
    for warning in &loaded.warnings {
        warning!(core.state, "{warning}");
    }
    if bytes > 0 {
        let took = seconds(&core.state);
        notice!(core.state, "DB loaded from append only file: {took:.3} seconds");
    }
    persistence::note_loaded(core);
    persistence::begin_aof_at_start(core, folder, loaded.bytes, loaded.base_bytes)?;
    Ok(())
}

/// Logs that an RDB file is not loaded, if it may be meant to: somebody has put it beside an
/// append-only folder. `bytes`: those of the append-only file. A save before the last end looks the
/// same.
fn note_unread(state: &State, folder: &AofFolder, bytes: u64) {
    let (disk, dump) = (state.persistence.disk(), state.rdb_path());
    let Ok(size) = disk.size(&dump) else { return };
    let files = folder.manifest().files().map(|file| folder.path_of(&file.name));
    let last = files.chain([folder.manifest_path()]).filter_map(|path| disk.changed(&path)).max();
    let is_newer = disk.changed(&dump).is_some_and(|at| last.is_some_and(|last| at > last));
    let why = match (is_newer, size > bytes) {
        (false, false) => return,
        (true, false) => "newer",
        (false, true) => "larger",
        (true, true) => "newer and larger",
    };
    let (dump, dir) = (dump.display(), state.config.dir.display());
    notice!(
        state,
        "{dump} is not loaded, since the append only file is, though it is {why} ({size} bytes, the append only file has \
         {bytes}). To load it, stop the server without saving and run: latchkey --restore {dump} --dir {dir}"
    );
}

/// Removes temporary files of killed processes.
fn remove_leftovers(state: &State) {
    let (config, disk) = (&state.config, &**state.persistence.disk());
    let folder = config.dir.join(file_name(&config.appenddirname));
    // Errors are ignored: loading will report a problem with the folder.
    let bases = leftovers::remove_bases(disk, &folder).unwrap_or_default();
    let dump = file_name(&config.dbfilename);
    let snapshots = leftovers::remove_snapshots(disk, &config.dir, dump).unwrap_or_default();
    let bases = bases.iter().map(|name| folder.join(name));
    for path in bases.chain(snapshots.iter().map(|name| config.dir.join(name))) {
        notice!(state, "Removing the temporary file that a process has left: {}", path.display());
    }
}

/// Loads the files of an append-only folder, `bytes` in total.
fn load_folder(
    core: &mut Core,
    folder: &AofFolder,
    bytes: u64,
    cuts: Cuts,
) -> Result<Loaded, String> {
    begin(core, bytes);
    let progress = Progress::new(&core.state);
    let mut loader = Loader {
        progress,
        file_bytes: 0,
        core,
        queued: RequestQueue::default(),
        ahead: Vec::new(),
        next: 0,
        output: OutputBuffer::default(),
    };
    let loaded = folder.load(cuts, &mut loader);
    end(core);
    loaded.map_err(|error| error.to_string())
}

// ---- loading on a running server ----------------------------------------------------------------

/// `DEBUG RELOAD` without saving: loads the RDB file. `client`: the client that asked for it. A
/// file of an unsupported version changes nothing.
pub fn reload_rdb(
    core: &mut Core,
    client: Option<ClientId>,
    flushes: bool,
    merges: bool,
) -> Result<(), LoadError> {
    let path = core.state.rdb_path();
    check_header(&core.state, &path).map_err(|error| error.at(&path))?;
    load_again(core, client, flushes, |core| {
        match load_file(core, &path, Rules { merges, ..Rules::default() })? {
            true => Ok(()),
            false => Err(format!("{} is not there", path.display()).into()),
        }
    })
}

/// Checks a file's version. Errors: the version is unsupported. Loading finds any other fault.
fn check_header(state: &State, path: &Path) -> Result<(), LoadError> {
    let mut magic = [0; Version::MAGIC_BYTES];
    let read = state.persistence.disk().open_read(path);
    if read.and_then(|mut source| source.read_exact(&mut magic)).is_err() {
        return Ok(());
    }
    match Version::from_magic(&magic, version_check(state)) {
        Ok(_) => Ok(()),
        Err(fault) => Err(LoadError::of_file(state, FileError::Header(fault))),
    }
}

/// `DEBUG LOADAOF`: loads the append-only file, up to the last write. `client`: the client that
/// asked for it. Errors: a text for the log.
pub fn reload_aof(core: &mut Core, client: Option<ClientId>) -> Result<(), String> {
    if core.state.persistence.purpose() == Some(Purpose::Rewrite) {
        return Err("the append-only file is being rewritten".into());
    }
    persistence::write_log(&mut core.state).map_err(|fatal| fatal.to_string())?;
    let folder = persistence::read_folder(&core.state)?;
    let bytes = folder.size().map_err(|error| error.to_string())?;
    load_again(core, client, true, |core| load_folder(core, &folder, bytes, Cuts::NONE).map(drop))?;
    persistence::note_loaded(core);
    Ok(())
}

/// Loads on a running server. Clients are served as during loading at the start, except the one
/// that waits for the end. Nothing goes to the AOF or replicas.
fn load_again<E>(
    core: &mut Core,
    client: Option<ClientId>,
    flushes: bool,
    load: impl FnOnce(&mut Core) -> Result<(), E>,
) -> Result<(), E> {
    let selected = core.keyspace.selected();
    effect::note_deletions(core);
    persistence::spread_effects(&mut core.state);
    // The recording is not stopped: effects of this turn, and of a transaction around this command,
    // must still be taken.
    let effects = std::mem::take(&mut core.state.effects);
    let is_heard = core.keyspace.deletions.is_heard();
    core.keyspace.deletions.listen(false);
    hold(&mut core.state, client, true);
    if flushes && let Some(mut engine) = core.state.take_engine() {
        let (lua, libraries) = engine.functions();
        libraries.flush(lua);
        core.state.scripts.put_engine(engine);
    }
    core.state.persistence.loads = LoadStats::default();
    let changes = core.keyspace.begin_uncounted();
    if flushes {
        core.keyspace.clear_all(true);
    }
    let loaded = load(core);
    core.keyspace.end_uncounted(changes);
    core.state.effects = effects;
    core.keyspace.deletions.listen(is_heard);
    hold(&mut core.state, client, false);
    core.keyspace.select(selected);
    loaded
}

/// Makes nested turns skip a client, or not.
fn hold(state: &mut State, client: Option<ClientId>, is_held: bool) {
    if let Some(client) = client.and_then(|id| state.clients.get_mut(id)) {
        client.reading.is_held = is_held;
    }
}

fn file_name(name: &[u8]) -> &Path {
    use std::os::unix::ffi::OsStrExt;
    Path::new(std::ffi::OsStr::from_bytes(name))
}

/// Loads an RDB file. False: the file does not exist.
pub fn load_file(core: &mut Core, path: &Path, rules: Rules) -> Result<bool, LoadError> {
    let disk = core.state.persistence.disk().clone();
    let unreadable = |error: std::io::Error| LoadError::from(system_text(&error)).at(path);
    let mut source = match disk.open_read(path) {
        Ok(source) => source,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(unreadable(error)),
    };
    let bytes = disk.size(path).map_err(unreadable)?;
    begin(core, bytes);
    let loaded = load_rdb(core, &mut *source, bytes, rules);
    end(core);
    loaded.map(|_| true).map_err(|error| error.at(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_databases_of_a_file_share_its_limit_of_keys() {
        let mut expected = KeysExpected::of_file(300);
        assert_eq!(expected.take(40), 40);
        assert_eq!(expected.take(u64::MAX), 60);
        assert_eq!(expected.take(1), 0);
    }
}
