//! Servers in one thread that share a clock, each with a disk in memory, and connections to them
//! that need no network.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use latchkey::clock::{Clock, ManualClock};
use latchkey::config::Config;
use latchkey::net::dialer::{Dialer, Route};
use latchkey::net::stream::{Address, Stream};
use latchkey::server::driven::DrivenServer;
use latchkey::sys::disk::model::ModelDisk;
use latchkey::sys::disk::{Disk, read_whole};
use latchkey::sys::log::Logger;

use crate::simulation::connection::Connection;
use crate::support::{Reply, START};

pub const MS: i64 = 1_000;
/// Turns after which a server that does not answer never will.
const TURNS: usize = 3_000;

/// Where a server is reached.
fn address(node: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, node as u8 + 1], 6379))
}

/// Connections that servers have begun: to whom, and the other end.
type Dials = Arc<Mutex<Vec<(SocketAddr, UnixStream)>>>;

struct Gateway(Dials);

fn pair() -> std::io::Result<(UnixStream, UnixStream)> {
    let (one, other) = UnixStream::pair()?;
    one.set_nonblocking(true)?;
    other.set_nonblocking(true)?;
    Ok((one, other))
}

impl Dialer for Gateway {
    fn connect(&self, route: &Route<'_>) -> std::io::Result<Stream> {
        let (ours, theirs) = pair()?;
        self.0.lock().expect("one thread").push((route.to, theirs));
        Ok(ours.into())
    }
}

struct Node {
    server: DrivenServer,
    disk: ModelDisk,
    asker: Option<Connection>,
}

/// All servers of a run.
pub struct World {
    pub clock: ManualClock,
    nodes: Vec<Option<Node>>,
    dials: Dials,
}

impl World {
    pub fn new() -> Self {
        World { clock: ManualClock::new(START), nodes: Vec::new(), dials: Dials::default() }
    }

    /// Starts a server with what a disk holds. Errors: that cannot be loaded.
    pub fn start(&mut self, lines: &[String], disk: ModelDisk) -> Result<usize, String> {
        let mut text = String::from(
            "bind 127.0.0.1\nport 0\nprotected-mode no\nenable-debug-command yes\nsave \"\"\ndir /\n\
             repl-diskless-sync-delay 0\nrepl-timeout 100000\nclient-output-buffer-limit replica 0 0 0\n\
             wait-all-replicas 1\n",
        );
        lines.iter().for_each(|line| text.push_str(&format!("{line}\n")));
        let config = Config::from_text(text.as_bytes()).expect("the configuration is good");
        let clock = Clock::Manual(self.clock.clone());
        let (gateway, files) = (Box::new(Gateway(self.dials.clone())), Arc::new(disk.clone()));
        let server = DrivenServer::start(config, clock, Logger::silent(), gateway, files);
        let mut server = server.expect("the server starts");
        server.load().map_err(|error| error.to_string())?;
        let free = self.nodes.iter().position(Option::is_none);
        let index = free.unwrap_or_else(|| {
            self.nodes.push(None);
            self.nodes.len() - 1
        });
        self.nodes[index] = Some(Node { server, disk, asker: None });
        Ok(index)
    }

    pub fn end(&mut self, node: usize) {
        self.nodes[node] = None;
    }

    fn node(&mut self, node: usize) -> &mut Node {
        self.nodes[node].as_mut().expect("it runs")
    }

    /// One server takes a turn, and its threads do their work.
    pub fn turn(&mut self, node: usize) {
        let it = self.node(node);
        assert!(it.server.turn_now().expect("a turn ends in order"), "server {node} has ended");
        it.server.do_background();
        let dials = std::mem::take(&mut *self.dials.lock().expect("one thread"));
        for (to, stream) in dials {
            let to = (0..self.nodes.len()).find(|&node| address(node) == to).expect("a server");
            let (peer, local) = (Address::Tcp(address(node)), Address::Tcp(address(to)));
            self.node(to).server.take_in(stream.into(), peer, local);
        }
    }

    pub fn history(&mut self, node: usize) -> (String, u64) {
        let (id, offset) = self.node(node).server.history();
        (id.to_owned(), offset)
    }

    pub fn connect(&mut self, node: usize) -> Connection {
        self.connect_from(node, [10, 0, 1, 1])
    }

    pub fn connect_from(&mut self, node: usize, host: [u8; 4]) -> Connection {
        let (ours, theirs) = pair().expect("a pair of sockets");
        let peer = Address::Tcp((host, 40_000).into());
        self.node(node).server.take_in(theirs.into(), peer, Address::Tcp(address(node)));
        Connection::new(node, 0, ours)
    }

    /// Lets a server answer all that a connection has sent, or end it.
    pub fn answers(&mut self, connection: &mut Connection) -> Vec<Reply> {
        let mut replies = Vec::new();
        for turn in 0..TURNS {
            self.turn(connection.node);
            replies.extend(connection.take());
            if connection.awaited == 0 || connection.has_ended {
                return replies;
            }
            if turn > 50 {
                // CLIENT PAUSE holds it back.
                self.clock.advance_us(MS);
            }
        }
        panic!("server {} does not answer", connection.node);
    }

    /// Replies to some requests, sent together by a client that does nothing else.
    pub fn ask_all<A: AsRef<[u8]>>(&mut self, node: usize, requests: &[Vec<A>]) -> Vec<Reply> {
        let mut asker = self.node(node).asker.take();
        for _ in 0..2 {
            let mut connection = asker.take().unwrap_or_else(|| self.connect(node));
            requests.iter().for_each(|args| connection.send(args));
            let replies = self.answers(&mut connection);
            // A session may have killed this client too.
            if !connection.has_ended {
                self.node(node).asker = Some(connection);
                return replies;
            }
        }
        panic!("server {node} cuts connections");
    }

    pub fn ask<A: AsRef<[u8]>>(&mut self, node: usize, args: &[A]) -> Reply {
        let args = args.iter().map(AsRef::as_ref).collect::<Vec<&[u8]>>();
        self.ask_all(node, &[args]).pop().expect("a reply")
    }

    pub fn say(&mut self, node: usize, line: &str) -> String {
        self.ask(node, &line.split(' ').collect::<Vec<_>>()).show()
    }

    /// The fields of a section of INFO.
    pub fn info(&mut self, node: usize, section: &str) -> BTreeMap<String, String> {
        let Reply::Bulk(text) = self.ask(node, &["INFO", section]) else { panic!("no text") };
        let text = String::from_utf8_lossy(&text).into_owned();
        let fields = text.lines().filter_map(|line| line.split_once(':'));
        fields.map(|(name, value)| (name.to_owned(), value.trim_end().to_owned())).collect()
    }

    /// A parameter's value.
    pub fn parameter(&mut self, node: usize, name: &str) -> String {
        match self.ask(node, &["CONFIG", "GET", name]) {
            Reply::Array(items) => items[1].show().trim_matches('"').to_owned(),
            other => panic!("no array: {}", other.show()),
        }
    }

    /// A copy of what a server has on its disk.
    pub fn copy_disk(&mut self, node: usize) -> ModelDisk {
        let disk = &self.node(node).disk;
        let copy = ModelDisk::new(0);
        let mut folders = vec![PathBuf::from("/")];
        while let Some(folder) = folders.pop() {
            for name in disk.list(&folder).expect("a folder") {
                let path = folder.join(name);
                if disk.is_folder(&path) {
                    copy.create_folder(&path).expect("a folder");
                    folders.push(path);
                } else {
                    copy.put(&path, &read_whole(disk, &path, u64::MAX - 1).expect("a file"));
                }
            }
        }
        copy
    }

    /// Has one server follow another one, up to where it is now.
    pub fn follow(&mut self, replica: usize, primary: usize) {
        let to = address(primary);
        self.say(replica, &format!("REPLICAOF {} {}", to.ip(), to.port()));
        self.catch_up(replica, primary);
    }

    /// Waits until a replica has applied all that its primary has told.
    pub fn catch_up(&mut self, replica: usize, primary: usize) {
        for turn in 0..TURNS {
            self.turn(primary);
            self.turn(replica);
            if self.history(replica) == self.history(primary)
                && self.info(replica, "replication")["master_link_status"] == "up"
            {
                return;
            }
            if turn > 20 {
                self.clock.advance_us(100 * MS);
            }
        }
        panic!("the replica does not catch up: {:?}", self.info(replica, "replication"));
    }

    /// Waits until nothing is being saved.
    pub fn end_saving(&mut self, node: usize) {
        for _ in 0..TURNS * 30 {
            self.turn(node);
            let fields = self.info(node, "persistence");
            let names =
                ["aof_rewrite_in_progress", "aof_rewrite_scheduled", "rdb_bgsave_in_progress"];
            if names.iter().all(|name| fields[*name] == "0") {
                return;
            }
            self.clock.advance_us(10 * MS);
        }
        panic!("saving does not end: {:?}", self.info(node, "persistence"));
    }
}
