//! A lock as plain data, and how it is read.
//!
//! ```text
//! hash    owner -> holds,  :fence -> number of the grant,  :since -> Unix milliseconds of the grant,
//!         :session -> grace and lease of a session in milliseconds
//! string  the owner: a lock made by SET NX
//! ```
//!
//! Redisson's locks have the same layout without the reserved fields, which begin with a colon and which it ignores. A hash
//! with reserved fields alone is no lock. Source: `docs/locks.md`.

use std::borrow::Cow;

use super::hash::{Hash, HashView};
use super::string::StringView;
use super::{Collection, Value};
use crate::clock::Now;
use crate::collections::packed::Text;
use crate::collections::table::ValueRef;
use crate::error::CommandError;
use crate::resp::number::parse_i64;

/// Bytes of the longest owner.
pub const OWNER_MAX: usize = 256;
/// The fence of the grant.
pub const FENCE: &[u8] = b":fence";
/// When the lock was granted, Unix milliseconds.
pub const SINCE: &[u8] = b":since";
/// That the server renews the lease: how long it lasts after the connection has closed, and after the last sign of life, in
/// milliseconds.
pub const SESSION: &[u8] = b":session";
/// The owner that nobody is: nobody gets the lock until its time is over.
pub const KEEP: &[u8] = b":keep";

/// The longest lease and grace: a hundred years.
pub const LEASE_MS_MAX: i64 = 100 * 366 * 24 * 3_600_000;
/// Fields of a hash that is read as a lock. A larger one is no lock.
const FIELDS_MAX: usize = 64;

/// A held lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lock<'a> {
    /// The first of the owners: only a foreign lock has several.
    pub owner: Cow<'a, [u8]>,
    /// How often the owner holds it; 1 for a string.
    pub holds: i64,
    /// None: it was not granted here.
    pub fence: Option<u64>,
    /// Unix milliseconds; None: it was not granted here.
    pub since_ms: Option<i64>,
    /// Grace and lease of its session, in milliseconds.
    pub session: Option<(i64, i64)>,
    /// Whether it is a string.
    pub is_string: bool,
    /// Whether there are further owners.
    pub is_shared: bool,
}

impl Lock<'_> {
    /// The lock without its borrow.
    pub fn into_owned(self) -> Lock<'static> {
        Lock { owner: Cow::Owned(self.owner.into_owned()), ..self }
    }

    /// Whether `owner` holds it, in the grant with this fence if one is named.
    pub fn is_held_by(&self, owner: &[u8], fence: Option<u64>) -> bool {
        !self.is_shared
            && *self.owner == *owner
            && fence.is_none_or(|fence| self.fence == Some(fence))
    }
}

/// Whether this is a name that an owner may have: 1 to [`OWNER_MAX`] bytes that do not begin with a colon.
pub fn may_own(name: &[u8]) -> bool {
    (1..=OWNER_MAX).contains(&name.len()) && name[0] != b':'
}

/// Whether a member of a sorted set is a permit of a semaphore: `owner#fence#number`.
pub fn is_permit(member: &[u8]) -> bool {
    let mut parts = member.rsplitn(3, |byte| *byte == b'#');
    let mut is_number =
        || parts.next().is_some_and(|text| !text.is_empty() && text.iter().all(u8::is_ascii_digit));
    is_number() && is_number() && parts.next().is_some_and(may_own)
}

/// The fence of a value that a file or the primary brings, if it is a lock that was granted here. Costs little for others.
pub fn fence_of(value: ValueRef<'_, Value>, now: &Now) -> Option<u64> {
    let hash = Hash::view(value).filter(|hash| hash.kept_len() <= FIELDS_MAX)?;
    let found = hash.get(FENCE, now)?;
    let fence = parse_i64(found.value.as_ref())?;
    u64::try_from(fence).ok()
}

/// A key's value as a lock; None: nobody holds it. Errors: WRONGTYPE for other types, and for a hash with anything but
/// positive integers in its unreserved fields.
pub fn read<'a>(value: ValueRef<'a, Value>, now: &Now) -> Result<Option<Lock<'a>>, CommandError> {
    if let Some(string) = StringView::new(value) {
        if string.len() > OWNER_MAX {
            return Err(CommandError::WrongType);
        }
        let owner = string.whole();
        let lock = Lock {
            owner,
            holds: 1,
            fence: None,
            since_ms: None,
            session: None,
            is_string: true,
            is_shared: false,
        };
        return Ok(Some(lock));
    }
    let hash = Hash::view(value).ok_or(CommandError::WrongType)?;
    read_hash(hash, now)
}

fn read_hash<'a>(hash: HashView<'a>, now: &Now) -> Result<Option<Lock<'a>>, CommandError> {
    if hash.kept_len() > FIELDS_MAX {
        return Err(CommandError::WrongType);
    }
    let mut fields = Fields::default();
    match hash.packed_fields() {
        Some(packed) => packed.for_each(|(field, value)| {
            let owner = match field {
                Text::Bytes(bytes) => Cow::Borrowed(bytes),
                Text::Number(_) => Cow::Owned(field.as_ref().to_vec()),
            };
            fields.add(owner, value.as_ref());
        }),
        None => hash.for_each(now, |field, value| fields.add(Cow::Owned(field.to_vec()), value)),
    }
    fields.lock()
}

/// The fields of a hash that is read as a lock.
#[derive(Default)]
struct Fields<'a> {
    owner: Option<(Cow<'a, [u8]>, i64)>,
    has_others: bool,
    fence: Option<u64>,
    since_ms: Option<i64>,
    session: Option<(i64, i64)>,
    /// A field is not one of a lock.
    is_foreign: bool,
}

impl<'a> Fields<'a> {
    fn add(&mut self, field: Cow<'a, [u8]>, value: &[u8]) {
        let number = parse_i64(value);
        match &*field {
            FENCE => self.fence = number.and_then(|number| u64::try_from(number).ok()),
            SINCE => self.since_ms = number,
            SESSION => self.session = parse_session(value),
            name if name.starts_with(b":") && name != KEEP => {}
            _ => match number {
                Some(holds @ 1..) if self.owner.is_none() => self.owner = Some((field, holds)),
                Some(1..) => self.has_others = true,
                _ => self.is_foreign = true,
            },
        }
    }

    fn lock(self) -> Result<Option<Lock<'a>>, CommandError> {
        if self.is_foreign {
            return Err(CommandError::WrongType);
        }
        Ok(self.owner.map(|(owner, holds)| Lock {
            owner,
            holds,
            fence: self.fence,
            since_ms: self.since_ms,
            session: self.session,
            is_string: false,
            is_shared: self.has_others,
        }))
    }
}

/// Grace and lease of a session: two positive numbers of milliseconds.
fn parse_session(text: &[u8]) -> Option<(i64, i64)> {
    let at = text.iter().position(|&byte| byte == b' ')?;
    let number = |text: &[u8]| parse_i64(text).filter(|ms| (1..=LEASE_MS_MAX).contains(ms));
    Some((number(&text[..at])?, number(&text[at + 1..])?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, Expiry, ManualClock, UnixMillis};
    use crate::collections::hash::KeyHasher;
    use crate::types::hash::Limits;
    use crate::types::journal::Edit;

    fn now() -> Now {
        Clock::Manual(ManualClock::new(UnixMillis(1_700_000_000_000))).now()
    }

    fn hash(fields: &[(&str, &str)]) -> Hash {
        let limits = Limits { entries_max: 512, bytes_max: 64, hasher: KeyHasher::new([1, 2]) };
        let mut hash = Hash::default();
        for (field, value) in fields {
            let (field, value) = (field.as_bytes(), value.as_bytes());
            Edit::unnoted(&mut hash).set(field, value, Expiry::Clear, &limits, &now());
        }
        hash
    }

    fn shown(fields: &[(&str, &str)]) -> String {
        match read_hash(hash(fields).as_view(), &now()) {
            Err(_) => "no lock".into(),
            Ok(None) => "free".into(),
            Ok(Some(lock)) => format!(
                "{} {} {:?} {:?}{}",
                String::from_utf8_lossy(&lock.owner),
                lock.holds,
                lock.fence,
                lock.since_ms,
                if lock.is_shared { " shared" } else { "" },
            ),
        }
    }

    #[test]
    fn the_layout_is_redissons_with_reserved_fields() {
        assert_eq!(shown(&[("a", "1"), (":fence", "7"), (":since", "9")]), "a 1 Some(7) Some(9)");
        assert_eq!(shown(&[(":since", "9"), (":fence", "7"), ("a", "2")]), "a 2 Some(7) Some(9)");
        assert_eq!(shown(&[("uuid:1", "3")]), "uuid:1 3 None None");
        assert_eq!(shown(&[("a", "1"), ("b", "1")]), "a 1 None None shared");
        assert_eq!(shown(&[(":keep", "1"), (":since", "9")]), ":keep 1 None Some(9)");
        assert_eq!(shown(&[(":fence", "7"), (":other", "x")]), "free");
        assert_eq!(shown(&[("a", "x")]), "no lock");
        assert_eq!(shown(&[("a", "0")]), "no lock");
        assert_eq!(shown(&[("a", "1"), (":fence", "-7")]), "a 1 None None");
    }
}
