//! The sessions in `docs/commands/*.md`: the replies on these pages are what the server answers.
//!
//! A fenced block that begins with ` ```redis ` is a session like those of `transcripts`, with RESP2.
//! The blocks of a section (`## ...`) share a server. ` ```redis-resp3 ` shows the same with RESP3; a
//! section without such a block has the same replies with both. `PAGES=write cargo test --test it
//! command_pages` writes the replies into the pages.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::support::Session;
use crate::transcripts::{Step, matches, prompt, run_step};

const RESP2: &str = "```redis";
const RESP3: &str = "```redis-resp3";

/// The lines of a section, from its heading to the next.
struct Section<'a> {
    /// The number of its first line, from 0.
    first: usize,
    lines: Vec<&'a str>,
}

impl<'a> Section<'a> {
    /// The sections of a page; the first one is what stands before its first heading.
    fn of_page(text: &'a str) -> Vec<Section<'a>> {
        let mut found = vec![Section { first: 0, lines: Vec::new() }];
        for (number, line) in text.lines().enumerate() {
            if line.starts_with("## ") {
                found.push(Section { first: number, lines: Vec::new() });
            }
            found.last_mut().expect("there is a first one").lines.push(line);
        }
        found
    }

    /// The steps of its blocks that begin with this line; numbers are those of the section's lines.
    fn steps(&self, fence: &str) -> Vec<Step<'a>> {
        let mut steps: Vec<Step<'a>> = Vec::new();
        let mut is_within = false;
        for (number, &line) in self.lines.iter().enumerate() {
            if line.starts_with("```") {
                is_within = line == fence;
            } else if is_within && (line.starts_with('@') || prompt(line).is_some()) {
                steps.push(Step { number, action: line, expected: Vec::new() });
            } else if is_within {
                let step = steps.last_mut().expect("a reply stands below a request");
                step.expected.push(line);
            }
        }
        steps
    }
}

/// Runs a section's session; the reply of each step that has one.
fn replies(steps: &[Step<'_>], is_resp3: bool) -> Vec<Option<String>> {
    let mut session = Session::start(&[]);
    if is_resp3 {
        let names: BTreeSet<&str> =
            steps.iter().filter_map(|step| prompt(step.action)).map(|(name, ..)| name).collect();
        for name in names {
            session.client(name).call(&["HELLO", "3"]);
        }
    }
    steps.iter().map(|step| run_step(&mut session, step)).collect()
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/commands")
}

fn pages() -> Vec<PathBuf> {
    let files = std::fs::read_dir(folder()).expect("the folder of pages is there");
    let mut files: Vec<PathBuf> =
        files.map(|entry| entry.expect("a folder's entry can be read").path()).collect();
    files.sort();
    files
}

/// The differences between a page and the server.
fn differences(file: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(file).expect("a page can be read");
    let mut found = Vec::new();
    for section in Section::of_page(&text) {
        let (resp2, resp3) = (section.steps(RESP2), section.steps(RESP3));
        let third = if resp3.is_empty() { &resp2 } else { &resp3 };
        for (steps, is_resp3) in [(&resp2, false), (third, true)] {
            for (step, shown) in steps.iter().zip(replies(steps, is_resp3)) {
                let Some(shown) = shown.filter(|shown| !matches(&step.expected, shown)) else {
                    continue;
                };
                let protocol = if is_resp3 { "RESP3" } else { "RESP2" };
                found.push(format!(
                    "{}:{}: {protocol}: {}\n--- expected\n{}\n--- got\n{shown}\n",
                    file.display(),
                    section.first + step.number + 1,
                    step.action,
                    step.expected.join("\n"),
                ));
            }
        }
    }
    found
}

/// The page with the replies of this server.
fn rewritten(text: &str) -> String {
    let mut page = String::new();
    for section in Section::of_page(text) {
        // The lines of replies go, and the new ones stand below their requests.
        let mut shown: Vec<Option<String>> = vec![None; section.lines.len()];
        let mut is_old = vec![false; section.lines.len()];
        for (fence, is_resp3) in [(RESP2, false), (RESP3, true)] {
            let steps = section.steps(fence);
            for (step, reply) in steps.iter().zip(replies(&steps, is_resp3)) {
                let (below, lines) = (step.number + 1, step.expected.len());
                is_old[below..below + lines].fill(true);
                shown[step.number] = reply;
            }
        }
        for ((line, shown), is_old) in section.lines.iter().zip(shown).zip(is_old) {
            if !is_old {
                page += &format!("{line}\n");
            }
            for line in shown.iter().flat_map(|shown| shown.split('\n')) {
                // A client's port differs each time.
                match line.split_once("127.0.0.1:") {
                    Some((before, _)) => page += &format!("{before}127.0.0.1:...\n"),
                    None => page += &format!("{line}\n"),
                }
            }
        }
    }
    page
}

#[test]
fn pages_show_what_the_server_answers() {
    let is_written = std::env::var("PAGES").is_ok_and(|value| value == "write");
    let mut found = Vec::new();
    for file in pages() {
        if is_written {
            let text = std::fs::read_to_string(&file).expect("a page can be read");
            std::fs::write(&file, rewritten(&text)).expect("a page can be written");
        }
        found.extend(differences(&file));
    }
    assert!(found.is_empty(), "PAGES=write writes the replies:\n\n{}", found.join("\n"));
}

#[test]
fn every_command_of_our_own_has_a_section() {
    let text: String =
        pages().iter().map(|file| std::fs::read_to_string(file).expect("a page")).collect();
    let own = latchkey::command::TABLE.top_level().filter(|one| one.spec.since.starts_with("0."));
    for name in own.map(|command| command.spec.name) {
        assert!(text.contains(&format!("\n## {name}\n")), "docs/commands has no section of {name}");
    }
}
