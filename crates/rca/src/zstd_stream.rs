//! zstd as an archive uses it: one frame per session, never ended, flushed after every blob.
//!
//! A frame's header is in front of the first flush. Each flush ends a block, so what was
//! compressed up to it can be decompressed, while later input still finds matches in the window
//! (2 MiB at level 3). No block says that it is the last, no checksum follows, no content size is
//! known: the concatenated output is an unfinished frame, which one-shot decoders refuse.

use std::fmt;
use std::io;

use zstd::stream::raw::{CParameter, DParameter, Decoder, Encoder, InBuffer, Operation, OutBuffer};

use super::limits::{MAX_WINDOW_LOG, MIN_WINDOW_LOG};

/// Compresses blobs with one state from blob to blob.
pub struct ZstdCompressor {
    encoder: Encoder<'static>,
}

impl fmt::Debug for ZstdCompressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZstdCompressor").finish_non_exhaustive()
    }
}

impl ZstdCompressor {
    /// A fresh state. `level` is zstd's (the reference uses 3); `window_log` overrides the
    /// level's window, as a binary logarithm of bytes from 10 to 27. Higher levels choose windows
    /// of at most 27 themselves.
    ///
    /// # Errors
    /// `InvalidInput` for a window outside that range; else what zstd says.
    pub fn new(level: i32, window_log: Option<u32>) -> io::Result<Self> {
        let mut encoder = Encoder::new(level)?;
        if let Some(log) = window_log {
            check_window(log)?;
            encoder.set_parameter(CParameter::WindowLog(log))?;
        }
        Ok(ZstdCompressor { encoder })
    }

    /// Compresses `input`; available output is appended to `out`, the rest stays buffered.
    ///
    /// # Errors Errors of zstd; the state is unusable afterwards.
    pub fn compress(&mut self, input: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        let mut input = InBuffer::around(input);
        while input.pos() < input.src.len() {
            self.step(out, |encoder, out| encoder.run(&mut input, out))?;
        }
        Ok(())
    }

    /// Ends the block: appends to `out` everything needed to decompress the input so far.
    ///
    /// # Errors Errors of zstd; the state is unusable afterwards.
    pub fn flush(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        while self.step(out, |encoder, out| encoder.flush(out))? > 0 {}
        Ok(())
    }

    /// Forgets everything: the next output begins a new frame.
    ///
    /// # Errors
    /// What zstd says.
    pub fn reset(&mut self) -> io::Result<()> {
        self.encoder.reinit()
    }

    fn step(
        &mut self,
        out: &mut Vec<u8>,
        run: impl FnOnce(&mut Encoder<'static>, &mut OutBuffer<'_, Vec<u8>>) -> io::Result<usize>,
    ) -> io::Result<usize> {
        out.reserve(zstd::zstd_safe::CCtx::out_size());
        let pos = out.len();
        run(&mut self.encoder, &mut OutBuffer::around_pos(out, pos))
    }
}

/// Decompresses what a [`ZstdCompressor`] or anything else that writes zstd frames has made.
pub struct ZstdDecompressor {
    decoder: Decoder<'static>,
    finished: bool,
}

impl fmt::Debug for ZstdDecompressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZstdDecompressor").field("finished", &self.finished).finish_non_exhaustive()
    }
}

/// What one [`ZstdDecompressor::decompress`] has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the input that were used.
    pub consumed: usize,
    /// Bytes of the output that were filled. If that is all of it, more may be inside.
    pub produced: usize,
}

impl ZstdDecompressor {
    /// A fresh state that refuses frames with a window beyond `max_window_log`, a binary logarithm
    /// of bytes from 10 to 27. The window is most of the memory it takes, and it takes it only
    /// when a frame asks for it.
    ///
    /// # Errors
    /// `InvalidInput` for a limit outside that range; else what zstd says.
    pub fn new(max_window_log: u32) -> io::Result<Self> {
        check_window(max_window_log)?;
        let mut decoder = Decoder::new()?;
        decoder.set_parameter(DParameter::WindowLogMax(max_window_log))?;
        Ok(ZstdDecompressor { decoder, finished: false })
    }

    /// Decompresses some of `input` into `out`. To get all that `input` holds, call again with the
    /// rest until it is consumed *and* the output was not filled.
    ///
    /// After the end of the frame nothing is consumed or produced any more: see
    /// [`is_finished`](Self::is_finished).
    ///
    /// # Errors Errors of zstd; the state is unusable until it is reset.
    pub fn decompress(&mut self, input: &[u8], out: &mut [u8]) -> io::Result<Progress> {
        if self.finished {
            return Ok(Progress { consumed: 0, produced: 0 });
        }
        let (mut input, mut out) = (InBuffer::around(input), OutBuffer::around(out));
        self.finished = self.decoder.run(&mut input, &mut out)? == 0;
        Ok(Progress { consumed: input.pos(), produced: out.pos() })
    }

    /// Whether the frame has ended. Our writer never ends one.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Forgets everything: the next input begins a new frame.
    ///
    /// # Errors
    /// What zstd says.
    pub fn reset(&mut self) -> io::Result<()> {
        self.finished = false;
        self.decoder.reinit()
    }
}

fn check_window(log: u32) -> io::Result<()> {
    if (MIN_WINDOW_LOG..=MAX_WINDOW_LOG).contains(&log) {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "the window must have 2^10 to 2^27 bytes"))
}
