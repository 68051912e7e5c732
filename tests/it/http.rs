//! HTTP from outside: routes, who may, what abuse comes to, and what probes say in each state.

use std::io::Write;
use std::net::SocketAddr;

use crate::support::http::{Connection, get};
use crate::support::ports::free_port;
use crate::support::{Client, Reply, TestServer, wait_for};

fn start(lines: &[&str]) -> (TestServer, SocketAddr) {
    let own = ["http-bind 127.0.0.1"].iter().chain(lines);
    let lines: Vec<String> = own.map(|line| (*line).to_owned()).collect();
    let server = TestServer::start(&lines);
    let address = server.http_address.expect("HTTP is on");
    (server, address)
}

fn call(server: &TestServer, request: &str) -> Reply {
    server.connect().call(&request.split(' ').collect::<Vec<_>>())
}

#[test]
fn probes_and_metrics_are_answered() {
    let (server, address) = start(&[]);
    call(&server, "SET a 1");
    let mut connection = Connection::open(address);
    for (target, body) in [("/livez", "ok\n"), ("/readyz", "ok\n"), ("/primary", "primary\n")] {
        let answer = connection.ask(target, "");
        assert_eq!((answer.status, &*answer.body), (200, body), "{target}");
        assert_eq!(answer.header("Connection"), "keep-alive");
    }
    assert_eq!(connection.ask("/replica", "").status, 503);
    assert_eq!(connection.ask("/nosuch", "").status, 404);
    let metrics = connection.ask("/metrics", "");
    assert_eq!(metrics.status, 200);
    assert_eq!(metrics.header("Content-Type"), "text/plain; version=0.0.4; charset=utf-8");
    assert!(metrics.body.contains("\nredis_db_keys{db=\"db0\"} 1\n"), "{}", metrics.body);
    assert!(metrics.body.contains("\nredis_up 1\n"));
    let verbose = get(address, "/readyz?verbose&exclude=misconf&exclude=nosuch");
    assert!(verbose.body.starts_with("[+]loading ok\n[+]busy-script ok\n"), "{}", verbose.body);
    assert!(verbose.body.contains("[+]misconf excluded: ok\n"));
    assert!(verbose.body.ends_with("readyz check passed\n"));
}

#[test]
fn a_connection_asks_again_and_again_and_several_at_once() {
    let (_server, address) = start(&[]);
    let mut connection = Connection::open(address);
    let request = "GET /livez HTTP/1.1\r\nHost: a\r\n\r\nHEAD /metrics HTTP/1.1\r\nHost: a\r\n\r\n";
    connection.send(request.repeat(40).as_bytes());
    for _ in 0..40 {
        assert_eq!(connection.answer(false).expect("an answer").body, "ok\n");
        let head = connection.answer(true).expect("an answer");
        assert!(head.header("Content-Length").parse::<usize>().expect("a length") > 1000);
    }
    // In pieces, and with an absolute target.
    for piece in ["GET http://loc", "alhost/live", "z HTTP/1.1\r\nHo", "st: x\r\n\r", "\n"] {
        connection.send(piece.as_bytes());
    }
    assert_eq!(connection.answer(false).expect("an answer").status, 200);
    connection.send(b"GET /livez HTTP/1.0\r\n\r\n");
    let last = connection.answer(false).expect("an answer");
    assert_eq!((last.status, last.header("Connection")), (200, "close"));
    assert_eq!(connection.answer(false), None);
}

#[test]
fn what_is_not_asked_rightly_is_refused_and_the_connection_ends() {
    let (server, address) = start(&[]);
    let large = format!("GET / HTTP/1.1\r\nHost: a\r\nx: {}", "y".repeat(1 << 20));
    for (request, status) in [
        ("POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc", 405),
        ("GET /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc", 413),
        ("GET /metrics HTTP/1.1\r\n\r\n", 400),
        ("*1\r\n$4\r\nPING\r\n", 400),
        ("\x16\x03\x01\x02\x00\x01\x00", 400),
        ("GET / HTTP/3.0\r\n\r\n", 505),
        (&large, 431),
    ] {
        let mut connection = Connection::open(address);
        connection.send(request.as_bytes());
        let answer = connection.answer(false).expect("an answer");
        assert_eq!(
            (answer.status, answer.header("Connection")),
            (status, "close"),
            "{request:.40}"
        );
        assert_eq!(connection.answer(false), None, "{request:.40}");
    }
    assert_eq!(call(&server, "PING"), Reply::Simple(b"PONG".to_vec()));
}

#[test]
fn slow_heads_and_idle_connections_are_closed() {
    let (server, address) = start(&[]);
    let mut slow = Connection::open(address);
    slow.send(b"GET /livez HT");
    let mut silent = Connection::open(address);
    let mut idle = Connection::open(address);
    idle.ask("/livez", "");
    server.advance(4_900_000);
    slow.send(b"TP/1.1\r\nHost:");
    server.advance(200_000);
    assert_eq!(slow.answer(false), None);
    assert_eq!(silent.answer(false), None);
    // The next head has its own five seconds, and may come within thirty.
    server.advance(24_000_000);
    assert_eq!(idle.ask("/livez", "").status, 200);
    server.advance(30_100_000);
    assert_eq!(idle.answer(false), None);
}

#[test]
fn ten_thousand_connections_keep_neither_probes_nor_clients_out() {
    let (server, address) = start(&["maxclients 10"]);
    let mut client = server.connect();
    let mut patient = Connection::open(address);
    patient.ask("/livez", "");
    let mut waiting = Vec::new();
    for number in 0..10_000 {
        let connection = std::net::TcpStream::connect(address).expect("it is accepted, or will be");
        if number % 100 == 0 {
            waiting.push(connection);
            // The one that has waited longest makes room.
            assert_eq!(get(address, "/livez").status, 200);
            assert_eq!(client.call(&["PING"]), Reply::Simple(b"PONG".to_vec()));
        }
    }
    assert_eq!(patient.answer(false), None);
    let metrics = get(address, "/metrics").body;
    assert!(metrics.contains("\nredis_connected_clients 1\n"), "{metrics}");
    assert!(metrics.contains("\nredis_connections_received_total 1\n"), "{metrics}");
    assert!(metrics.contains("\nredis_rejected_connections_total 0\n"), "{metrics}");
    let open = metrics.lines().find_map(|line| line.strip_prefix("latchkey_http_connections "));
    assert!(open.expect("a sample").parse::<usize>().expect("a number") <= 64);
}

#[test]
fn connections_that_take_nothing_or_ask_without_end_keep_no_probe_out() {
    let (_server, address) = start(&[]);
    let pages = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(100);
    let mut greedy: Vec<_> = (0..64).map(|_| std::net::TcpStream::connect(address)).collect();
    for stream in greedy.iter_mut().flatten() {
        stream.set_nonblocking(true).expect("a socket");
        while stream.write(pages.as_bytes()).is_ok() {}
    }
    // All of them have responses under way that nobody reads.
    for _ in 0..10 {
        assert_eq!(get(address, "/livez").status, 200);
    }
    assert!(greedy.iter().flatten().count() == 64);
}

#[test]
fn open_connections_end_with_http_and_not_with_its_port() {
    let (server, address) = start(&[]);
    let mut open = Connection::open(address);
    assert_eq!(open.ask("/livez", "").status, 200);
    let port = free_port();
    call(&server, &format!("CONFIG SET http-port {port}"));
    assert_eq!(open.ask("/livez", "").status, 200);
    assert_eq!(get((address.ip(), port).into(), "/livez").status, 200);
    call(&server, "CONFIG SET http-port 0");
    open.send(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(open.answer(false), None);
}

#[test]
fn a_page_of_another_name_reads_nothing_and_nothing_is_read_by_other_pages() {
    let (server, address) = start(&["http-hosts latchkey.example other"]);
    let asked = |host: &str, target: &str| {
        let mut connection = Connection::open(address);
        connection.send(format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes());
        connection.answer(false).expect("an answer")
    };
    for host in [
        "localhost:9121",
        "127.0.0.1",
        "[::1]:80",
        "10.0.0.1:9121",
        "Latchkey.Example:1",
        "[fe80::1]",
        "127.0.0.1:",
    ] {
        assert_eq!(asked(host, "/api/locks").status, 200, "{host}");
    }
    for host in [
        "evil.example",
        "localhost.evil.example",
        "latchkey",
        "",
        "[::1",
        "127.0.0.1.evil",
        "127.0.0.1:31531.evil.example",
        "127.0.0.1:evil",
        "127.0.0.1:80:80",
        "localhost:x",
        "latchkey.example:1.evil.example",
        "[::1].evil.example",
        "[::1]x:80",
        "[127.0.0.1]",
        "::1",
    ] {
        for target in ["/", "/api/locks", "/api/overview"] {
            let status = asked(host, target).status;
            assert_eq!(status, 421, "{host} {target}");
        }
        assert_eq!(asked(host, "/readyz").status, 200);
        assert_eq!(asked(host, "/metrics").status, 200);
        assert_eq!(asked(host, "/metrics/locks").status, 200);
    }
    let page = asked("localhost", "/");
    assert!(
        page.header("Content-Security-Policy")
            .starts_with("default-src 'none'; script-src 'sha256-")
    );
    assert_eq!(page.header("X-Content-Type-Options"), "nosniff");
    assert_eq!(asked("localhost", "/api/locks").header("Access-Control-Allow-Origin"), "");
    assert_eq!(
        call(&server, "CONFIG GET http-hosts").show(),
        "1) \"http-hosts\"\n2) \"latchkey.example other\""
    );
}

/// `Authorization` of HTTP Basic.
fn basic(text: &str) -> String {
    let encoded = match text {
        "default:secret" => "ZGVmYXVsdDpzZWNyZXQ=",
        ":secret" => "OnNlY3JldA==",
        "default:wrong" => "ZGVmYXVsdDp3cm9uZw==",
        "scraper:s" => "c2NyYXBlcjpz",
        "viewer:v" => "dmlld2VyOnY=",
        "sees:x" => "c2Vlczp4",
        "half:x" => "aGFsZjp4",
        "web:secret" => "d2ViOnNlY3JldA==",
        other => panic!("{other}"),
    };
    format!("Authorization: Basic {encoded}\r\n")
}

#[test]
fn users_see_what_their_rules_permit() {
    let (server, address) = start(&["http-auth yes", "requirepass secret"]);
    let mut admin = server.connect();
    for request in [
        "AUTH secret",
        "ACL SETUSER scraper on >s +info",
        "ACL SETUSER viewer on >v +@all ~mine:*",
        "LOCK.ACQUIRE mine:a me PX 100000",
        "LOCK.ACQUIRE yours:b you PX 100000",
    ] {
        admin.call(&request.split(' ').collect::<Vec<_>>());
    }
    let mut connection = Connection::open(address);
    let mut status = |target: &str, user: &str| {
        let header = if user.is_empty() { String::new() } else { basic(user) };
        connection.ask(target, &header).status
    };
    for target in ["/livez", "/readyz", "/primary"] {
        assert_eq!(status(target, ""), 200);
        assert_eq!(status(target, "default:wrong"), 200);
    }
    for (target, scraper) in
        [("/metrics", 200), ("/metrics/locks", 200), ("/", 403), ("/api/locks", 403)]
    {
        assert_eq!(status(target, ""), 401, "{target}");
        assert_eq!(status(target, "default:wrong"), 401, "{target}");
        assert_eq!(status(target, "default:secret"), 200, "{target}");
        assert_eq!(status(target, ":secret"), 200, "{target}");
        assert_eq!(status(target, "scraper:s"), scraper, "{target}");
    }
    let refused = Connection::open(address).ask("/metrics", "");
    assert!(refused.header("WWW-Authenticate").starts_with("Basic realm="));
    for sort in ["name", "hold", "lease"] {
        let target = format!("/api/locks?sort={sort}");
        let seen = Connection::open(address).ask(&target, &basic("viewer:v")).body;
        assert!(seen.contains("mine:a") && !seen.contains("yours:b"), "{seen}");
        let all = Connection::open(address).ask(&target, &basic("default:secret")).body;
        assert!(all.contains("mine:a") && all.contains("yours:b"), "{all}");
    }
    let groups = |user: &str| Connection::open(address).ask("/metrics/locks", &basic(user)).body;
    assert!(groups("viewer:v").contains("group=\"mine\"") && !groups("viewer:v").contains("yours"));
    assert!(groups("default:secret").contains("group=\"yours\""));
    assert!(!groups("scraper:s").contains("group="), "names of keys are not for INFO alone");
    assert_eq!(status("/api/locks/mine%3Aa", "viewer:v"), 200);
    assert_eq!(status("/api/locks/yours%3Ab", "viewer:v"), 403);
    // A user that is switched off is none.
    admin.call(&["ACL", "SETUSER", "viewer", "off"]);
    assert_eq!(status("/api/locks", "viewer:v"), 401);
}

/// The keys of a list of locks, and what goes on with it.
fn keys(address: SocketAddr, target: &str) -> (Vec<String>, Option<String>) {
    let body = get(address, target).body;
    let parts = body.split("\"key\":\"").skip(1);
    let keys = parts.map(|rest| rest.split('"').next().expect("an end").to_owned()).collect();
    let after = body.split("\"after\":\"").nth(1).and_then(|rest| rest.split('"').next());
    assert_eq!(after.is_some(), body.contains("\"more\":true"), "{body}");
    (keys, after.map(str::to_owned))
}

#[test]
fn locks_are_listed_in_each_order_slice_by_slice() {
    let (server, address) = start(&[]);
    let mut client = server.connect();
    let mut waiting = Vec::new();
    for number in 0..25 {
        let (key, lease) = (format!("k{number:02}"), (1000 - number * 7 % 25 * 10).to_string());
        client.call(&["SELECT", if number % 5 == 0 { "1" } else { "0" }]);
        client.call(&["LOCK.ACQUIRE", &key, "me", "PX", &format!("{lease}000")]);
        server.advance(10_000);
        if [3, 8, 11].contains(&number) {
            for _ in 0..number {
                let mut other = server.connect();
                other.send(&["LOCK.ACQUIRE", &key, "other", "PX", "1000", "BLOCK", "0"]);
                waiting.push(other);
            }
            server.settle();
            server.advance(5_000);
        }
    }
    let all = |sort: &str, limit: usize| {
        let (mut found, mut after) = (Vec::new(), String::new());
        loop {
            let target = format!("/api/locks?sort={sort}&limit={limit}{after}");
            let (some, next) = keys(address, &target);
            assert!(some.len() <= limit);
            found.extend(some);
            match next {
                Some(next) => after = format!("&after={next}"),
                None => return found,
            }
        }
    };
    let by_name = all("name", 100);
    assert_eq!(by_name.len(), 25);
    assert_eq!((&*by_name[0], &*by_name[20]), ("k01", "k00"), "the databases in order");
    let by_hold = all("hold", 100);
    assert_eq!(by_hold, (0..25).map(|number| format!("k{number:02}")).collect::<Vec<_>>());
    let by_lease = all("lease", 100);
    assert_eq!(by_lease.len(), 25);
    assert_eq!(all("wait", 100), ["k03", "k08", "k11"]);
    assert_eq!(all("waiters", 100), ["k11", "k08", "k03"]);
    for limit in [1, 2, 7, 24, 25] {
        assert_eq!(all("name", limit), by_name, "{limit}");
        assert_eq!(all("hold", limit), by_hold, "{limit}");
        assert_eq!(all("lease", limit), by_lease, "{limit}");
        assert_eq!(all("wait", limit), ["k03", "k08", "k11"], "{limit}");
        assert_eq!(all("waiters", limit), ["k11", "k08", "k03"], "{limit}");
    }
    assert_eq!(keys(address, "/api/locks?q=k1&limit=3").0, ["k11", "k12", "k13"]);
    assert_eq!(keys(address, "/api/locks?q=k?4").0, ["k04", "k14", "k24"]);
    assert_eq!(keys(address, "/api/locks?limit=0").0.len(), 1);
    assert_eq!(get(address, "/api/locks?after=x.y.z&limit=nonsense&sort=%ff").status, 200);
    let one = get(address, "/api/locks/k11?db=0").body;
    assert!(one.contains("\"owner\":\"me\"") && one.contains("\"waiters\":11"), "{one}");
    assert!(one.contains("LOCK.BREAK k11 FENCE "), "{one}");
    assert_eq!(get(address, "/api/locks/k11?db=99").status, 404);
    assert!(get(address, "/api/locks/nosuch").body.contains("\"mode\":\"free\""));
    let groups = get(address, "/metrics/locks?group=1&top=3").body;
    assert_eq!(groups.matches("latchkey_group_locks_held{").count(), 3, "{groups}");
    client.call(&["LOCK.BREAK", "k24"]);
    let overview = get(address, "/api/overview").body;
    assert!(overview.contains("\"reason\":\"broken\""), "{overview}");
}

#[test]
fn the_overview_names_the_server_and_what_its_memory_limit_costs() {
    let (server, address) = start(&[]);
    let mut client = server.connect();
    let overview = || get(address, "/api/overview").body;
    let host = std::process::Command::new("uname").arg("-n").output().expect("a name").stdout;
    let host = format!("\"name\":\"{}\"", String::from_utf8_lossy(&host).trim());
    assert!(overview().contains(&host), "{}", overview());
    call(&server, "CONFIG SET instance-name orders-1");
    assert!(overview().contains("\"name\":\"orders-1\""), "{}", overview());
    assert!(overview().contains("\"limit\":null"), "{}", overview());
    call(&server, "RPUSH list a");
    call(&server, "CONFIG SET maxmemory 1 maxmemory-policy allkeys-lru");
    assert!(client.call(&["SET", "k", "v"]).show().starts_with("(error) OOM"));
    let text = overview();
    assert!(text.contains("1 keys were evicted (1 list) and 1 requests refused"), "{text}");
    assert!(text.contains("within maxmemory (allkeys-lru)"), "{text}");
    // Later it is no news.
    call(&server, "CONFIG SET maxmemory 0");
    server.advance(300_000_000);
    assert!(overview().contains("\"limit\":null"), "{}", overview());
}

#[test]
fn values_that_nobody_uses_as_locks_are_not_shown() {
    let (server, address) = start(&["http-auth yes"]);
    call(&server, "ACL SETUSER viewer on >v +@all -@lock ~*");
    call(&server, "SET session:42 secret");
    call(&server, "HSET h field 1");
    call(&server, "LOCK.ACQUIRE jobs me PX 60000");
    let ask = |target: &str, user: &str| Connection::open(address).ask(target, user);
    for target in ["/api/locks/session%3A42", "/api/locks/h"] {
        assert_eq!(ask(target, "").status, 404, "{target}");
    }
    assert_eq!(ask("/api/locks/jobs", "").status, 200);
    assert_eq!(ask("/api/locks/jobs", &basic("viewer:v")).status, 403);
    assert!(!ask("/api/locks", &basic("viewer:v")).body.contains("jobs"));
    // Times of streams may be any number.
    call(&server, "XADD st 9223372036854775808-1 a b");
    call(&server, "CONFIG SET page-keys st");
    assert_eq!(ask("/api/queues", "").status, 200);
    assert_eq!(ask("/metrics", "").status, 200);
}

#[test]
fn circles_are_those_of_one_database_and_of_keys_that_may_be_read() {
    let (server, address) = start(&["http-auth yes"]);
    call(&server, "ACL SETUSER sees on >x +@all ~*");
    call(&server, "ACL SETUSER half on >x +@all ~a*");
    let mut waiting = Vec::new();
    // In databases 0 and 1 two owners wait for each other, and over both of them nobody does.
    for (database, owners) in [("0", ["left", "right"]), ("1", ["up", "down"])] {
        let mut clients = [(); 2].map(|()| server.connect());
        for (client, (key, owner)) in clients.iter_mut().zip(["a", "b"].into_iter().zip(owners)) {
            client.call(&["SELECT", database]);
            client.call(&["LOCK.ACQUIRE", key, owner, "PX", "60000"]);
        }
        for (client, (key, owner)) in clients.iter_mut().zip(["b", "a"].into_iter().zip(owners)) {
            client.send(&["LOCK.ACQUIRE", key, owner, "PX", "60000", "BLOCK", "0"]);
        }
        waiting.push(clients);
    }
    server.settle();
    let circles = |user: &str| {
        let body = Connection::open(address).ask("/api/waiting", &basic(user)).body;
        body.split_once("\"circles\":").expect("a list").1.to_owned()
    };
    assert_eq!(circles("sees:x"), "[[\"left\",\"right\"],[\"down\",\"up\"]]}");
    assert_eq!(circles("half:x"), "[]}");
}

#[test]
fn a_scrape_counts_circles_among_the_thousand_longest_waits() {
    for (others, counted) in [(998, 1), (999, 0)] {
        let (server, address) = start(&[]);
        let mut client = server.connect();
        client.call(&["HELLO", "3"]);
        let mut lock = |key: &str, owner: &str, more: &[&str]| {
            let request = [&["LOCK.ACQUIRE", key, owner, "PX", "60000"][..], more].concat();
            assert!(matches!(client.call(&request), Reply::Array(_)));
        };
        for (key, owner) in [("busy", "holder"), ("a", "left"), ("b", "right")] {
            lock(key, owner, &[]);
        }
        for number in 0..others {
            lock("busy", &number.to_string(), &["ASYNC", "0"]);
        }
        server.advance(1_000_000);
        lock("b", "left", &["ASYNC", "0"]);
        lock("a", "right", &["ASYNC", "0"]);
        let metrics = get(address, "/metrics").body;
        let line = format!("\nlatchkey_lock_wait_cycles {counted}\n");
        assert!(metrics.contains(&line), "with {others} other waits");
        // Whoever asks for circles is told of all.
        let Reply::Array(circles) = call(&server, "LOCK.CYCLES") else { panic!("no array") };
        assert_eq!(circles.len(), 1);
    }
}

#[test]
fn fields_that_the_exporter_shows_are_metrics() {
    let (server, address) = start(&["maxmemory 100mb"]);
    let mut client = server.connect();
    client.call(&["WATCH", "a", "b"]);
    let metrics = get(address, "/metrics").body;
    for line in [
        "redis_cluster_enabled 0",
        "redis_cluster_connections 0",
        "redis_latest_fork_seconds 0",
        "redis_io_threads_active 0",
        "redis_io_threaded_reads_processed 0",
        "redis_io_threaded_writes_processed 0",
        "redis_dump_payload_sanitizations 0",
        "redis_config_maxmemory 104857600",
        "redis_total_watched_keys 2",
    ] {
        assert!(metrics.contains(&format!("\n{line}\n")), "{line} in {metrics}");
    }
}

#[test]
fn the_largest_keys_of_each_type_are_found_by_a_walk_over_all_databases() {
    let (server, address) = start(&[]);
    let mut client = server.connect();
    client.call(&["DEBUG", "POPULATE", "5000"]);
    for number in 0..30 {
        client.call(&[
            "SETRANGE",
            &format!("large:{number}"),
            &format!("{}000", 900 + number),
            "x",
        ]);
    }
    client.call(&["SELECT", "7"]);
    client.call(&["SADD", "numbers", "1", "2"]);
    let keys = || get(address, "/api/keys").body;
    assert!(keys().starts_with("{\"age_ms\":0,\"seen\":0,\"keys\":5031,"), "{}", keys());
    wait_for("a round over all of them", || {
        server.step(100_000);
        keys().contains("\"seen\":5031,").then_some(())
    });
    let told = keys();
    assert!(told.contains("{\"type\":\"string\",\"keys\":5030,\"bytes\":"), "{told}");
    let largest = told.split_once("\"largest\":").expect("a list").1;
    let place = |name: &str| largest.find(&format!("\"key\":\"{name}\""));
    assert!(place("large:29") < place("large:20") && place("large:20").is_some(), "{largest}");
    assert_eq!(place("large:19"), None, "ten of a type: {largest}");
    assert!(largest.contains("\"key\":\"numbers\",\"id\":\"numbers\",\"db\":7,\"type\":\"set\""));
    // A key that is gone is not shown, and one that has changed with its present size.
    call(&server, "DEL large:29");
    call(&server, "SET large:28 small");
    let told = keys();
    assert!(!told.contains("large:29") && told.find("large:28") > told.find("large:20"), "{told}");
    call(&server, "ACL SETUSER web on >secret +info +client|list +slowlog|get +type ~small:*");
    call(&server, "CONFIG SET http-auth yes");
    let told = Connection::open(address).ask("/api/keys", &basic("web:secret")).body;
    assert!(told.contains("\"keys\":5030,") && told.ends_with("\"largest\":[]}"), "{told}");
}

#[test]
fn figures_of_the_last_ten_minutes_are_kept_each_second() {
    let (server, address) = start(&[]);
    let mut holder = server.connect();
    holder.call(&words("LOCK.ACQUIRE l one PX 60000"));
    let mut waiter = server.connect();
    waiter.send(&words("LOCK.ACQUIRE l two PX 60000 BLOCK 0"));
    server.settle();
    for _ in 0..35 {
        holder.call(&["PING"]);
        server.step(100_000);
    }
    let told = get(address, "/api/history").body;
    let column = |name: &str| {
        let rest = told.split_once(&format!("\"{name}\":[")).expect(name).1;
        let values = rest.split_once(']').expect("its end").0.split(',');
        values.map(str::to_owned).collect::<Vec<String>>()
    };
    let ends = column("at_ms");
    assert!((2..=4).contains(&ends.len()), "{told}");
    assert!(
        column("commands").iter().all(|it| (1..=30).contains(&it.parse().unwrap_or(0))),
        "{told}"
    );
    assert!(column("memory").iter().all(|it| it.parse().unwrap_or(0) > 100_000), "{told}");
    assert_eq!((&*column("waits")[1], &*column("lag_seconds")[1]), ("1", "null"), "{told}");
    let told = get(address, &format!("/api/history?after={}", ends[ends.len() - 2])).body;
    assert!(told.starts_with(&format!("{{\"at_ms\":[{}],", ends[ends.len() - 1])), "{told}");
}

#[test]
fn semaphores_are_told_with_permits_and_waits_as_far_as_rules_permit() {
    let (server, address) = start(&[]);
    let mut clients: Vec<Client> = (0..14).map(|_| server.connect()).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        let owner = format!("owner-{number:02}");
        client.send(&words(&format!("SEM.ACQUIRE pool {owner} LIMIT 12 PX 60000 BLOCK 0")));
        server.settle();
    }
    call(&server, "SEM.ACQUIRE other me LIMIT 1 PX 1000");
    call(&server, "ZADD plain 1800000000000 member");
    let told = get(address, "/api/semaphores").body;
    assert!(
        told.starts_with("{\"items\":[{\"key\":\"pool\",\"id\":\"pool\",\"db\":0,\"held\":12,"),
        "{told}"
    );
    assert!(
        told.contains("{\"owner\":\"owner-09\",") && !told.contains("{\"owner\":\"owner-10\","),
        "{told}"
    );
    assert!(
        told.contains(
            "\"waiters\":2,\"queue\":[{\"owner\":\"owner-12\",\"waited_ms\":0,\"client\":{"
        ),
        "{told}"
    );
    assert!(told.contains("\"key\":\"other\"") && !told.contains("plain"), "{told}");
    assert!(get(address, "/api/semaphores?limit=1").body.ends_with("],\"more\":true}"));
    // The permit has ended.
    server.advance(1_500_000);
    server.step(100_000);
    let told = get(address, "/api/semaphores").body;
    assert!(!told.contains("\"key\":\"other\"") && told.contains("\"left_ms\":58"), "{told}");
    call(&server, "ACL SETUSER web on >secret +info +client|list +slowlog|get +sem.info ~mine:*");
    call(&server, "CONFIG SET http-auth yes");
    let told = Connection::open(address).ask("/api/semaphores", &basic("web:secret")).body;
    assert_eq!(told, "{\"items\":[],\"more\":false}");
}

#[test]
fn hot_keys_are_told_to_who_may_ask_for_them() {
    let (server, address) = start(&[]);
    let hot = || get(address, "/api/hot-keys").body;
    let port = server.address.port();
    let start = "HOTKEYS START METRICS 2 CPU NET DURATION 60";
    let none = format!(
        "{{\"active\":false,\"begun_ms\":null,\"duration_ms\":null,\"cpu_ns\":null,\"net_bytes\":null,\"start\":\"redis-cli -p {port} {start}\"}}"
    );
    assert_eq!(hot(), none);
    call(&server, start);
    let mut client = server.connect();
    for _ in 0..10 {
        client.call(&["SET", "hot", "value"]);
    }
    client.call(&["GET", "cold"]);
    let told = hot();
    assert!(told.starts_with("{\"active\":true,\"begun_ms\":"), "{told}");
    assert!(told.contains("\"items\":[{\"key\":\"hot\",\"sum\":"), "{told}");
    server.advance(61_000_000);
    assert!(hot().starts_with("{\"active\":false,"), "{}", hot());
    assert!(hot().contains("\"duration_ms\":60000,"), "{}", hot());
    call(&server, "ACL SETUSER web on >secret +info +client|list +slowlog|get");
    call(&server, "CONFIG SET http-auth yes");
    let mut connection = Connection::open(address);
    assert_eq!(connection.ask("/api/hot-keys", &basic("web:secret")).status, 403);
    call(&server, "ACL SETUSER web +hotkeys");
    assert_eq!(connection.ask("/api/hot-keys", &basic("web:secret")).status, 200);
}

#[test]
fn named_queues_are_told_with_their_keys() {
    let (server, address) = start(&["page-keys mail jobs events"]);
    let mut client = server.connect();
    for request in [
        "RPUSH mail a b c",
        "ZADD jobs 1699999990000 x 1700000100000 y",
        "XADD events 1699999995000-1 f v",
        "XGROUP CREATE events workers 0",
        "XREADGROUP GROUP workers me STREAMS events >",
        "RPUSH secret x",
    ] {
        client.call(&request.split(' ').collect::<Vec<_>>());
    }
    let mut consumer = server.connect();
    consumer.send(&["BLPOP", "other", "0"]);
    server.advance(3_000_000);
    let metrics = get(address, "/metrics").body;
    for line in [
        "latchkey_queue_length{key=\"mail\"} 3",
        "latchkey_queue_length{key=\"jobs\"} 2",
        "latchkey_queue_oldest_seconds{key=\"jobs\"} 13",
        "latchkey_queue_oldest_seconds{key=\"events\"} 8",
        "latchkey_stream_oldest_pending_seconds{key=\"events\",group=\"workers\"} 3",
        "latchkey_blocked_clients{command=\"blpop\"} 1",
    ] {
        assert!(metrics.contains(&format!("\n{line}\n")), "{line} in {metrics}");
    }
    assert!(!metrics.contains("secret") && !metrics.contains("key=\"other\""), "{metrics}");
    let queues = get(address, "/api/queues").body;
    assert!(queues.contains("\"key\":\"other\"") && queues.contains("\"consumers\":1"), "{queues}");
    // Patterns are looked for in the periodic work.
    client.call(&["CONFIG", "SET", "page-keys", "mail jobs events found:*"]);
    client.call(&["DEBUG", "POPULATE", "9000"]);
    client.call(&["RPUSH", "found:a", "1"]);
    client.call(&["SET", "found:string", "1"]);
    wait_for("the pattern's key", || {
        server.step(100_000);
        let metrics = get(address, "/metrics").body;
        metrics.contains("latchkey_queue_length{key=\"found:a\"} 1\n").then_some(())
    });
    // It is still a queue while it is empty and a consumer waits, and so is one that never had items.
    client.call(&["DEL", "found:a"]);
    let mut consumers = [server.connect(), server.connect()];
    for (consumer, key) in consumers.iter_mut().zip(["found:a", "found:new"]) {
        consumer.send(&["BLPOP", key, "0"]);
    }
    server.settle();
    client.call(&["LPUSH", "found:b", "1"]);
    wait_for("queues that only clients know", || {
        server.step(100_000);
        get(address, "/metrics").body.contains("key=\"found:new\"").then_some(())
    });
    for _ in 0..20 {
        server.step(100_000);
        let metrics = get(address, "/metrics").body;
        let consumers = "latchkey_queue_consumers_waiting{key=\"found:";
        assert!(metrics.contains(&format!("{consumers}a\"}} 1\n")), "{metrics}");
        assert!(metrics.contains(&format!("{consumers}new\"}} 1\n")), "{metrics}");
    }
    client.call(&["DEL", "found:a", "found:b"]);
    drop(consumers);
    wait_for("its end", || {
        server.step(100_000);
        (!get(address, "/metrics").body.contains("found:")).then_some(())
    });
}

#[test]
fn streams_with_groups_are_told_with_warnings_and_commands() {
    let (server, address) = start(&[]);
    let mut client = server.connect();
    let mut run = |lines: &[&str]| {
        for line in lines {
            let shown = client.call(&line.split(' ').collect::<Vec<_>>()).show();
            assert!(!shown.contains("(error)"), "{line}: {shown}");
        }
    };
    run(&["XADD alone * f v", "XGROUP CREATE {jobs} it's $ MKSTREAM", "XADD {jobs} * f v"]);
    let queues = || get(address, "/api/queues").body;
    let see = |what: &str| {
        wait_for(what, || {
            server.step(100_000);
            queues().contains(what).then_some(())
        });
    };
    see("\"key\":\"{jobs}\"");
    see("group it's: 1 entries, and nobody reads");
    see("XGROUP CREATECONSUMER '{jobs}' 'it'\\\\''s' :paused\"");
    assert!(!queues().contains("alone"));
    run(&["XREADGROUP GROUP it's w1 STREAMS {jobs} >", "XADD {jobs} * f v"]);
    assert!(!queues().contains("nobody reads"), "{}", queues());
    server.advance(61_000_000);
    see("consumer w1 holds 1 entries and has not read for 61 s");
    see("XGROUP DELCONSUMER '{jobs}' 'it'\\\\''s' w1 RELEASE\"");
    run(&["XGROUP CREATECONSUMER {jobs} it's :paused"]);
    see("group it's is paused");
    assert!(!queues().contains("nobody reads"), "{}", queues());
    run(&["XGROUP DELCONSUMER {jobs} it's :paused", "CONFIG SET maxmemory 100mb"]);
    assert!(!queues().contains("is paused") && !queues().contains("evicted"), "{}", queues());
    run(&["CONFIG SET maxmemory-policy allkeys-lru"]);
    see("it may be evicted as a whole (allkeys-lru)");
    run(&["CONFIG SET maxmemory-protect {jobs}*"]);
    assert!(!queues().contains("evicted"), "{}", queues());
    let read =
        "XREADGROUP GROUP it's w2 CLAIM 1 MAXDELIVERIES 1 DEADLETTER {jobs}:dead STREAMS {jobs} >";
    run(&[read]);
    see("group it's: 1 dead letters since the start");
    see("XREDRIVE DEADLETTERS '{jobs}' COUNT 100");
    run(&["CONFIG SET page-keys later", "ZADD later 99999999999999 one"]);
    see("the next item is due in more than a year");
    see("ZADD later XX 0 one\"");
    run(&["DEL {jobs}"]);
    wait_for("its end", || {
        server.step(100_000);
        (!queues().contains("\"{jobs}\"")).then_some(())
    });
}

#[test]
fn names_of_any_bytes_and_length_are_listed_opened_and_broken() {
    let (server, address) = start(&[]);
    let mut client = server.connect();
    let mut names: Vec<Vec<u8>> = (0..4).map(|byte| [&[0xff; 700][..], &[byte]].concat()).collect();
    names.push(vec![b'~'; 3000]);
    names.sort();
    for name in &names {
        client.call::<&[u8]>(&[b"LOCK.ACQUIRE", name, b"me", b"PX", b"100000"]);
    }
    let (mut after, mut found) = (String::new(), 0);
    loop {
        let body = get(address, &format!("/api/locks?limit=1{after}")).body;
        let of = |name: &str| {
            let rest = body.split_once(&format!("\"{name}\":\"")).map(|(_, rest)| rest);
            rest.and_then(|rest| rest.split_once('"')).map(|(value, _)| value.to_owned())
        };
        let id = of("id").expect("a name that can be opened");
        let one = get(address, &format!("/api/locks/{id}")).body;
        assert!(one.contains("\"mode\":\"exclusive\""), "{one}");
        assert!(one.contains("LOCK.BREAK") && one.contains(" FENCE "), "{one}");
        found += 1;
        match of("after") {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
        assert!(found < names.len(), "it goes on");
    }
    assert_eq!(found, names.len());
    let far = vec![b'z'; 100_000];
    client.call::<&[u8]>(&[b"LOCK.ACQUIRE", &far, b"me", b"PX", b"100000"]);
    let body = get(address, "/api/locks?sort=name&limit=5").body;
    assert!(body.contains("\"id\":null"), "a name that no head has room for");
}

#[test]
fn no_series_is_there_twice_whatever_the_names() {
    let (server, address) = start(&["page-keys q*"]);
    let mut client = server.connect();
    for name in [&b"q\xfe"[..], b"q\xff", b"q\xff\xff"] {
        client.call::<&[u8]>(&[b"RPUSH", name, b"x"]);
        client.call::<&[u8]>(&[
            b"LOCK.ACQUIRE",
            &[name, b":lock"].concat(),
            b"me",
            b"PX",
            b"90000",
        ]);
    }
    wait_for("the pattern's keys", || {
        server.step(100_000);
        get(address, "/metrics").body.contains("latchkey_queue_length{").then_some(())
    });
    for target in ["/metrics", "/metrics/locks"] {
        let body = get(address, target).body;
        let mut series: Vec<_> = body.lines().filter(|line| !line.starts_with('#')).collect();
        series.iter_mut().for_each(|line| *line = line.rsplit_once(' ').expect("a value").0);
        let count = series.len();
        series.sort_unstable();
        series.dedup();
        assert_eq!(series.len(), count, "{target}: {body}");
    }
}

/// What a state comes to; that of a server that loads is in `following.rs`: the statuses of /livez
/// and /readyz, the line that says why, and how PING is answered.
struct Told {
    live: u16,
    ready: u16,
    why: String,
    ping: String,
}

fn tell(server: &TestServer, address: SocketAddr) -> Told {
    let live = get(address, "/livez").status;
    let answer = get(address, "/readyz");
    let why = answer.body.lines().next().unwrap_or_default().to_owned();
    let mut client = server.connect();
    client.send(&["PING"]);
    // Two answers of HTTP later PING has been answered, or is not.
    (0..2).for_each(|_| drop(get(address, "/livez")));
    let ping = client.try_message().map_or("(nothing)".to_owned(), |reply| reply.show());
    Told { live, ready: answer.status, why, ping }
}

#[track_caller]
fn assert_told(told: &Told, ready: u16, why: &str, ping: &str) {
    assert_eq!(told.live, 200);
    assert_eq!(told.ready, ready, "{}", told.why);
    assert!(told.why.starts_with(why), "{}", told.why);
    assert!(told.ping.starts_with(ping), "{}", told.ping);
}

#[test]
fn probes_say_in_each_state_whether_clients_are_served() {
    let dir = tempfile::tempdir().expect("a folder");
    let data = dir.path().join("data");
    std::fs::create_dir(&data).expect("a folder");
    let folder = format!("dir {}", data.display());
    let (server, address) = start(&[&folder, "busy-reply-threshold 1"]);
    let mut client = server.connect();
    let mut run = |request: &str| client.call(&request.split(' ').collect::<Vec<_>>());
    assert_told(&tell(&server, address), 200, "ok", "PONG");
    run("CLIENT PAUSE 100000 WRITE");
    assert_told(&tell(&server, address), 200, "ok", "PONG");
    run("CLIENT PAUSE 100000 ALL");
    assert_told(&tell(&server, address), 503, "[-]paused ", "(nothing)");
    server.advance(100_001_000);
    assert_told(&tell(&server, address), 200, "ok", "PONG");

    let mut busy = server.connect();
    busy.send(&["EVAL", "while true do end", "0"]);
    let why = wait_for("the script", || {
        let told = get(address, "/readyz");
        (told.status == 503).then_some(told.body)
    });
    // Its SHA1, as EVALSHA names it.
    let sha = why.strip_prefix("[-]busy-script ").and_then(|rest| rest.split(',').next());
    let is_digit = |letter: char| letter.is_ascii_hexdigit();
    assert!(sha.is_some_and(|sha| sha.len() == 40 && sha.chars().all(is_digit)), "{why}");
    assert!(why.contains(" s\n"), "{why}");
    assert_told(&tell(&server, address), 503, "[-]busy-script ", "(error) BUSY");
    assert!(get(address, "/api/overview").body.contains("SCRIPT KILL"));
    assert!(get(address, "/metrics").body.contains("\nlatchkey_script_running_seconds "));
    assert_eq!(get(address, "/readyz?exclude=busy-script").status, 200);
    run("SCRIPT KILL");
    assert_told(&tell(&server, address), 200, "ok", "PONG");

    run("REPLICAOF 127.0.0.1 1");
    assert_told(&tell(&server, address), 503, "[-]link-down ", "PONG");
    assert_eq!((get(address, "/replica").status, get(address, "/primary").status), (200, 503));
    run("CONFIG SET replica-serve-stale-data no");
    assert_told(&tell(&server, address), 503, "[-]link-down ", "(error) MASTERDOWN");
    run("CONFIG SET replica-serve-stale-data yes");
    run("REPLICAOF NO ONE");
    assert_told(&tell(&server, address), 200, "ok", "PONG");

    client.call(&["CONFIG", "SET", "save", "3600 1"]);
    std::fs::remove_dir_all(&data).expect("the folder");
    assert!(matches!(client.call(&["BGSAVE"]), Reply::Error(_)));
    assert_told(&tell(&server, address), 503, "[-]misconf MISCONF ", "(error) MISCONF");
    client.call(&["CONFIG", "SET", "save", ""]);
    std::fs::create_dir(&data).expect("a folder");

    // A replica that has not all: FAILOVER and SHUTDOWN wait for it.
    let mut replica = server.connect();
    replica.send(&["PSYNC", "?", "-1"]);
    wait_for("the replica", || {
        server.step(1_000_000);
        let metrics = get(address, "/metrics").body;
        metrics.contains("slave_state=\"online\"").then_some(())
    });
    client.call(&["SET", "a", "1"]);
    assert_eq!(client.call(&["FAILOVER"]), Reply::Simple(b"OK".to_vec()));
    assert_told(&tell(&server, address), 503, "[-]failover waiting-for-sync", "PONG");
    assert_eq!(client.call(&["FAILOVER", "ABORT"]), Reply::Simple(b"OK".to_vec()));
    client.send(&["SHUTDOWN", "NOSAVE"]);
    let mut other = server.connect();
    wait_for("the shutdown", || {
        get(address, "/readyz").body.contains("[-]shutting-down ").then_some(())
    });
    assert_told(&tell(&server, address), 503, "[-]shutting-down ", "PONG");
    assert_eq!(other.call(&["SHUTDOWN", "ABORT"]), Reply::Simple(b"OK".to_vec()));
    assert_told(&tell(&server, address), 200, "ok", "PONG");
}

#[test]
fn metrics_tell_how_requests_for_locks_went() {
    let (server, address) = start(&[]);
    let run = |request: &str| call(&server, request);
    let mut waits = server.connect();
    run("LOCK.ACQUIRE jobs a PX 1000");
    waits.send(&words("LOCK.ACQUIRE jobs b PX 1000 BLOCK 0"));
    server.settle();
    run("LOCK.RELEASE jobs a");
    waits.reply();
    run("LOCK.RENEW 2 jobs none b PX 1000");
    waits.send(&words("LOCK.ACQUIRE jobs c PX 1000 BLOCK 0"));
    let id = waits_id(&server);
    assert_eq!(run(&format!("CLIENT UNBLOCK {id} ERROR")), Reply::Integer(1));
    waits.reply();
    run("SEM.ACQUIRE pool a LIMIT 3 PX 60000 COUNT 2");
    run("CONFIG SET maxmemory 1");
    assert!(matches!(run("LOCK.ACQUIRE other a PX 1000"), Reply::Error(_)));
    run("CONFIG SET maxmemory 0");
    let metrics = get(address, "/metrics").body;
    for line in [
        "latchkey_lock_acquisitions_total{result=\"granted\"} 3",
        "latchkey_lock_acquisitions_total{result=\"oom\"} 1",
        "latchkey_lock_acquisitions_total{result=\"unblocked\"} 1",
        "latchkey_lock_ends_total{reason=\"released\"} 1",
        "latchkey_lock_ends_total{reason=\"promoted\"} 0",
        "latchkey_lock_renewals_total{result=\"renewed\"} 1",
        "latchkey_lock_renewals_total{result=\"not_held\"} 1",
        "latchkey_lock_handover_seconds_count 1",
        "latchkey_semaphore_permits_held 2",
    ] {
        assert!(metrics.contains(&format!("\n{line}\n")), "{line} is not in {metrics}");
    }
}

fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

/// The id of the client that waits for a lock, once it does.
fn waits_id(server: &TestServer) -> String {
    wait_for("a waiting client", || {
        let list = call(server, "CLIENT LIST").show();
        let line = list.split("\\n").find(|line| line.contains("flags=b"))?;
        let id = line.split("id=").nth(1)?.split(' ').next()?;
        Some(id.to_owned())
    })
}

#[test]
fn a_node_tells_its_cluster_and_another_server_has_none() {
    let (_server, address) = start(&[]);
    assert_eq!(get(address, "/api/cluster").status, 404);
    let (server, address) = start(&["cluster-enabled yes", "cluster-port 0"]);
    assert_told(&tell(&server, address), 503, "[-]cluster-down ", "PONG");
    assert!(get(address, "/metrics").body.contains("\nredis_cluster_state 0\n"));
    call(&server, "CLUSTER ADDSLOTSRANGE 0 16383");
    wait_for("the cluster's state", || {
        server.step(100_000);
        (get(address, "/readyz").status == 200).then_some(())
    });
    assert!(get(address, "/metrics").body.contains("\nredis_cluster_state 1\n"));
    let told = get(address, "/api/cluster");
    assert_eq!(told.status, 200);
    for part in
        ["\"cluster_slots_assigned\":\"16384\"", "\"slots\":16384", "\"ranges\":\"0-16383\""]
    {
        assert!(told.body.contains(part), "{part} is not in {}", told.body);
    }
    call(&server, "ACL SETUSER viewer on nopass +info +client|list +slowlog|get");
    call(&server, "CONFIG SET http-auth yes");
    let asked = Connection::open(address).ask("/api/cluster", &basic("viewer:v"));
    assert_eq!(asked.status, 403);
}

#[test]
fn a_lock_tells_its_last_grants_and_ends_and_a_queue_what_comes_and_goes() {
    let (server, address) = start(&["page-keys mail"]);
    let run = |request: &str| call(&server, request);
    for _ in 0..12 {
        run("LOCK.ACQUIRE jobs a PX 1000");
        server.advance(2000);
        run("LOCK.RELEASE jobs a");
    }
    run("LOCK.ACQUIRE jobs b PX 1000");
    let told = get(address, "/api/locks/jobs").body;
    assert!(told.contains("\"grants\":13,\"median_hold_us\":2000,"), "{told}");
    assert_eq!(told.matches("\"what\":\"granted\"").count(), 5, "{told}");
    assert_eq!(told.matches("\"what\":\"released\"").count(), 5, "{told}");
    assert!(told.contains("\"events\":[{\"what\":\"granted\""), "{told}");
    run("RPUSH mail a b");
    assert!(get(address, "/api/queues").body.contains("\"arrived\":null,\"left\":null"));
    run("RPUSH mail c d e");
    run("LPOP mail 2");
    assert!(get(address, "/api/queues").body.contains("\"arrived\":3,\"left\":2"));
}
