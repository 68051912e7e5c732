//! What the values mean: strings and the structures kept inside strings.

pub mod bitmap;
pub mod hyperloglog;
pub mod lcs;
