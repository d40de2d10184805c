//! Names, as the client declares them. None is ever guessed.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use memchr::memmem;

/// Names that a request may declare.
const NAMES_MAX: usize = 64;
/// Letters of one.
const CHARS: std::ops::RangeInclusive<usize> = 2..=100;
/// Words of one.
const WORDS_MAX: usize = 8;
/// Between two words of a name there may be so many characters that are none of a word.
const GAP_MAX: usize = 3;

/// Declared names, ready to be searched for: whole words, in any case, with spaces, hyphens, apostrophes, quotes, dots or low lines
/// between them. In scripts that put no spaces between words, anywhere in the text.
#[derive(Clone, Default)]
pub struct Names {
    nodes: Vec<Node>,
    spaceless: Vec<String>,
}

#[derive(Clone, Default)]
struct Node {
    next: BTreeMap<String, usize>,
    ends: bool,
}

/// Says how many there are, and nothing of them.
impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = self.nodes.iter().filter(|n| n.ends).count();
        f.debug_struct("Names").field("names", &(words + self.spaceless.len())).finish_non_exhaustive()
    }
}

/// Why a list of names is refused. Holds no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadNames {
    /// More than may be declared.
    TooMany,
    /// One is shorter than two letters or longer than a hundred characters or eight words.
    Length,
    /// One holds no letter.
    NoLetter,
}

impl BadNames {
    /// What is wrong with the list.
    #[must_use]
    pub fn why(self) -> &'static str {
        match self {
            BadNames::TooMany => "declares more than 64 names",
            BadNames::Length => "declares a name that is not from 2 to 100 characters and 8 words long",
            BadNames::NoLetter => "declares a name without a letter",
        }
    }
}

impl Names {
    /// Makes a list of these names; blank ones are none.
    ///
    /// # Errors
    /// If one cannot be searched for: a name that was declared is never passed over.
    pub fn declared<T: AsRef<str>>(all: impl IntoIterator<Item = T>) -> Result<Names, BadNames> {
        let mut names = Names::default();
        for (count, name) in all.into_iter().filter(|n| !n.as_ref().trim().is_empty()).enumerate() {
            if count == NAMES_MAX {
                return Err(BadNames::TooMany);
            }
            names.add(name.as_ref().trim())?;
        }
        Ok(names)
    }

    /// None is declared.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.spaceless.is_empty()
    }

    pub(super) fn add(&mut self, name: &str) -> Result<(), BadNames> {
        if !CHARS.contains(&name.chars().count()) {
            return Err(BadNames::Length);
        }
        if !name.chars().any(char::is_alphabetic) {
            return Err(BadNames::NoLetter);
        }
        if name.chars().any(spaceless) {
            self.spaceless.push(name.to_owned());
            return Ok(());
        }
        let words: Vec<String> = Words::new(name).map(|at| lower(name, at)).collect();
        if words.len() > WORDS_MAX {
            return Err(BadNames::Length);
        }
        if self.nodes.is_empty() {
            self.nodes.push(Node::default());
        }
        let mut at = 0;
        for word in words {
            let new = self.nodes.len();
            let Some(node) = self.nodes.get_mut(at) else { break };
            at = *node.next.entry(word).or_insert(new);
            if at == new {
                self.nodes.push(Node::default());
            }
        }
        if let Some(node) = self.nodes.get_mut(at) {
            node.ends = true;
        }
        Ok(())
    }

    /// Where they stand in a text. The ranges may overlap with one another.
    pub(super) fn find(&self, text: &str, mut found: impl FnMut(Range<usize>)) {
        for name in &self.spaceless {
            for at in memmem::find_iter(text.as_bytes(), name.as_bytes()) {
                found(at..at + name.len());
            }
        }
        let Some(root) = self.nodes.first() else { return };
        let mut words = Words::new(text);
        while let Some(first) = words.next() {
            let Some(next) = root.next.get(lower(text, first.clone()).as_str()) else { continue };
            if let Some(end) = self.longest(text, *next, first.end, &words) {
                found(first.start..end);
                words.at = words.at.max(end);
            }
        }
    }

    fn longest(&self, text: &str, node: usize, end: usize, rest: &Words<'_>) -> Option<usize> {
        let mut node = self.nodes.get(node)?;
        let mut end = end;
        let mut best = node.ends.then_some(end);
        let mut rest = rest.clone();
        while !node.next.is_empty() {
            let Some(word) = rest.next() else { break };
            let gap = text.get(end..word.start).unwrap_or_default();
            let joins = |c: char| c.is_whitespace() || "-'’._\"“”„\u{2010}\u{2011}".contains(c);
            if gap.chars().count() > GAP_MAX || !gap.chars().all(joins) {
                break;
            }
            let Some(next) = node.next.get(lower(text, word.clone()).as_str()) else { break };
            let Some(next) = self.nodes.get(*next) else { break };
            node = next;
            end = word.end;
            best = if node.ends { Some(end) } else { best };
        }
        best
    }
}

fn lower(text: &str, at: Range<usize>) -> String {
    text.get(at).unwrap_or_default().to_lowercase()
}

/// Scripts that put no spaces between words: Thai, Lao, Burmese, Khmer, Japanese, Chinese; and Korean, which hangs its
/// particles on the name.
pub(super) fn spaceless(c: char) -> bool {
    matches!(u32::from(c),
        0x0e00..=0x0eff | 0x1000..=0x109f | 0x1780..=0x17ff | 0x3040..=0x30ff | 0x3400..=0x4dbf | 0x4e00..=0x9fff
        | 0xac00..=0xd7af | 0xf900..=0xfaff | 0x20000..=0x3ffff)
}

/// Runs of letters and digits, marks that belong to a letter included.
#[derive(Clone)]
struct Words<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Words<'a> {
    fn new(text: &'a str) -> Words<'a> {
        Words { text, at: 0 }
    }
}

fn of_word(c: char) -> bool {
    c.is_alphanumeric() || matches!(u32::from(c), 0x0300..=0x036f)
}

impl Iterator for Words<'_> {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        let rest = self.text.get(self.at..)?;
        let from = self.at + rest.find(of_word)?;
        let rest = self.text.get(from..)?;
        let to = from + rest.find(|c| !of_word(c)).unwrap_or(rest.len());
        self.at = to;
        Some(from..to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found<'a>(names: &[&str], text: &'a str) -> Vec<&'a str> {
        let mut out = Vec::new();
        Names::declared(names).unwrap().find(text, |at| out.push(&text[at]));
        out
    }

    #[test]
    fn declared_names_are_found_as_whole_words_in_any_case() {
        let text = "Anna's order: ANNA  PETROVA, anna-petrova; Annapolis, Hannah. Petrova, Anna";
        assert_eq!(found(&["Anna Petrova"], text), ["ANNA  PETROVA", "anna-petrova"]);
        assert_eq!(found(&["anna"], text), ["Anna", "ANNA", "anna", "Anna"]);
        assert_eq!(found(&["Anna", "Anna Petrova"], text), ["Anna", "ANNA  PETROVA", "anna-petrova", "Anna"]);
        assert_eq!(found(&["Müller"], "Herr MÜLLER und Frau Müllerin"), ["MÜLLER"]);
        assert_eq!(found(&["O'Brien"], "O’Brien, o'brien, OBrien"), ["O’Brien", "o'brien"]);
        assert_eq!(found(&["王小明"], "您好王小明先生"), ["王小明"]);
        assert_eq!(found(&[], text), [""; 0]);
        assert_eq!(found(&["Anna Petrova"], "Anna. And so Petrova"), [""; 0]);
    }

    #[test]
    fn a_name_that_cannot_be_searched_for_is_refused() {
        for (bad, why) in [("A", BadNames::Length), ("1234", BadNames::NoLetter), ("--", BadNames::NoLetter)] {
            assert_eq!(Names::declared([bad]).unwrap_err(), why, "{bad}");
        }
        assert_eq!(Names::declared([&"ab ".repeat(40)]).unwrap_err(), BadNames::Length);
        assert_eq!(Names::declared(["a b c d e f g h i"]).unwrap_err(), BadNames::Length);
        assert_eq!(Names::declared((0..65).map(|n| format!("name{n}"))).unwrap_err(), BadNames::TooMany);
        assert!(Names::declared(["", " "]).unwrap().is_empty());
        assert!(!format!("{:?}", Names::declared(["Anna Canary"]).unwrap()).contains("anna"));
    }
}
