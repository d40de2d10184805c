//! Units in types and names: a point on the monotonic time line, and helpers that make them readable.

use std::ops::{Add, Sub};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A point on a monotonic time line, in nanoseconds since an anchor that the driver chose (process start, or zero in a
/// simulation). Durations are [`Duration`]; the core never reads a clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Ts(pub u64);

impl Ts {
    /// The anchor.
    pub const ZERO: Ts = Ts(0);
    /// Later than anything that happens.
    pub const FAR: Ts = Ts(u64::MAX);

    /// A point so many milliseconds after the anchor.
    #[must_use]
    pub const fn from_ms(ms: u64) -> Ts {
        Ts(ms.saturating_mul(1_000_000))
    }

    /// A point so many whole seconds after the anchor.
    #[must_use]
    pub const fn from_s(s: u64) -> Ts {
        Ts(s.saturating_mul(1_000_000_000))
    }

    /// Whole milliseconds since the anchor, rounded down.
    #[must_use]
    pub const fn as_ms(self) -> u64 {
        self.0 / 1_000_000
    }

    /// How long after `earlier` this point is; zero if it is not after it.
    #[must_use]
    pub const fn since(self, earlier: Ts) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Ts {
    type Output = Ts;

    fn add(self, d: Duration) -> Ts {
        Ts(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Ts> for Ts {
    type Output = Duration;

    fn sub(self, earlier: Ts) -> Duration {
        self.since(earlier)
    }
}

/// Milliseconds of a duration as a float, for reports.
#[must_use]
pub fn ms(d: Duration) -> f64 {
    d.as_secs_f64() * 1e3
}

/// Milliseconds as they are told: to the microsecond, without the noise behind it.
#[must_use]
pub fn told_ms(ms: f64) -> f64 {
    (ms * 1e3).round() / 1e3
}

/// Milliseconds in JSON, as [`told_ms`] has them.
///
/// # Errors
/// Those of the serializer.
pub fn as_told<S: serde::Serializer>(ms: &f64, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(told_ms(*ms))
}

/// The same, if there are any.
///
/// # Errors
/// Those of the serializer.
pub fn as_told_if_any<S: serde::Serializer>(ms: &Option<f64>, to: S) -> Result<S::Ok, S::Error> {
    serde::Serialize::serialize(&ms.map(told_ms), to)
}

/// Every duration in a value, by the ending `_ms` of its key or of the map that it stands in, as [`told_ms`] has it.
pub fn told_durations(value: &mut serde_json::Value) {
    told_below(value, false);
}

fn told_below(value: &mut serde_json::Value, is_ms: bool) {
    use serde_json::Value;
    match value {
        Value::Number(n) if is_ms && n.is_f64() => {
            if let Some(told) = n.as_f64().map(told_ms).and_then(serde_json::Number::from_f64) {
                *n = told;
            }
        }
        Value::Object(map) => {
            for (key, value) in map.iter_mut() {
                told_below(value, is_ms || key.ends_with("_ms"));
            }
        }
        Value::Array(all) => all.iter_mut().for_each(|value| told_below(value, is_ms)),
        _ => {}
    }
}

/// Bytes in lower-case hex.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: [char; 16] = ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'];
    let digits = |byte: &u8| [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]];
    let mut text = String::with_capacity(bytes.len() * 2);
    text.extend(bytes.iter().flat_map(digits));
    text
}

/// A duration as a person writes it: `250 ms`, `3.2 s`, `4 min`.
#[must_use]
pub fn human(d: Duration) -> String {
    let s = d.as_secs_f64();
    if s < 1.0 {
        format!("{:.0} ms", s * 1e3)
    } else if s < 120.0 {
        let text = format!("{s:.1}");
        format!("{} s", text.strip_suffix(".0").unwrap_or(&text))
    } else {
        format!("{:.0} min", s / 60.0)
    }
}

/// SplitMix64: a small seeded generator (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators").
/// Everything random in a pure module draws from one of these, so that a seed gives the same run.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator for this seed.
    #[must_use]
    pub const fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in `0..n`; zero if `n` is zero. The bias of the multiply-shift is below 2^-32 for the small `n` used here.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }
}

/// Prefixes by which vendors mark their keys, in lower case: one list for all that hides keys.
pub(crate) const KEY_PREFIXES: [&str; 21] = [
    "sk-",
    "sk_",
    "pk_",
    "rk_",
    "gsk_",
    "xai-",
    "hf_",
    "ghp_",
    "gho_",
    "ghs_",
    "github_pat_",
    "glpat-",
    "aiza",
    "akia",
    "nvapi-",
    "r8_",
    "pplx-",
    "xoxb-",
    "xoxp-",
    "fw_",
    "csk-",
];

/// Text from outside made safe for a terminal, a log or a report (rule R7): control characters (including C1 and the
/// Unicode direction overrides) become `\u{..}`, and the length is bounded to `max_chars`.
#[must_use]
pub fn printable(text: &str, max_chars: usize) -> String {
    let mut out = String::new();
    for (n, c) in text.chars().enumerate() {
        if n == max_chars {
            out.push('…');
            break;
        }
        let steers =
            matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}');
        if c.is_control() || steers {
            out.extend(c.escape_unicode());
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_told_to_the_microsecond_and_nothing_else_is_touched() {
        let mut value = serde_json::json!({
            "total_ms": 3.153_135_000_000_000_2, "share": 0.123_456_789, "whole_ms": 7, "none_ms": null,
            "rows": [{ "at_ms": 1_234.000_7 }], "text_ms": { "p50": 67.519_321_992_993_35 },
            "failback_ms": [2_231.818_207_994],
        });
        super::told_durations(&mut value);
        let right = serde_json::json!({
            "total_ms": 3.153, "share": 0.123_456_789, "whole_ms": 7, "none_ms": null,
            "rows": [{ "at_ms": 1_234.001 }], "text_ms": { "p50": 67.519 }, "failback_ms": [2_231.818],
        });
        assert_eq!(value, right);
        assert_eq!(value["total_ms"].to_string(), "3.153");
    }

    #[test]
    fn hex_is_two_lower_case_digits_a_byte() {
        assert_eq!(hex(&[0, 9, 10, 0x7f, 0xff]), "00090a7fff");
        assert_eq!(hex(&[]), "");
    }

    #[test]
    fn time_saturates_and_reads_well() {
        assert_eq!(Ts::from_ms(5).since(Ts::from_ms(9)), Duration::ZERO);
        assert_eq!(Ts::FAR + Duration::from_secs(1), Ts::FAR);
        assert_eq!(human(Duration::from_millis(250)), "250 ms");
        assert_eq!(human(Duration::from_secs(8)), "8 s");
        assert_eq!(human(Duration::from_secs(240)), "4 min");
    }

    #[test]
    fn splitmix_matches_the_published_sequence() {
        // First outputs for seed 1234567, as given with the reference implementation.
        let mut rng = Rng::new(1_234_567);
        assert_eq!(rng.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(rng.next_u64(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn outside_text_cannot_steer_a_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\u{202e}", 99), "a\\u{1b}[2Jb\\u{202e}");
        assert_eq!(printable("abcdef", 3), "abc…");
    }
}
