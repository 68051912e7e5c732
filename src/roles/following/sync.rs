//! A snapshot from the primary: receiving its bytes, and loading them into databases.
//!
//! Without `repl-diskless-load` the bytes go to a file. A thread decodes all of it before the old
//! data is given up, so that no snapshot that cannot be loaded costs any data, and memory never
//! holds two data sets. The file becomes the RDB file once it is loaded. With `repl-diskless-load`
//! the bytes go through a pipe in memory. Entries go into databases beside the served ones. Clients
//! see in that time:
//!
//! ```text
//! disabled            the old data until loading starts, then -LOADING, with the old data freed
//! on-empty-db         the same; there is no old data if the bytes go through a pipe
//! swapdb              the old data if it is of the same history, else -LOADING; kept on failure
//! flush-before-load   -LOADING; the old data is freed before the first byte is checked
//! ```

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use super::{begin_backlog, close_replicas};
use crate::client::ClientFlags;
use crate::cluster::node::NodeId;
use crate::cluster::slot_job::parse_imports;
use crate::config::{DisklessLoad, system_text};
use crate::durability::load::{LoadError, Rules, entry_decoder, load_beside, run, version_check};
use crate::durability::{persistence, scripts};
use crate::keyspace::DbIndex;
use crate::persist::ahead::{Failure, KeysExpected, Verification, Verified};
use crate::persist::leftovers;
use crate::persist::rdb::{Event, FileError, Parser};
use crate::persist::saver::SCRIPT_FIELD;
use crate::replication::incoming::{Arriving, Checking, Feed, Loader, Sync};
use crate::roles::replicas;
use crate::state::persistence::{
    LAST_FENCE, LoadStats, Loading, OPEN_SLOTS, Purpose, SLOT_DROPS, SLOT_IMPORTS,
};
use crate::state::{Core, State};
use crate::sys::disk::{DiskReader, write_all};
use crate::sys::log::{notice, warning};

/// Time for loading in each turn. Unit: microseconds.
const SLICE_US: i64 = 5_000;
/// Entries between two readings of the clock.
const STEPS: u32 = 64;
/// Bytes after which the system is asked to start writing the file out.
const WRITEBACK_BYTES: u64 = 8 << 20;
/// An incomplete record is parsed again after this time, unless enough bytes come before. Unit:
/// microseconds.
const LOOK_AGAIN_US: i64 = 20_000;

/// Expired keys are kept: the primary will delete them.
const RULES: Rules = Rules { keeps_expired: true, merges: false, reports_expired: false };

/// The result of a step of loading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loaded {
    /// There is more to load now.
    Part,
    /// More bytes are needed.
    Waits,
    All,
}

impl Sync {
    /// A snapshot was announced. None: there is no memory or disk for it, which is logged.
    pub(super) fn begin(core: &Core, history: Option<(String, u64)>) -> Option<Self> {
        let keys: usize = DbIndex::all(core.keyspace.databases())
            .map(|number| core.keyspace.table_of(number).len())
            .sum();
        let mode = core.state.config.repl_diskless_load;
        let by_pipe = match mode {
            DisklessLoad::Disabled => false,
            DisklessLoad::OnEmptyDb => keys == 0,
            DisklessLoad::SwapDb | DisklessLoad::FlushBeforeLoad => true,
        };
        let file = if by_pipe { None } else { Some(Arriving::create(&core.state)?) };
        let keeps_old = mode == DisklessLoad::SwapDb;
        Some(Sync {
            history,
            by_mark: false,
            file,
            keeps_old,
            total: None,
            checking: None,
            loader: None,
        })
    }

    /// The snapshot's bytes follow.
    pub(super) fn begins(&mut self, core: &mut Core, total: Option<u64>) {
        self.by_mark = total.is_none();
        self.total = total;
        if let Some(following) = core.state.replication.following.as_deref_mut() {
            following.transfer.total = total;
        }
        let to = if self.file.is_some() { "to disk" } else { "to parser" };
        match total {
            Some(bytes) => {
                notice!(
                    core.state,
                    "MASTER <-> REPLICA sync: receiving {bytes} bytes from master {to}"
                )
            }
            None => notice!(
                core.state,
                "MASTER <-> REPLICA sync: receiving streamed RDB from master with EOF {to}"
            ),
        }
        if self.file.is_none() {
            let feed = Feed::Pipe { bytes: VecDeque::new(), is_ended: false };
            self.begin_loading(core, feed, total.unwrap_or(0));
        }
    }

    /// Takes some bytes. None: they cannot be kept, which is logged.
    pub(super) fn take(&mut self, state: &State, bytes: &[u8]) -> Option<()> {
        if let Some(arriving) = &mut self.file {
            return arriving.take(state, bytes);
        }
        if let Some(loader) = &mut self.loader
            && let Feed::Pipe { bytes: pipe, .. } = loader.parser.source_mut()
        {
            pipe.extend(bytes);
            loader.note_bytes();
        }
        Some(())
    }

    /// All bytes were received. None: they cannot be loaded, which is logged.
    pub(super) fn ends(&mut self, core: &mut Core, by_mark: bool) -> Option<()> {
        self.by_mark = by_mark;
        if let Some(arriving) = &self.file {
            arriving.sync(&core.state)?;
            self.begin_checking(core)?;
        } else if let Some(loader) = &mut self.loader {
            if let Feed::Pipe { is_ended, .. } = loader.parser.source_mut() {
                *is_ended = true;
            }
            loader.has_more = true;
        }
        Some(())
    }

    /// Starts to check the file. None: it cannot be read, which is logged.
    fn begin_checking(&mut self, core: &mut Core) -> Option<()> {
        let Some(arriving) = &self.file else { return Some(()) };
        let verification = Verification {
            source: arriving.open(&core.state)?,
            checks: core.state.config.rdbchecksum,
            version_check: version_check(&core.state),
            decoder: entry_decoder(core, RULES),
        };
        let (checking, work) = Checking::new(verification);
        let wake = core.state.persistence.wake();
        let spawned = core.state.persistence.background().spawn("sync-check", move || {
            work();
            wake();
        });
        match spawned {
            Ok(_) => self.checking = Some(checking),
            // Without a thread only the old data can replace the check.
            Err(_) => return self.load_file(core, true),
        }
        Some(())
    }

    /// Starts to load the file, with the old data kept until it is loaded or not. None: it cannot
    /// be read, which is logged.
    fn load_file(&mut self, core: &mut Core, keeps_old: bool) -> Option<()> {
        let arriving = self.file.as_ref()?;
        let (feed, bytes) = (Feed::File(arriving.open(&core.state)?), arriving.bytes);
        self.keeps_old |= keeps_old;
        self.begin_loading(core, feed, bytes);
        Some(())
    }

    /// Loads the file if it was checked. Errors: it cannot be loaded, which is logged.
    fn take_check(&mut self, core: &mut Core) -> Result<(), super::Lost> {
        let Some(result) = self.checking.as_ref().and_then(Checking::take) else { return Ok(()) };
        self.checking = None;
        match result {
            // Only the databases can tell whether keys are repeated.
            Ok(Verified { may_repeat_keys }) => {
                self.load_file(core, may_repeat_keys).ok_or(super::Lost::Unloadable)
            }
            Err(Failure::File(error)) => {
                let error = LoadError::of_file(&core.state, error);
                error.log_refusal(&core.state);
                Err(self.cannot_load(&mut core.state, &error.text))
            }
            Err(Failure::Entry(why)) => Err(self.cannot_load(&mut core.state, &why)),
        }
    }

    fn cannot_load(&self, state: &mut State, why: &str) -> super::Lost {
        let from = if self.file.is_some() { "DB from disk" } else { "DB from socket" };
        warning!(state, "Failed trying to load the MASTER synchronization {from}: {why}");
        super::note_failure(state, format!("Cannot load the snapshot: {why}"));
        super::Lost::Unloadable
    }

    fn begin_loading(&mut self, core: &mut Core, feed: Feed, total: u64) {
        if !self.keeps_old {
            persistence::end_aof(core);
        }
        if core.state.persistence.purpose() == Some(Purpose::Save) {
            replicas::abort_job(core, Purpose::Save);
        }
        if !self.keeps_old {
            end_history(&mut core.state);
            notice!(core.state, "MASTER <-> REPLICA sync: Flushing old data");
            let lazily = core.state.config.replica_lazy_flush;
            core.keyspace.clear_all(!lazily);
        }
        notice!(core.state, "MASTER <-> REPLICA sync: Loading DB in memory");
        let is_same = |(id, _): &(String, u64)| *id == core.state.replication.id;
        let is_beside = self.keeps_old && self.history.as_ref().is_some_and(is_same);
        let started_unix = core.state.now.unix_seconds();
        let persistence = &mut core.state.persistence;
        persistence.loading =
            Some(Loading { started_unix, total_bytes: total, is_beside, ..Loading::default() });
        persistence.loads = LoadStats::default();
        core.state.refresh_fast_path();
        self.loader = Some(Loader::new(core, feed, total));
    }

    /// Loads one slice. Errors: already logged.
    pub(super) fn load(&mut self, core: &mut Core) -> Result<Loaded, super::Lost> {
        self.take_check(core)?;
        let Some(loader) = &mut self.loader else { return Ok(Loaded::Waits) };
        loader.step(core).map_err(|why| self.cannot_load(&mut core.state, &why))
    }

    /// Replaces the served databases by the loaded ones. False: that failed, which is logged; then
    /// there is no data.
    pub(super) fn put_in_place(mut self, core: &mut Core) -> bool {
        let Some(loader) = self.loader.take() else { return false };
        let LoadStats { keys, expired, empty_skipped: empty } = core.state.persistence.loads;
        notice!(
            core.state,
            "Done loading RDB, keys loaded: {keys}, keys expired: {expired}, empty keys skipped: {empty}."
        );
        if self.keeps_old {
            persistence::end_aof(core);
            end_history(&mut core.state);
            notice!(core.state, "MASTER <-> REPLICA sync: Swapping active DB with loaded DB");
        }
        replicas::abort_job(core, Purpose::Save);
        let lazily = core.state.config.replica_lazy_flush || self.keeps_old;
        core.keyspace.put_in_place(loader.beside, !lazily);
        // The primary has told of the end of the others while this server did not follow it.
        core.state.node.moves.jobs.forget_tracked(|_| true);
        core.track_imports(loader.imports);
        core.track_drops(&loader.slot_drops);
        let outside = core.state.outside();
        if let Some(cluster) = &mut core.state.node.cluster {
            cluster.take_open_slots(&loader.open_slots, &outside);
        }
        if self.keeps_old {
            notice!(core.state, "MASTER <-> REPLICA sync: Discarding old DB in background");
        }
        let is_whole = take_functions(core, &loader.functions);
        core.state.clients.iter_mut().for_each(|client| client.flags |= ClientFlags::LOST_WRITES);
        end_loading(&mut core.state);
        let replication = &mut core.state.replication;
        replication.has_lost_writes = true;
        match self.history {
            Some((id, offset)) => (replication.id, replication.offset) = (id, offset),
            None => {
                replication.begin_history();
                replication.offset = 0;
            }
        }
        replication.ancestor = None;
        replication.backlog = None;
        if let Some(following) = replication.following.as_deref_mut() {
            following.knows_history = true;
            following.selected = loader.stream_database.min(core.keyspace.last_database());
        }
        begin_backlog(&mut core.state);
        match self.file {
            Some(arriving) if is_whole => arriving.put_in_place(&core.state),
            // No start could load it.
            Some(arriving) => arriving.remove(&core.state),
            None => {}
        }
        remove_file(&core.state);
        true
    }

    /// Drops the received bytes.
    pub(super) fn abort(self, core: &mut Core) {
        if let Some(arriving) = self.file {
            arriving.remove(&core.state);
        }
        if let Some(loader) = self.loader {
            core.keyspace.drop_beside(loader.beside);
            end_loading(&mut core.state);
            if self.keeps_old {
                notice!(
                    core.state,
                    "MASTER <-> REPLICA sync: Discarding temporary DB in background"
                );
                // An error is logged, and the old data is served.
                let _ = replicas::follow_appendonly(core, false);
            }
        }
    }
}

/// Ends the replication history, as the data no longer matches it: no replica can continue from
/// here.
fn end_history(state: &mut State) {
    if let Some(following) = state.replication.following.as_deref_mut()
        && following.knows_history
    {
        following.knows_history = false;
        notice!(state, "Discarding previously cached master state.");
    }
    close_replicas(state);
    state.replication.backlog = None;
    state.replication.logged.clear();
}

fn end_loading(state: &mut State) {
    state.persistence.loading = None;
    state.refresh_fast_path();
}

/// Replaces the function libraries. One that does not compile is skipped and logged. Returns
/// whether all have compiled.
fn take_functions(core: &mut Core, texts: &[Vec<u8>]) -> bool {
    let mut is_whole = true;
    if let Some(mut engine) = core.state.take_engine() {
        let (lua, libraries) = engine.functions();
        libraries.flush(lua);
        core.state.scripts.put_engine(engine);
    }
    for text in texts {
        if let Err(why) = run(core, &[b"FUNCTION", b"LOAD", text]) {
            warning!(core.state, "Failed loading a library of functions from the master: {why}");
            is_whole = false;
        }
    }
    is_whole
}

/// `rdb-del-sync-files`: removes the file, if persistence is off.
fn remove_file(state: &State) {
    let config = &state.config;
    if config.rdb_del_sync_files && config.save.is_empty() && !config.appendonly {
        notice!(
            state,
            "Removing the RDB file obtained from the master. This replica has persistence disabled"
        );
        let _ = state.persistence.disk().remove(&state.rdb_path());
    }
}

impl Arriving {
    fn create(state: &State) -> Option<Self> {
        let name = leftovers::temporary_arriving(state.now.unix_seconds(), std::process::id());
        let path = state.config.dir.join(name);
        match state.persistence.disk().create(&path) {
            Ok(file) => {
                leftovers::hold(&*file);
                Some(Arriving { file, path, bytes: 0, written_back: 0 })
            }
            Err(error) => {
                let why = system_text(&error);
                warning!(
                    state,
                    "Opening the temp file needed for MASTER <-> REPLICA synchronization: {why}"
                );
                None
            }
        }
    }

    fn take(&mut self, state: &State, bytes: &[u8]) -> Option<()> {
        if let Err(error) = write_all(&*self.file, bytes) {
            let why = system_text(&error);
            warning!(
                state,
                "Write error or short write writing to the DB dump file needed for MASTER <-> REPLICA synchronization: {why}"
            );
            return None;
        }
        self.bytes += bytes.len() as u64;
        let behind = self.bytes - self.written_back;
        if behind >= WRITEBACK_BYTES {
            self.file.start_writeback(self.written_back, behind);
            self.written_back = self.bytes;
        }
        Some(())
    }

    /// None: the file cannot be synced, which is logged.
    fn sync(&self, state: &State) -> Option<()> {
        let synced = self.file.sync_data();
        let what =
            "Failed trying to sync the temp DB to disk in MASTER <-> REPLICA synchronization";
        synced.map_err(|error| warning!(state, "{what}: {}", system_text(&error))).ok()
    }

    /// None: the file cannot be read, which is logged.
    fn open(&self, state: &State) -> Option<Box<dyn DiskReader>> {
        let opened = state.persistence.disk().open_read(&self.path);
        let what = "Failed trying to load the MASTER synchronization DB from disk";
        opened.map_err(|error| warning!(state, "{what}: {}", system_text(&error))).ok()
    }

    /// Renames the loaded file to the RDB file. A failure is logged: the former file stays, and
    /// later saves replace it.
    fn put_in_place(self, state: &State) {
        let (disk, target) = (state.persistence.disk(), state.rdb_path());
        let name = target.display();
        if let Err(error) = disk.rename(&self.path, &target) {
            let why = system_text(&error);
            warning!(
                state,
                "Failed trying to rename the temp DB into {name} in MASTER <-> REPLICA synchronization: {why}"
            );
            self.remove(state);
        } else if let Err(error) = disk.sync_folder(&state.config.dir) {
            let why = system_text(&error);
            warning!(
                state,
                "Failed trying to sync DB directory {name} in MASTER <-> REPLICA synchronization: {why}"
            );
        }
    }

    /// Fails harmlessly if the file does not exist.
    fn remove(&self, state: &State) {
        let _ = state.persistence.disk().remove(&self.path);
    }
}

impl Loader {
    fn new(core: &Core, feed: Feed, bytes: u64) -> Self {
        let feed_is_file = matches!(feed, Feed::File(_));
        Loader {
            parser: Parser::new(feed, core.state.config.rdbchecksum)
                .with_versions(version_check(&core.state)),
            feed_is_file,
            expected: KeysExpected::of_file(if feed_is_file { bytes } else { 0 }),
            decoder: entry_decoder(core, RULES),
            beside: core.keyspace.beside(),
            functions: Vec::new(),
            stream_database: DbIndex::ZERO,
            imports: Vec::new(),
            open_slots: Vec::new(),
            slot_drops: Vec::new(),
            has_more: feed_is_file,
            wanted: 0,
            look_at_us: 0,
            steps: 0,
            is_done: false,
        }
    }

    /// Loads for a bounded time. Errors: a text.
    fn step(&mut self, core: &mut Core) -> Result<Loaded, String> {
        let start_us = core.state.clock.now().boot_us;
        if !self.has_more && (self.piped() == Some(0) || start_us < self.look_at_us) {
            return Ok(Loaded::Waits);
        }
        let delay = core.state.config.key_load_delay;
        loop {
            let event = match self.parser.next_event() {
                Ok(event) => event,
                Err(FileError::Io { error, .. }) if error.kind() == io::ErrorKind::WouldBlock => {
                    // The record is parsed again from its beginning, so not after each few bytes of
                    // a large one.
                    self.wanted = self.parser.go_back() / 4;
                    self.look_at_us = start_us + LOOK_AGAIN_US;
                    self.has_more = false;
                    break;
                }
                Err(error) => {
                    let error = LoadError::of_file(&core.state, error);
                    error.log_refusal(&core.state);
                    return Err(error.text);
                }
            };
            match event {
                Event::Entry(entry) => {
                    load_beside(core, &self.decoder, &entry, &mut self.beside)?;
                    self.steps += 1;
                }
                Event::Function(text) => self.functions.push(text.to_vec()),
                Event::Aux { name, value } if &*name == b"repl-stream-db" => {
                    let number =
                        std::str::from_utf8(&value).ok().and_then(|text| text.parse().ok());
                    self.stream_database = number.unwrap_or(DbIndex::ZERO);
                }
                Event::ResizeDb { db: number, keys, .. } => {
                    self.beside.expect_keys(number, self.expected.take(keys));
                }
                Event::Aux { name, value } if &*name == LAST_FENCE.as_bytes() => {
                    let fence = std::str::from_utf8(&value).ok().and_then(|text| text.parse().ok());
                    core.keyspace.locks.fences.learn(fence.unwrap_or(0));
                }
                Event::Aux { name, value } if &*name == OPEN_SLOTS.as_bytes() => {
                    self.open_slots = value.to_vec();
                }
                Event::Aux { name, value } if &*name == SLOT_DROPS.as_bytes() => {
                    self.slot_drops = value.to_vec();
                }
                Event::Aux { name, value } if &*name == SLOT_IMPORTS.as_bytes() => {
                    self.imports.extend(parse_imports(&value));
                }
                Event::Aux { name, value } if &*name == SCRIPT_FIELD.as_bytes() => {
                    scripts::restore_saved(&mut core.state, &value);
                }
                Event::SlotImport { name, ranges } => {
                    self.imports.extend(NodeId::from_bytes(&name).map(|name| (name, ranges)));
                }
                Event::Aux { .. } | Event::Header(_) | Event::SelectDb(_) => {}
                Event::End(_) => {
                    self.is_done = true;
                    return Ok(Loaded::All);
                }
            }
            if delay > 0 {
                core.state.clock.sleep(Duration::from_micros(delay as u64));
            } else if delay < 0 && self.steps.is_multiple_of(delay.unsigned_abs()) {
                core.state.clock.sleep(Duration::from_micros(1));
            }
            let looks = delay != 0 || self.steps.is_multiple_of(STEPS);
            if looks && core.state.clock.now().boot_us - start_us >= SLICE_US {
                self.has_more = true;
                break;
            }
        }
        if let Some(loading) = &mut core.state.persistence.loading {
            loading.loaded_bytes = self.parser.offset();
        }
        Ok(if self.has_more { Loaded::Part } else { Loaded::Waits })
    }
}
