//! Values of RESTORE that threads decode: a large one holds up its own client only, as one that
//! MIGRATE sends away does.
//!
//! ```text
//!   RESTORE -> the client waits, a thread has its input -> the input is back, the value is there -> the request runs again
//! ```
//!
//! The input is lent rather than copied: it may have hundreds of megabytes. Nothing depends on a
//! value that is dropped in between: the request has its payload decoded anew.

use std::collections::BTreeMap;

use crate::ids::ClientId;
use crate::persist::rdb::payload::PayloadError;
use crate::persist::saver::lock;
use crate::state::moving::Beside;
use crate::types::Stored;

/// The result of decoding a payload.
pub type Restored = Result<Stored, PayloadError>;

/// Decodes a payload, in a thread.
pub type Decode = Box<dyn FnOnce(&[u8]) -> Restored + Send>;

/// A value, and the input that it was in.
pub struct Decoded {
    pub restored: Restored,
    pub input: Vec<u8>,
}

/// Payloads that are decoded at the same time.
const THREADS_MAX: usize = 4;
/// Version and checksum, by which a payload is recognised.
const FOOTER_BYTES: usize = 10;

/// A value on its way.
pub struct Arrival {
    bytes: usize,
    footer: Box<[u8]>,
    stage: Stage,
}

/// How far a value is.
enum Stage {
    /// The client's input is still its own.
    Asked(Decode),
    /// A thread has it.
    Away(Beside<Decoded>),
    Here(Restored),
    /// There is no thread: the loop decodes the payload.
    NoThread,
}

/// The answer to a request that wants its value.
pub enum Taken {
    Value(Restored),
    /// A thread is to decode it.
    Absent,
    NoThread,
}

/// By client: each waits for one value at most.
#[derive(Default)]
pub struct Arriving {
    arrivals: BTreeMap<ClientId, Arrival>,
    /// Clients whose input is back.
    returned: Vec<ClientId>,
}

impl Arriving {
    /// Takes the value of this client's payload.
    pub fn take(&mut self, client: ClientId, payload: &[u8]) -> Taken {
        if let Some(arrival) = self.arrivals.remove(&client)
            && arrival.bytes == payload.len()
            && *arrival.footer == *footer(payload)
        {
            match arrival.stage {
                Stage::Here(restored) => return Taken::Value(restored),
                Stage::NoThread => return Taken::NoThread,
                Stage::Asked(_) | Stage::Away(_) => {}
            }
        }
        if self.has_room() { Taken::Absent } else { Taken::NoThread }
    }

    fn has_room(&self) -> bool {
        let takes_thread = |it: &&Arrival| matches!(it.stage, Stage::Asked(_) | Stage::Away(_));
        self.arrivals.values().filter(takes_thread).count() < THREADS_MAX
    }

    /// At the end of this turn a thread is to decode this client's payload.
    pub fn ask(&mut self, client: ClientId, payload: &[u8], decode: Decode) {
        let (bytes, footer) = (payload.len(), footer(payload).into());
        self.arrivals.insert(client, Arrival { bytes, footer, stage: Stage::Asked(decode) });
    }

    /// Clients whose payloads threads are to decode, and how. Each has no thread until
    /// [`Self::begin`].
    pub fn take_asked(&mut self) -> Vec<(ClientId, Decode)> {
        let mut asked = Vec::new();
        for (client, Arrival { stage, .. }) in &mut self.arrivals {
            if matches!(stage, Stage::Asked(_))
                && let Stage::Asked(decode) = std::mem::replace(stage, Stage::NoThread)
            {
                asked.push((*client, decode));
            }
        }
        asked
    }

    /// A thread leaves the value of this client's payload, and its input, at `place`.
    pub fn begin(&mut self, client: ClientId, place: Beside<Decoded>) {
        if let Some(arrival) = self.arrivals.get_mut(&client) {
            arrival.stage = Stage::Away(place);
        }
    }

    /// Clients whose values have come, and their inputs.
    pub fn take_arrived(&mut self) -> Vec<(ClientId, Vec<u8>)> {
        let mut arrived = Vec::new();
        for (client, arrival) in &mut self.arrivals {
            if let Stage::Away(place) = &arrival.stage
                && let Some(Decoded { restored, input }) = { lock(place).take() }
            {
                arrival.stage = Stage::Here(restored);
                self.returned.push(*client);
                arrived.push((*client, input));
            }
        }
        arrived
    }

    /// Clients whose input is back since the last call: they may be read again.
    pub fn take_returned(&mut self) -> Vec<ClientId> {
        std::mem::take(&mut self.returned)
    }

    /// Forgets values that were not taken: the client has gone, or its request has run again
    /// without its value. Returns them.
    pub fn take_unwanted(&mut self, is_there: impl Fn(ClientId) -> bool) -> Vec<Arrival> {
        let is_unwanted = |(client, arrival): &(&ClientId, &Arrival)| match &arrival.stage {
            Stage::Asked(_) => !is_there(**client),
            // A thread counts until it has ended.
            Stage::Away(place) => !is_there(**client) && lock(place).is_some(),
            Stage::Here(_) | Stage::NoThread => true,
        };
        let unwanted = self.arrivals.iter().filter(is_unwanted).map(|(client, _)| *client);
        let unwanted: Vec<ClientId> = unwanted.collect();
        unwanted.iter().filter_map(|client| self.arrivals.remove(client)).collect()
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.arrivals.is_empty()
    }
}

fn footer(payload: &[u8]) -> &[u8] {
    &payload[payload.len().saturating_sub(FOOTER_BYTES)..]
}
