//! Building a tree from all its elements in descending order, as files store them: leaves are
//! filled one after the other, and the index is built once all members are known. At the end the
//! index finds duplicate members, page by page.

use super::index::Index;
use super::leaf::{Element, Leaf};
use super::{CHILDREN_MAX, Inner, LEAF_BYTES_MAX, LEAF_MAX, NONE, ScoreTree, tag_of};
use crate::collections::shared::SharedSlab;

/// Receives the elements of a tree in descending order.
#[derive(Debug, Default)]
pub struct Descending {
    /// In descending order.
    leaves: SharedSlab<Leaf>,
    nodes: Vec<Node>,
    leaf_bytes: usize,
    len: usize,
    /// The elements of the current leaf, and the bytes of their members.
    elements: Vec<Element>,
    members: Vec<u8>,
}

/// The elements below one child of an inner node.
#[derive(Clone, Copy, Debug)]
struct Node {
    id: u32,
    first: f64,
    count: usize,
}

impl Descending {
    /// Adds an element. False if the element does not precede the last one: then the tree must be
    /// built in another way.
    pub fn push(&mut self, score: f64, member: &[u8]) -> bool {
        if let Some(last) = self.elements.last() {
            let is_before = score < last.score
                || (score == last.score && member < &self.members[last.member.clone()]);
            if !is_before {
                return false;
            }
            let bytes = Leaf::bytes_of(self.elements.len(), self.members.len());
            if self.elements.len() == LEAF_MAX || bytes + member.len() > LEAF_BYTES_MAX {
                self.end_leaf();
            }
        }
        let begin = self.members.len();
        self.members.extend_from_slice(member);
        let member = begin..self.members.len();
        self.elements.push(Element { score, tag: tag_of(&self.members[begin..]), member });
        true
    }

    fn end_leaf(&mut self) {
        let Some(first) = self.elements.last() else { return };
        let (first, count) = (first.score, self.elements.len());
        let leaf = Leaf::of(self.elements.iter().rev(), &self.members);
        self.leaf_bytes += leaf.heap_bytes();
        self.len += count;
        let id = self.leaves.add(leaf);
        self.nodes.push(Node { id, first, count });
        self.elements.clear();
        self.members.clear();
    }

    /// Finishes the tree. None: a member was added twice, with two scores.
    pub fn finish(mut self) -> Option<ScoreTree> {
        self.end_leaf();
        let mut nodes = self.nodes;
        if nodes.is_empty() {
            return Some(ScoreTree::new());
        }
        nodes.reverse();
        let mut tree = ScoreTree {
            leaves: self.leaves,
            inners: SharedSlab::default(),
            root: NONE,
            height: 0,
            len: self.len,
            index: Index::default(),
            leaf_bytes: self.leaf_bytes,
        };
        while nodes.len() > 1 {
            nodes = nodes.chunks(CHILDREN_MAX).map(|children| tree.hang(children)).collect();
            tree.height += 1;
        }
        tree.root = nodes[0].id;
        if tree.height > 0 {
            tree.index = Index::of(tree.len, || {
                let leaves = (0u32..).zip(tree.leaves.iter());
                leaves.flat_map(|(id, leaf)| leaf.tags().map(move |tag| (tag, id)))
            });
        }
        (!tree.has_twice()).then_some(tree)
    }
}

impl ScoreTree {
    /// Adds a level of inner nodes above the highest one.
    fn hang(&mut self, children: &[Node]) -> Node {
        let id = self.inners.add(Inner {
            firsts: children.iter().map(|child| child.first).collect(),
            counts: children.iter().map(|child| child.count).collect(),
            children: children.iter().map(|child| child.id).collect(),
            parent: NONE,
        });
        for child in children {
            self.set_parent(child.id, self.height, id);
        }
        let count = children.iter().map(|child| child.count).sum();
        Node { id, first: children[0].first, count }
    }

    /// Whether there are duplicate members.
    fn has_twice(&self) -> bool {
        if self.height == 0 {
            let leaf = self.leaves.get(self.root);
            let found = |at| leaf.find(tag_of(leaf.member(at)), leaf.member(at));
            return (0..leaf.len()).any(|at| found(at) != Some(at));
        }
        self.index.any_collision(|tag, leaves| {
            let mut members = Vec::new();
            for &id in leaves {
                members.extend(self.leaves.get(id).tagged(tag).map(|(_, member)| member));
            }
            members.sort_unstable();
            members.windows(2).any(|pair| pair[0] == pair[1])
        })
    }
}
