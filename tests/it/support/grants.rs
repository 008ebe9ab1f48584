//! Upload grants, as clients ask for them.

use bytes::Bytes;
use reqwest::Method;
use serde_json::json;
use zorb::format::Crc64;

use super::{Client, Response, Xorb};

/// A grant that was given.
#[derive(Clone, Debug)]
pub struct Grant {
    /// The xorb that it is for.
    pub xorb: String,
    pub id: String,
    /// Path and query of the URL that takes the bytes.
    pub path: String,
}

pub fn crc64(bytes: &[u8]) -> u64 {
    Crc64::of(bytes)
}

/// The JSON that asks for a grant.
pub fn body_for_grant(len: usize, crc64: u64) -> String {
    json!({ "length": len, "checksum": { "algo": "crc64nvme", "value": crc64.to_string() } }).to_string()
}

/// Asks for a grant to upload these bytes.
pub async fn ask(client: &Client, xorb: &str, bytes: &[u8]) -> Response {
    client.post(&format!("/v1/xorb-grants/default/{xorb}"), body_for_grant(bytes.len(), crc64(bytes))).await
}

impl Grant {
    /// What a response to [`ask`] says.
    pub fn from_response(client: &Client, xorb: &str, response: &Response) -> Self {
        assert_eq!(response.status, 201, "{response:?}");
        let grant = response.json();
        assert_eq!(
            (grant["method"].as_str(), grant["headers"].as_object().map(|all| all.len())),
            (Some("PUT"), Some(0))
        );
        let url = grant["url"].as_str().expect("a URL");
        let path = client.path_of(url).to_owned();
        Self { xorb: xorb.to_owned(), id: grant["id"].as_str().expect("an id").to_owned(), path }
    }

    /// A grant for a xorb as it is.
    pub async fn of(client: &Client, xorb: &Xorb) -> Self {
        Self::from_response(client, &xorb.hash(), &ask(client, &xorb.hash(), &xorb.bytes).await)
    }

    /// Sends bytes, as clients do it: without a token.
    pub async fn send(&self, client: &Client, bytes: impl Into<Bytes>) -> Response {
        Response::of(client.request(Method::PUT, &self.path).body(bytes.into())).await
    }

    /// Path of the commit.
    pub fn commit_path(&self) -> String {
        format!("/v1/xorb-commits/default/{}/grant/{}", self.xorb, self.id)
    }

    pub async fn commit(&self, client: &Client) -> Response {
        client.post(&self.commit_path(), "").await
    }
}
