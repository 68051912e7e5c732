//! Moving the log to another folder: the second log that gets the same bytes until it takes the
//! place of the first one.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use super::{AppendLog, Increment};
use crate::clock::Now;
use crate::config::AppendFsync;
use crate::config::system_text;
use crate::persist::aof::folder::AofFolder;
use crate::sys::log::Level;

impl AppendLog {
    /// Begins the move to another folder: `current` is an increment there, and gets all that is
    /// appended from now on. Call it between commands, when the snapshot for its base is taken. An
    /// earlier move is given up. Errors: the system refuses a thread.
    pub fn begin_move(
        &mut self,
        folder: Arc<Mutex<AofFolder>>,
        current: Increment,
        wake: Box<dyn Fn() + Send + Sync>,
    ) -> io::Result<()> {
        // Under `always` its errors would end the process.
        let log = AppendLog::new(folder, current, 0, 0, AppendFsync::EverySecond, wake);
        let mut log = log.behind(self.end());
        if self.thread.is_some() {
            log.spawn()?;
        }
        self.successor = Some(Box::new(log));
        Ok(())
    }

    /// Whether the log is moving to another folder.
    pub fn is_moving(&self) -> bool {
        self.successor.is_some()
    }

    /// Gives up the move.
    pub fn give_up_move(&mut self) {
        self.successor = None;
    }

    /// Makes the log in the other folder durable up to its end. Waits for the disk. Errors: it
    /// lacks a part, and the move must be given up.
    pub fn complete_successor(&mut self, now: Now) -> Result<(), String> {
        let successor = self.successor.as_mut().ok_or("the move has been given up")?;
        successor.write_out(now).map_err(|fatal| fatal.to_string())?;
        let current = &successor.current;
        current.file.sync_data().map_err(|error| system_text(&error))?;
        if let Some(failed) = &successor.shared.lock().failed {
            return Err(failed.text.clone());
        }
        if !successor.current_sync(false).is_whole() {
            return Err(format!("{} was removed, replaced or cut", current.path.display()));
        }
        successor.shared.synced.fetch_max(successor.written.0, Ordering::Release);
        Ok(())
    }

    /// Ends the move after [`AppendLog::complete_successor`]: closes the old log. Offsets stay
    /// valid.
    pub fn end_move(&mut self, now: Now) {
        let Some(successor) = self.successor.take() else { return };
        let mut old = std::mem::replace(self, *successor);
        self.policy = old.policy;
        self.paused = old.paused;
        self.timestamps = old.timestamps;
        self.last_timestamp = old.last_timestamp;
        self.flush_delay = old.flush_delay;
        self.delayed_fsync += old.delayed_fsync;
        self.notices.splice(0..0, old.take_notices());
        // Its disk may be the reason for the move, and its data are in the other folder too.
        if let Err(why) = old.close(now) {
            self.notices.push((Level::Notice, format!("{why} (the old one)")));
        }
    }
}
