//! Values of RESTORE that threads decode. A large one delays only its own client, as a large value
//! of MIGRATE does.
//!
//! ```text
//!   RESTORE -> the client waits, a thread has its input -> the input is back, the value is there -> the request runs again
//! ```
//!
//! The input is lent rather than copied, because it may have hundreds of megabytes. A value may be
//! dropped before it is taken: the request then decodes its payload again.

use std::collections::BTreeMap;

use crate::ids::ClientId;
use crate::persist::rdb::payload::PayloadError;
use crate::persist::saver::lock;
use crate::state::moving::ThreadResult;
use crate::types::Stored;

/// The result of decoding a payload.
pub type Restored = Result<Stored, PayloadError>;

/// Decodes a payload, in a thread.
pub type Decode = Box<dyn FnOnce(&[u8]) -> Restored + Send>;

/// A value, and the input that had its payload.
pub struct Decoded {
    pub restored: Restored,
    pub input: Vec<u8>,
}

/// The most payloads decoded at the same time.
const THREADS_MAX: usize = 4;
/// Version and checksum, by which a payload is recognised.
const FOOTER_BYTES: usize = 10;

/// A value that is being decoded.
pub struct Arrival {
    bytes: usize,
    footer: Box<[u8]>,
    stage: Stage,
}

/// The progress of a value.
enum Stage {
    /// The client still has its input.
    Asked(Decode),
    /// A thread has the input.
    Away(ThreadResult<Decoded>),
    Here(Restored),
    /// No thread is available: the loop decodes the payload.
    NoThread,
}

/// The answer to a request that wants its value.
pub enum Taken {
    Value(Restored),
    /// The value is not known yet: a thread is to decode it.
    Absent,
    NoThread,
}

/// The values by client; each client waits for one at most.
#[derive(Default)]
pub struct Arriving {
    arrivals: BTreeMap<ClientId, Arrival>,
    /// Clients that have their input back.
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

    /// Makes a thread decode this client's payload, from the end of this turn on.
    pub fn ask(&mut self, client: ClientId, payload: &[u8], decode: Decode) {
        let (bytes, footer) = (payload.len(), footer(payload).into());
        self.arrivals.insert(client, Arrival { bytes, footer, stage: Stage::Asked(decode) });
    }

    /// Takes the clients whose payloads threads are to decode, and how. Each counts as without a
    /// thread until [`Self::begin`].
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

    /// Notes that a thread will leave the value of this client's payload, and its input, at
    /// `place`.
    pub fn begin(&mut self, client: ClientId, place: ThreadResult<Decoded>) {
        if let Some(arrival) = self.arrivals.get_mut(&client) {
            arrival.stage = Stage::Away(place);
        }
    }

    /// Takes the inputs of the clients whose values are decoded.
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

    /// Takes the clients that got their input back since the last call: they may be read again.
    pub fn take_returned(&mut self) -> Vec<ClientId> {
        std::mem::take(&mut self.returned)
    }

    /// Removes and returns the values that no request will take: the client is gone, or its request
    /// has run again without its value.
    pub fn take_unwanted(&mut self, is_there: impl Fn(ClientId) -> bool) -> Vec<Arrival> {
        let is_unwanted = |(client, arrival): &(&ClientId, &Arrival)| match &arrival.stage {
            Stage::Asked(_) => !is_there(**client),
            // A thread counts as busy until it has ended.
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
