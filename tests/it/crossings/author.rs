//! Sessions made up at random: requests from the whole grammar, in transactions and scripts too,
//! clients that wait and are killed, and time that passes.

use crate::support::derived::{Command, Grammar, Maker};
use crate::support::quote;

pub type Args = Vec<Vec<u8>>;

/// Clients that wait, besides the one that does not.
pub const WAITING: usize = 3;

/// Runs the commands that its arguments are, each after the number of its words.
const SCRIPT: &str = "local i = 1 while i <= #ARGV do local n = tonumber(ARGV[i]) \
                      redis.pcall(unpack(ARGV, i + 1, i + n)) i = i + n + 1 end";

/// Commands that are no part of sessions, and why.
pub const LEFT_OUT: &[(&str, &str)] = &[
    ("acl|load", "no users' file is configured"),
    ("acl|save", "no users' file is configured"),
    ("client|capa", "makes a primary redirect this client"),
    ("client|pause", "a session would wait for its end"),
    ("client|reply", "replies are counted"),
    ("client|unpause", "see CLIENT PAUSE"),
    ("config|rewrite", "there is no configuration file"),
    ("debug", "its subcommands end the server, or wait"),
    ("discard", "a step of its own: a transaction"),
    ("exec", "a step of its own: a transaction"),
    ("failover", "who follows whom is the simulation's"),
    ("function|kill", "nothing runs"),
    ("hotkeys|start", "measures processor time: no two runs would agree"),
    ("migrate", "needs another server: tests/it/persistence/dump.rs"),
    ("module|load", "there are no modules"),
    ("module|loadex", "there are no modules"),
    ("module|unload", "there are no modules"),
    ("multi", "a step of its own: a transaction"),
    ("pfselftest", "takes seconds"),
    ("psync", "begins a replica's link"),
    ("replconf", "is a replica's"),
    ("replicaof", "who follows whom is the simulation's"),
    ("script|debug", "the next script waits for its client"),
    ("script|kill", "nothing runs"),
    ("shutdown", "ends the server: the simulation's"),
    ("slaveof", "who follows whom is the simulation's"),
    ("sync", "begins a replica's link"),
];

/// Those that change what a connection is, sent by a client of their own.
pub const ALONE: &[&str] = &[
    "auth",
    "hello",
    "monitor",
    "psubscribe",
    "punsubscribe",
    "quit",
    "reset",
    "ssubscribe",
    "subscribe",
    "sunsubscribe",
    "unsubscribe",
    "client|kill",
    "client|tracking",
    "client|caching",
    "client|setname",
    "acl|setuser",
    "acl|deluser",
];

#[derive(Clone, Debug)]
pub enum Step {
    Send(Args),
    /// By a client that does nothing else.
    Alone(Args),
    /// After WATCH of a key, perhaps; to be discarded, perhaps.
    Transaction(Option<Args>, Vec<Args>, bool),
    /// By a client that waits if need be; the one that waited under this number gives up.
    Wait(usize, Args),
    /// `CLIENT KILL` or `CLIENT UNBLOCK` of a client that waits, in the turn of the next requests.
    Kill(usize, bool),
    /// The requests before are one turn's.
    Turn,
    PassMs(i64),
    /// A turn of the replica.
    Follow,
    /// All that must agree is compared.
    Compare,
}

pub fn words(text: &str) -> Args {
    text.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

fn line(args: &Args) -> String {
    let shown = args.iter().map(|arg| {
        if arg.len() > 300 {
            format!("{} bytes of {}", arg.len(), quote(&arg[..1]))
        } else {
            quote(arg)
        }
    });
    shown.collect::<Vec<_>>().join(" ")
}

impl Step {
    pub fn show(&self) -> String {
        match self {
            Step::Send(args) => line(args),
            Step::Alone(args) => format!("alone> {}", line(args)),
            Step::Transaction(watched, commands, is_discarded) => {
                let watched = watched.iter().map(|args| format!("{}\n  ", line(args)));
                let lines = commands.iter().map(|args| format!("\n  {}", line(args)));
                let end = if *is_discarded { "DISCARD" } else { "EXEC" };
                format!(
                    "{}MULTI{}\n  {end}",
                    watched.collect::<String>(),
                    lines.collect::<String>()
                )
            }
            Step::Wait(number, args) => format!("{number}> {}", line(args)),
            Step::Kill(number, true) => format!("CLIENT KILL ID (of {number})"),
            Step::Kill(number, false) => format!("CLIENT UNBLOCK (of {number})"),
            Step::PassMs(ms) => format!("(pass {ms} ms)"),
            other => format!("({other:?})"),
        }
    }
}

/// What sessions are to have.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    /// Nothing depends on chance, or on how requests lie in turns.
    pub is_determined: bool,
    pub has_large: bool,
}

pub struct Author<'a> {
    pub maker: Maker,
    manner: Manner,
    grammar: &'a Grammar,
    /// Indices of commands, those that change something several times.
    stream: Vec<usize>,
    waiting: Vec<usize>,
    config_set: &'a Command,
}

pub fn is_left_out(command: &Command) -> bool {
    LEFT_OUT.iter().any(|(name, _)| *name == command.name) || command.group == "cluster"
}

/// Whether a command's effects depend on chance, on the tables' order, or on how much memory is in
/// use.
fn is_chance(command: &Command) -> bool {
    let name = &*command.name;
    matches!(name, "spop" | "sort" | "acl|genpass")
        || name.contains("script")
        || name.starts_with("client|")
        || name.starts_with("geo") && command.has("write")
}

impl<'a> Author<'a> {
    pub fn new(seed: u64, grammar: &'a Grammar, manner: Manner) -> Self {
        let mut maker = Maker::new(seed);
        maker.has_large = manner.has_large;
        maker.evicts = !manner.is_determined;
        let (mut stream, mut waiting) = (Vec::new(), Vec::new());
        for (index, command) in grammar.commands.iter().enumerate() {
            if is_left_out(command) || manner.is_determined && is_chance(command) {
                continue;
            }
            if command.waits() {
                waiting.push(index);
            } else {
                let weight = match () {
                    () if matches!(&*command.name, "flushall" | "flushdb" | "swapdb") => 1,
                    () if command.name == "config|set" => 20,
                    // What these store depends on the order in which they meet members.
                    () if command.name == "sort" => 40,
                    () if command.group == "geo" => 15,
                    () if command.has("write") => 6,
                    () if matches!(
                        &*command.group,
                        "server" | "connection" | "pubsub" | "scripting"
                    ) =>
                    {
                        1
                    }
                    () => 2,
                };
                stream.extend((0..weight).map(|_| index));
            }
        }
        let config_set = grammar.commands.iter().find(|command| command.name == "config|set");
        let config_set = config_set.expect("a command");
        Author { maker, manner, grammar, stream, waiting, config_set }
    }

    pub fn command(&mut self) -> &'a Command {
        loop {
            let at = self.maker.random.usize(..self.stream.len());
            let command = &self.grammar.commands[self.stream[at]];
            // There is to be something to lose.
            if !command.name.starts_with("flush") || self.maker.random.u32(..6) == 0 {
                return command;
            }
        }
    }

    fn waiting(&mut self) -> Args {
        let at = self.maker.random.usize(..self.waiting.len());
        let command = &self.grammar.commands[self.waiting[at]];
        self.maker.request(command).args
    }

    /// Some for a transaction or a script, where nothing waits.
    fn several(&mut self) -> Vec<Args> {
        let count = self.maker.random.usize(..6);
        let mut commands = Vec::new();
        while commands.len() < count {
            if self.maker.random.u32(..20) == 0 {
                commands.push(self.waiting());
                continue;
            }
            let command = match self.maker.random.u32(..8) {
                0 => self.config_set,
                _ => self.command(),
            };
            if !ALONE.contains(&&*command.name) && !matches!(&*command.name, "watch" | "select") {
                commands.push(self.maker.request(command).args);
            }
        }
        commands
    }

    /// A client that waits for a key is killed, or given up, and the key filled in the same turn.
    fn kill(&mut self, steps: &mut Vec<Step>) {
        let number = self.maker.random.usize(..WAITING);
        let cases = [
            ("l0", "BLPOP l0 l1 0", "RPUSH l0 a b"),
            ("l1", "BRPOP l1 0", "LPUSH l1 a"),
            ("l2", "BLMOVE l2 l3 LEFT RIGHT 0", "RPUSH l2 a"),
            ("l3", "BLMPOP 0 1 l3 LEFT COUNT 2", "LPUSH l3 a b c"),
            ("z0", "BZPOPMIN z0 0", "ZADD z0 1 a 2 b"),
            ("z1", "BZPOPMAX z1 z2 0", "ZINCRBY z1 5 a"),
            ("z2", "BZMPOP 0 1 z2 MIN", "ZADD z2 1 a"),
            ("z3", "BZMOVEDUE z3 l1 0", "ZADD z3 1 a"),
            ("x0", "XREADGROUP GROUP grp0 con0 BLOCK 0 STREAMS x0 >", "XADD x0 * f v"),
        ];
        let (key, waits, fills) = cases[self.maker.random.usize(..cases.len())];
        steps.push(Step::Send(words(&format!("DEL {key}"))));
        if key.starts_with('x') {
            steps.push(Step::Send(words(&format!("XGROUP CREATE {key} grp0 $ MKSTREAM"))));
        }
        steps.push(Step::Wait(number, words(waits)));
        if self.maker.random.bool() {
            let other = self.maker.random.usize(..WAITING);
            steps.push(Step::Wait(other, words(waits)));
        }
        steps.push(Step::Kill(number, self.maker.random.u32(..4) > 0));
        steps.push(Step::Send(words(fills)));
    }

    /// A collection gets too large for its small form.
    fn fill(&mut self) -> Args {
        let random = &mut self.maker.random;
        let heads = ["SADD s", "SADD u", "ZADD z", "ZADD y", "HSET h", "RPUSH l", "GEOADD g"];
        let head = heads[random.usize(..heads.len())];
        let mut args = words(&format!("{head}{}", random.u32(..self.maker.keys)));
        let first = random.u32(..300);
        for number in first..first + random.u32(100..700) {
            let text = |text: String| text.into_bytes();
            match head {
                "ZADD z" => args.push(text((number % 7).to_string())),
                "ZADD y" => args.push(text("0".into())),
                "HSET h" => args.push(text(format!("f{number}"))),
                // Few places, so that distances are equal.
                "GEOADD g" => args.extend([text((number % 3).to_string()), text("41.5".into())]),
                _ => {}
            }
            args.push(text(if head == "SADD u" {
                number.to_string()
            } else {
                format!("m{number}")
            }));
        }
        args
    }

    /// About `length` steps, compared in between and at their end.
    pub fn session(&mut self, length: usize) -> Vec<Step> {
        let mut steps = Vec::new();
        let parts = self.maker.random.usize(1..4);
        for _ in 0..parts {
            let until = steps.len() + length / parts;
            while steps.len() < until {
                self.step(&mut steps);
            }
            steps.push(Step::Compare);
        }
        steps
    }

    fn step(&mut self, steps: &mut Vec<Step>) {
        match self.maker.random.u32(..80) {
            0..2 => steps.push(Step::PassMs(self.maker.random.i64(1..1500))),
            2 => steps.push(Step::PassMs(1)),
            3..6 => {
                let number = self.maker.random.usize(..WAITING);
                let args = self.waiting();
                steps.push(Step::Wait(number, args));
            }
            6..8 => {
                let watched = self.maker.random.bool().then(|| words("WATCH t0 l0 h0"));
                let is_discarded = self.maker.random.u32(..10) == 0;
                let commands = self.several();
                steps.push(Step::Transaction(watched, commands, is_discarded));
            }
            8..10 => {
                let mut args = words("EVAL script 0");
                args[1] = SCRIPT.into();
                for command in self.several() {
                    args.push(command.len().to_string().into_bytes());
                    args.extend(command);
                }
                steps.push(Step::Send(args));
            }
            10 => self.kill(steps),
            11..13 => {
                let args = self.fill();
                steps.push(Step::Send(args));
            }
            13..16 => steps.push(Step::Turn),
            16..20 => steps.push(Step::Follow),
            // What no memory was left for comes to nothing for long.
            20..24 if !self.manner.is_determined => {
                steps.push(Step::Send(words("CONFIG SET maxmemory 0")));
            }
            24 if !self.manner.is_determined => {
                let (first, count) = (self.maker.random.u32(..1000), self.maker.random.u32(..100));
                let name = if self.maker.random.bool() { "MSET" } else { "DEL" };
                let value = if name == "MSET" { " filled" } else { "" };
                let keys =
                    (first..first + count.max(1)).map(|number| format!(" fill:{number}{value}"));
                steps.push(Step::Send(words(&format!("{name}{}", keys.collect::<String>()))));
            }
            _ => {
                let command = self.command();
                let args = self.maker.request(command).args;
                let is_alone = ALONE.contains(&&*command.name);
                steps.push(if is_alone { Step::Alone(args) } else { Step::Send(args) });
            }
        }
    }
}
