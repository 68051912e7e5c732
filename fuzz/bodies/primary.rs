//! What a primary sends behind the handshake, to a server that follows it: answers, a snapshot, the stream. None of it does harm, but
//! for what the stream says to do. The first byte says in what pieces it comes, its highest bit whether the snapshot is past.

use super::{Driven, run_out};

const HANDSHAKE: &[u8] = b"+PONG\r\n+OK\r\n+OK\r\n-ERR Unrecognized REPLCONF option: version\r\n";
/// An empty snapshot of history 0 at offset 0.
const SNAPSHOT: &[u8] = b"+FULLRESYNC 0000000000000000000000000000000000000000 0\r\n$18\r\nREDIS0010\xff\0\0\0\0\0\0\0\0";

/// What may be done by order of the primary, and takes for ever, or does something to the world outside.
const LEFT_OUT: &[&[u8]] = &[b"debug", b"eval", b"fcall", b"config", b"acl", b"migrate", b"module"];

pub fn run(input: &[u8]) {
    let [cut, bytes @ ..] = input else { return };
    let lower = bytes.to_ascii_lowercase();
    let holds = |word: &&[u8]| lower.windows(word.len()).any(|window| window == *word);
    if LEFT_OUT.iter().any(holds) {
        return;
    }
    let mut server = Driven::new(b"replicaof 10.0.0.1 6379\nrepl-diskless-load swapdb\n");
    let mut other = server.connect();
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
        run_out(&mut server, &mut other);
    }
}
