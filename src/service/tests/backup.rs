//! Backups and restores with a fault in the n-th operation on the stores.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use super::faults::Moment;
use super::hub::{commit, create, put};
use super::{Setup, upload, xorb};
use crate::blob::BlobStore;
use crate::format::compression::Policy;
use crate::format::shard::Term;
use crate::format::xorb::{BuiltXorb, RepackMode};
use crate::format::{FileHash, merkle};
use crate::index::{Allowance, ArchiveIndex, FileRecord, NewFile, RegisterIndex, Registration};
use crate::runtime::clock::Timestamp;
use crate::service::archive::{BackedUp, BackupError, RestoreError, Watch, empty_archive};
use crate::service::hub::hub_states;
use crate::service::{Settings, Store};

const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);

#[derive(Debug)]
struct Unwatched;

impl Watch for Unwatched {
    fn total(&self, _: u64) {}

    fn position(&self, _: u64) {}

    fn problem(&self, _: &(dyn std::error::Error + 'static)) {}
}

async fn back_up(setup: &Setup, archive: &Path) -> Result<BackedUp, BackupError> {
    back_up_from(setup, setup.faulty_blobs(), archive).await
}

/// Makes a backup with this blob store.
pub(super) async fn back_up_from(
    setup: &Setup,
    blobs: impl BlobStore,
    archive: &Path,
) -> Result<BackedUp, BackupError> {
    let store = Store::new(&setup.settings(blobs));
    let file = File::options().read(true).write(true).open(archive).unwrap();
    store.back_up(file, None, Arc::new(Unwatched)).await
}

pub(super) async fn restore(setup: &Setup, archive: &Path) -> Result<u64, RestoreError> {
    let settings = setup.settings(setup.faulty_blobs());
    let store = Store::new(&Settings { verify_worker_count: 3, ..settings });
    let (archive, watch) = (File::open(archive).unwrap(), Arc::new(Unwatched));
    store.restore(archive, RepackMode::Compressed, watch).await.map(|restored| restored.file_count)
}

/// Registers a file that consists of all chunks of a xorb.
async fn register(setup: &Setup, xorb: &BuiltXorb) -> FileHash {
    let (verified, layout) = (xorb.xorb(), xorb.xorb().layout());
    let lens = layout.chunks().map(|place| place.raw.byte_len());
    let hash = merkle::file_hash(verified.chunk_hashes().iter().zip(lens));
    let raw_len = u32::try_from(layout.raw_len()).unwrap();
    let terms = vec![Term { xorb: verified.hash(), chunks: layout.whole(), raw_len }];
    let registration = Registration {
        repo: "org/a".to_owned(),
        files: vec![NewFile { hash, raw_len: raw_len.into(), terms, sha256: None }],
        xorbs: vec![verified.hash()],
        dedup: Vec::new(),
        now: NOW,
        allowance: Allowance::default(),
    };
    setup.index.register(&registration).await.unwrap();
    hash
}

/// A store with three files.
async fn stocked() -> Setup {
    let setup = Setup::new().await;
    let server = setup.process();
    for text in ["one", "two", "three"] {
        let xorb = xorb(text, Policy::Lz4);
        upload(&server, &xorb).await.unwrap();
        register(&setup, &xorb).await;
    }
    setup
}

pub(super) fn new_archive(path: &Path) {
    File::create(path).unwrap().write_all(&empty_archive().unwrap()).unwrap();
}

pub(super) async fn records(setup: &Setup) -> Vec<FileRecord> {
    setup.index.file_records(None).await.unwrap()
}

#[tokio::test]
async fn backup_with_nth_failure_is_completed_by_the_next_one() {
    let (setup, directory) = (stocked().await, tempfile::tempdir().unwrap());
    let archive = directory.path().join("b.rca");
    for moment in [Moment::Before, Moment::After] {
        let mut count = 0;
        for n in 0.. {
            new_archive(&archive);
            setup.faults.arm(n, moment);
            let result = back_up(&setup, &archive).await;
            let Some(failed) = setup.faults.disarm() else { break };
            let case = format!("operation {n} ({failed}) failed {moment:?}");
            // An unreadable part is left out and reported; any other fault ends the run.
            assert!(result.as_ref().is_err() || result.is_ok_and(|done| done.problem_count == 1), "{case}");
            // The archive is valid after every failure.
            restore(&Setup::new().await, &archive).await.unwrap();
            back_up(&setup, &archive).await.unwrap();
            let copy = Setup::new().await;
            assert_eq!(restore(&copy, &archive).await.unwrap(), 3, "{case}");
            assert_eq!(records(&copy).await, records(&setup).await, "{case}");
            assert_eq!(back_up(&setup, &archive).await.unwrap().added_len, 0, "{case}");
            count += 1;
        }
        assert!(count > 8, "only {count} operations {moment:?}");
    }
}

/// A restore refuses an archive that has them. What an earlier run has added stays.
#[tokio::test]
async fn repository_with_a_damaged_part_is_left_out_and_reported() {
    for sql in [
        "DROP TRIGGER usage_commit_stays; UPDATE hub_commits SET message = 'x' WHERE repo_id = 1 AND parent IS NULL",
        "DROP TRIGGER usage_tree_stays; UPDATE hub_trees SET entries = x'00' WHERE repo_id = 1",
    ] {
        let (setup, directory) = (stocked().await, tempfile::tempdir().unwrap());
        let archive = directory.path().join("b.rca");
        new_archive(&archive);
        let server = setup.process();
        for repo in ["repo", "other"] {
            create(&server, repo).await.unwrap();
            commit(&server, repo, vec![put("a.txt")]).await.unwrap();
        }
        assert_eq!(back_up(&setup, &archive).await.unwrap().left_out_hub_count, 0);
        let before = hub_states(&setup.index).await.unwrap();
        for repo in ["repo", "other"] {
            commit(&server, repo, vec![put("b.txt")]).await.unwrap();
        }
        setup.index.tamper(sql).await;
        // Each run reports it, and adds nothing of it.
        for hub_count in [1, 0] {
            let done = back_up(&setup, &archive).await.unwrap();
            assert_eq!((done.hub_count, done.left_out_hub_count), (hub_count, 1), "{sql}");
        }
        let (copy, after) = (Setup::new().await, hub_states(&setup.index).await.unwrap());
        restore(&copy, &archive).await.unwrap();
        assert_eq!(records(&copy).await, records(&setup).await, "{sql}");
        let restored = hub_states(&copy.index).await.unwrap();
        assert_eq!([&restored[0].refs, &restored[1].refs], [&before[0].refs, &after[1].refs], "{sql}");
    }
}

/// Otherwise each run would say that the next one includes it.
#[tokio::test]
async fn file_whose_xorb_has_no_row_is_left_out_and_reported() {
    let (setup, directory) = (stocked().await, tempfile::tempdir().unwrap());
    let archive = directory.path().join("b.rca");
    new_archive(&archive);
    let sql = "DELETE FROM xorb_files WHERE xorb_id = 2; DELETE FROM xorb_chunks WHERE xorb_id = 2; \
         DELETE FROM xorb_domains WHERE xorb_id = 2; DELETE FROM xorbs WHERE id = 2";
    setup.index.tamper(sql).await;
    for file_count in [2, 0] {
        let done = back_up(&setup, &archive).await.unwrap();
        assert_eq!((done.file_count, done.left_out_count, done.waiting_count), (file_count, 1, 0));
        assert_eq!(done.problem_count, 1);
    }
    assert_eq!(restore(&Setup::new().await, &archive).await.unwrap(), 2);
}

#[tokio::test]
async fn restore_with_nth_failure_reports_it_and_can_be_repeated() {
    let (setup, directory) = (stocked().await, tempfile::tempdir().unwrap());
    let archive = directory.path().join("b.rca");
    new_archive(&archive);
    back_up(&setup, &archive).await.unwrap();
    for moment in [Moment::Before, Moment::After] {
        let mut count = 0;
        for n in 0.. {
            let copy = Setup::new().await;
            copy.faults.arm(n, moment);
            let result = restore(&copy, &archive).await;
            let Some(failed) = copy.faults.disarm() else { break };
            assert!(matches!(result, Err(RestoreError::Store(_))), "{n} ({failed}) {moment:?}: {result:?}");
            count += 1;
        }
        assert!(count > 12, "only {count} operations");
    }
}
