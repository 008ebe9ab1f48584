//! Tests of [`Archive`], which reads in two passes.

use std::io::{Cursor, Read, Seek, SeekFrom, Write};

use super::support::{archive, noise};
use crate::{Archive, Dialect, Error, ReadOptions};

fn open(bytes: &[u8]) -> Archive<Cursor<&[u8]>> {
    Archive::open(Cursor::new(bytes), ReadOptions::default()).unwrap()
}

fn content<R: Read + Seek + std::fmt::Debug>(archive: &mut Archive<R>, index: usize) -> Result<Vec<u8>, Error> {
    let (mut content, mut blob) = (Vec::new(), archive.blob(index)?.expect("a blob"));
    blob.read_to_end(&mut content).map_err(|e| Error::from_io(e).unwrap())?;
    assert_eq!(blob.entry().length(), content.len() as u64);
    Ok(content)
}

#[test]
fn blobs_are_listed_and_then_streamed_in_any_order() {
    let (a, b) = (noise(1, 300_000), noise(2, 40_000));
    let sessions: [&[(&str, &[u8])]; 3] =
        [&[("a", &a), ("b", &b), ("empty", b"")], &[("a", &b)], &[("c", &a), ("d", b"d")]];
    let (bytes, truth) = archive(&sessions);
    let all: Vec<_> = sessions.concat();
    let mut archive = open(&bytes);
    let listed: Vec<_> = archive.verified().iter().map(|e| (e.name().to_owned(), e.length(), e.session())).collect();
    assert_eq!(listed.iter().map(|(_, _, session)| *session).collect::<Vec<_>>(), [0, 0, 0, 1, 2, 2]);
    assert!(listed.iter().zip(&truth).all(|(entry, blob)| (&entry.0, entry.1) == (&blob.0, blob.2)));
    assert!(archive.verified().is_sorted_by(|a, b| a.offset() < b.offset()));
    assert_eq!(archive.end().unwrap().blobs, 6);
    assert_eq!(archive.dialect(), Dialect::Reference);
    assert!(archive.damage().is_none() && archive.unverified().is_empty());
    for index in [0, 1, 2, 3, 4, 5, 5, 4, 0, 3, 1, 5, 2] {
        assert!(content(&mut archive, index).unwrap() == all[index].1, "{index}");
    }
    assert!(archive.blob(6).unwrap().is_none());
}

#[test]
fn a_blob_that_is_not_read_to_its_end_does_not_disturb_the_next() {
    let (a, b) = (noise(1, 300_000), noise(2, 400_000));
    let (bytes, _) = archive(&[&[("a", &a), ("b", &b), ("c", &a)]]);
    let mut archive = open(&bytes);
    for _ in 0..2 {
        let mut blob = archive.blob(0).unwrap().unwrap();
        let mut some = [0; 1000];
        blob.read_exact(&mut some).unwrap();
        assert!(some == a[..1000]);
        assert!(content(&mut archive, 1).unwrap() == b);
    }
    archive.blob(1).unwrap().unwrap();
    assert!(content(&mut archive, 1).unwrap() == b, "the blob was opened before, and no byte of it was read");
    assert!(content(&mut archive, 2).unwrap() == a);
}

#[test]
fn damage_is_reported_and_only_verified_sessions_are_readable() {
    let (mut bytes, _) = archive(&[&[("a", b"first")], &[("b", b"second"), ("c", b"third")]]);
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    let mut archive = open(&bytes);
    assert_eq!((archive.verified().len(), archive.unverified().len()), (1, 2));
    assert_eq!(archive.damage().unwrap().code(), "final_hash_mismatch");
    assert!(archive.end().is_none());
    assert_eq!(content(&mut archive, 0).unwrap(), b"first");
    assert!(archive.blob(1).unwrap().is_none());
}

#[test]
fn change_after_the_listing_is_noticed_before_content_ends() {
    let a = b"not compressible: 0a91b8c7".as_slice();
    let (bytes, _) = archive(&[&[("a", a), ("b", a)], &[("c", a)]]);
    let mut noticed = 0;
    for at in 0..bytes.len() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        let mut archive = Archive::open(file.try_clone().unwrap(), ReadOptions::default()).unwrap();
        file.seek(SeekFrom::Start(at as u64)).unwrap();
        file.write_all(&[bytes[at] ^ 4]).unwrap();
        for index in [0, 2, 1] {
            match content(&mut archive, index) {
                Ok(content) => assert!(content == a, "byte {at}, blob {index}"),
                Err(e) => {
                    assert!(e.is_damage() || e.code() == "changed", "{e:?}");
                    noticed += 1;
                }
            }
        }
    }
    assert!(noticed > 50, "{noticed}");
}

#[test]
fn names_beyond_the_limit_of_a_listing_are_refused() {
    let (bytes, _) = archive(&[&[("0123456789", b""), ("0123456789", b"")]]);
    for (max_listing_len, ok) in [(20, true), (19, false)] {
        let options = ReadOptions { max_listing_len, ..ReadOptions::default() };
        let outcome = Archive::open(Cursor::new(&bytes), options);
        assert_eq!(outcome.err().map(|e| e.code()), (!ok).then_some("listing_too_long"));
    }
}
