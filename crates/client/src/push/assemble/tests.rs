use xet_format::merkle::file_hash;
use xet_format::shard::DedupShard;
use xet_format::{HmacKey, XorbHash};

use super::*;

const SHA: Sha256 = Sha256::from_digest([9; 32]);

fn chunk(number: u32) -> Vec<u8> {
    number.to_le_bytes().to_vec()
}

fn hash(number: u32) -> ChunkHash {
    ChunkHash::of(&chunk(number))
}

/// Adds a file of these chunks. Returns the xorbs that became full.
fn add(assembler: &mut Assembler, numbers: impl IntoIterator<Item = u32>) -> Vec<RawXorb> {
    let full = numbers.into_iter().filter_map(|number| assembler.add(hash(number), chunk(number))).collect();
    assembler.end_file(Some(SHA));
    full
}

fn finish(mut assembler: Assembler) -> (Vec<FileInfo>, Option<RawXorb>) {
    let last = assembler.cut();
    let (files, known) = assembler.finish();
    (files.iter().flatten().map(|file| file.info(&known)).collect(), last)
}

/// Xorb, first chunk and end of the chunks of every term.
fn places(file: &FileInfo) -> Vec<(XorbHash, u32, u32)> {
    file.terms.iter().map(|term| (term.xorb, term.chunks.start(), term.chunks.end())).collect()
}

#[test]
fn files_share_a_xorb_and_their_terms_prove_themselves() {
    let mut assembler = Assembler::default();
    assert!(add(&mut assembler, [1, 2, 3, 1]).is_empty());
    assert!(add(&mut assembler, [2, 3, 4]).is_empty());
    let (files, last) = finish(assembler);
    let last = last.unwrap();
    let xorb = last.info.hash;
    assert_eq!(last.info.chunks.iter().map(|chunk| chunk.hash).collect::<Vec<_>>(), [1, 2, 3, 4].map(hash));
    assert_eq!(places(&files[0]), [(xorb, 0, 3), (xorb, 0, 1)]);
    assert_eq!(places(&files[1]), [(xorb, 1, 4)]);
    assert_eq!(files[0].hash, file_hash([1, 2, 3, 1].map(hash).iter().map(|hash| (hash, 4))));
    let proofs = [RangeHash::of(&[1, 2, 3].map(hash)), RangeHash::of(&[hash(1)])];
    assert_eq!(files[0].range_hashes.as_deref(), Some(&proofs[..]));
    assert_eq!((files[0].raw_len(), files[0].sha256), (16, Some(SHA)));
}

#[test]
fn a_xorb_is_full_after_8192_chunks_and_a_term_ends_with_it() {
    let mut assembler = Assembler::default();
    let full = add(&mut assembler, 0..10_000);
    let (files, last) = finish(assembler);
    let ([full], last) = (<[RawXorb; 1]>::try_from(full).unwrap(), last.unwrap());
    assert_eq!((full.chunks.len(), last.chunks.len()), (8192, 1808));
    assert_eq!(places(&files[0]), [(full.info.hash, 0, 8192), (last.info.hash, 0, 1808)]);
}

#[test]
fn xorb_fits_into_64_mib_even_if_incompressible() {
    let mut batch = Batch::default();
    let chunk = 131_072;
    while batch.takes(chunk) {
        batch.chunks.push((hash(0), Vec::new()));
        batch.raw_len += chunk;
    }
    assert_eq!(batch.chunks.len(), 511);
    let left = MAX_XORB_SERIALIZED_LEN - 511 * (chunk + 8) - 8;
    assert!(batch.takes(left) && !batch.takes(left + 1));
}

#[test]
fn known_chunks_of_server_and_session_are_used_one_by_one() {
    let mut assembler = Assembler::default();
    let key = HmacKey::from_bytes([7; 32]);
    let info = |byte, hashes: Vec<ChunkHash>| CasInfo {
        hash: XorbHash::from_bytes([byte; 32]),
        raw_len: 4 * u32::try_from(hashes.len()).unwrap(),
        chunks: hashes
            .into_iter()
            .zip(0..)
            .map(|(hash, index)| CasChunk { hash, raw_offset: 4 * index, raw_len: 4, dedup_eligible: false })
            .collect(),
    };
    assembler.known.insert_xorb(&info(1, [1, 2].map(hash).to_vec()));
    let told = info(2, [10, 11, 12].map(|number| key.blind(&hash(number))).to_vec());
    let told = DedupShard { xorbs: vec![told], key, created_unix_secs: 0, key_expires_unix_secs: 0 };
    assembler.known.insert_response(&told);
    assert!(!assembler.known.should_query(&hash(11)));
    assert!(assembler.known.should_query(&hash(99)) && !assembler.known.should_query(&hash(99)));

    assert!(add(&mut assembler, [1, 2, 50, 11, 12, 51]).is_empty());
    let (files, last) = finish(assembler);
    let own = last.unwrap().info;
    assert_eq!(own.chunks.len(), 2);
    let (sent, told) = (XorbHash::from_bytes([1; 32]), XorbHash::from_bytes([2; 32]));
    assert_eq!(places(&files[0]), [(sent, 0, 2), (own.hash, 0, 1), (told, 1, 3), (own.hash, 1, 2)]);
}

#[test]
fn unreadable_file_leaves_only_its_chunks() {
    let mut assembler = Assembler::default();
    assert!(assembler.add(hash(1), chunk(1)).is_none());
    assembler.end_file(None);
    add(&mut assembler, [2, 1]);
    add(&mut assembler, []);
    let (files, last) = finish(assembler);
    assert_eq!(places(&files[0]), [(last.unwrap().info.hash, 1, 2), (files[0].terms[1].xorb, 0, 1)]);
    assert_eq!((files.len(), files[1].hash, files[1].sha256), (2, FileHash::EMPTY, None));
}

#[test]
fn fragmented_file_stores_chunks_again_to_have_fewer_pieces() {
    let mut assembler = Assembler::default();
    // Every second chunk is known, so every chunk would be a term.
    let count = 3 * u32::try_from(FREE_TERM_COUNT).unwrap();
    for number in 0..count {
        let number = if number % 2 == 0 { number % 1000 } else { number };
        drop(assembler.add(hash(number), chunk(number)));
    }
    assembler.end_file(Some(SHA));
    let (files, _) = finish(assembler);
    let limit = FREE_TERM_COUNT + count as usize / 8192 + 2;
    assert!(files[0].terms.len() <= limit, "{} terms", files[0].terms.len());
    assert_eq!(files[0].raw_len(), 4 * u64::from(count));
}
