//! Each kind of wait beside each way in which it ends, and each way in which its client goes in the
//! turn in which it is served: nothing that was handed to a client that never learnt of it is lost,
//! and replies are neither lost nor shifted.

use crate::support::{Client, Reply, TestServer, wait_for};

/// A kind of wait. `{who}` is the client's name, `{s}` and `{ms}` are a time-out.
struct Kind {
    before: &'static [&'static str],
    wait: &'static str,
    /// What serves the wait.
    wake: &'static str,
    /// What is left; compared with the same server without the client that goes.
    look: &'static str,
    /// Whether one wake serves one client, so that the next one is served in place of one that goes.
    is_passed_on: bool,
}

const fn kind(
    before: &'static [&'static str],
    wait: &'static str,
    wake: &'static str,
    look: &'static str,
) -> Kind {
    Kind { before, wait, wake, look, is_passed_on: true }
}

/// The same, for elements that are in a destination, or pending, if their client goes.
const fn kept(
    before: &'static [&'static str],
    wait: &'static str,
    wake: &'static str,
    look: &'static str,
) -> Kind {
    Kind { is_passed_on: false, ..kind(before, wait, wake, look) }
}

const LIST: &str = "LRANGE l 0 -1";
const SET: &str = "ZRANGE z 0 -1 WITHSCORES";
const MOVED: &str =
    "EVAL return^redis.call('LLEN','s')+redis.call('LLEN','d')+redis.call('ZCARD','z') 0";
const HELD: &[&str] = &["LOCK.ACQUIRE k holder PX 60000"];
const FREE: &str = "LOCK.RELEASE k holder";

const KINDS: &[Kind] = &[
    kind(&[], "BLPOP l {s}", "RPUSH l a", LIST),
    kind(&[], "BLPOP other l {s}", "RPUSH l 7", LIST),
    kind(
        &["RPUSH src a", "PEXPIREAT src 9999999999999"],
        "BLPOP l {s}",
        "COPY src l",
        "PEXPIRETIME l",
    ),
    kind(&[], "BRPOP l {s}", "RPUSH l a", LIST),
    kept(&[], "BRPOP l {s}", "RPUSH l a b c", LIST),
    kind(&[], "BLMPOP {s} 2 other l LEFT", "RPUSH l a", LIST),
    kept(&[], "BLMPOP {s} 1 l RIGHT COUNT 2", "RPUSH l a b c", LIST),
    kept(&[], "BLMOVE s d LEFT RIGHT {s}", "RPUSH s a", MOVED),
    kept(&[], "BRPOPLPUSH s d {s}", "RPUSH s a", MOVED),
    kind(&[], "BZPOPMIN z {s}", "ZADD z 1.1 a", SET),
    kind(&[], "BZPOPMIN z {s}", "ZADD z -inf a", SET),
    kind(&[], "BZPOPMAX other z {s}", "ZADD z 3.0000000000000004 a", SET),
    kept(&[], "BZMPOP {s} 1 z MAX COUNT 2", "ZADD z 1 a 2 b 3 c", SET),
    kind(&[], "BZPOPDUE z {s} UNIT MS", "ZADD z 5 a", SET),
    kind(&[], "BZPOPDUE z {s}", "ZADD z 5 a", SET),
    kept(&[], "BZMOVEDUE z d {s}", "ZADD z 5 a", MOVED),
    kind(&[], "XREAD BLOCK {ms} STREAMS x $", "XADD x 1-1 f v", "XLEN x"),
    kept(
        &["XGROUP CREATE x g $ MKSTREAM"],
        "XREADGROUP GROUP g {who} BLOCK {ms} STREAMS x >",
        "XADD x 1-1 f v",
        "EVAL local^new=redis.call('XREADGROUP','GROUP','g','probe','STREAMS','x','>')return^redis.call('XPENDING','x','g')[1] 0",
    ),
    kind(HELD, "LOCK.ACQUIRE k {who} PX 60000 BLOCK {ms}", FREE, "EXISTS k"),
    kind(HELD, "LOCK.ACQUIRE k {who} PX 60000 BLOCK {ms} SHARED", FREE, "EXISTS k"),
    kind(HELD, "LOCK.ACQUIRE k {who} PX 60000 SESSION GRACE 60000 BLOCK {ms}", FREE, "EXISTS k"),
    kind(HELD, "LOCK.MACQUIRE 2 k j {who} PX 60000 BLOCK {ms}", FREE, "EXISTS k j"),
    kind(
        &["SEM.ACQUIRE sem holder LIMIT 1 PX 60000"],
        "SEM.ACQUIRE sem {who} LIMIT 1 PX 60000 BLOCK {ms}",
        "DEL sem",
        "ZCARD sem",
    ),
    kind(
        &["SEM.ACQUIRE sem holder LIMIT 2 COUNT 2 PX 60000"],
        "SEM.ACQUIRE sem {who} LIMIT 2 COUNT 2 PX 60000 SESSION GRACE 60000 BLOCK {ms}",
        "DEL sem",
        "ZCARD sem",
    ),
];

/// The waits for a push.
const ASYNC: &[Kind] = &[
    kind(HELD, "LOCK.ACQUIRE k {who} PX 60000 ASYNC {ms}", FREE, "EXISTS k"),
    kind(HELD, "LOCK.MACQUIRE 2 k j {who} PX 60000 ASYNC {ms}", FREE, "EXISTS k j"),
];

/// How a client goes in the turn in which it is served.
const GOES: &[&str] = &["killed", "killed first", "user", "transaction", "script", "output"];

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(|word| word.replace('^', " ")).collect()
}

fn request(line: &str, who: &str) -> Vec<String> {
    words(&line.replace("{who}", who).replace("{s}", "5").replace("{ms}", "5000"))
}

fn start() -> TestServer {
    TestServer::start(&["client-output-buffer-limit pubsub 20000 0 0".to_owned()])
}

fn ask(client: &mut Client, line: &str) -> Reply {
    client.call(&words(line))
}

fn id(client: &mut Client) -> String {
    match ask(client, "CLIENT ID") {
        Reply::Integer(id) => id.to_string(),
        reply => panic!("{reply:?}"),
    }
}

/// Waits until this number of clients wait, blocked or not.
fn wait_until_waiting(control: &mut Client, count: usize) {
    wait_for("the clients to wait", || {
        let info = ask(control, "INFO").show();
        let field = |name: &str| -> usize {
            let at = info.find(name).expect("the field") + name.len();
            let digits = info[at..].chars().take_while(char::is_ascii_digit);
            digits.collect::<String>().parse().expect("a number")
        };
        let blocked = field("blocked_clients:");
        (blocked.max(field("lock_waiters:")) >= count).then_some(())
    });
}

/// A client that will wait, and its number. The one that goes has a user who may be deleted.
fn waiter(server: &TestServer, protocol: &str, who: &str) -> (Client, String) {
    let mut client = server.connect();
    ask(&mut client, &format!("HELLO {protocol}"));
    if who == "goer" {
        ask(&mut client, "AUTH user x");
    }
    let number = id(&mut client);
    (client, number)
}

/// Whether what a client got is no grant and no element.
fn is_empty(reply: &Reply) -> bool {
    match reply {
        Reply::Error(_) | Reply::Null | Reply::NullArray | Reply::NullBulk => true,
        Reply::Array(items) => items.first() == Some(&Reply::Integer(0)),
        _ => false,
    }
}

/// What is left when a client goes in the turn in which it is served. `goes`: None: it was not there.
fn left(
    server: &TestServer,
    kind: &Kind,
    protocol: &str,
    goes: Option<&str>,
    next: bool,
    is_async: bool,
) -> String {
    let mut control = server.connect();
    ask(&mut control, "FLUSHALL");
    assert_eq!(ask(&mut control, "ACL SETUSER user on nopass ~* &* +@all").show(), "OK");
    kind.before.iter().for_each(|line| drop(ask(&mut control, line)));
    let went = goes.map(|goes| {
        let (mut client, number) = waiter(server, protocol, "goer");
        if goes == "output" {
            let patterns: Vec<String> = (1..=30).map(|stars| "*".repeat(stars)).collect();
            client.send(&[vec!["PSUBSCRIBE".to_owned()], patterns].concat());
            (0..30).for_each(|_| drop(client.next_message()));
        }
        client.send(&request(kind.wait, "goer"));
        if is_async {
            client.reply().expect("its place");
        }
        wait_until_waiting(&mut control, 1);
        (client, number)
    });
    let mut follower = next.then(|| waiter(server, protocol, "next").0);
    if let Some(follower) = &mut follower {
        follower.send(&request(kind.wait, "next"));
        if is_async {
            follower.reply().expect("its place");
        }
    }
    wait_until_waiting(&mut control, usize::from(went.is_some()) + usize::from(next));
    let number = went.as_ref().map_or_else(String::new, |(_, number)| number.clone());
    let (kill, wake) = (words(&format!("CLIENT KILL ID {number}")), request(kind.wake, ""));
    let script = [words("EVAL return^redis.call(unpack(ARGV)) 0"), wake.clone()].concat();
    let pipeline: Vec<Vec<String>> = match goes {
        None => vec![wake],
        Some("killed") => vec![wake, kill],
        Some("killed first") => vec![kill, wake],
        Some("user") => vec![wake, words("ACL DELUSER user")],
        Some("transaction") => vec![words("MULTI"), wake, kill, words("EXEC")],
        Some("script") => vec![script, kill],
        Some("output") => vec![wake, vec!["PUBLISH".into(), "news".into(), "x".repeat(1000)]],
        Some(goes) => panic!("{goes}"),
    };
    let bytes: Vec<u8> = pipeline.iter().flat_map(|one| crate::support::encode(one)).collect();
    control.send_raw(&bytes);
    for one in &pipeline {
        let reply = control.reply().expect("a reply");
        assert!(!matches!(reply, Reply::Error(_)), "{one:?}: {reply:?}");
    }
    if let Some((mut client, _)) = went {
        while let Some(message) = client.next_message() {
            assert!(!matches!(message, Reply::Array(_)), "{goes:?}, {}: {message:?}", kind.wait);
        }
    }
    server.settle();
    if let Some(follower) = &mut follower {
        let served = match is_async {
            true => follower.next_message(),
            false => follower.reply(),
        };
        let served = served.expect("the next client's reply");
        assert!(!is_empty(&served), "{goes:?}: the next client of {} got {served:?}", kind.wait);
    }
    ask(&mut control, kind.look).show()
}

#[test]
fn nothing_is_lost_that_was_handed_to_a_client_that_goes_in_the_same_turn() {
    let mut cases = 0;
    for (is_async, kinds) in [(false, KINDS), (true, ASYNC)] {
        for kind in kinds {
            let server = start();
            for protocol in ["2", "3"] {
                if is_async && protocol == "2" {
                    continue;
                }
                for next in [false, true] {
                    if next && !kind.is_passed_on {
                        continue;
                    }
                    let expected = left(&server, kind, protocol, None, next, is_async);
                    for &goes in GOES {
                        // A RESP2 client with subscriptions sends no such request.
                        if goes == "output" && protocol == "2" {
                            continue;
                        }
                        let found = left(&server, kind, protocol, Some(goes), next, is_async);
                        assert_eq!(
                            found, expected,
                            "{} in RESP{protocol}, {goes}, with a next client: {next}",
                            kind.wait
                        );
                        cases += 1;
                    }
                }
            }
        }
    }
    assert!(cases >= 400, "{cases} cases");
}

/// The ways in which a wait ends with a reply.
const ENDS: &[&str] = &["served", "time is up", "unblocked", "unblocked with an error"];

/// What a client asks before the wait and after it, and the replies besides that of the wait, which
/// is `?`.
const MODES: &[(&[&str], &[&str], &str)] = &[
    (&[], &["ECHO tail"], "? tail"),
    (&["CLIENT REPLY SKIP"], &["ECHO tail"], "tail"),
    (&["CLIENT REPLY SKIP"], &["CLIENT REPLY SKIP", "ECHO no", "ECHO tail"], "tail"),
    (
        &["CLIENT REPLY SKIP"],
        &["CLIENT REPLY OFF", "ECHO no", "CLIENT REPLY ON", "ECHO tail"],
        "OK tail",
    ),
    (&["CLIENT REPLY OFF"], &["ECHO no", "CLIENT REPLY ON", "ECHO tail"], "OK tail"),
    (&["CLIENT REPLY SKIP", "RESET"], &["ECHO tail"], "? tail"),
    (&["CLIENT REPLY OFF", "RESET"], &["ECHO tail"], "RESET ? tail"),
    (&["CLIENT REPLY SKIP"], &["RESET", "ECHO tail"], "RESET tail"),
];

#[test]
fn the_reply_of_a_wait_is_skipped_as_any_other_however_it_ends() {
    const WAITS: &[Kind] =
        &[kind(&[], "WAIT 1 {ms}", "PING", "PING"), kind(&[], "WAITAOF 0 1 {ms}", "PING", "PING")];
    let mut cases = 0;
    for kind in KINDS.iter().chain(WAITS) {
        let server = start();
        for end in ENDS {
            if *end == "served" && kind.wake == "PING" {
                continue;
            }
            for (first, last, expected) in MODES {
                let mut control = server.connect();
                ask(&mut control, "FLUSHALL");
                kind.before.iter().for_each(|line| drop(ask(&mut control, line)));
                let mut client = server.connect();
                let number = id(&mut client);
                let first = first.iter().map(|line| words(line));
                let all = first
                    .chain([request(kind.wait, "who")])
                    .chain(last.iter().map(|line| words(line)));
                let bytes: Vec<u8> = all.flat_map(|one| crate::support::encode(&one)).collect();
                client.send_raw(&bytes);
                wait_until_waiting(&mut control, 1);
                match *end {
                    "served" => drop(control.call(&request(kind.wake, ""))),
                    "time is up" => server.advance(5_001_000),
                    "unblocked" => drop(ask(&mut control, &format!("CLIENT UNBLOCK {number}"))),
                    _ => drop(ask(&mut control, &format!("CLIENT UNBLOCK {number} ERROR"))),
                }
                for word in expected.split(' ') {
                    let reply = client.reply().expect("a reply");
                    let text = match &reply {
                        Reply::Simple(text) | Reply::Bulk(text) => String::from_utf8_lossy(text),
                        _ => "?".into(),
                    };
                    assert!(
                        word == text || word == "?",
                        "{}, {end}: {reply:?} for {word} of {expected}",
                        kind.wait
                    );
                    assert_ne!(
                        (word, &*text),
                        ("?", "tail"),
                        "{}, {end}: of {expected}",
                        kind.wait
                    );
                }
                server.settle();
                assert_eq!(client.try_message(), None, "{}, {end}: {expected}", kind.wait);
                cases += 1;
            }
        }
    }
    assert!(cases >= 700, "{cases} cases");
}

/// The fence of a lock, and whether its owner still holds it in that grant.
fn guard(client: &mut Client, key: &str, owner: &str, fence: &Reply) -> Reply {
    let Reply::Integer(fence) = fence else { panic!("{fence:?}") };
    ask(client, &format!("LOCK.GUARD {key} {owner} FENCE {fence}"))
}

#[test]
fn a_lock_that_was_held_before_keeps_its_fence_if_a_grant_of_several_is_taken_back() {
    for before in [
        "LOCK.ACQUIRE own me PX 30000",
        "LOCK.ACQUIRE own me PX 30000 SHARED",
        "LOCK.ACQUIRE own me PX 30000 SESSION GRACE 9000",
    ] {
        for wait in [
            "LOCK.MACQUIRE 2 own k me PX 600000 BLOCK 0",
            "LOCK.MACQUIRE 2 own k me PX 600000 BLOCK 0 REENTRANT",
        ] {
            let server = start();
            let (mut holder, mut client, mut control) =
                (server.connect(), server.connect(), server.connect());
            let Reply::Array(granted) = ask(&mut holder, before) else { panic!("not granted") };
            ask(&mut control, "LOCK.ACQUIRE k other PX 60000");
            let number = id(&mut client);
            client.send(&words(wait));
            wait_until_waiting(&mut control, 1);
            control.send_raw(
                &[words("LOCK.RELEASE k other"), words(&format!("CLIENT KILL ID {number}"))]
                    .iter()
                    .flat_map(|one| crate::support::encode(one))
                    .collect::<Vec<u8>>(),
            );
            (0..2).for_each(|_| drop(control.reply()));
            assert_eq!(client.reply(), None);
            server.settle();
            assert_eq!(ask(&mut control, "EXISTS k"), Reply::Integer(0), "{before}, {wait}");
            let is_held = guard(&mut control, "own", "me", &granted[0]);
            assert_eq!(is_held, Reply::Integer(1), "{before}, {wait}");
            // No client sees a grace that nobody needs.
            let left = ask(&mut control, "PTTL own");
            assert_eq!(left, Reply::Integer(30_000), "{before}, {wait}");
            let Reply::Integer(fence) = &granted[0] else { panic!("no fence") };
            let line = format!("LOCK.RELEASE own me FENCE {fence}");
            assert_eq!(ask(&mut holder, &line), Reply::Integer(0), "{before}, {wait}");
            assert_eq!(ask(&mut control, "LOCK.LIST").show().matches("own").count(), 0);
        }
    }
}

/// Sends requests of a client that reaches its limit of output, and is closed, in the same turn.
fn asks_and_goes(client: &mut Client, requests: Vec<Vec<String>>) {
    let patterns: Vec<String> = (1..=30).map(|stars| "*".repeat(stars)).collect();
    ask(client, "HELLO 3");
    client.send(&[vec!["PSUBSCRIBE".to_owned()], patterns].concat());
    (0..30).for_each(|_| drop(client.next_message()));
    let publish = vec!["PUBLISH".to_owned(), "news".into(), "x".repeat(1000)];
    let pipeline = requests.into_iter().chain([publish]);
    let bytes: Vec<u8> = pipeline.flat_map(|one| crate::support::encode(&one)).collect();
    client.send_raw(&bytes);
    assert!(client.next_message().is_none());
}

/// A further request of an owner renews the lock that it holds. If its client goes before it learns
/// of that, the lease, the holds, the fence and the session are as before, however often it asked in
/// that turn.
#[test]
fn a_lock_that_was_held_before_keeps_its_lease_if_a_renewal_is_taken_back() {
    let mut cases = 0;
    for before in ["", " SHARED", " SESSION GRACE 9000", " SHARED SESSION GRACE 9000", " REENTRANT"]
    {
        let own = before.replace(" SESSION GRACE 9000", "");
        let single = |ms: i64, more: &str| format!("LOCK.ACQUIRE k me PX {ms}{own}{more}");
        let several = |keys: &str, more: &str| format!("LOCK.MACQUIRE {keys} me PX 600000{more}");
        let requests = [
            vec![single(600_000, "")],
            vec![single(600_000, " SESSION GRACE 500")],
            vec![single(600_000, ""), single(700_000, " SESSION GRACE 500"), single(800_000, "")],
            vec![several("1 k", "")],
            vec![several("2 k j", ""), several("2 j k", " REENTRANT"), several("3 k j i", "")],
            vec!["LOCK.ACQUIRE k me PX 600000".to_owned(), several("2 k j", "")],
            // A reader becomes the writer.
            vec![single(600_000, ""), "LOCK.ACQUIRE k me PX 700000".to_owned()],
        ];
        for request in requests {
            for holder_goes in [false, true] {
                let server = start();
                let (mut holder, mut client, mut control) =
                    (server.connect(), server.connect(), server.connect());
                ask(&mut holder, &format!("LOCK.ACQUIRE k me PX 30000{before}"));
                let look = |control: &mut Client| {
                    let all =
                        ["LOCK.INFO k", "PTTL k", "EXISTS i j", "HMGET k me :fence :session :r:me"];
                    all.map(|line| ask(control, line).show()).join("\n")
                };
                let expected = look(&mut control);
                asks_and_goes(&mut client, request.iter().map(|line| words(line)).collect());
                server.settle();
                let known = look(&mut control);
                let of = |text: &str| -> Vec<String> {
                    // The number of renewals and of grants is that of all requests.
                    let counts = ["renewals", "grants", "since", "last-end"];
                    let lines = text.lines().collect::<Vec<_>>();
                    let is_count = |at: usize| counts.iter().any(|it| lines[at].contains(it));
                    let kept = (0..lines.len())
                        .filter(|at| !is_count(*at) && (*at == 0 || !is_count(at - 1)));
                    kept.map(|at| lines[at].to_owned()).collect()
                };
                assert_eq!(of(&known), of(&expected), "{before}: {request:?}");
                if holder_goes {
                    drop(holder);
                    server.settle();
                    let ms = if before.contains("GRACE") { 9000 } else { 30_000 };
                    let left = ask(&mut control, "PTTL k");
                    assert_eq!(left, Reply::Integer(ms), "{before}: {request:?}");
                }
                cases += 1;
            }
        }
    }
    assert_eq!(cases, 70);
}

/// A further request of an owner renews the permits that it holds. If its client goes before it
/// learns of that, their deadlines and their session are as before, and other requests stay.
#[test]
fn permits_that_were_held_before_keep_their_time_if_a_renewal_is_taken_back() {
    let mut cases = 0;
    for before in ["", " SESSION GRACE 9000"] {
        for session in ["", " SESSION GRACE 500"] {
            for count in [1, 2] {
                for holder_goes in [false, true] {
                    let server = start();
                    let (mut holder, mut client, mut control) =
                        (server.connect(), server.connect(), server.connect());
                    ask(&mut holder, &format!("SEM.ACQUIRE s me LIMIT 3 PX 30000{before}"));
                    let look = |control: &mut Client| ask(control, "SEM.INFO s").show();
                    let expected = look(&mut control);
                    let request =
                        format!("SEM.ACQUIRE s me LIMIT 3 COUNT {count} PX 600000{session}");
                    asks_and_goes(&mut client, vec![words(&request)]);
                    server.settle();
                    assert_eq!(look(&mut control), expected, "{before}, {request}");
                    if holder_goes {
                        drop(holder);
                        server.settle();
                        let ms = if before.is_empty() { 30_000 } else { 9000 };
                        let left = ask(&mut control, "PTTL s");
                        assert_eq!(left, Reply::Integer(ms), "{before}, {request}");
                    } else if !before.is_empty() {
                        // The session goes on for its client.
                        server.advance(20_000_000);
                        ask(&mut holder, "PING");
                        server.advance(20_000_000);
                        ask(&mut holder, "PING");
                        let left = ask(&mut control, "SEM.INFO s").show();
                        assert!(left.contains("#1"), "{left}: {before}, {request}");
                    }
                    cases += 1;
                }
            }
        }
    }
    assert_eq!(cases, 16);
}

#[test]
fn pushes_about_locks_come_whatever_client_reply_says() {
    for off in ["CLIENT REPLY OFF", "CLIENT REPLY SKIP"] {
        let server = start();
        let (mut client, mut control) = (server.connect(), server.connect());
        ask(&mut client, "HELLO 3");
        ask(&mut control, "LOCK.ACQUIRE k holder PX 60000");
        client.send(&words(off));
        client.send(&words("LOCK.ACQUIRE k me PX 60000 ASYNC 0"));
        wait_until_waiting(&mut control, 1);
        ask(&mut control, FREE);
        let granted = client.next_message().expect("a push");
        assert!(granted.show().contains("lock-granted"), "{off}: {granted:?}");
        ask(&mut control, "DEL k");
        let lost = client.next_message().expect("a push");
        assert!(lost.show().contains("lock-lost"), "{off}: {lost:?}");
    }
}
