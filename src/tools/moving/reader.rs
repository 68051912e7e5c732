//! Reads keys, of any size and in parts, to compare them with those of another server.
//!
//! DUMP differs between versions, so values are read by the commands of their types. A reader asks
//! for one part at a time; many of them share a round trip.

use sha2::{Digest, Sha256};

use super::asking::{Batch, Reply, Server, Stop};
use crate::error::CommandError;

/// Elements or entries in the first part.
const FIRST_ELEMENTS: u64 = 100;
/// Elements in a part are chosen so that it has about this size.
const PART_BYTES: u64 = 1 << 20;
/// The most elements in a part.
const ELEMENTS_MAX: u64 = 5000;
/// Bytes of a string in a part.
const TEXT_BYTES: u64 = 64 << 10;
/// Elements of a hash or set, which come in no order: 24 bytes of memory each. Of a larger one only
/// the size is compared.
const UNORDERED_MAX: usize = 16 << 20;
/// A server that sends more parts of one key does not end.
const PARTS_MAX: u64 = 1 << 22;

/// The commands that both servers have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// PEXPIRETIME. Without it, only whether there is a deadline is compared.
    pub tells_deadlines: bool,
    /// HPEXPIRETIME.
    pub has_field_deadlines: bool,
}

/// The contents of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    kind: Vec<u8>,
    digest: Vec<u8>,
    /// Of the key, then of a hash's fields: Unix time in milliseconds; negative: none.
    deadlines: Vec<i64>,
    /// It changed while it was read, so that it equals no other.
    is_torn: bool,
    /// Its value was not read.
    is_skipped: bool,
}

/// Deadlines that differ by no more are equal: a server that counts on a clock that nobody sets
/// shows another time after each correction of the system's clock. Unit: milliseconds.
const DEADLINE_MS: u64 = 1000;

impl Seen {
    /// Whether there is a key.
    pub fn exists(&self) -> bool {
        self.kind != b"none"
    }

    pub fn is_skipped(&self) -> bool {
        self.is_skipped
    }

    /// The difference from the same key elsewhere. None: there is none.
    pub fn difference(&self, other: &Seen) -> Option<&'static str> {
        if self.is_torn || other.is_torn {
            Some("it changes")
        } else if self.exists() != other.exists() {
            Some(if self.exists() { "it is missing" } else { "it should not be there" })
        } else if self.kind != other.kind {
            Some("another type")
        } else if self.digest != other.digest {
            Some("another value")
        } else if self.deadlines.len() != other.deadlines.len()
            || !self.deadlines.iter().zip(&other.deadlines).all(|(a, b)| are_alike(*a, *b))
        {
            Some("another deadline")
        } else {
            None
        }
    }
}

fn are_alike(a: i64, b: i64) -> bool {
    (a < 0 && b < 0) || (a >= 0 && b >= 0 && a.abs_diff(b) <= DEADLINE_MS)
}

/// Which part comes next.
#[derive(Debug)]
enum Next {
    Kind,
    /// From this byte of a string.
    Text(u64),
    /// From this place of a list.
    List(u64),
    /// From this place of a sorted set.
    Sorted(u64),
    /// From this cursor of a set or hash.
    Set(Vec<u8>),
    Hash(Vec<u8>),
    /// The deadlines of these fields, which have these hashes; and the cursor after them.
    Fields(Vec<(Vec<u8>, Hash)>, Vec<u8>),
    /// From this ID of a stream.
    Stream(Vec<u8>),
    Groups,
    /// Entries of a group that wait for confirmation, from this ID; and further groups.
    Pending(Vec<Vec<u8>>, Vec<u8>),
    Done,
}

type Hash = [u8; 16];

/// Reads one key.
#[derive(Debug)]
struct Reader<'a> {
    key: &'a [u8],
    abilities: Abilities,
    next: Next,
    /// Elements in the next part.
    part: u64,
    parts: u64,
    hash: Sha256,
    /// Elements without order, and their deadlines.
    elements: Vec<(Hash, i64)>,
    seen: Seen,
}

/// Reads keys of a database. Returns them in the same order.
pub fn read(
    server: &mut Server,
    database: u32,
    keys: &[Vec<u8>],
    abilities: Abilities,
) -> Result<Vec<Seen>, Stop> {
    server.select(database)?;
    let mut readers: Vec<Reader<'_>> = keys.iter().map(|key| Reader::new(key, abilities)).collect();
    loop {
        let mut batch = Batch::default();
        let mut asked = Vec::new();
        for reader in &mut readers {
            let before = batch.len();
            reader.ask(&mut batch);
            if batch.len() > before {
                asked.push((reader, batch.len() - before));
            }
        }
        if batch.is_empty() {
            return Ok(readers.into_iter().map(|reader| reader.seen).collect());
        }
        let mut replies = server.ask_all(batch)?.into_iter();
        for (reader, count) in asked {
            let replies: Vec<Reply> = replies.by_ref().take(count).collect();
            let key = || super::asking::shown(reader.key);
            if let Err(why) = reader.take(&replies) {
                return Err(server.stop(format_args!("key '{}': {why}", key())));
            }
        }
    }
}

impl<'a> Reader<'a> {
    fn new(key: &'a [u8], abilities: Abilities) -> Self {
        Reader {
            key,
            abilities,
            next: Next::Kind,
            part: FIRST_ELEMENTS,
            parts: 0,
            hash: Sha256::new(),
            elements: Vec::new(),
            seen: Seen::default(),
        }
    }

    /// Adds the requests of the next part. None are added at the end.
    fn ask(&self, batch: &mut Batch) {
        let (key, count) = (self.key, self.part.to_string());
        let last = |at: u64, more: u64| (at + more - 1).to_string();
        match &self.next {
            Next::Kind => {
                batch.add(&[b"TYPE", key]);
                let deadline: &[u8] =
                    if self.abilities.tells_deadlines { b"PEXPIRETIME" } else { b"PTTL" };
                batch.add(&[deadline, key]);
            }
            Next::Text(at) => {
                let end = last(*at, TEXT_BYTES);
                batch.add(&[b"GETRANGE", key, at.to_string().as_bytes(), end.as_bytes()]);
            }
            Next::List(at) => {
                let end = last(*at, self.part);
                batch.add(&[b"LRANGE", key, at.to_string().as_bytes(), end.as_bytes()]);
            }
            Next::Sorted(at) => {
                let (at, end) = (at.to_string(), last(*at, self.part));
                batch.add(&[b"ZRANGE", key, at.as_bytes(), end.as_bytes(), b"WITHSCORES"]);
            }
            Next::Set(cursor) => batch.add(&[b"SSCAN", key, cursor, b"COUNT", count.as_bytes()]),
            Next::Hash(cursor) => batch.add(&[b"HSCAN", key, cursor, b"COUNT", count.as_bytes()]),
            Next::Fields(fields, _) => {
                let number = fields.len().to_string();
                let head: [&[u8]; 4] = [b"HPEXPIRETIME", key, b"FIELDS", number.as_bytes()];
                let names = fields.iter().map(|(name, _)| name.as_slice());
                let request: Vec<&[u8]> = head.into_iter().chain(names).collect();
                batch.add(&request);
            }
            Next::Stream(from) => {
                batch.add(&[b"XRANGE", key, from, b"+", b"COUNT", count.as_bytes()]);
            }
            Next::Groups => {
                batch.add(&[b"XINFO", b"STREAM", key]);
                batch.add(&[b"XINFO", b"GROUPS", key]);
            }
            Next::Pending(groups, from) => {
                if let Some(group) = groups.last() {
                    batch.add(&[b"XPENDING", key, group, from, b"+", count.as_bytes()]);
                }
            }
            Next::Done => {}
        }
    }

    /// Takes the replies of a part. Errors: a server that cannot be compared.
    fn take(&mut self, replies: &[Reply]) -> Result<(), String> {
        self.parts += 1;
        if self.parts > PARTS_MAX {
            return Err("it does not end".into());
        }
        if let Some(Reply::Error(text)) = replies.iter().find(|reply| reply.error().is_some()) {
            // The key is another one since its type was read.
            let no_key = CommandError::NoSuchKey.wire();
            let is_torn = [&b"WRONGTYPE"[..], b"NOGROUP", &no_key[..]];
            if is_torn.iter().any(|error| text.starts_with(error)) {
                self.tear();
                return Ok(());
            }
            return Err(super::asking::shown(text));
        }
        let next = std::mem::replace(&mut self.next, Next::Done);
        let taken = match next {
            Next::Kind => self.take_kind(replies),
            Next::Text(at) => self.take_text(at, replies),
            Next::List(at) => self.take_list(at, replies),
            Next::Sorted(at) => self.take_sorted(at, replies),
            Next::Set(_) => self.take_set(replies),
            Next::Hash(_) => self.take_hash(replies),
            Next::Fields(fields, cursor) => self.take_fields(fields, cursor, replies),
            Next::Stream(_) => self.take_stream(replies),
            Next::Groups => self.take_groups(replies),
            Next::Pending(groups, _) => self.take_pending(groups, replies),
            Next::Done => Some(()),
        };
        taken.ok_or_else(|| "a reply of another form than its request has".to_owned())?;
        if matches!(self.next, Next::Done) {
            self.finish();
        }
        Ok(())
    }

    fn tear(&mut self) {
        self.seen.is_torn = true;
        self.next = Next::Done;
    }

    fn skip(&mut self) {
        self.seen.is_skipped = true;
        self.elements = Vec::new();
        self.next = Next::Done;
    }

    fn finish(&mut self) {
        let mut elements = std::mem::take(&mut self.elements);
        // A scan may return an element twice.
        elements.sort_unstable();
        elements.dedup_by_key(|(hash, _)| *hash);
        for (hash, deadline) in elements {
            self.hash.update(hash);
            if deadline >= 0 {
                self.seen.deadlines.push(deadline);
                self.hash.update(b"deadline");
            }
        }
        self.seen.digest = std::mem::take(&mut self.hash).finalize().to_vec();
    }

    /// Chooses the size of the next part by that of this one.
    fn choose_part(&mut self, count: usize, bytes: usize) {
        let part = count as u64 * PART_BYTES / (bytes as u64).max(1);
        self.part = part.clamp(1, ELEMENTS_MAX);
    }

    fn take_kind(&mut self, replies: &[Reply]) -> Option<()> {
        let [kind, deadline] = replies else { return None };
        self.seen.kind = kind.bytes()?.to_vec();
        let deadline = deadline.number()?;
        let deadline = if self.abilities.tells_deadlines { deadline } else { deadline.signum() };
        self.seen.deadlines.push(deadline.max(-1));
        self.next = match &*self.seen.kind {
            b"none" => {
                self.seen.deadlines.clear();
                Next::Done
            }
            b"string" => Next::Text(0),
            b"list" => Next::List(0),
            b"zset" => Next::Sorted(0),
            b"set" => Next::Set(b"0".to_vec()),
            b"hash" => Next::Hash(b"0".to_vec()),
            b"stream" => Next::Stream(b"-".to_vec()),
            _ => {
                self.seen.is_skipped = true;
                Next::Done
            }
        };
        Some(())
    }

    fn take_text(&mut self, at: u64, replies: &[Reply]) -> Option<()> {
        let text = replies.first()?.bytes()?;
        self.hash.update(text);
        if text.len() as u64 == TEXT_BYTES {
            self.next = Next::Text(at + TEXT_BYTES);
        }
        Some(())
    }

    fn take_list(&mut self, at: u64, replies: &[Reply]) -> Option<()> {
        let list = replies.first()?.list()?;
        let mut bytes = 0;
        for element in list {
            bytes += put(&mut self.hash, element.bytes()?);
        }
        if list.len() as u64 == self.part {
            self.next = Next::List(at + self.part);
        }
        self.choose_part(list.len(), bytes);
        Some(())
    }

    fn take_sorted(&mut self, at: u64, replies: &[Reply]) -> Option<()> {
        let list = replies.first()?.list()?;
        let mut bytes = 0;
        for pair in list.chunks(2) {
            let [member, score] = pair else { return None };
            bytes += put(&mut self.hash, member.bytes()?);
            // Versions write the same number differently.
            let score: f64 = std::str::from_utf8(score.bytes()?).ok()?.parse().ok()?;
            // 0 and -0 are one score.
            self.hash.update((score + 0.0).to_bits().to_be_bytes());
        }
        if list.len() as u64 == self.part * 2 {
            self.next = Next::Sorted(at + self.part);
        }
        self.choose_part(list.len() / 2, bytes);
        Some(())
    }

    fn take_set(&mut self, replies: &[Reply]) -> Option<()> {
        let (cursor, list) = scanned(replies)?;
        let mut bytes = 0;
        for element in list {
            let element = element.bytes()?;
            bytes += element.len();
            self.elements.push((short(&[element]), -1));
        }
        self.choose_part(list.len(), bytes);
        if self.elements.len() > UNORDERED_MAX {
            self.skip();
        } else if cursor != b"0" {
            self.next = Next::Set(cursor.to_vec());
        }
        Some(())
    }

    fn take_hash(&mut self, replies: &[Reply]) -> Option<()> {
        let (cursor, list) = scanned(replies)?;
        let (mut bytes, mut fields) = (0, Vec::new());
        for pair in list.chunks(2) {
            let [field, value] = pair else { return None };
            let (field, value) = (field.bytes()?, value.bytes()?);
            bytes += field.len() + value.len();
            fields.push((field.to_vec(), short(&[field, value])));
        }
        self.choose_part(fields.len(), bytes);
        if self.elements.len() + fields.len() > UNORDERED_MAX {
            self.skip();
        } else if self.abilities.has_field_deadlines && !fields.is_empty() {
            self.next = Next::Fields(fields, cursor.to_vec());
        } else {
            self.elements.extend(fields.into_iter().map(|(_, hash)| (hash, -1)));
            if cursor != b"0" {
                self.next = Next::Hash(cursor.to_vec());
            }
        }
        Some(())
    }

    fn take_fields(
        &mut self,
        fields: Vec<(Vec<u8>, Hash)>,
        cursor: Vec<u8>,
        replies: &[Reply],
    ) -> Option<()> {
        let list = match replies.first()? {
            Reply::List(list) => list.as_slice(),
            // The hash is gone.
            Reply::Null => &[],
            _ => return None,
        };
        if list.len() != fields.len() {
            self.tear();
            return Some(());
        }
        for ((_, hash), deadline) in fields.into_iter().zip(list) {
            self.elements.push((hash, deadline.number()?.max(-1)));
        }
        if cursor != b"0" {
            self.next = Next::Hash(cursor);
        }
        Some(())
    }

    fn take_stream(&mut self, replies: &[Reply]) -> Option<()> {
        let list = replies.first()?.list()?;
        let (mut bytes, mut last) = (0, Vec::new());
        for entry in list {
            let [id, fields] = entry.list()? else { return None };
            last = id.bytes()?.to_vec();
            bytes += put(&mut self.hash, &last);
            let fields = fields.list()?;
            self.hash.update((fields.len() as u64).to_be_bytes());
            for part in fields {
                bytes += put(&mut self.hash, part.bytes()?);
            }
        }
        self.next = match list.len() as u64 == self.part {
            true => Next::Stream([b"(", &*last].concat()),
            false => Next::Groups,
        };
        self.choose_part(list.len(), bytes);
        Some(())
    }

    fn take_groups(&mut self, replies: &[Reply]) -> Option<()> {
        let [stream, groups] = replies else { return None };
        put(&mut self.hash, field_of(stream.list()?, b"last-generated-id")?.bytes()?);
        let mut names = Vec::new();
        for group in groups.list()? {
            let group = group.list()?;
            let name = field_of(group, b"name")?.bytes()?;
            let last = field_of(group, b"last-delivered-id")?.bytes()?;
            self.elements.push((short(&[name, last]), -1));
            names.push(name.to_vec());
        }
        names.sort_unstable();
        self.part = FIRST_ELEMENTS;
        self.next = pending(names);
        Some(())
    }

    fn take_pending(&mut self, mut groups: Vec<Vec<u8>>, replies: &[Reply]) -> Option<()> {
        let list = replies.first()?.list()?;
        let mut last = Vec::new();
        for entry in list {
            // The idle time is not compared: it is another one at each reading.
            let [id, consumer, _, deliveries] = entry.list()? else { return None };
            last = id.bytes()?.to_vec();
            put(&mut self.hash, &last);
            put(&mut self.hash, consumer.bytes()?);
            self.hash.update(deliveries.number()?.to_be_bytes());
        }
        if list.len() as u64 == self.part {
            self.part = ELEMENTS_MAX;
            self.next = Next::Pending(groups, [b"(", &*last].concat());
        } else {
            self.part = FIRST_ELEMENTS;
            groups.pop();
            self.hash.update(b"group");
            self.next = pending(groups);
        }
        Some(())
    }
}

fn pending(groups: Vec<Vec<u8>>) -> Next {
    match groups.is_empty() {
        true => Next::Done,
        false => Next::Pending(groups, b"-".to_vec()),
    }
}

/// Hashes a string with its length, which is returned.
fn put(hash: &mut Sha256, text: &[u8]) -> usize {
    hash.update((text.len() as u64).to_be_bytes());
    hash.update(text);
    text.len()
}

/// The hash of strings.
fn short(texts: &[&[u8]]) -> Hash {
    let mut hash = Sha256::new();
    for text in texts {
        put(&mut hash, text);
    }
    let whole = hash.finalize();
    let mut first = [0; 16];
    first.copy_from_slice(&whole[..16]);
    first
}

/// The cursor and the elements of a scan.
fn scanned(replies: &[Reply]) -> Option<(&[u8], &[Reply])> {
    let [cursor, list] = replies.first()?.list()? else { return None };
    Some((cursor.bytes()?, list.list()?))
}

/// The value after a name, in a list of both.
pub fn field_of<'a>(list: &'a [Reply], name: &[u8]) -> Option<&'a Reply> {
    let pair = list.chunks(2).find(|pair| pair[0].bytes() == Some(name))?;
    pair.get(1)
}

#[cfg(test)]
mod tests;
