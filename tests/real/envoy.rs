//! A real Envoy beside the gateway: `llmfo bench gateway`, in small. What its figures are is not judged here.

use std::process::Command;

use serde_json::Value;

use crate::peer;

#[test]
fn the_gateway_is_measured_beside_envoy() {
    let Some(envoy) = peer::program("Envoy", "LLMFO_ENVOY") else { return };
    let temporary = tempfile::tempdir().unwrap();
    let out = Command::new(env!("CARGO_BIN_EXE_llmfo"))
        .args(["bench", "gateway", "--rounds", "1", "--seconds", "1", "--idle-streams", "0", "--format", "json"])
        .env("LLMFO_ENVOY", &envoy)
        .env("TMPDIR", temporary.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    // One round is no verdict, however it went.
    assert_eq!(out.status.code(), Some(5), "{said}");
    let got: Value = serde_json::from_slice(&out.stdout).unwrap();
    println!("Envoy {}: {}", got["envoy"], got["vs_envoy"]);
    for name in ["rps_c32", "cpu_per_1k", "ttft_stream", "cpu_stream", "cpu_history"] {
        assert!(got["vs_envoy"][name].as_f64().is_some_and(|v| v > 0.0), "{name}: {}", got["vs_envoy"]);
    }
    // Of a round in which noise was larger than what Envoy adds, it says nothing.
    assert!(got["vs_envoy"].get("added_p50_c1").is_some());
    for (cell, sides) in got["absolute"].as_object().unwrap() {
        for side in ["direct", "envoy", "gateway"] {
            let told = &sides[side];
            assert!(told["answers"].as_u64().unwrap() > 0 && told["bad"] == 0, "{cell} {side}: {told}");
        }
    }
    assert!(std::fs::read_dir(temporary.path()).unwrap().next().is_none(), "something is left behind");
}
