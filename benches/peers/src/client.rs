//! Two clients beside the load generator: [`Client`] blocks and returns whole replies, for set-up;
//! [`Probe`] is polled by a spinning loop and tells how long each of its requests took.

use crate::resp::{Reply, ReplyCounter, encode_request};
use crate::{Result, clock};
use std::io::{self, BufReader, ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt};
use nix::sys::time::TimeSpec;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Above the longest stall worth waiting for: a peer's FLUSHALL of ten million keys.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);

/// A blocking client: one request, one reply.
pub struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    pub fn connect(address: SocketAddr) -> Result<Client> {
        let stream = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
        Ok(Client { stream: BufReader::new(stream) })
    }

    /// Sends a request and returns its reply, error replies included.
    pub fn call(&mut self, arguments: &[&str]) -> Result<Reply> {
        let arguments: Vec<&[u8]> = arguments.iter().map(|argument| argument.as_bytes()).collect();
        let mut request = Vec::new();
        encode_request(&mut request, &arguments);
        self.send(&request)?;
        self.receive()
    }

    /// As [`Client::call`], but an error reply is an error.
    pub fn must(&mut self, arguments: &[&str]) -> Result<Reply> {
        match self.call(arguments)? {
            Reply::Error(error) => Err(format!("{}: {error}", arguments.join(" ")).into()),
            reply => Ok(reply),
        }
    }

    /// Sends bytes of any number of requests.
    pub fn send(&mut self, requests: &[u8]) -> Result<()> {
        Ok(self.stream.get_mut().write_all(requests)?)
    }

    /// The connection, with what has not been read.
    pub fn into_stream(self) -> TcpStream {
        self.stream.into_inner()
    }

    /// Reads the next reply or push.
    pub fn receive(&mut self) -> Result<Reply> {
        Ok(Reply::read(&mut self.stream)?)
    }

    /// Changes how long [`Client::receive`] waits before it fails.
    pub fn set_timeout(&mut self, timeout: Duration) -> Result<()> {
        Ok(self.stream.get_ref().set_read_timeout(Some(timeout))?)
    }
}

/// Reads what has arrived, and when by the wall clock, if the kernel says so.
fn receive(stream: &TcpStream, buffer: &mut [u8]) -> nix::Result<(usize, Option<Duration>)> {
    let mut parts = [io::IoSliceMut::new(buffer)];
    let mut control = nix::cmsg_space!(TimeSpec);
    let message =
        recvmsg::<()>(stream.as_raw_fd(), &mut parts, Some(&mut control), MsgFlags::empty())?;
    let arrived = message.cmsgs()?.find_map(|control| match control {
        ControlMessageOwned::ScmTimestampns(time) => Some(Duration::from(time)),
        _ => None,
    });
    Ok((message.bytes, arrived))
}

/// A client that never blocks, with at most one batch of requests under way.
pub struct Probe {
    stream: TcpStream,
    unsent: Vec<u8>,
    sent: usize,
    counter: ReplyCounter,
    started: Instant,
    /// The wall clock then.
    started_wall: Duration,
    outstanding: bool,
    /// The bytes of the last batch's replies.
    pub replies: Vec<u8>,
}

impl Probe {
    pub fn connect(address: SocketAddr) -> Result<Probe> {
        let stream = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        // Without it a pause of this program counts as the server's.
        let _ = setsockopt(&stream, sockopt::ReceiveTimestampns, &true);
        Ok(Probe {
            stream,
            unsent: Vec::new(),
            sent: 0,
            counter: ReplyCounter::default(),
            started: clock::now(),
            started_wall: clock::wall(),
            outstanding: false,
            replies: Vec::new(),
        })
    }

    /// Whether requests wait for replies.
    pub fn is_outstanding(&self) -> bool {
        self.outstanding
    }

    /// Begins to send `requests`, which will have `count` replies. Nothing may be outstanding.
    pub fn start(&mut self, requests: &[u8], count: u64, now: Instant) -> Result<()> {
        debug_assert!(!self.outstanding);
        self.unsent.clear();
        self.unsent.extend_from_slice(requests);
        self.sent = 0;
        self.counter.expect(count);
        self.replies.clear();
        self.started = now;
        self.started_wall = clock::wall();
        self.outstanding = true;
        self.flush()
    }

    fn flush(&mut self) -> Result<()> {
        while self.sent < self.unsent.len() {
            match self.stream.write(&self.unsent[self.sent..]) {
                Ok(bytes) => self.sent += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Moves on what is outstanding; returns its duration until the last reply arrived in the
    /// kernel, when all are in.
    ///
    /// # Errors
    /// The connection failed, or a reply was an error.
    pub fn poll(&mut self) -> Result<Option<Duration>> {
        if !self.outstanding {
            return Ok(None);
        }
        self.flush()?;
        let mut buffer = [0; 16 * 1024];
        let arrived = match receive(&self.stream, &mut buffer) {
            Ok((0, _)) => return Err(io::Error::from(ErrorKind::UnexpectedEof).into()),
            Ok((bytes, arrived)) => {
                self.counter.feed(&buffer[..bytes])?;
                self.replies.extend_from_slice(&buffer[..bytes]);
                arrived
            }
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(None),
            Err(error) => return Err(io::Error::from(error).into()),
        };
        if let Some(error) = self.counter.first_error.take() {
            return Err(error.into());
        }
        if !self.counter.is_done() {
            return Ok(None);
        }
        self.outstanding = false;
        let by_kernel = arrived.and_then(|arrived| arrived.checked_sub(self.started_wall));
        Ok(Some(by_kernel.unwrap_or_else(|| clock::now() - self.started)))
    }

    /// The last batch's reply, if it was one integer.
    pub fn integer(&self) -> Option<i64> {
        match Reply::read(&mut &self.replies[..]) {
            Ok(Reply::Integer(integer)) => Some(integer),
            _ => None,
        }
    }
}
