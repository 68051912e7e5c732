//! The table of cases. A new one is a line here.

use crate::load::{self, Random, Requests};
use crate::resp::encode_request;

/// The arguments of a request. An argument that is one of [`KEY`], [`V3`], [`V32`], [`V200`], [`FAR`] is replaced, each
/// time it stands there; all others are sent as they are.
pub type Template = &'static [&'static str];

/// A key of 16 bytes. Which one, [`Keys`] says.
pub const KEY: &str = "{key}";
/// Values of 3, 32 and 200 bytes. They are not numbers, which some servers would store in another way.
pub const V3: &str = "{value of 3 bytes}";
pub const V32: &str = "{value of 32 bytes}";
pub const V200: &str = "{value of 200 bytes}";
/// A random number of seconds between a day and eleven days.
pub const FAR: &str = "{seconds}";

/// What lies in the server before a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setup {
    /// It does not matter.
    Any,
    /// No keys at all.
    Empty,
    /// This request was made once with each key, and nothing else.
    Each(Template),
}

/// In which order a case goes through the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// Each request names random ones.
    Random,
    /// Random order, but none twice.
    Once,
}

/// One line of the table of results (and one for each pipeline depth).
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub name: &'static str,
    pub setup: Setup,
    /// Whether the requests leave the keyspace as `setup` made it, so that the next case may use it.
    pub keeps_setup: bool,
    pub keys: Keys,
    pub request: Template,
}

const STRINGS_3: Setup = Setup::Each(&["SET", KEY, V3]);
const STRINGS_32: Setup = Setup::Each(&["SET", KEY, V32]);
/// Numbers above 9999: below, Redis shares one object between all keys.
const COUNTERS: Setup = Setup::Each(&["SET", KEY, "1000000"]);

/// CPU per operation. Cases with the same setup stand together, because making it takes longer than most cases.
#[rustfmt::skip]
pub const CASES: &[Case] = &[
    Case { name: "PING", setup: Setup::Any, keeps_setup: true, keys: Keys::Random, request: &["PING"] },
    Case { name: "SET", setup: STRINGS_3, keeps_setup: true, keys: Keys::Random, request: &["SET", KEY, V3] },
    Case { name: "GET", setup: STRINGS_3, keeps_setup: true, keys: Keys::Random, request: &["GET", KEY] },
    Case { name: "MSET (10)", setup: STRINGS_3, keeps_setup: true, keys: Keys::Random,
           request: &["MSET", KEY, V3, KEY, V3, KEY, V3, KEY, V3, KEY, V3, KEY, V3, KEY, V3, KEY, V3, KEY, V3, KEY, V3] },
    Case { name: "SET NX EX (held)", setup: STRINGS_3, keeps_setup: true, keys: Keys::Random, request: &["SET", KEY, V3, "NX", "EX", "3600"] },
    Case { name: "EXPIRE", setup: STRINGS_3, keeps_setup: false, keys: Keys::Random, request: &["EXPIRE", KEY, FAR] },
    Case { name: "DEL", setup: STRINGS_3, keeps_setup: false, keys: Keys::Once, request: &["DEL", KEY] },
    Case { name: "SET NX EX (free)", setup: Setup::Empty, keeps_setup: false, keys: Keys::Once, request: &["SET", KEY, V3, "NX", "EX", "3600"] },
    Case { name: "SET 32 bytes", setup: STRINGS_32, keeps_setup: true, keys: Keys::Random, request: &["SET", KEY, V32] },
    Case { name: "GET 32 bytes", setup: STRINGS_32, keeps_setup: true, keys: Keys::Random, request: &["GET", KEY] },
    Case { name: "INCR", setup: COUNTERS, keeps_setup: true, keys: Keys::Random, request: &["INCR", KEY] },
];

/// Bytes per key: each request is made once with each of the keys.
pub const MEMORY_CASES: &[(&str, Template)] = &[
    ("3-byte value", &["SET", KEY, V3]),
    ("32-byte value", &["SET", KEY, V32]),
    ("32-byte value, EX", &["SET", KEY, V32, "EX", FAR]),
    ("200-byte value", &["SET", KEY, V200]),
];

/// Encodes `count` requests after `template`, over keys 0 to `key_count` - 1. With [`Keys::Once`], `count` is cut to the
/// number of keys.
pub fn encode(
    template: &[&str],
    keys: Keys,
    key_count: u32,
    count: u64,
    pipeline: u64,
) -> Requests {
    const DAY: u64 = 86_400;
    let long_value = [b'v'; 200];
    let mut random = Random(0x6c61_7463_686b_6579);
    let order = match keys {
        Keys::Random => Vec::new(),
        Keys::Once => load::shuffled(key_count, &mut random),
    };
    let mut in_order = order.iter();
    let count = if keys == Keys::Once {
        count.min(u64::from(key_count))
    } else {
        count
    };
    let mut made: Vec<String> = Vec::new();
    Requests::build(count, pipeline, |out| {
        made.clear();
        made.extend(template.iter().map(|&argument| match argument {
            KEY => match in_order.next() {
                Some(&number) => load::key(number),
                None => load::key(random.below(u64::from(key_count)) as u32),
            },
            FAR => (DAY + random.below(10 * DAY)).to_string(),
            _ => String::new(),
        }));
        let arguments: Vec<&[u8]> = template
            .iter()
            .zip(&made)
            .map(|(&argument, made)| match argument {
                KEY | FAR => made.as_bytes(),
                V3 => &long_value[..3],
                V32 => &long_value[..32],
                V200 => &long_value,
                literal => literal.as_bytes(),
            })
            .collect();
        encode_request(out, &arguments);
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn case_names_are_unique() {
        let names: HashSet<_> = CASES.iter().map(|case| case.name).collect();
        assert_eq!(names.len(), CASES.len());
    }

    #[test]
    fn a_template_becomes_a_request_with_keys_of_16_bytes() {
        let requests = encode(&["SET", KEY, V3], Keys::Once, 1, 5, 16);
        assert_eq!(requests.count(), 1);
        let expected = b"*3\r\n$3\r\nSET\r\n$16\r\nkey:000000000000\r\n$3\r\nvvv\r\n";
        assert_eq!(requests.bytes(), expected);
    }
}
