//! Sweeps of Hub repositories: what is deleted and when, and what stays.

mod random;

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{FutureExt, stream};
use sha2::Digest;

use super::faults::SweepGuard;
use super::hub::{claims, commit, create, name, open, put, seen};
use super::hub_deletion::copy;
use super::records::rebuild;
use super::{BodyError, Setup};
use crate::format::shard::Sha256;
use crate::git::ObjectId;
use crate::index::{ClaimIndex, HubIndex, HubObject, HubSweepIndex, Index, Reader};
use crate::runtime::clock::Clock;
use crate::service::gc::Pace;
use crate::service::hub::{Depth, Loading, hub_states};
use crate::service::{Change, CommitRequest, HubError, RepoKind, Server, WholeFile};

/// A little longer than the time between two sweeps of a repository.
const DAY: Duration = Duration::from_secs(24 * 3600 + 1);

async fn sweep(server: &Arc<Server>) {
    server.sweep_hub_repos(&Pace::default()).await.unwrap();
}

fn put_text(path: &str, text: &str) -> Change {
    Change::Put { path: path.parse().unwrap(), contents: text.as_bytes().to_vec() }
}

async fn squash(server: &Arc<Server>, repo: &str) {
    server.squash(&open(server, repo).await.unwrap(), "main", None).await.unwrap();
}

async fn head(server: &Arc<Server>, repo: &str) -> ObjectId {
    server.find_revision(&open(server, repo).await.unwrap(), "main").await.unwrap().id
}

/// The files that a repository has a claim to.
async fn claimed(index: &dyn Index, repo: &str) -> BTreeSet<String> {
    let reader = Reader::Repo(name(repo).storage_name());
    let files = index.files_after(reader, None, 10_000).await.unwrap();
    files.into_iter().map(|file| file.hash.to_string()).collect()
}

/// A repository whose first commit with contents was squashed away: a sweep found that six days
/// ago. Returns that commit, too.
async fn squashed() -> (Setup, Arc<Server>, ObjectId) {
    let setup = Setup::new().await;
    let server = setup.process();
    create(&server, "repo").await.unwrap();
    commit(&server, "repo", vec![put_text("a.txt", "one")]).await.unwrap();
    let old = head(&server, "repo").await;
    commit(&server, "repo", vec![put_text("a.txt", "two")]).await.unwrap();
    squash(&server, "repo").await;
    sweep(&server).await;
    pass(&setup, &server, 6).await;
    (setup, server, old)
}

/// Number of commits, directories and files that have a row.
async fn object_counts(index: &dyn Index, server: &Arc<Server>, repo: &str) -> [usize; 3] {
    let id = open(server, repo).await.unwrap().repo.id;
    let commits = index.list_hub_commits(id, None, 10_000).await.unwrap();
    let trees = index.list_hub_ids(id, HubObject::Tree, None, 10_000).await.unwrap();
    let blobs = index.list_hub_ids(id, HubObject::Blob, None, 10_000).await.unwrap();
    [commits.len(), trees.len(), blobs.len()]
}

fn sha256(text: &str) -> Sha256 {
    Sha256::from_digest(sha2::Sha256::digest(text).into())
}

/// Registers a large file without a commit.
pub(super) async fn upload(server: &Arc<Server>, repo: &str, text: &str) {
    let (claims, body) = (claims(repo), stream::iter([Ok::<_, BodyError>(Bytes::copy_from_slice(text.as_bytes()))]));
    let (tenant, len) = (claims.tenant(), text.len() as u64);
    server.receive_whole_file(WholeFile { tenant, claims: &claims, sha256: sha256(text), len, body }).await.unwrap();
}

pub(super) fn put_large(path: &str, text: &str) -> Change {
    Change::PutLarge { path: path.parse().unwrap(), sha256: sha256(text), len: Some(text.len() as u64) }
}

fn delete(path: &str) -> Change {
    Change::Delete { path: path.parse().unwrap() }
}

/// The file with these contents, if the repository has a claim to it.
async fn file_of(setup: &Setup, repo: &str, text: &str) -> Option<String> {
    let found = setup.index.find_sha256(sha256(text), Reader::Repo(name(repo).storage_name())).await.unwrap();
    found.map(|found| found.file.to_string())
}

/// Advances the clock by days, and sweeps on each.
async fn pass(setup: &Setup, server: &Arc<Server>, days: u32) {
    for _ in 0..days {
        setup.clock.advance(DAY);
        sweep(server).await;
    }
}

/// A sweep finds what is not needed, and then the week passes. The next one deletes it.
async fn last_day(setup: &Setup, server: &Arc<Server>) {
    sweep(server).await;
    pass(setup, server, 6).await;
    setup.clock.advance(DAY);
}

#[tokio::test]
async fn squashed_history_is_deleted_after_a_week() {
    let setup = Setup::new().await;
    let server = setup.process();
    for repo in ["repo", "other"] {
        create(&server, repo).await.unwrap();
        let (same, again) = (put_text("a/old.txt", "in both"), put_text("a/b/moved.txt", "under two paths"));
        commit(&server, repo, vec![same, again, put_text("own.txt", repo)]).await.unwrap();
    }
    let moved = put_text("c.txt", "under two paths");
    commit(&server, "repo", vec![delete("a/old.txt"), delete("a/b/moved.txt"), delete("own.txt"), moved])
        .await
        .unwrap();
    let (old, other) = (head(&server, "repo").await, claimed(&setup.index, "other").await);
    squash(&server, "repo").await;
    let (expected, all) = (seen(&server).await, object_counts(&setup.index, &server, "repo").await);
    assert_eq!((all, claimed(&setup.index, "repo").await.len()), ([4, 5, 4], 4));
    sweep(&server).await;
    pass(&setup, &server, 6).await;
    // Until then the old commit can be read, and brought back.
    assert_eq!(server.find_revision(&open(&server, "repo").await.unwrap(), &old.to_string()).await.unwrap().id, old);
    assert_eq!(object_counts(&setup.index, &server, "repo").await, all);
    pass(&setup, &server, 1).await;
    // One commit, its root, its `.gitattributes` and one file are left.
    assert_eq!(
        (object_counts(&setup.index, &server, "repo").await, claimed(&setup.index, "repo").await.len()),
        ([1, 1, 2], 2)
    );
    assert_eq!((seen(&server).await, claimed(&setup.index, "other").await), (expected.clone(), other));
    let found = server.find_revision(&open(&server, "repo").await.unwrap(), &old.to_string()).await;
    assert!(matches!(found, Err(HubError::NoRevision { .. })));
    // A rebuild has the old rows again; later sweeps delete them.
    let rebuilt = rebuild(&setup).await.unwrap();
    assert_eq!(rebuilt.problems, [""; 0]);
    let server = setup.process_with(&rebuilt.index);
    assert_eq!(seen(&server).await, expected);
    let id = open(&server, "repo").await.unwrap().repo.id;
    assert_eq!(rebuilt.index.list_hub_commits(id, None, 99).await.unwrap().len(), 4);
    sweep(&server).await;
    pass(&setup, &server, 7).await;
    assert_eq!((seen(&server).await, server.store.metrics.hub.sweep_failures.get()), (expected, 0));
    assert_eq!(rebuilt.index.list_hub_commits(id, None, 99).await.unwrap().len(), 1);
}

#[tokio::test]
async fn branch_at_an_old_commit_keeps_its_history() {
    let (setup, server, old) = squashed().await;
    let opened = open(&server, "repo").await.unwrap();
    server.create_hub_ref(&opened, "refs/heads/back".to_owned(), old).await.unwrap();
    let expected = seen(&server).await;
    pass(&setup, &server, 20).await;
    assert_eq!(seen(&server).await, expected);
    let id = opened.repo.id;
    assert_eq!(setup.index.list_unneeded_commits(id, None, 9).await.unwrap(), []);
    assert_eq!(setup.index.list_unneeded_files(id, None, 9).await.unwrap(), []);
    // When it is deleted, a week begins again, also if that was between two sweeps.
    server.delete_hub_ref(&opened, "refs/heads/back".to_owned()).await.unwrap();
    sweep(&server).await;
    pass(&setup, &server, 7).await;
    assert!(server.find_revision(&opened, &old.to_string()).await.is_ok());
    pass(&setup, &server, 1).await;
    assert!(server.find_revision(&opened, &old.to_string()).await.is_err());
}

/// A branch lives between two sweeps, at a commit that was unneeded for long.
#[tokio::test]
async fn young_commit_keeps_its_old_parent() {
    let (setup, server, old) = squashed().await;
    setup.clock.advance(DAY);
    let opened = open(&server, "repo").await.unwrap();
    server.create_hub_ref(&opened, "refs/heads/short".to_owned(), old).await.unwrap();
    let (branch, message, changes) = ("short".to_owned(), "young".to_owned(), vec![put_text("b.txt", "two")]);
    let request = CommitRequest { branch, message, parent: None, changes };
    let young = server.commit(&opened, request).await.unwrap().id.to_string();
    server.delete_hub_ref(&opened, "refs/heads/short".to_owned()).await.unwrap();
    for days in [0, 6] {
        pass(&setup, &server, days).await;
        sweep(&server).await;
        let found = server.find_revision(&opened, &young).await.unwrap();
        let (history, _) = server.hub_history(&opened, found.clone(), 9).await.unwrap();
        assert_eq!(history.len(), 3);
        assert!(server.find_hub_file(&opened, &found, "a.txt").await.is_ok());
    }
    pass(&setup, &server, 1).await;
    assert!(server.find_revision(&opened, &young).await.is_err());
    assert_eq!(
        (object_counts(&setup.index, &server, "repo").await[0], server.store.metrics.hub.sweep_failures.get()),
        (1, 0)
    );
}

/// Git has another id for a large file than for a regular one with the same contents.
#[tokio::test]
async fn claim_stays_while_another_file_has_the_same_contents() {
    let setup = Setup::new().await;
    let server = setup.process();
    create(&server, "repo").await.unwrap();
    commit(&server, "repo", vec![put_text("regular.txt", "the same")]).await.unwrap();
    upload(&server, "repo", "the same").await;
    let changes = vec![put_large("large.txt", "the same"), delete("regular.txt")];
    commit(&server, "repo", changes).await.unwrap();
    squash(&server, "repo").await;
    let expected = seen(&server).await;
    sweep(&server).await;
    pass(&setup, &server, 8).await;
    // `.gitattributes`, and the large file.
    assert_eq!(object_counts(&setup.index, &server, "repo").await, [1, 1, 2]);
    assert_eq!((claimed(&setup.index, "repo").await.len(), seen(&server).await), (2, expected));
}

/// Two files of a deleted commit that are registered again, each in its own way, before the sweep
/// that removes the third one.
#[tokio::test]
async fn file_that_is_registered_again_stays_for_its_commit() {
    let setup = Setup::new().await;
    let server = setup.process();
    create(&server, "repo").await.unwrap();
    let texts = ["sent again", "found by its sha256", "not sent again"];
    for (text, path) in texts.iter().zip(["a.bin", "b.bin", "c.bin"]) {
        upload(&server, "repo", text).await;
        commit(&server, "repo", vec![put_large(path, text)]).await.unwrap();
    }
    commit(&server, "repo", ["a.bin", "b.bin", "c.bin"].map(delete).to_vec()).await.unwrap();
    upload(&server, "repo", "never committed").await;
    squash(&server, "repo").await;
    sweep(&server).await;
    pass(&setup, &server, 6).await;
    // A process that has begun since then knows the list, too.
    let server = setup.process();
    server.load_unneeded_files().await.unwrap();
    upload(&server, "repo", texts[0]).await;
    let opened = open(&server, "repo").await.unwrap();
    assert!(server.has_whole_file(&opened, sha256(texts[1]), texts[1].len() as u64).await.unwrap());
    assert!(!server.has_whole_file(&opened, sha256(texts[2]), 1).await.unwrap());
    let found = async || {
        let mut found = Vec::new();
        for text in texts.iter().chain(&["never committed"]) {
            found.push(file_of(&setup, "repo", text).await.is_some());
        }
        found
    };
    assert_eq!(found().await, [true; 4]);
    pass(&setup, &server, 1).await;
    assert_eq!(found().await, [true, true, false, false]);
    // No commit has these files by now, but a week has begun again for each.
    pass(&setup, &server, 6).await;
    commit(&server, "repo", vec![put_large("a.bin", texts[0]), put_large("b.bin", texts[1])]).await.unwrap();
    let expected = seen(&server).await;
    pass(&setup, &server, 20).await;
    assert_eq!((found().await, seen(&server).await), (vec![true, true, false, false], expected));
}

/// Nothing else of the repository changes.
#[tokio::test]
async fn upload_without_a_commit_is_removed_after_a_week() {
    let setup = Setup::new().await;
    let server = setup.process();
    for repo in ["repo", "other"] {
        create(&server, repo).await.unwrap();
        commit(&server, repo, vec![put("a.txt")]).await.unwrap();
    }
    sweep(&server).await;
    for repo in ["repo", "other"] {
        for text in ["one", "two", "three", "four"] {
            upload(&server, repo, text).await;
        }
    }
    let expected = seen(&server).await;
    // The first sweep after the upload finds it, so it stays for eight days.
    pass(&setup, &server, 7).await;
    commit(&server, "other", vec![put_large("1.bin", "one"), put_large("2.bin", "two")]).await.unwrap();
    commit(&server, "other", vec![delete("2.bin")]).await.unwrap();
    upload(&server, "other", "three").await;
    let found = async |repo| {
        let mut found = Vec::new();
        for text in ["one", "two", "three", "four"] {
            found.push(file_of(&setup, repo, text).await.is_some());
        }
        found
    };
    assert_eq!(found("repo").await, [true; 4]);
    pass(&setup, &server, 1).await;
    assert_eq!((found("repo").await, found("other").await), (vec![false; 4], vec![true, true, true, false]));
    assert_eq!(
        (seen(&server).await["repo"].clone(), server.store.metrics.hub.swept_files.get()),
        (expected["repo"].clone(), 5)
    );
    // Each of the others has a commit, or a week since its registration.
    pass(&setup, &server, 6).await;
    assert_eq!(found("other").await, [true, true, true, false]);
    pass(&setup, &server, 9).await;
    assert_eq!(found("other").await, [true, true, false, false]);
    assert_eq!(server.store.metrics.hub.sweep_failures.get(), 0);
}

/// They may belong to users of the name without the Hub.
#[tokio::test]
async fn files_from_before_the_repository_stay() {
    let setup = Setup::new().await;
    let server = setup.process();
    upload(&server, "repo", "before").await;
    setup.clock.advance(Duration::from_millis(1));
    create(&server, "repo").await.unwrap();
    upload(&server, "repo", "after").await;
    sweep(&server).await;
    pass(&setup, &server, 9).await;
    assert!(file_of(&setup, "repo", "before").await.is_some());
    assert!(file_of(&setup, "repo", "after").await.is_none());
}

/// The time of the file itself is that of its first registration, by a repository that existed before.
#[tokio::test]
async fn upload_of_what_others_had_before_is_removed_after_a_week() {
    let setup = Setup::new().await;
    let server = setup.process();
    create(&server, "other").await.unwrap();
    upload(&server, "other", "same").await;
    commit(&server, "other", vec![put_large("same.bin", "same")]).await.unwrap();
    setup.clock.advance(Duration::from_millis(1));
    create(&server, "repo").await.unwrap();
    upload(&server, "repo", "same").await;
    sweep(&server).await;
    pass(&setup, &server, 6).await;
    assert!(file_of(&setup, "repo", "same").await.is_some());
    pass(&setup, &server, 3).await;
    assert!(file_of(&setup, "repo", "same").await.is_none());
    assert!(file_of(&setup, "other", "same").await.is_some());
}

/// A client takes a file from the list, and nothing else of the repository changes.
#[tokio::test]
async fn upload_that_was_taken_from_the_list_is_listed_again() {
    let setup = Setup::new().await;
    let server = setup.process();
    create(&server, "repo").await.unwrap();
    upload(&server, "repo", "again").await;
    sweep(&server).await;
    pass(&setup, &server, 6).await;
    upload(&server, "repo", "again").await;
    pass(&setup, &server, 7).await;
    assert!(file_of(&setup, "repo", "again").await.is_some());
    pass(&setup, &server, 1).await;
    assert!(file_of(&setup, "repo", "again").await.is_none());
}

/// Otherwise a backup beside the server waits for it in vain.
#[tokio::test]
async fn what_a_sweep_has_removed_leaves_no_record_to_be_applied() {
    let setup = Setup::new().await;
    let server = setup.process();
    create(&server, "repo").await.unwrap();
    upload(&server, "repo", "never committed").await;
    sweep(&server).await;
    let before = setup.record_seqs().await.len();
    pass(&setup, &server, 9).await;
    assert!(file_of(&setup, "repo", "never committed").await.is_none());
    assert!(setup.record_seqs().await.len() > before, "the removal has a record");
    assert!(server.store.compare().await.unwrap().is_empty());
}

/// The lists are empty after the sweep, and a repository without a change is not read again.
#[tokio::test]
async fn unchanged_repository_is_not_read() {
    let setup = Setup::new().await;
    let server = setup.process();
    create(&server, "repo").await.unwrap();
    commit(&server, "repo", vec![put("a/b.txt")]).await.unwrap();
    squash(&server, "repo").await;
    sweep(&server).await;
    pass(&setup, &server, 9).await;
    setup.index.tamper("DELETE FROM hub_trees").await;
    pass(&setup, &server, 3).await;
    assert_eq!(server.store.metrics.hub.sweep_failures.get(), 0);
    let opened = open(&server, "repo").await.unwrap();
    let target = head(&server, "repo").await;
    server.create_hub_ref(&opened, "refs/tags/v1".to_owned(), target).await.unwrap();
    pass(&setup, &server, 1).await;
    assert_eq!(server.store.metrics.hub.sweep_failures.get(), 1);
}

/// A clock that was ahead has listed something: its week begins again.
#[tokio::test]
async fn clock_that_was_ahead_deletes_nothing_early() {
    let setup = Setup::new().await;
    let server = setup.process();
    create(&server, "repo").await.unwrap();
    commit(&server, "repo", vec![put("a.txt")]).await.unwrap();
    let (old, now) = (head(&server, "repo").await.to_string(), setup.clock.now());
    squash(&server, "repo").await;
    setup.clock.advance(DAY * 1000);
    sweep(&server).await;
    setup.clock.set(now);
    sweep(&server).await;
    let opened = open(&server, "repo").await.unwrap();
    pass(&setup, &server, 6).await;
    assert!(server.find_revision(&opened, &old).await.is_ok());
    pass(&setup, &server, 1).await;
    assert!(server.find_revision(&opened, &old).await.is_err());
}

/// A copy that was made during a sweep has only a part of an unneeded commit.
#[tokio::test]
async fn part_of_an_unneeded_commit_is_no_damage() {
    let setup = Setup::new().await;
    let server = setup.process();
    create(&server, "repo").await.unwrap();
    commit(&server, "repo", vec![put("a/b.txt")]).await.unwrap();
    commit(&server, "repo", vec![put("a/c.txt")]).await.unwrap();
    let history = server.find_revision(&open(&server, "repo").await.unwrap(), "main").await.unwrap();
    squash(&server, "repo").await;
    let (parent, head) = (history.parent.unwrap(), head(&server, "repo").await);
    let first = format!("SELECT tree FROM hub_commits WHERE parent IS NULL AND oid != x'{head}'");
    setup.index.tamper(&format!("DELETE FROM hub_trees WHERE oid IN ({first})")).await;
    setup.index.tamper(&format!("DELETE FROM hub_commits WHERE oid = x'{parent}'")).await;
    let expected = seen(&server).await;
    sweep(&server).await;
    pass(&setup, &server, 8).await;
    assert_eq!((seen(&server).await, object_counts(&setup.index, &server, "repo").await[0]), (expected, 1));
    assert_eq!(server.store.metrics.hub.sweep_failures.get(), 0);
}

/// A client registers a file again while the sweep deletes what its last commit had.
#[tokio::test]
async fn file_that_is_registered_during_a_sweep_stays() {
    register_during_a_sweep(None).await;
}

async fn register_during_a_sweep(broken: Option<SweepGuard>) {
    let setup = Setup::new().await;
    let server = setup.process();
    create(&server, "repo").await.unwrap();
    upload(&server, "repo", "again").await;
    commit(&server, "repo", vec![put_large("a.bin", "again")]).await.unwrap();
    for text in ["one", "two", "three"] {
        commit(&server, "repo", vec![put_text("a/b/c.txt", text)]).await.unwrap();
    }
    commit(&server, "repo", vec![delete("a.bin")]).await.unwrap();
    squash(&server, "repo").await;
    last_day(&setup, &server).await;
    broken.into_iter().for_each(|guard| setup.faults.break_guard(guard));
    // Its commits are gone, and no file yet.
    let held = setup.faults.hold("drop_hub_objects");
    let registering = async {
        let release = held.reached().await;
        let left = object_counts(&setup.index, &server, "repo").await;
        upload(&server, "repo", "again").await;
        drop(release);
        left
    };
    let ((), left) = tokio::join!(sweep(&server), registering);
    assert_eq!((left[0], left[2]), (1, 5));
    assert_eq!(object_counts(&setup.index, &server, "repo").await, [1, 3, 2]);
    pass(&setup, &server, 6).await;
    commit(&server, "repo", vec![put_large("a.bin", "again")]).await.unwrap();
    seen(&server).await;
}

/// The claim was removed a moment ago, and the file is not yet off the list.
#[tokio::test]
async fn file_that_is_registered_after_its_claim_was_removed_stays() {
    let setup = Setup::new().await;
    let server = setup.process();
    create(&server, "repo").await.unwrap();
    for text in ["again", "other"] {
        upload(&server, "repo", text).await;
    }
    last_day(&setup, &server).await;
    // First it takes off the list what a commit has again, which is nothing.
    let held = setup.faults.hold("set_unneeded_files");
    let registering = async {
        let release = held.reached().await;
        let held = setup.faults.hold("set_unneeded_files");
        drop(release);
        let release = held.reached().await;
        assert!(file_of(&setup, "repo", "again").await.is_none());
        upload(&server, "repo", "again").await;
        drop(release);
    };
    let ((), ()) = tokio::join!(sweep(&server), registering);
    let found = async || [file_of(&setup, "repo", "again").await, file_of(&setup, "repo", "other").await];
    assert!(matches!(found().await, [Some(_), None]));
    pass(&setup, &server, 6).await;
    commit(&server, "repo", vec![put_large("a.bin", "again")]).await.unwrap();
    seen(&server).await;
}

/// The commit has found its file, and then a sweep removes the claim to it.
#[tokio::test]
async fn commit_of_a_file_that_is_removed_meanwhile_is_refused() {
    commit_during_a_sweep(None).await;
}

async fn commit_during_a_sweep(broken: Option<SweepGuard>) {
    let setup = Setup::new().await;
    let server = setup.process();
    create(&server, "repo").await.unwrap();
    upload(&server, "repo", "again").await;
    last_day(&setup, &server).await;
    broken.into_iter().for_each(|guard| setup.faults.break_guard(guard));
    let held = setup.faults.hold("stage_xorb");
    let sweeping = async {
        let release = held.reached().await;
        assert!(file_of(&setup, "repo", "again").await.is_some());
        sweep(&server).await;
        assert!(file_of(&setup, "repo", "again").await.is_none());
        drop(release);
    };
    let changes = vec![put_large("a.bin", "again"), put_text("b.txt", "other")];
    let (committed, ()) = tokio::join!(commit(&server, "repo", changes), sweeping);
    seen(&server).await;
    assert!(matches!(&committed, Err(HubError::Invalid(detail)) if detail.contains("a.")), "{committed:?}");
}

/// No file is unneeded, so only the directories are left when the server stops.
#[tokio::test]
async fn sweep_that_was_stopped_is_completed_by_the_next() {
    let setup = Setup::new().await;
    let server = setup.process();
    create(&server, "repo").await.unwrap();
    for path in ["a/a.txt", "b/b.txt", "c/c.txt"] {
        commit(&server, "repo", vec![put(path)]).await.unwrap();
    }
    squash(&server, "repo").await;
    last_day(&setup, &server).await;
    let pace = Pace::default();
    let held = setup.faults.hold("drop_hub_objects");
    let stopping = async {
        let release = held.reached().await;
        pace.stop.cancel();
        drop(release);
    };
    let (swept, ()) = tokio::join!(server.sweep_hub_repos(&pace), stopping);
    swept.unwrap();
    let left = object_counts(&setup.index, &server, "repo").await;
    assert!(matches!(left, [1, 5..7, 4]), "{left:?}: one step deleted some of three directories");
    pass(&setup, &server, 1).await;
    assert_eq!(object_counts(&setup.index, &server, "repo").await, [1, 4, 4]);
}

/// A commit was listed long before a branch was created there, and no sweep sees the branch.
#[tokio::test]
async fn deleted_branch_has_a_week_from_its_deletion() {
    let (setup, server, old) = squashed().await;
    let opened = open(&server, "repo").await.unwrap();
    server.create_hub_ref(&opened, "refs/heads/short".to_owned(), old).await.unwrap();
    server.delete_hub_ref(&opened, "refs/heads/short".to_owned()).await.unwrap();
    pass(&setup, &server, 7).await;
    assert!(server.find_revision(&opened, &old.to_string()).await.is_ok());
    pass(&setup, &server, 1).await;
    assert!(server.find_revision(&opened, &old.to_string()).await.is_err());
}

/// The same while a sweep deletes the commits after it: a branch lives between two of its steps.
#[tokio::test]
async fn branch_that_is_deleted_during_a_sweep_has_a_week() {
    let (setup, server, old) = squashed().await;
    setup.clock.advance(DAY);
    let opened = open(&server, "repo").await.unwrap();
    // Three commits are unneeded, and a step deletes two: not the oldest.
    let left = server.find_revision(&opened, &old.to_string()).await.unwrap().parent.unwrap();
    let held = setup.faults.hold("drop_hub_commits");
    let short = async {
        let release = held.reached().await;
        let mut creating = pin!(server.create_hub_ref(&opened, "refs/heads/short".to_owned(), left));
        let mut deleting = pin!(server.delete_hub_ref(&opened, "refs/heads/short".to_owned()));
        // Both wait for the lock of the repository, before the next step of the sweep does.
        assert!(creating.as_mut().now_or_never().is_none() && deleting.as_mut().now_or_never().is_none());
        drop(release);
        creating.await.unwrap();
        deleting.await.unwrap();
    };
    let ((), ()) = tokio::join!(sweep(&server), short);
    assert!(server.find_revision(&opened, &old.to_string()).await.is_err());
    pass(&setup, &server, 6).await;
    assert!(server.find_revision(&opened, &left.to_string()).await.is_ok());
    pass(&setup, &server, 1).await;
    assert!(server.find_revision(&opened, &left.to_string()).await.is_err());
}

/// A backup has parts of a commit that a sweep was deleting; its restored copy is recorded, and
/// replayed.
#[tokio::test]
async fn state_with_a_part_of_an_unneeded_commit_is_replayed() {
    let setup = Setup::new().await;
    let server = setup.process();
    create(&server, "repo").await.unwrap();
    commit(&server, "repo", vec![put("a.txt")]).await.unwrap();
    commit(&server, "repo", vec![put("b.txt")]).await.unwrap();
    squash(&server, "repo").await;
    let (main, restored) = (head(&server, "repo").await, Setup::new().await);
    let first = format!("SELECT tree FROM hub_commits WHERE parent IS NULL AND oid != x'{main}'");
    setup.index.tamper(&format!("DELETE FROM hub_trees WHERE oid IN ({first})")).await;
    setup
        .index
        .tamper("DELETE FROM hub_commits WHERE oid IN (SELECT parent FROM hub_commits) AND parent IS NOT NULL")
        .await;
    let mut loading = Loading::begin(&restored.index);
    for state in hub_states(&setup.index).await.unwrap() {
        copy(&setup, state, &mut loading).await;
    }
    loading.finish().await.unwrap();
    restored.process().store.complete_records().await.unwrap();
    let rebuilt = rebuild(&restored).await.unwrap();
    assert_eq!(rebuilt.problems, [""; 0]);
    let repos = rebuilt.index.list_hub_repos(RepoKind::Model, None, i64::MAX, 9).await.unwrap();
    let found = rebuilt.index.find_hub_ref(repos[0].id, "refs/heads/main".to_owned()).await.unwrap();
    assert_eq!((repos.len(), found), (1, Some(main)));
}

/// An unneeded commit lacks its root directory. A commit adds this directory again after the sweep
/// has marked the others.
#[tokio::test]
async fn directory_that_comes_back_during_a_sweep_has_its_files() {
    let setup = Setup::new().await;
    let server = setup.process();
    create(&server, "repo").await.unwrap();
    for text in ["one", "two", "three"] {
        commit(&server, "repo", vec![put_text("a/b/c.txt", text)]).await.unwrap();
    }
    squash(&server, "repo").await;
    sweep(&server).await;
    pass(&setup, &server, 6).await;
    commit(&server, "repo", vec![put("d/e.txt")]).await.unwrap();
    let young = head(&server, "repo").await;
    commit(&server, "repo", vec![delete("d/e.txt")]).await.unwrap();
    squash(&server, "repo").await;
    let root = format!("SELECT tree FROM hub_commits WHERE oid = x'{young}'");
    setup.index.tamper(&format!("DELETE FROM hub_trees WHERE oid IN ({root})")).await;
    setup.clock.advance(DAY);
    let before = object_counts(&setup.index, &server, "repo").await;
    // No step is under way: the sweep has deleted directories, and no file yet.
    let held = setup.faults.hold("list_hub_blobs");
    let committing = async {
        let release = held.reached().await;
        let left = object_counts(&setup.index, &server, "repo").await;
        commit(&server, "repo", vec![put("d/e.txt")]).await.unwrap();
        drop(release);
        left
    };
    let ((), left) = tokio::join!(sweep(&server), committing);
    assert!(left[1] < before[1] && left[2] == before[2], "{left:?}");
    seen(&server).await;
}

#[tokio::test]
async fn repository_with_a_missing_directory_loses_nothing() {
    let setup = Setup::new().await;
    let server = setup.process();
    create(&server, "repo").await.unwrap();
    commit(&server, "repo", vec![put("a/b.txt")]).await.unwrap();
    squash(&server, "repo").await;
    sweep(&server).await;
    let opened = open(&server, "repo").await.unwrap();
    let main = server.find_revision(&opened, "main").await.unwrap();
    let page = server.list_hub_files(&opened, &main, "", Depth::One, (None, 9)).await.unwrap();
    let below = page.entries.iter().find(|entry| entry.path == "a").unwrap().id;
    setup.index.tamper(&format!("DELETE FROM hub_trees WHERE oid = x'{below}'")).await;
    let all = object_counts(&setup.index, &server, "repo").await;
    pass(&setup, &server, 20).await;
    assert_eq!(object_counts(&setup.index, &server, "repo").await, all);
    assert_eq!(server.store.metrics.hub.sweep_failures.get(), 20);
}
