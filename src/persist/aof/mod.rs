//! The append-only file: all write commands, in order, in a folder of files listed by a manifest.
//!
//! Effects of commands are appended to the last increment (`log`); a rewrite replaces earlier files
//! with a new base (`folder`); each state of the folder is a [`manifest::Manifest`]. At the start
//! the files are read in the manifest's order (`load`, `reader`), and a tail that a crash has cut
//! short is truncated.
//!
//! Formats and the order of operations: `docs/aof.md`. Knows nothing of commands, clients and keys.

pub mod ahead;
pub mod folder;
pub mod load;
pub mod log;
pub mod manifest;
pub mod reader;
pub mod rewrite;

pub use folder::{AofFolder, BaseFormat};
pub use manifest::{AofFile, Manifest, ManifestError};
