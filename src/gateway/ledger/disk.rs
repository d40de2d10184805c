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
                "it was not overwritten. If it was a ledger, keep it: what it knew about delivered calls must be checked by \
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
        Ok(Err(DatabaseError::Storage(StorageError::Io(e))))
            if !matches!(e.kind(), std::io::ErrorKind::InvalidData | std::io::ErrorKind::UnexpectedEof) =>
        {
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

    fn calls(&mut self, arguments: bool) -> std::result::Result<Vec<CallRow>, Failed> {
        let db = self.db()?;
        guarded(|| {
            let calls = db.begin_read()?.open_table(CALLS)?;
            let row = |row: CallRow| if arguments { row } else { row.without_arguments() };
            calls.iter()?.map(|found| read(found?.1.value()).map(row)).collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::SideEffects;
    use crate::router::ledger::CallState;

    fn call(n: u64, since_unix_ms: u64) -> Change {
        Change::Call(CallRow {
            call_id: format!("call_{n}"),
            operation_key: format!("op_{n}"),
            client: "k".into(),
            route: "r".into(),
            conversation: "c\u{7}".into(),
            turn: n,
            ordinal: 0,
            tool: "t".into(),
            side_effects: SideEffects::Keyed,
            arguments: "{\"a\":\"\u{e9}\"}".into(),
            state: CallState::Delivered,
            since_unix_ms,
            changed_unix_ms: since_unix_ms,
        })
    }

    fn seen(conversation: &str, turn: u64, at: u64) -> Change {
        let mut row = ConversationRow { conversation: conversation.into(), ..ConversationRow::default() };
        row.see(turn, Some(turn), at);
        Change::Seen(row)
    }

    #[test]
    fn what_was_written_is_there_after_it_was_opened_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("l.redb");
        let mut disk = Disk::open(&path).unwrap();
        disk.apply(&[call(1, 10), call(2, 20), seen("c", 1, 5), seen("c", 2, 6)]).unwrap();
        let confirmed = |id: &str| Change::State { call_id: id.into(), state: CallState::Confirmed, at_unix_ms: 99 };
        disk.apply(&[confirmed("call_2"), confirmed("never heard of")]).unwrap();
        let before = (disk.calls(true).unwrap(), disk.conversations().unwrap());
        disk.reopen().unwrap();
        assert_eq!((disk.calls(true).unwrap(), disk.conversations().unwrap()), before);
        drop(disk);
        let mut disk = Disk::open(&path).unwrap();
        assert_eq!((disk.calls(true).unwrap(), disk.conversations().unwrap()), before);
        let second = disk.call("call_2").unwrap().unwrap();
        assert_eq!((second.state, second.changed_unix_ms, second.since_unix_ms), (CallState::Confirmed, 99, 20));
        assert_eq!(before.1[0].turns, [(1, 2)]);
        assert_eq!(disk.call("call_3").unwrap(), None);
    }

    #[test]
    fn it_forgets_by_age_and_number_and_a_call_written_anew_counts_once() {
        let dir = tempfile::tempdir().unwrap();
        let mut disk = Disk::open(&dir.path().join("l.redb")).unwrap();
        disk.apply(&[call(1, 10), call(2, 20), call(3, 30), call(1, 40), seen("a", 1, 10), seen("b", 1, 50)]).unwrap();
        assert_eq!(disk.prune(0, &Bounds::default()), Ok(0));
        let left =
            |disk: &mut Disk| -> Vec<String> { disk.calls(true).unwrap().into_iter().map(|c| c.call_id).collect() };
        let two = Bounds { calls: 2, conversations: 1, ..Bounds::default() };
        assert_eq!(disk.prune(0, &two), Ok(1), "call 1 is of time 40 now");
        assert_eq!(left(&mut disk), ["call_1", "call_3"]);
        assert_eq!(disk.conversations().unwrap()[0].conversation, "b");
        assert_eq!(disk.prune(31, &Bounds::default()), Ok(1));
        assert_eq!(left(&mut disk), ["call_1"]);
    }

    #[test]
    fn what_is_no_ledger_is_left_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("l");
        for foreign in [&b"version: support\n"[..], &[0; 5_000], b"redb\x1a\x0a\xa9\x0d\x0a rest"] {
            std::fs::write(&path, foreign).unwrap();
            let told = Disk::open(&path).unwrap_err();
            assert_eq!(told.exit, crate::exit::Exit::Usage, "{told}");
            assert!(told.what.contains("is no ledger that can be read"), "{told}");
            assert!(told.hint.contains("it was not overwritten"), "{told}");
            assert_eq!(std::fs::read(&path).unwrap(), foreign);
        }
        // Another program's store, and a ledger of a later version.
        std::fs::remove_file(&path).unwrap();
        let other: TableDefinition<'_, &str, &str> = TableDefinition::new("llmfo");
        for (table, why) in [(TableDefinition::new("users"), "another program"), (other, "has format 2")] {
            let db = Database::create(&path).unwrap();
            let transaction = db.begin_write().unwrap();
            transaction.open_table(table).unwrap().insert("format", "2").unwrap();
            transaction.commit().unwrap();
            drop(db);
            let told = Disk::open(&path).unwrap_err().what;
            assert!(told.contains(why), "{told}");
            std::fs::remove_file(&path).unwrap();
        }
        // An empty file, and one that was made and not used, are anybody's.
        std::fs::write(&path, b"").unwrap();
        drop(Disk::open(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        drop(Database::create(&path).unwrap());
        drop(Disk::open(&path).unwrap());
        assert!(Disk::open(dir.path()).is_err(), "a folder");
    }

    #[test]
    fn a_damaged_ledger_is_an_error_wherever_the_damage_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("l.redb");
        let mut disk = Disk::open(&path).unwrap();
        let all: Vec<Change> = (0..200).map(|n| call(n, n)).collect();
        disk.apply(&all).unwrap();
        drop(disk);
        let good = std::fs::read(&path).unwrap();
        let mut found = 0;
        for at in (0..good.len()).step_by(good.len() / 60) {
            let mut bad = good.clone();
            for byte in bad.iter_mut().skip(at).take(2_000) {
                *byte = !*byte;
            }
            std::fs::write(&path, &bad).unwrap();
            // Whatever it says, it neither ends the process nor gives calls that nobody has written.
            let calls = Disk::open(&path).map_err(|e| e.what).and_then(|mut disk| disk.calls(true));
            match calls {
                Err(_) => found += 1,
                Ok(calls) => assert!(calls.iter().all(|c| all.contains(&Change::Call(c.clone())))),
            }
        }
        assert!(found > 0);
        // Cut off in the middle.
        std::fs::write(&path, &good[..good.len() / 2]).unwrap();
        assert!(Disk::open(&path).map_err(|e| e.what).and_then(|mut disk| disk.calls(true)).is_err());
    }

    #[test]
    fn two_at_once_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("l.redb");
        let _held = Disk::open(&path).unwrap();
        let told = Disk::open(&path).unwrap_err();
        assert!(told.what.contains("in use by another gateway") && told.hint.contains("--ledger FILE"), "{told}");
        assert!(matches!(Disk::existing(&path), Err(NotOpened::InUse)));
    }
}
