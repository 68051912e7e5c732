//! The gate: how every command runs, whether sent by a client, EXEC or a script.
//!
//! - `request` is what runs. `execute` runs it, after `admit` has decided (`verdict`) by the rules
//!   of `users`, `evict` and `redirect`. `limits` are those of clients' output and memory;
//!   `closing` takes a client out of all lists.
//! - `keys` says which arguments are keys; `looked_up` is the knowledge about a request before its
//!   run; `effect` is a command's changes, as requests.
//! - `blocking`, `asynchronous` (waits without a blocked client), `acks`, `confirm` (locks that
//!   replicas have to acknowledge) and `transaction` are commands that wait, and `waking` runs
//!   those whose key has changed; `tracking`, `monitor` and
//!   `publish` tell others.
//! - `locks` finds locks that ended by themselves or by force; `readers` are those who hold one
//!   together; `sessions` and `permits` renew the leases of connections that show life; `cycles`
//!   finds owners that wait for each other.
//!
//! The families above are known here by their specifications alone.

pub mod acks;
pub mod admit;
pub mod asynchronous;
pub mod blocking;
pub mod closing;
pub mod confirm;
pub mod cycles;
pub mod effect;
pub mod evict;
pub mod execute;
pub mod keys;
pub mod limits;
pub mod locks;
pub mod looked_up;
pub mod monitor;
pub mod permits;
pub mod publish;
pub mod readers;
pub mod redirect;
pub mod request;
pub mod sessions;
pub mod tracking;
pub mod transaction;
pub mod users;
pub mod verdict;
pub mod waking;
