//! Where a real server locks up, crashes or loses an answer, and ours must not.

use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};

use super::fault::rig;
use super::fault::suite::net::{self, LONG, Upstream, echo, hold, read_end, read_exact, upstream};
use super::fault::suite::rig::{Path, Rig};

/// No call may take longer. In idleness they take a millisecond.
const CALL_MAX: Duration = Duration::from_millis(1000);

fn quick(what: &str, answer: &net::Answer) {
    assert!(answer.took < CALL_MAX, "{what} took {:?}", answer.took);
}

const EACH: &[(&str, &str)] = &[
    ("latency", r#"{"latency":100}"#),
    ("bandwidth", r#"{"rate":0}"#),
    ("slow_close", r#"{"delay":1000}"#),
    ("timeout", r#"{"timeout":0}"#),
    ("reset_peer", r#"{"timeout":60000}"#),
    ("slicer", r#"{"average_size":100,"size_variation":10,"delay":10}"#),
    ("limit_data", r#"{"bytes":1000000000}"#),
    ("cut_after", r#"{"events":1000000,"how":"rst"}"#),
];

/// Sends without end and never reads.
fn flood(mut stream: TcpStream, _: &Upstream) {
    let chunk = vec![b'f'; 65536];
    while stream.write_all(&chunk).is_ok() {}
}

/// A client that does not read while the upstream floods.
fn stalled<'a>(rig: &'a Rig, name: &str) -> (Path<'a>, TcpStream) {
    let up = upstream(flood);
    let path = rig.path(name, &up);
    let client = path.connect();
    // Until every buffer on the way is full.
    let mut before = Value::Null;
    net::wait_for("full buffers", || {
        std::thread::sleep(Duration::from_millis(60));
        let now = rig.get("/llmfo/v1/counters").json()[name]["down_sent"].clone();
        now.as_u64() > Some(0) && std::mem::replace(&mut before, now.clone()) == now
    });
    (path, client)
}

#[test]
fn c80_a_client_that_does_not_read_blocks_no_call() {
    let rig = &rig();
    for (kind, attributes) in EACH {
        let (path, _client) = stalled(rig, &format!("p-{kind}"));
        for stream in ["downstream", "upstream"] {
            if *kind == "cut_after" && stream == "upstream" {
                continue;
            }
            let toxic = json!({"name": "t", "type": kind, "stream": stream,
                "attributes": serde_json::from_str::<Value>(attributes).unwrap()});
            quick(kind, &path.add(&toxic));
            let list = rig.get("/proxies");
            assert_eq!(list.status, 200);
            quick("list", &list);
            quick(kind, &path.remove("t"));
        }
        let off = path.change(&json!({"enabled": false}));
        assert_eq!(off.status, 200);
        quick("disable", &off);
        quick("enable", &path.change(&json!({"enabled": true})));
        quick("delete", &rig.delete(&path.url("")));
    }
}

#[test]
fn c80_reset_with_a_stalled_client() {
    let rig = &rig();
    let (path, _client) = stalled(rig, "p");
    path.toxic("bandwidth", "downstream", json!({"rate": 1}));
    let reset = rig.post("/reset", &Value::Null);
    assert_eq!(reset.status, 204);
    quick("reset", &reset);
}

/// A listener whose queue is full: dials to it hang.
fn dead_listener() -> (socket2::Socket, SocketAddr, Vec<TcpStream>) {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    socket.listen(0).unwrap();
    let addr = socket.local_addr().unwrap().as_socket().unwrap();
    let mut fill = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&addr, Duration::from_millis(150)) {
        fill.push(stream);
    }
    (socket, addr, fill)
}

#[test]
fn c81_a_hanging_dial_blocks_nobody() {
    let rig = &rig();
    let (_listener, dead, _fill) = dead_listener();
    let up = upstream(echo);
    let path = rig.path_to("p", &dead.to_string());
    let hanging = path.connect();
    std::thread::sleep(Duration::from_millis(100));
    // Another client of the same proxy is dialled for itself: with a new upstream it is served while the first one hangs.
    let changed = path.change(&json!({"upstream": up.addr.to_string()}));
    assert_eq!(changed.status, 200);
    quick("update", &changed);
    let mut served = path.connect();
    served.write_all(b"hello").unwrap();
    assert_eq!(read_exact(&mut served, 5), b"hello");
    drop(hanging);
    let back = path.change(&json!({"upstream": dead.to_string()}));
    quick("update", &back);
    let mut hanging = path.connect();
    std::thread::sleep(Duration::from_millis(50));
    quick("add", &path.toxic("latency", "downstream", json!({"latency": 1})));
    quick("remove", &path.remove("latency"));
    let off = path.change(&json!({"enabled": false}));
    assert_eq!(off.status, 200);
    quick("disable", &off);
    assert_ne!(read_end(&mut hanging, LONG).1, net::Ended::Open, "disabling closes it");
    quick("enable", &path.change(&json!({"enabled": true})));
    let _hanging = path.connect();
    quick("reset", &rig.post("/reset", &Value::Null));
    quick("delete", &rig.delete(&path.url("")));
}

#[test]
fn c79_half_close_is_forwarded() {
    let rig = &rig();
    let up = upstream(hold);
    let path = rig.path("p", &up);
    let (mut client, mut server) = (path.connect(), up.take(0));
    client.write_all(b"question").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_end(&mut server, LONG), (b"question".to_vec(), net::Ended::Fin));
    server.write_all(b"answer").unwrap();
    server.shutdown(Shutdown::Both).unwrap();
    assert_eq!(read_end(&mut client, LONG), (b"answer".to_vec(), net::Ended::Fin));
}

#[test]
fn c59_a_thousand_connections_follow_at_once() {
    let rig = &rig();
    let up = upstream(hold);
    let path = rig.path("p", &up);
    let clients: Vec<TcpStream> = (0..400).map(|_| path.connect()).collect();
    net::wait_for("all dials", || up.held.lock().unwrap().len() == clients.len());
    let added = path.toxic("timeout", "downstream", json!({"timeout": 0}));
    let removed = path.remove("timeout");
    quick("add", &added);
    quick("remove", &removed);
    for mut client in clients {
        assert_ne!(read_end(&mut client, LONG).1, net::Ended::Open);
    }
}

#[test]
fn c77_removing_a_timeout_spares_the_unaffected() {
    let rig = &rig();
    let up = upstream(echo);
    let path = rig.path("p", &up);
    let mut client = path.connect();
    path.add(&json!({"name": "t", "type": "timeout", "toxicity": 0.0, "attributes": {"timeout": 0}}));
    client.write_all(b"a").unwrap();
    read_exact(&mut client, 1);
    path.remove("t");
    client.write_all(b"b").unwrap();
    assert_eq!(read_exact(&mut client, 1), b"b");
}

#[test]
fn c82_hostile_values_never_end_the_process() {
    let rig = &rig();
    let up = upstream(echo);
    let path = rig.path("p", &up);
    let huge = "n".repeat(1 << 20);
    for kind in ["latency", "bandwidth", "slicer", "timeout", "limit_data", "reset_peer", "slow_close", "cut_after"] {
        for value in
            ["-1", "9223372036854775807", "18446744073709551615", "1e400", "\"NaN\"", "null", "[]", "{}", "true"]
        {
            for name in
                ["latency", "jitter", "rate", "timeout", "bytes", "delay", "average_size", "size_variation", "ms"]
            {
                let body = format!(r#"{{"name":"t","type":"{kind}","attributes":{{"{name}":{value}}}}}"#);
                let answer = rig.raw("POST", &path.url("/toxics"), &body);
                if answer.status == 200 {
                    let mut client = path.connect();
                    client.write_all(b"x").unwrap();
                    read_end(&mut client, Duration::from_millis(5));
                    path.remove("t");
                }
            }
        }
    }
    for body in [json!({"name": huge, "type": "latency"}), json!({"name": huge, "upstream": "127.0.0.1:1"})] {
        assert_eq!(rig.post(&path.url("/toxics"), &body).status, 400);
        assert_eq!(rig.post("/proxies", &body).status, 400);
    }
    assert_eq!(rig.raw("POST", "/proxies", &"[".repeat(100_000)).status, 400);
    let mut client = path.connect();
    client.write_all(b"alive").unwrap();
    assert_eq!(read_exact(&mut client, 5), b"alive");
}
