//! The contract on the names of Hub repositories.

use super::hub::{create, repo};
use super::{Db, SqliteIndex};
use crate::index::conformance::hub::{MAIN, at, commit};
use crate::index::{HubRepo, HubRepoAt, NewHubRepo, RepoKind, ShownRepos};

suite! {
    repository_is_found_with_the_head_of_a_branch
    former_name_is_of_all_repositories_that_had_it
    hidden_holder_of_a_former_name_is_in_no_place_of_a_shown_one
    name_that_is_in_use_is_not_taken
    former_names_are_copied_and_go_with_their_repository
}

async fn find(db: &Db, name: &str) -> Option<HubRepo> {
    db.find_hub_repo(RepoKind::Model, "aCme".to_owned(), name.to_owned()).await.unwrap()
}

/// The numbers of those that had a name.
async fn renamed(db: &Db, name: &str) -> Vec<i64> {
    renamed_of(db, name, ShownRepos::All, 9).await
}

/// The first of those that a caller is shown.
async fn renamed_of(db: &Db, name: &str, shown: ShownRepos, limit: u32) -> Vec<i64> {
    let (kind, namespace) = (RepoKind::Model, "aCme".to_owned());
    let found = db.list_renamed_hub_repos(kind, namespace, name.to_owned(), shown, limit).await.unwrap();
    found.into_iter().map(|found| found.id).collect()
}

/// The numbers of those that had a name and whose rename has no record.
async fn unrecorded(db: &Db, name: &str, is_deleted: bool, limit: u32) -> Vec<i64> {
    let (kind, namespace) = (RepoKind::Model, "aCme".to_owned());
    let found = db.list_unrecorded_renames(kind, namespace, name.to_owned(), is_deleted, limit).await.unwrap();
    found.into_iter().map(|found| found.id).collect()
}

/// Renames what has a name now.
async fn rename(db: &Db, from: &str, to: &str) -> bool {
    let found = find(db, from).await.unwrap();
    db.rename_hub_repo(HubRepo { name: to.to_owned(), ..found }).await.unwrap()
}

async fn repository_is_found_with_the_head_of_a_branch(db: Db) {
    let number = create(&db, RepoKind::Model, "Bert").await;
    // Equal ids in another repository.
    let dataset = create(&db, RepoKind::Dataset, "Bert").await;
    assert!(db.move_hub_ref(number, at(MAIN, 1), commit(2, Some(1)), 7).await.unwrap());
    assert!(db.create_hub_ref(number, at("refs/tags/v1", 1), 8).await.unwrap());
    let found = async |kind, name: &str, reference: &str| {
        let found = db.find_hub_repo_at(kind, "aCme".to_owned(), name.to_owned(), reference.to_owned()).await.unwrap();
        if let Some(HubRepoAt { repo, head }) = &found {
            assert_eq!(db.find_hub_repo(kind, "acme".to_owned(), name.to_owned()).await.unwrap().as_ref(), Some(repo));
            assert_eq!(db.find_hub_head(repo.id, reference.to_owned()).await.unwrap(), *head);
        }
        found.map(|found| (found.repo.id, found.head))
    };
    assert_eq!(found(RepoKind::Model, "bERT", MAIN).await, Some((number, Some(commit(2, Some(1))))));
    assert_eq!(found(RepoKind::Model, "bert", "refs/tags/v1").await, Some((number, Some(commit(1, None)))));
    assert_eq!(found(RepoKind::Dataset, "bert", MAIN).await, Some((dataset, Some(commit(1, None)))));
    assert_eq!(found(RepoKind::Dataset, "bert", "refs/tags/v1").await, Some((dataset, None)));
    for (kind, name) in [(RepoKind::Space, "bert"), (RepoKind::Model, "ber")] {
        assert_eq!(found(kind, name, MAIN).await, None, "{name}");
    }
    // By its present name only, and not when it is deleted.
    assert!(rename(&db, "bert", "next").await);
    assert_eq!(found(RepoKind::Model, "bert", MAIN).await, None);
    assert_eq!(found(RepoKind::Model, "next", MAIN).await.map(|found| found.0), Some(number));
    assert!(db.delete_hub_repo(number).await.unwrap());
    assert_eq!(found(RepoKind::Model, "next", MAIN).await, None);
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
    assert_eq!(renamed_of(&db, "bert", ShownRepos::All, 1).await, [second]);
    assert_eq!(db.list_former_names(number, 9).await.unwrap(), ["acme/bert", "acme/next"]);
    // Another case of the own name is no other name, and the present name is no former one.
    assert!(rename(&db, "third", "THIRD").await && rename(&db, "next", "bert").await);
    assert_eq!(find(&db, "third").await.unwrap().name, "THIRD");
    assert_eq!(db.list_former_names(number, 9).await.unwrap(), ["acme/bert", "acme/next"]);
    assert_eq!(db.list_former_names(second, 9).await.unwrap(), ["acme/next"]);
    // A rename has no record yet.
    assert_eq!(unrecorded(&db, "next", false, 9).await, [number, second]);
    assert_eq!(unrecorded(&db, "next", false, 1).await, [number]);
    db.set_hub_repo_recorded(number).await.unwrap();
    assert_eq!(unrecorded(&db, "NEXT", false, 9).await, [second]);
    assert_eq!(unrecorded(&db, "fourth", false, 9).await, [0; 0]);
    db.set_hub_repo_recorded(second).await.unwrap();
    assert_eq!(unrecorded(&db, "next", false, 9).await, [0; 0]);
    assert_eq!(db.find_unrecorded_hub_repo().await.unwrap(), None);
    assert!(db.is_hub_repo_recorded(number).await.unwrap());
    assert!(rename(&db, "third", "fourth").await);
    assert!(!db.is_hub_repo_recorded(number).await.unwrap());
    assert_eq!(db.find_unrecorded_hub_repo().await.unwrap().map(|found| found.id), Some(number));
    // Nor has a deletion.
    assert!(db.delete_hub_repo(second).await.unwrap());
    assert_eq!(
        (unrecorded(&db, "next", false, 9).await, unrecorded(&db, "next", true, 9).await),
        (vec![number], vec![second])
    );
    db.set_hub_repo_recorded(second).await.unwrap();
    assert_eq!(unrecorded(&db, "next", true, 9).await, [0; 0]);
}

async fn hidden_holder_of_a_former_name_is_in_no_place_of_a_shown_one(db: Db) {
    let mut numbers = Vec::new();
    for (namespace, is_private) in [("Acme", false), ("acme", true), ("Acme", true)] {
        let name = format!("r{}", numbers.len());
        let storage_name = format!("models/{namespace}/{name}");
        let new =
            NewHubRepo { namespace: namespace.to_owned(), storage_name, is_private, ..repo(RepoKind::Model, &name) };
        numbers.push(db.create_hub_repo(new, commit(1, None), Vec::new(), Vec::new(), 9).await.unwrap().unwrap());
        assert!(rename(&db, &name, "bert").await && rename(&db, "bert", &format!("{name}b")).await);
    }
    let [public, small, hidden] = numbers[..] else { unreachable!("three were created") };
    let of = |namespace: &str| ShownRepos::Of(namespace.to_owned());
    let public_and_of = |namespace: &str| ShownRepos::PublicAndOf(vec![namespace.to_owned()]);
    for (shown, first, all) in [
        (ShownRepos::All, hidden, vec![hidden, small, public]),
        (of("acme"), small, vec![small]),
        (of("Acme"), hidden, vec![hidden, public]),
        (ShownRepos::One("models/Acme/r0".to_owned()), public, vec![public]),
        (public_and_of("ACME"), hidden, vec![hidden, small, public]),
        (public_and_of("acm"), public, vec![public]),
        (ShownRepos::PublicAndOf(Vec::new()), public, vec![public]),
    ] {
        assert_eq!(renamed_of(&db, "bert", shown.clone(), 1).await, [first], "{shown:?}");
        assert_eq!(renamed_of(&db, "bert", shown.clone(), 9).await, all, "{shown:?}");
    }
    let one = |storage_name: &str| ShownRepos::One(storage_name.to_owned());
    for nothing in [of("other"), of(""), of("models/Acme/r0"), one("models/Acme/r9"), one("Acme"), one("")] {
        assert_eq!(renamed_of(&db, "bert", nothing.clone(), 9).await, [0; 0], "{nothing:?}");
    }
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
