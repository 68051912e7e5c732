//! The expected texts are those of `redis-check-aof` 7.0.15 for the same files.

use super::*;
use crate::persist::aof::manifest::BaseFormat;
use crate::sys::disk::model::ModelDisk;

const GOOD: &str = "*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\n1\r\n";
const MULTI: &str = "*1\r\n$5\r\nMULTI\r\n";

fn disk(files: &[(&str, &[u8])]) -> ModelDisk {
    let disk = ModelDisk::new(1);
    for (name, bytes) in files {
        disk.put(Path::new(name), bytes);
    }
    disk
}

/// Runs the tool with the answer to its question. Returns the exit code and the output.
fn run(disk: &ModelDisk, args: &[&str], yes: bool) -> (i32, String) {
    let args: Vec<OsString> = args.iter().map(OsString::from).collect();
    let mut out = Vec::new();
    let code = match CheckAof::parse("redis-check-aof", &args) {
        Err(text) => {
            out.extend_from_slice(text.as_bytes());
            1
        }
        Ok(check) => check.run(Environment {
            disk,
            out: &mut out,
            answer: &mut || yes,
            rdb: &mut |_, source, _, _| {
                let mut image = [0; 9];
                source.read_exact(&mut image).ok()?;
                (image == *b"REDIS0010").then_some(9)
            },
        }),
    };
    (code, String::from_utf8(out).unwrap())
}

/// Checks a single file at `/f`.
fn check(text: &str) -> (i32, String) {
    run(&disk(&[("/f", text.as_bytes())]), &["/f"], false)
}

#[test]
fn a_valid_single_file() {
    let text = "Start checking Old-Style AOF\n\
        AOF analyzed: filename=/f, size=27, ok_up_to=27, ok_up_to_line=8, diff=0\n\
        AOF /f is valid\n";
    assert_eq!(check(GOOD), (0, text.into()));
    assert_eq!(check(""), (0, "Start checking Old-Style AOF\nAOF /f is empty\n".into()));
}

#[test]
fn faults_are_reported_with_their_offset() {
    let fault = |tail: &str, size: usize, up_to: usize, line: u64, report: &str| {
        let text = format!(
            "Start checking Old-Style AOF\n{report}AOF analyzed: filename=/f, size={size}, ok_up_to={up_to}, ok_up_to_line={line}, \
             diff={}\nAOF /f is not valid. Use the --fix option to try fixing it.\n",
            size - up_to
        );
        assert_eq!(check(&format!("{GOOD}{tail}")), (1, text));
    };
    fault(
        "*2\r\n$3\r\nDE",
        37,
        27,
        10,
        "0x              23: Expected to read 5 bytes, got 2 bytes\n",
    );
    fault(
        "*2\r\n$3\r\nDEL\r\n:1\r\n",
        44,
        27,
        11,
        "0x              28: Expected prefix '$', got: ':'\n",
    );
    fault("*1\r\n$3\r\nDELxx", 40, 27, 10, "0x              23: Expected \\r\\n, got: 7878\n");
    fault("junk", 31, 27, 8, "AOF /f format error\n");
    fault(MULTI, 42, 27, 11, "0x              2a: Reached EOF before reading EXEC for MULTI\n");
    let exec = "*1\r\n$4\r\nEXEC\r\n";
    fault(exec, 41, 27, 11, "0x              1b: Unexpected EXEC in AOF /f\n");
}

#[test]
fn a_fix_truncates_after_asking() {
    let damaged = format!("{GOOD}{MULTI}{GOOD}");
    let disk = disk(&[("/f", damaged.as_bytes())]);
    let asked =
        "This will shrink the AOF /f from 69 bytes, with 42 bytes, to 27 bytes\nContinue? [y/N]: ";
    let (code, text) = run(&disk, &["--fix", "/f"], false);
    assert!(text.ends_with(&format!("{asked}Aborting...\n")), "{text}");
    assert_eq!(code, 1);
    assert_eq!(disk.bytes(Path::new("/f")).unwrap(), damaged.as_bytes());
    let (code, text) = run(&disk, &["--fix", "/f"], true);
    assert!(text.ends_with(&format!("{asked}Successfully truncated AOF /f\n")), "{text}");
    assert_eq!(code, 0);
    assert_eq!(disk.bytes(Path::new("/f")).unwrap(), GOOD.as_bytes());
}

fn folder(base: &[u8], first: &str, second: &str) -> ModelDisk {
    let manifest = Manifest::default().with_next_base(b"a", BaseFormat::Rdb);
    let manifest = manifest.with_next_increment(b"a").with_next_increment(b"a");
    disk(&[
        ("/a.manifest", &manifest.text()),
        ("/a.1.base.rdb", base),
        ("/a.1.incr.aof", first.as_bytes()),
        ("/a.2.incr.aof", second.as_bytes()),
    ])
}

#[test]
fn all_files_of_a_manifest_are_checked() {
    let disk = folder(b"REDIS0010", GOOD, "");
    let text = "Start checking Multi Part AOF\n\
        Start to check BASE AOF (RDB format).\n\
        RDB preamble is OK, proceeding with AOF tail...\n\
        AOF analyzed: filename=a.1.base.rdb, size=9, ok_up_to=9, ok_up_to_line=1, diff=0\n\
        BASE AOF a.1.base.rdb is valid\n\
        Start to check INCR files.\n\
        AOF analyzed: filename=a.1.incr.aof, size=27, ok_up_to=27, ok_up_to_line=8, diff=0\n\
        INCR AOF a.1.incr.aof is valid\n\
        INCR AOF a.2.incr.aof is empty\n\
        All AOF files and manifest are valid\n";
    assert_eq!(run(&disk, &["/a.manifest"], false), (0, text.into()));
    let broken = folder(b"REDIS0009", "", "");
    let (code, text) = run(&broken, &["/a.manifest"], false);
    assert!(text.ends_with("RDB preamble of AOF file is not sane, aborting.\n"), "{text}");
    assert_eq!(code, 1);
}

#[test]
fn only_the_last_file_is_truncated() {
    let torn = folder(b"REDIS0010", &GOOD[..20], GOOD);
    let (code, text) = run(&torn, &["--fix", "/a.manifest"], true);
    assert!(
        text.ends_with("Failed to truncate AOF a.1.incr.aof because it is not the last file\n")
    );
    assert_eq!(code, 1);
    let torn = folder(b"REDIS0010", GOOD, &GOOD[..20]);
    let (code, text) = run(&torn, &["--fix", "/a.manifest"], true);
    let expected =
        "Successfully truncated AOF a.2.incr.aof\nAll AOF files and manifest are valid\n";
    assert!(text.ends_with(expected), "{text}");
    assert_eq!(code, 0);
    assert_eq!(torn.bytes(Path::new("/a.2.incr.aof")).unwrap(), b"");
    // A crash at the start of a rewrite leaves an empty file after the torn one.
    let torn = folder(b"REDIS0010", &GOOD[..20], "");
    assert_eq!(run(&torn, &["--fix", "/a.manifest"], true).0, 0);
}

#[test]
fn a_later_time_truncates_what_follows() {
    let text = format!("#TS:100\r\n{GOOD}#TS:200\r\n{GOOD}#TS:300\r\n{GOOD}");
    let disk = disk(&[("/f", text.as_bytes())]);
    let (code, output) = run(&disk, &["--truncate-to-timestamp", "300", "/f"], false);
    assert!(output.ends_with("Truncate nothing in AOF /f to timestamp 300\nAOF /f is valid\n"));
    assert_eq!(code, 0);
    let (code, output) = run(&disk, &["--truncate-to-timestamp", "199", "/f"], false);
    assert!(output.ends_with("Successfully truncated AOF /f to timestamp 199\n"), "{output}");
    assert_eq!(code, 0);
    assert_eq!(disk.bytes(Path::new("/f")).unwrap(), format!("#TS:100\r\n{GOOD}").as_bytes());
    let (code, output) = run(&disk, &["--truncate-to-timestamp", "99", "/f"], false);
    assert!(output.ends_with("AOF /f has nothing before timestamp 99, aborting...\n"), "{output}");
    assert_eq!(code, 1);
    let (_, output) = run(&disk, &["--truncate-to-timestamp", "x", "/f"], false);
    assert_eq!(output, "Invalid timestamp, aborting...\n");
}

#[test]
fn unreadable_files_and_bad_arguments_are_errors() {
    let usage = "Usage: redis-check-aof [--fix|--truncate-to-timestamp $timestamp] <file.manifest|file.aof>\n";
    for args in [&[][..], &["--fixx", "/f"], &["--fix", "--fix", "/f", "/g"]] {
        assert_eq!(run(&disk(&[]), args, false), (1, usage.into()));
    }
    assert_eq!(run(&disk(&[]), &["/f"], false).0, 1);
    let manifest = disk(&[("/m", b"file ../x seq 1 type i\n")]);
    let (code, text) = run(&manifest, &["/m"], false);
    assert!(text.contains("*** FATAL AOF MANIFEST FILE ERROR ***"), "{text}");
    assert!(text.contains("File can't be a path, just a filename"), "{text}");
    assert_eq!(code, 1);
    let missing = disk(&[("/m", b"file x seq 1 type i\n")]);
    assert_eq!(run(&missing, &["/m"], false).0, 1);
}

#[test]
fn an_emptied_base_is_not_valid() {
    let manifest = |base: &str| {
        let text = format!("file {base} seq 1 type b\nfile a.1.incr.aof seq 1 type i\n");
        let disk = disk(&[
            ("/a.manifest", text.as_bytes()),
            (&format!("/{base}"), b""),
            ("/a.1.incr.aof", GOOD.as_bytes()),
        ]);
        run(&disk, &["/a.manifest"], false)
    };
    let (code, text) = manifest("a.1.base.rdb");
    assert!(code == 1 && text.ends_with("is empty, so its data is lost\n"), "{text}");
    assert_eq!(manifest("a.1.base.aof").0, 0);
}
