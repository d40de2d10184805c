//! What is on the wire: streams as real providers send them, and what a client must get of them.

#[cfg(test)]
mod canary;
#[cfg(test)]
mod certs;
#[cfg(test)]
mod failover_table;
#[cfg(test)]
mod gateway;
#[cfg(test)]
mod gateway_adapters;
#[cfg(test)]
mod gateway_bodies;
#[cfg(test)]
mod gateway_capacity;
#[cfg(test)]
mod gateway_clients;
#[cfg(test)]
mod gateway_coded;
#[cfg(test)]
mod gateway_edge;
#[cfg(test)]
mod gateway_errors;
#[cfg(test)]
mod gateway_failover;
#[cfg(test)]
mod gateway_golden;
#[cfg(test)]
mod gateway_http2;
#[cfg(test)]
mod gateway_inband;
#[cfg(test)]
mod gateway_keep_alive;
#[cfg(test)]
mod gateway_leave;
#[cfg(test)]
mod gateway_ledger;
#[cfg(test)]
mod gateway_life;
#[cfg(test)]
mod gateway_masking;
#[cfg(test)]
mod gateway_observe;
#[cfg(test)]
mod gateway_orders;
#[cfg(test)]
mod gateway_pause;
#[cfg(test)]
mod gateway_ready;
#[cfg(test)]
mod gateway_reload;
#[cfg(test)]
mod gateway_replay;
#[cfg(test)]
mod gateway_tls;
#[cfg(test)]
mod gateway_trace;
#[cfg(test)]
mod gateway_types;
#[cfg(test)]
mod gateway_withhold;
#[cfg(test)]
mod h2mock;
#[cfg(test)]
mod http;
#[cfg(test)]
mod mock;
#[cfg(test)]
mod rig;
#[cfg(test)]
mod streams;
#[cfg(test)]
mod streams_calls;
#[cfg(test)]
mod streams_ends;
#[cfg(test)]
mod streams_masked;
#[cfg(test)]
mod streams_props;
