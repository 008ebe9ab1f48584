//! The main job, end to end: what the README shows.

use crate::support::{TestServer, Xorb, rng};

#[tokio::test]
async fn a_xorb_goes_up_and_exactly_the_chunks_asked_for_come_back() {
    let (server, mut rng) = (TestServer::start(), rng());
    let (client, xorb) = (server.client(), Xorb::mixed(&mut rng, 9));

    let response = client.post(&xorb.path(), xorb.bytes.clone()).await;
    assert_eq!(response.status, 201);
    let expected = serde_json::json!({
        "hash": xorb.hash(), "was_inserted": true, "chunks": 9,
        "serialized_len": xorb.bytes.len(), "raw_len": xorb.raw.len(),
    });
    assert_eq!(response.json(), expected);

    for start in 0..9 {
        for end in start + 1..=9 {
            let part = client.get(&format!("{}?range={start}-{end}", xorb.path())).await;
            assert_eq!((part.status, &part.body[..]), (200, xorb.serialized(start, end)), "{start}-{end}");
            let part = client.get(&format!("{}?range={start}-{end}&format=raw", xorb.path())).await;
            assert_eq!((part.status, &part.body[..]), (200, xorb.raw(start, end)), "{start}-{end} raw");
        }
    }
    let server = server.restart();
    let whole = server.client().get(&xorb.path()).await;
    assert_eq!((whole.status, whole.body), (200, xorb.bytes));
}
