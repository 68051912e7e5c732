//! Scripts that survive (`script-cache-persist`): EVALSHA finds them after a restart, at a replica,
//! and after its promotion.

use std::path::Path;

use crate::cluster::nodes::{Node, cluster_with, eventually};
use crate::support::peer::Peer;
use crate::support::{Client, Reply, TestServer, decode, encode, wait_for};

const ON: &str = "script-cache-persist yes";

/// No server waits for its replicas when it ends: its clock stands still then. No link times out:
/// clocks are advanced while threads work in real time.
const OWN_CLOCK: [&str; 2] = ["shutdown-timeout 0", "repl-timeout 86400"];

fn start(dir: &Path, lines: &[&str]) -> TestServer {
    let mut all = vec![format!("dir {}", dir.display())];
    all.extend(OWN_CLOCK.iter().chain(lines).map(|line| (*line).to_owned()));
    TestServer::start(&all)
}

fn start_alone(lines: &[&str]) -> TestServer {
    let lines = lines.iter().chain(&OWN_CLOCK).map(|line| (*line).to_owned());
    TestServer::start(&lines.collect::<Vec<_>>())
}

/// The requests of the stream since the last call, without SELECT.
fn stream(client: &mut Client) -> Vec<String> {
    let Reply::Bulk(stream) = client.call(&["DEBUG", "EFFECTS", "TAKE"]) else {
        panic!("no stream")
    };
    let (mut at, mut requests) = (0, Vec::new());
    while at < stream.len() {
        let Some(Reply::Array(words)) = decode(&stream, &mut at) else { panic!("no request") };
        let words = words.into_iter().map(|word| match word {
            Reply::Bulk(word) => word.escape_ascii().to_string(),
            other => panic!("{other:?}"),
        });
        let request: Vec<String> = words.collect();
        if request[0] != "SELECT" {
            requests.push(request.join(" "));
        }
    }
    requests
}

fn eval(client: &mut Client, body: &str) {
    let reply = client.call(&["EVAL", body, "0"]);
    assert!(!matches!(reply, Reply::Error(_)), "{body}: {}", reply.show());
}

fn load(client: &mut Client, body: &[u8]) -> String {
    match client.call(&[b"SCRIPT", &b"LOAD"[..], body]) {
        Reply::Bulk(sha) => String::from_utf8(sha).expect("hexadecimal digits"),
        other => panic!("{}", other.show()),
    }
}

/// Whether EVALSHA of each script runs.
fn known(client: &mut Client, shas: &[String]) -> Vec<bool> {
    let mut known = Vec::new();
    for sha in shas {
        let reply = client.call(&["EVALSHA", sha, "0"]);
        known.push(!reply.show().starts_with("(error) NOSCRIPT"));
    }
    known
}

/// Loads a script, one with every byte, and sends a third one twice, a fourth once. Returns their
/// SHA1 sums; all but the last survive.
fn fill(client: &mut Client) -> Vec<String> {
    let mut odd = b"local text = '".to_vec();
    odd.extend((0..=255).filter(|byte| !b"'\\\r\n".contains(byte)));
    odd.extend_from_slice(b"' return #text");
    let loaded = load(client, b"return 'loaded'");
    let odd = load(client, &odd);
    eval(client, "return 'twice'");
    eval(client, "return 'twice'");
    eval(client, "return 'once'");
    // The digits of "return 'twice'" and "return 'once'".
    let sha = |client: &mut Client, body: &str| {
        client.call(&["EVAL", "return redis.sha1hex(ARGV[1])", "0", body]).show()
    };
    let text = |shown: String| shown.trim_matches('"').to_owned();
    let (twice, once) = (sha(client, "return 'twice'"), sha(client, "return 'once'"));
    vec![loaded, odd, text(twice), text(once)]
}

const SURVIVE: [bool; 4] = [true, true, true, false];

#[test]
fn a_script_is_written_when_it_is_loaded_or_sent_again() {
    let server = start_alone(&[]);
    let mut client = server.connect();
    client.call(&["DEBUG", "EFFECTS", "ON"]);
    // Off: as in Redis.
    eval(&mut client, "return 0");
    eval(&mut client, "return 0");
    load(&mut client, b"return -1");
    client.call(&["SCRIPT", "FLUSH"]);
    eval(&mut client, "return 1");
    eval(&mut client, "return 1");
    eval(&mut client, "return 'once'");
    load(&mut client, b"return 2");
    assert_eq!(stream(&mut client), [""; 0]);
    // Switched on: what is there is written.
    client.call(&["CONFIG", "SET", "script-cache-persist", "yes"]);
    let both = ["SCRIPT LOAD return 1", "SCRIPT LOAD return 2"];
    assert_eq!(stream(&mut client), both);
    eval(&mut client, "return 3");
    assert_eq!(stream(&mut client), [""; 0]);
    eval(&mut client, "return 3");
    eval(&mut client, "return 3");
    assert_eq!(stream(&mut client), ["SCRIPT LOAD return 3"]);
    let sha = load(&mut client, b"return '\0\xff'");
    assert_eq!(stream(&mut client), ["SCRIPT LOAD return \\'\\x00\\xff\\'"]);
    client.call(&["EVALSHA", &sha, "0"]);
    load(&mut client, b"return '\0\xff'");
    client.call(&["EVAL_RO", "return 4", "0"]);
    assert_eq!(stream(&mut client), [""; 0]);
    client.call(&["EVAL_RO", "return 4", "0"]);
    assert_eq!(stream(&mut client), ["SCRIPT LOAD return 4"]);
    // A script that fails is a script; one that cannot be compiled is none.
    client.call(&["EVAL", "return nil + 1", "0"]);
    client.call(&["EVAL", "return nil + 1", "0"]);
    client.call(&["SCRIPT", "LOAD", "return return"]);
    assert_eq!(stream(&mut client), ["SCRIPT LOAD return nil + 1"]);
    // Thousands that are sent once.
    for number in 0..2000 {
        eval(&mut client, &format!("return 'flood {number}'"));
    }
    assert_eq!(stream(&mut client), [""; 0]);
    // In a transaction.
    for line in ["MULTI", "SET k 1", "SCRIPT LOAD return#5", "SET k 2", "EXEC"] {
        let words: Vec<String> = line.split(' ').map(|word| word.replace('#', " ")).collect();
        client.call(&words);
    }
    let expected = ["MULTI", "SET k 1", "SCRIPT LOAD return 5", "SET k 2", "EXEC"];
    assert_eq!(stream(&mut client), expected);
    client.call(&["MULTI"]);
    client.call(&["EVAL", "return redis.call('set', 'k', 3)", "0"]);
    client.call(&["EVAL", "return redis.call('set', 'k', 3)", "0"]);
    client.call(&["EXEC"]);
    let mut seen = stream(&mut client);
    let at = seen.iter().position(|request| request.starts_with("SCRIPT")).expect("it is written");
    assert_eq!(seen.remove(at), "SCRIPT LOAD return redis.call(\\'set\\', \\'k\\', 3)");
    assert_eq!(seen, ["MULTI", "set k 3", "set k 3", "EXEC"]);
    client.call(&["SCRIPT", "FLUSH", "ASYNC"]);
    load(&mut client, b"return 1");
    assert_eq!(stream(&mut client), ["SCRIPT FLUSH", "SCRIPT LOAD return 1"]);
    // Switched off: only the flush is written, since the files have scripts.
    client.call(&["CONFIG", "SET", "script-cache-persist", "no"]);
    load(&mut client, b"return 6");
    client.call(&["SCRIPT", "FLUSH"]);
    client.call(&["SCRIPT", "FLUSH"]);
    assert_eq!(stream(&mut client), ["SCRIPT FLUSH"]);
}

#[test]
fn no_more_than_the_limit_is_written_and_nothing_in_a_pause() {
    let server = start_alone(&[ON, "script-cache-persist-limit 1000"]);
    let (mut client, mut other) = (server.connect(), server.connect());
    client.call(&["DEBUG", "EFFECTS", "ON"]);
    let large = format!("return '{}'", "x".repeat(1000));
    load(&mut client, large.as_bytes());
    assert_eq!(stream(&mut client), [""; 0]);
    client.call(&["CONFIG", "SET", "script-cache-persist-limit", "2000"]);
    assert_eq!(stream(&mut client).len(), 1);
    // While clients are paused, a replica may be about to take over: its stream stands still.
    client.call(&["CLIENT", "PAUSE", "100000", "WRITE"]);
    client.call(&["EVAL_RO", "return 1", "0"]);
    client.call(&["EVAL_RO", "return 1", "0"]);
    load(&mut other, b"return 2");
    server.settle();
    assert_eq!(stream(&mut client), [""; 0]);
    client.call(&["CLIENT", "UNPAUSE"]);
    server.settle();
    assert_eq!(stream(&mut client), ["SCRIPT LOAD return 1", "SCRIPT LOAD return 2"]);
}

/// The scripts after a restart from files that were written in some way.
fn restart(lines: &[&str], before: impl Fn(&TestServer, &mut Client)) {
    let dir = tempfile::tempdir().expect("a folder");
    let lines = [lines, &[ON]].concat();
    let server = start(dir.path(), &lines);
    let mut client = server.connect();
    let shas = fill(&mut client);
    before(&server, &mut client);
    drop((client, server));
    let server = start(dir.path(), &lines);
    let mut client = server.connect();
    assert_eq!(known(&mut client, &shas), SURVIVE, "{lines:?}");
    let sum = client.call(&["EVALSHA", &shas[1], "0"]);
    assert_eq!(sum, Reply::Integer(252));
    assert_eq!(client.call(&["EVALSHA", &shas[2], "0"]).show(), "\"twice\"");
    // What was read is not written again, but survives again.
    drop((client, server));
    let server = start(dir.path(), &lines);
    assert_eq!(known(&mut server.connect(), &shas), SURVIVE, "{lines:?}, the second time");
    // Switched off.
    drop(server);
    let lines = [&lines[..lines.len() - 1], &["script-cache-persist no"]].concat();
    let server = start(dir.path(), &lines);
    let mut client = server.connect();
    client.call(&["SCRIPT", "FLUSH"]);
    drop((client, server));
    let server = start(dir.path(), &lines);
    assert_eq!(known(&mut server.connect(), &shas), [false; 4], "{lines:?}, after FLUSH");
}

fn rewrite(server: &TestServer, client: &mut Client) {
    client.call(&["BGREWRITEAOF"]);
    wait_for("the rewrite", || {
        server.advance(50_000);
        let info = client.call(&["INFO", "persistence"]).show();
        info.contains("aof_rewrite_in_progress:0").then_some(())
    });
}

#[test]
fn scripts_are_there_after_a_restart() {
    restart(&["appendonly yes"], |_, _| {});
    restart(&["appendonly yes"], rewrite);
    restart(&["appendonly yes", "aof-use-rdb-preamble no"], |_, _| {});
    restart(&["appendonly yes", "aof-use-rdb-preamble no"], rewrite);
    restart(&[], |_, client| assert_eq!(client.call(&["SAVE"]).show(), "OK"));
    restart(&["appendonly yes"], |server, client| {
        // Switched on late: it begins with a snapshot.
        client.call(&["CONFIG", "SET", "appendonly", "no"]);
        client.call(&["CONFIG", "SET", "appendonly", "yes"]);
        rewrite(server, client);
    });
}

#[test]
fn a_flush_during_a_rewrite_is_in_the_log_after_it() {
    let dir = tempfile::tempdir().expect("a folder");
    let lines = [ON, "appendonly yes"];
    let server = start(dir.path(), &lines);
    let mut client = server.connect();
    let shas = fill(&mut client);
    client.call(&["DEBUG", "POPULATE", "2000"]);
    client.call(&["CONFIG", "SET", "rdb-key-save-delay", "1000"]);
    client.call(&["BGREWRITEAOF"]);
    server.settle();
    let info = client.call(&["INFO", "persistence"]).show();
    assert!(info.contains("aof_rewrite_in_progress:1"), "{info}");
    client.call(&["SCRIPT", "FLUSH"]);
    let new = load(&mut client, b"return 'new'");
    client.call(&["CONFIG", "SET", "rdb-key-save-delay", "0"]);
    rewrite(&server, &mut client);
    drop((client, server));
    let server = start(dir.path(), &lines);
    let mut client = server.connect();
    assert_eq!(known(&mut client, &shas), [false; 4]);
    assert_eq!(known(&mut client, &[new]), [true]);
}

#[test]
fn the_last_used_scripts_survive_up_to_the_limit() {
    let dir = tempfile::tempdir().expect("a folder");
    let lines = [ON, "script-cache-persist-limit 1000"];
    let server = start(dir.path(), &lines);
    let mut client = server.connect();
    let body = |number: usize| format!("return '{number}{}'", "x".repeat(90));
    let shas: Vec<String> =
        (0..30).map(|number| load(&mut client, body(number).as_bytes())).collect();
    // The first is used last.
    known(&mut client, &shas[..1]);
    assert_eq!(client.call(&["SAVE"]).show(), "OK");
    drop((client, server));
    let server = start(dir.path(), &lines);
    let known = known(&mut server.connect(), &shas);
    let expected: Vec<bool> = (0..30).map(|number| number == 0 || number >= 22).collect();
    assert_eq!(known, expected);
}

#[test]
fn a_file_of_an_older_redis_has_scripts() {
    let body = b"return 'of Redis 5'";
    let mut file = b"REDIS0009".to_vec();
    for text in [&b"lua"[..], body, b"lua", b"#!unknown\nreturn 1"] {
        if text == b"lua" {
            file.push(250);
        }
        file.push(text.len() as u8);
        file.extend_from_slice(text);
    }
    file.push(255);
    file.extend_from_slice(&[0; 8]);
    let dir = tempfile::tempdir().expect("a folder");
    for (lines, is_known) in [(&[][..], false), (&[ON], true)] {
        std::fs::write(dir.path().join("dump.rdb"), &file).expect("a file");
        let server = start(dir.path(), lines);
        let mut client = server.connect();
        let sha = client.call(&[&b"EVAL"[..], b"return redis.sha1hex(ARGV[1])", b"0", &body[..]]);
        let sha = sha.show().trim_matches('"').to_owned();
        assert_eq!(known(&mut client, &[sha]), [is_known]);
    }
}

fn follow(replica: &mut Client, primary: &TestServer) {
    let port = primary.address.port().to_string();
    replica.call(&["REPLICAOF", "127.0.0.1", &port]);
}

/// Waits until a replica has all that its primary has written.
fn await_replica(primary: &TestServer, servers: &[&TestServer]) {
    let mut client = primary.connect();
    wait_for("the replica", || {
        servers.iter().for_each(|server| server.advance(300_000));
        let info = client.call(&["INFO", "replication"]).show();
        let field = |name: &str| {
            let at = info.find(name)? + name.len();
            info[at..].split(|char: char| !char.is_ascii_digit()).next().map(str::to_owned)
        };
        let (sent, acknowledged) = (field("master_repl_offset:"), field(",offset="));
        // A replica is online when its snapshot has been sent, not when it has been read.
        let has_read = servers.iter().all(|server| {
            let info = server.connect().call(&["INFO", "replication"]).show();
            !info.contains("role:slave") || info.contains("master_link_status:up")
        });
        let is_online = info.contains("state=online") && sent.is_some() && sent == acknowledged;
        (is_online && has_read).then_some(())
    });
}

#[test]
fn a_promoted_replica_has_the_scripts() {
    for option in [ON, "script-cache-persist no"] {
        let dir = tempfile::tempdir().expect("a folder");
        let lines = [option, "appendonly yes", "appendfsync always"];
        let primary = start_alone(&[ON]);
        let replica = start(dir.path(), &lines);
        let (mut client, mut other) = (primary.connect(), replica.connect());
        let mut early = fill(&mut client);
        follow(&mut other, &primary);
        await_replica(&primary, &[&primary, &replica]);
        let late = load(&mut client, b"return 'late'");
        // A client's own scripts at a replica are not in its primary's stream.
        let own = load(&mut other, b"return 'own'");
        await_replica(&primary, &[&primary, &replica]);
        // A replica that does not keep scripts takes those of the stream, as Redis does, but none
        // of a snapshot.
        let is_on = option == ON;
        let of_snapshot = if is_on { SURVIVE } else { [false; 4] };
        assert_eq!(known(&mut other, &early), of_snapshot, "{option}");
        early.push(late.clone());
        assert_eq!(known(&mut other, &[late.clone(), own.clone()]), [true, true], "{option}");
        // Its own log has them, which begins with a snapshot.
        wait_for("the replica's log", || {
            replica.advance(50_000);
            let info = other.call(&["INFO", "persistence"]).show();
            let is_done = |field: &str| info.contains(&format!("{field}:0"));
            (is_done("aof_rewrite_in_progress") && is_done("aof_rewrite_scheduled")).then_some(())
        });
        drop((client, other, primary, replica));
        let again = start(dir.path(), &lines);
        let mut other = again.connect();
        other.call(&["REPLICAOF", "NO", "ONE"]);
        assert_eq!(known(&mut other, &early)[..4], of_snapshot, "{option}");
        assert_eq!(known(&mut other, &[late]), [is_on], "{option}");
        // SCRIPT FLUSH of the new primary reaches its own replicas.
        let next = start_alone(&[ON]);
        let mut third = next.connect();
        follow(&mut third, &again);
        await_replica(&again, &[&again, &next]);
        wait_for("the scripts", || {
            [&again, &next].into_iter().for_each(|server| server.advance(100_000));
            (known(&mut third, &early)[..4] == of_snapshot).then_some(())
        });
        other.call(&["SCRIPT", "FLUSH"]);
        other.call(&["SET", "k", "v"]);
        await_replica(&again, &[&again, &next]);
        let expected = if is_on { [false; 4] } else { of_snapshot };
        assert_eq!(known(&mut third, &early)[..4], expected, "{option}");
    }
}

/// A replica's own scripts go to its replicas once it is a primary.
#[test]
fn a_new_primary_writes_what_its_clients_loaded_before() {
    let (primary, replica, third) = (start_alone(&[ON]), start_alone(&[ON]), start_alone(&[ON]));
    let (mut client, mut other, mut last) = (primary.connect(), replica.connect(), third.connect());
    follow(&mut other, &primary);
    await_replica(&primary, &[&primary, &replica]);
    follow(&mut last, &replica);
    let all = [&primary, &replica, &third];
    await_replica(&replica, &all);
    let shared = load(&mut client, b"return 'shared'");
    let own = load(&mut other, b"return 'own'");
    await_replica(&primary, &all);
    await_replica(&replica, &all);
    assert_eq!(known(&mut last, &[shared.clone(), own.clone()]), [true, false]);
    other.call(&["REPLICAOF", "NO", "ONE"]);
    await_replica(&replica, &all);
    assert_eq!(known(&mut last, &[shared, own]), [true, true]);
}

/// The link is cut while the primary goes on: the part of the stream that the replica has missed has
/// the scripts.
#[test]
fn a_replica_that_was_away_gets_the_scripts_by_a_partial_synchronization() {
    let (primary, replica) = (start_alone(&[ON]), start_alone(&[ON]));
    let (mut client, mut other) = (primary.connect(), replica.connect());
    follow(&mut other, &primary);
    await_replica(&primary, &[&primary, &replica]);
    for round in 1..=3 {
        let pipeline = [
            vec!["CLIENT".to_owned(), "KILL".into(), "TYPE".into(), "replica".into()],
            vec!["SCRIPT".into(), "LOAD".into(), format!("return {round}")],
            vec!["EVAL".into(), format!("return 'sent' .. {round}"), "0".into()],
            vec!["EVAL".into(), format!("return 'sent' .. {round}"), "0".into()],
        ];
        let bytes: Vec<u8> = pipeline.iter().flat_map(|one| encode(one)).collect();
        client.send_raw(&bytes);
        (0..pipeline.len()).for_each(|_| drop(client.reply().expect("a reply")));
        await_replica(&primary, &[&primary, &replica]);
        let info = client.call(&["INFO", "stats"]).show();
        assert!(info.contains(&format!("sync_partial_ok:{round}")), "{info}");
        assert!(info.contains("sync_full:1"), "{info}");
        let sha = |body: &str| {
            let sum = "return redis.sha1hex(ARGV[1])";
            primary.connect().call(&["EVAL", sum, "0", body]).show().trim_matches('"').to_owned()
        };
        let shas = [sha(&format!("return {round}")), sha(&format!("return 'sent' .. {round}"))];
        assert_eq!(known(&mut other, &shas), [true, true], "{round}");
    }
}

/// A node's replica has its scripts and keeps them when it takes over; other nodes have their own.
#[test]
fn a_node_that_takes_over_has_the_scripts_of_its_primary() {
    let nodes = cluster_with(4, 3, ON);
    let all: Vec<&Node> = nodes.iter().collect();
    let sha = load(&mut nodes[0].connect(), b"return 'of the first node'");
    let sha = [sha];
    eventually("the replica to have it", &all, || known(&mut nodes[3].connect(), &sha) == [true]);
    assert_eq!(known(&mut nodes[1].connect(), &sha), [false]);
    nodes[3].ok("CLUSTER FAILOVER");
    eventually("the old primary to follow the new one", &all, || {
        nodes[0].field("role") == "slave" && nodes[0].field("master_link_status") == "up"
    });
    let late = [load(&mut nodes[3].connect(), b"return 'of the new primary'")];
    eventually("the old primary to have it", &all, || {
        known(&mut nodes[0].connect(), &late) == [true]
    });
    assert_eq!(known(&mut nodes[3].connect(), &sha), [true]);
    assert_eq!(known(&mut nodes[0].connect(), &sha), [true]);
}

/// A Redis that follows this server runs the scripts of the stream, also once it is the primary. This
/// server loses none when it follows that one.
#[test]
#[ignore = "needs FILES_PEER=/path/to/a/server"]
fn a_promoted_redis_has_the_scripts_of_the_stream() {
    let program = std::env::var("FILES_PEER").expect("FILES_PEER names a real server's binary");
    let dir = tempfile::tempdir().expect("a folder");
    let peer = Peer::start(Path::new(&program), dir.path(), &[]);
    let server = start_alone(&[ON]);
    let (mut client, mut other) = (server.connect(), peer.connect());
    // Redis skips the field of a snapshot.
    let early = [load(&mut client, b"return 'early'")];
    other.call(&["REPLICAOF", "127.0.0.1", &server.address.port().to_string()]);
    await_replica(&server, &[&server]);
    assert_eq!(known(&mut other, &early), [false]);
    let late = [load(&mut client, b"return 'late'"), load(&mut client, b"return 'x\0y'")];
    await_replica(&server, &[&server]);
    assert_eq!(known(&mut other, &late), [true, true]);
    other.call(&["REPLICAOF", "NO", "ONE"]);
    assert_eq!(known(&mut other, &late), [true, true]);
    client.call(&["REPLICAOF", "127.0.0.1", &peer.address.port().to_string()]);
    other.call(&["SET", "after", "the promotion"]);
    wait_for("the new primary's stream", || {
        server.advance(300_000);
        (client.call(&["GET", "after"]).show() == "\"the promotion\"").then_some(())
    });
    assert_eq!(known(&mut client, &[&early[..], &late].concat()), [true; 3]);
    // What the new primary loads is its own: Redis 7 does not repeat it.
    drop((client, other));
    peer.stop();
}

#[test]
fn scripts_are_there_after_a_kill_and_a_rollback_takes_none_back() {
    let program = Path::new(env!("CARGO_BIN_EXE_latchkey"));
    let dir = tempfile::tempdir().expect("a folder");
    let lines = [
        ON,
        "appendonly yes",
        "appendfsync always",
        "busy-reply-threshold 20",
        "busy-script-policy rollback",
    ];
    let peer = Peer::start(program, dir.path(), &lines);
    let mut client = peer.connect();
    let mut shas = fill(&mut client);
    let endless = "redis.call('set', 'k', 1) while true do end";
    for _ in 0..2 {
        let reply = client.call(&["EVAL", endless, "0"]).show();
        assert!(reply.contains("Script killed"), "{reply}");
    }
    shas.push(client.call(&["EVAL", "return redis.sha1hex(ARGV[1])", "0", endless]).show());
    // The process is killed.
    drop(peer);
    let peer = Peer::start(program, dir.path(), &lines);
    let mut client = peer.connect();
    assert_eq!(known(&mut client, &shas[..4]), SURVIVE);
    let sha = shas[4].trim_matches('"');
    assert_eq!(client.call(&["SCRIPT", "EXISTS", sha]), Reply::Array(vec![Reply::Integer(1)]));
    assert_eq!(client.call(&["GET", "k"]), Reply::NullBulk);
    peer.stop();
}
