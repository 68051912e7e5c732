//! Error replies of commands, and the only place that encodes them.
//!
//! A text used by more than one file is a variant or constant here; a text of a single family stays
//! beside its commands, as [`CommandError::Text`].
//!
//! Only errors in a client's request are here. Protocol errors are `resp::ProtocolError`, a bad
//! configuration is `config::ConfigError`, I/O errors are `io::Error` with a path or address.

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
    /// `ERR value is out of range`, or with the text after `ERR value is out of range, `, such as
    /// `must be positive`.
    ValueOutOfRange(&'static str),
    Overflow,
    NanOrInfinity,
    NoSuchKey,
    NegativeOrInvalidCursor,
    DbIndexOutOfRange,
    InvalidDbIndex,
    /// An expire time that is invalid: the command's lower-case name.
    InvalidExpire(&'static str),
    StringTooLong,
    OutOfMemory,
    /// Fewer good replicas than `min-replicas-to-write`.
    NoReplicas,
    ReadOnlyReplica,
    /// The primary's host and port.
    Redirect(Box<[u8]>, u16),
    /// Another node of the cluster serves the request: `MOVED` or `ASK`, as the whole text.
    Moved(Box<[u8]>),
    /// The cluster does not serve the request, as the whole text.
    Cluster(&'static str),
    PrimaryDown,
    NoAuth,
    WrongPassword,
    NoProto,
    /// The full name of the command (`get`, `client|kill`).
    WrongArity(Box<str>),
    /// The name as sent, and the first arguments.
    UnknownCommand(Box<[u8]>),
    /// Container (lower case) and the subcommand as sent.
    UnknownSubcommand(Box<[u8]>),
    /// An error of a single command, as its whole text, a constant beside that command.
    Text(&'static str),
    /// As `Text`, with parts of the request. CR and LF become spaces.
    Formatted(Box<[u8]>),
}

/// Texts shared by several families.
pub const WRONG_NUMBER: &str = "ERR wrong number of arguments";

impl CommandError {
    /// `numkeys` is not a positive number.
    pub const FEW_KEYS: Self = CommandError::Text("ERR numkeys should be greater than 0");
    /// `numkeys` exceeds the number of arguments.
    pub const MANY_KEYS: Self =
        CommandError::Text("ERR Number of keys can't be greater than number of args");
    /// A `COUNT` is not a positive number.
    pub const SMALL_COUNT: Self = CommandError::Text("ERR count should be greater than 0");
    /// The same error in GEOSEARCH and XAUTOCLAIM.
    pub const COUNT_NOT_POSITIVE: Self = CommandError::Text("ERR COUNT must be > 0");
    pub const TIMEOUT_NOT_INTEGER: Self =
        CommandError::Text("ERR timeout is not an integer or out of range");
    pub const TIMEOUT_NEGATIVE: Self = CommandError::Text("ERR timeout is negative");
    pub const TIMEOUT_OUT_OF_RANGE: Self = CommandError::Text("ERR timeout is out of range");
    /// Without the name of the command.
    pub const WRONG_NUMBER: Self = CommandError::Text(WRONG_NUMBER);
    pub const UNKNOWN_ARGUMENT: Self = CommandError::Text("ERR unknown argument");
    /// Options of EXPIRE and HEXPIRE that exclude each other.
    pub const NX_WITH_OTHERS: Self =
        CommandError::Text("ERR NX and XX, GT or LT options at the same time are not compatible");
    pub const GT_WITH_LT: Self =
        CommandError::Text("ERR GT and LT options at the same time are not compatible");
    pub const LOADING: Self = CommandError::Text("LOADING Redis is loading the dataset in memory");
    /// `redis.call` while a library is loaded, or after the run of a script.
    pub const NO_INVOCATION: Self =
        CommandError::Text("ERR redis.call/pcall can only be called inside a script invocation");
    /// Sent to clients that wait for something that only a primary does.
    pub const DEMOTED: &str = "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)";
    pub const CLUSTER_DISABLED: Self =
        CommandError::Text("ERR This instance has cluster support disabled");
    pub const NEGATIVE_LIMIT: Self = CommandError::Text("ERR LIMIT can't be negative");

    /// An error text with parts of the request.
    pub fn formatted(text: impl Into<Vec<u8>>) -> Self {
        CommandError::Formatted(text.into().into_boxed_slice())
    }

    /// An error text of these parts. Parts of the request are shown up to a NUL, as in Redis.
    pub fn of_parts(parts: &[&[u8]]) -> Self {
        let shown = parts.iter().flat_map(|part| part.split(|&byte| byte == 0).next());
        CommandError::formatted(shown.collect::<Vec<_>>().concat())
    }

    /// An unknown option of EXPIRE or HEXPIRE.
    pub fn unsupported_option(option: &[u8]) -> Self {
        CommandError::of_parts(&[b"ERR Unsupported option ", option])
    }

    /// An unknown subcommand of an upper-case container, or one with a wrong number of arguments.
    pub fn wrong_subcommand(container: &str, name: &[u8]) -> Self {
        let text = b"ERR unknown subcommand or wrong number of arguments for '";
        let container = container.as_bytes();
        CommandError::of_parts(&[text, name, b"'. Try ", container, b" HELP."])
    }

    /// The error line's bytes after the `-`.
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
            CommandError::Redirect(host, port) => {
                let port = port.to_string();
                return Cow::Owned([b"REDIRECT ", &host[..], b":", port.as_bytes()].concat());
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
            CommandError::Text(text) | CommandError::Cluster(text) => text,
            CommandError::Formatted(text) | CommandError::Moved(text) => {
                return Cow::Borrowed(text);
            }
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
