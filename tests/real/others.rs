//! What happens to a real Toxiproxy, and to a lab on it, while a drill runs.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::drill::{LLMFO, TURN, wait};
use super::toxiproxy::{real, real_with_pid};

/// Ends with the test.
struct Proc(Child);

impl Drop for Proc {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn pid(child: &Child) -> Pid {
    Pid::from_child(child)
}

fn run(args: &[&str], dir: &Path, report: &str) -> Child {
    let mut run = Command::new(LLMFO);
    run.args(["drill", "run"]).args(args).arg("--report").arg(dir.join(report));
    run.env("XDG_STATE_HOME", dir.join("state")).stdin(Stdio::null());
    let log = std::fs::File::create(dir.join(format!("{report}.err"))).unwrap();
    run.stdout(Stdio::null()).stderr(log).spawn().unwrap()
}

fn clean(dir: &Path) -> (Option<i32>, String) {
    let out = Command::new(LLMFO).args(["drill", "clean"]).env("XDG_STATE_HOME", dir.join("state")).output().unwrap();
    (out.status.code(), String::from_utf8_lossy(&out.stdout).into_owned())
}

fn summary(dir: &Path, report: &str) -> Value {
    let said = std::fs::read_to_string(dir.join(format!("{report}.err"))).unwrap_or_default();
    let text = std::fs::read(dir.join(report).join("summary.json")).unwrap_or_else(|e| panic!("{e}: {said}"));
    serde_json::from_slice(&text).unwrap()
}

fn codes(summary: &Value) -> Vec<&str> {
    summary["findings"].as_array().unwrap().iter().map(|f| f["code"].as_str().unwrap()).collect()
}

/// The lab goes in mid-outage and takes its proxies along: nobody makes them again, to lead nowhere.
#[test]
fn proxies_of_a_lab_that_was_stopped_are_not_made_again() {
    let Some(rig) = real() else { return };
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let url = format!("http://{}", rig.api);
    let mut lab = Command::new(LLMFO);
    lab.args(["lab", "up", "--toxiproxy", &url]).env("XDG_STATE_HOME", dir.path().join("lab-state"));
    let mut lab = Proc(lab.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(lab.0.stdout.take().unwrap()), &mut line).unwrap();
    let up: Value = serde_json::from_str(&line).unwrap();
    let mut gateway = Command::new(LLMFO);
    gateway.args(["serve", "--policy", up["policy"].as_str().unwrap(), "--listen"]);
    gateway.arg(up["entries"]["region-1"]["listen"].as_str().unwrap());
    let _gateway = Proc(gateway.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let admin = up["admin"].as_str().unwrap();
    let target = up["entries"]["region-1"]["url"].as_str().unwrap();
    let mut drill = Proc(run(&["region-outage", "--lab", admin, "--target", target], dir.path(), "r1"));
    let toxics = || rig.get("/proxies").json().to_string().matches("\"llmfo.").count();
    wait(Duration::from_secs(60), || toxics() >= 8);
    kill_process(pid(&lab.0), Signal::TERM).unwrap();
    assert_eq!(lab.0.wait().unwrap().code(), Some(0));
    assert_eq!(drill.0.wait().unwrap().code(), Some(5));
    let s = summary(dir.path(), "r1");
    assert_eq!(codes(&s), ["lab_lost"], "{s}");
    assert_eq!(s["cleanup"], "clean", "{s}");
    assert_eq!(rig.get("/proxies").json(), serde_json::json!({}), "nothing is left on it");
    assert!(clean(dir.path()).1.contains("nothing was left behind"));
}

#[test]
fn a_fault_server_that_stands_still_is_not_the_gateways_doing_and_is_tidied_up_later() {
    stands_still_after(10);
}

/// While paths are being broken: some are, some are not.
#[test]
fn a_fault_server_that_stands_still_half_way_is_reported_and_tidied_up_later() {
    stands_still_after(1);
}

/// The fault server stands still until the runner has ended, and goes on then. What the logs say is what is there, and
/// whoever comes next says what he found.
fn stands_still_after(toxics_set: usize) {
    let Some((rig, server)) = real_with_pid() else { return };
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let url = format!("http://{}", rig.api);
    let began = Instant::now();
    let mut drill = Proc(run(&["region-outage", "--toxiproxy", &url], dir.path(), "r1"));
    let toxics = || rig.get("/proxies").json().to_string().matches("\"llmfo.").count();
    wait(Duration::from_secs(60), || toxics() >= toxics_set);
    kill_process(server, Signal::STOP).unwrap();
    let stopped = Instant::now();
    let exit = drill.0.wait().unwrap().code();
    let took = stopped.elapsed();
    kill_process(server, Signal::CONT).unwrap();
    assert_eq!(exit, Some(6), "something may be left");
    assert!(took < Duration::from_secs(60), "{took:?} after {:?}", began.elapsed());
    let s = summary(dir.path(), "r1");
    assert_eq!((s["verdict"].as_str(), codes(&s)), (Some("INVALID"), vec!["fault_server_lost"]), "{s}");
    // The guard of that run may be at work still; then everything is as its log says.
    let folder = dir.path().join("state/llmfo/drills");
    let said = || {
        let log = std::fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path();
        std::fs::read_to_string(log).unwrap().lines().last().unwrap_or_default().to_string()
    };
    wait(Duration::from_secs(60), || said().contains("\"by\":\"guard\"") && !said().contains("dirty"));
    assert_eq!(toxics(), 0, "{}", said());
    let before = rig.get("/proxies").json().as_object().unwrap().len();
    let mut next = Proc(run(&["region-outage", "--toxiproxy", &url], dir.path(), "r2"));
    let exit = next.0.wait().unwrap().code();
    let s = summary(dir.path(), "r2");
    assert_eq!(exit, Some(0), "{s}");
    if before > 0 {
        assert!(s["run"]["healed"].to_string().contains("removed its"), "{before}: {}", s["run"]["healed"]);
    }
    assert_eq!(rig.get("/proxies").json(), serde_json::json!({}), "nothing is left on it");
}
