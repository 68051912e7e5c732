//! What is repeated elsewhere of random commands makes the same data there: on servers that repeat
//! it as a file is loaded and as a replica follows, at a later time, under limits that would refuse
//! the commands of clients, nothing differs but what cannot be told.
//!
//! `EFFECTS_COMMANDS` is how many commands a run has, `EFFECTS_SEED` repeats one. What differs is
//! reduced to a short session.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crate::support::grammar::{Generator, Rule, parse, rules};
use crate::support::{Client, Reply, TestServer, encode, number_from, quote, seed, shrink};

/// Commands from one emptying of the servers to the next.
const EPOCH: usize = 1_000;
/// Sent at once.
const BATCH: usize = 50;
/// Clients that wait, besides the one that does not.
const WAITING: usize = 3;
/// Databases in use.
const DATABASES: usize = 3;
/// Attempts to make a session shorter.
const SHRINK_TRIES: usize = 300;

/// What the grammar lacks: chance, time, several databases, and what only newer servers know. SPOP
/// takes all or not nearly all: the few that it leaves of many get the smallest encoding, which the
/// SREMs for it do not give, here as in Redis.
const MORE: &str = "
*8 SPOP s [ 0|1|2|3|4|1000 ]
*4 SELECT 0|1|2
*2 SWAPDB 0|1|2 0|1|2
*4 MOVE k 0|1|2
*4 COPY k k DB 0|1|2 [ REPLACE ]
*1 FLUSHALL
*8 SET t v [ NX|XX ] [ GET ] [ KEEPTTL ]
*12 SET t v [ XX ] [ GET ] EX|PX 1|2|5|30|100|5000
*4 SET t v [ XX ] EXAT 1700000001|1700000004|1700000100
*4 SET t v IFEQ|IFNE v [ KEEPTTL ]
*4 DELEX t IFEQ v
*2 DELIFEQ t v
*2 SETNX t v
*4 GETSET t v
*4 GETDEL t
*6 GETEX t [ PERSIST ]
*6 GETEX t EX|PX 1|2|5|30|5000
*4 GETEX t PXAT 1|1700000001000|1700000900000
*4 PSETEX t 2|5|30|5000 v
*4 MSETEX 2 t v t v EX|PX 3|40
*2 MSETEX 1 t v KEEPTTL
*2 MSETNX t v t v
*12 EXPIRE k 0|1|2|5|100 [ NX|XX|GT|LT ]
*12 PEXPIRE k 1|2|5|30|5000 [ NX|XX|GT|LT ]
*6 PEXPIREAT k 1|1700000001000|1700000004000|1700000100000 [ GT|LT ]
*4 PERSIST k
*8 HEXPIRE h 0|1|3|100 [ NX|XX|GT|LT ] FIELDS 1 f
*8 HPEXPIRE h 1|5|30|5000 FIELDS 2 f f
*4 HPEXPIREAT h 1|1700000003000|1700000300000 FIELDS 3 f f f
*4 HPERSIST h FIELDS 2 f f
*4 HSETEX h [ NX|XX ] [ FNX|FXX ] [ KEEPTTL ] FIELDS 2 f v f v
*8 HSETEX h EX|PX 2|40|7000 FIELDS 2 f v f v
*2 HSETEX h PXAT 1|1700000004000 FIELDS 1 f v
*4 HGETEX h EX|PX 2|40 FIELDS 2 f f
*2 HGETEX h PXAT 1 FIELDS 1 f
*4 HGETEX h PERSIST FIELDS 2 f f
*4 HGETDEL h FIELDS 2 f f
*6 HINCRBYFLOAT h f d
*6 XADD x [ MAXLEN ~ p [ LIMIT c ] ] * f v
*4 XADD x MINID ~ id * f v
*4 XTRIM x MAXLEN ~ p LIMIT p
*8 XREADGROUP GROUP grp con [ COUNT p ] [ NOACK ] STREAMS x x > >
*6 XREADGROUP GROUP grp con [ COUNT p ] STREAMS x 0
*6 XCLAIM x grp con 0|10 < id > [ IDLE p ] [ TIME 1700000000000|1 ] [ RETRYCOUNT c ] [ FORCE ] [ JUSTID ] [ LASTID id ]
*4 XAUTOCLAIM x grp con 0|5 0 [ COUNT p ] [ JUSTID ]
*4 XGROUP CREATE x grp $ [ MKSTREAM ] [ ENTRIESREAD c ]
*4 ZADD z < 1|1700000000|1700000002|1700000009 m >
*4 ZPOPDUE z [ COUNT p ]
*6 LOCK.ACQUIRE LK1|LK2|t O1|O2|O3 PX 5|40|5000 [ REENTRANT ]
*9 LOCK.ACQUIRE LK1|LK2|LK3|t O1|O2|O3 PX 5|40|5000 SHARED
*3 LOCK.ACQUIRE LK3 O1|O2|O3 PX 5|40|5000 SHARED
*6 LOCK.RELEASE LK1|LK2|LK3|t O1|O2|O3 [ ALL ] [ KEEP 20|3000 ]
*3 LOCK.RENEW 2 LK1 LK2 O1|O2 PX 50|4000
*3 LOCK.RENEW 1 LK3 O1|O2 PX 50|4000
*3 LOCK.MACQUIRE 2 LK1 LK2 O1|O2 PX 50|900
*1 LOCK.BREAK LK1|LK2|LK3
*2 DEL LK1|LK2|SM
*1 HDEL LK3 :r:O1|:r:O2
*1 COPY LK3 LK1 REPLACE
*6 SEM.ACQUIRE SM|z O1|O2|O3 LIMIT 1|2|4 PX 5|40|5000 [ COUNT 2 ]
*4 PFCOUNT g2 g3
*8 PFADD t < m >
*8 PFCOUNT t
*4 PFMERGE t t
*6 BITFIELD t SET u8 c p INCRBY i5 p p
*4 SORT u|q BY nosort STORE q
*1 SETRANGE t 1048576 v
*1 SETBIT t 8388608 1
*1 BITFIELD t SET u8 8388608 1
*1 APPEND t v
*6 SORT u|y|q BY t* [ LIMIT c p ] [ DESC ] ALPHA STORE q
*4 SORT u BY none* [ LIMIT c p ] ALPHA STORE q
*4 SORT u GET # GET t* GET h*->f ALPHA STORE q
*4 GEOSEARCHSTORE z g FROMLONLAT lon lat BYRADIUS r km COUNT p [ ANY ] [ STOREDIST ]
*2 GEORADIUS g lon lat r km COUNT p [ ANY ] STORE z
";

/// Those that wait, sent by clients that do nothing else; also in transactions and scripts.
const BLOCKING: &str = "
BLPOP l l 0
BRPOP l l 0
BLMOVE l l LEFT|RIGHT LEFT|RIGHT 0
BRPOPLPUSH l l 0
BLMPOP 0 #l LEFT|RIGHT [ COUNT p ]
BZPOPMIN z z 0
BZPOPMAX z z 0
BZMPOP 0 #z MIN|MAX [ COUNT p ]
BZPOPDUE z z 0
BZMOVEDUE z l 0 [ COUNT p ] [ LEFT|RIGHT ]
XREADGROUP GROUP grp con BLOCK 0 [ NOACK ] STREAMS x x > >
LOCK.ACQUIRE LK1|LK2|LK3 O1|O2|O3 PX 5|40|5000 BLOCK 0
LOCK.ACQUIRE LK1|LK2|LK3 O1|O2|O3 PX 5|40|5000 SHARED BLOCK 0
LOCK.MACQUIRE 2 LK1 LK2 O1|O2|O3 PX 5|40|5000 BLOCK 0
SEM.ACQUIRE SM O1|O2|O3 LIMIT 1|2 PX 5|40|5000 BLOCK 0
";

/// Runs the commands that its arguments are, each behind their number.
pub const SCRIPT: &str = "local i = 1 while i <= #ARGV do local n = tonumber(ARGV[i]) \
                      redis.pcall(unpack(ARGV, i + 1, i + n)) i = i + n + 1 end";

type Args = Vec<Vec<u8>>;

#[derive(Clone, Debug)]
enum Step {
    Send(Args),
    Transaction(Vec<Args>),
    /// By a client that waits if need be; whoever waited under this number gives up.
    Wait(usize, Args),
    PassMs(i64),
}

fn words(text: &str) -> Args {
    text.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

/// Makes up sessions.
struct Author {
    commands: Generator,
    waits: Generator,
}

impl Author {
    fn new(seed: u64, rules: Vec<Rule>) -> Self {
        let waits = Generator::new(seed + 1, parse(BLOCKING));
        Author { commands: Generator::new(seed, rules), waits }
    }

    /// One for a transaction or a script, where nothing waits.
    fn command(&mut self) -> Args {
        match self.commands.random.u32(..40) {
            0 => self.waits.request().args,
            _ => self.commands.request().args,
        }
    }

    fn session(&mut self) -> Vec<Step> {
        let mut steps = Vec::new();
        self.commands.stream_ms = 1;
        while steps.len() < EPOCH {
            match self.commands.random.u32(..60) {
                0..2 => steps.push(Step::PassMs(self.commands.random.i64(1..1500))),
                2 => steps.push(Step::PassMs(1)),
                3..6 => {
                    let args = self.waits.request().args;
                    steps.push(Step::Wait(self.commands.random.usize(..WAITING), args));
                }
                6 => {
                    let count = self.commands.random.usize(..6);
                    steps.push(Step::Transaction((0..count).map(|_| self.command()).collect()));
                }
                7 => {
                    let mut args = words("EVAL script 0");
                    args[1] = SCRIPT.into();
                    for _ in 0..self.commands.random.usize(..5) {
                        let command = self.command();
                        args.push(command.len().to_string().into_bytes());
                        args.extend(command);
                    }
                    steps.push(Step::Send(args));
                }
                _ => steps.push(Step::Send(self.commands.request().args)),
            }
        }
        steps
    }
}

/// Settings of the servers that repeat, as narrow as they come: limits are for clients.
const NARROW: &[&str] = &[
    "proto-max-bulk-len 1mb",
    "script-source-limit 1kb",
    "script-memory-limit 1mb",
    "min-replicas-to-write 3",
    "maxmemory 1mb",
    "maxmemory-policy noeviction",
    "replica-ignore-maxmemory no",
    "stream-node-max-entries 1",
    "busy-reply-threshold 1",
    "busy-script-policy rollback",
];
/// Those of a server that leaves busy scripts to its clients.
const PATIENT: &[&str] = &["busy-reply-threshold 1"];
/// Bytes of a stream that such a server takes from a client as one argument.
const PART: usize = 500_000;
/// How they repeat: as a file is loaded, and as a primary is followed.
const WAYS: [&str; 2] = ["LOAD", "FOLLOW"];

/// The server whose changes are repeated, and those they are repeated on.
struct Servers {
    servers: [TestServer; 3],
    clients: [Client; 3],
    /// Requests run on each of the others, and keys compared.
    repeated: i64,
    compared: usize,
}

impl Servers {
    fn start() -> Self {
        let narrow: Vec<String> = NARROW.iter().map(|line| (*line).to_owned()).collect();
        let servers = [&[][..], &narrow[..], &narrow[..]].map(TestServer::start);
        let clients = [0, 1, 2].map(|index| servers[index].connect());
        for server in &servers[1..] {
            server.clock.advance_us(77_000_000);
            server.clock.step_wall_us(-77_000_000);
        }
        Servers { servers, clients, repeated: 0, compared: 0 }
    }

    /// Runs a session; what differs then.
    fn differ(&mut self, steps: &[Step], later_ms: i64) -> Option<String> {
        for (server, client) in self.servers.iter().zip(&mut self.clients) {
            *client = server.connect();
            client.call(&["DEBUG", "EFFECTS", "OFF"]);
            // Where writes are refused.
            client.call(&[b"DEBUG", &b"EFFECTS"[..], b"LOAD", &encode(&["FLUSHALL"])]);
            // Some sessions' changes are repeated as Valkey does.
            let whose = if later_ms % 3 == 0 { "valkey-9" } else { "redis-7.2" };
            client.call(&["CONFIG", "SET", "compatible-with", whose]);
        }
        self.clients[0].call(&["DEBUG", "EFFECTS", "ON"]);
        let start_ms = self.servers[0].clock_ms();
        // Absolute times in commands mean the same in each session.
        self.servers[0].step_wall((crate::support::START.0 - start_ms) * 1000);
        // Every other session's keys expire when commands meet them, and not before.
        let expires = if later_ms % 2 == 0 { "1" } else { "0" };
        self.clients[0].call(&["DEBUG", "SET-ACTIVE-EXPIRE", expires]);
        self.run(steps);
        self.clients[0].call(&["DEBUG", "SET-ACTIVE-EXPIRE", "1"]);
        let stream = match self.clients[0].call(&["DEBUG", "EFFECTS", "TAKE"]) {
            Reply::Bulk(stream) => stream,
            reply => panic!("no stream: {}", reply.show()),
        };
        for (index, way) in (1..).zip(WAYS) {
            let ms = self.servers[0].clock_ms() + later_ms - self.servers[index].clock_ms();
            self.servers[index].step_wall(ms * 1000);
            // In parts, as the limits of these servers are for clients.
            let mut request = vec![&b"DEBUG"[..], b"EFFECTS", way.as_bytes()];
            request.extend(stream.chunks(PART));
            request.resize(request.len().max(4), b"");
            match self.clients[index].call(&request) {
                Reply::Integer(requests) => self.repeated += requests,
                reply => return Some(format!("{way}: not repeated: {}", reply.show())),
            }
        }
        self.servers[0].advance(later_ms * 1000);
        self.servers.iter().for_each(TestServer::settle);
        let [ours, ..] = &mut self.clients;
        let ours = told(ours);
        for (index, way) in (1..).zip(WAYS) {
            let theirs = told(&mut self.clients[index]);
            self.compared += ours.len();
            let different = ours.iter().zip(&theirs).find(|(ours, theirs)| ours != theirs);
            if let Some((ours, theirs)) = different {
                return Some(format!("here: {ours}\n{way}: {theirs}\n{}", show(&stream)));
            }
            if ours.len() != theirs.len() {
                return Some(format!("{way}: other keys\n{}", show(&stream)));
            }
        }
        None
    }

    fn run(&mut self, steps: &[Step]) {
        let server = &self.servers[0];
        let mut waiting: Vec<Option<Client>> = (0..WAITING).map(|_| None).collect();
        let client = &mut self.clients[0];
        let mut sent = 0;
        let settle = |client: &mut Client, sent: &mut usize| {
            for _ in 0..std::mem::take(sent) {
                client.reply().expect("the server answers");
            }
        };
        for step in steps {
            match step {
                Step::Send(args) => {
                    client.send(args);
                    sent += 1;
                    if sent >= BATCH {
                        settle(client, &mut sent);
                    }
                }
                Step::Transaction(commands) => {
                    client.send(&["MULTI"]);
                    commands.iter().for_each(|args| client.send(args));
                    client.send(&["EXEC"]);
                    sent += commands.len() + 2;
                }
                Step::Wait(number, args) => {
                    settle(client, &mut sent);
                    waiting[*number] = None;
                    server.settle();
                    let mut one = server.connect();
                    one.send(args);
                    server.settle();
                    waiting[*number] = Some(one);
                }
                Step::PassMs(ms) => {
                    settle(client, &mut sent);
                    server.advance(1000 * ms);
                }
            }
        }
        settle(client, &mut sent);
        drop(waiting);
        server.settle();
    }
}

fn show(stream: &[u8]) -> String {
    let text = String::from_utf8_lossy(stream).into_owned();
    let words = text.split("\r\n").filter(|word| !word.starts_with('$'));
    words
        .map(|word| if word.starts_with('*') { "\n  " } else { word })
        .collect::<Vec<_>>()
        .join(" ")
}

/// All that can be told of a server's data, a line for each key.
fn told(client: &mut Client) -> Vec<String> {
    let mut lines = Vec::new();
    let text = |reply: &Reply| match reply {
        Reply::Bulk(bytes) => bytes.clone(),
        _ => Vec::new(),
    };
    client.call(&["RESET"]);
    for database in 0..DATABASES {
        client.call(&["SELECT", &database.to_string()]);
        let Reply::Array(keys) = client.call(&["KEYS", "*"]) else { panic!("no keys") };
        let mut keys: Vec<Vec<u8>> = keys.iter().map(text).collect();
        keys.sort();
        for key in &keys {
            let mut ask = |args: &[&[u8]]| client.call(args);
            let kind = ask(&[b"TYPE", key]).show();
            let mut encoding = ask(&[b"OBJECT", b"ENCODING", key]).show();
            // That of a string tells how it was made, not what it is, here as in Redis:
            // INCRBYFLOAT's integers are none to OBJECT, those of the SET that stands for it are; a
            // SETBIT that changes no bit makes a string raw.
            if kind == "string" {
                encoding.clear();
            }
            let deadline = ask(&[b"PEXPIRETIME", key]).show();
            let digest = ask(&[b"DEBUG", b"DIGEST-VALUE", key]).show();
            let mut line =
                format!("{database} {} {kind} {encoding} {deadline} {digest}", quote(key));
            if kind == "hash" {
                let Reply::Array(fields) = ask(&[b"HKEYS", key]) else { panic!("no fields") };
                let mut fields: Vec<Vec<u8>> = fields.iter().map(text).collect();
                fields.sort();
                let count = fields.len().to_string();
                let mut args: Vec<&[u8]> = vec![b"HPEXPIRETIME", key, b"FIELDS", count.as_bytes()];
                args.extend(fields.iter().map(Vec::as_slice));
                line.push_str(&ask(&args).show().replace('\n', " "));
            }
            if kind == "stream" {
                let mut full = ask(&[b"XINFO", b"STREAM", key, b"FULL", b"COUNT", b"0"]);
                forget_times(&mut full);
                line.push_str(&full.show().replace('\n', " "));
            }
            lines.push(line);
        }
    }
    lines.push(client.call(&["DEBUG", "DIGEST"]).show());
    lines
}

/// When a consumer was last seen is not repeated; nor is how the entries lie in memory.
fn forget_times(reply: &mut Reply) {
    let Reply::Array(items) = reply else { return };
    let names = [&b"seen-time"[..], b"active-time", b"radix-tree-keys", b"radix-tree-nodes"];
    let mut forgets = false;
    for item in items {
        if std::mem::take(&mut forgets) {
            *item = Reply::Null;
        }
        forgets = matches!(item, Reply::Bulk(name) if names.contains(&name.as_slice()));
        forget_times(item);
    }
}

#[test]
fn what_is_repeated_elsewhere_makes_the_same_data_there() {
    let seed = seed("EFFECTS_SEED");
    let commands = number_from("EFFECTS_COMMANDS", 20_000) as usize;
    println!("EFFECTS_SEED={seed} EFFECTS_COMMANDS={commands}");
    let mut rules = rules();
    rules.extend(parse(MORE));
    let mut author = Author::new(seed, rules);
    let mut pair = Servers::start();
    let mut sent = 0;
    while sent < commands {
        let steps = author.session();
        sent += steps.len();
        let later_ms = author.commands.random.i64(0..4000);
        if pair.differ(&steps, later_ms).is_none() {
            continue;
        }
        let short = shrink(steps, 0, SHRINK_TRIES, |steps| pair.differ(steps, later_ms).is_some());
        for step in &short {
            match step {
                Step::Send(args) => println!("  {}", line(args)),
                Step::Transaction(commands) => {
                    println!("  MULTI");
                    commands.iter().for_each(|args| println!("  {}", line(args)));
                    println!("  EXEC");
                }
                Step::Wait(number, args) => println!("  {number}> {}", line(args)),
                Step::PassMs(ms) => println!("  (pass {ms} ms)"),
            }
        }
        match pair.differ(&short, later_ms) {
            Some(difference) => println!("{later_ms} ms later:\n{difference}"),
            None => println!("(but not each time)"),
        }
        panic!("a difference after {sent} commands, see above");
    }
    let Servers { repeated, compared, .. } = pair;
    println!("{sent} commands repeated by {repeated} requests, {compared} keys compared");
}

/// What may stand in a file or in a primary's stream and would be refused from a client under
/// narrow limits.
fn repeated_anywhere() -> Vec<Vec<String>> {
    let long = "v".repeat(100_000);
    let library = format!(
        "#!lua name=l\n--{long}\nredis.register_function('f', function(keys, args) local t = {{}} \
         for i = 1, 100000 do t[i] = i end for i = 1, 3000000 do t[1] = i end return redis.call('set', args[1], t[1]) end)"
    );
    let table: [&[&str]; 16] = [
        &["XADD", "x", "MAXLEN", "=", "3", "LIMIT", "10", "1-1", "f", "v"],
        &["XADD", "x", "MAXLEN", "=", "1", "LIMIT", "10", "1-2", "f", "v"],
        &["XADD", "x", "MINID", "=", "1-2", "LIMIT", "0", "1-3", "f", "v"],
        &["XADD", "x", "MAXLEN", "~", "100", "LIMIT", "1", "1-4", "f", "v"],
        &["XTRIM", "x", "MAXLEN", "=", "2", "LIMIT", "1"],
        &["XTRIM", "x", "MINID", "=", "1-4", "LIMIT", "0"],
        &["SETRANGE", "long", "1100000", "v"],
        &["APPEND", "long", "v"],
        &["SETBIT", "bits", "9000000", "1"],
        &["BITFIELD", "fields", "SET", "u8", "9000000", "1"],
        &["FUNCTION", "LOAD", &library],
        &["FCALL", "f", "0", "by-function"],
        &["EVAL", "return redis.call('set', 'by-script', 1)", "0"],
        &["EVAL", "#!lua\nreturn redis.call('set', 'by-flagged', 1)", "0"],
        &["EVAL_RO", "return redis.call('get', 'by-script')", "0"],
        &["MULTI"],
    ];
    table.iter().map(|words| words.iter().map(|word| (*word).to_owned()).collect()).collect()
}

/// A client that would end whatever script keeps a server busy.
struct Killer {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Killer {
    fn start(server: &TestServer) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let (theirs, mut client) = (is_over.clone(), server.connect());
        let thread = std::thread::spawn(move || {
            while !theirs.load(Ordering::Relaxed) {
                for kind in ["SCRIPT", "FUNCTION"] {
                    client.call(&[kind, "KILL"]);
                }
            }
        });
        Killer { is_over, thread }
    }

    fn end(self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().expect("the server answers");
    }
}

#[test]
fn limits_are_for_clients_and_not_for_what_is_repeated() {
    let stale = ["replica-serve-stale-data no"];
    let narrow_and_stale = [NARROW, &stale[..]].concat();
    let mut digests = Vec::new();
    for lines in [PATIENT, NARROW, &narrow_and_stale[..]] {
        let lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        for way in WAYS {
            let server = TestServer::start(&lines);
            let mut client = server.connect();
            let killer = Killer::start(&server);
            if lines.len() > NARROW.len() {
                // Nobody is there.
                client.call(&["REPLICAOF", "127.0.0.1", "1"]);
            }
            for words in repeated_anywhere() {
                let stream = encode(&words);
                let request = [&b"DEBUG"[..], b"EFFECTS", way.as_bytes(), &stream];
                let reply = client.call(&request);
                assert_eq!(reply, Reply::Integer(1), "{way} {lines:?}: {:.60}", words.join(" "));
            }
            client.call(&["REPLICAOF", "NO", "ONE"]);
            assert_eq!(client.call(&["XRANGE", "x", "-", "+"]).show().matches("1-").count(), 1);
            digests.push(client.call(&["DEBUG", "DIGEST"]));
            killer.end();
        }
    }
    assert!(digests.iter().all(|digest| *digest == digests[0]), "{digests:?}");
}

fn line(args: &Args) -> String {
    args.iter().map(|arg| quote(arg)).collect::<Vec<_>>().join(" ")
}
