//! Clients that do not read what they are sent, and messages too large to be copied to each listener.

mod support;

use support::{Reply, TestServer};

/// More than the system's socket buffers and any limit here take.
const PLENTY: usize = 400;

fn config(lines: &[&str]) -> TestServer {
    let lines: Vec<String> = lines.iter().map(|&line| line.into()).collect();
    TestServer::start(&lines)
}

#[test]
fn a_large_message_reaches_listeners_of_both_protocols_whole() {
    let server = config(&[]);
    let payload = "0123456789".repeat(20_000);
    let mut old = server.connect();
    let mut new = server.connect();
    old.call(&["PSUBSCRIBE", "c*"]);
    new.call(&["HELLO", "3"]);
    new.send(&["SUBSCRIBE", "c"]);
    new.next_message().expect("a confirmation");
    let mut publisher = server.connect();
    for _ in 0..3 {
        assert_eq!(publisher.call(&["PUBLISH", "c", &payload]), Reply::Integer(2));
    }
    let bulk = |text: &str| Reply::Bulk(text.into());
    for _ in 0..3 {
        let message = vec![bulk("pmessage"), bulk("c*"), bulk("c"), bulk(&payload)];
        assert_eq!(old.next_message(), Some(Reply::Array(message)));
        let message = vec![bulk("message"), bulk("c"), bulk(&payload)];
        assert_eq!(new.next_message(), Some(Reply::Push(message)));
    }
}

#[test]
fn a_subscriber_that_does_not_read_is_cut_off_at_the_hard_limit() {
    let server = config(&["client-output-buffer-limit pubsub 256kb 0 0"]);
    let mut publisher = server.connect();
    // Small ones are copied to each listener, large ones shared.
    for payload in ["x".repeat(10_000), "x".repeat(100_000)] {
        let mut deaf = server.connect();
        deaf.call(&["SUBSCRIBE", "c"]);
        let cut = (0..PLENTY * 10).any(|_| {
            publisher.call(&["PUBLISH", "c", &payload]) == Reply::Integer(0)
        });
        assert!(cut, "still connected");
    }
}

#[test]
fn a_subscriber_that_stays_over_the_soft_limit_is_cut_off_when_its_time_is_up() {
    let server = config(&["client-output-buffer-limit pubsub 0 64kb 10"]);
    let mut deaf = server.connect();
    deaf.call(&["SUBSCRIBE", "c"]);
    let mut publisher = server.connect();
    let payload = "x".repeat(100_000);
    for _ in 0..PLENTY {
        assert_eq!(publisher.call(&["PUBLISH", "c", &payload]), Reply::Integer(1));
    }
    server.advance(9_000_000);
    assert_eq!(publisher.call(&["PUBLISH", "c", "x"]), Reply::Integer(1));
    server.advance(2_000_000);
    server.settle();
    assert_eq!(publisher.call(&["PUBLISH", "c", "x"]), Reply::Integer(0));
}

#[test]
fn a_subscriber_that_catches_up_in_time_stays() {
    let server = config(&["client-output-buffer-limit pubsub 0 64kb 10"]);
    let mut slow = server.connect();
    slow.call(&["SUBSCRIBE", "c"]);
    let mut publisher = server.connect();
    let payload = "x".repeat(100_000);
    for _ in 0..PLENTY {
        publisher.call(&["PUBLISH", "c", &payload]);
    }
    server.advance(9_000_000);
    for _ in 0..PLENTY {
        slow.next_message().expect("a message");
    }
    server.advance(20_000_000);
    server.settle();
    assert_eq!(publisher.call(&["PUBLISH", "c", "x"]), Reply::Integer(1));
}
