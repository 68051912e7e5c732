//! The filters of CLIENT LIST and CLIENT KILL: conditions that must all hold.

use std::collections::HashSet;
use std::mem::discriminant;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use crate::acl::Acl;
use crate::client::{Client, ClientFlags};
use crate::clock::Now;
use crate::config::ClientClass;
use crate::error::CommandError;
use crate::gate::limits::{class_of, flag_letters};
use crate::gate::link_line::LinkLine;
use crate::ids::UserId;
use crate::keyspace::DbIndex;
use crate::net::stream::Address;
use crate::resp::args::Cursor;
use crate::resp::number;

/// The numbers that `ID` accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdRule {
    /// At least one, valid or not: CLIENT LIST.
    Any,
    /// At least one, all of them valid: CLIENT KILL.
    Possible,
    /// Valid ones up to the next option, possibly none: both commands in Valkey.
    Valkey,
}

const CLIENT_ID_TOO_SMALL: CommandError =
    CommandError::Text("ERR client-id should be greater than 0");
const INVALID_CLIENT_ID: CommandError = CommandError::Text("ERR Invalid client ID");

/// Every letter of a client's flags, in any version of Redis and Valkey.
const FLAG_LETTERS: &[u8] = b"OSMPxbtRBdcuAUreTIiEN";

/// Client numbers.
#[derive(Debug)]
struct Ids {
    /// In the order given.
    listed: Vec<i64>,
    all: HashSet<i64>,
}

/// An address or IP address as CLIENT LIST shows it. It is read once, so that it need not be
/// compared with the text of each client's.
#[derive(Debug)]
struct Shown<'a, T> {
    text: &'a [u8],
    /// None: no address is shown like this.
    read: Option<T>,
}

impl<'a, T: FromStr + ToString> Shown<'a, T> {
    fn new(text: &'a [u8]) -> Self {
        let read = std::str::from_utf8(text).ok().and_then(|text| text.parse::<T>().ok());
        Shown { text, read: read.filter(|read| read.to_string().as_bytes() == text) }
    }
}

impl Shown<'_, SocketAddr> {
    fn is(&self, address: &Address) -> bool {
        match address {
            Address::Tcp(address) => self.read == Some(*address),
            Address::Unix(_) | Address::Unknown => address.to_string().as_bytes() == self.text,
        }
    }
}

/// A condition on a client.
#[derive(Debug)]
enum Test<'a> {
    Ids(Ids),
    /// None: the link to a primary, which is not a client.
    Class(Option<ClientClass>),
    Address(Shown<'a, SocketAddr>),
    LocalAddress(Shown<'a, SocketAddr>),
    Ip(Shown<'a, IpAddr>),
    User(UserId),
    Flags(&'a [u8]),
    /// Letters of capabilities.
    Capabilities(&'a [u8]),
    Name(&'a [u8]),
    LibraryName(&'a [u8]),
    LibraryVersion(&'a [u8]),
    Database(DbIndex),
    /// The least age in seconds.
    Age(i64),
    Idle(i64),
}

impl Test<'_> {
    fn holds(&self, client: &Client, now: Now) -> bool {
        let is = |have: &[u8], want: &[u8]| !have.is_empty() && have == want;
        let seconds_since = |us: i64| (now.boot_us - us) / 1_000_000;
        match *self {
            Test::Ids(ref ids) => ids.all.contains(&(client.id.number as i64)),
            Test::Class(class) => class == Some(class_of(client.flags)),
            Test::Address(ref address) => address.is(&client.peer),
            Test::LocalAddress(ref address) => address.is(&client.local),
            Test::Ip(ref ip) => match &client.peer {
                Address::Tcp(address) => ip.read == Some(address.ip()),
                Address::Unix(path) => path.as_bytes() == ip.text,
                Address::Unknown => false,
            },
            Test::User(user) => client.user == user,
            Test::Flags(letters) => {
                let own = flag_letters(client);
                letters.iter().all(|&letter| own.contains(letter as char))
            }
            Test::Capabilities(letters) => {
                letters.is_empty() || client.flags.contains(ClientFlags::CAN_REDIRECT)
            }
            Test::Name(name) => is(&client.name, name),
            Test::LibraryName(name) => is(&client.library_name, name),
            Test::LibraryVersion(version) => is(&client.library_version, version),
            Test::Database(database) => client.database == database,
            Test::Age(seconds) => seconds_since(client.created_us) >= seconds,
            Test::Idle(seconds) => seconds_since(client.active_us) >= seconds,
        }
    }

    fn holds_for_link(&self, link: &LinkLine) -> bool {
        match *self {
            Test::Ids(ref ids) => ids.all.contains(&(link.number as i64)),
            Test::Class(class) => class.is_none(),
            Test::Address(ref address) => address.read == Some(link.address),
            Test::LocalAddress(ref address) => {
                link.local.is_some_and(|own| address.read == Some(own))
            }
            Test::Ip(ref ip) => ip.read == Some(link.address.ip()),
            Test::Flags(letters) => letters.iter().all(|letter| *letter == b'M'),
            Test::Capabilities(letters) => letters.is_empty(),
            Test::Database(database) => link.database == database,
            Test::Age(seconds) => link.age_s >= seconds,
            Test::Idle(seconds) => link.idle_s >= seconds,
            Test::User(_) | Test::Name(_) | Test::LibraryName(_) | Test::LibraryVersion(_) => false,
        }
    }
}

/// Conditions on a client. None by default.
#[derive(Debug, Default)]
pub struct Filter<'a> {
    /// Each condition, and whether it must hold or must fail.
    tests: Vec<(bool, Test<'a>)>,
    /// Whether the calling client is skipped, if given.
    pub skip_me: Option<bool>,
}

impl<'a> Filter<'a> {
    /// Whether to end the link to the primary, which is not a client: only if the filter names its
    /// class, address, flag or number.
    pub fn chooses_link(&self, link: &LinkLine) -> bool {
        let is_meant = |test: &Test<'_>| {
            matches!(test, Test::Class(None) | Test::Address(_) | Test::Ids(_))
                || matches!(test, Test::Flags(letters) if letters.contains(&b'M'))
        };
        self.tests.iter().any(|(holds, test)| *holds && is_meant(test)) && self.matches_link(link)
    }

    /// Whether all conditions hold for the link to the primary. It has no user and no name.
    pub fn matches_link(&self, link: &LinkLine) -> bool {
        self.tests.iter().all(|(holds, test)| test.holds_for_link(link) == *holds)
    }

    /// `CLIENT KILL ip:port`.
    pub fn by_address(address: &'a [u8]) -> Self {
        Filter { tests: vec![(true, Test::Address(Shown::new(address)))], skip_me: Some(false) }
    }

    /// `[NOT-]ID client-id [client-id ...]`, `[NOT-]TYPE type`, `[NOT-]ADDR ip:port`,
    /// `[NOT-]LADDR ip:port`, `[NOT-]IP ip`, `[NOT-]USER username`, `[NOT-]FLAGS letters`,
    /// `[NOT-]CAPA letters`, `[NOT-]NAME name`, `[NOT-]LIB-NAME name`, `[NOT-]LIB-VER version`,
    /// `[NOT-]DB index`, `MAXAGE seconds`, `IDLE seconds`, `SKIPME <YES | NO>`, in any order. A
    /// repeated option replaces the first, except IDs, which add up.
    pub fn parse(
        mut args: Cursor<'a>,
        databases: usize,
        acl: &Acl,
        id_rule: IdRule,
    ) -> Result<Self, CommandError> {
        let mut filter = Filter::default();
        while let Some(option) = args.peek() {
            let option = option.to_ascii_uppercase();
            let (holds, option) = match option.strip_prefix(b"NOT-") {
                Some(option) => (false, option),
                None => (true, &*option),
            };
            if args.remaining() < 2 {
                return Err(filter.unknown_option(id_rule));
            }
            let mut value = args;
            value.take()?;
            let test = match (option, holds) {
                (b"ID", true) => Test::Ids(parse_ids(&mut value, id_rule)?),
                (b"ID", false) => Test::Ids(parse_ids(&mut value, IdRule::Valkey)?),
                (b"TYPE", _) => Test::Class(parse_class(value.take()?)?),
                (b"ADDR", _) => Test::Address(Shown::new(value.take()?)),
                (b"LADDR", _) => Test::LocalAddress(Shown::new(value.take()?)),
                (b"IP", _) => Test::Ip(Shown::new(value.take()?)),
                (b"USER", _) => parse_user(value.take()?, acl)?,
                (b"FLAGS", _) => Test::Flags(parse_flags(value.take()?, holds)?),
                (b"CAPA", _) => Test::Capabilities(parse_capabilities(value.take()?, holds)?),
                (b"NAME", _) => Test::Name(value.take()?),
                (b"LIB-NAME", _) => Test::LibraryName(value.take()?),
                (b"LIB-VER", _) => Test::LibraryVersion(value.take()?),
                (b"DB", _) => Test::Database(parse_database(value.take()?, databases, holds)?),
                (b"MAXAGE", true) => Test::Age(parse_seconds(value.take()?, "maxage")?),
                (b"IDLE", true) => Test::Idle(parse_seconds(value.take()?, "idle")?),
                (b"SKIPME", true) => {
                    let yes = value.take_word("YES");
                    if !yes && !value.take_word("NO") {
                        return Err(CommandError::Syntax);
                    }
                    filter.skip_me = Some(yes);
                    args = value;
                    continue;
                }
                _ => return Err(filter.unknown_option(id_rule)),
            };
            filter.add(holds, test);
            args = value;
        }
        Ok(filter)
    }

    fn add(&mut self, holds: bool, test: Test<'a>) {
        let same = |(other_holds, other): &&mut (bool, Test<'a>)| {
            *other_holds == holds && discriminant(other) == discriminant(&test)
        };
        match (self.tests.iter_mut().find(same), test) {
            (Some((_, Test::Ids(ids))), Test::Ids(more)) => {
                ids.listed.extend(more.listed);
                ids.all.extend(more.all);
            }
            (Some((_, other)), test) => *other = test,
            (None, test) => self.tests.push((holds, test)),
        }
    }

    /// The error for an unknown option: after `CLIENT LIST ID` it should be an ID.
    fn unknown_option(&self, id_rule: IdRule) -> CommandError {
        match self.only_ids() {
            Some(_) if id_rule == IdRule::Any => INVALID_CLIENT_ID,
            _ => CommandError::Syntax,
        }
    }

    /// The IDs, if they are the only condition.
    pub fn only_ids(&self) -> Option<&[i64]> {
        match (&*self.tests, self.skip_me) {
            ([(true, Test::Ids(ids))], None) => Some(&ids.listed),
            _ => None,
        }
    }

    pub fn matches(&self, client: &Client, now: Now) -> bool {
        self.tests.iter().all(|(holds, test)| test.holds(client, now) == *holds)
    }
}

/// The IDs up to the first argument that is no number.
fn parse_ids(args: &mut Cursor<'_>, rule: IdRule) -> Result<Ids, CommandError> {
    let mut listed = Vec::new();
    while let Some(id) = args.peek().and_then(number::parse_i64) {
        if id < 1 && rule != IdRule::Any {
            return Err(CLIENT_ID_TOO_SMALL);
        }
        listed.push(id);
        args.take()?;
    }
    match rule {
        IdRule::Any if listed.is_empty() => return Err(INVALID_CLIENT_ID),
        IdRule::Possible if listed.is_empty() => return Err(CLIENT_ID_TOO_SMALL),
        _ => {}
    }
    let all = listed.iter().copied().collect();
    Ok(Ids { listed, all })
}

fn parse_class(name: &[u8]) -> Result<Option<ClientClass>, CommandError> {
    match &*name.to_ascii_lowercase() {
        b"normal" => Ok(Some(ClientClass::Normal)),
        b"slave" | b"replica" => Ok(Some(ClientClass::Replica)),
        b"pubsub" => Ok(Some(ClientClass::Pubsub)),
        b"master" | b"primary" => Ok(None),
        _ => Err(quoting("ERR Unknown client type '", name, "'")),
    }
}

fn parse_user<'a>(name: &[u8], acl: &Acl) -> Result<Test<'a>, CommandError> {
    let user = acl.find(name).ok_or_else(|| quoting("ERR No such user '", name, "'"))?;
    Ok(Test::User(user))
}

fn parse_flags(letters: &[u8], holds: bool) -> Result<&[u8], CommandError> {
    if letters.iter().all(|letter| FLAG_LETTERS.contains(letter)) {
        return Ok(letters);
    }
    let filter = if holds { "provided" } else { "NOT-FLAGS" };
    Err(quoting(&format!("ERR Unknown flags found in the {filter} filter: "), letters, ""))
}

fn parse_capabilities(letters: &[u8], holds: bool) -> Result<&[u8], CommandError> {
    if letters.iter().all(|letter| *letter == b'r') {
        return Ok(letters);
    }
    let filter = if holds { "provided" } else { "NOT-CAPA" };
    Err(quoting(&format!("ERR Unknown capa found in the {filter} filter: "), letters, ""))
}

fn parse_database(index: &[u8], databases: usize, holds: bool) -> Result<DbIndex, CommandError> {
    let option = if holds { "DB" } else { "NOT-DB" };
    let index = number::parse_i64(index).and_then(|index| i32::try_from(index).ok());
    let Some(index) = index else {
        return Err(CommandError::formatted(format!(
            "ERR {option} is not an integer or out of range"
        )));
    };
    DbIndex::checked(index, databases).ok_or_else(|| {
        let last = databases.saturating_sub(1);
        CommandError::formatted(format!("ERR {option} number should be between 0 and {last}"))
    })
}

fn parse_seconds(seconds: &[u8], option: &str) -> Result<i64, CommandError> {
    match number::parse_i64(seconds) {
        Some(seconds @ 1..) => Ok(seconds),
        Some(_) => Err(CommandError::formatted(format!("ERR {option} should be greater than 0"))),
        None => {
            Err(CommandError::formatted(format!("ERR {option} is not an integer or out of range")))
        }
    }
}

/// An error text with a part of the request.
fn quoting(before: &str, part: &[u8], behind: &str) -> CommandError {
    CommandError::of_parts(&[before.as_bytes(), part, behind.as_bytes()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_compared_as_its_text() {
        let mut random = fastrand::Rng::with_seed(5);
        let mut address = || {
            let port = random.u16(6..9);
            let ip: IpAddr = match random.u8(..3) {
                0 => [127, 0, 0, random.u8(..2)].into(),
                1 => [0, 0, 0, 0, 0, 0xffff, 0x7f00, random.u16(..2)].into(),
                _ => [0xfe80, 0, random.u16(..2), 0, 0, 0, 0, 1].into(),
            };
            SocketAddr::new(ip, port)
        };
        let mut equal = 0;
        for _ in 0..2_000 {
            let (own, other) = (address(), address());
            for text in [other.to_string(), format!("0{other}"), other.ip().to_string()] {
                let is = Shown::new(text.as_bytes()).is(&Address::Tcp(own));
                assert_eq!(is, own.to_string() == text, "{own} {text}");
                equal += usize::from(is);
            }
        }
        assert!(equal > 50, "{equal} of them are equal");
        for text in ["[0:0:0:0:0:0:0:1]:6", "127.0.0.1:06", "[::FFFF:7f00:1]:6", "", "?:0", "/s:0"]
        {
            assert!(!Shown::new(text.as_bytes()).is(&Address::Tcp(address())), "{text}");
        }
        assert!(Shown::new(b"/s:0").is(&Address::Unix("/s".into())));
        assert!(Shown::new(b"?:0").is(&Address::Unknown));
    }
}
