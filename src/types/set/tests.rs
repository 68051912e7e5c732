use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;
