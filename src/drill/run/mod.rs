//! Carrying out a drill on real sockets.

pub mod children;
pub mod lab;
pub mod lock;
pub mod signals;
