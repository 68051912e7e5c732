//! The watchdog: a thread that interrupts long-running scripts.
//!
//! It costs a script two stores. While scripts run the thread wakes every few milliseconds; the
//! run's number shows whether the same script still runs. After `busy-reply-threshold` the thread
//! sets the flag that the interpreter checks at its safepoints (loops, calls, pattern matching),
//! repeatedly while the script lasts. Counting inside the interpreter instead, in every loop, costs
//! up to 15%.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::sys::alloc::Apart;

/// Interval of checks while nothing runs. A script whose start was missed, because its signal came
/// just before the thread slept, is seen then.
const IDLE: Duration = Duration::from_secs(1);
/// Interval of interrupts of a busy script: the longest time until other clients are served again.
const BUSY: Duration = Duration::from_millis(2);
/// Checks without any script before the thread sleeps.
const QUIET_LOOKS: u32 = 20;

/// Interrupts the interpreter, from another thread.
pub trait Interrupt: Send + 'static {
    fn interrupt(&self);
}

#[derive(Default)]
struct Shared {
    /// The number of the current run; 0: no script runs.
    run: AtomicU64,
    /// The number of the run that was interrupted last.
    interrupted: AtomicU64,
    after_ms: AtomicU64,
    awake: AtomicBool,
    ended: AtomicBool,
}

/// The watchdog of one interpreter. Its thread ends when this is dropped.
pub struct Watchdog {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    runs: u64,
}

impl Watchdog {
    pub fn start(target: impl Interrupt) -> Self {
        // The thread frees a part of the memory that is allocated to start it.
        let _apart = Apart::begin();
        let shared = Arc::<Shared>::default();
        let seen = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("script watchdog".into())
            .spawn(move || watch(&seen, &target))
            .ok();
        Watchdog { shared, thread, runs: 0 }
    }

    /// A script starts. After `after_ms` milliseconds it is interrupted; 0: never.
    #[inline]
    pub fn begin(&mut self, after_ms: u64) {
        self.runs += 1;
        if after_ms == 0 {
            return;
        }
        self.shared.after_ms.store(after_ms, Ordering::Relaxed);
        self.shared.run.store(self.runs, Ordering::Release);
        if !self.shared.awake.load(Ordering::Relaxed)
            && let Some(thread) = &self.thread
        {
            self.shared.awake.store(true, Ordering::Relaxed);
            thread.thread().unpark();
        }
    }

    /// The script has ended.
    #[inline]
    pub fn end(&mut self) {
        self.shared.run.store(0, Ordering::Release);
    }

    /// Whether the last interrupt was for the current script: it may be too late for the one
    /// before.
    pub fn meant_this(&self) -> bool {
        self.shared.interrupted.load(Ordering::Acquire) == self.runs
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A thread that panicked has ended.
            let _ = thread.join();
        }
    }
}

fn watch(shared: &Shared, target: &impl Interrupt) {
    let (mut seen, mut lasted, mut quiet) = (0, Duration::ZERO, 0);
    while !shared.ended.load(Ordering::Acquire) {
        let run = shared.run.load(Ordering::Acquire);
        let after = Duration::from_millis(shared.after_ms.load(Ordering::Relaxed));
        quiet = if run == 0 { quiet + 1 } else { 0 };
        if quiet > QUIET_LOOKS {
            shared.awake.store(false, Ordering::Relaxed);
            std::thread::park_timeout(IDLE);
            continue;
        }
        if run != seen {
            (seen, lasted) = (run, Duration::ZERO);
        } else if run != 0 && lasted >= after {
            shared.interrupted.store(run, Ordering::Release);
            target.interrupt();
            std::thread::sleep(BUSY);
            continue;
        }
        let pause = (after / 8).clamp(Duration::from_millis(1), Duration::from_millis(25));
        std::thread::sleep(pause);
        lasted += pause;
    }
}
