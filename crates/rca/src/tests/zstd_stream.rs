//! Tests of [`ZstdCompressor`] and [`ZstdDecompressor`] without an archive.

use super::support::noise;
use crate::{ZstdCompressor, ZstdDecompressor};

fn packed(zstd: &mut ZstdCompressor, input: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    zstd.compress(input, &mut out).unwrap();
    zstd.flush(&mut out).unwrap();
    out
}

fn unpacked(zstd: &mut ZstdDecompressor, mut input: &[u8], step: usize) -> Vec<u8> {
    let (mut out, mut buf) = (Vec::new(), vec![0; step]);
    loop {
        let progress = zstd.decompress(input, &mut buf).unwrap();
        out.extend_from_slice(&buf[..progress.produced]);
        input = &input[progress.consumed..];
        if input.is_empty() && progress.produced < step {
            return out;
        }
    }
}

#[test]
fn first_flush_begins_with_the_header_of_an_open_2_mib_frame() {
    let mut zstd = ZstdCompressor::new(3, None).unwrap();
    let first = packed(&mut zstd, b"foo\0content");
    assert_eq!(first[..6], [0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x58]);
    assert_eq!(first[6] & 1, 0, "no last block");
    let second = packed(&mut zstd, b"foo\0content");
    assert_ne!(second[..4], [0x28, 0xb5, 0x2f, 0xfd]);
    zstd.reset().unwrap();
    assert_eq!(packed(&mut zstd, b"foo\0content"), first);
}

#[test]
fn each_flush_decompresses_with_any_output_buffer() {
    let (mut zstd, contents) =
        (ZstdCompressor::new(3, None).unwrap(), [noise(1, 300_000), vec![0; 500_000], noise(1, 300_000)]);
    let packed: Vec<_> = contents.iter().map(|content| packed(&mut zstd, content)).collect();
    assert!(packed[2].len() < 1000, "the window is kept from flush to flush");
    for step in [1000, 1 << 17, 1 << 20, 300_000] {
        let mut zstd = ZstdDecompressor::new(21).unwrap();
        for (content, packed) in contents.iter().zip(&packed) {
            assert!(unpacked(&mut zstd, packed, step) == *content, "{step}");
        }
        assert!(!zstd.is_finished());
    }
}

#[test]
fn nothing_is_consumed_after_the_end_of_a_frame() {
    let frame = zstd::encode_all(&b"content"[..], 3).unwrap();
    let mut zstd = ZstdDecompressor::new(27).unwrap();
    let mut out = [0; 100];
    let progress = zstd.decompress(&[frame.clone(), frame.clone()].concat(), &mut out).unwrap();
    assert_eq!((progress.consumed, progress.produced), (frame.len(), 7));
    assert!(zstd.is_finished());
    assert_eq!(zstd.decompress(&frame, &mut out).unwrap().consumed, 0);
    zstd.reset().unwrap();
    assert_eq!(zstd.decompress(&frame, &mut out).unwrap().produced, 7);
}
