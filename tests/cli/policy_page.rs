//! `docs/policy.md`: its file works as it stands, and it has every key that there is.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use llmfo::policy::{DEFAULT_CONNECT_TIMEOUT, DEFAULT_IDLE_TIMEOUT, DEFAULT_MAX_ATTEMPTS, DEFAULT_RESERVE, Pii};
use serde_json::Value;

const PAGE: &str = include_str!("../../docs/policy.md");
const LIMIT: Duration = Duration::from_secs(20);

/// The first block of YAML on the page.
fn shown() -> &'static str {
    PAGE.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap()
}

fn llmfo(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_llmfo"));
    command.current_dir(dir).args(args).env_remove("LLMFO_POLICY").env_remove("RUST_LOG");
    command.env("OWN_KEY", "k1").env("VENDOR_KEY", "k2");
    command
}

#[test]
fn the_file_on_the_page_has_no_finding_and_loads() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("shop.yaml"), shown()).unwrap();
    let o = llmfo(dir.path(), &["validate", "shop.yaml", "--now", "2026-12-01T00:00:00Z"]).output().unwrap();
    assert_eq!((o.status.code(), String::from_utf8_lossy(&o.stdout).as_ref()), (Some(0), "no findings\n"));
    let (policy, found) = llmfo::policy::load("shop.yaml", shown().as_bytes());
    let policy = policy.unwrap();
    assert!(found.is_empty() && policy.not_enforced.is_empty(), "{found:#?} {:#?}", policy.not_enforced);
    let route = policy.route_named("chat").unwrap();
    assert_eq!(route.tiers.len(), 2);
    for tier in &route.tiers {
        assert_eq!(route.pii(tier), Pii::Allowed);
        assert!(tier.targets.iter().all(|id| route.legal(policy.target(*id))));
    }
}

/// A provider that answers every request with the same words.
fn provider(words: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut head = BufReader::new(stream.try_clone().unwrap());
            let (mut line, mut length) = (String::new(), 0usize);
            while head.read_line(&mut line).is_ok_and(|n| n > 2) {
                if let Some(n) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = n.trim().parse().unwrap();
                }
                line.clear();
            }
            let _ = head.read_exact(&mut vec![0; length]);
            let body = format!(
                r#"{{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{{"index":0,"message":{{"role":"assistant","content":"{words}"}},"finish_reason":"stop"}}]}}"#
            );
            let _ = write!(
                stream,
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            );
        }
    });
    format!("http://{address}/v1")
}

/// With addresses of this machine in it, the file on the page answers a request that says nothing about its data, and its
/// second target stands in when the first is not there.
#[test]
fn the_file_on_the_page_answers_personal_data() {
    let dir = tempfile::tempdir().unwrap();
    let swap = |text: &str, from: &str, to: &str| {
        assert_eq!(text.matches(from).count(), 1, "{from}");
        text.replace(from, to)
    };
    for (own, speaks) in [(provider("own words"), "own words"), ("http://127.0.0.1:9/v1".to_owned(), "vendor's words")]
    {
        let text = swap(shown(), "http://10.0.0.11:8000/v1", &own);
        let text = swap(&text, "https://api.vendor.example/v1", &provider("vendor's words"));
        std::fs::write(dir.path().join("shop.yaml"), text).unwrap();
        let args =
            ["serve", "--policy", "shop.yaml", "--listen", "127.0.0.1:0", "--format", "json", "--exit-with-stdin"];
        let mut served = llmfo(dir.path(), &args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(served.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let first: Value = serde_json::from_str(&line).unwrap();
        let mut stream = TcpStream::connect(first["listen"].as_str().unwrap()).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let body = r#"{"model":"chat","messages":[{"role":"user","content":"hello"}]}"#;
        write!(
            stream,
            "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        drop(served.stdin.take());
        served.wait().unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(speaks), "{answer}");
    }
}

/// The page by headings: the table rows below each.
fn rows() -> Vec<Vec<&'static str>> {
    PAGE.lines()
        .filter(|l| l.starts_with("| `"))
        .map(|l| l.trim_matches('|').split(" | ").map(str::trim).collect())
        .collect()
}

fn row(key: &str) -> Vec<&'static str> {
    let key = format!("`{key}`");
    rows().into_iter().find(|r| r[0] == key).unwrap_or_else(|| panic!("no row of {key}"))
}

/// The words that a value may be, wherever the schema lists them.
fn choices(part: &Value, words: &mut Vec<String>) {
    match part {
        Value::Object(map) => {
            words.extend(map.get("const").and_then(Value::as_str).map(str::to_owned));
            let listed = map.get("enum").and_then(Value::as_array).into_iter().flatten();
            words.extend(listed.filter_map(Value::as_str).map(str::to_owned));
            map.values().for_each(|below| choices(below, words));
        }
        Value::Array(items) => items.iter().for_each(|below| choices(below, words)),
        _ => {}
    }
}

#[test]
fn every_key_and_every_word_of_the_schema_is_on_the_page() {
    let schema: Value = serde_json::from_str(include_str!("../../schemas/policy.schema.json")).unwrap();
    let mut keys: Vec<String> = Vec::new();
    let mut words: Vec<String> = Vec::new();
    let mut maps = vec![&schema];
    maps.extend(schema["definitions"].as_object().unwrap().values());
    for map in maps {
        keys.extend(map["properties"].as_object().into_iter().flat_map(|p| p.keys().cloned()));
    }
    choices(&schema, &mut words);
    assert!(keys.len() > 90 && words.len() > 30, "{} keys, {} words", keys.len(), words.len());
    let rows = rows();
    for key in &keys {
        // A key that several maps have needs as many rows.
        let wanted = keys.iter().filter(|k| *k == key).count();
        let heads = [format!("`{key}`"), format!("`{key}` (of `weights`)")];
        let there = rows.iter().filter(|r| r.len() == 4 && heads.iter().any(|h| r[0] == h)).count();
        assert_eq!(there, wanted, "rows of `{key}`");
    }
    for word in words {
        assert!(PAGE.contains(&format!("`{word}`")), "{word}");
    }
    let headed = rows.iter().filter(|r| r.len() == 4).count();
    assert_eq!(headed, keys.len(), "rows of keys that there are not");
}

#[test]
fn defaults_on_the_page_are_those_of_the_program() {
    let begins = |key: &str, value: String| {
        let said = row(key)[2];
        assert!(said.split(',').next() == Some(value.as_str()), "{key}: {said}, not {value}");
    };
    begins("reserve_ms", DEFAULT_RESERVE.as_millis().to_string());
    begins("connect_timeout_ms", DEFAULT_CONNECT_TIMEOUT.as_millis().to_string());
    begins("idle_timeout_ms", DEFAULT_IDLE_TIMEOUT.as_millis().to_string());
    begins("max_attempts", DEFAULT_MAX_ATTEMPTS.to_string());
    let b = llmfo::policy::Breaker::default();
    begins("consecutive_failures", b.consecutive_failures.to_string());
    begins("failures_in_window", b.failures_in_window.to_string());
    begins("failure_ratio", b.failure_ratio.to_string());
    begins("base_cooldown_s", b.base_cooldown.as_secs().to_string());
    begins("max_cooldown_s", b.max_cooldown.as_secs().to_string());
    begins("half_open_successes", b.half_open_successes.to_string());
    let h = llmfo::policy::Health::default();
    begins("fast_window_s", h.fast_window.as_secs().to_string());
    begins("deweight_below", h.deweight_below.to_string());
    begins("eject_below", h.eject_below.to_string());
    begins("eject_after_s", h.eject_after.as_secs().to_string());
    begins("probe_every_s", h.probe_every.as_secs().to_string());
    let windows: Vec<&str> = rows().iter().filter(|r| r[0] == "`window_s`").map(|r| r[2]).collect();
    assert_eq!(windows, [b.window.as_secs().to_string(), h.window.as_secs().to_string()]);
}

/// Every link of the page leads to a heading or a file.
#[test]
fn links_on_the_page_lead_somewhere() {
    let anchors = |page: &str| -> Vec<String> {
        page.lines()
            .filter_map(|l| l.strip_prefix('#'))
            .map(|l| l.trim_start_matches('#').trim().to_lowercase())
            .map(|l| {
                l.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).collect::<String>().replace(' ', "-")
            })
            .collect()
    };
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    for to in PAGE.split("](").skip(1).map(|l| l.split(')').next().unwrap()) {
        let (file, anchor) = to.split_once('#').unwrap_or((to, ""));
        let page = if file.is_empty() { PAGE.to_owned() } else { std::fs::read_to_string(docs.join(file)).expect(to) };
        let there = anchors(&page);
        assert!(anchor.is_empty() || there.iter().any(|a| a == anchor), "{to}: {anchor} is none of {there:?}");
    }
}
