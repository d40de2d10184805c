//! A long run at half load in which one request in a hundred is failed by the primary, every kind of fault in turn: does memory
//! grow, is every answer what it may be, and does everything in flight end?

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::{HeaderMap, Method};
use http_body_util::{BodyExt, Limited};
use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::asked::{Asked, Fault};
use super::cells::{BURST_C32, JSON_C32, Request};
use super::client::{Client, End};
use super::driver::{Numbers, Window, closed};
use super::figures::{Figure, Sample};
use super::judge::SoakFacts;
use super::proc;
use super::stage::Running;
use crate::load::http::{Base, connect};

/// A silent stream is broken off after this, so that stalls end.
pub const IDLE_MS: u64 = 2_000;
/// One request in so many is failed.
const ONE_IN: u64 = 100;
/// Enough that those which wait for a silent primary hold nobody up.
const WORKERS: u32 = 128;
/// A worker that is late by more than this skips what it missed.
const LATE: Duration = Duration::from_secs(1);
/// When nobody asks any more, everything must be over within this: longer than every limit of the policy.
const OVER: Duration = Duration::from_secs(25);
/// Looks at memory.
const LOOKS: u32 = 120;
/// A page of metrics may be so long.
const PAGE_BYTES: usize = 1 << 20;
/// One look at it may take so long.
const LOOK: Duration = Duration::from_secs(2);

/// What it has shown.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Soak {
    /// Length.
    pub minutes: f64,
    /// Requests a second that were wanted: half of what the gateway can.
    pub rate_wanted: f64,
    /// Requests that were answered a second.
    pub rate: f64,
    /// Requests.
    pub requests: u64,
    /// Of these failed by the primary, by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// Answered in full.
    pub whole: u64,
    /// Streams that were broken off with an error event, as a fault in mid-answer allows.
    pub error_events: u64,
    /// Anything else, by fault and end.
    pub wrong: BTreeMap<String, u64>,
    /// Median resident MB of the first third.
    pub resident_begin_mb: Option<f64>,
    /// Of the second.
    pub resident_middle_mb: Option<f64>,
    /// Of the last.
    pub resident_end_mb: Option<f64>,
    /// In flight at the end, by the gateway's metrics.
    pub in_flight_end: Option<f64>,
}

impl Soak {
    /// What is judged.
    #[must_use]
    pub fn facts(&self) -> SoakFacts {
        SoakFacts {
            minutes: self.minutes,
            middle_mb: self.resident_middle_mb,
            end_mb: self.resident_end_mb,
            in_flight: self.in_flight_end,
            wrong: self.wrong.values().sum(),
        }
    }
}

/// Half of the rate at which JSON answers and streams in turn keep the gateway busy.
fn half_of(json: &Sample, streams: &Sample) -> f64 {
    match (json.rps(), streams.rps()) {
        // One of each takes 1/a + 1/b seconds.
        (Some(a), Some(b)) => 1.0 / (1.0 / a + 1.0 / b),
        _ => 1.0,
    }
}

/// What a request may end in: an answer in full always; a stream that fails in mid-answer may be broken off honestly.
fn allowed(fault: Option<Fault>, stream: bool, end: End) -> bool {
    end == End::Whole || (end == End::ErrorEvent && stream && fault.is_some_and(Fault::in_mid_answer))
}

/// What the `n`th request is: streamed or not, and how it is failed. Every kind comes streamed and not.
fn nth(n: u64) -> (bool, Option<Fault>) {
    let stream = n % 2 == 1;
    if n % ONE_IN >= 2 || n < ONE_IN {
        return (stream, None);
    }
    // Two neighbours in every two hundred, one of them streamed.
    let pair = n / ONE_IN;
    if pair % 2 == 1 {
        return (stream, None);
    }
    let kinds = Fault::ALL.len() as u64;
    let at = usize::try_from(pair / 2 % kinds).unwrap_or(0);
    (stream, Fault::ALL.get(at).map(|(fault, _)| *fault))
}

fn name(fault: Option<Fault>) -> &'static str {
    fault.and_then(|f| Fault::ALL.iter().find(|(one, _)| *one == f)).map_or("no fault", |(_, name)| name)
}

/// Soaks a gateway whose policy breaks silent streams off after [`IDLE_MS`].
pub async fn soak(gateway: &Running, minutes: f64, window: Window, numbers: &Numbers) -> Soak {
    let json = closed(&gateway.way, &JSON_C32, window, None, numbers).await;
    let streams = closed(&gateway.way, &BURST_C32, window, None, numbers).await;
    let rate = half_of(&json, &streams).max(1.0);
    let length = Duration::from_secs_f64(minutes * 60.0);
    let began = Instant::now();
    let every = Duration::from_secs_f64(f64::from(WORKERS) / rate);
    let mut workers = JoinSet::new();
    for n in 0..WORKERS {
        let first = began + every.mul_f64(f64::from(n) / f64::from(WORKERS));
        workers.spawn(worker(gateway.clone(), (first, every, began + length), u64::from(n), Arc::clone(numbers)));
    }
    let mut resident = Vec::new();
    for look in 1..=LOOKS {
        sleep_until(began + length.mul_f64(f64::from(look) / f64::from(LOOKS))).await;
        resident.push(proc::resident_mb(gateway.pid).unwrap_or(f64::NAN));
    }
    let mut all = Seen::default();
    while let Some(seen) = workers.join_next().await {
        all.add(seen.unwrap_or_default());
    }
    let third = resident.len().div_ceil(3);
    let mut thirds = resident.chunks(third.max(1)).map(|some| Figure::of(some.iter().copied()).map(|f| f.median));
    let mut next = || thirds.next().flatten();
    let (begin, middle, end) = (next(), next(), next());
    Soak {
        minutes,
        rate_wanted: rate,
        rate: all.requests as f64 / began.elapsed().as_secs_f64().max(1e-9),
        requests: all.requests,
        faults: all.faults,
        whole: all.whole,
        error_events: all.error_events,
        wrong: all.wrong,
        resident_begin_mb: begin,
        resident_middle_mb: middle,
        resident_end_mb: end,
        in_flight_end: over(gateway).await,
    }
}

#[derive(Debug, Default)]
struct Seen {
    requests: u64,
    whole: u64,
    error_events: u64,
    faults: BTreeMap<&'static str, u64>,
    wrong: BTreeMap<String, u64>,
}

impl Seen {
    fn add(&mut self, other: Seen) {
        self.requests += other.requests;
        self.whole += other.whole;
        self.error_events += other.error_events;
        for (fault, n) in other.faults {
            *self.faults.entry(fault).or_default() += n;
        }
        for (what, n) in other.wrong {
            *self.wrong.entry(what).or_default() += n;
        }
    }
}

async fn worker(
    gateway: Running,
    (first, every, until): (Instant, Duration, Instant),
    start: u64,
    numbers: Numbers,
) -> Seen {
    let mut requests: BTreeMap<(bool, &'static str), Request> = BTreeMap::new();
    let mut client = Client::new(gateway.way.to);
    let mut seen = Seen::default();
    let (mut at, mut n) = (first, start);
    while at < until {
        sleep_until(at).await;
        // Together the workers go through all numbers.
        let (stream, fault) = nth(n);
        let request = requests
            .entry((stream, name(fault)))
            .or_insert_with(|| Request::new(&gateway.way, stream, false, &Asked { fault, ..Asked::default() }));
        request.number(numbers.fetch_add(1, Ordering::Relaxed));
        let end = client.ask(&request.bytes, stream).await.end;
        seen.requests += 1;
        if fault.is_some() {
            *seen.faults.entry(name(fault)).or_default() += 1;
        }
        match end {
            end if !allowed(fault, stream, end) => {
                let kind = if stream { "stream" } else { "JSON" };
                *seen.wrong.entry(format!("{kind}, {}: {end:?}", name(fault))).or_default() += 1;
            }
            End::Whole => seen.whole += 1,
            _ => seen.error_events += 1,
        }
        n += u64::from(WORKERS);
        at += every;
        let now = Instant::now();
        if now > at + LATE {
            at = now;
        }
    }
    seen
}

/// Waits until nothing is in flight; what is left then.
async fn over(gateway: &Running) -> Option<f64> {
    let began = Instant::now();
    loop {
        let left = in_flight(gateway).await;
        if left == Some(0.0) || began.elapsed() > OVER {
            return left;
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// Requests and dials under way, by the gateway's metrics.
async fn in_flight(gateway: &Running) -> Option<f64> {
    let base = Base::new(&format!("http://{}", gateway.admin?)).ok()?;
    let look = async {
        let mut connection = connect(&base, LOOK).await.ok()?;
        let answer =
            connection.send(Method::GET, &base, "/metrics", HeaderMap::new(), bytes::Bytes::new()).await.ok()?;
        let page = Limited::new(answer.into_body(), PAGE_BYTES).collect().await.ok()?.to_bytes();
        in_flight_of(std::str::from_utf8(&page).ok()?)
    };
    tokio::time::timeout(LOOK, look).await.ok().flatten()
}

fn in_flight_of(page: &str) -> Option<f64> {
    let counted = |l: &&str| l.starts_with("llmfo_inflight_requests{") || l.starts_with("llmfo_requests_open ");
    let values: Vec<f64> = page.lines().filter(counted).filter_map(|l| l.rsplit(' ').next()?.parse().ok()).collect();
    // Both must be there: a name that has changed is no zero.
    (page.contains("llmfo_inflight_requests{") && page.contains("llmfo_requests_open ")).then(|| values.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_a_hundred_fails_and_every_kind_comes_streamed_and_not() {
        let count = 100 * 2 * 14 * 4;
        let mut seen: BTreeMap<(&str, bool), u64> = BTreeMap::new();
        for (stream, fault) in (200..200 + count).map(nth) {
            *seen.entry((name(fault), stream)).or_default() += 1;
        }
        let failed: u64 = seen.iter().filter(|((name, _), _)| *name != "no fault").map(|(_, n)| n).sum();
        assert_eq!(failed, count / 100);
        assert_eq!(seen.len(), 2 + 2 * 14, "{seen:?}");
        assert!(seen.iter().filter(|((name, _), _)| *name != "no fault").all(|(_, n)| *n == 4), "{seen:?}");
    }

    #[test]
    fn half_load_of_a_mix() {
        // 300 JSON or 150 streams a second: a pair takes 10 ms, so 200 requests a second keep it busy, and half is 100.
        let at = |good| Sample { good, seconds: 1.0, ..Sample::default() };
        assert!((half_of(&at(300), &at(150)) - 100.0).abs() < 1e-9);
    }

    #[test]
    fn a_broken_stream_may_say_so_and_nothing_may_lie() {
        assert!(allowed(None, true, End::Whole) && allowed(Some(Fault::Stall), true, End::ErrorEvent));
        assert!(!allowed(None, true, End::ErrorEvent) && !allowed(Some(Fault::Reset), true, End::ErrorEvent));
        assert!(!allowed(Some(Fault::Truncated), true, End::Silent) && !allowed(Some(Fault::CutFin), false, End::Cut));
    }

    #[test]
    fn metrics_are_added_and_a_name_that_is_missing_is_no_zero() {
        let page = "# TYPE x gauge\nllmfo_inflight_requests{target=\"a\"} 2\nllmfo_inflight_requests{target=\"b\"} 0\n\
                    llmfo_requests_open 1\nllmfo_requests_open_more 9\n";
        assert_eq!(in_flight_of(page), Some(3.0));
        assert_eq!(in_flight_of("llmfo_requests_open 0\n"), None);
    }
}
