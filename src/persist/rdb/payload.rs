//! What DUMP answers and RESTORE takes: one value, the version, and a checksum over both.

use thiserror::Error;

use crate::clock::Now;
use crate::collections::table::ValueRef;
use crate::types::{Stored, Value};

use super::encode::version_for;
use super::{CHECKSUM, DecodeError, Decoder, Encoder, Fault, Limits, NeedsVersion, Version};

/// Version and checksum.
const FOOTER: usize = 10;

/// Why a payload cannot be restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PayloadError {
    #[error("the version is not known, or the checksum is wrong")]
    Footer,
    #[error(transparent)]
    Value(#[from] DecodeError),
}

/// The payload of a value, of the lowest version that holds it.
pub fn dump(encoder: &mut Encoder, value: ValueRef<'_, Value>, now: &Now) -> Vec<u8> {
    dump_as(encoder, value, version_for(value), now)
}

/// The payload of a value of the version that files have: 10 wherever the value can be told in it, so that Redis 7.0 takes it. The
/// times at which consumers of streams were active are left out.
pub fn dump_as_in_files(encoder: &mut Encoder, value: ValueRef<'_, Value>, now: &Now) -> Vec<u8> {
    let version = match Encoder::value_type(value, Version::REDIS_10) {
        Ok(_) => Version::REDIS_10,
        Err(NeedsVersion(version)) => version,
    };
    dump_as(encoder, value, version, now)
}

fn dump_as(
    encoder: &mut Encoder,
    value: ValueRef<'_, Value>,
    version: Version,
    now: &Now,
) -> Vec<u8> {
    let value_type =
        Encoder::value_type(value, version).expect("the version was chosen for this value");
    let mut payload = vec![value_type];
    encoder.write_value(value, value_type, now, &mut payload);
    seal(&mut payload, version);
    payload
}

/// Puts the footer behind a payload's content.
pub fn seal(content: &mut Vec<u8>, version: Version) {
    content.extend_from_slice(&version.number().to_le_bytes());
    let checksum = CHECKSUM.checksum(content);
    content.extend_from_slice(&checksum.to_le_bytes());
}

/// The version and content of a payload with a right footer.
pub fn verify(payload: &[u8]) -> Option<(Version, &[u8])> {
    let (version, content, is_right) = split(payload)?;
    is_right.then_some((version, content))
}

/// The version and content of a payload, and whether its checksum is right.
fn split(payload: &[u8]) -> Option<(Version, &[u8], bool)> {
    let (content, footer) = payload.split_at_checked(payload.len().checked_sub(FOOTER)?)?;
    let (version, stored) = footer.split_first_chunk()?;
    let version = Version::of_number(u16::from_le_bytes(*version))?;
    let computed = CHECKSUM.checksum(&payload[..content.len() + 2]).to_le_bytes();
    Some((version, content, computed == stored))
}

/// The value of a payload. Deadlines of fields count from `now`.
pub fn restore(payload: &[u8], limits: &Limits, now: Now) -> Result<Stored, PayloadError> {
    restore_checked(payload, limits, now, true)
}

/// The same; without `checks` the checksum may be wrong.
pub fn restore_checked(
    payload: &[u8],
    limits: &Limits,
    now: Now,
    checks: bool,
) -> Result<Stored, PayloadError> {
    let (version, content, is_right) = split(payload).ok_or(PayloadError::Footer)?;
    if checks && !is_right {
        return Err(PayloadError::Footer);
    }
    let (&value_type, value) = content
        .split_first()
        .ok_or(DecodeError { fault: Fault::Truncated("the type of a value"), offset: 0 })?;
    Ok(Decoder { limits, now, version }.value(value_type, value, 1)?)
}
