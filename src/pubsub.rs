//! Publish and subscribe: who listens to which channel or pattern.
//!
//! A message is encoded once per protocol and appended to each listener's output by `command/pubsub.rs`; this module only
//! keeps who subscribed to what.

use std::collections::HashMap;

use crate::ids::ClientId;

/// All subscriptions, by channel and by pattern.
#[derive(Default)]
pub struct PubSub {
    pub channels: HashMap<Box<[u8]>, Vec<ClientId>>,
    /// In the order of their first subscriber.
    pub patterns: Vec<(Box<[u8]>, Vec<ClientId>)>,
    pub shard_channels: HashMap<Box<[u8]>, Vec<ClientId>>,
}
