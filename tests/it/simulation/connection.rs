//! A connection of a client of the simulation, which never waits.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;

use crate::support::{Reply, decode, encode};

pub struct Connection {
    /// The server, and which of its lives.
    pub node: usize,
    pub life: usize,
    socket: UnixStream,
    output: Vec<u8>,
    input: Vec<u8>,
    /// Replies that have still to come.
    pub awaited: usize,
    pub has_ended: bool,
}

impl Connection {
    pub fn new(node: usize, life: usize, socket: UnixStream) -> Self {
        Connection {
            node,
            life,
            socket,
            output: Vec::new(),
            input: Vec::new(),
            awaited: 0,
            has_ended: false,
        }
    }

    /// Sends a request that is answered once.
    pub fn send<A: AsRef<[u8]>>(&mut self, args: &[A]) {
        self.output.extend_from_slice(&encode(args));
        self.awaited += 1;
        self.flush();
    }

    fn flush(&mut self) {
        while !self.output.is_empty() {
            match self.socket.write(&self.output) {
                Ok(count) => drop(self.output.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.has_ended = true;
                    return;
                }
            }
        }
    }

    /// Reads and forgets: what comes is no reply.
    pub fn drop_input(&mut self) {
        self.flush();
        let mut bytes = [0; 16 << 10];
        loop {
            match self.socket.read(&mut bytes) {
                Ok(0) => self.has_ended = true,
                Ok(_) => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => self.has_ended = true,
            }
            return;
        }
    }

    /// The replies that are there.
    pub fn take(&mut self) -> Vec<Reply> {
        self.flush();
        let mut bytes = [0; 16 << 10];
        loop {
            match self.socket.read(&mut bytes) {
                Ok(0) => self.has_ended = true,
                Ok(count) => {
                    self.input.extend_from_slice(&bytes[..count]);
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => self.has_ended = true,
            }
            break;
        }
        let (mut replies, mut at) = (Vec::new(), 0);
        loop {
            let mut end = at;
            match decode(&self.input, &mut end) {
                Some(reply) => {
                    at = end;
                    self.awaited = self.awaited.saturating_sub(1);
                    replies.push(reply);
                }
                None => break,
            }
        }
        self.input.drain(..at);
        replies
    }
}
