//! A real Toxiproxy 2.12: the shared suite in its stock profile, so that what the embedded server is measured against is
//! itself measured; and our client, injection and restore against it.

#[path = "../suite/toxiproxy/mod.rs"]
mod suite;

use std::collections::BTreeSet;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use llmfo::fault::restore::{Cleanup, See, restore};
use llmfo::fault::wal::{Wal, WalMemory, leftovers};
use suite::net::{read_end, upstream};
use suite::rig::Rig;
use suite::{api, data, ends, safe};

/// Ports given to servers of this process.
static USED: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// Ends the server with the test.
pub struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn program() -> Option<PathBuf> {
    let on_path = || {
        let path = std::env::var_os("PATH")?;
        std::env::split_paths(&path).map(|dir| dir.join("toxiproxy-server")).find(|p| p.is_file())
    };
    let named = std::env::var_os("LLMFO_TOXIPROXY").map(PathBuf::from).filter(|p| p.exists());
    named.or_else(on_path).or_else(|| super::peer::program("a real Toxiproxy", "LLMFO_TOXIPROXY"))
}

/// A real server on a free port, if there is one on this machine.
pub fn real() -> Option<Rig> {
    real_with_pid().map(|(rig, _)| rig)
}

/// [`real`] and its process.
pub fn real_with_pid() -> Option<(Rig, rustix::process::Pid)> {
    let program = program()?;
    for _ in 0..20 {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        // A second server on a busy port stays alive without an API: the first would be taken for it.
        if !USED.lock().unwrap().insert(free.port()) {
            continue;
        }
        let mut command = Command::new(&program);
        command.args(["-host", "127.0.0.1", "-port", &free.port().to_string()]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let (pid, server) = (rustix::process::Pid::from_child(&child), Server(child));
        if answers(free) {
            return Some((Rig::new(free, server), pid));
        }
    }
    panic!("{} does not start", program.display());
}

fn answers(api: SocketAddr) -> bool {
    let until = Instant::now() + Duration::from_secs(5);
    while Instant::now() < until {
        if TcpStream::connect(api).is_ok() {
            let version = suite::net::http(api, "GET", "/version", &[], "");
            return version.status == 200 && version.json()["version"].is_string();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}

macro_rules! stock {
    ($($module:ident :: $name:ident),+ $(,)?) => {
        $(
            #[test]
            fn $name() {
                if let Some(rig) = real() {
                    $module::$name(&rig);
                }
            }
        )+
    };
}

suite::toxiproxy_checks!(stock);

/// The real server's lock-up: a client that does not read, an upstream that floods, and a toxic is added. Only deleting the
/// proxy frees it then, and that is how the restore ends.
#[test]
fn a_locked_up_proxy_is_deleted_and_made_again() {
    let Some(rig) = real() else { return };
    let up = upstream(|mut stream, _| {
        // Floods until it is asked something.
        let chunk = vec![b'f'; 65536];
        let mut sent = 0;
        while sent < 64 << 20 && stream.write_all(&chunk).is_ok() {
            sent += chunk.len();
        }
    });
    let path = rig.path("p", &up);
    let before = path.shown();
    let _stalled = path.connect();
    std::thread::sleep(Duration::from_millis(700));
    let mut wal = WalMemory::default();
    let error = safe::run(safe::try_inject(&rig, &[("p", See::Silence)], &mut wal)).unwrap_err();
    assert!(error.what.contains("no answer within 2 s"), "{error}");
    let restored = safe::run(restore(&safe::client(&rig), "runner", &mut wal));
    assert_eq!(restored.cleanup, Cleanup::Recreated, "{restored:?}");
    assert!(restored.took < Duration::from_secs(15), "{restored:?}");
    assert_eq!(path.shown(), before);
    assert_eq!(leftovers(wal.entries()), None);
    let (bytes, _) = read_end(&mut path.connect(), Duration::from_millis(200));
    assert!(!bytes.is_empty(), "traffic flows");
}
