//! Scripts that mean harm. Whatever they do, the server answers, and the next script works.
#![allow(clippy::disallowed_methods)] // answer times and the limit of patience are measured in real time

use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::ports::free_port;
use crate::support::{Client, PATIENCE, Reply, TestServer, wait_for};

fn text(reply: &Reply) -> String {
    reply.show()
}

/// Runs a script and then a harmless one, which must find everything in order.
fn run(client: &mut Client, body: &str) -> String {
    let shown = text(&client.call(&["EVAL", body, "0"]));
    let sane = "local t = {1, 2} table.sort(t) return tostring(#KEYS + #t) .. string.rep('x', 2) .. type(redis.call('ping'))";
    assert_eq!(text(&client.call(&["EVAL", sane, "0"])), "\"2xxtable\"", "after {body}");
    shown
}

#[test]
fn globals_libraries_and_metatables_stay_as_they_are() {
    let server = TestServer::start(&[]);
    let mut client = server.connect();
    for body in [
        "_G.redis = nil",
        "redis.call = nil",
        "rawset(redis, 'call', nil)",
        "rawset(_G, 'KEYS', nil)",
        "string.format = nil",
        "table.insert(_G, 1)",
        "table.insert(redis, 1)",
        "table.clear(redis)",
        "table.move({1}, 1, 1, 1, redis)",
        "setmetatable(_G, nil)",
        "setmetatable(redis, {})",
        "setmetatable(string, {__index = function() end})",
        "getmetatable('').__index = function() return 1 end",
        "getmetatable('').__add = function() return 1 end",
        "getmetatable(_G).__index = function() return 1 end",
        "getmetatable(_G).__newindex = rawset",
        "for k in pairs(_G) do _G[k] = nil end",
        "for k, v in pairs(string) do string[k] = nil end",
        "next(redis)[1] = 1",
        "KEYS, ARGV = {}, {}",
        "local _ENV = {} x = 1",
        "function redis.call() end",
    ] {
        let shown = run(&mut client, body);
        assert!(shown.starts_with("(error)"), "{body}: {shown}");
    }
    // What is handed to a script is its own: it may spoil that, for itself.
    run(&mut client, "KEYS[1] = 5 ARGV[1] = 6 setmetatable(KEYS, {__len = error})");
}

#[test]
fn nothing_leads_out_of_the_sandbox() {
    let server = TestServer::start(&[]);
    let mut client = server.connect();
    for name in [
        "io", "require", "package", "dofile", "loadfile", "print", "getfenv", "setfenv",
        "newproxy", "debug", "buffer", "vector", "utf8", "bit32", "_ENV", "script", "shared",
        "typeof", "rawlen", "jit", "ffi",
    ] {
        let shown = run(&mut client, &format!("return {name}"));
        assert!(shown.contains("nonexistent global variable"), "{name}: {shown}");
        let shown = run(&mut client, &format!("return rawget(_G, '{name}') == nil"));
        assert_eq!(shown, "(integer) 1", "{name}");
    }
    for field in ["execute", "exit", "getenv", "remove", "rename", "tmpname", "time", "date"] {
        assert_eq!(
            run(&mut client, &format!("return os.{field} == nil")),
            "(integer) 1",
            "{field}"
        );
    }
    assert_eq!(run(&mut client, "return string.dump == nil"), "(integer) 1");
    // Bytecode is source that makes no sense.
    for body in [
        "return loadstring('\\27Lua\\81\\0\\1\\4\\8\\4\\8\\0')",
        "return loadstring(string.char(9, 3, 1, 2, 3, 4, 5, 6, 7, 8))",
        "local f, e = load(function() return nil end) return f()",
        "local n = 0 return load(function() n = n + 1 if n > 3 then return nil end return '\\27' end)",
    ] {
        let shown = run(&mut client, body);
        assert!(shown.starts_with("(nil)"), "{body}: {shown}");
    }
    // A chunk that is loaded sees the same globals.
    assert!(run(&mut client, "return loadstring('x = 1')()").contains("readonly table"));
}

#[test]
fn library_functions_that_work_in_pieces_do_what_the_interpreters_do() {
    let server = TestServer::start(&[]);
    let mut client = server.connect();
    for (expression, shown) in [
        ("('aB\\0\\255x'):upper()", "\"AB\\x00\\xffX\""),
        ("('aB\\0\\255X'):lower()", "\"ab\\x00\\xffx\""),
        ("('abc'):reverse() .. (''):reverse() .. (12):reverse()", "(error)"),
        ("string.reverse(12)", "\"21\""),
        ("('ab'):rep(3) .. ('x'):rep(0) .. ('x'):rep(-1)", "\"ababab\""),
        ("('a,b,,c'):split()", "1) \"a\"\n2) \"b\"\n3) \"\"\n4) \"c\""),
        ("('abc'):split('')", "1) \"a\"\n2) \"b\"\n3) \"c\""),
        ("(''):split(',')", "1) \"\""),
        ("(''):split('')", "(empty array)"),
        ("('abcbc'):split('bc')", "1) \"a\"\n2) \"\"\n3) \"\""),
        ("('x'):rep(2 ^ 21):find('y')", "(nil)"),
        ("(('x'):rep(2 ^ 21) .. 'yz'):find('yz', 1, true)", "(integer) 2097153"),
        // Over the end of a piece, and long ones.
        ("(('x'):rep(2 ^ 20 - 1) .. 'yz'):find('yz', 1, true)", "(integer) 1048576"),
        ("(('a'):rep(2 ^ 18) .. 'b'):find(('a'):rep(2 ^ 17) .. 'b', 1, true)", "(integer) 131073"),
        ("('abc'):find('', 10, true)", "(integer) 4"),
        ("#('ab'):rep(2 ^ 22):upper():reverse():lower()", "(integer) 8388608"),
        ("('ab'):rep(2 ^ 20 + 1):reverse():sub(1, 4)", "\"baba\""),
        ("('abc'):rep(2 ^ 20):sub(2 ^ 20, 2 ^ 20 + 3)", "\"abca\""),
    ] {
        let answer = run(&mut client, &format!("return {expression}"));
        assert!(
            answer == shown || shown == "(error)" && answer.starts_with(shown),
            "{expression}: {answer}"
        );
    }
    let sorted = "local t = {} for i = 1, 20000 do t[i] = (i * 7919) % 20011 end table.sort(t) \
                  for i = 2, #t do if t[i - 1] > t[i] then return i end end return 'sorted'";
    assert_eq!(run(&mut client, sorted), "\"sorted\"");
    let mixed = "local t = {} for i = 1, 20000 do t[i] = i end t[7] = 'x' table.sort(t)";
    assert!(run(&mut client, mixed).contains("attempt to compare"), "{}", run(&mut client, mixed));
    let descending = "local t = {1, 2, 3} table.sort(t, function(a, b) return a > b end) return t";
    assert_eq!(run(&mut client, descending), "1) (integer) 3\n2) (integer) 2\n3) (integer) 1");
    // What a command returns may be larger than what a script can make.
    client.call(&["SETRANGE", "large", "20000000", "x"]);
    assert_eq!(run(&mut client, "return #redis.call('get', 'large')"), "(integer) 20000001");
    let joined = "return #(redis.call('get', 'large') .. 'x')";
    assert_eq!(run(&mut client, joined), "(integer) 20000002");
}

#[test]
fn info_and_the_version_follow() {
    let server = TestServer::start(&["lua-enable-deprecated-api yes".into()]);
    let mut client = server.connect();
    let library =
        "#!lua name=l\nredis.register_function('v', function() return redis.REDIS_VERSION end)";
    client.call(&["FUNCTION", "LOAD", library]);
    client.call(&["FUNCTION", "LOAD", "#!lua name=m\nlocal v = redis.REDIS_VERSION_NUM redis.register_function('w', function() return v end)"]);
    client.call(&["EVAL", "return 1", "0"]);
    let info = text(&client.call(&["INFO", "memory"]));
    assert!(
        info.contains("number_of_cached_scripts:1") && info.contains("number_of_functions:2"),
        "{info}"
    );
    assert!(info.contains("number_of_libraries:2"), "{info}");
    client.call(&["FUNCTION", "DELETE", "l"]);
    assert!(text(&client.call(&["INFO", "memory"])).contains("number_of_functions:1"));
    for (version, number) in [("7.0.15", 0x07000f), ("8.1.2", 0x080102)] {
        client.call(&["CONFIG", "SET", "redis-version", version]);
        assert_eq!(run(&mut client, "return redis.REDIS_VERSION"), format!("\"{version}\""));
        let answer = format!("(integer) {number}");
        assert_eq!(run(&mut client, "return redis.REDIS_VERSION_NUM"), answer);
        client.call(&["FUNCTION", "LOAD", "REPLACE", "#!lua name=m\nlocal v = redis.REDIS_VERSION_NUM redis.register_function('w', function() return v end)"]);
        assert_eq!(text(&client.call(&["FCALL", "w", "0"])), answer);
    }
    // What is deprecated is there if it is wanted, and leads nowhere.
    assert_eq!(
        run(&mut client, "local f = function() return 1 end setfenv(f, {}) getfenv(f) return f()"),
        "(integer) 1"
    );
    assert!(run(&mut client, "setfenv(1, {})").starts_with("(error)"));
    assert!(run(&mut client, "setfenv(0, {})").starts_with("(error)"));
    assert!(run(&mut client, "setfenv(redis.call, {})").starts_with("(error)"));
    assert!(run(&mut client, "getfenv().redis = 1").starts_with("(error)"));
    assert!(
        run(&mut client, "getmetatable(newproxy(true)).__gc = function() return 1 end")
            .starts_with("(nil)")
    );
}

#[test]
fn depth_and_size_end_in_errors() {
    let server = TestServer::start(&["script-memory-limit 20mb".into()]);
    let mut client = server.connect();
    for body in [
        "local function f() return 1 + f() end return f()",
        "local function f() local ok, e = pcall(f) error(e) end f()",
        "local function f() return coroutine.wrap(f)() end return f()",
        "local t = setmetatable({}, {}) getmetatable(t).__index = function(t, k) return t[k .. 'x'] end return t.a",
        "local t = {} while true do t[#t + 1] = string.rep('x', 100000) .. #t end",
        "local s = 'x' while true do s = s .. s end",
        "return string.rep('x', 1e9)",
        "return string.rep('x', 2 ^ 31 - 1)",
        "return table.create(2 ^ 25, 1)",
        "return table.concat(table.create(1e6, 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx'))",
        "local t = {} for i = 1, 1e9 do t[i] = i end",
        "local t = {} for i = 1, 1e9 do t['k' .. i] = {} end",
        "return unpack({}, 1, 1e8)",
        "return string.format('%99999999s', 'x')",
        "return string.rep('(', 1e5) .. select('#', unpack({}, 1, 2e6))",
        "return loadstring('return ' .. string.rep('(', 1e5) .. string.rep(')', 1e5))()",
        "return loadstring('return ' .. string.rep('{', 1e5) .. string.rep('}', 1e5))()",
        "return ('a'):rep(1e6):find(('a?'):rep(1e4) .. ('a'):rep(1e4))",
        "return string.gsub(('x'):rep(1e6), '.', ('y'):rep(1e4))",
        "local co = coroutine.wrap(function() error({err = 'FROM a coroutine'}) end) co()",
    ] {
        let shown = run(&mut client, body);
        assert!(shown.starts_with("(error)"), "{body}: {}", &shown[..shown.len().min(200)]);
    }
    // What was held is free again: the next one has its whole share.
    assert_eq!(run(&mut client, "return #table.create(1000000, 1)"), "(integer) 1000000");
    let info = text(&client.call(&["INFO", "memory"]));
    assert!(info.contains("used_memory_lua:"));
}

#[test]
fn large_strings_and_tables_are_made_within_the_memory_that_scripts_may_have() {
    let server = TestServer::start(&["script-memory-limit 1gb".into()]);
    let mut client = server.connect();
    for (body, shown) in [
        ("return #string.rep('x', 100e6)", "(integer) 100000000"),
        ("local a = string.rep('ab', 15e6) return #(a .. a)", "(integer) 60000000"),
        (
            "return redis.sha1hex(string.rep('ab', 2e7):upper())",
            "\"07895fc389c1fc2fe38d789f670c4de5bf7eb01e\"",
        ),
        (
            "return #table.concat(table.create(100, string.rep('x', 1e6)), ',')",
            "(integer) 100000099",
        ),
        ("return #table.concat(table.create(2000, string.rep('x', 5e4)))", "(integer) 100000000"),
        ("return #string.gsub(string.rep('x', 3e7), 'x', 'yy')", "(integer) 60000000"),
        (
            "return #string.format('%s%s', string.rep('x', 3e7), string.rep('y', 3e7))",
            "(integer) 60000000",
        ),
        (
            "local t = {} for i = 1, 5e6 do t[i] = i end return {#t, t[4999999]}",
            "1) (integer) 5000000\n2) (integer) 4999999",
        ),
        ("return #table.clone(table.create(2 ^ 22, 1))", "(integer) 4194304"),
        (
            "local t, n = {}, 0 for i = 1, 1e6 do t['k' .. i] = i end return t.k1000000",
            "(integer) 1000000",
        ),
        ("return #cjson.decode(cjson.encode({string.rep('\\n', 2e7)}))[1]", "(integer) 20000000"),
        ("return #cmsgpack.unpack(cmsgpack.pack(string.rep('x', 5e7)))", "(integer) 50000000"),
        (
            "redis.call('set', 'k', string.rep('x', 5e7)) return redis.call('strlen', 'k')",
            "(integer) 50000000",
        ),
    ] {
        assert_eq!(run(&mut client, body), shown, "{body}");
    }
    for body in [
        "return #string.rep('x', 300e6)",
        "local a = string.rep('x', 150e6) return #(a .. a)",
        "return #table.create(2 ^ 24 + 1)",
        "local t = {} for i = 1, 2e6 do t['k' .. i] = i end",
        "return #table.concat(table.create(2000, string.rep('x', 2e5)))",
    ] {
        let shown = run(&mut client, body);
        let is_refused = shown.contains("not enough memory") || shown.contains("too large");
        assert!(is_refused, "{body}: {shown}");
    }
}

#[test]
fn what_is_returned_may_contain_itself() {
    let server = TestServer::start(&[]);
    let mut client = server.connect();
    client.send(&["EVAL", "local t = {} t[1] = t return t", "0"]);
    client.send(&["EVAL", "local m = {} m.map = {} m.map.k = m return m", "0"]);
    client.send(&["ECHO", "still there"]);
    let mut depth = 0;
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"still there\r\n") {
        bytes.extend(client.read_raw());
        depth += 1;
        assert!(depth < 100_000);
    }
    // Once in the array; in the map both in place of a key and in that of its value.
    assert_eq!(bytes.windows(26).filter(|part| part == b"ERR reached lua stack limi").count(), 3);
}

#[test]
fn a_busy_script_is_ended_whatever_it_plays() {
    let server = TestServer::start(&["busy-reply-threshold 10".into()]);
    let (mut runner, mut other) = (server.connect(), server.connect());
    for body in [
        "while true do end",
        "repeat until false",
        "for i = 1, math.huge do end",
        "while true do pcall(function() while true do end end) end",
        "while true do xpcall(function() while true do end end, function() while true do end end) end",
        "while true do redis.call('get', 'x') end",
        "while true do redis.pcall('nosuch') end",
        "while true do pcall(redis.call, 'nosuch') end",
        "while true do local c = coroutine.create(function() pcall(function() while true do end end) end) coroutine.resume(c) end",
        "local function f() pcall(coroutine.wrap(function() f() end)) while true do end end f()",
        "local function f(n) return pcall(f, n + 1) or f(n + 1) end f(1)",
        "while true do string.gsub(string.rep('a', 100000), 'a', 'b') end",
        "while true do string.find(string.rep('a', 10000), string.rep('a*', 10) .. 'b') end",
        "local s, p = string.rep('a', 2 ^ 22), string.rep('a', 2 ^ 21) .. 'b' while true do string.find(s, p, 1, true) end",
        "local s, p = string.rep('a', 2 ^ 24), string.rep('a', 2 ^ 12) .. 'b' while true do string.find(s, p, 1, true) end",
        "while true do pcall(function() local s = 'x' while true do s = s .. s end end) end",
        "while true do pcall(function() local t = {} while true do t[#t + 1] = {} end end) end",
        "local s = string.rep('aB,', 2 ^ 21) while true do s:upper() s:lower() s:reverse() end",
        "local s = string.rep('a,', 2 ^ 20) while true do pcall(string.split, s, ',') end",
        "local t = {} for i = 1, 2 ^ 19 do t[i] = (i * 7919) % 100003 end while true do table.sort(t) t[1] = 5 end",
        "local t = table.create(2 ^ 18, 'xxxxxxxxxxxx') while true do cjson.encode(t) cmsgpack.pack(t) end",
        "local s = '[' .. string.rep('1,', 2 ^ 18) .. '1]' while true do cjson.decode(s) end",
        "local s = string.rep('x=1 ', 2 ^ 13) while true do loadstring(s) end",
        "local s = string.rep('a', 2 ^ 24) while true do redis.sha1hex(s) end",
        "while true do collectgarbage() end",
        "local t = {} for i = 1, 1e4 do t[i] = (i * 7919) % 10007 end while true do table.sort(t, function(a, b) return a > b end) end",
        "local t = setmetatable({}, {__index = function() while true do end end}) while true do pcall(function() return t.x end) end",
        "local t = setmetatable({}, {__tostring = function() while true do end end}) while true do pcall(tostring, t) end",
        "while true do local f = loadstring('while true do end') pcall(f) end",
        "load(function() while true do end end)",
    ] {
        runner.send(&["EVAL", body, "0"]);
        wait_until_busy(&mut other);
        assert_eq!(text(&other.call(&["SCRIPT", "KILL"])), "OK", "{body}");
        let shown = text(&runner.reply().expect("the script's client is answered"));
        assert!(shown.contains("Script killed by user with SCRIPT KILL"), "{body}: {shown}");
        assert_eq!(text(&other.call(&["EVAL", "return 1", "0"])), "(integer) 1", "{body}");
    }
}

/// Waits until the server says that it is busy.
fn wait_until_busy(client: &mut Client) {
    let mut is_busy = || text(&client.call(&["PING"])).starts_with("(error) BUSY");
    wait_for("the server to be busy", || is_busy().then_some(()));
}

/// A script that goes on until somebody sets the wall clock forward... it cannot know: until it has
/// called so often.
const LONG: &str =
    "local n = tonumber(ARGV[1]) while n > 0 do redis.call('get', 'x') n = n - 1 end return 'done'";

#[test]
fn a_script_that_has_written_is_not_ended_and_others_are_told_so() {
    let server = TestServer::start(&["busy-reply-threshold 5".into()]);
    let (mut runner, mut other) = (server.connect(), server.connect());
    let body = format!("redis.call('set', 'w', 1) {LONG}");
    runner.send(&["EVAL", &body, "0", "3000000"]);
    wait_until_busy(&mut other);
    assert!(
        text(&other.call(&["SCRIPT", "KILL"])).starts_with("(error) UNKILLABLE Sorry the script")
    );
    assert!(text(&other.call(&["SHUTDOWN"])).starts_with("(error) BUSY"));
    assert!(text(&other.call(&["EVAL", "return 1", "0"])).starts_with("(error) BUSY"));
    assert_eq!(text(&other.call(&["MULTI"])), "OK");
    assert!(text(&other.call(&["GET", "w"])).starts_with("(error) BUSY"));
    // Clients come and go meanwhile; a pipeline is answered in its order.
    let mut third = server.connect();
    third.send(&["PING"]);
    third.send(&["HELLO", "2"]);
    third.send(&["GET", "x"]);
    assert!(text(&third.reply().expect("a reply")).starts_with("(error) BUSY"));
    assert!(matches!(third.reply().expect("a reply"), Reply::Array(_)));
    assert!(text(&third.reply().expect("a reply")).starts_with("(error) BUSY"));
    drop(third);
    assert_eq!(text(&runner.reply().expect("a reply")), "\"done\"");
    assert!(text(&other.call(&["EXEC"])).starts_with("(error) EXECABORT"));
    assert_eq!(text(&other.call(&["GET", "w"])), "\"1\"");
    assert!(text(&other.call(&["SCRIPT", "KILL"])).starts_with("(error) NOTBUSY"));
}

#[test]
fn what_a_client_sends_behind_a_script_waits_for_it() {
    let server = TestServer::start(&["busy-reply-threshold 5".into()]);
    let (mut runner, mut other) = (server.connect(), server.connect());
    runner.send(&["EVAL", LONG, "0", "1000000"]);
    runner.send(&["INCR", "n"]);
    wait_until_busy(&mut other);
    runner.send(&["INCR", "n"]);
    assert_eq!(text(&runner.reply().expect("a reply")), "\"done\"");
    assert_eq!(text(&runner.reply().expect("a reply")), "(integer) 1");
    assert_eq!(text(&runner.reply().expect("a reply")), "(integer) 2");
}

#[test]
fn a_script_whose_client_has_gone_is_ended_as_any_other() {
    let server = TestServer::start(&["busy-reply-threshold 5".into()]);
    let mut runner = server.connect();
    let mut other = server.connect();
    runner.send(&["EVAL", "while true do end", "0"]);
    wait_until_busy(&mut other);
    drop(runner);
    assert_eq!(text(&other.call(&["SCRIPT", "KILL"])), "OK");
    assert_eq!(text(&other.call(&["EVAL", "return 1", "0"])), "(integer) 1");
    // The same within a transaction.
    let mut runner = server.connect();
    runner.call(&["MULTI"]);
    runner.call(&["EVAL", "while true do end", "0"]);
    runner.call(&["SET", "after", "1"]);
    runner.send(&["EXEC"]);
    wait_until_busy(&mut other);
    assert_eq!(text(&other.call(&["SCRIPT", "KILL"])), "OK");
    let Some(Reply::Array(replies)) = runner.reply() else { panic!("an array") };
    assert!(text(&replies[0]).contains("Script killed") && text(&replies[1]) == "OK");
}

#[test]
fn shutdown_nosave_ends_a_busy_server() {
    let server = TestServer::start(&["busy-reply-threshold 5".into()]);
    let (mut runner, mut other) = (server.connect(), server.connect());
    runner.send(&[
        "EVAL",
        "redis.call('set', 'x', 1) while true do pcall(function() while true do end end) end",
        "0",
    ]);
    wait_until_busy(&mut other);
    other.send(&["SHUTDOWN", "NOSAVE"]);
    assert_eq!(other.reply(), None);
}

/// What a script does before, and then without end. Each line is a function of the interpreter or
/// of a library, or an operation, at its worst: the largest strings and tables that there are.
const WORST: &[(&str, &str)] = &[
    // The language.
    ("local a, b = S('a', 15e6) .. 'a', S('a', 15e6) .. 'b'", "local x = a < b"),
    ("local a, b = S('a', 15e6) .. 'a', S('a', 15e6) .. 'b'", "local x = a == b"),
    ("local s = S('0', 2 ^ 24 - 64)", "local x = s + 0"),
    ("local s = S('0', 2 ^ 23)", "local x = s .. 'x'"),
    ("local t = table.create(1e6, 1)", "local x = #t"),
    ("local t = table.create(1e6, 1) for i = 1, 1e6 do t[i] = nil end", "local x = next(t)"),
    ("", "local t = {} for i = 1, 5e5 do t['k' .. i] = i end"),
    ("", "local t = {} for i = 1e6, 1, -2 do t[i] = i end"),
    // The largest that fit.
    ("local s = S('a', 1e8)", "local x = s .. 'b'"),
    ("local s = S('a', 1e8)", "local x = s:sub(2)"),
    ("local s = S('a', 1e8)", "s:upper()"),
    ("", "S('abc', 8e7)"),
    ("local s = S('x', 1e6)", "table.concat({s, s, s, s}) table.concat(table.create(100, s))"),
    ("local s = S('a', 4e7)", "s:gsub('a', 'aa')"),
    ("", "local t = {} for i = 1, 8e6 do t[i] = i end"),
    ("", "local t = {} for i = 1, 9e5 do t['k' .. i] = i end"),
    ("local t = table.create(7e6, 1)", "table.clone(t)"),
    ("", "table.create(15e6, 1)"),
    ("local t = table.create(8e6, 1)", "table.insert(t, 1, 1) table.remove(t)"),
    ("local t = table.create(8e6, 1)", "cjson.encode(t)"),
    ("local t = table.create(8e6, 1)", "cmsgpack.pack(t)"),
    ("local s = '\"' .. S('\\\\n', 3e7) .. '\"'", "cjson.decode(s)"),
    ("local s = S(' ', 1e8)", "pcall(cjson.decode, s)"),
    ("local s = S('a', 1e8)", "redis.pcall('echo', s)"),
    ("local s, p = S('a', 1e8), S('a', 2e7) .. 'b'", "s:find(p, 1, true)"),
    // Basic functions.
    ("local s = S('0', 2 ^ 24 - 64)", "tonumber(s)"),
    ("local s = S('0', 2 ^ 24 - 64)", "tonumber(s, 16)"),
    ("local s = S('9', 2 ^ 24 - 64)", "tostring(tonumber(s))"),
    ("local t = table.create(2e5, 1)", "select(2, unpack(t))"),
    ("local t = {} for i = 1, 999999, 3 do t[i] = 1 end", "pcall(unpack, t, 1, 999999)"),
    ("local s = S('x=1 ', 2 ^ 14 - 1)", "loadstring(s)"),
    ("local s = 'return {' .. S('{},', 21000) .. '}'", "loadstring(s)"),
    ("local s = S('if a then elseif b then end ', 2300)", "loadstring(s)"),
    (
        "local t = {} for i = 1, 12 do t[i] = table.create(1e6, {}) end",
        "for i = 1, 12 do t[i][1] = {} end collectgarbage()",
    ),
    (
        "local t = {} for i = 1, 10 do t[i] = setmetatable(table.create(1e6, {}), {__mode = 'v'}) end",
        "collectgarbage()",
    ),
    (
        "local t = table.create(1e5, {})",
        "for _, v in ipairs(t) do getmetatable(v) rawequal(v, t) rawget(v, 1) type(v) end",
    ),
    ("local f = function() error(S('x', 2 ^ 20)) end", "pcall(f) xpcall(f, tostring)"),
    // string
    ("local s = S('a', 2 ^ 24 - 64)", "s:byte(1, 2e5)"),
    ("local t = table.create(1000, S('0', 2 ^ 24 - 64))", "string.char(unpack(t))"),
    ("local s = S('a', 2 ^ 24 - 64)", "s:find('.*')"),
    ("local s = S('a', 2 ^ 24 - 64)", "s:find('.*b')"),
    ("local s = S('a', 2 ^ 24 - 64)", "s:find('[b]')"),
    ("local s = S('a', 2 ^ 24 - 64)", "s:find('%bab')"),
    ("local s, p = S('a', 2 ^ 24 - 64), '[' .. S('b', 10000) .. 'a]*'", "s:find(p)"),
    ("local s, p = S('a', 2 ^ 24 - 64), S('a', 2 ^ 22) .. '[b]'", "s:find(p)"),
    ("local s, p = S('a', 2 ^ 24 - 64), S('b?', 2 ^ 22)", "s:match(p)"),
    ("local s, p = S('a', 2 ^ 24 - 64), '%f[' .. S('b', 2 ^ 22) .. ']'", "s:match(p)"),
    ("local s = S('a', 2 ^ 24 - 64)", "s:match('(a*)%1b')"),
    ("local s = S('a', 2 ^ 24 - 64)", "for x in s:gmatch('.*') do end"),
    ("local s = S('a', 2 ^ 24 - 64)", "for x in s:gmatch('b') do end"),
    ("local s = S('a', 2 ^ 24 - 64)", "pcall(string.gsub, s, 'a', 'b')"),
    ("local s = S('a', 2 ^ 24 - 64)", "pcall(string.gsub, s, '.*', '%0')"),
    ("local r = S('%1', 2 ^ 23 - 64)", "pcall(string.gsub, 'x', '(y?)x', r)"),
    ("local r = S('x', 2 ^ 23 - 64)", "pcall(string.gsub, 'xxxx', 'x', r)"),
    ("local s = S('a', 2 ^ 24 - 64)", "pcall(string.format, s)"),
    ("local s = S('\\n', 2 ^ 23 - 64)", "pcall(string.format, '%q', s)"),
    (
        "local f, t = S('%99.99f', 4e4), table.create(4e4, 1e308)",
        "pcall(string.format, f, unpack(t))",
    ),
    ("local f, t = S('%d', 4e5), table.create(4e5, 1)", "pcall(string.format, f, unpack(t))"),
    (
        "local f, t = S('%d', 1000), table.create(1000, S('0', 2 ^ 24 - 64))",
        "pcall(string.format, f, unpack(t))",
    ),
    ("local s = S('aB', 2 ^ 23 - 64)", "s:lower() s:upper() s:reverse() s:len()"),
    ("local s = S('a', 2 ^ 24 - 64)", "local x = s:sub(2)"),
    ("", "S('abc', 2 ^ 22)"),
    ("local s = S('a,', 2 ^ 20 - 64)", "pcall(string.split, s, ',')"),
    // table
    ("local t = {} for i = 1, 1e6 do t[i] = i + 0.5 end", "pcall(table.concat, t)"),
    ("local t = table.create(1e6, '')", "table.concat(t)"),
    ("local t = table.create(1e6, 1)", "table.foreach(t, redis.debug)"),
    ("local t = table.create(1e6, 1)", "table.foreachi(t, redis.debug)"),
    ("local t = table.create(1e6, 1)", "table.insert(t, 1, 1) table.remove(t)"),
    ("local t = table.create(1e6, 1)", "table.remove(t, 1) table.insert(t, 1)"),
    ("", "table.move({}, 1, 2 ^ 28, 2, {})"),
    ("local t = table.create(1e6, 1)", "table.move(t, 1, 999999, 2)"),
    (
        "local a, b = S('a', 15e6) .. 'a', S('a', 15e6) .. 'b' local t = {} for i = 1, 9999 do t[i] = i % 2 == 0 and a or b end",
        "table.sort(t)",
    ),
    ("local t = {} for i = 1, 1e6 do t[i] = (i * 7919) % 1000003 end", "table.sort(t) t[1] = 5"),
    (
        "local t = {} for i = 1, 1e6 do t[i] = (i * 7919) % 1000003 end",
        "pcall(table.sort, t, rawequal)",
    ),
    (
        "local m = {__lt = rawequal} local t = {} for i = 1, 1e5 do t[i] = setmetatable({}, m) end",
        "pcall(table.sort, t)",
    ),
    (
        "local m = {__eq = rawequal} local a, b = setmetatable({}, m), setmetatable({}, m) local t = table.create(1e6, a)",
        "table.find(t, b)",
    ),
    ("local t = table.create(1e6, 1)", "table.clone(t)"),
    ("", "table.clear(table.create(1e6, 1))"),
    ("local t = table.create(1e6, 1)", "table.maxn(t) table.getn(t)"),
    ("local t = table.create(2e5, 1)", "table.pack(unpack(t))"),
    ("", "table.freeze(table.create(1e6, 1))"),
    // math, coroutine, os
    ("local t = table.create(1000, S('0', 2 ^ 24 - 64))", "math.max(unpack(t))"),
    ("local t = table.create(1000, S('0', 2 ^ 24 - 64))", "math.min(unpack(t))"),
    ("local s = S('0', 2 ^ 24 - 64)", "math.floor(s)"),
    (
        "local t = table.create(2e5, 1)",
        "coroutine.wrap(function(...) coroutine.yield(...) end)(unpack(t))",
    ),
    ("", "os.clock() math.random() math.noise(1, 2, 3)"),
    // cjson, cmsgpack, struct, bit
    ("local t = {} for i = 1, 5e5 do t['k' .. i] = i end", "cjson.encode(t)"),
    ("local s = S('\\1', 2 ^ 23)", "pcall(cjson.encode, s)"),
    ("local s = '\"' .. S('a', 2 ^ 23) .. '\"'", "cjson.decode(s)"),
    ("local s = S(' ', 2 ^ 24 - 64)", "pcall(cjson.decode, s)"),
    ("local s = S('1', 2 ^ 24 - 64)", "pcall(cjson.decode, s)"),
    ("local s = S('[', 2 ^ 20)", "pcall(cjson.decode, s)"),
    ("local t = table.create(2e5, 1)", "cmsgpack.pack(unpack(t))"),
    ("local s = S('a', 2 ^ 23)", "cmsgpack.unpack(cmsgpack.pack(s))"),
    ("local s = cmsgpack.pack(table.create(2e5, 1))", "cmsgpack.unpack(s)"),
    ("local s = S('\\1', 2e5)", "pcall(cmsgpack.unpack, s)"),
    ("local s = S(' ', 2 ^ 24 - 64)", "pcall(struct.size, s)"),
    ("local s = S('x', 2 ^ 24 - 64)", "pcall(struct.pack, s)"),
    ("local f, s = S('b', 2 ^ 20), S('x', 2 ^ 20)", "pcall(struct.unpack, f, s)"),
    ("local t = table.create(1000, S('0', 2 ^ 24 - 64))", "pcall(bit.band, unpack(t))"),
    // redis
    ("local s = S('a', 2 ^ 24 - 64)", "redis.sha1hex(s)"),
    ("local t = table.create(100, S('a', 2 ^ 24 - 64))", "redis.log(0, unpack(t))"),
    ("local t = table.create(100, S('a', 2 ^ 24 - 64))", "redis.pcall('echo', unpack(t))"),
    (
        "local t = table.create(100, S('a', 2 ^ 24 - 64))",
        "pcall(redis.acl_check_cmd, 'get', unpack(t))",
    ),
    ("local t = table.create(2e5, 'x')", "redis.pcall('exists', unpack(t))"),
    ("local s = S('a', 2 ^ 22)", "redis.error_reply(s) redis.status_reply(s)"),
    ("redis.call('sadd', 'k', 1)", "redis.pcall('srandmember', 'k', '-9223372036854775807')"),
    ("redis.call('hset', 'h', 1, 1)", "redis.pcall('hrandfield', 'h', '-9223372036854775807')"),
    ("redis.call('zadd', 'z', 1, 1)", "redis.pcall('zrandmember', 'z', '-9223372036854775807')"),
    ("redis.call('sadd', 's', 1)", "redis.pcall('srandmember', 's', -100000)"),
];

/// The memory that scripts may take in the server of the next test, and what it may take beyond:
/// the compiler, a reply being read.
const MEMORY_MB: u64 = 300;
const MORE_MB: u64 = 100;
/// How soon SCRIPT KILL is to be answered, in time that the server has the processor: the machine
/// may be busy itself. The promise is 100 ms. Memory is slower on a busy machine, and a development
/// build takes ten times as long; a call that nothing interrupts takes minutes.
const ANSWER: Duration = Duration::from_millis(if cfg!(debug_assertions) { 2000 } else { 250 });

/// The program in a process of its own.
struct Process(
    Child,
    #[expect(dead_code, reason = "lives as long as the process")] tempfile::TempDir,
);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    fn start() -> (Self, SocketAddr) {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let mut command = Command::new(env!("CARGO_BIN_EXE_latchkey"));
        command.args(["--port", &address.port().to_string(), "--bind", "127.0.0.1", "--save", ""]);
        let folder = tempfile::tempdir().expect("a folder");
        command.args(["--dir", &folder.path().display().to_string()]);
        command.args(["--busy-reply-threshold", "10"]);
        command.args(["--script-memory-limit", &format!("{MEMORY_MB}mb")]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let process = Process(command.spawn().expect("the program starts"), folder);
        let begun = Instant::now();
        while TcpStream::connect(address).is_err() {
            assert!(begun.elapsed() < PATIENCE, "the server never listens");
            std::thread::yield_now();
        }
        (process, address)
    }

    /// How long its main thread, which runs everything, has had the processor.
    fn cpu_time(&self) -> Duration {
        let path = format!("/proc/{}/schedstat", self.0.id());
        let figures = std::fs::read_to_string(path).expect("the process lives");
        let nanoseconds = figures.split(' ').next().and_then(|figure| figure.parse().ok());
        Duration::from_nanos(nanoseconds.expect("a number"))
    }

    /// The most memory it ever had.
    fn peak_mb(&self) -> u64 {
        let path = format!("/proc/{}/status", self.0.id());
        let status = std::fs::read_to_string(path).expect("the process lives");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a line");
        let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().expect("a number");
        kib / 1024
    }
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "reads /proc")]
fn whatever_a_script_calls_it_is_ended_soon_and_holds_no_more_than_it_may() {
    let (mut slowest, mut peak) = (Vec::new(), (0, ""));
    let (mut late, mut large) = (Vec::new(), Vec::new());
    for part in WORST.chunks(10) {
        // A new one now and then: the peak of memory is since the start.
        let (process, address) = Process::start();
        let before = process.peak_mb();
        for (prepared, repeated) in part {
            // What is more than a script may have ends the call, not the script.
            let body = format!(
                "local S = string.rep {prepared} redis.call('publish', 'prepared', '') while true do pcall(function() {repeated} end) end"
            );
            let mut longest = Duration::ZERO;
            for _ in 0..3 {
                let (mut runner, mut other) = (Client::connect(address), Client::connect(address));
                let mut listener = Client::connect(address);
                listener.call(&["SUBSCRIBE", "prepared"]);
                runner.send(&["EVAL", &body, "0"]);
                // What comes before has been done when this is heard.
                listener.reply().expect("a message");
                let begun = Instant::now();
                while !text(&other.call(&["PING"])).starts_with("(error) BUSY") {
                    if begun.elapsed() > PATIENCE {
                        panic!(
                            "never busy: {body}, {:?}",
                            runner.reply().map(|reply| text(&reply))
                        );
                    }
                }
                // Into the middle of an operation, mostly.
                while begun.elapsed() < Duration::from_millis(100) {
                    other.call(&["PING"]);
                }
                let begun = process.cpu_time();
                let killed = text(&other.call(&["SCRIPT", "KILL", "ROLLBACK"]));
                longest = longest.max(process.cpu_time() - begun);
                let shown = text(&runner.reply().expect("the script's client is answered"));
                assert_eq!(killed, "OK", "{body}: {shown}");
                assert!(shown.contains("Script killed by user"), "{body}: {shown}");
                // What was left does not count for the next one.
                other.call(&["EVAL", "collectgarbage()", "0"]);
            }
            slowest.push((longest, *repeated));
            if longest > ANSWER {
                late.push((longest, repeated));
            }
            let mb = process.peak_mb() - before;
            peak = peak.max((mb, *repeated));
            if mb > MEMORY_MB + MORE_MB {
                large.push((mb, repeated));
            }
        }
    }
    slowest.sort_by(|one, other| other.cmp(one));
    slowest.truncate(5);
    println!("The latest answers came after {slowest:?}, the most memory was {peak:?} MB.");
    assert!(late.is_empty() && large.is_empty(), "late: {late:#?} large: {large:#?}");
}

#[test]
fn what_is_returned_is_written_within_the_limits() {
    let server = TestServer::start(&[
        "busy-reply-threshold 10".into(),
        "script-memory-limit 200mb".into(),
        "client-output-buffer-limit normal 8mb 0 0".into(),
    ]);
    let (mut runner, mut other) = (server.connect(), server.connect());
    let twice = "local t = {} t[1] = t t[2] = t return t";
    for policy in ["wait", "kill-readonly"] {
        other.call(&["CONFIG", "SET", "busy-script-policy", policy]);
        other.call(&["CONFIG", "SET", "client-output-buffer-limit", "normal 0 0 0"]);
        runner.send(&["EVAL", twice, "0"]);
        if policy == "wait" {
            wait_until_busy(&mut other);
            assert_eq!(text(&other.call(&["SCRIPT", "KILL"])), "OK");
        }
        let shown = text(&runner.reply().expect("a reply"));
        assert!(shown.starts_with("(error) ERR Script killed by"), "{shown}");
        assert_eq!(text(&runner.call(&["PING"])), "PONG");
    }
    other.call(&["CONFIG", "SET", "busy-reply-threshold", "0"]);
    for body in [
        twice,
        "local t = {map = {}} t.map.a = t t.map.b = t return t",
        "local e = {err = string.rep('x', 1e6)} local t = {} for i = 1, 1e5 do t[i] = e end return t",
        "local e = {err = ''} local t = {} for i = 1, 200 do t = {t, t, e} end return t",
    ] {
        let shown = run(&mut runner, body);
        assert_eq!(shown, "(error) ERR not enough memory", "{body}");
    }
    // A client that would not be sent so much anyway.
    other.call(&["CONFIG", "SET", "client-output-buffer-limit", "normal 8mb 0 0"]);
    runner.send(&["EVAL", twice, "0"]);
    assert_eq!(runner.reply(), None);
    let nested = text(&other.call(&["EVAL", "return {1, {2, {err = 'x'}}}", "0"]));
    assert!(nested.contains("(integer) 2") && nested.contains("(error) x"), "{nested}");
}

#[test]
fn arguments_of_a_command_count_as_memory_of_the_script() {
    let server = TestServer::start(&["script-memory-limit 40mb".into()]);
    let mut client = server.connect();
    let body = "local s = string.rep('x', 1e7) return redis.pcall('DEL', s, s, s, s).err";
    assert_eq!(run(&mut client, body), "\"ERR not enough memory\"");
    let body = "local s = string.rep('x', 1e7) return redis.pcall('DEL', s, s)";
    assert_eq!(run(&mut client, body), "(integer) 0");
}

#[test]
fn a_source_has_a_limit() {
    let server = TestServer::start(&[]);
    let mut client = server.connect();
    let long = format!("return 1 --{}", "x".repeat(1 << 20));
    let library = format!("#!lua name=l\nredis.register_function('f', function() end) --{long}");
    let refused = "(error) ERR The source is larger than script-source-limit";
    for request in [["EVAL", &long, "0"], ["SCRIPT", "LOAD", &long], ["FUNCTION", "LOAD", &library]]
    {
        assert_eq!(text(&client.call(&request)), refused);
    }
    client.call(&["CONFIG", "SET", "script-source-limit", "2mb"]);
    assert_eq!(text(&client.call(&["EVAL", &long, "0"])), "(integer) 1");
    assert_eq!(text(&client.call(&["FUNCTION", "LOAD", &library])), "\"l\"");
    let dump = client.call(&["FUNCTION", "DUMP"]);
    let Reply::Bulk(dump) = dump else { panic!("a bulk string") };
    client.call(&["CONFIG", "SET", "script-source-limit", "1mb"]);
    let restore: [&[u8]; 4] = [b"FUNCTION", b"RESTORE", &dump, b"REPLACE"];
    assert_eq!(text(&client.call(&restore)), refused);
    // What is known already is compiled no more.
    assert_eq!(text(&client.call(&["EVAL", &long, "0"])), "(integer) 1");
    client.call(&["CONFIG", "SET", "script-memory-limit", "10mb"]);
    let large = format!("return 2 --{}", "x".repeat(100 << 10));
    assert_eq!(
        text(&client.call(&["EVAL", &large, "0"])),
        "(error) ERR Compiling the source could take more memory than script-memory-limit"
    );
}

#[test]
fn time_moves_within_a_script_once_it_is_busy_but_nothing_expires() {
    let server = TestServer::start(&["busy-reply-threshold 10".into()]);
    let (mut runner, mut other) = (server.connect(), server.connect());
    let body = "redis.call('SET', 'k', 'v', 'PX', 5) local t = redis.call('TIME')[1] + 3 \
                while tonumber(redis.call('TIME')[1]) < t do end return redis.call('EXISTS', 'k')";
    runner.send(&["EVAL", body, "0"]);
    wait_until_busy(&mut other);
    server.clock.advance_us(3_000_000);
    assert_eq!(text(&runner.reply().expect("the script ends")), "(integer) 1");
    assert_eq!(text(&other.call(&["EXISTS", "k"])), "(integer) 0");
}

#[test]
fn numbers_become_texts_as_in_lua_5_1() {
    let server = TestServer::start(&[]);
    let mut client = server.connect();
    for (expression, shown) in [
        ("tostring(10 / 3)", "3.3333333333333"),
        ("1e15 .. ''", "1e+15"),
        ("table.concat({0.1, 1e100, -1e-7, 2 ^ 53}, ' ')", "0.1 1e+100 -1e-07 9.007199254741e+15"),
        ("table.concat(table.create(1001, 0.5)):sub(1, 6)", "0.50.5"),
        ("string.format('%s', 1 / 3)", "0.33333333333333"),
        ("('x'):rep(3, 1) .. 100000000000000", "xxx1e+14"),
        ("tostring(99999999999999)", "99999999999999"),
        ("tostring(-0)", "-0"),
        ("1 / 0 .. ' ' .. -1 / 0", "inf -inf"),
    ] {
        assert_eq!(run(&mut client, &format!("return {expression}")), format!("\"{shown}\""));
    }
}

#[test]
fn functions_that_work_in_pieces_do_what_they_did_whole() {
    let server = TestServer::start(&[]);
    let mut client = server.connect();
    for (body, shown) in [
        // Moves to the right and left within one table, and to another.
        (
            "local t = {} for i = 1, 2e5 do t[i] = i end table.move(t, 1, 2e5, 2) return {t[1], t[2], t[100000], t[200001]}",
            "1) (integer) 1\n2) (integer) 1\n3) (integer) 99999\n4) (integer) 200000",
        ),
        (
            "local t = {} for i = 1, 2e5 do t[i] = i end table.move(t, 2, 2e5, 1) return {t[1], t[199999], t[200000]}",
            "1) (integer) 2\n2) (integer) 200000\n3) (integer) 200000",
        ),
        (
            "local t, u = {}, {} for i = 1, 2e5 do t[i] = i end return {table.move(t, 1, 2e5, 11, u) == u, u[11], u[200010], #t}",
            "1) (integer) 1\n2) (integer) 1\n3) (integer) 200000\n4) (integer) 200000",
        ),
        ("return table.concat(table.create(2000, 'a'), ','):sub(-5)", "\"a,a,a\""),
        (
            "local t = table.create(2000, 1.5) t[2000] = 'x' return #table.concat(t, '', 2)",
            "(integer) 5995",
        ),
        (
            "return select(2, pcall(table.concat, table.create(2000), 'x', 1, 2000))",
            "\"invalid value (nil) at index 1 in table for 'concat'\"",
        ),
        (
            "return string.format(string.rep('%d-%s-%%', 60), unpack(table.create(120, 7))):sub(-8)",
            "\"7-%7-7-%\"",
        ),
        (
            "return #string.format('%5s%q%s', 'x', string.rep('\\n', 5000), string.rep('y', 5000))",
            "(integer) 15007",
        ),
        (
            "return select(2, pcall(string.format, string.rep('%d', 60), 1))",
            "\"bad argument #3 to '?' (value expected)\"",
        ),
        (
            "return {table.find({1, 2, 'x'}, 'x'), table.find({1, 2, 1}, 1, 2), tostring(table.find({}, 1))}",
            "1) (integer) 3\n2) (integer) 3\n3) \"nil\"",
        ),
        (
            "local s = '' table.foreach({5, x = 6}, function(k, v) s = s .. k .. v end) return s",
            "\"15x6\"",
        ),
        (
            "return table.foreachi({5, 6, 7}, function(i, v) if v == 6 then return i end end)",
            "(integer) 2",
        ),
        (
            "return {math.max('3', 2), math.min(string.rep('0', 2000) .. '1', 5), string.char(string.rep('0', 2000) .. '65')}",
            "1) (integer) 3\n2) (integer) 1\n3) \"A\"",
        ),
        ("return {pcall(math.max, string.rep('x', 2000))}", "1) (nil)"),
    ] {
        let answer = run(&mut client, body);
        assert!(
            answer == shown || shown == "1) (nil)" && answer.contains("number expected"),
            "{body}: {answer}"
        );
    }
}

#[test]
fn a_library_that_is_loaded_finds_redis_by_both_its_names() {
    let server = TestServer::start(&[]);
    let mut client = server.connect();
    let library = "#!lua name=l\nserver.log(server.LOG_DEBUG, 'x') server.register_function('f', function() return server.call('ECHO', 'x') end)";
    assert_eq!(text(&client.call(&["FUNCTION", "LOAD", library])), "\"l\"");
    assert_eq!(text(&client.call(&["FCALL", "f", "0"])), "\"x\"");
    let library = "#!lua name=m\nserver.call('PING')";
    assert!(text(&client.call(&["FUNCTION", "LOAD", library])).contains("nonexistent global"));
}
