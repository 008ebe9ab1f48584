//! The end of a command.

use std::process::{Child, Output};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// Longest run of a command. A start that had to be refused, and was not, is killed then: a test fails and does not hang.
const LIMIT: Duration = Duration::from_secs(300);

/// What a command has printed, and how it has ended.
pub fn output_of(child: Child) -> Output {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a process id is positive");
    let (ended, end) = mpsc::channel::<()>();
    let watch = thread::spawn(move || {
        if end.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
            // It may have ended just now.
            let _ = kill_process(pid, Signal::KILL);
        }
    });
    let output = child.wait_with_output().expect("the command is a child of this process");
    drop(ended);
    watch.join().expect("the watch does not panic");
    output
}
