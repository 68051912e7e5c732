//! The programs of an operator besides the server: `backup` takes a snapshot of a running server,
//! `restore` puts one into a data folder. `record` is the text beside a snapshot. `moving` moves
//! from one running server to another. `access` are the options with which servers are reached.

pub mod access;
pub mod backup;
pub mod moving;
pub mod record;
pub mod restore;

use std::io::{self, Read};
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::config::system_text;

/// A time in UTC without separators, for names of files: `20261129T220126Z`.
pub fn stamp(unix_seconds: i64) -> String {
    const DAY: i64 = 86_400;
    let (days, second) = (unix_seconds.div_euclid(DAY), unix_seconds.rem_euclid(DAY));
    // Years begin in March, so that the leap day is the last one. Eras have 400 years.
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let (year, hour, minute) = (era * 400 + year + next, second / 3600, second / 60 % 60);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{:02}Z", second % 60)
}

/// The text of a failed operation on a file or folder.
fn failed(path: &Path, error: &io::Error) -> String {
    format!("{}: {}", path.display(), system_text(error))
}

/// Counts and hashes the bytes that pass.
struct Hashing<R> {
    inner: R,
    hash: Sha256,
    bytes: u64,
}

impl<R: Read> Hashing<R> {
    fn new(inner: R) -> Self {
        Hashing { inner, hash: Sha256::new(), bytes: 0 }
    }

    /// The number of bytes up to the end, and their SHA-256 in hexadecimal digits.
    fn finish(mut self) -> io::Result<(u64, String)> {
        let mut rest = [0; 64 << 10];
        while self.read(&mut rest)? > 0 {}
        Ok((self.bytes, base16ct::lower::encode_string(&self.hash.finalize())))
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.inner.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
                Ok(count) => {
                    self.hash.update(&buffer[..count]);
                    self.bytes += count as u64;
                    return Ok(count);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        assert_eq!(stamp(0), "19700101T000000Z");
        assert_eq!(stamp(951_782_400), "20000229T000000Z");
        assert_eq!(stamp(1_796_000_486), "20261130T010126Z");
        assert_eq!(stamp(4_107_542_399), "21000228T235959Z");
        assert_eq!(stamp(4_107_542_400), "21000301T000000Z");
        assert_eq!(stamp(-1), "19691231T235959Z");
    }
}
