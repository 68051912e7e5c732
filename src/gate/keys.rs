//! Which arguments of a request are keys, by the command's key specifications.
//!
//! Used by `COMMAND GETKEYS` and wherever a request's keys must be known before it runs. The specifications suffice
//! for nearly all commands; where one is incomplete, or the key's use depends on options, this file has the rule.

use std::ops::Range;

use crate::gate::spec::{Begin, CommandSpec, Find, KeyFlags, KeyPosition, KeyRule, KeySpec};
use crate::keyspace::due::Unit;
use crate::resp::args::Args;

/// The keys of a request, in the order of the specifications. Empty if there are none or the arguments are invalid (a
/// count larger than what follows it). `args`: the whole request, for a subcommand with its container.
pub fn keys_of(spec: &CommandSpec, args: Args<'_>) -> Vec<KeyPosition> {
    let mut found = Vec::new();
    for keys in spec.keys.iter().filter(|keys| !keys.flags.contains(KeyFlags::NOT_KEY)) {
        if keys.begin == Begin::Unknown || keys.find == Find::Unknown {
            continue;
        }
        let Some(first) = begin(keys, args) else {
            continue;
        };
        let Some((first, last, step)) = range(keys, first, args) else {
            return Vec::new();
        };
        let flags = actual_flags(spec, keys, args);
        let places = (first..=last).step_by(step).map(|index| KeyPosition { index, flags });
        found.extend(places);
        found
            .extend(repeated_keywords(keys, first, args).map(|index| KeyPosition { index, flags }));
    }
    match spec.key_rule {
        KeyRule::SortDestination => found.extend(sort_destination(args)),
        KeyRule::BeforeTimeout => found.retain(|key| key.index < timeout_of_bzpopdue(args)),
        KeyRule::Migrated => {
            // A password or a key may be the word KEYS, so the options are parsed from the front.
            let Some(flags) = found.first().map(|key| key.flags) else { return found };
            let keys = migrated_keys(args);
            found = keys.map(|index| KeyPosition { index, flags }).collect();
        }
        KeyRule::None | KeyRule::ReadWithGet | KeyRule::ReadByGets => {}
    }
    found
}

/// The argument at which a specification's keys begin; None if its keyword is not there.
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

/// The keys after further occurrences of a keyword, behind the `first`: the command decides which occurrence counts,
/// so the user needs the permission for each.
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
    match spec.key_rule {
        KeyRule::ReadWithGet if !has("GET", 3) => KeyFlags::OW | KeyFlags::UPDATE,
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

/// The arguments of MIGRATE that are keys: argument 3 or, if that is empty, those after the option KEYS.
fn migrated_keys(args: Args<'_>) -> Range<usize> {
    let mut index = 6;
    while index < args.len() {
        let is = |word: &str| args.get(index).eq_ignore_ascii_case(word.as_bytes());
        match () {
            () if is("KEYS") && args.get(3).is_empty() => return index + 1..args.len(),
            // An error when it runs.
            () if is("KEYS") => return 0..0,
            () if is("AUTH") => index += 2,
            () if is("AUTH2") => index += 3,
            () => index += 1,
        }
    }
    3..4
}

/// The key after SORT's last STORE. Other options are skipped with their values, which may be any word.
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
    use super::*;
    use crate::gate::spec::{Flags, counted_keys, key, keys, spec};
    use crate::resp::request::Range;

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
