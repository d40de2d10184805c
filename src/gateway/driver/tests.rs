//! The driver with a core made for the test: panics, order, late reports.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use tokio::task::AbortHandle;

use super::{Abort, AttemptKey, Cmd, Core, Driver, Meta, Watcher};
use crate::event::Event;
use crate::policy::{DataClass, Policy, RouteId, TargetId};
use crate::router::decision::{DecisionRecord, Snapshot};
use crate::router::{AttemptId, Engine, Facts, Failure, Input, Limits, Machine, Output, RequestId};
use crate::units::Ts;

const POLICY: &str = "
version: t
serial: 1
expires: 2100-01-01T00:00:00Z
targets:
  a: { base_url: 'http://127.0.0.1:1/v1', model: m }
  b: { base_url: 'http://127.0.0.1:2/v1', model: m }
pools:
  all: { targets: [a, b], select: priority }
routes:
  - route: chat
    data: none
    deadline_ms: 2000
    max_attempts: 3
    attempts: [{ pool: all, first_token_timeout_ms: 300, pii: allowed }]
    after_stream_started: return_controlled_error
    on_all_failed: { handoff: human, correlation_id: true }
";

fn policy() -> Arc<Policy> {
    let (policy, found) = crate::policy::load("t.yaml", POLICY.as_bytes());
    Arc::new(policy.unwrap_or_else(|| panic!("{found:#?}")))
}

fn facts() -> Facts {
    Facts::plain(RouteId(0), DataClass::None)
}

#[derive(Default)]
struct Heard {
    events: Mutex<Vec<Event>>,
    done: Mutex<Vec<(Meta, DecisionRecord)>>,
    rebuilt: AtomicU32,
}

impl Watcher for Heard {
    fn event(&self, event: Event) {
        self.events.lock().unwrap().push(event);
    }

    fn done(&self, meta: &Meta, record: DecisionRecord) {
        self.done.lock().unwrap().push((meta.clone(), record));
    }

    fn probe(&self, _: AttemptKey, _: TargetId, _: Limits) -> AbortHandle {
        tokio::spawn(async {}).abort_handle()
    }

    fn rebuilt(&self, requests: u64) {
        self.rebuilt.fetch_add(u32::try_from(requests).unwrap() + 1, Ordering::SeqCst);
    }
}

/// Dials target 0 for every request; panics on a failure report.
#[derive(Default)]
struct Fragile {
    out: VecDeque<Output>,
    next: u64,
}

impl Machine for Fragile {
    fn handle(&mut self, _: Ts, input: Input) {
        match input {
            Input::Arrive { request, .. } => self.dial(request),
            Input::Broke { .. } => panic!("as the test wants it"),
            _ => {}
        }
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    fn poll_timeout(&self) -> Option<Ts> {
        None
    }
}

impl Fragile {
    fn dial(&mut self, request: RequestId) {
        self.next += 1;
        let span = Duration::from_secs(1);
        let limits = Limits { connect: span, answer: span, idle: span };
        let attempt = AttemptId(self.next);
        self.out.push_back(Output::Dial {
            request,
            attempt,
            target: TargetId(0),
            limits,
            fresh: false,
            degraded: false,
            hedge: false,
            max_output_tokens: None,
            mask: false,
            withhold: crate::router::Withhold::Nothing,
        });
    }
}

impl Core for Fragile {
    fn succeed(&mut self, _: Ts, _: &Arc<Policy>) {}

    fn snapshot(&self, _: Ts) -> Snapshot {
        Snapshot {
            targets: Vec::new(),
            requests_open: 0,
            requests_committed: 0,
            attempts_in_flight: 0,
            queued: Vec::new(),
            unconfirmed_calls: 0,
            emergency: false,
        }
    }
}

fn driver(fragile: bool) -> (Arc<Driver>, Arc<Heard>) {
    let heard = Arc::new(Heard::default());
    let policy = policy();
    let for_make = Arc::clone(&policy);
    let make = Box::new(move |seed, _: &Arc<Policy>| -> Box<dyn Core> {
        if fragile { Box::new(Fragile::default()) } else { Box::new(Engine::new(Arc::clone(&for_make), seed)) }
    });
    let weak: Weak<dyn Watcher> = Arc::downgrade(&heard) as Weak<dyn Watcher>;
    (Arc::new(Driver::new(Instant::now(), policy, 1, make, weak)), heard)
}

async fn dialled(ticket: &mut super::Ticket) -> (AttemptKey, TargetId) {
    match ticket.next().await {
        Some(Cmd::Dial { key, target, .. }) => (key, target),
        other => panic!("a dial, not {other:?}"),
    }
}

#[tokio::test]
async fn a_panic_of_the_core_ends_open_requests_honestly_and_life_goes_on() {
    let (driver, heard) = driver(true);
    let mut first = driver.arrive(facts(), Meta::default());
    let mut second = driver.arrive(facts(), Meta::default());
    let (old, _) = dialled(&mut first).await;
    dialled(&mut second).await;
    driver.broke(old, Failure::Reset, false);
    for ticket in [&mut first, &mut second] {
        assert!(matches!(ticket.next().await, Some(Cmd::Abort(Abort::CoreLost))));
        assert!(ticket.next().await.is_none());
    }
    // Two requests were lost, once.
    assert_eq!(heard.rebuilt.load(Ordering::SeqCst), 3);
    assert_eq!(driver.open(), 0);
    // The new core begins its attempt numbers anew; a late report of the old one must not reach it.
    let mut third = driver.arrive(facts(), Meta::default());
    let (new, _) = dialled(&mut third).await;
    assert_eq!(new.id, old.id);
    assert_ne!(new, old);
    driver.broke(old, Failure::Reset, false);
    assert_eq!(heard.rebuilt.load(Ordering::SeqCst), 3, "ignored");
    drop((first, second));
    assert_eq!(driver.open(), 1);
}

#[tokio::test]
async fn the_clock_runs_by_itself_and_the_ticket_s_drop_frees_everything() {
    let (driver, heard) = driver(false);
    let clock = tokio::spawn(Arc::clone(&driver).run_clock());
    let meta = Meta { request: "r-1".into(), ..Meta::default() };
    let mut ticket = driver.arrive(facts(), meta);
    let (a, target) = dialled(&mut ticket).await;
    assert_eq!(target, TargetId(0));
    // Nothing is reported: the core's own clock cancels and dials the next.
    assert!(matches!(ticket.next().await, Some(Cmd::Cancel(key)) if key == a));
    let (_, target) = dialled(&mut ticket).await;
    assert_eq!(target, TargetId(1));
    assert_eq!(driver.snapshot().attempts_in_flight, 1);
    drop(ticket);
    let snapshot = driver.snapshot();
    assert_eq!((snapshot.requests_open, snapshot.attempts_in_flight, driver.open()), (0, 0, 0));
    let done = heard.done.lock().unwrap();
    assert_eq!(done.len(), 1);
    assert_eq!((done[0].0.request.as_str(), done[0].1.attempts.len()), ("r-1", 2));
    let events = heard.events.lock().unwrap();
    let failed = events.iter().find(|e| matches!(e, Event::AttemptFailed { .. })).expect("a failed attempt");
    assert!(
        matches!(failed, Event::AttemptFailed { target, request: Some(r), .. } if target == "a" && r == "r-1"),
        "{failed:?}"
    );
    clock.abort();
}

#[tokio::test]
async fn a_drain_reaches_every_request() {
    let (driver, _) = driver(false);
    let mut tickets: Vec<_> = (0..3).map(|_| driver.arrive(facts(), Meta::default())).collect();
    driver.abort_all();
    for ticket in &mut tickets {
        dialled(ticket).await;
        assert!(matches!(ticket.next().await, Some(Cmd::Abort(Abort::Draining))));
    }
    drop(tickets);
    assert_eq!(driver.open(), 0);
}

/// Another policy gives the benched `a` another model, so that the core knows it by another id, and leaves `b` as it is.
#[tokio::test]
async fn a_bench_holds_in_the_very_step_in_which_its_target_becomes_another_and_routes_are_told_of() {
    let (driver, heard) = driver(false);
    let bench = |target| Input::Bench { target, out: true, until: Some(driver.now() + Duration::from_secs(60)) };
    let alerts = || -> Vec<String> {
        let told = |e: Event| match e {
            Event::Alert { reason, text, .. } => Some(format!("{reason} {text}")),
            _ => None,
        };
        std::mem::take(&mut *heard.events.lock().unwrap()).into_iter().filter_map(told).collect()
    };
    driver.ordered(bench(TargetId(0)));
    assert!(alerts().is_empty());
    driver.ordered(bench(TargetId(1)));
    assert_eq!(alerts(), ["nobody_serves route chat: nobody serves; customers are refused or handed to a human"]);
    let next = |from: &str, to: &str| {
        let (policy, found) = crate::policy::load("t.yaml", POLICY.replace(from, to).as_bytes());
        let next = policy.unwrap_or_else(|| panic!("{found:#?}"));
        Arc::new(crate::policy::succeed::succeed(&driver.policy(), next).unwrap_or_else(|e| panic!("{e}")))
    };
    let renamed = next("'http://127.0.0.1:1/v1', model: m", "'http://127.0.0.1:1/v1', model: n");
    let heir = renamed.target_named("a").unwrap().id;
    assert_eq!(heir, TargetId(2));
    driver.succeed(&renamed, vec![bench(heir)]);
    assert!(alerts().is_empty(), "nobody serves it still, and that is known");
    let mut ticket = driver.arrive(facts(), Meta::default());
    assert!(matches!(ticket.next().await, Some(Cmd::Reply { attempts: 0, .. })), "nobody was dialled");
    // Without the order the new one would serve, and people hear of that too.
    let again = next("'http://127.0.0.1:1/v1', model: m", "'http://127.0.0.1:1/v1', model: o");
    driver.succeed(&again, Vec::new());
    assert_eq!(alerts(), ["somebody_serves route chat: a serves again"]);
    let mut ticket = driver.arrive(facts(), Meta::default());
    assert_eq!(dialled(&mut ticket).await.1, TargetId(3));
}
