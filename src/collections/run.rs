//! A run of list entries that grows and shrinks at both ends without moving its entries.
//!
//! ```text
//!   bytes    | head room | entry | entry | ... | entry |  spare capacity
//!            0           start                         len             capacity
//! ```
//!
//! Without room at the growing end, the entries move once and room for an eighth of their size is
//! left there, so a push costs the same at both ends. A run has no limit; [`super::quicklist`]
//! keeps it small.

use super::listpack;
use super::packed::Element;

/// An end of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Front,
    Back,
}

/// A run of entries.
#[derive(Debug, Default)]
pub struct Run {
    bytes: Vec<u8>,
    /// Offset of the first entry; at most `bytes.len()`.
    start: u32,
    count: u32,
}

/// A run of entries, for reading.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunView<'a> {
    /// Listpack entries, see [`super::listpack`].
    pub entries: &'a [u8],
    pub count: usize,
}

/// From this capacity on, a run that uses less than a quarter of it is shrunk.
const SHRINK_MIN: usize = 1024;

impl Clone for Run {
    fn clone(&self) -> Self {
        Run { bytes: self.entries().to_vec(), start: 0, count: self.count }
    }
}

impl Run {
    /// A run of the `count` entries from `start` on in `bytes`.
    pub fn from_entries(bytes: Vec<u8>, start: usize, count: usize) -> Self {
        Run { bytes, start: start as u32, count: count as u32 }
    }

    /// A run with room for `bytes` bytes of entries that are added at one end.
    pub fn with_room(end: End, bytes: usize) -> Self {
        match end {
            End::Front => Run::from_entries(vec![0; bytes], bytes, 0),
            End::Back => Run::from_entries(Vec::with_capacity(bytes), 0, 0),
        }
    }

    /// The buffer, with at least `room` bytes before the entries, and the entries' offset.
    pub fn into_storage(mut self, room: usize) -> (Vec<u8>, usize) {
        if self.head_room() < room {
            self.place(room, 0);
        }
        (self.bytes, self.start as usize)
    }

    #[inline]
    fn head_room(&self) -> usize {
        self.start as usize
    }

    #[inline]
    pub fn entries(&self) -> &[u8] {
        &self.bytes[self.head_room()..]
    }

    pub fn view(&self) -> RunView<'_> {
        RunView { entries: self.entries(), count: self.count() }
    }

    #[inline]
    pub fn count(&self) -> usize {
        self.count as usize
    }

    /// Bytes of the entries.
    #[inline]
    pub fn len(&self) -> usize {
        self.bytes.len() - self.head_room()
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn heap_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// Offset of entry `index` among the entries; their length if there are fewer.
    pub fn seek(&self, index: usize) -> usize {
        listpack::seek(self.entries(), index, self.count())
    }

    /// Moves the entries to `head`, with capacity for `tail` bytes after them.
    fn place(&mut self, head: usize, tail: usize) {
        let (start, used) = (self.head_room(), self.len());
        if head + used + tail > self.bytes.capacity() {
            let mut bytes = Vec::with_capacity(size_class(head + used + tail));
            bytes.resize(head, 0);
            bytes.extend_from_slice(self.entries());
            self.bytes = bytes;
        } else if head > start {
            self.bytes.resize(head + used, 0);
            self.bytes.copy_within(start..start + used, head);
        } else {
            self.bytes.copy_within(start.., head);
            self.bytes.truncate(head + used);
        }
        self.start = head as u32;
    }

    /// Shrinks a mostly unused buffer.
    pub fn shrink(&mut self) {
        let capacity = self.bytes.capacity();
        if capacity >= SHRINK_MIN && self.len() < capacity / 4 {
            self.shrink_to_fit();
        }
    }

    /// Shrinks the buffer to its content.
    pub fn shrink_to_fit(&mut self) {
        let fitting = size_class(self.len());
        if fitting < self.bytes.capacity() {
            let mut bytes = Vec::with_capacity(fitting);
            bytes.extend_from_slice(self.entries());
            self.bytes = bytes;
            self.start = 0;
        }
    }

    /// Adds an element at an end. `most`: the length this run is expected to reach, beyond which
    /// nothing is reserved.
    #[inline]
    pub fn push(&mut self, end: End, element: Element<'_>, most: usize) {
        let len = listpack::entry_len(element);
        match end {
            End::Back => {
                if self.bytes.len() + len > self.bytes.capacity() {
                    self.make_room_behind(len, most);
                }
                let at = self.bytes.len();
                self.bytes.resize(at + len, 0);
                listpack::write(element, &mut self.bytes[at..]);
            }
            End::Front => {
                if self.head_room() < len {
                    self.make_room_before(len, most);
                }
                let start = self.head_room();
                listpack::write(element, &mut self.bytes[start - len..start]);
                self.start -= len as u32;
            }
        }
        self.count += 1;
    }

    /// Bytes to reserve when `needed` are needed.
    fn ahead(&self, needed: usize, most: usize) -> usize {
        let used = self.len() + needed;
        (used / 8).min(most.saturating_sub(used))
    }

    #[cold]
    fn make_room_behind(&mut self, needed: usize, most: usize) {
        let ahead = self.ahead(needed, most);
        // Some of the head room is kept: pushes may alternate between the ends.
        self.place(self.head_room().min(ahead / 2), needed + ahead);
    }

    #[cold]
    fn make_room_before(&mut self, needed: usize, most: usize) {
        let ahead = self.ahead(needed, most);
        let tail = (self.bytes.capacity() - self.bytes.len()).min(ahead / 2);
        let total = size_class(needed + ahead + self.len() + tail);
        // The allocator's rounding becomes head room too.
        self.place(total - self.len() - tail, tail);
    }

    /// The element at an end, and its entry's length.
    #[inline]
    pub fn peek(&self, end: End) -> Option<(Element<'_>, usize)> {
        match end {
            End::Front => listpack::first(self.entries()),
            End::Back => listpack::last(self.entries()),
        }
    }

    /// Removes the entry at an end, which has `len` bytes, from [`Self::peek`].
    #[inline]
    pub fn drop_one(&mut self, end: End, len: usize) {
        match end {
            End::Front => self.start += len as u32,
            End::Back => self.bytes.truncate(self.bytes.len() - len),
        }
        self.count -= 1;
    }

    /// Removes `count` entries at an end, or all if there are fewer.
    pub fn drop_many(&mut self, end: End, count: usize) {
        let count = count.min(self.count());
        match end {
            End::Front => self.start += self.seek(count) as u32,
            End::Back => self.bytes.truncate(self.head_room() + self.seek(self.count() - count)),
        }
        self.count -= count as u32;
        self.shrink();
    }

    /// Replaces `old` bytes at `at` by room for `new` ones; returns its offset in `bytes`.
    fn open(&mut self, at: usize, old: usize, new: usize) -> usize {
        if new > old && self.bytes.len() + new - old > self.bytes.capacity() {
            let ahead = self.ahead(new - old, usize::MAX) / 4;
            self.place(0, new - old + ahead);
        }
        let at = self.head_room() + at;
        let end = self.bytes.len();
        if new > old {
            self.bytes.resize(end + new - old, 0);
        }
        self.bytes.copy_within(at + old..end, at + new);
        self.bytes.truncate(end + new - old);
        at
    }

    /// Inserts an element before the entry at offset `at`, or appends it.
    pub fn insert(&mut self, at: usize, element: Element<'_>) {
        let len = listpack::entry_len(element);
        let at = self.open(at, 0, len);
        listpack::write(element, &mut self.bytes[at..at + len]);
        self.count += 1;
    }

    /// Replaces the entry at offset `at`. False if there is none.
    pub fn replace(&mut self, at: usize, element: Element<'_>) -> bool {
        let Some((_, old)) = listpack::first(&self.entries()[at..]) else { return false };
        let len = listpack::entry_len(element);
        let at = self.open(at, old, len);
        listpack::write(element, &mut self.bytes[at..at + len]);
        true
    }

    /// Removes the entry at offset `at`.
    pub fn remove_at(&mut self, at: usize) {
        if let Some((_, len)) = listpack::first(&self.entries()[at..]) {
            let at = self.head_room() + at;
            self.bytes.drain(at..at + len);
            self.count -= 1;
            self.shrink();
        }
    }

    /// Removes at most `most` entries equal to an element, from an end. Returns their number.
    pub fn remove(&mut self, end: End, element: Element<'_>, most: usize) -> usize {
        let found = self.find(end, element, most);
        let count = found.len();
        self.remove_found(end, found);
        count
    }

    /// Removes entries found by [`Self::find`] from the same end.
    pub fn remove_found(&mut self, end: End, mut found: Vec<(usize, usize)>) {
        if found.is_empty() {
            return;
        }
        if end == End::Back {
            found.reverse();
        }
        let start = self.head_room();
        let mut write = start + found[0].0;
        for (index, &(at, len)) in found.iter().enumerate() {
            let kept = start + at + len;
            let next = found.get(index + 1).map_or(self.bytes.len(), |&(next, _)| start + next);
            self.bytes.copy_within(kept..next, write);
            write += next - kept;
        }
        self.bytes.truncate(write);
        self.count -= found.len() as u32;
        self.shrink();
    }

    /// Offsets and lengths of at most `most` entries equal to an element, from an end.
    pub fn find(&self, end: End, element: Element<'_>, most: usize) -> Vec<(usize, usize)> {
        let entries = self.entries();
        let mut found = Vec::new();
        match end {
            End::Front => {
                let mut at = 0;
                while found.len() < most
                    && let Some((entry, len)) = listpack::first(&entries[at..])
                {
                    if entry == element {
                        found.push((at, len));
                    }
                    at += len;
                }
            }
            End::Back => {
                let mut end = entries.len();
                while found.len() < most
                    && let Some((entry, len)) = listpack::last(&entries[..end])
                {
                    end -= len;
                    if entry == element {
                        found.push((end, len));
                    }
                }
            }
        }
        found
    }

    /// Splits off the entries from offset `at`, of index `index`, on.
    pub fn split_off(&mut self, at: usize, index: usize) -> Run {
        let at = self.head_room() + at;
        let count = self.count() - index;
        let behind = Run::from_entries(self.bytes[at..].to_vec(), 0, count);
        self.bytes.truncate(at);
        self.count -= count as u32;
        self.shrink();
        behind
    }

    /// Appends another run's entries.
    pub fn append(&mut self, other: &Run) {
        let len = other.len();
        if self.bytes.len() + len > self.bytes.capacity() {
            self.place(0, len);
        }
        self.bytes.extend_from_slice(other.entries());
        self.count += other.count;
    }
}

/// The allocator's size class: four per power of two.
fn size_class(bytes: usize) -> usize {
    match bytes {
        0..=128 => bytes.next_multiple_of(16),
        _ => {
            let step = 1 << ((bytes - 1).ilog2() - 2);
            bytes.next_multiple_of(step)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn texts(run: &Run) -> Vec<Vec<u8>> {
        let (mut at, mut texts) = (0, Vec::new());
        while let Some((element, len)) = listpack::first(&run.entries()[at..]) {
            texts.push(element.text().as_ref().to_vec());
            at += len;
        }
        assert_eq!(texts.len(), run.count());
        assert_eq!(listpack::count(run.entries()), Some(run.count()));
        texts
    }

    #[test]
    fn capacities_are_what_the_allocator_gives() {
        for (bytes, class) in
            [(0, 0), (1, 16), (128, 128), (129, 160), (1024, 1024), (1025, 1280), (8185, 8192)]
        {
            assert_eq!(size_class(bytes), class);
        }
    }

    #[test]
    fn pushing_moves_a_run_seldom_at_either_end_and_takes_no_room_beyond_its_limit() {
        for end in [End::Front, End::Back] {
            let mut run = Run::default();
            let (mut moves, mut capacity) = (0, 0);
            while run.len() + 12 <= 8192 {
                run.push(end, Element::Bytes(b"0123456789"), 8192);
                moves += usize::from(capacity != run.heap_bytes());
                capacity = run.heap_bytes();
            }
            assert!(moves < 40, "{moves} moves");
            assert_eq!(capacity, 8192);
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Push(bool, Vec<u8>),
        Pop(bool),
        Drop(bool, usize),
        Insert(usize, Vec<u8>),
        Replace(usize, Vec<u8>),
        Remove(bool, Vec<u8>, usize),
        Split(usize),
        Shrink,
    }

    fn step() -> impl Strategy<Value = Step> {
        let text = || {
            prop_oneof![
                (0..5i64).prop_map(|value| value.to_string().into_bytes()),
                (0..300usize).prop_map(|len| vec![b'x'; len]),
            ]
        };
        prop_oneof![
            6 => (any::<bool>(), text()).prop_map(|(front, text)| Step::Push(front, text)),
            2 => any::<bool>().prop_map(Step::Pop),
            1 => (any::<bool>(), 0..4usize).prop_map(|(front, count)| Step::Drop(front, count)),
            2 => (any::<usize>(), text()).prop_map(|(at, text)| Step::Insert(at, text)),
            2 => (any::<usize>(), text()).prop_map(|(at, text)| Step::Replace(at, text)),
            1 => (any::<bool>(), text(), 0..4usize)
                .prop_map(|(front, text, most)| Step::Remove(front, text, most)),
            1 => any::<usize>().prop_map(Step::Split),
            1 => Just(Step::Shrink),
        ]
    }

    fn end(front: bool) -> End {
        if front { End::Front } else { End::Back }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(96))]
        #[test]
        fn a_run_does_what_a_vector_does(steps in prop::collection::vec(step(), 0..80)) {
            let (mut run, mut model) = (Run::default(), Vec::<Vec<u8>>::new());
            for step in steps {
                match step {
                    Step::Push(front, text) => {
                        run.push(end(front), Element::new(&text), 8192);
                        model.insert(if front { 0 } else { model.len() }, text);
                    }
                    Step::Pop(front) => {
                        let len = run.peek(end(front)).map(|(_, len)| len);
                        prop_assert_eq!(len.is_none(), model.is_empty());
                        if let Some(len) = len {
                            run.drop_one(end(front), len);
                            model.remove(if front { 0 } else { model.len() - 1 });
                        }
                    }
                    Step::Drop(front, count) => {
                        run.drop_many(end(front), count);
                        let count = count.min(model.len());
                        model.drain(if front { 0..count } else { model.len() - count..model.len() });
                    }
                    Step::Insert(at, text) => {
                        let at = at % (model.len() + 1);
                        run.insert(run.seek(at), Element::new(&text));
                        model.insert(at, text);
                    }
                    Step::Replace(at, text) => {
                        let at = at % (model.len() + 1);
                        let replaced = run.replace(run.seek(at), Element::new(&text));
                        prop_assert_eq!(replaced, at < model.len());
                        if replaced {
                            model[at] = text;
                        }
                    }
                    Step::Remove(front, text, most) => {
                        let removed = run.remove(end(front), Element::new(&text), most);
                        let mut indexes: Vec<usize> =
                            (0..model.len()).filter(|&index| model[index] == text).collect();
                        if !front {
                            indexes.reverse();
                        }
                        indexes.truncate(most);
                        prop_assert_eq!(removed, indexes.len());
                        indexes.sort_unstable();
                        for index in indexes.into_iter().rev() {
                            model.remove(index);
                        }
                    }
                    Step::Split(index) => {
                        let index = index % (model.len() + 1);
                        let behind = run.split_off(run.seek(index), index);
                        prop_assert_eq!(&texts(&behind), &model[index..]);
                        prop_assert_eq!(&texts(&run), &model[..index]);
                        run.append(&behind);
                    }
                    Step::Shrink => run.shrink_to_fit(),
                }
                prop_assert_eq!(&texts(&run), &model);
                prop_assert_eq!(&texts(&run.clone()), &model);
            }
            let (bytes, start) = run.clone().into_storage(2);
            prop_assert!(start >= 2);
            prop_assert_eq!(&bytes[start..], run.entries());
        }
    }
}
