//! An ordered set of numbers below 2^56, in about seven bytes each.
//!
//! Numbers with equal upper 8 bits are a group, which consists of chunks in order. A chunk holds up
//! to 512 numbers, of each the lower 48 bits. A change moves at most one chunk's numbers, and at
//! times the group's list of chunks.

/// The bits of a number.
pub const BITS: u32 = 56;
/// The bits of a number that a chunk holds.
const LOW_BITS: u32 = 48;
const GROUPS: usize = 1 << (BITS - LOW_BITS);
const CHUNK_MAX: usize = 512;
/// Two neighbours with together at most this many numbers become one chunk.
const MERGED_MAX: usize = CHUNK_MAX / 2;

/// See the module.
pub struct Numbers {
    groups: Box<[Vec<Chunk>; GROUPS]>,
    /// Bytes of the groups' lists and chunks.
    held: usize,
}

/// The numbers of a group from `first` on, up to the next chunk's first.
struct Chunk {
    first: u64,
    numbers: Vec<Low>,
}

/// The lower bits of a number, the highest first.
#[derive(Clone, Copy)]
struct Low([u8; LOW_BITS as usize / 8]);

impl Low {
    const BYTES: usize = size_of::<Low>();

    fn of(number: u64) -> Low {
        let mut low = [0; Low::BYTES];
        low.copy_from_slice(&number.to_be_bytes()[8 - Low::BYTES..]);
        Low(low)
    }

    fn get(self) -> u64 {
        let mut bytes = [0; 8];
        bytes[8 - Low::BYTES..].copy_from_slice(&self.0);
        u64::from_be_bytes(bytes)
    }
}

fn group_of(number: u64) -> usize {
    debug_assert!(number >> BITS == 0, "a number has {BITS} bits");
    (number >> LOW_BITS) as usize
}

/// The capacity for a growing chunk: little more than `len`, filling a size of the allocator.
fn capacity_for(len: usize) -> usize {
    let bytes = (len + len / 16) * Low::BYTES;
    // The allocator has four sizes between powers of two.
    let step = (bytes.next_power_of_two() / 8).max(16);
    (bytes.next_multiple_of(step) / Low::BYTES).min(CHUNK_MAX)
}

impl Chunk {
    /// The place of a number, or where it belongs.
    fn find(&self, number: u64) -> Result<usize, usize> {
        let low = Low::of(number).get();
        self.numbers.binary_search_by_key(&low, |it| it.get())
    }

    fn insert(&mut self, at: usize, number: u64) {
        let len = self.numbers.len();
        if len == self.numbers.capacity() {
            self.numbers.reserve_exact(capacity_for(len + 1) - len);
        }
        self.numbers.insert(at, Low::of(number));
    }

    fn fit(&mut self) {
        self.numbers.shrink_to(capacity_for(self.numbers.len()));
    }
}

/// The index of the chunk in which a number lies or belongs. The first chunk begins at 0.
fn chunk_of(chunks: &[Chunk], number: u64) -> usize {
    let low = Low::of(number).get();
    chunks.partition_point(|chunk| chunk.first <= low).saturating_sub(1)
}

impl Numbers {
    /// Bytes of memory in use.
    pub fn memory(&self) -> usize {
        size_of_val(&*self.groups) + self.held
    }

    /// Adds a number. False: it is there already.
    pub fn insert(&mut self, number: u64) -> bool {
        self.change(number, |chunks, index| insert(chunks, index, number))
    }

    /// Removes a number. False: it is not there.
    pub fn remove(&mut self, number: u64) -> bool {
        self.change(number, |chunks, index| remove(chunks, index, number))
    }

    /// Changes the chunk at an index, where a number lies or belongs, and at most its neighbours.
    fn change(&mut self, number: u64, change: impl FnOnce(&mut Vec<Chunk>, usize) -> bool) -> bool {
        let chunks = &mut self.groups[group_of(number)];
        let index = chunk_of(chunks, number);
        let (first, after) = (index.saturating_sub(1), chunks.len().saturating_sub(index + 2));
        self.held -= held(chunks, first, after);
        let has_changed = change(chunks, index);
        self.held += held(chunks, first, after);
        has_changed
    }

    /// The numbers between two, both included, in order.
    pub fn range(&self, from: u64, to: u64) -> Range<'_> {
        let group = group_of(from);
        let chunk = chunk_of(&self.groups[group], from);
        let at = self.groups[group].get(chunk).map_or(0, |chunk| match chunk.find(from) {
            Ok(at) | Err(at) => at,
        });
        Range { numbers: self, group, chunk, at, to }
    }
}

/// Bytes of a group's list, and of its chunks without some at the beginning and the end.
fn held(chunks: &Vec<Chunk>, first: usize, after: usize) -> usize {
    let numbers: usize =
        chunks[first..chunks.len() - after].iter().map(|chunk| chunk.numbers.capacity()).sum();
    chunks.capacity() * size_of::<Chunk>() + numbers * Low::BYTES
}

fn insert(chunks: &mut Vec<Chunk>, index: usize, number: u64) -> bool {
    if chunks.is_empty() {
        chunks.push(Chunk { first: 0, numbers: Vec::new() });
    }
    let chunk = &mut chunks[index];
    let Err(at) = chunk.find(number) else { return false };
    if chunk.numbers.len() < CHUNK_MAX {
        chunk.insert(at, number);
        return true;
    }
    let mut second = Vec::with_capacity(capacity_for(CHUNK_MAX / 2 + 1));
    second.extend(chunk.numbers.drain(CHUNK_MAX / 2..));
    let mut second = Chunk { first: second[0].get(), numbers: second };
    match at.checked_sub(CHUNK_MAX / 2) {
        // Between the halves it belongs to the first one.
        None | Some(0) => chunk.insert(at, number),
        Some(at) => second.insert(at, number),
    }
    chunk.fit();
    chunks.insert(index + 1, second);
    true
}

fn remove(chunks: &mut Vec<Chunk>, index: usize, number: u64) -> bool {
    let Some(chunk) = chunks.get_mut(index) else { return false };
    let Ok(at) = chunk.find(number) else { return false };
    chunk.numbers.remove(at);
    let len = chunk.numbers.len();
    if chunk.numbers.capacity() > 2 * capacity_for(len) {
        chunk.fit();
    }
    let joins =
        |other: Option<&Chunk>| other.is_some_and(|other| other.numbers.len() + len <= MERGED_MAX);
    if joins(chunks.get(index + 1)) {
        join(chunks, index);
    } else if index > 0 && joins(chunks.get(index - 1)) {
        join(chunks, index - 1);
    } else if len == 0 && chunks.len() == 1 {
        *chunks = Vec::new();
    }
    true
}

/// Adds the numbers of the chunk after `index` to it.
fn join(chunks: &mut Vec<Chunk>, index: usize) {
    let next = chunks.remove(index + 1);
    let chunk = &mut chunks[index];
    let len = chunk.numbers.len() + next.numbers.len();
    chunk.numbers.reserve_exact(capacity_for(len).max(len) - chunk.numbers.len());
    chunk.numbers.extend(next.numbers);
    chunk.fit();
}

impl Default for Numbers {
    fn default() -> Self {
        Numbers { groups: Box::new([const { Vec::new() }; GROUPS]), held: 0 }
    }
}

/// See [`Numbers::range`].
pub struct Range<'a> {
    numbers: &'a Numbers,
    group: usize,
    chunk: usize,
    at: usize,
    to: u64,
}

impl Iterator for Range<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        loop {
            let chunks = self.numbers.groups.get(self.group)?;
            let Some(chunk) = chunks.get(self.chunk) else {
                (self.group, self.chunk, self.at) = (self.group + 1, 0, 0);
                if (self.group as u64) << LOW_BITS > self.to {
                    return None;
                }
                continue;
            };
            let Some(low) = chunk.numbers.get(self.at) else {
                (self.chunk, self.at) = (self.chunk + 1, 0);
                continue;
            };
            self.at += 1;
            let number = (self.group as u64) << LOW_BITS | low.get();
            return (number <= self.to).then_some(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    impl Numbers {
        fn bytes(&self) -> usize {
            let chunks = self.groups.iter().flatten();
            let lists: usize = self.groups.iter().map(Vec::capacity).sum();
            let held: usize = chunks.map(|chunk| chunk.numbers.capacity() * Low::BYTES).sum();
            size_of_val(&*self.groups) + lists * size_of::<Chunk>() + held
        }
    }

    /// Numbers that lie apart, close together, and at the ends of groups.
    fn number() -> impl Strategy<Value = u64> {
        prop_oneof![
            0..1u64 << BITS,
            0..2_000u64,
            (1u64 << LOW_BITS) - 1_000..(1 << LOW_BITS) + 1_000,
            (1u64 << BITS) - 500..1 << BITS,
        ]
    }

    proptest! {
        #[test]
        fn it_is_a_set_in_order(
            changes in proptest::collection::vec((any::<bool>(), number()), 1..6_000),
            left in 0usize..100,
            (from, to) in (number(), number()),
        ) {
            let (mut numbers, mut model) = (Numbers::default(), BTreeSet::new());
            for (adds, number) in changes {
                match adds {
                    true => assert_eq!(numbers.insert(number), model.insert(number)),
                    false => assert_eq!(numbers.remove(number), model.remove(&number)),
                }
            }
            assert!(numbers.range(0, (1 << BITS) - 1).eq(model.iter().copied()));
            assert_eq!(numbers.memory(), numbers.bytes());
            if from <= to {
                assert!(numbers.range(from, to).eq(model.range(from..=to).copied()));
            }
            // Few are left of many.
            for number in model.iter().skip(left) {
                assert!(numbers.remove(*number));
            }
            assert!(numbers.range(0, (1 << BITS) - 1).eq(model.iter().take(left).copied()));
            if left == 0 {
                assert_eq!(numbers.bytes(), Numbers::default().bytes());
            }
        }
    }

    #[test]
    fn a_number_takes_about_seven_bytes() {
        let mut numbers = Numbers::default();
        let random = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - BITS);
        for count in [100_000, 200_000, 300_000, 400_000] {
            (count - 100_000..count).for_each(|n| assert!(numbers.insert(random(n))));
            let each = numbers.bytes() as f64 / count as f64;
            assert!((6.0..7.2).contains(&each), "{count} numbers of {each} bytes");
        }
        (0..399_000).for_each(|n| assert!(numbers.remove(random(n))));
        assert!(numbers.bytes() < 60_000, "{} bytes for 1,000", numbers.bytes());
    }
}
