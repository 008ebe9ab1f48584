//! Tokens, and requests that carry them.

use std::process::Output;

use reqwest::Method;

use super::{Client, Response, Start, TestServer};

/// Runs `zorb token` on the data of a server; returns what it prints.
pub fn token_command(server: &TestServer, args: &[&str]) -> Output {
    let mut command = server.command();
    let (verb, rest) = args.split_first().expect("a verb");
    command.args(["token", verb, "--data-dir"]).arg(server.data_dir()).args(rest);
    command.output().expect("the binary was built for this test")
}

/// A token by `zorb token issue`.
pub fn issue(server: &TestServer, scope: &str, repo: &str, more: &[&str]) -> String {
    let output = token_command(server, &[&["issue", "--scope", scope, "--repo", repo], more].concat());
    assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("a token is text");
    let token = text.strip_suffix('\n').expect("a line");
    assert!(token.starts_with("zorb_") && !token.contains(char::is_whitespace), "{text:?}");
    token.to_owned()
}

/// A server that asks for tokens.
pub fn guarded() -> TestServer {
    Start::default().with("auth", "token").start()
}

/// Sends a request, with a token or without one.
pub async fn send(client: &Client, method: &str, path: &str, token: Option<&str>, body: Vec<u8>) -> Response {
    let method = Method::from_bytes(method.as_bytes()).expect("a method");
    let mut request = client.request(method, path).body(body);
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    Response::of(request).await
}
