//! Streams against a naive model: a list of nodes, each a list of entries, whose listpack is
//! counted anew each time.

use proptest::prelude::*;

use super::*;
use crate::resp::number::parse_i64;

type Text = Vec<u8>;

#[derive(Clone, Debug, PartialEq, Eq)]
struct ModelEntry {
    id: StreamId,
    pieces: Vec<Text>,
    is_deleted: bool,
}

#[derive(Clone, Debug, Default)]
struct Model {
    nodes: Vec<Vec<ModelEntry>>,
    last: StreamId,
    max_deleted: StreamId,
    added: i64,
    first: StreamId,
}

/// Bytes of an element of a listpack by its specification.
fn listpack_element(text: &[u8]) -> usize {
    let body = match parse_i64(text) {
        Some(0..=127) => 1,
        Some(-4096..=4095) => 2,
        Some(-0x8000..=0x7fff) => 3,
        Some(-0x80_0000..=0x7f_ffff) => 4,
        Some(-0x8000_0000..=0x7fff_ffff) => 5,
        Some(_) => 9,
        None if text.len() < 64 => 1 + text.len(),
        None if text.len() < 4096 => 2 + text.len(),
        None => 5 + text.len(),
    };
    body + if body < 128 {
        1
    } else if body < 16_383 {
        2
    } else {
        3
    }
}

fn integer(value: i64) -> usize {
    listpack_element(value.to_string().as_bytes())
}

fn fields_of(entry: &ModelEntry) -> Vec<&Text> {
    entry.pieces.iter().step_by(2).collect()
}

fn listpack_bytes(node: &[ModelEntry]) -> usize {
    let dead = node.iter().filter(|entry| entry.is_deleted).count();
    let master = fields_of(&node[0]);
    let mut bytes = 7 + integer((node.len() - dead) as i64) + integer(dead as i64);
    bytes += integer(master.len() as i64) + 2;
    bytes += master.iter().map(|field| listpack_element(field)).sum::<usize>();
    for entry in node {
        let fields = fields_of(entry);
        bytes += 2;
        bytes += integer(entry.id.ms.wrapping_sub(node[0].id.ms) as i64);
        bytes += integer(entry.id.seq.wrapping_sub(node[0].id.seq) as i64);
        let is_same = fields == master;
        let skipped = if is_same { 2 } else { 1 };
        let from = usize::from(is_same);
        let kept: Vec<_> = entry.pieces.iter().skip(from).step_by(skipped).collect();
        bytes += kept.iter().map(|piece| listpack_element(piece)).sum::<usize>();
        bytes += if is_same { 0 } else { integer(fields.len() as i64) };
        bytes += integer((3 + kept.len() + usize::from(!is_same)) as i64);
    }
    bytes
}

impl Model {
    fn live(&self) -> Vec<&ModelEntry> {
        self.nodes.iter().flatten().filter(|entry| !entry.is_deleted).collect()
    }

    fn add(&mut self, id: StreamId, pieces: Vec<Text>, limits: NodeLimits) -> bool {
        if id <= self.last {
            return false;
        }
        let bytes = pieces.iter().map(Vec::len).sum::<usize>();
        let has_room = self.nodes.last().is_some_and(|node| {
            let max = if limits.bytes == 0 { 1 << 30 } else { limits.bytes };
            node.last().is_some_and(|last| last.id < id)
                && listpack_bytes(node) + bytes < max
                && (limits.entries == 0 || (node.len() as u64) < limits.entries)
        });
        if !has_room {
            self.nodes.push(Vec::new());
        }
        let node = self.nodes.last_mut().expect("one was made");
        node.push(ModelEntry { id, pieces, is_deleted: false });
        self.last = id;
        self.added += 1;
        self.first = self.live()[0].id;
        true
    }

    fn delete(&mut self, id: StreamId) -> bool {
        for index in 0..self.nodes.len() {
            let node = &mut self.nodes[index];
            if let Some(entry) = node.iter_mut().find(|entry| entry.id == id && !entry.is_deleted) {
                entry.is_deleted = true;
                if node.iter().all(|entry| entry.is_deleted) {
                    self.nodes.remove(index);
                }
                self.max_deleted = self.max_deleted.max(id);
                self.first = self.live().first().map_or(StreamId::MIN, |entry| entry.id);
                return true;
            }
        }
        false
    }

    fn trim(&mut self, trim: Trim) -> u64 {
        let before = self.live().len();
        loop {
            let live = self.live().len();
            let removed = (before - live) as u64;
            let Some(node) = self.nodes.first_mut() else { break };
            let inside = node.iter().filter(|entry| !entry.is_deleted).count();
            if matches!(trim.keep, Keep::Newest(len) if live as u64 <= len) {
                break;
            }
            if trim.limit > 0 && removed + inside as u64 > trim.limit {
                break;
            }
            let goes = match trim.keep {
                Keep::Newest(len) => (live - inside) as u64 >= len,
                Keep::From(id) => node[node.len() - 1].id < id,
            };
            if goes {
                self.nodes.remove(0);
                continue;
            }
            if !trim.is_approximate {
                let mut left = live as u64;
                for entry in node.iter_mut() {
                    let stays = match trim.keep {
                        Keep::Newest(len) => left <= len,
                        Keep::From(id) => entry.id >= id,
                    };
                    if stays {
                        break;
                    }
                    left -= u64::from(!entry.is_deleted);
                    entry.is_deleted = true;
                }
            }
            break;
        }
        self.first = self.live().first().map_or(StreamId::MIN, |entry| entry.id);
        (before - self.live().len()) as u64
    }
}

fn shown(entry: Entry<'_>) -> (StreamId, Vec<Text>) {
    let pieces = entry
        .clone()
        .flat_map(|(field, value)| [field, value].map(|piece| piece.text().as_ref().to_vec()));
    (entry.id, pieces.collect())
}

fn check(entries: &Entries, model: &Model) {
    let live = model.live();
    assert_eq!(entries.len(), live.len() as u64);
    assert_eq!(entries.nodes(), model.nodes.len());
    for (node, expected) in entries.nodes.iter().zip(&model.nodes) {
        assert_eq!(node.listpack_bytes(), listpack_bytes(expected));
        assert_eq!(node.entries(), expected.len() as u64);
        assert_eq!((node.first, node.last), (expected[0].id, expected[expected.len() - 1].id));
    }
    assert_eq!(entries.last, model.last);
    assert_eq!(entries.added, model.added);
    assert_eq!(entries.max_deleted, model.max_deleted);
    assert_eq!(entries.first(), model.first);
    assert_eq!(entries.top(), live.last().map(|entry| entry.id));
    let expected: Vec<_> = live.iter().map(|entry| (entry.id, entry.pieces.clone())).collect();
    let all: Vec<_> = entries.range(StreamId::MIN, StreamId::MAX).map(shown).collect();
    assert_eq!(all, expected);
    check_saved(entries);
}

/// Checks that the entries can be saved and loaded.
fn check_saved(entries: &Entries) {
    let mut loader = Loader::default();
    for node in entries.saved_nodes() {
        loader.begin_node();
        for entry in node.entries() {
            let pushed = loader.push(entry.id, entry.is_deleted, 1, |index| [b"f", b"v"][index]);
            assert_eq!(pushed, Ok(()), "{:?}", entry.id);
        }
    }
    assert!(loader.top().is_none_or(|top| top <= entries.last));
    let loaded = loader.finish();
    let ids = |entries: &Entries| -> Vec<StreamId> {
        entries.range(StreamId::MIN, StreamId::MAX).map(|entry| entry.id).collect()
    };
    assert_eq!(ids(&loaded), ids(entries));
    // Trimming may leave a node without live entries.
    let nodes = entries.saved_nodes().filter(|node| node.live() > 0).count();
    assert_eq!((loaded.nodes(), loaded.top()), (nodes, entries.top()));
}

/// Redis keeps an entry in a node after a deleted one with a greater ID, if XSETID has set the
/// stream back in between.
#[test]
fn deleted_entries_may_have_greater_ids_than_later_ones() {
    let mut loader = Loader::default();
    let entries = [(5, false), (13, true), (10, false), (12, true), (11, true), (20, false)];
    loader.begin_node();
    for (ms, is_deleted) in entries {
        let id = StreamId { ms, seq: 0 };
        let pushed = loader.push(id, is_deleted, 1, |index| [b"f", b"v"][index]);
        assert_eq!(pushed, Ok(()), "{ms}");
    }
    let below = StreamId { ms: 19, seq: 0 };
    let pushed = loader.push(below, true, 1, |index| [b"f", b"v"][index]);
    assert_eq!(pushed, Err(LoaderError::NotAbove));
    let loaded = loader.finish();
    let all = |start, end| -> Vec<u64> {
        let (start, end) = (StreamId { ms: start, seq: 0 }, StreamId { ms: end, seq: 0 });
        loaded.range(start, end).map(|entry| entry.id.ms).collect()
    };
    assert_eq!((all(0, 100), all(6, 12), all(11, 20)), (vec![5, 10, 20], vec![10], vec![20]));
}

fn check_range(entries: &Entries, model: &Model, start: StreamId, end: StreamId) {
    let is_in = |entry: &&ModelEntry| (start..=end).contains(&entry.id);
    let expected: Vec<_> = model.live().into_iter().filter(is_in).map(|entry| entry.id).collect();
    let forwards: Vec<_> = entries.range(start, end).map(|entry| entry.id).collect();
    assert_eq!(forwards, expected, "{start:?} to {end:?}");
    let mut backwards: Vec<_> = entries.backwards(start, end).map(|entry| entry.id).collect();
    backwards.reverse();
    assert_eq!(backwards, expected, "{start:?} to {end:?}, backwards");
    for id in [start, end] {
        let is_there = model.live().iter().any(|entry| entry.id == id);
        assert_eq!(entries.contains(id), is_there);
        assert_eq!(entries.get(id).map(|entry| entry.id), is_there.then_some(id));
    }
}

#[derive(Clone, Debug)]
enum Step {
    Add { ms: u64, seq: u64, pieces: Vec<Text> },
    Delete(usize),
    Trim { newest: bool, part: usize, is_approximate: bool, limit: u64 },
    Range(usize, usize),
    SetBack,
}

fn text() -> impl Strategy<Value = Text> {
    prop_oneof![
        4 => "[a-c]{0,3}".prop_map(String::into_bytes),
        1 => (-5000..5000i64).prop_map(|value| value.to_string().into_bytes()),
        1 => (0..200usize).prop_map(|len| vec![b'x'; len]),
        1 => any::<i64>().prop_map(|value| value.to_string().into_bytes()),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let pieces = prop_oneof![
        3 => text().prop_map(|value| vec![b"field".to_vec(), value]),
        1 => prop::collection::vec((prop_oneof!["a", "b", "7"], text()), 1..4).prop_map(|pairs| {
            pairs.into_iter().flat_map(|(field, value)| [field.into_bytes(), value]).collect()
        }),
    ];
    prop_oneof![
        6 => (prop_oneof![Just(0), 0..300u64, Just(u64::MAX / 4)], 0..300u64, pieces)
            .prop_map(|(ms, seq, pieces)| Step::Add { ms, seq, pieces }),
        2 => any::<usize>().prop_map(Step::Delete),
        1 => (any::<bool>(), 0..40usize, any::<bool>(), 0..20u64).prop_map(
            |(newest, part, is_approximate, limit)| {
                let limit = if is_approximate { limit } else { 0 };
                Step::Trim { newest, part, is_approximate, limit }
            }
        ),
        1 => (any::<usize>(), any::<usize>()).prop_map(|(start, end)| Step::Range(start, end)),
        1 => Just(Step::SetBack),
    ]
}

/// An existing or deleted ID, or one next to it.
fn some_id(model: &Model, number: usize) -> StreamId {
    let ids: Vec<_> = model.nodes.iter().flatten().map(|entry| entry.id).collect();
    let id = ids.get(number / 3 % ids.len().max(1)).copied().unwrap_or_default();
    match number % 3 {
        0 => id,
        1 => id.next().unwrap_or(id),
        _ => id.previous().unwrap_or(id),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn streams_hold_what_the_model_holds(
        steps in prop::collection::vec(step(), 1..80),
        bytes in prop_oneof![Just(0), 40..400usize],
        limit in prop_oneof![Just(0), 1..12u64],
    ) {
        let limits = NodeLimits { bytes, entries: limit };
        let (mut entries, mut model) = (Entries::default(), Model::default());
        for step in steps {
            match step {
                Step::Add { ms, seq, pieces } => {
                    let ms = model.last.ms.saturating_add(ms);
                    let seq = if ms == model.last.ms { model.last.seq.wrapping_add(seq) } else { seq };
                    let id = StreamId { ms, seq };
                    let piece = |index: usize| pieces[index].as_slice();
                    let added = Edit::unnoted(&mut entries).add(NewId::Given(id), pieces.len() / 2, piece, limits);
                    prop_assert_eq!(added.is_ok(), model.add(id, pieces.clone(), limits));
                }
                Step::Delete(number) => {
                    let ids = [some_id(&model, number), some_id(&model, number / 7)];
                    let expected = ids.iter().filter(|id| model.delete(**id)).count();
                    prop_assert_eq!(Edit::unnoted(&mut entries).delete(&ids), expected as u64);
                }
                Step::Trim { newest, part, is_approximate, limit } => {
                    let keep = if newest {
                        Keep::Newest(part as u64)
                    } else {
                        Keep::From(some_id(&model, part))
                    };
                    let trim = Trim { keep, is_approximate, limit };
                    prop_assert_eq!(Edit::unnoted(&mut entries).trim(trim), model.trim(trim));
                }
                // XSETID: down to the greatest existing ID.
                Step::SetBack => {
                    model.last = model.live().last().map_or(StreamId::MIN, |entry| entry.id);
                    entries.last = model.last;
                }
                Step::Range(start, end) => {
                    let (start, end) = (some_id(&model, start), some_id(&model, end));
                    check_range(&entries, &model, start, end);
                }
            }
            check(&entries, &model);
        }
    }

    #[test]
    fn a_group_keeps_its_lists_in_step(
        steps in prop::collection::vec((0..6u8, 0..4usize, 0..12u64), 1..60),
    ) {
        let names: [&[u8]; 4] = [b"a", b"b", b"c", b"d"];
        let mut group = Group::default();
        let mut model: std::collections::BTreeMap<StreamId, (usize, i64)> = Default::default();
        for (action, name, seq) in steps {
            let id = StreamId { ms: 1, seq };
            match action {
                0..=2 => {
                    let (consumer, _) = group.meet_consumer(names[name], 5);
                    group.assign(id, Pending { consumer, delivered_ms: 7, deliveries: 1 });
                    model.insert(id, (name, 1));
                }
                3 => prop_assert_eq!(group.acknowledge(id), model.remove(&id).is_some()),
                4 => {
                    group.redeliver(id, 9);
                    model.entry(id).and_modify(|(_, deliveries)| *deliveries += 1);
                }
                _ => if let Some(consumer) = group.find_consumer(names[name]) {
                    let before = model.len();
                    model.retain(|_, (owner, _)| *owner != name);
                    prop_assert_eq!(group.remove_consumer(consumer), before - model.len());
                }
            }
            let found: Vec<_> = group
                .pending()
                .iter()
                .map(|(id, it)| (*id, group.consumer(it.consumer).name.to_vec(), it.deliveries))
                .collect();
            let expected: Vec<_> = model
                .iter()
                .map(|(id, (owner, deliveries))| (*id, names[*owner].to_vec(), *deliveries))
                .collect();
            prop_assert_eq!(found, expected);
            for consumer in group.consumers() {
                let owned = |(_, (owner, _)): &(&StreamId, &(usize, i64))| {
                    names[*owner] == consumer.name.as_ref()
                };
                let ids: Vec<_> = model.iter().filter(owned).map(|(id, _)| *id).collect();
                prop_assert_eq!(consumer.pending().iter().map(|(id, ())| *id).collect::<Vec<_>>(), ids);
            }
        }
    }
}

#[test]
fn an_entry_like_the_others_takes_two_bytes_besides_its_value() {
    let limits = NodeLimits { bytes: 4096, entries: 100 };
    let mut entries = Entries::default();
    let piece = |index: usize| [&b"field"[..], b"0123456789"][index];
    for number in 0..10_000 {
        Edit::unnoted(&mut entries)
            .add(NewId::Now(1_700_000_000_000 + number / 2), 1, piece, limits)
            .expect("above");
    }
    assert!(entries.heap_bytes() < 10_000 * 15, "{}", entries.heap_bytes());
}

#[test]
fn a_group_orders_its_entries_before_there_are_very_many() {
    let mut group = Group::new(StreamId::MIN, None);
    let (consumer, _) = group.meet_consumer(b"a", 0);
    for number in 1..=2000 {
        let pending = Pending { consumer, delivered_ms: number, deliveries: 1 };
        group.assign(StreamId { ms: number as u64, seq: 0 }, pending);
        let is_ordered = !group.may_have_future(2000);
        assert_eq!(is_ordered, number >= 1000, "{number} entries");
    }
}
