//! Real servers as processes: another one's binary, or this one's.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::ports::free_port;
use super::{Client, wait_for};

/// A server as a process; ended when this is dropped.
pub struct Peer {
    child: Child,
    pub address: SocketAddr,
}

impl Peer {
    /// Starts a server on a free port of 127.0.0.1, and waits until it has loaded what is in its
    /// folder.
    pub fn start(program: &Path, dir: &Path, lines: &[&str]) -> Peer {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let mut command = Command::new(program);
        let port = address.port().to_string();
        command.args(["--port", &port, "--bind", "127.0.0.1", "--save", ""]);
        command.args(["--enable-debug-command", "yes", "--dir"]).arg(dir);
        for line in lines {
            let (name, value) = line.split_once(' ').expect("a name and a value");
            command.arg(format!("--{name}")).arg(value);
        }
        let child = command.stdout(Stdio::null()).spawn().expect("the peer starts");
        let mut peer = Peer { child, address };
        wait_for("the peer to listen", || {
            let ended = peer.child.try_wait().expect("a child");
            assert!(ended.is_none(), "the peer refuses to start: {ended:?}");
            TcpStream::connect(address).ok()
        });
        let mut client = peer.connect();
        wait_for("the peer to load", || (client.call(&["PING"]).show() == "PONG").then_some(()));
        peer
    }

    pub fn connect(&self) -> Client {
        Client::connect(self.address)
    }

    pub fn stop(mut self) {
        self.connect().send(&["SHUTDOWN", "NOSAVE"]);
        self.child.wait().expect("a child");
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended in order.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
