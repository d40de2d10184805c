//! `[P]` Which client a key belongs to, and what it may: no clock and no socket, time comes in.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use subtle::ConstantTimeEq;

use crate::router::Rate;
use crate::spec::client_keys::{ClientKeysFile, KeyHash, unix_s};
use crate::units::Ts;

/// SHA-256 of a key.
pub type Digest = [u8; 32];

/// A client, as its file has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// Its name.
    pub name: String,
    keys: Vec<Digest>,
    routes: Option<BTreeSet<String>>,
    requests_per_minute: Option<u64>,
    tokens_per_minute: Option<u64>,
    concurrent: Option<u32>,
    expires_unix_s: Option<i64>,
}

impl Client {
    /// It may ask for this route.
    #[must_use]
    pub fn may(&self, route: &str) -> bool {
        self.routes.as_ref().is_none_or(|routes| routes.contains(route))
    }

    /// The routes that it is held to, if it is.
    #[must_use]
    pub fn routes(&self) -> Option<&BTreeSet<String>> {
        self.routes.as_ref()
    }
}

/// The clients of a file without errors.
#[must_use]
pub fn clients(file: &ClientKeysFile) -> Vec<Client> {
    let client = |(name, c): (&str, &crate::spec::client_keys::ClientKeys)| Client {
        name: name.to_owned(),
        keys: c.sha256.iter().filter_map(KeyHash::bytes).collect(),
        routes: c.routes.as_ref().map(|routes| routes.iter().map(str::to_owned).collect()),
        requests_per_minute: c.requests_per_minute,
        tokens_per_minute: c.tokens_per_minute,
        concurrent: c.concurrent.map(|n| n.0),
        // What cannot be read is an error of the file; were it not, the key would not hold.
        expires_unix_s: c.expires.as_deref().map(|text| unix_s(text).unwrap_or(i64::MIN)),
    };
    file.clients.iter().map(client).collect()
}

/// Why a request is not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denied {
    /// The key is nobody's.
    Unknown,
    /// It has expired.
    Expired {
        /// Whose it is.
        client: String,
    },
    /// A quota is used up.
    Quota {
        /// Whose.
        client: String,
        /// Which.
        what: Quota,
        /// How much of it there is.
        limit: u64,
        /// When there is room again.
        wait: Duration,
    },
}

/// What a client has only so much of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quota {
    /// Requests in a minute.
    Requests,
    /// Tokens in a minute.
    Tokens,
    /// Requests at once.
    Concurrent,
}

/// Whose key it is. Every key of every client is compared, whole, so that the time tells nothing about any of them.
///
/// # Errors
/// Nobody's; or it has expired.
pub fn whose(clients: &[Arc<Client>], digest: &Digest, now_unix_s: i64) -> Result<Arc<Client>, Denied> {
    let mut found = None;
    for client in clients {
        for key in &client.keys {
            if same(key, digest) {
                found = Some(client);
            }
        }
    }
    let client = found.ok_or(Denied::Unknown)?;
    if client.expires_unix_s.is_some_and(|at| now_unix_s >= at) {
        return Err(Denied::Expired { client: client.name.clone() });
    }
    Ok(Arc::clone(client))
}

/// In a time that tells nothing of where they differ. By words: a file may hold thousands of keys, and each is compared.
fn same(a: &Digest, b: &Digest) -> bool {
    let words = |d: &Digest| {
        let (words, _) = d.as_chunks::<8>();
        [words[0], words[1], words[2], words[3]].map(u64::from_ne_bytes)
    };
    let differ = words(a).iter().zip(words(b)).fold(0, |differ, (a, b)| differ | (a ^ b));
    differ.ct_eq(&0).into()
}

/// What one client has used.
#[derive(Clone, Debug, Default)]
struct Used {
    requests: Rate,
    tokens: Rate,
    open: u32,
}

impl Used {
    fn of(client: &Client) -> Used {
        let mut used = Used::default();
        used.requests.declare(client.requests_per_minute, None);
        used.tokens.declare(None, client.tokens_per_minute);
        used
    }
}

/// What all clients have used.
#[derive(Clone, Debug, Default)]
pub struct Book {
    used: BTreeMap<String, Used>,
}

/// Wait of a client whose requests at once are all in use: nobody knows when one ends.
const SOON: Duration = Duration::from_secs(1);

impl Book {
    /// These clients count from now on; what they have used under another file stays used.
    pub fn hold(&mut self, clients: &[Arc<Client>]) {
        let mut before = std::mem::take(&mut self.used);
        for client in clients {
            let mut used = Used::of(client);
            if let Some(old) = before.remove(&client.name) {
                used.requests.inherit(&old.requests);
                used.tokens.inherit(&old.tokens);
                used.open = old.open;
            }
            self.used.insert(client.name.clone(), used);
        }
        // A client that is gone may come back while a request of it is still open.
        self.used.extend(before.into_iter().filter(|(_, used)| used.open > 0));
    }

    /// A request of a client begins. It counts at once, whatever becomes of it.
    ///
    /// # Errors
    /// Its requests, or its tokens, are used up.
    pub fn enter(&mut self, client: &Client, now: Ts) -> Result<(), Denied> {
        let used = self.used.entry(client.name.clone()).or_insert_with(|| Used::of(client));
        let denied = |what, limit, wait| Err(Denied::Quota { client: client.name.clone(), what, limit, wait });
        if let Some(limit) = client.concurrent.filter(|limit| used.open >= *limit) {
            return denied(Quota::Concurrent, u64::from(limit), SOON);
        }
        if let Some(at) = used.requests.until(now, 0) {
            return denied(Quota::Requests, client.requests_per_minute.unwrap_or(0), at.since(now));
        }
        // Who has none left need not upload a body to hear of it.
        if let Some(at) = used.tokens.until(now, 1) {
            return denied(Quota::Tokens, client.tokens_per_minute.unwrap_or(0), at.since(now));
        }
        used.requests.spend(now, 0);
        used.open = used.open.saturating_add(1);
        Ok(())
    }

    /// A request is about to spend so many tokens.
    ///
    /// # Errors
    /// There are not so many left.
    pub fn spend(&mut self, client: &Client, now: Ts, tokens: u64) -> Result<(), Denied> {
        let Some(used) = self.used.get_mut(&client.name) else { return Ok(()) };
        if let Some(at) = used.tokens.until(now, tokens) {
            return Err(Denied::Quota {
                client: client.name.clone(),
                what: Quota::Tokens,
                limit: client.tokens_per_minute.unwrap_or(0),
                wait: at.since(now),
            });
        }
        used.tokens.spend(now, tokens);
        Ok(())
    }

    /// It has spent so many more than was thought.
    pub fn spend_more(&mut self, client: &str, now: Ts, tokens: u64) {
        if let Some(used) = self.used.get_mut(client) {
            used.tokens.spend_more(now, tokens);
        }
    }

    /// A request that had begun is over.
    pub fn leave(&mut self, client: &str) {
        if let Some(used) = self.used.get_mut(client) {
            used.open = used.open.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(name: &str, keys: &[u8]) -> Client {
        Client {
            name: name.into(),
            keys: keys.iter().map(|b| [*b; 32]).collect(),
            routes: None,
            requests_per_minute: None,
            tokens_per_minute: None,
            concurrent: None,
            expires_unix_s: None,
        }
    }

    fn held(clients: Vec<Client>) -> (Vec<Arc<Client>>, Book) {
        let clients: Vec<Arc<Client>> = clients.into_iter().map(Arc::new).collect();
        let mut book = Book::default();
        book.hold(&clients);
        (clients, book)
    }

    fn wait(denied: Result<(), Denied>) -> (Quota, u64, u64) {
        match denied {
            Err(Denied::Quota { what, limit, wait, .. }) => (what, limit, wait.as_secs()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_key_is_found_whole_and_both_of_two_hold() {
        let (all, _) = held(vec![client("shop", &[1, 2]), client("batch", &[3])]);
        let of = |key: Digest| whose(&all, &key, 0).map(|c| c.name.clone());
        assert_eq!((of([1; 32]), of([2; 32]), of([3; 32])), (Ok("shop".into()), Ok("shop".into()), Ok("batch".into())));
        let mut nearly = [3; 32];
        nearly[31] = 4;
        assert_eq!(of(nearly), Err(Denied::Unknown));
        assert_eq!(whose(&[], &[1; 32], 0), Err(Denied::Unknown), "no clients, nobody");
    }

    #[test]
    fn a_key_holds_until_the_second_it_expires() {
        let (all, _) = held(vec![Client { expires_unix_s: Some(1_000), ..client("shop", &[1]) }]);
        assert!(whose(&all, &[1; 32], 999).is_ok());
        assert_eq!(whose(&all, &[1; 32], 1_000), Err(Denied::Expired { client: "shop".into() }));
    }

    #[test]
    fn routes_are_an_allow_list() {
        let free = client("a", &[1]);
        let held = Client { routes: Some(BTreeSet::from(["chat".to_owned()])), ..client("b", &[2]) };
        assert!(free.may("chat") && free.may("voice") && held.may("chat") && !held.may("voice"));
    }

    #[test]
    fn requests_a_minute_are_counted_for_each_client_alone() {
        let limited = |name: &str, key| Client { requests_per_minute: Some(2), ..client(name, &[key]) };
        let (all, mut book) = held(vec![limited("a", 1), limited("b", 2)]);
        let (a, b) = (&*all[0], &*all[1]);
        assert_eq!(book.enter(a, Ts::from_s(10)), Ok(()));
        assert_eq!(book.enter(a, Ts::from_s(20)), Ok(()));
        // The one of second 10 stops counting at second 70.
        assert_eq!(wait(book.enter(a, Ts::from_s(30))), (Quota::Requests, 2, 40));
        assert_eq!(book.enter(b, Ts::from_s(30)), Ok(()));
        assert_eq!(book.enter(a, Ts::from_s(70)), Ok(()), "what was refused did not count");
    }

    #[test]
    fn requests_at_once_are_given_back() {
        let (all, mut book) = held(vec![Client { concurrent: Some(1), ..client("a", &[1]) }]);
        assert_eq!(book.enter(&all[0], Ts::ZERO), Ok(()));
        assert_eq!(wait(book.enter(&all[0], Ts::ZERO)), (Quota::Concurrent, 1, 1));
        book.leave("a");
        assert_eq!(book.enter(&all[0], Ts::ZERO), Ok(()));
    }

    #[test]
    fn tokens_are_spent_as_estimated_and_corrected() {
        let (all, mut book) = held(vec![Client { tokens_per_minute: Some(100), ..client("a", &[1]) }]);
        let a = &*all[0];
        book.enter(a, Ts::from_s(5)).unwrap();
        book.spend(a, Ts::from_s(5), 60).unwrap();
        assert_eq!(wait(book.spend(a, Ts::from_s(6), 41)), (Quota::Tokens, 100, 59));
        book.spend_more("a", Ts::from_s(7), 40);
        assert_eq!(wait(book.enter(a, Ts::from_s(8))), (Quota::Tokens, 100, 57), "before anything is uploaded");
        assert_eq!(book.enter(a, Ts::from_s(65)), Ok(()));
    }

    #[test]
    fn another_file_forgets_nothing_that_was_used() {
        let limited = |n| Client { requests_per_minute: Some(n), concurrent: Some(2), ..client("a", &[1]) };
        let (all, mut book) = held(vec![limited(1)]);
        book.enter(&all[0], Ts::from_s(1)).unwrap();
        let raised = [Arc::new(limited(2))];
        book.hold(&raised);
        assert_eq!(book.enter(&raised[0], Ts::from_s(2)), Ok(()));
        assert_eq!(wait(book.enter(&raised[0], Ts::from_s(2))).0, Quota::Concurrent, "both are still open");
        // Gone and back: the two that were open all the time still count.
        book.hold(&[]);
        book.hold(&raised);
        assert_eq!(wait(book.enter(&raised[0], Ts::from_s(200))).0, Quota::Concurrent);
        book.leave("a");
        assert_eq!(book.enter(&raised[0], Ts::from_s(200)), Ok(()));
        book.leave("nobody");
    }
}
