//! Scripts that mean harm. Whatever they do, the server answers, and the next script works.

use crate::support::{Client, Reply, TestServer, wait_for};

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
    assert!(
        run(&mut client, mixed).contains("user_script:1: attempt to compare"),
        "{}",
        run(&mut client, mixed)
    );
    let descending = "local t = {1, 2, 3} table.sort(t, function(a, b) return a > b end) return t";
    assert_eq!(run(&mut client, descending), "1) (integer) 3\n2) (integer) 2\n3) (integer) 1");
    // What a command returns may be larger than what a script can make.
    client.call(&["SETRANGE", "large", "20000000", "x"]);
    assert_eq!(run(&mut client, "return #redis.call('get', 'large')"), "(integer) 20000001");
    assert!(
        run(&mut client, "return #(redis.call('get', 'large') .. 'x')")
            .contains("not enough memory")
    );
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
        "return string.rep('x', 2 ^ 53)",
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

/// A script that goes on until somebody sets the wall clock forward... it cannot know: until it has called so often.
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
