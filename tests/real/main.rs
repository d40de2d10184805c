//! Real peers: the official OpenAI client, a real Toxiproxy.

mod drill;
mod openai;
mod peer;
mod toxiproxy;
