//! `llmfo simulate --inputs FILE --policy P`: plays an input journal again.

use std::io::BufReader;
use std::path::Path;
use std::sync::Arc;

use super::Format;
use crate::cli::Global;
use crate::cli::policy_file::{self, Kind};
use crate::error::{Expected, Result};
use crate::event::Stamped;
use crate::exit::Exit;
use crate::files;
use crate::measure::RequestRow;
use crate::policy::{Policy, sha256_hex};
use crate::router::replay::{Entry, Header, JOURNAL_FORMAT, line, replay};
use crate::router::{Engine, Output};
use crate::units::{Ts, printable};

/// A longer line is none of ours.
const MAX_LINE_BYTES: u64 = 16 * 1024 * 1024;

/// What one core did.
#[derive(Debug, Default)]
struct Played {
    inputs: u64,
    outputs: u64,
    requests: u64,
    hash: String,
}

/// Plays every core of the file.
///
/// # Errors
/// The file or the policy cannot be read, or the journal is of another policy.
pub fn run(global: &Global, inputs: &Path, policy: Option<&Path>, format: Format) -> Result<Exit> {
    let Some(policy) = policy else {
        return Err(Expected::usage(
            "an input journal needs the policy that it was written under",
            "add --policy FILE: the file that `llmfo serve` had, byte for byte",
        ));
    };
    let name = printable(&policy.display().to_string(), 300);
    let loaded = policy_file::read(policy)?.policy(&name);
    policy_file::of_kind(Kind::Policy, &loaded.doc, &name)?;
    let policy = loaded.policy.ok_or_else(|| {
        Expected::usage(format!("{name} is no usable policy"), format!("see what is wrong: llmfo validate {name}"))
    })?;
    let policy = Arc::new(policy);
    let (file, _) = files::open(inputs).map_err(|e| {
        Expected::usage(
            format!("cannot read {}: {e}", printable(&inputs.display().to_string(), 300)),
            "name the file that `llmfo serve --record-inputs` has written",
        )
    })?;
    let mut core: Option<Engine> = None;
    let (mut played, mut text) = (Played::default(), String::new());
    let (mut at_least, mut any) = (Ts::ZERO, false);
    let mut from = BufReader::new(file);
    for n in 0.. {
        let Some(entry) = files::line(&mut from, MAX_LINE_BYTES).map_err(|e| broken(n, &e))? else { break };
        if let Ok(header) = serde_json::from_str::<Header>(&entry) {
            finish(global, format, &mut played, &mut text);
            core = Some(begin(&policy, &header)?);
            at_least = Ts::ZERO;
            continue;
        }
        let Some(engine) = &mut core else { return Err(other_kind(inputs, &entry)) };
        // The last line of a journal that was cut off may be half a line.
        let entry: Entry = match serde_json::from_str(&entry) {
            Ok(entry) => entry,
            Err(e) => return Err(broken(n, &e.to_string())),
        };
        if entry.seq != played.inputs || entry.at < at_least {
            return Err(broken(n, "inputs are missing, there twice, or out of order: it would not do the same again"));
        }
        at_least = entry.at;
        played.inputs += 1;
        any = true;
        replay(engine, [entry], |at, output| {
            played.outputs += 1;
            played.requests += u64::from(matches!(output, Output::Done { .. }));
            let written = line(output).unwrap_or_default();
            played.hash = sha256_hex(format!("{}{}{written}", played.hash, at.0).as_bytes());
            if format == Format::Json {
                text.push_str(&format!("{{\"at\":{},\"output\":{}}}\n", at.0, written.trim_end()));
            }
        });
        if text.len() > 64 * 1024 {
            global.term.out(&std::mem::take(&mut text));
        }
    }
    if !any {
        global.term.err("no input is in the journal: nothing was played");
        return Ok(Exit::Nothing);
    }
    finish(global, format, &mut played, &mut text);
    Ok(Exit::Good)
}

fn begin(policy: &Arc<Policy>, header: &Header) -> Result<Engine> {
    if header.format != JOURNAL_FORMAT {
        let what = format!("the input journal has format {}; this llmfo reads {JOURNAL_FORMAT}", header.format);
        return Err(Expected::usage(what, "use the llmfo that wrote it"));
    }
    if header.policy_sha256 != policy.sha256 {
        return Err(Expected::usage(
            "the journal was written under another policy: it would decide otherwise",
            format!("give the file whose SHA-256 is {}", printable(&header.policy_sha256, 64)),
        ));
    }
    let engine = Engine::new(Arc::clone(policy), header.seed);
    Ok(if header.hedges { engine } else { engine.without_hedges() })
}

fn finish(global: &Global, format: Format, played: &mut Played, text: &mut String) {
    let played = std::mem::take(played);
    if played.inputs == 0 {
        return;
    }
    global.term.out(&std::mem::take(text));
    let told = format!(
        "{} inputs, {} outputs, {} requests ended; hash of the outputs {}",
        played.inputs, played.outputs, played.requests, played.hash
    );
    match format {
        Format::Text => global.term.out(&format!("{told}\n")),
        Format::Json => global.term.err(&told),
    }
}

/// The first line says for which policy; a file whose first line does not is another one, and is named as what it is.
fn other_kind(inputs: &Path, first: &str) -> Expected {
    let shown = printable(&inputs.display().to_string(), 300);
    if serde_json::from_str::<Stamped>(first).is_ok() {
        return Expected::usage(
            format!("{shown} is the journal of a gateway; an input journal is needed here"),
            format!(
                "`llmfo serve --record-inputs FILE` writes one; `llmfo trace ID --journal {shown}` tells what is in this one"
            ),
        );
    }
    if serde_json::from_str::<RequestRow>(first).is_ok() {
        return Expected::usage(
            format!("{shown} is the list of a drill's requests; an input journal is needed here"),
            "`llmfo serve --record-inputs FILE` writes one",
        );
    }
    // A pipe cannot be read a second time.
    let again = inputs.is_file().then(|| policy_file::read(inputs).ok()).flatten();
    let known = again.and_then(|content| {
        let policy_file::Content::Bytes(bytes) = content else { return None };
        let (doc, _) = crate::spec::document::read(&shown, &bytes, &crate::spec::document::Limits::DEFAULT);
        policy_file::named(&doc, &shown)
    });
    match known {
        Some((what, step)) => Expected::usage(format!("{shown} is {what}; an input journal is needed here"), step),
        None => Expected::usage(
            format!("{shown} is no input journal: its first line does not say under which policy it was written"),
            "name the file that `llmfo serve --record-inputs` has written, from its beginning",
        ),
    }
}

fn broken(n: usize, why: &str) -> Expected {
    Expected::usage(
        format!("line {} of the input journal cannot be read: {}", n + 1, printable(why, 200)),
        "a journal that was cut off can be played after its last, half line is removed",
    )
}
