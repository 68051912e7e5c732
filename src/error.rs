//! What a command can answer instead of a result, and the one place where that becomes bytes.
//!
//! Only mistakes of a client live here. Broken protocol is `resp::ProtocolError`, a bad configuration `config::ConfigError`,
//! trouble with the outside world an `io::Error` with its path or address.

use std::borrow::Cow;

/// Why a command was refused or failed. `wire` gives its exact text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandError {
    // any family
    WrongType,
    Syntax,
    NotInteger,
    NotFloat,
    IndexOutOfRange,
    /// `ERR value is out of range`, or with `must be positive` and the like: the text behind `ERR value is out of range, `.
    ValueOutOfRange(&'static str),
    Overflow,
    NanOrInfinity,
    NoSuchKey,
    NegativeOrInvalidCursor,
    DbIndexOutOfRange,
    InvalidDbIndex,
    /// An expire argument that is not a time: the command's lower-case name.
    InvalidExpire(&'static str),
    StringTooLong,
    OutOfMemory,
    /// Fewer replicas are in touch than `min-replicas-to-write` asks for.
    NoReplicas,
    ReadOnlyReplica,
    PrimaryDown,
    NoAuth,
    WrongPassword,
    NoProto,
    /// The full name of the command (`get`, `client|kill`).
    WrongArity(Box<str>),
    /// Name as sent and the beginning of its arguments.
    UnknownCommand(Box<[u8]>),
    /// Container (lower case) and the subcommand as sent.
    UnknownSubcommand(Box<[u8]>),
    /// An error that only one command has: its whole text. The text is a constant beside that command.
    Text(&'static str),
    /// The same, with parts of the request in it. CR and LF in it leave as spaces.
    Formatted(Box<[u8]>),
}

/// Texts that several families share. One that a single family has stands beside its commands.
impl CommandError {
    /// `numkeys` is no number from 1 on.
    pub const FEW_KEYS: Self = CommandError::Text("ERR numkeys should be greater than 0");
    /// `numkeys` is greater than what follows it.
    pub const MANY_KEYS: Self =
        CommandError::Text("ERR Number of keys can't be greater than number of args");
    /// A `COUNT` is no number from 1 on.
    pub const SMALL_COUNT: Self = CommandError::Text("ERR count should be greater than 0");
    pub const NEGATIVE_LIMIT: Self = CommandError::Text("ERR LIMIT can't be negative");

    /// An error whose text is made of parts of the request.
    pub fn formatted(text: impl Into<Vec<u8>>) -> Self {
        CommandError::Formatted(text.into().into_boxed_slice())
    }

    /// The bytes behind the `-` of the error line.
    pub fn wire(&self) -> Cow<'_, [u8]> {
        let text: &'static str = match self {
            CommandError::WrongType => {
                "WRONGTYPE Operation against a key holding the wrong kind of value"
            }
            CommandError::Syntax => "ERR syntax error",
            CommandError::NotInteger => "ERR value is not an integer or out of range",
            CommandError::NotFloat => "ERR value is not a valid float",
            CommandError::IndexOutOfRange => "ERR index out of range",
            CommandError::Overflow => "ERR increment or decrement would overflow",
            CommandError::NanOrInfinity => "ERR increment would produce NaN or Infinity",
            CommandError::NoSuchKey => "ERR no such key",
            CommandError::NegativeOrInvalidCursor => "ERR invalid cursor",
            CommandError::DbIndexOutOfRange => "ERR DB index is out of range",
            CommandError::InvalidDbIndex => "ERR invalid DB index",
            CommandError::StringTooLong => {
                "ERR string exceeds maximum allowed size (proto-max-bulk-len)"
            }
            CommandError::OutOfMemory => "OOM command not allowed when used memory > 'maxmemory'.",
            CommandError::ReadOnlyReplica => {
                "READONLY You can't write against a read only replica."
            }
            CommandError::PrimaryDown => {
                "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."
            }
            CommandError::NoReplicas => "NOREPLICAS Not enough good replicas to write.",
            CommandError::NoAuth => "NOAUTH Authentication required.",
            CommandError::WrongPassword => {
                "WRONGPASS invalid username-password pair or user is disabled."
            }
            CommandError::NoProto => "NOPROTO unsupported protocol version",
            CommandError::Text(text) => text,
            CommandError::Formatted(text) => return Cow::Borrowed(text),
            CommandError::ValueOutOfRange("") => "ERR value is out of range",
            CommandError::ValueOutOfRange(rest) => {
                return Cow::Owned(format!("ERR value is out of range, {rest}").into_bytes());
            }
            CommandError::InvalidExpire(command) => {
                let text = format!("ERR invalid expire time in '{command}' command");
                return Cow::Owned(text.into_bytes());
            }
            CommandError::WrongArity(command) => {
                let text = format!("ERR wrong number of arguments for '{command}' command");
                return Cow::Owned(text.into_bytes());
            }
            CommandError::UnknownCommand(text) | CommandError::UnknownSubcommand(text) => {
                return Cow::Borrowed(text);
            }
        };
        Cow::Borrowed(text.as_bytes())
    }
}
