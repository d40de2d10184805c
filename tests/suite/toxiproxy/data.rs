//! What passes, and when.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::json;

use super::net::{LONG, assert_silent, echo, hold, pattern, read_end, read_exact, sink, upstream, wait_for};
use super::rig::Rig;

/// The machine is shared: what should take T may take this much more.
const SLACK: Duration = Duration::from_millis(700);

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// At least `least` (minus the rounding of clocks), at most that plus slack.
#[track_caller]
fn about(took: Duration, least: Duration) {
    assert!(took + ms(3) >= least && took < least + SLACK, "took {took:?}, expected {least:?}");
}

fn round_trip(stream: &mut TcpStream, bytes: &[u8]) -> Duration {
    let started = Instant::now();
    stream.write_all(bytes).unwrap();
    assert_eq!(read_exact(stream, bytes.len()), bytes);
    started.elapsed()
}

pub fn c60_bytes_pass_exactly(rig: &Rig) {
    let up = upstream(echo);
    let path = rig.path("p", &up);
    let bytes = pattern(1 << 20);
    for chunk in [1 << 20, 65537, 1000] {
        let mut writer = path.connect();
        let mut reader = writer.try_clone().unwrap();
        let sent = bytes.clone();
        let writing = std::thread::spawn(move || {
            for piece in sent.chunks(chunk) {
                writer.write_all(piece).unwrap();
            }
        });
        assert!(read_exact(&mut reader, bytes.len()) == bytes, "chunks of {chunk}");
        writing.join().unwrap();
    }
    let mut stream = path.connect();
    for n in 0..200u8 {
        round_trip(&mut stream, &[n]);
    }
}

pub fn c61_toxics_act_on_open_connections(rig: &Rig) {
    let up = upstream(echo);
    let path = rig.path("p", &up);
    let mut stream = path.connect();
    round_trip(&mut stream, b"before");
    path.toxic("latency", "downstream", json!({"latency": 200}));
    about(round_trip(&mut stream, b"late"), ms(200));
    path.remove("latency");
    path.toxic("bandwidth", "upstream", json!({"rate": 0}));
    stream.write_all(b"held").unwrap();
    assert_silent(&mut stream, ms(200));
    path.remove("bandwidth");
    assert_eq!(read_exact(&mut stream, 4), b"held");
    path.toxic("limit_data", "downstream", json!({"bytes": 3}));
    stream.write_all(b"hello").unwrap();
    assert_eq!(read_end(&mut stream, LONG).0, b"hel");
    let mut stream = path.connect();
    path.remove("limit_data");
    path.toxic("timeout", "downstream", json!({"timeout": 100}));
    let started = Instant::now();
    let (bytes, _) = read_end(&mut stream, LONG);
    assert!(bytes.is_empty());
    assert!(started.elapsed() < LONG / 2, "an open connection has to be closed by the timeout");
}

pub fn c62_latency_keeps_chunks_pipelined(rig: &Rig) {
    let up = upstream(echo);
    let path = rig.path("p", &up);
    let mut stream = path.connect();
    round_trip(&mut stream, b"x");
    path.toxic("latency", "downstream", json!({"latency": 300}));
    let started = Instant::now();
    let mut writer = stream.try_clone().unwrap();
    let writing = std::thread::spawn(move || {
        for n in 0..5u8 {
            writer.write_all(&[n]).unwrap();
            std::thread::sleep(ms(20));
        }
    });
    let first = read_exact(&mut stream, 1);
    let first_at = started.elapsed();
    let rest = read_exact(&mut stream, 4);
    let last_at = started.elapsed();
    writing.join().unwrap();
    assert_eq!([first, rest].concat(), [0, 1, 2, 3, 4]);
    about(first_at, ms(300));
    about(last_at, ms(380));
    // One after the other it would be 1.5 s.
    assert!(last_at < ms(1100), "{last_at:?}");
    // No effect on connects, nor on a bare FIN.
    let started = Instant::now();
    let mut fresh = path.connect();
    assert!(started.elapsed() < ms(250));
    path.add(&json!({"name": "up", "type": "latency", "stream": "upstream", "attributes": {"latency": 5000}}));
    fresh.shutdown(Shutdown::Write).unwrap();
    let started = Instant::now();
    read_end(&mut fresh, LONG);
    assert!(started.elapsed() < ms(2000), "a bare FIN is not delayed");
}

pub fn c63_delays_add_up(rig: &Rig) {
    let up = upstream(echo);
    let path = rig.path("p", &up);
    let mut stream = path.connect();
    round_trip(&mut stream, b"x");
    path.add(&json!({"name": "a", "type": "latency", "stream": "upstream", "attributes": {"latency": 150}}));
    path.add(&json!({"name": "b", "type": "latency", "stream": "downstream", "attributes": {"latency": 100}}));
    about(round_trip(&mut stream, b"both"), ms(250));
    path.add(&json!({"name": "c", "type": "latency", "stream": "downstream", "attributes": {"latency": 120}}));
    about(round_trip(&mut stream, b"three"), ms(370));
}

pub fn c64_jitter_stays_in_its_bounds(rig: &Rig) {
    let up = upstream(echo);
    let path = rig.path("p", &up);
    let mut stream = path.connect();
    round_trip(&mut stream, b"x");
    path.toxic("latency", "downstream", json!({"latency": 40, "jitter": 30}));
    let times: Vec<Duration> = (0..40).map(|_| round_trip(&mut stream, b"y")).collect();
    assert!(times.iter().all(|t| *t + ms(1) >= ms(10)), "{times:?}");
    // Uniform on [10, 70): the chance that all forty lie on one side of 40 ms is below 1e-11.
    let early = times.iter().filter(|t| **t < ms(40)).count();
    assert!((1..40).contains(&early), "{times:?}");
    // Totals below zero count as zero.
    assert_eq!(path.patch("latency", &json!({"attributes": {"latency": 0, "jitter": 40}})).status, 200);
    let times: Vec<Duration> = (0..40).map(|_| round_trip(&mut stream, b"y")).collect();
    assert!(times.iter().any(|t| *t < ms(15)), "{times:?}");
}

pub fn c65_removing_latency_delivers_at_once(rig: &Rig) {
    let up = upstream(sink);
    let path = rig.path("p", &up);
    let mut stream = path.connect();
    path.toxic("latency", "upstream", json!({"latency": 30_000}));
    let bytes = pattern(20_000);
    for piece in bytes.chunks(4000) {
        stream.write_all(piece).unwrap();
        std::thread::sleep(ms(5));
    }
    std::thread::sleep(ms(50));
    assert!(up.received.lock().unwrap().is_empty());
    let started = Instant::now();
    path.remove("latency");
    wait_for("the held bytes", || up.received.lock().unwrap().len() == bytes.len());
    assert!(started.elapsed() < ms(1500), "{:?}", started.elapsed());
    assert!(*up.received.lock().unwrap() == bytes);
}

fn drain(listen: SocketAddr, bytes: usize) -> Duration {
    let mut stream = TcpStream::connect(listen).unwrap();
    let started = Instant::now();
    stream.write_all(&pattern(bytes)).unwrap();
    assert!(read_exact(&mut stream, bytes) == pattern(bytes));
    started.elapsed()
}

pub fn c66_bandwidth_is_per_connection(rig: &Rig) {
    let up = upstream(echo);
    let path = rig.path("p", &up);
    path.toxic("bandwidth", "downstream", json!({"rate": 100}));
    // KB is 1000 bytes: 100 KB take one second, on each of three connections at once.
    let listen = path.listen;
    let times: Vec<Duration> = std::thread::scope(|s| {
        let running: Vec<_> = (0..3).map(|_| s.spawn(|| drain(listen, 100_000))).collect();
        running.into_iter().map(|r| r.join().unwrap()).collect()
    });
    for took in &times {
        assert!(*took >= ms(950) && *took < ms(1000) + SLACK, "{times:?}");
    }
    // In slices of 100 ms worth: after 350 ms about 30 KB are there, not nothing and not all.
    let mut stream = path.connect();
    stream.write_all(&pattern(100_000)).unwrap();
    let mut got = 0;
    let mut buf = [0; 65536];
    stream.set_read_timeout(Some(ms(50))).unwrap();
    let until = Instant::now() + ms(350);
    while Instant::now() < until {
        got += stream.read(&mut buf).unwrap_or(0);
    }
    assert!((10_000..=50_000).contains(&got), "{got}");
}

pub fn c67_bandwidth_zero_heals(rig: &Rig) {
    let up = upstream(hold);
    let path = rig.path("p", &up);
    let mut client = path.connect();
    let mut server = up.take(0);
    path.add(&json!({"name": "u", "type": "bandwidth", "stream": "upstream", "attributes": {"rate": 0}}));
    path.add(&json!({"name": "d", "type": "bandwidth", "stream": "downstream", "attributes": {"rate": 0}}));
    let bytes = pattern(10_000);
    for piece in bytes.chunks(2500) {
        server.write_all(piece).unwrap();
        client.write_all(piece).unwrap();
        std::thread::sleep(ms(5));
    }
    assert_silent(&mut client, ms(300));
    assert_silent(&mut server, ms(100));
    path.remove("u");
    assert!(read_exact(&mut server, bytes.len()) == bytes, "held bytes arrive whole and in order");
    path.remove("d");
    assert!(read_exact(&mut client, bytes.len()) == bytes, "held bytes arrive whole and in order");
    // And the connection goes on.
    server.write_all(b"on").unwrap();
    assert_eq!(read_exact(&mut client, 2), b"on");
    if rig.strict() {
        let negative = json!({"type": "bandwidth", "attributes": {"rate": -1}});
        assert_eq!(rig.post(&path.url("/toxics"), &negative).status, 400);
    }
}

pub fn c68_slow_close_delays_the_close(rig: &Rig) {
    let up = upstream(hold);
    let path = rig.path("p", &up);
    path.toxic("slow_close", "downstream", json!({"delay": 400}));
    let mut client = path.connect();
    let mut server = up.take(0);
    server.write_all(b"data").unwrap();
    let started = Instant::now();
    assert_eq!(read_exact(&mut client, 4), b"data");
    assert!(started.elapsed() < ms(390), "the data is not delayed");
    let started = Instant::now();
    server.shutdown(Shutdown::Both).unwrap();
    read_end(&mut client, LONG);
    about(started.elapsed(), ms(400));
    assert_eq!(path.patch("slow_close", &json!({"attributes": {"delay": 30_000}})).status, 200);
    let mut client = path.connect();
    let server = up.take(1);
    server.shutdown(Shutdown::Both).unwrap();
    std::thread::sleep(ms(100));
    let started = Instant::now();
    path.remove("slow_close");
    read_end(&mut client, LONG);
    assert!(started.elapsed() < ms(1000), "removal during the wait closes at once");
}

pub fn c72_slicer_cuts_and_keeps_the_bytes(rig: &Rig) {
    let up = upstream(sink);
    let path = rig.path("p", &up);
    path.toxic("slicer", "upstream", json!({"average_size": 500, "size_variation": 100, "delay": 10_000}));
    let mut client = path.connect();
    let bytes = pattern(10_000);
    let started = Instant::now();
    client.write_all(&bytes).unwrap();
    wait_for("all bytes", || up.received.lock().unwrap().len() == bytes.len());
    let took = started.elapsed();
    assert!(*up.received.lock().unwrap() == bytes);
    // About twenty pieces, 10 ms (10,000 microseconds) apart.
    assert!(took > ms(100) && took < ms(260) + SLACK, "{took:?}");
    if rig.strict() {
        for bad in [json!({}), json!({"average_size": 10, "size_variation": 20})] {
            let toxic = json!({"name": "bad", "type": "slicer", "attributes": bad});
            assert_eq!(rig.post(&path.url("/toxics"), &toxic).status, 400, "{toxic}");
        }
    }
}
