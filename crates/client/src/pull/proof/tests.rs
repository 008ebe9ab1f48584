use serde_json::{Value, json};
use xet_format::ChunkHash;
use xet_format::merkle::file_hash;

use super::*;

const COUNT: u64 = 400;
const LEN: u64 = 1000;

fn chunks() -> Vec<(ChunkHash, u64)> {
    (0..COUNT).map(|index| (ChunkHash::of(&index.to_le_bytes()), LEN)).collect()
}

fn part(from: usize, to: usize) -> Subtree {
    let chunks = chunks();
    let part = chunks[from..to].iter().map(|(hash, len)| (hash, *len));
    Subtree::of(part, from == 0, to == chunks.len()).unwrap()
}

fn subtree_json(subtree: &Subtree) -> Value {
    let nodes: Vec<Value> =
        subtree.nodes().map(|node| json!({"hash": node.hash.to_string(), "size": node.raw_len})).collect();
    let levels: Vec<_> = subtree.levels().collect();
    json!({"nodes": nodes, "levels": levels, "at_start": subtree.at_start(), "at_end": subtree.at_end()})
}

/// A valid response whose window has the chunks [100, 120).
fn response() -> Value {
    json!({
        "totalChunks": COUNT,
        "fileSize": COUNT * LEN,
        "windows": [{"dirtyByteRange": [100 * LEN, 120 * LEN]}],
        "hashRanges": [subtree_json(&part(0, 100)), subtree_json(&part(120, 400))],
        "gapVerification": [],
    })
}

fn parse_value(value: &Value) -> Result<RangeProof, &'static str> {
    let bytes = ByteRange::new(101 * LEN + 7, 110 * LEN).unwrap();
    parse(&serde_json::from_value(value.clone()).unwrap(), COUNT * LEN, bytes)
}

#[test]
fn right_chunks_in_place_give_the_file_hash_and_no_others() {
    let around = parse_value(&response()).unwrap();
    let chunks = chunks();
    let expected = file_hash(chunks.iter().map(|(hash, len)| (hash, *len)));
    let window = |from: usize, to: usize| {
        Subtree::of(chunks[from..to].iter().map(|(hash, len)| (hash, *len)), false, false).unwrap()
    };
    assert_eq!(around.file_hash(&window(100, 120)), Some(expected));
    for (from, to) in [(100, 119), (101, 120), (99, 120), (200, 220)] {
        assert_ne!(around.file_hash(&window(from, to)), Some(expected), "{from}-{to}");
    }
    // The window is the whole file, so there are no summaries.
    let mut all = response();
    all["windows"][0]["dirtyByteRange"] = json!([0, COUNT * LEN]);
    all["hashRanges"] = json!([null, null]);
    let around = parse_value(&all).unwrap();
    assert!(around.is_last && around.file_hash(&part(0, 400)) == Some(expected));
}

#[test]
fn impossible_response_is_refused() {
    let check = |change: &dyn Fn(&mut Value), expected: &str| {
        let mut response = response();
        change(&mut response);
        assert_eq!(parse_value(&response).unwrap_err(), expected, "{response}");
    };
    check(&|response| response["windows"] = json!([]), "it does not surround one part with two summaries");
    check(&|response| response["hashRanges"] = json!([null]), "it does not surround one part with two summaries");
    for window in [[102 * LEN, 120 * LEN], [100 * LEN, 109 * LEN], [100 * LEN, 401 * LEN], [120 * LEN, 100 * LEN]] {
        check(
            &|response| response["windows"][0]["dirtyByteRange"] = json!(window),
            "its window does not hold the part",
        );
    }
    check(&|response| response["hashRanges"][0] = Value::Null, "its summaries do not meet the part");
    check(&|response| response["fileSize"] = 5.into(), "its summaries do not meet the part");
    check(&|response| response["hashRanges"][0]["levels"] = json!([]), "a summary is malformed");
    check(&|response| response["hashRanges"][1]["nodes"][0]["size"] = 1.into(), "its summaries do not meet the part");
    let mut garbled = response();
    garbled["hashRanges"][0]["nodes"][0]["hash"] = "x".into();
    assert!(serde_json::from_value::<SurroundingsJson>(garbled).is_err());
    // A sum of lengths that overflows is refused, too.
    check(
        &|response| response["hashRanges"][1]["nodes"][0]["size"] = u64::MAX.into(),
        "its summaries do not meet the part",
    );
}
