//! Values that leave as bytes and come back: DUMP and RESTORE beside a real server, RESTORE of
//! bytes that nobody has dumped, MIGRATE between two servers, DEBUG RELOAD and LOADAOF, and what of
//! all this is repeated in the append-only file.
//!
//! The first needs a peer that runs already and may be emptied: `DUMP_PEER=host:port` (`make peer`
//! names one).

use std::path::PathBuf;

use crate::support::{self, Client, Reply, Session, TestServer, split_args};
use latchkey::persist::rdb::Version;
use latchkey::persist::rdb::payload::{seal, verify};

/// Requests that make a key of each type and encoding, Redis's limits being as they are by default.
const VALUES: &[&str] = &[
    "SET int 12345",
    "SET embstr hello",
    "APPEND raw appended",
    "SETRANGE long 30000 x",
    "RPUSH list a 1 -70000 9223372036854775807 b",
    "SADD intset 1 -2 70000",
    "SADD set a b 3",
    "HSET hash f v g 1 empty \"\"",
    "ZADD zset 1 a 2.5 b -inf c inf d 123456.75 e",
    "PFADD hll a b c",
    "XADD stream 1-1 f v g w",
    "XADD stream 1-2 f v g x",
    "XADD stream 5-0 other 1",
    "XDEL stream 1-2",
    "XGROUP CREATE stream group 0",
    "XREADGROUP GROUP group alice STREAMS stream >",
    "XGROUP CREATE stream idle $",
    "XGROUP CREATECONSUMER stream idle bob",
];

/// Requests for many elements, and for large ones.
fn large_values() -> Vec<Vec<Vec<u8>>> {
    let mut requests = Vec::new();
    for (name, key, is_pair) in [
        ("RPUSH", "large-list", false),
        ("SADD", "large-set", false),
        ("HSET", "large-hash", true),
        ("ZADD", "large-zset", true),
    ] {
        for number in 0..700 {
            let text = format!("{number}:{}", "x".repeat(number % 90)).into_bytes();
            let number = number.to_string().into_bytes();
            let mut request: Vec<Vec<u8>> = vec![name.into(), key.into()];
            if is_pair {
                request.push(number);
            }
            request.push(text);
            requests.push(request);
        }
    }
    requests.push(vec!["RPUSH".into(), "plain-list".into(), vec![b'y'; 20_000], "z".into()]);
    requests
}

pub(crate) fn fill(client: &mut Client) {
    for value in VALUES {
        let reply = client.call(&split_args(value));
        assert!(!reply.show().starts_with("(error)"), "{value}: {}", reply.show());
    }
    for request in large_values() {
        let reply = client.call(&request);
        assert!(!reply.show().starts_with("(error)"), "{}", reply.show());
    }
}

fn keys(client: &mut Client) -> Vec<Vec<u8>> {
    let Reply::Array(keys) = client.call(&["KEYS", "*"]) else { panic!("KEYS answers an array") };
    keys.into_iter().map(|key| bulk(key, "a key")).collect()
}

fn bulk(reply: Reply, what: &str) -> Vec<u8> {
    match reply {
        Reply::Bulk(bytes) => bytes,
        other => panic!("{what}: {}", other.show()),
    }
}

fn show<A: AsRef<[u8]>>(client: &mut Client, request: &[A]) -> String {
    client.call(request).show()
}

fn digest(client: &mut Client) -> String {
    show(client, &["DEBUG", "DIGEST"])
}

/// Restores all that one server has on another one.
fn carry(from: &mut Client, to: &mut Client) {
    assert_eq!(show(to, &["FLUSHALL"]), "OK");
    for key in keys(from) {
        let name = String::from_utf8_lossy(&key).into_owned();
        let payload = bulk(from.call(&[b"DUMP", &key[..]]), &name);
        let reply = show(to, &[&b"RESTORE"[..], &key, b"0", &payload]);
        assert_eq!(reply, "OK", "{name}");
        let digests = [&mut *from, &mut *to]
            .map(|client| show(client, &[&b"DEBUG"[..], b"DIGEST-VALUE", &key]));
        assert_eq!(digests[0], digests[1], "{name}");
    }
    assert_eq!(digest(from), digest(to));
}

#[test]
#[ignore = "needs DUMP_PEER=host:port"]
fn values_go_from_a_real_server_here_and_back() {
    let peer = std::env::var("DUMP_PEER").expect("DUMP_PEER names a real server");
    let mut theirs = Client::connect(peer.parse().expect("an address"));
    let server = TestServer::start(&[]);
    let mut ours = server.connect();
    theirs.call(&["FLUSHALL"]);
    fill(&mut theirs);
    carry(&mut theirs, &mut ours);
    assert_eq!(keys(&mut ours).len(), 16);
    carry(&mut ours, &mut theirs);
    ours.call(&["FLUSHALL"]);
    fill(&mut ours);
    carry(&mut ours, &mut theirs);
    carry(&mut theirs, &mut ours);
    // MIGRATE as well, both ways.
    let port = peer.rsplit(':').next().expect("a port");
    let our_port = server.address.port().to_string();
    let before = digest(&mut ours);
    let mut names = keys(&mut ours);
    let mut request: Vec<Vec<u8>> =
        ["MIGRATE", "127.0.0.1", port, "", "0", "5000", "REPLACE", "KEYS"].map(Vec::from).into();
    request.append(&mut names.clone());
    assert_eq!(show(&mut ours, &request), "OK");
    assert_eq!(show(&mut ours, &["DBSIZE"]), "(integer) 0");
    assert_eq!(digest(&mut theirs), before);
    request.truncate(8);
    request[2] = our_port.into();
    request.append(&mut names);
    assert_eq!(show(&mut theirs, &request), "OK");
    assert_eq!(show(&mut theirs, &["DBSIZE"]), "(integer) 0");
    assert_eq!(digest(&mut ours), before);
}

#[test]
fn values_go_from_here_to_here() {
    let (one, other) = (TestServer::start(&[]), TestServer::start(&[]));
    let (mut one, mut other) = (one.connect(), other.connect());
    fill(&mut one);
    carry(&mut one, &mut other);
    carry(&mut other, &mut one);
}

/// Requests that read and change a key whatever it holds.
const TRAFFIC: &[&str] = &[
    "GET k",
    "APPEND k x",
    "PFCOUNT k",
    "LRANGE k 0 -1",
    "LINSERT k BEFORE a b",
    "LPOP k 2",
    "RPUSH k e",
    "LTRIM k 1 -2",
    "SMEMBERS k",
    "SADD k e 7",
    "SRANDMEMBER k -5",
    "SPOP k",
    "HGETALL k",
    "HSET k f w",
    "HRANDFIELD k 3 WITHVALUES",
    "HDEL k g",
    "ZRANGE k 0 -1 WITHSCORES",
    "ZINCRBY k 3 a",
    "ZRANK k b",
    "ZPOPMIN k",
    "XRANGE k - +",
    "XINFO STREAM k FULL",
    "XADD k * f v",
    "XREADGROUP GROUP group alice COUNT 2 STREAMS k >",
    "XPENDING k group - + 10",
    "XACK k group 1-1",
    "XCLAIM k group carol 0 5-0",
    "XTRIM k MAXLEN 1",
    "OBJECT ENCODING k",
    "MEMORY USAGE k",
    "COPY k l REPLACE",
    "DUMP k",
    "DEBUG DIGEST",
    "DEL k",
];

#[test]
fn bytes_that_nobody_has_dumped_do_no_harm() {
    let server = TestServer::start(&[]);
    let mut client = server.connect();
    fill(&mut client);
    let mut payloads: Vec<Vec<u8>> = Vec::new();
    for key in keys(&mut client) {
        let payload = bulk(client.call(&[b"DUMP", &key[..]]), "a payload");
        payloads.push(verify(&payload).expect("a right checksum").1.to_vec());
    }
    let mut random = fastrand::Rng::with_seed(20_261_122);
    let (mut accepted, mut refused) = (0, 0);
    for round in 0..8_000 {
        let mut bytes = payloads[round % payloads.len()].clone();
        for _ in 0..random.usize(1..4) {
            let at = match random.bool() {
                true => random.usize(..bytes.len().min(40)),
                false => random.usize(..bytes.len()),
            };
            match random.u8(..4) {
                0 => bytes[at] ^= 1 << random.u8(..8),
                1 => bytes[at] = random.u8(..),
                2 => drop(bytes.remove(at)),
                _ => bytes.insert(at, random.u8(..)),
            }
        }
        seal(&mut bytes, Version::REDIS_10);
        match &*show(&mut client, &[&b"RESTORE"[..], b"k", b"0", &bytes, b"REPLACE"]) {
            "OK" => accepted += 1,
            "(error) ERR Bad data format" => {
                refused += 1;
                continue;
            }
            other => panic!("{other}"),
        }
        for request in TRAFFIC {
            client.call(&split_args(request));
        }
    }
    assert!(accepted > 300 && refused > 300, "{accepted} were accepted, {refused} refused");
    assert_eq!(show(&mut client, &["PING"]), "PONG");
}

// ---- MIGRATE ------------------------------------------------------------------------------------

/// A request to migrate to `target` with a timeout of a second, before its options.
fn migrate<'a>(port: &'a str, key: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["MIGRATE", "127.0.0.1", port, key, "0", "1000"], more].concat()
}

fn cached(client: &mut Client) -> String {
    let info = bulk(client.call(&["INFO", "stats"]), "INFO");
    let info = String::from_utf8(info).expect("INFO is text");
    let line = info.lines().find_map(|line| line.strip_prefix("migrate_cached_sockets:"));
    line.expect("INFO tells it").to_owned()
}

#[test]
fn a_node_of_a_cluster_migrates_as_one_that_was_told_to_ask() {
    let mut source = Session::start(&["cluster-enabled yes".into()]);
    let target = TestServer::start(&[]);
    source.client("a").call(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    source.settle_cluster("a");
    let here = source.client("a");
    here.call(&["SET", "k", "v"]);
    let port = target.address.port().to_string();
    assert_eq!(show(here, &migrate(&port, "k", &[])), "OK");
    let mut there = target.connect();
    assert_eq!(show(&mut there, &["GET", "k"]), "\"v\"");
    let stats = show(&mut there, &["INFO", "commandstats"]);
    assert!(stats.contains("cmdstat_restore-asking:calls=1"), "{stats}");
    assert!(!stats.contains("cmdstat_restore:"), "{stats}");
}

#[test]
fn migrated_keys_are_there_and_no_longer_here() {
    let (source, target) = (TestServer::start(&[]), TestServer::start(&[]));
    let (mut here, mut there) = (source.connect(), target.connect());
    let port = target.address.port().to_string();
    here.call(&["SET", "k", "v", "PX", "60000"]);
    assert_eq!(show(&mut here, &migrate(&port, "k", &[])), "OK");
    assert_eq!(show(&mut here, &["EXISTS", "k"]), "(integer) 0");
    assert_eq!(show(&mut there, &["GET", "k"]), "\"v\"");
    assert_eq!(show(&mut there, &["PTTL", "k"]), "(integer) 60000");
    // One that is there stays, without REPLACE, and so does the one here.
    here.call(&["SET", "k", "w"]);
    let busy =
        "(error) ERR Target instance replied with error: BUSYKEY Target key name already exists.";
    assert_eq!(show(&mut here, &migrate(&port, "k", &[])), busy);
    assert_eq!(show(&mut here, &["GET", "k"]), "\"w\"");
    assert_eq!(show(&mut here, &migrate(&port, "k", &["COPY", "REPLACE"])), "OK");
    assert_eq!(show(&mut here, &["GET", "k"]), "\"w\"");
    assert_eq!(show(&mut there, &["GET", "k"]), "\"w\"");
    assert_eq!(show(&mut there, &["PTTL", "k"]), "(integer) -1");
    // Of several those go that the other server takes.
    here.call(&["MSET", "a", "1", "b", "2", "c", "3"]);
    there.call(&["SET", "b", "old"]);
    let several = migrate(&port, "", &["KEYS", "a", "none", "b", "c"]);
    assert_eq!(show(&mut here, &several), busy);
    assert_eq!(show(&mut here, &["EXISTS", "a", "b", "c"]), "(integer) 1");
    assert_eq!(show(&mut there, &["MGET", "a", "b", "c"]), "1) \"1\"\n2) \"old\"\n3) \"3\"");
    // Another database, on the connection there is; one that does not exist.
    let mut to_other = migrate(&port, "b", &[]);
    to_other[4] = "9";
    assert_eq!(show(&mut here, &to_other), "OK");
    there.call(&["SELECT", "9"]);
    assert_eq!(show(&mut there, &["GET", "b"]), "\"2\"");
    to_other[3] = "k";
    to_other[4] = "99";
    let range = "(error) ERR Target instance replied with error: ERR DB index is out of range";
    assert_eq!(show(&mut here, &to_other), range);
    assert_eq!(show(&mut here, &["EXISTS", "k"]), "(integer) 1");
}

#[test]
fn a_connection_is_kept_for_ten_seconds_and_made_anew_if_it_was_closed() {
    let (source, target) = (TestServer::start(&[]), TestServer::start(&[]));
    let (mut here, mut there) = (source.connect(), target.connect());
    let port = target.address.port().to_string();
    assert_eq!(cached(&mut here), "0");
    here.call(&["MSET", "a", "1", "b", "2"]);
    assert_eq!(show(&mut here, &migrate(&port, "a", &[])), "OK");
    assert_eq!(cached(&mut here), "1");
    // All but the one that asks: the kept connection, too.
    there.call(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    assert_eq!(show(&mut here, &migrate(&port, "b", &[])), "OK");
    assert_eq!(show(&mut there, &["MGET", "a", "b"]), "1) \"1\"\n2) \"2\"");
    assert_eq!(cached(&mut here), "1");
    source.advance(9_000_000);
    assert_eq!(cached(&mut here), "1");
    source.advance(2_000_000);
    assert_eq!(cached(&mut here), "0");
}

#[test]
fn a_server_with_a_password_wants_it_and_nobody_else_sees_it() {
    let lines = ["requirepass secret".to_owned()];
    let (source, target) = (TestServer::start(&[]), TestServer::start(&lines));
    let (mut here, mut there) = (source.connect(), target.connect());
    there.call(&["AUTH", "secret"]);
    let port = target.address.port().to_string();
    here.call(&["MSET", "a", "1", "b", "2"]);
    here.call(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]);
    let refused = show(&mut here, &migrate(&port, "a", &[]));
    assert!(refused.contains("NOAUTH"), "{refused}");
    let refused = show(&mut here, &migrate(&port, "a", &["AUTH", "wrong"]));
    assert!(refused.contains("replied with error: WRONGPASS"), "{refused}");
    assert_eq!(show(&mut here, &migrate(&port, "a", &["AUTH", "secret"])), "OK");
    assert_eq!(show(&mut here, &migrate(&port, "b", &["AUTH2", "default", "secret"])), "OK");
    assert_eq!(show(&mut there, &["MGET", "a", "b"]), "1) \"1\"\n2) \"2\"");
    let log = show(&mut here, &["SLOWLOG", "GET", "-1"]);
    assert!(log.contains("(redacted)") && !log.contains("secret"), "{log}");
}

// ---- files --------------------------------------------------------------------------------------

/// A folder for a server's files, removed with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("latchkey-dump-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).expect("a folder can be made");
        Folder(folder)
    }

    fn server(&self, lines: &[&str]) -> TestServer {
        let mut config = vec![format!("dir {}", self.0.display())];
        config.extend(lines.iter().map(|&line| line.to_owned()));
        TestServer::start(&config)
    }

    /// The increments of the append-only file, each request on a line.
    fn requests(&self) -> Vec<String> {
        let folder = self.0.join("appendonlydir");
        let files = std::fs::read_dir(folder).expect("the append-only folder is there");
        let mut lines = Vec::new();
        for file in files.map(|file| file.expect("an entry").path()) {
            if !file.to_string_lossy().ends_with(".incr.aof") {
                continue;
            }
            let text = std::fs::read(file).expect("a file can be read");
            let mut at = 0;
            while at < text.len() {
                let request = support::decode(&text, &mut at).expect("a whole request");
                let Reply::Array(words) = request else { panic!("a request is an array") };
                let words = words.into_iter().map(|word| bulk(word, "an argument"));
                let words: Vec<String> =
                    words.map(|word| word.escape_ascii().to_string()).collect();
                lines.push(words.join(" "));
            }
        }
        lines
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn what_restore_and_migrate_did_is_repeated_as_redis_does() {
    let (folder, target) = (Folder::new("effects"), TestServer::start(&[]));
    let server = folder.server(&["appendonly yes"]);
    let mut client = server.connect();
    let port = target.address.port().to_string();
    client.call(&["SET", "s", "1"]);
    let payload = bulk(client.call(&["DUMP", "s"]), "a payload");
    for (key, ttl, more) in [
        ("a", "0", &[][..]),
        ("b", "5000", &["replace"]),
        ("c", "2569591501000", &["ABSTTL"]),
        ("a", "1", &["ABSTTL", "REPLACE"]),
        ("d", "1", &["ABSTTL"]),
    ] {
        let mut request = vec![&b"RESTORE"[..], key.as_bytes(), ttl.as_bytes(), &payload];
        request.extend(more.iter().map(|word| word.as_bytes()));
        assert_eq!(show(&mut client, &request), "OK");
    }
    let at = show(&mut client, &["PEXPIRETIME", "b"]).replace("(integer) ", "");
    assert_eq!(show(&mut client, &migrate(&port, "", &["KEYS", "b", "none", "c"])), "OK");
    assert_eq!(show(&mut client, &migrate(&port, "s", &["COPY"])), "OK");
    server.settle();
    let payload = payload.escape_ascii().to_string();
    let expected = [
        "SELECT 0".to_owned(),
        "SET s 1".to_owned(),
        format!("RESTORE a 0 {payload}"),
        format!("RESTORE b {at} {payload} replace ABSTTL"),
        format!("RESTORE c 2569591501000 {payload} ABSTTL"),
        "DEL a".to_owned(),
        "DEL b c".to_owned(),
    ];
    assert_eq!(folder.requests(), expected);
}

#[test]
fn a_reload_brings_back_the_same_data() {
    let folder = Folder::new("reload");
    let server = folder.server(&[]);
    let mut client = server.connect();
    fill(&mut client);
    client.call(&["SET", "volatile", "v", "PX", "60000"]);
    let library = "#!lua name=lib\nredis.register_function('answer', function() return 42 end)";
    assert_eq!(show(&mut client, &["FUNCTION", "LOAD", library]), "\"lib\"");
    client.call(&["SELECT", "3"]);
    client.call(&["SET", "k", "v"]);
    let before = digest(&mut client);
    assert_eq!(show(&mut client, &["DEBUG", "RELOAD"]), "OK");
    assert_eq!(digest(&mut client), before);
    // The same database, and functions.
    assert_eq!(show(&mut client, &["GET", "k"]), "\"v\"");
    assert_eq!(show(&mut client, &["FCALL", "answer", "0"]), "(integer) 42");
    // What was done since is lost without saving.
    client.call(&["SET", "k", "w"]);
    client.call(&["SET", "new", "n"]);
    assert_eq!(show(&mut client, &["DEBUG", "RELOAD", "NOSAVE"]), "OK");
    assert_eq!(digest(&mut client), before);
    // Without emptying keys collide, or give way.
    let error = "(error) ERR Error trying to load the RDB dump, check server logs.";
    assert_eq!(show(&mut client, &["DEBUG", "RELOAD", "NOSAVE", "NOFLUSH"]), error);
    client.call(&["SET", "k", "w"]);
    client.call(&["SET", "new", "n"]);
    assert_eq!(show(&mut client, &["DEBUG", "RELOAD", "NOSAVE", "NOFLUSH", "MERGE"]), "OK");
    assert_eq!(show(&mut client, &["MGET", "k", "new"]), "1) \"v\"\n2) \"n\"");
    assert_eq!(show(&mut client, &["FCALL", "answer", "0"]), "(integer) 42");
    let options = "(error) ERR DEBUG RELOAD only supports the MERGE, NOFLUSH and NOSAVE options.";
    assert_eq!(show(&mut client, &["DEBUG", "RELOAD", "FOO"]), options);
}

#[test]
fn the_append_only_file_can_be_loaded_again() {
    let folder = Folder::new("loadaof");
    let server = folder.server(&["appendonly yes"]);
    let mut client = server.connect();
    fill(&mut client);
    client.call(&["SET", "volatile", "v", "PX", "60000"]);
    client.call(&["SELECT", "3"]);
    client.call(&["SET", "k", "v"]);
    let before = digest(&mut client);
    for _ in 0..2 {
        assert_eq!(show(&mut client, &["DEBUG", "LOADAOF"]), "OK");
        assert_eq!(digest(&mut client), before);
    }
    // Loading wrote nothing, and what follows is written.
    server.settle();
    let requests = folder.requests();
    assert_eq!(requests.iter().filter(|line| *line == "SET k v").count(), 1);
    assert_eq!(show(&mut client, &["APPEND", "k", "w"]), "(integer) 2");
    assert_eq!(show(&mut client, &["DEBUG", "LOADAOF"]), "OK");
    assert_eq!(show(&mut client, &["GET", "k"]), "\"vw\"");
}

/// A thread decodes large values, and their clients wait.
#[test]
fn a_large_value_is_restored_as_a_small_one_is() {
    let server = TestServer::start(&[]);
    let mut client = server.connect();
    let fields: Vec<String> =
        (0..20_000).flat_map(|n| [format!("field:{n}"), format!("value:{n}")]).collect();
    let mut fill = vec!["HSET", "h"];
    fill.extend(fields.iter().map(String::as_str));
    client.call(&fill);
    let Reply::Bulk(payload) = client.call(&["DUMP", "h"]) else { panic!("a payload") };
    assert!(payload.len() > 400_000);
    let digest = |client: &mut Client, key: &str| client.call(&["DEBUG", "DIGEST-VALUE", key]);
    let wanted = digest(&mut client, "h");

    let mut damaged = payload.clone();
    *damaged.last_mut().expect("a checksum") ^= 1;
    let mut wrong = payload[..payload.len() - 10].to_vec();
    wrong[0] = 1;
    seal(&mut wrong, Version::REDIS_10);
    // All in one go: the replies come in their order.
    let requests: [(&[&[u8]], &str); 9] = [
        (&[b"RESTORE", b"one", b"0", &payload], "OK"),
        (&[b"HLEN", b"one"], "(integer) 20000"),
        (&[b"RESTORE", b"one", b"0", &payload], "(error) BUSYKEY Target key name already exists."),
        (&[b"RESTORE", b"one", b"10000", &payload, b"REPLACE"], "OK"),
        (
            &[b"RESTORE", b"two", b"0", &damaged],
            "(error) ERR DUMP payload version or checksum are wrong",
        ),
        (&[b"RESTORE", b"two", b"0", &wrong], "(error) ERR Bad data format"),
        (&[b"EXISTS", b"two"], "(integer) 0"),
        (
            &[
                b"EVAL",
                b"return redis.call('RESTORE', KEYS[1], '0', ARGV[1])",
                b"1",
                b"three",
                &payload,
            ],
            "OK",
        ),
        (&[b"PING"], "PONG"),
    ];
    let mut sent = Vec::new();
    requests.iter().for_each(|(request, _)| sent.extend(support::encode(request)));
    client.send_raw(&sent);
    for (request, reply) in requests {
        assert_eq!(client.reply().expect("a reply").show(), reply, "{:?}", &request[..2]);
    }
    client.call(&["MULTI"]);
    client.call(&[&b"RESTORE"[..], b"four", b"0", payload.as_slice()]);
    assert_eq!(client.call(&["EXEC"]).show(), "1) OK");
    assert!(matches!(client.call(&["PTTL", "one"]), Reply::Integer(1..=10_000)));
    client.call(&["PERSIST", "one"]);
    for key in ["one", "three", "four"] {
        assert_eq!(digest(&mut client, key), wanted, "{key}");
    }
}

#[test]
fn who_restores_a_large_value_may_be_killed_meanwhile() {
    let server = TestServer::start(&[]);
    let mut operator = server.connect();
    let members: Vec<String> = (0..50_000).map(|n| format!("member:{n}")).collect();
    let mut fill = vec!["SADD", "s"];
    fill.extend(members.iter().map(String::as_str));
    operator.call(&fill);
    let Reply::Bulk(payload) = operator.call(&["DUMP", "s"]) else { panic!("a payload") };
    for round in 0..20 {
        let mut client = server.connect();
        let Reply::Integer(id) = client.call(&["CLIENT", "ID"]) else { panic!("an ID") };
        client.send_raw(&support::encode(&[
            &b"RESTORE"[..],
            b"t",
            b"0",
            payload.as_slice(),
            b"REPLACE",
        ]));
        // A request of another client is always answered.
        assert_eq!(operator.call(&["EXISTS", "s"]), Reply::Integer(1));
        operator.call(&["CLIENT", "KILL", "ID", &id.to_string()]);
        let whole = operator.call(&["SCARD", "t"]);
        assert!(matches!(whole, Reply::Integer(0 | 50_000)), "round {round}: {whole:?}");
    }
    let mut last = server.connect();
    assert_eq!(last.call(&[&b"RESTORE"[..], b"u", b"0", payload.as_slice()]).show(), "OK");
    assert_eq!(last.call(&["SCARD", "u"]), Reply::Integer(50_000));
}
