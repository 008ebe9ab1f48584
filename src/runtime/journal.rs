//! Lines that are appended to a file, or to stdout, by one task.
//!
//! The sender of a line does not wait for the disk. A line that was sent before [`Journal::close`]
//! is written completely or not at all, in the order of sending; a line that cannot be written, or
//! exceeds the queue, is counted as lost, and the first of consecutive losses is logged. Lines are
//! not synced one by one: a power cut may lose the last ones. The next start terminates a torn
//! line.

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

/// Lines that may wait to be written: some seconds of a busy server, at about 400 bytes each 3 MiB.
const MAX_WAITING_COUNT: usize = 8192;

/// Lines that are written at once.
const BATCH_COUNT: usize = 256;

/// How long the last lines may take, as [`Journal::close`] says: a disk takes milliseconds.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Where lines go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The process's stdout.
    Stdout,
    /// This file, which is made where it is not there, readable by its owner only.
    File(PathBuf),
}

/// What is counted.
#[derive(Clone, Debug, Default)]
pub struct JournalCounts {
    /// Lines written.
    pub written: Counter,
    /// Lines that are not in the journal and should be.
    pub lost: Counter,
}

/// Takes lines. Cloning it is cheap, and all clones write to the same place.
#[derive(Clone, Debug)]
pub struct Journal {
    sender: mpsc::Sender<Message>,
    counts: JournalCounts,
}

#[derive(Debug)]
enum Message {
    Queue(String),
    Reopen,
    Close(oneshot::Sender<()>),
}

impl Journal {
    /// Opens the target, and starts the task that writes to it. Blocks for the time of that. A file
    /// that would be longer than `max_len` bytes takes no more lines until it is opened anew.
    ///
    /// # Errors
    ///
    /// The file cannot be opened for appending.
    pub fn open(target: Target, max_len: u64, counts: JournalCounts) -> io::Result<Self> {
        let (sender, receiver) = mpsc::channel(MAX_WAITING_COUNT);
        let sink = Sink::open(&target)?;
        let writer = Writer { target, sink, max_len, is_losing: false, counts: counts.clone() };
        // In a group of its own: a pipe without a reader can block it forever, and a shutdown must
        // not wait for that.
        TaskGroup::new().spawn(write_all(receiver, writer));
        Ok(Self { sender, counts })
    }

    /// Hands over a line, which must be without its end and without any other end of a line.
    pub fn append(&self, line: String) {
        if self.sender.try_send(Message::Queue(line)).is_err() {
            self.counts.lost.inc();
        }
    }

    /// Reopens the file by its name, after a rotation. Lines sent before go to the old file. A
    /// failure is logged, and the old file stays in use.
    pub async fn reopen(&self) {
        // A closed journal needs no new file.
        let _ = self.sender.send(Message::Reopen).await;
    }

    /// Waits until every line sent so far is written and synced, but no longer than 5 seconds: a
    /// pipe without a reader must not block the end of the process. Later lines are lost, and
    /// counted.
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

/// Appends one line to the file, and syncs it: for a process that has no more than that to say.
/// Blocks. Others may append to the same file at the same time.
///
/// # Errors
///
/// The file cannot be opened or written; then the line is not in it.
pub fn append_one(path: &Path, line: &str) -> io::Result<()> {
    let mut sink = Sink::open_file(path)?;
    sink.append(format!("{line}\n").as_bytes(), u64::MAX)?;
    sink.sync()
}

async fn write_all(mut receiver: mpsc::Receiver<Message>, mut writer: Writer) {
    let disk = Pool::new(1);
    let mut messages = Vec::with_capacity(BATCH_COUNT);
    while receiver.recv_many(&mut messages, BATCH_COUNT).await > 0 {
        let batch = std::mem::take(&mut messages);
        let closing;
        (writer, closing) = disk.run(move || writer.take(batch)).await;
        if let Some(done) = closing {
            // The waiter may have been dropped.
            let _ = done.send(());
            return;
        }
    }
}

/// The blocking half.
struct Writer {
    target: Target,
    sink: Sink,
    max_len: u64,
    /// The last line was lost.
    is_losing: bool,
    counts: JournalCounts,
}

impl Writer {
    /// Does what the messages say, up to one that closes.
    fn take(mut self, messages: Vec<Message>) -> (Self, Option<oneshot::Sender<()>>) {
        let (mut text, mut count) = (String::new(), 0);
        for message in messages {
            match message {
                Message::Queue(line) => {
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
        /// Its last line may have no end.
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
                    // A full disk has taken a part of it, which must not become the beginning of
                    // the next line.
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
