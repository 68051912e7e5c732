//! Whole files beside a real server: what it saves is loaded here, what is saved here it loads and
//! its check tools accept, RDB files and folders of the append-only file both ways.
//!
//! Needs a peer's binary, which is started in folders of the test's own:
//! `FILES_PEER=/path/to/valkey-server` (`make peer` names Redis's and, where it is found,
//! Valkey's). Its check tools are looked for beside it.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::persistence::dump;
use crate::support::peer::Peer;
use crate::support::{Client, Reply, TestServer, wait_for};

/// The year 2096, in Unix milliseconds: neither clock comes there.
const LATER: &str = "4000000000000";
const LIBRARY: &str = "#!lua name=lib\nredis.register_function('f', function() return 7 end)";

fn program() -> PathBuf {
    std::env::var("FILES_PEER").expect("FILES_PEER names a real server's binary").into()
}

fn start_here(dir: &Path, lines: &[&str]) -> TestServer {
    let mut all = vec![format!("dir {}", dir.display())];
    all.extend(lines.iter().map(|line| (*line).to_owned()));
    TestServer::start(&all)
}

fn ok(client: &mut Client, line: &str) {
    let reply = client.call(&line.split(' ').collect::<Vec<_>>());
    assert!(!matches!(reply, Reply::Error(_)), "{line}: {}", reply.show());
}

/// Something of each type and encoding, 16 databases, deadlines, a library of functions; deadlines
/// of fields if the peer knows them, which is told.
fn fill(client: &mut Client, has_field_deadlines: bool) {
    dump::fill(client);
    for line in ["PEXPIREAT list LATER", "SET session x PXAT LATER", "MULTI", "INCR int", "EXEC"] {
        ok(client, &line.replace("LATER", LATER));
    }
    if has_field_deadlines {
        ok(client, &format!("HPEXPIREAT hash {LATER} FIELDS 2 f empty"));
        ok(client, &format!("HPEXPIREAT large-hash {LATER} FIELDS 3 1 2 699"));
    }
    for number in 1..16 {
        ok(client, &format!("SELECT {number}"));
        ok(client, &format!("SET of-database {number}"));
    }
    ok(client, "SELECT 0");
    let reply = client.call(&["FUNCTION", "LOAD", LIBRARY]).show();
    assert!(reply.contains("lib"), "{reply}");
}

fn knows_field_deadlines(client: &mut Client) -> bool {
    let reply = client.call(&["HPEXPIREAT", "none", LATER, "FIELDS", "1", "f"]);
    !matches!(reply, Reply::Error(_))
}

/// All that is compared.
fn contents(client: &mut Client, has_field_deadlines: bool) -> Vec<String> {
    let mut asked = vec!["DEBUG DIGEST", "PEXPIRETIME list", "PEXPIRETIME session", "FCALL f 0"];
    // Not XINFO: what Redis logs of reading a group does not tell how many entries were read.
    asked.extend(["DBSIZE", "XPENDING stream group", "GET int", "LRANGE large-list 0 -1"]);
    if has_field_deadlines {
        asked.extend([
            "HPEXPIRETIME hash FIELDS 3 f g empty",
            "HPEXPIRETIME large-hash FIELDS 2 2 3",
        ]);
    }
    let mut shown: Vec<String> = Vec::new();
    for line in asked {
        let reply = client.call(&line.split(' ').collect::<Vec<_>>());
        assert!(!matches!(reply, Reply::Error(_)), "{line}: {}", reply.show());
        shown.push(format!("{line}: {}", reply.show()));
    }
    for number in 0..16 {
        ok(client, &format!("SELECT {number}"));
        let key = client.call(&["GET", "of-database"]).show();
        shown.push(format!("database {number}: {key}"));
    }
    ok(client, "SELECT 0");
    shown
}

/// Has the peer's tool look at a file: `valkey-check-rdb` beside `valkey-server`.
fn check(tool: &str, file: &Path) {
    let server = program();
    let name = server.file_name().and_then(|name| name.to_str()).expect("a name");
    let tool = server.with_file_name(name.replace("server", tool));
    if !tool.exists() {
        return;
    }
    let output = Command::new(tool).arg(file).output().expect("the tool runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}: {text}", file.display());
}

#[test]
#[ignore = "needs FILES_PEER=/path/to/a/server"]
fn saved_files_are_loaded_on_either_side() {
    let dir = tempfile::tempdir().expect("a folder");
    let peer = Peer::start(&program(), dir.path(), &[]);
    let mut theirs = peer.connect();
    let fields = knows_field_deadlines(&mut theirs);
    fill(&mut theirs, fields);
    let before = contents(&mut theirs, fields);
    ok(&mut theirs, "SAVE");
    peer.stop();

    let server = start_here(dir.path(), &[]);
    let mut ours = server.connect();
    assert_eq!(contents(&mut ours, fields), before);
    ok(&mut ours, "FLUSHALL");
    ok(&mut ours, "FUNCTION FLUSH");
    fill(&mut ours, fields);
    let before = contents(&mut ours, fields);
    ok(&mut ours, "SAVE");
    drop(server);

    check("check-rdb", &dir.path().join("dump.rdb"));
    let peer = Peer::start(&program(), dir.path(), &[]);
    assert_eq!(contents(&mut peer.connect(), fields), before);
}

fn folders_go_both_ways(preamble: &str) {
    let dir = tempfile::tempdir().expect("a folder");
    let lines = ["appendonly yes", preamble];
    let peer = Peer::start(&program(), dir.path(), &lines);
    let mut theirs = peer.connect();
    let fields = knows_field_deadlines(&mut theirs);
    fill(&mut theirs, fields);
    let before = contents(&mut theirs, fields);
    peer.stop();

    // Increments of theirs, then a base and increments of ours behind it.
    let server = start_here(dir.path(), &lines);
    let mut ours = server.connect();
    assert_eq!(contents(&mut ours, fields), before);
    ok(&mut ours, "BGREWRITEAOF");
    wait_for("the rewrite", || {
        server.settle();
        let info = ours.call(&["INFO", "persistence"]).show();
        info.contains("aof_rewrite_in_progress:0").then_some(())
    });
    ok(&mut ours, "RPUSH large-list behind");
    ok(&mut ours, "DEL session");
    ok(&mut ours, &format!("SET session again PXAT {LATER}"));
    let before = contents(&mut ours, fields);
    drop(server);
    // Valkey's tool knows no base with deadlines of fields, as its server does: its magic is
    // another.
    if !fields {
        check("check-aof", &dir.path().join("appendonlydir/appendonly.aof.manifest"));
    }
    let peer = Peer::start(&program(), dir.path(), &lines);
    assert_eq!(contents(&mut peer.connect(), fields), before);
    peer.stop();

    // All of it as commands of ours.
    let dir = tempfile::tempdir().expect("a folder");
    let server = start_here(dir.path(), &lines);
    let mut ours = server.connect();
    fill(&mut ours, fields);
    let before = contents(&mut ours, fields);
    drop(server);
    check("check-aof", &dir.path().join("appendonlydir/appendonly.aof.manifest"));
    let peer = Peer::start(&program(), dir.path(), &lines);
    assert_eq!(contents(&mut peer.connect(), fields), before);
}

#[test]
#[ignore = "needs FILES_PEER=/path/to/a/server"]
fn folders_with_an_rdb_base_go_both_ways() {
    folders_go_both_ways("aof-use-rdb-preamble yes");
}

#[test]
#[ignore = "needs FILES_PEER=/path/to/a/server"]
fn folders_of_commands_go_both_ways() {
    folders_go_both_ways("aof-use-rdb-preamble no");
}

/// Sources of scripts are in files and in the stream: older readers skip those of a snapshot, and
/// load those of the log and of the stream.
#[test]
#[ignore = "needs FILES_PEER=/path/to/a/server"]
fn sources_of_scripts_do_not_disturb_a_peer() {
    let sha = |client: &mut Client, number: u32| {
        let body = format!("return '\0 {number} {}'", "text ".repeat(100));
        let sha = client.call(&["SCRIPT", "LOAD", &body]).show();
        sha.trim_matches('"').to_owned()
    };
    let exists = |client: &mut Client, sha: &str| client.call(&["SCRIPT", "EXISTS", sha]).show();
    for preamble in ["aof-use-rdb-preamble yes", "aof-use-rdb-preamble no"] {
        let dir = tempfile::tempdir().expect("a folder");
        let lines = ["appendonly yes", preamble, "script-cache-persist yes"];
        let server = start_here(dir.path(), &lines);
        let mut ours = server.connect();
        ok(&mut ours, "SET k v");
        let in_base = sha(&mut ours, 1);
        ok(&mut ours, "BGREWRITEAOF");
        wait_for("the rewrite", || {
            server.settle();
            let info = ours.call(&["INFO", "persistence"]).show();
            info.contains("aof_rewrite_in_progress:0").then_some(())
        });
        let in_log = sha(&mut ours, 2);
        ok(&mut ours, "SCRIPT FLUSH");
        let after = sha(&mut ours, 3);
        ok(&mut ours, "SAVE");
        // A replica.
        let folder = tempfile::tempdir().expect("a folder");
        let replica = Peer::start(&program(), folder.path(), &[]);
        let mut theirs = replica.connect();
        ok(&mut theirs, &format!("REPLICAOF 127.0.0.1 {}", server.address.port()));
        wait_for("the replica", || {
            server.advance(1_000_000);
            theirs.call(&["INFO", "replication"]).show().contains("link_status:up").then_some(())
        });
        let in_stream = sha(&mut ours, 4);
        ok(&mut ours, "SET k2 v");
        wait_for("the stream", || (theirs.call(&["GET", "k2"]).show() == "\"v\"").then_some(()));
        assert!(exists(&mut theirs, &in_stream).ends_with("(integer) 1"));
        replica.stop();
        drop(server);
        check("check-aof", &dir.path().join("appendonlydir/appendonly.aof.manifest"));
        check("check-rdb", &dir.path().join("dump.rdb"));
        let peer = Peer::start(&program(), dir.path(), &lines[..2]);
        let mut theirs = peer.connect();
        assert_eq!(theirs.call(&["GET", "k"]).show(), "\"v\"");
        let found = [&in_base, &in_log, &after].map(|sha| exists(&mut theirs, sha));
        assert!(found[2].ends_with("(integer) 1"), "{preamble}: {found:?}");
        assert!(found[..2].iter().all(|found| found.ends_with("(integer) 0")), "{found:?}");
        peer.stop();
        std::fs::remove_dir_all(dir.path().join("appendonlydir")).expect("a folder");
        let peer = Peer::start(&program(), dir.path(), &[]);
        assert_eq!(peer.connect().call(&["GET", "k"]).show(), "\"v\"");
        peer.stop();
    }
}
