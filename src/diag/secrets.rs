//! Which parts of a text could be a secret that somebody wrote into a file by mistake. Judged line by line and by the look
//! of keys and words, never by the schema: a file that cannot be read must not leak either. Too much is hidden rather than
//! too little; a reference (`env:NAME`, `file:PATH`) is no secret.

use std::ops::Range;

use crate::units::KEY_PREFIXES;

/// Words that make a key's value a secret wherever they stand in its name.
const SECRET_WORDS: [&str; 9] =
    ["credentials", "credential", "secret", "secrets", "password", "passwd", "passphrase", "apikey", "authorization"];
/// Words that do so only at the end of the name: `first_token_timeout_ms` and `key_argument` are no secrets.
const LAST_WORDS: [&str; 6] = ["token", "tokens", "key", "keys", "pass", "pwd"];
/// Likeness (Jaro-Winkler) from which a misspelt word counts as the word. `seconds` is 0.80 like `secrets`.
const LIKE: f64 = 0.88;
/// Characters after a vendor's prefix ([`KEY_PREFIXES`]) that make a word a key.
const PREFIX_REST: usize = 4;
/// Shortest run of letters and digits that can be a key by its look alone.
const RANDOM_CHARS: usize = 16;
/// Changes between small letters, capitals and digits from which such a run looks drawn by lot. `Llama3Instruct8B` has 6
/// in 16 characters and is hidden too; that costs nothing.
const RANDOM_CHANGES: usize = 5;
/// Characters of a key's end that are looked at.
const NAME_CHARS: usize = 100;
/// What stands in the place of a secret in a message.
const MASK: &str = "****";

/// True if a key of this name holds a secret.
pub fn is_secret_name(name: &str) -> bool {
    // Of a key that nobody would write the end is enough.
    let name = match name.char_indices().rev().nth(NAME_CHARS) {
        Some((n, _)) => &name[n..],
        None => name,
    };
    let mut words = Vec::new();
    let mut word = String::new();
    let mut low = false;
    for c in name.chars() {
        if !c.is_alphanumeric() || (c.is_uppercase() && low) {
            words.push(std::mem::take(&mut word));
        }
        if c.is_alphanumeric() {
            word.extend(c.to_lowercase());
        }
        low = c.is_lowercase();
    }
    words.push(word);
    words.retain(|w| !w.is_empty());
    let like = |w: &str, known: &[&str]| {
        known.iter().any(|k| w == *k || (w.len() >= 4 && k.len() >= 5 && strsim::jaro_winkler(w, k) >= LIKE))
    };
    let joined = words.concat();
    words.iter().any(|w| like(w, &SECRET_WORDS))
        || like(&joined, &SECRET_WORDS)
        || words.last().is_some_and(|w| like(w, &LAST_WORDS))
}

/// The bytes of a text that must not be shown, sorted and apart from each other.
pub fn find(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    // Values already hidden: keys inside them are not looked at again, which keeps this linear.
    let mut done = 0;
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        for (n, _) in line.match_indices(':') {
            let colon = at + n;
            if colon < done {
                continue;
            }
            let Some(key) = key_before(&line[..n]) else { continue };
            if is_secret_name(&line[key.clone()]) {
                let first = line[..key.start]
                    .chars()
                    .all(|c| " \t-\"'".contains(c))
                    .then(|| line[..key.start].trim_end_matches(['"', '\'']).len());
                let value = value_after(text, first, colon + 1);
                done = value.end.max(done);
                hide_words(text, value, &mut found);
            }
        }
        words(line, at, &mut found);
        at += line.len();
    }
    join(found)
}

/// A text with what could be a secret in it as `****`, for text of a file that a message repeats.
pub fn mask(text: &str) -> String {
    let mut found = Vec::new();
    words(text, 0, &mut found);
    render(text, found)
}

/// As [`mask`], by the look of single words alone: for whole messages, whose own words may look like an address.
pub fn mask_words(text: &str) -> String {
    let mut found = Vec::new();
    tokens(text, 0, &mut found);
    render(text, found)
}

/// Sorted, and what touches made one.
pub fn join(mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    ranges.retain(|r| !r.is_empty());
    ranges.sort_unstable_by_key(|r| r.start);
    let mut out: Vec<Range<usize>> = Vec::with_capacity(ranges.len());
    for r in ranges {
        match out.last_mut() {
            Some(last) if r.start <= last.end => last.end = last.end.max(r.end),
            _ => out.push(r),
        }
    }
    out
}

fn render(text: &str, found: Vec<Range<usize>>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    for r in join(found) {
        out.push_str(text.get(at..r.start).unwrap_or(""));
        out.push_str(MASK);
        at = r.end;
    }
    out.push_str(text.get(at..).unwrap_or(""));
    out
}

/// The name that stands right before a colon, without its quotes.
fn key_before(before: &str) -> Option<Range<usize>> {
    let trimmed = before.trim_end();
    let end = trimmed.strip_suffix(['"', '\'']).map_or(trimmed.len(), str::len);
    let start = trimmed[..end]
        .char_indices()
        .rev()
        .take_while(|(_, c)| c.is_alphanumeric() || "_-. ".contains(*c))
        .last()
        .map_or(end, |(n, _)| n);
    let name = &trimmed[start..end];
    let start = start + name.len() - name.trim_start_matches([' ', '-']).len();
    (start < end).then_some(start..end)
}

/// The whole value behind a secret's key, over as many lines as it takes: to the closing quote or bracket; else, for a key
/// that is the `first` of its line (at this indent), the rest of the line and every line that is indented further; else, as
/// inside brackets, to the end of the item.
fn value_after(text: &str, first: Option<usize>, from: usize) -> Range<usize> {
    let rest = text.get(from..).unwrap_or("");
    let start = from + rest.len() - rest.trim_start_matches([' ', '\t']).len();
    let rest = &text[start..];
    let end = match (rest.chars().next(), first) {
        (Some(q @ ('"' | '\'')), _) => quoted_end(rest, q),
        (Some('{' | '['), _) => closing(rest),
        (_, None) => rest.find([',', '}', ']', '\n']).unwrap_or(rest.len()),
        (_, Some(indent)) => {
            let mut lines = rest.split_inclusive('\n');
            let mut end = lines.next().map_or(0, str::len);
            for line in lines {
                let deep = line.len() - line.trim_start_matches([' ', '\t']).len();
                let list = line[deep..].starts_with("- ") && deep >= indent;
                if !line.trim().is_empty() && deep <= indent && !list {
                    break;
                }
                end += line.len();
            }
            end
        }
    };
    start..start + end
}

/// Bytes to the quote that closes the first one: `\\"` is none inside double quotes, `''` is none inside single ones.
fn quoted_end(text: &str, quote: char) -> usize {
    let mut chars = text.char_indices().skip(1).peekable();
    while let Some((n, c)) = chars.next() {
        if c == '\\' && quote == '"' {
            chars.next();
        } else if c == quote && chars.next_if(|(_, next)| quote == '\'' && *next == quote).is_none() {
            return n + 1;
        }
    }
    text.len()
}

/// Bytes to the bracket that closes the first one.
fn closing(text: &str) -> usize {
    let mut open = 0usize;
    for (n, c) in text.char_indices() {
        match c {
            '{' | '[' => open += 1,
            '}' | ']' => {
                open -= 1;
                if open == 0 {
                    return n + 1;
                }
            }
            _ => {}
        }
    }
    text.len()
}

/// Hides the words of a secret's value. A reference stays, a count of tokens too, and a comment behind a plain value.
fn hide_words(text: &str, value: Range<usize>, found: &mut Vec<Range<usize>>) {
    let body = &text[value.clone()];
    // Inside quotes, brackets and block texts ` #` is no comment.
    let plain = !body.starts_with(['"', '\'', '{', '[', '|', '>']);
    let first = body.lines().next().unwrap_or("");
    let shown_from = if plain { first.find(" #").unwrap_or(first.len()) } else { first.len() };
    let alone = body.lines().skip(1).all(|l| l.trim().is_empty() || l.trim_start().starts_with('#'));
    let bare = first[..shown_from].trim().trim_matches(['"', '\'']);
    let number = !bare.is_empty() && bare.len() <= 9 && bare.bytes().all(|b| b.is_ascii_digit() || b == b'_');
    let key_is_count =
        text[..value.start].trim_end().trim_end_matches(':').trim_end_matches(['"', '\'']).ends_with("okens");
    if alone && (is_reference(bare) || (number && key_is_count)) {
        return;
    }
    let mut at = value.start;
    for (n, line) in body.split_inclusive('\n').enumerate() {
        let end = if n == 0 { shown_from } else { line.len() };
        let mut from = 0;
        for (n, c) in line[..end].char_indices() {
            if c.is_whitespace() || "{}[],\"'|>".contains(c) {
                found.push(at + from..at + n);
                from = n + c.len_utf8();
            }
        }
        found.push(at + from..at + end);
        at += line.len();
    }
}

fn is_reference(text: &str) -> bool {
    let name = |t: &str| !t.is_empty() && t.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    text.strip_prefix("env:").is_some_and(name) || text.strip_prefix("file:").is_some_and(|t| !t.contains('\n'))
}

/// Secrets by the look of a word: in an address, by a vendor's prefix, by chance.
fn words(line: &str, at: usize, found: &mut Vec<Range<usize>>) {
    let base = line.as_ptr() as usize;
    for word in line.split_whitespace() {
        let from = at + word.as_ptr() as usize - base;
        let start = word.find("://").map_or(0, |n| n + 3);
        if let Some(user) = word[start..].rfind('@')
            && (start > 0 || word[..user].contains(':'))
        {
            found.push(from + start..from + start + user);
        }
        let tail =
            if start > 0 { word[start..].find(['?', '#']) } else { word.find('?').filter(|_| word.contains('=')) };
        if let Some(query) = tail {
            let end = word.trim_end_matches(['"', '\'', ',', '}', ']', '`']).len();
            found.push(from + start + query + 1..(from + end).max(from + start + query + 1));
        }
    }
    tokens(line, at, found);
}

/// Words that are keys by their prefix or by their look.
fn tokens(text: &str, at: usize, found: &mut Vec<Range<usize>>) {
    let mut from = 0;
    let ends = text.char_indices().filter(|(_, c)| !(c.is_ascii_alphanumeric() || "_-+=~".contains(*c)));
    for (n, width) in ends.map(|(n, c)| (n, c.len_utf8())).chain([(text.len(), 0)]) {
        if looks_like_key(&text[from..n]) {
            found.push(at + from..at + n);
        }
        from = n + width;
    }
}

fn looks_like_key(word: &str) -> bool {
    let lower = word.to_ascii_lowercase();
    let vendor = KEY_PREFIXES.iter().any(|p| {
        lower.match_indices(p).any(|(n, _)| {
            (n == 0 || !lower.as_bytes()[n - 1].is_ascii_alphanumeric()) && lower.len() - n - p.len() >= PREFIX_REST
        })
    });
    let parts = || word.split(['-', '+', '=', '~', '_']);
    let mixed =
        |p: &&str| p.len() >= 4 && p.bytes().any(|b| b.is_ascii_digit()) && p.bytes().any(|b| b.is_ascii_alphabetic());
    // A UUID and the like: short parts, most of them letters and digits mixed.
    let parted = word.len() >= 24 && parts().filter(mixed).map(str::len).sum::<usize>() * 2 >= word.len();
    vendor || parted || parts().any(|p| p.len() >= RANDOM_CHARS && changes(p) >= RANDOM_CHANGES)
}

/// How often a word changes between small letters, capitals and digits.
fn changes(word: &str) -> usize {
    let kind = |b: u8| (b.is_ascii_digit(), b.is_ascii_uppercase());
    word.as_bytes().windows(2).filter(|w| kind(w[0]) != kind(w[1])).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diag::Source;

    fn shown(text: &str) -> String {
        Source::new("f", text).shown(0..text.len())
    }

    #[test]
    fn a_secret_under_a_misspelt_or_other_name_is_hidden() {
        for key in [
            "credential",
            "crednetials",
            "Credentials",
            "api_key",
            "apiKey",
            "api-keys",
            "secrt",
            "client_secret_value",
            "auth_token",
            "pasword",
            "\"token\"",
            "authorization",
            "pwd",
        ] {
            for text in [
                format!("{key}: hunter2"),
                format!("- {key}: hunter2 # note"),
                format!("t: {{ {key}: hunter2, model: m }}"),
                format!("{key}:\n  hunter2\nmodel: m"),
                format!("{key}: |\n  x\n  hunter2\nmodel: m"),
                format!("  {key}:\n    value: hunter2\n    more: {{ a: hunter2 }}\n  model: m"),
                format!("{key}: {{ a: b,\n c: [hunter2] }}\nmodel: m"),
                format!("{key}:\n- hunter2\nmodel: m"),
                format!("{key}: \"a\n  hunter2\""),
                format!("{key}: 'it''s hunter2'"),
                format!("{key}: \"a\\\"hunter2 # hunter2\""),
                format!("{key}: |\n  a # hunter2\nmodel: m"),
                format!("{key}: env:A\n  hunter2\nmodel: m"),
                format!("{key}: *hunter2"),
            ] {
                let shown = shown(&text);
                assert!(!shown.contains("hunter2") && shown.len() == text.len(), "{text} gives {shown}");
                assert!(!text.contains("model: m") || shown.contains("model: m"), "{text} gives {shown}");
                assert!(!text.contains("# note") || shown.contains("# note"), "{shown}");
            }
        }
    }

    #[test]
    fn references_counts_and_plain_settings_stay() {
        for text in [
            "credentials: env:LOCAL_A_KEY",
            "t: { credentials: file:/run/secrets/vendor-x, tier: standard }",
            "context_tokens: 8000",
            "handoff_above_tokens: 32000",
            "tokens_per_minute: 100000",
            "first_token_timeout_ms: 2000",
            "commit_at: first_token",
            "create_ticket: { side_effects: keyed, key_argument: operation_id }",
            "expires: 2027-01-31T00:00:00Z",
            "version: support-prompt-2026-11-30",
            "model: meta-llama/Llama-3.1-8B-Instruct-GPTQ-INT4",
            "base_url: http://10.20.0.11:8000/v1",
            "golden_set: goldensets/support-v3.yaml",
            "window_seconds: 30",
            "invariant_violation_rate: 0.001",
        ] {
            assert_eq!(shown(text), text);
        }
    }

    #[test]
    fn a_word_that_looks_like_a_key_is_hidden_wherever_it_stands() {
        for secret in [
            "sk-live-1234",
            "hf_abcdef",
            "AIzaSyD4x8secret",
            "9f86d081884c7d659a2feaa0c55ad015",
            "aB3dE5gH7jK9mN1pQ",
            "6fa459ea-ee8a-3ca4-894e-db77e160355e",
        ] {
            for text in
                [format!("model: {secret}"), format!("{secret}: x"), format!("# {secret}"), format!("a: [{secret}]")]
            {
                assert!(!shown(&text).contains(secret), "{text}");
                assert_eq!(mask(&text), text.replace(secret, "****"));
                assert_eq!(mask_words(&text), text.replace(secret, "****"));
            }
        }
    }

    #[test]
    fn names_passwords_and_queries_of_an_address_are_hidden() {
        for (text, want) in [
            ("u: http://me:pw@h/v1", "u: http://****@h/v1"),
            ("u: \"http://me:p/w@h/v1\"", "u: \"http://****@h/v1\""),
            ("u: me:pw@h/v1", "u: ****@h/v1"),
            ("u: https://h/v1?key=abc", "u: https://h/v1?****"),
            ("{ u: https://h/v1?key=abc, x: y }", "{ u: https://h/v1?****, x: y }"),
            ("u: h/v1?key=abc", "u: h/v1?****"),
            ("u: https://h/v1#abc", "u: https://h/v1#****"),
        ] {
            assert_eq!(mask(text), want);
            let shown = shown(text);
            assert!(["me", "pw", "p/w", "abc"].iter().all(|s| !shown.contains(s)), "{shown}");
        }
    }
}
