//! The ledger in a file: a small embedded store that writes a group of changes as one, and has them on disk when it says so.

use std::fs::{DirBuilder, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable, StorageError, TableDefinition, TableError};

use super::row::{CallRow, Change, ConversationRow};
use super::store::{Bounds, Failed, Store, set_state, too_much};
use crate::error::{Expected, Result};
use crate::units::printable;

const META: TableDefinition<'static, &str, &str> = TableDefinition::new("llmfo");
const CALLS: TableDefinition<'static, &str, &str> = TableDefinition::new("calls");
/// When a call was written down, and its id -> the bytes of its row.
const AGES: TableDefinition<'static, (u64, &str), u64> = TableDefinition::new("ages");
/// Client, route, conversation -> when it was heard of last, and the row.
const CONVERSATIONS: TableDefinition<'static, (&str, &str, &str), (u64, &str)> = TableDefinition::new("conversations");
/// Of this file. A newer one is not read.
const FORMAT: &str = "1";

/// Memory for pages of the file. Rows are written once and read hardly ever.
const CACHE_BYTES: usize = 8 << 20;

/// How often, and at what distance, a file in use is tried again.
const BUSY_TRIES: u32 = 10;
const BUSY_PAUSE: Duration = Duration::from_millis(100);

/// The store.
pub struct Disk {
    path: PathBuf,
    /// `None` between a failure and the next attempt to open it.
    db: Option<Database>,
}

impl std::fmt::Debug for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Disk").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Why a ledger cannot be opened.
#[derive(Debug)]
pub enum NotOpened {
    /// Another process has it.
    InUse,
    /// It is no ledger, or a damaged one, or of another version.
    Unreadable(String),
    /// The file system's word.
    Io(String),
}

impl NotOpened {
    /// For people, with what to do.
    #[must_use]
    pub fn told(self, path: &Path) -> Expected {
        let name = printable(&path.display().to_string(), 300);
        match self {
            NotOpened::InUse => Expected::could_not(
                format!("the ledger {name} is in use by another gateway"),
                "two gateways cannot share one: give this one its own with --ledger FILE, or stop the other",
            ),
            NotOpened::Unreadable(why) => Expected::usage(
                format!("{name} is no ledger that can be read: {why}"),
                "nothing was changed in it. If it was a ledger, keep it: what it knew about delivered calls must be checked by \
                 hand. Start with another file: --ledger FILE",
            ),
            NotOpened::Io(why) => Expected::could_not(
                format!("the ledger {name} cannot be opened: {why}"),
                "give --ledger a file in a folder that can be written to; --ledger memory keeps it in memory, and a restart \
                 forgets which calls were delivered",
            ),
        }
    }
}

impl Disk {
    /// Opens the file, or makes it, readable by its owner alone.
    ///
    /// # Errors
    /// It is in use, or no ledger (nothing is changed then), or cannot be opened.
    pub fn open(path: &Path) -> Result<Disk> {
        let mut tries = 0;
        loop {
            match open(path) {
                Ok(db) => return Ok(Disk { path: path.to_owned(), db: Some(db) }),
                // A forerunner that is about to end, or somebody who reads the list.
                Err(NotOpened::InUse) if tries < BUSY_TRIES => {
                    tries += 1;
                    std::thread::sleep(BUSY_PAUSE);
                }
                Err(e) => return Err(e.told(path)),
            }
        }
    }

    /// Opens a ledger that is there, without becoming its gateway.
    ///
    /// # Errors
    /// As [`Disk::open`], and if there is none.
    pub fn existing(path: &Path) -> std::result::Result<Disk, NotOpened> {
        if !path.metadata().is_ok_and(|m| m.is_file() && m.len() > 0) {
            return Err(NotOpened::Io("there is none".to_owned()));
        }
        Ok(Disk { path: path.to_owned(), db: Some(open(path)?) })
    }

    fn db(&self) -> std::result::Result<&Database, Failed> {
        self.db.as_ref().ok_or_else(|| "the ledger's file is closed after an error".to_owned())
    }

    fn write(&self, changes: &[Change]) -> std::result::Result<(), redb::Error> {
        let Some(db) = &self.db else {
            return Err(redb::Error::Io(std::io::Error::other("the file is closed after an error")));
        };
        let transaction = db.begin_write()?;
        {
            let mut calls = transaction.open_table(CALLS)?;
            let mut ages = transaction.open_table(AGES)?;
            let mut conversations = transaction.open_table(CONVERSATIONS)?;
            for change in changes {
                match change {
                    Change::Call(row) => {
                        let text = json(row)?;
                        let before = calls.insert(row.call_id.as_str(), text.as_str())?;
                        let before = before.and_then(|b| serde_json::from_str::<CallRow>(b.value()).ok());
                        if let Some(before) = before {
                            ages.remove((before.since_unix_ms, before.call_id.as_str()))?;
                        }
                        ages.insert((row.since_unix_ms, row.call_id.as_str()), text.len() as u64)?;
                    }
                    Change::State { call_id, state, at_unix_ms } => {
                        let known = calls.get(call_id.as_str())?.and_then(|row| serde_json::from_str(row.value()).ok());
                        if let Some(mut row) = known {
                            set_state(&mut row, *state, *at_unix_ms);
                            calls.insert(call_id.as_str(), json(&row)?.as_str())?;
                        }
                    }
                    Change::Seen(row) => {
                        let key = (row.client.as_str(), row.route.as_str(), row.conversation.as_str());
                        let known = conversations.get(key)?;
                        let known = known.and_then(|v| serde_json::from_str::<ConversationRow>(v.value().1).ok());
                        let mut all = known.unwrap_or_else(|| row.clone());
                        all.join(row);
                        conversations.insert(key, (all.touched_unix_ms, json(&all)?.as_str()))?;
                    }
                }
            }
        }
        transaction.commit()?;
        Ok(())
    }

    fn drop_old(&self, before_unix_ms: u64, bounds: &Bounds) -> std::result::Result<usize, redb::Error> {
        let Some(db) = &self.db else { return Ok(0) };
        let (mut old, mut quiet) = (Vec::new(), Vec::new());
        {
            let read = db.begin_read()?;
            for row in read.open_table(AGES)?.iter()? {
                let (key, bytes) = row?;
                old.push((key.value().0, key.value().1.to_owned(), bytes.value()));
            }
            for row in read.open_table(CONVERSATIONS)?.iter()? {
                let (key, value) = row?;
                let (client, route, conversation) = key.value();
                let key = (client.to_owned(), route.to_owned(), conversation.to_owned());
                quiet.push((value.value().0, key, 0));
            }
        }
        let since: std::collections::BTreeMap<String, u64> = old.iter().map(|(at, id, _)| (id.clone(), *at)).collect();
        let old = too_much(old, before_unix_ms, bounds.calls, bounds.bytes);
        let quiet = too_much(quiet, before_unix_ms, bounds.conversations, u64::MAX);
        if old.is_empty() && quiet.is_empty() {
            return Ok(0);
        }
        let transaction = db.begin_write()?;
        {
            let mut calls = transaction.open_table(CALLS)?;
            let mut ages = transaction.open_table(AGES)?;
            for id in &old {
                calls.remove(id.as_str())?;
                ages.remove((since.get(id).copied().unwrap_or_default(), id.as_str()))?;
            }
            let mut conversations = transaction.open_table(CONVERSATIONS)?;
            for (client, route, conversation) in &quiet {
                conversations.remove((client.as_str(), route.as_str(), conversation.as_str()))?;
            }
        }
        transaction.commit()?;
        Ok(old.len())
    }
}

fn json<T: serde::Serialize>(row: &T) -> std::result::Result<String, redb::Error> {
    serde_json::to_string(row).map_err(|e| redb::Error::Io(std::io::Error::other(e)))
}

/// The library checks what it reads, and where it does not it panics: a damaged file must not take the process down.
fn guarded<T>(what: impl FnOnce() -> std::result::Result<T, redb::Error>) -> std::result::Result<T, Failed> {
    match catch_unwind(AssertUnwindSafe(what)) {
        Ok(done) => done.map_err(|e| printable(&e.to_string(), 200)),
        Err(_) => Err("the file is damaged".to_owned()),
    }
}

fn open(path: &Path) -> std::result::Result<Database, NotOpened> {
    let io = |e: std::io::Error| NotOpened::Io(e.to_string());
    if let Some(folder) = path.parent().filter(|f| !f.as_os_str().is_empty()) {
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(io)?;
    }
    let there = match path.metadata() {
        Ok(m) if !m.is_file() => return Err(NotOpened::Io("it is no file".to_owned())),
        Ok(m) => m.len() > 0,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => false,
        Err(e) => return Err(io(e)),
    };
    if !there {
        // Arguments of calls are in it.
        OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path).map_err(io)?;
    }
    let opened = catch_unwind(AssertUnwindSafe(|| {
        let mut builder = Database::builder();
        builder.set_cache_size(CACHE_BYTES);
        if there { builder.open(path) } else { builder.create(path) }
    }));
    let db = match opened {
        Ok(Ok(db)) => db,
        Ok(Err(DatabaseError::DatabaseAlreadyOpen)) => return Err(NotOpened::InUse),
        Ok(Err(DatabaseError::Storage(StorageError::Io(e)))) if e.kind() != std::io::ErrorKind::InvalidData => {
            return Err(io(e));
        }
        Ok(Err(e)) => return Err(NotOpened::Unreadable(printable(&e.to_string(), 200))),
        Err(_) => return Err(NotOpened::Unreadable("it is damaged".to_owned())),
    };
    if there {
        let format = guarded(|| {
            let read = db.begin_read()?;
            let meta = match read.open_table(META) {
                Ok(meta) => meta,
                // Made and then killed before its first row: it is empty, and anybody's.
                Err(TableError::TableDoesNotExist(_)) if read.list_tables()?.next().is_none() => {
                    return Ok(Some(FORMAT.to_owned()));
                }
                Err(TableError::TableDoesNotExist(_)) => return Ok(None),
                Err(e) => return Err(e.into()),
            };
            Ok(meta.get("format")?.map(|v| v.value().to_owned()))
        });
        match format.map_err(NotOpened::Unreadable)?.as_deref() {
            Some(FORMAT) => {}
            Some(other) => {
                let other = printable(other, 20);
                return Err(NotOpened::Unreadable(format!("it has format {other}; this llmfo reads {FORMAT}")));
            }
            None => return Err(NotOpened::Unreadable("another program made it".to_owned())),
        }
    }
    guarded(|| {
        let transaction = db.begin_write()?;
        transaction.open_table(META)?.insert("format", FORMAT)?;
        transaction.open_table(CALLS)?;
        transaction.open_table(AGES)?;
        transaction.open_table(CONVERSATIONS)?;
        transaction.commit()?;
        Ok(())
    })
    .map_err(NotOpened::Io)?;
    Ok(db)
}

impl Store for Disk {
    fn apply(&mut self, changes: &[Change]) -> std::result::Result<(), Failed> {
        guarded(|| self.write(changes))
    }

    fn call(&mut self, call_id: &str) -> std::result::Result<Option<CallRow>, Failed> {
        let db = self.db()?;
        guarded(|| {
            let calls = db.begin_read()?.open_table(CALLS)?;
            let row = calls.get(call_id)?;
            row.map(|row| read(row.value())).transpose()
        })
    }

    fn calls(&mut self) -> std::result::Result<Vec<CallRow>, Failed> {
        let db = self.db()?;
        guarded(|| {
            let calls = db.begin_read()?.open_table(CALLS)?;
            calls.iter()?.map(|row| read(row?.1.value())).collect()
        })
    }

    fn conversations(&mut self) -> std::result::Result<Vec<ConversationRow>, Failed> {
        let db = self.db()?;
        guarded(|| {
            let conversations = db.begin_read()?.open_table(CONVERSATIONS)?;
            conversations.iter()?.map(|row| read(row?.1.value().1)).collect()
        })
    }

    fn prune(&mut self, before_unix_ms: u64, bounds: &Bounds) -> std::result::Result<usize, Failed> {
        guarded(|| self.drop_old(before_unix_ms, bounds))
    }

    fn reopen(&mut self) -> std::result::Result<(), Failed> {
        // The lock must be free before it can be taken anew.
        let old = self.db.take();
        let _ = catch_unwind(AssertUnwindSafe(|| drop(old)));
        match open(&self.path) {
            Ok(db) => {
                self.db = Some(db);
                Ok(())
            }
            Err(NotOpened::InUse) => Err("another process has taken the file".to_owned()),
            Err(NotOpened::Unreadable(why) | NotOpened::Io(why)) => Err(why),
        }
    }
}

fn read<T: serde::de::DeserializeOwned>(text: &str) -> std::result::Result<T, redb::Error> {
    serde_json::from_str(text).map_err(|e| redb::Error::Corrupted(format!("a row cannot be read: {e}")))
}
