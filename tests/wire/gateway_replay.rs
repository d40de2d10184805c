//! The input journal of a gateway, played again, gives the decisions that were made.

use std::sync::Arc;
use std::time::Duration;

use llmfo::router::replay::{Entry, Header, replay};
use llmfo::router::{Engine, Output};
use serde_json::Value;

use crate::gateway::{Change, Rig, policy};
use crate::mock::{Mock, good, status};

#[test]
fn an_input_journal_replays_to_the_same_decisions() {
    let a = Mock::start(status("503 Service Unavailable", ""));
    let b = Mock::start(good("b"));
    let dir = tempfile::tempdir().unwrap();
    let inputs = dir.path().join("inputs.jsonl");
    let targets = [("a", a.address), ("b", b.address)];
    let text = policy(&targets, &Change::default());
    let mut rig = Rig::of(&text, Change { inputs: Some(inputs.clone()), ..Change::default() });
    let decided: Vec<Value> = (0..6)
        .map(|n| {
            let response = if n % 2 == 0 { rig.stream() } else { rig.plain() };
            assert_eq!(response.status, 200, "{}", response.text());
            rig.decision(&response)
        })
        .collect();
    rig.stop(Duration::from_secs(5));

    let (policy, _) = llmfo::policy::load("test.yaml", text.as_bytes());
    let policy = Arc::new(policy.unwrap());
    let read = || {
        let journal = std::fs::read_to_string(&inputs).unwrap();
        let mut lines = journal.lines();
        let header: Header = serde_json::from_str(lines.next().unwrap()).unwrap();
        assert_eq!(header.policy_sha256, policy.sha256);
        let entries: Vec<Entry> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
        let mut engine = Engine::new(Arc::clone(&policy), header.seed);
        assert!(header.hedges);
        let mut records = Vec::new();
        replay(&mut engine, entries, |_, output| {
            if let Output::Done { record, .. } = output {
                // Told as the journal tells it; the core's own figures are finer.
                let mut record = serde_json::to_value(record).unwrap();
                llmfo::units::told_durations(&mut record);
                records.push(record);
            }
        });
        records
    };
    // The writer's thread may still be at it.
    let start = std::time::Instant::now();
    while read().len() < decided.len() && start.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let played = read();
    assert_eq!(played.len(), decided.len());
    for (played, decided) in played.iter().zip(&decided) {
        assert_eq!(played, decided);
    }
    assert!(decided.iter().any(|d| d["attempts"].as_array().unwrap().len() == 2), "something failed over");
    let bytes = std::fs::read_to_string(&inputs).unwrap();
    assert!(!bytes.contains("hello"), "no text of a conversation is in it");
}

#[test]
fn what_the_ledger_knew_and_heard_replays_too_and_no_argument_of_a_call_is_in_it() {
    use crate::gateway_ledger::{C1, ask, calls, calls_tool, send, shop_policy};
    use llmfo::gateway::ledger::{Ledger, Place};
    let a = Mock::start(calls_tool("create_ticket"));
    let dir = tempfile::tempdir().unwrap();
    let place = Place::File(dir.path().join("l.redb"));
    let text = shop_policy(&[("a", a.address)], &Change::default());
    let (policy, _) = llmfo::policy::load("test.yaml", text.as_bytes());
    let policy = Arc::new(policy.unwrap());
    // The second life begins with what the first one has written down.
    for life in 0..2 {
        let inputs = dir.path().join(format!("inputs-{life}.jsonl"));
        let ledger = Some(Arc::new(Ledger::start(&place).unwrap()));
        let mut rig = Rig::of(&text, Change { inputs: Some(inputs.clone()), ledger, ..Change::default() });
        let other = [("x-llmfo-conversation", "c2"), ("x-llmfo-turn", "1")];
        let decided: Vec<Value> = [C1, C1, &other]
            .iter()
            .map(|headers| {
                let response = send(rig.listen, &ask(true, "It is broken.", &[]), headers);
                assert_eq!(calls(&response).len(), 1);
                rig.decision(&response)
            })
            .collect();
        rig.stop(Duration::from_secs(5));
        let outcomes: Vec<&str> = decided.iter().map(|d| d["outcome"].as_str().unwrap()).collect();
        let right = if life == 0 { ["answered", "from_ledger", "answered"] } else { ["from_ledger"; 3] };
        assert_eq!(outcomes, right);
        let start = std::time::Instant::now();
        let played = loop {
            let journal = std::fs::read_to_string(&inputs).unwrap();
            for secret in ["wording", "broken", "order_id"] {
                assert!(!journal.contains(secret), "{secret} in {journal}");
            }
            let mut lines = journal.lines();
            let header: Header = serde_json::from_str(lines.next().unwrap()).unwrap();
            let mut engine = Engine::new(Arc::clone(&policy), header.seed);
            let mut records = Vec::new();
            replay(&mut engine, lines.map(|line| serde_json::from_str::<Entry>(line).unwrap()), |_, output| {
                if let Output::Done { record, .. } = output {
                    // Told as the journal tells it; the core's own figures are finer.
                    let mut record = serde_json::to_value(record).unwrap();
                    llmfo::units::told_durations(&mut record);
                    records.push(record);
                }
            });
            if records.len() == decided.len() || start.elapsed() > Duration::from_secs(10) {
                break records;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        assert_eq!(played, decided);
    }
}
