//! The append-only file: every write command that was answered, in order, in a folder of files that a manifest names.
//!
//! What a command changed comes in as bytes and goes to the end of the current increment (`log`); a rewrite puts a new base
//! in place of what was (`folder`), each state of the folder being one [`manifest::Manifest`]. At a start the files are read
//! in the manifest's order (`load`, `reader`), and a tail that a crash tore is cut back.
//!
//! Bytes and orders of operations: `docs/aof.md`. Knows files and the protocol; refuses to know commands, clients and keys.

pub mod ahead;
pub mod folder;
pub mod load;
pub mod log;
pub mod manifest;
pub mod reader;
pub mod rewrite;

pub use folder::{AofFolder, BaseFormat};
pub use manifest::{AofFile, Manifest, ManifestError};
