//! CPU time and memory of this process, as the operating system counts them.

use std::fs;
use std::io;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Time that the CPUs have spent on this process, in user and kernel mode.
#[must_use]
pub fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    // Neither field is ever negative.
    let (secs, nanos) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    Duration::new(secs.unwrap_or_default(), nanos.unwrap_or_default())
}

/// Bytes of resident memory of this process. Blocks, for some microseconds.
///
/// # Errors
///
/// `/proc/self/status` cannot be read (only Linux has it), or has no `VmRSS` in kB.
pub fn resident_len() -> io::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    parse_resident_len(&status).ok_or_else(|| io::Error::other("/proc/self/status has no VmRSS in kB"))
}

fn parse_resident_len(status: &str) -> Option<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    value.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_takes_cpu_time_and_the_process_is_in_memory() {
        let before = cpu_time();
        let mut sum = 0_u64;
        while cpu_time() == before {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(cpu_time() > before);
        assert!(resident_len().unwrap() > 1 << 20);
    }

    #[test]
    fn the_resident_memory_is_read_from_its_line_alone() {
        assert_eq!(parse_resident_len("VmSize:\t 9 kB\nVmRSS:\t    1234 kB\nThreads:\t1\n"), Some(1234 * 1024));
        for other in ["", "VmSize:\t 9 kB\n", "VmRSS:\t x kB\n", "VmRSS:\t 12\n"] {
            assert_eq!(parse_resident_len(other), None, "{other}");
        }
    }
}
