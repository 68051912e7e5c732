//! What a server says about itself: INFO, and the names of makes and versions.

use std::collections::BTreeMap;

use super::asking::{Address, Reply, Server, Stop, shown};

/// Fields of INFO.
#[derive(Clone, Debug, Default)]
pub struct Info(BTreeMap<String, String>);

impl Info {
    pub fn parse(text: &str) -> Self {
        let pairs = text.lines().filter_map(|line| line.split_once(':'));
        Info(pairs.map(|(name, value)| (name.to_owned(), shown(value.as_bytes()))).collect())
    }

    /// Asks for a section, or for the default ones.
    pub fn of(server: &mut Server, section: Option<&str>) -> Result<Self, Stop> {
        let reply = match section {
            Some(section) => server.ask(&[b"INFO", section.as_bytes()])?,
            None => server.ask(&[b"INFO"])?,
        };
        match &reply {
            Reply::Text(text) => Ok(Info::parse(&String::from_utf8_lossy(text))),
            other => Err(server.unexpected("INFO", other)),
        }
    }

    /// The replication section.
    pub fn replication(server: &mut Server) -> Result<Self, Stop> {
        Info::of(server, Some("replication"))
    }

    /// A field; empty if there is none.
    pub fn get(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    /// A field as a number; 0 if it is none.
    pub fn number(&self, name: &str) -> i64 {
        self.get(name).parse().unwrap_or(0)
    }

    pub fn is_primary(&self) -> bool {
        self.get("role") == "master"
    }

    pub fn link_is_up(&self) -> bool {
        self.get("master_link_status") == "up"
    }

    /// The address of the followed server.
    pub fn primary(&self) -> Option<Address> {
        let port = self.get("master_port").parse().ok()?;
        Some(Address { host: self.get("master_host").to_owned(), port })
    }

    /// The replicas' addresses, as FAILOVER names them.
    pub fn replicas(&self) -> Vec<Address> {
        let lines = self.0.iter().filter(|(name, _)| {
            let number = name.strip_prefix("slave");
            number.is_some_and(|number| number.parse::<u32>().is_ok())
        });
        let addresses = lines.filter_map(|(_, line)| {
            let field = |name: &str| {
                line.split(',').find_map(|part| part.strip_prefix(name)?.strip_prefix('='))
            };
            Some(Address { host: field("ip")?.to_owned(), port: field("port")?.parse().ok()? })
        });
        addresses.collect()
    }

    /// The number of keys of each database with keys.
    pub fn keys(&self) -> Keys {
        let databases = self.0.iter().filter_map(|(name, line)| {
            let number: u32 = name.strip_prefix("db")?.parse().ok()?;
            let keys = line.split(',').find_map(|part| part.strip_prefix("keys="))?;
            Some((number, keys.parse().ok()?))
        });
        databases.filter(|(_, keys)| *keys > 0).collect()
    }
}

/// Keys by database.
pub type Keys = BTreeMap<u32, u64>;

/// The keys of a server.
pub fn count_keys(server: &mut Server) -> Result<Keys, Stop> {
    Ok(Info::of(server, Some("keyspace"))?.keys())
}

/// Who has made a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Make {
    Latchkey,
    Redis,
    Valkey,
}

/// A server's make and its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Product {
    pub make: Make,
    pub version: String,
}

impl Product {
    /// None: it is no server of these.
    pub fn of(info: &Info) -> Option<Self> {
        let fields = [
            (Make::Latchkey, "latchkey_version"),
            (Make::Valkey, "valkey_version"),
            (Make::Redis, "redis_version"),
        ];
        let (make, name) = fields.into_iter().find(|(_, name)| !info.get(name).is_empty())?;
        Some(Product { make, version: info.get(name).to_owned() })
    }

    /// The first two parts of the version; 0 for one that is no number.
    pub fn numbers(&self) -> (u32, u32) {
        let mut parts = self.version.split('.').map(|part| part.parse().unwrap_or(0));
        (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
    }

    /// Whether it has FAILOVER.
    pub fn can_fail_over(&self) -> bool {
        self.make != Make::Redis || self.numbers() >= (6, 2)
    }

    /// The values of `compatible-with` that fit this server.
    pub fn dialects(&self) -> &'static [&'static str] {
        match (self.make, self.numbers()) {
            (Make::Latchkey, _) => &[],
            (Make::Valkey, _) => &["valkey-9", "redis-7.2"],
            (Make::Redis, (..7, _)) => &["redis-7.0"],
            (Make::Redis, (7, 0..=1)) => &["redis-7.0"],
            (Make::Redis, (7, 2..=3)) => &["redis-7.2"],
            (Make::Redis, _) => &["redis-8"],
        }
    }
}

impl std::fmt::Display for Product {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{:?} {}", self.make, self.version)
    }
}

/// Parameters that are looked at.
const PARAMETERS: [&str; 15] = [
    "appendonly",
    "cluster-enabled",
    "compatible-with",
    "databases",
    "maxmemory",
    "maxmemory-policy",
    "masterauth",
    "masteruser",
    "notify-keyspace-events",
    "port",
    "requirepass",
    "save",
    "timeout",
    "tls-port",
    "tls-replication",
];

/// What was asked about a server before anything is changed.
#[derive(Debug)]
pub struct Facts {
    pub info: Info,
    pub product: Product,
    /// Values of parameters. Empty: CONFIG GET was refused.
    pub config: BTreeMap<String, Vec<u8>>,
    /// Libraries of functions, in order.
    pub functions: Vec<Library>,
    /// Users: their name, whether they are enabled, and the hashes of their passwords, in order.
    pub users: BTreeMap<String, Vec<String>>,
}

impl Facts {
    pub fn of(server: &mut Server) -> Result<Self, Stop> {
        let info = Info::of(server, None)?;
        let product = Product::of(&info);
        let product = product.ok_or_else(|| server.stop("it is no Redis, Valkey or Latchkey"))?;
        if info.get("run_id").is_empty() || info.get("role").is_empty() {
            return Err(server.stop("INFO has no run_id and role"));
        }
        if info.number("loading") != 0 {
            return Err(server.stop("it is loading its data: wait until it has"));
        }
        let mut config = BTreeMap::new();
        for name in PARAMETERS {
            let reply = server.ask(&[b"CONFIG", b"GET", name.as_bytes()])?;
            if let Some([_, value]) = reply.list()
                && let Some(value) = value.bytes()
            {
                config.insert(name.to_owned(), value.to_vec());
            }
        }
        let users = server.ask_words("ACL LIST")?;
        let users = users.list().unwrap_or_default().iter().filter_map(user).collect();
        Ok(Facts { info, product, config, functions: functions(server)?, users })
    }

    /// A parameter as text; empty if there is none.
    pub fn parameter(&self, name: &str) -> String {
        self.config.get(name).map_or_else(String::new, |value| shown(value))
    }

    pub fn number(&self, name: &str) -> u64 {
        self.parameter(name).parse().unwrap_or(0)
    }
}

/// A library of functions: its name and code.
pub type Library = (Vec<u8>, Vec<u8>);

/// The libraries of functions. A server without functions has none.
pub fn functions(server: &mut Server) -> Result<Vec<Library>, Stop> {
    let reply = server.ask_words("FUNCTION LIST WITHCODE")?;
    let Some(list) = reply.list() else { return Ok(Vec::new()) };
    let mut libraries = Vec::new();
    for library in list {
        let fields = library.list().unwrap_or_default();
        let text = |name| super::reader::field_of(fields, name).and_then(Reply::bytes);
        let (Some(name), Some(code)) = (text(b"library_name"), text(b"library_code")) else {
            return Err(server.stop("the reply to FUNCTION LIST is none of this protocol"));
        };
        libraries.push((name.to_vec(), code.to_vec()));
    }
    libraries.sort_unstable();
    Ok(libraries)
}

/// A line of ACL LIST.
fn user(line: &Reply) -> Option<(String, Vec<String>)> {
    let line = line.text()?;
    let mut words = line.strip_prefix("user ")?.split(' ');
    let name = words.next()?.to_owned();
    let is_kept = |word: &&str| matches!(*word, "on" | "off" | "nopass") || word.starts_with('#');
    let mut kept: Vec<String> = words.filter(is_kept).map(str::to_owned).collect();
    kept.sort_unstable();
    Some((name, kept))
}
