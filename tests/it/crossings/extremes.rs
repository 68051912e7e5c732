//! What is large or lies at a limit is kept by all as it is: deadlines, values of megabytes,
//! collections of many elements.

use super::author::{Args, Manner, Step, words};
use super::{Plan, run};
use crate::support::derived::{LARGE, LIMITS};

/// Elements of each collection: in `cargo test`, and in `make crossings`.
const ELEMENTS: usize = 3_000;
const ELEMENTS_LARGE: usize = 100_000;
/// Elements that one request adds.
const BATCH: usize = 500;

/// Ways to set a deadline: a key, its type, and the request, in which `@` is the time.
const DEADLINES: &[(&str, &str)] = &[
    ("SET k v", "EXPIRE k @"),
    ("SET k v", "PEXPIRE k @"),
    ("SET k v", "EXPIREAT k @"),
    ("SET k v", "PEXPIREAT k @"),
    ("SET k v", "GETEX k EX @"),
    ("SET k v", "GETEX k PX @"),
    ("SET k v", "GETEX k EXAT @"),
    ("SET k v", "GETEX k PXAT @"),
    ("DEL k", "SET k v EX @"),
    ("DEL k", "SET k v PX @"),
    ("DEL k", "SET k v EXAT @"),
    ("DEL k", "SET k v PXAT @"),
    ("DEL k", "SETEX k @ v"),
    ("DEL k", "PSETEX k @ v"),
    ("DEL k", "MSETEX 1 k v EX @"),
    ("DEL k", "MSETEX 1 k v PXAT @"),
    ("HSET k f v g w", "HEXPIRE k @ FIELDS 1 f"),
    ("HSET k f v g w", "HPEXPIRE k @ FIELDS 1 f"),
    ("HSET k f v g w", "HEXPIREAT k @ FIELDS 1 f"),
    ("HSET k f v g w", "HPEXPIREAT k @ FIELDS 1 f"),
    ("HSET k f v g w", "HGETEX k EX @ FIELDS 1 f"),
    ("HSET k f v g w", "HGETEX k PX @ FIELDS 1 f"),
    ("HSET k f v g w", "HGETEX k EXAT @ FIELDS 1 f"),
    ("HSET k f v g w", "HGETEX k PXAT @ FIELDS 1 f"),
    ("DEL k", "HSETEX k EX @ FIELDS 1 f v"),
    ("DEL k", "HSETEX k PX @ FIELDS 1 f v"),
    ("DEL k", "HSETEX k EXAT @ FIELDS 1 f v"),
    ("DEL k", "HSETEX k PXAT @ FIELDS 1 f v"),
];

fn plan(seed: u64) -> Plan {
    Plan::with(seed, Manner { is_determined: false, has_large: true })
}

fn agrees(plan: &Plan, steps: &[Step]) {
    if let Err(error) = run(plan, steps) {
        panic!("{error}");
    }
}

#[test]
fn a_deadline_at_any_limit_is_kept_or_refused() {
    let mut steps = Vec::new();
    for (number, (before, request)) in DEADLINES.iter().enumerate() {
        for (at, limit) in LIMITS.iter().enumerate() {
            let key = format!("k{number}-{at}");
            for line in [before, request] {
                let line = line.replace(" k", &format!(" {key}")).replace('@', &limit.to_string());
                steps.push(Step::Send(words(&line)));
            }
        }
    }
    agrees(&plan(1), &steps);
}

/// Streams as odd as requests can make them, rebuilt by requests.
#[test]
fn a_stream_is_kept_however_it_was_set() {
    let mut plan = plan(3);
    plan.primary.push("aof-use-rdb-preamble no".into());
    let steps = [
        // Its last ID lies below that of a deleted entry.
        "XADD x 5-1 f v",
        "XADD x 6-1 f v",
        "XDEL x 5-1 6-1",
        "XSETID x 0-5",
        "XGROUP CREATE empty g 0 MKSTREAM",
        "XSETID empty 9007199254740993 ENTRIESADDED 9223372036854775807 MAXDELETEDID 2",
        "XSETID empty 0-1",
        "XADD last 18446744073709551615-18446744073709551615 f v",
        "XGROUP CREATE last g 18446744073709551615-18446744073709551615 ENTRIESREAD 7",
    ];
    let steps: Vec<Step> = steps.iter().map(|line| Step::Send(words(line))).collect();
    agrees(&plan, &steps);
}

/// A set's order is another one on each server.
#[test]
fn what_is_stored_depends_on_no_inner_order() {
    let mut steps = Vec::new();
    let heads = ["SADD s", "SADD u", "ZADD z", "RPUSH l", "GEOADD g"];
    for number in 0..700 {
        for head in heads {
            let member = match head {
                "SADD u" | "RPUSH l" => format!("{number}"),
                "ZADD z" => format!("0 m{number}"),
                "GEOADD g" => format!("{} 41.5 m{number}", number % 3),
                _ => format!("m{number}"),
            };
            steps.push(Step::Send(words(&format!("{head} {member}"))));
        }
    }
    let mut stored = 0;
    let mut store = |line: String| {
        stored += 1;
        steps.push(Step::Send(words(&line.replace('@', &format!("stored{stored}")))));
    };
    for source in ["s", "u", "z", "l"] {
        for by in ["", " BY none*", " BY nosort", " BY h*->f"] {
            for options in ["", " ALPHA", " DESC ALPHA", " LIMIT 5 20 ALPHA", " GET # GET t* ALPHA"]
            {
                store(format!("SORT {source}{by}{options} STORE @"));
            }
        }
    }
    for options in ["", " ASC", " DESC", " COUNT 5", " COUNT 5 ANY", " COUNT 5 DESC"] {
        store(format!("GEOSEARCHSTORE @ g FROMLONLAT 0 41 BYRADIUS 9000 km{options}"));
        store(format!("GEOSEARCHSTORE @ g FROMMEMBER m1 BYBOX 900 900 km{options} STOREDIST"));
        store(format!("GEORADIUS g 0 41 9000 km{options} STORE @"));
        store(format!("GEORADIUSBYMEMBER g m1 9000 km{options} STOREDIST @"));
    }
    agrees(&plan(4), &steps);
}

/// Requests that make large collections, and those that change something in their midst.
fn large(elements: usize) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut add = |args: Args| steps.push(Step::Send(args));
    let number = |number: usize| number.to_string().into_bytes();
    let starts = (0..elements).step_by(BATCH);
    for (head, is_pair) in [
        ("RPUSH l", false),
        ("SADD s", false),
        ("SADD texts", false),
        ("HSET h", true),
        ("ZADD z", true),
        ("PFADD p", false),
    ] {
        for start in starts.clone() {
            let mut args = words(head);
            for at in start..(start + BATCH).min(elements) {
                if is_pair {
                    args.push(number(at));
                }
                args.push(if head == "SADD s" {
                    number(at)
                } else {
                    format!("m{at}").into_bytes()
                });
            }
            add(args);
        }
    }
    for at in 0..elements / 10 {
        add(words(&format!("XADD x {at}-1 f v{at} g w")));
    }
    for line in ["XGROUP CREATE x g 0", "XREADGROUP GROUP g c COUNT 100000 STREAMS x >"] {
        add(words(line));
    }
    for (name, bytes) in [("a", 50_000), ("b", 200_000)] {
        add(vec!["SET".into(), name.into(), vec![b'v'; bytes]]);
        add(vec!["RPUSH".into(), "values".into(), vec![b'v'; bytes], "small".into()]);
        add(vec!["HSET".into(), "fields".into(), name.into(), vec![b'v'; bytes]]);
        add(vec!["HSET".into(), "names".into(), vec![b'v'; bytes], name.into()]);
        add(vec!["SADD".into(), "members".into(), vec![b'v'; bytes]]);
        add(vec!["ZADD".into(), "scores".into(), "1".into(), vec![b'v'; bytes]]);
        add(vec!["XADD".into(), "entries".into(), "*".into(), "f".into(), vec![b'v'; bytes]]);
        add(words(&format!("SETRANGE {name}range {bytes} end")));
        add(words(&format!("SETBIT {name}bits {} 1", bytes * 8)));
    }
    // A driven server's snapshot fits into the saver's queue of 16 MB: its thread's work is done
    // once the walk is over.
    for name in ["SET c", "RPUSH values", "HSET fields c"] {
        let mut args = words(name);
        args.push(vec![b'v'; LARGE]);
        steps.push(Step::Send(args));
    }
    steps.push(Step::Compare);
    let mut add = |line: String| steps.push(Step::Send(words(&line)));
    let middle = elements / 2;
    add("APPEND b more".into());
    add("SETRANGE c 5 more".into());
    add("LSET values 2 more".into());
    add(format!("LSET l {middle} more"));
    add(format!("LREM l 1 m{}", middle + 1));
    add(format!("LTRIM l 1 -{}", elements / 4));
    add(format!("SREM s {middle}"));
    add(format!("SREM texts m{middle}"));
    add(format!("HDEL h {middle}"));
    add(format!("HPEXPIRE h 100000 FIELDS 1 {}", middle + 1));
    add(format!("ZREMRANGEBYRANK z {middle} {}", middle + 10));
    add(format!("ZADD z XX 0 m{}", middle + 20));
    add(format!("XDEL x {}-1", elements / 20));
    add("XTRIM x MAXLEN ~ 50 LIMIT 100".into());
    steps
}

#[test]
fn large_values_and_collections_are_kept() {
    agrees(&plan(2), &large(ELEMENTS));
}

#[test]
#[ignore = "takes minutes: make crossings"]
fn larger_collections_are_kept() {
    for seed in 2..6 {
        agrees(&plan(seed), &large(ELEMENTS_LARGE));
    }
}
