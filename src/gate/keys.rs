//! Which arguments of a request are keys, by the command's key specifications.
//!
//! Used by `COMMAND GETKEYS` and wherever a request's keys must be known before it runs. The
//! specifications suffice for nearly all commands; where one is incomplete, or the key's use
//! depends on options, this file has the rule.

use std::ops::Range;

use crate::keyspace::due::Unit;
use crate::resp::args::{Args, Cursor};
use crate::resp::number::leading_i64;
use crate::state::spec::{Begin, CommandSpec, Find, KeyFlags, KeyPosition, KeyRule, KeySpec};

/// The keys of a request, in the order of the specifications. Empty if the request has none or its
/// arguments are invalid (a count larger than the number of arguments after it). `args`: the whole
/// request; for a subcommand, including the container.
pub fn keys_of(spec: &CommandSpec, args: Args<'_>) -> Vec<KeyPosition> {
    by_rule(spec, args, by_specifications(spec, args, is_key).0)
}

/// The keys that `COMMAND GETKEYS` shows, as Redis finds them: every specification must find some,
/// but the numbers of streams and IDs may differ.
pub fn shown_keys(spec: &CommandSpec, args: Args<'_>) -> Vec<KeyPosition> {
    match by_specifications(spec, args, is_key) {
        (_, false) => loosely_counted(spec, args),
        (specified, true) => match by_rule(spec, args, specified.clone()) {
            keys if keys.is_empty() && spec.key_rule == KeyRule::ReadStreams => specified,
            keys => keys,
        },
    }
}

/// The keys of a request whose count of keys is malformed, but begins with a number: those that it
/// counts, then the others, of unknown use.
fn loosely_counted(spec: &CommandSpec, args: Args<'_>) -> Vec<KeyPosition> {
    let counted = spec.keys.iter().find_map(|keys| match (keys.find, begin(keys, args)) {
        (Find::Count { step }, Some(at)) if at < args.len() => Some((at, usize::from(step.max(1)))),
        _ => None,
    });
    let Some((at, step)) = counted else { return Vec::new() };
    // Redis takes the low 32 bits.
    let count = usize::try_from(leading_i64(args.get(at)) as i32).unwrap_or_default();
    if count == 0 || count > (args.len() - at - 1) / step {
        return Vec::new();
    }
    let others = spec.keys.iter().filter_map(|keys| match (keys.begin, keys.find) {
        (Begin::Index(index), Find::Range { last: 0, .. }) => Some(index as usize),
        _ => None,
    });
    let places = (at + 1..).step_by(step).take(count).chain(others);
    places.map(|index| KeyPosition { index, flags: KeyFlags::empty() }).collect()
}

fn is_key(keys: &KeySpec) -> bool {
    !keys.flags.contains(KeyFlags::NOT_KEY)
}

/// The arguments by which a cluster chooses the node for a request: its keys, or its shard
/// channels.
pub fn placed_by(spec: &CommandSpec, args: Args<'_>) -> Vec<KeyPosition> {
    by_rule(spec, args, by_specifications(spec, args, |_| true).0)
}

/// The keys by the specifications that count, and whether each has found its own.
fn by_specifications(
    spec: &CommandSpec,
    args: Args<'_>,
    counts: impl Fn(&KeySpec) -> bool,
) -> (Vec<KeyPosition>, bool) {
    let (mut found, mut is_whole) = (Vec::new(), true);
    for keys in spec.keys.iter().filter(|keys| counts(keys)) {
        if keys.begin == Begin::Unknown || keys.find == Find::Unknown {
            continue;
        }
        let Some(first) = begin(keys, args) else {
            continue;
        };
        let Some((first, last, step)) = range(keys, first, args) else {
            is_whole = false;
            if let Find::Range { .. } = keys.find {
                // The request has no keys for this specification, as PFMERGE without sources.
                continue;
            }
            return (Vec::new(), false);
        };
        let flags = actual_flags(spec, keys, args);
        let places = (first..=last).step_by(step).map(|index| KeyPosition { index, flags });
        found.extend(places);
        found
            .extend(repeated_keywords(keys, first, args).map(|index| KeyPosition { index, flags }));
    }
    (found, is_whole)
}

/// The keys by the command's own rule, which knows those of the specifications.
fn by_rule(spec: &CommandSpec, args: Args<'_>, mut found: Vec<KeyPosition>) -> Vec<KeyPosition> {
    match spec.key_rule {
        KeyRule::SortDestination => found.extend(sort_destination(args)),
        KeyRule::ReadStreams => {
            // A group, a consumer or a key may be the word STREAMS.
            let keys = ReadOption::keys(args);
            let flags = match keys.others.is_empty() {
                true => spec.keys[0].flags,
                // Entries are added, to the streams or to that of dead letters, and deleted.
                false => KeyFlags::RW_ACCESS_DELETE | KeyFlags::INSERT,
            };
            let all = keys.streams.chain(keys.others);
            found = all.map(|index| KeyPosition { index, flags }).collect();
        }
        KeyRule::BeforeTimeout => found.retain(|key| key.index < timeout_of_bzpopdue(args)),
        KeyRule::Migrated => {
            // A password or a key may be the word KEYS, so the options are parsed from the front.
            let Some(flags) = found.first().map(|key| key.flags) else { return found };
            let keys = migrated_keys(args);
            found = keys.map(|index| KeyPosition { index, flags }).collect();
        }
        KeyRule::None | KeyRule::ReadWithGet | KeyRule::Compared | KeyRule::ReadByGets => {}
    }
    found
}

/// The argument at which a specification's keys begin. None: its keyword is missing.
fn begin(keys: &KeySpec, args: Args<'_>) -> Option<usize> {
    let is_word = |index: usize, word: &str| args.get(index).eq_ignore_ascii_case(word.as_bytes());
    match keys.begin {
        Begin::Index(index) => Some(index as usize),
        Begin::Keyword { word, from } if from > 0 => {
            // The last argument cannot be a keyword: nothing follows it.
            let end = args.len().saturating_sub(1);
            (from as usize..end).find(|&index| is_word(index, word)).map(|index| index + 1)
        }
        Begin::Keyword { word, from } => {
            let start = args.len().checked_sub(from.unsigned_abs() as usize)?;
            let mut places = (2..=start.min(args.len() - 1)).rev();
            places.find(|&index| is_word(index, word)).map(|index| index + 1)
        }
        Begin::Unknown => None,
    }
}

/// The keys after further occurrences of a keyword after the `first`. The command decides which
/// occurrence counts, so the user needs the permission for each.
fn repeated_keywords<'a>(
    keys: &'a KeySpec,
    first: usize,
    args: Args<'a>,
) -> impl Iterator<Item = usize> + use<'a> {
    let word = match (keys.begin, keys.find) {
        (Begin::Keyword { word, from: 1.. }, Find::Range { last: 0, .. }) => Some(word),
        _ => None,
    };
    let is_word = move |index: &usize| {
        word.is_some_and(|word| args.get(*index).eq_ignore_ascii_case(word.as_bytes()))
    };
    (first..args.len().saturating_sub(1)).filter(is_word).map(|index| index + 1)
}

/// First and last key and the step between keys; None if they do not lie within the request.
fn range(keys: &KeySpec, first: usize, args: Args<'_>) -> Option<(usize, usize, usize)> {
    let len = args.len() as i64;
    let (first, last, step) = match keys.find {
        Find::Range { last, step, limit } => {
            let first = first as i64;
            let last = match (last, limit) {
                (0.., _) => first + last as i64,
                (_, 0) => len + last as i64,
                (_, limit) => first + (len - first) / limit as i64 + last as i64,
            };
            (first, last, step)
        }
        Find::Count { step } => {
            let keys = args.cursor(first).take_keys(1, step.into()).ok()?;
            (keys.start as i64, keys.end as i64 - 1, step)
        }
        Find::Unknown => return None,
    };
    let is_inside = first >= 1 && first <= last && last < len;
    is_inside.then_some((first as usize, last as usize, step.max(1) as usize))
}

/// How a key is used, where that depends on the options.
fn actual_flags(spec: &CommandSpec, keys: &KeySpec, args: Args<'_>) -> KeyFlags {
    if !keys.flags.contains(KeyFlags::VARIABLE_FLAGS) {
        return keys.flags;
    }
    let has = |word: &str, from: usize| {
        args.iter_from(from).any(|argument| argument.eq_ignore_ascii_case(word.as_bytes()))
    };
    let compares =
        |from| ["IFEQ", "IFNE", "IFDEQ", "IFDNE"].iter().any(|condition| has(condition, from));
    match spec.key_rule {
        KeyRule::ReadWithGet if has("GET", 3) => keys.flags - KeyFlags::VARIABLE_FLAGS,
        KeyRule::ReadWithGet if compares(3) => KeyFlags::RW | KeyFlags::UPDATE,
        KeyRule::ReadWithGet => KeyFlags::OW | KeyFlags::UPDATE,
        KeyRule::Compared if !compares(2) => KeyFlags::RM_DELETE,
        KeyRule::ReadByGets if only_gets(args) => KeyFlags::RO | KeyFlags::ACCESS,
        _ => keys.flags - KeyFlags::VARIABLE_FLAGS,
    }
}

/// The index of BZPOPDUE's timeout: before `UNIT <S | MS>` if present, else last.
pub fn timeout_of_bzpopdue(args: Args<'_>) -> usize {
    let last = args.len() - 1;
    let has_unit = last > 3
        && args.get(last - 1).eq_ignore_ascii_case(b"UNIT")
        && Unit::parse(args.get(last)).is_some();
    if has_unit { last - 2 } else { last }
}

/// Whether BITFIELD only reads. An unknown operation may be anything.
fn only_gets(args: Args<'_>) -> bool {
    let mut rest = args.cursor(2);
    while !rest.is_at_end() {
        let operands = match rest.remaining() {
            3.. if rest.take_word("GET") => 2,
            2.. if rest.take_word("OVERFLOW") => 1,
            _ => return false,
        };
        (0..operands).for_each(|_| drop(rest.take()));
    }
    true
}

/// An option of XREAD and XREADGROUP: the commands and the search for their keys take them in the
/// same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadOption {
    Block,
    Count,
    /// The keys follow, then an equal number of IDs.
    Streams,
    Group,
    NoAck,
    Claim,
    MaxCount,
    MaxSize,
    /// The sorted set whose due members move to a stream.
    Due,
    /// The unit of its scores.
    Unit,
    /// The field that a member becomes.
    Field,
    MaxDeliveries,
    /// The stream for entries that have been delivered too often.
    DeadLetter,
}

/// The arguments of XREAD and XREADGROUP that are keys.
pub struct ReadKeys {
    pub streams: Range<usize>,
    /// Those of DUE and DEADLETTER.
    pub others: Vec<usize>,
}

impl ReadOption {
    /// Takes the option's name. None: no such option exists, or too few arguments follow it.
    pub fn take(arguments: &mut Cursor<'_>) -> Option<ReadOption> {
        let behind = arguments.remaining().saturating_sub(1);
        if behind >= 1 && arguments.take_word("BLOCK") {
            Some(ReadOption::Block)
        } else if behind >= 1 && arguments.take_word("COUNT") {
            Some(ReadOption::Count)
        } else if behind >= 1 && arguments.take_word("STREAMS") {
            Some(ReadOption::Streams)
        } else if behind >= 2 && arguments.take_word("GROUP") {
            Some(ReadOption::Group)
        } else if behind >= 1 && arguments.take_word("CLAIM") {
            Some(ReadOption::Claim)
        } else if behind >= 1 && arguments.take_word("MAXCOUNT") {
            Some(ReadOption::MaxCount)
        } else if behind >= 1 && arguments.take_word("MAXSIZE") {
            Some(ReadOption::MaxSize)
        } else if arguments.take_word("NOACK") {
            Some(ReadOption::NoAck)
        } else if behind >= 1 {
            Self::take_for_jobs(arguments)
        } else {
            None
        }
    }

    /// Takes the name of an option that Redis does not have.
    fn take_for_jobs(arguments: &mut Cursor<'_>) -> Option<ReadOption> {
        match () {
            () if arguments.take_word("DUE") => Some(ReadOption::Due),
            () if arguments.take_word("UNIT") => Some(ReadOption::Unit),
            () if arguments.take_word("FIELD") => Some(ReadOption::Field),
            () if arguments.take_word("MAXDELIVERIES") => Some(ReadOption::MaxDeliveries),
            () if arguments.take_word("DEADLETTER") => Some(ReadOption::DeadLetter),
            () => None,
        }
    }

    /// The number of arguments after the name; for STREAMS all.
    fn operands(self) -> usize {
        match self {
            ReadOption::Block
            | ReadOption::Count
            | ReadOption::Claim
            | ReadOption::MaxCount
            | ReadOption::MaxSize
            | ReadOption::Due
            | ReadOption::Unit
            | ReadOption::Field
            | ReadOption::MaxDeliveries
            | ReadOption::DeadLetter => 1,
            ReadOption::Group => 2,
            ReadOption::Streams | ReadOption::NoAck => 0,
        }
    }

    /// The keys of a request; none if an option before them is unknown, or the number of IDs
    /// differs: the command replies with an error when it runs.
    pub fn keys(args: Args<'_>) -> ReadKeys {
        let (mut arguments, mut others) = (args.cursor(1), Vec::new());
        while let Some(option) = ReadOption::take(&mut arguments) {
            match option {
                ReadOption::Streams => {
                    let (first, left) = (arguments.position(), arguments.remaining());
                    let streams = first..first + if left % 2 == 0 { left / 2 } else { 0 };
                    return ReadKeys { streams, others };
                }
                ReadOption::Due | ReadOption::DeadLetter => others.push(arguments.position()),
                _ => {}
            }
            (0..option.operands()).for_each(|_| drop(arguments.take()));
        }
        ReadKeys { streams: 0..0, others: Vec::new() }
    }
}

/// The arguments of MIGRATE that are keys: argument 3 or, if that is empty, those after the option
/// KEYS.
fn migrated_keys(args: Args<'_>) -> Range<usize> {
    let mut index = 6;
    while index < args.len() {
        let is = |word: &str| args.get(index).eq_ignore_ascii_case(word.as_bytes());
        match () {
            // No key follows, so it is none of the options.
            () if is("KEYS") && index + 1 == args.len() => break,
            () if is("KEYS") && args.get(3).is_empty() => return index + 1..args.len(),
            // The command replies with an error when it runs.
            () if is("KEYS") => return 0..0,
            () if is("AUTH") => index += 2,
            () if is("AUTH2") => index += 3,
            () => index += 1,
        }
    }
    3..4
}

/// The key after SORT's last STORE. Other options are skipped with their values, which may be any
/// word.
fn sort_destination(args: Args<'_>) -> Option<KeyPosition> {
    let mut destination = None;
    let mut index = 2;
    while index < args.len() {
        let word = args.get(index).to_ascii_uppercase();
        index += match word.as_slice() {
            b"LIMIT" => 3,
            b"GET" | b"BY" => 2,
            b"STORE" if index + 1 < args.len() => {
                destination = Some(index + 1);
                2
            }
            _ => 1,
        };
    }
    let flags = KeyFlags::OW | KeyFlags::UPDATE;
    destination.map(|index| KeyPosition { index, flags })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::clock::Clock;
    use crate::collections::hash::KeyHasher;
    use crate::command::TABLE;
    use crate::config::Config;
    use crate::gate::execute::{Gate, Request};
    use crate::keyspace::tests::take_looked_up;
    use crate::keyspace::{DbIndex, Keyspace};
    use crate::resp::reply::{OutputBuffer, Protocol, ReplyWriter};
    use crate::resp::request::Range;
    use crate::state::context::{Caller, Origin};
    use crate::state::spec::{Flags, counted_keys, key, keys, spec};
    use crate::state::table::Command;
    use crate::state::{Core, State};
    use crate::sys::log::Logger;

    /// Makes requests from the syntax in a command's documentation. Names in these requests are
    /// words that are options elsewhere.
    struct Author {
        random: fastrand::Rng,
        /// The length of all lists in this request.
        count: usize,
    }

    const NAMES: [&str; 16] = [
        "streams",
        "STREAMS",
        "store",
        "STOREDIST",
        "keys",
        "GET",
        "BY",
        "count",
        "block",
        "group",
        "noack",
        "LIMIT",
        "unit",
        "1",
        "2",
        "k",
    ];
    const NUMBERS: [&str; 20] = [
        "count",
        "seconds",
        "milliseconds",
        "timeout",
        "offset",
        "start",
        "stop",
        "end",
        "index",
        "min",
        "max",
        "longitude",
        "latitude",
        "radius",
        "width",
        "height",
        "score",
        "increment",
        "decrement",
        "bit",
    ];

    impl Author {
        fn request(&mut self, command: &Command) -> Vec<String> {
            self.count = self.random.usize(1..4);
            let mut words: Vec<String> = command.full_name.split('|').map(str::to_owned).collect();
            let mut syntax = command.spec.syntax.to_owned();
            for mark in ["[", "]", "<", ">", "|"] {
                syntax = syntax.replace(mark, &format!(" {mark} "));
            }
            let mut tokens: Vec<&str> = syntax.split_whitespace().collect();
            if self.random.bool() {
                self.put_an_option_first(&mut tokens);
            }
            self.expand(&tokens, &mut words);
            words
        }

        /// Moves an option to the front: commands accept options in other orders than the
        /// documented one.
        fn put_an_option_first(&mut self, tokens: &mut [&str]) {
            let is_option = |at: &usize| tokens[*at] == "[" && split_outside(tokens).len() == 1;
            let starts: Vec<usize> = (0..tokens.len()).filter(is_option).collect();
            let Some(&start) = self.random.choice(&starts) else { return };
            let end = start + inside(&tokens[start + 1..]).len() + 2;
            tokens[..end].rotate_left(start);
        }

        fn expand(&mut self, tokens: &[&str], words: &mut Vec<String>) {
            let choices: Vec<&[&str]> = split_outside(tokens);
            let tokens = choices[self.random.usize(..choices.len())];
            let mut at = 0;
            while at < tokens.len() {
                let token = tokens[at];
                if token == "[" || token == "<" {
                    let inner = inside(&tokens[at + 1..]);
                    match inner.split_last() {
                        Some((&"...", repeated)) => {
                            (1..self.count).for_each(|_| self.expand(repeated, words));
                        }
                        _ if token == "<" || self.random.bool() => self.expand(inner, words),
                        _ => {}
                    }
                    at += inner.len() + 1;
                } else if token != "..." {
                    words.push(self.word(token));
                }
                at += 1;
            }
        }

        fn word(&mut self, token: &str) -> String {
            match token.trim_matches('"') {
                token if token.chars().any(char::is_uppercase) => token.to_owned(),
                token if token.starts_with("num") => self.count.to_string(),
                "id" => self.random.choice(["0", "1-1", ">", "$"]).expect("some").to_owned(),
                "pattern" => self.random.choice(["nosort", "#"]).expect("some").to_owned(),
                token if NUMBERS.contains(&token) => self.random.u32(..3).to_string(),
                _ => self.random.choice(NAMES).expect("some").to_owned(),
            }
        }
    }

    /// The tokens before the closing bracket.
    fn inside<'t, 's>(tokens: &'t [&'s str]) -> &'t [&'s str] {
        let mut depth = 1;
        let end = tokens.iter().position(|token| {
            depth += match *token {
                "[" | "<" => 1,
                "]" | ">" => -1,
                _ => 0,
            };
            depth == 0
        });
        &tokens[..end.expect("brackets are in pairs")]
    }

    /// The parts between bars outside of brackets.
    fn split_outside<'t, 's>(tokens: &'t [&'s str]) -> Vec<&'t [&'s str]> {
        let mut depth = 0;
        tokens
            .split(|token| {
                depth += match *token {
                    "[" | "<" => 1,
                    "]" | ">" => -1,
                    _ => 0,
                };
                *token == "|" && depth == 0
            })
            .collect()
    }

    /// The specifications decide which keys a user may touch, so every key that a handler looks up
    /// must be in them.
    #[test]
    fn only_keys_of_the_specifications_are_looked_up() {
        // These wait for other clients, end the process, or choose keys themselves.
        let left_out =
            ["migrate", "debug", "save", "bgsave", "bgrewriteaof", "shutdown", "failover"];
        let config = Config::from_text(b"").expect("an empty configuration is good");
        let poll = mio::Poll::new().expect("a poll");
        let mut state = State::new(&TABLE, config, Clock::System, Logger::silent(), poll);
        state.stats.timing.start();
        let keyspace = Keyspace::new(16, KeyHasher::new([1, 2]), state.now);
        let mut core = Core { keyspace, state };
        let mut author = Author { random: fastrand::Rng::with_seed(7), count: 1 };
        let mut succeeded = BTreeSet::new();
        for round in 0..300 * TABLE.commands.len() {
            let command = &TABLE.commands[round % TABLE.commands.len()];
            let name = command.full_name.to_string();
            let outer = name.split('|').next().unwrap_or_default();
            if command.spec.keys.is_empty() || left_out.contains(&outer) {
                continue;
            }
            let words = author.request(command);
            let request = words.join(" ");
            let ranges = Range::of_words(&request);
            let args = Args::new(request.as_bytes(), &ranges);
            let named: BTreeSet<Vec<u8>> = keys_of(command.spec, args)
                .iter()
                .map(|key| args.get(key.index).to_vec())
                .collect();
            if core.keyspace.table().len() > 50 {
                core.keyspace.clear_all(true);
            }
            core.keyspace.select(DbIndex::ZERO);
            let mut output = OutputBuffer::default();
            let reply = ReplyWriter::new(&mut output, Protocol::Resp2);
            take_looked_up();
            let command = TABLE.find(args.get(0)).unwrap_or(&TABLE.unknown);
            let asked = Request::new(command, args, Origin::Client);
            let ran = Gate::new(&mut core, Caller::Load, reply).run_trusted(&asked);
            let looked_up = take_looked_up();
            core.keyspace.delete_found_expired();
            let mut strangers =
                looked_up.difference(&named).map(|key| key.escape_ascii().to_string());
            let stranger = strangers.next();
            assert_eq!(
                stranger, None,
                "{request} looks up a key that its specification does not name"
            );
            if ran.is_ok() && !output.to_vec().starts_with(b"-") {
                succeeded.insert(name);
            }
        }
        // A request that is always refused tests nothing.
        for name in [
            "xread",
            "sort",
            "georadius",
            "geosearchstore",
            "zunionstore",
            "lmpop",
            "zmpop",
            "sintercard",
            "set",
            "bitfield",
        ] {
            assert!(succeeded.contains(name), "no {name} was made up that succeeds: {succeeded:?}");
        }
    }

    #[test]
    fn a_group_may_be_called_streams() {
        let xreadgroup = TABLE.find(b"XREADGROUP").expect("it is there").spec;
        let keys = |request: &str| -> Vec<usize> {
            let ranges = Range::of_words(request);
            let args = Args::new(request.as_bytes(), &ranges);
            keys_of(xreadgroup, args).iter().map(|key| key.index).collect()
        };
        assert_eq!(keys("xreadgroup noack group g streams streams secret >"), [6]);
        assert_eq!(keys("xreadgroup group streams streams streams streams a > 0"), [5, 6]);
        assert_eq!(keys("xreadgroup group g c count streams block 0 streams k 0"), [9]);
        assert_eq!(keys("xreadgroup group g c other streams k 0"), [0; 0]);
        let request = "xreadgroup deadletter claim maxdeliveries 5 group streams due claim 9 due streams \
                       unit ms due block field due streams a b > >";
        assert_eq!(keys(request), [19, 20, 2, 11, 15]);
    }

    const ANY: KeyFlags = KeyFlags::RO;

    /// Places of the keys in a request written with spaces.
    fn places(specs: &'static [KeySpec], request: &str) -> Vec<usize> {
        let spec = spec("X", |_| unreachable!("only described")).keys(specs).flags(Flags::READONLY);
        let ranges = Range::of_words(request);
        let args = Args::new(request.as_bytes(), &ranges);
        keys_of(&spec, args).iter().map(|key| key.index).collect()
    }

    #[test]
    fn ranges_count_from_the_first_key_or_from_the_end() {
        assert_eq!(places(&[const { key(1, ANY) }], "x a b"), [1]);
        assert_eq!(places(&[const { keys(1, -1, 2, ANY) }], "x a 1 b 2"), [1, 3]);
        assert_eq!(places(&[const { keys(1, -2, 1, ANY) }], "x a b 0"), [1, 2]);
        assert_eq!(places(&[const { keys(1, -2, 1, ANY) }], "x a"), [0; 0]);
        assert_eq!(places(&[const { key(3, ANY) }], "x a"), [0; 0]);
    }

    #[test]
    fn counted_keys_must_all_be_there() {
        const KEYS: &[KeySpec] = &[counted_keys(2, ANY)];
        assert_eq!(places(KEYS, "x script 2 a b c"), [3, 4]);
        for bad in ["3", "0", "-1", "x", "9223372036854775807"] {
            assert_eq!(places(KEYS, &format!("x script {bad} a b")), [0; 0], "{bad}");
        }
        assert_eq!(places(KEYS, "x script"), [0; 0]);
    }

    #[test]
    fn keywords_are_found_from_either_end() {
        const HALF: Find = Find::Range { last: -1, step: 1, limit: 2 };
        const ONE: Find = Find::Range { last: 0, step: 1, limit: 0 };
        const FORWARD: &[KeySpec] = &[KeySpec {
            begin: Begin::Keyword { word: "STREAMS", from: 1 },
            find: HALF,
            flags: ANY,
            notes: None,
        }];
        assert_eq!(places(FORWARD, "x COUNT 1 streams a b 0 0"), [4, 5]);
        assert_eq!(places(FORWARD, "x COUNT 1"), [0; 0]);
        assert_eq!(places(FORWARD, "x STREAMS"), [0; 0]);
        const EACH: &[KeySpec] = &[KeySpec {
            begin: Begin::Keyword { word: "STORE", from: 2 },
            find: ONE,
            flags: ANY,
            notes: None,
        }];
        assert_eq!(places(EACH, "x k STORE a STORE b c"), [3, 5]);
        assert_eq!(places(EACH, "x k STORE a STORE"), [3]);
        const BACKWARD: &[KeySpec] = &[KeySpec {
            begin: Begin::Keyword { word: "STORE", from: -2 },
            find: ONE,
            flags: ANY,
            notes: None,
        }];
        assert_eq!(places(BACKWARD, "x a store d"), [3]);
        assert_eq!(places(BACKWARD, "x"), [0; 0]);
    }
}
