//! The steps that change something: TO follows FROM, and later takes its place.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::asking::{Address, Server, Stop};
use super::checks::run_id_at;
use super::facts::Info;

/// Between two looks at a synchronisation.
const LOOK: Duration = Duration::from_millis(200);
/// Between two looks at the roles.
const ROLES: Duration = Duration::from_millis(5);
/// Synchronisations that failed before the move stops.
const FAILED_MAX: u32 = 3;
/// The longest time from the end of the waiting for the replica to the new roles.
const PROMOTION: Duration = Duration::from_secs(10);

/// Waits until TO has the data of FROM. `progress`: bytes of the snapshot, and their number, 0 if
/// it is unknown. Errors: the link stays down.
pub fn await_sync(
    from: &mut Server,
    to: &mut Server,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), Stop> {
    let around = to.around.clone();
    let timeout_us = around.access.timeout.as_micros();
    let (mut best, mut alive_us) = (0, around.now_us());
    let (mut was_syncing, mut failed) = (false, 0);
    loop {
        let info = Info::of(to, None)?;
        if info.is_primary() {
            return Err(to.stop("it does not follow any more"));
        }
        if info.link_is_up() {
            return Ok(());
        }
        let is_syncing = info.number("master_sync_in_progress") != 0;
        let bytes = |name: &str| u64::try_from(info.number(name)).unwrap_or(0);
        let (read, total) = (bytes("master_sync_read_bytes"), bytes("master_sync_total_bytes"));
        if is_syncing {
            progress(read.min(total), total);
        }
        let done = read.saturating_add(bytes("loading_loaded_bytes"));
        // The first byte waits for the snapshot, which may take long.
        let is_saving = is_syncing
            && read == 0
            && Info::of(from, Some("persistence"))?.number("rdb_bgsave_in_progress") != 0;
        if done > best || is_saving {
            best = best.max(done);
            alive_us = around.now_us();
        }
        failed += u32::from(was_syncing && !is_syncing && info.number("loading") == 0);
        was_syncing = is_syncing;
        let is_silent = (around.now_us() - alive_us).max(0) as u128 >= timeout_us;
        if failed >= FAILED_MAX || is_silent {
            let why = match info.get("latchkey_master_link_failure") {
                "" => "see its log",
                why => why,
            };
            return Err(to.stop(format_args!("its link to {} stays down: {why}", from.address)));
        }
        around.pause(LOOK)?;
    }
}

/// TO's address, as FROM lists its replica.
pub fn replica_address(from: &mut Server, to: &mut Server) -> Result<Address, Stop> {
    let replicas = Info::replication(from)?.replicas();
    if let Some(same) = replicas.iter().find(|replica| **replica == to.address) {
        return Ok(same.clone());
    }
    let run_id = Info::of(to, Some("server"))?.get("run_id").to_owned();
    for replica in &replicas {
        if run_id_at(replica, to)?.as_deref() == Some(&run_id) {
            return Ok(replica.clone());
        }
    }
    let listed: Vec<String> = replicas.iter().map(Address::to_string).collect();
    Err(from.stop(format_args!(
        "its replicas are [{}], and none of them is {} as seen from here: set replica-announce-ip \
         and replica-announce-port there",
        listed.join(", "),
        to.address
    )))
}

/// What a change of roles took.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    pub total: Duration,
    /// The longest wait of a request that waits as writes do. None: the user may not send it.
    pub longest: Option<Duration>,
}

/// Makes TO the primary, and FROM its replica. `limit`: the longest time that writes wait for it
/// to have everything. Errors: the roles have not changed, or the text says which have.
pub fn fail_over(
    from: &mut Server,
    to: &mut Server,
    target: &Address,
    limit: Duration,
) -> Result<Taken, Stop> {
    let around = from.around.clone();
    let id = Info::replication(from)?.get("master_replid").to_owned();
    let probe = Probe::start(from);
    let begun_us = around.now_us();
    let passed = || Duration::from_micros((around.now_us() - begun_us).max(0) as u64);
    let port = target.port.to_string();
    let limit_ms = limit.as_millis().to_string();
    from.order(&[
        b"FAILOVER",
        b"TO",
        target.host.as_bytes(),
        port.as_bytes(),
        b"TIMEOUT",
        limit_ms.as_bytes(),
    ])?;
    let mut was_aborted = false;
    let there = loop {
        let (here, there) = (Info::replication(from)?, Info::replication(to)?);
        let is_over = here.get("master_failover_state") == "no-failover";
        if is_over && there.is_primary() && !here.is_primary() {
            break there;
        }
        if is_over && here.is_primary() && there.is_primary() {
            return Err(from.stop(format_args!(
                "both servers are primaries now. Writes after that are on one of them alone: let \
                 clients write to {} only, and REPLICAOF there on this one",
                to.address
            )));
        }
        if is_over && here.is_primary() {
            let why = if was_aborted { "it was not accepted" } else { "it gave up" };
            return Err(from.stop(format_args!(
                "the roles have not changed within {:.1} s: {why}, see its log",
                passed().as_secs_f64()
            )));
        }
        if passed() > limit + PROMOTION && !was_aborted {
            was_aborted = true;
            from.ask_words("FAILOVER ABORT")?;
        } else if passed() > limit + PROMOTION * 2 {
            return Err(from.stop("the change does not end: see INFO replication of both"));
        }
        around.clock.sleep(ROLES);
    };
    let total = passed();
    let longest = probe.and_then(Probe::end);
    if there.get("master_replid2") != id {
        return Err(to.stop("it is the primary, and its history does not continue the old one"));
    }
    Ok(Taken { total, longest })
}

/// Waits until FROM follows its new primary.
pub fn await_link(from: &mut Server, to: &Server) -> Result<(), Stop> {
    let around = from.around.clone();
    let begun_us = around.now_us();
    loop {
        if Info::replication(from)?.link_is_up() {
            return Ok(());
        }
        if (around.now_us() - begun_us).max(0) as u128 >= around.access.timeout.as_micros() {
            return Err(from.stop(format_args!(
                "it is a replica of {}, and its link stays down: see its log",
                to.address
            )));
        }
        around.clock.sleep(LOOK);
    }
}

/// Waits for a change of roles that an earlier run has begun. Errors: it does not end.
pub fn await_end(from: &mut Server, limit: Duration) -> Result<(), Stop> {
    let around = from.around.clone();
    let begun_us = around.now_us();
    loop {
        let state = Info::replication(from)?.get("master_failover_state").to_owned();
        if state == "no-failover" || state.is_empty() {
            return Ok(());
        }
        let passed_us = (around.now_us() - begun_us).max(0) as u128;
        if passed_us >= (limit + PROMOTION).as_micros() {
            return Err(from.stop(format_args!(
                "a FAILOVER is under way ({state}): FAILOVER ABORT there ends it"
            )));
        }
        around.pause(LOOK)?;
    }
}

/// Sends a request again and again that waits whenever writes do, and changes nothing.
struct Probe {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Option<Duration>>,
}

impl Probe {
    /// None: it cannot connect, or its request is refused.
    fn start(like: &Server) -> Option<Self> {
        let mut server = Server::open(&like.address, &like.login, &like.around).ok()?;
        // PFCOUNT may write, so it waits; without a key it does not.
        let request: [&[u8]; 2] = [b"PFCOUNT", b"latchkey:move:no-such-key"];
        server.ask(&request).ok()?.number()?;
        let stop = Arc::new(AtomicBool::new(false));
        let ends = stop.clone();
        let thread = std::thread::spawn(move || {
            let around = server.around.clone();
            let mut longest = 0;
            while !ends.load(Ordering::Relaxed) {
                let sent_us = around.now_us();
                server.ask(&request).ok()?;
                longest = longest.max(around.now_us() - sent_us);
                around.clock.sleep(Duration::from_millis(1));
            }
            Some(Duration::from_micros(longest.max(0) as u64))
        });
        Some(Probe { stop, thread })
    }

    fn end(self) -> Option<Duration> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().ok().flatten()
    }
}
