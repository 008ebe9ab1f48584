//! Mostly dead xorbs are rewritten: by `zorb gc --compact` beside a server that goes on serving, and by the server itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::cli::Directory;
use crate::gc::{DAY, age, collect, count};
use crate::support::{
    Client, Metrics, Start, TestServer, UploadShard, Xorb, eventually, read_file, register, rng, shard_of, upload_shard,
};

/// A server with three xorbs of twelve chunks each, of two of which files need two or three, old enough to be rewritten.
struct Stocked {
    server: TestServer,
    xorbs: Vec<Xorb>,
    shards: Vec<UploadShard>,
    contents: Vec<Vec<u8>>,
}

impl Stocked {
    async fn new(start: Start) -> Self {
        let (server, mut rng) = (start.start(), rng());
        let client = server.client();
        // As long as each other and as what they hold, so that shares are those of chunks.
        let chunk = |rng: &mut _| crate::support::random_bytes(rng, 5000);
        let xorbs: Vec<Xorb> = (0..3)
            .map(|_| {
                let chunks: Vec<Vec<u8>> = (0..12).map(|_| chunk(&mut rng)).collect();
                Xorb::of(zorb::format::compression::Policy::None, &chunks)
            })
            .collect();
        for xorb in &xorbs {
            assert_eq!(client.post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
        }
        let [a, b, c] = &xorbs[..] else { panic!("three") };
        let shards = vec![upload_shard(a, 3, 5), shard_of(&[(b, 7, 9), (a, 4, 5), (c, 0, 12)]), upload_shard(b, 8, 10)];
        let mut contents = Vec::new();
        for shard in &shards {
            register(&client, shard.bytes()).await;
            contents.push(read_file(&client, "v1", &shard.file_hash(), None).await.unwrap());
        }
        age(server.data_dir(), 21 * DAY).await;
        Self { server, xorbs, shards, contents }
    }

    async fn check_served(&self, client: &Client) {
        for (shard, contents) in self.shards.iter().zip(&self.contents) {
            for version in ["v1", "v2"] {
                let read = read_file(client, version, &shard.file_hash(), None).await;
                assert_eq!(&read.unwrap(), contents);
            }
        }
    }
}

#[tokio::test]
async fn dry_run_says_what_would_be_rewritten_and_changes_nothing() {
    let stocked = Stocked::new(Start::default()).await;
    let (directory, data_dir) = (Directory::new(), stocked.server.data_dir().to_owned());
    let [a, b, _] = &stocked.xorbs[..] else { panic!("three") };
    let before = stocked.server.blobs();
    let (plan, planned) = collect(&directory, &data_dir, &["--compact", "--dry-run"]);
    let of = |action: &str| -> Vec<&Value> { planned.iter().filter(|line| line["action"] == action).collect() };
    assert_eq!((of("compact").len(), of("make").len()), (2, 1), "{planned:?}");
    let mut old: Vec<&str> = of("compact").iter().map(|line| line["xorb"].as_str().unwrap()).collect();
    old.sort_unstable();
    let mut expected = [a.hash(), b.hash()];
    expected.sort();
    assert_eq!(old, expected);
    let made = of("make")[0];
    assert_eq!((made["chunks"].as_u64(), made["from"].as_array().unwrap().len()), (Some(5), 2));
    assert!(of("compact").iter().all(|line| line["into"] == made["xorb"]));
    let line = of("compact").into_iter().find(|line| line["xorb"] == a.hash().as_str()).unwrap();
    assert_eq!((line["serialized_len"].as_u64(), line["live_len"].as_u64()), (Some(12 * 5008), Some(2 * 5008)));
    assert_eq!(line["reason"], "16 % of it is referenced, below the threshold of 0.5");
    let compaction = &plan["compaction"];
    assert_eq!((count(compaction, "rewritten"), count(compaction, "made")), (2, 1));
    assert_eq!(compaction["saved_len"], (24 - 5) * 5008);
    assert_eq!(count(&compaction["retained"], "needed"), 1);
    // In words, and with another share.
    let dir = data_dir.to_str().unwrap();
    let text = directory.zorb(&["gc", "--compact", "--dry-run", "--data-dir", dir]).ok().text();
    for part in [
        "compact: 16 % of it is referenced",
        "make: 5 chunks of 2 xorbs",
        "would rewrite: 2 xorbs",
        "freed after the grace period",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let (plan, _) = collect(&directory, &data_dir, &["--compact", "--dry-run", "--min-live", "0.2"]);
    assert_eq!(count(&plan["compaction"], "rewritten"), 1);
    assert_eq!(stocked.server.blobs(), before, "a dry run makes nothing");
    assert!(collect(&directory, &data_dir, &["--dry-run"]).0.get("compaction").is_none());
    stocked.check_served(&stocked.server.client()).await;
}

/// Readers that go on until they are told to stop, and never get anything else.
struct Reading {
    stop: Arc<AtomicBool>,
    count: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Reading {
    fn of(stocked: &Stocked) -> Self {
        let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (client, is_over, read) = (stocked.server.client(), Arc::clone(&stop), Arc::clone(&count));
        let files: Vec<(String, Vec<u8>)> =
            stocked.shards.iter().map(UploadShard::file_hash).zip(stocked.contents.clone()).collect();
        let task = tokio::spawn(async move {
            while !is_over.load(Ordering::SeqCst) {
                for (file, contents) in &files {
                    assert_eq!(&read_file(&client, "v2", file, None).await.unwrap(), contents);
                    read.fetch_add(1, Ordering::SeqCst);
                }
            }
        });
        Self { stop, count, task }
    }

    /// Waits until some more files were read.
    async fn goes_on(&self) {
        let seen = self.count.load(Ordering::SeqCst);
        eventually("somebody reads", async || self.count.load(Ordering::SeqCst) > seen + 3).await;
    }

    async fn end(self) {
        self.stop.store(true, Ordering::SeqCst);
        self.task.await.unwrap();
    }
}

/// The server is read from meanwhile.
#[tokio::test]
async fn xorbs_are_rewritten_beside_a_server_and_old_ones_removed() {
    let stocked = Stocked::new(Start::default()).await;
    let (directory, client, data_dir) =
        (Directory::new(), stocked.server.client(), stocked.server.data_dir().to_owned());
    let reading = Reading::of(&stocked);
    reading.goes_on().await;
    let running = tokio::task::spawn_blocking({
        let data_dir = data_dir.clone();
        move || collect(&Directory::new(), &data_dir, &["--compact"]).0
    });
    let done = running.await.unwrap();
    reading.goes_on().await;
    reading.end().await;
    let compaction = &done["compaction"];
    let counts = (count(compaction, "rewritten"), count(compaction, "made"), compaction["files"].as_u64());
    assert_eq!(counts, (2, 1, Some(3)));
    assert_eq!((compaction["failed"].as_u64(), compaction["damaged"].as_u64()), (Some(0), Some(0)), "{done}");
    let plan = client.get(&format!("/v1/reconstructions/{}", stocked.shards[0].file_hash())).await.json();
    let made = plan["terms"][0]["hash"].as_str().unwrap().to_owned();
    assert!(stocked.xorbs.iter().all(|xorb| xorb.hash() != made) && stocked.server.blobs().contains(&made));
    let (again, _) = collect(&directory, &data_dir, &["--compact"]);
    assert_eq!((count(&again["compaction"], "rewritten"), &again["compaction"]["files"]), (0, &json!(0)));

    age(&data_dir, 21 * DAY).await;
    collect(&directory, &data_dir, &[]);
    age(&data_dir, DAY).await;
    assert_eq!(count(&collect(&directory, &data_dir, &[]).0, "deleted"), 2);
    let mut left = stocked.server.blobs();
    left.sort();
    let mut expected = vec![stocked.xorbs[2].hash(), made];
    expected.sort();
    assert_eq!(left, expected);
    stocked.check_served(&client).await;
}

#[tokio::test]
async fn compacted_files_are_served_by_rebuilt_index_and_backup() {
    let mut stocked = Stocked::new(Start::default()).await;
    let directory = Directory::new();
    let data_dir = stocked.server.data_dir().to_owned();
    let dir = data_dir.to_str().unwrap();
    // A backup before, and one after that only adds to it.
    directory.zorb(&["backup", "store.rca", "--data-dir", dir]).ok();
    collect(&directory, &data_dir, &["--compact"]);
    let records = directory.zorb(&["backup", "store.rca", "--json", "--data-dir", dir]).ok().records();
    assert_eq!(
        (&records[0]["xorbs"], &records[0]["files"], &records[0]["problems"]),
        (&json!(1), &json!(3), &json!(0))
    );
    directory.zorb(&["backup", "store.rca", "--verify"]).ok();
    for _ in 0..2 {
        age(&data_dir, 21 * DAY).await;
        collect(&directory, &data_dir, &[]);
    }
    assert_eq!(stocked.server.blobs().len(), 2);
    let directories = stocked.server.directory();
    stocked.server.terminate();
    let (status, log) = stocked.server.exit().await;
    assert!(status.success(), "{log}");
    directory.zorb(&["index", "rebuild", "--data-dir", dir]).ok();
    stocked.server = Start::default().data_dir(&data_dir).start();
    stocked.server.keep(directories);
    stocked.check_served(&stocked.server.client()).await;

    let copy = directory.path("copy");
    directory.zorb(&["restore", "store.rca", "--data-dir", copy.to_str().unwrap()]).ok();
    let restored = Start::default().data_dir(&copy).start();
    stocked.check_served(&restored.client()).await;
}

#[tokio::test]
async fn invalid_share_is_refused_and_so_is_share_without_compact() {
    let (server, directory) = (TestServer::start(), Directory::new());
    let dir = server.data_dir().to_str().unwrap();
    for share in ["0", "-0.5", "1.5", "half", "nan"] {
        let share = format!("--min-live={share}");
        let ran = directory.zorb(&["gc", "--compact", &share, "--data-dir", dir]);
        assert_eq!(ran.code, Some(2), "{share}: {ran:?}");
        assert!(ran.stderr.contains("more than 0 and at most 1, such as 0.5"), "{share}: {ran:?}");
    }
    let ran = directory.zorb(&["gc", "--min-live", "0.5", "--data-dir", dir]);
    assert!(ran.code == Some(2) && ran.stderr.contains("--compact"), "{ran:?}");
}

#[tokio::test]
async fn nothing_is_copied_where_there_is_too_little_room() {
    let stocked = Stocked::new(Start::default()).await;
    let directory = Directory::new();
    directory.write("zorb.toml", b"min_free_space = 9000000000000000000\n");
    let (dir, config) = (stocked.server.data_dir().to_str().unwrap(), directory.path("zorb.toml"));
    let ran = directory.zorb(&["gc", "--compact", "--data-dir", dir, "--config", config.to_str().unwrap()]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("compaction stopped early") && ran.stderr.contains("free"), "{ran:?}");
    assert_eq!(stocked.server.blobs().len(), 3);
    stocked.check_served(&stocked.server.client()).await;
}

#[tokio::test]
async fn server_told_to_compact_does_so_and_counts_it() {
    // As old as its files have to be only once the server runs: so it looks often, and finds something in the end.
    let stocked = Stocked::new(Start::default()).await;
    let server = stocked.server.restart_with(|start| start.with("gc_interval", "1s").with("gc_min_live", 0.5));
    let client = server.client();
    eventually("it compacts", async || Metrics::of(&client).await.get("zorb_gc_compacted_xorbs_total") == 2.0).await;
    let metrics = Metrics::of(&client).await;
    assert_eq!(metrics.get("zorb_gc_switched_files_total"), 3.0);
    assert_eq!(metrics.get("zorb_gc_compaction_written_bytes_total"), 5.0 * 5008.0);
    assert_eq!(metrics.get("zorb_gc_compaction_failures_total"), 0.0);
    for (shard, contents) in stocked.shards.iter().zip(&stocked.contents) {
        assert_eq!(&read_file(&client, "v1", &shard.file_hash(), None).await.unwrap(), contents);
    }
    server.terminate();
    let (status, log) = server.exit().await;
    assert!(status.success() && log.contains("compaction finished"), "{log}");
}

/// An older copy of the index lacks a record. A compaction would hide that from the next start, which applies it.
#[tokio::test]
async fn index_that_was_set_back_is_started_before_it_is_compacted() {
    let Stocked { server, xorbs, shards, contents } = Stocked::new(Start::default()).await;
    let (directory, data_dir, kept) = (Directory::new(), server.data_dir().to_owned(), server.directory());
    let (index, copy) = (data_dir.join("index.sqlite"), directory.path("copy"));
    let stop = |server: TestServer| {
        server.terminate();
        assert!(server.wait().success());
    };
    stop(server);
    std::fs::copy(&index, &copy).unwrap();
    let server = Start::default().data_dir(&data_dir).start();
    let new = upload_shard(&xorbs[2], 1, 12);
    assert_eq!(register(&server.client(), new.bytes()).await, 1);
    stop(server);
    std::fs::copy(&copy, &index).unwrap();
    let gc = ["gc", "--compact", "--data-dir", data_dir.to_str().unwrap()];
    let complaints = ["has not applied 1 record", "start zorb serve once"];
    directory.zorb(&gc).failed(1, &complaints);
    // Nor beside a process that holds the lock and applies nothing, such as `zorb fsck`.
    let lock = std::fs::File::open(data_dir.join("lock")).unwrap();
    lock.lock().unwrap();
    directory.zorb(&gc).failed(1, &complaints);
    drop(lock);
    let server = Start::default().data_dir(&data_dir).start();
    assert_eq!(read_file(&server.client(), "v1", &new.file_hash(), None).await.unwrap(), xorbs[2].raw(1, 12));
    stop(server);
    let (done, _) = collect(&directory, &data_dir, &["--compact"]);
    assert_eq!(count(&done["compaction"], "rewritten"), 2, "{done}");
    let server = Start::default().data_dir(&data_dir).start();
    let stocked = Stocked { server, xorbs, shards, contents };
    stocked.check_served(&stocked.server.client()).await;
    drop(kept);
}
