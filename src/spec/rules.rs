//! Rules of family 0: the shape of the file.

use crate::diag::{Example, Rule, Severity};

/// All of them.
pub static ALL: [&Rule; 14] = [
    &YAML,
    &TOO_BIG,
    &REPEATED_KEY,
    &UNKNOWN_KEY,
    &MISSING_KEY,
    &WRONG_TYPE,
    &OUT_OF_RANGE,
    &UNKNOWN_WORD,
    &NOT_FINITE,
    &EMPTY,
    &WRONG_FORM,
    &NO_FIT,
    &TAG,
    &REPEATED_ELEMENT,
];

/// Not YAML.
pub static YAML: Rule = Rule {
    code: "LF001",
    name: "unreadable",
    severity: Severity::Error,
    what: "The file is not readable as YAML.",
    why: "Nothing after the broken place can be trusted, so nothing of the file is used.",
    fix: "Look at the line and the one above it: indentation, tabs, a missing colon, quote or bracket.",
    example: Example::Policy { good: "select: priority }", bad: "select: priority" },
};

/// Past a limit.
pub static TOO_BIG: Rule = Rule {
    code: "LF002",
    name: "too-big",
    severity: Severity::Error,
    what: "The file is past a limit: 16 MiB, 1,000,000 values, 32 levels, 20,000 values repeated by aliases, one document.",
    why: "A file that grows without bound (by accident or by malice) would take the memory of the process that carries the customers.",
    fix: "Check that it is the right file; write values out instead of nesting anchors; one document per file.",
    example: Example::Policy { good: "deadline_ms: 8000", bad: "deadline_ms: 8000\n---\nversion: two" },
};

/// A key twice.
pub static REPEATED_KEY: Rule = Rule {
    code: "LF003",
    name: "repeated-key",
    severity: Severity::Error,
    what: "A map holds the same key twice.",
    why: "Readers of YAML disagree on which one counts, so a second `local-b:` can silently replace the first.",
    fix: "Keep one, or rename one.",
    example: Example::Policy { good: "deadline_ms: 8000", bad: "deadline_ms: 8000\n    deadline_ms: 9000" },
};

/// A key that nobody knows.
pub static UNKNOWN_KEY: Rule = Rule {
    code: "LF004",
    name: "unknown-key",
    severity: Severity::Error,
    what: "A key is not known at this place: misspelt, in another unit, or indented into the wrong map.",
    why: "An ignored key is a rule that everybody believes to be in force. The missing fallback is then found during the outage.",
    fix: "Take the nearest name from the message, or move the key to where it belongs.",
    example: Example::Policy { good: "deadline_ms: 8000", bad: "deadline_s: 8" },
};

/// A key that must be there.
pub static MISSING_KEY: Rule = Rule {
    code: "LF005",
    name: "missing-key",
    severity: Severity::Error,
    what: "A key that must be written is missing.",
    why: "There is no safe value that could be assumed for it.",
    fix: "Add it.",
    example: Example::Policy { good: "\n    deadline_ms: 8000", bad: "" },
};

/// Not what belongs there.
pub static WRONG_TYPE: Rule = Rule {
    code: "LF006",
    name: "wrong-type",
    severity: Severity::Error,
    what: "A value is of the wrong type: a text where a map is expected, a number with a unit, nothing at all.",
    why: "A guess at what was meant would be a rule that nobody wrote.",
    fix: "Write the expected shape. Units are in the names of the keys; `yes`, `no`, `on`, `off` are texts in YAML 1.2.",
    example: Example::Policy { good: "deadline_ms: 8000", bad: "deadline_ms: 8s" },
};

/// A number out of range.
pub static OUT_OF_RANGE: Rule = Rule {
    code: "LF007",
    name: "out-of-range",
    severity: Severity::Error,
    what: "A number is outside its range: zero, negative, a share above 1, milliseconds of more than a day.",
    why: "A cooldown of zero switches the breaker off, a threshold of zero trips it at once, 50 instead of 0.5 never trips it.",
    fix: "Write a figure inside the range, in the unit that the key's name says.",
    example: Example::Policy { good: "failure_ratio: 0.2", bad: "failure_ratio: 20" },
};

/// A word that is none of the choices.
pub static UNKNOWN_WORD: Rule = Rule {
    code: "LF008",
    name: "unknown-word",
    severity: Severity::Error,
    what: "A text is not one of the words that this key knows.",
    why: "An unknown choice cannot be carried out, and a default in its place would be a rule that nobody wrote.",
    fix: "Write one of the listed words.",
    example: Example::Policy { good: "select: priority", bad: "select: prio" },
};

/// Infinity.
pub static NOT_FINITE: Rule = Rule {
    code: "LF009",
    name: "not-a-number",
    severity: Severity::Error,
    what: "A number is infinite or not a number.",
    why: "A limit that never binds is no limit: every wait and every queue is bounded.",
    fix: "Write a figure.",
    example: Example::Policy { good: "base_cooldown_s: 5", bad: "base_cooldown_s: .inf" },
};

/// Nothing in it.
pub static EMPTY: Rule = Rule {
    code: "LF010",
    name: "empty",
    severity: Severity::Error,
    what: "A list, map or text is empty where at least one entry is needed.",
    why: "A route without attempts or a policy without targets answers nobody.",
    fix: "Write an entry, or remove the key where that is allowed.",
    example: Example::Policy { good: "tools: [get_order, create_ticket]", bad: "tools: []" },
};

/// The wrong form.
pub static WRONG_FORM: Rule = Rule {
    code: "LF011",
    name: "wrong-form",
    severity: Severity::Error,
    what: "A text has not the form that its key needs: an address, a date, a host and port.",
    why: "It would fail at the moment it is used, which may be the first failover.",
    fix: "Write it in the form shown.",
    example: Example::Policy { good: "base_url: http://10.20.0.11:8000/v1", bad: "base_url: 10.20.0.11:8000" },
};

/// Fits the schema and not the type.
pub static NO_FIT: Rule = Rule {
    code: "LF012",
    name: "does-not-fit",
    severity: Severity::Error,
    what: "A value passes the schema and still cannot be loaded.",
    why: "The schema is laxer than the code at this place; please report it.",
    fix: "Change the value as the message says.",
    example: Example::Words("no such value is known; the rule exists so that one would be reported and not crash"),
};

/// A YAML tag.
pub static TAG: Rule = Rule {
    code: "LF013",
    name: "custom-tag",
    severity: Severity::Error,
    what: "A value carries a YAML tag (`!name`) that llmfo does not know.",
    why: "Tags such as `!vault` or `!env` are promises of other tools; ignoring one would use the text as the value.",
    fix: "Remove the tag. A secret is a reference: `env:NAME` or `file:PATH`.",
    example: Example::Policy { good: "credentials: env:LOCAL_A_KEY", bad: "credentials: !env LOCAL_A_KEY" },
};

/// An element twice.
pub static REPEATED_ELEMENT: Rule = Rule {
    code: "LF014",
    name: "repeated-element",
    severity: Severity::Error,
    what: "A list of names holds a name twice.",
    why: "Each target is tried at most once per request, so the second one is an attempt that is never made.",
    fix: "Keep one.",
    example: Example::Policy { good: "targets: [local-a, local-b]", bad: "targets: [local-a, local-a]" },
};
