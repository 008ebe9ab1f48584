//! Tests of [`Outline`], which finds sessions without reading their blobs.

use std::io::{self, Cursor, Read, Seek, SeekFrom};

use super::reference::{blobs, list, load, manifest, text};
use super::sha256::sha256;
use super::storage::Recorder;
use super::support::{Blob, archive, blob, noise, read};
use crate::{Error, Event, Outline, ReadOptions, Reader, Writer};

fn open(bytes: &[u8]) -> Result<Outline<Cursor<Vec<u8>>>, Error> {
    Outline::open(Cursor::new(bytes.to_vec()), ReadOptions::default())
}

/// The blobs of one session, which is read up to its verification.
fn session<R: Read + Seek>(outline: &mut Outline<R>, index: usize) -> Result<Vec<Blob>, Error> {
    let reader = outline.session(index)?.unwrap();
    let mut seen = Vec::new();
    loop {
        match reader.next_event()? {
            Event::Blob(mut found) => {
                let mut content = Vec::new();
                found.read_to_end(&mut content).map_err(|error| Error::from_io(error).unwrap())?;
                seen.push(blob(found.name(), &content));
            }
            Event::Verified(_) | Event::End(_) => return Ok(seen),
        }
    }
}

#[test]
fn each_session_can_be_read_by_itself_in_any_order() {
    let big = noise(3, 100_000);
    let (bytes, all) = archive(&[&[("a", b"1"), ("b", &big)], &[("c", b"2")], &[("d", b"3"), ("e", b"")]]);
    let mut outline = open(&bytes).unwrap();
    assert_eq!((outline.session_count(), outline.blob_count()), (3, 5));
    for index in [2, 0, 1, 1, 2, 0] {
        let expected = [&all[..2], &all[2..3], &all[3..]][index];
        assert_eq!(session(&mut outline, index).unwrap(), expected, "{index}");
    }
    assert!(outline.session(3).unwrap().is_none());
}

#[test]
fn sound_reference_archives_have_the_blobs_of_their_sessions() {
    let manifest = manifest();
    let mut count = 0;
    for vector in list(&manifest["vectors"]) {
        let file = text(&vector["file"]);
        let bytes = load(file);
        if read(bytes.as_slice()).error.is_some() {
            // A damaged archive may give an error or an outline, but no panic.
            let _ = open(&bytes).and_then(|mut outline| session(&mut outline, 0));
            continue;
        }
        let mut outline = open(&bytes).unwrap();
        let sessions = 0..outline.session_count();
        let seen: Vec<_> = sessions.flat_map(|index| session(&mut outline, index).unwrap()).collect();
        assert_eq!(seen, read(bytes.as_slice()).blobs, "{file}");
        assert_eq!(outline.blob_count(), seen.len() as u64, "{file}");
        count += 1;
    }
    assert!(count > 3, "{count}");
    assert!(!blobs(&list(&manifest["vectors"])[0]["blobs"]).is_empty());
}

#[test]
fn a_session_with_a_changed_byte_is_found_and_not_verified() {
    let (bytes, _) = archive(&[&[("a", b"some content")], &[("b", b"more content")]]);
    let mut changed = bytes.clone();
    changed[24] ^= 1;
    let mut outline = open(&changed).unwrap();
    assert!(session(&mut outline, 0).is_err());
    assert_eq!(session(&mut outline, 1).unwrap(), [blob("b", b"more content")]);
}

#[test]
fn cut_archive_is_an_error_or_an_outline_of_the_rest() {
    let (bytes, _) = archive(&[&[("a", b"some content")], &[("b", &noise(1, 3000))]]);
    for len in 0..bytes.len() {
        // The header of the only chunk states its size, so every truncation is found. If the header
        // itself is cut, nothing is committed.
        let outline = open(&bytes[..len]);
        if len < 10 {
            assert_eq!(outline.unwrap().blob_count(), 0, "{len}");
        } else {
            assert!(outline.is_err(), "{len}");
        }
    }
}

#[test]
fn an_outline_reads_a_buffer_per_blob_and_no_more() {
    let big = noise(4, 3 << 20);
    let (bytes, _) = archive(&[&[("a", &big), ("b", &big)], &[("c", &big)]]);
    let mut source = CountingReader { inner: Cursor::new(bytes), read_len: 0 };
    let outline = Outline::open(&mut source, ReadOptions::default()).unwrap();
    assert_eq!(outline.blob_count(), 3);
    drop(outline);
    // Six places are read, each with one buffer: three varints, the reset block, and the headers of
    // two chunks.
    assert!(source.read_len <= 6 * (4 << 10), "{}", source.read_len);
}

#[test]
fn begin_session_has_an_effect_only_after_a_blob() {
    let mut writer = Writer::open(Cursor::new(Vec::new())).unwrap();
    writer.begin_session().unwrap();
    writer.append("a", &b"1"[..]).unwrap();
    for _ in 0..3 {
        writer.begin_session().unwrap();
    }
    writer.append("b", &b"2"[..]).unwrap();
    writer.append("c", &b"3"[..]).unwrap();
    writer.begin_session().unwrap();
    let bytes = writer.into_storage().into_inner();
    // The bytes are the same as those of a writer that is reopened for each session.
    let (expected, all) = archive(&[&[("a", b"1")], &[("b", b"2"), ("c", b"3")]]);
    assert_eq!(bytes, expected);
    read(bytes.as_slice()).assert_clean(&all, "sessions by one writer");
}

#[test]
fn a_writer_reads_back_its_own_sessions_between_two_appends() {
    let mut writer = Writer::open(Cursor::new(Vec::new())).unwrap();
    let big = noise(5, 70_000);
    let mut all = Vec::new();
    for (name, content) in [("a", b"1".as_slice()), ("b", &big), ("c", b"3")] {
        writer.append(name, content).unwrap();
        all.push((name.to_owned(), sha256(content), content.len() as u64));
        let mut outline = writer.outline(ReadOptions::default()).unwrap();
        assert_eq!(session(&mut outline, 0).unwrap(), all);
    }
    read(writer.into_storage().into_inner().as_slice()).assert_clean(&all, "read between appends");
}

/// After that, readers find the end without an error or garbage.
#[test]
fn outline_of_a_writer_repairs_what_a_crash_left() {
    let (before, all) = archive(&[&[("a", b"some content")]]);
    let (later, _) = archive(&[&[("a", b"some content"), ("b", b"more")]]);
    let mut torn = later.clone();
    torn[5..10].copy_from_slice(&before[5..10]);
    let garbage = [before.as_slice(), b"garbage"].concat();
    for bytes in [torn, garbage] {
        let mut storage = Recorder::new(bytes);
        let mut writer = Writer::open(&mut storage).unwrap();
        let mut outline = writer.outline(ReadOptions::default()).unwrap();
        assert_eq!(session(&mut outline, 0).unwrap(), all);
        drop(outline);
        writer.append("c", &b"3"[..]).unwrap();
        let seen = read(storage.data.into_inner().as_slice());
        seen.assert_clean(&[all.clone(), vec![blob("c", b"3")]].concat(), "mended");
        assert_eq!(seen.garbage(), Some(false));
    }
}

#[test]
fn session_reader_works_beside_a_reader_of_everything() {
    let (bytes, all) = archive(&[&[("a", b"1")], &[("b", b"2")]]);
    let mut outline = open(&bytes).unwrap();
    // After the end of the session the reader continues with the next one.
    let reader = outline.session(0).unwrap().unwrap();
    let names: Vec<_> = std::iter::from_fn(|| reader.next_blob().unwrap().map(|blob| blob.name().to_owned())).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(reader.verified(), 2);
    let mut whole = Reader::new(bytes.as_slice()).unwrap();
    while whole.next_blob().unwrap().is_some() {}
    assert_eq!((whole.verified(), all.len()), (2, 2));
}

struct CountingReader {
    inner: Cursor<Vec<u8>>,
    read_len: usize,
}

impl Read for CountingReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let len = self.inner.read(buf)?;
        self.read_len += len;
        Ok(len)
    }
}

impl Seek for CountingReader {
    fn seek(&mut self, pos: SeekFrom) -> io::Result<u64> {
        self.inner.seek(pos)
    }
}
