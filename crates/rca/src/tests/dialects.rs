//! Archives that the tests build byte by byte: both dialects, unknown blocks, overlong varints,
//! limits.

use super::support::{Blob, append, blob, read};
use crate::hash::Hasher;
use crate::{Dialect, Error, ReadOptions, Reader, WriteOptions, ZstdCompressor};

/// Builds an archive of one chunk.
#[derive(Default)]
struct Maker {
    payload: Vec<u8>,
    /// The bytes of the current session that its hash covers.
    session: Vec<u8>,
    zstd: Option<ZstdCompressor>,
}

/// Whether the hash bytes of a reset are hashed.
#[derive(Clone, Copy, PartialEq)]
enum Hashed {
    Included,
    Excluded,
}

impl Maker {
    fn put(&mut self, bytes: &[u8]) {
        self.payload.extend_from_slice(bytes);
        self.session.extend_from_slice(bytes);
    }

    fn digest(&self) -> [u8; 8] {
        let mut hasher = Hasher::default();
        hasher.update(&self.session);
        hasher.digest().0
    }

    fn blob(mut self, name: &str, content: &str) -> Self {
        let mut zstd = self.zstd.take().unwrap_or_else(|| ZstdCompressor::new(3, None).unwrap());
        let mut packed = Vec::new();
        zstd.compress(format!("{name}\0{content}").as_bytes(), &mut packed).unwrap();
        zstd.flush(&mut packed).unwrap();
        assert!(packed.len() < 64);
        self.put(&[u8::try_from(packed.len() * 2).unwrap()]);
        self.put(&packed);
        self.zstd = Some(zstd);
        self
    }

    fn reset(mut self, varint: [u8; 2], hashed: Hashed, extra: &[u8]) -> Self {
        let digest = self.digest();
        self.session.clear();
        self.zstd = None;
        self.put(&varint);
        self.put(&digest);
        if hashed == Hashed::Excluded {
            self.session.truncate(2);
        }
        self.put(extra);
        self
    }

    fn raw(mut self, bytes: &[u8]) -> Self {
        self.put(bytes);
        self
    }

    fn archive(self) -> Vec<u8> {
        let size = u16::try_from(self.payload.len() + 10).unwrap();
        assert!(size <= 0x8000);
        [&size.to_be_bytes()[..], &self.digest(), &self.payload].concat()
    }
}

fn one_two_three() -> Vec<Blob> {
    vec![blob("one", b"1"), blob("two", b"2"), blob("three", b"3")]
}

#[track_caller]
fn check(bytes: &[u8], dialect: Dialect) {
    let seen = read(bytes);
    seen.assert_clean(&one_two_three(), "by hand");
    assert_eq!(seen.end.unwrap().dialect, dialect);
}

fn three(varint: [u8; 2], hashed: Hashed) -> Vec<u8> {
    let maker = Maker::default().blob("one", "1").reset(varint, hashed, b"").blob("two", "2");
    maker.reset(varint, hashed, b"").blob("three", "3").archive()
}

#[test]
fn resets_of_either_form_under_either_hash_are_read_and_named() {
    check(&three([0x81, 0x04], Hashed::Included), Dialect::Reference);
    check(&three([0x81, 0x04], Hashed::Excluded), Dialect::Readme);
    check(&three([0x81, 0x02], Hashed::Included), Dialect::Readme);
    check(&three([0x81, 0x02], Hashed::Excluded), Dialect::Readme);
}

#[test]
fn final_hash_decides_the_dialect_of_a_single_reset() {
    let make = |hashed| {
        let maker = Maker::default().blob("one", "1").blob("two", "2").reset([0x81, 0x04], hashed, b"xyz");
        maker.blob("three", "3")
    };
    // `81 04` states 8 bytes. For 11 bytes the varint is 11 << 6 | 1 = 0x2c1.
    let longer = |mut maker: Maker| {
        let at = maker.payload.windows(2).position(|w| w == [0x81, 0x04]).unwrap();
        maker.payload[at..at + 2].copy_from_slice(&[0xc1, 0x05]);
        maker.session[..2].copy_from_slice(&[0xc1, 0x05]);
        maker.archive()
    };
    check(&longer(make(Hashed::Included)), Dialect::Reference);
    check(&longer(make(Hashed::Excluded)), Dialect::Readme);
}

#[test]
fn archive_that_mixes_hash_rules_is_refused() {
    let maker = Maker::default().blob("one", "1").reset([0x81, 0x04], Hashed::Included, b"").blob("two", "2");
    let mixed = maker.reset([0x81, 0x04], Hashed::Excluded, b"").blob("three", "3").archive();
    let seen = read(mixed.as_slice());
    assert_eq!((seen.code(), seen.verified), (Some("final_hash_mismatch"), 2));
    let maker = Maker::default().blob("one", "1").reset([0x81, 0x04], Hashed::Excluded, b"").blob("two", "2");
    let mixed = maker.reset([0x81, 0x04], Hashed::Included, b"").blob("three", "3").archive();
    let seen = read(mixed.as_slice());
    assert_eq!((seen.code(), seen.verified), (Some("final_hash_mismatch"), 2));
}

/// The reference reports the same error.
#[test]
fn readme_reset_with_wrong_hash_reads_as_short_reset() {
    let mut bytes = three([0x81, 0x02], Hashed::Excluded);
    let at = bytes.windows(2).position(|w| w == [0x81, 0x02]).unwrap();
    bytes[at + 5] ^= 1;
    let seen = read(bytes.as_slice());
    assert_eq!((seen.code(), seen.error.unwrap().offset()), (Some("short_reset"), Some(at as u64)));
}

#[test]
fn nothing_is_appended_to_the_readme_dialect() {
    for (varint, hashed) in
        [([0x81, 0x04], Hashed::Excluded), ([0x81, 0x02], Hashed::Included), ([0x81, 0x02], Hashed::Excluded)]
    {
        let refused = append(three(varint, hashed), &[("x", b"y")], WriteOptions::default());
        assert_eq!(refused.unwrap_err().code(), "readme_dialect");
    }
    append(three([0x81, 0x04], Hashed::Included), &[("x", b"y")], WriteOptions::default()).unwrap();
}

/// After a full chunk in the README's dialect, a crash has left a chunk that goes past the end of
/// the file. The archive is not damaged.
#[test]
fn a_torn_append_to_the_readme_dialect_is_refused_as_such() {
    let maker = Maker::default().blob("one", "1").reset([0x81, 0x02], Hashed::Excluded, b"").blob("two", "2");
    // An unknown control block of type 1 fills the chunk. Its varint has three bytes.
    let len = 0x8000 - 10 - maker.payload.len() - 3;
    let varint = len << 6 | 3;
    let varint =
        [varint & 0x7f | 0x80, varint >> 7 & 0x7f | 0x80, varint >> 14].map(|byte| u8::try_from(byte).unwrap());
    let mut bytes = maker.raw(&[&varint[..], &vec![0; len]].concat()).archive();
    assert_eq!(bytes.len(), 0x8000);
    bytes.extend_from_slice(&[0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let refused = append(bytes, &[("x", b"y")], WriteOptions::default());
    assert_eq!(refused.unwrap_err().code(), "readme_dialect");
}

/// Readers hash them, and a writer appends after them.
#[test]
fn unknown_control_blocks_and_overlong_varints_are_accepted() {
    let bytes = Maker::default()
        .raw(&[0x83, 0x81, 0x00, 1, 2]) // type 1, two bytes, overlong
        .blob("one", "1")
        .raw(&[0x3f]) // type 31, no payload
        .blob("two", "2")
        .reset([0x81, 0x04], Hashed::Included, b"")
        .blob("three", "3")
        .raw(&[
            0x05 | 0x80,
            0x80,
            0x80,
            0x80,
            0x80,
            0x80,
            0x80,
            0x80,
            0x80,
            0x80,
            0x80,
            0x80,
            0x80,
            0x80,
            0x80,
            0x80,
            0x80,
            0x80,
            0x80,
            0x80,
            0,
        ])
        .archive();
    check(&bytes, Dialect::Reference);
    let longer = append(bytes, &[("four", b"4")], WriteOptions::default()).unwrap();
    let all = [one_two_three(), vec![blob("four", b"4")]].concat();
    read(longer.as_slice()).assert_clean(&all, "appended");
}

#[test]
fn resets_at_start_end_and_in_a_row_are_accepted() {
    let reset = [0x81, 0x04];
    let bytes = Maker::default()
        .reset(reset, Hashed::Included, b"")
        .reset(reset, Hashed::Included, b"")
        .blob("one", "1")
        .blob("two", "2")
        .reset(reset, Hashed::Included, b"")
        .blob("three", "3")
        .reset(reset, Hashed::Included, b"")
        .archive();
    check(&bytes, Dialect::Reference);
    let longer = append(bytes, &[("four", b"4")], WriteOptions::default()).unwrap();
    assert_eq!(read(longer.as_slice()).verified, 4);
}

#[test]
fn sizes_no_file_can_have_are_truncations_and_ask_for_no_memory() {
    let huge = [0xff; 30];
    for (first, kind) in [(0xfe, "blob"), (0x83, "unknown"), (0x81, "reset")] {
        let bytes = Maker::default().raw(&[first]).raw(&huge).raw(&[0x7f]).raw(b"some payload").archive();
        let seen = read(bytes.as_slice());
        let error = seen.error.unwrap();
        let code = error.code();
        assert!(code == "truncated_block" || code == "zstd_error", "{kind}: {code}");
        assert_eq!(error.offset(), Some(10), "{kind}");
    }
    let seen = read(Maker::default().raw(&huge).archive().as_slice());
    assert!(matches!(seen.error, Some(Error::TruncatedVarint { offset: 10 })));
}

#[test]
fn a_short_archive_of_a_long_name_meets_the_limit() {
    let name = "n".repeat(5000);
    let bytes = append(Vec::new(), &[(&name, b"content")], WriteOptions::default()).unwrap();
    assert!(bytes.len() < 100);
    for (max_name_len, code) in [(5000, None), (4999, Some("name_too_long")), (0, Some("name_too_long"))] {
        let options = ReadOptions { max_name_len, ..ReadOptions::default() };
        let mut reader = Reader::with_options(bytes.as_slice(), options).unwrap();
        assert_eq!(reader.next_blob().err().map(|e| e.code()), code, "{max_name_len}");
    }
}

#[test]
fn a_window_beyond_the_setting_is_refused_when_reading() {
    let options = WriteOptions { window_log: Some(20), ..WriteOptions::default() };
    let bytes = append(Vec::new(), &[("a", b"b")], options).unwrap();
    for (max_window_log, code) in [(20, None), (19, Some("zstd_error"))] {
        let options = ReadOptions { max_window_log, ..ReadOptions::default() };
        let mut reader = Reader::with_options(bytes.as_slice(), options).unwrap();
        let error = reader.next_blob().err();
        assert_eq!(error.as_ref().map(|e| e.code()), code, "{max_window_log}");
        if let Some(e) = error {
            assert_eq!(e.to_string(), "the blob at byte 10 does not decompress");
            assert!(std::error::Error::source(&e).is_some());
        }
    }
    for max_window_log in [0, 9, 28, u32::MAX] {
        let options = ReadOptions { max_window_log, ..ReadOptions::default() };
        assert!(matches!(Reader::with_options(&b""[..], options), Err(Error::BadOptions(_))));
    }
}
