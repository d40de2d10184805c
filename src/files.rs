//! Files that a user names, read with a bound: what is none (a folder, a device, a socket) is refused before it is opened, and
//! what is longer than it may be is not held in memory, whatever its length was said to be.

use std::fs::{File, Metadata};
use std::io::{BufRead, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Why a file was not read, in words that follow `cannot read NAME: `.
pub type Why = String;

/// Opens a file, or a pipe that is given as one (`<(zcat x)`).
///
/// # Errors
/// It is not there, may not be read, or is a folder, a device or a socket.
pub fn open(path: &Path) -> Result<(File, Metadata), Why> {
    open_if(path, |m| m.is_file() || m.file_type().is_fifo())
}

fn open_if(path: &Path, fits: impl Fn(&Metadata) -> bool) -> Result<(File, Metadata), Why> {
    let before = std::fs::metadata(path).map_err(|e| e.to_string())?;
    if !fits(&before) {
        let what = match before.file_type() {
            t if t.is_dir() => "it is a folder",
            t if t.is_fifo() => "it is a pipe",
            _ => "it is no file",
        };
        return Err(what.to_owned());
    }
    let file = File::open(path).map_err(|e| e.to_string())?;
    let meta = file.metadata().map_err(|e| e.to_string())?;
    // It may be another one by now.
    if fits(&meta) { Ok((file, meta)) } else { Err("it is no file".to_owned()) }
}

/// All bytes of a file of at most `most` bytes.
///
/// # Errors
/// As [`open`]; it is longer; reading failed.
pub fn bytes(path: &Path, most: u64) -> Result<Vec<u8>, Why> {
    read(open(path)?, most)
}

/// The same of what is a file and no pipe: where nobody may be waited for.
///
/// # Errors
/// As [`bytes()`]; it is a pipe.
pub fn bytes_of_file(path: &Path, most: u64) -> Result<Vec<u8>, Why> {
    read(open_if(path, Metadata::is_file)?, most)
}

fn read((file, meta): (File, Metadata), most: u64) -> Result<Vec<u8>, Why> {
    let too_long = || format!("it is longer than {most} bytes");
    if meta.len() > most {
        return Err(too_long());
    }
    let mut bytes = Vec::new();
    // One more than the bound tells a pipe, and a file that grows, from one that fits.
    file.take(most.saturating_add(1)).read_to_end(&mut bytes).map_err(|e| e.to_string())?;
    if bytes.len() as u64 > most { Err(too_long()) } else { Ok(bytes) }
}

/// A file of at most `most` bytes as text.
///
/// # Errors
/// As [`bytes()`]; it is not UTF-8.
pub fn text(path: &Path, most: u64) -> Result<String, Why> {
    String::from_utf8(bytes(path, most)?).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        format!("it is not UTF-8 text from byte {at} on")
    })
}

/// The next line without its end, of at most `most` bytes; `None` at the end.
///
/// # Errors
/// It is longer; it is not UTF-8; reading failed.
pub fn line(from: &mut impl BufRead, most: u64) -> Result<Option<String>, Why> {
    let mut line = Vec::new();
    let read = from.take(most.saturating_add(1)).read_until(b'\n', &mut line).map_err(|e| e.to_string())?;
    if read == 0 {
        return Ok(None);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
        line.pop_if(|b| *b == b'\r');
    }
    if line.len() as u64 > most {
        return Err(format!("it is longer than {most} bytes"));
    }
    String::from_utf8(line).map(Some).map_err(|_| "it is not UTF-8 text".to_owned())
}

/// Raises the soft limit of open files to the hard one, as every connection needs one: shells give 1,024, and a gateway that
/// stops accepting at a thousand streams is no gateway. Returns the limit that holds now; `None`: there is none.
pub fn many_open() -> Option<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // One that cannot be raised stays: what it is good for is still served.
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    if raised.is_ok() { maximum } else { current }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_open_files_is_the_hard_one_afterwards() {
        let hard = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
        assert_eq!(many_open(), hard);
        assert_eq!(rustix::process::getrlimit(rustix::process::Resource::Nofile).current, hard);
    }

    #[test]
    fn what_is_no_file_or_too_long_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, "12345").unwrap();
        assert_eq!(text(&path, 5).unwrap(), "12345");
        assert_eq!(text(&path, 4).unwrap_err(), "it is longer than 4 bytes");
        std::fs::write(&path, b"12\xff45").unwrap();
        assert_eq!(text(&path, 5).unwrap_err(), "it is not UTF-8 text from byte 2 on");
        assert_eq!(text(dir.path(), 5).unwrap_err(), "it is a folder");
        assert_eq!(text(Path::new("/dev/zero"), 5).unwrap_err(), "it is no file");
        // Its length is said to be 0.
        assert_eq!(text(Path::new("/proc/self/maps"), 5).unwrap_err(), "it is longer than 5 bytes");
        assert!(text(Path::new("/nowhere/f"), 5).unwrap_err().contains("No such file"));
    }

    #[test]
    fn lines_are_read_one_by_one_and_a_long_one_is_not_held() {
        let mut from: &[u8] = b"one\r\n\nthree";
        let mut next = || line(&mut from, 5).unwrap();
        assert_eq!(
            (next().as_deref(), next().as_deref(), next().as_deref(), next()),
            (Some("one"), Some(""), Some("three"), None)
        );
        assert_eq!(line(&mut &b"123456"[..], 5).unwrap_err(), "it is longer than 5 bytes");
        assert_eq!(line(&mut &b"12345\n"[..], 5).unwrap().as_deref(), Some("12345"));
        let mut endless = std::io::BufReader::new(std::io::repeat(b'x'));
        assert!(line(&mut endless, 1000).is_err());
    }
}
