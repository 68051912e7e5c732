//! Workers take, renew, finish, give back and forget jobs at random, while jobs are added for now
//! and later, a group is paused, data are deleted, the data are reloaded, time passes and somebody
//! sets the wall clock. A simple model says what each is answered, and when.
//!
//! `QUEUES_STEPS` is how many steps a run has, `QUEUES_SEED` repeats one. A session that goes wrong
//! is reduced to a short one.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::{Client, Reply, START, TestServer, number_from, seed, shrink};

const WORKERS: usize = 4;
/// Steps with one server.
const SESSION: usize = 150;
const SHRINK_TRIES: usize = 200;
/// MAXDELIVERIES.
const LIMIT: i64 = 3;
const FATAL: i64 = i64::MAX;

type Id = (i64, i64);

#[derive(Clone, Copy, Debug)]
struct Request {
    count: usize,
    claim_ms: i64,
    has_due: bool,
    has_limit: bool,
    blocks: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Silent,
    Fail,
    Fatal,
}

#[derive(Clone, Debug)]
enum Step {
    Add,
    /// Due after these milliseconds.
    AddLater(i64),
    Read(usize, Request),
    /// A worker's request about the entry with this number among all that were added. True: with
    /// OWNER.
    Renew(usize, usize, bool),
    Done(usize, usize, bool),
    Nack(usize, usize, bool, Mode, i64),
    Guarded(usize, usize),
    Leave(usize),
    /// Whoever waits is gone with its connection.
    Close(usize),
    Pause(bool),
    Delete(usize),
    Redrive,
    RunNow(usize, usize),
    Reload,
    /// DUMP and RESTORE, between which the wall clock is set: Unix times count.
    Move(i64),
    PassMs(i64),
    SetWallMs(i64),
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    /// None: released.
    owner: Option<usize>,
    at_ms: i64,
    deliveries: i64,
}

type Got = Vec<(Id, String, i64, i64)>;

struct Waiter {
    worker: usize,
    request: Request,
}

/// All times but `wall_ms` count on the clock that nobody sets.
struct Model {
    now_ms: i64,
    wall_ms: i64,
    last_id: Id,
    last_dead: Id,
    read_up_to: Id,
    entries: BTreeMap<Id, String>,
    pending: BTreeMap<Id, Pending>,
    later: BTreeSet<(i64, String)>,
    dead: Vec<(String, i64)>,
    is_paused: bool,
    released: i64,
    queue: Vec<Waiter>,
    /// Pending entries without data that a reader without a limit has met: nobody meets them again.
    passed: BTreeSet<Id>,
    /// What workers are told, in order.
    answers: Vec<(usize, Option<Got>)>,
    added: Vec<Id>,
}

fn next_id(last: &mut Id, wall_ms: i64) -> Id {
    *last = if wall_ms > last.0 { (wall_ms, 0) } else { (last.0, last.1 + 1) };
    *last
}

impl Model {
    fn new() -> Self {
        Model {
            now_ms: START.0,
            wall_ms: START.0,
            last_id: (0, 0),
            last_dead: (0, 0),
            read_up_to: (0, 0),
            entries: BTreeMap::new(),
            pending: BTreeMap::new(),
            later: BTreeSet::new(),
            dead: Vec::new(),
            is_paused: false,
            released: 0,
            queue: Vec::new(),
            passed: BTreeSet::new(),
            answers: Vec::new(),
            added: Vec::new(),
        }
    }

    fn add(&mut self, data: String) {
        let id = next_id(&mut self.last_id, self.wall_ms);
        self.entries.insert(id, data);
        self.added.push(id);
    }

    /// What a worker gets now.
    fn read(&mut self, worker: usize, request: Request) -> Option<Got> {
        if self.is_paused {
            return None;
        }
        // A delivery in the future was now; a pause is a pause.
        for pending in self.pending.values_mut().filter(|pending| pending.owner.is_some()) {
            pending.at_ms = pending.at_ms.min(self.now_ms);
        }
        if request.has_due {
            while let Some((due_ms, data)) = self.later.first().cloned()
                && due_ms <= self.wall_ms
            {
                self.later.pop_first();
                self.add(data);
            }
        }
        let mut got = Vec::new();
        for id in self.claimable(request.claim_ms) {
            if got.len() == request.count {
                break;
            }
            let before = self.pending[&id];
            let Some(data) = self.entries.get(&id).cloned() else {
                match request.has_limit {
                    true => drop(self.pending.remove(&id)),
                    false => drop(self.passed.insert(id)),
                }
                continue;
            };
            if request.has_limit && before.deliveries >= LIMIT {
                next_id(&mut self.last_dead, self.wall_ms);
                self.dead.push((data, before.deliveries));
                self.pending.remove(&id);
                self.entries.remove(&id);
                continue;
            }
            let idle_ms = before.owner.map_or(-1, |_| self.now_ms - before.at_ms);
            got.push((id, data, idle_ms, before.deliveries));
            let deliveries = before.deliveries.saturating_add(1);
            self.pending
                .insert(id, Pending { owner: Some(worker), at_ms: self.now_ms, deliveries });
        }
        let unread = self.entries.range((self.read_up_to.0, self.read_up_to.1 + 1)..);
        let unread: Vec<_> = unread.map(|(id, data)| (*id, data.clone())).collect();
        for (id, data) in unread.into_iter().take(request.count - got.len()) {
            self.read_up_to = id;
            self.pending
                .insert(id, Pending { owner: Some(worker), at_ms: self.now_ms, deliveries: 1 });
            got.push((id, data, 0, 0));
        }
        (!got.is_empty()).then_some(got)
    }

    /// Released entries whose pause is over, then those that were delivered long enough ago.
    fn claimable(&self, claim_ms: i64) -> Vec<Id> {
        let mut found: Vec<(bool, i64, Id)> = Vec::new();
        for (id, pending) in &self.pending {
            let from_ms = if pending.owner.is_some() { claim_ms } else { 0 };
            if pending.at_ms + from_ms <= self.now_ms && !self.passed.contains(id) {
                found.push((pending.owner.is_some(), pending.at_ms, *id));
            }
        }
        found.sort_unstable();
        found.into_iter().map(|(_, _, id)| id).collect()
    }

    fn ask(&mut self, worker: usize, request: Request) {
        let got = self.read(worker, request);
        if got.is_none() && request.blocks {
            self.queue.push(Waiter { worker, request });
        } else {
            self.answers.push((worker, got));
        }
    }

    /// Serves who waits: in the order of arrival until one gets nothing, then those that claim
    /// earlier. Members that are due wake those with DUE first, but for a group that is resumed.
    fn serve(&mut self, is_resumed: bool) {
        let is_due = self.later.first().is_some_and(|(due_ms, _)| *due_ms <= self.wall_ms);
        if is_due && !is_resumed {
            self.serve_some(true);
        }
        self.serve_some(false);
        if is_resumed {
            self.serve_some(true);
        }
    }

    fn serve_some(&mut self, only_due: bool) {
        let mut is_in_order = true;
        loop {
            let waiting = self.queue.iter().enumerate();
            let of_kind = waiting.filter(|(_, waiter)| waiter.request.has_due || !only_due);
            let next = match is_in_order {
                true => of_kind.map(|(at, _)| at).next(),
                false => of_kind.min_by_key(|(_, it)| it.request.claim_ms).map(|(at, _)| at),
            };
            let Some(at) = next else { return };
            let Waiter { worker, request } = self.queue[at];
            match self.read(worker, request) {
                Some(got) => {
                    self.queue.remove(at);
                    self.answers.push((worker, Some(got)));
                }
                None if is_in_order => is_in_order = false,
                None => return,
            }
        }
    }

    fn is_owned(&self, id: Id, worker: usize, with_owner: bool) -> bool {
        let pending = self.pending.get(&id);
        pending.is_some_and(|pending| !with_owner || pending.owner == Some(worker))
    }

    /// 1: it was renewed.
    fn renew(&mut self, worker: usize, id: Id, with_owner: bool) -> i64 {
        if !self.is_owned(id, worker, with_owner) {
            return 0;
        }
        if !self.entries.contains_key(&id) {
            self.pending.remove(&id);
            return 0;
        }
        if let Some(pending) = self.pending.get_mut(&id) {
            (pending.owner, pending.at_ms) = (Some(worker), self.now_ms);
        }
        1
    }

    fn done(&mut self, worker: usize, id: Id, with_owner: bool) -> i64 {
        if !self.is_owned(id, worker, with_owner) {
            return -1;
        }
        self.pending.remove(&id);
        self.entries.remove(&id);
        1
    }

    fn release(&mut self, id: Id, mode: Mode, delay_ms: i64) {
        let at_ms = if delay_ms > 0 { self.now_ms + delay_ms } else { self.released };
        self.released += i64::from(delay_ms == 0);
        if let Some(pending) = self.pending.get_mut(&id) {
            let deliveries = match mode {
                Mode::Silent => (pending.deliveries - 1).max(0),
                Mode::Fail => pending.deliveries,
                Mode::Fatal => FATAL,
            };
            *pending = Pending { owner: None, at_ms, deliveries };
        }
    }

    fn nack(
        &mut self,
        (worker, id): (usize, Id),
        with_owner: bool,
        mode: Mode,
        delay_ms: i64,
    ) -> i64 {
        if !self.is_owned(id, worker, with_owner) {
            return 0;
        }
        if self.entries.contains_key(&id) {
            self.release(id, mode, delay_ms);
        } else {
            self.pending.remove(&id);
        }
        1
    }

    fn leave(&mut self, worker: usize) -> i64 {
        let own = self.pending.iter().filter(|(_, pending)| pending.owner == Some(worker));
        let own: Vec<Id> = own.map(|(id, _)| *id).collect();
        for id in &own {
            match self.entries.contains_key(id) {
                true => self.release(*id, Mode::Silent, 0),
                false => drop(self.pending.remove(id)),
            }
        }
        own.len() as i64
    }

    fn waits(&self, worker: usize) -> bool {
        self.queue.iter().any(|waiter| waiter.worker == worker)
    }
}

struct Author(fastrand::Rng);

impl Author {
    fn ms(&mut self) -> i64 {
        self.0.choice([1, 10, 50, 200, 1000]).unwrap_or(1) + self.0.i64(0..3)
    }

    /// A step of the wall clock. Smaller ones are taken for the jitter of reading two clocks.
    fn wall_ms(&mut self, most: i64) -> i64 {
        self.0.i64(3..most) * if self.0.bool() { 1 } else { -1 }
    }

    fn step(&mut self) -> Step {
        let worker = self.0.usize(..WORKERS);
        let job = self.0.usize(..1000);
        let with_owner = self.0.u32(..4) > 0;
        match self.0.u32(..60) {
            0..9 => Step::Add,
            9..14 => Step::AddLater(self.ms() - 5),
            14..30 => {
                let request = Request {
                    count: self.0.usize(1..4),
                    claim_ms: self.0.choice([20, 50, 200]).unwrap_or(20),
                    has_due: self.0.bool(),
                    has_limit: self.0.bool(),
                    blocks: self.0.u32(..3) > 0,
                };
                Step::Read(worker, request)
            }
            30..33 => Step::Renew(worker, job, with_owner),
            33..37 => Step::Done(worker, job, with_owner),
            37..43 => {
                let mode = [Mode::Silent, Mode::Fail, Mode::Fail, Mode::Fatal][self.0.usize(..4)];
                let has_delay = mode != Mode::Fatal && self.0.bool();
                let delay_ms = if has_delay { self.ms() } else { 0 };
                Step::Nack(worker, job, with_owner, mode, delay_ms)
            }
            43 => Step::Guarded(worker, job),
            44 => Step::Leave(worker),
            45 => Step::Close(worker),
            46 => Step::Pause(self.0.u32(..3) == 0),
            47 => Step::Delete(job),
            48 => Step::Redrive,
            49 => Step::RunNow(worker, job),
            50 => match self.0.bool() {
                true => Step::Reload,
                false => Step::Move(self.wall_ms(300)),
            },
            51..53 => Step::SetWallMs(self.wall_ms(2000)),
            _ => Step::PassMs(self.ms()),
        }
    }
}

fn text(id: Id) -> String {
    format!("{}-{}", id.0, id.1)
}

fn shown(got: &Option<Got>) -> String {
    let Some(got) = got else { return "nil".into() };
    let lines = got.iter().map(|(id, data, idle, deliveries)| {
        format!("{} {data} idle {idle} deliveries {deliveries}", text(*id))
    });
    lines.collect::<Vec<_>>().join(", ")
}

/// A reply of XREADGROUP in the same form.
fn told(reply: &Reply) -> String {
    let bulk = |reply: &Reply| match reply {
        Reply::Bulk(text) => String::from_utf8_lossy(text).into_owned(),
        other => other.show(),
    };
    let entry = |reply: &Reply| match reply {
        Reply::Array(parts) => match &parts[..] {
            [id, Reply::Array(fields), Reply::Integer(idle), Reply::Integer(deliveries)] => {
                let data = fields.get(1).map_or(String::new(), bulk);
                format!("{} {data} idle {idle} deliveries {deliveries}", bulk(id))
            }
            _ => reply.show(),
        },
        _ => reply.show(),
    };
    match reply {
        Reply::NullArray => "nil".into(),
        Reply::Array(streams) => match &streams[..] {
            [Reply::Array(stream)] => match &stream[..] {
                [_, Reply::Array(entries)] => {
                    entries.iter().map(entry).collect::<Vec<_>>().join(", ")
                }
                _ => reply.show(),
            },
            _ => reply.show(),
        },
        _ => reply.show(),
    }
}

fn line_of(worker: usize, request: Request) -> String {
    let Request { count, claim_ms, has_due, has_limit, blocks } = request;
    let mut line = format!("XREADGROUP GROUP g w{worker} COUNT {count} CLAIM {claim_ms}");
    line.push_str(if has_due { " DUE later UNIT MS" } else { "" });
    if has_limit {
        line.push_str(&format!(" MAXDELIVERIES {LIMIT} DEADLETTER dead"));
    }
    line.push_str(if blocks { " BLOCK 0" } else { "" });
    line + " STREAMS jobs >"
}

/// Runs a session; what goes wrong.
fn go_wrong(steps: &[Step]) -> Option<String> {
    let server = TestServer::start(&["enable-debug-command yes".to_owned()]);
    let mut workers: Vec<Client> = (0..WORKERS).map(|_| server.connect()).collect();
    let (mut other, mut mover) = (server.connect(), server.connect());
    let mut ask = |line: String| other.call(&line.split(' ').collect::<Vec<_>>());
    ask("XGROUP CREATE jobs g 0 MKSTREAM".into());
    let number = |reply: Reply| match reply {
        Reply::Integer(number) => number,
        Reply::Array(items) => match &items[..] {
            [Reply::Integer(number)] => *number,
            items => items.len() as i64,
        },
        reply => panic!("{}", reply.show()),
    };
    let mut model = Model::new();
    let mut jobs = 0;
    for (at, step) in steps.iter().enumerate() {
        let wrong = |what: String| Some(format!("step {at}, {step:?}: {what}"));
        let owner = |worker: usize, with: bool| match with {
            true => format!(" OWNER w{worker}"),
            false => String::new(),
        };
        // Which of the entries that were added.
        let added = model.added.clone();
        let entry = |job: usize| added.get(job % added.len().max(1)).copied();
        let mut compared = None;
        match *step {
            Step::Add => {
                jobs += 1;
                model.add(format!("job{jobs}"));
                ask(format!("XADD jobs * data job{jobs}"));
            }
            Step::AddLater(ms) => {
                jobs += 1;
                let due_ms = model.wall_ms + ms;
                model.later.insert((due_ms, format!("job{jobs}")));
                ask(format!("ZADD later NX {due_ms} job{jobs}"));
            }
            Step::Read(worker, request) if !model.waits(worker) => {
                let line = line_of(worker, request);
                workers[worker].send(&line.split(' ').collect::<Vec<_>>());
                model.ask(worker, request);
            }
            Step::Read(..) => continue,
            Step::Renew(worker, job, with) => {
                let Some(id) = entry(job) else { continue };
                let owner = owner(worker, with);
                let line = format!("XCLAIM jobs g w{worker} 0 {} JUSTID{owner}", text(id));
                compared = Some((number_of_items(ask(line)), model.renew(worker, id, with)));
            }
            Step::RunNow(worker, job) => {
                let Some(id) = entry(job) else { continue };
                // An entry with an owner is not idle for that long.
                let is_free = model.pending.get(&id).is_some_and(|it| it.owner.is_none());
                if !is_free {
                    continue;
                }
                let line = format!("XCLAIM jobs g w{worker} 99999999 {} JUSTID", text(id));
                compared = Some((number_of_items(ask(line)), model.renew(worker, id, false)));
            }
            Step::Done(worker, job, with) => {
                let Some(id) = entry(job) else { continue };
                let owner = owner(worker, with);
                let line = format!("XACKDEL jobs g ACKED{owner} IDS 1 {}", text(id));
                compared = Some((number(ask(line)), model.done(worker, id, with)));
            }
            Step::Nack(worker, job, with, mode, delay_ms) => {
                let Some(id) = entry(job) else { continue };
                let delay = match delay_ms {
                    0 => String::new(),
                    ms => format!(" DELAY {ms}"),
                };
                let mode_name = format!("{mode:?}").to_uppercase();
                let owner = owner(worker, with);
                let line = format!("XNACK jobs g {mode_name} IDS 1 {}{owner}{delay}", text(id));
                let expected = model.nack((worker, id), with, mode, delay_ms);
                compared = Some((number(ask(line)), expected));
            }
            Step::Guarded(worker, job) => {
                let Some(id) = entry(job) else { continue };
                let holds = i64::from(model.is_owned(id, worker, true));
                let line = format!("XGUARD jobs g w{worker} {}", text(id));
                compared = Some((number(ask(line)), holds));
            }
            Step::Leave(worker) => {
                let line = format!("XGROUP DELCONSUMER jobs g w{worker} RELEASE");
                compared = Some((number(ask(line)), model.leave(worker)));
            }
            Step::Close(worker) => {
                workers[worker] = server.connect();
                model.queue.retain(|waiter| waiter.worker != worker);
                server.settle();
            }
            Step::Pause(pauses) => {
                model.is_paused = pauses;
                let word = if pauses { "CREATECONSUMER" } else { "DELCONSUMER" };
                ask(format!("XGROUP {word} jobs g :paused"));
            }
            Step::Delete(job) => {
                let Some(id) = entry(job) else { continue };
                let was_there = i64::from(model.entries.remove(&id).is_some());
                compared = Some((number(ask(format!("XDEL jobs {}", text(id)))), was_there));
            }
            Step::Redrive => {
                let dead = std::mem::take(&mut model.dead);
                let count = dead.len() as i64;
                dead.into_iter().for_each(|(data, _)| model.add(data));
                compared = Some((number(ask("XREDRIVE dead jobs COUNT 1000".into())), count));
            }
            Step::Reload => {
                let reply = ask("DEBUG RELOAD".into());
                if reply != Reply::Simple(b"OK".to_vec()) {
                    return wrong(reply.show());
                }
                model.passed.clear();
            }
            Step::Move(ms) => {
                // The order of what becomes due and what is restored is not told.
                let until_ms = model.wall_ms + ms.max(0);
                if model.later.first().is_some_and(|(due_ms, _)| *due_ms <= until_ms) {
                    continue;
                }
                let Reply::Bulk(payload) = mover.call(&["DUMP", "jobs"]) else {
                    return wrong("no payload".into());
                };
                server.clock.step_wall_us(ms * 1000);
                model.wall_ms += ms;
                let reply = mover.call(&[&b"RESTORE"[..], b"jobs", b"0", &payload, b"REPLACE"]);
                if reply != Reply::Simple(b"OK".to_vec()) {
                    return wrong(reply.show());
                }
                model.passed.clear();
                let times = model.pending.values_mut().filter(|pending| pending.at_ms > 1_000_000);
                times.for_each(|pending| pending.at_ms -= ms);
            }
            Step::PassMs(ms) => {
                model.now_ms += ms;
                model.wall_ms += ms;
                server.clock.advance_us(ms * 1000);
            }
            Step::SetWallMs(ms) => {
                model.wall_ms += ms;
                server.clock.step_wall_us(ms * 1000);
            }
        }
        if let Some((said, expected)) = compared
            && said != expected
        {
            return wrong(format!("{said} instead of {expected}"));
        }
        model.serve(matches!(step, Step::Pause(false)));
        server.settle();
        for (worker, expected) in std::mem::take(&mut model.answers) {
            let said = workers[worker].try_message().map(|reply| told(&reply));
            if said.as_deref() != Some(&*shown(&expected)) {
                return wrong(format!("w{worker}: {said:?} instead of {}", shown(&expected)));
            }
        }
        for (worker, client) in workers.iter_mut().enumerate() {
            if let Some(said) = client.try_message() {
                return wrong(format!("w{worker} was told {}", told(&said)));
            }
        }
        let lengths = [
            ("XLEN jobs", model.entries.len()),
            ("XLEN dead", model.dead.len()),
            ("ZCARD later", model.later.len()),
        ];
        for (line, expected) in lengths {
            let said = number(ask(line.into()));
            if said != expected as i64 {
                return wrong(format!("{line}: {said} instead of {expected}"));
            }
        }
        let said = ask("XPENDING jobs g - + 10000".into());
        let lines = model.pending.iter().map(|(id, pending)| {
            let idle_ms = model.now_ms - pending.at_ms;
            let (name, idle_ms) = match pending.owner {
                Some(worker) => (format!("w{worker}"), idle_ms.max(0)),
                None => (String::new(), idle_ms.min(-1)),
            };
            format!("{} {name} {idle_ms} {}", text(*id), pending.deliveries)
        });
        let expected: Vec<String> = lines.collect();
        if pending_lines(&said) != expected {
            return wrong(format!("{:?} instead of {expected:?}", pending_lines(&said)));
        }
    }
    None
}

fn number_of_items(reply: Reply) -> i64 {
    match reply {
        Reply::Array(items) => items.len() as i64,
        reply => panic!("{}", reply.show()),
    }
}

fn pending_lines(reply: &Reply) -> Vec<String> {
    let Reply::Array(items) = reply else { return vec![reply.show()] };
    let line = |item: &Reply| match item {
        Reply::Array(parts) => match &parts[..] {
            [Reply::Bulk(id), Reply::Bulk(name), Reply::Integer(idle), Reply::Integer(count)] => {
                let text = String::from_utf8_lossy;
                format!("{} {} {idle} {count}", text(id), text(name))
            }
            _ => item.show(),
        },
        _ => item.show(),
    };
    items.iter().map(line).collect()
}

#[test]
fn jobs_are_handed_out_as_a_simple_model_says() {
    let steps = number_from("QUEUES_STEPS", 6000) as usize;
    let seed = seed("QUEUES_SEED");
    let mut author = Author(fastrand::Rng::with_seed(seed));
    for _ in 0..steps.div_ceil(SESSION) {
        let session: Vec<Step> = (0..SESSION).map(|_| author.step()).collect();
        if go_wrong(&session).is_none() {
            continue;
        }
        let short = shrink(session, 0, SHRINK_TRIES, |steps| go_wrong(steps).is_some());
        let lines: Vec<String> = short.iter().map(|step| format!("  {step:?}")).collect();
        let what = go_wrong(&short).unwrap_or_default();
        panic!("QUEUES_SEED={seed}: {what}\n{}", lines.join("\n"));
    }
}
