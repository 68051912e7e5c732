//! Upgrades and the way back, with programs of earlier versions: `UPGRADE_FROM` has their paths,
//! with `:` between (`make upgrade` builds them). Each takes turns with this one in a folder, and
//! follows it and is followed.

use std::path::{Path, PathBuf};

use super::backward_compatibility::{fill_data, fill_locks, ok, shown};
use crate::support::peer::Peer;
use crate::support::{Client, wait_for};

fn ours() -> PathBuf {
    env!("CARGO_BIN_EXE_latchkey").into()
}

fn earlier() -> Vec<PathBuf> {
    let paths = std::env::var_os("UPGRADE_FROM").expect("UPGRADE_FROM names programs");
    std::env::split_paths(&paths).collect()
}

/// Changes of each kind, which a program that reads the files must find.
fn change(client: &mut Client, number: u32) {
    for line in ["RPUSH list behind", "MULTI", "INCR int", "DEL set", "EXEC", "XADD stream * f v"] {
        ok(client, line);
    }
    ok(client, &format!("SET changed {number} PXAT 4000000000000"));
    ok(client, "EVAL redis.call('HSET',KEYS[1],'f','of-a-script') 1 hash");
}

/// Ends a server: in order, with a snapshot, or killed when all is in its append-only file.
fn end(server: Peer, has_log: bool) {
    if has_log {
        return drop(server);
    }
    ok(&mut server.connect(), "SAVE");
    server.stop();
}

/// The second program finds what the first one had, and changes it.
fn hand_on(programs: [&Path; 2], dir: &Path, lines: &[&str], has_locks: bool) {
    let has_log = lines.contains(&"appendonly yes");
    let first = Peer::start(programs[0], dir, lines);
    let mut client = first.connect();
    fill_data(&mut client);
    if has_locks {
        fill_locks(&mut client);
    }
    change(&mut client, 1);
    let had = shown(&mut client);
    end(first, has_log);
    let second = Peer::start(programs[1], dir, lines);
    let mut client = second.connect();
    assert_eq!(shown(&mut client), had, "{programs:?} with {lines:?}");
    change(&mut client, 2);
    let had = shown(&mut client);
    end(second, has_log);
    let first = Peer::start(programs[0], dir, lines);
    assert_eq!(shown(&mut first.connect()), had, "{programs:?} and back with {lines:?}");
}

/// The second program follows the first, and is its primary afterwards.
fn follow(programs: [&Path; 2]) {
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let start = |index: usize| {
        let lines = ["repl-diskless-sync-delay 0"];
        Peer::start(programs[index], folders[index].path(), &lines)
    };
    let (primary, replica) = (start(0), start(1));
    let (mut client, mut other) = (primary.connect(), replica.connect());
    fill_data(&mut client);
    ok(&mut other, &format!("REPLICAOF 127.0.0.1 {}", primary.address.port()));
    let in_step = |client: &mut Client, other: &mut Client| {
        wait_for("the link", || {
            let info = other.call(&["INFO", "replication"]).show();
            info.contains("master_link_status:up").then_some(())
        });
        change(client, 3);
        wait_for("the replica", || {
            (client.call(&["WAIT", "1", "100"]).show() == "(integer) 1").then_some(())
        });
        // A replica does not call the function, which may write.
        let [theirs, own] = [other, client].map(|client| {
            let shown = shown(client);
            shown.rsplit_once("; ").map(|(data, _)| data.to_owned())
        });
        assert_eq!(theirs, own, "{programs:?}");
    };
    in_step(&mut client, &mut other);
    ok(&mut other, "REPLICAOF NO ONE");
    ok(&mut client, &format!("REPLICAOF 127.0.0.1 {}", replica.address.port()));
    in_step(&mut other, &mut client);
}

#[test]
#[ignore = "needs programs of earlier versions, which UPGRADE_FROM names"]
fn earlier_versions_take_turns_with_this_one() {
    let (ours, mut count) = (ours(), 0);
    for earlier in earlier() {
        for lines in [&["appendonly no"][..], &["appendonly yes", "appendfsync always"]] {
            for (programs, has_locks) in [([&*earlier, &*ours], false), ([&*ours, &*earlier], true)]
            {
                let dir = tempfile::tempdir().expect("a folder");
                hand_on(programs, dir.path(), lines, has_locks);
            }
        }
        follow([&earlier, &ours]);
        follow([&ours, &earlier]);
        count += 1;
    }
    assert!(count > 0);
}
