//! The RDB format of Redis and Valkey, for values and whole keyspaces (`docs/rdb.md`).
//!
//! ```text
//!   file     magic and version | fields, functions, databases with their entries | end | CRC-64
//!   DUMP     type | value | version (2 bytes) | CRC-64 (8 bytes)
//! ```
//!
//! **In.** [`Parser`] reads a file from any `Read` and finds where each entry ends without decoding
//! it; [`Decoder`] then decodes the bytes of the value, in this thread or another one. [`payload`]
//! does the same for DUMP. Decoding checks everything: every value it accepts is one that commands
//! could have made.
//!
//! **Out.** [`Encoder`] writes a borrowed value as the oldest type that holds it; [`Writer`] writes
//! a file of such values.
//!
//! Nothing here knows files, threads, clocks or the keyspace; the code that inserts entries finds
//! duplicate keys. No memory is reserved by a declared length, and nothing recurses.

mod decode;
mod encode;
mod encoder;
mod error;
mod input;
pub mod lzf;
mod packed;
mod parser;
pub mod payload;
mod reader;
mod streams;
mod version;
mod writer;

#[cfg(test)]
mod tests;

use crc::{CRC_64_REDIS, Crc, Table};

pub use decode::{Decoder, Limits};
pub use encode::NeedsVersion;
pub(in crate::persist) use encode::View;
pub use encoder::{Encoder, LeaseTimes, Newer, Sink};
pub use error::{DecodeError, Fault, FileError, ModuleId, Place};
pub use parser::{Checksum, Event, Parser, RawEntry};
pub use reader::{Reader, Text};
pub use version::{HeaderFault, Version, VersionCheck};
pub(in crate::persist) use writer::Output;
pub use writer::{SavedEntry, WriteError, Writer};

/// The checksum of files and payloads, computed 16 bytes at a time.
pub static CHECKSUM: Crc<u64, Table<16>> = Crc::<u64, Table<16>>::new(&CRC_64_REDIS);

/// The first byte of a record or of an entry's attribute. An entry itself begins with its value
/// type.
pub mod opcode {
    /// The names of fields that hashes of Redis 8.10 share.
    pub const HASH_TEMPLATE: u8 = 242;
    /// A slot that a node of a Valkey cluster is importing.
    pub const SLOT_IMPORT: u8 = 243;
    /// What modules keep for the next key, since Redis 8.6.
    pub const KEY_META: u8 = 243;
    pub const SLOT_INFO: u8 = 244;
    pub const FUNCTION: u8 = 245;
    /// Functions as the release candidates of Redis 7.0 wrote them.
    pub const FUNCTION_PRE_GA: u8 = 246;
    pub const MODULE_AUX: u8 = 247;
    pub const IDLE: u8 = 248;
    pub const FREQ: u8 = 249;
    pub const AUX: u8 = 250;
    pub const RESIZE_DB: u8 = 251;
    pub const EXPIRE_MS: u8 = 252;
    pub const EXPIRE_SECONDS: u8 = 253;
    pub const SELECT_DB: u8 = 254;
    pub const END: u8 = 255;
}

/// Types of values.
pub mod value_type {
    pub const STRING: u8 = 0;
    pub const LIST: u8 = 1;
    pub const SET: u8 = 2;
    /// Scores as text.
    pub const SORTED_SET: u8 = 3;
    pub const HASH: u8 = 4;
    /// Scores as doubles.
    pub const SORTED_SET_2: u8 = 5;
    /// As the release candidates of Redis 4.0 wrote it.
    pub const MODULE: u8 = 6;
    pub const MODULE_2: u8 = 7;
    pub const HASH_ZIPMAP: u8 = 9;
    pub const LIST_ZIPLIST: u8 = 10;
    pub const SET_INTSET: u8 = 11;
    pub const SORTED_SET_ZIPLIST: u8 = 12;
    pub const HASH_ZIPLIST: u8 = 13;
    /// A list of ziplists.
    pub const LIST_QUICKLIST: u8 = 14;
    pub const STREAM: u8 = 15;
    pub const HASH_LISTPACK: u8 = 16;
    pub const SORTED_SET_LISTPACK: u8 = 17;
    /// A list of listpacks and of large elements.
    pub const LIST_QUICKLIST_2: u8 = 18;
    /// With the counts of entries ever added and read.
    pub const STREAM_2: u8 = 19;
    pub const SET_LISTPACK: u8 = 20;
    /// With the times when consumers were last active.
    pub const STREAM_3: u8 = 21;
    /// A hash with deadlines of fields. Valkey 9 and the release candidates of Redis 7.4 gave two
    /// formats the same number.
    pub const HASH_22: u8 = 22;
    /// A listpack with deadlines of fields, of the release candidates of Redis 7.4.
    pub const HASH_LISTPACK_DEADLINES_PRE_GA: u8 = 23;
    /// A hash with deadlines of fields, as Redis 7.4 writes it.
    pub const HASH_DEADLINES: u8 = 24;
    /// A listpack with deadlines of fields, as Redis 7.4 writes it.
    pub const HASH_LISTPACK_DEADLINES: u8 = 25;
    /// With what producers have added, of Redis 8.6.
    pub const STREAM_4: u8 = 26;
    /// With pending entries that have no consumer, of Redis 8.8.
    pub const STREAM_5: u8 = 27;
    /// Of Redis 8.8. No such type exists here.
    pub const ARRAY: u8 = 28;
    /// Names of fields, and a listpack of a number and the values: a payload of Redis 8.10.
    pub const HASH_TEMPLATE_LISTPACK: u8 = 29;
    /// The same in a file, where the number is that of a record with the names.
    pub const HASH_TEMPLATE_LISTPACK_REF: u8 = 30;
    /// Names of fields, and the values: a payload of Redis 8.10.
    pub const HASH_TEMPLATE_ARRAY: u8 = 31;
    /// The number of a record with the names, and the values: in files of Redis 8.10.
    pub const HASH_TEMPLATE_ARRAY_REF: u8 = 32;

    /// Redis's name of a type in logs.
    pub fn name(value_type: u8) -> &'static str {
        match value_type {
            HASH_ZIPMAP => "Zipmap",
            LIST_ZIPLIST => "List ziplist",
            SET_INTSET => "Intset",
            SORTED_SET_ZIPLIST => "Zset ziplist",
            SORTED_SET_LISTPACK => "Zset listpack",
            HASH_ZIPLIST => "Hash ziplist",
            HASH_LISTPACK => "Hash listpack",
            LIST_QUICKLIST => "Ziplist",
            LIST_QUICKLIST_2 => "Listpack",
            STREAM | STREAM_2 | STREAM_3 | STREAM_4 | STREAM_5 => "Stream listpack",
            _ => "Value",
        }
    }
}
