//! Deletion of Hub repositories: what it removes, what it leaves, and how a failure continues.

use std::sync::Arc;
use std::time::Duration;

use super::hub::{claims, commit, create, name, put, seen};
use super::records::{prune, rebuild};
use super::{Moment, Setup};
use crate::blob::records::RecordStore;
use crate::index::{HubIndex, HubSweepIndex, ListIndex, Reader, UsageIndex};
use crate::service::gc::Pace;
use crate::service::{HubError, Pruning, RepoKind, Server};

/// Two repositories with one file in common.
async fn setup() -> Setup {
    let setup = Setup::new().await;
    let server = setup.process();
    create(&server, "repo").await.unwrap();
    create(&server, "other").await.unwrap();
    commit(&server, "repo", vec![put("own.txt"), put("shared.txt"), put("a/b/c.txt")]).await.unwrap();
    commit(&server, "other", vec![put("shared.txt")]).await.unwrap();
    setup
}

async fn delete(server: &Arc<Server>, repo: &str) -> Result<(), HubError> {
    server.delete_hub_repo(&claims(repo), &name(repo)).await
}

/// Number of files that a repository has a claim to.
async fn claim_count(setup: &Setup, repo: &str) -> usize {
    let reader = Reader::Repo(name(repo).storage_name());
    setup.index.files_after(reader, None, 100).await.unwrap().len()
}

/// Number of records of changes of repositories.
async fn hub_record_count(setup: &Setup) -> usize {
    let mut count = 0;
    for seq in setup.record_seqs().await {
        let record = setup.records.read(seq).await.unwrap().unwrap();
        count += usize::from(String::from_utf8_lossy(&record).contains("\"kind\":\"hub\""));
    }
    count
}

/// Whether the rows of a deleted repository are there.
async fn is_pending(setup: &Setup) -> bool {
    setup.index.next_deleted_hub_repo(0).await.unwrap().is_some()
}

#[tokio::test]
async fn deletion_removes_the_claims_of_one_repository_only() {
    let setup = setup().await;
    let server = setup.process();
    let mut expected = seen(&server).await;
    let charged = claim_count(&setup, "other").await;
    assert_eq!((claim_count(&setup, "repo").await, charged), (4, 2));
    delete(&server, "repo").await.unwrap();
    expected.remove("repo").unwrap();
    assert_eq!(seen(&server).await, expected);
    assert!(matches!(delete(&server, "repo").await, Err(HubError::NoRepo)));
    assert!(matches!(commit(&server, "repo", vec![put("x.txt")]).await, Err(HubError::NoRepo)));
    // In the background.
    assert!(is_pending(&setup).await);
    server.purge_deleted_repos(&Pace::default()).await.unwrap();
    assert_eq!((claim_count(&setup, "repo").await, is_pending(&setup).await), (0, false));
    assert_eq!((claim_count(&setup, "other").await, seen(&server).await), (charged, expected.clone()));
    let usage = setup.index.repo_usage(name("repo").storage_name()).await.unwrap();
    assert_eq!((usage.file_count, usage.logical_len, usage.physical_len), (0, 0, 0));
    let rebuilt = rebuild(&setup).await.unwrap();
    assert_eq!((rebuilt.problems, seen(&setup.process_with(&rebuilt.index)).await), (Vec::new(), expected));
}

#[tokio::test]
async fn purge_that_fails_anywhere_is_completed_by_the_next() {
    for moment in [Moment::Before, Moment::After] {
        let mut n = 0;
        loop {
            let setup = setup().await;
            let server = setup.process();
            delete(&server, "repo").await.unwrap();
            let expected = seen(&server).await;
            setup.faults.arm(n, moment);
            let purged = server.purge_deleted_repos(&Pace::default()).await;
            let Some(failed) = setup.faults.disarm() else {
                purged.unwrap();
                break;
            };
            // After a restart, also of a rebuilt index.
            let server = setup.process();
            server.store.agree(false).await.unwrap();
            let rebuilt = rebuild(&setup).await.unwrap();
            assert_eq!(rebuilt.problems, [""; 0], "operation {n} ({failed}) {moment:?}");
            assert_eq!(seen(&setup.process_with(&rebuilt.index)).await, expected, "operation {n} ({failed})");
            server.purge_deleted_repos(&Pace::default()).await.unwrap();
            let left = (claim_count(&setup, "repo").await, is_pending(&setup).await);
            assert_eq!(left, (0, false), "operation {n} ({failed}) {moment:?}");
            assert_eq!(seen(&server).await, expected, "operation {n} ({failed}) {moment:?}");
            n += 1;
        }
        assert!(n > 8, "{n} operations");
    }
}

/// What a purge has not removed is removed before the name is used again, and nothing of the new
/// repository is.
#[tokio::test]
async fn new_repository_of_the_name_keeps_its_claims() {
    let setup = setup().await;
    let server = setup.process();
    delete(&server, "repo").await.unwrap();
    // With the name in another case, which is another storage name.
    create(&server, "REPO").await.unwrap();
    assert_eq!((claim_count(&setup, "repo").await, is_pending(&setup).await), (0, false));
    delete(&server, "REPO").await.unwrap();
    setup.clock.advance(Duration::from_secs(1));
    create(&server, "repo").await.unwrap();
    commit(&server, "repo", vec![put("own.txt")]).await.unwrap();
    let expected = seen(&server).await;
    server.purge_deleted_repos(&Pace::default()).await.unwrap();
    assert_eq!(claim_count(&setup, "repo").await, 2);
    assert_eq!(seen(&server).await, expected);
    assert_eq!(expected["repo"].refs()["refs/heads/main"].0.len(), 2);
    let rebuilt = rebuild(&setup).await.unwrap();
    assert_eq!((rebuilt.problems, seen(&setup.process_with(&rebuilt.index)).await), (Vec::new(), expected));
}

/// Records of files that only deleted repositories had are obsolete, and those of their changes.
#[tokio::test]
async fn log_is_pruned_of_the_files_of_deleted_repositories() {
    let setup = setup().await;
    let server = setup.process();
    delete(&server, "repo").await.unwrap();
    delete(&server, "other").await.unwrap();
    create(&server, "third").await.unwrap();
    setup.clock.advance(Duration::from_secs(400 * 24 * 3600));
    // A rebuilt index must know that the claims are still there.
    assert_eq!(prune(&setup, 3).await.hub_count, 0);
    server.purge_deleted_repos(&Pace::default()).await.unwrap();
    create(&server, "other").await.unwrap();
    commit(&server, "other", vec![put("new.txt")]).await.unwrap();
    let expected = seen(&server).await;
    // It may be interrupted after each record.
    for count in [1, 2, 1, 1, 100, 100] {
        let mut pruning = Pruning::default();
        for _ in 0..setup.record_seqs().await.len() * 2 + count {
            if server.store.prune_records(&mut pruning, 1).await.unwrap().is_some() {
                break;
            }
        }
        let rebuilt = rebuild(&setup).await.unwrap();
        let found = seen(&setup.process_with(&rebuilt.index)).await;
        assert_eq!((rebuilt.problems, found), (Vec::new(), expected.clone()), "{count}");
    }
    // The changes of `third` and the new `other`: two creations and a commit.
    assert_eq!(hub_record_count(&setup).await, 3);
    assert_eq!(prune(&setup, 3).await.hub_count, 0);
    let rebuilt = rebuild(&setup).await.unwrap();
    assert_eq!((rebuilt.problems, seen(&setup.process_with(&rebuilt.index)).await), (Vec::new(), expected));
}

/// The record of the deletion is there, and its transaction has failed. Then the log has the state
/// of the repository again.
#[tokio::test]
async fn failed_deletion_is_not_made_by_a_rebuild() {
    let setup = setup().await;
    let server = setup.process();
    let before = seen(&server).await;
    setup.faults.arm_at("delete_hub_repo", Moment::Before);
    delete(&server, "repo").await.unwrap_err();
    setup.faults.disarm();
    commit(&server, "repo", vec![put("later.txt")]).await.unwrap();
    let after = seen(&server).await;
    assert_ne!(after, before);
    let rebuilt = rebuild(&setup).await.unwrap();
    assert_eq!((rebuilt.problems, seen(&setup.process_with(&rebuilt.index)).await), (Vec::new(), after));
}

/// A copy that a deletion overtakes has no branches, so a restore discards it.
#[tokio::test]
async fn copy_of_a_repository_that_is_deleted_meanwhile_is_cut_off() {
    let setup = setup().await;
    let server = setup.process();
    let states = crate::service::hub::hub_states(&setup.index).await.unwrap();
    delete(&server, "repo").await.unwrap();
    server.purge_deleted_repos(&Pace::default()).await.unwrap();
    let target = Setup::new().await;
    let mut loading = crate::service::hub::Loading::begin(&target.index);
    for state in states {
        let mut copying = crate::service::hub::Copying::begin(&setup.index, state);
        loop {
            let parts = copying.next().await.unwrap();
            if parts.is_empty() {
                break;
            }
            for part in parts {
                assert!(loading.push(part).await.unwrap());
            }
        }
    }
    loading.finish().await.unwrap();
    let repos = target.index.list_hub_repos(RepoKind::Model, None, i64::MAX, 9).await.unwrap();
    assert_eq!(repos.iter().map(|repo| repo.name.as_str()).collect::<Vec<_>>(), ["other"]);
}
