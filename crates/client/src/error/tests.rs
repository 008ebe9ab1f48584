use super::*;

fn check(status: u16, body: &str, is_transient: bool, text: &str) {
    let status = StatusCode::from_u16(status).unwrap();
    let refusal = Refusal::parse(status, body.as_bytes(), None);
    let error = RequestError::Refused { url: "http://store".to_owned(), refusal };
    assert_eq!(error.to_string(), format!("http://store responded with {text}"));
    assert_eq!(error.is_transient(), is_transient, "{text}");
}

#[test]
fn refusal_repeats_the_servers_text_and_transient_ones_retry() {
    check(404, r#"{"code":"not_found","detail":"There is none."}"#, false, "404 not_found: There is none.");
    check(503, r#"{"code":"overloaded","detail":"Wait."}"#, true, "503 overloaded: Wait.");
    check(507, r#"{"code":"out_of_space"}"#, false, "507: out_of_space");
    check(502, "<html>", true, "502 Bad Gateway");
    check(408, "", true, "408 Request Timeout");
    check(429, "[]", true, "429 Too Many Requests");
    check(501, r#"{"code":7}"#, false, "501 Not Implemented");
    check(301, "", false, "301 Moved Permanently");
}

#[test]
fn text_of_a_server_cannot_drive_the_terminal() {
    let refusal = Refusal::parse(StatusCode::BAD_REQUEST, br#"{"detail":"a\u001b[2Jb\r\nc"}"#, None);
    assert_eq!(refusal.detail.as_deref(), Some("a[2Jbc"));
    let turned = "{\"detail\":\"gpj\u{202e}exe\u{2066}\"}";
    let refusal = Refusal::parse(StatusCode::BAD_REQUEST, turned.as_bytes(), None).with_request_id(Some("a\u{1b}b"));
    assert_eq!((refusal.detail.as_deref(), refusal.request_id.as_deref()), (Some("gpjexe"), Some("ab")));
    let long = format!(r#"{{"detail":"{}"}}"#, "x".repeat(9_999));
    assert_eq!(Refusal::parse(StatusCode::BAD_REQUEST, long.as_bytes(), None).detail.unwrap().len(), 500);
}

#[test]
fn a_failure_of_the_server_names_the_request() {
    let refusal = |status| Refusal::parse(status, b"", None).with_request_id(Some("0123"));
    assert_eq!(refusal(StatusCode::BAD_GATEWAY).to_string(), "502 Bad Gateway (request id 0123)");
    assert_eq!(refusal(StatusCode::NOT_FOUND).to_string(), "404 Not Found");
    let failure = Failure::new(Some("internal"), "It fails.", false).with_request_id(Some("0123"));
    assert_eq!(failure.to_string(), "internal: It fails. (request id 0123)");
}
