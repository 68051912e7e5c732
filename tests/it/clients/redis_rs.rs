//! A real client (the `redis` crate) against a server in this process whose clock the test moves.

use crate::support::{PATIENCE, TestServer};
use redis::{Commands, Connection, RedisResult, Value};

fn connect(server: &TestServer) -> Connection {
    let client = redis::Client::open(format!("redis://{}/", server.address)).expect("an address");
    let connection = client.get_connection().expect("the server takes connections");
    connection.set_read_timeout(Some(PATIENCE)).expect("an option of sockets");
    connection
}

#[test]
fn strings_are_set_and_got() {
    let server = TestServer::start(&[]);
    let mut connection = connect(&server);
    let () = connection.set("k", b"\x00\xff\r\n").expect("OK");
    let bytes: Vec<u8> = connection.get("k").expect("bytes");
    assert_eq!(bytes, b"\x00\xff\r\n");
    let missing: Option<String> = connection.get("nosuch").expect("nil");
    assert_eq!(missing, None);
    let values: Vec<Option<String>> = connection.mget(&["nosuch", "nosuch"]).expect("an array");
    assert_eq!(values, [None, None]);
}

#[test]
fn keys_expire_when_their_time_has_come() {
    let server = TestServer::start(&[]);
    let mut connection = connect(&server);
    let () = connection.set("k", "v").expect("OK");
    let set: bool = connection.expire("k", 10).expect("1");
    assert!(set);
    server.advance(9_999_000);
    let left: i64 = connection.pttl("k").expect("milliseconds");
    assert_eq!(left, 1);
    server.advance(2_000);
    let exists: bool = connection.exists("k").expect("0");
    assert!(!exists);
}

#[test]
fn a_lock_is_taken_once_and_free_when_its_time_is_up() {
    let server = TestServer::start(&[]);
    let (mut one, mut two) = (connect(&server), connect(&server));
    let take = |connection: &mut Connection, who: &str| -> RedisResult<Option<String>> {
        redis::cmd("SET").arg("lock").arg(who).arg("NX").arg("PX").arg(500).query(connection)
    };
    assert_eq!(take(&mut one, "one"), Ok(Some("OK".into())));
    assert_eq!(take(&mut two, "two"), Ok(None));
    server.advance(501_000);
    assert_eq!(take(&mut two, "two"), Ok(Some("OK".into())));
}

#[test]
fn a_pipeline_is_answered_in_order_with_its_errors_in_place() {
    let server = TestServer::start(&[]);
    let mut connection = connect(&server);
    let mut pipe = redis::pipe();
    for number in 0..5000 {
        pipe.set(number, number).ignore();
        pipe.get(number);
    }
    let values: Vec<i64> = pipe.query(&mut connection).expect("numbers");
    assert_eq!(values, (0..5000).collect::<Vec<i64>>());
    let () = connection.set("text", "ten").expect("OK");
    let error =
        redis::pipe().incr("text", 1).query::<Value>(&mut connection).expect_err("no number");
    assert!(error.to_string().contains("not an integer"), "{error}");
    // The connection is good after that.
    let text: String = connection.get("text").expect("ten");
    assert_eq!(text, "ten");
}

#[test]
fn a_large_value_comes_back_whole() {
    let server = TestServer::start(&[]);
    let mut connection = connect(&server);
    let value: Vec<u8> = (0..8 << 20).map(|index: u32| (index % 251) as u8).collect();
    let () = connection.set("large", &value).expect("OK");
    let back: Vec<u8> = connection.get("large").expect("bytes");
    assert!(back == value);
}

#[test]
fn messages_and_keyspace_events_reach_who_has_subscribed() {
    let server = TestServer::start(&["notify-keyspace-events Ex".to_owned()]);
    let (mut one, mut two) = (connect(&server), connect(&server));
    let mut pubsub = one.as_pubsub();
    pubsub.subscribe("news").expect("subscribed");
    pubsub.psubscribe("__keyevent@*__:*").expect("subscribed");
    let heard: i64 = two.publish("news", "hello").expect("a number");
    assert_eq!(heard, 1);
    let message = pubsub.get_message().expect("a message");
    assert_eq!(message.get_payload(), Ok("hello".to_owned()));
    let () = two.pset_ex("k", "v", 100).expect("OK");
    server.advance(101_000);
    let message = pubsub.get_message().expect("a message");
    assert_eq!(message.get_channel_name(), "__keyevent@0__:expired");
    assert_eq!(message.get_payload(), Ok("k".to_owned()));
}

#[test]
fn scan_walks_over_all_keys() {
    let server = TestServer::start(&[]);
    let mut connection = connect(&server);
    let mut pipe = redis::pipe();
    for number in 0..1000 {
        pipe.set(format!("key:{number}"), number).ignore();
    }
    let () = pipe.query(&mut connection).expect("OK");
    let keys = connection.scan_match::<_, String>("key:*").expect("a cursor");
    let mut keys: Vec<String> = keys.map(|key| key.expect("a key")).collect();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 1000);
}
