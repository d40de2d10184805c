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

pub mod adapters;
pub mod admin;
mod admission;
pub mod admitted;
pub mod app;
pub mod bus;
pub mod clients;
pub mod driver;
pub mod expiry;
pub mod front;
pub mod golden;
mod held;
pub mod http;
pub mod intake;
pub mod lanes;
pub mod ledger;
pub mod listener;
mod masking;
pub mod orders;
mod pause;
mod peer;
pub mod probe;
pub mod record;
pub mod relay;
mod reload;
pub mod sampling;
pub mod stranded;
pub mod targets;
mod warned;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::error::{Expected, Result};
use crate::event::Event;
use crate::policy::{Policy, TargetId};
use crate::router::{Engine, Input};
use crate::telemetry::{Journal, JournalSettings};
use crate::units::Ts;
use app::App;
use lanes::Lanes;
use ledger::{Ledger, Place};
use listener::ListenerLimits;
use orders::{Forced, Orders};

/// How a gateway is started.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The policy.
    pub policy: Arc<Policy>,
    /// Folder of the policy file: relative paths in it start there.
    pub folder: PathBuf,
    /// Public listener; port 0 takes a free one. Loopback only, unless clients have keys.
    pub listen: SocketAddr,
    /// Admin listener; port 0 takes a free one. Loopback only, unless it has a key.
    pub admin: SocketAddr,
    /// Seed of the core.
    pub seed: u64,
    /// The journal.
    pub journal: Option<JournalSettings>,
    /// Faults to force from the start; `None`: none may be forced.
    pub forced: Option<Vec<(String, Forced)>>,
    /// The input journal, opt-in.
    pub inputs: Option<PathBuf>,
    /// What is written down about tool calls. `Ledger::start` opens it.
    pub ledger: Arc<Ledger>,
    /// Limits of the public listener.
    pub limits: ListenerLimits,
    /// Who may ask; `None`: whoever reaches the listener, which is then on loopback.
    pub clients: Option<Vec<clients::book::Client>>,
    /// Failover is only observed: of each request the first target that may and can answer is asked, and nobody else.
    pub observe: bool,
    /// What opens the admin listener; `None`: nothing is wanted there, and it is on loopback.
    pub admin_key: Option<clients::AdminKey>,
}

/// Both listeners, bound: nobody is served yet, and nobody else can take the ports.
#[derive(Debug)]
pub struct Doors {
    front: TcpListener,
    admin: TcpListener,
}

impl Doors {
    /// Binds the public and the admin listener. `clients` and `admin_key`: who reaches them needs a key.
    ///
    /// # Errors
    /// One is neither on loopback nor behind a key, or cannot be bound.
    pub async fn open(listen: SocketAddr, clients: bool, admin: SocketAddr, admin_key: bool) -> Result<Doors> {
        guarded(listen, clients, admin, admin_key)?;
        Ok(Doors { front: bind("--listen", listen).await?, admin: bind("--admin", admin).await? })
    }
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
    lanes: Arc<Lanes>,
    helpers: Vec<JoinHandle<()>>,
    looks: Vec<JoinHandle<()>>,
    inputs: Option<record::Recorder>,
    files_say: Arc<Mutex<Vec<Input>>>,
}

/// Conversations told to a core in one input: a line of the input journal stays readable.
const REMEMBERED_AT_ONCE: usize = 1_000;
/// A target without evidence is looked at so often.
const CHECK_EVERY: Duration = Duration::from_secs(5);
/// Idle connections are looked after at least, and at most, so often.
const TEND_EVERY_MOST: Duration = Duration::from_secs(10);
const TEND_EVERY_LEAST: Duration = Duration::from_millis(100);
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
        let Settings { listen, admin, clients, admin_key, .. } = &settings;
        let doors = Doors::open(*listen, clients.is_some(), *admin, admin_key.is_some()).await?;
        Gateway::start_behind(settings, doors).await
    }

    /// The same behind listeners that are bound already; the addresses of the settings are not looked at.
    ///
    /// # Errors
    /// If a secret, a target or the journal cannot be used.
    pub async fn start_behind(settings: Settings, doors: Doors) -> Result<Gateway> {
        let Settings {
            policy,
            folder,
            listen,
            admin,
            seed,
            journal,
            inputs,
            ledger,
            forced,
            limits,
            clients,
            observe,
            admin_key,
        } = settings;
        let address = |l: &TcpListener, asked: SocketAddr| l.local_addr().unwrap_or(asked);
        let (listen, admin) = (address(&doors.front, listen), address(&doors.admin, admin));
        guarded(listen, clients.is_some(), admin, admin_key.is_some())?;
        let journal = journal.map(Journal::start).transpose()?;
        // The core's time begins with it, so what is known now is known at zero. A core that is rebuilt must know it as well.
        let (sets, missing) = golden::read(&policy, &folder)?;
        let admission::Read { records, alerts, admitted } = admission::read(&policy, &folder, Ts::ZERO, &sets);
        let (texts, more) = adapters::read(&policy, &folder);
        let alerts = [missing, alerts, more].concat();
        let recorder = inputs.as_deref().map(record::Recorder::open).transpose()?;
        let closing = recorder.clone();
        // Read once before anything is served: a damaged row is a reason not to start.
        let known = ledger.load().map_err(|why| match ledger.place() {
            Place::File(path) => ledger::disk::NotOpened::Unreadable(why).told(path),
            Place::Memory => Expected::could_not(why, ""),
        })?;
        let (first, remembering) = (std::sync::Mutex::new(Some(known)), Arc::clone(&ledger));
        let orders = Arc::new(Orders::new(forced.map(|all| forced_targets(&policy, all)).transpose()?));
        let ordered = Arc::clone(&orders);
        // ... with what its admission records say by then.
        let files_say = Arc::new(Mutex::new(vec![Input::Evidence { records }, adapters::input(&texts)]));
        let standing = Arc::clone(&files_say);
        let make = Box::new(move |seed, policy: &Arc<Policy>| -> Box<dyn driver::Core> {
            let engine = Engine::new(Arc::clone(policy), seed);
            let engine = if observe { engine.observing() } else { engine };
            let mut made: Box<dyn driver::Core> = match recorder.clone() {
                Some(recorder) => Box::new(record::Recorded::new(engine, policy, seed, recorder)),
                None => Box::new(engine),
            };
            let files_say = standing.lock().unwrap_or_else(PoisonError::into_inner).clone();
            for input in files_say.into_iter().chain(ordered.inputs()) {
                made.handle(Ts::ZERO, input);
            }
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
        let parts = app::Parts {
            ledger: Arc::clone(&ledger),
            orders,
            texts,
            sets,
            admitted,
            bodies_bytes: limits.bodies_bytes,
            clients,
            observe,
        };
        let app = App::new(Arc::clone(&policy), &folder, seed, journal, parts, make)?;
        let (told, runtime) = (Arc::downgrade(&app), tokio::runtime::Handle::current());
        // Not on the ledger's own thread: a core that is rebuilt waits for that one, with the driver locked.
        ledger.on_change(Box::new(move |_| {
            if let Some(app) = told.upgrade() {
                runtime.spawn(async move { app.driver.ledger_writable(!app.ledger.failing()) });
            }
        }));
        let Doors { front: front_listener, admin: admin_listener } = doors;
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
        app.unknown_routes();
        let expired = expiry::look(&app);
        let lanes = Lanes::start(limits.lanes)
            .map_err(|e| Expected::could_not(format!("no thread to serve on: {e}"), "raise the limit of threads"))?;
        let lanes = Arc::new(lanes);
        let (stop, stopped) = watch::channel(false);
        let (stop_admin, admin_stopped) = watch::channel(false);
        let serving = Arc::clone(&app);
        let open = app.metrics.connections_open.clone();
        let naming = Arc::clone(&app);
        let ids = move || naming.next_request_id();
        let handle = move |request, stalled, id| front::handle(Arc::clone(&serving), request, stalled, id);
        let front = tokio::spawn(listener::serve(
            front_listener,
            Some(Arc::clone(&lanes)),
            limits,
            stopped,
            open,
            ids.clone(),
            handle,
        ));
        let serving = Arc::clone(&app);
        let admin_limits = ListenerLimits { connections_max: 64, ..ListenerLimits::default() };
        let back = tokio::spawn(listener::serve(
            admin_listener,
            None,
            admin_limits,
            admin_stopped,
            Default::default(),
            ids,
            move |request, _, id: String| {
                let app = Arc::clone(&serving);
                async move { admin::handle(&app, admin_key.as_ref(), &request, &id).await }
            },
        ));
        let mut helpers = vec![tokio::spawn(Arc::clone(&app.driver).run_clock())];
        helpers.push(tokio::spawn(expiry::watch(Arc::clone(&app), expired)));
        helpers.push(tokio::spawn(sampling::judge(Arc::downgrade(&app))));
        let looks = watch(&app, &policy);
        Ok(Gateway {
            listen,
            admin,
            app,
            stop,
            stop_admin,
            front,
            back,
            lanes,
            helpers,
            looks,
            inputs: closing,
            files_say,
        })
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
        for helper in self.helpers.into_iter().chain(self.looks) {
            helper.abort();
        }
        drop(self.lanes);
        let (app, inputs) = (self.app, self.inputs);
        let closing = move || {
            app.bus.close_journal(JOURNAL_CLOSE);
            app.ledger.close(LEDGER_CLOSE);
            if inputs.is_some_and(|inputs| !inputs.close(JOURNAL_CLOSE)) {
                tracing::warn!("the input journal's disk is slow: its last lines may be missing");
            }
        };
        let _ = tokio::task::spawn_blocking(closing).await;
        open
    }
}

/// What can be reached from elsewhere wants a key.
fn guarded(listen: SocketAddr, clients: bool, admin: SocketAddr, admin_key: bool) -> Result<()> {
    if !listen.ip().is_loopback() && !clients {
        return Err(Expected::usage(
            format!("--listen {listen} is not a loopback address, and clients have no keys"),
            "`llmfo keys new NAME` makes a key and says what to write into the file of --client-keys; or listen on 127.0.0.1 \
             or [::1] behind a proxy that authenticates clients",
        ));
    }
    if !admin.ip().is_loopback() && !admin_key {
        return Err(Expected::usage(
            format!("--admin {admin} is not a loopback address, and there is no key for it"),
            "`llmfo keys new admin > admin.key` makes one: --admin-key-file admin.key; or stay on 127.0.0.1 or [::1]",
        ));
    }
    Ok(())
}

/// The targets by their names.
fn forced_targets(policy: &Policy, all: Vec<(String, Forced)>) -> Result<Vec<(TargetId, Forced)>> {
    let known = |name: &str| {
        // `-` cannot stand in the name of a variable.
        policy.live_targets().find(|t| t.name == name || t.name.replace('-', "_") == name).map(|t| t.id)
    };
    let id = |(name, forced): (String, Forced)| match known(&name) {
        Some(id) => Ok((id, forced)),
        None => Err(Expected::usage(
            format!("FAULT__{} names no target of the policy", crate::units::printable(&name, 60)),
            "write the target's name behind FAULT__, with _ for -",
        )),
    };
    all.into_iter().map(id).collect()
}

async fn bind(flag: &str, address: SocketAddr) -> Result<TcpListener> {
    listener::bind(address).await.map_err(|e| {
        Expected::could_not(
            format!("{flag} {address} cannot be bound: {e}"),
            "choose another port (port 0 takes a free one), or stop what listens there",
        )
    })
}

/// What goes on beside requests, at every target.
fn watch(app: &Arc<App>, policy: &Policy) -> Vec<JoinHandle<()>> {
    let tended = policy.targets.iter().map(|t| tokio::spawn(tend(Arc::clone(app), t.id)));
    // A stand-in that is never asked is left alone altogether.
    let asked = |id: TargetId| !app.observe || crate::router::observe::asked_first(policy, id);
    let looked_at = policy.live_targets().filter(|t| asked(t.id)).map(|t| tokio::spawn(look(Arc::clone(app), t.id)));
    tended.chain(looked_at).collect()
}

/// Looks after the connections that nobody uses. What is old, or closed by its other end, is let go: an idle one is driven by
/// nobody else. And where some shall be ready before anybody needs them, so that who stands in for another answers without a
/// handshake, they are made and renewed; where none can be made, nothing is said: requests and probes find out what is wrong.
async fn tend(app: Arc<App>, id: TargetId) {
    loop {
        let Some(dialable) = app.targets.get(id) else { return };
        let connection = &dialable.target.connection;
        let pause = (connection.idle / 4).clamp(TEND_EVERY_LEAST, TEND_EVERY_MOST);
        let policy = app.policy();
        let unused =
            policy.retired.targets.contains(&id) || (app.observe && !crate::router::observe::asked_first(&policy, id));
        let wanted = if unused { 0 } else { usize::try_from(connection.ready).unwrap_or(usize::MAX) };
        let _ = tokio::time::timeout(CHECK_LIMIT, dialable.client.make_ready(wanted, pause)).await;
        drop((dialable, policy));
        tokio::time::sleep(pause).await;
    }
}

/// Looks whether a target is there at all, until anything is known about it: readiness must not rest on hope (case B107). Only
/// a connection is made and closed, nothing is asked.
async fn look(app: Arc<App>, id: TargetId) {
    loop {
        let Some(dialable) = app.targets.get(id) else { return };
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
