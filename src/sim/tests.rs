//! Runs whose figures can be worked out by hand.

use std::sync::Arc;
use std::time::Duration;

use super::outages::{Effect, Kind, Listed, Look, Outage, Source};
use super::run::{Core, Ran, run, run_on};
use super::scenario::{self, Options};
use super::setup::{Draws, Setup};
use crate::policy::{Policy, TargetId};
use crate::router::{Engine, Input, Machine, Output};
use crate::units::Ts;

fn dual() -> Arc<Policy> {
    let text = crate::assets::get("policies/dual-channel.yaml").unwrap().text;
    Arc::new(crate::policy::load("dual-channel", text.as_bytes()).0.unwrap())
}

fn outage(from_s: u64, to_s: u64, look: Look) -> Outage {
    Outage { from: Ts::from_s(from_s), to: Ts::from_s(to_s), effect: Effect::Down(look) }
}

fn listed(target: usize, outages: Vec<Outage>) -> Source {
    Source { targets: vec![target], kind: Kind::Listed(Listed::new(outages)) }
}

fn with(sources: Vec<Source>, span_s: u64) -> Setup {
    let options = Options { span: Duration::from_secs(span_s), ..Options::default() };
    scenario::with_sources(&dual(), sources, &options)
}

fn ran(setup: &Setup) -> Ran {
    let ran = run(setup, &mut |_| true);
    assert_eq!(ran.violations, []);
    ran
}

/// The shipped core, and a log of what it said and when.
struct Spy {
    engine: Engine,
    now: Ts,
    log: Vec<(Ts, Output)>,
}

impl Spy {
    fn on(setup: &Setup) -> Spy {
        let mut rng = setup.rng(Draws::Core);
        Spy { engine: Engine::new(Arc::clone(&setup.policy), rng.next_u64()), now: Ts::ZERO, log: Vec::new() }
    }
}

impl Machine for &mut Spy {
    fn handle(&mut self, now: Ts, input: Input) {
        self.now = now;
        self.engine.handle(now, input);
    }

    fn poll_output(&mut self) -> Option<Output> {
        let output = self.engine.poll_output()?;
        self.log.push((self.now, output.clone()));
        Some(output)
    }

    fn poll_timeout(&self) -> Option<Ts> {
        self.engine.poll_timeout()
    }
}

impl Core for &mut Spy {
    fn idle(&self) -> bool {
        self.engine.is_idle()
    }

    fn in_flight(&self, now: Ts) -> usize {
        self.engine.in_flight(now)
    }
}

#[test]
fn the_weights_are_the_time_simulated() {
    let ran = ran(&scenario::channels(&dual(), &Options { span: Duration::from_secs(864_000), ..Options::default() }));
    let f = &ran.figures;
    assert!((f.weight_s - 864_000.0).abs() <= 0.001, "{}", f.weight_s);
    assert_eq!(f.span_s, 864_000.0);
    let kinds = f.useful_s + f.handoff_s + f.refused_s + f.broken_s;
    assert!((kinds - f.weight_s).abs() < 1e-6, "every request has one end: {kinds} of {}", f.weight_s);
}

#[test]
fn the_same_seed_is_the_same_run() {
    let setup =
        |seed| scenario::channels(&dual(), &Options { seed, span: Duration::from_secs(200_000), ..Options::default() });
    let (a, b) = (ran(&setup(5)), ran(&setup(5)));
    assert_eq!((a.trace_hash, a.steps), (b.trace_hash, b.steps));
    assert_eq!(a.figures, b.figures);
    let unchecked = run(&Setup { checks: false, ..setup(5) }, &mut |_| true);
    assert_eq!(unchecked.trace_hash, a.trace_hash, "the checkers only watch");
    assert_ne!(ran(&setup(6)).trace_hash, a.trace_hash);
}

#[test]
fn shares_are_those_of_the_outages_by_hand() {
    // A day of 86,400 s: a is down for 8,640 s (10 %), b for 4,320 s, both for 864 s (1 %).
    let sources = vec![
        listed(0, vec![outage(10_000, 18_640, Look::Status(503))]),
        listed(1, vec![outage(17_776, 22_096, Look::Refused)]),
    ];
    let ran = ran(&with(sources, 86_400));
    let f = &ran.figures;
    assert!((f.ceiling().unwrap() - 0.99).abs() < 1e-9);
    assert!((f.single_up().unwrap() - 0.90).abs() < 1e-9);
    // Alone it loses the streams that an outage cuts as well: about three seconds of them.
    let single = f.single().unwrap();
    assert!((0.8995..=0.9).contains(&single), "{single}");
    // The policy loses what was cut on a at 10,000 s and on b at 17,776 s, and the seconds until it has seen a or b return.
    let loss = f.ceiling().unwrap() - f.availability().unwrap();
    assert!((0.0..30.0 / 86_400.0).contains(&loss), "{} s", loss * 86_400.0);
    assert_eq!((f.outages(), f.recovery.recovered, f.recovery.no_stand_in), (2, 1, 1));
    assert_eq!(f.recovery.dark, 1);
}

/// A 60 s outage at 5 requests a second: how many dials the dead target gets, and when traffic is back.
#[test]
fn a_dead_target_is_left_alone_and_gets_its_traffic_back() {
    let mut setup = with(vec![listed(0, vec![outage(600, 660, Look::Silence)])], 900);
    setup.load.thin = Duration::ZERO;
    let mut spy = Spy::on(&setup);
    let ran = run_on(&setup, &mut spy, &mut |_| true);
    assert_eq!(ran.violations, []);
    let dials = |from: u64, to: u64| {
        let inside = |at: &Ts| *at >= Ts::from_s(from) && *at < Ts::from_s(to);
        let dial = |o: &Output| matches!(o, Output::Dial { target: TargetId(0), .. });
        spy.log.iter().filter(|(at, o)| inside(at) && dial(o)).count()
    };
    let probes = spy.log.iter().filter(|(_, o)| matches!(o, Output::Probe { .. })).count();
    // Threshold 3, and those started within one first-token limit of 2 s at 5 requests a second; the connect limit of 1 s and
    // the answer limit of 2.5 s bound the others.
    let dead = dials(600, 660);
    assert!((3..=3 + 10).contains(&dead), "{dead} dials reached the dead target");
    assert_eq!(ran.figures.wasted as usize, dead, "and that is what is reported");
    // Cooldowns 5, 10, 20, 40 s, each shortened by up to a fifth, with a silent probe of 2 s after each: the one that runs at
    // 660 s is of 40 s or less. Then two probes of about 3 s.
    let back =
        spy.log.iter().find(|(at, o)| *at >= Ts::from_s(660) && matches!(o, Output::Dial { target: TargetId(0), .. }));
    let back = back.unwrap().0.since(Ts::from_s(660));
    assert!(back <= Duration::from_secs(40 + 2 * 5 + 1), "{back:?}");
    assert!((5..=8).contains(&probes), "{probes} probes");
    // Recovery: a limit of 2 s, then the other channel's connection and first token.
    let recovery = ran.figures.recovery.times.percentile(1.0).unwrap();
    assert!((2_000.0..4_000.0).contains(&recovery), "{recovery} ms");
}

#[test]
fn flapping_switches_no_more_often_than_cooldowns_allow() {
    let flaps = (0..200).map(|n| outage(600 + n * 6, 603 + n * 6, Look::Refused)).collect();
    let mut setup = with(vec![listed(0, flaps)], 2_400);
    setup.load.thin = Duration::ZERO;
    let ran = ran(&setup);
    // Each trip costs a cooldown of at least 4 s and two probes of about 3 s; out and back are two switches. Doubling goes on
    // while it flaps, so that it soon is far less.
    assert!(ran.figures.switches_per_minute_max <= 2 * 60 / 7 + 2, "{}", ran.figures.switches_per_minute_max);
    assert!(ran.figures.availability().unwrap() > 0.985, "{:?}", ran.figures.availability());
}

#[test]
fn thin_arrivals_tell_what_dense_ones_tell() {
    let sources = || {
        vec![listed(0, vec![outage(3_000, 4_000, Look::Silence)]), listed(1, vec![outage(3_500, 4_200, Look::Reset)])]
    };
    let thin = ran(&with(sources(), 10_000));
    let mut setup = with(sources(), 10_000);
    setup.load.thin = Duration::ZERO;
    let dense = ran(&setup);
    assert!(thin.figures.requests * 8 < dense.figures.requests, "{}", thin.figures.requests);
    let (a, b) = (thin.figures.availability().unwrap(), dense.figures.availability().unwrap());
    // 500 s of 10,000 both are down; the rest is a few seconds around edges.
    assert!((a - b).abs() < 0.001, "{a} {b}");
    assert!((b - 0.95).abs() < 0.002, "{b}");
}

/// Seeds that once looked like broken promises, each for a reason of its own in the checkers.
mod seeds {
    use super::ran;
    use crate::sim::swarm;

    #[track_caller]
    fn holds(seed: u64) {
        let (text, setup) = swarm::draw(seed);
        let ran = ran(&setup.unwrap_or_else(|| panic!("refused:\n{text}")));
        assert!(ran.figures.requests > 0);
    }

    #[test]
    fn a_quota_that_bites_after_healing_is_no_broken_promise() {
        holds(11);
    }

    #[test]
    fn the_first_choice_lies_in_a_tier_that_is_open_to_the_request() {
        holds(37);
    }

    #[test]
    fn without_failover_the_first_target_that_data_and_intent_allow_is_the_one() {
        holds(1_696);
        holds(1_865);
    }

    #[test]
    fn a_tier_that_the_deadline_has_no_room_for_is_no_first_choice() {
        holds(1_390);
    }

    #[test]
    fn a_rate_limit_does_not_reset_the_count_of_faults() {
        holds(59);
    }

    #[test]
    fn an_answer_begun_before_the_trip_does_not_reset_it_either() {
        holds(121);
        holds(229);
    }
}

/// Whoever asked to stop is heard after so many steps that they take no second, however many targets there are: 2^17 / 2000 = 65
/// steps between two questions, and 2^13 of a world of two.
#[test]
fn a_large_world_asks_more_often_whether_to_go_on() {
    let large = |targets: usize| {
        let mut text = "version: v\nserial: 1\nexpires: 2100-01-01T00:00:00Z\ntargets:\n".to_owned();
        for n in 0..targets {
            text += &format!(
                "  t{n}: {{ base_url: \"https://t{n}.example/v1\", model: m, residency: [eu], credentials: env:K, \
                 domains: {{ region: r{n} }} }}\n"
            );
        }
        let names: Vec<String> = (0..targets).map(|n| format!("t{n}")).collect();
        text += &format!(
            "pools:\n  p: {{ targets: [{}] }}\nroutes:\n  - {{ route: r, data: none, deadline_ms: 8000, attempts: [{{ pool: p, \
             first_token_timeout_ms: 2000, answer_timeout_ms: 4000 }}] }}\n",
            names.join(", ")
        );
        let (policy, found) = crate::policy::load("p", text.as_bytes());
        let policy = policy.unwrap_or_else(|| panic!("{found:#?}"));
        let options = Options { span: Duration::from_secs(86_400 * 30), ..Options::default() };
        scenario::channels(&Arc::new(policy), &options)
    };
    for (targets, between) in [(2_000, 65), (2, 8_192)] {
        let mut asked = 0;
        let ran = run(&large(targets), &mut |_| {
            asked += 1;
            asked < 3
        });
        assert!(ran.stopped && asked == 3);
        // At the beginning, then twice more; a turn is one step at most.
        assert!(ran.steps <= 2 * between + 1, "{targets}: {} steps", ran.steps);
    }
}
