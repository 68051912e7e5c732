//! nodes.conf, and the lines of CLUSTER NODES, which are the same.
//!
//! ```text
//! <id> <ip>:<port>@<bus port>[,<host name>[,<name>=<value> ...]] <flags> <primary's id or -> <ping sent> <pong received>
//!   <epoch> <connected|disconnected> [<slot>|<first>-<last>|[<slot>->-<id>]|[<slot>-<-<id>] ...]
//! vars currentEpoch <number> lastVoteEpoch <number> [unclaimedSlots <slot>|<first>-<last>[,...]]
//! ```
//!
//! Unclaimed slots are those that their owners no longer claim, while nobody else has claimed them.
//! Redis and Valkey pass over variables that they do not know.
//!
//! Fields named after the host name are Valkey's. Redis 7.0 would read them as part of the host
//! name, so they are only written for Valkey. Source: Redis 7.0.15 and Valkey 9.1.2.

use std::fmt::Write;

use thiserror::Error;

use super::node::{Address, Announced, NodeFlags, NodeId};
use crate::collections::hash_slot::HashSlot;

/// The most nodes that a file may have: as many as the table keeps.
const NODES_MAX: usize = 16_384;

/// One node's line. Times are Unix milliseconds, 0 for never.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeLine {
    pub id: NodeId,
    /// The port that the line shows is `tcp_port`; in a file of Valkey, `tls_port` is a named
    /// field.
    pub address: Address,
    pub announced: Announced,
    pub shard_id: Option<NodeId>,
    pub flags: NodeFlags,
    pub primary: Option<NodeId>,
    pub ping_sent_ms: i64,
    pub pong_received_ms: i64,
    pub config_epoch: u64,
    pub is_connected: bool,
    pub slots: Vec<(HashSlot, HashSlot)>,
    pub migrating: Vec<(HashSlot, NodeId)>,
    pub importing: Vec<(HashSlot, NodeId)>,
}

/// The file's contents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodesConf {
    pub nodes: Vec<NodeLine>,
    pub current_epoch: u64,
    pub last_vote_epoch: u64,
    pub unclaimed: Vec<(HashSlot, HashSlot)>,
}

/// Why a file is not understood.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}: {reason}")]
pub struct Corrupt {
    pub line: usize,
    pub reason: &'static str,
}

const FLAG_NAMES: &[(NodeFlags, &str)] = &[
    (NodeFlags::MYSELF, "myself"),
    (NodeFlags::PRIMARY, "master"),
    (NodeFlags::REPLICA, "slave"),
    (NodeFlags::PFAIL, "fail?"),
    (NodeFlags::FAIL, "fail"),
    (NodeFlags::HANDSHAKE, "handshake"),
    (NodeFlags::NOADDR, "noaddr"),
    (NodeFlags::NOFAILOVER, "nofailover"),
];

impl NodeLine {
    /// The line without its end. `aux`: with the fields that only Valkey reads.
    pub fn write(&self, aux: bool, out: &mut String) {
        let address = &self.address;
        let _ = write!(out, "{} {}:{}@{}", self.id, address.ip, address.tcp_port, address.bus_port);
        if aux || !self.announced.hostname.is_empty() {
            let _ = write!(out, ",{}", self.announced.hostname);
        }
        if aux {
            self.write_aux(out);
        }
        let names = FLAG_NAMES.iter().filter(|(flag, _)| self.flags.contains(*flag));
        let names: Vec<&str> = names.map(|(_, name)| *name).collect();
        let flags = if names.is_empty() { "noflags".to_owned() } else { names.join(",") };
        let primary = self.primary.as_ref().map_or("-", NodeId::as_str);
        let state = if self.is_connected { "connected" } else { "disconnected" };
        let (ping, pong, epoch) = (self.ping_sent_ms, self.pong_received_ms, self.config_epoch);
        let _ = write!(out, " {flags} {primary} {ping} {pong} {epoch} {state}");
        for range in &self.slots {
            out.push(' ');
            write_range(range, out);
        }
        let away = self.migrating.iter().map(|(slot, id)| (slot, '>', id));
        let mut open: Vec<_> =
            away.chain(self.importing.iter().map(|(slot, id)| (slot, '<', id))).collect();
        open.sort();
        for (slot, arrow, id) in open {
            let _ = write!(out, " [{}-{arrow}-{id}]", slot.number());
        }
    }

    fn write_aux(&self, out: &mut String) {
        let announced = &self.announced;
        let mut field = |name: &str, value: &str| {
            if !value.is_empty() {
                let _ = write!(out, ",{name}={value}");
            }
        };
        let port = |port: u16| if port == 0 { String::new() } else { port.to_string() };
        field("availability-zone", &announced.availability_zone);
        field("client-tls-port", &port(announced.client_tls_port));
        field("client-tcp-port", &port(announced.client_port));
        field("client-ipv6", &announced.client_ipv6);
        field("client-ipv4", &announced.client_ipv4);
        field("tls-port", &self.address.tls_port.to_string());
        field("nodename", &announced.human_nodename);
        field("shard-id", self.shard_id.as_ref().map_or("", NodeId::as_str));
    }

    fn parse(line: &str) -> Result<NodeLine, &'static str> {
        let mut fields = line.split_ascii_whitespace();
        let mut next = || fields.next().ok_or("there are fewer than eight fields");
        let id = NodeId::from_bytes(next()?.as_bytes()).ok_or("a malformed node ID")?;
        let place = next()?;
        let flags = parse_flags(next()?)?;
        let primary = match next()? {
            "-" => None,
            id => Some(NodeId::from_bytes(id.as_bytes()).ok_or("a malformed ID of a primary")?),
        };
        let number = |text: &str| text.parse::<i64>().map_err(|_| "a malformed number");
        let (ping_sent_ms, pong_received_ms) = (number(next()?)?, number(next()?)?);
        let config_epoch = next()?.parse().map_err(|_| "a malformed epoch")?;
        let is_connected = next()? == "connected";
        let mut node = NodeLine {
            id,
            address: Address::default(),
            announced: Announced::default(),
            shard_id: None,
            flags,
            primary,
            ping_sent_ms,
            pong_received_ms,
            config_epoch,
            is_connected,
            slots: Vec::new(),
            migrating: Vec::new(),
            importing: Vec::new(),
        };
        node.parse_place(place)?;
        for term in fields {
            node.parse_slots(term)?;
        }
        Ok(node)
    }

    /// `<ip>:<port>@<bus port>`, host name and further fields.
    fn parse_place(&mut self, place: &str) -> Result<(), &'static str> {
        let mut parts = place.split(',');
        let address = parts.next().unwrap_or_default();
        // Addresses of IPv6 have colons of their own.
        let (ip, ports) = address.rsplit_once(':').ok_or("an address without a port")?;
        let port = |text: &str| text.parse::<u16>().map_err(|_| "a malformed port");
        let (tcp_port, bus_port) = match ports.split_once('@') {
            Some((tcp_port, bus_port)) => (port(tcp_port)?, port(bus_port)?),
            // Before Redis 4.
            None => {
                (port(ports)?, port(ports)?.checked_add(10_000).ok_or("a port that is too high")?)
            }
        };
        self.address = Address { ip: ip.to_owned(), tcp_port, tls_port: 0, bus_port };
        self.announced.hostname = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (name, value) = part.split_once('=').ok_or("a field without a value")?;
            let owned = value.to_owned();
            match name {
                "availability-zone" => self.announced.availability_zone = owned,
                "client-tls-port" => self.announced.client_tls_port = port(value)?,
                "client-tcp-port" => self.announced.client_port = port(value)?,
                "client-ipv6" => self.announced.client_ipv6 = owned,
                "client-ipv4" => self.announced.client_ipv4 = owned,
                "tls-port" => self.address.tls_port = port(value)?,
                "tcp-port" => {
                    // In a cluster over TLS the first port is that of TLS.
                    self.address.tls_port =
                        std::mem::replace(&mut self.address.tcp_port, port(value)?);
                }
                "nodename" => self.announced.human_nodename = owned,
                "shard-id" => {
                    self.shard_id =
                        Some(NodeId::from_bytes(value.as_bytes()).ok_or("a malformed shard ID")?);
                }
                _ => return Err("a field that is not known"),
            }
        }
        Ok(())
    }

    /// A slot, a range, or a slot that is being moved.
    fn parse_slots(&mut self, term: &str) -> Result<(), &'static str> {
        if let Some(open) = term.strip_prefix('[') {
            let open = open.strip_suffix(']').ok_or(MALFORMED)?;
            let (list, number, id) = match (open.split_once("->-"), open.split_once("-<-")) {
                (Some((number, id)), _) => (&mut self.migrating, number, id),
                (_, Some((number, id))) => (&mut self.importing, number, id),
                _ => return Err(MALFORMED),
            };
            list.push((parse_slot(number)?, NodeId::from_bytes(id.as_bytes()).ok_or(MALFORMED)?));
            return Ok(());
        }
        self.slots.push(parse_range(term)?);
        Ok(())
    }
}

const MALFORMED: &str = "a malformed slot";

fn parse_slot(text: &str) -> Result<HashSlot, &'static str> {
    text.parse().ok().and_then(HashSlot::new).ok_or(MALFORMED)
}

/// `<slot>` or `<first>-<last>`.
fn parse_range(text: &str) -> Result<(HashSlot, HashSlot), &'static str> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (parse_slot(first)?, parse_slot(last)?);
    if first > last { Err(MALFORMED) } else { Ok((first, last)) }
}

fn write_range((first, last): &(HashSlot, HashSlot), out: &mut String) {
    let _ = match first == last {
        true => write!(out, "{}", first.number()),
        false => write!(out, "{}-{}", first.number(), last.number()),
    };
}

fn parse_flags(text: &str) -> Result<NodeFlags, &'static str> {
    let mut flags = NodeFlags::empty();
    for name in text.split(',') {
        flags |= match name {
            "noflags" => NodeFlags::empty(),
            "primary" => NodeFlags::PRIMARY,
            "replica" => NodeFlags::REPLICA,
            name => FLAG_NAMES
                .iter()
                .find(|(_, known)| *known == name)
                .map(|(flag, _)| *flag)
                .ok_or("a flag that is not known")?,
        };
    }
    Ok(flags)
}

/// Reads a file. Empty lines are skipped.
pub fn parse(text: &[u8]) -> Result<NodesConf, Corrupt> {
    let mut conf = NodesConf::default();
    for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let corrupt = |reason| Corrupt { line: index + 1, reason };
        let line = std::str::from_utf8(line).map_err(|_| corrupt("not a text"))?;
        let mut words = line.split_ascii_whitespace();
        match words.next() {
            None => continue,
            Some("vars") => {
                while let Some(name) = words.next() {
                    let value =
                        words.next().ok_or_else(|| corrupt("a variable without a value"))?;
                    let epoch = match name {
                        "currentEpoch" => &mut conf.current_epoch,
                        "lastVoteEpoch" => &mut conf.last_vote_epoch,
                        "unclaimedSlots" => {
                            let ranges = value.split(',').map(parse_range);
                            conf.unclaimed = ranges.collect::<Result<_, _>>().map_err(corrupt)?;
                            continue;
                        }
                        _ => continue,
                    };
                    *epoch = value.parse().map_err(|_| corrupt("a malformed epoch"))?;
                }
            }
            Some(_) => {
                let node = NodeLine::parse(line).map_err(corrupt)?;
                if conf.nodes.iter().any(|known| known.id == node.id) {
                    return Err(corrupt("a node has two lines"));
                }
                if conf.nodes.len() == NODES_MAX {
                    return Err(corrupt("there are too many nodes"));
                }
                conf.nodes.push(node);
            }
        }
    }
    if conf.nodes.iter().filter(|node| node.flags.contains(NodeFlags::MYSELF)).count() != 1 {
        return Err(Corrupt { line: 1, reason: "exactly one line must have the flag myself" });
    }
    let greatest = conf.nodes.iter().map(|node| node.config_epoch).max().unwrap_or(0);
    conf.current_epoch = conf.current_epoch.max(greatest);
    Ok(conf)
}

impl NodesConf {
    pub fn write(&self, aux: bool) -> String {
        let mut text = String::new();
        for node in &self.nodes {
            node.write(aux, &mut text);
            text.push('\n');
        }
        let (current, vote) = (self.current_epoch, self.last_vote_epoch);
        let _ = write!(text, "vars currentEpoch {current} lastVoteEpoch {vote}");
        for (index, range) in self.unclaimed.iter().enumerate() {
            text.push_str(if index == 0 { " unclaimedSlots " } else { "," });
            write_range(range, &mut text);
        }
        text.push('\n');
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const REDIS: &str = "\
07c37dfeb235213a872192d90877d0cd55635b91 127.0.0.1:30004@31004,host.example slave e7d1eecce10fd6bb5eb35b9f99a514335d9ba9ca 0 1426238317239 4 connected
67ed2db8d677e59ec4a4cefb06858cf2a1a89fa1 127.0.0.1:30002@31002 master - 0 1426238316232 2 disconnected 5461-10922 16383
e7d1eecce10fd6bb5eb35b9f99a514335d9ba9ca ::1:30001@31001 myself,master - 0 0 1 connected 0-5460 [77->-67ed2db8d677e59ec4a4cefb06858cf2a1a89fa1] [93-<-67ed2db8d677e59ec4a4cefb06858cf2a1a89fa1]
vars currentEpoch 6 lastVoteEpoch 2
";

    #[test]
    fn a_file_of_redis_is_read_and_written() {
        let conf = parse(REDIS.as_bytes()).expect("a good file");
        assert_eq!(conf.nodes[2].address.ip, "::1");
        assert_eq!(conf.nodes[0].announced.hostname, "host.example");
        assert_eq!((conf.current_epoch, conf.last_vote_epoch), (6, 2));
        assert_eq!(parse(conf.write(false).as_bytes()), Ok(conf));
    }

    #[test]
    fn files_of_real_nodes_are_read_and_written() {
        let redis = include_str!("../../tests/data/cluster/redis7.nodes.conf");
        let conf = parse(redis.as_bytes()).expect("a good file");
        assert_eq!(conf.write(false).trim_end(), redis.trim_end());
        let valkey = include_str!("../../tests/data/cluster/valkey9.nodes.conf");
        let conf = parse(valkey.as_bytes()).expect("a good file");
        assert_eq!(conf.write(true).trim_end(), valkey.trim_end());
    }

    #[test]
    fn a_file_of_valkey_is_read_and_written() {
        let line = "67ed2db8d677e59ec4a4cefb06858cf2a1a89fa1 127.0.0.1:23000@23200,,availability-zone=a1,tls-port=0,\
            nodename=first,shard-id=07c37dfeb235213a872192d90877d0cd55635b91 myself,primary - 0 0 1 connected 0-16383\n\
            vars currentEpoch 1 lastVoteEpoch 0\n";
        let conf = parse(line.as_bytes()).expect("a good file");
        assert_eq!(conf.nodes[0].announced.human_nodename, "first");
        assert_eq!(conf.write(true), line.replace("primary", "master"));
    }

    #[test]
    fn unclaimed_slots_are_read_and_written() {
        let text = REDIS.replace("Epoch 2\n", "Epoch 2 unclaimedSlots 3,7-9,16383\n");
        let conf = parse(text.as_bytes()).expect("a good file");
        assert_eq!(conf.unclaimed.len(), 3);
        assert_eq!(conf.write(false), text);
        for wrong in ["9-7", "", "7,", "16384", "7-"] {
            let text = text.replace("3,7-9,16383", wrong);
            assert_eq!(parse(text.as_bytes()).expect_err(wrong).line, 4);
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (from, to) in [
            ("30002@31002 master", "30002@31002 mister"),
            ("5461-10922", "5461-16384"),
            ("5461-10922", "5461-1"),
            ("127.0.0.1:30002", "127.0.0.1"),
            ("67ed2db8d677e59ec4a4cefb06858cf2a1a89fa1 127", "67ed 127"),
            (" 2 disconnected 5461-10922 16383", ""),
        ] {
            let corrupt = parse(REDIS.replacen(from, to, 1).as_bytes()).expect_err(to);
            assert_eq!(corrupt.line, 2, "{to}: {corrupt}");
        }
        assert!(parse(b"").is_err());
        assert!(parse(REDIS.replace("myself,", "").as_bytes()).is_err());
    }

    proptest! {
        #[test]
        fn no_text_is_a_crash(at in 0..REDIS.len(), bytes: Vec<u8>, length in 0usize..40) {
            let _ = parse(&bytes);
            let mut text = REDIS.as_bytes().to_vec();
            let end = (at + length).min(text.len());
            text.splice(at..end, bytes);
            if let Ok(conf) = parse(&text) {
                prop_assert!(parse(conf.write(true).as_bytes()).is_ok());
            }
        }
    }
}
