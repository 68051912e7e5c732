//! The commands that rules may name, with their categories and subcommands.

use std::collections::HashMap;
use std::ops::Range;

use crate::facts::{CATEGORY_NAMES, Categories};
use crate::ids::CommandId;

/// One command or subcommand.
#[derive(Debug)]
pub struct Entry {
    pub id: CommandId,
    /// In lower case; for a subcommand with its container: `client|kill`.
    pub name: Box<str>,
    pub categories: Categories,
    pub is_subcommand: bool,
    /// The IDs of its subcommands.
    pub subcommands: Range<u16>,
}

/// All commands, by ID and by name. `rename-command` does not affect these names.
#[derive(Debug)]
pub struct Catalogue {
    entries: Vec<Entry>,
    by_name: HashMap<Box<str>, CommandId>,
}

impl Catalogue {
    /// `entries`: in the order of their IDs.
    pub fn new(entries: Vec<Entry>) -> Self {
        let by_name = entries.iter().map(|entry| (entry.name.clone(), entry.id)).collect();
        Catalogue { entries, by_name }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn get(&self, id: CommandId) -> &Entry {
        &self.entries[id.index()]
    }

    /// A command by its full name (`get`, `client|kill`), in any case.
    pub fn find(&self, name: &[u8]) -> Option<&Entry> {
        let name = std::str::from_utf8(name).ok()?.to_ascii_lowercase();
        self.by_name.get(&*name).map(|&id| self.get(id))
    }

    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter()
    }

    /// All commands, each followed by its subcommands.
    pub fn with_subcommands(&self) -> impl Iterator<Item = &Entry> {
        let top_level = self.entries.iter().filter(|entry| !entry.is_subcommand);
        top_level.flat_map(|entry| std::iter::once(entry).chain(self.subcommands(entry)))
    }

    pub fn subcommands(&self, entry: &Entry) -> impl Iterator<Item = &Entry> + use<'_> {
        let Range { start, end } = entry.subcommands;
        self.entries[start as usize..end as usize].iter()
    }
}

/// The category with this name, in any case.
pub fn category(name: &[u8]) -> Option<Categories> {
    let named = |(_, known): &&(Categories, &str)| name.eq_ignore_ascii_case(known.as_bytes());
    CATEGORY_NAMES.iter().find(named).map(|(category, _)| *category)
}
