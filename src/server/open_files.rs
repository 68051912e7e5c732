//! The limit of open files at the start.

use crate::config::{Config, system_text};
use crate::sys::log::Level;
use crate::sys::process::{self, RESERVED_FILES};

/// The result of adjusting the limit.
pub struct Allowed {
    /// For the log.
    pub lines: Vec<(Level, String)>,
    /// Clients can be served.
    pub is_enough: bool,
}

/// Raises the limit of open files for `maxclients`, or lowers `maxclients` to fit the limit.
pub fn allow_files(config: &mut Config) -> Allowed {
    let asked = config.maxclients;
    let wanted = asked as u64 + RESERVED_FILES;
    let files = process::raise_open_files(wanted);
    let mut lines = Vec::new();
    if files.limit >= wanted {
        if files.before < wanted {
            let line = format!(
                "Increased maximum number of open files to {wanted} (it was originally set to {}).",
                files.before
            );
            lines.push((Level::Notice, line));
        }
        return Allowed { lines, is_enough: true };
    }
    if files.limit <= RESERVED_FILES {
        let line = format!(
            "Your current 'ulimit -n' of {} is not enough for the server to start. Please increase your open file \
             limit to at least {wanted}. Exiting.",
            files.before
        );
        lines.push((Level::Warning, line));
        return Allowed { lines, is_enough: false };
    }
    config.maxclients = (files.limit - RESERVED_FILES) as u32;
    let reason = files.error.map_or_else(String::new, |error| system_text(&error));
    let told = [
        format!(
            "You requested maxclients of {asked} requiring at least {wanted} max file descriptors."
        ),
        format!("Server can't set maximum open files to {wanted} because of OS error: {reason}."),
        format!(
            "Current maximum open files is {}. maxclients has been reduced to {} to compensate for low ulimit. If you \
             need higher maxclients increase 'ulimit -n'.",
            files.limit, config.maxclients
        ),
    ];
    lines.extend(told.map(|line| (Level::Warning, line)));
    Allowed { lines, is_enough: true }
}
