//! `[P]` What a request asks of the mock provider: a mark in its text, because a gateway passes on nothing else unchanged.

/// The mark begins so.
const MARK: &str = "[bench ";
/// Words of an answer, and so content chunks of a stream.
pub const WORDS: usize = 50;
/// A gap longer than this is not waited for.
const GAP_MOST_MS: u64 = 10_000;

/// How the provider answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Milliseconds between two chunks of a stream.
    pub gap_ms: u64,
    /// After its first word the stream stays open and silent until the client leaves.
    pub hold: bool,
    /// The primary fails so; the stand-in never does.
    pub fault: Option<Fault>,
}

/// How the primary fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// 503 at once.
    Status503,
    /// 429 with `Retry-After: 1`.
    Status429,
    /// RST before the head.
    Reset,
    /// FIN before the head.
    Fin,
    /// Never a byte.
    Silence,
    /// A 200 with an error object.
    ErrorObject,
    /// A 200 with a page.
    Html,
    /// A 200 without a body.
    Empty,
    /// A 200 that is no JSON.
    Malformed,
    /// RST in mid-answer.
    CutReset,
    /// FIN in mid-answer.
    CutFin,
    /// A clean end in mid-answer, without finish reason and `[DONE]`.
    Truncated,
    /// Silence in mid-answer.
    Stall,
    /// An error event in mid-answer.
    ErrorEvent,
}

impl Fault {
    /// All of them with their names.
    pub const ALL: [(Fault, &'static str); 14] = [
        (Fault::Status503, "503"),
        (Fault::Status429, "429"),
        (Fault::Reset, "reset"),
        (Fault::Fin, "fin"),
        (Fault::Silence, "silence"),
        (Fault::ErrorObject, "error_object"),
        (Fault::Html, "html"),
        (Fault::Empty, "empty"),
        (Fault::Malformed, "malformed"),
        (Fault::CutReset, "cut_reset"),
        (Fault::CutFin, "cut_fin"),
        (Fault::Truncated, "truncated"),
        (Fault::Stall, "stall"),
        (Fault::ErrorEvent, "error_event"),
    ];

    /// It comes when a stream has shown words already: nobody can stand in any more.
    #[must_use]
    pub fn in_mid_answer(self) -> bool {
        matches!(self, Fault::CutReset | Fault::CutFin | Fault::Truncated | Fault::Stall | Fault::ErrorEvent)
    }
}

impl Asked {
    /// The mark for a request's text.
    #[must_use]
    pub fn mark(&self) -> String {
        let fault = self.fault.and_then(|f| Fault::ALL.iter().find(|(one, _)| *one == f)).map_or("-", |(_, name)| name);
        format!("{MARK}gap={} hold={} fault={fault}]", self.gap_ms, u8::from(self.hold))
    }

    /// What a body asks for; without a mark a plain answer.
    #[must_use]
    pub fn read(body: &[u8]) -> Asked {
        let mut asked = Asked::default();
        let Some(at) = memchr::memmem::find(body, MARK.as_bytes()) else { return asked };
        let mark = body.get(at + MARK.len()..).unwrap_or_default();
        let mark = mark.get(..memchr::memchr(b']', mark).unwrap_or(0)).unwrap_or_default();
        for pair in std::str::from_utf8(mark).unwrap_or_default().split(' ') {
            match pair.split_once('=') {
                Some(("gap", ms)) => asked.gap_ms = ms.parse().unwrap_or(0).min(GAP_MOST_MS),
                Some(("hold", one)) => asked.hold = one == "1",
                Some(("fault", name)) => asked.fault = Fault::ALL.iter().find(|(_, n)| *n == name).map(|(f, _)| *f),
                _ => {}
            }
        }
        asked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mark_is_read_as_it_was_meant() {
        for fault in Fault::ALL.iter().map(|(f, _)| Some(*f)).chain([None]) {
            let asked = Asked { gap_ms: 5, hold: fault.is_none(), fault };
            let body = format!(r#"{{"messages":[{{"role":"user","content":"hello {} there]"}}]}}"#, asked.mark());
            assert_eq!(Asked::read(body.as_bytes()), asked);
        }
    }

    #[test]
    fn a_broken_mark_asks_for_nothing() {
        for body in ["", "[bench ", "[bench gap=x hold=2 fault=no]", "gap=5 hold=1]"] {
            assert_eq!(Asked::read(body.as_bytes()), Asked::default(), "{body}");
        }
        assert_eq!(Asked::read(b"[bench gap=99999999]").gap_ms, GAP_MOST_MS);
    }
}
