//! A random stream of commands, sent to two servers, gets equal replies: from this server and a real one, and from this server
//! with and without small encodings.
//!
//! The first needs a peer that runs already: `DIFFERENTIAL_PEER=host:port`, else nothing is compared (`make peer` names one).
//! A run is repeated by its seed: `DIFFERENTIAL_SEED`; its length is `DIFFERENTIAL_COMMANDS`. `DIFFERENTIAL_ONLY=SET,GET`
//! keeps to some commands. Commands come from the grammar in `differential/grammar.txt`. The stream is cut into epochs that begin with empty servers and end with a comparison
//! of all data (`DEBUG DIGEST`), every other one in RESP3. What differs is reduced to a short session that shows it.

mod support;

use std::net::SocketAddr;

use support::{Client, Reply, TestServer, quote, split_args};

/// Commands from one emptying of the servers to the next.
const EPOCH: usize = 2_000;
/// Sent at once.
const BATCH: usize = 100;
/// Sessions shown before the test gives up.
const FAULTS_MAX: usize = 12;
/// Attempts to make a session shorter.
const SHRINK_TRIES: usize = 400;

/// How the replies to a command are compared.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Order {
    Exact,
    /// The elements in any order.
    Any,
    /// Pairs of elements in any order.
    Pairs,
}

/// One line of the grammar.
struct Rule {
    order: Order,
    weight: u32,
    /// Never with arguments that are too many or odd: newer servers know some.
    is_strict: bool,
    words: Vec<String>,
}

/// A command, ready to be sent.
#[derive(Clone, Debug)]
struct Request {
    order: Order,
    args: Vec<Vec<u8>>,
}

fn rules() -> Vec<Rule> {
    let text = include_str!("differential/grammar.txt");
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let mut words = line.split_whitespace().map(str::to_owned).peekable();
            let mut weight = 4;
            let mut order = Order::Exact;
            let mut is_strict = false;
            while let Some(word) = words.peek() {
                match word.as_str() {
                    "~" => order = Order::Any,
                    "~~" => order = Order::Pairs,
                    "=" => is_strict = true,
                    word if word.starts_with('*') => weight = word[1..].parse().expect("a weight"),
                    _ => break,
                }
                words.next();
            }
            Rule { order, weight, is_strict, words: words.collect() }
        })
        .collect()
}

/// Makes up commands.
struct Generator {
    random: fastrand::Rng,
    rules: Vec<Rule>,
    total: u32,
    /// Grows, so that stream IDs mostly do.
    stream_ms: u64,
}

impl Generator {
    fn new(seed: u64, rules: Vec<Rule>) -> Self {
        let total = rules.iter().map(|rule| rule.weight).sum();
        Generator { random: fastrand::Rng::with_seed(seed), rules, total, stream_ms: 1 }
    }

    fn request(&mut self) -> Request {
        let mut at = self.random.u32(..self.total);
        let rule = self.rules.iter().position(|rule| {
            let here = at < rule.weight;
            at = at.wrapping_sub(rule.weight);
            here
        });
        let rule = &self.rules[rule.expect("the weights add up")];
        let (order, is_strict, words) = (rule.order, rule.is_strict, rule.words.clone());
        let mut args = Vec::new();
        self.expand(&words, &mut args);
        // Now and then an argument too few, too many, or an odd one.
        match self.random.u32(..150) {
            0 if args.len() > 1 => {
                args.pop();
            }
            1 if !is_strict => args.push(self.odd()),
            2 if !is_strict && args.len() > 2 => {
                let index = self.random.usize(1..args.len());
                args[index] = self.odd();
            }
            _ => {}
        }
        Request { order, args }
    }

    fn expand(&mut self, words: &[String], out: &mut Vec<Vec<u8>>) {
        let mut at = 0;
        while at < words.len() {
            match words[at].as_str() {
                "[" => {
                    let end = closing(words, at, "[", "]");
                    if self.random.u32(..5) < 2 {
                        self.expand(&words[at + 1..end], out);
                    }
                    at = end;
                }
                "<" => {
                    let end = closing(words, at, "<", ">");
                    let times = match self.random.u32(..40) {
                        0 => self.random.usize(20..150),
                        1..8 => self.random.usize(3..12),
                        _ => self.random.usize(1..3),
                    };
                    for _ in 0..times {
                        self.expand(&words[at + 1..end], out);
                    }
                    at = end;
                }
                // `#k` counts: a number of keys and so many of them.
                "#k" | "#l" | "#s" | "#z" => {
                    let kind = words[at][1..].to_owned();
                    let count = self.random.usize(1..4);
                    out.push(count.to_string().into_bytes());
                    for _ in 0..count {
                        let key = self.word(&kind);
                        out.push(key);
                    }
                }
                word => {
                    let choices: Vec<&str> = word.split('|').collect();
                    let choice = choices[self.random.usize(..choices.len())].to_owned();
                    let word = self.word(&choice);
                    out.push(word);
                }
            }
            at += 1;
        }
    }

    fn word(&mut self, name: &str) -> Vec<u8> {
        let random = &mut self.random;
        let text = match name {
            // Keys of each type: a few of them, and rarely one of another type.
            "h" | "l" | "s" | "z" | "x" | "g" | "t" | "k" => {
                let any = name == "k" || random.u32(..25) == 0;
                let kind =
                    if any { ["h", "l", "s", "z", "x", "g", "t"][random.usize(..7)] } else { name };
                format!("{kind}{}", random.u32(..4))
            }
            "y" | "q" | "u" => format!("{name}{}", random.u32(..4)),
            "f" | "m" => return self.member(),
            "v" => return self.value(),
            "n" => random.i32(-12..12).to_string(),
            "N" => random.i32(-200..200).to_string(),
            "c" => random.i32(0..8).to_string(),
            "p" => random.i32(1..20).to_string(),
            "i" => match random.u32(..12) {
                0 => i64::MAX.to_string(),
                1 => i64::MIN.to_string(),
                2 => "x1".into(),
                _ => random.i32(-1000..1000).to_string(),
            },
            "d" => match random.u32(..14) {
                0 => "inf".into(),
                1 => "-inf".into(),
                2 => "nan".into(),
                3 => "abc".into(),
                4 => "1e3".into(),
                5 => "0.1".into(),
                6 => format!("{}", random.f64() * 100.0),
                _ => random.i32(-30..30).to_string(),
            },
            "sc" => match random.u32(..20) {
                0 => "+inf".into(),
                1 => "-inf".into(),
                2 => "bad".into(),
                3..6 => format!("{}", random.f64() * 10.0),
                _ => random.i32(-20..20).to_string(),
            },
            "min" | "max" => match random.u32(..8) {
                0 => "-inf".into(),
                1 => "+inf".into(),
                2 => format!("({}", random.i32(-20..20)),
                3 => "(x".into(),
                _ => random.i32(-20..20).to_string(),
            },
            "lmin" | "lmax" => match random.u32(..7) {
                0 => "-".into(),
                1 => "+".into(),
                2 => "bad".into(),
                3 => format!("({}", random.char('a'..='h')),
                _ => format!("[{}", random.char('a'..='h')),
            },
            "lm" => {
                let length = random.usize(1..4);
                (0..length).map(|_| random.char('a'..='h')).collect()
            }
            "lon" => format!("{:.4}", random.f64() * 20.0),
            "lat" => format!("{:.4}", random.f64() * 20.0 + 30.0),
            "r" => random.u32(1..800).to_string(),
            "id" => match random.u32(..8) {
                0 => "0".into(),
                1 => "0-1".into(),
                2 => format!("{}", random.u64(..self.stream_ms + 3)),
                _ => format!("{}-{}", random.u64(..self.stream_ms + 3), random.u32(..3)),
            },
            "newid" => {
                self.stream_ms += random.u64(..2);
                match random.u32(..12) {
                    0 => format!("{}", self.stream_ms),
                    1 => format!("{}-*", self.stream_ms),
                    _ => format!("{}-{}", self.stream_ms, random.u32(..6)),
                }
            }
            "grp" => format!("grp{}", random.u32(..2)),
            "con" => format!("con{}", random.u32(..3)),
            "pat" => ["*", "a*", "m1*", "*[0-9]", "m?", "zzz"][random.usize(..6)].into(),
            word => word.into(),
        };
        text.into_bytes()
    }

    /// Fields and members: often the same few, sometimes of many.
    fn member(&mut self) -> Vec<u8> {
        let random = &mut self.random;
        match random.u32(..10) {
            0..4 => format!("m{}", random.u32(..6)).into_bytes(),
            4..6 => random.i32(-3..8).to_string().into_bytes(),
            6 => random.i32(0..200).to_string().into_bytes(),
            7 | 8 => format!("m{}", random.u32(..250)).into_bytes(),
            _ => self.value(),
        }
    }

    /// An argument where another was meant. Redis ends what it quotes of one at a NUL.
    fn odd(&mut self) -> Vec<u8> {
        let mut value = self.value();
        value.retain(|&byte| byte != 0);
        value
    }

    fn value(&mut self) -> Vec<u8> {
        let random = &mut self.random;
        match random.u32(..24) {
            0 => Vec::new(),
            1 => vec![b'y'; random.usize(62..68)],
            // Not with a NUL in front: Redis sorts texts up to the first one.
            2 => b"\xff\x00\r\n \"".to_vec(),
            3 => random.i64(..).to_string().into_bytes(),
            4 => format!("{}", random.f64() * 1000.0 - 500.0).into_bytes(),
            5 if random.u32(..6) == 0 => vec![b'z'; random.usize(1000..9000)],
            5..12 => random.i32(-40..40).to_string().into_bytes(),
            12 => b"007".to_vec(),
            _ => {
                let length = random.usize(1..9);
                (0..length).map(|_| random.u8(b'a'..=b'e')).collect()
            }
        }
    }
}

fn closing(words: &[String], from: usize, open: &str, close: &str) -> usize {
    let mut depth = 0;
    for (index, word) in words.iter().enumerate().skip(from) {
        depth += (word == open) as i32 - (word == close) as i32;
        if depth == 0 {
            return index;
        }
    }
    panic!("unbalanced {open} in the grammar: {words:?}")
}

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
fn a_random_stream_of_commands_gets_the_replies_of_the_real_server() {
    let Ok(peer) = std::env::var("DIFFERENTIAL_PEER") else {
        println!("DIFFERENTIAL_PEER names no server: nothing was compared");
        return;
    };
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
