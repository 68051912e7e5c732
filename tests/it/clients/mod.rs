//! What clients do, what one may cost the others, and what is left when they go.

mod costs;
mod lent_values;
mod memory_after_use;
mod migrate;
mod robustness;
mod slow_readers;
mod tls;
mod waits;
