//! The write-ahead log of a drill: what is about to be done is on disk before it is done, so that whoever comes after a crash
//! knows what to undo. JSON Lines; a torn last line is what a crash leaves, and is ignored. What is to be undone is computed
//! from the entries alone.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::api::Proxy;
use super::client::NewToxic;
use super::clock;
use super::restore::Cleanup;
use crate::error::{Expected, Result};

/// The format written here.
pub const FORMAT: u32 = 1;
/// A log larger than this is not read.
const FILE_MAX_BYTES: u64 = 64 << 20;

/// When: both clocks, since one ends with the machine and the other may be set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// Monotonic clock of the machine, milliseconds.
    pub mono_ms: u64,
    /// Since 1970, milliseconds.
    pub wall_ms: u64,
}

impl Stamp {
    /// Now.
    #[must_use]
    pub fn now() -> Stamp {
        Stamp { mono_ms: clock::monotonic_ms(), wall_ms: clock::wall_ms() }
    }
}

/// A change of a fault server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// A toxic is added.
    AddToxic {
        /// The proxy.
        proxy: String,
        /// The toxic.
        toxic: NewToxic,
    },
    /// A toxic is removed.
    RemoveToxic {
        /// The proxy.
        proxy: String,
        /// Its name.
        name: String,
    },
    /// A proxy is switched.
    SetEnabled {
        /// The proxy.
        proxy: String,
        /// On or off.
        enabled: bool,
    },
    /// A proxy is deleted (on the way to making it again).
    DeleteProxy {
        /// The proxy.
        proxy: String,
    },
    /// A proxy is made from the snapshot.
    CreateProxy {
        /// The proxy.
        proxy: String,
    },
}

impl Change {
    /// The proxy it touches.
    #[must_use]
    pub fn proxy(&self) -> &str {
        match self {
            Change::AddToxic { proxy, .. }
            | Change::RemoveToxic { proxy, .. }
            | Change::SetEnabled { proxy, .. }
            | Change::DeleteProxy { proxy }
            | Change::CreateProxy { proxy } => proxy,
        }
    }
}

/// The beginning of a run: where, and what it was like before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Begin {
    /// [`FORMAT`].
    pub format: u32,
    /// Unique; part of the names of everything this run makes.
    pub run: String,
    /// Name of the drill.
    pub drill: String,
    /// Process of the runner.
    pub pid: u32,
    /// URL of the fault server's API.
    pub server: String,
    /// It belongs to a lab of this run and dies with it.
    pub embedded: bool,
    /// The proxies belong to a lab that this run started: it deletes them when it ends, so whoever heals after the run must
    /// not make them again.
    #[serde(default)]
    pub lab_of_run: bool,
    /// Admin URL of that lab. While nobody listens there the lab is gone, and its proxies belong to nobody: they are removed,
    /// not made again.
    #[serde(default)]
    pub lab_admin: Option<String>,
    /// The proxies as they were.
    pub snapshot: BTreeMap<String, Proxy>,
}

/// One line of the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Entry {
    /// First line.
    Begin {
        /// When.
        at: Stamp,
        /// What.
        begin: Begin,
    },
    /// Written and on disk before a call.
    Intent {
        /// When.
        at: Stamp,
        /// Number within the log, from 1.
        n: u64,
        /// What is about to be done.
        change: Change,
    },
    /// What the server said.
    Answer {
        /// When.
        at: Stamp,
        /// Of this intent.
        n: u64,
        /// It agreed, and the read-back shows it.
        ok: bool,
        /// Its words, or the error's.
        text: String,
    },
    /// A restore is over.
    Restored {
        /// When.
        at: Stamp,
        /// `runner`, `guard` or `clean`.
        by: String,
        /// How it ended.
        cleanup: Cleanup,
    },
}

/// A place for entries. An entry is safe when `append` returns.
pub trait Wal: Send {
    /// Adds an entry.
    ///
    /// # Errors
    /// It could not be written: nothing may be changed then, except in order to heal.
    fn append(&mut self, entry: Entry) -> Result<()>;
    /// All entries, those of earlier processes included.
    fn entries(&self) -> &[Entry];
}

/// A log in memory, for runs that need none on disk (a dry run, tests).
#[derive(Debug, Default)]
pub struct WalMemory(Vec<Entry>);

impl Wal for WalMemory {
    fn append(&mut self, entry: Entry) -> Result<()> {
        self.0.push(entry);
        Ok(())
    }

    fn entries(&self) -> &[Entry] {
        &self.0
    }
}

/// A log on disk.
#[derive(Debug)]
pub struct WalFile {
    path: PathBuf,
    file: File,
    entries: Vec<Entry>,
}

impl WalFile {
    /// A new log; folders are made.
    ///
    /// # Errors
    /// It exists, or cannot be written.
    pub fn create(path: &Path) -> Result<WalFile> {
        let bad = |e: std::io::Error| failed("write", path, &e);
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder).map_err(bad)?;
        let file = OpenOptions::new().read(true).append(true).create_new(true).open(path).map_err(bad)?;
        // The name has to survive a crash as well.
        File::open(folder).and_then(|f| f.sync_all()).map_err(bad)?;
        Ok(WalFile { path: path.to_owned(), file, entries: Vec::new() })
    }

    /// A log that exists, to be continued. A torn last line is cut off.
    ///
    /// # Errors
    /// It cannot be read, or is not such a log.
    pub fn open(path: &Path) -> Result<WalFile> {
        let bad = |e: std::io::Error| failed("open", path, &e);
        is_a_file(path).map_err(bad)?;
        let mut file = OpenOptions::new().read(true).append(true).open(path).map_err(bad)?;
        let (entries, whole, all) = load(&mut file, path)?;
        if whole < all {
            file.set_len(whole as u64).and_then(|()| file.seek(SeekFrom::End(0))).map_err(bad)?;
        }
        Ok(WalFile { path: path.to_owned(), file, entries })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Wal for WalFile {
    fn append(&mut self, entry: Entry) -> Result<()> {
        let mut line = serde_json::to_string(&entry)
            .map_err(|e| Expected::could_not(format!("an entry of the log cannot be written: {e}"), ""))?;
        line.push('\n');
        let written = self.file.write_all(line.as_bytes()).and_then(|()| self.file.sync_data());
        written.map_err(|e| failed("write", &self.path, &e))?;
        self.entries.push(entry);
        Ok(())
    }

    fn entries(&self) -> &[Entry] {
        &self.entries
    }
}

fn failed(verb: &str, path: &Path, e: &std::io::Error) -> Expected {
    Expected::could_not(
        format!("cannot {verb} the write-ahead log {}: {e}", path.display()),
        "faults are only injected when they can be written down first; set XDG_STATE_HOME to a folder that can be written",
    )
}

/// The entries, how many bytes they take, and how many there are.
fn load(file: &mut File, path: &Path) -> Result<(Vec<Entry>, usize, usize)> {
    let mut bytes = Vec::new();
    file.take(FILE_MAX_BYTES).read_to_end(&mut bytes).map_err(|e| failed("read", path, &e))?;
    let text = String::from_utf8_lossy(&bytes);
    let (entries, whole) = parse(&text).map_err(|why| {
        Expected::could_not(
            format!("{}: {why}", path.display()),
            "it is not the log of a drill, or it was edited: move it away, and look at GET /proxies of the fault server",
        )
    })?;
    Ok((entries, whole, bytes.len()))
}

/// Reads a log and leaves it alone: its run may be alive.
///
/// # Errors
/// It cannot be read, or is not such a log.
pub fn read(path: &Path) -> Result<Vec<Entry>> {
    is_a_file(path).map_err(|e| failed("read", path, &e))?;
    let mut file = File::open(path).map_err(|e| failed("read", path, &e))?;
    Ok(load(&mut file, path)?.0)
}

/// Whatever else lies there is no log, and a pipe would be waited for.
fn is_a_file(path: &Path) -> std::io::Result<()> {
    if std::fs::metadata(path)?.is_file() { Ok(()) } else { Err(std::io::Error::other("it is no file")) }
}

/// Reads a log. Returns the entries and how many bytes of the text they take: what follows is torn.
///
/// # Errors
/// A broken line that is not the last one.
pub fn parse(text: &str) -> std::result::Result<(Vec<Entry>, usize), String> {
    let (mut entries, mut whole) = (Vec::new(), 0);
    for (n, line) in text.split_inclusive('\n').enumerate() {
        let torn = !line.ends_with('\n');
        match serde_json::from_str::<Entry>(line.trim_end()) {
            Ok(entry) if !torn => {
                entries.push(entry);
                whole += line.len();
            }
            _ if whole + line.len() == text.len() => break,
            Ok(_) => break,
            Err(e) => return Err(format!("line {} cannot be read: {e}", n + 1)),
        }
    }
    Ok((entries, whole))
}

/// What is to be undone.
#[derive(Clone, Debug, PartialEq)]
pub struct Undo {
    /// The run that did it.
    pub begin: Begin,
    /// Proxies that were, or may have been, touched.
    pub proxies: BTreeSet<String>,
    /// Toxics that were, or may have been, added.
    pub toxics: BTreeSet<(String, String)>,
}

/// What the entries leave to be undone: everything that was begun (an intent without an answer may have happened) after the
/// last restore that ended well. Nothing: the log is clean.
#[must_use]
pub fn leftovers(entries: &[Entry]) -> Option<Undo> {
    let mut undo: Option<Undo> = None;
    for entry in entries {
        match entry {
            Entry::Begin { begin, .. } => {
                undo = Some(Undo { begin: begin.clone(), proxies: BTreeSet::new(), toxics: BTreeSet::new() });
            }
            Entry::Intent { change, .. } => {
                if let Some(undo) = &mut undo {
                    undo.proxies.insert(change.proxy().to_owned());
                    if let Change::AddToxic { proxy, toxic } = change {
                        undo.toxics.insert((proxy.clone(), toxic.name.clone()));
                    }
                }
            }
            Entry::Answer { .. } => {}
            Entry::Restored { cleanup, .. } => {
                if let (Some(undo), false) = (&mut undo, cleanup.is_dirty()) {
                    undo.proxies.clear();
                    undo.toxics.clear();
                }
            }
        }
    }
    undo.filter(|u| !u.proxies.is_empty())
}

/// The number of the next intent.
#[must_use]
pub fn next_number(entries: &[Entry]) -> u64 {
    let numbers = entries.iter().map(|e| match e {
        Entry::Intent { n, .. } => *n,
        _ => 0,
    });
    numbers.max().unwrap_or(0) + 1
}

/// What a folder of logs says.
#[derive(Debug, Default, PartialEq)]
pub struct Scan {
    /// Logs that leave something to be undone.
    pub left: Vec<(PathBuf, Undo)>,
    /// Logs that cannot be read, in words: each may hide a fault.
    pub unreadable: Vec<String>,
}

/// Looks through a folder for logs (`*.jsonl`) that leave something to be undone.
///
/// # Errors
/// The folder exists and cannot be listed.
pub fn scan(folder: &Path) -> Result<Scan> {
    let mut scan = Scan::default();
    let listing = match std::fs::read_dir(folder) {
        Ok(listing) => listing,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(scan),
        Err(e) => return Err(failed("list", folder, &e)),
    };
    let mut paths: Vec<PathBuf> = listing.filter_map(|entry| entry.ok().map(|e| e.path())).collect();
    paths.retain(|p| p.extension().is_some_and(|x| x == "jsonl"));
    paths.sort();
    for path in paths {
        match read(&path) {
            // Not even its beginning is whole: a crash that early has broken nothing, but a log that was cut may hide a fault.
            Ok(entries) if entries.is_empty() && std::fs::metadata(&path).map_or(true, |m| m.len() > 0) => {
                scan.unreadable.push(format!(
                    "{}: its first line is torn; look at GET /proxies of the fault server, then remove it",
                    path.display()
                ));
            }
            Ok(entries) => scan.left.extend(leftovers(&entries).map(|undo| (path, undo))),
            Err(e) => scan.unreadable.push(e.what),
        }
    }
    Ok(scan)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::api::Stream;
    use crate::fault::toxic::Spec;

    fn begin() -> Entry {
        let begin = Begin {
            format: FORMAT,
            run: "r1".to_owned(),
            drill: "d".to_owned(),
            pid: 1,
            server: "http://127.0.0.1:1".to_owned(),
            embedded: false,
            lab_of_run: false,
            lab_admin: None,
            snapshot: BTreeMap::new(),
        };
        Entry::Begin { at: Stamp::default(), begin }
    }

    fn add(n: u64, proxy: &str) -> Entry {
        let toxic = NewToxic::new(format!("llmfo.r1.{n}"), Stream::Upstream, Spec::Bandwidth { rate_kb_s: 0 });
        Entry::Intent { at: Stamp::default(), n, change: Change::AddToxic { proxy: proxy.to_owned(), toxic } }
    }

    fn restored(cleanup: Cleanup) -> Entry {
        Entry::Restored { at: Stamp::default(), by: "runner".to_owned(), cleanup }
    }

    #[test]
    fn an_intent_without_an_answer_is_undone_and_a_dirty_restore_undoes_nothing() {
        assert_eq!(leftovers(&[begin()]), None);
        let undo = leftovers(&[begin(), add(1, "p")]).unwrap();
        assert!(undo.proxies.contains("p") && undo.toxics.contains(&("p".to_owned(), "llmfo.r1.1".to_owned())));
        assert_eq!(leftovers(&[begin(), add(1, "p"), restored(Cleanup::Clean)]), None);
        let dirty = restored(Cleanup::Dirty("why".to_owned()));
        assert_eq!(leftovers(&[begin(), add(1, "p"), dirty]), Some(undo));
        let again = leftovers(&[begin(), add(1, "p"), restored(Cleanup::Recreated), add(2, "q")]).unwrap();
        assert_eq!(again.proxies.into_iter().collect::<Vec<_>>(), ["q"]);
        assert_eq!(next_number(&[begin(), add(1, "p"), add(7, "p")]), 8);
    }

    #[test]
    fn a_torn_last_line_is_ignored_anywhere_it_is_torn() {
        let lines: Vec<String> =
            [begin(), add(1, "p"), add(2, "q")].iter().map(|e| serde_json::to_string(e).unwrap() + "\n").collect();
        let text = lines.concat();
        let two = lines[0].len() + lines[1].len();
        for cut in two..text.len() {
            if text.is_char_boundary(cut) {
                let (entries, whole) = parse(&text[..cut]).unwrap();
                assert_eq!((entries.len(), whole), (2, two), "cut at {cut}");
            }
        }
        assert_eq!(parse(&text).unwrap().0.len(), 3);
        assert!(parse(&format!("oops\n{text}")).is_err());
        assert_eq!(parse("").unwrap(), (vec![], 0));
    }

    #[test]
    fn a_file_goes_on_after_a_crash() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/run.jsonl");
        let mut wal = WalFile::create(&path).unwrap();
        wal.append(begin()).unwrap();
        wal.append(add(1, "p")).unwrap();
        assert!(WalFile::create(&path).is_err(), "never over another log");
        std::fs::write(&path, std::fs::read_to_string(&path).unwrap() + "{\"intent\":{\"at\"").unwrap();
        let mut wal = WalFile::open(&path).unwrap();
        wal.append(restored(Cleanup::Clean)).unwrap();
        let wal = WalFile::open(&path).unwrap();
        assert_eq!(wal.entries().len(), 3);
        assert_eq!(leftovers(wal.entries()), None);
        assert_eq!(scan(&folder.path().join("a")).unwrap(), Scan::default());
        assert_eq!(scan(&folder.path().join("none")).unwrap(), Scan::default());
    }
}
