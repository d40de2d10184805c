//! What is on the wire: streams as real providers send them, and what a client must get of them.

mod gateway;
mod gateway_edge;
mod gateway_failover;
mod gateway_life;
mod http;
mod mock;
mod rig;
mod streams;
mod streams_calls;
mod streams_ends;
mod streams_props;
