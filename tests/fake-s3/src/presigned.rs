//! Signed URLs: the signature of AWS, version 4, in the query.

use std::fmt::Write;
use std::time::{Duration, SystemTime};

use axum::http::request::Parts;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use crate::Account;
use crate::requests::Parameters;

/// The parameter with the signature.
pub(crate) const SIGNATURE: &str = "X-Amz-Signature";

/// Whether the only key has signed exactly this request, and the URL is not expired.
#[expect(clippy::disallowed_methods, reason = "the clock of another machine")]
pub(crate) fn is_signed(account: &Account, head: &Parts, parameters: &Parameters) -> bool {
    let text = |name: &str| parameters.get(name).map(String::as_str).unwrap_or_default();
    let date = text("X-Amz-Date");
    let scope = format!("{}/{}/s3/aws4_request", date.get(..8).unwrap_or_default(), account.region);
    let is_ours = text("X-Amz-Algorithm") == "AWS4-HMAC-SHA256"
        && text("X-Amz-Credential") == format!("{}/{scope}", account.access_key);
    let life = text("X-Amz-Expires").parse().ok().map(Duration::from_secs);
    let is_valid = seconds_of(date).zip(life).is_some_and(|(since, life)| SystemTime::now() < since + life);
    is_ours
        && is_valid
        && text(SIGNATURE) == signature(&account.secret_key, head, text("X-Amz-SignedHeaders"), date, &scope)
}

/// The signature of this request, with these headers.
fn signature(secret_key: &str, head: &Parts, signed_headers: &str, date: &str, scope: &str) -> String {
    // The client has encoded the query in the way that is signed.
    let mut pairs: Vec<&str> = head.uri.query().unwrap_or_default().split('&').collect();
    pairs.retain(|pair| !pair.starts_with(SIGNATURE));
    pairs.sort_unstable();
    let mut request = format!("{}\n{}\n{}\n", head.method, head.uri.path(), pairs.join("&"));
    for name in signed_headers.split(';') {
        let value = head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let _ = writeln!(request, "{name}:{}", value.trim());
    }
    let _ = write!(request, "\n{signed_headers}\nUNSIGNED-PAYLOAD");
    let to_sign = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{}", hex(&Sha256::digest(request)));
    let key = scope.split('/').fold(format!("AWS4{secret_key}").into_bytes(), |key, part| mac(&key, part));
    hex(&mac(&key, &to_sign))
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key may have any length");
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The time of a text such as `20261127T070000Z`.
fn seconds_of(date: &str) -> Option<SystemTime> {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    const WEEKDAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
    let month = MONTHS.get(date.get(4..6)?.parse::<usize>().ok()?.checked_sub(1)?)?;
    let (year, day, time) = (date.get(..4)?, date.get(6..8)?, date.get(9..15)?);
    let (hour, minute, second) = (&time[..2], &time[2..4], &time[4..]);
    // The library accepts the right day of the week only.
    WEEKDAYS.into_iter().find_map(|weekday| {
        let text = format!("{weekday}, {day} {month} {year} {hour}:{minute}:{second} GMT");
        httpdate::parse_http_date(&text).ok()
    })
}
