//! Tests of the whole core, driven as the gateway drives it.

mod bugs;
mod degradation;
mod flow;
mod golden;
mod half_open;
mod hedging;
mod ledger;
mod ledger_props;
mod observe;
mod properties;
mod recovery;
mod select;
mod shares;
mod succession;
mod waiting;
