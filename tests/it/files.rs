//! Files: registered with a proof, read in ranges through URLs that carry their own authority.

use serde_json::{Value, json};
use zorb::format::compression::Policy;
use zorb::format::shard::{CasInfo, Shard, write_upload};

use crate::support::{
    Raw, TestServer, Xorb, random_bytes, read_file as read, register, rng, shard_of, stocked, upload_shard,
};

/// Also after a restart.
#[tokio::test]
async fn registered_file_reads_back_in_every_range_and_version() {
    let (server, a, b) = stocked().await;
    // Twice the same xorb with overlapping chunks, and another one in between.
    let shard = shard_of(&[(&a, 1, 4), (&b, 0, 5), (&a, 3, 7), (&a, 0, 1)]);
    let contents = [a.raw(1, 4), b.raw(0, 5), a.raw(3, 7), a.raw(0, 1)].concat();
    assert_eq!(register(&server.client(), shard.bytes()).await, 1);
    assert_eq!(register(&server.client(), shard.bytes()).await, 0);

    let (server, file, len) = (server.restart(), shard.file_hash(), contents.len());
    let client = server.client();
    for version in ["v1", "v2"] {
        assert!(read(&client, version, &file, None).await.unwrap() == contents);
        for (first, last) in [(0, 0), (0, len - 1), (len - 1, len - 1), (1, len / 2), (len / 3, len / 2)] {
            let part = read(&client, version, &file, Some((first as u64, last as u64))).await.unwrap();
            assert!(part == contents[first..=last], "{version} {first}-{last}");
        }
        // What is behind the end is left out; a range that begins there is a 416, and a garbled one is not.
        let tail = read(&client, version, &file, Some((len as u64 - 1, u64::MAX - 1))).await.unwrap();
        assert_eq!(tail, contents[len - 1..]);
        let path = format!("/{version}/reconstructions/{file}");
        let past = client.get_with(&path, &[("range", &format!("bytes={len}-"))]).await;
        past.problem(416, "range_not_satisfiable");
        client.get_with(&path, &[("range", "bytes=2-1")]).await.problem(400, "invalid_range");
        client.get(&format!("/{version}/reconstructions/{}", "1".repeat(64))).await.problem(404, "not_found");
        client.get(&format!("/{version}/reconstructions/zz")).await.problem(400, "invalid_hash");
    }
    let head = client.head(&format!("/v1/files/{file}")).await;
    assert_eq!((head.status, head.header("content-length")), (200, &*len.to_string()));
    let batch = client.get(&format!("/v1/reconstructions?file_id={file}")).await.json();
    assert_eq!(batch["files"][&file].as_array().unwrap().len(), 4);
}

#[tokio::test]
async fn chunk_lengths_are_sent_only_when_requested() {
    let (server, a, b) = stocked().await;
    let client = server.client();
    let shard = shard_of(&[(&a, 1, 4), (&b, 0, 5), (&a, 6, 7)]);
    register(&client, shard.bytes()).await;
    let raw_lens = |xorb: &Xorb, start: usize, end: usize| -> Value {
        let lens = xorb.verified.layout().chunks().map(|place| place.raw.byte_len());
        lens.collect::<Vec<_>>()[start..end].to_vec().into()
    };
    for version in ["v1", "v2"] {
        let path = format!("/{version}/reconstructions/{}", shard.file_hash());
        let sizes = async |query: &str, headers: &[(&'static str, &str)]| -> Vec<Value> {
            let response = client.get_with(&format!("{path}{query}"), headers).await;
            assert_eq!(response.status, 200);
            response.json()["terms"].as_array().unwrap().iter().map(|term| term["chunk_byte_sizes"].clone()).collect()
        };
        let expected = [raw_lens(&a, 1, 4), raw_lens(&b, 0, 5), raw_lens(&a, 6, 7)];
        assert_eq!(sizes("?chunk_byte_sizes=true", &[]).await, expected);
        assert_eq!(sizes("?chunk_byte_sizes=true", &[("range", "bytes=0-0")]).await, [raw_lens(&a, 1, 2)]);
        for query in ["", "?", "?chunk_byte_sizes", "?chunk_byte_sizes=false", "?other=true"] {
            assert_eq!(sizes(query, &[]).await, [Value::Null, Value::Null, Value::Null], "{query}");
        }
    }
}

/// Responses of more than a thousand terms are made on another thread than others.
#[tokio::test]
async fn file_of_many_terms_is_equal_whole_and_by_windows() {
    let server = TestServer::start();
    let (client, mut rng) = (server.client(), rng());
    let chunks: Vec<_> = (0..60).map(|_| random_bytes(&mut rng, 1000)).collect();
    let xorb = Xorb::of(Policy::None, &chunks);
    assert_eq!(client.post(&xorb.path(), xorb.bytes.to_vec()).await.status, 201);
    // No two neighbours are a run.
    let runs: Vec<_> = (0..2500).map(|index| (&xorb, index * 7 % 60, index * 7 % 60 + 1)).collect();
    let shard = shard_of(&runs);
    assert_eq!(register(&client, shard.bytes()).await, 1);
    let expected: Vec<_> = runs.iter().map(|(_, start, end)| json!({"start": start, "end": end})).collect();
    let ranges =
        |terms: &Value| -> Vec<Value> { terms.as_array().unwrap().iter().map(|term| term["range"].clone()).collect() };
    let file = shard.file_hash();
    for version in ["v1", "v2"] {
        let path = format!("/{version}/reconstructions/{file}");
        let whole = client.get(&format!("{path}?chunk_byte_sizes=true")).await.json();
        assert_eq!(ranges(&whole["terms"]), expected);
        assert!(whole["terms"].as_array().unwrap().iter().all(|term| term["chunk_byte_sizes"] == json!([1000])));
        let mut parts = Vec::new();
        for start in (0..2500).step_by(100) {
            let range = format!("bytes={}-{}", start * 1000, (start + 100) * 1000 - 1);
            parts.extend(ranges(&client.get_with(&path, &[("range", &range)]).await.json()["terms"]));
        }
        assert_eq!(parts, expected);
    }
    let batch = client.get(&format!("/v1/reconstructions?file_id={file}")).await.json();
    assert_eq!(ranges(&batch["files"][&file]), expected);
    let places = batch["fetch_info"][xorb.hash()].as_array().unwrap();
    assert_eq!((places.len(), &places[0]["range"]), (1, &json!({"start": 0, "end": 60})));
}

#[tokio::test]
async fn the_empty_file_has_no_terms_and_nothing_to_ask_for() {
    let server = TestServer::start();
    let path = format!("/v2/reconstructions/{}", "0".repeat(64));
    assert_eq!(server.client().get(&path).await.json()["terms"].as_array().unwrap().len(), 0);
    server.client().get_with(&path, &[("range", "bytes=0-0")]).await.problem(416, "range_not_satisfiable");
}

#[tokio::test]
async fn hostile_shard_is_refused_and_an_existing_file_unchanged() {
    let (server, a, b) = stocked().await;
    let client = server.client();
    let good = shard_of(&[(&a, 0, 3), (&b, 1, 2)]);
    let contents = [a.raw(0, 3), b.raw(1, 2)].concat();
    register(&client, good.bytes()).await;
    let unknown = Xorb::mixed(&mut rng(), 2);

    let mut swapped = good.clone();
    swapped.shard.files[0].terms.swap(0, 1);
    swapped.shard.files[0].range_hashes.as_mut().unwrap().swap(0, 1);
    let mut foreign_chunks = good.clone();
    foreign_chunks.shard.xorbs[0].chunks[0].hash = b.verified.chunk_hashes()[0];
    let mut short_listing = good.clone();
    let dropped = short_listing.shard.xorbs[0].chunks.pop().unwrap();
    short_listing.shard.xorbs[0].raw_len -= dropped.raw_len;
    let mut past_the_end = upload_shard(&a, 5, 7);
    past_the_end.shard.files[0].terms[0].chunks = zorb::format::ChunkRange::new(6, 8).unwrap();
    let mut no_proof = good.clone();
    no_proof.shard.files[0].range_hashes = None;
    let only_listing =
        Shard { files: Vec::new(), xorbs: vec![CasInfo { ..upload_shard(&unknown, 0, 2).shard.xorbs[0].clone() }] };
    // 96 bytes: a header, and a file that claims four thousand million terms.
    let mut bomb = good.bytes()[..96].to_vec();
    bomb[84..88].copy_from_slice(&u32::MAX.to_le_bytes());

    for (what, shard, code) in [
        ("a wrong file hash", good.clone().with_wrong_hash().bytes(), "file_hash_mismatch"),
        ("swapped terms", swapped.bytes(), "file_hash_mismatch"),
        ("a wrong verification hash", good.clone().with_wrong_proof().bytes(), "no_proof"),
        ("no verification hashes", no_proof.bytes(), "no_proof"),
        ("a lying length", good.clone().with_term_len(1).bytes(), "shard_mismatch"),
        ("chunks past the end", past_the_end.bytes(), "shard_mismatch"),
        ("a xorb with foreign chunks", foreign_chunks.bytes(), "shard_mismatch"),
        ("a xorb with too few chunks", short_listing.bytes(), "shard_mismatch"),
        ("a term of a missing xorb", upload_shard(&unknown, 0, 1).bytes(), "missing_xorb"),
        ("a listing of a missing xorb", write_upload(&only_listing).unwrap(), "missing_xorb"),
        ("a bomb", bomb, "malformed_shard"),
        ("nothing", Vec::new(), "malformed_shard"),
    ] {
        for path in ["/v1/shards", "/v2/shards"] {
            let response = client.post(path, shard.clone()).await;
            let problem = response.problem(400, code);
            assert!(problem["detail"].as_str().is_some_and(|text| text.len() < 400), "{what}: {problem}");
        }
        assert!(read(&client, "v2", &good.file_hash(), None).await.unwrap() == contents, "{what}");
    }
    assert!(!server.log().contains("panicked"));
}

#[tokio::test]
async fn the_second_version_sends_a_line_of_json_per_event() {
    let (server, a, _) = stocked().await;
    let response = server.client().post("/v2/shards", upload_shard(&a, 0, 2).bytes()).await;
    assert_eq!((response.status, response.header("content-type")), (200, "application/x-ndjson"));
    let lines: Vec<Value> =
        std::str::from_utf8(&response.body).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.last().unwrap()["type"], "result");
}

#[tokio::test]
async fn data_url_allows_its_ranges_alone_or_together_only() {
    let (server, a, b) = stocked().await;
    let client = server.client();
    let shard = shard_of(&[(&a, 0, 1), (&a, 3, 5)]);
    register(&client, shard.bytes()).await;
    let plan = client.get(&format!("/v2/reconstructions/{}", shard.file_hash())).await.json();
    let entry = &plan["xorbs"][a.hash()][0];
    let url = entry["url"].as_str().unwrap();
    let path = format!("/{}", url.splitn(4, '/').nth(3).unwrap());
    let range = |index: usize| {
        let bytes = &entry["ranges"][index]["bytes"];
        (bytes["start"].as_u64().unwrap(), bytes["end"].as_u64().unwrap())
    };
    let ((s0, e0), (s1, e1)) = (range(0), range(1));

    for (header, status) in [
        (format!("bytes={s0}-{e0}"), 206),
        (format!("bytes={s1}-{e1}"), 206),
        (format!("bytes={s0}-{e0},{s1}-{e1}"), 206),
        (format!("bytes={s1}-{e1},{s0}-{e0}"), 403),
        (format!("bytes={s0}-{}", e0 + 1), 403),
        (format!("bytes={}-{e0}", s0 + 1), 403),
        (format!("bytes={s0}-{e1}"), 403),
        ("bytes=0-".to_owned(), 403),
        ("bytes=-1".to_owned(), 403),
        ("chunks=0-1".to_owned(), 403),
        (String::new(), 403),
    ] {
        let response = client.get_with(&path, &[("range", &header), ("if-range", "\"other\"")]).await;
        assert_eq!(response.status, status, "{header}: {:?}", response.body.len());
        if status == 403 {
            response.problem(403, "forbidden");
        } else {
            assert_eq!(response.header("cache-control"), "private, max-age=3600");
            let of_the_whole = ["etag", "x-xorb-chunk-range", "x-xorb-byte-range"];
            assert!(of_the_whole.iter().all(|name| !response.headers.contains_key(*name)), "{:?}", response.headers);
        }
    }
    assert_eq!(client.get(&path).await.status, 403);
    let single = ("range", &*format!("bytes={s0}-{e0}"));
    let forged = path.replace(&a.hash(), &b.hash());
    assert_eq!(client.get_with(&forged, &[single]).await.status, 403);
    assert_eq!(client.get_with(&format!("{path}x"), &[single]).await.status, 403);
    // A restart keeps the keys.
    let server = server.restart();
    assert_eq!(server.client().get_with(&path, &[single]).await.status, 206);
    assert!(!server.log().contains(path.split_once("s=").unwrap().1), "signatures are not logged");
}

#[tokio::test]
async fn eligible_chunk_gets_a_shard_and_any_other_404() {
    let (server, a, _) = stocked().await;
    let client = server.client();
    let first = a.verified.chunk_hashes()[2];
    client.get(&format!("/v1/chunks/default/{first}")).await.problem(404, "not_found");
    register(&client, upload_shard(&a, 2, 4).bytes()).await;
    for prefix in ["default", "default-merkledb"] {
        let response = client.get(&format!("/v1/chunks/{prefix}/{first}")).await;
        assert_eq!(response.status, 200);
        let shard = zorb::format::shard::parse(&response.body).unwrap();
        assert_eq!((shard.files.len(), shard.xorbs.len(), shard.xorbs[0].hash), (0, 1, a.verified.hash()));
        assert_ne!(shard.xorbs[0].chunks[2].hash, first, "chunk hashes are blinded");
    }
    let other = a.verified.chunk_hashes()[3];
    let response = client.get(&format!("/v1/chunks/default/{other}")).await;
    // One in 1024 may be asked for wherever it is.
    if other.is_dedup_eligible() {
        assert_eq!(response.status, 200);
    } else {
        response.problem(404, "not_found");
    }
}

#[tokio::test]
async fn older_clients_find_what_they_need_under_their_names() {
    let (server, a, _) = stocked().await;
    let client = server.client();
    let shard = upload_shard(&a, 0, 2);
    for path in ["/shards", &*format!("/shard/default/{}", "0".repeat(64))] {
        assert_eq!(client.post(path, shard.bytes()).await.status, 200, "{path}");
    }
    for path in ["/reconstructions", "/reconstruction"] {
        assert_eq!(client.get(&format!("{path}/{}", shard.file_hash())).await.status, 200, "{path}");
    }
    let mut connection = Raw::connect(&server).await;
    connection.send(format!("HEAD /xorb/default/{} HTTP/1.1\r\nhost: zorb\r\n\r\n", a.hash())).await;
    assert_eq!(connection.head().await.status, 200);
    assert_eq!(client.post(&format!("/xorbs/default/{}", a.hash()), a.bytes.clone()).await.status, 200);
    assert_eq!(client.post("/v1/telemetry", "{}").await.status, 200);
}
