use reqwest::header::HeaderValue;

use super::*;
use crate::Unwatched;

fn check_url(text: &str, expected: Result<&str, ParseUrlError>) {
    let url = text.parse::<ServerUrl>().map(|url| url.join("readyz"));
    assert_eq!(url, expected.map(str::to_owned), "{text}");
}

#[test]
fn url_may_have_a_path_and_a_final_slash_and_nothing_else() {
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
fn loopback_addresses_are_recognised() {
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

#[tokio::test(start_paused = true)]
async fn a_response_that_trickles_has_a_deadline() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let server = Server::new(url, RetryPolicy { count: 3 }).unwrap();
    let trickle = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0; 1024];
        let _ = stream.read(&mut request).await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n").await.unwrap();
        // A byte every 10 seconds, so the server is never silent for a minute.
        while stream.write_all(b" ").await.is_ok() {
            tokio::time::sleep(Duration::from_secs(10)).await;
        }
        std::future::pending::<()>().await;
    };
    let watch: Arc<dyn Watch> = Arc::new(Unwatched);
    let begin = Instant::now();
    let listed = tokio::select! {
        listed = server.list::<crate::ListedFile>(None, &watch) => listed,
        () = trickle => unreachable!("it never ends"),
    };
    let error = listed.unwrap_err();
    assert!(matches!(error, RequestError::Slow { .. }), "{error}");
    assert!(begin.elapsed() < Duration::from_secs(90), "{:?}", begin.elapsed());
}

#[tokio::test]
async fn error_for_an_unreachable_server_contains_the_hint() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url: ServerUrl = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    drop(listener);
    let server = Server::new(url.clone(), RetryPolicy { count: 0 }).unwrap().with_hint(" (a hint)");
    let error = server.ready(Duration::from_secs(5)).await.unwrap_err();
    assert_eq!(error.to_string(), format!("cannot reach {url} (a hint)"));
}
