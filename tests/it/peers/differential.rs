//! A random stream of commands, sent to two servers, gets equal replies: from this server and a
//! real one, from this server with and without small encodings, and where expired keys are met by
//! commands and where they are gone before.
//!
//! The first two need a peer that runs already, `DIFFERENTIAL_PEER=host:port`, and are left out
//! otherwise: `make peer` names one and runs them with `--include-ignored`. A run is repeated by
//! its seed: `DIFFERENTIAL_SEED`; its length is `DIFFERENTIAL_COMMANDS`.
//! `DIFFERENTIAL_ONLY=SET,GET` keeps to some commands. Commands come from the grammar in
//! `differential/grammar.txt`. The stream is cut into epochs that begin with empty servers and end
//! with a comparison of all data (`DEBUG DIGEST`), every other one in RESP3. What differs is
//! reduced to a short session that shows it.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::support::derived::Grammar;
use crate::support::grammar::{FILLERS, Generator, Order, Request, Rule, parse, rules};
use crate::support::{Client, Reply, TestServer, number_from, quote, seed, shrink, split_args};

/// Commands from one emptying of the servers to the next.
const EPOCH: usize = 2_000;
/// Sent at once.
const BATCH: usize = 100;
/// Sessions shown before the test gives up.
const FAULTS_MAX: usize = 12;
/// Attempts to make a session shorter.
const SHRINK_TRIES: usize = 400;

/// Commands with several keys that the grammar does not have, those that wait within a script,
/// where they do not. For streams of which keys expire.
const SEVERAL_KEYS: &str = "
*40 RENAME k|fill k|fill
*20 RENAMENX k|fill k|fill
*40 COPY k|fill k|fill [ REPLACE ]
*20 MSETNX t|fill v t|fill v
*20 MGET < t|fill >
*20 EXISTS < k|fill >
*20 DEL k < k|fill >
*20 APPEND fill v
*20 SET fill v GET
*20 GETDEL fill
*80 LMOVE l|fill l|fill LEFT|RIGHT LEFT|RIGHT
*40 RPOPLPUSH l|fill l|fill
*40 SMOVE s|fill s|fill m
~ *20 SINTER s|fill s|fill s|fill
~ *20 SUNION s|fill s|fill s|fill
*20 SDIFFSTORE s|fill s s|fill
*20 ZUNIONSTORE z|fill 2 z|fill z|fill
*20 ZRANGESTORE fill z 0 -1
*20 BITOP OR t|fill t|fill t|fill
*20 LCS t|fill t|fill
*20 PFMERGE g|fill g|fill g|fill
*20 SORT fill|l ALPHA BY fill GET fill|t STORE fill|l
= *40 EVAL return(redis.pcall(unpack(ARGV))) 0 BLMOVE l|fill l|fill LEFT|RIGHT LEFT|RIGHT 0
= *40 EVAL return(redis.pcall(unpack(ARGV))) 0 BRPOPLPUSH l|fill l|fill 0
= *20 EVAL return(redis.pcall(unpack(ARGV))) 0 BLPOP l|fill l|fill l 0
= *20 EVAL return(redis.pcall(unpack(ARGV))) 0 BZPOPMIN z|fill z|fill 0
= *20 EVAL redis.pcall('GET',KEYS[1])return(redis.pcall(unpack(ARGV))) 1 k|fill RENAME k|fill k|fill
";
/// Such a one that only this server knows.
const SEVERAL_KEYS_HERE: &str = "
= *40 EVAL return(redis.pcall(unpack(ARGV))) 0 BZMOVEDUE z l|fill 0
";

/// Commands and options that Redis 8.6.3 has, and 7.0 lacks. The IDs that streams make up do not
/// depend on the time, since the last ID is later. Fields have no deadlines that stay: the digest
/// of the data has them, and they depend on the time.
const OF_REDIS_8: &str = "
*8 SET t v IFEQ|IFNE v [ GET ] [ KEEPTTL ]
*4 SET t v IFDEQ|IFDNE 0123456789abcdef [ GET ]
DELEX t [ IFEQ|IFNE v ]
DIGEST t
= *6 MSETEX 2 t v t v [ NX|XX ] [ KEEPTTL ]
MSETEX 1 t v t v
= HGETDEL h FIELDS 2 f f
= HGETEX h FIELDS 2 f f [ PERSIST ]
= HSETEX h [ FNX|FXX ] FIELDS 2 f v f v [ KEEPTTL ]
= HEXPIRE h 0 [ NX|LT ] FIELDS 2 f f [ NX ]
= HPERSIST h FIELDS 2 f f
*8 XACKDEL x grp [ KEEPREF|DELREF|ACKED ] IDS 1|2 id id
*8 XDELEX x [ KEEPREF|DELREF|ACKED ] IDS 1|2 id id
XTRIM x MAXLEN|MINID = p KEEPREF|DELREF|ACKED
XADD x [ KEEPREF|DELREF|ACKED ] [ MAXLEN = p ] newid f v
= *4 XADD w 99999999999999-0 f v
= *30 XADD w NOMKSTREAM IDMP con v [ MAXLEN = p ] * f v
= *20 XADD w IDMPAUTO con NOMKSTREAM * < f v >
XCFGSET w IDMP-MAXSIZE|IDMP-DURATION p
XIDMPRECORD w con v id
XDEL w id
XLEN w
";

/// Stands in a session for milliseconds that pass.
const PASS: &str = "(pass)";

/// How time passes in a session.
enum Time {
    /// Not that it mattered.
    Unseen,
    /// By the clocks of both servers. The first deletes nothing by itself, the second all that is
    /// due.
    Moved([TestServer; 2]),
    /// By itself for the second, which cannot be told; by its clock for the first.
    Real(TestServer),
}

/// The two servers.
struct Pair {
    ours: Client,
    theirs: Client,
    time: Time,
}

impl Pair {
    fn reset(&mut self, protocol: &str) {
        for client in [&mut self.ours, &mut self.theirs] {
            client.call(&["FLUSHALL"]);
            client.call(&["HELLO", protocol]);
        }
        match self.time {
            Time::Unseen => return,
            Time::Moved(_) => {}
            Time::Real(_) => drop(self.theirs.call(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"])),
        }
        self.ours.call(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]);
    }

    fn pass(&self, request: &Request) {
        let ms =
            std::str::from_utf8(&request.args[1]).expect("a number").parse().expect("a number");
        match &self.time {
            Time::Unseen => {}
            Time::Moved(servers) => servers.iter().for_each(|it| it.advance(1000 * ms as i64)),
            Time::Real(ours) => {
                std::thread::sleep(Duration::from_millis(ms));
                ours.advance(1000 * ms as i64);
            }
        }
    }

    /// The replies of both to some requests.
    fn run(&mut self, requests: &[Request]) -> (Vec<Reply>, Vec<Reply>) {
        let mut replies = (Vec::new(), Vec::new());
        let is_pass = |request: &Request| request.args[0] == PASS.as_bytes();
        let parts = requests.chunk_by(|request, next| !is_pass(request) && !is_pass(next));
        for batch in parts.flat_map(|part| part.chunks(BATCH)) {
            if is_pass(&batch[0]) {
                self.pass(&batch[0]);
                replies.0.push(Reply::Null);
                replies.1.push(Reply::Null);
                continue;
            }
            for (client, replies) in
                [(&mut self.ours, &mut replies.0), (&mut self.theirs, &mut replies.1)]
            {
                batch.iter().for_each(|request| client.send(&request.args));
                for request in batch {
                    let reply = client.reply();
                    let reply = reply.unwrap_or_else(|| panic!("cut off at {}", show(request)));
                    replies.push(in_order(reply, request.order));
                }
            }
        }
        replies
    }

    fn digests(&mut self) -> (Reply, Reply) {
        if let Time::Moved(servers) = &self.time {
            self.ours.call(&["DEBUG", "SET-ACTIVE-EXPIRE", "1"]);
            servers.iter().for_each(TestServer::settle);
        }
        if let Time::Real(_) = self.time {
            // Which expired keys have been met is not the same: a command with two faults meets its
            // keys first, or not.
            let kinds = "hlszxgtyqu".chars();
            let mut names: Vec<String> = kinds
                .flat_map(|kind| (0..4).map(move |number| format!("{kind}{number}")))
                .collect();
            names.extend((0..FILLERS + 200).map(|number| format!("fill:{number}")));
            names.insert(0, "EXISTS".into());
            self.ours.call(&names);
            self.theirs.call(&names);
        }
        (self.ours.call(&["DEBUG", "DIGEST"]), self.theirs.call(&["DEBUG", "DIGEST"]))
    }

    /// Whether the session still shows a difference at its end, and the two replies.
    fn differ(&mut self, session: &[Request], protocol: &str) -> Option<(Reply, Reply)> {
        self.reset(protocol);
        let (ours, theirs) = self.run(session);
        let (ours, theirs) = (ours.last()?.clone(), theirs.last()?.clone());
        (ours != theirs).then_some((ours, theirs))
    }
}

fn in_order(reply: Reply, order: Order) -> Reply {
    let sorted = |mut items: Vec<Reply>| {
        items.sort_by_cached_key(|item| format!("{item:?}"));
        items
    };
    match (reply, order) {
        (Reply::Array(items), Order::Any) => Reply::Array(sorted(items)),
        (Reply::Set(items), Order::Any) => Reply::Set(sorted(items)),
        (Reply::Array(items), Order::Pairs) => {
            let pairs = items.chunks(2).map(|pair| Reply::Array(pair.to_vec())).collect();
            Reply::Array(sorted(pairs))
        }
        (Reply::Map(mut pairs), Order::Any | Order::Pairs) => {
            pairs.sort_by_cached_key(|pair| format!("{pair:?}"));
            Reply::Map(pairs)
        }
        (reply, _) => reply,
    }
}

fn show(request: &Request) -> String {
    let words = request.args.iter().map(|arg| match std::str::from_utf8(arg) {
        Ok(text) if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic()) => {
            text.to_owned()
        }
        _ => quote(arg),
    });
    words.collect::<Vec<_>>().join(" ")
}

/// The next commands of a stream: one, or some that shake the tables.
fn next(generator: &mut Generator, time: &Time, session: &mut Vec<Request>) {
    let mut add = |args| session.push(Request { order: Order::Exact, args });
    let words = |text: String| text.split(' ').map(|word| word.as_bytes().to_vec()).collect();
    let kind = if matches!(time, Time::Unseen) { u32::MAX } else { generator.random.u32(..60) };
    let random = &mut generator.random;
    match kind {
        // Keys get deadlines and then some of them are over. Each key once, and no other command
        // before the time has passed: no reply depends on how fast a server is.
        0..4 => {
            let kinds = random.choose_multiple("hlszxgtyqu".chars(), 4).into_iter();
            let mut keys: Vec<String> =
                kinds.map(|kind| format!("{kind}{}", random.u32(..4))).collect();
            let (first, count) = (random.u32(..FILLERS), random.u32(..150));
            keys.extend((first..first + count).map(|number| format!("fill:{number}")));
            random.shuffle(&mut keys);
            for key in keys {
                let ms = match time {
                    Time::Real(_) => *random.choice(&[1, 1, 100_000]).expect("some"),
                    _ => random.u32(1..=20),
                };
                add(words(format!("PEXPIRE {key} {ms}")));
            }
            let ms = if matches!(time, Time::Real(_)) { 4 } else { random.u32(1..8) };
            add(words(format!("{PASS} {ms}")));
        }
        4 | 5 => {
            let (first, count) = (random.u32(..FILLERS), random.u32(1..200));
            let name = if kind == 4 { "MSET" } else { "DEL" };
            let value = if kind == 4 { " filled" } else { "" };
            let keys = (first..first + count).map(|number| format!(" fill:{number}{value}"));
            add(words(format!("{name}{}", keys.collect::<String>())));
        }
        _ => session.push(generator.request()),
    }
}

/// Sends commands to both and shows what differs. Panics if anything does.
fn compare(mut pair: Pair, seed: u64, commands: usize, mut rules: Vec<Rule>) {
    println!("DIFFERENTIAL_SEED={seed} DIFFERENTIAL_COMMANDS={commands}");
    let only = std::env::var("DIFFERENTIAL_ONLY").unwrap_or_default();
    rules.retain(|rule| only.is_empty() || only.split(',').any(|name| rule.words[0] == name));
    let mut generator = Generator::new(seed, rules);
    let mut faults = 0;
    let mut known: Vec<Vec<u8>> = Vec::new();
    let mut sent = 0;
    while sent < commands && faults < FAULTS_MAX {
        let protocol = if (sent / EPOCH).is_multiple_of(2) { "2" } else { "3" };
        pair.reset(protocol);
        generator.stream_ms = 1;
        let mut session = Vec::with_capacity(EPOCH);
        while session.len() < EPOCH {
            next(&mut generator, &pair.time, &mut session);
        }
        let (ours, theirs) = pair.run(&session);
        sent += session.len();
        let mut different = (0..session.len()).find(|&index| ours[index] != theirs[index]);
        if different.is_none() {
            let (ours, theirs) = pair.digests();
            if ours != theirs {
                let args = split_args("DEBUG DIGEST");
                session.push(Request { order: Order::Exact, args });
                different = Some(session.len() - 1);
            }
        }
        let Some(index) = different else { continue };
        faults += 1;
        // One session for each command is enough to begin with.
        let name = session[index].args[0].to_ascii_lowercase();
        if known.contains(&name) {
            continue;
        }
        session.truncate(index + 1);
        let short =
            shrink(session, 1, SHRINK_TRIES, |steps| pair.differ(steps, protocol).is_some());
        let lines: Vec<String> = short.iter().map(show).collect();
        println!("RESP{protocol}, seed {seed}:\n  {}", lines.join("\n  "));
        match pair.differ(&short, protocol) {
            Some((ours, theirs)) => {
                println!("first:\n{}\nsecond:\n{}\n", ours.show(), theirs.show())
            }
            None => println!("(but not each time)\n"),
        }
        known.push(name);
    }
    println!("{sent} commands compared");
    assert_eq!(faults, 0, "differences in {sent} commands, see above");
}

#[test]
#[ignore = "needs a peer: make peer"]
fn a_random_stream_of_commands_gets_the_replies_of_the_real_server() {
    let seed = seed("DIFFERENTIAL_SEED");
    let commands = number_from("DIFFERENTIAL_COMMANDS", 200_000) as usize;
    let (server, theirs, _alone) = beside_the_peer();
    let pair = Pair { ours: server.connect(), theirs, time: Time::Unseen };
    compare(pair, seed, commands, rules());
}

#[test]
#[ignore = "needs a Redis 8.6.3: make peer-redis8"]
fn a_random_stream_of_newer_commands_gets_the_replies_of_redis_8() {
    let Ok(peer) = std::env::var("DIFFERENTIAL_REDIS8") else { return };
    let peer: SocketAddr = peer.parse().expect("host:port");
    let seed = seed("DIFFERENTIAL_SEED");
    let commands = number_from("DIFFERENTIAL_COMMANDS", 50_000) as usize;
    let _alone = PEER.lock().unwrap_or_else(PoisonError::into_inner);
    let server = TestServer::start(&["compatible-with redis-8".into()]);
    let pair = Pair { ours: server.connect(), theirs: Client::connect(peer), time: Time::Unseen };
    let mut rules = rules();
    // Encodings and the texts of doubles differ, as docs/differences.md says.
    rules.retain(|rule| {
        let has_doubles =
            rule.words.iter().any(|word| word.split('|').any(|word| "zyg".contains(word)));
        !has_doubles && !matches!(&*rule.words[0], "OBJECT" | "XINFO")
    });
    rules.extend(parse(OF_REDIS_8));
    compare(pair, seed, commands, rules);
}

#[test]
#[ignore = "needs a peer: make peer"]
fn keys_that_live_for_milliseconds_are_those_of_the_real_server() {
    let seed = seed("DIFFERENTIAL_SEED");
    let commands = number_from("DIFFERENTIAL_COMMANDS", 50_000) as usize;
    let (server, theirs, _alone) = beside_the_peer();
    let mut rules = rules();
    rules.retain(|rule| rule.words[0] != "DBSIZE");
    rules.extend(parse(SEVERAL_KEYS));
    let pair = Pair { ours: server.connect(), theirs, time: Time::Real(server) };
    compare(pair, seed, commands, rules);
}

#[test]
#[ignore = "needs a peer: make peer"]
fn every_option_that_the_real_server_documents_is_documented_here() {
    let (server, mut theirs, _alone) = beside_the_peer();
    let mut ours = server.connect();
    let [ours, theirs] = [&mut ours, &mut theirs].map(|client| {
        client.call(&["HELLO", "2"]);
        Grammar::new(&client.call(&["COMMAND", "DOCS"]), &client.call(&["COMMAND"]))
    });
    let mut missing = Vec::new();
    for command in &theirs.commands {
        let Some(here) = ours.commands.iter().find(|here| here.name == command.name) else {
            missing.push(command.name.clone());
            continue;
        };
        let known = ours.tokens_of(here);
        let tokens = theirs.tokens_of(command).into_iter().filter(|token| !known.contains(token));
        missing.extend(tokens.map(|token| format!("{} {token}", command.name)));
    }
    assert!(theirs.commands.len() > 300, "{} commands", theirs.commands.len());
    assert!(missing.is_empty(), "not documented: {missing:?}");
}

/// The tests that use the peer, which empty it, one at a time.
static PEER: Mutex<()> = Mutex::new(());

/// A server that says it is Redis 7.0.15, and a client of the real one, which nobody else uses for
/// as long.
fn beside_the_peer() -> (TestServer, Client, MutexGuard<'static, ()>) {
    let alone = PEER.lock().unwrap_or_else(PoisonError::into_inner);
    let peer = std::env::var("DIFFERENTIAL_PEER").expect("DIFFERENTIAL_PEER names a server");
    let peer: SocketAddr = peer.parse().expect("host:port");
    (TestServer::start(&["redis-version 7.0.15".into()]), Client::connect(peer), alone)
}

#[test]
fn a_key_that_has_expired_unseen_is_as_one_that_is_gone() {
    let servers = [(); 2].map(|()| TestServer::start(&[]));
    let [ours, theirs] = [&servers[0], &servers[1]].map(TestServer::connect);
    let pair = Pair { ours, theirs, time: Time::Moved(servers) };
    let mut rules = rules();
    // Of keys that have expired and still lie there the one server has more.
    rules.retain(|rule| !matches!(&*rule.words[0], "DBSIZE" | "FLUSHDB"));
    rules.extend(parse(SEVERAL_KEYS));
    rules.extend(parse(SEVERAL_KEYS_HERE));
    let seed = seed("DIFFERENTIAL_SEED");
    let commands = number_from("DIFFERENTIAL_COMMANDS", 30_000) as usize;
    compare(pair, seed, commands, rules);
}

#[test]
fn replies_do_not_depend_on_encodings() {
    let small = TestServer::start(&[]);
    let large: Vec<String> = [
        "hash-max-listpack-entries 2",
        "list-max-listpack-size 3",
        "set-max-intset-entries 2",
        "set-max-listpack-entries 3",
        "zset-max-listpack-entries 2",
    ]
    .map(String::from)
    .to_vec();
    let large = TestServer::start(&large);
    let pair = Pair { ours: small.connect(), theirs: large.connect(), time: Time::Unseen };
    let mut rules = rules();
    rules.retain(|rule| rule.words[0] != "OBJECT");
    // A negative zero, which weights can make of a score, survives in a skiplist and not in a
    // listpack: as in Redis.
    rules.retain(|rule| !rule.words.iter().any(|word| word == "WEIGHTS"));
    let seed = seed("DIFFERENTIAL_SEED");
    let commands = number_from("DIFFERENTIAL_COMMANDS", 20_000) as usize;
    compare(pair, seed, commands, rules);
}
