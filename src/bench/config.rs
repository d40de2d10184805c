//! What the gateway and Envoy are started with: the same two tiers, the same limits, a line for each request on disk.

use std::net::SocketAddr;
use std::path::Path;

use super::cells;

/// The model that clients name, and the route.
pub const MODEL: &str = "bench";

/// The bench policy. `idle_ms`: how long a stream may be silent.
#[must_use]
pub fn policy(primary: SocketAddr, stand_in: SocketAddr, idle_ms: u64) -> String {
    let tools: Vec<String> = cells::tool_names();
    let kinds: Vec<String> = tools
        .iter()
        .map(|name| match name.as_str() {
            cells::KEYED_TOOL => format!("  {name}: {{ side_effects: keyed, key_argument: operation_id }}\n"),
            _ => format!("  {name}: {{ side_effects: none }}\n"),
        })
        .collect();
    let target = |name: &str, at: SocketAddr| {
        format!(
            "  {name}:\n    base_url: http://{at}/v1\n    model: bench-model\n    tier: standard\n    \
             domains: {{ region: {name}, quota: {name} }}\n    \
             capabilities: {{ tools: true, json_schema: strict, vision: false, context_tokens: 128000 }}\n    \
             capacity: {{ slots: 4096, mean_service_ms: 300, p95_service_ms: 400, basis: verified, verified_on: 2026-11-30 }}\n"
        )
    };
    format!(
        "version: bench-1\nserial: 1\nexpires: 2100-01-01T00:00:00Z\ntargets:\n{}{}\
         pools:\n  first: {{ targets: [primary], select: priority }}\n  second: {{ targets: [stand-in], select: priority }}\n\
         tools:\n{}\
         routes:\n  - route: {MODEL}\n    channel: chat\n    data: none\n    tools: [{}]\n    \
         deadline_ms: 20000\n    reserve_ms: 500\n    max_attempts: 3\n    connect_timeout_ms: 1000\n    \
         idle_timeout_ms: {idle_ms}\n    same_target_retries: 0\n    commit_at: first_token\n    attempts:\n      \
         - {{ pool: first, first_token_timeout_ms: 2000, answer_timeout_ms: 2000, pii: allowed }}\n      \
         - {{ pool: second, first_token_timeout_ms: 2000, answer_timeout_ms: 2000, pii: allowed }}\n    \
         after_stream_started: return_controlled_error\n    on_all_failed: {{ handoff: human, correlation_id: true }}\n\
         breaker: {{ consecutive_failures: 3, failures_in_window: 5, failure_ratio: 0.2, window_s: 60, base_cooldown_s: 5, max_cooldown_s: 120, half_open_successes: 2 }}\n",
        target("primary", primary),
        target("stand-in", stand_in),
        kinds.concat(),
        tools.join(", "),
    )
}

/// Envoy's configuration. Its limits of concurrent work are raised so that they are never what is measured.
#[must_use]
pub fn envoy(listen: SocketAddr, primary: SocketAddr, stand_in: SocketAddr, access_log: &Path) -> String {
    let endpoint = |priority: u32, at: SocketAddr| {
        format!(
            "      - priority: {priority}\n        lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: {}, port_value: {}}}}}}}}}]\n",
            at.ip(),
            at.port()
        )
    };
    // JSON is YAML: whatever stands in the path is quoted right.
    let log = serde_json::Value::from(access_log.display().to_string());
    format!(
        r#"static_resources:
  listeners:
  - name: front
    address: {{socket_address: {{address: {}, port_value: {}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: front
          access_log:
          - name: envoy.access_loggers.file
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog
              path: {log}
              log_format:
                json_format: {{time: "%START_TIME%", id: "%REQ(X-REQUEST-ID)%", method: "%REQ(:METHOD)%", path: "%REQ(:PATH)%", status: "%RESPONSE_CODE%", flags: "%RESPONSE_FLAGS%", received: "%BYTES_RECEIVED%", sent: "%BYTES_SENT%", duration_ms: "%DURATION%", upstream: "%UPSTREAM_HOST%", attempts: "%UPSTREAM_REQUEST_ATTEMPT_COUNT%"}}
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:
              - match: {{prefix: "/"}}
                route:
                  cluster: models
                  timeout: 60s
                  retry_policy:
                    retry_on: "5xx,connect-failure,reset,retriable-status-codes"
                    retriable_status_codes: [429]
                    num_retries: 2
                    per_try_timeout: 2s
                    retry_back_off: {{base_interval: 0.025s}}
                    retry_priority:
                      name: envoy.retry_priorities.previous_priorities
                      typed_config:
                        "@type": type.googleapis.com/envoy.extensions.retry.priority.previous_priorities.v3.PreviousPrioritiesConfig
                        update_frequency: 1
  clusters:
  - name: models
    type: STATIC
    connect_timeout: 1s
    common_lb_config: {{healthy_panic_threshold: {{value: 0}}}}
    outlier_detection: {{max_ejection_percent: 100}}
    circuit_breakers: {{thresholds: [{{max_connections: 8192, max_pending_requests: 8192, max_requests: 8192, max_retries: 128}}]}}
    load_assignment:
      cluster_name: models
      endpoints:
{}{}"#,
        listen.ip(),
        listen.port(),
        endpoint(0, primary),
        endpoint(1, stand_in),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_is_one_that_may_be_served() {
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let text = policy(at(1), at(2), 60_000);
        let (policy, found) = crate::policy::load("bench.yaml", text.as_bytes());
        let policy = policy.unwrap_or_else(|| panic!("{found:#?}\n{text}"));
        assert_eq!(policy.routes[0].tiers.len(), 2);
        assert_eq!(policy.target_named("stand-in").unwrap().base_url, "http://127.0.0.1:2/v1");
    }
}
