//! The contract on Hub repositories.

use super::{Db, NOW, SqliteIndex};
use crate::format::FileHash;
use crate::format::shard::Sha256;
use crate::git::ObjectId;
use crate::index::{
    HubBlob, HubCommit, HubRef, HubRepo, HubTree, NewHubRepo, RepoKind, RepoOrder, RepoPlace, ShownRepos,
};
use crate::runtime::clock::Timestamp;

suite! {
    repository_is_created_once_whatever_the_case_of_its_name
    branch_moves_only_from_the_parent_of_the_commit
    history_of_a_commit_has_its_next_ancestors
    objects_belong_to_their_repository_and_are_added_once
    equal_objects_of_one_commit_are_added_once
    branches_and_tags_name_commits_that_exist
    repositories_are_listed_by_kind_from_the_newest_on
    repositories_are_listed_by_their_last_change
    hidden_repositories_are_in_no_list_and_no_page_of_others
    repository_is_restored_with_its_branches_or_discarded
    deleted_repository_is_hidden_and_its_name_is_taken
    dropped_repository_leaves_no_row_and_its_name_is_free
    change_marks_its_record_and_a_refused_one_does_not
    repository_without_records_is_found_until_it_has_some
}

pub(super) const MAIN: &str = "refs/heads/main";

pub(super) fn id(byte: u8) -> ObjectId {
    ObjectId::from_bytes([byte; 20])
}

pub(super) fn repo(kind: RepoKind, name: &str) -> NewHubRepo {
    NewHubRepo {
        kind,
        namespace: "Acme".to_owned(),
        name: name.to_owned(),
        storage_name: format!("{}/Acme/{name}", kind.plural()),
        is_private: true,
    }
}

pub(super) fn commit(byte: u8, parent: Option<u8>) -> HubCommit {
    HubCommit {
        id: id(byte),
        tree: id(byte ^ 0x80),
        parent: parent.map(id),
        at: Timestamp::from_millis(NOW.as_millis() + u64::from(byte)),
        author: "alice".to_owned(),
        message: format!("commit {byte}\n\nwith a body"),
    }
}

pub(super) fn blob(byte: u8) -> HubBlob {
    let sha256 = byte.is_multiple_of(2).then(|| Sha256::from_digest([byte; 32]));
    HubBlob { id: id(byte), len: u64::from(byte) << 40, sha256, file: FileHash::from_bytes([byte; 32]) }
}

pub(super) fn tree(byte: u8) -> HubTree {
    HubTree { id: id(byte), entries: vec![byte; 3] }
}

/// A branch or tag at this commit.
pub(super) fn at(name: &str, byte: u8) -> HubRef {
    HubRef { name: name.to_owned(), target: id(byte) }
}

pub(super) async fn create(db: &Db, kind: RepoKind, name: &str) -> i64 {
    let created = db.create_hub_repo(repo(kind, name), commit(1, None), vec![tree(0x81)], vec![blob(1)], 5).await;
    created.unwrap().unwrap()
}

async fn repository_is_created_once_whatever_the_case_of_its_name(db: Db) {
    let number = create(&db, RepoKind::Model, "Bert").await;
    let again = repo(RepoKind::Model, "bERT");
    assert_eq!(db.create_hub_repo(again, commit(2, None), vec![tree(9)], Vec::new(), 6).await.unwrap(), None);
    assert_eq!(db.find_hub_tree(number, id(9)).await.unwrap(), None, "the second one has added nothing");
    let found = db.find_hub_repo(RepoKind::Model, "aCME".to_owned(), "BERT".to_owned()).await.unwrap().unwrap();
    assert_eq!((found.id, found.namespace.as_str(), found.name.as_str()), (number, "Acme", "Bert"));
    assert_eq!((found.storage_name.as_str(), found.is_private), ("models/Acme/Bert", true));
    assert_eq!((found.created, found.updated), (commit(1, None).at, commit(1, None).at));
    // The kinds do not share their names.
    assert_ne!(create(&db, RepoKind::Dataset, "Bert").await, number);
    assert_eq!(db.find_hub_repo(RepoKind::Space, "Acme".to_owned(), "Bert".to_owned()).await.unwrap(), None);
    assert_eq!(db.find_hub_ref(number, MAIN.to_owned()).await.unwrap(), Some(id(1)));
    assert_eq!(db.find_hub_commit(number, id(1)).await.unwrap(), Some(commit(1, None)));
}

async fn branch_moves_only_from_the_parent_of_the_commit(db: Db) {
    let number = create(&db, RepoKind::Model, "bert").await;
    assert!(db.move_hub_ref(number, at(MAIN, 1), commit(2, Some(1)), 7).await.unwrap());
    // A commit that lost the race leaves no row.
    assert!(!db.move_hub_ref(number, at(MAIN, 1), commit(3, Some(1)), 7).await.unwrap());
    assert_eq!(db.find_hub_commit(number, id(3)).await.unwrap(), None);
    assert!(!db.move_hub_ref(number, at(MAIN, 9), commit(4, None), 7).await.unwrap());
    assert!(!db.move_hub_ref(number, at("refs/heads/none", 2), commit(4, Some(2)), 7).await.unwrap());
    assert!(!db.move_hub_ref(number + 1, at(MAIN, 2), commit(4, Some(2)), 7).await.unwrap());
    assert_eq!(db.find_hub_ref(number, MAIN.to_owned()).await.unwrap(), Some(id(2)));
    assert_eq!(db.find_hub_commit(number, id(2)).await.unwrap(), Some(commit(2, Some(1))));
    let found = db.find_hub_repo(RepoKind::Model, "acme".to_owned(), "bert".to_owned()).await.unwrap().unwrap();
    assert_eq!(found.updated, commit(2, None).at);
}

async fn history_of_a_commit_has_its_next_ancestors(db: Db) {
    let (one, two) = (create(&db, RepoKind::Model, "one").await, create(&db, RepoKind::Model, "two").await);
    // Two branches, and one whose parent is missing.
    let commits = [commit(2, Some(1)), commit(3, Some(2)), commit(4, Some(2)), commit(6, Some(5))];
    db.add_hub_commits(one, commits.to_vec()).await.unwrap();
    let history = async |repo, from, limit| -> Vec<HubCommit> {
        let mut found = db.list_hub_history(repo, id(from), limit).await.unwrap();
        found.sort_by_key(|commit| std::cmp::Reverse(commit.id));
        found
    };
    let first = commit(1, None);
    let [second, third, fourth, orphan] = commits;
    assert_eq!(history(one, 3, 9).await, [third.clone(), second.clone(), first.clone()]);
    assert_eq!(history(one, 4, 3).await, [fourth, second.clone(), first.clone()]);
    assert_eq!(history(one, 3, 2).await, [third, second]);
    assert_eq!(history(one, 1, 1).await, std::slice::from_ref(&first));
    assert_eq!(history(one, 6, 9).await, [orphan]);
    assert_eq!(history(one, 5, 9).await, []);
    assert_eq!(history(two, 3, 9).await, [], "the commits of another repository");
    assert_eq!(history(two, 1, 9).await, [first]);
}

async fn objects_belong_to_their_repository_and_are_added_once(db: Db) {
    let (one, two) = (create(&db, RepoKind::Model, "one").await, create(&db, RepoKind::Model, "two").await);
    // More than one transaction and one query take.
    let trees: Vec<HubTree> =
        (0..1200_u32).map(|n| HubTree { id: wide(n), entries: n.to_le_bytes().to_vec() }).collect();
    let blobs: Vec<HubBlob> = (0..2100_u32).map(|n| HubBlob { id: wide(n), ..blob(7) }).collect();
    for _ in 0..2 {
        db.add_hub_objects(one, trees.clone(), blobs.clone(), NOW).await.unwrap();
    }
    let ids: Vec<ObjectId> = blobs.iter().map(|blob| blob.id).collect();
    let mut found = db.find_hub_blobs(one, ids.clone()).await.unwrap();
    found.sort_by_key(|blob| blob.id);
    let mut expected = blobs;
    expected.sort_by_key(|blob| blob.id);
    assert_eq!(found, expected);
    assert_eq!(db.find_hub_tree(one, wide(1199)).await.unwrap(), Some(1199_u32.to_le_bytes().to_vec()));
    assert_eq!(db.find_hub_blobs(two, ids).await.unwrap(), []);
    assert_eq!(db.find_hub_tree(two, wide(1199)).await.unwrap(), None);
    assert_eq!(db.find_hub_commit(two, id(2)).await.unwrap(), None);
    db.add_hub_objects(two, Vec::new(), vec![blob(2), blob(3)], NOW).await.unwrap();
    let mut found = db.find_hub_blobs(two, vec![id(2), id(3), id(4)]).await.unwrap();
    found.sort_by_key(|blob| blob.id);
    assert_eq!(found, [blob(2), blob(3)]);
    let repaired = HubBlob { file: FileHash::from_bytes([9; 32]), ..blob(2) };
    db.add_hub_objects(two, Vec::new(), vec![repaired.clone()], NOW).await.unwrap();
    assert_eq!(db.find_hub_blobs(two, vec![id(2)]).await.unwrap(), [repaired]);
}

/// The id of number n.
fn wide(n: u32) -> ObjectId {
    let mut bytes = [0; 20];
    bytes[..4].copy_from_slice(&n.to_be_bytes());
    ObjectId::from_bytes(bytes)
}

async fn equal_objects_of_one_commit_are_added_once(db: Db) {
    let number = create(&db, RepoKind::Model, "bert").await;
    let (trees, blobs) = (vec![tree(5); 70], vec![blob(5); 70]);
    db.add_hub_objects(number, trees, blobs, NOW).await.unwrap();
    assert_eq!(db.find_hub_blobs(number, vec![id(5)]).await.unwrap(), [blob(5)]);
    assert_eq!(db.find_hub_tree(number, id(5)).await.unwrap(), Some(tree(5).entries));
}

async fn branches_and_tags_name_commits_that_exist(db: Db) {
    let number = create(&db, RepoKind::Model, "bert").await;
    assert!(db.create_hub_ref(number, at("refs/tags/v1", 1), 8).await.unwrap());
    assert!(!db.create_hub_ref(number, at("refs/tags/v1", 1), 8).await.unwrap());
    assert!(!db.create_hub_ref(number, at("refs/tags/v2", 9), 8).await.unwrap());
    assert!(db.create_hub_ref(number, at("refs/heads/Main", 1), 8).await.unwrap(), "names differ by case");
    let page = db.list_hub_refs(number, String::new(), 2).await.unwrap();
    assert_eq!(page, [at("refs/heads/Main", 1), at(MAIN, 1)]);
    let rest = db.list_hub_refs(number, MAIN.to_owned(), 2).await.unwrap();
    assert_eq!(rest, [at("refs/tags/v1", 1)]);
    assert!(!db.delete_hub_ref(number, at("refs/tags/v1", 2), 9).await.unwrap());
    assert!(db.delete_hub_ref(number, at("refs/tags/v1", 1), 9).await.unwrap());
    assert!(!db.delete_hub_ref(number, at("refs/tags/v1", 1), 10).await.unwrap());
    assert_eq!(db.find_hub_ref(number, "refs/tags/v1".to_owned()).await.unwrap(), None);
}

async fn repositories_are_listed_by_kind_from_the_newest_on(db: Db) {
    for name in ["a", "b", "c"] {
        create(&db, RepoKind::Model, name).await;
    }
    create(&db, RepoKind::Dataset, "d").await;
    let page = db.list_hub_repos(RepoKind::Model, None, i64::MAX, 2).await.unwrap();
    assert_eq!(page.iter().map(|repo| repo.name.as_str()).collect::<Vec<_>>(), ["c", "b"]);
    let rest = db.list_hub_repos(RepoKind::Model, None, page[1].id, 2).await.unwrap();
    assert_eq!(rest.iter().map(|repo| repo.name.as_str()).collect::<Vec<_>>(), ["a"]);
    for namespace in ["a_b", "axb", "a_bc", "Acme2"] {
        let (namespace, storage_name) = (namespace.to_owned(), format!("models/{namespace}/e"));
        let new = NewHubRepo { namespace, storage_name, ..repo(RepoKind::Model, "e") };
        db.create_hub_repo(new, commit(1, None), Vec::new(), Vec::new(), 9).await.unwrap().unwrap();
    }
    for (namespace, expected) in [("aCME", vec!["c", "b", "a"]), ("a_b", vec!["e"]), ("acme%", vec![]), ("a", vec![])] {
        let found = db.list_hub_repos(RepoKind::Model, Some(namespace.to_owned()), i64::MAX, 9).await.unwrap();
        assert_eq!(found.iter().map(|repo| repo.name.as_str()).collect::<Vec<_>>(), expected, "{namespace}");
    }
}

async fn repositories_are_listed_by_their_last_change(db: Db) {
    let mut numbers = Vec::new();
    for name in ["a", "b", "c", "d"] {
        numbers.push(create(&db, RepoKind::Model, name).await);
    }
    create(&db, RepoKind::Dataset, "other").await;
    // The commit 2 is later than those of the creations, which are all of one time.
    assert!(db.move_hub_ref(numbers[1], at(MAIN, 1), commit(2, Some(1)), 7).await.unwrap());
    assert!(db.delete_hub_repo(numbers[3]).await.unwrap());
    assert_eq!(shown(&db, RepoOrder::Changed, &ShownRepos::All).await, ["b", "c", "a"]);
    for (namespace, count) in [("Acme", 3), ("aCME", 0), ("Acm", 0), ("Acme%", 0), ("A_me", 0)] {
        let found = shown(&db, RepoOrder::Changed, &ShownRepos::Of(namespace.to_owned())).await;
        assert_eq!(found.len(), count, "{namespace}");
    }
}

/// All that a caller is shown, one on each page.
async fn shown(db: &Db, order: RepoOrder, whose: &ShownRepos) -> Vec<String> {
    let (mut found, mut place) = (Vec::new(), RepoPlace::first(order));
    loop {
        let page = db.list_shown_hub_repos(RepoKind::Model, whose.clone(), place.clone(), 1).await.unwrap();
        let Some(last) = page.last() else { break };
        place = place.after(last);
        found.push(last.name.clone());
    }
    found
}

async fn hidden_repositories_are_in_no_list_and_no_page_of_others(db: Db) {
    for (namespace, name, is_private) in
        [("Acme", "a", true), ("bob", "b", false), ("bob_2", "c", true), ("bo", "d", true), ("Acme", "e", false)]
    {
        let (namespace, storage_name) = (namespace.to_owned(), format!("models/{namespace}/{name}"));
        let new = NewHubRepo { namespace, storage_name, is_private, ..repo(RepoKind::Model, name) };
        db.create_hub_repo(new, commit(1, None), Vec::new(), Vec::new(), 9).await.unwrap().unwrap();
    }
    for (namespaces, expected) in [
        (vec![], vec!["b", "e"]),
        (vec!["aCME"], vec!["b", "e", "a"]),
        (vec!["b", "bob"], vec!["b", "e"]),
        (vec!["Bob_2", "bo"], vec!["c", "b", "d", "e"]),
        (vec!["bob%", "_", "*"], vec!["b", "e"]),
    ] {
        let whose = ShownRepos::PublicAndOf(namespaces.iter().map(|name| (*name).to_owned()).collect());
        for order in [RepoOrder::Created, RepoOrder::Changed] {
            assert_eq!(shown(&db, order, &whose).await, expected, "{namespaces:?}");
        }
    }
    assert_eq!(shown(&db, RepoOrder::Created, &ShownRepos::All).await.len(), 5);
}

async fn repository_is_restored_with_its_branches_or_discarded(db: Db) {
    let number = create(&db, RepoKind::Model, "bert").await;
    assert!(db.move_hub_ref(number, at(MAIN, 1), commit(2, Some(1)), 7).await.unwrap());
    let copy = db.find_hub_repo(RepoKind::Model, "acme".to_owned(), "bert".to_owned()).await.unwrap().unwrap();
    let other =
        HubRepo { id: 99, name: "other".to_owned(), storage_name: "models/Acme/other".to_owned(), ..copy.clone() };
    let restored = db.restore_hub_repo(other.clone()).await.unwrap();
    db.add_hub_commits(restored, vec![commit(1, None), commit(2, Some(1))]).await.unwrap();
    db.add_hub_objects(restored, vec![tree(0x81), tree(0x82)], vec![blob(1), blob(2)], NOW).await.unwrap();
    assert_eq!(db.list_hub_commits(restored, None, 1).await.unwrap(), [commit(1, None)]);
    assert_eq!(db.list_hub_commits(restored, Some(id(1)), 9).await.unwrap(), [commit(2, Some(1))]);
    assert_eq!(db.list_hub_trees(restored, Some(id(0x81)), 9).await.unwrap(), [tree(0x82)]);
    assert_eq!(db.list_hub_blobs(restored, None, 9).await.unwrap(), [blob(1), blob(2)]);
    let refs = |byte: u8| vec![HubRef { name: MAIN.to_owned(), target: id(byte) }];
    db.set_hub_refs(restored, refs(1)).await.unwrap();
    db.set_hub_refs(restored, refs(2)).await.unwrap();
    assert_eq!(db.list_hub_refs(restored, String::new(), 9).await.unwrap(), refs(2));
    // The same repository again, from a later copy.
    let later = HubRepo { updated: Timestamp::from_millis(NOW.as_millis() + 900), ..other.clone() };
    assert_eq!(db.restore_hub_repo(later.clone()).await.unwrap(), restored);
    let found = db.find_hub_repo(RepoKind::Model, "acme".to_owned(), "OTHER".to_owned()).await.unwrap().unwrap();
    assert_eq!(found, HubRepo { id: restored, ..later });
    // One that was cut off.
    let cut = HubRepo { name: "cut".to_owned(), storage_name: "models/Acme/cut".to_owned(), ..other };
    let cut = db.restore_hub_repo(cut).await.unwrap();
    db.add_hub_objects(cut, vec![tree(1)], vec![blob(1)], NOW).await.unwrap();
    db.discard_hub_repos().await.unwrap();
    assert_eq!(db.find_hub_repo(RepoKind::Model, "acme".to_owned(), "cut".to_owned()).await.unwrap(), None);
    assert_eq!(db.find_hub_tree(cut, id(1)).await.unwrap(), None);
    assert_eq!(db.list_hub_blobs(cut, None, 9).await.unwrap(), []);
    for kept in [number, restored] {
        assert_eq!(db.find_hub_ref(kept, MAIN.to_owned()).await.unwrap(), Some(id(2)));
        assert_ne!(db.list_hub_blobs(kept, None, 9).await.unwrap(), []);
    }
}

async fn deleted_repository_is_hidden_and_its_name_is_taken(db: Db) {
    let number = create(&db, RepoKind::Model, "Bert").await;
    let find = async |name: &str| db.find_hub_repo(RepoKind::Model, "acme".to_owned(), name.to_owned()).await.unwrap();
    let find_deleted =
        async |name: &str| db.find_deleted_hub_repo(RepoKind::Model, "acme".to_owned(), name.to_owned()).await.unwrap();
    let row = find("bert").await.unwrap();
    assert_eq!((find_deleted("bert").await, db.next_deleted_hub_repo(0).await.unwrap()), (None, None));
    assert!(db.delete_hub_repo(number).await.unwrap());
    assert!(!db.delete_hub_repo(number).await.unwrap());
    assert!(!db.delete_hub_repo(number + 1).await.unwrap());
    assert_eq!(
        (find("bert").await, db.list_hub_repos(RepoKind::Model, None, i64::MAX, 9).await.unwrap()),
        (None, vec![])
    );
    assert_eq!(db.list_hub_refs(number, String::new(), 9).await.unwrap(), []);
    let again = repo(RepoKind::Model, "bert");
    let refused = db.create_hub_repo(again, commit(1, None), Vec::new(), Vec::new(), 9).await.unwrap();
    assert_eq!(refused, None);
    assert!(!db.is_hub_repo_recorded(number).await.unwrap());
    db.set_hub_repo_recorded(number).await.unwrap();
    assert!(db.is_hub_repo_recorded(number).await.unwrap());
    // Its rows are still there.
    assert_eq!(find_deleted("bERT").await, Some(row.clone()));
    assert_eq!(db.find_deleted_hub_repo(RepoKind::Space, "acme".to_owned(), "bert".to_owned()).await.unwrap(), None);
    let find_stored = async |name: &str| db.find_deleted_stored_hub_repo(name.to_owned()).await.unwrap();
    assert_eq!(find_stored(&row.storage_name).await, Some(row.clone()));
    db.discard_hub_repos().await.unwrap();
    assert_eq!(db.list_hub_blobs(number, None, 9).await.unwrap(), [blob(1)]);
    let other = create(&db, RepoKind::Model, "other").await;
    assert_eq!(find_stored(&find("other").await.unwrap().storage_name).await, None);
    assert!(db.delete_hub_repo(other).await.unwrap());
    assert_eq!(db.next_deleted_hub_repo(0).await.unwrap(), Some(row));
    assert_eq!(db.next_deleted_hub_repo(number).await.unwrap().map(|next| next.id), Some(other));
    assert_eq!(db.next_deleted_hub_repo(other).await.unwrap(), None);
    db.drop_hub_repo(number).await.unwrap();
    assert_ne!(create(&db, RepoKind::Model, "bert").await, number);
}

async fn dropped_repository_leaves_no_row_and_its_name_is_free(db: Db) {
    let (number, other) = (create(&db, RepoKind::Model, "bert").await, create(&db, RepoKind::Model, "other").await);
    // More than one step deletes.
    let many = (0..100).map(|n| HubTree { id: wide(n), entries: vec![7; 100_000] }).collect();
    db.add_hub_objects(number, many, (0..99).map(blob).collect(), NOW).await.unwrap();
    // In steps, of which each ends by itself.
    db.delete_hub_repo(number).await.unwrap();
    while db.drop_hub_rows(number).await.unwrap() {}
    assert_eq!(db.list_hub_trees(number, None, 9).await.unwrap(), []);
    assert_eq!(db.next_deleted_hub_repo(0).await.unwrap().map(|repo| repo.id), Some(number));
    db.drop_hub_repo(number).await.unwrap();
    assert_eq!(db.find_hub_repo(RepoKind::Model, "acme".to_owned(), "bert".to_owned()).await.unwrap(), None);
    assert_eq!(db.list_hub_refs(number, String::new(), 9).await.unwrap(), []);
    assert_eq!(db.list_hub_blobs(number, None, 9).await.unwrap(), []);
    assert_eq!(db.list_hub_trees(number, None, 9).await.unwrap(), []);
    assert_eq!(db.list_hub_commits(number, None, 9).await.unwrap(), []);
    assert_eq!(db.list_hub_blobs(other, None, 9).await.unwrap(), [blob(1)]);
    assert_ne!(create(&db, RepoKind::Model, "BERT").await, number);
}

async fn change_marks_its_record_and_a_refused_one_does_not(db: Db) {
    db.set_store(crate::format::StoreId::from_bytes([1; 16]), None).await.unwrap();
    let last = async || db.store_mark().await.unwrap().last_record;
    let number = create(&db, RepoKind::Model, "bert").await;
    assert_eq!(last().await, Some(5));
    let again = db.create_hub_repo(repo(RepoKind::Model, "bert"), commit(1, None), Vec::new(), Vec::new(), 20).await;
    assert_eq!(again.unwrap(), None);
    assert!(!db.move_hub_ref(number, at(MAIN, 3), commit(2, Some(1)), 21).await.unwrap());
    assert!(!db.create_hub_ref(number, at(MAIN, 1), 22).await.unwrap());
    assert!(!db.delete_hub_ref(number, at(MAIN, 3), 23).await.unwrap());
    assert!(!db.set_hub_repo_private(number + 1, true, 24).await.unwrap());
    assert_eq!(last().await, Some(5));
    assert!(db.move_hub_ref(number, at(MAIN, 1), commit(2, Some(1)), 31).await.unwrap());
    assert_eq!(last().await, Some(31));
    assert!(db.create_hub_ref(number, at("refs/tags/v1", 1), 32).await.unwrap());
    assert_eq!(last().await, Some(32));
    assert!(db.delete_hub_ref(number, at("refs/tags/v1", 1), 33).await.unwrap());
    assert_eq!(last().await, Some(33));
    assert!(db.set_hub_repo_private(number, false, 34).await.unwrap());
    assert_eq!(last().await, Some(34));
    let found = db.find_hub_repo(RepoKind::Model, "acme".to_owned(), "bert".to_owned()).await.unwrap().unwrap();
    assert!(!found.is_private);
    // A commit without a parent in place of the head.
    assert!(db.move_hub_ref(number, at(MAIN, 2), commit(4, None), 35).await.unwrap());
    assert_eq!(last().await, Some(35));
}

async fn repository_without_records_is_found_until_it_has_some(db: Db) {
    create(&db, RepoKind::Model, "bert").await;
    assert_eq!(db.find_unrecorded_hub_repo().await.unwrap(), None);
    let copy = db.find_hub_repo(RepoKind::Model, "acme".to_owned(), "bert".to_owned()).await.unwrap().unwrap();
    let copy = HubRepo { name: "copy".to_owned(), storage_name: "models/Acme/copy".to_owned(), ..copy };
    let restored = db.restore_hub_repo(copy.clone()).await.unwrap();
    assert_eq!(db.find_unrecorded_hub_repo().await.unwrap(), Some(HubRepo { id: restored, ..copy }));
    db.add_hub_commits(restored, vec![commit(1, None), commit(2, None)]).await.unwrap();
    for (name, target) in
        [(MAIN, Some(id(1))), ("refs/tags/v1", Some(id(1))), (MAIN, Some(id(2))), ("refs/tags/v1", None)]
    {
        db.put_hub_ref(restored, name.to_owned(), target).await.unwrap();
    }
    assert_eq!(db.list_hub_refs(restored, String::new(), 9).await.unwrap(), [at(MAIN, 2)]);
    db.set_hub_repo_recorded(restored).await.unwrap();
    assert_eq!(db.find_unrecorded_hub_repo().await.unwrap(), None);
}
