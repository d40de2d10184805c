//! Clients and their keys: who asks, whether it may, and how much of its quota is left. Deciding is [`book`]'s; here are the
//! clock, the lock, and the words in which a client hears it.

pub mod book;

use std::sync::{Arc, Mutex, PoisonError};

use http::header::AUTHORIZATION;
use http::{HeaderMap, StatusCode};
use sha2::{Digest as _, Sha256};

use super::bus::unix_ms;
use super::held::Held;
use super::http::Refusal;
use crate::units::{Ts, hex, printable};
use book::{Book, Client, Denied, Quota, whose};

/// A client's name in metrics where its key is nobody's.
pub const UNKNOWN: &str = "unknown";
/// Prefix of the keys that [`new_key`] makes: what hides keys knows it.
const PREFIX: &str = "sk-llmfo-";

/// A new key, from the system's random numbers: 256 bits in hex. `None` if there are none to be had.
#[must_use]
pub fn new_key() -> Option<String> {
    let mut random = [0; 32];
    rustls::crypto::ring::default_provider().secure_random.fill(&mut random).ok()?;
    Some(format!("{PREFIX}{}", hex(&random)))
}

/// SHA-256 of a key, in hex, as a file of client keys has it.
#[must_use]
pub fn hash_of(key: &str) -> String {
    hex(&digest(key.as_bytes()))
}

fn digest(key: &[u8]) -> book::Digest {
    Sha256::digest(key).into()
}

/// One key that opens everything: that of the admin listener. Only its hash is kept.
#[derive(Clone, Copy)]
pub struct AdminKey(book::Digest);

impl AdminKey {
    /// From the key.
    #[must_use]
    pub fn new(key: &str) -> AdminKey {
        AdminKey(digest(key.as_bytes()))
    }

    /// The request carries it.
    #[must_use]
    pub fn fits(&self, headers: &HeaderMap) -> bool {
        use subtle::ConstantTimeEq;
        bearer(headers).is_ok_and(|key| digest(key).ct_eq(&self.0).into())
    }
}

impl std::fmt::Debug for AdminKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AdminKey")
    }
}

/// The key of a request, or what is wrong with how it is given.
fn bearer(headers: &HeaderMap) -> Result<&[u8], &'static str> {
    let mut all = headers.get_all(AUTHORIZATION).iter();
    let value = all.next().ok_or("There is no key")?.as_bytes();
    if all.next().is_some() {
        return Err("There are two Authorization headers");
    }
    let (scheme, key) = value.split_at_checked(7).ok_or("The Authorization header holds no key")?;
    let key = key.trim_ascii();
    if !scheme.eq_ignore_ascii_case(b"bearer ") || key.is_empty() {
        return Err("The Authorization header holds no key");
    }
    Ok(key)
}

/// The clients of a running gateway.
#[derive(Debug)]
pub struct Clients {
    listed: Held<[Arc<Client>]>,
    book: Mutex<Book>,
}

impl Clients {
    /// With these clients.
    #[must_use]
    pub fn new(clients: Vec<Client>) -> Clients {
        let all = Clients { listed: Held::new([]), book: Mutex::default() };
        all.hold(clients);
        all
    }

    /// These clients count from now on. Requests under way are not touched.
    pub fn hold(&self, clients: Vec<Client>) {
        let clients: Arc<[Arc<Client>]> = clients.into_iter().map(Arc::new).collect();
        self.book().hold(&clients);
        self.listed.hold(clients);
    }

    /// The clients that count now.
    #[must_use]
    pub fn listed(&self) -> Arc<[Arc<Client>]> {
        self.listed.now()
    }

    fn book(&self) -> std::sync::MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who asks.
    ///
    /// # Errors
    /// 401: no key, nobody's, or one that has expired.
    pub fn identify(&self, headers: &HeaderMap) -> Result<Arc<Client>, Rejected> {
        let key = bearer(headers).map_err(|why| Rejected::unauthorized(UNKNOWN, "no_key", why))?;
        let now = i64::try_from(unix_ms() / 1000).unwrap_or(i64::MAX);
        whose(&self.listed(), &digest(key), now).map_err(Rejected::of)
    }

    /// A request of this client begins; it is over when the permit is dropped.
    ///
    /// # Errors
    /// 429: its quota is used up.
    pub fn admit(self: &Arc<Clients>, client: Arc<Client>, now: Ts) -> Result<Permit, Rejected> {
        self.book().enter(&client, now).map_err(Rejected::of)?;
        Ok(Permit { clients: Arc::clone(self), client, counted: 0 })
    }
}

/// A request of a client, while it is under way.
#[derive(Debug)]
pub struct Permit {
    clients: Arc<Clients>,
    client: Arc<Client>,
    /// Tokens that it was counted with before anybody had counted them.
    counted: u64,
}

impl Permit {
    /// Whose.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.client.name
    }

    /// It asks for this route, with a body of so many bytes. Tokens are counted as the core does, three bytes each.
    ///
    /// # Errors
    /// 403: the route is not for this client. 429: its tokens are used up.
    pub fn ask(&mut self, route: &str, body_bytes: usize, now: Ts) -> Result<(), Rejected> {
        if !self.client.may(route) {
            return Err(Rejected::route(&self.client, route));
        }
        let tokens = u64::try_from(body_bytes / 3).unwrap_or(u64::MAX);
        self.clients.book().spend(&self.client, now, tokens).map_err(Rejected::of)?;
        self.counted = tokens;
        Ok(())
    }

    /// The answer says how many tokens it took, sent and received.
    pub fn took(&self, tokens: u64, now: Ts) {
        let more = tokens.saturating_sub(self.counted);
        if more > 0 {
            self.clients.book().spend_more(&self.client.name, now, more);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.clients.book().leave(&self.client.name);
    }
}

/// A request that is not taken: whose, why in one word, and its answer.
#[derive(Clone, Debug)]
pub struct Rejected {
    /// The client by name, or [`UNKNOWN`].
    pub client: String,
    /// From a closed list: `no_key`, `unknown_key`, `expired_key`, `route`, `requests`, `tokens`, `concurrent`.
    pub why: &'static str,
    /// The answer.
    pub refusal: Box<Refusal>,
}

impl Rejected {
    fn unauthorized(client: &str, why: &'static str, what: &str) -> Rejected {
        let message =
            format!("{what}; send the key that you were given for this gateway as `Authorization: Bearer KEY`.");
        let refusal = Refusal::invalid(StatusCode::UNAUTHORIZED, "invalid_api_key", message).bearer();
        Rejected { client: client.to_owned(), why, refusal: Box::new(refusal) }
    }

    fn route(client: &Client, route: &str) -> Rejected {
        let mut may: Vec<&str> = client.routes().into_iter().flatten().map(String::as_str).collect();
        may.truncate(20);
        let message = format!(
            "The key of {} is not for the model `{}`; it is for: {}. Ask for one of these, or have the route added to the key.",
            client.name,
            printable(route, 80),
            may.join(", ")
        );
        let refusal = Refusal::invalid(StatusCode::FORBIDDEN, "route_not_allowed", message).param(Some("model"));
        Rejected { client: client.name.clone(), why: "route", refusal: Box::new(refusal) }
    }

    fn of(denied: Denied) -> Rejected {
        match denied {
            Denied::Unknown => {
                Rejected::unauthorized(UNKNOWN, "unknown_key", "This key is not one of this gateway's clients")
            }
            Denied::Expired { client } => {
                let what = format!("The key of {client} has expired");
                Rejected::unauthorized(&client, "expired_key", &what)
            }
            Denied::Quota { client, what, limit, wait } => {
                let (why, what) = match what {
                    Quota::Requests => ("requests", format!("{limit} requests in a minute")),
                    Quota::Tokens => ("tokens", format!("{limit} tokens in a minute")),
                    Quota::Concurrent => ("concurrent", format!("{limit} requests at once")),
                };
                let message =
                    format!("The quota of {client}, {what}, is used up; send the request again after `Retry-After`.");
                let refusal = Refusal::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", "client_quota", message)
                    .retry_after(wait);
                Rejected { client, why, refusal: Box::new(refusal) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(values: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(AUTHORIZATION, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn a_key_stands_behind_bearer_and_once() {
        assert_eq!(bearer(&headers(&["Bearer sk-1"])), Ok(&b"sk-1"[..]));
        assert_eq!(bearer(&headers(&["bEARER   sk-1 "])), Ok(&b"sk-1"[..]));
        for bad in [&[][..], &["Bearer"], &["Bearer "], &["Basic sk-1"], &["sk-1"], &["Bearer a", "Bearer a"]] {
            assert!(bearer(&headers(bad)).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn keys_are_long_random_and_hidden_by_what_hides_keys() {
        let (a, b) = (new_key().unwrap(), new_key().unwrap());
        assert!(a != b && a.len() == PREFIX.len() + 64 && a.starts_with(PREFIX));
        assert!(crate::units::KEY_PREFIXES.iter().any(|p| a.starts_with(p)));
        // As `printf abc | sha256sum` says.
        assert_eq!(hash_of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn the_admin_key_fits_itself_alone_and_shows_nothing() {
        let key = AdminKey::new("sk-admin");
        assert!(key.fits(&headers(&["Bearer sk-admin"])));
        assert!(!key.fits(&headers(&["Bearer sk-admi"])) && !key.fits(&headers(&[])));
        assert_eq!(format!("{key:?}"), "AdminKey");
    }
}
