//! Writes that no request starts, beside all that postpones or refuses writes: each of them with
//! each. While writes are postponed nothing changes; while they are refused no client gets what a
//! write takes. The server sleeps meanwhile, and what has waited happens when writes are possible
//! again.

use std::panic::{AssertUnwindSafe, catch_unwind};

use latchkey::sys::disk::model::{Call, Fault};

use super::connection::Connection;
use super::kinds::Kinds;
use super::options;
use super::world::{MS, World};
use crate::support::Reply;

/// A write that time starts, or the end of a connection.
struct Row {
    what: &'static str,
    /// The number of a client, and its request. `SOON` is the Unix time in milliseconds at which
    /// something is due.
    before: &'static [(usize, &'static str)],
    /// In the same pipeline as the beginning of the obstacle. `KILL n` kills a client.
    with: (&'static [&'static str], &'static [&'static str]),
    /// The client whose connection ends.
    leaves: Option<usize>,
    /// The client whose reply waits.
    waits: Option<usize>,
    /// A request after the end, and what it is answered.
    after: (&'static str, &'static str),
}

const ROW: Row = Row {
    what: "",
    before: &[],
    with: (&[], &[]),
    leaves: None,
    waits: None,
    after: ("PING", "PONG"),
};

const HELD: &str = "LOCK.ACQUIRE k a PX 60000";
const WAITS: &str = "LOCK.ACQUIRE k b PX 60000 BLOCK 0";

/// Whether a grace of five seconds has just begun.
const LOCK_GRACE: &str =
    "EVAL return(function(t)return(t>4000)and(t<5001)end)(redis.call('PTTL','k')) 0";
const PERMIT_GRACE: &str =
    "EVAL return(function(t)return(t>4000)and(t<5002)end)(redis.call('PTTL','s')) 0";

/// Clients that get something.
const GIFTS: &[Row] = &[
    Row {
        what: "a due member",
        before: &[(0, "ZADD d SOON x"), (1, "BZPOPDUE d 0 UNIT MS")],
        waits: Some(1),
        after: ("EXISTS d", "(integer) 0"),
        ..ROW
    },
    Row {
        what: "due members that are moved",
        before: &[(0, "ZADD d SOON x SOON y"), (1, "BZMOVEDUE d l 0 COUNT 9 UNIT MS")],
        waits: Some(1),
        after: ("LLEN l", "(integer) 2"),
        ..ROW
    },
    Row {
        what: "a due member that moves to a stream",
        before: &[
            (0, "XGROUP CREATE x g 0 MKSTREAM"),
            (0, "ZADD d SOON y"),
            (1, "XREADGROUP GROUP g w BLOCK 0 DUE d UNIT MS STREAMS x >"),
        ],
        waits: Some(1),
        after: ("EXISTS d", "(integer) 0"),
        ..ROW
    },
    Row {
        what: "an entry whose lease ends",
        before: &[
            (0, "XADD x 1-1 f v"),
            (0, "XGROUP CREATE x g 0"),
            (0, "XREADGROUP GROUP g v STREAMS x >"),
            (1, "XREADGROUP GROUP g w BLOCK 0 CLAIM 1000 STREAMS x >"),
        ],
        waits: Some(1),
        after: ("XGUARD x g w 1-1", "(integer) 1"),
        ..ROW
    },
    Row {
        what: "an entry whose pause ends",
        before: &[
            (0, "XADD x 1-1 f v"),
            (0, "XGROUP CREATE x g 0"),
            (0, "XREADGROUP GROUP g v STREAMS x >"),
            (0, "XNACK x g FAIL IDS 1 1-1 DELAY 1000"),
            (1, "XREADGROUP GROUP g w BLOCK 0 CLAIM 90000 STREAMS x >"),
        ],
        waits: Some(1),
        after: ("XGUARD x g w 1-1", "(integer) 1"),
        ..ROW
    },
    Row {
        what: "a lock whose lease ends",
        before: &[(0, "LOCK.ACQUIRE k a PX 1000"), (1, WAITS)],
        waits: Some(1),
        after: ("LOCK.GUARD k b", "(integer) 1"),
        ..ROW
    },
    Row {
        what: "several locks",
        before: &[(0, "LOCK.ACQUIRE k a PX 1000"), (1, "LOCK.MACQUIRE 2 k m b PX 60000 BLOCK 0")],
        waits: Some(1),
        after: ("LOCK.GUARD m b", "(integer) 1"),
        ..ROW
    },
    Row {
        what: "a permit that ends",
        before: &[
            (0, "SEM.ACQUIRE s a LIMIT 1 PX 1000"),
            (1, "SEM.ACQUIRE s b LIMIT 1 PX 60000 BLOCK 0"),
        ],
        waits: Some(1),
        after: ("ZCARD s", "(integer) 1"),
        ..ROW
    },
];

/// Ends and renewals.
const ENDS: &[Row] = &[
    Row {
        what: "a reader's lease",
        before: &[(0, "LOCK.ACQUIRE k a PX 1000 SHARED"), (0, "LOCK.ACQUIRE k b PX 60000 SHARED")],
        after: ("HEXISTS k :r:a", "(integer) 0"),
        ..ROW
    },
    Row {
        what: "a grant without its replicas",
        before: &[(0, "LOCK.ACQUIRE k a PX 60000 REPLICAS 2 1000")],
        waits: Some(0),
        after: ("EXISTS k", "(integer) 0"),
        ..ROW
    },
    Row {
        what: "a hold without its replicas",
        before: &[
            (0, "LOCK.ACQUIRE k a PX 60000 REENTRANT"),
            (0, "LOCK.ACQUIRE k a PX 60000 REENTRANT REPLICAS 2 1000"),
        ],
        waits: Some(0),
        after: ("HGET k a", "\"1\""),
        ..ROW
    },
    Row {
        what: "a grant whose client leaves before its replicas have it",
        before: &[(0, "LOCK.ACQUIRE k a PX 60000 REPLICAS 2 90000")],
        leaves: Some(0),
        after: ("EXISTS k", "(integer) 0"),
        ..ROW
    },
    Row {
        what: "a grant to a client that is killed in the same turn",
        before: &[(0, HELD), (1, WAITS)],
        with: (&["LOCK.RELEASE k a"], &["KILL 1"]),
        after: ("EXISTS k", "(integer) 0"),
        ..ROW
    },
    Row {
        what: "the grace of a session",
        before: &[(0, "LOCK.ACQUIRE k a PX 60000 SESSION GRACE 5000")],
        leaves: Some(0),
        after: (LOCK_GRACE, "(integer) 1"),
        ..ROW
    },
    Row {
        what: "the grace of a reader's session",
        before: &[(0, "LOCK.ACQUIRE k a PX 60000 SHARED SESSION GRACE 5000")],
        leaves: Some(0),
        after: (LOCK_GRACE, "(integer) 1"),
        ..ROW
    },
    Row {
        what: "the grace of a permit's session",
        before: &[(0, "SEM.ACQUIRE s a LIMIT 1 PX 60000 SESSION GRACE 5000")],
        leaves: Some(0),
        after: (PERMIT_GRACE, "(integer) 1"),
        ..ROW
    },
    Row {
        what: "the grace of a session whose lease has passed",
        before: &[(0, "LOCK.ACQUIRE k a PX 2000 SESSION GRACE 5000")],
        leaves: Some(0),
        after: (LOCK_GRACE, "(integer) 1"),
        ..ROW
    },
    Row {
        what: "the grace of a permit's session whose time has passed",
        before: &[(0, "SEM.ACQUIRE s a LIMIT 1 PX 2000 SESSION GRACE 5000")],
        leaves: Some(0),
        after: (PERMIT_GRACE, "(integer) 1"),
        ..ROW
    },
    Row {
        what: "a session that goes on",
        before: &[(0, "LOCK.ACQUIRE k a PX 2000 SESSION GRACE 5000"), (0, "BLPOP nothing 0")],
        after: ("LOCK.GUARD k a", "(integer) 1"),
        ..ROW
    },
    Row {
        what: "permits whose session goes on",
        before: &[
            (0, "SEM.ACQUIRE s a LIMIT 1 PX 4000 SESSION GRACE 5000"),
            (0, "BLPOP nothing 0"),
        ],
        after: ("ZCARD s", "(integer) 1"),
        ..ROW
    },
    Row {
        what: "an entry that is buried",
        before: &[
            (0, "XADD x 1-1 f v"),
            (0, "XGROUP CREATE x g 0"),
            (0, "XREADGROUP GROUP g v STREAMS x >"),
            (1, "XREADGROUP GROUP g w BLOCK 0 CLAIM 1000 MAXDELIVERIES 1 DEADLETTER d STREAMS x >"),
        ],
        after: ("XLEN d", "(integer) 1"),
        ..ROW
    },
    Row {
        what: "a key's deadline",
        before: &[(0, "SET k v PX 1000")],
        after: ("DBSIZE", "(integer) 0"),
        ..ROW
    },
    Row {
        what: "a field's deadline",
        before: &[(0, "HSET h f v"), (0, "HPEXPIRE h 1000 FIELDS 1 f")],
        after: ("DBSIZE", "(integer) 0"),
        ..ROW
    },
    Row {
        what: "eviction",
        before: &[(0, "SET k v")],
        with: (&[], &["CONFIG SET maxmemory-policy allkeys-random maxmemory 1", "GET k"]),
        after: ("DBSIZE", "(integer) 0"),
        ..ROW
    },
];

/// What postpones or refuses writes: how it begins, and how it ends; None: by time.
type Obstacle = (&'static str, Option<&'static str>);

const POSTPONE: &[Obstacle] = &[
    ("CLIENT PAUSE 9000 WRITE", Some("CLIENT UNPAUSE")),
    ("CLIENT PAUSE 9000 WRITE", None),
    ("CLIENT PAUSE 9000 ALL", None),
    ("FAILOVER", Some("FAILOVER ABORT")),
];
const REFUSE: &[Obstacle] = &[
    ("CONFIG SET min-replicas-to-write 2", Some("CONFIG SET min-replicas-to-write 0")),
    ("BGSAVE", Some("CONFIG SET stop-writes-on-bgsave-error no")),
];

/// A primary whose replica hears nothing any more.
fn world(seed: u64) -> World {
    let lines = [
        "bind 127.0.0.1",
        "port 0",
        "protected-mode no",
        "save 100000 100000",
        "dir /",
        "repl-diskless-sync-delay 0",
        "repl-timeout 3600",
        "redis-version 8.0.0",
    ];
    let places = (0..=2).map(|place| (seed + place, lines.map(String::from).to_vec()));
    let random = fastrand::Rng::with_seed(seed);
    let mut world = World::of((options(seed), Kinds::NONE), random, 0, places.collect());
    world.start(0, None);
    world.start(1, Some(0));
    for _ in 0..200 {
        world.step(100 * MS);
        if world.info(0).get("slave0").is_some_and(|line| line.contains("state=online")) {
            // Until it has acknowledged the snapshot.
            (0..20).for_each(|_| world.step(100 * MS));
            world.wires.part(0, 1);
            return world;
        }
    }
    world.fail("the replica is not in step");
}

struct Case<'a> {
    row: &'a Row,
    obstacle: Obstacle,
    world: World,
    clients: Vec<Option<Connection>>,
    replies: Vec<usize>,
}

impl<'a> Case<'a> {
    fn new(row: &'a Row, obstacle: Obstacle) -> Self {
        let mut world = world(7);
        let clients = (0..3).map(|_| world.connect(0)).collect();
        Case { row, obstacle, world, clients, replies: vec![0; 3] }
    }

    fn fail(&self, why: &str) -> Result<(), String> {
        Err(format!("{} beside {}: {why}", self.row.what, self.obstacle.0))
    }

    fn send(&mut self, client: usize, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        self.clients[client].as_mut().expect("it is there").send(&words);
    }

    /// Takes the replies that are there.
    fn take(&mut self, client: usize) -> Vec<Reply> {
        let told = self.clients[client].as_mut().map(Connection::take).unwrap_or_default();
        self.replies[client] += told.len();
        told
    }

    fn id_of(&mut self, client: usize) -> String {
        self.send(client, "CLIENT ID");
        self.world.turn(0);
        self.take(client).pop().expect("a number").show().replace("(integer) ", "")
    }

    /// Time passes, 100 ms after 100 ms.
    fn pass(&mut self, ms: i64) {
        for _ in 0..ms / 100 {
            self.world.step(100 * MS);
        }
    }

    fn run(&mut self) -> Result<(), String> {
        let row = self.row;
        let ids = [self.id_of(0), self.id_of(1)];
        let (seconds, rest) = match self.world.ask(0, &["TIME"]) {
            Some(Reply::Array(parts)) => (parts[0].show(), parts[1].show()),
            other => panic!("{other:?}"),
        };
        let number = |text: &str| text.trim_matches('"').parse::<i64>().expect("a number");
        let soon = number(&seconds) * 1000 + number(&rest) / 1000 + 1000;
        for (client, line) in row.before {
            self.send(*client, &line.replace("SOON", &soon.to_string()));
            self.world.turn(0);
            self.world.turn(0);
        }
        (0..2).for_each(|client| drop(self.take(client)));
        if self.obstacle.0 == "BGSAVE" {
            self.world.nodes[0].disk.fail_next(Call::Create, Fault::Error(5));
        }
        // In one turn.
        let begin = self.obstacle.0;
        for line in row.with.0.iter().chain([&begin]).chain(row.with.1) {
            match line.strip_prefix("KILL ") {
                Some(client) => {
                    let id = &ids[number(client) as usize];
                    self.send(2, &format!("CLIENT KILL ID {id}"));
                }
                None => self.send(2, line),
            }
        }
        self.world.turn(0);
        if self.obstacle.0 == "BGSAVE" {
            // Its end is found in a turn.
            for _ in 0..3 {
                self.world.background(0);
                self.world.turn(0);
            }
        }
        if let Some(client) = row.leaves {
            self.clients[client] = None;
        }
        (0..2).for_each(|client| self.replies[client] = 0);
        let before = self.server().stands_still();
        let postpones = POSTPONE.contains(&self.obstacle);
        if before.is_some() != postpones {
            return self.fail("it has not begun");
        }
        self.pass(5000);
        (0..4).for_each(|_| self.world.turn(0));
        (0..2).for_each(|client| drop(self.take(client)));
        if self.server().stands_still() != before {
            return self.fail("data has changed");
        }
        if row.waits.is_some_and(|client| self.replies[client] > 0) {
            return self.fail("a client is served");
        }
        if self.server().next_turn_in().is_some_and(|time| time.is_zero()) {
            return self.fail("the server does not sleep");
        }
        match self.obstacle.1 {
            Some(end) => self.send(2, end),
            None => self.pass(4100),
        }
        // Well before anything else ends.
        self.pass(300);
        if let Some(client) = row.waits {
            self.take(client);
            if self.replies[client] != 1 {
                return self.fail("a client still waits");
            }
        }
        let (request, wanted) = row.after;
        let words: Vec<&str> = request.split(' ').collect();
        let told = self.world.show(0, &words);
        if told != wanted {
            return self.fail(&format!("{request} is answered {told}"));
        }
        if self.server().next_turn_in().is_some_and(|time| time.is_zero()) {
            return self.fail("the server does not sleep afterwards");
        }
        Ok(())
    }

    fn server(&self) -> &latchkey::server::driven::DrivenServer {
        self.world.nodes[0].server.as_ref().expect("it runs")
    }
}

#[test]
fn what_time_starts_waits_while_writes_are_postponed_or_refused() {
    // Where all requests wait, nobody is killed.
    let fits = |row: &Row, it: &Obstacle| row.with.1.is_empty() || !it.0.ends_with("ALL");
    let postponed = POSTPONE.iter().flat_map(|it| {
        let rows = GIFTS.iter().chain(ENDS).filter(move |row| fits(row, it));
        rows.map(move |row| (row, it))
    });
    let refused = REFUSE.iter().flat_map(|it| GIFTS.iter().map(move |row| (row, it)));
    let cases: Vec<_> = postponed.chain(refused).collect();
    let ended = cases.iter().map(|(row, obstacle)| {
        let case = AssertUnwindSafe(|| Case::new(row, **obstacle).run());
        let panics = |_| Err(format!("{} beside {}: panics, see above", row.what, obstacle.0));
        catch_unwind(case).unwrap_or_else(panics)
    });
    let failed: Vec<String> = ended.filter_map(Result::err).collect();
    assert!(failed.is_empty(), "{failed:#?}");
    println!("{} cases", cases.len());
}
