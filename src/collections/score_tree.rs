//! Members ordered by score, with ranks: the large form of a sorted set.
//!
//! ```text
//!   inner node    first scores, counts and numbers of up to 256 children
//!     leaf        up to 64 elements in one allocation (score_tree/leaf.rs)
//!   index         tag of a member -> number of its leaf (score_tree/index.rs)
//! ```
//!
//! A B+tree whose inner nodes count the elements below each child, so that a rank is a sum along
//! one path; every range, by score, member or rank, is converted to ranks. Nodes are in slabs and
//! refer to each other by number. They know their parents: a member is found through the index,
//! without comparing scores, and its rank by climbing from its leaf.
//!
//! The index does not store members again. It has the leaf, whose tags show which members to
//! compare. Splitting a leaf re-inserts half of its members in the index: one per insertion on
//! average, of which the processor does many at a time. An index of scores instead of leaves would
//! avoid that, but could not find a member among thousands of equal scores. A tree with a single
//! leaf needs no index, its tags are enough.
//!
//! Elements are ordered by score, then by the member's bytes. Callers must not pass NaN. Zeros of
//! both signs are equal. A leaf's members have less than 4 GiB: requests are shorter.

mod build;
mod index;
mod leaf;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::Range;
use std::sync::LazyLock;

use smallvec::SmallVec;

use super::find::position;
use super::hash::KeyHasher;
use super::prefetch::Ahead;
use super::scan::cut;
use super::shared::{Part, SharedSlab};
pub use build::Descending;
use index::Index;
use leaf::Leaf;

/// The most elements of a leaf.
const LEAF_MAX: usize = 64;
/// The most bytes of a leaf with several elements: long members make short leaves.
const LEAF_BYTES_MAX: usize = 8192;
/// A leaf with fewer elements is merged with a neighbour, if the result is not nearly full.
const LEAF_MIN: usize = 12;
const MERGED_LEAF_MAX: usize = 48;

const CHILDREN_MAX: usize = 256;
const CHILDREN_MIN: usize = 32;
const MERGED_CHILDREN_MAX: usize = 192;

/// The parent of the root.
const NONE: u32 = u32::MAX;

/// One secret for all members: tags only show where to look.
static HASHER: LazyLock<KeyHasher> = LazyLock::new(|| {
    let secret = || RandomState::new().build_hasher().finish();
    KeyHasher::new([secret(), secret()])
});

/// The tag of a member.
#[inline]
fn tag_of(member: &[u8]) -> u32 {
    HASHER.hash(member) as u32
}

/// A gap between elements.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// Before the first element with at least this score.
    BeforeScore(f64),
    /// After the last element with at most this score.
    AfterScore(f64),
    /// The position of this score and member, existing or not.
    Before(f64, &'a [u8]),
    /// Before the first member that is not less; only if all scores are equal.
    BeforeMember(&'a [u8]),
    /// After the last member that is not greater; only if all scores are equal.
    AfterMember(&'a [u8]),
}

/// The number of scores, in ascending order, that are less than `bound`. Without branches: which
/// half a score is in cannot be predicted.
#[inline]
fn less<T>(scores: &[T], bound: f64, score: impl Fn(&T) -> f64) -> usize {
    scores.partition_point(|it| score(it) < bound)
}

/// The same for those that are at most `bound`.
#[inline]
fn at_most<T>(scores: &[T], bound: f64, score: impl Fn(&T) -> f64) -> usize {
    scores.partition_point(|it| score(it) <= bound)
}

impl<'a> Place<'a> {
    /// The number of elements before this place, of elements in order. Members are only looked at
    /// where scores are equal.
    #[inline]
    fn position<'m, T>(
        self,
        scores: &[T],
        score: impl Fn(&T) -> f64,
        member: impl Fn(usize) -> &'m [u8],
    ) -> usize {
        let (mut low, mut high) = (0, scores.len());
        let (than, takes_equal) = match self {
            Place::BeforeScore(bound) => return less(scores, bound, score),
            Place::AfterScore(bound) => return at_most(scores, bound, score),
            Place::Before(bound, than) => {
                low = less(scores, bound, &score);
                if scores.get(low).is_none_or(|it| score(it) != bound) {
                    return low;
                }
                high = low + at_most(&scores[low..], bound, score);
                (than, false)
            }
            Place::BeforeMember(than) => (than, false),
            Place::AfterMember(than) => (than, true),
        };
        while low < high {
            let middle = (low + high) / 2;
            let order = member(middle).cmp(than);
            if order.is_lt() || (takes_equal && order.is_eq()) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }
}

impl Place<'_> {
    /// Whether an element comes before this place. `member` is only called if the scores are equal.
    #[inline]
    pub fn is_behind<M: AsRef<[u8]>>(&self, score: f64, member: impl FnOnce() -> M) -> bool {
        match *self {
            Place::BeforeScore(bound) => score < bound,
            Place::AfterScore(bound) => score <= bound,
            Place::Before(bound, than) => {
                score < bound || (score == bound && member().as_ref() < than)
            }
            Place::BeforeMember(than) => member().as_ref() < than,
            Place::AfterMember(than) => member().as_ref() <= than,
        }
    }
}

/// A member's leaf, its index there, that of its entry in the page of the index, and its tag. Valid
/// until the tree changes.
#[derive(Clone, Copy, Debug)]
pub struct Position {
    leaf: u32,
    at: usize,
    entry: usize,
    tag: u32,
}

/// The inner nodes above a leaf, from the root down, and the index of each one's child.
type Path = SmallVec<[(u32, usize); 8]>;

/// An inner node. The three lists are of equal length.
#[derive(Clone, Debug)]
struct Inner {
    /// First score below each child.
    firsts: Vec<f64>,
    /// Number of elements below each child.
    counts: Vec<usize>,
    children: Vec<u32>,
    parent: u32,
}

impl Default for Inner {
    fn default() -> Self {
        Inner { firsts: Vec::new(), counts: Vec::new(), children: Vec::new(), parent: NONE }
    }
}

impl Inner {
    #[inline]
    fn index_of(&self, child: u32) -> usize {
        position(&self.children, child).expect("a node hangs on its parent")
    }

    /// Number of the node's `len` elements before a child's. Counted from the nearer end.
    #[inline]
    fn before(&self, index: usize, len: usize) -> usize {
        if index <= self.counts.len() / 2 {
            self.counts[..index].iter().sum()
        } else {
            len - self.counts[index..].iter().sum::<usize>()
        }
    }

    /// The child with the element of a rank, among the node's `len` elements, and its rank there.
    #[inline]
    fn locate(&self, mut rank: usize, len: usize) -> (usize, usize) {
        // Whole blocks are skipped at a time.
        const BLOCK: usize = 16;
        let mut index = 0;
        if rank <= len / 2 {
            for block in self.counts.chunks_exact(BLOCK) {
                let count = block.iter().sum::<usize>();
                if rank < count {
                    break;
                }
                rank -= count;
                index += BLOCK;
            }
        } else {
            let mut before = len;
            index = self.counts.len();
            for block in self.counts.rchunks(BLOCK) {
                before -= block.iter().sum::<usize>();
                index -= block.len();
                if before <= rank {
                    break;
                }
            }
            rank -= before;
        }
        while rank >= self.counts[index] {
            rank -= self.counts[index];
            index += 1;
        }
        (index, rank)
    }

    fn remove(&mut self, index: usize) {
        self.firsts.remove(index);
        self.counts.remove(index);
        self.children.remove(index);
    }

    fn insert(&mut self, index: usize, first: f64, count: usize, child: u32) {
        self.firsts.insert(index, first);
        self.counts.insert(index, count);
        self.children.insert(index, child);
    }
}

impl Part for Inner {
    fn heap_bytes(&self) -> usize {
        self.firsts.capacity() * size_of::<f64>()
            + self.counts.capacity() * size_of::<usize>()
            + self.children.capacity() * size_of::<u32>()
    }
}

/// Members ordered by score. A clone shares nodes and index.
#[derive(Clone, Debug)]
pub struct ScoreTree {
    leaves: SharedSlab<Leaf>,
    inners: SharedSlab<Inner>,
    root: u32,
    /// Levels of inner nodes; 0: the root is a leaf, and the index is empty.
    height: u32,
    len: usize,
    index: Index,
    /// Allocated bytes of all leaves.
    leaf_bytes: usize,
}

impl Default for ScoreTree {
    fn default() -> Self {
        ScoreTree::new()
    }
}

impl ScoreTree {
    pub fn new() -> Self {
        let mut leaves = SharedSlab::default();
        let root = leaves.add(Leaf::default());
        ScoreTree {
            leaves,
            inners: SharedSlab::default(),
            root,
            height: 0,
            len: 0,
            index: Index::default(),
            leaf_bytes: 0,
        }
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn heap_bytes(&self) -> usize {
        // A node's three vectors grow by doubling.
        let inners = self.inners.len() * CHILDREN_MAX * (8 + size_of::<usize>() + 4);
        self.leaf_bytes
            + self.leaves.heap_bytes()
            + self.inners.heap_bytes()
            + inners
            + self.index.heap_bytes()
    }

    /// The approximate number of allocations.
    pub fn nodes(&self) -> usize {
        self.leaves.len() + self.inners.len()
    }

    // ---- looking up -----------------------------------------------------------------------------

    /// Finds a member.
    #[inline]
    pub fn find(&self, member: &[u8]) -> Option<Position> {
        self.find_tagged(tag_of(member), member)
    }

    #[inline(always)]
    fn find_tagged(&self, tag: u32, member: &[u8]) -> Option<Position> {
        let in_leaf = |(entry, leaf)| {
            let at = self.leaves.get(leaf).find(tag, member)?;
            Some(Position { leaf, at, entry, tag })
        };
        if self.height == 0 {
            return in_leaf((0, self.root));
        }
        self.index.find(tag, in_leaf)
    }

    /// Starts a prefetching look-up of a member.
    #[inline]
    pub fn ahead(&self, member: &[u8]) -> Ahead {
        Ahead { hash: tag_of(member).into(), node: self.root }
    }

    /// Starts prefetching memory for the removal of the element of a rank. None: there is no such
    /// rank.
    #[inline]
    pub fn ahead_of_rank(&self, rank: usize) -> Option<Ahead> {
        (rank < self.len).then(|| {
            let (leaf, at) = self.locate(rank);
            self.ahead(self.leaves.get(leaf).member(at))
        })
    }

    /// Prefetches memory for the next step: the address of the index's page, the page, the leaf's
    /// address, its tags, the element.
    #[inline]
    pub fn prefetch(&self, ahead: &mut Ahead, stage: usize) {
        let tag = ahead.hash as u32;
        if self.height == 0 {
            return;
        }
        match stage {
            0 => self.index.prefetch_place(tag),
            1 => self.index.prefetch_page(tag),
            2 => {
                ahead.node = self.index.find(tag, |(_, leaf)| Some(leaf)).unwrap_or(NONE);
                if ahead.node != NONE {
                    self.leaves.prefetch(ahead.node);
                }
            }
            3 if ahead.node != NONE => self.leaves.get(ahead.node).prefetch_tags(),
            4 if ahead.node != NONE => self.leaves.get(ahead.node).prefetch_element(tag),
            _ => {}
        }
    }

    #[inline(always)]
    pub fn score_at(&self, position: Position) -> f64 {
        self.leaves.get(position.leaf).score(position.at)
    }

    pub fn score(&self, member: &[u8]) -> Option<f64> {
        self.find(member).map(|position| self.score_at(position))
    }

    /// Rank of the element at a position.
    pub fn rank_at(&self, position: Position) -> usize {
        let mut rank = position.at;
        if self.height == 0 {
            return rank;
        }
        let (mut child, mut parent) = (position.leaf, self.leaves.get(position.leaf).parent);
        while parent != NONE {
            let inner = self.inners.get(parent);
            let index = inner.index_of(child);
            rank += inner.counts[..index].iter().sum::<usize>();
            (child, parent) = (parent, inner.parent);
        }
        rank
    }

    /// Number of elements before a place.
    pub fn rank(&self, place: Place<'_>) -> usize {
        let (leaf, before) = self.descend(place);
        before + self.leaves.get(leaf).position(place)
    }

    /// The leaf with a place, and the number of elements before that leaf.
    #[inline]
    fn descend(&self, place: Place<'_>) -> (u32, usize) {
        let (mut node, mut before, mut len) = (self.root, 0, self.len);
        for level in (0..self.height).rev() {
            let inner = self.inners.get(node);
            let index = self.child_index(inner, level, place);
            before += inner.before(index, len);
            (node, len) = (inner.children[index], inner.counts[index]);
        }
        (node, before)
    }

    /// The leaf with a place, and the way there.
    #[inline]
    fn path(&self, place: Place<'_>) -> (u32, Path) {
        let (mut node, mut path) = (self.root, Path::new());
        for level in (0..self.height).rev() {
            let inner = self.inners.get(node);
            let index = self.child_index(inner, level, place);
            path.push((node, index));
            node = inner.children[index];
        }
        (node, path)
    }

    /// The last child whose first element comes before a place, or the first child.
    #[inline]
    fn child_index(&self, inner: &Inner, level: u32, place: Place<'_>) -> usize {
        let first_member = |at: usize| self.first_leaf(inner.children[at + 1], level).member(0);
        place.position(&inner.firsts[1..], |&first| first, first_member)
    }

    /// The first leaf below a node of a level.
    fn first_leaf(&self, mut node: u32, level: u32) -> &Leaf {
        for _ in 0..level {
            node = self.inners.get(node).children[0];
        }
        self.leaves.get(node)
    }

    /// The leaf with the element of a rank, and its index there. `rank` must be less than the
    /// length.
    fn locate(&self, mut rank: usize) -> (u32, usize) {
        let (mut node, mut len) = (self.root, self.len);
        for _ in 0..self.height {
            let inner = self.inners.get(node);
            let index;
            (index, rank) = inner.locate(rank, len);
            (node, len) = (inner.children[index], inner.counts[index]);
        }
        (node, rank)
    }

    /// The element of a rank.
    pub fn get(&self, rank: usize) -> Option<(f64, &[u8])> {
        if rank >= self.len {
            return None;
        }
        let (leaf, at) = self.locate(rank);
        let leaf = self.leaves.get(leaf);
        Some((leaf.score(at), leaf.member(at)))
    }

    /// The elements of a range of ranks, from either end. The range must be within the length.
    pub fn range(&self, ranks: Range<usize>) -> Elements<'_> {
        debug_assert!(ranks.start <= ranks.end && ranks.end <= self.len);
        Elements { tree: self, ranks, front: None, back: None }
    }

    // ---- changing -------------------------------------------------------------------------------

    /// Adds a new member.
    pub fn insert(&mut self, score: f64, member: &[u8]) {
        self.insert_tagged(score, tag_of(member), member);
    }

    fn insert_tagged(&mut self, score: f64, tag: u32, member: &[u8]) {
        let id = self.place(score, tag, member);
        if self.height > 0 {
            self.index.insert(tag, id);
        }
    }

    /// Adds an element to its leaf, but not to the index; returns the leaf.
    fn place(&mut self, score: f64, tag: u32, member: &[u8]) -> u32 {
        let place = Place::Before(score, member);
        let (mut id, path) = self.path(place);
        let mut at = self.leaves.get(id).position(place);
        let mut has_split = false;
        loop {
            let leaf = self.leaves.get(id);
            let len = leaf.len();
            let is_long = len > 0 && leaf.bytes() + member.len() > LEAF_BYTES_MAX;
            if len < LEAF_MAX && !is_long {
                break;
            }
            // Members added in order fill their leaves.
            let is_at_end = at == len && (len == 1 || self.is_last(id));
            let split = if is_at_end { len } else { len / 2 };
            let right = self.split_leaf(id, split, score);
            has_split = true;
            if at > split || is_at_end {
                (id, at) = (right, at - split);
            }
        }
        let leaf = self.leaves.get_mut(id);
        let before = leaf.heap_bytes();
        leaf.insert(at, score, tag, member);
        self.leaf_bytes = self.leaf_bytes + leaf.heap_bytes() - before;
        self.len += 1;
        if has_split {
            self.recount(id, 1, at == 0);
            return id;
        }
        let mut has_new_first = at == 0;
        for (node, index) in path.into_iter().rev() {
            let inner = self.inners.get_mut(node);
            inner.counts[index] += 1;
            if has_new_first {
                inner.firsts[index] = score;
                has_new_first = index == 0;
            }
        }
        id
    }

    /// Whether this is the last leaf.
    fn is_last(&self, leaf: u32) -> bool {
        let mut node = self.root;
        for _ in 0..self.height {
            node = *self.inners.get(node).children.last().expect("an inner node has children");
        }
        node == leaf
    }

    /// Splits a leaf. If nothing is split off, the new leaf is empty, and `first` is the score to
    /// be added there; or the old one is, and the element is added there.
    fn split_leaf(&mut self, id: u32, at: usize, first: f64) -> u32 {
        if self.height == 0 {
            self.leaves.get(id).tags().for_each(|tag| self.index.insert(tag, id));
        }
        let leaf = self.leaves.get_mut(id);
        let before = leaf.heap_bytes();
        let right = leaf.split_off(at);
        self.leaf_bytes = self.leaf_bytes + leaf.heap_bytes() + right.heap_bytes() - before;
        let (first, count) = (if right.len() > 0 { right.score(0) } else { first }, right.len());
        let new = self.leaves.add(right);
        for tag in self.leaves.get(new).tags() {
            self.index.relocate(tag, id, new);
        }
        self.insert_behind(id, 0, new, first, count);
        new
    }

    fn parent(&self, node: u32, level: u32) -> u32 {
        if level == self.height {
            NONE
        } else if level == 0 {
            self.leaves.get(node).parent
        } else {
            self.inners.get(node).parent
        }
    }

    fn set_parent(&mut self, node: u32, level: u32, parent: u32) {
        if level == 0 {
            self.leaves.get_mut(node).parent = parent;
        } else {
            self.inners.get_mut(node).parent = parent;
        }
    }

    /// Adds a new node after `left`, from which `count` elements were moved. `level` is that of
    /// both.
    fn insert_behind(&mut self, left: u32, level: u32, new: u32, first: f64, count: usize) {
        let parent = self.parent(left, level);
        if parent == NONE {
            let mut root = Inner::default();
            let left_first = match level {
                // An emptied leaf is about to get its first element.
                0 if self.leaves.get(left).len() == 0 => first,
                0 => self.leaves.get(left).score(0),
                _ => self.inners.get(left).firsts[0],
            };
            root.insert(0, left_first, self.len - count, left);
            root.insert(1, first, count, new);
            self.root = self.inners.add(root);
            self.height += 1;
            self.set_parent(left, level, self.root);
            self.set_parent(new, level, self.root);
            return;
        }
        self.set_parent(new, level, parent);
        let inner = self.inners.get_mut(parent);
        let index = inner.index_of(left);
        inner.counts[index] -= count;
        inner.insert(index + 1, first, count, new);
        if inner.children.len() <= CHILDREN_MAX {
            return;
        }
        // As with leaves: added in order, nodes are filled.
        let at = if index + 2 == inner.children.len() { index + 1 } else { CHILDREN_MAX / 2 };
        let right = Inner {
            firsts: inner.firsts.split_off(at),
            counts: inner.counts.split_off(at),
            children: inner.children.split_off(at),
            parent: NONE,
        };
        let (first, count) = (right.firsts[0], right.counts.iter().sum());
        let moved = right.children.clone();
        let right = self.inners.add(right);
        for child in moved {
            self.set_parent(child, level, right);
        }
        self.insert_behind(parent, level + 1, right, first, count);
    }

    /// Updates the counts, and the first score, from a leaf up to the root.
    fn recount(&mut self, leaf: u32, by: isize, mut has_new_first: bool) {
        let first = self.leaves.get(leaf);
        let (mut child, mut parent) = (leaf, first.parent);
        let first = if has_new_first { first.score(0) } else { 0.0 };
        while parent != NONE {
            let inner = self.inners.get_mut(parent);
            let index = inner.index_of(child);
            inner.counts[index] = inner.counts[index].wrapping_add_signed(by);
            if has_new_first {
                inner.firsts[index] = first;
                has_new_first = index == 0;
            }
            (child, parent) = (parent, inner.parent);
        }
    }

    /// Sets the score of the element at a position, which is this member's.
    pub fn set_score(&mut self, position: Position, score: f64, member: &[u8]) {
        let Position { leaf: id, at, tag, .. } = position;
        let leaf = self.leaves.get_mut(id);
        debug_assert_eq!(leaf.member(at), member);
        // If it stays within the leaf, but not at its ends, where other leaves may come between.
        let is_only_leaf = self.height == 0;
        let last = leaf.len() - 1;
        if is_only_leaf || (at > 0 && score >= leaf.score(0) && score <= leaf.score(last)) {
            let to = leaf.position(Place::Before(score, member));
            if is_only_leaf || (to > 0 && to <= last) {
                let before = leaf.heap_bytes();
                leaf.rescore(at, if to > at { to - 1 } else { to }, score, (tag, member));
                self.leaf_bytes = self.leaf_bytes + leaf.heap_bytes() - before;
                return;
            }
        }
        if last == 0 {
            self.remove_at(id, at..at + 1);
            self.insert_tagged(score, tag, member);
        } else {
            self.carry(position, score, member);
        }
    }

    /// Moves an element to the leaf where it belongs with this score. The index keeps its entry.
    fn carry(&mut self, position: Position, score: f64, member: &[u8]) {
        let Position { leaf: from, at, entry, tag } = position;
        let leaf = self.leaves.get_mut(from);
        let before = leaf.heap_bytes();
        leaf.remove(at..at + 1);
        self.leaf_bytes = self.leaf_bytes + leaf.heap_bytes() - before;
        self.len -= 1;
        self.recount(from, -1, at == 0);
        let to = self.place(score, tag, member);
        // Leaves that were split have changed entries, but moved none.
        self.index.relocate_at(tag, entry, from, to);
        if self.leaves.get(from).len() < LEAF_MIN {
            self.merge_leaf(from);
        }
    }

    /// Removes a member; returns its score.
    pub fn remove(&mut self, member: &[u8]) -> Option<f64> {
        let position = self.find(member)?;
        let score = self.score_at(position);
        self.remove_at(position.leaf, position.at..position.at + 1);
        Some(score)
    }

    /// Removes the elements of a range of ranks.
    pub fn remove_ranks(&mut self, ranks: Range<usize>) {
        let mut left = ranks.len();
        while left > 0 {
            let (leaf, at) = self.locate(ranks.start);
            let count = left.min(self.leaves.get(leaf).len() - at);
            self.remove_at(leaf, at..at + count);
            left -= count;
        }
    }

    fn remove_at(&mut self, id: u32, range: Range<usize>) {
        let leaf = self.leaves.get_mut(id);
        if self.height > 0 {
            for at in range.clone() {
                self.index.remove(tag_of(leaf.member(at)), id);
            }
        }
        let before = leaf.heap_bytes();
        leaf.remove(range.clone());
        self.leaf_bytes = self.leaf_bytes + leaf.heap_bytes() - before;
        let len = leaf.len();
        self.len -= range.len();
        if self.height == 0 {
            return;
        }
        self.recount(id, -(range.len() as isize), range.start == 0 && len > 0);
        if len == 0 {
            let parent = self.leaves.get(id).parent;
            self.leaf_bytes -= self.leaves.take(id).heap_bytes();
            self.remove_child(id, 0, parent);
        } else if len < LEAF_MIN {
            self.merge_leaf(id);
        }
    }

    /// Removes an empty child from a node, and updates the nodes above.
    fn remove_child(&mut self, child: u32, level: u32, parent: u32) {
        let inner = self.inners.get_mut(parent);
        let index = inner.index_of(child);
        inner.remove(index);
        let len = inner.children.len();
        if parent == self.root {
            self.lower_root();
            return;
        }
        let above = inner.parent;
        if len == 0 {
            self.inners.take(parent);
            self.remove_child(parent, level + 1, above);
            return;
        }
        if index == 0 {
            self.carry_first(parent);
        }
        if len < CHILDREN_MIN {
            self.merge_inner(parent, level + 1);
        }
    }

    /// Updates a node's first score in the nodes above.
    fn carry_first(&mut self, mut node: u32) {
        let first = self.inners.get(node).firsts[0];
        loop {
            let parent = self.inners.get(node).parent;
            if parent == NONE {
                return;
            }
            let inner = self.inners.get_mut(parent);
            let index = inner.index_of(node);
            inner.firsts[index] = first;
            if index > 0 {
                return;
            }
            node = parent;
        }
    }

    /// Replaces a root with a single child by that child.
    fn lower_root(&mut self) {
        while self.height > 0 && self.inners.get(self.root).children.len() == 1 {
            let old = self.inners.take(self.root);
            self.root = old.children[0];
            self.height -= 1;
            if self.height == 0 {
                self.index = Index::default();
            } else {
                self.inners.get_mut(self.root).parent = NONE;
            }
        }
        if self.height > 0 && self.inners.get(self.root).children.is_empty() {
            *self = ScoreTree::new();
        }
    }

    /// Merges a small leaf with a neighbour below the same node, if both are small enough. The
    /// fewer of the two are re-inserted in the index.
    fn merge_leaf(&mut self, id: u32) {
        let parent = self.leaves.get(id).parent;
        let inner = self.inners.get(parent);
        let index = inner.index_of(id);
        let fits = |left: usize| {
            let pair = inner.children.get(left..left + 2)?;
            let (left_leaf, right_leaf) = (self.leaves.get(pair[0]), self.leaves.get(pair[1]));
            (left_leaf.len() + right_leaf.len() <= MERGED_LEAF_MAX
                && left_leaf.bytes() + right_leaf.bytes() <= LEAF_BYTES_MAX)
                .then_some((left, pair[0], pair[1]))
        };
        let Some((left_index, left, right)) =
            fits(index).or_else(|| index.checked_sub(1).and_then(fits))
        else {
            return;
        };
        let moves_left = self.leaves.get(left).len() < self.leaves.get(right).len();
        let (gone, stays) = if moves_left { (left, right) } else { (right, left) };
        for tag in self.leaves.get(gone).tags() {
            self.index.relocate(tag, gone, stays);
        }
        let right_leaf = self.leaves.take(right);
        let mut merged = std::mem::take(self.leaves.get_mut(left));
        self.leaf_bytes -= merged.heap_bytes() + right_leaf.heap_bytes();
        merged.append(&right_leaf);
        self.leaf_bytes += merged.heap_bytes();
        if moves_left {
            // The slab's last freed number is the one that must stay in use.
            self.leaves.free_instead(left);
        }
        *self.leaves.get_mut(stays) = merged;
        let inner = self.inners.get_mut(parent);
        inner.counts[left_index] += inner.counts[left_index + 1];
        inner.children[left_index] = stays;
        inner.remove(left_index + 1);
        let len = inner.children.len();
        if parent == self.root {
            self.lower_root();
        } else if len < CHILDREN_MIN {
            self.merge_inner(parent, 1);
        }
    }

    /// Merges a small inner node of a level with a neighbour, if both are small enough.
    fn merge_inner(&mut self, id: u32, level: u32) {
        let parent = self.inners.get(id).parent;
        let above = self.inners.get(parent);
        let index = above.index_of(id);
        let fits = |left: usize| {
            let pair = above.children.get(left..left + 2)?;
            let len = |id| self.inners.get(id).children.len();
            (len(pair[0]) + len(pair[1]) <= MERGED_CHILDREN_MAX).then_some((left, pair[0], pair[1]))
        };
        let Some((left_index, left, right)) =
            fits(index).or_else(|| index.checked_sub(1).and_then(fits))
        else {
            return;
        };
        let mut gone = self.inners.take(right);
        for &child in &gone.children {
            self.set_parent(child, level - 1, left);
        }
        let merged = self.inners.get_mut(left);
        merged.firsts.append(&mut gone.firsts);
        merged.counts.append(&mut gone.counts);
        merged.children.append(&mut gone.children);
        let above = self.inners.get_mut(parent);
        above.counts[left_index] += above.counts[left_index + 1];
        above.remove(left_index + 1);
        let len = above.children.len();
        if parent == self.root {
            self.lower_root();
        } else if len < CHILDREN_MIN {
            self.merge_inner(parent, level + 1);
        }
    }

    // ---- walking --------------------------------------------------------------------------------

    /// Visits members from a boundary on, at most about `most` (at least 1, and all of one tag);
    /// returns the next boundary, 0 at the end.
    ///
    /// A member present from the first call to the last is visited exactly once, whatever changes,
    /// even its score: the boundary separates visited members from others, and members do not cross
    /// it.
    pub fn scan(&self, boundary: u32, most: usize, mut visit: impl FnMut(f64, &[u8])) -> u32 {
        if self.height == 0 {
            let leaf = self.leaves.get(self.root);
            let all: Vec<u64> = leaf.tags().map(|tag| u64::from(tag.reverse_bits())).collect();
            let behind = all.iter().copied().filter(|&place| place >= boundary.into());
            let next = cut(&mut behind.collect::<Vec<_>>(), most, 0);
            let wanted = u64::from(boundary)..next.unwrap_or(1 << 32);
            for (at, place) in all.iter().enumerate() {
                if wanted.contains(place) {
                    visit(leaf.score(at), leaf.member(at));
                }
            }
            return next.unwrap_or(0) as u32;
        }
        self.index.scan(boundary, most, |tag, leaf| {
            let leaf = self.leaves.get(leaf);
            for (at, member) in leaf.tagged(tag) {
                if tag_of(member) == tag {
                    visit(leaf.score(at), member);
                }
            }
        })
    }

    /// Checks every invariant.
    #[cfg(test)]
    fn check(&self) {
        let mut seen = 0;
        self.check_node(self.root, self.height, NONE, &mut seen);
        assert_eq!(seen, self.len);
        let all: Vec<_> = self.range(0..self.len).collect();
        for pair in all.windows(2) {
            assert!((pair[0].0, pair[0].1) < (pair[1].0, pair[1].1), "{pair:?}");
        }
        for (rank, &(score, member)) in all.iter().enumerate() {
            let position = self.find(member).expect("every member is found");
            assert_eq!(self.score_at(position), score);
            assert_eq!(self.rank_at(position), rank);
            assert_eq!(self.rank(Place::Before(score, member)), rank);
        }
    }

    #[cfg(test)]
    fn check_node(&self, node: u32, level: u32, parent: u32, seen: &mut usize) -> (f64, usize) {
        if level == 0 {
            let leaf = self.leaves.get(node);
            assert!(leaf.len() <= LEAF_MAX && (leaf.len() > 0 || self.height == 0));
            *seen += leaf.len();
            if self.height > 0 {
                assert_eq!(leaf.parent, parent);
            }
            return (if leaf.len() > 0 { leaf.score(0) } else { 0.0 }, leaf.len());
        }
        let inner = self.inners.get(node);
        assert_eq!(inner.parent, parent);
        assert!((1..=CHILDREN_MAX).contains(&inner.children.len()));
        for (index, &child) in inner.children.iter().enumerate() {
            let (first, count) = self.check_node(child, level - 1, node, seen);
            assert_eq!((first, count), (inner.firsts[index], inner.counts[index]));
        }
        (inner.firsts[0], inner.counts.iter().sum())
    }
}

/// Elements of a range of ranks.
#[derive(Clone, Debug)]
pub struct Elements<'a> {
    tree: &'a ScoreTree,
    ranks: Range<usize>,
    /// The next element's leaf and its index there.
    front: Option<(&'a Leaf, usize)>,
    /// The leaf of the next element from the end, and the number of elements up to it.
    back: Option<(&'a Leaf, usize)>,
}

impl<'a> Iterator for Elements<'a> {
    type Item = (f64, &'a [u8]);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.ranks.is_empty() {
            return None;
        }
        let (leaf, at) = match self.front {
            Some((leaf, at)) if at < leaf.len() => (leaf, at),
            _ => {
                let (leaf, at) = self.tree.locate(self.ranks.start);
                (self.tree.leaves.get(leaf), at)
            }
        };
        self.ranks.start += 1;
        self.front = Some((leaf, at + 1));
        Some((leaf.score(at), leaf.member(at)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.ranks.len(), Some(self.ranks.len()))
    }
}

impl DoubleEndedIterator for Elements<'_> {
    #[inline]
    fn next_back(&mut self) -> Option<Self::Item> {
        if self.ranks.is_empty() {
            return None;
        }
        let (leaf, end) = match self.back {
            Some((leaf, end)) if end > 0 => (leaf, end),
            _ => {
                let (leaf, at) = self.tree.locate(self.ranks.end - 1);
                (self.tree.leaves.get(leaf), at + 1)
            }
        };
        self.ranks.end -= 1;
        self.back = Some((leaf, end - 1));
        Some((leaf.score(end - 1), leaf.member(end - 1)))
    }
}

impl ExactSizeIterator for Elements<'_> {}

#[cfg(test)]
mod tests;
