//! `Contents` during a walk through a file: it has the rows of as few chunks as the current terms
//! need.

use super::faults::Moment;
use super::records::xorb_of;
use super::{Setup, upload};
use crate::format::shard::Term;
use crate::format::xorb::BuiltXorb;
use crate::format::{ChunkRange, XorbHash};
use crate::service::contents::Contents;

/// A term of these chunks, with the length that they have.
fn term(xorb: &BuiltXorb, start: u32, end: u32) -> Term {
    let chunks = ChunkRange::new(start, end).unwrap();
    let raw = xorb.xorb().layout().raw_range(chunks).unwrap();
    Term { xorb: xorb.xorb().hash(), chunks, raw_len: u32::try_from(raw.byte_len()).unwrap() }
}

/// Whether the contents have exactly the chunks of this term.
fn knows(contents: &Contents, xorb: &BuiltXorb, term: &Term) -> bool {
    let range = term.chunks.start() as usize..term.chunks.end() as usize;
    let places = xorb.xorb().layout().chunks_in(term.chunks).unwrap();
    let lens: Vec<u32> = places.map(|place| u32::try_from(place.raw.byte_len()).unwrap()).collect();
    let hashes = &xorb.xorb().chunk_hashes()[range];
    contents.chunks(term).is_some_and(|chunks| chunks.hashes == hashes && chunks.raw_lens == lens)
}

#[tokio::test]
async fn xorb_is_read_for_its_terms_and_once_more_for_later_ones() {
    let setup = Setup::new().await;
    let server = setup.process();
    let (one, other) = (xorb_of(&(0..12).collect::<Vec<_>>()), xorb_of(&[100, 101]));
    for xorb in [&one, &other] {
        upload(&server, xorb).await.unwrap();
    }
    let all = [term(&one, 0, 12), term(&other, 0, 2)];
    // For two terms that are apart, the contents have their chunks and the chunks between them, and
    // no others.
    let mut contents = server.store.contents(Contents::default(), &[term(&one, 3, 4), term(&one, 6, 7)]).await.unwrap();
    assert!(knows(&contents, &one, &term(&one, 3, 7)) && !contents.has(&other.xorb().hash()));
    assert!([(2, 4), (6, 8)].iter().all(|(start, end)| contents.chunks(&term(&one, *start, *end)).is_none()));
    // A range within the known part is not read again. Any other range makes the walk read the
    // whole row, once.
    for (start, end, is_read, is_all) in
        [(4, 6, false, false), (7, 8, true, true), (0, 1, false, true), (11, 12, false, true), (0, 12, false, true)]
    {
        setup.faults.arm_at("xorb_parts", Moment::Before);
        let terms = [term(&one, start, end)];
        let read = server.store.contents(contents, &terms).await;
        assert_eq!((read.is_err(), setup.faults.disarm().is_some()), (is_read, is_read), "{start}-{end}");
        contents = match read {
            Ok(contents) => contents,
            Err(_) => {
                let before = server.store.contents(Contents::default(), &[term(&one, 3, 7)]).await.unwrap();
                server.store.contents(before, &terms).await.unwrap()
            }
        };
        assert!(knows(&contents, &one, &terms[0]), "{start}-{end}");
        assert_eq!(knows(&contents, &one, &all[0]), is_all, "{start}-{end}");
    }
    // Xorbs that are no longer named are dropped.
    contents = server.store.contents(contents, &all[1..]).await.unwrap();
    assert!(!contents.has(&one.xorb().hash()) && contents.chunks(&all[0]).is_none());
    assert!(knows(&contents, &other, &all[1]));
}

/// Invalid terms are past the end of their xorb, or state a wrong length.
#[tokio::test]
async fn invalid_terms_and_missing_xorbs_have_no_chunks() {
    let setup = Setup::new().await;
    let server = setup.process();
    let xorb = xorb_of(&[1, 2, 3]);
    upload(&server, &xorb).await.unwrap();
    let good = term(&xorb, 1, 3);
    let past = |start, end| Term { chunks: ChunkRange::new(start, end).unwrap(), ..good };
    let wrong = [
        past(1, 4),
        past(3, 4),
        past(u32::MAX - 1, u32::MAX),
        Term { raw_len: good.raw_len - 1, ..good },
        Term { raw_len: u32::MAX, ..good },
    ];
    for term in wrong {
        // The invalid term alone, and together with a valid one.
        for terms in [&[term][..], &[good, term], &[term, good]] {
            let contents = server.store.contents(Contents::default(), terms).await.unwrap();
            assert!(contents.has(&term.xorb) && contents.chunks(&term).is_none(), "{term:?}");
            assert!(!terms.contains(&good) || knows(&contents, &xorb, &good), "{term:?}");
        }
    }
    let missing = Term { xorb: XorbHash::from_bytes([1; 32]), ..good };
    let contents = server.store.contents(Contents::default(), &[missing, good]).await.unwrap();
    assert!(!contents.has(&missing.xorb) && contents.chunks(&missing).is_none() && knows(&contents, &xorb, &good));
}
