//! A whole cluster in one thread: nodes with their bus, clients that follow MOVED and ASK, and an
//! operator who moves slots, under a schedule of misfortune that follows from a seed.
//!
//! ```text
//!   clients -> nodes, turn by turn in any order <-> network: clients' ports and bus, delays, cuts
//!   operator: moves slots by either way, fails over by hand, pauses, saves
//!             in restless seeds also ends and starts nodes, and parts them
//! ```
//!
//! What must hold: no increment happens twice. In quiet seeds nothing that was answered is lost, and
//! no lock has two holders. In restless ones nothing is lost that all replicas had acknowledged
//! while one of the shard's nodes had it. After healing all nodes agree within 30 seconds who owns
//! which slot, moves end, each key is at its slot's owner only, replicas have what their primary has,
//! and locks are known where their keys are.
//!
//! `house` has the nodes and what they tell of themselves, `clients` those who write, `operator` the
//! rest.

use clients::Clients;
use house::House;
use operator::Operator;

use super::Outcome;
use super::world::{MS, Options};

mod clients;
mod holdings;
mod house;
mod operator;

/// A whole run. Panics where something does not hold.
pub fn run(options: Options) -> Outcome {
    let rounds = options.rounds;
    let mut house = House::new(options);
    let mut clients = Clients::new(&house);
    let mut operator = Operator::default();
    for _ in 0..rounds {
        for _ in 0..house.world.random.usize(500..1000) {
            let us = house.world.random.i64(1..30) * MS + house.world.random.i64(0..1000);
            house.world.step(us);
            clients.act(&mut house, false);
            operator.act(&mut house, &mut clients);
        }
        operator.heal(&mut house, &mut clients);
        house.check_places();
        clients.check_all(&mut house);
        house.check_copies();
        house.check_locks();
    }
    let (world, counts) = (&house.world, &operator.counts);
    let (seconds, turns, events) = (world.now_us / 1_000_000, world.turns, world.trace.events);
    let kind = if house.is_restless { "restless" } else { "quiet" };
    let hash = world.trace.hash();
    let summary = format!(
        "{kind}, replicas {:?}, {seconds} s in {turns} turns, {events} events, {}, {} strays, {counts:?}, trace {hash:016x}",
        house.replicas(),
        clients.summary(),
        house.strays,
    );
    Outcome { hash, summary }
}
