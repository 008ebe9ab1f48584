use crate::xorb::{Layout, LayoutBuilder, LayoutError};
use crate::{ByteRange, ChunkRange};

/// A layout of chunks with these record and raw lengths.
fn layout(chunks: &[(u32, u32)]) -> Layout {
    let mut builder = LayoutBuilder::new();
    for (record_len, raw_len) in chunks {
        builder.push(*record_len, *raw_len).unwrap();
    }
    builder.finish().unwrap()
}

fn chunks(start: u32, end: u32) -> ChunkRange {
    ChunkRange::new(start, end).unwrap()
}

fn bytes(start: u64, end: u64) -> ByteRange {
    ByteRange::new(start, end).unwrap()
}

#[test]
fn ranges_are_half_open_and_never_empty() {
    assert_eq!(ChunkRange::new(3, 3), None);
    assert_eq!(ChunkRange::new(4, 3), None);
    assert_eq!((chunks(3, 7).start(), chunks(3, 7).end(), chunks(3, 7).count()), (3, 7, 4));
    assert_eq!(chunks(3, 7).to_string(), "3-7");
    assert_eq!(ByteRange::new(u64::MAX, u64::MAX), None);
    assert_eq!(ByteRange::new(1, 0), None);
    let all = bytes(0, u64::MAX);
    assert_eq!((all.start(), all.end(), all.byte_len(), all.last()), (0, u64::MAX, u64::MAX, u64::MAX - 1));
    assert_eq!(bytes(5, 6).to_string(), "5-6");
}

#[test]
fn chunk_ranges_map_to_their_records_and_raw_bytes() {
    let layout = layout(&[(108, 200), (9, 1), (58, 50)]);
    assert_eq!((layout.chunk_count(), layout.serialized_len(), layout.raw_len()), (3, 175, 251));
    assert_eq!(layout.whole(), chunks(0, 3));
    let check = |range, serialized, raw| {
        assert_eq!((layout.serialized_range(range), layout.raw_range(range)), (serialized, raw), "{range}");
    };
    check(chunks(0, 1), Some(bytes(0, 108)), Some(bytes(0, 200)));
    check(chunks(1, 2), Some(bytes(108, 117)), Some(bytes(200, 201)));
    check(chunks(1, 3), Some(bytes(108, 175)), Some(bytes(200, 251)));
    check(chunks(0, 3), Some(bytes(0, 175)), Some(bytes(0, 251)));
    check(chunks(0, 4), None, None);
    check(chunks(3, 4), None, None);
    check(chunks(0, u32::MAX), None, None);
    let places: Vec<_> = layout.chunks().map(|place| (place.index, place.serialized, place.raw)).collect();
    let expected = [
        (0, bytes(0, 108), bytes(0, 200)),
        (1, bytes(108, 117), bytes(200, 201)),
        (2, bytes(117, 175), bytes(201, 251)),
    ];
    assert_eq!(places, expected);
    let inside =
        |range| Some(layout.chunks_in(range)?.map(|place| (place.index, place.serialized, place.raw)).collect());
    assert_eq!(inside(chunks(0, 3)), Some(expected.to_vec()));
    assert_eq!(inside(chunks(1, 3)), Some(expected[1..].to_vec()));
    assert_eq!(inside(chunks(1, 2)), Some(expected[1..2].to_vec()));
    assert_eq!((inside(chunks(2, 4)), inside(chunks(3, 4))), (None, None));
}

#[test]
fn raw_bytes_map_to_the_fewest_chunks_that_hold_them() {
    let layout = layout(&[(108, 200), (9, 1), (58, 50)]);
    for start in 0..251 {
        for end in start + 1..=251 {
            let found = layout.chunks_of_raw(bytes(start, end)).unwrap();
            let raw = layout.raw_range(found).unwrap();
            assert!(raw.start() <= start && end <= raw.end(), "{start}-{end}");
            let touched = layout.chunks().filter(|place| place.raw.start() < end && start < place.raw.end()).count();
            assert_eq!(found.count() as usize, touched, "{start}-{end}");
        }
    }
    assert_eq!(layout.chunks_of_raw(bytes(0, 252)), None);
    assert_eq!(layout.chunks_of_raw(bytes(251, 252)), None);
}

#[test]
fn packed_layout_reads_back_and_nothing_else_does() {
    let layout = layout(&[(108, 200), (9, 1), (58, 50)]);
    let packed = layout.pack();
    assert_eq!(packed.len(), 24);
    assert_eq!(Layout::parse(&packed), Ok(layout.clone()));
    for len in 0..packed.len() {
        match Layout::parse(&packed[..len]) {
            // A packed layout has no count, so a prefix of whole entries is a shorter layout.
            Ok(shorter) => assert_eq!((len % 8, shorter.chunk_count()), (0, len as u32 / 8)),
            Err(error) => assert_eq!(error, LayoutError::PackedLen { len }),
        }
    }
    assert_eq!(Layout::parse(&[]), Err(LayoutError::PackedLen { len: 0 }));
    let second = &packed[8..16];
    assert_eq!(Layout::parse(&[&packed, second].concat()), Err(LayoutError::ChunkLen { index: 3 }), "runs backwards");
    assert_eq!(Layout::parse(&[second, second].concat()), Err(LayoutError::ChunkLen { index: 1 }), "stands still");
}

/// Also checks that entries that run backwards are refused.
#[test]
fn part_of_a_packed_layout_gives_raw_chunk_lengths() {
    let (packed, raw_lens) = (layout(&[(108, 200), (9, 1), (58, 50)]).pack(), [200, 1, 50]);
    for first in 0..=3_u32 {
        // The part begins with the entry before the chunk `first`.
        let begin = first.saturating_sub(1) as usize * 8;
        for end in begin..=packed.len() {
            let part = Layout::parse_raw_lens(&packed[begin..end], first);
            if (end - begin).is_multiple_of(8) {
                let lens = raw_lens.get(first as usize..end / 8).unwrap_or_default();
                assert_eq!(part.as_deref(), Ok(lens), "{first}, {begin} to {end}");
            } else {
                assert_eq!(part, Err(LayoutError::PackedLen { len: end - begin }));
            }
        }
    }
    let (first, second) = (&packed[..8], &packed[8..16]);
    let backwards = [second, first].concat();
    assert_eq!(Layout::parse_raw_lens(&backwards, 5), Err(LayoutError::ChunkLen { index: 5 }));
    assert_eq!(Layout::parse_raw_lens(&backwards, 0), Err(LayoutError::ChunkLen { index: 1 }));
    assert_eq!(Layout::parse_raw_lens(&packed[..16], 8192), Err(LayoutError::TooManyChunks));
    assert_eq!(Layout::parse_raw_lens(&packed[..16], u32::MAX), Err(LayoutError::TooManyChunks));
}

#[test]
fn chunks_at_the_limits_are_taken_and_beyond_them_refused() {
    let push = |record_len, raw_len| LayoutBuilder::new().push(record_len, raw_len);
    assert_eq!(push(9, 1), Ok(()));
    assert_eq!(push(8 + 262_144, 131_072), Ok(()));
    let impossible = Err(LayoutError::ChunkLen { index: 0 });
    for (record_len, raw_len) in [(8, 1), (0, 1), (9, 0), (9 + 262_144, 1), (9, 131_073), (u32::MAX, 1), (9, u32::MAX)]
    {
        assert_eq!(push(record_len, raw_len), impossible, "{record_len}, {raw_len}");
    }

    let mut many = LayoutBuilder::new();
    for _ in 0..8_192 {
        many.push(9, 1).unwrap();
    }
    assert_eq!(many.push(9, 1), Err(LayoutError::TooManyChunks));
    assert_eq!(many.finish().map(|layout| layout.chunk_count()), Some(8_192));

    let mut large = LayoutBuilder::new();
    for _ in 0..512 {
        large.push(9, 131_072).unwrap();
    }
    assert_eq!(large.push(9, 1), Err(LayoutError::TooLarge { index: 512 }));
    assert_eq!(large.finish().map(|layout| layout.raw_len()), Some(67_108_864));
    assert_eq!(LayoutBuilder::new().finish(), None);
}
