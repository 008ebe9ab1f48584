//! Files over HTTP, the way stock clients do it.

use serde_json::Value;
use zorb::format::compression::Decoder;
use zorb::format::xorb::{Splitter, verify};

use super::{Client, Response, TestServer, Xorb, rng};

/// A server with two xorbs.
pub async fn stocked() -> (TestServer, Xorb, Xorb) {
    let (server, mut rng) = (TestServer::start(), rng());
    let (a, b) = (Xorb::mixed(&mut rng, 7), Xorb::mixed(&mut rng, 5));
    for xorb in [&a, &b] {
        assert_eq!(server.client().post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
    }
    (server, a, b)
}

pub async fn register(client: &Client, shard: Vec<u8>) -> u64 {
    let response = client.post("/v1/shards", shard).await;
    assert_eq!(response.status, 200, "{:?}", response.body);
    response.json()["result"].as_u64().unwrap()
}

/// What a client was told of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    There,
    Removed,
    /// The last response did not come.
    Either,
}

/// Reads a file, which is to be as promised; returns whether it is there.
pub async fn check_promise(client: &Client, hash: &str, contents: &[u8], promise: Promise) -> bool {
    match read_file(client, "v1", hash, None).await {
        Ok(found) => {
            assert!(found == contents, "{hash} is damaged");
            assert_ne!(promise, Promise::Removed, "the removal of {hash} was acknowledged");
            true
        }
        Err(response) => {
            assert_eq!(response.status, 404, "{hash}: {:?}", response.body);
            assert_ne!(promise, Promise::There, "{hash} was acknowledged and is not there");
            false
        }
    }
}

/// Fetches what a reconstruction says, as a stock client does, and puts the file together.
pub async fn read_file(
    client: &Client,
    version: &str,
    file: &str,
    range: Option<(u64, u64)>,
) -> Result<Vec<u8>, Response> {
    let header = range.map(|(first, last)| format!("bytes={first}-{last}"));
    let headers: Vec<_> = header.iter().map(|header| ("range", header.as_str())).collect();
    let response = client.get_with(&format!("/{version}/reconstructions/{file}"), &headers).await;
    if response.status != 200 {
        return Err(response);
    }
    let plan = response.json();
    let mut contents = Vec::new();
    for term in plan["terms"].as_array().unwrap() {
        let (start, end) = (term["range"]["start"].as_u64().unwrap(), term["range"]["end"].as_u64().unwrap());
        let (url, chunks, bytes) = descriptor(&plan, term["hash"].as_str().unwrap(), start, end);
        let (origin, path) = url.split_at(url.match_indices('/').nth(2).unwrap().0);
        // A signed URL of an S3 store leads there. Others are for the server, whatever name it says that it has.
        let from = if path.contains("X-Amz-Signature") { &Client::new(origin) } else { client };
        let part = from.get_with(path, &[("range", &format!("bytes={}-{}", bytes.0, bytes.1))]).await;
        assert_eq!(part.status, 206, "{:?}", part.body);
        let xorb = verify(&part.body).unwrap();
        let raw = decode(&part.body);
        let places: Vec<_> = xorb.layout().chunks().collect();
        let from = places[usize::try_from(start - chunks).unwrap()].raw.start();
        let to = places[usize::try_from(end - chunks - 1).unwrap()].raw.end();
        assert_eq!(to - from, term["unpacked_length"].as_u64().unwrap());
        contents.extend_from_slice(&raw[usize::try_from(from).unwrap()..usize::try_from(to).unwrap()]);
    }
    let skip = usize::try_from(plan["offset_into_first_range"].as_u64().unwrap()).unwrap();
    contents.drain(..skip);
    if let Some((first, last)) = range {
        contents.truncate(usize::try_from(last - first + 1).unwrap());
    }
    Ok(contents)
}

/// The URLs of a plan of either version, with the first and the last byte of each of their ranges.
#[cfg(all(feature = "postgres-tests", feature = "s3"))]
pub fn urls_of(plan: &Value) -> Vec<(String, Vec<(u64, u64)>)> {
    let bytes = |range: &Value| (range["start"].as_u64().unwrap(), range["end"].as_u64().unwrap());
    let mut urls = Vec::new();
    for entry in plan["xorbs"].as_object().into_iter().flatten().flat_map(|(_, entries)| entries.as_array().unwrap()) {
        let ranges = entry["ranges"].as_array().unwrap().iter().map(|range| bytes(&range["bytes"]));
        urls.push((entry["url"].as_str().unwrap().to_owned(), ranges.collect()));
    }
    for entry in
        plan["fetch_info"].as_object().into_iter().flatten().flat_map(|(_, entries)| entries.as_array().unwrap())
    {
        urls.push((entry["url"].as_str().unwrap().to_owned(), vec![bytes(&entry["url_range"])]));
    }
    urls
}

/// URL, first chunk and bytes of the descriptor that a term lies in.
fn descriptor<'p>(plan: &'p Value, xorb: &str, start: u64, end: u64) -> (&'p str, u64, (u64, u64)) {
    let number = |value: &Value| value.as_u64().unwrap();
    let mut found = Vec::new();
    for entry in plan["xorbs"][xorb].as_array().into_iter().flatten() {
        for part in entry["ranges"].as_array().unwrap() {
            found.push((entry["url"].as_str().unwrap(), &part["chunks"], &part["bytes"]));
        }
    }
    for entry in plan["fetch_info"][xorb].as_array().into_iter().flatten() {
        found.push((entry["url"].as_str().unwrap(), &entry["range"], &entry["url_range"]));
    }
    let (url, chunks, bytes) = found
        .into_iter()
        .find(|(_, chunks, _)| number(&chunks["start"]) <= start && end <= number(&chunks["end"]))
        .unwrap_or_else(|| panic!("no descriptor holds chunks {start}-{end} of {xorb}: {plan}"));
    (url, number(&chunks["start"]), (number(&bytes["start"]), number(&bytes["end"])))
}

fn decode(bytes: &[u8]) -> Vec<u8> {
    let (mut splitter, mut decoder, mut rest, mut raw) =
        (Splitter::new(bytes.len() as u64), Decoder::new(), bytes, Vec::new());
    while let Some(frame) = splitter.next_frame(&mut rest).unwrap() {
        raw.extend_from_slice(decoder.decode(&frame.header, frame.payload()).unwrap());
    }
    raw
}
