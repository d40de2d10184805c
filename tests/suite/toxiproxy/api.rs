//! The HTTP surface.

use std::io::Write;
use std::net::TcpListener;

use serde_json::{Value, json};

use super::net::{Ended, LONG, assert_refused, echo, http, read_end, read_exact, upstream};
use super::rig::Rig;

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[track_caller]
fn refused(answer: &super::net::Answer, status: u16, error: &str) {
    assert_eq!((answer.status, answer.error().as_str()), (status, error), "{answer:?}");
}

pub fn c01_version_is_one_json_object(rig: &Rig) {
    let answer = rig.get("/version");
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), Some("application/json;charset=utf-8"));
    // A real one that was built from source says "git".
    let version = answer.json()["version"].as_str().unwrap().to_owned();
    assert!(!rig.strict() || version.starts_with("2."), "{version}");
    assert!(answer.body.ends_with('\n'));
    assert_eq!(answer.json()["server"] == "llmfo", rig.strict());
}

pub fn c02_routed_answers_carry_a_request_id(rig: &Rig) {
    assert_eq!(rig.get("/proxies").header("x-toxiproxy-request-id").map(str::len), Some(20));
    assert_eq!(rig.get("/nowhere").header("x-toxiproxy-request-id"), None);
}

pub fn c03_browsers_are_refused(rig: &Rig) {
    let get = |path, agent: &str| http(rig.api, "GET", path, &[agent], "");
    let answer = get("/proxies", "User-Agent: Mozilla/5.0 (X11)");
    assert_eq!(answer.status, 403);
    assert_eq!(answer.body.trim_end(), "User agent not allowed");
    assert_eq!(get("/proxies", "User-Agent: mozilla/5.0").status, 200, "case-sensitive");
    assert_eq!(get("/proxies", "User-Agent: x Mozilla/5.0").status, 200, "a prefix only");
    assert_eq!(get("/nowhere", "User-Agent: Mozilla/5.0").status, 404);
}

pub fn c04_unknown_paths(rig: &Rig) {
    for path in ["/", "/nowhere", "/proxies/", "/proxies/a/toxics/", "/metrics"] {
        let answer = rig.get(path);
        assert_eq!((answer.status, answer.body.trim_end()), (404, "404 page not found"), "{path}");
        assert_eq!(answer.header("content-type"), Some("text/plain; charset=utf-8"));
    }
}

pub fn c05_wrong_methods(rig: &Rig) {
    let wrong = [
        ("PUT", "/proxies"),
        ("DELETE", "/proxies"),
        ("GET", "/reset"),
        ("GET", "/populate"),
        ("DELETE", "/proxies/p/toxics"),
        ("POST", "/version"),
        ("PUT", "/proxies/p"),
    ];
    for (method, path) in wrong {
        let answer = rig.raw(method, path, "");
        assert_eq!((answer.status, answer.body.as_str()), (405, ""), "{method} {path}");
    }
    assert_eq!(rig.raw("HEAD", "/proxies", "").status, 405);
}

pub fn c06_doubled_slashes_redirect(rig: &Rig) {
    let answer = rig.get("//proxies");
    assert_eq!((answer.status, answer.header("location")), (301, Some("/proxies")));
}

pub fn c07_errors_are_json_in_plain_text(rig: &Rig) {
    let answer = rig.get("/proxies/none");
    assert_eq!(answer.header("content-type"), Some("text/plain; charset=utf-8"));
    assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(answer.json(), json!({"error": "proxy not found", "status": 404}));
    assert!(answer.body.ends_with('\n'));
    assert!(rig.get("/proxies").header("content-type").unwrap().starts_with("application/json"));
}

pub fn c08_c09_bodies_are_read_leniently(rig: &Rig) {
    let body = r#"{"NAME":"p","Listen":"127.0.0.1:0","upstream":"127.0.0.1:9","nonsense":1} trailing"#;
    let form = "Content-Type: application/x-www-form-urlencoded";
    let answer = http(rig.api, "POST", "/proxies", &[form], body);
    assert_eq!((answer.status, answer.json()["name"].as_str()), (201, Some("p")), "{answer:?}");
}

pub fn c16_listing(rig: &Rig) {
    assert_eq!(rig.get("/proxies").json(), json!({}));
    let up = upstream(echo);
    rig.path("b", &up);
    rig.path("a", &up);
    let list = rig.get("/proxies").json();
    let names: Vec<&String> = list.as_object().unwrap().keys().collect();
    assert_eq!(names, ["a", "b"]);
    let mut one = list["a"].clone();
    if !rig.strict() {
        // A stray empty object, to be tolerated by clients and not sent by servers.
        one.as_object_mut().unwrap().remove("Logger");
    }
    let keys: Vec<&String> = one.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["name", "listen", "upstream", "enabled", "toxics"]);
    assert_eq!(one["toxics"], json!([]));
}

pub fn c17_c22_create_shows_the_chosen_port(rig: &Rig) {
    let body = json!({"name": "p", "listen": "localhost:0", "upstream": "127.0.0.1:9",
        "toxics": [{"type": "latency"}]});
    let answer = rig.post("/proxies", &body);
    assert_eq!(answer.status, 201);
    let made = answer.json();
    let listen: std::net::SocketAddr = made["listen"].as_str().unwrap().parse().unwrap();
    assert!(listen.ip().is_loopback() && listen.port() != 0);
    assert_eq!((&made["enabled"], &made["toxics"]), (&json!(true), &json!([])));
}

pub fn c18_bad_bodies(rig: &Rig) {
    let error = |body: &str| {
        let answer = rig.raw("POST", "/proxies", body);
        (answer.status, answer.error())
    };
    assert_eq!(error(""), (400, "bad request body: EOF".to_owned()));
    for body in ["{oops", r#"{"name": 5}"#, "[]", r#"{"name":"a","upstream":"127.0.0.1:9","enabled":"yes"}"#] {
        let (status, text) = error(body);
        assert!(status == 400 && text.starts_with("bad request body: "), "{body}: {text}");
    }
}

pub fn c19_required_fields(rig: &Rig) {
    refused(&rig.post("/proxies", &json!({})), 400, "missing required field: name");
    refused(&rig.post("/proxies", &json!({"name": "", "upstream": ""})), 400, "missing required field: name");
    refused(&rig.post("/proxies", &json!({"name": "p"})), 400, "missing required field: upstream");
    if rig.strict() {
        let make = |listen: &str, name: &str, upstream: &str| {
            rig.post("/proxies", &json!({"name": name, "listen": listen, "upstream": upstream})).status
        };
        // What the real server takes and nobody can want: all interfaces, a URL, a name that cannot be addressed.
        assert_eq!(make("", "p", "127.0.0.1:9"), 400);
        assert_eq!(make("0.0.0.0:0", "p", "127.0.0.1:9"), 400);
        assert_eq!(make("127.0.0.1:0", "p", "http://127.0.0.1:9"), 400);
        assert_eq!(make("127.0.0.1:0", "p", "free text"), 400);
        assert_eq!(make("127.0.0.1:0", "p", "192.0.2.1:9"), 400);
        assert_eq!(make("127.0.0.1:0", "a/b", "127.0.0.1:9"), 400);
    }
}

pub fn c20_same_name_conflicts_and_opens_no_port(rig: &Rig) {
    rig.path_to("p", "127.0.0.1:9");
    let port = free_port();
    let body = json!({"name": "p", "listen": format!("127.0.0.1:{port}"), "upstream": "127.0.0.1:9"});
    refused(&rig.post("/proxies", &body), 409, "proxy already exists");
    assert_refused(([127, 0, 0, 1], port).into());
}

pub fn c21_taken_port(rig: &Rig) {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap();
    let make = |listen: &str| rig.post("/proxies", &json!({"name": "p", "listen": listen, "upstream": "127.0.0.1:9"}));
    refused(&make(&addr.to_string()), 500, &format!("listen tcp {addr}: bind: address already in use"));
    assert_eq!(make("nonsense").status, 500);
    assert_eq!(rig.get("/proxies").json(), json!({}));
}

pub fn c23_created_disabled_binds_nothing(rig: &Rig) {
    let port = free_port();
    let body = json!({"name": "p", "listen": format!("localhost:{port}"), "upstream": "127.0.0.1:9", "enabled": false});
    let made = rig.post("/proxies", &body);
    assert_eq!(made.status, 201);
    assert_eq!(made.json()["listen"], format!("localhost:{port}"), "kept unresolved");
    assert_refused(([127, 0, 0, 1], port).into());
}

pub fn c27_unknown_proxies(rig: &Rig) {
    refused(&rig.get("/proxies/none"), 404, "proxy not found");
    refused(&rig.post("/proxies/none", &json!({})), 404, "proxy not found");
    refused(&rig.delete("/proxies/none"), 404, "proxy not found");
    refused(&rig.get("/proxies/none/toxics"), 404, "proxy not found");
    refused(&rig.post("/proxies/none/toxics", &json!({"type": "latency"})), 404, "proxy not found");
}

pub fn c28_updates_merge(rig: &Rig) {
    let path = rig.path_to("p", "127.0.0.1:9");
    let before = path.shown();
    for change in [json!({}), json!({"name": "other"}), json!({"enabled": null, "listen": null})] {
        for method in ["PATCH", "POST"] {
            let answer = rig.call(method, "/proxies/p", &change);
            assert_eq!((answer.status, answer.json()), (200, before.clone()), "{method} {change}");
        }
    }
    refused(&rig.raw("PATCH", "/proxies/p", ""), 400, "bad request body: EOF");
    if rig.strict() {
        assert_eq!(path.change(&json!({"upstream": ""})).status, 400);
        assert_eq!(path.shown(), before);
    }
}

pub fn c29_disable_refuses_closes_and_keeps_toxics(rig: &Rig) {
    let up = upstream(echo);
    let path = rig.path("p", &up);
    let mut client = path.connect();
    client.write_all(b"x").unwrap();
    read_exact(&mut client, 1);
    path.toxic("limit_data", "downstream", json!({"bytes": 0}));
    for _ in 0..2 {
        let off = path.change(&json!({"enabled": false}));
        assert_eq!((off.status, &off.json()["enabled"]), (200, &json!(false)));
    }
    assert_eq!(read_end(&mut client, LONG), (vec![], Ended::Fin));
    assert_refused(path.listen);
    for _ in 0..2 {
        let on = path.change(&json!({"enabled": true}));
        assert_eq!((on.status, &on.json()["listen"]), (200, &json!(path.listen.to_string())), "the same port again");
    }
    let mut client = path.connect();
    client.write_all(b"x").unwrap();
    assert_eq!(read_end(&mut client, LONG).0.len(), 0, "the toxic still acts");
}

pub fn c30_a_new_upstream_closes_connections_and_keeps_toxics(rig: &Rig) {
    let (first, second) = (upstream(echo), upstream(super::net::sink));
    let path = rig.path("p", &first);
    let mut client = path.connect();
    client.write_all(b"x").unwrap();
    read_exact(&mut client, 1);
    path.toxic("latency", "upstream", json!({"latency": 1}));
    let answer = path.change(&json!({"upstream": second.addr.to_string()}));
    assert_eq!((answer.status, &answer.json()["upstream"]), (200, &json!(second.addr.to_string())));
    assert_ne!(read_end(&mut client, LONG).1, Ended::Open);
    assert_eq!(path.shown()["toxics"].as_array().unwrap().len(), 1);
    path.connect().write_all(b"to the second").unwrap();
    super::net::wait_for("the second upstream", || *second.received.lock().unwrap() == b"to the second");
    // Another listen address moves it.
    let port = free_port();
    let moved = path.change(&json!({"listen": format!("127.0.0.1:{port}")}));
    assert_eq!((moved.status, &moved.json()["listen"]), (200, &json!(format!("127.0.0.1:{port}"))));
    assert_refused(path.listen);
}

pub fn c31_update_to_a_taken_port(rig: &Rig) {
    let up = upstream(echo);
    let path = rig.path("p", &up);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let answer = path.change(&json!({"listen": taken.local_addr().unwrap().to_string()}));
    assert_eq!(answer.status, 500);
    if rig.strict() {
        // Unlike the real server, which leaves it disabled on the new address.
        let shown = path.shown();
        assert_eq!((&shown["listen"], &shown["enabled"]), (&json!(path.listen.to_string()), &json!(true)));
        let mut client = path.connect();
        client.write_all(b"x").unwrap();
        read_exact(&mut client, 1);
    }
}

pub fn c32_unparsable_listen_changes_nothing(rig: &Rig) {
    let path = rig.path_to("p", "127.0.0.1:9");
    let before = path.shown();
    let answer = path.change(&json!({"listen": "nonsense"}));
    assert_eq!(answer.status, 500);
    assert!(answer.error().ends_with("address nonsense: missing port in address"), "{answer:?}");
    assert_eq!(path.shown(), before);
}

pub fn c34_delete_closes_everything(rig: &Rig) {
    let up = upstream(echo);
    let path = rig.path("p", &up);
    let mut client = path.connect();
    client.write_all(b"x").unwrap();
    read_exact(&mut client, 1);
    let answer = rig.delete("/proxies/p");
    assert_eq!((answer.status, answer.body.as_str()), (204, ""));
    assert_ne!(read_end(&mut client, LONG).1, Ended::Open);
    assert_refused(path.listen);
    refused(&rig.delete("/proxies/p"), 404, "proxy not found");
}

pub fn c35_to_c42_populate(rig: &Rig) {
    let port = free_port();
    let one = json!({"name": "one", "listen": format!("127.0.0.1:{port}"), "upstream": "127.0.0.1:9"});
    let two = json!({"name": "two", "listen": "127.0.0.1:0", "upstream": "127.0.0.1:9"});
    let names = |answer: &super::net::Answer| -> Vec<String> {
        let proxies = answer.json()["proxies"].as_array().cloned().unwrap_or_default();
        proxies.iter().map(|p| p["name"].as_str().unwrap().to_owned()).collect()
    };
    let answer = rig.post("/populate", &json!([two, one]));
    assert_eq!((answer.status, names(&answer)), (201, vec!["two".to_owned(), "one".to_owned()]));
    assert_eq!(rig.raw("POST", "/populate", "[]").status, 201);
    // Checked before anything is made.
    let bad =
        rig.post("/populate", &json!([{"name": "three", "listen": "127.0.0.1:0", "upstream": "127.0.0.1:9"}, {}]));
    assert_eq!((bad.status, bad.error().as_str()), (400, "missing required field: name at proxy 2"));
    assert_eq!(rig.get("/proxies/three").status, 404);
    // An equal one is left alone, toxics and all; another one is replaced.
    assert_eq!(rig.post("/proxies/one/toxics", &json!({"type": "latency"})).status, 200);
    rig.post("/populate", &json!([one]));
    assert_eq!(rig.get("/proxies/one").json()["toxics"].as_array().unwrap().len(), 1);
    let mut other = one.clone();
    other["upstream"] = json!("127.0.0.1:10");
    rig.post("/populate", &json!([other]));
    let shown = rig.get("/proxies/one").json();
    assert_eq!((&shown["upstream"], &shown["toxics"]), (&json!("127.0.0.1:10"), &json!([])));
    // A failure midway keeps what was made before.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let blocked = json!({"name": "five", "listen": taken.local_addr().unwrap().to_string(), "upstream": "127.0.0.1:9"});
    let four = json!({"name": "four", "listen": "127.0.0.1:0", "upstream": "127.0.0.1:9"});
    let six = json!({"name": "six", "listen": "127.0.0.1:0", "upstream": "127.0.0.1:9"});
    let failed = rig.post("/populate", &json!([four, blocked, six]));
    assert_eq!((failed.status, names(&failed)), (500, vec!["four".to_owned()]));
    assert_eq!((rig.get("/proxies/four").status, rig.get("/proxies/six").status), (200, 404));
    assert_eq!(rig.post("/populate", &json!({"name": "x"})).status, 400);
}

pub fn c43_reset(rig: &Rig) {
    let up = upstream(echo);
    let path = rig.path("p", &up);
    let mut client = path.connect();
    path.toxic("latency", "downstream", json!({"latency": 10}));
    let off = rig.path_to("off", "127.0.0.1:9");
    off.change(&json!({"enabled": false}));
    let answer = rig.raw("POST", "/reset", "ignored");
    assert_eq!((answer.status, answer.body.as_str()), (204, ""));
    assert_eq!(path.shown()["toxics"], json!([]));
    assert_eq!(off.shown()["enabled"], json!(true));
    client.write_all(b"x").unwrap();
    assert_eq!(read_exact(&mut client, 1), b"x", "connections survive");
}

pub fn c45_c46_toxic_defaults(rig: &Rig) {
    let path = rig.path_to("p", "127.0.0.1:9");
    let answer = rig.post(&path.url("/toxics"), &json!({"type": "latency", "attributes": {"latency": null}}));
    assert_eq!(answer.status, 200, "not 201");
    let want = json!({"attributes": {"jitter": 0, "latency": 0}, "name": "latency_downstream", "type": "latency",
        "stream": "downstream", "toxicity": 1});
    assert_eq!(answer.json(), want);
    assert_eq!(rig.get(&path.url("/toxics/latency_downstream")).json(), want);
}

pub fn c47_c48_c49_order_of_checks(rig: &Rig) {
    let path = rig.path_to("p", "127.0.0.1:9");
    let add = |body: Value| rig.post(&path.url("/toxics"), &body);
    let stream = "stream was invalid, can be either upstream or downstream";
    refused(&add(json!({"type": "nonsense", "stream": ""})), 400, stream);
    refused(&add(json!({"type": "latency", "stream": "sideways"})), 400, stream);
    refused(&add(json!({"type": "nonsense"})), 400, "invalid toxic type");
    refused(&add(json!({})), 400, "invalid toxic type");
    refused(&add(json!({"type": "Latency"})), 400, "invalid toxic type");
    let shouted = add(json!({"type": "latency", "stream": "UpStream"}));
    assert_eq!((&shouted.json()["stream"], &shouted.json()["name"]), (&json!("UpStream"), &json!("latency_UpStream")));
    // A duplicate is found before its attributes are read.
    let twice = json!({"type": "latency", "name": "latency_UpStream", "attributes": {"latency": "x"}});
    refused(&add(twice), 409, "toxic already exists");
}

pub fn c50_names_of_toxics(rig: &Rig) {
    let path = rig.path_to("p", "127.0.0.1:9");
    let add = |body: Value| rig.post(&path.url("/toxics"), &body);
    assert_eq!(add(json!({"type": "latency", "name": "x"})).status, 200);
    refused(&add(json!({"type": "timeout", "name": "x", "stream": "upstream"})), 409, "toxic already exists");
    assert_eq!(add(json!({"type": "latency", "stream": "upstream"})).status, 200);
    assert_eq!(add(json!({"type": "latency", "stream": "downstream"})).status, 200);
}

pub fn c52_attribute_types(rig: &Rig) {
    let path = rig.path_to("p", "127.0.0.1:9");
    let status = |attributes: &str| {
        let body = format!(r#"{{"type":"latency","attributes":{attributes}}}"#);
        rig.raw("POST", &path.url("/toxics"), &body).status
    };
    for bad in [r#"{"latency":"100"}"#, r#"{"latency":1.5}"#, r#"{"latency":100.0}"#, "[]"] {
        assert_eq!(status(bad), 400, "{bad}");
    }
    if rig.strict() {
        // Taken by the real server, where they do nothing or something else.
        for bad in [r#"{"latancy":100}"#, r#"{"latency":-1}"#] {
            assert_eq!(status(bad), 400, "{bad}");
        }
        for bad in [json!({"type": "latency", "latency": 100}), json!({"type": "latency", "toxicity": 1.5})] {
            assert_eq!(rig.post(&path.url("/toxics"), &bad).status, 400, "{bad}");
        }
    }
    assert_eq!(path.shown()["toxics"], json!([]));
    assert_eq!(status("null"), 200);
}

pub fn c54_c55_lists_and_unknown_toxics(rig: &Rig) {
    let path = rig.path_to("p", "127.0.0.1:9");
    assert_eq!(rig.get(&path.url("/toxics")).json(), json!([]));
    for (name, stream) in [("d1", "downstream"), ("u1", "upstream"), ("d2", "downstream"), ("u2", "upstream")] {
        path.add(&json!({"name": name, "type": "latency", "stream": stream}));
    }
    let list = rig.get(&path.url("/toxics")).json();
    let names: Vec<&str> = list.as_array().unwrap().iter().map(|t| t["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["u1", "u2", "d1", "d2"]);
    refused(&rig.get(&path.url("/toxics/none")), 404, "toxic not found");
    refused(&path.patch("none", &json!({})), 404, "toxic not found");
    refused(&rig.delete(&path.url("/toxics/none")), 404, "toxic not found");
}

pub fn c56_c57_toxic_updates(rig: &Rig) {
    let path = rig.path_to("p", "127.0.0.1:9");
    path.toxic("latency", "downstream", json!({"latency": 5, "jitter": 2}));
    let answer = path.patch(
        "latency",
        &json!({"attributes": {"latency": 9}, "toxicity": 0.5, "name": "other",
        "type": "timeout", "stream": "upstream"}),
    );
    let want = json!({"attributes": {"jitter": 2, "latency": 9}, "name": "latency", "type": "latency",
        "stream": "downstream", "toxicity": 0.5});
    assert_eq!((answer.status, answer.json()), (200, want.clone()));
    assert_eq!(rig.post(&path.url("/toxics/latency"), &json!({})).json(), want, "an empty change is none");
    if rig.strict() {
        let bad = json!({"attributes": {"latency": 1, "jitter": "x"}, "toxicity": 0.1});
        assert_eq!(path.patch("latency", &bad).status, 400);
        assert_eq!(rig.get(&path.url("/toxics/latency")).json(), want, "all or nothing");
    }
}

pub fn c58_delete(rig: &Rig) {
    let path = rig.path_to("p", "127.0.0.1:9");
    path.toxic("latency", "downstream", json!({}));
    let answer = path.remove("latency");
    assert_eq!(answer.body, "");
    assert_eq!(path.shown()["toxics"], json!([]));
    path.toxic("latency", "upstream", json!({}));
}
