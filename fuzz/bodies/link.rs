//! What a primary sends makes the same events and requests however it is cut; the first byte says how, and whether the handshake is
//! done. Nothing it sends does harm.

use latchkey::replication::link::{Event, Hello, Link};

const HANDSHAKE: &[u8] = b"+PONG\r\n+OK\r\n+OK\r\n-ERR Unrecognized REPLCONF option: version\r\n";

/// The snapshot, the other events that count, the bytes of the stream, and whether it is broken.
type Heard = (Vec<u8>, Vec<Event>, Vec<u8>, bool);

fn hear(bytes: &[u8], piece: usize) -> Heard {
    let continues = Some(("0".repeat(40), 1));
    let mut link = Link::new(Hello { continues, ..Hello::default() });
    let (mut snapshot, mut events) = (Vec::new(), Vec::new());
    let (mut stream, mut is_broken) = (Vec::new(), false);
    for piece in bytes.chunks(piece) {
        link.receive(piece);
        while let Some(event) = link.next_event() {
            match event {
                Event::Snapshot(bytes) => snapshot.extend(bytes),
                Event::Say(..) | Event::Alive => {}
                event => events.push(event),
            }
        }
        while !is_broken {
            match link.next_unit() {
                Ok(Some(unit)) => {
                    stream.extend_from_slice(unit.raw());
                    unit.for_each(|(buffer, ranges)| {
                        ranges
                            .iter()
                            .for_each(|range| assert!(range.of(buffer).len() <= buffer.len()));
                    });
                    link.applied();
                }
                Ok(None) => break,
                Err(_) => is_broken = true,
            }
        }
        link.tidy();
    }
    (snapshot, events, stream, is_broken)
}

pub fn run(input: &[u8]) {
    let [first, bytes @ ..] = input else { return };
    let bytes = match first & 1 {
        0 => bytes.to_vec(),
        _ => [HANDSHAKE, bytes].concat(),
    };
    assert_eq!(hear(&bytes, usize::from(first / 2) + 1), hear(&bytes, usize::MAX));
}
