//! The contract on what no branch or tag of a Hub repository needs.

use super::hub::{MAIN, at, blob, commit, create, id, tree};
use super::{Db, NOW, SqliteIndex};
use crate::format::FileHash;
use crate::git::ObjectId;
use crate::index::{HubGenerations, HubObject, RepoKind, UnneededCommit, UnneededFile};
use crate::runtime::clock::Timestamp;

suite! {
    unneeded_commits_are_listed_and_dropped_with_their_entry
    unneeded_files_are_listed_by_repository
    objects_are_listed_and_dropped_by_kind
    repository_is_unswept_until_its_sweep_and_each_change_counts
}

async fn unneeded_commits_are_listed_and_dropped_with_their_entry(db: Db) {
    let (number, other) = (create(&db, RepoKind::Model, "bert").await, create(&db, RepoKind::Model, "other").await);
    db.add_hub_commits(number, vec![commit(2, Some(1)), commit(3, Some(1))]).await.unwrap();
    let later = Timestamp::from_millis(NOW.as_millis() + 5);
    db.set_unneeded_commits(number, vec![id(2), id(3)], Some(NOW)).await.unwrap();
    db.set_unneeded_commits(other, vec![id(2)], Some(NOW)).await.unwrap();
    db.set_unneeded_commits(number, vec![id(3)], Some(later)).await.unwrap();
    let [two, three] = [(2, NOW), (3, later)].map(|(byte, since)| UnneededCommit { id: id(byte), since });
    assert_eq!(db.list_unneeded_commits(number, None, 1).await.unwrap(), [two]);
    assert_eq!(db.list_unneeded_commits(number, Some(id(2)), 9).await.unwrap(), [three]);
    db.set_unneeded_commits(number, vec![id(3), id(9)], None).await.unwrap();
    db.drop_hub_commits(number, vec![id(2), id(9)]).await.unwrap();
    assert_eq!(db.list_unneeded_commits(number, None, 9).await.unwrap(), []);
    let left = db.list_hub_commits(number, None, 9).await.unwrap();
    assert_eq!(left, [commit(1, None), commit(3, Some(1))]);
    assert_eq!(db.list_unneeded_commits(other, None, 9).await.unwrap(), [two]);
    db.drop_hub_repo(other).await.unwrap();
    assert_eq!(db.list_unneeded_commits(other, None, 9).await.unwrap(), []);
}

async fn unneeded_files_are_listed_by_repository(db: Db) {
    let (number, other) = (create(&db, RepoKind::Model, "bert").await, create(&db, RepoKind::Model, "other").await);
    let files = [2, 3].map(|byte| FileHash::from_bytes([byte; 32]));
    let names = async || -> Vec<String> {
        db.hub_repos_with_unneeded_files().await.unwrap().into_iter().map(|repo| repo.name).collect()
    };
    assert_eq!(names().await, [""; 0]);
    db.set_unneeded_files(number, files.to_vec(), Some(NOW)).await.unwrap();
    assert_eq!(names().await, ["bert"]);
    assert_eq!(db.file_unneeded_since(number, files[0]).await.unwrap(), Some(NOW));
    assert_eq!(db.file_unneeded_since(other, files[0]).await.unwrap(), None);
    let [two, three] = files.map(|file| UnneededFile { file, since: NOW });
    assert_eq!(db.list_unneeded_files(number, None, 1).await.unwrap(), [two]);
    assert_eq!(db.list_unneeded_files(number, Some(files[0]), 9).await.unwrap(), [three]);
    db.set_unneeded_files(number, vec![files[0]], None).await.unwrap();
    assert_eq!(db.list_unneeded_files(number, None, 9).await.unwrap(), [three]);
    let later = Timestamp::from_millis(NOW.as_millis() + 5);
    db.renew_unneeded_files(later).await.unwrap();
    assert_eq!(db.file_unneeded_since(number, files[1]).await.unwrap(), Some(later));
    db.delete_hub_repo(number).await.unwrap();
    assert_eq!(names().await, [""; 0]);
    db.drop_hub_repo(number).await.unwrap();
    assert_eq!(db.list_unneeded_files(number, None, 9).await.unwrap(), []);
    // Of a repository that is deleted meanwhile, nothing is listed.
    db.set_unneeded_files(number, files.to_vec(), Some(NOW)).await.unwrap();
    db.set_unneeded_commits(number, vec![id(1)], Some(NOW)).await.unwrap();
    assert_eq!(db.list_unneeded_files(number, None, 9).await.unwrap(), []);
    assert_eq!(db.list_unneeded_commits(number, None, 9).await.unwrap(), []);
}

async fn objects_are_listed_and_dropped_by_kind(db: Db) {
    let (number, other) = (create(&db, RepoKind::Model, "bert").await, create(&db, RepoKind::Model, "other").await);
    for repo in [number, other] {
        db.add_hub_objects(repo, vec![tree(1), tree(2)], vec![blob(1), blob(2)], NOW).await.unwrap();
    }
    let ids = async |repo, object| db.list_hub_ids(repo, object, None, 9).await.unwrap();
    let before = [ids(number, HubObject::Tree).await, ids(number, HubObject::Blob).await];
    assert_eq!(db.list_hub_ids(number, HubObject::Blob, Some(id(1)), 9).await.unwrap(), [id(2)]);
    assert_eq!(db.list_hub_ids(number, HubObject::Tree, None, 1).await.unwrap(), [id(1)]);
    db.drop_hub_objects(number, HubObject::Tree, vec![id(1), id(2), id(9)]).await.unwrap();
    let trees: Vec<ObjectId> = before[0].iter().copied().filter(|tree| ![id(1), id(2)].contains(tree)).collect();
    assert_eq!([ids(number, HubObject::Tree).await, ids(number, HubObject::Blob).await], [trees, before[1].clone()]);
    db.drop_hub_objects(number, HubObject::Blob, vec![id(1)]).await.unwrap();
    assert!(!ids(number, HubObject::Blob).await.contains(&id(1)));
    assert_eq!([ids(other, HubObject::Tree).await, ids(other, HubObject::Blob).await], before);
}

async fn repository_is_unswept_until_its_sweep_and_each_change_counts(db: Db) {
    let (number, other) = (create(&db, RepoKind::Model, "bert").await, create(&db, RepoKind::Dataset, "other").await);
    let time = |millis| Timestamp::from_millis(millis);
    let next = async |after, before, now| {
        let next = db.next_unswept_hub_repo(after, time(before), time(now)).await.unwrap();
        next.map(|repo| repo.id)
    };
    assert_eq!(
        [next(0, 5, 9).await, next(number, 5, 9).await, next(other, 5, 9).await],
        [Some(number), Some(other), None]
    );
    let generations = async || db.hub_generations(number).await.unwrap().unwrap();
    let HubGenerations { current, swept } = generations().await;
    assert_eq!(swept, -1);
    db.set_hub_repo_swept(number, time(5), current).await.unwrap();
    assert_eq!(
        [next(0, 5, 9).await, next(0, 6, 9).await, next(0, 5, 4).await],
        [Some(other), Some(number), Some(number)]
    );
    assert_eq!(generations().await, HubGenerations { current, swept: current });
    let mut last = current;
    let mut has_grown = async || {
        let now = generations().await.current;
        let has_grown = now > last;
        last = now;
        has_grown
    };
    assert!(db.move_hub_ref(number, at(MAIN, 1), commit(2, Some(1)), 7).await.unwrap());
    assert!(has_grown().await);
    assert!(db.create_hub_ref(number, at("refs/tags/v1", 2), 8).await.unwrap());
    assert!(has_grown().await);
    assert!(!db.create_hub_ref(number, at("refs/tags/v1", 2), 8).await.unwrap());
    assert!(!has_grown().await);
    assert!(db.delete_hub_ref(number, at("refs/tags/v1", 2), 9).await.unwrap());
    assert!(has_grown().await);
    db.add_hub_objects(number, Vec::new(), vec![blob(1)], NOW).await.unwrap();
    assert!(has_grown().await);
    db.add_hub_commits(number, vec![commit(3, Some(2))]).await.unwrap();
    assert!(has_grown().await);
    db.put_hub_ref(number, MAIN.to_owned(), Some(id(3))).await.unwrap();
    assert!(has_grown().await);
    db.set_hub_refs(number, vec![at(MAIN, 3)]).await.unwrap();
    assert!(has_grown().await);
    assert_eq!(generations().await.swept, current);
    db.drop_hub_commits(number, vec![id(1)]).await.unwrap();
    assert_eq!(generations().await.swept, -1);
    db.delete_hub_repo(number).await.unwrap();
    assert_eq!((db.hub_generations(number).await.unwrap(), next(0, 9, 9).await), (None, Some(other)));
}
