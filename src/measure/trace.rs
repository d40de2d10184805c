//! Which provider saw which client request, and which requests make one turn. Both are worked out from outside: by the
//! conversation marker in the message text, which survives any gateway, and by time.

use std::collections::BTreeMap;

use super::rows::{End, ProviderRow, RequestRow};

/// Slack when a provider's arrival is laid beside a client's request, in milliseconds. Both read one clock, so it covers
/// only the time between reading the clock and writing to the socket.
const SLACK_MS: f64 = 5.0;

/// One turn of a conversation: its requests in order of their start.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    /// Conversation.
    pub conversation: String,
    /// 1-based turn.
    pub turn: u32,
    /// What the customer wants.
    pub intent: String,
    /// Start of its first request.
    pub started_ms: f64,
    /// Places of its requests in the request rows, by start.
    pub rows: Vec<usize>,
}

/// Requests and provider rows laid beside each other.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// For each request, the places of the provider rows that it led to, by arrival.
    pub seen_by: Vec<Vec<usize>>,
    /// For each provider row, the place of the request that it belongs to.
    pub caused_by: Vec<Option<usize>>,
    /// True for a request that the client itself repeated at another entry.
    pub superseded: Vec<bool>,
    /// What the customer waited from: the start of the request, or of the first of those that it repeats.
    pub waited_from_ms: Vec<f64>,
    /// Tool results that the client had sent back in this conversation up to and including this request.
    pub tool_results_known: Vec<u32>,
    /// The turns, by start.
    pub turns: Vec<Turn>,
}

impl Trace {
    /// Lays the rows beside each other. A provider row belongs to the request of its conversation that was open when it
    /// arrived; one that arrived while none was open belongs to the last request that began before it with the same turn.
    #[must_use]
    pub fn new(requests: &[RequestRow], providers: &[ProviderRow]) -> Trace {
        let mut by_conversation: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (i, r) in requests.iter().enumerate() {
            by_conversation.entry(&r.conversation).or_default().push(i);
        }
        for rows in by_conversation.values_mut() {
            rows.sort_by(|a, b| requests[*a].started_ms.total_cmp(&requests[*b].started_ms));
        }

        let mut trace = Trace {
            seen_by: vec![Vec::new(); requests.len()],
            caused_by: vec![None; providers.len()],
            superseded: vec![false; requests.len()],
            waited_from_ms: requests.iter().map(|r| r.started_ms).collect(),
            tool_results_known: vec![0; requests.len()],
            turns: Vec::new(),
        };
        for (p, row) in providers.iter().enumerate() {
            let Some(own) = row.conversation.as_deref().and_then(|c| by_conversation.get(c)) else { continue };
            let begun = |i: &&usize| requests[**i].started_ms - SLACK_MS <= row.arrived_ms;
            let open = own.iter().rev().filter(begun).find(|i| row.arrived_ms <= requests[**i].ended_ms + SLACK_MS);
            let late = || own.iter().rev().filter(begun).find(|i| requests[**i].turn == row.turn);
            if let Some(&request) = open.or_else(late) {
                trace.caused_by[p] = Some(request);
                trace.seen_by[request].push(p);
            }
        }
        for seen in &mut trace.seen_by {
            seen.sort_by(|a, b| providers[*a].arrived_ms.total_cmp(&providers[*b].arrived_ms));
        }

        for rows in by_conversation.values() {
            let mut results = 0;
            // The request before this one in the same turn that has not been answered, and since when it is waited for.
            let mut repeats: Option<f64> = None;
            for (n, &i) in rows.iter().enumerate() {
                let row = &requests[i];
                trace.tool_results_known[i] = results;
                if let Some(since) = repeats {
                    trace.waited_from_ms[i] = since;
                }
                let goes_on = !row.last_of_turn && rows.get(n + 1).is_some_and(|&j| requests[j].turn == row.turn);
                let ran_calls = row.end == End::Complete && !row.tool_calls.is_empty();
                trace.superseded[i] = goes_on && !ran_calls;
                repeats = trace.superseded[i].then_some(trace.waited_from_ms[i]);
                if goes_on && ran_calls {
                    results += u32::try_from(row.tool_calls.len()).unwrap_or(u32::MAX);
                }
                match trace.turns.iter_mut().find(|t| t.conversation == row.conversation && t.turn == row.turn) {
                    Some(turn) => turn.rows.push(i),
                    None => trace.turns.push(Turn {
                        conversation: row.conversation.clone(),
                        turn: row.turn,
                        intent: row.intent.clone(),
                        started_ms: row.started_ms,
                        rows: vec![i],
                    }),
                }
            }
        }
        trace.turns.sort_by(|a, b| a.started_ms.total_cmp(&b.started_ms));
        trace
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::measure::rows::ToolCallRow;

    /// A streamed request that was answered well: useful text 100 ms after its start, end 400 ms after it.
    pub(crate) fn request(conversation: &str, turn: u32, started_ms: f64) -> RequestRow {
        RequestRow {
            conversation: conversation.into(),
            turn,
            step: 0,
            intent: "order".into(),
            kind: "order".into(),
            order_id: "A-1001".into(),
            assistant_messages: 0,
            entry: "region-1".into(),
            stream: true,
            phase: "outage".into(),
            due_ms: started_ms,
            started_ms,
            headers_ms: Some(started_ms + 20.0),
            useful_text_ms: Some(started_ms + 100.0),
            committed_ms: Some(started_ms + 100.0),
            ended_ms: started_ms + 400.0,
            end: End::Complete,
            end_detail: String::new(),
            status: Some(200),
            finish_reason: Some("stop".into()),
            done_marker: true,
            error_code: None,
            error_events: 0,
            text: "alpha bravo charlie".into(),
            refusal: String::new(),
            tool_calls: Vec::new(),
            gateway_target: None,
            gateway_attempts: None,
            gateway_outcome: None,
            gateway_request_id: None,
            last_of_turn: true,
            violations: Vec::new(),
            checked: Vec::new(),
        }
    }

    /// The provider's side of [`request`].
    pub(crate) fn seen(provider: &str, of: &RequestRow) -> ProviderRow {
        ProviderRow {
            provider: provider.into(),
            conversation: Some(of.conversation.clone()),
            turn: of.turn,
            tool_results: 0,
            assistant_messages: Some(0),
            probe: false,
            arrived_ms: of.started_ms + 10.0,
            first_byte_ms: Some(of.started_ms + 20.0),
            first_token_ms: Some(of.started_ms + 90.0),
            ended_ms: Some(of.started_ms + 390.0),
            stream: true,
            head_bytes: 0,
            events_sent: 6,
            events_to_last_token: 4,
            event_ends: Vec::new(),
            completed: true,
            cancelled: false,
            text: of.text.clone(),
            tool_calls: of.tool_calls.clone(),
            peer: "127.0.0.1:40000".into(),
        }
    }

    #[test]
    fn a_request_finds_its_provider_rows_and_its_turn() {
        let first = request("c1", 1, 0.0);
        let mut call = request("c1", 2, 1000.0);
        call.tool_calls = vec![ToolCallRow { id: "x".into(), name: "create_ticket".into(), arguments: "{}".into() }];
        call.last_of_turn = false;
        let mut after = request("c1", 2, 1500.0);
        after.step = 1;
        let other = request("c2", 1, 1005.0);
        let requests = vec![first.clone(), call.clone(), after.clone(), other.clone()];
        let mut failed = seen("local-a", &call);
        failed.arrived_ms = 1002.0;
        let providers = vec![
            seen("local-a", &first),
            failed,
            seen("local-b", &call),
            seen("local-b", &after),
            seen("local-b", &other),
        ];
        let trace = Trace::new(&requests, &providers);
        assert_eq!(trace.seen_by, vec![vec![0], vec![1, 2], vec![3], vec![4]]);
        assert_eq!(trace.tool_results_known, vec![0, 0, 1, 0]);
        assert_eq!(trace.superseded, vec![false; 4]);
        let turns: Vec<_> = trace.turns.iter().map(|t| (t.conversation.as_str(), t.turn, t.rows.clone())).collect();
        assert_eq!(turns, vec![("c1", 1, vec![0]), ("c1", 2, vec![1, 2]), ("c2", 1, vec![3])]);
    }

    #[test]
    fn a_request_repeated_at_the_other_entry_is_superseded_not_a_second_step() {
        let mut dead = request("c1", 1, 0.0);
        dead.end = End::ConnectFailed;
        dead.ended_ms = 50.0;
        dead.last_of_turn = false;
        let mut again = request("c1", 1, 51.0);
        again.entry = "region-2".into();
        again.step = 1;
        let trace = Trace::new(&[dead, again.clone()], &[seen("local-b", &again)]);
        assert_eq!(trace.superseded, vec![true, false]);
        assert_eq!(trace.waited_from_ms, vec![0.0, 0.0]);
        assert_eq!(trace.tool_results_known, vec![0, 0]);
        assert_eq!(trace.seen_by, vec![vec![], vec![0]]);
        assert_eq!(trace.turns.len(), 1);
    }

    #[test]
    fn a_row_that_arrives_after_the_client_left_still_belongs_to_its_turn() {
        let gone = request("c1", 1, 0.0);
        let mut late = seen("local-b", &gone);
        late.arrived_ms = gone.ended_ms + 900.0;
        let trace = Trace::new(&[gone], &[late]);
        assert_eq!(trace.caused_by, vec![Some(0)]);
    }
}
