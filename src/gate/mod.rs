//! How every command runs, whether sent by a client, EXEC or a script.
//!
//! `execute` is the gate itself; `admit` says whether a command may run; `spec` and `table` say what commands there are. The
//! families above are known here by their specifications alone.

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
pub mod looked_up;
pub mod monitor;
pub mod persistence;
pub mod publish;
pub mod redirect;
pub mod replicas;
pub mod restart;
pub mod spec;
pub mod state;
pub mod table;
pub mod tracking;
pub mod transaction;
pub mod users;
