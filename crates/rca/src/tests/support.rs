//! What several test files need: reading a whole archive, archives of an exact length, seeded
//! random bytes.

use std::io::{Cursor, Read};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::sha256::Sha256;
use crate::{End, Error, Event, Reader, WriteOptions, Writer};

/// Name, sha256 and length of a blob, as the recorded results have them.
pub(super) type Blob = (String, String, u64);

/// What one pass over an archive has found.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// The blobs that were read to their end.
    pub(super) blobs: Vec<Blob>,
    pub(super) verified: usize,
    pub(super) end: Option<End>,
    pub(super) error: Option<Error>,
}

impl Seen {
    pub(super) fn code(&self) -> Option<&'static str> {
        self.error.as_ref().map(Error::code)
    }

    pub(super) fn garbage(&self) -> Option<bool> {
        self.end.map(|end| end.trailing_garbage)
    }

    /// How many blobs, from the first on, are those of `truth`.
    pub(super) fn exact(&self, truth: &[Blob]) -> usize {
        self.blobs.iter().zip(truth).take_while(|(seen, truth)| seen == truth).count()
    }

    #[track_caller]
    pub(super) fn assert_clean(&self, truth: &[Blob], what: &str) {
        assert!(self.error.is_none(), "{what}: {:?}", self.error);
        assert_eq!(self.blobs, truth, "{what}");
        assert_eq!(self.verified, truth.len(), "{what}");
    }
}

/// Streams a whole archive, in steps of an odd length, and checks what the reader says at the end.
pub(super) fn read(source: impl Read) -> Seen {
    let mut reader = Reader::new(source).unwrap();
    let mut seen = Seen::default();
    seen.error = read_into(&mut reader, &mut seen).err();
    if let (Some(end), None) = (reader.end(), &seen.error) {
        assert_eq!(end.blobs, seen.blobs.len() as u64);
        assert_eq!(reader.verified(), end.blobs, "a clean end means that everything is verified");
    }
    if seen.error.is_some() {
        assert_eq!(reader.next_event().err().map(|e| e.code()), Some("stopped"));
        assert!(reader.end().is_none());
        assert_eq!(reader.verified(), seen.verified as u64);
    }
    assert_eq!(reader.blobs(), seen.blobs.len() as u64);
    seen
}

fn read_into<R: Read>(reader: &mut Reader<R>, seen: &mut Seen) -> Result<(), Error> {
    let mut buf = vec![0; 50_001];
    loop {
        match reader.next_event()? {
            Event::Blob(mut blob) => {
                assert_eq!(blob.index(), seen.blobs.len() as u64);
                let (mut sha, mut len) = (Sha256::new(), 0);
                loop {
                    let step = blob.read_content(&mut buf)?;
                    if step == 0 {
                        break;
                    }
                    sha.update(&buf[..step]);
                    len += step as u64;
                }
                seen.blobs.push((blob.name().to_owned(), sha.hex(), len));
                assert_eq!(reader.verified(), seen.verified as u64, "not before the hash");
            }
            Event::Verified(session) => {
                assert_eq!(session.blobs.start, seen.verified as u64);
                seen.verified = usize::try_from(session.blobs.end).unwrap();
                assert_eq!(seen.verified, seen.blobs.len());
            }
            Event::End(end) => {
                seen.end = Some(end);
                return Ok(());
            }
        }
    }
}

pub(super) fn blob(name: &str, content: &[u8]) -> Blob {
    (name.to_owned(), super::sha256::sha256(content), content.len() as u64)
}

pub(super) fn rng(seed: u64) -> StdRng {
    StdRng::seed_from_u64(seed)
}

/// Bytes that zstd cannot make smaller.
pub(super) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    rng(seed).fill_bytes(&mut bytes);
    bytes
}

/// An archive in memory with these sessions, and its blobs.
pub(super) fn archive(sessions: &[&[(&str, &[u8])]]) -> (Vec<u8>, Vec<Blob>) {
    let (mut bytes, mut blobs) = (Vec::new(), Vec::new());
    for session in sessions {
        bytes = append(bytes, session, WriteOptions::default()).unwrap();
        blobs.extend(session.iter().map(|(name, content)| blob(name, content)));
    }
    (bytes, blobs)
}

/// Appends one more session to an archive.
pub(super) fn append(bytes: Vec<u8>, session: &[(&str, &[u8])], options: WriteOptions) -> Result<Vec<u8>, Error> {
    let mut writer = Writer::with_options(Cursor::new(bytes), options)?;
    for (name, content) in session {
        writer.append(name, *content)?;
    }
    Ok(writer.into_storage().into_inner())
}

/// Content for a blob `fill`. If `fill` is appended to `before` after the blobs of `session`, in
/// the same session, the archive ends exactly at `end`.
pub(super) fn filling(before: &[u8], session: &[(&str, &[u8])], end: usize) -> Vec<u8> {
    let mut len = end - before.len() - session.iter().map(|(_, content)| content.len()).sum::<usize>() - 40;
    for _ in 0..8 {
        let content = noise(7, len);
        let mut all = session.to_vec();
        all.push(("fill", &content));
        let now = append(before.to_vec(), &all, WriteOptions::default()).unwrap().len();
        if now == end {
            return content;
        }
        len = (len + end).checked_sub(now).expect("room for a filling");
    }
    panic!("no filling ends at {end}");
}
