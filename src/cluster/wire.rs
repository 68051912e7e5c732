//! The format of messages between nodes: version 1 of the cluster bus, and the light headers of
//! Valkey.
//!
//! ```text
//! "RCmb" | total length u32 | version u16 | port u16 | type u16 | count u16 | epochs, offset u64 x 3 | sender 40
//!   | slots 2048 | primary 40 | ip 46 | extensions u16 | unused 30 | other port u16 | bus port u16 | flags u16
//!   | state u8 | marks u8 x 3 | data by type                                                         2,256 bytes and data
//! "RCmb" | total length u32 | version u16 | unused u16 | type and 0x8000 u16 | unused u16 | data      light: 16 bytes and data
//! ```
//!
//! Numbers are big-endian. A message is taken whole or not at all: its length must be exactly that
//! of its contents. Source: Redis 7.0.15 and Valkey 9.1.2.

use std::net::IpAddr;
use std::sync::Arc;

use bitflags::bitflags;

use super::node::{NodeFlags, NodeId};
use crate::collections::hash_slot::SlotSet;

/// Bytes of the header, of a light one, and of the beginning by which [`frame_length`] knows a
/// message's length.
pub const HEADER: usize = 2_256;
pub const LIGHT_HEADER: usize = 16;
pub const PREFIX: usize = 14;
const SIGNATURE: &[u8; 4] = b"RCmb";
const VERSION: u16 = 1;
const LIGHT: u16 = 0x8000;
const GOSSIP: usize = 104;
const IP: usize = 46;
pub const SECRET: usize = 40;

/// Names of the types of messages, as CLUSTER INFO shows them, by number.
pub const TYPE_NAMES: [&str; 11] = [
    "ping",
    "pong",
    "meet",
    "fail",
    "publish",
    "auth-req",
    "auth-ack",
    "update",
    "mfstart",
    "module",
    "publishshard",
];
pub const FAIL: usize = 3;
pub const PUBLISH: usize = 4;
pub const AUTH_REQUEST: usize = 5;
pub const AUTH_ACK: usize = 6;
pub const UPDATE: usize = 7;
pub const MANUAL_FAILOVER_START: usize = 8;
pub const MODULE: usize = 9;
pub const PUBLISH_SHARD: usize = 10;

bitflags! {
    /// Marks of a header.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Marks: u8 {
        /// The sender has paused writes for a manual failover.
        const PAUSED = 1;
        /// A vote is asked for although the primary has not failed.
        const FORCE_ACK = 2;
        /// There are extensions, or the sender understands them.
        const EXTENSIONS = 4;
    }
}

/// The facts about its sender in every full message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The client port that belongs to the bus port: that for TLS with `tls-cluster yes`.
    pub port: u16,
    /// The other client port, or 0.
    pub other_port: u16,
    pub bus_port: u16,
    pub current_epoch: u64,
    pub config_epoch: u64,
    pub offset: u64,
    pub sender: NodeId,
    pub slots: SlotSet,
    pub primary: Option<NodeId>,
    /// Empty: the address of the connection.
    pub ip: String,
    pub flags: NodeFlags,
    pub is_ok: bool,
    pub marks: Marks,
}

/// A ping, its answer, or the message by which a node joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Ping,
    Pong,
    Meet,
}

/// An entry about a third node. Times are Unix seconds, 0 for none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gossip {
    pub id: NodeId,
    pub ping_sent_s: u32,
    pub pong_received_s: u32,
    pub ip: String,
    pub port: u16,
    pub bus_port: u16,
    pub flags: NodeFlags,
    pub other_port: u16,
}

/// A further fact about the sender. Redis 7.0 knows only host names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Extension {
    Hostname(String),
    HumanNodename(String),
    Forgotten {
        id: NodeId,
        ttl_s: u64,
    },
    ShardId(NodeId),
    ClientIpv4(String),
    ClientIpv6(String),
    ClientPort(u16),
    ClientTlsPort(u16),
    AvailabilityZone(String),
    /// What nodes of Redis 8 prove to each other that they are of one cluster, under the number of
    /// [`Extension::ClientIpv4`]. All take the least that they hear of.
    Secret([u8; SECRET]),
    /// Of an unknown kind, or with contents that cannot be read.
    Unknown {
        kind: u16,
        data: Vec<u8>,
    },
}

impl Extension {
    /// Whether it announces an empty text or no port.
    pub fn is_empty(&self) -> bool {
        match self {
            Extension::Hostname(text)
            | Extension::HumanNodename(text)
            | Extension::ClientIpv4(text)
            | Extension::ClientIpv6(text)
            | Extension::AvailabilityZone(text) => text.is_empty(),
            Extension::ClientPort(port) | Extension::ClientTlsPort(port) => *port == 0,
            _ => false,
        }
    }
}

/// A message's contents, by type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    Ping { kind: Kind, gossip: Vec<Gossip>, extensions: Vec<Extension> },
    Fail(NodeId),
    Publish { channel: Vec<u8>, message: Vec<u8>, is_shard: bool },
    AuthRequest,
    AuthAck,
    Update { config_epoch: u64, id: NodeId, slots: SlotSet },
    ManualFailoverStart,
    Module { id: u64, kind: u8, payload: Vec<u8> },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub header: Header,
    pub body: Body,
}

/// A message that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decoded {
    Full(Box<Message>),
    Light(Body),
    /// Of another version, or of a type that is not known.
    Ignored,
}

/// The reason why a message is not accepted: a text for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed(pub String);

/// A connection does not speak this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadFrame;

/// The whole length of the message that begins with these bytes. None: there are fewer than
/// [`PREFIX`] bytes. Errors: another signature, too short for its header, or longer than `most`.
pub fn frame_length(bytes: &[u8], most: usize) -> Result<Option<usize>, BadFrame> {
    let signed = bytes.len().min(4);
    if bytes[..signed] != SIGNATURE[..signed] {
        return Err(BadFrame);
    }
    if bytes.len() < PREFIX {
        return Ok(None);
    }
    let length = u32_at(bytes, 4) as usize;
    let least = if u16_at(bytes, 12) & LIGHT != 0 { LIGHT_HEADER } else { HEADER };
    if length < least || length > most { Err(BadFrame) } else { Ok(Some(length)) }
}

/// The type of the message that begins with these bytes, for statistics. There must be [`PREFIX`]
/// bytes.
pub fn type_of(bytes: &[u8]) -> usize {
    usize::from(u16_at(bytes, 12) & !LIGHT)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Reads a whole message, as long as [`frame_length`] says.
pub fn decode(bytes: &[u8]) -> Result<Decoded, Malformed> {
    if bytes.len() < LIGHT_HEADER || u16_at(bytes, 8) != VERSION {
        return Ok(Decoded::Ignored);
    }
    let kind = usize::from(u16_at(bytes, 12) & !LIGHT);
    let name = TYPE_NAMES.get(kind).copied().unwrap_or("unknown");
    let wrong_length = |expected: usize| {
        let length = bytes.len();
        Malformed(format!(
            "Received invalid {name} packet of length {length} but expected length {expected}"
        ))
    };
    if u16_at(bytes, 12) & LIGHT != 0 {
        let data = &bytes[LIGHT_HEADER..];
        return match kind {
            PUBLISH | PUBLISH_SHARD => {
                let expected =
                    publish_length(data).ok_or_else(|| wrong_length(LIGHT_HEADER + 8))?;
                if expected != data.len() {
                    return Err(wrong_length(LIGHT_HEADER.saturating_add(expected)));
                }
                Ok(Decoded::Light(publish(data, kind == PUBLISH_SHARD)))
            }
            _ => Ok(Decoded::Ignored),
        };
    }
    if bytes.len() < HEADER {
        return Err(wrong_length(HEADER));
    }
    if kind >= TYPE_NAMES.len() {
        return Ok(Decoded::Ignored);
    }
    let header = header(bytes)?;
    let data = &bytes[HEADER..];
    let exactly = |length: usize| match data.len() == length {
        true => Ok(()),
        false => Err(wrong_length(HEADER.saturating_add(length))),
    };
    let body = match kind {
        0..=2 => {
            let kind = [Kind::Ping, Kind::Pong, Kind::Meet][kind];
            let count = usize::from(u16_at(bytes, 14));
            let (entries, rest) = data
                .split_at_checked(count * GOSSIP)
                .ok_or_else(|| wrong_length(HEADER + count * GOSSIP))?;
            let extensions = match header.marks.contains(Marks::EXTENSIONS) {
                true => read_extensions(rest, u16_at(bytes, 2_214)).ok_or_else(|| {
                    Malformed(format!("Received invalid {name} packet with malformed extensions"))
                })?,
                false if rest.is_empty() => Vec::new(),
                false => return Err(wrong_length(HEADER + count * GOSSIP)),
            };
            // One bad name makes all entries doubtful.
            let gossip: Option<Vec<Gossip>> =
                entries.as_chunks::<GOSSIP>().0.iter().map(gossip).collect();
            Body::Ping { kind, gossip: gossip.unwrap_or_default(), extensions }
        }
        FAIL => {
            exactly(NodeId::BYTES)?;
            Body::Fail(NodeId::from_bytes(data).ok_or_else(|| bad_name(name))?)
        }
        PUBLISH | PUBLISH_SHARD => {
            let expected = publish_length(data).ok_or_else(|| wrong_length(HEADER + 8))?;
            exactly(expected)?;
            publish(data, kind == PUBLISH_SHARD)
        }
        UPDATE => {
            exactly(8 + NodeId::BYTES + SlotSet::BYTES)?;
            let id = NodeId::from_bytes(&data[8..48]).ok_or_else(|| bad_name(name))?;
            let slots = SlotSet::from_bytes(data[48..].try_into().expect("the length was checked"));
            Body::Update { config_epoch: u64_at(data, 0), id, slots }
        }
        MODULE => {
            if data.len() < 13 {
                return Err(wrong_length(HEADER + 13));
            }
            exactly(13 + u32_at(data, 8) as usize)?;
            // The module's number is in the sender's byte order, which nobody but modules compares.
            Body::Module { id: u64_at(data, 0), kind: data[12], payload: data[13..].to_vec() }
        }
        _ => {
            exactly(0)?;
            match kind {
                AUTH_REQUEST => Body::AuthRequest,
                AUTH_ACK => Body::AuthAck,
                _ => Body::ManualFailoverStart,
            }
        }
    };
    Ok(Decoded::Full(Box::new(Message { header, body })))
}

fn bad_name(kind: &str) -> Malformed {
    Malformed(format!("Received invalid {kind} packet with a malformed node ID"))
}

fn header(bytes: &[u8]) -> Result<Header, Malformed> {
    let bad = || bad_name("cluster bus");
    let sender = NodeId::from_bytes(&bytes[40..80]).ok_or_else(bad)?;
    let primary = match &bytes[2_128..2_168] {
        zeros if zeros.iter().all(|byte| *byte == 0) => None,
        id => Some(NodeId::from_bytes(id).ok_or_else(bad)?),
    };
    Ok(Header {
        port: u16_at(bytes, 10),
        other_port: u16_at(bytes, 2_246),
        bus_port: u16_at(bytes, 2_248),
        current_epoch: u64_at(bytes, 16),
        config_epoch: u64_at(bytes, 24),
        offset: u64_at(bytes, 32),
        sender,
        slots: SlotSet::from_bytes(bytes[80..2_128].try_into().expect("the slots' bytes")),
        primary,
        ip: ip(&bytes[2_168..2_214]),
        flags: NodeFlags::from_bits_truncate(u16_at(bytes, 2_250)),
        is_ok: bytes[2_252] == 0,
        marks: Marks::from_bits_truncate(bytes[2_253]),
    })
}

/// The text of an address; empty if the field has none.
fn ip(field: &[u8]) -> String {
    let text = text(field).unwrap_or_default();
    if text.parse::<IpAddr>().is_ok() { text } else { String::new() }
}

/// A text up to its first NUL, which must exist.
fn text(field: &[u8]) -> Option<String> {
    let end = memchr::memchr(0, field)?;
    let text = std::str::from_utf8(&field[..end]).ok()?;
    // As in Valkey, no name has a byte that would break a line of nodes.conf.
    let is_plain = text.bytes().all(|byte| byte > b',' && !b";<=>?@[]^{|}~\\\x7f".contains(&byte));
    is_plain.then(|| text.to_owned())
}

fn gossip(entry: &[u8; GOSSIP]) -> Option<Gossip> {
    Some(Gossip {
        id: NodeId::from_bytes(&entry[..40])?,
        ping_sent_s: u32_at(entry, 40),
        pong_received_s: u32_at(entry, 44),
        ip: ip(&entry[48..94]),
        port: u16_at(entry, 94),
        bus_port: u16_at(entry, 96),
        flags: NodeFlags::from_bits_truncate(u16_at(entry, 98)),
        other_port: u16_at(entry, 100),
    })
}

fn publish_length(data: &[u8]) -> Option<usize> {
    (data.len() >= 8).then(|| {
        8usize.saturating_add(u32_at(data, 0) as usize).saturating_add(u32_at(data, 4) as usize)
    })
}

/// Channel and message; the length was checked.
fn publish(data: &[u8], is_shard: bool) -> Body {
    let (channel, message) = data[8..].split_at(u32_at(data, 0) as usize);
    Body::Publish { channel: channel.to_vec(), message: message.to_vec(), is_shard }
}

/// Extensions of this number that fill the bytes exactly. None if they do not.
fn read_extensions(mut bytes: &[u8], count: u16) -> Option<Vec<Extension>> {
    let mut extensions = Vec::new();
    for _ in 0..count {
        let (head, _) = bytes.split_at_checked(8)?;
        let length = u32_at(head, 0) as usize;
        if length < 8 || !length.is_multiple_of(8) {
            return None;
        }
        let (this, rest) = bytes.split_at_checked(length)?;
        extensions.push(extension(u16_at(this, 4), &this[8..]));
        bytes = rest;
    }
    bytes.is_empty().then_some(extensions)
}

fn extension(kind: u16, data: &[u8]) -> Extension {
    let unknown = || Extension::Unknown { kind, data: data.to_vec() };
    known_extension(kind, data).unwrap_or_else(unknown)
}

fn known_extension(kind: u16, data: &[u8]) -> Option<Extension> {
    let port = || (data.len() == 8).then(|| u16_at(data, 0));
    Some(match kind {
        0 => Extension::Hostname(text(data)?),
        1 => Extension::HumanNodename(text(data)?),
        2 if data.len() == 48 => {
            Extension::Forgotten { id: NodeId::from_bytes(&data[..40])?, ttl_s: u64_at(data, 40) }
        }
        3 if data.len() == 40 => Extension::ShardId(NodeId::from_bytes(data)?),
        4 if is_secret(data) => Extension::Secret(data.try_into().ok()?),
        4 => Extension::ClientIpv4(text(data)?),
        5 => Extension::ClientIpv6(text(data)?),
        6 => Extension::ClientPort(port()?),
        7 => Extension::ClientTlsPort(port()?),
        8 => Extension::AvailabilityZone(text(data)?),
        _ => return None,
    })
}

/// A secret is hexadecimal without a NUL; an address ends with one.
fn is_secret(data: &[u8]) -> bool {
    data.len() == SECRET && data.iter().all(u8::is_ascii_hexdigit)
}

impl Body {
    /// The type's number on the wire.
    pub fn index(&self) -> usize {
        match self {
            Body::Ping { kind, .. } => *kind as usize,
            Body::Fail(_) => FAIL,
            Body::Publish { is_shard: false, .. } => PUBLISH,
            Body::Publish { is_shard: true, .. } => PUBLISH_SHARD,
            Body::AuthRequest => AUTH_REQUEST,
            Body::AuthAck => AUTH_ACK,
            Body::Update { .. } => UPDATE,
            Body::ManualFailoverStart => MANUAL_FAILOVER_START,
            Body::Module { .. } => MODULE,
        }
    }

    /// Adds the bytes after the header.
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Body::Ping { gossip, extensions, .. } => {
                gossip.iter().for_each(|entry| write_gossip(entry, out));
                extensions.iter().for_each(|extension| write_extension(extension, out));
            }
            Body::Fail(id) => out.extend_from_slice(id.as_bytes()),
            Body::Publish { channel, message, .. } => {
                out.extend_from_slice(&(channel.len() as u32).to_be_bytes());
                out.extend_from_slice(&(message.len() as u32).to_be_bytes());
                out.extend_from_slice(channel);
                out.extend_from_slice(message);
            }
            Body::Update { config_epoch, id, slots } => {
                out.extend_from_slice(&config_epoch.to_be_bytes());
                out.extend_from_slice(id.as_bytes());
                out.extend_from_slice(&slots.to_bytes());
            }
            Body::Module { id, kind, payload } => {
                out.extend_from_slice(&id.to_be_bytes());
                out.extend_from_slice(&(payload.len() as u32).to_be_bytes());
                out.push(*kind);
                out.extend_from_slice(payload);
            }
            Body::AuthRequest | Body::AuthAck | Body::ManualFailoverStart => {}
        }
    }
}

impl Message {
    pub fn encode(&self) -> Arc<[u8]> {
        let header = &self.header;
        let (gossip, extensions) = match &self.body {
            Body::Ping { gossip, extensions, .. } => (gossip.len(), extensions.len()),
            _ => (0, 0),
        };
        let mut out = Vec::with_capacity(HEADER + gossip * GOSSIP + 256);
        out.extend_from_slice(SIGNATURE);
        out.extend_from_slice(&[0; 4]);
        for number in [VERSION, header.port, self.body.index() as u16, gossip as u16] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        for number in [header.current_epoch, header.config_epoch, header.offset] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        out.extend_from_slice(header.sender.as_bytes());
        out.extend_from_slice(&header.slots.to_bytes());
        out.extend_from_slice(
            header.primary.as_ref().map_or(&[0; NodeId::BYTES][..], |id| &id.as_bytes()[..]),
        );
        write_ip(&header.ip, &mut out);
        out.extend_from_slice(&(extensions as u16).to_be_bytes());
        out.extend_from_slice(&[0; 30]);
        for number in [header.other_port, header.bus_port, header.flags.bits()] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        out.extend_from_slice(&[u8::from(!header.is_ok), header.marks.bits(), 0, 0]);
        debug_assert_eq!(out.len(), HEADER);
        self.body.write(&mut out);
        finish(out)
    }
}

/// A message of PUBLISH with a light header.
pub fn encode_light(body: &Body) -> Arc<[u8]> {
    let mut out = Vec::with_capacity(64);
    out.extend_from_slice(SIGNATURE);
    out.extend_from_slice(&[0; 4]);
    for number in [VERSION, 0, body.index() as u16 | LIGHT, 0] {
        out.extend_from_slice(&number.to_be_bytes());
    }
    body.write(&mut out);
    finish(out)
}

/// Fills the length in.
fn finish(mut out: Vec<u8>) -> Arc<[u8]> {
    let length = (out.len() as u32).to_be_bytes();
    out[4..8].copy_from_slice(&length);
    out.into()
}

fn write_padded(text: &[u8], width: usize, out: &mut Vec<u8>) {
    let end = out.len() + width;
    out.extend_from_slice(&text[..text.len().min(width)]);
    out.resize(end, 0);
}

fn write_ip(ip: &str, out: &mut Vec<u8>) {
    // The last byte is a NUL.
    write_padded(&ip.as_bytes()[..ip.len().min(IP - 1)], IP, out);
}

fn write_gossip(entry: &Gossip, out: &mut Vec<u8>) {
    out.extend_from_slice(entry.id.as_bytes());
    out.extend_from_slice(&entry.ping_sent_s.to_be_bytes());
    out.extend_from_slice(&entry.pong_received_s.to_be_bytes());
    write_ip(&entry.ip, out);
    for number in [entry.port, entry.bus_port, entry.flags.bits(), entry.other_port, 0] {
        out.extend_from_slice(&number.to_be_bytes());
    }
}

fn write_extension(extension: &Extension, out: &mut Vec<u8>) {
    let mut data = Vec::new();
    let mut text = |text: &String| {
        data.extend_from_slice(text.as_bytes());
        data.push(0);
    };
    let kind: u16 = match extension {
        Extension::Hostname(name) => (text(name), 0).1,
        Extension::HumanNodename(name) => (text(name), 1).1,
        Extension::ClientIpv4(ip) => (text(ip), 4).1,
        Extension::ClientIpv6(ip) => (text(ip), 5).1,
        Extension::AvailabilityZone(name) => (text(name), 8).1,
        Extension::Forgotten { id, ttl_s } => {
            data.extend_from_slice(id.as_bytes());
            data.extend_from_slice(&ttl_s.to_be_bytes());
            2
        }
        Extension::ShardId(id) => {
            data.extend_from_slice(id.as_bytes());
            3
        }
        Extension::Secret(secret) => {
            data.extend_from_slice(secret);
            4
        }
        Extension::ClientPort(port) => {
            data.extend_from_slice(&port.to_be_bytes());
            6
        }
        Extension::ClientTlsPort(port) => {
            data.extend_from_slice(&port.to_be_bytes());
            7
        }
        Extension::Unknown { kind, data: bytes } => {
            data.extend_from_slice(bytes);
            *kind
        }
    };
    let length = 8 + data.len().next_multiple_of(8);
    out.extend_from_slice(&(length as u32).to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&[0; 2]);
    write_padded(&data, length - 8, out);
}

#[cfg(test)]
mod tests;
