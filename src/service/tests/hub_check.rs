//! `zorb fsck` of Hub repositories.

use std::sync::Arc;

use super::Setup;
use super::fsck::{fsck, run};
use super::hub::{claims, commit, create, head_of, put};
use crate::index::RepoKind;
use crate::service::Change;
use crate::service::fsck::{Kind, Presence};

/// The details of the findings; each is of a repository.
async fn found(setup: &Setup, is_deep: bool) -> Vec<String> {
    found_of(setup, Kind::BrokenRepository, is_deep).await
}

/// The same, with another kind.
async fn found_of(setup: &Setup, kind: Kind, is_deep: bool) -> Vec<String> {
    let findings = run(&fsck(setup, Presence::Shared, is_deep), false).await.unwrap();
    for (finding, _) in &findings {
        assert_eq!(finding.kind, kind, "{finding:?}");
    }
    findings.into_iter().map(|(finding, _)| finding.detail).collect()
}

/// Two repositories: the second has directories, two commits, and an empty file.
async fn repos() -> Setup {
    let setup = Setup::new().await;
    let server = setup.process();
    for repo in ["other", "repo"] {
        create(&server, repo).await.unwrap();
        commit(&server, repo, vec![put("a.txt"), put("b/c.txt"), put("b/d/e.txt")]).await.unwrap();
    }
    let empty = Change::Put { path: "empty".parse().unwrap(), contents: Vec::new() };
    commit(&server, "repo", vec![put("b/c2.txt"), empty]).await.unwrap();
    setup
}

#[tokio::test]
async fn sound_repositories_have_no_finding() {
    let setup = repos().await;
    for is_deep in [false, true] {
        let fsck = fsck(&setup, Presence::Shared, is_deep);
        let mut walk = fsck.walk();
        while let Some(findings) = walk.next_findings().await.unwrap() {
            assert!(findings.is_empty(), "{findings:?}");
        }
        assert_eq!(walk.seen().repo_count, 2);
    }
}

/// Each row that a branch needs is deleted in turn.
#[tokio::test]
async fn missing_rows_are_found_without_reading_contents() {
    for sql in [
        "DELETE FROM hub_commits WHERE repo_id = 2 AND parent IS NOT NULL AND oid IN (SELECT target FROM hub_refs)",
        "DELETE FROM hub_commits WHERE repo_id = 2 AND parent IS NULL",
        "DELETE FROM hub_trees WHERE repo_id = 2 AND oid = (SELECT min(oid) FROM hub_trees WHERE repo_id = 2)",
        "DELETE FROM hub_blobs WHERE repo_id = 2 AND oid = (SELECT min(oid) FROM hub_blobs WHERE repo_id = 2)",
        "DROP TRIGGER usage_tree_stays; UPDATE hub_trees SET entries = x'00' WHERE repo_id = 2",
    ] {
        let setup = repos().await;
        setup.index.tamper(sql).await;
        let details = found(&setup, false).await;
        assert_eq!(details.len(), 1, "{sql}: {details:?}");
        assert!(details[0].contains("models/me/repo is missing or damaged"), "{sql}: {details:?}");
    }
}

/// Also if another repository has the same file.
#[tokio::test]
async fn files_that_a_repository_cannot_read_are_counted() {
    let setup = repos().await;
    let server = setup.process();
    let open = super::hub::open(&server, "repo").await.unwrap();
    let head = head_of(&server, "repo").await;
    for (count, path) in [("1 file", "a.txt"), ("2 files", "b/c2.txt")] {
        let file = server.find_hub_file(&open, &head, path).await.unwrap().blob.file;
        server.remove_file(&claims("repo"), file, None).await.unwrap();
        let details = found_of(&setup, Kind::LostContents, true).await;
        assert_eq!(details.len(), 1, "{details:?}");
        let expected = format!("the contents of {count} of models/me/repo are not registered for it: removed with ");
        assert!(details[0].starts_with(&expected) && !details[0].contains("  "), "{details:?}");
    }
}

#[tokio::test]
async fn rows_without_their_ids_are_found_by_a_deep_check() {
    for (sql, what) in [
        (
            "DROP TRIGGER usage_commit_stays; \
             UPDATE hub_commits SET message = 'other' WHERE repo_id = 2 AND parent IS NULL",
            "commit",
        ),
        // The name of the only file of `b/d`.
        (
            "DROP TRIGGER usage_tree_stays; \
             UPDATE hub_trees SET entries = CAST(substr(entries, 1, 7) || 'x' || substr(entries, 9) AS BLOB) \
             WHERE repo_id = 2 AND length(entries) = (SELECT min(length(entries)) FROM hub_trees)",
            "directory",
        ),
        (
            "UPDATE hub_blobs SET sha256 = zeroblob(32) \
             WHERE repo_id = 2 AND oid = (SELECT min(oid) FROM hub_blobs WHERE repo_id = 2)",
            "file",
        ),
    ] {
        let setup = repos().await;
        setup.index.tamper(sql).await;
        assert_eq!(found(&setup, false).await, [""; 0], "{sql}");
        let details = found(&setup, true).await;
        assert!(!details.is_empty(), "{sql}");
        for detail in details {
            assert!(detail.contains(what) && detail.ends_with("models/me/repo does not have its id"), "{detail}");
        }
    }
}

/// A repository is listed, and deleted before its rows are read.
#[tokio::test]
async fn repository_that_is_being_deleted_has_no_finding() {
    let setup = repos().await;
    let store = setup.process().store.clone();
    let listed = store.index.list_hub_repos(RepoKind::Model, None, i64::MAX, 1).await.unwrap().remove(0);
    let held = setup.faults.hold("list_hub_commits");
    let delete = async {
        let release = held.reached().await;
        setup.index.tamper("DELETE FROM hub_commits WHERE repo_id = 2").await;
        setup.index.tamper("UPDATE hub_repos SET is_deleted = TRUE WHERE id = 2").await;
        drop(release);
    };
    let (faults, ()) = tokio::join!(store.check_hub_repo(&listed, false), delete);
    assert_eq!(faults.unwrap(), []);
    // So the check has met a missing commit.
    setup.index.tamper("UPDATE hub_repos SET is_deleted = FALSE WHERE id = 2").await;
    assert_eq!(store.check_hub_repo(&listed, false).await.unwrap().len(), 1);
}

/// What no branch needs may be there in part, after a rebuild or beside a sweep.
#[tokio::test]
async fn what_no_branch_needs_may_be_missing() {
    let setup = repos().await;
    let server = setup.process();
    let old = head_of(&server, "repo").await;
    let open = super::hub::open(&server, "repo").await.unwrap();
    server.squash(&open, "main", None).await.unwrap();
    assert!(Arc::clone(&server).find_revision(&open, &old.id.to_string()).await.is_ok());
    let sql = "DELETE FROM hub_commits WHERE repo_id = 2 AND parent IS NULL \
         AND oid NOT IN (SELECT target FROM hub_refs)";
    setup.index.tamper(sql).await;
    assert_eq!(found(&setup, true).await, [""; 0]);
}
