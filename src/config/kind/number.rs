//! Values that are numbers: integers, amounts of memory, octal permissions.

use super::{Kind, MemoryLimit, Origin, Reason, RewriteLine, line, single};

/// A decimal integer within bounds, both inclusive.
pub(in crate::config) struct Int {
    min: i128,
    max: i128,
}

pub(in crate::config) const fn int(min: i128, max: i128) -> Int {
    Int { min, max }
}

impl Int {
    fn check<T: TryFrom<i128>>(&self, number: i128) -> Result<T, Reason> {
        let out_of_range = Reason::OutOfRange { min: self.min, max: self.max };
        if !(self.min..=self.max).contains(&number) {
            return Err(out_of_range);
        }
        T::try_from(number).map_err(|_| out_of_range)
    }
}

impl<T: Copy + PartialEq + ToString + TryFrom<i128>> Kind<T> for Int {
    fn parse(&self, args: &[&[u8]], _: &T, _: Origin) -> Result<T, Reason> {
        let number = parse_integer(single(args)?).ok_or(Reason::NotInteger)?;
        self.check(i128::from(number))
    }

    fn format(&self, value: &T) -> Vec<u8> {
        value.to_string().into_bytes()
    }

    fn describe(&self) -> String {
        if self.max >= i128::from(i32::MAX) {
            format!("integer, at least {}", self.min)
        } else {
            format!("integer, {} to {}", self.min, self.max)
        }
    }
}

/// An integer. One out of bounds is set to the nearest bound, not refused.
pub(in crate::config) struct Clamped {
    pub min: u32,
    pub max: u32,
}

impl Kind<u32> for Clamped {
    fn parse(&self, args: &[&[u8]], old: &u32, origin: Origin) -> Result<u32, Reason> {
        let number: u32 = int(0, i128::from(i32::MAX)).parse(args, old, origin)?;
        Ok(number.clamp(self.min, self.max))
    }

    fn format(&self, value: &u32) -> Vec<u8> {
        value.to_string().into_bytes()
    }

    fn describe(&self) -> String {
        format!("integer; below {0} it becomes {0}, above {1} it becomes {1}", self.min, self.max)
    }
}

/// An amount of memory within bounds, in bytes or with a unit: 1k is 1000, 1kb is 1024; m and g
/// work alike. A negative number has no unit.
pub(in crate::config) struct Memory {
    range: Int,
    /// A smaller amount is accepted, but raised to this.
    floor: u64,
}

pub(in crate::config) const fn memory(min: i128, max: i128) -> Memory {
    Memory { range: int(min, max), floor: 0 }
}

impl Memory {
    pub(in crate::config) const fn raised_to(self, floor: u64) -> Self {
        Memory { floor, ..self }
    }
}

impl<T: Copy + PartialEq + ToString + TryFrom<i128> + TryInto<u64>> Kind<T> for Memory {
    fn parse(&self, args: &[&[u8]], _: &T, _: Origin) -> Result<T, Reason> {
        let arg = single(args)?;
        if let Some(number) = parse_integer(arg).filter(|number| *number < 0 && self.range.min < 0)
        {
            return self.range.check(i128::from(number));
        }
        let bytes = parse_memory(arg).ok_or(Reason::NotMemory)?;
        self.range.check::<T>(i128::from(bytes))?;
        self.range.check(i128::from(bytes.max(self.floor)))
    }

    fn format(&self, value: &T) -> Vec<u8> {
        value.to_string().into_bytes()
    }

    fn lines(&self, name: &str, value: &T, default: &T) -> Vec<RewriteLine> {
        // Negative numbers are no amounts.
        let text = (*value).try_into().map_or_else(|_| value.to_string(), with_unit);
        vec![line(name, text.as_bytes(), value != default)]
    }

    fn describe(&self) -> String {
        match (self.range.min, self.floor) {
            (_, 1..) => format!("memory (units b k kb m mb g gb); less becomes {}", self.floor),
            (1.., _) => format!("memory (units b k kb m mb g gb), at least {}", self.range.min),
            (..=-1, _) => format!("memory (units b k kb m mb g gb), or {}", self.range.min),
            _ => "memory (units b k kb m mb g gb)".into(),
        }
    }
}

/// Bytes, or a percentage.
pub(in crate::config) struct MemoryOrPercent;

impl Kind<MemoryLimit> for MemoryOrPercent {
    fn parse(&self, args: &[&[u8]], _: &MemoryLimit, _: Origin) -> Result<MemoryLimit, Reason> {
        let arg = single(args)?;
        if let Some(bytes) = parse_memory(arg) {
            // Redis stores percentages as negative numbers, so amounts above 2^63 look like
            // percentages there.
            let fits = i64::try_from(bytes).is_ok();
            return if fits { Ok(MemoryLimit::Bytes(bytes)) } else { Err(Reason::PercentTooHigh) };
        }
        let number = arg.strip_suffix(b"%").and_then(parse_integer).filter(|number| *number >= 0);
        match number {
            None => Err(Reason::NotMemoryOrPercent),
            Some(0) => Ok(MemoryLimit::Bytes(0)),
            Some(percent @ 1..=100) => Ok(MemoryLimit::Percent(percent as u8)),
            Some(_) => Err(Reason::PercentTooHigh),
        }
    }

    fn format(&self, value: &MemoryLimit) -> Vec<u8> {
        match value {
            MemoryLimit::Bytes(bytes) => bytes.to_string().into_bytes(),
            MemoryLimit::Percent(percent) => format!("{percent}%").into_bytes(),
        }
    }

    fn lines(&self, name: &str, value: &MemoryLimit, default: &MemoryLimit) -> Vec<RewriteLine> {
        let text = match value {
            MemoryLimit::Bytes(bytes) => with_unit(*bytes).into_bytes(),
            MemoryLimit::Percent(_) => self.format(value),
        };
        vec![line(name, &text, value != default)]
    }

    fn describe(&self) -> String {
        "memory (units b k kb m mb g gb), or a percentage such as 5%".into()
    }
}

/// An octal number up to a maximum, such as permissions.
pub(in crate::config) struct Octal {
    pub max: u32,
}

impl Kind<u32> for Octal {
    fn parse(&self, args: &[&[u8]], _: &u32, _: Origin) -> Result<u32, Reason> {
        let number = parse_strtoll(single(args)?, 8).ok_or(Reason::NotOctal)?;
        let out_of_range = Reason::OutOfOctalRange { min: 0, max: self.max };
        u32::try_from(number).ok().filter(|number| *number <= self.max).ok_or(out_of_range)
    }

    fn format(&self, value: &u32) -> Vec<u8> {
        format!("{value:o}").into_bytes()
    }

    fn describe(&self) -> String {
        format!("octal, 0 to {:o}", self.max)
    }
}

/// A decimal integer without spaces, plus sign or leading zeros.
fn parse_integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let canonical = text == b"0" || matches!(digits.first(), Some(b'1'..=b'9'));
    if !canonical || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    str::from_utf8(text).ok()?.parse().ok()
}

/// An integer, parsed like C's `strtoll`, if parsing reaches the end of the text: leading spaces
/// and a sign are allowed, empty text is 0, and a number beyond 64 bits is the nearest bound.
pub(super) fn parse_strtoll(text: &[u8], radix: u32) -> Option<i64> {
    if text.is_empty() {
        return Some(0);
    }
    let text = str::from_utf8(text).ok()?;
    let text = text.trim_start_matches([' ', '\t', '\n', '\x0b', '\x0c', '\r']);
    let (negative, digits) = match text.as_bytes() {
        [b'-', ..] => (true, &text[1..]),
        [b'+', ..] => (false, &text[1..]),
        _ => (false, text),
    };
    if digits.is_empty() {
        return None;
    }
    let mut number: i64 = 0;
    for digit in digits.chars() {
        let digit = i64::from(digit.to_digit(radix)?);
        let signed = if negative { -digit } else { digit };
        number = number.saturating_mul(i64::from(radix)).saturating_add(signed);
    }
    Some(number)
}

/// An amount of memory: digits and a unit. Without digits it is 0, as in Redis. From 2^64 on, where
/// Redis wraps around, it is refused.
pub fn parse_memory(text: &[u8]) -> Option<u64> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (digits, unit) = text.split_at(digits);
    let factor: u64 = match unit.to_ascii_lowercase().as_slice() {
        b"" | b"b" => 1,
        b"k" => 1000,
        b"kb" => 1 << 10,
        b"m" => 1_000_000,
        b"mb" => 1 << 20,
        b"g" => 1_000_000_000,
        b"gb" => 1 << 30,
        _ => return None,
    };
    let mut number: u64 = 0;
    for digit in digits {
        number = number.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
    }
    number.checked_mul(factor)
}

/// An amount in the largest unit of gb, mb and kb that divides it.
pub(super) fn with_unit(bytes: u64) -> String {
    for (unit, size) in [("gb", 1 << 30), ("mb", 1 << 20), ("kb", 1 << 10)] {
        if bytes != 0 && bytes.is_multiple_of(size) {
            return format!("{}{unit}", bytes / size);
        }
    }
    bytes.to_string()
}
