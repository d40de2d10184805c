//! Policy tests: the core is led through a short history of its targets' health, and then asked.
//!
//! Requests flow all the time, so that breakers, health and ramps are where they would be. A question is one more request at its
//! moment, answered by the same targets in the same state; the decision record says who answered and why.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::policy::{DataClass, Policy, Route, TargetId};
use crate::router::decision::{DecisionRecord, Outcome};
use crate::router::{
    AttemptId, Engine, Facts, Failure, Input, Limits, Machine, Output, Reply, RequestId, StatusFailure,
};
use crate::spec::policy_tests::{PolicyTest, Question, Word};
use crate::units::Ts;

/// What became of one question.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// Which question of its test, from zero.
    pub question: usize,
    /// It came out as expected.
    pub held: bool,
    /// Who answered, or the word for no answer.
    pub got: String,
    /// The reasons of its record: `local-a: open`, `local-b: first_token_timeout`.
    pub reasons: Vec<String>,
}

/// A test that is ready to be run: names are looked up, series are read.
#[derive(Clone, Debug)]
pub struct Ready<'a> {
    /// The test.
    pub test: &'a PolicyTest,
    /// Its route.
    pub route: Arc<Route>,
    /// Series by target; what is not here is up.
    pub series: BTreeMap<TargetId, Vec<Word>>,
    /// Moments of the questions in milliseconds, in the order of the file.
    pub at_ms: Vec<u64>,
}

/// An answer under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Connected(AttemptId),
    First(AttemptId),
    Ended(AttemptId),
    Broke(AttemptId, Word),
    Traffic,
    Ask(usize),
}

/// How soon a target that is well begins, and ends.
const FIRST: Duration = Duration::from_millis(100);
const WHOLE: Duration = Duration::from_millis(400);
const CONNECT: Duration = Duration::from_millis(5);
/// Steps of one test before it is given up: far beyond any honest file.
const MAX_STEPS: usize = 20_000_000;

struct Driver<'a> {
    ready: &'a Ready<'a>,
    engine: Engine,
    heap: std::collections::BTreeSet<(Ts, u64, Step)>,
    next: u64,
    asked: BTreeMap<RequestId, usize>,
    records: BTreeMap<usize, (DecisionRecord, Option<Reply>)>,
}

/// Runs one test.
#[must_use]
pub fn run(policy: &Arc<Policy>, ready: &Ready<'_>) -> Vec<Answer> {
    let mut driver = Driver {
        ready,
        engine: Engine::new(Arc::clone(policy), 1),
        heap: std::collections::BTreeSet::new(),
        next: 0,
        asked: BTreeMap::new(),
        records: BTreeMap::new(),
    };
    // A test is about the policy: texts of adapters, like admission records, are taken to be there.
    let targets = policy.live_targets().filter(|t| t.replaces_schema()).map(|t| t.id).collect();
    driver.input(Ts::ZERO, Input::Adapters { targets });
    for (n, ms) in ready.at_ms.iter().enumerate() {
        driver.put(Ts::from_ms(*ms), Step::Ask(n));
    }
    if ready.test.requests_per_s > 0.0 {
        driver.put(Ts::ZERO, Step::Traffic);
    }
    let last = Ts::from_ms(ready.at_ms.iter().copied().max().unwrap_or(0));
    let mut steps = 0;
    while driver.records.len() < ready.at_ms.len() && steps < MAX_STEPS {
        steps += 1;
        let alarm = driver.engine.poll_timeout();
        let first = driver.heap.first().copied();
        match (first, alarm) {
            (Some((at, ..)), alarm) if alarm.is_none_or(|alarm| at <= alarm) => {
                driver.heap.pop_first();
                if let Some((_, _, step)) = first {
                    driver.step(policy, at, last, step);
                }
            }
            (_, Some(alarm)) => driver.input(alarm, Input::Tick),
            (_, None) => break,
        }
    }
    let questions = ready.test.ask.iter().enumerate();
    questions.map(|(n, question)| judge(n, question, driver.records.get(&n))).collect()
}

impl Driver<'_> {
    fn put(&mut self, at: Ts, step: Step) {
        self.next += 1;
        self.heap.insert((at, self.next, step));
    }

    fn word(&self, at: Ts, target: TargetId) -> Word {
        let step_ms = (self.ready.test.step_s.0 * 1e3).max(1.0);
        let n = (at.as_ms() as f64 / step_ms) as usize;
        let series = self.ready.series.get(&target);
        series.and_then(|s| s.get(n).or(s.last())).copied().unwrap_or(Word::Up)
    }

    fn step(&mut self, policy: &Policy, now: Ts, last: Ts, step: Step) {
        match step {
            Step::Connected(attempt) => self.input(now, Input::Connected { attempt }),
            Step::First(attempt) => self.input(now, Input::Committed { attempt }),
            Step::Ended(attempt) => self.input(now, Input::Ended { attempt, usage: None }),
            Step::Broke(attempt, word) => {
                let failure = failure(word);
                self.input(now, Input::Broke { attempt, failure, reused: false });
            }
            Step::Traffic => {
                let request = self.request();
                let facts = traffic(self.ready);
                self.input(now, Input::Arrive { request, facts });
                let next = now + Duration::from_secs_f64(1.0 / self.ready.test.requests_per_s);
                if next <= last {
                    self.put(next, Step::Traffic);
                }
            }
            Step::Ask(n) => {
                let Some(question) = self.ready.test.ask.get(n) else { return };
                let request = self.request();
                self.asked.insert(request, n);
                let facts = asked(policy, self.ready, question);
                self.input(now, Input::Arrive { request, facts });
            }
        }
    }

    fn request(&mut self) -> RequestId {
        self.next += 1;
        RequestId(self.next)
    }

    fn input(&mut self, now: Ts, input: Input) {
        self.engine.handle(now, input);
        let mut replies: BTreeMap<RequestId, Reply> = BTreeMap::new();
        while let Some(output) = self.engine.poll_output() {
            match output {
                Output::Dial { attempt, target, limits, .. } | Output::Probe { attempt, target, limits } => {
                    self.dial(now, attempt, target, limits);
                }
                Output::Reply { request, reply, .. } => {
                    replies.insert(request, reply);
                }
                Output::Done { request, record } => {
                    if let Some(n) = self.asked.remove(&request) {
                        self.records.insert(n, (*record, replies.remove(&request)));
                    }
                }
                Output::Cancel { .. }
                | Output::Deliver { .. }
                | Output::Calls { .. }
                | Output::CallsAre { .. }
                | Output::Break { .. }
                | Output::Note(_) => {}
            }
        }
    }

    /// Late news about a cancelled attempt is ignored by the core, so nothing is taken back.
    fn dial(&mut self, now: Ts, attempt: AttemptId, target: TargetId, limits: Limits) {
        let word = self.word(now, target);
        if word == Word::Down {
            return self.put(now + CONNECT, Step::Broke(attempt, word));
        }
        self.put(now + CONNECT, Step::Connected(attempt));
        match word {
            Word::Silent | Word::Down => {}
            Word::Up => {
                self.put(now + FIRST, Step::First(attempt));
                self.put(now + WHOLE, Step::Ended(attempt));
            }
            Word::Slow => {
                let late = limits.answer.mul_f64(0.9);
                self.put(now + late, Step::First(attempt));
                self.put(now + late + Duration::from_millis(1), Step::Ended(attempt));
            }
            Word::Limited | Word::Error | Word::Cut | Word::Unauthorized => {
                self.put(now + FIRST, Step::Broke(attempt, word));
            }
        }
    }
}

fn failure(word: Word) -> Failure {
    let status = |status| Failure::Status(StatusFailure { status, openai_shape: true, ..StatusFailure::default() });
    match word {
        Word::Down => Failure::Refused,
        Word::Limited => status(429),
        Word::Error => status(503),
        Word::Unauthorized => status(401),
        Word::Cut => Failure::Truncated,
        Word::Up | Word::Slow | Word::Silent => Failure::Reset,
    }
}

fn traffic(ready: &Ready<'_>) -> Facts {
    let intent = ready.test.traffic_intent.clone();
    Facts { intent, body_bytes: 1_000, ..Facts::plain(ready.route.id, ready.route.data) }
}

fn asked(policy: &Policy, ready: &Ready<'_>, question: &Question) -> Facts {
    let risky = |tool: &String| !ready.route.tools.contains(tool) || policy.side_effects(tool).risky();
    Facts {
        stream: !question.whole,
        intent: question.intent.clone(),
        data: match question.personal {
            Some(true) => DataClass::Personal,
            Some(false) => DataClass::None,
            None => ready.route.data,
        },
        tools: !question.tools.is_empty(),
        risky_tools: question.tools.iter().any(risky),
        vision: question.vision,
        // An image cannot be masked.
        unmaskable: question.vision.then_some(crate::router::Unmaskable::Part),
        strict_schema: question.strict_schema,
        body_bytes: question.tokens.map_or(1_000, |tokens| tokens.saturating_mul(3)),
        task: question.task.clone().unwrap_or_else(|| "customer_reply".into()),
        expired: question.expired,
        ..traffic(ready)
    }
}

fn judge(n: usize, question: &Question, over: Option<&(DecisionRecord, Option<Reply>)>) -> Answer {
    let Some((record, reply)) = over else {
        return Answer { question: n, held: false, got: "nothing: it never ended".into(), reasons: Vec::new() };
    };
    let got = match (record.outcome, reply) {
        (_, Some(Reply::Unavailable { .. })) => "unavailable".to_owned(),
        (_, Some(Reply::TooLong)) => "too_long".to_owned(),
        (Outcome::Handoff, _) => "handoff".to_owned(),
        (_, _) => record.target.clone().unwrap_or_else(|| "refused".to_owned()),
    };
    let failed = record.attempts.iter().filter(|a| Some(&a.target) != record.target.as_ref());
    let mut reasons: Vec<String> = record.skipped.iter().map(|s| format!("{}: {}", s.target, s.reason)).collect();
    reasons.extend(failed.map(|a| format!("{}: {}", a.target, a.reason)));
    reasons.extend(record.handoff.map(|cause| cause.name().to_owned()));
    if let (Some(target), Some(last)) = (&record.target, record.attempts.last()) {
        reasons.push(format!("{target}: {}", last.why));
    }
    let because = question.because.as_ref().is_none_or(|wanted| {
        let alone = |reason: &String| reason.split_once(": ").map_or(reason.as_str(), |(_, r)| r) == wanted;
        reasons.iter().any(|reason| reason == wanted || alone(reason))
    });
    Answer { question: n, held: got == question.expect && because, got, reasons }
}
