//! What the user asked for: arguments, and the peers from the environment.

use crate::Result;
use crate::server::ServerSpec;
use std::path::{Path, PathBuf};

pub const USAGE: &str = "\
bench-peers [WHAT] [OPTION...]     measures servers of the Redis protocol side by side

WHAT: ops (default)  CPU, throughput and latency of operations
      memory         bytes per key and per element
      handover       latency of BLPOP with many who wait
      locks          hand-over of locks beside other recipes, memory, leases; --cases hand-over,memory,leases names some
      growth         latency while the keyspace grows from nothing
      expiry         how late keys expire, and what a mass of them due at once costs
      idle           bytes per idle connection
      saving         latency and memory while it is saved, loading, the append-only file
      replication    CPU of a primary with replicas and of a replica, and a full synchronisation
      tls            CPU of a GET over TLS, latency beside a flood of handshakes
      all            all of these

--latchkey PATH      the server under test; without it, the last peer is compared with the others
--quick              a few seconds: few keys, one round, nothing written
--cases TEXT,...     only cases whose name contains one of these, in either case of letters; =NAME is a whole name
--depths N,...       pipeline depths of ops (1,16,64)
--rounds N           rounds of ops; medians are shown (5)
--keys N             keys in ops, memory and expiry (1000000); in saving and replication (3000000 at least)
--growth-keys N      keys in growth (10000000)
--connections N      connections in ops (50)
--idle N             connections in idle (10000)
--priority           generator and servers get priority over whatever else runs (needs root)
--out DIRECTORY      where benchmarks.md and benchmarks.svg go (docs)

Environment: PEERS=\"name=/path/of/server ...\"; without it redis-server and valkey-server from PATH, as far as found.
LOCK_CLIENTS=\"name=/path/of/program ...\": libraries for `locks` (benches/locks).
";

/// Which measurements to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Operations,
    Memory,
    Handover,
    Locks,
    Growth,
    Expiry,
    Idle,
    Saving,
    Replication,
    Tls,
    All,
}

/// All options, defaults filled in.
#[derive(Clone, Debug)]
pub struct Options {
    pub what: What,
    /// The servers in the order of their columns.
    pub servers: Vec<ServerSpec>,
    /// Which of `servers` is compared with the others.
    pub subject: usize,
    pub quick: bool,
    pub cases: Vec<String>,
    pub depths: Vec<u64>,
    pub rounds: usize,
    pub keys: u32,
    pub growth_keys: u32,
    pub connections: usize,
    pub idle: usize,
    pub priority: bool,
    /// Programs of `locks`, each with its name.
    pub libraries: Vec<(String, String)>,
    /// Where results are written, if anywhere.
    pub out: Option<PathBuf>,
    /// The arguments as given, for the record, without those that name places of one machine.
    pub given: String,
}

impl Options {
    /// Reads arguments (without the program's name), the value of PEERS and that of PATH.
    ///
    /// # Errors
    /// A sentence for the user.
    pub fn parse(arguments: &[String], peers: Option<&str>, path: &str) -> Result<Options> {
        let quick = arguments.iter().any(|argument| argument == "--quick");
        let mut options = Options {
            what: What::Operations,
            servers: Vec::new(),
            subject: 0,
            quick,
            cases: Vec::new(),
            depths: vec![1, 16, 64],
            rounds: if quick { 1 } else { 5 },
            keys: if quick { 50_000 } else { 1_000_000 },
            growth_keys: if quick { 500_000 } else { 10_000_000 },
            connections: 50,
            idle: if quick { 1000 } else { 10_000 },
            priority: false,
            libraries: Vec::new(),
            out: (!quick).then(|| PathBuf::from("docs")),
            given: without_paths(arguments),
        };
        let mut latchkey = None;
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            let mut value = || rest.next().ok_or_else(|| format!("{argument} needs a value"));
            match argument.as_str() {
                "ops" => options.what = What::Operations,
                "memory" => options.what = What::Memory,
                "handover" => options.what = What::Handover,
                "locks" => options.what = What::Locks,
                "growth" => options.what = What::Growth,
                "expiry" => options.what = What::Expiry,
                "idle" => options.what = What::Idle,
                "saving" => options.what = What::Saving,
                "replication" => options.what = What::Replication,
                "tls" => options.what = What::Tls,
                "all" => options.what = What::All,
                "--latchkey" => latchkey = Some(PathBuf::from(value()?)),
                "--quick" => {}
                "--cases" => {
                    options.cases = value()?.split(',').map(str::to_lowercase).collect();
                }
                "--depths" => {
                    let depths = value()?.split(',').map(|depth| positive(argument, depth));
                    options.depths = depths.collect::<Result<_>>()?;
                }
                "--rounds" => options.rounds = positive(argument, value()?)? as usize,
                "--keys" => options.keys = positive(argument, value()?)? as u32,
                "--growth-keys" => options.growth_keys = positive(argument, value()?)? as u32,
                "--connections" => options.connections = positive(argument, value()?)? as usize,
                "--idle" => options.idle = positive(argument, value()?)? as usize,
                "--priority" => options.priority = true,
                "--out" => options.out = Some(PathBuf::from(value()?)),
                _ => return Err(format!("unknown argument {argument}; see --help").into()),
            }
        }
        options.servers = match peers {
            Some(peers) => peers
                .split_whitespace()
                .map(|peer| match peer.split_once('=') {
                    Some((name, path)) => Ok(ServerSpec { name: name.into(), path: path.into() }),
                    None => Err(format!("PEERS: expected name=/path, not {peer}").into()),
                })
                .collect::<Result<_>>()?,
            None => ["redis-server", "valkey-server"]
                .iter()
                .filter_map(|name| {
                    let path = path.split(':').map(|folder| Path::new(folder).join(name));
                    let path = path.into_iter().find(|path| path.is_file())?;
                    Some(ServerSpec { name: (*name).into(), path })
                })
                .collect(),
        };
        if let Some(path) = latchkey {
            options.servers.push(ServerSpec { name: "latchkey".into(), path });
        }
        for server in &options.servers {
            // The child runs in another directory, where a relative path would lead elsewhere.
            if !server.path.is_file() {
                return Err(
                    format!("{}: no such file {}", server.name, server.path.display()).into()
                );
            }
        }
        for server in &mut options.servers {
            server.path = std::path::absolute(&server.path)?;
        }
        options.subject = options.servers.len().saturating_sub(1);
        Ok(options)
    }

    /// Whether `--cases` lets this name through.
    pub fn wants(&self, name: &str) -> bool {
        let name = name.to_lowercase();
        let is_meant = |wanted: &String| match wanted.strip_prefix('=') {
            Some(whole) => name == whole,
            None => name.contains(wanted),
        };
        self.cases.is_empty() || self.cases.iter().any(is_meant)
    }
}

fn without_paths(arguments: &[String]) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--latchkey" | "--out" => drop(rest.next()),
            argument => kept.push(argument),
        }
    }
    kept.join(" ")
}

fn positive(argument: &str, value: &str) -> Result<u64> {
    // Numbers of keys are 32 bits wide and no other option comes near.
    match value.parse::<u32>() {
        Ok(number) if number > 0 => Ok(u64::from(number)),
        _ => Err(format!("{argument}: expected a positive number, not {value}").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &str, peers: &str) -> Result<Options> {
        let arguments: Vec<String> = arguments.split_whitespace().map(str::to_owned).collect();
        Options::parse(&arguments, Some(peers), "")
    }

    #[test]
    fn options_may_stand_in_any_order() {
        let options = parse("--depths 1,8 growth --rounds 3 --quick --keys 7", "").unwrap();
        assert_eq!(options.what, What::Growth);
        assert_eq!((options.depths, options.rounds, options.keys), (vec![1, 8], 3, 7));
        assert_eq!(options.out, None);
        let given = parse("idle --out /x --idle 3", "").unwrap().given;
        assert_eq!(given, "idle --idle 3");
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for arguments in
            ["--rounds 0", "--rounds", "--depths 1,x", "nothing", "--latchkey /nowhere"]
        {
            assert!(parse(arguments, "").is_err(), "{arguments}");
        }
        assert!(parse("", "redis-server").is_err());
    }

    #[test]
    fn cases_are_chosen_by_parts_of_their_names() {
        let options = parse("--cases nx,Get", "").unwrap();
        assert!(options.wants("SET NX EX") && options.wants("GET") && !options.wants("PING"));
        let options = parse("--cases =get", "").unwrap();
        assert!(options.wants("GET") && !options.wants("HGET"));
    }
}
