//! SORT: sorts the elements of a list, set or sorted set, possibly by other keys, or returns other
//! keys for them.
//!
//! The elements are copied first, because looking up the keys of BY and GET needs the keyspace;
//! without sorting, only those that LIMIT leaves.
//! Then come the weights, as borrowed texts if they are texts, sorting, and finally the values of
//! GET: into the reply, or into a list.

use std::cmp::Ordering;
use std::ops::Range;

use crate::collections::hash_slot::HashSlot;
use crate::collections::packed::{Element, Text};
use crate::collections::table::Slot;
use crate::command::list;
use crate::config::KeyspaceEvents;
use crate::error::CommandError;
use crate::gate::cluster::is_as_valkey;
use crate::gate::users;
use crate::keyspace::{Expiry, Key, Keyspace};
use crate::resp::args::{Args, before_nul};
use crate::resp::number::parse_f64;
use crate::state::context::{CommandResult, Context, Origin, Outcome};
use crate::state::spec::{
    Begin, Categories, CommandSpec, Find, Flags, KeyFlags, KeyRule, KeySpec, key, spec,
};
use crate::types::hash::Hash;
use crate::types::journal::Edit;
use crate::types::list::{End, List};
use crate::types::set::Set;
use crate::types::sorted_set::SortedSet;
use crate::types::string::StringView;
use crate::types::{Collection, type_name};

const NAMED_BY_PATTERN: KeySpec = KeySpec {
    begin: Begin::Unknown,
    find: Find::Unknown,
    flags: KeyFlags::RO_ACCESS,
    notes: Some(
        "For the optional BY/GET keyword. It is marked 'unknown' because the key names derive from the content of the key \
         we sort",
    ),
};

const STORED: KeySpec = KeySpec {
    begin: Begin::Unknown,
    find: Find::Unknown,
    flags: KeyFlags::OW_UPDATE,
    notes: Some(
        "For the optional STORE keyword. It is marked 'unknown' because the keyword can appear anywhere in the argument array",
    ),
};

const SORTED_TYPES: Categories = Categories::SET
    .union(Categories::SORTEDSET)
    .union(Categories::LIST)
    .union(Categories::DANGEROUS);

const COST: &str =
    "O(N+M*log(M)) where N is the number of elements and M that of those returned; O(M) unsorted";

#[rustfmt::skip]
pub const COMMANDS: &[CommandSpec] = &[
    spec("SORT", sort).key_rule(KeyRule::SortDestination).at_least(2)
        .keys(&[key(1, KeyFlags::RO_ACCESS), NAMED_BY_PATTERN, STORED])
        .flags(Flags::WRITE.union(Flags::DENYOOM).union(Flags::MOVABLEKEYS)).categories(SORTED_TYPES).since("1.0.0")
        .docs("key [BY pattern] [LIMIT offset count] [GET pattern [GET pattern ...]] [ASC | DESC] [ALPHA] [STORE destination]",
            "Sorts the elements of a list, set or sorted set, and returns or stores them.", COST),
    spec("SORT_RO", sort_ro).at_least(2).keys(&[key(1, KeyFlags::RO_ACCESS), NAMED_BY_PATTERN]).flags(Flags::READONLY.union(Flags::MOVABLEKEYS))
        .categories(SORTED_TYPES).since("7.0.0")
        .docs("key [BY pattern] [LIMIT offset count] [GET pattern [GET pattern ...]] [ASC | DESC] [ALPHA]",
            "Sorts the elements of a list, set or sorted set, and returns them.", COST),
];

const NOT_A_SCORE: CommandError =
    CommandError::Text("ERR One or more scores can't be converted into double");

const BY_DENIED: CommandError =
    CommandError::Text("ERR BY option of SORT denied due to insufficient ACL permissions.");
const GET_DENIED: CommandError =
    CommandError::Text("ERR GET option of SORT denied due to insufficient ACL permissions.");

const BY_IN_CLUSTER: CommandError =
    CommandError::Text("ERR BY option of SORT denied in Cluster mode.");
const GET_IN_CLUSTER: CommandError =
    CommandError::Text("ERR GET option of SORT denied in Cluster mode.");
const BY_ELSEWHERE: CommandError = CommandError::Text(
    "ERR BY option of SORT denied in Cluster mode when keys formed by the pattern may be in different slots.",
);
const GET_ELSEWHERE: CommandError = CommandError::Text(
    "ERR GET option of SORT denied in Cluster mode when keys formed by the pattern may be in different slots.",
);

/// An option with a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PatternUse {
    By,
    Get,
}

/// The name of a key or of a hash's field, with `*`, which an element replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pattern<'a> {
    /// `#`: the element itself.
    Element,
    /// Without `*`: no key.
    Nothing,
    Key {
        before: &'a [u8],
        behind: &'a [u8],
        /// The part after `->`.
        field: Option<&'a [u8]>,
    },
}

impl<'a> Pattern<'a> {
    /// Finds `*` and `->` up to the first NUL, as Redis does.
    fn parse(text: &'a [u8]) -> Self {
        let shown = before_nul(text);
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

    /// Looks up the key for an element.
    fn find(self, keyspace: &mut Keyspace, element: &[u8]) -> Option<Slot> {
        let Pattern::Key { before, behind, .. } = self else { return None };
        let name = [before, element, behind].concat();
        keyspace.find_for_read(keyspace.key(&name))
    }

    /// Reads the string, or hash field, at a slot.
    fn read(self, keyspace: &Keyspace, slot: Slot) -> Option<Named<'_>> {
        match self {
            Pattern::Key { field: Some(field), .. } => {
                let hash = keyspace.view::<Hash>(slot).ok()?;
                hash.get(field, &keyspace.now()).map(|found| Named::Text(found.value))
            }
            _ => keyspace.string_at(slot).ok().map(Named::String),
        }
    }

    /// The value for an element; None if there is no such string or field.
    fn look_up<'d>(self, keyspace: &'d mut Keyspace, element: &'d [u8]) -> Option<Named<'d>> {
        if self == Pattern::Element {
            return Some(Named::Text(Text::Bytes(element)));
        }
        let slot = self.find(keyspace, element)?;
        self.read(keyspace, slot)
    }
}

/// The value that a pattern names for an element: borrowed, as many elements may name the same long
/// string.
enum Named<'d> {
    Text(Text<'d>),
    String(StringView<'d>),
}

impl Named<'_> {
    fn view(&self) -> StringView<'_> {
        match self {
            Named::Text(text) => text.as_ref().into(),
            Named::String(text) => *text,
        }
    }
}

/// SORT's options: `[BY pattern] [LIMIT offset count] [GET pattern [GET pattern ...]] [ASC | DESC]
/// [ALPHA] [STORE destination]`, in any order; the last of each counts, except GET, of which every
/// one counts.
struct SortOptions<'a> {
    /// Sort by these instead of by the elements.
    by: Option<Pattern<'a>>,
    /// BY names no key: elements are not sorted.
    keeps_order: bool,
    offset: i64,
    /// Negative: all.
    count: i64,
    gets: Vec<Pattern<'a>>,
    descending: bool,
    alphabetic: bool,
    /// The index of the destination argument.
    store: Option<usize>,
}

impl<'a> SortOptions<'a> {
    /// `check` is called for each GET, and for BY if its pattern names keys.
    fn parse(
        args: Args<'a>,
        may_store: bool,
        check: impl Fn(PatternUse, &[u8]) -> Result<(), CommandError>,
    ) -> Result<Self, CommandError> {
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
                let text = arguments.take()?;
                let pattern = Pattern::parse(text);
                // After such a BY, a later one does not sort either.
                let names_keys = matches!(pattern, Pattern::Key { .. });
                if names_keys {
                    check(PatternUse::By, text)?;
                }
                options.keeps_order |= !names_keys;
                options.by = Some(pattern);
            } else if behind >= 1 && arguments.take_word("GET") {
                let text = arguments.take()?;
                check(PatternUse::Get, text)?;
                options.gets.push(Pattern::parse(text));
            } else {
                return Err(CommandError::Syntax);
            }
        }
        Ok(options)
    }

    /// Whether keys named by patterns were looked up.
    fn names_keys(&self) -> bool {
        let names_key = |pattern: &Pattern<'_>| matches!(pattern, Pattern::Key { .. });
        self.by.iter().chain(&self.gets).any(names_key)
    }

    /// The range of the `len` sorted elements that is wanted.
    fn range(&self, len: usize) -> Range<usize> {
        let limit = len as i64;
        let start = self.offset.clamp(0, limit);
        let count = if self.count < 0 { limit } else { self.count.min(limit) };
        start as usize..(start + count).min(limit) as usize
    }
}

/// The sort keys, in the elements' order.
enum Weights<'d> {
    Numbers(Vec<f64>),
    /// None: there is no such key.
    Texts(Vec<Option<Named<'d>>>),
    /// Sorted by the elements themselves.
    Same,
}

/// The elements in their original order.
#[derive(Default)]
struct Elements {
    bytes: Vec<u8>,
    /// Each element's range in `bytes`, and its value if it is stored as an integer.
    items: Vec<(Range<usize>, Option<i64>)>,
}

impl Elements {
    fn push(&mut self, text: &[u8], number: Option<i64>) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(text);
        self.items.push((start..self.bytes.len(), number));
    }

    /// Adds an element of a list or set. An integer is its own weight, unless ALPHA is given.
    fn push_element(&mut self, element: Element<'_>) {
        let number = match element {
            Element::Integer(value) => Some(value),
            Element::Bytes(_) => None,
        };
        self.push(element.text().as_ref(), number);
    }

    /// The elements of a key's list, set or sorted set that `choose` takes, given the number of
    /// all: a range of their order, which begins at the end if `is_reversed`, but a set has only
    /// one. Others are not copied. Empty for an absent key; WRONGTYPE for other types.
    fn load(
        keyspace: &mut Keyspace,
        key: Key<'_>,
        is_reversed: bool,
        choose: impl FnOnce(usize) -> Range<usize>,
    ) -> Result<Self, CommandError> {
        let mut elements = Elements::default();
        let Some(slot) = keyspace.find_for_read(key) else {
            return Ok(elements);
        };
        let entry = keyspace.entry(slot);
        if let Some(list) = List::view(entry.value()) {
            let range = choose(list.len());
            let push = |element: Element<'_>| elements.push_element(element);
            if is_reversed {
                list.backwards(list.len() - range.start).take(range.len()).for_each(push);
            } else {
                list.forwards(range.start).take(range.len()).for_each(push);
            }
        } else if let Some(set) = Set::view(entry.value()) {
            let range = choose(set.len());
            let mut place = 0;
            set.visit(|member| {
                if range.contains(&place) {
                    elements.push_element(member);
                }
                place += 1;
                place < range.end
            });
        } else if let Some(set) = SortedSet::view(entry.value()) {
            let Range { start, end } = choose(set.len());
            let ranks = if is_reversed { set.len() - end..set.len() - start } else { start..end };
            set.each(ranks, is_reversed, |_, member| elements.push(member, None));
        } else {
            return Err(CommandError::WrongType);
        }
        Ok(elements)
    }

    fn texts(&self) -> impl Iterator<Item = &[u8]> {
        self.items.iter().map(|(range, _)| &self.bytes[range.clone()])
    }

    /// Looks up each element's weight, all of them even if one is no number.
    fn weights<'d>(
        &self,
        keyspace: &'d mut Keyspace,
        by: Option<Pattern<'_>>,
        alphabetic: bool,
    ) -> Result<Weights<'d>, CommandError> {
        let Some(pattern) = by else {
            if alphabetic {
                return Ok(Weights::Same);
            }
            let number = |(range, number): &(Range<usize>, Option<i64>)| match number {
                Some(value) => Ok(*value as f64),
                None => parse_score(&self.bytes[range.clone()]),
            };
            let mut numbers = Vec::with_capacity(self.items.len());
            for item in &self.items {
                numbers.push(number(item)?);
            }
            return Ok(Weights::Numbers(numbers));
        };
        if alphabetic {
            // First all keys are looked up, which moves nothing; then the texts are borrowed, as
            // many elements may name the same long one.
            let slots: Vec<Option<Slot>> =
                self.texts().map(|text| pattern.find(keyspace, text)).collect();
            let keyspace: &'d Keyspace = keyspace;
            let read = |slot: Slot| pattern.read(keyspace, slot);
            return Ok(Weights::Texts(slots.into_iter().map(|slot| slot.and_then(read)).collect()));
        }
        let mut result = Ok(());
        let weight = |text| match pattern.look_up(keyspace, text) {
            Some(found) => parse_score(&found.view().whole()).unwrap_or_else(|error| {
                result = Err(error);
                0.0
            }),
            None => 0.0,
        };
        let weights = self.texts().map(weight).collect();
        result.map(|()| Weights::Numbers(weights))
    }

    /// The elements of the range `wanted` of the sorted order. With equal weights, numbers are
    /// sorted by element, texts keep their order.
    fn sorted(
        &self,
        weights: Weights<'_>,
        descending: bool,
        wanted: Range<usize>,
    ) -> Vec<Range<usize>> {
        let text = |place: usize| &self.bytes[self.items[place].0.clone()];
        let places = match weights {
            Weights::Numbers(numbers) => {
                order_by(numbers, descending, wanted, |(first, a), (second, b)| {
                    match first.partial_cmp(second) {
                        Some(order @ (Ordering::Less | Ordering::Greater)) => order,
                        _ => text(*a).cmp(text(*b)),
                    }
                })
            }
            Weights::Texts(texts) => {
                order_by(texts, descending, wanted, |(first, _), (second, _)| {
                    first.as_ref().map(Named::view).cmp(&second.as_ref().map(Named::view))
                })
            }
            Weights::Same => {
                let same = vec![(); self.items.len()];
                order_by(same, descending, wanted, |(_, a), (_, b)| text(*a).cmp(text(*b)))
            }
        };
        places.into_iter().map(|place| self.items[place].0.clone()).collect()
    }
}

/// The indices of the range `wanted` of the sorted weights. Stable.
fn order_by<W>(
    weights: Vec<W>,
    descending: bool,
    wanted: Range<usize>,
    compare: impl Fn(&(W, usize), &(W, usize)) -> Ordering,
) -> Vec<usize> {
    if wanted.is_empty() {
        return Vec::new();
    }
    let total = |a: &(W, usize), b: &(W, usize)| {
        let order = compare(a, b);
        let order = if descending { order.reverse() } else { order };
        order.then_with(|| a.1.cmp(&b.1))
    };
    let mut items: Vec<(W, usize)> = weights.into_iter().zip(0..).collect();
    if wanted.end < items.len() {
        items.select_nth_unstable_by(wanted.end, total);
    }
    let items = &mut items[..wanted.end];
    if wanted.start > 0 {
        items.select_nth_unstable_by(wanted.start, total);
    }
    let items = &mut items[wanted.start..];
    items.sort_unstable_by(total);
    items.iter().map(|&(_, place)| place).collect()
}

/// Parses a weight as `strtod`: leading white space is skipped, the empty text is 0, and a NUL ends
/// it.
fn parse_score(text: &[u8]) -> Result<f64, CommandError> {
    let text = before_nul(text);
    if text.is_empty() {
        return Ok(0.0);
    }
    parse_f64(text.trim_ascii_start()).ok_or(NOT_A_SCORE)
}

/// `SORT key [options]`: an array; with STORE, the number of elements stored.
fn sort(ctx: &mut Context<'_>) -> CommandResult {
    run(ctx, true)
}

/// `SORT_RO key [options]`: the same without STORE.
fn sort_ro(ctx: &mut Context<'_>) -> CommandResult {
    run(ctx, false)
}

/// Checks that a request may look up the keys that a pattern names: in a cluster they must be in
/// the sorted key's slot.
fn check_option(ctx: &Context<'_>, option: PatternUse, pattern: &[u8]) -> Result<(), CommandError> {
    let is_by = option == PatternUse::By;
    if ctx.core.state.node.cluster.is_some() && !ctx.is_repeated() {
        let config = &ctx.core.state.config;
        match is_as_valkey(config) || config.compatible_with.is_redis_8() {
            false => return Err(if is_by { BY_IN_CLUSTER } else { GET_IN_CLUSTER }),
            true if is_by || pattern != b"#" => {
                if HashSlot::of_pattern(pattern) != Some(HashSlot::of(ctx.args.get(1))) {
                    return Err(if is_by { BY_ELSEWHERE } else { GET_ELSEWHERE });
                }
            }
            true => {}
        }
    }
    match users::may_read_any_key(&ctx.core.state, ctx.caller.client(), ctx.command, ctx.args) {
        true => Ok(()),
        false => Err(if is_by { BY_DENIED } else { GET_DENIED }),
    }
}

fn run(ctx: &mut Context<'_>, may_store: bool) -> CommandResult {
    let check = |option, pattern: &[u8]| check_option(ctx, option, pattern);
    let mut options = SortOptions::parse(ctx.args, may_store, check)?;
    let key = ctx.key(1);
    let is_seen_once = options.store.is_none() && ctx.origin != Origin::Script;
    if options.keeps_order && !is_seen_once && is_set(&mut ctx.core.keyspace, key) {
        // A set is unordered, and neither a stored result nor a script's work may depend on its
        // internal order.
        options = SortOptions { keeps_order: false, alphabetic: true, by: None, ..options };
    }
    let keeps_order = options.keeps_order;
    let choose = |len| if keeps_order { options.range(len) } else { 0..len };
    let is_reversed = keeps_order && options.descending;
    let elements = Elements::load(&mut ctx.core.keyspace, key, is_reversed, choose)?;
    let ranges: Vec<Range<usize>> = if keeps_order {
        elements.items.iter().map(|(range, _)| range.clone()).collect()
    } else {
        let weights = elements.weights(&mut ctx.core.keyspace, options.by, options.alphabetic)?;
        let wanted = options.range(elements.items.len());
        elements.sorted(weights, options.descending, wanted)
    };
    let texts = ranges.into_iter().map(|range| &elements.bytes[range]);
    match options.store {
        None => reply_all(ctx, &options.gets, texts),
        Some(destination) => store_all(ctx, destination, &options, texts),
    }
    Ok(Outcome::Replied)
}

fn is_set(keyspace: &mut Keyspace, key: Key<'_>) -> bool {
    keyspace.find(key).is_some_and(|slot| type_name(keyspace.entry(slot).value()) == "set")
}

fn reply_all<'e>(
    ctx: &mut Context<'_>,
    gets: &[Pattern<'_>],
    texts: impl ExactSizeIterator<Item = &'e [u8]>,
) {
    ctx.reply.array(texts.len() * gets.len().max(1));
    for text in texts {
        if gets.is_empty() {
            ctx.reply.bulk(text);
        }
        for pattern in gets {
            match pattern.look_up(&mut ctx.core.keyspace, text) {
                Some(found) => ctx.reply.bulk(&found.view().whole()),
                None => ctx.reply.null(),
            }
        }
    }
}

/// Stores a list; missing values become empty strings.
fn store_all<'e>(
    ctx: &mut Context<'_>,
    destination: usize,
    options: &SortOptions<'_>,
    texts: impl Iterator<Item = &'e [u8]>,
) {
    let gets = &options.gets;
    let limits = list::limits(ctx);
    let mut result = List::default();
    let mut push = |text: &[u8]| {
        let mut result = Edit::unnoted(&mut result);
        result.make_room(text.len(), 1, &limits);
        result.push(End::Back, text, &limits);
    };
    for text in texts {
        if gets.is_empty() {
            push(text);
        }
        for pattern in gets {
            let found = pattern.look_up(&mut ctx.core.keyspace, text);
            push(&found.as_ref().map_or_else(Default::default, |found| found.view().whole()));
        }
    }
    let key = ctx.key(destination);
    let (slot, len) = (ctx.core.keyspace.find(key), result.len());
    if len > 0 {
        ctx.core.keyspace.set_collection(slot, key, result, Expiry::Clear);
        ctx.core.keyspace.changed_by(len as u64, KeyspaceEvents::LIST, "sortstore", key.bytes);
    } else if let Some(slot) = slot {
        ctx.core.keyspace.delete_at(slot, key, "del");
    }
    if options.names_keys() {
        repeat_stored(ctx, key, slot.is_some());
    }
    ctx.reply.integer(len as i64);
}

/// Repeats the stored list instead of the request: members with equal weights are in the set's
/// internal order, which differs at other servers, and keys and fields that have expired here may
/// still exist there.
fn repeat_stored(ctx: &mut Context<'_>, key: Key<'_>, was_there: bool) {
    if was_there {
        ctx.instead(&[b"DEL", key.bytes]);
    }
    ctx.instead_stored(key, b"RPUSH", |value| {
        let elements = List::view(value)?.forwards(0);
        Some(elements.map(|element| element.text().as_ref().to_vec()).collect())
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, ManualClock, UnixMillis};
    use crate::collections::hash::KeyHasher;
    use crate::sys::alloc;
    use crate::types::hash;

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
    fn a_long_text_that_many_elements_name_is_not_copied() {
        let now = Clock::Manual(ManualClock::new(UnixMillis(1))).now();
        let hasher = KeyHasher::new([1, 2]);
        let mut keyspace = Keyspace::new(1, hasher, now);
        let long = vec![b'x'; 1 << 20];
        keyspace.set_string(keyspace.key(b"long"), &long, Expiry::Clear);
        let mut hash = Hash::default();
        let limits = hash::Limits { entries_max: 1, bytes_max: 1, hasher };
        Edit::unnoted(&mut hash).set(b"field", &long, Expiry::Clear, &limits, &now);
        keyspace.insert_collection(keyspace.key(b"hash"), hash);
        let patterns = [
            Pattern::Key { before: b"long", behind: b"", field: None },
            Pattern::Key { before: b"hash", behind: b"", field: Some(b"field") },
        ];
        for pattern in patterns {
            // Empty elements, so that all name one key.
            let mut elements = Elements::default();
            (0..2_000).for_each(|_| elements.push(b"", None));
            let before = alloc::allocated();
            let weights =
                elements.weights(&mut keyspace, Some(pattern), true).expect("texts are weights");
            let after = alloc::allocated();
            // Other tests allocate at the same time; copies would take 2 GB.
            assert!(after < before + (500 << 20), "{} bytes", after - before);
            let Weights::Texts(texts) = weights else { panic!("texts are compared") };
            assert!(texts.iter().flatten().filter(|text| text.view() == long[..]).count() == 2000);
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
