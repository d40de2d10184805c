//! What Linux says about a process: CPU time and resident memory.

use std::fs;

/// CPU seconds, user and system, of all threads of a process, those that have ended included. The kernel tells them in ticks of
/// a hundredth of a second, made from exact run times.
#[must_use]
pub fn cpu_s(pid: u32) -> Option<f64> {
    cpu_of(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn cpu_of(stat: &str) -> Option<f64> {
    // The name in parentheses may hold spaces; what follows the last one begins with field 3, and user time is field 14.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    let all = ticks()? + ticks()?;
    Some(all as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Resident memory (VmRSS) in MB of 1,000,000 bytes.
#[must_use]
pub fn resident_mb(pid: u32) -> Option<f64> {
    resident_of(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

fn resident_of(status: &str) -> Option<f64> {
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024.0 / 1e6)
}

/// The machine in one line: cores, processor, kernel.
#[must_use]
pub fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus.lines().find_map(|l| l.strip_prefix("model name")).and_then(|l| l.split(':').nth(1));
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let line = format!("{cores} cores, {}, Linux {}", model.unwrap_or("unknown processor").trim(), kernel.trim());
    crate::units::printable(&line, 200)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_behind_the_name() {
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194304 10 0 0 0 150 50 7 8 20 0 3 0 99 1 2";
        assert_eq!(cpu_of(stat), Some(200.0 / ticks));
        assert_eq!(cpu_of("42 (a) S 1"), None);
        assert_eq!(resident_of("Name:\tx\nVmRSS:\t   20000 kB\n"), Some(20.48));
    }

    #[test]
    fn this_process_has_used_time_and_memory() {
        let pid = std::process::id();
        assert!(resident_mb(pid).unwrap() > 1.0 && cpu_s(pid).is_some());
        assert_eq!(cpu_s(4_194_305), None, "no process has this number");
    }
}
