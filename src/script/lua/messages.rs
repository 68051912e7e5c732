//! Error texts as Lua 5.1 words them, made of the interpreter's after a failure: programs match on
//! them.

use std::borrow::Cow;

/// Places before an error's words: a coroutine adds its own.
const PLACES: usize = 4;

/// An error's text in Lua 5.1's words.
pub(super) fn familiar(text: &[u8]) -> Cow<'_, [u8]> {
    // An error that a protected call of a function itself raises has no place.
    let places = memchr::memmem::find_iter(text, b": ").map(|at| at + 2).take(PLACES);
    for from in std::iter::once(0).chain(places) {
        let (place, words) = text.split_at(from);
        if let Some(words) = reworded(words) {
            return [place, &words].concat().into();
        }
    }
    text.into()
}

fn reworded(words: &[u8]) -> Option<Vec<u8>> {
    let words = match str::from_utf8(words) {
        Ok(words) => words,
        // A key of any bytes, which is left out.
        Err(error) if words.starts_with(b"attempt to index ") => {
            str::from_utf8(&words[..error.valid_up_to()]).ok()?
        }
        Err(_) => return None,
    };
    let made = match words.split_at_checked(words.find(' ')? + 1)? {
        ("attempt ", rest) => attempt(rest)?,
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
fn attempt(rest: &str) -> Option<String> {
    let is_text = |kind: &str| matches!(kind, "number" | "string");
    if let Some(rest) = rest.strip_prefix("to index ") {
        let (kind, _) = rest.split_once(" with ")?;
        return Some(format!("attempt to index a {kind} value"));
    }
    if let Some(rest) = rest.strip_prefix("to call missing method ") {
        let (name, _) = rest.rsplit_once(" of ")?;
        return Some(format!("attempt to call method {name} (a nil value)"));
    }
    if let Some(rest) = rest.strip_prefix("to concatenate ") {
        let (first, second) = rest.split_once(" with ")?;
        let kind = if is_text(first) { second } else { first };
        return Some(format!("attempt to concatenate a {kind} value"));
    }
    if let Some(rest) = rest.strip_prefix("to perform arithmetic (") {
        let (_, kinds) = rest.split_once(") on ")?;
        let (first, second) = kinds.split_once(" and ").unwrap_or((kinds, kinds));
        let kind = match (is_text(first), is_text(second)) {
            (false, _) => first,
            (true, false) => second,
            (true, true) => "string",
        };
        return Some(format!("attempt to perform arithmetic on a {kind} value"));
    }
    if let Some(rest) = rest.strip_prefix("to compare ") {
        let mut words = rest.split(' ');
        let (first, _, second) = (words.next()?, words.next()?, words.next()?);
        return Some(match first == second {
            true => format!("attempt to compare two {first} values"),
            false => format!("attempt to compare {first} with {second}"),
        });
    }
    (rest == "to modify a readonly table").then(|| "Attempt to modify a readonly table".into())
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
                let shown = familiar(text.as_bytes());
                assert_eq!(str::from_utf8(&shown), Ok(&*[place, wanted].concat()));
            }
        }
    }
}
