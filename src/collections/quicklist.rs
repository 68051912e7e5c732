//! A long list: a double-ended queue of short runs of entries.
//!
//! ```text
//!   nodes: | -> run | -> run | ... | -> run |       16 bytes each, besides the run
//! ```
//!
//! An element is found by skipping whole runs, from the nearer end, and then searching one. Pushing and popping only
//! touch the run at that end. A full run is split when an element is inserted into its middle; adjacent runs short
//! enough to fit into one are joined. No run is empty.
//!
//! [`Limits`] defines a full run, counted as in Redis's quicklist: with the frame of a listpack.

use std::collections::{VecDeque, vec_deque};
use std::ops::Deref;
use triomphe::Arc;

use super::listpack::{self, FRAME_BYTES};
use super::packed::Element;
use super::run::{End, Run, RunView};
use super::shared::{Part, own};

/// The limits of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes, including the frame of a listpack.
    bytes: usize,
    /// Elements, if their number is limited.
    count: Option<usize>,
}

/// The byte limit of a run whose elements are limited.
const COUNTED_BYTES_MAX: usize = 8192;
/// Assumed overhead of an element in bytes.
const ELEMENT_OVERHEAD: usize = 8;
/// From this many runs on, a new one is allocated in full: the unused rest is small compared with the list.
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

    /// Whether a list that shrank is short enough to be a single listpack again: half the limit of a growing one, so
    /// that a list whose length fluctuates is not converted each time.
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
    nodes: VecDeque<Node>,
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

    #[inline]
    fn count(&self) -> usize {
        self.count as usize
    }

    /// Changes the run, after copying it if it is shared.
    #[inline]
    fn change<R>(&mut self, change: impl FnOnce(&mut Run) -> R) -> R {
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
        let nodes = if len > 0 { VecDeque::from([Node::new(run)]) } else { VecDeque::new() };
        Quicklist { nodes, len }
    }

    /// Appends a run; skips an empty one.
    pub fn push_run(&mut self, run: Run) {
        if !run.is_empty() {
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
        let sampled = self.nodes.iter().step_by(step).map(|node| node.heap_bytes()).sum::<usize>();
        let samples = self.nodes.len().div_ceil(step).max(1);
        // A run's counts are allocated with it.
        let heads = self.nodes.len() * (size_of::<Run>() + size_of::<usize>());
        self.nodes.capacity() * size_of::<Node>() + heads + sampled * self.nodes.len() / samples
    }

    pub fn runs(&self) -> impl ExactSizeIterator<Item = RunView<'_>> {
        self.nodes.iter().map(|node| node.view())
    }

    /// Takes the only run, if it is short enough for a list that shrank.
    pub fn take_short(&mut self, limits: &Limits) -> Option<Run> {
        match self.nodes.make_contiguous() {
            [node] if limits.are_half_used(node) => Some(node.change(|run| {
                let mut run = std::mem::take(run);
                run.shrink_to_fit();
                run
            })),
            _ => None,
        }
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
        // A long list of short elements will probably fill this run too, so it is allocated in full.
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
        // The queue was much longer once.
        if self.nodes.capacity() > 64 && self.nodes.len() < self.nodes.capacity() / 8 {
            self.nodes.shrink_to(self.nodes.len() * 2);
        }
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
        run.change(|run| {
            run.replace(at, Element::new(text));
            run.shrink();
        });
        if run.count() > 1 && limits.are_exceeded(run.len(), 0) {
            // An element that fills a run gets one of its own; the others stay as full as they were.
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

    /// Inserts an element before or behind the first one equal to `pivot`. Its index; None if there is no such element.
    pub fn insert(
        &mut self,
        pivot: Element<'_>,
        behind: bool,
        text: &[u8],
        limits: &Limits,
    ) -> Option<usize> {
        let mut before = 0;
        for node in 0..self.nodes.len() {
            let entries = self.nodes[node].entries();
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
        self.nodes[node].change(|run| run.remove_at(at));
        self.len -= 1;
        if self.nodes[node].is_empty() {
            self.nodes.remove(node);
        } else {
            self.join_around(node, limits);
        }
    }

    /// All elements in one run.
    pub fn into_run(self) -> Run {
        let mut nodes = self.nodes.into_iter();
        let mut all = nodes.next().map(|node| Arc::unwrap_or_clone(node.run)).unwrap_or_default();
        nodes.for_each(|node| all.append(&node));
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
        let mut single = Run::default();
        single.push(End::Back, element, 0);
        let single = Node::new(single);
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
        for step in 0..self.nodes.len() {
            let node = match end {
                End::Front => step,
                End::Back => self.nodes.len() - 1 - step,
            };
            let found = self.nodes[node].find(end, element, most - removed);
            let count = found.len();
            if count > 0 {
                self.nodes[node].change(|run| run.remove_found(end, found));
                removed += count;
                touched += 1;
                last = node;
            }
            if removed == most {
                break;
            }
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

    /// Joins a run with its neighbours where two fit into one.
    fn join_around(&mut self, node: usize, limits: &Limits) {
        // The neighbours on each side first: splitting a run leaves two short ones with an element between them.
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
        let mut joined: VecDeque<Node> = VecDeque::new();
        for run in self.nodes.drain(..).filter(|run| !run.is_empty()) {
            match joined.back_mut() {
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
        Forwards { current, rest: self.nodes.range(node + 1..) }
    }

    /// The elements before `index` and those before them, in that order.
    pub fn backwards(&self, index: usize) -> Backwards<'_> {
        if index == 0 {
            return Backwards::default();
        }
        let (node, index) = self.node_of(index.min(self.len) - 1);
        let end = self.nodes[node].seek(index + 1);
        let current = &self.nodes[node].entries()[..end];
        Backwards { current, rest: self.nodes.range(..node) }
    }
}

/// Iterates forwards.
#[derive(Clone, Debug, Default)]
pub struct Forwards<'a> {
    current: &'a [u8],
    rest: vec_deque::Iter<'a, Node>,
}

impl<'a> Forwards<'a> {
    /// Iterates over one run, from entry `index` on.
    pub fn of_run(run: RunView<'a>, index: usize) -> Self {
        let at = listpack::seek(run.entries, index.min(run.count), run.count);
        Forwards { current: &run.entries[at..], ..Forwards::default() }
    }
}

impl<'a> Iterator for Forwards<'a> {
    type Item = Element<'a>;

    #[inline]
    fn next(&mut self) -> Option<Element<'a>> {
        loop {
            if let Some((element, len)) = listpack::first(self.current) {
                self.current = &self.current[len..];
                return Some(element);
            }
            self.current = self.rest.next()?.entries();
        }
    }
}

/// Iterates backwards.
#[derive(Clone, Debug, Default)]
pub struct Backwards<'a> {
    current: &'a [u8],
    rest: vec_deque::Iter<'a, Node>,
}

impl<'a> Backwards<'a> {
    /// Iterates over one run, from the entry before `index` on.
    pub fn of_run(run: RunView<'a>, index: usize) -> Self {
        let end = listpack::seek(run.entries, index.min(run.count), run.count);
        Backwards { current: &run.entries[..end], ..Backwards::default() }
    }
}

impl<'a> Iterator for Backwards<'a> {
    type Item = Element<'a>;

    #[inline]
    fn next(&mut self) -> Option<Element<'a>> {
        loop {
            if let Some((element, len)) = listpack::last(self.current) {
                self.current = &self.current[..self.current.len() - len];
                return Some(element);
            }
            self.current = self.rest.next_back()?.entries();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
