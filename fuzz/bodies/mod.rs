//! What the fuzz targets do with their input: plain functions of bytes, so that the corpora are
//! also replayed by a plain test (`tests/it/fuzz_corpus.rs`).
#![allow(dead_code)] // each target uses one

pub mod acl;
pub mod aof;
pub mod cluster_message;
pub mod config;
pub mod function_payload;
pub mod glob;
pub mod http;
pub mod hyperloglog;
pub mod inline;
pub mod link;
pub mod listpack;
pub mod manifest;
pub mod packed;
pub mod primary;
pub mod rdb;
pub mod replica;
pub mod request;
pub mod restore;
pub mod script_libraries;
pub mod stream;

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use latchkey::clock::{Clock, ManualClock, UnixMillis};
use latchkey::config::Config;
use latchkey::net::dialer::{Dialer, Route};
use latchkey::net::stream::{Address, Stream};
use latchkey::server::driven::DrivenServer;
use latchkey::sys::disk::model::ModelDisk;
use latchkey::sys::log::Logger;

/// A server that takes a turn when it is told to, with a clock and files of its own.
struct Driven {
    server: DrivenServer,
    clock: ManualClock,
    dialled: Dialled,
    is_running: bool,
}

/// The other end of one of its connections.
struct Peer(UnixStream);

/// Connections that it has made itself.
#[derive(Clone, Default)]
struct Dialled(Arc<Mutex<Vec<UnixStream>>>);

impl Dialer for Dialled {
    fn connect(&self, _route: &Route<'_>) -> std::io::Result<Stream> {
        let (ours, theirs) = pair();
        self.0.lock().expect("nobody panics with it").push(ours);
        Ok(theirs.into())
    }
}

fn pair() -> (UnixStream, UnixStream) {
    let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
    for socket in [&ours, &theirs] {
        socket.set_nonblocking(true).expect("an option of sockets");
    }
    (ours, theirs)
}

impl Driven {
    fn new(lines: &[u8]) -> Self {
        let lines = [b"port 0\nbind 127.0.0.1\nsave \"\"\ndir /\n", lines].concat();
        let config = Config::from_text(&lines).expect("the configuration is good");
        let clock = ManualClock::new(UnixMillis(1_700_000_000_000));
        let dialled = Dialled::default();
        let (dialer, disk) = (Box::new(dialled.clone()), Arc::new(ModelDisk::new(1)));
        let clock_of_server = Clock::Manual(clock.clone());
        let mut server =
            DrivenServer::start(config, clock_of_server, Logger::silent(), dialer, disk)
                .expect("the server starts");
        server.load().expect("there is nothing to load");
        Driven { server, clock, dialled, is_running: true }
    }

    fn connect(&mut self) -> Peer {
        let (ours, theirs) = pair();
        let address = || Address::Tcp(SocketAddr::from(([127, 0, 0, 1], 4000)));
        self.server.take_in(theirs.into(), address(), address());
        Peer(ours)
    }

    /// A connection for HTTP, by a listener that only this machine reaches.
    fn connect_for_http(&mut self) -> Peer {
        let (ours, theirs) = pair();
        let address = Address::Tcp(SocketAddr::from(([127, 0, 0, 1], 4000)));
        self.server.take_in_http(theirs.into(), address);
        Peer(ours)
    }

    /// The connection it has made last.
    fn dialled(&mut self) -> Option<Peer> {
        self.dialled.0.lock().expect("nobody panics with it").pop().map(Peer)
    }

    fn turns(&mut self, count: usize) {
        for _ in 0..count {
            self.is_running = self.is_running && self.server.turn_now().expect("a turn ends");
            self.server.do_background();
        }
    }

    /// Seconds pass.
    fn advance(&mut self, seconds: i64) {
        self.clock.advance_us(seconds * 1_000_000);
        self.turns(4);
    }
}

impl Peer {
    /// What the other end does not take is lost.
    fn send(&mut self, bytes: &[u8]) {
        let _ = self.0.write(bytes);
    }

    fn receive(&mut self) -> Vec<u8> {
        let mut bytes = vec![0; 1 << 16];
        let count = self.0.read(&mut bytes).unwrap_or(0);
        bytes.truncate(count);
        bytes
    }
}

/// Whether something of it has everybody wait, takes for ever, or changes the world outside: no
/// matter of the link.
fn leads_astray(bytes: &[u8]) -> bool {
    const WORDS: [&[u8]; 8] =
        [b"debug", b"eval", b"fcall", b"config", b"acl", b"migrate", b"module", b"pause"];
    let lower = bytes.to_ascii_lowercase();
    WORDS.iter().any(|word| lower.windows(word.len()).any(|window| window == *word))
}

/// Whoever comes is still answered, though those who write may have to wait.
fn run_out(server: &mut Driven) {
    let mut client = server.connect();
    client.send(b"ECHO still\r\n");
    server.turns(4);
    let answer = client.receive();
    if server.is_running {
        let is_answer = answer.ends_with(b"$5\r\nstill\r\n") || answer.starts_with(b"-LOADING");
        assert!(is_answer, "{:?}", String::from_utf8_lossy(&answer));
    }
}

/// The first bytes and the rest; zeros where there are fewer.
fn split_first<const N: usize>(input: &[u8]) -> (&[u8; N], &[u8]) {
    input.split_first_chunk().unwrap_or((&[0; N], &[]))
}

/// As many bytes as the first two say, little-endian, at most all there are, and the rest.
fn split_len(input: &[u8]) -> (&[u8], &[u8]) {
    let (len, rest) = split_first(input);
    rest.split_at(usize::from(u16::from_le_bytes(*len)).min(rest.len()))
}

/// What stands before the first line end, and behind it.
fn at_line_end(input: &[u8]) -> (&[u8], &[u8]) {
    let end = input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len());
    (&input[..end], input.get(end + 1..).unwrap_or_default())
}
