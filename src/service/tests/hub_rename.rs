//! Renaming of Hub repositories: what keeps its name, who takes a former one, and what lost or
//! unwritten records change.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::hub::{claims, commit, create, name, open, put, rename, seen};
use super::hub_deletion::copy;
use super::records::rebuild;
use super::{Moment, Setup};
use crate::blob::records::RecordStore;
use crate::index::{HubDeletionIndex, HubIndex, HubRenameIndex, ListIndex, Reader};
use crate::service::access::{Claims, Scope};
use crate::service::gc::Pace;
use crate::service::hub::{Loading, hub_states};
use crate::service::{HubError, Server};

/// The storage name of what a caller without a token finds under a name.
async fn stored(server: &Arc<Server>, repo: &str) -> Option<String> {
    let opened = server.open_hub_repo(&Claims::UNRESTRICTED, &name(repo), Scope::Write).await;
    opened.ok().map(|open| open.repo.storage_name)
}

/// A repository that was renamed twice, and one that has its first name.
async fn setup() -> Setup {
    let setup = Setup::new().await;
    let server = setup.process();
    create(&server, "repo").await.unwrap();
    commit(&server, "repo", vec![put("old.txt")]).await.unwrap();
    rename(&server, "repo", "second").await.unwrap();
    rename(&server, "second", "Third").await.unwrap();
    server.create_hub_repo(&Claims::UNRESTRICTED, &name("repo"), false).await.unwrap();
    setup
}

#[tokio::test]
async fn former_name_leads_to_the_repository_until_another_takes_it() {
    let setup = setup().await;
    let server = setup.process();
    let old = Some("models/me/repo".to_owned());
    assert_eq!((stored(&server, "third").await, stored(&server, "SECOND").await), (old.clone(), old.clone()));
    assert_eq!(stored(&server, "repo").await.as_deref(), Some("models/me/repo~2"));
    let seen = seen(&server).await;
    assert_eq!(seen.keys().collect::<Vec<_>>(), ["Third", "repo"]);
    assert!(seen["Third"].refs()["refs/heads/main"].1.contains_key("old.txt"));
    assert_eq!(seen["repo"].refs()["refs/heads/main"].0.len(), 1);
    // The second repository of a name, the case of a name, and back to a former one.
    for (from, to) in [("repo", "fourth"), ("fourth", "FOURTH"), ("third", "second")] {
        rename(&server, from, to).await.unwrap();
    }
    server.create_hub_repo(&Claims::UNRESTRICTED, &name("repo"), false).await.unwrap();
    assert_eq!(stored(&server, "repo").await.as_deref(), Some("models/me/repo~3"));
    assert_eq!(stored(&server, "fourth").await.as_deref(), Some("models/me/repo~2"));
    assert_eq!(stored(&server, "third").await, old);
    assert_eq!(setup.index.list_former_names(1, 9).await.unwrap(), ["me/repo", "me/third"]);
}

/// A name is a claim to what asks for it, so a token for one repository takes no other name.
#[tokio::test]
async fn token_for_one_repository_opens_the_same_one_after_a_rename() {
    let setup = setup().await;
    let server = setup.process();
    let token = claims("repo");
    let opened = async |repo: &str| server.open_hub_repo(&token, &name(repo), Scope::Write).await;
    assert_eq!(opened("third").await.unwrap().repo.name, "Third");
    // Not the one that has its first name now.
    assert_eq!(opened("repo").await.unwrap().repo.name, "Third");
    let refused = [
        server.rename_hub_repo(&token, &name("third"), &name("victim")).await,
        server.rename_hub_repo(&token, &name("repo"), &name("victim")).await,
        server.create_hub_repo(&token, &name("repo"), false).await,
        server.delete_hub_repo(&token, &name("second")).await,
        server.rename_hub_repo(&Claims::UNRESTRICTED, &name("second"), &name("fourth")).await,
    ];
    let expected = ["ReadOnly", "NoRepo", "ReadOnly", "NoRepo", "NoRepo"];
    assert_eq!(refused.map(|refused| format!("{:?}", refused.unwrap_err())), expected);
    // It may give it back the name of the token, once that is free.
    server.delete_hub_repo(&Claims::UNRESTRICTED, &name("repo")).await.unwrap();
    server.rename_hub_repo(&token, &name("third"), &name("repo")).await.unwrap();
    assert_eq!(open(&server, "repo").await.unwrap().repo.storage_name, "models/me/repo");
}

#[tokio::test]
async fn renamed_repositories_are_rebuilt_and_restored() {
    let setup = setup().await;
    let server = setup.process();
    // By its former name, with a token that does not show the one that has it now.
    commit(&server, "repo", vec![put("x.txt")]).await.unwrap();
    let expected = seen(&server).await;
    let rebuilt = rebuild(&setup).await.unwrap();
    assert_eq!((rebuilt.problems, seen(&setup.process_with(&rebuilt.index)).await), (Vec::new(), expected.clone()));
    // A start that records the state of what has no records, and a backup.
    let target = Setup::new().await;
    let mut loading = Loading::begin(&target.index);
    let states = hub_states(&setup.index).await.unwrap();
    for round in 0..2 {
        for state in states.clone() {
            copy(&setup, state, &mut loading).await;
        }
        if round == 0 {
            rename(&server, "repo", "other").await.unwrap();
            rename(&server, "third", "repo").await.unwrap();
        }
    }
    for state in hub_states(&setup.index).await.unwrap() {
        copy(&setup, state, &mut loading).await;
    }
    loading.finish().await.unwrap();
    let names = async |setup: &Setup| {
        let of = |state: crate::service::hub::HubState| (state.repo.name, state.repo.storage_name, state.former_names);
        hub_states(&setup.index).await.unwrap().into_iter().map(of).collect::<Vec<_>>()
    };
    let mut restored = names(&target).await;
    restored.sort();
    let mut present = names(&setup).await;
    present.sort();
    assert_eq!(restored, present);
    assert_eq!(present.len(), 2);
}

/// A record that was lost takes neither the later ones with it nor the repository that took the
/// name.
#[tokio::test]
async fn lost_record_of_a_rename_hides_no_later_commit() {
    for is_taken in [false, true] {
        let setup = Setup::new().await;
        let server = setup.process();
        create(&server, "repo").await.unwrap();
        commit(&server, "repo", vec![put("a.txt")]).await.unwrap();
        let opened = open(&server, "repo").await.unwrap();
        server.squash(&opened, "main", None).await.unwrap();
        rename(&server, "repo", "second").await.unwrap();
        let lost = *setup.record_seqs().await.last().unwrap();
        if is_taken {
            server.create_hub_repo(&Claims::UNRESTRICTED, &name("repo"), false).await.unwrap();
        }
        server.set_hub_repo_private(&opened, true).await.unwrap();
        let expected = seen(&server).await;
        setup.records.remove(lost).await.unwrap();
        let rebuilt = rebuild(&setup).await.unwrap();
        let found = seen(&setup.process_with(&rebuilt.index)).await;
        // Until its next record it had to make way.
        assert_eq!(rebuilt.problems.len(), usize::from(is_taken), "{:?}", rebuilt.problems);
        assert_eq!(found["second"].has_former_name("me/repo-recovered-1"), is_taken);
        assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
        for (name, expected) in &expected {
            assert_eq!(found[name].refs(), expected.refs(), "{name}");
            assert_eq!(found[name].has_former_name("me/repo"), expected.has_former_name("me/repo"), "{name}");
        }
    }
}

/// Without any record of its later name, a repository has a name that no record has.
#[tokio::test]
async fn repository_whose_rename_is_lost_gets_another_name() {
    let setup = Setup::new().await;
    let server = setup.process();
    for repo in ["repo", "other"] {
        create(&server, repo).await.unwrap();
        commit(&server, repo, vec![put("a.txt")]).await.unwrap();
    }
    rename(&server, "repo", "second").await.unwrap();
    let lost = *setup.record_seqs().await.last().unwrap();
    rename(&server, "other", "repo").await.unwrap();
    let mut expected = seen(&server).await;
    setup.records.remove(lost).await.unwrap();
    let rebuilt = rebuild(&setup).await.unwrap();
    assert_eq!(rebuilt.problems.len(), 1, "{:?}", rebuilt.problems);
    let mut found = seen(&setup.process_with(&rebuilt.index)).await;
    let recovered = found.remove("repo-recovered-1").unwrap();
    assert_eq!(recovered.refs(), expected.remove("second").unwrap().refs());
    assert_eq!(found, expected);
    assert!(rebuilt.rebuilt.has_problems());
}

/// The rename is made, and its record is not written: who takes the former name writes it.
#[tokio::test]
async fn name_of_a_repository_whose_rename_has_no_record_can_be_taken() {
    let setup = Setup::new().await;
    let server = setup.process();
    create(&server, "repo").await.unwrap();
    commit(&server, "repo", vec![put("a.txt")]).await.unwrap();
    setup.faults.arm_at("rename_hub_repo", Moment::After);
    rename(&server, "repo", "second").await.unwrap_err();
    setup.faults.disarm();
    assert_eq!(seen(&server).await.keys().collect::<Vec<_>>(), ["second"]);
    server.create_hub_repo(&Claims::UNRESTRICTED, &name("repo"), false).await.unwrap();
    let expected = seen(&server).await;
    let rebuilt = rebuild(&setup).await.unwrap();
    assert_eq!((rebuilt.problems, seen(&setup.process_with(&rebuilt.index)).await), (Vec::new(), expected));
}

/// The next rename writes the record that is missing, or none would have the name in between.
#[tokio::test]
async fn rename_after_one_without_a_record_loses_no_former_name() {
    let setup = Setup::new().await;
    let server = setup.process();
    create(&server, "repo").await.unwrap();
    setup.faults.arm_at("rename_hub_repo", Moment::After);
    rename(&server, "repo", "second").await.unwrap_err();
    setup.faults.disarm();
    rename(&server, "second", "third").await.unwrap();
    let expected = seen(&server).await;
    assert!(expected["third"].has_former_name("me/second"));
    let rebuilt = rebuild(&setup).await.unwrap();
    assert_eq!((rebuilt.problems, seen(&setup.process_with(&rebuilt.index)).await), (Vec::new(), expected));
}

/// Neither its last rename nor its deletion has a record: who takes a former name writes one.
#[tokio::test]
async fn name_of_a_deleted_repository_that_was_renamed_can_be_taken() {
    let setup = Setup::new().await;
    let server = setup.process();
    create(&server, "repo").await.unwrap();
    rename(&server, "repo", "second").await.unwrap();
    setup.faults.arm_at("rename_hub_repo", Moment::After);
    rename(&server, "second", "third").await.unwrap_err();
    setup.faults.arm_at("delete_hub_repo", Moment::After);
    server.delete_hub_repo(&Claims::UNRESTRICTED, &name("third")).await.unwrap_err();
    assert_eq!(setup.faults.disarm(), Some("delete_hub_repo"));
    create(&server, "second").await.unwrap();
    let expected = seen(&server).await;
    assert_eq!(expected.keys().collect::<Vec<_>>(), ["second"]);
    let rebuilt = rebuild(&setup).await.unwrap();
    let server = setup.process_with(&rebuilt.index);
    assert_eq!((rebuilt.problems, seen(&server).await), (Vec::new(), expected));
    // The deleted one is there until its claims are removed.
    let claims = async || {
        let reader = Reader::Repo("models/me/repo".to_owned());
        rebuilt.index.files_after(reader, None, 9).await.unwrap().len()
    };
    let deleted = rebuilt.index.next_deleted_hub_repo(0).await.unwrap().map(|deleted| deleted.name);
    assert_eq!((deleted.as_deref(), claims().await), (Some("third"), 1));
    server.purge_deleted_repos(&Pace::default()).await.unwrap();
    assert_eq!(claims().await, 0);
}

/// Its transaction is made, its record is being written, and another rename waits for it.
#[tokio::test]
async fn creation_waits_for_the_record_of_the_rename_before_it() {
    let setup = Setup::new().await;
    let server = setup.process();
    // The lock of its storage name is another one than that of the name.
    create(&server, "first").await.unwrap();
    rename(&server, "first", "repo").await.unwrap();
    let held = setup.faults.hold("append");
    let creating = async {
        let release = held.reached().await;
        let (repo, waiting) = (name("repo"), Duration::from_millis(300));
        let mut renaming = pin!(rename(&server, "second", "third"));
        timeout(waiting, &mut renaming).await.unwrap_err();
        let mut creating = pin!(server.create_hub_repo(&Claims::UNRESTRICTED, &repo, false));
        timeout(waiting, &mut creating).await.unwrap_err();
        drop(release);
        let (renamed, created) = tokio::join!(renaming, creating);
        renamed.and(created).unwrap();
    };
    let (renamed, ()) = tokio::join!(rename(&server, "repo", "second"), creating);
    renamed.unwrap();
    let expected = seen(&server).await;
    assert_eq!(expected.keys().collect::<Vec<_>>(), ["repo", "third"]);
    let rebuilt = rebuild(&setup).await.unwrap();
    assert_eq!((rebuilt.problems, seen(&setup.process_with(&rebuilt.index)).await), (Vec::new(), expected));
}

#[tokio::test]
async fn repository_with_all_former_names_takes_only_those_again() {
    let setup = Setup::new().await;
    let server = setup.process();
    create(&server, "repo").await.unwrap();
    let names = (0..100).map(|number| format!("me/former{number}")).collect();
    setup.index.set_former_names(1, names).await.unwrap();
    let refused = rename(&server, "repo", "more").await;
    assert!(matches!(refused, Err(HubError::Invalid(_))), "{refused:?}");
    rename(&server, "repo", "REPO").await.unwrap();
    rename(&server, "repo", "former99").await.unwrap();
    let former = setup.index.list_former_names(1, 101).await.unwrap();
    assert_eq!((former.len(), former.contains(&"me/repo".to_owned())), (100, true));
}

/// Who may not see the repository that has a former name finds what had it before.
#[tokio::test]
async fn hidden_repository_shows_nothing_by_taking_a_former_name() {
    let setup = setup().await;
    let server = setup.process();
    let token = claims("repo");
    let opened = async |repo: &str| server.open_hub_repo(&token, &name(repo), Scope::Write).await;
    assert_eq!(opened("repo").await.unwrap().repo.name, "Third");
    // Nor by leaving it, nor by going.
    rename(&server, "repo", "hidden").await.unwrap();
    assert_eq!(opened("repo").await.unwrap().repo.name, "Third");
    assert!(matches!(opened("hidden").await, Err(HubError::NoRepo)));
    server.delete_hub_repo(&Claims::UNRESTRICTED, &name("hidden")).await.unwrap();
    server.purge_deleted_repos(&Pace::default()).await.unwrap();
    assert_eq!(opened("repo").await.unwrap().repo.name, "Third");
}

/// A start applies a creation whose outcome was unknown, although another one has the name by now.
#[tokio::test]
async fn start_that_replays_a_creation_loses_no_other_repository() {
    let setup = Setup::new().await;
    let server = setup.process();
    create(&server, "other").await.unwrap();
    setup.faults.others().cannot_tell = true;
    setup.faults.arm_at("create_hub_repo", Moment::Before);
    create(&server, "repo").await.unwrap_err();
    setup.faults.disarm();
    // The process dies before the rename has its record.
    setup.faults.arm_at("rename_hub_repo", Moment::After);
    rename(&server, "other", "repo").await.unwrap_err();
    setup.faults.disarm();
    let server = setup.process();
    server.store.agree(false).await.unwrap();
    server.store.complete_records().await.unwrap();
    let expected = seen(&server).await;
    assert_eq!(expected.keys().collect::<Vec<_>>(), ["repo", "repo-recovered-1"]);
    assert_eq!(expected["repo-recovered-1"].refs().len(), 1);
    let rebuilt = rebuild(&setup).await.unwrap();
    assert_eq!(seen(&setup.process_with(&rebuilt.index)).await, expected);
}

/// An archive has also a repository that was deleted later, under another name.
#[tokio::test]
async fn restore_does_not_mix_two_repositories_of_one_storage_name() {
    let setup = Setup::new().await;
    let server = setup.process();
    let target = Setup::new().await;
    let mut loading = Loading::begin(&target.index);
    create(&server, "repo").await.unwrap();
    commit(&server, "repo", vec![put("old.txt")]).await.unwrap();
    rename(&server, "repo", "second").await.unwrap();
    for state in hub_states(&setup.index).await.unwrap() {
        copy(&setup, state, &mut loading).await;
    }
    server.delete_hub_repo(&Claims::UNRESTRICTED, &name("second")).await.unwrap();
    setup.clock.advance(std::time::Duration::from_secs(1));
    // Its storage name is purged first, so that quotas and tokens of the name hold.
    create(&server, "repo").await.unwrap();
    for state in hub_states(&setup.index).await.unwrap() {
        copy(&setup, state, &mut loading).await;
    }
    loading.finish().await.unwrap();
    let restored = hub_states(&target.index).await.unwrap();
    let [state] = &restored[..] else { panic!("{restored:?}") };
    assert_eq!((state.repo.name.as_str(), state.repo.storage_name.as_str()), ("repo", "models/me/repo"));
    assert_eq!(state.former_names, [""; 0]);
    assert_eq!(target.index.list_hub_commits(state.repo.id, None, 9).await.unwrap().len(), 1);
}

/// The rest of a deleted repository is removed under its own storage name, never a later one's.
#[tokio::test]
async fn purge_of_a_renamed_repository_leaves_the_new_one_of_the_name() {
    let setup = setup().await;
    let server = setup.process();
    server.delete_hub_repo(&Claims::UNRESTRICTED, &name("third")).await.unwrap();
    // Its name is purged first; the storage name of the other is not free before.
    server.create_hub_repo(&Claims::UNRESTRICTED, &name("third"), false).await.unwrap();
    assert_eq!(stored(&server, "third").await.as_deref(), Some("models/me/third"));
    server.delete_hub_repo(&Claims::UNRESTRICTED, &name("repo")).await.unwrap();
    server.create_hub_repo(&Claims::UNRESTRICTED, &name("repo"), false).await.unwrap();
    assert_eq!(stored(&server, "repo").await.as_deref(), Some("models/me/repo"));
    let expected = seen(&server).await;
    server.purge_deleted_repos(&Pace::default()).await.unwrap();
    assert_eq!(seen(&server).await, expected);
    let rebuilt = rebuild(&setup).await.unwrap();
    assert_eq!((rebuilt.problems, seen(&setup.process_with(&rebuilt.index)).await), (Vec::new(), expected));
}

#[tokio::test]
async fn repository_stays_in_its_namespace_and_takes_no_name_in_use() {
    let setup = setup().await;
    let server = setup.process();
    let elsewhere = crate::service::HubName::new(crate::service::RepoKind::Model, "you", "repo").unwrap();
    let refused = server.rename_hub_repo(&Claims::UNRESTRICTED, &name("repo"), &elsewhere).await;
    assert!(matches!(refused, Err(HubError::Invalid(_))), "{refused:?}");
    let records = setup.record_seqs().await;
    for taken in ["third", "THIRD"] {
        let refused = rename(&server, "repo", taken).await;
        assert!(matches!(refused, Err(HubError::Exists { .. })), "{refused:?}");
    }
    rename(&server, "repo", "repo").await.unwrap();
    assert_eq!(setup.record_seqs().await, records, "a refusal has no record");
}

/// The rows say that each repository has its record, which was in the lost directory.
#[tokio::test]
async fn lost_records_of_repositories_are_written_again() {
    let mut setup = setup().await;
    let server = setup.process();
    let expected = seen(&server).await;
    assert_eq!(expected.keys().collect::<Vec<_>>(), ["Third", "repo"]);
    setup.records = Default::default();
    let server = setup.process();
    server.store.agree(true).await.unwrap();
    server.store.complete_records().await.unwrap();
    let rebuilt = rebuild(&setup).await.unwrap();
    assert_eq!(rebuilt.problems, [""; 0]);
    assert_eq!(seen(&setup.process_with(&rebuilt.index)).await, expected);
    // Once: the next start writes none.
    let count = setup.record_seqs().await.len();
    setup.process().store.complete_records().await.unwrap();
    assert_eq!(setup.record_seqs().await.len(), count);
}
