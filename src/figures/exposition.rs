//! Prometheus' text format, version 0.0.4: each family with its help and type, then its samples.

use std::collections::HashSet;
use std::fmt::Write;
use std::hash::{BuildHasher, RandomState};

use crate::stats::histogram::Histogram;

/// The type of the text, as HTTP names it.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A text under construction.
#[derive(Default)]
pub struct Exposition {
    text: String,
    /// Hashes of the family's series with labels.
    series: HashSet<u64>,
    hasher: RandomState,
}

impl Exposition {
    /// Begins a family. `kind`: counter, gauge, histogram or summary.
    pub fn family(&mut self, name: &str, kind: &str, help: &str) {
        debug_assert!(!help.contains(['\\', '\n']), "help is one plain line");
        self.series.clear();
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}"); // cannot fail
    }

    /// Adds a sample of the family. Of samples with the same labels only the first is kept, as
    /// Prometheus rejects a text in which a series appears twice: two replicas may announce one
    /// address, and two directives name one file.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let start = self.text.len();
        self.text.push_str(name);
        if !labels.is_empty() {
            self.text.push('{');
            for (index, (label, text)) in labels.iter().enumerate() {
                self.text.push_str(if index == 0 { "" } else { "," });
                self.text.push_str(label);
                self.text.push_str("=\"");
                self.escape(text);
                self.text.push('"');
            }
            self.text.push('}');
            if !self.series.insert(self.hasher.hash_one(&self.text[start..])) {
                return self.text.truncate(start);
            }
        }
        self.text.push(' ');
        self.number(value);
        self.text.push('\n');
    }

    fn escape(&mut self, text: &str) {
        for letter in text.chars() {
            match letter {
                '\\' => self.text.push_str("\\\\"),
                '"' => self.text.push_str("\\\""),
                '\n' => self.text.push_str("\\n"),
                _ => self.text.push(letter),
            }
        }
    }

    fn number(&mut self, value: f64) {
        // Whole numbers up to 2^53 are written as such.
        let _ = if value.fract() == 0.0 && value.abs() < 9.1e15 {
            write!(self.text, "{}", value as i64)
        } else {
            write!(self.text, "{value}")
        }; // cannot fail
    }

    /// Adds a family of its own: a histogram of durations.
    pub fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.family(name, "histogram", help);
        let bucket = format!("{name}_bucket");
        for (limit_us, count) in histogram.cumulative() {
            let limit = format!("{}", limit_us as f64 / 1e6);
            self.sample(&bucket, &[("le", &limit)], count as f64);
        }
        self.sample(&bucket, &[("le", "+Inf")], histogram.count() as f64);
        self.sample(&format!("{name}_sum"), &[], histogram.sum_us() as f64 / 1e6);
        self.sample(&format!("{name}_count"), &[], histogram.count() as f64);
    }

    /// The whole text.
    pub fn text(self) -> String {
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped_and_numbers_are_exact() {
        let mut out = Exposition::default();
        out.family("a", "gauge", "Help.");
        out.sample("a", &[("x", "q\"\\\n"), ("y", "é")], 9_007_199_254_740_992u64 as f64);
        out.sample("a", &[], 0.25);
        out.sample("a", &[], -3.0);
        let text = "# HELP a Help.\n# TYPE a gauge\na{x=\"q\\\"\\\\\\n\",y=\"é\"} 9007199254740992\na 0.25\na -3\n";
        assert_eq!(out.text(), text);
    }

    #[test]
    fn no_series_of_a_family_is_there_twice() {
        let mut out = Exposition::default();
        for name in ["a", "b"] {
            out.family(name, "gauge", "Help.");
            out.sample(name, &[("x", "one")], 1.0);
            out.sample(name, &[("x", "two")], 2.0);
            out.sample(name, &[("x", "one")], 3.0);
        }
        let lines = out.text();
        let samples: Vec<&str> = lines.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            samples,
            ["a{x=\"one\"} 1", "a{x=\"two\"} 2", "b{x=\"one\"} 1", "b{x=\"two\"} 2"]
        );
    }

    #[test]
    fn a_histogram_ends_with_all_that_was_counted() {
        let mut histogram = Histogram::default();
        for us in [3, 1_000, 5_000_000, 1 << 60] {
            histogram.record_us(us);
        }
        let mut out = Exposition::default();
        out.histogram("h", "Help.", &histogram);
        let text = out.text();
        assert!(text.contains("h_bucket{le=\"0.001024\"} 2\n"), "{text}");
        assert!(text.contains("h_bucket{le=\"+Inf\"} 4\n") && text.ends_with("h_count 4\n"));
    }
}
