//! What only the embedded server has: cuts by event, byte or time, the black hole for connects, expiry, leases, counters.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::fault::rig;
use super::fault::suite::net::{
    Ended, LONG, assert_refused, assert_silent, echo, hold, read_end, read_exact, upstream, wait_for,
};
use super::fault::suite::rig::Rig;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

/// An event stream of five events as chunked HTTP, the chunks cut anywhere.
fn stream(seed: u64) -> Vec<u8> {
    let body: String = (1..=5).map(|n| format!("data: {{\"n\":{n}}}\n\n")).collect();
    let mut out = HEAD.to_vec();
    let (mut rest, mut x) = (body.as_bytes(), seed);
    while !rest.is_empty() {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let n = ((x >> 33) as usize % 9 + 1).min(rest.len());
        out.extend_from_slice(format!("{n:x}\r\n").as_bytes());
        out.extend_from_slice(&rest[..n]);
        out.extend_from_slice(b"\r\n");
        rest = &rest[n..];
    }
    out.extend_from_slice(b"0\r\n\r\n");
    out
}

/// The body text in what a client has received, and whether it saw the last chunk.
fn body(bytes: &[u8]) -> (String, bool) {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let (_, mut rest) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let mut out = String::new();
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            return (out, true);
        }
        let got = &after[..size.min(after.len())];
        out.push_str(got);
        rest = after.get(size + 2..).unwrap_or("");
    }
    (out, false)
}

/// Writes in pieces of so many bytes, so that reads end anywhere.
fn write_in(server: &mut TcpStream, bytes: &[u8], piece: usize) {
    for part in bytes.chunks(piece) {
        if server.write_all(part).is_err() {
            return;
        }
        std::thread::sleep(Duration::from_micros(300));
    }
}

#[test]
fn cut_after_events_cuts_behind_the_event_wherever_the_chunks_end() {
    let rig = rig();
    let up = upstream(hold);
    let path = rig.path("p", &up);
    path.toxic("cut_after", "downstream", json!({"events": 3, "how": "rst"}));
    for (n, piece) in [1, 2, 7, 30, 1000, 7, 1].into_iter().enumerate() {
        let (mut client, mut server) = (path.connect(), up.take(n));
        let bytes = stream(n as u64);
        let writing = std::thread::spawn(move || write_in(&mut server, &bytes, piece));
        let (got, end) = read_end(&mut client, LONG);
        let (text, whole) = body(&got);
        assert_eq!(text, "data: {\"n\":1}\n\ndata: {\"n\":2}\n\ndata: {\"n\":3}\n\n", "pieces of {piece}");
        assert_eq!((end, whole), (Ended::Rst, false));
        writing.join().unwrap();
    }
    let counters = rig.get("/llmfo/v1/counters").json();
    assert_eq!(counters["p"]["ended_by_toxic"], 7);
}

#[test]
fn cut_after_events_counts_anew_in_each_response_of_a_kept_alive_connection() {
    let rig = rig();
    let up = upstream(hold);
    let path = rig.path("p", &up);
    path.toxic("cut_after", "downstream", json!({"events": 6, "how": "fin"}));
    let (mut client, mut server) = (path.connect(), up.take(0));
    let json = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 18\r\n\r\ndata: a\n\ndata: b\n\n";
    let mut sent = Vec::new();
    for n in 0..3 {
        sent.extend(stream(n));
        sent.extend_from_slice(json);
    }
    server.write_all(&sent).unwrap();
    assert!(read_exact(&mut client, sent.len()) == sent, "five events each, never six in one response");
    assert_silent(&mut client, ms(100));
    path.patch("cut_after", &json!({"attributes": {"events": 2}}));
    server.write_all(&stream(9)).unwrap();
    let (got, end) = read_end(&mut client, LONG);
    assert_eq!((body(&got).0.matches("data:").count(), end), (2, Ended::Fin));
}

#[test]
fn cut_after_that_meets_a_stream_under_way_counts_from_there() {
    let rig = rig();
    let up = upstream(hold);
    let path = rig.path("p", &up);
    let (mut client, mut server) = (path.connect(), up.take(0));
    let bytes = stream(4);
    // Two events and a half, however they are chunked.
    let cut = (HEAD.len()..bytes.len()).find(|n| body(&bytes[..*n]).0.ends_with("data: {\"n\":3")).unwrap();
    server.write_all(&bytes[..cut]).unwrap();
    read_exact(&mut client, cut);
    path.toxic("cut_after", "downstream", json!({"events": 2, "how": "rst"}));
    server.write_all(&bytes[cut..]).unwrap();
    let (got, end) = read_end(&mut client, LONG);
    let all = [&bytes[..cut], &got].concat();
    assert!(body(&all).0.ends_with("{\"n\":4}\n\n"), "the third event, begun before, and the fourth");
    assert_eq!(end, Ended::Rst);
}

#[test]
fn cut_after_silence_stays_open_and_heals_without_loss() {
    let rig = rig();
    let up = upstream(hold);
    let path = rig.path("p", &up);
    path.toxic("cut_after", "downstream", json!({"events": 1, "how": "silence"}));
    let (mut client, mut server) = (path.connect(), up.take(0));
    let bytes = stream(1);
    server.write_all(&bytes).unwrap();
    let (mut got, end) = read_end(&mut client, ms(300));
    assert_eq!((body(&got).0.as_str(), end), ("data: {\"n\":1}\n\n", Ended::Open));
    path.remove("cut_after");
    got.extend(read_exact(&mut client, bytes.len() - got.len()));
    assert!(got == bytes, "what was held passes, in order");
}

#[test]
fn cut_after_bytes_passes_exactly_and_counts_per_response() {
    let rig = rig();
    let up = upstream(hold);
    let path = rig.path("p", &up);
    path.toxic("cut_after", "downstream", json!({"bytes": 60, "how": "fin"}));
    let (mut client, mut server) = (path.connect(), up.take(0));
    let short = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123456789";
    for _ in 0..3 {
        server.write_all(short).unwrap();
        assert_eq!(read_exact(&mut client, short.len()), short);
    }
    server.write_all(&stream(2)).unwrap();
    let (got, end) = read_end(&mut client, LONG);
    assert_eq!((got.len(), end), (60, Ended::Fin));
    // Not HTTP: per connection.
    let (mut client, mut server) = (path.connect(), up.take(1));
    server.write_all(&[b'x'; 40]).unwrap();
    server.write_all(&[b'y'; 40]).unwrap();
    let (got, end) = read_end(&mut client, LONG);
    assert_eq!((got.len(), end), (60, Ended::Fin));
}

#[test]
fn cut_after_ms_is_a_deadline_that_traffic_does_not_move() {
    let rig = rig();
    let up = upstream(hold);
    let path = rig.path("p", &up);
    path.toxic("cut_after", "downstream", json!({"ms": 400, "how": "rst"}));
    let (mut client, mut server) = (path.connect(), up.take(0));
    let started = Instant::now();
    server.write_all(HEAD).unwrap();
    let writing = std::thread::spawn(move || {
        while server.write_all(b"3\r\n: \n\r\n").is_ok() {
            std::thread::sleep(ms(20));
        }
    });
    let (got, end) = read_end(&mut client, LONG);
    let took = started.elapsed();
    assert!(took >= ms(397) && took < ms(1100), "{took:?}");
    assert!(got.len() > HEAD.len() && end == Ended::Rst);
    writing.join().unwrap();
}

#[test]
fn cut_after_zero_ms_resets_whatever_is_open_and_what_comes() {
    let rig = rig();
    let up = upstream(hold);
    let path = rig.path("p", &up);
    // One idle between two responses, one fresh.
    let (mut idle, mut server) = (path.connect(), up.take(0));
    let answer = b"HTTP/1.1 204 No Content\r\n\r\n";
    server.write_all(answer).unwrap();
    read_exact(&mut idle, answer.len());
    let (mut fresh, mut other) = (path.connect(), up.take(1));
    path.toxic("cut_after", "downstream", json!({"ms": 0, "how": "rst"}));
    assert_eq!(read_end(&mut idle, LONG).1, Ended::Rst);
    assert_eq!(read_end(&mut fresh, LONG).1, Ended::Rst);
    assert_eq!(read_end(&mut other, LONG).1, Ended::Rst, "on both sides");
    // The reset may be faster than the connect's return.
    let fresh = TcpStream::connect_timeout(&path.listen, LONG);
    assert!(fresh.is_err() || fresh.is_ok_and(|mut f| read_end(&mut f, LONG).1 == Ended::Rst));
    wait_for("its dial", || up.held.lock().unwrap().len() == 3);
    path.remove("cut_after");
    let (mut client, mut server) = (path.connect(), up.take(3));
    server.write_all(b"fine").unwrap();
    assert_eq!(read_exact(&mut client, 4), b"fine");
}

/// A dead path lets nothing through, in either direction: a request that comes with its connection must not reach whoever is
/// behind a path that answers with a reset.
#[test]
fn cut_after_zero_ms_lets_no_byte_through_in_either_direction() {
    for how in ["rst", "fin"] {
        let rig = rig();
        let up = upstream(hold);
        let path = rig.path("p", &up);
        let mut open = path.connect();
        let mut server = up.take(0);
        path.toxic("cut_after", "downstream", json!({"ms": 0, "how": how}));
        let _ = open.write_all(b"POST / HTTP/1.1\r\n\r\n");
        let (got, _) = read_end(&mut server, LONG);
        assert_eq!(got, b"", "{how}: through a connection that was open");
        for n in 1..=20 {
            if let Ok(mut client) = TcpStream::connect_timeout(&path.listen, LONG) {
                let _ = client.write_all(b"POST / HTTP/1.1\r\n\r\n");
                let _ = read_end(&mut client, LONG);
            }
            wait_for("its dial", || up.held.lock().unwrap().len() > n);
            let (got, _) = read_end(&mut up.take(n), LONG);
            assert_eq!(got, b"", "{how}: through connection {n}");
        }
        assert_eq!(rig.get("/llmfo/v1/counters").json()["p"]["up_sent"].as_u64(), Some(0));
    }
}

#[test]
fn cut_after_is_checked() {
    let rig = rig();
    let up = upstream(echo);
    let path = rig.path("p", &up);
    for bad in [json!({}), json!({"bytes": 1, "ms": 1}), json!({"bytes": 1, "how": "gently"}), json!({"event": 1})] {
        let body = json!({"type": "cut_after", "attributes": bad});
        assert_eq!(rig.post(&path.url("/toxics"), &body).status, 400, "{body}");
    }
    let upstream = json!({"type": "cut_after", "stream": "upstream", "attributes": {"events": 1}});
    assert_eq!(rig.post(&path.url("/toxics"), &upstream).status, 400);
}

fn black_hole(rig: &Rig) -> (SocketAddr, TcpStream, Value) {
    let up = upstream(echo);
    let path = rig.path("p", &up);
    let mut open = path.connect();
    open.write_all(b"x").unwrap();
    read_exact(&mut open, 1);
    let added = path.toxic("connect_blackhole", "downstream", json!({}));
    (path.listen, open, added.json())
}

#[test]
fn connect_blackhole_lets_new_connects_time_out_and_open_ones_go_on() {
    let rig = rig();
    let (listen, mut open, _) = black_hole(&rig);
    for _ in 0..3 {
        let started = Instant::now();
        let error = TcpStream::connect_timeout(&listen, ms(400)).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::TimedOut, "at the client's own limit");
        assert!(started.elapsed() >= ms(390));
    }
    open.write_all(b"on").unwrap();
    assert_eq!(read_exact(&mut open, 2), b"on");
    // Best effort, but of clients that wait 400 ms each most are seen.
    wait_for("the counter", || {
        assert!(TcpStream::connect_timeout(&listen, ms(400)).is_err());
        rig.get("/llmfo/v1/counters").json()["p"]["blackholed"].as_u64() >= Some(4)
    });
    // A client that is still waiting when it ends gets in with its next SYN.
    let pending = std::thread::spawn(move || TcpStream::connect_timeout(&listen, ms(8000)));
    std::thread::sleep(ms(300));
    assert!(!pending.is_finished());
    assert_eq!(rig.delete("/proxies/p/toxics/connect_blackhole").status, 204);
    let mut late = pending.join().unwrap().expect("the pending client gets in");
    late.write_all(b"late").unwrap();
    assert_eq!(read_exact(&mut late, 4), b"late");
    for _ in 0..50 {
        let mut fresh = TcpStream::connect_timeout(&listen, ms(2000)).unwrap();
        fresh.write_all(b"y").unwrap();
        assert_eq!(read_exact(&mut fresh, 1), b"y", "the backlog is back");
    }
}

#[test]
fn connect_blackhole_survives_disable_and_enable_and_ends_with_the_proxy() {
    let rig = rig();
    let (listen, _open, added) = black_hole(&rig);
    assert_eq!((&added["type"], &added["toxicity"]), (&json!("connect_blackhole"), &json!(1)));
    let half = json!({"name": "h", "type": "connect_blackhole", "toxicity": 0.5});
    assert_eq!(rig.post("/proxies/p/toxics", &half).status, 400);
    assert_eq!(rig.post("/proxies/p", &json!({"enabled": false})).status, 200);
    assert_refused(listen);
    assert_eq!(rig.post("/proxies/p", &json!({"enabled": true})).status, 200);
    assert!(TcpStream::connect_timeout(&listen, ms(300)).is_err(), "toxics act again");
    assert_eq!(rig.post("/reset", &Value::Null).status, 204);
    TcpStream::connect_timeout(&listen, ms(2000)).unwrap();
    assert_eq!(rig.delete("/proxies/p").status, 204);
    assert_refused(listen);
}

#[test]
fn toxics_expire_by_themselves() {
    let rig = rig();
    let up = upstream(echo);
    let path = rig.path("p", &up);
    let mut client = path.connect();
    let toxic = json!({"name": "t", "type": "bandwidth", "attributes": {"rate": 0}, "expires_in_ms": 400});
    path.add(&toxic);
    let started = Instant::now();
    client.write_all(b"held").unwrap();
    assert_eq!(read_exact(&mut client, 4), b"held");
    let took = started.elapsed();
    assert!(took > ms(300) && took < ms(1500), "{took:?}");
    assert_eq!(path.shown()["toxics"], json!([]));
    let entry = rig.get("/llmfo/v1/history").json()["history"][0].clone();
    assert_eq!((&entry["why"], &entry["toxic"], &entry["proxy"]), (&json!("expired"), &json!("t"), &json!("p")));
}

#[test]
fn a_lease_without_heartbeat_heals_toxics_and_proxies() {
    let rig = rig();
    let up = upstream(echo);
    let (one, two) = (rig.path("one", &up), rig.path("two", &up));
    let none = json!({"type": "latency", "lease": "drill"});
    assert_eq!(rig.post(&one.url("/toxics"), &none).status, 404, "a lease has to live");
    let beat = || rig.post("/llmfo/v1/lease", &json!({"id": "drill", "ttl_ms": 700})).status;
    assert_eq!(beat(), 200);
    one.add(&json!({"name": "t", "type": "bandwidth", "attributes": {"rate": 0}, "lease": "drill"}));
    one.add(&json!({"name": "mine", "type": "latency", "attributes": {"latency": 1}}));
    assert_eq!(two.change(&json!({"enabled": false, "lease": "drill"})).status, 200);
    let off = rig.path("off", &up);
    off.change(&json!({"enabled": false}));
    // Kept alive by the heartbeat for longer than it lasts.
    for _ in 0..5 {
        std::thread::sleep(ms(250));
        assert_eq!(beat(), 200);
    }
    assert_eq!(two.shown()["enabled"], json!(false));
    let lease = rig.get("/llmfo/v1/leases").json()["leases"][0].clone();
    assert_eq!((&lease["id"], &lease["ttl_ms"]), (&json!("drill"), &json!(700)));
    let started = Instant::now();
    wait_for("the healing", || two.shown()["enabled"] == json!(true));
    let took = started.elapsed();
    assert!(took > ms(400) && took < ms(2500), "{took:?}");
    wait_for("the toxic to go", || one.shown()["toxics"].as_array().unwrap().len() == 1);
    assert_eq!(one.shown()["toxics"][0]["name"], "mine", "what has no lease stays");
    assert_eq!(off.shown()["enabled"], json!(false), "disabled on purpose");
    two.connect();
    let history = rig.get("/llmfo/v1/history").json()["history"].clone();
    assert_eq!(history.as_array().unwrap().len(), 2);
    assert!(history.as_array().unwrap().iter().all(|h| h["why"] == "lease_ran_out" && h["lease"] == "drill"));
}

#[test]
fn ending_a_lease_heals_before_it_answers() {
    let rig = rig();
    let up = upstream(echo);
    let path = rig.path("p", &up);
    rig.post("/llmfo/v1/lease", &json!({"id": "drill", "ttl_ms": 60_000}));
    path.add(&json!({"name": "t", "type": "connect_blackhole", "lease": "drill"}));
    path.change(&json!({"enabled": false, "lease": "drill"}));
    assert_eq!(rig.delete("/llmfo/v1/lease/drill").status, 204);
    let shown = path.shown();
    assert_eq!((&shown["toxics"], &shown["enabled"]), (&json!([]), &json!(true)));
    path.connect();
    assert_eq!(rig.delete("/llmfo/v1/lease/drill").status, 404);
}

#[test]
fn a_proxy_whose_port_is_taken_is_enabled_again_when_it_is_free() {
    let rig = rig();
    let up = upstream(echo);
    let path = rig.path("p", &up);
    rig.post("/llmfo/v1/lease", &json!({"id": "drill", "ttl_ms": 60_000}));
    path.change(&json!({"enabled": false, "lease": "drill"}));
    let taken = std::net::TcpListener::bind(path.listen).unwrap();
    assert_eq!(rig.delete("/llmfo/v1/lease/drill").status, 204);
    let history = rig.get("/llmfo/v1/history").json()["history"].clone();
    assert!(history[0]["failed"].as_str().unwrap().contains("address already in use"), "{history}");
    drop(taken);
    wait_for("another try", || path.shown()["enabled"] == json!(true));
    path.connect();
}

#[test]
fn counters_are_live() {
    let rig = rig();
    let up = upstream(echo);
    let path = rig.path("p", &up);
    let mut client = path.connect();
    client.write_all(&[b'x'; 1000]).unwrap();
    read_exact(&mut client, 1000);
    let counters = || rig.get("/llmfo/v1/counters").json()["p"].clone();
    // The count follows the write.
    wait_for("the last count", || counters()["down_sent"] == 1000);
    let now = counters();
    for (name, want) in [("accepted", 1), ("open", 1), ("up_received", 1000), ("up_sent", 1000), ("down_sent", 1000)] {
        assert_eq!(now[name], want, "{name}: {now}");
    }
    path.toxic("bandwidth", "downstream", json!({"rate": 0}));
    client.write_all(b"held").unwrap();
    wait_for("the held bytes", || counters()["down_received"] == 1004);
    assert_eq!(counters()["down_sent"], 1000);
    drop(client);
    path.remove("bandwidth");
    wait_for("the end", || counters()["open"] == 0);
}

#[test]
fn c83_two_thousand_changes_under_traffic_leave_nothing_behind() {
    let rig = rig();
    let up = upstream(echo);
    let path = rig.path("p", &up);
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (listen, stopped) = (path.listen, stop.clone());
    let traffic = std::thread::spawn(move || {
        let mut stream = TcpStream::connect(listen).unwrap();
        let mut n = 0u32;
        while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
            stream.write_all(&n.to_be_bytes()).unwrap();
            let mut back = [0; 4];
            stream.read_exact(&mut back).unwrap();
            assert_eq!(u32::from_be_bytes(back), n);
            n += 1;
        }
        n
    });
    let before = descriptors();
    for n in 0..1000 {
        let (kind, attributes) = match n % 3 {
            0 => ("latency", json!({"latency": 2, "jitter": 1})),
            1 => ("bandwidth", json!({"rate": 1000})),
            _ => ("slicer", json!({"average_size": 2, "size_variation": 1, "delay": 100})),
        };
        path.toxic(kind, if n % 2 == 0 { "upstream" } else { "downstream" }, attributes);
        path.remove(kind);
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    assert!(traffic.join().unwrap() > 100);
    // Other tests run in this process: their sockets come and go.
    wait_for("descriptors to be given back", || descriptors() < before + 400);
    assert_eq!(path.shown()["toxics"], json!([]));
}

#[test]
fn c76_the_seed_decides_which_connections_are_affected() {
    let pattern = || -> Vec<bool> {
        let rig = rig();
        let up = upstream(echo);
        let path = rig.path("p", &up);
        path.add(&json!({"name": "t", "type": "limit_data", "toxicity": 0.5, "attributes": {"bytes": 0}}));
        let affected = |_| {
            let mut client = path.connect();
            client.write_all(b"x").unwrap();
            read_end(&mut client, ms(250)).1 == Ended::Fin
        };
        (0..12).map(affected).collect()
    };
    let first = pattern();
    assert_eq!(first, pattern(), "two servers with the same seed");
    assert!(first.contains(&true) && first.contains(&false), "{first:?}");
}

#[test]
fn c84_the_api_answers_while_the_data_path_is_saturated() {
    let rig = rig();
    let up = upstream(|mut stream, _| {
        let chunk = vec![b'f'; 65536];
        while stream.write_all(&chunk).is_ok() {}
    });
    let path = rig.path("p", &up);
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let readers: Vec<_> = (0..6)
        .map(|_| {
            let (mut client, stop) = (path.connect(), stop.clone());
            std::thread::spawn(move || {
                let mut buf = vec![0; 65536];
                while !stop.load(std::sync::atomic::Ordering::Relaxed) && client.read(&mut buf).is_ok() {}
            })
        })
        .collect();
    for _ in 0..10 {
        let added = path.toxic("latency", "upstream", json!({"latency": 1}));
        let removed = path.remove("latency");
        let list = rig.get("/proxies");
        for answer in [added, removed, list] {
            assert!(answer.took < ms(1000), "{answer:?}");
        }
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    for reader in readers {
        reader.join().unwrap();
    }
}

#[test]
fn c85_what_is_held_is_bounded() {
    let rig = rig();
    let up = upstream(|mut stream, _| {
        let chunk = vec![b'f'; 65536];
        while stream.write_all(&chunk).is_ok() {}
    });
    for (name, kind, attributes) in [
        ("l", "latency", json!({"latency": 60_000})),
        ("b", "bandwidth", json!({"rate": 0})),
        ("r", "reset_peer", json!({"timeout": 60_000})),
        ("c", "cut_after", json!({"bytes": 0, "how": "silence"})),
    ] {
        let path = rig.path(name, &up);
        path.toxic(kind, "downstream", attributes);
        let _client = path.connect();
        let received = || rig.get("/llmfo/v1/counters").json()[name]["down_received"].as_u64().unwrap();
        let mut before = 0;
        wait_for("the window to be full", || {
            std::thread::sleep(ms(50));
            let now = received();
            now > 0 && std::mem::replace(&mut before, now) == now
        });
        assert!(received() < 2 << 20, "{kind} holds {}", received());
    }
}
