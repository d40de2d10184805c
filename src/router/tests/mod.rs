//! Tests of the whole core, driven as the gateway drives it.

mod bugs;
mod flow;
mod half_open;
mod properties;
mod recovery;
mod select;
