//! A store that is full, at every page of the way: what does not fit is refused as that, and nothing else suffers.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use sqlx::ConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use tokio::task::JoinSet;
use zorb::format::XorbHash;

use crate::hub::{Files, commit, commit_body, create, files, put};
use crate::support::{
    Client, Metrics, Raw, Start, TestServer, Xorb, eventually, random_bytes, read_file, register, rng, upload_shard,
};

const PAGE_LEN: u64 = 4096;

/// Takes all the room that a server's small disk has left.
struct Filler {
    path: PathBuf,
}

impl Filler {
    fn new(server: &TestServer) -> Self {
        let path = server.seen_from_inside(&server.data_dir().join("filler"));
        File::create(&path).expect("the test sees the server's disk");
        Self { path }
    }

    /// Leaves so many pages, at most; all of them with `u64::MAX`.
    fn leave(&self, page_count: u64) {
        if page_count == u64::MAX {
            File::create(&self.path).expect("a file can be cut");
            return;
        }
        let mut file = OpenOptions::new().append(true).open(&self.path).expect("the file is there");
        while file.write_all(&[1; 512]).is_ok() {}
        let len = file.metadata().expect("the file is there").len();
        file.set_len((len / PAGE_LEN).saturating_sub(page_count) * PAGE_LEN).expect("a file can be cut");
    }
}

/// Refused as out of space.
#[tokio::test]
async fn upload_to_a_nearly_full_disk_is_stored_or_refused() {
    let (server, mut rng) = (Start::default().on_small_disk(4).start(), rng());
    let (client, filler) = (server.client(), Filler::new(&server));
    let kept = Xorb::mixed(&mut rng, 2);
    assert_eq!(client.post(&kept.path(), kept.bytes.clone()).await.status, 201);
    let (mut stored, mut refused) = (vec![kept], Vec::new());
    // From nothing at all to what the draft takes, and then what the index takes.
    for page_count in 0..40 {
        filler.leave(page_count);
        let len = usize::try_from(page_count % 5).expect("small") * 4096 + 100;
        let xorb = Xorb::stored(random_bytes(&mut rng, len).chunks(5000));
        let response = client.post(&xorb.path(), xorb.bytes.clone()).await;

        match response.status {
            201 => stored.push(xorb),
            _ => {
                response.problem(507, "out_of_space");
                refused.push(xorb);
            }
        }
    }
    assert!(stored.len() > 1 && !refused.is_empty());
    filler.leave(0);
    client.get("/readyz").await.problem(503, "not_ready");
    let check = async |server: &TestServer| {
        for xorb in &stored {
            let response = server.client().get(&xorb.path()).await;
            assert!(response.status == 200 && response.body == xorb.bytes, "{}: {}", xorb.hash(), response.status);
        }
        for xorb in &refused {
            server.client().get(&xorb.path()).await.problem(404, "not_found");
        }
    };
    check(&server).await;
    filler.leave(200);
    assert_eq!(client.get("/readyz").await.status, 200);
    let tmp = server.seen_from_inside(&server.data_dir().join("tmp"));
    eventually("every draft is gone", async || tmp.read_dir().expect("the directory is there").count() == 0).await;
    // What was refused is welcome now.
    for xorb in &refused {
        assert_eq!(client.post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
    }
}

/// The branch never has a commit that was refused, and every file of it is read.
#[tokio::test]
async fn commit_to_a_nearly_full_disk_is_made_or_refused() {
    // With room for the longest WAL, which a fast machine writes between two checkpoints.
    let server = Start::default().on_small_disk(32).start();
    let (client, filler) = (server.client(), Filler::new(&server));
    create(&client, "model").await;
    let (mut made, mut refused) = (files(&client, "me/model", "main", 1000).await, Files::new());
    for page_count in 0..60 {
        filler.leave(page_count);
        let path = format!("{page_count}.txt");
        let contents = path.repeat(1 + usize::try_from(page_count).unwrap() % 5 * 500).into_bytes();
        let body = commit_body("a commit", None, &[put(&path, &contents)]);
        let response = client.post("/api/models/me/model/commit/main", body).await;
        if response.status == 200 {
            made.insert(path, contents);
        } else {
            response.problem(507, "out_of_space");
            refused.insert(path, contents);
        }
    }
    assert!(made.len() > 2 && !refused.is_empty(), "{} made, {} refused", made.len(), refused.len());
    assert_eq!(files(&client, "me/model", "main", 1000).await, made);
    filler.leave(u64::MAX);
    eventually("there is room again", async || client.get("/readyz").await.status == 200).await;
    for (path, contents) in refused {
        assert_eq!(commit(&client, "me/model", None, &[put(&path, &contents)]).await.0, 200, "{path}");
        made.insert(path, contents);
    }
    assert_eq!(files(&client, "me/model", "main", 1000).await, made);
}

/// Everything else is served.
#[tokio::test]
async fn below_low_water_mark_writes_are_refused_before_their_body() {
    const MARK: u64 = 4 << 20;
    let mut rng = rng();
    let server = Start::default().on_small_disk(8).with("min_free_space", MARK).with("grants", true).start();
    let (client, filler) = (server.client(), Filler::new(&server));
    let (kept, refused) = (Xorb::mixed(&mut rng, 3), Xorb::mixed(&mut rng, 3));
    assert_eq!(client.post(&kept.path(), kept.bytes.clone()).await.status, 201);
    let shard = upload_shard(&kept, 0, 2);
    assert_eq!(register(&client, shard.bytes()).await, 1);

    filler.leave(MARK / PAGE_LEN / 2);
    eventually("the mark is noticed", async || Metrics::of(&client).await.get("zorb_store_free_bytes") < MARK as f64)
        .await;
    let mut upload = Raw::begin_upload(&server, &refused.path(), refused.bytes.len()).await;
    upload.response().await.problem(507, "out_of_space");
    let other = upload_shard(&kept, 1, 3);
    client.post("/v1/shards", other.bytes()).await.problem(507, "out_of_space");
    let wanted = r#"{"length":1000,"checksum":{"algo":"crc64nvme","value":"1"}}"#;
    let path = format!("/v1/xorb-grants/default/{}", refused.hash());
    client.post(&path, wanted).await.problem(507, "out_of_space");
    // It is no reason to send readers elsewhere.
    assert_eq!(client.get("/readyz").await.status, 200);
    assert_eq!(client.get(&kept.path()).await.body, kept.bytes);
    assert_eq!(read_file(&client, "v1", &shard.file_hash(), None).await.unwrap(), kept.raw(0, 2));
    assert!(server.log().contains("min_free_space"));

    filler.leave(MARK * 3 / 2 / PAGE_LEN);
    eventually("uploads are taken again", async || {
        client.post(&refused.path(), refused.bytes.clone()).await.status == 201
    })
    .await;
    assert_eq!(register(&client, other.bytes()).await, 1);
}

/// What one client has sent, and whether it was acknowledged.
#[derive(Default)]
struct Sent {
    xorbs: HashMap<String, (Xorb, bool)>,
    files: HashMap<String, (Xorb, bool)>,
}

/// Uploads xorbs and registers files until the store was full for a while.
async fn send_until_full(client: Client, mut rng: StdRng) -> Sent {
    let (mut sent, mut refusals) = (Sent::default(), 0);
    while refusals < 12 {
        // Small ones, too: they still fit when the others do not, and then it is the index that is full.
        let len = if rng.random() { rng.random_range(16..3000) } else { rng.random_range(16..300_000) };
        let xorb = Xorb::incompressible(&mut rng, len);
        let response = client.post(&xorb.path(), xorb.bytes.clone()).await;
        let is_stored = response.status == 201;
        if !is_stored {
            response.problem(507, "out_of_space");
            refusals += 1;
        }
        sent.xorbs.insert(xorb.hash(), (xorb.clone(), is_stored));
        if is_stored {
            let shard = upload_shard(&xorb, 0, xorb.chunk_count());
            let response = client.post("/v1/shards", shard.bytes()).await;
            let is_registered = response.status == 200;
            if !is_registered {
                response.problem(507, "out_of_space");
                refusals += 1;
            }
            sent.files.insert(shard.file_hash(), (xorb, is_registered));
        }
    }
    sent
}

async fn check_sent(server: &TestServer, sent: &Sent) {
    let client = server.client();
    for (hash, (xorb, is_stored)) in &sent.xorbs {
        let response = client.get(&xorb.path()).await;
        assert_eq!(response.status, if *is_stored { 200 } else { 404 }, "{hash}");
        assert!(!is_stored || response.body == xorb.bytes, "{hash}");
    }
    for (file, (xorb, is_registered)) in &sent.files {
        match read_file(&client, "v1", file, None).await {
            Ok(contents) => assert!(*is_registered && contents == xorb.raw, "{file}"),
            Err(response) => assert!(!is_registered && response.status == 404, "{file}: {}", response.status),
        }
    }
}

async fn check_disk_that_fills(min_free_space: u64) {
    let mut rng = rng();
    let server = Start::default().on_small_disk(24).with("min_free_space", min_free_space).start();
    let filler = Filler::new(&server);
    filler.leave(10 << 20 >> 12);
    let mut clients = JoinSet::new();
    for _ in 0..4 {
        clients.spawn(send_until_full(server.client(), StdRng::from_rng(&mut rng)));
    }
    let mut sent = Sent::default();
    while let Some(one) = clients.join_next().await {
        let one = one.unwrap();
        sent.xorbs.extend(one.xorbs);
        sent.files.extend(one.files);
    }
    let stored = sent.xorbs.values().filter(|(_, is_stored)| *is_stored).count();
    let registered = sent.files.values().filter(|(_, is_registered)| *is_registered).count();
    println!("full: {stored} of {} xorbs stored, {registered} files registered", sent.xorbs.len());
    assert!(stored > 10 && registered > 10);
    check_sent(&server, &sent).await;

    // Nothing half-written is left, and what could not be entered is known to be nothing.
    let data_dir = server.seen_from_inside(server.data_dir());
    eventually("every draft is gone", async || data_dir.join("tmp").read_dir().unwrap().count() == 0).await;
    let sum = |sent: &Sent, all: bool| -> u64 {
        sent.xorbs.values().filter(|(_, is_stored)| all || *is_stored).map(|(xorb, _)| xorb.bytes.len() as u64).sum()
    };
    let there: u64 = blobs(&data_dir).values().sum();
    assert!(there >= sum(&sent, false) && there <= sum(&sent, true), "{there} bytes");

    // The same server goes on when there is room again.
    filler.leave(u64::MAX);
    let client = server.client();
    eventually("there is room again", async || client.get("/readyz").await.status == 200).await;
    for (xorb, is_stored) in sent.xorbs.values_mut().filter(|(_, is_stored)| !is_stored) {
        eventually("what was refused is taken", async || {
            client.post(&xorb.path(), xorb.bytes.clone()).await.status == 201
        })
        .await;
        *is_stored = true;
    }
    for (xorb, is_registered) in sent.files.values_mut().filter(|(_, is_registered)| !is_registered) {
        register(&client, upload_shard(xorb, 0, xorb.chunk_count()).bytes()).await;
        *is_registered = true;
    }
    check_sent(&server, &sent).await;
    // Where the index was full after a blob was published, the second upload has another one. The index knows the
    // first one as an object, which GC deletes after 3 hours.
    server.pause();
    let (mut there, objects) = (blobs(&data_dir), objects(&data_dir).await);
    let count = there.len();
    there.retain(|name, _| !objects.contains(name));
    println!("{} of {count} blobs are objects", count - there.len());
    let by_hash = |(name, len): (&String, &u64)| (name.split('.').next().unwrap().to_owned(), *len);
    let expected = sent.xorbs.iter().map(|(hash, (xorb, _))| (hash.clone(), xorb.bytes.len() as u64));
    assert_eq!(there.iter().map(by_hash).collect::<BTreeMap<_, _>>(), expected.collect());
    assert_eq!(there.len(), sent.xorbs.len());
}

/// The lengths of all blobs, by their names.
fn blobs(data_dir: &Path) -> HashMap<String, u64> {
    let groups = data_dir.join("xorbs").read_dir().unwrap();
    let blobs = groups.flat_map(|group| group.unwrap().path().read_dir().unwrap()).map(Result::unwrap);
    blobs.map(|blob| (blob.file_name().into_string().unwrap(), blob.metadata().unwrap().len())).collect()
}

/// The names of blobs that no xorb has, as far as the index of a paused server knows them. From a copy, because SQLite
/// opens no file of another mount namespace.
async fn objects(data_dir: &Path) -> HashSet<String> {
    let copy = tempfile::tempdir().unwrap();
    for name in ["index.sqlite", "index.sqlite-wal"] {
        std::fs::copy(data_dir.join(name), copy.path().join(name)).unwrap();
    }
    let options = SqliteConnectOptions::new().filename(copy.path().join("index.sqlite"));
    let mut connection = options.connect().await.unwrap();
    let rows: Vec<(Vec<u8>, i64)> =
        sqlx::query_as("SELECT hash, incarnation FROM objects").fetch_all(&mut connection).await.unwrap();
    let name = |(hash, incarnation): (Vec<u8>, i64)| {
        format!("{}.{incarnation:016x}", XorbHash::from_bytes(hash.try_into().unwrap()))
    };
    rows.into_iter().map(name).collect()
}

/// While clients upload and register.
#[tokio::test]
async fn disk_that_fills_under_load_loses_nothing_and_recovers() {
    check_disk_that_fills(0).await;
}

#[tokio::test]
async fn so_does_one_with_a_low_water_mark() {
    check_disk_that_fills(2 << 20).await;
}
