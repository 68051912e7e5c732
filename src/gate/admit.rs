//! Decides whether a command may run now: every rule that can refuse, queue or postpone it, in the
//! order in which the rules are checked.
//!
//! [`admit`] changes nothing. The checks come in Redis's order, because the first error found is
//! the reply.

use crate::acl::Denied;
use crate::client::transaction::Transaction;
use crate::client::{Client, ClientFlags};
use crate::error::CommandError;
use crate::gate::cluster;
use crate::gate::evict::Room;
use crate::gate::moving;
use crate::gate::redirect;
use crate::gate::users;
use crate::gate::verdict::{Asked, Verdict};
use crate::resp::args::Args;
use crate::resp::reply::Protocol;
use crate::state::context::Caller;
use crate::state::spec::{Flags, Group};
use crate::state::table::{Command, FastPath, Needs};
use crate::state::writes::WriteRule;
use crate::state::{Core, State};

const NOT_IN_TRANSACTION: CommandError =
    CommandError::Text("ERR Command not allowed inside a transaction");
const NEEDS_CLIENT: CommandError =
    CommandError::Text("ERR this command has to do with a connection, and there is none here");

/// Whether [`admit`] would certainly say `Run`, for a client whose flags need no check. Each new
/// rule of `admit` must be added here or to [`State::gate`]; a test compares the two.
#[inline(always)]
pub fn is_open(core: &Core, command: &Command, args: Args<'_>) -> bool {
    (command.needs.are_met_by(core.state.fast_path()) || is_open_here(&core.state, command, args))
        && !core.keyspace.tracking.has_changes()
        && command.spec.accepts(args.len())
}

/// Whether [`admit`] would certainly say `Run` on a node of a cluster: the node owns the slot of
/// all keys.
#[inline(never)]
fn is_open_here(state: &State, command: &Command, args: Args<'_>) -> bool {
    state.fast_path() == FastPath::Owned
        && command.needs != Needs::Never
        && !command.is(Flags::RUNS_SCRIPT)
        && state
            .node
            .cluster
            .as_deref()
            .is_some_and(|cluster| cluster::owns(cluster, command, args))
}

/// Whether a command may run now.
#[inline]
pub fn admit(core: &Core, asked: &Asked<'_>) -> Verdict {
    let command = asked.command;
    let client = asked.caller.client().and_then(|id| core.state.clients.get(id));
    let Some(client) = client else {
        // Requests without a client have full rights: those of a file have run before.
        if command.is(Flags::NEEDS_CLIENT) {
            return Verdict::Refuse(NEEDS_CLIENT);
        }
        // As in Redis. No command is replicated as DEBUG.
        if command.is(Flags::PROTECTED) && asked.caller == Caller::Primary {
            let address = core.state.net.primary.as_deref().and_then(|socket| socket.address);
            let is_local = address.is_some_and(|address| address.ip().to_canonical().is_loopback());
            return check_debug(&core.state, is_local)
                .map_or_else(Verdict::Refuse, |()| Verdict::Run);
        }
        return Verdict::Run;
    };
    if client.flags.contains(ClientFlags::BRINGS_SLOTS) {
        return admit_import(&core.state, client, asked);
    }
    let transaction = client.transaction.as_deref();
    let is_busy = core.state.scripts.is_busy();
    if core.state.applies_maxmemory() && !is_busy && asked.room.is_none() {
        // Rights first: no key is evicted for a command that is refused anyway.
        return match check_rights(core, client, asked) {
            Ok(()) => Verdict::MakeRoom,
            Err(verdict) => verdict,
        };
    }
    match check(core, client, asked, is_busy) {
        Err(verdict) => verdict,
        Ok(()) if !is_busy && is_held_back(&core.state, client, asked) => Verdict::Postpone,
        Ok(()) => match moving::check(core, client, asked) {
            Err(verdict) => verdict,
            Ok(()) if transaction.is_some() && !command.is(Flags::NEVER_QUEUED) => Verdict::Queue,
            Ok(()) => Verdict::Run,
        },
    }
}

/// Admits a command by which another node brings keys. That node has checked it; here the user of
/// its connection must be permitted to run it, it waits for a pause, and needs memory.
fn admit_import(state: &State, client: &Client, asked: &Asked<'_>) -> Verdict {
    if asked.command.is(Flags::PROTECTED)
        && let Err(error) = check_debug_allowed(state, client)
    {
        return Verdict::Refuse(error);
    }
    if let Err(denied) = users::check(state, client, asked.command, asked.args) {
        return Verdict::Deny(denied);
    }
    if state.scripts.is_busy() {
        return Verdict::Refuse(busy(state));
    }
    // The connection of a node that has just become a replica is about to be closed. Its primary
    // decides about the keys.
    if state.replication.is_replica() {
        return Verdict::Refuse(CommandError::ReadOnlyReplica);
    }
    if is_held_back(state, client, asked) {
        return Verdict::Postpone;
    }
    match asked.room {
        None if state.applies_maxmemory() => Verdict::MakeRoom,
        Some(Room::NoMore) if asked.command.is(Flags::DENYOOM) => {
            Verdict::Refuse(CommandError::OutOfMemory)
        }
        _ => Verdict::Run,
    }
}

/// The checks that come before keys are evicted for the command.
fn check_rights(core: &Core, client: &Client, asked: &Asked<'_>) -> Result<(), Verdict> {
    let command = asked.command;
    let lacks_password = !command.is(Flags::NO_AUTH) && core.state.needs_password(client.flags);
    let is_told = !lacks_password || !core.state.config.compatible_with.is_valkey();
    if command.is(Flags::PROTECTED) && is_told {
        check_debug_allowed(&core.state, client)?;
    }
    if lacks_password {
        return Err(CommandError::NoAuth.into());
    }
    if client.transaction.is_some() {
        check_queueable(&core.state, command)?;
    }
    users::check(&core.state, client, command, asked.args).map_err(Verdict::Deny)?;
    if core.state.node.cluster.is_some() {
        cluster::check(core, client, command, asked.args)?;
    } else if core.state.replication.is_replica()
        && client.flags.contains(ClientFlags::CAN_REDIRECT)
    {
        let queued = client.transaction.as_deref().filter(|_| command.is(Flags::RUNS_QUEUED));
        let queued = queued.map_or(Flags::empty(), Transaction::flags);
        redirect::check(
            &core.state,
            client,
            core.state.flags_of(command, asked.args).union(queued),
        )?;
    }
    Ok(())
}

/// Checks whether a command may be sent between MULTI and EXEC. In Valkey a second MULTI and WATCH
/// fail the transaction.
fn check_queueable(state: &State, command: &Command) -> Result<(), CommandError> {
    let only_goes_before = command.is(Flags::NEVER_QUEUED)
        && !command.is(Flags::ENDS_TRANSACTION | Flags::RUNS_QUEUED);
    match state.config.compatible_with.is_valkey() {
        true if command.is(Flags::NO_MULTI)
            || only_goes_before
            || &*command.full_name == "client|reply" =>
        {
            let name = &command.full_name;
            let text = format!("ERR Command '{name}' not allowed inside a transaction");
            Err(CommandError::formatted(text))
        }
        false if command.is(Flags::NO_MULTI) => Err(NOT_IN_TRANSACTION),
        _ => Ok(()),
    }
}

/// All checks that refuse a client's command.
fn check(core: &Core, client: &Client, asked: &Asked<'_>, is_busy: bool) -> Result<(), Verdict> {
    let command = asked.command;
    let transaction = client.transaction.as_deref();
    // If keys were evicted for it, its rights were checked before.
    if asked.room.is_none() {
        check_rights(core, client, asked)?;
    }
    let is_valkey = core.state.config.compatible_with.is_valkey();
    if asked.room == Some(Room::NoMore) && needs_room(transaction, command, is_valkey) {
        return Err(CommandError::OutOfMemory.into());
    }
    for rule in WriteRule::ALL {
        if let Some(error) = core.state.refusal_by(rule)
            && is_write_for(rule, &core.state, transaction, asked)
        {
            return Err(error.into());
        }
    }
    if client.flags.contains(ClientFlags::SUBSCRIBED) && asked.protocol == Protocol::Resp2 {
        check_subscribed(command)?;
    }
    if core.state.is_stale() && !allows_stale_data(&core.state, transaction, asked) {
        return Err(CommandError::PrimaryDown.into());
    }
    if let Some(loading) = core.state.persistence.loading {
        let queued = transaction.filter(|_| command.is(Flags::RUNS_QUEUED));
        let is_refused = match loading.is_beside {
            true => runs_any(transaction, command, Flags::NO_ASYNC_LOADING),
            false => {
                !(command.is(Flags::LOADING) || tells_of_cluster(&core.state, command))
                    || queued.is_some_and(|it| !it.all_have(Flags::LOADING))
            }
        };
        if is_refused {
            return Err(CommandError::LOADING.into());
        }
    }
    if is_busy && !command.is(Flags::ALLOW_BUSY) {
        return Err(busy(&core.state).into());
    }
    if client.flags.intersects(ClientFlags::MONITOR | ClientFlags::REPLICA) {
        check_monitoring(command)?;
    }
    Ok(())
}

/// Whether a command reports on the cluster and, as in Valkey, needs no data for that.
fn tells_of_cluster(state: &State, command: &Command) -> bool {
    state.config.compatible_with.is_valkey()
        && command.spec.group == Group::Cluster
        && ["INFO", "MYID", "NODES", "SHARDS", "SLOTS"].contains(&command.spec.name)
}

/// Whether a rule that refuses writes concerns a command.
fn is_write_for(
    rule: WriteRule,
    state: &State,
    transaction: Option<&Transaction>,
    asked: &Asked<'_>,
) -> bool {
    let by_flag = |flags| runs_any(transaction, asked.command, flags);
    match rule {
        WriteRule::Disk => by_flag(Flags::WRITE.union(Flags::TELLS_DISK)),
        WriteRule::Replicas => by_flag(Flags::WRITE),
        WriteRule::Restart | WriteRule::ReadOnly => writes(state, transaction, asked),
    }
}

/// Whether a command writes, by its flags, by what its script declares, or by the commands that
/// EXEC runs.
fn writes(state: &State, transaction: Option<&Transaction>, asked: &Asked<'_>) -> bool {
    runs_any(transaction, asked.command, Flags::WRITE)
        || state.flags_of(asked.command, asked.args).contains(Flags::WRITE)
}

/// Whether a command may run on a replica with possibly stale data; for EXEC, whether all its
/// commands may.
fn allows_stale_data(state: &State, transaction: Option<&Transaction>, asked: &Asked<'_>) -> bool {
    match transaction {
        Some(transaction) if asked.command.is(Flags::RUNS_QUEUED) => {
            transaction.all_have(Flags::STALE)
        }
        _ => state.flags_of(asked.command, asked.args).contains(Flags::STALE),
    }
}

/// Whether CLIENT PAUSE postpones a command.
fn is_held_back(state: &State, client: &Client, asked: &Asked<'_>) -> bool {
    let Some(pause) = state.pauses.strictest() else { return false };
    let is_message = &*asked.command.full_name == "publish" && asked.args.len() == 3;
    if is_message && state.lets_sentinels_speak(asked.args.get(1)) {
        return false;
    }
    let may_write = Flags::WRITE.union(Flags::MAY_REPLICATE);
    let writes = || {
        let queued = client.transaction.as_deref();
        let queued = queued.filter(|_| asked.command.is(Flags::RUNS_QUEUED));
        state.flags_of(asked.command, asked.args).intersects(may_write)
            || queued.is_some_and(|transaction| transaction.has_any(may_write))
    };
    pause.until_us > state.now.boot_us
        && (!pause.writes_only || writes())
        // A monitoring client cannot access the keyspace. A replica's acknowledgements change
        // nothing, and clients wait for them.
        && !client.flags.intersects(ClientFlags::MONITOR | ClientFlags::REPLICA)
}

/// Whether a command is refused when memory is short. Queueing any command takes memory, but Valkey
/// queues those that need none when they run.
fn needs_room(transaction: Option<&Transaction>, command: &Command, is_valkey: bool) -> bool {
    match transaction {
        Some(transaction) if command.is(Flags::RUNS_QUEUED) => transaction.has_any(Flags::DENYOOM),
        Some(_) if !is_valkey => !command.is(Flags::ENDS_TRANSACTION),
        _ => command.is(Flags::DENYOOM),
    }
}

/// Whether a command has one of these flags; for EXEC, whether one of its commands has.
fn runs_any(transaction: Option<&Transaction>, command: &Command, flags: Flags) -> bool {
    match transaction {
        Some(transaction) if command.is(Flags::RUNS_QUEUED) => transaction.has_any(flags),
        _ => command.is(flags),
    }
}

// ---- what scripts call --------------------------------------------------------------------------

const UNKNOWN: Worded = Worded {
    redis: "ERR Unknown Redis command called from script",
    valkey: "ERR Unknown command called from script",
};
const ARITY: Worded = Worded {
    redis: "ERR Wrong number of args calling Redis command from script",
    valkey: "ERR Wrong number of args calling command from script",
};
const NOT_ALLOWED_IN_SCRIPT: Worded = Worded {
    redis: "ERR This Redis command is not allowed from script",
    valkey: "ERR This Valkey command is not allowed from script",
};
const STALE_REPLICA: &[u8] = b"ERR Can not execute the command on a stale replica";
const READ_ONLY: &[u8] = b"ERR Write commands are not allowed from read-only scripts.";

/// An error whose text depends on `compatible-with`.
struct Worded {
    redis: &'static str,
    valkey: &'static str,
}

impl Worded {
    fn refusal(&self, state: &State) -> Refused {
        let is_valkey = state.config.compatible_with.is_valkey();
        Refused::Command(if is_valkey { self.valkey } else { self.redis }.into())
    }
}

/// Why a script's call does not run.
pub enum Refused {
    /// An error reply, counted as an error of the command if that exists.
    Command(Vec<u8>),
    /// The script's user lacks the permission.
    Denied(&'static Command, Denied),
    /// The script was killed.
    Killed(&'static str),
}

/// Whether a script may run a command now. [`admit`] checked its own rules when the script began.
pub fn admit_scripted(
    state: &State,
    command: Option<&'static Command>,
    args: Args<'_>,
) -> Result<&'static Command, Refused> {
    let refuse = |text: &[u8]| Err(Refused::Command(text.to_vec()));
    let Some(command) = command else { return Err(UNKNOWN.refusal(state)) };
    if !command.spec.accepts(args.len()) || command.spec.handler.is_none() {
        return Err(ARITY.refusal(state));
    }
    if command.is(Flags::NOSCRIPT) && is_denied_in_scripts(state, command) {
        return Err(NOT_ALLOWED_IN_SCRIPT.refusal(state));
    }
    let Some(running) = &state.scripts.running else {
        return Err(NOT_ALLOWED_IN_SCRIPT.refusal(state));
    };
    if running.client.is_none() && command.is(Flags::NEEDS_CLIENT) {
        return Err(NOT_ALLOWED_IN_SCRIPT.refusal(state));
    }
    if let Some(error) = running.killed {
        return Err(Refused::Killed(error));
    }
    let writes = command.is(Flags::WRITE);
    if running.is_repeated() {
        let may = !running.read_only || !writes && !command.is(Flags::MAY_REPLICATE);
        return if may { Ok(command) } else { refuse(READ_ONLY) };
    }
    if state.is_stale() && !command.is(Flags::STALE) {
        return refuse(STALE_REPLICA);
    }
    users::check_client(state, running.client, command, args)
        .map_err(|denied| Refused::Denied(command, denied))?;
    if running.read_only && (writes || command.is(Flags::MAY_REPLICATE)) {
        return refuse(READ_ONLY);
    }
    let may_be_refused = writes && !running.wrote && !state.fast_path().takes_writes();
    let mut rules = WriteRule::ALL.iter().rev();
    if may_be_refused && let Some(error) = rules.find_map(|rule| state.refusal_by(*rule)) {
        return refuse(&error.wire());
    }
    let lacks_memory = running.out_of_memory && !running.wrote && !running.allow_oom;
    if lacks_memory && command.is(Flags::DENYOOM) {
        return refuse(&CommandError::OutOfMemory.wire());
    }
    Ok(command)
}

/// Whether scripts may not call a command with `NOSCRIPT`.
#[cold]
fn is_denied_in_scripts(state: &State, command: &Command) -> bool {
    let flags = command.spec.flags.reported(state.config.reports_7_2());
    let is_allowed_by_debug = state.scripts.denies_nothing && is_harmless_in_script(command);
    flags.contains(Flags::NOSCRIPT) && !is_allowed_by_debug
}

/// Whether DEBUG may allow a command that scripts are normally denied. The command must not touch
/// the calling connection, transaction or script. CLIENT does not.
fn is_harmless_in_script(command: &Command) -> bool {
    match command.spec.group {
        Group::PubSub | Group::Scripting | Group::Transactions => false,
        Group::Connection => command.parent.is_some(),
        _ => true,
    }
}

// ---- single rules -------------------------------------------------------------------------------

const NOT_ALLOWED: &str = "ERR DEBUG command not allowed. If the enable-debug-command option is \
    set to \"local\", you can run it from a local connection, otherwise you need to set this \
    option in the configuration file, and then restart the server.";

/// Whether a client may use DEBUG. The gate asks, even while a transaction is queued.
#[cold]
pub(crate) fn check_debug_allowed(state: &State, client: &Client) -> Result<(), CommandError> {
    check_debug(state, client.peer.is_local())
}

fn check_debug(state: &State, is_local: bool) -> Result<(), CommandError> {
    if state.config.enable_debug_command.allows(is_local) {
        return Ok(());
    }
    Err(CommandError::Text(NOT_ALLOWED))
}

/// Whether a subscribed RESP2 client may run a command.
fn check_subscribed(command: &Command) -> Result<(), CommandError> {
    if command.is(Flags::WHILE_SUBSCRIBED) {
        return Ok(());
    }
    let name = &command.full_name;
    Err(CommandError::formatted(format!(
        "ERR Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context"
    )))
}

const NO_KEYSPACE: CommandError =
    CommandError::Text("ERR Replica can't interact with the keyspace");

/// Checks whether a monitoring client or a replica may run a command: none that accesses keys.
fn check_monitoring(command: &Command) -> Result<(), CommandError> {
    let keyspace = Flags::READONLY | Flags::WRITE | Flags::MAY_REPLICATE;
    if command.spec.flags.intersects(keyspace) { Err(NO_KEYSPACE) } else { Ok(()) }
}

/// The reply to other clients while an EVAL script keeps the server busy.
const BUSY_SCRIPT: CommandError = CommandError::Text(
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
);
/// The same for a function.
const BUSY_FUNCTION: CommandError = CommandError::Text(
    "BUSY Redis is busy running a script. You can only call FUNCTION KILL or SHUTDOWN NOSAVE.",
);

/// The error for other clients while a script or function keeps the server busy.
pub(crate) fn busy(state: &State) -> CommandError {
    let by_eval = state.scripts.running.as_ref().is_none_or(|running| running.by_eval);
    if by_eval { BUSY_SCRIPT } else { BUSY_FUNCTION }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Client;
    use crate::clock::Clock;
    use crate::cluster::Cluster;
    use crate::cluster::node::NodeId;
    use crate::cluster::settings::Settings;
    use crate::collections::hash::KeyHasher;
    use crate::collections::hash_slot::HashSlot;
    use crate::command::TABLE;
    use crate::config::Config;
    use crate::gate::execute::{Gate, Request};
    use crate::keyspace::Keyspace;
    use crate::net::stream::{Address, Stream};
    use crate::replication::following::{Following, Progress};
    use crate::resp::reply::{OutputBuffer, ReplyWriter};
    use crate::resp::request::Range;
    use crate::script::Running;
    use crate::state::context::Origin;
    use crate::state::{Pause, PauseCause};
    use crate::sys::log::Logger;

    fn state(config: &str) -> State {
        let config = Config::from_text(config.as_bytes()).expect("a good configuration");
        let poll = mio::Poll::new().expect("a poll");
        let mut state = State::new(&TABLE, config, Clock::System, Logger::silent(), poll);
        state.refresh_fast_path();
        state
    }

    fn busy_script() -> Running {
        Running {
            client: None,
            command: TABLE.find(b"eval").expect("a command").id,
            by_eval: true,
            read_only: false,
            allow_oom: false,
            out_of_memory: false,
            wrote: false,
            killed: None,
            rolls_back: false,
            is_dropped: false,
            is_busy: true,
            busy_at_us: 0,
            others_heard: false,
            name: Box::default(),
            slot: None,
            allows_cross_slot: true,
        }
    }

    /// Each cause that closes the gate, alone and together with each other one.
    fn causes() -> Vec<State> {
        let mut states = Vec::new();
        for bits in 0..256_u32 {
            let is = |bit: u32| bits & 1 << bit != 0;
            let mut config = String::new();
            config.push_str(if is(0) { "maxmemory 1gb\n" } else { "" });
            config.push_str(if is(1) { "min-replicas-to-write 1\n" } else { "" });
            config.push_str(if is(6) { "replica-serve-stale-data no\n" } else { "" });
            let mut state = state(&config);
            if is(5) {
                let mut following = Following::new(b"127.0.0.1".to_vec(), 6379);
                following.progress = if is(0) { Progress::Connect } else { Progress::Connected };
                state.replication.following = Some(Box::new(following));
                state.refresh_fast_path();
            }
            if is(2) {
                state.scripts.running = Some(busy_script());
                state.refresh_fast_path();
            }
            if is(3) {
                state.add_monitor(crate::ids::ClientId { slot: 99, number: 99 });
            }
            if is(4) {
                let until_us = state.now.boot_us + 1_000_000;
                state.set_pause(PauseCause::Asked, Some(Pause { until_us, writes_only: false }));
            }
            if is(7) {
                let id = NodeId::from_bytes(&[b'a'; NodeId::BYTES]).expect("a name");
                let mut cluster = Cluster::new(id, Settings::default(), 1);
                let myself = cluster.my_index();
                HashSlot::all().for_each(|slot| cluster.own_for_test(slot, Some(myself)));
                cluster.set_ok_for_test(true);
                state.node.cluster = Some(Box::new(cluster));
                state.refresh_fast_path();
            }
            states.push(state);
        }
        states
    }

    fn core(state: State, databases: usize) -> Core {
        Core { keyspace: Keyspace::new(databases, KeyHasher::new([1, 2]), state.now), state }
    }

    #[test]
    fn an_open_gate_says_what_admit_says() {
        let (mut opened, mut queued, mut opened_on_replicas, mut opened_in_cluster) = (0, 0, 0, 0);
        for state in causes() {
            let mut core = core(state, 1);
            let (stream, _) = mio::net::UnixStream::pair().expect("a pair of sockets");
            let id = core.state.clients.insert(|id| {
                let flags = ClientFlags::AUTHENTICATED;
                Client::new(id, flags, Stream::Unix(stream), Address::Unknown, Address::Unknown, 0)
            });
            for command in &TABLE.commands {
                for count in 1..6 {
                    let ranges = vec![Range { start: 0, len: 1 }; count];
                    let args = Args::new(b"x", &ranges);
                    if !is_open(&core, command, args) {
                        continue;
                    }
                    opened += 1;
                    opened_in_cluster += usize::from(core.state.node.cluster.is_some());
                    opened_on_replicas += usize::from(core.state.replication.is_replica());
                    let (caller, protocol) = (Caller::Client(id), Protocol::Resp2);
                    let asked = Asked { caller, command, args, protocol, room: None };
                    let verdict = admit(&core, &asked);
                    assert!(matches!(verdict, Verdict::Run), "{}: {verdict:?}", command.full_name);
                    assert!(command.spec.accepts(count) && command.spec.handler.is_some());
                    if !command.is_queueable() {
                        continue;
                    }
                    queued += 1;
                    let transaction = |core: &mut Core, there: Option<Box<Transaction>>| {
                        core.state.clients.get_mut(id).expect("it is there").transaction = there;
                    };
                    transaction(&mut core, Some(Box::default()));
                    let verdict = admit(&core, &asked);
                    assert!(
                        matches!(verdict, Verdict::Queue),
                        "{}: {verdict:?}",
                        command.full_name
                    );
                    transaction(&mut core, None);
                }
            }
        }
        assert!(opened > 300, "the gate was open for {opened} requests");
        assert!(queued > 300, "{queued} requests were queued");
        let is_open = opened_in_cluster > 300;
        assert!(is_open, "a node's gate was open for {opened_in_cluster} requests");
        let is_open = opened_on_replicas > 300;
        assert!(is_open, "a replica's gate was open for {opened_on_replicas} requests");
    }

    #[test]
    fn a_command_that_needs_a_client_does_not_run_without_one() {
        let core = core(state(""), 1);
        for command in &TABLE.commands {
            let args = Args::new(b"", &[]);
            let caller = Caller::Load;
            let asked = Asked { caller, command, args, protocol: Protocol::Resp2, room: None };
            let runs = matches!(admit(&core, &asked), Verdict::Run);
            assert_eq!(runs, !command.is(Flags::NEEDS_CLIENT), "{}", command.full_name);
        }
    }

    /// A command without `NEEDS_CLIENT` never asks for its client, whatever its arguments. Left out
    /// are commands that write files, wait for other clients, or end the process by design.
    #[test]
    fn commands_run_without_a_client() {
        let left_out = ["debug", "save", "bgsave", "bgrewriteaof", "migrate", "config|rewrite"];
        let mut core = core(state(""), 16);
        core.state.stats.timing.start();
        let words: [&[u8]; 7] = [b"1", b"key", b"0", b"1", b"2", b"1", b"1"];
        for command in &TABLE.commands {
            let name: &str = &command.full_name;
            if command.is(Flags::NEEDS_CLIENT) || left_out.contains(&name) {
                continue;
            }
            for count in 0..=words.len() {
                let mut request: Vec<&[u8]> = name.split('|').map(str::as_bytes).collect();
                request.extend(&words[..count]);
                let (mut buffer, mut ranges) = (Vec::new(), Vec::new());
                for word in &request {
                    ranges.push(Range { start: buffer.len() as u32, len: word.len() as u32 });
                    buffer.extend_from_slice(word);
                }
                let args = Args::new(&buffer, &ranges);
                let mut output = OutputBuffer::default();
                let reply = ReplyWriter::new(&mut output, Protocol::Resp2);
                let command = TABLE.find(args.get(0)).unwrap_or(&TABLE.unknown);
                let request = Request::new(command, args, Origin::Client);
                let caller = Caller::Load;
                // It does not matter whether the request is refused, fails or runs.
                let _ = Gate::new(&mut core, caller, reply).run_trusted(&request);
            }
        }
    }
}
