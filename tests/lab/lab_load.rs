//! The customer application: how requests end, how turns go on, against scripted providers and misbehaving servers.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use llmfo::lab::provider::Provider;
use llmfo::lab::tickets::Tickets;
use llmfo::load::client::{Ask, ask};
use llmfo::load::http::Base;
use llmfo::load::marker::Kind;
use llmfo::load::{Entry, Plan, PlanSettings, Settings, run};
use llmfo::measure::{End, RequestRow};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A server that reads a request, writes `answer`, and ends the connection in `how`: fin, rst or silence.
async fn misbehaving(answer: &'static str, how: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            read_request(&mut stream).await;
            stream.write_all(answer.as_bytes()).await.unwrap();
            match how {
                "rst" => {
                    // The answer must have been read before the reset: a reset throws away what still lies in buffers.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
                }
                "silence" => kept.push(stream),
                _ => stream.shutdown().await.unwrap(),
            }
        }
    });
    address
}

async fn read_request(stream: &mut TcpStream) {
    let mut seen = Vec::new();
    let mut bytes = [0u8; 4096];
    while !seen.ends_with(b"{}") {
        let n = stream.read(&mut bytes).await.unwrap();
        assert!(n > 0, "the client left before its request was whole");
        seen.extend_from_slice(&bytes[..n]);
    }
}

async fn ended(address: SocketAddr, stream: bool) -> (llmfo::load::client::Outcome, End, String) {
    ask(&Ask {
        base: &Base::new(&format!("http://{address}/v1")).unwrap(),
        headers: HeaderMap::new(),
        body: Bytes::from_static(b"{}"),
        stream,
        connect_limit: Duration::from_millis(500),
        limit: Duration::from_millis(700),
    })
    .await
}

const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

fn chunks(events: &[&str], last: bool) -> &'static str {
    let mut text = HEAD.to_string();
    for event in events {
        text.push_str(&format!("{:x}\r\ndata: {event}\n\n\r\n", event.len() + 8));
    }
    if last {
        text.push_str("0\r\n\r\n");
    }
    text.leak()
}

const HI: &str = r#"{"choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":null}]}"#;
const STOP: &str = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
const ERROR: &str = r#"{"error":{"message":"m","type":"t","code":"upstream_broke"}}"#;

#[tokio::test]
async fn every_end_of_a_stream_has_its_name() {
    let cases: [(&[&str], bool, &str, End, &str); 9] = [
        (&[HI, STOP, "[DONE]"], true, "fin", End::Complete, ""),
        (&[HI, "[DONE]"], true, "fin", End::Complete, ""),
        (&[HI, STOP, "[DONE]"], false, "rst", End::Complete, "after [DONE]"),
        (&[HI], true, "fin", End::CleanWithoutFinish, ""),
        (&[HI], false, "fin", End::Cut, "closed in mid-answer"),
        (&[HI], false, "rst", End::Cut, "reset by peer"),
        (&[HI, ERROR], true, "fin", End::ErrorEvent, ""),
        (&[HI, "<html>"], true, "fin", End::Malformed, ""),
        (&[HI], false, "silence", End::GaveUp, "own time limit"),
    ];
    for (events, last, how, end, detail) in cases {
        let (outcome, got, said) = ended(misbehaving(chunks(events, last), how).await, true).await;
        assert_eq!(got, end, "{events:?} {how}: {said}");
        assert!(said.contains(detail), "{events:?} {how}: {said}");
        assert_eq!(outcome.received.text, "Hi");
        assert!(outcome.sent && outcome.received.useful_text_ms.is_some() && outcome.status == Some(200));
    }
}

#[tokio::test]
async fn every_end_of_a_whole_answer_has_its_name() {
    let whole = r#"{"choices":[{"index":0,"message":{"role":"assistant","content":"Hi"},"finish_reason":"stop"}]}"#;
    let json = |status: &str, body: &str, missing: usize| -> &'static str {
        format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len() + missing
        )
        .leak()
    };
    let cases: [(&'static str, &str, End); 7] = [
        (json("200 OK", whole, 0), "fin", End::Complete),
        (json("200 OK", whole, 5), "fin", End::Cut),
        (json("200 OK", "{}", 0), "fin", End::Malformed),
        (json("503 Service Unavailable", ERROR, 0), "fin", End::HttpError),
        ("", "fin", End::ConnectFailed),
        ("", "rst", End::ConnectFailed),
        ("", "silence", End::GaveUp),
    ];
    for (answer, how, end) in cases {
        let (outcome, got, said) = ended(misbehaving(answer, how).await, false).await;
        assert_eq!(got, end, "{answer} {how}: {said}");
        if end == End::HttpError {
            assert_eq!((outcome.status, outcome.received.error_code.as_deref()), (Some(503), Some("upstream_broke")));
        }
    }
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let (outcome, got, said) = ended(free, false).await;
    assert_eq!((got, said.as_str(), outcome.sent), (End::ConnectFailed, "connect refused", false));
}

struct Shop {
    providers: Vec<Provider>,
    urls: Vec<String>,
    tickets: Tickets,
    tickets_url: String,
    _servers: Vec<llmfo::lab::listen::Server>,
}

async fn shop() -> Shop {
    let mut shop = Shop {
        providers: vec![],
        urls: vec![],
        tickets: Tickets::default(),
        tickets_url: String::new(),
        _servers: vec![],
    };
    for (voice, name) in ["local-a", "local-b"].into_iter().enumerate() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        shop.urls.push(format!("http://{}/v1", listener.local_addr().unwrap()));
        let provider = Provider::new(name, voice, 1);
        shop._servers.push(provider.serve(listener));
        shop.providers.push(provider);
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    shop.tickets_url = format!("http://{}", listener.local_addr().unwrap());
    shop._servers.push(llmfo::lab::listen::serve_router(listener, shop.tickets.router()));
    shop
}

fn settings(shop: &Shop, urls: &[&str]) -> Settings {
    Settings {
        entries: urls.iter().enumerate().map(|(n, u)| Entry { name: format!("e{n}"), url: (*u).to_string() }).collect(),
        model: "support-chat".into(),
        tickets_url: shop.tickets_url.clone(),
        key: None,
        connect_limit: Duration::from_millis(500),
        request_limit: Duration::from_secs(5),
        max_conversations: 100,
        phase: "steady".into(),
    }
}

async fn rows(plan: PlanSettings, settings: Settings) -> Vec<RequestRow> {
    let (load, mut rows) = run(Plan::new(plan), settings).unwrap();
    let mut all = Vec::new();
    let collect = async {
        while let Some(row) = rows.recv().await {
            all.push(row);
        }
    };
    tokio::time::timeout(Duration::from_secs(60), collect).await.expect("the load must end by itself");
    drop(load);
    all
}

fn short(until_ms: f64, kinds: Vec<Kind>) -> PlanSettings {
    PlanSettings {
        turns_per_s: 40.0,
        think_min_ms: 1.0,
        think_max_ms: 5.0,
        until_ms: Some(until_ms),
        kinds,
        ..PlanSettings::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whole_conversations_run_and_every_ticket_is_opened_once() {
    let shop = shop().await;
    let url = shop.urls[0].clone();
    let all = rows(short(700.0, PlanSettings::default().kinds), settings(&shop, &[&url])).await;
    assert!(all.len() > 20, "{}", all.len());
    for row in &all {
        assert_eq!(row.end, End::Complete, "{row:?}");
        assert!(row.started_ms >= row.due_ms && row.ended_ms > row.started_ms);
        assert_eq!(row.entry, "e0");
        assert_eq!(row.phase, "steady");
    }
    let of = |kind: &str| all.iter().filter(|r| r.kind == kind).cloned().collect::<Vec<_>>();
    for (kind, _) in Kind::ALL {
        assert!(!of(kind).is_empty(), "no {kind}");
    }
    for row in of("order").iter().chain(&of("recall")) {
        assert!(row.text.contains(&row.order_id), "{row:?}");
    }
    for row in of("json") {
        let value: serde_json::Value = serde_json::from_str(&row.text).unwrap();
        assert!(jsonschema::is_valid(&llmfo::load::app::json_schema(), &value), "{value}");
    }
    let effects = shop.tickets.page(None).effects;
    let calls: Vec<&RequestRow> = all.iter().filter(|r| !r.tool_calls.is_empty()).collect();
    assert_eq!(effects.len(), calls.len());
    for effect in &effects {
        assert_eq!(effects.iter().filter(|e| e.business_key == effect.business_key).count(), 1);
    }
    // A turn with a call has a second request, whose answer names the ticket.
    for call in calls.iter().filter(|r| r.kind == "ticket") {
        assert!(!call.last_of_turn);
        let next = all
            .iter()
            .find(|r| (&r.conversation, r.turn, r.step) == (&call.conversation, call.turn, call.step + 1))
            .unwrap();
        let ticket = effects.iter().find(|e| e.call_id == call.tool_calls[0].id).unwrap().ticket;
        assert!(next.text.contains(&ticket.to_string()) && next.last_of_turn, "{next:?}");
    }
    // The provider saw whole histories: as many user messages as the turn's number.
    for seen in shop.providers[0].log(None).rows {
        assert!(seen.completed && !seen.probe && !seen.cancelled);
        assert!(seen.turn >= 1 && seen.event_ends.len() == seen.events_sent as usize);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_entry_is_left_for_the_next_one() {
    let shop = shop().await;
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let (dead, good) = (format!("http://{free}/v1"), shop.urls[1].clone());
    let all = rows(short(300.0, vec![Kind::Order, Kind::Ticket, Kind::Long]), settings(&shop, &[&dead, &good])).await;
    let failed: Vec<&RequestRow> = all.iter().filter(|r| r.entry == "e0").collect();
    assert!(!failed.is_empty());
    for row in &failed {
        assert_eq!((row.end, row.last_of_turn, row.headers_ms), (End::ConnectFailed, false, None));
    }
    // An entry that failed is tried last for a while, so that not every turn pays for it.
    assert!(failed.len() < all.len() / 2, "{} of {}", failed.len(), all.len());
    for row in all.iter().filter(|r| r.entry == "e1") {
        assert_eq!(row.end, End::Complete, "{row:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_ends_after_the_turns_under_way() {
    let shop = shop().await;
    let url = shop.urls[0].clone();
    let mut plan = short(1e9, vec![Kind::Long]);
    plan.until_ms = None;
    let (load, mut rows) = run(Plan::new(plan), settings(&shop, &[&url])).unwrap();
    assert!(rows.recv().await.is_some());
    load.set_phase("outage");
    assert!(load.stop(Duration::from_secs(20)).await, "the turns under way end by themselves");
    while let Some(row) = rows.recv().await {
        assert_eq!(row.end, End::Complete, "{row:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn regional_copies_are_kept_and_grow_old_without_their_source() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = llmfo::lab::listen::serve_router(listener, llmfo::lab::dependency::router("region-1", "policy_store"));
    let source =
        |role: &str| llmfo::load::regional::Source { region: "region-1".into(), role: role.into(), url: url.clone() };
    let regional = llmfo::load::regional::start(&[source("policy_store"), source("telemetry")]).unwrap();
    let wait = async |done: &dyn Fn(&[llmfo::load::regional::CopyRow]) -> bool| {
        for _ in 0..400 {
            let rows = regional.snapshot();
            if done(&rows) {
                return rows;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        panic!("not within 10 s: {:?}", regional.snapshot());
    };
    let rows = wait(&|rows| rows.iter().all(|r| r.refreshed > 0)).await;
    assert!(rows[0].version.is_some() && rows[0].failed == 0);
    drop(server);
    let rows = wait(&|rows| rows.iter().all(|r| r.failed > 0)).await;
    assert!(rows[0].version.is_some() && rows[0].max_age_ms > 900.0, "{rows:?}");
}
