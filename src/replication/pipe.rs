//! A file that is none: what a thread writes to it the loop takes out and sends, in memory that is bounded.
//!
//! ```text
//!   saver's thread -- write --> pieces -- take --> loop, which tells how far everybody has come
//! ```
//!
//! The writer waits while who is slowest is too far behind. Who closes the pipe ends the writer with `BrokenPipe`.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use crate::sys::disk::DiskFile;

/// What was written and not yet released may take so much before the writer waits. Unit: bytes.
const HELD_BYTES_MAX: u64 = 16 << 20;
/// Bytes of a piece.
const PIECE_BYTES: usize = 64 << 10;

/// See the module.
pub struct Pipe {
    state: Mutex<State>,
    room: Condvar,
    wake: Arc<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct State {
    /// What was written and not taken.
    pieces: Vec<Vec<u8>>,
    written: u64,
    released: u64,
    is_closed: bool,
}

impl Pipe {
    /// `wake` is called when there is something to take.
    pub fn new(wake: Arc<dyn Fn() + Send + Sync>) -> Self {
        Pipe { state: Mutex::default(), room: Condvar::new(), wake }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Takes what was written since the last call, in order.
    pub fn take(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.lock().pieces)
    }

    /// Everybody has been sent all before this place.
    pub fn release(&self, place: u64) {
        self.lock().released = place;
        self.room.notify_one();
    }

    /// Nobody takes any more.
    pub fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        state.pieces.clear();
        self.room.notify_one();
    }
}

impl std::fmt::Debug for Pipe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pipe").field("written", &self.lock().written).finish_non_exhaustive()
    }
}

impl DiskFile for Pipe {
    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.lock();
        while state.written - state.released >= HELD_BYTES_MAX && !state.is_closed {
            state = self.room.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        if state.is_closed {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let was_empty = state.pieces.is_empty();
        let count = bytes.len().min(PIECE_BYTES);
        state.written += count as u64;
        match state.pieces.last_mut() {
            Some(piece) if piece.len() + count <= PIECE_BYTES => {
                piece.extend_from_slice(&bytes[..count]);
            }
            _ => {
                let mut piece = Vec::with_capacity(PIECE_BYTES);
                piece.extend_from_slice(&bytes[..count]);
                state.pieces.push(piece);
            }
        }
        drop(state);
        if was_empty {
            (self.wake)();
        }
        Ok(count)
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.lock().written)
    }

    fn start_writeback(&self, _from: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::disk::write_all;

    #[test]
    fn a_writer_waits_for_who_is_slowest_and_ends_when_nobody_takes() {
        let pipe = Arc::new(Pipe::new(Arc::new(|| ())));
        let theirs = pipe.clone();
        let writer = std::thread::spawn(move || {
            let bytes: Vec<u8> = (0..3 * HELD_BYTES_MAX).map(|at| at as u8).collect();
            let whole = write_all(&*theirs, &bytes);
            let then = write_all(&*theirs, &bytes);
            (whole, then)
        });
        let mut taken = 0u64;
        while taken < 3 * HELD_BYTES_MAX {
            for piece in pipe.take() {
                for byte in piece {
                    assert_eq!(byte, taken as u8);
                    taken += 1;
                }
            }
            assert!(pipe.size().unwrap() <= taken + HELD_BYTES_MAX + 2 * PIECE_BYTES as u64);
            pipe.release(taken);
        }
        pipe.close();
        let (whole, then) = writer.join().unwrap();
        assert!(whole.is_ok());
        assert_eq!(then.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
