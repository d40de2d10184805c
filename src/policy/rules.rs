//! Rules that are checked while names are looked up and values are made sense of: parts of families 1, 3, 4 and 5.

use crate::diag::{Example, Rule, Severity};

/// All of them.
pub static ALL: [&Rule; 11] = [
    &UNKNOWN_TARGET,
    &UNKNOWN_POOL,
    &UNKNOWN_GROUP,
    &UNKNOWN_ADAPTER,
    &REPEATED_ROUTE,
    &NO_REASON,
    &KEYLESS_TOOL,
    &AMBIGUOUS_MEMBER,
    &CONTRADICTION,
    &CAPACITY_CONTRADICTION,
    &SECRET,
];

/// A target that is not declared.
pub static UNKNOWN_TARGET: Rule = Rule {
    code: "LF101",
    name: "unknown-target",
    severity: Severity::Error,
    what: "A pool or a group names a target that is not declared under `targets`.",
    why: "The stand-in that everybody counts on does not exist.",
    fix: "Correct the name, or declare the target.",
    example: Example::Policy { good: "far: { targets: [vendor-x] }", bad: "far: { targets: [vendor-x, vendor-y] }" },
};

/// A pool that is not declared.
pub static UNKNOWN_POOL: Rule = Rule {
    code: "LF102",
    name: "unknown-pool",
    severity: Severity::Error,
    what: "An attempt names a pool that is not declared under `pools`.",
    why: "The tier would have no targets: the failover ends there.",
    fix: "Correct the name, or declare the pool.",
    example: Example::Policy { good: "{ pool: far,", bad: "{ pool: fra," },
};

/// A group that is not declared.
pub static UNKNOWN_GROUP: Rule = Rule {
    code: "LF103",
    name: "unknown-group",
    severity: Severity::Error,
    what: "An attempt names a compatibility group that is not declared under `compatibility_groups`.",
    why: "Without the group there is no evidence that the stand-in's answers are good enough.",
    fix: "Correct the name, or declare the group.",
    example: Example::Policy {
        good: "first_token_timeout_ms: 3000, compatibility_group: support",
        bad: "first_token_timeout_ms: 3000, compatibility_group: suport",
    },
};

/// An adapter that is not declared.
pub static UNKNOWN_ADAPTER: Rule = Rule {
    code: "LF104",
    name: "unknown-adapter",
    severity: Severity::Error,
    what: "A target names an adapter that is not declared under `adapters`.",
    why: "The target would get requests it cannot follow.",
    fix: "Correct the name, or declare the adapter.",
    example: Example::Policy { good: "adapter: x-json-prompt", bad: "adapter: x-json" },
};

/// Two routes of one name.
pub static REPEATED_ROUTE: Rule = Rule {
    code: "LF105",
    name: "repeated-route",
    severity: Severity::Error,
    what: "Two routes have the same name.",
    why: "Which contract a request gets would depend on the order of the file.",
    fix: "Rename one.",
    example: Example::Policy {
        good: "\nhealth:",
        bad: "\n  - route: support-chat\n    deadline_ms: 8000\n    idle_timeout_ms: 3500\n    max_attempts: 2\n    residency_required: [kz]\n    objectives: { recovery_ms: 8000 }\n    attempts: [{ pool: near, first_token_timeout_ms: 2000, answer_timeout_ms: 3500 }]\nhealth:",
    },
};

/// `failover: none` and no reason, or a reason and failover.
pub static NO_REASON: Rule = Rule {
    code: "LF106",
    name: "failover-none-without-reason",
    severity: Severity::Error,
    what: "A route says `failover: none` without a `failover_reason`, or gives a reason while it does fail over.",
    why: "A route that must not fail over is a decision; the person on call needs to know why at the moment it hurts.",
    fix: "Write `failover_reason: \"...\"` beside `failover: none`, or remove both.",
    example: Example::Policy { good: "max_attempts: 3", bad: "max_attempts: 3\n    failover: none" },
};

/// A keyed tool without its key.
pub static KEYLESS_TOOL: Rule = Rule {
    code: "LF107",
    name: "keyed-tool-without-key",
    severity: Severity::Error,
    what: "A tool is declared `keyed` without `key_argument`, or has a `key_argument` without being keyed.",
    why: "The key is what makes a repeated call harmless. Without it the tool can run twice, which is what `unkeyed` means.",
    fix: "Name the argument that carries the key, or declare the tool `unkeyed`.",
    example: Example::Policy {
        good: "{ side_effects: keyed, key_argument: operation_id }",
        bad: "{ side_effects: keyed }",
    },
};

/// Member and candidate at once.
pub static AMBIGUOUS_MEMBER: Rule = Rule {
    code: "LF108",
    name: "member-and-candidate",
    severity: Severity::Error,
    what: "A target is both a member and a candidate of a compatibility group.",
    why: "Members are trusted to stand in, candidates are not yet.",
    fix: "Keep it in one of the two lists.",
    example: Example::Policy {
        good: "members: [local-a, local-b, vendor-x],",
        bad: "members: [local-a, local-b, vendor-x], candidates: [vendor-x],",
    },
};

/// Breaker, health or ramp settings that exclude each other.
pub static CONTRADICTION: Rule = Rule {
    code: "LF301",
    name: "contradictory-settings",
    severity: Severity::Error,
    what: "Settings of the breaker, the health score or a ramp exclude each other.",
    why: "One of the two is not what was meant, and the breaker would act on the wrong one.",
    fix: "Correct one of the two figures in the message.",
    example: Example::Policy { good: "max_cooldown_s: 120", bad: "max_cooldown_s: 2" },
};

/// Capacity figures that exclude each other.
pub static CAPACITY_CONTRADICTION: Rule = Rule {
    code: "LF401",
    name: "contradictory-capacity",
    severity: Severity::Error,
    what: "Capacity figures of a target exclude each other: more slots in reserve than there are, a mean above the 95th percentile.",
    why: "Every calculation of what is left after a failure rests on these figures.",
    fix: "Correct one of the two figures in the message.",
    example: Example::Policy { good: "reserve_slots: 8", bad: "reserve_slots: 80" },
};

/// A secret in the file.
pub static SECRET: Rule = Rule {
    code: "LF501",
    name: "secret-in-file",
    severity: Severity::Error,
    what: "A credential is written into the file, its reference has not the form `env:NAME` or `file:PATH`, or an address holds a name, a password or a query.",
    why: "Policies are reviewed, copied into reports and kept in version control. A text such as `${NAME}` would be sent as the key.",
    fix: "Write `env:NAME` or `file:PATH`. If it was a real key and the file has been shared, change the key.",
    example: Example::Policy { good: "credentials: env:LOCAL_A_KEY", bad: "credentials: ${LOCAL_A_KEY}" },
};
