//! Damages small archives in many ways: nothing panics, and no wrong blob is reported as verified.

use std::io::Cursor;

use rand::RngExt;

use super::support::{Blob, append, archive, noise, read, rng};
use crate::{Archive, Layout, ReadOptions, Unchunker, WriteOptions};

/// Three sessions with contents that refer to each other.
fn small() -> (Vec<u8>, Vec<Blob>) {
    let text = b"a text that comes again, a text that comes again";
    archive(&[&[("foo", b"first"), ("bar", text)], &[("", text), ("empty", b"")], &[("bäz", text)]])
}

/// Reads, verifies and appends to the bytes; `truth` is what they contained before the damage.
fn check(damaged: &[u8], truth: &[Blob], what: &str) {
    let seen = read(damaged);
    assert!(seen.verified <= seen.exact(truth), "{what}: a wrong blob was called verified");
    if seen.error.is_none() {
        assert_eq!(seen.verified, seen.blobs.len(), "{what}");
    }
    let archive = Archive::open(Cursor::new(damaged), ReadOptions::default()).unwrap();
    assert_eq!(archive.verified().len(), seen.verified, "{what}");
    assert_eq!(archive.unverified().len(), seen.blobs.len() - seen.verified, "{what}");
    assert_eq!(
        archive.damage().map(|e| (e.code(), e.offset())),
        seen.error.as_ref().map(|e| (e.code(), e.offset())),
        "{what}"
    );
    if let Some(offset) = seen.error.as_ref().and_then(|e| e.offset()) {
        assert!(offset <= damaged.len() as u64, "{what}: {offset}");
    }
    // A writer refuses the archive, or its blob can be read if the earlier blobs can be read.
    if let Ok(longer) = append(damaged.to_vec(), &[("new", b"content")], WriteOptions::default()) {
        let again = read(longer.as_slice());
        assert!(again.verified >= seen.verified.min(again.exact(truth)), "{what}");
        if seen.error.is_none() {
            assert_eq!((again.code(), again.verified), (None, seen.verified + 1), "{what}");
        }
    }
}

#[test]
fn proper_prefix_is_an_error_at_a_place_or_an_empty_archive() {
    let (bytes, truth) = small();
    for cut in 0..bytes.len() {
        check(&bytes[..cut], &truth, &format!("cut at {cut}"));
        let seen = read(&bytes[..cut]);
        if cut < 10 {
            assert_eq!((seen.code(), seen.blobs.len(), seen.garbage()), (None, 0, Some(cut > 0)), "{cut}");
        } else {
            let error = seen.error.unwrap();
            assert_eq!((error.code(), error.offset()), ("truncated_chunk", Some(0)), "{cut}");
        }
    }
}

#[test]
fn every_value_of_every_byte_is_noticed_or_harmless() {
    let (bytes, truth) = small();
    let mut noticed = 0;
    for at in 0..bytes.len() {
        for xor in 1..=255_u8 {
            let mut damaged = bytes.clone();
            damaged[at] ^= xor;
            let seen = read(damaged.as_slice());
            assert!(seen.verified <= seen.exact(&truth), "byte {at} ^ {xor}");
            // Only a change of the size field to 0 gives a sound archive: an empty one.
            noticed += usize::from(seen.error.is_some());
            assert!(seen.error.is_some() || at < 2 && seen.blobs.is_empty(), "byte {at} ^ {xor}");
            if xor.is_power_of_two() || xor == 255 {
                check(&damaged, &truth, &format!("byte {at} ^ {xor}"));
            }
        }
    }
    assert!(noticed >= (bytes.len() - 2) * 255);
}

#[test]
fn bytes_cut_out_put_in_or_swapped_are_noticed_or_harmless() {
    let (bytes, truth) = small();
    let mut rng = rng(4);
    for n in 0..3000 {
        let mut damaged = bytes.clone();
        let (a, b) = (rng.random_range(0..bytes.len()), rng.random_range(0..bytes.len()));
        match n % 3 {
            0 => drop(damaged.drain(a.min(b)..a.max(b))),
            1 => damaged.splice(a..a, noise(n, b % 20)).for_each(drop),
            _ => damaged.swap(a, b),
        }
        check(&damaged, &truth, &format!("damage {n}"));
    }
}

#[test]
fn noise_is_an_error_or_an_empty_archive() {
    for seed in 0..2000 {
        let mut bytes = noise(seed, usize::try_from(seed).unwrap() % 300);
        if let (true, Some(first)) = (seed % 2 == 0, bytes.first_mut()) {
            *first = 0; // a size that may fit
        }
        check(&bytes, &[], &format!("seed {seed}"));
        for (bits, metadata_len) in [(1, 0), (3, 1), (8, 9), (128, 0), (1024, 3)] {
            let layout = Layout::new(bits, metadata_len).unwrap();
            let mut unchunker = Unchunker::new(bytes.as_slice(), layout);
            let mut buf = [0; 7];
            while unchunker.read_payload(&mut buf).is_ok_and(|len| len > 0) {}
        }
    }
}

#[test]
fn damage_in_a_later_session_leaves_the_earlier_ones_verified() {
    let (bytes, truth) = small();
    let (first, _) = archive(&[&[("foo", b"first"), ("bar", b"a text that comes again, a text that comes again")]]);
    for at in first.len() + 10..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x20;
        let seen = read(damaged.as_slice());
        assert!(seen.verified >= 2, "byte {at}");
        assert!(seen.exact(&truth) >= seen.verified, "byte {at}");
    }
}
