//! The arguments of a line, and quoting.

use super::reason::Reason;
use crate::resp::args::before_nul;
use crate::resp::number::hex_value;
use crate::resp::request::unescaped;

/// Splits a line of the file into its arguments. `None`: a blank line or a comment.
///
/// Arguments are separated by spaces. In double quotes, `\n \r \t \b \a` and `\xHH` are escapes,
/// and a backslash before any other byte is dropped; in single quotes, `\'` is the only escape. A
/// closing quote must be followed by a space or the end. A NUL byte ends the line.
pub fn parse_line(line: &[u8]) -> Result<Option<Vec<Vec<u8>>>, Reason> {
    let line = trim(line);
    if matches!(line.first(), None | Some(b'#')) {
        return Ok(None);
    }
    split_args(line).map(Some).ok_or(Reason::UnbalancedQuotes)
}

/// The arguments of a text. `None`: its quotes are unbalanced.
pub(crate) fn split_args(text: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut rest = before_nul(text);
    let mut args = Vec::new();
    loop {
        while let [first, tail @ ..] = rest
            && is_space(*first)
        {
            rest = tail;
        }
        if rest.is_empty() {
            return Some(args);
        }
        let mut arg = Vec::new();
        rest = take_arg(rest, &mut arg)?;
        args.push(arg);
    }
}

/// Parses one argument and returns the rest. A quote may open in the middle of an argument.
fn take_arg<'a>(mut rest: &'a [u8], arg: &mut Vec<u8>) -> Option<&'a [u8]> {
    while let [byte, tail @ ..] = rest {
        rest = tail;
        match byte {
            b' ' | b'\n' | b'\r' | b'\t' => return Some(rest),
            b'"' => return take_double_quoted(rest, arg),
            b'\'' => return take_single_quoted(rest, arg),
            _ => arg.push(*byte),
        }
    }
    Some(rest)
}

fn take_double_quoted<'a>(mut rest: &'a [u8], arg: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        rest = match rest {
            [b'\\', b'x', high, low, tail @ ..]
                if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                arg.push(hex_value(*high) << 4 | hex_value(*low));
                tail
            }
            [b'\\', escaped, tail @ ..] => {
                arg.push(unescaped(*escaped));
                tail
            }
            [b'"', tail @ ..] => return after_quote(tail),
            [byte, tail @ ..] => {
                arg.push(*byte);
                tail
            }
            [] => return None,
        }
    }
}

fn take_single_quoted<'a>(mut rest: &'a [u8], arg: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        rest = match rest {
            [b'\\', b'\'', tail @ ..] => {
                arg.push(b'\'');
                tail
            }
            [b'\'', tail @ ..] => return after_quote(tail),
            [byte, tail @ ..] => {
                arg.push(*byte);
                tail
            }
            [] => return None,
        }
    }
}

/// The rest after a closing quote, which must begin with a space or be empty.
fn after_quote(rest: &[u8]) -> Option<&[u8]> {
    match rest.first() {
        Some(byte) if !is_space(*byte) => None,
        _ => Some(rest),
    }
}

/// C's `isspace`.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

/// The line without spaces at both ends.
pub(super) fn trim(line: &[u8]) -> &[u8] {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
    let start = line.iter().position(|byte| !is_blank(byte)).unwrap_or(line.len());
    let end = line.iter().rposition(|byte| !is_blank(byte)).map_or(start, |last| last + 1);
    &line[start..end]
}

/// The text in double quotes, from which [`parse_line`] returns the same text.
pub(crate) fn quoted(text: &[u8]) -> Vec<u8> {
    let mut quoted = vec![b'"'];
    for byte in text {
        match byte {
            b'\\' | b'"' => quoted.extend([b'\\', *byte]),
            b'\n' => quoted.extend(b"\\n"),
            b'\r' => quoted.extend(b"\\r"),
            b'\t' => quoted.extend(b"\\t"),
            0x07 => quoted.extend(b"\\a"),
            0x08 => quoted.extend(b"\\b"),
            b' '..=b'~' => quoted.push(*byte),
            _ => quoted.extend(format!("\\x{byte:02x}").into_bytes()),
        }
    }
    quoted.push(b'"');
    quoted
}
