//! TLS outwards: whose certificate is believed, for which name, and what happens when it is not.

use std::net::SocketAddr;
use std::path::Path;

use crate::certs::{Authority, Secure};
use crate::gateway::{Change, Rig, policy};
use crate::mock::{Mock, good};

/// `a` is `https://models.example/v1`, dialled at `to`, with this authority's file; then `second`, if there is one.
fn yaml(to: SocketAddr, ca_file: &str, second: Option<&Mock>, connection: &str) -> String {
    let mut targets = vec![("a", to)];
    targets.extend(second.map(|m| ("second", m.address)));
    let text = policy(&targets, &Change::default());
    let base = format!("base_url: http://{to}/v1\n");
    assert_eq!(text.matches(&base).count(), 1);
    text.replace(
        &base,
        &format!(
            "base_url: https://models.example/v1\n    connect_to: {to}\n    connection: {{ ca_file: 'file:{ca_file}'{connection} }}\n"
        ),
    )
}

fn rig(folder: &Path, text: &str) -> Rig {
    Rig::of(text, Change { folder: folder.to_owned(), ..Change::default() })
}

#[test]
fn connect_to_keeps_host_sni_and_the_check_of_the_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new("one");
    std::fs::write(dir.path().join("ca.pem"), &authority.pem).unwrap();
    let secure = Secure::start(authority.server("models.example", 2100, &[]));
    let rig = rig(dir.path(), &yaml(secure.address, "ca.pem", None, ""));
    let answer = rig.plain();
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(answer.text().contains("secure one two"));
    let asked = secure.asked();
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0].sni.as_deref(), Some("models.example"));
    assert!(asked[0].head.contains("\r\nhost: models.example\r\n"), "{}", asked[0].head);
}

#[test]
fn a_certificate_that_does_not_hold_is_a_fault_of_class_tls_and_the_stand_in_answers_with_one_call() {
    let dir = tempfile::tempdir().unwrap();
    let (known, unknown) = (Authority::new("known"), Authority::new("unknown"));
    std::fs::write(dir.path().join("ca.pem"), &known.pem).unwrap();
    for (what, config) in [
        ("wrong name", known.server("other.example", 2100, &[])),
        ("expired", known.server("models.example", 2020, &[])),
        ("unknown authority", unknown.server("models.example", 2100, &[])),
    ] {
        let (secure, second) = (Secure::start(config), Mock::start(good("second")));
        let rig = rig(dir.path(), &yaml(secure.address, "ca.pem", Some(&second), ""));
        for stream in [false, true] {
            let answer = if stream { rig.stream() } else { rig.plain() };
            assert_eq!((answer.status, answer.header("x-llmfo-target")), (200, Some("second")), "{what}");
            let decision = rig.decision(&answer);
            let attempts = decision["attempts"].as_array().unwrap();
            assert_eq!(attempts.len(), 2, "{what}: {decision}");
            assert_eq!((&attempts[0]["class"], &attempts[0]["reason"]), (&"provider".into(), &"tls".into()), "{what}");
        }
        assert_eq!(rig.target("a")["counters"]["failed_counted"], 2, "{what}: it counts against it");
        assert_eq!(secure.asked().len(), 0, "{what}: nothing was said to it, no key either");
        assert_eq!(second.asked(), 2, "{what}: one call each");
    }
}

#[test]
fn a_file_of_certificates_is_read_again_with_the_policy_and_what_is_none_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("ca.pem");
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    std::fs::write(&at, &old.pem).unwrap();
    let secure = Secure::start(new.server("models.example", 2100, &[]));
    let text = yaml(secure.address, "ca.pem", None, "");
    let mut rig = rig(dir.path(), &text);
    assert_eq!(rig.plain().status, 503);
    for (bad, says) in [("", "there is no certificate in it"), ("-----BEGIN CERTIFICATE-----\nxx\n", "certificate 1")] {
        std::fs::write(&at, bad).unwrap();
        let why = rig.reload(&text).unwrap_err();
        assert!(why.starts_with("target a: its `ca_file`") && why.contains(says), "{why}");
    }
    let why = rig.reload(&yaml(secure.address, "nowhere.pem", None, "")).unwrap_err();
    assert!(why.starts_with("target a: its `ca_file`") && why.contains("nowhere.pem"), "{why}");
    // Both of them, as where one takes the place of the other.
    std::fs::write(&at, format!("{}{}", old.pem, new.pem)).unwrap();
    rig.reload(&text).unwrap();
    let answer = rig.plain();
    assert_eq!(answer.status, 200, "{}", answer.text());
}
