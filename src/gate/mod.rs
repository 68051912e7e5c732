//! How every command runs, whether sent by a client, EXEC or a script, and what else acts upon the server's state.
//!
//! - The gate: `execute` runs a command, and `admit` says whether it may run, with `users`, `evict`, `redirect` and `limits`.
//!   `spec` and `table` say what commands there are, `keys` which arguments are keys, `context` what a handler gets.
//!   `blocking`, `acks` and `transaction` are commands that wait; `tracking`, `monitor` and `publish` tell others.
//! - State: `state` is what the server owns besides the keyspace; `effect` is what a command changes, as requests.
//! - Durability: `persistence` writes effects and snapshots, `load` reads them, `unexpected` reports what fails there.
//! - Roles: `following` is the link to a primary, with `looked_up` requests; `replicas` are those of this server; `failover` and
//!   `restart` are changes of role, and protection against a wrong one.
//!
//! The families above are known here by their specifications alone.

pub mod acks;
pub mod admit;
pub mod blocking;
pub mod context;
pub mod effect;
pub mod evict;
pub mod execute;
pub mod failover;
pub mod following;
pub mod keys;
pub mod limits;
pub mod load;
pub mod locks;
pub mod looked_up;
pub mod monitor;
pub mod persistence;
pub mod publish;
pub mod redirect;
pub mod replicas;
pub mod restart;
pub mod sessions;
pub mod spec;
pub mod state;
pub mod table;
pub mod tracking;
pub mod transaction;
pub mod unexpected;
pub mod users;
