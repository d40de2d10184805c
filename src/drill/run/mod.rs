//! Carrying out a drill on real sockets.

pub mod children;
pub mod embedded;
pub mod journal;
pub mod lab;
pub mod leftovers;
pub mod lock;
pub mod safety;
pub mod signals;
