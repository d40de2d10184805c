//! Policies and a driver for the tests of the core.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::engine::Engine;
use super::io::{AttemptId, Facts, Failure, Input, Machine, Output, Reply, RequestId, StatusFailure};
use crate::policy::*;
use crate::units::Ts;

/// Builds a policy step by step. Defaults: breaker as in the format, deadline 8 s, reserve 1 s, three dials, connect 1 s, first
/// token 2 s, idle 5 s, no residency, `data: none`.
pub(crate) struct Kit {
    policy: Policy,
}

impl Kit {
    pub(crate) fn new() -> Kit {
        Kit {
            policy: Policy {
                version: "test".into(),
                serial: Some(1),
                prompt_version: None,
                expires_unix_s: None,
                on_expired_intents: None,
                blocks_on_ledger_loss: true,
                targets: Vec::new(),
                routes: Vec::new(),
                groups: BTreeMap::new(),
                tools: BTreeMap::new(),
                dependencies: BTreeMap::new(),
                breaker: Breaker::default(),
                health: Health::default(),
                sha256: String::new(),
                not_enforced: Vec::new(),
                retired: Default::default(),
            },
        }
    }

    pub(crate) fn breaker(mut self, change: impl FnOnce(&mut Breaker)) -> Kit {
        change(&mut self.policy.breaker);
        self
    }

    pub(crate) fn change(mut self, change: impl FnOnce(&mut Policy)) -> Kit {
        change(&mut self.policy);
        self
    }

    /// Adds a target that can do everything.
    pub(crate) fn target(mut self, name: &str, change: impl FnOnce(&mut Target)) -> Kit {
        let id = TargetId(u16::try_from(self.policy.targets.len()).expect("few"));
        let mut target = Target {
            id,
            name: name.into(),
            base_url: format!("http://{name}.example/v1"),
            connect_to: None,
            connection: crate::policy::Connection::default(),
            model: format!("model-{name}"),
            credentials: None,
            tier: "standard".into(),
            domains: BTreeMap::new(),
            capabilities: Capabilities {
                tools: true,
                json_schema: JsonSchema::Strict,
                vision: true,
                context_tokens: None,
            },
            capacity: Capacity {
                slots: None,
                failure_unit_slots: None,
                reserve_slots: None,
                requests_per_minute: None,
                tokens_per_minute: None,
                mean_service_ms: None,
                p95_service_ms: None,
                basis: None,
                verified_on: None,
                cold_start_s: None,
            },
            price: None,
            residency: Vec::new(),
            adapter: None,
        };
        change(&mut target);
        self.policy.targets.push(Arc::new(target));
        self
    }

    /// Adds a route with these tiers.
    pub(crate) fn route(mut self, name: &str, tiers: &[&[&str]], change: impl FnOnce(&mut Route)) -> Kit {
        let id = RouteId(u16::try_from(self.policy.routes.len()).expect("few"));
        let tier = |names: &&[&str]| Tier {
            pool: names.join("+"),
            targets: names.iter().map(|n| self.policy.target_named(n).expect("a target of this name").id).collect(),
            select: Select::Priority,
            first_token_timeout: Duration::from_secs(2),
            answer_timeout: None,
            group: None,
            pii: None,
            intents: None,
            otherwise: Otherwise::Skip,
        };
        let mut route = Route {
            id,
            name: name.into(),
            channel: None,
            objectives: Objectives::default(),
            peak: None,
            data: DataClass::None,
            residency_required: None,
            tools: Vec::new(),
            context: Context::default(),
            deadline: Duration::from_secs(8),
            reserve: Duration::from_secs(1),
            max_attempts: 3,
            connect_timeout: Duration::from_secs(1),
            idle_timeout: Duration::from_secs(5),
            same_target_retries: 0,
            commit_at: CommitAt::FirstToken,
            tiers: tiers.iter().map(tier).collect(),
            no_failover: None,
            degrade: false,
            collect: Vec::new(),
            on_capacity_exhausted: None,
            queue: None,
            ramp: None,
            hedge_after: None,
            keep_alive: None,
        };
        change(&mut route);
        self.policy.routes.push(Arc::new(route));
        self
    }

    pub(crate) fn policy(self) -> Policy {
        self.policy
    }

    pub(crate) fn drive(self) -> Drive {
        Drive::new(self.policy)
    }
}

/// A plain streamed request without personal data.
pub(crate) fn facts() -> Facts {
    Facts::plain(RouteId(0), DataClass::None)
}

/// A bare status, not in OpenAI shape.
pub(crate) fn status(status: u16) -> Failure {
    Failure::Status(StatusFailure { status, ..StatusFailure::default() })
}

/// An OpenAI error object.
pub(crate) fn object(status: u16, kind: &str, code: &str, message: &str) -> Failure {
    Failure::Status(StatusFailure {
        status,
        openai_shape: true,
        kind: kind.into(),
        code: code.into(),
        message: message.into(),
        ..StatusFailure::default()
    })
}

/// A 429 that says when to come back.
pub(crate) fn retry_after(seconds: u64) -> Failure {
    Failure::Status(StatusFailure {
        status: 429,
        retry_after: Some(Duration::from_secs(seconds)),
        ..StatusFailure::default()
    })
}

/// A driver with a clock of its own: holds the outputs that were not looked at yet.
#[derive(Clone)]
pub(crate) struct Drive {
    pub(crate) policy: Arc<Policy>,
    pub(crate) engine: Engine,
    pub(crate) now: Ts,
    pub(crate) out: Vec<Output>,
    next_request: u64,
}

impl Drive {
    pub(crate) fn new(policy: Policy) -> Drive {
        let policy = Arc::new(policy);
        let engine = Engine::new(Arc::clone(&policy), 42);
        Drive { policy, engine, now: Ts::from_s(1_000), out: Vec::new(), next_request: 1 }
    }

    pub(crate) fn input(&mut self, input: Input) {
        self.engine.handle(self.now, input);
        while let Some(output) = self.engine.poll_output() {
            self.out.push(output);
        }
        assert!(self.engine.poll_timeout().is_none_or(|at| at > self.now), "an alarm in the past");
    }

    /// Lets time pass, with a tick at every alarm on the way.
    pub(crate) fn pass_ms(&mut self, ms: u64) {
        let end = self.now + Duration::from_millis(ms);
        while let Some(at) = self.engine.poll_timeout().filter(|at| *at <= end) {
            self.now = at;
            self.input(Input::Tick);
        }
        self.now = end;
        self.input(Input::Tick);
    }

    pub(crate) fn pass_s(&mut self, s: u64) {
        self.pass_ms(s * 1_000);
    }

    pub(crate) fn arrive(&mut self, facts: Facts) -> RequestId {
        let request = RequestId(self.next_request);
        self.next_request += 1;
        self.input(Input::Arrive { request, facts });
        request
    }

    /// Another policy holds from now on.
    pub(crate) fn replace(&mut self, policy: Policy) {
        self.policy = Arc::new(crate::policy::succeed::succeed(&self.policy, policy).expect("ids are left"));
        self.engine.succeed(self.now, Arc::clone(&self.policy));
        while let Some(output) = self.engine.poll_output() {
            self.out.push(output);
        }
    }

    /// Takes the outputs so far.
    pub(crate) fn take(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.out)
    }

    /// The last dial for this request: attempt and target's name.
    pub(crate) fn dial(&self, of: RequestId) -> Option<(AttemptId, String)> {
        self.out.iter().rev().find_map(|o| match o {
            Output::Dial { request, attempt, target, .. } if *request == of => {
                Some((*attempt, self.policy.target(*target).name.clone()))
            }
            _ => None,
        })
    }

    /// Names of all targets dialled for this request, in order.
    pub(crate) fn dialled(&self, of: RequestId) -> Vec<String> {
        let name = |o: &Output| match o {
            Output::Dial { request, target, .. } if *request == of => Some(self.policy.target(*target).name.clone()),
            _ => None,
        };
        self.out.iter().filter_map(name).collect()
    }

    /// Probes begun: attempt and target's name.
    pub(crate) fn probes(&self) -> Vec<(AttemptId, String)> {
        let probe = |o: &Output| match o {
            Output::Probe { attempt, target, .. } => Some((*attempt, self.policy.target(*target).name.clone())),
            _ => None,
        };
        self.out.iter().filter_map(probe).collect()
    }

    pub(crate) fn reply(&self, of: RequestId) -> Option<Reply> {
        self.out.iter().find_map(|o| match o {
            Output::Reply { request, reply, .. } if *request == of => Some(reply.clone()),
            _ => None,
        })
    }

    pub(crate) fn record(&self, of: RequestId) -> Option<super::decision::DecisionRecord> {
        self.out.iter().find_map(|o| match o {
            Output::Done { request, record } if *request == of => Some((**record).clone()),
            _ => None,
        })
    }

    /// The attempt under way for this request. Panics without one.
    pub(crate) fn attempt(&self, of: RequestId) -> AttemptId {
        self.dial(of).expect("it was dialled").0
    }

    pub(crate) fn broke(&mut self, attempt: AttemptId, failure: Failure) {
        self.input(Input::Broke { attempt, failure, reused: false });
    }

    pub(crate) fn connected(&mut self, attempt: AttemptId) {
        self.input(Input::Connected { attempt });
    }

    pub(crate) fn committed(&mut self, attempt: AttemptId) {
        self.input(Input::Committed { attempt });
    }

    pub(crate) fn ended(&mut self, attempt: AttemptId) {
        self.input(Input::Ended { attempt, usage: None });
    }

    /// One streamed request answered at once by whoever is dialled first; says who.
    pub(crate) fn good_request(&mut self) -> String {
        let request = self.arrive(facts());
        let (attempt, name) = self.dial(request).expect("somebody serves");
        self.committed(attempt);
        self.ended(attempt);
        name
    }

    /// One request whose every dial fails this way; says who was dialled.
    pub(crate) fn bad_request(&mut self, failure: &Failure) -> Vec<String> {
        let request = self.arrive(facts());
        let mut last = None;
        while let Some((attempt, _)) = self.dial(request).filter(|(attempt, _)| Some(*attempt) != last) {
            last = Some(attempt);
            self.broke(attempt, failure.clone());
        }
        self.dialled(request)
    }

    /// Availability of a target by name, as a word.
    pub(crate) fn state(&self, name: &str) -> &'static str {
        use super::decision::Availability;
        let snapshot = self.engine.snapshot(self.now);
        match snapshot.targets.into_iter().find(|t| t.name == name).expect("a target of this name").availability {
            Availability::Serving { .. } => "serving",
            Availability::Cooling { .. } => "cooling",
            Availability::Probing => "probing",
            Availability::Benched { .. } => "benched",
        }
    }
}
