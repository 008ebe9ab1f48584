//! zstd as an archive uses it: one frame per session, never ended, flushed after every blob.
//!
//! The output of the first flush begins with the frame header. Each flush ends a zstd block, so all
//! input up to the flush can be decompressed. Later input still finds matches in the window (2 MiB
//! at level 3). No zstd block is marked as the last, and there is no checksum and no content size.
//! So the concatenated output is an unfinished frame, which one-shot decoders refuse.

use std::fmt;
use std::io;

use zstd::stream::raw::{CParameter, DParameter, Decoder, Encoder, InBuffer, Operation, OutBuffer};

use super::limits::{MAX_WINDOW_LOG, MIN_WINDOW_LOG};

/// Compresses blobs with one state, so that later blobs can refer to earlier ones.
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
    /// level's window, as a binary logarithm of bytes from 10 to 27. No level chooses a window
    /// beyond 27 itself.
    ///
    /// # Errors
    /// `InvalidInput` for a window outside this range; else errors of zstd.
    pub fn new(level: i32, window_log: Option<u32>) -> io::Result<Self> {
        let mut encoder = Encoder::new(level)?;
        if let Some(log) = window_log {
            check_window(log)?;
            encoder.set_parameter(CParameter::WindowLog(log))?;
        }
        Ok(ZstdCompressor { encoder })
    }

    /// Compresses `input` and appends the available output to `out`. zstd buffers the rest.
    ///
    /// # Errors
    /// Errors of zstd; the state is unusable afterwards.
    pub fn compress(&mut self, input: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        let mut input = InBuffer::around(input);
        while input.pos() < input.src.len() {
            self.step(out, |encoder, out| encoder.run(&mut input, out))?;
        }
        Ok(())
    }

    /// Ends the block: appends to `out` everything needed to decompress the input so far.
    ///
    /// # Errors
    /// Errors of zstd; the state is unusable afterwards.
    pub fn flush(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        while self.step(out, |encoder, out| encoder.flush(out))? > 0 {}
        Ok(())
    }

    /// Resets the state, so that the next output begins a new frame.
    ///
    /// # Errors
    /// Errors of zstd.
    pub fn reset(&mut self) -> io::Result<()> {
        self.encoder.reinit()
    }

    /// Runs zstd with free capacity at the end of `out`.
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

/// Decompresses one zstd frame, of a [`ZstdCompressor`] or of any other compressor.
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
    /// Bytes of the output that were filled. If all of it was, zstd may hold more output.
    pub produced: usize,
}

impl ZstdDecompressor {
    /// A fresh state that refuses frames with a window beyond `max_window_log`, a binary logarithm
    /// of bytes from 10 to 27. The window is most of the memory of the state. It is allocated when
    /// a frame begins, as large as the frame states.
    ///
    /// # Errors
    /// `InvalidInput` for a limit outside this range; else errors of zstd.
    pub fn new(max_window_log: u32) -> io::Result<Self> {
        check_window(max_window_log)?;
        let mut decoder = Decoder::new()?;
        decoder.set_parameter(DParameter::WindowLogMax(max_window_log))?;
        Ok(ZstdDecompressor { decoder, finished: false })
    }

    /// Decompresses some of `input` into `out`. To decompress all of `input`, call this again with
    /// the rest, until the rest is consumed *and* `out` was not filled.
    ///
    /// After the end of the frame it consumes and produces nothing: see
    /// [`is_finished`](Self::is_finished).
    ///
    /// # Errors
    /// Errors of zstd; the state is unusable until it is reset.
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

    /// Resets the state, so that the next input begins a new frame.
    ///
    /// # Errors
    /// Errors of zstd.
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
