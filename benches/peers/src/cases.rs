//! The table of cases. A new one is a line here.

use crate::load::{self, Random, Requests};
use crate::resp::encode_request;

/// The arguments of a request. An argument that is one of [`KEY`], [`AGAIN`], [`OTHER`],
/// [`NUMBER`], [`V3`], [`V32`], [`V200`], [`FAR`] is replaced, each time it stands there; all
/// others are sent as they are. [`NEXT`] ends a request and begins another: an operation may be
/// several.
pub type Template = &'static [&'static str];

/// A key of 16 bytes. Which one, [`Keys`] says.
pub const KEY: &str = "{key}";
/// The last such key again.
pub const AGAIN: &str = "{the same key}";
/// Any such key, whatever the order.
pub const OTHER: &str = "{any key}";
/// A random number up to a million.
pub const NUMBER: &str = "{number}";
/// Values of 3, 32 and 200 bytes. They are not numbers, which some servers would store in another
/// way.
pub const V3: &str = "{value of 3 bytes}";
pub const V32: &str = "{value of 32 bytes}";
pub const V200: &str = "{value of 200 bytes}";
/// A random number of seconds between a day and eleven days.
pub const FAR: &str = "{seconds}";

/// Between two requests of one operation.
pub const NEXT: &str = "{next request}";

/// The channel that PUBLISH names and listeners listen to.
pub const CHANNEL: &str = "channel";

/// What lies in the server before a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setup {
    /// It does not matter.
    Any,
    /// No keys at all.
    Empty,
    /// This request was made once with each key, and nothing else. With one collection's name and
    /// KEY for its members: a collection of so many.
    Each(Template),
    /// This request was made once with each of so many keys, and nothing else.
    Some(u32, Template),
    /// So many connections listen to [`CHANNEL`], and get as many messages as there are operations,
    /// each of [`V32`].
    Listeners(u32),
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
    /// Whether the requests leave the keyspace as `setup` made it, so that the next case may use
    /// it.
    pub keeps_setup: bool,
    pub keys: Keys,
    pub request: Template,
}

const STRINGS_3: Setup = Setup::Each(&["SET", KEY, V3]);
const STRINGS_32: Setup = Setup::Each(&["SET", KEY, V32]);
/// Numbers above 9999: below, Redis shares one object between all keys.
const COUNTERS: Setup = Setup::Each(&["SET", KEY, "1000000"]);

const LIST: Setup = Setup::Each(&["RPUSH", "list", KEY]);
const SHORT_LIST: Setup = Setup::Some(600, &["RPUSH", "list", KEY]);
const SET: Setup = Setup::Each(&["SADD", "set", KEY]);
const SMALL_HASHES: Setup = Setup::Some(
    200_000,
    &["HSET", KEY, "name", V3, "owner", OTHER, "count", NUMBER, "lease", NUMBER, "state", V3],
);
const HASH: Setup = Setup::Each(&["HSET", "hash", KEY, V3]);
const SORTED_SET: Setup = Setup::Each(&["ZADD", "zset", NUMBER, KEY]);
const STREAM: Setup = Setup::Each(&["XADD", "stream", "*", "field", KEY]);
const PUBLISH: Template = &["PUBLISH", CHANNEL, V32];
const NUMBERS: Setup = Setup::Some(100, &["RPUSH", "numbers", NUMBER]);

const SCRIPT_GET: &str = "return redis.call('get',KEYS[1])";
const SCRIPT_COMPARE_AND_DELETE: &str =
    "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";
const RELEASE_SCRIPT: Setup = Setup::Some(1, &["SCRIPT", "LOAD", SCRIPT_COMPARE_AND_DELETE]);
/// 955 bytes.
const JSON: &str = "{\"items\":[{\"id\":0,\"name\":\"element 0\",\"tags\":[\"a\",\"b\"],\"price\":0.0},{\"id\":1,\"name\":\"element 1\",\"tags\":[\"a\",\"b\"],\"price\":1.5},{\"id\":2,\"name\":\"element 2\",\"tags\":[\"a\",\"b\"],\"price\":3.0},{\"id\":3,\"name\":\"element 3\",\"tags\":[\"a\",\"b\"],\"price\":4.5},{\"id\":4,\"name\":\"element 4\",\"tags\":[\"a\",\"b\"],\"price\":6.0},{\"id\":5,\"name\":\"element 5\",\"tags\":[\"a\",\"b\"],\"price\":7.5},{\"id\":6,\"name\":\"element 6\",\"tags\":[\"a\",\"b\"],\"price\":9.0},{\"id\":7,\"name\":\"element 7\",\"tags\":[\"a\",\"b\"],\"price\":10.5},{\"id\":8,\"name\":\"element 8\",\"tags\":[\"a\",\"b\"],\"price\":12.0},{\"id\":9,\"name\":\"element 9\",\"tags\":[\"a\",\"b\"],\"price\":13.5},{\"id\":10,\"name\":\"element 10\",\"tags\":[\"a\",\"b\"],\"price\":15.0},{\"id\":11,\"name\":\"element 11\",\"tags\":[\"a\",\"b\"],\"price\":16.5},{\"id\":12,\"name\":\"element 12\",\"tags\":[\"a\",\"b\"],\"price\":18.0},{\"id\":13,\"name\":\"element 13\",\"tags\":[\"a\",\"b\"],\"price\":19.5},{\"id\":14,\"name\":\"element 14\",\"tags\":[\"a\",\"b\"],\"price\":21.0},{\"id\":15,\"name\":\"element 15\",\"tags\":[\"a\",\"b\"],\"price\":22.5}],\"total\":16}";

/// CPU per operation. Cases with the same setup stand together, because making it takes longer than
/// most cases.
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
    Case { name: "LPUSH", setup: Setup::Empty, keeps_setup: false, keys: Keys::Random, request: &["LPUSH", "list", V3] },
    Case { name: "RPUSH", setup: Setup::Empty, keeps_setup: false, keys: Keys::Random, request: &["RPUSH", "list", KEY] },
    Case { name: "LPOP", setup: LIST, keeps_setup: false, keys: Keys::Once, request: &["LPOP", "list"] },
    Case { name: "RPOP", setup: LIST, keeps_setup: false, keys: Keys::Once, request: &["RPOP", "list"] },
    Case { name: "LRANGE_100", setup: SHORT_LIST, keeps_setup: true, keys: Keys::Random, request: &["LRANGE", "list", "0", "99"] },
    Case { name: "LRANGE_300", setup: SHORT_LIST, keeps_setup: true, keys: Keys::Random, request: &["LRANGE", "list", "0", "299"] },
    Case { name: "LRANGE_600", setup: SHORT_LIST, keeps_setup: true, keys: Keys::Random, request: &["LRANGE", "list", "0", "599"] },
    Case { name: "SADD (new)", setup: Setup::Empty, keeps_setup: false, keys: Keys::Once, request: &["SADD", "set", KEY] },
    Case { name: "SADD (held)", setup: SET, keeps_setup: true, keys: Keys::Random, request: &["SADD", "set", KEY] },
    Case { name: "SISMEMBER", setup: SET, keeps_setup: true, keys: Keys::Random, request: &["SISMEMBER", "set", KEY] },
    Case { name: "SPOP", setup: SET, keeps_setup: false, keys: Keys::Once, request: &["SPOP", "set"] },
    Case { name: "HSET (small hashes)", setup: SMALL_HASHES, keeps_setup: true, keys: Keys::Random, request: &["HSET", KEY, "count", NUMBER] },
    Case { name: "HGET (small hashes)", setup: SMALL_HASHES, keeps_setup: true, keys: Keys::Random, request: &["HGET", KEY, "count"] },
    Case { name: "HGETALL (small hashes)", setup: SMALL_HASHES, keeps_setup: true, keys: Keys::Random, request: &["HGETALL", KEY] },
    Case { name: "HSET (large hash)", setup: HASH, keeps_setup: true, keys: Keys::Random, request: &["HSET", "hash", KEY, V3] },
    Case { name: "HGET (large hash)", setup: HASH, keeps_setup: true, keys: Keys::Random, request: &["HGET", "hash", KEY] },
    Case { name: "ZADD (new)", setup: Setup::Empty, keeps_setup: false, keys: Keys::Once, request: &["ZADD", "zset", NUMBER, KEY] },
    Case { name: "ZRANGE", setup: SORTED_SET, keeps_setup: true, keys: Keys::Random, request: &["ZRANGE", "zset", NUMBER, "+inf", "BYSCORE", "LIMIT", "0", "10"] },
    Case { name: "ZRANGEBYSCORE", setup: SORTED_SET, keeps_setup: true, keys: Keys::Random, request: &["ZRANGEBYSCORE", "zset", NUMBER, "+inf", "WITHSCORES", "LIMIT", "0", "10"] },
    Case { name: "ZRANK", setup: SORTED_SET, keeps_setup: true, keys: Keys::Random, request: &["ZRANK", "zset", KEY] },
    Case { name: "ZSCORE", setup: SORTED_SET, keeps_setup: true, keys: Keys::Random, request: &["ZSCORE", "zset", KEY] },
    Case { name: "ZADD (moved)", setup: SORTED_SET, keeps_setup: true, keys: Keys::Random, request: &["ZADD", "zset", NUMBER, KEY] },
    Case { name: "ZPOPMIN", setup: SORTED_SET, keeps_setup: false, keys: Keys::Once, request: &["ZPOPMIN", "zset"] },
    Case { name: "XADD", setup: Setup::Empty, keeps_setup: false, keys: Keys::Random, request: &["XADD", "stream", "*", "field", KEY] },
    Case { name: "XREAD", setup: STREAM, keeps_setup: true, keys: Keys::Random, request: &["XREAD", "COUNT", "10", "STREAMS", "stream", "0"] },
    Case { name: "XRANGE", setup: STREAM, keeps_setup: true, keys: Keys::Random, request: &["XRANGE", "stream", "-", "+", "COUNT", "10"] },
    Case { name: "SORT", setup: NUMBERS, keeps_setup: true, keys: Keys::Random, request: &["SORT", "numbers", "LIMIT", "0", "10"] },
    Case { name: "EVAL (GET)", setup: STRINGS_3, keeps_setup: true, keys: Keys::Random, request: &["EVAL", SCRIPT_GET, "1", KEY] },
    Case { name: "EVAL (compare and delete)", setup: STRINGS_3, keeps_setup: true, keys: Keys::Random, request: &["EVAL", SCRIPT_COMPARE_AND_DELETE, "1", KEY, "other"] },
    Case { name: "EVAL (10 elements)", setup: Setup::Any, keeps_setup: true, keys: Keys::Random, request: &["EVAL", "return {1,2,3,4,5,6,7,8,9,10}", "0"] },
    Case { name: "EVAL (100 calls)", setup: STRINGS_3, keeps_setup: true, keys: Keys::Random, request: &["EVAL", "for i=1,100 do redis.call('get',KEYS[1]) end return 1", "1", KEY] },
    Case { name: "EVAL (cjson of 1 KB)", setup: Setup::Any, keeps_setup: true, keys: Keys::Random, request: &["EVAL", "local t=cjson.decode(ARGV[1]) return #cjson.encode(t)", "0", JSON] },
    Case { name: "EVALSHA (GET)", setup: Setup::Some(1, &["SCRIPT", "LOAD", SCRIPT_GET]), keeps_setup: true, keys: Keys::Random, request: &["EVALSHA", "fd758d1589d044dd850a6f05d52f2eefd27f033f", "1", KEY] },
    Case { name: "EVALSHA (compare and delete)", setup: RELEASE_SCRIPT, keeps_setup: true, keys: Keys::Random, request: &["EVALSHA", "b998f9dfb154cdbea8cda65ad5177aadf0e945a2", "1", KEY, "other"] },
    Case { name: "LOCK.ACQUIRE, LOCK.RELEASE", setup: RELEASE_SCRIPT, keeps_setup: false, keys: Keys::Random,
           request: &["LOCK.ACQUIRE", KEY, V32, "PX", "30000", NEXT, "LOCK.RELEASE", AGAIN, V32] },
    Case { name: "SET NX PX, DELIFEQ", setup: RELEASE_SCRIPT, keeps_setup: false, keys: Keys::Random,
           request: &["SET", KEY, V32, "NX", "PX", "30000", NEXT, "DELIFEQ", AGAIN, V32] },
    Case { name: "SET NX PX, EVALSHA (compare and delete)", setup: RELEASE_SCRIPT, keeps_setup: false, keys: Keys::Random,
           request: &["SET", KEY, V32, "NX", "PX", "30000", NEXT, "EVALSHA", "b998f9dfb154cdbea8cda65ad5177aadf0e945a2", "1", AGAIN, V32] },
    Case { name: "MULTI, 5 SET, EXEC", setup: STRINGS_3, keeps_setup: true, keys: Keys::Random,
           request: &["MULTI", NEXT, "SET", KEY, V3, NEXT, "SET", KEY, V3, NEXT, "SET", KEY, V3, NEXT, "SET", KEY, V3, NEXT, "SET", KEY, V3, NEXT, "EXEC"] },
    Case { name: "PUBLISH (nobody listens)", setup: Setup::Listeners(0), keeps_setup: true, keys: Keys::Random, request: PUBLISH },
    Case { name: "PUBLISH (1 listens)", setup: Setup::Listeners(1), keeps_setup: true, keys: Keys::Random, request: PUBLISH },
    Case { name: "PUBLISH (100 listen)", setup: Setup::Listeners(100), keeps_setup: true, keys: Keys::Random, request: PUBLISH },
];

/// Bytes per key: each request is made once with each of the keys.
pub const MEMORY_CASES: &[(&str, Template)] = &[
    ("3-byte value", &["SET", KEY, V3]),
    ("32-byte value", &["SET", KEY, V32]),
    ("32-byte value, EX", &["SET", KEY, V32, "EX", FAR]),
    ("200-byte value", &["SET", KEY, V200]),
];

/// Bytes per element of collections: how many, and the request that is made once with each of so
/// many keys.
pub const COLLECTION_CASES: &[(&str, u32, Template)] = &[
    (
        "hash of 5 fields",
        200_000,
        &["HSET", KEY, "name", V3, "owner", OTHER, "count", NUMBER, "lease", NUMBER, "state", V3],
    ),
    ("field of a hash", 1_000_000, &["HSET", "hash", KEY, OTHER]),
    ("member of a set", 1_000_000, &["SADD", "set", KEY]),
    ("member of a sorted set", 1_000_000, &["ZADD", "zset", NUMBER, KEY]),
    ("element of a list", 1_000_000, &["RPUSH", "list", KEY]),
    ("entry of a stream", 1_000_000, &["XADD", "stream", "*", "field", KEY]),
];

const LONG_VALUE: [u8; 200] = [b'v'; 200];

/// Encodes `count` operations after `template`, over keys 0 to `key_count` - 1. With
/// [`Keys::Once`], `count` is cut to the number of keys.
pub fn encode(
    template: &[&str],
    keys: Keys,
    key_count: u32,
    count: u64,
    pipeline: u64,
) -> Requests {
    const DAY: u64 = 86_400;
    let long_value = LONG_VALUE;
    let mut random = Random(0x6c61_7463_686b_6579);
    let order = match keys {
        Keys::Random => Vec::new(),
        Keys::Once => load::shuffled(key_count, &mut random),
    };
    let mut in_order = order.iter();
    let count = if keys == Keys::Once { count.min(u64::from(key_count)) } else { count };
    let mut made: Vec<String> = Vec::new();
    let mut last = String::new();
    let replies = template.split(|&argument| argument == NEXT).count() as u64;
    Requests::build(count, pipeline, replies, |out| {
        made.clear();
        made.extend(template.iter().map(|&argument| match argument {
            KEY => {
                let any = || random.below(u64::from(key_count)) as u32;
                last = load::key(in_order.next().copied().unwrap_or_else(any));
                last.clone()
            }
            AGAIN => last.clone(),
            OTHER => load::key(random.below(u64::from(key_count)) as u32),
            FAR => (DAY + random.below(10 * DAY)).to_string(),
            NUMBER => random.below(1_000_000).to_string(),
            _ => String::new(),
        }));
        let arguments: Vec<&[u8]> = template
            .iter()
            .zip(&made)
            .map(|(&argument, made)| match argument {
                KEY | AGAIN | OTHER | FAR | NUMBER => made.as_bytes(),
                V3 => &long_value[..3],
                V32 => &long_value[..32],
                V200 => &long_value,
                literal => literal.as_bytes(),
            })
            .collect();
        for request in arguments.split(|&argument| argument == NEXT.as_bytes()) {
            encode_request(out, request);
        }
    })
}

/// What a listener gets of each PUBLISH to [`CHANNEL`].
pub fn message() -> Vec<u8> {
    let mut message = Vec::new();
    let value = &LONG_VALUE[..32];
    encode_request(&mut message, &[b"message", CHANNEL.as_bytes(), value]);
    message
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

    #[test]
    fn an_operation_may_name_a_key_twice() {
        let requests = encode(&["GET", KEY, NEXT, "DEL", AGAIN], Keys::Random, 1000, 1, 16);
        let text = String::from_utf8_lossy(requests.bytes());
        let keys: Vec<&str> = text.split("\r\n").filter(|word| word.starts_with("key:")).collect();
        assert_eq!((keys.len(), keys[0]), (2, keys[1]));
    }

    #[test]
    fn an_operation_may_be_several_requests() {
        let requests = encode(&["MULTI", NEXT, "EXEC"], Keys::Random, 1, 2, 16);
        assert_eq!(requests.count(), 2);
        let once = "*1\r\n$5\r\nMULTI\r\n*1\r\n$4\r\nEXEC\r\n";
        assert_eq!(requests.bytes(), once.repeat(2).as_bytes());
    }
}
