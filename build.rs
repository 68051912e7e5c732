//! Tells the crate which commit it is built from: `LATCHKEY_COMMIT` is
//! `<8 digits>:<1 if files differ from it>`.
//!
//! Only for releases: a development build would be built anew after each commit. `00000000:0`, as
//! Redis says it, where there is no git or no repository.

use std::process::Command;

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

fn commit() -> Option<String> {
    // Its log of commits tells when to look again; a path that is not there would be looked for at
    // each build.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    if std::path::Path::new(&log).exists() {
        println!("cargo::rerun-if-changed={log}");
    }
    let commit = git(&["rev-parse", "--short=8", "HEAD"])?;
    let changed = git(&["status", "--porcelain", "--untracked-files=no"])?;
    Some(format!("{}:{}", commit.get(..8)?, u8::from(!changed.is_empty())))
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is_release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    if is_release {
        println!("cargo::rerun-if-changed=src");
    }
    let commit = if is_release { commit() } else { None };
    println!("cargo::rustc-env=LATCHKEY_COMMIT={}", commit.as_deref().unwrap_or("00000000:0"));
}
