//! HTTP in front of the table: routes, statuses and headers as the real server has them (checks C01 to C09 of the tests).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use axum::body::Body as HttpBody;
use axum::extract::State;
use http::header::{CONTENT_TYPE, HeaderName, LOCATION, USER_AGENT};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::body::{Body, first_value};
use super::error::ApiError;
use super::heal::{self, Why};
use super::table::Table;

/// A request body larger than this is refused.
const BODY_MAX_BYTES: usize = 2 << 20;
/// A request body has to be there by then.
const BODY_MAX: Duration = Duration::from_secs(5);
/// The API level we follow, and who we are.
const VERSION: &str = "2.12.0-llmfo";

static REQUESTS: AtomicU64 = AtomicU64::new(1);

/// Where a path leads.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Route {
    Version,
    Proxies,
    Proxy(String),
    Toxics(String),
    Toxic(String, String),
    Populate,
    Reset,
    Lease,
    LeaseOf(String),
    Leases,
    History,
    Counters,
}

fn route(path: &str) -> Option<Route> {
    let parts: Option<Vec<String>> = path.strip_prefix('/')?.split('/').map(decode).collect();
    let parts = parts?;
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    if parts.iter().any(|p| p.is_empty() || p.contains('/')) {
        return None;
    }
    Some(match parts.as_slice() {
        ["version"] => Route::Version,
        ["proxies"] => Route::Proxies,
        ["proxies", p] => Route::Proxy((*p).to_owned()),
        ["proxies", p, "toxics"] => Route::Toxics((*p).to_owned()),
        ["proxies", p, "toxics", t] => Route::Toxic((*p).to_owned(), (*t).to_owned()),
        ["populate"] => Route::Populate,
        ["reset"] => Route::Reset,
        ["llmfo", "v1", "lease"] => Route::Lease,
        ["llmfo", "v1", "lease", id] => Route::LeaseOf((*id).to_owned()),
        ["llmfo", "v1", "leases"] => Route::Leases,
        ["llmfo", "v1", "history"] => Route::History,
        ["llmfo", "v1", "counters"] => Route::Counters,
        _ => return None,
    })
}

/// Percent-decodes; nothing for what is not UTF-8 then.
fn decode(part: &str) -> Option<String> {
    let mut out = Vec::new();
    let mut bytes = part.bytes();
    while let Some(b) = bytes.next() {
        if b == b'%' {
            let digits = [bytes.next()?, bytes.next()?];
            out.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
        } else {
            out.push(b);
        }
    }
    String::from_utf8(out).ok()
}

fn allowed(route: &Route, method: &Method) -> bool {
    let (get, post) = (method == Method::GET, method == Method::POST);
    let (patch, delete) = (method == Method::PATCH, method == Method::DELETE);
    match route {
        Route::Version | Route::Leases | Route::History | Route::Counters => get,
        Route::Proxies | Route::Toxics(_) => get || post,
        Route::Proxy(_) | Route::Toxic(..) => get || post || patch || delete,
        Route::Populate | Route::Reset | Route::Lease => post,
        Route::LeaseOf(_) => delete,
    }
}

/// Answers one request.
pub async fn handle(State(table): State<Arc<Table>>, request: Request<HttpBody>) -> Response<HttpBody> {
    let path = request.uri().path().to_owned();
    if path.contains("//") {
        let mut clean = path;
        while clean.contains("//") {
            clean = clean.replace("//", "/");
        }
        let mut answer = plain(StatusCode::MOVED_PERMANENTLY, "");
        if let Ok(place) = HeaderValue::from_str(&clean) {
            answer.headers_mut().insert(LOCATION, place);
        }
        return answer;
    }
    let Some(route) = route(&path) else {
        return plain(StatusCode::NOT_FOUND, "404 page not found\n");
    };
    if !allowed(&route, request.method()) {
        let mut answer = Response::new(HttpBody::empty());
        *answer.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
        return answer;
    }
    let agent = request.headers().get(USER_AGENT).map(HeaderValue::as_bytes).unwrap_or_default();
    let mut answer = if agent.starts_with(b"Mozilla/") {
        // Pages in a browser on this machine must not reach the API.
        plain(StatusCode::FORBIDDEN, "User agent not allowed\n")
    } else {
        match routed(&table, route, request).await {
            Ok(answer) => answer,
            Err(error) => refusal(&error),
        }
    };
    let id = format!("{:020x}", REQUESTS.fetch_add(1, Relaxed));
    if let Ok(id) = HeaderValue::from_str(&id) {
        answer.headers_mut().insert(HeaderName::from_static("x-toxiproxy-request-id"), id);
    }
    answer
}

async fn routed(table: &Table, route: Route, request: Request<HttpBody>) -> Result<Response<HttpBody>, ApiError> {
    let (parts, body) = request.into_parts();
    let (get, delete) = (parts.method == Method::GET, parts.method == Method::DELETE);
    let bytes = if get || delete { Default::default() } else { read(body).await? };
    Ok(match route {
        Route::Version => {
            let mut text = json!({ "version": VERSION, "server": "llmfo" }).to_string();
            text.push('\n');
            answer(StatusCode::OK, "application/json;charset=utf-8", text)
        }
        Route::Proxies if get => ok(&table.json()),
        Route::Proxies => {
            let proxy = table.create(&Body::read(&bytes)?).await?;
            answer(StatusCode::CREATED, "application/json", proxy.json().to_string())
        }
        Route::Proxy(name) if get => ok(&table.proxy(&name)?.json()),
        Route::Proxy(name) if delete => {
            table.delete(&name).await?;
            empty()
        }
        Route::Proxy(name) => {
            table.proxy(&name)?;
            ok(&table.update(&name, &Body::read(&bytes)?).await?.json())
        }
        Route::Toxics(name) if get => ok(&Value::Array(table.proxy(&name)?.toxics_json())),
        Route::Toxics(name) => {
            table.proxy(&name)?;
            ok(&table.add_toxic(&name, &Body::read(&bytes)?).await?)
        }
        Route::Toxic(proxy, toxic) if get => ok(&table.toxic(&proxy, &toxic)?),
        Route::Toxic(proxy, toxic) if delete => {
            table.remove_toxic(&proxy, &toxic).await?;
            empty()
        }
        Route::Toxic(proxy, toxic) => {
            table.toxic(&proxy, &toxic)?;
            ok(&table.update_toxic(&proxy, &toxic, &Body::read(&bytes)?).await?)
        }
        Route::Populate => populate(table, first_value(&bytes)?).await,
        Route::Reset => {
            table.reset().await?;
            empty()
        }
        Route::Lease => {
            let body = Body::read(&bytes)?;
            let id = body.text("id")?.unwrap_or_default();
            let lease = table.leases().beat(&id, body.whole("ttl_ms")?.unwrap_or_default())?;
            table.wake.notify_one();
            ok(&json!(lease))
        }
        Route::LeaseOf(id) => {
            if !table.leases().end(&id) {
                return Err(ApiError::no_lease());
            }
            heal::sweep(table, Why::Deleted).await;
            empty()
        }
        Route::Leases => ok(&table.leases_json()),
        Route::History => ok(&json!({ "history": table.leases().history() })),
        Route::Counters => ok(&json!(table.counters())),
    })
}

async fn populate(table: &Table, input: Value) -> Response<HttpBody> {
    let shown = |made: &[Arc<super::proxy::Proxy>]| made.iter().map(|p| p.json()).collect::<Vec<_>>();
    match table.populate(input).await {
        Ok(made) => answer(StatusCode::CREATED, "application/json", json!({ "proxies": shown(&made) }).to_string()),
        Err((error, made)) => {
            let proxies = if made.is_empty() { Value::Null } else { Value::Array(shown(&made)) };
            let text = json!({ "error": error.text, "status": error.status, "proxies": proxies }).to_string();
            let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            answer(status, "application/json", text)
        }
    }
}

async fn read(body: HttpBody) -> Result<bytes::Bytes, ApiError> {
    match timeout(BODY_MAX, axum::body::to_bytes(body, BODY_MAX_BYTES)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(_)) => Err(ApiError::body(&format!("it is larger than {BODY_MAX_BYTES} bytes, or broke off"))),
        Err(_) => Err(ApiError::body("it did not arrive in time")),
    }
}

fn answer(status: StatusCode, kind: &'static str, text: impl Into<HttpBody>) -> Response<HttpBody> {
    let mut answer = Response::new(text.into());
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

fn ok(value: &Value) -> Response<HttpBody> {
    answer(StatusCode::OK, "application/json", value.to_string())
}

fn empty() -> Response<HttpBody> {
    let mut answer = Response::new(HttpBody::empty());
    *answer.status_mut() = StatusCode::NO_CONTENT;
    answer
}

fn plain(status: StatusCode, text: impl Into<HttpBody>) -> Response<HttpBody> {
    let mut answer = answer(status, "text/plain; charset=utf-8", text);
    let sniff = HeaderName::from_static("x-content-type-options");
    answer.headers_mut().insert(sniff, HeaderValue::from_static("nosniff"));
    answer
}

/// As plain text although it is JSON: that is how the real server sends its errors, and clients cope with it.
fn refusal(error: &ApiError) -> Response<HttpBody> {
    let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    plain(status, error.json())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        assert_eq!(route("/proxies/a%20b"), Some(Route::Proxy("a b".to_owned())));
        assert_eq!(route("/proxies/a%2Fb"), None);
        for unknown in ["/", "/proxies/", "/proxies/a/toxics/", "/metrics", "/proxies/%zz", "/proxies/%ff"] {
            assert_eq!(route(unknown), None, "{unknown}");
        }
        assert!(!allowed(&Route::Proxies, &Method::HEAD) && !allowed(&Route::Reset, &Method::GET));
    }
}
