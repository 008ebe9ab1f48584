//! Damaged shards: truncated at every byte, or changed at every byte.

use rand::RngExt;

use super::support::{footer, random_shard, rng, sample};
use crate::shard::{Class, parse, write_upload};

fn sample_bytes() -> Vec<u8> {
    write_upload(&sample()).unwrap()
}

/// The sample with lookup tables of 60 bytes and a footer.
fn sample_with_footer() -> Vec<u8> {
    let mut bytes = sample_bytes();
    bytes[40] = 200;
    bytes.extend([0xaa; 60]);
    bytes.extend(footer(bytes.len()));
    bytes
}

#[test]
fn every_proper_prefix_is_refused_as_truncated() {
    let bytes = sample_bytes();
    for len in 0..bytes.len() {
        let error = parse(&bytes[..len]).unwrap_err();
        assert_eq!(error.class(), Class::Truncated, "{len} bytes: {error}");
        assert!(error.offset <= len as u64, "{len} bytes: {error}");
    }
}

#[test]
fn prefix_with_footer_is_whole_from_its_second_bookend() {
    let bytes = sample_with_footer();
    for len in 0..bytes.len() {
        let parsed = parse(&bytes[..len]);
        if len < sample_bytes().len() {
            assert_eq!(parsed.map_err(|error| error.class()), Err(Class::Truncated), "{len} bytes");
        } else {
            assert_eq!(parsed, Ok(sample()), "{len} bytes");
        }
    }
}

/// The offsets of the bytes of [`sample_bytes`] that the parser ignores: reserved fields and
/// unknown flags.
fn ignored() -> Vec<usize> {
    let tail = |record: usize, from: usize, to: usize| (48 * record + from)..(48 * record + to);
    [
        tail(1, 40, 48), // file: reserved
        tail(2, 32, 36), // term: flags
        tail(3, 32, 36),
        tail(4, 32, 48), // range hash: reserved
        tail(5, 32, 48),
        tail(6, 32, 48),  // sha256: reserved
        tail(7, 40, 48),  // empty file: reserved
        tail(8, 32, 48),  // bookend: reserved
        tail(9, 32, 36),  // xorb: flags
        tail(9, 44, 48),  // xorb: length on disk
        tail(10, 40, 43), // chunk: flags but for the top one
        tail(10, 44, 48), // chunk: reserved
        tail(11, 40, 43),
        tail(11, 44, 48),
        tail(12, 40, 43),
        tail(12, 44, 48),
        tail(13, 40, 43),
        tail(13, 44, 48),
        tail(14, 32, 36), // xorb
        tail(14, 44, 48),
        tail(15, 40, 43), // chunk
        tail(15, 44, 48),
        tail(16, 32, 48), // bookend: reserved
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[test]
fn changed_field_is_refused_or_shows_unless_reserved() {
    let bytes = sample_bytes();
    let ignored = ignored();
    for index in 0..bytes.len() {
        // All bits, the lowest and the highest bit. The lowest makes a length one byte longer or
        // shorter, which must not be accepted either. In the top byte of a chunk's flags, the
        // lowest bit has no meaning.
        for change in [0xff, 0x01, 0x80] {
            let mut changed = bytes.clone();
            changed[index] ^= change;
            let flags_of_chunk = [10, 11, 12, 13, 15].iter().any(|record| index == 48 * record + 43);
            let is_ignored = ignored.contains(&index) || (flags_of_chunk && change == 0x01);
            assert_eq!(parse(&changed) == Ok(sample()), is_ignored, "byte {index} of record {}", index / 48);
        }
    }
}

#[test]
fn every_number_that_is_changed_in_length_or_place_is_refused() {
    // Lengths and offsets in the xorb section depend on each other, so a change of only one of them
    // is always refused.
    let bytes = sample_bytes();
    let fields = [(9, 36), (9, 40), (10, 32), (10, 36), (11, 32), (11, 36), (13, 36), (14, 36), (14, 40), (15, 32)];
    for (record, field) in fields {
        let at = 48 * record + field;
        let value = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        for other in [0, value.wrapping_sub(1), value + 1, value ^ 0x8000, u32::MAX] {
            if other == value {
                continue;
            }
            let mut changed = bytes.clone();
            changed[at..at + 4].copy_from_slice(&other.to_le_bytes());
            assert!(parse(&changed).is_err(), "{value} to {other} in record {record} at {field}");
        }
    }
}

#[test]
fn nothing_in_an_uploaded_footer_is_used() {
    let bytes = sample_with_footer();
    let start = bytes.len() - 200;
    for index in start - 60..bytes.len() {
        let mut changed = bytes.clone();
        changed[index] ^= 0xff;
        assert_eq!(parse(&changed), Ok(sample()), "byte {} of the footer", index as i64 - start as i64);
    }
}

#[test]
fn damaged_shard_that_parses_round_trips() {
    let mut rng = rng(3);
    let mut taken = 0;
    for _ in 0..20_000 {
        let mut bytes = write_upload(&random_shard(&mut rng)).unwrap();
        for _ in 0..rng.random_range(0..3) {
            let index = rng.random_range(0..bytes.len());
            bytes[index] = rng.random();
        }
        if let Ok(shard) = parse(&bytes) {
            taken += 1;
            assert_eq!(parse(&write_upload(&shard).unwrap()), Ok(shard));
        }
    }
    assert!(taken > 5_000, "{taken}");
}

#[test]
fn random_bytes_behind_a_valid_header_do_no_harm() {
    let mut rng = rng(4);
    for _ in 0..5_000 {
        let mut bytes = super::support::header(if rng.random() { 0 } else { 200 });
        // Small bytes more often give numbers within the limits.
        let small = rng.random_bool(0.5);
        for _ in 0..rng.random_range(0..600) {
            bytes.push(if small { rng.random_range(0..3) } else { rng.random() });
        }
        let _outcome = parse(&bytes);
    }
}
