//! What is on the wire: streams as real providers send them, and what a client must get of them.

#[cfg(test)]
mod gateway;
#[cfg(test)]
mod gateway_edge;
#[cfg(test)]
mod gateway_failover;
#[cfg(test)]
mod gateway_life;
#[cfg(test)]
mod http;
#[cfg(test)]
mod mock;
mod rig;
mod streams;
mod streams_calls;
mod streams_ends;
mod streams_props;
