//! Error texts as Lua 5.1 words them, made of the interpreter's after a failure: programs match on
//! them.

use std::borrow::Cow;

use super::names::Failed;

/// Places before an error's words: a coroutine adds its own.
const PLACES: usize = 4;

/// Finds the variable of an operation that has failed, with an operand of this type, at a place:
/// what stands before the error's words. See [`super::names`].
pub(super) type Namer<'a> = dyn Fn(&[u8], Failed<'_>, &str) -> Option<String> + 'a;

/// An error's text in Lua 5.1's words.
pub(super) fn familiar<'a>(text: &'a [u8], namer: &Namer<'_>) -> Cow<'a, [u8]> {
    // An error that a protected call of a function itself raises has no place.
    let places = memchr::memmem::find_iter(text, b": ").map(|at| at + 2).take(PLACES);
    for from in std::iter::once(0).chain(places) {
        let (place, words) = text.split_at(from);
        if let Some(words) = reworded(words, &|failed, kind| namer(place, failed, kind)) {
            return [place, &words].concat().into();
        }
    }
    text.into()
}

/// Finds a variable, once its place is known.
type NamerHere<'a> = dyn Fn(Failed<'_>, &str) -> Option<String> + 'a;

fn reworded(words: &[u8], namer: &NamerHere<'_>) -> Option<Vec<u8>> {
    let words = match str::from_utf8(words) {
        Ok(words) => words,
        // A key of any bytes, which is left out.
        Err(error) if words.starts_with(b"attempt to index ") => {
            str::from_utf8(&words[..error.valid_up_to()]).ok()?
        }
        Err(_) => return None,
    };
    let made = match words.split_at_checked(words.find(' ')? + 1)? {
        ("attempt ", rest) => attempt(rest, namer)?,
        ("invalid ", rest) => invalid(rest)?,
        ("missing ", rest) => match rest.strip_suffix(" expected)") {
            Some(rest) => invalid(&format!("{rest} expected, got no value)"))?,
            None => {
                let number = rest.strip_prefix("argument #")?;
                format!("bad argument #{number} to '?' (value expected)")
            }
        },
        ("malformed ", "pattern (missing arguments to '%b')") => "unbalanced pattern".into(),
        _ => return None,
    };
    Some(made.into_bytes())
}

/// What follows `attempt `.
fn attempt(rest: &str, namer: &NamerHere<'_>) -> Option<String> {
    if let Some(rest) = rest.strip_prefix("to call missing method ") {
        let (name, _) = rest.rsplit_once(" of ")?;
        return Some(format!("attempt to call method {name} (a nil value)"));
    }
    if let Some(rest) = rest.strip_prefix("to compare ") {
        let mut words = rest.split(' ');
        let (first, _, second) = (words.next()?, words.next()?, words.next()?);
        return Some(match first == second {
            true => format!("attempt to compare two {first} values"),
            false => format!("attempt to compare {first} with {second}"),
        });
    }
    if let Some(rest) = rest.strip_prefix("to iterate over ") {
        return Some(format!("attempt to call {rest}"));
    }
    if rest == "to modify a readonly table" {
        return Some("Attempt to modify a readonly table".into());
    }
    let (action, kind, failed) = operation(rest)?;
    Some(match namer(failed, kind) {
        Some(variable) => format!("attempt to {action} {variable} (a {kind} value)"),
        None => format!("attempt to {action} a {kind} value"),
    })
}

/// The operation that was attempted: Lua 5.1's words, the type of the operand to blame, and what is
/// known about it.
fn operation(rest: &str) -> Option<(&'static str, &str, Failed<'_>)> {
    let is_text = |kind: &str| matches!(kind, "number" | "string");
    if let Some(rest) = rest.strip_prefix("to index ") {
        let (kind, key) = rest.split_once(" with ")?;
        let key = key.strip_prefix('\'').and_then(|key| key.strip_suffix('\'')).unwrap_or(key);
        return Some(("index", kind, Failed::Index { key }));
    }
    if let Some(rest) = rest.strip_prefix("to concatenate ") {
        let (first, second) = rest.split_once(" with ")?;
        let is_second = is_text(first);
        let kind = if is_second { second } else { first };
        return Some(("concatenate", kind, Failed::Concatenation { second: is_second }));
    }
    if let Some(rest) = rest.strip_prefix("to perform arithmetic (") {
        let (operator, kinds) = rest.split_once(") on ")?;
        let (first, second) = kinds.split_once(" and ").unwrap_or((kinds, kinds));
        let (kind, is_second) = match (is_text(first), is_text(second)) {
            (false, _) => (first, false),
            (true, false) => (second, true),
            (true, true) => ("string", first != "string"),
        };
        return Some((
            "perform arithmetic on",
            kind,
            Failed::Arithmetic { operator, second: is_second },
        ));
    }
    for (words, failed) in [("call", Failed::Call), ("get length of", Failed::Length)] {
        let kind = rest
            .strip_prefix("to ")
            .and_then(|rest| rest.strip_prefix(words))
            .and_then(|rest| rest.strip_prefix(" a "))
            .and_then(|rest| rest.strip_suffix(" value"));
        if let Some(kind) = kind {
            return Some((words, kind, failed));
        }
    }
    None
}

/// What follows `invalid `.
fn invalid(rest: &str) -> Option<String> {
    if let Some(rest) = rest.strip_prefix("'for' ") {
        let (which, _) = rest.split_once(" (number expected")?;
        return Some(format!("'for' {which} must be a number"));
    }
    match rest {
        // Cut at a NUL.
        "option '%" => return Some("invalid option '%' to 'format'".into()),
        _ if rest.starts_with("capture index %") => return Some("invalid capture index".into()),
        _ => {}
    }
    let rest = rest.strip_prefix("argument #")?;
    // Where Lua 5.1 does not say what it got.
    for (wanted, other) in [
        ("(thread expected, got ", "(coroutine expected)"),
        ("(nil or table expected, got ", "(nil or table expected)"),
        ("(string/function/table expected, got ", "(string/function/table expected)"),
    ] {
        if let Some((to, _)) = rest.split_once(wanted) {
            return Some(format!("bad argument #{to}{other}"));
        }
    }
    Some(format!("bad argument #{rest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_those_of_lua_5_1() {
        for (text, wanted) in [
            ("attempt to index nil with 'y'", "attempt to index a nil value"),
            ("attempt to index number with boolean", "attempt to index a number value"),
            (
                "attempt to call missing method 'm' of table",
                "attempt to call method 'm' (a nil value)",
            ),
            ("attempt to call a nil value", "attempt to call a nil value"),
            ("attempt to iterate over a nil value", "attempt to call a nil value"),
            ("attempt to concatenate string with nil", "attempt to concatenate a nil value"),
            (
                "attempt to perform arithmetic (add) on nil and number",
                "attempt to perform arithmetic on a nil value",
            ),
            (
                "attempt to perform arithmetic (unm) on table",
                "attempt to perform arithmetic on a table value",
            ),
            ("attempt to compare nil < nil", "attempt to compare two nil values"),
            ("attempt to compare number <= nil", "attempt to compare number with nil"),
            (
                "invalid 'for' initial value (number expected, got nil)",
                "'for' initial value must be a number",
            ),
            (
                "invalid argument #1 to 'sub' (string expected, got nil)",
                "bad argument #1 to 'sub' (string expected, got nil)",
            ),
            (
                "missing argument #2 to 'rep' (number expected)",
                "bad argument #2 to 'rep' (number expected, got no value)",
            ),
            (
                "missing argument #1 to 'resume' (thread expected)",
                "bad argument #1 to 'resume' (coroutine expected)",
            ),
            ("missing argument #1", "bad argument #1 to '?' (value expected)"),
            ("a text of a script's own: attempt", "a text of a script's own: attempt"),
        ] {
            for place in ["", "user_script:1: ", "[string \"a: b\"]:12: ", "a:1: b:2: "] {
                let text = [place, text].concat();
                let shown = familiar(text.as_bytes(), &|_, _, _| None);
                assert_eq!(str::from_utf8(&shown), Ok(&*[place, wanted].concat()));
            }
        }
    }
}
