//! Text to numbers and back, as Redis 7.0.15 reads and writes them.
//!
//! Integers are strict: no sign `+`, no spaces, no leading zeros. Doubles are parsed like C's
//! `strtod` does, hexadecimal ones included, but must be the whole text and not NaN. Doubles are
//! written with 17 significant digits. Pure functions over byte slices; nothing allocates.

use std::fmt::Write;
use std::ops::Deref;

/// The longest text of an `i64`: `-9223372036854775808`.
const I64_LEN_MAX: usize = 20;

/// The value of decimal digits; none is zero. `None` for anything else, and beyond 64 bits.
#[inline]
fn decimal(digits: &[u8]) -> Option<u64> {
    // Up to 19 digits always fit.
    if digits.len() <= 19 {
        let mut value = 0u64;
        for byte in digits {
            let digit = byte.wrapping_sub(b'0');
            if digit > 9 {
                return None;
            }
            value = value * 10 + u64::from(digit);
        }
        return Some(value);
    }
    digits.iter().try_fold(0u64, |value, byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

/// Parses a signed integer whose text is canonical: exactly the number as it would be printed.
/// `+1`, `01`, `-0`, ` 1` and the empty string are `None`, as is anything out of range.
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
    let value = decimal(digits)?;
    if negative { 0i64.checked_sub_unsigned(value) } else { i64::try_from(value).ok() }
}

/// Parses an unsigned 64-bit integer as stream IDs and the like accept it: decimal digits, leading
/// zeros allowed, after optional white space and an optional `+`; `-0` is zero. Negative numbers
/// are `None`.
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
    let value = decimal(digits)?;
    (!negative || value == 0).then_some(value)
}

/// White space as C's `isspace` sees it in the C locale.
pub(crate) fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r')
}

/// The number at the start of a text, as C's `atoll` reads it: after white space, 0 if there is
/// none, saturating at 64 bits.
pub fn leading_i64(text: &[u8]) -> i64 {
    let is_space = |byte: &u8| matches!(byte, b' ' | 9..=13);
    let blanks = text.iter().take_while(|byte| is_space(byte)).count();
    let (is_negative, digits) = match &text[blanks..] {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] | digits => (false, digits),
    };
    let digits = digits.iter().take_while(|byte| byte.is_ascii_digit());
    digits.fold(0, |number: i64, digit| {
        let digit = i64::from(digit - b'0');
        let number = number.saturating_mul(10);
        if is_negative { number.saturating_sub(digit) } else { number.saturating_add(digit) }
    })
}

/// The value of up to 15 digits, with or without a minus sign: the common case, which is exact.
#[inline]
fn parse_whole(text: &[u8]) -> Option<f64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    if digits.is_empty() || digits.len() > 15 {
        return None;
    }
    let value = decimal(digits)? as f64;
    Some(if negative { -value } else { value })
}

/// Parses a double: decimal or hexadecimal (`0x1.8p3`), `inf` or `infinity` in any case, with an
/// optional sign. `None` for anything around it, for NaN, and if a finite number overflows or a
/// nonzero one becomes zero.
pub fn parse_f64(text: &[u8]) -> Option<f64> {
    if let Some(value) = parse_whole(text) {
        return Some(value);
    }
    if let Some(hexadecimal) = parse_hexadecimal(text) {
        let Hexadecimal { negative, mantissa, inexact, exponent } = hexadecimal;
        let magnitude = f64_from_parts(mantissa, inexact, exponent)?;
        return Some(if negative { -magnitude } else { magnitude });
    }
    let value: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    if value.is_nan() {
        return None;
    }
    let (_, unsigned) = split_sign(text);
    let overflows = value.is_infinite() && !unsigned[0].eq_ignore_ascii_case(&b'i');
    let mut mantissa = unsigned.iter().take_while(|byte| !byte.eq_ignore_ascii_case(&b'e'));
    let underflows = value == 0.0 && mantissa.any(|byte| matches!(byte, b'1'..=b'9'));
    (!overflows && !underflows).then_some(value)
}

/// The integer a double equals, if it is between -2^62 and 2^62: the scores Redis stores as
/// integers. Negative zero is 0.
pub fn f64_as_i64(value: f64) -> Option<i64> {
    let integer = value as i64;
    let within = (-(1 << 62)..=1 << 62).contains(&integer);
    (within && integer as f64 == value).then_some(integer)
}

/// A number's text on the stack. Dereferences to its bytes.
#[derive(Clone, Copy)]
pub struct NumberText {
    bytes: [u8; NumberText::CAPACITY],
    len: u8,
}

impl NumberText {
    /// The longest text is 24 bytes: sign, 17 digits, point and exponent, or `-0.000` before 17
    /// digits.
    const CAPACITY: usize = 32;

    fn new() -> Self {
        NumberText { bytes: [0; NumberText::CAPACITY], len: 0 }
    }

    fn push(&mut self, text: &[u8]) {
        let len = self.len as usize;
        self.bytes[len..len + text.len()].copy_from_slice(text);
        self.len += text.len() as u8;
    }

    fn push_zeros(&mut self, count: usize) {
        let len = self.len as usize;
        self.bytes[len..len + count].fill(b'0');
        self.len += count as u8;
    }

    /// The digits as a decimal fraction, the first standing for 10 to the power of `exponent`.
    fn push_plain(&mut self, digits: &[u8], exponent: i32) {
        if exponent < 0 {
            self.push(b"0.");
            self.push_zeros((-1 - exponent) as usize);
            self.push(digits);
        } else if digits.len() <= exponent as usize + 1 {
            self.push(digits);
            self.push_zeros(exponent as usize + 1 - digits.len());
        } else {
            let (whole, fraction) = digits.split_at(exponent as usize + 1);
            self.push(whole);
            self.push(b".");
            self.push(fraction);
        }
    }

    /// The digits with a point after the first, then the exponent with its sign and at least two
    /// digits.
    fn push_scientific(&mut self, digits: &[u8], exponent: i32) {
        self.push(&digits[..1]);
        if digits.len() > 1 {
            self.push(b".");
            self.push(&digits[1..]);
        }
        self.push(if exponent < 0 { b"e-" } else { b"e+" });
        let mut buffer = itoa::Buffer::new();
        let text = buffer.format(exponent.unsigned_abs()).as_bytes();
        self.push_zeros(2usize.saturating_sub(text.len()));
        self.push(text);
    }
}

impl Deref for NumberText {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len as usize]
    }
}

impl AsRef<[u8]> for NumberText {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl std::fmt::Debug for NumberText {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}", self.escape_ascii())
    }
}

impl Write for NumberText {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.push(text.as_bytes());
        Ok(())
    }
}

/// An integer's text.
#[inline]
pub fn format_i64(value: i64) -> NumberText {
    let mut text = NumberText::new();
    text.push(itoa::Buffer::new().format(value).as_bytes());
    text
}

/// A double as C's `%.17g` writes it: up to 17 significant digits, without trailing zeros. `0.1`
/// becomes `0.10000000000000001`. This is the form of scores in replies of Redis up to 7.0.
pub fn format_double_17g(value: f64) -> NumberText {
    if value.abs() < 1e17 && value as i64 as f64 == value && value != 0.0 {
        return format_i64(value as i64);
    }
    let mut text = NumberText::new();
    if push_special_or_sign(&mut text, value) {
        return text;
    }
    let (digits, exponent) = round_to_17_digits(value.abs());
    let mut buffer = itoa::Buffer::new();
    let digits = without_trailing_zeros(buffer.format(digits).as_bytes());
    if (-4..17).contains(&exponent) {
        text.push_plain(digits, exponent);
    } else {
        text.push_scientific(digits, exponent);
    }
    text
}

/// A double as C's `%.Ng` writes it: at most `count` (1 to 16) significant digits, without trailing
/// zeros.
pub fn format_double_digits(value: f64, count: usize) -> NumberText {
    let mut text = NumberText::new();
    if push_special_or_sign(&mut text, value) {
        return text;
    }
    // The shortest digits that distinguish this double are the nearest `count` digits, if `count`
    // digits suffice: no two decimals of 15 digits round to the same double. Rounding the exact
    // value costs three times as much.
    let mut buffer = zmij::Buffer::new();
    let mut decimal = Decimal::of(buffer.format_finite(value.abs()).as_bytes());
    // Numbers below the normal ones are fewer: a short decimal stands for many.
    let is_exact = value.abs() >= f64::MIN_POSITIVE
        && without_trailing_zeros(&decimal.digits).len() <= count.min(15);
    if !is_exact {
        let mut rounded = NumberText::new();
        write!(rounded, "{:.*e}", count - 1, value.abs())
            .expect("writing to a NumberText cannot fail");
        decimal = Decimal::of(&rounded);
    }
    let digits = without_trailing_zeros(&decimal.digits);
    if (-4..count as i32).contains(&decimal.exponent) {
        text.push_plain(digits, decimal.exponent);
    } else {
        text.push_scientific(digits, decimal.exponent);
    }
    text
}

/// A double with the fewest digits that distinguish it, as Redis writes it from 7.2 on: without an
/// exponent if that adds few zeros, and with no zero before a digit of an exponent.
pub fn format_shortest(value: f64) -> NumberText {
    let mut text = NumberText::new();
    if push_special_or_sign(&mut text, value) {
        return text;
    }
    let mut buffer = zmij::Buffer::new();
    let decimal = Decimal::of(buffer.format_finite(value.abs()).as_bytes());
    let digits = without_trailing_zeros(&decimal.digits);
    // Zeros that follow the digits, or if negative, digits after the point.
    let zeros = decimal.exponent + 1 - digits.len() as i32;
    let is_plain = match zeros >= 0 {
        true => decimal.exponent < digits.len() as i32 + 7,
        false => zeros > -7 || decimal.exponent.abs() < 4,
    };
    if is_plain {
        text.push_plain(digits, decimal.exponent);
        return text;
    }
    let (first, others) = digits.split_at(1);
    text.push(first);
    if !others.is_empty() {
        text.push(b".");
        text.push(others);
    }
    write!(text, "e{:+}", decimal.exponent).expect("writing to a NumberText cannot fail");
    text
}

/// Zeros, infinities and NaN; returns whether it was one. Of other numbers the sign.
fn push_special_or_sign(text: &mut NumberText, value: f64) -> bool {
    let special: &[u8] = match value {
        0.0 if value.is_sign_negative() => b"-0",
        0.0 => b"0",
        f64::INFINITY => b"inf",
        f64::NEG_INFINITY => b"-inf",
        // printf shows a NaN's sign, and x86 sets it in the results of operations. Only scripts see
        // one.
        _ if value.is_nan() && value.is_sign_negative() => b"-nan",
        _ if value.is_nan() => b"nan",
        _ => {
            if value < 0.0 {
                text.push(b"-");
            }
            return false;
        }
    };
    text.push(special);
    true
}

fn without_trailing_zeros(digits: &[u8]) -> &[u8] {
    let end = digits.iter().rposition(|digit| *digit != b'0').map_or(1, |last| last + 1);
    &digits[..end]
}

const POWERS_OF_TEN: [u128; 23] = {
    let mut powers = [1; 23];
    let mut index = 1;
    while index < powers.len() {
        powers[index] = powers[index - 1] * 10;
        index += 1;
    }
    powers
};

/// The 17 decimal digits nearest to a positive double (ties to even) and the power of ten of the
/// first.
fn round_to_17_digits(value: f64) -> (u64, i32) {
    const BEYOND: u128 = POWERS_OF_TEN[17];
    let bits = value.to_bits();
    let binary_exponent = (bits >> 52) as i32 - 1023;
    // Nearly all scores that are no integers: mantissa times power of ten fits 128 bits (below 2^53
    // and 2^74), and the power of two divides it by a shift.
    if value >= 1e-5 && binary_exponent < 52 {
        let mantissa = u128::from(bits & ((1 << 52) - 1) | 1 << 52);
        let shift = (52 - binary_exponent) as u32;
        // floor(binary_exponent * log10(2)) is the decimal exponent or one less.
        let mut exponent = (binary_exponent * 78_913) >> 18;
        let scaled = |exponent: i32| mantissa * POWERS_OF_TEN[(16 - exponent) as usize];
        let mut exact = scaled(exponent);
        if exact >> shift >= BEYOND {
            exponent += 1;
            exact = scaled(exponent);
        }
        return match shift_right_to_even(exact, false, shift) {
            BEYOND => ((BEYOND / 10) as u64, exponent + 1),
            digits => (digits as u64, exponent),
        };
    }
    let mut text = NumberText::new();
    write!(text, "{value:.16e}").expect("writing to a NumberText cannot fail");
    let Decimal { digits, exponent } = Decimal::of(&text);
    (digits.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0')), exponent)
}

/// The digits of a printed positive number.
struct Decimal {
    /// Without leading zeros.
    digits: [u8; 17],
    /// The power of ten of the first digit.
    exponent: i32,
}

impl Decimal {
    /// Parses digits with an optional point and an optional exponent after `e`, as formatters of
    /// doubles write them, with at most 17 significant digits.
    fn of(text: &[u8]) -> Decimal {
        let mut decimal = Decimal { digits: [b'0'; 17], exponent: -1 };
        let (mut len, mut in_fraction) = (0, false);
        for (at, &byte) in text.iter().enumerate() {
            match byte {
                b'.' => in_fraction = true,
                b'e' => {
                    decimal.exponent += parse_exponent(&text[at + 1..]).unwrap_or(0) as i32;
                    break;
                }
                b'0' if len == 0 => decimal.exponent -= i32::from(in_fraction),
                digit => {
                    if len < decimal.digits.len() {
                        decimal.digits[len] = digit;
                    }
                    len += 1;
                    decimal.exponent += i32::from(!in_fraction);
                }
            }
        }
        decimal
    }
}

/// A hexadecimal float: `mantissa * 2^exponent`, plus something less than one unit of the mantissa
/// if `inexact`, in which case the mantissa has 125 bits at least.
pub(super) struct Hexadecimal {
    pub negative: bool,
    pub mantissa: u128,
    pub inexact: bool,
    pub exponent: i32,
}

/// Exponents beyond this overflow or underflow in any format.
const EXPONENT_LIMIT: i64 = 1 << 24;

/// Parses `[+-]0xH.HpD`, where the point and the exponent (of two, in decimal) are optional.
pub(super) fn parse_hexadecimal(text: &[u8]) -> Option<Hexadecimal> {
    let (negative, unsigned) = split_sign(text);
    let [b'0', b'x' | b'X', digits @ ..] = unsigned else {
        return None;
    };
    let mut rest = digits;
    let mut number = Hexadecimal { negative, mantissa: 0, inexact: false, exponent: 0 };
    let (mut exponent, mut seen, mut in_fraction) = (0i64, false, false);
    while let [byte, tail @ ..] = rest {
        match byte {
            b'.' if !in_fraction => in_fraction = true,
            b'p' | b'P' if seen => {
                exponent += parse_exponent(tail)?;
                break;
            }
            digit if digit.is_ascii_hexdigit() => {
                seen = true;
                if number.mantissa >> 124 == 0 {
                    number.mantissa = number.mantissa << 4 | u128::from(hex_value(*digit));
                    exponent -= if in_fraction { 4 } else { 0 };
                } else {
                    number.inexact |= *digit != b'0';
                    exponent += if in_fraction { 0 } else { 4 };
                }
            }
            _ => return None,
        }
        rest = tail;
    }
    number.exponent = exponent.clamp(-EXPONENT_LIMIT, EXPONENT_LIMIT) as i32;
    seen.then_some(number)
}

/// Parses a decimal exponent: optional sign, at least one digit, to the text's end. Saturates.
pub(super) fn parse_exponent(text: &[u8]) -> Option<i64> {
    let (negative, digits) = split_sign(text);
    if digits.is_empty() {
        return None;
    }
    let mut exponent = 0i64;
    for &byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        exponent = (exponent * 10 + i64::from(digit)).min(EXPONENT_LIMIT);
    }
    Some(if negative { -exponent } else { exponent })
}

/// Whether the text begins with `-`, and the text after its sign.
pub(super) fn split_sign(text: &[u8]) -> (bool, &[u8]) {
    match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    }
}

/// The value of a hexadecimal digit.
pub fn hex_value(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    }
}

/// Shifts right, rounding to the nearest and ties to even. `inexact` means that there is more after
/// the last bit.
pub(super) fn shift_right_to_even(value: u128, inexact: bool, shift: u32) -> u128 {
    // Beyond 128 places even the highest bit is less than half a unit.
    let Some(half) = 1u128.checked_shl(shift.wrapping_sub(1)) else {
        return if shift == 0 { value } else { 0 };
    };
    let kept = value.checked_shr(shift).unwrap_or(0);
    let lost = value & (half | (half - 1));
    let up = lost > half || lost == half && (inexact || kept & 1 == 1);
    kept + u128::from(up)
}

/// Rounds `mantissa * 2^exponent` to a mantissa of `precision` bits (at most 64), or fewer where
/// its exponent would be less than `exponent_min`. Returns mantissa and exponent. An inexact
/// mantissa has `precision + 1` bits at least.
pub(super) fn round_mantissa(
    mantissa: u128,
    inexact: bool,
    exponent: i32,
    precision: i32,
    exponent_min: i32,
) -> (u64, i32) {
    let bits = 128 - mantissa.leading_zeros() as i32;
    let shift = (bits - precision).max(exponent_min - exponent);
    if shift <= 0 {
        return ((mantissa << -shift) as u64, exponent + shift);
    }
    let rounded = shift_right_to_even(mantissa, inexact, shift as u32);
    if rounded >> precision != 0 {
        ((rounded >> 1) as u64, exponent + shift + 1)
    } else {
        (rounded as u64, exponent + shift)
    }
}

/// A double from its exact value. `None` if it overflows, or is not zero and would become it.
fn f64_from_parts(mantissa: u128, inexact: bool, exponent: i32) -> Option<f64> {
    const EXPONENT_MIN: i32 = -1074;
    if mantissa == 0 {
        return Some(0.0);
    }
    let (mantissa, exponent) = round_mantissa(mantissa, inexact, exponent, 53, EXPONENT_MIN);
    let subnormal = mantissa >> 52 == 0;
    let biased = if subnormal { 0 } else { exponent - EXPONENT_MIN + 1 };
    if mantissa == 0 || biased >= 0x7ff {
        return None;
    }
    Some(f64::from_bits((biased as u64) << 52 | mantissa & ((1 << 52) - 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortest_digits_are_written_as_by_redis_8() {
        for (value, text) in [
            (0.1, "0.1"),
            (1.0 / 3.0, "0.3333333333333333"),
            (1e17, "1e+17"),
            (1e21, "1e+21"),
            (9_223_372_036_854_775_808.0, "9223372036854776000"),
            (1e-5, "0.00001"),
            (0.00001234, "1.234e-5"),
            (-123e-8, "-1.23e-6"),
            (1e-4 / 3.0, "3.3333333333333335e-5"),
            (5e-324, "5e-324"),
            (1.5e300, "1.5e+300"),
            (1234567.125, "1234567.125"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(format_shortest(value).escape_ascii().to_string(), text);
        }
    }
    use proptest::prelude::*;

    #[test]
    fn a_leading_number_ends_at_the_first_other_byte() {
        let cases: [(&[u8], i64); 9] = [
            (b"", 0),
            (b"x1", 0),
            (b" \t\n\x0b\x0c\r12 3", 12),
            (b"-7x", -7),
            (b"+7", 7),
            (b"--7", 0),
            (b"1.9", 1),
            (b"99999999999999999999", i64::MAX),
            (b"-99999999999999999999", i64::MIN),
        ];
        for (text, number) in cases {
            assert_eq!(leading_i64(text), number, "{}", text.escape_ascii());
        }
    }

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
        for text in ["", "-", "+", " ", "-5", "5 ", "18446744073709551616", "1e3", "0x10"] {
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

    #[test]
    fn a_double_is_the_whole_text_and_a_number() {
        for (text, value) in [
            ("1", 1.0),
            ("+1.5", 1.5),
            (".5", 0.5),
            ("5.", 5.0),
            ("-1e3", -1000.0),
            ("1E+2", 100.0),
            ("007", 7.0),
            ("0e-999", 0.0),
            ("5e-324", 5e-324),
            ("1.7976931348623157e308", f64::MAX),
            ("inf", f64::INFINITY),
            ("-Infinity", f64::NEG_INFINITY),
            ("+INF", f64::INFINITY),
            ("0x10", 16.0),
            ("-0X1.8p3", -12.0),
            ("0x.8", 0.5),
            ("0x1.", 1.0),
            ("0x1p-1074", 5e-324),
            ("0x1.8p-1075", 5e-324),
            ("0x1.8p-1074", 1e-323),
            ("0x1.fffffffffffff8p1022", 2f64.powi(1023)),
            ("0x1.00000000000008p0", 1.0),
            ("0x1.000000000000080000000000000000000000000001p0", 1.0 + f64::EPSILON),
            ("0x0p99999999999999999999", 0.0),
        ] {
            assert_eq!(parse_f64(text.as_bytes()), Some(value), "{text}");
        }
        for text in [
            "",
            " 1",
            "1 ",
            "+",
            "-",
            ".",
            "e5",
            "1e",
            "1e+",
            "--1",
            "1_0",
            "1,5",
            "nan",
            "-NaN",
            "nan(1)",
            "infinit",
            "infinity1",
            "0x",
            "0x.",
            "0xp1",
            "0x1p",
            "0x1.2.3",
            "0xg",
            "1e309",
            "-1e309",
            "1e-400",
            "0x1p1024",
            "0x1.fffffffffffff8p1023",
            "0x1p-1076",
            "0x1p-1075",
            "1\0",
            "\u{661}",
        ] {
            assert_eq!(parse_f64(text.as_bytes()), None, "{text}");
        }
        assert!(parse_f64(b"-0").is_some_and(f64::is_sign_negative));
        assert!(parse_f64(b"-0x0").is_some_and(f64::is_sign_negative));
    }

    /// Answers of ZSCORE in Redis 7.0.15 and in Valkey 9.1.2; ties and small numbers from printf of
    /// glibc.
    #[test]
    fn doubles_are_written_as_the_peers_write_them() {
        for (value, digits17) in [
            (0.1, "0.10000000000000001"),
            (3.0, "3"),
            (1e8, "100000000"),
            (1e16, "10000000000000000"),
            (1e17, "1e+17"),
            (1e20, "1e+20"),
            (123456789012.0, "123456789012"),
            (0.0001, "0.0001"),
            (0.00001, "1.0000000000000001e-05"),
            (1.5e-7, "1.4999999999999999e-07"),
            (1e-320, "9.9998886718268301e-321"),
            (5e-324, "4.9406564584124654e-324"),
            (1.0 + 1.0 / 131072.0, "1.0000076293945312"),
            (1.0 + 3.0 / 131072.0, "1.0000228881835938"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
            (-0.0, "-0"),
            (-2.5, "-2.5"),
        ] {
            assert_eq!(*format_double_17g(value), *digits17.as_bytes());
        }
    }

    /// `%.17g` by the standard library's exact formatter.
    fn naive_17g(value: f64) -> String {
        let scientific = format!("{value:.16e}");
        let (mantissa, exponent) = scientific.split_once('e').expect("it has an exponent");
        let exponent: i32 = exponent.parse().expect("it is a number");
        if !(-4..17).contains(&exponent) {
            let mantissa = mantissa.trim_end_matches('0').trim_end_matches('.');
            let sign = if exponent < 0 { '-' } else { '+' };
            return format!("{mantissa}e{sign}{:02}", exponent.abs());
        }
        let plain = format!("{value:.*}", (16 - exponent) as usize);
        if plain.contains('.') {
            plain.trim_end_matches('0').trim_end_matches('.').to_owned()
        } else {
            plain
        }
    }

    fn double() -> impl Strategy<Value = f64> {
        prop_oneof![
            any::<u64>().prop_map(f64::from_bits).prop_filter("finite", |value| value.is_finite()),
            -1e6..1e6f64,
            (-1e9..1e9f64).prop_map(|value| value / 65536.0),
            (any::<i32>(), 0..25i32)
                .prop_map(|(value, places)| f64::from(value) / 10f64.powi(places)),
            (any::<i64>(), 0..70i32).prop_map(|(value, places)| value as f64 / 2f64.powi(places)),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        #[test]
        fn seventeen_digits_agree_with_the_exact_formatter(value in double()) {
            prop_assert_eq!(String::from_utf8(format_double_17g(value).to_vec()), Ok(naive_17g(value)));
        }

        #[test]
        fn every_double_survives_its_texts(value in double()) {
            prop_assert_eq!(parse_f64(&format_double_17g(value)).map(f64::to_bits), Some(value.to_bits()));
            let bits = value.to_bits();
            let (fraction, exponent) = (bits & ((1 << 52) - 1), bits >> 52 & 0x7ff);
            let hexadecimal = match exponent {
                0 => format!("0x0.{fraction:013x}p-1022"),
                _ => format!("0x1.{fraction:013x}p{}", exponent as i32 - 1023),
            };
            prop_assert_eq!(parse_f64(hexadecimal.as_bytes()), Some(value.abs()));
        }

        #[test]
        fn digits_are_the_number_that_the_general_parser_finds(text in "-?0{0,2}[0-9]{1,18}") {
            let expected = text.parse::<f64>().map(f64::to_bits).ok();
            prop_assert_eq!(parse_f64(text.as_bytes()).map(f64::to_bits), expected);
        }
    }
}
