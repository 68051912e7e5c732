//! Names of any bytes as text without blanks: percent-encoding, as in addresses of the web.

use std::fmt::Write;

/// Bytes encoded for a path or a query.
pub fn percent_encoded(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                text.push(byte as char);
            }
            _ => {
                let _ = write!(text, "%{byte:02X}"); // cannot fail
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_letter_or_digit_is_encoded() {
        assert_eq!(percent_encoded(b"a/b c\xff"), "a%2Fb%20c%FF");
    }
}
