//! The x87 extended-precision float in software: 64 bits of mantissa, 15 of exponent, round to
//! nearest, ties to even.
//!
//! INCRBYFLOAT and HINCRBYFLOAT of Redis calculate in C's `long double`, on x86-64 this format, and
//! users see its rounding in the last digits. Text comes in, a sum goes out as text; the caller
//! chooses the errors for NaN and infinity. Results are exact and rounded once: in 128 bits for
//! numbers of ordinary size, with big integers otherwise.

use std::ops::Add;

use num_bigint::BigUint;

use super::number::{
    Hexadecimal, parse_exponent, parse_hexadecimal, round_mantissa, shift_right_to_even, split_sign,
};

/// Bits of the mantissa; its highest is set except in subnormal numbers.
const PRECISION: i32 = 64;
/// The exponent of the mantissa's lowest bit.
const EXPONENT_MIN: i32 = -16445;
const EXPONENT_MAX: i32 = 16320;
/// Longer texts are no numbers. Source: `MAX_LONG_DOUBLE_CHARS` of Redis.
const TEXT_LEN_MAX: usize = 5 * 1024 - 1;
/// Digits after the point in [`Float80::to_text`].
const FRACTION_DIGITS: usize = 17;

/// An extended-precision float: finite, infinite or NaN.
#[derive(Clone, Copy, Debug)]
pub struct Float80(Class);

#[derive(Clone, Copy, Debug)]
enum Class {
    Finite(Finite),
    Infinite { negative: bool },
    NotANumber,
}

/// `mantissa * 2^exponent`. Zero has the least exponent.
#[derive(Clone, Copy, Debug)]
struct Finite {
    negative: bool,
    mantissa: u64,
    exponent: i32,
}

impl Float80 {
    /// Parses a number as C's `strtold` does, but only if it is the whole text: decimal or
    /// hexadecimal, `inf` or `infinity` in any case, with an optional sign. `None` for anything
    /// else and for NaN, and if a finite number overflows or a nonzero one becomes zero.
    pub fn parse(text: &[u8]) -> Option<Float80> {
        if text.len() > TEXT_LEN_MAX {
            return None;
        }
        if let Some(Hexadecimal { negative, mantissa, inexact, exponent }) = parse_hexadecimal(text)
        {
            let zero = mantissa == 0;
            return Float80::round(negative, mantissa, inexact, exponent).in_range(zero);
        }
        let (negative, unsigned) = split_sign(text);
        if unsigned.eq_ignore_ascii_case(b"inf") || unsigned.eq_ignore_ascii_case(b"infinity") {
            return Some(Float80(Class::Infinite { negative }));
        }
        let decimal = Decimal::parse(unsigned)?;
        decimal.round(negative)?.in_range(decimal.digits.is_empty())
    }

    /// An integer; always exact.
    pub fn from_i64(value: i64) -> Float80 {
        Float80::round(value < 0, u128::from(value.unsigned_abs()), false, 0)
    }

    /// A double; always exact.
    pub fn from_f64(value: f64) -> Float80 {
        let negative = value.is_sign_negative();
        if value.is_nan() {
            return Float80(Class::NotANumber);
        }
        if value.is_infinite() {
            return Float80(Class::Infinite { negative });
        }
        let (fraction, biased) =
            (value.to_bits() & ((1 << 52) - 1), (value.to_bits() >> 52) as i32 & 0x7ff);
        let (mantissa, exponent) =
            if biased == 0 { (fraction, -1074) } else { (fraction | 1 << 52, biased - 1075) };
        Float80::round(negative, u128::from(mantissa), false, exponent)
    }

    pub const ZERO: Float80 =
        Float80(Class::Finite(Finite { negative: false, mantissa: 0, exponent: EXPONENT_MIN }));

    /// The number with the other sign.
    pub fn negated(self) -> Float80 {
        Float80(match self.0 {
            Class::Finite(finite) => Class::Finite(Finite { negative: !finite.negative, ..finite }),
            Class::Infinite { negative } => Class::Infinite { negative: !negative },
            Class::NotANumber => Class::NotANumber,
        })
    }

    /// Whether it is less than 0.
    pub fn is_negative(&self) -> bool {
        match self.0 {
            Class::Finite(Finite { negative, mantissa, .. }) => negative && mantissa != 0,
            Class::Infinite { negative } => negative,
            Class::NotANumber => false,
        }
    }

    pub fn is_finite(&self) -> bool {
        matches!(self.0, Class::Finite(_))
    }

    /// Whether it is a number between -1 and 1.
    pub fn is_below_one(&self) -> bool {
        let Class::Finite(Finite { mantissa, exponent, .. }) = self.0 else { return false };
        exponent + (u64::BITS - mantissa.leading_zeros()) as i32 <= 0
    }

    /// Decimal text without an exponent: 17 digits after the point, without trailing zeros and a
    /// trailing point; never `-0`. `inf`, `-inf` or `nan`. Up to about 5 KB for the largest
    /// numbers.
    pub fn to_text(&self) -> Vec<u8> {
        match self.0 {
            Class::Finite(finite) => finite.to_text(),
            Class::Infinite { negative: false } => b"inf".to_vec(),
            Class::Infinite { negative: true } => b"-inf".to_vec(),
            Class::NotANumber => b"nan".to_vec(),
        }
    }

    /// Rounds `mantissa * 2^exponent`, to which something less than one unit of the mantissa is
    /// added if `inexact`; it then has 65 bits at least.
    fn round(negative: bool, mantissa: u128, inexact: bool, exponent: i32) -> Float80 {
        if mantissa == 0 {
            return Float80(Class::Finite(Finite {
                negative,
                mantissa: 0,
                exponent: EXPONENT_MIN,
            }));
        }
        let (mantissa, exponent) =
            round_mantissa(mantissa, inexact, exponent, PRECISION, EXPONENT_MIN);
        if exponent > EXPONENT_MAX {
            return Float80(Class::Infinite { negative });
        }
        Float80(Class::Finite(Finite { negative, mantissa, exponent }))
    }

    /// Rounds a big mantissa; see [`Float80::round`].
    fn round_big(negative: bool, mantissa: &BigUint, inexact: bool, exponent: i32) -> Float80 {
        let shift = mantissa.bits().saturating_sub(128);
        let inexact = inexact || mantissa.trailing_zeros().is_some_and(|zeros| zeros < shift);
        let top = mantissa >> shift;
        let top =
            top.iter_u64_digits().rev().fold(0, |number, digit| number << 64 | u128::from(digit));
        Float80::round(negative, top, inexact, exponent + shift as i32)
    }

    /// None if rounding gave infinity, or zero though the text was not.
    fn in_range(self, zero: bool) -> Option<Float80> {
        match self.0 {
            Class::Finite(finite) if finite.mantissa != 0 || zero => Some(self),
            _ => None,
        }
    }
}

impl Add for Float80 {
    type Output = Float80;

    /// The sum, rounded. Infinite if it overflows; NaN for infinities of both signs.
    fn add(self, other: Float80) -> Float80 {
        match (self.0, other.0) {
            (Class::Finite(a), Class::Finite(b)) => a.add(b),
            (Class::Infinite { negative: a }, Class::Infinite { negative: b }) if a != b => {
                Float80(Class::NotANumber)
            }
            (Class::NotANumber, _) | (_, Class::NotANumber) => Float80(Class::NotANumber),
            (Class::Infinite { .. }, _) => self,
            (_, Class::Infinite { .. }) => other,
        }
    }
}

impl Finite {
    fn add(self, other: Finite) -> Float80 {
        // Normal numbers of a larger exponent are larger; zeros and subnormals all have the least.
        let (high, low) =
            if self.exponent >= other.exponent { (self, other) } else { (other, self) };
        // 63 more bits leave room for the carry and keep all of `low` that can show in 64 bits: if
        // some of it is shifted out, the difference has at least 125 bits.
        const EXTRA: u32 = 63;
        let (a, b) = (u128::from(high.mantissa) << EXTRA, u128::from(low.mantissa) << EXTRA);
        let shift = (high.exponent - low.exponent) as u32;
        let aligned = b.checked_shr(shift).unwrap_or(0);
        let inexact = aligned.checked_shl(shift).unwrap_or(0) != b;
        let (negative, sum) = if high.negative == low.negative {
            (high.negative, a + aligned)
        } else if inexact {
            // The shifted-out bits are subtracted too: one unit more, less than one unit of which
            // comes back.
            (high.negative, a - aligned - 1)
        } else if a >= aligned {
            (high.negative && a != aligned, a - aligned)
        } else {
            (low.negative, aligned - a)
        };
        Float80::round(negative, sum, inexact, high.exponent - EXTRA as i32)
    }

    fn to_text(self) -> Vec<u8> {
        let mut text = Vec::new();
        if self.negative {
            text.push(b'-');
        }
        if self.exponent >= 0 {
            if self.exponent <= 64 {
                let whole = u128::from(self.mantissa) << self.exponent;
                text.extend_from_slice(itoa::Buffer::new().format(whole).as_bytes());
            } else {
                let whole = BigUint::from(self.mantissa) << self.exponent as u32;
                text.extend_from_slice(whole.to_string().as_bytes());
            }
            return text;
        }
        // Below 2^64 times 10^17 everything fits 128 bits, and the power of two divides by a shift.
        const SCALE: u128 = 10u128.pow(FRACTION_DIGITS as u32);
        let scaled = shift_right_to_even(
            u128::from(self.mantissa) * SCALE,
            false,
            self.exponent.unsigned_abs(),
        );
        if scaled == 0 {
            return b"0".to_vec();
        }
        // Both parts fit 64 bits, which print faster.
        let (whole, mut fraction) = ((scaled / SCALE) as u64, (scaled % SCALE) as u64);
        text.extend_from_slice(itoa::Buffer::new().format(whole).as_bytes());
        if fraction != 0 {
            let mut digits = [b'0'; FRACTION_DIGITS];
            for digit in digits.iter_mut().rev() {
                *digit = b'0' + (fraction % 10) as u8;
                fraction /= 10;
            }
            let end = digits.iter().rposition(|digit| *digit != b'0').map_or(0, |last| last + 1);
            text.push(b'.');
            text.extend_from_slice(&digits[..end]);
        }
        text
    }
}

/// A decimal number taken apart: `0.digits * 10^magnitude`.
struct Decimal {
    /// Decimal digits as text, without leading and trailing zeros; empty for zero.
    digits: Vec<u8>,
    magnitude: i64,
}

impl Decimal {
    /// Parses digits with an optional point and an optional exponent.
    fn parse(text: &[u8]) -> Option<Decimal> {
        let end =
            text.iter().position(|byte| byte.eq_ignore_ascii_case(&b'e')).unwrap_or(text.len());
        let exponent = if end < text.len() { parse_exponent(&text[end + 1..])? } else { 0 };
        let point = text[..end].iter().position(|byte| *byte == b'.');
        let (whole, fraction) = match point {
            Some(at) => (&text[..at], &text[at + 1..end]),
            None => (&text[..end], &[][..]),
        };
        let mut digits = [whole, fraction].concat();
        if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let leading = digits.iter().take_while(|digit| **digit == b'0').count();
        let last = digits.iter().rposition(|digit| *digit != b'0');
        digits.truncate(last.map_or(0, |last| last + 1));
        digits.drain(..leading.min(digits.len()));
        Some(Decimal { digits, magnitude: whole.len() as i64 - leading as i64 + exponent })
    }

    /// The nearest float. `None` far out of range, where the powers of ten would only grow.
    fn round(&self, negative: bool) -> Option<Float80> {
        if self.digits.is_empty() {
            return Some(Float80::round(negative, 0, false, 0));
        }
        // The largest finite number is 1.2e4932, the smallest is 3.6e-4951 and half of it becomes
        // zero.
        if !(-4951..=4933).contains(&self.magnitude) {
            return None;
        }
        // The power of ten of the last digit. At most 5 KB of digits bound it.
        let scale = self.magnitude - self.digits.len() as i64;
        let power = scale.unsigned_abs() as u32;
        if self.digits.len() <= 19 && power <= 18 {
            let digits =
                self.digits.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0'));
            let power = 10u128.pow(power);
            if scale >= 0 {
                return Some(Float80::round(negative, u128::from(digits) * power, false, 0));
            }
            // 128 bits divided by less than 60 leave 68 at least.
            let shift = 64 + digits.leading_zeros();
            let numerator = u128::from(digits) << shift;
            let inexact = numerator % power != 0;
            return Some(Float80::round(negative, numerator / power, inexact, -(shift as i32)));
        }
        let digits = BigUint::parse_bytes(&self.digits, 10)?;
        let power = BigUint::from(10u32).pow(power);
        if scale >= 0 {
            return Some(Float80::round_big(negative, &(digits * power), false, 0));
        }
        let shift = (power.bits() + 68).saturating_sub(digits.bits());
        let numerator = digits << shift;
        let quotient = &numerator / &power;
        let inexact = &quotient * &power != numerator;
        Some(Float80::round_big(negative, &quotient, inexact, -(shift as i32)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use num_bigint::BigInt;
    use proptest::prelude::*;

    /// The reply of INCRBYFLOAT.
    fn increment(value: &str, increment: &str) -> String {
        let parse = |text: &str| Float80::parse(text.as_bytes());
        let (Some(value), Some(increment)) = (parse(value), parse(increment)) else {
            return "invalid".to_owned();
        };
        let sum = value + increment;
        if sum.is_finite() {
            String::from_utf8(sum.to_text()).expect("it is ASCII")
        } else {
            "infinite".to_owned()
        }
    }

    /// Each line: a value, an increment, and the answer of INCRBYFLOAT in Redis 7.0.15 on x86-64.
    #[test]
    fn sums_agree_with_redis_to_the_last_digit() {
        for line in include_str!("float80_facts.txt").lines() {
            let [value, by, sum] = line.split(' ').collect::<Vec<_>>()[..] else {
                panic!("three words in {line}");
            };
            assert_eq!(increment(value, by), sum, "{value} + {by}");
        }
    }

    #[test]
    fn infinities_of_both_signs_make_no_number() {
        let [inf, minus_inf] =
            [b"inf".as_slice(), b"-inf"].map(|text| Float80::parse(text).expect("valid"));
        assert_eq!((inf + minus_inf).to_text(), b"nan");
        assert_eq!((inf + Float80::from_i64(1)).to_text(), b"inf");
        assert_eq!((Float80::from_i64(1) + minus_inf).to_text(), b"-inf");
    }

    #[test]
    fn a_double_keeps_its_value() {
        for (value, text) in [
            (0.1, "0.10000000000000001"),
            (-0.0, "0"),
            (13.361389338970184, "13.36138933897018433"),
            (38.11555564, "38.11555563999999663"),
            (1e300, &format!("{:.0}", 1e300)),
            (5e-324, "0"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(String::from_utf8(Float80::from_f64(value).to_text()), Ok(text.to_owned()));
        }
    }

    #[test]
    fn a_text_of_more_than_5119_bytes_is_no_number() {
        assert!(Float80::parse("1".repeat(4932).as_bytes()).is_some());
        assert!(Float80::parse(&[b"1.".as_slice(), &[b'0'; 5117]].concat()).is_some());
        assert!(Float80::parse(&[b"1.".as_slice(), &[b'0'; 5118]].concat()).is_none());
    }

    /// The exact sum of two floats as a multiple of 2^-16445, rounded by big integers alone.
    fn naive_sum(a: Finite, b: Finite) -> (BigInt, i32) {
        let scaled = |x: Finite| {
            let magnitude = BigInt::from(x.mantissa) << (x.exponent - EXPONENT_MIN) as u32;
            if x.negative { -magnitude } else { magnitude }
        };
        let sum = scaled(a) + scaled(b);
        let shift = sum.bits().saturating_sub(64);
        let unit = BigInt::from(1) << shift;
        let mut kept: BigInt = sum.magnitude().clone().into();
        let lost = &kept % &unit;
        kept /= &unit;
        let twice: BigInt = lost * 2;
        if twice > unit || twice == unit && kept.bit(0) {
            kept += 1;
        }
        let kept = if sum.sign() == num_bigint::Sign::Minus { -kept } else { kept };
        (kept, shift as i32)
    }

    fn finite() -> impl Strategy<Value = Finite> {
        (any::<bool>(), any::<u64>(), 0..200i32, 0..64u32).prop_map(
            |(negative, bits, above, zeros)| {
                let mantissa = if above == 0 { bits >> 1 } else { bits | 1 << 63 };
                Finite {
                    negative,
                    mantissa: mantissa >> zeros << zeros | mantissa & 1 << 63,
                    exponent: EXPONENT_MIN + above,
                }
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        #[test]
        fn sums_are_rounded_exactly(a in finite(), b in finite()) {
            let Float80(Class::Finite(sum)) = a.add(b) else { panic!("too small to overflow") };
            let (kept, shift) = naive_sum(a, b);
            let got = BigInt::from(sum.mantissa) << (sum.exponent - EXPONENT_MIN) as u32;
            let got = if sum.negative { -got } else { got };
            prop_assert_eq!(got, kept << shift as u32);
        }

        /// The short way in 128 bits and the long way in big integers.
        #[test]
        fn zeros_around_the_digits_change_nothing(digits in 1u64.., point in -18..=18i32) {
            let short = Float80::parse(format!("{digits}e{point}").as_bytes()).expect("in range");
            let long = format!("{digits}.{}1e{point}", "0".repeat(4900));
            let long = Float80::parse(long.as_bytes()).expect("in range");
            // A digit 4900 places below decides only ties.
            let near = short.to_text() == long.to_text() || {
                let (Class::Finite(short), Class::Finite(long)) = (short.0, long.0) else { panic!("finite") };
                short.exponent == long.exponent && long.mantissa - short.mantissa == 1
            };
            prop_assert!(near);
        }
    }
}
