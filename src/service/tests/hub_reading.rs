//! What the server reads of revisions itself: last commits and cards.

use super::Setup;
use super::hub::{claims, commit, create, head_of, name, open, put};
use super::records::{file_of, register, upload_as, writer, xorb_of};
use crate::git::ObjectId;
use crate::service::access::{Claims, Scope};
use crate::service::{Change, CommitRequest, Depth, HubError, StoreError};

fn put_text(path: &str, text: &str) -> Change {
    Change::Put { path: path.parse().unwrap(), contents: text.as_bytes().to_vec() }
}

#[tokio::test]
async fn last_commit_far_back_in_the_history_is_unknown() {
    let setup = Setup::new().await;
    let server = setup.process();
    create(&server, "repo").await.unwrap();
    commit(&server, "repo", vec![put("a/b.txt"), put("c.txt")]).await.unwrap();
    let last = async || -> Vec<(String, Option<ObjectId>)> {
        let (opened, head) = (open(&server, "repo").await.unwrap(), head_of(&server, "repo").await);
        let page = server.list_hub_files(&opened, &head, "", Depth::Files, (None, 100)).await.unwrap();
        let found = server.last_commits(&opened, &head, &page.entries).await.unwrap();
        let found = found.into_iter().map(|commit| commit.map(|commit| commit.id));
        page.entries.into_iter().map(|entry| entry.path).zip(found).collect()
    };
    let first = head_of(&server, "repo").await;
    let initial = first.parent;
    let expected = [(".gitattributes", initial), ("a/b.txt", Some(first.id)), ("c.txt", Some(first.id))];
    assert_eq!(last().await, expected.map(|(path, id)| (path.to_owned(), id)));
    // Each takes two of 40 steps.
    for number in 0..30 {
        commit(&server, "repo", vec![put_text("c.txt", &number.to_string())]).await.unwrap();
    }
    let head = head_of(&server, "repo").await.id;
    let expected = [(".gitattributes", None), ("a/b.txt", None), ("c.txt", Some(head))];
    assert_eq!(last().await, expected.map(|(path, id)| (path.to_owned(), id)));
}

#[tokio::test]
async fn token_for_all_reads_a_commit_before_its_files_are_verified() {
    let setup = Setup::new().await;
    let server = setup.process();
    create(&server, "repo").await.unwrap();
    let (repo, xorb) = (name("repo").storage_name(), xorb_of(&[0, 1]));
    let file = file_of(&xorb, 0, 2, Some(7));
    let (sha256, len) = (file.sha256.unwrap(), u64::from(file.terms[0].raw_len));
    upload_as(&server, &repo, &xorb).await;
    register(&server, &repo, vec![file], &[&xorb]).await;
    let (all, path) = (writer("*"), "large.bin".parse().unwrap());
    let open = server.open_hub_repo(&all, &name("repo"), Scope::Write).await.unwrap();
    let changes = vec![Change::PutLarge { path, sha256, len: Some(len) }];
    let (branch, message) = ("main".to_owned(), "a commit".to_owned());
    server.commit(&open, CommitRequest { branch, message, parent: None, changes }).await.unwrap();
    for claims in [all, claims("repo")] {
        let open = server.open_hub_repo(&claims, &name("repo"), Scope::Read).await.unwrap();
        let head = server.find_revision(&open, "main").await.unwrap();
        let found = server.find_hub_file(&open, &head, "large.bin").await.unwrap();
        assert_eq!((found.blob.sha256, found.file.len), (Some(sha256), len));
    }
}

#[tokio::test]
async fn history_ends_at_the_limit_and_names_the_next_commit() {
    let setup = Setup::new().await;
    let server = setup.process();
    create(&server, "repo").await.unwrap();
    // With the one of the creation three pages of the index, of 1, 2 and 4 commits.
    for number in 0..6 {
        commit(&server, "repo", vec![put_text("a.txt", &number.to_string())]).await.unwrap();
    }
    let (opened, head) = (open(&server, "repo").await.unwrap(), head_of(&server, "repo").await);
    let mut expected = vec![head.clone()];
    while let Some(parent) = expected.last().unwrap().parent {
        expected.push(server.find_revision(&opened, &parent.to_string()).await.unwrap());
    }
    assert_eq!(expected.len(), 7);
    for limit in 1..=8 {
        let (commits, next) = server.hub_history(&opened, head.clone(), limit).await.unwrap();
        assert_eq!(commits, expected[..limit.min(7)], "{limit}");
        assert_eq!(next, expected.get(limit).map(|commit| commit.id), "{limit}");
    }
    let missing = expected[5].id;
    setup.index.tamper(&format!("DELETE FROM hub_commits WHERE hex(oid) = upper('{missing}')")).await;
    // Also as the first one after the page.
    for limit in [5, 7] {
        let error = server.hub_history(&opened, head.clone(), limit).await.unwrap_err();
        assert!(matches!(&error, HubError::Inconsistent { .. }), "{error:?}");
    }
    assert_eq!(server.hub_history(&opened, head, 4).await.unwrap().0, expected[..4]);
}

/// The metadata of a card are in memory, but not for a repository that has lost the file.
#[tokio::test]
async fn card_is_not_read_from_memory_without_a_claim_to_its_file() {
    let setup = Setup::new().await;
    let server = setup.process();
    create(&server, "repo").await.unwrap();
    commit(&server, "repo", vec![put_text("README.md", "---\nlicense: mit\n---\n")]).await.unwrap();
    let (opened, head) = (open(&server, "repo").await.unwrap(), head_of(&server, "repo").await);
    for _ in 0..2 {
        assert_eq!(server.hub_card(&opened, &head).await.unwrap().as_deref(), Some("license: mit\n"));
    }
    let file = server.find_hub_file(&opened, &head, "README.md").await.unwrap().blob.file;
    server.remove_file(&claims("repo"), file, None).await.unwrap();
    assert_eq!(server.hub_card(&opened, &head).await.unwrap(), None);
}

/// A damaged commit is an error for those who are shown its repository, and nothing for others.
#[tokio::test]
async fn damaged_head_does_not_show_a_hidden_repository() {
    let setup = Setup::new().await;
    let server = setup.process();
    create(&server, "model").await.unwrap();
    setup.index.tamper("PRAGMA ignore_check_constraints = ON; UPDATE hub_commits SET tree = x'00'").await;
    let refused = async |claims: Claims| server.open_hub_revision(&claims, &name("model"), "main").await.unwrap_err();
    let shown = refused(claims("model")).await;
    assert!(matches!(&shown, HubError::Store(StoreError::Index(_))), "{shown:?}");
    assert!(matches!(refused(claims("other")).await, HubError::NoRepo));
}
