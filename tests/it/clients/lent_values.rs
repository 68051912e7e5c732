//! Large values are lent to outputs instead of copied to them: a reply shows the value as it was
//! when its command ran, whatever becomes of the value before a slow client reads it.

use std::collections::{HashMap, VecDeque};

use crate::support::{Client, Reply, TestServer, encode, seed, wait_for};

const SESSIONS: u64 = 6;
const STEPS: usize = 120;
const CLIENTS: usize = 5;
const KEYS: usize = 6;
/// Around the least length that is lent, and the length of a piece.
const LENGTHS: [usize; 9] = [10, 2047, 2048, 5000, 40_000, 65_535, 65_536, 131_072, 300_000];

type Key = Vec<u8>;
type Request = Vec<Vec<u8>>;

/// What the server has, and how it answers.
#[derive(Default)]
struct Model {
    strings: HashMap<Key, Vec<u8>>,
    lists: HashMap<Key, Vec<Vec<u8>>>,
    hashes: HashMap<Key, Vec<u8>>,
}

fn ok() -> Reply {
    Reply::Simple(b"OK".into())
}

fn bulk(bytes: &[u8]) -> Reply {
    Reply::Bulk(bytes.into())
}

impl Model {
    fn get(&self, key: &Key) -> Reply {
        self.strings.get(key).map_or(Reply::NullBulk, |value| bulk(value))
    }
}

/// A random value: of one letter, so that bytes of another value are seen.
fn text(random: &mut fastrand::Rng) -> Vec<u8> {
    vec![random.u8(b'a'..=b'z'); LENGTHS[random.usize(..LENGTHS.len())]]
}

fn words(words: &[&[u8]]) -> Request {
    words.iter().map(|word| word.to_vec()).collect()
}

/// A random command, which the model has run, and its reply.
fn command(random: &mut fastrand::Rng, model: &mut Model) -> (Request, Reply) {
    let key = |random: &mut fastrand::Rng| format!("k{}", random.usize(..KEYS)).into_bytes();
    let (a, b) = (key(random), key(random));
    match random.u8(..21) {
        0..=4 => (words(&[b"GET", &a]), model.get(&a)),
        5 => (
            words(&[b"MGET", &a, &b, &a]),
            Reply::Array([&a, &b, &a].map(|key| model.get(key)).into()),
        ),
        6 => {
            let value = model.strings.get(&a).map_or(&[][..], Vec::as_slice);
            let part = &value[value.len().min(3)..value.len().min(70_001)];
            (words(&[b"GETRANGE", &a, b"3", b"70000"]), bulk(part))
        }
        7..=9 => {
            let value = text(random);
            let request = words(&[b"SET", &a, &value]);
            model.strings.insert(a, value);
            (request, ok())
        }
        10 => {
            let more = text(random);
            let request = words(&[b"APPEND", &a, &more]);
            let value = model.strings.entry(a).or_default();
            value.extend(more);
            (request, Reply::Integer(value.len() as i64))
        }
        11 => {
            let request = words(&[b"SETRANGE", &a, b"5", b"#"]);
            let value = model.strings.entry(a).or_default();
            value.resize(value.len().max(6), 0);
            value[5] = b'#';
            (request, Reply::Integer(value.len() as i64))
        }
        12 => {
            let request = words(&[b"GETSET", &a, b"short"]);
            let old = model.get(&a);
            model.strings.insert(a, b"short".into());
            (request, old)
        }
        13 => {
            let request = words(&[b"GETDEL", &a]);
            let old = model.get(&a);
            model.strings.remove(&a);
            (request, old)
        }
        14 => {
            let request = words(&[b"UNLINK", &a]);
            (request, Reply::Integer(model.strings.remove(&a).is_some().into()))
        }
        15 => {
            let request = words(&[b"COPY", &a, &b, b"REPLACE"]);
            if a == b {
                let error = Reply::Error(b"ERR source and destination objects are the same".into());
                return (request, error);
            }
            let copied = model.strings.get(&a).cloned();
            let count = Reply::Integer(copied.is_some().into());
            if let Some(value) = copied {
                model.strings.insert(b, value);
            }
            (request, count)
        }
        16 => {
            let script = b"local old = redis.call('GET', KEYS[1]) redis.call('SET', KEYS[1], 'x') return old";
            let old = model.get(&a);
            let request = words(&[b"EVAL", script, b"1", &a]);
            model.strings.insert(a, b"x".into());
            (request, old)
        }
        17 if random.u8(..4) == 0 => {
            let how: &[u8] = if random.bool() { b"ASYNC" } else { b"SYNC" };
            *model = Model::default();
            (words(&[b"FLUSHALL", how]), ok())
        }
        17 | 18 => {
            let list = [b"l".as_slice(), &a].concat();
            let elements = model.lists.entry(list.clone()).or_default();
            if random.bool() && elements.len() < 20 {
                elements.push(text(random));
                let request = words(&[b"RPUSH", &list, &elements[elements.len() - 1]]);
                return (request, Reply::Integer(elements.len() as i64));
            }
            let all = elements.iter().map(|element| bulk(element)).collect();
            (words(&[b"LRANGE", &list, b"0", b"-1"]), Reply::Array(all))
        }
        19 => {
            let hash = [b"h".as_slice(), &a].concat();
            let value = text(random);
            let request = words(&[b"HSET", &hash, b"f", &value]);
            let is_new = model.hashes.insert(hash, value).is_none();
            (request, Reply::Integer(is_new.into()))
        }
        _ => {
            let hash = [b"h".as_slice(), &a].concat();
            let found = model.hashes.get(&hash);
            let pair = found.map(|value| vec![bulk(b"f"), bulk(value)]).unwrap_or_default();
            (words(&[b"HGETALL", &hash]), Reply::Array(pair))
        }
    }
}

/// A client, and the replies that it has not read yet.
struct Reader {
    client: Client,
    expected: VecDeque<Reply>,
}

impl Reader {
    fn read(&mut self, most: usize, what: &str) {
        for _ in 0..most.min(self.expected.len()) {
            let (expected, reply) = (self.expected.pop_front(), self.client.reply());
            assert!(reply == expected, "{what}: {}", differences(reply, expected));
        }
    }
}

/// Long replies would fill the screen.
fn differences(reply: Option<Reply>, expected: Option<Reply>) -> String {
    let show = |reply: Option<Reply>| match reply {
        Some(Reply::Bulk(bytes)) => format!("{} bytes, {:?}", bytes.len(), bytes.first()),
        other => format!("{other:?}").chars().take(200).collect(),
    };
    format!("{} instead of {}", show(reply), show(expected))
}

fn session(seed: u64, lines: &[String]) {
    let mut random = fastrand::Rng::with_seed(seed);
    let server = TestServer::start(lines);
    let mut control = server.connect();
    let mut model = Model::default();
    let connect = || Reader { client: server.connect(), expected: VecDeque::new() };
    let mut readers: Vec<Reader> = (0..CLIENTS).map(|_| connect()).collect();
    for step in 0..STEPS {
        let what = format!("session {seed}, step {step}");
        let at = random.usize(..CLIENTS);
        match random.u8(..10) {
            0 => readers[at] = connect(),
            1..=3 => {
                let most = random.usize(..8);
                readers[at].read(most, &what);
            }
            _ => {
                let in_transaction = random.u8(..5) == 0;
                let count = random.usize(1..7);
                let run: Vec<_> = (0..count).map(|_| command(&mut random, &mut model)).collect();
                let number = step.to_string();
                let mut bytes = Vec::new();
                let Reader { client, expected } = &mut readers[at];
                if in_transaction {
                    bytes.extend(encode(&["MULTI"]));
                    expected.push_back(ok());
                    expected.extend(run.iter().map(|_| Reply::Simple(b"QUEUED".into())));
                }
                for (request, reply) in &run {
                    bytes.extend(encode(request));
                    if !in_transaction {
                        expected.push_back(reply.clone());
                    }
                }
                if in_transaction {
                    bytes.extend(encode(&["EXEC"]));
                    expected
                        .push_back(Reply::Array(run.into_iter().map(|(_, reply)| reply).collect()));
                }
                bytes.extend(encode(&["SET", "done", &number]));
                expected.push_back(ok());
                client.send_raw(&bytes);
                wait_for("the requests to run", || {
                    (control.call(&["GET", "done"]) == bulk(number.as_bytes())).then_some(())
                });
            }
        }
    }
    for (at, reader) in readers.iter_mut().enumerate() {
        reader.read(usize::MAX, &format!("session {seed}, reader {at} at the end"));
    }
}

#[test]
fn replies_show_values_as_they_were_whatever_becomes_of_them() {
    let first = seed("LENT_SEED") * 1000;
    for number in 0..SESSIONS {
        let lines: &[String] = match number % 3 {
            0 => &[],
            1 => &["appendonly yes".into(), "appendfsync always".into()],
            _ => &["maxmemory-clients 1gb".into()],
        };
        session(first + number, lines);
    }
}

/// Ways to change or free a string `k`, and further ones that free all.
const STRING_CHANGES: &[&str] = &[
    "APPEND k more",
    "SETRANGE k 7 ####",
    "SETRANGE k 300000 #",
    "SETBIT k 70 1",
    "BITFIELD k SET u8 64 255",
    "SET k other",
    "SETEX k 100 other",
    "GETSET k other",
    "GETDEL k",
    "GETEX k EX 100",
    "DEL k",
    "UNLINK k",
    "EXPIRE k 100",
    "PEXPIREAT k 1",
    "RENAME k to",
    "RENAME short k",
    "COPY short k REPLACE",
    "MOVE k 1",
    "BITOP NOT k k",
    "SORT list STORE k",
    "FLUSHALL",
    "FLUSHALL ASYNC",
    "FLUSHDB",
    "SWAPDB 0 1",
];

const LIST_CHANGES: &[&str] =
    &["LSET k 0 x", "LPOP k", "RPUSH k x", "LTRIM k 1 0", "LREM k 1 x", "DEL k", "EXPIRE k 100"];

const HASH_CHANGES: &[&str] =
    &["HSET k f x", "HDEL k f", "HSET k g x", "DEL k", "EXPIRE k 100", "HEXPIRE k 100 FIELDS 1 f"];

const SET_CHANGES: &[&str] = &[
    "SPOP k",
    "SADD k x",
    "SREM k x",
    "SMOVE k other x",
    "SINTERSTORE k k missing",
    "DEL k",
    "EXPIRE k 100",
    "RENAME k other",
];

/// Reads a value, changes it, and fills memory of the value's size, all in one turn.
fn read_and_change(
    client: &mut Client,
    [make, read]: [&[&[u8]]; 2],
    change: &str,
    by_script: bool,
) {
    let value = make[make.len() - 1];
    let mut bytes = Vec::new();
    for request in ["SELECT 1", "FLUSHALL", "SELECT 0", "SET short x", "RPUSH list 1"] {
        bytes.extend(encode(&request.split(' ').collect::<Vec<_>>()));
    }
    bytes.extend(encode(make));
    bytes.extend(encode(read));
    let words: Vec<&str> = change.split(' ').collect();
    match by_script {
        true => {
            let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
            let script = format!("redis.call({}) return 1", quoted.join(","));
            bytes.extend(encode(&["EVAL", &script, "0"]));
        }
        false => bytes.extend(encode(&words)),
    }
    for name in 0..8u8 {
        bytes.extend(encode(&[b"SET".as_slice(), &[b'f', name], &vec![b'!'; value.len()]]));
    }
    client.send_raw(&bytes);
    for _ in 0..6 {
        client.reply().expect("a reply");
    }
    let reply = client.reply();
    let expected = match read[0] {
        b"GET" => bulk(value),
        b"GETRANGE" => bulk(&value[1..]),
        b"LINDEX" => bulk(value),
        b"LRANGE" | b"HMGET" | b"SMEMBERS" => Reply::Array(vec![bulk(value)]),
        _ => Reply::Array(vec![bulk(b"f"), bulk(value)]),
    };
    let what = format!("{} bytes, {change}, script: {by_script}", value.len());
    assert!(reply == Some(expected.clone()), "{what}: {}", differences(reply, Some(expected)));
    for _ in 0..9 {
        client.reply().expect("a reply");
    }
}

#[test]
fn no_change_of_a_value_shows_in_a_reply_that_came_before() {
    let server = TestServer::start(&[]);
    let mut client = server.connect();
    for len in [2048, 6000, 25_000, 65_535, 65_536, 150_000] {
        let value = vec![b'v'; len];
        for by_script in [false, true] {
            for change in STRING_CHANGES {
                let make: [&[u8]; 3] = [b"SET", b"k", &value];
                let reads: [&[&[u8]]; 2] = [&[b"GET", b"k"], &[b"GETRANGE", b"k", b"1", b"-1"]];
                for read in reads {
                    read_and_change(&mut client, [&make, read], change, by_script);
                }
            }
            for change in LIST_CHANGES {
                let make: [&[u8]; 3] = [b"RPUSH", b"k", &value];
                let reads: [&[&[u8]]; 2] =
                    [&[b"LRANGE", b"k", b"0", b"-1"], &[b"LINDEX", b"k", b"-1"]];
                for read in reads {
                    read_and_change(&mut client, [&make, read], change, by_script);
                }
            }
            for change in HASH_CHANGES {
                let make: [&[u8]; 4] = [b"HSET", b"k", b"f", &value];
                let reads: [&[&[u8]]; 2] = [&[b"HGETALL", b"k"], &[b"HMGET", b"k", b"f"]];
                for read in reads {
                    read_and_change(&mut client, [&make, read], change, by_script);
                }
            }
            for change in SET_CHANGES {
                let make: [&[u8]; 3] = [b"SADD", b"k", &value];
                read_and_change(&mut client, [&make, &[b"SMEMBERS", b"k"]], change, by_script);
            }
        }
    }
}

#[test]
fn a_slow_reader_holds_what_it_was_sent_and_counts_for_it() {
    let server = TestServer::start(&[]);
    let mut control = server.connect();
    let value = vec![b'v'; 3_000_000];
    let short = vec![b's'; 30_000];
    control.call(&[b"SET".as_slice(), b"long", &value]);
    control.call(&[b"SET".as_slice(), b"short", &short]);
    let mut reader = server.connect();
    reader.call(&["CLIENT", "SETNAME", "reader"]);
    let mut bytes = Vec::new();
    for _ in 0..8 {
        bytes.extend(encode(&["GET", "long"]));
        bytes.extend(encode(&["GET", "short"]));
    }
    bytes.extend(encode(&["SET", "done", "1"]));
    reader.send_raw(&bytes);
    wait_for("the requests to run", || {
        (control.call(&["GET", "done"]) == bulk(b"1")).then_some(())
    });
    let Reply::Bulk(lines) = control.call(&["CLIENT", "LIST"]) else { panic!("not a list") };
    let lines = String::from_utf8(lines).expect("text");
    let line = lines.lines().find(|line| line.contains("name=reader")).expect("its line");
    let memory = line.split("tot-mem=").nth(1).and_then(|rest| rest.split(' ').next());
    let memory: usize = memory.and_then(|text| text.parse().ok()).expect("a number");
    // Its sockets hold some.
    assert!((12_000_000..30_000_000).contains(&memory), "{line}");
    control.call(&["FLUSHALL"]);
    control.call(&[b"SET".as_slice(), b"long", &vec![b'w'; 3_000_000]]);
    for _ in 0..8 {
        assert!(reader.reply() == Some(bulk(&value)));
        assert!(reader.reply() == Some(bulk(&short)));
    }
}

#[test]
fn an_answer_beyond_the_limit_closes_its_client() {
    let server = TestServer::start(&["client-output-buffer-limit normal 1mb 0 0".into()]);
    let mut control = server.connect();
    control.call(&[b"SET".as_slice(), b"k", &vec![b'v'; 600_000]]);
    let mut reader = server.connect();
    assert!(reader.call(&["GET", "k"]) == bulk(&vec![b'v'; 600_000]));
    reader.send_raw(&encode(&["GET", "k"]).repeat(20));
    let received = std::iter::from_fn(|| reader.reply()).count();
    assert!(received < 20, "all were sent");
    assert_eq!(control.call(&["STRLEN", "k"]), Reply::Integer(600_000));
}

#[test]
fn large_requests_arrive_whole_however_they_are_cut() {
    let server = TestServer::start(&[]);
    let mut random = fastrand::Rng::with_seed(seed("LENT_SEED"));
    let mut client = server.connect();
    for _ in 0..30 {
        let lengths =
            [random.usize(..200_000), random.usize(60_000..70_000), random.usize(..3_000_000)];
        let values = lengths.map(|len| (0..len).map(|_| random.u8(..)).collect::<Vec<u8>>());
        let mut bytes = Vec::new();
        for (at, value) in values.iter().enumerate() {
            bytes.extend(encode(&[b"SET".as_slice(), &[at as u8], value]));
            bytes.extend(encode(&[b"GET".as_slice(), &[at as u8]]));
        }
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let (now, later) = rest.split_at(random.usize(1..400_000).min(rest.len()));
            client.send_raw(now);
            rest = later;
            if random.bool() {
                server.settle();
            }
        }
        for value in values {
            assert_eq!(client.reply(), Some(ok()));
            assert!(client.reply() == Some(bulk(&value)), "{} bytes", value.len());
        }
    }
}
