//! The load generator: many connections on one thread, each with one batch of requests under way at
//! any time.
//!
//! Beside them there may be connections that only listen: what they get is taken in as it comes,
//! and the run ends when they have got all of it.
//!
//! Requests are encoded beforehand ([`Requests`]) and sent from where they lie; replies are
//! counted, not kept. A connection that has all replies of its batch takes the next batch of the
//! list, so all connections stay busy until the list is used up, and each request is sent exactly
//! once.

use crate::resp::{ReplyCounter, encode_request};
use crate::wire::Wire;
use crate::{Result, clock};
use hdrhistogram::Histogram;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use rustls::ClientConfig;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A random number generator (SplitMix64): the same numbers in every run, at 1 ns each.
pub struct Random(pub u64);

impl Random {
    /// A number below `bound`, which is not 0. The bias is below bound / 2^64.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        ((u128::from(mixed) * u128::from(bound)) >> 64) as u64
    }
}

/// The numbers from 0 to `count` - 1 in random order.
pub fn shuffled(count: u32, random: &mut Random) -> Vec<u32> {
    let mut numbers: Vec<u32> = (0..count).collect();
    for at in (1..numbers.len()).rev() {
        numbers.swap(at, random.below(at as u64 + 1) as usize);
    }
    numbers
}

/// Key number `number`: always 16 bytes.
pub fn key(number: u32) -> String {
    format!("key:{number:012}")
}

/// A list of encoded requests, cut into batches.
pub struct Requests {
    bytes: Vec<u8>,
    /// Where each batch ends in `bytes`, and how many replies it has.
    batches: Vec<(usize, u64)>,
    count: u64,
}

impl Requests {
    /// Encodes `count` operations, `pipeline` to a batch, each with so many replies. `encode`
    /// appends the next one.
    pub fn build(
        count: u64,
        pipeline: u64,
        replies: u64,
        mut encode: impl FnMut(&mut Vec<u8>),
    ) -> Requests {
        let mut requests = Requests { bytes: Vec::new(), batches: Vec::new(), count };
        let mut left = count;
        while left > 0 {
            let batch = left.min(pipeline);
            for _ in 0..batch {
                encode(&mut requests.bytes);
            }
            requests.batches.push((requests.bytes.len(), batch * replies));
            left -= batch;
        }
        requests
    }

    /// How many operations there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// All requests as they go to the server.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Bytes and number of replies of batch `at`.
    fn batch(&self, at: usize) -> Option<(Range<usize>, u64)> {
        let &(end, count) = self.batches.get(at)?;
        let start = if at == 0 { 0 } else { self.batches[at - 1].0 };
        Some((start..end, count))
    }
}

/// What a run of the generator saw.
pub struct Outcome {
    pub elapsed: Duration,
    /// From a batch's sending to its last reply, ns.
    pub latency_ns: Histogram<u64>,
    /// Error replies, and the first one's text.
    pub errors: u64,
    pub first_error: Option<String>,
}

/// The connections to one server.
pub struct Load {
    poll: Poll,
    connections: Vec<Connection>,
    listeners: Vec<Listener>,
    address: SocketAddr,
}

/// A connection that only receives.
struct Listener {
    stream: TcpStream,
    /// Bytes that are still to come in this run.
    awaited: u64,
}

struct Connection {
    wire: Wire,
    /// What is left to send of the batch under way.
    unsent: Range<usize>,
    counter: ReplyCounter,
    batch_started: Instant,
}

/// More than any batch's replies, so that one read drains a socket.
const READ_BYTES: usize = 256 * 1024;
/// A server that says nothing for so long has hung.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// What histograms hold; longer latencies count as this.
pub const LATENCY_NS_MAX: u64 = 100_000_000_000;

impl Load {
    /// Opens `count` connections and has each answer a PING.
    pub fn connect(address: SocketAddr, count: usize) -> Result<Load> {
        Self::connect_over(address, count, None)
    }

    /// The same over TLS, if it is told how.
    pub fn connect_over(
        address: SocketAddr,
        count: usize,
        tls: Option<&Arc<ClientConfig>>,
    ) -> Result<Load> {
        let poll = Poll::new()?;
        let mut connections = Vec::with_capacity(count);
        for at in 0..count {
            let mut wire = Wire::open(address, tls)?;
            let interest = Interest::READABLE | Interest::WRITABLE;
            poll.registry().register(wire.socket(), Token(at), interest)?;
            connections.push(Connection {
                wire,
                unsent: 0..0,
                counter: ReplyCounter::default(),
                batch_started: clock::now(),
            });
        }
        let mut load = Load { poll, connections, listeners: Vec::new(), address };
        let pings = Requests::build(count as u64, 1, 1, |out| encode_request(out, &[b"PING"]));
        load.run(&pings, 0)?;
        Ok(load)
    }

    /// What its connections have agreed upon with the server, if they use TLS.
    pub fn agreed(&self) -> Option<String> {
        self.connections.first()?.wire.agreed()
    }

    /// Has so many connections listen to a channel, and no more.
    ///
    /// # Errors
    /// The server refused.
    pub fn listen(&mut self, count: usize, channel: &str) -> Result<()> {
        self.listeners.truncate(count);
        let (mut subscribe, mut confirmation) = (Vec::new(), Vec::new());
        encode_request(&mut subscribe, &[b"SUBSCRIBE", channel.as_bytes()]);
        encode_request(&mut confirmation, &[b"subscribe", channel.as_bytes()]);
        confirmation[1] = b'3';
        confirmation.extend_from_slice(b":1\r\n");
        while self.listeners.len() < count {
            let mut stream = std::net::TcpStream::connect(self.address)?;
            stream.write_all(&subscribe)?;
            let mut answer = vec![0; confirmation.len()];
            stream.read_exact(&mut answer)?;
            if answer != confirmation {
                return Err(String::from_utf8_lossy(&answer).into());
            }
            stream.set_nonblocking(true)?;
            let mut stream = TcpStream::from_std(stream);
            let token = Token(self.connections.len() + self.listeners.len());
            let registry = self.poll.registry();
            registry.register(&mut stream, token, Interest::READABLE)?;
            self.listeners.push(Listener { stream, awaited: 0 });
        }
        Ok(())
    }

    /// Sends all `requests` and waits for all replies, and until each listener has got so many
    /// bytes.
    ///
    /// # Errors
    /// A connection failed, or the server was silent for a minute.
    pub fn run(&mut self, requests: &Requests, heard_bytes: u64) -> Result<Outcome> {
        let mut latency_ns = Histogram::<u64>::new_with_max(LATENCY_NS_MAX, 3)?;
        let mut events = Events::with_capacity(1024);
        let mut buffer = vec![0; READ_BYTES];
        let mut next_batch = 0;
        let mut busy = 0;
        for listener in &mut self.listeners {
            listener.awaited = heard_bytes;
            busy += u64::from(heard_bytes > 0);
        }
        let start = clock::now();
        for connection in &mut self.connections {
            if connection.begin(requests, next_batch, start)? {
                next_batch += 1;
                busy += 1;
            }
        }
        while busy > 0 {
            // Never sleeping would spare the server the waking of another core; measured, it makes
            // no difference beyond the noise, and it takes a core from whoever shares the machine.
            match self.poll.poll(&mut events, Some(SILENCE_MAX)) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                other => other?,
            }
            if events.is_empty() {
                return Err("the server has been silent for a minute".into());
            }
            for event in &events {
                let at = event.token().0;
                if let Some(listener) = at.checked_sub(self.connections.len()) {
                    // The last bytes of a connection that listened before may still be announced.
                    if let Some(listener) = self.listeners.get_mut(listener)
                        && listener.receive(&mut buffer)?
                    {
                        busy -= 1;
                    }
                    continue;
                }
                let connection = &mut self.connections[at];
                connection.wire.push()?;
                if !connection.unsent.is_empty() {
                    connection.flush(requests)?;
                }
                if !event.is_readable() || !connection.receive(&mut buffer)? {
                    continue;
                }
                let now = clock::now();
                latency_ns.saturating_record((now - connection.batch_started).as_nanos() as u64);
                if connection.begin(requests, next_batch, now)? {
                    next_batch += 1;
                } else {
                    busy -= 1;
                }
            }
        }
        let elapsed = clock::now() - start;
        let (mut errors, mut first_error) = (0, None);
        for connection in &mut self.connections {
            errors += std::mem::take(&mut connection.counter.errors);
            first_error = first_error.or(connection.counter.first_error.take());
        }
        Ok(Outcome { elapsed, latency_ns, errors, first_error })
    }
}

impl Listener {
    /// Takes in what there is; true when that was the last of it.
    fn receive(&mut self, buffer: &mut [u8]) -> Result<bool> {
        let was_done = self.awaited == 0;
        loop {
            match self.stream.read(buffer) {
                Ok(0) => return Err(io::Error::from(ErrorKind::UnexpectedEof).into()),
                Ok(bytes) => {
                    let left = self.awaited.checked_sub(bytes as u64);
                    self.awaited = left.ok_or("a listener got more than was sent")?;
                    if bytes < buffer.len() {
                        break;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(!was_done && self.awaited == 0)
    }
}

impl Connection {
    /// Starts to send batch `at`; false if there is none.
    fn begin(&mut self, requests: &Requests, at: usize, now: Instant) -> Result<bool> {
        let Some((range, count)) = requests.batch(at) else {
            return Ok(false);
        };
        self.counter.expect(count);
        self.unsent = range;
        self.batch_started = now;
        self.flush(requests)?;
        Ok(true)
    }

    fn flush(&mut self, requests: &Requests) -> Result<()> {
        while !self.unsent.is_empty() {
            match self.wire.write(&requests.bytes()[self.unsent.clone()]) {
                Ok(bytes) => self.unsent.start += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Reads what there is; true when that completed the batch under way.
    fn receive(&mut self, buffer: &mut [u8]) -> Result<bool> {
        let was_done = self.counter.is_done();
        loop {
            match self.wire.read(buffer) {
                Ok(0) => return Err(io::Error::from(ErrorKind::UnexpectedEof).into()),
                Ok(bytes) => {
                    self.counter.feed(&buffer[..bytes])?;
                    // A short read has drained the socket; the next bytes raise a new event.
                    if bytes < buffer.len() && self.wire.is_drained_by_short_reads() {
                        break;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(!was_done && self.counter.is_done())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_hold_all_requests_in_order_and_the_last_one_the_rest() {
        let mut number = 0;
        let requests = Requests::build(10, 4, 1, |out| {
            out.push(number);
            number += 1;
        });
        let batches: Vec<_> = (0..4).map(|at| requests.batch(at)).collect();
        assert_eq!(batches, [Some((0..4, 4)), Some((4..8, 4)), Some((8..10, 2)), None]);
        assert_eq!(requests.bytes(), (0..10).collect::<Vec<u8>>());
    }

    #[test]
    fn a_shuffle_keeps_each_number_once() {
        let mut numbers = shuffled(1000, &mut Random(1));
        assert_ne!(numbers, (0..1000).collect::<Vec<_>>());
        numbers.sort_unstable();
        assert_eq!(numbers, (0..1000).collect::<Vec<_>>());
    }
}
