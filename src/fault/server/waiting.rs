//! Who waits in front of a black hole. No proxy sees a SYN that the kernel ignores, but the kernel lists the sockets of this
//! machine that wait for one. One thread per server looks for all black holes at once, so that looking costs no accept loop
//! any time.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::live::Live;
use super::syn_sent;

/// Pause between two looks, at least.
const PAUSE: Duration = Duration::from_millis(50);
/// ... and at least so many times what the last look took, so that looking never costs more than a fifth of a core,
const PAUSE_PER_LOOK: u32 = 4;
/// ... but no longer than this, since a client may wait for a few hundred milliseconds only.
const PAUSE_MAX: Duration = Duration::from_millis(250);
/// Waiting clients remembered per black hole, so that none is counted twice.
const SEEN_MAX: usize = 4096;

#[derive(Debug)]
struct Place {
    live: Arc<Live>,
    seen: BTreeSet<SocketAddr>,
}

#[derive(Debug, Default)]
struct Places {
    by_addr: BTreeMap<SocketAddr, Place>,
    /// The thread runs.
    looking: bool,
}

/// The black holes of one server. The thread runs while there is one, and ends with the last one or with this value.
#[derive(Debug, Default)]
pub struct Waiting {
    places: Arc<Mutex<Places>>,
}

fn lock(places: &Mutex<Places>) -> MutexGuard<'_, Places> {
    places.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Waiting {
    /// Counts who waits for this address from now on, in `live.blackholed`. Best effort: a client that gave up between two
    /// looks is missed.
    pub fn watch(&self, addr: SocketAddr, live: &Arc<Live>) {
        let mut places = lock(&self.places);
        places.by_addr.insert(addr, Place { live: Arc::clone(live), seen: BTreeSet::new() });
        if !places.looking {
            let shared = Arc::downgrade(&self.places);
            let thread = std::thread::Builder::new().name("fault-waiting".to_owned());
            // Without the thread nothing is counted; the black hole itself works.
            places.looking = thread.spawn(move || look_on(&shared)).is_ok();
        }
    }

    /// Counts no longer for this address.
    pub fn forget(&self, addr: SocketAddr) {
        lock(&self.places).by_addr.remove(&addr);
    }
}

fn look_on(places: &Weak<Mutex<Places>>) {
    while let Some(places) = places.upgrade() {
        let start = Instant::now();
        let pending = syn_sent::list();
        {
            let mut places = lock(&places);
            if places.by_addr.is_empty() {
                places.looking = false;
                return;
            }
            count(&pending, &mut places);
        }
        drop(places);
        std::thread::sleep((start.elapsed() * PAUSE_PER_LOOK).clamp(PAUSE, PAUSE_MAX));
    }
}

/// Counts those that wait for one of the places and were not seen waiting before.
fn count(pending: &[syn_sent::Pending], places: &mut Places) {
    for (local, peer) in pending {
        if let Some(place) = places.by_addr.get_mut(peer)
            && place.seen.len() < SEEN_MAX
            && place.seen.insert(*local)
        {
            place.live.blackholed.fetch_add(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_each_waiting_client_once() {
        let addr = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let live = Arc::new(Live::default());
        let mut places = Places::default();
        places.by_addr.insert(addr(9001), Place { live: Arc::clone(&live), seen: BTreeSet::new() });
        let pending = [(addr(40001), addr(9001)), (addr(40003), addr(9002))];
        count(&pending, &mut places);
        count(&pending, &mut places);
        assert_eq!(live.blackholed.load(Relaxed), 1);
    }
}
