//! The gate's part of transactions: queueing commands, and marking a transaction as failed.

use crate::acl::databases::number_of;
use crate::client::{Client, ClientFlags};
use crate::error::CommandError;
use crate::gate::request::Request;
use crate::keyspace::Keyspace;
use crate::state::State;
use crate::state::context::Caller;
use crate::state::spec::DatabaseUse;

/// Queues a command of a client in a transaction.
pub fn queue(state: &mut State, caller: Caller, request: &Request<'_>) -> Result<(), CommandError> {
    let &Request { command, args, hashes, .. } = request;
    let flags = state.flags_of(command, args);
    let Some(client) = caller.client().and_then(|id| state.clients.get_mut(id)) else {
        return Ok(());
    };
    let Some(transaction) = &mut client.transaction else { return Ok(()) };
    // EXEC will run none of them, so this one need not be kept.
    if !transaction.failed && !transaction.queue(command.id, flags, args, hashes) {
        return Err(CommandError::Text("ERR transaction is too large"));
    }
    client.last_command = Some(command.id);
    if command.spec.databases == DatabaseUse::Selects && args.len() > 1 {
        let selected = number_of(args, 1, state.config.database_count());
        transaction.database = selected.or(transaction.database);
    }
    Ok(())
}

/// Marks the client's transaction as failed if it has one, because a command was refused.
pub(crate) fn fail(state: &mut State, caller: Caller) {
    if let Some(client) = caller.client().and_then(|id| state.clients.get_mut(id))
        && let Some(transaction) = &mut client.transaction
    {
        transaction.mark_failed();
    }
}

/// The reply to an EXEC that was itself refused.
pub(crate) fn refused(error: &CommandError) -> CommandError {
    let sends_elsewhere = matches!(
        error,
        CommandError::Redirect(..) | CommandError::Moved(_) | CommandError::Cluster(_)
    );
    if sends_elsewhere {
        return error.clone();
    }
    let text = error.wire();
    let reason = text.strip_prefix(b"ERR ").unwrap_or(&text);
    let text = b"EXECABORT Transaction discarded because of: ";
    CommandError::formatted([&text[..], reason].concat())
}

/// Ends a client's transaction, and unwatches its keys.
pub fn abandon(keyspace: &mut Keyspace, client: &mut Client) {
    client.transaction = None;
    client.flags.remove(ClientFlags::IN_TRANSACTION);
    forget_watched(keyspace, client);
}

pub fn forget_watched(keyspace: &mut Keyspace, client: &mut Client) {
    if let Some(watching) = client.watching.take() {
        watching.keys().for_each(|(database, key, _)| keyspace.watch.remove(database, key));
    }
}
