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
                records.push(serde_json::to_value(record).unwrap());
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
