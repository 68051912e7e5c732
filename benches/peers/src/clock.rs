//! The only reader of time in this program: a monotonic clock for latencies, the wall clock for
//! deadlines and dates.
#![allow(clippy::disallowed_methods)]

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The monotonic clock.
pub fn now() -> Instant {
    Instant::now()
}

/// The wall clock, microseconds since 1970-01-01 00:00 UTC; 0 if it is set before then.
pub fn wall_us() -> i64 {
    i64::try_from(wall().as_micros()).unwrap_or(i64::MAX)
}

/// The wall clock since 1970-01-01 00:00 UTC; zero if it is set before then.
pub fn wall() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The day of a wall-clock time as `YYYY-MM-DD`, in UTC and the Gregorian calendar.
pub fn date(wall_us: i64) -> String {
    // Years are counted from March, so that the leap day is a year's last; 719,468 days lie between
    // 0000-03-01 and 1970.
    let days = wall_us.div_euclid(86_400_000_000) + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_follow_the_gregorian_calendar() {
        let day_us = 86_400_000_000;
        assert_eq!(date(0), "1970-01-01");
        assert_eq!(date(11_016 * day_us), "2000-02-29");
        assert_eq!(date(11_017 * day_us - 1), "2000-02-29");
        assert_eq!(date(11_017 * day_us), "2000-03-01");
        assert_eq!(date(20_453 * day_us), "2025-12-31");
    }
}
