//! Bytes from a primary give the same events and requests however they are split, and never a
//! panic. The first input byte determines the split, and whether a handshake comes first.

use std::collections::VecDeque;

use latchkey::replication::link::{Event, HandshakeOptions, Link, Request};

const HANDSHAKE: &[u8] = b"+PONG\r\n+OK\r\n+OK\r\n-ERR Unrecognized REPLCONF option: version\r\n";

/// The snapshot, the other events, the bytes of the stream, and whether it is broken.
type Outcome = (Vec<u8>, Vec<Event>, Vec<u8>, bool);

fn feed(bytes: &[u8], piece: usize) -> Outcome {
    let continues = Some(("0".repeat(40), 1));
    let mut link = Link::new(HandshakeOptions { continues, ..HandshakeOptions::default() });
    let (mut snapshot, mut events) = (Vec::new(), Vec::new());
    let (mut stream, mut is_broken) = (Vec::new(), false);
    for piece in bytes.chunks(piece) {
        link.receive(piece);
        while let Some(event) = link.next_event() {
            match event {
                Event::Snapshot(bytes) => snapshot.extend(bytes),
                Event::Log(..) | Event::Alive => {}
                event => events.push(event),
            }
        }
        let words = |request: &Request<'_>| -> Vec<Vec<u8>> {
            request.ranges.iter().map(|range| range.of(request.buffer).to_vec()).collect()
        };
        // What was looked at ahead is found again where it was.
        let mut seen = VecDeque::new();
        while !is_broken {
            if seen.is_empty() {
                link.look_ahead(3, |request| seen.push_back((request.at, words(request))));
            }
            match link.next_unit() {
                Ok(Some(unit)) => {
                    stream.extend_from_slice(unit.raw());
                    for request in unit {
                        let at = request.at;
                        seen.retain(|(seen, _)| *seen >= at);
                        if seen.front().is_some_and(|front| front.0 == at) {
                            let front = seen.pop_front().map(|front| front.1);
                            assert_eq!(front, Some(words(&request)));
                        }
                    }
                    link.applied();
                }
                Ok(None) => break,
                Err(_) => is_broken = true,
            }
        }
        link.shrink();
    }
    (snapshot, events, stream, is_broken)
}

pub fn run(input: &[u8]) {
    let [first, bytes @ ..] = input else { return };
    let bytes = match first & 1 {
        0 => bytes.to_vec(),
        _ => [HANDSHAKE, bytes].concat(),
    };
    assert_eq!(feed(&bytes, usize::from(first / 2) + 1), feed(&bytes, usize::MAX));
}
