//! The watchdog: a thread that notices when a script has been running for too long.
//!
//! It costs a script two stores. While scripts run the thread looks up every few milliseconds; the number of the run tells
//! whether it is still the same one. When that has lasted longer than `busy-reply-threshold`, the thread sets the flag the
//! interpreter looks at in its safepoints (loops, calls, pattern matching), and does so again and again while the script
//! lasts. A counter in the interpreter instead, looked at in every loop, costs up to 15%.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Between two looks while nothing runs. One that begins unnoticed, because its signal met the thread on its way to sleep,
/// is seen then.
const IDLE: Duration = Duration::from_secs(1);
/// Between two looks at a script that is busy: how long it takes at most until others are served again.
const BUSY: Duration = Duration::from_millis(2);
/// Looks without any script before the thread goes to sleep.
const QUIET_LOOKS: u32 = 20;

/// Interrupts whatever runs in the interpreter, from another thread.
pub trait Interrupt: Send + 'static {
    fn interrupt(&self);
}

#[derive(Default)]
struct Shared {
    /// The number of the run; 0: no script runs.
    run: AtomicU64,
    /// The run that was interrupted last.
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
        let shared = Arc::<Shared>::default();
        let seen = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("script watchdog".into())
            .spawn(move || watch(&seen, &target))
            .ok();
        Watchdog { shared, thread, runs: 0 }
    }

    /// A script begins. After so many milliseconds it is interrupted; 0: never.
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

    /// Whether the last interrupt was meant for the script that runs now: it may have come a moment too late.
    pub fn meant_this(&self) -> bool {
        self.shared.interrupted.load(Ordering::Acquire) == self.runs
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A thread that panicked interrupts nobody any more.
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
