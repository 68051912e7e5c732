//! A long list: a sequence of short runs of entries, in a tree that clones share.
//!
//! ```text
//!   nodes: | -> run | -> run | ... | -> run |       16 bytes each, besides the run (`shared_tree.rs`)
//! ```
//!
//! An element is found by skipping whole runs, from the nearer end, and then searching one. Pushing
//! and popping only touch the run at that end. A full run is split when an element is inserted into
//! its middle; adjacent runs short enough to fit into one are joined. No run is empty. An element
//! longer than a full run has one of its own, which is replaced or dropped as a whole: a change of
//! a shared part copies at most some runs of [`RUN_BYTES_MAX`].
//!
//! [`Limits`] defines a full run, counted as in Redis's quicklist: with the frame of a listpack.

use std::ops::Deref;

use super::listpack::{self, FRAME_BYTES};
use super::packed::Element;
use super::run::{End, Run, RunView};
use super::shared::{Arc, Part, own};
use super::shared_tree::{Item, Iter, SharedTree};

/// The limits of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes, including the frame of a listpack.
    bytes: usize,
    /// Elements, if their number is limited.
    count: Option<usize>,
}

/// The most bytes of a run with several elements, under all limits.
const RUN_BYTES_MAX: usize = 64 * 1024;
/// The byte limit of a run whose elements are limited.
const COUNTED_BYTES_MAX: usize = 8192;
/// Assumed overhead of an element in bytes.
const ELEMENT_OVERHEAD: usize = 8;
/// From this many runs on, a new one is allocated in full: the unused rest is small compared with
/// the list.
const LONG_NODES: usize = 8;
/// Runs sampled to estimate the size of all.
const SAMPLES: usize = 64;

impl Limits {
    /// Parses `list-max-listpack-size`: elements if positive; -1 to -5 are 4, 8, 16, 32 and 64 KiB.
    #[inline]
    pub fn from_setting(setting: i32) -> Self {
        match setting {
            0.. => Limits { bytes: COUNTED_BYTES_MAX, count: Some(setting.max(1) as usize) },
            _ => Limits { bytes: 2048 << setting.unsigned_abs().min(5), count: None },
        }
    }

    /// Whether a listpack of `bytes` bytes of entries and `count` elements is too long.
    #[inline]
    pub fn are_exceeded(&self, bytes: usize, count: usize) -> bool {
        bytes + FRAME_BYTES > self.bytes || self.count.is_some_and(|most| count > most)
    }

    /// Whether a list that shrank is short enough to be a single listpack again: half the limit of
    /// a growing one, so that a list whose length fluctuates is not converted each time.
    fn are_half_used(&self, run: &Run) -> bool {
        match self.count {
            Some(most) => run.count() <= most / 2,
            None => run.len() + FRAME_BYTES <= self.bytes / 2,
        }
    }

    fn allow_one_more(&self, run: &Run, text_len: usize) -> bool {
        !self.are_exceeded(run.len() + text_len + ELEMENT_OVERHEAD, run.count() + 1)
    }

    fn allow_both(&self, a: &Run, b: &Run) -> bool {
        !self.are_exceeded(a.len() + b.len(), a.count() + b.count())
    }

    /// The largest expected size of a run. Unit: bytes.
    #[inline]
    pub fn entry_bytes(&self) -> usize {
        self.bytes
    }
}

/// A list of many runs. A clone shares them; a change copies a shared one first.
#[derive(Clone, Debug, Default)]
pub struct Quicklist {
    nodes: SharedTree<Node>,
    /// Elements in all runs.
    len: usize,
}

/// A run and its number of elements, so that skipping it does not read it.
#[derive(Clone, Debug)]
struct Node {
    run: Arc<Run>,
    count: u32,
}

impl Node {
    fn new(run: Run) -> Node {
        Node { count: run.count() as u32, run: Arc::new(run) }
    }

    /// A run of one element.
    fn single(element: Element<'_>) -> Node {
        let mut run = Run::default();
        run.push(End::Back, element, 0);
        Node::new(run)
    }

    #[inline]
    fn count(&self) -> usize {
        self.count as usize
    }

    /// Changes the run, after copying it if it is shared.
    #[inline]
    fn change<R>(&mut self, change: impl FnOnce(&mut Run) -> R) -> R {
        debug_assert!(self.run.len() <= RUN_BYTES_MAX || self.run.is_unique());
        let run = own(&mut self.run);
        let result = change(run);
        self.count = run.count() as u32;
        result
    }
}

impl Deref for Node {
    type Target = Run;

    #[inline]
    fn deref(&self) -> &Run {
        &self.run
    }
}

impl Item for Node {
    type Key = ();

    fn key(&self) -> &() {
        &()
    }

    fn freed_bytes(&self) -> usize {
        self.run.freed_bytes()
    }
}

impl Part for Run {
    fn heap_bytes(&self) -> usize {
        self.heap_bytes()
    }
}

/// An element's position.
#[derive(Clone, Copy, Debug)]
struct Position {
    node: usize,
    /// Its index within the run.
    index: usize,
    /// Its entry's offset in the run.
    at: usize,
}

impl Quicklist {
    /// A list of one run, or none if that is empty.
    pub fn from_run(run: Run) -> Self {
        let len = run.count();
        let mut nodes = SharedTree::default();
        if len > 0 {
            nodes.push_back(Node::new(run));
        }
        Quicklist { nodes, len }
    }

    /// Appends a run; skips an empty one, and divides one that is too long.
    pub fn push_run(&mut self, run: Run) {
        if run.count() > 1 && run.len() + FRAME_BYTES > RUN_BYTES_MAX {
            let limits = Limits { bytes: RUN_BYTES_MAX, count: None };
            for element in Forwards::of_run(run.view(), 0) {
                self.push(End::Back, element.text().as_ref(), &limits);
            }
        } else if !run.is_empty() {
            self.len += run.count();
            self.nodes.push_back(Node::new(run));
        }
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of runs.
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Bytes of heap memory; for a long list an estimate from some of its runs.
    pub fn heap_bytes(&self) -> usize {
        let step = self.nodes.len().div_ceil(SAMPLES).max(1);
        let sampled = (0..self.nodes.len()).step_by(step);
        let samples = sampled.len().max(1);
        let sampled = sampled.map(|node| self.nodes[node].heap_bytes()).sum::<usize>();
        // A run's counts are allocated with it.
        let heads = self.nodes.len() * (size_of::<Run>() + size_of::<usize>());
        self.nodes.heap_bytes() + heads + sampled * self.nodes.len() / samples
    }

    pub fn runs(&self) -> impl ExactSizeIterator<Item = RunView<'_>> {
        self.nodes.iter().map(|node| node.view())
    }

    /// Takes the only run, if it is short enough for a list that shrank.
    pub fn take_short(&mut self, limits: &Limits) -> Option<Run> {
        if self.nodes.len() != 1 {
            return None;
        }
        let node = self.nodes.front_mut().filter(|node| limits.are_half_used(node))?;
        Some(node.change(|run| {
            let mut run = std::mem::take(run);
            run.shrink_to_fit();
            run
        }))
    }

    /// Adds an element at an end.
    #[inline]
    pub fn push(&mut self, end: End, text: &[u8], limits: &Limits) {
        self.len += 1;
        let element = Element::new(text);
        match self.end_mut(end) {
            Some(node) if limits.allow_one_more(node, text.len()) => {
                node.change(|run| run.push(end, element, limits.bytes));
            }
            _ => self.push_node(end, element, limits),
        }
    }

    #[inline]
    fn end_mut(&mut self, end: End) -> Option<&mut Node> {
        match end {
            End::Front => self.nodes.front_mut(),
            End::Back => self.nodes.back_mut(),
        }
    }

    /// Adds a run with one element at an end.
    #[cold]
    fn push_node(&mut self, end: End, element: Element<'_>, limits: &Limits) {
        // A long list of short elements will probably fill this run too, so it is allocated in
        // full.
        let is_filling = self.nodes.len() >= LONG_NODES
            && limits.count.is_none()
            && listpack::entry_len(element) < limits.bytes / 16
            && self.end_mut(end).is_some_and(|run| run.count() >= 16);
        let mut run = if is_filling { Run::with_room(end, limits.bytes) } else { Run::default() };
        run.push(end, element, limits.bytes);
        match end {
            End::Front => self.nodes.push_front(Node::new(run)),
            End::Back => self.nodes.push_back(Node::new(run)),
        }
    }

    /// Removes the element at an end and passes it to `show`. None if the list is empty.
    #[inline]
    pub fn pop<R>(&mut self, end: End, show: impl FnOnce(Element<'_>) -> R) -> Option<R> {
        let node = self.end_mut(end)?;
        let (element, len) = node.peek(end)?;
        let result = show(element);
        if node.count() > 1 {
            node.change(|run| run.drop_one(end, len));
        } else {
            self.drop_node(end);
        }
        self.len -= 1;
        Some(result)
    }

    fn drop_node(&mut self, end: End) {
        match end {
            End::Front => self.nodes.pop_front(),
            End::Back => self.nodes.pop_back(),
        };
    }

    /// Removes `count` elements at an end, or all if there are fewer.
    pub fn drop_many(&mut self, end: End, count: usize) {
        let mut left = count.min(self.len);
        self.len -= left;
        while left > 0 {
            let run = self.end_mut(end).expect("runs hold as many elements as the list");
            if run.count() > left {
                run.change(|run| run.drop_many(end, left));
                return;
            }
            left -= run.count();
            self.drop_node(end);
        }
    }

    /// The position of element `index`, which must exist.
    fn position(&self, index: usize) -> Position {
        let (node, index) = self.node_of(index);
        Position { node, index, at: self.nodes[node].seek(index) }
    }

    /// The run with element `index`, which must exist, and the element's index in it.
    fn node_of(&self, index: usize) -> (usize, usize) {
        if index <= self.len / 2 {
            let mut left = index;
            for (node, run) in self.nodes.iter().enumerate() {
                if left < run.count() {
                    return (node, left);
                }
                left -= run.count();
            }
        } else {
            let mut left = self.len - index;
            for (node, run) in self.nodes.iter().enumerate().rev() {
                if left <= run.count() {
                    return (node, run.count() - left);
                }
                left -= run.count();
            }
        }
        unreachable!("the caller has compared the index with the length");
    }

    /// Sets element `index`, after passing the old one to `show`. False if it does not exist.
    pub fn set(
        &mut self,
        index: usize,
        text: &[u8],
        limits: &Limits,
        show: impl FnOnce(Element<'_>),
    ) -> bool {
        if index >= self.len {
            return false;
        }
        let Position { node, index, at } = self.position(index);
        let run = &mut self.nodes[node];
        if let Some((old, _)) = listpack::first(&run.entries()[at..]) {
            show(old);
        }
        let element = Element::new(text);
        if run.count() == 1 && (run.len() > limits.bytes || text.len() > limits.bytes) {
            *run = Node::single(element);
            return true;
        }
        run.change(|run| {
            run.replace(at, element);
            run.shrink();
        });
        if run.count() > 1 && limits.are_exceeded(run.len(), 0) {
            // An element that fills a run gets one of its own; the others stay as full as they
            // were.
            let behind = run.change(|run| run.split_off(at, index));
            self.nodes.insert(node + 1, Node::new(behind));
            if self.nodes[node + 1].count() > 1 {
                let second = self.nodes[node + 1].seek(1);
                let behind = self.nodes[node + 1].change(|run| run.split_off(second, 1));
                self.nodes.insert(node + 2, Node::new(behind));
            }
            if self.nodes[node].is_empty() {
                self.nodes.remove(node);
            }
            self.join_around(node, limits);
        }
        true
    }

    /// Inserts an element before or after the first one equal to `pivot`. Returns its index; None
    /// if there is no such element.
    pub fn insert(
        &mut self,
        pivot: Element<'_>,
        behind: bool,
        text: &[u8],
        limits: &Limits,
    ) -> Option<usize> {
        let mut before = 0;
        for (node, run) in self.nodes.iter().enumerate() {
            let entries = run.entries();
            let (mut at, mut index) = (0, 0);
            while let Some((element, len)) = listpack::first(&entries[at..]) {
                if element == pivot {
                    if behind {
                        at += len;
                        index += 1;
                    }
                    self.insert_at(Position { node, index, at }, text, limits);
                    return Some(before + index);
                }
                at += len;
                index += 1;
            }
            before += index;
        }
        None
    }

    /// Inserts an element before element `index`, or appends it.
    pub fn insert_before(&mut self, index: usize, text: &[u8], limits: &Limits) {
        if index < self.len {
            self.insert_at(self.position(index), text, limits);
        } else {
            self.push(End::Back, text, limits);
        }
    }

    /// Removes element `index`, which must exist.
    pub fn remove_at(&mut self, index: usize, limits: &Limits) {
        let Position { node, at, .. } = self.position(index);
        self.len -= 1;
        if self.nodes[node].count() == 1 {
            self.nodes.remove(node);
        } else {
            self.nodes[node].change(|run| run.remove_at(at));
            self.join_around(node, limits);
        }
    }

    /// All elements in one run.
    pub fn into_run(self) -> Run {
        let mut nodes = self.nodes;
        let first = nodes.pop_front();
        let mut all = first.map(|node| Arc::unwrap_or_clone(node.run)).unwrap_or_default();
        nodes.iter().for_each(|node| all.append(node));
        all
    }

    /// Inserts an element at a position, which may be a run's end.
    fn insert_at(&mut self, position: Position, text: &[u8], limits: &Limits) {
        let Position { node, index, at } = position;
        let element = Element::new(text);
        self.len += 1;
        let run = &mut self.nodes[node];
        if limits.allow_one_more(run, text.len()) {
            run.change(|run| run.insert(at, element));
            return;
        }
        let is_at_end = index == run.count();
        let neighbour = match index {
            0 => node.checked_sub(1),
            _ if is_at_end => Some(node + 1),
            _ => None,
        };
        if let Some(neighbour) = neighbour
            && let Some(run) = self.nodes.get_mut(neighbour)
            && limits.allow_one_more(run, text.len())
        {
            let end = if is_at_end { End::Front } else { End::Back };
            run.change(|run| run.push(end, element, limits.bytes));
            return;
        }
        let single = Node::single(element);
        if index == 0 {
            self.nodes.insert(node, single);
        } else if is_at_end {
            self.nodes.insert(node + 1, single);
        } else {
            let behind = self.nodes[node].change(|run| run.split_off(at, index));
            self.nodes.insert(node + 1, Node::new(behind));
            self.nodes.insert(node + 1, single);
            self.join_around(node + 1, limits);
        }
    }

    /// Removes at most `most` elements equal to `element`, from an end. Returns their number.
    pub fn remove(
        &mut self,
        end: End,
        element: Element<'_>,
        most: usize,
        limits: &Limits,
    ) -> usize {
        let (mut removed, mut touched, mut last) = (0, 0, 0);
        let mut passed = 0;
        while removed < most
            && let Some((skipped, found)) = self.find_run(end, passed, element, most - removed)
        {
            let node = match end {
                End::Front => passed + skipped,
                End::Back => self.nodes.len() - 1 - passed - skipped,
            };
            passed += skipped + 1;
            removed += found.len();
            match found.len() == self.nodes[node].count() {
                // A shared run is not copied to be emptied.
                true => self.nodes[node] = Node::new(Run::default()),
                false => self.nodes[node].change(|run| run.remove_found(end, found)),
            }
            touched += 1;
            last = node;
        }
        self.len -= removed;
        match touched {
            0 => {}
            1 if self.nodes[last].is_empty() => drop(self.nodes.remove(last)),
            1 => self.join_around(last, limits),
            _ => self.join_all(limits),
        }
        removed
    }

    /// The first run with elements equal to `element`, from an end, after `passed` runs: the number
    /// of further runs skipped, and the places of at most `most` of these elements.
    fn find_run(
        &self,
        end: End,
        passed: usize,
        element: Element<'_>,
        most: usize,
    ) -> Option<(usize, Vec<(usize, usize)>)> {
        let find = |(skipped, run): (usize, &Node)| {
            let found = run.find(end, element, most);
            (!found.is_empty()).then_some((skipped, found))
        };
        match end {
            End::Front => self.nodes.range(passed, self.nodes.len()).enumerate().find_map(find),
            End::Back => {
                self.nodes.range(0, self.nodes.len() - passed).rev().enumerate().find_map(find)
            }
        }
    }

    /// Joins a run with its neighbours where two fit into one.
    fn join_around(&mut self, node: usize, limits: &Limits) {
        // The neighbours on each side first: splitting a run leaves two short ones with an element
        // between them.
        for first in [node.wrapping_add(1), node, node.wrapping_sub(1), node.wrapping_sub(2)] {
            self.join(first, limits);
        }
    }

    /// Joins a run with the next one if both fit into one.
    fn join(&mut self, first: usize, limits: &Limits) -> bool {
        let Some(second) = first.checked_add(1) else { return false };
        let (Some(a), Some(b)) = (self.nodes.get(first), self.nodes.get(second)) else {
            return false;
        };
        if !limits.allow_both(a, b) {
            return false;
        }
        let second = self.nodes.remove(second).expect("it was just looked at");
        self.nodes[first].change(|run| run.append(&second));
        true
    }

    /// Removes empty runs and joins short ones, in the whole list.
    fn join_all(&mut self, limits: &Limits) {
        let mut joined = SharedTree::<Node>::default();
        while let Some(run) = self.nodes.pop_front() {
            match joined.back_mut() {
                _ if run.is_empty() => {}
                Some(last) if limits.allow_both(last, &run) => {
                    last.change(|last| last.append(&run))
                }
                _ => joined.push_back(run),
            }
        }
        self.nodes = joined;
    }

    /// The elements from `index` on.
    pub fn forwards(&self, index: usize) -> Forwards<'_> {
        if index >= self.len {
            return Forwards::default();
        }
        let Position { node, at, .. } = self.position(index);
        let current = &self.nodes[node].entries()[at..];
        Forwards { current, rest: self.nodes.range(node + 1, self.nodes.len()) }
    }

    /// The elements before `index` and those before them, in that order.
    pub fn backwards(&self, index: usize) -> Backwards<'_> {
        if index == 0 {
            return Backwards::default();
        }
        let (node, index) = self.node_of(index.min(self.len) - 1);
        let end = self.nodes[node].seek(index + 1);
        let current = &self.nodes[node].entries()[..end];
        Backwards { current, rest: self.nodes.range(0, node) }
    }
}

/// Iterates forwards.
#[derive(Clone, Debug, Default)]
pub struct Forwards<'a> {
    current: &'a [u8],
    rest: Iter<'a, Node>,
}

impl<'a> Forwards<'a> {
    /// Iterates over one run, from entry `index` on.
    pub fn of_run(run: RunView<'a>, index: usize) -> Self {
        let at = listpack::seek(run.entries, index.min(run.count), run.count);
        Forwards { current: &run.entries[at..], ..Forwards::default() }
    }

    /// Goes to the next run; false after the last one. Apart, so that `next` is short enough to be
    /// inlined.
    #[inline(never)]
    fn next_run(&mut self) -> bool {
        self.rest.next().map(|run| self.current = run.entries()).is_some()
    }
}

impl<'a> Iterator for Forwards<'a> {
    type Item = Element<'a>;

    // Half of the time of LRANGE of elements of a few bytes is spent here: a call costs a quarter.
    #[inline(always)]
    fn next(&mut self) -> Option<Element<'a>> {
        if self.current.is_empty() && !self.next_run() {
            return None;
        }
        let (element, len) = listpack::first(self.current)?;
        self.current = &self.current[len..];
        Some(element)
    }
}

/// Iterates backwards.
#[derive(Clone, Debug, Default)]
pub struct Backwards<'a> {
    current: &'a [u8],
    rest: Iter<'a, Node>,
}

impl<'a> Backwards<'a> {
    /// Iterates over one run, from the entry before `index` on.
    pub fn of_run(run: RunView<'a>, index: usize) -> Self {
        let end = listpack::seek(run.entries, index.min(run.count), run.count);
        Backwards { current: &run.entries[..end], ..Backwards::default() }
    }

    /// Goes to the run before; false after the first one.
    #[inline(never)]
    fn next_run(&mut self) -> bool {
        self.rest.next_back().map(|run| self.current = run.entries()).is_some()
    }
}

impl<'a> Iterator for Backwards<'a> {
    type Item = Element<'a>;

    #[inline]
    fn next(&mut self) -> Option<Element<'a>> {
        if self.current.is_empty() && !self.next_run() {
            return None;
        }
        let (element, len) = listpack::last(self.current)?;
        self.current = &self.current[..self.current.len() - len];
        Some(element)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collections::shared::copied_bytes;

    fn list(count: usize, limits: &Limits) -> Quicklist {
        let mut list = Quicklist::default();
        for number in 0..count {
            list.push(End::Back, format!("element:{number}").as_bytes(), limits);
        }
        list
    }

    fn texts(list: &Quicklist) -> Vec<Vec<u8>> {
        list.forwards(0).map(|element| element.text().as_ref().to_vec()).collect()
    }

    #[test]
    fn limits_are_those_of_the_setting() {
        for (setting, bytes, count) in [
            (-1, 4096, None),
            (-2, 8192, None),
            (-5, 65_536, None),
            (-9, 65_536, None),
            (i32::MIN, 65_536, None),
            (0, 8192, Some(1)),
            (128, 8192, Some(128)),
        ] {
            assert_eq!(Limits::from_setting(setting), Limits { bytes, count });
        }
    }

    #[test]
    fn a_full_run_that_is_split_and_emptied_again_leaves_few_runs() {
        let limits = Limits::from_setting(-1);
        let mut list = list(2000, &limits);
        let before = list.nodes();
        for number in (0..2000).step_by(7) {
            let pivot = format!("element:{number}");
            let pivot = Element::new(pivot.as_bytes());
            assert_eq!(
                list.insert(pivot, true, &[b'x'; 500], &limits),
                Some(number + number / 7 + 1)
            );
        }
        assert!(list.nodes() > 3 * before);
        assert_eq!(list.remove(End::Back, Element::new(&[b'x'; 500]), usize::MAX, &limits), 286);
        assert!(list.nodes() <= before + 1, "{} runs", list.nodes());
        assert_eq!(list.len(), 2000);
        assert_eq!(texts(&list)[1999], b"element:1999");
    }

    #[test]
    fn large_elements_set_into_a_full_run_do_not_make_it_larger() {
        let limits = Limits::from_setting(-1);
        let mut list = list(100, &limits);
        for index in 0..100 {
            assert!(list.set(index, &[b'y'; 3000], &limits, |_| ()));
        }
        assert!(list.runs().all(|run| run.entries.len() <= 4096));
        assert!(!list.set(100, b"z", &limits, |_| ()));
    }

    #[test]
    fn a_change_beside_or_of_a_long_element_copies_no_long_element() {
        let limits = Limits::from_setting(-2);
        let long = |byte| vec![byte; 300_000];
        let mut list = list(1000, &limits);
        for (index, byte) in [(0, b'a'), (500, b'b'), (501, b'c'), (1003, b'd')] {
            list.insert_before(index, &long(byte), &limits);
        }
        let before = texts(&list);
        let changes: [fn(&mut Quicklist, &Limits); 9] = [
            |list, limits| assert!(list.set(0, b"short", limits, |_| ())),
            |list, limits| assert!(list.set(500, &[b'x'; 200_000], limits, |_| ())),
            |list, limits| assert!(list.set(502, &[b'x'; 200_000], limits, |_| ())),
            |list, limits| list.push(End::Front, b"short", limits),
            |list, limits| list.push(End::Back, b"short", limits),
            |list, limits| {
                let pivot = [b'c'; 300_000];
                let pivot = Element::new(&pivot);
                assert!(list.insert(pivot, true, b"short", limits).is_some());
            },
            |list, _| list.drop_many(End::Back, 2),
            |list, limits| {
                let removed = list.remove(End::Front, Element::new(&[b'c'; 300_000]), 1, limits);
                assert_eq!(removed, 1);
            },
            |list, limits| {
                list.remove_at(500, limits);
                list.pop(End::Front, |_| ());
            },
        ];
        for change in changes {
            let clone = list.clone();
            let copied = copied_bytes();
            change(&mut list, &limits);
            assert!(copied_bytes() - copied < 20_000, "{}", copied_bytes() - copied);
            drop(clone);
        }
        assert_ne!(texts(&list), before);
    }

    #[test]
    fn a_run_that_is_longer_than_any_limit_allows_is_divided() {
        let mut run = Run::default();
        for number in 0..300 {
            run.push(End::Back, Element::Bytes(&[number as u8 | 0x80; 1000]), usize::MAX);
        }
        let mut list = Quicklist::default();
        list.push_run(run);
        assert_eq!((list.len(), list.nodes()), (300, 5));
        assert!(list.runs().all(|run| run.entries.len() <= RUN_BYTES_MAX));
        assert_eq!(texts(&list)[299], [299usize as u8 | 0x80; 1000]);
    }

    #[test]
    fn room_taken_for_runs_is_given_back() {
        let limits = Limits::from_setting(1);
        let mut list = list(10_000, &limits);
        let full = list.heap_bytes();
        while list.len() > 10 {
            list.pop(End::Front, |_| ());
        }
        assert!(list.heap_bytes() < full / 50);
    }
}
