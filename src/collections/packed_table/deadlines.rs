//! Lower bounds of the first deadline in each page, and in each group of pages.
//!
//! As in the keyspace's table they may be too early, never too late: removing or extending a
//! deadline leaves them, and the search for expired entries corrects them. Each of the two clocks
//! has its own bound.

use crate::clock::{Deadline, Now};
use crate::collections::shared::{Part, SharedVec};

/// Pages in a group.
const GROUP: usize = 64;

/// The earliest deadlines on both clocks, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Earliest {
    pub boot_ms: i64,
    pub wall_ms: i64,
}

impl Earliest {
    pub const NEVER: Earliest = Earliest { boot_ms: i64::MAX, wall_ms: i64::MAX };

    pub fn of(deadline: Deadline) -> Self {
        if deadline.is_on_boot_clock() {
            Earliest { boot_ms: deadline.ms(), ..Earliest::NEVER }
        } else {
            Earliest { wall_ms: deadline.ms(), ..Earliest::NEVER }
        }
    }

    #[must_use]
    pub fn min(self, other: Earliest) -> Self {
        Earliest {
            boot_ms: self.boot_ms.min(other.boot_ms),
            wall_ms: self.wall_ms.min(other.wall_ms),
        }
    }

    /// Whether one of the deadlines has passed.
    pub fn is_past(&self, now: &Now) -> bool {
        self.boot_ms < now.boot_ms() || self.wall_ms < now.unix().0
    }
}

impl Default for Earliest {
    fn default() -> Self {
        Earliest::NEVER
    }
}

impl Part for Earliest {
    fn heap_bytes(&self) -> usize {
        0
    }
}

/// The bounds of a table's pages. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Deadlines {
    pages: SharedVec<Earliest>,
    groups: SharedVec<Earliest>,
    /// Number of entries with a deadline.
    pub count: usize,
}

impl Deadlines {
    pub fn new(pages: usize) -> Self {
        let mut deadlines = Deadlines::default();
        (0..pages).for_each(|_| deadlines.push());
        deadlines
    }

    #[cfg(test)]
    pub fn page(&self, page: usize) -> Earliest {
        self.pages[page]
    }

    /// Lowers a page's bound for a new deadline.
    pub fn lower(&mut self, page: usize, earliest: Earliest) {
        self.pages[page] = self.pages[page].min(earliest);
        self.groups[page / GROUP] = self.groups[page / GROUP].min(earliest);
    }

    /// Sets a page's bound.
    pub fn set(&mut self, page: usize, earliest: Earliest) {
        self.pages[page] = earliest;
        self.correct_group(page);
    }

    fn correct_group(&mut self, page: usize) {
        let start = page / GROUP * GROUP;
        let group = start..self.pages.len().min(start + GROUP);
        let pages = group.map(|page| self.pages[page]);
        self.groups[page / GROUP] = pages.fold(Earliest::NEVER, Earliest::min);
    }

    /// Appends a page without deadlines.
    pub fn push(&mut self) {
        if self.pages.len().is_multiple_of(GROUP) {
            self.groups.push(Earliest::NEVER);
        }
        self.pages.push(Earliest::NEVER);
    }

    /// Removes the last page's bound and returns it.
    pub fn pop(&mut self) -> Earliest {
        let last = self.pages.pop().unwrap_or(Earliest::NEVER);
        if self.pages.len().is_multiple_of(GROUP) {
            self.groups.pop();
        } else {
            self.correct_group(self.pages.len());
        }
        last
    }

    /// The bound of all pages.
    pub fn earliest(&self) -> Earliest {
        self.groups.iter().copied().fold(Earliest::NEVER, Earliest::min)
    }

    /// The next page from `from` on that may have an expired entry.
    pub fn next_due(&self, from: usize, now: &Now) -> Option<usize> {
        let mut page = from;
        while page < self.pages.len() {
            if page.is_multiple_of(GROUP) && !self.groups[page / GROUP].is_past(now) {
                page += GROUP;
                continue;
            }
            if self.pages[page].is_past(now) {
                return Some(page);
            }
            page += 1;
        }
        None
    }

    pub fn heap_bytes(&self) -> usize {
        self.pages.heap_bytes() + self.groups.heap_bytes()
    }
}
