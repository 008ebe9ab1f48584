//! Any bytes as the body of a xorb: nothing panics, pieces agree with the whole, and what is accepted can be written
//! again.
//!
//! The input is eight lengths of pieces, which are used in turn, and then the body.

use xet_format::compression::Decoder;
use xet_format::limits::MAX_XORB_BODY_LEN;
use xet_format::xorb::{Layout, Splitter, VerifiedXorb, Verifier, XorbError, verify, write_v1};

/// The target.
///
/// # Panics
///
/// A promise is broken.
pub fn check(input: &[u8]) {
    let Some((piece_lens, body)) = input.split_first_chunk::<8>() else { return };
    let whole = verify(body);
    let (frames, pieces) = verify_pieces(piece_lens, body);
    assert_eq!(whole, pieces);
    assert!(body.starts_with(&frames));
    match whole {
        Ok(xorb) => check_accepted(&xorb, body, &frames),
        Err(error) => {
            assert!(error.offset <= body.len() as u64, "{error}");
            assert!(!error.class().code().is_empty());
        }
    }
}

fn verify_pieces(piece_lens: &[u8; 8], body: &[u8]) -> (Vec<u8>, Result<VerifiedXorb, XorbError>) {
    let mut verifier = Verifier::new(MAX_XORB_BODY_LEN);
    let mut frames = Vec::new();
    let mut rest = body;
    for len in piece_lens.iter().cycle() {
        // Small ones are more interesting, but large bodies must come to an end.
        let len = if *len < 128 { usize::from(*len) } else { usize::from(*len) << 4 };
        let (mut piece, after) = rest.split_at(len.max(1).min(rest.len()));
        rest = after;
        loop {
            match verifier.next_frame(&mut piece) {
                Ok(Some(frame)) => frames.extend_from_slice(frame),
                Ok(None) => break,
                Err(error) => return (frames, Err(error)),
            }
        }
        assert!(piece.is_empty());
        if rest.is_empty() {
            break;
        }
    }
    (frames, verifier.finish())
}

fn check_accepted(xorb: &VerifiedXorb, body: &[u8], frames: &[u8]) {
    let layout = xorb.layout();
    assert_eq!(layout.serialized_len(), frames.len() as u64);
    assert_eq!(Layout::parse(&layout.pack()).as_ref(), Ok(layout));

    let mut splitter = Splitter::new(MAX_XORB_BODY_LEN);
    let mut decoder = Decoder::new();
    let mut rest = body;
    let mut raw_len = 0;
    while let Some(frame) = splitter.next_frame(&mut rest).expect("it was accepted") {
        raw_len += decoder.decode(&frame.header, frame.payload()).expect("it was accepted").len() as u64;
    }
    assert_eq!(splitter.footer().is_some(), body.len() > frames.len());
    assert_eq!(layout.raw_len(), raw_len);

    let mut again = frames.to_vec();
    assert_eq!(verify(&again).as_ref(), Ok(xorb));
    write_v1(xorb, &mut again);
    assert_eq!(verify(&again).as_ref(), Ok(xorb));
}
