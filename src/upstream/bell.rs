//! The waker of a connection that is driven by whoever waits for what it brings.
//!
//! The halves of an HTTP connection wake each other: "there is a frame", "there is room for the next". Here both are polled by the
//! one task that waits, one after the other, so such a word needs no visit to the scheduler: it is noted, and acted on before the
//! poll is over. Only what comes from elsewhere, the socket above all, wakes the task. And a poll for which nothing has rung
//! since the last one has nothing to do.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// So often within one poll the halves may wake each other; then others have their turn.
const TURNS: usize = 8;

/// See the module.
#[derive(Debug)]
pub(super) struct Bell {
    rung: Arc<Rung>,
    /// What makes it ring.
    waker: Waker,
}

#[derive(Debug, Default)]
struct Rung {
    noted: AtomicBool,
    /// Its task is at work right now, and will look.
    at_work: AtomicBool,
    task: Mutex<Option<Waker>>,
}

impl Wake for Rung {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // The order of these two, and of the two at the end of `poll`, keeps a word from being lost between them.
        self.noted.store(true, Ordering::SeqCst);
        if !self.at_work.load(Ordering::SeqCst)
            && let Some(task) = &*self.task.lock().unwrap_or_else(PoisonError::into_inner)
        {
            task.wake_by_ref();
        }
    }
}

impl Bell {
    /// One that has rung: what was there before it is not known.
    pub(super) fn new() -> Bell {
        let rung = Arc::new(Rung { noted: AtomicBool::new(true), ..Rung::default() });
        Bell { waker: Waker::from(Arc::clone(&rung)), rung }
    }

    /// The next poll has something to do.
    pub(super) fn ring(&self) {
        self.rung.noted.store(true, Ordering::SeqCst);
    }

    /// Polls as long as it rings, for the task of `cx`.
    pub(super) fn poll<T>(&self, cx: &Context<'_>, mut work: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
        let rung = &*self.rung;
        {
            let mut task = rung.task.lock().unwrap_or_else(PoisonError::into_inner);
            if !task.as_ref().is_some_and(|task| task.will_wake(cx.waker())) {
                *task = Some(cx.waker().clone());
            }
        }
        if !rung.noted.load(Ordering::SeqCst) {
            return Poll::Pending;
        }
        rung.at_work.store(true, Ordering::SeqCst);
        let mut done = Poll::Pending;
        for _ in 0..TURNS {
            rung.noted.store(false, Ordering::SeqCst);
            done = work(&mut Context::from_waker(&self.waker));
            if done.is_ready() || !rung.noted.load(Ordering::SeqCst) {
                break;
            }
        }
        rung.at_work.store(false, Ordering::SeqCst);
        if done.is_ready() {
            // More may be there.
            self.ring();
        } else if rung.noted.load(Ordering::SeqCst) {
            cx.waker().wake_by_ref();
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts how often a task is woken.
    #[derive(Default)]
    struct Task(std::sync::atomic::AtomicUsize);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn woken(task: &Arc<Task>) -> usize {
        task.0.load(Ordering::SeqCst)
    }

    #[test]
    fn a_word_between_the_halves_is_acted_on_at_once_and_wakes_nobody() {
        let (bell, task) = (Bell::new(), Arc::new(Task::default()));
        let waker = Waker::from(Arc::clone(&task));
        let cx = Context::from_waker(&waker);
        let mut polls = 0;
        let done = bell.poll(&cx, |cx| {
            polls += 1;
            if polls < 3 {
                cx.waker().wake_by_ref();
            }
            Poll::<()>::Pending
        });
        assert!(done.is_pending());
        assert_eq!((polls, woken(&task)), (3, 0));
        // Nothing has rung since: nothing is done.
        assert!(bell.poll(&cx, |_| -> Poll<()> { panic!("there is nothing to do") }).is_pending());
    }

    #[test]
    fn a_word_from_elsewhere_wakes_the_task_that_polled_last() {
        let bell = Bell::new();
        let mut kept = None;
        let polled_by = |task: &Arc<Task>, kept: &mut Option<Waker>| {
            let waker = Waker::from(Arc::clone(task));
            let _ = bell.poll(&Context::from_waker(&waker), |cx| {
                *kept = Some(cx.waker().clone());
                Poll::<()>::Pending
            });
        };
        let (first, second) = (Arc::new(Task::default()), Arc::new(Task::default()));
        polled_by(&first, &mut kept);
        polled_by(&second, &mut kept);
        kept.take().unwrap().wake();
        assert_eq!((woken(&first), woken(&second)), (0, 1));
    }

    #[test]
    fn halves_that_never_stop_talking_leave_others_their_turn() {
        let (bell, task) = (Bell::new(), Arc::new(Task::default()));
        let waker = Waker::from(Arc::clone(&task));
        let mut polls = 0;
        let done = bell.poll(&Context::from_waker(&waker), |cx| {
            polls += 1;
            cx.waker().wake_by_ref();
            Poll::<()>::Pending
        });
        assert!(done.is_pending());
        assert_eq!((polls, woken(&task)), (TURNS, 1));
    }

    #[test]
    fn after_something_came_there_may_be_more() {
        let bell = Bell::new();
        let cx = Context::from_waker(Waker::noop());
        assert_eq!(bell.poll(&cx, |_| Poll::Ready(1)), Poll::Ready(1));
        assert_eq!(bell.poll(&cx, |_| Poll::Ready(2)), Poll::Ready(2));
    }

    #[test]
    fn no_word_is_lost_between_two_threads() {
        // One side counts up and rings; the other sleeps until it is woken. A lost word would leave it asleep for ever.
        struct Unpark(std::thread::Thread);
        impl Wake for Unpark {
            fn wake(self: Arc<Self>) {
                self.0.unpark();
            }
        }
        let bell = Bell::new();
        let (counted, heard) = (Arc::new(std::sync::atomic::AtomicUsize::new(0)), Arc::new(Mutex::new(None::<Waker>)));
        let (their_count, their_waker) = (Arc::clone(&counted), Arc::clone(&heard));
        const ALL: usize = 20_000;
        let other = std::thread::spawn(move || {
            for n in 1..=ALL {
                their_count.store(n, Ordering::SeqCst);
                if let Some(waker) = &*their_waker.lock().unwrap() {
                    waker.wake_by_ref();
                }
            }
        });
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let (mut seen, from) = (0, std::time::Instant::now());
        while seen < ALL {
            let came = bell.poll(&Context::from_waker(&waker), |cx| {
                *heard.lock().unwrap() = Some(cx.waker().clone());
                let now = counted.load(Ordering::SeqCst);
                if now > seen { Poll::Ready(now) } else { Poll::Pending }
            });
            match came {
                Poll::Ready(now) => seen = now,
                Poll::Pending => std::thread::park_timeout(std::time::Duration::from_secs(20)),
            }
            assert!(from.elapsed().as_secs() < 20, "asleep at {seen}");
        }
        other.join().unwrap();
    }
}
