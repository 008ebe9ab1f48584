//! The contract on what the history of a Hub repository counts for it.

use std::sync::Arc;

use super::backends::{Backend, TestIndex};
use super::hub::{MAIN, at, blob, commit, create, id, tree};
use super::usage::model::upgraded;
use super::{Db, NOW};
use crate::index::{HubObject, HubRepo, RepoKind, commit_len};

suite_with_hooks! {
    history_counts_for_its_repository_until_it_is_deleted
    history_that_counts_is_not_changed_or_left_behind
}

/// The stored bytes of a repository.
async fn physical_len(index: &impl TestIndex, name: &str) -> u64 {
    let [stored, counted] = index.recounted().await;
    assert_eq!(stored, counted);
    index.repo_usage(name.to_owned()).await.unwrap().physical_len
}

async fn history_counts_for_its_repository_until_it_is_deleted<B: Backend>() {
    let (_place, index) = B::fresh().await;
    let db: Db = Arc::new(index.clone());
    let (name, number) = ("models/Acme/bert", create(&db, RepoKind::Model, "bert").await);
    create(&db, RepoKind::Model, "other").await;
    let of_commit = |byte| commit_len(commit(byte, None).message.len());
    let begun = of_commit(1) + 3;
    assert_eq!(physical_len(&index, name).await, begun);
    // Directories that are there count once.
    db.add_hub_objects(number, vec![tree(0x81), tree(0x82)], vec![blob(2)], NOW).await.unwrap();
    db.add_hub_objects(number, vec![tree(0x82), tree(0x83)], Vec::new(), NOW).await.unwrap();
    assert_eq!(physical_len(&index, name).await, begun + 6);
    assert!(db.move_hub_ref(number, at(MAIN, 1), commit(2, Some(1)), 7).await.unwrap());
    assert!(!db.move_hub_ref(number, at(MAIN, 1), commit(3, Some(1)), 8).await.unwrap());
    let all = begun + 6 + of_commit(2);
    assert_eq!(physical_len(&index, name).await, all);
    assert_eq!(db.owner_usage("models/Acme".to_owned()).await.unwrap().physical_len, all + begun);
    let listed = db.usages_after(None, 9).await.unwrap();
    assert_eq!(listed.iter().map(|repo| repo.repo.as_str()).collect::<Vec<_>>(), [name, "models/Acme/other"]);
    db.drop_hub_objects(number, HubObject::Tree, vec![id(0x83), id(0x99)]).await.unwrap();
    db.drop_hub_commits(number, vec![id(1)]).await.unwrap();
    assert_eq!(physical_len(&index, name).await, 6 + of_commit(2));
    db.drop_hub_repo(number).await.unwrap();
    assert_eq!(physical_len(&index, name).await, 0);
    assert_eq!(db.usages_after(None, 9).await.unwrap().len(), 1);
    // One whose restore was interrupted.
    let other = db.find_hub_repo(RepoKind::Model, "acme".to_owned(), "other".to_owned()).await.unwrap().unwrap();
    let cut = HubRepo { name: "cut".to_owned(), storage_name: "models/Acme/cut".to_owned(), ..other };
    let number = db.restore_hub_repo(cut).await.unwrap();
    db.add_hub_objects(number, vec![tree(1)], Vec::new(), NOW).await.unwrap();
    db.add_hub_commits(number, vec![commit(1, None)]).await.unwrap();
    assert_eq!(physical_len(&index, "models/Acme/cut").await, begun);
    db.discard_hub_repos().await.unwrap();
    assert_eq!(physical_len(&index, "models/Acme/cut").await, 0);
}

async fn history_that_counts_is_not_changed_or_left_behind<B: Backend>() {
    let (_place, index) = B::fresh().await;
    let db: Db = Arc::new(index.clone());
    create(&db, RepoKind::Model, "bert").await;
    for sql in [
        "UPDATE hub_trees SET entries = oid",
        "UPDATE hub_trees SET repo_id = repo_id + 1",
        "UPDATE hub_commits SET message = 'other'",
        "UPDATE hub_commits SET repo_id = repo_id + 1",
        "UPDATE hub_repos SET storage_name = 'models/other/bert'",
        "DELETE FROM hub_repos",
    ] {
        assert!(!index.is_accepted(sql).await, "{sql}");
    }
    assert!(index.is_accepted("UPDATE hub_trees SET since = 1").await);
}

#[tokio::test]
async fn history_of_an_older_schema_is_counted_when_migrated() {
    const ROWS: &str = "INSERT INTO hub_repos (id, kind, namespace, name, lower_name, storage_name, is_private, \
         created_at, updated_at) VALUES (1, 0, 'a', 'b', 'a/b', 'models/a/b', 0, 1, 1), \
         (2, 0, 'a', 'c', 'a/c', 'models/a/c', 0, 1, 1), (3, 0, 'a', 'd', 'a/d', 'models/a/d', 0, 1, 1); \
         INSERT INTO hub_trees (repo_id, oid, since, entries) VALUES (1, zeroblob(20), 1, x'010203'), \
         (1, randomblob(20), 1, x'04'), (2, zeroblob(20), 1, x'05'); \
         INSERT INTO hub_commits (repo_id, oid, tree, at, author, message) VALUES \
         (1, zeroblob(20), zeroblob(20), 1, 'a', 'ä'), (1, randomblob(20), zeroblob(20), 1, 'a', ''); \
         INSERT INTO repos (name, file_count, logical_len, physical_len) VALUES ('models/a/c', 0, 0, 0);";
    let (_directory, index) = upgraded(25, ROWS).await;
    assert_eq!(physical_len(&index, "models/a/b").await, 3 + 1 + commit_len(2) + commit_len(0));
    assert_eq!(physical_len(&index, "models/a/c").await, 1);
    assert_eq!(physical_len(&index, "models/a/d").await, 0);
    index.close().await;
}

#[cfg(feature = "postgres-tests")]
#[tokio::test]
async fn history_of_an_older_postgres_schema_is_counted_when_migrated() {
    use sqlx::{Connection, PgConnection, raw_sql};

    use crate::index::migrate::{POSTGRES, migrator};
    use crate::index::postgres::{PostgresIndex, test_server};
    const ROWS: &str = "INSERT INTO hub_repos (kind, namespace, name, lower_name, storage_name, is_private, \
         created_at, updated_at) VALUES (0, 'a', 'b', 'a/b', 'models/a/b', FALSE, 1, 1), \
         (0, 'a', 'c', 'a/c', 'models/a/c', FALSE, 1, 1); \
         INSERT INTO hub_trees (repo_id, oid, since, entries) SELECT id, decode(repeat('01', 20), 'hex'), 1, '\\x010203' \
         FROM hub_repos WHERE name = 'b'; \
         INSERT INTO hub_commits (repo_id, oid, tree, at, author, message) SELECT repo_id, oid, oid, 1, 'a', 'ä' FROM hub_trees";
    let old: Vec<_> = POSTGRES.iter().filter(|(version, ..)| *version < 9).copied().collect();
    let url = test_server::empty().await;
    let mut connection = PgConnection::connect(&url).await.unwrap();
    migrator(&old).run(&mut connection).await.unwrap();
    raw_sql(ROWS).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    PostgresIndex::migrate(&url).await.unwrap();
    let index = PostgresIndex::open(&url).await.unwrap();
    assert_eq!(physical_len(&index, "models/a/b").await, 3 + commit_len(2));
    assert_eq!(physical_len(&index, "models/a/c").await, 0);
    index.close().await;
}
