//! Writing JSON: texts of any bytes, numbers, lists and objects.

use std::fmt::{Display, Write};

use crate::resp::percent::percent_encoded;

/// Bytes of the longest text that is shown in full; a longer one is cut.
pub const TEXT_BYTES_MAX: usize = 1024;
/// Bytes of the longest text among those that are shown in full or not at all: a request's head has
/// room for it.
pub const WHOLE_BYTES_MAX: usize = 6 * 1024;
/// Bytes after which a list ends, although more items follow.
pub const BYTES_MAX: usize = 1 << 20;

/// A JSON text under construction. Commas are added where needed.
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

    /// Bytes as text. A long text is cut; invalid UTF-8 is replaced.
    pub fn text(&mut self, bytes: &[u8]) {
        let is_cut = bytes.len() > TEXT_BYTES_MAX;
        let text = String::from_utf8_lossy(&bytes[..bytes.len().min(TEXT_BYTES_MAX)]);
        self.escaped(&text, if is_cut { "..." } else { "" });
    }

    fn escaped(&mut self, text: &str, end: &str) {
        self.separate();
        self.text.push('"');
        for letter in text.chars() {
            match letter {
                '"' => self.text.push_str("\\\""),
                '\\' => self.text.push_str("\\\\"),
                // No mark-up, in case a browser ever takes the text for a page.
                '\0'..='\x1f' | '\x7f' | '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                    let _ = write!(self.text, "\\u{:04x}", letter as u32); // cannot fail
                }
                _ => self.text.push(letter),
            }
        }
        self.text.push_str(end);
        self.text.push('"');
    }

    pub fn named(&mut self, name: &str, value: impl Display) {
        self.name(name);
        self.plain(value);
    }

    pub fn named_text(&mut self, name: &str, bytes: impl AsRef<[u8]>) {
        self.name(name);
        self.text(bytes.as_ref());
    }

    /// A text that is of use only in full; null if it is longer than [`WHOLE_BYTES_MAX`].
    pub fn named_whole(&mut self, name: &str, text: &str) {
        self.name(name);
        match text.len() <= WHOLE_BYTES_MAX {
            true => self.escaped(text, ""),
            false => self.plain("null"),
        }
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

/// A name as encoded for a path. A name that is too long for a path is cut, but stays too long.
pub fn id(name: &[u8]) -> String {
    percent_encoded(&name[..name.len().min(WHOLE_BYTES_MAX + 1)])
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
    }

    #[test]
    fn what_somebody_uses_is_whole_or_not_there() {
        let mut json = Json::default();
        json.open('{');
        json.named_whole("a", &id(&[b'x'; 2000]));
        json.named_whole("b", &id(&[b'/'; 2049]));
        json.named_whole("c", &id(&[b'x'; 1 << 20]));
        json.close('}');
        let text = format!("{{\"a\":\"{}\",\"b\":null,\"c\":null}}", "x".repeat(2000));
        assert_eq!(json.finish(), text);
    }
}
