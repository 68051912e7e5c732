//! Files written by released versions are loaded for ever: `tests/data/compatibility/VERSION` holds
//! an RDB file, a folder of an append-only file, and the digests that their data had.
//!
//! `COMPATIBILITY_WRITE=1 cargo test --test it backward_compatibility::` writes the folder of this
//! version.

use std::path::{Path, PathBuf};

use crate::persistence::dump;
use crate::support::{Client, Reply, TestServer, copy_folder, wait_for};

/// The year 2096, in Unix milliseconds.
const LATER: &str = "4000000000000";
const LIBRARY: &str = "#!lua name=lib\nredis.register_function('f', function() return 7 end)";
const DIGEST: &str = "digest.txt";

fn folders() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/compatibility")
}

fn start(dir: &Path, lines: &[&str]) -> TestServer {
    let mut all = vec![format!("dir {}", dir.display())];
    all.extend(lines.iter().map(|line| (*line).to_owned()));
    TestServer::start(&all)
}

pub fn ok(client: &mut Client, line: &str) {
    let reply = client.call(&line.split(' ').collect::<Vec<_>>());
    assert!(!matches!(reply, Reply::Error(_)), "{line}: {}", reply.show());
}

/// Something of each type and encoding, three databases, deadlines of keys and fields, a library of
/// functions.
pub fn fill_data(client: &mut Client) {
    dump::fill(client);
    ok(client, &format!("SET session x PXAT {LATER}"));
    ok(client, &format!("HPEXPIREAT hash {LATER} FIELDS 2 f empty"));
    ok(client, &format!("HPEXPIREAT large-hash {LATER} FIELDS 2 1 699"));
    for database in [3, 15] {
        ok(client, &format!("SELECT {database}"));
        ok(client, "SET of-database 1");
    }
    ok(client, "SELECT 0");
    client.call(&["FUNCTION", "LOAD", LIBRARY]);
}

/// Locks and permits that are held.
pub fn fill_locks(client: &mut Client) {
    // For longer than anybody will load this: 70 years.
    ok(client, "LOCK.ACQUIRE lock:held worker PX 2000000000000");
    ok(client, "LOCK.ACQUIRE lock:read worker PX 2000000000000 SHARED");
    ok(client, "SEM.ACQUIRE permits worker LIMIT 3 PX 2000000000000");
}

/// A line that changes if anything of the data does.
pub fn shown(client: &mut Client) -> String {
    let mut shown = Vec::new();
    for line in [
        "DEBUG DIGEST",
        "PEXPIRETIME session",
        "HPEXPIRETIME hash FIELDS 3 f g empty",
        "HPEXPIRETIME large-hash FIELDS 2 699 2",
        "XPENDING stream group",
        "FCALL f 0",
    ] {
        let reply = client.call(&line.split(' ').collect::<Vec<_>>()).show();
        shown.push(reply.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    shown.join("; ")
}

fn write(dir: &Path) {
    std::fs::create_dir_all(dir).expect("a folder");
    let server = start(dir, &["appendonly yes"]);
    let mut client = server.connect();
    fill_data(&mut client);
    fill_locks(&mut client);
    ok(&mut client, "BGREWRITEAOF");
    wait_for("the rewrite", || {
        server.settle();
        let info = client.call(&["INFO", "persistence"]).show();
        info.contains("aof_rewrite_in_progress:0").then_some(())
    });
    for line in ["RPUSH list behind", "MULTI", "INCR int", "DEL set", "EXEC"] {
        ok(&mut client, line);
    }
    ok(&mut client, "SAVE");
    std::fs::write(dir.join(DIGEST), shown(&mut client) + "\n").expect("a file");
}

#[test]
fn files_of_all_versions_are_loaded() {
    if std::env::var_os("COMPATIBILITY_WRITE").is_some() {
        write(&folders().join(env!("CARGO_PKG_VERSION")));
    }
    let mut count = 0;
    for entry in std::fs::read_dir(folders()).expect("the versions' folder") {
        let version = entry.expect("an entry").path();
        let written = std::fs::read_to_string(version.join(DIGEST)).expect("a digest");
        for lines in [&["appendonly no"], &["appendonly yes"]] {
            // A start may write to its folder.
            let scratch = tempfile::tempdir().expect("a folder");
            copy_folder(&version, scratch.path());
            let server = start(scratch.path(), lines);
            let seen = shown(&mut server.connect());
            assert_eq!(seen, written.trim_end(), "{} with {lines:?}", version.display());
        }
        count += 1;
    }
    assert!(count > 0);
}
