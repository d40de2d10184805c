//! `queue_max`: the most client requests open at one moment that no provider had received yet, seen from outside. Any
//! place where a request can wait shows here, whether or not the gateway calls it a queue.

use super::rows::{ProviderRow, RequestRow};
use super::trace::Trace;

/// The largest number of requests that waited at once. A request waits from its start until the first provider has it, or
/// until its end if none ever has.
#[must_use]
pub fn queue_max(requests: &[RequestRow], providers: &[ProviderRow], trace: &Trace) -> usize {
    let mut edges: Vec<(f64, i32)> = Vec::with_capacity(requests.len() * 2);
    for (i, r) in requests.iter().enumerate() {
        let received = trace.seen_by.get(i).and_then(|rows| rows.first()).map(|p| providers[*p].arrived_ms);
        let until = received.unwrap_or(r.ended_ms).min(r.ended_ms);
        if until > r.started_ms {
            edges.push((r.started_ms, 1));
            edges.push((until, -1));
        }
    }
    // At one instant, those that leave go before those that come.
    edges.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let (mut open, mut most) = (0_i32, 0_i32);
    for (_, change) in edges {
        open += change;
        most = most.max(open);
    }
    usize::try_from(most).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::trace::tests::{request, seen};
    use super::*;

    #[test]
    fn waiting_ends_when_the_first_provider_has_it() {
        // Each is received 10 ms after its start: [0,10) [5,15) [12,22): never more than two at once.
        let requests = vec![request("a", 1, 0.0), request("b", 1, 5.0), request("c", 1, 12.0)];
        let providers: Vec<_> = requests.iter().map(|r| seen("local-a", r)).collect();
        let trace = Trace::new(&requests, &providers);
        assert_eq!(queue_max(&requests, &providers, &trace), 2);
        // If no provider ever has them they wait until their end, 400 ms later: all three at once.
        let trace = Trace::new(&requests, &[]);
        assert_eq!(queue_max(&requests, &[], &trace), 3);
    }

    #[test]
    fn one_that_leaves_as_another_comes_does_not_add_up() {
        let requests = vec![request("a", 1, 0.0), request("b", 1, 10.0)];
        let providers: Vec<_> = requests.iter().map(|r| seen("local-a", r)).collect();
        let trace = Trace::new(&requests, &providers);
        assert_eq!(queue_max(&requests, &providers, &trace), 1);
    }
}
