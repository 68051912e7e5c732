//! Text to numbers and back, as strict as the protocol is: no sign `+`, no spaces, no leading zeros for 64-bit integers.
//!
//! Pure functions over byte slices; nothing allocates.

/// The longest text of an `i64`: `-9223372036854775808`.
const I64_LEN_MAX: usize = 20;

/// Parses a signed integer whose text is canonical: what printing the number would give, and nothing else. `+1`, `01`,
/// `-0`, ` 1` and the empty string are `None`, as is anything out of range.
pub fn parse_i64(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    if text.len() > I64_LEN_MAX {
        return None;
    }
    match digits {
        [b'0'] if !negative => return Some(0),
        [b'1'..=b'9', ..] => {}
        _ => return None,
    }
    // At most 20 digits: only the twentieth can overflow 64 bits.
    let mut value: u64 = 0;
    for &byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    if negative {
        0i64.checked_sub_unsigned(value)
    } else {
        i64::try_from(value).ok()
    }
}

/// Parses an unsigned 64-bit integer as stream IDs and the like accept it: decimal digits, leading zeros allowed, after
/// optional white space and an optional `+`; `-0` is zero. Negative numbers are `None`.
pub fn parse_u64(text: &[u8]) -> Option<u64> {
    let blanks = text.iter().take_while(|byte| is_space(**byte)).count();
    let (negative, digits) = match &text[blanks..] {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if digits.is_empty() {
        return None;
    }
    let mut value: u64 = 0;
    for &byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    (!negative || value == 0).then_some(value)
}

/// White space as C's `isspace` sees it in the C locale.
pub(crate) fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_integer_is_accepted_only_in_its_canonical_form() {
        for (text, value) in [
            ("0", 0),
            ("7", 7),
            ("-1", -1),
            ("9223372036854775807", i64::MAX),
            ("-9223372036854775808", i64::MIN),
        ] {
            assert_eq!(parse_i64(text.as_bytes()), Some(value), "{text}");
        }
        for text in [
            "",
            "-",
            "+1",
            "01",
            "-0",
            "-01",
            "00",
            " 1",
            "1 ",
            "1a",
            "0x1",
            "1.0",
            "9223372036854775808",
            "-9223372036854775809",
            "99999999999999999999",
            "18446744073709551616",
            "100000000000000000000",
        ] {
            assert_eq!(parse_i64(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn an_unsigned_integer_may_have_leading_zeros_and_spaces() {
        for (text, value) in [
            ("0", 0),
            ("007", 7),
            (" 5", 5),
            ("+5", 5),
            ("-0", 0),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_u64(text.as_bytes()), Some(value), "{text}");
        }
        for text in [
            "",
            "-",
            "+",
            " ",
            "-5",
            "5 ",
            "18446744073709551616",
            "1e3",
            "0x10",
        ] {
            assert_eq!(parse_u64(text.as_bytes()), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_integer_survives_its_text(value: i64) {
            prop_assert_eq!(parse_i64(value.to_string().as_bytes()), Some(value));
        }

        #[test]
        fn only_what_prints_the_same_is_parsed(text in "[-+]?[0-9]{1,21}") {
            let canonical = text.parse::<i64>().ok().filter(|value| value.to_string() == text);
            prop_assert_eq!(parse_i64(text.as_bytes()), canonical);
        }
    }
}
