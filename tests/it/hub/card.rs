//! Cards: the metadata of a README.md in the description of its repository.

use serde_json::json;

use super::{commit, create, put};
use crate::support::TestServer;

#[tokio::test]
async fn description_has_the_metadata_of_the_readme_of_its_revision() {
    let server = TestServer::start();
    let client = server.client();
    create(&client, "model").await;
    let described =
        async |revision: &str| client.get(&format!("/api/models/me/model/revision/{revision}")).await.json();
    assert_eq!((&described("main").await["cardData"], &described("main").await["tags"]), (&json!(null), &json!([])));
    let card = b"---\nlicense: mit\npipeline_tag: text-generation\n---\n# A model\n";
    let (status, first) = commit(&client, "me/model", None, &[put("README.md", card)]).await;
    assert_eq!(status, 200);
    let model = described("main").await;
    assert_eq!((&model["pipeline_tag"], &model["cardData"]["license"]), (&json!("text-generation"), &json!("mit")));
    assert_eq!(model["tags"], json!(["text-generation", "license:mit"]));
    // A card that is not valid hides nothing else. Metadata end within the first 64 KiB.
    let long = [&b"---\na: "[..], &b"x".repeat(70_000), b"\nlicense: mit\n---\n"].concat();
    for invalid in [&b"---\na: [\n---\n"[..], b"---\na: \xff\n---\n", &long] {
        assert_eq!(commit(&client, "me/model", None, &[put("README.md", invalid)]).await.0, 200);
        let model = described("main").await;
        assert_eq!((&model["id"], &model["pipeline_tag"]), (&json!("me/model"), &json!(null)));
    }
    assert_eq!(described(&first).await["pipeline_tag"], "text-generation");
}

#[tokio::test]
async fn metadata_that_are_not_valid_are_told_before_the_upload() {
    let server = TestServer::start();
    let client = server.client();
    let validate = async |content: &str| {
        let body = json!({ "content": content, "repoType": "model" }).to_string();
        client.post("/api/validate-yaml", body).await
    };
    for valid in ["# no metadata", "---\nlicense: mit\n---\n"] {
        let response = validate(valid).await;
        assert_eq!((response.status, response.json()), (200, json!({ "errors": [], "warnings": [] })), "{valid}");
    }
    let refused = validate("---\nlicense: [mit\n---\n").await;
    refused.problem(400, "invalid_request");
    assert!(refused.json()["errors"][0]["message"].as_str().unwrap().contains("line"), "{:?}", refused.json());
}
