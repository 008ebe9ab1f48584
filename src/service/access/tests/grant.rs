//! Grants, which are two texts.

use super::{LATER, NOW, altered, claims, ranges, refused, ring, url, xorb};
use crate::service::access::{
    Claims, GRACE_SECS, Grant, GrantRequest, IssuedGrant, Reason, RepoScope, SecretText, check_data_url, check_grant,
    check_granted_upload, check_token,
};

fn issued(claims: &Claims) -> IssuedGrant {
    let request = GrantRequest {
        claims,
        xorb: xorb(1),
        body_len: 300_048,
        crc64nvme: 668_303_702_102_526_178,
        expires_unix_secs: LATER,
        nonce: [5; 16],
    };
    request.issue(&ring())
}

fn grant_id(claims: &Claims) -> SecretText {
    issued(claims).id
}

fn grant() -> Grant {
    check_grant(&ring(), grant_id(&claims()).expose(), &xorb(1), NOW).unwrap()
}

#[test]
fn a_grant_says_what_may_be_sent_and_which_one_it_is() {
    let grant = grant();
    assert_eq!((grant.body_len, grant.crc64nvme), (300_048, 668_303_702_102_526_178));
    assert_eq!((grant.nonce, grant.expires_unix_secs), ([5; 16], LATER));
    assert_eq!(grant.tenant(), claims().tenant());
}

#[test]
fn a_grant_id_is_safe_as_one_segment_of_a_path() {
    let id = grant_id(&claims());
    assert!(id.expose().bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)));
    assert!(id.expose().len() < 200, "{}", id.expose().len());
}

#[test]
fn a_grant_is_of_no_use_for_another_xorb_or_after_its_time() {
    let id = grant_id(&claims());
    let check = |byte, now| check_grant(&ring(), id.expose(), &xorb(byte), now);
    assert_eq!(refused(check(2, NOW)), Reason::Signature);
    assert!(check(1, LATER + GRACE_SECS).is_ok());
    assert_eq!(refused(check(1, LATER + GRACE_SECS + 1)), Reason::Expired);
}

/// A refreshed token works, too.
#[test]
fn grant_belongs_to_its_repository_and_subject() {
    let refreshed = Claims { issued_unix_secs: NOW + 500, expires_unix_secs: LATER + 500, ..claims() };
    assert_eq!(grant().check_owner(&refreshed), Ok(()));
    let others = [
        Claims { repo: RepoScope::All, ..claims() },
        Claims { repo: RepoScope::One("models/ns/other".parse().unwrap()), ..claims() },
        Claims { subject: None, ..claims() },
        Claims { subject: Some("mallory".parse().unwrap()), ..claims() },
    ];
    for other in others {
        assert_eq!(refused(grant().check_owner(&other)), Reason::Owner, "{other:?}");
    }
}

#[test]
fn every_grant_id_that_is_altered_anywhere_is_refused() {
    for text in altered(grant_id(&claims()).expose()) {
        assert!(check_grant(&ring(), &text, &xorb(1), NOW).is_err(), "{text}");
    }
}

#[test]
fn grant_id_and_upload_text_do_not_replace_each_other() {
    let IssuedGrant { id, upload } = issued(&claims());
    assert_eq!(check_granted_upload(&ring(), upload.expose(), &xorb(1), NOW), Ok(grant()));
    assert_eq!(refused(check_granted_upload(&ring(), id.expose(), &xorb(1), NOW)), Reason::Signature);
    assert_eq!(refused(check_grant(&ring(), upload.expose(), &xorb(1), NOW)), Reason::Signature);
    assert_eq!(refused(check_granted_upload(&ring(), upload.expose(), &xorb(2), NOW)), Reason::Signature);
    let late = LATER + GRACE_SECS + 1;
    assert_eq!(refused(check_granted_upload(&ring(), upload.expose(), &xorb(1), late)), Reason::Expired);
    for text in altered(upload.expose()) {
        assert!(check_granted_upload(&ring(), &text, &xorb(1), NOW).is_err(), "{text}");
    }
}

#[test]
fn a_grant_is_no_token_and_no_data_url() {
    let id = grant_id(&claims());
    assert!(check_token(&ring(), &format!("zorb_{}", id.expose()), NOW).is_err());
    assert!(check_data_url(&ring(), &xorb(1), id.expose(), &ranges(&[(0, 100)]), NOW).is_err());
    assert!(check_grant(&ring(), url(&[(0, 100)]).expose(), &xorb(1), NOW).is_err());
}
