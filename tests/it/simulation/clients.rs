//! The clients of a simulation: who writes, who waits, who reads, and what each may expect of what
//! it is answered.

use std::collections::{BTreeMap, VecDeque};

use super::connection::Connection;
use super::kinds::Kinds;
use super::world::{MS, NODES, SECOND, World};
use crate::support::grammar::{Generator, Rule, parse, rules};
use crate::support::{Reply, encode, quote};

/// The database of what is checked; those of the grammar are below.
pub const CHECKED: &str = "9";
const DATABASES: usize = 3;
const REGISTERS: usize = 2;
const PAIRS: u32 = 2;
const LOCKS: u32 = 2;
const EXPIRING: u32 = 3;
/// Clocks of different servers are not further apart than this, but for steps, and a turn does not
/// take longer.
const MARGIN_US: i64 = 2 * SECOND;

/// Commands that the shared grammar leaves out: chance, time, scripts, functions.
const MORE: &str = "
*6 SPOP s [ c ]
*4 EXPIRE k p
*4 PEXPIRE k r
*4 SET t v PX r
*4 SET t v EX p GET
*4 GETEX t PX r
*4 GETEX t PERSIST
*2 XADD x * f v
*2 HEXPIRE h p FIELDS 1 f
*2 COPY k k [ REPLACE ]
*2 SWAPDB 0|1|2 0|1|2
*2 MOVE k 0|1|2
*2 INCRBYFLOAT t d
ZUNIONSTORE z 2 z z|s WEIGHTS p p [ AGGREGATE SUM|MIN|MAX|COUNT ]
ZINTERSTORE z 2 z z|s WEIGHTS p p [ AGGREGATE SUM|MIN|MAX|COUNT ]
*6 EVAL local(r)=redis.call('SPOP',KEYS[1])redis.call('APPEND',KEYS[2],tostring(r))return(r) 2 s t
*4 EVAL redis.call('SET',KEYS[1],redis.call('TIME')[2])return(redis.pcall(unpack(ARGV))) 1 t LPUSH l v v
*4 EVAL redis.call('RPUSH',KEYS[1],1,2)return(redis.call('GET',KEYS[1])) 1 l
*1 EVAL for(i)=1,40(do)redis.call('RPUSH',KEYS[1],i)end 1 l
";

/// Options that the shared grammar leaves out: what they do depends on how and where a key is kept.
const OPTIONS: &str = "
*3 XADD x MAXLEN ~ c LIMIT c * f v
*3 XTRIM x MAXLEN ~ c LIMIT c
*3 SORT u BY nosort LIMIT 0 c STORE q
*3 SORT y ALPHA BY nosort STORE q
*3 SORT q BY g* ALPHA STORE q
*3 SORT u BY g* ALPHA LIMIT 0 c STORE q
";

/// What a run's grammars are made of.
pub fn grammar(kinds: Kinds) -> Vec<Rule> {
    let mut all = rules();
    // A weight below zero makes a negative zero of a score, which a skiplist keeps and a listpack
    // does not, as in Redis.
    all.retain(|rule| !rule.words.iter().any(|word| word == "WEIGHTS"));
    all.extend(parse(MORE));
    if kinds.contains(Kinds::OPTIONS) {
        all.extend(parse(OPTIONS));
    }
    all
}

/// What a reply is to.
enum Expect {
    /// Nothing to be learnt from it.
    Any,
    /// A write whose loss would be noticed: its number, and how much of the stream there was before
    /// it and how much it adds.
    Write { number: u64, before: (String, u64), bytes: u64 },
    /// WAIT behind it.
    Wait,
    /// WAIT later: the last write may have been thrown away meanwhile.
    WaitLater,
    /// SET NX or LOCK.ACQUIRE of a lock: which, its token, and until when it is held at least.
    Lock { lock: u32, token: u64, until_us: i64 },
    /// SET of a key that expires after so long.
    Expiring { token: u64, ms: i64 },
    /// MGET of pairs and expiring keys, asked for at this time.
    Read { at_us: i64 },
}

enum Kind {
    /// Commands of the grammar.
    Grammar(Box<Generator>),
    /// A number that only grows, with WAIT for all.
    Register(usize),
    /// Two keys that always change together.
    Pair,
    Lock,
    /// Commands that wait for others.
    Blocking,
    /// Reads of one server what must never be seen.
    Reader(usize),
}

struct Actor {
    kind: Kind,
    connection: Option<Connection>,
    expects: VecDeque<Expect>,
    /// The write that the next WAIT is about, once it is done, and how much of which history there
    /// was then.
    written: Option<(u64, String, u64)>,
    /// The number of the connection's last write that was done, which other servers' data may have
    /// replaced since.
    last: Option<u64>,
    locked: Option<(u32, u64, i64)>,
    next_us: i64,
}

/// What is known to have been acknowledged.
#[derive(Default)]
struct Known {
    counter: u64,
    /// By register: the last number that all replicas have acknowledged.
    registers: [u64; REGISTERS],
    /// By register: the last number that was answered, and by whom.
    answered: [(u64, usize); REGISTERS],
    /// By lock: token, and until when its holder may rely on it.
    locks: BTreeMap<u32, (u64, i64)>,
    /// By token: when the key that has it is gone.
    gone_us: BTreeMap<u64, i64>,
}

pub struct Clients {
    actors: Vec<Actor>,
    known: Known,
    /// Keys may be evicted.
    may_lack: bool,
    pub waits_for_all: u64,
    pub waits_later: u64,
    pub reads: u64,
    pub writes: u64,
}

impl Clients {
    pub fn new(seed: u64, kinds: Kinds) -> Self {
        let grammar = |number: u64| {
            Kind::Grammar(Box::new(Generator::new(seed ^ (number << 56), grammar(kinds))))
        };
        let mut actors = vec![grammar(1), grammar(2), Kind::Pair, Kind::Lock, Kind::Lock];
        actors.extend((0..REGISTERS).map(Kind::Register));
        actors.extend((0..NODES).map(Kind::Reader));
        actors.extend([Kind::Blocking, Kind::Blocking]);
        let actors = actors.into_iter().map(|kind| Actor {
            kind,
            connection: None,
            expects: VecDeque::new(),
            written: None,
            last: None,
            locked: None,
            next_us: 0,
        });
        let known = Known::default();
        Clients {
            actors: actors.collect(),
            known,
            may_lack: false,
            waits_for_all: 0,
            waits_later: 0,
            reads: 0,
            writes: 0,
        }
    }

    /// Takes replies and sends more, to `primary` unless it is a read.
    pub fn act(&mut self, world: &mut World, primary: usize, rests: bool) {
        for index in 0..self.actors.len() {
            self.take(world, index);
            let actor = &mut self.actors[index];
            if actor.connection.as_ref().is_some_and(|connection| connection.has_ended) {
                actor.leave();
            }
            let is_free = actor.expects.is_empty() && world.now_us >= actor.next_us;
            if !rests && is_free {
                self.send(world, index, primary);
            }
        }
    }

    /// Nothing that was acknowledged is promised any more.
    pub fn forget_promises(&mut self) {
        self.may_lack = true;
        self.known.locks.clear();
    }

    /// Whether nobody waits for a reply.
    pub fn are_at_rest(&self) -> bool {
        self.actors.iter().all(|actor| actor.expects.is_empty())
    }

    /// What a primary must hold that was gone and came back, with a log that is synced before
    /// anything is answered.
    pub fn check_answered(&self, world: &mut World, primary: usize) {
        world.ask(primary, &["SELECT", CHECKED]);
        for (register, &(number, node)) in self.known.answered.iter().enumerate() {
            let shown = world.show(primary, &["GET", &format!("register:{register}")]);
            let held = shown.trim_matches('"').parse::<u64>().unwrap_or(0);
            if node == primary && held < number && shown != "(ended)" && !self.lacks(&shown) {
                world.fail(&format!(
                    "register {register}: server {primary} has answered {number}, and has {shown}"
                ));
            }
        }
    }

    /// Another server has become the primary: what one had answered before it may have lost by
    /// then.
    pub fn forget_answered(&mut self) {
        self.known.answered = Default::default();
    }

    /// What a primary must hold. To be called when it has just taken over, and at quiet moments.
    pub fn check_registers(&self, world: &mut World, primary: usize) {
        world.ask(primary, &["SELECT", CHECKED]);
        for (register, &acknowledged) in self.known.registers.iter().enumerate() {
            let shown = world.show(primary, &["GET", &format!("register:{register}")]);
            let held = shown.trim_matches('"').parse::<u64>().unwrap_or(0);
            if held < acknowledged && shown != "(ended)" && !self.lacks(&shown) {
                world.fail(&format!(
                    "register {register}: all replicas have acknowledged {acknowledged}, primary {primary} has {shown}"
                ));
            }
        }
    }

    /// Whether it may have been evicted.
    fn lacks(&self, shown: &str) -> bool {
        self.may_lack && shown == "(nil)"
    }

    // ---- replies --------------------------------------------------------------------------------

    fn take(&mut self, world: &mut World, index: usize) {
        let actor = &mut self.actors[index];
        let Some(connection) = &mut actor.connection else { return };
        let node = connection.node;
        for reply in connection.take() {
            let Some(expect) = actor.expects.pop_front() else {
                // The error that ends a connection.
                continue;
            };
            world.trace.note(|| format!("client {index} {node} {}", reply.show()));
            let refused = matches!(reply, Reply::Error(_));
            match expect {
                Expect::Any if refused => {
                    let text = reply.show();
                    if ["READONLY", "MASTERDOWN", "LOADING"].iter().any(|word| text.contains(word))
                    {
                        actor.next_us = world.now_us + 50 * MS;
                    }
                }
                Expect::Any => {}
                Expect::Write { number, before: (id, offset), bytes } => {
                    if !refused && reply != Reply::NullBulk {
                        actor.last = Some(number);
                    }
                    let now = world.is_up(node).then(|| world.history(node));
                    actor.written = match now {
                        Some((now_id, now))
                            if !refused && reply != Reply::NullBulk && now_id == id =>
                        {
                            Some((number, id, now.min(offset + bytes)))
                        }
                        _ => None,
                    };
                    if let (Some((number, ..)), Kind::Register(register)) =
                        (&actor.written, &actor.kind)
                    {
                        self.known.answered[*register] = (*number, node);
                    }
                    actor.next_us = if refused { world.now_us + 100 * MS } else { 0 };
                }
                Expect::WaitLater => {
                    let (Reply::Integer(1..), Some(number)) = (&reply, actor.last) else {
                        continue;
                    };
                    let Kind::Register(register) = actor.kind else { continue };
                    self.waits_later += 1;
                    check_wait(world, node, register, number, self.may_lack);
                }
                Expect::Lock { lock, token, until_us } => {
                    let is_granted = match &reply {
                        Reply::Array(told) => matches!(told[..], [Reply::Integer(1..), _, _]),
                        told => *told == Reply::Simple(b"OK".to_vec()),
                    };
                    actor.locked = is_granted.then_some((lock, token, until_us));
                }
                Expect::Wait => {
                    let Reply::Integer(count) = reply else { continue };
                    if let Some((number, then, offset)) = actor.written.take()
                        && world.is_up(node)
                    {
                        // The first replica, and the loss of the last for long, give a history
                        // another name.
                        let (id, _) = world.history(node);
                        let really = world.others_with(node, [&id, &then], offset);
                        if count as usize > really {
                            world.fail(&format!(
                                "WAIT told client {index} of server {node} {count}, and {really} have {id} up to {offset}"
                            ));
                        }
                        if count as usize >= NODES - 1
                            && let Kind::Register(register) = actor.kind
                        {
                            self.waits_for_all += 1;
                            let known = &mut self.known.registers[register];
                            *known = number.max(*known);
                        }
                    }
                    if let Some((lock, token, until_us)) = actor.locked.take()
                        && count as usize >= NODES - 1
                        && !self.may_lack
                    {
                        self.known.take_lock(world, lock, token, until_us);
                    }
                }
                Expect::Expiring { token, ms } => {
                    if !refused {
                        self.known.gone_us.insert(token, world.now_us + ms * MS + MARGIN_US);
                    }
                }
                Expect::Read { at_us } => {
                    self.reads += 1;
                    self.known.check_read(world, node, at_us, &reply, self.may_lack);
                }
            }
        }
    }

    // ---- requests -------------------------------------------------------------------------------

    fn send(&mut self, world: &mut World, index: usize, primary: usize) {
        let Clients { actors, known, .. } = self;
        let actor = &mut actors[index];
        let wanted = if let Kind::Reader(node) = actor.kind { node } else { primary };
        let is_stale = |connection: &Connection| {
            connection.life != world.nodes[connection.node].life || connection.has_ended
        };
        // Most find out at once where the primary is, and some later.
        // One stays with a former primary, which may be one again.
        let stays = matches!(actor.kind, Kind::Register(1));
        let patience = if stays { 2000 } else { 60 };
        let moves = actor.connection.as_ref().is_none_or(|connection| {
            is_stale(connection) || connection.node != wanted && world.random.u32(..patience) == 0
        });
        if moves {
            actor.leave();
            let Some(mut connection) = world.connect(wanted) else {
                actor.next_us = world.now_us + 20 * MS;
                return;
            };
            let database = match actor.kind {
                Kind::Grammar(_) => world.random.usize(..DATABASES).to_string(),
                Kind::Blocking => "0".into(),
                _ => CHECKED.into(),
            };
            connection.send(&["SELECT", &database]);
            actor.expects.push_back(Expect::Any);
            actor.connection = Some(connection);
        }
        let Some(connection) = &mut actor.connection else { return };
        let expects = &mut actor.expects;
        let random = &mut world.random;
        self.writes += 1;
        match &mut actor.kind {
            Kind::Grammar(generator) => {
                let count = random.usize(1..8);
                let as_one = random.u32(..4) == 0;
                let mut requests: Vec<Vec<Vec<u8>>> =
                    (0..count).map(|_| generator.request().args).collect();
                // Any number may stand for another one; this database is not theirs.
                let is_swap = |args: &[Vec<u8>]| args[0].eq_ignore_ascii_case(b"SWAPDB");
                requests.retain(|args| {
                    !is_swap(args) || args.iter().all(|arg| arg != CHECKED.as_bytes())
                });
                if as_one {
                    requests.insert(0, vec![b"MULTI".to_vec()]);
                    requests.push(vec![b"EXEC".to_vec()]);
                }
                for request in requests {
                    world.trace.note(|| {
                        let words = request.iter().map(|word| quote(word));
                        format!("send {index} {}", words.collect::<Vec<_>>().join(" "))
                    });
                    connection.send(&request);
                    expects.push_back(Expect::Any);
                }
            }
            Kind::Register(_)
                if actor.last.is_some() && random.u32(..if stays { 2 } else { 8 }) == 0 =>
            {
                // ALL asks for what the server has written, whoever asks.
                let wanted = ["1", "2"][random.usize(..2)];
                connection.send(&["WAIT", wanted, &random.u32(1..800).to_string()]);
                expects.push_back(Expect::WaitLater);
                actor.next_us = world.now_us + i64::from(world.random.u32(..1000)) * MS;
            }
            Kind::Register(register) => {
                known.counter += 1;
                let number = known.counter;
                let (key, value) = (format!("register:{register}"), number.to_string());
                let node = connection.node;
                let set = ["SET", &key, &value];
                let bytes = encode(&set).len() as u64;
                match random.u32(..4) {
                    0 => {
                        let script = "return redis.call('SET', KEYS[1], ARGV[1])";
                        connection.send(&["EVAL", script, "1", &key, &value]);
                    }
                    1 => {
                        for words in [&["MULTI"][..], &set, &["INCR", "other"]] {
                            connection.send(words);
                            expects.push_back(Expect::Any);
                        }
                        connection.send(&["EXEC"]);
                    }
                    _ => connection.send(&set),
                }
                let waits = !stays || random.bool();
                let before = match world.nodes[node].server.as_ref().map(|server| server.history())
                {
                    Some((id, offset)) => (id.to_owned(), offset),
                    None => return,
                };
                expects.push_back(Expect::Write { number, before, bytes });
                if waits {
                    let wanted = ["1", "2", "ALL"][world.random.usize(..3)];
                    connection.send(&["WAIT", wanted, &world.random.u32(1..800).to_string()]);
                    expects.push_back(Expect::Wait);
                }
                // Whoever waits is sent away when the server is no primary any more.
                let pause_ms = if waits { 100 } else { 5000 };
                actor.next_us = world.now_us + i64::from(world.random.u32(..pause_ms)) * MS;
            }
            Kind::Pair => {
                known.counter += 1;
                let value = known.counter.to_string();
                let pair = random.u32(..PAIRS);
                let (one, other) = (format!("pair:{pair}:a"), format!("pair:{pair}:b"));
                if random.bool() {
                    let script = "redis.call('SET', KEYS[1], ARGV[1]) redis.call('LPUSH', 'between', ARGV[1]) \
                                  redis.call('LTRIM', 'between', 0, 50) redis.call('SET', KEYS[2], ARGV[1])";
                    connection.send(&["EVAL", script, "2", &one, &other, &value]);
                    expects.push_back(Expect::Any);
                } else {
                    for words in [
                        &["MULTI"][..],
                        &["SET", &one, &value],
                        &["SPOP", "chance", "3"],
                        &["SADD", "chance", "1", "2", "3", "4", "5", &value],
                        &["SET", &other, &value],
                        &["EXEC"],
                    ] {
                        connection.send(words);
                        expects.push_back(Expect::Any);
                    }
                }
                // Keys that expire, each with a value of its own.
                known.counter += 1;
                let (token, ms) = (known.counter, i64::from(random.u32(1..3000)));
                let key = format!("expiring:{}", random.u32(..EXPIRING));
                connection.send(&["SET", &key, &token.to_string(), "PX", &ms.to_string()]);
                expects.push_back(Expect::Expiring { token, ms });
            }
            Kind::Lock => {
                known.counter += 1;
                let (token, lock) = (known.counter, random.u32(..LOCKS));
                let ms = i64::from(random.u32(200..3000));
                let (key, value) = (format!("lock:{lock}"), token.to_string());
                let is_native = world.kinds.contains(Kinds::LOCKS) && random.bool();
                match is_native {
                    true => connection.send(&["LOCK.ACQUIRE", &key, &value, "PX", &ms.to_string()]),
                    false => connection.send(&["SET", &key, &value, "NX", "PX", &ms.to_string()]),
                }
                let wanted = if random.bool() { "2" } else { "ALL" };
                connection.send(&["WAIT", wanted, &random.u32(1..500).to_string()]);
                let until_us = world.now_us + ms * MS - MARGIN_US / 20;
                expects.extend([Expect::Lock { lock, token, until_us }, Expect::Wait]);
                if random.u32(..3) == 0 {
                    // Whoever holds it gives it up from time to time.
                    let held = known.locks.get(&lock).copied();
                    if let Some((token, _)) = held {
                        known.locks.remove(&lock);
                        if world.kinds.contains(Kinds::LOCKS) {
                            // Both kinds are its to give up.
                            connection.send(&["LOCK.RELEASE", &key, &token.to_string()]);
                        } else {
                            let script = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end";
                            connection.send(&["EVAL", script, "1", &key, &token.to_string()]);
                        }
                        expects.push_back(Expect::Any);
                    }
                }
                actor.next_us = world.now_us + i64::from(random.u32(..200)) * MS;
            }
            Kind::Blocking => {
                let seconds = ["0.05", "0.3", "1"][random.usize(..3)];
                let number = |random: &mut fastrand::Rng| random.u32(..4).to_string();
                let (one, other) = (number(random), number(random));
                let [l, z, x] = ["l", "z", "x"].map(|kind| format!("{kind}{one}"));
                let m = format!("l{other}");
                let words: Vec<&str> = match random.u32(..8) {
                    0 => vec!["BLPOP", &l, &m, seconds],
                    1 => vec!["BRPOP", &l, seconds],
                    2 => vec!["BLMOVE", &l, &m, "LEFT", "RIGHT", seconds],
                    3 => vec!["BLMPOP", seconds, "2", &l, &m, "LEFT", "COUNT", "2"],
                    4 => vec!["BZPOPMIN", &z, seconds],
                    5 => vec!["BZMPOP", seconds, "1", &z, "MAX", "COUNT", "3"],
                    6 => vec![
                        "XREADGROUP",
                        "GROUP",
                        "grp0",
                        "con0",
                        "COUNT",
                        "1",
                        "BLOCK",
                        "300",
                        "STREAMS",
                        &x,
                        ">",
                    ],
                    _ => vec!["BRPOPLPUSH", &l, &m, seconds],
                };
                connection.send(&words);
                expects.push_back(Expect::Any);
            }
            Kind::Reader(_) => {
                let pairs = (0..PAIRS)
                    .flat_map(|pair| [format!("pair:{pair}:a"), format!("pair:{pair}:b")]);
                let expiring = (0..EXPIRING).map(|key| format!("expiring:{key}"));
                let mut words = vec!["MGET".to_owned()];
                words.extend(pairs.chain(expiring));
                connection.send(&words);
                expects.push_back(Expect::Read { at_us: world.now_us });
                actor.next_us = world.now_us + i64::from(random.u32(..60)) * MS;
            }
        }
    }
}

/// Whether a primary that has counted replicas for a write has that write itself.
fn check_wait(world: &mut World, node: usize, register: usize, number: u64, may_lack: bool) {
    if !world.is_up(node) || world.info(node).get("role").is_none_or(|role| role != "master") {
        return;
    }
    world.ask(node, &["SELECT", CHECKED]);
    let shown = world.show(node, &["GET", &format!("register:{register}")]);
    let held = shown.trim_matches('"').parse::<u64>().unwrap_or(0);
    let is_evicted = may_lack && shown == "(nil)";
    // It may be no primary any more.
    let is_told = shown != "(ended)" && !shown.starts_with("(error)");
    if held < number && is_told && !is_evicted {
        world.fail(&format!(
            "WAIT counted replicas for {number} in register {register}, and server {node} itself has {shown}"
        ));
    }
}

impl Actor {
    fn leave(&mut self) {
        self.connection = None;
        self.expects.clear();
        (self.written, self.locked, self.last) = (None, None, None);
    }
}

impl Known {
    /// All replicas have acknowledged that somebody has a lock. Where nobody sets clocks nobody
    /// else has it.
    fn take_lock(&mut self, world: &World, lock: u32, token: u64, until_us: i64) {
        if world.has_steps || until_us <= world.now_us {
            return;
        }
        if let Some(&(holder, held_us)) = self.locks.get(&lock)
            && holder != token
            && held_us > world.now_us
        {
            world.fail(&format!(
                "lock {lock} is granted to {token}, and {holder} holds it for another {} us",
                held_us - world.now_us
            ));
        }
        self.locks.insert(lock, (token, until_us));
    }

    fn check_read(&self, world: &World, node: usize, at_us: i64, reply: &Reply, may_lack: bool) {
        let Reply::Array(values) = reply else { return };
        let (pairs, expiring) = values.split_at(2 * PAIRS as usize);
        for (number, pair) in pairs.chunks(2).enumerate() {
            let is_evicted = may_lack && pair.contains(&Reply::NullBulk);
            if pair[0] != pair[1] && !is_evicted {
                let (one, other) = (pair[0].show(), pair[1].show());
                world.fail(&format!(
                    "half a transaction on server {node}: pair {number} is {one} and {other}"
                ));
            }
        }
        for value in expiring {
            let Reply::Bulk(token) = value else { continue };
            let token = String::from_utf8_lossy(token).parse::<u64>().unwrap_or(0);
            let gone_us = self.gone_us.get(&token).copied().unwrap_or(i64::MAX);
            if !world.has_steps && at_us > gone_us {
                let late_us = at_us - gone_us + MARGIN_US;
                world.fail(&format!(
                    "server {node} shows {token}, which has expired {late_us} us ago"
                ));
            }
        }
    }
}
