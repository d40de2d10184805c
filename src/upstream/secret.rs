//! Secrets: read once at start from where the policy says, never printed.

use std::fmt;
use std::path::Path;

use http::HeaderValue;

use crate::error::{Expected, Result};
use crate::files;
use crate::policy::SecretRef;

/// A secret's value. It has no `Display`, and its `Debug` shows nothing.
#[derive(Clone)]
pub struct Secret(String);

impl Secret {
    /// Wraps a value that is already at hand (tests, flags).
    #[must_use]
    pub fn new(value: impl Into<String>) -> Secret {
        Secret(value.into())
    }

    /// The value, for the one place that sends it and for redaction.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// `Bearer <value>`, marked sensitive. `None` if it holds bytes that a header may not.
    #[must_use]
    pub fn bearer(&self) -> Option<HeaderValue> {
        let mut value = HeaderValue::from_str(&format!("Bearer {}", self.0)).ok()?;
        value.set_sensitive(true);
        Some(value)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret([redacted])")
    }
}

/// Largest secret file that is read.
const SECRET_BYTES_MAX: u64 = 64 * 1024;

/// Reads a secret. A trailing line end is trimmed; anything else that a header cannot carry is refused.
///
/// # Errors
/// Names the target and the variable or file, never the value.
pub fn read_secret(target: &str, from: &SecretRef) -> Result<Secret> {
    let (place, value) = match from {
        SecretRef::Env(name) => {
            let place = format!("environment variable {name}");
            let value = match std::env::var(name) {
                Ok(value) => value,
                Err(std::env::VarError::NotPresent) => {
                    return Err(Expected::usage(
                        format!("target {target}: its credential is not there: {place} is not set"),
                        format!(
                            "export {name}=... before starting (a running process needs a restart for it), or name another source under `credentials`"
                        ),
                    ));
                }
                Err(std::env::VarError::NotUnicode(_)) => {
                    return Err(illegal(target, &place));
                }
            };
            (place, value)
        }
        SecretRef::File(path) => {
            let place = format!("file {path}");
            let cannot = |why: String| {
                Expected::usage(
                    format!("target {target}: its credential cannot be read: {place}: {why}"),
                    "check the path under `credentials` and who may read it",
                )
            };
            // A pipe that nobody writes to would keep a start, or a reload, waiting for ever.
            let bytes = files::bytes_of_file(Path::new(path), SECRET_BYTES_MAX).map_err(cannot)?;
            let value = String::from_utf8(bytes).map_err(|_| illegal(target, &place))?;
            (place, value)
        }
    };
    let value = value.strip_suffix('\n').map_or(value.as_str(), |v| v.strip_suffix('\r').unwrap_or(v));
    if value.is_empty() {
        return Err(Expected::usage(
            format!("target {target}: its credential is empty: {place}"),
            "put the key there, or remove `credentials` if the target wants none",
        ));
    }
    if value.contains("${") || !value.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(illegal(target, &place));
    }
    Ok(Secret::new(value))
}

fn illegal(target: &str, place: &str) -> Expected {
    Expected::usage(
        format!("target {target}: its credential holds characters that a key cannot have: {place}"),
        "a key is printable ASCII without spaces; `${NAME}` is not expanded; only one trailing line end is trimmed",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    fn from_file(bytes: &[u8]) -> Result<Secret> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        std::fs::write(&path, bytes).unwrap();
        read_secret("vendor-x", &SecretRef::File(path.display().to_string()))
    }

    #[test]
    fn one_trailing_line_end_is_trimmed() {
        assert_eq!(from_file(b"sk-abc\n").unwrap().expose(), "sk-abc");
        assert_eq!(from_file(b"sk-abc\r\n").unwrap().expose(), "sk-abc");
        assert_eq!(from_file(b"sk-abc").unwrap().expose(), "sk-abc");
    }

    #[test]
    fn unusable_values_are_refused_by_name_and_never_shown() {
        for bytes in [&b""[..], b"\n", b"sk abc", b"${NOPE}", b"sk-\xc3\xa4", b"sk-abc\n\n", b"\xff\xfe"] {
            let e = from_file(bytes).unwrap_err();
            assert_eq!(e.exit, Exit::Usage);
            assert!(e.what.contains("vendor-x") && e.what.contains("key"), "{e}");
            assert!(!e.to_string().contains("abc"), "{e}");
        }
        let e = read_secret("b", &SecretRef::Env("LLMFO_TEST_NOT_SET_ANYWHERE".into())).unwrap_err();
        assert!(e.what.contains("target b") && e.what.contains("LLMFO_TEST_NOT_SET_ANYWHERE"));
        assert!(read_secret("b", &SecretRef::File("/nowhere/at/all".into())).unwrap_err().what.contains("/nowhere"));
    }

    /// Each of these would wait for ever, or fill the memory, if it was read as a file.
    #[test]
    fn what_is_no_file_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let long = dir.path().join("long");
        std::fs::write(&long, "x".repeat(64 * 1024 + 1)).unwrap();
        for (path, why) in [
            (pipe.display().to_string(), "it is a pipe"),
            (dir.path().display().to_string(), "it is a folder"),
            ("/dev/zero".to_owned(), "it is no file"),
            (long.display().to_string(), "it is longer than 65536 bytes"),
        ] {
            let e = read_secret("vendor-x", &SecretRef::File(path.clone())).unwrap_err();
            assert!(e.what.contains(&path) && e.what.ends_with(why) && e.exit == Exit::Usage, "{e}");
        }
    }

    #[test]
    fn debug_shows_nothing() {
        assert_eq!(format!("{:?}", Secret::new("sk-abc")), "Secret([redacted])");
    }
}
