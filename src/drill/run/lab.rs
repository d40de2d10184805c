//! The drill's own calls to a lab: what is where, what the providers saw, what the ticket system recorded; and its own
//! call through a broken path, to see whether the fault is felt.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method};
use http_body_util::{BodyExt, Limited};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::error::{Expected, Result};
use crate::lab::topology::Topology;
use crate::load::http::{Base, connect};
use crate::measure::{EffectRow, ProviderRow};

/// Limit of one call for evidence; a log may be large and the machine busy.
const LIMIT: Duration = Duration::from_secs(10);
/// Largest answer that is read: 20,000 rows of a log with room to spare.
const MAX_BYTES: usize = 256 * 1024 * 1024;

/// A lab's admin interface.
#[derive(Clone, Debug)]
pub struct Lab {
    base: Base,
    url: String,
}

#[derive(Deserialize)]
struct LogPage {
    rows: Vec<ProviderRow>,
    #[serde(default)]
    dropped: u64,
}

#[derive(Deserialize)]
struct TicketsPage {
    effects: Vec<EffectRow>,
    #[serde(default)]
    dropped: u64,
}

impl Lab {
    /// The lab at this admin URL.
    ///
    /// # Errors
    /// It is no URL.
    pub fn new(url: &str) -> Result<Lab> {
        Ok(Lab { base: Base::new(url)?, url: crate::units::printable(url, 200) })
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        let failed = |why: String| {
            Expected::could_not(
                format!("the lab at {} did not answer GET {path}: {why}", self.url),
                "is it up, and is this its admin URL? `llmfo lab up` prints it",
            )
        };
        get_json(&self.base, path, LIMIT).await.map_err(failed)
    }

    /// It answers within this limit; else why not.
    ///
    /// # Errors
    /// In words.
    pub async fn alive(&self, limit: Duration) -> std::result::Result<(), String> {
        get_json::<serde::de::IgnoredAny>(&self.base, "/topology", limit).await.map(|_| ())
    }

    /// What is where.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn topology(&self) -> Result<Topology> {
        self.get("/topology").await
    }

    /// What a provider saw since then (milliseconds of the monotonic clock), and how many rows of that its log had to drop.
    /// A lab that has run for long holds much more than that.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn provider_log(&self, name: &str, since_ms: f64) -> Result<(Vec<ProviderRow>, u64)> {
        let page: LogPage = self.get(&format!("/providers/{name}/log?since={since_ms}")).await?;
        Ok((page.rows, page.dropped))
    }

    /// What the ticket system recorded since then, and how many rows of that it had to drop.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn effects(&self, since_ms: f64) -> Result<(Vec<EffectRow>, u64)> {
        let page: TicketsPage = self.get(&format!("/tickets?since={since_ms}")).await?;
        Ok((page.effects, page.dropped))
    }
}

async fn get_json<T: DeserializeOwned>(base: &Base, path: &str, limit: Duration) -> std::result::Result<T, String> {
    let exchange = async {
        let mut connection = connect(base, limit).await?;
        let answer = connection.send(Method::GET, base, path, HeaderMap::new(), Bytes::new()).await?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_BYTES).collect().await.map_err(|e| e.to_string())?.to_bytes();
        if !status.is_success() {
            return Err(format!("status {}", status.as_u16()));
        }
        serde_json::from_slice(&body).map_err(|e| format!("unreadable: {e}"))
    };
    tokio::time::timeout(limit, exchange)
        .await
        .unwrap_or_else(|_| Err("timed out".into()))
        .map_err(|why| crate::units::printable(&why, 200))
}

/// What the drill's own call through a path met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Felt {
    /// An answer came, whatever its status.
    Answered,
    /// No connection: refused, or it timed out.
    NoConnection(String),
    /// A connection, and no answer within the limit or a broken one.
    NoAnswer(String),
}

impl Felt {
    /// In words.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Felt::Answered => "answered".into(),
            Felt::NoConnection(why) | Felt::NoAnswer(why) => why.clone(),
        }
    }
}

/// The status of the answer to a small request, if one comes.
pub async fn status(url: &str, below: &str, limit: Duration) -> Option<u16> {
    let base = Base::new(url).ok()?;
    let mut connection = connect(&base, limit).await.ok()?;
    let send = connection.send(Method::GET, &base, below, HeaderMap::new(), Bytes::new());
    Some(tokio::time::timeout(limit, send).await.ok()?.ok()?.status().as_u16())
}

/// Sends one small request through a path.
pub async fn feel(url: &str, below: &str, limit: Duration) -> Felt {
    let Ok(base) = Base::new(url) else { return Felt::NoConnection("no URL".into()) };
    let mut connection = match connect(&base, limit).await {
        Ok(connection) => connection,
        Err(why) => return Felt::NoConnection(why),
    };
    let send = connection.send(Method::GET, &base, below, HeaderMap::new(), Bytes::new());
    match tokio::time::timeout(limit, send).await {
        Ok(Ok(_)) => Felt::Answered,
        Ok(Err(why)) => Felt::NoAnswer(why),
        Err(_) => Felt::NoAnswer("no answer".into()),
    }
}
