//! llmfo: know what your customers see when a model, a provider, an account or a region fails.
//!
//! # The map of the house
//!
//! Data flows one way:
//!
//! ```text
//! text -> spec -> policy -> (lint | router -> gateway)
//! events -> (metrics, journal)
//! scenario -> plan -> load -> judge -> report
//! ```
//!
//! Modules marked `[P]` are pure: no clock, no input or output, no async, no environment, no global randomness. They
//! decide; the thin rest moves bytes. Which module may use which is held by `tests/cli/house.rs`.
//!
//! | module | holds |
//! |---|---|
//! | [`exit`], [`error`], [`units`], [`assets`] | `[P]` exit codes; expected errors; units in types; compiled-in files |
//! | [`files`] | files that a user names, read with a bound |
//! | [`cli`], [`term`] | one file per command; terminal facts, tables, progress |
//! | [`diag`] | `[P]` a diagnostic is data, with one renderer per file |
//! | [`spec`] | `[P]` file types of policy and drill: text -> tree with spans -> schema -> typed |
//! | [`policy`] | `[P]` the resolved policy, in which illegal states cannot be written; admission records |
//! | [`lint`] | `[P]` findings, one file per rule family |
//! | [`router`] | `[P]` the core: who answers a request, and when another one does |
//! | [`wire`] | `[P]` OpenAI chat types, the SSE reader, end states of a stream, error shapes |
//! | [`check`] | `[P]` invariants on one answer |
//! | [`measure`] | `[P]` rows of evidence, recovery time, percentiles: one definition for all |
//! | [`event`] | `[P]` the one versioned event enum |
//! | [`telemetry`] | metrics text and the journal |
//! | [`upstream`] | the HTTP client towards models |
//! | [`gateway`] | listener, driver (the only clock), relay, the ledger on disk, admin |
//! | [`fault`] | Toxiproxy client, embedded server, toxics, restore |
//! | [`lab`] | scripted providers, regional dependencies, ticket system |
//! | [`load`] | open-loop conversation driver: the customer application |
//! | [`mod@bench`] | the gateway beside Envoy, in one run, and its soak |
//! | [`drill`] | compile, run, judge, report, safety |
//! | [`sim`] | `[P]` months of outages on the same core: provider models, outages, checkers, figures |

pub mod assets;
pub mod bench;
pub mod check;
pub mod cli;
pub mod diag;
pub mod drill;
pub mod error;
pub mod event;
pub mod exit;
pub mod fault;
pub mod files;
pub mod gateway;
pub mod lab;
pub mod lint;
pub mod load;
pub mod measure;
pub mod policy;
pub mod report;
pub mod router;
pub mod sim;
pub mod spec;
pub mod telemetry;
pub mod term;
pub mod units;
pub mod upstream;
pub mod wire;
