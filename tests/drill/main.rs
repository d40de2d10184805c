//! Drills with the real binary over real sockets. One at a time: they measure time, and a drill beside another one would
//! measure the machine.

#[cfg(test)]
mod apart;
#[cfg(test)]
mod bad;
#[cfg(test)]
mod commands;
#[cfg(test)]
#[path = "../suite/example.rs"]
mod example;
#[cfg(test)]
mod good;
#[cfg(test)]
mod safety;
#[cfg(test)]
mod safety_lab;
#[cfg(test)]
mod stage;
#[cfg(test)]
mod target;
#[cfg(test)]
mod whose;
