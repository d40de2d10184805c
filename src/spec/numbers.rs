//! Numbers with their units and ranges. The ranges are wide: they refuse zero where zero would switch something off,
//! negative values, and figures that can only be a slip of the unit (more than a day).

use std::borrow::Cow;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// A day in milliseconds: no limit of a conversation is longer.
pub const DAY_MS: u64 = 86_400_000;
/// A year in seconds: no age or hold is longer.
pub const YEAR_S: u64 = 31_536_000;

/// Whole milliseconds, at least one, at most a day. For keys that end in `_ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Ms(pub u64);

/// Whole milliseconds, zero allowed, at most a day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Ms0(pub u64);

/// Seconds, fractions allowed, more than zero, at most a year. For keys that end in `_s`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seconds(pub f64);

/// Seconds between two tries of the same thing: short ones would be tries without a pause. At least 0.05, at most a year.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Pause(pub f64);

/// A share between 0 and 1.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Share(pub f64);

/// A whole number from one to a million.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Count(pub u32);

impl Ms {
    /// As a duration.
    #[must_use]
    pub const fn duration(self) -> Duration {
        Duration::from_millis(self.0)
    }
}

impl Ms0 {
    /// As a duration.
    #[must_use]
    pub const fn duration(self) -> Duration {
        Duration::from_millis(self.0)
    }
}

impl Seconds {
    /// As a duration; what the schema refuses (negative, not finite) is zero.
    #[must_use]
    pub fn duration(self) -> Duration {
        Duration::try_from_secs_f64(self.0).unwrap_or(Duration::ZERO)
    }
}

impl Pause {
    /// As a duration; what the schema refuses (negative, not finite) is zero.
    #[must_use]
    pub fn duration(self) -> Duration {
        Seconds(self.0).duration()
    }
}

macro_rules! number {
    ($type:ident, $schema:tt) => {
        impl JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!($schema)
            }
        }
    };
}

number!(Ms, { "type": "integer", "minimum": 1, "maximum": DAY_MS });
number!(Ms0, { "type": "integer", "minimum": 0, "maximum": DAY_MS });
number!(Seconds, { "type": "number", "exclusiveMinimum": 0, "maximum": YEAR_S });
number!(Pause, { "type": "number", "minimum": 0.05, "maximum": YEAR_S });
number!(Share, { "type": "number", "minimum": 0, "maximum": 1 });
number!(Count, { "type": "integer", "minimum": 1, "maximum": 1_000_000 });
