mod accounts;
mod file_upload;
mod grant;
mod revoke;

use std::collections::HashSet;

use super::seal::{Purpose, open, seal};
use super::{
    Claims, DataUrl, GRACE_SECS, KeyId, KeyRing, KeyRingError, MAX_URL_RANGE_COUNT, NameError, Permitted, Reason,
    Refused, Repo, RepoScope, Scope, SecretText, Subject, Token, check_data_url, check_token, inspect_token,
};
use crate::format::{ByteRange, XorbHash};
use crate::runtime::fair::Tenant;
use crate::runtime::incarnation::Incarnation;

const NOW: u64 = 1_800_000_000;
const LATER: u64 = NOW + 900;

/// Recognizable text, which tests search for in output that must not contain the secret.
const SECRET: [u8; 32] = *b"this-is-the-secret-of-key-one!!!";

fn ring() -> KeyRing {
    KeyRing::new(SECRET)
}

/// The number of every token in tests that are not about numbers.
const NUMBER: u64 = 0x0123_4567_89ab_cdef;

impl Claims {
    /// The token with these claims.
    fn issue(&self, ring: &KeyRing) -> SecretText {
        Token::new(self.clone(), NUMBER).issue(ring)
    }
}

fn claims() -> Claims {
    Claims {
        scope: Scope::Write,
        repo: RepoScope::One("models/ns/repo".parse().unwrap()),
        subject: Some("alice".parse().unwrap()),
        issued_unix_secs: NOW,
        expires_unix_secs: LATER,
        user: None,
    }
}

fn xorb(byte: u8) -> XorbHash {
    XorbHash::from_bytes([byte; 32])
}

fn ranges(ranges: &[(u64, u64)]) -> Vec<ByteRange> {
    ranges.iter().map(|(start, end)| ByteRange::new(*start, *end).unwrap()).collect()
}

fn refused<T>(outcome: Result<T, Refused>) -> Reason {
    outcome.err().unwrap().reason()
}

/// Every text that differs from this one in one place: one character replaced, added or removed.
fn altered(text: &str) -> Vec<String> {
    let mut all = Vec::new();
    for (index, character) in text.char_indices() {
        let (before, after) = (&text[..index], &text[index + character.len_utf8()..]);
        all.push(format!("{before}{after}"));
        all.push(format!("{before}{character}{character}{after}"));
        for other in "ABYZabyz0189-_+/=. ~\u{e9}".chars().filter(|other| *other != character) {
            all.push(format!("{before}{other}{after}"));
        }
    }
    all
}

#[test]
fn a_token_says_what_it_was_issued_for() {
    for scope in [Scope::Read, Scope::Write, Scope::Admin] {
        for repo in [RepoScope::All, claims().repo] {
            for subject in [None, claims().subject] {
                let claims = Claims { scope, repo: repo.clone(), subject, ..claims() };
                let token = claims.issue(&ring());
                let expected = Token::new(claims, NUMBER);
                assert_eq!(check_token(&ring(), token.expose(), NOW), Ok(expected.clone()));
                assert_eq!(inspect_token(&ring(), token.expose()), Ok((KeyId::new(1), expected)));
            }
        }
    }
}

#[test]
fn token_is_safe_in_urls_and_headers_and_easy_to_scan_for() {
    let token = claims().issue(&ring());
    assert!(token.expose().starts_with("zorb_"));
    assert!(token.expose().bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)));
}

#[test]
fn a_token_is_accepted_until_60_seconds_after_its_expiry() {
    let token = claims().issue(&ring());
    let check = |now| check_token(&ring(), token.expose(), now);
    assert!(check(0).is_ok() && check(LATER).is_ok() && check(LATER + GRACE_SECS).is_ok());
    assert_eq!(refused(check(LATER + GRACE_SECS + 1)), Reason::Expired);
    assert_eq!(refused(check(u64::MAX)), Reason::Expired);
    assert!(inspect_token(&ring(), token.expose()).is_ok());
}

#[test]
fn a_token_without_end_does_not_wrap_into_the_past() {
    let forever = Claims { expires_unix_secs: u64::MAX, ..claims() };
    assert!(check_token(&ring(), forever.issue(&ring()).expose(), NOW).is_ok());
}

#[test]
fn every_token_that_is_altered_anywhere_is_refused() {
    for token in altered(claims().issue(&ring()).expose()) {
        assert!(check_token(&ring(), &token, NOW).is_err(), "{token}");
    }
}

#[test]
fn texts_that_are_no_tokens_are_refused() {
    for text in ["", "zorb_", "zorb_AA", "zorb_ ", "Bearer", "hf_abcdef", "zorb_=", "\u{0}", "zorb_\u{1F980}"] {
        assert_eq!(refused(check_token(&ring(), text, NOW)), Reason::Malformed, "{text}");
    }
    assert_eq!(refused(check_token(&ring(), &format!("zorb_{}", "A".repeat(1 << 20)), NOW)), Reason::Malformed);
}

#[test]
fn every_refusal_has_the_same_message() {
    let reasons = [Reason::Malformed, Reason::UnknownKey, Reason::Signature, Reason::Expired, Reason::Revoked];
    let texts: HashSet<String> = reasons.map(|reason| Refused::from(reason).to_string()).into();
    assert_eq!(texts.len(), 1);
    let names: HashSet<_> =
        [reasons.to_vec(), vec![Reason::Ranges, Reason::Owner]].concat().iter().map(|r| r.name()).collect();
    assert_eq!(names.len(), 7, "yet metrics tell them apart");
}

#[test]
fn a_token_of_another_server_is_refused_by_its_signature() {
    let other = KeyRing::new([9; 32]);
    assert_eq!(refused(check_token(&ring(), claims().issue(&other).expose(), NOW)), Reason::Signature);
}

#[test]
fn each_scope_includes_those_below_it_and_none_above() {
    let allow = |scope, needed| Claims { scope, ..claims() }.allow(needed);
    let scopes = [Scope::Read, Scope::Write, Scope::Admin];
    for (index, scope) in scopes.iter().enumerate() {
        for (needed_index, needed) in scopes.iter().enumerate() {
            assert_eq!(allow(*scope, *needed), needed_index <= index, "{scope} {needed}");
        }
    }
}

#[test]
fn a_repository_is_covered_by_its_own_name_and_by_all() {
    let repo: Repo = "models/ns/repo".parse().unwrap();
    let covers = |scope: &str| scope.parse::<RepoScope>().unwrap().covers(&repo);
    assert!(covers("*") && covers("models/ns/repo"));
    for other in ["models/ns", "models/ns/repo2", "models/ns/rep", "Models/ns/repo", "**", "models/*"] {
        assert!(!covers(other), "{other}");
    }
}

#[test]
fn namespace_covers_its_repositories_and_survives_its_token() {
    let repo: Repo = "models/ns/repo".parse().unwrap();
    for scope in ["models/ns/*", "*/ns/*"] {
        let scope: RepoScope = scope.parse().unwrap();
        assert!(matches!(scope, RepoScope::Namespace(_)) && scope.covers(&repo), "{scope}");
        for other in ["models/ns", "models/ns/", "models/nsx/repo", "models/NS/repo", "ns/repo", "x/models/ns/repo"] {
            assert!(!scope.covers(&other.parse().unwrap()), "{scope} {other}");
        }
        let issued = Claims { repo: scope, ..claims() };
        assert_eq!(check_token(&ring(), issued.issue(&ring()).expose(), NOW).map(|token| token.claims), Ok(issued));
    }
    let covers = |scope: &str, repo: &str| scope.parse::<RepoScope>().unwrap().covers(&repo.parse().unwrap());
    assert!(covers("*/ns/*", "datasets/ns/repo") && !covers("models/ns/*", "datasets/ns/repo"));
    for one in ["ns/*", "/ns/*", "a//*", "*/*/*", "a/*/*", "a*/ns/*", "a/b/c/*", "models/ns/*x"] {
        assert!(matches!(one.parse().unwrap(), RepoScope::One(_)), "{one}");
    }
}

#[test]
fn names_have_1_to_255_bytes_without_spaces_or_controls() {
    assert_eq!("".parse::<Repo>(), Err(NameError::Len { len: 0 }));
    assert_eq!("a".repeat(256).parse::<Subject>(), Err(NameError::Len { len: 256 }));
    assert_eq!("*".parse::<Repo>(), Err(NameError::Reserved));
    for text in ["a b", "a\n", "\u{0}", "a\u{a0}b", "\u{85}"] {
        assert_eq!(text.parse::<Repo>(), Err(NameError::Character), "{text:?}");
    }
    let longest = Claims { subject: Some("ü".repeat(127).parse().unwrap()), ..claims() };
    let longest = Claims { repo: RepoScope::One("a".repeat(255).parse().unwrap()), ..longest };
    let checked = check_token(&ring(), longest.issue(&ring()).expose(), NOW);
    assert_eq!(checked.map(|token| token.claims), Ok(longest));
    assert_eq!("*".parse::<RepoScope>().unwrap().to_string(), "*");
}

#[test]
fn token_of_an_older_key_is_valid_until_the_key_is_dropped() {
    let token = claims().issue(&ring());
    let mut rotated = ring();
    for number in 2..=5 {
        rotated = rotated.rotated([number; 32]).unwrap();
        assert_eq!(rotated.current_id(), KeyId::new(number.into()));
    }
    assert!(check_token(&rotated, token.expose(), NOW).is_ok());
    let newer = claims().issue(&rotated);
    assert_eq!(inspect_token(&rotated, newer.expose()).unwrap().0, KeyId::new(5));
    assert_eq!(refused(check_token(&ring(), newer.expose(), NOW)), Reason::UnknownKey);

    let fewer = rotated.retaining(2);
    assert_eq!(fewer.ids().map(KeyId::number).collect::<Vec<_>>(), [3, 4, 5]);
    assert_eq!(refused(check_token(&fewer, token.expose(), NOW)), Reason::UnknownKey);
    assert!(check_token(&fewer.retaining(0), newer.expose(), NOW).is_ok());
    assert_eq!(rotated.retaining(100), rotated);
}

#[test]
fn a_key_id_that_is_altered_does_not_lead_to_another_key() {
    // The id is signed: the same secret under another number makes another signature.
    let twice = ring().rotated(SECRET).unwrap();
    let mut text = claims().issue(&ring()).expose().to_owned();
    assert_eq!(&text[5..12], "AQEAAAA", "version 1, key 1");
    text.replace_range(5..12, "AQIAAAA");
    assert_eq!(refused(check_token(&twice, &text, NOW)), Reason::Signature);
}

#[test]
fn a_key_ring_survives_its_file() {
    let rotated = ring().rotated([7; 32]).unwrap();
    let text = rotated.to_file_text();
    assert_eq!(KeyRing::parse(text.expose()), Ok(rotated.clone()));
    let with_comments = format!("# the newest is last\n\n{}\n", text.expose().replace(' ', "   "));
    assert_eq!(KeyRing::parse(&with_comments), Ok(rotated));
}

#[test]
fn a_key_file_that_is_not_whole_is_none() {
    let line = format!("1 {}", "0f".repeat(32));
    let check = |text: &str, error| assert_eq!(KeyRing::parse(text), Err(error), "{text}");
    check("", KeyRingError::Empty);
    check("# nothing\n", KeyRingError::Empty);
    for len in 1..line.len() {
        check(&line[..len], KeyRingError::Line { line: 1 });
    }
    check(&format!("{line}0"), KeyRingError::Line { line: 1 });
    check(&format!("{line}00"), KeyRingError::Line { line: 1 });
    check(&format!("+{line}"), KeyRingError::Line { line: 1 });
    check(&format!("9999999999{line}"), KeyRingError::Line { line: 1 });
    check(&line.replacen('0', "g", 1), KeyRingError::Line { line: 1 });
    check(&format!("{line}\n{line}"), KeyRingError::Order { line: 2 });
    check(&format!("2{}\n{line}", &line[1..]), KeyRingError::Order { line: 2 });
}

#[test]
fn the_numbers_of_keys_do_not_wrap() {
    let last = KeyRing::parse(&format!("{} {}", u32::MAX, "00".repeat(32))).unwrap();
    assert_eq!(last.rotated([1; 32]), None);
}

#[test]
fn debug_shows_no_secret() {
    let ring = ring().rotated([0xab; 32]).unwrap();
    let shown = format!("{ring:?} {:?} {:?}", ring.to_file_text(), claims().issue(&ring));
    assert_eq!(shown, "[Key(1, …), Key(2, …)] SecretText(…) SecretText(…)");
    let error = KeyRing::parse("1 this-is-secret").unwrap_err();
    assert!(!format!("{error} {error:?}").contains("secret"));
}

#[test]
fn a_text_for_one_purpose_is_not_valid_for_another() {
    let purposes = [Purpose::Token, Purpose::DataUrl, Purpose::Grant, Purpose::GrantedUpload];
    for made in purposes {
        let text = seal(&ring(), made, b"context", b"payload");
        for used in purposes {
            let outcome = open(&ring(), used, b"context", text.expose());
            assert_eq!(outcome.is_ok(), made == used, "{made:?} as {used:?}");
        }
    }
}

#[test]
fn context_and_payload_cannot_be_shifted_into_each_other() {
    let text = seal(&ring(), Purpose::Grant, b"ab", b"cd");
    assert_eq!(open(&ring(), Purpose::Grant, b"ab", text.expose()).unwrap().1, b"cd");
    for context in [&b"a"[..], b"abc", b"", b"ac"] {
        assert_eq!(refused(open(&ring(), Purpose::Grant, context, text.expose())), Reason::Signature);
    }
}

/// A known result that was computed independently. A change of the format would invalidate all
/// existing tokens.
#[test]
fn the_format_of_a_sealed_text_does_not_change() {
    let text = seal(&KeyRing::new([0; 32]), Purpose::Token, b"", b"payload");
    assert_eq!(text.expose(), KNOWN_TEXT);
}

const KNOWN_TEXT: &str = "AQEAAABwYXlsb2Fk57cESgf5TmQY6bVeTVTcCrChFrT4hT-Pk5s-CWJmOPc";

const TENANT: Tenant = Tenant::new(7);

/// URLs of the previous version have no tenant. Such URLs are in use when a server is upgraded.
#[test]
fn a_data_url_of_an_older_server_is_good_and_nobodys() {
    for count in [1, 2, 256] {
        let many: Vec<(u64, u64)> = (0..count).map(|index| (index * 9000, index * 9000 + 8000)).collect();
        let ranges: Vec<u8> =
            many.iter().flat_map(|(start, end)| [start.to_le_bytes(), end.to_le_bytes()].concat()).collect();
        for tenant in [None, Some(TENANT)] {
            let mut payload = LATER.to_le_bytes().to_vec();
            payload.extend(tenant.iter().flat_map(|tenant| tenant.number().to_le_bytes()));
            payload.extend(&ranges);
            let old = seal(&ring(), Purpose::DataUrl, xorb(1).as_bytes(), &payload);
            // Its blob has no number.
            let permitted = Permitted { tenant, incarnation: Incarnation::UNNAMED, ..PERMITTED };
            assert_eq!(check_url(&old, &many), Ok(permitted));
        }
        assert_eq!(check_url(&url(&many), &many), Ok(PERMITTED));
    }
}

#[test]
fn repositories_of_one_owner_share_and_subjects_do_not() {
    let tenant = |repo: &str, subject: Option<&str>| {
        let subject = subject.map(|subject| subject.parse().unwrap());
        Claims { repo: repo.parse().unwrap(), subject, ..claims() }.tenant()
    };
    let one = tenant("models/acme/bert", None);
    for same in ["models/acme/other", "datasets/Acme/other", "spaces/acme/bert", "*/acme/*", "models/acme/*"] {
        assert_eq!(one, tenant(same, None), "{same}");
    }
    for other in [tenant("models/acme/bert", Some("ci")), tenant("models/other/bert", None), tenant("acme/bert", None)]
    {
        assert_ne!(one, other);
    }
    assert_eq!(tenant("*", None), Claims::UNRESTRICTED.tenant());
    let reading = Claims { scope: Scope::Read, expires_unix_secs: 1, ..claims() };
    assert_eq!(reading.tenant(), claims().tenant());
    assert_ne!(tenant("*", None), tenant("*/bert", None));
}

fn url(of: &[(u64, u64)]) -> SecretText {
    let (xorb, incarnation, ranges) = (xorb(1), BLOB, &ranges(of)[..]);
    DataUrl { xorb, incarnation, ranges, expires_unix_secs: LATER, tenant: TENANT }.sign(&ring()).unwrap()
}

/// The contents of the URLs of these tests.
const PERMITTED: Permitted = Permitted { expires_unix_secs: LATER, tenant: Some(TENANT), incarnation: BLOB };

const BLOB: Incarnation = Incarnation::from_number(u64::MAX - 5);

fn check_url(url: &SecretText, requested: &[(u64, u64)]) -> Result<Permitted, Refused> {
    check_data_url(&ring(), &xorb(1), url.expose(), &ranges(requested), NOW)
}

#[test]
fn data_url_allows_each_range_alone_and_all_in_order() {
    let signed = [(0, 100), (150, 200), (300, 301)];
    let url = url(&signed);
    for range in signed {
        assert_eq!(check_url(&url, &[range]), Ok(PERMITTED));
    }
    assert_eq!(check_url(&url, &signed), Ok(PERMITTED));
}

#[test]
fn data_url_allows_no_other_byte_ranges() {
    let url = url(&[(0, 100), (150, 200), (300, 301)]);
    let refusals: [&[(u64, u64)]; 16] = [
        &[],
        &[(0, 99)],
        &[(1, 100)],
        &[(0, 101)],
        &[(0, 200)],
        &[(0, 301)],
        &[(100, 150)],
        &[(0, u64::MAX)],
        &[(0, 100), (150, 200)],
        &[(150, 200), (300, 301)],
        &[(150, 200), (0, 100), (300, 301)],
        &[(300, 301), (150, 200), (0, 100)],
        &[(0, 100), (0, 100)],
        &[(0, 100), (150, 200), (300, 301), (300, 301)],
        &[(0, 100), (150, 200), (300, 302)],
        &[(0, 100), (150, 200), (300, 301), (400, 401)],
    ];
    for requested in refusals {
        assert_eq!(refused(check_url(&url, requested)), Reason::Ranges, "{requested:?}");
    }
}

#[test]
fn a_data_url_of_one_range_needs_that_range_in_the_request() {
    let url = url(&[(0, 100)]);
    assert_eq!(check_url(&url, &[(0, 100)]), Ok(PERMITTED));
    assert_eq!(refused(check_url(&url, &[])), Reason::Ranges);
    assert_eq!(refused(check_url(&url, &[(0, 100), (0, 100)])), Reason::Ranges);
}

#[test]
fn data_url_is_invalid_for_another_xorb_and_after_expiry() {
    let url = url(&[(0, 100)]);
    let check = |byte, now| check_data_url(&ring(), &xorb(byte), url.expose(), &ranges(&[(0, 100)]), now);
    assert_eq!(refused(check(2, NOW)), Reason::Signature);
    assert_eq!(check(1, LATER + GRACE_SECS), Ok(PERMITTED));
    assert_eq!(refused(check(1, LATER + GRACE_SECS + 1)), Reason::Expired);
}

#[test]
fn a_data_url_survives_the_rotation_of_keys() {
    let url = url(&[(0, 100)]);
    let rotated = ring().rotated([2; 32]).unwrap();
    assert_eq!(check_data_url(&rotated, &xorb(1), url.expose(), &ranges(&[(0, 100)]), NOW), Ok(PERMITTED));
    let dropped = check_data_url(&rotated.retaining(0), &xorb(1), url.expose(), &ranges(&[(0, 100)]), NOW);
    assert_eq!(refused(dropped), Reason::UnknownKey);
}

#[test]
fn every_data_url_that_is_altered_anywhere_is_refused() {
    for text in altered(url(&[(0, 100)]).expose()) {
        assert!(check_data_url(&ring(), &xorb(1), &text, &ranges(&[(0, 100)]), NOW).is_err(), "{text}");
    }
}

#[test]
fn a_data_url_has_1_to_256_ranges_and_then_fits_into_8_kib() {
    let sign = |count: usize| {
        let many: Vec<_> = (0..count as u64).map(|index| (index * 9000, index * 9000 + 8000)).collect();
        let (xorb, incarnation, ranges) = (xorb(1), BLOB, &ranges(&many)[..]);
        let url = DataUrl { xorb, incarnation, ranges, expires_unix_secs: LATER, tenant: TENANT };
        url.sign(&ring()).map(|url| (many, url))
    };
    assert!(sign(0).is_none() && sign(MAX_URL_RANGE_COUNT + 1).is_none());
    let (many, url) = sign(MAX_URL_RANGE_COUNT).unwrap();
    assert!(url.expose().len() < 6000, "{}", url.expose().len());
    assert_eq!(check_url(&url, &many), Ok(PERMITTED));
    assert_eq!(check_url(&url, &many[255..]), Ok(PERMITTED));
}
