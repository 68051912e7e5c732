//! Three servers, their clients and an operator in one thread, under a schedule of misfortune that
//! follows from a seed.
//!
//! ```text
//!   clients -> servers, turn by turn in any order <-> network: delays, partitions, cuts at any byte
//!   operator: ends and starts servers, promotes, sets clocks          all clocks: moved by the simulation
//! ```
//!
//! What must hold: at quiet moments all servers have the same data at the same offset of the same
//! history; WAIT never counts a replica that has not applied what it was about; what all replicas
//! have acknowledged survives any promotion, and primaries that come back empty; half a transaction
//! is never seen, nor a key that has expired.
//!
//! Nothing here knows of real time, of threads, or of chance that does not follow from the seed: a
//! failure is repeated by its seed. `make simulate` runs many, `make simulate ARGS="--seed 7"` one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use clients::Clients;
use faults::Faults;
use kinds::Kinds;
use lockers::Lockers;
use operator::Operator;
use world::{MS, Options, World};

use crate::support::Reply;

mod alone;
mod clients;
mod cluster;
pub mod connection;
mod faults;
mod full_disk;
mod kills;
mod kinds;
mod large;
mod ledger;
mod lock_rules;
mod lockers;
mod memory;
mod network;
mod operator;
mod oracle;
mod parameters;
mod pauses;
mod standstill;
mod trace;
mod world;

/// Seeds of each `cargo test`, and rounds of each.
const SEEDS: u64 = 3;
const ROUNDS: usize = 3;

/// What came of a run.
#[derive(Debug, PartialEq)]
struct Outcome {
    hash: u64,
    summary: String,
}

/// A whole run. Panics where something does not hold.
fn run(options: Options) -> Outcome {
    let rounds = options.rounds;
    let mut world = World::new(options);
    let mut clients = Clients::new(world.options.seed, world.kinds);
    let mut operator = Operator::default();
    let mut faults = Faults::default();
    let mut lockers = Lockers::new(clients::CHECKED, world.kinds.contains(Kinds::MEMORY));
    let mut primary = operator.primary;
    for _ in 0..rounds {
        for _ in 0..world.random.usize(20..60) {
            for _ in 0..world.random.usize(1..40) {
                let us = world.random.i64(1..30) * MS + world.random.i64(0..1000);
                world.step(us);
                clients.act(&mut world, operator.primary, false);
                lock(&mut world, &mut lockers, operator.primary, false);
                operator.act(&mut world);
                faults.act(&mut world, &mut operator, &mut clients);
                if std::mem::take(&mut operator.is_back) {
                    clients.check_answered(&mut world, operator.primary);
                }
                if operator.primary != primary {
                    primary = operator.primary;
                    clients.forget_answered();
                    clients.check_registers(&mut world, operator.primary);
                }
            }
            operator.harm(&mut world);
        }
        faults.end(&mut world);
        operator.make_quiet(&mut world, |world, primary| {
            world.step(20 * MS);
            clients.act(world, primary, true);
            lock(world, &mut lockers, primary, true);
            clients.are_at_rest() && lockers.are_at_rest()
        });
        operator.compare(&mut world);
        lockers.compare_lists(&mut world, operator.primary);
        // Comparing servers whose clocks were set takes all deadlines away.
        lockers.clear(&mut world, operator.primary);
        clients.check_registers(&mut world, operator.primary);
        faults.compare(&mut world, operator.primary);
    }
    let Clients { waits_for_all, waits_later, reads, writes, .. } = clients;
    world.tell_longest();
    let (turns, seconds, events) = (world.turns, world.now_us / 1_000_000, world.trace.events);
    let counts = &operator.counts;
    let hash = world.trace.hash();
    let summary = format!(
        "kinds {}, {seconds} s in {turns} turns, {events} events, {writes} writes, {reads} reads, {waits_for_all} acknowledged by all, {waits_later} later, {} grants, {} to who waited, {counts:?}, \
         trace {hash:016x}",
        world.kinds, lockers.grants, lockers.handed_over
    );
    Outcome { hash, summary }
}

/// Has those who take locks go on, if the run has them.
fn lock(world: &mut World, lockers: &mut Lockers, primary: usize, rests: bool) {
    if world.kinds.contains(Kinds::LOCKS) && world.is_up(primary) {
        let (history, _) = world.history(primary);
        lockers.act(world, primary, &history, [false; 2], rests);
    }
}

/// What each `cargo test` runs: without the kind that takes long.
fn options(seed: u64) -> Options {
    let kinds = Some(Kinds::draw(seed).without(Kinds::LARGE));
    Options { seed, rounds: ROUNDS, is_shown: false, logs: None, kinds, is_timed: false }
}

#[test]
fn what_is_promised_holds_under_misfortune() {
    for seed in 1..=SEEDS {
        println!("seed {seed}: {}", run(options(seed)).summary);
    }
}

#[test]
fn a_server_starts_again_whatever_its_files_were_going_through() {
    for seed in 1..=SEEDS {
        println!("{}", alone::run(options(seed)));
    }
}

#[test]
fn a_cluster_keeps_its_promises_while_slots_move_and_nodes_fail() {
    for seed in 1..=SEEDS {
        println!("seed {seed}: {}", cluster::run(Options { rounds: 1, ..options(seed) }).summary);
    }
}

#[test]
fn a_seed_always_tells_the_same_story() {
    let first = run(Options { rounds: 1, ..options(5) });
    let again = run(Options { rounds: 1, ..options(5) });
    assert_eq!(first, again);
    let alone = || alone::run(Options { rounds: 1, ..options(5) });
    assert_eq!(alone(), alone());
}

#[test]
fn a_reply_that_waits_for_a_log_does_not_wait_for_the_next_one() {
    let mut world = World::new(options(1));
    let always = "CONFIG SET appendfsync always appendonly yes";
    for words in ["REPLICAOF NO ONE", always, "SET k 1", "SET k 2"] {
        assert_eq!(world.show(0, &words.split(' ').collect::<Vec<_>>()), "OK");
    }
    let mut waits = world.connect(0).expect("it runs");
    waits.send(&["SET", "k", "3"]);
    world.turn(0);
    assert_eq!(waits.take(), []);
    let mut switches = world.connect(0).expect("it runs");
    for value in ["no", "yes"] {
        switches.send(&["CONFIG", "SET", "appendonly", value]);
    }
    for _ in 0..100 {
        world.step(10 * MS);
    }
    assert_eq!(waits.take().len(), 1);
}

#[test]
fn a_session_goes_on_while_its_replies_wait_for_the_log() {
    let mut world = World::new(options(1));
    let always = "CONFIG SET appendfsync always appendonly yes";
    for words in ["REPLICAOF NO ONE", always] {
        assert_eq!(world.show(0, &words.split(' ').collect::<Vec<_>>()), "OK");
    }
    let mut holder = world.connect(0).expect("it runs");
    holder.send(&["LOCK.ACQUIRE", "k", "me", "PX", "200", "SESSION", "GRACE", "5000"]);
    // Its disk does nothing meanwhile.
    for _ in 0..100 {
        world.now_us += 10 * MS;
        world.nodes[0].clock.advance_us(10 * MS);
        world.turn(0);
        holder.send(&["PING"]);
    }
    assert_eq!(holder.take(), []);
    for _ in 0..100 {
        world.step(10 * MS);
        holder.send(&["PING"]);
    }
    assert!(holder.take().len() > 100);
    let other = world.show(0, &["LOCK.ACQUIRE", "k", "other", "PX", "100"]);
    assert!(other.contains("\"me\""), "{other}");
}

#[test]
fn a_request_that_a_pause_has_held_up_runs_before_newer_ones() {
    let mut world = World::new(options(1));
    for words in ["REPLICAOF NO ONE", "CLIENT PAUSE 1000 WRITE"] {
        assert_eq!(world.show(0, &words.split(' ').collect::<Vec<_>>()), "OK");
    }
    let [mut older, mut newer] = [(); 2].map(|()| world.connect(0).expect("it runs"));
    older.send(&["RPUSH", "list", "older"]);
    world.turn(0);
    newer.send(&["RPUSH", "list", "newer"]);
    // Both are there in the turn that ends the pause.
    world.step(2000 * MS);
    world.step(10 * MS);
    let told = [older.take(), newer.take()];
    assert_eq!(told, [vec![Reply::Integer(1)], vec![Reply::Integer(2)]]);
}

/// `SIMULATE` has the options: `--seed N` (one run), `--seeds N`, `--from N`, `--rounds N`,
/// `--trace`, `--logs FOLDER`, `--repeat N` (the same seed again and again, whose traces must not
/// differ), `--alone` (one server, not three), `--cluster` (nodes of a cluster), `--kinds a,b`
/// (instead of those that the seed draws; `kinds.rs` has the names), `--times` (tells the longest
/// turn of each run: to be built with optimisation).
#[test]
#[ignore = "takes minutes: make simulate"]
fn many_seeds() {
    let text = std::env::var("SIMULATE").unwrap_or_default();
    let words: Vec<&str> = text.split_whitespace().collect();
    let value = |name: &str| words.iter().position(|word| *word == name).map(|at| words[at + 1]);
    let number = |name: &str| value(name).map(|text| text.parse::<u64>().expect("a number"));
    let is_shown = words.contains(&"--trace");
    let logs = value("--logs").map(PathBuf::from);
    let rounds = number("--rounds").map_or(ROUNDS, |rounds| rounds as usize);
    let kinds = value("--kinds").map(|text| Kinds::parse(text).expect("kinds"));
    let is_timed = words.contains(&"--times");
    let options = |seed| Options { seed, rounds, is_shown, logs: logs.clone(), kinds, is_timed };
    // Three servers, or one alone, or a cluster.
    let [is_alone, is_cluster] = ["--alone", "--cluster"].map(|word| words.contains(&word));
    let run = |options: Options| match (is_alone, is_cluster) {
        (true, _) => Outcome { hash: 0, summary: alone::run(options) },
        (_, true) => cluster::run(options),
        _ => run(options),
    };
    if let Some(seed) = number("--seed") {
        let first = run(options(seed));
        println!("seed {seed}: {}", first.summary);
        for _ in 1..number("--repeat").unwrap_or(1) {
            assert_eq!(run(options(seed)), first);
        }
        return;
    }
    let (from, count) = (number("--from").unwrap_or(1), number("--seeds").unwrap_or(200));
    let next = AtomicU64::new(from);
    let failed = AtomicU64::new(0);
    let workers = std::thread::available_parallelism().map_or(1, |count| count.get());
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::SeqCst);
                    if seed >= from + count {
                        return;
                    }
                    match catch_unwind(AssertUnwindSafe(|| run(options(seed)))) {
                        Ok(outcome) => println!("seed {seed}: {}", outcome.summary),
                        Err(_) => {
                            failed.fetch_add(1, Ordering::SeqCst);
                            println!("seed {seed} FAILED: make simulate ARGS=\"--seed {seed}\" repeats it");
                        }
                    }
                }
            });
        }
    });
    assert_eq!(failed.into_inner(), 0, "seeds that have failed");
}
