//! What a replica sends to its primary, or what says it is one: the handshake, requests for a
//! snapshot or a part of the stream, acknowledgements. Others are served meanwhile. The first byte
//! says in what pieces it comes: a request behind one that was answered and not yet sent is
//! refused.

use super::{Driven, leads_astray, run_out};

pub fn run(input: &[u8]) {
    let [cut, bytes @ ..] = input else { return };
    if leads_astray(bytes) {
        return;
    }
    let mut server = Driven::new(b"repl-diskless-sync-delay 0\n");
    let mut other = server.connect();
    let mut replica = server.connect();
    for piece in bytes.chunks(usize::from(*cut) + 1) {
        replica.send(piece);
        server.turns(1);
        other.send(b"INCR counter\r\n");
        server.turns(2);
        replica.receive();
    }
    // Time passes: who is silent is sent signs of life, or let go.
    for _ in 0..3 {
        server.advance(40);
        replica.receive();
    }
    if server.is_running {
        run_out(&mut server);
    }
}
