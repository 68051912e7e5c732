//! The line of CLIENT LIST for the link to the primary, which is not a client.

use std::fmt::Write;
use std::net::SocketAddr;
use std::os::fd::RawFd;

use crate::config::Compatibility;
use crate::keyspace::DbIndex;

/// The link, while it is in use.
#[derive(Clone, Debug)]
pub struct LinkLine {
    /// The link's number among those of clients.
    pub number: u64,
    pub address: SocketAddr,
    pub local: Option<SocketAddr>,
    pub file: RawFd,
    pub age_s: i64,
    pub idle_s: i64,
    /// The database that the stream has selected.
    pub database: DbIndex,
    /// Bytes received but not applied yet.
    pub input: u64,
}

impl LinkLine {
    /// The link's flags.
    pub const FLAGS: &str = "M";

    /// The line, without a line end. `cmd` is NULL, because the link has no commands of its own.
    pub fn text(&self, dialect: Compatibility) -> String {
        let local = self.local.map_or_else(String::new, |address| address.to_string());
        let [capa, watch, traffic] = match dialect {
            Compatibility::Valkey9 => {
                [" capa=", " watch=0", " tot-net-in=0 tot-net-out=0 tot-cmds=0"]
            }
            Compatibility::Redis8 => {
                ["", " watch=0", " io-thread=0 tot-net-in=0 tot-net-out=0 tot-cmds=0"]
            }
            _ => [""; 3],
        };
        let mut line = String::new();
        let LinkLine { number, address, file, age_s, idle_s, database, input, .. } = self;
        let flags = Self::FLAGS;
        let _ = write!(
            line,
            "id={number} addr={address} laddr={local} fd={file} name= age={age_s} idle={idle_s} flags={flags}{capa} db={database} \
             sub=0 psub=0 ssub=0 multi=-1{watch} qbuf={input} qbuf-free=0 argv-mem=0 multi-mem=0 rbs=0 rbp=0 obl=0 oll=0 omem=0 \
             tot-mem={input} events=r cmd=NULL user=(superuser) redir=-1 resp=2 lib-name= lib-ver={traffic}"
        ); // cannot fail
        line
    }
}
