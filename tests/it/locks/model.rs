//! Random clients take, wait for and lose a lock for reading and for writing, while time passes and
//! somebody sets the wall clock. A simple model says what each is answered, and when.
//!
//! `LOCKS_STEPS` is how many steps a run has, `LOCKS_SEED` repeats one. A session that goes wrong
//! is reduced to a short one.

use std::collections::BTreeMap;

use crate::support::{Client, Reply, START, TestServer, number_from, seed, shrink};

const CLIENTS: usize = 6;
const OWNERS: [&str; 5] = ["ann", "ben", "cat", "dan", "eve"];
/// Steps with one server.
const SESSION: usize = 200;
const SHRINK_TRIES: usize = 200;

#[derive(Clone, Copy, Debug)]
struct Asked {
    owner: usize,
    is_shared: bool,
    lease_ms: i64,
}

#[derive(Clone, Debug)]
enum Step {
    /// By a client, unless it waits. `block_ms`: BLOCK.
    Ask(usize, Asked, Option<i64>),
    Release(usize),
    Renew(usize, i64),
    Delete,
    /// Whoever waits is gone with its connection.
    Close(usize),
    PassMs(i64),
    SetWallMs(i64),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    Granted { fence: i64, ms_left: i64 },
    Refused { ms_left: i64, waiters: i64 },
}

/// A holding: its fence, and until when.
type Holding = (i64, i64);

enum Holders {
    Writer(usize, Holding),
    /// By owner. Nobody holds the lock if there is none.
    Readers(BTreeMap<usize, Holding>),
}

struct Waiter {
    client: usize,
    asked: Asked,
    deadline_ms: Option<i64>,
    is_first: bool,
}

struct Model {
    now_ms: i64,
    last_fence: i64,
    holders: Holders,
    queue: Vec<Waiter>,
    /// What clients are told, in order.
    answers: Vec<(usize, Answer)>,
}

impl Model {
    fn new() -> Self {
        Model {
            now_ms: 0,
            last_fence: (START.0 / 1000) << 21,
            holders: Holders::Readers(BTreeMap::new()),
            queue: Vec::new(),
            answers: Vec::new(),
        }
    }

    fn until(&self) -> Option<i64> {
        match &self.holders {
            Holders::Writer(_, (_, until)) => Some(*until),
            Holders::Readers(readers) => readers.values().map(|(_, until)| *until).max(),
        }
    }

    fn holding(&mut self, owner: usize) -> Option<&mut Holding> {
        match &mut self.holders {
            Holders::Writer(writer, holding) => (*writer == owner).then_some(holding),
            Holders::Readers(readers) => readers.get_mut(&owner),
        }
    }

    /// What an owner is granted. `is_late`: others have waited longer.
    fn grant(&mut self, asked: Asked, is_late: bool) -> Option<Answer> {
        let Asked { owner, is_shared, lease_ms } = asked;
        let until = self.now_ms + lease_ms;
        let next = (self.last_fence + 1, until);
        let is_held = self.holding(owner).is_some();
        let granted = match &mut self.holders {
            Holders::Readers(readers) if is_shared && !is_held && !is_late => {
                self.last_fence += 1;
                *readers.entry(owner).or_insert(next)
            }
            Holders::Readers(readers) if !is_shared && readers.len() == usize::from(is_held) => {
                if is_late && !is_held {
                    return None;
                }
                self.last_fence += 1;
                let before = readers.get(&owner).map_or(until, |(_, before)| *before);
                let next = (next.0, until.max(before));
                self.holders = Holders::Writer(owner, next);
                next
            }
            Holders::Readers(_) if !is_shared => return None,
            _ => {
                let holding = self.holding(owner)?;
                holding.1 = holding.1.max(until);
                *holding
            }
        };
        Some(Answer::Granted { fence: granted.0, ms_left: granted.1 - self.now_ms })
    }

    fn refusal(&self) -> Answer {
        let ms_left = self.until().map_or(-1, |until| until - self.now_ms);
        Answer::Refused { ms_left, waiters: self.queue.len() as i64 }
    }

    fn serve(&mut self) {
        while let Some((client, asked)) =
            self.queue.first().map(|first| (first.client, first.asked))
            && let Some(answer) = self.grant(asked, false)
        {
            self.queue.remove(0);
            self.answers.push((client, answer));
        }
    }

    fn ask(&mut self, client: usize, asked: Asked, block_ms: Option<i64>) {
        if let Some(answer) = self.grant(asked, !self.queue.is_empty()) {
            self.answers.push((client, answer));
            return;
        }
        // One of several readers, who wants to be the writer.
        let is_first = !asked.is_shared && self.holding(asked.owner).is_some();
        let at_head = self.queue.first().filter(|waiter| waiter.is_first);
        let is_hopeless =
            is_first && at_head.is_some_and(|waiter| waiter.asked.owner != asked.owner);
        let Some(ms) = block_ms.filter(|_| !is_hopeless) else {
            let refusal = self.refusal();
            self.answers.push((client, refusal));
            return;
        };
        let deadline_ms = (ms > 0).then_some(self.now_ms + ms);
        let at = match is_first {
            true => self.queue.iter().filter(|waiter| waiter.is_first).count(),
            false => self.queue.len(),
        };
        self.queue.insert(at, Waiter { client, asked, deadline_ms, is_first });
    }

    fn release(&mut self, owner: usize) -> i64 {
        if self.until().is_none() {
            return -1;
        }
        if self.holding(owner).is_none() {
            return -2;
        }
        match &mut self.holders {
            Holders::Writer(..) => self.holders = Holders::Readers(BTreeMap::new()),
            Holders::Readers(readers) => drop(readers.remove(&owner)),
        }
        0
    }

    fn renew(&mut self, owner: usize, lease_ms: i64) -> i64 {
        let until = self.now_ms + lease_ms;
        self.holding(owner).map_or(0, |holding| {
            holding.1 = holding.1.max(until);
            holding.0
        })
    }

    fn pass(&mut self, ms: i64) {
        self.now_ms += ms;
        match &mut self.holders {
            Holders::Writer(_, (_, until)) if *until < self.now_ms => {
                self.holders = Holders::Readers(BTreeMap::new());
            }
            Holders::Writer(..) => {}
            Holders::Readers(readers) => readers.retain(|_, (_, until)| *until >= self.now_ms),
        }
        loop {
            let due = self.queue.iter().enumerate().filter_map(|(at, waiter)| {
                waiter.deadline_ms.filter(|&deadline| deadline <= self.now_ms).zip(Some(at))
            });
            let Some((_, at)) = due.min() else { return };
            let Waiter { client, asked, .. } = self.queue.remove(at);
            let granted = self.grant(asked, !self.queue.is_empty());
            let answer = granted.unwrap_or_else(|| self.refusal());
            self.answers.push((client, answer));
        }
    }

    fn waits(&self, client: usize) -> bool {
        self.queue.iter().any(|waiter| waiter.client == client)
    }
}

struct Author(fastrand::Rng);

impl Author {
    fn lease_ms(&mut self) -> i64 {
        self.0.choice([1, 5, 20, 100, 1000]).unwrap_or(1) + self.0.i64(0..4)
    }

    fn step(&mut self) -> Step {
        let owner = self.0.usize(..OWNERS.len());
        match self.0.u32(..40) {
            0..18 => {
                let (is_shared, lease_ms) = (self.0.u32(..3) > 0, self.lease_ms());
                let block_ms = match self.0.u32(..4) {
                    0 => None,
                    1 => Some(0),
                    _ => Some(self.lease_ms()),
                };
                Step::Ask(self.0.usize(..CLIENTS), Asked { owner, is_shared, lease_ms }, block_ms)
            }
            18..25 => Step::Release(owner),
            25..27 => Step::Renew(owner, self.lease_ms()),
            27 => Step::Delete,
            28..30 => Step::Close(self.0.usize(..CLIENTS)),
            30 => Step::SetWallMs(self.0.i64(-2000..2000)),
            31..36 => Step::PassMs(self.0.i64(1..4)),
            _ => Step::PassMs(self.lease_ms()),
        }
    }
}

fn answer(reply: &Reply) -> Answer {
    let Reply::Array(items) = reply else { panic!("not an answer: {}", reply.show()) };
    match items[..] {
        [Reply::Integer(fence), Reply::Integer(1), Reply::Integer(ms_left)] => {
            Answer::Granted { fence, ms_left }
        }
        [Reply::Integer(0), Reply::Integer(ms_left), Reply::Integer(waiters), _] => {
            Answer::Refused { ms_left, waiters }
        }
        _ => panic!("not an answer: {}", reply.show()),
    }
}

/// Runs a session; what goes wrong.
fn go_wrong(steps: &[Step]) -> Option<String> {
    let server = TestServer::start(&[]);
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| server.connect()).collect();
    let mut other = server.connect();
    let mut integer = |line: String| match other.call(&line.split(' ').collect::<Vec<_>>()) {
        Reply::Integer(number) => number,
        Reply::Array(items) => match items[..] {
            [Reply::Integer(number)] => number,
            _ => panic!("{line}: {items:?}"),
        },
        reply => panic!("{line}: {}", reply.show()),
    };
    let mut model = Model::new();
    for (number, step) in steps.iter().enumerate() {
        let wrong = |what: String| Some(format!("step {number}, {step:?}: {what}"));
        let mut told = None;
        match *step {
            Step::Ask(client, asked, block_ms) if !model.waits(client) => {
                // The order of two whose time is over at once is not told.
                let block_ms = block_ms.filter(|ms| {
                    let deadline_ms = Some(model.now_ms + ms);
                    model.queue.iter().all(|waiter| waiter.deadline_ms != deadline_ms)
                });
                let Asked { owner, is_shared, lease_ms } = asked;
                let mut line = format!("LOCK.ACQUIRE jobs {} PX {lease_ms}", OWNERS[owner]);
                line.push_str(if is_shared { " SHARED" } else { "" });
                line.push_str(&block_ms.map_or(String::new(), |ms| format!(" BLOCK {ms}")));
                clients[client].send(&line.split(' ').collect::<Vec<_>>());
                model.ask(client, asked, block_ms);
            }
            Step::Ask(..) => continue,
            Step::Release(owner) => {
                let line = format!("LOCK.RELEASE jobs {}", OWNERS[owner]);
                told = Some((integer(line), model.release(owner)));
            }
            Step::Renew(owner, lease_ms) => {
                let line = format!("LOCK.RENEW 1 jobs {} PX {lease_ms}", OWNERS[owner]);
                told = Some((integer(line), model.renew(owner, lease_ms)));
            }
            Step::Delete => {
                let was_there = i64::from(model.until().is_some());
                model.holders = Holders::Readers(BTreeMap::new());
                told = Some((integer("DEL jobs".into()), was_there));
            }
            Step::Close(client) => {
                clients[client] = server.connect();
                model.queue.retain(|waiter| waiter.client != client);
                // Whoever is next is served in the turn after.
                server.settle();
            }
            Step::PassMs(ms) => {
                model.pass(ms);
                server.clock.advance_us(ms * 1000);
            }
            Step::SetWallMs(ms) => server.clock.step_wall_us(ms * 1000),
        }
        if let Some((said, expected)) = told
            && said != expected
        {
            return wrong(format!("{said} instead of {expected}"));
        }
        model.serve();
        server.settle();
        for (client, expected) in std::mem::take(&mut model.answers) {
            match clients[client].try_message().as_ref().map(answer) {
                Some(said) if said == expected => {}
                said => return wrong(format!("client {client}: {said:?} instead of {expected:?}")),
            }
        }
        for (index, client) in clients.iter_mut().enumerate() {
            if let Some(said) = client.try_message() {
                return wrong(format!("client {index} was told {}", said.show()));
            }
        }
        for (index, owner) in OWNERS.iter().enumerate() {
            let fence = model.holding(index).map(|holding| holding.0);
            let line = format!("LOCK.GUARD jobs {owner} FENCE {}", fence.unwrap_or(1));
            if (integer(line) == 1) != fence.is_some() {
                return wrong(format!("whether {owner} holds it: not {}", fence.is_some()));
            }
        }
        let ms_left = model.until().map_or(-2, |until| until - model.now_ms);
        let said = integer("PTTL jobs".into());
        if said != ms_left {
            return wrong(format!("the key ends in {said} ms instead of {ms_left}"));
        }
    }
    None
}

#[test]
fn readers_and_writers_are_answered_as_a_model_says() {
    let (seed, count) = (seed("LOCKS_SEED"), number_from("LOCKS_STEPS", 1000) as usize);
    println!("LOCKS_SEED={seed} LOCKS_STEPS={count}");
    let mut author = Author(fastrand::Rng::with_seed(seed));
    for _ in 0..count.div_ceil(SESSION) {
        let steps: Vec<Step> = (0..SESSION).map(|_| author.step()).collect();
        if go_wrong(&steps).is_none() {
            continue;
        }
        let short = shrink(steps, 0, SHRINK_TRIES, |steps| go_wrong(steps).is_some());
        short.iter().for_each(|step| println!("  {step:?}"));
        panic!("{}", go_wrong(&short).unwrap_or_else(|| "only with chance".into()));
    }
}
