//! Peers that answer anything, on the connections that the server opens: an error, no data lost.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use crate::support::{Reply, TestServer, decode, read_some};

/// Replies that no Redis server gives to the requests of MIGRATE.
const FOREIGN: [&str; 14] = [
    "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
    "$5\r\nhello\r\n",
    ">2\r\n$7\r\nmessage\r\n",
    "*0\r\n",
    ":1\r\n",
    "\r\n",
    "\n",
    "+\r\n",
    "+ok\r\n",
    "+OKAY\r\n",
    "+QUEUED\r\n",
    "220 mail.example ESMTP\r\n",
    "\u{0}\u{1}\u{2}\n",
    "_\r\n",
];

/// Answers the requests of one MIGRATE with `replies`, in as many pieces as there are requests.
fn answer(listener: &TcpListener, replies: &[Vec<u8>]) {
    let (mut stream, _): (TcpStream, _) = listener.accept().expect("a connection");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("an option of sockets");
    let (mut buffer, mut bytes, mut at) = (Vec::new(), [0; 4096], 0);
    for reply in replies {
        while decode(&buffer, &mut at).is_none() {
            let count = read_some(&mut stream, &mut bytes).unwrap_or(0);
            if count == 0 {
                return;
            }
            buffer.extend_from_slice(&bytes[..count]);
        }
        buffer.drain(..at);
        at = 0;
        if stream.write_all(reply).is_err() {
            return;
        }
    }
}

#[test]
fn a_target_that_answers_anything_costs_no_key() {
    const MOVES: usize = 300;
    let server = TestServer::start(&[]);
    let mut client = server.connect();
    let mut random = fastrand::Rng::with_seed(4);
    for number in 0..MOVES {
        client.call(&["MSET", "a", "1", "b", "2", "c", "3"]);
        let replies: Vec<Vec<u8>> = (0..4)
            .map(|_| match random.u8(0..8) {
                0..4 => b"+OK\r\n".to_vec(),
                4 => b"-ERR no\r\n".to_vec(),
                5 => {
                    let any = (0..random.usize(0..30)).map(|_| random.u8(..));
                    any.chain(*b"\r\n").collect()
                }
                _ => FOREIGN[random.usize(..FOREIGN.len())].as_bytes().to_vec(),
            })
            .collect();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port().to_string();
        let request = ["MIGRATE", "127.0.0.1", &port, "", "0", "60000", "KEYS", "a", "b", "c"];
        let is_blocking = random.bool();
        if is_blocking {
            client.call(&["MULTI"]);
            client.call(&request);
            client.send(&["EXEC"]);
        } else {
            client.send(&request);
        }
        answer(&listener, &replies);
        let reply = client.reply();
        // Lines count, not pieces: a reply may have several lines, and none is +OK then.
        let all = replies.concat();
        let lines: Vec<&[u8]> = all
            .split_inclusive(|byte| *byte == b'\n')
            .map(|line| line.strip_suffix(b"\n").unwrap_or(line))
            .map(|line| line.strip_suffix(b"\r").unwrap_or(line))
            .collect();
        let is_error = |line: &[u8]| line.starts_with(b"-");
        let known = lines.iter().position(|line| *line != b"+OK" && !is_error(line));
        let known = &lines[..known.unwrap_or(lines.len()).min(4)];
        for (index, key) in ["a", "b", "c"].into_iter().enumerate() {
            let stored = known.first().is_some_and(|line| *line == b"+OK")
                && known.get(index + 1).is_some_and(|line| *line == b"+OK");
            let exists = client.call(&["EXISTS", key]);
            assert_eq!(
                exists,
                Reply::Integer(i64::from(!stored)),
                "move {number}, {key}: {replies:?} and {reply:?}"
            );
        }
    }
}
