//! Names of things that outlive a borrow.

/// A client's place in the registry, and its number as `CLIENT ID` gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId {
    pub slot: u32,
    pub number: u64,
}

/// A user's place among the users. A client's user is there as long as the client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UserId(pub u32);

impl UserId {
    /// The user that every connection begins as.
    pub const DEFAULT: UserId = UserId(0);

    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A command's place in the table of commands, and in the statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId(pub u16);

impl CommandId {
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}
