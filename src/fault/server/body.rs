//! Request bodies, read as the real server reads them: the first JSON value counts, what follows it is ignored, field names
//! match in any case, unknown fields are ignored, null counts as absent.

use serde_json::{Map, Value};

use super::error::ApiError;

/// A JSON object.
#[derive(Clone, Debug, Default)]
pub struct Body(pub Map<String, Value>);

/// The first JSON value of a body.
///
/// # Errors
/// 400 with the real server's prefix.
pub fn first_value(bytes: &[u8]) -> Result<Value, ApiError> {
    match serde_json::Deserializer::from_slice(bytes).into_iter::<Value>().next() {
        None => Err(ApiError::body("EOF")),
        Some(Err(e)) => Err(ApiError::body(&e.to_string())),
        Some(Ok(value)) => Ok(value),
    }
}

impl Body {
    /// Reads an object; null is an empty one.
    ///
    /// # Errors
    /// 400.
    pub fn read(bytes: &[u8]) -> Result<Body, ApiError> {
        Body::from_value(first_value(bytes)?)
    }

    /// Takes an object; null is an empty one.
    ///
    /// # Errors
    /// 400.
    pub fn from_value(value: Value) -> Result<Body, ApiError> {
        match value {
            Value::Object(map) => Ok(Body(map)),
            Value::Null => Ok(Body::default()),
            _ => Err(ApiError::body("an object was expected")),
        }
    }

    /// A field that is there and not null.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value> {
        let exact = self.0.get(name);
        let any = || self.0.iter().find(|(k, _)| k.eq_ignore_ascii_case(name)).map(|(_, v)| v);
        exact.or_else(any).filter(|v| !v.is_null())
    }

    /// A text.
    ///
    /// # Errors
    /// 400 for another type.
    pub fn text(&self, name: &str) -> Result<Option<String>, ApiError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(_) => Err(ApiError::body(&format!("{name} must be a text"))),
        }
    }

    /// True or false.
    ///
    /// # Errors
    /// 400 for another type.
    pub fn flag(&self, name: &str) -> Result<Option<bool>, ApiError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(_) => Err(ApiError::body(&format!("{name} must be true or false"))),
        }
    }

    /// A whole number that is not negative.
    ///
    /// # Errors
    /// 400 for anything else.
    pub fn whole(&self, name: &str) -> Result<Option<u64>, ApiError> {
        match self.get(name) {
            None => Ok(None),
            Some(value) => match value.as_u64() {
                Some(n) => Ok(Some(n)),
                None => Err(ApiError::body(&format!("{name} must be a whole number that is not negative"))),
            },
        }
    }

    /// A share.
    ///
    /// # Errors
    /// 400 outside 0..=1.
    pub fn share(&self, name: &str) -> Result<Option<f32>, ApiError> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Number(n)) => match n.as_f64() {
                Some(x) if (0.0..=1.0).contains(&x) => Ok(Some(x as f32)),
                _ => Err(ApiError::bad(format!("{name} must be within 0..1"))),
            },
            Some(_) => Err(ApiError::body(&format!("{name} must be a number"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_value_counts_and_case_does_not() {
        let body = Body::read(br#"{"NAME":"a","enabled":null} trailing"#).unwrap();
        assert_eq!(body.text("name").unwrap().as_deref(), Some("a"));
        assert_eq!(body.flag("enabled").unwrap(), None);
        assert_eq!(Body::read(b"").unwrap_err().text, "bad request body: EOF");
        assert!(Body::read(b"{oops").unwrap_err().text.starts_with("bad request body: "));
        assert!(Body::read(b"[1]").is_err());
    }
}
