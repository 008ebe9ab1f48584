//! Ids, revocations and refresh tokens.

use super::super::seal::{Purpose, seal};
use super::super::{
    Claims, GRACE_SECS, KeyRing, KeyRingError, MAX_ANCESTOR_COUNT, Reason, RefreshToken, Scope, Token, TokenId,
    check_refresh_token, check_token, inspect_token,
};
use super::{LATER, NOW, NUMBER, altered, claims, refused, ring};

fn refresh_token() -> RefreshToken {
    RefreshToken::new(claims(), 600, NUMBER)
}

#[test]
fn an_id_is_read_back_and_a_mistyped_one_is_refused() {
    for (number, expiry) in [(0, 0), (NUMBER, NOW), (u64::MAX, u64::MAX)] {
        let id = TokenId::new(number, expiry);
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(id.to_string().to_uppercase().parse(), Ok(id));
    }
    let text = TokenId::new(NUMBER, NOW).to_string();
    assert_eq!(text.len(), 28);
    let (mut count, mut taken) = (0, 0);
    for (at, digit) in text.char_indices() {
        for other in "0123456789abcdef".chars().filter(|other| *other != digit) {
            count += 1;
            taken += usize::from(format!("{}{other}{}", &text[..at], &text[at + 1..]).parse::<TokenId>().is_ok());
        }
    }
    assert!(taken * 50 < count, "{taken} of {count} mistakes were not seen");
    for wrong in ["", "0", &text[1..], &format!("{text}0"), &format!("+{}", &text[1..]), "zorb_AA", &"é".repeat(14)] {
        assert!(wrong.parse::<TokenId>().is_err(), "{wrong}");
    }
}

#[test]
fn a_revoked_token_is_refused_and_no_other_one() {
    let (one, other) = (Token::new(claims(), 1), Token::new(claims(), 2));
    let texts = [one.issue(&ring()), other.issue(&ring())];
    let revoked = ring().revoking(one.id);
    assert_eq!(refused(check_token(&revoked, texts[0].expose(), NOW)), Reason::Revoked);
    assert_eq!(check_token(&revoked, texts[1].expose(), NOW), Ok(other));
    assert!(inspect_token(&revoked, texts[0].expose()).is_ok());
}

#[test]
fn token_ends_with_each_of_its_ancestors() {
    let ids: Vec<TokenId> = (10..10 + MAX_ANCESTOR_COUNT as u64).map(|number| TokenId::new(number, LATER)).collect();
    let token = Token { ancestors: ids.clone(), ..Token::new(claims(), 1) };
    let text = token.issue(&ring());
    assert_eq!(check_token(&ring(), text.expose(), NOW), Ok(token.clone()));
    for id in &ids {
        assert_eq!(refused(check_token(&ring().revoking(*id), text.expose(), NOW)), Reason::Revoked, "{id}");
    }
    let many = Token { ancestors: [&ids[..], &ids[..1]].concat(), ..token };
    assert_eq!(refused(check_token(&ring(), many.issue(&ring()).expose(), NOW)), Reason::Malformed);
}

#[test]
fn a_token_of_an_older_version_has_an_id_that_can_be_revoked() {
    let text = format!("zorb_{}", seal(&ring(), Purpose::Token, &[], &claims().to_payload()).expose());
    let token = check_token(&ring(), &text, NOW).unwrap();
    assert_eq!((token.claims.clone(), token.parent(), token.id.expires_unix_secs()), (claims(), None, LATER));
    assert_eq!(refused(check_token(&ring().revoking(token.id), &text, NOW)), Reason::Revoked);
    // Another such token has another id, so it stays valid.
    let others = Claims { issued_unix_secs: NOW - 1, ..claims() };
    let other = format!("zorb_{}", seal(&ring(), Purpose::Token, &[], &others.to_payload()).expose());
    assert_eq!(check_token(&ring().revoking(token.id), &other, NOW).map(|token| token.claims), Ok(others));
}

#[test]
fn revocations_survive_the_file_rotations_and_nothing_but_time() {
    let (id, later) = (Token::new(claims(), 1).id, TokenId::new(2, LATER + 1));
    let before = ring().revoking(id).revoking(later).revoking(id);
    let after = KeyRing::parse(before.to_file_text().expose()).unwrap();
    assert_eq!((&after, after.revoked_count()), (&before, 2));
    let rotated = after.rotated([3; 32]).unwrap().retaining(0);
    assert!(rotated.is_revoked(id) && rotated.is_revoked(later));
    let month = 30 * 24 * 3600;
    assert_eq!(after.forgetting(LATER + GRACE_SECS), after, "a clock that is ahead by days forgets nothing");
    let fewer = after.forgetting(LATER + month + 1);
    assert!(!fewer.is_revoked(id) && fewer.is_revoked(later));
}

#[test]
fn a_line_that_revokes_nothing_makes_the_key_file_invalid() {
    let text = ring().to_file_text().expose().to_owned();
    for line in ["revoked", "revoked ", "revoked 12", "revoked 0123456789abcdef0123456789ab", "Revoked x"] {
        assert_eq!(KeyRing::parse(&format!("{text}{line}\n")), Err(KeyRingError::Line { line: 2 }), "{line}");
    }
    let revoked = format!("revoked {}\n", Token::new(claims(), 1).id);
    assert!(KeyRing::parse(&format!("{revoked}{text}")).is_ok());
    assert_eq!(KeyRing::parse(&revoked), Err(KeyRingError::Empty));
}

#[test]
fn refresh_token_makes_tokens_of_its_repo_scope_and_subject() {
    let text = refresh_token().issue(&ring());
    let refresh = check_refresh_token(&ring(), text.expose(), NOW + 1).unwrap();
    assert_eq!(refresh, refresh_token());
    let token = refresh.make(NOW + 100, 5);
    let expected = Claims { expires_unix_secs: NOW + 700, ..claims() };
    assert_eq!((&token.claims, token.parent()), (&expected, Some(refresh.id)));
    assert_eq!(check_token(&ring(), token.issue(&ring()).expose(), NOW + 100), Ok(token));
}

#[test]
fn no_token_outlives_the_refresh_token_that_made_it() {
    for now in [LATER - 599, LATER, LATER + GRACE_SECS, u64::MAX] {
        assert_eq!(refresh_token().make(now, 5).claims.expires_unix_secs, LATER);
    }
    let text = refresh_token().issue(&ring());
    assert_eq!(refused(check_refresh_token(&ring(), text.expose(), LATER + GRACE_SECS + 1)), Reason::Expired);
}

#[test]
fn a_refresh_token_opens_nothing_and_a_token_makes_none() {
    let (refresh, token) = (refresh_token().issue(&ring()), claims().issue(&ring()));
    assert!(check_token(&ring(), refresh.expose(), NOW).is_err());
    assert!(check_refresh_token(&ring(), token.expose(), NOW).is_err());
    let bare = refresh.expose().strip_prefix("zorb_refresh_").unwrap();
    assert_eq!(refused(check_token(&ring(), &format!("zorb_{bare}"), NOW)), Reason::Signature);
    let bare = token.expose().strip_prefix("zorb_").unwrap();
    assert_eq!(refused(check_refresh_token(&ring(), &format!("zorb_refresh_{bare}"), NOW)), Reason::Signature);
    for text in altered(refresh.expose()) {
        assert!(check_refresh_token(&ring(), &text, NOW).is_err(), "{text}");
    }
}

#[test]
fn who_revokes_a_refresh_token_revokes_what_it_has_made() {
    let refresh = RefreshToken::new(Claims { scope: Scope::Read, ..claims() }, 600, 1);
    let (made, other) = (refresh.make(NOW, 2), refresh_token().make(NOW, 3));
    let revoked = ring().revoking(refresh.id);
    assert_eq!(refused(check_token(&revoked, made.issue(&ring()).expose(), NOW)), Reason::Revoked);
    assert_eq!(refused(check_refresh_token(&revoked, refresh.issue(&ring()).expose(), NOW)), Reason::Revoked);
    assert_eq!(check_token(&revoked, other.issue(&ring()).expose(), NOW), Ok(other));
    let revoked = ring().revoking(made.id);
    assert_eq!(refused(check_token(&revoked, made.issue(&ring()).expose(), NOW)), Reason::Revoked);
    assert!(check_refresh_token(&revoked, refresh.issue(&ring()).expose(), NOW).is_ok(), "it makes others");
}
