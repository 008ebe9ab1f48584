use reqwest::header::HeaderValue;

use super::*;

fn check_url(text: &str, expected: Result<&str, ParseUrlError>) {
    let url = text.parse::<ServerUrl>().map(|url| url.join("readyz"));
    assert_eq!(url, expected.map(str::to_owned), "{text}");
}

#[test]
fn a_url_may_have_a_path_and_a_slash_at_its_end_but_nothing_behind() {
    check_url("http://127.0.0.1:8080", Ok("http://127.0.0.1:8080/readyz"));
    check_url("http://127.0.0.1:8080/", Ok("http://127.0.0.1:8080/readyz"));
    check_url("https://store.example/zorb/", Ok("https://store.example/zorb/readyz"));
    check_url("127.0.0.1:8080", Err(ParseUrlError::Url));
    check_url("localhost:8080", Err(ParseUrlError::Scheme));
    check_url("ftp://store.example", Err(ParseUrlError::Scheme));
    check_url("http://me:secret@store.example", Err(ParseUrlError::Excess));
    check_url("http://store.example/?a=b", Err(ParseUrlError::Excess));
    check_url("http://store.example/#a", Err(ParseUrlError::Excess));
}

#[test]
fn this_machine_is_known_by_its_names() {
    for (host, expected) in
        [("127.0.0.1", true), ("localhost:1", true), ("[::1]:1", true), ("store.example", false), ("10.0.0.1", false)]
    {
        let url: ServerUrl = format!("http://{host}").parse().unwrap();
        assert_eq!(url.is_loopback(), expected, "{host}");
    }
}

#[test]
fn retry_after_is_seconds_or_a_date() {
    let parse = |text: &str| retry_after(&HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_str(text).unwrap())]));
    assert_eq!(parse("7"), Some(Duration::from_secs(7)));
    assert_eq!(parse("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::ZERO));
    assert!(parse("Fri, 31 Dec 9999 23:59:59 GMT").is_some_and(|wait| wait > Duration::from_secs(1_000_000)));
    assert_eq!(parse("soon"), None);
    assert_eq!(parse("-1"), None);
}
