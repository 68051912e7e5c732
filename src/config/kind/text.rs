//! Values that are a text: names, secrets, addresses, paths.

use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use super::{Kind, Origin, Reason, RewriteLine, line, single};
use crate::config::quoting::quoted;
use crate::config::reason::system_text;
use crate::resp::args::before_nul;

/// Any bytes.
pub(in crate::config) struct Text {
    /// An empty value means unset: CONFIG REWRITE removes the line.
    unset_if_empty: bool,
    /// The text may contain NUL bytes. Other texts are passed to the operating system, and end at
    /// the first NUL.
    binary: bool,
    check: fn(&[u8]) -> Result<(), Reason>,
}

/// A text that may be empty.
pub(in crate::config) const TEXT: Text =
    Text { unset_if_empty: false, binary: false, check: |_| Ok(()) };
/// A text that is unset when empty.
pub(in crate::config) const OPTIONAL_TEXT: Text = Text { unset_if_empty: true, ..TEXT };
/// A password, unset when empty.
pub(in crate::config) const SECRET: Text = Text { unset_if_empty: true, binary: true, ..TEXT };
/// The seed for hashing keys.
pub(in crate::config) const HASH_SEED: Text = Text { check: check_hash_seed, ..SECRET };
/// The process' title, with variables.
pub(in crate::config) const TITLE_TEMPLATE: Text = Text { check: check_title_template, ..TEXT };
/// A host name, unset when empty.
pub(in crate::config) const HOSTNAME: Text = Text { check: check_hostname, ..OPTIONAL_TEXT };
/// An address that nodes of a cluster announce, unset when empty.
pub(in crate::config) const ANNOUNCED_IP: Text =
    Text { check: check_announced_ip, binary: true, ..OPTIONAL_TEXT };
/// A name that nodes of a cluster announce.
pub(in crate::config) const ANNOUNCED_NAME: Text =
    Text { check: check_announced_name, binary: true, ..TEXT };
/// An address of IPv4, unset when empty.
pub(in crate::config) const IPV4: Text = Text { check: check_ipv4, ..OPTIONAL_TEXT };
/// An address of IPv6, unset when empty.
pub(in crate::config) const IPV6: Text = Text { check: check_ipv6, ..OPTIONAL_TEXT };
/// A version that is reported to clients.
pub(in crate::config) const VERSION: Text = Text { check: check_version, ..TEXT };
pub(in crate::config) const DB_FILENAME: Text =
    Text { check: |name| check_base_name(name, "dbfilename", "filename"), ..TEXT };
pub(in crate::config) const APPEND_FILENAME: Text =
    Text { check: |name| check_nonempty_base_name(name, "appendfilename", "filename"), ..TEXT };
pub(in crate::config) const APPEND_DIRNAME: Text =
    Text { check: |name| check_nonempty_base_name(name, "appenddirname", "dirname"), ..TEXT };

impl Kind<Vec<u8>> for Text {
    fn parse(&self, args: &[&[u8]], _: &Vec<u8>, _: Origin) -> Result<Vec<u8>, Reason> {
        let mut arg = single(args)?;
        if !self.binary {
            arg = before_nul(arg);
        }
        (self.check)(arg)?;
        Ok(arg.to_vec())
    }

    fn format(&self, value: &Vec<u8>) -> Vec<u8> {
        value.clone()
    }

    fn lines(&self, name: &str, value: &Vec<u8>, default: &Vec<u8>) -> Vec<RewriteLine> {
        if self.unset_if_empty && value.is_empty() {
            return Vec::new();
        }
        vec![line(name, &quoted(value), value != default)]
    }

    fn describe(&self) -> String {
        if self.unset_if_empty { "text; \"\" unsets it".into() } else { "text".into() }
    }
}

/// The process' title: the template with each `{name}` replaced by the result of `variable`, and
/// `{{` by a brace. Spaces at both ends are removed.
pub fn expand_title(template: &[u8], variable: impl Fn(&[u8]) -> Vec<u8>) -> Vec<u8> {
    let (mut title, mut rest) = (Vec::new(), template);
    while let Some(open) = rest.iter().position(|byte| *byte == b'{') {
        title.extend_from_slice(&rest[..open]);
        rest = &rest[open + 1..];
        if let Some(after) = rest.strip_prefix(b"{") {
            title.push(b'{');
            rest = after;
            continue;
        }
        let close = rest.iter().position(|byte| *byte == b'}').unwrap_or(rest.len());
        title.extend_from_slice(&variable(&rest[..close]));
        rest = rest.get(close + 1..).unwrap_or_default();
    }
    title.extend_from_slice(rest);
    let is_text = |byte: &u8| *byte != b' ';
    let end = title.iter().rposition(is_text).map_or(0, |last| last + 1);
    title.truncate(end);
    title.drain(..title.iter().position(is_text).unwrap_or(0));
    title
}

/// Checks a template. It must have more than spaces and the variables `title`, `server-mode` and
/// `unixsocket`, which may be empty.
fn check_title_template(template: &[u8]) -> Result<(), Reason> {
    let mut rest = template;
    let mut blank = true;
    while let Some(open) = rest.iter().position(|byte| *byte == b'{') {
        blank &= rest[..open].iter().all(|byte| *byte == b' ');
        rest = &rest[open + 1..];
        if let Some(after) = rest.strip_prefix(b"{") {
            blank = false;
            rest = after;
            continue;
        }
        let close = rest.iter().position(|byte| *byte == b'}').ok_or(Reason::TitleTemplate)?;
        match &rest[..close] {
            b"title" | b"server-mode" | b"unixsocket" => {}
            b"listen-addr" | b"port" | b"tls-port" | b"config-file" => blank = false,
            _ => return Err(Reason::TitleTemplate),
        }
        rest = &rest[close + 1..];
    }
    blank &= rest.iter().all(|byte| *byte == b' ');
    if blank { Err(Reason::TitleTemplate) } else { Ok(()) }
}

fn check_hash_seed(seed: &[u8]) -> Result<(), Reason> {
    const TOO_LONG: &str = "hash-seed must be less than or equal to 256 characters";
    if seed.len() <= 256 { Ok(()) } else { Err(Reason::Other(TOO_LONG.to_owned())) }
}

fn check_hostname(name: &[u8]) -> Result<(), Reason> {
    if name.len() >= 256 {
        return Err(Reason::HostnameLength);
    }
    let is_allowed = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    if name.iter().all(is_allowed) { Ok(()) } else { Err(Reason::HostnameCharacter) }
}

/// Whether a text is one word of nodes.conf, as Valkey allows them.
fn is_word_of_nodes_file(text: &[u8]) -> bool {
    text.iter().all(|byte| *byte > b',' && !b";<=>?@[]^{|}~\\\x7f".contains(byte))
}

fn check_announced_ip(ip: &[u8]) -> Result<(), Reason> {
    let wrong = |what: &str| Err(Reason::Other(format!("cluster-announce-ip {what}")));
    match ip.len() {
        0..46 if is_word_of_nodes_file(ip) => Ok(()),
        0..46 => wrong("contains invalid character"),
        _ => wrong("is too long"),
    }
}

fn check_announced_name(name: &[u8]) -> Result<(), Reason> {
    match name.len() {
        0..256 if is_word_of_nodes_file(name) => Ok(()),
        _ => Err(Reason::Other("Announced name is too long or contained invalid character".into())),
    }
}

fn check_ipv4(address: &[u8]) -> Result<(), Reason> {
    check_ip::<std::net::Ipv4Addr>(address, "Invalid IPv4 address")
}

fn check_ipv6(address: &[u8]) -> Result<(), Reason> {
    check_ip::<std::net::Ipv6Addr>(address, "Invalid IPv6 address")
}

fn check_ip<T: std::str::FromStr>(address: &[u8], error: &str) -> Result<(), Reason> {
    let address = std::str::from_utf8(address).unwrap_or("?");
    let is_valid = address.is_empty() || address.parse::<T>().is_ok();
    if is_valid { Ok(()) } else { Err(Reason::Other(error.to_owned())) }
}

fn check_version(version: &[u8]) -> Result<(), Reason> {
    let is_allowed = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'+');
    if !version.is_empty() && version.iter().all(is_allowed) {
        Ok(())
    } else {
        Err(Reason::Version)
    }
}

fn check_base_name(name: &[u8], directive: &'static str, what: &'static str) -> Result<(), Reason> {
    let is_path = name.iter().any(|byte| matches!(byte, b'/' | b'\\'));
    if is_path { Err(Reason::NotBaseName { directive, what }) } else { Ok(()) }
}

fn check_nonempty_base_name(
    name: &[u8],
    directive: &'static str,
    what: &'static str,
) -> Result<(), Reason> {
    if name.is_empty() {
        return Err(Reason::EmptyName { directive });
    }
    check_base_name(name, directive, what)
}

/// An existing directory with search permission, stored as its absolute path.
pub(in crate::config) struct Directory;

impl Kind<PathBuf> for Directory {
    fn parse(&self, args: &[&[u8]], old: &PathBuf, _: Origin) -> Result<PathBuf, Reason> {
        let arg = before_nul(single(args)?);
        if arg.is_empty() {
            return Err(Reason::Other("No such file or directory".into()));
        }
        let path = old.join(std::ffi::OsStr::from_bytes(arg));
        // With `/.` this fails unless it is a directory with search permission.
        let dot = path.join(".");
        let absolute = std::fs::metadata(&dot).and_then(|_| std::fs::canonicalize(&path));
        absolute.map_err(|error| Reason::Other(system_text(&error)))
    }

    fn format(&self, value: &PathBuf) -> Vec<u8> {
        value.clone().into_os_string().into_vec()
    }

    fn lines(&self, name: &str, value: &PathBuf, _: &PathBuf) -> Vec<RewriteLine> {
        // Always written: the next start may be in another directory.
        vec![line(name, &quoted(value.as_os_str().as_bytes()), true)]
    }

    fn describe(&self) -> String {
        "directory".into()
    }

    fn example(&self, name: &str, _: &PathBuf) -> Vec<Vec<u8>> {
        vec![line(name, b".", false).text]
    }
}
