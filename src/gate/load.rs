//! Loading the RDB file, or the append-only file with its base.
//!
//! Entries of an RDB image are checked by the decoder and go straight into the tables; requests of an append-only file
//! run through the gate, with full rights and without a client. Nothing expires meanwhile: the log was written when the
//! keys still existed.

use std::path::Path;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use thiserror::Error;

use crate::client::{ClientFlags, ClientId};
use crate::config::system_text;
use crate::gate::context::Caller;
use crate::gate::effect;
use crate::gate::execute::{Gate, Request};
use crate::gate::looked_up::LookedUp;
use crate::gate::persistence::{self, Loading, Purpose};
use crate::gate::replicas;
use crate::gate::state::State;
use crate::keyspace::Keyspace;
use crate::keyspace::beside::Beside;
use crate::keyspace::snapshot::LoadedEntry;
use crate::persist::ahead::{
    BATCHES_AHEAD, Batch, DecodedEntry, EntryDecoder, Failure, ReadAhead, Record,
};
use crate::persist::aof::ahead::Batch as Requests;
use crate::persist::aof::folder::AofFolder;
use crate::persist::aof::load::{Loaded, Sink};
use crate::persist::aof::reader;
use crate::persist::leftovers;
use crate::persist::rdb::{FileError, Limits, Place, RawEntry, Version, VersionCheck};
use crate::resp::args::Args;
use crate::resp::number::parse_i64;
use crate::resp::reply::{OutputBuffer, Protocol, ReplyWriter};
use crate::resp::request::Range;
use crate::sys::disk::DiskReader;
use crate::sys::jemalloc;
use crate::sys::log::Level;
use crate::types::{hash, list, set, sorted_set};

/// The encoding limits for decoding values.
pub fn rdb_limits(db: &Keyspace, server: &State) -> Limits {
    let config = &server.config;
    Limits {
        list: list::Limits::from_setting(config.list_max_listpack_size),
        hash: hash::Limits {
            entries_max: config.hash_max_listpack_entries,
            bytes_max: config.hash_max_listpack_value,
            hasher: db.hasher(),
        },
        set: set::Limits {
            intset_entries: config.set_max_intset_entries,
            listpack_entries: config.set_max_listpack_entries,
            listpack_value: config.set_max_listpack_value,
            hasher: db.hasher(),
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
    fn new(server: &State) -> Progress {
        let now_us = server.clock.now().boot_us;
        Progress { steps: 0, served_us: now_us, logged_us: now_us, earlier_bytes: 0 }
    }

    /// Called after each group of entries or requests, or after each single one if `key-load-delay` is set. `bytes`: how
    /// far the file is read. Errors: the server must shut down.
    fn step(&mut self, db: &mut Keyspace, server: &mut State, bytes: u64) -> Result<(), String> {
        let delay = server.config.key_load_delay;
        self.steps += 1;
        if delay > 0 {
            std::thread::sleep(Duration::from_micros(delay as u64));
        } else if delay < 0 && self.steps.is_multiple_of(delay.unsigned_abs()) {
            std::thread::sleep(Duration::from_micros(1));
        }
        let now = server.clock.now();
        if now.boot_us - self.served_us < SERVE_EVERY_US {
            return Ok(());
        }
        self.served_us = now.boot_us;
        server.now = now;
        db.set_now(now);
        if let Some(loading) = &mut server.persistence.loading {
            loading.loaded_bytes = self.earlier_bytes + bytes;
        }
        if now.boot_us - self.logged_us >= LOG_EVERY_US {
            self.logged_us = now.boot_us;
            log_progress(db, server);
        }
        let serve = server.serve_while_busy;
        serve(db, server);
        if !is_to_end(server) {
            return Ok(());
        }
        if let Some(loading) = &mut server.persistence.loading {
            loading.is_interrupted = true;
        }
        Err(INTERRUPTED.into())
    }
}

/// Whether the server was stopped meanwhile. A shutdown that waits, for replicas or the end of DEBUG PAUSE-CRON, was
/// ordered before.
fn is_to_end(server: &State) -> bool {
    let order = server.process.shutdown;
    order.is_some_and(|order| !order.by_signal && order.waits_until_us.is_none())
        || server.persistence.is_stopped()
}

/// Logs the progress.
fn log_progress(db: &Keyspace, server: &State) {
    let Some(Loading { loaded_bytes, total_bytes, .. }) = server.persistence.loading else {
        return;
    };
    let keys = (0..db.databases()).map(|database| db.table_of(database).len()).sum::<usize>();
    let percent = loaded_bytes as f64 * 100.0 / total_bytes.max(1) as f64;
    let megabytes = total_bytes >> 20;
    server.log(
        Level::Notice,
        format_args!("Loading: {percent:.1}% of {megabytes} MB, {keys} keys so far"),
    );
}

/// What to do about expired keys in a file, and about keys that exist already.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    /// Expired keys are loaded: the requests that follow delete them.
    pub keeps_expired: bool,
    /// An existing key or function library is replaced, for DEBUG RELOAD MERGE; otherwise it is an error.
    pub merges: bool,
    /// Replicas, which may continue from the file's offset, are told to delete skipped expired keys.
    pub reports_expired: bool,
}

/// The decoder for a file that is loaded now.
pub fn entry_decoder(db: &Keyspace, server: &State, rules: Rules) -> EntryDecoder {
    EntryDecoder {
        limits: rdb_limits(db, server),
        now: server.now,
        databases: db.databases(),
        fresh_access: db.fresh_access(),
        is_lfu: db.access.lfu,
        keeps_expired: rules.keeps_expired,
        hides_keys: server.config.hide_user_data_from_log,
    }
}

/// Which versions of files are read.
pub fn version_check(server: &State) -> VersionCheck {
    match server.config.rdb_version_check {
        "relaxed" => VersionCheck::Relaxed,
        _ => VersionCheck::Strict,
    }
}

/// Why a file cannot be loaded.
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
    pub fn of_file(server: &State, error: FileError) -> Self {
        let is_valkey = server.config.compatible_with.is_valkey();
        let refusal = error.refusal(version_check(server), is_valkey);
        LoadError { text: error.text(server.config.hide_user_data_from_log), refusal }
    }

    pub fn log(&self, server: &State) {
        server.log(Level::Warning, format_args!("{}", self.text));
        self.log_refusal(server);
    }

    /// Logs Redis's line, if there is one.
    pub fn log_refusal(&self, server: &State) {
        if let Some(refusal) = &self.refusal {
            server.log(Level::Warning, format_args!("{refusal}"));
        }
    }

    /// With the file's name.
    fn at(self, path: &Path) -> Self {
        let path = path.display();
        let text = match &self.refusal {
            Some(_) => format!("{path}: {}", self.text),
            None => format!("Fatal error loading the DB, check server logs. {path}: {}", self.text),
        };
        LoadError { text, ..self }
    }
}

/// The smallest entry of a file: a type, an empty key and an empty value. Unit: bytes.
const ENTRY_BYTES_MIN: u64 = 3;

/// The most keys that the rest of a file can hold: limits the memory reserved for all its databases together.
pub struct KeysExpected(u64);

impl KeysExpected {
    pub fn of_file(bytes: u64) -> Self {
        KeysExpected(bytes / ENTRY_BYTES_MIN)
    }

    /// The number of keys to reserve memory for in a database that declares `keys`. Deducts them.
    pub fn take(&mut self, keys: u64) -> usize {
        let taken = keys.min(self.0);
        self.0 -= taken;
        usize::try_from(taken).unwrap_or(0)
    }
}

/// Loads the RDB image at the start of a file of `file_bytes` bytes. Returns the image's length. Errors: a text, with
/// key, type and offset if known; part of the data is loaded then.
pub fn load_rdb(
    db: &mut Keyspace,
    server: &mut State,
    source: &mut dyn DiskReader,
    file_bytes: u64,
    rules: Rules,
) -> Result<u64, LoadError> {
    let version_check = version_check(server);
    let (decoder, checks) = (entry_decoder(db, server, rules), server.config.rdbchecksum);
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
            batches: sender,
        };
        let thread = std::thread::Builder::new().name("loader".into());
        let spawned = thread.spawn_scoped(scope, || ahead.run());
        spawned.map_err(|error| system_text(&error))?;
        let loaded = insert_batches(db, server, batches, file_bytes, rules);
        db.fit_tables();
        loaded
    })
}

/// Inserts the entries from the reading thread, which ends when the channel is closed.
fn insert_batches(
    db: &mut Keyspace,
    server: &mut State,
    batches: Receiver<Batch>,
    file_bytes: u64,
    rules: Rules,
) -> Result<u64, LoadError> {
    let mut progress = Progress::new(server);
    let mut expected = KeysExpected::of_file(file_bytes);
    for Batch { entries, expired, offset, record } in batches {
        insert(db, server, entries, rules, &mut |db, server| progress.step(db, server, offset))?;
        server.persistence.keys_expired_at_load += expired;
        match record {
            None => {}
            Some(Record::Function(text)) => {
                let mut request: Vec<&[u8]> = vec![b"FUNCTION", b"LOAD"];
                if rules.merges {
                    request.push(b"REPLACE");
                }
                request.push(&text);
                run(db, server, &request)?;
            }
            Some(Record::Aux { name, value }) => note_aux(server, &name, &value),
            Some(Record::ResizeDb { database, keys }) => {
                db.expect_keys(database, expected.take(keys));
            }
            Some(Record::Expired { database, key }) => {
                server.persistence.keys_expired_at_load += 1;
                replicas::feed_expired(server, database, &key);
                progress.step(db, server, offset)?;
            }
            Some(Record::Empty(key)) => skip_empty(server, &key),
            Some(Record::End) => return Ok(offset),
            Some(Record::Failed(Failure::File(error))) => {
                return Err(LoadError::of_file(server, error));
            }
            Some(Record::Failed(Failure::Entry(why))) => return Err(why.into()),
        }
    }
    // The thread's last message is a result, unless it panicked.
    Err("the thread that reads the file has ended".to_owned().into())
}

/// Inserts decoded entries, calling `step` after each group. Errors: a key exists already, or those of `step`.
fn insert(
    db: &mut Keyspace,
    server: &mut State,
    entries: Vec<LoadedEntry>,
    rules: Rules,
    step: &mut dyn FnMut(&mut Keyspace, &mut State) -> Result<(), String>,
) -> Result<(), String> {
    let mut entries = entries.into_iter();
    while let Some(first) = entries.as_slice().first() {
        let count = match rules.merges || server.config.key_load_delay != 0 {
            true => 1,
            false => GROUP_ENTRIES.min(entries.len()),
        };
        if rules.merges {
            let key = first.entry.key().to_vec();
            db.in_database(first.database, |db| db.clear_way(db.key(&key)));
        }
        db.load_some(&mut entries, count).map_err(|duplicate| {
            let hides_key = server.config.hide_user_data_from_log;
            let key = (!hides_key).then(|| duplicate.entry.key().to_vec());
            let place = Place { db: duplicate.database as u64, key, ..Place::default() };
            format!("{place}the key is there already")
        })?;
        server.persistence.keys_loaded += count as u64;
        step(db, server)?;
    }
    Ok(())
}

/// How many empty keys are logged by name.
const EMPTY_KEYS_LOGGED: u64 = 10;

/// Skips the key of an empty collection, as Redis does; old versions of it saved such keys.
fn skip_empty(server: &mut State, key: &[u8]) {
    if server.persistence.empty_keys_skipped < EMPTY_KEYS_LOGGED {
        let text = "rdbLoadObject skipping empty key";
        if server.config.hide_user_data_from_log {
            server.log(Level::Warning, format_args!("{text}"));
        } else {
            server.log(Level::Warning, format_args!("{text}: {}", key.escape_ascii()));
        }
    }
    server.persistence.empty_keys_skipped += 1;
}

/// Notes a field about the file itself, for the log and INFO.
fn note_aux(server: &mut State, name: &[u8], value: &[u8]) {
    server.persistence.moment.note(name, value);
    let text = String::from_utf8_lossy(value);
    let number = || parse_i64(value).unwrap_or(0);
    let notice = |line: std::fmt::Arguments<'_>| server.log(Level::Notice, line);
    match name {
        b"redis-ver" | b"valkey-ver" => {
            notice(format_args!("Loading RDB produced by version {text}"));
        }
        b"ctime" => {
            let age = server.now.unix_seconds().saturating_sub(number()).max(0);
            notice(format_args!("RDB age {age} seconds"));
        }
        b"used-mem" => {
            let megabytes = number() as f64 / (1 << 20) as f64;
            notice(format_args!("RDB memory usage when created {megabytes:.2} Mb"));
            if let Some(loading) = &mut server.persistence.loading {
                loading.memory_then = number().max(0) as u64;
            }
        }
        b"aof-preamble" if number() != 0 => notice(format_args!("RDB has an AOF tail")),
        b"aof-base" if number() != 0 => notice(format_args!("RDB is base AOF")),
        _ => {}
    }
}

/// Entries in one group.
const GROUP_ENTRIES: usize = 64;

/// Inserts an entry into databases beside the served ones. Errors: a text.
pub fn load_beside(
    db: &mut Keyspace,
    server: &mut State,
    decoder: &EntryDecoder,
    raw: &RawEntry<'_>,
    beside: &mut Beside,
) -> Result<(), String> {
    match decoder.decode(raw)? {
        DecodedEntry::Expired => server.persistence.keys_expired_at_load += 1,
        DecodedEntry::Empty => skip_empty(server, &raw.key),
        DecodedEntry::Entry(loaded) => {
            if !db.load_beside(beside, loaded.database, loaded.entry) {
                return Err(format!("{}the key is there already", raw.place()));
            }
            server.persistence.keys_loaded += 1;
        }
    }
    Ok(())
}

/// Runs a request. Errors: the text of an error reply.
pub fn run(db: &mut Keyspace, server: &mut State, args: &[&[u8]]) -> Result<(), String> {
    let (mut buffer, mut ranges) = (Vec::new(), Vec::new());
    for arg in args {
        ranges.push(Range { start: buffer.len() as u32, len: arg.len() as u32 });
        buffer.extend_from_slice(arg);
    }
    let mut output = OutputBuffer::default();
    let args = Args::new(&buffer, &ranges);
    let looked_up = LookedUp::without_key(server, args);
    run_request(db, server, args, &looked_up, &mut output)?;
    match output.whole().strip_prefix(b"-") {
        Some(error) => Err(String::from_utf8_lossy(error).trim_end().to_owned()),
        None => Ok(()),
    }
}

/// Runs a request of a file. Errors: it cannot run at all. An error reply is ignored: the request failed when it was
/// logged, too.
fn run_request(
    db: &mut Keyspace,
    server: &mut State,
    args: Args<'_>,
    looked_up: &LookedUp,
    output: &mut OutputBuffer,
) -> Result<(), String> {
    let request = Request { args, command: looked_up.command, prehashed: looked_up.prehashed() };
    let reply = ReplyWriter::new(output, Protocol::Resp2);
    let mut gate = Gate { db, server, caller: Caller::Load, reply };
    let ran = gate.run_loaded(&request);
    ran.map_err(|error| match request.command {
        None => {
            let name = String::from_utf8_lossy(request.args.get(0)).into_owned();
            format!("Unknown command '{name}' reading the append only file")
        }
        Some(_) => String::from_utf8_lossy(&error.wire()).into_owned(),
    })
}

/// Applies the files of the append-only folder.
struct Loader<'a> {
    db: &'a mut Keyspace,
    server: &'a mut State,
    /// The open transaction's requests: bytes, arguments, and where each request ends among the arguments.
    queued: Vec<u8>,
    queued_ranges: Vec<Range>,
    queued_ends: Vec<usize>,
    /// What was looked up of the next requests, in their order.
    ahead: Vec<LookedUp>,
    /// The next request's index in `ahead`.
    next: usize,
    output: OutputBuffer,
    progress: Progress,
    /// Size of the file being loaded.
    file_bytes: u64,
}

impl Loader<'_> {
    fn apply(
        &mut self,
        buffer: &[u8],
        ranges: &[Range],
        looked_up: Option<LookedUp>,
    ) -> Result<(), String> {
        let args = Args::new(buffer, ranges);
        if args.get(0).eq_ignore_ascii_case(b"SELECT") {
            let number = if args.len() == 2 { args.integer(1).ok() } else { None };
            let number = number.and_then(|number| usize::try_from(number).ok());
            let number = number.filter(|&number| number < self.db.databases());
            self.db.select(number.ok_or("a SELECT of a database that is not there")?);
            return Ok(());
        }
        self.output.clear();
        let looked_up = looked_up.unwrap_or_else(|| LookedUp::without_key(self.server, args));
        run_request(self.db, self.server, args, &looked_up, &mut self.output)
    }
}

impl Sink for Loader<'_> {
    fn file_begins(&mut self, _: &[u8], bytes: u64) {
        self.progress.earlier_bytes += std::mem::replace(&mut self.file_bytes, bytes);
        self.db.select(0);
        self.transaction_abandoned();
    }

    fn rdb(&mut self, source: &mut dyn DiskReader, bytes: u64) -> Result<u64, String> {
        let rules = Rules { keeps_expired: true, ..Rules::default() };
        load_rdb(self.db, self.server, source, bytes, rules).map_err(|error| {
            error.log_refusal(self.server);
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
            self.ahead.push(LookedUp::of(self.db, self.server, args));
        }
        let hashes = self.ahead.iter().filter_map(LookedUp::hash);
        self.db.table_of(self.db.selected()).prefetch(hashes);
    }

    fn request(&mut self, request: &reader::Request<'_>) -> Result<(), String> {
        let looked_up = self.ahead.get(self.next).copied();
        if self.next == 0 || self.server.config.key_load_delay != 0 {
            self.progress.step(self.db, self.server, request.end)?;
        }
        self.next += 1;
        if !request.in_transaction {
            return self.apply(request.buf, request.args, looked_up);
        }
        let name = request.args[0].of(request.buf);
        if name.eq_ignore_ascii_case(b"MULTI") {
            self.transaction_abandoned();
        } else if name.eq_ignore_ascii_case(b"EXEC") {
            let (queued, ranges) =
                (std::mem::take(&mut self.queued), std::mem::take(&mut self.queued_ranges));
            let mut start = 0;
            for end in std::mem::take(&mut self.queued_ends) {
                self.apply(&queued, &ranges[start..end], None)?;
                start = end;
            }
        } else {
            for argument in request.arguments() {
                let start =
                    u32::try_from(self.queued.len()).map_err(|_| "the transaction is too large")?;
                self.queued_ranges.push(Range { start, len: argument.len() as u32 });
                self.queued.extend_from_slice(argument);
            }
            self.queued_ends.push(self.queued_ranges.len());
        }
        Ok(())
    }

    fn transaction_abandoned(&mut self) {
        self.queued.clear();
        self.queued_ranges.clear();
        self.queued_ends.clear();
    }
}

fn begin(db: &mut Keyspace, server: &mut State, total_bytes: u64) {
    let started_unix = server.now.unix_seconds();
    let loading = Loading { started_unix, total_bytes, ..Loading::default() };
    server.persistence.loading = Some(loading);
    server.note_gate();
    db.begin_loading();
}

fn end(db: &mut Keyspace, server: &mut State) {
    db.select(0);
    if server.persistence.loading.is_some_and(|loading| loading.is_interrupted) {
        return;
    }
    db.end_loading();
    server.persistence.loading = None;
    server.note_gate();
}

/// Loads the append-only file if it is on, else the RDB file. After an error the server must not start.
pub fn load_at_start(db: &mut Keyspace, server: &mut State) -> Result<(), LoadError> {
    remove_leftovers(server);
    let started_us = server.clock.now().boot_us;
    let seconds = |server: &State| (server.clock.now().boot_us - started_us) as f64 / 1e6;
    if !server.config.appendonly {
        let path = server.config.dir.join(file_name(&server.config.dbfilename));
        // On a replica the primary decides about expired keys.
        let reports_expired = server.config.replicaof.is_none();
        if reports_expired {
            replicas::begin_stream_at_start(server);
        }
        let loaded = load_file(
            db,
            server,
            &path,
            Rules { reports_expired, keeps_expired: !reports_expired, ..Rules::default() },
        )?;
        if reports_expired {
            replicas::continue_history_of_file(db, server);
        }
        if loaded {
            let (keys, expired) =
                (server.persistence.keys_loaded, server.persistence.keys_expired_at_load);
            let empty = server.persistence.empty_keys_skipped;
            server.log(
                Level::Notice,
                format_args!("Done loading RDB, keys loaded: {keys}, keys expired: {expired}, empty keys skipped: {empty}."),
            );
            let took = seconds(server);
            server.log(Level::Notice, format_args!("DB loaded from disk: {took:.3} seconds"));
        }
        persistence::note_loaded(db, server);
        return Ok(());
    }
    let folder = persistence::folder_at_start(server)?;
    let bytes = folder.size().map_err(|error| error.to_string())?;
    let may_cut = server.config.aof_load_truncated;
    let loaded = load_folder(db, server, &folder, bytes, may_cut)?;
    for warning in &loaded.warnings {
        server.log(Level::Warning, format_args!("{warning}"));
    }
    if bytes > 0 {
        let took = seconds(server);
        let text = "DB loaded from append only file";
        server.log(Level::Notice, format_args!("{text}: {took:.3} seconds"));
    }
    persistence::note_loaded(db, server);
    persistence::begin_aof_at_start(db, server, folder, loaded.bytes, loaded.base_bytes)?;
    Ok(())
}

/// Removes temporary files of killed processes.
fn remove_leftovers(server: &State) {
    let dir = &server.config.dir;
    for folder in [dir.clone(), dir.join(file_name(&server.config.appenddirname))] {
        // Errors are ignored: loading will report a problem with the folder.
        for name in leftovers::remove(&**server.persistence.disk(), &folder).unwrap_or_default() {
            let path = folder.join(name);
            let text = "Removing the temporary file that a process has left";
            server.log(Level::Notice, format_args!("{text}: {}", path.display()));
        }
    }
}

/// Loads the files of an append-only folder, `bytes` in total.
fn load_folder(
    db: &mut Keyspace,
    server: &mut State,
    folder: &AofFolder,
    bytes: u64,
    may_cut: bool,
) -> Result<Loaded, String> {
    begin(db, server, bytes);
    let progress = Progress::new(server);
    let mut loader = Loader {
        progress,
        file_bytes: 0,
        db,
        server,
        queued: Vec::new(),
        queued_ranges: Vec::new(),
        queued_ends: Vec::new(),
        ahead: Vec::new(),
        next: 0,
        output: OutputBuffer::default(),
    };
    let loaded = folder.load(may_cut, &mut loader);
    end(db, server);
    loaded.map_err(|error| error.to_string())
}

// ---- loading on a running server -------------------------------------------------------------------------------------

/// `DEBUG RELOAD` without saving: loads the RDB file. `client` asked for it. A file of a
/// version that is not read changes nothing.
pub fn reload_rdb(
    db: &mut Keyspace,
    server: &mut State,
    client: Option<ClientId>,
    flushes: bool,
    merges: bool,
) -> Result<(), LoadError> {
    let path = server.config.dir.join(file_name(&server.config.dbfilename));
    check_header(server, &path).map_err(|error| error.at(&path))?;
    load_again(db, server, client, flushes, |db, server| {
        match load_file(db, server, &path, Rules { merges, ..Rules::default() })? {
            true => Ok(()),
            false => Err(format!("{} is not there", path.display()).into()),
        }
    })
}

/// Reads a file's version. Errors: it is not read. Any other fault is found by loading it.
fn check_header(server: &State, path: &Path) -> Result<(), LoadError> {
    let mut magic = [0; Version::MAGIC_BYTES];
    let read = server.persistence.disk().open_read(path);
    if read.and_then(|mut source| source.read_exact(&mut magic)).is_err() {
        return Ok(());
    }
    match Version::from_magic(&magic, version_check(server)) {
        Ok(_) => Ok(()),
        Err(fault) => Err(LoadError::of_file(server, FileError::Header(fault))),
    }
}

/// `DEBUG LOADAOF`: loads the append-only file, up to the last write. `client` asked for it. Errors: a text for the log.
pub fn reload_aof(
    db: &mut Keyspace,
    server: &mut State,
    client: Option<ClientId>,
) -> Result<(), String> {
    if let Some((Purpose::Rewrite, ..)) = server.persistence.under_way() {
        return Err("the append-only file is being rewritten".into());
    }
    persistence::turn(db, server).map_err(|fatal| fatal.to_string())?;
    let folder = persistence::folder_at_start(server)?;
    let bytes = folder.size().map_err(|error| error.to_string())?;
    load_again(db, server, client, true, |db, server| {
        load_folder(db, server, &folder, bytes, false).map(drop)
    })?;
    persistence::note_loaded(db, server);
    Ok(())
}

/// Loads on a running server. Clients are served meanwhile as at the start, except the one that waits for the end.
/// Nothing goes to the log or replicas.
fn load_again<E>(
    db: &mut Keyspace,
    server: &mut State,
    client: Option<ClientId>,
    flushes: bool,
    load: impl FnOnce(&mut Keyspace, &mut State) -> Result<(), E>,
) -> Result<(), E> {
    let selected = db.selected();
    effect::note_deletions(db, server);
    persistence::spread_ended(server);
    // Not stopped: those of this turn, and of a transaction around this command, are still to be taken.
    let effects = std::mem::take(&mut server.effects);
    let is_heard = db.deletions.is_heard();
    db.deletions.listen(false);
    hold(server, client, true);
    if flushes && let Some(mut engine) = server.take_engine() {
        let (lua, libraries) = engine.functions();
        libraries.flush(lua);
        server.scripts.put_engine(engine);
    }
    server.persistence.keys_loaded = 0;
    server.persistence.keys_expired_at_load = 0;
    let loaded = db.uncounted(|db| {
        if flushes {
            db.clear(0..db.databases(), true);
        }
        load(db, server)
    });
    server.effects = effects;
    db.deletions.listen(is_heard);
    hold(server, client, false);
    db.select(selected);
    loaded
}

/// Nested turns skip a client that is held.
fn hold(server: &mut State, client: Option<ClientId>, is_held: bool) {
    if let Some(client) = client.and_then(|id| server.clients.get_mut(id)) {
        client.flags.set(ClientFlags::HELD, is_held);
    }
}

fn file_name(name: &[u8]) -> &Path {
    use std::os::unix::ffi::OsStrExt;
    Path::new(std::ffi::OsStr::from_bytes(name))
}

/// Loads an RDB file. False: there is none.
pub fn load_file(
    db: &mut Keyspace,
    server: &mut State,
    path: &Path,
    rules: Rules,
) -> Result<bool, LoadError> {
    let disk = server.persistence.disk().clone();
    let unreadable = |error: std::io::Error| LoadError::from(system_text(&error)).at(path);
    let mut source = match disk.open_read(path) {
        Ok(source) => source,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(unreadable(error)),
    };
    let bytes = disk.size(path).map_err(unreadable)?;
    begin(db, server, bytes);
    let loaded = load_rdb(db, server, &mut *source, bytes, rules);
    end(db, server);
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
