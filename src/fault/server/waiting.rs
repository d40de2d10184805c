//! Who waits in front of a black hole. No proxy sees a SYN that the kernel ignores, but the kernel lists the sockets of this
//! machine that wait for one. One thread per server looks for all black holes at once: with thousands of sockets in the
//! list a look takes tens of milliseconds, which no accept loop could afford.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::live::Live;

/// Pause between two looks, at least.
const PAUSE: Duration = Duration::from_millis(100);
/// ... and at least so many times what the last look took, so that looking never costs more than a tenth of a core.
const PAUSE_PER_LOOK: u32 = 10;
/// Waiting clients remembered per black hole, so that none is counted twice.
const SEEN_MAX: usize = 4096;
/// `SYN_SENT` in `/proc/net/tcp`.
const SYN_SENT: &str = "02";

#[derive(Debug)]
struct Place {
    live: Arc<Live>,
    seen: BTreeSet<String>,
}

type Places = BTreeMap<String, Place>;

/// The black holes of one server. The thread runs while there is one, and ends with the last one or with this value.
#[derive(Debug, Default)]
pub struct Waiting {
    places: Arc<Mutex<Places>>,
}

impl Waiting {
    /// Counts who waits for this address from now on, in `live.blackholed`. Best effort: a client that gave up between two
    /// looks is missed.
    pub fn watch(&self, addr: SocketAddr, live: &Arc<Live>) {
        let first = {
            let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
            places.insert(hex(addr), Place { live: Arc::clone(live), seen: BTreeSet::new() });
            places.len() == 1
        };
        if first {
            let places = Arc::downgrade(&self.places);
            // Without the thread nothing is counted; the black hole itself works.
            let _ = std::thread::Builder::new().name("fault-waiting".to_owned()).spawn(move || look_on(&places));
        }
    }

    /// Counts no longer for this address.
    pub fn forget(&self, addr: SocketAddr) {
        self.places.lock().unwrap_or_else(PoisonError::into_inner).remove(&hex(addr));
    }
}

fn look_on(places: &Weak<Mutex<Places>>) {
    while let Some(places) = places.upgrade() {
        let start = Instant::now();
        let tables: Vec<String> =
            ["/proc/net/tcp", "/proc/net/tcp6"].iter().filter_map(|t| std::fs::read_to_string(t).ok()).collect();
        {
            let mut places = places.lock().unwrap_or_else(PoisonError::into_inner);
            if places.is_empty() {
                return;
            }
            for table in &tables {
                look(table, &mut places);
            }
        }
        drop(places);
        std::thread::sleep(PAUSE.max(start.elapsed() * PAUSE_PER_LOOK));
    }
}

/// Counts those of this table that wait for one of the places and were not seen waiting before.
fn look(table: &str, places: &mut Places) {
    for line in table.lines() {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let (Some(local), Some(peer), Some(SYN_SENT)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        if let Some(place) = places.get_mut(peer)
            && place.seen.len() < SEEN_MAX
            && place.seen.insert(local.to_owned())
        {
            place.live.blackholed.fetch_add(1, Relaxed);
        }
    }
}

/// As `/proc/net/tcp` writes an address: words in the machine's byte order.
fn hex(addr: SocketAddr) -> String {
    let words = |octets: &[u8]| -> String {
        octets
            .chunks(4)
            .map(|w| {
                let word: [u8; 4] = w.try_into().unwrap_or_default();
                format!("{:08X}", u32::from_ne_bytes(word))
            })
            .collect()
    };
    let ip = match addr.ip() {
        IpAddr::V4(ip) => words(&ip.octets()),
        IpAddr::V6(ip) => words(&ip.octets()),
    };
    format!("{ip}:{:04X}", addr.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_each_waiting_client_once() {
        let live = Arc::new(Live::default());
        let mut places = Places::new();
        places.insert("0100007F:2329".into(), Place { live: Arc::clone(&live), seen: BTreeSet::new() });
        let table = "  sl  local_address rem_address   st\n   0: 0100007F:A001 0100007F:2329 02 00\n   \
                     1: 0100007F:A002 0100007F:2329 01 00\n   2: 0100007F:A003 0100007F:232A 02 00\n";
        look(table, &mut places);
        look(table, &mut places);
        assert_eq!(live.blackholed.load(Relaxed), 1);
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn addresses_as_the_kernel_prints_them() {
        assert_eq!(hex(SocketAddr::from(([127, 0, 0, 1], 0xDDB7))), "0100007F:DDB7");
    }
}
