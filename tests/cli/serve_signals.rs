//! What `llmfo serve` does on a signal, and on two.

use std::io::Read;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::serve::{LIMIT, Served, ask, get, policy, silent, write};

/// `timeout` sends its signal to its child and then to the group that both are in.
#[test]
fn one_signal_that_is_sent_to_process_and_group_is_one() {
    let dir = tempfile::tempdir().unwrap();
    write(&dir, &policy(silent(), ""));
    for second in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let mut served = Served::start(dir.path(), &["--drain-s", "1"]);
        let mut client = ask(&served);
        served.signal(rustix::process::Signal::TERM);
        // Pending at the same time they would be one for the kernel already.
        std::thread::sleep(Duration::from_millis(5));
        served.signal(second);
        let (code, took) = served.wait();
        assert_eq!(code, Some(0), "it drains");
        assert!(took > Duration::from_millis(800), "{took:?}");
        let mut said = String::new();
        client.read_to_string(&mut said).unwrap();
        assert!(said.contains("shutting_down"), "{said}");
    }
}

#[test]
fn a_signal_drains_and_a_second_one_ends_it_at_once() {
    let dir = tempfile::tempdir().unwrap();
    write(&dir, &policy(silent(), ""));

    let mut idle = Served::start(dir.path(), &[]);
    idle.signal(rustix::process::Signal::TERM);
    let (code, took) = idle.wait();
    assert_eq!(code, Some(0));
    assert!(took < Duration::from_secs(5), "{took:?}");

    let mut drained = Served::start(dir.path(), &["--drain-s", "1"]);
    let mut client = ask(&drained);
    drained.signal(rustix::process::Signal::INT);
    let (code, took) = drained.wait();
    assert_eq!(code, Some(0), "a drain is a good end");
    assert!(took > Duration::from_millis(800), "{took:?}");
    let mut said = String::new();
    client.read_to_string(&mut said).unwrap();
    assert!(said.starts_with("HTTP/1.1 503") && said.contains("shutting_down"), "{said}");

    let said = |served: &mut Served| -> Vec<Value> {
        let mut all = String::new();
        served.child.stderr.take().unwrap().read_to_string(&mut all).unwrap();
        all.lines().filter_map(|l| serde_json::from_str::<Value>(l).ok()).collect()
    };
    let lines = said(&mut drained);
    let line = lines.iter().find(|v| v["message"] == "stopped").unwrap_or_else(|| panic!("{lines:?}"));
    assert_eq!((&line["why"], &line["finished"], &line["cut"]), (&"SIGINT".into(), &0.into(), &1.into()), "{line}");
    assert!(line["level"] == "WARN" && line["drain_ms"].as_f64().unwrap() >= 1_000.0, "{line}");

    let mut twice = Served::start(dir.path(), &["--drain-s", "60"]);
    let _client = ask(&twice);
    twice.signal(rustix::process::Signal::TERM);
    let start = Instant::now();
    while !get(twice.address("admin"), "/readyz").contains("shutting down") {
        assert!(start.elapsed() < LIMIT);
    }
    // Within 100 ms of the first it would be the same one.
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(150) {
        std::thread::sleep(Duration::from_millis(10));
    }
    twice.signal(rustix::process::Signal::TERM);
    let (code, took) = twice.wait();
    assert_eq!(code, Some(143));
    assert!(took < Duration::from_secs(3), "{took:?}");
    let lines = said(&mut twice);
    let line = lines.iter().find(|v| v["message"] == "stopped at once: a second signal came");
    assert_eq!(line.map(|v| (&v["why"], &v["open"])), Some((&"SIGTERM".into(), &1.into())), "{lines:?}");
}
