//! Values with several parts: words, pairs, addresses, letters.

use super::number::{parse_strtoll, with_unit};
use super::{
    KeyspaceEvents, Kind, Origin, OutputBufferLimit, PrimaryAddress, Reason, RewriteLine,
    SavePoint, ShutdownOptions, line, parse_memory, single,
};
use crate::config::quoting::quoted;

/// The words of [`ShutdownOptions`], in the order of CONFIG GET.
const SHUTDOWN_WORDS: [(&str, ShutdownOptions); 7] = [
    ("default", ShutdownOptions::empty()),
    ("save", ShutdownOptions::SAVE),
    ("nosave", ShutdownOptions::NOSAVE),
    ("now", ShutdownOptions::NOW),
    ("force", ShutdownOptions::FORCE),
    ("safe", ShutdownOptions::SAFE),
    ("failover", ShutdownOptions::FAILOVER),
];
/// Errors list only the words of Redis 7.0: the first ones.
const SHUTDOWN_WORDS_LISTED: usize = 5;

/// The words of shutdown options.
pub(in crate::config) struct Shutdown;

impl Kind<ShutdownOptions> for Shutdown {
    const MULTI: bool = true;

    fn parse(
        &self,
        args: &[&[u8]],
        _: &ShutdownOptions,
        _: Origin,
    ) -> Result<ShutdownOptions, Reason> {
        let listed = &SHUTDOWN_WORDS[..SHUTDOWN_WORDS_LISTED];
        let refused = || {
            Reason::NotOneOf(listed.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", "))
        };
        if args.is_empty() {
            return Err(refused());
        }
        let mut options = ShutdownOptions::empty();
        for arg in args {
            let known =
                SHUTDOWN_WORDS.iter().find(|(word, _)| arg.eq_ignore_ascii_case(word.as_bytes()));
            options |= known.ok_or_else(refused)?.1;
        }
        if options.contains(ShutdownOptions::SAVE | ShutdownOptions::NOSAVE) {
            return Err(Reason::SaveAndNosave);
        }
        Ok(options)
    }

    fn format(&self, value: &ShutdownOptions) -> Vec<u8> {
        if value.is_empty() {
            return b"default".to_vec();
        }
        let set = SHUTDOWN_WORDS
            .iter()
            .filter(|(_, option)| !option.is_empty() && value.contains(*option));
        set.map(|(word, _)| *word).collect::<Vec<_>>().join(" ").into_bytes()
    }

    fn describe(&self) -> String {
        "default, or any of save nosave now force; safe and failover have no effect".into()
    }
}

/// Pairs of seconds and changes.
pub(in crate::config) struct Save;

impl Kind<Vec<SavePoint>> for Save {
    const MULTI: bool = true;

    fn parse(
        &self,
        args: &[&[u8]],
        old: &Vec<SavePoint>,
        origin: Origin,
    ) -> Result<Vec<SavePoint>, Reason> {
        if let [b""] = args {
            return Ok(Vec::new());
        }
        let (pairs, rest) = args.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(Reason::SavePoints);
        }
        // Lines of the file add up: the loader clears the default before the first one.
        let mut points = if origin == Origin::File { old.clone() } else { Vec::new() };
        for [seconds, changes] in pairs {
            let number = |arg| parse_strtoll(arg, 10).and_then(|number| u64::try_from(number).ok());
            match (number(seconds), number(changes)) {
                (Some(seconds @ 1..), Some(changes)) => points.push(SavePoint { seconds, changes }),
                _ => return Err(Reason::SavePoints),
            }
        }
        Ok(points)
    }

    fn format(&self, value: &Vec<SavePoint>) -> Vec<u8> {
        let points: Vec<_> =
            value.iter().map(|point| format!("{} {}", point.seconds, point.changes)).collect();
        points.join(" ").into_bytes()
    }

    fn lines(&self, name: &str, value: &Vec<SavePoint>, _: &Vec<SavePoint>) -> Vec<RewriteLine> {
        // Always written: without a line, the next start would use the default.
        if value.is_empty() {
            return vec![line(name, b"\"\"", true)];
        }
        let text = |point: &SavePoint| format!("{} {}", point.seconds, point.changes).into_bytes();
        value.iter().map(|point| line(name, &text(point), true)).collect()
    }

    fn describe(&self) -> String {
        "pairs of seconds and changes; \"\" for none. Several lines add up".into()
    }
}

/// Client classes, each with hard limit, soft limit and soft seconds.
pub(in crate::config) struct OutputBufferLimits;

/// The names of each [`ClientClass`](super::ClientClass): in CONFIG GET, and in CONFIG REWRITE.
const CLIENT_CLASSES: [(&str, &str); 3] =
    [("normal", "normal"), ("slave", "replica"), ("pubsub", "pubsub")];

impl Kind<[OutputBufferLimit; 3]> for OutputBufferLimits {
    const MULTI: bool = true;

    fn parse(
        &self,
        args: &[&[u8]],
        old: &[OutputBufferLimit; 3],
        _: Origin,
    ) -> Result<[OutputBufferLimit; 3], Reason> {
        let (groups, rest) = args.as_chunks::<4>();
        if !rest.is_empty() {
            return Err(Reason::BufferLimitCount);
        }
        let mut limits = *old;
        for [class, hard, soft, seconds] in groups {
            let is_class = |(get, rewrite): &(&str, &str)| {
                class.eq_ignore_ascii_case(get.as_bytes())
                    || class.eq_ignore_ascii_case(rewrite.as_bytes())
            };
            let class = CLIENT_CLASSES.iter().position(is_class).ok_or(Reason::BufferLimitClass)?;
            let seconds =
                parse_strtoll(seconds, 10).and_then(|seconds| u64::try_from(seconds).ok());
            match (parse_memory(hard), parse_memory(soft), seconds) {
                (Some(hard_bytes), Some(soft_bytes), Some(soft_seconds)) => {
                    limits[class] = OutputBufferLimit { hard_bytes, soft_bytes, soft_seconds };
                }
                _ => return Err(Reason::BufferLimitValue),
            }
        }
        Ok(limits)
    }

    fn format(&self, value: &[OutputBufferLimit; 3]) -> Vec<u8> {
        let text = |((class, _), limit): (&(&str, &str), &OutputBufferLimit)| {
            format!("{class} {} {} {}", limit.hard_bytes, limit.soft_bytes, limit.soft_seconds)
        };
        CLIENT_CLASSES.iter().zip(value).map(text).collect::<Vec<_>>().join(" ").into_bytes()
    }

    fn lines(
        &self,
        name: &str,
        value: &[OutputBufferLimit; 3],
        default: &[OutputBufferLimit; 3],
    ) -> Vec<RewriteLine> {
        let mut lines = Vec::new();
        for (index, (_, class)) in CLIENT_CLASSES.iter().enumerate() {
            let limit = value[index];
            let (hard, soft) = (with_unit(limit.hard_bytes), with_unit(limit.soft_bytes));
            let text = format!("{class} {hard} {soft} {}", limit.soft_seconds);
            lines.push(line(name, text.as_bytes(), limit != default[index]));
        }
        lines
    }

    fn describe(&self) -> String {
        "class (normal, replica, pubsub), hard limit, soft limit, soft seconds".into()
    }
}

/// OOM scores of a primary, a replica and child processes.
pub(in crate::config) struct OomScores;

impl Kind<[i32; 3]> for OomScores {
    const MULTI: bool = true;

    fn parse(&self, args: &[&[u8]], _: &[i32; 3], _: Origin) -> Result<[i32; 3], Reason> {
        let args: &[&[u8]; 3] = args.try_into().map_err(|_| Reason::WrongNumberOfArguments)?;
        let mut scores = [0; 3];
        for (score, arg) in scores.iter_mut().zip(args) {
            let number = parse_strtoll(arg, 10).filter(|number| (-2000..=2000).contains(number));
            *score = number.ok_or(Reason::OomScore)? as i32;
        }
        Ok(scores)
    }

    fn format(&self, value: &[i32; 3]) -> Vec<u8> {
        value.map(|score| score.to_string()).join(" ").into_bytes()
    }

    fn describe(&self) -> String {
        "three integers, -2000 to 2000: primary, replica, background child".into()
    }
}

/// Classes of keyspace events, a letter each.
pub(in crate::config) struct EventClasses;

/// The letters in the order of CONFIG GET. `A` means all of `KeyspaceEvents::ALL`.
const EVENT_LETTERS: [(u8, KeyspaceEvents); 21] = [
    (b'g', KeyspaceEvents::GENERIC),
    (b'$', KeyspaceEvents::STRING),
    (b'l', KeyspaceEvents::LIST),
    (b's', KeyspaceEvents::SET),
    (b'h', KeyspaceEvents::HASH),
    (b'z', KeyspaceEvents::ZSET),
    (b'x', KeyspaceEvents::EXPIRED),
    (b'e', KeyspaceEvents::EVICTED),
    (b't', KeyspaceEvents::STREAM),
    (b'd', KeyspaceEvents::MODULE),
    (b'n', KeyspaceEvents::NEW),
    (b'o', KeyspaceEvents::OVERWRITTEN),
    (b'c', KeyspaceEvents::TYPE_CHANGED),
    (b'K', KeyspaceEvents::KEYSPACE),
    (b'E', KeyspaceEvents::KEYEVENT),
    (b'S', KeyspaceEvents::FIELDS_OF_KEY),
    (b'T', KeyspaceEvents::FIELDS_OF_EVENT),
    (b'I', KeyspaceEvents::EVENTS_OF_FIELD),
    (b'V', KeyspaceEvents::FIELDS_OF_KEY_AND_EVENT),
    (b'm', KeyspaceEvents::KEY_MISS),
    (b'L', KeyspaceEvents::LOCK),
];

impl Kind<KeyspaceEvents> for EventClasses {
    fn parse(
        &self,
        args: &[&[u8]],
        _: &KeyspaceEvents,
        _: Origin,
    ) -> Result<KeyspaceEvents, Reason> {
        let mut events = KeyspaceEvents::empty();
        for letter in single(args)? {
            if *letter == b'A' {
                events |= KeyspaceEvents::ALL;
                continue;
            }
            let known = EVENT_LETTERS.iter().find(|(known, _)| known == letter);
            events |= known.ok_or(Reason::EventClass)?.1;
        }
        Ok(events)
    }

    fn format(&self, value: &KeyspaceEvents) -> Vec<u8> {
        let all = value.contains(KeyspaceEvents::ALL);
        let mut text = if all { b"A".to_vec() } else { Vec::new() };
        for (letter, class) in EVENT_LETTERS {
            // Redis omits `n` if there is an `A`, although `A` does not include it.
            let implied = all && (KeyspaceEvents::ALL | KeyspaceEvents::NEW).contains(class);
            if value.contains(class) && !implied {
                text.push(letter);
            }
        }
        text
    }

    fn lines(
        &self,
        name: &str,
        value: &KeyspaceEvents,
        default: &KeyspaceEvents,
    ) -> Vec<RewriteLine> {
        vec![line(name, &quoted(&self.format(value)), value != default)]
    }

    fn describe(&self) -> String {
        "any of the letters KESTIVg$lshzxetdmnocLA; \"\" for none".into()
    }
}

/// Addresses to listen on.
pub(in crate::config) struct Addresses;

const BIND_ADDRESSES_MAX: usize = 16;

impl Kind<Vec<Vec<u8>>> for Addresses {
    const MULTI: bool = true;

    fn parse(&self, args: &[&[u8]], _: &Vec<Vec<u8>>, _: Origin) -> Result<Vec<Vec<u8>>, Reason> {
        if args.len() > BIND_ADDRESSES_MAX {
            return Err(Reason::BindCount);
        }
        if let [b""] = args {
            return Ok(Vec::new());
        }
        Ok(args.iter().map(|arg| arg.to_vec()).collect())
    }

    fn format(&self, value: &Vec<Vec<u8>>) -> Vec<u8> {
        value.join(&b' ')
    }

    fn lines(&self, name: &str, value: &Vec<Vec<u8>>, default: &Vec<Vec<u8>>) -> Vec<RewriteLine> {
        if value == default {
            return Vec::new();
        }
        let text = if value.is_empty() { b"\"\"".to_vec() } else { self.format(value) };
        vec![line(name, &text, true)]
    }

    fn describe(&self) -> String {
        "up to 16 addresses; * is all IPv4, ::* all IPv6; - before an address: no error if it is unavailable".into()
    }

    fn example(&self, name: &str, default: &Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        vec![line(name, &self.format(default), false).text]
    }
}

/// Words, such as names or patterns.
pub(in crate::config) struct Words;

const WORDS_MAX: usize = 100;

impl Kind<Vec<Vec<u8>>> for Words {
    const MULTI: bool = true;

    fn parse(&self, args: &[&[u8]], _: &Vec<Vec<u8>>, _: Origin) -> Result<Vec<Vec<u8>>, Reason> {
        // CONFIG SET passes all words in one argument.
        let words = args.iter().flat_map(|arg| arg.split(u8::is_ascii_whitespace));
        let words: Vec<Vec<u8>> =
            words.filter(|word| !word.is_empty()).map(<[u8]>::to_vec).collect();
        match words.len() {
            0..=WORDS_MAX => Ok(words),
            _ => Err(Reason::Other(format!("there may be at most {WORDS_MAX}"))),
        }
    }

    fn format(&self, value: &Vec<Vec<u8>>) -> Vec<u8> {
        value.join(&b' ')
    }

    fn lines(&self, name: &str, value: &Vec<Vec<u8>>, _: &Vec<Vec<u8>>) -> Vec<RewriteLine> {
        if value.is_empty() {
            return Vec::new();
        }
        vec![line(name, &quoted(&self.format(value)), true)]
    }

    fn describe(&self) -> String {
        "up to 100 words, separated by spaces; \"\" for none".into()
    }
}

/// Host and port of the primary, or `no one`.
pub(in crate::config) struct Primary;

impl Kind<Option<PrimaryAddress>> for Primary {
    const MULTI: bool = true;

    fn parse(
        &self,
        args: &[&[u8]],
        _: &Option<PrimaryAddress>,
        _: Origin,
    ) -> Result<Option<PrimaryAddress>, Reason> {
        let [host, port] = args else {
            return Err(Reason::WrongNumberOfArguments);
        };
        if host.eq_ignore_ascii_case(b"no") && port.eq_ignore_ascii_case(b"one") {
            return Ok(None);
        }
        let port = parse_strtoll(port, 10).and_then(|port| u16::try_from(port).ok());
        Ok(Some(PrimaryAddress { host: host.to_vec(), port: port.ok_or(Reason::PrimaryPort)? }))
    }

    fn format(&self, value: &Option<PrimaryAddress>) -> Vec<u8> {
        match value {
            Some(primary) => [&primary.host[..], primary.port.to_string().as_bytes()].join(&b' '),
            None => Vec::new(),
        }
    }

    fn lines(
        &self,
        name: &str,
        value: &Option<PrimaryAddress>,
        _: &Option<PrimaryAddress>,
    ) -> Vec<RewriteLine> {
        if value.is_some() { vec![line(name, &self.format(value), true)] } else { Vec::new() }
    }

    fn describe(&self) -> String {
        "host and port, or no one".into()
    }

    fn example(&self, name: &str, _: &Option<PrimaryAddress>) -> Vec<Vec<u8>> {
        vec![line(name, b"no one", false).text]
    }
}

/// Percentages, with fractions.
pub(in crate::config) struct Percentiles;

impl Kind<Vec<f64>> for Percentiles {
    const MULTI: bool = true;

    fn parse(&self, args: &[&[u8]], _: &Vec<f64>, _: Origin) -> Result<Vec<f64>, Reason> {
        if let [b""] = args {
            return Ok(Vec::new());
        }
        let mut percentiles = Vec::new();
        for arg in args {
            let number = str::from_utf8(arg).ok().and_then(|arg| arg.parse::<f64>().ok());
            let number = number.filter(|number| !number.is_nan()).ok_or(Reason::Percentile)?;
            if !(0.0..=100.0).contains(&number) {
                return Err(Reason::PercentileRange);
            }
            percentiles.push(number);
        }
        Ok(percentiles)
    }

    fn format(&self, value: &Vec<f64>) -> Vec<u8> {
        let text = |number: &f64| {
            format!("{number:.6}").trim_end_matches('0').trim_end_matches('.').to_owned()
        };
        value.iter().map(text).collect::<Vec<_>>().join(" ").into_bytes()
    }

    fn lines(&self, name: &str, value: &Vec<f64>, _: &Vec<f64>) -> Vec<RewriteLine> {
        let text = if value.is_empty() { b"\"\"".to_vec() } else { self.format(value) };
        vec![line(name, &text, true)]
    }

    fn describe(&self) -> String {
        "numbers, 0 to 100; \"\" for none".into()
    }
}
