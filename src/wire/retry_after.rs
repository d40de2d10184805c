//! How long a provider asks to be left alone. Pure: the wall clock is handed in.
//!
//! The first header that can be read decides, in this order, and nothing is ever added up (case B098): `retry-after-ms`,
//! `retry-after` (seconds, or a date in any of the three forms of RFC 9110, section 5.6.7), then the reset headers of rate
//! limits. Negative or unreadable is absent; a date in the past is no wait; nothing is longer than [`LONGEST`].

use std::time::Duration;

use jiff::{Timestamp, civil};

/// Longest wait believed: a day (design, settled questions).
pub const LONGEST: Duration = Duration::from_secs(86_400);

/// Reset headers, with the header that says what remains of the same limit.
const RESETS: [(&str, &str); 8] = [
    ("x-ratelimit-reset-requests", "x-ratelimit-remaining-requests"),
    ("x-ratelimit-reset-tokens", "x-ratelimit-remaining-tokens"),
    ("anthropic-ratelimit-requests-reset", "anthropic-ratelimit-requests-remaining"),
    ("anthropic-ratelimit-tokens-reset", "anthropic-ratelimit-tokens-remaining"),
    ("anthropic-ratelimit-input-tokens-reset", "anthropic-ratelimit-input-tokens-remaining"),
    ("anthropic-ratelimit-output-tokens-reset", "anthropic-ratelimit-output-tokens-remaining"),
    ("x-ratelimit-reset", "x-ratelimit-remaining"),
    ("ratelimit-reset", "ratelimit-remaining"),
];

/// The wait asked for. `header` gives the value of a header by its lower-case name; `now_unix_s` is the wall clock, for dates.
pub fn retry_after<'h>(header: impl Fn(&str) -> Option<&'h str>, now_unix_s: i64) -> Option<Duration> {
    if let Some(wait) = header("retry-after-ms").and_then(|v| decimal(v.trim(), 1e-3)) {
        return Some(wait);
    }
    if let Some(wait) = header("retry-after").and_then(|v| seconds_or_date(v, now_unix_s)) {
        return Some(wait);
    }
    let mut used_up: Option<Duration> = None;
    let mut soonest: Option<Duration> = None;
    for (reset, remaining) in RESETS {
        let Some(wait) = header(reset).and_then(|v| reset_wait(v, now_unix_s)) else {
            continue;
        };
        if header(remaining).and_then(|v| v.trim().parse::<f64>().ok()).is_some_and(|left| left <= 0.0) {
            used_up = Some(used_up.map_or(wait, |old| old.max(wait)));
        }
        soonest = Some(soonest.map_or(wait, |old| old.min(wait)));
    }
    // Which limit was hit is known only if one says that nothing remains. Else the shortest: the wait is a floor, and one
    // that is too short is soon doubled, but one that is too long is never mended.
    used_up.or(soonest)
}

/// `Retry-After`: seconds or a date.
fn seconds_or_date(value: &str, now_unix_s: i64) -> Option<Duration> {
    let value = value.trim();
    decimal(value, 1.0).or_else(|| http_date(value).map(|at| until(at, now_unix_s)))
}

/// Digits, perhaps with a fraction, in units of `unit` seconds.
fn decimal(value: &str, unit: f64) -> Option<Duration> {
    let (whole, fraction) = value.split_once('.').unwrap_or((value, "0"));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(fraction) {
        return None;
    }
    Some(seconds(value.parse::<f64>().ok()? * unit))
}

fn seconds(n: f64) -> Duration {
    Duration::try_from_secs_f64(n.max(0.0)).unwrap_or(LONGEST).min(LONGEST)
}

fn until(unix_s: i64, now_unix_s: i64) -> Duration {
    u64::try_from(unix_s.saturating_sub(now_unix_s)).map_or(Duration::ZERO, Duration::from_secs).min(LONGEST)
}

/// A reset header: `6m0s`, `350ms`, `12` (seconds), Unix seconds or milliseconds, or an ISO time.
fn reset_wait(value: &str, now_unix_s: i64) -> Option<Duration> {
    let value = value.trim();
    if let Some(wait) = decimal(value, 1.0) {
        let n = value.parse::<f64>().ok()?;
        // 1e9 seconds after 1970 was in 2001: no wait is so long, and no clock so late.
        return Some(if n >= 1e12 {
            seconds(n / 1e3 - now_unix_s as f64)
        } else if n >= 1e9 {
            seconds(n - now_unix_s as f64)
        } else {
            wait
        });
    }
    if let Ok(at) = value.parse::<Timestamp>() {
        return Some(until(at.as_second(), now_unix_s));
    }
    units(value).or_else(|| http_date(value).map(|at| until(at, now_unix_s)))
}

/// A duration in the manner of Go: `1h2m3.5s`, `350ms`.
fn units(mut value: &str) -> Option<Duration> {
    let mut total = 0.0;
    if value.is_empty() {
        return None;
    }
    while !value.is_empty() {
        let number = value.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let rest = &value[number..];
        let unit = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let scale = match &rest[..unit] {
            "d" => 86_400.0,
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" | "μs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        total += value[..number].parse::<f64>().ok()? * scale;
        value = &rest[unit..];
    }
    Some(seconds(total))
}

/// Unix seconds of an HTTP date: IMF-fixdate, or the older forms that a recipient must accept.
fn http_date(value: &str) -> Option<i64> {
    let words: Vec<&str> = value.split([' ', ',']).filter(|w| !w.is_empty()).collect();
    let (day, month, year, time) = match words.as_slice() {
        // Sun, 06 Nov 1994 08:49:37 GMT
        [_, day, month, year, time, "GMT" | "UTC"] => (*day, *month, year.parse::<i16>().ok()?, *time),
        // Sunday, 06-Nov-94 08:49:37 GMT: a year that seems to lie ahead by more than 50 years is in the past century.
        [_, date, time, "GMT" | "UTC"] => {
            let mut parts = date.split('-');
            let (day, month, year) = (parts.next()?, parts.next()?, parts.next()?);
            let year = year.parse::<i16>().ok()?;
            (day, month, if year < 70 { year + 2000 } else { year + 1900 }, *time)
        }
        // Sun Nov  6 08:49:37 1994
        [_, month, day, time, year] => (*day, *month, year.parse::<i16>().ok()?, *time),
        _ => return None,
    };
    let month = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
        .iter()
        .position(|name| *name == month)?;
    let mut clock = time.split(':');
    let mut part = || clock.next()?.parse::<i8>().ok();
    let (hour, minute, second) = (part()?, part()?, part()?);
    let month = i8::try_from(month + 1).ok()?;
    // A leap second is the second before it.
    let at = civil::DateTime::new(year, month, day.parse().ok()?, hour, minute, second.min(59), 0).ok()?;
    let epoch = civil::DateTime::constant(1970, 1, 1, 0, 0, 0, 0);
    Some(at.duration_since(epoch).as_secs())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// 2026-11-30T08:00:00Z.
    const NOW: i64 = 1_796_025_600;

    fn wait(headers: &[(&str, &str)]) -> Option<Duration> {
        retry_after(|name| headers.iter().find(|(n, _)| *n == name).map(|(_, v)| *v), NOW)
    }

    fn s(n: f64) -> Option<Duration> {
        Some(Duration::from_secs_f64(n))
    }

    #[test]
    fn b095_dates_past_dates_negative_and_zero() {
        assert_eq!(wait(&[("retry-after", "Mon, 30 Nov 2026 08:00:07 GMT")]), s(7.0));
        assert_eq!(wait(&[("retry-after", "Monday, 30-Nov-26 08:00:07 GMT")]), s(7.0));
        assert_eq!(wait(&[("retry-after", "Mon Nov 30 08:00:07 2026")]), s(7.0));
        assert_eq!(wait(&[("retry-after", "Wed, 01 Jul 2015 00:00:00 GMT")]), s(0.0));
        assert_eq!(wait(&[("retry-after", "-5")]), None);
        assert_eq!(wait(&[("retry-after", "0")]), s(0.0));
        assert_eq!(wait(&[("retry-after", "47")]), s(47.0));
        assert_eq!(wait(&[("retry-after", " 1.5 ")]), s(1.5));
        for odd in ["", "soon", "1e3", "+5", "NaN", "inf", "5s", ".5", "5.", "Mon, 99 Nov 2026 08:00:07 GMT", "٧"] {
            assert_eq!(wait(&[("retry-after", odd)]), None, "{odd}");
        }
    }

    #[test]
    fn absurd_values_are_a_day() {
        assert_eq!(wait(&[("retry-after", "86401")]), Some(LONGEST));
        assert_eq!(wait(&[("retry-after", "99999999999999999999999999")]), Some(LONGEST));
        assert_eq!(wait(&[("retry-after", "Fri, 31 Dec 9999 23:59:59 GMT")]), Some(LONGEST));
        assert_eq!(wait(&[("retry-after-ms", "999999999999999999999")]), Some(LONGEST));
    }

    #[test]
    fn b097_reset_headers_in_their_many_forms() {
        let reset = |v: &str| wait(&[("x-ratelimit-reset-requests", v)]);
        assert_eq!(reset("6m0s"), s(360.0));
        assert_eq!(reset("350ms"), s(0.35));
        assert_eq!(reset("1s"), s(1.0));
        assert_eq!(reset("1h2m3.5s"), s(3723.5));
        assert_eq!(reset("2026-11-30T08:00:09Z"), s(9.0));
        assert_eq!(reset("2026-11-30T07:00:09Z"), s(0.0));
        assert_eq!(reset("1796025620"), s(20.0));
        assert_eq!(reset("1796025620500"), s(20.5));
        assert_eq!(reset("1790000000"), s(0.0));
        assert_eq!(reset("12"), s(12.0));
        for odd in ["", "6 minutes", "m", "6x", "-6s", "1.2.3s", "s6"] {
            assert_eq!(reset(odd), None, "{odd}");
        }
        assert_eq!(wait(&[("retry-after", "3"), ("x-ratelimit-reset-requests", "6m0s")]), s(3.0));
        // An unreadable one is absent.
        assert_eq!(wait(&[("retry-after", "-1"), ("x-ratelimit-reset-requests", "6m0s")]), s(360.0));
    }

    #[test]
    fn the_limit_that_is_used_up_counts() {
        let both = [("x-ratelimit-reset-requests", "6m0s"), ("x-ratelimit-reset-tokens", "350ms")];
        assert_eq!(wait(&both), s(0.35));
        let requests =
            [both[0], both[1], ("x-ratelimit-remaining-requests", "0"), ("x-ratelimit-remaining-tokens", "9")];
        assert_eq!(wait(&requests), s(360.0));
    }

    #[test]
    fn b098_milliseconds_come_first_and_nothing_is_added() {
        assert_eq!(wait(&[("retry-after-ms", "1500")]), s(1.5));
        assert_eq!(wait(&[("retry-after-ms", "1500"), ("retry-after", "9")]), s(1.5));
        assert_eq!(wait(&[("retry-after-ms", "-3"), ("retry-after", "9")]), s(9.0));
        assert_eq!(wait(&[]), None);
    }

    proptest! {
        #[test]
        fn never_panics_and_stays_within_a_day(a in any::<String>(), b in any::<String>(), now in any::<i64>()) {
            let headers = [("retry-after", a.as_str()), ("x-ratelimit-reset", b.as_str())];
            let wait = retry_after(|name| headers.iter().find(|(n, _)| *n == name).map(|(_, v)| *v), now);
            prop_assert!(wait.is_none_or(|w| w <= LONGEST));
        }

        #[test]
        fn what_is_written_is_read(h in 0u64..24, m in 0u64..60, ms in 0u64..60_000) {
            let text = format!("{h}h{m}m{}.{:03}s", ms / 1000, ms % 1000);
            let right = h as f64 * 3600.0 + m as f64 * 60.0 + ms as f64 / 1e3;
            let read = units(&text).unwrap().as_secs_f64();
            prop_assert!((read - right.min(86_400.0)).abs() < 1e-6, "{} {}", text, read);
        }
    }
}
