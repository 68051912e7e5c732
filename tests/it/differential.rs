//! A random stream of commands, sent to two servers, gets equal replies: from this server and a real one, and from this server
//! with and without small encodings.
//!
//! The first needs a peer that runs already, `DIFFERENTIAL_PEER=host:port`, and is left out otherwise: `make peer` names one and
//! runs it with `--include-ignored`.
//! A run is repeated by its seed: `DIFFERENTIAL_SEED`; its length is `DIFFERENTIAL_COMMANDS`. `DIFFERENTIAL_ONLY=SET,GET`
//! keeps to some commands. Commands come from the grammar in `differential/grammar.txt`. The stream is cut into epochs that begin with empty servers and end with a comparison
//! of all data (`DEBUG DIGEST`), every other one in RESP3. What differs is reduced to a short session that shows it.

use std::net::SocketAddr;

use crate::support::grammar::{Generator, Order, Request, Rule, rules};
use crate::support::{Client, Reply, TestServer, quote, split_args};

/// Commands from one emptying of the servers to the next.
const EPOCH: usize = 2_000;
/// Sent at once.
const BATCH: usize = 100;
/// Sessions shown before the test gives up.
const FAULTS_MAX: usize = 12;
/// Attempts to make a session shorter.
const SHRINK_TRIES: usize = 400;

/// The two servers.
struct Pair {
    ours: Client,
    theirs: Client,
}

impl Pair {
    fn reset(&mut self, protocol: &str) {
        for client in [&mut self.ours, &mut self.theirs] {
            client.call(&["FLUSHALL"]);
            client.call(&["HELLO", protocol]);
        }
    }

    /// The replies of both to some requests.
    fn run(&mut self, requests: &[Request]) -> (Vec<Reply>, Vec<Reply>) {
        let mut replies = (Vec::new(), Vec::new());
        for batch in requests.chunks(BATCH) {
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
        (self.ours.call(&["DEBUG", "DIGEST"]), self.theirs.call(&["DEBUG", "DIGEST"]))
    }

    /// Whether the session still shows a difference at its end, and the two replies.
    fn differ(&mut self, session: &[Request], protocol: &str) -> Option<(Reply, Reply)> {
        self.reset(protocol);
        let (ours, theirs) = self.run(session);
        let (ours, theirs) = (ours.last()?.clone(), theirs.last()?.clone());
        (ours != theirs).then_some((ours, theirs))
    }

    /// A shorter session with the same last command that shows a difference too.
    fn shrink(&mut self, mut session: Vec<Request>, protocol: &str) -> Vec<Request> {
        let mut tries = SHRINK_TRIES;
        let mut chunk = session.len() / 2;
        while chunk > 0 && tries > 0 {
            let mut start = 0;
            while start + 1 < session.len() && tries > 0 {
                let end = (start + chunk).min(session.len() - 1);
                let shorter = [&session[..start], &session[end..]].concat();
                tries -= 1;
                if self.differ(&shorter, protocol).is_some() {
                    session = shorter;
                } else {
                    start = end;
                }
            }
            chunk /= 2;
        }
        session
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

fn number_from(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect("a number"))
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
        let mut session: Vec<Request> = (0..EPOCH).map(|_| generator.request()).collect();
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
        let short = pair.shrink(session, protocol);
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
    let peer = std::env::var("DIFFERENTIAL_PEER").expect("DIFFERENTIAL_PEER names a server");
    let peer: SocketAddr = peer.parse().expect("host:port");
    let seed = number_from("DIFFERENTIAL_SEED", fastrand::u64(..1 << 32));
    let commands = number_from("DIFFERENTIAL_COMMANDS", 200_000) as usize;
    let server = TestServer::start(&["redis-version 7.0.15".into()]);
    let pair = Pair { ours: server.connect(), theirs: Client::connect(peer) };
    compare(pair, seed, commands, rules());
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
    let pair = Pair { ours: small.connect(), theirs: large.connect() };
    let mut rules = rules();
    rules.retain(|rule| rule.words[0] != "OBJECT");
    // A negative zero, which weights can make of a score, survives in a skiplist and not in a listpack: as in Redis.
    rules.retain(|rule| !rule.words.iter().any(|word| word == "WEIGHTS"));
    let seed = number_from("DIFFERENTIAL_SEED", fastrand::u64(..1 << 32));
    let commands = number_from("DIFFERENTIAL_COMMANDS", 20_000) as usize;
    compare(pair, seed, commands, rules);
}
