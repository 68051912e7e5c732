//! Lends the inputs of clients whose RESTORE has a large payload to threads, and resumes the
//! clients when the values are decoded (`state/arriving.rs`).

use crate::client::{ClientId, Input};
use crate::persist::rdb::payload::PayloadError;
use crate::persist::saver::lock;
use crate::resp::args::Args;
use crate::resp::request::{Limits, Parsed, Parser};
use crate::roles::moving::make_beside;
use crate::state::State;
use crate::state::arriving::{Decode, Decoded, Restored};
use crate::state::moving::ThreadResult;

/// The index of RESTORE's payload among its arguments.
pub const PAYLOAD: usize = 3;

/// Starts to decode the payloads that were asked for, and resumes clients whose values are ready. A
/// thread frees the values that no client waits for any more, because they are large.
pub fn turn(state: &mut State) {
    if state.arriving.is_empty() {
        return;
    }
    let clients = &state.clients;
    let is_there = |id| clients.get(id).is_some_and(|client| !client.is_closing());
    let unwanted = state.arriving.take_unwanted(is_there);
    if !unwanted.is_empty() {
        // Without a thread they are freed here.
        _ = state.persistence.background().spawn("restore", move || drop(unwanted));
    }
    for (client, decode) in state.arriving.take_asked() {
        lend(state, client, decode);
    }
    for (client, input) in state.arriving.take_arrived() {
        give_back(state, client, input);
    }
}

/// Lends a client's input to a thread, which decodes the payload of its first request.
fn lend(state: &mut State, id: ClientId, decode: Decode) {
    let Some(client) = state.clients.get_mut(id) else { return };
    let bytes = client.input.len();
    let input = std::mem::replace(&mut client.input, Input::Lent(bytes)).into_bytes();
    // If no thread can be started, the input is still here.
    let lent = ThreadResult::<Vec<u8>>::default();
    *lock(&lent) = Some(input);
    let theirs = lent.clone();
    let begun = make_beside(state, "restore", move || {
        let mut input = lock(&theirs).take().unwrap_or_default();
        let restored = decode_first(&mut input, decode);
        Decoded { restored, input }
    });
    match begun {
        Ok(place) => state.arriving.begin(id, place),
        Err(_) => {
            let input = lock(&lent).take();
            give_back(state, id, input.unwrap_or_default());
        }
    }
}

fn decode_first(input: &mut [u8], decode: Decode) -> Restored {
    let mut ranges = Vec::new();
    match Parser::default().next(input, &mut 0, &mut ranges, &Limits::TRUSTED) {
        Ok(Parsed::Request) if ranges.len() > PAYLOAD => {
            decode(Args::new(input, &ranges).get(PAYLOAD))
        }
        // The first request is not the RESTORE.
        _ => Err(PayloadError::Footer),
    }
}

/// Resumes a client with its input.
fn give_back(state: &mut State, id: ClientId, input: Vec<u8>) {
    if let Some(client) = state.clients.get_mut(id)
        && matches!(client.input, Input::Lent(_))
    {
        client.input = Input::Waiting(input);
        state.net.pending.resumed.push(id);
    }
}
