use std::io::Cursor;

use super::super::super::access::Options;
use super::*;
use crate::clock::{ManualClock, UnixMillis};

/// A server that sends bytes in parts of this size, and nothing after them.
struct Peer(Cursor<Vec<u8>>, usize);

impl Read for Peer {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = buffer.len().min(self.1);
        self.0.read(&mut buffer[..count])
    }
}

impl Write for Peer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn server(bytes: &[u8], part: usize) -> Server<Peer> {
    let around = Surroundings {
        access: Arc::new(Options::new(None).finish().expect("no options")),
        clock: Clock::Manual(ManualClock::new(UnixMillis(0))),
        interrupted: Arc::default(),
    };
    let address = Address { host: "h".into(), port: 1 };
    Server::over(Peer(Cursor::new(bytes.to_vec()), part), address, around)
}

fn why(bytes: &[u8]) -> String {
    match server(bytes, 7).ask(&[b"PING"]) {
        Err(Stop::Because(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn replies_are_read_however_they_are_divided() {
    let bytes = b"*5\r\n$3\r\na\r\n\r\n:-12\r\n$-1\r\n*1\r\n+OK\r\n*-1\r\n-ERR no\r\n";
    for part in 1..=bytes.len() {
        let mut server = server(bytes, part);
        let mut batch = Batch::default();
        batch.add(&[b"ONE"]);
        batch.add(&[b"TWO"]);
        let text = Reply::Text(b"a\r\n".to_vec());
        let inner = Reply::List(vec![Reply::Status(b"OK".to_vec())]);
        let list = Reply::List(vec![text, Reply::Number(-12), Reply::Null, inner, Reply::Null]);
        let error = Reply::Error(b"ERR no".to_vec());
        assert_eq!(server.ask_all(batch), Ok(vec![list, error]), "parts of {part}");
    }
}

#[test]
fn other_bytes_and_claimed_lengths_end_it() {
    for bytes in
        ["HTTP/1.1 200 OK\r\n", "\r\n", "+OK\n", "$x\r\n", "*-2\r\n", "$-2\r\n", ":\r\n", "_\r\n"]
    {
        assert_eq!(
            why(bytes.as_bytes()),
            "h:1: it does not speak the protocol of Redis",
            "{bytes}"
        );
    }
    assert_eq!(why(b"$3\r\nabcd\r\n"), "h:1: it does not speak the protocol of Redis");
    assert_eq!(
        why("*1\r\n".repeat(100).as_bytes()),
        "h:1: it does not speak the protocol of Redis"
    );
    assert_eq!(why(&[b'+'; 1 << 17]), "h:1: it does not speak the protocol of Redis");
    assert_eq!(why(b"$536870913\r\n"), "h:1: a reply is too large");
    assert_eq!(why(b"*3\r\n$536870912\r\n"), "h:1: the connection has ended");
    assert_eq!(why(b"*9223372036854775807\r\n:1\r\n"), "h:1: the connection has ended");
    assert_eq!(why(b"$5\r\nab"), "h:1: the connection has ended");
    let many = [b"*9223372036854775807\r\n", ":1\r\n".repeat(1 << 20).as_bytes()].concat();
    assert_eq!(why(&many), "h:1: the connection has ended");
}

#[test]
fn an_interrupt_ends_a_wait() {
    let mut server = server(b"+PONG\r\n", 1);
    server.around.interrupted.store(true, Ordering::SeqCst);
    assert_eq!(server.ask(&[b"PING"]), Err(Stop::Interrupted));
}

#[test]
fn what_others_send_is_harmless_on_a_terminal() {
    assert_eq!(shown("grün".as_bytes()), "grün");
    assert_eq!(shown(b"a\x1b[2J\xff"), "a\\x1b[2J\\xff");
    assert_eq!(shown(&[b'a'; 1000]).len(), 200);
}
