//! Another policy takes the place of the one that holds, while clients are served.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::gateway::{Change, Rig, body, policy};
use crate::http;
use crate::mock::{Mock, Seen, Then, Wire, finish_chunk, good, status, text_chunk};

/// Begins its answer, and goes on when it is let.
fn held(go: &Arc<AtomicBool>) -> impl Fn(&Seen, &mut Wire) -> Then + Send + Sync + 'static {
    let go = Arc::clone(go);
    move |_, w| {
        w.stream_head();
        w.event(text_chunk("begun "));
        while !go.load(Ordering::Relaxed) {
            w.event(text_chunk("on "));
            w.sleep(50);
        }
        w.event(text_chunk("ended"));
        w.event(finish_chunk("stop"));
        w.event("[DONE]");
        w.end();
        Then::KeepAlive
    }
}

#[test]
fn b117_a_stream_under_way_ends_at_its_old_target_and_new_requests_go_by_the_new_policy() {
    let go = Arc::new(AtomicBool::new(false));
    let (old, new) = (Mock::start(held(&go)), Mock::start(good("new")));
    let mut rig = Rig::new(&[("old", old.address)]);
    let before = rig.snapshot()["policy"]["sha256"].clone();
    let mut under_way = http::send(rig.listen, &http::chat_bytes(&body(true), &[]));
    under_way.until("begun");
    rig.reload(&policy(&[("new", new.address)], &Change::default()).replace("version: test-1", "version: test-2"))
        .unwrap();
    let next = rig.stream();
    assert_eq!((next.status, next.header("x-llmfo-policy")), (200, Some("test-2")));
    assert!(next.content().contains("new"), "{}", next.text());
    let snapshot = rig.snapshot();
    assert_eq!(snapshot["policy"]["version"], "test-2");
    assert_ne!(snapshot["policy"]["sha256"], before);
    let names = |s: &serde_json::Value| -> Vec<String> {
        s["targets"].as_array().unwrap().iter().map(|t| t["target"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&snapshot), ["old", "new"], "told of as long as something is under way there");
    go.store(true, Ordering::Relaxed);
    let whole = under_way.whole();
    assert!(whole.content().ends_with("ended") && whole.done(), "{}", whole.text());
    rig.wait_idle();
    assert_eq!(names(&rig.snapshot()), ["new"]);
    assert_eq!((old.asked(), new.asked()), (1, 1));
    let metrics = rig.metrics();
    assert!(metrics.contains("llmfo_policy_reloads_total{result=\"taken\"} 1"), "{metrics}");
    assert!(metrics.contains("llmfo_policy_info{version=\"test-2\"") && !metrics.contains("version=\"test-1\""));
    assert!(!metrics.contains("llmfo_breaker_state{target=\"old\""), "{metrics}");
    assert!(metrics.contains("llmfo_breaker_state{target=\"new\",state=\"serving\"} 1"), "{metrics}");
}

#[test]
fn b117_what_is_known_of_a_target_outlives_the_policy_that_it_was_learned_under() {
    let (bad, well) = (Mock::start(status("503 Service Unavailable", "{}")), Mock::start(good("well")));
    let both = [("bad", bad.address), ("well", well.address)];
    let mut rig = Rig::new(&both);
    for _ in 0..3 {
        assert_eq!(rig.stream().status, 200);
    }
    assert_eq!(rig.target("bad")["state"], "cooling");
    let (asked, connections) = (bad.asked(), well.connections());
    rig.reload(&policy(&both, &Change { route: "    same_target_retries: 0\n", ..Change::default() })).unwrap();
    assert_eq!(rig.stream().status, 200);
    assert_eq!((bad.asked(), rig.target("bad")["state"].as_str()), (asked, Some("cooling")));
    for _ in 0..9 {
        assert_eq!(rig.stream().status, 200);
    }
    // A client may be back before its connection is; but each of ten on a new one would be ten.
    assert!(well.connections() <= connections + 4, "connections of what is as before stay open");
}

#[test]
fn who_answers_and_by_which_policy_is_told_as_it_was_when_the_request_came() {
    let go = Arc::new(AtomicBool::new(false));
    let a = Mock::start(held(&go));
    let mut rig = Rig::new(&[("a", a.address)]);
    let under_way = http::send(rig.listen, &http::chat_bytes(&body(false), &[]));
    a.wait_seen(1);
    let renamed = policy(&[("renamed", a.address)], &Change::default()).replace("test-1", "test-2");
    rig.reload(&renamed.replace("model-renamed", "model-a")).unwrap();
    a.play(good("a"));
    go.store(true, Ordering::Relaxed);
    let answer = under_way.whole();
    // The mock streams where no stream was asked for: whatever came of it, the names are those of its own policy.
    assert_eq!(answer.header("x-llmfo-policy"), Some("test-1"), "{}", answer.text());
    assert_eq!(rig.decision(&answer)["attempts"][0]["target"], "a");
    let next = rig.stream();
    assert_eq!((next.header("x-llmfo-policy"), next.header("x-llmfo-target")), (Some("test-2"), Some("renamed")));
}

#[test]
fn a_changed_key_leaves_the_gateway_ready() {
    let a = Mock::start(good("a"));
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("key.txt");
    std::fs::write(&key, "first-key\n").unwrap();
    let yaml = policy(&[("a", a.address)], &Change { target: "    credentials: file:key.txt\n", ..Change::default() });
    let mut rig = Rig::of(&yaml, Change { folder: dir.path().to_owned(), ..Change::default() });
    assert_eq!(rig.stream().status, 200);
    let ready = |rig: &Rig| http::get(rig.admin, "/readyz").status == 200;
    assert!(ready(&rig));
    std::fs::write(&key, "second-key\n").unwrap();
    rig.reload(&yaml).unwrap();
    assert!(ready(&rig), "another key is no other place");
    assert_eq!(rig.stream().status, 200);
    assert_eq!(a.seen().last().unwrap().header("authorization"), Some("bearer second-key"));
    // Another address: looked at without waiting for a customer.
    let b = Mock::start(good("b"));
    rig.reload(&yaml.replace(&a.address.to_string(), &b.address.to_string())).unwrap();
    rig.eventually("readiness", || ready(&rig).then_some(()));
    assert_eq!(b.asked(), 0);
}

#[test]
fn a_refused_key_that_was_mended_is_tried_at_once() {
    let a = Mock::start(|seen: &Seen, w: &mut Wire| match seen.header("authorization") {
        Some("bearer right-key") => good("a")(seen, w),
        _ => status("401 Unauthorized", "{}")(seen, w),
    });
    let b = Mock::start(good("b"));
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("key.txt"), "wrong-key\n").unwrap();
    let yaml = policy(
        &[("a", a.address), ("b", b.address)],
        &Change { target: "    credentials: file:key.txt\n", ..Change::default() },
    );
    // One key each, or the bench of one is the bench of both.
    let yaml = yaml.replacen("file:key.txt", "file:a.txt", 1).replace("file:key.txt", "file:b.txt");
    std::fs::write(dir.path().join("a.txt"), "wrong-key\n").unwrap();
    std::fs::write(dir.path().join("b.txt"), "b-key\n").unwrap();
    let mut rig = Rig::of(&yaml, Change { folder: dir.path().to_owned(), ..Change::default() });
    assert_eq!(rig.stream().header("x-llmfo-target"), Some("b"));
    assert_eq!(rig.target("a")["state"], "benched");
    std::fs::write(dir.path().join("a.txt"), "right-key\n").unwrap();
    rig.reload(&yaml).unwrap();
    assert_eq!(rig.stream().header("x-llmfo-target"), Some("a"));
}

#[test]
fn a_policy_whose_key_cannot_be_read_changes_nothing() {
    let (a, b) = (Mock::start(good("a")), Mock::start(good("b")));
    let mut rig = Rig::new(&[("a", a.address)]);
    let unreadable = policy(
        &[("a", a.address), ("b", b.address)],
        &Change { target: "    credentials: file:/nonexistent/key\n", ..Change::default() },
    );
    let why = rig.reload(&unreadable).unwrap_err();
    assert!(why.contains("/nonexistent/key"), "{why}");
    assert!(rig.stream().done());
    assert_eq!(rig.snapshot()["targets"].as_array().unwrap().len(), 1);
}

#[test]
fn nothing_is_lost_while_policies_come_and_go() {
    let (a, b) = (Mock::start(good("a")), Mock::start(good("b")));
    let of = |names: &[(&str, std::net::SocketAddr)]| policy(names, &Change::default());
    let mut rig = Rig::new(&[("a", a.address)]);
    let policies = [
        of(&[("b", b.address), ("a", a.address)]),
        of(&[("b", b.address)]),
        of(&[("renamed", a.address), ("b", b.address)]),
        of(&[("a", a.address)]),
    ];
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..8)
        .map(|n| {
            let (stop, to) = (Arc::clone(&stop), rig.listen);
            std::thread::spawn(move || {
                let mut done = 0;
                while !stop.load(Ordering::Relaxed) || done == 0 {
                    let answer = http::chat(to, &body(n % 2 == 0), &[]);
                    assert_eq!(answer.status, 200, "{}", answer.text());
                    assert!(n % 2 == 1 || answer.done(), "{}", answer.text());
                    done += 1;
                }
                done
            })
        })
        .collect();
    for n in 0..20 {
        rig.reload(&policies[n % policies.len()]).unwrap();
        let seen = a.asked() + b.asked();
        rig.eventually("traffic between two policies", || (a.asked() + b.asked() >= seen + 4).then_some(()));
    }
    stop.store(true, Ordering::Relaxed);
    let answered: usize = clients.into_iter().map(|c| c.join().unwrap()).sum();
    assert!(answered >= 80, "{answered}");
    assert_eq!(a.asked() + b.asked(), answered, "each was asked once");
    rig.wait_idle();
}
