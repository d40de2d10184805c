//! `[P]` Personal data out of a request and back into its answer, for tiers that say `pii: masked`.
//!
//! What is looked for, where, and what comes in its place is told in `docs/masking.md`. In short: every text that goes to the
//! model is searched for e-mail addresses, international phone numbers, payment cards, IBANs and declared names; each value
//! is replaced by a placeholder (`[EMAIL_1]`) that holds nothing of it and that does not occur in the request; in the answer
//! the values come back, however the model's pieces cut the placeholders.
//!
//! Everything here is linear in the text and bounded. A value must never reach a log, so nothing in this module puts one into
//! an error, a `Debug` output or a panic: texts are sliced with `get`, since the panic of `&text[a..b]` quotes the text.

mod answer;
mod find;
mod hold;
mod names;
mod originals;
mod request;
mod stream;
mod text;

#[cfg(test)]
mod props;

pub use answer::restore_answer;
pub use names::{BadNames, Names};
pub use originals::{Kind, Originals};
pub use request::{Masked, Unmaskable, mask, unmaskable};
pub(super) use stream::{Restored, Restorer};

/// Below this size a body cannot hold more values than are kept (`originals::VALUES_MAX`; those of less than four bytes are few): that it
/// can be masked is known from its shape alone.
pub const SURE_BYTES: usize = originals::VALUES_MAX * 4;
