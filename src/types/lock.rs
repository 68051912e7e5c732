//! A lock as plain data, and reading it from a value.
//!
//! ```text
//! hash    owner -> holds,  :fence -> number of the grant,  :since -> Unix milliseconds of the grant,
//!         :session -> grace and lease of a session in milliseconds
//! hash    :r:<owner> -> fence and deadline in Unix milliseconds; with a session also grace and lease: one of the readers,
//!         :fence -> number of the latest grant,  :mode -> shared
//! string  the owner: a lock made by SET NX
//! ```
//!
//! Redisson's locks have the same layout without the reserved fields, which begin with a colon and
//! which it ignores. A hash with reserved fields alone is no lock. Source: `docs/locks.md`.

use std::borrow::Cow;

use super::hash::{Hash, HashView, Limits};
use super::sorted_set::{SortedSet, SortedSetView};
use super::string::StringView;
use super::{Collection, Value};
use crate::clock::{Now, UnixMillis};
use crate::collections::packed::Element;
use crate::collections::table::ValueRef;
use crate::error::CommandError;
use crate::resp::number::parse_i64;

/// Bytes of the longest owner.
pub const OWNER_MAX: usize = 256;
/// The fence of the grant.
pub const FENCE: &[u8] = b":fence";
/// When the lock was granted, Unix milliseconds.
pub const SINCE: &[u8] = b":since";
/// The session, in which the server renews the lease: the times that the lease lasts after the
/// connection has closed, and after the last sign of life, in milliseconds.
pub const SESSION: &[u8] = b":session";
/// The mode. With the value [`SHARED`], readers hold the lock.
pub const MODE: &[u8] = b":mode";
pub const SHARED: &[u8] = b"shared";
/// The beginning of a reader's field name; the owner follows.
const READER: &[u8] = b":r:";
/// An owner that nobody can be: nobody gets the lock until its time is over.
pub const KEEP: &[u8] = b":keep";
/// The token of a lock that readers hold.
const READERS_TOKEN: &[u8] = b":readers";

/// The longest lease and grace: a hundred years.
pub const LEASE_MS_MAX: i64 = 100 * 366 * 24 * 3_600_000;
/// Readers of a lock.
pub const READERS_MAX: usize = 1000;
/// Fields of a hash that is read as a lock, besides those of readers. A larger one is no lock.
const FIELDS_MAX: usize = 64;
/// The most permits of a semaphore. A larger sorted set does not count as one: a request visits
/// each permit.
pub const PERMITS_MAX: usize = 10_000;

/// A held lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lock<'a> {
    /// Of several readers, the asking one, or else the first; the fence and the session are those
    /// of that reader's grant. Of a foreign lock, the first owner; of a long string, its beginning.
    pub owner: Cow<'a, [u8]>,
    /// The number of times that the owner holds it; 1 for a string, and for a reader.
    pub holds: i64,
    /// None: the lock was not granted here.
    pub fence: Option<u64>,
    /// Unix milliseconds; None: the lock was not granted here, or is a reader's.
    pub since_ms: Option<i64>,
    /// Grace and lease of its session, in milliseconds.
    pub session: Option<(i64, i64)>,
    /// Whether it is a string.
    pub is_string: bool,
    /// Whether no owner that asks can be its holder: a foreign lock with further owners, or a
    /// string that is longer than an owner's name.
    pub is_anonymous: bool,
    /// The number of readers that hold it; 0: one owner has it alone.
    pub readers: usize,
}

/// The content of a reader's field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reader {
    pub fence: u64,
    pub until: UnixMillis,
    /// Grace and lease of its session, in milliseconds.
    pub session: Option<(i64, i64)>,
}

impl Reader {
    /// Parses `fence deadline [grace lease]`.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let mut parts = text.splitn(3, |&byte| byte == b' ');
        let mut number = || parts.next().and_then(parse_i64);
        let (fence, until) = (u64::try_from(number()?).ok()?, UnixMillis(number()?));
        let session = match parts.next() {
            Some(rest) => Some(parse_session(rest)?),
            None => None,
        };
        Some(Reader { fence, until, session })
    }

    /// The text that [`Self::parse`] reads.
    pub fn text(&self) -> String {
        let Reader { fence, until: UnixMillis(until_ms), session } = self;
        match session {
            Some((grace_ms, lease_ms)) => format!("{fence} {until_ms} {grace_ms} {lease_ms}"),
            None => format!("{fence} {until_ms}"),
        }
    }
}

/// The name of a reader's field.
pub fn reader_field(owner: &[u8]) -> Vec<u8> {
    [READER, owner].concat()
}

/// The owner whose reader's field has this name.
pub fn reader_in(field: &[u8]) -> Option<&[u8]> {
    field.strip_prefix(READER).filter(|owner| may_own(owner))
}

impl<'a> Lock<'a> {
    /// A lock that was granted here to one owner alone, once. `since_ms`: Unix time.
    #[inline]
    pub fn granted(owner: &'a [u8], fence: u64, since_ms: i64) -> Self {
        Lock {
            owner: owner.into(),
            holds: 1,
            fence: Some(fence),
            since_ms: Some(since_ms),
            session: None,
            is_string: false,
            is_anonymous: false,
            readers: 0,
        }
    }

    /// The lock without its borrow.
    pub fn into_owned(self) -> Lock<'static> {
        Lock { owner: Cow::Owned(self.owner.into_owned()), ..self }
    }

    /// Whether `owner` holds it, in the grant with this fence if one is named.
    pub fn is_held_by(&self, owner: &[u8], fence: Option<u64>) -> bool {
        !self.is_anonymous
            && *self.owner == *owner
            && fence.is_none_or(|fence| self.fence == Some(fence))
    }
}

/// Whether this is a name that an owner may have: 1 to [`OWNER_MAX`] bytes that do not begin with a
/// colon.
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

/// The score of the member that keeps a semaphore's limit: later than all deadlines of permits.
pub const LIMIT_SCORE: f64 = (1_i64 << 53) as f64;
/// The beginning of that member. No owner of permits has such a name.
const LIMIT_HEAD: &[u8] = b":limit#";

/// The member that keeps a semaphore's limit.
pub fn limit_member(limit: usize) -> Vec<u8> {
    [LIMIT_HEAD, limit.to_string().as_bytes()].concat()
}

/// The limit that a member of a semaphore keeps. None: it is a permit, or foreign.
fn limit_of(score: f64, member: &[u8]) -> Option<usize> {
    let text = member.strip_prefix(LIMIT_HEAD).filter(|_| score == LIMIT_SCORE)?;
    let limit = parse_i64(text).and_then(|limit| usize::try_from(limit).ok());
    limit.filter(|limit| (1..=PERMITS_MAX).contains(limit))
}

/// The limit that a semaphore keeps beside its permits.
pub fn stored_limit(set: &SortedSetView<'_>) -> Option<usize> {
    let (score, member) = set.get(set.len().checked_sub(1)?)?;
    limit_of(score, member.as_ref())
}

/// Whether a member of a sorted set belongs to a semaphore: a permit, or its limit.
pub fn is_of_semaphore(score: f64, member: &[u8]) -> bool {
    score < LIMIT_SCORE && is_permit(member) || limit_of(score, member).is_some()
}

/// The owner that a permit names: before its last two `#`. Another member: all of it.
pub fn owner_of_permit(permit: &[u8]) -> &[u8] {
    permit.rsplitn(3, |byte| *byte == b'#').nth(2).unwrap_or(permit)
}

/// The fence that a permit names; 0: none.
pub fn fence_of_permit(permit: &[u8]) -> u64 {
    let fence = permit.rsplitn(3, |byte| *byte == b'#').nth(1);
    fence.and_then(parse_i64).map_or(0, |fence| u64::try_from(fence).unwrap_or(0))
}

/// The newest fence of a semaphore's permits; 0 for another value, also for a semaphore with more
/// permits than are granted here.
pub fn newest_fence(value: ValueRef<'_, Value>) -> u64 {
    let set = SortedSet::view(value).filter(|set| set.len() <= PERMITS_MAX + 1);
    let permits = set.into_iter().flat_map(|set| set.iter());
    let fences = permits.map(|(_, permit)| fence_of_permit(permit.as_ref()));
    fences.max().unwrap_or(0)
}

/// Whether a key's value is a semaphore, by the first of its members.
pub fn is_semaphore(value: ValueRef<'_, Value>) -> bool {
    let first = SortedSet::view(value).and_then(|set| set.first());
    first.is_some_and(|(score, member)| is_of_semaphore(score, member.as_ref()))
}

/// The fence of a value from a file or the primary, if it is a lock that was granted here. Costs
/// little for other values.
pub fn fence_of(value: ValueRef<'_, Value>, now: &Now) -> Option<u64> {
    let hash = Hash::view(value).filter(|hash| hash.kept_len() <= READERS_MAX + FIELDS_MAX)?;
    let found = hash.get(FENCE, now)?;
    let fence = parse_i64(found.value.as_ref())?;
    u64::try_from(fence).ok()
}

/// What a classical client reads, which expects the holder's token in a string: the owner of a lock
/// that was granted here, or [`READERS_TOKEN`]. No owner of these commands begins with a colon, so
/// neither readers nor a withheld lock are taken for the asking client's own. None: no such lock.
pub fn token(value: ValueRef<'_, Value>, now: &Now) -> Option<Vec<u8>> {
    fence_of(value, now)?;
    let lock = read(value, now).ok()??;
    Some(if lock.readers > 0 { READERS_TOKEN.to_vec() } else { lock.owner.into_owned() })
}

/// A key's value as a lock; None: nobody holds it. Errors: WRONGTYPE for other types, and for a
/// hash with anything but positive integers in its unreserved fields.
pub fn read<'a>(value: ValueRef<'a, Value>, now: &Now) -> Result<Option<Lock<'a>>, CommandError> {
    read_for(value, now, b"")
}

/// As [`read`], for an owner that asks: if it is one of several readers, it is the one shown.
pub fn read_for<'a>(
    value: ValueRef<'a, Value>,
    now: &Now,
    asking: &[u8],
) -> Result<Option<Lock<'a>>, CommandError> {
    if let Some(string) = StringView::new(value) {
        // Some libraries' tokens have more than a name. They are held, by nobody who can ask.
        let shown_len = string.len().min(OWNER_MAX);
        let owner = match string.as_slice() {
            Some(bytes) => Cow::Borrowed(&bytes[..shown_len]),
            None => string.pieces(0..shown_len).flatten().copied().collect(),
        };
        let lock = Lock {
            owner,
            holds: 1,
            fence: None,
            since_ms: None,
            session: None,
            is_string: true,
            is_anonymous: string.len() > OWNER_MAX,
            readers: 0,
        };
        return Ok(Some(lock));
    }
    let hash = Hash::view(value).ok_or(CommandError::WrongType)?;
    read_hash(hash, now, asking)
}

/// The bytes before the fence and before the time of a grant in a packed hash: the field's name,
/// and the head of a long integer.
const FENCE_HEAD: &[u8; 8] = b"\x86:fence\xf4";
const SINCE_HEAD: &[u8; 8] = b"\x86:since\xf4";

/// Whether the usual layout can have this owner: a name that is short, and that a listpack would
/// not store as an integer.
fn is_usual(owner: &[u8]) -> bool {
    may_own(owner) && owner.len() < 64 && !matches!(owner[0], b'-' | b'0'..=b'9')
}

/// A new lock of an owner as a packed hash, in a buffer that need not be empty: the same bytes as
/// if its fields were set one after the other, at less cost. None: the lock needs another layout.
pub fn usual(lock: &Lock<'_>, limits: &Limits, buffer: impl FnOnce() -> Vec<u8>) -> Option<Hash> {
    const LONG: std::ops::Range<i64> = (1 << 31)..i64::MAX;
    let (fence, since_ms) = (lock.fence? as i64, lock.since_ms?);
    let owner = &*lock.owner;
    let fits = is_usual(owner)
        && lock.session.is_none()
        && (1..=127).contains(&lock.holds)
        && LONG.contains(&fence)
        && LONG.contains(&since_ms)
        && limits.bytes_max >= 64
        && limits.entries_max >= 3;
    if !fits {
        return None;
    }
    let mut bytes = buffer();
    bytes.clear();
    bytes.reserve(owner.len() + 64);
    bytes.push(0x80 | owner.len() as u8);
    bytes.extend_from_slice(owner);
    let mut rest = [0; 33];
    rest[0] = lock.holds as u8;
    rest[1..9].copy_from_slice(FENCE_HEAD);
    rest[9..17].copy_from_slice(&fence.to_le_bytes());
    rest[17..25].copy_from_slice(SINCE_HEAD);
    rest[25..].copy_from_slice(&since_ms.to_le_bytes());
    bytes.extend_from_slice(&rest);
    Some(Hash::Packed(bytes))
}

/// A key's value if it is a lock that `owner` has in the layout of [`usual`]: the same lock as
/// [`read_for`] finds, at less cost. None: the value may be a lock of another layout, or of another
/// owner.
pub fn read_usual<'q>(value: ValueRef<'_, Value>, owner: &'q [u8]) -> Option<Lock<'q>> {
    usual_in(Hash::view(value)?.packed_bytes()?, owner)
}

fn usual_in<'q>(packed: &[u8], owner: &'q [u8]) -> Option<Lock<'q>> {
    let (head, rest) = packed.split_first()?;
    if !is_usual(owner) || usize::from(*head) != 0x80 | owner.len() {
        return None;
    }
    let rest: &[u8; 33] = rest.strip_prefix(owner)?.try_into().ok()?;
    let (fence, since) = (rest[9..17].first_chunk()?, rest[25..].first_chunk()?);
    if rest[1..9] != *FENCE_HEAD || rest[17..25] != *SINCE_HEAD || !(1..=127).contains(&rest[0]) {
        return None;
    }
    let fence = i64::from_le_bytes(*fence).try_into().ok()?;
    let granted = Lock::granted(owner, fence, i64::from_le_bytes(*since));
    Some(Lock { holds: rest[0].into(), ..granted })
}

/// The readers of a key's value, with their owners; none if it is no lock that readers hold.
pub fn readers(value: ValueRef<'_, Value>, now: &Now) -> Vec<(Box<[u8]>, Reader)> {
    let mut readers = Vec::new();
    if let Some(hash) = Hash::view(value)
        && read_hash(hash, now, b"").is_ok_and(|lock| lock.is_some_and(|lock| lock.readers > 0))
    {
        hash.for_each(now, |field, value| {
            readers.extend(reader_in(field).map(Box::from).zip(Reader::parse(value)));
        });
    }
    readers
}

fn read_hash<'a>(
    hash: HashView<'a>,
    now: &Now,
    asking: &[u8],
) -> Result<Option<Lock<'a>>, CommandError> {
    let len = hash.kept_len();
    if len > READERS_MAX + FIELDS_MAX {
        return Err(CommandError::WrongType);
    }
    let mut fields = Fields { asking, ..Fields::default() };
    match hash.packed_fields() {
        Some(packed) => packed.for_each(|(field, value)| match field {
            Element::Bytes(bytes) => fields.add(Name::Lasting(bytes), value),
            Element::Integer(_) => fields.add(Name::Passing(field.text().as_ref()), value),
        }),
        None => hash.for_each(now, |field, value| {
            fields.add(Name::Passing(field), Element::Bytes(value));
        }),
    }
    fields.is_foreign |= len - fields.readers > FIELDS_MAX;
    fields.lock()
}

/// A field's name, which lasts as long as the hash, or only now.
#[derive(Clone, Copy)]
enum Name<'a, 'b> {
    Lasting(&'a [u8]),
    Passing(&'b [u8]),
}

impl<'a> Name<'a, '_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Name::Lasting(bytes) => bytes,
            Name::Passing(bytes) => bytes,
        }
    }

    /// The name from byte `from` on.
    fn rest(self, from: usize) -> Cow<'a, [u8]> {
        match self {
            Name::Lasting(bytes) => Cow::Borrowed(&bytes[from..]),
            Name::Passing(bytes) => Cow::Owned(bytes[from..].to_vec()),
        }
    }
}

/// The fields of a hash that is read as a lock.
#[derive(Default)]
struct Fields<'a, 'q> {
    /// The owner that asks.
    asking: &'q [u8],
    owner: Option<(Cow<'a, [u8]>, i64)>,
    has_others: bool,
    fence: Option<u64>,
    since_ms: Option<i64>,
    session: Option<(i64, i64)>,
    /// The first of the readers, or the one that asks.
    reader: Option<(Cow<'a, [u8]>, Reader)>,
    readers: usize,
    /// A field does not belong to a lock.
    is_foreign: bool,
}

impl<'a> Fields<'a, '_> {
    fn add(&mut self, field: Name<'a, '_>, value: Element<'_>) {
        let integer = || match value {
            Element::Integer(number) => Some(number),
            Element::Bytes(text) => parse_i64(text),
        };
        match field.bytes() {
            FENCE => self.fence = integer().and_then(|number| u64::try_from(number).ok()),
            SINCE => self.since_ms = integer(),
            SESSION => self.session = parse_session(value.text().as_ref()),
            name if name.starts_with(b":") && name != KEEP => {
                if let Some(owner) = reader_in(name)
                    && let Some(reader) = Reader::parse(value.text().as_ref())
                {
                    self.readers += 1;
                    if self.reader.is_none() || *owner == *self.asking {
                        self.reader = Some((field.rest(READER.len()), reader));
                    }
                }
            }
            _ => match integer() {
                Some(holds @ 1..) if self.owner.is_none() => {
                    self.owner = Some((field.rest(0), holds));
                }
                Some(1..) => self.has_others = true,
                _ => self.is_foreign = true,
            },
        }
    }

    fn lock(self) -> Result<Option<Lock<'a>>, CommandError> {
        if self.is_foreign {
            return Err(CommandError::WrongType);
        }
        // An owner in a field without a colon excludes all readers.
        if let Some((owner, holds)) = self.owner {
            let Fields { fence, since_ms, session, has_others: is_anonymous, .. } = self;
            let (is_string, readers) = (false, 0);
            let lock =
                Lock { owner, holds, fence, since_ms, session, is_string, is_anonymous, readers };
            return Ok(Some(lock));
        }
        Ok(self.reader.map(|(owner, Reader { fence, session, .. })| Lock {
            owner,
            holds: 1,
            fence: Some(fence),
            since_ms: None,
            session,
            is_string: false,
            is_anonymous: false,
            readers: self.readers,
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
    use crate::types::journal::Edit;
    use crate::types::sorted_set;

    fn now() -> Now {
        Clock::Manual(ManualClock::new(UnixMillis(1_700_000_000_000))).now()
    }

    #[test]
    fn a_semaphore_keeps_its_limit_beside_its_permits() {
        let mut set = SortedSet::new();
        let limit = |set: &SortedSet| stored_limit(&set.as_view());
        let add = |set: &mut SortedSet, member: &[u8], score| {
            let limits = sorted_set::Limits { entries: 128, value: 64 };
            Edit::unnoted(set).update(member, limits, |_| Some(score));
        };
        assert_eq!(limit(&set), None);
        add(&mut set, b"me#1#1", 5.0);
        assert_eq!(limit(&set), None);
        add(&mut set, &limit_member(7), LIMIT_SCORE);
        assert_eq!(limit(&set), Some(7));
        assert!(is_of_semaphore(LIMIT_SCORE, &limit_member(7)) && !is_permit(&limit_member(7)));
        assert!(!is_of_semaphore(5.0, &limit_member(7)));
        for damaged in [":limit#0", ":limit#10001", ":limit#-1", ":limit#", ":limit#x", "limit#1"] {
            let mut set = SortedSet::new();
            add(&mut set, damaged.as_bytes(), LIMIT_SCORE);
            assert_eq!(limit(&set), None, "{damaged}");
            assert!(!is_of_semaphore(LIMIT_SCORE, damaged.as_bytes()), "{damaged}");
        }
    }

    #[test]
    fn a_permit_names_its_owner_and_fence() {
        let names = |permit| (owner_of_permit(permit), fence_of_permit(permit));
        assert_eq!(names(b"alice#12#3"), (&b"alice"[..], 12));
        assert_eq!(names(b"a#b#12#3"), (&b"a#b"[..], 12));
        assert_eq!(names(b"foreign"), (&b"foreign"[..], 0));
    }

    fn limits() -> Limits {
        Limits { entries_max: 512, bytes_max: 64, hasher: KeyHasher::new([1, 2]) }
    }

    fn hash(fields: &[(&str, &str)]) -> Hash {
        let limits = limits();
        let mut hash = Hash::default();
        for (field, value) in fields {
            let (field, value) = (field.as_bytes(), value.as_bytes());
            Edit::unnoted(&mut hash).set(field, value, Expiry::Clear, &limits, &now());
        }
        hash
    }

    fn shown(fields: &[(&str, &str)]) -> String {
        shown_to(b"", fields)
    }

    fn shown_to(asking: &[u8], fields: &[(&str, &str)]) -> String {
        match read_hash(hash(fields).as_view(), &now(), asking) {
            Err(_) => "no lock".into(),
            Ok(None) => "free".into(),
            Ok(Some(lock)) => format!(
                "{} {} {:?} {:?}{}{}",
                String::from_utf8_lossy(&lock.owner),
                lock.holds,
                lock.fence,
                lock.since_ms,
                if lock.is_anonymous { " shared" } else { "" },
                if lock.readers > 0 { format!(" {} readers", lock.readers) } else { "".into() },
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

    #[test]
    fn the_usual_layout_is_read_as_any_other() {
        let long = "w".repeat(64);
        let (fence, since) = ("3765643753029633", "1700000000000");
        let full = |owner: &str, holds: &str| {
            hash(&[(owner, holds), (":fence", fence), (":since", since)])
        };
        let alike = [(full("a", "1"), "a"), (full("b-9", "127"), "b-9")];
        let others = [
            (full("a", "1"), "b"),
            (full("ab", "1"), "a"),
            (full("7", "1"), "7"),
            (full("a", "128"), "a"),
            (full("a", "0"), "a"),
            (full(":keep", "1"), ":keep"),
            (full(&long, "1"), &*long),
            (hash(&[("a", "1"), (":fence", "-3765643753029633"), (":since", since)]), "a"),
            (hash(&[("a", "1"), (":fence", "7"), (":since", since)]), "a"),
            (hash(&[("a", "1"), (":since", since), (":fence", fence)]), "a"),
            (hash(&[("a", "1"), (":fence", fence), (":since", since), ("b", "1")]), "a"),
            (hash(&[("a", "1"), (":fence", fence)]), "a"),
        ];
        for (hash, owner) in &alike {
            let packed = hash.as_view().packed_bytes().expect("short");
            let found = usual_in(packed, owner.as_bytes());
            assert!(found.is_some(), "{owner}");
            assert_eq!(found, read_hash(hash.as_view(), &now(), b"").expect("a lock"), "{owner}");
            let made = usual(&found.expect("a lock"), &limits(), || vec![7]).expect("short");
            assert_eq!(made.as_view().packed_bytes(), Some(packed));
        }
        let lock = usual_in(alike[0].0.as_view().packed_bytes().expect("short"), b"a");
        let lock = lock.expect("a lock");
        let changed = [
            Lock { owner: b"7"[..].into(), ..lock.clone() },
            Lock { owner: KEEP.into(), ..lock.clone() },
            Lock { owner: long.as_bytes().into(), ..lock.clone() },
            Lock { holds: 128, ..lock.clone() },
            Lock { fence: Some(7), ..lock.clone() },
            Lock { fence: Some(u64::MAX), ..lock.clone() },
            Lock { since_ms: None, ..lock.clone() },
            Lock { session: Some((5, 6)), ..lock },
        ];
        for lock in changed {
            assert!(usual(&lock, &limits(), Vec::new).is_none(), "{lock:?}");
        }
        for (hash, owner) in &others {
            let packed = hash.as_view().packed_bytes();
            assert_eq!(packed.and_then(|it| usual_in(it, owner.as_bytes())), None, "{owner}");
        }
    }

    #[test]
    fn readers_have_a_field_each() {
        let two = [(":r:a", "7 99"), (":fence", "8"), (":mode", "shared"), (":r:b", "8 90 5 6")];
        assert_eq!(shown(&two), "a 1 Some(7) None 2 readers");
        assert_eq!(shown_to(b"b", &two), "b 1 Some(8) None 2 readers");
        assert_eq!(shown_to(b"c", &two), "a 1 Some(7) None 2 readers");
        // Invalid readers are ignored; an exclusive owner excludes readers; a foreign field makes
        // it no lock.
        assert_eq!(
            shown(&[(":r:a", "7"), (":r:b", "x 9"), (":r:", "7 9"), (":r::c", "7 9")]),
            "free"
        );
        assert_eq!(shown(&[(":r:a", "7 99"), ("b", "1")]), "b 1 None None");
        assert_eq!(shown(&[(":r:a", "7 99"), ("b", "x")]), "no lock");
        let reader = Reader { fence: 8, until: UnixMillis(90), session: Some((5, 6)) };
        assert_eq!(Reader::parse(reader.text().as_bytes()), Some(reader));
        let reader = Reader { session: None, ..reader };
        assert_eq!(Reader::parse(reader.text().as_bytes()), Some(reader));
        assert_eq!(Reader::parse(b"8 90 5"), None);
        let names: Vec<String> = (0..65).map(|number| format!("o{number}")).collect();
        let many: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "1")).collect();
        assert_eq!(shown(&many[1..]), "o1 1 None None shared");
        assert_eq!(shown(&many), "no lock");
    }
}
