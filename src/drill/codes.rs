//! `[P]` Every code that a drill may print, what it weighs and what it means: the one table behind reports, `llmfo explain`
//! and docs/drill.md. Codes are fixed; they are only added.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

use super::verdict::Weight::{self, Failure, Harm, Invalid, Note};

/// One code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code {
    /// Its name, in reports and in `summary.json`.
    pub name: &'static str,
    /// What it does to the verdict.
    pub weight: Weight,
    /// What was found, in one sentence; it stands in the report.
    pub text: &'static str,
    /// What it means for the customer.
    pub customer: &'static str,
    /// What usually causes it.
    pub cause: &'static str,
    /// What to look at next; it stands beside the verdict where nothing of the run itself says more.
    pub next: &'static str,
}

const fn code(name: &'static str, weight: Weight, text: &'static str, rest: [&'static str; 3]) -> Code {
    let [customer, cause, next] = rest;
    Code { name, weight, text, customer, cause, next }
}

/// What to look at where single requests say more than any rule; a report names what there is of its own run instead.
pub(super) const CASES: &str = "report.md names the cases. Of a gateway that the drill started: llmfo trace CONVERSATION/TURN --journal REPORT/journal.jsonl; of another one: its own log, by the request id that it answered with, or by x-llmfo-conversation and x-llmfo-turn, which every request carries";

/// Findings, those with fixed places first.
pub const CODES: &[Code] = &[
    code(
        "no_failover",
        Failure,
        "a request that started after the cut failed before any useful byte, though the stand-in was well",
        [
            "The customer got an error or nothing, in a moment in which another provider could have answered.",
            "No second target is legal for the request (capability, personal data, intent), the deadline is spent by the first attempt, the gateway has no failover for this failure, or it relayed parts of a tool call and could not take them back.",
            CASES,
        ],
    ),
    code(
        "truncated_as_success",
        Harm,
        "an answer that was cut off reached the client looking like a whole one",
        [
            "The customer reads half an answer and takes it for all of it; a program acts on half a document.",
            "The gateway ends its own stream cleanly when the provider's breaks off, or sends a finish reason or [DONE] that it made up.",
            CASES,
        ],
    ),
    code(
        "spliced_answer",
        Harm,
        "one answer holds text of two attempts",
        [
            "The customer reads a sentence that nobody wrote: the beginning of one model's answer and the rest of another's.",
            "The gateway repeats a request after text had been sent and goes on in the same stream.",
            CASES,
        ],
    ),
    code(
        "duplicate_effect",
        Harm,
        "the same business action is in the system of record twice",
        [
            "Two tickets, two refunds: something was done twice in the customer's name.",
            "A turn whose tool call had been delivered was repeated, by the gateway or by the application, and nothing recognised the second call (no key, no ledger, another call id).",
            "compare the tool-call ids of the two effects in effects.jsonl; `llmfo ledger list` shows what a gateway of ours had written down",
        ],
    ),
    code(
        "deadline_missed",
        Failure,
        "no useful text and no tool call within the deadline, or no end until the client gave up",
        [
            "The customer waited longer than was promised, or until the application gave up.",
            "The limits of the attempts add up to more than the deadline (a stream that falls silent uses up `idle_timeout_ms` as well), a silent target has no limit at all, or a queue holds requests that cannot be met.",
            "report.md names the cases and the limit that each ran into; `connect_timeout_ms`, `first_token_timeout_ms`, `idle_timeout_ms` and `answer_timeout_ms` must leave the next target time within `deadline_ms`",
        ],
    ),
    code(
        "fault_bypassed",
        Invalid,
        "the broken provider was reached around the broken path",
        [
            "Nothing is known: what was to be broken was not.",
            "The gateway dials the provider by its own address and not through the fault proxy, or keeps a connection that leads past it.",
            "let the gateway dial the lab's providers by the URLs under `providers`, and no other way",
        ],
    ),
    code(
        "forged_end",
        Harm,
        "a broken answer carries an end that no provider sent",
        [
            "A program that goes by [DONE] or the finish reason takes a broken answer for a whole one.",
            "The gateway sends its usual end behind an error, or makes up a finish reason for a stream that broke off.",
            CASES,
        ],
    ),
    code(
        "invented_text",
        Failure,
        "the client received text that no provider wrote",
        [
            "The customer reads words that no model said.",
            "The gateway answers from a canned text or a cache, rewrites text on the way, or another provider than the lab's answered.",
            "is every target of the gateway one of the lab's providers? report.md quotes the text",
        ],
    ),
    code(
        "altered_call",
        Failure,
        "a tool call reached the client with arguments that no provider wrote",
        [
            "The application acts on arguments that the model did not choose.",
            "Fragments of a call were lost, joined in the wrong order, or rewritten on the way.",
            CASES,
        ],
    ),
    code(
        "uncontrolled_break",
        Failure,
        "a stream broken after its first text did not end with one error event",
        [
            "The application cannot tell a broken answer from a slow one, and tells the customer nothing.",
            "The gateway drops its own connection when the provider's breaks off, or sends several errors.",
            CASES,
        ],
    ),
    code(
        "lost_in_flight",
        Failure,
        "a request that was under way at the cut, nothing of it delivered, was not answered by the stand-in",
        [
            "A customer who had asked just before the outage got an error, although nothing had been shown yet.",
            "The gateway fails over on connect errors only, and not when an open connection goes silent or breaks before the first text; or the silence lasted so long (`idle_timeout_ms`) that the deadline was over.",
            CASES,
        ],
    ),
    code(
        "failed_after_restore",
        Failure,
        "a request failed although the path had been restored",
        [
            "The outage went on for the customer when it was over for everybody else.",
            "Dead connections stay in a pool, a probe or a breaker sends customers to a target that is not ready, or the stand-in was let go too early.",
            CASES,
        ],
    ),
    code(
        "recovery_exceeded",
        Failure,
        "useful answers were not back within the declared time",
        [
            "Customers went without useful answers for longer than the route promises.",
            "Each request waits the whole limit of the dead target before the next is tried, because no breaker opens or its threshold is not reached.",
            "the parts of the recovery time in the report say where it went: a long detection is a limit or a breaker, a long generation the stand-in itself",
        ],
    ),
    code(
        "failback_missed",
        Failure,
        "the primary did not answer again within the declared time after the restore",
        [
            "Customers are served by the stand-in, its price and its quality for longer than planned.",
            "The cooldown of the breaker has doubled to a long time, or nothing probes the target.",
            "recovery_ms holds for the way back too: a target is looked at again after `base_cooldown_s`, up to `max_cooldown_s`; lower those, or declare more time",
        ],
    ),
    code(
        "slow_failover",
        Failure,
        "too many requests took longer than their limits and the stand-in's own time explain",
        [
            "The customers who met the dead provider waited longer than the policy's limits say.",
            "Retries on the same dead target, a wait between attempts, or a limit that the gateway does not keep.",
            CASES,
        ],
    ),
    code(
        "useful_text_slow",
        Failure,
        "the time to useful text is above what was declared",
        [
            "In the outage most customers waited longer for the first words than was promised.",
            "A stand-in that is slower than the objective allows, or first-token limits that are too long for it.",
            "compare useful text p95 of steady state and outage in the report: where the stand-in alone is too slow, no limit mends it",
        ],
    ),
    code(
        "schema_broken",
        Failure,
        "an answer broke its JSON schema",
        [
            "The program behind the customer's request cannot read the answer.",
            "The stand-in does not keep schemas and has no adapter, or the gateway drops `response_format` on the way.",
            "does the stand-in declare `json_schema: strict`, and does `llmfo eval` say that it keeps it?",
        ],
    ),
    code(
        "handoff_missed",
        Failure,
        "a customer who must reach a human did not, or one was handed off who must not be",
        [
            "Somebody who needed a human talks to a machine, or a human is called for nothing.",
            "The stand-in does not call the handoff tool as the primary does, or the gateway drops tools on the way.",
            "run the handoff cases of the golden set on the stand-in: llmfo eval",
        ],
    ),
    code(
        "context_broken",
        Failure,
        "an answer forgot what the conversation had said",
        [
            "The customer has to say again what was said already, or gets an answer about another order.",
            "The gateway shortens the conversation for the stand-in, or the stand-in's context is too small for it.",
            CASES,
        ],
    ),
    code(
        "finish_broken",
        Failure,
        "an answer ended with the wrong finish",
        [
            "A client that goes by the finish reason runs no tool, or waits for one that never comes.",
            "The gateway or an adapter puts its own finish reason in place of the provider's.",
            CASES,
        ],
    ),
    code(
        "context_lost",
        Failure,
        "turns or tool results that the client knew did not reach the next provider",
        [
            "The stand-in answers without what was said or done before, and may do it again.",
            "History is kept on the side of the broken region, or is rewritten for the stand-in.",
            "`context_loss_by_intent` in summary.json says which conversations; history must travel with the request or live in both regions",
        ],
    ),
    code(
        "handoff_rate",
        Failure,
        "more turns were handed off without being asked for than declared",
        [
            "Customers are sent to humans whom the outage has not made more numerous.",
            "The stand-in may not answer these intents, its slots are taken, or the queue is too short.",
            "the error of a handed-off request names what kept each target from answering",
        ],
    ),
    code(
        "queue_exceeded",
        Failure,
        "more requests waited at once than declared",
        [
            "Customers wait in line for a stand-in that cannot carry the load.",
            "Too few slots at the stand-in, or slots that failed requests do not give back.",
            "lay `capacity.slots` of the stand-in beside the load of the drill (Little's law: arrivals a second x seconds of service)",
        ],
    ),
    code(
        "attempts_exceeded",
        Failure,
        "a request was sent to providers more often than the route allows",
        [
            "The customer waits through each of them, and in an outage every request becomes several: a retry storm.",
            "Retries in several layers multiply: in the client library, the gateway and a proxy.",
            CASES,
        ],
    ),
    code(
        "not_independent",
        Failure,
        "the stand-in's path used the broken region",
        [
            "The two paths fail together in a real outage of that region.",
            "A shared proxy, egress, store or name service in the region that was cut.",
            "counters of the fault server in summary.json (`independence`) say which path carried bytes",
        ],
    ),
    code(
        "excess_dials",
        Failure,
        "the broken region was dialled more often than the breaker, what was under way and the probes explain",
        [
            "Each such dial is a customer who waited for a provider that was known to be gone.",
            "The breaker is per process or per connection and opens many times, or requests pass it while it is open.",
            "the journal shows each dial with its reason: llmfo trace CONVERSATION/TURN --journal REPORT/journal.jsonl",
        ],
    ),
    code(
        "steady_state_not_met",
        Invalid,
        "the path was not well before anything was broken",
        [
            "Nothing is known of an outage: customers were failed without one.",
            "The gateway does not know the route, wants a key, refuses the tools or schemas of the requests, or its policy has expired.",
            "make the gateway answer first; nothing was broken yet",
        ],
    ),
    code(
        "fault_not_seen",
        Invalid,
        "the fault was set but nobody felt it",
        [
            "Nothing is known: no customer met the outage.",
            "The broken provider is not the first choice of the route, or had no traffic.",
            "is the broken provider the first choice of the route that the drill asks for?",
        ],
    ),
    code(
        "stand_in_down",
        Invalid,
        "the stand-in itself was not well: its answers say nothing about failing over",
        [
            "Nobody could have answered, whatever the gateway did.",
            "The stand-in's process or path was down too, or was too busy for the drill's own call.",
            "make the stand-in well first; its own log says what it answered",
        ],
    ),
    code(
        "generator_late",
        Invalid,
        "the load came late, so the times say nothing",
        [
            "Nothing is known: the times are those of a busy machine.",
            "Too little processor for lab, gateways and load together, or the drill was stopped for a while.",
            "run it again on a machine that has less to do",
        ],
    ),
    code(
        "machine_busy",
        Invalid,
        "the machine was busy, so what was late or failed in it says nothing",
        [
            "Nothing is known: a gateway on an idle machine may do well or badly.",
            "Other programs, or the gateways themselves, left too little processor to the drill.",
            "run it again on a machine that has less to do",
        ],
    ),
    code(
        "sample_too_small",
        Invalid,
        "too little was seen for a verdict",
        [
            "Nothing is known: what never came up was not survived.",
            "An outage too short for the load, or a kind of cut that met no stream.",
            "let the outage last longer, or the load be higher, in a copy of the drill file",
        ],
    ),
    code(
        "promise_not_judged",
        Invalid,
        "what this drill is for could not be judged, so the rest is no pass",
        [
            "Nothing is known of the one thing that the drill is about.",
            "The objective is not declared, no turn of the outage met the broken provider, or useful answers came back only with the restore.",
            "the finding names what is missing: an objective, a longer outage, or more load",
        ],
    ),
    code(
        "lab_lost",
        Invalid,
        "the lab ended, did not answer or stood still, so nothing in this run can be held against the gateway",
        [
            "Nothing is known: nobody can say what the providers wrote. Harm that was proven before stays harm.",
            "The lab was killed or stopped, or the machine stood still.",
            "run it again on a quieter machine, with nobody else at the lab; logs/lab.log says how it ended",
        ],
    ),
    code(
        "fault_lifted",
        Invalid,
        "a fault did not stay as it was set, so nothing can be said about how it was survived",
        [
            "Nothing is known: the outage was not the one that was declared.",
            "Somebody else works on the same fault server: another tool, a person, a script that resets it.",
            "run it again, with nobody else at the lab",
        ],
    ),
    code(
        "fault_server_lost",
        Invalid,
        "the fault server did not answer or stood still, so nothing in this run can be held against the gateway",
        [
            "Nothing is known: every path leads through that server, and it was not there.",
            "The fault server was killed, stopped, or starved.",
            "run it again on a quieter machine, with nobody else at the lab; `llmfo drill clean` says whether anything is left broken",
        ],
    ),
    code(
        "lease_lost",
        Invalid,
        "the drill was not heard for too long and its faults were lifted, so nothing can be said about how they were survived",
        [
            "Nothing is known: the faults ended by themselves, as they must when nobody watches them.",
            "The drill was stopped (Ctrl-Z, a debugger, a sleeping laptop) or starved.",
            "run it again on a machine that has less to do, and leave it in the foreground",
        ],
    ),
    code(
        "guard_lost",
        Invalid,
        "the guard process ended, or gave no sign of life, in the middle of the drill, which stopped and restored: unguarded faults are not kept up",
        [
            "Nothing is known: the outage was ended early. Nothing stayed broken.",
            "The process `llmfo drill guard` was killed or stopped (by hand, by a clean-up of processes, for want of memory), or the machine had no time for it for 3 s.",
            "run it again, and leave its process `llmfo drill guard` alone",
        ],
    ),
    code(
        "evidence_lost",
        Invalid,
        "a bounded log had to drop rows that the judgement needs",
        [
            "Nothing is known: a part of what happened is not on record.",
            "A load or a duration beyond what the lab's logs hold (20,000 rows each).",
            "run it again with less load, or for a shorter time",
        ],
    ),
];

/// Why a drill ended before its time, where that is no finding: `aborted.by`.
pub const ENDINGS: &[Code] = &[
    code(
        "interrupted",
        Note,
        "somebody pressed Ctrl-C",
        [
            "Half a run is judged for harm alone.",
            "Ctrl-C in the terminal of the drill. What was broken was restored first.",
            "run it again, to its end",
        ],
    ),
    code(
        "terminated",
        Note,
        "the drill was told to end: SIGTERM, SIGQUIT, or its terminal was closed",
        [
            "Half a run is judged for harm alone.",
            "A job runner's time limit, a closed terminal, a shutdown. What was broken was restored first.",
            "run it again, to its end",
        ],
    ),
    code(
        "max_duration",
        Note,
        "the drill was not over within `limits.max_duration_s`",
        [
            "A part of a run is judged for harm alone.",
            "Rounds that are repeated until enough was seen, or a machine that is slower than the drill expects.",
            "raise `limits.max_duration_s` in a copy of the drill file, or let it look for less (`needs`)",
        ],
    ),
    code(
        "child_lost",
        Note,
        "a gateway that the drill had started ended by itself",
        [
            "A part of a run is judged for harm alone.",
            "The gateway crashed, was killed, or could not go on with its policy.",
            "its last words are in logs/ of the report",
        ],
    ),
    code(
        "generator_dead",
        Note,
        "the load ended before the drill was over",
        [
            "A part of a run is judged for harm alone.",
            "The load met its own bound, or failed.",
            "run it again; where it comes again, it is a bug of llmfo",
        ],
    ),
    code(
        "error",
        Note,
        "a step of the drill failed after paths had been broken",
        [
            "A part of a run is judged for harm alone. What was broken was restored.",
            "The fault server refused a change, or a call to it or to the lab failed.",
            "the sentence beside it names the call; `llmfo drill clean` says whether anything is left",
        ],
    ),
    code(
        "evidence",
        Note,
        "what was recorded could not be read at the end",
        [
            "A part of a run is judged for harm alone.",
            "The lab went away at the very end, or its logs were larger than what is read.",
            "run it again, with nobody else at the lab",
        ],
    ),
];

/// The finding of this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Code> {
    CODES.iter().find(|c| c.name == name)
}

/// Findings and endings, in their order.
pub fn all() -> impl Iterator<Item = &'static Code> {
    CODES.iter().chain(ENDINGS)
}
