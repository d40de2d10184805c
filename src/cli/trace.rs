//! `llmfo trace`

use std::io::BufReader;
use std::path::{Path, PathBuf};

use super::Global;
use crate::error::{Expected, Result};
use crate::event::Stamped;
use crate::event::story::{Circumstance, Dial, Story, Teller, Told, WouldHave};
use crate::exit::Exit;
use crate::files;
use crate::units::printable;

/// Longest line of a journal that is read.
const LINE_BYTES_MAX: u64 = 4 << 20;
/// Rotated files that are looked for: `FILE.1` and on.
const ROTATED_MAX: u32 = 99;

/// Lines of one file that are no text or too long, before it is given up.
const DAMAGED_MAX: u32 = 1_000;

/// Arguments.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Needs no gateway: the journal that `llmfo serve --journal FILE` wrote is enough, and what it was rotated to (FILE.1, FILE.2 ...)
is read before it. The id is what an answer carried: x-llmfo-request-id, or the correlation id of a handoff
(<conversation>/<turn>), or a conversation.
Exit code 0 if something was found, 4 if nothing.

Examples:
  llmfo trace req-65ad3c1e-000007 --journal journal.jsonl
  llmfo trace c-1842/4 --journal journal.jsonl           the turn that was handed off
  llmfo trace c-1842 --journal journal.jsonl --format json")]
pub struct Args {
    /// Request id, correlation id or conversation.
    #[arg(value_name = "ID")]
    pub id: String,
    /// The journal.
    #[arg(long, value_name = "FILE", env = "LLMFO_JOURNAL", value_hint = clap::ValueHint::FilePath)]
    pub journal: PathBuf,
    /// For people, or one JSON document.
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    pub format: super::ledger::Format,
}

/// Runs it.
///
/// # Errors
/// The journal cannot be read, or is none.
pub fn run(global: &Global, args: Args) -> Result<Exit> {
    let mut teller = Teller::new(&args.id);
    let mut read = Read::default();
    for path in all_of(&args.journal) {
        read.file(&path, &mut teller)?;
    }
    let name = printable(&args.journal.display().to_string(), 300);
    if read.events == 0 && read.unreadable > 0 {
        return Err(Expected::usage(
            format!("{name} is no journal: none of its {} lines is an event", read.unreadable),
            "name the file that `llmfo serve --journal` was given",
        ));
    }
    let story = teller.end();
    let found = !(story.requests.is_empty() && story.unfinished.is_empty());
    match args.format {
        super::ledger::Format::Json => {
            let text = serde_json::to_string_pretty(&story);
            global.term.out(&text.map_err(|e| Expected::could_not(format!("the story cannot be written: {e}"), ""))?);
        }
        super::ledger::Format::Human if found => {
            let width = global.term.width;
            global.term.out(&crate::term::table::wrap(human(&story).trim_end(), width));
        }
        super::ledger::Format::Human => {
            let span = read.span.map_or_else(
                || "it is empty".to_owned(),
                |(from, to)| format!("it goes from {} to {}", time(from), time(to)),
            );
            let what = format!("nothing of {} is in {name}; {span}", printable(&args.id, 128));
            let hint = "the id is that of the answer's x-llmfo-request-id, a <conversation>/<turn> or a conversation; see \
                        that the journal is that gateway's, and goes back so far";
            global.term.err(&global.term.wrapped_err(&format!("{what}\n  next: {hint}")));
        }
    }
    // The last line of a gateway that was killed may be half a line: that is no damage.
    if read.unreadable > u64::from(read.torn_end) {
        global.term.err(&format!("{} lines could not be read and are left out", read.unreadable));
    }
    Ok(if found { Exit::Good } else { Exit::Nothing })
}

/// The journal with what it was rotated to, oldest first.
fn all_of(journal: &Path) -> Vec<PathBuf> {
    let rotated = |n: u32| {
        let mut name = journal.as_os_str().to_owned();
        name.push(format!(".{n}"));
        PathBuf::from(name)
    };
    let mut all: Vec<PathBuf> = (1..=ROTATED_MAX).map(rotated).take_while(|path| path.exists()).collect();
    all.reverse();
    all.push(journal.to_owned());
    all
}

#[derive(Default)]
struct Read {
    events: u64,
    unreadable: u64,
    torn_end: bool,
    span: Option<(u64, u64)>,
}

impl Read {
    fn file(&mut self, path: &Path, teller: &mut Teller) -> Result<()> {
        let name = printable(&path.display().to_string(), 300);
        let failed = |why: String| {
            Expected::usage(
                format!("the journal {name} cannot be read: {why}"),
                "name the file that `llmfo serve --journal` was given",
            )
        };
        let (file, _) = files::open(path).map_err(failed)?;
        let mut lines = BufReader::new(file);
        let (mut bad, mut damaged) = (false, 0);
        loop {
            let line = match files::line(&mut lines, LINE_BYTES_MAX) {
                Ok(None) => break,
                Ok(Some(line)) => line,
                // Whatever is there, it is not one of ours; a disk that gives nothing at all must not be asked for ever.
                Err(why) => {
                    self.unreadable += 1;
                    damaged += 1;
                    if damaged == DAMAGED_MAX {
                        return Err(failed(why));
                    }
                    continue;
                }
            };
            if line.trim().is_empty() {
                continue;
            }
            match serde_json::from_str::<Stamped>(&line) {
                Ok(said) => {
                    let at = said.at_unix_ms;
                    self.events += 1;
                    self.span = Some(self.span.map_or((at, at), |(from, to)| (from.min(at), to.max(at))));
                    teller.hear(&said);
                    bad = false;
                }
                Err(_) => {
                    self.unreadable += 1;
                    bad = true;
                }
            }
        }
        self.torn_end |= bad;
        Ok(())
    }
}

fn time(unix_ms: u64) -> String {
    let at = i64::try_from(unix_ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    at.map_or_else(|| unix_ms.to_string(), |at| format!("{at:.3}"))
}

fn human(story: &Story) -> String {
    let mut out = String::new();
    if story.left_out > 0 {
        out.push_str(&format!("{} older requests are left out\n\n", story.left_out));
    }
    for told in &story.requests {
        out.push_str(&of_request(told));
        out.push('\n');
    }
    for failed in &story.unfinished {
        let text =
            format!("{}  {} (not over by the end of the journal)\n", time(failed.at_unix_ms), circumstance(failed));
        out.push_str(&text);
    }
    out
}

fn of_request(told: &Told) -> String {
    let say = |text: &str| printable(text, 256);
    let client = told.client.as_deref().map_or_else(String::new, |c| format!("  client {}", say(c)));
    let conversation = match (&told.conversation, told.turn) {
        (Some(c), Some(turn)) => format!("  conversation {} turn {turn}", say(c)),
        (Some(c), None) => format!("  conversation {}", say(c)),
        (None, _) => String::new(),
    };
    let intent = told.intent.as_deref().map(|i| format!(", intent {}", say(i))).unwrap_or_default();
    let how = if told.stream { "streamed" } else { "not streamed" };
    let policy = told
        .policy
        .as_ref()
        .map(|(version, sha)| format!(", policy {} ({})", say(version), say(sha.get(..12).unwrap_or(sha))));
    let mut out = format!(
        "{}{conversation}{client}\n  route {}, {how}{intent}{}\n",
        say(&told.request),
        say(&told.route),
        policy.unwrap_or_default()
    );
    let (before, meanwhile): (Vec<_>, Vec<_>) =
        told.circumstances.iter().partition(|c| c.at_unix_ms <= told.arrived_unix_ms);
    for c in before {
        out.push_str(&format!("  {}  {}\n", time(c.at_unix_ms), circumstance(c)));
    }
    out.push_str(&format!("  {}  arrived\n", time(told.arrived_unix_ms)));
    let mut moments: Vec<(f64, String)> = told.attempts.iter().flat_map(moments).collect();
    moments.extend(meanwhile.into_iter().map(|c| {
        let ms = c.at_unix_ms.saturating_sub(told.arrived_unix_ms) as f64;
        (ms, circumstance(c))
    }));
    moments.extend(told.observed.iter().map(would_have));
    moments.sort_by(|a, b| a.0.total_cmp(&b.0));
    for (ms, text) in moments {
        out.push_str(&format!("  {:>9} ms  {text}\n", format!("+{ms:.1}")));
    }
    for s in &told.skipped {
        let detail = if s.detail.is_empty() { String::new() } else { format!(": {}", say(&s.detail)) };
        out.push_str(&format!("  passed over  {} ({}){detail}\n", say(&s.target), say(&s.reason)));
    }
    let by = told.target.as_deref().map(|t| format!(" by {}", say(t))).unwrap_or_default();
    let cause = told.handoff.as_deref().map(|h| format!(" ({})", say(h))).unwrap_or_default();
    let dials = told.attempts.len();
    let plural = if dials == 1 { "" } else { "s" };
    out.push_str(&format!(
        "  {:>9} ms  over: {}{by}{cause}, {dials} dial{plural}\n",
        format!("+{:.1}", told.total_ms),
        say(&told.outcome).replace('_', " ")
    ));
    out
}

fn would_have(would: &WouldHave) -> (f64, String) {
    let why = printable(&would.why, 200);
    let text = match &would.to {
        Some(to) => format!("failover would have dialled {}, {why}", printable(to, 128)),
        None => format!("failover would have had nobody, {why}"),
    };
    (would.at_ms, text)
}

fn moments(dial: &Dial) -> Vec<(f64, String)> {
    let who = printable(&dial.target, 128);
    let masked = if dial.masked { ", personal data masked" } else { "" };
    let why = printable(&dial.why, 200);
    let mut all =
        vec![(dial.dialled_ms, format!("{who}: dialled, {why} ({} ms left{masked})", dial.remaining_ms_before))];
    let steps = [
        (dial.connected_ms, "connected"),
        (dial.first_token_ms, "first sign of life"),
        (dial.committed_ms, "committed"),
    ];
    all.extend(steps.into_iter().filter_map(|(at, what)| Some((at?, format!("{who}: {what}")))));
    let end = match (dial.class.as_str(), dial.reason.as_str()) {
        ("success", _) => format!("{who}: answer complete"),
        (class, reason) => format!("{who}: {} ({})", printable(reason, 80), printable(class, 40)),
    };
    all.push((dial.ended_ms, end));
    all
}

fn circumstance(of: &Circumstance) -> String {
    let text = printable(&of.text, 400);
    of.target.as_deref().map_or_else(|| text.clone(), |target| format!("{}: {text}", printable(target, 128)))
}
