//! The reasons for which a value or directive is refused, with Redis' error texts.

/// Why a value or directive was refused. Its `Display` is the error text.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum Reason {
    #[error("argument must be 'yes' or 'no'")]
    NotYesNo,
    #[error("argument couldn't be parsed into an integer")]
    NotInteger,
    #[error("argument couldn't be parsed as an octal number")]
    NotOctal,
    #[error("argument must be a memory value")]
    NotMemory,
    #[error("argument must be a memory or percent value")]
    NotMemoryOrPercent,
    #[error("argument must be between {min} and {max} inclusive")]
    OutOfRange { min: i128, max: i128 },
    #[error("argument must be between {min:o} and {max:o} inclusive")]
    OutOfOctalRange { min: u32, max: u32 },
    #[error("percentage argument must be less or equal to 100")]
    PercentTooHigh,
    #[error("argument(s) must be one of the following: {0}")]
    NotOneOf(String),
    #[error("wrong number of arguments")]
    WrongNumberOfArguments,
    #[error("Invalid save parameters")]
    SavePoints,
    #[error("Wrong number of arguments in buffer limit configuration.")]
    BufferLimitCount,
    #[error("Invalid client class specified in buffer limit configuration.")]
    BufferLimitClass,
    #[error("Error in hard, soft or soft_seconds setting in buffer limit configuration.")]
    BufferLimitValue,
    #[error("Invalid oom-score-adj-values, elements must be between -2000 and 2000.")]
    OomScore,
    #[error("Invalid event class character. Use 'Ag$lshzxeKEtmdn'.")]
    EventClass,
    #[error("Too many bind addresses specified.")]
    BindCount,
    #[error("Invalid master port")]
    PrimaryPort,
    #[error("Invalid latency-tracking-info-percentiles parameters")]
    Percentile,
    #[error("latency-tracking-info-percentiles parameters should sit between [0.0,100.0]")]
    PercentileRange,
    #[error("shutdown options SAVE and NOSAVE can't be used simultaneously")]
    SaveAndNosave,
    #[error("{directive} can't be empty")]
    EmptyName { directive: &'static str },
    #[error("{directive} can't be a path, just a {what}")]
    NotBaseName { directive: &'static str, what: &'static str },
    #[error("Hostnames must be less than 256 characters")]
    HostnameLength,
    #[error("Hostnames may only contain alphanumeric characters, hyphens or dots")]
    HostnameCharacter,
    #[error("template format is invalid or contains unknown variables")]
    TitleTemplate,
    #[error("a version consists of letters, digits, dots, hyphens and plus signs")]
    Version,
    #[error("duplicate parameter")]
    Duplicate,
    #[error("can't set immutable config")]
    Immutable,
    #[error("can't set protected config")]
    Protected,
    #[error("Unbalanced quotes in configuration line")]
    UnbalancedQuotes,
    #[error("Bad directive or wrong number of arguments")]
    BadDirective,
    #[error("Module config specified without value")]
    ModuleConfigWithoutValue,
    #[error("Modules are not supported by this server")]
    NoModules,
    #[error("Sentinel mode is not supported by this server")]
    NoSentinel,
    #[error("sentinel directive while not in sentinel mode")]
    SentinelDirective,
    #[error("replicaof directive not allowed in cluster mode")]
    ReplicaOfInCluster,
    #[error("include is nested too deeply")]
    IncludeDepth,
    #[error("include is not possible here")]
    IncludeForbidden,
    #[error("Can't open the log file: {0}")]
    LogFile(String),
    /// An error of the operating system, or one found by the server.
    #[error("{0}")]
    Other(String),
}

/// The operating system's text of an error, without the number that `Display` adds.
pub fn system_text(error: &std::io::Error) -> String {
    let text = error.to_string();
    match error.raw_os_error() {
        Some(number) => {
            text.strip_suffix(&format!(" (os error {number})")).unwrap_or(&text).to_owned()
        }
        None => text,
    }
}
