//! The table of all commands, numbered, with look-up by name. Built once from the families' tables.

use crate::acl::catalogue::{Catalogue, Entry};
use crate::ids::CommandId;
use crate::state::spec::{
    Begin, CommandSpec, Find, Flags, KeyRule, KeySpec, all_categories, container,
};

/// A command or subcommand with its number.
pub struct Command {
    pub spec: &'static CommandSpec,
    /// The index in [`CommandTable::commands`], and in the statistics.
    pub id: CommandId,
    /// The name in lower case; for a subcommand, including its container: `client|kill`.
    pub full_name: Box<str>,
    /// Container of a subcommand.
    pub parent: Option<CommandId>,
    /// The subcommands' numbers, which are consecutive.
    pub subcommands: std::ops::Range<u16>,
    pub needs: Needs,
    pub fixed_keys: FixedKeys,
    /// Whether all names by which a cluster chooses the node have fixed positions. True if the
    /// command has none.
    pub has_fixed_places: bool,
}

/// The arguments of a command that are keys, if they have fixed positions: these are hashed ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FixedKeys {
    /// The first key; 0: the command has none.
    pub first: u8,
    /// Distance from one key to the next; 0: only one key.
    pub step: u8,
}

impl FixedKeys {
    /// The hash of argument `index`, if it is one of these keys and among the first keys' `hashes`.
    #[inline]
    pub fn hash_of(self, index: usize, hashes: &[u64]) -> Option<u64> {
        let distance = index.wrapping_sub(self.first.into());
        match self.step {
            0 | 1 => hashes.get(distance).copied(),
            2 if distance.is_multiple_of(2) => hashes.get(distance / 2).copied(),
            _ => None,
        }
    }

    fn of(spec: &CommandSpec) -> Self {
        let Some(KeySpec { begin: Begin::Index(first), find, .. }) = spec.keys.first() else {
            return FixedKeys::default();
        };
        match *find {
            Find::Range { last, step, .. } => {
                FixedKeys { first: *first as u8, step: if last < 0 { step as u8 } else { 0 } }
            }
            _ => FixedKeys::default(),
        }
    }
}

fn has_fixed_places(spec: &CommandSpec) -> bool {
    let is_fixed = |keys: &KeySpec| {
        matches!((keys.begin, keys.find), (Begin::Index(_), Find::Range { limit: 0 | 1, .. }))
    };
    let moves_none = matches!(
        spec.key_rule,
        KeyRule::None | KeyRule::ReadWithGet | KeyRule::Compared | KeyRule::ReadByGets
    );
    moves_none && !spec.flags.contains(Flags::RUNS_QUEUED) && spec.keys.iter().all(is_fixed)
}

/// Which commands may run without further checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FastPath {
    Closed,
    /// In a cluster: those whose keys are in a slot that this node owns, while nothing else is in
    /// the way.
    Owned,
    /// On a replica: those that neither write nor run commands that may.
    Reads,
    All,
}

impl FastPath {
    /// Whether nothing stands in the way of writes.
    #[inline]
    pub fn takes_writes(self) -> bool {
        matches!(self, FastPath::Owned | FastPath::All)
    }
}

/// The fast path that a command needs to run without further checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    Reads = FastPath::Reads as isize,
    All = FastPath::All as isize,
    /// The command is always checked: it has subcommands, or needs a permission of its own.
    Never,
}

impl Needs {
    fn of(command: &Command) -> Self {
        let flags = command.spec.flags;
        let is_plain = command.spec.handler.is_some() && command.subcommands.is_empty();
        match is_plain && !flags.contains(Flags::PROTECTED) {
            false => Needs::Never,
            true if flags.intersects(Flags::WRITE | Flags::RUNS_SCRIPT) => Needs::All,
            true => Needs::Reads,
        }
    }

    #[inline(always)]
    pub fn are_met_by(self, path: FastPath) -> bool {
        self as u8 <= path as u8
    }
}

/// Every command by number and by name.
pub struct CommandTable {
    pub commands: Vec<Command>,
    /// What a request of no command names. It has no number in the statistics.
    pub unknown: Command,
    /// Hash table with open addressing over the top-level names.
    slots: Vec<Slot>,
}

/// A name's slot, with enough of the name to decide most look-ups without another cache miss.
#[derive(Clone, Copy, Default)]
struct Slot {
    /// See [`fold`].
    folded: u64,
    len: u8,
    /// The name is compared with the command's own name from this byte on.
    compared_from: u8,
    /// The command's number + 1; 0: empty slot.
    number: u16,
}

static UNKNOWN: CommandSpec = container("", &[]);

/// The longest command name in bytes.
const NAME_BYTES_MAX: usize = 32;

impl CommandTable {
    /// Builds the table of these families, in the order of `COMMAND LIST`.
    pub fn build(families: &'static [&'static [CommandSpec]]) -> Self {
        let specs = families.iter().flat_map(|family| family.iter());
        let mut commands: Vec<Command> = specs.map(Command::new).collect();
        let top_level = commands.len();
        for parent in 0..top_level {
            let start = commands.len() as u16;
            for spec in commands[parent].spec.subcommands {
                let mut command = Command::new(spec);
                let container = &commands[parent].full_name;
                command.full_name = format!("{container}|{}", command.full_name).into();
                command.parent = Some(CommandId(parent as u16));
                commands.push(command);
            }
            commands[parent].subcommands = start..commands.len() as u16;
        }
        for (id, command) in commands.iter_mut().enumerate() {
            command.id = CommandId(id as u16);
            command.needs = Needs::of(command);
        }
        let mut slots = vec![Slot::default(); (top_level * 4).next_power_of_two()];
        for command in &commands[..top_level] {
            let name = command.full_name.as_bytes();
            assert!(name.len() <= NAME_BYTES_MAX, "{} is too long a name", command.full_name);
            let folded = fold(name);
            let mut position = mix(folded, name.len()) & (slots.len() - 1);
            while slots[position].number != 0 {
                position = (position + 1) & (slots.len() - 1);
            }
            // `fold` is exact for letters alone; other bytes may collide.
            let letters = name.iter().take(8).all(u8::is_ascii_alphabetic);
            let compared_from = if letters { name.len().min(8) as u8 } else { 0 };
            slots[position] =
                Slot { folded, len: name.len() as u8, compared_from, number: command.id.0 + 1 };
        }
        CommandTable { commands, unknown: Command::new(&UNKNOWN), slots }
    }

    /// The top-level command of this name, in any case.
    #[inline]
    pub fn find(&self, name: &[u8]) -> Option<&Command> {
        if name.len() > NAME_BYTES_MAX {
            return None;
        }
        let folded = fold(name);
        let mut position = mix(folded, name.len()) & (self.slots.len() - 1);
        loop {
            let slot = self.slots[position];
            if slot.number == 0 {
                return None;
            }
            if slot.folded == folded && slot.len as usize == name.len() {
                let command = &self.commands[slot.number as usize - 1];
                if slot.compared_from == slot.len
                    || is_name(name, command.full_name.as_bytes(), slot.compared_from)
                {
                    return Some(command);
                }
            }
            position = (position + 1) & (self.slots.len() - 1);
        }
    }

    /// The command of this number.
    #[inline]
    pub fn get(&self, id: CommandId) -> &Command {
        &self.commands[id.index()]
    }

    /// The subcommand of this name, in any case.
    pub fn find_subcommand(&self, parent: &Command, name: &[u8]) -> Option<&Command> {
        self.subcommands(parent)
            .iter()
            .find(|command| name.eq_ignore_ascii_case(command.spec.name.as_bytes()))
    }

    /// A command by its full name (`get`, `client|kill`), in any case.
    pub fn find_full(&self, name: &[u8]) -> Option<&Command> {
        match name.iter().position(|&byte| byte == b'|') {
            None => self.find(name),
            Some(bar) => self.find_subcommand(self.find(&name[..bar])?, &name[bar + 1..]),
        }
    }

    pub fn subcommands(&self, parent: &Command) -> &[Command] {
        &self.commands[parent.subcommands.start as usize..parent.subcommands.end as usize]
    }

    /// The commands that are not subcommands.
    pub fn top_level(&self) -> impl Iterator<Item = &Command> {
        self.commands.iter().filter(|command| command.parent.is_none())
    }

    /// The commands as ACL rules name them.
    pub fn catalogue(&self) -> Catalogue {
        let entry = |command: &Command| Entry {
            id: command.id,
            name: command.full_name.clone(),
            categories: all_categories(command.spec),
            is_subcommand: command.parent.is_some(),
            subcommands: command.subcommands.clone(),
        };
        Catalogue::new(self.commands.iter().map(entry).collect())
    }
}

impl Command {
    fn new(spec: &'static CommandSpec) -> Self {
        Command {
            spec,
            id: CommandId(0),
            full_name: spec.name.to_ascii_lowercase().into(),
            parent: None,
            subcommands: 0..0,
            needs: Needs::Never,
            fixed_keys: FixedKeys::of(spec),
            has_fixed_places: has_fixed_places(spec),
        }
    }

    /// Whether this is [`CommandTable::unknown`].
    pub fn is_unknown(&self) -> bool {
        self.spec.name.is_empty()
    }

    pub fn is(&self, flags: Flags) -> bool {
        self.spec.flags.intersects(flags)
    }

    /// Whether MULTI queues it, rather than running or refusing it.
    #[inline]
    pub fn is_queueable(&self) -> bool {
        !self.is(Flags::NEVER_QUEUED | Flags::NO_MULTI)
    }
}

/// The name that was looked up last, and its command: in pipelines most names are that of the
/// request before.
#[derive(Default)]
pub struct LastName {
    /// See [`LastName::words`].
    words: [u64; 2],
    len: usize,
    command: Option<&'static Command>,
}

impl LastName {
    /// Names of this length at most are their two words.
    const LEN_MAX: usize = 16;

    /// The first eight bytes of a name, and the last eight.
    #[inline]
    fn words(name: &[u8]) -> [u64; 2] {
        let last = name.last_chunk::<8>().map_or(0, |last| u64::from_le_bytes(*last));
        [first_word(name), last]
    }

    /// The result of `find`, which must be the same for the same name.
    #[inline]
    pub fn find(
        &mut self,
        name: &[u8],
        find: impl FnOnce(&[u8]) -> Option<&'static Command>,
    ) -> Option<&'static Command> {
        let words = LastName::words(name);
        if words == self.words && name.len() == self.len {
            return self.command;
        }
        let command = find(name);
        if name.len() <= LastName::LEN_MAX {
            *self = LastName { words, len: name.len(), command };
        }
        command
    }
}

/// The first eight bytes of a name, case-insensitive.
#[inline]
fn fold(name: &[u8]) -> u64 {
    // Bit 5 is the case of a letter: setting it everywhere ignores the case.
    first_word(name) | 0x2020_2020_2020_2020
}

/// The first eight bytes of a name, or all and zeros.
#[inline]
fn first_word(name: &[u8]) -> u64 {
    if let Some(first) = name.first_chunk::<8>() {
        u64::from_le_bytes(*first)
    } else if let (Some(first), Some(last)) = (name.first_chunk::<4>(), name.last_chunk::<4>()) {
        // Overlapping bytes are equal in both words.
        let last = u64::from(u32::from_le_bytes(*last)) << (8 * (name.len() - 4));
        u64::from(u32::from_le_bytes(*first)) | last
    } else {
        name.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
    }
}

/// Whether `name` is `own`, a command's name in lower case of the same length, in any case, from
/// byte `from` on.
#[inline]
fn is_name(name: &[u8], own: &[u8], from: u8) -> bool {
    if let (8..=16, Some(first), Some(last)) =
        (name.len(), name.first_chunk::<8>(), name.last_chunk::<8>())
        && let (Some(own_first), Some(own_last)) = (own.first_chunk::<8>(), own.last_chunk::<8>())
    {
        return is_word(*first, *own_first) && is_word(*last, *own_last);
    }
    name[from as usize..].eq_ignore_ascii_case(&own[from as usize..])
}

/// Compares eight bytes in the same way. In a name, only letters have bits 5 and 6, and bit 5 is
/// their case.
#[inline]
fn is_word(word: [u8; 8], own: [u8; 8]) -> bool {
    let (word, own) = (u64::from_le_bytes(word), u64::from_le_bytes(own));
    let cases = own & own >> 1 & 0x2020_2020_2020_2020;
    (word ^ own) & !cases == 0
}

/// A hash of a name's length and its [`fold`].
#[inline]
fn mix(folded: u64, len: usize) -> usize {
    let mixed = (folded ^ ((len as u64) << 48)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 40) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::TABLE;

    #[test]
    fn the_name_looked_up_last_is_told_from_all_others() {
        let mut names: Vec<Vec<u8>> = vec![Vec::new(), vec![0], vec![0; 8], vec![b'x'; 40]];
        for command in TABLE.top_level() {
            let name = command.spec.name.as_bytes();
            let mut changed: Vec<_> = (0..name.len())
                .map(|at| {
                    let mut other = name.to_vec();
                    other[at] ^= 0x20;
                    other
                })
                .collect();
            changed.push(name.to_vec());
            changed.push(name[1..].to_vec());
            changed.push([name, b"\0"].concat());
            changed.push([name, name].concat());
            names.append(&mut changed);
        }
        let mut recent = LastName::default();
        let id = |command: Option<&Command>| command.map(|command| command.id);
        for (at, name) in names.iter().enumerate() {
            // Each after itself, after its neighbour, and after one elsewhere.
            for other in [name, &names[at.saturating_sub(1)], &names[at * 7919 % names.len()], name]
            {
                let found = recent.find(other, |name| TABLE.find(name));
                assert_eq!(id(found), id(TABLE.find(other)), "{}", other.escape_ascii());
            }
        }
    }

    #[test]
    fn every_name_is_found_in_any_case_and_nothing_like_it() {
        for command in TABLE.top_level() {
            let name = command.spec.name.as_bytes();
            let found = |name: &[u8]| TABLE.find(name).map(|found| found.id);
            assert_eq!(found(name), Some(command.id));
            assert_eq!(found(&name.to_ascii_lowercase()), Some(command.id));
            for at in 0..name.len() {
                let mut other = name.to_vec();
                // Bit 5 and the bit above it, which distinguishes letters from digits and control
                // bytes.
                other[at] ^= 0x40;
                assert_ne!(found(&other), Some(command.id));
                if !name[at].is_ascii_alphabetic() {
                    other[at] = name[at] ^ 0x20;
                    assert_ne!(found(&other), Some(command.id));
                }
            }
            assert_ne!(found(&name[1..]), Some(command.id));
            assert_ne!(found(&[name, b"x"].concat()), Some(command.id));
        }
        assert!(TABLE.find(b"").is_none());
    }
}
