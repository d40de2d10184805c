//! How connections end.

use std::io::Write;
use std::net::{Shutdown, TcpListener};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::json;

use super::net::{Ended, LONG, assert_silent, echo, hold, read_end, read_exact, sink, upstream, wait_for};
use super::rig::Rig;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub fn c69_timeout_zero_swallows(rig: &Rig) {
    let up = upstream(sink);
    let path = rig.path("p", &up);
    let mut client = path.connect();
    wait_for("the dial", || up.accepted.load(Ordering::SeqCst) == 1);
    path.toxic("timeout", "upstream", json!({"timeout": 0}));
    client.write_all(b"swallowed").unwrap();
    assert_silent(&mut client, ms(300));
    assert!(up.received.lock().unwrap().is_empty());
    // A second one, closed by its client: the close is still passed on.
    let other = path.connect();
    wait_for("the dial", || up.accepted.load(Ordering::SeqCst) == 2);
    other.shutdown(Shutdown::Write).unwrap();
    wait_for("the close at the upstream", || up.ends.lock().unwrap().len() == 1);
    path.remove("timeout");
    let (bytes, end) = read_end(&mut client, LONG);
    assert_eq!((bytes.len(), end), (0, Ended::Fin), "removal closes: what was swallowed is gone");
}

pub fn c70_timeout_is_an_idle_timer(rig: &Rig) {
    let up = upstream(echo);
    let path = rig.path("p", &up);
    path.toxic("timeout", "upstream", json!({"timeout": 500}));
    let mut idle = path.connect();
    let started = Instant::now();
    let (_, end) = read_end(&mut idle, LONG);
    let took = started.elapsed();
    assert_eq!(end, Ended::Fin);
    assert!(took >= ms(490) && took < ms(1300), "{took:?}");
    let mut busy = path.connect();
    let started = Instant::now();
    let mut writer = busy.try_clone().unwrap();
    let writing = std::thread::spawn(move || {
        for _ in 0..8 {
            let _ = writer.write_all(b"t");
            std::thread::sleep(ms(120));
        }
    });
    read_end(&mut busy, LONG);
    let took = started.elapsed();
    writing.join().unwrap();
    // The last tick comes at about 840 ms, and 500 ms later it closes.
    assert!(took >= ms(1300) && took < ms(2400), "{took:?}");
}

pub fn c71_reset_peer_resets_what_was_opened_under_it(rig: &Rig) {
    let up = upstream(echo);
    let path = rig.path("p", &up);
    path.toxic("reset_peer", "upstream", json!({"timeout": 200}));
    let mut client = path.connect();
    assert_silent(&mut client, ms(400));
    let started = Instant::now();
    client.write_all(b"x").unwrap();
    let (bytes, end) = read_end(&mut client, LONG);
    let took = started.elapsed();
    assert_eq!((bytes.len(), end), (0, Ended::Rst), "the client sees a reset");
    assert!(took >= ms(197) && took < ms(1000), "{took:?}");
    wait_for("the end at the upstream", || !up.ends.lock().unwrap().is_empty());
    assert_eq!(up.ends.lock().unwrap()[0], Ended::Rst, "and so does the upstream");
}

pub fn c71_reset_peer_closes_what_was_opened_before(rig: &Rig) {
    let up = upstream(echo);
    let path = rig.path("p", &up);
    let mut client = path.connect();
    client.write_all(b"y").unwrap();
    read_exact(&mut client, 1);
    path.toxic("reset_peer", "upstream", json!({"timeout": 0}));
    client.write_all(b"x").unwrap();
    assert_eq!(read_end(&mut client, LONG).1, Ended::Fin);
    if rig.strict() {
        // A wait that is given up: what was held passes, and the connection goes on.
        assert_eq!(path.patch("reset_peer", &json!({"attributes": {"timeout": 30_000}})).status, 200);
        let mut client = path.connect();
        client.write_all(b"held").unwrap();
        assert_silent(&mut client, ms(150));
        let removed = path.remove("reset_peer");
        assert!(removed.took < ms(1000), "{:?}", removed.took);
        assert_eq!(read_exact(&mut client, 4), b"held");
        // And no residue: its regular close is a FIN.
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_end(&mut client, LONG).1, Ended::Fin);
    }
}

pub fn c73_limit_data_passes_exactly(rig: &Rig) {
    let up = upstream(hold);
    let path = rig.path("p", &up);
    path.toxic("limit_data", "downstream", json!({"bytes": 100}));
    let (mut client, mut server) = (path.connect(), up.take(0));
    server.write_all(&[b'a'; 60]).unwrap();
    assert_eq!(read_exact(&mut client, 60).len(), 60);
    assert_silent(&mut client, ms(100));
    server.write_all(&[b'b'; 60]).unwrap();
    let (rest, end) = read_end(&mut client, LONG);
    assert_eq!((rest.len(), end), (40, Ended::Fin), "exactly 100 bytes, then FIN");
    assert_ne!(read_end(&mut server, LONG).1, Ended::Open, "the other side is closed as well");
    // Exactly N closes at once.
    let (mut client, mut server) = (path.connect(), up.take(1));
    server.write_all(&[b'c'; 100]).unwrap();
    let (bytes, end) = read_end(&mut client, LONG);
    assert_eq!((bytes.len(), end), (100, Ended::Fin));
    // 0: an idle connection stays, the first chunk closes.
    assert_eq!(path.patch("limit_data", &json!({"attributes": {"bytes": 0}})).status, 200);
    let (mut client, mut server) = (path.connect(), up.take(2));
    assert_silent(&mut client, ms(150));
    server.write_all(b"z").unwrap();
    let (bytes, end) = read_end(&mut client, LONG);
    assert_eq!((bytes.len(), end), (0, Ended::Fin));
    // Counted from when the toxic meets the connection.
    path.remove("limit_data");
    let (mut client, mut server) = (path.connect(), up.take(3));
    server.write_all(&[b'd'; 500]).unwrap();
    read_exact(&mut client, 500);
    path.toxic("limit_data", "downstream", json!({"bytes": 10}));
    server.write_all(&[b'e'; 50]).unwrap();
    assert_eq!(read_end(&mut client, LONG).0.len(), 10);
}

pub fn c74_limit_data_upstream_closes_all(rig: &Rig) {
    let up = upstream(hold);
    let path = rig.path("p", &up);
    path.toxic("limit_data", "upstream", json!({"bytes": 4}));
    let (mut client, mut server) = (path.connect(), up.take(0));
    server.write_all(b"begun").unwrap();
    read_exact(&mut client, 5);
    client.write_all(b"request").unwrap();
    let (bytes, _) = read_end(&mut server, LONG);
    assert_eq!(bytes, b"requ");
    assert_ne!(read_end(&mut client, LONG).1, Ended::Open, "the answer under way is lost");
}

pub fn c75_lowered_limit_closes_at_the_next_chunk(rig: &Rig) {
    let up = upstream(hold);
    let path = rig.path("p", &up);
    path.toxic("limit_data", "downstream", json!({"bytes": 1000}));
    let (mut client, mut server) = (path.connect(), up.take(0));
    server.write_all(&[b'a'; 500]).unwrap();
    read_exact(&mut client, 500);
    assert_eq!(path.patch("limit_data", &json!({"attributes": {"bytes": 100}})).status, 200);
    assert_silent(&mut client, ms(150));
    server.write_all(b"next").unwrap();
    let (bytes, end) = read_end(&mut client, LONG);
    assert_eq!((bytes.len(), end), (0, Ended::Fin));
}

pub fn c76_toxicity_is_a_share_of_connections(rig: &Rig) {
    let up = upstream(echo);
    let path = rig.path("p", &up);
    path.add(&json!({"name": "t", "type": "limit_data", "toxicity": 0.5, "attributes": {"bytes": 0}}));
    let passed = |client: &mut std::net::TcpStream| {
        client.write_all(b"x").unwrap();
        !read_end(client, ms(300)).0.is_empty()
    };
    let mut clients: Vec<_> = (0..60).map(|_| path.connect()).collect();
    let fine = clients.iter_mut().filter(|c| {
        let mut c = c.try_clone().unwrap();
        passed(&mut c)
    });
    let fine = fine.count();
    // Binomial(60, 0.5): outside 12..=48 in one of 10^6 runs.
    assert!((12..=48).contains(&fine), "{fine} of 60 passed");
}

pub fn c78_a_refused_upstream_closes_the_client(rig: &Rig) {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let path = rig.path_to("p", &free.to_string());
    let mut client = path.connect();
    let (bytes, end) = read_end(&mut client, LONG);
    assert_eq!((bytes.len(), end), (0, Ended::Fin));
    if rig.strict() {
        wait_for("the counter", || rig.get("/llmfo/v1/counters").json()["p"]["dial_failures"] == 1);
    }
}
