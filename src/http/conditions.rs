//! Entity tags in the conditions of a request (RFC 9110, sections 8.8.3 and 13.1).
//!
//! A tag is any bytes between quotes. A comma or a star between the quotes has no meaning, and the
//! bytes need not be UTF-8.

use axum::http::header::{IF_MATCH, IF_NONE_MATCH, IF_RANGE};
use axum::http::{HeaderMap, HeaderName};

/// Whether `If-Match` matches a representation with this strong tag; `None` without the header.
/// Weak tags never match.
pub(super) fn if_match(headers: &HeaderMap, etag: &str) -> Option<bool> {
    any_tag(headers, &IF_MATCH, |is_weak, tag| !is_weak && tag == etag.as_bytes())
}

/// Whether `If-None-Match` names a representation with this tag; `None` without the header. Weak
/// tags match, too.
pub(super) fn if_none_match(headers: &HeaderMap, etag: &str) -> Option<bool> {
    any_tag(headers, &IF_NONE_MATCH, |_, tag| tag == etag.as_bytes())
}

/// Whether the `Range` header applies: there is no `If-Range`, or its value is this strong tag.
/// Weak tags do not match (RFC 9110, section 13.1.5). Dates do not match, because responses have no
/// `Last-Modified`.
pub(super) fn if_range(headers: &HeaderMap, etag: &str) -> bool {
    headers.get(IF_RANGE).is_none_or(|condition| condition.as_bytes().trim_ascii() == etag.as_bytes())
}

/// Whether any tag of a list matches, or the list is `*`; `None` without the header. The list may
/// be spread over several header lines. After a syntax error, the rest of that line is ignored.
/// `matches` gets whether a tag is weak, and the tag with its quotes.
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

/// Removes the next tag from the beginning of a list. Returns whether it is weak, and the tag with
/// its quotes. `None` at the end or at a syntax error.
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
