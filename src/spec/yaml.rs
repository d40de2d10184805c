//! The YAML reader with its limits, and its errors in plain words.

use serde_saphyr::budget::BudgetBreach;
use serde_saphyr::options::{DuplicateKeyPolicy, MergeKeyPolicy, NonFiniteFloatPolicy};
use serde_saphyr::{Error, Location};

use super::document::Limits;
use super::rules;
use super::tree::{Node, Value};
use crate::diag::{Diagnostic, Place, Source, quoted};

/// Reads one document. The error is one finding: what follows a broken place cannot be trusted.
pub fn read(source: &Source, limits: &Limits) -> Result<Node, Box<Diagnostic>> {
    let budget = serde_saphyr::budget! {
        max_depth: limits.max_depth,
        flow_nesting_limit: limits.max_depth + 1,
        max_nodes: limits.max_nodes,
        max_events: limits.max_nodes.saturating_mul(3),
        max_documents: 1,
        max_aliases: limits.max_replayed_events,
        max_anchors: limits.max_replayed_events,
        max_recorded_anchor_events: limits.max_replayed_events.saturating_mul(10),
        max_recorded_anchor_bytes: limits.max_bytes,
        max_total_scalar_bytes: limits.max_bytes,
        enforce_alias_anchor_ratio: false,
    };
    let options = serde_saphyr::options! {
        budget: budget,
        // Repeated keys and odd numbers are let through so that all of them can be reported, with their places.
        duplicate_keys: DuplicateKeyPolicy::PassThrough,
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
        merge_keys: MergeKeyPolicy::Merge,
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: limits.max_replayed_events,
            max_replay_stack_depth: limits.max_depth,
        },
        strict_booleans: true,
        reject_unsupported_tags: true,
        with_snippet: false,
    };
    let mut root = serde_saphyr::from_str_with_options::<Node>(source.text(), options)
        .map_err(|e| Box::new(explain(source, &e, limits)))?;
    underscores(source, &mut root);
    Ok(root)
}

/// Whole numbers that are written with an underscore are texts in YAML 1.2; the reader skips the underscore, as YAML 1.1 did.
fn underscores(source: &Source, node: &mut Node) {
    match &mut node.value {
        Value::Int(_) | Value::UInt(_) | Value::Float(_) => {
            let at = |n: u32| usize::try_from(n).unwrap_or(usize::MAX);
            let written = source.text().get(at(node.span.start)..at(node.span.end));
            if let Some(written) = written.filter(|w| w.contains('_')) {
                node.value = Value::Str(written.trim_end().to_owned());
            }
        }
        Value::Seq(items) => items.iter_mut().for_each(|item| underscores(source, item)),
        Value::Map(entries) => entries.iter_mut().for_each(|entry| underscores(source, &mut entry.node)),
        Value::Null | Value::Bool(_) | Value::Str(_) => {}
    }
}

fn explain(source: &Source, error: &Error, limits: &Limits) -> Diagnostic {
    let error = error.without_snippet();
    let place = |l: Option<Location>| {
        let at = l.filter(|l| l.line() > 0);
        at.map_or_else(|| source.place(0..0, ""), |l| source.place_at(to_usize(l.line()), to_usize(l.column())))
    };
    let at = place(error.location());
    let too_big = |what: String, help: &str| Diagnostic::new(&rules::TOO_BIG, at.clone(), what).help(help);
    match error {
        Error::AliasError { error: inner, locations, .. } => {
            let mut d = explain(source, inner, limits);
            let used = place(Some(locations.reference_location));
            if used != d.place {
                d = d.and(used, "brought in here by an alias");
            }
            d
        }
        Error::Budget { breach, .. } => match breach {
            BudgetBreach::Depth { .. } => too_deep(at, limits),
            BudgetBreach::Nodes { .. } | BudgetBreach::Events { .. } => too_big(
                format!("the file has more than {} values", limits.max_nodes),
                "split it, or look for a generator that ran wild",
            ),
            BudgetBreach::Documents { .. } => second_document(at),
            BudgetBreach::ScalarBytes { .. } => too_big(
                format!("the texts in it are longer than {} bytes together", limits.max_bytes),
                "keep long texts in files of their own (file:PATH)",
            ),
            _ => too_big(
                "it has more anchors and aliases than a policy has a use for".to_owned(),
                "write the values out instead of nesting anchors",
            ),
        },
        Error::AliasReplayLimitExceeded { .. }
        | Error::AliasExpansionLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. }
        | Error::AliasReplayCounterOverflow { .. } => too_big(
            format!("its aliases (`*name`) expand to more than {} values", limits.max_replayed_events),
            "write the values out instead of nesting anchors",
        ),
        Error::MultipleDocuments { .. } => second_document(at),
        Error::UnknownAnchor { .. } => {
            Diagnostic::new(&rules::YAML, at, "this alias (`*name`) names an anchor that does not exist")
                .expected("an anchor of that name (`&name`) earlier in the file")
                .help("write the anchor before its first use, or write the value out")
        }
        Error::RecursiveReferencesRequireWeakTypes { .. } => {
            Diagnostic::new(&rules::YAML, at, "this anchor contains an alias of itself").help("write the value out")
        }
        Error::MergeValueNotMapOrSeqOfMaps { .. } => {
            Diagnostic::new(&rules::YAML, at, "`<<` can only merge a map, or a list of maps")
                .expected("`<<: *name` where the anchor `&name` marks a map")
        }
        Error::UnsupportedTag { tag, .. } => {
            Diagnostic::new(&rules::TAG, at, format!("the tag {} means nothing in llmfo files", quoted(tag)))
                .help("remove the tag and write the plain value; a secret is `env:NAME` or `file:PATH`")
        }
        other => {
            let text = other.to_string();
            // The reader says where in words of its own; the place is ours to give.
            let text = text.lines().next().unwrap_or("").trim();
            let text = text.rfind(" at line ").map_or(text, |n| &text[..n]);
            if text.contains("null into string") {
                return Diagnostic::new(&rules::YAML, at, "a key is empty here: nothing, `~` and `null` name nothing")
                    .label("no name")
                    .help("write the name of the key before the colon, or remove the line");
            }
            if text.contains("recursion limit") {
                // The scanner's own limit for brackets, which it reaches before the reader counts levels.
                return too_deep(at, limits);
            }
            Diagnostic::new(&rules::YAML, at, format!("not readable as YAML: {text}"))
                .label("reading stopped here")
                .help("look at this line and the one above: indentation, a missing colon, quote or bracket")
        }
    }
}

fn too_deep(at: Place, limits: &Limits) -> Diagnostic {
    Diagnostic::new(&rules::TOO_BIG, at, format!("more than {} levels are nested here", limits.max_depth))
        .help("no llmfo file needs that depth: look for brackets that are never closed")
}

fn second_document(at: Place) -> Diagnostic {
    Diagnostic::new(&rules::TOO_BIG, at, "a second document begins here (`---`); a file holds one")
        .help("put it into a file of its own")
}

fn to_usize(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}
