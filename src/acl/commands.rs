//! Which commands somebody may run: a set of commands, and its description as rules.

use super::catalogue::{Catalogue, Entry};
use crate::facts::{CATEGORY_NAMES, Categories};
use crate::ids::CommandId;

/// A set of commands, and whether commands that are not known yet would be in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandSet {
    words: Vec<u64>,
    /// It began as all commands.
    pub takes_new: bool,
}

impl CommandSet {
    /// All commands of a catalogue.
    pub fn all(catalogue: &Catalogue) -> Self {
        let mut set = CommandSet { words: Vec::new(), takes_new: true };
        catalogue.iter().for_each(|entry| set.put(entry.id, true));
        set
    }

    #[inline]
    pub fn contains(&self, id: CommandId) -> bool {
        let word = self.words.get(id.index() / 64).copied().unwrap_or_default();
        word & 1 << (id.index() % 64) != 0
    }

    fn put(&mut self, id: CommandId, is_in: bool) {
        let (word, bit) = (id.index() / 64, 1 << (id.index() % 64));
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        if is_in {
            self.words[word] |= bit;
        } else {
            self.words[word] &= !bit;
        }
    }

    /// Puts a command, and with a container its subcommands, in or out.
    pub fn change(&mut self, catalogue: &Catalogue, entry: &Entry, is_in: bool) {
        self.put(entry.id, is_in);
        catalogue.subcommands(entry).for_each(|sub| self.put(sub.id, is_in));
    }

    /// Puts the commands of a category in or out. `each` is told of each.
    pub fn change_category(
        &mut self,
        catalogue: &Catalogue,
        category: Categories,
        is_in: bool,
        mut each: impl FnMut(CommandId),
    ) {
        for entry in catalogue.in_families().filter(|it| it.categories.intersects(category)) {
            self.change(catalogue, entry, is_in);
            each(entry.id);
        }
    }

    /// How many commands of a category are in the set, and how many are not.
    fn count(&self, catalogue: &Catalogue, category: Categories) -> (usize, usize) {
        let members = catalogue.iter().filter(|entry| entry.categories.intersects(category));
        members.fold((0, 0), |(on, off), entry| match self.contains(entry.id) {
            true => (on + 1, off),
            false => (on, off + 1),
        })
    }

    /// Rules that make this set: `+@all` or `-@all`, then the categories that fit best, each as long as it helps more than it
    /// harms, then single commands. `first_args` adds what a command that is not in the set has besides.
    pub fn describe(
        &self,
        catalogue: &Catalogue,
        mut first_args: impl FnMut(&Entry, &mut Vec<u8>),
    ) -> Vec<u8> {
        let adds = !self.takes_new;
        // What the rules written so far make.
        let mut made = if adds { CommandSet::default() } else { CommandSet::all(catalogue) };
        let mut text = if adds { b"-@all".to_vec() } else { b"+@all".to_vec() };
        // What they leave to be done, categories taken for done.
        let mut left = self.clone();
        let mut used = Categories::empty();
        while let Some((category, name)) = left.best_category(catalogue, used, adds) {
            text.extend_from_slice(if adds { b" +@" } else { b" -@" });
            text.extend_from_slice(name.as_bytes());
            made.change_category(catalogue, category, adds, |_| {});
            left.change_category(catalogue, category, !adds, |_| {});
            used |= category;
        }
        for entry in catalogue.in_families() {
            let is_in = self.contains(entry.id);
            if is_in != made.contains(entry.id) {
                text.extend_from_slice(if is_in { b" +" } else { b" -" });
                text.extend_from_slice(entry.name.as_bytes());
                made.change(catalogue, entry, is_in);
            }
            if !is_in {
                first_args(entry, &mut text);
            }
        }
        text
    }

    /// The category with the fewest commands to be put right again afterwards, of such as have fewer of them than others.
    fn best_category(
        &self,
        catalogue: &Catalogue,
        used: Categories,
        adds: bool,
    ) -> Option<(Categories, &'static str)> {
        let mut best = None;
        let (mut least_harm, mut most_help) = (usize::MAX, 0);
        for &(category, name) in CATEGORY_NAMES.iter().filter(|(it, _)| !used.contains(*it)) {
            let (on, off) = self.count(catalogue, category);
            let (help, harm) = if adds { (on, off) } else { (off, on) };
            if help > harm && (harm < least_harm || harm == least_harm && help > most_help) {
                (best, least_harm, most_help) = (Some((category, name)), harm, help);
            }
        }
        best
    }
}
