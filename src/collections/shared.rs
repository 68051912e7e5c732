//! A vector whose clones share groups of its elements until one changes (copy-on-write).
//!
//! ```text
//!   first:  | 0 | 1 | ... | 15 |                 cloned with the vector: small ones pay nothing for the groups
//!   groups: | -> | -> | ... | -> |               counted: 16 elements each
//! ```
//!
//! Cloning a large collection increments a reference count for every 16 parts, and each later change copies at most one group,
//! once. So a snapshot clones a collection of any size at once, and another thread reads it while it changes.

use std::ops::{Index, IndexMut};
use std::sync::atomic::{AtomicUsize, Ordering};

use triomphe::Arc;

use crate::collections::prefetch::prefetch;

/// Elements of a group, a power of two.
const GROUP: usize = 16;

/// Bytes copied since the start because clones shared them.
static COPIED: AtomicUsize = AtomicUsize::new(0);

/// Bytes copied since the start because clones shared them.
pub fn copied_bytes() -> usize {
    COPIED.load(Ordering::Relaxed)
}

/// A part that is copied on a change while clones share it.
pub trait Part: Clone + Default {
    /// Bytes of heap memory owned.
    fn heap_bytes(&self) -> usize;
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
    COPIED.fetch_add(size_of::<T>() + shared.heap_bytes(), Ordering::Relaxed);
    *shared = Arc::new(T::clone(shared));
}

/// A vector, see the module's text.
#[derive(Clone, Debug)]
pub struct SharedVec<T: Part> {
    /// The first elements, up to the size of a group.
    first: Vec<T>,
    groups: Vec<Arc<Group<T>>>,
    len: usize,
}

/// The elements of a group. Every group but the last is full; its places behind the vector's end hold default values.
/// Aligned, so that no element of 16 bytes lies in two cache lines.
#[derive(Clone, Debug, Default)]
#[repr(align(16))]
struct Group<T>([T; GROUP]);

impl<T: Part> Part for Group<T> {
    fn heap_bytes(&self) -> usize {
        self.0.iter().map(T::heap_bytes).sum::<usize>()
    }
}

impl<T: Part> Default for SharedVec<T> {
    fn default() -> Self {
        SharedVec { first: Vec::new(), groups: Vec::new(), len: 0 }
    }
}

impl<T: Part> Index<usize> for SharedVec<T> {
    type Output = T;

    #[inline]
    fn index(&self, index: usize) -> &T {
        match index.checked_sub(GROUP) {
            None => &self.first[index],
            Some(behind) => &self.groups[behind / GROUP].0[behind % GROUP],
        }
    }
}

impl<T: Part> IndexMut<usize> for SharedVec<T> {
    #[inline]
    fn index_mut(&mut self, index: usize) -> &mut T {
        match index.checked_sub(GROUP) {
            None => &mut self.first[index],
            Some(behind) => &mut own(&mut self.groups[behind / GROUP]).0[behind % GROUP],
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
        let last = self.groups.get(full).map_or(&[][..], |last| &last.0[..self.len % GROUP]);
        let full = self.groups[..full].iter().flat_map(|group| &group.0);
        self.first.iter().chain(full).chain(last)
    }

    /// Prefetches an element, and what a change of it looks at: whether it is shared. Reads no element or group.
    #[inline]
    pub fn prefetch(&self, index: usize) {
        let Some(behind) = index.checked_sub(GROUP) else {
            return prefetch(std::ptr::from_ref(&self.first[index]).addr());
        };
        let group = &self.groups[behind / GROUP];
        prefetch(group.heap_ptr().addr());
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
        match self.groups.last_mut() {
            Some(last) if place > 0 => own(last).0[place] = element,
            _ => {
                let mut group = Group::default();
                group.0[0] = element;
                self.groups.push(Arc::new(group));
            }
        }
    }

    /// Removes the last element.
    pub fn pop(&mut self) -> Option<T> {
        let Some(last) = self.groups.last_mut() else {
            let last = self.first.pop()?;
            self.len -= 1;
            if self.first.len() * 2 < self.first.capacity() {
                self.first.shrink_to(self.first.len() + self.first.len() / 8);
            }
            return Some(last);
        };
        self.len -= 1;
        let place = self.len % GROUP;
        let element = std::mem::take(&mut own(last).0[place]);
        if place == 0 {
            self.groups.pop();
            if self.groups.len() * 2 < self.groups.capacity() {
                self.groups.shrink_to(self.groups.len() + self.groups.len() / 8);
            }
        }
        Some(element)
    }

    /// Bytes of the vector itself, without memory owned by its elements.
    pub fn heap_bytes(&self) -> usize {
        // With its reference count, padded to the alignment.
        let group = align_of::<Group<T>>() + size_of::<Group<T>>();
        let groups = self.groups.len() * group;
        self.first.capacity() * size_of::<T>()
            + self.groups.capacity() * size_of::<usize>()
            + groups
    }
}

/// Numbered elements, shared in the same way. Freed numbers are reused.
#[derive(Clone, Debug)]
pub struct SharedSlab<T: Part> {
    slots: SharedVec<T>,
    free: Vec<u32>,
}

impl<T: Part> Default for SharedSlab<T> {
    fn default() -> Self {
        SharedSlab { slots: SharedVec::default(), free: Vec::new() }
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

    #[inline]
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

    /// How many elements there are.
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
        self.slots.heap_bytes() + self.free.capacity() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Push(u8),
        Pop(u8),
        Set(usize, u8),
        Share,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => any::<u8>().prop_map(Step::Push),
            2 => any::<u8>().prop_map(Step::Pop),
            3 => (any::<usize>(), any::<u8>()).prop_map(|(at, byte)| Step::Set(at, byte)),
            1 => Just(Step::Share),
        ]
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
                        shared.push(vec![byte]);
                        model.push(vec![byte]);
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
