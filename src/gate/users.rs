//! Clients' users: permission checks, their errors, and the effects on clients when their user
//! changes.

use std::collections::HashSet;

use crate::acl::databases::DatabasesUsed;
use crate::acl::log::{self, LogContext};
use crate::acl::{self, ChangedUser, Denied, Format, Reason, User, allows_channel};
use crate::client::{Client, ClientFlags, ClientId};
use crate::config::{AclPubsubDefault, Config};
use crate::error::CommandError;
use crate::gate::closing::close_client;
use crate::gate::keys::keys_of;
use crate::gate::limits::describe_client;
use crate::gate::request::Request;
use crate::ids::UserId;
use crate::keyspace::DbIndex;
use crate::pubsub::{Kind, Subscriptions};
use crate::resp::args::Args;
use crate::state::context::Origin;
use crate::state::spec::{Categories, Flags, all_categories};
use crate::state::table::Command;
use crate::state::{Core, State};

/// Whether new users and selectors may access all channels.
pub fn all_channels(config: &Config) -> bool {
    config.acl_pubsub_default == AclPubsubDefault::AllChannels
}

/// The format in which users and their rules are shown.
pub fn rule_format(state: &State) -> Format {
    match state.config.reports_7_2() {
        _ if state.config.compatible_with.is_valkey() => Format::Valkey9,
        true => Format::Redis72,
        false => Format::Redis70,
    }
}

// ---- checks -------------------------------------------------------------------------------------

/// Whether a client may run a request.
#[inline]
pub fn check(
    state: &State,
    client: &Client,
    command: &Command,
    args: Args<'_>,
) -> Result<(), Denied> {
    if !client.flags.contains(ClientFlags::RESTRICTED) {
        return Ok(());
    }
    check_user(state.acl.user(client.user), command, args, databases(state, client))
}

/// The databases that a request may access.
#[derive(Clone, Copy)]
pub struct Databases {
    /// The selected one; for a client, after its queued commands.
    pub selected: DbIndex,
    pub count: usize,
}

fn databases(state: &State, client: &Client) -> Databases {
    let queued = client.transaction.as_deref().and_then(|transaction| transaction.database);
    let selected = queued.unwrap_or(client.database);
    Databases { selected, count: state.database_count() }
}

/// As [`check`], for a client that may be closed. None: a file is being loaded, and everything is
/// permitted.
pub fn check_client(
    state: &State,
    id: Option<ClientId>,
    command: &Command,
    args: Args<'_>,
) -> Result<(), Denied> {
    match id.and_then(|id| state.clients.get(id)) {
        Some(client) => check(state, client, command, args),
        None => Ok(()),
    }
}

/// Whether a user may run a request.
#[cold]
pub fn check_user(
    user: &User,
    command: &Command,
    args: Args<'_>,
    databases: Databases,
) -> Result<(), Denied> {
    user.check(&request(command, args, &|| keys_of(command.spec, args), databases))
}

/// Whether a client's request may read keys whose names are computed from data (as SORT's GET).
pub fn may_read_any_key(
    state: &State,
    id: Option<ClientId>,
    command: &Command,
    args: Args<'_>,
) -> bool {
    let Some(client) = id.and_then(|id| state.clients.get(id)) else { return true };
    !client.flags.contains(ClientFlags::RESTRICTED)
        || state.acl.user(client.user).may_read_any_key(&request(
            command,
            args,
            &|| keys_of(command.spec, args),
            databases(state, client),
        ))
}

fn request<'a>(
    command: &Command,
    args: Args<'a>,
    keys: &'a dyn Fn() -> Vec<crate::facts::KeyPosition>,
    databases: Databases,
) -> acl::Request<'a> {
    let Databases { selected, count } = databases;
    let has_keys = !command.spec.keys.is_empty();
    let key_categories = Categories::KEYSPACE | Categories::READ | Categories::WRITE;
    let touches_keys = has_keys || all_categories(command.spec).intersects(key_categories);
    let named = command.spec.databases;
    acl::Request {
        command: command.id,
        needs_no_permission: command.is(Flags::NO_AUTH),
        args,
        keys,
        channels: command.spec.channels,
        databases: DatabasesUsed { named, selected, count, has_keys, touches_keys },
    }
}

// ---- errors -------------------------------------------------------------------------------------

/// The error for a denied request.
pub fn denied_error(
    state: &State,
    id: Option<ClientId>,
    command: &Command,
    denied: Denied,
) -> CommandError {
    if state.config.reports_7_2() {
        let text = denied_text(user_of(state, id), command, denied);
        return CommandError::formatted([b"NOPERM ", &text[..]].concat());
    }
    let what = match denied.reason {
        Reason::Key => "access one of the keys used as arguments".to_owned(),
        Reason::Channel => "access one of the channels used as arguments".to_owned(),
        Reason::Database => "access database".to_owned(),
        Reason::Command | Reason::Auth => format!("run the '{}' command", command.full_name),
    };
    CommandError::formatted(format!("NOPERM this user has no permissions to {what}"))
}

/// The text of a denial, as in Redis 7.2 and later.
fn denied_text(user: &[u8], command: &Command, denied: Denied) -> Vec<u8> {
    match denied.reason {
        Reason::Key => b"No permissions to access a key".to_vec(),
        Reason::Channel => b"No permissions to access a channel".to_vec(),
        Reason::Database => b"No permissions to access database".to_vec(),
        Reason::Command | Reason::Auth => may_not_run(&[b"User ", user].concat(), command),
    }
}

fn may_not_run(who: &[u8], command: &Command) -> Vec<u8> {
    let name = command.full_name.as_bytes();
    [who, b" has no permissions to run the '", name, b"' command"].concat()
}

/// The text of a denial in ACL DRYRUN, which names the key, channel or database.
pub fn dry_run_text(state: &State, user: &[u8], denied: Denied, request: &Request<'_>) -> Vec<u8> {
    let &Request { command, args, .. } = request;
    let who = match state.config.reports_7_2() {
        true => [b"User ", user].concat(),
        false => b"This user".to_vec(),
    };
    let kind: &[u8] = match denied.reason {
        Reason::Key => b"key",
        Reason::Channel => b"channel",
        Reason::Database => {
            let object = args.get(denied.argument);
            return [&who[..], b" has no permissions to access database ", object].concat();
        }
        Reason::Command | Reason::Auth => return may_not_run(&who, command),
    };
    let object = args.get(denied.argument);
    [&who[..], b" has no permissions to access the '", object, b"' ", kind].concat()
}

/// The name of a client's user.
fn user_of(state: &State, id: Option<ClientId>) -> &[u8] {
    let client = id.and_then(|id| state.clients.get(id));
    state.acl.name(client.map_or(UserId::DEFAULT, |client| client.user))
}

/// The error of EXEC for a command that was permitted when it was queued.
pub fn exec_denied_error(denied: Denied) -> CommandError {
    CommandError::Text(match denied.reason {
        Reason::Command | Reason::Auth => {
            "NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC call. This command \
             is no longer allowed for the following reason: no permission to execute the command or subcommand"
        }
        Reason::Database => {
            "NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC call. This command \
             is no longer allowed for the following reason: no permission"
        }
        Reason::Key => {
            "NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC call. This command \
             is no longer allowed for the following reason: no permission to touch the specified keys"
        }
        Reason::Channel => {
            "NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC call. This command \
             is no longer allowed for the following reason: no permission to access one of the channels used as arguments"
        }
    })
}

/// The error for a denied command of a client's script.
pub fn script_denied_text(
    state: &State,
    id: Option<ClientId>,
    command: &Command,
    denied: Denied,
) -> Vec<u8> {
    if state.config.reports_7_2() {
        let text = denied_text(user_of(state, id), command, denied);
        return [b"ERR ACL failure in script: ", &text[..]].concat();
    }
    let what: &[u8] = match denied.reason {
        Reason::Command | Reason::Auth => b"run this command or subcommand",
        Reason::Key => b"access at least one of the keys mentioned in the command arguments",
        Reason::Channel => b"publish to the channel mentioned in the command",
        Reason::Database => b"access this database",
    };
    [b"ERR The user executing the script can't ", what].concat()
}

/// Counts a denied request, and adds it to the ACL log.
#[cold]
pub fn log_denied(state: &mut State, id: Option<ClientId>, denied: Denied, request: &Request<'_>) {
    let &Request { command, args, origin, .. } = request;
    // The client's line names the command that it has sent.
    let (sent, context) = match origin {
        Origin::Script => {
            let running = state.scripts.running.as_ref();
            (running.map(|running| running.command), Some(LogContext::Script))
        }
        Origin::Transaction => {
            (state.find_command(b"exec").map(|exec| exec.id), Some(LogContext::Transaction))
        }
        Origin::Client | Origin::Stream | Origin::Woken(_) | Origin::TimedOut => {
            (Some(command.id), None)
        }
    };
    let Some(id) = id else { return };
    let Some(client) = state.clients.get_mut(id) else { return };
    client.last_command = sent;
    let object: Box<[u8]> = match denied.reason {
        Reason::Command => command.full_name.as_bytes().into(),
        Reason::Database if denied.argument == 0 => command.full_name.as_bytes().into(),
        Reason::Key | Reason::Channel | Reason::Auth | Reason::Database => {
            args.get(denied.argument).into()
        }
    };
    let user = state.acl.name(client.user).into();
    log_event(state, id, context, Refused { reason: denied.reason, object, user });
}

/// What was refused, and to whom.
struct Refused {
    reason: Reason,
    /// The command, key or channel; for a wrong password the command's name as sent.
    object: Box<[u8]>,
    user: Box<[u8]>,
}

/// `context` None: the client sent the request itself.
fn log_event(state: &mut State, id: ClientId, context: Option<LogContext>, refused: Refused) {
    let Refused { reason, object, user } = refused;
    let counters = &mut state.stats.counters;
    *match reason {
        Reason::Auth => &mut counters.acl_denied_auth,
        Reason::Command => &mut counters.acl_denied_cmd,
        Reason::Key => &mut counters.acl_denied_key,
        Reason::Channel => &mut counters.acl_denied_channel,
        Reason::Database => &mut counters.acl_denied_db,
    } += 1;
    let is_queuing = state.clients.get(id).is_some_and(|client| client.transaction.is_some());
    let default = if is_queuing { LogContext::Transaction } else { LogContext::TopLevel };
    let event = log::Event {
        reason,
        context: context.unwrap_or(default),
        object,
        user,
        at_ms: state.now.wall_us / 1000,
        client: describe_client(state, id),
    };
    let max_len = state.config.acllog_max_len;
    state.acl.log.add(event, max_len);
}

// ---- a client's user ----------------------------------------------------------------------------

/// Sets a client's user and the flags that follow from it.
fn set_user(client: &mut Client, user: UserId, is_unrestricted: bool) {
    client.user = user;
    client.flags.set(ClientFlags::RESTRICTED, !is_unrestricted);
}

/// The flags of a new client: those of the default user. The client is authenticated if that user
/// needs no password.
pub fn initial_flags(state: &State) -> ClientFlags {
    let mut flags = ClientFlags::empty();
    flags.set(ClientFlags::AUTHENTICATED, !state.acl.requires_auth());
    flags.set(ClientFlags::RESTRICTED, !state.acl.user(UserId::DEFAULT).is_unrestricted());
    flags
}

/// Resets a client to the default user, as after connecting.
pub fn log_out(state: &mut State, id: ClientId) {
    let flags = initial_flags(state);
    if let Some(client) = state.clients.get_mut(id) {
        client.user = UserId::DEFAULT;
        client.flags.remove(ClientFlags::AUTHENTICATED | ClientFlags::RESTRICTED);
        client.flags |= flags;
    }
}

/// Adds a wrong password for the user of this name to the ACL log. `object`: the command's name as
/// sent.
pub fn log_wrong_password(state: &mut State, id: ClientId, name: &[u8], object: &[u8]) {
    let refused = Refused { reason: Reason::Auth, object: object.into(), user: name.into() };
    log_event(state, id, None, refused);
}

/// Sets a client's user, and marks it as authenticated.
pub fn log_in(state: &mut State, id: ClientId, user: UserId) {
    let is_unrestricted = state.acl.user(user).is_unrestricted();
    if let Some(client) = state.clients.get_mut(id) {
        set_user(client, user, is_unrestricted);
        client.flags |= ClientFlags::AUTHENTICATED;
    }
}

// ---- users that change --------------------------------------------------------------------------

/// Updates the clients of a changed user, and closes those that are subscribed to channels it may
/// no longer access. True: the `caller` must be closed too.
pub fn update_clients_of(core: &mut Core, changed: &ChangedUser, caller: Option<ClientId>) -> bool {
    let is_unrestricted = core.state.acl.user(changed.id).is_unrestricted();
    let mut closing = Vec::new();
    for client in core.state.clients.iter_mut().filter(|client| client.user == changed.id) {
        set_user(client, changed.id, is_unrestricted);
        if let (Some(permitted), Some(subscriptions)) =
            (&changed.remaining_channels, &client.subscriptions)
            && exceeds_channels(subscriptions, permitted)
        {
            closing.push(client.id);
        }
    }
    close_all(core, &closing, caller)
}

/// Whether a client is subscribed to a channel that no pattern permits.
fn exceeds_channels(subscriptions: &Subscriptions, permitted: &[Box<[u8]>]) -> bool {
    [Kind::Pattern, Kind::Channel, Kind::Shard].into_iter().any(|kind| {
        let is_pattern = kind == Kind::Pattern;
        subscriptions.of(kind).iter().any(|name| !allows_channel(permitted, name, is_pattern))
    })
}

/// Closes the clients of deleted users. True: the `caller` must be closed too.
pub fn close_clients_of(core: &mut Core, deleted: &[UserId], caller: Option<ClientId>) -> bool {
    let is_unrestricted = core.state.acl.user(UserId::DEFAULT).is_unrestricted();
    let deleted: HashSet<UserId> = deleted.iter().copied().collect();
    let mut closing = Vec::new();
    for client in core.state.clients.iter_mut().filter(|client| deleted.contains(&client.user)) {
        set_user(client, UserId::DEFAULT, is_unrestricted);
        client.flags.remove(ClientFlags::AUTHENTICATED);
        closing.push(client.id);
    }
    close_all(core, &closing, caller)
}

/// Closes all clients but the caller, whose reply must be sent first. True: the caller is among
/// them.
fn close_all(core: &mut Core, closing: &[ClientId], caller: Option<ClientId>) -> bool {
    closing.iter().filter(|&&id| Some(id) != caller).for_each(|&id| close_client(core, id));
    caller.is_some_and(|caller| closing.contains(&caller))
}
