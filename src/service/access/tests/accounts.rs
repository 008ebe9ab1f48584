//! Users and organizations in the key file, and what they mean for tokens.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;

use super::*;
use crate::runtime::clock::Timestamp;
use crate::service::access::{
    AccountError, AccountName, Accounts, MAX_ANCESTOR_COUNT, PublicRepo, RefreshToken, Role, TokenId,
    check_file_upload, check_refresh_token,
};

/// When the public repositories here were created.
const CREATED: Timestamp = Timestamp::from_millis(1_790_000_000_000);

fn name(text: &str) -> AccountName {
    text.parse().unwrap()
}

/// Alice, who writes acme and reads other, and Bob, who is in no organization and disabled.
fn accounts() -> Accounts {
    let mut accounts = Accounts::default();
    accounts.add_user(name("alice")).unwrap();
    accounts.add_user(name("Bob")).unwrap();
    accounts.add_organization(name("other")).unwrap();
    accounts.add_organization(name("acme")).unwrap();
    accounts.set_member(&name("other"), &name("alice"), Some(Role::Read)).unwrap();
    accounts.set_member(&name("ACME"), &name("Alice"), Some(Role::Write)).unwrap();
    accounts.set_enabled(&name("bob"), false).unwrap();
    accounts
}

/// A token of a user, as `zorb user token` issues it.
fn token_of(accounts: &Accounts, user: &str, now: u64) -> String {
    let claims = accounts.user(&name(user)).unwrap().claims(Scope::Write, now, 900);
    claims.issue(&ring()).expose().to_owned()
}

fn check(accounts: &Accounts, token: &str) -> Result<Claims, Refused> {
    check_token(&ring().with_accounts(accounts.clone()), token, NOW).map(|token| token.claims)
}

#[test]
fn accounts_are_the_same_after_the_key_file() {
    let ring = ring().with_accounts(accounts());
    let text = ring.to_file_text();
    let lines: Vec<_> = text.expose().lines().skip(1).collect();
    assert_eq!(
        lines,
        [
            "user alice 0 enabled",
            "user Bob 0 disabled",
            "organization acme",
            "organization other",
            "member acme alice write",
            "member other alice read",
        ]
    );
    assert_eq!(KeyRing::parse(text.expose()), Ok(ring.clone()));
    // Neither a rotation nor a revocation changes them.
    let changed = ring.rotated([7; 32]).unwrap().retaining(0).revoking(Token::new(claims(), 3).id).forgetting(NOW);
    assert_eq!(changed.accounts(), &accounts());
}

#[test]
fn malformed_line_of_an_account_makes_the_file_invalid() {
    let first = ring().to_file_text().expose().to_owned();
    let is_valid = |lines: &str| KeyRing::parse(&format!("{first}{lines}")).is_ok();
    let valid = "user alice 5 disabled\norganization acme\nmember acme alice write\n";
    assert!(is_valid(valid));
    for lines in [
        "user",
        "user alice",
        "user alice 5",
        "user alice 5 on",
        "user alice +5 enabled",
        "user alice -5 enabled",
        "user alice 99999999999999999999 enabled",
        "user alice  5 enabled",
        "user a/b 5 enabled",
        "user api 5 enabled",
        "user @alice 5 enabled",
        "user alice 5 enabled\nuser ALICE 5 enabled",
        "user alice 5 enabled\norganization alice",
        "organization",
        "organization acme inc",
        "organization acme\norganization acme",
        "organization acme\nmember acme alice write",
        "user alice 5 enabled\nmember acme alice write",
        "member acme alice write\nuser alice 5 enabled\norganization acme",
        "users alice 5 enabled",
        "user alice 5 enabled\norganization acme\nmember acme alice write\nmember ACME Alice read",
    ] {
        assert!(!is_valid(lines), "{lines:?}");
    }
    for role in ["", " ", " admin", " Write", " write write"] {
        assert!(!is_valid(&format!("user alice 5 enabled\norganization acme\nmember acme alice{role}")), "{role:?}");
    }
}

#[test]
fn users_and_organizations_share_one_space_of_names() {
    let mut accounts = accounts();
    for taken in ["alice", "ALICE", "bob", "acme", "Acme"] {
        let exists = Err(AccountError::Exists(name(taken)));
        assert_eq!(accounts.add_user(name(taken)), exists, "{taken}");
        assert_eq!(accounts.add_organization(name(taken)), exists, "{taken}");
    }
    let absent = name("absent");
    assert_eq!(accounts.set_member(&name("acme"), &absent, None), Err(AccountError::NoUser(absent.clone())));
    assert_eq!(
        accounts.set_member(&name("alice"), &name("bob"), Some(Role::Read)),
        Err(AccountError::NoOrganization(name("alice")))
    );
    assert_eq!(accounts.revoke_tokens(&absent, NOW), Err(AccountError::NoUser(absent.clone())));
    assert_eq!(accounts.set_enabled(&absent, true), Err(AccountError::NoUser(absent)));
    assert_eq!(accounts, super::accounts::accounts(), "a refusal changes nothing");
}

#[test]
fn token_of_a_user_has_the_roles_of_the_moment() {
    let mut accounts = accounts();
    let token = token_of(&accounts, "alice", NOW);
    let role = |accounts: &Accounts, repo: &str| {
        let RepoScope::Account(account) = check(accounts, &token).unwrap().repo else { panic!("not of a user") };
        account.role_for(repo)
    };
    assert_eq!(role(&accounts, "models/alice/x"), Some(Role::Write));
    assert_eq!(role(&accounts, "models/ALICE/x"), Some(Role::Write));
    assert_eq!(role(&accounts, "datasets/acme/x"), Some(Role::Write));
    assert_eq!(role(&accounts, "models/other/x"), Some(Role::Read));
    for foreign in
        ["models/bob/x", "models/alic/x", "models/alice2/x", "models/alice", "alice/x", "alice", "x/y/alice/x"]
    {
        assert_eq!(role(&accounts, foreign), None, "{foreign}");
    }
    accounts.set_member(&name("acme"), &name("alice"), Some(Role::Read)).unwrap();
    accounts.set_member(&name("other"), &name("alice"), None).unwrap();
    assert_eq!(role(&accounts, "datasets/acme/x"), Some(Role::Read));
    assert_eq!(role(&accounts, "models/other/x"), None);
    // Without a check it permits nothing.
    let (_, inspected) = inspect_token(&ring(), &token).unwrap();
    let RepoScope::Account(account) = &inspected.claims.repo else { panic!("not of a user") };
    assert_eq!(account.role_for("models/alice/x"), None);
    assert!(!account.creates_in("alice"));
    assert_eq!(inspected.claims.subject.map(|subject| subject.to_string()), Some("alice".to_owned()));
}

#[test]
fn only_the_exact_name_of_a_namespace_is_created_in() {
    let accounts = accounts();
    let RepoScope::Account(account) = check(&accounts, &token_of(&accounts, "alice", NOW)).unwrap().repo else {
        panic!("not of a user")
    };
    assert!(account.creates_in("alice") && account.creates_in("acme"));
    for other in ["Alice", "ACME", "other", "bob", ""] {
        assert!(!account.creates_in(other), "{other}");
    }
}

#[test]
fn tokens_of_unknown_and_disabled_users_are_refused() {
    let mut accounts = accounts();
    let (alice, bob) = (token_of(&accounts, "alice", NOW), token_of(&accounts, "bob", NOW));
    assert_eq!(refused(check(&Accounts::default(), &alice)), Reason::Account);
    assert_eq!(refused(check(&accounts, &bob)), Reason::Account);
    accounts.set_enabled(&name("bob"), true).unwrap();
    assert!(check(&accounts, &bob).is_ok());
    // An organization has no tokens.
    let mut others = Accounts::default();
    others.add_user(name("acme")).unwrap();
    assert_eq!(refused(check(&accounts, &token_of(&others, "acme", NOW))), Reason::Account);
}

#[test]
fn revocation_ends_all_tokens_until_then_and_none_after() {
    let mut accounts = accounts();
    let before = token_of(&accounts, "alice", NOW);
    accounts.revoke_tokens(&name("alice"), NOW).unwrap();
    assert_eq!(refused(check(&accounts, &before)), Reason::Account);
    // In the same second, and with a clock that was set back.
    let after = token_of(&accounts, "alice", NOW);
    assert!(check(&accounts, &after).is_ok());
    accounts.revoke_tokens(&name("alice"), NOW - 100).unwrap();
    assert_eq!(refused(check(&accounts, &after)), Reason::Account);
    assert!(check(&accounts, &token_of(&accounts, "alice", NOW)).is_ok());
}

#[test]
fn other_tokens_with_a_user_as_subject_end_with_the_user() {
    let mut accounts = accounts();
    // Its subject is alice.
    let claims = claims();
    let token = claims.issue(&ring());
    let file = (&crate::format::shard::Sha256::from_digest([7; 32]), 5);
    let url = Token::new(claims.clone(), NUMBER).sign_file_upload(&ring(), file, LATER);
    let refresh = RefreshToken::new(claims.clone(), 60, NUMBER).issue(&ring());
    let all = |accounts: &Accounts| {
        let ring = ring().with_accounts(accounts.clone());
        [
            check_token(&ring, token.expose(), NOW).map(|token| token.claims),
            check_file_upload(&ring, url.expose(), file, NOW).map(|token| token.claims),
            check_refresh_token(&ring, refresh.expose(), NOW).map(|token| token.claims),
        ]
    };
    let expected = || Ok(claims.clone());
    assert_eq!(all(&Accounts::default()), [expected(), expected(), expected()], "a subject need not be a user");
    assert_eq!(all(&accounts), [expected(), expected(), expected()]);
    // With the user, if it is for a repository that the user may write.
    let user = accounts.user(&name("alice")).unwrap().account().clone();
    for (repo, of) in [("models/acme/repo", Some(&user)), ("spaces/alice/x", Some(&user)), ("models/bob/x", None)] {
        let issued = Claims { repo: RepoScope::One(repo.parse().unwrap()), ..claims.clone() };
        let admitted = Claims { user: of.cloned(), ..issued.clone() };
        assert_eq!(check(&accounts, issued.issue(&ring()).expose()), Ok(admitted), "{repo}");
    }
    let owners = ["models/alice", "datasets/alice", "spaces/alice", "models/acme", "datasets/acme", "spaces/acme"];
    assert_eq!(user.written_owners().collect::<Vec<_>>(), owners);
    accounts.revoke_tokens(&name("alice"), NOW).unwrap();
    assert_eq!(all(&accounts).map(refused), [Reason::Account; 3]);
    let later = Claims { issued_unix_secs: NOW + 1, ..claims };
    assert!(check(&accounts, later.issue(&ring()).expose()).is_ok());
    accounts.set_enabled(&name("alice"), false).unwrap();
    assert_eq!(refused(check(&accounts, later.issue(&ring()).expose())), Reason::Account);
}

/// The server makes tokens for other tokens. In the second after a revocation its own clock may be
/// ahead, or its keys those of before.
#[test]
fn revocation_includes_tokens_that_were_made_for_a_token() {
    let mut accounts = accounts();
    let refresh = RefreshToken::new(claims(), 60, NUMBER);
    accounts.revoke_tokens(&name("alice"), NOW).unwrap();
    for later in [0, 1, 100] {
        let made = refresh.make(NOW + later, 5).issue(&ring());
        assert_eq!(refused(check(&accounts, made.expose())), Reason::Account, "{later}");
    }
}

#[test]
fn case_of_a_subject_makes_no_difference() {
    let accounts = accounts();
    for subject in ["Bob", "bob", "BOB"] {
        let token = Claims { subject: Some(subject.parse().unwrap()), ..claims() }.issue(&ring());
        assert_eq!(refused(check(&accounts, token.expose())), Reason::Account, "{subject}");
    }
}

#[test]
fn public_repository_is_its_own_owner_and_survives_its_token() {
    let repo: Repo = "models/ns/repo".parse().unwrap();
    let public = RepoScope::Public(PublicRepo::new(repo.clone(), CREATED));
    assert_eq!(public.to_string(), "@models/ns/repo");
    // A later one of the name is another one.
    assert_ne!(public, RepoScope::Public(PublicRepo::new(repo.clone(), Timestamp::from_millis(0))));
    assert!(public.covers(&repo) && !public.covers(&"models/ns/other".parse().unwrap()));
    let issued = Claims { repo: public.clone(), ..claims() };
    assert_eq!(check_token(&ring(), issued.issue(&ring()).expose(), NOW).map(|token| token.claims), Ok(issued.clone()));
    // One user is one tenant, however many of them he reads.
    let other = RepoScope::Public(PublicRepo::new("models/other/repo".parse().unwrap(), CREATED));
    assert_ne!(public.owner(), other.owner());
    assert_eq!(issued.tenant(), Claims { repo: other, ..claims() }.tenant());
    assert_ne!(issued.tenant(), claims().tenant());
}

/// The storage name tells of other repositories that had the name.
#[test]
fn token_for_a_public_repository_does_not_show_which() {
    let claims = |storage_name: &str| {
        let repo = RepoScope::Public(PublicRepo::new(storage_name.parse().unwrap(), CREATED));
        Claims { scope: Scope::Read, repo, ..claims() }
    };
    let longest = format!("models/{}/{}~1000", "n".repeat(96), "r".repeat(96));
    let mut texts = Vec::new();
    for storage_name in ["models/acme/bert", "models/acme/bert~2", &longest] {
        let subject = if storage_name == longest { "s".repeat(255) } else { "alice".to_owned() };
        let claims = Claims { subject: Some(subject.parse().unwrap()), ..claims(storage_name) };
        let mut token = Token::new(claims, 7);
        for ancestor in 0..MAX_ANCESTOR_COUNT as u64 {
            token.ancestors.push(TokenId::new(ancestor, LATER));
        }
        let text = token.issue(&ring());
        assert_eq!(check_token(&ring(), text.expose(), NOW), Ok(token));
        texts.push(text.expose().to_owned());
    }
    for text in &texts {
        assert_eq!(text.len(), texts[0].len());
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(text.strip_prefix("zorb_").unwrap()).unwrap();
        for shown in [&b"acme"[..], b"bert", b"nnnn", b"~2", b"ssss", b"alice", &LATER.to_le_bytes()] {
            assert!(!bytes.windows(shown.len()).any(|window| window == shown), "{shown:?}");
        }
    }
}

#[test]
fn user_is_one_tenant_with_every_token_for_own_and_public_files() {
    let accounts = accounts();
    let own = accounts.user(&"alice".parse().unwrap()).unwrap().claims(Scope::Write, NOW, 60);
    let public = RepoScope::Public(PublicRepo::new("models/other/repo".parse().unwrap(), CREATED));
    let issued = ["models/alice/x", "datasets/alice/y", "spaces/Alice/z"].map(|repo| repo.parse().unwrap());
    for repo in issued.into_iter().chain([public]) {
        assert_eq!(Claims { repo: repo.clone(), ..own.clone() }.tenant(), own.tenant(), "{repo}");
    }
    let of_organization = Claims { repo: "models/acme/x".parse().unwrap(), ..own.clone() };
    assert_ne!(of_organization.tenant(), own.tenant());
}

/// What a token of an earlier version has as its repository can be no user and no public one.
#[test]
fn name_of_a_repository_stays_one_whatever_it_looks_like() {
    for text in ["@alice", "@models/ns/repo", "@"] {
        let scope: RepoScope = text.parse().unwrap();
        assert!(matches!(scope, RepoScope::One(_)), "{text}");
        let issued = Claims { repo: scope, ..claims() };
        let checked = check(&accounts(), issued.issue(&ring()).expose());
        assert_eq!(checked.map(|claims| claims.repo), Ok(issued.repo), "{text}");
    }
    for text in [" alice", " models/ns/repo"] {
        assert!(text.parse::<RepoScope>().is_err(), "{text}");
    }
}
