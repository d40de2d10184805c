//! The gateway: an OpenAI-compatible endpoint that follows a policy.
//!
//! ```text
//! listener -> front -> relay (one per request) -> upstream
//!                        |  ^ commands
//!              what it saw  |
//!                        v  |
//!                      driver (the only clock) -> core, ledger on disk
//!                        |
//!                        v
//!               bus -> /events, journal; metrics; decisions
//! ```

pub mod admin;
mod admission;
pub mod app;
pub mod bus;
pub mod driver;
#[cfg(test)]
mod driver_tests;
pub mod front;
pub mod http;
pub mod intake;
pub mod ledger;
pub mod listener;
mod pause;
mod peer;
pub mod probe;
pub mod record;
pub mod relay;
pub mod targets;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::error::{Expected, Result};
use crate::event::Event;
use crate::policy::Policy;
use crate::router::{Engine, Input};
use crate::telemetry::{Journal, JournalSettings};
use crate::units::Ts;
use app::App;
use ledger::{Ledger, Place};
use listener::ListenerLimits;

/// How a gateway is started.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The policy.
    pub policy: Arc<Policy>,
    /// Folder of the policy file: relative paths in it start there.
    pub folder: PathBuf,
    /// Public listener; port 0 takes a free one. Loopback only.
    pub listen: SocketAddr,
    /// Admin listener; port 0 takes a free one. Loopback only.
    pub admin: SocketAddr,
    /// Seed of the core.
    pub seed: u64,
    /// The journal.
    pub journal: Option<JournalSettings>,
    /// The input journal, opt-in.
    pub inputs: Option<PathBuf>,
    /// What is written down about tool calls. `Ledger::start` opens it.
    pub ledger: Arc<Ledger>,
    /// Limits of the public listener.
    pub limits: ListenerLimits,
}

/// A gateway that serves.
#[derive(Debug)]
pub struct Gateway {
    /// Where clients dial.
    pub listen: SocketAddr,
    /// Where operators look.
    pub admin: SocketAddr,
    app: Arc<App>,
    stop: watch::Sender<bool>,
    stop_admin: watch::Sender<bool>,
    front: JoinHandle<()>,
    back: JoinHandle<()>,
    helpers: Vec<JoinHandle<()>>,
}

/// Conversations told to a core in one input: a line of the input journal stays readable.
const REMEMBERED_AT_ONCE: usize = 1_000;
/// A target without evidence is looked at so often.
const CHECK_EVERY: Duration = Duration::from_secs(5);
/// Limit of one look.
const CHECK_LIMIT: Duration = Duration::from_secs(3);
/// What is left for the error events of cut streams to reach their clients, and for connections to close.
const AFTER_ABORT: Duration = Duration::from_secs(1);
/// Longest wait for the ledger's.
const LEDGER_CLOSE: Duration = Duration::from_secs(2);
/// Longest wait for the journal's disk.
const JOURNAL_CLOSE: Duration = Duration::from_secs(2);

impl Gateway {
    /// Reads the secrets, binds both listeners and serves.
    ///
    /// # Errors
    /// If a secret, a target or the journal cannot be used, or a listener cannot be bound or is not on loopback.
    pub async fn start(settings: Settings) -> Result<Gateway> {
        let Settings { policy, folder, listen, admin, seed, journal, inputs, ledger, limits } = settings;
        for (flag, address) in [("--listen", listen), ("--admin", admin)] {
            if !address.ip().is_loopback() {
                return Err(Expected::usage(
                    format!("{flag} {address} is not a loopback address"),
                    "this version serves without client keys and TLS and therefore on loopback only; use 127.0.0.1 or [::1] \
                     behind a proxy that authenticates clients",
                ));
            }
        }
        let journal = journal.map(Journal::start).transpose()?;
        let core = Arc::clone(&policy);
        // The core's time begins with it, so what is known now is known at zero. A core that is rebuilt must know it as well.
        let (records, alerts) = admission::read(&policy, &folder, Ts::ZERO);
        let recorder = inputs.as_deref().map(record::Recorder::open).transpose()?;
        // Read once before anything is served: a damaged row is a reason not to start.
        let known = ledger.load().map_err(|why| match ledger.place() {
            Place::File(path) => ledger::disk::NotOpened::Unreadable(why).told(path),
            Place::Memory => Expected::could_not(why, ""),
        })?;
        let (first, remembering) = (std::sync::Mutex::new(Some(known)), Arc::clone(&ledger));
        let make = Box::new(move |seed| -> Box<dyn driver::Core> {
            let engine = Engine::new(Arc::clone(&core), seed);
            let mut made: Box<dyn driver::Core> = match recorder.clone() {
                Some(recorder) => Box::new(record::Recorded::new(engine, &core, seed, recorder)),
                None => Box::new(engine),
            };
            made.handle(Ts::ZERO, Input::Evidence { records: records.clone() });
            let known = first.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
            // A core that is rebuilt knows what its forerunner has delivered. What cannot be read is a loss like any other.
            let known = known.unwrap_or_else(|| remembering.load().unwrap_or_default());
            for some in known.chunks(REMEMBERED_AT_ONCE) {
                made.handle(Ts::ZERO, Input::Ledger { conversations: some.to_vec() });
            }
            if remembering.failing() {
                made.handle(Ts::ZERO, Input::LedgerWritable { writable: false });
            }
            made
        });
        let app = App::new(Arc::clone(&policy), &folder, seed, journal, Arc::clone(&ledger), make)?;
        let (told, runtime) = (Arc::downgrade(&app), tokio::runtime::Handle::current());
        // Not on the ledger's own thread: a core that is rebuilt waits for that one, with the driver locked.
        ledger.on_change(Box::new(move |_| {
            if let Some(app) = told.upgrade() {
                runtime.spawn(async move { app.driver.ledger_writable(!app.ledger.failing()) });
            }
        }));
        let front_listener = bind("--listen", listen).await?;
        let admin_listener = bind("--admin", admin).await?;
        let address = |l: &TcpListener, asked: SocketAddr| l.local_addr().unwrap_or(asked);
        let (listen, admin) = (address(&front_listener, listen), address(&admin_listener, admin));
        ledger.used_by(std::process::id(), admin);
        app.bus.publish(Event::Started {
            policy: policy.version.clone(),
            policy_sha256: policy.sha256.clone(),
            seed,
            pid: std::process::id(),
        });
        for alert in alerts {
            driver::Watcher::event(&*app, alert);
        }
        let (stop, stopped) = watch::channel(false);
        let (stop_admin, admin_stopped) = watch::channel(false);
        let serving = Arc::clone(&app);
        let open = app.metrics.connections_open.clone();
        let naming = Arc::clone(&app);
        let ids = move || naming.next_request_id();
        let handle = move |request, stalled, id| front::handle(Arc::clone(&serving), request, stalled, id);
        let front = tokio::spawn(listener::serve(front_listener, limits, stopped, open, ids.clone(), handle));
        let serving = Arc::clone(&app);
        let admin_limits = ListenerLimits { connections_max: 64, ..ListenerLimits::default() };
        let back = tokio::spawn(listener::serve(
            admin_listener,
            admin_limits,
            admin_stopped,
            Default::default(),
            ids,
            move |request, _, id: String| {
                let app = Arc::clone(&serving);
                async move { admin::handle(&app, &request, &id).await }
            },
        ));
        let mut helpers = vec![tokio::spawn(Arc::clone(&app.driver).run_clock())];
        for target in &policy.targets {
            helpers.push(tokio::spawn(look(Arc::clone(&app), target.id)));
        }
        Ok(Gateway { listen, admin, app, stop, stop_admin, front, back, helpers })
    }

    /// Requests under way.
    #[must_use]
    pub fn open(&self) -> usize {
        self.app.driver.open()
    }

    /// Stops: not ready at once, no new connections; open requests have `drain` to finish, then they end with a controlled
    /// error. Returns how many were cut.
    pub async fn stop(self, drain: Duration) -> usize {
        self.app.draining.store(true, Ordering::Relaxed);
        self.stop.send_replace(true);
        let mut front = self.front;
        let finished = tokio::time::timeout(drain, &mut front).await.is_ok();
        let open = self.app.driver.open();
        if !finished {
            self.app.driver.abort_all();
            let _ = tokio::time::timeout(AFTER_ABORT, &mut front).await;
            front.abort();
        }
        self.app.bus.publish(Event::Stopped { open: open as u64 });
        self.stop_admin.send_replace(true);
        let mut back = self.back;
        // Readers of `/events` never finish by themselves.
        let _ = tokio::time::timeout(Duration::from_millis(200), &mut back).await;
        back.abort();
        for helper in self.helpers {
            helper.abort();
        }
        let app = self.app;
        let _ = tokio::task::spawn_blocking(move || {
            app.bus.close_journal(JOURNAL_CLOSE);
            app.ledger.close(LEDGER_CLOSE);
        })
        .await;
        open
    }
}

async fn bind(flag: &str, address: SocketAddr) -> Result<TcpListener> {
    listener::bind(address).await.map_err(|e| {
        Expected::could_not(
            format!("{flag} {address} cannot be bound: {e}"),
            "choose another port (port 0 takes a free one), or stop what listens there",
        )
    })
}

/// Looks whether a target is there at all, until anything is known about it: readiness must not rest on hope (case B107). Only
/// a connection is made and closed, nothing is asked.
async fn look(app: Arc<App>, id: crate::policy::TargetId) {
    let Some(dialable) = app.targets.get(id) else { return };
    loop {
        if dialable.evidence.seen().ever_good() {
            return;
        }
        match tokio::time::timeout(CHECK_LIMIT, dialable.client.connect(true)).await {
            Ok(Ok(_closed_at_once)) => {
                dialable.evidence.good(targets::REACHABLE);
                return;
            }
            Ok(Err(fault)) => {
                dialable.evidence.bad(&crate::router::classify::classify(&relay::failure::of_fault(&fault)).reason)
            }
            Err(_) => dialable.evidence.bad("connect_timeout"),
        }
        tokio::time::sleep(CHECK_EVERY).await;
    }
}
