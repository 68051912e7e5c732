//! A primary whose replica sentinels have promoted: the test plays the replica, the sentinels, and
//! whoever imitates them.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use crate::replication::replicas::{Replica, field, start};
use crate::support::{Client, Reply, TestServer, wait_for};

const REFUSED: &str = "(error) READONLY Sentinels have made a replica of this server the primary (sentinel-step-down).";

struct Scene {
    /// None: it has left. It goes before the server, whose end would wait for it.
    replica: Option<Replica>,
    server: TestServer,
    /// Where the replica accepts clients.
    listener: TcpListener,
    sentinel: Client,
    writer: Client,
    /// The primary's history.
    id: String,
}

impl Scene {
    /// A primary with a replica, and a sentinel that has said so, in epoch 5.
    fn new(lines: &[&str]) -> Scene {
        let server = start(lines);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let mut replica = Replica::connect(&server);
        replica.port = listener.local_addr().expect("an address").port();
        let online = format!("port={},state=online", replica.port);
        let (id, offset, _) = replica.sync(&server);
        replica.say(&format!("REPLCONF ACK {offset}"));
        server.settle();
        let (mut sentinel, writer) = (server.connect(), server.connect());
        sentinel.call(&["CLIENT", "SETNAME", "sentinel-0123abcd-cmd"]);
        let slave = field(&mut sentinel, "slave0");
        assert!(slave.contains(&online), "{slave}");
        let mut scene = Scene { server, replica: Some(replica), listener, sentinel, writer, id };
        let own = scene.server.address.port();
        scene.say(own, 5);
        scene
    }

    fn replica_port(&self) -> u16 {
        self.listener.local_addr().expect("an address").port()
    }

    /// A sentinel says that the primary is at this port.
    fn say(&mut self, port: u16, epoch: u64) {
        let text = format!("127.0.0.1,26379,0123abcd,{epoch},main,127.0.0.1,{port},{epoch}");
        self.publish(&text);
    }

    fn publish(&mut self, text: &str) {
        self.sentinel.send(&["PUBLISH", "__sentinel__:hello", text]);
        self.server.settle();
    }

    /// The replica closes its connection, and a client writes.
    fn leave(&mut self) {
        self.replica = None;
        self.hear();
        wait_for("the replica's end", || {
            (field(&mut self.sentinel, "connected_slaves") == "0").then_some(())
        });
        self.writer.send(&["SET", "k", "v"]);
        self.server.settle();
    }

    /// The replies to the sentinel's messages: a paused one is answered later.
    fn hear(&mut self) {
        while let Some(reply) = self.sentinel.try_message() {
            assert!(matches!(reply, Reply::Integer(_)), "{}", reply.show());
        }
    }

    fn waits(&mut self) -> bool {
        self.server.settle();
        self.writer.try_message().is_none()
    }

    /// The server connects to the replica's port, and asks. None: it does not.
    fn asked(&mut self) -> Option<TcpStream> {
        self.listener.set_nonblocking(true).expect("an option of sockets");
        self.server.settle();
        let (mut socket, _) = self.listener.accept().ok()?;
        socket.set_nonblocking(false).expect("an option of sockets");
        self.server.settle();
        let mut request = [0; 64];
        let count = socket.read(&mut request).expect("a request");
        assert_eq!(&request[..count], b"*2\r\n$4\r\nINFO\r\n$11\r\nreplication\r\n");
        Some(socket)
    }

    fn answer(&mut self, socket: Option<TcpStream>, text: &str) {
        let mut socket = socket.expect("the replica is asked");
        let reply = format!("${}\r\n{text}\r\n", text.len());
        socket.write_all(reply.as_bytes()).expect("the server reads");
        // It closes the connection once it has the answer.
        assert_eq!(socket.read(&mut [0; 8]).expect("an end"), 0);
        self.server.settle();
    }

    fn answer_promoted(&mut self) {
        let text = format!("# Replication\r\nrole:master\r\nmaster_replid2:{}\r\n", self.id);
        let socket = self.asked();
        self.answer(socket, &text);
    }

    fn write_anew(&mut self) -> String {
        self.server.connect().call(&["SET", "k2", "v"]).show()
    }
}

#[test]
fn a_planned_failover_takes_no_write_at_the_old_primary() {
    let mut scene = Scene::new(&[]);
    let mut reader = scene.server.connect();
    scene.leave();
    assert!(scene.waits(), "the replica may have been promoted");
    scene.answer_promoted();
    assert!(scene.waits(), "it was promoted: sentinels will say so");
    assert_eq!(reader.call(&["EXISTS", "k"]).show(), "(integer) 0");
    let port = scene.replica_port();
    scene.say(port, 6);
    scene.answer_promoted();
    // Clients are closed, and ask sentinels.
    assert!(scene.writer.reply().is_none() && reader.reply().is_none());
    assert_eq!(scene.write_anew(), REFUSED);
    scene.hear();
    assert_eq!(scene.sentinel.call(&["EXISTS", "k"]).show(), "(integer) 0");
    scene.sentinel.call(&["REPLICAOF", "127.0.0.1", &port.to_string()]);
    assert!(scene.write_anew().starts_with("(error) READONLY You can't write against a read only"));
    scene.sentinel.call(&["REPLICAOF", "NO", "ONE"]);
    assert_eq!(scene.write_anew(), "OK");
}

#[test]
fn a_sentinels_earlier_message_does_not_hold_back_its_word() {
    let mut scene = Scene::new(&["min-replicas-to-write 0"]);
    scene.leave();
    scene.answer_promoted();
    let (own, port) = (scene.server.address.port(), scene.replica_port());
    scene.say(own, 5);
    scene.say(port, 6);
    scene.answer_promoted();
    let mut late = scene.server.connect();
    assert_eq!(late.call(&["CONFIG", "SET", "min-replicas-to-write", "1"]).show(), "OK");
    // Not NOREPLICAS, after which libraries would stay.
    assert_eq!(late.call(&["SET", "k2", "v"]).show(), REFUSED);
    assert!(late.reply().is_none(), "a client that a sentinel has sent back is closed");
}

#[test]
fn writes_wait_no_longer_than_for_an_answer() {
    for answer in ["role:slave\r\nmaster_replid2:x", "role:master\r\nmaster_replid2:0000", "", "*"]
    {
        let mut scene = Scene::new(&[]);
        scene.leave();
        assert!(scene.waits());
        let socket = scene.asked();
        scene.answer(socket, answer);
        assert_eq!(
            scene.writer.reply().map(|reply| reply.show()).as_deref(),
            Some("OK"),
            "{answer}"
        );
    }
    // An answer that never comes, and one without a word of the sentinels after it.
    for (is_promoted, ms) in [(false, 300), (true, 3000)] {
        let mut scene = Scene::new(&[]);
        scene.leave();
        let socket = if is_promoted {
            scene.answer_promoted();
            None
        } else {
            scene.asked()
        };
        scene.server.advance((ms - 1) * 1000);
        assert!(scene.waits());
        scene.server.advance(2000);
        assert_eq!(scene.writer.reply().map(|reply| reply.show()).as_deref(), Some("OK"), "{ms}");
        drop(socket);
    }
}

#[test]
fn no_message_changes_anything_by_itself() {
    let mut scene = Scene::new(&[]);
    let (own, replica) = (scene.server.address.port(), scene.replica_port());
    let other = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let stranger = other.local_addr().expect("an address").port();
    other.set_nonblocking(true).expect("an option of sockets");
    for (port, epoch) in [(stranger, 9), (own, 9), (replica, 5), (replica, 9), (0, 10)] {
        scene.say(port, epoch);
        assert!(scene.asked().is_none(), "{port} {epoch}");
    }
    assert!(other.accept().is_err(), "nobody is asked who was no replica");
    for text in ["", "x", "1,2,3,4,main,127.0.0.1,6379", "\u{0},,,,,,,", &",".repeat(100_000)] {
        scene.publish(text);
    }
    // A claim is asked about: by a server that hangs, that lies about its past, or is a replica.
    for (epoch, answer) in
        [(10, None), (11, Some("role:slave")), (12, Some("role:master\r\nmaster_replid2:00"))]
    {
        scene.say(replica, epoch);
        let socket = scene.asked();
        match answer {
            Some(text) => scene.answer(socket, text),
            None => {
                scene.server.advance(2_100_000);
                drop(socket);
            }
        }
        assert_eq!(scene.write_anew(), "OK", "{epoch}");
    }
    assert_eq!(scene.writer.call(&["SET", "k", "v"]).show(), "OK");
}

#[test]
fn a_promotion_that_nothing_confirms_ends_and_the_option_switches_it_off() {
    let mut scene = Scene::new(&[]);
    let port = scene.replica_port();
    scene.say(port, 6);
    scene.answer_promoted();
    assert_eq!(scene.write_anew(), REFUSED);
    scene.server.advance(59_000_000);
    assert_eq!(scene.write_anew(), REFUSED);
    // A sentinel says it again, and it is true.
    scene.say(port, 6);
    scene.answer_promoted();
    scene.server.advance(59_000_000);
    assert_eq!(scene.write_anew(), REFUSED);
    scene.server.advance(2_000_000);
    assert_eq!(scene.write_anew(), "OK");

    let mut scene = Scene::new(&["sentinel-step-down no"]);
    let port = scene.replica_port();
    scene.say(port, 6);
    assert!(scene.asked().is_none());
    scene.leave();
    assert!(!scene.waits());
}
