//! Requests whose members have a wrong type, and error bodies that nobody can read.

use crate::gateway::Rig;
use crate::http::chat;
use crate::mock::{Mock, Then, good};

fn with(member: &str) -> String {
    let messages = r#""messages":[{"role":"user","content":"hello"}]"#;
    if member.starts_with("\"messages\"") {
        format!(r#"{{"model":"chat",{member}}}"#)
    } else {
        format!(r#"{{"model":"chat",{member},{messages}}}"#)
    }
}

#[test]
fn a_member_of_a_wrong_type_is_the_callers_fault_and_nobody_elses() {
    // A lenient provider: whatever is not nothing is a wish for a stream, and `n` of 0 gives no choice.
    let lenient = || {
        Mock::start(|seen, w| {
            let stream = &seen.json()["stream"];
            if stream.is_null() || stream == false {
                return good("alpha")(seen, w);
            }
            w.stream_head();
            w.chunk("data: {\"choices\":[]}\n\ndata: [DONE]\n\n");
            w.end();
            Then::KeepAlive
        })
    };
    let (a, b) = (lenient(), lenient());
    let rig = Rig::new(&[("a", a.address), ("b", b.address)]);
    for (param, member) in [
        ("stream", r#""stream":1"#),
        ("stream", r#""stream":"true""#),
        ("stream", r#""stream":[]"#),
        ("stream_options", r#""stream":false,"stream_options":{"include_usage":1}"#),
        ("n", r#""n":0"#),
        ("n", r#""n":"2""#),
        ("n", r#""n":129"#),
        ("messages", r#""messages":"hello""#),
        ("messages", r#""messages":["hello"]"#),
        ("tools", r#""tools":{"name":"get_order"}"#),
        ("response_format", r#""response_format":"json_schema""#),
    ] {
        let got = chat(rig.listen, &with(member), &[]);
        assert_eq!((got.status, got.code().as_str()), (400, "invalid_request"), "{member}: {}", got.text());
        let error = &got.json()["error"];
        assert_eq!((&error["param"], &error["type"]), (&param.into(), &"invalid_request_error".into()), "{member}");
        assert!(error["message"].as_str().unwrap().contains(&format!("`{param}` must be ")), "{member}: {error}");
    }
    assert_eq!((a.asked(), b.asked()), (0, 0));
    for member in [r#""stream":null"#, r#""stream":false,"n":null,"tools":null,"stream_options":null"#] {
        let got = chat(rig.listen, &with(member), &[]);
        assert_eq!((got.status, got.header("x-llmfo-target")), (200, Some("a")), "{member}: {}", got.text());
    }
    for target in ["a", "b"] {
        assert_eq!(rig.target(target)["state"], "serving");
        assert_eq!(rig.target(target)["counters"]["failed_counted"], 0);
    }
}

#[test]
fn b041_an_error_body_under_a_codec_that_nobody_asked_for_blames_no_caller() {
    for status in ["400 Bad Request", "404 Not Found", "413 Too Large", "422 Odd", "429 Too Many", "500 Down"] {
        for codec in ["gzip", "br", "zstd", "identity, gzip"] {
            let a = Mock::start(move |_, w| {
                let header = format!("content-encoding: {codec}\r\n");
                w.answer_with(status, "application/json", &header, b"\x1f\x8b\x08\x00 no words");
                Then::KeepAlive
            });
            let b = Mock::start(good("bravo"));
            let rig = Rig::new(&[("a", a.address), ("b", b.address)]);
            for got in [rig.stream(), rig.plain()] {
                let what = format!("{status}, {codec}: {}", got.text());
                assert_eq!((got.status, got.header("x-llmfo-target")), (200, Some("b")), "{what}");
            }
        }
    }
    // What was cut off inside its coding blames no caller either.
    let a = Mock::start(|_, w| {
        w.answer_with("400 Bad Request", "application/json", "content-encoding: gzip\r\n", b"\x1f\x8b\x08");
        Then::KeepAlive
    });
    let b = Mock::start(good("bravo"));
    let rig = Rig::new(&[("a", a.address), ("b", b.address)]);
    let got = rig.stream();
    let first = &rig.decision(&got)["attempts"][0];
    assert_eq!((&first["class"], &first["reason"]), (&"provider".into(), &"reset".into()));
}
