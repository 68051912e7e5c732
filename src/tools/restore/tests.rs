use super::*;
use crate::clock::{ManualClock, UnixMillis};
use crate::sys::disk::model::{Death, ModelDisk};

const NEW: &[u8] = include_bytes!("../../../tests/data/aof/values-7.0.15.rdb");
const OLD: &[u8] = include_bytes!("../../../tests/data/rdb/redis-7.0.15.rdb");
const INCREMENT: &[u8] = b"*1\r\n$8\r\nFLUSHALL\r\n";
const MANIFEST: &[u8] =
    b"file appendonly.aof.1.base.rdb seq 1 type b\nfile appendonly.aof.1.incr.aof seq 1 type i\n";
const LOG: &str = "/d/appendonlydir";

/// A data folder with an RDB file and an append-only file, and a snapshot outside.
fn disk(seed: u64) -> ModelDisk {
    let disk = ModelDisk::new(seed);
    for folder in ["/d", LOG] {
        disk.create_folder(Path::new(folder)).expect("a folder");
        disk.sync_folder(Path::new(folder).parent().expect("a parent")).expect("synced");
    }
    disk.put(Path::new("/d/dump.rdb"), OLD);
    disk.put(Path::new("/new.rdb"), NEW);
    for (name, bytes) in old_log() {
        disk.put(&Path::new(LOG).join(name), bytes);
    }
    disk
}

fn old_log() -> [(&'static str, &'static [u8]); 3] {
    [
        ("appendonly.aof.1.base.rdb", OLD),
        ("appendonly.aof.1.incr.aof", INCREMENT),
        ("appendonly.aof.manifest", MANIFEST),
    ]
}

fn config(text: &str) -> Config {
    let mut config = Config::from_text(text.as_bytes()).expect("directives");
    config.dir = "/d".into();
    config
}

fn run(disk: &ModelDisk, file: &str, config: &Config) -> Result<Restored, String> {
    let clock = Clock::Manual(ManualClock::new(UnixMillis(1_796_000_486_000)));
    let disk = Arc::new(disk.clone());
    Restore { disk, clock: &clock, file: Path::new(file), config }.run(&mut |_, _| {})
}

/// The files that a start with the append-only file on would load.
fn loaded(disk: &ModelDisk) -> Vec<Vec<u8>> {
    let log = AofFolder::open(
        Arc::new(disk.clone()),
        Path::new("/d"),
        b"appendonlydir",
        b"appendonly.aof",
    );
    let log = log.expect("a start opens the folder");
    let paths: Vec<PathBuf> = log.manifest().files().map(|file| log.path_of(&file.name)).collect();
    paths.iter().map(|path| disk.bytes(path).expect("a listed file")).collect()
}

/// Whether some folder of old append-only files is complete, as a start would read it.
fn has_old_log(disk: &ModelDisk) -> bool {
    let folders = disk.list(Path::new("/d")).expect("a folder");
    folders.iter().map(|name| Path::new("/d").join(name)).any(|folder| {
        old_log().iter().all(|(name, bytes)| {
            disk.bytes(&folder.join(name)).is_some_and(|found| found == *bytes)
        })
    })
}

fn has_old_dump(disk: &ModelDisk) -> bool {
    let names = disk.list(Path::new("/d")).expect("a folder");
    names.iter().any(|name| disk.bytes(&Path::new("/d").join(name)).is_some_and(|it| it == OLD))
}

#[test]
fn both_files_have_the_new_data_and_the_old_files_are_kept() {
    let disk = disk(1);
    let done = run(&disk, "/new.rdb", &config("")).expect("restored");
    assert_eq!(disk.bytes(Path::new("/d/dump.rdb")).as_deref(), Some(NEW));
    assert_eq!(loaded(&disk), [NEW]);
    let suffix = ".before-restore-20261130T010126Z";
    let kept = |name: &str| (PathBuf::from(name), PathBuf::from(format!("{name}{suffix}")));
    assert_eq!(done.kept, [kept("/d/dump.rdb"), kept(LOG)]);
    assert!(has_old_log(&disk) && has_old_dump(&disk) && done.left.is_empty());
    assert!(disk.bytes(&Path::new(LOG).join("appendonly.aof.1.incr.aof")).is_none());
    // A second one in the same second keeps the files of the first one.
    let again = run(&disk, "/new.rdb", &config("")).expect("restored");
    assert!(again.kept[0].1.to_string_lossy().ends_with("Z-2"), "{again:?}");
    assert!(has_old_log(&disk) && has_old_dump(&disk));
}

#[test]
fn killed_at_any_operation_a_start_finds_the_old_files_or_the_new_ones() {
    for death in [Death::Kill, Death::PowerLoss] {
        let (mut ends, mut seen) = (0, [0, 0]);
        for operation in 1.. {
            let disk = disk(operation);
            disk.end_at(disk.operations() + operation);
            let _ = run(&disk, "/new.rdb", &config(""));
            if !disk.has_ended() {
                break;
            }
            ends += 1;
            disk.restart(death);
            let dump = disk.bytes(Path::new("/d/dump.rdb")).expect("an RDB file");
            assert!([OLD, NEW].contains(&&*dump), "{death:?} at {operation}");
            let log = loaded(&disk);
            assert!(log == [OLD, INCREMENT] || log == [NEW], "{death:?} at {operation}");
            seen[usize::from(log == [NEW])] += 1;
            assert!(has_old_log(&disk) && has_old_dump(&disk), "{death:?} at {operation}");
            let done = run(&disk, "/new.rdb", &config(""));
            done.unwrap_or_else(|why| panic!("{death:?} at {operation}: {why}"));
            assert_eq!(loaded(&disk), [NEW]);
            assert_eq!(disk.bytes(Path::new("/d/dump.rdb")).as_deref(), Some(NEW));
            assert!(has_old_log(&disk) && has_old_dump(&disk), "{death:?} at {operation}");
        }
        assert!(ends > 20 && seen.iter().all(|count| *count > 0), "{ends} {seen:?}");
    }
}

#[test]
fn a_full_disk_changes_nothing() {
    let disk = disk(1);
    disk.set_capacity(Some(disk.used() + NEW.len() + 10));
    let why = run(&disk, "/new.rdb", &config("")).expect_err("no room");
    assert!(why.contains("No space left"), "{why}");
    assert_eq!(loaded(&disk), [OLD, INCREMENT]);
    assert_eq!(disk.bytes(Path::new("/d/dump.rdb")).as_deref(), Some(OLD));
}

#[test]
fn names_of_the_configuration_are_used() {
    let disk = disk(1);
    let config = config("dbfilename x.rdb\nappenddirname y\nappendfilename z\nappendonly yes");
    let done = run(&disk, "/new.rdb", &config).expect("restored");
    assert_eq!(done.placed, ["/d/x.rdb", "/d/y/z.1.base.rdb"].map(PathBuf::from));
    assert!(done.kept.is_empty());
    assert_eq!(loaded(&disk), [OLD, INCREMENT]);
    let log = AofFolder::open(Arc::new(disk.clone()), Path::new("/d"), b"y", b"z").expect("read");
    assert!(log.manifest().base().is_some());
}

#[test]
fn the_rdb_file_itself_becomes_the_append_only_file() {
    let disk = disk(1);
    disk.put(Path::new("/d/dump.rdb"), NEW);
    let done = run(&disk, "/d/dump.rdb", &config("")).expect("restored");
    assert_eq!((done.kept.len(), loaded(&disk)), (1, vec![NEW.to_vec()]));
    assert!(has_old_log(&disk));
}

#[test]
fn a_damaged_append_only_file_is_replaced_and_kept() {
    for manifest in [None, Some(&b"nonsense"[..]), Some(b"")] {
        let disk = disk(1);
        let path = Path::new(LOG).join("appendonly.aof.manifest");
        match manifest {
            Some(text) => disk.put(&path, text),
            None => disk.remove(&path).expect("removed"),
        }
        let done = run(&disk, "/new.rdb", &config("")).expect("restored");
        assert_eq!(loaded(&disk), [NEW]);
        let kept = done.kept[1].1.join("appendonly.aof.1.incr.aof");
        assert_eq!(disk.bytes(&kept).as_deref(), Some(INCREMENT));
    }
}

#[test]
fn a_file_that_is_wrong_is_refused_before_anything_changes() {
    let mut damaged = NEW.to_vec();
    damaged[NEW.len() / 2] ^= 1;
    let long = [NEW, b"x"].concat();
    let record = format!("bytes:{}\nsha256:{}\n", NEW.len(), "0".repeat(64));
    let cases: [(&[u8], &str, &str, &str); 5] = [
        (&damaged, "", "", "/new.rdb: "),
        (&long, "", "", "1 bytes follow the end"),
        (NEW, &record, "", "it is not the file of which /new.rdb.info tells"),
        (NEW, "bytes:1\n", "", "it has no bytes and sha256"),
        (NEW, "", "databases 1", "'databases' must be higher"),
    ];
    for (bytes, record, text, why) in cases {
        let disk = disk(1);
        disk.put(Path::new("/new.rdb"), bytes);
        if !record.is_empty() {
            disk.put(Path::new("/new.rdb.info"), record.as_bytes());
        }
        let before = disk.operations();
        let error = run(&disk, "/new.rdb", &config(text)).expect_err("refused");
        assert!(error.contains(why), "{error}");
        assert_eq!(disk.operations(), before, "{why}");
    }
}

#[test]
fn a_folder_that_a_server_has_locked_is_refused() {
    let disk = disk(1);
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let locked =
        AofFolder::open_locked(shared, Path::new("/d"), b"appendonlydir", b"appendonly.aof");
    let error = run(&disk, "/new.rdb", &config("")).expect_err("refused");
    assert!(error.contains("Another server uses this append-only file"), "{error}");
    drop(locked.expect("locked"));
    assert!(run(&disk, "/new.rdb", &config("")).is_ok());
}
