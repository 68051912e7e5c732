//! The first line of a script: `#!lua flags=no-writes,allow-oom`.

use bitflags::bitflags;

bitflags! {
    /// The flags a script declares.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct ScriptFlags: u8 {
        const NO_WRITES = 1 << 0;
        const ALLOW_OOM = 1 << 1;
        const ALLOW_STALE = 1 << 2;
        const NO_CLUSTER = 1 << 3;
        const ALLOW_CROSS_SLOT_KEYS = 1 << 4;
        /// No shebang: the rules of scripts without flags apply.
        const UNDECLARED = 1 << 5;
    }
}

impl ScriptFlags {
    /// Parses a flag's name in shebangs and FUNCTION.
    pub fn named(name: &[u8]) -> Option<Self> {
        Some(match name {
            b"no-writes" => ScriptFlags::NO_WRITES,
            b"allow-oom" => ScriptFlags::ALLOW_OOM,
            b"allow-stale" => ScriptFlags::ALLOW_STALE,
            b"no-cluster" => ScriptFlags::NO_CLUSTER,
            b"allow-cross-slot-keys" => ScriptFlags::ALLOW_CROSS_SLOT_KEYS,
            _ => return None,
        })
    }
}

/// Why a script's first line is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadShebang {
    NoLineEnd,
    Engine(Box<[u8]>),
    Flag(Box<[u8]>),
    Option(Box<[u8]>),
}

impl BadShebang {
    /// The error's text after `ERR `.
    pub fn text(&self) -> Vec<u8> {
        let (text, what): (&[u8], &[u8]) = match self {
            BadShebang::NoLineEnd => (b"Invalid script shebang", b""),
            BadShebang::Engine(engine) => (b"Unexpected engine in script shebang: ", engine),
            BadShebang::Flag(flag) => (b"Unexpected flag in script shebang: ", flag),
            BadShebang::Option(option) => (b"Unknown lua shebang option: ", option),
        };
        [text, what].concat()
    }
}

/// Parses a body's first line; returns the flags, and where the code begins: at the end of that
/// line, so that line numbers stay right.
pub fn parse(body: &[u8]) -> Result<(ScriptFlags, usize), BadShebang> {
    if !body.starts_with(b"#!") {
        return Ok((ScriptFlags::UNDECLARED, 0));
    }
    let Some(end) = body.iter().position(|&byte| byte == b'\n') else {
        return Err(BadShebang::NoLineEnd);
    };
    let mut parts =
        body[..end].split(|byte| byte.is_ascii_whitespace()).filter(|part| !part.is_empty());
    let engine = parts.next().unwrap_or_default();
    if engine != b"#!lua" {
        return Err(BadShebang::Engine(engine.into()));
    }
    let mut flags = ScriptFlags::empty();
    for part in parts {
        let Some(names) = part.strip_prefix(b"flags=") else {
            return Err(BadShebang::Option(part.into()));
        };
        if names.is_empty() {
            continue;
        }
        for name in names.split(|&byte| byte == b',') {
            flags |= ScriptFlags::named(name).ok_or_else(|| BadShebang::Flag(name.into()))?;
        }
    }
    Ok((flags, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_read_off_the_first_line() {
        let flags = |body: &str| parse(body.as_bytes()).map(|(flags, _)| flags);
        assert_eq!(flags("return 1"), Ok(ScriptFlags::UNDECLARED));
        assert_eq!(flags("#!lua\nreturn 1"), Ok(ScriptFlags::empty()));
        let both = ScriptFlags::NO_WRITES | ScriptFlags::ALLOW_OOM;
        assert_eq!(flags("#!lua  flags=no-writes,allow-oom \n"), Ok(both));
        assert_eq!(flags("#!lua flags=\n"), Ok(ScriptFlags::empty()));
        assert_eq!(flags("#!lua"), Err(BadShebang::NoLineEnd));
        assert_eq!(flags("#!lua flags=x\n"), Err(BadShebang::Flag((*b"x").into())));
        assert_eq!(flags("#!lua flags=no-writes,\n"), Err(BadShebang::Flag([].into())));
        assert_eq!(flags("#!\n"), Err(BadShebang::Engine((*b"#!").into())));
        assert_eq!(flags("#!lua name=x\n"), Err(BadShebang::Option((*b"name=x").into())));
        assert_eq!(parse(b"#!lua\nx").map(|(_, start)| start), Ok(5));
    }
}
