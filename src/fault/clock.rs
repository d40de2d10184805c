//! The clocks of this machine, for what crosses processes.

use rustix::time::{ClockId, clock_gettime};

fn read(clock: ClockId) -> u64 {
    let t = clock_gettime(clock);
    let (s, ns) = (u64::try_from(t.tv_sec).unwrap_or(0), u64::try_from(t.tv_nsec).unwrap_or(0));
    s.saturating_mul(1000) + ns / 1_000_000
}

/// Milliseconds of the monotonic clock: the same for all processes of a machine.
#[must_use]
pub fn monotonic_ms() -> u64 {
    read(ClockId::Monotonic)
}

/// Milliseconds of a clock that also runs while the machine is suspended (where the system has one).
#[must_use]
pub fn boot_ms() -> u64 {
    #[cfg(target_os = "linux")]
    let clock = ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    let clock = ClockId::Monotonic;
    read(clock)
}

/// Milliseconds since 1970.
#[must_use]
pub fn wall_ms() -> u64 {
    read(ClockId::Realtime)
}
