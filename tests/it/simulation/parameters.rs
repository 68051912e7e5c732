//! CONFIG SET of every parameter that can be changed. The list comes from the table of parameters
//! and values from what it tells of each, so that a new parameter is in without anybody thinking of
//! it.

use latchkey::config::{Config, PARAMS, Param};

use super::world::World;
use crate::support::Reply;

/// Parameters that are left alone, and why.
const LEFT_ALONE: &[(&str, &str)] = &[
    ("bind", "a simulated server listens nowhere"),
    ("port", "a simulated server listens nowhere"),
    ("tls-port", "a simulated server listens nowhere"),
    ("rdma-bind", "a simulated server listens nowhere"),
    ("protected-mode", "all clients would be refused"),
    ("requirepass", "all clients would be refused"),
    ("dir", "it is the process's folder, in which other tests work"),
    ("oom-score-adj", "it is the process's"),
    ("oom-score-adj-values", "it is the process's"),
    ("http-port", "a simulated server listens nowhere"),
    ("http-bind", "a simulated server listens nowhere"),
    ("http-tls", "a simulated server listens nowhere"),
    ("crash-log-enabled", "it is the process's"),
    ("maxclients", "it is the process's limit of files"),
    ("maxclients-reserved", "all clients would be refused"),
    ("watchdog-period", "a thread looks at the real time"),
    ("busy-reply-threshold", "a thread looks at the real time"),
    ("rdb-key-save-delay", "the real time passes"),
    ("replica-read-only", "a replica that others write to differs from its primary"),
    (
        "hll-sparse-max-bytes",
        "a primary and its replicas encode HyperLogLogs differently then, as those of Redis do",
    ),
    ("replica-ignore-maxmemory", "a replica that evicts differs from its primary"),
    ("primary-restart-read-only", "a run relies on what its servers have started with"),
    ("repl-protect-empty-primary", "a run relies on what its servers have started with"),
];

/// Parameters on which it depends what survives an end: changed by those alone who keep count of
/// what is promised.
const DURABILITY: &[&str] = &["appendonly", "appendfsync", "no-appendfsync-on-rewrite"];

/// Parameters of memory: changed by those alone who keep count of what may be evicted.
const MEMORY: &[&str] = &["maxmemory", "maxmemory-policy"];

fn may_change(param: &Param) -> bool {
    let name = param.name;
    !param.traits.immutable
        && !LEFT_ALONE.iter().any(|(left, _)| *left == name)
        && !DURABILITY.contains(&name)
        && !MEMORY.contains(&name)
}

/// A value, mostly one that is allowed.
fn value(random: &mut fastrand::Rng, param: &Param) -> String {
    let shown = Config::default().get(&[param.name.as_bytes()]);
    let default = String::from_utf8_lossy(&shown[0].1).into_owned();
    let described = param.describe();
    let mut pick = |values: &[&str]| values[random.usize(..values.len())].to_owned();
    match param.name {
        // Replies of some size must get through: the run asks its servers.
        "client-output-buffer-limit" => {
            return pick(&[
                "normal 8mb 1mb 1",
                "replica 64kb 16kb 1",
                "replica 0 0 0",
                "pubsub 1kb 0 0",
                "normal 0 0 0 replica 1mb 64kb 2 pubsub 32mb 8mb 60",
            ]);
        }
        "maxmemory-clients" => return pick(&["0", "1mb", "10mb", "80%"]),
        "key-load-delay" => return pick(&["0", "100", "2000", "-3"]),
        // An empty one is allowed, and no file.
        "dbfilename" => return pick(&["dump.rdb", "x", "x.rdb"]),
        // Values come up to so many bytes.
        "client-query-buffer-limit" => return pick(&["8mb", "1gb"]),
        _ => {}
    }
    if described.contains(" | ") {
        let words: Vec<&str> = described.split(" | ").collect();
        return pick(&words);
    }
    if let Some(bounds) = described.strip_prefix("integer, ") {
        let (min, max) = match bounds.strip_prefix("at least ") {
            Some(min) => (min.parse::<i64>().expect("a bound"), i64::from(i32::MAX)),
            None => {
                let (min, max) = bounds.split_once(" to ").expect("two bounds");
                (min.parse().expect("a bound"), max.parse().expect("a bound"))
            }
        };
        let small = min.saturating_add(random.i64(0..=20.min(max.saturating_sub(min))));
        let number = match random.u32(..8) {
            0 => min,
            1 => max,
            2 => max.saturating_add(1),
            3 => return default,
            _ => small,
        };
        return number.to_string();
    }
    if let Some(only) = described.strip_prefix("only ") {
        return only.into();
    }
    let known: &[(&str, &[&str])] = &[
        ("yes or no", &["yes", "no"]),
        ("integer; below", &["1", "10", "100", "500", "2147483647"]),
        (
            "memory",
            &["0", "1", "100", "1kb", "16kb", "1mb", "2mb", "64mb", "1gb", "9223372036854775807"],
        ),
        ("text", &["", "x"]),
        ("version", &["7.0.15", "7.2.4", "8.0.0"]),
        ("pairs of seconds and changes", &["", "1 1", "3600 1 300 100", "5 20"]),
        ("any of the letters", &["", "KEA", "Ex", "AKEmn"]),
        ("up to 100 words", &["", "a", "k:* list"]),
        ("numbers, 0 to 100", &["", "50 99.9", "0 100"]),
        ("default, or any of", &["default", "save", "nosave", "now", "force", "nosave now force"]),
    ];
    match known.iter().find(|(start, _)| described.starts_with(start)) {
        Some((_, values)) => match random.u32(..4) {
            0 => default,
            _ => values[random.usize(..values.len())].to_owned(),
        },
        None => panic!("{}: no values are known of the kind {described:?}", param.name),
    }
}

/// A name and a value.
pub fn setting(random: &mut fastrand::Rng) -> (&'static str, String) {
    let params: Vec<&Param> = PARAMS.iter().filter(|param| may_change(param)).collect();
    let param = params[random.usize(..params.len())];
    (param.name, value(random, param))
}

/// What CONFIG SET has changed on a server, to be undone before servers are compared.
#[derive(Default)]
pub struct Changed {
    /// Server, which of its lives, name and former value.
    former: Vec<(usize, usize, &'static str, String)>,
}

impl Changed {
    /// Sets a parameter of a server: alone or in a transaction between two writes of `key`. Returns
    /// the replies, or None if nobody is there.
    pub fn set(&mut self, world: &mut World, node: usize, in_transaction: bool) {
        let (name, value) = setting(&mut world.random);
        self.note(world, node, name);
        let set = ["CONFIG", "SET", name, &value];
        if in_transaction {
            let Some(mut connection) = world.connect(node) else { return };
            for words in [&["MULTI"][..], &["INCR", "beside"], &set, &["INCR", "beside"], &["EXEC"]]
            {
                connection.send(words);
            }
            world.trace.note(|| format!("transaction of {set:?} on {node}"));
            world.turn(node);
            let replies = connection.take();
            world.trace.note(|| format!("{:?}", replies.last().map(|reply| reply.show())));
        } else {
            let told = world.show(node, &set);
            world.trace.note(|| format!("{set:?} on {node}: {told}"));
        }
        if name == "dbfilename" && world.is_up(node) {
            // As CONFIG REWRITE would: the next start reads what was saved last.
            let held = current(world, node, name);
            world.configure(node, &format!("dbfilename {held}"));
        }
    }

    /// A setting for somebody else to make.
    pub fn draw(&mut self, world: &mut World, node: usize) -> Option<(&'static str, String)> {
        let (name, value) = setting(&mut world.random);
        if name == "dbfilename" || !world.is_up(node) {
            return None;
        }
        self.note(world, node, name);
        Some((name, value))
    }

    fn note(&mut self, world: &mut World, node: usize, name: &'static str) {
        let life = world.nodes[node].life;
        let is_known = |(at, lived, known, _): &(usize, usize, &str, String)| {
            (*at, *lived, *known) == (node, life, name)
        };
        if name != "dbfilename" && !self.former.iter().any(is_known) {
            let value = current(world, node, name);
            self.former.push((node, life, name, value));
        }
    }

    /// Sets all back.
    pub fn undo(&mut self, world: &mut World) {
        for (node, life, name, value) in std::mem::take(&mut self.former) {
            // Whoever has started anew has what its file says.
            if world.is_up(node) && world.nodes[node].life == life {
                let told = world.show(node, &["CONFIG", "SET", name, &value]);
                if told.starts_with("(error) LOADING") {
                    // A replica whose primary sends nothing just now: later.
                    self.former.push((node, life, name, value));
                    continue;
                }
                if told != "OK" && world.is_up(node) {
                    world.fail(&format!("{name} cannot be set back to {value:?}: {told}"));
                }
            }
        }
    }
}

/// A parameter's value.
pub fn current(world: &mut World, node: usize, name: &str) -> String {
    let told = world.ask(node, &["CONFIG", "GET", name]);
    match told {
        Some(Reply::Array(pair)) if pair.len() == 2 => match &pair[1] {
            Reply::Bulk(value) => String::from_utf8_lossy(value).into_owned(),
            other => other.show(),
        },
        _ => String::new(),
    }
}

#[test]
fn every_parameter_that_can_be_changed_has_values_or_a_reason() {
    for (name, reason) in LEFT_ALONE {
        let param = Param::find(name.as_bytes()).expect("a parameter");
        assert!(!param.traits.immutable && !reason.is_empty(), "{name}");
    }
    let mut random = fastrand::Rng::with_seed(1);
    for param in PARAMS.iter().filter(|param| may_change(param)) {
        for _ in 0..100 {
            value(&mut random, param);
        }
    }
}
