//! All commands, numbered, and the look-up of a name. Made once from the families' tables.

use std::sync::LazyLock;

use super::spec::{CommandSpec, Flags};

/// A command or subcommand with its number.
pub struct Command {
    pub spec: &'static CommandSpec,
    /// Index into [`CommandTable::commands`], and into the statistics.
    pub id: u16,
    /// Lower case; a subcommand's with its container's: `client|kill`.
    pub full_name: Box<str>,
    /// Container of a subcommand.
    pub parent: Option<u16>,
    /// Numbers of the subcommands, which follow each other.
    pub subcommands: std::ops::Range<u16>,
}

/// Every command by number and by name.
pub struct CommandTable {
    pub commands: Vec<Command>,
    /// Open addressing over the top-level names: number + 1, 0 for empty.
    slots: Vec<u16>,
}

/// The families, in the order of `COMMAND LIST`.
static FAMILIES: &[&[CommandSpec]] = &[
    super::string::COMMANDS,
    super::bitmap::COMMANDS,
    super::hash::COMMANDS,
    super::hyperloglog::COMMANDS,
    super::list::COMMANDS,
    super::list_blocking::COMMANDS,
    super::set::COMMANDS,
    super::stream::COMMANDS,
    super::stream_read::COMMANDS,
    super::stream_group::COMMANDS,
    super::stream_info::COMMANDS,
    super::sorted_set::COMMANDS,
    super::sorted_set_range::COMMANDS,
    super::sorted_set_pop::COMMANDS,
    super::sorted_set_combine::COMMANDS,
    super::geo::COMMANDS,
    super::due::COMMANDS,
    super::key::COMMANDS,
    super::sort::COMMANDS,
    super::expire::COMMANDS,
    super::scan::COMMANDS,
    super::object::COMMANDS,
    super::connection::COMMANDS,
    super::client::COMMANDS,
    super::cluster::COMMANDS,
    super::monitor::COMMANDS,
    super::pubsub::COMMANDS,
    super::transaction::COMMANDS,
    super::script::COMMANDS,
    super::function::COMMANDS,
    super::config::COMMANDS,
    super::info::COMMANDS,
    super::introspection::COMMANDS,
    super::server::COMMANDS,
    super::memory::COMMANDS,
    super::latency::COMMANDS,
    super::debug::COMMANDS,
];

/// The one table. The server keeps a reference to it, so that the hot path does not ask whether it is there.
pub static TABLE: LazyLock<CommandTable> = LazyLock::new(CommandTable::build);

/// A name of at most this many bytes is looked up by two words; a longer one is no command.
const NAME_BYTES_MAX: usize = 32;

impl CommandTable {
    fn build() -> Self {
        let specs = FAMILIES.iter().flat_map(|family| family.iter());
        let mut commands: Vec<Command> = specs
            .map(|spec| Command {
                spec,
                id: 0,
                full_name: spec.name.to_ascii_lowercase().into_boxed_str(),
                parent: None,
                subcommands: 0..0,
            })
            .collect();
        let top_level = commands.len();
        for parent in 0..top_level {
            let start = commands.len() as u16;
            for spec in commands[parent].spec.subcommands {
                let name = spec.name.to_ascii_lowercase();
                let full_name = format!("{}|{name}", commands[parent].full_name).into_boxed_str();
                let parent = Some(parent as u16);
                commands.push(Command { spec, id: 0, full_name, parent, subcommands: 0..0 });
            }
            commands[parent].subcommands = start..commands.len() as u16;
        }
        for (id, command) in commands.iter_mut().enumerate() {
            command.id = id as u16;
        }
        let mut slots = vec![0; (top_level * 4).next_power_of_two()];
        for command in &commands[..top_level] {
            let name = command.full_name.as_bytes();
            assert!(name.len() <= NAME_BYTES_MAX, "{} is too long a name", command.full_name);
            let mut position = mix(name) & (slots.len() - 1);
            while slots[position] != 0 {
                position = (position + 1) & (slots.len() - 1);
            }
            slots[position] = command.id + 1;
        }
        CommandTable { commands, slots }
    }

    /// The top-level command of this name, in any case.
    #[inline]
    pub fn find(&self, name: &[u8]) -> Option<&Command> {
        if name.len() > NAME_BYTES_MAX {
            return None;
        }
        let mut position = mix(name) & (self.slots.len() - 1);
        loop {
            let slot = self.slots[position];
            if slot == 0 {
                return None;
            }
            let command = &self.commands[slot as usize - 1];
            if name.eq_ignore_ascii_case(command.full_name.as_bytes()) {
                return Some(command);
            }
            position = (position + 1) & (self.slots.len() - 1);
        }
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

    /// The commands that are no subcommands.
    pub fn top_level(&self) -> impl Iterator<Item = &Command> {
        self.commands.iter().filter(|command| command.parent.is_none())
    }
}

impl Command {
    pub fn is(&self, flags: Flags) -> bool {
        self.spec.flags.intersects(flags)
    }
}

/// Mixes a name's length and first eight bytes, without regard to case.
#[inline]
fn mix(name: &[u8]) -> usize {
    let mut word = [0u8; 8];
    let taken = name.len().min(8);
    word[..taken].copy_from_slice(&name[..taken]);
    // Bit 5 tells the case of a letter; set everywhere, it tells nothing.
    let folded = u64::from_le_bytes(word) | 0x2020_2020_2020_2020;
    let last = name.last().map_or(0, |byte| (byte | 0x20) as u64);
    let mixed =
        (folded ^ (last << 56) ^ ((name.len() as u64) << 48)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 40) as usize
}
