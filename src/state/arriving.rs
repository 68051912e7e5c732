//! Values of RESTORE that threads decode: a large one holds up its own client only, as one that MIGRATE sends away does.
//!
//!   RESTORE -> a thread has the payload, the client waits -> the value is there -> the same request runs again and takes it
//!
//! Nothing depends on a value that is dropped in between: the request has its payload decoded anew.

use std::collections::HashMap;

use crate::ids::ClientId;
use crate::persist::rdb::payload::PayloadError;
use crate::persist::saver::lock;
use crate::state::moving::Beside;
use crate::types::Stored;

/// The result of decoding a payload.
pub type Restored = Result<Stored, PayloadError>;

/// Payloads that are decoded at the same time.
const THREADS_MAX: usize = 4;
/// Version and checksum, by which a payload is recognised.
const FOOTER_BYTES: usize = 10;

struct Arrival {
    bytes: usize,
    footer: Box<[u8]>,
    place: Beside<Restored>,
    /// Its client was told to try again.
    is_told: bool,
}

/// By client: each waits for one value at most.
#[derive(Default)]
pub struct Arriving {
    arrivals: HashMap<ClientId, Arrival>,
}

impl Arriving {
    /// Whether another thread may begin.
    pub fn has_room(&self) -> bool {
        self.arrivals.values().filter(|arrival| !arrival.is_told).count() < THREADS_MAX
    }

    /// A thread leaves the value of this client's payload at `place`.
    pub fn begin(&mut self, client: ClientId, payload: &[u8], place: Beside<Restored>) {
        let (bytes, footer) = (payload.len(), footer(payload).into());
        self.arrivals.insert(client, Arrival { bytes, footer, place, is_told: false });
    }

    /// Takes the value of this client's payload. None: none was decoded, or that of another one.
    pub fn take(&mut self, client: ClientId, payload: &[u8]) -> Option<Restored> {
        let arrival = self.arrivals.remove(&client)?;
        let is_same = arrival.bytes == payload.len() && *arrival.footer == *footer(payload);
        let restored = lock(&arrival.place).take();
        restored.filter(|_| is_same)
    }

    /// Clients whose values are there since the last call.
    pub fn take_arrived(&mut self) -> Vec<ClientId> {
        let mut arrived = Vec::new();
        for (client, arrival) in &mut self.arrivals {
            if !arrival.is_told && lock(&arrival.place).is_some() {
                arrival.is_told = true;
                arrived.push(*client);
            }
        }
        arrived
    }

    /// Forgets values that are there and that nobody waits for: the client has gone, or its request was refused. Returns them.
    pub fn take_unwanted(&mut self, waits: impl Fn(ClientId) -> bool) -> Vec<Beside<Restored>> {
        let is_unwanted = |client: &ClientId, arrival: &mut Arrival| {
            !waits(*client) && lock(&arrival.place).is_some()
        };
        self.arrivals.extract_if(is_unwanted).map(|(_, arrival)| arrival.place).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.arrivals.is_empty()
    }
}

fn footer(payload: &[u8]) -> &[u8] {
    &payload[payload.len().saturating_sub(FOOTER_BYTES)..]
}
