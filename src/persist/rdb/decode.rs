//! Decoding values to the form in which the keyspace stores them.
//!
//! Everything is checked, as in Redis with `sanitize-dump-payload yes`: a value accepted here is
//! one that commands could have made.

use crate::clock::{Deadline, Now, UnixMillis};
use crate::collections::packed::Text as ElementText;
use crate::collections::packed_table::Entry;
use crate::collections::quicklist::Quicklist;
use crate::collections::run::{End, Run};
use crate::collections::score_tree::Descending;
use crate::collections::table::{NewValue, Owned};
use crate::resp::number::{parse_f64, parse_i64};
use crate::types::hash::Hash;
use crate::types::journal::Edit;
use crate::types::list::List;
use crate::types::set::Set;
use crate::types::sorted_set::SortedSet;
use crate::types::{Collection, Stored, Value, hash, list, set, sorted_set};

use super::error::{DecodeError, Fault, ModuleId};
use super::input::{self, Input};
use super::packed::{self, Packed};
use super::reader::{Reader, Text};
use super::{Version, streams, value_type};

/// The limits of encodings, and the hashing of fields and members.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub list: list::Limits,
    pub hash: hash::Limits,
    pub set: set::Limits,
    pub sorted_set: sorted_set::Limits,
}

/// Decodes values of a file or payload.
#[derive(Clone, Copy, Debug)]
pub struct Decoder<'a> {
    pub limits: &'a Limits,
    /// Converts deadlines of fields.
    pub now: Now,
    pub version: Version,
}

type Decoded<T> = Result<T, DecodeError>;

const COUNT: &str = "a count";
const FIELD: &str = "a field";
const FIELD_VALUE: &str = "a field's value";
const MEMBER: &str = "a member";
const ELEMENT: &str = "an element";
const DEADLINE: &str = "a field's deadline";
const MEMBER_TWICE: &str = "a sorted set that has a member twice";
const FIELD_TWICE: &str = "a hash that has a field twice";

/// The latest deadline of a field in Redis's formats, in Unix milliseconds: it stores 48 bits.
pub(super) const DEADLINE_MAX: u64 = (1 << 48) - 2;

impl Decoder<'_> {
    /// Decodes all of `bytes`, which begin at `offset` of the file or payload.
    pub fn value(&self, value_type: u8, bytes: &[u8], offset: u64) -> Decoded<Stored> {
        let mut reader = Reader::new(bytes, offset);
        let stored = match value_type {
            value_type::STRING => Stored::string(reader.string("a string")?.into_vec()),
            _ => self.collection(value_type, &mut reader)?,
        };
        check_end(&reader)?;
        Ok(stored)
    }

    /// As [`Self::value`], but returns an entry for the keyspace's table.
    pub fn entry(
        &self,
        key: &[u8],
        value_type: u8,
        bytes: &[u8],
        offset: u64,
        deadline: Option<Deadline>,
        access: u32,
    ) -> Decoded<Owned<Value>> {
        if value_type == value_type::STRING {
            // The most frequent type: decoded without an intermediate copy.
            let mut reader = Reader::new(bytes, offset);
            let text = reader.string("a string")?;
            check_end(&reader)?;
            return Ok(Owned::make(key, Value::new_string(&text), deadline, access));
        }
        Ok(match self.value(value_type, bytes, offset)? {
            Stored::Inline { kind, bytes } => {
                Owned::make(key, NewValue::Bytes { bytes: &bytes, kind }, deadline, access)
            }
            Stored::Boxed(value) => {
                Owned::make(key, NewValue::Object(Box::new(value)), deadline, access)
            }
        })
    }

    fn collection(&self, value_type: u8, reader: &mut Reader<'_>) -> Decoded<Stored> {
        if !input::is_value_type(value_type, self.version) {
            return Err(reader.error(Fault::UnknownType(value_type)));
        }
        let is_valkey = self.version.is_valkey();
        match value_type {
            value_type::LIST => self.list(reader),
            value_type::SET => self.set(reader),
            value_type::SORTED_SET => self.sorted_set(reader, |reader| reader.text_score()),
            value_type::SORTED_SET_2 => self.sorted_set(reader, |reader| reader.score()),
            value_type::HASH => self.hash(reader),
            value_type::MODULE | value_type::MODULE_2 => {
                let id = reader.length("a module's name")?;
                Err(reader.error(Fault::Module(ModuleId(id))))
            }
            value_type::HASH_ZIPMAP => {
                let text = reader.string("a zipmap")?;
                let packed = Packed::of_zipmap(&text);
                self.packed_hash(checked(packed, reader, "a zipmap that is damaged")?, reader)
            }
            value_type::HASH_ZIPLIST => {
                let text = reader.string("a ziplist")?;
                self.packed_hash(ziplist(&text, reader)?, reader)
            }
            value_type::HASH_LISTPACK => {
                let text = reader.string("a listpack")?;
                self.packed_hash(reader.listpack(&text)?, reader)
            }
            value_type::LIST_ZIPLIST => self.list_of_ziplist(reader),
            value_type::LIST_QUICKLIST | value_type::LIST_QUICKLIST_2 => {
                self.quicklist(reader, value_type)
            }
            value_type::SET_INTSET => self.intset(reader),
            value_type::SET_LISTPACK => self.packed_set(reader),
            value_type::SORTED_SET_ZIPLIST => {
                let text = reader.string("a ziplist")?;
                self.packed_sorted_set(ziplist(&text, reader)?, reader)
            }
            value_type::SORTED_SET_LISTPACK => {
                let text = reader.string("a listpack")?;
                self.packed_sorted_set(reader.listpack(&text)?, reader)
            }
            value_type::ARRAY => Err(reader.error(Fault::Array)),
            value_type::HASH_TEMPLATE_LISTPACK | value_type::HASH_TEMPLATE_ARRAY => {
                self.hash_of_names(reader, value_type)
            }
            value_type::HASH_TEMPLATE_LISTPACK_REF | value_type::HASH_TEMPLATE_ARRAY_REF => {
                Err(reader.malformed("values whose fields are in no record"))
            }
            value_type::STREAM
            | value_type::STREAM_2
            | value_type::STREAM_3
            | value_type::STREAM_4
            | value_type::STREAM_5 => {
                streams::read(reader, value_type).map(|stream| Stored::Boxed(Value::Stream(stream)))
            }
            value_type::HASH_22 if is_valkey => self.hash_of_valkey(reader),
            value_type::HASH_22 | value_type::HASH_DEADLINES => {
                self.hash_of_redis(reader, value_type)
            }
            _ => self.packed_hash_of_redis(reader, value_type),
        }
    }

    // ---- lists ----------------------------------------------------------------------------------

    fn list(&self, reader: &mut Reader<'_>) -> Decoded<Stored> {
        let count = count(reader, 1)?;
        let mut runs = Quicklist::default();
        for _ in 0..count {
            runs.push(End::Back, &reader.string(ELEMENT)?, &self.limits.list);
        }
        Ok(List::from_runs(runs, &self.limits.list).store())
    }

    fn list_of_ziplist(&self, reader: &mut Reader<'_>) -> Decoded<Stored> {
        let text = reader.string("a ziplist")?;
        let packed = ziplist(&text, reader)?;
        let mut runs = Quicklist::default();
        for text in packed.texts() {
            runs.push(End::Back, text.as_ref(), &self.limits.list);
        }
        self.stored_list(runs, reader)
    }

    /// A list of nodes, each of which becomes a run.
    fn quicklist(&self, reader: &mut Reader<'_>, value_type: u8) -> Decoded<Stored> {
        let count = count(reader, 1)?;
        let mut runs = Quicklist::default();
        for _ in 0..count {
            let container = match value_type {
                value_type::LIST_QUICKLIST_2 => reader.length("a node's container")?,
                _ => input::NODE_PACKED,
            };
            let text = reader.string("a node")?;
            if text.is_empty() {
                return Err(reader.malformed("a list's node without bytes"));
            }
            runs.push_run(match (container, value_type) {
                (input::NODE_PLAIN, _) => {
                    let mut run = Run::default();
                    run.push(End::Back, crate::collections::packed::Element::new(&text), 0);
                    run
                }
                (input::NODE_PACKED, value_type::LIST_QUICKLIST_2) => run(reader.listpack(&text)?),
                (input::NODE_PACKED, _) => run(ziplist(&text, reader)?),
                _ => return Err(reader.malformed("a list's node of an unknown container")),
            });
        }
        self.stored_list(runs, reader)
    }

    fn stored_list(&self, runs: Quicklist, reader: &Reader<'_>) -> Decoded<Stored> {
        if runs.is_empty() {
            return Err(reader.error(Fault::Empty));
        }
        Ok(List::from_runs(runs, &self.limits.list).store())
    }

    // ---- sets -----------------------------------------------------------------------------------

    fn set(&self, reader: &mut Reader<'_>) -> Decoded<Stored> {
        let count = count(reader, 1)?;
        let start = reader.position();
        let set = Set::saved(count, &self.limits.set, |take| {
            reader.move_to(start);
            for _ in 0..count {
                let member = reader.string(MEMBER)?;
                if !take(Entry { field: &member, value: &[], deadline: None }) {
                    return Err(reader.malformed("a set that has a member twice"));
                }
            }
            Ok(())
        });
        Ok(set?.store())
    }

    fn intset(&self, reader: &mut Reader<'_>) -> Decoded<Stored> {
        let text = reader.string("an intset")?;
        if text.len() == 8 {
            return Err(reader.error(Fault::Empty));
        }
        let bytes = checked(packed::intset(&text), reader, "an intset that is damaged")?;
        let mut set = Set::Ints(bytes);
        let len = set.as_view().len();
        Edit::unnoted(&mut set).expect_more(len, &self.limits.set);
        Ok(set.store())
    }

    fn packed_set(&self, reader: &mut Reader<'_>) -> Decoded<Stored> {
        let text = reader.string("a listpack")?;
        let packed = reader.listpack(&text)?;
        if packed.count == 0 {
            return Err(reader.error(Fault::Empty));
        }
        let mut set = Set::Packed(Vec::new());
        Edit::unnoted(&mut set).expect_more(packed.count, &self.limits.set);
        for member in packed.texts() {
            if !Edit::unnoted(&mut set).add(member.as_ref(), &self.limits.set) {
                return Err(reader.malformed("a set that has a member twice"));
            }
        }
        Ok(set.store())
    }

    // ---- sorted sets ----------------------------------------------------------------------------

    fn sorted_set(
        &self,
        reader: &mut Reader<'_>,
        score_of: impl Fn(&mut Reader<'_>) -> Decoded<f64>,
    ) -> Decoded<Stored> {
        let count = count(reader, 2)?;
        // Elements come in descending order. They go to a tree, which becomes a listpack in the end
        // if it is within the limits: a listpack cannot represent -0.
        let (start, mut tree) = (reader.position(), Descending::default());
        for _ in 0..count {
            let member = reader.string(MEMBER)?;
            let score = score_of(reader)?;
            if !tree.push(score, &member) {
                reader.move_to(start);
                return self.unordered_sorted_set(reader, count, score_of);
            }
        }
        let tree = checked(tree.finish(), reader, MEMBER_TWICE)?;
        Ok(SortedSet::of_tree(tree).settle(self.limits.sorted_set).store())
    }

    /// A sorted set whose elements are not in descending order.
    fn unordered_sorted_set(
        &self,
        reader: &mut Reader<'_>,
        count: usize,
        score_of: impl Fn(&mut Reader<'_>) -> Decoded<f64>,
    ) -> Decoded<Stored> {
        let mut set = SortedSet::for_result();
        let no_limits = sorted_set::Limits { entries: 0, value: 0 };
        for _ in 0..count {
            let member = reader.string(MEMBER)?;
            let score = score_of(reader)?;
            if !Edit::unnoted(&mut set).insert(score, &member, no_limits) {
                return Err(reader.malformed(MEMBER_TWICE));
            }
        }
        Ok(set.settle(self.limits.sorted_set).store())
    }

    fn packed_sorted_set(&self, packed: Packed<'_>, reader: &Reader<'_>) -> Decoded<Stored> {
        let mut set = SortedSet::new();
        for (member, score) in pairs(&packed, reader)? {
            let score = parse_f64(score.as_ref());
            let score = checked(score, reader, "a score that is not a number")?;
            if !Edit::unnoted(&mut set).insert(score, member.as_ref(), self.limits.sorted_set) {
                return Err(reader.malformed(MEMBER_TWICE));
            }
        }
        Ok(set.store())
    }

    // ---- hashes ---------------------------------------------------------------------------------

    fn hash(&self, reader: &mut Reader<'_>) -> Decoded<Stored> {
        let count = count(reader, 2)?;
        self.fields(reader, count, |reader| {
            Ok((reader.string(FIELD)?, reader.string(FIELD_VALUE)?, None))
        })
    }

    fn hash_of_valkey(&self, reader: &mut Reader<'_>) -> Decoded<Stored> {
        let count = count(reader, 10)?;
        self.fields(reader, count, |reader| {
            let field = reader.string(FIELD)?;
            let value = reader.string(FIELD_VALUE)?;
            let deadline = match reader.unix_ms(DEADLINE)? {
                -1 => None,
                ms if ms < 0 => return Err(reader.malformed("a field's deadline before all times")),
                ms => Some(self.now.at(UnixMillis(ms))),
            };
            Ok((field, value, deadline))
        })
    }

    /// Redis 7.4's hash: deadlines are lengths, relative to the earliest one, or with the release
    /// candidates to 1970.
    fn hash_of_redis(&self, reader: &mut Reader<'_>, value_type: u8) -> Decoded<Stored> {
        let before_first = match value_type {
            value_type::HASH_DEADLINES => {
                (reader.unix_ms("the earliest deadline")? as u64).wrapping_sub(1)
            }
            _ => 0,
        };
        let count = count(reader, 3)?;
        self.fields(reader, count, |reader| {
            let deadline = match reader.length(DEADLINE)? {
                0 => None,
                ms => Some(self.deadline(ms.wrapping_add(before_first), reader)?),
            };
            Ok((reader.string(FIELD)?, reader.string(FIELD_VALUE)?, deadline))
        })
    }

    /// A hash of `count` fields, read by `next`.
    fn fields<'r>(
        &self,
        reader: &mut Reader<'r>,
        count: usize,
        next: impl Fn(&mut Reader<'r>) -> Decoded<(Text<'r>, Text<'r>, Option<Deadline>)>,
    ) -> Decoded<Stored> {
        let start = reader.position();
        let hash = Hash::saved(count, &self.limits.hash, |take| {
            reader.move_to(start);
            for _ in 0..count {
                let (field, value, deadline) = next(reader)?;
                if !take(Entry { field: &field, value: &value, deadline }) {
                    return Err(reader.malformed(FIELD_TWICE));
                }
            }
            Ok(())
        });
        Ok(hash?.store())
    }

    fn packed_hash(&self, packed: Packed<'_>, reader: &Reader<'_>) -> Decoded<Stored> {
        let hash = Hash::saved(packed.count / 2, &self.limits.hash, |take| {
            for (field, value) in pairs(&packed, reader)? {
                let entry = Entry { field: field.as_ref(), value: value.as_ref(), deadline: None };
                if !take(entry) {
                    return Err(reader.malformed(FIELD_TWICE));
                }
            }
            Ok(())
        });
        Ok(hash?.store())
    }

    /// The names of all fields, then all values: after a number in a listpack, or as strings.
    fn hash_of_names(&self, reader: &mut Reader<'_>, value_type: u8) -> Decoded<Stored> {
        const NAMES: &str = "names of fields";
        const UNEQUAL: &str = "as many values as names of fields";
        let names: Vec<Vec<u8>> = match reader.length(NAMES)? {
            input::NAMES_PACKED => {
                let text = reader.string(NAMES)?;
                let packed = reader.listpack(&text)?;
                packed.texts().map(|name| name.as_ref().to_vec()).collect()
            }
            input::NAMES_PLAIN => (0..count(reader, 1)?)
                .map(|_| Ok(reader.string(NAMES)?.into_vec()))
                .collect::<Decoded<_>>()?,
            _ => return Err(reader.malformed(NAMES)),
        };
        if names.is_empty() {
            return Err(reader.error(Fault::Empty));
        }
        let values: Vec<Vec<u8>> = if value_type == value_type::HASH_TEMPLATE_LISTPACK {
            let text = reader.string("a listpack")?;
            let packed = reader.listpack(&text)?;
            // The number of the names at the server that wrote them.
            packed.texts().skip(1).map(|value| value.as_ref().to_vec()).collect()
        } else {
            let value = |_| Ok(reader.string(FIELD_VALUE)?.into_vec());
            names.iter().map(value).collect::<Decoded<_>>()?
        };
        if values.len() != names.len() {
            return Err(reader.malformed(UNEQUAL));
        }
        let hash = Hash::saved(names.len(), &self.limits.hash, |take| {
            for (field, value) in names.iter().zip(&values) {
                if !take(Entry { field, value, deadline: None }) {
                    return Err(reader.malformed(FIELD_TWICE));
                }
            }
            Ok(())
        });
        Ok(hash?.store())
    }

    /// A listpack of fields, values and deadlines; deadline 0 means none.
    fn packed_hash_of_redis(&self, reader: &mut Reader<'_>, value_type: u8) -> Decoded<Stored> {
        if value_type == value_type::HASH_LISTPACK_DEADLINES {
            reader.unix_ms("the earliest deadline")?;
        }
        let text = reader.string("a listpack")?;
        let packed = reader.listpack(&text)?;
        if packed.count == 0 {
            return Err(reader.error(Fault::Empty));
        }
        let hash = Hash::saved(packed.count / 3, &self.limits.hash, |take| {
            let mut texts = packed.texts();
            while let Some(field) = texts.next() {
                let (Some(value), Some(deadline)) = (texts.next(), texts.next()) else {
                    return Err(reader.malformed("a field without value or deadline"));
                };
                let deadline = parse_i64(deadline.as_ref()).and_then(|ms| u64::try_from(ms).ok());
                let deadline = match checked(deadline, reader, "a deadline that is no time")? {
                    0 => None,
                    ms => Some(self.deadline(ms, reader)?),
                };
                if !take(Entry { field: field.as_ref(), value: value.as_ref(), deadline }) {
                    return Err(reader.malformed(FIELD_TWICE));
                }
            }
            Ok(())
        });
        Ok(hash?.store())
    }

    /// A deadline in Redis's formats.
    fn deadline(&self, unix_ms: u64, reader: &Reader<'_>) -> Decoded<Deadline> {
        if unix_ms > DEADLINE_MAX {
            return Err(reader.malformed("a field's deadline beyond all times"));
        }
        Ok(self.now.at(UnixMillis(unix_ms as i64)))
    }
}

/// Checks that nothing follows the value.
fn check_end(reader: &Reader<'_>) -> Decoded<()> {
    if reader.is_at_end() {
        Ok(())
    } else {
        Err(reader.malformed("bytes after the end of the value"))
    }
}

/// A count of elements of at least `bytes_min` bytes each. 0 is an error.
fn count(reader: &mut Reader<'_>, bytes_min: usize) -> Decoded<usize> {
    match reader.count(bytes_min, COUNT)? {
        0 => Err(reader.error(Fault::Empty)),
        count => Ok(count),
    }
}

/// The result of a check; None becomes an error.
fn checked<T>(found: Option<T>, reader: &Reader<'_>, what: &'static str) -> Decoded<T> {
    found.ok_or_else(|| reader.malformed(what))
}

fn ziplist<'t>(text: &'t Text<'_>, reader: &Reader<'_>) -> Decoded<Packed<'t>> {
    checked(Packed::of_ziplist(text), reader, "a ziplist that is damaged")
}

fn run(packed: Packed<'_>) -> Run {
    let count = packed.count;
    Run::from_entries(packed.into_canonical(), 0, count)
}

/// The elements in pairs, at least one.
fn pairs<'p>(
    packed: &'p Packed<'_>,
    reader: &Reader<'_>,
) -> Decoded<impl Iterator<Item = (ElementText<'p>, ElementText<'p>)> + use<'p>> {
    if packed.count == 0 {
        return Err(reader.error(Fault::Empty));
    }
    if !packed.count.is_multiple_of(2) {
        return Err(reader.malformed("pairs of which one is half"));
    }
    let mut texts = packed.texts();
    Ok(std::iter::from_fn(move || Some((texts.next()?, texts.next()?))))
}
