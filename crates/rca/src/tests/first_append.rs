//! Files in which nothing is committed: an interrupted first append, or a user's file that is not
//! an archive.

use std::io::Cursor;

use super::reference::{list, load, manifest, text};
use super::support::{append, noise};
use crate::{WriteOptions, Writer};

/// What a writer says of the file; `None` if it refuses the file, or if something is committed.
fn is_foreign(bytes: &[u8]) -> Option<bool> {
    let writer = Writer::open(Cursor::new(bytes.to_vec())).ok()?;
    (writer.opened().committed_end == 0).then(|| writer.opened().is_foreign)
}

#[test]
fn interrupted_first_append_is_recognised_as_an_archive() {
    let small = WriteOptions { buffer_len: 100, ..WriteOptions::default() };
    let contents = [Vec::new(), b"some text".to_vec(), noise(1, 50), noise(2, 300), noise(3, 40_000)];
    for (content, options) in contents.iter().flat_map(|content| [(content, WriteOptions::default()), (content, small)])
    {
        let whole = append(Vec::new(), &[("name", content)], options).unwrap();
        for metadata in [&[0xef, 0x2a, 0x8b, 0x78, 0xdd, 0x80, 0xda, 0x9c], &whole[2..10], &[0; 8]] {
            // The file before the commit: with the length filled in or not, truncated at any byte,
            // and with zeros instead of bytes that are not written yet.
            let header = [&[0, 0], metadata].concat();
            let block = &whole[10..];
            let unfilled = [&[0; 6], &block[block.iter().position(|byte| *byte == 0x28).unwrap()..]].concat();
            for left in [[&header, block].concat(), [&header[..], &unfilled].concat()] {
                for len in (0..left.len()).take(100).chain([left.len()]) {
                    assert_eq!(is_foreign(&left[..len]), Some(false), "{len} of {}", left.len());
                    // The file system has stored the length of the file and not the last bytes.
                    // Sectors are written whole, so the bytes 10 to 30 are not split.
                    if len <= 10 || len > 30 {
                        let holes = [&left[..len], &vec![0; left.len() - len]].concat();
                        assert_eq!(is_foreign(&holes), Some(false), "{len} of {}, then zeros", left.len());
                    }
                }
            }
        }
    }
}

#[test]
fn every_recorded_crash_of_a_first_append_can_be_continued() {
    let manifest = manifest();
    let files = list(&manifest["vectors"]).iter().map(|vector| text(&vector["file"]));
    let uncommitted: Vec<_> = files.filter_map(|file| Some((file, is_foreign(&load(file))?))).collect();
    assert!(uncommitted.iter().any(|(file, _)| file.starts_with("crash/A_")), "{uncommitted:?}");
    for (file, is_foreign) in uncommitted {
        assert!(!is_foreign, "{file}");
    }
}

#[test]
fn files_of_other_kinds_are_foreign_or_refused() {
    let mut image = vec![0; 40_000];
    image[32_769..32_774].copy_from_slice(b"CD001");
    let zeros_then = |rest: &[u8]| [&[0; 4], rest].concat();
    for (what, bytes) in [
        ("a short text", b"hello\n".to_vec()),
        ("one byte", b"x".to_vec()),
        ("two bytes", b"x\0".to_vec()),
        ("an image of a disc", image),
        ("a film", zeros_then(b"\x18ftypmp42\0\0\0\0mp42isom and so on")),
        ("an icon", b"\0\0\x01\0\x01\0\x20\x20\0\0\x01\0\x20\0\xa8\x10\0\0".to_vec()),
        ("zeros, then one byte", [vec![0; 300_000], vec![1]].concat()),
        ("a reset block", [&[0; 10][..], b"\x81\x04\x28\xb5\x2f\xfd"].concat()),
        ("no end of a varint", [&[0; 10][..], &[0x80; 40]].concat()),
    ] {
        assert_eq!(is_foreign(&bytes), Some(true), "{what}");
    }
    let text = "a text that is longer than its first two letters say it is; ".repeat(1000);
    assert_eq!(is_foreign(text.as_bytes()), None);
}
