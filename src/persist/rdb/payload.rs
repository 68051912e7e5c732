//! The payload of DUMP and RESTORE: a value, the version, and a checksum of both.

use thiserror::Error;

use crate::clock::Now;
use crate::collections::table::ValueRef;
use crate::types::{Stored, Value};

use super::input::skip_key_meta;
use super::reader::Reader;
use super::{CHECKSUM, DecodeError, Decoder, Encoder, Limits, Version, opcode};

/// Version and checksum. Unit: bytes.
const FOOTER_BYTES: usize = 10;

/// Why a payload cannot be restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PayloadError {
    #[error("the version is not known, or the checksum is wrong")]
    Footer,
    #[error(transparent)]
    Value(#[from] DecodeError),
}

/// The payload of a value, in the lowest version that holds it.
pub fn dump(encoder: &mut Encoder, value: ValueRef<'_, Value>, now: &Now) -> Vec<u8> {
    dump_as(encoder, value, encoder.newer.version_with_times(value), now)
}

/// The payload of a value, in the version that a file would have: 10 if possible, so that Redis 7.0
/// accepts it. The times when stream consumers were last active are lost.
pub fn dump_as_in_files(encoder: &mut Encoder, value: ValueRef<'_, Value>, now: &Now) -> Vec<u8> {
    dump_as(encoder, value, encoder.newer.version_for(value), now)
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

/// Appends the footer to a payload's content.
pub fn seal(content: &mut Vec<u8>, version: Version) {
    content.extend_from_slice(&version.number().to_le_bytes());
    let checksum = CHECKSUM.checksum(content);
    content.extend_from_slice(&checksum.to_le_bytes());
}

/// The version and content of a payload; None if the version is unknown or the checksum wrong.
pub fn verify(payload: &[u8]) -> Option<(Version, &[u8])> {
    let (version, content, is_right) = split(payload)?;
    is_right.then_some((version, content))
}

/// The version and content of a payload, and whether its checksum is right. None: it is too short,
/// or its version unknown.
fn split(payload: &[u8]) -> Option<(Version, &[u8], bool)> {
    let (content, footer) = payload.split_at_checked(payload.len().checked_sub(FOOTER_BYTES)?)?;
    let (version, stored) = footer.split_first_chunk()?;
    let version = Version::from_number(u16::from_le_bytes(*version))?;
    let computed = CHECKSUM.checksum(&payload[..content.len() + 2]).to_le_bytes();
    // Redis 8 writes none into what it sends to replicas.
    let is_omitted = version.is_redis_since(Version::REDIS_13) && stored == [0; 8];
    Some((version, content, is_omitted || computed == stored))
}

/// Decodes a payload. `now` converts the deadlines of fields.
pub fn restore(payload: &[u8], limits: &Limits, now: Now) -> Result<Stored, PayloadError> {
    restore_checked(payload, limits, now, true)
}

/// As [`restore`]; without `checks` the checksum may be wrong.
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
    let mut reader = Reader::new(content, 0);
    let mut value_type = reader.byte("the type of a value")?;
    if value_type == opcode::KEY_META && version.is_redis_since(Version::REDIS_13) {
        skip_key_meta(&mut reader)?;
        value_type = reader.byte("the type of a value")?;
    }
    let start = reader.position();
    Ok(Decoder { limits, now, version }.value(value_type, &content[start..], start as u64)?)
}
