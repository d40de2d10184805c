//! `[P]` What customers will do: an open-loop schedule. Arrivals do not wait for answers, so a slow service does not
//! make its own load lighter.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

use std::collections::VecDeque;

use super::marker::{Kind, Marker};
use crate::units::Rng;

/// What the schedule is drawn from.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanSettings {
    /// Same seed, same schedule.
    pub seed: u64,
    /// Put before conversation numbers. A lab that has seen a run must not see its conversations again.
    pub run: String,
    /// Turns begun per second, on average.
    pub turns_per_s: f64,
    /// Kinds of turns, dealt in equal shares. `recall` never opens a conversation, `human` is always its last turn.
    pub kinds: Vec<Kind>,
    /// Share of streamed requests, 0..1. Dealt evenly within each kind.
    pub stream_share: f64,
    /// Shortest time between an answer and the next message.
    pub think_min_ms: f64,
    /// Longest.
    pub think_max_ms: f64,
    /// Nothing is begun later than this. `None`: until stopped.
    pub until_ms: Option<f64>,
}

impl Default for PlanSettings {
    fn default() -> PlanSettings {
        PlanSettings {
            seed: 1,
            run: "r1".to_string(),
            turns_per_s: 8.0,
            kinds: Kind::ALL.iter().map(|(_, k)| *k).collect(),
            stream_share: 0.8,
            think_min_ms: 100.0,
            think_max_ms: 400.0,
            until_ms: None,
        }
    }
}

/// One customer's conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct Conversation {
    /// Its id, also in the marker.
    pub id: String,
    /// The order number that the customer names in the first message.
    pub order_id: String,
    /// When it begins, in milliseconds after the start of the run.
    pub at_ms: f64,
    /// Its turns; each follows the answer to the one before.
    pub turns: Vec<Turn>,
}

/// One message of a customer.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    /// What is wanted.
    pub kind: Kind,
    /// Streamed or not.
    pub stream: bool,
    /// Pause after the answer before it.
    pub think_ms: f64,
    /// The message, marker included.
    pub text: String,
}

/// The schedule: an iterator over conversations in order of arrival.
#[derive(Clone, Debug)]
pub struct Plan {
    settings: PlanSettings,
    rng: Rng,
    deck: VecDeque<Kind>,
    number: u64,
    at_ms: f64,
    /// Per kind, how many turns were dealt: the even share of streams is taken from these.
    dealt: std::collections::BTreeMap<Kind, u64>,
}

/// Mean number of turns of a conversation (three or four, equally likely).
const MEAN_TURNS: f64 = 3.5;

impl Plan {
    /// A schedule. A rate below one turn in a hundred seconds counts as that.
    #[must_use]
    pub fn new(mut settings: PlanSettings) -> Plan {
        settings.turns_per_s = settings.turns_per_s.max(0.01);
        if settings.kinds.is_empty() {
            settings.kinds = PlanSettings::default().kinds;
        }
        let rng = Rng::new(settings.seed);
        Plan { settings, rng, deck: VecDeque::new(), number: 0, at_ms: 0.0, dealt: std::collections::BTreeMap::new() }
    }

    /// Draws the next kind that `taken` does not hold yet, from a shuffled deck: every kind comes once per deck.
    fn draw(&mut self, taken: &[Kind]) -> Kind {
        loop {
            if let Some(place) = self.deck.iter().position(|k| !taken.contains(k))
                && let Some(kind) = self.deck.remove(place)
            {
                return kind;
            }
            let mut fresh = self.settings.kinds.clone();
            for n in (1..fresh.len()).rev() {
                fresh.swap(n, self.rng.below(n as u64 + 1) as usize);
            }
            let all_taken = fresh.iter().all(|k| taken.contains(k));
            let first = fresh.first().copied().unwrap_or(Kind::Order);
            self.deck.extend(fresh);
            if all_taken {
                // Fewer kinds than turns: repeat one.
                self.deck.pop_back();
                return first;
            }
        }
    }

    fn kinds(&mut self) -> Vec<Kind> {
        let count = 3 + self.rng.below(2) as usize;
        let mut kinds = Vec::with_capacity(count);
        for _ in 0..count {
            let kind = self.draw(&kinds);
            kinds.push(kind);
        }
        // Nobody goes on talking to the machine after asking for a human, and nothing can be recalled at the start.
        kinds.sort_by_key(|k| *k == Kind::Human);
        if kinds.first() == Some(&Kind::Recall)
            && let Some(other) = kinds.iter().position(|k| !matches!(k, Kind::Recall | Kind::Human))
        {
            kinds.swap(0, other);
        } else if kinds.first() == Some(&Kind::Recall) {
            kinds.insert(0, Kind::Order);
        }
        kinds
    }

    /// Streams in the wanted share, spread evenly over the turns of each kind.
    fn streamed(&mut self, kind: Kind) -> bool {
        let n = self.dealt.entry(kind).or_insert(0);
        let share = self.settings.stream_share.clamp(0.0, 1.0);
        let due = |n: u64| (n as f64 * share + 0.5).floor();
        let stream = due(*n + 1) > due(*n);
        *n += 1;
        stream
    }
}

impl Iterator for Plan {
    type Item = Conversation;

    fn next(&mut self) -> Option<Conversation> {
        if self.settings.until_ms.is_some_and(|until| self.at_ms > until) {
            return None;
        }
        let at_ms = self.at_ms;
        let mean_gap_ms = 1e3 * MEAN_TURNS / self.settings.turns_per_s;
        self.at_ms += mean_gap_ms * (0.5 + self.rng.unit());
        self.number += 1;
        let id = format!("{}-{}", self.settings.run, self.number);
        let order_id = format!("ORD-{:06}", self.rng.below(1_000_000));
        let mut turns = Vec::new();
        for (n, kind) in self.kinds().into_iter().enumerate() {
            let stream = self.streamed(kind);
            let think = self.settings.think_max_ms - self.settings.think_min_ms;
            let think_ms = if n == 0 { 0.0 } else { self.settings.think_min_ms + think.max(0.0) * self.rng.unit() };
            let marker = Marker { conversation: id.clone(), turn: n as u32 + 1, kind };
            let opening = if n == 0 { format!("Hello, my order is {order_id}. ") } else { String::new() };
            turns.push(Turn { kind, stream, think_ms, text: format!("{} {opening}{}", marker.text(), wish(kind)) });
        }
        Some(Conversation { id, order_id, at_ms, turns })
    }
}

fn wish(kind: Kind) -> &'static str {
    match kind {
        Kind::Order => "Where is my order?",
        Kind::Json => "Please give me its status as JSON.",
        Kind::Ticket => "Something is wrong with it, please open a ticket.",
        Kind::Human => "I want to talk to a human.",
        Kind::Recall => "Which order were we talking about?",
        Kind::Long => "Please explain at length how shipping works.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_schedule_and_another_one_another() {
        let of = |seed| Plan::new(PlanSettings { seed, ..PlanSettings::default() }).take(50).collect::<Vec<_>>();
        assert_eq!(of(3), of(3));
        assert_ne!(of(3), of(4));
    }

    #[test]
    fn every_kind_comes_steadily_and_in_its_place() {
        let plan: Vec<Conversation> = Plan::new(PlanSettings::default()).take(400).collect();
        let mut turns = Vec::new();
        for c in &plan {
            assert!((3..=4).contains(&c.turns.len()));
            assert!(c.turns[0].kind != Kind::Recall && c.turns[0].text.contains(&c.order_id));
            for (n, t) in c.turns.iter().enumerate() {
                assert_eq!(
                    Marker::find(&t.text).unwrap(),
                    Marker { conversation: c.id.clone(), turn: n as u32 + 1, kind: t.kind }
                );
                assert!(t.kind != Kind::Human || n + 1 == c.turns.len());
                turns.push(t);
            }
        }
        // Any 16 turns in a row hold every kind: a deck has six, and a conversation moves a card by less than four.
        for window in turns.windows(16) {
            for (name, kind) in Kind::ALL {
                assert!(window.iter().any(|t| t.kind == kind), "{name} is missing");
            }
        }
        for (name, kind) in Kind::ALL {
            let of_kind: Vec<_> = turns.iter().filter(|t| t.kind == kind).collect();
            let share = of_kind.iter().filter(|t| t.stream).count() as f64 / of_kind.len() as f64;
            assert!((share - 0.8).abs() < 0.02, "{name}: {share}");
        }
    }

    #[test]
    fn the_rate_is_as_asked() {
        let plan = Plan::new(PlanSettings { turns_per_s: 20.0, until_ms: Some(60_000.0), ..PlanSettings::default() });
        let turns: usize = plan.map(|c| c.turns.len()).sum();
        assert!((1_100..=1_300).contains(&turns), "{turns}");
    }

    #[test]
    fn one_kind_alone_works() {
        for kind in [Kind::Long, Kind::Recall, Kind::Human] {
            let plan = Plan::new(PlanSettings { kinds: vec![kind], ..PlanSettings::default() });
            for c in plan.take(20) {
                assert!(c.turns.len() >= 3 && c.turns[0].kind != Kind::Recall);
            }
        }
    }
}
