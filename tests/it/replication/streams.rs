//! What a replica of ours knows of the consumer groups of streams is what its primary knows: how
//! far groups have read and lag, deliveries, and consumers with when they were seen and active,
//! those that own nothing too; and so is what it knows of the names of entries (IDMP).
//!
//! `STREAMS_COMMANDS` is how many commands a run has, `STREAMS_SEED` repeats one.

use fastrand::Rng;

use crate::support::{Client, Reply, TestServer, number_from, seed, wait_for};

/// Commands between two looks at both.
const EPOCH: usize = 100;
/// How often a replica is told at most that a consumer was seen which got nothing. Unit:
/// milliseconds.
const SEEN_AGAIN_MS: i64 = 1000;

/// A request about streams `x`, `y` and `z`, whose entries have names, groups `g` and `h`, and consumers `a` to `d`. `top`: the
/// last ID that was added.
fn request(random: &mut Rng, top: &mut u64) -> Vec<String> {
    let pick = |random: &mut Rng, words: &[&str]| words[random.usize(..words.len())].to_owned();
    let key = pick(random, &["x", "x", "x", "y"]);
    let (group, consumer) = (pick(random, &["g", "g", "h"]), pick(random, &["a", "b", "c", "d"]));
    let id = format!("{}-{}", random.u64(1..=*top + 1), random.u64(..2));
    let count = random.u64(1..5).to_string();
    let line = match random.u32(..100) {
        0..25 => {
            *top += random.u64(1..3);
            let trim = pick(random, &["", "", "MAXLEN 20 ", "MAXLEN ~ 10 ", "NOMKSTREAM "]);
            let name = random.u64(..9);
            match random.u32(..30) {
                0..8 => format!("XADD z {trim}IDMP {consumer} {name} * f v"),
                8..14 => format!("XADD z {trim}IDMPAUTO {consumer} * f {name}"),
                14 => format!("XCFGSET z IDMP-DURATION {} IDMP-MAXSIZE {count}", 1 + name),
                _ => format!("XADD {key} {trim}{top}-{} f v", random.u64(..2)),
            }
        }
        25..30 => format!("XDEL {key} {id}"),
        30..32 => format!("XTRIM {key} MAXLEN {}", random.u64(..30)),
        32..37 => {
            let from = pick(random, &["$", "0", &id]);
            let more = pick(random, &["", " MKSTREAM", " MKSTREAM ENTRIESREAD 3"]);
            format!("XGROUP CREATE {key} {group} {from}{more}")
        }
        37..39 => {
            let more = pick(random, &["", " ENTRIESREAD 2", " ENTRIESREAD -1"]);
            format!("XGROUP SETID {key} {group} {id}{more}")
        }
        39..41 => format!("XGROUP CREATECONSUMER {key} {group} {consumer}"),
        41..42 => format!("XGROUP DELCONSUMER {key} {group} {consumer}"),
        42..43 => format!("XGROUP DESTROY {key} {group}"),
        43..44 => pick(random, &["DEL y", "XSETID x 900-0 ENTRIESADDED 400 MAXDELETEDID 3-0"]),
        44..62 => {
            let more = pick(random, &["", &format!("COUNT {count} "), "NOACK ", "BLOCK 1 "]);
            let streams = pick(random, &["x y > >", &format!("{key} >"), &format!("{key} >")]);
            format!("XREADGROUP GROUP {group} {consumer} {more}STREAMS {streams}")
        }
        62..72 => {
            let from = pick(random, &["0", &id]);
            format!("XREADGROUP GROUP {group} {consumer} COUNT {count} STREAMS {key} {from}")
        }
        72..80 => format!("XACK {key} {group} {id} {}-0", random.u64(1..=*top)),
        80..92 => {
            let idle = pick(random, &["0", "0", "500"]);
            let more =
                ["", "", "JUSTID", "FORCE", "IDLE 700", "TIME 5", "RETRYCOUNT 9", "LASTID 7-7"];
            let more = pick(random, &more);
            format!("XCLAIM {key} {group} {consumer} {idle} {id} {}-0 {more}", random.u64(1..=*top))
        }
        _ => {
            let idle = pick(random, &["0", "300"]);
            format!("XAUTOCLAIM {key} {group} {consumer} {idle} 0 COUNT {count}")
        }
    };
    line.split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// All that can be told of a stream, a line for each fact, but for how its entries lie in memory.
/// Times at which consumers were seen are told apart.
fn told(client: &mut Client, key: &str) -> (Vec<String>, Vec<i64>) {
    let shown = client.call(&["XINFO", "STREAM", key, "FULL", "COUNT", "0"]).show();
    let (mut lines, mut seen) = (Vec::new(), Vec::new());
    let mut shown = shown.lines();
    while let Some(line) = shown.next() {
        lines.push(line.to_owned());
        let value = |value: Option<&str>| {
            let digits = value.and_then(|value| value.rsplit(' ').next()).expect("a value");
            digits.parse().expect("a time")
        };
        if line.ends_with("\"seen-time\"") {
            seen.push(value(shown.next()));
        } else if line.contains("\"radix-tree-") {
            shown.next();
        }
    }
    (lines, seen)
}

fn offset(client: &mut Client) -> String {
    let Reply::Bulk(text) = client.call(&["INFO", "replication"]) else { panic!("INFO has text") };
    let text = String::from_utf8(text).expect("text");
    let found = text.lines().find_map(|line| line.strip_prefix("master_repl_offset:"));
    found.expect("an offset").to_owned()
}

/// Waits until a replica has applied all of its primary's stream.
fn catch_up(client: &mut Client, reader: &mut Client) {
    let end = offset(client);
    wait_for("the stream", || (offset(reader) == end).then_some(()));
}

fn follow(primary: &TestServer, replica: &TestServer) {
    let mut client = replica.connect();
    let port = primary.address.port().to_string();
    client.call(&["REPLICAOF", "127.0.0.1", &port]);
    wait_for("the link", || {
        [primary, replica].into_iter().for_each(TestServer::settle);
        let Reply::Bulk(info) = client.call(&["INFO", "replication"]) else { return None };
        String::from_utf8_lossy(&info).contains("master_link_status:up").then_some(())
    });
}

#[test]
fn a_replica_knows_of_groups_and_consumers_what_its_primary_knows() {
    let seed = seed("STREAMS_SEED");
    let commands = number_from("STREAMS_COMMANDS", 3_000) as usize;
    println!("STREAMS_SEED={seed} STREAMS_COMMANDS={commands}");
    let mut random = Rng::with_seed(seed);
    let lines = ["repl-diskless-sync-delay 0", "repl-timeout 100000", "compatible-with redis-8"];
    let lines = lines.map(str::to_owned);
    let folder = tempfile::tempdir().expect("a folder");
    let with_dir = [&lines[..], &[format!("dir {}", folder.path().display())]].concat();
    let (primary, replica) = (TestServer::start(&lines), TestServer::start(&with_dir));
    let (mut client, mut reader) = (primary.connect(), replica.connect());
    let mut history = Vec::new();
    let (mut top, mut compared) = (1, 0);
    for number in 0..commands {
        if number.is_multiple_of(EPOCH * 3) {
            // Half of what it knows it has from a snapshot.
            reader.call(&["REPLICAOF", "NO", "ONE"]);
            reader.call(&["DEBUG", "CHANGE-REPL-ID"]);
            follow(&primary, &replica);
        }
        let args = request(&mut random, &mut top);
        history.push(args.join(" "));
        client.send(&args);
        if args.iter().any(|word| word == "BLOCK") {
            primary.settle();
            catch_up(&mut primary.connect(), &mut reader);
            [&primary, &replica].into_iter().for_each(|server| server.advance(2_000));
        }
        client.reply().expect("the server answers");
        let us = [0, 0, 1_000, 40_000, 400_000, 1_300_000][random.usize(..6)];
        let quiet = number % EPOCH == EPOCH - 1;
        if us == 0 && !quiet {
            continue;
        }
        // Times are those of the replica's clock: nothing is on its way when it moves.
        catch_up(&mut client, &mut reader);
        if quiet {
            for key in ["x", "y", "z"] {
                let ((ours, seen), (theirs, theirs_seen)) =
                    (told(&mut client, key), told(&mut reader, key));
                compared += ours.len();
                let last = history[history.len().saturating_sub(EPOCH * 3)..].join("\n");
                for (ours, theirs) in ours.iter().zip(&theirs) {
                    assert_eq!(ours, theirs, "of {key}, behind\n{last}");
                }
                assert_eq!(ours.len(), theirs.len(), "of {key}, behind\n{last}");
                for (ours, theirs) in seen.iter().zip(&theirs_seen) {
                    let apart = (ours - theirs).abs();
                    assert!(apart <= SEEN_AGAIN_MS, "seen {apart} ms apart, behind\n{last}");
                }
            }
        }
        [&primary, &replica].into_iter().for_each(|server| server.advance(us));
    }
    let Reply::Bulk(info) = client.call(&["INFO", "stats"]) else { panic!("INFO has text") };
    let info = String::from_utf8_lossy(&info).into_owned();
    assert!(info.contains(&format!("sync_full:{}\r", commands.div_ceil(EPOCH * 3))), "{info}");
    println!("{compared} facts compared");
    assert!(compared > commands);
}
