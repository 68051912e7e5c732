//! Any bytes as the payload of RESTORE, its checksum mended (the first one chooses the version):
//! nothing panics, and what is accepted is written so that it is read as the same value.

use latchkey::clock::Now;
use latchkey::collections::hash::KeyHasher;
use latchkey::collections::table::ValueRef;
use latchkey::persist::rdb::{Encoder, Limits, Version, payload, value_type};
use latchkey::types::{Stored, Value, hash, list, set, sorted_set};

const NOW: Now =
    Now { wall_us: 1_700_000_000_000_000, boot_us: 5_000_000, ignores_deadlines: false };

fn value_of(stored: &Stored) -> ValueRef<'_, Value> {
    match stored {
        Stored::Inline { kind, bytes } => ValueRef::Bytes { bytes, kind: *kind },
        Stored::Boxed(value) => ValueRef::Object(value),
    }
}

pub fn run(input: &[u8]) {
    let [version, content @ ..] = input else { return };
    let hasher = KeyHasher::new([1, 2]);
    let limits = Limits {
        list: list::Limits::from_setting(-2),
        hash: hash::Limits { entries_max: 512, bytes_max: 64, hasher },
        set: set::Limits { intset_entries: 512, listpack_entries: 128, listpack_value: 64, hasher },
        sorted_set: sorted_set::Limits { entries: 128, value: 64 },
    };
    let version = if version % 2 == 0 { Version::VALKEY_80 } else { Version::REDIS_11 };
    let mut altered = content.to_vec();
    payload::seal(&mut altered, version);
    let Ok(stored) = payload::restore(&altered, &limits, NOW) else { return };
    let mut encoder = Encoder::new(true);
    let first = payload::dump(&mut encoder, value_of(&stored), &NOW);
    let again = payload::restore(&first, &limits, NOW).expect("what was read can be written");
    let second = payload::dump(&mut encoder, value_of(&again), &NOW);
    // Tables have no order: their bytes are as many.
    match first[0] {
        value_type::SET | value_type::HASH | value_type::HASH_22 => {
            assert_eq!(first.len(), second.len());
        }
        _ => assert_eq!(first, second),
    }
}
