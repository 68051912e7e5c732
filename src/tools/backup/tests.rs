use std::collections::BTreeSet;
use std::io::Cursor;

use super::*;
use crate::clock::{ManualClock, UnixMillis};
use crate::sys::disk::RealDisk;
use crate::sys::disk::model::{Death, ModelDisk};

const SNAPSHOT: &[u8] = include_bytes!("../../../tests/data/aof/values-7.0.15.rdb");
const ID: &str = "abcdefabcdefabcdefabcdefabcdefabcdefabcd";
const MARK: &str = "0123456789abcdef0123456789abcdef01234567";

/// A server that sends bytes, whatever it receives.
struct Peer(Cursor<Vec<u8>>);

impl Read for Peer {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = buffer.len().min(100);
        self.0.read(&mut buffer[..count])
    }
}

impl Write for Peer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn sends(snapshot: &[u8], end: &[u8]) -> Peer {
    let head = "+PONG\r\n+OK\r\n+OK\r\n-ERR Unrecognized REPLCONF option: version\r\n+OK\r\n";
    let head = format!("{head}\n+FULLRESYNC {ID} 1234\r\n\n$EOF:{MARK}\r\n");
    Peer(Cursor::new([head.as_bytes(), snapshot, end].concat()))
}

fn parse(words: &[&str]) -> Result<Backup, String> {
    let words: Vec<OsString> = words.iter().map(OsString::from).collect();
    Backup::parse(&words, None)
}

fn take(disk: &dyn Disk, folder: &Path, peer: Peer) -> Result<Done, String> {
    let backup = parse(&["h:1", "/b"]).expect("an address and a folder");
    let clock = Clock::Manual(ManualClock::new(UnixMillis(1_796_000_486_000)));
    let place = Place::open(disk, folder, "h-1")?;
    backup.fill(&place, peer, &clock, &mut |_| {})
}

fn names(disk: &ModelDisk) -> BTreeSet<String> {
    let names = disk.list(Path::new("/b")).unwrap_or_default();
    names.into_iter().map(|name| name.into_string().expect("text")).collect()
}

#[test]
fn a_complete_snapshot_gets_its_name_with_its_record() {
    let folder = tempfile::tempdir().expect("a folder");
    let done = take(&RealDisk, folder.path(), sends(SNAPSHOT, MARK.as_bytes())).expect("taken");
    assert_eq!(done.path, folder.path().join("h-1-20261130T010126Z.rdb"));
    assert_eq!(std::fs::read(&done.path).expect("the file"), SNAPSHOT);
    assert_eq!((done.facts.keys, done.history), (16, Some((ID.into(), 1234))));
    let expected = record::read(&RealDisk, &done.path).expect("readable").expect("a record");
    assert_eq!(expected.bytes, SNAPSHOT.len() as u64);
    let second = take(&RealDisk, folder.path(), sends(SNAPSHOT, MARK.as_bytes())).expect("taken");
    assert_eq!(second.path, folder.path().join("h-1-20261130T010126Z-2.rdb"));
}

#[test]
fn a_damaged_or_cut_snapshot_gets_no_name() {
    let mut damaged = SNAPSHOT.to_vec();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    let longer = [SNAPSHOT, b"x"].concat();
    let (mark, cut) = (MARK.as_bytes(), &SNAPSHOT[..SNAPSHOT.len() - 1]);
    for (peer, why) in [
        (sends(&damaged, mark), "The snapshot is damaged"),
        (sends(&longer, mark), "1 bytes follow its end"),
        (sends(cut, mark), "The snapshot is damaged"),
        (sends(cut, b""), "the connection ended"),
        (Peer(Cursor::new(b"-NOAUTH Authentication required.\r\n".to_vec())), "ended"),
        (Peer(Cursor::new(b"HTTP/1.1 400 Bad Request\r\n".to_vec())), "HTTP/1.1 400"),
    ] {
        let disk = ModelDisk::new(1);
        let error = take(&disk, Path::new("/b"), peer).expect_err("refused");
        assert!(error.contains(why), "{error}");
        assert_eq!(names(&disk), ["temp-h-1.part".to_owned()].into());
    }
}

#[test]
fn killed_at_any_operation_a_backup_is_complete_or_not_there() {
    for death in [Death::Kill, Death::PowerLoss] {
        let mut ends = 0;
        for operation in 1.. {
            let disk = ModelDisk::new(operation);
            disk.end_at(operation);
            let _ = take(&disk, Path::new("/b"), sends(SNAPSHOT, MARK.as_bytes()));
            if !disk.has_ended() {
                break;
            }
            ends += 1;
            disk.restart(death);
            let name = "h-1-20261130T010126Z.rdb";
            let path = Path::new("/b").join(name);
            if let Some(bytes) = disk.bytes(&path) {
                assert_eq!(bytes, SNAPSHOT, "{death:?} at {operation}");
                let record = record::read(&disk, &path).expect("readable").expect("a record");
                assert_eq!(record.bytes, SNAPSHOT.len() as u64);
            }
            let done = take(&disk, Path::new("/b"), sends(SNAPSHOT, MARK.as_bytes()));
            let done = done.expect("the next backup is taken");
            assert_eq!(disk.bytes(&done.path).as_deref(), Some(SNAPSHOT));
            for record in names(&disk).iter().filter_map(|name| name.strip_suffix(".info")) {
                // The temporary name of a record may be left.
                let is_left = record == "temp-h-1";
                assert!(is_left || names(&disk).contains(record), "{death:?} at {operation}");
            }
        }
        assert!(ends > 8, "{ends}");
    }
}

#[test]
fn one_backup_of_a_server_is_written_at_a_time() {
    let disk = ModelDisk::new(1);
    let first = Place::open(&disk, Path::new("/b"), "h-1").expect("free");
    let second = Place::open(&disk, Path::new("/b"), "h-1").err().expect("locked");
    assert!(second.contains("Another backup of this server"), "{second}");
    assert!(Place::open(&disk, Path::new("/b"), "h-2").is_ok());
    drop(first);
    assert!(Place::open(&disk, Path::new("/b"), "h-1").is_ok());
}

#[test]
fn the_command_line_is_checked() {
    let (host, port) = parse_address("[::1]:6379").expect("an address");
    assert_eq!((host.as_str(), port, label(&host, port).as_str()), ("::1", 6379, "__1-6379"));
    for wrong in ["h", "h:", "h:0", "h:70000", ":1", "::1:1", "[::1:1", "[]:1"] {
        assert_eq!(parse_address(wrong), None, "{wrong}");
    }
    let refused = |words: &[&str], why: &str| {
        let error = parse(&[&["h:1", "/b"], words].concat()).expect_err("refused");
        assert!(error.starts_with(why), "{error}");
    };
    refused(&["--nosuch"], "Unknown option '--nosuch'");
    refused(&["--user"], "--user needs a value");
    refused(&["--user", "me"], "--user needs a password");
    refused(&["--timeout", "0"], "--timeout is between");
    refused(&["--cacert", "f"], "options of TLS need --tls");
    refused(&["--tls"], "--tls needs --cacert");
    refused(&["--tls", "--cacert", "f", "--cert", "f"], "--cert and --key");
    assert!(parse(&["h:1"]).expect_err("no folder").starts_with("Usage:"));
    let words =
        ["h:1", "/b", "--user", "me", "-a", "x", "--timeout", "5", "--tls", "--cacert", "f"];
    let backup = parse(&words).expect("all of them");
    assert_eq!(backup.access.login.password.as_deref(), Some(&b"x"[..]));
    assert!(
        backup.access.tls.is_some() && backup.access.timeout == std::time::Duration::from_secs(5)
    );
}
