//! What is looked at before anything is changed.

use super::super::access::Login;
use super::asking::{Address, Reply, Server, Stop, shown};
use super::compare::Scan;
use super::facts::{Facts, Info, Make};

/// Both servers, with what is known of them.
#[derive(Debug)]
pub struct Ends<'a> {
    pub from: &'a mut Server,
    pub to: &'a mut Server,
    pub from_facts: &'a Facts,
    pub to_facts: &'a Facts,
}

/// How far a move has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Nothing is done.
    New,
    /// TO follows FROM.
    Follows,
    /// FROM follows TO.
    Moved,
}

/// Modules whose servers list them, and which bring no data.
const HARMLESS_MODULES: [&str; 1] = ["lua"];
/// Types that are listed as modules or known to newer versions, and that a Latchkey cannot read.
const UNREADABLE_TYPES: [&str; 2] = ["vectorset", "array"];

impl Ends<'_> {
    /// Errors: the servers cannot be the two ends of a move.
    pub fn stage(&mut self) -> Result<Stage, Stop> {
        let (from, to) = (&self.from_facts.info, &self.to_facts.info);
        if from.get("run_id") == to.get("run_id") {
            return Err(self.to.stop("it is the same server as the one to move from"));
        }
        if !from.is_primary() {
            if to.is_primary() && self.from.is_replica_of(from, self.to, to)? {
                return Ok(Stage::Moved);
            }
            let primary = from.primary().map_or_else(String::new, |address| address.to_string());
            return Err(self.from.stop(format_args!(
                "it is a replica of {primary}: name its primary as the server to move from"
            )));
        }
        if !to.is_primary() {
            if self.to.is_replica_of(to, self.from, from)? {
                return Ok(Stage::Follows);
            }
            let primary = to.primary().map_or_else(String::new, |address| address.to_string());
            return Err(self
                .to
                .stop(format_args!("it follows {primary}: REPLICAOF NO ONE there, and empty it")));
        }
        Ok(Stage::New)
    }

    /// Looks at the servers' own properties. Returns warnings. Errors: what prevents the move.
    pub fn look(&mut self, stage: Stage) -> Result<Vec<String>, Stop> {
        let mut warnings = Vec::new();
        self.look_at_products(stage)?;
        for (server, facts) in [(&*self.from, self.from_facts), (&*self.to, self.to_facts)] {
            if facts.info.number("cluster_enabled") != 0 {
                return Err(server.stop(
                    "it is a node of a cluster, which moves by CLUSTER FAILOVER, see docs/cluster.md",
                ));
            }
            if facts.config.is_empty() {
                warnings.push(format!(
                    "{}: CONFIG GET is refused, so the configuration is not compared",
                    server.address
                ));
            }
        }
        self.look_at_commands()?;
        if stage == Stage::New {
            self.look_at_emptiness()?;
        }
        self.look_at_modules()?;
        self.look_at_space()?;
        self.look_at_links()?;
        self.look_at_users(&mut warnings);
        self.look_at_parameters(&mut warnings);
        let watchers = self.from.ask_words("PUBSUB NUMSUB __sentinel__:hello")?;
        if watchers.list().and_then(|list| list.get(1)?.number()).is_some_and(|count| count > 0) {
            warnings.push(format!(
                "{}: Sentinels watch it. Let them promote the new server instead, see docs/failover.md",
                self.from.address
            ));
        }
        let replicas = self.from_facts.info.number("connected_slaves");
        let others = replicas - i64::from(stage == Stage::Follows);
        if others > 0 {
            warnings.push(format!(
                "{}: {others} other replicas will follow it as a replica",
                self.from.address
            ));
        }
        Ok(warnings)
    }

    fn look_at_products(&self, stage: Stage) -> Result<(), Stop> {
        let (from, to) = (&self.from_facts.product, &self.to_facts.product);
        if !from.can_fail_over() {
            return Err(self.from.stop(format_args!(
                "it is {from}, and FAILOVER needs Redis 6.2 or later: move its files instead"
            )));
        }
        if to.make != Make::Latchkey && stage == Stage::New {
            return Err(self.to.stop(format_args!(
                "it is {to}, which is only moved to if it follows {} already, as after a move from \
                 it. A snapshot of Latchkey has RDB version 10, which Redis 7.0 reads, unless fields \
                 of hashes have deadlines: see 'By hand' in docs/moving.md",
                self.from.address
            )));
        }
        Ok(())
    }

    /// Whether the users may run the commands that the change needs.
    fn look_at_commands(&mut self) -> Result<(), Stop> {
        let needed = [(&mut *self.from, "failover"), (&mut *self.to, "replicaof")];
        for (server, command) in needed {
            let known = server.ask(&[b"COMMAND", b"INFO", command.as_bytes()])?;
            if matches!(known.list(), Some([Reply::Null])) {
                return Err(server.stop(format_args!("it has no command {command}")));
            }
            let user = server.ask_words("ACL WHOAMI")?;
            let Some(user) = user.bytes() else { continue };
            let tried = match command {
                "failover" => server.ask(&[b"ACL", b"DRYRUN", user, b"failover"])?,
                _ => server.ask(&[b"ACL", b"DRYRUN", user, b"replicaof", b"no", b"one"])?,
            };
            // A server without DRYRUN refuses the command itself later, and nothing has changed.
            if let Reply::Text(why) = tried {
                return Err(server.stop(shown(&why)));
            }
        }
        Ok(())
    }

    fn look_at_emptiness(&self) -> Result<(), Stop> {
        let keys: u64 = self.to_facts.info.keys().values().copied().fold(0, u64::saturating_add);
        if keys > 0 {
            return Err(self.to.stop(format_args!(
                "it has {keys} keys, which the move would delete: FLUSHALL there, if nobody needs them"
            )));
        }
        match self.to_facts.functions.is_empty() {
            true => Ok(()),
            false => Err(self.to.stop(
                "it has functions, which the move would delete: FUNCTION FLUSH there, if nobody needs them",
            )),
        }
    }

    /// Data that the other server cannot read.
    fn look_at_modules(&mut self) -> Result<(), Stop> {
        let reply = self.from.ask_words("MODULE LIST")?;
        let list = reply.list().unwrap_or_default();
        let names = list.iter().filter_map(|module| {
            super::reader::field_of(module.list()?, b"name").and_then(Reply::text)
        });
        let (mut unknown, mut types) = (Vec::new(), Vec::new());
        for name in names {
            match name.as_str() {
                "vectorset" => types.push("vectorset"),
                name if HARMLESS_MODULES.contains(&name) => {}
                name => unknown.push(shown(name.as_bytes())),
            }
        }
        if !unknown.is_empty() {
            return Err(self.from.stop(format_args!(
                "it has modules whose data cannot be read: {}",
                unknown.join(", ")
            )));
        }
        let product = &self.from_facts.product;
        if product.make == Make::Redis && product.numbers() >= (8, 8) {
            types.push("array");
        }
        for kind in types.into_iter().filter(|kind| UNREADABLE_TYPES.contains(kind)) {
            for (database, keys) in self.from_facts.info.keys() {
                let mut scan = Scan::new(database, keys);
                while let Some(names) = scan.page(self.from, Some(kind))? {
                    if let Some(name) = names.first() {
                        let name = shown(name);
                        return Err(self.from.stop(format_args!(
                            "'{name}' in database {database} is a {kind}, which cannot be read"
                        )));
                    }
                }
            }
        }
        Ok(())
    }

    fn look_at_space(&self) -> Result<(), Stop> {
        let (from, to) = (self.from_facts, self.to_facts);
        let highest = from.info.keys().last_key_value().map_or(0, |(number, _)| *number);
        let databases = to.number("databases");
        if databases > 0 && u64::from(highest) >= databases {
            return Err(self.to.stop(format_args!(
                "it has {databases} databases, and database {highest} has keys: raise 'databases'"
            )));
        }
        let (used, maxmemory) = (from.info.number("used_memory"), to.number("maxmemory"));
        if maxmemory > 0 && u64::try_from(used).unwrap_or(0) > maxmemory {
            return Err(self.to.stop(format_args!(
                "its maxmemory is {maxmemory}, and {} uses {used} bytes: raise maxmemory",
                self.from.address
            )));
        }
        Ok(())
    }

    /// Whether each server can follow the other one, with its own masteruser and masterauth.
    fn look_at_links(&mut self) -> Result<(), Stop> {
        let wants_tls = if self.to.around.access.tls.is_some() { "yes" } else { "no" };
        let sides =
            [(&*self.to, self.to_facts, &*self.from), (&*self.from, self.from_facts, &*self.to)];
        for (follower, facts, primary) in sides {
            if facts.config.is_empty() {
                continue;
            }
            let tls = facts.parameter("tls-replication");
            if !tls.is_empty() && tls != wants_tls {
                return Err(follower.stop(format_args!(
                    "tls-replication must be {wants_tls}, as it follows the other server at {}",
                    primary.address
                )));
            }
            let of = |name: &str| facts.config.get(name).filter(|value| !value.is_empty()).cloned();
            let login = Login { user: of("masteruser"), password: of("masterauth") };
            if let Err(stop) = try_login(primary, &login) {
                let Stop::Because(why) = stop else { return Err(stop) };
                return Err(follower.stop(format_args!(
                    "its masteruser and masterauth do not let it follow the other server ({why})"
                )));
            }
        }
        Ok(())
    }

    fn look_at_users(&self, warnings: &mut Vec<String>) {
        let (from, to) = (&self.from_facts.users, &self.to_facts.users);
        let quoted = |name: &String| shown(name.as_bytes());
        let missing: Vec<String> =
            from.keys().filter(|name| !to.contains_key(*name)).map(quoted).collect();
        let others: Vec<String> = from
            .iter()
            .filter(|(name, kept)| to.get(*name).is_some_and(|there| there != *kept))
            .map(|(name, _)| quoted(name))
            .collect();
        let address = &self.to.address;
        if !missing.is_empty() {
            warnings.push(format!("{address}: users are missing: {}", missing.join(", ")));
        }
        if !others.is_empty() {
            let names = others.join(", ");
            warnings.push(format!("{address}: users with other passwords or state: {names}"));
        }
    }

    fn look_at_parameters(&self, warnings: &mut Vec<String>) {
        let (from, to) = (self.from_facts, self.to_facts);
        let names = [
            "maxmemory",
            "maxmemory-policy",
            "notify-keyspace-events",
            "timeout",
            "appendonly",
            "save",
        ];
        for name in names {
            let (here, there) = (from.parameter(name), to.parameter(name));
            if from.config.contains_key(name) && to.config.contains_key(name) && here != there {
                let address = &self.to.address;
                warnings.push(format!("{address}: {name} is '{there}', and was '{here}'"));
            }
        }
        for (ours, other) in [(to, from), (from, to)] {
            let dialects = other.product.dialects();
            let dialect = ours.parameter("compatible-with");
            if ours.product.make == Make::Latchkey
                && !dialects.is_empty()
                && !dialects.contains(&dialect.as_str())
            {
                warnings.push(format!(
                    "compatible-with is '{dialect}', and '{}' fits {}",
                    dialects[0], other.product
                ));
            }
        }
    }
}

/// Connects as a replica would.
fn try_login(primary: &Server, login: &Login) -> Result<(), Stop> {
    let mut server = Server::open(&primary.address, login, &primary.around)?;
    server.order(&[b"REPLCONF", b"capa", b"psync2"])
}

impl Server {
    /// Whether this server follows another one. Its address may be another than the one known here.
    fn is_replica_of(&self, info: &Info, primary: &Server, there: &Info) -> Result<bool, Stop> {
        let Some(address) = info.primary() else { return Ok(false) };
        if address == primary.address {
            return Ok(true);
        }
        if info.link_is_up() && info.get("master_replid") == there.get("master_replid") {
            return Ok(true);
        }
        run_id_at(&address, primary).map(|id| id.is_some_and(|id| id == there.get("run_id")))
    }
}

/// The run ID of the server at an address, reached as another one. None: it cannot be reached.
pub fn run_id_at(address: &Address, like: &Server) -> Result<Option<String>, Stop> {
    let asked = Server::open(address, &like.login, &like.around)
        .and_then(|mut server| Info::of(&mut server, Some("server")));
    match asked {
        Ok(info) => Ok(Some(info.get("run_id").to_owned())),
        Err(Stop::Because(_)) => Ok(None),
        Err(stop) => Err(stop),
    }
}
