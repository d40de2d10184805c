//! The time line of rows: CLOCK_MONOTONIC, which is one and the same for all processes of a machine.

use rustix::time::{ClockId, clock_gettime};

/// Milliseconds of CLOCK_MONOTONIC. The runner of a drill subtracts its own start.
#[must_use]
pub fn monotonic_ms() -> f64 {
    let t = clock_gettime(ClockId::Monotonic);
    t.tv_sec as f64 * 1e3 + t.tv_nsec as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_only_grows() {
        let a = monotonic_ms();
        let b = monotonic_ms();
        assert!(b >= a && a > 0.0);
    }
}
