//! The contract on the names of Hub repositories.

use super::hub::{create, repo};
use super::{Db, SqliteIndex};
use crate::index::conformance::hub::commit;
use crate::index::{HubRepo, NewHubRepo, RepoKind};

suite! {
    former_name_is_of_all_repositories_that_had_it
    name_that_is_in_use_is_not_taken
    former_names_are_copied_and_go_with_their_repository
}

async fn find(db: &Db, name: &str) -> Option<HubRepo> {
    db.find_hub_repo(RepoKind::Model, "aCme".to_owned(), name.to_owned()).await.unwrap()
}

/// The numbers of those that had a name.
async fn renamed(db: &Db, name: &str) -> Vec<i64> {
    let found = db.list_renamed_hub_repos(RepoKind::Model, "aCme".to_owned(), name.to_owned(), 9).await.unwrap();
    found.into_iter().map(|found| found.id).collect()
}

/// Renames what has a name now.
async fn rename(db: &Db, from: &str, to: &str) -> bool {
    let found = find(db, from).await.unwrap();
    db.rename_hub_repo(HubRepo { name: to.to_owned(), ..found }).await.unwrap()
}

async fn former_name_is_of_all_repositories_that_had_it(db: Db) {
    let number = create(&db, RepoKind::Model, "Bert").await;
    let dataset = create(&db, RepoKind::Dataset, "Bert").await;
    assert!(rename(&db, "bert", "Next").await);
    let row = find(&db, "next").await.unwrap();
    assert_eq!((row.id, row.name.as_str(), row.storage_name.as_str()), (number, "Next", "models/Acme/Bert"));
    assert_eq!(db.find_stored_hub_repo("models/Acme/Bert".to_owned()).await.unwrap(), Some(row));
    assert_eq!(db.find_stored_hub_repo("models/Acme/Next".to_owned()).await.unwrap(), None);
    assert_eq!((find(&db, "bert").await, renamed(&db, "BERT").await), (None, vec![number]));
    assert_eq!(db.find_stored_hub_repo("datasets/Acme/Bert".to_owned()).await.unwrap().unwrap().id, dataset);
    // A storage name stays in use.
    assert!(db.has_storage_name("models/Acme/Bert".to_owned()).await.unwrap());
    assert!(!db.has_storage_name("models/Acme/Bert~2".to_owned()).await.unwrap());
    let again = NewHubRepo { storage_name: "models/Acme/Bert~2".to_owned(), ..repo(RepoKind::Model, "bert") };
    let second = db.create_hub_repo(again, commit(2, None), Vec::new(), Vec::new(), 5).await.unwrap().unwrap();
    assert_eq!((find(&db, "bert").await.unwrap().id, renamed(&db, "bert").await), (second, vec![number]));
    assert!(rename(&db, "next", "third").await && rename(&db, "bert", "next").await);
    // The one that was created last is the first.
    assert_eq!((renamed(&db, "next").await, renamed(&db, "bert").await), (vec![number], vec![second, number]));
    let first = db.list_renamed_hub_repos(RepoKind::Model, "acme".to_owned(), "bert".to_owned(), 1).await.unwrap();
    assert_eq!(first.iter().map(|first| first.id).collect::<Vec<_>>(), [second]);
    assert_eq!(db.list_former_names(number, 9).await.unwrap(), ["acme/bert", "acme/next"]);
    // Another case of the own name is no other name, and the present name is no former one.
    assert!(rename(&db, "third", "THIRD").await && rename(&db, "next", "bert").await);
    assert_eq!(find(&db, "third").await.unwrap().name, "THIRD");
    assert_eq!(db.list_former_names(number, 9).await.unwrap(), ["acme/bert", "acme/next"]);
    assert_eq!(db.list_former_names(second, 9).await.unwrap(), ["acme/next"]);
    // A rename has no record yet.
    db.set_hub_repo_recorded(number).await.unwrap();
    db.set_hub_repo_recorded(second).await.unwrap();
    assert_eq!(db.find_unrecorded_hub_repo().await.unwrap(), None);
    assert!(db.is_hub_repo_recorded(number).await.unwrap());
    assert!(rename(&db, "third", "fourth").await);
    assert!(!db.is_hub_repo_recorded(number).await.unwrap());
    assert_eq!(db.find_unrecorded_hub_repo().await.unwrap().map(|found| found.id), Some(number));
}

async fn name_that_is_in_use_is_not_taken(db: Db) {
    let (one, two) = (create(&db, RepoKind::Model, "one").await, create(&db, RepoKind::Model, "two").await);
    let row = find(&db, "one").await.unwrap();
    assert!(!rename(&db, "one", "TWO").await);
    // Nor the name of a deleted one whose rows are there.
    db.delete_hub_repo(two).await.unwrap();
    assert!(db.has_storage_name("models/Acme/two".to_owned()).await.unwrap());
    assert_eq!(db.find_stored_hub_repo("models/Acme/two".to_owned()).await.unwrap(), None);
    assert!(!rename(&db, "one", "two").await);
    assert!(!db.rename_hub_repo(HubRepo { id: two, name: "three".to_owned(), ..row.clone() }).await.unwrap());
    assert!(!db.rename_hub_repo(HubRepo { id: two + 1, ..row.clone() }).await.unwrap());
    assert_eq!((find(&db, "one").await, db.list_former_names(one, 9).await.unwrap()), (Some(row), vec![]));
    db.drop_hub_repo(two).await.unwrap();
    assert!(rename(&db, "one", "two").await);
}

async fn former_names_are_copied_and_go_with_their_repository(db: Db) {
    let number = create(&db, RepoKind::Model, "one").await;
    create(&db, RepoKind::Model, "other").await;
    let other = find(&db, "other").await.unwrap().id;
    for names in [&["acme/c"][..], &["acme/b", "acme/a"]] {
        let names = names.iter().map(|&name| name.to_owned()).collect();
        db.set_former_names(number, names).await.unwrap();
    }
    assert_eq!(db.list_former_names(number, 9).await.unwrap(), ["acme/a", "acme/b"]);
    assert_eq!(db.list_former_names(number, 1).await.unwrap(), ["acme/a"]);
    db.set_former_names(other, vec!["acme/b".to_owned()]).await.unwrap();
    assert_eq!((renamed(&db, "b").await, renamed(&db, "a").await), (vec![other, number], vec![number]));
    // A copy with another name renames what is there.
    let row = find(&db, "one").await.unwrap();
    assert_eq!(db.restore_hub_repo(HubRepo { name: "a".to_owned(), ..row }).await.unwrap(), number);
    assert_eq!(db.list_former_names(number, 9).await.unwrap(), ["acme/b", "acme/one"]);
    db.delete_hub_repo(number).await.unwrap();
    assert_eq!(renamed(&db, "one").await, [0; 0], "a deleted repository is found by no name");
    db.drop_hub_repo(number).await.unwrap();
    assert_eq!(db.list_former_names(number, 9).await.unwrap(), [""; 0]);
    create(&db, RepoKind::Model, "one").await;
}
