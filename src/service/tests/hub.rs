//! Hub repositories: each store operation of each change fails once, and an index that is rebuilt
//! from the records has the same repositories.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::timeout;

use super::claims::writer;
use super::records::{prune, rebuild};
use super::{Moment, Setup};
use crate::blob::records::{RecordStore, Seq};
use crate::index::{HubCommit, HubRepo, RecordIndex};
use crate::runtime::clock::Timestamp;
use crate::service::access::{Claims, Scope};
use crate::service::gc::Pace;
use crate::service::{
    Change, CommitRequest, Depth, HubError, HubName, OpenRepo, Pruned, RepoKind, RepoOrder, RepoPlace, Server,
};

const TAG: &str = "refs/tags/v1";

/// The commits of a branch or tag, and the contents of its files by their paths.
type Branch = (Vec<String>, BTreeMap<String, String>);

/// What readers see of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    storage_name: String,
    former_names: Vec<String>,
    is_private: bool,
    times: (Timestamp, Timestamp),
    refs: BTreeMap<String, Branch>,
}

impl Seen {
    pub(super) const fn refs(&self) -> &BTreeMap<String, Branch> {
        &self.refs
    }

    pub(super) fn has_former_name(&self, name: &str) -> bool {
        self.former_names.iter().any(|former| former == name)
    }
}

/// All repositories as readers see them. Every file of them is there.
pub(super) async fn seen(server: &Arc<Server>) -> BTreeMap<String, Seen> {
    let mut found = BTreeMap::new();
    let first = RepoPlace::first(RepoOrder::Created);
    let (repos, _) = server.list_hub_repos(&Claims::UNRESTRICTED, RepoKind::Model, first, 1000).await.unwrap();
    for repo in repos {
        let open = server.open_hub_repo(&Claims::UNRESTRICTED, &name(&repo.name), Scope::Write).await.unwrap();
        let mut refs = BTreeMap::new();
        for named in server.hub_refs(&open).await.unwrap() {
            let commit = server.find_revision(&open, &named.name).await.unwrap();
            let page = server.list_hub_files(&open, &commit, "", Depth::Files, (None, 1000)).await.unwrap();
            let mut files = BTreeMap::new();
            for entry in page.entries {
                let file = server.find_hub_file(&open, &commit, &entry.path).await.unwrap();
                assert_eq!(file.file.len, file.blob.len);
                files.insert(entry.path, file.blob.file.to_string());
            }
            let (history, rest) = server.hub_history(&open, commit, 100).await.unwrap();
            assert_eq!(rest, None);
            refs.insert(named.name, (history.iter().map(|commit| commit.id.to_string()).collect(), files));
        }
        let times = (repo.created, repo.updated);
        let HubRepo { storage_name, is_private, .. } = repo;
        let former_names = server.store.index.list_former_names(repo.id, 100).await.unwrap();
        found.insert(repo.name, Seen { storage_name, former_names, is_private, times, refs });
    }
    found
}

pub(super) fn name(name: &str) -> HubName {
    HubName::new(RepoKind::Model, "me", name).unwrap()
}

/// The claims of a token for a repository.
pub(super) fn claims(repo: &str) -> Claims {
    writer(&name(repo).storage_name())
}

pub(super) async fn create(server: &Arc<Server>, repo: &str) -> Result<(), HubError> {
    server.create_hub_repo(&claims(repo), &name(repo), false).await
}

pub(super) async fn rename(server: &Arc<Server>, from: &str, to: &str) -> Result<(), HubError> {
    server.rename_hub_repo(&Claims::UNRESTRICTED, &name(from), &name(to)).await
}

pub(super) async fn open(server: &Arc<Server>, repo: &str) -> Result<OpenRepo, HubError> {
    server.open_hub_repo(&claims(repo), &name(repo), Scope::Write).await
}

pub(super) async fn commit(server: &Arc<Server>, repo: &str, changes: Vec<Change>) -> Result<(), HubError> {
    let open = open(server, repo).await?;
    let (branch, message) = ("main".to_owned(), "a commit".to_owned());
    server.commit(&open, CommitRequest { branch, message, parent: None, changes }).await.map(drop)
}

pub(super) async fn head_of(server: &Arc<Server>, repo: &str) -> HubCommit {
    server.find_revision(&open(server, repo).await.unwrap(), "main").await.unwrap()
}

pub(super) fn put(path: &str) -> Change {
    Change::Put { path: path.parse().unwrap(), contents: format!("contents of {path}").into_bytes() }
}

/// Number of changes of a [`change`].
const CHANGE_COUNT: usize = 13;

/// One change after the other. Each succeeds after those before it.
async fn change(server: &Arc<Server>, number: usize) -> Result<(), HubError> {
    const REPO: &str = "repo";
    match number {
        0 => create(server, REPO).await,
        1 => commit(server, REPO, vec![put("a/b.txt"), put("c.txt")]).await,
        2 => {
            let (path, from) = ("d.txt".parse().unwrap(), "c.txt".parse().unwrap());
            commit(server, REPO, vec![Change::Copy { path, from, revision: None }]).await
        }
        3 => {
            let open = open(server, REPO).await?;
            let head = server.find_revision(&open, "main").await?;
            server.create_hub_ref(&open, TAG.to_owned(), head.id).await
        }
        4 => server.set_hub_repo_private(&open(server, REPO).await?, true).await,
        5 => server.squash(&open(server, REPO).await?, "main", None).await,
        6 => server.delete_hub_ref(&open(server, REPO).await?, TAG.to_owned()).await,
        7 => commit(server, REPO, vec![put("late.txt"), put("a/b.txt")]).await,
        8 => rename(server, REPO, "later").await,
        // It loses the former name that it takes.
        9 => rename(server, "later", REPO).await,
        10 => server.delete_hub_repo(&claims(REPO), &name(REPO)).await,
        // Removes what the deletion has left first.
        11 => create(server, REPO).await,
        12 => commit(server, REPO, vec![put("late.txt"), put("new.txt")]).await,
        _ => unreachable!(),
    }
}

/// A store after the changes before this one.
async fn setup_before(number: usize) -> Setup {
    let setup = Setup::new().await;
    for number in 0..number {
        Box::pin(change(&setup.process(), number)).await.unwrap();
        setup.clock.advance(Duration::from_secs(1));
    }
    setup
}

/// Checks a change with a fault in its `n`-th operation. Returns false if it has none.
async fn check_change_with_fault(number: usize, n: usize, moment: Moment) -> bool {
    let setup = setup_before(number).await;
    let before = seen(&setup.process()).await;
    let server = setup.process();
    setup.faults.arm(n, moment);
    let result = Box::pin(change(&server, number)).await;
    let failed = setup.faults.disarm();
    let case = format!("operation {n} ({failed:?}) of change {number} failed {moment:?}: {result:?}");
    let now = seen(&setup.process()).await;
    let rebuilt = rebuild(&setup).await.unwrap();
    assert_eq!(rebuilt.problems, [""; 0], "{case}");
    let logged = seen(&setup.process_with(&rebuilt.index)).await;
    if result.is_ok() {
        assert_eq!(logged, now, "{case}");
    }
    // The client repeats it after a restart.
    let server = setup.process();
    server.store.agree(false).await.unwrap();
    server.store.complete_records().await.unwrap();
    match Box::pin(change(&server, number)).await {
        Ok(()) | Err(HubError::Exists { .. } | HubError::NoRevision { .. } | HubError::NoRepo) => {}
        Err(error) => panic!("{case}: {error:?}"),
    }
    let after = seen(&server).await;
    // A deletion has its record after its transaction.
    server.purge_deleted_repos(&Pace::default()).await.unwrap();
    // All of a change is seen, or nothing.
    for (state, what) in [(&now, "index"), (&logged, "log")] {
        assert!(*state == before || *state == after, "{what}, {case}: {state:#?}");
    }
    assert!(result.is_err() || now == after, "{case}");
    let rebuilt = rebuild(&setup).await.unwrap();
    assert_eq!(seen(&setup.process_with(&rebuilt.index)).await, after, "{case}");
    failed.is_some()
}

#[tokio::test]
async fn change_with_nth_failure_is_made_whole_or_not_at_all() {
    // The short run has some of the operations of each change.
    const STEP: usize = if cfg!(feature = "full-tests") { 1 } else { 6 };
    for number in 0..CHANGE_COUNT {
        for (begin, moment) in [(0, Moment::Before), (usize::from(STEP > 1), Moment::After)] {
            let mut n = begin;
            while check_change_with_fault(number, n, moment).await {
                n += STEP;
            }
            assert!(n > begin, "change {number} has no operation {begin}");
        }
    }
}

/// Commits so many files that the change is in several records. Returns their numbers.
async fn commit_many(setup: &Setup) -> Vec<Seq> {
    let first = setup.record_seqs().await;
    // Directories of some 10 KiB.
    let changes = (0..200).map(|n| put(&format!("d{}/{n:020}.txt", n % 3))).collect();
    commit(&setup.process(), "repo", changes).await.unwrap();
    // The first one is the registration of the contents.
    let added: Vec<Seq> = setup.record_seqs().await.into_iter().filter(|seq| !first.contains(seq)).skip(1).collect();
    assert!(added.len() > 3, "{added:?}");
    assert_eq!(setup.index.abandoned_records().await.unwrap(), [0; 0], "all but the last are parts");
    added
}

/// Checks that a rebuild leaves out this many changes, and has this state.
async fn check_rebuilt(setup: &Setup, left_out: u64, expected: &BTreeMap<String, Seen>) {
    let rebuilt = rebuild(setup).await.unwrap();
    assert_eq!(rebuilt.rebuilt.left_out_hub_count, left_out, "{:?}", rebuilt.problems);
    assert_eq!(&seen(&setup.process_with(&rebuilt.index)).await, expected);
}

#[tokio::test]
async fn change_in_several_records_counts_with_all_of_them() {
    let setup = setup_before(1).await;
    let before = seen(&setup.process()).await;
    let added = commit_many(&setup).await;
    check_rebuilt(&setup, 0, &seen(&setup.process()).await).await;
    // What is based on it is left out with it.
    commit(&setup.process(), "repo", vec![put("later.txt")]).await.unwrap();
    for (lost, left_out) in [(added[1], 2), (*added.last().unwrap(), 1)] {
        setup.records.remove(lost).await.unwrap();
        let rebuilt = rebuild(&setup).await.unwrap();
        assert_eq!(rebuilt.rebuilt.left_out_hub_count, left_out, "{:?}", rebuilt.problems);
        let later = seen(&setup.process_with(&rebuilt.index)).await;
        assert_eq!(later, before);
        if left_out == 2 {
            assert!(
                rebuilt.problems[0].contains("which belongs to it, is missing or damaged"),
                "{:?}",
                rebuilt.problems
            );
        }
    }
}

/// Also a change in several records is left out if what it is based on is.
#[tokio::test]
async fn change_in_several_records_needs_its_base() {
    let setup = setup_before(1).await;
    let before = seen(&setup.process()).await;
    commit(&setup.process(), "repo", vec![put("first.txt")]).await.unwrap();
    let lost = *setup.record_seqs().await.last().unwrap();
    commit_many(&setup).await;
    setup.records.remove(lost).await.unwrap();
    check_rebuilt(&setup, 1, &before).await;
}

/// Without the record of its creation, a repository is left out with all of its changes.
#[tokio::test]
async fn repository_without_its_creation_is_left_out() {
    let setup = setup_before(1).await;
    let creation = *setup.record_seqs().await.last().unwrap();
    let server = setup.process();
    server.set_hub_repo_private(&open(&server, "repo").await.unwrap(), true).await.unwrap();
    commit(&server, "repo", vec![put("a.txt")]).await.unwrap();
    setup.records.remove(creation).await.unwrap();
    check_rebuilt(&setup, 2, &BTreeMap::new()).await;
}

/// A start that records what an earlier version has made may fail at each of its operations.
#[tokio::test]
async fn interrupted_start_records_every_repository_at_last() {
    let setup = setup_before(CHANGE_COUNT).await;
    commit_many(&setup).await;
    create(&setup.process(), "other").await.unwrap();
    let expected = seen(&setup.process()).await;
    for moment in [Moment::Before, Moment::After] {
        let mut n = 0;
        loop {
            let mut last = 0;
            for seq in setup.record_seqs().await {
                let record = setup.records.read(seq).await.unwrap().unwrap();
                if String::from_utf8_lossy(&record).contains("\"kind\":\"hub\"") {
                    setup.records.remove(seq).await.unwrap();
                } else {
                    last = seq.number();
                }
            }
            let sql = format!("UPDATE hub_repos SET is_recorded = 0; UPDATE store SET last_record = {last}");
            setup.index.tamper(&sql).await;
            let server = setup.process();
            setup.faults.arm(n, moment);
            let completed = server.store.complete_records().await;
            let Some(failed) = setup.faults.disarm() else { break };
            completed.unwrap_err();
            let server = setup.process();
            server.store.agree(false).await.unwrap();
            server.store.complete_records().await.unwrap();
            let rebuilt = rebuild(&setup).await.unwrap();
            assert_eq!(rebuilt.problems, [""; 0], "operation {n} ({failed}) {moment:?}");
            assert_eq!(
                seen(&setup.process_with(&rebuilt.index)).await,
                expected,
                "operation {n} ({failed}) {moment:?}"
            );
            n += 1;
        }
        assert!(n > 10, "{n} operations");
    }
}

/// The log has changes that no index has, as after a transaction with an unknown outcome. Later ones
/// count.
#[tokio::test]
async fn change_that_was_not_made_undoes_no_later_one() {
    let setup = setup_before(0).await;
    let older = rebuild(&setup).await.unwrap();
    create(&setup.process(), "Repo").await.unwrap();
    let server = setup.process_with(&older.index);
    create(&server, "repo").await.unwrap();
    commit(&server, "repo", vec![put("a.txt")]).await.unwrap();
    let other = rebuild(&setup).await.unwrap();
    assert_eq!(seen(&setup.process_with(&other.index)).await, seen(&server).await);
    let ahead = setup.process_with(&other.index);
    commit(&ahead, "repo", vec![put("lost.txt")]).await.unwrap();
    ahead.squash(&open(&ahead, "repo").await.unwrap(), "main", None).await.unwrap();
    setup.clock.advance(Duration::from_secs(1));
    commit(&server, "repo", vec![put("b.txt")]).await.unwrap();
    check_rebuilt(&setup, 0, &seen(&server).await).await;
}

/// What is refused has no record: after a kill the next start would apply it.
#[tokio::test]
async fn refused_change_has_no_record() {
    let setup = setup_before(4).await;
    let server = setup.process();
    let (before, records) = (seen(&server).await, setup.record_seqs().await);
    let old = open(&server, "repo").await.unwrap();
    let first = server.find_revision(&old, "main").await.unwrap().parent.unwrap();
    for name in ["refs/heads/main", TAG, "refs/tags/v1/below", "refs/tags/a..b"] {
        server.create_hub_ref(&old, name.to_owned(), first).await.unwrap_err();
    }
    server
        .create_hub_ref(&old, "refs/tags/v2".to_owned(), crate::git::ObjectId::from_bytes([9; 20]))
        .await
        .unwrap_err();
    server.delete_hub_ref(&old, "refs/heads/main".to_owned()).await.unwrap_err();
    server.delete_hub_ref(&old, "refs/tags/v2".to_owned()).await.unwrap_err();
    server.squash(&old, "absent", None).await.unwrap_err();
    create(&server, "repo").await.unwrap_err();
    create(&server, "REPO").await.unwrap_err();
    assert_eq!((seen(&server).await, setup.record_seqs().await), (before, records));
}

/// A record whose transaction failed stays if the index cannot tell whether the change was made. It
/// undoes no later change.
#[tokio::test]
async fn failed_change_undoes_no_later_one_in_a_rebuild() {
    for cannot_tell in [false, true] {
        change_and_fail(cannot_tell).await;
    }
}

async fn change_and_fail(cannot_tell: bool) {
    let setup = Setup::new().await;
    setup.faults.others().cannot_tell = cannot_tell;
    let server = setup.process();
    // The same name in another case, because the first one was not made.
    setup.faults.arm_at("create_hub_repo", Moment::Before);
    create(&server, "Repo").await.unwrap_err();
    setup.faults.disarm();
    create(&server, "repo").await.unwrap();
    commit(&server, "repo", vec![put("a.txt")]).await.unwrap();
    setup.faults.arm_at("move_hub_ref", Moment::Before);
    commit(&server, "repo", vec![put("lost.txt")]).await.unwrap_err();
    setup.faults.disarm();
    // It changes nothing, so it has no record.
    setup.faults.arm_at("move_hub_ref", Moment::Before);
    commit(&server, "repo", vec![Change::Delete { path: "a.txt".parse().unwrap() }]).await.unwrap_err();
    setup.faults.disarm();
    commit(&server, "repo", vec![put("a.txt")]).await.unwrap();
    check_rebuilt(&setup, 0, &seen(&server).await).await;
    commit(&server, "repo", vec![put("b.txt")]).await.unwrap();
    let opened = open(&server, "repo").await.unwrap();
    setup.faults.arm_at("set_hub_repo_private", Moment::Before);
    server.set_hub_repo_private(&opened, true).await.unwrap_err();
    setup.faults.disarm();
    // A request that began before a change, and ends after it, does not bring the old state back.
    server.set_hub_repo_private(&opened, true).await.unwrap();
    server.squash(&opened, "main", None).await.unwrap();
    let head = server.find_revision(&opened, "main").await.unwrap();
    server.create_hub_ref(&opened, TAG.to_owned(), head.id).await.unwrap();
    let after = seen(&server).await;
    assert!(after["repo"].is_private);
    let rebuilt = rebuild(&setup).await.unwrap();
    assert_eq!((rebuilt.problems.len(), seen(&setup.process_with(&rebuilt.index)).await), (0, after));
}

/// Until the index tells whether the change was made, its repository stays locked.
#[tokio::test]
async fn change_in_an_outage_is_settled_before_the_next_one() {
    let changes = [
        (0, "create_hub_repo"),
        (1, "move_hub_ref"),
        (3, "create_hub_ref"),
        (4, "set_hub_repo_private"),
        (5, "move_hub_ref"),
        (6, "delete_hub_ref"),
    ];
    for (number, operation) in changes {
        let setup = setup_before(number).await;
        let server = setup.process();
        let before = seen(&server).await;
        let name = name("repo").storage_name();
        let patience = Duration::from_secs(20);
        setup.faults.break_at(operation, Moment::Before);
        Box::pin(change(&server, number)).await.unwrap_err();
        let during = setup.record_seqs().await;
        assert!(server.branch_locks.lock(name.clone()).now_or_never().is_none(), "{operation}");
        assert_eq!(setup.faults.disarm(), Some(operation));
        drop(timeout(patience, server.branch_locks.lock(name)).await.unwrap());
        assert_eq!(setup.record_seqs().await, during[..during.len() - 1], "{operation}");
        assert_eq!(setup.process().store.agree(false).await.unwrap().applied_count, 0, "{operation}");
        assert_eq!(seen(&setup.process()).await, before, "{operation}");
        Box::pin(change(&server, number)).await.unwrap();
        check_rebuilt(&setup, 0, &seen(&server).await).await;
    }
}

/// A copy has what it copies also if the record that added it is lost. A squash has not.
#[tokio::test]
async fn change_without_its_base_is_left_out_of_a_rebuild() {
    let setup = setup_before(1).await;
    let server = setup.process();
    let open = open(&server, "repo").await.unwrap();
    let first = server.find_revision(&open, "main").await.unwrap();
    server.create_hub_ref(&open, "refs/heads/dev".to_owned(), first.id).await.unwrap();
    let before = setup.record_seqs().await;
    let (branch, message) = ("dev".to_owned(), "on a branch".to_owned());
    let request = CommitRequest { branch, message, parent: None, changes: vec![put("c.txt")] };
    server.commit(&open, request).await.unwrap();
    let lost = *setup.record_seqs().await.last().unwrap();
    assert!(!before.contains(&lost));
    let (path, from) = ("d.txt".parse().unwrap(), "c.txt".parse().unwrap());
    commit(&server, "repo", vec![Change::Copy { path, from, revision: Some("dev".to_owned()) }]).await.unwrap();
    server.squash(&open, "dev", None).await.unwrap();
    let mut after = seen(&server).await;
    setup.records.remove(lost).await.unwrap();
    let rebuilt = rebuild(&setup).await.unwrap();
    assert_eq!(rebuilt.rebuilt.left_out_hub_count, 1, "{:?}", rebuilt.problems);
    // The branch `dev` is where it was before both.
    let (_, files) = after["repo"].refs["refs/heads/main"].clone();
    assert!(files.contains_key("d.txt"));
    let found = seen(&setup.process_with(&rebuilt.index)).await;
    let refs = &mut after.get_mut("repo").unwrap().refs;
    refs.insert(
        "refs/heads/dev".to_owned(),
        (vec![first.id.to_string()], found["repo"].refs["refs/heads/dev"].1.clone()),
    );
    assert_eq!(found["repo"].refs, after["repo"].refs);
}

#[tokio::test]
async fn records_of_a_repository_are_never_pruned() {
    // Before the deletion, which removes claims to files.
    let setup = setup_before(8).await;
    let before = seen(&setup.process()).await;
    setup.clock.advance(Duration::from_secs(400 * 24 * 3600));
    assert_eq!(prune(&setup, 3).await, Pruned::default());
    let rebuilt = rebuild(&setup).await.unwrap();
    assert_eq!(seen(&setup.process_with(&rebuilt.index)).await, before);
}
