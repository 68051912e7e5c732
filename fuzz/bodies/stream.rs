//! Any series of changes leaves a stream's entries as a tree has them: added, deleted, trimmed,
//! walked in both directions.

use std::collections::BTreeMap;

use latchkey::types::journal::Edit;
use latchkey::types::stream::{Entries, Keep, NewId, NodeLimits, StreamId, Trim};

use super::split_first;

type Model = BTreeMap<StreamId, Vec<Vec<u8>>>;

/// The entries from `start` to `end`, as they are read.
fn read(entries: &Entries, start: StreamId, end: StreamId) -> Vec<(StreamId, Vec<Vec<u8>>)> {
    let pieces = |entry: latchkey::types::stream::Entry<'_>| {
        let id = entry.id;
        (
            id,
            entry
                .flat_map(|(field, value)| [field, value])
                .map(|e| e.text().as_ref().to_vec())
                .collect(),
        )
    };
    let forwards: Vec<_> = entries.range(start, end).map(pieces).collect();
    let mut backwards: Vec<_> = entries.backwards(start, end).map(pieces).collect();
    backwards.reverse();
    assert_eq!(forwards, backwards);
    forwards
}

/// Adds an entry at an ID that `number` tells, with fields that repeat now and then, and texts of
/// all kinds of encodings.
fn add(entries: &mut Entries, model: &mut Model, number: u8, text: u8, limits: NodeLimits) {
    let last = entries.last;
    let wanted = match number % 4 {
        0 => NewId::Now(u64::from(number)),
        1 => NewId::At(last.ms.saturating_add(u64::from(number / 64))),
        2 => {
            NewId::Given(StreamId { ms: last.ms, seq: last.seq.saturating_add(u64::from(number)) })
        }
        _ => {
            NewId::Given(StreamId { ms: u64::from(number) << (number % 56), seq: u64::from(text) })
        }
    };
    let text_of = |index: usize| match (text as usize + index) % 4 {
        0 => vec![b'a' + index as u8; text.into()],
        1 => (i64::from(text) << (index * 9 % 56)).to_string().into_bytes(),
        2 => b"field".to_vec(),
        _ => Vec::new(),
    };
    let fields = usize::from(text % 3) + 1;
    let pieces: Vec<Vec<u8>> = (0..2 * fields).map(text_of).collect();
    if let Ok(id) = Edit::unnoted(entries).add(wanted, fields, |index| &pieces[index], limits) {
        assert!(id > last);
        model.insert(id, pieces);
    }
}

/// Trims by what `number` tells.
fn trim(entries: &mut Entries, model: &mut Model, number: u8, argument: u8) {
    let nth = model.keys().nth(usize::from(argument) % model.len().max(1));
    let keep = match number % 2 {
        0 => Keep::Newest(u64::from(argument)),
        _ => Keep::From(nth.copied().unwrap_or(StreamId { ms: argument.into(), seq: 0 })),
    };
    let is_kept = |model: &Model| match keep {
        Keep::Newest(count) => model.len() as u64 <= count,
        Keep::From(id) => model.keys().next().is_none_or(|first| *first >= id),
    };
    let is_approximate = number & 4 != 0;
    let limit = if is_approximate { u64::from(number >> 4) } else { 0 };
    let removed = Edit::unnoted(entries).trim(Trim { keep, is_approximate, limit });
    assert!(limit == 0 || removed <= limit);
    for _ in 0..removed {
        assert!(!is_kept(model), "no more goes than has to");
        model.pop_first();
    }
    assert!(is_approximate || is_kept(model));
}

pub fn run(input: &[u8]) {
    let (&[bytes, count], mut rest) = split_first(input);
    let limits = NodeLimits { bytes: usize::from(bytes) * 8, entries: u64::from(count % 16) };
    let (mut entries, mut model) = (Entries::default(), Model::new());
    while let [operation, number, argument, behind @ ..] = rest {
        rest = behind;
        let id = model.keys().nth(usize::from(*argument) % model.len().max(1)).copied();
        let id = id.unwrap_or(StreamId { ms: u64::from(*number), seq: 1 });
        match operation % 8 {
            0..=3 => add(&mut entries, &mut model, *number, *argument, limits),
            4 => {
                let ids = [id, StreamId { ms: u64::from(*number), seq: 0 }, id];
                let known = ids.iter().filter(|id| model.remove(id).is_some()).count();
                assert_eq!(Edit::unnoted(&mut entries).delete(&ids), known as u64);
            }
            5 => trim(&mut entries, &mut model, *number, *argument),
            6 => {
                assert_eq!(entries.contains(id), model.contains_key(&id));
                assert_eq!(
                    entries.get(id).map(|entry| entry.id),
                    model.get_key_value(&id).map(|(id, _)| *id)
                );
            }
            _ => {
                let end = StreamId { ms: id.ms.saturating_add(u64::from(*number)), seq: u64::MAX };
                let expected: Vec<_> =
                    model.range(id..=end).map(|(id, p)| (*id, p.clone())).collect();
                assert_eq!(read(&entries, id, end), expected);
            }
        }
        assert_eq!(entries.len(), model.len() as u64);
        assert_eq!(entries.first(), model.keys().next().copied().unwrap_or_default());
        assert_eq!(entries.top(), model.keys().next_back().copied());
    }
    let all = read(&entries, StreamId::MIN, StreamId::MAX);
    assert_eq!(all, model.into_iter().collect::<Vec<_>>());
}
