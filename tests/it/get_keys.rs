//! COMMAND GETKEYS of calls that are malformed in every way, as Redis 7.0.15 answers it.

use crate::support::{Reply, TestServer, split_args};

#[test]
fn the_keys_of_a_malformed_call_are_those_that_redis_finds() {
    let server = TestServer::start(&[]);
    let mut client = server.connect();
    let calls: Vec<(&str, &str)> = include_str!("../data/getkeys-7.0.15.tsv")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split_once('\t').expect("a call and its answer"))
        // It may have more arguments here: RELEASE.
        .filter(|(call, expected)| {
            !(call.starts_with("xgroup delconsumer") && expected.contains("Invalid number"))
        })
        .collect();
    let mut faults = Vec::new();
    for (call, expected) in &calls {
        let mut request = split_args("COMMAND GETKEYS");
        request.extend(split_args(call));
        let reply = client.call(&request);
        let expected = match Some(*expected).filter(|text| text.starts_with("-ERR")) {
            Some(error) => Reply::Error(error[1..].into()),
            None if expected.is_empty() => Reply::Array(Vec::new()),
            None => Reply::Array(split_args(expected).into_iter().map(Reply::Bulk).collect()),
        };
        if reply != expected {
            let (theirs, ours) = (expected.show(), reply.show());
            faults.push(format!("{call}\n  theirs: {theirs}\n  ours: {ours}"));
        }
    }
    assert!(calls.len() >= 890, "{} calls", calls.len());
    assert!(faults.is_empty(), "{} calls differ:\n{}", faults.len(), faults.join("\n"));
}
