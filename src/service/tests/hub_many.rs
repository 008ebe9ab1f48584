//! Callers find their repositories, and names can be taken, however many others there are.

use super::Setup;
use super::hub::{claims, create, name, rename, seen};
use super::records::rebuild;
use crate::git::ObjectId;
use crate::index::{HubCommit, HubIndex, HubRenameIndex, HubRepo, NewHubRepo, RepoKind};
use crate::runtime::clock::Timestamp;
use crate::service::access::{Claims, Scope};

/// More than a list of the repositories of an owner has.
const MANY: usize = 1001;

/// Adds a private repository without files to the index.
async fn add(setup: &Setup, namespace: &str, name: &str) -> HubRepo {
    let id = ObjectId::from_bytes([7; 20]);
    let at = Timestamp::from_millis(1_900_000_000_000);
    let first = HubCommit { id, tree: id, parent: None, at, author: "eve".to_owned(), message: "first".to_owned() };
    let (kind, storage_name) = (RepoKind::Model, format!("models/{namespace}/{name}"));
    let new =
        NewHubRepo { kind, namespace: namespace.to_owned(), name: name.to_owned(), storage_name, is_private: true };
    setup.index.create_hub_repo(new, first, Vec::new(), Vec::new(), 1).await.unwrap().unwrap();
    setup.index.find_hub_repo(kind, namespace.to_owned(), name.to_owned()).await.unwrap().unwrap()
}

/// The claims of a token with this scope.
fn of(scope: &str) -> Claims {
    Claims { repo: scope.parse().unwrap(), ..claims("any") }
}

/// The repository with this name.
async fn find(setup: &Setup, name: &str) -> HubRepo {
    setup.index.find_hub_repo(RepoKind::Model, "me".to_owned(), name.to_owned()).await.unwrap().unwrap()
}

/// Gives a repository a former name, without a record.
async fn pass_through(setup: &Setup, repo: HubRepo, former: &str) {
    let last = format!("{}-now", repo.name);
    let renamed = HubRepo { name: former.to_owned(), ..repo };
    assert!(setup.index.rename_hub_repo(renamed.clone()).await.unwrap());
    assert!(setup.index.rename_hub_repo(HubRepo { name: last, ..renamed }).await.unwrap());
}

#[tokio::test]
async fn own_repository_is_listed_beside_many_newer_ones() {
    let setup = Setup::new().await;
    let server = setup.process();
    create(&server, "mine").await.unwrap();
    add(&setup, "Me", "third").await;
    for number in 0..MANY {
        add(&setup, "me", &format!("other{number}")).await;
    }
    let listed = async |claims: &Claims, namespace: &str| {
        let own = server.own_hub_repos(claims, namespace).await.unwrap();
        own.into_iter().map(|own| own.repo.name).collect::<Vec<_>>()
    };
    assert_eq!(listed(&claims("mine"), "ME").await, ["mine"]);
    assert_eq!(listed(&of("models/Me/*"), "me").await, ["third"]);
    assert_eq!(listed(&of("*/me/*"), "me").await.len(), 1000);
    assert_eq!(listed(&of("*"), "me").await.len(), 1000);
    for nothing in [Claims::anonymous(None, 0), of("datasets/me/*"), of("datasets/me/mine"), of("models/me/none")] {
        assert_eq!(listed(&nothing, "me").await, [""; 0], "{nothing:?}");
    }
    assert_eq!(listed(&claims("mine"), "you").await, [""; 0]);
}

#[tokio::test]
async fn former_name_of_many_hidden_repositories_leads_to_the_shown() {
    let setup = Setup::new().await;
    let server = setup.process();
    server.create_hub_repo(&Claims::UNRESTRICTED, &name("public"), false).await.unwrap();
    pass_through(&setup, find(&setup, "public").await, "former").await;
    pass_through(&setup, add(&setup, "me", "token").await, "former").await;
    pass_through(&setup, add(&setup, "Me", "third").await, "former").await;
    for number in 0..120 {
        pass_through(&setup, add(&setup, "me", &format!("hidden{number}")).await, "former").await;
    }
    let found = async |claims: &Claims| {
        let opened = server.open_hub_repo(claims, &name("Former"), Scope::Read).await;
        opened.ok().map(|open| open.repo.name)
    };
    assert_eq!(found(&Claims::anonymous(None, 0)).await.as_deref(), Some("public-now"));
    assert_eq!(found(&claims("token")).await.as_deref(), Some("token-now"));
    assert_eq!(found(&of("models/Me/*")).await.as_deref(), Some("third-now"));
    assert_eq!(found(&of("models/me/*")).await.as_deref(), Some("hidden119-now"));
    assert_eq!(found(&Claims::UNRESTRICTED).await.as_deref(), Some("hidden119-now"));
    for nothing in ["datasets/me/*", "datasets/me/token", "models/me/none", "models/you/*"] {
        assert_eq!(found(&of(nothing)).await, None, "{nothing}");
    }
}

/// Each rename has a record before another repository takes the name.
#[tokio::test]
async fn name_of_many_renames_without_a_record_can_be_taken() {
    let setup = Setup::new().await;
    let server = setup.process();
    for number in 0..120 {
        let first = format!("repo{number}");
        create(&server, &first).await.unwrap();
        rename(&server, &first, "former").await.unwrap();
        rename(&server, "former", &format!("{first}-later")).await.unwrap();
    }
    for number in 0..120 {
        let repo = find(&setup, &format!("repo{number}-later")).await;
        assert!(setup.index.rename_hub_repo(HubRepo { name: format!("repo{number}-now"), ..repo }).await.unwrap());
    }
    let left = async || {
        let (kind, namespace) = (RepoKind::Model, "me".to_owned());
        setup.index.list_unrecorded_renames(kind, namespace, "former".to_owned(), false, 1000).await.unwrap().len()
    };
    assert_eq!(left().await, 120);
    create(&server, "former").await.unwrap();
    assert_eq!(left().await, 0);
    let expected = seen(&server).await;
    let rebuilt = rebuild(&setup).await.unwrap();
    assert_eq!((rebuilt.problems, seen(&setup.process_with(&rebuilt.index)).await), (Vec::new(), expected));
}
