//! Limits of a policy that are shorter than the models of the simulation take: what they cut off is the model's own figure and no
//! outage, so that an availability beside it says nothing about the policy's providers.

use std::time::Duration;

use super::world::Provider;
use crate::policy::Policy;
use crate::units::{Rng, human, printable};

/// Draws per model: a share of one percent is known to a sixth of itself.
const DRAWS: usize = 4_000;
/// A smaller share that is cut off is what limits are for.
const TELL_FROM: f64 = 0.01;
/// Limits that are named; the others are counted.
const NAMED: usize = 3;

/// Times of one model from the dial on, sorted.
struct Times(Vec<Duration>);

impl Times {
    fn of(draw: impl FnMut() -> Duration) -> Times {
        let mut all: Vec<Duration> = std::iter::repeat_with(draw).take(DRAWS).collect();
        all.sort_unstable();
        Times(all)
    }

    fn later(&self, limit: Duration) -> f64 {
        let in_time = self.0.partition_point(|t| *t <= limit);
        (self.0.len() - in_time) as f64 / self.0.len().max(1) as f64
    }

    fn at(&self, share: f64) -> Duration {
        let n = (self.0.len() as f64 * share) as usize;
        self.0.get(n).or(self.0.last()).copied().unwrap_or_default()
    }
}

/// First tokens and whole answers that are not streamed, of one model that is up and alone with its request.
fn times(provider: &Provider) -> (Times, Times) {
    let mut rng = Rng::new(1);
    let first = Times::of(|| provider.connect.draw(&mut rng) + provider.first_token.draw(&mut rng));
    let mut rng = Rng::new(2);
    let whole = Times::of(|| {
        let first = provider.connect.draw(&mut rng) + provider.first_token.draw(&mut rng);
        first + provider.generation_whole.draw(&mut rng)
    });
    (first, whole)
}

/// What a reader must know of them; `None` where every limit is long enough. `providers`: one per target of the policy.
#[must_use]
pub fn note(policy: &Policy, providers: &[Provider]) -> Option<String> {
    // Models that differ in what is drawn here: one as a rule, whatever the number of targets.
    let mut models: Vec<(&Provider, (Times, Times))> = Vec::new();
    let (mut named, mut more) = (Vec::new(), 0usize);
    for route in &policy.routes {
        for (n, tier) in route.tiers.iter().enumerate() {
            let mut worst: Option<(f64, String)> = None;
            for id in &tier.targets {
                let Some(provider) = providers.get(usize::from(id.0)) else { continue };
                let same = |p: &Provider| {
                    (&p.connect, &p.first_token, &p.generation_whole)
                        == (&provider.connect, &provider.first_token, &provider.generation_whole)
                };
                let known = models.iter().position(|(p, _)| same(p)).unwrap_or_else(|| {
                    models.push((provider, times(provider)));
                    models.len() - 1
                });
                let Some((_, (first, whole))) = models.get(known) else { continue };
                let limits = [
                    ("first_token_timeout_ms", Some(tier.first_token_timeout), first, "first tokens"),
                    ("answer_timeout_ms", tier.answer_timeout, whole, "answers that are not streamed"),
                ];
                for (key, limit, times, what) in limits {
                    let Some(limit) = limit else { continue };
                    let share = times.later(limit);
                    if share < TELL_FROM || worst.as_ref().is_some_and(|(s, _)| share <= *s) {
                        continue;
                    }
                    worst = Some((
                        share,
                        format!(
                            "route {}, tier {}, `{key}` {}: {:.0} % of the {what} of {}'s model come later (half of them after {}, one in a hundred after {})",
                            printable(&route.name, 100),
                            n + 1,
                            limit.as_millis(),
                            share * 100.0,
                            printable(&policy.target(*id).name, 100),
                            human(times.at(0.5)),
                            human(times.at(0.99)),
                        ),
                    ));
                }
            }
            match worst {
                Some((_, text)) if named.len() < NAMED => named.push(text),
                Some(_) => more += 1,
                None => {}
            }
        }
    }
    (!named.is_empty()).then(|| {
        let more = if more > 0 { format!("; and {more} tiers more") } else { String::new() };
        format!(
            "limits below what the models of this simulation take while all is well: {}{more}. Such a dial is given up and counts against its target; the models are assumptions (docs/simulate.md), so measure your own first tokens before you read these figures as the policy's",
            named.join("; ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::scenario::providers_of;

    fn policy(first: u64, answer: u64) -> Policy {
        let text = crate::spec::examples::POLICY
            .replacen("first_token_timeout_ms: 2000", &format!("first_token_timeout_ms: {first}"), 1)
            .replacen("answer_timeout_ms: 3500", &format!("answer_timeout_ms: {answer}"), 1);
        crate::policy::load("p", text.as_bytes()).0.unwrap()
    }

    /// Connected after 40 ms, a first token 600 ms later, half of them: a limit of 640 ms cuts about half, and of 300 ms all but
    /// those more than two deviations quick (ln(260 / 600) / 0.35 = -2.4: 0.8 %). 0.8 s more is a whole answer.
    #[test]
    fn a_limit_below_the_models_own_figure_is_named_with_both() {
        let of = |first, answer| note(&policy(first, answer), &providers_of(&policy(first, answer)));
        assert_eq!(of(2_000, 3_500), None);
        assert_eq!(of(1_500, 3_500), None, "0.6 % of them are later");
        let half = of(640, 3_500).unwrap();
        let share: f64 = half.split(": ").nth(2).unwrap().split(' ').next().unwrap().parse().unwrap();
        assert!((46.0..=54.0).contains(&share), "{half}");
        let short = of(300, 3_500).unwrap();
        assert!(
            short.contains(
                "route support-chat, tier 1, `first_token_timeout_ms` 300: 99 % of the first tokens of local-"
            ),
            "{short}"
        );
        assert!(short.contains("half of them after 64") && short.contains("one in a hundred after 1.4 s"), "{short}");
        assert!(!short.contains("tier 2"), "{short}");
        let answer = of(2_000, 1_000).unwrap();
        assert!(answer.contains("`answer_timeout_ms` 1000: 9"), "{answer}");
    }
}
