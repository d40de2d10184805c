//! Real peers: the official OpenAI client, a real Toxiproxy.

#[cfg(test)]
mod drill;
#[cfg(test)]
mod openai;
#[cfg(test)]
mod others;
#[cfg(test)]
mod peer;
#[cfg(test)]
mod toxiproxy;
