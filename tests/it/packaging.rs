//! What people get to see first: the files of `make install`, the container's image, and `--check-config`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const SOURCE: &str = env!("CARGO_MANIFEST_DIR");
const PROGRAM: &str = env!("CARGO_BIN_EXE_latchkey");

fn run(command: &mut Command) -> Output {
    let output = command.current_dir(SOURCE).output().expect("the program starts");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {told}");
    output
}

/// `make` with this program instead of a release, all below `folder`.
fn make(target: &str, folder: &Path) {
    let place = format!("DESTDIR={}", folder.display());
    let binary = format!("BINARY={PROGRAM}");
    run(Command::new("make").args(["-s", target, "REDIS_SERVER=yes", &place, &binary]));
}

/// Files and links below a folder, without what documents.
fn files(folder: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).expect("a folder") {
            let path = entry.expect("a folder's entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if !path.to_string_lossy().contains("/share/doc/") {
                let name = path.strip_prefix(folder).expect("a path below");
                found.insert(name.to_string_lossy().into_owned());
            }
        }
    }
    found
}

fn read(path: PathBuf) -> String {
    std::fs::read_to_string(path).expect("a text")
}

#[test]
fn install_puts_each_file_in_its_place_and_uninstall_takes_them_away() {
    let folder = tempfile::tempdir().expect("a directory");
    make("install", folder.path());
    let configuration = "etc/latchkey/latchkey.conf";
    let installed = [
        configuration,
        "etc/logrotate.d/latchkey",
        "usr/local/bin/latchkey",
        "usr/local/bin/redis-check-aof",
        "usr/local/bin/redis-check-rdb",
        "usr/local/bin/redis-server",
        "usr/local/lib/systemd/system/latchkey.service",
        "usr/local/lib/sysusers.d/latchkey.conf",
        "usr/local/lib/tmpfiles.d/latchkey.conf",
        "usr/local/share/man/man1/latchkey.1",
    ];
    assert_eq!(files(folder.path()), installed.map(String::from).into());
    let documents = folder.path().join("usr/local/share/doc/latchkey");
    for name in ["README.md", "LICENSE", "redis.conf.example", "differences.md"] {
        assert!(documents.join(name).exists(), "{name}");
    }
    let unit = read(folder.path().join("usr/local/lib/systemd/system/latchkey.service"));
    let start = "ExecStart=/usr/local/bin/latchkey /etc/latchkey/latchkey.conf --supervised systemd --daemonize no";
    assert!(unit.lines().any(|line| line == start) && unit.contains("\nType=notify\n"), "{unit}");
    assert!(!unit.contains("DIR@"), "{unit}");

    // A configuration that somebody has changed stays, whatever is installed or removed.
    let changed = folder.path().join(configuration);
    std::fs::write(&changed, "port 7777\n").expect("a file that can be written");
    make("install", folder.path());
    assert_eq!(read(changed), "port 7777\n");
    make("uninstall", folder.path());
    assert_eq!(files(folder.path()), [configuration.to_owned()].into());
    assert!(!documents.exists());
}

#[test]
fn the_first_configuration_starts_a_server() {
    let text = read(Path::new(SOURCE).join("packaging/latchkey.conf"));
    let folder = tempfile::tempdir().expect("a directory");
    let place = folder.path().display().to_string();
    let text = text.replace("/var/lib/latchkey", &place).replace("/var/log/latchkey", &place);
    let file = folder.path().join("latchkey.conf");
    std::fs::write(&file, text).expect("a file that can be written");
    run(Command::new(PROGRAM).arg("--check-config").arg(&file));
}

#[test]
fn a_configuration_is_checked_as_a_start_would_and_nobody_is_served() {
    let folder = tempfile::tempdir().expect("a directory");
    let file = folder.path().join("redis.conf");
    let check = |text: &str, options: &[&str]| {
        std::fs::write(&file, text).expect("a file that can be written");
        let mut command = Command::new(PROGRAM);
        let output = command.arg("--check-config").arg(&file).args(options).output();
        let output = output.expect("the program starts");
        (output.status.code(), String::from_utf8(output.stderr).expect("text"))
    };
    assert_eq!(check("port 0\nmaxmemory 1gb\n", &[]), (Some(0), String::new()));
    let unused =
        "io-threads 4\nport 0\nactivedefrag no\nio-threads 2\nlua-replicate-commands yes\n";
    std::fs::write(&file, unused).expect("a file that can be written");
    let told = run(Command::new(PROGRAM).arg("--check-config").arg(&file)).stdout;
    let wanted = "The configuration is in order\n\
        Directives without effect in this server: io-threads, lua-replicate-commands\n";
    assert_eq!(String::from_utf8(told).expect("text"), wanted);
    for (text, options, line, reason) in [
        (
            "timeout 5\nport eighty\n",
            &[][..],
            "at line 2\n>>> 'port eighty'",
            "argument couldn't be parsed into an integer",
        ),
        (
            "nosuch 1\n",
            &[],
            "at line 1\n>>> 'nosuch 1'",
            "Bad directive or wrong number of arguments",
        ),
        (
            "rename-command NOSUCH X\n",
            &[],
            "at line 1\n>>> 'rename-command NOSUCH X'",
            "No such command in rename-command",
        ),
        (
            "cluster-enabled yes\n",
            &[],
            "at line 1\n>>> 'cluster-enabled yes'",
            "Cluster mode is not supported by this server: without it the nodes would be servers that know nothing of each other. \
             Remove the directive, or use Redis or Valkey for this node",
        ),
        (
            "port 1\n",
            &["--hz", "x"],
            "at line 3\n>>> 'hz \"x\"'",
            "argument couldn't be parsed into an integer",
        ),
    ] {
        let (code, told) = check(text, options);
        assert_eq!(code, Some(1), "{text}");
        let shown = format!(
            "\n*** FATAL CONFIG FILE ERROR (Latchkey {}) ***\nReading the configuration file, {line}\n{reason}\n",
            env!("CARGO_PKG_VERSION")
        );
        assert_eq!(told, shown);
    }
    std::fs::remove_file(&file).expect("a file");
    let output =
        Command::new(PROGRAM).arg("--check-config").arg(&file).output().expect("a program");
    let told = String::from_utf8(output.stderr).expect("text");
    assert!(output.status.code() == Some(1) && told.contains("redis.conf"), "{told}");
}

#[test]
fn the_steps_of_the_image_are_in_order() {
    run(&mut Command::new("tests/docker/check"));
}
