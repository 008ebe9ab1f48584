//! Tests of the writer, except for crashes.

use std::io::{self, Cursor, Read};

use super::storage::Recorder;
use super::support::{append, archive, blob, noise, read};
use crate::{Error, Event, Opened, Reader, WriteOptions, Writer};

#[test]
fn a_name_with_nul_is_refused_and_changes_nothing() {
    let mut storage = Recorder::new(Vec::new());
    let mut writer = Writer::open(&mut storage).unwrap();
    assert_eq!(writer.append("a\0b", &b"c"[..]).unwrap_err().code(), "name_has_nul");
    writer.append("a", &b"b"[..]).unwrap();
    read(storage.data.get_ref().as_slice()).assert_clean(&[blob("a", b"b")], "after the refusal");
}

#[test]
fn name_longer_than_readers_accept_is_refused_unchanged() {
    let mut writer = Writer::open(Cursor::new(Vec::new())).unwrap();
    let longest = "n".repeat(1 << 20);
    assert_eq!(writer.append(&format!("{longest}n"), io::empty()).unwrap_err().code(), "name_too_long");
    writer.append(&longest, &b"content"[..]).unwrap();
    read(writer.into_storage().get_ref().as_slice()).assert_clean(&[blob(&longest, b"content")], "the longest");
}

#[test]
fn opening_without_appending_writes_nothing_even_over_garbage() {
    let (mut bytes, _) = archive(&[&[("a", b"b")]]);
    let len = bytes.len() as u64;
    bytes.extend_from_slice(b"garbage");
    let mut storage = Recorder::new(bytes.clone());
    let writer = Writer::open(&mut storage).unwrap();
    assert_eq!((writer.opened().committed_end, writer.opened().garbage_len), (len, 7));
    drop(writer);
    assert!(storage.ops.is_empty());
    assert_eq!(storage.data.into_inner(), bytes);
}

#[test]
fn opening_reports_end_garbage_and_torn_header() {
    let (bytes, _) = archive(&[&[("a", b"some content")], &[("b", b"more content")]]);
    let opened = |bytes: Vec<u8>| Writer::open(Cursor::new(bytes)).unwrap().opened();
    let len = bytes.len() as u64;
    let clean = Opened { committed_end: len, garbage_len: 0, torn_header: false, is_foreign: false };
    assert_eq!(opened(bytes.clone()), clean);
    let later = append(bytes.clone(), &[("c", b"even more")], WriteOptions::default()).unwrap();
    // Of the new header, the size and 3 bytes of the hash were written: the repair restores the old
    // header.
    let mut torn = later.clone();
    torn[5..10].copy_from_slice(&bytes[5..10]);
    let garbage_len = later.len() as u64 - len;
    assert_eq!(opened(torn), Opened { committed_end: len, garbage_len, torn_header: true, is_foreign: false });
    // With 4 bytes of the hash, the repair completes the new header.
    let mut torn = later.clone();
    torn[6..10].copy_from_slice(&bytes[6..10]);
    let committed_end = later.len() as u64;
    assert_eq!(opened(torn), Opened { committed_end, garbage_len: 0, torn_header: true, is_foreign: false });
}

#[test]
fn create_refuses_what_is_not_empty() {
    let refused = Writer::create(Cursor::new(vec![0]), WriteOptions::default()).unwrap_err();
    assert_eq!(refused.code(), "not_empty");
    Writer::create(Cursor::new(Vec::new()), WriteOptions::default()).unwrap();
}

#[test]
fn failed_call_poisons_the_writer_and_keeps_committed_blobs() {
    let (base, truth) = archive(&[&[("one", b"first")], &[("two", b"second")]]);
    let base = [base, b"garbage".to_vec()].concat();
    let options = WriteOptions { buffer_len: 1000, ..WriteOptions::default() };
    let mut failures = 0;
    for fail_at in 0.. {
        let mut storage = Recorder { fail_at, ..Recorder::new(base.clone()) };
        let mut writer = Writer::with_options(&mut storage, options).unwrap();
        let mut committed = truth.clone();
        let failed = [("small", vec![1; 10]), ("large", noise(1, 40_000))].into_iter().find_map(|(name, content)| {
            let outcome = writer.append(name, content.as_slice());
            committed.extend(outcome.is_ok().then(|| blob(name, &content)));
            outcome.err()
        });
        let Some(error) = failed else { break };
        assert_eq!(error.code(), "io", "{error:?}");
        assert_eq!(writer.append("next", io::empty()).unwrap_err().code(), "poisoned");
        drop(writer);
        let after = append(storage.data.into_inner(), &[("after", b"more")], options).unwrap();
        let seen = read(after.as_slice());
        // A failed last sync may have committed the blob, although the caller got an error.
        assert!(seen.blobs.starts_with(&committed), "call {fail_at}");
        assert_eq!((seen.code(), seen.blobs.last()), (None, Some(&blob("after", b"more"))), "call {fail_at}");
        failures += 1;
    }
    assert!(failures > 10, "{failures}");
}

#[test]
fn unreadable_content_poisons_the_writer_and_adds_nothing() {
    struct Broken(usize);
    impl Read for Broken {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            self.0 += 1;
            match self.0 {
                1 => Err(io::ErrorKind::Interrupted.into()),
                2 => Ok(buf.len()),
                _ => Err(io::ErrorKind::ConnectionReset.into()),
            }
        }
    }
    let (bytes, truth) = archive(&[&[("a", b"b")]]);
    let mut writer = Writer::open(Cursor::new(bytes)).unwrap();
    let error = writer.append("x", Broken(0)).unwrap_err();
    assert_eq!(error.code(), "content");
    assert_eq!(error.to_string(), "the content of a blob to append cannot be read");
    assert_eq!(writer.append("y", io::empty()).unwrap_err().code(), "poisoned");
    read(writer.into_storage().get_ref().as_slice()).assert_clean(&truth, "after the failure");
}

/// A reader needs no lock.
#[test]
fn second_writer_is_refused_until_the_first_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.rca");
    let open = || std::fs::File::options().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
    let mut first = Writer::open(open()).unwrap();
    first.append("a", &b"first"[..]).unwrap();
    assert_eq!(Writer::open(open()).unwrap_err().code(), "locked");
    read(open()).assert_clean(&[blob("a", b"first")], "a reader needs no lock");
    drop(first);
    Writer::open(open()).unwrap().append("b", &b"second"[..]).unwrap();
    read(open()).assert_clean(&[blob("a", b"first"), blob("b", b"second")], "both");
}

#[test]
fn lock_ends_with_its_writer_even_if_a_fork_has_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.rca");
    let open = || std::fs::File::options().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
    let file = open();
    // A fork leaves one more descriptor of the same open file description.
    let forked = file.try_clone().unwrap();
    let writer = Writer::open(file).unwrap();
    assert_eq!(Writer::open(open()).unwrap_err().code(), "locked");
    drop(writer);
    Writer::open(open()).unwrap().append("b", &b"second"[..]).unwrap();
    drop(forked);
}

#[test]
fn a_file_shorter_than_its_size_field_is_refused_and_left_alone() {
    let (bytes, _) = archive(&[&[("a", b"some content"), ("b", b"more content")]]);
    for cut in 10..bytes.len() {
        let mut storage = Recorder::new(bytes[..cut].to_vec());
        let error = Writer::open(&mut storage).unwrap_err();
        assert_eq!((error.code(), error.offset()), ("truncated_chunk", Some(0)), "{cut}");
        assert!(storage.ops.is_empty());
    }
}

#[test]
fn blob_beyond_the_buffer_streams_with_a_padded_length() {
    const LEN: u64 = 300 << 20;
    let options = WriteOptions { buffer_len: 100, ..WriteOptions::default() };
    let mut file = tempfile::tempfile().unwrap();
    let mut writer = Writer::with_options(&mut file, options).unwrap();
    writer.append("small", &b"before"[..]).unwrap();
    let appended = writer.append("large", Ramp(0).take(LEN)).unwrap();
    assert_eq!(appended.content_len, LEN);
    writer.append("small", &b"after"[..]).unwrap();
    drop(writer);
    io::Seek::rewind(&mut file).unwrap();
    let mut reader = Reader::new(&file).unwrap();
    let mut lens = Vec::new();
    while let Event::Blob(mut blob) = reader.next_event().unwrap() {
        let (mut expect, mut buf, mut len) = (Ramp(0), vec![0; 1 << 16], 0);
        let mut want = buf.clone();
        loop {
            let step = blob.read_content(&mut buf).unwrap();
            if step == 0 {
                break;
            }
            if blob.name() == "large" {
                expect.read_exact(&mut want[..step]).unwrap();
                assert!(buf[..step] == want[..step], "near {len}");
            }
            len += step as u64;
        }
        lens.push(len);
    }
    assert_eq!(lens, [6, LEN, 5]);
    assert_eq!(reader.verified(), 3);
}

/// Endless bytes that compress well, but not to almost nothing.
struct Ramp(u64);

impl Read for Ramp {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        for byte in buf.iter_mut() {
            self.0 += 1;
            *byte = if self.0.is_multiple_of(4096) { self.0.to_le_bytes()[2] } else { b'.' };
        }
        Ok(buf.len())
    }
}

/// Archives with valid levels and windows are readable.
#[test]
fn unknown_zstd_levels_and_windows_are_refused() {
    for window_log in [Some(9), Some(28)] {
        let options = WriteOptions { window_log, ..WriteOptions::default() };
        assert!(matches!(Writer::create(Cursor::new(Vec::new()), options), Err(Error::BadOptions(_))));
    }
    for (level, window_log) in [(-5, None), (1, Some(10)), (9, Some(27)), (19, None)] {
        let options = WriteOptions { level, window_log, ..WriteOptions::default() };
        let content = noise(3, 500);
        let bytes = append(Vec::new(), &[("a", &content), ("b", &content)], options).unwrap();
        assert!(bytes.len() < 500 + 500, "the second blob refers to the first");
        read(bytes.as_slice()).assert_clean(&[blob("a", &content), blob("b", &content)], "level");
    }
}
