//! The command line as its user meets it, and the rules of the house.

#[cfg(test)]
mod advice;
#[cfg(test)]
mod bench;
#[cfg(test)]
mod house;
#[cfg(test)]
mod keys;
#[cfg(test)]
mod kinds;
#[cfg(test)]
mod ledger;
#[cfg(test)]
mod observe;
#[cfg(test)]
mod open_files;
#[cfg(test)]
mod pipes;
#[cfg(test)]
mod planted;
#[cfg(test)]
mod policy_page;
#[cfg(test)]
mod policy_tests;
#[cfg(test)]
mod serve;
#[cfg(test)]
mod serve_signals;
#[cfg(test)]
mod serve_tls;
#[cfg(test)]
mod simulate;
#[cfg(test)]
mod validate;
#[cfg(test)]
mod width;
