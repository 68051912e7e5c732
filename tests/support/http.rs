//! A client of HTTP, by hand.

use std::collections::HashSet;
use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};

use super::PATIENCE;

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    /// The head, with its line ends.
    pub head: String,
    pub body: String,
}

impl Answer {
    /// The value of a header, or nothing.
    pub fn header(&self, name: &str) -> &str {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(found, _)| found.eq_ignore_ascii_case(name)).map_or("", |(_, value)| value)
    }
}

/// A connection.
pub struct Connection {
    pub stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    pub fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the server takes connections");
        stream.set_nodelay(true).expect("an option of TCP");
        stream.set_read_timeout(Some(PATIENCE)).expect("an option of sockets");
        stream.set_write_timeout(Some(PATIENCE)).expect("an option of sockets");
        Connection { stream, buffer: Vec::new() }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server reads");
    }

    /// Sends GET with further headers, each ending a line. Metrics are checked for their format,
    /// whoever asks for them.
    pub fn ask(&mut self, target: &str, headers: &str) -> Answer {
        self.send(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n").as_bytes());
        let answer = self.answer(false).expect("an answer");
        if answer.status == 200 && target.starts_with("/metrics") {
            check_metrics(&answer.body);
        }
        answer
    }

    /// The next response. None: the connection has ended. `head_only`: it answers HEAD.
    pub fn answer(&mut self, head_only: bool) -> Option<Answer> {
        loop {
            if let Some(end) = self.buffer.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                let head = String::from_utf8_lossy(&self.buffer[..end + 2]).into_owned();
                let status = head.split(' ').nth(1).expect("a status").parse().expect("a number");
                let answer = Answer { status, head, body: String::new() };
                let length: usize = answer.header("Content-Length").parse().expect("a length");
                let length = if head_only { 0 } else { length };
                if self.buffer.len() >= end + 4 + length {
                    let bytes: Vec<u8> = self.buffer.drain(..end + 4 + length).collect();
                    let body = String::from_utf8(bytes[end + 4..].to_vec()).expect("text");
                    return Some(Answer { body, ..answer });
                }
            }
            let mut bytes = [0; 64 * 1024];
            match super::read_some(&mut self.stream, &mut bytes) {
                Ok(0) => return None,
                Ok(count) => self.buffer.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("no answer came: {error}"),
            }
        }
    }
}

/// The answer to GET over a connection of its own.
pub fn get(address: SocketAddr, target: &str) -> Answer {
    Connection::open(address).ask(target, "Connection: close\r\n")
}

/// Panics unless a text keeps to the format of metrics: a metric's HELP and TYPE once, then its
/// samples, no series twice. <https://prometheus.io/docs/instrumenting/exposition_formats/>
pub fn check_metrics(text: &str) {
    let (mut told, mut series) = (HashSet::new(), HashSet::new());
    let (mut name, mut kind, mut help) = ("", "", "");
    assert!(text.ends_with('\n'), "the last line has no end");
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ').expect("a help").0;
            continue;
        }
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            (name, kind) = rest.split_once(' ').expect("a type");
            assert_eq!(name, help, "HELP is of another metric");
            assert!(["counter", "gauge", "histogram", "summary"].contains(&kind), "{line}");
            assert!(told.insert(name), "{name} is told twice");
            continue;
        }
        let (sample, value) = line.rsplit_once(' ').expect("a sample");
        assert!(value.parse::<f64>().is_ok(), "{line}");
        assert!(series.insert(sample), "{sample} is there twice");
        let (found, labels) = sample.split_once('{').unwrap_or((sample, "}"));
        let part = found.strip_prefix(name).expect("a sample of the metric before it");
        let parts: &[&str] = match kind {
            "histogram" => &["_bucket", "_sum", "_count"],
            "summary" => &["", "_sum", "_count"],
            _ => &[""],
        };
        assert!(parts.contains(&part), "{line} after {name}");
        check_labels(labels.strip_suffix('}').unwrap_or_else(|| panic!("{line}")));
    }
}

/// Panics unless these are `name="value"`, with commas between them.
fn check_labels(mut rest: &str) {
    while !rest.is_empty() {
        let (name, after) = rest.split_once("=\"").expect("a label");
        let is_letter = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        assert!(!name.is_empty() && name.chars().all(is_letter), "{rest}");
        let (mut end, bytes) = (0, after.as_bytes());
        while bytes[end] != b'"' {
            let is_escape = bytes[end] == b'\\';
            assert!(!is_escape || b"\\\"n".contains(&bytes[end + 1]), "{after}");
            end += if is_escape { 2 } else { 1 };
        }
        rest = &after[end + 1..];
        rest = rest.strip_prefix(',').unwrap_or_else(|| {
            assert!(rest.is_empty(), "{rest} after a label");
            rest
        });
    }
}
