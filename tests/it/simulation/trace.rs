//! What has happened, in one number: two runs of a seed have the same.

/// The events of a run.
pub struct Trace {
    hash: u64,
    pub events: u64,
    /// Shown as they come.
    pub is_shown: bool,
}

impl Trace {
    pub fn new(is_shown: bool) -> Self {
        Trace { hash: 0xcbf2_9ce4_8422_2325, events: 0, is_shown }
    }

    pub fn note(&mut self, event: impl FnOnce() -> String) {
        let event = event();
        if self.is_shown {
            println!("{event}");
        }
        self.events += 1;
        // FNV-1a.
        for byte in event.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    pub fn hash(&self) -> u64 {
        self.hash
    }
}
