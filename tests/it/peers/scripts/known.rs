//! What differs from Redis 7.0.15 and stays, by classes. docs/scripts.md has an example of each.

use std::borrow::Cow;

use memchr::memmem;

/// A class: its reason, and whether it explains the results of a source here and there.
type Class = (&'static str, fn(&[u8], &[u8], &[u8]) -> bool);

const CLASSES: &[Class] = &[
    ("Luau has no string.dump", |source, _, _| has(source, b"string.dump")),
    ("the library `string` has other functions", |source, ours, theirs| {
        has(source, b"getmetatable(") && [ours, theirs].iter().all(|text| has(text, b"[\"gfind\"]"))
    }),
    ("Luau accepts more", |_, ours, theirs| {
        theirs == b"error that it is no program" && ours != theirs
    }),
    (
        "errors of `loadstring` name no variable, and no function that has lost its name",
        |_, ours, theirs| unnamed(ours) == unnamed(theirs),
    ),
    // Lua 5.1 keeps one constant for both in each function, the first.
    ("0 and -0 are one constant in a function of Lua 5.1", |source, ours, theirs| {
        let is_written = has(source, b"-0") || has(source, b"0/-1");
        let (ours, theirs) = (without_signs(&unnamed(ours)), without_signs(&unnamed(theirs)));
        let finite = |text: &str| text.replace("-inf", "inf");
        let is_sign = ours == theirs || is_written && finite(&ours) == finite(&theirs);
        let has_zero = [&b"1/0"[..], b"(0,", b" 0,", b" 0)"].iter().any(|zero| has(source, zero));
        is_sign || is_written && has_zero && has(source, b"return math.")
    }),
    ("a table is compared with itself by its __eq", |source, ours, theirs| {
        has(source, b"return x == x")
            && has(source, b"m.__eq")
            && ours.starts_with(b"ok") == theirs.starts_with(b"ok")
    }),
    ("a metatable's field __len has another name", |source, ours, theirs| {
        has(source, b"setmetatable")
            && String::from_utf8_lossy(theirs).replace("__len", "__Len")
                == String::from_utf8_lossy(ours)
    }),
    ("string.format refuses %* before its flags", |source, ours, theirs| {
        has(source, b"format(")
            && has(source, b"*")
            && ours.starts_with(b"error ")
            && theirs.starts_with(b"error ")
    }),
    ("the table of globals has the arguments of other cases", |source, _, _| has(source, b"_G")),
    ("`load` reads all before it compiles", |source, ours, _| {
        has(source, b"load(")
            && (has(ours, b"chunk is too large") || has(source, b"coroutine.wrap"))
    }),
    ("syntax errors have other words", |_, ours, theirs| {
        let is_named = |text: &[u8]| {
            text.starts_with(b"error \"[string \"") || text.starts_with(b"error \"(load):")
        };
        is_named(ours) && is_named(theirs)
    }),
];

/// The reason for which the results of a source differ. None: there is none.
pub fn class(source: &[u8], ours: &[u8], theirs: &[u8]) -> Option<&'static str> {
    let class = CLASSES.iter().find(|(_, explains)| explains(source, ours, theirs));
    class.map(|(reason, _)| *reason)
}

fn has(text: &[u8], wanted: &[u8]) -> bool {
    memmem::find(text, wanted).is_some()
}

/// A result without the signs of zeros.
fn without_signs(text: &str) -> String {
    let mut made = String::with_capacity(text.len());
    for (at, letter) in text.char_indices() {
        let is_zero = text[at..].starts_with("-0") && !text[at + 2..].starts_with('.');
        if !is_zero {
            made.push(letter);
        }
    }
    made
}

/// The words of errors without names: those between the bytes 1 and 2.
fn unnamed(result: &[u8]) -> String {
    let text = String::from_utf8_lossy(result);
    let mut parts = text.split('\u{1}');
    let mut made = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (words, rest) = part.split_once('\u{2}').unwrap_or((part, ""));
        made.push_str(&unnamed_words(words));
        made.push_str(rest);
    }
    made
}

/// An error's text without the variable in it: `attempt to index local 'x' (a nil value)`. None: it
/// names none.
pub fn without_variable(text: &str) -> Option<String> {
    let (first, rest) = text.split_once("attempt to ")?;
    let (rest, kind) = rest.rsplit_once(" (a ")?;
    let (kind, end) = kind.split_once(" value)")?;
    let (action, _) = ["local", "upvalue", "field", "global", "method"]
        .iter()
        .find_map(|variable| rest.split_once(&format!(" {variable} '")))?;
    Some(format!("{first}attempt to {action} a {kind} value{end}"))
}

fn unnamed_words(words: &str) -> Cow<'_, str> {
    // Of two operands Lua 5.1 names the first that is no number, even a string's text.
    if let Some((place, _)) = words.split_once("attempt to perform arithmetic on ") {
        return format!("{place}attempt to perform arithmetic").into();
    }
    if let Some(unnamed) = without_variable(words) {
        return unnamed.into();
    }
    // bad argument #1 to 'next' (table expected, got no value)
    if let Some((place, rest)) = words.split_once("bad argument #") {
        let reason = rest.split_once('(').map_or(rest, |(_, reason)| reason);
        let reason = reason.replace("no value", "value expected");
        return format!("{place}bad argument {reason}").into();
    }
    words.into()
}
