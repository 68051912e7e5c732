//! Sources as Lua 5.1 reads them, rewritten where Luau would read something else.
//!
//! - A NUL ends a source for Luau. In Lua 5.1 it is a byte of a string or a comment like any other,
//!   and an error elsewhere.
//! - `\x`, `\u` and `\z` in a string are the letters x, u and z.
//! - `\r` and `\n\r` are a line's end: `\n` in a long string and after `\` in another one.
//! - `0x1p4` is 16, and hexadecimal numbers may have more than 16 digits. `0b1` and `1_000` are
//!   malformed.
//! - A table's length does not depend on its metatable: the name `__len` becomes another one in a
//!   source with `setmetatable`.
//! - `--!` begins a comment, not a directive to the compiler.
//! - A function with `...` has a local variable `arg`: a table of its further arguments and their
//!   number `n`, or nil if the function uses `...`.
//!
//! Lines keep their numbers. Most sources need none of this, which a quick look finds.

use std::borrow::Cow;

use memchr::{memchr, memchr2, memchr3, memmem};

use crate::resp::number::hex_value;

/// The source for the compiler.
pub fn adapted(source: &[u8]) -> Cow<'_, [u8]> {
    if !may_differ(source) {
        return source.into();
    }
    let has_metatables = memmem::find(source, SETS_METATABLES).is_some();
    let mut pass = Pass { source, has_metatables, ..Pass::default() };
    pass.run();
    pass.finish()
}

/// Whether a source has anything that is rewritten, or looks like it.
fn may_differ(source: &[u8]) -> bool {
    let has = |text: &[u8]| memmem::find(source, text).is_some();
    let mut rest = source;
    while let Some(at) = memchr(b'\\', rest) {
        match rest.get(at + 1) {
            Some(b'x' | b'u' | b'z') => return true,
            _ => rest = rest.get(at + 2..).unwrap_or_default(),
        }
    }
    memchr2(0, b'\r', source).is_some()
        || has(LEN) && has(SETS_METATABLES)
        || [b"--!", &b"0x"[..], b"0X", b"0b", b"0B"].iter().any(|text| has(text))
        || has(b"arg") && has(b"...")
        || has_number_with_underscore(source)
}

/// Whether an underscore follows a digit at the beginning of a word.
fn has_number_with_underscore(mut rest: &[u8]) -> bool {
    while let Some(at) = memchr(b'_', rest) {
        let is_word = |byte: &u8| is_part(byte) || *byte == b'.';
        let start = rest[..at].iter().rposition(|byte| !is_word(byte)).map_or(0, |at| at + 1);
        if rest[start].is_ascii_digit() {
            return true;
        }
        let len = rest[at..].iter().take_while(|byte| is_part(byte)).count();
        rest = &rest[at + len..];
    }
    false
}

/// Whether a byte may be part of a name.
pub(super) fn is_part(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || *byte == b'_'
}

/// What stands before a token, as far as it matters for it.
#[derive(Clone, Copy, Default, PartialEq)]
enum Before {
    #[default]
    Other,
    /// `.` or `:`: a name after it is a field.
    Member,
    /// `function` and the name after it, up to its parameters.
    Function,
    /// The parameters of a function.
    Parameters,
}

/// A block that has been opened.
enum Block {
    Other,
    Function(Function),
}

#[derive(Default)]
struct Function {
    /// The end of its parameters.
    body: usize,
    has_dots: bool,
    uses_dots: bool,
    uses_arg: bool,
}

#[derive(Default)]
struct Pass<'a> {
    source: &'a [u8],
    at: usize,
    /// What replaces ranges of the source, in order of their starts but for the functions'.
    edits: Vec<(std::ops::Range<usize>, Vec<u8>)>,
    /// Declarations of `arg`.
    declared: Vec<(std::ops::Range<usize>, Vec<u8>)>,
    blocks: Vec<Block>,
    before: Before,
    /// `__len` may be a metatable's field. A text is one only as a key in brackets: others are
    /// data.
    has_metatables: bool,
    /// Luau's own syntax, such as `if` as an expression: blocks cannot be told from each other.
    is_other: bool,
}

impl<'a> Pass<'a> {
    fn run(&mut self) {
        while let Some(&byte) = self.source.get(self.at) {
            match byte {
                b'-' if self.follows(b"--") => self.comment(),
                b'\'' | b'"' => self.quoted(byte),
                b'[' if self.level().is_some() => self.long_string(),
                b'a'..=b'z' | b'A'..=b'Z' | b'_' => self.name(),
                b'0'..=b'9' => self.number(),
                b'.' if self.source.get(self.at + 1).is_some_and(u8::is_ascii_digit) => {
                    self.number();
                }
                b'.' => match self.dots_here() {
                    3 => self.dots(),
                    2 => self.symbol(2),
                    _ => self.member(),
                },
                b':' => self.member(),
                b'(' if self.before == Before::Function => {
                    self.at += 1;
                    self.before = Before::Parameters;
                    self.blocks.push(Block::Function(Function::default()));
                }
                b')' if self.before == Before::Parameters => {
                    self.symbol(1);
                    if let Some(Block::Function(function)) = self.blocks.last_mut() {
                        function.body = self.at;
                    }
                }
                // An error in Lua 5.1, and in Luau if it is another control character.
                0 => {
                    self.edits.push((self.at..self.at + 1, vec![1]));
                    self.symbol(1);
                }
                b'\r' | b'\n' => self.line_end(),
                b' ' | b'\t' => self.at += 1,
                _ if matches!(self.before, Before::Function | Before::Parameters) => self.at += 1,
                _ => self.symbol(1),
            }
        }
    }

    fn follows(&self, text: &[u8]) -> bool {
        self.source[self.at..].starts_with(text)
    }

    /// How many of the next three bytes are one sign of dots. Lua 5.1 takes a NUL for a dot after
    /// another; the interpreter shall read one.
    fn dots_here(&mut self) -> usize {
        let sign = &self.source[self.at..self.source.len().min(self.at + 3)];
        let len = sign.iter().take_while(|byte| matches!(byte, b'.' | 0)).count();
        if sign[..len].contains(&0) {
            self.edits.push((self.at..self.at + len, vec![b'.'; len]));
        }
        len
    }

    /// A point or a colon.
    fn member(&mut self) {
        self.at += 1;
        if !matches!(self.before, Before::Function | Before::Parameters) {
            self.before = Before::Member;
        }
    }

    fn symbol(&mut self, len: usize) {
        self.at += len;
        self.before = Before::Other;
    }

    /// The end of a line here, which the interpreter shall count as one.
    fn line_end(&mut self) {
        match self.source[self.at..] {
            [b'\r', b'\n', ..] => self.at += 2,
            [b'\n', b'\r', ..] => {
                self.edits.push((self.at + 1..self.at + 2, b" ".to_vec()));
                self.at += 2;
            }
            [b'\r', ..] => {
                self.edits.push((self.at..self.at + 1, b"\n".to_vec()));
                self.at += 1;
            }
            _ => self.at += 1,
        }
    }

    fn level(&self) -> Option<usize> {
        long_level(&self.source[self.at..])
    }

    /// The text of the long bracket here, and goes to its end.
    fn long_bracket(&mut self, level: usize) -> std::ops::Range<usize> {
        let start = self.at + level + 2;
        let end = long_end(self.source, start, level);
        self.at = end.map_or(self.source.len(), |end| end + level + 2);
        start..end.unwrap_or(self.source.len())
    }

    fn comment(&mut self) {
        let start = self.at;
        self.at += 2;
        let text = match self.level() {
            Some(level) => self.long_bracket(level),
            None => {
                let rest = &self.source[self.at..];
                let len = memchr2(b'\n', b'\r', rest).unwrap_or(rest.len());
                self.at += len;
                if rest.first() == Some(&b'!') {
                    self.edits.push((start + 2..start + 3, b" ".to_vec()));
                }
                start + 2..self.at
            }
        };
        let end = std::mem::replace(&mut self.at, text.start);
        while let Some(len) = memchr3(0, b'\r', b'\n', &self.source[self.at..text.end]) {
            self.at += len;
            match self.source[self.at] {
                0 => {
                    self.edits.push((self.at..self.at + 1, b" ".to_vec()));
                    self.at += 1;
                }
                _ => self.line_end(),
            }
            if self.at >= text.end {
                break;
            }
        }
        self.at = end;
    }

    fn quoted(&mut self, quote: u8) {
        let start = self.at + 1;
        self.at += 1;
        while let Some(&byte) = self.source.get(self.at) {
            let next = self.source.get(self.at + 1);
            match byte {
                b'\\' => {
                    let behind = self.source.get(self.at + 1..).and_then(line_end);
                    if let Some(behind) = behind {
                        let end = self.source.len() - behind.len();
                        if end > self.at + 2 || next == Some(&b'\r') {
                            self.edits.push((self.at + 1..end, b"\n".to_vec()));
                        }
                        self.at = end;
                        continue;
                    }
                    if matches!(next, Some(b'x' | b'u' | b'z')) {
                        self.edits.push((self.at..self.at + 1, Vec::new()));
                    } else if next == Some(&0) {
                        // An escaped NUL is a NUL.
                        self.edits.push((self.at + 1..self.at + 2, b"000".to_vec()));
                    }
                    self.at += 2;
                    continue;
                }
                0 => self.edits.push((self.at..self.at + 1, b"\\000".to_vec())),
                _ => {}
            }
            self.at += 1;
            if byte == quote || matches!(byte, b'\r' | b'\n') {
                break;
            }
        }
        self.at = self.at.min(self.source.len());
        if self.has_metatables
            && self.source[start..self.at].strip_suffix(&[quote]) == Some(LEN)
            && self.source[..start - 1].trim_ascii_end().ends_with(b"[")
            && self.source[self.at..].trim_ascii_start().starts_with(b"]")
        {
            self.edits.push((start..start + LEN.len(), OTHER_LEN.to_vec()));
        }
        self.before = Before::Other;
    }

    fn long_string(&mut self) {
        let start = self.at;
        let text = self.long_bracket(self.level().unwrap_or(0));
        let bytes = &self.source[text.clone()];
        if memchr2(0, b'\r', bytes).is_some() && self.at > text.end {
            self.edits.push((start..self.at, quoted_text(bytes)));
        }
        self.before = Before::Other;
    }

    fn name(&mut self) {
        let rest = &self.source[self.at..];
        let name = &rest[..rest.iter().take_while(|byte| is_part(byte)).count()];
        if name == LEN && self.has_metatables {
            self.edits.push((self.at..self.at + LEN.len(), OTHER_LEN.to_vec()));
        }
        self.at += name.len();
        match self.before {
            Before::Function | Before::Parameters => {}
            Before::Member => self.before = Before::Other,
            Before::Other => match name {
                b"function" => self.before = Before::Function,
                b"do" | b"if" | b"repeat" => self.blocks.push(Block::Other),
                b"end" | b"until" => self.close(),
                b"arg" => self.use_arg(),
                _ => {}
            },
        }
    }

    fn number(&mut self) {
        let rest = &self.source[self.at..];
        let mut len =
            rest.iter().take_while(|byte| byte.is_ascii_digit() || **byte == b'.').count();
        // Lua 5.1 takes a NUL for an exponent's letter and for its sign, and converts the text up
        // to the first NUL: `1\0+2` is 1.
        if matches!(rest.get(len), Some(b'e' | b'E' | 0)) {
            len += 1 + usize::from(matches!(rest.get(len + 1), Some(b'+' | b'-' | 0)));
        }
        len += rest[len..].iter().take_while(|byte| is_part(byte)).count();
        let text = &rest[..memchr(0, &rest[..len]).unwrap_or(len)];
        if let Some(other) = numeral(text) {
            self.edits.push((self.at..self.at + len, other));
        } else if text.len() < len {
            let blanks = vec![b' '; len - text.len()];
            self.edits.push((self.at..self.at + len, [text, &blanks].concat()));
        }
        self.at += len;
        if !matches!(self.before, Before::Function | Before::Parameters) {
            self.before = Before::Other;
        }
    }

    fn dots(&mut self) {
        self.at += 3;
        let is_parameter = self.before == Before::Parameters;
        let innermost = self.blocks.iter_mut().rev().find_map(|block| match block {
            Block::Function(function) => Some(function),
            Block::Other => None,
        });
        match innermost {
            Some(function) if is_parameter => function.has_dots = true,
            Some(function) => function.uses_dots = true,
            None => {}
        }
        if !is_parameter {
            self.before = Before::Other;
        }
    }

    /// The variable `arg` is that of the innermost function with `...`.
    fn use_arg(&mut self) {
        for block in self.blocks.iter_mut().rev() {
            if let Block::Function(function) = block
                && function.has_dots
            {
                function.uses_arg = true;
                return;
            }
        }
    }

    fn close(&mut self) {
        match self.blocks.pop() {
            Some(Block::Function(function)) if function.has_dots && function.uses_arg => {
                let text: &[u8] = match function.uses_dots {
                    true => b" local arg;",
                    false => b" local arg = {n = select('#', ...), ...};",
                };
                self.declared.push((function.body..function.body, text.to_vec()));
            }
            Some(_) => {}
            None => self.is_other = true,
        }
    }

    /// The source with all edits.
    fn finish(self) -> Cow<'a, [u8]> {
        let is_known = !self.is_other && self.blocks.is_empty();
        // A declaration comes before what is replaced at the same place.
        let mut edits = if is_known { self.declared } else { Vec::new() };
        edits.extend(self.edits);
        if edits.is_empty() {
            return self.source.into();
        }
        edits.sort_by_key(|(range, _)| range.start);
        let (mut made, mut at) = (Vec::with_capacity(self.source.len() + 64), 0);
        for (range, text) in edits {
            made.extend_from_slice(&self.source[at..range.start]);
            made.extend_from_slice(&text);
            at = range.end;
        }
        made.extend_from_slice(&self.source[at..]);
        made.into()
    }
}

/// The metamethod that Lua 5.1 does not have, and a name that the interpreter does not know.
const LEN: &[u8] = b"__len";
const OTHER_LEN: &[u8] = b"__Len";
const SETS_METATABLES: &[u8] = b"setmetatable";

/// What the interpreter shall read in place of a number, if it would read another one.
fn numeral(text: &[u8]) -> Option<Vec<u8>> {
    const MALFORMED: &[u8] = b"3x";
    if text.contains(&b'_') || text.starts_with(b"0b") || text.starts_with(b"0B") {
        return Some(MALFORMED.into());
    }
    let digits = text.strip_prefix(b"0x").or_else(|| text.strip_prefix(b"0X"))?;
    let count = digits.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let (digits, rest) = digits.split_at(count);
    let power = match rest {
        [] if (1..=16).contains(&count) => return None,
        [] => 0,
        [b'p' | b'P', power @ ..] if !power.is_empty() && power.iter().all(u8::is_ascii_digit) => {
            power.iter().fold(0_i64, |number, digit| {
                number.saturating_mul(10).saturating_add(i64::from(digit - b'0'))
            })
        }
        _ => return Some(MALFORMED.into()),
    };
    if count == 0 {
        return Some(MALFORMED.into());
    }
    // More digits than a number has; those that are left out only say whether they are zero.
    const DIGITS: usize = 30;
    let digits = &digits[digits.iter().take_while(|digit| **digit == b'0').count()..];
    let (first, others) = digits.split_at(digits.len().min(DIGITS));
    let mut mantissa =
        first.iter().fold(0_u128, |number, digit| number << 4 | u128::from(hex_value(*digit)));
    mantissa |= u128::from(others.iter().any(|digit| *digit != b'0'));
    let power = power.saturating_add(4 * others.len() as i64).min(2000) as i32;
    let number = if mantissa == 0 { 0.0 } else { mantissa as f64 * 2_f64.powi(power) };
    Some(if number.is_infinite() { b"1e999".into() } else { format!("{number:e}").into_bytes() })
}

/// A string in quotes with the text of a long bracket, on as many lines.
fn quoted_text(text: &[u8]) -> Vec<u8> {
    // A line's end at the beginning is no part of the string.
    let (mut made, mut rest) = match line_end(text) {
        Some(behind) => (b"\n\"".to_vec(), behind),
        None => (b"\"".to_vec(), text),
    };
    while let Some((&byte, behind)) = rest.split_first() {
        if let Some(behind) = line_end(rest) {
            made.extend_from_slice(b"\\\n");
            rest = behind;
            continue;
        }
        match byte {
            0 => made.extend_from_slice(b"\\000"),
            b'"' | b'\\' => made.extend_from_slice(&[b'\\', byte]),
            _ => made.push(byte),
        }
        rest = behind;
    }
    made.push(b'"');
    made
}

/// The number of `=` in the bracket `[==[` at the beginning.
pub(super) fn long_level(text: &[u8]) -> Option<usize> {
    let rest = text.strip_prefix(b"[")?;
    let level = rest.iter().take_while(|byte| **byte == b'=').count();
    (rest.get(level) == Some(&b'[')).then_some(level)
}

/// Where the bracket `]==]` is that ends a text from `start` on.
pub(super) fn long_end(source: &[u8], start: usize, level: usize) -> Option<usize> {
    let close = [b"]", vec![b'='; level].as_slice(), b"]"].concat();
    memmem::find(&source[start..], &close).map(|len| start + len)
}

/// What comes after the line's end at the beginning: `\n`, `\r`, or both in any order.
pub(super) fn line_end(text: &[u8]) -> Option<&[u8]> {
    match text {
        [b'\r', b'\n', behind @ ..] | [b'\n', b'\r', behind @ ..] => Some(behind),
        [b'\r' | b'\n', behind @ ..] => Some(behind),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(source: &str) -> String {
        String::from_utf8_lossy(&adapted(source.as_bytes())).into_owned()
    }

    #[test]
    fn what_both_languages_read_alike_stays_as_it_is() {
        for source in [
            "return redis.call('get', KEYS[1])",
            "local function f(a, ...) return select('#', ...) end return f()",
            "-- an arg and ... in a comment\nreturn 'arg' .. [[...]]",
            "return '\\n\\065\\\\x'",
            "local t = {arg = 1} return t.arg, function(...) return t.arg end",
            "return function(arg) return arg end, function(...) return ... end",
            "return arg, ...",
            "return 0xff, 0XFFFFFFFFFFFFFFFF, 1e5, .5, a_1_b, a1_2 .. '1_000'",
            "return 'a\\\n'\r\n-- a\r\n",
        ] {
            assert_eq!(shown(source), source);
        }
    }

    #[test]
    fn arg_is_declared_where_it_is_used() {
        let table = " local arg = {n = select('#', ...), ...};";
        for (source, wanted) in [
            ("function f(...) return arg end", format!("function f(...){table} return arg end")),
            (
                "function a.b:c(x, ...) return arg[1] end",
                format!("function a.b:c(x, ...){table} return arg[1] end"),
            ),
            (
                "return function(...) return arg, ... end",
                "return function(...) local arg; return arg, ... end".into(),
            ),
            (
                "return function(...) return function() return arg end end",
                format!("return function(...){table} return function() return arg end end"),
            ),
            (
                "return function(...) if arg.n > 0 then repeat until arg.n end while 1 do end end",
                format!(
                    "return function(...){table} if arg.n > 0 then repeat until arg.n end while 1 do end end"
                ),
            ),
            (
                "return function(...) return 1 ..arg[1] end",
                format!("return function(...){table} return 1 ..arg[1] end"),
            ),
        ] {
            assert_eq!(shown(source), wanted);
        }
        // Luau's own syntax, in which blocks end elsewhere.
        let other = "return function(...) local a = if arg then 1 else 2 return a end";
        assert_eq!(shown(other), other);
    }

    #[test]
    fn bytes_of_strings_and_comments_are_kept() {
        for (source, wanted) in [
            ("return 'a\0b'", "return 'a\\000b'"),
            ("return 'a\\\0b'", "return 'a\\000b'"),
            ("-- a\0b\nreturn 1", "-- a b\nreturn 1"),
            ("--[[ a\0b ]] return 1", "--[[ a b ]] return 1"),
            ("return [[a\0\"\\]]", "return \"a\\000\\\"\\\\\""),
            ("return [=[\r\na\n\rb\rc]=]", "return \n\"a\\\nb\\\nc\""),
            ("return\0 1", "return\u{1} 1"),
            ("return 1\0, 2\0+3, 4\0\x005, .5\0e_", "return 1 , 2   , 4   , .5   "),
            ("return 'a'.\0'b', function(.\0\0) end", "return 'a'..'b', function(...) end"),
            ("return 1e\0, 1\0\0\0, 0x1\0", "return 1e , 1  \u{1}, 0x1\u{1}"),
            ("-- a\rreturn\n\r1\r", "-- a\nreturn\n 1\n"),
            ("--[[\r\r\n\n\r]]", "--[[\n\r\n\n ]]"),
            ("return 'a\\\r\nb\\\n\rc\\\rd'", "return 'a\\\nb\\\nc\\\nd'"),
            ("return 0x1p4, 0XaP0, 0x1p2000, 0x0p9", "return 1.6e1, 1e1, 1e999, 0e0"),
            ("return 0x12345678901234567890", "return 8.596805827197883e22"),
            ("return 3._", "return 3x"),
            ("return 0b1, 1_000, .5_, 3._, 0x", "return 3x, 3x, 3x, 3x, 3x"),
            (
                "setmetatable(m, m).__len = n[ '__len'] .. '__len' .. f('__len')",
                "setmetatable(m, m).__Len = n[ '__Len'] .. '__len' .. f('__len')",
            ),
            (
                "m = setmetatable({__len = a, ['__len' ] = {'__len'}}, {'__len'})",
                "m = setmetatable({__Len = a, ['__Len' ] = {'__len'}}, {'__len'})",
            ),
            ("m.__len = n['__len'] .. {__len = 1}", "m.__len = n['__len'] .. {__len = 1}"),
            (
                "--!optimize 2\nreturn '\\x48\\u{48}\\z  a\\\\x'",
                "-- optimize 2\nreturn 'x48u{48}z  a\\\\x'",
            ),
        ] {
            assert_eq!(shown(source), wanted);
        }
    }

    #[test]
    fn any_bytes_are_read_to_their_end() {
        let parts: [&[u8]; 24] = [
            b"function",
            b"(",
            b")",
            b"...",
            b"arg",
            b"end",
            b"[[",
            b"]]",
            b"[=[",
            b"]=]",
            b"--",
            b"'",
            b"\"",
            b"\\",
            b"\0",
            b"\r",
            b"\n",
            b"!",
            b"x",
            b" ",
            b"if",
            b".",
            b"1",
            b"until",
        ];
        let mut random = fastrand::Rng::with_seed(51);
        for _ in 0..50_000 {
            let count = random.usize(..30);
            let source: Vec<u8> =
                (0..count).flat_map(|_| parts[random.usize(..parts.len())]).copied().collect();
            let made = adapted(&source);
            assert!(made.len() >= source.len() / 2, "{}", source.escape_ascii());
        }
    }
}
