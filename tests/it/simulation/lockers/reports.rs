//! Parts of replies: fences, owners, and fields of reports.

use crate::support::Reply;

/// The fence of a grant; 0: nothing was granted, or without one.
pub(super) fn fence_in(reply: &Reply) -> u64 {
    let Reply::Array(told) = reply else { return 0 };
    match told[..] {
        // Permits, their fence, and how many are free.
        [Reply::Array(_), Reply::Integer(fence), _] | [Reply::Integer(fence), ..] => fence as u64,
        _ => 0,
    }
}

/// The newest fence that a look tells of.
pub(super) fn newest_fence(told: &Reply) -> u64 {
    let Reply::Array(reports) = told else { return 0 };
    let fences = reports.iter().flat_map(|report| {
        let of_lock = match field(report, "owners") {
            Some(Reply::Array(owners)) => owners.first().and_then(|it| integer(it, "fence")),
            _ => None,
        };
        let permits = match field(report, "permits") {
            Some(Reply::Array(permits)) => permits.as_slice(),
            _ => &[],
        };
        let names = permits.iter().filter_map(|permit| texts(permit).into_iter().next());
        let of_permits = names.filter_map(|name| name.rsplit('#').nth(1)?.parse::<u64>().ok());
        of_lock.map(|fence| fence as u64).into_iter().chain(of_permits).collect::<Vec<_>>()
    });
    fences.max().unwrap_or(0)
}

/// Who has a lock, as a look tells.
pub(super) fn owner_in(told: &Reply, lock: usize) -> Option<String> {
    let Reply::Array(reports) = told else { return None };
    match field(reports.get(lock)?, "owners") {
        Some(Reply::Array(owners)) => text(field(owners.first()?, "owner")),
        _ => None,
    }
}

/// A field of a map, which is an array to a script.
pub(super) fn field<'a>(map: &'a Reply, name: &str) -> Option<&'a Reply> {
    let Reply::Array(items) = map else { return None };
    let is_it = |pair: &&[Reply]| pair[0] == Reply::Bulk(name.as_bytes().to_vec());
    items.chunks_exact(2).find(is_it).map(|pair| &pair[1])
}

/// A reply in one line.
pub(super) fn line(reply: &Reply) -> String {
    reply.show().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What a look tells, in one line.
pub(super) fn summary(told: &Reply) -> String {
    let Reply::Array(told) = told else { return line(told) };
    let reports = told.iter().map(|report| {
        let found = ["owners", "permits"].iter().find_map(|name| field(report, name));
        let found = found.and_then(|found| match found {
            Reply::Array(items) => items.first(),
            _ => None,
        });
        let names = ["owner", "fence", "ms-left"];
        let told = match found {
            Some(owner) if field(owner, "owner").is_some() => {
                let values = names.iter().filter_map(|name| field(owner, name));
                values.map(line).collect::<Vec<_>>().join(" ")
            }
            _ => field(report, "permits").map(line).unwrap_or_default(),
        };
        let end = field(report, "last-end").and_then(|end| text(field(end, "reason")));
        format!("[{told}] {:?} {}", integer(report, "waiters"), end.unwrap_or_default())
    });
    reports.collect::<Vec<_>>().join(", ")
}

pub(super) fn integer(map: &Reply, name: &str) -> Option<i64> {
    match field(map, name) {
        Some(Reply::Integer(number)) => Some(*number),
        _ => None,
    }
}

pub(super) fn text(reply: Option<&Reply>) -> Option<String> {
    match reply {
        Some(Reply::Bulk(bytes)) => Some(String::from_utf8_lossy(bytes).into_owned()),
        _ => None,
    }
}

pub(super) fn texts(reply: &Reply) -> Vec<String> {
    let Reply::Array(items) = reply else { return Vec::new() };
    items.iter().filter_map(|item| text(Some(item))).collect()
}
