//! Restore: back to the snapshot, not "remove everything".

use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};

use super::marker::unmark;
use super::{Cleanup, PREFIX};
use crate::fault::api::Proxy;
use crate::fault::client::{Client, NewToxic, ProxyChange};
use crate::fault::error::{FaultError, FaultKind};
use crate::fault::wal::{Begin, Change, Entry, Stamp, Undo, Wal, leftovers, next_number};

/// A restore that took longer is late. A hanging call alone takes 2 s.
const LATE_AFTER: Duration = Duration::from_secs(5);
/// Making a proxy again is tried for so long: its port may be held for a moment by what was just closed.
const RECREATE_MAX: Duration = Duration::from_secs(6);
const RECREATE_PAUSE: Duration = Duration::from_millis(200);
/// A look whether a lab is there: it listens on this machine.
const LAB_LOOK: Duration = Duration::from_secs(1);
/// Gentle tries before the proxy is deleted.
const TRIES: usize = 2;

/// What a restore did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// How it ended.
    pub cleanup: Cleanup,
    /// How long it took.
    pub took: Duration,
    /// What was out of the ordinary, one sentence each.
    pub notes: Vec<String>,
}

type Shared<'a> = Mutex<&'a mut dyn Wal>;

/// Undoes whatever the log says was begun. Idempotent, bounded (about 25 s at worst; proxies are healed side by side), and
/// not stopped by a log that cannot be written. `by`: `runner`, `guard` or `clean`.
pub async fn restore(client: &Client, by: &str, wal: &mut dyn Wal) -> Restored {
    let started = Instant::now();
    let Some(undo) = leftovers(wal.entries()) else {
        return Restored { cleanup: Cleanup::Clean, took: started.elapsed(), notes: Vec::new() };
    };
    let (mut cleanup, mut notes) = match listed(client).await {
        Err(e) if e.kind == FaultKind::Unreachable && undo.begin.embedded => {
            (Cleanup::Clean, vec!["the embedded fault server is gone, and its faults with it".to_owned()])
        }
        // Whoever cleans up is told the next step by `drill clean` itself, which knows what else it has met there.
        Err(e) if by == "clean" => (Cleanup::Dirty(e.to_string()), vec![]),
        Err(e) if e.kind == FaultKind::Timeout => {
            let step =
                "the fault server stands still; let it go on (or end it and start it again), then `llmfo drill clean`";
            (Cleanup::Dirty(format!("{e}; {step}")), vec![])
        }
        Err(e) => (Cleanup::Dirty(format!("{e}; {}", e.hint())), vec![]),
        Ok(()) => heal(client, &undo, by, &Mutex::new(&mut *wal)).await,
    };
    // The run is over, and whoever heals after it takes its mark away as well. The runner does that at its own end.
    if by != "runner" && !cleanup.is_dirty() && !undo.begin.embedded {
        // One that stays is known by its dead process.
        let _ = unmark(client, &undo.begin.run).await;
    }
    let took = started.elapsed();
    if took > LATE_AFTER && cleanup == Cleanup::Clean {
        cleanup = Cleanup::RestoredLate;
    }
    let entry = Entry::Restored { at: Stamp::now(), by: by.to_owned(), cleanup: cleanup.clone() };
    if let Err(e) = wal.append(entry) {
        notes.push(format!("restored, but not written down: {}", e.what));
    }
    Restored { cleanup, took, notes }
}

/// The server does what it is told. A list that hangs is no reason to give up: one locked proxy makes it hang. But one that
/// does not even say who it is stands still; what it is told now it would do at some later time, when it is believed to be
/// something else.
async fn listed(client: &Client) -> Result<(), FaultError> {
    match client.proxies().await {
        Err(e) if e.kind == FaultKind::Timeout => client.version().await.map(|_| ()),
        listed => listed.map(|_| ()),
    }
}

/// Nobody listens where the lab had its admin interface.
async fn lab_is_gone(begin: &Begin) -> bool {
    let Some(url) = begin.lab_admin.as_deref().and_then(|u| reqwest::Url::parse(u).ok()) else { return false };
    let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default()) else { return false };
    let connect = tokio::net::TcpStream::connect((host.trim_matches(['[', ']']), port));
    match tokio::time::timeout(LAB_LOOK, connect).await {
        Ok(Err(e)) => e.kind() == std::io::ErrorKind::ConnectionRefused,
        _ => false,
    }
}

/// A proxy of a lab that is gone goes too: it would lead nowhere.
async fn with_its_lab(client: &Client, before: &Proxy, wal: &Shared<'_>) -> (Cleanup, Option<String>) {
    let name = &before.name;
    let gone = (Cleanup::Clean, Some(format!("{name}: is gone with the lab that it belonged to")));
    match client.proxy(name).await {
        Err(e) if e.kind == FaultKind::NotFound => gone,
        Err(e) => (Cleanup::Dirty(format!("{name}: {e}")), None),
        Ok(now) if now.listen != before.listen || now.upstream != before.upstream => {
            (Cleanup::Clean, Some(format!("{name}: belongs to somebody else now, and was left alone")))
        }
        Ok(_) => {
            let delete = Change::DeleteProxy { proxy: name.clone() };
            match logged(wal, delete, client.delete_proxy(name)).await.or_else(gone_is_done) {
                Ok(()) => (Cleanup::Clean, Some(format!("{name}: removed, since its lab is gone"))),
                Err(e) => (Cleanup::Dirty(format!("{name}: {e}; its lab is gone")), None),
            }
        }
    }
}

async fn heal(client: &Client, undo: &Undo, by: &str, wal: &Shared<'_>) -> (Cleanup, Vec<String>) {
    let each = undo.proxies.iter().map(|name| one(client, undo, name, by, wal));
    let mut cleanup = Cleanup::Clean;
    let mut notes = Vec::new();
    for (state, note) in join_all(each).await {
        cleanup = cleanup.and(state);
        notes.extend(note);
    }
    (cleanup, notes)
}

async fn one(client: &Client, undo: &Undo, name: &str, by: &str, wal: &Shared<'_>) -> (Cleanup, Option<String>) {
    let Some(before) = undo.begin.snapshot.get(name) else {
        return (Cleanup::Dirty(format!("{name}: changed, but not in the snapshot")), None);
    };
    let prefix = format!("{PREFIX}{}.", undo.begin.run);
    if lab_is_gone(&undo.begin).await {
        return with_its_lab(client, before, wal).await;
    }
    let mut why = String::new();
    for attempt in 0..TRIES {
        match gently(client, before, &prefix, wal).await {
            Ok(()) if attempt == 0 => return (Cleanup::Clean, None),
            Ok(()) => return (Cleanup::RestoredLate, Some(format!("{name}: restored at the second try ({why})"))),
            Err(e) if e.kind == FaultKind::NotFound && undo.begin.lab_of_run && by != "runner" => {
                return (Cleanup::Clean, Some(format!("{name}: is gone with the lab that it belonged to")));
            }
            // It may be going just now: it removes its proxies after it has stopped listening.
            Err(e) if e.kind == FaultKind::NotFound && lab_is_gone(&undo.begin).await => {
                return with_its_lab(client, before, wal).await;
            }
            Err(e) => {
                why = e.to_string();
                // Gone, or hanging: more of the same does not help.
                if matches!(e.kind, FaultKind::NotFound | FaultKind::Timeout) {
                    break;
                }
            }
        }
    }
    if let Err(e) = listed(client).await {
        return (Cleanup::Dirty(format!("{name}: {e} (before that: {why})")), None);
    }
    match recreate(client, before, &prefix, wal).await {
        Ok(()) if lab_is_gone(&undo.begin).await => with_its_lab(client, before, wal).await,
        Ok(()) => (Cleanup::Recreated, Some(format!("{name}: deleted and made again from the snapshot ({why})"))),
        Err(e) => (Cleanup::Dirty(format!("{name}: {e} (before that: {why})")), None),
    }
}

/// Removes our toxics, switches as before, and verifies by reading back and by a connection.
async fn gently(client: &Client, before: &Proxy, prefix: &str, wal: &Shared<'_>) -> Result<(), FaultError> {
    let name = &before.name;
    let now = client.proxy(name).await?;
    for toxic in now.toxics.iter().filter(|t| t.name.starts_with(prefix)) {
        let change = Change::RemoveToxic { proxy: name.clone(), name: toxic.name.clone() };
        logged(wal, change, client.remove_toxic(name, &toxic.name)).await.or_else(gone_is_done)?;
    }
    if now.enabled != before.enabled {
        let change = Change::SetEnabled { proxy: name.clone(), enabled: before.enabled };
        let call = async { client.update_proxy(name, &ProxyChange::enabled(before.enabled)).await.map(|_| ()) };
        logged(wal, change, call).await?;
    }
    verify(client, before, prefix).await
}

/// The way out of a lock-up: deleting the proxy is the one call that a real server answers then.
async fn recreate(client: &Client, before: &Proxy, prefix: &str, wal: &Shared<'_>) -> Result<(), FaultError> {
    let name = &before.name;
    let delete = Change::DeleteProxy { proxy: name.clone() };
    logged(wal, delete, client.delete_proxy(name)).await.or_else(gone_is_done)?;
    let until = Instant::now() + RECREATE_MAX;
    loop {
        let create = Change::CreateProxy { proxy: name.clone() };
        let call = async {
            let made = client.create_proxy(name, &before.listen, &before.upstream, before.enabled).await;
            made.map(|_| ())
        };
        match logged(wal, create, call).await {
            Ok(()) => break,
            // A creation whose answer was lost may have succeeded.
            Err(e) if e.kind == FaultKind::Conflict => break,
            Err(e) if Instant::now() >= until => return Err(e),
            Err(_) => sleep(RECREATE_PAUSE).await,
        }
    }
    for toxic in before.toxics.iter().filter(|t| !t.name.starts_with(PREFIX)) {
        let again = NewToxic {
            name: toxic.name.clone(),
            kind: toxic.kind.clone(),
            stream: toxic.stream,
            toxicity: toxic.toxicity,
            attributes: toxic.attributes.clone(),
            lease: None,
            expires_in_ms: None,
        };
        let change = Change::AddToxic { proxy: name.clone(), toxic: again.clone() };
        let call = async { client.add_toxic(name, &again).await.map(|_| ()) };
        match logged(wal, change, call).await {
            Err(e) if e.kind != FaultKind::Conflict => return Err(e),
            _ => {}
        }
    }
    verify(client, before, prefix).await
}

async fn verify(client: &Client, before: &Proxy, prefix: &str) -> Result<(), FaultError> {
    let now = client.proxy(&before.name).await?;
    let call = format!("GET {}/proxies/{}", client.base_url(), before.name);
    let differs = |what: String| Err(FaultError::new(&call, FaultKind::NotAsAsked, what));
    if let Some(left) = now.toxics.iter().find(|t| t.name.starts_with(prefix)) {
        return differs(format!("toxic {} is still there", left.name));
    }
    if now.enabled != before.enabled || now.listen != before.listen || now.upstream != before.upstream {
        return differs(format!(
            "it shows listen {}, upstream {}, enabled {}; before the run: {}, {}, {}",
            now.listen, now.upstream, now.enabled, before.listen, before.upstream, before.enabled
        ));
    }
    if before.enabled { client.reach(&now).await } else { Ok(()) }
}

fn gone_is_done(e: FaultError) -> Result<(), FaultError> {
    if e.kind == FaultKind::NotFound { Ok(()) } else { Err(e) }
}

/// Healing goes on when the log cannot be written: a full disk must not keep a fault in place.
async fn logged(
    wal: &Shared<'_>,
    change: Change,
    call: impl Future<Output = Result<(), FaultError>>,
) -> Result<(), FaultError> {
    let n = {
        let mut wal = wal.lock().await;
        let n = next_number(wal.entries());
        let _ = wal.append(Entry::Intent { at: Stamp::now(), n, change });
        n
    };
    let result = call.await;
    let text = match &result {
        Ok(()) => "done and read back".to_owned(),
        Err(e) => e.to_string(),
    };
    let _ = wal.lock().await.append(Entry::Answer { at: Stamp::now(), n, ok: result.is_ok(), text });
    result
}
