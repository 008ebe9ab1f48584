//! A journal: lines that one task appends to a file or to stdout. The audit log is the only
//! journal, so log messages call it by this name.
//!
//! The sender of a line does not wait for the disk. Lines that were sent before [`Journal::close`]
//! are written in the order of sending. A line that cannot be written, or does not fit into the
//! queue, is counted as lost. Of consecutive write errors the first one is logged.
//!
//! Lines are synced only by [`Journal::close`], so a power cut may lose the last ones. A crash may
//! leave a torn line, one without its end. The next start appends a newline to it.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write, stdout};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::blocking::Pool;
use super::task::TaskGroup;

/// Maximum number of queued lines. A busy server sends as many in some seconds. With about 400
/// bytes each they take 3 MiB.
const MAX_WAITING_COUNT: usize = 8192;

/// Maximum number of lines that are written at once.
const BATCH_COUNT: usize = 256;

/// Maximum time of [`Journal::close`], which normally takes milliseconds.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Where lines go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The stdout of this process.
    Stdout,
    /// The file at this path, created with mode 0600 if missing.
    File(PathBuf),
}

/// Counters of a journal.
#[derive(Clone, Debug, Default)]
pub struct JournalCounts {
    /// Lines written.
    pub written: Counter,
    /// Lines that were not written because of an error, a full queue, or a closed journal.
    pub lost: Counter,
}

/// The sender of lines. Clones are cheap and write to the same target.
#[derive(Clone, Debug)]
pub struct Journal {
    sender: mpsc::Sender<Message>,
    counts: JournalCounts,
}

#[derive(Debug)]
enum Message {
    /// A line to be written.
    Line(String),
    /// Reopen the file by its name.
    Reopen,
    /// Sync the file and end the task; then send.
    Close(oneshot::Sender<()>),
}

impl Journal {
    /// Opens the target, which blocks, and starts the task that writes to it. Lines that would make
    /// a file longer than `max_len` bytes are lost until [`reopen`](Self::reopen).
    ///
    /// # Errors
    ///
    /// The file cannot be opened for appending.
    pub fn open(target: Target, max_len: u64, counts: JournalCounts) -> io::Result<Self> {
        let (sender, receiver) = mpsc::channel(MAX_WAITING_COUNT);
        let sink = Sink::open(&target)?;
        let writer = Writer { target, sink, max_len, is_losing: false, counts: counts.clone() };
        // The task has a group of its own, which no shutdown waits for. If stdout is a pipe whose
        // reader does not read, a write can block forever.
        TaskGroup::new().spawn(write_all(receiver, writer));
        Ok(Self { sender, counts })
    }

    /// Sends a line, which must not contain or end with a newline. Does not wait.
    pub fn append(&self, line: String) {
        if self.sender.try_send(Message::Line(line)).is_err() {
            self.counts.lost.inc();
        }
    }

    /// Reopens the file by its name, after a rotation. Lines that were sent before this call go to
    /// the old file. If the file cannot be opened, the error is logged and the old file stays in
    /// use.
    pub async fn reopen(&self) {
        // The send fails if the journal is closed. Then it needs no new file.
        let _ = self.sender.send(Message::Reopen).await;
    }

    /// Waits until every line sent so far is written and synced, but no longer than 5 seconds. A
    /// pipe whose reader does not read must not block the end of the process. Lines that are sent
    /// later are counted as lost.
    pub async fn close(&self) {
        let close = async {
            let (done, closed) = oneshot::channel();
            if self.sender.send(Message::Close(done)).await.is_ok() {
                // An error means that the task has ended, so there is nothing to wait for.
                let _ = closed.await;
            }
        };
        if timeout(CLOSE_TIMEOUT, close).await.is_err() {
            tracing::error!("audit log writer stopped; its last lines are lost");
        }
    }
}

/// Appends one line to the file, and syncs the file. For a process that writes a single line.
/// Blocks. Other processes may append to the file at the same time.
///
/// # Errors
///
/// The file cannot be opened, written or synced. After a failed sync the line may be in the file.
pub fn append_one(path: &Path, line: &str) -> io::Result<()> {
    let mut sink = Sink::open_file(path)?;
    sink.append(format!("{line}\n").as_bytes(), u64::MAX)?;
    sink.sync()
}

/// The task of a journal. It ends after [`Journal::close`], or when all senders are dropped.
async fn write_all(mut receiver: mpsc::Receiver<Message>, mut writer: Writer) {
    let disk = Pool::new(1);
    let mut messages = Vec::with_capacity(BATCH_COUNT);
    while receiver.recv_many(&mut messages, BATCH_COUNT).await > 0 {
        let batch = std::mem::take(&mut messages);
        let closing;
        (writer, closing) = disk.run(move || writer.take(batch)).await;
        if let Some(done) = closing {
            // The send fails if `close` no longer waits.
            let _ = done.send(());
            return;
        }
    }
}

/// The part of the task that blocks, and so runs on a blocking thread.
struct Writer {
    target: Target,
    sink: Sink,
    max_len: u64,
    /// Whether the last write failed.
    is_losing: bool,
    counts: JournalCounts,
}

impl Writer {
    /// Handles the messages, up to a [`Message::Close`]. Returns its sender.
    fn take(mut self, messages: Vec<Message>) -> (Self, Option<oneshot::Sender<()>>) {
        let (mut text, mut count) = (String::new(), 0);
        for message in messages {
            match message {
                Message::Line(line) => {
                    text.push_str(&line);
                    text.push('\n');
                    count += 1;
                }
                Message::Reopen => {
                    self.append(&std::mem::take(&mut text), std::mem::take(&mut count));
                    match Sink::open(&self.target) {
                        Ok(sink) => self.sink = sink,
                        Err(error) => {
                            tracing::error!(%error, "cannot reopen the audit log; keeping the old file")
                        }
                    }
                }
                Message::Close(done) => {
                    self.append(&text, count);
                    if let Err(error) = self.sink.sync() {
                        tracing::warn!(%error, "cannot sync the audit log");
                    }
                    return (self, Some(done));
                }
            }
        }
        self.append(&text, count);
        (self, None)
    }

    /// Writes `count` lines and counts them, as written or as lost.
    fn append(&mut self, text: &str, count: u64) {
        if count == 0 {
            return;
        }
        match self.sink.append(text.as_bytes(), self.max_len) {
            Ok(()) => {
                self.counts.written.inc_by(count);
                if std::mem::take(&mut self.is_losing) {
                    tracing::info!("the audit log can be written again");
                }
            }
            Err(error) => {
                self.counts.lost.inc_by(count);
                if !std::mem::replace(&mut self.is_losing, true) {
                    tracing::error!(%error, "cannot write the audit log; lines are lost until this is fixed");
                }
            }
        }
    }
}

enum Sink {
    Stdout,
    File {
        file: File,
        /// Whether the last line of the file may lack its newline.
        is_torn: bool,
    },
}

impl Sink {
    fn open(target: &Target) -> io::Result<Self> {
        match target {
            Target::Stdout => Ok(Self::Stdout),
            Target::File(path) => Self::open_file(path),
        }
    }

    fn open_file(path: &Path) -> io::Result<Self> {
        let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
        let mut is_torn = false;
        if file.metadata()?.len() > 0 {
            let mut last = [0];
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
            is_torn = last != *b"\n";
        }
        Ok(Self::File { file, is_torn })
    }

    fn append(&mut self, text: &[u8], max_len: u64) -> io::Result<()> {
        match self {
            Self::Stdout => {
                let mut stdout = stdout().lock();
                stdout.write_all(text).and_then(|()| stdout.flush())
            }
            Self::File { file, is_torn } => {
                let len = file.metadata()?.len();
                if len.saturating_add(text.len() as u64) > max_len {
                    return Err(io::Error::other(format!(
                        "the file has reached its limit of {max_len} bytes; move \
                        it away and send SIGHUP"
                    )));
                }
                let end: &[u8] = if *is_torn { b"\n" } else { b"" };
                *is_torn = false;
                let written = file.write_all(end).and_then(|()| file.write_all(text));
                if written.is_err() {
                    // A full disk may have stored a part of the text. Cut this part off. If that
                    // fails, the next write first ends the torn line.
                    *is_torn = file.set_len(len).is_err() || !end.is_empty();
                }
                written
            }
        }
    }

    fn sync(&self) -> io::Result<()> {
        match self {
            Self::Stdout => Ok(()),
            Self::File { file, .. } => file.sync_data(),
        }
    }
}

#[cfg(test)]
mod tests;
