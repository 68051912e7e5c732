//! Results as text: aligned tables for the terminal and the same tables in Markdown, each under the
//! heading of its measurement in `benchmarks.md`. A run replaces the sections it made anew and
//! leaves the others, so each section carries the facts of the machine it was measured on.

use crate::options::Options;
use crate::{Result, clock, sys};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

/// A table of text. The first column is aligned left, all others right.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(heading: &[&str]) -> Table {
        Table { rows: vec![heading.iter().map(|&cell| cell.to_owned()).collect()] }
    }

    /// Appends a row with as many cells as the heading has.
    pub fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.rows[0].len());
        self.rows.push(cells);
    }

    /// The table whose Markdown begins in front of the first `|`, and what follows it.
    fn from_markdown(text: &str) -> Option<(Table, &str)> {
        let begin = text.find("\n|")? + 1;
        let (mut rows, mut end) = (Vec::new(), begin);
        for line in text[begin..].split_inclusive('\n') {
            let Some(cells) = line.trim_end().strip_prefix('|') else {
                break;
            };
            end += line.len();
            let cells = cells.strip_suffix('|')?.split('|');
            rows.push(cells.map(|cell| cell.trim().to_owned()).collect());
        }
        rows.remove(1);
        Some((Table { rows }, &text[end..]))
    }

    /// Takes over the rows of a former table that this one has none for, if their columns are the
    /// same, and puts all into the order of their names. Rows whose name has no place are dropped.
    pub fn take_over<P: Ord>(&mut self, former: Table, place: impl Fn(&str) -> Option<P>) {
        let mut rows = self.rows.split_off(1);
        if former.rows[0] == self.rows[0] {
            let kept = former.rows.into_iter().skip(1).filter(|old| {
                old.len() == self.rows[0].len() && rows.iter().all(|row| row[0] != old[0])
            });
            let kept: Vec<_> = kept.collect();
            rows.extend(kept);
        }
        rows.retain(|row| place(&row[0]).is_some());
        rows.sort_by_key(|row| place(&row[0]));
        self.rows.append(&mut rows);
    }

    /// The rows' names and what they have in a column.
    pub fn column<'a>(&'a self, name: &str) -> impl Iterator<Item = (&'a str, &'a str)> + 'a {
        let at = self.rows[0].iter().position(|cell| cell == name);
        let rows = self.rows.iter().skip(1);
        rows.filter_map(move |row| Some((row[0].as_str(), row[at?].as_str())))
    }

    fn widths(&self) -> Vec<usize> {
        let width = |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max();
        (0..self.rows[0].len()).map(|column| width(column).unwrap_or(0)).collect()
    }

    /// Lines with columns two spaces apart.
    pub fn to_text(&self) -> String {
        let widths = self.widths();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
                let gap = if column == 0 { "" } else { "  " };
                // Writing into a String cannot fail.
                let _ = match column {
                    0 => write!(line, "{cell:<width$}"),
                    _ => write!(line, "{gap}{cell:>width$}"),
                };
            }
            text += line.trim_end();
            text.push('\n');
        }
        text
    }

    /// The same as a Markdown table.
    pub fn to_markdown(&self) -> String {
        let widths = self.widths();
        let mut text = String::new();
        for (number, row) in self.rows.iter().enumerate() {
            for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
                let _ = match column {
                    0 => write!(text, "| {cell:<width$} |"),
                    _ => write!(text, " {cell:>width$} |"),
                };
            }
            text.push('\n');
            if number == 0 {
                for (column, &width) in widths.iter().enumerate() {
                    let dashes = "-".repeat(width + 1);
                    text +=
                        &if column == 0 { format!("|{dashes}-|") } else { format!("{dashes}:|") };
                }
                text.push('\n');
            }
        }
        text
    }
}

/// One measurement's part of the report.
pub struct Section {
    pub title: &'static str,
    /// How it was measured, one paragraph.
    pub method: String,
    /// Tables, each under a line that names it (which may be empty).
    pub tables: Vec<(String, Table)>,
    /// What the reader should know about this run, a sentence each.
    pub notes: Vec<String>,
}

/// The order of sections in the document.
const TITLES: &[&str] = &[
    "CPU per operation",
    "Bytes per key",
    "Growth",
    "Expiry",
    "Idle connections",
    "Hand-over to blocked clients",
    "Locks",
    "Saving and loading",
    "Replication",
    "TLS",
];

const PREAMBLE: &str = "# Benchmarks

Do not choose Latchkey for speed where one instance must serve more than one core does: it runs commands on one, and Valkey
with `io-threads` spreads network and parsing over several. Nodes of a cluster share the load here.

`make bench-peers` (`benches/peers`) measures servers of the protocol side by side on one machine, and writes this document.
Compare only figures of one run; of different machines or runs at most their ratios. `make bench-guard` counts instructions
of fourteen paths (`benches/guard/counts.txt`).
";

impl Section {
    /// Prints the section to the terminal.
    pub fn print(&self) {
        println!("\n{}\n", self.title);
        for (name, table) in &self.tables {
            if !name.is_empty() {
                println!("{name}");
            }
            println!("{}", table.to_text());
        }
        for note in &self.notes {
            println!("{note}");
        }
    }

    /// Puts the section into `benchmarks.md` in `directory`, replacing its former self.
    pub fn write(&self, directory: &Path, facts: &str) -> Result<()> {
        let mut body = format!("\n{}\n\n{facts}\n", self.method);
        for (name, table) in &self.tables {
            if !name.is_empty() {
                body += &format!("\n{name}\n");
            }
            body += &format!("\n{}", table.to_markdown());
        }
        if !self.notes.is_empty() {
            body.push('\n');
        }
        for note in &self.notes {
            body += &format!("- {note}\n");
        }
        if self.title == TITLES[0] {
            body += "\n![Ratios of CPU per operation](benchmarks.svg)\n";
        }
        fs::create_dir_all(directory)?;
        let path = directory.join("benchmarks.md");
        let old = fs::read_to_string(&path).unwrap_or_default();
        fs::write(path, replace_section(&old, self.title, &body))?;
        Ok(())
    }
}

/// The tables that stand in a section of `benchmarks.md` in `directory`.
pub fn former_tables(directory: &Path, title: &str) -> Vec<Table> {
    let document = fs::read_to_string(directory.join("benchmarks.md")).unwrap_or_default();
    let mut rest = section(&document, title).unwrap_or_default();
    let mut tables = Vec::new();
    while let Some((table, behind)) = Table::from_markdown(rest) {
        tables.push(table);
        rest = behind;
    }
    tables
}

/// What stands in a document under a title.
fn section<'a>(document: &'a str, title: &str) -> Option<&'a str> {
    let heading = format!("\n## {title}\n");
    let from = document.find(&heading)? + heading.len();
    let rest = &document[from..];
    Some(&rest[..rest.find("\n## ").unwrap_or(rest.len())])
}

/// `document` with the section `title` replaced by `body`, all sections in the order of [`TITLES`].
fn replace_section(document: &str, title: &str, body: &str) -> String {
    let mut out = PREAMBLE.to_owned();
    for &known in TITLES {
        let text = match known == title {
            true => Some(body),
            false => section(document, known),
        };
        if let Some(text) = text {
            out += &format!("\n## {known}\n{}\n", text.trim_end_matches('\n'));
        }
    }
    out
}

fn run(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}

/// What the server is built from.
const SOURCES: [&str; 4] = [":(top)src", ":(top)Cargo.toml", ":(top)Cargo.lock", ":(top).cargo"];

/// The last commit that changed the server.
pub fn commit() -> String {
    let log = [&["log", "-1", "--format=%h", "--"][..], &SOURCES].concat();
    let commit = run("git", &log).unwrap_or("unknown".into());
    let changes = [&["diff", "--quiet", "HEAD", "--"][..], &SOURCES].concat();
    match Command::new("git").args(changes).status() {
        Ok(status) if status.success() => commit,
        _ => commit + "-dirty",
    }
}

/// Machine, programs and arguments in a paragraph.
pub fn facts(options: &Options, versions: &[(String, String)]) -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let cpu_info = read("/proc/cpuinfo");
    let model = cpu_info
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map_or("unknown CPU", |rest| rest.trim_start_matches([' ', '\t', ':']));
    let kernel = read("/proc/sys/kernel/osrelease");
    let rustc = run("rustc", &["--version"]).unwrap_or("rustc unknown".into());
    // Without the compiler's own commit.
    let rustc = rustc.split(" (").next().unwrap_or_default();
    let commit = commit();
    let servers: Vec<String> =
        versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
    format!(
        "Measured {} on {model}, {} cores, Linux {kernel}, {rustc}, commit {commit}: {}; `{}`.",
        clock::date(clock::wall_us()),
        sys::cores(),
        servers.join(", "),
        if options.given.is_empty() { "ops" } else { &options.given },
    )
}

/// A figure with as many decimals as a reader of about three digits wants.
pub fn figure(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// [`figure`], or `-` for what was not measured.
pub fn maybe(value: Option<f64>) -> String {
    value.map_or("-".into(), figure)
}

/// A duration in nanoseconds with the unit that fits.
pub fn duration(ns: u64) -> String {
    match ns as f64 {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{} µs", figure(ns / 1e3)),
        ns if ns < 1e9 => format!("{} ms", figure(ns / 1e6)),
        ns => format!("{} s", figure(ns / 1e9)),
    }
}

/// The middle value, or the mean of the middle two; `None` of nothing.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(&["case", "ns"]);
        table.row(vec!["GET".into(), "1234".into()]);
        assert_eq!(table.to_text(), "case    ns\nGET   1234\n");
        let markdown = "| case |   ns |\n|------|-----:|\n| GET  | 1234 |\n";
        assert_eq!(table.to_markdown(), markdown);
    }

    #[test]
    fn rows_of_a_former_table_are_kept_where_no_new_one_stands() {
        let place = |name: &str| ["a", "b", "c"].iter().position(|&known| known == name);
        let text = "x\n\n| case | ns |\n|---|---:|\n| b | 2 |\n| c | 3 |\n| gone | 4 |\n\nrest";
        let (former, rest) = Table::from_markdown(text).unwrap();
        assert_eq!(rest, "\nrest");
        let mut table = Table::new(&["case", "ns"]);
        table.row(vec!["c".into(), "9".into()]);
        table.row(vec!["a".into(), "1".into()]);
        table.take_over(former, place);
        let rows: Vec<_> = table.column("ns").collect();
        assert_eq!(rows, [("a", "1"), ("b", "2"), ("c", "9")]);
        let mut other = Table::new(&["case", "ms"]);
        other.take_over(Table::from_markdown(text).unwrap().0, place);
        assert_eq!(other.column("ms").count(), 0);
    }

    #[test]
    fn a_section_is_replaced_where_it_stands_and_others_are_kept() {
        let first = replace_section("", "Growth", "\nold growth\n");
        let second = replace_section(&first, "CPU per operation", "\noperations\n");
        let third = replace_section(&second, "Idle connections", "\nidle\n");
        let last = replace_section(&third, "Growth", "\nnew growth\n");
        let sections = "\n## CPU per operation\n\noperations\n\n## Growth\n\nnew growth\n\n## Idle connections\n\nidle\n";
        assert_eq!(last, format!("{PREAMBLE}{sections}"));
    }

    /// Whoever shortens the document by hand shortens this program too.
    #[test]
    fn the_document_is_as_it_would_be_written() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        let document = fs::read_to_string(directory.join("benchmarks.md")).unwrap();
        for title in TITLES {
            let body = section(&document, title).expect("each measurement has a section");
            assert_eq!(replace_section(&document, title, body), document, "{title}");
            for table in former_tables(&directory, title) {
                assert!(document.contains(&table.to_markdown()), "{title}: {}", table.to_text());
            }
        }
    }

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn durations_have_the_unit_that_fits() {
        let texts = [999, 1_500, 25_400_000, 3_000_000_000].map(duration);
        assert_eq!(texts, ["999 ns", "1.50 µs", "25.4 ms", "3.00 s"]);
    }
}
