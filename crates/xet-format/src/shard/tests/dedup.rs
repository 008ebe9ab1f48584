//! Responses to chunk queries, as a client reads them.

use super::support::{footer, record, sample, shard_of, xorb};
use crate::HmacKey;
use crate::shard::{DedupResponse, DedupShard, Kind, parse_dedup_response, write_dedup_response, write_upload};

const KEY: HmacKey = HmacKey::from_bytes([7; 32]);

fn response() -> Vec<u8> {
    let xorbs = [xorb(0x20, &[500, 1000, 2000, 1]), xorb(0x21, &[70_000])];
    let response = DedupResponse { xorbs: &xorbs, key: KEY, created_unix_secs: 1_000, key_expires_unix_secs: 2_000 };
    write_dedup_response(&response).unwrap()
}

#[test]
fn a_response_reads_back_with_its_hashes_blinded() {
    let DedupShard { xorbs, key, created_unix_secs, key_expires_unix_secs } =
        parse_dedup_response(&response()).unwrap();
    assert_eq!((key, created_unix_secs, key_expires_unix_secs), (KEY, 1_000, 2_000));
    let mut expected = [xorb(0x20, &[500, 1000, 2000, 1]), xorb(0x21, &[70_000])];
    for chunk in expected.iter_mut().flat_map(|xorb| &mut xorb.chunks) {
        chunk.hash = KEY.blind(&chunk.hash);
    }
    assert_eq!(xorbs, expected);
}

#[test]
fn response_prefix_is_refused_and_so_is_a_byte_more() {
    let mut bytes = response();
    for len in 0..bytes.len() {
        let error = parse_dedup_response(&bytes[..len]).unwrap_err();
        assert!(error.offset <= len as u64, "{len} bytes: {error}");
    }
    bytes.push(0);
    assert!(parse_dedup_response(&bytes).is_err());
}

/// Except for fields that the parser does not use: offsets in the footer and reserved bytes.
#[test]
fn changed_response_field_is_refused_or_parsed() {
    let bytes = response();
    let (good, footer_at) = (parse_dedup_response(&bytes).unwrap(), bytes.len() - 200);
    // In the footer: offsets of sections and tables, reserved bytes and sums. In the records of
    // xorbs and chunks: the same bytes as in the module `corrupt`.
    let is_ignored = |index: usize| match index.checked_sub(footer_at) {
        Some(at) => (8..72).contains(&at) || (120..192).contains(&at),
        None => match (index / 48, index % 48) {
            (1 | 9, at) => at >= 32,
            (2 | 7, at) => (32..36).contains(&at) || at >= 44,
            (3..=6 | 8, at) => (40..43).contains(&at) || at >= 44,
            _ => false,
        },
    };
    for index in 0..bytes.len() {
        for change in [0xff, 0x01] {
            let mut changed = bytes.clone();
            changed[index] ^= change;
            let is_same = parse_dedup_response(&changed).as_ref() == Ok(&good);
            // The top byte of a chunk's flags has seven bits without meaning.
            let is_flag = index < footer_at && index % 48 == 43;
            assert!(is_same == is_ignored(index) || is_flag, "byte {index} of {}, change {change:#x}", bytes.len());
        }
    }
}

#[test]
fn response_without_footer_is_invalid_and_files_are_dropped() {
    let error = parse_dedup_response(&write_upload(&sample()).unwrap()).unwrap_err();
    assert_eq!((error.offset, error.kind), (40, Kind::FooterAbsent));
    // Like the response of the reference server: the shard of an upload, lookup tables, and a
    // footer.
    let mut bytes = write_upload(&sample()).unwrap();
    bytes[40] = 200;
    bytes.extend([0xaa; 60]);
    bytes.extend(footer(bytes.len()));
    let told = parse_dedup_response(&bytes).unwrap();
    assert_eq!((told.xorbs, told.key), (sample().xorbs, HmacKey::from_bytes([0xee; 32])));
}

#[test]
fn response_with_a_false_count_allocates_nothing_for_it() {
    let mut bytes = shard_of(&[], &[record(0x20, [0, 8_192, 64 << 20, 0])]);
    bytes[40] = 200;
    let error = parse_dedup_response(&bytes).unwrap_err();
    assert!(matches!(error.kind, Kind::Truncated { wanted, .. } if wanted == 8_192 * 48), "{error}");
}
