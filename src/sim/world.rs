//! How a provider behaves when it is dialled: latency, errors, quota, load, cold start, and the outages over all that.

use std::time::Duration;

use super::outages::{Effect, Look, Outage, Source};
use super::setup::{Draws, Setup};
use crate::router::{Failure, StatusFailure};
use crate::units::{Rng, Ts};

/// A time that is drawn.
#[derive(Clone, Debug, PartialEq)]
pub enum Latency {
    /// Always the same.
    Fixed(Duration),
    /// Log-normal: this median, and the standard deviation of the logarithm.
    LogNormal {
        /// Median.
        median: Duration,
        /// Of the natural logarithm. 0.35 puts the 99th percentile at 2.26 times the median.
        sigma: f64,
    },
    /// One of these, by share. What remains to 1 goes to the last.
    Mix(Vec<(f64, Latency)>),
}

impl Latency {
    /// Log-normal around a median in milliseconds.
    #[must_use]
    pub const fn around_ms(median_ms: u64, sigma: f64) -> Latency {
        Latency::LogNormal { median: Duration::from_millis(median_ms), sigma }
    }

    /// Draws one.
    pub fn draw(&self, rng: &mut Rng) -> Duration {
        match self {
            Latency::Fixed(d) => *d,
            Latency::LogNormal { median, sigma } => median.mul_f64((sigma * normal(rng)).exp()),
            Latency::Mix(parts) => {
                let mut place = rng.unit();
                for (share, latency) in parts {
                    if place < *share {
                        return latency.draw(rng);
                    }
                    place -= share;
                }
                parts.last().map_or(Duration::ZERO, |(_, latency)| latency.draw(rng))
            }
        }
    }
}

/// Standard normal by Box and Muller.
fn normal(rng: &mut Rng) -> f64 {
    let radius = (-2.0 * (1.0 - rng.unit()).ln()).sqrt();
    radius * (std::f64::consts::TAU * rng.unit()).cos()
}

/// The model of one target.
#[derive(Clone, Debug, PartialEq)]
pub struct Provider {
    /// Dial to a standing connection.
    pub connect: Latency,
    /// Standing connection to the first token.
    pub first_token: Latency,
    /// First token to the end of a streamed answer.
    pub generation: Latency,
    /// First token to the end of an answer that is not streamed: such answers are short.
    pub generation_whole: Latency,
    /// Share of requests that fail although it is up.
    pub errors: f64,
    /// Above so many at once everything takes longer, in proportion.
    pub slots: Option<u32>,
    /// Above so many in a minute it answers 429.
    pub requests_per_minute: Option<u64>,
    /// After an outage the first token takes this much longer, for so long.
    pub cold_start: Option<(Duration, Duration)>,
}

impl Default for Provider {
    /// A chat model: connected in 40 ms, first token after 600 ms (99th percentile 1.36 s), then 2 s of text, or 0.8 s for an
    /// answer that is not streamed. Assumed figures, of the size that hosted chat models show.
    fn default() -> Provider {
        Provider {
            connect: Latency::around_ms(40, 0.3),
            first_token: Latency::around_ms(600, 0.35),
            generation: Latency::around_ms(2_000, 0.3),
            generation_whole: Latency::around_ms(800, 0.25),
            errors: 0.0,
            slots: None,
            requests_per_minute: None,
            cold_start: None,
        }
    }
}

impl Provider {
    /// Quick, sound, without limits: what is left to go wrong is the policy.
    fn healed() -> Provider {
        let ms = |ms| Latency::Fixed(Duration::from_millis(ms));
        Provider {
            connect: ms(10),
            first_token: ms(50),
            generation: ms(200),
            generation_whole: ms(100),
            errors: 0.0,
            slots: None,
            requests_per_minute: None,
            cold_start: None,
        }
    }
}

/// What will become of a dial, unless an outage cuts it short. Times are points.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Fate {
    pub(super) connected: Option<Ts>,
    pub(super) first_token: Option<Ts>,
    pub(super) end: End,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum End {
    /// A whole answer.
    Answer(Ts),
    /// A failure.
    Fails(Ts, Failure),
    /// Nothing more comes.
    Never,
}

impl Fate {
    fn nothing(connected: Option<Ts>) -> Fate {
        Fate { connected, first_token: None, end: End::Never }
    }

    fn fails(connected: Option<Ts>, at: Ts, failure: Failure) -> Fate {
        Fate { connected, first_token: None, end: End::Fails(at, failure) }
    }
}

/// What holds at one target now.
#[derive(Clone, Copy, Debug)]
struct Condition {
    down: Option<Look>,
    slow: f64,
    errors: f64,
    limited: Option<(f64, u64)>,
    up_since: Ts,
    /// Begin of the next outage that takes it down, as far as it is known.
    next_down: Ts,
    minute: u64,
    in_minute: u64,
}

struct Running {
    source: Source,
    rng: Rng,
    outage: Option<Outage>,
    active: bool,
}

/// All providers at one moment.
pub(super) struct World {
    providers: Vec<Provider>,
    running: Vec<Running>,
    conditions: Vec<Condition>,
    next: Option<(Ts, usize)>,
    rng: Rng,
    alone: Rng,
}

/// What changed when the time of an edge had come.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Flip {
    pub(super) down: Vec<(usize, Look)>,
    pub(super) up: Vec<usize>,
}

impl World {
    pub(super) fn new(setup: &Setup) -> World {
        let running = setup.sources.iter().enumerate().map(|(n, source)| {
            let (mut source, mut rng) = (source.clone(), setup.rng(Draws::Source(n)));
            let outage = source.kind.next(Ts::ZERO, &mut rng);
            Running { source, rng, outage, active: false }
        });
        let fresh = Condition {
            down: None,
            slow: 1.0,
            errors: 0.0,
            limited: None,
            up_since: Ts::ZERO,
            next_down: Ts::FAR,
            minute: 0,
            in_minute: 0,
        };
        let mut world = World {
            running: running.collect(),
            conditions: vec![fresh; setup.providers.len()],
            providers: setup.providers.clone(),
            next: None,
            rng: setup.rng(Draws::World),
            alone: setup.rng(Draws::Alone),
        };
        world.look_ahead();
        world
    }

    /// When the next outage begins or ends.
    pub(super) fn next_edge(&self) -> Ts {
        self.next.map_or(Ts::FAR, |(at, _)| at)
    }

    fn look_ahead(&mut self) {
        self.next = None;
        for condition in &mut self.conditions {
            condition.next_down = Ts::FAR;
        }
        for (n, running) in self.running.iter().enumerate() {
            let Some(outage) = &running.outage else { continue };
            let at = if running.active { outage.to } else { outage.from };
            if self.next.is_none_or(|(next, _)| at < next) {
                self.next = Some((at, n));
            }
            if !running.active && outage.effect.is_down() {
                for target in &running.source.targets {
                    let condition = &mut self.conditions[*target];
                    condition.next_down = condition.next_down.min(outage.from);
                }
            }
        }
    }

    /// The time of the next edge has come.
    pub(super) fn flip(&mut self) -> Flip {
        let Some((now, n)) = self.next else { return Flip::default() };
        let running = &mut self.running[n];
        running.active = !running.active;
        if !running.active {
            running.outage = running.source.kind.next(now, &mut running.rng);
        }
        let targets = running.source.targets.clone();
        let mut flip = Flip::default();
        for target in targets {
            self.recompute(target, now, &mut flip);
        }
        self.look_ahead();
        flip
    }

    fn recompute(&mut self, target: usize, now: Ts, flip: &mut Flip) {
        let condition = &mut self.conditions[target];
        let before = condition.down;
        (condition.down, condition.slow, condition.errors, condition.limited) = (None, 1.0, 0.0, None);
        for running in self.running.iter().filter(|r| r.active && r.source.targets.contains(&target)) {
            match running.outage.map(|o| o.effect) {
                Some(Effect::Down(look)) => condition.down = Some(look),
                Some(Effect::Slow(factor)) => condition.slow = condition.slow.max(factor),
                Some(Effect::Errors(share)) => condition.errors = condition.errors.max(share),
                Some(Effect::RateLimit { share, retry_after_s }) => condition.limited = Some((share, retry_after_s)),
                None => {}
            }
        }
        match (before, condition.down) {
            (None, Some(look)) => flip.down.push((target, look)),
            (Some(_), None) => {
                condition.up_since = now;
                flip.up.push(target);
            }
            _ => {}
        }
    }

    /// Every outage ends now, and none begins any more; every provider is quick, sound and without limits.
    pub(super) fn heal(&mut self, now: Ts) -> Flip {
        self.running.clear();
        self.providers.fill(Provider::healed());
        let mut flip = Flip::default();
        for target in 0..self.conditions.len() {
            self.recompute(target, now, &mut flip);
        }
        self.look_ahead();
        flip
    }

    /// It answers nobody.
    pub(super) fn is_down(&self, target: usize) -> bool {
        self.conditions[target].down.is_some()
    }

    /// What a dial will come to. `open`: how many this target is serving already.
    pub(super) fn dial(&mut self, target: usize, now: Ts, stream: bool, open: u32) -> Fate {
        let (provider, condition) = (&self.providers[target], &mut self.conditions[target]);
        let rng = &mut self.rng;
        let connected = now + provider.connect.draw(rng);
        let soon = connected + Duration::from_millis(20);
        match condition.down {
            Some(Look::Refused) => return Fate::fails(None, connected, Failure::Refused),
            Some(Look::NoConnect) => return Fate::nothing(None),
            Some(Look::Silence) => return Fate::nothing(Some(connected)),
            Some(Look::Status(status)) => return Fate::fails(Some(connected), soon, bare(status, None)),
            Some(Look::Reset) => return Fate::fails(Some(connected), soon, Failure::Reset),
            None => {}
        }
        if let Some(most) = provider.requests_per_minute {
            let minute = now.0 / 60_000_000_000;
            if condition.minute != minute {
                (condition.minute, condition.in_minute) = (minute, 0);
            }
            condition.in_minute += 1;
            if condition.in_minute > most {
                let rest = Ts::from_s((minute + 1) * 60).since(now);
                return Fate::fails(Some(connected), soon, bare(429, Some(rest)));
            }
        }
        if let Some((share, retry_after_s)) = condition.limited
            && rng.unit() < share
        {
            let wait = (retry_after_s > 0).then(|| Duration::from_secs(retry_after_s));
            return Fate::fails(Some(connected), soon, bare(429, wait));
        }
        let errors = provider.errors.max(condition.errors);
        if errors > 0.0 && rng.unit() < errors {
            return Fate::fails(Some(connected), soon, bare(500, None));
        }
        let crowd = provider.slots.map_or(1.0, |slots| f64::from(open + 1) / f64::from(slots.max(1))).max(1.0);
        let slower = condition.slow * crowd;
        let mut first_token = provider.first_token.draw(rng).mul_f64(slower);
        if let Some((extra, lasts)) = provider.cold_start
            && condition.up_since > Ts::ZERO
            && now.since(condition.up_since) < lasts
        {
            first_token += extra;
        }
        let first_token = connected + first_token;
        let generation = if stream { &provider.generation } else { &provider.generation_whole };
        let end = first_token + generation.draw(rng).mul_f64(slower);
        Fate { connected: Some(connected), first_token: Some(first_token), end: End::Answer(end) }
    }

    /// Draws what every channel alone would need for one more request: to the first token, and to its end, as factors of
    /// chance that all channels share, so that they are compared on the same request.
    pub(super) fn alone(&mut self) -> Alone {
        Alone { luck: self.alone.clone(), _next: self.alone.next_u64() }
    }

    /// True if a client that sent this request to this channel alone, with no router in between, would have got a whole
    /// answer with its first token (streamed) or its end within the deadline.
    pub(super) fn would_answer(&self, alone: &Alone, target: usize, now: Ts, stream: bool, deadline: Duration) -> bool {
        let (provider, condition) = (&self.providers[target], &self.conditions[target]);
        let mut luck = alone.luck.clone();
        if condition.down.is_some() || luck.unit() < provider.errors.max(condition.errors) {
            return false;
        }
        if condition.limited.is_some_and(|(share, _)| luck.unit() < share) {
            return false;
        }
        let connect = provider.connect.draw(&mut luck);
        let first_token = connect + provider.first_token.draw(&mut luck).mul_f64(condition.slow);
        let generation = if stream { &provider.generation } else { &provider.generation_whole };
        let end = first_token + generation.draw(&mut luck).mul_f64(condition.slow);
        let useful = if stream { first_token } else { end };
        useful <= deadline && now + end < condition.next_down
    }
}

/// The chance of one request that is imagined at every channel alone.
pub(super) struct Alone {
    luck: Rng,
    _next: u64,
}

fn bare(status: u16, retry_after: Option<Duration>) -> Failure {
    Failure::Status(StatusFailure { status, retry_after, ..StatusFailure::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_normal_has_the_median_and_the_tail_it_says() {
        let (latency, mut rng) = (Latency::around_ms(600, 0.35), Rng::new(9));
        let mut drawn: Vec<f64> = (0..40_000).map(|_| latency.draw(&mut rng).as_secs_f64()).collect();
        drawn.sort_by(f64::total_cmp);
        assert!((drawn[20_000] - 0.6).abs() < 0.01, "{}", drawn[20_000]);
        // The 99th percentile of a standard normal is 2.326: 0.6 x exp(0.35 x 2.326) = 1.354.
        assert!((drawn[39_600] - 1.354).abs() < 0.04, "{}", drawn[39_600]);
    }

    #[test]
    fn a_mix_goes_by_its_shares() {
        let fixed = |ms| Latency::Fixed(Duration::from_millis(ms));
        let (mix, mut rng) = (Latency::Mix(vec![(0.25, fixed(1)), (0.75, fixed(2))]), Rng::new(1));
        let ones = (0..10_000).filter(|_| mix.draw(&mut rng) == Duration::from_millis(1)).count();
        assert!((2_350..2_650).contains(&ones), "{ones}");
    }
}
