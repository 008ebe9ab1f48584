//! Exchanges of several versions of `huggingface_hub`, replayed.
//!
//! `tests/clients/hub_record.py` records them into `exchanges/`, and describes their fields.

use std::collections::{BTreeMap, BTreeSet};

use reqwest::Method;
use serde::Deserialize;
use serde_json::Value;

use super::accounts::accounts;
use super::lfs;
use crate::support::{Client, Response, files, guarded, read};

const REPO: &str = "me/exchanges";
const DIRECTORY: &str = "tests/it/hub/exchanges";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Recording {
    client: String,
    /// The headers of responses that are compared.
    headers: Vec<String>,
    sessions: Vec<Session>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Session {
    hf_xet: Option<String>,
    exchanges: Vec<Step>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Step {
    /// hf_xet uploads a file.
    Upload {
        upload: String,
    },
    Exchange(Box<Exchange>),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Exchange {
    request: Request,
    response: Expected,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    method: String,
    path: String,
    headers: BTreeMap<String, String>,
    body: Option<String>,
    /// The body is this file.
    file: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Expected {
    status: u16,
    headers: BTreeMap<String, String>,
    #[serde(default)]
    keys: BTreeSet<String>,
    /// Some values, by their JSON pointers.
    #[serde(default)]
    values: BTreeMap<String, Value>,
    /// The body is this file.
    file: Option<String>,
}

/// A session that is replayed.
#[derive(Debug)]
struct Replay {
    /// Without a token: each request has the headers that were recorded.
    client: Client,
    /// The values of this replay, by their names in the recording.
    values: BTreeMap<String, String>,
}

impl Replay {
    /// The text with values instead of their names.
    fn filled(&self, text: &str) -> String {
        self.values.iter().fold(text.to_owned(), |text, (name, value)| text.replace(name, value))
    }

    /// The value that a header or a string must have. If it is only a name without a value, the
    /// name gets the value that was found.
    fn expected(&mut self, recorded: &str, found: &str) -> String {
        let is_name = recorded.starts_with('{') && recorded.find('}') == Some(recorded.len() - 1);
        if is_name && !self.values.contains_key(recorded) {
            let same = self.values.iter().find(|(_, value)| *value == found);
            assert!(same.is_none(), "the values of {recorded} and {same:?} are the same");
            self.values.insert(recorded.to_owned(), found.to_owned());
        }
        self.filled(recorded)
    }

    async fn send(&self, request: &Request) -> Response {
        let method = Method::from_bytes(request.method.as_bytes()).unwrap();
        let mut sent = self.client.request(method, &self.filled(&request.path));
        for (name, value) in &request.headers {
            sent = sent.header(name.as_str(), self.filled(value));
        }
        if let Some(body) = &request.body {
            sent = sent.body(self.filled(body));
        } else if let Some(file) = &request.file {
            sent = sent.body(contents_of(file));
        }
        Response::of(sent).await
    }

    /// Without hf_xet, because only the requests to the API of the Hub are recorded.
    async fn upload(&self, file: &str) {
        let (contents, client) = (contents_of(file), self.client.bearing(&self.values["{token}"]));
        let path = lfs::upload_path(&client, REPO, &contents).await.unwrap();
        assert_eq!(lfs::send(&client, &path, contents).await.status, 200);
    }

    fn check(&mut self, headers: &[String], expected: &Expected, response: &Response, at: &str) {
        assert_eq!(response.status, expected.status, "{at}: {:?}", response.body);
        for name in headers {
            let found = response.headers.get(name.as_str()).map(|value| value.to_str().unwrap());
            let wanted = match (expected.headers.get(name).map(String::as_str), found) {
                (Some("*"), Some(found)) => Some(found.to_owned()),
                (Some(recorded), Some(found)) => Some(self.expected(recorded, found)),
                (recorded, _) => recorded.map(str::to_owned),
            };
            assert_eq!(found, wanted.as_deref(), "{at}: {name}");
        }
        if let Some(file) = &expected.file {
            assert!(response.body == contents_of(file), "{at}: the body is not {file}");
        }
        if expected.keys.is_empty() {
            return;
        }
        let json = response.json();
        let mut found = BTreeSet::new();
        collect_keys(&json, "", &mut found);
        // Clients ignore keys that they do not know.
        let missing: Vec<_> = expected.keys.difference(&found).collect();
        assert!(missing.is_empty(), "{at}: keys are missing: {missing:?}");
        for (pointer, recorded) in &expected.values {
            let found = json.pointer(pointer).unwrap_or_else(|| panic!("{at}: nothing at {pointer}"));
            if let (Some(recorded), Some(found)) = (recorded.as_str(), found.as_str()) {
                // Clients request a path, which is the URL of an upload without the server.
                let found = found.strip_prefix(self.client.url()).unwrap_or(found).to_owned();
                assert_eq!(found, self.expected(recorded, &found), "{at}: {pointer}");
            } else {
                assert_eq!(found, recorded, "{at}: {pointer}");
            }
        }
    }
}

/// The keys of all objects in a value, each with the path of the object.
fn collect_keys(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => {
            for (key, member) in members {
                let below = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                collect_keys(member, &below, found);
                found.insert(below);
            }
        }
        Value::Array(elements) => {
            for element in elements {
                collect_keys(element, &format!("{path}[]"), found);
            }
        }
        _ => {}
    }
}

/// A file of the session, as the recording script makes it.
fn contents_of(file: &str) -> Vec<u8> {
    if file == "README.md" {
        return b"---\nlicense: mit\n---\n# A model\n".to_vec();
    }
    assert_eq!(file, "weights.bin");
    let mut state = 1_u64;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    };
    std::iter::repeat_with(next).take(300_000).collect()
}

async fn replay(version: &str) {
    let recording: Recording = serde_json::from_str(&read(&format!("{DIRECTORY}/{version}.json"))).unwrap();
    assert_eq!(recording.client, format!("huggingface_hub {version}"));
    for session in &recording.sessions {
        let server = guarded();
        accounts(&server, &["user", "add", "me"]);
        let token = accounts(&server, &["user", "token", "me", "--scope", "write"]).trim_end().to_owned();
        let client = server.client();
        let values = [("{server}", client.url().to_owned()), ("{token}", token)];
        let values = values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let mut replay = Replay { client, values };
        for (number, step) in session.exchanges.iter().enumerate() {
            match step {
                Step::Upload { upload } => replay.upload(upload).await,
                Step::Exchange(exchange) => {
                    let response = replay.send(&exchange.request).await;
                    let Request { method, path, .. } = &exchange.request;
                    let at = format!("{version}, hf_xet {:?}, exchange {number}, {method} {path}", session.hf_xet);
                    replay.check(&recording.headers, &exchange.response, &response, &at);
                }
            }
        }
    }
}

#[tokio::test]
async fn huggingface_hub_0_30_2_gets_the_recorded_responses() {
    replay("0.30.2").await;
}

#[tokio::test]
async fn huggingface_hub_0_36_2_gets_the_recorded_responses() {
    replay("0.36.2").await;
}

#[tokio::test]
async fn huggingface_hub_1_1_7_gets_the_recorded_responses() {
    replay("1.1.7").await;
}

#[tokio::test]
async fn huggingface_hub_1_33_0_gets_the_recorded_responses() {
    replay("1.33.0").await;
}

#[tokio::test]
async fn huggingface_hub_2_4_0_gets_the_recorded_responses() {
    replay("2.4.0").await;
}

#[test]
fn every_recording_is_replayed() {
    let (source, recordings) = (read("tests/it/hub/exchanges.rs"), files(DIRECTORY, &["json"]));
    assert!(!recordings.is_empty());
    for recording in recordings {
        let version = recording.path.rsplit('/').next().unwrap().strip_suffix(".json").unwrap();
        assert!(source.contains(&format!("replay(\"{version}\")")), "no test replays {}", recording.path);
    }
}
