//! Tests of the whole core, driven as the gateway drives it.

mod flow;
