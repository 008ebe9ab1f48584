//! Deletion of Hub repositories: what it removes, what it leaves, and how a failure continues.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use sha2::Digest;

use super::hub::{claims, commit, create, name, put, seen};
use super::records::{prune, rebuild};
use super::{BodyError, Moment, Setup};
use crate::blob::records::RecordStore;
use crate::format::shard::Sha256;
use crate::index::{HubDeletionIndex, HubIndex, ListIndex, Reader, UsageIndex};
use crate::service::access::{Claims, Scope};
use crate::service::gc::Pace;
use crate::service::hub::{Copying, HubState, Loading, hub_states};
use crate::service::{Change, CommitRequest, HubError, Pruning, RepoKind, Server, StoreError, WholeFile};

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

/// Copies a repository as a backup and a restore do.
pub(super) async fn copy(setup: &Setup, state: HubState, loading: &mut Loading<'_>) {
    let mut copying = Copying::begin(&setup.index, state);
    loop {
        let parts = copying.next().await.unwrap();
        if parts.is_empty() {
            return;
        }
        for part in parts {
            assert!(loading.push(part).await.unwrap());
        }
    }
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
    assert_eq!(prune(&setup, 3).await.hub_count, 0, "the purge has just ended");
    setup.clock.advance(Duration::from_secs(2 * 24 * 3600));
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

/// A deletion whose outcome the client does not know is made or not, and loses no later commit.
#[tokio::test]
async fn failed_deletion_is_made_later_or_never() {
    for moment in [Moment::Before, Moment::After] {
        let setup = setup().await;
        let server = setup.process();
        setup.faults.arm_at("delete_hub_repo", moment);
        delete(&server, "repo").await.unwrap_err();
        setup.faults.disarm();
        server.purge_deleted_repos(&Pace::default()).await.unwrap();
        // Also if it was not made, a registration is not refused any more.
        if moment == Moment::After {
            create(&server, "repo").await.unwrap();
        }
        commit(&server, "repo", vec![put("later.txt")]).await.unwrap();
        let after = seen(&server).await;
        assert_eq!(after["repo"].refs()["refs/heads/main"].1.contains_key("own.txt"), moment == Moment::Before);
        let rebuilt = rebuild(&setup).await.unwrap();
        let found = seen(&setup.process_with(&rebuilt.index)).await;
        assert_eq!((rebuilt.problems, found), (Vec::new(), after), "{moment:?}");
    }
}

/// Registers a file for a repository, without a commit.
async fn push(server: &Arc<Server>, repo: &str, text: &'static str) -> Result<(), HubError> {
    let (claims, body) = (claims(repo), stream::iter([Ok::<_, BodyError>(Bytes::from_static(text.as_bytes()))]));
    let sha256 = Sha256::from_digest(sha2::Sha256::digest(text).into());
    let len = text.len() as u64;
    server.receive_whole_file(WholeFile { tenant: claims.tenant(), claims: &claims, sha256, len, body }).await
}

/// What is acknowledged under the name of a deleted repository stays, also in a rebuilt index.
#[tokio::test]
async fn file_that_is_pushed_to_the_name_later_stays() {
    let setup = setup().await;
    let mut server = setup.process();
    delete(&server, "repo").await.unwrap();
    push(&server, "repo", "meanwhile").await.unwrap_err();
    // Also after a restart.
    server = setup.process();
    server.load_deleted_repos().await.unwrap();
    push(&server, "repo", "meanwhile").await.unwrap_err();
    push(&server, "other", "of another").await.unwrap();
    server.purge_deleted_repos(&Pace::default()).await.unwrap();
    push(&server, "repo", "later").await.unwrap();
    assert_eq!(claim_count(&setup, "repo").await, 1);
    let rebuilt = rebuild(&setup).await.unwrap();
    assert_eq!(rebuilt.problems, [""; 0]);
    let later = setup.process_with(&rebuilt.index);
    later.load_deleted_repos().await.unwrap();
    later.purge_deleted_repos(&Pace::default()).await.unwrap();
    let reader = Reader::Repo(name("repo").storage_name());
    assert_eq!(rebuilt.index.files_after(reader, None, 100).await.unwrap().len(), 1);
    push(&later, "repo", "and more").await.unwrap();
}

/// A registration that began before the deletion gives no claim to a later repository of the name.
#[tokio::test]
async fn deletion_ends_after_the_registrations_that_began_before_it() {
    for is_shared in [false, true] {
        let setup = setup().await;
        if is_shared {
            setup.faults.share();
        }
        let server = setup.process();
        let held = setup.faults.hold("register");
        let deleting = async {
            let release = held.reached().await;
            delete(&server, "repo").await.unwrap();
            server.purge_deleted_repos(&Pace::default()).await.unwrap();
            assert_eq!(claim_count(&setup, "repo").await, 0);
            push(&server, "repo", "later").await.unwrap_err();
            let refused = create(&server, "repo").await;
            assert!(matches!(refused, Err(HubError::Store(StoreError::Busy(_)))), "{refused:?}");
            drop(release);
        };
        let (pushed, ()) = tokio::join!(push(&server, "repo", "before"), deleting);
        pushed.unwrap();
        assert_eq!((claim_count(&setup, "repo").await, is_pending(&setup).await), (1, true));
        server.purge_deleted_repos(&Pace::default()).await.unwrap();
        assert_eq!((claim_count(&setup, "repo").await, is_pending(&setup).await), (0, false));
        create(&server, "repo").await.unwrap();
        push(&server, "repo", "of the new one").await.unwrap();
        let expected = seen(&server).await;
        let rebuilt = rebuild(&setup).await.unwrap();
        assert_eq!((rebuilt.problems, seen(&setup.process_with(&rebuilt.index)).await), (Vec::new(), expected));
        let reader = Reader::Repo(name("repo").storage_name());
        let claims = setup.index.files_after(reader.clone(), None, 100).await.unwrap();
        let rebuilt = rebuilt.index.files_after(reader, None, 100).await.unwrap();
        assert_eq!(
            claims.iter().map(|file| file.hash).collect::<Vec<_>>(),
            rebuilt.iter().map(|file| file.hash).collect::<Vec<_>>()
        );
    }
}

/// A creation does a short purge itself; for a long one its client is asked to retry.
#[tokio::test]
async fn creation_does_not_wait_for_a_long_purge() {
    let setup = setup().await;
    let server = setup.process();
    let many: Vec<_> = (0..40).map(|n| put(&format!("{n}.txt"))).collect();
    commit(&server, "repo", many).await.unwrap();
    delete(&server, "repo").await.unwrap();
    let refused = create(&server, "repo").await;
    assert!(matches!(refused, Err(HubError::Store(StoreError::Busy(_)))), "{refused:?}");
    assert!(is_pending(&setup).await && claim_count(&setup, "repo").await > 0);
    server.purge_deleted_repos(&Pace::default()).await.unwrap();
    create(&server, "repo").await.unwrap();
}

/// Without authentication a commit has a claim of its own, which no deletion of another takes.
#[tokio::test]
async fn file_of_another_repository_must_be_uploaded_first() {
    let setup = setup().await;
    let server = setup.process();
    push(&server, "repo", "the file").await.unwrap();
    let sha256 = Sha256::from_digest(sha2::Sha256::digest("the file").into());
    let large = Change::PutLarge { path: "large.txt".parse().unwrap(), sha256, len: Some(8) };
    let opened = server.open_hub_repo(&Claims::UNRESTRICTED, &name("other"), Scope::Write).await.unwrap();
    let (branch, message) = ("main".to_owned(), "a commit".to_owned());
    let request = CommitRequest { branch, message, parent: None, changes: vec![large] };
    assert!(!server.has_whole_file(&opened, sha256, 8).await.unwrap());
    let refused = server.commit(&opened, request.clone()).await;
    assert!(matches!(refused, Err(HubError::Invalid(_))), "{refused:?}");
    let body = stream::iter([Ok::<_, BodyError>(Bytes::from_static(b"the file"))]);
    let claims = Claims::UNRESTRICTED;
    let upload = WholeFile { tenant: claims.tenant(), claims: &claims, sha256, len: 8, body };
    server.receive_whole_file(upload).await.unwrap();
    server.commit(&opened, request).await.unwrap();
    delete(&server, "repo").await.unwrap();
    server.purge_deleted_repos(&Pace::default()).await.unwrap();
    let head = server.find_revision(&opened, "main").await.unwrap();
    assert_eq!(server.find_hub_file(&opened, &head, "large.txt").await.unwrap().file.len, 8);
}

/// An archive has the deleted repository, and then one of its name or of another case.
#[tokio::test]
async fn restore_has_the_last_repository_of_a_name() {
    for later in ["repo", "REPO"] {
        let setup = setup().await;
        let server = setup.process();
        let target = Setup::new().await;
        let mut loading = Loading::begin(&target.index);
        for round in 0..2 {
            for state in hub_states(&setup.index).await.unwrap() {
                copy(&setup, state, &mut loading).await;
            }
            if round == 0 {
                delete(&server, "repo").await.unwrap();
                server.purge_deleted_repos(&Pace::default()).await.unwrap();
                setup.clock.advance(Duration::from_secs(1));
                create(&server, later).await.unwrap();
            }
        }
        loading.finish().await.unwrap();
        let restored =
            target.index.find_hub_repo(RepoKind::Model, "me".to_owned(), later.to_owned()).await.unwrap().unwrap();
        assert_eq!(restored.storage_name, name(later).storage_name());
        let commits = target.index.list_hub_commits(restored.id, None, 9).await.unwrap();
        assert_eq!(commits.len(), 1, "nothing of the deleted one is left");
    }
}

/// A copy that a deletion overtakes has no branches, so a restore discards it.
#[tokio::test]
async fn copy_of_a_repository_that_is_deleted_meanwhile_is_cut_off() {
    let setup = setup().await;
    let server = setup.process();
    let states = hub_states(&setup.index).await.unwrap();
    delete(&server, "repo").await.unwrap();
    server.purge_deleted_repos(&Pace::default()).await.unwrap();
    let target = Setup::new().await;
    let mut loading = Loading::begin(&target.index);
    for state in states {
        copy(&setup, state, &mut loading).await;
    }
    loading.finish().await.unwrap();
    let repos = target.index.list_hub_repos(RepoKind::Model, None, i64::MAX, 9).await.unwrap();
    assert_eq!(repos.iter().map(|repo| repo.name.as_str()).collect::<Vec<_>>(), ["other"]);
}

/// The files that a repository has a claim to.
async fn claimed(setup: &Setup, repo: &str) -> BTreeSet<String> {
    let reader = Reader::Repo(name(repo).storage_name());
    let files = setup.index.files_after(reader, None, 100).await.unwrap();
    files.into_iter().map(|file| file.hash.to_string()).collect()
}

/// A user removes a claim after a commit has stored its contents, and before it has the lock. A
/// client repeats such a commit, and that stores contents again that are in it.
#[tokio::test]
async fn commit_whose_claim_was_removed_meanwhile_is_refused() {
    let setup = Setup::new().await;
    let server = setup.process();
    create(&server, "repo").await.unwrap();
    let before = seen(&server).await;
    let lock = server.lock_hub_repo(&name("repo").storage_name()).await.unwrap();
    let known = claimed(&setup, "repo").await;
    let committing = commit(&server, "repo", vec![put("a.txt")]);
    let removing = async {
        // The contents of the commit are stored before it takes the lock.
        let mut now = known.clone();
        while now.len() == known.len() {
            tokio::task::yield_now().await;
            now = claimed(&setup, "repo").await;
        }
        let new = now.difference(&known).next().unwrap().parse().unwrap();
        server.remove_file(&claims("repo"), new, None).await.unwrap();
        drop(lock);
    };
    let (committed, ()) = tokio::join!(committing, removing);
    assert!(matches!(&committed, Err(HubError::Moving)), "{committed:?}");
    assert_eq!(seen(&server).await, before);
    commit(&server, "repo", vec![put("a.txt")]).await.unwrap();
    seen(&server).await;
}
