//! What the findings about time advise, followed to the letter: no finding is left, and a core that is played the worst case
//! that they speak of dials a stand-in in time. Alarms ring late here, as they do in life.

use std::sync::Arc;
use std::time::Duration;

use llmfo::diag::Diagnostic;
use llmfo::lint::{World, check};
use llmfo::policy::{Policy, Route, load_with_places};
use llmfo::router::{AttemptId, Engine, Facts, Failure, Input, Machine, Output, RequestId, Sign};
use llmfo::units::Ts;

/// An alarm rings so late, or a dial is made so late.
const LATE: Duration = Duration::from_millis(20);

/// Shipped policies, and two without their own limits.
fn policies() -> Vec<(&'static str, String)> {
    let support = include_str!("../../policies/support.yaml").to_owned();
    let dual = include_str!("../../policies/dual-channel.yaml").to_owned();
    let slow = dual.replace("idle_timeout_ms: 3500", "idle_timeout_ms: 6000");
    let slow = slow.replace("answer_timeout_ms: 2500", "answer_timeout_ms: 6500");
    let lab = include_str!("../../policies/lab.yaml").to_owned();
    vec![("support", support), ("dual-channel", dual), ("slow", slow), ("lab", lab)]
}

fn of_time(text: &str) -> Vec<Diagnostic> {
    let found = check(&load_with_places("policy.yaml", text.as_bytes()), &World::default());
    found.into_iter().filter(|d| ["LF209", "LF210"].contains(&d.rule.code)).collect()
}

/// Writes what one finding advises.
fn follow(text: &str, found: &Diagnostic) -> String {
    let advice = found.help.as_deref().unwrap().split('`').nth(1).unwrap().to_owned();
    let (key, _) = advice.split_once(": ").unwrap();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let line = &mut lines[found.place.line - 1];
    *line = match line.find(&format!("{key}: ")) {
        Some(at) => {
            let rest = &line[at + key.len() + 2..];
            let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            format!("{}{advice}{}", &line[..at], &rest[end..])
        }
        None if line.contains('{') => line.replacen(", ", &format!(", {advice}, "), 1),
        None => format!("{line}\n        {advice}"),
    };
    lines.join("\n") + "\n"
}

fn facts(route: &Route, stream: bool) -> Facts {
    Facts {
        route: route.id,
        stream,
        intent: None,
        data: route.data,
        tools: false,
        risky_tools: false,
        vision: false,
        strict_schema: false,
        strict_decoding: false,
        prompt_sha256: None,
        body_bytes: 300,
        max_output_tokens: None,
        task: "customer_reply".into(),
        expired: false,
        open_conversation: false,
        unmaskable: None,
        conversation: None,
    }
}

struct Play {
    core: Engine,
    dials: Vec<(AttemptId, Duration)>,
}

impl Play {
    fn input(&mut self, now: Ts, input: Input) {
        self.core.handle(now, input);
        while let Some(output) = self.core.poll_output() {
            if let Output::Dial { attempt, limits, .. } = output {
                self.dials.push((attempt, limits.answer));
            }
        }
    }

    /// Alarms until this time, each as late as they are.
    fn until(&mut self, end: Ts) {
        while let Some(at) = self.core.poll_timeout().filter(|at| *at + LATE <= end) {
            self.input(at + LATE, Input::Tick);
        }
    }
}

/// What the second dial of a request got, where the first target went silent as late as it could.
fn stand_in(policy: &Arc<Policy>, route: &Route, stream: bool) -> Option<Duration> {
    let mut play = Play { core: Engine::new(Arc::clone(policy), 1), dials: Vec::new() };
    let begin = Ts::from_ms(1_000);
    play.input(begin, Input::Arrive { request: RequestId(1), facts: facts(route, stream) });
    let (first, limit) = *play.dials.first().expect("somebody is dialled");
    play.input(begin, Input::Connected { attempt: first });
    if stream {
        let sign = begin + limit;
        play.input(sign, Input::FirstToken { attempt: first, sign: Sign::ToolCall });
        let noticed = sign + route.idle_timeout + LATE;
        play.input(noticed, Input::Broke { attempt: first, failure: Failure::IdleTimeout, reused: false });
    } else {
        play.until(begin + limit + LATE);
    }
    play.dials.get(1).map(|(_, limit)| *limit)
}

#[test]
fn who_follows_the_advice_to_the_letter_has_a_stand_in_in_time() {
    for (name, mut text) in policies() {
        let first = of_time(&text);
        assert_eq!(first.is_empty(), ["dual-channel", "lab"].contains(&name), "{name}: {first:#?}");
        // From the last line to the first: what is written does not move the others.
        let mut order: Vec<&Diagnostic> = first.iter().collect();
        order.sort_by_key(|d| std::cmp::Reverse(d.place.line));
        for found in order {
            text = follow(&text, found);
        }
        assert!(of_time(&text).is_empty(), "{name}: one advice is enough: {:#?}", of_time(&text));
        let policy = Arc::new(load_with_places("policy.yaml", text.as_bytes()).policy.expect("it loads"));
        for route in &policy.routes {
            for stream in [true, false] {
                let got = stand_in(&policy, route, stream);
                let tier = &route.tiers[0];
                let own = if stream { tier.first_token_timeout } else { tier.answer_timeout.unwrap() };
                assert!(got.is_some_and(|g| g >= own / 2), "{name}, {}, stream {stream}: {got:?}", route.name);
            }
        }
    }
}
