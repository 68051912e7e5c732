//! What a primary sends behind the handshake, to a server that follows it: answers, a snapshot, the
//! stream. None of it does harm, but for what the stream says to do. The first byte says in what
//! pieces it comes, its highest bit whether the snapshot is past.

use super::{Driven, leads_astray, run_out};

const HANDSHAKE: &[u8] = b"+PONG\r\n+OK\r\n+OK\r\n-ERR Unrecognized REPLCONF option: version\r\n";
/// An empty snapshot of history 0 at offset 0.
const SNAPSHOT: &[u8] = b"+FULLRESYNC 0000000000000000000000000000000000000000 0\r\n$18\r\nREDIS0010\xff\0\0\0\0\0\0\0\0";

pub fn run(input: &[u8]) {
    let [cut, bytes @ ..] = input else { return };
    if leads_astray(bytes) {
        return;
    }
    let mut server = Driven::new(b"replicaof 10.0.0.1 6379\nrepl-diskless-load swapdb\n");
    server.advance(2);
    let Some(mut primary) = server.dialled() else { return };
    primary.send(HANDSHAKE);
    if cut & 0x80 == 0 {
        primary.send(SNAPSHOT);
    }
    server.turns(3);
    for piece in bytes.chunks(usize::from(cut & 0x7f) + 1) {
        primary.send(piece);
        server.turns(1);
        primary.receive();
    }
    server.advance(2);
    if server.is_running {
        run_out(&mut server);
    }
}
