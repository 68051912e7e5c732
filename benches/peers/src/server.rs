//! A server under test: a child process on a core of its own, listening on 127.0.0.1 at a port the
//! system chose, with persistence off, in an empty directory. Dropping [`Server`] kills it and
//! removes the directory.

use crate::client::Client;
use crate::resp::Reply;
use crate::sys::{self, CpuTime};
use crate::{Result, clock};
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::Duration;

/// Which program to start and what to call it in tables.
#[derive(Clone, Debug)]
pub struct ServerSpec {
    pub name: String,
    pub path: PathBuf,
}

/// A running server.
pub struct Server {
    pub name: String,
    /// What it says of itself in INFO, or `?`.
    pub version: String,
    pub address: SocketAddr,
    process: Process,
}

/// The child and its directory, so that both go even if the start fails half-way.
struct Process {
    child: Child,
    directory: PathBuf,
}

impl Drop for Process {
    fn drop(&mut self) {
        // Nothing is worth saving, so no time is given to say goodbye. Errors mean that it is gone
        // already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Loading what was saved belongs to the start.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// The core the servers run on; the generator runs on [`GENERATOR_CORE`].
pub const SERVER_CORE: usize = 0;
pub const GENERATOR_CORE: usize = 1;

impl Server {
    /// Starts `spec` with `extra` arguments after the common ones and waits until it answers PING.
    ///
    /// # Errors
    /// It could not be run, ended (its last words are in the error) or did not answer within a
    /// minute.
    pub fn start(spec: &ServerSpec, extra: &[&str]) -> Result<Server> {
        Self::start_on(spec, extra, (sys::cores() > 1).then_some(SERVER_CORE))
    }

    /// A replica. Elsewhere it would have a machine of its own, so here it comes behind the
    /// generator and the primary, on the generator's core or, if that is asked for, on any.
    pub fn start_replica(spec: &ServerSpec, extra: &[&str], on_all_cores: bool) -> Result<Server> {
        let core = (!on_all_cores && sys::cores() > 1).then_some(GENERATOR_CORE);
        let server = Self::start_on(spec, extra, core)?;
        sys::step_behind(server.process.child.id())?;
        Ok(server)
    }

    /// The same, but the server and its children and threads may run on any core.
    pub fn start_on_all_cores(spec: &ServerSpec, extra: &[&str]) -> Result<Server> {
        Self::start_on(spec, extra, None)
    }

    fn start_on(spec: &ServerSpec, extra: &[&str], core: Option<usize>) -> Result<Server> {
        let mut last = None;
        // Between our letting go of the free port and the server's taking it, somebody else may.
        for _ in 0..3 {
            match Self::try_start(spec, extra, core) {
                Ok(server) => return Ok(server),
                Err(error) => last = Some(error),
            }
        }
        Err(format!("{}: {}", spec.name, last.map_or(String::new(), |e| e.to_string())).into())
    }

    fn try_start(spec: &ServerSpec, extra: &[&str], core: Option<usize>) -> Result<Server> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let directory =
            std::env::temp_dir().join(format!("bench-peers-{}-{count}", std::process::id()));
        fs::create_dir_all(&directory)?;
        let log_path = directory.join("log");
        let log = File::create(&log_path)?;
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = free.local_addr()?;
        drop(free);

        let mut command = Command::new(&spec.path);
        command
            .args(["--port", &address.port().to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no"])
            .args(extra)
            .current_dir(&directory)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        sys::tie_child(&mut command, core);
        let child = command.spawn().map_err(|error| format!("{}: {error}", spec.path.display()))?;
        let mut process = Process { child, directory };

        let start = clock::now();
        let version = loop {
            if let Ok(mut client) = Client::connect(address)
                && client.call(&["PING"]).is_ok_and(|reply| reply.text() == "PONG")
            {
                break version(&mut client);
            }
            let ended = process.child.try_wait()?.is_some();
            if ended || clock::now() - start > START_TIMEOUT {
                let log = fs::read_to_string(&log_path).unwrap_or_default();
                let last_words: Vec<&str> = log.lines().rev().take(5).collect();
                let how = if ended { "ended" } else { "does not answer PING" };
                return Err(format!("{how}; its log: {}", last_words.join(" | ")).into());
            }
            sleep(Duration::from_millis(20));
        };
        Ok(Server { name: spec.name.clone(), version, address, process })
    }

    /// CPU accounts so far.
    pub fn cpu(&self) -> Result<CpuTime> {
        CpuTime::of(self.process.child.id())
    }

    /// Where it keeps its files.
    pub fn directory(&self) -> &Path {
        &self.process.directory
    }

    /// Memory of the server and its children now, bytes; pages that they share count once.
    pub fn memory_with_children(&self) -> Result<u64> {
        let pid = self.process.child.id();
        let mut sum = sys::pss_bytes(pid)?;
        for child in sys::children(pid)? {
            // It may have ended.
            sum += sys::pss_bytes(child).unwrap_or(0);
        }
        Ok(sum)
    }

    /// Resident memory now, bytes.
    pub fn rss_bytes(&self) -> Result<u64> {
        sys::rss_bytes(self.process.child.id())
    }

    /// Resident memory, bytes, once it stood still for a second and a half (rehashing, returning of
    /// freed pages and shrinking of client buffers are over); the last reading after 20 s.
    pub fn settled_rss_bytes(&self) -> Result<u64> {
        let (mut last, mut still) = (self.rss_bytes()?, 0);
        for _ in 0..40 {
            sleep(Duration::from_millis(500));
            let rss = self.rss_bytes()?;
            // A page or two come and go with the cron of some peers.
            still = if rss.abs_diff(last) <= 8192 { still + 1 } else { 0 };
            last = rss;
            if still == 3 {
                break;
            }
        }
        Ok(last)
    }

    /// Waits until the server uses less than 2% of its core (lazy freeing is over), 2 s at the
    /// most.
    pub fn wait_until_quiet(&self) -> Result<()> {
        let mut last = self.cpu()?;
        for _ in 0..40 {
            sleep(Duration::from_millis(50));
            let cpu = self.cpu()?;
            if cpu.since(&last).run_ns < 1_000_000 {
                break;
            }
            last = cpu;
        }
        Ok(())
    }
}

fn version(client: &mut Client) -> String {
    let Ok(Reply::Bulk(info)) = client.call(&["INFO", "server"]) else {
        return "?".into();
    };
    let info = String::from_utf8_lossy(&info).into_owned();
    // Every server of the family also names the Redis version it is compatible with; its own comes
    // first.
    ["latchkey_version:", "valkey_version:", "redis_version:"]
        .iter()
        .find_map(|field| info.lines().find_map(|line| line.strip_prefix(field)))
        .map_or("?".into(), |version| version.trim().to_owned())
}
