use std::path::Path;
use std::sync::Arc;

use super::*;
use crate::persist::aof::manifest::{BaseFormat, Manifest};
use crate::sys::disk::model::ModelDisk;

const GOOD: &str = "*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\n1\r\n";
const MULTI: &str = "*1\r\n$5\r\nMULTI\r\n";

/// Records its calls; a request BAD cannot be applied.
#[derive(Default)]
struct Notes(Vec<String>);

impl Sink for Notes {
    fn file_begins(&mut self, name: &[u8], bytes: u64) {
        self.0.push(format!("{} {bytes}", String::from_utf8_lossy(name)));
    }

    fn rdb(&mut self, source: &mut dyn DiskReader, bytes: u64) -> Result<u64, String> {
        let mut image = [0; 9];
        source.read_exact(&mut image).map_err(|error| error.to_string())?;
        // Reads too far, as a buffered reader does.
        source.read_to_end(&mut Vec::new()).map_err(|error| error.to_string())?;
        self.0.push(format!("rdb of {bytes}"));
        if image == *b"REDIS0010" { Ok(9) } else { Err("version of tomorrow".into()) }
    }

    fn request(&mut self, request: &Request<'_>) -> Result<(), String> {
        let name = request.arguments().next().unwrap_or_default();
        self.0.push(String::from_utf8_lossy(name).into_owned());
        if name == b"BAD" { Err("Unknown command 'BAD'".into()) } else { Ok(()) }
    }

    fn transaction_abandoned(&mut self) {
        self.0.push("abandoned".into());
    }
}

/// A base of commands may be empty.
fn format_of(base: &[u8]) -> BaseFormat {
    if base.is_empty() { BaseFormat::Aof } else { BaseFormat::Rdb }
}

/// A folder with a base and increments.
fn folder(base: &[u8], increments: &[&str]) -> (ModelDisk, AofFolder) {
    let disk = ModelDisk::new(1);
    crate::sys::disk::Disk::create_folder(&disk, Path::new("/aof")).unwrap();
    let mut manifest = Manifest::default().with_next_base(b"a", format_of(base));
    let name = String::from_utf8(manifest.base().unwrap().name.clone()).unwrap();
    disk.put(&Path::new("/aof").join(name), base);
    for (index, text) in increments.iter().enumerate() {
        manifest = manifest.with_next_increment(b"a");
        disk.put(Path::new(&format!("/aof/a.{}.incr.aof", index + 1)), text.as_bytes());
    }
    disk.put(Path::new("/aof/a.manifest"), &manifest.text());
    let folder = AofFolder::open(Arc::new(disk.clone()), Path::new("/"), b"aof", b"a").unwrap();
    (disk, folder)
}

fn load(folder: &AofFolder, may_cut: bool) -> (Result<Loaded, String>, Vec<String>) {
    load_with(folder, Cuts { truncated: may_cut, ..Cuts::NONE })
}

fn load_with(folder: &AofFolder, cuts: Cuts) -> (Result<Loaded, String>, Vec<String>) {
    let mut notes = Notes::default();
    let result = folder.load(cuts, &mut notes).map_err(|error| error.to_string());
    (result, notes.0)
}

/// The error of loading, which must not have changed any file.
fn refused(base: &[u8], increments: &[&str], may_cut: bool) -> String {
    let (disk, folder) = folder(base, increments);
    let error = load(&folder, may_cut).0.unwrap_err();
    assert!(!error.contains('\n'), "one line: {error}");
    for (index, text) in increments.iter().enumerate() {
        let path = format!("/aof/a.{}.incr.aof", index + 1);
        assert_eq!(disk.bytes(Path::new(&path)).unwrap(), text.as_bytes());
    }
    let kept = Manifest::default().with_next_base(b"a", format_of(base));
    let name = String::from_utf8(kept.base().unwrap().name.clone()).unwrap();
    assert_eq!(disk.bytes(&Path::new("/aof").join(name)).unwrap(), base);
    error
}

#[test]
fn files_are_loaded_in_order_and_so_are_commands_after_an_image() {
    let base = [b"REDIS0010".as_slice(), GOOD.as_bytes()].concat();
    let second = format!("#TS:1\r\n{MULTI}{GOOD}*1\r\n$4\r\nEXEC\r\n");
    let (_, folder) = folder(&base, &[GOOD, &second]);
    let (result, notes) = load(&folder, false);
    let bytes = (base.len() + GOOD.len() + second.len()) as u64;
    let expected = Loaded { bytes, base_bytes: base.len() as u64, warnings: Vec::new() };
    assert_eq!(result, Ok(expected));
    let expected = [
        "a.1.base.rdb 36",
        "rdb of 36",
        "SET",
        "a.1.incr.aof 27",
        "SET",
        "a.2.incr.aof 63",
        "MULTI",
        "SET",
        "EXEC",
    ];
    assert_eq!(notes, expected);
}

#[test]
fn a_last_file_cut_short_is_truncated_if_that_is_allowed() {
    for tail in
        [&GOOD[..20], &format!("{MULTI}{GOOD}"), "\0\0\0\0", "*3\r\n$3\r\nS\0\0\0\0\0\0", "#TS:17"]
    {
        let torn = format!("{GOOD}{tail}");
        let (disk, folder) = folder(b"", &[GOOD, &torn]);
        let (result, notes) = load(&folder, true);
        let loaded = result.unwrap();
        assert_eq!(loaded.bytes, 54);
        assert_eq!(loaded.warnings[1], "!!! Truncating the AOF a.2.incr.aof at offset 27 !!!");
        assert_eq!(notes.last().unwrap(), "abandoned");
        assert_eq!(disk.bytes(Path::new("/aof/a.2.incr.aof")).unwrap(), GOOD.as_bytes());
        let error = refused(b"", &[GOOD, &torn], false);
        assert!(
            error.starts_with("Unexpected end of file reading the append only file a.2.incr.aof")
        );
        assert!(error.contains("whole up to offset 27 of"), "{error}");
    }
}

#[test]
fn damage_at_the_end_is_cut_off_up_to_the_permitted_size() {
    for (tail, kind) in [
        (format!("!!!{GOOD}"), "Expected prefix '*', got: '!' at offset 27"),
        (format!("{MULTI}{GOOD}!"), "Expected prefix '*', got: '!' at offset 69"),
        (GOOD.replace("$3", "#3"), "Expected prefix '$', got: '#' at offset 31"),
    ] {
        let damaged = format!("{GOOD}{tail}");
        let allow = |corrupt_bytes_max| Cuts { truncated: false, corrupt_bytes_max };
        let (disk, folder) = folder(b"", &[GOOD, &damaged, ""]);
        let path = Path::new("/aof/a.2.incr.aof");
        for cuts in [allow(tail.len() as u64 - 1), Cuts { truncated: true, ..Cuts::NONE }] {
            let error = load_with(&folder, cuts).0.unwrap_err();
            assert!(error.contains("Bad file format reading the append only file a.2"), "{error}");
            let hint = format!("max-size' configuration option to {} and", tail.len());
            assert!(error.contains(&hint), "{error}");
            assert_eq!(disk.bytes(path).unwrap(), damaged.as_bytes());
        }
        let (result, notes) = load_with(&folder, allow(tail.len() as u64));
        let loaded = result.unwrap();
        assert_eq!((loaded.bytes, loaded.warnings.len()), (54, 3));
        assert_eq!(loaded.warnings[0], format!("!!! Warning: corrupt AOF file tail!!! {kind}"));
        assert!(loaded.warnings[1].starts_with("!!! Truncating the AOF a.2.incr.aof at offset 27"));
        assert!(notes.iter().any(|note| note == "abandoned"), "{notes:?}");
        assert_eq!(disk.bytes(path).unwrap(), GOOD.as_bytes());
    }
}

#[test]
fn damage_before_the_last_file_is_never_cut_off() {
    let damaged = format!("{GOOD}!");
    let (disk, folder) = folder(b"", &[&damaged, GOOD]);
    let cuts = Cuts { truncated: true, corrupt_bytes_max: u64::MAX };
    let error = load_with(&folder, cuts).0.unwrap_err();
    assert!(error.contains("Bad file format") && !error.contains("max-size"), "{error}");
    assert_eq!(disk.bytes(Path::new("/aof/a.1.incr.aof")).unwrap(), damaged.as_bytes());
}

#[test]
fn the_last_file_is_the_last_one_that_is_not_empty() {
    let (disk, folder) = folder(b"", &[&GOOD[..20], ""]);
    assert_eq!(load(&folder, true).0.unwrap().bytes, 0);
    assert_eq!(disk.bytes(Path::new("/aof/a.1.incr.aof")).unwrap(), b"");
    let error = refused(b"", &[&GOOD[..20], GOOD], true);
    assert!(error.starts_with("Fatal error: the truncated file is not the last file"), "{error}");
}

#[test]
fn after_a_failed_sync_loading_ends_at_the_first_file_that_is_cut_short() {
    for tail in [&GOOD[..20], "\0\0\0\0"] {
        let torn = format!("{GOOD}{tail}");
        let (disk, folder) = folder(b"", &[&torn, GOOD]);
        disk.put(Path::new("/aof/a.unsynced"), b"");
        let (result, notes) = load(&folder, true);
        let loaded = result.unwrap();
        assert_eq!(loaded.bytes, 27);
        assert!(loaded.warnings[1].contains("ends at offset 27"), "{:?}", loaded.warnings);
        assert_eq!(notes.iter().filter(|note| *note == "SET").count(), 1, "{notes:?}");
        // The start replaces the file with a base; until then another start finds the same.
        assert_eq!(disk.bytes(Path::new("/aof/a.1.incr.aof")).unwrap(), torn.as_bytes());
        assert!(load(&folder, false).0.is_err());
    }
    // Further data was written after bytes that a sync had lost.
    let holed = format!("{GOOD}\0\0\0\0\0{GOOD}");
    let (disk, folder) = folder(b"", &[&holed]);
    assert!(load(&folder, true).0.is_err());
    disk.put(Path::new("/aof/a.unsynced"), b"");
    let (result, notes) = load(&folder, true);
    assert_eq!((result.unwrap().bytes, notes.last().unwrap().as_str()), (27, "abandoned"));
}

#[test]
fn damage_is_refused_with_file_offset_and_fault() {
    let damaged = format!("{GOOD}*1\r\n$3\r\nDELxx{GOOD}");
    let error = refused(b"", &[&damaged], true);
    let expected = "Bad file format reading the append only file a.1.incr.aof: Expected \\r\\n, got: 7878 at offset 38 (of 67; line or \
                argument at 35): make a backup";
    assert!(error.starts_with(expected), "{error}");
    let error = refused(b"", &[&format!("{GOOD}*1\r\n$3\r\nBAD\r\n")], true);
    assert_eq!(error, "Unknown command 'BAD' (append only file a.1.incr.aof, offset 27)");
    let error = refused(b"REDIS9999", &[GOOD], true);
    let expected =
        "Error reading the RDB base file a.1.base.rdb, AOF loading aborted: version of tomorrow";
    assert_eq!(error, expected);
}

#[test]
fn a_file_that_is_named_and_not_there_is_refused_before_anything_is_loaded() {
    use crate::sys::disk::Disk;
    let (disk, folder) = folder(b"", &[GOOD, GOOD]);
    disk.remove(Path::new("/aof/a.2.incr.aof")).unwrap();
    let (result, notes) = load(&folder, true);
    assert!(result.unwrap_err().starts_with("The append log file a.2.incr.aof can't be read"));
    assert!(notes.is_empty());
}

#[test]
fn an_empty_base_is_refused_unless_it_may_have_been_written_so() {
    let (disk, emptied) = folder(b"REDIS0010", &[GOOD]);
    disk.put(Path::new("/aof/a.1.base.rdb"), b"");
    let text = "Fatal error: the AOF base file /aof/a.1.base.rdb is empty, so its data is lost: put a copy of this file back, or \
                remove the line of its name from /aof/a.manifest to begin without its data";
    assert_eq!(load(&emptied, true), (Err(text.into()), vec![]));
    for name in ["a.1.base.aof", "a"] {
        let (disk, _) = folder(b"", &[GOOD]);
        let manifest = format!("file {name} seq 1 type b\nfile a.1.incr.aof seq 1 type i\n");
        disk.put(Path::new("/aof/a.manifest"), manifest.as_bytes());
        disk.put(&Path::new("/aof").join(name), b"");
        let folder = AofFolder::open(Arc::new(disk), Path::new("/"), b"aof", b"a").unwrap();
        assert!(load(&folder, true).0.is_ok(), "{name}");
    }
}
