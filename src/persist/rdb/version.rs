//! Versions of the format.

use std::fmt;

use thiserror::Error;

/// The versions that are accepted. Source: `rdb-version-check`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VersionCheck {
    /// Versions of which every type is known here.
    #[default]
    Strict,
    /// All versions: an unknown type is an error where it occurs.
    Relaxed,
}

/// The version of a file or payload: up to 15 it is Redis's, from 80 on Valkey's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(u16);

impl Version {
    /// The version that Redis 7.0 writes and reads.
    pub const REDIS_10: Version = Version(10);
    /// Redis 7.2: stream consumers have the time when they were last active.
    pub const REDIS_11: Version = Version(11);
    /// Redis 7.4: hashes with deadlines of fields.
    pub const REDIS_12: Version = Version(12);
    /// Redis 8.6: streams remember what producers have added, keys have data of modules.
    pub const REDIS_13: Version = Version(13);
    /// Redis 8.8: pending entries of streams without a consumer; arrays.
    pub const REDIS_14: Version = Version(14);
    /// Redis 8.10: hashes that share the names of their fields.
    pub const REDIS_15: Version = Version(15);
    /// Valkey 9: hashes with deadlines of fields.
    pub const VALKEY_80: Version = Version(80);

    /// Length of a file's magic.
    pub const MAGIC_BYTES: usize = 9;

    /// The version with this number; None if it is unknown.
    pub fn from_number(number: u16) -> Option<Version> {
        Some(Version(number)).filter(|version| version.is_known())
    }

    /// The version in a file's first bytes.
    pub fn from_magic(
        magic: &[u8; Version::MAGIC_BYTES],
        check: VersionCheck,
    ) -> Result<Version, HeaderFault> {
        let (digits, is_valkey) =
            match (magic.strip_prefix(b"REDIS"), magic.strip_prefix(b"VALKEY")) {
                (Some(digits), _) => (digits, false),
                (_, Some(digits)) => (digits, true),
                _ => return Err(HeaderFault::Signature(*magic)),
            };
        let mut number = 0;
        for digit in digits {
            if !digit.is_ascii_digit() {
                return Err(HeaderFault::Signature(*magic));
            }
            number = number * 10 + u16::from(digit - b'0');
        }
        let version = Version(number);
        let is_read = match check {
            VersionCheck::Strict => version.is_known(),
            VersionCheck::Relaxed => number > 0,
        };
        if is_read && version.is_valkey() == is_valkey {
            Ok(version)
        } else {
            Err(HeaderFault::Version(number))
        }
    }

    /// Whether all its types are known, though not all can be read (values of modules, arrays).
    /// Otherwise it is a later one, of Redis or Valkey.
    pub fn is_known(self) -> bool {
        matches!(self.0, 1..=15 | 80)
    }

    /// The first bytes of a file.
    pub fn magic(self) -> [u8; Version::MAGIC_BYTES] {
        let mut magic = if self.is_valkey() { *b"VALKEY000" } else { *b"REDIS0000" };
        let mut rest = self.0;
        for digit in magic.iter_mut().rev().take(3) {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        magic
    }

    pub fn number(self) -> u16 {
        self.0
    }

    /// Whether it is this version of Redis or a later one, not Valkey's.
    pub fn is_redis_since(self, since: Version) -> bool {
        self >= since && !self.is_valkey()
    }

    pub fn is_valkey(self) -> bool {
        self.0 >= 80
    }

    /// Whether a file ends with a checksum.
    pub fn has_checksum(self) -> bool {
        self.0 >= 5
    }
}

/// Why a file is not read at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum HeaderFault {
    #[error("does not begin as an RDB file does")]
    Signature([u8; Version::MAGIC_BYTES]),
    #[error("has a version that cannot be read: 1 to 15 of Redis and 80 of Valkey can")]
    Version(u16),
}

impl fmt::Display for Version {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.magic().map(char::from).iter().collect::<String>())
    }
}
