//! Answers that come and are not good: failed quality probes, suspected targets, and evidence about another prompt.

use std::time::Duration;

use crate::policy::TargetId;
use crate::router::decision::{Availability, Note};
use crate::router::testkit::*;
use crate::router::*;

fn drive(targets: &[&str]) -> Drive {
    let kit = targets.iter().fold(Kit::new(), |kit, name| kit.target(name, |_| {}));
    kit.route("r", &[targets], |_| {}).drive()
}

fn trip_a(d: &mut Drive) {
    while d.state("a") == "serving" {
        let r = d.arrive(facts());
        d.broke(d.attempt(r), Failure::Refused);
        if let Some((b, _)) = d.dial(r).filter(|(_, name)| name == "b") {
            d.ended(b);
        }
    }
}

fn next_probe(d: &mut Drive) -> AttemptId {
    // Probes follow each other back to back: the next one may be there.
    while d.probes().is_empty() {
        d.now = d.engine.poll_timeout().expect("something is due");
        d.input(Input::Tick);
    }
    let probe = d.probes()[0].0;
    d.take();
    probe
}

fn not_good(d: &mut Drive, probe: AttemptId) -> String {
    d.take();
    d.broke(probe, Failure::Quality("case json: schema: prose".into()));
    let text = d.out.iter().find_map(|o| match o {
        Output::Note(Note::Alert { text, reason, .. }) if reason == "quality" => Some(text.clone()),
        _ => None,
    });
    text.expect("people are told")
}

fn cooldown(d: &Drive) -> Duration {
    match &d.engine.snapshot(d.now).targets[0].availability {
        Availability::Cooling { until, .. } => until.since(d.now),
        other => panic!("{other:?}"),
    }
}

#[test]
fn who_answers_a_probe_wrongly_stays_out_and_its_cooldown_does_not_grow() {
    let mut d = drive(&["a", "b"]);
    trip_a(&mut d);
    for _ in 0..6 {
        let probe = next_probe(&mut d);
        let text = not_good(&mut d, probe);
        assert!(text.contains("case json: schema: prose") && text.contains("takes no traffic"), "{text}");
        assert_eq!(d.state("a"), "cooling");
        // The base is 5 s, and a fifth may be taken off it.
        assert!((4.0..=5.0).contains(&cooldown(&d).as_secs_f64()), "{:?}", cooldown(&d));
        assert_eq!(d.good_request(), "b");
    }
    for _ in 0..2 {
        let probe = next_probe(&mut d);
        d.ended(probe);
    }
    assert_eq!(d.state("a"), "serving");
}

#[test]
fn the_last_target_of_a_route_serves_whatever_it_answers_to_its_probes() {
    let mut d = drive(&["a"]);
    trip_a(&mut d);
    for _ in 0..2 {
        let probe = next_probe(&mut d);
        let text = not_good(&mut d, probe);
        assert!(text.contains("nobody else"), "{text}");
    }
    assert_eq!(d.state("a"), "serving");
    assert_eq!(d.good_request(), "a");
}

#[test]
fn a_suspected_target_is_probed_at_once_and_judged_by_that() {
    let suspect = |d: &mut Drive| {
        d.take();
        d.input(Input::Suspect { target: TargetId(0) });
        d.probes().first().map(|(probe, _)| *probe)
    };
    let mut d = drive(&["a", "b"]);
    let probe = suspect(&mut d).expect("a probe begins");
    assert_eq!((d.state("a"), d.good_request()), ("serving", "a".into()), "a suspicion alone keeps nobody out");
    assert_eq!(suspect(&mut d), None, "one probe at a time");
    d.ended(probe);
    assert_eq!(d.state("a"), "serving");
    // The second suspicion has waited.
    let probe = d.probes()[0].0;
    d.ended(probe);
    // What a probe that fails for another reason says is what any failure says.
    let probe = suspect(&mut d).expect("again");
    d.broke(probe, Failure::Reset);
    assert_eq!(d.state("a"), "serving");
    let probe = suspect(&mut d).expect("again");
    d.take();
    not_good(&mut d, probe);
    assert_eq!((d.state("a"), d.good_request()), ("cooling", "b".into()));
    assert!((4.0..=5.0).contains(&cooldown(&d).as_secs_f64()));
    assert_eq!(suspect(&mut d), None, "it is probed anyhow");
    for _ in 0..2 {
        let probe = next_probe(&mut d);
        d.ended(probe);
    }
    assert_eq!(d.state("a"), "serving");
    let mut alone = drive(&["a"]);
    let probe = suspect(&mut alone).expect("a probe begins");
    not_good(&mut alone, probe);
    assert_eq!((alone.state("a"), alone.good_request()), ("serving", "a".into()));
}

#[test]
fn evidence_about_another_prompt_filters_later_tiers_alone() {
    let with = |tested: Option<&str>, asked: Option<&str>| {
        let mut d = Kit::new()
            .target("a", |_| {})
            .target("b", |_| {})
            .route("r", &[&["a"], &["b"]], |r| r.tiers.iter_mut().for_each(|t| t.group = Some("g".into())))
            .drive();
        let record = |n: u16| Evidence {
            group: "g".into(),
            target: TargetId(n),
            standing: Standing::Eligible,
            stale_at: None,
            baseline_p95_ms: None,
            prompt_sha256: tested.map(str::to_owned),
        };
        d.input(Input::Evidence { records: vec![record(0), record(1)] });
        let r = d.arrive(Facts { prompt_sha256: asked.map(str::to_owned), ..facts() });
        d.broke(d.attempt(r), Failure::Refused);
        let skipped = d.record(r).map(|record| record.skipped[0].reason.clone());
        (d.dialled(r), skipped)
    };
    let both = (vec!["a".to_owned(), "b".to_owned()], None);
    assert_eq!(with(Some("p1"), Some("p1")), both);
    assert_eq!(with(None, Some("p2")), both, "a record that says nothing of prompts");
    let first = (vec!["a".to_owned()], Some("evidence_prompt".to_owned()));
    assert_eq!(with(Some("p1"), Some("p2")), first);
    assert_eq!(with(Some("p1"), None), first, "what is not known is not the one that was tested");
}

#[test]
fn a_suspicion_waits_for_a_place_that_no_customer_needs() {
    let mut d = Kit::new().target("a", |t| t.capacity.slots = Some(1)).route("r", &[&["a"]], |_| {}).drive();
    let r = d.arrive(facts());
    d.input(Input::Suspect { target: TargetId(0) });
    assert_eq!(d.probes(), []);
    d.ended(d.attempt(r));
    assert_eq!(d.probes().len(), 1);
    // One that is not in the policy is nobody.
    d.input(Input::Suspect { target: TargetId(9) });
    assert_eq!(d.probes().len(), 1);
}
