//! What a replica knows of its primary.

/// The primary that is followed.
#[derive(Debug)]
pub struct Following {
    pub host: Vec<u8>,
    pub port: u16,
}
