//! The protocol: bytes to requests, replies to bytes. Knows no server.
