//! The head of a request: its line and headers, parsed by httparse. Requests without a body only.

use httparse::{EMPTY_HEADER, Header, Status};

/// Bytes of a head. A longer one is refused.
pub const HEAD_BYTES_MAX: usize = 8 * 1024;
/// Headers of a request.
const HEADERS_MAX: usize = 64;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// HEAD: the answer has no body.
    pub head_only: bool,
    /// As sent, percent-encoded; it begins with a slash.
    pub path: String,
    /// The text after the question mark; without one it is empty.
    pub query: String,
    pub host: Option<String>,
    pub authorization: Option<String>,
    /// The connection stays open after the answer.
    pub keeps_alive: bool,
}

/// The reason why a head is refused. The connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    Malformed,
    MethodNotAllowed,
    HasBody,
    TooLarge,
    Version,
}

impl Refusal {
    /// The status of the response.
    pub fn status(self) -> u16 {
        match self {
            Refusal::Malformed => 400,
            Refusal::MethodNotAllowed => 405,
            Refusal::HasBody => 413,
            Refusal::TooLarge => 431,
            Refusal::Version => 505,
        }
    }
}

/// Parses the head at the beginning of `bytes`: the request and the head's length. None: it is not
/// complete.
pub fn parse(bytes: &[u8]) -> Result<Option<(Request, usize)>, Refusal> {
    let mut headers = [EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let length = match request.parse(&bytes[..bytes.len().min(HEAD_BYTES_MAX)]) {
        Ok(Status::Complete(length)) => length,
        Ok(Status::Partial) if bytes.len() >= HEAD_BYTES_MAX => return Err(Refusal::TooLarge),
        Ok(Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return Err(Refusal::TooLarge),
        Err(httparse::Error::Version) => return Err(Refusal::Version),
        Err(_) => return Err(Refusal::Malformed),
    };
    let head_only = match request.method {
        Some("GET") => false,
        Some("HEAD") => true,
        _ => return Err(Refusal::MethodNotAllowed),
    };
    let is_1_1 = request.version == Some(1);
    let target = request.path.unwrap_or_default();
    let (target, named_host) = origin_form(target).ok_or(Refusal::Malformed)?;
    let headers = &*request.headers;
    if headers.iter().any(|header| announces_body(header)) {
        return Err(Refusal::HasBody);
    }
    let mut hosts = values(headers, "host");
    let host = named_host.map(str::to_owned).or(hosts.next());
    if is_1_1 && host.is_none() || hosts.next().is_some() {
        return Err(Refusal::Malformed);
    }
    let asks_for = |word: &str| {
        let mut words = values(headers, "connection");
        words.any(|value| value.split(',').any(|part| part.trim().eq_ignore_ascii_case(word)))
    };
    let keeps_alive = if is_1_1 { !asks_for("close") } else { asks_for("keep-alive") };
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let request = Request {
        head_only,
        path: path.to_owned(),
        query: query.to_owned(),
        host,
        authorization: values(headers, "authorization").next(),
        keeps_alive,
    };
    Ok(Some((request, length)))
}

/// The path with its query, and the host that an absolute target names.
fn origin_form(target: &str) -> Option<(&str, Option<&str>)> {
    if target.starts_with('/') {
        return Some((target, None));
    }
    let (scheme, rest) = target.split_once("://")?;
    if !["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known)) {
        return None;
    }
    let end = rest.find('/').unwrap_or(rest.len());
    let path = if end == rest.len() { "/" } else { &rest[end..] };
    Some((path, Some(&rest[..end])))
}

/// The values of a header, those that are text.
fn values<'h>(headers: &'h [Header<'h>], name: &'h str) -> impl Iterator<Item = String> + 'h {
    let named = headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name));
    named.filter_map(|header| Some(std::str::from_utf8(header.value).ok()?.trim().to_owned()))
}

fn announces_body(header: &Header<'_>) -> bool {
    header.name.eq_ignore_ascii_case("transfer-encoding")
        || header.name.eq_ignore_ascii_case("content-length") && header.value.trim_ascii() != b"0"
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(text: &str) -> Request {
        parse(text.as_bytes()).expect("a good head").expect("a complete one").0
    }

    #[test]
    fn a_request_is_what_its_head_says() {
        let request = parsed("GET /api/locks?q=a%20b HTTP/1.1\r\nHost: localhost:9121\r\n\r\n");
        assert_eq!((&*request.path, &*request.query), ("/api/locks", "q=a%20b"));
        assert_eq!(request.host.as_deref(), Some("localhost:9121"));
        assert!(request.keeps_alive && !request.head_only);
        assert!(!parsed("GET / HTTP/1.0\r\n\r\n").keeps_alive);
        assert!(parsed("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n").keeps_alive);
        assert!(!parsed("HEAD / HTTP/1.1\r\nHost: a\r\nConnection: x, close\r\n\r\n").keeps_alive);
        let absolute = parsed("GET http://other/livez HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!((&*absolute.path, absolute.host.as_deref()), ("/livez", Some("other")));
    }

    #[test]
    fn what_is_no_get_or_head_without_a_body_is_refused() {
        let long = format!("GET /{} HTTP/1.1\r\n", "a".repeat(HEAD_BYTES_MAX));
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(100));
        for (text, refusal) in [
            ("POST / HTTP/1.1\r\nHost: a\r\n\r\n", Refusal::MethodNotAllowed),
            ("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", Refusal::MethodNotAllowed),
            ("GET / HTTP/1.1\r\n\r\n", Refusal::Malformed),
            ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", Refusal::Malformed),
            ("GET x HTTP/1.1\r\nHost: a\r\n\r\n", Refusal::Malformed),
            ("GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n", Refusal::Malformed),
            ("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n", Refusal::HasBody),
            ("GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", Refusal::HasBody),
            ("GET / HTTP/2.0\r\nHost: a\r\n\r\n", Refusal::Version),
            ("*1\r\n$4\r\nPING\r\n", Refusal::Malformed),
            ("\x16\x03\x01\x02", Refusal::Malformed),
            (&long, Refusal::TooLarge),
            (&many, Refusal::TooLarge),
        ] {
            assert_eq!(parse(text.as_bytes()), Err(refusal), "{text:.60}");
        }
    }

    proptest! {
        #[test]
        fn a_part_of_a_head_is_incomplete_or_refused_as_the_whole(
            bytes in "(GET|HEAD|POST) /[a-z?=%&]{0,20} HTTP/1\\.[01]\r\n([A-Za-z-]{1,12}: [ -~]{0,20}\r\n){0,6}\r\n",
            end in 0_usize..200,
        ) {
            let bytes = bytes.as_bytes();
            let whole = parse(bytes);
            match parse(&bytes[..end.min(bytes.len())]) {
                Ok(None) => {}
                Ok(Some((_, length))) => prop_assert!(length <= bytes.len()),
                Err(refusal) => prop_assert_eq!(whole, Err(refusal)),
            }
        }

        #[test]
        fn any_bytes_are_parsed_without_fault(bytes: Vec<u8>) {
            if let Ok(Some((_, length))) = parse(&bytes) {
                prop_assert!(length <= bytes.len());
            }
        }
    }
}
