//! The HTTP client towards models: one [`Client`] per endpoint, with its own small pool of connections, HTTP/1.1 or, by choice,
//! HTTP/2.
//!
//! It is written on `hyper`'s connection API and not on a general client, because failover needs to see what a general
//! client hides: whether this very attempt rode on a connection that had been idle (its failure is nobody's fault and is
//! retried once), when a new connection stood (the connect limit is inside the first-token limit), what exactly failed,
//! and that dropping an attempt closes its socket at once, so that the provider stops working for nobody.
//!
//! Nothing is ever sent twice by this module (whoever asks hears whether a request may be: [`Fault::stale`]), no redirect is followed, no proxy is taken from the environment, and no
//! header reaches a provider that was not put there by the caller.
//!
//! ```text
//! client.connect(fresh) -> Link (reused or new) -> link.send(call) -> Reply { status, headers, body } -> body frames
//! ```

mod bell;
mod body;
mod client;
mod decode;
mod dial;
mod endpoint;
mod fault;
mod pieces;
mod pool;
mod secret;
mod stream;
mod wire;

pub use body::Body;
pub use client::{Call, Client, Link, Reply};
pub use dial::Tls;
pub use endpoint::Endpoint;
pub use fault::{Fault, FaultKind};
pub use pool::PoolLimits;
pub use secret::{Secret, read_secret};

/// The user agent of everything that this module sends.
pub const USER_AGENT: &str = concat!("llmfo/", env!("CARGO_PKG_VERSION"));
