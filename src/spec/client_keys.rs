//! The file of client keys: who may ask the gateway for what, and how much. It holds hashes, never a key.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;

use super::document::{Limits, SpannedDoc, load};
use super::named::Named;
use super::numbers::Count;
use super::rules;
use super::text::{NAME_FORM, Names};
use crate::diag::{Diagnostic, quoted};

/// Clients in one file. Every request is compared with each of their keys, so that the time it takes tells nothing.
pub const MAX_CLIENTS: usize = 1_000;

/// The clients of a gateway.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "llmfo client keys")]
pub struct ClientKeysFile {
    /// The clients by name. A name stands in logs, events and metrics, so it is no secret.
    #[schemars(extend("maxProperties" = 1_000))]
    pub clients: Named<ClientKeys>,
}

/// One client: an application, a team.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClientKeys {
    /// SHA-256 of its key, as `llmfo keys new` prints it; two or more while one takes the place of another.
    #[schemars(length(min = 1, max = 4))]
    pub sha256: Vec<KeyHash>,
    /// Routes that it may ask for; absent: all.
    pub routes: Option<Names>,
    /// Requests that it may send in a minute; absent: no limit.
    #[schemars(range(min = 1, max = 1_000_000_000_u64))]
    pub requests_per_minute: Option<u64>,
    /// Tokens, sent and received, in a minute; absent: no limit.
    #[schemars(range(min = 1, max = 1_000_000_000_000_u64))]
    pub tokens_per_minute: Option<u64>,
    /// Requests at once; absent: no limit.
    pub concurrent: Option<Count>,
    /// Its keys are refused from then on, as RFC 3339 with a zone; absent: never.
    #[schemars(example = "2027-01-31T00:00:00Z")]
    pub expires: Option<String>,
}

/// SHA-256 in hex.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct KeyHash(pub String);

impl KeyHash {
    /// Its 32 bytes.
    #[must_use]
    pub fn bytes(&self) -> Option<[u8; 32]> {
        let mut out = [0; 32];
        let (pairs, rest) = self.0.as_bytes().as_chunks::<2>();
        if pairs.len() != out.len() || !rest.is_empty() {
            return None;
        }
        for (byte, [high, low]) in out.iter_mut().zip(pairs) {
            let digit = |c: u8| char::from(c).to_digit(16).and_then(|d| u8::try_from(d).ok());
            *byte = (digit(*high)? << 4) | digit(*low)?;
        }
        Some(out)
    }
}

impl JsonSchema for KeyHash {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "KeyHash".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "pattern": "^[0-9A-Fa-f]{64}$",
            "description": "SHA-256 of a key: 64 hex digits",
        })
    }
}

/// Unix seconds of `expires`.
#[must_use]
pub fn unix_s(text: &str) -> Option<i64> {
    text.parse::<jiff::Timestamp>().ok().map(jiff::Timestamp::as_second)
}

/// A name that can stand in a header, a log and a metric.
#[must_use]
pub fn is_name(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let bytes = text.as_bytes();
    bytes.len() <= 64
        && bytes.first().is_some_and(|b| plain(*b))
        && bytes.iter().all(|b| plain(*b) || b"._:/@+-".contains(b))
}

/// Reads a file of client keys.
#[must_use]
pub fn read(name: &str, bytes: &[u8]) -> (Option<ClientKeysFile>, Vec<Diagnostic>, SpannedDoc) {
    let (file, mut found, doc) = load::<ClientKeysFile>(name, bytes, &Limits::DEFAULT);
    let mut seen: Vec<([u8; 32], &str)> = Vec::new();
    for (client, keys) in file.iter().flat_map(|f| f.clients.iter()) {
        let at = format!("/clients/{}", client.replace('~', "~0").replace('/', "~1"));
        if !is_name(client) {
            let d = doc.at_key(&rules::WRONG_FORM, &at, format!("{} cannot be a client's name", quoted(client)));
            found.push(d.expected(NAME_FORM));
        }
        if let Some(expires) = keys.expires.as_deref().filter(|text| unix_s(text).is_none()) {
            let what = format!("{} is no date and time with a zone", quoted(expires));
            let d = doc.at(&rules::WRONG_FORM, &format!("{at}/expires"), what);
            found.push(d.expected("RFC 3339, for example 2027-01-31T00:00:00Z"));
        }
        for hash in keys.sha256.iter().filter_map(KeyHash::bytes) {
            match seen.iter().find(|(known, _)| *known == hash) {
                Some((_, of)) => {
                    let what = format!("this key is also that of {}", quoted(of));
                    let d = doc.at(&rules::REPEATED_ELEMENT, &format!("{at}/sha256"), what);
                    found.push(d.help("give each client a key of its own: `llmfo keys new NAME`"));
                }
                None => seen.push((hash, client)),
            }
        }
    }
    (file, found, doc)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::text::NAME;

    fn found(text: &str) -> Vec<(String, String)> {
        let (_, found, _) = read("k.yaml", text.as_bytes());
        found.iter().map(|d| (d.rule.code.to_owned(), d.message.clone())).collect()
    }

    #[test]
    fn a_whole_file_is_read() {
        let one = "ab".repeat(32);
        let text = format!(
            "clients:\n  shop:\n    sha256: [{one}]\n    routes: [chat]\n    requests_per_minute: 60\n    concurrent: 4\n    \
             expires: 2027-01-31T00:00:00Z\n  batch: {{ sha256: [{}], tokens_per_minute: 1000 }}\n",
            "0F".repeat(32)
        );
        let (file, found, _) = read("k.yaml", text.as_bytes());
        assert!(found.is_empty(), "{found:#?}");
        let file = file.unwrap();
        let shop = file.clients.get("shop").unwrap();
        assert_eq!(shop.sha256[0].bytes(), Some([0xab; 32]));
        assert_eq!(shop.expires.as_deref().and_then(unix_s), Some(1_801_353_600));
        assert_eq!(file.clients.get("batch").unwrap().sha256[0].bytes(), Some([0x0f; 32]));
    }

    #[test]
    fn what_is_wrong_is_told() {
        let a = "aa".repeat(32);
        for (text, code) in [
            ("clients: {}".to_owned(), "LF010"),
            ("clients: { shop: { sha256: [sk-live-1234] } }".to_owned(), "LF011"),
            (format!("clients: {{ shop: {{ sha256: [{a}], route: [chat] }} }}"), "LF004"),
            (format!("clients: {{ shop: {{ sha256: [{a}], expires: soon }} }}"), "LF011"),
            (format!("clients: {{ a: {{ sha256: [{a}] }}, b: {{ sha256: [{a}] }} }}"), "LF014"),
            (format!("clients: {{ 'a b': {{ sha256: [{a}] }} }}"), "LF011"),
            (format!("clients: {{ a: {{ sha256: [{a}], concurrent: 0 }} }}"), "LF007"),
        ] {
            let found = found(&text);
            assert!(found.iter().any(|(c, _)| c == code), "{text}: {found:?}");
        }
    }

    #[test]
    fn names_are_those_of_the_schema() {
        assert_eq!(NAME, "^[A-Za-z0-9_][A-Za-z0-9._:/@+-]{0,63}$");
        for good in ["a", "_x", "shop/eu:1@x+y-z.q", &"n".repeat(64)] {
            assert!(is_name(good), "{good}");
        }
        for bad in ["", "-a", "a b", "ä", &"n".repeat(65), "a\n"] {
            assert!(!is_name(bad), "{bad}");
        }
    }
}
