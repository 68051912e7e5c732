//! Clients and their users: permission checks, the errors they give, and closing clients whose user changes.

use std::collections::HashSet;

use crate::acl::catalogue::{Catalogue, Entry};
use crate::acl::databases::DatabasesUsed;
use crate::acl::log::{self, Place};
use crate::acl::{Changed, Denied, Form, Reason, Request, User, allows_channel};
use crate::client::{Client, ClientFlags, ClientId};
use crate::config::AclPubsubDefault;
use crate::error::CommandError;
use crate::gate::keys::keys_of;
use crate::gate::limits::{describe_client, forget_client};
use crate::gate::spec::{Categories, Flags, all_categories};
use crate::gate::state::State;
use crate::gate::table::{Command, CommandTable};
use crate::gate::tracking;
use crate::ids::UserId;
use crate::keyspace::Keyspace;
use crate::pubsub::{Kind, Subscriptions};
use crate::resp::args::Args;

/// The commands as ACL rules name them.
pub fn catalogue(commands: &CommandTable) -> Catalogue {
    let entry = |command: &Command| Entry {
        id: command.id,
        name: command.full_name.clone(),
        categories: all_categories(command.spec),
        is_sub: command.parent.is_some(),
        subcommands: command.subcommands.clone(),
    };
    Catalogue::new(commands.commands.iter().map(entry).collect())
}

/// Whether new users and selectors may access all channels.
pub fn all_channels(server: &State) -> bool {
    server.config.acl_pubsub_default == AclPubsubDefault::AllChannels
}

/// The format in which users are shown.
pub fn form(server: &State) -> Form {
    match server.config.reports_7_2() {
        _ if server.config.compatible_with.is_valkey() => Form::Valkey9,
        true => Form::Redis72,
        false => Form::Redis70,
    }
}

// ---- checks --------------------------------------------------------------------------------------------------------------

/// Whether a client may run a request.
#[inline]
pub fn check(
    server: &State,
    client: &Client,
    command: &Command,
    args: Args<'_>,
) -> Result<(), Denied> {
    if !client.flags.contains(ClientFlags::RESTRICTED) {
        return Ok(());
    }
    check_user(server.acl.user(client.user), command, args, databases(server, client))
}

/// The selected database after the client's queued commands, and the number of databases.
fn databases(server: &State, client: &Client) -> (usize, usize) {
    let queued = client.transaction.as_deref().and_then(|transaction| transaction.database);
    (queued.unwrap_or(client.db), server.config.databases as usize)
}

/// As [`check`], for a client that may be gone, or None for a file being loaded, with full rights.
pub fn check_of(
    server: &State,
    id: Option<ClientId>,
    command: &Command,
    args: Args<'_>,
) -> Result<(), Denied> {
    match id.and_then(|id| server.clients.get(id)) {
        Some(client) => check(server, client, command, args),
        None => Ok(()),
    }
}

/// Whether a user may run a request. `databases`: the selected one, and their number.
#[cold]
pub fn check_user(
    user: &User,
    command: &Command,
    args: Args<'_>,
    databases: (usize, usize),
) -> Result<(), Denied> {
    user.check(&request(command, args, &|| keys_of(command.spec, args), databases))
}

/// Whether a client's request may read keys whose names are computed from data (as SORT's GET).
pub fn may_read_any_key(
    server: &State,
    id: Option<ClientId>,
    command: &Command,
    args: Args<'_>,
) -> bool {
    let Some(client) = id.and_then(|id| server.clients.get(id)) else { return true };
    !client.flags.contains(ClientFlags::RESTRICTED)
        || server.acl.user(client.user).may_read_any_key(&request(
            command,
            args,
            &|| keys_of(command.spec, args),
            databases(server, client),
        ))
}

fn request<'a>(
    command: &Command,
    args: Args<'a>,
    keys: &'a dyn Fn() -> Vec<crate::facts::KeyPosition>,
    (selected, count): (usize, usize),
) -> Request<'a> {
    let has_keys = !command.spec.keys.is_empty();
    let of_keys = Categories::KEYSPACE | Categories::READ | Categories::WRITE;
    let touches_keys = has_keys || all_categories(command.spec).intersects(of_keys);
    let named = command.spec.databases;
    Request {
        command: command.id,
        is_free: command.is(Flags::NO_AUTH),
        args,
        keys,
        channels: command.spec.channels,
        databases: DatabasesUsed { named, selected, count, has_keys, touches_keys },
    }
}

// ---- errors --------------------------------------------------------------------------------------------------------------

/// The error for a client whose request is denied.
pub fn refusal(
    server: &State,
    id: Option<ClientId>,
    command: &Command,
    denied: Denied,
) -> CommandError {
    if server.config.reports_7_2() {
        let told = denial(user_of(server, id), command, denied);
        return CommandError::formatted([b"NOPERM ", &told[..]].concat());
    }
    let what = match denied.reason {
        Reason::Key => "access one of the keys used as arguments".to_owned(),
        Reason::Channel => "access one of the channels used as arguments".to_owned(),
        Reason::Database => "access database".to_owned(),
        Reason::Command | Reason::Auth => format!("run the '{}' command", command.full_name),
    };
    CommandError::formatted(format!("NOPERM this user has no permissions to {what}"))
}

/// A denial in the words of Redis 7.2 and later.
fn denial(user: &[u8], command: &Command, denied: Denied) -> Vec<u8> {
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

/// A denial in ACL DRYRUN: with the key or channel.
pub fn denial_in_full(
    server: &State,
    user: &[u8],
    command: &Command,
    denied: Denied,
    args: Args<'_>,
) -> Vec<u8> {
    let who = match server.config.reports_7_2() {
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
fn user_of(server: &State, id: Option<ClientId>) -> &[u8] {
    let client = id.and_then(|id| server.clients.get(id));
    server.acl.name(client.map_or(UserId::DEFAULT, |client| client.user))
}

/// EXEC's error for a command that was permitted when it was queued.
pub fn refusal_by_exec(denied: Denied) -> CommandError {
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

/// The error for a client's script.
pub fn refusal_in_script(
    server: &State,
    id: Option<ClientId>,
    command: &Command,
    denied: Denied,
) -> Vec<u8> {
    if server.config.reports_7_2() {
        let told = denial(user_of(server, id), command, denied);
        return [b"ERR ACL failure in script: ", &told[..]].concat();
    }
    let what: &[u8] = match denied.reason {
        Reason::Command | Reason::Auth => b"run this command or subcommand",
        Reason::Key => b"access at least one of the keys mentioned in the command arguments",
        Reason::Channel => b"publish to the channel mentioned in the command",
        Reason::Database => b"access this database",
    };
    [b"ERR The user executing the script can't ", what].concat()
}

/// Counts a denied request, and adds it to the ACL log. Without a `place` it is a client's own request.
#[cold]
pub fn note_denied(
    server: &mut State,
    id: Option<ClientId>,
    place: Option<Place>,
    denied: Denied,
    command: &Command,
    args: Args<'_>,
) {
    let Some(client) = id.and_then(|id| server.clients.get(id)) else { return };
    let object: Box<[u8]> = match denied.reason {
        Reason::Command => command.full_name.as_bytes().into(),
        Reason::Database if denied.argument == 0 => command.full_name.as_bytes().into(),
        Reason::Key | Reason::Channel | Reason::Auth | Reason::Database => {
            args.get(denied.argument).into()
        }
    };
    let user = server.acl.name(client.user).into();
    note(server, client.id, place, denied.reason, object, user);
}

fn note(
    server: &mut State,
    id: ClientId,
    place: Option<Place>,
    reason: Reason,
    object: Box<[u8]>,
    user: Box<[u8]>,
) {
    let counters = &mut server.stats.counters;
    *match reason {
        Reason::Auth => &mut counters.acl_denied_auth,
        Reason::Command => &mut counters.acl_denied_cmd,
        Reason::Key => &mut counters.acl_denied_key,
        Reason::Channel => &mut counters.acl_denied_channel,
        Reason::Database => &mut counters.acl_denied_db,
    } += 1;
    let queues = server.clients.get(id).is_some_and(|client| client.transaction.is_some());
    let own = if queues { Place::Transaction } else { Place::TopLevel };
    let event = log::Event {
        reason,
        place: place.unwrap_or(own),
        object,
        user,
        at_ms: server.now.wall_us / 1000,
        client: describe_client(server, id),
    };
    let max_len = server.config.acllog_max_len;
    server.acl.log.note(event, max_len);
}

// ---- a client's user -----------------------------------------------------------------------------------------------------

/// Sets a client's user and the flags that follow from it.
fn set_user(client: &mut Client, user: UserId, is_full: bool) {
    client.user = user;
    client.flags.set(ClientFlags::RESTRICTED, !is_full);
}

/// The flags of a new client: the default user's, authenticated if that needs no password.
pub fn first_flags(server: &State) -> ClientFlags {
    let mut flags = ClientFlags::empty();
    flags.set(ClientFlags::AUTHENTICATED, !server.acl.asks_password());
    flags.set(ClientFlags::RESTRICTED, !server.acl.user(UserId::DEFAULT).is_full());
    flags
}

/// Resets a client to the default user, as when it connected.
pub fn forget_user(server: &mut State, id: ClientId) {
    let flags = first_flags(server);
    if let Some(client) = server.clients.get_mut(id) {
        client.user = UserId::DEFAULT;
        client.flags.remove(ClientFlags::AUTHENTICATED | ClientFlags::RESTRICTED);
        client.flags |= flags;
    }
}

/// Finds the user with this name and password. A failure is added to the ACL log, with `object`: the command's name as sent.
pub fn find_user(
    server: &mut State,
    id: ClientId,
    name: &[u8],
    password: &[u8],
    object: &[u8],
) -> Result<UserId, CommandError> {
    if let Some(user) = server.acl.authenticate(name, password) {
        return Ok(user);
    }
    note(server, id, None, Reason::Auth, object.into(), name.into());
    Err(CommandError::WrongPassword)
}

/// Sets a client's user.
pub fn become_user(server: &mut State, id: ClientId, user: UserId) {
    let is_full = server.acl.user(user).is_full();
    if let Some(client) = server.clients.get_mut(id) {
        set_user(client, user, is_full);
        client.flags |= ClientFlags::AUTHENTICATED;
    }
}

// ---- users that change ---------------------------------------------------------------------------------------------------

/// Updates the clients of a changed user, and closes subscribers of channels it may no longer access. True: `own` is
/// among the closed.
pub fn user_changed(
    db: &mut Keyspace,
    server: &mut State,
    changed: &Changed,
    own: Option<ClientId>,
) -> bool {
    let is_full = server.acl.user(changed.id).is_full();
    let mut gone = Vec::new();
    for client in server.clients.iter_mut().filter(|client| client.user == changed.id) {
        set_user(client, changed.id, is_full);
        if let (Some(left), Some(subscriptions)) = (&changed.channels_left, &client.subscriptions)
            && exceeds_channels(subscriptions, left)
        {
            gone.push(client.id);
        }
    }
    close_all(db, server, &gone, own)
}

/// Whether a client is subscribed to a channel that no pattern permits.
fn exceeds_channels(subscriptions: &Subscriptions, permitted: &[Box<[u8]>]) -> bool {
    [Kind::Pattern, Kind::Channel, Kind::Shard].into_iter().any(|kind| {
        let is_pattern = kind == Kind::Pattern;
        subscriptions.of(kind).iter().any(|name| !allows_channel(permitted, name, is_pattern))
    })
}

/// Closes the clients of deleted users. True: `own` is among them.
pub fn users_deleted(
    db: &mut Keyspace,
    server: &mut State,
    deleted: &[UserId],
    own: Option<ClientId>,
) -> bool {
    let is_full = server.acl.user(UserId::DEFAULT).is_full();
    let deleted: HashSet<UserId> = deleted.iter().copied().collect();
    let mut gone = Vec::new();
    for client in server.clients.iter_mut().filter(|client| deleted.contains(&client.user)) {
        set_user(client, UserId::DEFAULT, is_full);
        client.flags.remove(ClientFlags::AUTHENTICATED);
        gone.push(client.id);
    }
    close_all(db, server, &gone, own)
}

fn close_all(
    db: &mut Keyspace,
    server: &mut State,
    gone: &[ClientId],
    own: Option<ClientId>,
) -> bool {
    gone.iter().filter(|&&id| Some(id) != own).for_each(|&id| end_client(db, server, id));
    own.is_some_and(|own| gone.contains(&own))
}

/// Closes a client: it is inactive at once, though its socket is closed at the end of the turn.
pub fn end_client(db: &mut Keyspace, server: &mut State, id: ClientId) {
    forget_client(server, id);
    tracking::stop(db, server, id);
    server.clients.close(id);
}
