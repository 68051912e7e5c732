//! What a replica knows of its primary.

/// The primary that is followed.
#[derive(Debug)]
pub struct Following {
    pub host: Vec<u8>,
    pub port: u16,
}

impl Following {
    /// Whether the link stands, and its data is here.
    pub fn is_connected(&self) -> bool {
        false
    }
}
