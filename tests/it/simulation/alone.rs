//! One server whose files go through everything that may happen to them, while it is killed, ended
//! and started again: it always starts, with all that was promised, and its copies have what it
//! has.
//!
//! One client keeps a ledger of what it has written (`ledger.rs`); others write what comes to mind
//! (`support/grammar.rs`).

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;

use latchkey::sys::disk::model::{Call, Fault};

use super::clients;
use super::connection::Connection;
use super::kills;
use super::kinds::Kinds;
use super::large;
use super::ledger::{Change, Ledger};
use super::lockers::Lockers;
use super::memory;
use super::oracle;
use super::parameters::{self, Changed};
use super::world::{Loss, MS, NODES, Options, SECOND, World};
use crate::support::Reply;
use crate::support::grammar::Generator;

/// The server.
const NODE: usize = 0;
/// The database of the ledger; those of the grammar are below.
const DATABASE: &str = "3";
const KEYS: usize = 12;
/// Values of this many bytes are large.
const LARGE: usize = 1 << 20;

/// Files in the server's folder that are none of its own, called as those might be that a process
/// has left.
const FOREIGN: &[&str] =
    &["/temp-1.rdb", "/temp-4000000001.rdb", "/temp-rewriteaof-4000000001.aof", "/backup.rdb"];

/// What a reply to the ledger's client is to.
enum Expect {
    Any,
    /// The last reply of a unit.
    Unit(usize),
    /// The same where the unit's second command makes the first change of the second one, or is
    /// refused.
    Either(usize),
    /// The same of a script, which may end after any of its commands if it needs more memory than
    /// it may.
    Script(usize),
}

pub struct Alone {
    pub world: World,
    ledger: Ledger,
    connection: Option<Connection>,
    expects: VecDeque<Expect>,
    counter: u64,
    grammar: Generator,
    others: Option<Connection>,
    lockers: Lockers,
    /// Somebody who has asked for the stream, and reads nothing of it.
    replica: Option<Connection>,
    /// The append-only file has all data.
    is_safe: bool,
    /// `appendfsync always`, without pauses.
    keeps_all: bool,
    /// Keys may have been evicted.
    pub may_lack: bool,
    /// The disk has not been told to fail since its status was looked at.
    is_disk_well: bool,
    /// `proto-max-bulk-len` and the like of the next start.
    changed: Changed,
    pub counts: BTreeMap<&'static str, u64>,
}

impl Alone {
    pub fn new(options: Options) -> Self {
        let seed = options.seed;
        let mut world = World::new(options);
        world.waits_for_busy = false;
        (0..NODES).for_each(|node| world.crash(node, Loss::Disk));
        world.configure(NODE, "appendonly yes");
        world.configure(NODE, "primary-restart-read-only 0");
        world.configure(NODE, "repl-protect-empty-primary no");
        world.configure(NODE, "wait-all-replicas 0");
        for name in FOREIGN {
            world.nodes[NODE].disk.put(Path::new(name), name.as_bytes());
        }
        world.start(NODE, None);
        let grammar = Generator::new(seed, clients::grammar(world.kinds));
        let lockers = Lockers::new(DATABASE, world.kinds.contains(Kinds::MEMORY));
        Alone {
            keeps_all: world.keeps_all,
            world,
            ledger: Ledger::default(),
            connection: None,
            expects: VecDeque::new(),
            counter: 0,
            grammar,
            others: None,
            lockers,
            replica: None,
            is_safe: true,
            may_lack: false,
            is_disk_well: true,
            changed: Changed::default(),
            counts: BTreeMap::new(),
        }
    }

    fn has(&self, kind: Kinds) -> bool {
        self.world.kinds.contains(kind)
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    pub fn ask(&mut self, text: &str) -> String {
        let words: Vec<&str> = text.split(' ').collect();
        let told = self.world.show(NODE, &words);
        self.world.trace.note(|| format!("{text}: {told}"));
        told
    }

    /// Some steps, and a look at all that must hold.
    pub fn go_on(&mut self, steps: usize) {
        for _ in 0..steps {
            self.step();
            if !self.world.is_up(NODE) {
                // It has ended, in order or because it could not keep what it has promised.
                self.come_back(Loss::Process);
            }
        }
        self.compare();
    }

    pub fn summary(&mut self) -> String {
        let (turns, events) = (self.world.turns, self.world.trace.events);
        format!(
            "{} kinds {}, {turns} turns, {events} events, {} answered, {} grants, {} to who waited, {} killed meanwhile, {:?}, trace {:016x}",
            self.world.options.seed,
            self.world.kinds,
            self.ledger.answered,
            self.lockers.grants,
            self.lockers.handed_over,
            self.lockers.killed,
            self.counts,
            self.world.trace.hash()
        )
    }

    fn step(&mut self) {
        match self.world.random.usize(..40) {
            0..10 => {
                self.write();
                self.turn();
            }
            10..14 => self.write_anything(),
            14 => _ = self.ask("BGREWRITEAOF"),
            15 => _ = self.ask("BGSAVE SCHEDULE"),
            16 => {
                let words = ["SAVE", "BGSAVE CANCEL", "BGSAVE", "BGREWRITEAOF"];
                let words = words[self.world.random.usize(..words.len())];
                self.ask(words);
            }
            17 => self.switch(),
            18 => {
                let name = ["aof-disable-auto-gc", "aof-use-rdb-preamble", "aof-timestamp-enabled"];
                let name = name[self.world.random.usize(..name.len())];
                let kept = ["yes", "no"][self.world.random.usize(..2)];
                self.ask(&format!("CONFIG SET {name} {kept}"));
            }
            19 => self.settle(),
            20 => self.clear(),
            21 => self.kill(),
            22 => self.reload(),
            23 => self.compare(),
            24 => self.attach(),
            25..28 if self.has(Kinds::DISK) => self.harm_disk(),
            28..30 if self.has(Kinds::PARAMETERS) => self.set_parameter(),
            30..32 if self.has(Kinds::ENDINGS) => self.end(),
            32 if self.has(Kinds::MEMORY) => memory::overwrite_during_a_snapshot(self),
            33 if self.has(Kinds::MEMORY) => memory::limit(self),
            34 | 35 if self.has(Kinds::KILLS) => {
                // Nothing that was sent before is done between.
                self.take_all();
                kills::serve_and_kill(&mut self.world, NODE);
            }
            36 if self.has(Kinds::MEMORY) => memory::evict_while_somebody_listens(self),
            37 if self.has(Kinds::PARAMETERS) => self.save_elsewhere(),
            38 if self.has(Kinds::LARGE) => self.write_large(),
            39 if self.has(Kinds::LOCKS) && self.world.has_steps => self.step_clock(),
            _ => {
                let us = self.world.random.i64(1..200) * MS;
                self.world.step(us);
                if self.world.random.bool() {
                    self.background();
                }
            }
        }
        self.take();
        self.lock(false);
    }

    /// Has those who take locks take replies, and send more unless they rest.
    fn lock(&mut self, rests: bool) {
        if self.has(Kinds::LOCKS) {
            let keeps_all = self.is_safe && self.keeps_all;
            let promise = [keeps_all || self.is_safe && self.is_disk_well, keeps_all];
            self.lockers.act(&mut self.world, NODE, "", promise, rests);
            if self.expects.is_empty() {
                self.lockers.end_flush();
            }
        }
    }

    fn turn(&mut self) {
        self.world.turn(NODE);
        self.take();
    }

    fn background(&mut self) {
        self.world.background(NODE);
    }

    // ---- the ledger -----------------------------------------------------------------------------

    fn connect(&mut self) -> bool {
        if self.connection.as_ref().is_none_or(|connection| connection.has_ended) {
            self.expects.clear();
            self.connection = self.world.connect(NODE);
            if let Some(connection) = &mut self.connection {
                connection.send(&["SELECT", DATABASE]);
                self.expects.push_back(Expect::Any);
            }
        }
        self.connection.is_some()
    }

    fn key(&mut self) -> String {
        format!("k{}", self.world.random.usize(..KEYS))
    }

    fn value(&mut self) -> String {
        self.counter += 1;
        let mut value = self.counter.to_string();
        if self.has(Kinds::LARGE) && self.world.random.u32(..12) == 0 {
            let len = self.world.random.usize(LARGE / 2..LARGE * 2);
            value.push_str(&"x".repeat(len));
        }
        value
    }

    /// Sends some units, which the next turn runs.
    pub fn write(&mut self) {
        if !self.connect() {
            return;
        }
        for _ in 0..self.world.random.usize(1..4) {
            let (one, other) = (self.key(), self.key());
            let (first, second) = (self.value(), self.value());
            let both = vec![
                Change::Set(one.clone(), first.clone()),
                Change::Set(other.clone(), second.clone()),
            ];
            let form = self.world.random.u32(..8);
            let sets_parameter = self.has(Kinds::PARAMETERS) && self.world.random.u32(..3) == 0;
            let setting = match sets_parameter && form == 0 {
                true => self.changed.draw(&mut self.world, NODE),
                false => None,
            };
            let Some(connection) = &mut self.connection else { return };
            let expects = &mut self.expects;
            let mut any = |connection: &mut Connection, words: &[&str]| {
                connection.send(words);
                expects.push_back(Expect::Any);
            };
            let mut expects_unit: fn(usize) -> Expect = Expect::Unit;
            let unit = match form {
                0 if one != other => {
                    any(connection, &["MULTI"]);
                    any(connection, &["SET", &one, &first]);
                    if let Some((name, value)) = &setting {
                        any(connection, &["CONFIG", "SET", name, value]);
                    }
                    any(connection, &["SET", &other, &second]);
                    connection.send(&["EXEC"]);
                    self.ledger.send(both)
                }
                1 if one != other => {
                    let script =
                        "redis.call('SET', KEYS[1], ARGV[1]) redis.call('SET', KEYS[2], ARGV[2])";
                    connection.send(&["EVAL", script, "2", &one, &other, &first, &second]);
                    expects_unit = Expect::Script;
                    self.ledger.send(both)
                }
                3 | 4 if first.len() > LARGE => {
                    // No request is as large as what comes of it.
                    let (head, tail) = first.split_at(first.len() / 2);
                    any(connection, &["MULTI"]);
                    any(connection, &["SET", &one, head]);
                    match form {
                        3 => any(connection, &["APPEND", &one, tail]),
                        _ => any(connection, &["SETRANGE", &one, &head.len().to_string(), tail]),
                    }
                    connection.send(&["EXEC"]);
                    let mut changes = vec![Change::Set(one.clone(), first.clone())];
                    let kinds = self.world.kinds;
                    if kinds.contains(Kinds::LIMITS) || kinds.contains(Kinds::PARAMETERS) {
                        // The second command may be refused: `proto-max-bulk-len`.
                        expects_unit = Expect::Either;
                        changes.push(Change::Set(one, head.to_owned()));
                    }
                    self.ledger.send(changes)
                }
                2 if one != other => {
                    connection.send(&["MSET", &one, &first, &other, &second]);
                    self.ledger.send(both)
                }
                _ => {
                    connection.send(&["SET", &one, &first]);
                    self.ledger.send(vec![Change::Set(one, first)])
                }
            };
            self.expects.push_back(expects_unit(unit));
        }
    }

    /// Takes replies, and notes what is promised by them.
    pub fn take(&mut self) {
        let Some(connection) = &mut self.connection else { return };
        let mut replies = connection.take();
        for reply in replies.drain(..) {
            let Some(expect) = self.expects.pop_front() else { continue };
            let unit = match expect {
                Expect::Any => continue,
                Expect::Unit(unit) => unit,
                Expect::Either(unit) => {
                    let is_refused = reply.show().contains("ERR string exceeds maximum");
                    self.ledger.keep(unit, usize::from(is_refused));
                    unit
                }
                Expect::Script(unit) if reply.show().contains("not enough memory") => {
                    self.ledger.leave_open(unit);
                    continue;
                }
                Expect::Script(unit) => unit,
            };
            let is_done = match &reply {
                Reply::Error(_) | Reply::NullArray => false,
                Reply::Array(replies) => !replies.iter().any(|reply| match reply {
                    // The others have been run.
                    Reply::Error(text) => {
                        !text.starts_with(b"ERR CONFIG")
                            && !text.starts_with(b"ERR string exceeds maximum")
                    }
                    _ => false,
                }),
                _ => true,
            };
            self.world.trace.note(|| format!("unit {unit} {}", reply.show()));
            self.ledger.answer(unit, is_done);
            if self.is_safe && (self.keeps_all || self.is_disk_well) {
                self.ledger.promise(unit + 1, self.keeps_all);
            }
        }
    }

    /// Waits for all replies.
    fn take_all(&mut self) {
        for _ in 0..400 {
            if self.expects.is_empty() || !self.world.is_up(NODE) {
                return;
            }
            self.world.step(20 * MS);
            self.background();
            self.take();
            if self.connection.as_ref().is_none_or(|connection| connection.has_ended) {
                self.expects.clear();
                return;
            }
        }
        let waits = self.expects.len();
        self.world.fail(&format!("{waits} replies do not come"));
    }

    /// The data of the ledger, as the server has it.
    fn found(&mut self) -> Option<BTreeMap<String, String>> {
        self.ask("SELECT 3");
        let mut found = BTreeMap::new();
        for key in (0..KEYS).map(|key| format!("k{key}")) {
            match self.world.ask(NODE, &["GET", &key]) {
                Some(Reply::Bulk(value)) => {
                    found.insert(key, String::from_utf8_lossy(&value).into_owned());
                }
                Some(Reply::NullBulk) => {}
                None => return None,
                other => self.world.fail(&format!("GET {key}: {other:?}")),
            }
        }
        Some(found)
    }

    fn check_live(&mut self) {
        self.take_all();
        if let Some(found) = self.found()
            && let Some(why) = self.ledger.differs_live(&found, self.may_lack)
        {
            self.world.fail(&format!("the server has not what it has answered: {why}"));
        }
    }

    fn clear(&mut self) {
        if !self.connect() {
            return;
        }
        self.lockers.excuse(true);
        self.world.trace.note(|| "FLUSHALL".into());
        let Some(connection) = &mut self.connection else { return };
        connection.send(&["FLUSHALL"]);
        let unit = self.ledger.send(vec![Change::Clear]);
        self.expects.push_back(Expect::Unit(unit));
        self.turn();
    }

    // ---- others ---------------------------------------------------------------------------------

    fn write_anything(&mut self) {
        if self.others.as_ref().is_none_or(|connection| connection.has_ended) {
            self.others = self.world.connect(NODE);
            let database = self.world.random.u32(..3).to_string();
            if let Some(connection) = &mut self.others {
                connection.send(&["SELECT", &database]);
            }
        }
        let count = self.world.random.usize(1..20);
        let Some(connection) = &mut self.others else { return };
        for _ in 0..count {
            let request = self.grammar.request().args;
            self.world.trace.note(|| {
                let words = request.iter().map(|word| crate::support::quote(word));
                format!("send {}", words.collect::<Vec<_>>().join(" "))
            });
            connection.send(&request);
        }
        self.world.turn(NODE);
        connection.take();
    }

    /// The same of what is large.
    fn write_large(&mut self) {
        let Some(mut connection) = self.world.connect(NODE) else { return };
        connection.send(&["SELECT", "2"]);
        for words in large::requests(&mut self.world.random) {
            connection.send(&words);
            self.world.turn(NODE);
        }
        connection.take();
    }

    /// Somebody becomes a replica for a while: there is a backlog then, and a snapshot for it.
    fn attach(&mut self) {
        match &mut self.replica {
            Some(connection) if !connection.has_ended && self.world.random.bool() => {
                connection.drop_input()
            }
            Some(_) => self.replica = None,
            None => {
                self.replica = self.world.connect(NODE);
                if let Some(connection) = &mut self.replica {
                    connection.send(&["PSYNC", "?", "-1"]);
                    self.count("replicas");
                }
            }
        }
        self.world.turn(NODE);
    }

    // ---- files ----------------------------------------------------------------------------------

    /// Changes what is promised: alone, or in a transaction between two writes.
    fn switch(&mut self) {
        self.take_all();
        self.lock(true);
        if !self.world.is_up(NODE) {
            return;
        }
        let (name, values): (_, &[&str]) = match self.world.random.u32(..4) {
            0 | 1 => ("appendonly", &["yes", "no"]),
            2 => ("appendfsync", &["always", "everysec", "no"]),
            _ => ("no-appendfsync-on-rewrite", &["yes", "no"]),
        };
        let value = values[self.world.random.usize(..values.len())];
        if name == "appendonly" && value == "no" {
            self.is_safe = false;
            self.ledger.forgive();
            self.lockers.forgive();
        }
        let set = ["CONFIG", "SET", name, value];
        if self.has(Kinds::PARAMETERS) && self.world.random.bool() && self.connect() {
            let (one, first) = (self.key(), self.value());
            let Some(connection) = &mut self.connection else { return };
            for words in [&["MULTI"][..], &["SET", &one, &first], &set] {
                connection.send(words);
                self.expects.push_back(Expect::Any);
            }
            connection.send(&["EXEC"]);
            let unit = self.ledger.send(vec![Change::Set(one, first)]);
            self.expects.push_back(Expect::Unit(unit));
            // The reply is sent as the new value allows it.
            self.keeps_all = false;
            self.world.trace.note(|| format!("transaction of {set:?}"));
            self.turn();
            self.take_all();
            self.count("switches in a transaction");
        } else {
            self.ask(&set.join(" "));
            self.count("switches");
        }
        self.look_at_policy();
    }

    fn look_at_policy(&mut self) {
        if !self.world.is_up(NODE) {
            return;
        }
        let current = |world: &mut World, name: &str| parameters::current(world, NODE, name);
        self.keeps_all = current(&mut self.world, "appendfsync") == "always"
            && current(&mut self.world, "no-appendfsync-on-rewrite") == "no";
        if current(&mut self.world, "appendonly") == "no" {
            self.is_safe = false;
        }
    }

    /// Lets all that is under way end.
    pub fn settle(&mut self) {
        self.heal_disk();
        self.take_all();
        for _ in 0..400 {
            self.world.step(SECOND / 2);
            self.background();
            self.take();
            if !self.world.is_up(NODE) {
                return;
            }
            let fields = self.world.section(NODE, "persistence");
            let field = |name: &str| fields.get(name).map_or("", |field| field.as_str());
            let is_failed = ["aof_last_write_status", "aof_last_bgrewrite_status"]
                .iter()
                .any(|name| field(name) == "err");
            if field("aof_enabled") == "1" && is_failed {
                // A failed sync is final for its file, and a log that was switched on lacks what
                // was there before.
                self.ask("BGREWRITEAOF");
            }
            let waits =
                ["aof_rewrite_in_progress", "aof_rewrite_scheduled", "rdb_bgsave_in_progress"]
                    .iter()
                    .any(|name| field(name) != "0");
            let is_on = field("aof_enabled") == "1";
            let is_written = !is_on || !is_failed && field("aof_buffer_length") == "0";
            if !waits && is_written {
                self.is_disk_well = true;
                self.is_safe = is_on;
                if is_on {
                    self.ledger.promise(self.ledger.count_answered(), false);
                }
                return;
            }
        }
        let fields = self.world.section(NODE, "persistence");
        self.world.fail(&format!("what is under way does not end: {fields:?}"));
    }

    /// Nobody else writes, and nothing is under way.
    pub fn be_quiet(&mut self) {
        (self.replica, self.others) = (None, None);
        self.changed.undo(&mut self.world);
        self.settle();
    }

    /// `dbfilename` changes while a snapshot is written, which goes where it was to go.
    fn save_elsewhere(&mut self) {
        self.be_quiet();
        if !self.world.is_up(NODE) {
            return;
        }
        let before = parameters::current(&mut self.world, NODE, "dbfilename");
        let told = self.ask("BGSAVE");
        self.counter += 1;
        let other = format!("other{}.rdb", self.counter);
        let set = self.ask(&format!("CONFIG SET dbfilename {other}"));
        if set != "OK" && self.world.is_up(NODE) {
            self.world.fail(&format!("CONFIG SET dbfilename: {set}"));
        }
        self.settle();
        self.ask(&format!("CONFIG SET dbfilename {before}"));
        let disk = self.world.nodes[NODE].disk.clone();
        if disk.bytes(&Path::new("/").join(&other)).is_some() {
            self.world.fail(&format!("BGSAVE ({told}) was to write {before}, and wrote {other}"));
        }
        self.count("saves elsewhere");
    }

    fn check_foreign_files(&self) {
        for name in FOREIGN {
            let bytes = self.world.nodes[NODE].disk.bytes(Path::new(name));
            if bytes.as_deref() != Some(name.as_bytes()) {
                self.world.fail(&format!("{name} is not the server's, and was changed"));
            }
        }
    }

    fn compare(&mut self) {
        self.check_foreign_files();
        self.settle();
        self.changed.undo(&mut self.world);
        self.check_live();
        if !self.world.is_up(NODE) {
            return;
        }
        self.replica = None;
        self.settle();
        if self.world.is_up(NODE) {
            if self.world.nodes[NODE].steps > 0 {
                // Deadlines are compared with none.
                self.lockers.clear(&mut self.world, NODE);
            }
            oracle::compare_copies(&mut self.world, NODE, self.is_safe);
            self.count("comparisons");
        }
    }

    /// DEBUG RELOAD, DEBUG LOADAOF: the data stays what it was.
    fn reload(&mut self) {
        self.take_all();
        if !self.world.is_up(NODE) {
            return;
        }
        let loads_log = self.is_safe && self.is_disk_well && self.world.random.bool();
        if loads_log {
            self.settle();
            let told = self.ask("DEBUG LOADAOF");
            if told != "OK" && self.world.is_up(NODE) {
                self.world.fail(&format!("DEBUG LOADAOF: {told}"));
            }
        } else {
            self.ask("DEBUG RELOAD");
        }
        self.count("reloads");
        self.lockers.excuse_reloaded(self.world.nodes[NODE].steps > 0);
        self.check_live();
    }

    // ---- ends -----------------------------------------------------------------------------------

    /// The server is gone from one moment to the next.
    fn kill(&mut self) {
        self.take();
        let loss = [Loss::Process, Loss::Power][self.world.random.usize(..2)];
        if self.world.random.bool() {
            // In the middle of something.
            self.write();
            if self.world.random.bool() {
                self.turn();
            }
        }
        self.world.crash(NODE, loss);
        self.come_back(loss);
    }

    /// SHUTDOWN and SIGTERM, in the turn of writes or in one of their own.
    fn end(&mut self) {
        self.take();
        if self.world.random.bool() {
            self.write();
        }
        let forms: &[&[&str]] = &[
            &["SHUTDOWN"],
            &["SHUTDOWN", "NOSAVE"],
            &["SHUTDOWN", "SAVE"],
            &["SHUTDOWN", "NOW"],
            &["SHUTDOWN", "NOSAVE", "NOW", "FORCE"],
            &["SHUTDOWN", "SAVE", "FORCE"],
            &["SHUTDOWN", "ABORT"],
        ];
        match self.world.random.usize(..forms.len() + 2) {
            form if form < forms.len() => {
                let own = self.world.random.bool();
                if !own && self.connect() {
                    let Some(connection) = &mut self.connection else { return };
                    if self.world.random.u32(..3) == 0 {
                        connection.send(&["MULTI"]);
                        connection.send(forms[form]);
                        connection.send(&["EXEC"]);
                        self.expects.extend([Expect::Any, Expect::Any]);
                    } else {
                        connection.send(forms[form]);
                    }
                    // An answer comes only if it is refused.
                    self.expects.push_back(Expect::Any);
                    self.world.turn(NODE);
                } else {
                    self.world.tell(NODE, forms[form]);
                }
                self.world.trace.note(|| format!("{:?}", forms[form]));
            }
            form => {
                if let Some(server) = &self.world.nodes[NODE].server {
                    server.signal(if form == forms.len() { 15 } else { 2 });
                }
                self.turn();
            }
        }
        self.count("ends");
        for _ in 0..400 {
            self.take();
            if !self.world.is_up(NODE) {
                return;
            }
            if self.expects.is_empty() {
                break;
            }
            self.world.step(20 * MS);
            self.background();
        }
        // It was refused, or aborted.
        self.expects.clear();
        self.connection = None;
        self.world.turn(NODE);
    }

    /// Starts the server again, after its end, and looks what it has.
    fn come_back(&mut self, loss: Loss) {
        self.take();
        self.expects.clear();
        (self.connection, self.others, self.replica) = (None, None, None);
        self.world.nodes[NODE].disk.heal();
        self.is_disk_well = true;
        if self.has(Kinds::LIMITS) {
            self.set_limits();
        }
        let is_known = self.is_safe;
        self.lockers.begin(&self.world, is_known.then_some(loss));
        self.world.start(NODE, None);
        self.check_foreign_files();
        self.count("starts");
        (self.is_safe, self.keeps_all) = (true, self.world.keeps_all);
        self.look_at_policy();
        let Some(found) = self.found() else { return };
        let differs = self.ledger.differs_after(&found, loss == Loss::Power, self.may_lack);
        if is_known && let Some(why) = differs {
            self.world.fail(&format!("not what was promised is there: {why}"));
        }
        self.ledger.begin_with(found);
        self.may_lack = false;
    }

    /// Other limits than those under which it was written, from the next start on.
    fn set_limits(&mut self) {
        let limits: &[(&str, &[&str])] = &[
            ("proto-max-bulk-len", &["1mb", "512mb"]),
            ("client-query-buffer-limit", &["1mb", "1gb"]),
            ("list-max-listpack-size", &["1", "-1", "-5", "128"]),
            ("hash-max-listpack-entries", &["0", "512"]),
            ("set-max-intset-entries", &["0", "512"]),
            ("stream-node-max-entries", &["1", "0", "100"]),
            ("stream-node-max-bytes", &["1", "0", "4096"]),
            ("script-memory-limit", &["1mb", "256mb"]),
            ("script-source-limit", &["1kb", "1mb"]),
            ("script-cache-persist", &["yes", "no"]),
            ("script-cache-persist-limit", &["0", "300", "16mb"]),
            ("script-undo-limit", &["0", "64mb"]),
            ("databases", &["4", "16", "300"]),
            ("maxmemory-clients", &["1mb", "0"]),
            ("aof-load-truncated", &["yes"]),
            ("sanitize-dump-payload", &["no", "yes"]),
        ];
        // Where values are large the first one matters most.
        let is_first = self.has(Kinds::LARGE) && self.world.random.bool();
        let chosen = if is_first { 0 } else { self.world.random.usize(..limits.len()) };
        let (name, values) = limits[chosen];
        let value = values[self.world.random.usize(..values.len())];
        self.world.configure(NODE, &format!("{name} {value}"));
        self.world.trace.note(|| format!("limit {name} {value}"));
        self.count("limits");
    }

    // ---- misfortunes ----------------------------------------------------------------------------

    fn harm_disk(&mut self) {
        let disk = self.world.nodes[NODE].disk.clone();
        let random = &mut self.world.random;
        self.is_disk_well = false;
        match random.u32(..10) {
            0..4 => {
                let more = random.usize(..600);
                disk.set_capacity(Some(disk.used() + more));
                self.world.trace.note(|| format!("the disk has room for {more}"));
                self.count("full disks");
            }
            4..6 => {
                disk.set_capacity(None);
                self.count("emptied disks");
            }
            6 => {
                let us = [0, 1000, 300 * MS][random.usize(..3)];
                disk.slow_down(self.world.nodes[NODE].clock.clone(), us);
                self.count("slow disks");
            }
            _ => {
                let call = Call::ALL[random.usize(..Call::ALL.len())];
                let fault = match random.u32(..3) {
                    0 => Fault::Short(random.usize(..20)),
                    1 => Fault::Error(libc::EIO),
                    _ => Fault::Error(libc::ENOSPC),
                };
                disk.fail_next(call, fault);
                self.world.trace.note(|| format!("{call:?} will fail: {fault:?}"));
                self.count("failing calls");
            }
        }
    }

    fn heal_disk(&mut self) {
        self.world.nodes[NODE].disk.heal();
    }

    /// Somebody sets the wall clock: locks do not follow it.
    fn step_clock(&mut self) {
        let us = self.world.random.i64(-3600..3600) * SECOND;
        self.world.step_clock(NODE, us);
        self.count("clock steps");
    }

    fn set_parameter(&mut self) {
        self.take_all();
        if self.world.is_up(NODE) {
            let in_transaction = self.world.random.u32(..3) == 0;
            self.changed.set(&mut self.world, NODE, in_transaction);
            self.count("parameters");
        }
    }
}

/// A whole run.
pub fn run(options: Options) -> String {
    let rounds = options.rounds;
    let mut alone = Alone::new(options);
    for _ in 0..rounds {
        alone.go_on(60);
    }
    alone.kill();
    alone.world.tell_longest();
    alone.summary()
}
