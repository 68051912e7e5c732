//! What a primary knows of one replica.

/// A client that follows this server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    /// The offset of the first byte of the stream that it has not been sent.
    pub next: u64,
    /// The last offset it has acknowledged.
    pub acknowledged: u64,
}
