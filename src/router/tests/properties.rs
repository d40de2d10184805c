//! What must hold whatever happens: a random driver, and a checker outside the core that sees only inputs and outputs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use crate::policy::*;
use crate::router::decision::{Availability, Note};
use crate::router::testkit::*;
use crate::router::*;
use crate::units::Ts;

/// One step of the driver. Numbers pick among what is open at that moment.
#[derive(Clone, Debug)]
enum Step {
    Arrive(u8),
    Connected(u8),
    Sign(u8, bool),
    Committed(u8),
    Ended(u8),
    Broke(u8, u8, bool),
    Gone(u8, bool),
    /// An input about an attempt or request that is over, or never was.
    Late(u8, u8),
    Pass(u16),
    /// To the next alarm.
    Alarm,
    /// Past the next alarm by so many milliseconds without a tick before.
    Overshoot(u8),
    Suspect(u8),
    /// Another policy: the same again, or without one target, or with it again.
    Replace(bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => any::<u8>().prop_map(Step::Arrive),
        2 => any::<u8>().prop_map(Step::Connected),
        2 => (any::<u8>(), any::<bool>()).prop_map(|(n, call)| Step::Sign(n, call)),
        3 => any::<u8>().prop_map(Step::Committed),
        3 => any::<u8>().prop_map(Step::Ended),
        7 => (any::<u8>(), any::<u8>(), any::<bool>()).prop_map(|(n, how, reused)| Step::Broke(n, how, reused)),
        1 => (any::<u8>(), any::<bool>()).prop_map(|(n, stalled)| Step::Gone(n, stalled)),
        1 => (any::<u8>(), any::<u8>()).prop_map(|(n, what)| Step::Late(n, what)),
        2 => (0u16..3_000).prop_map(Step::Pass),
        3 => Just(Step::Alarm),
        1 => any::<u8>().prop_map(Step::Overshoot),
        1 => any::<u8>().prop_map(Step::Suspect),
        1 => any::<bool>().prop_map(Step::Replace),
    ];
    prop::collection::vec(step, 1..250)
}

fn failure(how: u8) -> Failure {
    match how % 21 {
        0..=5 => Failure::Refused,
        6 => Failure::Reset,
        7 => Failure::Empty,
        8 => Failure::Truncated,
        9 => Failure::IdleTimeout,
        10 => status(503),
        11 => status(429),
        12 => retry_after(u64::from(how) * 400),
        13 => status(401),
        14 => object(403, "", "", "no"),
        15 => status(451),
        16 => object(400, "", "", "bad"),
        17 => object(400, "", "context_length_exceeded", ""),
        18 => object(400, "", "", "`tools` is not supported"),
        19 => Failure::Quality("not as the case demands".into()),
        _ => object(404, "", "model_not_found", ""),
    }
}

/// Three routes over six targets with residencies, shared keys and quotas, tiers, intents and windows.
fn policy(retries: u32, attempts: u32) -> Policy {
    policy_with(retries, attempts, true)
}

/// With or without the target `c`, which stands in the middle.
fn policy_with(retries: u32, attempts: u32, c: bool) -> Policy {
    let target = |place: &'static str, key: &'static str, quota: Option<&'static str>| {
        move |t: &mut Target| {
            t.residency = vec![place.into()];
            t.credentials = Some(SecretRef::Env(key.into()));
            t.capacity.slots = Some(3);
            t.capabilities.context_tokens = Some(8_000);
            if let Some(quota) = quota {
                t.domains.insert("quota".into(), quota.into());
            }
        }
    };
    let kit = Kit::new().target("a", target("kz", "K1", Some("q"))).target("b", target("kz", "K1", None));
    let kit = if c { kit.target("c", target("kz", "K2", Some("q"))) } else { kit };
    let first: &[&str] = if c { &["a", "c", "b"] } else { &["a", "b"] };
    kit.target("d", |t| {
        target("eu", "K3", None)(t);
        t.capacity.requests_per_minute = Some(4);
        t.capabilities.context_tokens = Some(32_000);
    })
    .target("e", |t| {
        target("kz", "K4", None)(t);
        t.capabilities.tools = false;
        t.tier = "economy".into();
    })
    .target("f", target("us", "K5", None))
    .breaker(|b| b.max_cooldown = Duration::from_secs(40))
    .route("legal", &[first, &["d", "e", "f"]], |r| {
        r.residency_required = Some(vec!["kz".into(), "eu".into()]);
        r.max_attempts = attempts;
        r.queue = Some(Queue { max_depth: 2, max_wait: Duration::from_secs(30), reserved_for_open_conversations: 0.0 });
        r.same_target_retries = retries;
        r.data = DataClass::Personal;
        r.tiers[1].pii = Some(Pii::Allowed);
        r.tiers[1].intents = Some(vec!["shipping".into()]);
    })
    .change(|p| {
        p.health.window = Duration::from_secs(20);
        p.health.fast_window = Duration::from_secs(4);
        p.health.eject_after = Duration::from_secs(2);
        p.health.probe_every = Duration::from_secs(3);
    })
    .route("any", &[&["f", "a"], &["e"]], |r| {
        r.degrade = true;
        r.tiers[0].select = Select::Health;
        r.hedge_after = Some(Duration::from_millis(700));
        r.ramp = Some(Ramp { steps: vec![0.1, 0.5, 1.0], hold: Duration::from_secs(2), step_back_error_rate: 0.2 });
        r.queue =
            Some(Queue { max_depth: 4, max_wait: Duration::from_millis(1_500), reserved_for_open_conversations: 0.25 });
        r.max_attempts = attempts;
        r.same_target_retries = retries;
    })
    .route("alone", &[&["b", "f"]], |r| r.no_failover = Some("regulator".into()))
    .policy()
}

fn request(n: u8) -> Facts {
    Facts {
        route: RouteId(u16::from(n % 3)),
        stream: n & 8 == 0,
        tools: n & 16 != 0,
        intent: (n & 32 != 0).then(|| "shipping".to_owned()),
        risky_tools: n & 16 != 0,
        open_conversation: n & 4 != 0,
        task: if n & 2 != 0 { "customer_reply".into() } else { "summary".into() },
        data: if n & 64 != 0 { DataClass::Personal } else { DataClass::None },
        body_bytes: if n & 128 != 0 { 60_000 } else { 300 },
        ..facts()
    }
}

#[derive(Debug, Default)]
struct Seen {
    facts: Option<Facts>,
    dials: u32,
    dialled: Vec<TargetId>,
    under_way: BTreeSet<AttemptId>,
    delivered: Option<AttemptId>,
    replied: bool,
    gone: bool,
    done: bool,
    /// As it was when it arrived.
    policy: Option<Arc<Policy>>,
}

/// Watches inputs and outputs; panics where a promise is broken.
struct Checker {
    policy: Arc<Policy>,
    requests: BTreeMap<RequestId, Seen>,
    /// Attempt: its target, and its request or none for a probe.
    open: BTreeMap<AttemptId, (TargetId, Option<RequestId>)>,
    used: BTreeSet<AttemptId>,
    /// As last told by notes.
    out_of_service: BTreeSet<TargetId>,
    suspected: BTreeSet<TargetId>,
}

impl Checker {
    /// Books an input that ends an attempt or a request.
    fn input(&mut self, input: &Input) {
        match input {
            Input::Arrive { request, facts } => {
                let policy = Some(Arc::clone(&self.policy));
                self.requests.insert(*request, Seen { facts: Some(facts.clone()), policy, ..Seen::default() });
            }
            Input::Ended { attempt, .. } | Input::Broke { attempt, .. } => self.over(*attempt),
            Input::ClientGone { request, .. } | Input::Stopped { request } => {
                if let Some(seen) = self.requests.get_mut(request).filter(|seen| !seen.done) {
                    seen.gone = true;
                }
            }
            _ => {}
        }
    }

    fn over(&mut self, attempt: AttemptId) {
        if let Some((_, Some(request))) = self.open.remove(&attempt) {
            let seen = self.requests.get_mut(&request).expect("its request");
            seen.under_way.remove(&attempt);
        }
    }

    /// True if the law and the route let this target answer this request: worked out here, not by the core.
    fn may(policy: &Policy, facts: &Facts, target: TargetId) -> bool {
        let route = policy.route(facts.route);
        let t = policy.target(target);
        let legal = route.residency_required.as_ref().is_none_or(|r| t.residency.iter().all(|p| r.contains(p)));
        let personal = facts.data == DataClass::Personal || route.data == DataClass::Personal;
        let fits = |tier: &Tier| {
            let pii = match tier.pii {
                Some(Pii::Masked) => facts.unmaskable.is_none(),
                Some(pii) => pii == Pii::Allowed,
                None => route.residency_required.is_some(),
            };
            tier.targets.contains(&target)
                && (!personal || pii)
                && tier.intents.as_ref().is_none_or(|list| facts.intent.as_ref().is_some_and(|i| list.contains(i)))
        };
        let first_class = &policy.target(route.tiers[0].targets[0]).tier;
        let window = t.capabilities.context_tokens.unwrap_or(u64::MAX);
        legal
            && route.tiers.iter().any(fits)
            && (route.degrade || &t.tier == first_class)
            && (!facts.tools || t.capabilities.tools)
            && facts.body_bytes / 3 <= window
            && (route.no_failover.is_none() || target == route.tiers[0].targets[0])
    }

    fn output(&mut self, output: &Output) {
        match output {
            Output::Dial { request, attempt, target, limits, hedge, .. } => {
                assert!(self.used.insert(*attempt), "an attempt id used twice");
                assert!(!self.out_of_service.contains(target), "an open target got a request");
                let facts = self.requests[request].facts.clone().expect("arrived");
                let policy = self.requests[request].policy.clone().expect("arrived");
                assert!(Checker::may(&policy, &facts, *target), "a filter was relaxed");
                let route = policy.route(facts.route);
                let seen = self.requests.get_mut(request).expect("arrived");
                assert!(!seen.gone && !seen.done && !seen.replied, "a dial for nobody");
                assert_eq!(seen.delivered, None, "an attempt after commit");
                assert_eq!(seen.under_way.len(), usize::from(*hedge), "one attempt at a time, or one and a hedge");
                assert!(!hedge || (route.hedge_after.is_some() && !facts.risky_tools), "a hedge that must not be");
                assert!(!hedge || !seen.dialled.contains(target), "a hedge at the same target");
                let slots = self.policy.target(*target).capacity.slots.unwrap_or(u32::MAX) as usize;
                let there = self.open.values().filter(|(t, _)| t == target).count();
                assert!(there < slots, "more requests at once than slots");
                seen.dials += 1;
                assert!(seen.dials <= route.max_attempts, "more dials than allowed");
                seen.dialled.push(*target);
                seen.under_way.insert(*attempt);
                assert!(limits.connect <= limits.answer && limits.answer <= route.deadline - route.reserve);
                self.open.insert(*attempt, (*target, Some(*request)));
            }
            Output::Probe { attempt, target, .. } => {
                assert!(self.used.insert(*attempt), "an attempt id used twice");
                assert!(!self.open.values().any(|(t, r)| t == target && r.is_none()), "two probes at once");
                if !self.out_of_service.contains(target) {
                    assert!(self.suspected.remove(target), "a probe of a target that serves");
                    let slots = self.policy.target(*target).capacity.slots.unwrap_or(u32::MAX) as usize;
                    let there = self.open.values().filter(|(t, _)| t == target).count();
                    assert!(there < slots, "a suspicion takes a customer's place");
                }
                self.open.insert(*attempt, (*target, None));
            }
            Output::Cancel { attempt } => {
                assert!(self.open.contains_key(attempt), "cancelled twice, or what was over");
                self.over(*attempt);
            }
            Output::Deliver { request, attempt, attempts, .. } => {
                let seen = self.requests.get_mut(request).expect("arrived");
                assert!(seen.delivered.is_none() && !seen.replied && !seen.gone && !seen.done, "a second terminal");
                assert_eq!(*attempts, seen.dials);
                seen.delivered = Some(*attempt);
            }
            Output::Reply { request, attempts, .. } => {
                let seen = self.requests.get_mut(request).expect("arrived");
                assert!(seen.delivered.is_none() && !seen.replied && !seen.gone && !seen.done, "a second terminal");
                assert_eq!(*attempts, seen.dials);
                seen.replied = true;
            }
            Output::Break { request, attempt, .. } => {
                assert_eq!(self.requests[request].delivered, Some(*attempt), "broke what was not delivered");
            }
            Output::Done { request, record } => {
                let policy = Arc::clone(&self.policy);
                let seen = self.requests.get_mut(request).expect("arrived");
                assert!(!seen.done, "done twice");
                assert!(seen.delivered.is_some() || seen.replied || seen.gone, "done without a terminal");
                assert!(seen.under_way.is_empty(), "done with an attempt under way");
                let names: Vec<&str> = record.attempts.iter().map(|a| a.target.as_str()).collect();
                let dialled: Vec<&str> = seen.dialled.iter().map(|t| policy.target(*t).name.as_str()).collect();
                assert_eq!(names, dialled, "the record tells what happened");
                assert!(record.skipped.iter().all(|s| !dialled.contains(&s.target.as_str()) && !s.reason.is_empty()));
                seen.done = true;
            }
            Output::Note(Note::Availability { target, now, .. }) => {
                if matches!(now, Availability::Serving { .. }) {
                    self.out_of_service.remove(target);
                } else {
                    self.out_of_service.insert(*target);
                }
            }
            Output::Calls { .. } | Output::CallsAre { .. } => panic!("nobody proposed a call"),
            Output::Note(_) => {}
        }
    }
}

struct Run {
    engine: Engine,
    checker: Checker,
    now: Ts,
    next: u64,
    log: Vec<Output>,
    limits: (u32, u32),
    /// The input journal, as text.
    journal: String,
}

impl Run {
    fn new(limits: (u32, u32), seed: u64) -> Run {
        let policy = Arc::new(policy(limits.0, limits.1));
        let checker = Checker {
            policy: Arc::clone(&policy),
            requests: BTreeMap::new(),
            open: BTreeMap::new(),
            used: BTreeSet::new(),
            out_of_service: BTreeSet::new(),
            suspected: BTreeSet::new(),
        };
        Run {
            engine: Engine::new(policy, seed),
            checker,
            now: Ts::from_s(50),
            next: 0,
            log: Vec::new(),
            limits,
            journal: String::new(),
        }
    }

    fn input(&mut self, input: Input) {
        // A time-out is due before a new request is heard; notes of it come first in the outputs.
        self.checker.input(&input);
        self.journal +=
            &replay::line(&replay::Entry { seq: 0, at: self.now, input: input.clone() }).expect("plain data");
        self.engine.handle(self.now, input);
        self.look();
    }

    fn look(&mut self) {
        while let Some(output) = self.engine.poll_output() {
            self.checker.output(&output);
            self.log.push(output);
        }
        assert!(self.engine.poll_timeout().is_none_or(|at| at > self.now), "an alarm in the past");
        let snapshot = self.engine.snapshot(self.now);
        let in_flight: u32 = snapshot.targets.iter().map(|t| t.counters.in_flight).sum();
        assert_eq!(in_flight as usize, self.checker.open.len(), "slots and attempts agree");
        let most = self.checker.policy.routes.iter().map(|r| r.queue.map_or(0, |q| q.max_depth as usize));
        assert!(snapshot.queued.iter().zip(most).all(|(depth, most)| *depth <= most), "a queue above its bound");
        assert_eq!(snapshot.attempts_in_flight, self.checker.open.len());
        assert_eq!(snapshot.requests_open, self.checker.requests.values().filter(|s| !s.done).count());
    }

    fn attempt(&self, n: u8) -> Option<AttemptId> {
        let open = &self.checker.open;
        open.keys().nth(usize::from(n) % open.len().max(1)).copied()
    }

    fn client(&self, n: u8) -> Option<RequestId> {
        let open: Vec<RequestId> = self.checker.requests.iter().filter(|(_, s)| !s.done).map(|(r, _)| *r).collect();
        open.get(usize::from(n) % open.len().max(1)).copied()
    }

    fn step(&mut self, step: &Step) {
        let ms = |n: u64| Duration::from_millis(n);
        match step {
            Step::Arrive(n) => {
                self.next += 1;
                self.input(Input::Arrive { request: RequestId(self.next), facts: request(*n) });
            }
            Step::Connected(n) => self.on(*n, |attempt| Input::Connected { attempt }),
            Step::Sign(n, call) => {
                let sign = if *call { Sign::ToolCall } else { Sign::Life };
                self.on(*n, |attempt| Input::FirstToken { attempt, sign });
            }
            Step::Committed(n) => self.on(*n, |attempt| Input::Committed { attempt }),
            Step::Ended(n) => self.on(*n, |attempt| Input::Ended { attempt, usage: None }),
            Step::Broke(n, how, reused) => {
                self.on(*n, |attempt| Input::Broke { attempt, failure: failure(*how), reused: *reused });
            }
            Step::Gone(n, stalled) => {
                if let Some(request) = self.client(*n) {
                    self.input(Input::ClientGone { request, stalled: *stalled });
                }
            }
            Step::Late(n, what) => {
                let over: Vec<AttemptId> =
                    self.checker.used.iter().filter(|a| !self.checker.open.contains_key(a)).copied().collect();
                let attempt = over.get(usize::from(*n) % over.len().max(1)).copied().unwrap_or(AttemptId(1 << 40));
                let before = self.log.len();
                self.input(match what % 6 {
                    0 => Input::Connected { attempt },
                    1 => Input::FirstToken { attempt, sign: Sign::Life },
                    2 => Input::Committed { attempt },
                    3 => Input::Ended { attempt, usage: None },
                    4 => Input::Broke { attempt, failure: Failure::Refused, reused: true },
                    _ => Input::ClientGone { request: RequestId(1 << 40), stalled: false },
                });
                assert_eq!(self.log.len(), before, "a late input was heard");
            }
            Step::Pass(n) => {
                let end = self.now + ms(u64::from(*n));
                self.pass(end);
            }
            Step::Alarm => {
                if let Some(at) = self.engine.poll_timeout() {
                    self.now = at;
                    self.input(Input::Tick);
                }
            }
            Step::Suspect(n) => {
                let target = TargetId(u16::from(n % 7));
                self.checker.suspected.insert(target);
                self.input(Input::Suspect { target });
            }
            Step::Replace(whole) => {
                let new = policy_with(self.limits.0, self.limits.1, *whole);
                let new = Arc::new(succeed::succeed(&self.checker.policy, new).expect("ids are left"));
                self.checker.policy = Arc::clone(&new);
                self.engine.succeed(self.now, new);
                self.look();
            }
            Step::Overshoot(n) => {
                if let Some(at) = self.engine.poll_timeout() {
                    self.now = at + ms(u64::from(*n));
                    // The next input, whatever it is, comes late; a tick cleans up.
                    self.input(Input::Tick);
                }
            }
        }
    }

    fn on(&mut self, n: u8, input: impl FnOnce(AttemptId) -> Input) {
        if let Some(attempt) = self.attempt(n) {
            self.input(input(attempt));
        }
    }

    fn pass(&mut self, end: Ts) {
        while let Some(at) = self.engine.poll_timeout().filter(|at| *at <= end) {
            self.now = at;
            self.input(Input::Tick);
        }
        self.now = end;
    }

    /// Heals everything: every attempt is answered in full, until nothing is open and everybody serves.
    fn heal(&mut self) {
        let bound = self.now + Duration::from_secs(86_400 + 3_600);
        loop {
            while let Some(attempt) = self.attempt(0) {
                self.input(Input::Ended { attempt, usage: None });
            }
            let retired = &self.checker.policy.retired.targets;
            let all_serve = self.checker.out_of_service.is_subset(retired);
            if all_serve && self.checker.requests.values().all(|s| s.done) {
                return;
            }
            let at = self.engine.poll_timeout().expect("something is due while somebody is out");
            assert!(at <= bound, "it takes longer than any bound");
            self.now = at;
            self.input(Input::Tick);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn promises_hold_whatever_happens(steps in steps(), retries in 0u32..3, attempts in 1u32..5, seed in any::<u64>()) {
        let mut run = Run::new((retries, attempts), seed);
        for step in &steps {
            run.step(step);
        }
        // Liveness: once all is well, every request ends, nothing is in flight, and every target serves again.
        run.heal();
        prop_assert!(run.engine.is_idle());
        for (request, seen) in &run.checker.requests {
            prop_assert!(seen.done, "{request:?} never ended");
        }
    }

    #[test]
    fn the_same_seed_and_steps_give_the_same_outputs(steps in steps(), seed in any::<u64>()) {
        // An input journal ends where another policy begins.
        let steps: Vec<Step> = steps.into_iter().filter(|step| !matches!(step, Step::Replace(_))).collect();
        let run = |seed| {
            let mut run = Run::new((1, 3), seed);
            for step in &steps {
                run.step(step);
            }
            run
        };
        let (first, second) = (run(seed), run(seed));
        prop_assert_eq!(&first.log, &second.log);
        // The journal went through text; what comes of it is the same, byte for byte.
        let entries = first.journal.lines().map(|line| serde_json::from_str(line).expect("as written"));
        let mut fresh = Engine::new(Arc::new(policy(1, 3)), seed);
        let mut replayed = String::new();
        replay::replay(&mut fresh, entries, |_, output| replayed += &replay::line(output).expect("plain data"));
        let lines: Result<String, _> = first.log.iter().map(replay::line).collect();
        prop_assert_eq!(replayed, lines.expect("plain data"));
    }
}
