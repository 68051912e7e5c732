//! Identifiers of clients, users and commands.

/// A client's slot in the registry, and its number as in `CLIENT ID`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId {
    pub slot: u32,
    pub number: u64,
}

/// A user's index. A client's user exists as long as the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UserId(pub u32);

impl UserId {
    /// The user of every new connection.
    pub const DEFAULT: UserId = UserId(0);

    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A command's index in the table of commands, and in the statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId(pub u16);

impl CommandId {
    /// The ID with this index, which must come from another ID.
    pub fn new(index: usize) -> Self {
        CommandId(index as u16)
    }

    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}
