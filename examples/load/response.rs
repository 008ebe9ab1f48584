//! One response, read in pieces of any size and compared with what it should be.

use std::str::from_utf8;

use anyhow::{Context, bail, ensure};

/// Longest head that is taken.
const MAX_HEAD_LEN: usize = 16 << 10;

/// A response that is on its way.
#[derive(Default)]
pub(crate) struct Response {
    head: Vec<u8>,
    /// Bytes of the body and how many of them came; `None` within the head.
    body: Option<(usize, usize)>,
}

impl Response {
    /// Ready for the next one.
    pub(crate) fn reset(&mut self) {
        self.head.clear();
        self.body = None;
    }

    /// Bytes of the body that have come.
    pub(crate) fn received(&self) -> usize {
        self.body.map_or(0, |(_, received)| received)
    }

    /// Takes the next bytes; whether the response is complete. What is given as expected is what the body must be.
    ///
    /// # Errors
    ///
    /// The status is not one of success, or the body is not what was expected.
    pub(crate) fn take(
        &mut self,
        mut piece: &[u8],
        expected_len: usize,
        expected: Option<&[u8]>,
    ) -> anyhow::Result<bool> {
        let (len, received) = match self.body {
            Some(body) => body,
            None => match self.take_head(&mut piece)? {
                Some(len) => (len, 0),
                None => return Ok(false),
            },
        };
        ensure!(len == expected_len, "the response has {len} bytes instead of {expected_len}");
        let end = received + piece.len();
        ensure!(end <= len, "bytes behind the end of the response");
        if let Some(expected) = expected {
            ensure!(piece == &expected[received..end], "the bytes {received} to {end} of a response are wrong");
        }
        self.body = Some((len, end));
        Ok(end == len)
    }

    /// Takes bytes up to the end of the head; the length of the body once that is there.
    pub(crate) fn take_head(&mut self, piece: &mut &[u8]) -> anyhow::Result<Option<usize>> {
        // The end may lie across two pieces.
        let before = self.head.len();
        let added = piece.len().min(MAX_HEAD_LEN);
        self.head.extend_from_slice(&piece[..added]);
        let from = before.saturating_sub(3);
        let Some(at) = self.head[from..].windows(4).position(|window| window == b"\r\n\r\n") else {
            ensure!(self.head.len() < MAX_HEAD_LEN, "a head without an end");
            *piece = &[];
            return Ok(None);
        };
        let end = from + at + 4;
        *piece = &piece[end - before..];
        self.head.truncate(end);
        let head = from_utf8(&self.head).context("a head that is no text")?;
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap_or_default();
        if !status.starts_with("HTTP/1.1 20") {
            bail!("{status}");
        }
        let len = lines.find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse())
        });
        Ok(Some(len.context("a response without a length")??))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &[u8] = b"HTTP/1.1 206 Partial Content\r\ncontent-LENGTH: 5\r\n\r\nhello";

    /// Whether each piece completes the response.
    fn take(text: &[u8], piece_len: usize, expected: &[u8]) -> anyhow::Result<Vec<bool>> {
        let mut response = Response::default();
        text.chunks(piece_len).map(|piece| response.take(piece, expected.len(), Some(expected))).collect()
    }

    #[test]
    fn a_response_is_complete_at_its_last_byte_whatever_the_pieces() {
        for piece_len in 1..=GOOD.len() {
            let complete = take(GOOD, piece_len, b"hello").unwrap();
            let (last, before) = complete.split_last().unwrap();
            assert!(*last && !before.contains(&true), "in pieces of {piece_len}: {complete:?}");
        }
    }

    #[test]
    fn one_wrong_byte_is_found_whatever_the_pieces() {
        for piece_len in 1..=GOOD.len() {
            let error = take(GOOD, piece_len, b"hellO").unwrap_err();
            assert!(error.to_string().contains("wrong"), "{error}");
        }
    }

    #[test]
    fn wrong_length_wrong_status_and_trailing_bytes_are_errors() {
        assert!(take(GOOD, 7, b"hell").is_err());
        assert!(take(GOOD, 7, b"hello!").is_err());
        assert!(take(b"HTTP/1.1 416 No\r\nContent-Length: 5\r\n\r\nhello", 100, b"hello").is_err());
        assert!(take(&[GOOD, b"x"].concat(), 100, b"hello").is_err());
    }
}
