//! The reader as a whole, on a small type: what is found, and where.

use schemars::JsonSchema;
use serde::Deserialize;

use super::document::{Limits, load, read};
use super::named::Named;
use super::numbers::{Ms, Seconds, Share};
use crate::diag::Diagnostic;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct File {
    /// Which one it is.
    #[schemars(required)]
    version: Option<String>,
    parts: Option<Named<Part>>,
    list: Option<Vec<Part>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Part {
    #[schemars(required)]
    wait_ms: Option<Ms>,
    hold_s: Option<Seconds>,
    ratio: Option<Share>,
    on: Option<bool>,
    kind: Option<Kind>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Kind {
    /// One.
    First,
    /// Two.
    Second,
}

/// Findings as `code line:column`, in the order of the file.
fn codes(text: &str) -> Vec<String> {
    let mut found = load::<File>("f", text.as_bytes(), &Limits::DEFAULT).1;
    found.sort_by_key(|d| d.place.start);
    found.iter().map(|d| format!("{} {}:{}", d.rule.code, d.place.line, d.place.column)).collect()
}

fn only(text: &str) -> Diagnostic {
    let mut found = load::<File>("f", text.as_bytes(), &Limits::DEFAULT).1;
    assert_eq!(found.len(), 1, "{found:#?}");
    found.remove(0)
}

#[test]
fn a_good_file_gives_its_values_and_nothing_else() {
    let text = "version: a\nparts:\n  b: &b { wait_ms: 2e3, hold_s: 0.5, ratio: 1, on: true, kind: second }\n  a: { <<: *b, wait_ms: 5 }\nlist: [*b]\n";
    let (file, found, doc) = load::<File>("f", text.as_bytes(), &Limits::DEFAULT);
    assert!(found.is_empty(), "{found:#?}");
    let file = file.unwrap();
    assert_eq!((file.version.as_deref(), file.list.map(|l| l.len())), (Some("a"), Some(1)));
    let parts = file.parts.unwrap();
    let b = parts.get("b").unwrap();
    assert_eq!((b.ratio, b.on), (Some(Share(1.0)), Some(true)));
    assert!(matches!(b.kind, Some(Kind::Second)));
    assert_eq!(parts.names().collect::<Vec<_>>(), ["b", "a"]);
    assert_eq!(b.wait_ms, Some(Ms(2000)));
    assert_eq!(parts.get("a").unwrap().wait_ms, Some(Ms(5)));
    assert_eq!(parts.get("a").unwrap().hold_s, Some(Seconds(0.5)));
    assert_eq!(doc.place("/parts/a/wait_ms").line, 4);
    assert_eq!(doc.key_place("/parts/a").column, 3);
}

#[test]
fn every_problem_is_found_at_its_own_place() {
    let text = "\
verson: a
parts:
  a: { wait_ms: 0, hold_s: -1, ratio: 50, on: yes, kind: frist }
  b: { wait_s: 8 }
  c: off
  d: { wait_ms: 1e12, hold_s: .inf }
list: { wait_ms: 5 }
";
    assert_eq!(
        codes(text),
        [
            "LF004 1:1",
            "LF007 3:17",
            "LF007 3:28",
            "LF007 3:39",
            "LF006 3:47",
            "LF008 3:58",
            "LF004 4:8",
            "LF006 5:6",
            "LF007 6:17",
            "LF009 6:31",
            "LF006 7:7",
        ]
    );
}

#[test]
fn messages_say_what_was_expected_and_what_to_do() {
    let part = |p: &str| only(&format!("version: a\nparts: {{ a: {{ wait_ms: 1, {p} }} }}"));
    let d = only("version: a\nlist: [{ wait_s: 8 }]");
    assert_eq!(d.message, "unknown key `wait_s` in `list[0]`");
    assert_eq!(d.label, "did you mean `wait_ms`, milliseconds?");
    assert_eq!(d.help.as_deref(), Some("write `wait_ms: 8000` (8000 milliseconds)"));
    assert_eq!(d.nearest.as_deref(), Some("wait_ms"));

    let d = only("version: a\nlist: [{ wait_ms: 8s }]");
    assert_eq!(d.message, "`list[0].wait_ms` is the text `8s`");
    assert_eq!(d.expected.as_deref(), Some("a whole number of milliseconds, 1 to 86400000"));
    assert_eq!(d.help.as_deref(), Some("the unit is in the key's name: write `wait_ms: 8000`"));

    let d = only("version: a\nlist: [{ wait_ms: 0.5 }]");
    assert_eq!(
        d.help.as_deref(),
        Some("milliseconds are whole numbers; did you mean 0.5 seconds? That is `wait_ms: 500`")
    );

    let d = only("version: a\nlist: [{ wait_ms: 0 }]");
    assert_eq!(d.message, "`list[0].wait_ms` is 0 milliseconds, outside its range");

    assert_eq!(part("ratio: 50").help.as_deref(), Some("shares are written from 0 to 1: 50 % is `ratio: 0.5`"));
    assert_eq!(part("hold_s: 0").expected.as_deref(), Some("a number of seconds, more than 0 and at most 31536000"));
    assert_eq!(part("on: no").help.as_deref(), Some("write `on: false` (`no` is a text in YAML 1.2)"));
    let d = part("kind: secnd");
    assert_eq!((d.nearest.as_deref(), d.expected.as_deref()), (Some("second"), Some("one of `first`, `second`")));

    let d = only("version: 7");
    assert_eq!(d.help.as_deref(), Some("put it in quotes: `version: \"7\"`"));
    let d = only("version: a\nparts: off");
    assert_eq!(d.expected.as_deref(), Some("a map from names to settings, for example `{ name: ... }`"));
    let d = only("version: a\nparts:\n");
    assert_eq!((d.message.as_str(), d.place.line, d.place.column), ("`parts` has no value", 2, 1));
    let d = only("version: a\nparts: {}");
    assert_eq!(d.rule.code, "LF010");
    let d = only("list: []");
    assert_eq!((d.rule.code, d.message.as_str()), ("LF005", "the file lacks the key `version`"));
    assert_eq!(d.expected.as_deref(), Some("a text (Which one it is)"));
    let d = only("version: a\nkind: first");
    assert!(d.help.unwrap().contains("this key belongs to `parts.<name>`, or `list[]`"));
    let d = only("version: a\nb: { wait_ms: 5, ratio: 1 }");
    assert!(d.help.unwrap().contains("looks like `parts.<name>`"));
}

/// The reader knows YAML 1.1, where an underscore is nothing; in YAML 1.2 it makes a text.
#[test]
fn a_number_with_an_underscore_is_a_text() {
    for (text, written) in [
        ("version: a\nparts:\n  b: { wait_ms: 1_00 }\n", "1_00"),
        ("version: a\nparts:\n  b: { wait_ms: 5, hold_s: 1_0.5 }\n", "1_0.5"),
        ("version: a\nparts:\n  b: { wait_ms: -1_0 }\n", "-1_0"),
        ("version: a\nparts:\n  b:\n    wait_ms: 0x1_0 # sixteen\n", "0x1_0"),
        ("version: a\nlist:\n  - wait_ms: 1_0\n", "1_0"),
    ] {
        let d = only(text);
        assert_eq!((d.rule.code, d.is_error()), ("LF006", true), "{text}: {d:#?}");
        assert!(d.message.ends_with(&format!("is the text `{written}`")), "{text}: {}", d.message);
    }
    // Where a text is wanted it is one, as in every other reader of YAML 1.2.
    let file = load::<File>("f", b"version: 1_00\n", &Limits::DEFAULT).0.unwrap();
    assert_eq!(file.version.as_deref(), Some("1_00"));
    assert!(codes("version: \"1_00\"\n").is_empty());
    assert!(codes("version: v_1\n").is_empty());
}

#[test]
fn a_key_that_is_none_is_told_in_words_of_our_own() {
    for text in ["version: a\n~: 1\n", "version: a\n: 1\n", "version: a\nnull: 1\n", "version: a\n? \n: 1\n"] {
        let d = only(text);
        assert_eq!(d.rule.code, "LF001", "{text}");
        assert!(d.message.contains("a key is empty here"), "{text}: {}", d.message);
    }
    for text in ["version: a\n[b]: 1\n", "version: a\n{b: c}: 1\n"] {
        let d = only(text);
        assert!(!d.message.contains("deserialize") && !d.message.contains("Option<"), "{text}: {}", d.message);
    }
}

#[test]
fn repeated_keys_are_found_in_both_places() {
    let d = only("version: a\nlist:\n  - wait_ms: 1\n    wait_ms: 2\n");
    assert_eq!((d.rule.code, d.place.line, d.place.column, d.labels[0].place.line), ("LF003", 4, 5, 3));
}

#[test]
fn a_merged_value_names_both_places() {
    let d = only("version: a\nparts:\n  a: &a { wait_ms: 1, ratio: 7 }\nlist:\n  - wait_ms: 1\n");
    assert_eq!((d.place.line, d.labels.len()), (3, 0));
    let found = load::<File>(
        "f",
        b"version: a\nparts:\n  a: &a { wait_ms: 1, ratio: 7 }\n  b:\n    <<: *a\n",
        &Limits::DEFAULT,
    )
    .1;
    let second = &found[1];
    assert_eq!((second.place.line, second.place.column, second.labels[0].place.line), (3, 30, 5));
}

#[test]
fn hostile_files_are_refused_at_once() {
    let deep = "[".repeat(100_000);
    let d = only(&deep);
    assert_eq!((d.rule.code, d.place.line), ("LF002", 1), "{}", d.message);
    let deep: String = (0..20_000).map(|n| format!("{}-\n", " ".repeat(n % 900))).collect();
    assert!(!read("f", deep.as_bytes(), &Limits::DEFAULT).1.is_empty());
    let dashes = "- ".repeat(20_000);
    assert_eq!(only(&dashes).rule.code, "LF002");
    let maps: String = (0..3000).map(|n| format!("{}a:\n", " ".repeat(n))).collect();
    assert_eq!(only(&maps).rule.code, "LF002");
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for n in 1..10 {
        let uses = vec![format!("*a{}", n - 1); 10].join(", ");
        bomb.push_str(&format!("a{n}: &a{n} [{uses}]\n"));
    }
    let d = only(&bomb);
    assert_eq!((d.rule.code, d.message.as_str()), ("LF002", "its aliases (`*name`) expand to more than 20000 values"));
    assert_eq!(only(&format!("a: &a [{}]\nb: [{}]\n", "x,".repeat(2000), "*a,".repeat(2000))).rule.code, "LF002");
    assert_eq!(only("a: &a [*a]").rule.code, "LF001");
    assert_eq!(only("a: *nope").message, "this alias (`*name`) names an anchor that does not exist");
    assert_eq!(only("version: a\n---\nversion: b\n").rule.code, "LF002");
    assert_eq!(only("version: !env X\n").rule.code, "LF013");
    assert_eq!(only("").message, "the file is empty");
    assert_eq!(only("version: a\n\tb: 1\n").rule.code, "LF001");
    assert_eq!(read("f", b"a: \xff\n", &Limits::DEFAULT).1[0].rule.code, "LF001");
}

proptest::proptest! {
    /// Whatever the bytes, no panic, and every place lies in the text.
    #[test]
    fn no_input_panics(text in "[a-z:{}\\[\\]&*<!|>\\-#'\", \n\t0-9.éЖ]{0,200}") {
        let (_, found, doc) = load::<File>("f", text.as_bytes(), &Limits::DEFAULT);
        for d in &found {
            assert!(d.place.end <= doc.source().text().len() && d.place.line >= 1 && d.place.column >= 1);
        }
        let mut report = crate::diag::Report::new();
        report.add(doc.into_source(), found);
        proptest::prop_assert!(!crate::diag::render_human(&report, false, None).contains('\t'));
        proptest::prop_assert!(crate::diag::render_json(&report, false).ends_with('\n'));
    }
}

/// Hiding goes by the look of a key, so a new key of the schema must not look like a secret by accident.
#[test]
fn no_key_of_a_file_but_credentials_looks_like_a_secret() {
    fn keys(value: &serde_json::Value, found: &mut Vec<String>) {
        if let Some(properties) = value.get("properties").and_then(serde_json::Value::as_object) {
            found.extend(properties.keys().cloned());
        }
        match value {
            serde_json::Value::Object(map) => map.values().for_each(|v| keys(v, found)),
            serde_json::Value::Array(items) => items.iter().for_each(|v| keys(v, found)),
            _ => {}
        }
    }
    let mut all = Vec::new();
    keys(&crate::spec::schema::of::<crate::spec::policy::PolicyFile>(), &mut all);
    keys(&crate::spec::schema::of::<crate::spec::drill::DrillFile>(), &mut all);
    // The two counts are shown as long as they are numbers.
    let counts = ["context_tokens", "handoff_above_tokens", "max_output_tokens"];
    all.retain(|k| crate::diag::is_secret_name(k) && !counts.contains(&k.as_str()));
    assert_eq!(all, ["credentials"]);
}
