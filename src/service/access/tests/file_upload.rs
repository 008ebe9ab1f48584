//! Signatures of upload URLs.

use super::{LATER, NOW, NUMBER, altered, claims, refused, ring, xorb};
use crate::format::shard::Sha256;
use crate::service::access::{
    GRACE_SECS, KeyRing, Reason, Token, TokenId, check_file_upload, check_granted_upload, check_token,
};

const LEN: u64 = 5_000_000_000;

fn file(byte: u8) -> Sha256 {
    Sha256::from_digest([byte; 32])
}

fn token() -> Token {
    Token { ancestors: vec![TokenId::new(7, LATER + 500)], ..Token::new(claims(), NUMBER) }
}

fn signature(ring: &KeyRing) -> String {
    token().sign_file_upload(ring, (&file(1), LEN), LATER + 3600).expose().to_owned()
}

#[test]
fn upload_url_is_for_one_file_and_names_its_token() {
    let (ring, text) = (ring(), signature(&ring()));
    let check = |byte, len, now| check_file_upload(&ring, &text, (&file(byte), len), now);
    assert_eq!(check(1, LEN, NOW), Ok(token()));
    assert_eq!(refused(check(2, LEN, NOW)), Reason::Signature);
    assert_eq!(refused(check(1, LEN + 1, NOW)), Reason::Signature);
    assert!(check(1, LEN, LATER + GRACE_SECS).is_ok());
    assert_eq!(refused(check(1, LEN, LATER + GRACE_SECS + 1)), Reason::Expired, "with its token");
    let text = token().sign_file_upload(&ring, (&file(1), LEN), NOW + 60);
    let check = |now| check_file_upload(&ring, text.expose(), (&file(1), LEN), now);
    assert!(check(NOW + 60 + GRACE_SECS).is_ok());
    assert_eq!(refused(check(NOW + 61 + GRACE_SECS)), Reason::Expired, "before its token");
}

#[test]
fn upload_url_is_revoked_with_the_token_that_asked_for_it() {
    let text = signature(&ring());
    for id in [TokenId::new(7, LATER + 500), token().id] {
        let ring = ring().revoking(id);
        assert_eq!(refused(check_file_upload(&ring, &text, (&file(1), LEN), NOW)), Reason::Revoked);
    }
}

#[test]
fn every_altered_upload_url_is_refused() {
    for text in altered(&signature(&ring())) {
        assert!(check_file_upload(&ring(), &text, (&file(1), LEN), NOW).is_err(), "{text}");
    }
}

/// It has the payload of a token, but another purpose.
#[test]
fn upload_url_is_no_token_and_no_grant() {
    let text = signature(&ring());
    assert_eq!(refused(check_token(&ring(), &format!("zorb_{text}"), NOW)), Reason::Signature);
    assert_eq!(refused(check_granted_upload(&ring(), &text, &xorb(1), NOW)), Reason::Signature);
    let issued = token().issue(&ring());
    let issued = issued.expose().strip_prefix("zorb_").unwrap();
    assert_eq!(refused(check_file_upload(&ring(), issued, (&file(1), LEN), NOW)), Reason::Signature);
}
