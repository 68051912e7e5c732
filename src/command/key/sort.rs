//! SORT: the elements of a list, set or sorted set in another order, or what other keys hold for them.
//!
//! The elements are copied together first, for the keys that BY and GET name are looked up as any other, which may delete one
//! that has expired. Then come the weights, the order, and last what GET asks for: into the reply, or into a list.

use std::cmp::Ordering;
use std::ops::Range;

use crate::collections::packed::Element;
use crate::command::list;
use crate::config::KeyspaceEvents;
use crate::error::CommandError;
use crate::gate::context::{CommandResult, Context, Origin, Outcome};
use crate::gate::spec::{
    Begin, Categories, CommandSpec, Find, Flags, KeyFlags, KeySpec, key, spec,
};
use crate::keyspace::{Expiry, Key, Keyspace};
use crate::resp::args::Args;
use crate::resp::number::parse_f64;
use crate::types::hash::Hash;
use crate::types::list::{End, List};
use crate::types::set::Set;
use crate::types::sorted_set::SortedSet;
use crate::types::{Collection, type_name};

const READ: KeyFlags = KeyFlags::RO.union(KeyFlags::ACCESS);

const NAMED_BY_PATTERN: KeySpec = KeySpec {
    begin: Begin::Unknown,
    find: Find::Unknown,
    flags: READ,
    notes: Some(
        "For the optional BY/GET keyword. It is marked 'unknown' because the key names derive from the content of the key \
         we sort",
    ),
};

const SORTED_TYPES: Categories = Categories::SET
    .union(Categories::SORTEDSET)
    .union(Categories::LIST)
    .union(Categories::DANGEROUS);

const COST: &str =
    "O(N+M*log(M)) where N is the number of elements and M that of those returned; O(N) unsorted";

pub const COMMANDS: &[CommandSpec] = &[
    spec("SORT", sort)
        .at_least(2)
        .keys(&[
            key(1, READ),
            NAMED_BY_PATTERN,
            KeySpec {
                begin: Begin::Unknown,
                find: Find::Unknown,
                flags: KeyFlags::OW.union(KeyFlags::UPDATE),
                notes: Some(
                    "For the optional STORE keyword. It is marked 'unknown' because the keyword can appear anywhere in the \
                     argument array",
                ),
            },
        ])
        .flags(Flags::WRITE.union(Flags::DENYOOM).union(Flags::MOVABLEKEYS))
        .categories(SORTED_TYPES)
        .since("1.0.0")
        .docs(
            "key [BY pattern] [LIMIT offset count] [GET pattern [GET pattern ...]] [ASC | DESC] [ALPHA] \
             [STORE destination]",
            "Sorts the elements of a list, set or sorted set, and returns or stores them.",
            COST,
        ),
    spec("SORT_RO", sort_ro)
        .at_least(2)
        .keys(&[key(1, READ), NAMED_BY_PATTERN])
        .flags(Flags::READONLY.union(Flags::MOVABLEKEYS))
        .categories(SORTED_TYPES)
        .since("7.0.0")
        .docs(
            "key [BY pattern] [LIMIT offset count] [GET pattern [GET pattern ...]] [ASC | DESC] [ALPHA]",
            "Sorts the elements of a list, set or sorted set, and returns them.",
            COST,
        ),
];

const NOT_A_SCORE: CommandError =
    CommandError::Text("ERR One or more scores can't be converted into double");

/// A name with a `*` in it, where an element is put in: of a key, or of a field of a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pattern<'a> {
    /// `#`: the element itself.
    Element,
    /// Without `*`: no key.
    Nothing,
    Key {
        before: &'a [u8],
        behind: &'a [u8],
        /// What follows `->`.
        field: Option<&'a [u8]>,
    },
}

impl<'a> Pattern<'a> {
    /// Looks for `*` and `->` up to the first NUL, as the peers do.
    fn parse(text: &'a [u8]) -> Self {
        let shown = text.split(|&byte| byte == 0).next().unwrap_or_default();
        if shown == b"#" {
            return Pattern::Element;
        }
        let Some(star) = shown.iter().position(|&byte| byte == b'*') else {
            return Pattern::Nothing;
        };
        let arrow = shown[star + 1..].windows(2).position(|pair| pair == b"->");
        let arrow = arrow.map(|at| star + 1 + at).filter(|&arrow| arrow + 2 < shown.len());
        Pattern::Key {
            before: &text[..star],
            behind: &text[star + 1..arrow.unwrap_or(text.len())],
            field: arrow.map(|arrow| &text[arrow + 2..]),
        }
    }
}

/// What SORT was asked for: `[BY pattern] [LIMIT offset count] [GET pattern [GET pattern ...]] [ASC | DESC] [ALPHA]
/// [STORE destination]`, in any order; the last of each counts, but every GET.
struct SortOptions<'a> {
    /// Weights instead of the elements themselves.
    by: Option<Pattern<'a>>,
    /// BY named no key: the elements stay as they are.
    keeps_order: bool,
    offset: i64,
    /// Negative: all.
    count: i64,
    gets: Vec<Pattern<'a>>,
    descending: bool,
    alphabetic: bool,
    /// The argument that is the destination.
    store: Option<usize>,
}

impl<'a> SortOptions<'a> {
    fn parse(args: Args<'a>, may_store: bool) -> Result<Self, CommandError> {
        let mut options = SortOptions {
            by: None,
            keeps_order: false,
            offset: 0,
            count: -1,
            gets: Vec::new(),
            descending: false,
            alphabetic: false,
            store: None,
        };
        let mut arguments = args.cursor(2);
        while !arguments.is_at_end() {
            let behind = arguments.remaining() - 1;
            if arguments.take_word("ASC") {
                options.descending = false;
            } else if arguments.take_word("DESC") {
                options.descending = true;
            } else if arguments.take_word("ALPHA") {
                options.alphabetic = true;
            } else if behind >= 2 && arguments.take_word("LIMIT") {
                options.offset = arguments.take_integer()?;
                options.count = arguments.take_integer()?;
            } else if may_store && behind >= 1 && arguments.take_word("STORE") {
                options.store = Some(arguments.position());
                arguments.take()?;
            } else if behind >= 1 && arguments.take_word("BY") {
                let pattern = Pattern::parse(arguments.take()?);
                // Once a BY has said so, no later one sorts.
                options.keeps_order |= !matches!(pattern, Pattern::Key { .. });
                options.by = Some(pattern);
            } else if behind >= 1 && arguments.take_word("GET") {
                options.gets.push(Pattern::parse(arguments.take()?));
            } else {
                return Err(CommandError::Syntax);
            }
        }
        Ok(options)
    }

    /// Which of `len` sorted elements are wanted.
    fn range(&self, len: usize) -> Range<usize> {
        let limit = len as i64;
        let start = self.offset.clamp(0, limit);
        let count = if self.count < 0 { limit } else { self.count.min(limit) };
        start as usize..(start + count).min(limit) as usize
    }
}

/// An element to be sorted; its bytes, and those of its weight, lie in [`Elements`].
#[derive(Clone, Debug)]
struct Item {
    text: Range<usize>,
    weight: Weight,
}

#[derive(Clone, Debug)]
enum Weight {
    Number(f64),
    /// None: there is no such key.
    Text(Option<Range<usize>>),
    /// The element is its own.
    Same,
    /// The element is its own, and is this number.
    Integer(i64),
}

/// The elements in their order.
#[derive(Default)]
struct Elements {
    bytes: Vec<u8>,
    items: Vec<Item>,
}

impl Elements {
    fn push(&mut self, text: &[u8], weight: Weight) {
        let text = append(&mut self.bytes, text);
        self.items.push(Item { text, weight });
    }

    /// Adds an element of a list or a set. One that lies there as an integer is its own weight, unless texts are compared.
    fn push_element(&mut self, element: Element<'_>) {
        let weight = match element {
            Element::Integer(value) => Weight::Integer(value),
            Element::Bytes(_) => Weight::Same,
        };
        self.push(element.text().as_ref(), weight);
    }

    /// What a key holds that can be sorted; the elements of lists and sorted sets in their order, from the end if
    /// `reversed`. Of an absent key none; WRONGTYPE for any other type.
    fn load(db: &mut Keyspace, key: Key<'_>, reversed: bool) -> Result<Self, CommandError> {
        let mut elements = Elements::default();
        let Some(slot) = db.find_for_read(key) else {
            return Ok(elements);
        };
        let entry = db.entry(slot);
        if let Some(list) = List::view(entry.value()) {
            let mut push = |element: Element<'_>| elements.push_element(element);
            if reversed {
                list.backwards(list.len()).for_each(&mut push);
            } else {
                list.forwards(0).for_each(&mut push);
            }
        } else if let Some(set) = Set::view(entry.value()) {
            set.for_each(|member| elements.push_element(member));
        } else if let Some(set) = SortedSet::view(entry.value()) {
            set.each(0..set.len(), reversed, |_, member| elements.push(member, Weight::Same));
        } else {
            return Err(CommandError::WrongType);
        }
        Ok(elements)
    }

    /// Finds each element's weight. Every one of them is looked up, even if one is no number.
    fn weigh(
        &mut self,
        db: &mut Keyspace,
        by: Option<Pattern<'_>>,
        alphabetic: bool,
    ) -> Result<(), CommandError> {
        let mut result = Ok(());
        let mut found = Vec::new();
        for item in &mut self.items {
            let text = match by {
                None if alphabetic => {
                    item.weight = Weight::Same;
                    continue;
                }
                None if let Weight::Integer(value) = item.weight => {
                    item.weight = Weight::Number(value as f64);
                    continue;
                }
                None => &self.bytes[item.text.clone()],
                Some(pattern) => {
                    found.clear();
                    if !look_up(db, pattern, &self.bytes[item.text.clone()], &mut found) {
                        item.weight =
                            if alphabetic { Weight::Text(None) } else { Weight::Number(0.0) };
                        continue;
                    }
                    &found
                }
            };
            item.weight = if alphabetic {
                Weight::Text(Some(append(&mut self.bytes, &found)))
            } else {
                Weight::Number(parse_score(text).unwrap_or_else(|error| {
                    result = Err(error);
                    0.0
                }))
            };
        }
        result
    }

    /// Puts the elements of `wanted`, a range of the sorted ones, in order. Where weights are equal, numbers leave it to the
    /// elements, texts to the order there was.
    fn sort(&mut self, descending: bool, wanted: &Range<usize>) {
        let bytes = &self.bytes;
        let text = |range: &Range<usize>| &bytes[range.clone()];
        let order = |a: &Item, b: &Item| {
            let order = match (&a.weight, &b.weight) {
                (Weight::Number(first), Weight::Number(second)) => {
                    match first.partial_cmp(second) {
                        Some(order @ (Ordering::Less | Ordering::Greater)) => order,
                        _ => text(&a.text).cmp(text(&b.text)),
                    }
                }
                (Weight::Text(first), Weight::Text(second)) => {
                    first.as_ref().map(text).cmp(&second.as_ref().map(text))
                }
                _ => text(&a.text).cmp(text(&b.text)),
            };
            if descending { order.reverse() } else { order }
        };
        // Elements lie in the order there was, so that their places break ties.
        let place = |item: &Item| (item.text.start, item.text.end);
        let total = |a: &Item, b: &Item| order(a, b).then_with(|| place(a).cmp(&place(b)));
        let items = &mut self.items[..];
        if wanted.is_empty() {
            return;
        }
        if wanted.end < items.len() {
            items.select_nth_unstable_by(wanted.end, total);
        }
        let items = &mut items[..wanted.end];
        if wanted.start > 0 {
            items.select_nth_unstable_by(wanted.start, total);
        }
        items[wanted.start..].sort_unstable_by(total);
    }
}

/// Appends bytes; where they lie.
fn append(bytes: &mut Vec<u8>, text: &[u8]) -> Range<usize> {
    let start = bytes.len();
    bytes.extend_from_slice(text);
    start..bytes.len()
}

/// A weight as `strtod` reads it: blanks before it are skipped, nothing at all is 0, and a NUL ends it.
fn parse_score(text: &[u8]) -> Result<f64, CommandError> {
    let text = text.split(|&byte| byte == 0).next().unwrap_or_default();
    if text.is_empty() {
        return Ok(0.0);
    }
    parse_f64(text.trim_ascii_start()).ok_or(NOT_A_SCORE)
}

/// Appends what a pattern stands for to `found`; false if there is no such string or field.
fn look_up(db: &mut Keyspace, pattern: Pattern<'_>, element: &[u8], found: &mut Vec<u8>) -> bool {
    let (before, behind, field) = match pattern {
        Pattern::Element => {
            found.extend_from_slice(element);
            return true;
        }
        Pattern::Nothing => return false,
        Pattern::Key { before, behind, field } => (before, behind, field),
    };
    let name = [before, element, behind].concat();
    let Some(slot) = db.find_for_read(db.key(&name)) else {
        return false;
    };
    let Some(field) = field else {
        let Ok(string) = db.string_at(slot) else { return false };
        found.extend_from_slice(string);
        return true;
    };
    let now = db.now();
    let Ok(hash) = db.view::<Hash>(slot) else { return false };
    match hash.get(field, &now) {
        Some(value) => {
            found.extend_from_slice(value.value.as_ref());
            true
        }
        None => false,
    }
}

/// `SORT key [options]`: an array; with STORE, the number of elements stored.
fn sort(ctx: &mut Context<'_>) -> CommandResult {
    run(ctx, true)
}

/// `SORT_RO key [options]`: the same without STORE.
fn sort_ro(ctx: &mut Context<'_>) -> CommandResult {
    run(ctx, false)
}

fn run(ctx: &mut Context<'_>, may_store: bool) -> CommandResult {
    let mut options = SortOptions::parse(ctx.args, may_store)?;
    let reversed = options.keeps_order && options.descending;
    let mut elements = Elements::load(ctx.db, ctx.key(1), reversed)?;
    let is_seen_once = options.store.is_none() && ctx.origin != Origin::Script;
    if options.keeps_order && !is_seen_once && is_set(ctx.db, ctx.key(1)) {
        // A set has no order to keep, and what is stored, or what a script does, should not depend on where members lie.
        options = SortOptions { keeps_order: false, alphabetic: true, by: None, ..options };
    }
    if !options.keeps_order {
        elements.weigh(ctx.db, options.by, options.alphabetic)?;
        elements.sort(options.descending, &options.range(elements.items.len()));
    }
    let Elements { bytes, items } = &elements;
    let items = &items[options.range(items.len())];
    let texts = items.iter().map(|item| &bytes[item.text.clone()]);
    match options.store {
        None => reply_all(ctx, &options.gets, texts),
        Some(destination) => store_all(ctx, destination, &options.gets, texts),
    }
    Ok(Outcome::Replied)
}

fn is_set(db: &mut Keyspace, key: Key<'_>) -> bool {
    db.find(key).is_some_and(|slot| type_name(db.entry(slot).value()) == "set")
}

fn reply_all<'e>(
    ctx: &mut Context<'_>,
    gets: &[Pattern<'_>],
    texts: impl ExactSizeIterator<Item = &'e [u8]>,
) {
    ctx.reply.array(texts.len() * gets.len().max(1));
    let mut found = Vec::new();
    for text in texts {
        if gets.is_empty() {
            ctx.reply.bulk(text);
        }
        for &pattern in gets {
            found.clear();
            if look_up(ctx.db, pattern, text, &mut found) {
                ctx.reply.bulk(&found);
            } else {
                ctx.reply.null();
            }
        }
    }
}

/// Stores a list; what is not there counts as an empty string.
fn store_all<'e>(
    ctx: &mut Context<'_>,
    destination: usize,
    gets: &[Pattern<'_>],
    texts: impl Iterator<Item = &'e [u8]>,
) {
    let limits = list::limits(ctx);
    let mut result = List::default();
    let mut push = |text: &[u8]| {
        result.make_room(text.len(), 1, &limits);
        result.push(End::Back, text, &limits);
    };
    let mut found = Vec::new();
    for text in texts {
        if gets.is_empty() {
            push(text);
        }
        for &pattern in gets {
            found.clear();
            look_up(ctx.db, pattern, text, &mut found);
            push(&found);
        }
    }
    let key = ctx.key(destination);
    let (slot, len) = (ctx.db.find(key), result.len());
    if len > 0 {
        ctx.db.set_collection(slot, key, result, Expiry::Clear);
        ctx.db.changed_by(len as u64, KeyspaceEvents::LIST, "sortstore", key.bytes);
    } else if let Some(slot) = slot {
        ctx.db.delete_at(slot, key, "del");
    }
    ctx.reply.integer(len as i64);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_name_keys_and_fields() {
        let key = |before, behind, field| Pattern::Key { before, behind, field };
        for (text, pattern) in [
            (&b"#"[..], Pattern::Element),
            (b"nosort", Pattern::Nothing),
            (b"##", Pattern::Nothing),
            (b"w_*", key(b"w_", b"", None)),
            (b"*", key(b"", b"", None)),
            (b"a*b*", key(b"a", b"b*", None)),
            (b"h_*->f", key(b"h_", b"", Some(b"f"))),
            (b"h_*x->f->g", key(b"h_", b"x", Some(b"f->g"))),
            (b"h_*->", key(b"h_", b"->", None)),
            (b"h->*", key(b"h->", b"", None)),
            (b"x\0*", Pattern::Nothing),
        ] {
            assert_eq!(Pattern::parse(text), pattern, "{}", text.escape_ascii());
        }
    }

    #[test]
    fn weights_are_read_as_strtod_reads_them() {
        for (text, score) in [
            (&b""[..], Some(0.0)),
            (b"1.5", Some(1.5)),
            (b" \t-2", Some(-2.0)),
            (b"0x10", Some(16.0)),
            (b"inf", Some(f64::INFINITY)),
            (b"1\0x", Some(1.0)),
            (b"nan", None),
            (b" ", None),
            (b"1 ", None),
            (b"x", None),
            (b"1e999", None),
        ] {
            assert_eq!(parse_score(text).ok(), score, "{}", text.escape_ascii());
        }
    }
}
