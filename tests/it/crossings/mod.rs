//! Where features meet: after random requests from the whole grammar, all that keeps a copy of the
//! data has the same.
//!
//! ```text
//!   requests -> primary -> a replica, with other limits
//!               |     \--> its append-only file, before and after a rewrite -> a server with other limits
//!               |      \-> its snapshot -> a server with other limits
//!               |       \> DUMP and RESTORE of each key -> a server with other limits
//!               \- another server, to which each request comes in a turn of its own
//! ```
//!
//! Requests are derived from the trees of `COMMAND DOCS` (`support/derived.rs`), so that a new
//! option is here once it is documented, as it must be: a test reads the options from the sources.
//! All servers run in this thread, with disks in memory and a clock that the session moves; all
//! chance follows from a seed. What fails is reduced to a short session.
//!
//! `make crossings` runs many seeds, `make crossings ARGS="--seed 7"` one.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use author::{Author, Manner, Step, WAITING, words};
use latchkey::sys::disk::Disk;
use latchkey::sys::disk::model::ModelDisk;
use latchkey::sys::random;
use told::{difference, told};
use world::{MS, World};

use crate::simulation::connection::Connection;
use crate::support::derived::{DATABASES, Grammar};
use crate::support::{Reply, encode, shrink};

mod author;
mod coverage;
mod extremes;
mod told;
pub mod world;

/// Seeds of each `cargo test`, and steps of each.
const SEEDS: u64 = 4;
const STEPS: usize = 400;
/// Attempts to make a session shorter.
const SHRINK_TRIES: usize = 250;

const REWRITTEN: &str = "the append-only file after a rewrite";

/// Limits of which a primary, a replica and a server that loads have any: nothing that is kept may
/// depend on them.
const LIMITS: &[(&str, &[&str])] = &[
    ("hash-max-listpack-entries", &["0", "3", "512"]),
    ("hash-max-listpack-value", &["3", "64", "100000"]),
    ("list-max-listpack-size", &["1", "3", "-1", "-2", "-5"]),
    ("list-compress-depth", &["0", "1"]),
    ("set-max-intset-entries", &["0", "3", "512"]),
    ("set-max-listpack-entries", &["0", "3", "128"]),
    ("zset-max-listpack-entries", &["0", "3", "128"]),
    ("zset-max-listpack-value", &["3", "64"]),
    ("stream-node-max-entries", &["0", "1", "7", "100"]),
    ("stream-node-max-bytes", &["50", "4096"]),
    ("proto-max-bulk-len", &["1mb", "2mb", "512mb"]),
    ("lazyfree-lazy-expire", &["yes", "no"]),
    ("rdbcompression", &["yes", "no"]),
    ("aof-use-rdb-preamble", &["yes", "no"]),
    ("repl-diskless-load", &["disabled", "swapdb"]),
    ("repl-diskless-sync", &["yes", "no"]),
];

/// What a run is made with, which follows from its seed.
struct Plan {
    seed: u64,
    manner: Manner,
    primary: Vec<String>,
    /// Of the replica, and of servers that load.
    others: [Vec<String>; 2],
    /// Milliseconds that pass before anything is compared.
    later_ms: i64,
    expires: bool,
}

fn limits(random: &mut fastrand::Rng) -> Vec<String> {
    let chosen = LIMITS.iter().filter_map(|(name, values)| {
        let value = values[random.usize(..values.len())];
        random.bool().then(|| format!("{name} {value}"))
    });
    chosen.collect()
}

impl Plan {
    fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let (is_determined, has_large) = (random.u32(..3) == 0, random.u32(..4) == 0);
        Plan::with(seed, Manner { is_determined, has_large })
    }

    fn with(seed: u64, manner: Manner) -> Self {
        let mut random = fastrand::Rng::with_seed(seed + 1);
        let mut primary = limits(&mut random);
        let fsync = ["always", "everysec", "no"][random.usize(..3)];
        primary.push(format!("appendonly yes\nappendfsync {fsync}"));
        if manner.has_large {
            primary.push("proto-max-bulk-len 512mb".into());
        }
        let others = [limits(&mut random), limits(&mut random)];
        Plan {
            seed,
            manner,
            primary,
            others,
            later_ms: [0, 0, 1, 700, 4000][random.usize(..5)],
            expires: random.bool(),
        }
    }
}

/// A server's main client, and those that wait.
struct Side {
    node: usize,
    main: Connection,
    waiting: Vec<Option<(Connection, i64)>>,
    /// Each request has a turn of its own.
    is_single: bool,
}

impl Side {
    fn new(world: &mut World, node: usize, is_single: bool) -> Self {
        let main = world.connect(node);
        Side { node, main, waiting: (0..WAITING).map(|_| None).collect(), is_single }
    }

    fn send<A: AsRef<[u8]>>(&mut self, world: &mut World, args: &[A]) {
        if self.main.has_ended {
            self.main = world.connect(self.node);
        }
        self.main.send(args);
        if self.is_single {
            world.answers(&mut self.main);
        }
    }

    /// All that was sent is answered.
    fn settle(&mut self, world: &mut World) {
        world.answers(&mut self.main);
        world.turn(self.node);
    }

    fn step(&mut self, world: &mut World, step: &Step) {
        match step {
            Step::Send(args) => self.send(world, args),
            Step::Alone(args) => {
                self.settle(world);
                let mut one = world.connect(self.node);
                one.send(args);
                world.turn(self.node);
                world.turn(self.node);
            }
            Step::Transaction(watched, commands, is_discarded) => {
                if let Some(args) = watched {
                    self.send(world, args);
                }
                self.send(world, &["MULTI"]);
                commands.iter().for_each(|args| self.send(world, args));
                self.send(world, &[if *is_discarded { "DISCARD" } else { "EXEC" }]);
            }
            Step::Wait(number, args) => {
                self.settle(world);
                self.waiting[*number] = None;
                world.turn(self.node);
                let mut one = world.connect(self.node);
                one.send(&["CLIENT", "ID"]);
                let replies = world.answers(&mut one);
                let [Reply::Integer(id)] = replies[..] else { panic!("no number: {replies:?}") };
                one.send(args);
                world.turn(self.node);
                world.turn(self.node);
                self.waiting[*number] = Some((one, id));
            }
            Step::Kill(number, kills) => {
                let Some((_, id)) = &self.waiting[*number] else { return };
                let how = if *kills { "KILL ID" } else { "UNBLOCK" };
                self.send(world, &words(&format!("CLIENT {how} {id}")));
            }
            Step::Turn => world.turn(self.node),
            Step::PassMs(_) | Step::Follow | Step::Compare => self.settle(world),
        }
    }
}

/// The servers of a run.
struct Run<'a> {
    plan: &'a Plan,
    world: World,
    primary: Side,
    single: Option<Side>,
    replica: usize,
    restorer: usize,
    /// Comparisons made, and lines compared.
    compared: usize,
}

impl<'a> Run<'a> {
    fn new(plan: &'a Plan) -> Result<Self, String> {
        random::repeat_from(plan.seed);
        let mut world = World::new();
        let mut start = |lines: &[String], number: u64| world.start(lines, ModelDisk::new(number));
        let primary = start(&plan.primary, 1)?;
        let replica = start(&plan.others[0], 2)?;
        let restorer = start(&plan.others[1], 3)?;
        let single = if plan.manner.is_determined { Some(start(&plan.primary, 4)?) } else { None };
        world.follow(replica, primary);
        if !plan.expires {
            for node in [Some(primary), single].into_iter().flatten() {
                world.say(node, "DEBUG SET-ACTIVE-EXPIRE 0");
            }
        }
        let primary = Side::new(&mut world, primary, false);
        let single = single.map(|node| Side::new(&mut world, node, true));
        Ok(Run { plan, world, primary, single, replica, restorer, compared: 0 })
    }

    fn run(&mut self, steps: &[Step]) -> Result<(), String> {
        for step in steps {
            self.primary.step(&mut self.world, step);
            if let Some(single) = &mut self.single {
                single.step(&mut self.world, step);
            }
            match step {
                Step::PassMs(ms) => {
                    self.world.clock.advance_us(ms * MS);
                    self.world.turn(self.primary.node);
                    if let Some(single) = &self.single {
                        self.world.turn(single.node);
                    }
                }
                Step::Follow => self.world.turn(self.replica),
                Step::Compare => self.compare()?,
                _ => {}
            }
        }
        if matches!(steps.last(), Some(Step::Compare)) { Ok(()) } else { self.compare() }
    }

    /// Whether all have what the primary has.
    fn compare(&mut self) -> Result<(), String> {
        let node = self.primary.node;
        for side in [Some(&mut self.primary), self.single.as_mut()].into_iter().flatten() {
            side.settle(&mut self.world);
            side.waiting.iter_mut().for_each(|one| *one = None);
            side.main = self.world.connect(side.node);
            for line in ["CONFIG SET maxmemory 0", "DEBUG SET-ACTIVE-EXPIRE 1"] {
                self.world.say(side.node, line);
            }
        }
        self.world.clock.advance_us(self.plan.later_ms * MS);
        self.world.catch_up(self.replica, node);
        let world = &mut self.world;
        for _ in 0..3 {
            [Some(node), Some(self.replica), self.single.as_ref().map(|it| it.node)]
                .into_iter()
                .flatten()
                .for_each(|node| world.turn(node));
        }
        world.catch_up(self.replica, node);
        self.compared += agree(world, node, self.replica, "the replica")?;
        if let Some(single) = &self.single {
            agree(world, node, single.node, "each request in a turn of its own")?;
        }
        let errors =
            |world: &mut World, node| world.info(node, "stats")["unexpected_error_replies"] != "0";
        if errors(world, self.replica) {
            return Err("the replica could not apply a request".into());
        }

        world.say(node, "CONFIG SET appendonly yes");
        world.end_saving(node);
        let lines = [&self.plan.others[1][..], &["appendonly yes".into()]].concat();
        let load = |world: &mut World, name: &str, disk: ModelDisk, lines: &[String]| {
            let loaded = world.start(lines, disk).map_err(|error| format!("{name}: {error}"))?;
            let has_errors = errors(world, loaded);
            agree(world, node, loaded, name)?;
            world.end(loaded);
            if has_errors { Err(format!("{name}: a request failed")) } else { Ok(()) }
        };
        let disk = world.copy_disk(node);
        load(world, "the append-only file", disk, &lines)?;
        let disk = world.copy_disk(node);
        add_failing_request(&disk);
        let loaded = world.start(&lines, disk)?;
        if !errors(world, loaded) {
            return Err("a request of the append-only file failed, and nobody was told".into());
        }
        world.end(loaded);
        let reply = world.say(node, "BGREWRITEAOF");
        assert!(!reply.starts_with("(error)"), "{reply}");
        world.end_saving(node);
        let disk = world.copy_disk(node);
        load(world, REWRITTEN, disk, &lines)?;
        let reply = world.say(node, "SAVE");
        assert_eq!(reply, "OK");
        let disk = world.copy_disk(node);
        load(world, "the snapshot", disk, &self.plan.others[1])?;
        restore(world, node, self.restorer)?;
        agree(world, node, self.restorer, "DUMP and RESTORE")?;
        if !self.plan.expires {
            world.say(node, "DEBUG SET-ACTIVE-EXPIRE 0");
        }
        Ok(())
    }
}

/// Adds a request to the newest increment of an append-only file that fails when it is loaded.
fn add_failing_request(disk: &ModelDisk) {
    let folder = Path::new("/appendonlydir");
    let names = disk.list(folder).expect("the log's folder");
    let number =
        |name: &str| name.split('.').rev().nth(2).and_then(|text| text.parse::<u64>().ok());
    let names = names.iter().filter_map(|name| name.to_str());
    let newest = names.filter(|name| name.ends_with(".incr.aof")).max_by_key(|name| number(name));
    let path = folder.join(newest.expect("an increment"));
    let mut bytes = disk.bytes(&path).expect("a file");
    bytes.extend(encode(&["SET", "text", "v"]));
    bytes.extend(encode(&["LPUSH", "text", "v"]));
    disk.put(&path, &bytes);
}

/// Compares two servers at one time. Returns the lines compared; an error tells the first that
/// differs.
fn agree(world: &mut World, ours: usize, theirs: usize, name: &str) -> Result<usize, String> {
    // A rewrite as requests loses what is pending of deleted entries, as Redis's does.
    let as_requests = "CONFIG GET aof-use-rdb-preamble";
    let has_pending = name != REWRITTEN || world.say(ours, as_requests).contains("yes");
    // What is due by now is gone.
    for node in [ours, theirs, ours, theirs] {
        world.turn(node);
    }
    let there = told(world, theirs, has_pending);
    let here = told(world, ours, has_pending);
    difference(name, &here, &there).map_or(Ok(here.len()), Err)
}

/// Restores all keys and functions of a server on another one.
fn restore(world: &mut World, from: usize, to: usize) -> Result<(), String> {
    world.say(to, "FLUSHALL");
    // Its clients may restore what others may write.
    world.say(to, "CONFIG SET proto-max-bulk-len 512mb");
    let Reply::Bulk(libraries) = world.ask(from, &["FUNCTION", "DUMP"]) else { panic!("no text") };
    let request = [&b"FUNCTION"[..], b"RESTORE", &libraries, b"FLUSH"];
    let reply = world.ask(to, &request).show();
    if reply != "OK" {
        return Err(format!("FUNCTION RESTORE: {reply}"));
    }
    for database in 0..DATABASES {
        let keys = told::keys(world, from, database);
        world.say(to, &format!("SELECT {database}"));
        let requests: Vec<Vec<&[u8]>> = keys
            .iter()
            .flat_map(|key| [vec![&b"DUMP"[..], key], vec![&b"PEXPIRETIME"[..], key]])
            .collect();
        let replies = world.ask_all(from, &requests);
        for (key, replies) in keys.iter().zip(replies.chunks(2)) {
            let [Reply::Bulk(payload), Reply::Integer(deadline)] = replies else {
                return Err(format!("DUMP: {replies:?}"));
            };
            let deadline = deadline.max(&0).to_string();
            let request = [&b"RESTORE"[..], key, deadline.as_bytes(), payload, b"ABSTTL"];
            let reply = world.ask(to, &request).show();
            if reply != "OK" {
                return Err(format!("RESTORE {}: {reply}", String::from_utf8_lossy(key)));
            }
        }
    }
    world.say(from, "SELECT 0");
    Ok(())
}

/// Runs a session. Errors: what does not agree, or how a server panicked.
fn run(plan: &Plan, steps: &[Step]) -> Result<usize, String> {
    let result = catch_unwind(AssertUnwindSafe(|| {
        let mut run = Run::new(plan)?;
        run.run(steps)?;
        Ok(run.compared)
    }));
    result.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(format!("panic: {}", text.unwrap_or_default()))
    })
}

thread_local! {
    /// Panics are told by what returns them.
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Lets a thread be quiet about its panics.
fn hear_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let tell = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !IS_QUIET.get() {
                tell(panic);
            }
        }));
    });
}

/// Not to take one failure for another one.
fn kind_of(error: &str) -> &str {
    let first = error.lines().next().unwrap_or_default();
    first.split([':', '(']).next().unwrap_or_default()
}

/// A server's grammar, and what DUMP returns of some keys.
struct Sources {
    grammar: Grammar,
    payloads: Vec<Vec<u8>>,
    libraries: Vec<Vec<u8>>,
}

impl Sources {
    fn read() -> Self {
        let mut world = World::new();
        let node = world.start(&[], ModelDisk::new(0)).expect("an empty disk");
        let docs = world.ask(node, &["COMMAND", "DOCS"]);
        let table = world.ask(node, &["COMMAND"]);
        let grammar = Grammar::new(&docs, &table);
        for line in [
            "SET t 5",
            "SETRANGE t1 70000 end",
            "RPUSH l a 1 -70000 9223372036854775807",
            "SADD s a b",
            "SADD u 1 2 70000",
            "HSET h f v g 1",
            "HSETEX h1 EX 100 FIELDS 2 f v g 1",
            "HSETEX h2 PXAT 281474976710000 FIELDS 1 f v",
            "ZADD z 1 a 2.5 b -inf c inf d",
            "GEOADD g 1 40 a 2 41 b",
            "PFADD p a b c",
            "XADD x 1-1 f v g w",
            "XADD x 2-1 f v",
            "XGROUP CREATE x grp0 0",
            "XREADGROUP GROUP grp0 con0 COUNT 1 STREAMS x >",
        ] {
            world.say(node, line);
        }
        let mut bulk = |args: &[&[u8]]| match world.ask(node, args) {
            Reply::Bulk(bytes) => bytes,
            other => panic!("no text: {}", other.show()),
        };
        let keys = [&b"t"[..], b"t1", b"l", b"s", b"u", b"h", b"h1", b"h2", b"z", b"g", b"p", b"x"];
        let payloads = keys.iter().map(|key| bulk(&[b"DUMP", key])).collect();
        let mut libraries = vec![bulk(&[b"FUNCTION", b"DUMP"])];
        bulk(&[
            b"FUNCTION",
            b"LOAD",
            b"#!lua name=lib5\nredis.register_function('f5', function() return 1 end)",
        ]);
        libraries.push(bulk(&[b"FUNCTION", b"DUMP"]));
        Sources { grammar, payloads, libraries }
    }

    fn author(&self, seed: u64, manner: Manner) -> Author<'_> {
        let mut author = Author::new(seed, &self.grammar, manner);
        (author.maker.payloads, author.maker.libraries) =
            (self.payloads.clone(), self.libraries.clone());
        author
    }
}

/// A seed's run. What fails is shown short. False: something failed.
fn try_seed(sources: &Sources, seed: u64, length: usize) -> bool {
    hear_panics();
    let plan = Plan::new(seed);
    let steps = sources.author(seed, plan.manner).session(length);
    let error = match run(&plan, &steps) {
        Ok(compared) => {
            println!("seed {seed}: {} steps, {compared} keys compared", steps.len());
            return true;
        }
        Err(error) => error,
    };
    IS_QUIET.set(true);
    let kind = kind_of(&error);
    let short = shrink(steps, 0, SHRINK_TRIES, |steps| {
        run(&plan, steps).is_err_and(|error| kind_of(&error) == kind)
    });
    let error = run(&plan, &short).err().unwrap_or_else(|| format!("{error}\n(but not each time)"));
    IS_QUIET.set(false);
    let lines: Vec<String> = short.iter().map(Step::show).collect();
    println!(
        "seed {seed} FAILED (make crossings ARGS=\"--seed {seed}\" repeats it), {} ms later, active expiry: {}\n\
         primary: {}\nreplica: {}\nloading: {}\n  {}\n{error}",
        plan.later_ms,
        plan.expires,
        plan.primary.join(", "),
        plan.others[0].join(", "),
        plan.others[1].join(", "),
        lines.join("\n  "),
    );
    false
}

#[test]
fn all_that_keeps_the_data_agrees_after_any_requests() {
    let sources = Sources::read();
    let failed = (1..=SEEDS).filter(|&seed| !try_seed(&sources, seed, STEPS)).count();
    assert_eq!(failed, 0, "seeds that have failed, see above");
}

/// `CROSSINGS` has the options: `--seed N` (one run), `--seeds N`, `--from N`, `--steps N`.
#[test]
#[ignore = "takes minutes: make crossings"]
fn many_seeds() {
    let text = std::env::var("CROSSINGS").unwrap_or_default();
    let words: Vec<&str> = text.split_whitespace().collect();
    let number = |name: &str| {
        let value = words.iter().position(|word| *word == name).map(|at| words[at + 1]);
        value.map(|text| text.parse::<u64>().expect("a number"))
    };
    let steps = number("--steps").map_or(STEPS, |steps| steps as usize);
    if let Some(seed) = number("--seed") {
        assert!(try_seed(&Sources::read(), seed, steps));
        return;
    }
    let (from, count) = (number("--from").unwrap_or(1), number("--seeds").unwrap_or(200));
    let (next, failed) = (AtomicU64::new(from), AtomicU64::new(0));
    let workers = number("--workers").unwrap_or(2);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                let sources = Sources::read();
                loop {
                    let seed = next.fetch_add(1, Ordering::SeqCst);
                    if seed >= from + count {
                        return;
                    }
                    if !try_seed(&sources, seed, steps) {
                        failed.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
        }
    });
    assert_eq!(failed.into_inner(), 0, "seeds that have failed");
}
