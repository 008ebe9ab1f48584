//! The archive readers and the opening of an archive to append, on anything.
//!
//! Beyond "no panic": both readers agree, a clean end means that everything is verified, and a
//! writer that accepts what reads cleanly makes it one blob longer and nothing else.

use std::io::{Cursor, Read};

use ::rca::{Archive, Dialect, Error, Event, Layout, ReadOptions, Reader, Unchunker, Writer};

/// Content beyond this is not read: four bytes of zstd make 128 KiB, and time is for other inputs.
const MAX_CONTENT_LEN: u64 = 16 << 20;

/// The target.
///
/// # Panics
///
/// A promise is broken.
pub fn check(data: &[u8]) {
    let options = ReadOptions { max_window_log: 22, max_name_len: 4096, max_listing_len: 1 << 20 };
    let Some((names, clean)) = read(data, options) else { return };

    if let Ok(mut archive) = Archive::open(Cursor::new(data), options) {
        let listed: Vec<_> =
            archive.verified().iter().chain(archive.unverified()).map(|e| e.name().to_owned()).collect();
        assert_eq!(listed, names);
        assert_eq!(archive.end().is_some(), clean.is_some());
        for index in (0..archive.verified().len()).rev().take(4) {
            let mut blob = archive.blob(index).expect("it was verified").expect("it was listed");
            std::io::copy(&mut blob, &mut std::io::sink()).expect("nothing has changed");
        }
    }

    if let Ok(mut writer) = Writer::open(Cursor::new(data.to_vec())) {
        writer.append("appended", &b"content"[..]).expect("memory does not fail");
        let longer = writer.into_storage().into_inner();
        if clean == Some(Dialect::Reference) {
            let (more, end) = read(&longer, options).expect("it was short before");
            assert_eq!(more.split_last().map(|(last, names)| (last.as_str(), names)), Some(("appended", &names[..])));
            assert!(end.is_some());
        }
    } else {
        assert_ne!(clean, Some(Dialect::Reference), "a sound archive can be appended to");
    }

    let width = data.first().map_or(1, |byte| u32::from(*byte) + 1);
    let layout = Layout::new(width, usize::from(width.trailing_zeros() == 0)).expect("1 to 256 bits");
    let mut unchunker = Unchunker::new(data, layout);
    let mut payload = Vec::new();
    if unchunker.read_to_end(&mut payload).is_ok() {
        assert!(unchunker.trailing_garbage().is_some());
    }
    assert!(payload.len() <= data.len());
}

/// Names of the blobs that were read to their end, and the dialect if the end was clean; `None` if
/// there was too much content.
fn read(data: &[u8], options: ReadOptions) -> Option<(Vec<String>, Option<Dialect>)> {
    let mut reader = Reader::with_options(data, options).expect("the options are fine");
    let (mut names, mut verified, mut total) = (Vec::new(), 0, 0);
    loop {
        let outcome = reader.next_event();
        match outcome {
            Ok(Event::Blob(mut blob)) => {
                let name = blob.name().to_owned();
                let mut sink = [0; 4096];
                let ended: Result<(), Error> = loop {
                    match blob.read_content(&mut sink) {
                        Ok(0) => break Ok(()),
                        Ok(len) => total += len as u64,
                        Err(e) => break Err(e),
                    }
                    if total > MAX_CONTENT_LEN {
                        return None;
                    }
                };
                if ended.is_ok() {
                    names.push(name);
                }
            }
            Ok(Event::Verified(session)) => {
                assert_eq!(session.blobs.start, verified);
                verified = session.blobs.end;
                assert_eq!(verified, names.len() as u64);
            }
            Ok(Event::End(end)) => {
                assert_eq!((end.blobs, verified), (names.len() as u64, names.len() as u64));
                return Some((names, Some(end.dialect)));
            }
            Err(e) => {
                assert!(!e.code().is_empty());
                assert!(e.offset().is_none_or(|offset| offset <= data.len() as u64));
                return Some((names, None));
            }
        }
    }
}
