//! The gate: how every command runs, whether sent by a client, EXEC or a script.
//!
//! - `request` is a request and its outcome. `execute` runs it, after `admit` has decided
//!   (`verdict`) by the rules of `users`, `evict`, `redirect` and `cluster`. `limits` bounds
//!   clients' output and memory; `link_line` is the line of CLIENT LIST for the link to the
//!   primary; `closing` takes a client out of all lists.
//! - `keys` finds the arguments that are keys; `looked_up` is the result of looking up a request
//!   before it runs; `effect` turns a command's changes into requests.
//! - `transaction` queues commands until EXEC. `tracking`, `monitor` and `publish` notify other
//!   clients.
//! - `handed` takes back elements and permits of clients that go before their reply has left.
//! - `locks` finds locks that ended by themselves or by force; `lock_writer` writes a lock that one
//!   owner holds, `readers` those of owners that hold one together; `sessions` and `permits` renew
//!   the leases of connections that show life; `cycles` finds owners that wait for each other.
//! - `moving` keeps requests from writing a key that is on its way to another server.
//! - `announced` checks in debug builds that only announced writers change data.
//! - `slot_costs` counts the costs of requests for their slots, `hot_keys` for their keys.
//!
//! The gate knows the families of commands by their specifications alone.

pub mod admit;
#[cfg(debug_assertions)]
mod announced;
pub mod closing;
pub mod cluster;
pub mod cycles;
pub mod effect;
pub mod evict;
pub mod execute;
pub mod handed;
pub mod hot_keys;
pub mod keys;
pub mod limits;
pub mod link_line;
pub mod lock_writer;
pub mod locks;
pub mod looked_up;
pub mod monitor;
pub mod moving;
pub mod permits;
pub mod publish;
pub mod readers;
pub mod redirect;
pub mod request;
pub mod sessions;
pub mod slot_costs;
pub mod tracking;
pub mod transaction;
pub mod users;
pub mod verdict;
