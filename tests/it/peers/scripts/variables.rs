//! Run-time errors name the variables that Redis names, or none.

use std::net::SocketAddr;

use fastrand::Rng;

use super::known::without_variable;
use crate::support::{Client, TestServer, number_from, seed};

const VALUES: &[&str] =
    &["nil", "nil", "nil", "{}", "{x={}}", "'text'", "1", "true", "function() end"];
const NAMES: &[&str] = &["a", "b", "c"];
const FIELDS: &[&str] = &["x", "y", "call", "find"];

/// Keys whose text is another one in the source or in the interpreter's error.
const ODD_KEYS: &[&str] = &[
    "'\\120'",
    "'\\x'",
    "[[\nx]]",
    "'x\0y'",
    "'\u{e9}'",
    "'__len'",
    "'__Len'",
    "'it\\'s'",
    "'string'",
    "'aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeffffffffffgggggggggg'",
];
/// Statements after which an operation may fail with a value that stands in no other operation.
const HIDDEN: &[&str] = &[
    "b = setmetatable({}, {__index = 5, __newindex = 'x', __add = 5, __concat = true})",
    "b = setmetatable({}, {__index = true, __call = 5, __unm = 'x', __mul = false})",
    "b = loadstring('local q = 5 return q.x, ...', '@user_script')",
    "c = loadstring('local q return q()', '=user_script')",
];

fn pick<'a>(random: &mut Rng, from: &[&'a str]) -> &'a str {
    from[random.usize(0..from.len())]
}

/// A variable, and perhaps a field of it, a global one too.
fn variable(random: &mut Rng) -> String {
    let name = match random.u8(0..8) {
        0 => pick(random, &["redis", "string", "KEYS", "ARGV", "cjson"]),
        _ => pick(random, NAMES),
    };
    let field = pick(random, FIELDS);
    match random.u8(0..8) {
        0 => format!("{name}.{field}"),
        1 => format!("{name}['{field}']"),
        2 => format!("{name}[{}]", random.u8(0..3)),
        3 if random.bool() => format!("{name}[{}]", pick(random, ODD_KEYS)),
        3 => format!("{name}[{}]", pick(random, NAMES)),
        4 => format!("({name})"),
        _ => name.to_owned(),
    }
}

fn expression(random: &mut Rng, depth: u8) -> String {
    if depth == 0 {
        return match random.u8(0..6) {
            0 => "'5'".to_owned(),
            1 => random.u8(0..9).to_string(),
            _ => variable(random),
        };
    }
    let (first, second) = (expression(random, depth - 1), expression(random, depth - 1));
    let line = if random.u8(0..8) == 0 { "\n" } else { " " };
    match random.u8(0..9) {
        0 => format!("{first} +{line}{second}"),
        1 => format!("{first} ..{line}{second}"),
        2 => format!("#{}", variable(random)),
        3 => format!("{}({first},{line}{second})", variable(random)),
        4 => format!("{}:{}('x')", variable(random), pick(random, FIELDS)),
        5 => format!("-{}", variable(random)),
        6 if random.u8(0..8) == 0 => format!("({}).x", random.u8(0..9)),
        6 => format!("{}.{}", variable(random), pick(random, FIELDS)),
        7 => format!("({first}) *{line}({second})"),
        _ => format!("({first} == {second} or {})", expression(random, depth - 1)),
    }
}

fn statements(random: &mut Rng, depth: u8) -> String {
    let mut made = String::new();
    for _ in 0..random.u8(1..4) {
        let name = pick(random, NAMES);
        let value = match random.bool() {
            true => pick(random, VALUES).to_owned(),
            false => {
                let depth = random.u8(0..3);
                expression(random, depth)
            }
        };
        let end = pick(random, &["\n", " ; ", "\n\n"]);
        made += &match random.u8(0..9) {
            0 => format!("local {name} = {value}"),
            1 => format!("local {name}, {} = {value}", pick(random, NAMES)),
            2 => format!("{}.{} = {value}", variable(random), pick(random, FIELDS)),
            3 if depth > 0 => format!("do {} end", statements(random, depth - 1)),
            4 if depth > 0 => {
                format!("local function {name}(...) {} end {name}()", statements(random, depth - 1))
            }
            5 if depth > 0 => format!("for {name} = 1, 2 do {} end", statements(random, depth - 1)),
            6 if depth > 0 => format!(
                "if {value} then {} else {} end",
                statements(random, depth - 1),
                statements(random, depth - 1)
            ),
            7 => format!("redis.call('set', 'k', {value})"),
            _ => format!("local {name} = {value}"),
        };
        made += end;
    }
    made
}

#[test]
#[ignore = "needs a peer: SCRIPTS_PEER=host:port"]
fn errors_name_the_variables_that_redis_names_or_none() {
    let peer: SocketAddr =
        std::env::var("SCRIPTS_PEER").expect("SCRIPTS_PEER=host:port").parse().expect("an address");
    let server = TestServer::start(&["compatible-with redis-7.0".into()]);
    let (mut ours, mut theirs) = (server.connect(), Client::connect(peer));
    // Other tests use the same peer.
    theirs.call(&["SELECT", "5"]);
    let mut random = Rng::with_seed(seed("SCRIPTS_SEED"));
    let (mut named, mut others, mut faults) = (0, 0, Vec::new());
    for number in 0..number_from("SCRIPTS_CASES", 50_000) / 10 {
        if number % 1000 == 0 {
            ours.call(&["SCRIPT", "FLUSH"]);
            theirs.call(&["SCRIPT", "FLUSH"]);
        }
        let source = format!(
            "local a, b, c = {}, {}, {}\n{}\n{}",
            pick(&mut random, VALUES),
            pick(&mut random, VALUES),
            pick(&mut random, VALUES),
            if random.u8(0..16) == 0 { pick(&mut random, HIDDEN) } else { "" },
            statements(&mut random, 2)
        );
        let request = ["EVAL", &source, "1", "k", "v"];
        let (here, there) = (ours.call(&request).show(), theirs.call(&request).show());
        // Where another operation has failed, Luau looks a method up after its arguments.
        let Some(text) = without_variable(&there) else { continue };
        if here == there {
            named += 1;
        } else if here == text {
            others += 1;
        } else if without_variable(&here) == Some(text) {
            faults.push(format!("{source}\n  ours   {here}\n  theirs {there}"));
        }
    }
    println!("{named} errors have Redis's variables, {others} none in their place");
    assert!(
        faults.is_empty(),
        "{} other variables:\n{}",
        faults.len(),
        faults[..faults.len().min(5)].join("\n")
    );
    assert!(
        named > 4 * others,
        "{named} errors have Redis's variables, {others} none in their place"
    );
}
