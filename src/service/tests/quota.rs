//! Quotas, and which usage a client may see.

use std::collections::HashMap;

use super::*;
use crate::format::shard::Term;
use crate::format::{FileHash, merkle};
use crate::index::{Allowance, NewFile, RegisterIndex, Registered, Registration, UsageIndex};
use crate::service::access::{RepoScope, Scope};
use crate::service::{Change, HubError, Limits, Quantity, Quotas, RegisterError, UsageError};

fn files(count: u64) -> Limits {
    Limits { file_count: Some(count), ..Limits::default() }
}

/// Quotas of files: two for each repository, five for `acme/bert`, six for the owner `acme`, one
/// for `*`.
fn quotas() -> Quotas {
    let repos = HashMap::from([("acme/bert".to_owned(), files(5)), ("*".to_owned(), files(1))]);
    Quotas::new(files(2), repos, HashMap::from([("acme".to_owned(), files(6))]))
}

fn claims(scope: Scope, repo: &str) -> Claims {
    Claims { scope, repo: repo.parse().unwrap(), ..Claims::UNRESTRICTED }
}

/// A file that consists of the chunks of a xorb from `start` on.
fn file(xorb: &BuiltXorb, start: u32) -> NewFile {
    let (verified, layout) = (xorb.xorb(), xorb.xorb().layout());
    let places: Vec<_> = layout.chunks().skip(start as usize).collect();
    let hashes = &verified.chunk_hashes()[start as usize..];
    let hash: FileHash = merkle::file_hash(hashes.iter().zip(places.iter().map(|place| place.raw.byte_len())));
    let raw_len: u64 = places.iter().map(|place| place.raw.byte_len()).sum();
    let chunks = crate::format::ChunkRange::new(start, layout.chunk_count()).unwrap();
    let terms = vec![Term { xorb: verified.hash(), chunks, raw_len: u32::try_from(raw_len).unwrap() }];
    NewFile { hash, raw_len, terms, sha256: None }
}

#[tokio::test]
async fn dedup_owner_and_quota_owner_are_the_same() {
    let setup = Setup::new().await;
    let (server, xorb) = (setup.process(), xorb("bytes", Policy::Lz4));
    upload(&server, &xorb).await.unwrap();
    for repo in ["models/acme/bert", "acme/bert", "bert", "*/bert", "a//b", "a/", "/x", "ä/ö", "a/*"] {
        let scope: RepoScope = repo.parse().unwrap();
        let registration = Registration {
            repo: repo.to_owned(),
            files: vec![file(&xorb, 0)],
            xorbs: vec![xorb.xorb().hash()],
            dedup: Vec::new(),
            now: setup.clock.now(),
            allowance: Allowance::default(),
        };
        let owner = crate::service::scope::domain(&scope);
        let before = setup.index.owner_usage(owner.clone()).await.unwrap().file_count;
        assert_eq!(setup.index.register(&registration).await.unwrap(), Registered::New);
        assert_eq!(setup.index.owner_usage(owner).await.unwrap().file_count, before + 1, "{repo}");
    }
}

#[test]
fn own_limit_wins_and_all_repository_tokens_have_only_theirs() {
    let quotas = quotas();
    let owner = Some(("acme".to_owned(), files(6)));
    for (repo, limits, owner) in [
        ("acme/bert", files(5), owner.clone()),
        ("acme/gpt", files(2), owner.clone()),
        ("acme", files(2), owner),
        ("other/bert", files(2), None),
        ("*", files(1), None),
    ] {
        let allowance = quotas.allowance(&repo.parse().unwrap());
        assert_eq!((allowance.repo, allowance.owner), (limits, owner), "{repo}");
    }
    let quotas = Quotas::new(files(2), HashMap::new(), HashMap::new());
    assert!(quotas.allowance(&RepoScope::All).repo.is_unlimited());
}

#[tokio::test]
async fn usage_is_shown_to_its_owner_and_to_administrators() {
    let setup = Setup::new().await;
    let (server, xorb) = (setup.process_limited(quotas()), xorb("bytes", Policy::Lz4));
    upload(&server, &xorb).await.unwrap();
    for (repo, start) in [("acme/bert", 0), ("acme/bert", 1), ("acme/gpt", 1), ("other/x", 2)] {
        let registration = Registration {
            repo: repo.to_owned(),
            files: vec![file(&xorb, start)],
            xorbs: vec![xorb.xorb().hash()],
            dedup: Vec::new(),
            now: setup.clock.now(),
            allowance: server.quotas.allowance(&repo.parse().unwrap()),
        };
        assert_eq!(setup.index.register(&registration).await.unwrap(), Registered::New);
    }
    let len = xorb.bytes().len() as u64;
    let (bert, gpt, all) = (claims(Scope::Read, "acme/bert"), claims(Scope::Admin, "acme/gpt"), Claims::UNRESTRICTED);
    let named = |name: &str| Some(name.parse::<RepoScope>().unwrap());
    for (claims, repo) in [(&bert, None), (&bert, named("acme/bert")), (&all, named("acme/bert"))] {
        let page = server.usage(claims, repo, None, 10).await.unwrap();
        let [found] = &page.entries[..] else { panic!("{page:?}") };
        let owner = found.owner.as_ref().unwrap();
        assert_eq!((found.repo.name.as_str(), found.repo.limits, owner.limits), ("acme/bert", files(5), files(6)));
        assert_eq!((found.repo.usage.file_count, found.repo.usage.physical_len), (2, len), "a xorb counts once");
        assert_eq!(
            (owner.usage.file_count, owner.usage.physical_len),
            (3, 2 * len),
            "a xorb counts once for each repository"
        );
        assert!(!page.is_full);
    }
    let all_repos = claims(Scope::Write, "*");
    for (claims, repo) in [(&bert, "acme/gpt"), (&gpt, "acme/bert"), (&gpt, "*"), (&all_repos, "acme/bert")] {
        let refused = server.usage(claims, named(repo), None, 10).await;
        assert!(matches!(refused, Err(UsageError::Foreign)), "{repo}: {refused:?}");
    }
    let own = server.usage(&all_repos, None, None, 10).await.unwrap();
    assert_eq!((own.entries[0].repo.name.as_str(), own.entries[0].repo.usage.file_count), ("*", 0));
    let (mut names, mut after) = (Vec::new(), None);
    loop {
        let page = server.usage(&all, None, after, 1).await.unwrap();
        names.extend(page.entries.iter().map(|entry| (entry.repo.name.clone(), entry.owner.is_some())));
        after = names.last().map(|(name, _)| name.clone());
        if !page.is_full {
            break;
        }
    }
    let expected = [("acme/bert", true), ("acme/gpt", true), ("other/x", false)];
    assert_eq!(names, expected.map(|(name, has_owner)| (name.to_owned(), has_owner)));
}

#[test]
fn refusal_states_limit_usage_and_increase() {
    let over = crate::service::OverQuota {
        holder: "acme/*".to_owned(),
        quantity: Quantity::PhysicalBytes,
        limit: 100,
        used: 90,
        added: 11,
    };
    assert_eq!(over.to_string(), "acme/* uses 90 of 100 stored bytes, and this would add 11");
}

fn is_over(result: Result<(), HubError>) -> bool {
    match result {
        Ok(()) => false,
        Err(HubError::Register(RegisterError::OverQuota(over))) => over.quantity == Quantity::PhysicalBytes,
        Err(error) => panic!("{error:?}"),
    }
}

#[tokio::test]
async fn commit_beyond_the_stored_bytes_changes_nothing() {
    let setup = Setup::new().await;
    let server = setup.process();
    hub::create(&server, "repo").await.unwrap();
    hub::commit(&server, "repo", vec![hub::put("file")]).await.unwrap();
    let index = &setup.index;
    let used = async |of_owner: bool| {
        let usage = match of_owner {
            true => index.owner_usage("models/me".to_owned()).await,
            false => index.repo_usage("models/me/repo".to_owned()).await,
        };
        usage.unwrap().physical_len
    };
    for of_owner in [true, false] {
        let limit = used(of_owner).await + 3000;
        let limits = Limits { physical_len: Some(limit), ..Limits::default() };
        let quotas = match of_owner {
            false => Quotas::new(limits, HashMap::new(), HashMap::new()),
            true => Quotas::new(Limits::default(), HashMap::new(), HashMap::from([("models/me".to_owned(), limits)])),
        };
        let server = setup.process_limited(quotas);
        // A copy stores no contents, only a directory.
        let copy = |n: usize| {
            let (path, from) = (format!("{of_owner}{n}").parse().unwrap(), "file".parse().unwrap());
            vec![Change::Copy { path, from, revision: None }]
        };
        let mut count = 0;
        while !is_over(hub::commit(&server, "repo", copy(count)).await) {
            count += 1;
            assert!(count < 9, "no commit is refused");
        }
        assert_eq!(count, 2);
        assert!(used(of_owner).await <= limit);
        let (seen, records) = (hub::seen(&server).await, setup.record_seqs().await);
        let deletion = vec![Change::Delete { path: format!("{of_owner}0").parse().unwrap() }];
        assert!(is_over(hub::commit(&server, "repo", deletion).await));
        // Another repository of the owner.
        assert_eq!(is_over(hub::create(&server, "other").await), of_owner);
        if !of_owner {
            server.delete_hub_repo(&Claims::UNRESTRICTED, &hub::name("other")).await.unwrap();
        }
        assert_eq!(hub::seen(&server).await, seen);
        assert!(of_owner == (setup.record_seqs().await == records));
        // A squash makes the history shorter, and another one does not.
        let open = hub::open(&server, "repo").await.unwrap();
        assert!(!is_over(server.squash(&open, "main", None).await));
        assert!(is_over(server.squash(&open, "main", None).await));
    }
}
