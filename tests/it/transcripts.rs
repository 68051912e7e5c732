//! Runs the transcripts in `tests/transcripts`, which read like redis-cli sessions.
//!
//! Each scenario (from a line `# sentence` to the next) gets a server of its own with a clock that
//! stands still, and clients that connect when they are first named.
//!
//! ```text
//! # INCR refuses a value that is not an integer
//! a> SET n ten
//! OK
//! a> INCR n
//! (error) ERR value is not an integer or out of range
//! ```
//!
//! In a request, `id:b` stands for the number of client b, as CLIENT ID answers it.
//!
//! A reply is written as redis-cli shows it on a terminal; what that shows alike is told apart:
//! `(nil)` is a null bulk string, `(nil array)` a null array, `(null)` RESP3's null, and a verbatim
//! string begins with its format, `txt:`. `(any)` stands for any reply, `(no reply)` for none; a
//! line that ends in `...` matches any rest of that line. Directives:
//!
//! ```text
//! a<                   what the server sent to client a besides: the lines below show it
//! @advance 10ms        time passes (us, ms, s)
//! @step 5s             somebody sets the wall clock
//! @resp3 a             client a says HELLO 3 (@resp2: HELLO 2)
//! @config name value   a line of the server's configuration, before any client
//! @send a GET k        client a sends a request without waiting; its reply is shown by `a<`
//! @raw a "PING\r\n"    client a sends these bytes; what comes is shown by `a<`
//! @close a             client a goes
//! @closed a            the server has ended client a's connection
//! @ok a                wait until the cluster is ok for client a's node: time passes
//! @ours                the scenario shows what Redis 7.0.15 does not have, or does otherwise (docs/differences.md);
//!                      anywhere in a scenario it counts for all of it, as the first line of a file for all scenarios
//! @redis8              as `@ours`, but Redis 8.6.3 has it too; here it runs with `compatible-with redis-8`
//! ```
//!
//! `TRANSCRIPTS_PEER=127.0.0.1:PORT` runs the same files against a server that is there already,
//! Redis 7.0.15 for example; scenarios with `@ours`, `@config`, `@advance` or `@step` are left out
//! then, and the files run one after the other, since they share its data.
//! `TRANSCRIPTS_REDIS8=127.0.0.1:PORT` runs the scenarios with `@redis8` against a Redis 8.6.3.
//! `TRANSCRIPTS_CLUSTER_PEER` does the same with a node of a cluster, and the scenarios that have
//! `@config cluster-enabled yes`, and no other of these directives. Each file is a test of its
//! name: `cargo test --test it transcripts::list` runs those whose names begin with `list`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::support::{Session, split_args};

/// Makes a test of each file.
macro_rules! transcripts {
    ($($name:ident),* $(,)?) => {
        $(
            #[test]
            fn $name() {
                run_file(stringify!($name));
            }
        )*

        #[test]
        fn every_file_is_a_test() {
            let listed = [$(stringify!($name)),*];
            let mut files: Vec<String> = std::fs::read_dir(folder())
                .expect("the folder of transcripts is there")
                .map(|entry| entry.expect("a folder's entry can be read").file_name())
                .map(|name| name.to_string_lossy().trim_end_matches(".txt").to_owned())
                .collect();
            files.sort();
            assert_eq!(
                files, listed,
                "the files in tests/transcripts, and `transcripts!` in tests/it/transcripts.rs, \
                 which lists them in order"
            );
        }
    };
}

transcripts! {
    acl, advisories, batch, bitmap, bless, client, cluster, cluster_node, command, command_log, compatible_with, config, connection, debug, due, dump, events, evict, expire, function,
    generic, geo, get, hash, hash_expiry, hash_import, hot_keys, hyperloglog, import_mode, limit, list, list_blocking, lock, lock_async, lock_mixed, lock_report, lock_session, lock_shared,
    module, monitor, object,
    ping, pubsub, queue, redirect, scan, script, semaphore, server, set, set_encoding, set_events, sort, sorted_set,
    sorted_set_combine, sorted_set_pop, sorted_set_range, stream_add, stream_claim, stream_group, stream_idempotent, stream_info, stream_owner,
    stream_read, stream_references, string, string_conditions, string_events, tracking, transaction,
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/transcripts")
}

/// One step of a scenario: a line that does something, and the lines of the reply it shows.
pub struct Step<'a> {
    pub number: usize,
    pub action: &'a str,
    pub expected: Vec<&'a str>,
}

struct Scenario<'a> {
    sentence: &'a str,
    steps: Vec<Step<'a>>,
}

impl Scenario<'_> {
    fn has(&self, test: impl Fn(&str) -> bool) -> bool {
        self.steps.iter().any(|step| test(step.action))
    }

    fn is_redis_8(&self) -> bool {
        self.has(|action| action == REDIS8)
    }
}

fn scenarios(text: &str) -> Vec<Scenario<'_>> {
    let mut found: Vec<Scenario<'_>> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if let Some(sentence) = line.strip_prefix("# ") {
            found.push(Scenario { sentence, steps: Vec::new() });
            continue;
        }
        if line.trim().is_empty() {
            continue;
        }
        let scenario = found.last_mut().expect("a transcript begins with a `# sentence`");
        if line.starts_with('@') || prompt(line).is_some() {
            scenario.steps.push(Step { number: index + 1, action: line, expected: Vec::new() });
        } else {
            let step = scenario.steps.last_mut().expect("a reply stands behind a request");
            step.expected.push(line);
        }
    }
    found
}

/// `a> request` or `a<`: the client's name, the mark, the rest.
pub fn prompt(line: &str) -> Option<(&str, char, &str)> {
    let end = line.find(['>', '<'])?;
    let (name, rest) = line.split_at(end);
    let is_name = (1..=8).contains(&name.len()) && name.chars().all(|c| c.is_ascii_alphanumeric());
    let mark = rest.chars().next()?;
    let rest = &rest[1..];
    (is_name && (rest.is_empty() || rest.starts_with(' '))).then(|| (name, mark, rest.trim_start()))
}

/// Whether the shown lines are the expected ones.
pub fn matches(expected: &[&str], shown: &str) -> bool {
    if expected == ["(any)"] {
        return true;
    }
    let shown: Vec<&str> = shown.split('\n').collect();
    shown.len() == expected.len()
        && shown.iter().zip(expected).all(|(shown, expected)| match expected.strip_suffix("...") {
            Some(beginning) => shown.starts_with(beginning),
            None => shown.trim_end() == expected.trim_end(),
        })
}

/// The configuration of a node of a cluster.
const IN_CLUSTER: &str = "@config cluster-enabled yes";

/// Marks what Redis 8.6.3 has as well.
const REDIS8: &str = "@redis8";

/// Whether a step cannot be taken with a peer, which must also outlive the transcripts. Its version
/// is the one it has.
fn is_only_ours(action: &str) -> bool {
    if action == "@config redis-version 7.0.15" || action == IN_CLUSTER {
        return false;
    }
    action.contains("> SHUTDOWN")
        || ["@ours", "@redis8", "@config", "@advance", "@step"]
            .iter()
            .any(|mark| action.starts_with(mark))
}

fn microseconds(text: &str) -> i64 {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '-').unwrap_or(text.len());
    let number: i64 = text[..digits].parse().expect("a number");
    match &text[digits..] {
        "us" => number,
        "ms" => number * 1000,
        "s" => number * 1_000_000,
        unit => panic!("not a unit of time: {unit}"),
    }
}

/// The arguments of a request, with the numbers of clients in place.
fn arguments(session: &mut Session, line: &str) -> Vec<Vec<u8>> {
    let mut args = split_args(line);
    for arg in &mut args {
        if let Some(name) = arg.strip_prefix(b"id:") {
            let name = std::str::from_utf8(name).expect("a client's name");
            let id = session.client(name).call(&["CLIENT", "ID"]).show();
            *arg = id.trim_start_matches("(integer) ").into();
        }
    }
    args
}

/// Runs one step; what it shows, if it shows anything.
pub fn run_step(session: &mut Session, step: &Step<'_>) -> Option<String> {
    if let Some((name, mark, rest)) = prompt(step.action) {
        if mark == '>' {
            let args = arguments(session, rest);
            session.client(name).send(&args);
        }
        let client = session.client(name);
        if step.expected == ["(no reply)"] {
            session.settle();
            let message = session.client(name).try_message();
            return Some(message.map_or("(no reply)".into(), |message| message.show()));
        }
        let message = match mark {
            '>' => client.reply(),
            _ if client.pushes.is_empty() => client.next_message(),
            _ => Some(client.pushes.remove(0)),
        };
        return Some(message.map_or("(closed)".into(), |message| message.show()));
    }
    let (directive, rest) = step.action.split_once(' ').unwrap_or((step.action, ""));
    match directive {
        "@ours" | REDIS8 => {}
        "@advance" => session.server().advance(microseconds(rest)),
        "@step" => session.server().step_wall(microseconds(rest)),
        "@ok" => session.settle_cluster(rest),
        "@resp2" => drop(session.client(rest).call(&["HELLO", "2"])),
        "@resp3" => drop(session.client(rest).call(&["HELLO", "3"])),
        "@close" => session.close(rest),
        "@closed" => {
            let message = session.client(rest).next_message();
            assert_eq!(message, None, "client {rest} is still connected");
        }
        "@send" => {
            let (name, request) = rest.split_once(' ').expect("a client and a request");
            let args = arguments(session, request);
            session.client(name).send(&args);
            session.settle();
        }
        "@raw" => {
            let (name, bytes) = rest.split_once(' ').expect("a client and bytes");
            session.client(name).send_raw(&split_args(bytes).concat());
            session.settle();
        }
        _ => panic!("not a directive: {directive}"),
    }
    None
}

fn run_scenario(
    file: &Path,
    scenario: &Scenario<'_>,
    peer: Option<SocketAddr>,
) -> Result<(), String> {
    let is_config = |step: &&Step<'_>| step.action.starts_with("@config ");
    let mut lines: Vec<String> =
        scenario.steps.iter().filter(is_config).map(|step| step.action[8..].into()).collect();
    if scenario.is_redis_8() {
        lines.push("compatible-with redis-8".into());
    }
    let mut session = match peer {
        Some(address) if lines.iter().any(|line| IN_CLUSTER.ends_with(line.as_str())) => {
            Session::with_cluster_peer(address)
        }
        Some(address) => Session::with_peer(address),
        None => Session::start(&lines),
    };
    for step in scenario.steps.iter().filter(|step| !is_config(step)) {
        let Some(shown) = run_step(&mut session, step) else { continue };
        if !matches(&step.expected, &shown) {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            return Err(format!(
                "{name}:{}: # {}\n{}\n--- expected\n{}\n--- got\n{shown}\n",
                step.number,
                scenario.sentence,
                step.action,
                step.expected.join("\n"),
            ));
        }
    }
    Ok(())
}

/// Who speaks with the peer: its data is that of one transcript at a time.
static PEER: Mutex<()> = Mutex::new(());

fn run_file(name: &str) {
    let in_cluster = std::env::var("TRANSCRIPTS_CLUSTER_PEER").ok();
    let redis_8 = std::env::var("TRANSCRIPTS_REDIS8").ok();
    let (is_in_cluster, is_redis_8) = (in_cluster.is_some(), redis_8.is_some());
    let peer = redis_8.or(in_cluster).or_else(|| std::env::var("TRANSCRIPTS_PEER").ok());
    let peer: Option<SocketAddr> = peer.map(|peer| peer.parse().expect("an address and a port"));
    // A transcript that has failed leaves nothing behind that the next one does not clear away.
    let _turn = peer.map(|_| PEER.lock().unwrap_or_else(|error| error.into_inner()));
    let file = folder().join(format!("{name}.txt"));
    let text = std::fs::read_to_string(&file).expect("a transcript can be read");
    // A mark before the first scenario is one of each.
    let mark = text.lines().next().filter(|line| ["@ours", REDIS8].contains(line));
    let mut scenarios = scenarios(text.strip_prefix(mark.unwrap_or("")).unwrap_or(&text));
    for scenario in &mut scenarios {
        let step = mark.map(|action| Step { number: 1, action, expected: Vec::new() });
        scenario.steps.splice(0..0, step);
    }
    assert!(!scenarios.is_empty(), "{name} has scenarios");
    let mut failures = Vec::new();
    for scenario in &scenarios {
        let is_other = scenario.has(|action| action == IN_CLUSTER) != is_in_cluster;
        let is_left_out = match is_redis_8 {
            true => {
                !scenario.is_redis_8()
                    || scenario.has(|action| action != REDIS8 && is_only_ours(action))
            }
            false => is_other || scenario.has(is_only_ours),
        };
        if peer.is_some() && is_left_out {
            continue;
        }
        if let Err(failure) = run_scenario(&file, scenario, peer) {
            failures.push(failure);
        }
    }
    let (failed, count) = (failures.len(), scenarios.len());
    assert!(
        failures.is_empty(),
        "{failed} of {count} scenarios failed:\n\n{}",
        failures.join("\n")
    );
}
