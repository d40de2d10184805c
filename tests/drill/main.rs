//! Drills with the real binary over real sockets. One at a time: they measure time, and a drill beside another one would
//! measure the machine.

mod bad;
mod commands;
mod good;
mod safety;
mod stage;
