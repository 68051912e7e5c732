//! Scripts made up at random, run by this server and by a real Redis 7.0.15, have equal results:
//! values by their types and `%.17g`, errors as errors, and their texts where they are the same
//! words. What differs and stays is in `known.rs`, by classes.
//!
//! Needs a peer that runs already, `SCRIPTS_PEER=host:port`, and is left out otherwise: `make peer`
//! names one. A run is repeated by its seed, `SCRIPTS_SEED`; `SCRIPTS_CASES` is its length.
//! `SCRIPTS_SHOWN` is the number of differences shown for each group.

mod cases;
mod known;
mod variables;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use cases::Case;
use fastrand::Rng;

use crate::support::{Client, Reply, TestServer, number_from, seed};

/// Runs sources, and returns the text of each one's results.
const RUNNER: &str = include_str!("runner.lua");
/// Cases of one EVAL.
const BATCH: usize = 200;

/// The results of sources: by one EVAL for all, as an error that is caught ends only its own.
fn run(client: &mut Client, cases: &[Case]) -> Vec<Vec<u8>> {
    let mut request: Vec<&[u8]> = vec![b"EVAL", RUNNER.as_bytes(), b"0"];
    request.extend(cases.iter().map(|case| case.source.as_slice()));
    client.call(&["FLUSHALL"]);
    match client.call(&request) {
        Reply::Array(results) => results
            .into_iter()
            .map(|result| match result {
                Reply::Bulk(text) => text,
                other => panic!("a result is a text: {other:?}"),
            })
            .collect(),
        other => panic!("the sources run: {}", other.show()),
    }
}

/// How the results of a case differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Value,
    FailsHere,
    FailsThere,
    /// Both fail, with other words.
    Words,
}

/// A result without the words of errors in it, which the runner puts between the bytes 1 and 2.
fn without_words(result: &[u8]) -> Vec<u8> {
    let mut is_word = false;
    let kept = result.iter().filter(|byte| {
        is_word = **byte == 1 || is_word && **byte != 2;
        !is_word
    });
    kept.copied().collect()
}

fn kind_of(ours: &[u8], theirs: &[u8]) -> Option<Kind> {
    let fails = |text: &[u8]| text.starts_with(b"error ");
    match (fails(ours), fails(theirs)) {
        _ if ours == theirs => None,
        (false, false) if without_words(ours) == without_words(theirs) => Some(Kind::Words),
        (false, false) => Some(Kind::Value),
        (true, false) => Some(Kind::FailsHere),
        (false, true) => Some(Kind::FailsThere),
        (true, true) => Some(Kind::Words),
    }
}

#[derive(Default)]
struct Differences {
    count: usize,
    shown: Vec<String>,
}

#[test]
#[ignore = "needs a peer: SCRIPTS_PEER=host:port"]
fn scripts_have_the_results_of_redis() {
    let peer: SocketAddr =
        std::env::var("SCRIPTS_PEER").expect("SCRIPTS_PEER=host:port").parse().expect("an address");
    let server = TestServer::start(&["compatible-with redis-7.0".into()]);
    let (mut ours, mut theirs) = (server.connect(), Client::connect(peer));
    let (seed, count) = (seed("SCRIPTS_SEED"), number_from("SCRIPTS_CASES", 50_000) as usize);
    let shown_max = number_from("SCRIPTS_SHOWN", 3) as usize;
    let mut random = Rng::with_seed(seed);
    let mut unknown: BTreeMap<(&str, Kind), Differences> = BTreeMap::new();
    let mut known: BTreeMap<&str, usize> = BTreeMap::new();
    let mut kinds: BTreeMap<Kind, usize> = BTreeMap::new();
    let mut left = count;
    while left > 0 {
        let batch: Vec<Case> = (0..BATCH.min(left)).map(|_| cases::case(&mut random)).collect();
        left -= batch.len();
        let results = run(&mut ours, &batch).into_iter().zip(run(&mut theirs, &batch));
        for (case, (ours, theirs)) in batch.iter().zip(results) {
            let Some(kind) = kind_of(&ours, &theirs) else { continue };
            if let Some(class) = known::class(&case.source, &ours, &theirs) {
                *known.entry(class).or_default() += 1;
                continue;
            }
            let differences = unknown.entry((case.group, kind)).or_default();
            differences.count += 1;
            *kinds.entry(kind).or_default() += 1;
            if differences.shown.len() < shown_max {
                let show = |text: &[u8]| text.escape_ascii().to_string();
                let (source, ours, theirs) = (show(&case.source), show(&ours), show(&theirs));
                differences.shown.push(format!("{source}\n    here  {ours}\n    there {theirs}"));
            }
        }
    }
    println!("{count} cases, seed {seed}; unknown differences: {kinds:?}");
    for (class, count) in &known {
        println!("known: {count} {class}");
    }
    for ((group, kind), differences) in &unknown {
        println!("{group}, {kind:?}: {}", differences.count);
        differences.shown.iter().for_each(|shown| println!("  {shown}"));
    }
    assert!(unknown.is_empty(), "unknown differences: {kinds:?}");
}
