//! Encoding values, as the oldest type that holds them, so that old servers can read them.

use std::error::Error;
use std::fmt;

use crate::clock::{Deadline, Now};
use crate::collections::listpack;
use crate::collections::packed::Element;
use crate::collections::run::RunView;
use crate::collections::table::ValueRef;
use crate::resp::number::{f64_as_i64, format_double_17g};
use crate::types::hash::{Hash, HashView};
use crate::types::list::{List, ListView};
use crate::types::set::{Set, SetView};
use crate::types::sorted_set::{SortedSet, SortedSetView};
use crate::types::string::StringView;
use crate::types::{Collection, Value};

use super::decode::DEADLINE_MAX;
use super::encoder::{Encoder, Newer, Sink};
use super::input::{NODE_PACKED, NODE_PLAIN};
use super::{Version, streams, value_type};

/// The longest run of a list written as a listpack: Redis has none longer. Unit: bytes.
const NODE_BYTES_MAX: usize = if cfg!(test) { 1 << 20 } else { 1 << 30 };
/// The most bytes that an element takes besides its own: its header and its length at the end. A
/// score has 24 digits.
const ELEMENT_HEAD_MAX: usize = 10;
const SCORE_BYTES_MAX: usize = 24;

/// The value cannot be written in the requested version: the lowest version that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeedsVersion(pub Version);

impl fmt::Display for NeedsVersion {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "the value needs version {}", self.0)
    }
}

impl Error for NeedsVersion {}

/// A view of a value by its type.
pub(in crate::persist) enum View<'a> {
    String(StringView<'a>),
    List(ListView<'a>),
    Hash(HashView<'a>),
    Set(SetView<'a>),
    SortedSet(SortedSetView<'a>),
    Stream(&'a crate::types::stream::Stream),
}

impl<'a> View<'a> {
    pub fn new(value: ValueRef<'a, Value>) -> Self {
        // Each type recognizes its own values; the rest are strings.
        if let ValueRef::Object(Value::Stream(stream)) = value {
            return View::Stream(stream);
        }
        if let Some(list) = List::view(value) {
            return View::List(list);
        }
        if let Some(hash) = Hash::view(value) {
            return View::Hash(hash);
        }
        if let Some(set) = Set::view(value) {
            return View::Set(set);
        }
        if let Some(set) = SortedSet::view(value) {
            return View::SortedSet(set);
        }
        View::String(StringView::new(value).expect("a value without another view is a string"))
    }

    fn value_type(&self, version: Version) -> Result<u8, NeedsVersion> {
        Ok(match self {
            View::String(_) => value_type::STRING,
            View::List(_) => value_type::LIST_QUICKLIST_2,
            View::Hash(hash) if hash.is_volatile() => {
                if version < Version::REDIS_12 {
                    return Err(NeedsVersion(Version::REDIS_12));
                }
                if version.is_valkey() { value_type::HASH_22 } else { value_type::HASH_DEADLINES }
            }
            View::Hash(hash) if hash.is_listpack() && is_short_hash(hash) => {
                value_type::HASH_LISTPACK
            }
            View::Hash(_) => value_type::HASH,
            View::Set(SetView::Ints(_)) => value_type::SET_INTSET,
            View::Set(_) => value_type::SET,
            View::SortedSet(set) if set.encoding() == "listpack" && is_short_sorted_set(set) => {
                value_type::SORTED_SET_LISTPACK
            }
            View::SortedSet(_) => value_type::SORTED_SET_2,
            View::Stream(stream)
                if version.is_redis_since(Version::REDIS_13) && stream.producers.is_some() =>
            {
                value_type::STREAM_4
            }
            View::Stream(stream)
                if version >= Version::REDIS_11 && streams::needs_active_times(stream) =>
            {
                value_type::STREAM_3
            }
            View::Stream(_) => value_type::STREAM_2,
        })
    }
}

/// Whether a hash fits into one listpack: with large limits it may be too long. O(1) unless it is
/// large.
fn is_short_hash(hash: &HashView<'_>) -> bool {
    let HashView::Table(_) = hash else { return true };
    let mut bytes = 0;
    hash.for_each_kept(|field, value| bytes += field.len() + value.len() + 2 * ELEMENT_HEAD_MAX);
    bytes <= NODE_BYTES_MAX
}

/// As [`is_short_hash`], for a sorted set.
fn is_short_sorted_set(set: &SortedSetView<'_>) -> bool {
    let SortedSetView::Large(_) = set else { return true };
    let mut bytes = 0;
    set.each(0..set.len(), false, |_, member| {
        bytes += member.len() + SCORE_BYTES_MAX + 2 * ELEMENT_HEAD_MAX;
    });
    bytes <= NODE_BYTES_MAX
}

impl Newer {
    /// The lowest version that loses nothing of a value, but for the times when a stream's
    /// consumers were last active, and for what these forms leave out.
    pub fn version_for(self, value: ValueRef<'_, Value>) -> Version {
        match View::new(value) {
            View::Hash(hash) if hash.is_volatile() => self.volatile,
            View::Stream(stream) if self.producers && stream.producers.is_some() => {
                Version::REDIS_13
            }
            _ => Version::REDIS_10,
        }
    }

    /// The same, with these times. Cost: for a stream O(number of consumers).
    pub fn version_with_times(self, value: ValueRef<'_, Value>) -> Version {
        let version = self.version_for(value);
        match View::new(value) {
            View::Stream(stream) if streams::needs_active_times(stream) => {
                version.max(Version::REDIS_11)
            }
            _ => version,
        }
    }
}

impl Encoder {
    /// The type under which [`Self::write_value`] writes a value in this version. Version 10 has no
    /// times when a stream's consumers were last active: they are lost. A hash with deadlines of
    /// fields is an error below 12.
    pub fn value_type(value: ValueRef<'_, Value>, version: Version) -> Result<u8, NeedsVersion> {
        View::new(value).value_type(version)
    }

    /// Writes a value without its type. Expired fields are written like the others. `now` converts
    /// deadlines of fields to wall-clock times.
    pub fn write_value(
        &mut self,
        value: ValueRef<'_, Value>,
        value_type: u8,
        now: &Now,
        out: &mut impl Sink,
    ) {
        match View::new(value) {
            View::String(StringView::Whole(text)) => self.string(text, out),
            View::String(StringView::Pieces(text)) => self.long_string(text, out),
            View::List(list) => self.list(list, out),
            View::Hash(hash) => self.hash(hash, value_type, now, out),
            View::Set(set) => self.set(set, out),
            View::SortedSet(set) => self.sorted_set(set, value_type, out),
            View::Stream(stream) => streams::write(self, stream, value_type, now, out),
        }
    }

    // ---- collections ----------------------------------------------------------------------------

    fn list(&mut self, list: ListView<'_>, out: &mut impl Sink) {
        let is_too_long = |run: &RunView<'_>| run.entries.len() > NODE_BYTES_MAX;
        let nodes = list.runs().map(|run| if is_too_long(&run) { run.count } else { 1 });
        self.length(nodes.sum::<usize>() as u64, out);
        for run in list.runs() {
            if is_too_long(&run) {
                let mut rest = run.entries;
                while let Some((element, len)) = listpack::first(rest) {
                    rest = &rest[len..];
                    self.length(NODE_PLAIN, out);
                    self.string(element.text().as_ref(), out);
                }
                continue;
            }
            self.length(NODE_PACKED, out);
            self.listpack(out, |listpack| listpack.push_entries(run.entries, run.count));
        }
    }

    fn hash(&mut self, hash: HashView<'_>, value_type: u8, now: &Now, out: &mut impl Sink) {
        if value_type == value_type::HASH_LISTPACK {
            return self.listpack(out, |listpack| {
                hash.for_each_kept(|field, value| {
                    listpack.push_text(field);
                    listpack.push_text(value);
                });
            });
        }
        if value_type == value_type::HASH_DEADLINES {
            return self.hash_of_redis(hash, now, out);
        }
        self.length(hash.kept_len() as u64, out);
        hash.for_each_saved(|field, value, deadline| {
            self.string(field, out);
            self.string(value, out);
            if value_type == value_type::HASH_22 {
                // -1 means no deadline; no time is negative.
                let ms =
                    deadline.map_or(-1, |deadline| deadline.unix(now.shown_offset_ms()).0.max(0));
                out.put(&ms.to_le_bytes());
            }
        });
    }

    /// The earliest deadline, and those of the fields counted from it: 1 is the earliest one, 0
    /// none.
    fn hash_of_redis(&mut self, hash: HashView<'_>, now: &Now, out: &mut impl Sink) {
        let unix_ms = |deadline: Deadline| {
            (deadline.unix(now.shown_offset_ms()).0.max(0) as u64).min(DEADLINE_MAX)
        };
        let mut earliest = DEADLINE_MAX;
        hash.for_each_saved(|_, _, deadline| {
            earliest = deadline.map_or(earliest, |deadline| earliest.min(unix_ms(deadline)));
        });
        out.put(&earliest.to_le_bytes());
        self.length(hash.kept_len() as u64, out);
        hash.for_each_saved(|field, value, deadline| {
            self.length(deadline.map_or(0, |deadline| unix_ms(deadline) - earliest + 1), out);
            self.string(field, out);
            self.string(value, out);
        });
    }

    fn set(&mut self, set: SetView<'_>, out: &mut impl Sink) {
        if let SetView::Ints(set) = set {
            let mut bytes = Vec::with_capacity(8 + set.integers().len());
            bytes.extend_from_slice(&(set.width() as u32).to_le_bytes());
            bytes.extend_from_slice(&(set.len() as u32).to_le_bytes());
            bytes.extend_from_slice(set.integers());
            return self.string(&bytes, out);
        }
        self.length(set.len() as u64, out);
        set.for_each(|member| self.string(member.text().as_ref(), out));
    }

    fn sorted_set(&mut self, set: SortedSetView<'_>, value_type: u8, out: &mut impl Sink) {
        let len = set.len();
        if value_type == value_type::SORTED_SET_LISTPACK {
            return self.listpack(out, |listpack| {
                set.each(0..len, false, |score, member| {
                    listpack.push_text(member);
                    match f64_as_i64(score) {
                        Some(score) => listpack.push_integer(score),
                        None => listpack.push(Element::Bytes(&format_double_17g(score))),
                    }
                });
            });
        }
        self.length(len as u64, out);
        // In descending order, as in Redis.
        set.each(0..len, true, |score, member| {
            self.string(member, out);
            out.put(&score.to_le_bytes());
        });
    }
}
