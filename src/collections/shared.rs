//! A vector whose clones share groups of its elements until one changes (copy-on-write).
//!
//! ```text
//!   first:  | 0 | 1 | ... | 15 |                 cloned with the vector: small ones pay nothing for the groups
//!   groups: | -> | -> | ... | -> |               counted: 16 elements each; up to 256 of them
//!   banks:  | -> 256 groups | -> 256 groups | ...    counted too; instead of the groups, if there are more
//! ```
//!
//! Cloning a large collection increments a reference count for every 4,096 parts, and each later
//! change copies at most one bank and one group, once. So a snapshot clones a collection of any
//! size at once, and another thread reads it while it changes.
//!
//! A part that only a snapshot still has is counted ([`given_up_bytes`]): it is no longer data, and
//! is freed once the snapshot is written.

use std::cell::Cell;
use std::ops::{Deref, Index, IndexMut};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::collections::prefetch::prefetch;
use crate::sys::alloc;

/// Elements of a group, a power of two.
const GROUP: usize = 16;
/// Groups of a bank, a power of two.
const BANK: usize = 256;

/// The limit of bytes that a change may copy of a shared part: checked if assertions are on.
const COPY_BYTES_MAX: isize = 256 << 10;

thread_local! {
    static COPIED: Cell<usize> = const { Cell::new(0) };
}

/// Bytes that this thread has copied because clones shared them.
pub fn copied_bytes() -> usize {
    COPIED.get()
}

/// Bytes of parts that were dropped, or replaced with a copy, while a clone also had them.
static GIVEN_UP: AtomicUsize = AtomicUsize::new(0);

/// Bytes of parts that were dropped since the start while another owner also had them, except those
/// that [a snapshot](alloc::counted) dropped.
pub fn given_up_bytes() -> usize {
    GIVEN_UP.load(Ordering::Relaxed)
}

/// A part that is copied on a change while clones share it.
pub trait Part: Clone + Default {
    /// Bytes of heap memory owned, which a copy has too.
    fn heap_bytes(&self) -> usize;

    /// Bytes of heap memory that are freed with it.
    fn freed_bytes(&self) -> usize {
        self.heap_bytes()
    }
}

/// A counted reference to a part.
#[derive(Debug, Default)]
pub struct Arc<T: Part> {
    counted: triomphe::Arc<T>,
}

impl<T: Part> Arc<T> {
    pub fn new(part: T) -> Self {
        Arc { counted: triomphe::Arc::new(part) }
    }

    /// Whether nobody else has it.
    #[inline]
    pub fn is_unique(&self) -> bool {
        self.counted.is_unique()
    }

    /// The part, unless somebody else has it.
    #[inline]
    pub fn get_mut(this: &mut Self) -> Option<&mut T> {
        triomphe::Arc::get_mut(&mut this.counted)
    }

    /// The part; a copy if somebody else has it.
    pub fn unwrap_or_clone(mut this: Self) -> T {
        std::mem::take(own(&mut this))
    }

    /// Bytes that are freed with this reference: none if somebody else has the part.
    pub fn freed_bytes(&self) -> usize {
        if self.is_unique() { self.own_bytes() + self.counted.freed_bytes() } else { 0 }
    }

    /// Bytes of the part itself, with the reference count.
    fn own_bytes(&self) -> usize {
        size_of::<T>() + align_of::<T>().max(size_of::<usize>())
    }

    fn address(&self) -> usize {
        self.counted.heap_ptr().addr()
    }
}

/// Counts bytes of a part that is dropped while something else has it too. If both are dropped at
/// the same moment, the bytes count until the snapshot ends.
#[cold]
pub fn give_up(bytes: usize) {
    if !alloc::is_counted() {
        GIVEN_UP.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl<T: Part> Clone for Arc<T> {
    #[inline]
    fn clone(&self) -> Self {
        Arc { counted: self.counted.clone() }
    }
}

impl<T: Part> Deref for Arc<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.counted
    }
}

impl<T: Part> Drop for Arc<T> {
    #[inline]
    fn drop(&mut self) {
        if !self.is_unique() {
            give_up(self.own_bytes() + self.counted.freed_bytes());
        }
    }
}

impl Part for Vec<u8> {
    fn heap_bytes(&self) -> usize {
        self.capacity()
    }
}

impl Part for Vec<u64> {
    fn heap_bytes(&self) -> usize {
        self.capacity() * size_of::<u64>()
    }
}

impl Part for u32 {
    fn heap_bytes(&self) -> usize {
        0
    }
}

/// Mutable access to a shared part: copied first if it is shared.
#[inline]
pub fn own<T: Part>(shared: &mut Arc<T>) -> &mut T {
    if !shared.is_unique() {
        copy(shared);
    }
    Arc::get_mut(shared).expect("nobody else has a new copy")
}

#[cold]
fn copy<T: Part>(shared: &mut Arc<T>) {
    COPIED.set(COPIED.get() + size_of::<T>() + shared.heap_bytes());
    let before = alloc::balance();
    *shared = Arc::new(T::clone(shared));
    let made = alloc::balance() - before;
    debug_assert!(made <= COPY_BYTES_MAX, "a change copies {made} bytes");
}

/// A vector, see the module's text.
#[derive(Clone, Debug)]
pub struct SharedVec<T: Part> {
    /// The first elements, up to the size of a group.
    first: Vec<T>,
    groups: Groups<T>,
    len: usize,
}

/// The groups of a vector. Only the last one may be incomplete, and none is empty.
#[derive(Clone, Debug)]
enum Groups<T: Part> {
    /// At most [`BANK`].
    Few(Vec<Arc<Group<T>>>),
    /// Banks, of which only the last one may be incomplete, and none is empty.
    Many(Vec<Arc<Bank<T>>>),
}

/// Groups of a long vector. The places after the last one are None.
#[derive(Debug)]
struct Bank<T: Part>([Option<Arc<Group<T>>>; BANK]);

impl<T: Part> Clone for Bank<T> {
    fn clone(&self) -> Self {
        Bank(self.0.clone())
    }
}

impl<T: Part> Default for Bank<T> {
    fn default() -> Self {
        Bank([const { None }; BANK])
    }
}

impl<T: Part> Part for Bank<T> {
    fn heap_bytes(&self) -> usize {
        0
    }

    fn freed_bytes(&self) -> usize {
        self.0.iter().flatten().map(Arc::freed_bytes).sum()
    }
}

const IN_BANK: &str = "a group within the vector's length";

impl<T: Part> Groups<T> {
    #[inline]
    fn get(&self, number: usize) -> &Arc<Group<T>> {
        match self {
            Groups::Few(groups) => &groups[number],
            Groups::Many(banks) => banks[number / BANK].0[number % BANK].as_ref().expect(IN_BANK),
        }
    }

    #[inline(always)]
    fn get_mut(&mut self, number: usize) -> &mut Arc<Group<T>> {
        match self {
            Groups::Few(groups) => &mut groups[number],
            Groups::Many(banks) => {
                own(&mut banks[number / BANK]).0[number % BANK].as_mut().expect(IN_BANK)
            }
        }
    }

    /// Appends a group to `number` existing ones.
    fn push(&mut self, number: usize, group: Arc<Group<T>>) {
        match self {
            Groups::Few(groups) if number == BANK => {
                let mut bank = Bank::default();
                bank.0
                    .iter_mut()
                    .zip(groups.drain(..))
                    .for_each(|(place, group)| *place = Some(group));
                let mut next = Bank::default();
                next.0[0] = Some(group);
                *self = Groups::Many(vec![Arc::new(bank), Arc::new(next)]);
            }
            Groups::Few(groups) => groups.push(group),
            Groups::Many(banks) => {
                if number.is_multiple_of(BANK) {
                    banks.push(Arc::default());
                }
                own(&mut banks[number / BANK]).0[number % BANK] = Some(group);
            }
        }
    }

    /// Removes the last group, which has this number.
    fn pop(&mut self, number: usize) {
        match self {
            Groups::Few(groups) => {
                groups.pop();
                if groups.len() * 2 < groups.capacity() {
                    groups.shrink_to(groups.len() + groups.len() / 8);
                }
            }
            // Half a bank remains: a length that goes up and down does not convert it each time.
            Groups::Many(banks) if number == BANK / 2 => {
                let bank = &mut own(&mut banks[0]).0[..number];
                *self = Groups::Few(bank.iter_mut().filter_map(Option::take).collect());
            }
            Groups::Many(banks) => {
                own(&mut banks[number / BANK]).0[number % BANK] = None;
                if number.is_multiple_of(BANK) {
                    banks.pop();
                }
            }
        }
    }

    /// Bytes of the groups' places.
    fn heap_bytes(&self) -> usize {
        match self {
            Groups::Few(groups) => groups.capacity() * size_of::<usize>(),
            Groups::Many(banks) => {
                let bank = size_of::<usize>() + size_of::<Bank<T>>();
                banks.capacity() * size_of::<usize>() + banks.len() * bank
            }
        }
    }
}

/// The elements of a group. Every group but the last is full; its places after the vector's end
/// hold default values. Aligned, so that no element of 16 bytes lies in two cache lines.
#[derive(Clone, Debug, Default)]
#[repr(align(16))]
struct Group<T>([T; GROUP]);

impl<T: Part> Part for Group<T> {
    fn heap_bytes(&self) -> usize {
        self.0.iter().map(T::heap_bytes).sum::<usize>()
    }

    fn freed_bytes(&self) -> usize {
        self.0.iter().map(T::freed_bytes).sum::<usize>()
    }
}

impl<T: Part> Default for SharedVec<T> {
    fn default() -> Self {
        SharedVec { first: Vec::new(), groups: Groups::Few(Vec::new()), len: 0 }
    }
}

impl<T: Part> Index<usize> for SharedVec<T> {
    type Output = T;

    #[inline]
    fn index(&self, index: usize) -> &T {
        match index.checked_sub(GROUP) {
            None => &self.first[index],
            Some(behind) => &self.groups.get(behind / GROUP).0[behind % GROUP],
        }
    }
}

impl<T: Part> IndexMut<usize> for SharedVec<T> {
    #[inline(always)]
    fn index_mut(&mut self, index: usize) -> &mut T {
        match index.checked_sub(GROUP) {
            None => &mut self.first[index],
            Some(behind) => &mut own(self.groups.get_mut(behind / GROUP)).0[behind % GROUP],
        }
    }
}

impl<T: Part> SharedVec<T> {
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements in their order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> + Clone {
        let full = (self.len / GROUP).saturating_sub(1);
        let last = match self.len % GROUP {
            rest if rest > 0 && self.len > GROUP => &self.groups.get(full).0[..rest],
            _ => &[],
        };
        let full = (0..full).flat_map(|number| &self.groups.get(number).0);
        self.first.iter().chain(full).chain(last)
    }

    /// Prefetches an element, and the count that shows a change whether it is shared. Reads no
    /// element or group.
    #[inline]
    pub fn prefetch(&self, index: usize) {
        let Some(behind) = index.checked_sub(GROUP) else {
            return prefetch(std::ptr::from_ref(&self.first[index]).addr());
        };
        let group = self.groups.get(behind / GROUP);
        prefetch(group.address());
        let element = std::ptr::from_ref(&group.0[behind % GROUP]).addr();
        prefetch(element);
        if size_of::<T>() > 16 {
            prefetch(element + size_of::<T>() - 1);
        }
    }

    /// Appends an element. Capacity grows by an eighth, at most a group.
    pub fn push(&mut self, element: T) {
        let place = self.len % GROUP;
        self.len += 1;
        if self.first.len() < GROUP {
            if self.first.len() == self.first.capacity() {
                self.first.reserve_exact((self.first.len() / 8).max(4));
            }
            return self.first.push(element);
        }
        let number = (self.len - 1) / GROUP - 1;
        if place > 0 {
            own(self.groups.get_mut(number)).0[place] = element;
        } else {
            let mut group = Group::default();
            group.0[0] = element;
            self.groups.push(number, Arc::new(group));
        }
    }

    /// Removes the last element.
    pub fn pop(&mut self) -> Option<T> {
        if self.len <= GROUP {
            let last = self.first.pop()?;
            self.len -= 1;
            if self.first.len() * 2 < self.first.capacity() {
                self.first.shrink_to(self.first.len() + self.first.len() / 8);
            }
            return Some(last);
        }
        self.len -= 1;
        let (number, place) = (self.len / GROUP - 1, self.len % GROUP);
        let element = std::mem::take(&mut own(self.groups.get_mut(number)).0[place]);
        if place == 0 {
            self.groups.pop(number);
        }
        Some(element)
    }

    /// Bytes of the vector itself, without memory owned by its elements.
    pub fn heap_bytes(&self) -> usize {
        // With its reference count, padded to the alignment.
        let group = align_of::<Group<T>>() + size_of::<Group<T>>();
        let groups = (self.len.saturating_sub(GROUP)).div_ceil(GROUP) * group;
        self.first.capacity() * size_of::<T>() + self.groups.heap_bytes() + groups
    }
}

/// Numbered elements, shared in the same way. Freed numbers are reused.
#[derive(Clone, Debug)]
pub struct SharedSlab<T: Part> {
    slots: SharedVec<T>,
    free: SharedVec<u32>,
}

impl<T: Part> Default for SharedSlab<T> {
    fn default() -> Self {
        SharedSlab { slots: SharedVec::default(), free: SharedVec::default() }
    }
}

impl<T: Part> SharedSlab<T> {
    #[inline]
    pub fn get(&self, number: u32) -> &T {
        &self.slots[number as usize]
    }

    #[inline]
    pub fn prefetch(&self, number: u32) {
        self.slots.prefetch(number as usize);
    }

    #[inline(always)]
    pub fn get_mut(&mut self, number: u32) -> &mut T {
        &mut self.slots[number as usize]
    }

    /// Adds an element; returns its number.
    pub fn add(&mut self, element: T) -> u32 {
        if let Some(number) = self.free.pop() {
            *self.get_mut(number) = element;
            return number;
        }
        self.slots.push(element);
        (self.slots.len() - 1) as u32
    }

    /// Removes an element, and frees its number.
    pub fn take(&mut self, number: u32) -> T {
        self.free.push(number);
        std::mem::take(self.get_mut(number))
    }

    /// Exchanges the number freed last with `number`, whose element the caller has moved there.
    pub fn free_instead(&mut self, number: u32) {
        self.free.pop();
        self.free.push(number);
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements, and an empty one for each free number.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter()
    }

    /// Bytes without memory owned by the elements.
    pub fn heap_bytes(&self) -> usize {
        self.slots.heap_bytes() + self.free.heap_bytes()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Push(u16),
        Pop(u16),
        Set(usize, u8),
        Share,
    }

    fn step() -> impl Strategy<Value = Step> {
        let count = || prop_oneof![6 => 0..256u16, 1 => 0..9000u16];
        prop_oneof![
            3 => count().prop_map(Step::Push),
            2 => count().prop_map(Step::Pop),
            3 => (any::<usize>(), any::<u8>()).prop_map(|(at, byte)| Step::Set(at, byte)),
            1 => Just(Step::Share),
        ]
    }

    #[test]
    fn a_long_vector_is_cloned_and_changed_in_parts() {
        const LEN: u32 = 1 << 20;
        let mut shared = SharedVec::<u32>::default();
        let number = |index: u32| index.wrapping_mul(7);
        for _ in 0..2 {
            (0..LEN).for_each(|index| shared.push(number(index)));
            assert_eq!(shared.len(), LEN as usize);
            let clone = shared.clone();
            let before = copied_bytes();
            shared[LEN as usize / 2] = 1;
            shared[LEN as usize / 2 + 1] = 1;
            assert!(copied_bytes() - before < 4096, "{} bytes", copied_bytes() - before);
            assert!(clone.heap_bytes() < LEN as usize * 6, "{} bytes", clone.heap_bytes());
            assert!(clone.iter().copied().eq((0..LEN).map(number)));
            shared[LEN as usize / 2] = number(LEN / 2);
            shared[LEN as usize / 2 + 1] = number(LEN / 2 + 1);
            for index in (0..LEN).rev() {
                assert_eq!(shared.pop(), Some(number(index)));
                if index.is_multiple_of(50_000) || index < 6000 && index.is_multiple_of(100) {
                    let at = index as usize / 2;
                    assert!(shared.is_empty() || shared[at] == number(index / 2));
                    assert_eq!(shared.iter().count(), shared.len());
                }
            }
            while shared.pop().is_some() {}
            assert!(clone.iter().copied().eq((0..LEN).map(number)));
        }
    }

    fn contents(shared: &SharedVec<Vec<u8>>) -> Vec<Vec<u8>> {
        assert_eq!(shared.iter().count(), shared.len());
        assert!(shared.iter().rev().eq((0..shared.len()).rev().map(|index| &shared[index])));
        shared.iter().cloned().collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 256 }))]
        #[test]
        fn clones_stay_what_they_were_and_a_vector_is_a_vector(steps in prop::collection::vec(step(), 0..30)) {
            let mut shared = SharedVec::<Vec<u8>>::default();
            let mut model = Vec::new();
            let mut clones = Vec::new();
            for step in steps {
                match step {
                    Step::Push(count) => (0..count).for_each(|byte| {
                        shared.push(vec![byte as u8]);
                        model.push(vec![byte as u8]);
                    }),
                    Step::Pop(count) => (0..count).for_each(|_| assert_eq!(shared.pop(), model.pop())),
                    Step::Set(at, byte) if !model.is_empty() => {
                        let at = at % model.len();
                        shared[at].push(byte);
                        model[at].push(byte);
                    }
                    Step::Set(..) => {}
                    Step::Share => clones.push((shared.clone(), model.clone())),
                }
                prop_assert_eq!(shared.is_empty(), model.is_empty());
            }
            clones.push((shared, model));
            for (shared, model) in clones {
                prop_assert_eq!(contents(&shared), model);
            }
        }
    }

    #[test]
    fn a_change_copies_one_group_once() {
        let mut shared = SharedVec::<Vec<u8>>::default();
        (0..10 * GROUP).for_each(|_| shared.push(vec![0; 100]));
        let clone = shared.clone();
        let is_shared =
            |index: usize| std::ptr::eq(&raw const shared[index], &raw const clone[index]);
        assert!((GROUP..10 * GROUP).all(is_shared));
        let before = &raw const clone[5 * GROUP];
        shared[5 * GROUP + 1][0] = 1;
        let after = &raw const shared[5 * GROUP];
        assert_ne!(before, after);
        shared[5 * GROUP][0] = 1;
        assert_eq!(after, &raw const shared[5 * GROUP]);
        let is_shared =
            |index: usize| std::ptr::eq(&raw const shared[index], &raw const clone[index]);
        assert_eq!((GROUP..10 * GROUP).filter(|&index| is_shared(index)).count(), 8 * GROUP);
        assert_eq!((clone[5 * GROUP][0], clone[5 * GROUP + 1][0]), (0, 0));
    }
}
