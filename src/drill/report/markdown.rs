//! `report.md`: the same facts for people.

use super::{
    RunFacts, Table, again_line, closing, cut_table, phase_table, promise_table, rto_line, times_head, whole_line, why,
};
use crate::drill::evidence::Evidence;
use crate::drill::judge::Judgement;
use crate::drill::propose::nothing;
use crate::report::markdown::{table, text};

fn section(out: &mut String, name: &str, t: &Table) {
    out.push_str(&format!("\n## {name}\n\n{}", table(&t.head, &t.rows)));
}

fn list(out: &mut String, name: &str, lines: &[String]) {
    if !lines.is_empty() {
        out.push_str(&format!("\n## {name}\n\n"));
        for line in lines {
            out.push_str(&format!("- {}\n", text(line)));
        }
    }
}

/// With a capital letter.
fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|c| c.to_uppercase().chain(chars).collect()).unwrap_or_default()
}

/// The report.
#[must_use]
pub fn markdown(ev: &Evidence, j: &Judgement, run: &RunFacts) -> String {
    let mut out = format!(
        "# Drill {}: {}\n\n{}\n\nStarted {}, took {:.1} s, seed {}. Clean-up: {}. Again: `{}`\n",
        text(&ev.drill),
        closing(ev, j),
        text(&run.description),
        text(&run.started_at),
        run.duration_ms / 1e3,
        ev.seed,
        run.cleanup.word(),
        text(&run.again),
    );
    if let Some(a) = &ev.aborted {
        out.push_str(&format!("\nEnded before its time ({}): {}\n", text(&a.by), text(&a.text)));
    }
    for line in why(ev, j) {
        out.push_str(&format!("\n{}\n", text(&line)));
    }
    out.push_str("\n## Findings\n\n");
    if j.findings.is_empty() {
        out.push_str("None.\n");
    }
    for f in &j.findings {
        let weight = f.weight.word(j.verdict);
        out.push_str(&format!("- `{}` ({weight}, {} cases): {}\n", f.code, f.n, text(&f.text)));
        for example in &f.examples {
            out.push_str(&format!("  - {}\n", text(example)));
        }
    }
    section(&mut out, "The four promises", &promise_table(j));
    out.push_str(&format!("\n{}\n", text(&rto_line(j))));
    section(&mut out, "Who answered", &phase_table(j));
    if let Some(t) = cut_table(j) {
        section(&mut out, "Streams that were cut", &t);
    }
    for line in whole_line(j).into_iter().chain(again_line(j)) {
        out.push_str(&format!("\n{}\n", text(&line)));
    }
    let rows = run.timeline.iter().map(|m| vec![format!("{:.2} s", m.at_ms / 1e3), m.text.clone()]).collect();
    section(&mut out, "Timeline", &Table { head: vec!["at", "what"], rows });
    let faults = ev
        .windows
        .iter()
        .flat_map(|w| w.faults.iter().map(move |f| (w, f)))
        .map(|(w, f)| {
            let felt = match f.felt {
                Some(true) => "yes",
                Some(false) => "no",
                None => "not asked",
            };
            vec![w.name.clone(), f.path.clone(), f.see.clone(), felt.into()]
        })
        .collect();
    section(
        &mut out,
        "What was broken",
        &Table { head: vec!["round", "path", "what applications saw", "felt by the drill's own call"], rows: faults },
    );
    let proposals = if run.proposals.is_empty() { vec![nothing(ev).into()] } else { run.proposals.clone() };
    list(&mut out, "Proposed changes", &proposals);
    list(&mut out, &sentence(times_head(ev)), &ev.declared.scaling);
    list(&mut out, "Not exercised", &run.not_exercised);
    list(&mut out, "Found and healed before the start", &run.healed);
    list(&mut out, "Clean-up", &run.cleanup_notes);
    out.push_str("\n## Where this comes from\n\n");
    out.push_str(&format!(
        "Drill: {}. Policy: {}. Driven: {}. Fault server: {}.\n",
        text(&run.source),
        text(&run.policy),
        text(&run.targets.join(", ")),
        text(&run.fault_server)
    ));
    out.push_str(
        "\nRecovery time is counted over turns that started after the fault server had acknowledged the injection: from the \
         start of the first one that the primary did not answer to the useful text of the first of three useful answers in \
         a row. Useful text is the first non-blank content of a turn after its last tool result. `n` is the number of \
         cases behind a figure.\n",
    );
    out
}
