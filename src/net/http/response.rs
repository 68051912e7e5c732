//! A response: status, type, further headers and body, and its bytes.

use std::fmt::Write;

/// The answer to a request.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub content_type: &'static str,
    /// Further headers, each with its value.
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
}

pub const TEXT: &str = "text/plain; charset=utf-8";

impl Response {
    /// A response with a body of this type.
    pub fn new(status: u16, content_type: &'static str, body: impl Into<Vec<u8>>) -> Self {
        Response { status, content_type, headers: Vec::new(), body: body.into() }
    }

    /// Plain text.
    pub fn text(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self::new(status, TEXT, body)
    }

    /// A response with only the meaning of its status.
    pub fn of_status(status: u16) -> Self {
        let response = Self::text(status, format!("{}\n", reason(status)));
        if status == 405 { response.with("Allow", "GET, HEAD".to_owned()) } else { response }
    }

    /// Adds a header, whose value has no line end.
    pub fn with(mut self, name: &'static str, value: String) -> Self {
        debug_assert!(!value.contains(['\r', '\n']), "a header is one line");
        self.headers.push((name, value));
        self
    }

    /// Its bytes. `head_only`: the body's length is sent, but not the body.
    pub fn encode(&self, head_only: bool, keeps_alive: bool) -> Vec<u8> {
        let mut head = format!(
            "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n\
             X-Content-Type-Options: nosniff\r\nConnection: {}\r\n",
            self.status,
            reason(self.status),
            self.content_type,
            self.body.len(),
            if keeps_alive { "keep-alive" } else { "close" },
        );
        for (name, value) in &self.headers {
            let _ = write!(head, "{name}: {value}\r\n"); // cannot fail
        }
        head.push_str("\r\n");
        let mut bytes = head.into_bytes();
        if !head_only {
            bytes.extend_from_slice(&self.body);
        }
        bytes
    }
}

/// The meaning of a status.
fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        413 => "Content Too Large",
        421 => "Misdirected Request",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        505 => "HTTP Version Not Supported",
        _ => "Unknown",
    }
}
