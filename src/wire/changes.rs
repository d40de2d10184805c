//! What is changed in a request before a target gets it (rule R5), beside its model name.

use std::ops::Range;

use super::json;
use super::rewrite::{Splice, cuts};

/// Which tools are withheld: told by name; one without a name that can be read is asked for as the empty name.
pub type Withheld<'a> = &'a dyn Fn(&str) -> bool;

/// What to change. Everything else stays byte for byte.
#[derive(Clone, Copy, Default)]
pub struct Changes<'a> {
    /// Do not offer these tools. Where none is left, everything that speaks about tools goes too.
    pub withhold: Option<Withheld<'a>>,
    /// Ask for no more output tokens than this.
    pub max_output_tokens: Option<u64>,
    /// This text, with the schema in its place, is what asks for the schema: the parameter goes.
    pub schema_by: Option<&'a str>,
    /// What the target calls that limit, where the request has none of its own (`max_tokens`, `max_completion_tokens`).
    pub limit_name: &'a str,
}

impl std::fmt::Debug for Changes<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let withhold = self.withhold.is_some();
        f.debug_struct("Changes")
            .field("withhold", &withhold)
            .field("max_output_tokens", &self.max_output_tokens)
            .field("adapted", &self.schema_by.is_some())
            .finish()
    }
}

/// Takes tools out. `members`: those that offer tools or speak about them, as place among the body's members, raw key, where the
/// value begins, and the value. Returns the members that go altogether.
pub(super) fn withhold(
    members: &[(usize, &str, usize, &str)],
    withheld: Withheld<'_>,
    splices: &mut Vec<Splice>,
) -> Vec<usize> {
    let (mut gone, mut dropped, mut left) = (Vec::new(), Vec::new(), 0usize);
    for &(place, key, begin, value) in members {
        if !is(key, &["tools", "functions"]) {
            continue;
        }
        let (mut spans, mut drop) = (Vec::new(), Vec::new());
        json::elements(value, |tool| {
            let Some(at) = json::place(value, tool) else { return };
            let name = name_of(tool);
            if withheld(&name) {
                drop.push(spans.len());
                dropped.push(name);
            }
            let at = begin + at.start..begin + at.end;
            spans.push((at.clone(), at));
        });
        left += spans.len() - drop.len();
        if drop.len() == spans.len() {
            gone.push(place);
        } else {
            splices.extend(cuts(&spans, |n| drop.contains(&n)).into_iter().map(|at| (at, String::new())));
        }
    }
    if left == 0 {
        return members.iter().map(|(place, ..)| *place).collect();
    }
    for &(place, key, _, value) in members {
        let chooses = is(key, &["tool_choice", "function_call"]);
        // A choice of something that is not offered is a mistake that the client did not make.
        if chooses && serde_json::from_str(value).is_ok_and(|v| names_one(&v, &dropped)) {
            gone.push(place);
        }
    }
    gone
}

/// Lowers the limits of output tokens that are above the cap; sets one at `free` if there is none. `members`: raw key, place
/// and text of the value.
pub(super) fn cap<'a>(
    members: impl Iterator<Item = (&'a str, Range<usize>, &'a str)>,
    cap: u64,
    name: &str,
    free: usize,
) -> Vec<Splice> {
    let mut any = false;
    let mut out = Vec::new();
    for (_, at, value) in members.filter(|(key, ..)| is(key, &["max_tokens", "max_completion_tokens"])) {
        let none = value == "null";
        if json::unsigned(value).is_some_and(|asked| asked > cap) || none && !any {
            out.push((at, cap.to_string()));
        }
        // What is no number is left to the target.
        any = true;
    }
    if !any {
        out.push((free..free, format!(",{}:{cap}", serde_json::Value::from(name))));
    }
    out
}

fn is(raw_key: &str, names: &[&str]) -> bool {
    json::text(raw_key).is_some_and(|key| names.contains(&key.as_str()))
}

/// The function's name, of a tool or an old `functions` element.
fn name_of(tool: &str) -> String {
    let mut name = None;
    json::members(tool, |m| match m.key().as_ref() {
        "function" => {
            json::members(m.value, |f| {
                if f.key() == "name" {
                    name = json::text(f.value);
                }
            });
        }
        "name" if name.is_none() => name = json::text(m.value),
        _ => {}
    });
    name.unwrap_or_default()
}

fn names_one(value: &serde_json::Value, names: &[String]) -> bool {
    match value {
        serde_json::Value::Object(members) => members.iter().any(|(key, value)| {
            key == "name" && value.as_str().is_some_and(|v| names.iter().any(|n| n == v)) || names_one(value, names)
        }),
        serde_json::Value::Array(list) => list.iter().any(|value| names_one(value, names)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::wire::ChatRequest;

    fn changed(body: &str, changes: &Changes<'_>) -> String {
        let request = ChatRequest::parse(Bytes::from(body.to_owned())).unwrap();
        String::from_utf8(request.rewrite_with("m", changes).to_vec()).unwrap()
    }

    fn without(body: &str, names: &[&str]) -> String {
        changed(body, &Changes { withhold: Some(&|name| names.contains(&name)), ..Changes::default() })
    }

    const A: &str = r#"{"type":"function","function":{"name":"a","parameters":{"name":"b"}}}"#;
    const B: &str = r#"{"type":"function","function":{"description":"x, y","name":"b"}}"#;
    const C: &str = r#"{"type":"function","function":{"name":"\u0063"}}"#;

    #[test]
    fn withheld_tools_are_cut_and_the_rest_stays_byte_for_byte() {
        let body = |tools: &str, more: &str| format!(r#"{{"model":"m", "tools":[{tools}]{more},"seed":1e2}}"#);
        let all = format!("{A} ,{B}, {C}");
        assert_eq!(without(&body(&all, ""), &["b"]), body(&format!("{A} ,{C}"), ""));
        assert_eq!(without(&body(&all, ""), &["a"]), body(&format!("{B}, {C}"), ""));
        assert_eq!(without(&body(&all, ""), &["b", "c"]), body(A, ""));
        assert_eq!(without(&body(&all, ""), &["x"]), body(&all, ""));
        // None is left: nothing speaks about tools any more.
        let more = r#","tool_choice":"required","parallel_tool_calls":false"#;
        assert_eq!(without(&body(&all, more), &["a", "b", "c"]), r#"{"model":"m", "seed":1e2}"#);
    }

    #[test]
    fn a_choice_of_a_withheld_tool_goes_and_any_other_stays() {
        let body = |choice: &str| format!(r#"{{"model":"m","tools":[{A},{B}]{choice}}}"#);
        let after = |choice: &str| format!(r#"{{"model":"m","tools":[{B}]{choice}}}"#);
        for (choice, stays) in [
            (r#","tool_choice":"required""#, true),
            (r#","tool_choice":"none""#, true),
            (r#","tool_choice":{"type":"function","function":{"name":"b"}}"#, true),
            (r#","tool_choice":{"type":"function","function":{"name":"a"}}"#, false),
            (
                r#","tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{"type":"function","function":{"name":"a"}}]}}"#,
                false,
            ),
            (r#","parallel_tool_calls":true"#, true),
        ] {
            let right = after(if stays { choice } else { "" });
            assert_eq!(without(&body(choice), &["a"]), right, "{choice}");
        }
        // The old way, and one whose name cannot be read.
        let old = r#"{"model":"m","functions":[{"name":"a"},{"name":"b"}],"function_call":{"name":"a"}}"#;
        assert_eq!(without(old, &["a"]), r#"{"model":"m","functions":[{"name":"b"}]}"#);
        let odd = format!(r#"{{"model":"m","tools":[{{"type":"custom"}},{A}]}}"#);
        assert_eq!(without(&odd, &[""]), format!(r#"{{"model":"m","tools":[{A}]}}"#));
    }

    #[test]
    fn a_cap_lowers_and_never_raises() {
        let capped = |body: &str| {
            changed(body, &Changes { max_output_tokens: Some(100), limit_name: "max_tokens", ..Changes::default() })
        };
        for (before, after) in [
            (r#"{"model":"m","max_tokens":4096,"n":1}"#, r#"{"model":"m","max_tokens":100,"n":1}"#),
            (r#"{"model":"m","max_completion_tokens": 101 }"#, r#"{"model":"m","max_completion_tokens": 100 }"#),
            (r#"{"model":"m","max_tokens":100}"#, r#"{"model":"m","max_tokens":100}"#),
            (r#"{"model":"m","max_tokens":5}"#, r#"{"model":"m","max_tokens":5}"#),
            (
                r#"{"model":"m","max_tokens":500,"max_completion_tokens":50}"#,
                r#"{"model":"m","max_tokens":100,"max_completion_tokens":50}"#,
            ),
            (r#"{"model":"m","seed":1}"#, r#"{"model":"m","max_tokens":100,"seed":1}"#),
            (r#"{"model":"m","max_tokens":null}"#, r#"{"model":"m","max_tokens":100}"#),
            (r#"{"model":"m","max_tokens":"many"}"#, r#"{"model":"m","max_tokens":"many"}"#),
        ] {
            assert_eq!(capped(before), after, "{before}");
        }
    }
}
