//! The line with which another server answers a request whose only success is `+OK`.
//!
//! The peer may be anything that accepts connections: a reply that no Redis server gives to the
//! request says nothing about it, and nothing may be lost because of it.

/// The meaning of a reply line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    /// `+OK`: the request was carried out.
    Done,
    /// An error reply, without its `-`.
    Refused(&'a [u8]),
    /// No reply to such a request: the other side is no Redis server, or replies were mixed up.
    Foreign,
}

impl<'a> Answer<'a> {
    /// Reads a line, given without its end.
    pub fn of(line: &'a [u8]) -> Self {
        match line {
            b"+OK" => Answer::Done,
            [b'-', error @ ..] => Answer::Refused(error),
            _ => Answer::Foreign,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Answer;

    #[test]
    fn only_ok_is_success() {
        assert_eq!(Answer::of(b"+OK"), Answer::Done);
        assert_eq!(Answer::of(b"-BUSYKEY it exists"), Answer::Refused(b"BUSYKEY it exists"));
        for line in
            [&b""[..], b"OK", b"+", b"+ok", b"+OK ", b"+OKAY", b"$5", b">2", b"HTTP/1.1 400"]
        {
            assert_eq!(Answer::of(line), Answer::Foreign);
        }
    }
}
