//! Connections that are kept before anybody needs them, and how long an unused one is kept.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::gateway::{Change, Rig, policy};
use crate::h2mock::{Act, H2Mock};
use crate::mock::{Mock, Then, good, status};

/// With these settings for the connections of one target.
fn rig(targets: &[(&str, SocketAddr)], of: SocketAddr, connection: &str) -> Rig {
    let base = format!("base_url: http://{of}/v1\n");
    let text = policy(targets, &Change::default()).replace(&base, &format!("{base}    connection: {connection}\n"));
    Rig::of(&text, Change::default())
}

fn idle(rig: &Rig, target: &str) -> u64 {
    rig.target(target)["idle_connections"].as_u64().unwrap()
}

#[test]
fn a_stand_in_whose_connections_are_ready_answers_on_one_of_them() {
    let first = Mock::start(status("503 Service Unavailable", r#"{"error":{"message":"down","type":"server_error"}}"#));
    let second = Mock::start(good("second"));
    let rig = rig(&[("first", first.address), ("second", second.address)], second.address, "{ ready: 2 }");
    rig.eventually("two that are ready", || (idle(&rig, "second") == 2).then_some(()));
    assert_eq!(idle(&rig, "first"), 0, "nobody asked for any");
    let answer = rig.stream();
    assert_eq!((answer.status, answer.header("x-llmfo-target")), (200, Some("second")));
    let metrics = rig.metrics();
    assert!(metrics.contains("llmfo_upstream_connects_total{target=\"second\",kind=\"reused\"} 1"), "{metrics}");
    assert!(!metrics.contains("llmfo_upstream_connects_total{target=\"second\",kind=\"new\"}"), "{metrics}");
    assert_eq!(second.seen().len(), 1, "nothing is sent on them before they are needed");
}

#[test]
fn what_is_kept_ready_is_renewed_before_it_is_too_old() {
    let a = Mock::start(good("a"));
    let rig = rig(&[("a", a.address)], a.address, "{ ready: 1, idle_s: 0.6 }");
    rig.eventually("several, one after the other", || (a.connections() >= 5).then_some(()));
    assert!(idle(&rig, "a") <= 2, "the old ones are closed: {}", rig.snapshot());
    assert_eq!(a.seen().len(), 0);
    assert_eq!(rig.stream().status, 200);
}

#[test]
fn one_http2_connection_is_ready_for_all() {
    let mock = H2Mock::start(|_, _| Act::Answer);
    let rig = rig(&[("a", mock.address)], mock.address, "{ http2: true, ready: 8, idle_s: 2 }");
    // The look at the start may have made a second one at the same moment.
    rig.eventually("one", || (idle(&rig, "a") >= 1).then_some(()));
    assert_eq!(rig.stream().status, 200);
    let metrics = rig.metrics();
    assert!(metrics.contains("llmfo_upstream_connects_total{target=\"a\",kind=\"reused\"} 1"), "{metrics}");
    // Renewed once at least, and still not one for each request that there may be.
    mock.until("another", |l| l.connections >= 4);
    assert!(idle(&rig, "a") <= 2, "{}", rig.snapshot());
}

#[test]
fn a_connection_that_was_unused_for_too_long_is_not_used() {
    let a = Mock::start(good("a"));
    let rig = rig(&[("a", a.address)], a.address, "{ idle_s: 0.4 }");
    rig.eventually("the first look", || (rig.target("a")["health"] == "reachable").then_some(()));
    let kinds = |new: u32, reused: u32| {
        let metrics = rig.metrics();
        let line = |kind: &str, n: u32| format!("llmfo_upstream_connects_total{{target=\"a\",kind=\"{kind}\"}} {n}");
        assert!(metrics.contains(&line("new", new)), "{metrics}");
        assert!(reused == 0 || metrics.contains(&line("reused", reused)), "{metrics}");
    };
    assert_eq!(rig.stream().status, 200);
    kinds(1, 0);
    // Beyond the limit, however slow this machine is.
    std::thread::sleep(Duration::from_millis(450));
    assert_eq!(rig.stream().status, 200);
    kinds(2, 0);
}

/// Answers well, then waits until the gateway closes the connection, saying before that itself that it will say no more, or not.
fn answers_once(closes: bool) -> Mock {
    let answer = good("a");
    Mock::start(move |seen, wire| {
        answer(seen, wire);
        if closes {
            wire.say_no_more();
        }
        wire.wait_gone();
        Then::Fin
    })
}

#[test]
fn a_connection_that_nobody_uses_is_closed_also_where_nobody_comes_again() {
    let a = answers_once(false);
    let rig = rig(&[("a", a.address)], a.address, "{ idle_s: 0.8 }");
    let from = Instant::now();
    assert_eq!(rig.stream().status, 200);
    let kept = a.wait_cancelled(1).duration_since(from);
    // A quarter of the limit before it at the earliest.
    assert!(kept >= Duration::from_millis(550), "{kept:?}");
    assert_eq!(a.connections(), 2, "the look at the start, and the request");
}

#[test]
fn a_connection_that_its_provider_has_closed_is_closed_here_too() {
    let a = answers_once(true);
    // By age alone it would go after 15 s at the earliest; it is looked after every 5 s.
    let rig = rig(&[("a", a.address)], a.address, "{ idle_s: 20 }");
    let from = Instant::now();
    assert_eq!(rig.stream().status, 200);
    let kept = a.wait_cancelled(1).duration_since(from);
    assert!(kept < Duration::from_secs(12), "{kept:?}");
}

#[test]
fn a_target_that_is_not_there_is_blamed_by_nobody_for_that() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let a = Mock::start(good("a"));
    let rig = rig(&[("a", a.address), ("gone", closed)], closed, "{ ready: 4, idle_s: 0.4 }");
    rig.eventually("a look at it", || (rig.target("gone")["health"] == "unreachable").then_some(()));
    assert_eq!(rig.stream().status, 200);
    assert_eq!(rig.target("gone")["counters"]["failed_counted"], 0);
    assert_eq!(rig.target("gone")["state"], "serving");
}
