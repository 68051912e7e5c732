//! A set of permitted commands, and its description as rules.

use super::catalogue::{Catalogue, Entry};
use crate::facts::{CATEGORY_NAMES, Categories};
use crate::ids::CommandId;

/// A set of commands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandSet {
    words: Vec<u64>,
    /// It started as all commands (`+@all`), so commands of later versions are in it too.
    pub includes_new: bool,
}

impl CommandSet {
    /// All commands of a catalogue.
    pub fn all(catalogue: &Catalogue) -> Self {
        let mut set = CommandSet { words: Vec::new(), includes_new: true };
        catalogue.iter().for_each(|entry| set.set_bit(entry.id, true));
        set
    }

    #[inline]
    pub fn contains(&self, id: CommandId) -> bool {
        let word = self.words.get(id.index() / 64).copied().unwrap_or_default();
        word & 1 << (id.index() % 64) != 0
    }

    fn set_bit(&mut self, id: CommandId, allowed: bool) {
        let (word, bit) = (id.index() / 64, 1 << (id.index() % 64));
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        if allowed {
            self.words[word] |= bit;
        } else {
            self.words[word] &= !bit;
        }
    }

    /// Adds or removes a command with its subcommands.
    pub fn set(&mut self, catalogue: &Catalogue, entry: &Entry, allowed: bool) {
        self.set_bit(entry.id, allowed);
        catalogue.subcommands(entry).for_each(|sub| self.set_bit(sub.id, allowed));
    }

    /// Adds or removes the commands of a category. `each` is called with each of them.
    pub fn set_category(
        &mut self,
        catalogue: &Catalogue,
        category: Categories,
        allowed: bool,
        mut each: impl FnMut(CommandId),
    ) {
        for entry in
            catalogue.with_subcommands().filter(|entry| entry.categories.intersects(category))
        {
            self.set(catalogue, entry, allowed);
            each(entry.id);
        }
    }

    /// How many commands of a category are in the set, and how many are not.
    fn count(&self, catalogue: &Catalogue, category: Categories) -> (usize, usize) {
        let members = catalogue.iter().filter(|entry| entry.categories.intersects(category));
        members.fold((0, 0), |(inside, outside), entry| match self.contains(entry.id) {
            true => (inside + 1, outside),
            false => (inside, outside + 1),
        })
    }

    /// Rules that make this set: `+@all` or `-@all`, then categories, then single commands.
    /// `append_first_args` appends the rules for permitted first arguments of a command that is not
    /// in the set.
    pub fn describe(
        &self,
        catalogue: &Catalogue,
        mut append_first_args: impl FnMut(&Entry, &mut Vec<u8>),
    ) -> Vec<u8> {
        let adds = !self.includes_new;
        // The set that the text so far describes.
        let mut described = if adds { CommandSet::default() } else { CommandSet::all(catalogue) };
        let mut text = if adds { b"-@all".to_vec() } else { b"+@all".to_vec() };
        // The set without the described categories.
        let mut rest = self.clone();
        let mut used = Categories::empty();
        while let Some((category, name)) = rest.best_category(catalogue, used, adds) {
            text.extend_from_slice(if adds { b" +@" } else { b" -@" });
            text.extend_from_slice(name.as_bytes());
            described.set_category(catalogue, category, adds, |_| {});
            rest.set_category(catalogue, category, !adds, |_| {});
            used |= category;
        }
        for entry in catalogue.with_subcommands() {
            let allowed = self.contains(entry.id);
            if allowed != described.contains(entry.id) {
                text.extend_from_slice(if allowed { b" +" } else { b" -" });
                text.extend_from_slice(entry.name.as_bytes());
                described.set(catalogue, entry, allowed);
            }
            if !allowed {
                append_first_args(entry, &mut text);
            }
        }
        text
    }

    /// The next category for the description. It must correct more commands than it has exceptions,
    /// which need rules of their own afterwards; of such categories the one with the fewest
    /// exceptions. `adds`: its rule would add commands.
    fn best_category(
        &self,
        catalogue: &Catalogue,
        used: Categories,
        adds: bool,
    ) -> Option<(Categories, &'static str)> {
        let mut best = None;
        let (mut least_exceptions, mut most_right) = (usize::MAX, 0);
        for &(category, name) in CATEGORY_NAMES.iter().filter(|(it, _)| !used.contains(*it)) {
            let (inside, outside) = self.count(catalogue, category);
            let (right, exceptions) = if adds { (inside, outside) } else { (outside, inside) };
            let is_better = exceptions < least_exceptions
                || exceptions == least_exceptions && right > most_right;
            if right > exceptions && is_better {
                (best, least_exceptions, most_right) = (Some((category, name)), exceptions, right);
            }
        }
        best
    }
}
