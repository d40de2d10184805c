//! Real peers: the official OpenAI client, a real Toxiproxy.

mod openai;
mod peer;
mod toxiproxy;
