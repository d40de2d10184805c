//! Lanes: one thread each, on which a connection stays with everything that its requests do.
//!
//! A request is a conversation of few words between tasks: the client's connection, the request, the provider's connection.
//! Where these may be on two threads, most of the words wake the other one, and to wake a thread costs more than what it is
//! woken for. So a connection is given to the lane with the fewest, and the connections that are dialled there are taken first by
//! requests of the same lane.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// More would share their cores with the provider's connections.
const LANES_MAX: usize = 64;

/// The lanes of a listener. When they are dropped, what is still open on them is dropped too.
#[derive(Debug)]
pub struct Lanes {
    all: Vec<Lane>,
}

#[derive(Debug)]
struct Lane {
    handle: Handle,
    connections: Arc<AtomicUsize>,
    /// Its thread ends when this is gone.
    _stop: oneshot::Sender<()>,
}

/// A connection's place on a lane.
#[derive(Debug)]
pub struct OnLane {
    handle: Handle,
    connections: Arc<AtomicUsize>,
}

impl OnLane {
    /// Where its task must be spawned.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for OnLane {
    fn drop(&mut self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// As many as the machine runs threads at once.
#[must_use]
pub fn fitting() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(LANES_MAX)
}

impl Lanes {
    /// Starts the threads.
    ///
    /// # Errors
    /// The system has no more threads or descriptors.
    pub fn start(count: usize) -> io::Result<Lanes> {
        let lane = |n: usize| {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let handle = runtime.handle().clone();
            let (stop, stopped) = oneshot::channel::<()>();
            std::thread::Builder::new().name(format!("lane-{n}")).spawn(move || {
                let _ = runtime.block_on(stopped);
                // A thread that reads a large body's personal data must not hold up the end.
                runtime.shutdown_background();
            })?;
            Ok(Lane { handle, connections: Arc::default(), _stop: stop })
        };
        Ok(Lanes { all: (0..count.clamp(1, LANES_MAX)).map(lane).collect::<io::Result<_>>()? })
    }

    /// A place on the lane with the fewest connections. `None` only if there is no lane.
    #[must_use]
    pub fn place(&self) -> Option<OnLane> {
        let lane = self.all.iter().min_by_key(|lane| lane.connections.load(Ordering::Relaxed))?;
        lane.connections.fetch_add(1, Ordering::Relaxed);
        Some(OnLane { handle: lane.handle.clone(), connections: Arc::clone(&lane.connections) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_connection_goes_to_the_lane_with_the_fewest_and_what_is_open_ends_with_them() {
        let lanes = Lanes::start(2).unwrap();
        let (first, second) = (lanes.place().unwrap(), lanes.place().unwrap());
        let on = |place: &OnLane| place.handle().spawn(async { std::thread::current().id() });
        let (one, other) = (on(&first).await.unwrap(), on(&second).await.unwrap());
        assert_ne!(one, other);
        drop(second);
        let third = lanes.place().unwrap();
        assert_eq!(on(&third).await.unwrap(), other, "there a place has become free");
        let (alive, ended) = oneshot::channel::<()>();
        third.handle().spawn(async move {
            let _alive = alive;
            std::future::pending::<()>().await;
        });
        drop(lanes);
        assert!(ended.await.is_err());
    }
}
