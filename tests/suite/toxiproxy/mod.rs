//! One black-box suite for Toxiproxy-compatible servers: HTTP and raw sockets only. It runs against the embedded server
//! (profile strict) and, where one is present, against a real Toxiproxy 2.12 (profile stock). Names follow the checklist of
//! measured behaviour: c60 is "no toxics: byte-exact both ways".
//!
//! A time is asserted from below exactly (nothing may come early) and from above generously: the machine is shared.

pub mod api;
pub mod data;
pub mod ends;
pub mod net;
pub mod rig;
pub mod safe;

/// Calls a macro with the names of all checks that both profiles run.
macro_rules! toxiproxy_checks {
    ($each:ident) => {
        $each! {
            api::c01_version_is_one_json_object,
            api::c02_routed_answers_carry_a_request_id,
            api::c03_browsers_are_refused,
            api::c04_unknown_paths,
            api::c05_wrong_methods,
            api::c06_doubled_slashes_redirect,
            api::c07_errors_are_json_in_plain_text,
            api::c08_c09_bodies_are_read_leniently,
            api::c16_listing,
            api::c17_c22_create_shows_the_chosen_port,
            api::c18_bad_bodies,
            api::c19_required_fields,
            api::c20_same_name_conflicts_and_opens_no_port,
            api::c21_taken_port,
            api::c23_created_disabled_binds_nothing,
            api::c27_unknown_proxies,
            api::c28_updates_merge,
            api::c29_disable_refuses_closes_and_keeps_toxics,
            api::c30_a_new_upstream_closes_connections_and_keeps_toxics,
            api::c31_update_to_a_taken_port,
            api::c32_unparsable_listen_changes_nothing,
            api::c34_delete_closes_everything,
            api::c35_to_c42_populate,
            api::c43_reset,
            api::c45_c46_toxic_defaults,
            api::c47_c48_c49_order_of_checks,
            api::c50_names_of_toxics,
            api::c52_attribute_types,
            api::c54_c55_lists_and_unknown_toxics,
            api::c56_c57_toxic_updates,
            api::c58_delete,
            data::c60_bytes_pass_exactly,
            data::c61_toxics_act_on_open_connections,
            data::c62_latency_keeps_chunks_pipelined,
            data::c63_delays_add_up,
            data::c64_jitter_stays_in_its_bounds,
            data::c65_removing_latency_delivers_at_once,
            data::c66_bandwidth_is_per_connection,
            data::c67_bandwidth_zero_heals,
            data::c68_slow_close_delays_the_close,
            data::c72_slicer_cuts_and_keeps_the_bytes,
            ends::c69_timeout_zero_swallows,
            ends::c70_timeout_is_an_idle_timer,
            ends::c71_reset_peer_resets_what_was_opened_under_it,
            ends::c71_reset_peer_closes_what_was_opened_before,
            ends::c73_limit_data_passes_exactly,
            ends::c74_limit_data_upstream_closes_all,
            ends::c75_lowered_limit_closes_at_the_next_chunk,
            ends::c76_toxicity_is_a_share_of_connections,
            ends::c78_a_refused_upstream_closes_the_client,
            safe::the_client_checks_status_body_and_effect,
            safe::faults_are_seen_as_named_and_restored,
            safe::a_run_that_was_killed_is_undone_from_its_log,
            safe::a_proxy_that_is_gone_is_made_again,
            safe::nothing_is_injected_that_cannot_be_written_down,
            safe::a_fault_may_be_lifted_and_come_again,
            safe::the_guard_restores_when_its_pipe_ends_or_falls_silent,
        }
    };
}

pub(crate) use toxiproxy_checks;
