//! The identity of a table.

/// A table's unique identity. It moves with the table when databases are exchanged; an emptied
/// database gets a new table, and a script's rollback restores the old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableId(pub u64);
