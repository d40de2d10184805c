//! The command line as its user meets it, and the rules of the house.

mod house;
#[cfg(test)]
mod serve;
#[cfg(test)]
mod serve_tls;
mod validate;
