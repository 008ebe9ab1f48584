//! How rows of a registration get into the index: one statement each, multi-row `VALUES` with bound parameters, or `json_each`
//! over text, in turn on the same file. Prints microseconds per row, medians of the rounds. `carray` is not built into the
//! SQLite that sqlx brings. `cargo bench --bench insert_rows`
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a bench fails where it panics, and prints"
)]

use std::time::Instant;

use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode};
use sqlx::{ConnectOptions, Connection, QueryBuilder, Sqlite, SqliteConnection};
use tokio::runtime::Builder;

/// Rows of one transaction, and of one statement where it has several.
const ROW_COUNT: usize = 16 << 10;
const BATCH_COUNT: usize = 256;

/// Rounds of each kind.
const ROUND_COUNT: usize = 7;

type Row = ([u8; 32], i64);

fn main() {
    let directory = tempfile::tempdir_in(".").unwrap();
    Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
        let options =
            SqliteConnectOptions::new().filename(directory.path().join("rows.sqlite")).create_if_missing(true);
        let mut connection = options.journal_mode(SqliteJournalMode::Wal).connect().await.unwrap();
        let table = "CREATE TABLE files (id INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE, raw_len INTEGER, \
             since INTEGER, sha256 BLOB, sha256_state INTEGER)";
        sqlx::query(table).execute(&mut connection).await.unwrap();
        let mut times: [Vec<f64>; 3] = Default::default();
        for round in 0..ROUND_COUNT {
            for (kind, times) in times.iter_mut().enumerate() {
                let first = i64::try_from((round * 3 + kind) * ROW_COUNT).unwrap();
                let rows: Vec<Row> = (first..).take(ROW_COUNT).map(|id| (rand::random(), id)).collect();
                let begin = Instant::now();
                let mut transaction = connection.begin().await.unwrap();
                match kind {
                    0 => one_by_one(&mut transaction, &rows).await,
                    1 => values(&mut transaction, &rows).await,
                    _ => json(&mut transaction, &rows).await,
                }
                transaction.commit().await.unwrap();
                times.push(begin.elapsed().as_secs_f64() * 1e6 / ROW_COUNT as f64);
            }
        }
        for (what, mut times) in ["one by one", "VALUES", "json_each"].into_iter().zip(times) {
            times.sort_by(f64::total_cmp);
            let (least, median, most) = (times[0], times[ROUND_COUNT / 2], times[ROUND_COUNT - 1]);
            println!("{what:10} {median:6.2} µs per row ({least:.2} to {most:.2})");
        }
    });
}

async fn one_by_one(connection: &mut SqliteConnection, rows: &[Row]) {
    let sql = "INSERT INTO files (id, hash, raw_len, since, sha256, sha256_state) VALUES (?, ?, ?, ?, ?, ?)";
    for (hash, id) in rows {
        let query = sqlx::query(sql).bind(*id).bind(hash.to_vec()).bind(4096).bind(*id).bind(hash.to_vec()).bind(1);
        query.execute(&mut *connection).await.unwrap();
    }
}

async fn values(connection: &mut SqliteConnection, rows: &[Row]) {
    for batch in rows.chunks(BATCH_COUNT) {
        let mut query =
            QueryBuilder::<Sqlite>::new("INSERT INTO files (id, hash, raw_len, since, sha256, sha256_state) ");
        query.push_values(batch, |mut columns, (hash, id)| {
            columns.push_bind(*id).push_bind(hash.to_vec()).push_bind(4096);
            columns.push_bind(*id).push_bind(hash.to_vec()).push_bind(1);
        });
        query.build().execute(&mut *connection).await.unwrap();
    }
}

async fn json(connection: &mut SqliteConnection, rows: &[Row]) {
    let sql = "INSERT INTO files (id, hash, raw_len, since, sha256, sha256_state) \
         SELECT value ->> 0, unhex(value ->> 1), value ->> 2, value ->> 3, unhex(value ->> 4), value ->> 5 FROM json_each(?)";
    for batch in rows.chunks(BATCH_COUNT) {
        let row = |(hash, id): &Row| {
            let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("[{id},\"{hex}\",4096,{id},\"{hex}\",1]")
        };
        let text: Vec<String> = batch.iter().map(row).collect();
        sqlx::query(sql).bind(format!("[{}]", text.join(","))).execute(&mut *connection).await.unwrap();
    }
}
