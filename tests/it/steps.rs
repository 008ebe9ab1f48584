//! Registrations of very many files, which the server writes in steps.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use rand::RngExt;
use reqwest::Method;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::support::{Response, Start, TestServer, Xorb, kill_rounds, many_files, rng, upload_shard};

/// Files of the shard.
const FILE_COUNT: usize = 50_000;

/// How often the process is killed while it registers them, each time in another part of the
/// registration, by default. A quarter of the kills fall into the proof of the files, before the
/// server has a record of the registration. The others fall into the steps, after the record.
const KILL_COUNT: usize = 8;

/// A xorb that files of any number can be made of.
fn xorb() -> Xorb {
    let chunks: Vec<Vec<u8>> = (0..400_u32).map(|chunk| chunk.to_le_bytes().repeat(8)).collect();
    Xorb::of(zorb::format::compression::Policy::None, &chunks)
}

/// Files and bytes that the server says it has.
async fn file_count(server: &TestServer) -> u64 {
    let usage = server.client().get("/v1/usage?repo=*").await;
    assert_eq!(usage.status, 200, "{:?}", usage.body);
    usage.json()["repos"][0]["files"].as_u64().unwrap_or_else(|| panic!("{}", usage.json()))
}

/// Whether a file can be read.
async fn is_there(server: &TestServer, file: &zorb::format::FileHash) -> bool {
    let plan = server.client().get(&format!("/v1/reconstructions/{file}")).await;
    assert!(matches!(plan.status, 200 | 404), "{}", plan.status);
    plan.status == 200
}

/// A registration that is being sent.
struct Sent {
    began: Instant,
    /// How long it took, if it was acknowledged.
    took: JoinHandle<Option<Duration>>,
}

impl Sent {
    fn begin(server: &TestServer, shard: &[u8]) -> Self {
        let request = server.client().request(Method::POST, "/v1/shards").body(shard.to_vec());
        let began = Instant::now();
        let took = tokio::spawn(async move {
            let response = Response::try_of(request).await.ok();
            response.filter(|response| response.status == 200).map(|_| began.elapsed())
        });
        Self { began, took }
    }

    /// Waits for its record in this data directory, after which the server writes the steps, or for
    /// its end. Returns the time since its beginning.
    async fn record(&self, data_dir: &Path) -> Duration {
        let has_record = || {
            let groups = fs::read_dir(data_dir.join("shards")).into_iter().flatten().flatten();
            groups.flat_map(|group| fs::read_dir(group.path()).into_iter().flatten()).next().is_some()
        };
        while !has_record() && !self.took.is_finished() {
            sleep(Duration::from_millis(1)).await;
        }
        self.began.elapsed()
    }
}

#[tokio::test]
async fn a_killed_registration_of_50000_files_is_whole_or_absent() {
    let kill_count = u32::try_from(kill_rounds(KILL_COUNT)).unwrap();
    let proof_kill_count = kill_count / 4;
    let mut rng = rng();
    let directory = tempfile::tempdir().unwrap();
    let data_dir = directory.path().join("data");
    let xorb = xorb();
    let (shard, files) = many_files(&xorb, FILE_COUNT);
    let stocked = async || {
        let server = Start::default().data_dir(&data_dir).start();
        assert!(matches!(server.client().post(&xorb.path(), xorb.bytes.clone()).await.status, 200 | 201));
        server
    };
    // How long the proof and the steps take on this machine, so that the kills fall into them.
    let (proof_time, mut step_time) = {
        let server = stocked().await;
        let sent = Sent::begin(&server, &shard);
        let proof_time = sent.record(&data_dir).await;
        let took = sent.took.await.unwrap().expect("nothing has killed the server");
        server.kill();
        fs::remove_dir_all(&data_dir).unwrap();
        (proof_time, took.saturating_sub(proof_time))
    };
    let (mut acknowledged_count, mut replayed_count, mut absent_count) = (0, 0, 0);
    for kill in 0..kill_count {
        let server = stocked().await;
        let sent = Sent::begin(&server, &shard);
        let (after, time, number, count) = match kill.checked_sub(proof_kill_count) {
            None => (Duration::ZERO, proof_time, kill, proof_kill_count),
            Some(number) => (sent.record(&data_dir).await, step_time, number, kill_count - proof_kill_count),
        };
        let part = (f64::from(number) + rng.random_range(0.0..1.0)) / f64::from(count);
        sleep(time.mul_f64(part)).await;
        server.kill();
        let acknowledged_after = sent.took.await.unwrap();

        let begin = Instant::now();
        let server = Start::default().data_dir(&data_dir).start();
        let start = begin.elapsed();
        let (first, last) = (is_there(&server, &files[0]).await, is_there(&server, &files[FILE_COUNT - 1]).await);
        let sample = is_there(&server, &files[rng.random_range(0..FILE_COUNT)]).await;
        assert!(first == last && last == sample, "some of the files are there");
        assert!(first || acknowledged_after.is_none(), "it was acknowledged");
        let list = server.client().get("/v1/files").await.json();
        assert_eq!(!list["files"].as_array().unwrap().is_empty(), first, "the list says something else");
        assert_eq!(file_count(&server).await, if first { FILE_COUNT as u64 } else { 0 });
        server.kill();
        let phase = if kill < proof_kill_count { "proof" } else { "steps" };
        println!("killed at {:.0} % of the {phase}: whole: {first}, start: {start:.1?}", part * 100.0);
        match (acknowledged_after, first) {
            (Some(took), _) => {
                acknowledged_count += 1;
                // The steps take less time than before, so the next kills come sooner.
                if kill >= proof_kill_count {
                    step_time = step_time.min(took.saturating_sub(after));
                }
            }
            (None, true) => replayed_count += 1,
            (None, false) => absent_count += 1,
        }
        if first {
            // The next round begins without them.
            fs::remove_dir_all(&data_dir).unwrap();
        }
    }
    println!(
        "{kill_count} kills: {acknowledged_count} acknowledged, {replayed_count} applied by the next start, \
         {absent_count} absent"
    );
    assert!(replayed_count >= kill_count / 4, "only {replayed_count} kills fell into its steps");
}

#[tokio::test]
async fn small_registrations_pass_a_large_one() {
    let xorb = xorb();
    let server = TestServer::start();
    assert_eq!(server.client().post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
    let (shard, files) = many_files(&xorb, FILE_COUNT);
    let client = server.client();
    let large = tokio::spawn(async move { client.post("/v1/shards", shard).await });
    // Other files than those of the large one: of all chunks of further xorbs.
    let (mut rng, mut count) = (rng(), 0);
    while !large.is_finished() {
        let own = Xorb::mixed(&mut rng, 2);
        assert_eq!(server.client().post(&own.path(), own.bytes.clone()).await.status, 201);
        let response = server.client().post("/v1/shards", upload_shard(&own, 0, 2).bytes()).await;
        assert_eq!(response.status, 200, "{:?}", response.body);
        count += 1;
    }
    assert_eq!(large.await.unwrap().status, 200);
    assert!(count > 3, "{count} small ones passed it");
    for file in [&files[0], &files[FILE_COUNT - 1]] {
        assert!(is_there(&server, file).await);
    }
    let again = server.client().post("/v1/shards", many_files(&xorb, FILE_COUNT).0).await;
    assert_eq!(again.json()["result"], 0, "all of it is known");
}

#[tokio::test]
async fn shard_beyond_its_quota_is_refused_before_any_write() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("zorb.toml");
    fs::write(&config, "[quota.'*']\nfiles = 1000\n").unwrap();
    let server = Start::default().with("config", config.display()).start();
    let xorb = xorb();
    assert_eq!(server.client().post(&xorb.path(), xorb.bytes.clone()).await.status, 201);
    let (shard, files) = many_files(&xorb, FILE_COUNT);
    let refused = server.client().post("/v1/shards", shard).await;
    assert_eq!(refused.problem(413, "quota_exceeded")["limit"], 1000);
    assert!(!is_there(&server, &files[0]).await);
    let (shard, _) = many_files(&xorb, 1000);
    assert_eq!(server.client().post("/v1/shards", shard).await.status, 200);
    assert_eq!(file_count(&server).await, 1000);
}
