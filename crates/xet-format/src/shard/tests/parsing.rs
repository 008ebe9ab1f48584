//! Which shards the parser accepts, and which error it returns for the others.

use super::support::{bookend, check_refused, footer, header, record, sample, shard_of, term, xorb};
use crate::shard::cas_info::DuplicatePolicy;
use crate::shard::parse::parse_with;
use crate::shard::{CasChunk, Class, FileInfo, Kind, Shard, Term, parse, parse_stored, write_upload};
use crate::{ChunkRange, FileHash, RangeHash, XorbHash};

const VERIFIED: u32 = 1 << 31;
const WITH_SHA256: u32 = 1 << 30;

/// Offset of the first record after the header.
const FIRST: u64 = 48;

fn check_taken(bytes: &[u8]) -> Shard {
    parse(bytes).unwrap()
}

#[test]
fn shard_without_files_and_xorbs_has_144_bytes() {
    let bytes = shard_of(&[], &[]);
    assert_eq!(bytes.len(), 144);
    assert_eq!(check_taken(&bytes), Shard::default());
}

#[test]
fn the_empty_file_has_no_terms_but_a_proof_of_none_and_a_sha256() {
    let bytes = shard_of(&[record(0, [VERIFIED | WITH_SHA256, 0, 0, 0]), record(0, [0; 4])], &[]);
    assert_eq!(bytes.len(), 240, "as clients send it");
    let files = check_taken(&bytes).files;
    assert_eq!(files.len(), 1);
    assert_eq!(files[0].hash, FileHash::EMPTY);
    assert_eq!((files[0].terms.len(), files[0].range_hashes.as_deref()), (0, Some(&[][..])));
    assert_eq!(files[0].sha256.unwrap().to_string(), "0".repeat(64));
    assert_eq!(files[0].raw_len(), 0);
}

#[test]
fn a_shard_of_files_only_refers_to_xorbs_of_other_shards() {
    let shard = Shard { xorbs: vec![], ..sample() };
    assert_eq!(check_taken(&write_upload(&shard).unwrap()), shard);
}

#[test]
fn a_shard_of_xorbs_only_has_no_files() {
    let shard = Shard { files: vec![], ..sample() };
    assert_eq!(check_taken(&write_upload(&shard).unwrap()), shard);
}

#[test]
fn a_file_without_sha256_and_without_range_hashes_is_taken() {
    let bytes = shard_of(&[record(1, [0, 1, 0, 0]), record(2, [0, 10, 0, 1])], &[]);
    let files = check_taken(&bytes).files;
    assert_eq!((files[0].range_hashes.as_ref(), files[0].sha256), (None, None));
    assert_eq!(files[0].terms, [term(2, 0, 1, 10)]);
}

#[test]
fn sha256_is_stored_with_each_group_of_8_bytes_reversed() {
    let mut ext = record(0, [0; 4]);
    ext[..8].copy_from_slice(&[0x14, 0xca, 0xa5, 0x6b, 0x0e, 0x99, 0x07, 0x13]);
    let bytes = shard_of(&[record(0, [WITH_SHA256, 0, 0, 0]), ext], &[]);
    let sha256 = check_taken(&bytes).files[0].sha256.unwrap();
    assert!(sha256.to_string().starts_with("1307990e6ba5ca140000"), "{sha256}");
    assert_eq!(sha256.to_string().parse(), Ok(sha256));
}

#[test]
fn a_file_that_comes_twice_counts_once_as_it_came_first() {
    let first = [record(1, [0, 1, 0, 0]), record(2, [0, 10, 0, 1])];
    let second = [record(1, [0, 1, 0, 0]), record(3, [0, 20, 0, 1])];
    let files = check_taken(&shard_of(&[first.concat(), second.concat()], &[])).files;
    assert_eq!(files.len(), 1);
    assert_eq!(files[0].terms, [term(2, 0, 1, 10)]);
}

#[test]
fn a_file_that_comes_twice_is_checked_the_second_time_too() {
    let file = [record(1, [0, 1, 0, 0]), record(2, [0, 10, 0, 1])].concat();
    let bad_term = [record(1, [0, 1, 0, 0]), record(2, [0, 10, 1, 1])].concat();
    let kind = Kind::TermChunks { start: 1, end: 1 };
    check_refused(&shard_of(&[file.clone(), bad_term], &[]), FIRST + 3 * 48, kind);
    let verified = [record(1, [VERIFIED, 1, 0, 0])].concat();
    check_refused(&shard_of(&[file, verified], &[]), FIRST + 2 * 48, Kind::MixedVerification);
}

#[test]
fn doubled_xorb_block_is_refused_while_parsing() {
    let once = write_upload(&Shard { files: vec![], xorbs: vec![xorb(1, &[5]), xorb(2, &[6])] }).unwrap();
    let [first, second] = [96..192, 192..288].map(|block: std::ops::Range<usize>| once[block].to_vec());
    check_taken(&shard_of(&[], &[first.clone(), second.clone()]));
    let twice = shard_of(&[], &[first.clone(), second.clone(), first.clone()]);
    check_refused(&twice, 288, Kind::DuplicateXorb);
    // The duplicate is refused before its chunks are read, so they need not be there.
    check_refused(&twice[..336], 288, Kind::DuplicateXorb);
    // Earlier versions stored such shards. Reading a stored one drops the duplicate.
    assert_eq!(parse_stored(&twice), parse(&once));
    let error = write_upload(&Shard { files: vec![], xorbs: vec![xorb(1, &[5]), xorb(1, &[6])] }).unwrap_err();
    assert_eq!((error.offset, error.kind), (192, Kind::DuplicateXorb));
}

#[test]
fn file_without_terms_is_the_empty_file_or_is_refused() {
    for flags in [0, VERIFIED, WITH_SHA256, VERIFIED | WITH_SHA256] {
        let bytes = |hash| shard_of(&[record(hash, [flags, 0, 0, 0]), record(7, [0; 4])], &[]);
        check_refused(&bytes(1), FIRST, Kind::TermsAbsent);
        assert_eq!(parse(&bytes(0)).is_ok(), flags & WITH_SHA256 != 0, "the record behind it is a sha256 or a file");
    }
    let mut shard = sample();
    shard.files[0].terms.clear();
    shard.files[0].range_hashes = Some(Vec::new());
    assert_eq!(write_upload(&shard).unwrap_err().kind, Kind::TermsAbsent);
}

#[test]
fn range_hashes_in_some_files_only_are_refused_in_any_order() {
    let (with, without) = (record(0, [VERIFIED, 0, 0, 0]), record(0, [0; 4]));
    check_refused(&shard_of(&[with.clone(), without.clone()], &[]), FIRST + 48, Kind::MixedVerification);
    check_refused(&shard_of(&[without, with], &[]), FIRST + 48, Kind::MixedVerification);
}

#[test]
fn lookup_tables_and_footer_announced_in_header_are_skipped() {
    for tables_len in [0, 1, 12, 1000] {
        let mut bytes = write_upload(&sample()).unwrap();
        bytes[40] = 200;
        bytes.extend(vec![0xaa; tables_len]);
        bytes.extend(footer(bytes.len()));
        assert_eq!(check_taken(&bytes), sample(), "{tables_len} bytes of tables");
    }
}

#[test]
fn announced_footer_with_nothing_left_is_no_footer() {
    // hf_xet 1.1.6 to 1.1.10 and 1.2.0 send such shards.
    let mut bytes = write_upload(&sample()).unwrap();
    bytes[40] = 200;
    assert_eq!(check_taken(&bytes), sample());
}

#[test]
fn bytes_in_place_of_an_announced_footer_are_ignored() {
    let mut bytes = write_upload(&sample()).unwrap();
    bytes[40] = 200;
    let whole = [&[0xaa; 60][..], &footer(bytes.len() + 60)].concat();
    for tail in [&[0; 1][..], &[0; 199], &[0; 200], &footer(7), &whole[..100], &[&whole[..], &[0]].concat()] {
        assert_eq!(check_taken(&[&bytes[..], tail].concat()), sample(), "{} bytes", tail.len());
    }
}

#[test]
fn a_footer_of_any_length_but_0_and_200_is_refused() {
    for found in [1, 48, 199, 201, 400, u64::MAX] {
        let bytes = [header(found), bookend(), bookend(), footer(144)].concat();
        check_refused(&bytes, 40, Kind::FooterLen { found });
    }
}

#[test]
fn a_single_byte_after_a_shard_without_footer_is_refused() {
    let bytes = [write_upload(&sample()).unwrap(), vec![0]].concat();
    check_refused(&bytes, bytes.len() as u64 - 1, Kind::TrailingBytes { count: 1 });
}

#[test]
fn a_footer_that_was_not_announced_is_refused() {
    let bytes = write_upload(&sample()).unwrap();
    let with_footer = [&bytes[..], &footer(bytes.len())].concat();
    check_refused(&with_footer, bytes.len() as u64, Kind::TrailingBytes { count: 200 });
}

#[test]
fn each_section_needs_its_bookend() {
    let none = header(0);
    check_refused(&none, 48, Kind::Truncated { wanted: 48, left: 0 });
    let one = [header(0), bookend()].concat();
    check_refused(&one, 96, Kind::Truncated { wanted: 48, left: 0 });
}

#[test]
fn the_version_must_be_2() {
    for found in [0, 1, 3, u64::MAX] {
        let mut bytes = shard_of(&[], &[]);
        bytes[32..40].copy_from_slice(&found.to_le_bytes());
        check_refused(&bytes, 32, Kind::Version { found });
    }
}

#[test]
fn unknown_file_flags_are_refused_as_they_may_add_records() {
    for bit in 0..30 {
        let bytes = shard_of(&[record(1, [1 << bit, 0, 0, 0])], &[]);
        check_refused(&bytes, FIRST, Kind::FileFlags { found: 1 << bit });
    }
}

#[test]
fn a_term_has_1_to_8192_chunks_that_a_xorb_can_have() {
    let check = |start, end, taken: bool| {
        let bytes = shard_of(&[record(1, [0, 1, 0, 0]), record(2, [0, 8192, start, end])], &[]);
        if taken {
            assert_eq!(check_taken(&bytes).files[0].terms, [term(2, start, end, 8192)]);
        } else {
            check_refused(&bytes, FIRST + 48, Kind::TermChunks { start, end });
        }
    };
    check(0, 1, true);
    check(0, 8192, true);
    check(8191, 8192, true);
    check(0, 0, false);
    check(5, 5, false);
    check(6, 5, false);
    check(0, 8193, false);
    check(8192, 8193, false);
    check(0, u32::MAX, false);
    check(u32::MAX, 0, false);
}

#[test]
fn a_term_has_1_byte_to_128_kib_per_chunk() {
    let check = |count: u32, raw_len, taken: bool| {
        let bytes = shard_of(&[record(1, [0, 1, 0, 0]), record(2, [0, raw_len, 0, count])], &[]);
        if taken {
            assert_eq!(check_taken(&bytes).files[0].raw_len(), u64::from(raw_len));
        } else {
            check_refused(&bytes, FIRST + 48, Kind::TermLen { count, raw_len });
        }
    };
    check(1, 0, false);
    check(1, 1, true);
    check(1, 131_072, true);
    check(1, 131_073, false);
    check(3, 2, false);
    check(3, 3, true);
    check(8192, 8192 * 131_072, true);
    check(8192, u32::MAX, false);
}

#[test]
fn a_xorb_has_1_to_8192_chunks() {
    let shard_with = |count: usize| {
        let mut bytes = shard_of(&[], &[record(1, [0, count as u32, count as u32, 0]), vec![0; 48 * count]]);
        for (index, chunk) in bytes[144..].chunks_exact_mut(48).take(count).enumerate() {
            chunk[32..36].copy_from_slice(&(index as u32).to_le_bytes());
            chunk[36] = 1;
        }
        bytes
    };
    assert_eq!(check_taken(&shard_with(8192)).xorbs[0].raw_len, 8192);
    check_refused(&shard_with(8193), 96, Kind::XorbChunkCount { count: 8193 });
    check_refused(&shard_with(0), 96, Kind::XorbEmpty);
}

#[test]
fn a_xorb_has_up_to_64_mib() {
    let full = Shard { files: vec![], xorbs: vec![xorb(1, &[131_072; 512])] };
    let mut bytes = write_upload(&full).unwrap();
    assert_eq!(check_taken(&bytes), full);
    let raw_len: u32 = (64 << 20) + 1;
    bytes[96 + 40..96 + 44].copy_from_slice(&raw_len.to_le_bytes());
    check_refused(&bytes, 96, Kind::XorbTooLarge { raw_len });
}

#[test]
fn a_xorb_whose_lengths_contradict_each_other_is_refused() {
    let check = |header: [u32; 4], chunk: [u32; 4], offset, kind| {
        let chunks = [record(9, [0, 10, 0, 0]), record(9, chunk)];
        check_refused(&shard_of(&[], &[record(1, header), chunks.concat()]), offset, kind);
    };
    check([0, 2, 30, 0], [11, 20, 0, 0], 192, Kind::ChunkOffset { stated: 11, expected: 10 });
    check([0, 2, 30, 0], [0, 20, 0, 0], 192, Kind::ChunkOffset { stated: 0, expected: 10 });
    check([0, 2, 30, 0], [10, 0, 0, 0], 192, Kind::ChunkLen { raw_len: 0 });
    check([0, 2, 30, 0], [10, 131_073, 0, 0], 192, Kind::ChunkLen { raw_len: 131_073 });
    check([0, 2, 31, 0], [10, 20, 0, 0], 96, Kind::XorbLen { stated: 31, actual: 30 });
    check([0, 2, 0, 0], [10, 20, 0, 0], 96, Kind::XorbLen { stated: 0, actual: 30 });
}

#[test]
fn the_length_on_disk_may_be_anything() {
    let bytes = shard_of(&[], &[record(1, [0, 1, 10, 12_345]), record(9, [0, 10, 0, 0])]);
    assert_eq!(check_taken(&bytes).xorbs[0].raw_len, 10);
}

#[test]
fn a_chunk_is_marked_as_eligible_by_its_top_flag_only() {
    let flags = |flags| shard_of(&[], &[record(1, [0, 1, 10, 0]), record(9, [0, 10, flags, 0])]);
    assert!(check_taken(&flags(1 << 31)).xorbs[0].chunks[0].dedup_eligible);
    assert!(!check_taken(&flags(!(1 << 31))).xorbs[0].chunks[0].dedup_eligible);
}

#[test]
fn shard_of_96_bytes_that_claims_gigabytes_allocates_nothing() {
    let before = peak_kib();
    for count in [1, 1 << 20, u32::MAX / 2, u32::MAX] {
        let wanted = u64::from(count) * 48;
        for flags in [0, VERIFIED, VERIFIED | WITH_SHA256] {
            let file = [header(0), record(1, [flags, count, 0, 0])].concat();
            assert_eq!(file.len(), 96);
            check_refused(&file, 96, Kind::Truncated { wanted, left: 0 });
        }
    }
    let xorb = [header(0), bookend(), record(1, [0, 8192, 1, 0])].concat();
    check_refused(&xorb, 144, Kind::Truncated { wanted: 8192 * 48, left: 0 });
    let xorb = [header(0), bookend(), record(1, [0, u32::MAX, 1, 0])].concat();
    check_refused(&xorb, 96, Kind::XorbChunkCount { count: u32::MAX });
    let grown = peak_kib().saturating_sub(before);
    assert!(grown < 1 << 20, "the address space grew by {grown} KiB; the least of the claims is 48 GiB");
}

/// The largest address space that this process has had, in KiB; 0 if the system has no
/// `/proc/self/status`.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPeak:"));
    line.map_or(0, |line| line.trim().trim_end_matches("kB").trim().parse().unwrap())
}

#[test]
fn each_block_needs_records_of_its_own() {
    // The shard has 4 records with the header: the first file takes 2, the second claims 3 terms.
    let bytes = [header(0), record(1, [0, 1, 0, 0]), record(2, [0, 10, 0, 1]), record(3, [0, 3, 0, 0])].concat();
    check_refused(&bytes, 192, Kind::Truncated { wanted: 144, left: 0 });
    // Range hashes need records of their own, besides those of the terms.
    let bytes = [header(0), record(1, [VERIFIED, 1, 0, 0]), record(2, [0, 10, 0, 1])].concat();
    check_refused(&bytes, 144, Kind::Truncated { wanted: 48, left: 0 });
}

#[test]
fn parsed_value_takes_at_most_three_times_its_bytes() {
    assert!(size_of::<FileInfo>() <= 3 * 48, "a file may come in one record: {}", size_of::<FileInfo>());
    assert!(size_of::<Term>() <= 48);
    assert!(size_of::<CasChunk>() <= 48);
}

#[test]
fn files_beyond_the_limit_are_refused_where_they_begin() {
    let file = |byte: u8| [record(byte, [0, 1, 0, 0]), record(9, [0, 10, 0, 1])];
    let bytes = shard_of(&[file(1), file(2), file(3)].concat(), &[]);
    for limit in 0..5 {
        let parsed = parse_with(&bytes, limit, DuplicatePolicy::Refused);
        if limit < 3 {
            let error = parsed.unwrap_err();
            assert_eq!((error.kind, error.offset), (Kind::TooManyFiles { limit }, FIRST + 96 * limit as u64));
        } else {
            assert_eq!(parsed.unwrap().files.len(), 3);
        }
    }
}

#[test]
fn classes_and_names_are_stable_and_no_name_is_used_twice() {
    let kinds = [
        (Kind::Truncated { wanted: 1, left: 0 }, Class::Truncated, "shard_truncated"),
        (Kind::Tag, Class::Malformed, "shard_tag"),
        (Kind::Version { found: 3 }, Class::Unsupported, "shard_version"),
        (Kind::FooterLen { found: 1 }, Class::Malformed, "shard_footer_len"),
        (Kind::FooterAbsent, Class::Malformed, "shard_footer_absent"),
        (Kind::TooManyFiles { limit: 1 }, Class::Limit, "shard_too_many_files"),
        (Kind::TooManyTermChunks, Class::Limit, "shard_too_many_term_chunks"),
        (Kind::TrailingBytes { count: 1 }, Class::Malformed, "shard_trailing_bytes"),
        (Kind::FooterVersion { found: 2 }, Class::Unsupported, "shard_footer_version"),
        (Kind::FooterOffset { found: 2 }, Class::Malformed, "shard_footer_offset"),
        (Kind::FileFlags { found: 1 }, Class::Unsupported, "shard_file_flags"),
        (Kind::MixedVerification, Class::Malformed, "shard_mixed_verification"),
        (Kind::TermChunks { start: 1, end: 1 }, Class::Malformed, "shard_term_chunks"),
        (Kind::TermLen { count: 1, raw_len: 0 }, Class::Malformed, "shard_term_len"),
        (Kind::TermsAbsent, Class::Malformed, "shard_terms_absent"),
        (Kind::DuplicateXorb, Class::Malformed, "shard_duplicate_xorb"),
        (Kind::XorbEmpty, Class::Malformed, "shard_xorb_empty"),
        (Kind::XorbChunkCount { count: 8193 }, Class::Limit, "shard_xorb_chunk_count"),
        (Kind::XorbTooLarge { raw_len: 1 }, Class::Limit, "shard_xorb_too_large"),
        (Kind::XorbLen { stated: 1, actual: 2 }, Class::Malformed, "shard_xorb_len"),
        (Kind::ChunkLen { raw_len: 0 }, Class::Malformed, "shard_chunk_len"),
        (Kind::ChunkOffset { stated: 1, expected: 0 }, Class::Malformed, "shard_chunk_offset"),
        (Kind::BookendHash, Class::Malformed, "shard_bookend_hash"),
        (Kind::RangeHashCount { terms: 1, range_hashes: 2 }, Class::Malformed, "shard_range_hash_count"),
        (Kind::DuplicateFile, Class::Malformed, "shard_duplicate_file"),
    ];
    for (kind, class, name) in kinds {
        assert_eq!((kind.class(), kind.name()), (class, name));
    }
    let names: std::collections::HashSet<_> = kinds.iter().map(|(kind, ..)| kind.name()).collect();
    assert_eq!(names.len(), kinds.len());
}

#[test]
fn error_text_has_the_offset_and_the_reason() {
    let error = parse(&shard_of(&[record(1, [0, 1, 0, 0]), record(2, [0, 0, 0, 1])], &[])).unwrap_err();
    assert_eq!(error.to_string(), "at byte 96: a term of 1 chunks cannot have 0 bytes");
    assert_eq!(error.class().name(), "malformed");
}

#[test]
fn terms_of_too_many_chunks_are_refused_at_the_exceeding_term() {
    use crate::limits::MAX_SHARD_TERM_CHUNK_COUNT;
    let term = Term { xorb: XorbHash::from_bytes([1; 32]), raw_len: 8192, chunks: ChunkRange::new(0, 8192).unwrap() };
    let most = usize::try_from(MAX_SHARD_TERM_CHUNK_COUNT / 8192).unwrap();
    let shard = |count: usize| {
        let range_hashes = Some(vec![RangeHash::from_bytes([2; 32]); count]);
        let file =
            FileInfo { hash: FileHash::from_bytes([3; 32]), terms: vec![term; count], range_hashes, sha256: None };
        write_upload(&Shard { files: vec![file], xorbs: Vec::new() }).unwrap()
    };
    assert_eq!(parse(&shard(most)).unwrap().files[0].terms.len(), most);
    let refused = parse(&shard(most + 1)).unwrap_err();
    assert_eq!((refused.kind, refused.offset), (Kind::TooManyTermChunks, 96 + 48 * most as u64));
}
