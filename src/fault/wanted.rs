//! What may be asked of a fault server, checked before it is sent: some values crash a real one.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::api::Stream;
use super::toxic::Spec;
use super::toxic::spec::Refused;

/// A toxic to be added.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NewToxic {
    /// Unique in its proxy.
    pub name: String,
    /// Its type.
    #[serde(rename = "type")]
    pub kind: String,
    /// Direction.
    pub stream: Stream,
    /// Share of connections, 0..1.
    pub toxicity: f32,
    /// Attributes.
    pub attributes: BTreeMap<String, Value>,
    /// Removed when this lease ends (ours only).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<String>,
    /// Removed after that (ours only).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_ms: Option<u64>,
}

impl NewToxic {
    /// One that acts on every connection.
    pub fn new(name: impl Into<String>, stream: Stream, spec: Spec) -> NewToxic {
        NewToxic {
            name: name.into(),
            kind: spec.kind().to_owned(),
            stream,
            toxicity: 1.0,
            attributes: spec.attributes(),
            lease: None,
            expires_in_ms: None,
        }
    }

    /// Checks it as a server of ours would, and a little more: no jitter above the latency.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self) -> std::result::Result<(), String> {
        if !(0.0..=1.0).contains(&self.toxicity) {
            return Err("toxicity must be within 0..1".to_owned());
        }
        check_name(&self.name)?;
        let attributes = Value::Object(self.attributes.clone().into_iter().collect());
        check_attributes(&self.kind, &attributes)
    }
}

pub(super) fn check_attributes(kind: &str, attributes: &Value) -> std::result::Result<(), String> {
    match Spec::parse(kind, Some(attributes)) {
        Ok(Spec::Latency { latency_ms, jitter_ms }) if jitter_ms > latency_ms => {
            Err("jitter must not be above latency".to_owned())
        }
        Ok(_) => Ok(()),
        Err(Refused::UnknownKind) => Err(format!("no such toxic type: {kind}")),
        Err(Refused::BadJson(why) | Refused::BadValue(why)) => Err(why),
    }
}

pub(super) fn check_name(name: &str) -> std::result::Result<(), String> {
    if name.is_empty() || name.len() > 256 || name.contains('/') || name.chars().any(char::is_control) {
        return Err("a name has 1 to 256 bytes, none of them a slash or a control character".to_owned());
    }
    Ok(())
}

/// What to change on a proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProxyChange {
    /// New address. Closes its connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listen: Option<String>,
    /// New target. Closes its connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upstream: Option<String>,
    /// Accepting or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Enabled again when this lease ends (ours only).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<String>,
}

impl ProxyChange {
    /// On or off.
    #[must_use]
    pub fn enabled(enabled: bool) -> ProxyChange {
        ProxyChange { enabled: Some(enabled), ..ProxyChange::default() }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_that_would_hurt_a_real_server_are_refused_before_sending() {
        let toxic = |spec| NewToxic::new("t", Stream::Downstream, spec);
        assert!(toxic(Spec::Latency { latency_ms: 5, jitter_ms: 6 }).check().is_err());
        assert!(toxic(Spec::Slicer { average_bytes: 0, variation_bytes: 0, delay_us: 0 }).check().is_err());
        assert!(toxic(Spec::Bandwidth { rate_kb_s: 0 }).check().is_ok());
        let mut negative = toxic(Spec::Bandwidth { rate_kb_s: 1 });
        negative.attributes.insert("rate".to_owned(), json!(-5));
        assert!(negative.check().is_err());
        assert!(NewToxic { toxicity: f32::NAN, ..toxic(Spec::ConnectBlackhole) }.check().is_err());
    }
}
