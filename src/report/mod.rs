//! Shared pieces of reports: Markdown that cannot be steered by what it quotes.

pub mod markdown;
