//! Background work: run by threads or, in a simulation, between two turns.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, Thread};

use super::{alloc, process};

type Work = Box<dyn FnOnce() + Send>;

/// The way in which background work runs.
#[derive(Clone)]
pub enum Background {
    /// Each piece of work in a thread of its own.
    Threads,
    /// Only when [`Background::run`] is called, so that a simulation is reproducible.
    Later(Arc<Mutex<Vec<Work>>>),
}

impl Background {
    /// Runs work in the background. Returns its thread, if it has one. Errors: the thread cannot be
    /// created.
    pub fn spawn(
        &self,
        name: &str,
        work: impl FnOnce() + Send + 'static,
    ) -> io::Result<Option<Thread>> {
        match self {
            Background::Threads => {
                let handle = Builder::new().name(name.into()).spawn(move || {
                    process::step_back();
                    work();
                    // Such threads free memory of other threads, and vice versa.
                    alloc::hand_over();
                })?;
                Ok(Some(handle.thread().clone()))
            }
            Background::Later(queue) => {
                queue.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(work));
                Ok(None)
            }
        }
    }

    pub fn has_threads(&self) -> bool {
        matches!(self, Background::Threads)
    }

    /// Runs the queued work, in order.
    pub fn run(&self) {
        if let Background::Later(queue) = self {
            let work = std::mem::take(&mut *queue.lock().unwrap_or_else(PoisonError::into_inner));
            work.into_iter().for_each(|work| work());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn work_is_done_by_a_thread_or_when_it_is_asked_for() {
        let done = Arc::new(AtomicUsize::new(0));
        let work = |done: &Arc<AtomicUsize>| {
            let done = done.clone();
            move || {
                done.fetch_add(1, Ordering::SeqCst);
            }
        };
        let later = Background::Later(Arc::default());
        assert!(later.spawn("one", work(&done)).unwrap().is_none());
        assert_eq!(done.load(Ordering::SeqCst), 0);
        later.run();
        later.run();
        assert_eq!(done.load(Ordering::SeqCst), 1);
        assert!(Background::Threads.spawn("two", work(&done)).unwrap().is_some());
        while done.load(Ordering::SeqCst) < 2 {
            std::thread::yield_now();
        }
    }
}
