//! What a wrong name may have meant: another unit, a slip of the finger, another place.

use serde_json::{Map, Value};

/// A guess at what a wrong key meant.
#[derive(Clone, Debug, PartialEq)]
pub struct Guess {
    /// The known key.
    pub name: String,
    /// If only the unit differs: what to write there, for example `8000`, and the unit's name.
    pub unit: Option<(Option<String>, &'static str)>,
}

/// Endings that say a unit, and how many milliseconds one of it is.
const UNITS: [(&str, f64); 16] = [
    ("_milliseconds", 1.0),
    ("_millis", 1.0),
    ("_msec", 1.0),
    ("_ms", 1.0),
    ("_seconds", 1e3),
    ("_secs", 1e3),
    ("_sec", 1e3),
    ("_s", 1e3),
    ("_minutes", 6e4),
    ("_mins", 6e4),
    ("_min", 6e4),
    ("_m", 6e4),
    ("_hours", 3.6e6),
    ("_h", 3.6e6),
    ("_days", 8.64e7),
    ("_d", 8.64e7),
];

/// Likeness (Jaro-Winkler, 0 to 1) from which a name is offered. 0.8 offers slips and spares unrelated words.
const LIKE: f64 = 0.8;
/// Likeness of a name that one letter more, less, other or in the other place away: `tow` for `two`, which Jaro-Winkler finds
/// unlike as it compares letters of short words at their own place only.
const ONE_SLIP: f64 = 0.9;
/// Names below so many letters are one letter away from too much.
const SHORTEST: usize = 3;

/// The nearest of some names, if one is near.
#[must_use]
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let lower = name.to_lowercase();
    let like = |k: &str| {
        let k = k.to_lowercase();
        let one_slip =
            lower.chars().count().min(k.chars().count()) >= SHORTEST && strsim::osa_distance(&lower, &k) == 1;
        let like = strsim::jaro_winkler(&lower, &k);
        if one_slip { like.max(ONE_SLIP) } else { like }
    };
    let best = known
        .into_iter()
        .map(|k| (like(k), k))
        .filter(|(like, _)| *like >= LIKE)
        .max_by(|a, b| a.0.total_cmp(&b.0).then_with(|| b.1.cmp(a.1)));
    best.map(|(_, k)| k)
}

/// The ending of a key that says its unit: how many milliseconds one is, and the unit's name.
#[must_use]
pub fn unit_of(key: &str) -> Option<&'static str> {
    if key.ends_with("_ms") {
        Some("milliseconds")
    } else if key.ends_with("_s") && !key.ends_with("_per_s") {
        Some("seconds")
    } else {
        None
    }
}

/// What a wrong key of a map with these keys may have meant; `value` is what was written there.
#[must_use]
pub fn guess(key: &str, value: Option<&Value>, known: &Map<String, Value>) -> Option<Guess> {
    let (base, written) = split_unit(key);
    for (end, ms, word) in [("_ms", 1.0, "milliseconds"), ("_s", 1e3, "seconds")] {
        let name = format!("{base}{end}");
        if name != key && known.contains_key(&name) {
            let figure = value.and_then(Value::as_f64).zip(written).map(|(v, per)| v * per / ms);
            return Some(Guess { name, unit: Some((figure.map(plain), word)) });
        }
    }
    nearest(key, known.keys().map(String::as_str)).map(|n| Guess { name: n.to_owned(), unit: None })
}

fn split_unit(key: &str) -> (&str, Option<f64>) {
    UNITS
        .iter()
        .find_map(|(end, ms)| key.strip_suffix(end).filter(|b| !b.is_empty()).map(|b| (b, Some(*ms))))
        .unwrap_or((key, None))
}

/// The next step after a bare number where a time with its unit is wanted: both units that may be meant.
#[must_use]
pub fn with_units(key: &str, number: &str) -> String {
    format!("a time needs its unit: write `{key}: {number}s` or `{key}: {number}m`")
}

/// A number as a person writes it.
#[must_use]
pub fn plain(v: f64) -> String {
    format!("{v}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> Map<String, Value> {
        ["deadline_ms", "reserve_ms", "hold_s", "routes", "peak"]
            .into_iter()
            .map(|k| (k.to_owned(), Value::Null))
            .collect()
    }

    #[test]
    fn another_unit_is_named_with_the_figure() {
        let g = guess("deadline_s", Some(&8.into()), &known()).unwrap();
        assert_eq!((g.name.as_str(), g.unit), ("deadline_ms", Some((Some("8000".to_owned()), "milliseconds"))));
        let g = guess("hold_ms", Some(&1500.into()), &known()).unwrap();
        assert_eq!((g.name.as_str(), g.unit), ("hold_s", Some((Some("1.5".to_owned()), "seconds"))));
        let g = guess("deadline", Some(&8.into()), &known()).unwrap();
        assert_eq!((g.name.as_str(), g.unit), ("deadline_ms", Some((None, "milliseconds"))));
        let g = guess("deadline_minutes", Some(&2.into()), &known()).unwrap();
        assert_eq!(g.unit, Some((Some("120000".to_owned()), "milliseconds")));
    }

    #[test]
    fn a_slip_is_offered_and_an_unrelated_word_is_not() {
        assert_eq!(guess("raotes", None, &known()).unwrap().name, "routes");
        assert_eq!(guess("max_retries", None, &known()), None);
        assert_eq!(nearest("Local-A", ["local-b", "local-a"]), Some("local-a"));
        assert_eq!(nearest("tow", ["one", "two"]), Some("two"));
        assert_eq!(nearest("b", ["a"]), None);
        assert_eq!(nearest("tow", ["one", "far"]), None);
    }
}
