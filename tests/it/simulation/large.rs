//! Values of megabytes, collections with long elements, long collections, and small changes of
//! them.

/// Keys of each type.
const KEYS: u32 = 3;
/// Bytes of a long element.
const LONG: std::ops::Range<usize> = 100_000..1_500_000;
/// So many elements of that length are kept.
const LONG_MAX: usize = 4;

/// Requests that belong together.
pub fn requests(random: &mut fastrand::Rng) -> Vec<Vec<String>> {
    let name = format!("large:{}", random.u32(..KEYS));
    let [list, hash, zset, set, stream, group] =
        ["l", "h", "z", "s", "x", "g"].map(|kind| format!("{name}:{kind}"));
    let long = random.usize(LONG);
    let text = |letter: &str, len: usize| letter.repeat(len);
    let number = random.usize(..LONG_MAX).to_string();
    let element = format!("{number}{}", text("e", long));
    let lines: Vec<Vec<&str>> = match random.u32(..20) {
        0 => return vec![vec!["SET".into(), name, text("v", random.usize(1..3) << 20)]],
        1 => vec![vec!["APPEND", &name, "x"]],
        2 => vec![vec!["SETRANGE", &name, "70000", "y"]],
        3 => {
            let script = "redis.call('DEL', KEYS[1]) for i = 1, ARGV[1] do redis.call('RPUSH', KEYS[1], i .. ':' .. \
                          string.rep('e', 20)) end";
            return vec![script_of(script, &[&list], &[random.usize(100..8000)])];
        }
        4 => {
            let script = "redis.call('DEL', KEYS[1]) for i = 1, ARGV[1] do redis.call('HSET', KEYS[1], i, i) end";
            return vec![script_of(script, &[&hash], &[random.usize(100..8000)])];
        }
        5 => {
            // A unit that is longer than any request.
            let mut unit = vec![vec!["MULTI".to_owned()]];
            for part in 0..random.usize(1..30) {
                unit.push(vec!["SET".into(), format!("{name}:{}", part % 4), text("w", 60_000)]);
            }
            unit.push(vec!["EXEC".into()]);
            return unit;
        }
        6 => {
            // Many strings beside each other, none of them in pieces.
            let script = "for i = 1, ARGV[1] do redis.call('SET', KEYS[1] .. ':' .. i, string.rep('w', 50000)) end";
            return vec![script_of(script, &[&name], &[random.usize(20..80)])];
        }
        7 => {
            // A payload, restored.
            let script = "local dump = redis.call('DUMP', KEYS[1]) if dump then redis.call('RESTORE', KEYS[2], 0, dump, \
                          'REPLACE') end";
            return vec![script_of(
                script,
                &[&name, &format!("large:{}", random.u32(..KEYS))],
                &[],
            )];
        }
        8 => vec![vec!["RPUSH", &list, &element], vec!["LTRIM", &list, "-4", "-1"]],
        9 => vec![vec!["LSET", &list, "0", "x"], vec!["RPUSH", &list, "x"]],
        10 => vec![vec!["HSET", &hash, &number, &element]],
        11 => vec![vec!["HSET", &hash, "small", "1"], vec!["HDEL", &hash, "small"]],
        12 => vec![vec!["DEL", &zset], vec!["ZADD", &zset, "1", &element, "2", "b"]],
        13 => vec![vec!["ZADD", &zset, "3", "a"], vec!["ZREM", &zset, "b"]],
        14 => vec![vec!["DEL", &set], vec!["SADD", &set, &element], vec!["SADD", &set, "a"]],
        15 => vec![vec!["XADD", &stream, "MAXLEN", "3", "*", "f", &element]],
        16 => vec![vec!["XADD", &stream, "*", "f", "v"]],
        17 => {
            // Entries that nobody has acknowledged: now and then so many that a copy of the whole
            // group is more than a step may copy.
            let count = if random.u32(..6) == 0 { 60_000 } else { random.usize(100..3_000) };
            let script = "redis.call('DEL', KEYS[1]) redis.call('XGROUP', 'CREATE', KEYS[1], 'g', '$', 'MKSTREAM') \
                          for i = 1, ARGV[1] do redis.call('XADD', KEYS[1], i .. '-1', 'f', 'v') end \
                          redis.call('XREADGROUP', 'GROUP', 'g', 'c', 'COUNT', ARGV[1], 'STREAMS', KEYS[1], '>')";
            return vec![script_of(script, &[&group], &[count])];
        }
        18 => {
            let id = format!("{}-1", random.usize(1..5_000));
            let change = match random.u32(..3) {
                0 => vec!["XACK", &group, "g", &id],
                1 => vec!["XCLAIM", &group, "g", "other", "0", &id],
                _ => vec!["XAUTOCLAIM", &group, "g", "c", "0", &id, "COUNT", "10"],
            };
            return vec![change.into_iter().map(str::to_owned).collect()];
        }
        _ => vec![vec!["DEL", &name]],
    };
    let owned = |line: Vec<&str>| line.into_iter().map(str::to_owned).collect();
    lines.into_iter().map(owned).collect()
}

fn script_of(script: &str, keys: &[&str], args: &[usize]) -> Vec<String> {
    let mut words = vec!["EVAL".into(), script.into(), keys.len().to_string()];
    words.extend(keys.iter().map(|key| (*key).to_owned()));
    words.extend(args.iter().map(usize::to_string));
    words
}
