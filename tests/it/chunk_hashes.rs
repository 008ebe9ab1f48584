//! Edits of files in the middle: what a client gets to know of the rest, and that it suffices.

use rand::RngExt;
use rand::rngs::StdRng;
use serde_json::Value;
use xet_core_structures::merklehash::{MerkleHash, MerkleHashSubtree};
use zorb::format::chunker::chunks;
use zorb::format::compression::Policy;
use zorb::format::shard::{FileInfo, Shard, Term, write_upload};
use zorb::format::{ChunkHash, ChunkRange, FileHash, RangeHash, XorbHash};

use crate::support::{
    Client, TestServer, Xorb, random_bytes, read_file as read, register, rng, shard_of, upload_shard,
};

type Chunk = (ChunkHash, u64);

/// A file in a server, as a client knows it that has asked for its reconstruction.
struct File {
    hash: String,
    contents: Vec<u8>,
    segments: Vec<Segment>,
}

struct Segment {
    start: u64,
    end: u64,
    term: Term,
}

impl File {
    /// Asks what the file is made of.
    async fn find(client: &Client, hash: &str, contents: Vec<u8>) -> Self {
        let response = client.get(&format!("/v1/reconstructions/{hash}")).await.json();
        let mut end = 0;
        let segment = |term: &Value| {
            let number = |value: &Value| u32::try_from(value.as_u64().unwrap()).unwrap();
            let raw_len = number(&term["unpacked_length"]);
            let chunks = ChunkRange::new(number(&term["range"]["start"]), number(&term["range"]["end"])).unwrap();
            let xorb: XorbHash = term["hash"].as_str().unwrap().parse().unwrap();
            let start = end;
            end += u64::from(raw_len);
            Segment { start, end, term: Term { xorb, raw_len, chunks } }
        };
        let segments: Vec<_> = response["terms"].as_array().unwrap().iter().map(segment).collect();
        assert_eq!(end, contents.len() as u64);
        Self { hash: hash.to_owned(), contents, segments }
    }

    fn path(&self) -> String {
        format!("/v2/file-chunk-hashes/{}", self.hash)
    }

    /// A few ranges that reach from segment to segment, as clients send them.
    fn random_changes(&self, rng: &mut StdRng) -> Vec<(u64, u64)> {
        let count = rng.random_range(1..4);
        let mut picked: Vec<usize> = (0..count).map(|_| rng.random_range(0..self.segments.len())).collect();
        picked.sort_unstable();
        picked.dedup();
        picked.into_iter().map(|index| (self.segments[index].start, self.segments[index].end)).collect()
    }

    fn part(&self, (start, end): (u64, u64)) -> &[u8] {
        &self.contents[usize::try_from(start).unwrap()..usize::try_from(end).unwrap()]
    }
}

/// A file of some megabytes in several xorbs and many terms.
async fn stored_file(client: &Client, rng: &mut StdRng) -> File {
    let len = rng.random_range(3_000_000..6_000_000);
    let contents = random_bytes(rng, len);
    let chunks: Vec<Vec<u8>> = chunks(&contents).map(<[u8]>::to_vec).collect();
    let xorbs: Vec<Xorb> = chunks.chunks(20).map(|chunks| Xorb::of(Policy::None, chunks)).collect();
    let mut runs = Vec::new();
    for xorb in &xorbs {
        assert_eq!(client.post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
        let mut start = 0;
        while start < xorb.chunk_count() {
            let end = rng.random_range(start + 1..=xorb.chunk_count().min(start + 8));
            runs.push((xorb, start, end));
            start = end;
        }
    }
    let shard = shard_of(&runs);
    register(client, shard.bytes()).await;
    File::find(client, &shard.file_hash(), contents).await
}

/// What the server says of a change.
struct Response {
    windows: Vec<(u64, u64)>,
    gaps: Vec<Option<MerkleHashSubtree>>,
    verification: Vec<RangeHash>,
}

async fn ask(client: &Client, file: &File, changes: &[(u64, u64)]) -> Response {
    let ranges: Vec<String> = changes.iter().map(|(start, end)| format!("{start}-{}", end - 1)).collect();
    let response = client.get_with(&file.path(), &[("x-range-dirty", &format!("bytes={}", ranges.join(",")))]).await;
    assert_eq!(response.status, 200, "{:?}", response.body);
    let response = response.json();
    assert_eq!(response["fileSize"], file.contents.len());
    assert_eq!(response["totalChunks"], chunks(&file.contents).count());
    let window = |window: &Value| {
        let [start, end] = window["dirtyByteRange"].as_array().unwrap().as_slice() else { panic!("{window}") };
        (start.as_u64().unwrap(), end.as_u64().unwrap())
    };
    let windows: Vec<_> = response["windows"].as_array().unwrap().iter().map(window).collect();
    // The official crate reads the summaries.
    let gaps: Vec<Option<MerkleHashSubtree>> = serde_json::from_value(response["hashRanges"].clone()).unwrap();
    assert_eq!(gaps.len(), windows.len() + 1);
    assert_eq!(windows[0].0 == 0, gaps[0].is_none());
    let hashes: Vec<String> = serde_json::from_value(response["gapVerification"].clone()).unwrap();
    let range_hash = |text: &String| RangeHash::from_bytes(*text.parse::<XorbHash>().unwrap().as_bytes());
    Response { windows, gaps, verification: hashes.iter().map(range_hash).collect() }
}

/// The file that the gaps and these windows make, as the official crate joins them.
fn join(response: &Response, windows: &[Vec<Chunk>]) -> FileHash {
    let mut parts = Vec::new();
    let last = windows.len() - 1;
    for (index, (gap, window)) in response.gaps.iter().zip(windows).enumerate() {
        let (at_start, at_end) = (index == 0 && gap.is_none(), index == last && response.gaps[last + 1].is_none());
        parts.extend(gap.clone());
        let window: Vec<_> = window.iter().map(|(hash, len)| (MerkleHash::from(hash.as_bytes()), *len)).collect();
        parts.push(MerkleHashSubtree::from_chunks(at_start, &window, at_end));
    }
    parts.extend(response.gaps[last + 1].clone());
    let root = MerkleHashSubtree::merge(&parts).unwrap().final_hash().expect("the parts are the whole file");
    root.hmac(MerkleHash::default()).hex().parse().unwrap()
}

fn hash_chunks(data: &[u8]) -> Vec<Chunk> {
    chunks(data).map(|chunk| (ChunkHash::of(chunk), chunk.len() as u64)).collect()
}

/// Changes what was to be changed, and registers what comes of it: the segments that no window touches, and new ones.
/// Returns the file that must be there then.
async fn edit(
    client: &Client,
    file: &File,
    changes: &[(u64, u64)],
    response: &Response,
    rng: &mut StdRng,
) -> (String, Vec<u8>) {
    let (mut xorbs, mut windows) = (Vec::new(), Vec::new());
    for window in &response.windows {
        let mut data = file.part(*window).to_vec();
        // Nowhere else in the window: its last chunks are to be cut where they were.
        for (start, end) in changes.iter().filter(|(start, end)| window.0 <= *start && *end <= window.1) {
            for _ in 0..3 {
                let at = rng.random_range(*start..*end) - window.0;
                data[usize::try_from(at).unwrap()] ^= 0x55;
            }
        }
        windows.push(hash_chunks(&data));
        let chunks: Vec<Vec<u8>> = chunks(&data).map(<[u8]>::to_vec).collect();
        let xorb = Xorb::of(Policy::None, &chunks);
        assert_eq!(client.post(&xorb.xet_path(), xorb.bytes.clone()).await.status, 200);
        xorbs.push(xorb);
    }
    let (mut terms, mut proofs, mut contents) = (Vec::new(), Vec::new(), Vec::new());
    let mut kept = response.verification.iter();
    let mut next = 0;
    for segment in &file.segments {
        let inside = response.windows.iter().position(|(start, end)| *start < segment.end && segment.start < *end);
        match inside {
            None => {
                terms.push(segment.term);
                proofs.push(*kept.next().expect("a hash for every segment that stays"));
                contents.extend_from_slice(file.part((segment.start, segment.end)));
            }
            Some(index) => {
                let (start, end) = response.windows[index];
                assert!(start <= segment.start && segment.end <= end, "windows end where segments do");
                if index == next {
                    let new = upload_shard(&xorbs[index], 0, xorbs[index].chunk_count()).shard.files.remove(0);
                    terms.extend(new.terms);
                    proofs.extend(new.range_hashes.unwrap());
                    contents.extend_from_slice(&xorbs[index].raw);
                    next += 1;
                }
            }
        }
    }
    assert_eq!((kept.next(), next), (None, xorbs.len()));
    let hash = join(response, &windows);
    let file = FileInfo { hash, terms, range_hashes: Some(proofs), sha256: None };
    let listed = xorbs.iter().flat_map(|xorb| upload_shard(xorb, 0, 1).shard.xorbs).collect();
    assert_eq!(register(client, write_upload(&Shard { files: vec![file], xorbs: listed }).unwrap()).await, 1);
    (hash.to_string(), contents)
}

#[tokio::test]
async fn client_with_windows_only_derives_file_and_edited_file_hash() {
    let (server, mut rng) = (TestServer::start(), rng());
    let client = server.client();
    let mut file = stored_file(&client, &mut rng).await;
    for _ in 0..8 {
        let changes = file.random_changes(&mut rng);
        let response = ask(&client, &file, &changes).await;
        let windows: Vec<_> = response.windows.iter().map(|window| hash_chunks(file.part(*window))).collect();
        assert_eq!(join(&response, &windows).to_string(), file.hash, "nothing was changed yet");
        let (hash, contents) = edit(&client, &file, &changes, &response, &mut rng).await;
        assert!(read(&client, "v2", &hash, None).await.unwrap() == contents);
        file = File::find(&client, &hash, contents).await;
    }
}

#[tokio::test]
async fn a_change_of_everything_has_one_window_and_nothing_around_it() {
    let (server, mut rng) = (TestServer::start(), rng());
    let client = server.client();
    let file = stored_file(&client, &mut rng).await;
    let len = file.contents.len() as u64;
    // Also in another order, more than once, and past the end.
    for changes in [vec![(0, len)], vec![(len / 2, u64::MAX), (0, len / 2 + 1), (5, 9)]] {
        let response = ask(&client, &file, &changes).await;
        assert_eq!(response.windows, [(0, len)]);
        assert!(response.gaps.iter().all(Option::is_none) && response.verification.is_empty());
    }
}

#[tokio::test]
async fn a_question_without_an_response_is_400_or_404() {
    let server = TestServer::start();
    let (client, xorb) = (server.client(), Xorb::mixed(&mut rng(), 3));
    client.post(&xorb.path(), xorb.bytes.clone()).await;
    let shard = upload_shard(&xorb, 0, 3);
    register(&client, shard.bytes()).await;
    let path = format!("/v2/file-chunk-hashes/{}", shard.file_hash());
    client.get(&path).await.problem(400, "invalid_range");
    let past = format!("bytes={}-{}", xorb.raw.len(), u64::MAX);
    let many = format!("bytes={}", vec!["0-0"; 1025].join(","));
    for text in
        ["", "bytes", "bytes=", "bytes=,", "bytes=0-", "bytes=-5", "bytes=5-4", "bytes=a-b", "chunks=0-1", &past, &many]
    {
        client.get_with(&path, &[("x-range-dirty", text)]).await.problem(400, "invalid_range");
    }
    let twice = [("x-range-dirty", "bytes=0-0"), ("x-range-dirty", "bytes=1-1")];
    client.get_with(&path, &twice).await.problem(400, "invalid_range");
    assert_eq!(client.get_with(&path, &[("x-range-dirty", &many[..many.len() - 4])]).await.status, 200);

    let any = [("x-range-dirty", "bytes=0-0")];
    client.get_with("/v2/file-chunk-hashes/zz", &any).await.problem(400, "invalid_hash");
    let unknown = format!("/v2/file-chunk-hashes/{}", "1".repeat(64));
    client.get_with(&unknown, &any).await.problem(404, "not_found");
    // Nothing of the empty file can change.
    let empty = format!("/v2/file-chunk-hashes/{}", "0".repeat(64));
    client.get_with(&empty, &any).await.problem(400, "invalid_range");
}
