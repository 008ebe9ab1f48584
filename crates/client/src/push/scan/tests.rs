#![expect(clippy::disallowed_methods, reason = "a test's files need not survive a crash")]

use std::io::Write;

use xet_format::chunker::chunks;

use super::*;

/// Pseudo-random bytes.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    std::iter::repeat_with(&mut next).flatten().take(len).collect()
}

fn events(scanner: &mut Scanner) -> Vec<Event> {
    let mut events = Vec::new();
    loop {
        let block = scanner.next_block();
        assert!(block.len <= BLOCK_LEN + PIECE_LEN + (128 << 10), "{} bytes in a block", block.len);
        if block.events.is_empty() {
            return events;
        }
        events.extend(block.events);
    }
}

#[test]
fn files_are_cut_like_one_slice_each_and_hashed() {
    let directory = tempfile::tempdir().unwrap();
    let contents = [Vec::new(), vec![1], noise(20 << 20), noise(9000), Vec::new()];
    let paths: Vec<PathBuf> = (0..contents.len()).map(|index| directory.path().join(index.to_string())).collect();
    for (path, contents) in paths.iter().zip(&contents) {
        std::fs::write(path, contents).unwrap();
    }
    let mut events = events(&mut Scanner::new(paths)).into_iter();
    for contents in &contents {
        for (index, expected) in chunks(contents).enumerate() {
            match events.next() {
                Some(Event::Chunk { hash, raw, is_first }) => {
                    assert!(raw == expected && hash == ChunkHash::of(expected) && is_first == (index == 0));
                }
                other => panic!("{other:?}"),
            }
        }
        let digest: [u8; 32] = sha2::Sha256::digest(contents).into();
        assert!(matches!(events.next(), Some(Event::End(Ok(sha256))) if *sha256.as_digest() == digest));
    }
    assert!(events.next().is_none());
}

/// The file grows, shrinks, or is overwritten in place.
#[test]
fn file_changed_while_read_is_refused_and_the_next_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let paths = [directory.path().join("a"), directory.path().join("b")];
    for change in ["append", "truncate", "write"] {
        std::fs::write(&paths[0], noise(20 << 20)).unwrap();
        std::fs::write(&paths[1], b"b").unwrap();
        let mut scanner = Scanner::new(paths.to_vec());
        drop(scanner.next_block());
        let mut file = File::options().write(true).open(&paths[0]).unwrap();
        match change {
            "append" => drop(std::fs::OpenOptions::new().append(true).open(&paths[0]).unwrap().write(b"x").unwrap()),
            "truncate" => file.set_len(15 << 20).unwrap(),
            _ => file.write_all(b"x").unwrap(),
        }
        // Without this, the time of the change may equal the time before: the clock of the file
        // system may be too coarse for this fast test.
        let times = std::fs::FileTimes::new().set_modified(std::time::SystemTime::UNIX_EPOCH);
        file.set_times(times).unwrap();
        let ends: Vec<_> = events(&mut scanner).into_iter().filter(|event| matches!(event, Event::End(_))).collect();
        assert!(matches!(ends[..], [Event::End(Err(ScanError::Changed)), Event::End(Ok(_))]), "{change}: {ends:?}");
    }
}

#[test]
fn missing_file_or_directory_ends_with_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let mut scanner = Scanner::new(vec![directory.path().join("none"), directory.path().to_owned()]);
    let events = events(&mut scanner);
    assert!(matches!(events[..], [Event::End(Err(ScanError::Read(_))), Event::End(Err(ScanError::Read(_)))]));
}
