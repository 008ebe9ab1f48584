//! Verifies a xorb from any reader.

use std::io::{self, Read};

use xet_format::limits::MAX_XORB_BODY_LEN;
use xet_format::xorb::{VerifiedXorb, Verifier, XorbError};

/// Bytes that are read at once.
const PIECE_LEN: usize = 256 << 10;

/// Reads a xorb to its end and verifies it, footer included. It blocks. Memory: 256 KiB, and that
/// of a [`Verifier`].
///
/// # Errors
///
/// The outer error: `reader` fails. The inner error: the bytes are not a valid xorb.
pub fn verify_reader(mut reader: impl Read) -> io::Result<Result<VerifiedXorb, XorbError>> {
    let mut verifier = Verifier::new(MAX_XORB_BODY_LEN);
    let mut buffer = vec![0; PIECE_LEN];
    loop {
        let len = match reader.read(&mut buffer) {
            Ok(0) => return Ok(verifier.finish()),
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let mut piece = &buffer[..len];
        loop {
            match verifier.next_frame(&mut piece) {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) => return Ok(Err(error)),
            }
        }
    }
}
