//! HTTP/2 towards a target that was chosen for it: nothing is lost by what it says about its connections, nothing is sent twice
//! to somebody who worked on it, and requests on one connection do not harm each other.

use std::net::SocketAddr;
use std::time::Duration;

use crate::certs::{Authority, Secure};
use crate::gateway::{Change, Rig, body, policy};
use crate::h2mock::{Act, H2Mock};
use crate::http::{self, Response};
use crate::mock::{Mock, good};

const HTTP2: &str = "    connection: { http2: true }\n";

/// `a` speaks HTTP/2, `second` does not.
fn rig(a: SocketAddr, second: Option<&Mock>) -> Rig {
    let mut targets = vec![("a", a)];
    targets.extend(second.map(|m| ("second", m.address)));
    // Limits that a busy machine keeps: none of these tests is about time.
    let text = policy(&targets, &Change::default())
        .replace("first_token_timeout_ms: 500", "first_token_timeout_ms: 3000")
        .replace("idle_timeout_ms: 500", "idle_timeout_ms: 10000")
        .replace("deadline_ms: 4000", "deadline_ms: 8000");
    let base = format!("base_url: http://{a}/v1\n");
    Rig::of(&text.replace(&base, &format!("{base}{HTTP2}")), Change::default())
}

/// The connection that is made at start to see whether it is there must not be in the way.
fn seen_at_start(mock: &H2Mock, rig: &Rig) {
    rig.eventually("a first look", || (rig.target("a")["health"] == "reachable").then_some(()));
    mock.until("a connection", |l| l.connections == 1);
}

fn is_whole(answer: &Response) {
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(answer.content() == "begun and done" && answer.done(), "{}", answer.text());
}

#[test]
fn many_requests_share_one_connection() {
    let mock = H2Mock::start(|_, _| Act::Answer);
    let rig = rig(mock.address, None);
    seen_at_start(&mock, &rig);
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..16).map(|_| scope.spawn(|| rig.stream())).collect();
        for answer in all {
            is_whole(&answer.join().unwrap());
        }
    });
    let answer = rig.plain();
    assert!(answer.status == 200 && answer.text().contains("second one two"), "{}", answer.text());
    assert_eq!(mock.log(|l| (l.connections, l.asked.len(), l.processed)), (1, 17, 17));
    let authority = mock.address.to_string();
    assert!(mock.log(|l| l.asked.iter().all(|a| *a == authority)));
    assert!(
        rig.metrics().contains("llmfo_upstream_connects_total{target=\"a\",kind=\"reused\"} 17"),
        "{}",
        rig.metrics()
    );
    rig.wait_idle();
}

#[test]
fn a_request_above_the_last_of_a_goaway_is_sent_again_once_and_worked_on_once() {
    let mock = H2Mock::start(|connection, _| if connection == 0 { Act::Away } else { Act::Answer });
    let second = Mock::start(good("second"));
    let rig = rig(mock.address, Some(&second));
    seen_at_start(&mock, &rig);
    let answer = rig.stream();
    is_whole(&answer);
    assert_eq!(answer.header("x-llmfo-target"), Some("a"));
    assert_eq!(mock.log(|l| (l.connections, l.asked.len(), l.processed)), (2, 2, 1));
    assert_eq!(second.asked(), 0, "its own target had not taken it, and takes it now");
    rig.wait_idle();
    assert_eq!(rig.target("a")["counters"]["failed_counted"], 0, "nobody is blamed");
}

#[test]
fn a_refused_stream_is_sent_again_once_and_then_goes_to_the_stand_in() {
    let mock = H2Mock::start(|_, nth| if nth == 0 { Act::Refuse } else { Act::Answer });
    let second = Mock::start(good("second"));
    let once = rig(mock.address, Some(&second));
    for stream in [true, false] {
        let answer = if stream { once.stream() } else { once.plain() };
        assert_eq!((answer.status, answer.header("x-llmfo-target")), (200, Some("a")), "{}", answer.text());
    }
    assert_eq!(mock.log(|l| (l.asked.len(), l.processed)), (3, 2));
    assert_eq!(once.target("a")["counters"]["failed_counted"], 0);
    let never = H2Mock::start(|_, _| Act::Refuse);
    let rig = rig(never.address, Some(&second));
    let answer = rig.stream();
    assert_eq!((answer.status, answer.header("x-llmfo-target")), (200, Some("second")), "{}", answer.text());
    assert_eq!(never.log(|l| (l.asked.len(), l.processed)), (2, 0), "once more on a new connection, and no third time");
    assert_eq!(second.asked(), 1, "one call");
    assert_eq!(rig.target("a")["counters"]["failed_counted"], 1, "who refuses twice has failed");
}

#[test]
fn a_goaway_in_mid_answer_loses_nothing_and_the_next_request_gets_a_connection_of_its_own() {
    let mock = H2Mock::start(|connection, _| if connection == 0 { Act::AnswerAcrossGoaway } else { Act::Answer });
    let rig = rig(mock.address, None);
    seen_at_start(&mock, &rig);
    let mut open = http::send(rig.listen, &http::chat_bytes(&body(true), &[]));
    open.until("begun");
    mock.until("its GOAWAY", |l| l.goaways == 1);
    mock.go.add_permits(100);
    is_whole(&open.whole());
    // Whether the word has come by now or not: no request is lost to it.
    rig.eventually("another connection", || {
        is_whole(&rig.stream());
        (mock.log(|l| l.connections) == 2).then_some(())
    });
    rig.wait_idle();
    assert_eq!(rig.target("a")["counters"]["failed_counted"], 0);
}

#[test]
fn a_client_that_leaves_ends_its_own_stream_alone() {
    let mock = H2Mock::start(|_, nth| match nth {
        0 => Act::Endless,
        1 => Act::AnswerAcrossGoaway,
        _ => Act::Answer,
    });
    let rig = rig(mock.address, None);
    seen_at_start(&mock, &rig);
    let mut leaves = http::send(rig.listen, &http::chat_bytes(&body(true), &[]));
    leaves.until("begun");
    let mut stays = http::send(rig.listen, &http::chat_bytes(&body(true), &[]));
    stays.until("begun");
    leaves.leave();
    mock.until("the reset", |l| l.resets == [h2::Reason::CANCEL]);
    mock.go.add_permits(1);
    is_whole(&stays.whole());
    assert_eq!(mock.log(|l| l.connections), 1);
    rig.wait_idle();
}

#[test]
fn a_connection_that_is_cut_ends_its_answers_with_an_error_and_is_not_used_again() {
    let mock = H2Mock::start(|_, nth| if nth < 2 { Act::Cut } else { Act::Answer });
    let rig = rig(mock.address, None);
    seen_at_start(&mock, &rig);
    let mut open: Vec<_> = (0..2).map(|_| http::send(rig.listen, &http::chat_bytes(&body(true), &[]))).collect();
    for reading in &mut open {
        reading.until("begun");
    }
    mock.go.add_permits(1);
    for reading in open {
        let answer = reading.whole();
        assert!(!answer.done(), "{}", answer.text());
        let last: serde_json::Value = serde_json::from_str(answer.events().last().unwrap()).unwrap();
        assert_eq!((&last["error"]["code"], &last["error"]["retry_safe"]), (&"reset".into(), &true.into()), "{last}");
    }
    is_whole(&rig.stream());
    assert_eq!(mock.log(|l| l.connections), 2);
}

#[test]
fn clients_that_do_not_read_hold_up_nobody_on_the_same_connection() {
    let mock = H2Mock::start(|_, nth| if nth < 6 { Act::Large } else { Act::Answer });
    let rig = rig(mock.address, None);
    seen_at_start(&mock, &rig);
    let mut stuck: Vec<_> = (0..6).map(|_| http::send(rig.listen, &http::chat_bytes(&body(true), &[]))).collect();
    for reading in &mut stuck {
        reading.until("begun");
    }
    // Until nothing more of them goes anywhere, or so much has gone that windows which are too large for the connection are full.
    let mut taken = 0;
    for _ in 0..50 {
        std::thread::sleep(Duration::from_millis(100));
        let before = std::mem::replace(&mut taken, mock.log(|l| l.large));
        if before == taken && taken > 0 {
            break;
        }
    }
    for _ in 0..5 {
        is_whole(&rig.stream());
    }
    assert_eq!(mock.log(|l| l.connections), 1);
    for reading in stuck {
        reading.leave();
    }
    rig.wait_idle();
}

#[test]
fn more_than_a_connection_carries_go_on_another_one_and_wait_for_nobody() {
    let mock = H2Mock::allowing(2, |_, nth| if nth == 0 { Act::Answer } else { Act::Endless });
    let rig = rig(mock.address, None);
    seen_at_start(&mock, &rig);
    // From its answer on it is known how many requests the provider allows.
    is_whole(&rig.stream());
    let mut open = Vec::new();
    for _ in 0..6 {
        let mut reading = http::send(rig.listen, &http::chat_bytes(&body(true), &[]));
        reading.until("begun");
        open.push(reading);
    }
    let connections = mock.log(|l| l.connections);
    assert!(
        (3..=4).contains(&connections),
        "two on each, or one on a new one of which nothing is known yet: {connections}"
    );
    drop(open);
    rig.wait_idle();
    assert_eq!(rig.target("a")["counters"]["failed_counted"], 0);
}

#[test]
fn over_tls_it_is_spoken_only_if_both_sides_agree() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new("one");
    std::fs::write(dir.path().join("ca.pem"), &authority.pem).unwrap();
    let over = |to: SocketAddr| {
        let text = policy(&[("a", to)], &Change::default()).replace(
            &format!("base_url: http://{to}/v1\n"),
            &format!(
                "base_url: https://models.example/v1\n    connect_to: {to}\n    connection: {{ ca_file: 'file:ca.pem', http2: true }}\n"
            ),
        );
        Rig::of(&text, Change { folder: dir.path().to_owned(), ..Change::default() })
    };
    let offers = H2Mock::under(Some(authority.server("models.example", 2100, &[b"h2"])), 100, |_, _| Act::Answer);
    is_whole(&over(offers.address).stream());
    assert_eq!(offers.log(|l| l.asked.clone()), ["models.example"]);
    let does_not = Secure::start(authority.server("models.example", 2100, &[b"http/1.1"]));
    let answer = over(does_not.address).plain();
    assert!(answer.status == 200 && answer.text().contains("secure one two"), "{}", answer.text());
}

#[test]
fn who_does_not_speak_it_is_a_fault_of_the_provider_and_the_stand_in_answers() {
    let (old, second) = (Mock::start(good("old")), Mock::start(good("second")));
    let rig = rig(old.address, Some(&second));
    let answer = rig.stream();
    assert_eq!((answer.status, answer.header("x-llmfo-target")), (200, Some("second")), "{}", answer.text());
    let first = &rig.decision(&answer)["attempts"][0];
    assert_eq!(first["class"], "provider", "{first}");
}
