//! Who holds which lock of a cluster, as the holders know it.

use std::collections::BTreeMap;

/// A grant, until the holder gives it up or may not rely on it any more.
#[derive(Clone, Debug)]
struct Held {
    owner: String,
    until_us: i64,
}

#[derive(Default)]
pub struct Holdings {
    held: BTreeMap<String, Held>,
    pub grants: u64,
}

impl Holdings {
    /// Notes a grant, on which its holder relies until then. Errors: another one relies on its own.
    pub fn grant(
        &mut self,
        key: &str,
        owner: &str,
        (now_us, until_us): (i64, i64),
    ) -> Result<(), String> {
        self.grants += 1;
        let held = Held { owner: owner.to_owned(), until_us };
        match self.held.insert(key.to_owned(), held) {
            Some(other) if other.until_us > now_us => {
                let left_us = other.until_us - now_us;
                Err(format!(
                    "{key} is granted to {owner}, and {} has it for {left_us} us",
                    other.owner
                ))
            }
            _ => Ok(()),
        }
    }

    /// Notes that an owner gives a lock up, if it still has it.
    pub fn give_up(&mut self, key: &str, owner: &str) {
        if self.held.get(key).is_some_and(|held| held.owner == owner) {
            self.held.remove(key);
        }
    }

    /// Nobody relies on anything any more.
    pub fn forget(&mut self) {
        self.held.clear();
    }
}
