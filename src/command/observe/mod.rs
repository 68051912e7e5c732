//! Commands that show the server's state: INFO (`info`), MEMORY (`memory`), LATENCY (`latency`),
//! SLOWLOG and COMMANDLOG (`command_log`), MONITOR (`monitor`), HOTKEYS (`hot_keys`).

pub(crate) mod command_log;
pub(crate) mod hot_keys;
pub(crate) mod info;
pub(crate) mod latency;
pub(crate) mod memory;
pub(crate) mod monitor;
