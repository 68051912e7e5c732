//! `/api/locks`: held locks, by name or the worst first; one lock with its queue; and
//! `/metrics/locks`, which groups them.
//!
//! Locks are visited in slices, some in each turn, and the found ones are written in slices too.

use std::collections::{BTreeSet, HashMap};

use super::access::Rights;
use super::json::{BYTES_MAX, Json, WHOLE_BYTES_MAX, id};
use super::{Answer, argument, decoded};
use crate::client::{Client, ClientId};
use crate::collections::glob;
use crate::figures::exposition::{CONTENT_TYPE, Exposition};
use crate::keyspace::lock_history::{History, Holding};
use crate::keyspace::lock_scan::keep_first;
use crate::keyspace::locks::{End, Held};
use crate::keyspace::waiting::Wanted;
use crate::keyspace::{DbIndex, Keyspace};
use crate::net::http::head::Request;
use crate::net::http::response::Response;
use crate::resp::number::parse_i64;
use crate::resp::percent::percent_encoded;
use crate::state::http_job::{HttpJob, LockGroup};
use crate::state::{Core, State};
use crate::types::lock::{self, Lock};

/// The default number of items in a list, and the largest `limit`.
pub const LIMIT: usize = 100;
pub const LIMIT_MAX: usize = 1000;
/// Locks visited in one turn: usually, and if a user's rights must be checked or leases read.
const LOOKS: usize = 4000;
const SLOW_LOOKS: usize = 400;
/// Locks written in one turn.
const WRITES: usize = 50;
/// The most waiting clients of one lock that are shown, and the most that are examined.
const QUEUE_MAX: usize = 100;
const WAITERS_MAX: usize = 2000;
/// The last grants and ends of a lock that are shown.
const EVENTS_MAX: usize = 10;
/// The most distinct groups.
const GROUPS_MAX: usize = 10_000;
/// The bytes of a group's name that are compared.
const GROUP_BYTES_MAX: usize = 128;

/// The order of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sort {
    Name,
    Wait,
    Hold,
    Waiters,
    Lease,
}

/// A lock's rank in a list, its database and its key.
type Place = (i64, DbIndex, Box<[u8]>);

/// A request for a list.
struct Asked {
    sort: Sort,
    /// Part of the name, or a pattern.
    wanted: Option<Vec<u8>>,
    after: Option<Place>,
    limit: usize,
}

/// The requested number of items.
pub fn limit(request: &Request) -> usize {
    let limit = argument(request, "limit").and_then(|text| parse_i64(&text));
    limit.map_or(LIMIT, |limit| limit.clamp(1, LIMIT_MAX as i64) as usize)
}

impl Asked {
    fn of(request: &Request) -> Self {
        let sort = match argument(request, "sort").as_deref() {
            Some(b"wait") => Sort::Wait,
            Some(b"hold") => Sort::Hold,
            Some(b"waiters") => Sort::Waiters,
            Some(b"lease") => Sort::Lease,
            _ => Sort::Name,
        };
        let wanted = argument(request, "q").filter(|wanted| !wanted.is_empty());
        let after = argument(request, "after").and_then(|after| {
            let mut parts = after.splitn(3, |&byte| byte == b'.');
            let rank = parse_i64(parts.next()?)?;
            let database = DbIndex::read(parse_i64(parts.next()?)?)?;
            Some((rank, database, parts.next()?.into()))
        });
        Asked { sort, wanted, after, limit: limit(request) }
    }

    fn has_name(&self, key: &[u8]) -> bool {
        self.wanted.as_deref().is_none_or(|wanted| is_named(key, wanted))
    }

    fn is_after(&self, rank: i64, database: DbIndex, key: &[u8]) -> bool {
        let after = self.after.as_ref();
        after.is_none_or(|after| (rank, database, key) > (after.0, after.1, &*after.2))
    }

    /// Adds a lock to the first ones. One more than requested is kept, to show that there are more.
    fn keep(&self, first: &mut BTreeSet<Place>, rank: i64, database: DbIndex, key: &[u8]) {
        if self.is_after(rank, database, key) {
            keep_first(first, self.limit + 1, rank, database, key);
        }
    }
}

/// Whether a name has this part, or matches this pattern.
pub fn is_named(key: &[u8], wanted: &[u8]) -> bool {
    match wanted.iter().any(|byte| b"*?[".contains(byte)) {
        true => glob::matches(wanted, key, false),
        false => memchr::memmem::find(key, wanted).is_some(),
    }
}

/// `/api/locks?q=&sort=&after=&limit=`: a list of held locks.
pub fn list(core: &mut Core, rights: &Rights, request: Request) -> Answer {
    let asked = Asked::of(&request);
    let mut job = HttpJob::new(request);
    match asked.sort {
        Sort::Wait => job.found(by_wait(core, &asked)),
        Sort::Waiters => job.found(by_waiters(&core.keyspace, &asked)),
        // The index has this order.
        Sort::Name if asked.wanted.is_none() => {
            job.found(by_name(&core.keyspace, &asked));
        }
        Sort::Name | Sort::Hold | Sort::Lease => {}
    }
    go_on_with_list(core, rights, job)
}

/// Continues a list.
pub fn go_on_with_list(core: &mut Core, rights: &Rights, mut job: Box<HttpJob>) -> Answer {
    let asked = Asked::of(&job.request);
    if let Some(mut scan) = job.scan.take() {
        let is_slow = asked.sort == Sort::Lease;
        let looks = if is_slow || !rights.are_all(&core.state) { SLOW_LOOKS } else { LOOKS };
        let (locks, databases) = (&core.keyspace.locks, core.keyspace.databases());
        let tables = &core.keyspace;
        let done = scan.step(locks, databases, looks, |first, database, key, held| {
            if !asked.has_name(key) || !rights.may_see_lock(&core.state, database, key) {
                return;
            }
            let rank = match asked.sort {
                Sort::Hold => held.since_us,
                Sort::Lease => lease_left_ms(tables, database, key).unwrap_or(i64::MAX),
                _ => 0,
            };
            asked.keep(first, rank, database, key);
        });
        if !done {
            job.scan = Some(scan);
            return Answer::Later(job);
        }
        job.found(scan.first);
    }
    write_list(core, rights, &asked, job)
}

/// Writes some of the locks that were found.
fn write_list(core: &Core, rights: &Rights, asked: &Asked, mut job: Box<HttpJob>) -> Answer {
    let mut json = Json::from(std::mem::take(&mut job.text));
    if json.len() == 0 {
        json.open('{');
        json.named("held", core.keyspace.locks.len());
        json.named("waiters", core.state.waits.len_of(Wanted::Lock));
        json.name("items");
        json.open('[');
    }
    let mut written = 0;
    while written < WRITES
        && job.written < asked.limit
        && json.len() < BYTES_MAX
        && let Some((rank, database, key)) = job.places.pop_front()
    {
        if let Some(held) = core.keyspace.locks.any(database, &key)
            && rights.may_see_lock(&core.state, database, &key)
        {
            item(&mut json, core, database, &key, Some(held));
            job.written += 1;
        }
        job.last = Some((rank, database, key));
        written += 1;
    }
    if job.written < asked.limit && json.len() < BYTES_MAX && !job.places.is_empty() {
        job.text = json.finish();
        return Answer::Later(job);
    }
    let has_more = !job.places.is_empty();
    json.close(']');
    json.named("more", has_more);
    if let Some((rank, database, key)) = job.last.filter(|_| has_more) {
        json.named_whole("after", &after(rank, database, &key));
    }
    json.close('}');
    json_response(json).into()
}

/// The place where a list continues, as text for a query. After a name that is too long for a
/// query, the list continues after all names that begin like it.
fn after(rank: i64, database: DbIndex, key: &[u8]) -> String {
    let room = WHOLE_BYTES_MAX - 64;
    let whole = percent_encoded(&key[..key.len().min(room + 1)]);
    if whole.len() <= room {
        return format!("{rank}.{database}.{whole}");
    }
    let begin = &key[..key.len().min(room / 3)];
    let same = begin.iter().rposition(|&byte| byte != 0xff);
    match same {
        Some(last) => {
            let next = [&begin[..last], &[begin[last] + 1]].concat();
            format!("{rank}.{database}.{}", percent_encoded(&next))
        }
        None => format!("{rank}.{}.", database.next()),
    }
}

/// An answer in JSON.
pub fn json_response(json: Json) -> Response {
    Response::new(200, "application/json", json.finish())
        .with("Content-Security-Policy", "default-src 'none'".to_owned())
}

fn by_name(keyspace: &Keyspace, asked: &Asked) -> BTreeSet<Place> {
    let mut first = BTreeSet::new();
    let from = asked.after.as_ref().map_or(DbIndex::ZERO, |after| after.1);
    for database in DbIndex::all(keyspace.databases()).skip(from.get()) {
        let after = asked.after.as_ref().filter(|after| after.1 == database);
        let left = keyspace.locks.iter_after(database, after.map(|after| &*after.2));
        for (key, _) in left.take(asked.limit + 1 - first.len()) {
            first.insert((0, database, key.into()));
        }
        if first.len() > asked.limit {
            break;
        }
    }
    first
}

/// The locks that clients wait for, the longest wait first.
fn by_wait(core: &Core, asked: &Asked) -> BTreeSet<Place> {
    let (mut first, mut seen) = (BTreeSet::new(), BTreeSet::new());
    for wait in core.state.waits.longest_for_locks(WAITERS_MAX) {
        for (_, key) in wait.keys() {
            let is_held = core.keyspace.locks.is_held(wait.database, key);
            if is_held && asked.has_name(key) && seen.insert((wait.database, key)) {
                asked.keep(&mut first, wait.since_us, wait.database, key);
            }
        }
        if first.len() > asked.limit {
            break;
        }
    }
    first
}

/// The locks that clients wait for, those with the most waiting clients first.
fn by_waiters(keyspace: &Keyspace, asked: &Asked) -> BTreeSet<Place> {
    let mut first = BTreeSet::new();
    for (database, key, count) in keyspace.waiting.queues_for(Wanted::Lock) {
        if keyspace.locks.is_held(database, key) && asked.has_name(key) {
            asked.keep(&mut first, -(count as i64), database, key);
        }
    }
    first
}

/// A key's lock, with the milliseconds left of its lease; None: it does not end.
fn find<'k>(
    keyspace: &'k Keyspace,
    database: DbIndex,
    key: &[u8],
) -> Option<(Lock<'k>, Option<i64>)> {
    let entry = keyspace.entry_quietly(database, key)?;
    let found = lock::read(entry.value(), &keyspace.now()).ok()??;
    let left_ms = entry.deadline().map(|deadline| keyspace.now().remaining_ms(deadline).max(0));
    Some((found, left_ms))
}

fn lease_left_ms(keyspace: &Keyspace, database: DbIndex, key: &[u8]) -> Option<i64> {
    let entry = keyspace.entry_quietly(database, key)?;
    entry.deadline().map(|deadline| keyspace.now().remaining_ms(deadline).max(0))
}

/// Appends a lock, unless nobody holds it now.
fn item(json: &mut Json, core: &Core, database: DbIndex, key: &[u8], held: Option<&Held>) {
    json.open('{');
    json.named_text("key", key);
    json.named_whole("id", &id(key));
    json.named("db", database);
    let now_us = core.state.now.boot_us;
    match find(&core.keyspace, database, key) {
        None => json.named_text("mode", "free"),
        Some((lock, left_ms)) => {
            let is_kept = *lock.owner == *lock::KEEP;
            let mode = match is_kept {
                true => "kept",
                false if lock.readers > 0 => "shared",
                false => "exclusive",
            };
            json.named_text("mode", mode);
            // The owner, the fence and the following fields are those of one of the readers.
            if lock.readers > 0 {
                json.named("readers", lock.readers);
            }
            json.named_text("owner", &*lock.owner);
            json.named("holds", lock.holds);
            // As text: the page must not round the number.
            match lock.fence {
                Some(fence) => json.named_text("fence", fence.to_string()),
                None => json.named("fence", "null"),
            }
            json.maybe("since_ms", lock.since_ms);
            json.maybe("lease_left_ms", left_ms);
            json.maybe("lease_ms", lock.session.map(|(_, lease_ms)| lease_ms));
            json.maybe("grace_ms", lock.session.map(|(grace_ms, _)| grace_ms));
        }
    }
    json.maybe("held_ms", held.map(|held| (now_us - held.since_us).max(0) / 1000));
    json.maybe("renewals", held.map(|held| held.renewals));
    let name = core.keyspace.key(key);
    json.named("grants", core.keyspace.locks.grants_of(database, name));
    let history = core.keyspace.locks.history.of(database, name);
    json.maybe("median_hold_us", history.map(History::median_us));
    json.named("waiters", core.keyspace.waiting.len(database, key, Wanted::Lock));
    let first = core.keyspace.waiting.first(database, key, Wanted::Lock);
    let first = first.and_then(|ticket| core.state.waits.get(ticket));
    json.maybe("longest_wait_ms", first.map(|wait| (now_us - wait.since_us) / 1000));
    json.name("client");
    client(json, &core.state, held.and_then(|held| held.client));
    json.close('}');
}

/// Appends a client that is still connected, or null.
pub fn client(json: &mut Json, state: &State, id: Option<ClientId>) {
    let Some(client) = id.and_then(|id| state.clients.get(id)) else {
        return json.plain("null");
    };
    json.open('{');
    client_fields(json, state, client);
    json.close('}');
}

/// Appends the fields that identify a client.
pub fn client_fields(json: &mut Json, state: &State, client: &Client) {
    json.named("id", client.id.number);
    json.named_text("addr", client.peer.to_string());
    json.named_text("name", &client.name);
    json.named_text("lib", &client.library_name);
    json.named_text("lib_ver", &client.library_version);
    json.named("idle_ms", (state.now.boot_us - client.active_us).max(0) / 1000);
}

/// `/api/locks/KEY?db=`: a lock, the clients that wait for it in order, the losses of its last
/// leases, and the command that breaks it.
pub fn one(core: &Core, rights: &Rights, request: &Request) -> Response {
    let name = request.path.strip_prefix("/api/locks/").unwrap_or_default();
    let key = decoded(name, false);
    let database = argument(request, "db").and_then(|text| parse_i64(&text)).unwrap_or(0);
    let Some(database) = DbIndex::checked(database, core.keyspace.databases()) else {
        return Response::of_status(404);
    };
    if !rights.may_see_lock(&core.state, database, &key) {
        return Response::of_status(403);
    }
    // Any string could be a lock made by another client library: a value that nobody uses as a lock
    // is not shown.
    let is_lock = core.keyspace.entry_quietly(database, &key).is_none()
        || core.keyspace.locks.any(database, &key).is_some()
        || core.keyspace.waiting.first(database, &key, Wanted::Lock).is_some()
        || core
            .keyspace
            .locks
            .history
            .ends()
            .any(|end| end.database == database && *end.key == *key);
    if !is_lock {
        return Response::of_status(404);
    }
    let mut json = Json::default();
    json.open('{');
    json.name("lock");
    item(&mut json, core, database, &key, core.keyspace.locks.any(database, &key));
    json.name("queue");
    json.open('[');
    let queue = core.keyspace.waiting.iter(database, &key, Wanted::Lock);
    for (place, ticket) in queue.take(QUEUE_MAX).enumerate() {
        let Some(wait) = core.state.waits.get(ticket) else { continue };
        json.open('{');
        json.named("place", place + 1);
        json.named_text("owner", wait.owner());
        json.named("waited_ms", (core.state.now.boot_us - wait.since_us) / 1000);
        let left_us = wait.deadline().map(|at_us| (at_us - core.state.now.boot_us).max(0));
        json.maybe("left_ms", left_us.map(|us| us / 1000));
        json.name("client");
        client(&mut json, &core.state, Some(wait.client));
        json.close('}');
    }
    json.close(']');
    events(&mut json, core, database, &key);
    json.name("ends");
    json.open('[');
    let ends = core.keyspace.locks.history.ends().rev();
    for end in ends.filter(|end| end.database == database && *end.key == *key).take(10) {
        write_end(&mut json, end);
    }
    json.close(']');
    // A truncated command would break another lock.
    if let Some((lock, _)) = find(&core.keyspace, database, &key) {
        let fence = lock.fence.filter(|_| lock.readers == 0);
        let fence = fence.map_or(String::new(), |fence| format!(" FENCE {fence}"));
        let name = shell_word(&key);
        let command = format!("{} LOCK.BREAK {name}{fence}", redis_cli(&core.state, database));
        json.named_whole("break", &command);
    }
    json.close('}');
    json_response(json)
}

/// Appends the last grants and ends of a lock, the latest first.
fn events(json: &mut Json, core: &Core, database: DbIndex, key: &[u8]) {
    let mut events: Vec<Event> = Vec::new();
    for place in core.keyspace.locks.holdings(database, key) {
        let Some(held) = core.keyspace.locks.get(place.at()).filter(|held| !held.is_kept) else {
            continue;
        };
        let at_ms =
            core.state.now.unix().0 - (core.state.now.boot_us - held.since_us).max(0) / 1000;
        let session = held.session.as_deref().map(|session| session.owner.to_vec());
        let owner = place.at().reader.map(<[u8]>::to_vec).or(session).or_else(|| {
            find(&core.keyspace, database, key).map(|(lock, _)| lock.owner.into_owned())
        });
        let owner = owner.unwrap_or_default();
        events.push(Event { at_ms, what: "granted", owner, fence: held.fence, held_us: None });
    }
    let history = core.keyspace.locks.history.of(database, core.keyspace.key(key));
    for ended in history.into_iter().flat_map(History::last) {
        let Holding { fence, at_ms, held_us, ref owner, .. } = *ended;
        let (what, held_us) = (ended.end.name(), Some(held_us));
        events.push(Event { at_ms, what, owner: owner.clone(), fence, held_us });
        let at_ms = at_ms - ended.held_us as i64 / 1000;
        events.push(Event { at_ms, what: "granted", owner: owner.clone(), fence, held_us: None });
    }
    // A grant and its end may fall in one millisecond; grants have the order of their fences.
    events.sort_by_key(|event| (-event.at_ms, -(event.fence as i64), event.held_us.is_none()));
    json.name("events");
    json.open('[');
    for event in events.iter().take(EVENTS_MAX) {
        json.open('{');
        json.named_text("what", event.what);
        json.named("at_ms", event.at_ms);
        json.named_text("owner", &event.owner);
        json.named_text("fence", event.fence.to_string());
        json.maybe("held_us", event.held_us);
        json.close('}');
    }
    json.close(']');
}

/// A grant of a lock or its end.
struct Event {
    at_ms: i64,
    what: &'static str,
    owner: Vec<u8>,
    fence: u64,
    /// Only of an end: the time that the lock was held.
    held_us: Option<u64>,
}

/// The call of redis-cli for a database of this server.
pub fn redis_cli(state: &State, database: DbIndex) -> String {
    let port = state.process.identity.port;
    let port = if port == 6379 { String::new() } else { format!(" -p {port}") };
    let database =
        if database == DbIndex::ZERO { String::new() } else { format!(" -n {database}") };
    format!("redis-cli{port}{database}")
}

/// A name quoted for a shell, whatever its bytes: people copy the command.
pub fn shell_word(name: &[u8]) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_:./@%+,=-".contains(byte);
    match std::str::from_utf8(name) {
        Ok(text) if !name.is_empty() && name.iter().all(is_plain) => text.to_owned(),
        Ok(text) if !text.chars().any(char::is_control) => {
            format!("'{}'", text.replace('\'', "'\\''"))
        }
        _ => {
            let escaped = name.iter().map(|&byte| match byte {
                b'\'' | b'\\' => format!("\\{}", byte as char),
                b' '..=b'~' => (byte as char).to_string(),
                _ => format!("\\x{byte:02x}"),
            });
            format!("$'{}'", escaped.collect::<String>())
        }
    }
}

/// Appends how a lock was lost.
pub fn write_end(json: &mut Json, end: &End) {
    json.open('{');
    json.named_text("key", &end.key);
    json.named_whole("id", &id(&end.key));
    json.named("db", end.database);
    json.named_text("fence", end.fence.to_string());
    json.named_text("reason", end.reason.name());
    json.named("at_ms", end.at_ms);
    json.named_text("who", &end.who);
    json.close('}');
}

/// `/metrics/locks?group=1&top=100`: held locks that the user may see, grouped by the part of their
/// names before the first colon; the largest groups.
pub fn groups(core: &Core, rights: &Rights, request: Request) -> Answer {
    go_on_with_groups(core, rights, HttpJob::new(request))
}

/// Continues the answer of [`groups`].
pub fn go_on_with_groups(core: &Core, rights: &Rights, mut job: Box<HttpJob>) -> Answer {
    let mut scan = job.scan.take().unwrap_or_default();
    let groups = &mut job.groups;
    let looks = if rights.are_all(&core.state) { LOOKS } else { SLOW_LOOKS };
    let databases = core.keyspace.databases();
    let done = scan.step(&core.keyspace.locks, databases, looks, |_, database, key, held| {
        if !rights.may_see_lock(&core.state, database, key) {
            return;
        }
        let name = key.split(|&byte| byte == b':').next().unwrap_or_default();
        let name = &name[..name.len().min(GROUP_BYTES_MAX)];
        let name =
            if groups.len() >= GROUPS_MAX && !groups.contains_key(name) { b"" } else { name };
        let oldest_us = held.since_us;
        match groups.get_mut(name) {
            Some(group) => {
                group.held += 1;
                group.oldest_us = group.oldest_us.min(oldest_us);
            }
            None => {
                let group = LockGroup { held: 1, oldest_us };
                groups.insert(name.into(), group);
            }
        }
    });
    if !done {
        job.scan = Some(scan);
        return Answer::Later(job);
    }
    let top = argument(&job.request, "top").and_then(|text| parse_i64(&text));
    let top = top.map_or(LIMIT, |top| top.clamp(1, LIMIT as i64) as usize);
    // Names that are no text may look alike, but no series may appear twice.
    let mut alike: HashMap<String, LockGroup> = HashMap::new();
    for (name, group) in &job.groups {
        let name = String::from_utf8_lossy(name);
        let first = LockGroup { held: 0, oldest_us: i64::MAX };
        let all = alike.entry(name.into_owned()).or_insert(first);
        all.held += group.held;
        all.oldest_us = all.oldest_us.min(group.oldest_us);
    }
    let mut groups: Vec<_> = alike.into_iter().collect();
    groups.sort_unstable_by(|(name, one), (other, two)| (two.held, name).cmp(&(one.held, other)));
    groups.truncate(top);
    let mut out = Exposition::default();
    let name = "latchkey_group_locks_held";
    out.family(name, "gauge", "Held locks whose names begin alike.");
    for (group, found) in &groups {
        out.sample(name, &[("group", group)], found.held as f64);
    }
    let name = "latchkey_group_lock_longest_hold_seconds";
    out.family(name, "gauge", "How long the one has been held that is held longest.");
    for (group, found) in &groups {
        let seconds = (core.state.now.boot_us - found.oldest_us).max(0) as f64 / 1e6;
        out.sample(name, &[("group", group)], seconds);
    }
    Response::new(200, CONTENT_TYPE, out.text()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_goes_on_after_any_name() {
        let of = |key: &[u8]| {
            let after = after(-3, DbIndex::new(1), key);
            assert!(after.len() <= WHOLE_BYTES_MAX);
            let decoded = decoded(&after, true);
            let mut parts = decoded.splitn(3, |&byte| byte == b'.').skip(1);
            let database = parse_i64(parts.next().expect("a database")).expect("a number");
            (database as usize, parts.next().expect("a name").to_vec())
        };
        for key in [&b""[..], b"a", b"a b+\xff.%", &[b'x'; 6000], &[0xff; 2000]] {
            assert_eq!(of(key), (1, key.to_vec()));
        }
        for key in [&[b'x'; 100_000][..], &[b'/'; 5000], &[0xff; 5000], &[0; 5000]] {
            assert!(of(key) > (1, key.to_vec()));
        }
        let long = [&[b'a', b'\xff'][..], &[0xff; 5000]].concat();
        assert_eq!(of(&long), (1, b"b".to_vec()));
    }

    #[test]
    fn a_copied_name_does_nothing_in_a_shell() {
        for (name, word) in [
            (&b"invoices:2041"[..], "invoices:2041"),
            (b"", "''"),
            (b"$(touch x) `id` \"", "'$(touch x) `id` \"'"),
            (b"it's", "'it'\\''s'"),
            ("\u{e9} x".as_bytes(), "'\u{e9} x'"),
            (b"a\n'\\\xff", "$'a\\x0a\\'\\\\\\xff'"),
        ] {
            assert_eq!(shell_word(name), word);
        }
    }
}
