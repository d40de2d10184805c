//! Real peers: the official OpenAI client, a real Toxiproxy, a real Envoy.

#[cfg(test)]
mod drill;
#[cfg(test)]
mod envoy;
#[cfg(test)]
mod openai;
#[cfg(test)]
mod others;
#[cfg(test)]
mod peer;
#[cfg(test)]
mod toxiproxy;
