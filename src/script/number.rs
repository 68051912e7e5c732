//! Numbers in JSON, written as C's `%.14g` and read as C's `strtod` do it.

use crate::resp::number::{NumberText, format_double_digits, format_i64, parse_f64};

/// Exact powers of ten, enough for common fractions.
const POWERS_OF_TEN: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16,
    1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
];

/// A number with at most `precision` significant digits, at most 14.
pub(super) fn format_json(number: f64, precision: usize) -> NumberText {
    let is_integer =
        number.abs() < POWERS_OF_TEN[precision.min(14)] && (number as i64) as f64 == number;
    if is_integer && (number != 0.0 || number.is_sign_positive()) {
        return format_i64(number as i64);
    }
    format_double_digits(number, precision)
}

/// Parses the number at the start of a text; returns its length too: decimal, hexadecimal
/// (`0x1.8p3`), `inf`, `infinity` or `nan` in any case, with an optional sign. `None` if there is
/// none. Overflow gives infinity, underflow zero.
pub(super) fn parse_prefix(text: &[u8]) -> Option<(f64, usize)> {
    let sign = usize::from(matches!(text, [b'+' | b'-', ..]));
    let negative = sign == 1 && text[0] == b'-';
    let unsigned = &text[sign..];
    let signed = |magnitude: f64| if negative { -magnitude } else { magnitude };
    // Up to 19 digits fit 64 bits. If the digits without the point are below 2^53 and the power of
    // ten is exact, so is the quotient's rounding (W. D. Clinger, "How to read floating point
    // numbers accurately", 1990).
    let (mut digits, mut count, mut at, mut point) = (0u64, 0, 0, None);
    loop {
        match unsigned.get(at) {
            Some(digit @ b'0'..=b'9') => {
                digits = digits.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'));
                count += 1;
            }
            Some(b'.') if point.is_none() => point = Some(at),
            _ => break,
        }
        at += 1;
    }
    if count == 0 || unsigned.starts_with(b"0x") || unsigned.starts_with(b"0X") {
        return parse_unusual(unsigned, count)
            .map(|(magnitude, len)| (signed(magnitude), sign + len));
    }
    let exponent = exponent_len(&unsigned[at..], b'e');
    let places = point.map_or(0, |point| at - point - 1);
    if exponent == 0 && count <= 19 && digits < 1 << 53 && places < POWERS_OF_TEN.len() {
        return Some((signed(digits as f64 / POWERS_OF_TEN[places]), sign + at));
    }
    let len = at + exponent;
    let number = std::str::from_utf8(&unsigned[..len]).ok()?.parse().ok()?;
    Some((signed(number), sign + len))
}

/// The length of an exponent: its letter in any case, an optional sign and digits; 0 if there is
/// none.
fn exponent_len(text: &[u8], letter: u8) -> usize {
    let sign = usize::from(matches!(text.get(1), Some(b'+' | b'-')));
    let digits = match text {
        [first, rest @ ..] if first.eq_ignore_ascii_case(&letter) => {
            rest[sign..].iter().take_while(|byte| byte.is_ascii_digit()).count()
        }
        _ => 0,
    };
    if digits == 0 { 0 } else { 1 + sign + digits }
}

/// The other formats of `strtod`. `digits` is the length of a decimal number found there.
fn parse_unusual(text: &[u8], digits: usize) -> Option<(f64, usize)> {
    let begins =
        |word: &[u8]| text.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word));
    if begins(b"infinity") {
        return Some((f64::INFINITY, 8));
    }
    if begins(b"inf") {
        return Some((f64::INFINITY, 3));
    }
    if begins(b"nan") {
        // `nan(...)` with letters, digits and underscores.
        let word = text[3..]
            .iter()
            .skip(1)
            .take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_')
            .count();
        let in_brackets = text.get(3) == Some(&b'(') && text.get(4 + word) == Some(&b')');
        return Some((f64::NAN, if in_brackets { 5 + word } else { 3 }));
    }
    if digits == 0 {
        return None;
    }
    let hexadecimal = &text[2..];
    let whole = hexadecimal.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let fraction = match hexadecimal.get(whole) {
        Some(b'.') => {
            1 + hexadecimal[whole + 1..].iter().take_while(|byte| byte.is_ascii_hexdigit()).count()
        }
        _ => 0,
    };
    if whole + fraction.saturating_sub(1) == 0 {
        // The `x` is not part of the number.
        return Some((0.0, 1));
    }
    let mantissa = &hexadecimal[..whole + fraction];
    let exponent = exponent_len(&hexadecimal[mantissa.len()..], b'p');
    let len = 2 + mantissa.len() + exponent;
    let is_zero = mantissa.iter().all(|byte| matches!(byte, b'0' | b'.'));
    let is_small = exponent > 0 && hexadecimal[mantissa.len() + 1] == b'-';
    let beyond = if is_zero || is_small { 0.0 } else { f64::INFINITY };
    Some((parse_f64(&text[..len]).unwrap_or(beyond), len))
}
