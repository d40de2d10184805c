//! What a drill sends goes to the lab and to nobody else, whatever the policy's own addresses are.

use std::net::TcpListener;
use std::path::{Path, PathBuf};

use crate::stage::{LLMFO, Proc, drill, last_word, short_drill, turn};

/// Somebody's provider: whoever dials it has done harm.
struct Production(TcpListener);

impl Production {
    fn new() -> Production {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        Production(listener)
    }

    fn url(&self) -> String {
        format!("http://{}/v1", self.0.local_addr().unwrap())
    }

    /// The kernel keeps a connection until it is taken, so none is missed.
    fn was_dialled(&self) -> bool {
        self.0.accept().is_ok()
    }
}

/// The policy on the page about drills, with these addresses in it.
fn policy(dir: &Path, a: &str, b: &str, change: impl Fn(String) -> String) -> PathBuf {
    let page = std::fs::read_to_string(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docs/drill.md")).unwrap();
    let begin = page.find("# mine.yaml").expect("the page has the policy");
    let text = &page[begin..begin + page[begin..].find("```").unwrap()];
    let path = dir.join("prod.yaml");
    std::fs::write(&path, change(text.replace("http://127.0.0.1:1/v1", a).replace("http://127.0.0.1:2/v1", b)))
        .unwrap();
    path
}

#[test]
fn an_embedded_drill_of_a_production_policy_dials_the_lab_alone() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (Production::new(), Production::new());
    // A key that is not there must not be asked for: the lab takes none.
    let keyed =
        |p: String| p.replacen("model: support-lab", "model: support-lab\n    credentials: env:NOT_SET_HERE", 1);
    let path = policy(dir.path(), &a.url(), &b.url(), keyed);
    let file = short_drill(dir.path(), 4000);
    let (exit, text, s, out) = drill(&[file.to_str().unwrap(), "--policy", path.to_str().unwrap()], dir.path());
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!a.was_dialled() && !b.was_dialled(), "{text}\n{said}");
    assert_eq!((exit, last_word(&text)), (0, "PASS"), "{text}\n{said}");
    assert!(s["run"]["policy"].as_str().unwrap().ends_with("with the addresses of this lab in it"), "{}", s["run"]);
}

#[test]
fn what_is_not_the_labs_is_refused_before_the_first_request() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let (a, b, gateway) = (Production::new(), Production::new(), Production::new());
    let third = |p: String| {
        let more = format!("targets:\n  vendor: {{ base_url: \"{}\", model: m }}\n", b.url());
        p.replacen("targets:\n", &more, 1).replacen("targets: [local-b]", "targets: [local-b, vendor]", 1)
    };
    let path = policy(dir.path(), &a.url(), &a.url(), third);
    let (exit, text, _, out) = drill(&["region-outage", "--policy", path.to_str().unwrap()], dir.path());
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!((exit, text.as_str()), (2, ""), "{said}");
    assert!(said.contains(&format!("vendor ({})", b.url())), "{said}");
    assert!(!said.contains("starting the lab"), "{said}");

    let (_lab, up) = Proc::start(LLMFO, &["lab", "up", "--exit-with-stdin"], dir.path());
    let path = policy(dir.path(), &a.url(), &b.url(), |p| p);
    let url = gateway.url();
    let lab = ["--lab", up["admin"].as_str().unwrap(), "--target", &url, "--policy", path.to_str().unwrap()];
    let (exit, text, _, out) = drill(&[&["region-outage"][..], &lab].concat(), dir.path());
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!((exit, text.as_str()), (2, ""), "{said}");
    assert!(said.contains(&a.url()) && said.contains(up["providers"]["local-a"].as_str().unwrap()), "{said}");
    assert!(!a.was_dialled() && !b.was_dialled() && !gateway.was_dialled(), "{said}");
}
