//! The bad gateway does what its mode says, and nothing worse: what drills rely on when they must fail it.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use llmfo::lab::topology::Topology;
use llmfo::lab::up::{Lab, Options};
use llmfo::load::http::{Base, json_call};
use llmfo::load::{Entry, Kind, Plan, PlanSettings, Settings, run};
use llmfo::measure::{End, RequestRow};
use serde_json::{Value, json};

struct Bad {
    child: Child,
    url: String,
}

impl Drop for Bad {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn bad_gateway(mode: &str, admin: &str) -> Bad {
    let mut child = Command::new(crate::example::bad_gateway())
        .args(["--mode", mode, "--lab", admin])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let line: Value = serde_json::from_str(&line).unwrap();
    Bad { child, url: format!("http://{}/v1", line["listen"].as_str().unwrap()) }
}

struct Set {
    lab: Lab,
    topology: Topology,
    bad: Bad,
}

async fn set(mode: &str) -> Set {
    let lab = Lab::up(&Options { seed: 1, ..Options::default() }).await.unwrap();
    let topology = lab.topology().clone();
    let bad = bad_gateway(mode, &lab.line().admin);
    Set { lab, topology, bad }
}

impl Set {
    async fn toxic(&self, kind: &str, attributes: Value) {
        let below = format!("/proxies/{}/toxics", self.topology.providers[0].proxy);
        let body = json!({"name": "t", "type": kind, "stream": "downstream", "attributes": attributes});
        let base = Base::new(&self.topology.toxiproxy).unwrap();
        json_call(http::Method::POST, &base, &below, Some(&body), Duration::from_secs(2)).await.unwrap();
    }

    /// The requests of the first turns of one streamed conversation that consists of these kinds.
    async fn turns(&self, kinds: Vec<Kind>, wanted: usize) -> Vec<RequestRow> {
        let plan = Plan::new(PlanSettings {
            kinds,
            stream_share: 1.0,
            until_ms: Some(0.0),
            think_min_ms: 1.0,
            think_max_ms: 2.0,
            ..PlanSettings::default()
        });
        let settings = Settings {
            entries: vec![Entry { name: "target".into(), url: self.bad.url.clone() }],
            model: "support-chat".into(),
            tickets_url: self.topology.tickets.url.clone(),
            key: None,
            connect_limit: Duration::from_millis(500),
            request_limit: Duration::from_secs(3),
            max_conversations: 50,
            phase: "outage".into(),
        };
        let (load, mut rows) = run(plan, settings).unwrap();
        let mut all = Vec::new();
        while let Some(row) = rows.recv().await {
            all.push(row);
            if all.iter().filter(|r: &&RequestRow| r.last_of_turn).count() == wanted {
                break;
            }
        }
        drop(load);
        assert!(!all.is_empty());
        all
    }

    async fn down(self) {
        self.lab.down().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_no_fault_every_mode_answers() {
    for mode in ["no-failover", "truncate", "splice", "replay", "hang", "bypass"] {
        let set = set(mode).await;
        for row in set.turns(vec![Kind::Order, Kind::Ticket, Kind::Json], 3).await {
            assert_eq!((row.end, row.done_marker), (End::Complete, true), "{mode}: {row:?}");
        }
        set.down().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_cut_after_content_is_forged_spliced_or_honestly_broken() {
    for (mode, end) in
        [("truncate", End::Complete), ("splice", End::Complete), ("replay", End::ErrorEvent), ("bypass", End::Complete)]
    {
        let set = set(mode).await;
        set.toxic("cut_after", json!({"events": 8, "how": "rst"})).await;
        let rows = set.turns(vec![Kind::Order], 1).await;
        let row = &rows[0];
        assert_eq!(row.end, end, "{mode}: {row:?}");
        let whole = whole_texts(&set).await;
        let same = whole.contains(&row.text);
        let prefix = whole.iter().any(|t| t.starts_with(&row.text));
        match mode {
            "truncate" => assert!(prefix && !same && row.finish_reason.as_deref() == Some("stop"), "{row:?}"),
            "splice" => assert!(!prefix && whole.iter().any(|t| row.text.ends_with(t)), "{row:?}"),
            "replay" => assert!(prefix && !same && row.error_events == 1 && !row.done_marker, "{row:?}"),
            _ => assert!(same, "{row:?}"),
        }
        set.down().await;
    }
}

async fn whole_texts(set: &Set) -> Vec<String> {
    let mut texts = Vec::new();
    for provider in &set.topology.providers {
        let base = Base::new(&set.lab.line().admin).unwrap();
        let below = format!("/providers/{}/log", provider.name);
        let log = json_call(http::Method::GET, &base, &below, None, Duration::from_secs(2)).await.unwrap();
        let rows = log["rows"].as_array().unwrap().clone();
        texts.extend(rows.iter().filter_map(|r| r["text"].as_str().filter(|t| !t.is_empty()).map(str::to_string)));
    }
    texts
}

#[tokio::test(flavor = "multi_thread")]
async fn replay_opens_a_second_ticket_wherever_the_call_is_cut() {
    // The role chunk, the head of the call, then its pieces: from the third event on, the gateway has relayed some of it.
    for events in [2, 3, 6, 9, 12] {
        let set = set("replay").await;
        set.toxic("cut_after", json!({"events": events, "how": "rst"})).await;
        let rows = set.turns(vec![Kind::Ticket], 1).await;
        let row = &rows[0];
        assert_eq!((row.end, row.tool_calls.len()), (End::Complete, 2), "{events}: {row:?}");
        assert_ne!(row.tool_calls[0].id, row.tool_calls[1].id);
        let base = Base::new(&set.topology.tickets.url).unwrap();
        let page = json_call(http::Method::GET, &base, "/tickets", None, Duration::from_secs(2)).await.unwrap();
        let key = format!("{}/{}/create_ticket/{}", row.conversation, row.turn, row.order_id);
        let same = page["effects"].as_array().unwrap().iter().filter(|e| e["business_key"] == key.as_str()).count();
        assert_eq!(same, 2, "{events}: {page}");
        set.down().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn silence_is_hung_on_or_answered_with_an_error_or_failed_over() {
    for (mode, end) in [("hang", End::GaveUp), ("no-failover", End::HttpError), ("truncate", End::Complete)] {
        let set = set(mode).await;
        set.toxic("timeout", json!({"timeout": 0})).await;
        let rows = set.turns(vec![Kind::Order], 1).await;
        assert_eq!(rows[0].end, end, "{mode}: {:?}", rows[0]);
        if mode == "truncate" {
            assert!(whole_texts(&set).await.contains(&rows[0].text));
        }
        set.down().await;
    }
}
