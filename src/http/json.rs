//! Writing JSON: texts of any bytes, numbers, lists and objects.

use std::fmt::{Display, Write};

/// Bytes of the longest text; of a longer one the beginning is shown.
const TEXT_BYTES_MAX: usize = 1024;

/// A JSON text under construction. Commas are put where one is missing.
#[derive(Default)]
pub struct Json {
    text: String,
}

impl Json {
    fn separate(&mut self) {
        if !matches!(self.text.as_bytes().last(), None | Some(b'{' | b'[' | b':' | b',')) {
            self.text.push(',');
        }
    }

    pub fn open(&mut self, bracket: char) {
        self.separate();
        self.text.push(bracket);
    }

    pub fn close(&mut self, bracket: char) {
        self.text.push(bracket);
    }

    /// The name of an object's next value.
    pub fn name(&mut self, name: &str) {
        self.separate();
        let _ = write!(self.text, "\"{name}\":"); // cannot fail
    }

    /// A number, or a word such as null.
    pub fn plain(&mut self, value: impl Display) {
        self.separate();
        let _ = write!(self.text, "{value}"); // cannot fail
    }

    /// Bytes as text; bytes that are not UTF-8 are replaced.
    pub fn text(&mut self, bytes: &[u8]) {
        self.separate();
        let cut = bytes.len() > TEXT_BYTES_MAX;
        let text = String::from_utf8_lossy(&bytes[..bytes.len().min(TEXT_BYTES_MAX)]);
        self.text.push('"');
        for letter in text.chars() {
            match letter {
                '"' => self.text.push_str("\\\""),
                '\\' => self.text.push_str("\\\\"),
                // No mark-up, should a browser ever take it for a page.
                '\0'..='\x1f' | '\x7f' | '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                    let _ = write!(self.text, "\\u{:04x}", letter as u32); // cannot fail
                }
                _ => self.text.push(letter),
            }
        }
        self.text.push_str(if cut { "...\"" } else { "\"" });
    }

    pub fn named(&mut self, name: &str, value: impl Display) {
        self.name(name);
        self.plain(value);
    }

    pub fn named_text(&mut self, name: &str, bytes: impl AsRef<[u8]>) {
        self.name(name);
        self.text(bytes.as_ref());
    }

    /// A number or null.
    pub fn maybe(&mut self, name: &str, value: Option<impl Display>) {
        match value {
            Some(value) => self.named(name, value),
            None => self.named(name, "null"),
        }
    }

    pub fn len(&self) -> usize {
        self.text.len()
    }

    pub fn finish(self) -> String {
        self.text
    }

    /// Continues an earlier text.
    pub fn from(text: String) -> Self {
        Json { text }
    }
}

/// Bytes as they stand in a path or a query.
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
    fn texts_are_escaped_and_commas_put() {
        let mut json = Json::default();
        json.open('{');
        json.named("a", 1);
        json.name("b");
        json.open('[');
        json.text(b"<script>\"\\\n\xff");
        json.plain("null");
        json.close(']');
        json.named_text("c", "é");
        json.close('}');
        let text =
            "{\"a\":1,\"b\":[\"\\u003cscript\\u003e\\\"\\\\\\u000a\u{fffd}\",null],\"c\":\"é\"}";
        assert_eq!(json.finish(), text);
        assert_eq!(percent_encoded(b"a/b c\xff"), "a%2Fb%20c%FF");
    }
}
