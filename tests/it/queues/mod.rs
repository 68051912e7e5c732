//! Queues without scripts: streams with groups, delayed jobs, dead letters (docs/queues.md).

mod costs;
mod model;
