//! Requests made up from the argument trees that `COMMAND DOCS` tells: an option in a specification
//! is in them without being named here.
//!
//! A tree says where a value stands and of which kind it is; a [`Pool`] of values is found by the
//! argument's name, else by its kind. Keys mostly have the type that the command works on, and
//! numbers are mostly small, so that most requests change something; some lie at the limits. Each
//! optional, alternative or repeated argument is a [`Point`] of the grammar: requests tell which
//! ones they use.

use std::collections::BTreeMap;

use super::Reply;

/// Unix seconds at which tests begin, which absolute times lie about.
const START_SECONDS: i64 = super::START.0 / 1000;
/// Databases in use.
pub const DATABASES: usize = 3;
/// Numbers at which something ends: of 64, 53, 48 or 32 bits, of deadlines in seconds and
/// milliseconds.
pub const LIMITS: &[i64] = &[
    i64::MAX,
    i64::MAX - 1,
    i64::MIN,
    i64::MIN + 1,
    i64::MAX / 1000,
    i64::MAX / 1000 + 1,
    1 << 53,
    (1 << 53) + 1,
    -(1 << 53) - 1,
    1 << 48,
    (1 << 48) - 1,
    (1 << 48) - 2,
    (1 << 48) / 1000,
    (1 << 48) / 1000 - 1,
    (1 << 48) / 1000 - START_SECONDS,
    (1 << 48) - 1000 * START_SECONDS,
    u32::MAX as i64,
    u32::MAX as i64 + 1,
    i32::MAX as i64,
    i32::MIN as i64,
    65_536,
    10_000,
];
/// Bytes of the largest values. The servers' `proto-max-bulk-len` lies on either side.
pub const LARGE: usize = 1_500_000;

/// A number in [`Grammar::points`]: something of a command that a request has or has not.
pub type Point = usize;

#[derive(Clone, Debug)]
struct Argument {
    name: String,
    kind: String,
    token: Option<Vec<u8>>,
    is_optional: bool,
    is_multiple: bool,
    repeats_token: bool,
    arguments: Vec<Argument>,
    /// It is there, and it is there several times.
    points: [Option<Point>; 2],
}

/// A command or subcommand that can be run.
#[derive(Clone, Debug)]
pub struct Command {
    /// As in `COMMAND DOCS`: `xgroup|create`.
    pub name: String,
    pub group: String,
    pub flags: Vec<String>,
    pub point: Point,
    arguments: Vec<Argument>,
}

impl Command {
    pub fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|have| have == flag)
    }

    /// Whether a client may have to wait for the reply.
    pub fn waits(&self) -> bool {
        self.has("blocking") || matches!(&*self.name, "wait" | "waitaof")
    }

    fn words(&self) -> impl Iterator<Item = Vec<u8>> {
        self.name.to_ascii_uppercase().split('|').map(Vec::from).collect::<Vec<_>>().into_iter()
    }
}

/// All commands, and the names of their points.
#[derive(Clone, Debug, Default)]
pub struct Grammar {
    pub commands: Vec<Command>,
    /// `set/expiration/EX`: names and tokens on the way to an argument; `...` follows those that
    /// are there several times.
    pub points: Vec<String>,
}

/// A map's or a flat array's pairs.
fn pairs(reply: &Reply) -> Vec<(String, &Reply)> {
    match reply {
        Reply::Map(pairs) => pairs.iter().map(|(name, value)| (text(name), value)).collect(),
        Reply::Array(items) => items.chunks(2).map(|pair| (text(&pair[0]), &pair[1])).collect(),
        other => panic!("no map: {}", other.show()),
    }
}

fn items(reply: &Reply) -> &[Reply] {
    match reply {
        Reply::Array(items) | Reply::Set(items) => items,
        other => panic!("no array: {}", other.show()),
    }
}

fn text(reply: &Reply) -> String {
    match reply {
        Reply::Bulk(bytes) | Reply::Simple(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        other => panic!("no text: {}", other.show()),
    }
}

impl Grammar {
    /// The grammar of a server: `docs` is its reply to COMMAND DOCS, `table` its reply to COMMAND.
    pub fn new(docs: &Reply, table: &Reply) -> Self {
        let mut flags = BTreeMap::new();
        let mut rest: Vec<&Reply> = items(table).iter().collect();
        while let Some(command) = rest.pop() {
            let facts = items(command);
            let names: Vec<String> = items(&facts[2]).iter().map(text).collect();
            flags.insert(text(&facts[0]), names);
            rest.extend(items(&facts[9]));
        }
        let mut grammar = Grammar::default();
        for (name, docs) in pairs(docs) {
            grammar.add(&name, docs, &flags);
        }
        grammar.commands.sort_by(|one, other| one.name.cmp(&other.name));
        grammar
    }

    fn add(&mut self, name: &str, docs: &Reply, flags: &BTreeMap<String, Vec<String>>) {
        let facts: BTreeMap<String, &Reply> = pairs(docs).into_iter().collect();
        if let Some(subcommands) = facts.get("subcommands") {
            for (name, docs) in pairs(subcommands) {
                self.add(&name, docs, flags);
            }
            // `COMMAND` is one itself; the other containers are none.
            if name != "command" {
                return;
            }
        }
        let point = self.point(name.to_owned());
        let arguments = facts.get("arguments").map_or(Vec::new(), |list| {
            items(list).iter().map(|argument| self.argument(argument, name, false)).collect()
        });
        let (group, flags) = (text(facts["group"]), flags.get(name).cloned().unwrap_or_default());
        self.commands.push(Command { name: name.to_owned(), group, flags, point, arguments });
    }

    fn point(&mut self, name: String) -> Point {
        self.points.push(name);
        self.points.len() - 1
    }

    fn argument(&mut self, reply: &Reply, path: &str, is_choice: bool) -> Argument {
        let facts: BTreeMap<String, &Reply> = pairs(reply).into_iter().collect();
        let names = facts
            .get("flags")
            .map_or(Vec::new(), |flags| items(flags).iter().map(text).collect::<Vec<String>>());
        let has = |flag: &str| names.iter().any(|name| name == flag);
        let token = facts.get("token").map(|token| text(token));
        let name = text(facts["name"]);
        let path = format!("{path}/{}", token.as_deref().unwrap_or(&name));
        let is_told = is_choice || has("optional") || token.is_some();
        let point = is_told.then(|| self.point(path.clone()));
        let again = has("multiple").then(|| self.point(format!("{path}...")));
        let kind = text(facts["type"]);
        let arguments = facts.get("arguments").map_or(Vec::new(), |list| {
            let is_choice = kind == "oneof";
            items(list).iter().map(|argument| self.argument(argument, &path, is_choice)).collect()
        });
        Argument {
            name,
            kind,
            token: token.map(String::into_bytes),
            is_optional: has("optional"),
            is_multiple: has("multiple"),
            repeats_token: has("multiple_token"),
            arguments,
            points: [point, again],
        }
    }

    /// The points of a command: itself, then those of its arguments.
    pub fn points_of(&self, command: &Command) -> Vec<Point> {
        fn walk(arguments: &[Argument], found: &mut Vec<Point>) {
            for argument in arguments {
                found.extend(argument.points.iter().flatten());
                walk(&argument.arguments, found);
            }
        }
        let mut found = vec![command.point];
        walk(&command.arguments, &mut found);
        found
    }

    /// The tokens in a command's tree.
    pub fn tokens_of<'a>(&'a self, command: &'a Command) -> Vec<&'a str> {
        fn walk<'a>(arguments: &'a [Argument], found: &mut Vec<&'a str>) {
            for argument in arguments {
                let token = argument.token.as_deref().map(std::str::from_utf8);
                found.extend(token.and_then(Result::ok));
                walk(&argument.arguments, found);
            }
        }
        let mut found = Vec::new();
        walk(&command.arguments, &mut found);
        found
    }
}

/// A request, and what of the grammar it uses.
#[derive(Clone, Debug)]
pub struct Derived {
    pub args: Vec<Vec<u8>>,
    pub points: Vec<Point>,
}

/// Makes requests up.
pub struct Maker {
    pub random: fastrand::Rng,
    /// Grows, so that stream IDs mostly do.
    pub stream_ms: u64,
    /// Keys of each type.
    pub keys: u32,
    /// Whether values may be large: [`LARGE`].
    pub has_large: bool,
    /// Whether memory may be limited. Keys are evicted by chance.
    pub evicts: bool,
    /// What DUMP returned of keys, and of functions.
    pub payloads: Vec<Vec<u8>>,
    pub libraries: Vec<Vec<u8>>,
    /// How often an optional argument is there, of 100.
    density: u32,
    /// Of the last repeated argument, for those that are repeated as often.
    count: usize,
}

/// Scripts, with their SHA1.
const SCRIPTS: &[(&str, &str)] = &[
    ("return 1", "e0e1f9fabfc9d4800c877a703b823ac0578ff8db"),
    ("return redis.call('set',KEYS[1],ARGV[1])", "c686f316aaf1eb01d5a4de1b0b63cd233010e63d"),
    ("return redis.call('get',KEYS[1])", "fd758d1589d044dd850a6f05d52f2eefd27f033f"),
];

const LIBRARIES: &[&str] = &[
    "#!lua name=lib0\nredis.register_function('f0', function(keys, args) return #keys end)",
    "#!lua name=lib1\nredis.register_function('f1', function(keys, args) \
     if keys[1] then redis.pcall('append', keys[1], args[1] or 'x') end return 'done' end)",
    "#!lua name=lib2\nredis.register_function{function_name='f2', flags={'no-writes'}, \
     callback=function(keys, args) return redis.pcall('type', keys[1] or 'none') end}",
    "#!lua name=bad\nthis is none",
];

/// Parameters that decide what is kept or repeated, with values that all servers take.
pub const PARAMETERS: &[(&str, &[&str])] = &[
    ("appendfsync", &["always", "everysec", "no"]),
    ("appendonly", &["yes", "no", "yes"]),
    ("aof-use-rdb-preamble", &["yes", "no"]),
    ("auto-aof-rewrite-percentage", &["0", "1", "100"]),
    ("auto-aof-rewrite-min-size", &["100", "64mb"]),
    ("hash-max-listpack-entries", &["0", "3", "512"]),
    ("hash-max-listpack-value", &["0", "5", "64", "100000"]),
    ("hash-max-ziplist-value", &["9"]),
    ("list-max-listpack-size", &["1", "3", "-1", "-2", "-5", "10000"]),
    ("list-compress-depth", &["0", "1"]),
    ("set-max-intset-entries", &["0", "3", "512"]),
    ("set-max-listpack-entries", &["0", "3", "128"]),
    ("set-max-listpack-value", &["0", "5", "64"]),
    ("zset-max-listpack-entries", &["0", "3", "128"]),
    ("zset-max-listpack-value", &["0", "5", "64", "100000"]),
    ("stream-node-max-entries", &["0", "1", "7", "100"]),
    ("stream-node-max-bytes", &["0", "50", "4096"]),
    ("proto-max-bulk-len", &["1mb", "2mb", "3mb"]),
    ("lazyfree-lazy-expire", &["yes", "no"]),
    ("lazyfree-lazy-server-del", &["yes", "no"]),
    ("lazyfree-lazy-user-del", &["yes", "no"]),
    ("lazyfree-lazy-user-flush", &["yes", "no"]),
    ("lua-time-limit", &["1", "5000"]),
    ("active-expire-effort", &["1", "10"]),
    ("hz", &["1", "10", "100"]),
    ("rdbcompression", &["yes", "no"]),
    ("notify-keyspace-events", &["", "KEA", "Kxn"]),
    ("maxmemory-policy", &["noeviction", "allkeys-lru", "volatile-ttl", "allkeys-random"]),
    ("maxmemory", &["1", "0"]),
    ("repl-backlog-size", &["16kb", "1mb"]),
    ("repl-diskless-sync", &["yes", "no"]),
    ("repl-disable-tcp-nodelay", &["yes", "no"]),
    ("min-replicas-to-write", &["0"]),
];

impl Maker {
    pub fn new(seed: u64) -> Self {
        Maker {
            random: fastrand::Rng::with_seed(seed),
            stream_ms: 1,
            keys: 4,
            has_large: false,
            evicts: true,
            payloads: Vec::new(),
            libraries: Vec::new(),
            density: 30,
            count: 0,
        }
    }

    pub fn request(&mut self, command: &Command) -> Derived {
        self.density = *self.pick(&[0, 15, 40, 75]);
        self.count = 0;
        let mut derived = Derived { args: command.words().collect(), points: vec![command.point] };
        self.sequence(command, &command.arguments, &mut derived);
        if command.name == "zrangestore" && derived.args.iter().any(|arg| arg == b"BYLEX") {
            derived.args[2] = self.equal_scores();
        }
        derived
    }

    fn pick<'a, T>(&mut self, among: &'a [T]) -> &'a T {
        &among[self.random.usize(..among.len())]
    }

    fn one_in(&mut self, times: u32) -> bool {
        self.random.u32(..times) == 0
    }

    fn sequence(&mut self, command: &Command, arguments: &[Argument], out: &mut Derived) {
        // The number of times that a count before has told.
        let mut told = None;
        for (index, argument) in arguments.iter().enumerate() {
            let times = told.take().filter(|_| argument.is_multiple);
            let is_there = times.map_or_else(
                || !argument.is_optional || self.random.u32(..100) < self.density,
                |times| times > 0,
            );
            if !is_there {
                continue;
            }
            out.points.extend(argument.points[0]);
            let is_count = argument.name.starts_with("num")
                && arguments.get(index + 1).is_some_and(|next| next.is_multiple);
            if is_count {
                let least = usize::from(!arguments[index + 1].is_optional);
                let count = self.times().max(least) - usize::from(least == 0 && self.one_in(3));
                told = Some(count);
                self.count = count;
                out.args.extend(argument.token.clone());
                let said = if self.one_in(100) { self.integer() } else { count as i64 };
                out.args.push(said.to_string().into_bytes());
                continue;
            }
            let times = match times {
                Some(times) => times,
                None if !argument.is_multiple => 1,
                None if matches!(&*argument.name, "id" | "weight") && self.count > 0 => self.count,
                None => self.times(),
            };
            if times > 1 {
                out.points.extend(argument.points[1]);
            }
            for time in 0..times {
                if time == 0 || argument.repeats_token {
                    out.args.extend(argument.token.clone());
                }
                self.argument(command, argument, out);
            }
            if argument.is_multiple && argument.kind == "key" {
                self.count = times;
            }
        }
    }

    fn argument(&mut self, command: &Command, argument: &Argument, out: &mut Derived) {
        match &*argument.kind {
            "pure-token" => {}
            "oneof" => {
                let chosen = &argument.arguments[self.random.usize(..argument.arguments.len())];
                let whole = Argument { is_optional: false, ..chosen.clone() };
                self.sequence(command, &[whole], out);
            }
            "block" if argument.name == "parameter_value" => {
                // More often those that switch the log.
                let some = if self.one_in(4) { &PARAMETERS[..4] } else { PARAMETERS };
                let (name, values) = *self.pick(some);
                let name =
                    if name == "maxmemory" && !self.evicts { "slowlog-max-len" } else { name };
                out.args.push(name.into());
                let value = *self.pick(values);
                out.args.push(value.into());
            }
            "block" => self.sequence(command, &argument.arguments, out),
            kind => {
                let value = self.value(command, &argument.name, kind);
                out.args.push(value);
            }
        }
    }

    /// How often something is repeated.
    fn times(&mut self) -> usize {
        match self.random.u32(..60) {
            0 => self.random.usize(20..150),
            1..8 => self.random.usize(3..12),
            8..20 => 2,
            _ => 1,
        }
    }

    /// A sorted set whose scores are equal: for others ranges by member are not defined.
    fn equal_scores(&mut self) -> Vec<u8> {
        format!("y{}", self.random.u32(..self.keys)).into_bytes()
    }

    /// A key, mostly of the type that the command works on.
    fn key(&mut self, command: &Command, argument: &str) -> Vec<u8> {
        let stores_list = argument == "destination" && command.name == "sort";
        let takes_set = matches!(argument, "key" | "source") && command.name.starts_with('z');
        let kind = match &*command.group {
            _ if command.name == "zremrangebylex" => return self.equal_scores(),
            _ if self.one_in(30) => "",
            _ if command.name.starts_with("sort") && !stores_list => {
                *self.pick(&["l", "s", "z", "u"])
            }
            _ if stores_list || command.name == "bzmovedue" && argument == "destination" => "l",
            "string" | "bitmap" => "t",
            "list" => "l",
            "set" => *self.pick(&["s", "s", "s", "u"]),
            "sorted-set" if takes_set && command.name.contains("store") && self.one_in(8) => "s",
            "sorted-set" => *self.pick(&["z", "z", "z", "g"]),
            "hash" => "h",
            "stream" => "x",
            "geo" if matches!(argument, "key" | "source") => "g",
            "geo" => *self.pick(&["g", "z"]),
            "hyperloglog" => "p",
            _ => "",
        };
        let kind = if kind.is_empty() {
            *self.pick(&["t", "l", "s", "u", "z", "h", "x", "g", "p"])
        } else {
            kind
        };
        format!("{kind}{}", self.random.u32(..self.keys)).into_bytes()
    }

    fn value(&mut self, command: &Command, name: &str, kind: &str) -> Vec<u8> {
        let full = &*command.name;
        let seconds = |random: &mut fastrand::Rng| START_SECONDS + random.i64(-5..4000);
        let text: String = match (full, name) {
            _ if kind == "key" => return self.key(command, name),
            ("restore" | "restore-asking", "serialized-value") if !self.payloads.is_empty() => {
                return self.pick(&self.payloads.clone()).clone();
            }
            ("function|restore", "serialized-value") if !self.libraries.is_empty() => {
                return self.pick(&self.libraries.clone()).clone();
            }
            // Without a limit of what is returned.
            ("srandmember" | "hrandfield" | "zrandmember", "count") => {
                self.random.i32(-50..50).to_string()
            }
            ("setbit", "value") | (_, "bit") => self.random.u32(..2).to_string(),
            ("bitfield" | "bitfield_ro" | "setbit" | "getbit" | "setrange", "offset") => {
                let unit = if full.starts_with("bitfield") && self.one_in(3) { "#" } else { "" };
                let offset = match self.random.u32(..300) {
                    0 if self.has_large && full == "setrange" => LARGE as i64,
                    0 if self.has_large => 8 * LARGE as i64,
                    1..4 => {
                        *self.pick(&[-1, u32::MAX as i64, 1 << 32, 1 << 48, i64::MAX, i64::MIN])
                    }
                    _ => self.random.i64(0..100),
                };
                format!("{unit}{offset}")
            }
            (_, "encoding") => {
                let bits = *self.pick(&[1, 2, 5, 8, 16, 31, 32, 63, 64]);
                let sign = if bits < 64 && self.random.bool() { "u" } else { "i" };
                format!("{sign}{bits}")
            }
            (_, "increment" | "decrement") if kind == "double" || full == "zincrby" => {
                self.double()
            }
            (_, "increment" | "decrement" | "value") if kind == "integer" => {
                self.integer().to_string()
            }
            (_, "db" | "destination-db" | "index1" | "index2") | ("select", "index") => {
                self.random.usize(..DATABASES).to_string()
            }
            (_, "cursor") => "0".into(),
            // Positive: a negative zero is kept in a skiplist and not in a listpack, as in Redis.
            (_, "weight") => (*self.pick(&["1", "2", "0.5", "3", "1e3", "inf"])).into(),
            (_, "longitude") if self.random.bool() => self.random.u32(..3).to_string(),
            (_, "latitude") if self.random.bool() => "41.5".into(),
            (_, "longitude") => format!("{:.4}", self.random.f64() * 20.0 - 5.0),
            (_, "latitude") => format!("{:.4}", self.random.f64() * 20.0 + 30.0),
            (_, "radius" | "width" | "height") => self.random.u32(1..3000).to_string(),
            (_, "score") => self.score(),
            (_, "min" | "max" | "start" | "stop")
                if full.contains("bylex") || full == "zlexcount" =>
            {
                self.lexical_bound()
            }
            (_, "min" | "max") if full.starts_with('z') => match self.random.u32(..8) {
                0 => "-inf".into(),
                1 => "+inf".into(),
                2 => format!("({}", self.random.i32(-20..20)),
                _ => self.random.i32(-20..20).to_string(),
            },
            ("zrange", "start" | "stop") if self.one_in(4) => self.lexical_bound(),
            // What is said of new entries alone needs this for all streams.
            ("xreadgroup", "id") if !self.one_in(4) => ">".into(),
            ("xreadgroup", "maxdeliveries") => self.random.u32(..5).to_string(),
            (_, "threshold" | "id" | "start" | "end" | "last-id" | "lastid" | "max-deleted-id")
                if command.group == "stream" =>
            {
                let is_new = full == "xadd" && name == "id";
                self.stream_id(full, name, is_new)
            }
            (_, "index" | "start" | "stop" | "end" | "rank") => match self.random.u32(..20) {
                0 => self.limit().to_string(),
                1..4 => self.random.i32(-200..200).to_string(),
                _ => self.random.i32(-12..12).to_string(),
            },
            (_, "unix-time-seconds") => match self.random.u32(..12) {
                0 => self.limit().to_string(),
                1 => "1".into(),
                _ => seconds(&mut self.random).to_string(),
            },
            (_, "unix-time-milliseconds") => match self.random.u32(..12) {
                0 => self.limit().to_string(),
                1 => "1".into(),
                _ => (seconds(&mut self.random) * 1000 + self.random.i64(..1000)).to_string(),
            },
            ("restore" | "restore-asking", "ttl") => {
                (*self.pick(&["0", "0", "100", "5000", "1700000900000"])).into()
            }
            (_, "seconds" | "ttl") => match self.random.u32(..16) {
                0 => self.limit().to_string(),
                _ => (*self.pick(&["0", "1", "2", "5", "100", "-1", "3000"])).into(),
            },
            // Nobody is there who would end the waiting of a client that does nothing else.
            ("xread" | "xreadgroup", "milliseconds") => (*self.pick(&["1", "20", "500"])).into(),
            ("client|pause", "timeout") => self.random.u32(..20).to_string(),
            (_, "numreplicas" | "numlocal") => self.random.u32(..2).to_string(),
            ("wait" | "waitaof", "timeout") => (*self.pick(&["1", "20", "500"])).into(),
            (_, "timeout") if command.has("blocking") => {
                (*self.pick(&["0", "0.001", "0.02", "1"])).into()
            }
            (_, "milliseconds" | "ms" | "min-idle-time") => match self.random.u32(..16) {
                0 => self.limit().to_string(),
                _ => (*self.pick(&["0", "1", "2", "5", "30", "100", "5000"])).into(),
            },
            ("cl.throttle", "max_burst" | "count" | "period" | "quantity") if !self.one_in(16) => {
                self.random.u32(..60).to_string()
            }
            (_, "field" | "member" | "member1" | "member2" | "element" | "pivot") => {
                return self.member(full);
            }
            (_, "group" | "groupname") => format!("grp{}", self.random.u32(..2)),
            (_, "consumer" | "consumername") => format!("con{}", self.random.u32(..3)),
            (_, "pattern") if full.starts_with("sort") => {
                (*self.pick(&["nosort", "t*", "h*->m1", "#", "none*"])).into()
            }
            (_, "pattern" | "library-name-pattern") => {
                (*self.pick(&["*", "a*", "m1*", "*[0-9]", "m?", "lib*", "zzz"])).into()
            }
            ("scan" | "clusterscan", "type") => {
                (*self.pick(&["string", "list", "set", "zset", "hash", "stream"])).into()
            }
            (_, "digest") => "0123456789abcdef".into(),
            (_, "script") => self.pick(SCRIPTS).0.into(),
            (_, "sha1") => self.pick(SCRIPTS).1.into(),
            (_, "function-code") => (*self.pick(LIBRARIES)).into(),
            (_, "library-name") => format!("lib{}", self.random.u32(..3)),
            (_, "function") => format!("f{}", self.random.u32(..3)),
            (_, "parameter") => (*self.pick(&["maxmemory", "save", "*max*", "appendonly"])).into(),
            (_, "channel" | "shardchannel") => format!("ch{}", self.random.u32(..3)),
            ("acl|setuser" | "acl|deluser", "username") => (*self.pick(&["alice", "bob"])).into(),
            (_, "ip:port") => (*self.pick(&["10.0.1.1:40000", "127.0.0.1:1"])).into(),
            (_, "username") => (*self.pick(&["alice", "bob", "default"])).into(),
            (_, "rule") => (*self.pick(&[
                "on",
                "off",
                "+@all",
                "~*",
                "nopass",
                "-flushall",
                "&*",
                "resetkeys",
            ]))
            .into(),
            (_, "category" | "categoryname") => (*self.pick(&["read", "write", "all"])).into(),
            (_, "command" | "command-name") => (*self.pick(&["get", "set", "ping"])).into(),
            (_, "section") => (*self.pick(&["server", "all", "keyspace", "replication"])).into(),
            (_, "client-id") => self.random.u32(1..40).to_string(),
            (_, "protover") => self.random.u32(2..4).to_string(),
            (_, "bits") => self.random.u32(1..300).to_string(),
            ("pfdebug", "subcommand") => (*self.pick(&["ENCODING", "GETREG", "TODENSE"])).into(),
            (_, "version") => self.random.u32(1..4).to_string(),
            (_, "count" | "limit" | "len" | "num-matches" | "offset") => {
                match self.random.u32(..24) {
                    0 => self.limit().to_string(),
                    1 => self.random.i32(-3..0).to_string(),
                    2 => self.random.u32(..500).to_string(),
                    _ => self.random.u32(..9).to_string(),
                }
            }
            _ => match kind {
                "integer" => self.integer().to_string(),
                "double" => self.double(),
                "pattern" => "*".into(),
                "unix-time" => seconds(&mut self.random).to_string(),
                _ => return self.bytes(full),
            },
        };
        text.into_bytes()
    }

    fn limit(&mut self) -> i64 {
        *self.pick(LIMITS)
    }

    fn integer(&mut self) -> i64 {
        match self.random.u32(..16) {
            0 => self.limit(),
            1 => self.random.i64(..),
            2..5 => self.random.i64(-1..2),
            _ => self.random.i64(-1000..1000),
        }
    }

    fn double(&mut self) -> String {
        match self.random.u32(..30) {
            0 => "inf".into(),
            1 => "-inf".into(),
            2 => "1e3".into(),
            3 => "0.1".into(),
            4 => "1.7e308".into(),
            5 => self.limit().to_string(),
            6..12 => format!("{}", self.random.f64() * 100.0),
            _ => self.random.i32(-30..30).to_string(),
        }
    }

    /// Often the same one, and often a time in seconds or milliseconds.
    fn score(&mut self) -> String {
        match self.random.u32(..20) {
            0 => "+inf".into(),
            1 => "-inf".into(),
            2 => self.limit().to_string(),
            3..6 => format!("{}", self.random.f64() * 10.0),
            6..11 => "0".into(),
            11 => (START_SECONDS + self.random.i64(-5..50)).to_string(),
            12 => (START_SECONDS * 1000 + self.random.i64(-5000..50_000)).to_string(),
            _ => self.random.i32(-20..20).to_string(),
        }
    }

    fn lexical_bound(&mut self) -> String {
        match self.random.u32(..7) {
            0 => "-".into(),
            1 => "+".into(),
            2 => format!("({}", self.random.char('a'..='n')),
            _ => format!("[{}", self.random.char('a'..='n')),
        }
    }

    fn stream_id(&mut self, command: &str, name: &str, is_new: bool) -> String {
        if is_new {
            self.stream_ms += self.random.u64(..2);
            return match self.random.u32(..60) {
                0 => format!("{}", self.stream_ms),
                1 => format!("{}-*", self.stream_ms),
                2 => (*self.pick(&["18446744073709551615-18446744073709551615", "0-0", "0-1"]))
                    .into(),
                _ => format!("{}-{}", self.stream_ms, self.random.u32(..6)),
            };
        }
        let near = self.random.u64(..self.stream_ms + 3);
        match self.random.u32(..24) {
            0 => "0".into(),
            1 => "18446744073709551615-18446744073709551615".into(),
            2 => self.limit().to_string(),
            _ if command == "xreadgroup" && self.random.u32(..4) > 0 => ">".into(),
            _ if command == "xread" && self.one_in(4) => "$".into(),
            _ if name == "start" && self.random.bool() => "-".into(),
            _ if name == "end" && self.random.bool() => "+".into(),
            // MAXLEN or MINID.
            _ if name == "threshold" && self.random.bool() => self.random.u32(..20).to_string(),
            3..12 => format!("{near}"),
            _ => format!("{near}-{}", self.random.u32(..6)),
        }
    }

    /// Fields and members: often the same few, sometimes of many.
    fn member(&mut self, command: &str) -> Vec<u8> {
        match self.random.u32(..10) {
            0..4 => format!("m{}", self.random.u32(..6)).into_bytes(),
            4..6 => self.random.i32(-3..8).to_string().into_bytes(),
            6 => self.random.i32(0..200).to_string().into_bytes(),
            7 | 8 => format!("m{}", self.random.u32(..250)).into_bytes(),
            _ => self.bytes(command),
        }
    }

    fn bytes(&mut self, command: &str) -> Vec<u8> {
        match self.random.u32(..24) {
            0 => Vec::new(),
            1 => vec![b'y'; self.random.usize(62..68)],
            2 => b"\xff\x00\r\n \"".to_vec(),
            3 => self.random.i64(..).to_string().into_bytes(),
            4 => format!("{}", self.random.f64() * 1000.0 - 500.0).into_bytes(),
            5 if self.one_in(6) => vec![b'z'; self.random.usize(1000..9000)],
            6 if self.has_large && self.one_in(60) && command != "lcs" => {
                vec![b'L'; LARGE - self.random.usize(..3)]
            }
            7 => self.limit().to_string().into_bytes(),
            8..12 => self.random.i32(-40..40).to_string().into_bytes(),
            12 => b"007".to_vec(),
            _ => {
                let length = self.random.usize(1..9);
                (0..length).map(|_| self.random.u8(b'a'..=b'e')).collect()
            }
        }
    }
}
