//! The commands as rules name them: numbers, full names, categories, and which belong to which container.

use std::collections::HashMap;
use std::ops::Range;

use crate::facts::{CATEGORY_NAMES, Categories};
use crate::ids::CommandId;

/// One command or subcommand.
#[derive(Debug)]
pub struct Entry {
    pub id: CommandId,
    /// Lower case; a subcommand's with its container's: `client|kill`.
    pub name: Box<str>,
    pub categories: Categories,
    /// It is a subcommand.
    pub is_sub: bool,
    /// Numbers of its subcommands.
    pub subcommands: Range<u16>,
}

/// All commands, by number and by name. Rules go by the names in the table, whatever `rename-command` says.
#[derive(Debug)]
pub struct Catalogue {
    entries: Vec<Entry>,
    by_name: HashMap<Box<str>, CommandId>,
}

impl Catalogue {
    /// Of entries in the order of their numbers.
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

    /// Each command followed by its subcommands.
    pub fn in_families(&self) -> impl Iterator<Item = &Entry> {
        let top_level = self.entries.iter().filter(|entry| !entry.is_sub);
        top_level.flat_map(|entry| std::iter::once(entry).chain(self.subcommands(entry)))
    }

    pub fn subcommands(&self, entry: &Entry) -> impl Iterator<Item = &Entry> + use<'_> {
        let Range { start, end } = entry.subcommands;
        self.entries[start as usize..end as usize].iter()
    }
}

/// The category of this name, in any case.
pub fn category(name: &[u8]) -> Option<Categories> {
    let named = |(_, known): &&(Categories, &str)| name.eq_ignore_ascii_case(known.as_bytes());
    CATEGORY_NAMES.iter().find(named).map(|(category, _)| *category)
}
