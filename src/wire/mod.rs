//! `[P]` What is on the wire: OpenAI chat types (lenient, lossless), the SSE reader, the end states of a stream, tool-call
//! assembly, error shapes.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]
