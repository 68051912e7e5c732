//! Whatever the server keeps for a client or a key: when that is gone, so is the memory.
//!
//! The server is a process of its own, as all servers in one process share a count of allocations.
//! `MEMORY_NAMES=100000 cargo test --test it memory_after_use::` asks for as many names.

use std::net::SocketAddr;

use crate::process::program::Process;
use crate::support::ports::free_port;
use crate::support::{Client, Reply, encode, number_from, wait_for};

/// Asks for a number of names: the client that leaves afterwards, and one that stays.
type Use = fn(&mut Client, &mut Client, usize);

/// What the server keeps, how a client makes it keep many, and what else must be asked for their
/// end.
const KEPT: &[(&str, Use, &[&str])] = &[
    ("channels", |client, _, n| named(client, "SUBSCRIBE", n, ""), &[]),
    ("patterns", |client, _, n| named(client, "PSUBSCRIBE", n, ""), &[]),
    ("shard channels", |client, _, n| named(client, "SSUBSCRIBE", n, ""), &[]),
    ("lists awaited", |client, _, n| named(client, "BLPOP", n, "0"), &[]),
    ("sorted sets awaited", |client, _, n| named(client, "BZPOPMIN", n, "0"), &[]),
    ("due members awaited", |client, _, n| named(client, "BZPOPDUE", n, "0"), &[]),
    ("watched keys", |client, _, n| named(client, "WATCH", n, ""), &[]),
    (
        "keys read by a tracking client",
        |client, _, n| {
            all(client, &["HELLO 3".into(), "CLIENT TRACKING ON".into()]);
            named(client, "MGET", n, "");
            client.reply().expect("the values");
        },
        &[],
    ),
    (
        "prefixes",
        |client, _, n| {
            // Prefixes are compared with each other.
            let prefixes: String = (0..n / 20).map(|i| format!(" PREFIX {i:06}")).collect();
            all(client, &["HELLO 3".into(), format!("CLIENT TRACKING ON BCAST{prefixes}")]);
        },
        &[],
    ),
    (
        "queued commands",
        |client, _, n| {
            all(client, &["MULTI".into()]);
            each(client, n, "SET key:{} value");
        },
        &[],
    ),
    (
        "unsent replies",
        |client, control, n| {
            all(control, &[format!("SETRANGE big {} x", 10 * n)]);
            (0..20).for_each(|_| client.send(&["GET", "big"]));
        },
        &["DEL big"],
    ),
    (
        "a large request",
        |client, _, n| {
            let head = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${}\r\n", 200 * n);
            client.send_raw(head.as_bytes());
            client.send_raw(&vec![b'x'; 100 * n]);
        },
        &[],
    ),
    (
        "a name",
        |client, _, _| all(client, &[format!("CLIENT SETNAME {}", "x".repeat(500_000))]),
        &[],
    ),
    (
        "connections",
        |_, control, n| {
            let port = control.peer();
            let clients: Vec<Client> = (0..(n / 100).min(500))
                .map(|_| {
                    let mut client = Client::connect(port);
                    all(&mut client, &["SUBSCRIBE one".into()]);
                    client
                })
                .collect();
            drop(clients);
        },
        &[],
    ),
    ("keys", |client, _, n| each(client, n, "SET key:{} value"), &["FLUSHALL"]),
    ("keys that expire", |client, _, n| each(client, n, "SET key:{} value PX 1"), &[]),
    (
        "deleted keys",
        |client, _, n| {
            each(client, n, "SET key:{} value EX 1000");
            each(client, n, "DEL key:{}");
        },
        &[],
    ),
    (
        "fields that expire",
        |client, _, n| {
            each(client, n, "HSET hash f{} v");
            each(client, n, "HPEXPIRE hash 1 FIELDS 1 f{}");
        },
        &[],
    ),
    (
        "emptied collections",
        |client, _, n| {
            each(client, n, "SADD set m{}");
            each(client, n, "ZADD zset {} m{}");
            each(client, n, "RPUSH list m{}");
            each(client, n, "SREM set m{}");
            each(client, n, "ZREM zset m{}");
            each(client, n, "LPOP list");
        },
        &[],
    ),
    (
        "consumers and entries",
        |client, _, n| {
            all(client, &["XGROUP CREATE stream g $ MKSTREAM".into()]);
            each(client, n / 4, "XADD stream * f {}");
            each(client, n / 4, "XREADGROUP GROUP g c{} COUNT 1 STREAMS stream >");
        },
        &["DEL stream"],
    ),
    (
        "groups",
        |client, _, n| {
            each(client, n / 4, "XGROUP CREATE stream g{} $ MKSTREAM");
            each(client, n / 4, "XGROUP DESTROY stream g{}");
        },
        &["DEL stream"],
    ),
    (
        "locks",
        |client, _, n| {
            each(client, n / 4, "LOCK.ACQUIRE lock:{} owner{} PX 60000 SESSION GRACE 60000");
            each(client, n / 4, "LOCK.RELEASE lock:{} owner{}");
        },
        &[],
    ),
    (
        "locks of a client that goes",
        |client, _, n| {
            each(client, n / 4, "LOCK.ACQUIRE lock:{} owner{} PX 60000 SESSION GRACE 1");
        },
        &[],
    ),
    (
        "readers",
        |client, _, n| {
            each(client, n / 4, "LOCK.ACQUIRE lock:{} owner{} PX 60000 SHARED");
            each(client, n / 4, "LOCK.RELEASE lock:{} owner{}");
        },
        &[],
    ),
    (
        "waits for locks",
        |client, control, n| {
            all(client, &["HELLO 3".into()]);
            each(control, n / 4, "SET lock:{} holder");
            each(client, n / 4, "LOCK.ACQUIRE lock:{} owner{} PX 60000 ASYNC 0");
        },
        &["FLUSHALL"],
    ),
    (
        "permits",
        |client, _, n| {
            each(client, n / 4, "SEM.ACQUIRE sem:{} owner{} LIMIT 1 PX 60000 SESSION GRACE 1");
        },
        &[],
    ),
    (
        "permits whose semaphores are deleted",
        |client, control, n| {
            let acquire = "SEM.ACQUIRE sem:{} owner{} LIMIT 1 PX 3600000 SESSION GRACE 3600000";
            each(client, n / 4, acquire);
            each(control, n / 4, "DEL sem:{}");
        },
        &["INFO"],
    ),
    (
        "permits in a database that is emptied",
        |client, _, n| {
            let acquire = "SEM.ACQUIRE sem:{} owner{} LIMIT 1 PX 3600000 SESSION GRACE 3600000";
            each(client, n / 4, acquire);
        },
        &["FLUSHALL"],
    ),
    (
        "owners that give back their permits of one semaphore",
        |client, control, n| {
            all(control, &["SEM.ACQUIRE sem stays LIMIT 2 PX 3600000".into()]);
            let both = "EVAL local^p=redis.call('SEM.ACQUIRE','sem',ARGV[1],'LIMIT',2,'PX',3600000,'SESSION','GRACE',3600000)\
                        ^return^redis.call('SEM.RELEASE','sem',p[1][1]) 0 owner{}";
            each(client, n / 4, both);
        },
        &["DEL sem"],
    ),
    ("scripts", |client, _, n| each(client, n / 40, "SCRIPT LOAD return({})"), &["SCRIPT FLUSH"]),
    (
        "functions",
        |client, _, n| {
            each(
                client,
                n / 40,
                "FUNCTION LOAD #!lua^name=l{}\nredis.register_function('f{}',function()end)",
            );
        },
        &["FUNCTION FLUSH"],
    ),
    (
        "users",
        |client, _, n| {
            each(client, n / 40, "ACL SETUSER user{} on >password{} ~key{} +@all");
            each(client, n / 40, "ACL DELUSER user{}");
        },
        &[],
    ),
    (
        "slow commands",
        |client, _, n| {
            all(client, &[format!("CONFIG SET slowlog-log-slower-than 0 slowlog-max-len {n}")]);
            each(client, n, "GET key:{}");
        },
        &["CONFIG SET slowlog-log-slower-than -1", "SLOWLOG RESET"],
    ),
    (
        "refused logins",
        |client, _, n| {
            all(client, &[format!("CONFIG SET acllog-max-len {n}")]);
            each(client, n / 40, "AUTH nobody{} x");
        },
        &["ACL LOG RESET"],
    ),
    (
        "errors",
        |client, _, n| each(client, n / 40, "EVAL return(redis.error_reply('E{}')) 0"),
        &["CONFIG RESETSTAT", "SCRIPT FLUSH"],
    ),
];

/// Sends one request with many names, and waits until it has run.
fn named(client: &mut Client, command: &str, n: usize, last: &str) {
    let mut words = vec![command.to_owned()];
    words.extend((0..n).map(|i| format!("name:{i}")));
    words.extend((!last.is_empty()).then(|| last.to_owned()));
    client.send(&words);
}

/// Sends requests, and waits for their replies.
fn all(client: &mut Client, lines: &[String]) {
    let mut bytes = Vec::new();
    for line in lines {
        let words = line.split(' ').map(|word| word.replace('^', " "));
        bytes.extend(encode(&words.collect::<Vec<_>>()));
    }
    client.send_raw(&bytes);
    lines.iter().for_each(|_| drop(client.reply()));
}

/// The same for a request for each number.
fn each(client: &mut Client, n: usize, line: &str) {
    let lines: Vec<String> = (0..n).map(|i| line.replace("{}", &i.to_string())).collect();
    lines.chunks(1000).for_each(|some| all(client, some));
}

fn used(control: &mut Client) -> usize {
    let Reply::Bulk(info) = control.call(&["INFO", "memory"]) else { panic!("no figures") };
    let text = String::from_utf8(info).expect("text");
    let line = text.lines().find_map(|line| line.strip_prefix("used_memory:"));
    line.expect("the field").parse().expect("a number")
}

fn clients(control: &mut Client) -> usize {
    let Reply::Bulk(list) = control.call(&["CLIENT", "LIST"]) else { panic!("no list") };
    String::from_utf8_lossy(&list).lines().count()
}

/// One client asks for `n` names, and leaves.
fn use_and_leave(
    address: SocketAddr,
    control: &mut Client,
    (uses, ends): (Use, &[&str]),
    n: usize,
) {
    let before = used(control);
    let mut client = Client::connect(address);
    uses(&mut client, control, n);
    // The last request has run, or has begun to wait, when the server keeps something for it.
    if n > 1000 {
        wait_for("the request to run", || {
            let list = control.call(&["CLIENT", "LIST"]).show();
            (!list.contains("cmd=NULL") || used(control) > before).then_some(())
        });
    }
    drop(client);
    wait_for("the client to be gone", || (clients(control) == 1).then_some(()));
    let ends: Vec<String> = ends.iter().map(|line| (*line).to_owned()).collect();
    all(control, &ends);
}

#[test]
fn memory_is_given_back_when_what_it_was_for_is_gone() {
    let n = number_from("MEMORY_NAMES", 12_000) as usize;
    // At 100,000 names 1 MB. Threads count their last 64 KiB each later.
    let most = (n * 10).max(250_000);
    let port = free_port();
    let _process = Process::start(&format!("port {port}\nsave \"\"\nslowlog-log-slower-than -1"));
    let address: SocketAddr = format!("127.0.0.1:{port}").parse().expect("an address");
    let mut control = Client::connect(address);
    let mut left = Vec::new();
    for &(name, uses, ends) in KEPT {
        // What is made once, at the first use, and lists of bounded length are not for this client.
        use_and_leave(address, &mut control, (uses, ends), n / 4);
        let before = used(&mut control);
        use_and_leave(address, &mut control, (uses, ends), n);
        // Expiry, and threads that free large values.
        let mut grown = 0;
        for _ in 0..200 {
            grown = used(&mut control).saturating_sub(before);
            if grown < most {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        if std::env::var_os("MEMORY_SHOW").is_some() {
            eprintln!("{name}: {grown}");
        }
        if grown >= most {
            left.push((name, grown));
        }
    }
    assert!(left.is_empty(), "bytes left of {n}: {left:?}");
}
