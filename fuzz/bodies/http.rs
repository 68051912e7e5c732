//! Any bytes on a connection for HTTP, in pieces: what comes back are responses, each as long as it
//! says, and clients are still served.

use super::{Driven, run_out, split_first};

pub fn run(input: &[u8]) {
    let ([piece, auth], rest) = split_first(input);
    let lines: &[u8] = match auth & 1 {
        0 => b"http-hosts a\npage-keys k l\n",
        _ => b"http-auth yes\nrequirepass secret\n",
    };
    let mut server = Driven::new(lines);
    if auth & 1 == 0 {
        let mut client = server.connect();
        client
            .send(b"LOCK.ACQUIRE k o PX 100000\r\nLPUSH l x\r\nLOCK.ACQUIRE k p PX 9 BLOCK 0\r\n");
        server.turns(2);
    }
    let mut peer = server.connect_for_http();
    let mut answers = Vec::new();
    for bytes in rest.chunks(usize::from(*piece) + 1) {
        peer.send(bytes);
        server.turns(1);
        answers.extend(peer.receive());
    }
    for _ in 0..8 {
        server.turns(8);
        answers.extend(peer.receive());
    }
    let mut left = &answers[..];
    while !left.is_empty() {
        assert!(left.starts_with(b"HTTP/1.1 "), "{:?}", String::from_utf8_lossy(left));
        let end = left.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("a whole head");
        let head = String::from_utf8_lossy(&left[..end]).into_owned();
        let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
        let length: usize = length.expect("a length").parse().expect("a number");
        left = &left[end + 4..];
        // The answer to HEAD has no body: another response follows, or nothing.
        if !left.starts_with(b"HTTP/1.1 ") && left.len() >= length {
            left = &left[length..];
        } else if !left.starts_with(b"HTTP/1.1 ") {
            break;
        }
    }
    server.advance(31);
    server.advance(31);
    if auth & 1 == 0 {
        return run_out(&mut server);
    }
    let mut client = server.connect();
    client.send(b"AUTH secret\r\nECHO still\r\n");
    server.turns(4);
    assert_eq!(client.receive(), b"+OK\r\n$5\r\nstill\r\n");
}
