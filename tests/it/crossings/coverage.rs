//! Each command and each option is in the random requests, and succeeds at least once; and each
//! option that a command's source reads is in its specification, from which the requests are
//! derived.

use std::collections::BTreeSet;
use std::path::Path;

use super::Sources;
use super::author::{ALONE, LEFT_OUT, Manner, is_left_out};
use super::world::{MS, World};
use crate::simulation::connection::Connection;
use crate::support::Reply;
use crate::support::derived::{Command, Derived, Point};
use latchkey::sys::disk::model::ModelDisk;
use latchkey::sys::random;

/// Requests after which what has not succeeded never will.
const REQUESTS_MAX: usize = 150_000;

/// What of the grammar never succeeds here, and why.
const NEVER: &[(&str, &str)] = &[
    ("client|caching", "needs CLIENT TRACKING on the same connection"),
    ("client|caching/yes_no/YES", "needs CLIENT TRACKING on the same connection"),
    ("client|caching/yes_no/NO", "needs CLIENT TRACKING on the same connection"),
    ("client|import-source/on_off/ON", "needs import-mode"),
    ("client|tracking/REDIRECT", "needs another client that stays"),
    ("lock.acquire/milliseconds_milliseconds/ASYNC", "needs RESP3"),
    ("lock.macquire/milliseconds_milliseconds/ASYNC", "needs RESP3"),
    ("wait/numreplicas_all/ALL", "needs a replica"),
    ("latency|graph", "nothing takes long where the clock stands still"),
];

/// Options that no specification names, and why.
const UNNAMED: &[(&str, &str)] = &[
    ("BYPOLYGON", "Valkey's alone: COMMAND DOCS has Redis's dialect"),
    ("CPU-USEC", "a metric of CLUSTER SLOT-STATS"),
    ("FAILOVER", "Valkey's alone: COMMAND DOCS has Redis's dialect"),
    ("KEY-COUNT", "a metric of CLUSTER SLOT-STATS"),
    ("MERGE", "DEBUG's arguments are its own"),
    ("NETWORK-BYTES-IN", "a metric of CLUSTER SLOT-STATS"),
    ("NETWORK-BYTES-OUT", "a metric of CLUSTER SLOT-STATS"),
    ("NEVER", "DEBUG's arguments are its own"),
    ("NOFLUSH", "DEBUG's arguments are its own"),
    ("PEAK-RESET-TIME", "DEBUG's arguments are its own"),
    ("REPLICAID", "said by a primary that ends, to its replicas"),
    ("RESIZING", "DEBUG's arguments are its own"),
    ("SAFE", "Valkey's alone: COMMAND DOCS has Redis's dialect"),
    ("SLOT", "of CLUSTERSCAN, read where SCAN's options are"),
];

/// A server that gets requests, and which points of the grammar have succeeded.
struct Coverage<'a> {
    world: World,
    node: usize,
    sources: &'a Sources,
    connection: Option<Connection>,
    succeeded: BTreeSet<Point>,
    /// Requests, and those that were not refused.
    sent: usize,
    answered: usize,
}

impl Coverage<'_> {
    /// Sends a request, on a connection of its own if it may have to wait or changes what a
    /// connection is.
    fn send(&mut self, command: &Command, derived: &Derived) {
        let connection = self.connection.take().filter(|connection| !connection.has_ended);
        let mut connection = connection.unwrap_or_else(|| self.world.connect(self.node));
        connection.send(&derived.args);
        self.world.turn(self.node);
        let mut replies = connection.take();
        for _ in 0..4 {
            if !replies.is_empty() || connection.has_ended {
                break;
            }
            self.world.clock.advance_us(500 * MS);
            self.world.turn(self.node);
            replies = connection.take();
        }
        self.sent += 1;
        if matches!(replies.first(), Some(reply) if !matches!(reply, Reply::Error(_))) {
            self.succeeded.extend(&derived.points);
            self.answered += 1;
        }
        if connection.awaited == 0 && !command.waits() && !ALONE.contains(&&*command.name) {
            self.connection = Some(connection);
        }
    }

    fn missing(&self, command: &Command) -> Vec<Point> {
        let mut points = self.sources.grammar.points_of(command);
        points.retain(|point| {
            let name = &self.sources.grammar.points[*point];
            !self.succeeded.contains(point) && !NEVER.iter().any(|(never, _)| never == name)
        });
        points
    }
}

#[test]
fn every_command_and_option_succeeds_in_random_requests() {
    random::repeat_from(1);
    let sources = Sources::read();
    let mut world = World::new();
    let lines = ["appendonly yes".to_owned(), "proto-max-bulk-len 1mb".to_owned()];
    let node = world.start(&lines, ModelDisk::new(0)).expect("an empty disk");
    let mut coverage = Coverage {
        world,
        node,
        sources: &sources,
        connection: None,
        succeeded: BTreeSet::new(),
        sent: 0,
        answered: 0,
    };
    let manner = Manner { is_determined: false, has_large: false };
    let mut author = sources.author(1, manner);
    for name in ["multi", "exec", "discard"] {
        // These are steps of their own, see `author::Step`.
        let mut connection = coverage.world.connect(node);
        for word in ["MULTI", name].iter().filter(|word| **word != "multi") {
            connection.send(&[word]);
        }
        assert!(
            !coverage.world.answers(&mut connection).iter().any(|it| matches!(it, Reply::Error(_)))
        );
    }
    let commands: Vec<&Command> =
        sources.grammar.commands.iter().filter(|command| !is_left_out(command)).collect();
    while coverage.sent < REQUESTS_MAX {
        let open: Vec<&&Command> =
            commands.iter().filter(|command| !coverage.missing(command).is_empty()).collect();
        if open.is_empty() {
            break;
        }
        for command in open {
            for _ in 0..10 {
                if coverage.missing(command).is_empty() {
                    break;
                }
                let other = author.command();
                if !other.has("admin") {
                    let derived = author.maker.request(other);
                    coverage.send(other, &derived);
                }
                let derived = author.maker.request(command);
                coverage.send(command, &derived);
            }
        }
        coverage.world.clock.advance_us(1_000_000);
    }
    let missing: Vec<&String> = commands
        .iter()
        .flat_map(|command| coverage.missing(command))
        .map(|point| &sources.grammar.points[point])
        .collect();
    let total = commands.iter().flat_map(|command| sources.grammar.points_of(command)).count();
    println!(
        "{total} commands and options of {} commands, {} requests, {} not refused",
        commands.len(),
        coverage.sent,
        coverage.answered
    );
    assert!(
        missing.is_empty(),
        "{} never succeeded; make `author.rs` send what they need, or list them in NEVER: {missing:#?}",
        missing.len()
    );
    for (name, why) in NEVER {
        let point = sources.grammar.points.iter().position(|point| point == name);
        let point = point.unwrap_or_else(|| panic!("{name} ({why}) is no option"));
        assert!(!coverage.succeeded.contains(&point), "{name} succeeds after all");
    }
    for (name, why) in LEFT_OUT {
        let is_one = sources.grammar.commands.iter().any(|command| command.name == *name);
        assert!(is_one, "{name} ({why}) is no command");
    }
}

/// The text of a file, or of all files in a folder.
fn source(path: &Path) -> String {
    if path.is_file() {
        return std::fs::read_to_string(path).expect("a source file");
    }
    let entries = std::fs::read_dir(path).expect("a folder");
    entries.map(|entry| source(&entry.expect("an entry").path())).collect()
}

#[test]
fn every_option_that_is_read_is_in_the_specification() {
    let sources = Sources::read();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/command");
    let mut unnamed = Vec::new();
    let mut read = 0;
    for entry in std::fs::read_dir(&root).expect("a folder") {
        let text = source(&entry.expect("an entry").path());
        let here: Vec<&Command> = sources
            .grammar
            .commands
            .iter()
            .filter(|command| {
                let name = command.name.split('|').next().unwrap_or_default();
                text.contains(&format!("\"{}\"", name.to_ascii_uppercase()))
            })
            .collect();
        let tokens: BTreeSet<&str> =
            here.iter().flat_map(|command| sources.grammar.tokens_of(command)).collect();
        for piece in text.split("take_word(\"").skip(1) {
            let word = piece.split('"').next().unwrap_or_default();
            read += 1;
            if !tokens.contains(word) && !UNNAMED.iter().any(|(known, _)| *known == word) {
                unnamed.push(word.to_owned());
            }
        }
    }
    assert!(read > 100, "options are read in another way: {read}");
    assert!(
        unnamed.is_empty(),
        "a handler reads {unnamed:?}: add it to the syntax in the command's `docs`, or to UNNAMED"
    );
}
