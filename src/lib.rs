//! Latchkey: a Redis-protocol server.
//!
//! A request's way: `server` reads a client's bytes, `resp` parses the request, `gate` looks the
//! command up and runs its handler from `command`, which accesses values through `keyspace`, and
//! the reply collects in the client's output until the turn of the loop ends. A row may use its own
//! row and those below it:
//!
//! ```text
//! server  tools                            owns all state; runs one turn of the loop; programs beside the server
//! http                                     probes, metrics and the page
//! command                                  one folder or file for each family: specifications and handlers
//! figures                                  the table of all that is counted and measured
//! roles                                    a primary and its replicas, and the change between the roles
//! durability                               saving, the append-only file, and loading
//! waiting                                  waits: how they begin, are served, and end
//! gate                                     how every command runs, whoever sends it
//! state                                    what the server owns besides the keyspace; what a command is
//! client                                   a client's state: protocol, transaction, tracking; all waits
//! net                                      bytes in and out
//! script  persist  replication  cluster    pass requests up to be run; never run one themselves
//! keyspace  pubsub  acl  config  stats     what commands act upon
//! types                                    the types of values
//! collections  resp  clock  error  facts  ids  sys   know nothing of clients, configuration or each other's callers
//! ```

pub mod acl;
pub mod client;
pub mod clock;
pub mod cluster;
pub mod collections;
pub mod command;
pub mod config;
pub mod durability;
pub mod error;
pub mod facts;
pub mod figures;
pub mod gate;
pub mod http;
pub mod ids;
pub mod keyspace;
pub mod net;
pub mod persist;
pub mod pubsub;
pub mod replication;
pub mod resp;
pub mod roles;
pub mod script;
pub mod server;
pub mod state;
pub mod stats;
pub mod sys;
pub mod tools;
pub mod types;
pub mod waiting;

// Miri knows no foreign allocator.
#[cfg(not(miri))]
#[global_allocator]
static ALLOCATOR: sys::alloc::Jemalloc = sys::alloc::Jemalloc;
