//! Cycles of owners that wait for each other's locks: none of them advances until a lease ends.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};

use crate::client::waits::Wait;
use crate::keyspace::waiting::Wanted;
use crate::keyspace::{DbIndex, Keyspace};
use crate::state::Core;
use crate::types::lock;

const CYCLES_MAX: usize = 100;

/// Bounds of the search, and so of its time: waits, and edges to keys and holders.
#[derive(Clone, Copy)]
struct Bounds {
    waits: usize,
    edges: usize,
}

/// For commands that list the cycles.
const LISTED: Bounds = Bounds { waits: 10_000, edges: 50_000 };
/// For the number of cycles, which INFO and each scrape report: takes a fraction of a millisecond.
/// A cycle lasts, so its waits become some of the longest.
const COUNTED: Bounds = Bounds { waits: 1000, edges: 3000 };

/// Owners, each with the key for which it waits and which the next owner holds. The last owner
/// waits for the first.
pub type Cycle = Vec<(Vec<u8>, Vec<u8>)>;

/// An owner, or the key of a lock. The holders of a lock are listed once, even if many owners wait
/// for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Node<'a> {
    Owner(Cow<'a, [u8]>),
    Lock(&'a [u8]),
}

/// Owners, the locks for which they wait, and the holders of these locks.
#[derive(Default)]
struct Graph<'a> {
    nodes: Vec<Node<'a>>,
    by_name: HashMap<Node<'a>, usize>,
    edges: Vec<Vec<usize>>,
    edges_len: usize,
}

impl<'a> Graph<'a> {
    /// The node's number, and whether it is new.
    fn node(&mut self, node: Node<'a>) -> (usize, bool) {
        let next = self.nodes.len();
        let number = *self.by_name.entry(node.clone()).or_insert(next);
        if number == next {
            self.nodes.push(node);
            self.edges.push(Vec::new());
        }
        (number, number == next)
    }

    fn join(&mut self, from: usize, to: usize) {
        self.edges[from].push(to);
        self.edges_len += 1;
    }

    /// Adds an owner's wait for a lock, and the lock's holders if the lock is new in the graph.
    fn wait(
        &mut self,
        owner: &'a [u8],
        key: &'a [u8],
        holders: impl FnOnce() -> Vec<Cow<'a, [u8]>>,
    ) {
        let (from, _) = self.node(Node::Owner(owner.into()));
        let (lock, is_new) = self.node(Node::Lock(key));
        self.join(from, lock);
        if is_new {
            for holder in holders() {
                let (to, _) = self.node(Node::Owner(holder));
                self.join(lock, to);
            }
        }
    }

    /// Some cycles, such that each cycle of the graph shares a node with one of them. Each edge
    /// back to a node of the search's path gives one.
    fn cycles(&self) -> Vec<Cycle> {
        let mut cycles = Vec::new();
        let mut is_done = vec![false; self.nodes.len()];
        // The position of each node on the path.
        let mut position: Vec<Option<usize>> = vec![None; self.nodes.len()];
        for start in 0..self.nodes.len() {
            // The path: nodes, each with the number of its edges that were looked at.
            let mut way: Vec<(usize, usize)> = Vec::new();
            if !is_done[start] {
                way.push((start, 0));
                position[start] = Some(0);
            }
            while let Some((node, looked_at)) = way.last_mut() {
                let (node, at) = (*node, *looked_at);
                *looked_at += 1;
                let Some(&to) = self.edges[node].get(at) else {
                    is_done[node] = true;
                    position[node] = None;
                    way.pop();
                    continue;
                };
                match position[to] {
                    // An owner that waits for a lock that it holds itself, as a reader, is no
                    // cycle.
                    Some(first) if cycles.len() < CYCLES_MAX && way.len() - first > 2 => {
                        cycles.push(self.cycle(&way[first..]));
                    }
                    None if !is_done[to] => {
                        position[to] = Some(way.len());
                        way.push((to, 0));
                    }
                    _ => {}
                }
            }
        }
        cycles
    }

    /// Makes a cycle of a path, on which owners and locks alternate. Either may be the first.
    fn cycle(&self, way: &[(usize, usize)]) -> Cycle {
        let nodes: Vec<&Node<'a>> = way.iter().map(|(node, _)| &self.nodes[*node]).collect();
        let after = |at: usize| nodes[(at + 1) % nodes.len()];
        let steps = nodes.iter().enumerate().filter_map(|(at, node)| match (node, after(at)) {
            (Node::Owner(owner), Node::Lock(key)) => Some((owner.to_vec(), key.to_vec())),
            _ => None,
        });
        steps.collect()
    }
}

/// The cycles among the locks of a database.
pub fn find(core: &Core, database: DbIndex) -> Vec<Cycle> {
    let waits = core.state.waits.longest_for_locks(LISTED.waits);
    find_among(&core.keyspace, &waits, database, LISTED.edges)
}

/// The cycles among the locks of a database, as far as these waits form them.
fn find_among<'a>(
    keyspace: &'a Keyspace,
    waits: &[&'a Wait],
    database: DbIndex,
    edges_max: usize,
) -> Vec<Cycle> {
    // A cycle has at least two waits.
    if waits.len() < 2 {
        return Vec::new();
    }
    let mut graph = Graph::default();
    let own = waits.iter().filter(|wait| wait.database == database);
    for (wait, key) in own.flat_map(|wait| wait.keys().map(move |(_, key)| (wait, key))) {
        if graph.edges_len >= edges_max {
            break;
        }
        graph.wait(wait.owner(), key, || holders(keyspace, database, key));
    }
    graph.cycles()
}

/// The holders of a lock.
fn holders<'a>(keyspace: &'a Keyspace, database: DbIndex, key: &[u8]) -> Vec<Cow<'a, [u8]>> {
    let Some(entry) = keyspace.entry_quietly(database, key) else { return Vec::new() };
    let lock = lock::read(entry.value(), &keyspace.now()).ok().flatten();
    if lock.as_ref().is_some_and(|lock| lock.readers > 0) {
        let readers = keyspace.locks.readers(database, key);
        return readers.map(|(owner, _)| owner.into()).collect();
    }
    lock.into_iter().map(|lock| lock.owner).collect()
}

/// Number of cycles in all databases, among fewer waits than [`find`] looks at.
pub fn count(core: &Core) -> usize {
    if core.state.waits.len_of(Wanted::Lock) < 2 {
        return 0;
    }
    let waits = core.state.waits.longest_for_locks(COUNTED.waits);
    let databases: BTreeSet<DbIndex> = waits.iter().map(|wait| wait.database).collect();
    let found = databases
        .into_iter()
        .map(|database| find_among(&core.keyspace, &waits, database, COUNTED.edges));
    found.map(|cycles| cycles.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cycles(edges: &[(&str, &str)]) -> Vec<String> {
        let keys: Vec<String> = edges.iter().map(|(from, to)| format!("{from}{to}")).collect();
        let mut graph = Graph::default();
        for ((from, to), key) in edges.iter().zip(&keys) {
            let holders = || vec![Cow::Borrowed(to.as_bytes())];
            graph.wait(from.as_bytes(), key.as_bytes(), holders);
        }
        let shown = |cycle: Cycle| {
            let steps: Vec<String> = cycle
                .iter()
                .map(|(owner, key)| format!("{}:{}", owner.escape_ascii(), key.escape_ascii()))
                .collect();
            steps.join(" ")
        };
        graph.cycles().into_iter().map(shown).collect()
    }

    #[test]
    fn each_circle_is_found_once() {
        assert!(cycles(&[("a", "b"), ("b", "c"), ("d", "c"), ("a", "c")]).is_empty());
        assert_eq!(cycles(&[("a", "b"), ("b", "a")]), ["a:ab b:ba"]);
        let tail = [("x", "a"), ("a", "b"), ("b", "c"), ("c", "a"), ("c", "y")];
        assert_eq!(cycles(&tail), ["a:ab b:bc c:ca"]);
        let two = [("a", "b"), ("b", "a"), ("b", "c"), ("c", "b")];
        assert_eq!(cycles(&two), ["a:ab b:ba", "b:bc c:cb"]);
    }
}
