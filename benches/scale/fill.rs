//! Fills an index in bulk: the rows that the verbs would write, without triggers, log and syncs. `check` compares them with
//! those of the verbs.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, QueryBuilder, Row, Sqlite, SqliteConnection, raw_sql};
use zorb::format::shard::Term;
use zorb::format::xorb::Layout;
use zorb::index::sqlite::SqliteIndex;
use zorb::runtime::clock::Timestamp;

use super::shape::{self, Shape};

/// When everything was uploaded and registered.
pub(crate) const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);

/// Terms of one row, as the index has them.
const RUN_COUNT: usize = 512;

/// A value of a row.
enum Value {
    Null,
    Number(i64),
    Text(String),
    Bytes(Vec<u8>),
}

/// Rows on their way into a table, some at a time.
struct Rows {
    insert: &'static str,
    limit: usize,
    waiting: Vec<Vec<Value>>,
}

impl Rows {
    const fn new(insert: &'static str, limit: usize) -> Self {
        Self { insert, limit, waiting: Vec::new() }
    }

    async fn push(&mut self, connection: &mut SqliteConnection, row: Vec<Value>) {
        self.waiting.push(row);
        if self.waiting.len() >= self.limit {
            self.flush(connection).await;
        }
    }

    async fn flush(&mut self, connection: &mut SqliteConnection) {
        if self.waiting.is_empty() {
            return;
        }
        let mut query = QueryBuilder::<Sqlite>::new(self.insert);
        query.push_values(self.waiting.drain(..), |mut tuple, row| {
            for value in row {
                match value {
                    Value::Null => tuple.push_bind(Option::<i64>::None),
                    Value::Number(number) => tuple.push_bind(number),
                    Value::Text(text) => tuple.push_bind(text),
                    Value::Bytes(bytes) => tuple.push_bind(bytes),
                };
            }
        });
        query.build().execute(connection).await.unwrap();
    }
}

fn number(value: u64) -> Value {
    Value::Number(value.cast_signed())
}

fn id_of(number: u64) -> Value {
    Value::Number(number.cast_signed() + 1)
}

/// Makes an index of this shape in a new file.
pub(crate) async fn fill(path: &Path, shape: Shape) {
    // Makes the schema as a start does.
    SqliteIndex::open(path).await.unwrap().close().await;
    let options = SqliteConnectOptions::new()
        .filename(path)
        .journal_mode(SqliteJournalMode::Off)
        .synchronous(SqliteSynchronous::Off)
        .foreign_keys(false)
        // KiB, as a negative number: random keys go into pages that are still in memory.
        .pragma("cache_size", "-3000000");
    let mut connection = options.connect().await.unwrap();
    let triggers = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'";
    let triggers = sqlx::query(triggers).fetch_all(&mut connection).await.unwrap();
    for trigger in &triggers {
        run(&mut connection, &format!("DROP TRIGGER {}", trigger.get::<String, _>(0))).await;
    }
    run(&mut connection, "BEGIN").await;
    let lens = fill_xorbs(&mut connection, shape).await;
    fill_files(&mut connection, shape, &lens).await;
    run(&mut connection, &format!("UPDATE visibility SET registered_at = {}", NOW.as_millis())).await;
    for trigger in &triggers {
        run(&mut connection, &trigger.get::<String, _>(1)).await;
    }
    run(&mut connection, "COMMIT").await;
    connection.close().await.unwrap();
}

async fn run(connection: &mut SqliteConnection, sql: &str) {
    raw_sql(AssertSqlSafe(sql.to_owned())).execute(connection).await.unwrap();
}

/// Enters all xorbs; returns the serialized length of each.
async fn fill_xorbs(connection: &mut SqliteConnection, shape: Shape) -> Vec<u64> {
    let mut xorbs = Rows::new(
        "INSERT INTO xorbs (id, hash, state, since, ticket, serialized_len, raw_len, crc64, layout, verified_at) ",
        64,
    );
    let mut chunks = Rows::new("INSERT INTO xorb_chunks (xorb_id, hashes, schemes) ", 16);
    let mut domains = Rows::new("INSERT INTO xorb_domains (xorb_id, domain) ", 200);
    let mut asked = Rows::new("INSERT INTO dedup_chunks (chunk_hash, xorb_id) ", 200);
    let (mut lens, mut raw_len) = (Vec::new(), 0);
    for xorb in 0..shape.xorb_count {
        let layout = shape::layout(xorb);
        lens.push(layout.serialized_len());
        raw_len += layout.raw_len();
        let hashes = shape.chunk_hashes(xorb);
        let schemes = vec![shape::SCHEME.as_byte(); hashes.len()];
        let hashes = hashes.iter().flat_map(|hash| *hash.as_bytes()).collect();
        xorbs.push(connection, xorb_row(xorb, &layout)).await;
        chunks.push(connection, vec![id_of(xorb), Value::Bytes(hashes), Value::Bytes(schemes)]).await;
        domains.push(connection, vec![id_of(xorb), Value::Text(shape::domain(xorb))]).await;
        let asked_chunk = shape::asked_chunk(xorb).as_bytes().to_vec();
        asked.push(connection, vec![Value::Bytes(asked_chunk), id_of(xorb)]).await;
    }
    for rows in [&mut xorbs, &mut chunks, &mut domains, &mut asked] {
        rows.flush(connection).await;
    }
    let totals = sqlx::query("UPDATE totals SET xorb_count = ?, serialized_len = ?, raw_len = ?");
    let totals = totals.bind(lens.len().cast_signed() as i64).bind(lens.iter().sum::<u64>().cast_signed());
    totals.bind(raw_len.cast_signed()).execute(connection).await.unwrap();
    lens
}

fn xorb_row(xorb: u64, layout: &Layout) -> Vec<Value> {
    vec![
        id_of(xorb),
        Value::Bytes(shape::xorb_hash(xorb).as_bytes().to_vec()),
        Value::Number(1),
        number(NOW.as_millis()),
        number(shape::mix(xorb)),
        number(layout.serialized_len()),
        number(layout.raw_len()),
        number(shape::crc64(xorb)),
        Value::Bytes(layout.pack()),
        number(NOW.as_millis()),
    ]
}

/// The mark of files that were registered one by one, as in the verbs of `check`.
const SINGLE: i64 = 0;

/// What a repository has.
#[derive(Default)]
struct Holding {
    id: i64,
    file_count: u64,
    logical_len: u64,
    record_len: u64,
    /// Its files that refer to each xorb.
    xorbs: BTreeMap<u64, u64>,
}

async fn fill_files(connection: &mut SqliteConnection, shape: Shape, lens: &[u64]) {
    let mut files = Rows::new("INSERT INTO files (id, hash, raw_len, since, sha256, sha256_state, registration) ", 200);
    let mut runs = Rows::new("INSERT INTO file_terms (file_id, start, terms) ", 200);
    let mut claims = Rows::new("INSERT INTO file_repos (file_id, repo, has_claimed, record_len, registration) ", 200);
    let mut references = Rows::new("INSERT INTO xorb_files (xorb_id, file_id) ", 200);
    let mut asked = Rows::new("INSERT OR IGNORE INTO dedup_chunks (chunk_hash, xorb_id) ", 200);
    let mut listed = Rows::new("INSERT INTO repo_files (repo_id, hash, file_id) ", 200);
    // Files come by repository, so that few of them are open at once.
    let (mut open, mut last_id) = (HashMap::<String, Holding>::new(), 0);
    for file in 0..shape.file_count() {
        let pieces = shape.pieces(file);
        let new = shape.file(file);
        let (sha256, state) = match new.sha256 {
            None => (Value::Null, 0),
            Some(digest) => (Value::Bytes(digest.as_digest().to_vec()), 1 + i64::from(shape::is_verified(file))),
        };
        let hash = Value::Bytes(new.hash.as_bytes().to_vec());
        let (now, state) = (number(NOW.as_millis()), Value::Number(state));
        let row = vec![id_of(file), hash, number(new.raw_len), now, sha256, state, Value::Number(SINGLE)];
        files.push(connection, row).await;
        let mut start = 0;
        for run in new.terms.chunks(RUN_COUNT) {
            runs.push(connection, vec![id_of(file), number(start), Value::Bytes(pack(run))]).await;
            start += run.iter().map(|term| u64::from(term.raw_len)).sum::<u64>();
        }
        let mut xorbs: Vec<u64> = pieces.iter().map(|piece| piece.xorb).collect();
        xorbs.sort_unstable();
        xorbs.dedup();
        for xorb in &xorbs {
            references.push(connection, vec![id_of(*xorb), id_of(file)]).await;
        }
        let first = pieces[0];
        let first_chunk = first.first_chunk().as_bytes().to_vec();
        asked.push(connection, vec![Value::Bytes(first_chunk), id_of(first.xorb)]).await;
        let record_len = (96 + 96 * new.terms.len() as u64) / 1024 * 1024;
        let repos = shape.repos(file);
        for (place, repo) in repos.iter().enumerate() {
            // A claim that was verified is not one of the repository any more.
            let has_claimed = place == 0 && new.sha256.is_some() && !shape::is_verified(file);
            let has_claimed = Value::Number(has_claimed.into());
            let row =
                vec![id_of(file), Value::Text(repo.clone()), has_claimed, number(record_len), Value::Number(SINGLE)];
            claims.push(connection, row).await;
            if !open.contains_key(repo) {
                last_id += 1;
                open.insert(repo.clone(), Holding { id: last_id, ..Holding::default() });
            }
            let holding = open.get_mut(repo).unwrap();
            holding.file_count += 1;
            holding.logical_len += new.raw_len;
            holding.record_len += record_len;
            xorbs.iter().for_each(|xorb| *holding.xorbs.entry(*xorb).or_default() += 1);
            let hash = Value::Bytes(new.hash.as_bytes().to_vec());
            listed.push(connection, vec![Value::Number(holding.id), hash, id_of(file)]).await;
        }
    }
    for rows in [&mut files, &mut runs, &mut claims, &mut references, &mut asked, &mut listed] {
        rows.flush(connection).await;
    }
    fill_usage(connection, open, lens).await;
}

async fn fill_usage(connection: &mut SqliteConnection, holdings: HashMap<String, Holding>, lens: &[u64]) {
    let mut repos = Rows::new("INSERT INTO repos (id, name, file_count, logical_len, physical_len) ", 200);
    let mut charges = Rows::new("INSERT INTO repo_xorbs (repo_id, xorb_id, file_count, len) ", 200);
    let mut holdings: Vec<(String, Holding)> = holdings.into_iter().collect();
    holdings.sort_unstable_by_key(|(_, holding)| holding.id);
    for (name, holding) in holdings {
        let len = |xorb: u64| lens[usize::try_from(xorb).unwrap()];
        let blobs_len: u64 = holding.xorbs.keys().map(|xorb| len(*xorb)).sum();
        let physical_len = blobs_len + holding.record_len;
        let row = vec![
            Value::Number(holding.id),
            Value::Text(name),
            number(holding.file_count),
            number(holding.logical_len),
            number(physical_len),
        ];
        repos.push(connection, row).await;
        for (xorb, count) in holding.xorbs {
            let row = vec![Value::Number(holding.id), id_of(xorb), number(count), number(len(xorb))];
            charges.push(connection, row).await;
        }
    }
    repos.flush(connection).await;
    charges.flush(connection).await;
}

fn pack(terms: &[Term]) -> Vec<u8> {
    let pack = |term: &Term| {
        let numbers = [term.chunks.start(), term.chunks.end(), term.raw_len];
        let numbers = numbers.into_iter().flat_map(u32::to_le_bytes);
        term.xorb.as_bytes().iter().copied().chain(numbers).collect::<Vec<u8>>()
    };
    terms.iter().flat_map(pack).collect()
}

/// Bytes of each table and index of a database, by name. Reads all of it.
pub(crate) async fn sizes(path: &Path) -> BTreeMap<String, u64> {
    let mut connection = SqliteConnectOptions::new().filename(path).read_only(true).connect().await.unwrap();
    let sql = "SELECT name, pgsize FROM dbstat WHERE aggregate = TRUE";
    let rows = sqlx::query(sql).fetch_all(&mut connection).await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get::<i64, _>(1).cast_unsigned())).collect()
}
