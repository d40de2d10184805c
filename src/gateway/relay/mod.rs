//! From a client's request to its answer.
//!
//! A request runs inside its own handler: it asks the core, dials what the core says, reports what it sees, and holds every
//! byte back until the core grants the commit. Then the response is made, and the rest of the stream is read from the
//! provider by the response body itself, only as fast as the client takes it: there is no task and no buffer between them.
//!
//! When the client leaves, the handler or the body is dropped. That drops the attempt (its connection closes at once) and
//! the ticket (the core hears `ClientGone`), on every path.

pub mod attempt;
mod clock;
pub mod failure;
mod keep_alive;
mod replay;
mod reply;
mod settle;
mod stamping;
mod stream;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;

use super::adapters;
use super::app::App;
use super::clients::Permit;
use super::clients::book::Client;
use super::driver::Meta;
use super::http::{Answer, Refusal, set, whole};
use super::intake::{self, NotTaken};
use super::masking::{self, Masking};
use crate::policy::{DataClass, Policy};
use crate::router::Reply;
use crate::units::printable;
use crate::wire::ChatRequest;
use attempt::InFlight;
use settle::{Exchange, Settled};

/// Headers of a client that are sent on; every other one stays here (case B151). They carry a trace, no credential.
const FORWARDED: [&str; 2] = ["traceparent", "tracestate"];

/// What the ledger has to do with the tool calls of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// It names its conversation: they are the ledger's.
    InLedger,
    /// It does not, and offers tools that must not run twice: they go out as they come, and people are told.
    Unledgered,
    /// There is no harm in them.
    Harmless,
}

/// A refusal that never reached the core.
fn early(
    app: &App,
    client: Option<&Arc<Client>>,
    route: &str,
    outcome: &str,
    refusal: Refusal,
) -> Result<Answer, Refusal> {
    app.metrics.request(route, outcome);
    if let Some(client) = client {
        app.metrics.client_request(&client.name, outcome);
    }
    Err(refusal)
}

/// `POST /v1/chat/completions`. `client`: who asks, where clients have keys. `stalled` is set by the connection when its client has stopped reading.
///
/// # Errors
/// Why the request never reached the core.
pub async fn chat(
    app: &Arc<App>,
    id: &str,
    request: Request<Incoming>,
    client: Option<&Arc<Client>>,
    stalled: Arc<AtomicBool>,
) -> Result<Answer, Refusal> {
    let early = |route: &str, outcome: &str, refusal| early(app, client, route, outcome, refusal);
    if app.draining.load(Ordering::Relaxed) {
        return early("none", "shutting_down", shutting_down());
    }
    let headers = request.headers().clone();
    // Before a byte of the body is read.
    let admitted = match (&app.clients, client) {
        (Some(clients), Some(client)) => Some(clients.admit(Arc::clone(client), app.driver.now())),
        _ => None,
    };
    let mut permit = admitted.transpose().map_err(|rejected| app.rejected(id, rejected))?;
    let taken = match intake::body(request, &app.memory).await {
        Ok(taken) => taken,
        Err(NotTaken::Refused(refusal)) => {
            tracing::info!(request = id, status = refusal.status.as_u16(), "request refused while it was read");
            return early("none", "bad_request", refusal);
        }
        Err(NotTaken::Gone(refusal)) => return early("none", "client_gone", refusal),
    };
    let chat = match ChatRequest::parse(taken.bytes.clone()) {
        Ok(chat) => chat,
        Err(bad) => {
            let message = format!("{} Correct the request before it is sent again.", bad.message);
            let refusal = Refusal::invalid(StatusCode::BAD_REQUEST, "invalid_request", message).param(bad.param);
            return early("none", "bad_request", refusal);
        }
    };
    let labels = match intake::labels(&headers, &chat) {
        Ok(labels) => labels,
        Err(refusal) => return early("none", "bad_request", refusal),
    };
    let asked = labels.route.as_deref().unwrap_or(&chat.model);
    let policy = app.policy();
    let Some(route) = policy.route_named(asked).cloned() else {
        return early("none", "unknown_route", intake::unknown_route(&policy, client.map(|c| &**c), asked));
    };
    if let Some(permit) = &mut permit {
        permit.ask(&route.name, taken.bytes.len(), app.driver.now()).map_err(|rejected| app.rejected(id, rejected))?;
    }
    let permit = permit.map(Arc::new);
    let expired = app.expired();
    let names = match masking::names(&headers, &chat) {
        Ok(names) => names,
        Err(refusal) => return early("none", "bad_request", refusal),
    };
    let personal = intake::data(&labels) == DataClass::Personal || route.data == DataClass::Personal;
    let (masking, unmaskable) = Masking::prepare(&route, &chat, personal, names).await;
    let asking = intake::client(client.map(|c| c.name.as_str()), &headers);
    let mut facts = match intake::facts(&policy, &route, &chat, &labels, asking, expired) {
        Ok(facts) => facts,
        Err(refusal) => return early(&route.name, "bad_request", refusal),
    };
    facts.unmaskable = unmaskable;
    facts.prompt_sha256 = app.admitted.prompt(&chat);
    app.look_at_prompt(&route, facts.prompt_sha256.as_deref());
    // What only a prompt asks for must be checked when it comes back; what cannot be checked needs a target that decodes by it.
    let may_be_adapted = facts.strict_schema && !facts.strict_decoding && adapters::stand_in(&policy, &route);
    facts.strict_decoding |= may_be_adapted && app.adapters.kept(&chat).is_none();
    // After the expiry tools are withheld from what is still answered (`on_expired`).
    if expired {
        (facts.tools, facts.risky_tools) = (false, false);
    }
    // Without a conversation the ledger can only say that it knows nothing of the calls.
    let calls = match (&facts.conversation, facts.risky_tools) {
        (Some(_), _) => Calls::InLedger,
        (None, true) => Calls::Unledgered,
        (None, false) => Calls::Harmless,
    };
    let shape = replay::Shape { model: chat.model.clone(), stream: chat.stream, include_usage: chat.include_usage };
    let conversation = labels.conversation.as_deref().map(|c| printable(c, 128));
    let turn = labels.turn.or(Some(u64::from(chat.user_messages)));
    let meta = Meta { request: id.to_owned(), conversation, turn, client: client.map(|c| c.name.clone()) };
    let correlation = reply::correlation(&meta);
    let open = InFlight::new(app.metrics.requests_open.clone());
    let mut ticket = app.driver.arrive(facts, meta);
    ticket.watch_stall(stalled);
    let mut forwarded = HeaderMap::new();
    for name in FORWARDED {
        if let Some(value) = headers.get(name) {
            forwarded.insert(name, value.clone());
        }
    }
    let policy = Arc::clone(&ticket.policy);
    let (route_name, every) = (route.name.clone(), route.keep_alive.filter(|_| shape.stream));
    let version = policy.version.clone();
    let exchange =
        Exchange::new(Arc::clone(app), ticket, (chat, masking), Arc::clone(&policy), route, calls, forwarded)
            .of_client(permit.clone());
    let came = Came {
        app: Arc::clone(app),
        id: id.to_owned(),
        taken,
        policy,
        route: route_name,
        calls,
        shape,
        correlation,
        open,
        client: permit,
    };
    let mut answer = match every {
        Some(every) => keep_alive::answer(Box::pin(came.answer(exchange)), every).await,
        None => came.answer(exchange).await,
    };
    set(answer.headers_mut(), "x-llmfo-policy", &version);
    Ok(answer)
}

/// A request on its way: what its answer is made of beside what the core decides.
struct Came {
    app: Arc<App>,
    id: String,
    taken: intake::Taken,
    policy: Arc<Policy>,
    route: String,
    calls: Calls,
    shape: replay::Shape,
    correlation: String,
    open: InFlight,
    client: Option<Arc<Permit>>,
}

impl Came {
    async fn answer(self, exchange: Exchange) -> Answer {
        let Came { app, id, taken, policy, route, calls, shape, correlation, open, client } = self;
        match exchange.settle().await {
            Settled::Stream { app, ticket, attempt, attempts, degraded } => {
                drop(taken);
                let target = policy.target(attempt.target).name.clone();
                let came = stream::CameIn { policy, route, calls, client };
                let mut answer = Response::new(stream::relay(app, ticket, attempt, id, came, open));
                keep_alive::stream_headers(&mut answer);
                reply::answered(answer.headers_mut(), &target, attempts, degraded);
                answer
            }
            Settled::Whole { target, bytes, attempts, degraded } => {
                let mut answer = Response::new(whole(bytes));
                let headers = answer.headers_mut();
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
                reply::answered(headers, &target, attempts, degraded);
                answer
            }
            Settled::Reply { reply: Reply::FromLedger { calls }, attempts, error } => {
                let ids = calls.iter().map(|call| call.call_id.clone()).collect();
                match app.ledger.calls(ids).await {
                    Ok(rows) => replay::answer(&rows, &shape, &id),
                    Err(why) => {
                        tracing::error!(request = id, "a repeated turn cannot be answered from the ledger: {why}");
                        reply::reply(&Reply::FromLedger { calls }, attempts, error, &id, &correlation)
                    }
                }
            }
            Settled::Reply { reply, attempts, error } => reply::reply(&reply, attempts, error, &id, &correlation),
            Settled::Aborted(why) => reply::aborted(why, &id),
        }
    }
}

fn shutting_down() -> Refusal {
    Refusal::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "overloaded",
        "shutting_down",
        "This gateway is shutting down; use another one.",
    )
    .closing()
    .retry_after(std::time::Duration::from_secs(1))
}
