//! Deadlines in requests: a time in a unit, options with a time, and conditions on the existing
//! deadline.
//!
//! Input: arguments; output: complete values. The keyspace is not accessed. A relative time counts
//! on the boot-time clock, an absolute one on the wall clock (`clock.rs`); conditions compare the
//! remaining times.

use crate::clock::{Deadline, Now, UnixMillis};
use crate::error::CommandError;
use crate::resp::args::Cursor;
use crate::resp::number;

/// The unit and reference of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeUnit {
    Seconds,
    Milliseconds,
    UnixSeconds,
    UnixMilliseconds,
}

impl TimeUnit {
    pub fn is_absolute(self) -> bool {
        matches!(self, TimeUnit::UnixSeconds | TimeUnit::UnixMilliseconds)
    }

    /// A time in this unit. None if its Unix milliseconds exceed 64 bits.
    pub fn when(self, time: i64, now: &Now) -> Option<When> {
        let ms = match self {
            TimeUnit::Seconds | TimeUnit::UnixSeconds => time.checked_mul(1000)?,
            TimeUnit::Milliseconds | TimeUnit::UnixMilliseconds => time,
        };
        if self.is_absolute() {
            return Some(When::At(UnixMillis(ms)));
        }
        now.unix().0.checked_add(ms).map(|_| When::After { ms })
    }

    /// Parses an argument as a time in this unit. Errors: it is no integer, its Unix milliseconds
    /// exceed 64 bits, or `is_allowed` refuses it; `command` is the name in the error.
    pub fn parse(
        self,
        time: &[u8],
        now: &Now,
        command: &'static str,
        is_allowed: impl FnOnce(i64, When) -> bool,
    ) -> Result<When, CommandError> {
        let time = number::parse_i64(time).ok_or(CommandError::NotInteger)?;
        let when = self.when(time, now).filter(|when| is_allowed(time, *when));
        when.ok_or(CommandError::InvalidExpire(command))
    }
}

/// A time given in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    After { ms: i64 },
    At(UnixMillis),
}

impl When {
    /// The milliseconds left; 0 once the time has come.
    pub fn remaining_ms(self, now: &Now) -> i64 {
        match self {
            When::After { ms } => ms,
            When::At(when) => when.0.saturating_sub(now.unix().0),
        }
    }

    /// Unix time in milliseconds.
    pub fn unix_ms(self, now: &Now) -> i64 {
        match self {
            When::After { ms } => now.unix().0.saturating_add(ms),
            When::At(when) => when.0,
        }
    }

    pub fn deadline(self, now: &Now) -> Deadline {
        match self {
            When::After { ms } => now.after(ms),
            When::At(when) => now.at(when),
        }
    }
}

/// A word of the options for a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LifetimeWord {
    Time(TimeUnit),
    KeepTtl,
    Persist,
}

impl LifetimeWord {
    /// Parses `EX`, `PX`, `EXAT`, `PXAT`, `KEEPTTL` or `PERSIST`, case-insensitively.
    #[inline]
    pub fn of(argument: &[u8]) -> Option<Self> {
        // Two-letter words are the most frequent. The bit is the case of a letter.
        if let [first, second] = argument {
            return match &[first | 0x20, second | 0x20] {
                b"ex" => Some(LifetimeWord::Time(TimeUnit::Seconds)),
                b"px" => Some(LifetimeWord::Time(TimeUnit::Milliseconds)),
                _ => None,
            };
        }
        let is = |word: &[u8]| argument.eq_ignore_ascii_case(word);
        match argument.len() {
            4 if is(b"EXAT") => Some(LifetimeWord::Time(TimeUnit::UnixSeconds)),
            4 if is(b"PXAT") => Some(LifetimeWord::Time(TimeUnit::UnixMilliseconds)),
            7 if is(b"KEEPTTL") => Some(LifetimeWord::KeepTtl),
            7 if is(b"PERSIST") => Some(LifetimeWord::Persist),
            _ => None,
        }
    }
}

/// The option for a deadline. Its time is parsed later: syntax errors in other options come first,
/// and some commands look up the key before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lifetime<'a> {
    /// No option.
    #[default]
    Unsaid,
    Keep,
    Persist,
    Given(TimeUnit, &'a [u8]),
}

impl<'a> Lifetime<'a> {
    /// Adds an option, whose time is taken from the cursor. A repeated one replaces the first;
    /// different ones exclude each other.
    pub fn add(&mut self, word: LifetimeWord, cursor: &mut Cursor<'a>) -> Result<(), CommandError> {
        *self = match (word, *self) {
            (LifetimeWord::KeepTtl, Lifetime::Unsaid | Lifetime::Keep) => Lifetime::Keep,
            (LifetimeWord::Persist, Lifetime::Unsaid | Lifetime::Persist) => Lifetime::Persist,
            (LifetimeWord::Time(unit), Lifetime::Unsaid) => Lifetime::Given(unit, cursor.take()?),
            (LifetimeWord::Time(unit), Lifetime::Given(before, _)) if unit == before => {
                Lifetime::Given(unit, cursor.take()?)
            }
            _ => return Err(CommandError::Syntax),
        };
        Ok(())
    }
}

/// A condition on the existing deadline, for setting a new one. A key or field without one counts
/// as never expiring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    Always,
    /// NX: none.
    Persistent,
    /// XX: any.
    Volatile,
    /// GT, with or without XX: an earlier one.
    Earlier,
    /// LT: a later one, or none.
    LaterOrNone,
    /// XX LT: a later one.
    Later,
}

impl Condition {
    /// Parses `[NX | XX | GT | LT]`, all of the cursor's arguments; XX may be combined with GT or
    /// LT.
    pub fn parse(mut cursor: Cursor<'_>) -> Result<Self, CommandError> {
        let (mut nx, mut xx, mut gt, mut lt) = (false, false, false, false);
        while let Some(option) = cursor.peek() {
            cursor.take()?;
            let is = |word: &[u8]| option.eq_ignore_ascii_case(word);
            if is(b"NX") {
                nx = true;
            } else if is(b"XX") {
                xx = true;
            } else if is(b"GT") {
                gt = true;
            } else if is(b"LT") {
                lt = true;
            } else {
                return Err(CommandError::unsupported_option(option));
            }
        }
        if nx && (xx || gt || lt) {
            return Err(CommandError::NX_WITH_OTHERS);
        }
        match (nx, xx, gt, lt) {
            (_, _, true, true) => Err(CommandError::GT_WITH_LT),
            (true, ..) => Ok(Condition::Persistent),
            (_, _, true, _) => Ok(Condition::Earlier),
            (_, true, _, true) => Ok(Condition::Later),
            (_, _, _, true) => Ok(Condition::LaterOrNone),
            (_, true, ..) => Ok(Condition::Volatile),
            _ => Ok(Condition::Always),
        }
    }

    /// Whether something that expires in `current` milliseconds (None: never) may get a deadline in
    /// `new` milliseconds.
    pub fn allows(self, current: Option<i64>, new: i64) -> bool {
        match self {
            Condition::Always => true,
            Condition::Persistent => current.is_none(),
            Condition::Volatile => current.is_some(),
            Condition::Earlier => current.is_some_and(|current| current < new),
            Condition::LaterOrNone => current.is_none_or(|current| current > new),
            Condition::Later => current.is_some_and(|current| current > new),
        }
    }
}

/// Non-negative milliseconds rounded to seconds.
pub fn to_seconds(ms: i64) -> i64 {
    ms / 1000 + i64::from(ms % 1000 >= 500)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_time_is_refused_unless_its_milliseconds_fit(time in any::<i64>(), near in -2i64..2) {
            let now = Now { wall_us: 1_700_000_000_000_000, boot_us: 5_000_000, ignores_deadlines: false };
            let limit_ms = i64::MAX - now.unix().0;
            let max = i64::MAX;
            for time in [time, near, limit_ms + near, limit_ms / 1000 + near, max / 1000 + near, max] {
                let exact = i128::from(time);
                let unix_ms = i128::from(now.unix().0);
                for (unit, ms) in [
                    (TimeUnit::Seconds, exact * 1000 + unix_ms),
                    (TimeUnit::Milliseconds, exact + unix_ms),
                    (TimeUnit::UnixSeconds, exact * 1000),
                    (TimeUnit::UnixMilliseconds, exact),
                ] {
                    let when = unit.when(time, &now);
                    let least = if unit.is_absolute() { i128::from(i64::MIN) } else { i128::from(i64::MIN) + unix_ms };
                    prop_assert_eq!(when.is_some(), ms <= i128::from(max) && ms >= least, "{:?} {}", unit, time);
                    let Some(when) = when else { continue };
                    prop_assert_eq!(i128::from(when.unix_ms(&now)), ms);
                    if time > 0 {
                        let left = now.remaining_ms(when.deadline(&now));
                        prop_assert_eq!(i128::from(unix_ms as i64) + i128::from(left), ms.max(i128::from(i64::MIN)));
                        prop_assert_eq!(when.remaining_ms(&now), left);
                    }
                }
            }
        }
    }
}
