//! Entity tags in the conditions of a request (RFC 9110, sections 8.8.3 and 13.1).
//!
//! Pure. Tags are opaque bytes between quotes: a comma or a star in one means nothing, and they
//! need not be text.

use axum::http::header::{IF_MATCH, IF_NONE_MATCH, IF_RANGE};
use axum::http::{HeaderMap, HeaderName};

/// Whether `If-Match`, if it is there, holds for a representation with this strong tag. Weak tags
/// never match.
pub(super) fn if_match(headers: &HeaderMap, etag: &str) -> Option<bool> {
    any_tag(headers, &IF_MATCH, |is_weak, tag| !is_weak && tag == etag.as_bytes())
}

/// Whether `If-None-Match`, if it is there, names the representation. Weakness does not matter.
pub(super) fn if_none_match(headers: &HeaderMap, etag: &str) -> Option<bool> {
    any_tag(headers, &IF_NONE_MATCH, |_, tag| tag == etag.as_bytes())
}

/// Whether the `Range` header counts: there is no `If-Range`, or it is this strong tag. A date
/// never is: there is no `Last-Modified`. Nor is a weak tag (RFC 9110, section 13.1.5).
pub(super) fn if_range(headers: &HeaderMap, etag: &str) -> bool {
    headers.get(IF_RANGE).is_none_or(|condition| condition.as_bytes().trim_ascii() == etag.as_bytes())
}

/// Whether any tag of a list matches, or the list is `*`; `None` where there is no such header. A
/// list may be spread over several lines. Where a line is no list, what comes before that place
/// counts.
fn any_tag(headers: &HeaderMap, name: &HeaderName, matches: impl Fn(bool, &[u8]) -> bool) -> Option<bool> {
    let mut lines = headers.get_all(name).iter().peekable();
    lines.peek()?;
    Some(lines.any(|line| {
        let mut rest = line.as_bytes().trim_ascii();
        if rest == b"*" {
            return true;
        }
        while let Some((is_weak, tag)) = next_tag(&mut rest) {
            if matches(is_weak, tag) {
                return true;
            }
        }
        false
    }))
}

/// The next tag of a list, quotes included, and whether it is weak.
fn next_tag<'a>(rest: &mut &'a [u8]) -> Option<(bool, &'a [u8])> {
    while let [b',' | b' ' | b'\t', behind @ ..] = *rest {
        *rest = behind;
    }
    let behind = rest.strip_prefix(b"W/");
    let (is_weak, tag) = (behind.is_some(), behind.unwrap_or(rest));
    let len = tag.strip_prefix(b"\"")?.iter().position(|byte| *byte == b'"')? + 2;
    let (tag, behind) = tag.split_at(len);
    *rest = behind;
    Some((is_weak, tag))
}
