use std::time::Duration;

use mio::{Events, Poll};

use super::*;
use crate::net::dialer::{Dialer, Route, SystemDialer};

/// Two nodes' ends of the bus, and the bytes received at each.
struct Pair {
    poll: Poll,
    bus: Bus,
    accepted: Vec<LinkId>,
    connected: Vec<LinkId>,
    ended: Vec<LinkId>,
    bytes: HashMap<LinkId, Vec<u8>>,
}

const OUT: LinkId = LinkId(FIRST_OPENED + 7);

impl Pair {
    /// A bus that is connected with itself.
    fn new() -> Pair {
        let mut bus = Bus::default();
        let poll = Poll::new().unwrap();
        let listener = Listener::tcp("127.0.0.1:0".parse().unwrap(), 16, false).unwrap();
        let to = listener.local_address().unwrap();
        bus.listen(vec![listener]);
        bus.register(poll.registry()).unwrap();
        let stream = SystemDialer.connect(&Route { to, from: None, tls: None });
        bus.open(poll.registry(), OUT, stream, 1);
        let mut pair = Pair {
            poll,
            bus,
            accepted: Vec::new(),
            connected: Vec::new(),
            ended: Vec::new(),
            bytes: HashMap::new(),
        };
        pair.turn_until(|pair| pair.connected == [OUT] && pair.accepted.len() == 1);
        pair
    }

    fn turn(&mut self) {
        let mut events = Events::with_capacity(16);
        self.poll.poll(&mut events, Some(Duration::from_millis(5))).unwrap();
        events.iter().for_each(|event| self.bus.note_readiness(event));
        self.ended.append(&mut self.bus.take_ended());
        let (accepted, result) = self.bus.accept(self.poll.registry(), None, 60, 100, 1);
        result.unwrap();
        self.accepted.extend(accepted.iter().map(|accepted| accepted.link));
        for _ in 0..self.bus.ready() {
            match self.bus.serve_next() {
                Progress::Waits => {}
                Progress::Connected(link, local) => {
                    assert!(local.is_some_and(|local| local.is_loopback()));
                    self.connected.push(link);
                }
                Progress::Bytes(link, bytes) => {
                    // Whole groups of four bytes are taken.
                    let done = bytes.len() / 4 * 4;
                    self.bytes.entry(link).or_default().extend_from_slice(&bytes[..done]);
                    self.bus.keep(link, bytes, done);
                }
                Progress::Ended(link) => self.ended.push(link),
            }
        }
        self.bus.flush();
    }

    fn turn_until(&mut self, mut is_done: impl FnMut(&Pair) -> bool) {
        for _ in 0..2000 {
            if is_done(self) {
                return;
            }
            self.turn();
        }
        panic!("it never came");
    }

    fn received(&self, link: LinkId) -> &[u8] {
        self.bytes.get(&link).map_or(&[], Vec::as_slice)
    }
}

#[test]
fn messages_come_whole_in_order_and_in_both_directions() {
    let mut pair = Pair::new();
    let accepted = pair.accepted[0];
    assert!(accepted.0 < FIRST_OPENED);
    let large: Vec<u8> = (0..400_000u32).flat_map(u32::to_be_bytes).collect();
    pair.bus.send(OUT, b"abc"[..].into());
    pair.bus.send(OUT, b"defgh"[..].into());
    pair.bus.send(accepted, large[..].into());
    pair.turn_until(|pair| pair.received(OUT).len() == large.len());
    pair.turn_until(|pair| pair.received(accepted) == b"abcdefgh");
    assert_eq!(pair.received(OUT), large);
    assert_eq!(pair.bus.facts(OUT).unwrap().queued, 0);
}

#[test]
fn messages_wait_for_an_awaited_save_and_so_do_later_ones() {
    let mut pair = Pair::new();
    let accepted = pair.accepted[0];
    pair.bus.send(OUT, b"1111"[..].into());
    pair.bus.await_save(5);
    pair.bus.send(OUT, b"2222"[..].into());
    pair.bus.note_saved(4);
    pair.turn_until(|pair| pair.received(accepted) == b"1111");
    (0..5).for_each(|_| pair.turn());
    assert_eq!(pair.received(accepted), b"1111");
    assert!(!pair.bus.has_work());
    pair.bus.note_saved(5);
    assert!(pair.bus.has_work());
    pair.turn_until(|pair| pair.received(accepted) == b"11112222");
}

#[test]
fn a_closed_connection_sends_its_messages_and_is_not_told_of() {
    let mut pair = Pair::new();
    let accepted = pair.accepted[0];
    pair.bus.send(OUT, b"last"[..].into());
    pair.bus.close(OUT);
    assert!(!pair.bus.knows(OUT));
    pair.turn_until(|pair| pair.ended == [accepted]);
    assert_eq!(pair.received(accepted), b"last");
    assert!(pair.bus.is_empty());
}

#[test]
fn a_connection_that_takes_too_little_is_closed_and_told_of() {
    let mut pair = Pair::new();
    let message: Arc<[u8]> = vec![0; 1 << 20].into();
    (0..64).for_each(|_| pair.bus.send(OUT, message.clone()));
    pair.bus.flush();
    assert!(pair.bus.memory() > 1 << 20);
    assert_eq!(pair.bus.close_slow(1 << 20), 1);
    assert_eq!(pair.bus.limit_exceeded, 1);
    let accepted = pair.accepted[0];
    pair.turn_until(|pair| pair.ended.contains(&OUT) && pair.ended.contains(&accepted));
    // As in Redis, a connection itself counts.
    let mut pair = Pair::new();
    assert_eq!(pair.bus.close_slow(1), 2);
}

#[test]
fn a_connection_that_cannot_be_made_is_told_of() {
    let mut pair = Pair::new();
    let to = {
        let listener = Listener::tcp("127.0.0.1:0".parse().unwrap(), 16, false).unwrap();
        listener.local_address().unwrap()
    };
    let stream = SystemDialer.connect(&Route { to, from: None, tls: None });
    pair.bus.open(pair.poll.registry(), LinkId(FIRST_OPENED + 8), stream, 1);
    pair.bus.open(
        pair.poll.registry(),
        LinkId(FIRST_OPENED + 9),
        Err(io::ErrorKind::NotFound.into()),
        1,
    );
    pair.turn_until(|pair| {
        pair.ended.contains(&LinkId(FIRST_OPENED + 8))
            && pair.ended.contains(&LinkId(FIRST_OPENED + 9))
    });
}

#[test]
fn a_connection_that_takes_no_answers_is_not_read_until_it_does() {
    let mut pair = Pair::new();
    let accepted = pair.accepted[0];
    let answers: Arc<[u8]> = vec![0; 1 << 20].into();
    (0..64).for_each(|_| pair.bus.send(accepted, answers.clone()));
    // The other end reads nothing, as if its turns did other work.
    pair.bus.hold(OUT);
    pair.bus.send(OUT, b"more"[..].into());
    (0..20).for_each(|_| pair.turn());
    assert_eq!(pair.received(accepted), b"");
    pair.bus.read_again(OUT);
    pair.turn_until(|pair| pair.received(accepted) == b"more");
    pair.turn_until(|pair| pair.received(OUT).len() == 64 << 20);
}
