//! That the rows of `fill` are those of the verbs.

use std::collections::BTreeSet;
use std::path::Path;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Row, SqliteConnection};
use zorb::format::{ByteRange, XorbHash};
use zorb::index::sqlite::SqliteIndex;
use zorb::index::{
    Allowance, Claim, ClaimIndex, ClaimState, FileIndex, NewFile, NewXorb, Reader, RegisterIndex, Registered,
    Registration, Staging, Ticket, UsageIndex, XorbIndex,
};

use super::fill::{NOW, fill};
use super::shape::{self, Shape};

/// Xorbs of the store that is made twice. With ten times as many files it has files of every kind.
const XORB_COUNT: u64 = 600;

/// Rows of a large store that are read back.
const SAMPLE_COUNT: u64 = 500;

/// Fills a small store and makes the same one by the verbs, and compares every row of every table, except for tickets and
/// incarnations, which are random.
pub(crate) async fn compare_with_verbs(directory: &Path) {
    let shape = Shape::new(XORB_COUNT, XORB_COUNT);
    let (filled, made) = (directory.join("filled.sqlite"), directory.join("made.sqlite"));
    fill(&filled, shape).await;
    make(&made, shape).await;
    let (filled, made) = (dump(&filled).await, dump(&made).await);
    assert!(filled.len() > 10, "only the tables {filled:?}");
    for ((table, filled), (other, made)) in filled.iter().zip(&made) {
        assert_eq!(table, other);
        assert_eq!(filled.len(), made.len(), "rows of {table}");
        let rows = |rows: &[String]| rows.iter().cloned().collect::<BTreeSet<_>>();
        let (filled, made) = (rows(filled), rows(made));
        let only = |one: &BTreeSet<String>, other: &BTreeSet<String>| {
            one.difference(other).take(3).map(|row| row.chars().take(200).collect()).collect::<Vec<String>>()
        };
        assert_eq!(only(&filled, &made), only(&made, &filled), "rows of {table} of one store only");
    }
}

/// The same store, by the verbs.
async fn make(path: &Path, shape: Shape) {
    let index = SqliteIndex::open_unsynced(path).await.unwrap();
    for xorb in 0..shape.xorb_count {
        let ticket = Ticket::random();
        assert_eq!(index.stage_xorb(shape::xorb_hash(xorb), ticket, NOW).await.unwrap(), Staging::Staged);
        index.publish_xorb(new_xorb(shape, xorb), ticket, NOW).await.unwrap();
        let mut listing = registration(shape::domain(xorb), None);
        listing.xorbs.push(shape::xorb_hash(xorb));
        listing.dedup.push((shape::asked_chunk(xorb), shape::xorb_hash(xorb)));
        assert_eq!(register(&index, &listing).await, Registered::Known);
    }
    for number in 0..shape.file_count() {
        let file = shape.file(number);
        let first = shape.pieces(number)[0];
        for (place, repo) in shape.repos(number).into_iter().enumerate() {
            let sha256 = file.sha256.filter(|_| place == 0);
            let mut named = registration(repo, Some(NewFile { sha256, ..file.clone() }));
            named.dedup.push((first.first_chunk(), shape::xorb_hash(first.xorb)));
            assert_eq!(register(&index, &named).await, Registered::New);
        }
        if let Some(sha256) = file.sha256
            && shape::is_verified(number)
        {
            let claim = Claim { file: file.hash, sha256 };
            assert!(index.settle_claim(claim, ClaimState::Verified).await.unwrap());
        }
    }
    index.close().await;
}

/// Registers in one transaction. One that takes too long is rolled back, as on a busy machine, and
/// is made again.
async fn register(index: &SqliteIndex, registration: &Registration) -> Registered {
    loop {
        if let Some(registered) = index.register_of(registration, None).await.unwrap() {
            return registered;
        }
    }
}

/// A registration of this file by this repository, or of nothing.
pub(crate) fn registration(repo: String, file: Option<NewFile>) -> Registration {
    let files: Vec<NewFile> = file.into_iter().collect();
    let mut xorbs: Vec<XorbHash> = files.iter().flat_map(|file| &file.terms).map(|term| term.xorb).collect();
    xorbs.sort_unstable_by_key(|hash| *hash.as_bytes());
    xorbs.dedup();
    Registration { repo, files, xorbs, dedup: Vec::new(), now: NOW, allowance: Allowance::default() }
}

pub(crate) fn new_xorb(shape: Shape, xorb: u64) -> NewXorb {
    let chunk_hashes = shape.chunk_hashes(xorb);
    NewXorb {
        hash: shape::xorb_hash(xorb),
        crc64: shape::crc64(xorb),
        layout: shape::layout(xorb),
        schemes: vec![shape::SCHEME; chunk_hashes.len()],
        chunk_hashes,
        owner: Some(shape::domain(xorb)),
        grant: None,
    }
}

/// Every row of every table, as text.
async fn dump(path: &Path) -> Vec<(String, Vec<String>)> {
    let mut connection = SqliteConnectOptions::new().filename(path).read_only(true).connect().await.unwrap();
    let tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' AND \
         name NOT LIKE '_sqlx_%' ORDER BY name";
    let mut dumped = Vec::new();
    for table in strings(&mut connection, tables).await {
        let columns = format!(
            "SELECT name FROM pragma_table_info('{table}') WHERE name NOT IN ('ticket', 'incarnation') ORDER BY name"
        );
        let columns = strings(&mut connection, &columns).await;
        let columns: Vec<String> = columns.iter().map(|column| format!("quote({column})")).collect();
        let rows = format!("SELECT {} FROM {table} ORDER BY 1", columns.join(" || ' ' || "));
        let rows = strings(&mut connection, &rows).await;
        dumped.push((table, rows));
    }
    dumped
}

async fn strings(connection: &mut SqliteConnection, sql: &str) -> Vec<String> {
    let rows = sqlx::query(AssertSqlSafe(sql.to_owned())).fetch_all(connection).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// Reads some xorbs and files of a filled store through the index, and compares them with what they should be.
pub(crate) async fn check_sample(index: &SqliteIndex, shape: Shape) {
    let totals = index.totals().await.unwrap();
    assert!(totals.xorb_count >= shape.needed_count(), "{totals:?}");
    let small = index.repo_usage(shape::SMALL_REPO.to_owned()).await.unwrap();
    assert_eq!(small.file_count, 3, "{small:?}");
    for sample in 0..SAMPLE_COUNT {
        let xorb = shape.needed(shape::mix(sample));
        let expected = new_xorb(shape, xorb);
        let row = index.find_xorb(expected.hash).await.unwrap().unwrap();
        assert_eq!((row.crc64, row.layout), (expected.crc64, expected.layout));
        let columns = index.find_chunks(expected.hash).await.unwrap().unwrap();
        assert_eq!((columns.hashes, columns.schemes), (expected.chunk_hashes, expected.schemes));
        let number = shape::mix(sample) % shape.file_count();
        let expected = shape.file(number);
        let reader = Reader::Repo(shape.repos(number)[0].clone());
        let whole = ByteRange::new(0, expected.raw_len);
        let file = index.find_file(expected.hash, reader.clone(), whole).await.unwrap().unwrap();
        assert_eq!((file.raw_len, file.terms), (expected.raw_len, expected.terms));
        let stranger = Reader::Repo("nobody/nothing".to_owned());
        assert!(index.find_file(expected.hash, stranger, whole).await.unwrap().is_none());
        if let Some(sha256) = expected.sha256 {
            let known = index.find_sha256(sha256, reader).await.unwrap().unwrap();
            assert_eq!((known.file, known.is_verified), (expected.hash, shape::is_verified(number)));
        }
    }
}
