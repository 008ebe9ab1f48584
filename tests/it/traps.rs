//! What other servers fell into, each as a test. Two more are elsewhere: a crash between blob and row (`crash`,
//! `interrupted`), and routes for a newer client that must be 404 (`auth`, which asks on every path).

use std::sync::Arc;

use zorb::format::xorb::verify;

use crate::support::{
    Client, Response, Start, TestServer, Xorb, header, random_bytes, read_file, register, rng, shard_of, stocked,
    upload_shard,
};

#[tokio::test]
async fn probed_newer_route_is_404_and_not_405_200_or_a_page() {
    let server = TestServer::start();
    let client = server.client();
    for path in
        ["/v1/xorb-nothing/default/", "/v1/grants-nothing/default/", "/v3/reconstructions/", "/v2/xorbs/default/"]
    {
        let path = format!("{path}{}", "0".repeat(64));
        client.post(&path, "{}").await.problem(404, "not_found");
        client.get(&path).await.problem(404, "not_found");
    }
}

#[tokio::test]
async fn both_prefixes_mean_the_same_on_uploads_and_questions() {
    let (server, mut rng) = (TestServer::start(), rng());
    let (client, xorb) = (server.client(), Xorb::mixed(&mut rng, 4));
    for (prefix, inserted) in [("default", true), ("default-merkledb", false)] {
        let response = client.post(&format!("/v1/xorbs/{prefix}/{}", xorb.hash()), xorb.bytes.clone()).await;
        assert_eq!((response.status, response.json()["was_inserted"].as_bool()), (200, Some(inserted)));
    }
    register(&client, upload_shard(&xorb, 0, 4).bytes()).await;
    for prefix in ["default", "default-merkledb"] {
        assert_eq!(client.get(&format!("/v1/chunks/{prefix}/{}", xorb.chunk_hash(0))).await.status, 200);
    }
}

#[tokio::test]
async fn a_dedup_response_has_a_footer_that_adds_up_and_no_file() {
    let (server, a, _) = stocked().await;
    register(&server.client(), upload_shard(&a, 0, 7).bytes()).await;
    let body = server.client().get(&format!("/v1/chunks/default/{}", a.chunk_hash(0))).await.body;
    let number = |at: usize| u64::from_le_bytes(body[at..at + 8].try_into().unwrap());
    let footer = body.len() - 200;
    assert_eq!(number(40), 200, "the header announces the footer");
    assert!(body[48..80].iter().all(|byte| *byte == 0xff), "no file stands before the first bookend");
    assert_eq!((number(footer), number(footer + 8), number(footer + 16)), (1, 48, 96));
    for (offset, count) in [(24, 32), (40, 48), (56, 64)] {
        assert_eq!((number(footer + offset), number(footer + count)), (footer as u64, 0), "or the client aborts");
    }
    assert_eq!(number(footer + 192), footer as u64);
    assert!(body[footer + 72..footer + 104].iter().any(|byte| *byte != 0), "chunk hashes are blinded");
    let (made, expires) = (number(footer + 104), number(footer + 112));
    assert!(made < expires, "{made} {expires}");
}

#[tokio::test]
async fn footers_of_xorbs_and_shards_may_be_there_or_not() {
    let (server, mut rng) = (TestServer::start(), rng());
    let (client, a, b) = (server.client(), Xorb::mixed(&mut rng, 3), Xorb::mixed(&mut rng, 3));
    assert_eq!(client.post(&a.xet_path(), a.bytes.clone()).await.status, 200);
    assert_eq!(client.post(&b.xet_path(), b.with_footer_v1(1)).await.status, 200);
    let shard = shard_of(&[(&a, 0, 3), (&b, 0, 3)]);
    let mut with_footer = shard.bytes();
    with_footer[40..48].copy_from_slice(&200_u64.to_le_bytes());
    // But for its version and its own place nothing in a footer is looked at, let alone trusted.
    let place = (with_footer.len() as u64).to_le_bytes();
    with_footer.extend_from_slice(&[&1_u64.to_le_bytes()[..], &[0xee; 184], &place].concat());
    assert_eq!(register(&client, with_footer).await, 1);
    assert_eq!(register(&client, shard.bytes()).await, 0);
    let contents = read_file(&client, "v1", &shard.file_hash(), None).await.unwrap();
    assert!(contents == [&a.raw[..], &b.raw[..]].concat());
}

/// In one file, and across the files of a batch.
#[tokio::test]
async fn two_ranges_of_one_xorb_are_both_there() {
    let (server, a, _) = stocked().await;
    let client = server.client();
    let (first, second) = (shard_of(&[(&a, 0, 1), (&a, 3, 4)]), shard_of(&[(&a, 5, 7)]));
    for shard in [&first, &second] {
        register(&client, shard.bytes()).await;
    }
    assert!(read_file(&client, "v2", &first.file_hash(), None).await.unwrap() == [a.raw(0, 1), a.raw(3, 4)].concat());
    let query = format!("/v1/reconstructions?file_id={}&file_id={}", first.file_hash(), second.file_hash());
    let batch = client.get(&query).await.json();
    let ranges: Vec<_> = batch["fetch_info"][a.hash()]
        .as_array()
        .unwrap()
        .iter()
        .map(|part| (part["range"]["start"].as_u64().unwrap(), part["range"]["end"].as_u64().unwrap()))
        .collect();
    assert_eq!(ranges, [(0, 1), (3, 4), (5, 7)]);
}

/// Too many files are refused.
#[tokio::test]
async fn file_named_1000_times_is_planned_once() {
    let (server, a, _) = stocked().await;
    let client = server.client();
    let shard = upload_shard(&a, 0, 7);
    register(&client, shard.bytes()).await;
    let query = |hashes: &[String]| {
        let keys: Vec<_> = hashes.iter().map(|hash| serde_json::json!({ "prefix": "default", "hash": hash })).collect();
        serde_json::Value::from(keys).to_string()
    };
    let once = client.post("/v1/reconstructions", query(&[shard.file_hash()])).await.json();
    let often = client.post("/v1/reconstructions", query(&vec![shard.file_hash(); 1500])).await.json();
    assert_eq!(often["files"], once["files"]);
    assert_eq!(often["fetch_info"][a.hash()].as_array().unwrap().len(), 1);
    let many: Vec<String> = (0..1001).map(|number| format!("{number:064x}")).collect();
    client.post("/v1/reconstructions", query(&many)).await.problem(400, "invalid_request");
}

#[tokio::test]
async fn only_a_range_past_the_end_is_416_and_the_largest_clamped() {
    let (server, a, _) = stocked().await;
    let client = server.client();
    let shard = upload_shard(&a, 0, 7);
    register(&client, shard.bytes()).await;
    let len = a.raw.len() as u64;
    for version in ["v1", "v2"] {
        let path = format!("/{version}/reconstructions/{}", shard.file_hash());
        for (range, status) in [
            (format!("bytes=0-{}", u64::MAX), 200),
            (format!("bytes={}-{}", len - 1, u64::MAX), 200),
            (format!("bytes={len}-{}", u64::MAX), 416),
            (format!("bytes={}-{}", u64::MAX, u64::MAX), 416),
            ("bytes=0-18446744073709551616".to_owned(), 200),
            ("bytes=-0".to_owned(), 416),
        ] {
            let response = client.get_with(&path, &[("range", &range)]).await;
            assert_eq!(response.status, status, "{version} {range}: {response:?}");
        }
        assert!(read_file(&client, version, &shard.file_hash(), Some((0, u64::MAX - 1))).await.unwrap() == a.raw);
    }
    let xorb = client.get_with(&a.path(), &[("range", "bytes=0-18446744073709551615")]).await;
    assert!(xorb.status == 206 && xorb.body == a.bytes);
    assert!(!server.log().contains("panicked"));
}

#[tokio::test]
async fn the_empty_file_can_be_registered_and_asked_for() {
    let server = TestServer::start();
    let client = server.client();
    let mut empty = upload_shard(&Xorb::mixed(&mut rng(), 1), 0, 1);
    let file = &mut empty.shard.files[0];
    (file.hash, file.terms, file.range_hashes) = (zorb::format::FileHash::EMPTY, Vec::new(), Some(Vec::new()));
    empty.shard.xorbs.clear();
    assert_eq!(register(&client, empty.bytes()).await, 1);
    for version in ["v1", "v2"] {
        assert_eq!(read_file(&client, version, &empty.file_hash(), None).await.unwrap(), b"");
    }
    let head = client.head(&format!("/v1/files/{}", empty.file_hash())).await;
    assert_eq!((head.status, head.header("content-length")), (200, "0"));
}

#[tokio::test]
async fn a_flood_of_chunk_headers_is_refused_at_the_8193rd() {
    let server = TestServer::start();
    let flood = [&header(0, 1, 1)[..], b"x"].concat().repeat(1 << 20);
    let path = format!("/v1/xorbs/default/{}", "1".repeat(64));
    let problem = server.client().post(&path, flood).await.problem(400, "too_many_chunks");
    assert_eq!(problem["chunk"], 8192, "{problem}");
}

#[tokio::test]
async fn a_payload_that_expands_beyond_what_it_declares_is_refused() {
    let server = TestServer::start();
    // Well-formed, with 128 KiB of zeros in it; the header declares one byte less.
    let zeros = Xorb::of(zorb::format::compression::Policy::Lz4, &[vec![0; 128 << 10]]);
    let mut bomb = zeros.bytes.to_vec();
    assert!(bomb.len() < 2000);
    bomb[5..8].copy_from_slice(&((128_u32 << 10) - 1).to_le_bytes()[..3]);
    server.client().post(&zeros.xet_path(), bomb).await.problem(400, "malformed_xorb");
}

#[tokio::test]
async fn a_payload_longer_than_its_chunk_is_refused() {
    let (server, raw) = (TestServer::start(), random_bytes(&mut rng(), 1000));
    let plain = Xorb::stored([&raw[..]]);
    // An LZ4 frame of one block that is stored as it is: valid, and longer than what is in it.
    let mut frame = vec![0x04, 0x22, 0x4d, 0x18, 0x60, 0x40, 0x82];
    frame.extend((1000_u32 | 1 << 31).to_le_bytes());
    frame.extend([&raw[..], &[0; 4]].concat());
    let body = [&header(1, frame.len(), raw.len())[..], &frame].concat();
    assert_eq!(verify(&body).expect("the format allows it").hash(), plain.verified.hash());
    let problem = server.client().post(&plain.xet_path(), body).await.problem(400, "malformed_xorb");
    assert!(problem["detail"].as_str().unwrap().contains("exceeds the raw length 1000"), "{problem}");
    assert!(server.blobs().is_empty());
}

#[tokio::test]
async fn shard_before_its_xorb_leaves_nothing_and_works_later() {
    let (server, mut rng) = (TestServer::start(), rng());
    let (client, xorb) = (server.client(), Xorb::mixed(&mut rng, 5));
    let shard = upload_shard(&xorb, 1, 4);
    for path in ["/v1/shards", "/v2/shards"] {
        client.post(path, shard.bytes()).await.problem(400, "missing_xorb");
    }
    client.get(&format!("/v1/reconstructions/{}", shard.file_hash())).await.problem(404, "not_found");
    assert_eq!(client.post(&xorb.xet_path(), xorb.bytes.clone()).await.status, 200);
    assert_eq!(register(&client, shard.bytes()).await, 1);
    assert!(read_file(&client, "v2", &shard.file_hash(), None).await.unwrap() == xorb.raw(1, 4));
}

#[tokio::test]
async fn one_xorb_from_eight_clients_at_once_is_stored_once_and_whole() {
    let (server, mut rng) = (TestServer::start(), rng());
    let xorb = Arc::new(Xorb::mixed(&mut rng, 40));
    let uploads = (0..8).map(|_| {
        let (client, xorb) = (server.client(), Arc::clone(&xorb));
        tokio::spawn(async move { client.post(&xorb.xet_path(), xorb.bytes.clone()).await })
    });
    let mut inserted = 0;
    for upload in uploads.collect::<Vec<_>>() {
        let response = upload.await.unwrap();
        assert_eq!(response.status, 200);
        inserted += u32::from(response.json()["was_inserted"].as_bool().unwrap());
    }
    assert_eq!((inserted, server.blobs().len(), server.drafts()), (1, 1, 0));
    assert!(server.client().get(&xorb.path()).await.body == xorb.bytes);
}

#[tokio::test]
async fn shard_may_name_a_xorb_of_an_earlier_session_unlisted() {
    let (server, a, b) = stocked().await;
    register(&server.client(), upload_shard(&a, 0, 7).bytes()).await;
    let mut later = shard_of(&[(&b, 0, 2), (&a, 2, 3)]);
    later.shard.xorbs.retain(|xorb| xorb.hash == b.verified.hash());
    let server = server.restart();
    assert_eq!(register(&server.client(), later.bytes()).await, 1);
    let contents = read_file(&server.client(), "v1", &later.file_hash(), None).await.unwrap();
    assert!(contents == [b.raw(0, 2), a.raw(2, 3)].concat());
}

#[tokio::test]
async fn the_same_file_with_other_terms_is_known_and_reads_as_before() {
    let (server, a, _) = stocked().await;
    let client = server.client();
    // The same chunks in another xorb: another way to make the same file.
    let again = Xorb::stored([a.raw(0, 1), a.raw(1, 2), a.raw(2, 3)]);
    assert_eq!(client.post(&again.xet_path(), again.bytes.clone()).await.status, 200);
    let (first, second) = (upload_shard(&a, 0, 3), shard_of(&[(&again, 0, 2), (&a, 2, 3)]));
    assert_eq!(first.file_hash(), second.file_hash());
    assert_eq!(register(&client, first.bytes()).await, 1);
    let path = format!("/v2/reconstructions/{}", first.file_hash());
    let terms = client.get(&path).await.json()["terms"].clone();
    assert_eq!(register(&client, second.bytes()).await, 0);
    assert_eq!(client.get(&path).await.json()["terms"], terms);
    assert!(read_file(&client, "v2", &first.file_hash(), None).await.unwrap() == a.raw(0, 3));
}

async fn base_of(client: &Client, file: &str, xorb: &Xorb, headers: &[(&'static str, &str)]) -> String {
    let response: Response = client.get_with(&format!("/v1/reconstructions/{file}"), headers).await;
    let plan = response.json();
    let url = plan["fetch_info"][xorb.hash()][0]["url"].as_str().expect("a URL");
    url.split_once("/v1/data/").expect("a data URL").0.to_owned()
}

#[tokio::test]
async fn forwarded_headers_count_only_from_a_trusted_proxy() {
    let forwarded =
        [("x-forwarded-proto", "https"), ("x-forwarded-host", "evil.example"), ("x-forwarded-prefix", "/cas")];
    for (proxies, is_trusted) in [("", false), ("192.0.2.0/24", false), ("192.0.2.1, 127.0.0.0/8", true)] {
        let (server, mut rng) = (Start::default().with("trusted_proxies", proxies).start(), rng());
        let (client, xorb) = (server.client(), Xorb::mixed(&mut rng, 2));
        assert_eq!(client.post(&xorb.xet_path(), xorb.bytes.clone()).await.status, 200);
        let shard = upload_shard(&xorb, 0, 2);
        register(&client, shard.bytes()).await;
        let base = base_of(&client, &shard.file_hash(), &xorb, &forwarded).await;
        assert_eq!(base, if is_trusted { "https://evil.example/cas" } else { server.url() }, "{proxies:?}");
        assert_eq!(base_of(&client, &shard.file_hash(), &xorb, &[]).await, server.url());
    }
}
