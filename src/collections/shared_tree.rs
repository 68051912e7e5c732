//! A sequence in a B+tree whose clones share all nodes until one changes (copy-on-write).
//!
//! ```text
//!   root:  | node, len, first key | ... |        up to 64 children, each counted by reference
//!   leaf:  | item | item | ... |                 up to 64 items
//! ```
//!
//! Cloning a tree of any size increments at most 64 reference counts, and each later change copies
//! at most one path of nodes, once. So a snapshot clones a collection of any size at once, and
//! another thread reads it while it changes. A short sequence is its root, a leaf: a double-ended
//! queue with nothing around it.
//!
//! Items are found by index, or in sequences ordered by their keys by binary search: a node knows
//! the first key below each child. At both ends of the sequence nodes are filled completely, where
//! others are split in halves.

use std::collections::{VecDeque, vec_deque};
use std::ops::{Index, IndexMut};

use super::shared::{Arc, Part, own};

/// The most items of a leaf, and children of an inner node.
const WIDTH: usize = 64;
/// A node with fewer items or children is merged with a neighbour if both together fill at most
/// half a node.
const WIDTH_MIN: usize = WIDTH / 4;
/// Children sampled to estimate the size of all.
const SAMPLES: usize = 4;

/// An item of a tree.
pub trait Item: Clone {
    /// `()` if the items are not ordered by a key.
    type Key: Clone + std::fmt::Debug;

    /// Its key. Does not change while the item is in the tree.
    fn key(&self) -> &Self::Key;

    /// Bytes of heap memory that are freed with it.
    fn freed_bytes(&self) -> usize {
        0
    }
}

/// A sequence, see the module's text.
#[derive(Clone, Debug)]
pub struct SharedTree<T: Item> {
    root: Node<T>,
    len: usize,
}

#[derive(Clone, Debug)]
enum Node<T: Item> {
    Leaf(VecDeque<T>),
    /// Not empty, and all children have the same height.
    Inner(VecDeque<Child<T>>),
}

/// A child, which is not empty.
#[derive(Debug)]
struct Child<T: Item> {
    node: Arc<Node<T>>,
    /// Number of items below it.
    len: usize,
    first: T::Key,
}

impl<T: Item> Clone for Child<T> {
    fn clone(&self) -> Self {
        Child { node: self.node.clone(), len: self.len, first: self.first.clone() }
    }
}

impl<T: Item> Child<T> {
    fn new(node: Node<T>) -> Self {
        Child { len: node.len(), first: node.first().clone(), node: Arc::new(node) }
    }
}

impl<T: Item> Default for Node<T> {
    fn default() -> Self {
        Node::Leaf(VecDeque::new())
    }
}

impl<T: Item> Part for Node<T> {
    fn heap_bytes(&self) -> usize {
        match self {
            Node::Leaf(items) => items.capacity() * size_of::<T>(),
            Node::Inner(children) => children.capacity() * size_of::<Child<T>>(),
        }
    }

    fn freed_bytes(&self) -> usize {
        let below: usize = match self {
            Node::Leaf(items) => items.iter().map(T::freed_bytes).sum(),
            Node::Inner(children) => children.iter().map(|child| child.node.freed_bytes()).sum(),
        };
        self.heap_bytes() + below
    }
}

/// The ends of the sequence at which a node is: there it is not split in halves.
#[derive(Clone, Copy)]
struct Ends {
    front: bool,
    back: bool,
}

impl<T: Item> Node<T> {
    fn len(&self) -> usize {
        match self {
            Node::Leaf(items) => items.len(),
            Node::Inner(children) => children.iter().map(|child| child.len).sum(),
        }
    }

    /// Number of items or children.
    fn width(&self) -> usize {
        match self {
            Node::Leaf(items) => items.len(),
            Node::Inner(children) => children.len(),
        }
    }

    /// Bytes of heap memory of the node and those below, estimated from some of them.
    fn bytes_below(&self) -> usize {
        let Node::Inner(children) = self else { return self.heap_bytes() };
        let step = children.len().div_ceil(SAMPLES);
        // Not the first child, which may be nearly empty.
        let sampled = children.iter().skip(step / 2).step_by(step);
        let samples = sampled.len();
        let node = size_of::<usize>() + size_of::<Node<T>>();
        let sum: usize = sampled.map(|child| node + child.node.bytes_below()).sum();
        self.heap_bytes() + sum * children.len() / samples
    }

    fn first(&self) -> &T::Key {
        match self {
            Node::Leaf(items) => items[0].key(),
            Node::Inner(children) => &children[0].first,
        }
    }

    /// Inserts an item into a vector of `len` items. Returns a new right neighbour if the node was
    /// full.
    fn insert(&mut self, len: usize, index: usize, item: T, ends: Ends) -> Option<Node<T>> {
        match self {
            Node::Leaf(items) => {
                if items.len() < WIDTH {
                    items.insert(index, item);
                    return None;
                }
                let mut upper = match index {
                    WIDTH if ends.back => VecDeque::new(),
                    0 if ends.front => std::mem::take(items),
                    _ => items.split_off(WIDTH / 2),
                };
                match index.checked_sub(items.len()) {
                    Some(index) if index > 0 || upper.is_empty() => upper.insert(index, item),
                    _ => items.insert(index, item),
                }
                Some(Node::Leaf(upper))
            }
            Node::Inner(children) => {
                let (at, within) = locate_gap(children, len, index);
                let ends = Ends {
                    front: ends.front && at == 0,
                    back: ends.back && at + 1 == children.len(),
                };
                let child = &mut children[at];
                let new = own(&mut child.node).insert(child.len, within, item, ends);
                child.len += 1;
                if within == 0 {
                    child.first = child.node.first().clone();
                }
                let new = Child::new(new?);
                child.len -= new.len;
                children.insert(at + 1, new);
                if children.len() <= WIDTH {
                    return None;
                }
                let upper = children.split_off(match (ends.front, ends.back) {
                    (_, true) => WIDTH,
                    (true, _) => 1,
                    _ => WIDTH / 2,
                });
                children.shrink_to_fit();
                Some(Node::Inner(upper))
            }
        }
    }

    /// Removes one of `len` items. The node may be empty afterwards.
    fn remove(&mut self, len: usize, index: usize) -> T {
        match self {
            Node::Leaf(items) => {
                let item =
                    items.remove(index).expect("the caller has compared the index with the length");
                if items.len() * 4 <= items.capacity() {
                    items.shrink_to(items.len() * 2);
                }
                item
            }
            Node::Inner(children) => {
                let (at, within) = locate(children, len, index);
                let child = &mut children[at];
                let item = own(&mut child.node).remove(child.len, within);
                child.len -= 1;
                if child.len == 0 {
                    children.remove(at);
                } else {
                    if within == 0 {
                        child.first = child.node.first().clone();
                    }
                    if child.node.width() < WIDTH_MIN {
                        merge(children, at);
                    }
                }
                item
            }
        }
    }
}

/// The child with one of `len` items, and the item's index there. Looked for from the nearer end.
#[inline]
fn locate<T: Item>(children: &VecDeque<Child<T>>, len: usize, index: usize) -> (usize, usize) {
    let (mut at, mut start);
    if index <= len / 2 {
        (at, start) = (0, 0);
        while index >= start + children[at].len {
            start += children[at].len;
            at += 1;
        }
    } else {
        (at, start) = (children.len() - 1, len - children[children.len() - 1].len);
        while index < start {
            at -= 1;
            start -= children[at].len;
        }
    }
    (at, index - start)
}

/// The child with the gap before an item, or at the end of `len` items.
#[inline]
fn locate_gap<T: Item>(children: &VecDeque<Child<T>>, len: usize, index: usize) -> (usize, usize) {
    if index < len {
        return locate(children, len, index);
    }
    let last = children.len() - 1;
    (last, children[last].len)
}

/// Merges a child with its next or previous neighbour, if both are short.
fn merge<T: Item>(children: &mut VecDeque<Child<T>>, at: usize) {
    let width = children[at].node.width();
    let fits = |other: &Child<T>| width + other.node.width() <= WIDTH / 2;
    let at = match at.checked_sub(1) {
        _ if children.get(at + 1).is_some_and(fits) => at,
        Some(before) if fits(&children[before]) => before,
        _ => return,
    };
    let Some(second) = children.remove(at + 1) else { return };
    let first = &mut children[at];
    first.len += second.len;
    match (own(&mut first.node), Arc::unwrap_or_clone(second.node)) {
        (Node::Leaf(items), Node::Leaf(mut more)) => items.append(&mut more),
        (Node::Inner(children), Node::Inner(mut more)) => children.append(&mut more),
        _ => unreachable!("all children have the same height"),
    }
}

impl<T: Item> Default for SharedTree<T> {
    fn default() -> Self {
        SharedTree { root: Node::default(), len: 0 }
    }
}

impl<T: Item> Index<usize> for SharedTree<T> {
    type Output = T;

    #[inline]
    fn index(&self, index: usize) -> &T {
        self.get(index).expect("an index within the length")
    }
}

impl<T: Item> IndexMut<usize> for SharedTree<T> {
    #[inline]
    fn index_mut(&mut self, index: usize) -> &mut T {
        self.get_mut(index).expect("an index within the length")
    }
}

impl<T: Item> SharedTree<T> {
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn get(&self, index: usize) -> Option<&T> {
        let (items, within) = self.leaf_of(index)?;
        items.get(within)
    }

    /// The leaf with an item, and the item's index there.
    fn leaf_of(&self, mut index: usize) -> Option<(&VecDeque<T>, usize)> {
        if index >= self.len {
            return None;
        }
        let (mut node, mut len) = (&self.root, self.len);
        loop {
            match node {
                Node::Leaf(items) => return Some((items, index)),
                Node::Inner(children) => {
                    let (at, within) = locate(children, len, index);
                    (node, len, index) = (&children[at].node, children[at].len, within);
                }
            }
        }
    }

    /// An item, to be changed. Copies the parts that clones share.
    pub fn get_mut(&mut self, mut index: usize) -> Option<&mut T> {
        if index >= self.len {
            return None;
        }
        let (mut node, mut len) = (&mut self.root, self.len);
        loop {
            match node {
                Node::Leaf(items) => return items.get_mut(index),
                Node::Inner(children) => {
                    let (at, within) = locate(children, len, index);
                    let child = &mut children[at];
                    (node, len, index) = (own(&mut child.node), child.len, within);
                }
            }
        }
    }

    #[inline]
    pub fn front(&self) -> Option<&T> {
        let mut node = &self.root;
        loop {
            match node {
                Node::Leaf(items) => return items.front(),
                Node::Inner(children) => node = &children.front()?.node,
            }
        }
    }

    #[inline]
    pub fn back(&self) -> Option<&T> {
        let mut node = &self.root;
        loop {
            match node {
                Node::Leaf(items) => return items.back(),
                Node::Inner(children) => node = &children.back()?.node,
            }
        }
    }

    #[inline]
    pub fn front_mut(&mut self) -> Option<&mut T> {
        let mut node = &mut self.root;
        loop {
            match node {
                Node::Leaf(items) => return items.front_mut(),
                Node::Inner(children) => node = own(&mut children.front_mut()?.node),
            }
        }
    }

    #[inline]
    pub fn back_mut(&mut self) -> Option<&mut T> {
        let mut node = &mut self.root;
        loop {
            match node {
                Node::Leaf(items) => return items.back_mut(),
                Node::Inner(children) => node = own(&mut children.back_mut()?.node),
            }
        }
    }

    #[inline]
    pub fn push_back(&mut self, item: T) {
        self.insert(self.len, item);
    }

    #[inline]
    pub fn push_front(&mut self, item: T) {
        self.insert(0, item);
    }

    #[inline]
    pub fn pop_front(&mut self) -> Option<T> {
        self.remove(0)
    }

    #[inline]
    pub fn pop_back(&mut self) -> Option<T> {
        self.remove(self.len.wrapping_sub(1))
    }

    /// Inserts an item before another one, or at the end. Panics beyond that.
    pub fn insert(&mut self, index: usize, item: T) {
        assert!(index <= self.len, "an index within the length");
        let (len, ends) = (self.len, Ends { front: true, back: true });
        self.len += 1;
        if let Some(new) = self.root.insert(len, index, item, ends) {
            let old = std::mem::take(&mut self.root);
            self.root = Node::Inner(VecDeque::from([Child::new(old), Child::new(new)]));
        }
    }

    /// Removes an item. None: there is none with this index.
    pub fn remove(&mut self, index: usize) -> Option<T> {
        if index >= self.len {
            return None;
        }
        let item = self.root.remove(self.len, index);
        self.len -= 1;
        while let Node::Inner(children) = &mut self.root
            && children.len() < 2
        {
            let child = children.pop_front().map(|child| Arc::unwrap_or_clone(child.node));
            self.root = child.unwrap_or_default();
        }
        Some(item)
    }

    /// The number of items at the beginning whose keys satisfy a predicate, which no later one
    /// satisfies.
    pub fn partition_point(&self, mut is_before: impl FnMut(&T::Key) -> bool) -> usize {
        let (mut node, mut before) = (&self.root, 0);
        loop {
            match node {
                Node::Leaf(items) => {
                    return before + items.partition_point(|item| is_before(item.key()));
                }
                Node::Inner(children) => {
                    let at = children.partition_point(|child| is_before(&child.first));
                    let at = at.saturating_sub(1);
                    before += children.range(..at).map(|child| child.len).sum::<usize>();
                    node = &children[at].node;
                }
            }
        }
    }

    pub fn iter(&self) -> Iter<'_, T> {
        self.range(0, self.len)
    }

    /// The items from one index to before another one.
    pub fn range(&self, from: usize, to: usize) -> Iter<'_, T> {
        let to = to.min(self.len);
        Iter { tree: Some(self), from: from.min(to), to, ..Iter::default() }
    }

    /// Bytes of heap memory, without memory owned by items; for a long sequence an estimate from
    /// some of its nodes.
    pub fn heap_bytes(&self) -> usize {
        self.root.bytes_below()
    }

    /// Bytes of heap memory that are freed with it.
    pub fn freed_bytes(&self) -> usize {
        self.root.freed_bytes()
    }

    /// The approximate number of allocations.
    pub fn nodes(&self) -> usize {
        1 + self.len / (WIDTH / 2)
    }
}

impl<'a, T: Item> IntoIterator for &'a SharedTree<T> {
    type Item = &'a T;
    type IntoIter = Iter<'a, T>;

    fn into_iter(self) -> Iter<'a, T> {
        self.iter()
    }
}

/// Iterates over items from both ends.
#[derive(Debug)]
pub struct Iter<'a, T: Item> {
    front: vec_deque::Iter<'a, T>,
    /// The items between those of `front` and `back`.
    tree: Option<&'a SharedTree<T>>,
    from: usize,
    to: usize,
    back: vec_deque::Iter<'a, T>,
}

impl<T: Item> Clone for Iter<'_, T> {
    fn clone(&self) -> Self {
        let Iter { front, tree, from, to, back } = self;
        Iter { front: front.clone(), tree: *tree, from: *from, to: *to, back: back.clone() }
    }
}

impl<T: Item> Default for Iter<'_, T> {
    fn default() -> Self {
        let (front, back) = (vec_deque::Iter::default(), vec_deque::Iter::default());
        Iter { front, tree: None, from: 0, to: 0, back }
    }
}

impl<'a, T: Item> Iter<'a, T> {
    /// The items of the next leaf. None: there are only those of `back`.
    #[cold]
    fn next_leaf(&mut self) -> Option<vec_deque::Iter<'a, T>> {
        let left = self.to - self.from;
        let (items, within) = self.tree.filter(|_| left > 0)?.leaf_of(self.from)?;
        let end = items.len().min(within + left);
        self.from += end - within;
        Some(items.range(within..end))
    }

    /// The items of the last leaf.
    #[cold]
    fn last_leaf(&mut self) -> Option<vec_deque::Iter<'a, T>> {
        let left = self.to - self.from;
        let (items, within) = self.tree.filter(|_| left > 0)?.leaf_of(self.to - 1)?;
        let start = (within + 1).saturating_sub(left);
        self.to -= within + 1 - start;
        Some(items.range(start..within + 1))
    }
}

impl<'a, T: Item> Iterator for Iter<'a, T> {
    type Item = &'a T;

    #[inline]
    fn next(&mut self) -> Option<&'a T> {
        loop {
            if let Some(item) = self.front.next() {
                return Some(item);
            }
            match self.next_leaf() {
                Some(leaf) => self.front = leaf,
                None => return self.back.next(),
            }
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let len = self.front.len() + (self.to - self.from) + self.back.len();
        (len, Some(len))
    }
}

impl<'a, T: Item> DoubleEndedIterator for Iter<'a, T> {
    #[inline]
    fn next_back(&mut self) -> Option<&'a T> {
        loop {
            if let Some(item) = self.back.next_back() {
                return Some(item);
            }
            match self.last_leaf() {
                Some(leaf) => self.back = leaf,
                None => return self.front.next_back(),
            }
        }
    }
}

impl<T: Item> ExactSizeIterator for Iter<'_, T> {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug, PartialEq)]
    struct Number(u32);

    impl Item for Number {
        type Key = u32;

        fn key(&self) -> &u32 {
            &self.0
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Back(u16),
        Front(u16),
        PopBack(u16),
        PopFront(u16),
        /// A number of items, at or from this place.
        Insert(u32, u16),
        Remove(u32, u16),
        /// Items at a regular distance, from this place on.
        Thin(u32, u16),
        Change(u32),
        Share,
    }

    fn step() -> impl Strategy<Value = Step> {
        let few = || prop_oneof![3 => 0..70u16, 1 => 0..3000u16];
        prop_oneof![
            3 => few().prop_map(Step::Back),
            2 => few().prop_map(Step::Front),
            1 => few().prop_map(Step::PopBack),
            1 => few().prop_map(Step::PopFront),
            2 => (any::<u32>(), few()).prop_map(|(at, count)| Step::Insert(at, count)),
            2 => (any::<u32>(), few()).prop_map(|(at, count)| Step::Remove(at, count)),
            1 => (any::<u32>(), few()).prop_map(|(at, count)| Step::Thin(at, count)),
            2 => any::<u32>().prop_map(Step::Change),
            1 => Just(Step::Share),
        ]
    }

    /// Checks the form of a node: its height, and whether children know their lengths and first
    /// keys.
    fn height(node: &Node<Number>) -> usize {
        assert!(node.width() <= WIDTH);
        let Node::Inner(children) = node else { return 0 };
        let mut heights = children.iter().map(|child| {
            assert_eq!((child.len, child.first), (child.node.len(), *child.node.first()));
            assert!(child.len > 0);
            height(&child.node)
        });
        let first = heights.next().expect("an inner node has children");
        assert!(heights.all(|other| other == first));
        first + 1
    }

    fn check(tree: &SharedTree<Number>, model: &VecDeque<Number>) {
        assert_eq!(
            (tree.len(), tree.root.len(), tree.is_empty()),
            (model.len(), model.len(), model.is_empty())
        );
        height(&tree.root);
        assert!(tree.iter().eq(model));
        assert!(tree.iter().rev().eq(model.iter().rev()));
        assert_eq!((tree.front(), tree.back()), (model.front(), model.back()));
        let (from, to) = (model.len() / 3, model.len() - model.len() / 4);
        let mut range = tree.range(from, to);
        let mut expected = model.range(from..to.max(from));
        while let Some(item) = expected.next() {
            assert_eq!(range.len(), expected.len() + 1);
            assert_eq!(range.next(), Some(item));
            assert_eq!(range.next_back(), expected.next_back());
        }
        assert_eq!((range.next(), range.next_back()), (None, None));
        for at in (0..model.len() + 2).step_by(7) {
            assert_eq!(tree.get(at), model.get(at));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 96 }))]

        #[test]
        fn a_tree_is_a_sequence_and_its_clones_stay_what_they_were(steps in prop::collection::vec(step(), 0..30)) {
            let mut tree = SharedTree::default();
            let mut model = VecDeque::new();
            let mut clones = Vec::new();
            let mut fresh = 0;
            let mut next = || {
                fresh += 1;
                Number(fresh)
            };
            for step in steps {
                let place = |at: u32, len: usize| at as usize % (len + 1);
                match step {
                    Step::Back(count) => (0..count).for_each(|_| {
                        let item = next();
                        tree.push_back(item.clone());
                        model.push_back(item);
                    }),
                    Step::Front(count) => (0..count).for_each(|_| {
                        let item = next();
                        tree.push_front(item.clone());
                        model.push_front(item);
                    }),
                    Step::PopBack(count) => (0..count).for_each(|_| assert_eq!(tree.pop_back(), model.pop_back())),
                    Step::PopFront(count) => (0..count).for_each(|_| assert_eq!(tree.pop_front(), model.pop_front())),
                    Step::Insert(at, count) => {
                        let at = place(at, model.len());
                        (0..count).for_each(|_| {
                            let item = next();
                            tree.insert(at, item.clone());
                            model.insert(at, item);
                        });
                    }
                    Step::Remove(at, count) => {
                        let at = place(at, model.len());
                        (0..count).for_each(|_| assert_eq!(tree.remove(at), model.remove(at)));
                    }
                    Step::Thin(at, count) => {
                        let mut at = place(at, model.len());
                        while at < model.len() {
                            assert_eq!(tree.remove(at), model.remove(at));
                            at += 1 + usize::from(count % 5);
                        }
                    }
                    Step::Change(at) => {
                        let at = place(at, model.len());
                        assert_eq!(tree.get_mut(at), model.get_mut(at));
                        assert_eq!(tree.front_mut(), model.front_mut());
                        assert_eq!(tree.back_mut(), model.back_mut());
                    }
                    Step::Share => clones.push((tree.clone(), model.clone())),
                }
                height(&tree.root);
            }
            clones.push((tree, model));
            for (tree, model) in clones {
                check(&tree, &model);
            }
        }
    }

    #[test]
    fn a_change_copies_one_path_once() {
        use crate::collections::shared::copied_bytes;
        let mut tree = SharedTree::default();
        (0..500_000).for_each(|number| tree.push_back(Number(number)));
        let clone = tree.clone();
        let before = copied_bytes();
        tree.remove(250_000);
        let copied = copied_bytes() - before;
        assert!((1..32 * 1024).contains(&copied), "{copied} bytes");
        let before = copied_bytes();
        tree.remove(250_000);
        assert_eq!(copied_bytes(), before);
        assert_eq!((clone.len(), tree.len()), (500_000, 499_998));
        assert_eq!(clone[250_001], Number(250_001));
    }

    #[test]
    fn sequences_that_grow_at_an_end_fill_their_nodes() {
        let (mut one, mut other) = (SharedTree::default(), SharedTree::default());
        for number in 0..10_000 {
            one.push_back(Number(number));
            other.push_front(Number(10_000 - number));
        }
        for tree in [&mut one, &mut other] {
            assert!(tree.heap_bytes() < 10_000 * 6, "{} bytes", tree.heap_bytes());
            let mut at = 0;
            while at < tree.len() {
                at += 1;
                (0..63).for_each(|_| _ = tree.remove(at));
            }
            assert_eq!(tree.len(), 10_000_usize.div_ceil(64));
            assert!(tree.heap_bytes() < 160 * 30, "{} bytes", tree.heap_bytes());
        }
    }
}
