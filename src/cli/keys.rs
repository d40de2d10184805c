//! `llmfo keys`: keys of clients, and that of the admin listener.

use std::path::{Path, PathBuf};

use super::Global;
use super::policy_file::{self, Kind};
use crate::diag::{Diagnostic, Report, render_human};
use crate::error::{Expected, Result};
use crate::exit::Exit;
use crate::gateway::Gateway;
use crate::gateway::clients::book::{self, Client};
use crate::gateway::clients::{AdminKey, hash_of, new_key};
use crate::spec::client_keys;
use crate::units::printable;

/// Arguments.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: KeysCommand,
}

/// `llmfo keys ...`
#[derive(clap::Subcommand, Debug)]
pub enum KeysCommand {
    /// Make a key, and say what to write into the file of --client-keys.
    New(NewArgs),
}

/// Arguments of `keys new`.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
The key goes to standard output, once: nothing keeps it. Its line for the file goes to standard error and holds only its hash.

Examples:
  llmfo keys new shop                                   show the key and the line
  llmfo keys new shop > shop.key 2>> clients.yaml       the key into one file, the line into the other
  llmfo keys new admin > admin.key 2> /dev/null         for llmfo serve --admin-key-file admin.key
  llmfo keys new shop --format json | jq -r .sha256     for machines: name, key and hash on standard output

clients.yaml begins with the line `clients:`. It may say more of each client: docs/clients.md.")]
pub struct NewArgs {
    /// The client's name; it stands in logs, events and metrics.
    #[arg(value_name = "NAME")]
    pub name: String,
    /// For people, or one line of JSON.
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    pub format: Format,
}

/// `--format`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Human,
    /// For machines.
    Json,
}

/// Runs it.
///
/// # Errors
/// The name cannot be one; no random numbers are to be had.
pub fn run(global: &Global, args: Args) -> Result<Exit> {
    let KeysCommand::New(args) = args.command;
    if !client_keys::is_name(&args.name) {
        return Err(Expected::usage(
            format!("{} cannot be a client's name", printable(&args.name, 80)),
            crate::spec::text::NAME_FORM,
        ));
    }
    let key = new_key().ok_or_else(|| Expected::could_not("the system gives no random numbers", "see /dev/urandom"))?;
    let hash = hash_of(&key);
    match args.format {
        Format::Json => {
            let line = serde_json::json!({ "format": 1, "name": args.name, "key": key, "sha256": hash });
            global.term.out(&line.to_string());
        }
        Format::Human => {
            global.term.out(&key);
            // As it fits below `clients:`, so that it can be appended.
            global.term.err(&format!("  {}: {{ sha256: [{hash}] }}", args.name));
        }
    }
    Ok(Exit::Good)
}

/// Longest file of client keys, in bytes: a thousand clients with four keys and twenty routes each.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Longest file with one key, in bytes.
const KEY_BYTES_MAX: u64 = 64 * 1024;
/// Shortest key of an admin listener: below that it could be guessed.
const KEY_CHARS_MIN: usize = 20;

/// The clients of a file.
///
/// # Errors
/// It cannot be read, or something in it is wrong, which is shown.
pub fn clients(global: &Global, path: &Path) -> Result<Vec<Client>> {
    let name = printable(&path.display().to_string(), 300);
    // Not waited for: it is read again while the gateway serves.
    let bytes = crate::files::bytes_of_file(path, FILE_BYTES_MAX).map_err(|why| {
        Expected::usage(
            format!("cannot read the client keys {name}: {why}"),
            "`llmfo keys new NAME` makes a key and says what to write there",
        )
    })?;
    let (file, found, doc) = client_keys::read(&name, &bytes);
    policy_file::of_kind(Kind::Clients, &doc, &name)?;
    match file {
        Some(file) if !found.iter().any(Diagnostic::is_error) => Ok(book::clients(&file)),
        _ => {
            let mut report = Report::new();
            report.add(doc.into_source(), found);
            global.term.err(&render_human(&report, global.term.err_color, global.term.width));
            Err(Expected::usage(
                format!("the client keys {name} cannot be used as they are"),
                "mend what is said above; `llmfo keys new NAME` prints the line of a client",
            ))
        }
    }
}

/// Reads the clients of a running gateway again. A file that cannot be used is told of, and those that hold go on.
pub fn again(global: &Global, path: &Path, gateway: &Gateway) {
    match clients(global, path) {
        Ok(clients) => {
            tracing::info!(clients = clients.len(), "the client keys were read again");
            gateway.hold_clients(clients);
        }
        // The alert is the log line too.
        Err(why) => gateway.refused_clients(&format!("{}; next: {}", why.what, why.hint)),
    }
}

/// The next step where an admin listener wants a key.
pub const GIVE_ADMIN_KEY: &str =
    "put it into a file and name that with --admin-key-file, or put it into LLMFO_ADMIN_KEY";

/// Where the key of an admin listener is: never on the command line, which others on this machine can see.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct AdminKeyFile {
    /// The file with the key of the admin listener. Default: the key itself in $LLMFO_ADMIN_KEY, else none.
    #[arg(long, global = true, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub admin_key_file: Option<PathBuf>,
}

impl AdminKeyFile {
    /// The key, if there is one.
    ///
    /// # Errors
    /// It cannot be read, or can be no key.
    pub fn read(&self) -> Result<Option<String>> {
        let (place, value) = match &self.admin_key_file {
            Some(path) => {
                let place = format!("file {}", printable(&path.display().to_string(), 300));
                let value = crate::files::text(path, KEY_BYTES_MAX).map_err(|why| {
                    Expected::usage(format!("the admin key cannot be read: {place}: {why}"), "check --admin-key-file")
                })?;
                (place, value)
            }
            None => match std::env::var_os("LLMFO_ADMIN_KEY").filter(|v| !v.is_empty()) {
                Some(value) => ("$LLMFO_ADMIN_KEY".to_owned(), value.to_string_lossy().into_owned()),
                None => return Ok(None),
            },
        };
        let value = value.strip_suffix('\n').map_or(value.as_str(), |v| v.strip_suffix('\r').unwrap_or(v));
        if value.len() < KEY_CHARS_MIN || !value.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(Expected::usage(
                format!("what is in {place} can be no admin key"),
                format!(
                    "a key is {KEY_CHARS_MIN} or more printable ASCII characters without blanks, on one line; \
                     `llmfo keys new admin > admin.key` makes one"
                ),
            ));
        }
        Ok(Some(value.to_owned()))
    }

    /// What is held against the key of a request.
    ///
    /// # Errors
    /// As [`AdminKeyFile::read`].
    pub fn wanted(&self) -> Result<Option<AdminKey>> {
        Ok(self.read()?.as_deref().map(AdminKey::new))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_admin_key_is_one_long_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("k");
        let of = |text: &str| {
            std::fs::write(&path, text).unwrap();
            AdminKeyFile { admin_key_file: Some(path.clone()) }.read().map_err(|e| e.to_string())
        };
        let key = "k".repeat(20);
        assert_eq!(of(&format!("{key}\n")), Ok(Some(key.clone())));
        assert_eq!(of(&format!("{key}\r\n")), Ok(Some(key.clone())));
        for bad in ["", "short", &format!("{key} {key}"), &format!("{key}\n{key}\n")] {
            let why = of(bad).unwrap_err();
            assert!(!why.contains(&key), "{why}");
        }
    }
}
