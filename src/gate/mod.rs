//! The gate: how every command runs, whether sent by a client, EXEC or a script.
//!
//! - `execute` runs a command, and `admit` says whether it may run, with `users`, `evict`, `redirect` and `limits`.
//! - `keys` says which arguments are keys; `looked_up` is what was found out about a request ahead of its run; `effect` is what
//!   a command changes, as requests.
//! - `blocking`, `acks` and `transaction` are commands that wait; `tracking`, `monitor` and `publish` tell others.
//!
//! The families above are known here by their specifications alone.

pub mod acks;
pub mod admit;
pub mod blocking;
pub mod effect;
pub mod evict;
pub mod execute;
pub mod keys;
pub mod limits;
pub mod looked_up;
pub mod monitor;
pub mod publish;
pub mod redirect;
pub mod tracking;
pub mod transaction;
pub mod users;
