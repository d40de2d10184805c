//! Real peers: the official OpenAI client, a real Toxiproxy.

mod openai;
mod peer;
#[cfg(test)]
mod toxiproxy;
