//! Lessons of the published system, switched on and off on the same outages.

use serde::Serialize;

/// One variant beside the policy as it is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Lesson {
    /// What is switched.
    pub name: String,
    /// What is measured, with its unit.
    pub measure: String,
    /// Without the lesson.
    pub without: Option<f64>,
    /// With it.
    pub with: Option<f64>,
    /// What was published about it.
    pub published: String,
}
