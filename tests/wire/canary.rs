//! What must be found nowhere: an e-mail address that customers write, the key of the application, and the key of every
//! target. Each gateway of these tests has them, and each is searched for them when it ends.

use std::io::Write;
use std::path::PathBuf;
use std::sync::{Mutex, Once, OnceLock, PoisonError};

/// In every request's text.
pub const PERSON: &str = "canary.person@example.org";
/// What every request carries as its credential.
pub const APPLICATION: &str = "sk-canary-application-3f9a71c2";
/// How the credential of every target begins.
pub const TARGET: &str = "sk-canary-target-77b1d05e";

/// A file with the credential of this target. Each has its own: one that is refused must not bench its neighbours.
pub fn key_file(target: &str) -> PathBuf {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    static WRITING: Mutex<()> = Mutex::new(());
    let path = FOLDER.get_or_init(|| tempfile::tempdir().unwrap()).path().join(target);
    let _turn = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
    if !path.exists() {
        std::fs::write(&path, format!("{TARGET}-{target}")).unwrap();
    }
    path
}

static LEAKED: Mutex<Option<String>> = Mutex::new(None);

struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let line = String::from_utf8_lossy(bytes);
        if let Some(what) = found(&line) {
            LEAKED.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(format!("the log has {what}: {line}"));
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// From now on every line of the log, of all levels, is searched.
pub fn watch_log() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let subscriber = tracing_subscriber::fmt().json().with_max_level(tracing::Level::TRACE).with_writer(|| Log);
        tracing::subscriber::set_global_default(subscriber.finish()).unwrap();
    });
}

fn found(text: &str) -> Option<&'static str> {
    [PERSON, APPLICATION, TARGET].into_iter().find(|canary| text.contains(canary))
}

/// Nothing of them is in this text, or in the log so far.
pub fn search(what: &str, text: &str) {
    assert_eq!(found(text), None, "{what}: {text}");
    let leaked = LEAKED.lock().unwrap_or_else(PoisonError::into_inner).clone();
    assert_eq!(leaked, None);
}

#[test]
fn a_canary_is_found_where_it_is() {
    for canary in [PERSON, APPLICATION, TARGET] {
        assert_eq!(found(&format!("x {canary}, y")), Some(canary));
    }
    assert_eq!(found("canary"), None);
    assert!(std::fs::read_to_string(key_file("a")).unwrap().contains(TARGET));
}
