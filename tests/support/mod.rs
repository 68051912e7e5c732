//! A server in this process with a clock that stands still, and clients that see what redis-cli
//! shows.
#![allow(dead_code)] // every test program uses its own part of this
#![allow(clippy::disallowed_methods)] // the limit of patience is measured in real time

pub mod derived;
pub mod grammar;
pub mod http;
pub mod peer;
pub mod ports;

use std::cell::Cell;
use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use latchkey::clock::{Clock, ManualClock, UnixMillis};
use latchkey::config::Config;
use latchkey::server::{Ending, Handle, Server};
use latchkey::sys::log::{Level, Logger};
use latchkey::sys::random;
use socket2::Socket;

/// The wall clock of a new session: 2023-11-14 22:13:20 UTC.
pub const START: UnixMillis = UnixMillis(1_700_000_000_000);
/// How long a reply may take before the test fails: a limit against hanging, not a measure of
/// speed.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The number in an environment variable, or `default` without one.
pub fn number_from(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().map_or(default, |text| text.parse().expect("a number"))
}

/// The seed of a random test: the number in `variable`, or in `TEST_SEED`. Without them it is the
/// same in every run, so that a change is judged by its own faults; `make random` draws seeds.
pub fn seed(variable: &str) -> u64 {
    number_from(variable, number_from("TEST_SEED", 1))
}

/// A shorter session that still fails: ever smaller chunks are left out. The last `kept` steps
/// stay, and `fails` is asked at most `tries` times.
pub fn shrink<T: Clone>(
    mut steps: Vec<T>,
    kept: usize,
    mut tries: usize,
    mut fails: impl FnMut(&[T]) -> bool,
) -> Vec<T> {
    let mut chunk = steps.len().div_ceil(2);
    while chunk > 0 && tries > 0 {
        let mut start = 0;
        while start + kept < steps.len() && tries > 0 {
            let end = (start + chunk).min(steps.len() - kept);
            let shorter = [&steps[..start], &steps[end..]].concat();
            tries -= 1;
            if fails(&shorter) {
                steps = shorter;
            } else {
                start = end;
            }
        }
        chunk = if chunk == 1 { 0 } else { chunk / 2 };
    }
    steps
}

thread_local! {
    /// Servers that this test has started: each draws random numbers of its own.
    static STARTED: Cell<u64> = const { Cell::new(0) };
}

fn seed_of_next_server() -> u64 {
    let number = STARTED.get();
    STARTED.set(number + 1);
    (number_from("TEST_SEED", 1) << 32) + number
}

/// Looks again and again, until there is something to see. Panics when patience ends.
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "waited too long for {what}");
        std::thread::yield_now();
    }
}

/// One reply, as it came.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    Simple(Vec<u8>),
    Error(Vec<u8>),
    Integer(i64),
    Bulk(Vec<u8>),
    /// With its format and the colon, as it came: `txt:some text`.
    Verbatim(Vec<u8>),
    /// RESP3's null, `_`.
    Null,
    /// RESP2's null bulk string, `$-1`.
    NullBulk,
    /// RESP2's null array, `*-1`.
    NullArray,
    Double(String),
    Boolean(bool),
    BigNumber(String),
    Array(Vec<Reply>),
    Set(Vec<Reply>),
    Map(Vec<(Reply, Reply)>),
    Push(Vec<Reply>),
    Attribute(Vec<(Reply, Reply)>),
}

/// A server in a thread, stopped when this is dropped.
pub struct TestServer {
    pub address: SocketAddr,
    /// Where it speaks TLS, if its configuration names a certificate.
    pub tls_address: Option<SocketAddr>,
    /// Where it serves HTTP, if its configuration says anything about that.
    pub http_address: Option<SocketAddr>,
    pub clock: ManualClock,
    handle: Handle,
    thread: Option<JoinHandle<Ending>>,
    /// Its own, if its configuration names none.
    _folder: Option<tempfile::TempDir>,
}

impl TestServer {
    /// Starts a server on a free port of 127.0.0.1; `lines` are further lines of its configuration.
    pub fn start(lines: &[String]) -> Self {
        // Without save points: tests move the clock by hours, and leave no files behind.
        let mut text =
            String::from("bind 127.0.0.1\nport 0\nenable-debug-command yes\nsave \"\"\n");
        for line in lines {
            text.push_str(line);
            text.push('\n');
        }
        // Nor what a replica is sent: each server has a folder.
        let has_folder = lines.iter().any(|line| line.starts_with("dir "));
        let folder = (!has_folder).then(|| tempfile::tempdir().expect("a folder"));
        if let Some(folder) = &folder {
            text.push_str(&format!("dir {}\n", folder.path().display()));
        }
        let config = Config::from_text(text.as_bytes()).expect("the test's configuration is good");
        let clock = ManualClock::new(START);
        let address: SocketAddr = "127.0.0.1:0".parse().expect("an address");
        let logger = match config.logfile.is_empty() {
            true => Logger::silent(),
            false => Logger::new(Some(Level::Verbose), &config.logfile),
        };
        let has_tls = !config.tls_cert_file.is_empty();
        let seed = seed_of_next_server();
        random::repeat_from(seed);
        let mut server =
            Server::start(config, Clock::Manual(clock.clone()), logger).expect("the server starts");
        let tls_address =
            has_tls.then(|| server.listen_for_tls_on(address).expect("a free port, and TLS"));
        let has_http =
            lines.iter().any(|line| line.starts_with("http-") || line.starts_with("page-"));
        let http_address =
            has_http.then(|| server.listen_for_http_on(address).expect("a free port"));
        let address = server.listen_on(address).expect("a free port");
        // Only from a folder of the test's own: what lies where the tests run is nobody's data.
        if has_folder {
            server.load().expect("what was saved can be loaded");
        }
        let handle = server.handle();
        let thread = std::thread::spawn(move || {
            random::repeat_from(seed);
            server.run().expect("the loop ends in order")
        });
        let thread = Some(thread);
        TestServer { address, tls_address, http_address, clock, handle, thread, _folder: folder }
    }

    pub fn connect(&self) -> Client {
        Client::connect(self.address)
    }

    /// Moves both clocks and lets the server look at them: when this returns, a turn has passed.
    pub fn advance(&self, us: i64) {
        self.clock.advance_us(us);
        self.settle();
    }

    /// Unix milliseconds on the server's clock.
    pub fn clock_ms(&self) -> i64 {
        Clock::Manual(self.clock.clone()).now().unix().0
    }

    /// Sets the wall clock alone.
    pub fn step_wall(&self, us: i64) {
        self.clock.step_wall_us(us);
        self.settle();
    }

    /// Moves both clocks and waits for a turn to end: one that goes on until time passes does so
    /// now.
    pub fn step(&self, us: i64) {
        let before = self.handle.turns();
        self.clock.advance_us(us);
        wait_for("a turn of the loop", || {
            self.handle.wake().expect("the loop can be woken");
            (self.handle.turns() > before).then_some(())
        });
    }

    /// Waits for two turns: what was due at the beginning of the first is done and sent.
    pub fn settle(&self) {
        let before = self.handle.turns();
        wait_for("two turns of the loop", || {
            self.handle.wake().expect("the loop can be woken");
            (self.handle.turns() >= before + 2).then_some(())
        });
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        // A server that has ended already needs no stop.
        let _ = self.handle.stop();
        let Some(thread) = self.thread.take() else { return };
        if std::thread::panicking() {
            // What is wrong is being told already; a server that hangs would keep that from being
            // seen.
            return;
        }
        wait_for("the end of the server", || thread.is_finished().then_some(()));
        assert!(thread.join().is_ok(), "the server panicked");
    }
}

/// A client that speaks the protocol by hand.
pub struct Client {
    stream: Socket,
    buffer: Vec<u8>,
    /// Pushes that came before a reply.
    pub pushes: Vec<Reply>,
}

impl Client {
    pub fn connect(address: SocketAddr) -> Self {
        Client::try_connect(address).expect("the server takes connections")
    }

    /// The same where nobody may listen yet.
    pub fn try_connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Client::over(stream.into())
    }

    /// Connects to a Unix socket.
    pub fn try_connect_unix(path: &Path) -> io::Result<Self> {
        Client::over(UnixStream::connect(path)?.into())
    }

    fn over(stream: Socket) -> io::Result<Self> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Client { stream, buffer: Vec::new(), pushes: Vec::new() })
    }

    /// This client, if the server has loaded its data and answers.
    pub fn if_served(mut self) -> Option<Self> {
        (self.try_ask("PING")? == Reply::Simple(b"PONG".to_vec())).then_some(self)
    }

    /// The server's address.
    pub fn peer(&self) -> SocketAddr {
        let address = self.stream.peer_addr().expect("the connection is there");
        address.as_socket().expect("it is one of TCP")
    }

    /// Ends one direction of the connection, or both.
    pub fn shutdown(&mut self, how: Shutdown) {
        self.stream.shutdown(how).expect("the connection is there");
    }

    /// Sends raw bytes.
    pub fn send_raw(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server reads");
    }

    /// Sends a request without waiting.
    pub fn send<A: AsRef<[u8]>>(&mut self, args: &[A]) {
        self.send_raw(&encode(args));
    }

    /// Sends a request and waits for its reply.
    pub fn call<A: AsRef<[u8]>>(&mut self, args: &[A]) -> Reply {
        self.send(args);
        self.reply().expect("the server answers")
    }

    /// Sends a request of words with a space between them. Its reply must be no error.
    pub fn ask(&mut self, line: &str) -> Reply {
        let reply = self.try_ask(line).expect("the server answers");
        assert!(!matches!(reply, Reply::Error(_)), "{line}: {}", reply.show());
        reply
    }

    /// The error that a request of words is answered with.
    pub fn error_of(&mut self, line: &str) -> String {
        self.try_ask(line).expect("the server answers").error()
    }

    /// The reply of a server that may end before. None: the connection has ended.
    pub fn try_ask(&mut self, line: &str) -> Option<Reply> {
        // Whoever has ended does not answer either.
        let _ = self.stream.write_all(&encode_line(line));
        self.reply()
    }

    /// Sends requests of words at once, and waits for all replies.
    pub fn ask_all(&mut self, lines: &[impl AsRef<str>]) -> Vec<Reply> {
        let requests = lines.iter().flat_map(|line| encode_line(line.as_ref()));
        self.send_raw(&requests.collect::<Vec<u8>>());
        lines.iter().map(|_| self.reply().expect("the server answers")).collect()
    }

    /// The next reply; pushes before it are kept aside. None: the connection has ended.
    pub fn reply(&mut self) -> Option<Reply> {
        loop {
            match self.next_message()? {
                push @ Reply::Push(_) => self.pushes.push(push),
                Reply::Attribute(_) => {}
                reply => return Some(reply),
            }
        }
    }

    /// The next message of any kind. None: the connection has ended.
    pub fn next_message(&mut self) -> Option<Reply> {
        loop {
            let mut at = 0;
            if let Some(reply) = decode(&self.buffer, &mut at) {
                self.buffer.drain(..at);
                return Some(reply);
            }
            let mut bytes = [0; 64 * 1024];
            match read_some(&mut self.stream, &mut bytes) {
                Ok(0) => return None,
                Ok(count) => self.buffer.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("no reply came: {error}"),
            }
        }
    }

    /// Bytes as they come, for replies that are too deep to be decoded.
    pub fn read_raw(&mut self) -> Vec<u8> {
        let mut bytes = vec![0; 64 * 1024];
        let count = read_some(&mut self.stream, &mut bytes).expect("bytes come");
        bytes.truncate(count);
        bytes
    }

    /// A message that is there already or arrives within a moment; None if nothing does.
    pub fn try_message(&mut self) -> Option<Reply> {
        let mut at = 0;
        if let Some(reply) = decode(&self.buffer, &mut at) {
            self.buffer.drain(..at);
            return Some(reply);
        }
        self.stream.set_nonblocking(true).expect("an option of sockets");
        let mut bytes = [0; 64 * 1024];
        let read = read_some(&mut self.stream, &mut bytes);
        self.stream.set_nonblocking(false).expect("an option of sockets");
        match read {
            Ok(count) if count > 0 => {
                self.buffer.extend_from_slice(&bytes[..count]);
                self.try_message()
            }
            _ => None,
        }
    }
}

/// Copies a folder of files and folders.
pub fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("a folder") {
        let path = entry.expect("an entry").path();
        let target = to.join(path.file_name().expect("a name"));
        match path.is_dir() {
            true => copy_folder(&path, &target),
            false => drop(std::fs::copy(&path, target).expect("a file")),
        }
    }
}

/// Reads some bytes. A server in this process may have a watchdog, whose signal interrupts any read
/// that has a time-out.
pub fn read_some(stream: &mut impl Read, bytes: &mut [u8]) -> io::Result<usize> {
    loop {
        match stream.read(bytes) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}

/// Decodes one reply; None if it is not complete.
pub fn decode(bytes: &[u8], at: &mut usize) -> Option<Reply> {
    let rest = &bytes[*at..];
    let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
    let kind = rest[0];
    let line = &rest[1..end];
    *at += end + 2;
    let text = || String::from_utf8_lossy(line).into_owned();
    let number = || text().parse::<i64>().expect("a length");
    let several = |count: i64, at: &mut usize| {
        (0..count).map(|_| decode(bytes, at)).collect::<Option<Vec<_>>>()
    };
    let pairs = |flat: Vec<Reply>| {
        let mut flat = flat.into_iter();
        let mut pairs = Vec::new();
        while let (Some(key), Some(value)) = (flat.next(), flat.next()) {
            pairs.push((key, value));
        }
        pairs
    };
    Some(match kind {
        b'+' => Reply::Simple(line.to_vec()),
        b'-' => Reply::Error(line.to_vec()),
        b':' => Reply::Integer(number()),
        b'_' => Reply::Null,
        b',' => Reply::Double(text()),
        b'#' => Reply::Boolean(line == b"t"),
        b'(' => Reply::BigNumber(text()),
        b'$' if number() < 0 => Reply::NullBulk,
        b'*' if number() < 0 => Reply::NullArray,
        b'$' | b'=' => {
            let length = number() as usize;
            let value = bytes.get(*at..*at + length)?.to_vec();
            bytes.get(*at + length + 1)?;
            *at += length + 2;
            if kind == b'=' { Reply::Verbatim(value) } else { Reply::Bulk(value) }
        }
        b'*' => Reply::Array(several(number(), at)?),
        b'~' => Reply::Set(several(number(), at)?),
        b'>' => Reply::Push(several(number(), at)?),
        b'%' => Reply::Map(pairs(several(number() * 2, at)?)),
        b'|' => Reply::Attribute(pairs(several(number() * 2, at)?)),
        other => panic!("not a reply: {:?}", other as char),
    })
}

/// A request's bytes.
pub fn encode<A: AsRef<[u8]>>(args: &[A]) -> Vec<u8> {
    let mut request = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        let arg = arg.as_ref();
        request.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        request.extend_from_slice(arg);
        request.extend_from_slice(b"\r\n");
    }
    request
}

fn encode_line(line: &str) -> Vec<u8> {
    encode(&line.split(' ').collect::<Vec<_>>())
}

/// A byte string as redis-cli quotes it.
pub fn quote(bytes: &[u8]) -> String {
    let mut shown = String::from("\"");
    for &byte in bytes {
        match byte {
            b'\\' => shown.push_str("\\\\"),
            b'"' => shown.push_str("\\\""),
            b'\n' => shown.push_str("\\n"),
            b'\r' => shown.push_str("\\r"),
            b'\t' => shown.push_str("\\t"),
            0x07 => shown.push_str("\\a"),
            0x08 => shown.push_str("\\b"),
            b' '..=b'~' => shown.push(byte as char),
            _ => shown.push_str(&format!("\\x{byte:02x}")),
        }
    }
    shown.push('"');
    shown
}

impl Reply {
    /// A string of any kind. Panics on other replies, as the methods after it do.
    pub fn text(self) -> String {
        match self {
            Reply::Simple(bytes) | Reply::Bulk(bytes) | Reply::Verbatim(bytes) => {
                String::from_utf8(bytes).expect("UTF-8")
            }
            other => panic!("not a text: {}", other.show()),
        }
    }

    pub fn number(self) -> i64 {
        match self {
            Reply::Integer(number) => number,
            other => panic!("not a number: {}", other.show()),
        }
    }

    pub fn items(self) -> Vec<Reply> {
        match self {
            Reply::Array(items) => items,
            other => panic!("not an array: {}", other.show()),
        }
    }

    pub fn texts(self) -> Vec<String> {
        self.items().into_iter().map(Reply::text).collect()
    }

    pub fn error(self) -> String {
        match self {
            Reply::Error(bytes) => String::from_utf8(bytes).expect("UTF-8"),
            other => panic!("not an error: {}", other.show()),
        }
    }

    /// The reply as redis-cli shows it on a terminal, without a line end at its end; what redis-cli
    /// shows alike is told apart: `(nil)` is a null bulk string, `(nil array)` a null array,
    /// `(null)` RESP3's null; `txt:` begins a verbatim string.
    pub fn show(&self) -> String {
        let mut shown = String::new();
        self.show_into(&mut shown, "");
        shown.truncate(shown.trim_end_matches('\n').len());
        shown
    }

    fn show_into(&self, out: &mut String, prefix: &str) {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let line = match self {
            Reply::Simple(bytes) | Reply::Verbatim(bytes) => text(bytes),
            Reply::Error(bytes) => format!("(error) {}", text(bytes)),
            Reply::Integer(value) => format!("(integer) {value}"),
            Reply::Bulk(bytes) => quote(bytes),
            Reply::Null => "(null)".into(),
            Reply::NullBulk => "(nil)".into(),
            Reply::NullArray => "(nil array)".into(),
            Reply::Double(value) => format!("(double) {value}"),
            Reply::Boolean(value) => format!("({value})"),
            Reply::BigNumber(value) => format!("(big number) {value}"),
            Reply::Array(items) => return show_items(out, prefix, items, ')', "(empty array)"),
            Reply::Push(items) => return show_items(out, prefix, items, ')', "(empty push)"),
            Reply::Set(items) => return show_items(out, prefix, items, '~', "(empty set)"),
            Reply::Map(pairs) | Reply::Attribute(pairs) => {
                if pairs.is_empty() {
                    out.push_str("(empty hash)\n");
                }
                let width = pairs.len().to_string().len();
                let inner = format!("{prefix}{}", " ".repeat(width + 2));
                for (index, (key, value)) in pairs.iter().enumerate() {
                    let lead = if index == 0 { "" } else { prefix };
                    out.push_str(&format!("{lead}{:>width$}# ", index + 1));
                    key.show_into(out, &inner);
                    out.truncate(out.trim_end_matches('\n').len());
                    out.push_str(" => ");
                    value.show_into(out, &inner);
                }
                return;
            }
        };
        out.push_str(&line);
        out.push('\n');
    }
}

fn show_items(out: &mut String, prefix: &str, items: &[Reply], mark: char, empty: &str) {
    if items.is_empty() {
        out.push_str(empty);
        out.push('\n');
    }
    let width = items.len().to_string().len();
    let inner = format!("{prefix}{}", " ".repeat(width + 2));
    for (index, item) in items.iter().enumerate() {
        let lead = if index == 0 { "" } else { prefix };
        out.push_str(&format!("{lead}{:>width$}{mark} ", index + 1));
        item.show_into(out, &inner);
    }
}

/// Splits a line into arguments as redis-cli does. Panics on unbalanced quotes: the test is wrong.
pub fn split_args(line: &str) -> Vec<Vec<u8>> {
    latchkey::config::parse_line(line.as_bytes()).expect("balanced quotes").expect("not a comment")
}

/// Named clients of one server: one in this process, or a peer that runs already.
pub struct Session {
    server: Option<TestServer>,
    address: SocketAddr,
    clients: HashMap<String, Client>,
}

impl Session {
    /// A session with a server of its own.
    pub fn start(lines: &[String]) -> Self {
        let server = TestServer::start(lines);
        Session { address: server.address, server: Some(server), clients: HashMap::new() }
    }

    /// A session with a peer, emptied.
    pub fn with_peer(address: SocketAddr) -> Self {
        let mut session = Session { address, server: None, clients: HashMap::new() };
        let mut client = Client::connect(address);
        for request in [&["FLUSHALL"][..], &["CONFIG", "RESETSTAT"], &["SLOWLOG", "RESET"]] {
            client.call(request);
        }
        session.clients.clear();
        session
    }

    /// A session with a peer that is a node of a cluster, emptied.
    pub fn with_cluster_peer(address: SocketAddr) -> Self {
        let session = Session::with_peer(address);
        let mut client = Client::connect(address);
        client.call(&["CONFIG", "SET", "cluster-node-timeout", "500"]);
        client.call(&["CLUSTER", "RESET", "HARD"]);
        session
    }

    /// Waits until the cluster of a client's node is ok.
    pub fn settle_cluster(&mut self, name: &str) {
        wait_for("the cluster's state", || {
            let info = self.client(name).call(&["CLUSTER", "INFO"]).show();
            if let Some(server) = &self.server {
                server.advance(500_000);
            }
            info.contains("cluster_state:ok").then_some(())
        });
    }

    /// The server in this process. Panics if the session is with a peer.
    pub fn server(&self) -> &TestServer {
        self.server.as_ref().expect("a step that only a server with a movable clock can take")
    }

    /// The client of this name, connected when first named.
    pub fn client(&mut self, name: &str) -> &mut Client {
        let address = self.address;
        self.clients.entry(name.to_owned()).or_insert_with(|| Client::connect(address))
    }

    /// Ends a client's connection.
    pub fn close(&mut self, name: &str) {
        self.clients.remove(name);
        self.settle();
    }

    /// Waits until what was sent has had its effect: two turns here, a round trip of a new client
    /// at a peer.
    pub fn settle(&self) {
        match &self.server {
            Some(server) => server.settle(),
            None => drop(Client::connect(self.address).call(&["PING"])),
        }
    }
}

#[test]
fn a_session_is_shrunk_to_what_fails() {
    let both = |steps: &[u32]| steps.contains(&17) && steps.contains(&42);
    assert_eq!(shrink((0..100).collect(), 0, 300, both), [17, 42]);
    assert_eq!(shrink((0..100).collect(), 1, 300, both), [17, 42, 99]);
    assert_eq!(shrink(vec![1], 0, 300, |_| true), []);
    assert_eq!(shrink((0..100).collect(), 0, 0, both).len(), 100);
}
