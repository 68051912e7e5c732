//! Any bytes as a whole file: nothing panics, and what is accepted can be written and read again.

use latchkey::clock::Now;
use latchkey::collections::hash::KeyHasher;
use latchkey::collections::table::ValueRef;
use latchkey::persist::rdb::{Decoder, Encoder, Event, Limits, Parser, VersionCheck, payload};
use latchkey::types::{Stored, hash, list, set, sorted_set};

const NOW: Now =
    Now { wall_us: 1_700_000_000_000_000, boot_us: 5_000_000, ignores_deadlines: false };

pub fn run(file: &[u8]) {
    let hasher = KeyHasher::new([1, 2]);
    let limits = Limits {
        list: list::Limits::from_setting(4),
        hash: hash::Limits { entries_max: 4, bytes_max: 64, hasher },
        set: set::Limits { intset_entries: 4, listpack_entries: 4, listpack_value: 64, hasher },
        sorted_set: sorted_set::Limits { entries: 4, value: 64 },
    };
    let mut encoder = Encoder::new(true);
    // A checksum stands in the way of what is to be found.
    let mut parser = Parser::new(file, false).with_versions(VersionCheck::Relaxed);
    loop {
        match parser.next_event() {
            Ok(Event::Entry(entry)) => {
                let decoder = Decoder { limits: &limits, now: NOW, version: entry.version };
                let decoded = decoder.value(entry.value_type, entry.value, entry.offset);
                let Ok(stored) = decoded else { return };
                let value = match &stored {
                    Stored::Inline { kind, bytes } => ValueRef::Bytes { bytes, kind: *kind },
                    Stored::Boxed(value) => ValueRef::Object(value),
                };
                let dumped = payload::dump(&mut encoder, value, &NOW);
                payload::restore(&dumped, &limits, NOW).expect("what was read can be written");
            }
            Ok(Event::End(_)) | Err(_) => return,
            Ok(_) => {}
        }
    }
}
