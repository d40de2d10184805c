//! Our client, injection, restore and guard against either server.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::TcpStream;
use std::path::Path as FilePath;
use std::time::{Duration, Instant};

use llmfo::fault::api::{Proxy, Stream};
use llmfo::fault::client::{Client, NewToxic, ProxyChange};
use llmfo::fault::error::FaultKind;
use llmfo::fault::guard::{self, Limits, Outcome};
use llmfo::fault::restore::{Cleanup, FaultSpec, Hold, Injected, Plan, See, Server, inject, plan, restore, snapshot};
use llmfo::fault::toxic::Spec;
use llmfo::fault::toxic::cut_after::How;
use llmfo::fault::wal::{Begin, Entry, FORMAT, Stamp, Wal, WalFile, WalMemory, leftovers};
use serde_json::json;

use super::net::{Ended, LONG, Upstream, assert_refused, assert_silent, echo, read_end, read_exact, upstream};
use super::rig::Rig;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

pub fn client(rig: &Rig) -> Client {
    Client::new(&format!("http://{}", rig.api)).unwrap()
}

fn server(rig: &Rig) -> Server {
    if rig.strict() { Server::Ours } else { Server::Real }
}

fn begin(rig: &Rig, id: &str, before: BTreeMap<String, Proxy>) -> Entry {
    let begin = Begin {
        format: FORMAT,
        run: id.to_owned(),
        drill: "test".to_owned(),
        pid: std::process::id(),
        server: format!("http://{}", rig.api),
        embedded: false,
        lab_of_run: false,
        lab_admin: None,
        snapshot: before,
    };
    Entry::Begin { at: Stamp::now(), begin }
}

fn steps(rig: &Rig, faults: &[(&str, See)]) -> Plan {
    let mut all = Plan::default();
    for (proxy, see) in faults {
        let fault = FaultSpec { proxy: (*proxy).to_owned(), see: see.clone() };
        all.extend(plan(&fault, server(rig), Some(10)).unwrap());
    }
    all
}

/// Writes the beginning of run `r1` and injects.
pub async fn try_inject(rig: &Rig, faults: &[(&str, See)], wal: &mut dyn Wal) -> llmfo::error::Result<Injected> {
    let client = client(rig);
    wal.append(begin(rig, "r1", snapshot(&client, &[]).await.unwrap())).unwrap();
    inject(&client, &steps(rig, faults).steps, &Hold::default(), wal).await
}

async fn begin_and_inject(rig: &Rig, faults: &[(&str, See)], wal: &mut dyn Wal) -> Injected {
    try_inject(rig, faults, wal).await.unwrap()
}

pub fn exchange(stream: &mut TcpStream) {
    stream.write_all(b"ping").unwrap();
    assert_eq!(read_exact(stream, 4), b"ping");
}

pub fn the_client_checks_status_body_and_effect(rig: &Rig) {
    let up = upstream(echo);
    run(async {
        let client = client(rig);
        assert_eq!(client.is_ours().await.unwrap(), rig.strict());
        let made = client.create_proxy("a b", "127.0.0.1:0", &up.addr.to_string(), true).await.unwrap();
        assert_ne!(made.listen, "127.0.0.1:0");
        client.reach(&made).await.unwrap();
        let again = client.create_proxy("a b", "127.0.0.1:0", &up.addr.to_string(), true).await.unwrap_err();
        assert_eq!((again.kind, again.status), (FaultKind::Conflict, Some(409)));
        let toxic = NewToxic::new("t", Stream::Upstream, Spec::Latency { latency_ms: 9, jitter_ms: 3 });
        assert_eq!(client.add_toxic("a b", &toxic).await.unwrap().attributes, toxic.attributes);
        assert_eq!(client.add_toxic("a b", &toxic).await.unwrap_err().kind, FaultKind::Conflict);
        assert_eq!(client.add_toxic("none", &toxic).await.unwrap_err().kind, FaultKind::NotFound);
        let change = BTreeMap::from([("latency".to_owned(), json!(20))]);
        let changed = client.update_toxic("a b", "t", &change, Some(0.25)).await.unwrap();
        assert_eq!((&changed.attributes["latency"], changed.toxicity), (&json!(20), 0.25));
        let jitter = BTreeMap::from([("jitter".to_owned(), json!(21))]);
        assert_eq!(client.update_toxic("a b", "t", &jitter, None).await.unwrap_err().kind, FaultKind::Invalid);
        assert_eq!(client.proxies().await.unwrap()["a b"].toxics.len(), 1);
        client.remove_toxic("a b", "t").await.unwrap();
        assert_eq!(client.remove_toxic("a b", "t").await.unwrap_err().kind, FaultKind::NotFound);
        assert!(!client.update_proxy("a b", &ProxyChange::enabled(false)).await.unwrap().enabled);
        assert_eq!(client.reach(&made).await.unwrap_err().kind, FaultKind::Unreachable);
        client.delete_proxy("a b").await.unwrap();
        assert_eq!(client.delete_proxy("a b").await.unwrap_err().kind, FaultKind::NotFound);
        let lease = client.lease("x", 5000).await;
        assert_eq!(lease.is_ok(), rig.strict(), "a real server has no leases: {lease:?}");
    });
}

/// Every fault by what the application sees of it, and back.
pub fn faults_are_seen_as_named_and_restored(rig: &Rig) {
    let up = upstream(echo);
    let cut = See::CutAfter { events: None, bytes: Some(3), ms: None, how: How::Fin };
    let sees = [
        See::Refused,
        See::ConnectTimeout,
        See::Silence,
        See::Reset,
        See::Fin,
        See::Slow { latency_ms: 300, rate_kb_s: None },
        cut,
    ];
    for (n, see) in sees.into_iter().enumerate() {
        let name = format!("p{n}");
        let path = rig.path(&name, &up);
        path.add(&json!({"name": "theirs", "type": "latency", "attributes": {"latency": 1}}));
        let before = path.shown();
        let mut open = path.connect();
        exchange(&mut open);
        let mut wal = WalMemory::default();
        let injected = run(begin_and_inject(rig, &[(&name, see.clone())], &mut wal));
        assert!(injected.toxics.iter().all(|(_, toxic)| toxic.starts_with("llmfo.r1.")));
        seen(rig, &path, &see, &mut open, &up);
        let restored = run(restore(&client(rig), "runner", &mut wal));
        assert_eq!(restored.cleanup, Cleanup::Clean, "{see:?}: {restored:?}");
        assert_eq!(path.shown(), before, "as before, and what is not ours is untouched");
        exchange(&mut path.connect());
        assert_eq!(leftovers(wal.entries()), None);
        let entries = wal.entries().len();
        assert_eq!(run(restore(&client(rig), "clean", &mut wal)).cleanup, Cleanup::Clean);
        assert_eq!(wal.entries().len(), entries, "nothing is left to be done");
    }
}

fn seen(rig: &Rig, path: &super::rig::Path<'_>, see: &See, open: &mut TcpStream, up: &Upstream) {
    let write = |stream: &mut TcpStream| {
        let _ = stream.write_all(b"ping");
    };
    match see {
        See::Refused => {
            assert_refused(path.listen);
            assert_eq!(read_end(open, LONG).1, Ended::Fin);
        }
        See::ConnectTimeout if rig.strict() => {
            assert!(TcpStream::connect_timeout(&path.listen, ms(300)).is_err());
            exchange(open);
        }
        See::ConnectTimeout | See::Silence => {
            write(open);
            assert_silent(open, ms(200));
            let mut fresh = path.connect();
            write(&mut fresh);
            assert_silent(&mut fresh, ms(200));
        }
        See::Reset => {
            // A write would take the error away from the read. The real server needs one to see the connection at all.
            if !rig.strict() {
                write(open);
            }
            let old = read_end(open, LONG).1;
            assert_eq!(old, if rig.strict() { Ended::Rst } else { Ended::Fin });
            match TcpStream::connect_timeout(&path.listen, LONG) {
                Err(_) => assert!(rig.strict()),
                Ok(mut fresh) => {
                    write(&mut fresh);
                    assert_eq!(read_end(&mut fresh, LONG).1, Ended::Rst);
                }
            }
        }
        See::Fin => {
            write(open);
            assert_eq!(read_end(open, LONG), (vec![], Ended::Fin));
            let mut fresh = path.connect();
            write(&mut fresh);
            assert_eq!(read_end(&mut fresh, LONG).0, b"");
        }
        See::Slow { latency_ms, .. } => {
            let started = Instant::now();
            exchange(open);
            assert!(started.elapsed() >= ms(latency_ms - 3));
        }
        See::CutAfter { .. } => {
            write(open);
            assert_eq!(read_end(open, LONG), (b"pin".to_vec(), Ended::Fin));
        }
    }
    assert!(up.accepted.load(std::sync::atomic::Ordering::SeqCst) > 0);
}

pub fn a_run_that_was_killed_is_undone_from_its_log(rig: &Rig) {
    let up = upstream(echo);
    let (one, two) = (rig.path("one", &up), rig.path("two", &up));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("r1.jsonl");
    let mut wal = WalFile::create(&file).unwrap();
    run(begin_and_inject(rig, &[("one", See::Silence), ("two", See::Refused)], &mut wal));
    drop(wal);
    // The last line was torn, and one toxic was removed by hand meanwhile.
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, &text[..text.len() - 9]).unwrap();
    let toxic = one.shown()["toxics"][0]["name"].as_str().unwrap().to_owned();
    one.remove(&toxic);
    let scan = llmfo::fault::wal::scan(folder.path()).unwrap();
    assert_eq!((scan.left.len(), scan.unreadable.len()), (1, 0));
    let mut wal = WalFile::open(&file).unwrap();
    let restored = run(restore(&client(rig), "clean", &mut wal));
    assert_eq!(restored.cleanup, Cleanup::Clean, "{restored:?}");
    exchange(&mut one.connect());
    exchange(&mut two.connect());
    assert!(llmfo::fault::wal::scan(folder.path()).unwrap().left.is_empty());
}

pub fn a_proxy_that_is_gone_is_made_again(rig: &Rig) {
    let up = upstream(echo);
    let path = rig.path("p", &up);
    path.add(&json!({"name": "theirs", "type": "latency", "stream": "upstream", "attributes": {"latency": 1}}));
    let before = path.shown();
    let mut wal = WalMemory::default();
    run(begin_and_inject(rig, &[("p", See::Silence)], &mut wal));
    rig.delete("/proxies/p");
    let restored = run(restore(&client(rig), "runner", &mut wal));
    assert_eq!(restored.cleanup, Cleanup::Recreated, "{restored:?}");
    assert_eq!(path.shown(), before);
    exchange(&mut path.connect());
    // Its port taken by somebody else: it cannot be made again, and that is said.
    let mut wal = WalMemory::default();
    run(begin_and_inject(rig, &[("p", See::Silence)], &mut wal));
    rig.delete("/proxies/p");
    let taken = std::net::TcpListener::bind(path.listen).unwrap();
    let restored = run(restore(&client(rig), "runner", &mut wal));
    let Cleanup::Dirty(why) = &restored.cleanup else { panic!("{restored:?}") };
    assert!(why.contains("address already in use"), "{why}");
    assert!(leftovers(wal.entries()).is_some(), "it stays to be done");
    drop(taken);
    assert_eq!(run(restore(&client(rig), "clean", &mut wal)).cleanup, Cleanup::Recreated);
    exchange(&mut path.connect());
}

pub fn nothing_is_injected_that_cannot_be_written_down(rig: &Rig) {
    struct Full(Vec<Entry>);
    impl Wal for Full {
        fn append(&mut self, entry: Entry) -> llmfo::error::Result<()> {
            if matches!(entry, Entry::Intent { .. }) {
                return Err(llmfo::error::Expected::could_not("disk full", ""));
            }
            self.0.push(entry);
            Ok(())
        }
        fn entries(&self) -> &[Entry] {
            &self.0
        }
    }
    let up = upstream(echo);
    let path = rig.path("p", &up);
    let planned = steps(rig, &[("p", See::Silence)]);
    let mut wal = Full(vec![begin(rig, "r1", BTreeMap::new())]);
    assert!(run(inject(&client(rig), &planned.steps, &Hold::default(), &mut wal)).is_err());
    let mut empty = WalMemory::default();
    assert!(run(inject(&client(rig), &planned.steps, &Hold::default(), &mut empty)).is_err(), "no beginning");
    assert_eq!(path.shown()["toxics"], json!([]));
}

pub fn a_fault_may_be_lifted_and_come_again(rig: &Rig) {
    let up = upstream(echo);
    let path = rig.path("p", &up);
    let mut wal = WalMemory::default();
    let injected = run(begin_and_inject(rig, &[("p", See::Silence)], &mut wal));
    run(injected.lift(&client(rig), &mut wal)).unwrap();
    exchange(&mut path.connect());
    let planned = steps(rig, &[("p", See::Refused)]);
    run(inject(&client(rig), &planned.steps, &Hold::default(), &mut wal)).unwrap();
    assert_refused(path.listen);
    assert_eq!(run(restore(&client(rig), "runner", &mut wal)).cleanup, Cleanup::Clean);
    exchange(&mut path.connect());
}

fn guarded(rig: &Rig, file: &FilePath, limits: Limits, say: Option<&str>, hold_open: bool) -> Outcome {
    let mut wal = WalFile::create(file).unwrap();
    run(begin_and_inject(rig, &[("p", See::Silence)], &mut wal));
    drop(wal);
    let (reader, mut writer) = std::io::pipe().unwrap();
    let file = file.to_owned();
    let guard = std::thread::spawn(move || guard::stand(&file, limits, reader, std::io::sink()).unwrap());
    if let Some(line) = say {
        writer.write_all(line.as_bytes()).unwrap();
    }
    let kept = hold_open.then_some(writer);
    let outcome = guard.join().unwrap();
    drop(kept);
    outcome
}

pub fn the_guard_restores_when_its_pipe_ends_or_falls_silent(rig: &Rig) {
    let up = upstream(echo);
    let path = rig.path("p", &up);
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let healed = |outcome: Outcome, why: &str| {
        let Outcome::Restored(said, restored) = outcome else { panic!("dismissed") };
        assert_eq!((said, &restored.cleanup), (why, &Cleanup::Clean), "{restored:?}");
        exchange(&mut path.connect());
    };
    // The runner is gone without a word, or in the middle of one.
    healed(guarded(rig, &file("a.jsonl"), Limits::default(), None, false), "the runner is gone");
    healed(guarded(rig, &file("b.jsonl"), Limits::default(), Some("beat\ndo"), false), "the runner is gone");
    // It hangs: the pipe is open and nothing comes.
    let beat = Limits { beat: Some(ms(300)), ..Limits::default() };
    healed(guarded(rig, &file("c.jsonl"), beat, Some("beat\n"), true), "the runner gave no sign in time");
    // It is dismissed: nothing is touched.
    let outcome = guarded(rig, &file("d.jsonl"), Limits::default(), Some("beat\ndone\n"), true);
    assert_eq!(outcome, Outcome::Dismissed);
    assert_eq!(path.shown()["toxics"].as_array().unwrap().len(), 2);
}
