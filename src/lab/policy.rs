//! The lab's policy file: the compiled-in text with this lab's ports and an expiry that lies ahead, and the admission
//! records that make every target of it trusted.

use std::collections::BTreeMap;

use crate::error::{Expected, Result};

/// The lab's policy as compiled in.
pub const TEXT: &str = include_str!("lab.yaml");

/// Fills in base URLs by target name and the day of expiry. Edits the text, so that its comments stay.
///
/// # Errors
/// The text lacks one of them: it is then not the lab's policy.
pub fn fill(text: &str, base_urls: &BTreeMap<String, String>, expires: &str) -> Result<String> {
    let mut out = String::with_capacity(text.len() + 256);
    let mut section = String::new();
    let mut target = String::new();
    let mut open: BTreeMap<&str, &String> = base_urls.iter().map(|(k, v)| (k.as_str(), v)).collect();
    let mut stamped = false;
    for line in text.lines() {
        let body = line.trim_start();
        let indent = line.len() - body.len();
        let key = body.split(':').next().unwrap_or("");
        if indent == 0 && !body.is_empty() && !body.starts_with('#') {
            section = key.to_string();
        } else if section == "targets" && indent == 2 && !body.starts_with('#') {
            target = key.to_string();
        }
        if indent == 0 && key == "expires" {
            out.push_str(&format!("expires: {expires}\n"));
            stamped = true;
        } else if section == "targets"
            && let Some(at) = line.find("base_url: ")
            && let Some(url) = open.remove(target.as_str())
        {
            let (before, rest) = line.split_at(at + "base_url: ".len());
            let end = rest.find([' ', ',', '}']).unwrap_or(rest.len());
            out.push_str(&format!("{before}{url}{}\n", rest.get(end..).unwrap_or("")));
        } else {
            out.push_str(line);
            out.push('\n');
        }
    }
    match open.keys().next() {
        Some(name) => Err(broken(&format!("has no base_url for the target {name}"))),
        None if !stamped => Err(broken("has no expires")),
        None => Ok(out),
    }
}

fn broken(why: &str) -> Expected {
    Expected::could_not(format!("the compiled-in lab policy {why}"), "this build of llmfo is damaged; build it again")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_and_expiry_are_filled_in_and_the_rest_stays() {
        let text = "# head\nversion: x\nexpires: 2000-01-01T00:00:00Z  # filled\ntargets:\n  a:\n    base_url: http://h:1/v1   # note\n    \
                    model: m\n  b: { base_url: http://h:2/v1, model: m }\nroutes:\n  - route: base_url: no\n";
        let urls = BTreeMap::from([
            ("a".to_string(), "http://127.0.0.1:5/v1".to_string()),
            ("b".to_string(), "http://127.0.0.1:6/v1".to_string()),
        ]);
        let filled = fill(text, &urls, "2026-12-01T00:00:00Z").unwrap();
        assert_eq!(
            filled,
            "# head\nversion: x\nexpires: 2026-12-01T00:00:00Z\ntargets:\n  a:\n    base_url: http://127.0.0.1:5/v1   # note\n    \
             model: m\n  b: { base_url: http://127.0.0.1:6/v1, model: m }\nroutes:\n  - route: base_url: no\n"
        );
        let urls = BTreeMap::from([("c".to_string(), "http://x/v1".to_string())]);
        assert!(fill(text, &urls, "x").is_err());
        assert!(fill("targets:\n", &BTreeMap::new(), "x").is_err());
    }
}
