//! File descriptors: their limit, and the number of open ones.

use std::io;
use std::path::Path;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A directory with one entry per open descriptor of this process.
const OPEN: &str = "/dev/fd";

/// Raises the soft limit of this process to its hard limit, and returns it. Service managers start
/// programs with a soft limit of 1024, because `select` cannot handle more.
#[must_use]
pub fn raise_limit() -> usize {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // If the system refuses the new limit, the present one stays.
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    let limit = if raised.is_ok() { maximum } else { current };
    limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// The number of open descriptors. Blocks, for some microseconds.
///
/// # Errors
///
/// The directory cannot be read.
pub fn open_count() -> io::Result<usize> {
    // The open directory has a descriptor, too, which does not count.
    Ok(Path::new(OPEN).read_dir()?.count().saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_files_are_counted() {
        let before = open_count().unwrap();
        // Other tests open and close files meanwhile, but not as many.
        let files: Vec<_> = (0..500).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
        let after = open_count().unwrap();
        assert!(after > before + 250, "{before}, then {after}");
        drop(files);
        assert!(open_count().unwrap() < after - 250);
        assert!(raise_limit() >= after);
    }
}
