//! CLUSTER MIGRATESLOTS between nodes of this server: slots change their owner all at once, while
//! clients write to them.

use std::io::{Read, Write};
use std::net::TcpListener;

use crate::cluster::nodes::{Node, cluster_with, eventually};
use crate::support::{Client, Reply};

fn ok() -> Reply {
    Reply::Simple(b"OK".to_vec())
}

fn error(text: &str) -> Reply {
    Reply::Error(text.as_bytes().to_vec())
}

/// The fields of a node's newest job.
fn job(node: &Node) -> Vec<(String, String)> {
    let Reply::Array(jobs) = node.call("CLUSTER GETSLOTMIGRATIONS") else { panic!("an array") };
    let text = |reply: &Reply| match reply {
        Reply::Bulk(text) => String::from_utf8_lossy(text).into_owned(),
        Reply::Integer(number) => number.to_string(),
        other => panic!("{other:?}"),
    };
    let Some(Reply::Array(fields)) = jobs.first() else { return Vec::new() };
    fields.chunks(2).map(|field| (text(&field[0]), text(&field[1]))).collect()
}

pub fn field(node: &Node, name: &str) -> String {
    let found = job(node).into_iter().find(|(field, _)| field == name);
    found.map(|(_, value)| value).unwrap_or_default()
}

/// Two nodes: the first has the slots from 8192 on, those of `a` and `foo` among them, the second
/// the others.
fn pair() -> [Node; 2] {
    let mut nodes = cluster_with(2, 2, "enable-debug-command yes").into_iter();
    let [second, first] = [(); 2].map(|()| nodes.next().expect("two nodes"));
    [first, second]
}

/// The slot of the keys that the tests move.
fn slot_of_a(node: &Node) -> i64 {
    match node.call("CLUSTER KEYSLOT {a}") {
        Reply::Integer(slot) => slot,
        other => panic!("{other:?}"),
    }
}

/// Fills a slot with values of all types; returns their names.
fn fill(client: &mut Client) -> Vec<String> {
    let fill = "for i = 1, 300 do redis.call('set', '{a}:'..i, i, 'px', 1000000 + i) end \
                for i = 1, 5000 do redis.call('hset', '{a}:hash', 'field:'..i, 'value:'..i) end \
                for i = 1, 500 do redis.call('rpush', '{a}:list', i) redis.call('zadd', '{a}:zset', i, 'm'..i) end \
                redis.call('sadd', '{a}:set', 'x', 'y', 'z') redis.call('xadd', '{a}:stream', '1-1', 'f', 'v') \
                redis.call('xgroup', 'create', '{a}:stream', 'g', '0') redis.call('set', '{a}:text', string.rep('t', 300000))";
    assert_eq!(client.call(&["EVAL", fill, "1", "{a}"]), Reply::NullBulk);
    let others = ["hash", "list", "zset", "set", "stream", "text"];
    let names = (1..=300).map(|number| number.to_string());
    names.chain(others.map(str::to_owned)).map(|name| format!("{{a}}:{name}")).collect()
}

fn digests(client: &mut Client, names: &[String]) -> Reply {
    client.call(&[&["DEBUG".to_owned(), "DIGEST-VALUE".into()], names].concat())
}

#[test]
fn a_slot_moves_with_all_its_keys_while_clients_write() {
    let [source, target] = pair();
    let (mut here, mut there) = (source.connect(), target.connect());
    let names = fill(&mut here);
    here.call(&["SET", "foo", "1"]);
    let slot = slot_of_a(&source);
    let before = digests(&mut here, &names);
    let order = format!("CLUSTER MIGRATESLOTS SLOTSRANGE {slot} {slot} NODE {}", target.id());
    source.ok(&order);
    // Single keys and several at once, new ones, and one that comes and goes.
    let mut written = 0;
    let moved = loop {
        let reply = here.call(&["INCR", "{a}:counter"]);
        if let Reply::Error(text) = reply {
            break text;
        }
        written += 1;
        let new = format!("{{a}}:new:{written}");
        for request in [
            vec!["MSET", &new, "1", "{a}:last", &new],
            vec!["RENAME", &new, "{a}:renamed"],
            vec!["SINTERSTORE", "{a}:stored", "{a}:set", "{a}:set"],
            vec!["DEL", "{a}:stored"],
        ] {
            if let Reply::Error(text) = here.call(&request) {
                assert!(text.starts_with(b"MOVED"), "{}", String::from_utf8_lossy(&text));
                break;
            }
        }
    };
    let port = target.address.port();
    assert_eq!(String::from_utf8_lossy(&moved), format!("MOVED {slot} 127.0.0.1:{port}"));
    eventually("success at both ends", &[&source, &target], || {
        field(&source, "state") == "success" && field(&target, "state") == "success"
    });
    assert_eq!(digests(&mut there, &names), before);
    let counter = there.call(&["GET", "{a}:counter"]);
    assert_eq!(counter, Reply::Bulk(written.to_string().into_bytes()));
    assert_eq!(
        there.call(&["GET", "foo"]),
        error(&format!(
            "MOVED {} 127.0.0.1:{}",
            match source.call("CLUSTER KEYSLOT foo") {
                Reply::Integer(slot) => slot,
                other => panic!("{other:?}"),
            },
            source.address.port()
        ))
    );
    eventually("the source to delete the keys", &[&source], || {
        source.call(&format!("CLUSTER COUNTKEYSINSLOT {slot}")) == Reply::Integer(0)
    });
    assert_eq!(source.call("DBSIZE"), Reply::Integer(1));
    assert_eq!(field(&source, "operation"), "EXPORT");
    assert_eq!(field(&target, "operation"), "IMPORT");
    assert_eq!(field(&target, "slot_ranges"), format!("{slot}-{slot}"));
    assert_eq!(field(&target, "source_node"), source.id());
    assert_eq!(there.call(&["SET", "{a}:after", "1"]), ok());
}

#[test]
fn what_cannot_move_is_refused() {
    let [target, source] = pair();
    let (own, other) = (source.id(), target.id());
    let all = format!("CLUSTER MIGRATESLOTS SLOTSRANGE 1 2 NODE {other}");
    for (line, text) in [
        (
            format!("CLUSTER MIGRATESLOTS SLOTSRANGE 1 2 NODE {own}"),
            "Target node can not be this node.",
        ),
        (
            format!("CLUSTER MIGRATESLOTS SLOTSRANGE 2 1 NODE {other}"),
            "Start slot number 2 is greater than end slot number 1.",
        ),
        (format!("CLUSTER MIGRATESLOTS SLOTSRANGE 1 NODE {other}"), "Invalid or out of range slot"),
        (format!("CLUSTER MIGRATESLOTS SLOTSRANGE NODE {other} 1"), "No slot ranges specified"),
        (
            format!("CLUSTER MIGRATESLOTS SLOTSRANGE 1 5 4 6 NODE {other}"),
            "Slot range 4-6 overlaps with previous range 1-5.",
        ),
        ("CLUSTER MIGRATESLOTS SLOTSRANGE 1 2 NODE x".into(), "Invalid node name: x"),
        // As valkey-cli sends it.
        ("CLUSTER MIGRATESLOTS SLOTSRANGE\0 1 2 NODE x".into(), "Invalid node name: x"),
        ("CLUSTER MIGRATESLOTS SLOTS 1 2 NODE".into(), "syntax error"),
        (format!("{all} SLOTSRANGE 2 3 NODE {other}"), "Slot ranges in migrations overlap"),
        ("CLUSTER CANCELSLOTMIGRATIONS".into(), "No migrations ongoing"),
        (
            "CLUSTER SYNCSLOTS ACK".into(),
            "CLUSTER SYNCSLOTS ACK should only be used by slot migration clients",
        ),
        ("CLUSTER SYNCSLOTS SOMETHING".into(), "syntax error"),
    ] {
        assert_eq!(source.call(&line), error(&format!("ERR {text}")), "{line}");
    }
    assert_eq!(target.call(&all), error("ERR Slots are not served by this node."));
    assert_eq!(source.call("CLUSTER GETSLOTMIGRATIONS"), Reply::Array(Vec::new()));
}

#[test]
fn a_cancelled_move_leaves_the_keys_where_they_were() {
    let [source, target] = pair();
    let mut here = source.connect();
    let names = fill(&mut here);
    let before = digests(&mut here, &names);
    let slot = slot_of_a(&source);
    source.ok("DEBUG SLOTMIGRATION PREVENT-PAUSE 1");
    source.ok(&format!("CLUSTER MIGRATESLOTS SLOTSRANGE {slot} {slot} NODE {}", target.id()));
    eventually("the copy", &[&source, &target], || field(&source, "state") == "waiting-to-pause");
    // They are there, and not shown.
    assert_eq!(target.call("DBSIZE"), Reply::Integer(0));
    assert_eq!(target.call("KEYS *"), Reply::Array(Vec::new()));
    assert_eq!(target.call("RANDOMKEY"), Reply::NullBulk);
    assert_eq!(source.call("CLUSTER SETSLOT 1 STABLE"), error("ERR Slot export in progress."));
    assert_eq!(target.call("CLUSTER SETSLOT 1 STABLE"), error("ERR Slot import in progress."));
    source.ok("CLUSTER CANCELSLOTMIGRATIONS");
    assert_eq!(field(&source, "state"), "cancelled");
    eventually("the end at the target", &[&target], || field(&target, "state") == "failed");
    assert!(field(&target, "message").starts_with("Connection lost to source."));
    let count = format!("CLUSTER COUNTKEYSINSLOT {slot}");
    assert_eq!(target.call(&count), Reply::Integer(0));
    assert_eq!(digests(&mut here, &names), before);
    // Once more.
    source.ok("DEBUG SLOTMIGRATION PREVENT-PAUSE 0");
    source.ok(&format!("CLUSTER MIGRATESLOTS SLOTSRANGE {slot} {slot} NODE {}", target.id()));
    eventually("success", &[&source, &target], || field(&target, "state") == "success");
    assert_eq!(digests(&mut target.connect(), &names), before);
}

#[test]
fn keys_that_were_left_at_the_target_do_not_mix_with_those_that_come() {
    let [source, target] = pair();
    let slot = slot_of_a(&source);
    source.connect().call(&["HSET", "{a}:hash", "new", "1"]);
    target.ok(&format!("CLUSTER SETSLOT {slot} IMPORTING {}", source.id()));
    let mut there = target.connect();
    for request in [vec!["HSET", "{a}:hash", "old", "1"], vec!["SET", "{a}:gone", "1"]] {
        there.call(&["ASKING"]);
        assert!(!matches!(there.call(&request), Reply::Error(_)), "{request:?}");
    }
    target.ok(&format!("CLUSTER SETSLOT {slot} STABLE"));
    source.ok(&format!("CLUSTER MIGRATESLOTS SLOTSRANGE {slot} {slot} NODE {}", target.id()));
    eventually("success", &[&source, &target], || field(&target, "state") == "success");
    let bulk = |text: &str| Reply::Bulk(text.as_bytes().to_vec());
    assert_eq!(there.call(&["HGETALL", "{a}:hash"]), Reply::Array(vec![bulk("new"), bulk("1")]));
    assert_eq!(there.call(&["EXISTS", "{a}:gone"]), Reply::Integer(0));
}

#[test]
fn only_the_moving_slots_are_paused() {
    let [source, target] = pair();
    let mut here = source.connect();
    here.call(&["SET", "{a}1", "1"]);
    let slot = slot_of_a(&source);
    target.ok("DEBUG SLOTMIGRATION PREVENT-FAILOVER 1");
    source.ok(&format!("CLUSTER MIGRATESLOTS SLOTSRANGE {slot} {slot} NODE {}", target.id()));
    eventually("the pause", &[&source, &target], || field(&source, "state") == "failover-granted");
    source.ok("CONFIG SET compatible-with valkey-9");
    assert_eq!(source.field("paused_reason"), "slot_migration_in_progress");
    assert_eq!(source.field("paused_actions"), "write");
    let mut waiting = source.connect();
    waiting.send(&["INCR", "{a}1"]);
    assert_eq!(here.call(&["GET", "{a}1"]), Reply::Bulk(b"1".to_vec()));
    assert_eq!(here.call(&["SET", "foo", "1"]), ok());
    let scripted = here.call(&["EVAL", "return redis.pcall('incr', '{a}1')", "0"]);
    assert!(
        matches!(&scripted, Reply::Error(text) if text.starts_with(b"TRYAGAIN")),
        "{scripted:?}"
    );
    assert_eq!(waiting.try_message(), None);
    target.ok("DEBUG SLOTMIGRATION PREVENT-FAILOVER 0");
    let port = target.address.port();
    assert_eq!(waiting.reply(), Some(error(&format!("MOVED {slot} 127.0.0.1:{port}"))));
    assert_eq!(target.connect().call(&["GET", "{a}1"]), Reply::Bulk(b"1".to_vec()));
}

#[test]
fn a_granted_move_is_cancelled_when_its_grant_is_over() {
    let [source, target] = pair();
    source.connect().call(&["SET", "{a}1", "1"]);
    let slot = slot_of_a(&source);
    target.ok("DEBUG SLOTMIGRATION PREVENT-FAILOVER 1");
    source.ok("CONFIG SET cluster-manual-failover-timeout 1000");
    source.ok(&format!("CLUSTER MIGRATESLOTS SLOTSRANGE {slot} {slot} NODE {}", target.id()));
    eventually("the grant", &[&source, &target], || field(&source, "state") == "failover-granted");
    source.ok("CLUSTER CANCELSLOTMIGRATIONS");
    // The target may have taken the slot, as far as the source knows.
    let mut waiting = source.connect();
    waiting.send(&["INCR", "{a}1"]);
    assert_eq!(waiting.try_message(), None);
    eventually("the end at the target", &[&target], || field(&target, "state") == "failed");
    assert!(field(&target, "message").starts_with("Connection lost to source."));
    assert_eq!(waiting.reply(), Some(Reply::Integer(2)));
    assert_eq!(field(&source, "state"), "cancelled");
    assert_eq!(source.call("CLUSTER CANCELSLOTMIGRATIONS"), error("ERR No migrations ongoing"));
    assert_eq!(target.call(&format!("CLUSTER COUNTKEYSINSLOT {slot}")), Reply::Integer(0));
}

#[test]
fn a_source_that_says_nothing_is_given_up() {
    let [source, target] = pair();
    let slot = slot_of_a(&source);
    target.ok("CONFIG SET repl-timeout 1");
    let mut silent = target.connect();
    let (id, name) = (source.id(), "a".repeat(40));
    let request =
        format!("CLUSTER SYNCSLOTS ESTABLISH SOURCE {id} NAME {name} SLOTSRANGE {slot} {slot}");
    assert_eq!(silent.call(&request.split(' ').collect::<Vec<_>>()), ok());
    silent.send(&["CLUSTER", "SYNCSLOTS", "ACK"]);
    // The target's own messages are no sign of life.
    eventually("the end", &[&target], || field(&target, "state") == "failed");
    assert_eq!(field(&target, "message"), "Timed out after too long with no interaction");
    assert!(target.log().contains("waiting-for-ack -> receiving-snapshot"));
}

#[test]
fn the_source_of_a_move_may_do_no_more_than_its_user() {
    let [source, target] = pair();
    target.ok("CONFIG SET maxclients 1000");
    target.ok("ACL SETUSER mover on >secret +cluster|syncslots");
    let slot = slot_of_a(&source);
    let id = source.id();
    let requests: [&[&str]; 5] = [
        &["SET", "{a}1", "1"],
        &["FLUSHALL"],
        &["CONFIG", "SET", "maxclients", "77"],
        &["EVAL", "return redis.call('FLUSHALL')", "0"],
        &["DEBUG", "SLEEP", "0"],
    ];
    target.connect().call(&["SET", "{b}kept", "1"]);
    for (number, request) in requests.iter().enumerate() {
        let mut mover = target.connect();
        assert_eq!(mover.call(&["AUTH", "mover", "secret"]), ok());
        let establish = format!(
            "CLUSTER SYNCSLOTS ESTABLISH SOURCE {id} NAME {number:040x} SLOTSRANGE {slot} {slot}"
        );
        assert_eq!(mover.call(&establish.split(' ').collect::<Vec<_>>()), ok());
        mover.send(&["CLUSTER", "SYNCSLOTS", "ACK"]);
        mover.send(request);
        eventually("failure", &[&target], || field(&target, "state") == "failed");
        assert!(field(&target, "message").starts_with("Failed to process command"), "{request:?}");
    }
    assert_eq!(target.call("DBSIZE"), Reply::Integer(1));
    let bulk = |text: &str| Reply::Bulk(text.as_bytes().to_vec());
    let kept = Reply::Array(vec![bulk("maxclients"), bulk("1000")]);
    assert_eq!(target.call("CONFIG GET maxclients"), kept);
}

#[test]
fn deleted_data_ends_a_move() {
    let [source, target] = pair();
    source.connect().call(&["SET", "{a}1", "1"]);
    source.ok("DEBUG SLOTMIGRATION PREVENT-PAUSE 1");
    source.ok(&format!("CLUSTER MIGRATESLOTS SLOTSRANGE 8192 16383 NODE {}", target.id()));
    eventually("the copy", &[&source, &target], || field(&source, "state") == "waiting-to-pause");
    source.ok("FLUSHALL");
    eventually("failure", &[&source], || field(&source, "state") == "failed");
    assert_eq!(field(&source, "message"), "Data was flushed");
    eventually("failure there", &[&target], || field(&target, "state") == "failed");
}

#[test]
fn a_target_that_reads_nothing_is_given_up_at_the_limit_of_replicas() {
    let [source, target] = pair();
    let mut here = source.connect();
    here.call(&["SET", "{a}1", "1"]);
    let slot = slot_of_a(&source);
    // The target tells of another port, where this test listens.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    target.ok(&format!("CONFIG SET cluster-announce-port {port}"));
    eventually("the source to know the port", &[&source, &target], || {
        source.text("CLUSTER NODES").contains(&format!(":{port}@"))
    });
    assert_eq!(here.call(&["CONFIG", "SET", "client-output-buffer-limit", "replica 0 0 0"]), ok());
    source.ok(&format!("CLUSTER MIGRATESLOTS SLOTSRANGE {slot} {slot} NODE {}", target.id()));
    let (mut line, _) = listener.accept().expect("the source connects");
    let mut request = [0; 1024];
    assert!(line.read(&mut request).expect("a request") > 0);
    line.write_all(b"+OK\r\n").expect("the source reads");
    eventually("the copy", &[&source], || field(&source, "state") == "replicating");
    let not_counted = || -> usize {
        source.field("mem_not_counted_for_evict").parse().expect("a number of bytes")
    };
    let (value, before) = (vec![b'x'; 1 << 20], not_counted());
    for _ in 0..40 {
        assert_eq!(here.call(&[&b"SET"[..], b"{a}1", &value]), ok());
    }
    // No more than the sockets take is missing.
    assert!(not_counted() > before + (16 << 20), "{} after {before}", not_counted());
    assert_eq!(
        here.call(&["CONFIG", "SET", "client-output-buffer-limit", "replica 1mb 0 0"]),
        ok()
    );
    eventually("the end", &[&source], || field(&source, "state") == "failed");
    assert!(field(&source, "message").starts_with("Connection lost to target."));
    assert_eq!(source.field("client_output_buffer_limit_disconnections"), "1");
    assert!(not_counted() < before + (1 << 20));
}

#[test]
fn a_value_above_the_limit_of_replicas_moves() {
    let [source, target] = pair();
    let mut here = source.connect();
    let limit = ["CONFIG", "SET", "client-output-buffer-limit", "replica 1mb 0 0"];
    assert_eq!(here.call(&limit), ok());
    assert_eq!(here.call(&[&b"SET"[..], b"{a}1", &vec![b'x'; 32 << 20]]), ok());
    let slot = slot_of_a(&source);
    source.ok(&format!("CLUSTER MIGRATESLOTS SLOTSRANGE {slot} {slot} NODE {}", target.id()));
    eventually("success", &[&source, &target], || field(&source, "state") == "success");
    assert_eq!(target.connect().call(&["STRLEN", "{a}1"]), Reply::Integer(32 << 20));
}

/// Whether a node has a key, shown or not.
fn has(node: &Node, key: &str) -> bool {
    !matches!(node.call(&format!("DEBUG OBJECT {key}")), Reply::Error(_))
}

/// A source whose slot has left while a pause keeps it from deleting the keys, and the target; the
/// other nodes, of which the last is the source's replica if there is to be one; the slot, and one
/// of its keys.
fn left_behind(with_replica: bool) -> ([Node; 2], Vec<Node>, i64, String) {
    let lines = "enable-debug-command yes\nappendonly yes";
    let mut others = cluster_with(3 + usize::from(with_replica), 3, lines);
    // The only replica follows the first primary.
    let (target, source) = (others.remove(2), others.remove(0));
    let key = "{06S}0".to_owned();
    let slot = 0;
    let mut here = source.connect();
    for number in 0..50 {
        here.call(&["SET", &format!("{{06S}}{number}"), "1"]);
    }
    target.ok("DEBUG SLOTMIGRATION PREVENT-FAILOVER 1");
    source.ok(&format!("CLUSTER MIGRATESLOTS SLOTSRANGE {slot} {slot} NODE {}", target.id()));
    eventually("the grant", &[&source, &target], || field(&source, "state") == "failover-granted");
    source.ok("CLIENT PAUSE 1000000 WRITE");
    target.ok("DEBUG SLOTMIGRATION PREVENT-FAILOVER 0");
    eventually("success", &[&source, &target], || field(&source, "state") == "success");
    // They are not shown, but they are there.
    assert_eq!(source.call("DBSIZE"), Reply::Integer(0));
    assert!(has(&source, &key) && (!with_replica || has(&others[1], &key)));
    ([source, target], others, slot, key)
}

#[test]
fn keys_of_a_slot_that_has_left_are_deleted_after_a_restart() {
    let ([source, target], _others, slot, key) = left_behind(false);
    let source = Node::start_in(source.stop(), "enable-debug-command yes\nappendonly yes");
    let count = format!("CLUSTER COUNTKEYSINSLOT {slot}");
    eventually("the deletion", &[&source, &target], || !has(&source, &key));
    assert_eq!(source.call(&count), Reply::Integer(0));
    assert!(!source.text("CLUSTER NODES").contains("-<-"), "{}", source.text("CLUSTER NODES"));
    assert_eq!(target.call(&count), Reply::Integer(50));
}

#[test]
fn keys_of_a_slot_that_has_left_are_deleted_after_a_failover() {
    let ([source, target], others, slot, key) = left_behind(true);
    let replica = &others[1];
    let count = format!("CLUSTER COUNTKEYSINSLOT {slot}");
    let _folder = source.stop();
    eventually("the failover", &[replica, &target], || replica.field("role") == "master");
    eventually("the deletion", &[replica, &target], || !has(replica, &key));
    assert_eq!(replica.call(&count), Reply::Integer(0));
    assert_eq!(target.call(&count), Reply::Integer(50));
}

/// The source, the target and the target's replica in the middle of a move, all keys copied; and
/// the slot and the number of keys.
fn halfway() -> ([Node; 3], i64, i64) {
    let mut nodes = cluster_with(3, 2, "enable-debug-command yes").into_iter();
    let [target, source, replica] = [(); 3].map(|()| nodes.next().expect("three nodes"));
    let count = fill(&mut source.connect()).len() as i64;
    let slot = slot_of_a(&source);
    source.ok("DEBUG SLOTMIGRATION PREVENT-PAUSE 1");
    source.ok(&format!("CLUSTER MIGRATESLOTS SLOTSRANGE {slot} {slot} NODE {}", target.id()));
    eventually("the copy", &[&source, &target], || field(&source, "state") == "waiting-to-pause");
    ([source, target, replica], slot, count)
}

#[test]
fn keys_that_change_their_database_during_a_move_arrive_once() {
    let lines = "cluster-databases 2\nrdb-key-save-delay 1000000\n";
    let mut nodes = cluster_with(2, 2, lines).into_iter();
    let [target, source] = [(); 2].map(|()| nodes.next().expect("two nodes"));
    let slot = slot_of_a(&source);
    let mut client = source.connect();
    client.call(&["RPUSH", "{a}up", "1", "2"]);
    client.call(&["SELECT", "1"]);
    let down: Vec<String> = (0..20).map(|number| format!("{{a}}down:{number}")).collect();
    down.iter()
        .for_each(|key| assert_eq!(client.call(&["RPUSH", key, "1", "2"]), Reply::Integer(2)));
    source.ok(&format!("CLUSTER MIGRATESLOTS SLOTSRANGE {slot} {slot} NODE {}", target.id()));
    let all = [&source, &target];
    // The next key is copied a second later.
    let counted = format!("CLUSTER COUNTKEYSINSLOT {slot}");
    eventually("the first key", &all, || target.call(&counted) == Reply::Integer(1));
    for key in &down[..10] {
        assert_eq!(client.call(&["MOVE", key, "0"]), Reply::Integer(1));
    }
    for key in &down[10..] {
        assert_eq!(client.call(&["COPY", key, key, "DB", "0"]), Reply::Integer(1));
    }
    client.call(&["SELECT", "0"]);
    assert_eq!(client.call(&["MOVE", "{a}up", "1"]), Reply::Integer(1));
    source.ok("CONFIG SET rdb-key-save-delay 0");
    eventually("success", &all, || field(&source, "state") == "success");
    let mut client = target.connect();
    let values = Reply::Array(vec![Reply::Bulk(b"1".to_vec()), Reply::Bulk(b"2".to_vec())]);
    for (database, keys, size) in [("0", &down[..], 20), ("1", &down[10..], 11)] {
        client.call(&["SELECT", database]);
        for key in keys {
            assert_eq!(client.call(&["LRANGE", key, "0", "-1"]), values, "{database} {key}");
        }
        assert_eq!(client.call(&["DBSIZE"]), Reply::Integer(size));
    }
    assert_eq!(client.call(&["LRANGE", "{a}up", "0", "-1"]), values);
}

#[test]
fn a_replica_that_gets_all_data_during_a_move_hides_the_keys_that_have_come() {
    let ([source, target, replica], slot, count) = halfway();
    let syncs = target.field("sync_full");
    target.ok("DEBUG CHANGE-REPL-ID");
    target.call("CLIENT KILL TYPE replica");
    let all = [&source, &target, &replica];
    eventually("another synchronisation", &all, || {
        target.field("sync_full") != syncs && replica.field("master_link_status") == "up"
    });
    let counted = format!("CLUSTER COUNTKEYSINSLOT {slot}");
    assert_eq!(replica.call(&counted), Reply::Integer(count));
    assert_eq!(replica.call("DBSIZE"), Reply::Integer(0));
    assert_eq!(field(&replica, "state"), "occurring-on-primary");
    source.ok("DEBUG SLOTMIGRATION PREVENT-PAUSE 0");
    eventually("success", &all, || field(&replica, "state") == "success");
    assert_eq!(replica.call("DBSIZE"), Reply::Integer(count));
}

#[test]
fn a_target_that_starts_again_from_its_snapshot_deletes_the_keys_that_have_come() {
    let ([source, target, replica], slot, _) = halfway();
    target.ok("SAVE");
    let target = Node::start_in(target.stop(), "enable-debug-command yes");
    eventually("the end of the move", &[&source, &target], || field(&target, "state") == "failed");
    assert_eq!(field(&target, "message"), "Process restarted");
    assert_eq!(target.call(&format!("CLUSTER COUNTKEYSINSLOT {slot}")), Reply::Integer(0));
    assert_eq!(target.call("DBSIZE"), Reply::Integer(0));
    // The replica has heard of the move that has ended, and of the one that begins.
    eventually("failure", &[&source, &target], || field(&source, "state") == "failed");
    eventually("the replica to follow again", &[&source, &target, &replica], || {
        replica.field("master_link_status") == "up" && source.field("cluster_state") == "ok"
    });
    source.ok("DEBUG SLOTMIGRATION PREVENT-PAUSE 0");
    source.ok(&format!("CLUSTER MIGRATESLOTS SLOTSRANGE {slot} {slot} NODE {}", target.id()));
    eventually("success", &[&source, &target], || field(&replica, "state") == "success");
}

/// A queue with a job of each state, and who waits there: a delayed job, one in work, one that was
/// released for a while, and a group that is paused.
fn queue(here: &mut Client, worker: &mut Client) {
    let later = "ZADD {a}:later 4000000000000 delayed";
    for line in [
        "XGROUP CREATE {a}:jobs g 0 MKSTREAM",
        "XGROUP CREATE {a}:jobs h 0",
        "XGROUP CREATECONSUMER {a}:jobs h :paused",
        "XADD {a}:jobs 1-0 data in-work",
        "XADD {a}:jobs 2-0 data released",
        "XREADGROUP GROUP g w1 STREAMS {a}:jobs >",
        "XNACK {a}:jobs g FAIL IDS 1 2-0 OWNER w1 DELAY 600000",
        later,
    ] {
        let reply = here.call(&line.split(' ').collect::<Vec<_>>());
        assert!(!matches!(reply, Reply::Error(_)), "{line}: {}", reply.show());
    }
    worker.send(&WAITS.split(' ').collect::<Vec<_>>());
    let mut blocked = || here.call(&["INFO", "clients"]).show().contains("blocked_clients:1");
    crate::support::wait_for("a worker to wait", || blocked().then_some(()));
}

const WAITS: &str = "XREADGROUP GROUP g w2 BLOCK 0 CLAIM 3600000 DUE {a}:later UNIT MS \
                     MAXDELIVERIES 5 DEADLETTER {a}:dead STREAMS {a}:jobs >";

/// The queue is what it was, and works.
fn check_queue(there: &mut Client, digests_before: &Reply) {
    let names = ["{a}:jobs", "{a}:later"].map(str::to_owned);
    assert_eq!(digests(there, &names), *digests_before);
    let mut ask = |line: &str| there.call(&line.split(' ').collect::<Vec<_>>());
    let pending = ask("XPENDING {a}:jobs g - + 10").show();
    let Reply::Array(lines) = ask("XPENDING {a}:jobs g - + 10") else { panic!("{pending}") };
    let parts: Vec<(String, i64)> = lines
        .iter()
        .map(|line| match line {
            Reply::Array(parts) => match (&parts[1], &parts[2]) {
                (Reply::Bulk(name), Reply::Integer(idle_ms)) => {
                    (String::from_utf8_lossy(name).into_owned(), *idle_ms)
                }
                _ => panic!("{pending}"),
            },
            _ => panic!("{pending}"),
        })
        .collect();
    assert_eq!(parts.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["w1", ""]);
    assert!(parts[0].1 >= 0 && (-600_000..-500_000).contains(&parts[1].1), "{pending}");
    // Paused, and resumed.
    let read = "XREADGROUP GROUP h w COUNT 1 STREAMS {a}:jobs >";
    assert_eq!(ask(read), Reply::NullArray);
    ask("XGROUP DELCONSUMER {a}:jobs h :paused");
    assert!(ask(read).show().contains("in-work"));
    assert_eq!(ask("XGUARD {a}:jobs g w1 1-0"), Reply::Integer(1));
    ask("ZADD {a}:later XX 0 delayed");
    assert!(ask(&WAITS.replace(" BLOCK 0", "")).show().contains("delayed"));
}

fn of_queue(client: &mut Client) -> Reply {
    digests(client, &["{a}:jobs", "{a}:later"].map(str::to_owned))
}

#[test]
fn a_queue_moves_with_its_leases_pauses_and_delayed_jobs() {
    let [source, target] = pair();
    let (mut here, mut there) = (source.connect(), target.connect());
    let mut worker = source.connect();
    queue(&mut here, &mut worker);
    let (slot, before) = (slot_of_a(&source), of_queue(&mut here));
    let order = format!("CLUSTER MIGRATESLOTS SLOTSRANGE {slot} {slot} NODE {}", target.id());
    source.ok(&order);
    let mut told = None;
    eventually("who waits to be told", &[&source, &target], || {
        told = told.take().or_else(|| worker.try_message());
        told.is_some()
    });
    let told = told.map_or(String::new(), |reply| reply.show());
    assert!(told.contains(&format!("MOVED {slot}")), "{told}");
    check_queue(&mut there, &before);
}

#[test]
fn a_queue_moves_by_migrate_and_who_waits_is_sent_after_it() {
    let [source, target] = pair();
    let (mut here, mut there) = (source.connect(), target.connect());
    let mut worker = source.connect();
    queue(&mut here, &mut worker);
    let (slot, before) = (slot_of_a(&source), of_queue(&mut here));
    target.ok(&format!("CLUSTER SETSLOT {slot} IMPORTING {}", source.id()));
    source.ok(&format!("CLUSTER SETSLOT {slot} MIGRATING {}", target.id()));
    let port = target.address.port().to_string();
    let keys = ["{a}:jobs", "{a}:later"];
    let request = ["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS", keys[0], keys[1]];
    assert_eq!(here.call(&request), ok());
    for node in [&target, &source] {
        node.ok(&format!("CLUSTER SETSLOT {slot} NODE {}", target.id()));
    }
    let told = worker.reply().expect("who waits is told").show();
    assert!(["MOVED", "ASK", "NOGROUP"].iter().any(|word| told.contains(word)), "{told}");
    check_queue(&mut there, &before);
}
