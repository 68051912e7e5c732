//! What clients do that no library does: connections that end half-way, requests in odd pieces,
//! replies nobody reads, more of everything than is reasonable. Whatever one of them does, its
//! requests are answered in their order and the others are served.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use latchkey::sys::disk::model::ModelDisk;

use crate::crossings::world::World;
use crate::support::{Client, Reply, TestServer, read_some, wait_for};

fn config(lines: &[&str]) -> TestServer {
    let lines: Vec<String> = lines.iter().map(|&line| line.into()).collect();
    TestServer::start(&lines)
}

fn request(args: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        bytes.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        bytes.extend_from_slice(arg);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

fn connect(server: &TestServer) -> TcpStream {
    let stream = TcpStream::connect(server.address).expect("the server takes connections");
    stream.set_nodelay(true).expect("an option of TCP");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("an option of sockets");
    stream
}

/// All that comes until the connection ends. The server may have ended it with bytes unread.
fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("no end came: {error}"),
        _ => bytes,
    }
}

/// Sends all, ends the sending half, and takes the replies.
fn last_words(server: &TestServer, bytes: &[u8]) -> Vec<u8> {
    let mut stream = connect(server);
    stream.write_all(bytes).expect("the server reads");
    stream.shutdown(Shutdown::Write).expect("the connection is there");
    rest(&mut stream)
}

fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The field `name` of `INFO section`.
fn info(client: &mut Client, section: &str, name: &str) -> u64 {
    let Reply::Bulk(text) = client.call(&["INFO", section]) else { panic!("INFO is a text") };
    let text = String::from_utf8(text).expect("INFO is text");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.expect("the field is there").trim().parse().expect("the field is a number")
}

fn simple(text: &str) -> Reply {
    Reply::Simple(text.into())
}

// ---- ends ---------------------------------------------------------------------------------------

#[test]
fn requests_that_come_with_the_end_of_the_connection_are_answered() {
    let server = config(&[]);
    let ping = request(&[b"PING"]);
    for _ in 0..50 {
        assert_eq!(shown(&last_words(&server, &ping)), "+PONG\r\n");
    }
    let many = ping.repeat(20_000);
    assert_eq!(last_words(&server, &many).len(), 20_000 * 7);
    let large = request(&[b"ECHO", &vec![b'x'; 3_000_000]]);
    assert_eq!(last_words(&server, &large).len(), 3_000_000 + 12);
    assert_eq!(shown(&last_words(&server, b"PING\r\nPIN")), "+PONG\r\n");
}

#[test]
fn requests_of_a_client_without_a_password_that_come_with_the_end_are_answered() {
    let server = config(&["requirepass pw"]);
    let reply = last_words(&server, b"GET k\r\nAUTH pw\r\nPING\r\n");
    assert_eq!(shown(&reply), "-NOAUTH Authentication required.\r\n+OK\r\n+PONG\r\n");
}

#[test]
fn replies_that_did_not_fit_reach_who_has_only_stopped_sending() {
    let server = config(&[]);
    let mut stream = connect(&server);
    server.connect().call(&["SET", "k", &"v".repeat(1_000_000)]);
    stream.write_all(&request(&[b"GET", b"k"]).repeat(40)).expect("the server reads");
    server.settle();
    stream.shutdown(Shutdown::Write).expect("the connection is there");
    server.settle();
    assert_eq!(rest(&mut stream).len(), 40 * (1_000_000 + 12));
}

#[test]
fn clients_that_go_without_reading_leave_nothing_behind() {
    let server = config(&[]);
    let mut other = server.connect();
    other.call(&["SET", "k", &"v".repeat(100_000)]);
    for _ in 0..20 {
        let mut stream = connect(&server);
        stream.write_all(&request(&[b"GET", b"k"]).repeat(100)).expect("the server reads");
        let mut half = connect(&server);
        half.write_all(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$100000\r\nabc").expect("the server reads");
        drop((stream, half));
    }
    wait_for("clients to be gone", || {
        server.settle();
        (info(&mut other, "clients", "connected_clients") <= 1).then_some(())
    });
}

#[test]
fn thousands_of_clients_come_and_go() {
    let server = config(&["maxclients 64"]);
    for round in 0..2000 {
        let mut client = server.connect();
        if round % 3 > 0 {
            client.send(&["PING"]);
        }
        if round % 3 > 1 {
            assert_eq!(client.reply(), Some(simple("PONG")));
        }
    }
    let mut stream = connect(&server);
    stream.write_all(b"PING\r\n").expect("the server reads");
    let mut reply = [0; 7];
    stream.read_exact(&mut reply).expect("the others' places are free");
    assert_eq!(&reply, b"+PONG\r\n");
}

#[test]
fn a_client_takes_the_place_of_one_that_has_just_gone() {
    let server = config(&["maxclients 1"]);
    for _ in 0..200 {
        let mut client = server.connect();
        assert_eq!(client.call(&["QUIT"]), simple("OK"));
        assert_eq!(client.reply(), None);
    }
    let mut client = server.connect();
    assert_eq!(client.call(&["PING"]), simple("PONG"));
    let refusal = rest(&mut connect(&server));
    assert_eq!(shown(&refusal), "-ERR max number of clients reached\r\n");
}

#[test]
fn reserved_places_let_an_operator_in_and_nobody_from_elsewhere() {
    const REFUSED: &str = "ERR max number of clients reached";
    const APPLICATION: [u8; 4] = [10, 0, 1, 1];
    const HERE: [u8; 4] = [127, 0, 0, 1];
    let mut world = World::new();
    let lines = ["maxclients 4", "maxclients-reserved 2"].map(String::from);
    let node = world.start(&lines, ModelDisk::new(0)).expect("a server");
    // What a new client is told first; it stays if it is served.
    let mut clients = Vec::new();
    let mut arrive = |world: &mut World, host| {
        let mut client = world.connect_from(node, host);
        client.send(&["PING"]);
        let told = world.answers(&mut client)[0].show();
        if !client.has_ended {
            clients.push(client);
        }
        told
    };
    for (host, told) in [
        (APPLICATION, "PONG"),
        (APPLICATION, "PONG"),
        (APPLICATION, REFUSED),
        (HERE, "PONG"),
        // The operator's own connection takes one of the places; nobody else gets the other.
        (APPLICATION, REFUSED),
        (HERE, "PONG"),
        (HERE, REFUSED),
    ] {
        assert!(arrive(&mut world, host).ends_with(told), "{host:?}: {told}");
    }
    drop(clients);
}

#[test]
fn silent_clients_go_when_their_time_is_up_and_listeners_stay() {
    let server = config(&["timeout 10"]);
    let mut silent = server.connect();
    silent.call(&["PING"]);
    let mut listener = server.connect();
    listener.call(&["SUBSCRIBE", "c"]);
    server.advance(9_000_000);
    assert_eq!(silent.call(&["PING"]), simple("PONG"));
    server.advance(10_500_000);
    assert_eq!(silent.reply(), None);
    let mut other = server.connect();
    assert_eq!(other.call(&["PUBLISH", "c", "m"]), Reply::Integer(1));
}

// ---- the order of replies -----------------------------------------------------------------------

#[test]
fn quit_ends_the_pipeline_whatever_follows() {
    let server = config(&[]);
    for tail in ["PING\r\n", "*1\r\n!", "*x\r\n", "\"\r\n", "*3\r\n$3\r\nSET\r\n"] {
        let reply = last_words(&server, format!("PING\r\nQUIT\r\n{tail}").as_bytes());
        assert_eq!(shown(&reply), "+PONG\r\n+OK\r\n", "{tail:?}");
    }
}

#[test]
fn broken_protocol_is_told_behind_the_replies_to_what_came_before() {
    let server = config(&[]);
    let mut stream = connect(&server);
    stream
        .write_all(b"PING\r\n*1\r\n$4\r\nPING\r\n*1\r\n!x\r\nPING\r\n")
        .expect("the server reads");
    let expected = "+PONG\r\n+PONG\r\n-ERR Protocol error: expected '$', got '!'\r\n";
    assert_eq!(shown(&rest(&mut stream)), expected);
}

#[test]
fn any_split_of_a_pipeline_gives_the_same_replies() {
    let server = config(&[]);
    let mut bytes = request(&[b"SET", b"k", b"v\r\n*1\r\n"]);
    bytes.extend_from_slice(b"GET k\r\n\r\nSET 'a b' \"\\x00\"\r\n*0\r\n");
    bytes.extend_from_slice(&request(&[b"MGET", b"k", b"a b", b"c"]));
    bytes.extend_from_slice(b"*1\r\n$x\r\n");
    let whole = last_words(&server, &bytes);
    assert!(shown(&whole).ends_with("-ERR Protocol error: invalid bulk length\r\n"));
    for at in 0..bytes.len() {
        let mut stream = connect(&server);
        stream.write_all(&bytes[..at]).expect("the server reads");
        server.settle();
        stream.write_all(&bytes[at..]).expect("the server reads");
        assert_eq!(shown(&rest(&mut stream)), shown(&whole), "cut at {at}");
    }
    let mut stream = connect(&server);
    for byte in &bytes {
        stream.write_all(&[*byte]).expect("the server reads");
        server.settle();
    }
    assert_eq!(shown(&rest(&mut stream)), shown(&whole));
}

#[test]
fn a_hundred_thousand_requests_at_once_are_answered_in_order() {
    let server = config(&[]);
    let mut stream = connect(&server);
    let mut sender = stream.try_clone().expect("a second handle");
    let writer = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        for number in 0..100_000 {
            bytes.extend_from_slice(&request(&[b"ECHO", format!("{number:06}").as_bytes()]));
        }
        sender.write_all(&bytes).expect("the server reads");
        sender.shutdown(Shutdown::Write).expect("the connection is there");
    });
    let replies = rest(&mut stream);
    writer.join().expect("all is sent");
    let expected: String = (0..100_000).map(|number| format!("$6\r\n{number:06}\r\n")).collect();
    assert!(shown(&replies) == expected, "replies are missing or out of order");
}

#[test]
fn authentication_lifts_the_limits_for_what_follows_in_the_same_packet() {
    let server = config(&["requirepass pw"]);
    let many: Vec<&[u8]> = [&b"DEL"[..]].into_iter().chain([&b"k"[..]; 20]).collect();
    let mut bytes = request(&[b"AUTH", b"pw"]);
    bytes.extend_from_slice(&request(&many));
    bytes.extend_from_slice(&request(&[b"ECHO", &[b'x'; 20_000]]));
    let reply = last_words(&server, &bytes);
    assert_eq!(shown(&reply[..16]), "+OK\r\n:0\r\n$20000\r");
    let reply = last_words(&server, &request(&many));
    assert_eq!(shown(&reply), "-ERR Protocol error: unauthenticated multibulk length\r\n");
    let reply = last_words(&server, b"*2\r\n$4\r\nAUTH\r\n$16385\r\n");
    assert_eq!(shown(&reply), "-ERR Protocol error: unauthenticated bulk length\r\n");
}

// ---- large requests and replies -----------------------------------------------------------------

#[test]
fn a_large_argument_that_comes_in_pieces_is_taken_whole() {
    let server = config(&[]);
    let mut client = server.connect();
    let value: Vec<u8> = (0..64usize << 20).map(|at| (at % 251) as u8).collect();
    let bytes = request(&[b"SET", b"k", &value]);
    for piece in bytes.chunks(97_531) {
        client.send_raw(piece);
    }
    assert_eq!(client.reply(), Some(simple("OK")));
    assert_eq!(client.call(&["STRLEN", "k"]), Reply::Integer(64 << 20));
    let Reply::Bulk(end) = client.call(&["GETRANGE", "k", "-5", "-1"]) else { panic!("a string") };
    assert_eq!(end, value[value.len() - 5..]);
}

#[test]
fn a_million_arguments_in_pieces_are_one_request() {
    let server = config(&[]);
    let mut client = server.connect();
    let mut bytes = b"*1000001\r\n$4\r\nMSET\r\n".to_vec();
    for number in 0..500_000 {
        bytes.extend_from_slice(format!("$8\r\n{number:08}\r\n$1\r\nv\r\n").as_bytes());
    }
    for piece in bytes.chunks(10_007) {
        client.send_raw(piece);
    }
    assert_eq!(client.reply(), Some(simple("OK")));
    assert_eq!(client.call(&["DBSIZE"]), Reply::Integer(500_000));
}

#[test]
fn a_reader_that_is_slow_gets_a_hundred_megabytes_whole_and_others_are_served() {
    let server = config(&[]);
    let mut other = server.connect();
    let value = "0123456789".repeat(100_000);
    other.call(&["SET", "k", &value]);
    let mut stream = connect(&server);
    stream.write_all(&request(&[b"GET", b"k"]).repeat(100)).expect("the server reads");
    let head = format!("${}\r\n", value.len());
    let mut reply = vec![0; head.len() + value.len() + 2];
    for _ in 0..100 {
        stream.read_exact(&mut reply).expect("the replies come");
        assert!(reply.starts_with(head.as_bytes()) && reply.ends_with(b"9\r\n"));
        assert_eq!(other.call(&["PING"]), simple("PONG"));
    }
}

#[test]
fn a_client_that_does_not_read_costs_no_turns() {
    let server = config(&[]);
    let mut other = server.connect();
    other.call(&["SET", "k", &"v".repeat(1_000_000)]);
    let mut stream = connect(&server);
    stream.write_all(&request(&[b"GET", b"k"]).repeat(30)).expect("the server reads");
    server.settle();
    let writes = info(&mut other, "stats", "total_writes_processed");
    (0..100).for_each(|_| server.settle());
    let writes = info(&mut other, "stats", "total_writes_processed") - writes;
    assert!(writes < 20, "{writes} writes while nothing could be sent");
}

#[test]
fn a_pipeline_whose_replies_pass_the_hard_limit_is_stopped_at_it() {
    let server = config(&["client-output-buffer-limit normal 2mb 0 0"]);
    let mut other = server.connect();
    other.call(&["SET", "k", &"v".repeat(1_000_000)]);
    other.call(&["CONFIG", "RESETSTAT"]);
    let mut stream = connect(&server);
    stream.write_all(&request(&[b"GET", b"k"]).repeat(1000)).expect("the server reads");
    assert!(rest(&mut stream).len() < 30_000_000);
    let hits = info(&mut other, "stats", "keyspace_hits");
    assert!(hits < 30, "{hits} values were read for a client that may hold two");
}

#[test]
fn a_single_reply_that_passes_the_hard_limit_is_cut_off_at_it() {
    let server = config(&["client-output-buffer-limit normal 1mb 0 0"]);
    let mut other = server.connect();
    other.call(&["HSET", "h", "f", "v"]);
    other.call(&["SADD", "s", "m"]);
    other.call(&["ZADD", "z", "1", "m"]);
    other.call(&["CONFIG", "RESETSTAT"]);
    let requests: [&[&[u8]]; 6] = [
        &[b"HRANDFIELD", b"h", b"-4000000000000000000"],
        &[b"HRANDFIELD", b"h", b"-4000000000000000000", b"WITHVALUES"],
        &[b"SRANDMEMBER", b"s", b"-9000000000000000000"],
        &[b"ZRANDMEMBER", b"z", b"-4000000000000000000"],
        &[b"ZRANDMEMBER", b"z", b"-4000000000000000000", b"WITHSCORES"],
        &[b"GETRANGE", b"long", b"0", b"-1"],
    ];
    other.call(&["SETRANGE", "long", "20000000", "x"]);
    for version in [b"2", b"3"] {
        for asked in requests {
            let mut stream = connect(&server);
            let hello = request(&[b"HELLO", version]);
            stream.write_all(&[hello, request(asked)].concat()).expect("the server reads");
            assert!(rest(&mut stream).len() < 2_000, "only what HELLO answers is sent");
        }
        // Not to be heard, it need not be closed.
        let mut stream = connect(&server);
        stream.write_all(b"CLIENT REPLY SKIP\r\n").expect("the server reads");
        stream.write_all(&request(requests[0])).expect("the server reads");
        stream.write_all(b"PING\r\n").expect("the server reads");
        let mut reply = [0; 7];
        stream.read_exact(&mut reply).expect("a reply");
        assert_eq!(&reply, b"+PONG\r\n");
    }
    let cut = info(&mut other, "stats", "client_output_buffer_limit_disconnections");
    assert_eq!(cut, 12);
}

#[test]
fn who_subscribes_has_the_limit_of_subscribers_from_then_on() {
    let server = config(&[
        "client-output-buffer-limit normal 20kb 0 0",
        "client-output-buffer-limit pubsub 0 0 0",
    ]);
    let mut client = server.connect();
    client.call(&["HELLO", "3"]);
    client.call(&["SET", "k", &"v".repeat(10_000)]);
    let head = b"SUBSCRIBE c\r\n";
    let many = [head.as_slice(), &b"GET k\r\n".repeat(100)].concat();
    let mut stream = connect(&server);
    stream.write_all(b"HELLO 3\r\n").expect("the server reads");
    stream.write_all(&many).expect("the server reads");
    stream.write_all(b"QUIT\r\n").expect("the server reads");
    assert!(rest(&mut stream).len() > 1_000_000);
}

#[test]
fn a_script_is_told_when_a_reply_is_more_than_it_may_hold() {
    let server = config(&["script-memory-limit 32mb"]);
    let mut client = server.connect();
    client.call(&["SADD", "s", &"m".repeat(1 << 20)]);
    let too_many = "ERR a script may draw at most 100000 elements with repetition at once";
    for (count, answer) in [("-100", "ERR not enough memory"), ("-100001", too_many)] {
        let script = "return redis.pcall('srandmember', 's', ARGV[1]).err";
        let reply = client.call(&["EVAL", script, "0", count]);
        assert_eq!(reply, Reply::Bulk(answer.into()));
    }
    assert_eq!(client.call(&["EVAL", "return redis.call('scard', 's')", "0"]), Reply::Integer(1));
}

#[test]
fn a_request_over_the_query_buffer_limit_ends_the_connection() {
    let server = config(&["client-query-buffer-limit 1mb"]);
    let mut stream = connect(&server);
    let head = b"*2\r\n$4\r\nECHO\r\n$3000000\r\n";
    let sent = stream.write_all(head).and_then(|()| stream.write_all(&vec![b'x'; 2_900_000]));
    // The connection may end while the rest is on its way.
    drop(sent);
    assert_eq!(rest(&mut stream), b"");
    assert_eq!(server.connect().call(&["PING"]), simple("PONG"));
}

// ---- clients that wait --------------------------------------------------------------------------

#[test]
fn a_large_request_waits_behind_one_that_blocks() {
    let server = config(&[]);
    let mut other = server.connect();
    for size in [20_000, 70_000, 300_000, 2_000_000] {
        let mut stream = connect(&server);
        let value = vec![b'v'; size];
        let sent = [
            request(&[b"BLPOP", b"l", b"0"]),
            request(&[b"SET", b"k", &value]),
            request(&[b"STRLEN", b"k"]),
        ];
        let mut writer = stream.try_clone().expect("a second handle");
        let writer = std::thread::spawn(move || writer.write_all(&sent.concat()));
        wait_for("the client to block", || {
            server.settle();
            (info(&mut other, "clients", "blocked_clients") > 0).then_some(())
        });
        assert_eq!(other.call(&["RPUSH", "l", "e"]), Reply::Integer(1));
        let expected = format!("*2\r\n$1\r\nl\r\n$1\r\ne\r\n+OK\r\n:{size}\r\n");
        let mut reply = vec![0; expected.len()];
        stream.read_exact(&mut reply).expect("the replies come");
        assert_eq!(shown(&reply), expected);
        writer.join().expect("no panic").expect("the server reads");
    }
}

#[test]
fn pipelines_that_a_pause_cuts_go_on_in_their_order() {
    let server = config(&[]);
    let mut other = server.connect();
    let mut clients: Vec<TcpStream> = (0..5).map(|_| connect(&server)).collect();
    let mut expected = String::new();
    for (index, client) in clients.iter_mut().enumerate() {
        if index == 2 {
            assert_eq!(other.call(&["CLIENT", "PAUSE", "10000", "WRITE"]), simple("OK"));
        }
        let large = "x".repeat(40_000);
        expected.clear();
        for number in 0..200 {
            let text = format!("{number}:{large}");
            client.write_all(format!("ECHO {number}\r\n").as_bytes()).expect("the server reads");
            let set = request(&[b"SET", format!("k{index}").as_bytes(), text.as_bytes()]);
            client.write_all(&set).expect("the server reads");
            expected.push_str(&format!("${}\r\n{number}\r\n+OK\r\n", number.to_string().len()));
        }
        // What breaks the protocol behind requests that wait is told behind their replies.
        client.write_all(b"PING\r\nx \"\\x22 \\x22\r\n").expect("the server reads");
        expected.push_str("+PONG\r\n-ERR Protocol error: unbalanced quotes in request\r\n");
    }
    server.settle();
    assert_eq!(other.call(&["EXISTS", "k3"]), Reply::Integer(0));
    assert_eq!(other.call(&["CLIENT", "UNPAUSE"]), simple("OK"));
    for client in &mut clients {
        assert!(shown(&rest(client)) == expected, "replies are missing or out of order");
    }
}

/// A client's connection in which a pause finds these pieces, one a turn. Its replies, until that
/// to ECHO.
fn paused_within(server: &TestServer, pieces: &[&[u8]], later: &[u8]) -> String {
    let mut operator = server.connect();
    operator.call(&["CLIENT", "PAUSE", "1000000", "WRITE"]);
    let mut stream = connect(server);
    for piece in pieces {
        stream.write_all(piece).expect("the server reads");
        server.settle();
    }
    operator.call(&["CLIENT", "UNPAUSE"]);
    server.settle();
    stream.write_all(later).expect("the server reads");
    stream.write_all(&request(&[b"ECHO", b"the last"])).expect("the server reads");
    stream.shutdown(Shutdown::Write).expect("the connection is there");
    shown(&rest(&mut stream))
}

#[test]
fn a_large_request_that_waits_has_nothing_to_do_with_the_next_one() {
    let server = config(&[]);
    let large = request(&[b"SET", b"k", &[b'x'; 30_000]]);
    let words: Vec<String> = (0..60).map(|n| format!("word:{n}")).collect();
    let mut many: Vec<&[u8]> = vec![b"MSET"];
    many.extend(words.iter().map(|word| word.as_bytes()));
    let many = request(&many);
    let both = [&large[20_000..], &many[..500]].concat();
    let replies = paused_within(&server, &[&large[..20_000], &both], &many[500..]);
    assert_eq!(replies, "+OK\r\n+OK\r\n$8\r\nthe last\r\n");
    // An empty request before one that the parser changes.
    let inline = b"*0\r\nSET k3 \"a\\x22 b\\n\\x41\"\r\n";
    let large = [&large[..], inline].concat();
    let replies = paused_within(&server, &[&large[..20_000], &large[20_000..]], b"GET k3\r\n");
    assert_eq!(replies, "+OK\r\n+OK\r\n$6\r\na\" b\nA\r\n$8\r\nthe last\r\n");
}

/// Requests of all kinds that parsers treat differently: small, large, of many arguments, inline,
/// empty, and a value that a thread decodes. Each writes to a key of its own.
fn any_request(random: &mut fastrand::Rng, key: &str, payload: &[u8]) -> Vec<u8> {
    let text = |length: usize| "SET owned 1\r\n".repeat(length / 13 + 1).into_bytes();
    match random.u8(..8) {
        0 => b"*0\r\n".to_vec(),
        1 => format!("SET {key} \"a\\x22 b\\n\\x41\"\r\n").into_bytes(),
        2 => request(&[b"SET", key.as_bytes(), b"1"]),
        3 => request(&[b"SET", key.as_bytes(), &text(random.usize(1..200_000))]),
        4 | 5 => {
            let fields = random.usize(1..200);
            let value = text(random.usize(0..300));
            let mut words = vec![b"HSET".to_vec(), key.as_bytes().to_vec()];
            words.extend((0..fields).flat_map(|n| [n.to_string().into_bytes(), value.clone()]));
            request(&words.iter().map(Vec::as_slice).collect::<Vec<_>>())
        }
        6 => request(&[b"RESTORE", key.as_bytes(), b"0", payload]),
        _ => request(&[b"GET", key.as_bytes()]),
    }
}

#[test]
fn pauses_and_pieces_change_no_reply_to_any_pipeline() {
    let seed = crate::support::seed("PAUSES_SEED");
    let server = config(&[]);
    let mut operator = server.connect();
    let members: Vec<String> = (0..12_000).map(|n| format!("member:{n}:{}", n * 7919)).collect();
    let mut fill = vec!["SADD", "all"];
    fill.extend(members.iter().map(String::as_str));
    operator.call(&fill);
    let Reply::Bulk(payload) = operator.call(&["DUMP", "all"]) else { panic!("a payload") };
    for round in 0..crate::support::number_from("PAUSES_ROUNDS", 12) {
        let mut random = fastrand::Rng::with_seed(seed * 1000 + round);
        let pipeline: Vec<u8> = (0..random.usize(1..12))
            .flat_map(|n| any_request(&mut random, &format!("key:{n}"), &payload))
            .collect();
        operator.call(&["FLUSHALL"]);
        let wanted = shown(&last_words(&server, &pipeline));
        let digest = operator.call(&["DEBUG", "DIGEST"]);

        operator.call(&["FLUSHALL"]);
        let mut stream = connect(&server);
        let (mut sent, mut is_paused) = (0, false);
        while sent < pipeline.len() {
            let piece = [100, 3_000, 20_000, 50_000][random.usize(..4)];
            let end = pipeline.len().min(sent + random.usize(1..=piece));
            stream.write_all(&pipeline[sent..end]).expect("the server reads");
            sent = end;
            if random.bool() {
                server.settle();
            }
            if random.bool() {
                let pause: &[&str] = match is_paused {
                    true => &["CLIENT", "UNPAUSE"],
                    false => &["CLIENT", "PAUSE", "1000000", "WRITE"],
                };
                operator.call(pause);
                is_paused = !is_paused;
            }
        }
        server.settle();
        operator.call(&["CLIENT", "UNPAUSE"]);
        // A client that waits for a pause is closed when it stops sending.
        stream.write_all(&request(&[b"ECHO", b"the last"])).expect("the server reads");
        let mut replies = Vec::new();
        while !replies.ends_with(b"$8\r\nthe last\r\n") {
            let mut bytes = [0; 64 * 1024];
            let count = read_some(&mut stream, &mut bytes).expect("a reply");
            assert!(count > 0, "round {round} of seed {seed}: closed after {}", shown(&replies));
            replies.extend_from_slice(&bytes[..count]);
        }
        replies.truncate(replies.len() - b"$8\r\nthe last\r\n".len());
        assert_eq!(shown(&replies), wanted, "round {round} of seed {seed}");
        assert_eq!(operator.call(&["DEBUG", "DIGEST"]), digest, "round {round} of seed {seed}");
    }
}

#[test]
fn broken_protocol_behind_requests_that_wait_is_told_when_they_have_run() {
    let server = config(&[]);
    let mut other = server.connect();
    for broken in ["\"\\x22 \\x22", "*1\r\n!", "*x", "*2\r\n$1\r\na\r\n$x"] {
        let expected = shown(&last_words(&server, format!("{broken}\r\n").as_bytes()));
        assert!(expected.starts_with("-ERR Protocol error: "), "{expected:?}");
        other.call(&["CLIENT", "PAUSE", "10000", "WRITE"]);
        let mut stream = connect(&server);
        stream.write_all(format!("PING\r\nDEL k\r\n{broken}\r\n").as_bytes()).expect("it reads");
        server.settle();
        other.call(&["CLIENT", "UNPAUSE"]);
        assert_eq!(shown(&rest(&mut stream)), format!("+PONG\r\n:0\r\n{expected}"), "{broken:?}");
    }
}

#[test]
fn a_paused_client_that_goes_takes_its_requests_along() {
    let server = config(&[]);
    let mut other = server.connect();
    other.call(&["CLIENT", "PAUSE", "10000", "WRITE"]);
    let mut killed = server.connect();
    killed.send(&["SET", "a", "1"]);
    assert_eq!(last_words(&server, b"SET b 1\r\nPING\r\n"), b"");
    server.settle();
    let reply = other.call(&["CLIENT", "KILL", "TYPE", "normal"]);
    assert_eq!(reply, Reply::Integer(1));
    assert_eq!(killed.reply(), None);
    server.advance(11_000_000);
    assert_eq!(other.call(&["EXISTS", "a", "b"]), Reply::Integer(0));
    assert_eq!(other.call(&["SET", "c", "1"]), simple("OK"));
}

#[test]
fn a_pause_of_all_ends_by_itself_and_pauses_the_pausing_pipeline_too() {
    let server = config(&[]);
    let mut client = server.connect();
    client.send_raw(b"CLIENT PAUSE 5000\r\nPING 1\r\nCLIENT PAUSE 5000\r\nPING 2\r\n");
    assert_eq!(client.reply(), Some(simple("OK")));
    server.settle();
    assert_eq!(client.try_message(), None);
    server.advance(5_001_000);
    assert_eq!(client.reply(), Some(Reply::Bulk("1".into())));
    assert_eq!(client.reply(), Some(simple("OK")));
    server.settle();
    assert_eq!(client.try_message(), None);
    server.advance(5_001_000);
    assert_eq!(client.reply(), Some(Reply::Bulk("2".into())));
}

// ---- pushes, kills and silence in pipelines -----------------------------------------------------

#[test]
fn killing_oneself_ends_the_pipeline_behind_its_reply() {
    let server = config(&[]);
    let reply = last_words(&server, b"PING\r\nCLIENT KILL TYPE normal SKIPME no\r\nPING\r\n*x\r\n");
    assert_eq!(shown(&reply), "+PONG\r\n:1\r\n");
}

#[test]
fn errors_are_as_silent_as_replies_when_replies_are_off() {
    let server = config(&[]);
    let text = b"CLIENT REPLY SKIP\r\nNOSUCH\r\nPING 1\r\nCLIENT REPLY OFF\r\nNOSUCH\r\nGET\r\nSET a 1 x\r\nCLIENT REPLY \
                 ON\r\nPING 2\r\n";
    assert_eq!(shown(&last_words(&server, text)), "$1\r\n1\r\n+OK\r\n$1\r\n2\r\n");
    for how in ["OFF", "SKIP"] {
        let mut stream = connect(&server);
        stream.write_all(format!("CLIENT REPLY {how}\r\n*x\r\n").as_bytes()).expect("it reads");
        assert_eq!(shown(&rest(&mut stream)), "");
    }
}

#[test]
fn subscriptions_confirm_in_their_order_though_replies_are_off() {
    let server = config(&[]);
    let told = |word: &str, count: u32| {
        format!("*3\r\n${}\r\n{word}\r\n$1\r\nc\r\n:{count}\r\n", word.len())
    };
    let (begins, ends) = (told("subscribe", 1), told("unsubscribe", 0));
    let text = b"CLIENT REPLY SKIP\r\nSUBSCRIBE c\r\nPING\r\nUNSUBSCRIBE c\r\nPING\r\n";
    let reply = format!("{begins}*2\r\n$4\r\npong\r\n$0\r\n\r\n{ends}+PONG\r\n");
    assert_eq!(shown(&last_words(&server, text)), reply);
    let text = b"CLIENT REPLY OFF\r\nSUBSCRIBE c\r\nUNSUBSCRIBE c\r\nCLIENT REPLY ON\r\nPING\r\n";
    assert_eq!(shown(&last_words(&server, text)), format!("{begins}{ends}+OK\r\n+PONG\r\n"));
}

#[test]
fn subscriptions_in_pipelines_confirm_in_their_order() {
    let server = config(&[]);
    let text = b"SUBSCRIBE a b\r\nGET k\r\nPING\r\nUNSUBSCRIBE\r\nPING\r\n";
    let reply = shown(&last_words(&server, text));
    assert!(reply.starts_with("*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n*3\r\n"), "{reply:?}");
    assert!(reply.contains(":2\r\n-ERR Can't execute 'get'"), "{reply:?}");
    assert!(reply.contains("*2\r\n$4\r\npong\r\n$0\r\n\r\n*3\r\n$11\r\nunsub"), "{reply:?}");
    assert!(reply.ends_with(":0\r\n+PONG\r\n"), "{reply:?}");
    let text = b"HELLO 3\r\nSUBSCRIBE a\r\nPUBLISH a m\r\nPING\r\n";
    let reply = shown(&last_words(&server, text));
    let end = ">3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n:1\r\n>3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\nm\r\n+PONG\r\n";
    assert!(reply.ends_with(end), "{reply:?}");
}

#[test]
fn a_monitor_sees_a_pipeline_in_its_order_and_its_own_requests() {
    let server = config(&[]);
    let mut monitor = server.connect();
    assert_eq!(monitor.call(&["MONITOR"]), simple("OK"));
    let text: String = (0..300).map(|number| format!("ECHO {number}\r\n")).collect();
    last_words(&server, text.as_bytes());
    for number in 0..300 {
        let Some(Reply::Simple(line)) = monitor.reply() else { panic!("a line") };
        assert!(shown(&line).ends_with(&format!("\"ECHO\" \"{number}\"")));
    }
    assert_eq!(monitor.call(&["PING"]), simple("PONG"));
    let Some(Reply::Simple(line)) = monitor.reply() else { panic!("a line") };
    assert!(shown(&line).ends_with("\"PING\""));
}

// ---- deadlines ----------------------------------------------------------------------------------

#[test]
fn steps_of_the_wall_clock_move_keys_with_a_date_and_no_others() {
    let server = config(&[]);
    let mut client = server.connect();
    let seconds = crate::support::START.0 / 1000;
    client.call(&["SET", "date", "v", "EXAT", &(seconds + 100).to_string()]);
    client.call(&["SET", "span", "v", "EX", "100"]);
    server.step_wall(-3_600_000_000);
    assert_eq!(client.call(&["TTL", "date"]), Reply::Integer(3700));
    assert_eq!(client.call(&["TTL", "span"]), Reply::Integer(100));
    server.step_wall(3_600_000_000 + 101_000_000);
    assert_eq!(info(&mut client, "stats", "expired_keys"), 1);
    assert_eq!(client.call(&["EXISTS", "date", "span"]), Reply::Integer(1));
    server.advance(100_001_000);
    assert_eq!(info(&mut client, "stats", "expired_keys"), 2);
}

#[test]
fn keys_of_all_databases_go_when_they_are_due_wherever_they_were_moved() {
    let server = config(&[]);
    let mut client = server.connect();
    for db in 0..16i64 {
        client.call(&["SELECT", &db.to_string()]);
        for number in 0..50 {
            let px = (1000 * (db + 1)).to_string();
            client.call(&["SET", &format!("k{number}"), "v", "PX", &px]);
        }
    }
    client.call(&["SWAPDB", "0", "15"]);
    client.call(&["SELECT", "7"]);
    client.call(&["FLUSHDB"]);
    // On a busy machine the deletions take more than one turn.
    let expired = |client: &mut Client, count: u64| {
        wait_for("the deletions", || {
            (info(client, "stats", "expired_keys") == count).then_some(())
        });
    };
    server.advance(1_001_000);
    expired(&mut client, 50);
    client.call(&["SELECT", "15"]);
    assert_eq!(client.call(&["DBSIZE"]), Reply::Integer(0));
    server.advance(14_000_000);
    expired(&mut client, 14 * 50);
    client.call(&["FLUSHALL"]);
    server.advance(10_000_000);
    assert_eq!(info(&mut client, "stats", "expired_keys"), 14 * 50);
}

#[test]
fn deadlines_at_the_ends_of_time_are_refused_or_kept() {
    let server = config(&[]);
    let mut client = server.connect();
    let numbers = [i64::MIN, i64::MIN + 1, -1, 0, 1 << 53, i64::MAX / 1000, i64::MAX - 1, i64::MAX];
    for number in numbers.map(|number| number.to_string()) {
        for command in ["EXPIRE", "PEXPIRE", "EXPIREAT", "PEXPIREAT"] {
            client.call(&["SET", "k", "v"]);
            client.call(&[command, "k", &number]);
            client.call(&["TTL", "k"]);
            client.call(&["PEXPIRETIME", "k"]);
            server.step_wall(1_000_000);
        }
        for option in ["EX", "PX", "EXAT", "PXAT"] {
            client.call(&["SET", "k", "v", option, &number]);
            client.call(&["GETEX", "k", option, &number]);
        }
    }
    server.settle();
    assert_eq!(client.call(&["PING"]), simple("PONG"));
}

// ---- figures ------------------------------------------------------------------------------------

#[test]
fn info_tells_what_the_loop_and_commands_took() {
    let server = config(&[]);
    let mut client = server.connect();
    let figures = |client: &mut Client| {
        ["eventloop_cycles", "eventloop_duration_sum", "eventloop_duration_cmd_sum"]
            .map(|name| info(client, "stats", name))
    };
    // A turn is counted when it has ended: the figures of the one before are complete.
    let [cycles, turns_us, commands_us] = figures(&mut client);
    client.call(&["DEBUG", "POPULATE", "200000"]);
    client.call(&["PING"]);
    let [cycles_then, turns_us_then, commands_us_then] = figures(&mut client);
    assert!(cycles_then >= cycles + 2, "{cycles} to {cycles_then}");
    let (turns_us, commands_us) = (turns_us_then - turns_us, commands_us_then - commands_us);
    assert!(commands_us > 1_000 && turns_us > 1_000, "{commands_us} of {turns_us} us");
    // Both are whole microseconds, and the commands of this very turn are counted already.
    let this_turn_us = 1_000_000;
    assert!(commands_us <= turns_us + this_turn_us, "{commands_us} of {turns_us} us");
    for _ in 0..3 {
        server.advance(100_000);
        client.call(&["PING"]);
    }
    assert!(info(&mut client, "stats", "instantaneous_eventloop_cycles_per_sec") > 0);
    client.call(&["CONFIG", "RESETSTAT"]);
    assert!(info(&mut client, "stats", "eventloop_cycles") <= 3);
    assert!(info(&mut client, "stats", "eventloop_duration_cmd_sum") < commands_us);
    assert_eq!(info(&mut client, "stats", "instantaneous_eventloop_cycles_per_sec"), 0);
    info(&mut client, "stats", "instantaneous_eventloop_duration_usec");
}

#[test]
fn info_counts_awaited_keys_and_refusals_and_names_the_listeners() {
    let server = config(&["requirepass pw"]);
    let mut client = server.connect();
    for _ in 0..2 {
        client.call(&["AUTH", "wrong"]);
    }
    client.call(&["AUTH", "pw"]);
    for (name, value) in [("auth", 2), ("cmd", 0), ("key", 0), ("channel", 0)] {
        let name = format!("acl_access_denied_{name}");
        assert_eq!(info(&mut client, "stats", &name), value, "{name}");
    }
    client.call(&["XGROUP", "CREATE", "s", "g", "$", "MKSTREAM"]);
    let waits: [&[&str]; 3] = [
        &["BLPOP", "k", "l", "0"],
        &["BLPOP", "k", "100"],
        &["XREADGROUP", "GROUP", "g", "c", "BLOCK", "0", "STREAMS", "s", ">"],
    ];
    let waiters = waits.map(|wait| {
        let mut waiter = server.connect();
        waiter.call(&["AUTH", "pw"]);
        waiter.send(wait);
        server.settle();
        waiter
    });
    let figures = |client: &mut Client| {
        ["total_blocking_keys", "total_blocking_keys_on_nokey", "clients_in_timeout_table"]
            .map(|name| info(client, "clients", name))
    };
    assert_eq!(figures(&mut client), [3, 1, 1]);
    drop(waiters);
    server.settle();
    assert_eq!(figures(&mut client), [0, 0, 0]);
    let Reply::Bulk(text) = client.call(&["INFO", "server"]) else { panic!("INFO is a text") };
    let listener =
        format!("\r\nlistener0:name=tcp,bind=127.0.0.1,port={}\r\n", server.address.port());
    assert!(shown(&text).contains(&listener), "{}", shown(&text));
    assert!(!shown(&text).contains("listener1"));
}

#[test]
fn a_replicas_address_cannot_add_lines_to_info() {
    let server = config(&[]);
    let mut client = server.connect();
    let told = client.call(&["REPLCONF", "ip-address", "a\r\nrole:slave"]);
    let refused = "ERR REPLCONF ip-address provided by replica instance has control characters";
    assert_eq!(told, Reply::Error(refused.into()));
}
