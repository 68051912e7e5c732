//! The servers of a simulation, their clocks and files, and one step of time.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::Arc;

use latchkey::clock::{Clock, ManualClock};
use latchkey::config::Config;
use latchkey::net::stream::Address;
use latchkey::server::driven::DrivenServer;
use latchkey::sys::disk::model::{Death, ModelDisk};
use latchkey::sys::log::{Level, Logger};
use latchkey::sys::process::Ended;
use latchkey::sys::random;

use super::connection::Connection;
use super::kinds::Kinds;
use super::network::{self, BUS_PORT, PORT, Wires};
use super::pauses;
use super::trace::Trace;
use crate::support::{Reply, START};

pub const NODES: usize = 3;
/// A server that is started from copies of another one's files, to be compared with it. It takes no
/// part in anything else.
pub const COPY: usize = NODES;
pub const MS: i64 = 1_000;
pub const SECOND: i64 = 1_000_000;

/// Memory that a turn may need for a while.
const ROOM_BYTES: u64 = 8 << 20;

/// A turn that takes longer keeps its server from taking others.
const LONG_US: i64 = 20 * MS;

/// What a run is to be.
#[derive(Clone, Debug)]
pub struct Options {
    pub seed: u64,
    /// Rounds: a while of trouble and a quiet moment each.
    pub rounds: usize,
    /// Shows all events.
    pub is_shown: bool,
    /// A folder for the servers' logs.
    pub logs: Option<PathBuf>,
    /// Instead of the kinds of misfortune that the seed would have.
    pub kinds: Option<Kinds>,
    /// Measures turns.
    pub is_timed: bool,
}

/// What goes with a server that is gone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Loss {
    Process,
    /// What was not synced.
    Power,
    /// All its files.
    Disk,
}

/// One server, while it runs and while it does not.
pub struct Node {
    pub server: Option<DrivenServer>,
    pub clock: ManualClock,
    pub disk: ModelDisk,
    lines: Vec<String>,
    /// Starts so far.
    pub life: usize,
    /// Until then it is busy with its last turn, by the world's clock.
    busy_until_us: i64,
    /// How often somebody has set its wall clock.
    pub steps: u32,
    inspector: Option<Connection>,
}

pub struct World {
    pub options: Options,
    pub kinds: Kinds,
    pub random: fastrand::Rng,
    /// Since the beginning, microseconds; all clocks go on with it.
    pub now_us: i64,
    pub nodes: Vec<Node>,
    /// How many of them are in the network: all but the copy.
    servers: usize,
    pub wires: Wires,
    pub trace: Trace,
    /// A server that is busy takes no turn until the others' clocks have caught up.
    pub waits_for_busy: bool,
    /// Somebody sets wall clocks.
    pub has_steps: bool,
    /// `appendonly yes`.
    pub has_log: bool,
    /// What was answered is on disk: `appendfsync always`.
    pub keeps_all: bool,
    /// Primaries that have lost their data hold replicas off, and take no writes before they have
    /// come: `repl-protect-empty-primary`, `primary-restart-read-only`.
    pub protects: bool,
    /// What threads do is done in one turn of so many.
    slowness: u32,
    /// The longest turn: its processor time in microseconds, and the number of events before it.
    pub longest: (i64, u64),
    /// Databases of each server.
    pub databases: usize,
    /// Of each server and history: how much of it it has had.
    applied: BTreeMap<(usize, String), u64>,
    /// The last event of each server, for the trace.
    seen: Vec<(String, u64)>,
    pub turns: u64,
    /// The server in whose sleep others take turns.
    asleep: Option<usize>,
    /// How much time has passed in such sleeps, microseconds.
    pub slept_us: i64,
}

type Turned = Result<bool, Box<dyn Any + Send>>;

/// A part of a sleep, after which others take a turn. Unit: microseconds.
const NAP_US: i64 = 100 * MS;

impl World {
    pub fn new(options: Options) -> Self {
        random::repeat_from(options.seed);
        let mut random = fastrand::Rng::with_seed(options.seed);
        let mut common = common_lines(&mut random);
        let fsync = ["", "", "everysec", "always"][random.usize(..4)];
        let has_log = !fsync.is_empty();
        if has_log {
            common.push(format!("appendonly yes\nappendfsync {fsync}"));
        }
        let keeps_all = fsync == "always";
        let protects = random.bool();
        if protects {
            // Replicas ask each second. What is written before is in the log of a primary that ends
            // once more, and makes it a whole one: so the one is not enough without the other.
            let seconds = ["1", "3"][random.usize(..2)];
            common.push("repl-protect-empty-primary yes".into());
            common.push(format!("primary-restart-read-only {seconds}"));
        }
        let kinds = options.kinds.unwrap_or_else(|| Kinds::draw(options.seed));
        let tick_us = [0, 5, 50][random.usize(..3)];
        let places = (0..=NODES).map(|_| {
            let disk = random.u64(..);
            let mut lines = common.clone();
            let load = ["disabled", "disabled", "on-empty-db", "swapdb"][random.usize(..4)];
            lines.push(format!("repl-diskless-load {load}"));
            (disk, lines)
        });
        let places: Vec<_> = places.collect();
        let mut world = World::of((options, kinds), random, tick_us, places);
        (world.has_log, world.keeps_all, world.protects) = (has_log, keeps_all, protects);
        for node in 0..NODES {
            world.start(node, (node > 0).then_some(0));
        }
        world
    }

    /// Servers that do not run yet: the seed of each one's disk, and its configuration. The last of
    /// them is the copy.
    pub fn of(
        (options, kinds): (Options, Kinds),
        mut random: fastrand::Rng,
        tick_us: i64,
        places: Vec<(u64, Vec<String>)>,
    ) -> Self {
        let servers = places.len() - 1;
        let nodes = places.into_iter().map(|(disk, lines)| {
            let clock = ManualClock::new(START);
            clock.set_tick_us(tick_us);
            clock.call_for_sleep(pauses::sleep);
            Node {
                server: None,
                clock,
                disk: ModelDisk::new(disk),
                lines,
                life: 0,
                steps: 0,
                busy_until_us: 0,
                inspector: None,
            }
        });
        let mut wires = Wires::default();
        (0..servers).for_each(|node| wires.set_up(node, false));
        let has_steps = random.bool();
        let slowness = [1, 3, 8][random.usize(..3)];
        let trace = Trace::new(options.is_shown);
        World {
            options,
            kinds,
            random,
            now_us: 0,
            nodes: nodes.collect(),
            servers,
            wires,
            trace,
            waits_for_busy: true,
            has_steps,
            has_log: false,
            keeps_all: false,
            protects: false,
            slowness,
            longest: (0, 0),
            databases: 16,
            applied: BTreeMap::new(),
            seen: vec![(String::new(), 0); servers + 1],
            turns: 0,
            asleep: None,
            slept_us: 0,
        }
    }

    // ---- lives ----------------------------------------------------------------------------------

    pub fn is_up(&self, node: usize) -> bool {
        self.nodes[node].server.is_some()
    }

    /// Starts a server from its files.
    pub fn start(&mut self, node: usize, primary: Option<usize>) {
        self.trace.note(|| format!("start {node} {primary:?}"));
        let mut text = self.nodes[node].lines.join("\n");
        if let Some(primary) = primary {
            let host = network::address(primary).ip();
            text.push_str(&format!("\nreplicaof {host} {PORT}"));
        }
        let config = Config::from_text(text.as_bytes()).expect("the configuration is good");
        let logger = match &self.options.logs {
            Some(folder) => {
                let path = folder.join(format!("{}-{node}.log", self.options.seed));
                Logger::new(Some(Level::Verbose), path.to_string_lossy().as_bytes())
            }
            None => Logger::silent(),
        };
        let clock = Clock::Manual(self.nodes[node].clock.clone());
        let disk = Arc::new(self.nodes[node].disk.clone());
        let gateway = self.wires.gateway(node);
        let mut server =
            DrivenServer::start(config, clock, logger, gateway, disk).expect("the server starts");
        if let Err(why) = server.load() {
            self.fail(&format!("server {node} cannot load what it has saved: {why:?}"));
        }
        self.nodes[node].server = Some(server);
        self.nodes[node].life += 1;
        if node < self.servers {
            self.wires.set_up(node, true);
        }
    }

    /// Starts [`COPY`] from a copy of a server's files, as the death of its process would leave
    /// them, with these further lines.
    pub fn start_copy(&mut self, node: usize, lines: &[&str]) {
        let disk = self.nodes[node].disk.fork();
        let now = self.nodes[node].clock.clone();
        let (tick_us, now) = (0, Clock::Manual(now).now());
        let clock = ManualClock::new(START);
        clock.set_tick_us(tick_us);
        clock.call_for_sleep(pauses::sleep);
        clock.advance_us(now.boot_us - clock.boot_us());
        clock.step_wall_us(now.wall_us - Clock::Manual(clock.clone()).now().wall_us);
        let mut all = self.nodes[node].lines.clone();
        // It is a primary that was never anything else, and waits for nobody.
        all.extend(
            ["primary-restart-read-only 0", "repl-protect-empty-primary no"].map(Into::into),
        );
        all.extend(lines.iter().map(|line| (*line).to_owned()));
        let copy = &mut self.nodes[COPY];
        (copy.disk, copy.clock, copy.lines) = (disk, clock, all);
        self.start(COPY, None);
    }

    /// Ends [`COPY`].
    pub fn end_copy(&mut self) {
        self.nodes[COPY].server = None;
        self.nodes[COPY].inspector = None;
    }

    /// Adds a line to a server's configuration, from its next start on.
    pub fn configure(&mut self, node: usize, line: &str) {
        self.nodes[node].lines.push(line.into());
    }

    /// A server is gone from one moment to the next.
    pub fn crash(&mut self, node: usize, loss: Loss) {
        self.trace.note(|| format!("crash {node} {loss:?}"));
        self.bury(node);
        match loss {
            Loss::Process => self.nodes[node].disk.restart(Death::Kill),
            Loss::Power => self.nodes[node].disk.restart(Death::PowerLoss),
            Loss::Disk => self.nodes[node].disk = ModelDisk::new(self.random.u64(..)),
        }
    }

    /// Takes a server that has ended out of the network.
    fn bury(&mut self, node: usize) {
        self.nodes[node].server = None;
        self.nodes[node].inspector = None;
        self.wires.set_up(node, false);
        self.wires.forget(node, &mut self.random);
    }

    // ---- time -----------------------------------------------------------------------------------

    /// Time passes for all; each server that runs takes a turn or more, in any order.
    pub fn step(&mut self, us: i64) {
        self.move_clocks(us);
        self.take_turns(self.slowness);
    }

    /// Moves the world's clock, and those of servers that are not ahead of it.
    fn move_clocks(&mut self, us: i64) {
        self.now_us += us;
        let target_us = 3_600 * SECOND + self.now_us;
        for node in &self.nodes {
            node.clock.advance_us((target_us - node.clock.boot_us()).max(0));
        }
    }

    fn take_turns(&mut self, slowness: u32) {
        let mut order: Vec<usize> = (0..self.servers).collect();
        self.random.shuffle(&mut order);
        for node in order {
            if self.is_busy(node) {
                continue;
            }
            for _ in 0..self.random.usize(1..3) {
                self.turn(node);
            }
            if self.random.u32(..slowness) == 0
                && let Some(server) = &mut self.nodes[node].server
            {
                server.do_background();
            }
        }
        self.pump();
    }

    /// Time passes for all while one server, whose clock this is, sleeps in its turn.
    pub fn pass(&mut self, clock: &ManualClock, us: i64) {
        let mut left_us = us;
        while left_us > 0 {
            let nap_us = left_us.min(NAP_US - self.slept_us % NAP_US);
            left_us -= nap_us;
            self.slept_us += nap_us;
            let before_us = clock.boot_us();
            self.move_clocks(nap_us);
            // It may have been ahead.
            clock.advance_us((before_us + nap_us - clock.boot_us()).max(0));
            if self.slept_us % NAP_US == 0 {
                // Enough time for what threads have to do.
                self.take_turns(1);
            }
        }
    }

    /// Somebody sets a server's wall clock.
    pub fn step_clock(&mut self, node: usize, us: i64) {
        self.trace.note(|| format!("step {node} {us}"));
        self.nodes[node].clock.step_wall_us(us);
        self.nodes[node].steps += 1;
    }

    /// Whether a server's last turn has not ended yet: it took long, as loading and a slow disk do.
    fn is_busy(&self, node: usize) -> bool {
        self.waits_for_busy && self.nodes[node].busy_until_us > self.now_us
    }

    fn pump(&mut self) {
        let World { wires, nodes, trace, now_us, asleep, .. } = self;
        wires.pump(*now_us, *asleep, trace, |node, port, stream, peer| {
            let Some(server) = &mut nodes[node].server else { return };
            let mut local = network::address(node);
            local.set_port(port);
            match port {
                BUS_PORT => server.take_in_bus(stream, peer, Address::Tcp(local)),
                _ => server.take_in(stream, peer, Address::Tcp(local)),
            }
        });
    }

    /// One server takes a turn.
    pub fn turn(&mut self, node: usize) {
        let Some(mut server) = self.nodes[node].server.take() else { return };
        self.turns += 1;
        let used_before = server.used_memory();
        let (evicted, limit_before) = server.evictions();
        let stood_still = server.stands_still();
        let begun_us = if self.options.is_timed { processor_us() } else { 0 };
        let (turned, took_us) = self.run(node, &mut server);
        if took_us > LONG_US {
            let busy_until_us = &mut self.nodes[node].busy_until_us;
            *busy_until_us = self.now_us.max(*busy_until_us) + took_us;
        }
        if self.options.is_timed {
            self.longest = self.longest.max((processor_us() - begun_us, self.trace.events));
        }
        let goes_on = match turned {
            Ok(goes_on) => goes_on,
            Err(why) => match why.downcast::<Ended>() {
                Ok(ended) => {
                    self.trace.note(|| format!("die {node} {ended:?}"));
                    drop(server);
                    self.crash(node, Loss::Process);
                    return;
                }
                Err(why) => resume_unwind(why),
            },
        };
        let (evicted_now, limit) = server.evictions();
        let used = used_before.max(server.used_memory()) as u64;
        if evicted_now > evicted && limit == limit_before && used + ROOM_BYTES < limit {
            let count = evicted_now - evicted;
            self.fail(&format!(
                "server {node} evicts {count} keys, and uses {used} of {limit} bytes"
            ));
        }
        // The same pause lasts on. Whatever time starts waits for its end, as requests do.
        if let (Some((until_us, before)), Some((still_us, changes))) =
            (stood_still, server.stands_still())
            && until_us == still_us
            && before != changes
            && before >> 32 == changes >> 32
        {
            self.fail(&format!("server {node} changes data during a pause"));
        }
        let (id, offset) = server.history();
        let (last_id, last_offset) = &mut self.seen[node];
        if id != last_id || offset != *last_offset {
            // What it has had of the former one in the turn in which it was promoted.
            if let Some((former, end)) = server.ancestor().filter(|_| id != last_id) {
                let most = self.applied.entry((node, former.to_owned())).or_default();
                *most = end.max(*most);
            }
            (*last_id, *last_offset) = (id.to_owned(), offset);
            let most = self.applied.entry((node, id.to_owned())).or_default();
            *most = offset.max(*most);
            self.trace.note(|| format!("turn {node} {id} {offset}"));
        }
        self.nodes[node].server = Some(server);
        if !goes_on {
            self.trace.note(|| format!("end {node}"));
            self.bury(node);
        }
    }

    /// A turn of a server: whether the server goes on, or why it does not, and how long that took
    /// that the others have not seen pass, microseconds. With stalls they take turns while it
    /// sleeps.
    fn run(&mut self, node: usize, server: &mut DrivenServer) -> (Turned, i64) {
        let clock = self.nodes[node].clock.clone();
        let is_shared =
            self.kinds.contains(Kinds::STALLS) && node < self.servers && self.asleep.is_none();
        let (begun_at_us, slept_us) = (clock.boot_us(), self.slept_us);
        let turn = AssertUnwindSafe(|| server.turn_now().expect("a turn ends in order"));
        let turned = if is_shared {
            self.asleep = Some(node);
            let turned = pauses::share(self, || catch_unwind(turn));
            self.asleep = None;
            turned
        } else {
            catch_unwind(turn)
        };
        let shared_us = self.slept_us - slept_us;
        (turned, clock.boot_us() - begun_at_us - shared_us)
    }

    /// Does what threads of a server would do.
    pub fn background(&mut self, node: usize) {
        if let Some(server) = &mut self.nodes[node].server {
            server.do_background();
        }
    }

    /// History and offset of a server that runs.
    pub fn history(&self, node: usize) -> (String, u64) {
        let (id, offset) = self.nodes[node].server.as_ref().expect("it runs").history();
        (id.to_owned(), offset)
    }

    /// How many others have had a history, under any of its names, up to an offset.
    pub fn others_with(&self, node: usize, ids: [&str; 2], offset: u64) -> usize {
        let has_applied = |other: usize, id: &str| {
            let applied = self.applied.get(&(other, id.to_owned()));
            applied.is_some_and(|&applied| applied >= offset)
        };
        let has = |&other: &usize| other != node && ids.iter().any(|id| has_applied(other, id));
        (0..self.servers).filter(has).count()
    }

    // ---- clients --------------------------------------------------------------------------------

    /// A client of a server that runs.
    pub fn connect(&mut self, node: usize) -> Option<Connection> {
        let Node { server, life, .. } = &mut self.nodes[node];
        let server = server.as_mut()?;
        let (ours, theirs) = network::pair().expect("a pair of sockets");
        let local = Address::Tcp(network::address(node));
        let peer = Address::Tcp(([10, 0, 1, 1], 40_000).into());
        server.take_in(theirs.into(), peer, local);
        Some(Connection::new(node, *life, ours))
    }

    /// What a server answers, which takes turns as long as that takes. None: it has ended.
    pub fn ask<A: AsRef<[u8]> + std::fmt::Debug>(
        &mut self,
        node: usize,
        words: &[A],
    ) -> Option<Reply> {
        // Its connection may have been closed: for being idle, or by a client that kills others.
        (0..3).find_map(|_| self.ask_once(node, words))
    }

    fn ask_once<A: AsRef<[u8]> + std::fmt::Debug>(
        &mut self,
        node: usize,
        words: &[A],
    ) -> Option<Reply> {
        let mut inspector = match self.nodes[node].inspector.take() {
            Some(inspector) if !inspector.has_ended => inspector,
            _ => {
                // `maxmemory-clients` may be less than what it reads.
                let mut inspector = self.connect(node)?;
                inspector.send(&["CLIENT", "NO-EVICT", "ON"]);
                inspector
            }
        };
        inspector.send(words);
        for turn in 0..1000 {
            if turn >= 20 {
                // CLIENT PAUSE holds this back too.
                self.step(10 * MS);
            }
            // Also if it is busy, so that it can be asked at any time.
            self.turn(node);
            if node == self.servers || turn >= 20 && self.is_busy(node) {
                // Nobody else looks after it.
                self.background(node);
            }
            let reply = inspector.take().pop().filter(|_| inspector.awaited == 0);
            if inspector.has_ended || !self.is_up(node) {
                return reply;
            }
            if reply.is_some() {
                self.nodes[node].inspector = Some(inspector);
                return reply;
            }
        }
        self.fail(&format!("server {node} does not answer {words:?}"));
    }

    /// The same, as redis-cli shows it.
    pub fn show<A: AsRef<[u8]> + std::fmt::Debug>(&mut self, node: usize, words: &[A]) -> String {
        self.ask(node, words).map_or_else(|| "(ended)".into(), |reply| reply.show())
    }

    /// Sends what nobody waits for.
    pub fn tell(&mut self, node: usize, words: &[&str]) {
        if let Some(mut connection) = self.connect(node) {
            self.trace.note(|| format!("tell {node} {words:?}"));
            connection.send(words);
            self.turn(node);
        }
    }

    /// The fields of INFO's section on replication.
    pub fn info(&mut self, node: usize) -> BTreeMap<String, String> {
        self.section(node, "replication")
    }

    pub fn section(&mut self, node: usize, name: &str) -> BTreeMap<String, String> {
        let Some(Reply::Bulk(text)) = self.ask(node, &["INFO", name]) else {
            return BTreeMap::new();
        };
        let text = String::from_utf8_lossy(&text).into_owned();
        let fields = text.lines().filter_map(|line| line.split_once(':'));
        fields.map(|(name, value)| (name.to_owned(), value.trim_end().to_owned())).collect()
    }

    /// Shows how long the longest turn took, if turns are measured.
    pub fn tell_longest(&self) {
        if self.options.is_timed {
            let ((us, event), seed) = (self.longest, self.options.seed);
            println!("seed {seed}: the longest turn took {us} us, after event {event}");
        }
    }

    pub fn fail(&self, why: &str) -> ! {
        let (seed, at) = (self.options.seed, self.now_us as f64 / SECOND as f64);
        panic!("seed {seed}, second {at:.3}, event {}: {why}", self.trace.events)
    }
}

/// The processor time of this thread, microseconds.
fn processor_us() -> i64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec * SECOND + time.tv_nsec / 1000
}

/// What the configurations of a run's servers have in common.
fn common_lines(random: &mut fastrand::Rng) -> Vec<String> {
    let mut pick =
        |name: &str, values: &[&str]| format!("{name} {}", values[random.usize(..values.len())]);
    let lines = vec![
        "bind 127.0.0.1".into(),
        "port 0".into(),
        format!("replica-announce-port {PORT}"),
        "protected-mode no".into(),
        "enable-debug-command yes".into(),
        "enable-protected-configs yes".into(),
        "save \"\"".into(),
        // On the model's disk.
        "dir /".into(),
        "shutdown-timeout 2".into(),
        format!("wait-all-replicas {}", NODES - 1),
        pick("primary-restart-read-only", &["0", "0", "1", "3"]),
        pick("repl-diskless-sync", &["yes", "yes", "no"]),
        pick("repl-diskless-sync-delay", &["0", "0", "1"]),
        pick("repl-backlog-size", &["16kb", "64kb", "1mb", "1mb"]),
        pick("repl-timeout", &["5", "20", "60"]),
        pick("repl-ping-replica-period", &["1", "3"]),
        pick("repl-backlog-ttl", &["5", "3600"]),
        pick("lazyfree-lazy-expire", &["yes", "no"]),
        pick("replica-lazy-flush", &["yes", "no"]),
        pick("replica-serve-stale-data", &["yes", "yes", "no"]),
        pick("rdbcompression", &["yes", "no"]),
        pick("hz", &["10", "50"]),
    ];
    lines
}
