//! What people get to see first: the files of `make install`, and the container's image.

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
#[cfg_attr(not(target_os = "linux"), ignore = "needs GNU's make and install")]
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
        "usr/local/share/bash-completion/completions/latchkey",
        "usr/local/share/fish/vendor_completions.d/latchkey.fish",
        "usr/local/share/man/man1/latchkey.1",
        "usr/local/share/man/man5/latchkey.conf.5",
        "usr/local/share/zsh/site-functions/_latchkey",
    ];
    assert_eq!(files(folder.path()), installed.map(String::from).into());
    let documents = folder.path().join("usr/local/share/doc/latchkey");
    for name in ["README.md", "LICENSE", "THIRD-PARTY.txt", "redis.conf.example", "differences.md"]
    {
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
#[cfg_attr(not(target_os = "linux"), ignore = "needs GNU's tools")]
fn recipes_of_package_managers_have_the_checksums_of_a_releases_files() {
    let folder = tempfile::tempdir().expect("a directory");
    let (files, out) = (folder.path().join("files"), folder.path().join("out"));
    std::fs::create_dir(&files).expect("a directory");
    let kinds =
        [".tar.gz", "-linux-amd64", "-linux-arm64", "-linux-amd64-static", "-linux-arm64-static"];
    let sums = kinds.map(|kind| {
        let file = files.join(format!("latchkey-9.8.7{kind}"));
        std::fs::write(&file, kind).expect("a file");
        ["sha256sum", "sha512sum"].map(|program| {
            let told = String::from_utf8(run(Command::new(program).arg(&file)).stdout);
            told.expect("text").split(' ').next().expect("a sum").to_owned()
        })
    });
    let mut fill_in = Command::new("packaging/recipes/fill-in");
    run(fill_in.args([&files, &out]).env("URL", "https://example.org/x").env("UNPUBLISHED", "yes"));
    // Which of the files, and which of the two sums.
    let wanted: [(&str, &[usize], usize); 4] = [
        ("latchkey.rb", &[0], 0),
        ("PKGBUILD", &[0, 1, 2], 0),
        ("APKBUILD", &[0, 3, 4], 1),
        ("latchkey.spec", &[], 0),
    ];
    for (recipe, kinds, kind) in wanted {
        let text = read(out.join(recipe));
        assert!(text.contains("9.8.7") && text.contains("https://example.org/x"), "{recipe}");
        for file in kinds {
            assert!(text.contains(&sums[*file][kind]), "{recipe}: the sum of file {file}");
        }
    }
    // A file that is missing is no empty sum.
    std::fs::remove_file(files.join("latchkey-9.8.7-linux-arm64")).expect("it is there");
    let output = fill_in.output().expect("the program starts");
    assert!(!output.status.success());
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "needs GNU's tools")]
fn who_publishes_is_said_or_nothing_is_released() {
    let told = |environment: &[(&str, &str)], key: &str| {
        let mut command = Command::new("packaging/published");
        command.current_dir(SOURCE).arg(key).env_remove("TAG").env_remove("UNPUBLISHED");
        command.envs(environment.iter().copied()).output().expect("the program starts")
    };
    let is_empty = read(Path::new(SOURCE).join("packaging/publisher")).contains("=\"\"");
    for environment in [&[][..], &[("UNPUBLISHED", "yes"), ("TAG", "v9.8.7")]] {
        let output = told(environment, "check");
        assert_eq!(output.status.success(), !is_empty, "{environment:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!is_empty || said.contains("packaging/publisher"), "{said}");
    }
    let output = told(&[("UNPUBLISHED", "yes")], "MAINTAINER");
    assert!(output.status.success() && output.stdout.ends_with(b">\n"));
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "needs GNU's make and install")]
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
#[cfg_attr(not(target_os = "linux"), ignore = "needs GNU's make and install")]
fn the_steps_of_the_image_are_in_order() {
    run(&mut Command::new("tests/docker/check"));
}

#[test]
fn completions_are_printed_and_complete_in_bash() {
    let complete = |words: &str, at: usize| {
        let script = format!(
            "source <({PROGRAM} --completions bash); COMP_WORDS=({words}); COMP_CWORD={at}; _latchkey; echo ${{COMPREPLY[*]}}"
        );
        let told = run(Command::new("bash").args(["-c", &script])).stdout;
        String::from_utf8(told).expect("text").trim_end().to_owned()
    };
    assert_eq!(complete("latchkey --appendf", 1), "--appendfilename --appendfsync");
    assert_eq!(complete("latchkey --check-r", 1), "--check-rdb");
    assert_eq!(complete("latchkey --appendfsync a", 2), "always");
    assert_eq!(complete("latchkey --port 7 --supervised ''", 4), "upstart systemd auto no");
    assert_eq!(complete("latchkey Cargo.t", 1), "Cargo.toml");
    for bad in [&["tcsh"][..], &[], &["bash", "zsh"]] {
        let output = Command::new(PROGRAM).arg("--completions").args(bad).output();
        let output = output.expect("the program starts");
        assert_eq!(output.status.code(), Some(1), "{bad:?}");
        assert_eq!(output.stderr, b"Usage: latchkey --completions bash | zsh | fish\n");
    }
}

/// Whether the shell is installed; a test without it says that it did not run.
fn has_shell(name: &str) -> bool {
    let is_there = Command::new(name).args(["-c", "true"]).status().is_ok();
    if !is_there {
        eprintln!("SKIPPED: there is no {name}");
    }
    is_there
}

#[test]
fn completions_complete_in_fish() {
    if !has_shell("fish") {
        return;
    }
    let complete = |line: &str| {
        let script = format!("{PROGRAM} --completions fish | source; complete -C'{line}'");
        let mut fish = Command::new("fish");
        let folder = Path::new(PROGRAM).parent().expect("a folder").display();
        let others = std::env::var("PATH").expect("the tests have a path");
        fish.env("PATH", format!("{folder}:{others}")).args(["--no-config", "-c"]);
        let told = String::from_utf8(run(fish.arg(script)).stdout).expect("text");
        let words = told.lines().map(|line| line.split('\t').next().unwrap_or_default().to_owned());
        words.collect::<Vec<_>>()
    };
    assert_eq!(complete("latchkey --appendf"), ["--appendfilename", "--appendfsync"]);
    assert_eq!(complete("latchkey --appendfsync a"), ["always"]);
    assert_eq!(complete("latchkey --replica-read-only "), ["no", "yes"]);
    assert_eq!(complete("latchkey --completions z"), ["zsh"]);
    assert_eq!(complete("latchkey Cargo.t"), ["Cargo.toml"]);
    assert_eq!(complete("latchkey --check-config Cargo.t"), ["Cargo.toml"]);
}

#[test]
fn completions_complete_in_zsh() {
    if !has_shell("zsh") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let told = run(Command::new(PROGRAM).args(["--completions", "zsh"])).stdout;
    std::fs::write(folder.path().join("_latchkey"), told).expect("a file");
    // An interactive shell at a terminal of its own, in which the line and a tab are typed. Its
    // echo has no word that is waited for.
    let script = r#"
        zmodload zsh/zpty
        zpty shell zsh -f -i
        zpty -w shell "PS1=; LISTMAX=9999; fpath=($1 \$fpath); path=($2 \$path); autoload -U compinit; compinit -D -u; print REA''DY"
        zpty -r shell told '*READY*'
        zpty -w -n shell "$3"$'\t'
        for word in ${@:4}; do zpty -r shell told "*$word*"; done"#;
    for (line, words) in [
        ("latchkey --appendf", &["--appendfilename", "--appendfsync"][..]),
        ("latchkey --appendfsync ", &["always", "everysec"]),
        ("latchkey --replica-read-only ", &["no", "yes"]),
        ("latchkey --port 7 --supervised upst", &["art"]),
        ("latchkey --check-config Cargo.t", &["oml"]),
        ("latchkey --dir sr", &["c"]),
    ] {
        let mut zsh = Command::new("timeout");
        zsh.args(["60", "zsh", "-f", "-c", script, "zsh"]).arg(folder.path());
        run(zsh.arg(Path::new(PROGRAM).parent().expect("a folder")).arg(line).args(words));
    }
}

#[test]
fn the_manual_page_has_every_option_of_the_summary() {
    let summary = Command::new(PROGRAM).arg("--help").output().expect("the program starts");
    let summary = String::from_utf8(summary.stderr).expect("text");
    let page = read(Path::new(SOURCE).join("man/latchkey.1")).replace('\\', "");
    let usage = summary.split("Examples:").next().expect("a usage");
    let options = usage.split([' ', '[', ']', '|', '\n']).filter(|word| word.starts_with("--"));
    let options: BTreeSet<&str> = options.collect();
    assert!(options.len() > 8, "{options:?}");
    for option in options {
        assert!(page.contains(option), "{option} is not in man/latchkey.1");
    }
}
