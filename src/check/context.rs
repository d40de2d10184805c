//! Was the context of the conversation kept? The facts that the answer must know stand in it, word for word.

use super::Verdict;
use crate::units::printable;

/// Judges a text by the facts that must stand in it (an order number from the first turn, say). Letter case and the kind of
/// white space do not matter; a fact counts only as a whole: `A-17` is not in `A-171`. With no facts it does not apply.
#[must_use]
pub fn context<S: AsRef<str>>(text: &str, required: &[S]) -> Verdict {
    let plain = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase();
    let haystack = plain(text);
    let mut missing = Vec::new();
    let mut some = false;
    for fact in required {
        let needle = plain(fact.as_ref());
        if needle.is_empty() {
            continue;
        }
        some = true;
        if !stands_in(&haystack, &needle) {
            missing.push(format!("`{}`", printable(fact.as_ref(), 60)));
        }
    }
    if !some {
        return Verdict::Skipped;
    }
    if missing.is_empty() { Verdict::Pass } else { Verdict::Fail(format!("not in the answer: {}", missing.join(", "))) }
}

fn stands_in(text: &str, fact: &str) -> bool {
    let inside = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    let begins_inside = inside(fact.chars().next());
    let ends_inside = inside(fact.chars().next_back());
    text.match_indices(fact).any(|(at, _)| {
        let before = begins_inside && inside(text[..at].chars().next_back());
        let after = ends_inside && inside(text[at + fact.len()..].chars().next());
        !before && !after
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_stand_in_the_text_as_a_whole() {
        assert!(context("Your order A-17 is on its way.", &["A-17"]).passed());
        assert!(context("order a-17", &["A-17"]).passed());
        assert!(context("number\n 4 711.", &["4 711"]).passed());
        assert!(context("(#A-17)", &["#A-17", "A-17"]).passed());
        assert_eq!(context("Your order A-171", &["A-17"]).why(), Some("not in the answer: `A-17`"));
        assert!(context("Your order BA-17", &["A-17"]).failed());
        assert!(context("", &["A-17"]).failed());
        assert!(context("A-171, and A-17", &["A-17"]).passed());
        assert_eq!(context("A-17", &["A-17", "B-2", "C-\u{1b}"]).why(), Some("not in the answer: `B-2`, `C-\\u{1b}`"));
    }

    #[test]
    fn without_facts_it_does_not_apply() {
        assert_eq!(context("x", &[] as &[&str]), Verdict::Skipped);
        assert_eq!(context("x", &[" "]), Verdict::Skipped);
    }
}
