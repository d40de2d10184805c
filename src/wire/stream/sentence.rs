//! The end of the first sentence, for `commit_at: first_sentence`.

/// A sentence that does not end is long enough after so many characters.
const SENTENCE_CHARS: u32 = 200;

/// How far the first sentence of a choice has come.
#[derive(Debug, Default)]
pub(super) struct Sentence {
    chars: u32,
    after_mark: bool,
}

impl Sentence {
    /// Adds text; true if the sentence has ended. `.!?` and a newline end it before white space and at the end of what has
    /// come; the full-width marks need nothing after them, as their scripts put no space there.
    pub(super) fn add(&mut self, text: &str) -> bool {
        let mut ended = false;
        for c in text.chars() {
            if self.chars == 0 && c.is_whitespace() {
                continue;
            }
            ended |= self.after_mark && c.is_whitespace();
            ended |= matches!(c, '。' | '！' | '？');
            self.chars = self.chars.saturating_add(1);
            self.after_mark = matches!(c, '.' | '!' | '?' | '\n');
        }
        ended || self.after_mark || self.chars >= SENTENCE_CHARS
    }
}
