//! `[P]` How a provider phrases things. The word lists share no word, so that any prefix of three pieces tells who wrote it.

use crate::units::Rng;

/// One way of phrasing.
#[derive(Debug)]
pub struct Voice {
    openers: &'static str,
    words: &'static str,
    statuses: &'static str,
    subjects: &'static [&'static str],
    reasons: &'static [&'static str],
}

const VOICES: [Voice; 4] = [
    Voice {
        openers: "Certainly Gladly Absolutely",
        words: "our depot northern crew checked parcel carefully this morning truck leaves before noon \
                label looks fine nothing missing driver confirmed route today",
        statuses: "packed loading dispatched",
        subjects: &["Parcel damaged", "Parcel incomplete", "Parcel astray"],
        reasons: &["Customer prefers a colleague", "Customer insists on a colleague"],
    },
    Voice {
        openers: "Hello Thanks Sure",
        words: "I see shipment travelling by rail towards southern hub where staff scan every box tonight \
                tracking page updates hourly please keep receipt",
        statuses: "in-transit handed-over arriving",
        subjects: &["Shipment late", "Shipment unclear", "Shipment broken"],
        reasons: &["User wants an operator", "User asked for an operator"],
    },
    Voice {
        openers: "Indeed Naturally Right",
        words: "warehouse seven reports goods sealed under glass cover while couriers await clear weather \
                river ferry sails again soon customs papers are stamped",
        statuses: "queued sealed sailing",
        subjects: &["Goods missing", "Goods wet", "Goods swapped"],
        reasons: &["Caller needs a supervisor", "Caller demands a supervisor"],
    },
    Voice {
        openers: "Okay Alright Yes",
        words: "bike messenger will bring package after lunch unless rain stops him somewhere near station \
                square you may collect it yourself with passport",
        statuses: "waiting cycling delivered",
        subjects: &["Package lost", "Package opened", "Package returned"],
        reasons: &["Person requests an agent", "Person expects an agent"],
    },
];

impl Voice {
    /// The voice of the provider at this place; they repeat after four.
    #[must_use]
    pub fn of(place: usize) -> &'static Voice {
        &VOICES[place % VOICES.len()]
    }

    /// Chunks of prose, `min..=max` of them, one word each; `said` stands after the first four words.
    #[must_use]
    pub fn prose(&self, rng: &mut Rng, min: usize, max: usize, said: &[&str]) -> Vec<String> {
        let count = (min + rng.below((max - min + 1) as u64) as usize).max(said.len());
        let at = 4.min(count - said.len());
        let mut chunks = Vec::with_capacity(count);
        for n in 0..count {
            let word = match n.checked_sub(at).and_then(|i| said.get(i)) {
                Some(word) => word,
                None if n == 0 => word(self.openers, rng),
                None => word(self.words, rng),
            };
            let space = if n == 0 { "" } else { " " };
            // A full stop after every ninth word, so that sentences exist.
            let stop = if n + 1 == count || n % 9 == 8 { "." } else { "" };
            chunks.push(format!("{space}{word}{stop}"));
        }
        chunks
    }

    /// A value for `status`.
    #[must_use]
    pub fn status(&self, rng: &mut Rng) -> &'static str {
        word(self.statuses, rng)
    }

    /// A ticket's subject.
    #[must_use]
    pub fn subject(&self, rng: &mut Rng) -> &'static str {
        pick(self.subjects, rng)
    }

    /// Why a human must take over.
    #[must_use]
    pub fn reason(&self, rng: &mut Rng) -> &'static str {
        pick(self.reasons, rng)
    }
}

fn pick(list: &'static [&'static str], rng: &mut Rng) -> &'static str {
    list.get(rng.below(list.len() as u64) as usize).copied().unwrap_or("")
}

fn word(list: &'static str, rng: &mut Rng) -> &'static str {
    let count = list.split_whitespace().count() as u64;
    list.split_whitespace().nth(rng.below(count) as usize).unwrap_or("")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn no_word_belongs_to_two_voices() {
        let mut owner = BTreeMap::new();
        for (n, voice) in VOICES.iter().enumerate() {
            for word in [voice.openers, voice.words, voice.statuses].iter().flat_map(|l| l.split_whitespace()) {
                let before = owner.insert(word.to_lowercase(), n);
                assert!(before.is_none_or(|b| b == n), "{word} is in two voices");
            }
        }
    }
}
