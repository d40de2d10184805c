//! `llmfo toxiproxy`

use super::Global;
use crate::error::{Expected, Result};
use crate::exit::Exit;

/// Arguments.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Runs it.
///
/// # Errors
/// Expected ones.
pub fn run(_global: &Global, _args: Args) -> Result<Exit> {
    Err(Expected::could_not("not built yet", ""))
}
