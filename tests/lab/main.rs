//! The laboratory and its parts over real sockets.

#[cfg(test)]
mod lab_bad_gateway;
#[cfg(test)]
mod lab_load;
#[cfg(test)]
mod lab_up;
