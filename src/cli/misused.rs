//! The next step where the command line itself is wrong: clap says which arguments do not go together, or what is missing,
//! and nothing of where to get it.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// What is missing, and where it comes from: by the argument's name.
const MISSING: [(&str, &str); 6] = [
    // Before the lab that a target needs in its turn.
    ("--target", "the key is shown to a gateway: name that with --target URL"),
    (
        "--lab",
        "start a lab with `llmfo lab up`; it prints one line of JSON, whose `admin` is the address to give as --lab (the gateway at --target must have the providers of that lab as its own: `providers` in the same line)",
    ),
    ("--policy", "add --policy FILE: the file that `llmfo serve` had when it wrote the journal, byte for byte"),
    ("--trace", "it says how an outage history is read: name that with --trace FILE"),
    ("--reason", "write why with --reason TEXT, for those who read the journal afterwards"),
    ("--journal", "name the file that `llmfo serve --journal` was given, or set LLMFO_JOURNAL"),
];

/// What does not go together, and why: by the name of one of the two.
const CONFLICTS: [(&str, &str); 5] = [
    ("--trace", "a history has its own span, outages and targets: leave out one of the two"),
    ("--swarm", "a swarm draws policies, worlds and outages by itself: leave out the other"),
    ("--inputs", "a journal is played as it was, under --policy alone: leave out the other"),
    (
        "--toxiproxy",
        "a lab that is up has its fault server already (`llmfo lab up --toxiproxy URL` begins one on a real one): leave out one of the two",
    ),
    ("--record-inputs", "with --observe nothing is decided that could be played again: leave out one of the two"),
];

/// The next step; `None` where clap's own text has it (a misspelt name, the values that there are).
#[must_use]
pub fn next_step(said: &clap::Error) -> Option<&'static str> {
    let (known, otherwise): (&[(&str, &str)], _) = match said.kind() {
        ErrorKind::MissingRequiredArgument => (&MISSING, "add what is missing; --help of the command has examples"),
        ErrorKind::ArgumentConflict => (&CONFLICTS, "leave out one of the two; --help of the command has examples"),
        _ => return None,
    };
    let mut named: Vec<&str> = Vec::new();
    for kind in [ContextKind::InvalidArg, ContextKind::PriorArg] {
        match said.get(kind) {
            Some(ContextValue::String(one)) => named.push(one),
            Some(ContextValue::Strings(several)) => named.extend(several.iter().map(String::as_str)),
            _ => {}
        }
    }
    // `--trace <FILE>` is told with its value's name.
    let is = |said: &str, name: &str| said.split([' ', '=']).next() == Some(name);
    let step = known.iter().find(|(name, _)| named.iter().any(|n| is(n, name)));
    Some(step.map_or(otherwise, |(_, step)| *step))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    fn step(args: &[&str]) -> Option<&'static str> {
        let all = ["llmfo"].iter().chain(args);
        next_step(&Cli::try_parse_from(all).unwrap_err())
    }

    #[test]
    fn what_is_missing_or_does_not_go_together_has_a_next_step() {
        let has =
            |args: &[&str], words: &str| assert!(step(args).unwrap().contains(words), "{args:?}: {:?}", step(args));
        has(
            &["drill", "run", "region-outage", "--target", "http://127.0.0.1:1/v1"],
            "`admin` is the address to give as --lab",
        );
        has(&["drill", "run", "x", "--target-key-file", "k"], "--target URL");
        has(&["drill", "run", "x", "--toxiproxy", "http://a:1", "--lab", "http://b:2"], "llmfo lab up --toxiproxy");
        has(&["simulate", "dual-channel", "--trace", "t.csv", "--months", "2"], "leave out one of the two");
        has(&["simulate", "dual-channel", "--trace", "t.csv", "--months", "2"], "has its own span");
        has(&["simulate", "dual-channel", "--map", "a=b"], "--trace FILE");
        has(&["simulate", "--inputs", "i.jsonl"], "byte for byte");
        has(&["simulate", "dual-channel", "--swarm", "2"], "draws policies");
        has(&["serve", "--observe", "--record-inputs", "i"], "nothing is decided");
        has(&["ctl", "bench", "a"], "--reason TEXT");
        has(&["explain", "LF101", "--list"], "leave out one of the two");
        has(&["trace", "req-1"], "llmfo serve --journal");
        has(&["drill", "run"], "add what is missing");
        assert_eq!(step(&["simulte"]), None, "clap has a tip of its own");
    }
}
