//! `zorb fsck`: each thing that can be wrong, made on purpose, named, repaired, and not found again.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection, SqliteConnection, raw_sql};
use tempfile::TempDir;

use crate::backup::{Stored, check_served, store, text};
use crate::cli::{Directory, Ran};
use crate::scrub::{blob, fetch, first_fetch, flip};
use crate::support::{Start, TestServer, Xorb, eventually, rng};

/// What an upload leaves that nobody has published.
const DRAFT: &str = "tmp/0123456789abcdef0123456789abcdef";

/// A store that no server has, with some files in it.
struct Stopped {
    data_dir: PathBuf,
    stored: Vec<Stored>,
    directory: Directory,
    _keep: Vec<Arc<TempDir>>,
}

impl Stopped {
    async fn new() -> Self {
        let (server, mut rng) = (TestServer::start(), rng());
        let mut stored = Vec::new();
        for _ in 0..3 {
            stored.push(store(&server.client(), Xorb::mixed(&mut rng, 6)).await);
        }
        let (data_dir, keep) = (server.data_dir().to_owned(), server.directory());
        server.terminate();
        assert!(server.wait().success());
        Self { data_dir, stored, directory: Directory::new(), _keep: keep }
    }

    fn fsck(&self, args: &[&str]) -> Ran {
        fsck(&self.directory, &self.data_dir, args)
    }

    fn blob(&self, index: usize) -> PathBuf {
        blob(&self.data_dir, &self.stored[index].xorb)
    }

    /// Where a blob of this name would be.
    fn place(&self, name: &str) -> PathBuf {
        self.data_dir.join("xorbs").join(&name[..2]).join(name)
    }

    async fn sql(&self, sql: &str) {
        let url = format!("sqlite://{}", self.data_dir.join("index.sqlite").display());
        let mut connection = SqliteConnection::connect(&url).await.unwrap();
        let sql = format!("PRAGMA foreign_keys = OFF; {sql}");
        raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
    }

    /// Nothing is wrong, and everything is served.
    async fn check_well(&self) {
        assert_eq!(self.fsck(&["--deep"]).ok().record()["findings"], 0);
        let server = Start::default().data_dir(&self.data_dir).start();
        check_served(&server, &self.stored).await;
    }
}

fn fsck(directory: &Directory, data_dir: &Path, args: &[&str]) -> Ran {
    directory.zorb(&[&["fsck", "--json", "--data-dir", text(data_dir)], args].concat())
}

/// Kinds and outcomes of what was found.
fn findings(ran: &Ran) -> Vec<(String, Option<String>)> {
    let records = ran.records();
    let (summary, findings) = records.split_last().expect("there is a summary");
    assert_eq!((&summary["type"], &summary["findings"]), (&"summary".into(), &findings.len().into()));
    let text = |value: &Value| value.as_str().map(str::to_owned);
    findings.iter().map(|finding| (text(&finding["kind"]).unwrap(), text(&finding["outcome"]))).collect()
}

/// Named without --repair, mended with it, gone afterwards.
async fn check_repaired(store: &Stopped, args: &[&str], kinds: &[&str]) {
    let found = findings(&store.fsck(args).failed(1, &["left"]));
    let named: Vec<_> = found.iter().map(|(kind, _)| kind.as_str()).collect();
    assert_eq!(named, kinds);
    assert!(found.iter().all(|(_, outcome)| outcome.is_none()));
    // Looking has changed nothing.
    assert_eq!(findings(&store.fsck(args).failed(1, &[])), found);
    let repaired = findings(&store.fsck(&[args, &["--repair"]].concat()).ok());
    assert!(repaired.iter().all(|(_, outcome)| outcome.as_deref() == Some("repaired")), "{repaired:?}");
    store.check_well().await;
}

#[tokio::test]
async fn sound_store_is_clean_with_and_without_a_server() {
    let store = Stopped::new().await;
    store.check_well().await;
    let server = Start::default().data_dir(&store.data_dir).start();
    for args in [&[][..], &["--deep"], &["--repair"], &["--deep", "--repair"]] {
        let summary = store.fsck(args).ok().record();
        assert_eq!((&summary["findings"], &summary["offline"]), (&0.into(), &false.into()));
        assert_eq!((&summary["xorbs"], &summary["files"]), (&3.into(), &3.into()));
    }
    check_served(&server, &store.stored).await;
    // What an upload that is under way leaves in tmp/ is none of its business.
    fs::write(store.data_dir.join(DRAFT), "x").unwrap();
    store.fsck(&["--repair"]).ok();
    assert!(store.data_dir.join(DRAFT).exists());
}

/// The xorb is out of service until then.
#[tokio::test]
async fn damage_only_an_upload_can_repair_stays_a_finding() {
    let store = Stopped::new().await;
    fs::remove_file(store.blob(0)).unwrap();
    fs::OpenOptions::new().write(true).open(store.blob(1)).and_then(|file| file.set_len(77)).unwrap();
    flip(&store.blob(2), 33);
    let mut expected = vec!["missing_blob", "wrong_length"];
    let kinds = |ran: Ran| {
        let mut kinds: Vec<_> = findings(&ran).into_iter().map(|(kind, _)| kind).collect();
        kinds.sort();
        kinds
    };
    assert_eq!(kinds(store.fsck(&[]).failed(1, &["2 findings left"])), expected);
    expected.insert(1, "wrong_bytes");
    let found = store.fsck(&["--deep"]).failed(1, &["3 findings left"]);
    for record in found.records().iter().filter(|record| record["type"] == "finding") {
        let hit = store.stored.iter().find(|stored| record["xorb"] == stored.xorb.hash()).unwrap();
        assert_eq!((&record["files"][0], &record["file_count"]), (&hit.file.as_str().into(), &1.into()), "{record}");
    }
    assert_eq!(kinds(found), expected);
    let marked = findings(&store.fsck(&["--deep", "--repair"]).failed(1, &["3 findings left"]));
    assert!(marked.iter().all(|(_, outcome)| outcome.as_deref() == Some("quarantined")), "{marked:?}");
    assert_eq!(kinds(store.fsck(&["--repair"]).failed(1, &["3 findings left"])), expected);

    let server = Start::default().data_dir(&store.data_dir).start();
    for Stored { file, xorb } in &store.stored {
        server.client().get(&format!("/v1/reconstructions/{file}")).await.problem(500, "xorb_damaged");
        assert_eq!(server.client().post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
    }
    check_served(&server, &store.stored).await;
    server.terminate();
    assert!(server.wait().success());
    store.check_well().await;
}

#[tokio::test]
async fn a_blob_that_was_put_back_is_taken_back_into_service() {
    let store = Stopped::new().await;
    let bytes = fs::read(store.blob(0)).unwrap();
    flip(&store.blob(0), 10);
    store.fsck(&["--deep", "--repair"]).failed(1, &[]);
    fs::write(store.blob(0), bytes).unwrap();
    check_repaired(&store, &[], &["false_alarm"]).await;
}

#[tokio::test]
async fn row_that_contradicts_its_sound_blob_is_rewritten() {
    for sql in ["layout = x'0100000001000000'", "crc64 = 5", "layout = x'00'"] {
        let store = Stopped::new().await;
        store.sql(&format!("UPDATE xorbs SET {sql} WHERE id = 2")).await;
        check_repaired(&store, &["--deep"], &["wrong_row"]).await;
    }
}

#[tokio::test]
async fn sound_blob_without_a_row_gets_one_and_completes_its_files() {
    let store = Stopped::new().await;
    let drop_row = "DELETE FROM xorb_files WHERE xorb_id = 2; DELETE FROM xorb_domains WHERE xorb_id = 2; \
         DELETE FROM xorb_chunks WHERE xorb_id = 2; DELETE FROM dedup_chunks WHERE xorb_id = 2; \
         DELETE FROM xorbs WHERE id = 2; UPDATE totals SET xorb_count = xorb_count - 1, \
         serialized_len = (SELECT sum(serialized_len) FROM xorbs), raw_len = (SELECT sum(raw_len) FROM xorbs)";
    store.sql(drop_row).await;
    let found = findings(&store.fsck(&[]).failed(1, &["2 findings left"]));
    assert_eq!(found, [("orphan_blob".to_owned(), None), ("lost_xorbs".to_owned(), None)]);
    // With its row back, the file is not lost: it lacks a reference.
    let repaired = findings(&store.fsck(&["--repair"]).ok());
    let done = |kind: &str| (kind.to_owned(), Some("repaired".to_owned()));
    assert_eq!(repaired, [done("orphan_blob"), done("wrong_references")]);
    store.check_well().await;
}

#[tokio::test]
async fn lost_xorb_is_named_with_its_file_and_restored_by_archive() {
    let store = Stopped::new().await;
    let archive = ["backup", "b.rca", "--data-dir", text(&store.data_dir)];
    store.directory.zorb(&[&archive[..], &["--quiet"]].concat()).ok();
    fs::remove_file(store.blob(1)).unwrap();
    store
        .sql(
            "DELETE FROM xorb_files WHERE xorb_id = 2; DELETE FROM xorb_domains WHERE xorb_id = 2; \
             DELETE FROM xorb_chunks WHERE xorb_id = 2; DELETE FROM dedup_chunks WHERE xorb_id = 2; \
             DELETE FROM xorbs WHERE id = 2",
        )
        .await;
    let found = store.fsck(&["--repair"]).failed(1, &["1 finding left"]);
    let lost = &found.records()[0];
    let Stored { file, xorb } = &store.stored[1];
    assert_eq!((&lost["kind"], &lost["file"]), (&"lost_xorbs".into(), &file.as_str().into()));
    assert_eq!((&lost["lost"][0], &lost["outcome"]), (&xorb.hash().into(), &"left".into()));
    store.fsck(&["--repair", "--from", "b.rca"]).ok();
    store.check_well().await;
}

/// It reports the damage.
#[tokio::test]
async fn damaged_archive_heals_what_precedes_the_damage() {
    let store = Stopped::new().await;
    store.directory.zorb(&["backup", "b.rca", "--quiet", "--data-dir", text(&store.data_dir)]).ok();
    flip(&store.blob(0), 10);
    store.fsck(&["--deep", "--repair"]).failed(1, &[]);
    let bytes = store.directory.read("b.rca");
    store.directory.write("cut.rca", &bytes[..60]);
    store.fsck(&["--repair", "--from", "cut.rca"]).failed(2, &[]);
    store.directory.write("none.rca", b"no archive");
    store.fsck(&["--repair", "--from", "none.rca"]).failed(2, &["cannot restore"]);
    store.fsck(&["--repair", "--from", "missing.rca"]).failed(2, &["cannot read"]);
    assert_eq!(findings(&store.fsck(&[]).failed(1, &[])).len(), 1);
    store.fsck(&["--repair", "--from", "b.rca"]).ok();
    store.check_well().await;
}

#[tokio::test]
async fn garbage_named_like_a_xorb_is_removed_even_beside_a_server() {
    let (store, name) = (Stopped::new().await, "0123456789abcdef".repeat(4));
    let place = store.place(&name);
    fs::write(&place, "garbage").unwrap();
    // Names that are no hashes were not put there by us.
    fs::write(store.place("01-notes"), "mine").unwrap();
    check_repaired(&store, &[], &["orphan_garbage"]).await;
    assert!(!place.exists() && store.place("01-notes").exists());

    let server = Start::default().data_dir(&store.data_dir).start();
    fs::write(&place, "garbage").unwrap();
    assert_eq!(findings(&store.fsck(&["--repair"]).ok()).len(), 1);
    assert!(!place.exists());
    check_served(&server, &store.stored).await;
}

#[tokio::test]
async fn references_and_totals_are_recounted_even_beside_a_server() {
    let broken = "DELETE FROM xorb_files WHERE file_id = 1; INSERT INTO xorb_files VALUES (3, 2); \
         UPDATE totals SET raw_len = raw_len + 1";
    let store = Stopped::new().await;
    store.sql(broken).await;
    check_repaired(&store, &[], &["wrong_references", "wrong_references", "wrong_totals"]).await;
    let server = Start::default().data_dir(&store.data_dir).start();
    store.sql(broken).await;
    assert_eq!(findings(&store.fsck(&["--repair"]).ok()).len(), 3);
    assert_eq!(findings(&store.fsck(&[]).ok()).len(), 0);
    check_served(&server, &store.stored).await;
}

#[tokio::test]
async fn what_dead_uploads_left_is_cleared_up_when_no_server_runs() {
    let (store, name) = (Stopped::new().await, "0123456789abcdef".repeat(4));
    fs::write(store.data_dir.join(DRAFT), "x").unwrap();
    fs::write(store.place(&name), "a blob that was published").unwrap();
    store.sql("INSERT INTO xorbs (hash, state, since, ticket) VALUES (randomblob(32), 3, 0, 0)").await;
    check_repaired(&store, &[], &["unfinished_row", "orphan_garbage", "temporary_files"]).await;
    assert_eq!(fs::read_dir(store.data_dir.join("tmp")).unwrap().count(), 0);
}

#[tokio::test]
async fn future_times_stay_until_the_clock_is_confirmed() {
    let store = Stopped::new().await;
    store.fsck(&["--trust-clock"]).failed(2, &["--repair"]);
    // A clock that ran ten years ahead has touched, condemned, verified and replaced.
    let ahead = "(SELECT max(since) + 315360000000 FROM xorbs)";
    let sql = format!(
        "UPDATE visibility SET collected_at = {ahead}; UPDATE xorbs SET replaced_at = {ahead} WHERE id = 2; \
         UPDATE xorbs SET verified_at = {ahead} WHERE id = 3; UPDATE xorbs SET state = 2, since = {ahead} WHERE id = 1"
    );
    store.sql(&sql).await;
    let gc = ["gc", "--data-dir", text(&store.data_dir)];
    store.directory.zorb(&gc).failed(1, &["the clock is at"]);
    let found = store.fsck(&["--repair"]).failed(1, &["1 finding left"]);
    assert_eq!(findings(&found), [("future_times".to_owned(), Some("left".to_owned()))]);
    let server = Start::default().data_dir(&store.data_dir).start();
    let (client, file) = (server.client(), &store.stored[1].file);
    // Whoever asks for it gets URLs that are refused.
    fetch(&client, &first_fetch(&client, file).await).await.problem(403, "forbidden");
    let repaired = findings(&store.fsck(&["--repair", "--trust-clock"]).ok());
    assert_eq!(repaired, [("future_times".to_owned(), Some("repaired".to_owned()))]);
    store.directory.zorb(&gc).ok();
    // A second after the times were set back, and when the server has noticed.
    eventually("it is served again", async || fetch(&client, &first_fetch(&client, file).await).await.status == 206)
        .await;
    check_served(&server, &store.stored).await;
    server.terminate();
    assert!(server.wait().success());
    store.check_well().await;
}

#[tokio::test]
async fn terms_that_do_not_parse_are_named_and_left() {
    let store = Stopped::new().await;
    store.sql("UPDATE file_terms SET terms = zeroblob(44) WHERE file_id = 1").await;
    let found = findings(&store.fsck(&["--repair"]).failed(1, &["1 finding left"]));
    assert_eq!(found, [("unreadable_terms".to_owned(), Some("left".to_owned()))]);
}

#[tokio::test]
async fn directory_that_is_no_store_is_refused_and_text_has_lines() {
    let directory = Directory::new();
    directory.zorb(&["fsck", "--data-dir", "none"]).failed(2, &["no store"]);
    directory.zorb(&["fsck", "--from", "x"]).failed(2, &["--repair"]);
    let store = Stopped::new().await;
    let people = |args: &[&str], code| {
        let ran = directory.zorb(&[&["fsck", "--data-dir", text(&store.data_dir)], args].concat());
        assert_eq!(ran.code, Some(code), "{}", ran.stderr);
        ran.text()
    };
    assert!(people(&[], 0).starts_with("3 xorbs and 3 files checked"), "{}", people(&[], 0));
    fs::remove_file(store.blob(0)).unwrap();
    let found = people(&[], 1);
    let (xorb, file) = (store.stored[0].xorb.hash(), &store.stored[0].file);
    assert!(found.starts_with(&format!("missing_blob: xorb {xorb}: ")), "{found}");
    assert!(found.contains(&format!("\n  file {file}\n")) && found.contains("1 finding, 1 unrepaired"), "{found}");
    assert_eq!(people(&["--quiet"], 1), "");
    // No server can be started while it looks: they would take each other's work for dead. And one repair at a time.
    let lock = fs::File::create(store.data_dir.join("gc.lock")).unwrap();
    lock.try_lock().unwrap();
    store.fsck(&["--repair"]).failed(2, &["another process is running GC or a repair"]);
}
