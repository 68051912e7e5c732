//! The network between the servers of a simulation: bytes move when the schedule says so, and links
//! break at any of them.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use latchkey::net::dialer::{Dialer, Route};
use latchkey::net::stream::{Address, Stream};

use super::trace::Trace;

pub const PORT: u16 = 6379;
/// Where other nodes of a cluster reach a server.
pub const BUS_PORT: u16 = 16379;
/// Bytes on their way in one direction; a sender waits behind them.
const WINDOW: usize = 256 << 10;

/// Where a server is reached.
pub fn address(node: usize) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, node as u8 + 1)), PORT)
}

/// Both ends of a connection, neither of which waits.
pub fn pair() -> io::Result<(UnixStream, UnixStream)> {
    let (one, other) = UnixStream::pair()?;
    one.set_nonblocking(true)?;
    other.set_nonblocking(true)?;
    Ok((one, other))
}

/// What the servers' own calls leave for the network.
#[derive(Default)]
struct Shared {
    dials: Vec<Wire>,
    is_up: BTreeMap<usize, bool>,
}

/// One server's way out.
struct Gateway {
    node: usize,
    shared: Arc<Mutex<Shared>>,
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Dialer for Gateway {
    fn connect(&self, route: &Route<'_>) -> io::Result<Stream> {
        let mut shared = lock(&self.shared);
        let (ip, port) = (route.to.ip(), route.to.port());
        let to = (0..shared.is_up.len()).find(|&node| address(node).ip() == ip);
        let to = to.filter(|_| [PORT, BUS_PORT].contains(&port));
        let to = to.ok_or(ErrorKind::HostUnreachable)?;
        if !shared.is_up[&to] {
            return Err(ErrorKind::ConnectionRefused.into());
        }
        let (ours, theirs) = pair()?;
        shared.dials.push(Wire {
            number: 0,
            nodes: [self.node, to],
            port,
            ends: [Some(ours), None],
            ways: Default::default(),
            accept_us: i64::MAX,
        });
        Ok(theirs.into())
    }
}

/// One direction of a connection.
#[derive(Default)]
struct Way {
    /// Bytes on their way, and when they are there.
    queue: VecDeque<(i64, Vec<u8>)>,
    queued: usize,
    /// The sender has closed its end.
    has_ended: bool,
}

/// A connection between two servers: the first has made it.
pub struct Wire {
    number: usize,
    pub nodes: [usize; 2],
    port: u16,
    /// The network's ends; the second is made when the connection is taken in.
    ends: [Option<UnixStream>; 2],
    ways: [Way; 2],
    accept_us: i64,
}

#[derive(Default)]
pub struct Wires {
    shared: Arc<Mutex<Shared>>,
    wires: Vec<Wire>,
    made: usize,
    /// Microseconds that bytes take between two servers, and pairs that do not hear each other.
    delays: BTreeMap<(usize, usize), i64>,
    parted: BTreeMap<(usize, usize), ()>,
}

/// Two servers in any order.
fn both(one: usize, other: usize) -> (usize, usize) {
    (one.min(other), one.max(other))
}

impl Wires {
    pub fn gateway(&self, node: usize) -> Box<dyn Dialer> {
        Box::new(Gateway { node, shared: self.shared.clone() })
    }

    pub fn set_up(&mut self, node: usize, is_up: bool) {
        lock(&self.shared).is_up.insert(node, is_up);
    }

    pub fn set_delay(&mut self, one: usize, other: usize, us: i64) {
        self.delays.insert(both(one, other), us);
    }

    pub fn part(&mut self, one: usize, other: usize) {
        self.parted.insert(both(one, other), ());
    }

    pub fn heal(&mut self, one: usize, other: usize) {
        self.parted.remove(&both(one, other));
    }

    /// All is well again.
    pub fn calm(&mut self) {
        self.delays.clear();
        self.parted.clear();
    }

    /// Connections made so far.
    pub fn made(&self) -> usize {
        self.made
    }

    pub fn len(&self) -> usize {
        self.wires.len()
    }

    /// Cuts one connection somewhere in what is on its way.
    pub fn cut(&mut self, index: usize, random: &mut fastrand::Rng) {
        let mut wire = self.wires.swap_remove(index);
        for from in 0..2 {
            wire.read(from, 0, 0);
            let bytes: Vec<u8> =
                wire.ways[from].queue.drain(..).flat_map(|(_, bytes)| bytes).collect();
            let count = random.usize(..=bytes.len());
            if let Some(end) = &mut wire.ends[1 - from] {
                // It may be gone, or full: the rest is lost.
                let _ = end.write(&bytes[..count]);
            }
        }
    }

    /// A server is gone: what it has sent arrives or not.
    pub fn forget(&mut self, node: usize, random: &mut fastrand::Rng) {
        while let Some(index) = self.wires.iter().position(|wire| wire.nodes.contains(&node)) {
            self.cut(index, random);
        }
        let mut shared = lock(&self.shared);
        shared.dials.retain(|dial| !dial.nodes.contains(&node));
    }

    /// Moves what is due. `accept` gives a server the other end of a new connection to one of its
    /// ports, but for one that is asleep.
    pub fn pump(
        &mut self,
        now_us: i64,
        asleep: Option<usize>,
        trace: &mut Trace,
        mut accept: impl FnMut(usize, u16, Stream, Address),
    ) {
        for mut wire in std::mem::take(&mut lock(&self.shared).dials) {
            self.made += 1;
            (wire.number, wire.accept_us) = (self.made, now_us);
            self.wires.push(wire);
        }
        let Wires { wires, delays, parted, .. } = self;
        wires.retain_mut(|wire| {
            let between = both(wire.nodes[0], wire.nodes[1]);
            if parted.contains_key(&between) {
                return true;
            }
            let delay_us = delays.get(&between).copied().unwrap_or(0);
            let may_accept = asleep != Some(wire.nodes[1]) && now_us >= wire.accept_us + delay_us;
            if wire.ends[1].is_none() && may_accept {
                let Ok((ours, theirs)) = pair() else { return false };
                wire.ends[1] = Some(ours);
                let peer = SocketAddr::new(
                    address(wire.nodes[0]).ip(),
                    50_000 + (wire.number % 10_000) as u16,
                );
                accept(wire.nodes[1], wire.port, theirs.into(), Address::Tcp(peer));
            }
            (0..2).all(|from| {
                wire.read(from, now_us + delay_us, WINDOW);
                wire.deliver(from, now_us, trace)
            })
        });
    }
}

impl Wire {
    /// Takes what one end has sent; it is there at `due_us`. With a window of 0 all of it.
    fn read(&mut self, from: usize, due_us: i64, window: usize) {
        let (Some(end), way) = (&mut self.ends[from], &mut self.ways[from]) else { return };
        let mut bytes = [0; 32 << 10];
        while !way.has_ended && (window == 0 || way.queued < window) {
            match end.read(&mut bytes) {
                Ok(0) => way.has_ended = true,
                Ok(count) => {
                    way.queued += count;
                    way.queue.push_back((due_us, bytes[..count].to_vec()));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => way.has_ended = true,
            }
        }
    }

    /// Gives one direction's bytes to the other end. False: the connection is over.
    fn deliver(&mut self, from: usize, now_us: i64, trace: &mut Trace) -> bool {
        let Some(end) = &mut self.ends[1 - from] else { return true };
        let way = &mut self.ways[from];
        while let Some((due_us, bytes)) = way.queue.front_mut() {
            if *due_us > now_us {
                return true;
            }
            match end.write(bytes) {
                Ok(count) => {
                    trace.note(|| format!("wire {} {from} {count}", self.number));
                    way.queued -= count;
                    bytes.drain(..count);
                    if bytes.is_empty() {
                        way.queue.pop_front();
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(_) => return false,
            }
        }
        !way.has_ended
    }
}
