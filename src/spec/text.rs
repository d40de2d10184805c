//! Texts with a form.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// What a name may look like. Names become header values, metric labels and file names, so they are plain ASCII without
/// blanks, at most 64 characters.
pub const NAME: &str = "^[A-Za-z0-9_][A-Za-z0-9._:/@+-]{0,63}$";

/// The same in words.
pub const NAME_FORM: &str = "letters, digits and ._:/@+- without blanks, at most 64 characters";

/// A name: of a target, a route, a tool, an intent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Name(pub String);

impl Name {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl JsonSchema for Name {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Name".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "pattern": NAME,
            "description": format!("A name: {NAME_FORM}"),
        })
    }
}

/// A list of names, at least one, none twice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Names(pub Vec<Name>);

impl Names {
    /// The names.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(Name::as_str)
    }

    /// The names as texts of their own.
    #[must_use]
    pub fn to_vec(&self) -> Vec<String> {
        self.0.iter().map(|n| n.0.clone()).collect()
    }
}

impl JsonSchema for Names {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Names".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let inner = generator.subschema_for::<Name>();
        json_schema!({ "type": "array", "items": inner, "minItems": 1, "uniqueItems": true })
    }
}

/// A list of names that may be empty, none twice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NamesOrNone(pub Vec<Name>);

impl NamesOrNone {
    /// The names.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(Name::as_str)
    }
}

impl JsonSchema for NamesOrNone {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "NamesOrNone".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let inner = generator.subschema_for::<Name>();
        json_schema!({ "type": "array", "items": inner, "uniqueItems": true })
    }
}
