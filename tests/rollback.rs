//! A script that is rolled back leaves no trace: whatever it has written, all keys are what they were.
//!
//! Commands come from the grammar of the comparison with other servers, and from more lines here: whole databases, deadlines,
//! deadlines of fields. A run is repeated by its seed: `ROLLBACK_SEED`.

mod support;

use std::collections::BTreeMap;

use support::grammar::{Generator, Rule, parse, rules};
use support::{Client, Reply, TestServer, split_args};

const DATABASES: usize = 3;

const MORE: &str = "
*8 SELECT 0|1|2
*3 SWAPDB 0|1|2 0|1|2
*2 FLUSHDB [ SYNC|ASYNC ]
*1 FLUSHALL
*8 MOVE k 0|1|2
*8 COPY k k DB 0|1|2 [ REPLACE ]
*12 RENAME k k
*12 EXPIRE k p
*12 PEXPIRE k r
*6 PERSIST k
*8 GETEX t [ PX r ]
*8 SET t v PX r
*6 INCR t
*6 DECRBY t p
*6 SETRANGE t p v
*6 BITFIELD t SET u8 p p INCRBY i5 c 1
*6 GETDEL t
*12 DEL k < k >
*6 UNLINK k < k >
*30 HPEXPIRE h r FIELDS 1 f
*10 HPERSIST h FIELDS 1 f
*6 HGETDEL h FIELDS 1 f
*6 HSETEX h PX r FIELDS 1 f v
*6 PFMERGE g g
*6 PFCOUNT g
*4 XREADGROUP GROUP grp con STREAMS x >
*4 BLPOP l 0
*4 SPOP s
*4 SPOP s c
";

/// Runs the commands that ARGV brings, each as a number of arguments and these, and then goes on for ever.
const BODY: &str = "local at = 1 \
    while at <= #ARGV do \
        local count = tonumber(ARGV[at]) \
        redis.pcall(unpack(ARGV, at + 1, at + count)) \
        at = at + count + 1 \
    end \
    while true do end";

fn number(reply: &Reply) -> i64 {
    match reply {
        Reply::Integer(number) => *number,
        other => panic!("no integer: {other:?}"),
    }
}

fn bulk(reply: Reply) -> Vec<u8> {
    match reply {
        Reply::Bulk(bytes) => bytes,
        other => panic!("no string: {other:?}"),
    }
}

fn elements(reply: Reply) -> Vec<Reply> {
    match reply {
        Reply::Array(elements) => elements,
        other => panic!("no array: {other:?}"),
    }
}

/// What can be seen of a key: its value, encoding and deadline, and those of a hash's fields.
type Seen = BTreeMap<(usize, Vec<u8>), (String, i64)>;

fn look(client: &mut Client) -> Seen {
    let mut seen = Seen::new();
    for database in 0..DATABASES {
        client.call(&["SELECT", &database.to_string()]);
        for key in elements(client.call(&["KEYS", "*"])) {
            let key = bulk(key);
            let mut ask = |words: &str| {
                let mut request = split_args(words);
                for arg in &mut request {
                    if arg == b"@" {
                        arg.clone_from(&key);
                    }
                }
                client.call(&request)
            };
            let kind = ask("TYPE @");
            let mut shown = format!("{} {}", kind.show(), ask("OBJECT ENCODING @").show());
            shown += &ask("DEBUG DIGEST-VALUE @").show();
            if kind == Reply::Simple(b"hash".to_vec()) {
                let mut fields: Vec<Vec<u8>> =
                    elements(ask("HKEYS @")).into_iter().map(bulk).collect();
                fields.sort();
                for field in fields {
                    let request = [&b"HPTTL"[..], &key, b"FIELDS", b"1", &field];
                    shown += &client.call(&request).show();
                }
            } else if kind == Reply::Simple(b"list".to_vec()) {
                shown += &ask("LRANGE @ 0 -1").show();
            } else if kind == Reply::Simple(b"stream".to_vec()) {
                shown += &ask("XINFO STREAM @ FULL").show();
            }
            let deadline = number(&client.call(&[&b"PTTL"[..], &key]));
            seen.insert((database, key), (shown, deadline));
        }
    }
    client.call(&["SELECT", "0"]);
    seen
}

fn info(client: &mut Client, section: &str, name: &str) -> String {
    let text = String::from_utf8(bulk(client.call(&["INFO", section]))).expect("text");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name}")).to_owned()
}

fn sizes(client: &mut Client) -> Vec<i64> {
    let size = |database: usize| {
        client.call(&["SELECT", &database.to_string()]);
        number(&client.call(&["DBSIZE"]))
    };
    (0..DATABASES).map(size).collect()
}

fn all_rules() -> Vec<Rule> {
    let mut rules = rules();
    rules.extend(parse(MORE));
    rules
}

fn leaves_no_trace(lines: &[&str], rounds: usize, seed: u64) {
    println!("ROLLBACK_SEED={seed}");
    let mut config = vec!["busy-reply-threshold 15".into(), "busy-script-policy rollback".into()];
    config.extend(lines.iter().map(|line| (*line).to_owned()));
    let server = TestServer::start(&config);
    let (mut client, mut watcher) = (server.connect(), server.connect());
    let mut generator = Generator::new(seed, all_rules());
    for round in 0..rounds {
        // Mostly further from where the last round has left off.
        if round % 8 == 7 {
            client.call(&["FLUSHALL"]);
        }
        for _ in 0..generator.random.usize(1..300) {
            let request = generator.request();
            if request.args[0] != b"BLPOP" {
                client.call(&request.args);
            }
        }
        let before = look(&mut client);
        let digest = client.call(&["DEBUG", "DIGEST"]);
        let changes = info(&mut client, "persistence", "rdb_changes_since_last_save");
        let unwatched = format!("nobody:{round}");
        watcher.call(&["WATCH", &unwatched]);
        let mut script = vec![b"EVAL".to_vec(), BODY.into(), b"0".to_vec()];
        for _ in 0..generator.random.usize(1..120) {
            let args = generator.request().args;
            script.push(args.len().to_string().into_bytes());
            script.extend(args);
        }
        let ended = client.call(&script).show();
        assert!(ended.contains("Script killed by the server"), "{ended}");
        let after = look(&mut client);
        for (key, was) in &before {
            assert_eq!(Some(was), after.get(key), "round {round}: {key:?}");
        }
        assert_eq!(before.len(), after.len(), "round {round}");
        assert_eq!(digest, client.call(&["DEBUG", "DIGEST"]), "round {round}");
        let now = info(&mut client, "persistence", "rdb_changes_since_last_save");
        assert_eq!(changes, now, "round {round}");
        watcher.call(&["MULTI"]);
        assert_eq!(watcher.call(&["EXEC"]), Reply::Array(Vec::new()));
        // What is due goes without being looked at: the indices of deadlines hold what was put back.
        let ms = generator.random.i64(1..900);
        server.advance(ms * 1000);
        server.settle();
        let sizes = sizes(&mut client);
        for (database, size) in sizes.iter().enumerate() {
            let mut keys = 0;
            for ((at, _), (shown, deadline)) in &before {
                let is_there = *deadline < 0 || *deadline >= ms;
                // A hash may have gone with its last field.
                let may_empty = shown.contains("hash");
                keys += i64::from(*at == database && is_there && !may_empty);
            }
            let hashes = before.iter().filter(|((at, _), (shown, deadline))| {
                *at == database && shown.contains("hash") && (*deadline < 0 || *deadline >= ms)
            });
            let most = keys + hashes.count() as i64;
            assert!((keys..=most).contains(size), "round {round}: {size} of {keys} to {most}");
        }
    }
}

fn seed() -> u64 {
    let given = std::env::var("ROLLBACK_SEED").ok();
    given.map_or_else(|| fastrand::u64(..1 << 32), |text| text.parse().expect("a number"))
}

#[test]
fn a_script_that_is_rolled_back_leaves_no_trace() {
    leaves_no_trace(&[], 40, seed());
}

#[test]
fn nor_does_one_that_changes_large_collections() {
    let lines = [
        "hash-max-listpack-entries 2",
        "list-max-listpack-size 3",
        "set-max-intset-entries 2",
        "set-max-listpack-entries 3",
        "zset-max-listpack-entries 2",
    ];
    leaves_no_trace(&lines, 40, seed());
}
