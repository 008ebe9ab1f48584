//! File descriptors: how many there may be, and how many there are.

use std::io;
use std::path::Path;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What is open in this process, one entry each.
const OPEN: &str = "/dev/fd";

/// Raises the limit of this process as far as it may itself, and returns it. Service managers start
/// programs with a limit of 1024 for the sake of those that use `select`.
#[must_use]
pub fn raise_limit() -> usize {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // Where that is refused, what there is has to do.
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    let limit = if raised.is_ok() { maximum } else { current };
    limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// How many are open. Blocks, for some microseconds.
///
/// # Errors
///
/// The system does not tell.
pub fn open_count() -> io::Result<usize> {
    // One of them is that of the directory that is read.
    Ok(Path::new(OPEN).read_dir()?.count().saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_opened_is_counted() {
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
