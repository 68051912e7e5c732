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
//! `nodes` has the nodes and what they tell of themselves, `clients` those who write, `operator` the
//! rest.

use clients::Clients;
use nodes::Cluster;
use operator::Operator;

use super::Outcome;
use super::world::{MS, Options};

mod clients;
mod lock_holders;
mod nodes;
mod operator;

/// A whole run. Panics where something does not hold.
pub fn run(options: Options) -> Outcome {
    let rounds = options.rounds;
    let mut cluster = Cluster::new(options);
    let mut clients = Clients::new(&cluster);
    let mut operator = Operator::default();
    for _ in 0..rounds {
        for _ in 0..cluster.world.random.usize(500..1000) {
            let us = cluster.world.random.i64(1..30) * MS + cluster.world.random.i64(0..1000);
            cluster.world.step(us);
            clients.act(&mut cluster, false);
            operator.act(&mut cluster, &mut clients);
        }
        operator.heal(&mut cluster, &mut clients);
        cluster.check_places();
        clients.check_all(&mut cluster);
        cluster.check_copies();
        cluster.check_locks();
    }
    let (world, counts) = (&cluster.world, &operator.counts);
    let (seconds, turns, events) = (world.now_us / 1_000_000, world.turns, world.trace.events);
    let kind = if cluster.is_restless { "restless" } else { "quiet" };
    let hash = world.trace.hash();
    let summary = format!(
        "{kind}, replicas {:?}, {seconds} s in {turns} turns, {events} events, {}, {} strays, {counts:?}, trace {hash:016x}",
        cluster.replicas(),
        clients.summary(),
        cluster.strays,
    );
    Outcome { hash, summary }
}
