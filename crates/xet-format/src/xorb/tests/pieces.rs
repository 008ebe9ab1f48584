use super::{Version, small_xorb, verify, verify_pieces, with_footer};
use crate::tests::Noise;
use crate::xorb::{Splitter, XorbErrorKind};

#[test]
fn pieces_of_every_size_give_what_the_whole_gives() {
    let (xorb, _) = small_xorb();
    let bodies = [xorb.bytes().to_vec(), with_footer(&xorb, Version::V0), with_footer(&xorb, Version::V1)];
    for body in &bodies {
        assert_eq!(verify(body).as_ref(), Ok(xorb.xorb()));
        for piece_len in 1..=body.len() {
            let (frames, result) = verify_pieces(body.chunks(piece_len));
            assert_eq!(result.as_ref(), Ok(xorb.xorb()), "pieces of {piece_len}");
            assert_eq!(frames, xorb.bytes(), "what is given out is the xorb without its footer");
        }
    }
}

/// Pieces have random lengths, also 0. Some bodies are damaged.
#[test]
fn any_pieces_give_the_result_of_the_whole_body() {
    let (xorb, _) = small_xorb();
    let whole = with_footer(&xorb, Version::V1);
    for seed in 0..3_000 {
        let mut noise = Noise::new(seed);
        let mut body = whole.clone();
        if seed % 3 > 0 {
            let index = noise.below(body.len());
            body[index] ^= 1 << noise.below(8);
        }
        if seed % 3 == 2 {
            body.truncate(noise.below(body.len()));
        }
        let mut pieces = Vec::new();
        let mut rest = body.as_slice();
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(noise.below(rest.len().min(200) + 1));
            pieces.push(piece);
            rest = after;
        }
        let (frames, result) = verify_pieces(pieces);
        assert_eq!(result, verify(&body), "seed {seed}");
        assert!(body.starts_with(&frames), "seed {seed}");
    }
}

#[test]
fn splitter_yields_placed_frames_and_stops_at_the_footer() {
    let (xorb, _) = small_xorb();
    let body = with_footer(&xorb, Version::V1);
    for piece_len in [1, 7, 8, 9, body.len()] {
        let mut splitter = Splitter::new(body.len() as u64);
        let mut places = xorb.xorb().layout().chunks();
        let mut footer = Vec::new();
        for mut piece in body.chunks(piece_len) {
            while let Some(frame) = splitter.next_frame(&mut piece).unwrap() {
                let place = places.next().unwrap();
                assert_eq!((frame.index, frame.offset), (place.index, place.serialized.start()));
                assert_eq!(frame.bytes, &body[place.serialized.start() as usize..place.serialized.end() as usize]);
                assert_eq!(frame.bytes[8..], *frame.payload());
                assert_eq!(u64::from(frame.header.raw_len), place.raw.byte_len());
            }
            footer.extend_from_slice(piece);
        }
        assert!(places.next().is_none());
        let start = splitter.footer().unwrap();
        assert_eq!((start.offset, start.version), (xorb.bytes().len() as u64, 1));
        assert_eq!(footer, body[xorb.bytes().len() + 8..], "the rest of the footer is the caller's");
        assert_eq!(splitter.finish(), Ok(()));
    }
}

#[test]
fn splitter_does_not_copy_a_frame_that_lies_inside_a_piece() {
    let (xorb, _) = small_xorb();
    let mut splitter = Splitter::new(u64::MAX);
    let mut rest = xorb.bytes();
    while let Some(frame) = splitter.next_frame(&mut rest).unwrap() {
        assert!(xorb.bytes().as_ptr_range().contains(&frame.bytes.as_ptr()));
    }
}

#[test]
fn splitter_says_what_is_missing_at_the_end() {
    let (xorb, _) = small_xorb();
    let first = xorb.xorb().layout().chunks().next().unwrap().serialized.end() as usize;
    let finish = |len: usize| {
        let mut splitter = Splitter::new(u64::MAX);
        let mut rest = &xorb.bytes()[..len];
        while splitter.next_frame(&mut rest).unwrap().is_some() {}
        splitter.finish().map_err(|error| (error.offset, error.chunk, error.kind))
    };
    assert_eq!(finish(0), Err((0, None, XorbErrorKind::Empty)));
    assert_eq!(finish(3), Err((3, Some(0), XorbErrorKind::HeaderIncomplete { have: 3 })));
    let expected = first as u32 - 8;
    assert_eq!(finish(8), Err((8, Some(0), XorbErrorKind::PayloadIncomplete { have: 0, expected })));
    assert_eq!(finish(9), Err((9, Some(0), XorbErrorKind::PayloadIncomplete { have: 1, expected })));
    assert_eq!(finish(first), Ok(()));
    let kind = XorbErrorKind::HeaderIncomplete { have: 1 };
    assert_eq!(finish(first + 1), Err((first as u64 + 1, Some(1), kind)));
}
