//! The contract on files.

use std::sync::Arc;

use super::collect::after;
use super::{Db, NOW, SqliteIndex, hash, put, xorb};
use crate::format::compression::Scheme;
use crate::format::shard::{Sha256, Term};
use crate::format::xorb::LayoutBuilder;
use crate::format::{ByteRange, ChunkHash, ChunkRange, FileHash, XorbHash};
use crate::index::files::MAX_DEDUP_CANDIDATE_COUNT;
use crate::index::{
    Allowance, IndexErrorKind, NewFile, NewXorb, Reader, Registered, Registration, Ticket, XorbPart, XorbState,
};
use crate::runtime::clock::Timestamp;

suite_in_steps! {
    registered_file_reads_back_for_its_repositories_only
    second_registration_with_other_terms_changes_nothing
    a_registration_with_a_missing_xorb_changes_nothing_at_all
    part_of_a_file_comes_with_the_terms_around_it_only
    deduplication_stays_within_its_domain
    dedup_names_other_xorbs_of_the_file_except_single_chunks
    a_hit_has_a_bounded_number_of_chunks_of_the_nearest_xorbs
    hit_on_xorbs_with_long_leases_changes_no_lease
    contents_are_those_of_visible_xorbs_only
    parts_are_requested_chunks_of_visible_xorbs_to_their_end
    the_empty_file_can_be_registered
}

pub(super) const WHOLE: Option<ByteRange> = ByteRange::new(0, u64::MAX);

pub(super) fn file_hash(byte: u8) -> FileHash {
    FileHash::from_bytes([byte; 32])
}

pub(super) fn sha256(byte: u8) -> Sha256 {
    Sha256::from_digest([byte; 32])
}

pub(super) fn term(xorb: u8, start: u32, end: u32) -> Term {
    Term { xorb: hash(xorb), chunks: ChunkRange::new(start, end).unwrap(), raw_len: 1000 * (end - start) }
}

pub(super) fn file(byte: u8, terms: &[Term]) -> NewFile {
    let raw_len = terms.iter().map(|term| u64::from(term.raw_len)).sum();
    NewFile { hash: file_hash(byte), raw_len, terms: terms.to_vec(), sha256: None }
}

pub(super) fn registration(repo: &str, files: Vec<NewFile>, xorbs: &[u8]) -> Registration {
    Registration {
        repo: repo.to_owned(),
        files,
        xorbs: xorbs.iter().map(|byte| hash(*byte)).collect(),
        dedup: Vec::new(),
        now: NOW,
        allowance: Allowance::default(),
    }
}

pub(super) fn reader(repo: &str) -> Reader {
    Reader::Repo(repo.to_owned())
}

async fn registered_file_reads_back_for_its_repositories_only(db: Db) {
    put(&db, xorb(1, 3)).await;
    put(&db, xorb(2, 3)).await;
    let terms = [term(1, 0, 2), term(2, 1, 3), term(1, 0, 1)];
    let new = registration("org/a", vec![file(9, &terms)], &[1, 2]);
    assert_eq!(db.register(&new).await.unwrap(), Registered::New);
    assert_eq!(db.register(&new).await.unwrap(), Registered::Known);

    let found = db.find_file(file_hash(9), reader("org/a"), WHOLE).await.unwrap().unwrap();
    assert_eq!((found.hash, found.raw_len, found.terms.as_slice()), (file_hash(9), 5000, &terms[..]));
    assert_eq!(db.find_file(file_hash(9), Reader::All, WHOLE).await.unwrap(), Some(found.clone()));
    assert_eq!(db.find_file(file_hash(9), reader("org/b"), WHOLE).await.unwrap(), None);
    assert_eq!(db.find_file(file_hash(8), Reader::All, WHOLE).await.unwrap(), None);

    // Another repository that registers the same file may read it, too.
    let other = registration("org/b", vec![file(9, &terms)], &[1, 2]);
    assert_eq!(db.register(&other).await.unwrap(), Registered::New);
    assert_eq!(db.find_file(file_hash(9), reader("org/b"), WHOLE).await.unwrap(), Some(found));
}

async fn second_registration_with_other_terms_changes_nothing(db: Db) {
    put(&db, xorb(1, 3)).await;
    put(&db, xorb(2, 3)).await;
    db.register(&registration("r", vec![file(9, &[term(1, 0, 2)])], &[1])).await.unwrap();
    let before = db.find_file(file_hash(9), Reader::All, WHOLE).await.unwrap();
    db.register(&registration("r", vec![file(9, &[term(2, 0, 2)])], &[2])).await.unwrap();
    assert_eq!(db.find_file(file_hash(9), Reader::All, WHOLE).await.unwrap(), before);
}

async fn a_registration_with_a_missing_xorb_changes_nothing_at_all(db: Db) {
    put(&db, xorb(1, 3)).await;
    db.stage_xorb(hash(2), Ticket::random(), NOW).await.unwrap();
    for missing in [2, 3] {
        let files = vec![file(8, &[term(1, 0, 1)]), file(9, &[term(missing, 0, 1)])];
        let outcome = db.register(&registration("r", files, &[1, missing])).await.unwrap();
        assert_eq!(outcome, Registered::MissingXorb(hash(missing)));
        assert_eq!(db.find_file(file_hash(8), Reader::All, WHOLE).await.unwrap(), None);
    }
    // The database is still usable.
    assert_eq!(db.unfinished_xorbs().await.unwrap(), [(hash(2), XorbState::Staged)]);
    let good = registration("r", vec![file(8, &[term(1, 0, 1)])], &[1]);
    assert_eq!(db.register(&good).await.unwrap(), Registered::New);
    let lost = db.publish_xorb(xorb(2, 1), Ticket::random(), NOW).await.unwrap_err();
    assert_eq!(lost.kind, IndexErrorKind::Lost);
}

async fn part_of_a_file_comes_with_the_terms_around_it_only(db: Db) {
    put(&db, xorb(1, 3)).await;
    // 1500 terms of alternately 1000 and 2000 bytes.
    let terms: Vec<Term> = (0..1500).map(|index| term(1, 0, 1 + index % 2)).collect();
    let new = file(9, &terms);
    let raw_len = new.raw_len;
    db.register(&registration("r", vec![new], &[1])).await.unwrap();
    let whole = db.find_file(file_hash(9), reader("r"), WHOLE).await.unwrap().unwrap();
    assert_eq!((whole.raw_len, whole.terms_start, &whole.terms), (raw_len, 0, &terms));

    for (start, end) in [(0, 1), (700_000, 800_000), (raw_len - 1, raw_len), (0, raw_len), (raw_len - 1, u64::MAX)] {
        let part = db.find_file(file_hash(9), reader("r"), ByteRange::new(start, end)).await.unwrap().unwrap();
        let skipped = terms.iter().scan(0, |end, term| Some(std::mem::replace(end, *end + u64::from(term.raw_len))));
        let first = skipped.clone().position(|offset| offset == part.terms_start).unwrap();
        assert_eq!(part.terms, terms[first..first + part.terms.len()], "{start}-{end}");
        let terms_end = part.terms_start + part.terms.iter().map(|term| u64::from(term.raw_len)).sum::<u64>();
        assert!(part.terms_start <= start && end.min(raw_len) <= terms_end, "{start}-{end}");
        assert!(end - start > 200_000 || part.terms.len() < 1100, "{start}-{end}: {} terms", part.terms.len());
    }
    // Without a part there are no terms, and a repository without a claim does not find the file.
    let none = db.find_file(file_hash(9), reader("r"), None).await.unwrap().unwrap();
    assert_eq!((none.raw_len, none.terms), (raw_len, Vec::new()));
    assert_eq!(db.find_file(file_hash(9), reader("s"), None).await.unwrap(), None);
}

async fn deduplication_stays_within_its_domain(db: Db) {
    put(&db, xorb(1, 2)).await;
    put(&db, NewXorb { owner: Some("other".to_owned()), ..xorb(2, 5) }).await;
    let chunk = ChunkHash::from_bytes([1; 32]);
    let lease = Timestamp::from_millis(NOW.as_millis() + 1000);
    let find = |owner: Option<&str>| db.find_dedup(chunk, owner.map(str::to_owned), lease..=lease);
    assert_eq!(find(None).await.unwrap(), None);

    for (repo, byte) in [("org/a", 1), ("other/b", 2)] {
        let mut new = registration(repo, Vec::new(), &[byte]);
        new.dedup.push((chunk, hash(byte)));
        db.register(&new).await.unwrap();
    }
    let xorb_of = |hit: Option<crate::index::DedupHit>| hit.map(|hit| hit.xorb);
    assert_eq!(xorb_of(find(Some("org")).await.unwrap()), Some(hash(1)));
    assert_eq!(xorb_of(find(Some("other")).await.unwrap()), Some(hash(2)));
    assert_eq!(xorb_of(find(Some("third")).await.unwrap()), None);
    // Without an owner, the response has the xorb with the most chunks.
    assert_eq!(xorb_of(find(None).await.unwrap()), Some(hash(2)));

    // An upload of an existing xorb makes its uploader an owner.
    for _ in 0..2 {
        assert!(db.share_xorb(hash(2), "third".to_owned()).await.unwrap());
    }
    assert_eq!(xorb_of(find(Some("third")).await.unwrap()), Some(hash(2)));
    // The same owner can be added by several uploads at once.
    for round in 0..20 {
        let share = || db.share_xorb(hash(2), format!("new-{round}"));
        let shared = tokio::join!(share(), share(), share(), share());
        assert_eq!(
            (shared.0.unwrap(), shared.1.unwrap(), shared.2.unwrap(), shared.3.unwrap()),
            (true, true, true, true)
        );
    }
    db.stage_xorb(hash(3), Ticket::random(), NOW).await.unwrap();
    for invisible in [3, 4] {
        assert!(!db.share_xorb(hash(invisible), "org".to_owned()).await.unwrap());
    }

    // Only xorb 5 has a single chunk. It is foreign to all but its owners.
    put(&db, xorb(5, 1)).await;
    let foreign = |owner: &str| db.foreign_single_chunks((1..=5).map(hash).collect(), owner.to_owned());
    assert_eq!(foreign("other").await.unwrap(), [hash(5)]);
    assert_eq!(foreign("org").await.unwrap(), []);
    assert!(db.share_xorb(hash(5), "other".to_owned()).await.unwrap());
    assert_eq!(foreign("other").await.unwrap(), []);
}

async fn dedup_names_other_xorbs_of_the_file_except_single_chunks(db: Db) {
    for (byte, chunk_count) in [(1, 3), (2, 3), (3, 1), (4, 3)] {
        put(&db, xorb(byte, chunk_count)).await;
    }
    let chunk = ChunkHash::from_bytes([1; 32]);
    let terms = [term(1, 0, 1), term(2, 0, 1), term(3, 0, 1)];
    let mut new = registration("org/a", vec![file(9, &terms)], &[1, 2, 3, 4]);
    new.dedup.push((chunk, hash(1)));
    db.register(&new).await.unwrap();
    // Xorb 3 is not named because its hash would disclose the hash of its only chunk. Xorb 4 is not
    // named because no file references it together with xorb 1.
    for owner in [None, Some("org".to_owned())] {
        let hit = db.find_dedup(chunk, owner, NOW..=NOW).await.unwrap().unwrap();
        assert_eq!((hit.xorb, hit.neighbours), (hash(1), vec![hash(2)]));
    }
}

async fn a_hit_has_a_bounded_number_of_chunks_of_the_nearest_xorbs(db: Db) {
    for byte in 1..=7 {
        let mut layout = LayoutBuilder::new();
        (0..4000).for_each(|_| layout.push(9, 1).unwrap());
        let large = NewXorb {
            layout: layout.finish().unwrap(),
            chunk_hashes: vec![ChunkHash::from_bytes([byte; 32]); 4000],
            schemes: vec![Scheme::None; 4000],
            ..xorb(byte, 1)
        };
        put(&db, large).await;
    }
    let chunk = ChunkHash::from_bytes([9; 32]);
    let terms: Vec<_> = (1..=7).map(|byte| term(byte, 0, 1)).collect();
    let mut new = registration("org/a", vec![file(9, &terms)], &[1, 2, 3, 4, 5, 6, 7]);
    new.dedup.push((chunk, hash(4)));
    db.register(&new).await.unwrap();
    for owner in [None, Some("org".to_owned())] {
        let hit = db.find_dedup(chunk, owner, NOW..=NOW).await.unwrap().unwrap();
        assert_eq!((hit.xorb, hit.neighbours), (hash(4), vec![hash(3), hash(5), hash(6)]));
    }
}

async fn hit_on_xorbs_with_long_leases_changes_no_lease(db: Db) {
    for byte in [1, 2] {
        put(&db, xorb(byte, 3)).await;
    }
    let chunk = ChunkHash::from_bytes([1; 32]);
    let mut new = registration("org/a", vec![file(9, &[term(1, 0, 1), term(2, 0, 1)])], &[1, 2]);
    new.dedup.push((chunk, hash(1)));
    db.register(&new).await.unwrap();
    for (least, most, expected) in [(50, 80, 80), (40, 50, 80), (80, 120, 80), (81, 120, 120)] {
        let hit = db.find_dedup(chunk, None, after(least)..=after(most)).await.unwrap().unwrap();
        assert_eq!((hit.xorb, hit.neighbours), (hash(1), vec![hash(2)]));
        let lives = db.xorb_lives(None, 10).await.unwrap();
        assert_eq!(lives.len(), 2);
        assert!(lives.iter().all(|life| life.lease_until == after(expected)), "{least}: {lives:?}");
    }
}

#[tokio::test]
async fn chunk_is_found_in_the_newest_xorbs_that_have_it() {
    let directory = tempfile::tempdir().unwrap();
    let index = SqliteIndex::open(&directory.path().join("index.sqlite")).await.unwrap();
    let db: Db = Arc::new(index.clone());
    put(&db, xorb(1, 3)).await;
    let chunk = ChunkHash::from_bytes([1; 32]);
    let mut new = registration("org/a", Vec::new(), &[1]);
    new.dedup.push((chunk, hash(1)));
    db.register(&new).await.unwrap();
    let find = || db.find_dedup(chunk, Some("org".to_owned()), NOW..=NOW);
    // Xorbs without an owner that have the same chunk.
    for (sql, count) in [
        (
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?2) \
             INSERT INTO xorbs (hash, state, since, ticket, serialized_len, raw_len, crc64, layout) \
             SELECT CAST(printf('%032d', i) AS BLOB), 1, 0, 0, 9, 8, 7, layout FROM n, xorbs WHERE hash = ?1",
            MAX_DEDUP_CANDIDATE_COUNT,
        ),
        (
            "INSERT INTO dedup_chunks (chunk_hash, xorb_id) SELECT c.chunk_hash, xorbs.id FROM xorbs, dedup_chunks AS c \
             WHERE c.xorb_id = (SELECT id FROM xorbs WHERE hash = ?1) AND xorbs.id <> c.xorb_id AND ?2 = 0",
            0,
        ),
    ] {
        let inserted = index.corrupt_row(sql, hash(1).as_bytes(), count).await.unwrap();
        assert_eq!(inserted, u64::try_from(MAX_DEDUP_CANDIDATE_COUNT).unwrap());
    }
    assert_eq!(find().await.unwrap(), None);
    let delete = "DELETE FROM dedup_chunks WHERE xorb_id = (SELECT max(id) FROM xorbs) AND ?1 IS NOT NULL AND ?2 = 0";
    assert_eq!(index.corrupt_row(delete, &[], 0).await.unwrap(), 1);
    assert_eq!(find().await.unwrap().unwrap().xorb, hash(1));
    index.close().await;
}

async fn contents_are_those_of_visible_xorbs_only(db: Db) {
    put(&db, xorb(1, 3)).await;
    db.stage_xorb(hash(2), Ticket::random(), NOW).await.unwrap();
    let many: Vec<XorbHash> = (0..=255).map(hash).collect();
    let contents = db.xorb_contents(many).await.unwrap();
    assert_eq!(contents.len(), 1);
    let expected = xorb(1, 3);
    assert_eq!((contents[0].hash, &contents[0].layout), (hash(1), &expected.layout));
    assert_eq!(contents[0].chunk_hashes, expected.chunk_hashes);
    assert!(db.xorb_contents(Vec::new()).await.unwrap().is_empty());
}

async fn parts_are_requested_chunks_of_visible_xorbs_to_their_end(db: Db) {
    let whole = [xorb(1, 7), xorb(2, 1)];
    for xorb in whole.clone() {
        put(&db, xorb).await;
    }
    db.stage_xorb(hash(3), Ticket::random(), NOW).await.unwrap();
    // Xorb 2 is condemned and visible; xorb 4 is being deleted and invisible.
    put(&db, xorb(4, 3)).await;
    assert_eq!(db.condemn_xorbs(vec![hash(2), hash(4)], NOW, after(10)).await.unwrap().len(), 2);
    assert_eq!(db.begin_deletions(vec![hash(4)], after(10), after(20)).await.unwrap(), [hash(4)]);
    for start in 0..9 {
        for end in start + 1..=9 {
            let chunks = ChunkRange::new(start, end).unwrap();
            let mut parts = db.xorb_parts((0..=255).map(|byte| (hash(byte), chunks)).collect()).await.unwrap();
            parts.sort_by_key(|part| *part.xorb.as_bytes());
            let expected = whole.each_ref().map(|xorb| {
                let of_all = start as usize..(end as usize).min(xorb.chunk_hashes.len());
                let lens: Vec<u32> =
                    xorb.layout.chunks().map(|place| u32::try_from(place.raw.byte_len()).unwrap()).collect();
                XorbPart {
                    xorb: xorb.hash,
                    start,
                    raw_lens: lens.get(of_all.clone()).unwrap_or_default().to_vec(),
                    chunk_hashes: xorb.chunk_hashes.get(of_all).unwrap_or_default().to_vec(),
                }
            });
            assert_eq!(parts, expected, "{chunks}");
        }
    }
    let far = ChunkRange::new(u32::MAX - 1, u32::MAX).unwrap();
    let part = db.xorb_parts(vec![(hash(1), far)]).await.unwrap().remove(0);
    assert_eq!((part.start, part.raw_lens.len(), part.chunk_hashes.len()), (u32::MAX - 1, 0, 0));
    assert!(db.xorb_parts(Vec::new()).await.unwrap().is_empty());
}

async fn the_empty_file_can_be_registered(db: Db) {
    let empty = NewFile { hash: FileHash::EMPTY, raw_len: 0, terms: Vec::new(), sha256: None };
    assert_eq!(db.register(&registration("r", vec![empty], &[])).await.unwrap(), Registered::New);
    let found = db.find_file(FileHash::EMPTY, reader("r"), WHOLE).await.unwrap().unwrap();
    assert_eq!((found.raw_len, found.terms), (0, Vec::new()));
}
