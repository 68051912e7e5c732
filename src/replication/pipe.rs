//! A bounded pipe in memory with the interface of a file: a thread writes a snapshot, the loop
//! takes it out and sends it.
//!
//! ```text
//!   saver's thread -- write --> pieces -- take --> loop, which releases what all replicas have been sent
//! ```
//!
//! The writer waits while the slowest replica lags too far, unless it is not a thread of its own.
//! Closing the pipe fails the writer with `BrokenPipe`.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use crate::sys::alloc;
use crate::sys::disk::DiskFile;

/// The most that a pipe holds. Unit: bytes.
const HELD_BYTES_MAX: u64 = 16 << 20;
/// The largest piece. Unit: bytes.
const PIECE_BYTES: usize = 64 << 10;

/// See the module.
pub struct Pipe {
    state: Mutex<State>,
    room: Condvar,
    /// The writer waits when at least this number of bytes is written and not released. Unit:
    /// bytes.
    held_max: u64,
    wake: Arc<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct State {
    /// Written and not taken.
    pieces: Vec<Vec<u8>>,
    written: u64,
    released: u64,
    is_closed: bool,
}

impl Pipe {
    /// `wake` is called when the pipe is no longer empty. Without `is_bounded` the writer never
    /// waits.
    pub fn new(wake: Arc<dyn Fn() + Send + Sync>, is_bounded: bool) -> Self {
        let held_max = if is_bounded { HELD_BYTES_MAX } else { u64::MAX };
        Pipe { state: Mutex::default(), room: Condvar::new(), held_max, wake }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Takes the bytes written since the last call.
    pub fn take(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.lock().pieces)
    }

    /// Bytes of memory of pieces that are not taken.
    pub fn memory(&self) -> usize {
        self.lock().pieces.len() * PIECE_BYTES
    }

    /// All replicas have been sent the bytes before `at`.
    pub fn release(&self, at: u64) {
        self.lock().released = at;
        self.room.notify_one();
    }

    /// Makes further writes fail.
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
        while state.written - state.released >= self.held_max && !state.is_closed {
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
                // The loop frees the piece, so its memory counts as the loop's.
                let mut piece = alloc::counted(None, || Vec::with_capacity(PIECE_BYTES));
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

    fn lock(&self) -> io::Result<bool> {
        Ok(true)
    }

    fn start_writeback(&self, _from: u64, _len: u64) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::disk::write_all;

    #[test]
    fn a_writer_waits_for_the_slowest_and_fails_when_the_pipe_is_closed() {
        let pipe = Arc::new(Pipe::new(Arc::new(|| ()), true));
        let in_thread = pipe.clone();
        let writer = std::thread::spawn(move || {
            let bytes: Vec<u8> = (0..3 * HELD_BYTES_MAX).map(|at| at as u8).collect();
            let whole = write_all(&*in_thread, &bytes);
            let then = write_all(&*in_thread, &bytes);
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
