//! The map of one request: what was taken out, and which placeholder stands for it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::text::{Escapes, decoded};

/// Different values that one request may hold. A longer list is no conversation.
pub(super) const VALUES_MAX: usize = 50_000;
/// Spellings of one value that are told apart; more get a number of their own.
const SPELLINGS_MAX: usize = 26;
/// Letters of a tag; the default has none.
const TAG_MAX: usize = 4;

/// What kind of value it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// An e-mail address.
    Email,
    /// A bank account.
    Iban,
    /// A payment card.
    Card,
    /// A phone number.
    Phone,
    /// A declared name.
    Name,
}

impl Kind {
    pub(super) const ALL: [Kind; 5] = [Kind::Email, Kind::Iban, Kind::Card, Kind::Phone, Kind::Name];

    /// The word in its placeholders.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Kind::Email => "EMAIL",
            Kind::Iban => "IBAN",
            Kind::Card => "CARD",
            Kind::Phone => "PHONE",
            Kind::Name => "NAME",
        }
    }

    fn place(self) -> usize {
        self as usize
    }

    /// What makes two spellings the same value.
    fn canonical(self, text: &str) -> String {
        let text = decoded(text, Escapes::Unicode);
        match self {
            Kind::Email => text.to_lowercase(),
            Kind::Iban | Kind::Card | Kind::Phone => {
                text.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_uppercase()).collect()
            }
            Kind::Name => {
                let words = text.split(|c: char| !c.is_alphanumeric()).filter(|w| !w.is_empty());
                words.map(str::to_lowercase).collect::<Vec<_>>().join(" ")
            }
        }
    }
}

/// What was taken out of one request. It belongs to that request and is dropped with it.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Originals {
    tag: String,
    /// By kind and number (from one), the spellings.
    values: [Vec<Vec<String>>; 5],
    numbers: BTreeMap<(Kind, String), usize>,
    held: usize,
    json: bool,
}

/// Says how many there are, and nothing of them.
impl fmt::Debug for Originals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Originals").field("values", &self.held).finish_non_exhaustive()
    }
}

/// How a text reads as a placeholder from its `[` on.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reads<'a> {
    /// So many bytes of it are one.
    Whole(usize, &'a str),
    /// All of it could be the beginning of one.
    Begins,
    /// It is none.
    Not,
}

impl Originals {
    /// Nothing was taken out.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held == 0
    }

    /// How many different values of this kind there are.
    #[must_use]
    pub fn count(&self, kind: Kind) -> usize {
        self.values.get(kind.place()).map_or(0, Vec::len)
    }

    /// The answer's text is JSON: what comes back must be escaped as there.
    #[must_use]
    pub fn json(&self) -> bool {
        self.json
    }

    pub(super) fn set_json(&mut self, json: bool) {
        self.json = json;
    }

    /// All spellings of all values, names left out.
    pub(super) fn literal(&self) -> impl Iterator<Item = (Kind, &str)> {
        let kinds = Kind::ALL.into_iter().filter(|kind| *kind != Kind::Name);
        kinds.flat_map(|kind| {
            self.values.get(kind.place()).into_iter().flatten().flatten().map(move |text| (kind, text.as_str()))
        })
    }

    /// Keeps a value. False: there are too many.
    pub(super) fn keep(&mut self, kind: Kind, text: &str) -> bool {
        self.numbered(kind, text).is_some()
    }

    /// The placeholder of a value; keeps it if it is new. `None`: there are too many.
    pub(super) fn placeholder(&mut self, kind: Kind, text: &str) -> Option<String> {
        let (number, spelling) = self.numbered(kind, text)?;
        let mut out = format!("[{}_{}{number}", kind.label(), self.tag);
        if spelling > 0 {
            out.push(char::from(b'A' + u8::try_from(spelling).unwrap_or(0)));
        }
        out.push(']');
        Some(out)
    }

    fn numbered(&mut self, kind: Kind, text: &str) -> Option<(usize, usize)> {
        let canonical = kind.canonical(text);
        let all = self.values.get_mut(kind.place())?;
        if let Some(number) = self.numbers.get(&(kind, canonical.clone())) {
            let spellings = all.get_mut(number - 1)?;
            if let Some(known) = spellings.iter().position(|s| s == text) {
                return Some((*number, known));
            }
            if spellings.len() < SPELLINGS_MAX {
                if self.held == VALUES_MAX {
                    return None;
                }
                self.held += 1;
                spellings.push(text.to_owned());
                return Some((*number, spellings.len() - 1));
            }
        }
        if self.held == VALUES_MAX {
            return None;
        }
        self.held += 1;
        all.push(vec![text.to_owned()]);
        self.numbers.insert((kind, canonical), all.len());
        Some((all.len(), 0))
    }

    /// Chooses a tag that none of the placeholders in the request has.
    pub(super) fn choose_tag(&mut self, used: &BTreeSet<String>) {
        self.tag = tags().find(|tag| !used.contains(tag)).unwrap_or_default();
    }

    /// Reads a text that begins with `[`. Case does not matter, and a Markdown backslash before the `_` is passed over.
    pub(super) fn read(&self, text: &str) -> Reads<'_> {
        let bytes = text.as_bytes();
        let mut at = 1;
        let letters = bytes.iter().skip(at).take_while(|b| b.is_ascii_alphabetic()).take(6).count();
        let Some(word) = text.get(at..at + letters) else { return Reads::Not };
        at += letters;
        let used = |kind: &&Kind| self.count(**kind) > 0;
        if at == bytes.len() {
            let begins = |kind: &&Kind| kind.label().get(..letters).is_some_and(|l| l.eq_ignore_ascii_case(word));
            return if Kind::ALL.iter().filter(used).any(|kind| begins(&kind)) { Reads::Begins } else { Reads::Not };
        }
        let Some(kind) = Kind::ALL.iter().filter(used).find(|k| k.label().eq_ignore_ascii_case(word)) else {
            return Reads::Not;
        };
        if bytes.get(at) == Some(&b'\\') {
            at += 1;
        }
        match bytes.get(at) {
            None => return Reads::Begins,
            Some(b'_') => at += 1,
            Some(_) => return Reads::Not,
        }
        for wanted in self.tag.bytes() {
            match bytes.get(at) {
                None => return Reads::Begins,
                Some(b) if b.eq_ignore_ascii_case(&wanted) => at += 1,
                Some(_) => return Reads::Not,
            }
        }
        let mut number = 0usize;
        let max = self.count(*kind);
        let digits_at = at;
        while let Some(digit) = bytes.get(at).filter(|b| b.is_ascii_digit()) {
            number = number * 10 + usize::from(digit - b'0');
            if number == 0 || number > max {
                return Reads::Not;
            }
            at += 1;
        }
        if at == bytes.len() {
            return Reads::Begins;
        }
        if at == digits_at {
            return Reads::Not;
        }
        let Some(spellings) = self.values.get(kind.place()).and_then(|all| all.get(number - 1)) else {
            return Reads::Not;
        };
        let spelling = match bytes.get(at) {
            Some(letter) if letter.is_ascii_alphabetic() => {
                at += 1;
                usize::from(letter.to_ascii_uppercase() - b'A')
            }
            _ => 0,
        };
        let written_first = spelling == 0 && bytes.get(at - 1).is_some_and(u8::is_ascii_alphabetic);
        let Some(original) = spellings.get(spelling).filter(|_| !written_first) else { return Reads::Not };
        match bytes.get(at) {
            None => Reads::Begins,
            Some(b']') => Reads::Whole(at + 1, original),
            Some(_) => Reads::Not,
        }
    }
}

/// No letters, then `B` to `Z`, then two of them ... `A` is left out: a spelling never has it.
fn tags() -> impl Iterator<Item = String> {
    let letters = || (b'B'..=b'Z').map(char::from);
    let one = letters().map(String::from);
    let two = letters().flat_map(move |a| letters().map(move |b| format!("{a}{b}")));
    let more = letters().flat_map(move |a| letters().flat_map(move |b| letters().map(move |c| format!("Q{a}{b}{c}"))));
    std::iter::once(String::new()).chain(one).chain(two).chain(more)
}

/// Notes the tags of what looks like a placeholder in a text, whoever wrote it.
pub(super) fn note_tags(text: &str, used: &mut BTreeSet<String>) {
    let bytes = text.as_bytes();
    let mut from = 0;
    while let Some(found) = bytes.get(from..).and_then(|rest| memchr::memchr(b'[', rest)) {
        let at = from + found + 1;
        from = at;
        let rest = bytes.get(at..).unwrap_or_default();
        let word = rest.iter().take(6).take_while(|b| b.is_ascii_alphabetic()).count();
        let Some(word) = text.get(at..at + word) else { continue };
        if !Kind::ALL.iter().any(|kind| kind.label().eq_ignore_ascii_case(word)) {
            continue;
        }
        let mut rest = rest.get(word.len()..).unwrap_or_default();
        rest = rest.strip_prefix(b"\\").unwrap_or(rest);
        let Some(rest) = rest.strip_prefix(b"_") else { continue };
        let letters = rest.iter().take(TAG_MAX + 1).take_while(|b| b.is_ascii_alphabetic()).count();
        if letters <= TAG_MAX && rest.get(letters).is_some_and(u8::is_ascii_digit) {
            let tag = rest.iter().take(letters).map(|b| char::from(b.to_ascii_uppercase()));
            used.insert(tag.collect());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> Originals {
        let mut map = Originals::default();
        for n in 1..=12 {
            assert_eq!(map.placeholder(Kind::Email, &format!("a{n}@x.com")), Some(format!("[EMAIL_{n}]")));
        }
        map
    }

    #[test]
    fn one_value_is_one_number_and_each_spelling_comes_back_as_it_was() {
        let mut map = Originals::default();
        assert_eq!(map.placeholder(Kind::Phone, "+7 701 123 45 67").unwrap(), "[PHONE_1]");
        assert_eq!(map.placeholder(Kind::Phone, "+77011234567").unwrap(), "[PHONE_1B]");
        assert_eq!(map.placeholder(Kind::Phone, "+77011234568").unwrap(), "[PHONE_2]");
        assert_eq!(map.placeholder(Kind::Phone, "+7 701 123 45 67").unwrap(), "[PHONE_1]");
        assert_eq!(map.read("[phone_1b] x"), Reads::Whole(10, "+77011234567"));
        assert_eq!(map.read("[PHONE_1]"), Reads::Whole(9, "+7 701 123 45 67"));
        for none in ["[PHONE_1A]", "[PHONE_1C]", "[PHONE_2B]", "[PHONE_3", "[PHONE_0", "[PHONE_]", "[EMAIL_1]"] {
            assert_eq!(map.read(none), Reads::Not, "{none}");
        }
    }

    #[test]
    fn every_part_of_a_placeholder_is_its_beginning_and_nothing_else_is() {
        let map = map();
        for n in 1..=12 {
            let whole = format!("[EMAIL_{n}]");
            for to in 1..whole.len() {
                assert_eq!(map.read(&whole[..to]), Reads::Begins, "{}", &whole[..to]);
            }
            assert!(matches!(map.read(&whole), Reads::Whole(l, _) if l == whole.len()));
        }
        assert!(matches!(map.read("[Email\\_12]"), Reads::Whole(11, "a12@x.com")));
        for none in ["[EMAIL_13", "[EMAIL_0", "[EMAILS", "[EMAI_", "[X", "[[", "[P", "[ EMAIL", "[EMAIL 1"] {
            assert_eq!(map.read(none), Reads::Not, "{none}");
        }
        assert_eq!(Originals::default().read("["), Reads::Not);
    }

    #[test]
    fn a_tag_that_occurs_is_not_taken() {
        let mut used = BTreeSet::new();
        note_tags("[EMAIL_1] [card_B7 [NAME_C] [PHONE_x [iban\\_d3]", &mut used);
        assert_eq!(used.iter().map(String::as_str).collect::<Vec<_>>(), ["", "B", "D"]);
        let mut map = Originals::default();
        map.choose_tag(&used);
        assert_eq!(map.placeholder(Kind::Card, "4111111111111111").unwrap(), "[CARD_C1]");
        assert!(matches!(map.read("[card_c1]"), Reads::Whole(9, _)));
        assert_eq!(map.read("[CARD_1]"), Reads::Not);
        let all: BTreeSet<String> = tags().collect();
        assert_eq!(all.len(), 1 + 25 + 625 + 15_625);
        assert!(!all.contains("QQ") || all.iter().filter(|t| *t == "QQ").count() == 1);
    }

    #[test]
    fn debug_shows_nothing() {
        let mut map = map();
        map.keep(Kind::Name, "Anna Canary");
        let told = format!("{map:?} {map:#?}");
        assert!(!told.contains("x.com") && !told.contains("Canary"), "{told}");
        assert!(told.contains("13"), "{told}");
    }
}
