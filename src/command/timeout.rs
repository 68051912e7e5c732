//! The timeouts of commands that wait.

use crate::clock::Now;
use crate::error::CommandError;
use crate::resp::float80::Float80;
use crate::resp::number;
use crate::state::context::{Context, Origin};

/// Unit of a timeout argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeoutUnit {
    /// Seconds, possibly with a fraction: rounded up to milliseconds.
    Seconds,
    /// Whole milliseconds.
    Milliseconds,
}

/// The deadline of a timeout argument on the boot-time clock, in microseconds; None for 0, which
/// blocks for ever.
pub fn parse_timeout(
    text: &[u8],
    unit: TimeoutUnit,
    now: Now,
) -> Result<Option<i64>, CommandError> {
    let ms = match unit {
        TimeoutUnit::Seconds => {
            let ms = parse_seconds(text)
                .ok_or(CommandError::Text("ERR timeout is not a float or out of range"))?
                * 1000.0;
            if ms > i64::MAX as f64 {
                return Err(CommandError::TIMEOUT_OUT_OF_RANGE);
            }
            ms.ceil() as i64
        }
        TimeoutUnit::Milliseconds => {
            number::parse_i64(text).ok_or(CommandError::TIMEOUT_NOT_INTEGER)?
        }
    };
    if ms < 0 {
        return Err(CommandError::TIMEOUT_NEGATIVE);
    }
    if ms == 0 {
        return Ok(None);
    }
    // Redis adds the wall clock's milliseconds, and refuses an overflow.
    if ms.checked_add(now.unix().0).is_none() {
        return Err(CommandError::TIMEOUT_OUT_OF_RANGE);
    }
    Ok(Some(now.boot_us.saturating_add(ms.saturating_mul(1000))))
}

/// Seconds, parsed like an extended-precision number: a value beyond a double is infinite, and one
/// that is too small for it the smallest there is.
fn parse_seconds(text: &[u8]) -> Option<f64> {
    if let Some(seconds) = number::parse_f64(text) {
        return Some(seconds).filter(|seconds| !seconds.is_nan());
    }
    let number = Float80::parse(text).filter(Float80::is_finite)?;
    let seconds = if number.is_below_one() { f64::MIN_POSITIVE } else { f64::INFINITY };
    Some(if text.starts_with(b"-") { -seconds } else { seconds })
}

impl Context<'_> {
    /// The deadline of a timeout argument, see [`parse_timeout`]. A woken command keeps the one it
    /// was blocked with.
    pub fn timeout(&self, index: usize, unit: TimeoutUnit) -> Result<Option<i64>, CommandError> {
        if matches!(self.origin, Origin::Woken(_)) {
            return Ok(None);
        }
        parse_timeout(self.args.get(index), unit, self.core.state.now)
    }
}
