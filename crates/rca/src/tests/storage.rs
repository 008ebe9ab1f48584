//! A storage that records the calls to it, and can fail at one of them.

use std::io::{self, Cursor, Read, Seek, SeekFrom, Write};

use crate::Storage;

/// A call that changes a storage or makes changes durable.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Write { at: u64, bytes: Vec<u8> },
    SetLen(u64),
    Sync,
}

/// Applies a call to `data`. Of a write, applies at most the first `torn` bytes.
pub(super) fn apply(data: &mut Vec<u8>, op: &Op, torn: usize) {
    match op {
        Op::Write { at, bytes } => {
            let (at, bytes) = (usize::try_from(*at).unwrap(), &bytes[..bytes.len().min(torn)]);
            data.resize(data.len().max(at + bytes.len()), 0);
            data[at..at + bytes.len()].copy_from_slice(bytes);
        }
        Op::SetLen(len) => data.resize(usize::try_from(*len).unwrap(), 0),
        Op::Sync => {}
    }
}

/// A storage in memory that records calls and fails the one with index `fail_at`.
#[derive(Debug)]
pub(super) struct Recorder {
    pub(super) data: Cursor<Vec<u8>>,
    pub(super) ops: Vec<Op>,
    pub(super) fail_at: usize,
}

impl Recorder {
    pub(super) fn new(data: Vec<u8>) -> Self {
        Recorder { data: Cursor::new(data), ops: Vec::new(), fail_at: usize::MAX }
    }

    fn record(&mut self, op: Op) -> io::Result<()> {
        if self.ops.len() == self.fail_at {
            return Err(io::Error::other("the disk is gone"));
        }
        self.ops.push(op);
        Ok(())
    }
}

impl Read for Recorder {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.data.read(buf)
    }
}

impl Write for Recorder {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.record(Op::Write { at: self.data.position(), bytes: bytes.to_vec() })?;
        self.data.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for Recorder {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.data.seek(to)
    }
}

impl Storage for Recorder {
    fn set_len(&mut self, len: u64) -> io::Result<()> {
        self.record(Op::SetLen(len))?;
        self.data.set_len(len)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.record(Op::Sync)
    }
}
