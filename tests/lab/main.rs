//! The laboratory and its parts over real sockets.

#[cfg(test)]
#[path = "../suite/example.rs"]
mod example;
#[cfg(test)]
mod fault;
#[cfg(test)]
mod fault_cli;
#[cfg(test)]
mod fault_ours;
#[cfg(test)]
mod fault_stuck;
#[cfg(test)]
mod lab_bad_gateway;
#[cfg(test)]
mod lab_load;
#[cfg(test)]
mod lab_up;
