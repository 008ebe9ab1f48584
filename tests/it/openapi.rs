//! The OpenAPI document; `tests/openapi.py` compares it with the server.

use std::collections::HashSet;

use serde_json::Value;

use crate::support::{Start, TestServer, guarded};

async fn document(server: &TestServer) -> Value {
    server.client().get("/openapi.json").await.json()
}

/// Every `$ref` below a value.
fn references(value: &Value) -> Vec<String> {
    match value {
        Value::Object(map) => {
            let own = map.get("$ref").and_then(Value::as_str).map(str::to_owned);
            own.into_iter().chain(map.values().flat_map(references)).collect()
        }
        Value::Array(items) => items.iter().flat_map(references).collect(),
        _ => Vec::new(),
    }
}

#[tokio::test]
async fn every_operation_has_its_id_failures_and_schemas() {
    for server in [Start::default().with("grants", true).start(), guarded()] {
        let document = document(&server).await;
        for reference in references(&document) {
            assert!(document.pointer(reference.trim_start_matches('#')).is_some(), "{reference}");
        }
        let mut ids = HashSet::new();
        for (path, item) in document["paths"].as_object().unwrap() {
            let methods = item.as_object().unwrap();
            assert!(!methods.contains_key("get") || methods.contains_key("head"), "{path}");
            for (method, operation) in methods {
                assert!(ids.insert(operation["operationId"].as_str().unwrap().to_owned()), "{method} {path}");
                let responses = operation["responses"].as_object().unwrap();
                assert!(!responses.contains_key("default"), "{method} {path}");
                for status in ["429", "500", "503"] {
                    assert!(responses.contains_key(status), "{method} {path} {status}");
                }
                for (status, response) in responses {
                    let is_problem = status.as_str() >= "400" && method != "head";
                    let problem = &response["content"]["application/problem+json"]["schema"]["$ref"];
                    assert_eq!(problem == "#/components/schemas/ProblemJson", is_problem, "{method} {path} {status}");
                }
                let takes_token = operation["security"].as_array().is_some_and(|needs| !needs.is_empty());
                assert!(!takes_token || responses.contains_key("401"), "{method} {path}");
            }
        }
        assert!(ids.len() >= 60, "{}", ids.len());
    }
}

#[tokio::test]
async fn hashes_numbers_and_bytes_have_their_form_in_the_document() {
    let document = document(&TestServer::start()).await;
    let get = &document["paths"]["/v1/files/{file}"]["get"];
    assert_eq!(get["parameters"][0]["schema"]["$ref"], "#/components/schemas/HashText");
    assert_eq!(document["components"]["schemas"]["HashText"]["pattern"], "^[0-9a-fA-F]{64}$");
    let partial = get["responses"]["206"]["content"].as_object().unwrap();
    assert_eq!(partial["application/octet-stream"]["schema"]["format"], "binary");
    assert!(partial.contains_key("multipart/byteranges"));
    let list = document["paths"]["/v1/files"]["get"]["parameters"].as_array().unwrap();
    let limit = list.iter().find(|parameter| parameter["name"] == "limit").unwrap();
    assert_eq!((&limit["schema"]["type"], &limit["schema"]["minimum"]), (&"integer".into(), &1.into()));
    let codes = document["components"]["schemas"]["ProblemJson"]["properties"]["code"]["enum"].as_array().unwrap();
    assert!(codes.contains(&"not_found".into()));
}

#[tokio::test]
async fn a_malformed_limit_is_the_same_mistake_on_every_route() {
    let server = TestServer::start();
    for path in ["/v1/files", "/v1/xorbs", "/v1/usage"] {
        for limit in ["0", "-1", "x", "", "4294967296"] {
            server.client().get(&format!("{path}?limit={limit}")).await.problem(400, "invalid_request");
        }
    }
}
