//! Programs written with the `redis` crate, against the built server.
#![cfg(test)]

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use redis::{Commands, Connection, RedisResult, Value};
use tempfile::TempDir;

/// How long anything may take before the test fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server in a folder of its own, where it listens on a Unix socket; killed when this is dropped.
struct Server {
    process: Child,
    folder: TempDir,
}

impl Server {
    fn start(options: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let program = std::env::var_os("LATCHKEY").expect("LATCHKEY names the server's program");
        let mut command = Command::new(program);
        command.args(["--port", "0", "--unixsocket", "socket", "--save", ""]).args(options);
        command.current_dir(folder.path()).stdout(Stdio::null());
        let server = Server { process: command.spawn().expect("the program starts"), folder };
        until("the server answers", || server.try_connect().is_ok());
        server
    }

    fn try_connect(&self) -> RedisResult<Connection> {
        let socket = self.folder.path().join("socket");
        redis::Client::open(format!("unix://{}", socket.display()))?.get_connection()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn connect(server: &Server) -> Connection {
    let connection = server.try_connect().expect("the server takes connections");
    connection.set_read_timeout(Some(PATIENCE)).expect("an option of sockets");
    connection
}

/// Asks again and again. Returns how long it took.
fn until(what: &str, mut is_so: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "waited too long until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
    start.elapsed()
}

#[test]
fn strings_are_set_and_got() {
    let server = Server::start(&[]);
    let mut connection = connect(&server);
    let set: String = connection.set("k", b"\x00\xff\r\n").expect("OK");
    assert_eq!(set, "OK");
    let bytes: Vec<u8> = connection.get("k").expect("bytes");
    assert_eq!(bytes, b"\x00\xff\r\n");
    let missing: Option<String> = connection.get("nosuch").expect("nil");
    assert_eq!(missing, None);
    let values: Vec<Option<String>> = connection.mget(&["nosuch", "nosuch"]).expect("an array");
    assert_eq!(values, [None, None]);
}

#[test]
fn keys_expire_when_their_time_has_come() {
    let server = Server::start(&[]);
    let mut connection = connect(&server);
    let () = connection.set("k", "v").expect("OK");
    let set: bool = connection.expire("k", 10).expect("1");
    assert!(set);
    let left: i64 = connection.pttl("k").expect("milliseconds");
    assert!((1..=10_000).contains(&left), "{left}");
    let set: bool = connection.pexpire("k", 200).expect("1");
    assert!(set);
    let took = until("the key is gone", || connection.exists("k") == Ok(false));
    assert!(took > Duration::from_millis(100), "{took:?}");
}

#[test]
fn a_lock_is_taken_once_and_free_when_its_time_is_up() {
    let server = Server::start(&[]);
    let (mut one, mut two) = (connect(&server), connect(&server));
    let take = |connection: &mut Connection, who: &str| -> RedisResult<Option<String>> {
        redis::cmd("SET").arg("lock").arg(who).arg("NX").arg("PX").arg(500).query(connection)
    };
    assert_eq!(take(&mut one, "one"), Ok(Some("OK".into())));
    assert_eq!(take(&mut two, "two"), Ok(None));
    until("its time is up", || take(&mut two, "two") == Ok(Some("OK".into())));
}

#[test]
fn a_pipeline_is_answered_in_order_with_its_errors_in_place() {
    let server = Server::start(&[]);
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
fn replies_of_a_pipeline_are_all_kept() {
    let server = Server::start(&[]);
    let mut pipe = redis::pipe();
    for number in 0..1000 {
        pipe.cmd("INCRBY").arg("n").arg(number);
    }
    let sums: Vec<i64> = pipe.query(&mut connect(&server)).expect("sums");
    assert_eq!(sums.last(), Some(&(999 * 1000 / 2)));
}

#[test]
fn a_large_value_comes_back_whole() {
    let server = Server::start(&[]);
    let mut connection = connect(&server);
    let value: Vec<u8> = (0..8 << 20).map(|index: u32| (index % 251) as u8).collect();
    let () = connection.set("large", &value).expect("OK");
    let back: Vec<u8> = connection.get("large").expect("bytes");
    assert!(back == value);
}

#[test]
fn messages_and_keyspace_events_reach_who_has_subscribed() {
    let server = Server::start(&["--notify-keyspace-events", "Ex"]);
    let (mut one, mut two) = (connect(&server), connect(&server));
    let mut pubsub = one.as_pubsub();
    pubsub.subscribe("news").expect("subscribed");
    pubsub.psubscribe("__keyevent@*__:*").expect("subscribed");
    let heard: i64 = two.publish("news", "hello").expect("a number");
    assert_eq!(heard, 1);
    let message = pubsub.get_message().expect("a message");
    assert_eq!(message.get_payload(), Ok("hello".to_owned()));
    let () = two.pset_ex("k", "v", 50).expect("OK");
    let message = pubsub.get_message().expect("a message");
    assert_eq!(message.get_channel_name(), "__keyevent@0__:expired");
    assert_eq!(message.get_payload(), Ok("k".to_owned()));
}

#[test]
fn scan_walks_over_all_keys() {
    let server = Server::start(&[]);
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
