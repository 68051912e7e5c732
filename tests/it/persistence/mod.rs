//! Files: what is saved, what is loaded, and what a damaged or foreign file does.

mod atomic_log_switch;
mod backup;
mod backward_compatibility;
mod data_folder;
mod deadlines;
pub(crate) mod dump;
mod rdb_grammar;
mod reload;
mod restarts;
mod shared_values;
mod upgrade;
