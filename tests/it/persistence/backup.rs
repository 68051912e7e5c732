//! `--backup` and `--restore` as programs, beside writes, killed at any moment.

#![allow(clippy::disallowed_methods)] // the moment of a kill is one of real time

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::ports::free_port;
use crate::support::{Client, Reply, number_from, seed, wait_for};

/// How often each program is killed. `BACKUP_KILLS` chooses another number.
const KILLS: u64 = 20;

struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start(dir: &Path, options: &[&str]) -> Self {
        let port = free_port();
        let mut command = latchkey();
        command.args(["--port", &port.to_string(), "--dir"]).arg(dir);
        command.args(["--logfile", "log", "--save", "", "--enable-debug-command", "yes"]);
        command.args(["--repl-diskless-sync-delay", "0"]).args(options);
        let child = command.spawn().expect("the server starts");
        let server = Server { child, port };
        wait_for("the server", || {
            Client::try_connect(([127, 0, 0, 1], port).into()).ok()?.if_served()
        });
        server
    }

    fn connect(&self) -> Client {
        Client::connect(([127, 0, 0, 1], self.port).into())
    }

    fn ask(&self, line: &str) -> Reply {
        self.connect().ask(line)
    }

    fn size(&self) -> i64 {
        self.ask("DBSIZE").number()
    }

    /// Sets keys by a script: DEBUG POPULATE does not go to the append-only file.
    fn fill(&self, keys: i64) {
        let script = "for i = 1, ARGV[1] do redis.call('SET', 'old:' .. i, i) end";
        let filled = self.connect().call(&["EVAL", script, "0", &keys.to_string()]);
        assert_eq!(filled, Reply::NullBulk);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn latchkey() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_latchkey"));
    command.env_remove("REDISCLI_AUTH").env_remove("NOTIFY_SOCKET");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn backup(port: u16, folder: &Path) -> Command {
    let mut command = latchkey();
    command.args(["--backup", &format!("127.0.0.1:{port}")]).arg(folder);
    command
}

fn restore(file: &Path, dir: &Path) -> Command {
    let mut command = latchkey();
    command.arg("--restore").arg(file).arg("--dir").arg(dir);
    command
}

/// Runs a program to its end. Returns its output; it must have succeeded.
fn succeed(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().expect("the program runs");
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).expect("text")
}

fn fail(command: &mut Command) -> String {
    let Output { status, stderr, .. } = command.output().expect("the program runs");
    assert_eq!(status.code(), Some(1));
    String::from_utf8(stderr).expect("text")
}

/// Starts a program and kills it after a time. False: it had ended before.
fn kill_after(command: &mut Command, time: Duration) -> bool {
    let begun = Instant::now();
    let mut child = command.spawn().expect("the program starts");
    while begun.elapsed() < time {
        std::thread::yield_now();
    }
    let was_running = child.try_wait().expect("a child").is_none();
    let _ = child.kill();
    let _ = child.wait();
    was_running
}

fn snapshots(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths.filter(|path| path.extension().is_some_and(|end| end == "rdb")).collect()
}

/// Whether the newest snapshot is loaded by a start, and both counters in it are equal.
fn check_contents(file: &Path) {
    let dir = tempfile::tempdir().expect("a folder");
    succeed(&mut restore(file, dir.path()));
    let server = Server::start(dir.path(), &[]);
    let counters = server.ask("MGET a b").items();
    assert_eq!(counters[0], counters[1]);
}

#[test]
fn a_backup_beside_writes_is_complete_or_not_there_whenever_it_is_killed() {
    let mut random = fastrand::Rng::with_seed(seed("BACKUP_SEED"));
    let (dir, folder) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir());
    let folder = folder.expect("a folder");
    let server = Server::start(dir.path(), &[]);
    server.ask("DEBUG POPULATE 20000 key 200");
    let ends = Arc::new(AtomicBool::new(false));
    let (mut writes, stop) = (server.connect(), ends.clone());
    let writer = std::thread::spawn(move || {
        let mut count = 0;
        while !stop.load(Ordering::Relaxed) {
            let executed = writes.ask_all(&["MULTI", "INCR a", "INCR b", "EXEC"]).pop();
            count += 1;
            assert_eq!(executed, Some(Reply::Array(vec![Reply::Integer(count); 2])));
        }
        count
    });
    let begun = Instant::now();
    succeed(&mut backup(server.port, folder.path()));
    let mut whole = begun.elapsed();
    let kills = number_from("BACKUP_KILLS", KILLS);
    let mut killed = 0;
    for _ in 0..kills * 5 {
        let time = whole.mul_f64(random.f64());
        if kill_after(&mut backup(server.port, folder.path()), time) {
            killed += 1;
        } else {
            // It takes less time than then, when the machine had more to do.
            whole = whole.mul_f64(0.8);
        }
        if killed == kills {
            break;
        }
    }
    assert_eq!(killed, kills);
    succeed(&mut backup(server.port, folder.path()));
    ends.store(true, Ordering::Relaxed);
    assert!(writer.join().expect("the writer ends") > 0);
    let files = snapshots(folder.path());
    assert!(files.len() >= 2);
    for file in &files {
        succeed(latchkey().arg("--check-rdb").arg(file));
        let record = std::fs::read_to_string(format!("{}.info", file.display()));
        let record = record.expect("a record beside each snapshot");
        assert!(
            record.contains("replication_offset:") && record.contains("\nkeys:2000"),
            "{record}"
        );
    }
    check_contents(files.iter().max().expect("a snapshot"));
    let left = std::fs::read_dir(folder.path()).expect("the folder").count();
    assert_eq!(left, files.len() * 2, "nothing else is left");
}

#[test]
fn a_restore_leaves_the_old_data_or_the_new_whenever_it_is_killed() {
    let mut random = fastrand::Rng::with_seed(seed("BACKUP_SEED"));
    let folder = tempfile::tempdir().expect("a folder");
    let source = tempfile::tempdir().expect("a folder");
    let server = Server::start(source.path(), &[]);
    server.ask("DEBUG POPULATE 20000 new 100");
    succeed(&mut backup(server.port, folder.path()));
    drop(server);
    let file = snapshots(folder.path()).pop().expect("a snapshot");
    let dir = tempfile::tempdir().expect("a folder");
    let options = ["--appendonly", "yes"];
    let mut server = Server::start(dir.path(), &options);
    server.fill(3000);
    let mut expected = 3000;
    let refused = fail(&mut restore(&file, dir.path()));
    assert!(refused.contains("stop it first") || refused.contains("Another server"), "{refused}");
    drop(server);
    // A whole one in another folder tells how long it takes.
    let other = tempfile::tempdir().expect("a folder");
    let begun = Instant::now();
    succeed(restore(&file, other.path()).args(options));
    let mut whole = begun.elapsed();
    let (kills, mut killed, mut seen) = (number_from("BACKUP_KILLS", KILLS), 0, [0, 0]);
    for _ in 0..kills * 5 {
        // Most of the time goes to reading the file through.
        let time = whole.mul_f64(0.5 + random.f64() * 0.6);
        // One that has ended by then is faster than was thought.
        match kill_after(&mut restore(&file, dir.path()), time) {
            true => killed += 1,
            false => whole = whole.min(time),
        }
        server = Server::start(dir.path(), &options);
        let keys = server.size();
        assert!(keys == expected || keys == 20_000, "{keys} instead of {expected}");
        seen[usize::from(keys == 20_000)] += 1;
        if keys == 20_000 {
            server.ask("FLUSHALL");
            expected = 2000 + random.i64(..1000);
            server.fill(expected);
        }
        server.ask("SET written here");
        expected = server.size();
        drop(server);
        if killed >= kills {
            break;
        }
    }
    assert!(killed >= kills, "{killed}");
    succeed(&mut restore(&file, dir.path()));
    let server = Server::start(dir.path(), &options);
    assert_eq!(server.size(), 20_000);
    let log = std::fs::read_to_string(dir.path().join("log")).expect("a log");
    let last = log.rsplit("Latchkey is starting").next().expect("the last start");
    assert!(!last.contains("is not loaded"), "{last}");
}

#[test]
fn a_start_tells_of_a_dump_that_it_does_not_load() {
    let (dir, source) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir());
    let source = source.expect("a folder");
    let options = ["--appendonly", "yes"];
    let server = Server::start(dir.path(), &options);
    server.ask("SET a 1");
    drop(server);
    let other = Server::start(source.path(), &[]);
    other.ask("DEBUG POPULATE 100");
    other.ask("SAVE");
    drop(other);
    std::fs::copy(source.path().join("dump.rdb"), dir.path().join("dump.rdb")).expect("a copy");
    let server = Server::start(dir.path(), &options);
    assert_eq!(server.size(), 1);
    drop(server);
    let log = std::fs::read_to_string(dir.path().join("log")).expect("a log");
    assert!(
        log.contains("is not loaded, since the append only file is, though it is newer"),
        "{log}"
    );
    // The line's own remedy.
    succeed(&mut restore(&dir.path().join("dump.rdb"), dir.path()));
    let server = Server::start(dir.path(), &options);
    assert_eq!(server.size(), 100);
}

#[test]
fn a_password_comes_from_the_environment_or_an_option() {
    let (dir, folder) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir());
    let folder = folder.expect("a folder");
    let acl = ["--user", "saver", "on", ">s3", "-@all", "+psync", "+replconf", "+ping"];
    let server = Server::start(dir.path(), &acl);
    server.ask("CONFIG SET requirepass s2");
    let refused = fail(&mut backup(server.port, folder.path()));
    assert!(refused.contains("NOAUTH"), "{refused}");
    let refused = fail(backup(server.port, folder.path()).args(["--pass", "wrong"]));
    assert!(refused.contains("WRONGPASS"), "{refused}");
    succeed(backup(server.port, folder.path()).env("REDISCLI_AUTH", "s2"));
    succeed(backup(server.port, folder.path()).args(["--user", "saver", "--pass", "s3"]));
    assert_eq!(snapshots(folder.path()).len(), 2);
}
