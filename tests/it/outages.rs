//! A machine out of something: a read-only file system, a disk that fails, a used-up disk quota, too many open files.
//! Writes are refused with the code for the cause, reads go on. Afterwards the same server goes on without a restart.
//!
//! The file system's errors come from a library that is preloaded (`outages/shim.c`): a real file system that fails on
//! command needs a kernel module. The limit of open files is the real one.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;

use rand::rngs::StdRng;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use crate::support::{Client, Raw, Response, Start, TestServer, Xorb, eventually, read_file, rng, root, upload_shard};

/// A server whose changes to files can be made to fail.
pub struct Shimmed {
    pub server: TestServer,
    mode: PathBuf,
    _directory: tempfile::TempDir,
}

impl Shimmed {
    pub fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (library, mode, data_dir) =
            (directory.path().join("shim.so"), directory.path().join("mode"), directory.path().join("data"));
        let source = root().join("tests/it/outages/shim.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).arg("-ldl");
        assert!(compiler.status().expect("whoever builds this has the linker cc").success());
        fs::write(&mode, "-").unwrap();
        let server = Start::default()
            .data_dir(&data_dir)
            .env("LD_PRELOAD", &library)
            .env("ZORB_SHIM_DIRECTORY", &data_dir)
            .env("ZORB_SHIM_MODE", &mode)
            .start();
        Self { server, mode, _directory: directory }
    }

    /// What fails from now on; see the library.
    pub fn set(&self, mode: &str) {
        // In place: the server has the file mapped, and dies where it looks at one that is cut to nothing.
        let file = fs::OpenOptions::new().write(true).open(&self.mode).unwrap();
        file.write_all_at(mode.as_bytes(), 0).unwrap();
    }
}

/// A xorb and the file that its chunks make.
struct Sample {
    xorb: Xorb,
    shard: Vec<u8>,
    file: String,
}

impl Sample {
    fn new(rng: &mut StdRng) -> Self {
        let xorb = Xorb::mixed(rng, 5);
        let shard = upload_shard(&xorb, 0, 5);
        Self { shard: shard.bytes(), file: shard.file_hash(), xorb }
    }

    async fn upload(&self, client: &Client) -> Response {
        client.post(&self.xorb.path(), self.xorb.bytes.clone()).await
    }

    async fn register(&self, client: &Client) -> Response {
        client.post("/v1/shards", self.shard.clone()).await
    }

    async fn store(&self, client: &Client) {
        assert_eq!(self.upload(client).await.status, 201);
        assert_eq!(self.register(client).await.status, 200);
    }

    async fn check_served(&self, client: &Client) {
        let response = client.get(&self.xorb.path()).await;
        assert!(response.status == 200 && response.body == self.xorb.bytes, "{}: {:?}", response.status, response.body);
        assert_eq!(read_file(client, "v1", &self.file, None).await.unwrap(), self.xorb.raw);
    }

    async fn check_absent(&self, client: &Client) {
        client.head(&self.xorb.path()).await.check_status(404);
        assert_eq!(read_file(client, "v1", &self.file, None).await.unwrap_err().status, 404);
    }
}

impl Response {
    fn check_status(&self, status: u16) {
        assert_eq!(self.status, status, "{:?}", self.body);
    }

    fn check_outage(&self) {
        self.problem(503, "unavailable");
        assert!(self.header("retry-after").parse::<u32>().unwrap() > 0);
    }
}

/// Refused while it lasts, with reads going on, and over when it is over.
async fn check(mode: &str, advice: &str, check_refusal: fn(&Response)) {
    let mut rng = rng();
    let shimmed = Shimmed::start();
    let client = shimmed.server.client();
    let kept = Sample::new(&mut rng);
    kept.store(&client).await;
    let unregistered = Sample::new(&mut rng);
    unregistered.upload(&client).await.check_status(201);

    // Several times: what breaks in a connection to the index shows in the next use of it.
    for round in 0..3 {
        let refused = Sample::new(&mut rng);
        shimmed.set(mode);
        for _ in 0..2 {
            check_refusal(&refused.upload(&client).await);
            if round == 0 {
                check_refusal(&unregistered.register(&client).await);
            }
        }
        kept.check_served(&client).await;
        refused.check_absent(&client).await;
        shimmed.server.client().get("/readyz").await.problem(503, "not_ready");
        assert!(shimmed.server.log().contains(advice), "{}", shimmed.server.log());

        shimmed.set("-");
        refused.upload(&client).await.check_status(201);
        refused.register(&client).await.check_status(200);
        unregistered.register(&client).await.check_status(200);
        for sample in [&refused, &unregistered, &kept] {
            sample.check_served(&client).await;
        }
        client.get("/readyz").await.check_status(200);
    }
    // Nothing half-written is left, at the latest after a start.
    let server = shimmed.server.restart();
    assert_eq!(server.drafts(), 0);
    // The two samples, and one of each round.
    assert_eq!(server.blobs().len(), 5);
    kept.check_served(&server.client()).await;
}

#[tokio::test]
async fn read_only_period_of_the_disk_costs_only_its_writes() {
    check("r", "read-only", Response::check_outage).await;
}

#[tokio::test]
async fn failing_disk_costs_only_the_writes_of_that_time() {
    check("i", "the disk fails", Response::check_outage).await;
}

#[tokio::test]
async fn a_used_up_disk_quota_is_a_full_store_for_blobs() {
    let mut rng = rng();
    let shimmed = Shimmed::start();
    let client = shimmed.server.client();
    let (kept, refused) = (Sample::new(&mut rng), Sample::new(&mut rng));
    kept.store(&client).await;
    shimmed.set("q");
    refused.upload(&client).await.problem(507, "out_of_space");
    kept.check_served(&client).await;
    shimmed.set("-");
    refused.store(&client).await;
    refused.check_served(&client).await;
}

#[tokio::test]
async fn without_descriptors_requests_are_refused_until_one_is_free() {
    let mut rng = rng();
    let server = TestServer::start();
    let client = server.client();
    let (kept, refused) = (Sample::new(&mut rng), Sample::new(&mut rng));
    kept.store(&client).await;
    kept.check_served(&client).await;
    let unread = Sample::new(&mut rng);
    unread.store(&client).await;
    // Taken before; a new one would wait until there is a file for it.
    let mut connection = Raw::connect(&server).await;
    connection.send("GET /healthz HTTP/1.1\r\nhost: zorb\r\n\r\n").await;
    assert_eq!(connection.response().await.status, 200);
    let before = limit_files(&server, Some(0));

    for _ in 0..3 {
        let (path, len) = (refused.xorb.path(), refused.xorb.bytes.len());
        connection.send(format!("POST {path} HTTP/1.1\r\nhost: zorb\r\ncontent-length: {len}\r\n\r\n")).await;
        connection.send(&refused.xorb.bytes).await;
        connection.response().await.check_outage();
        connection.send(format!("GET {} HTTP/1.1\r\nhost: zorb\r\n\r\n", unread.xorb.path())).await;
        connection.response().await.check_outage();
        // What has been read of late is open.
        connection.send(format!("GET {} HTTP/1.1\r\nhost: zorb\r\n\r\n", kept.xorb.path())).await;
        assert!(connection.response().await.body == kept.xorb.bytes);
    }
    assert!(server.log().contains("too many files are open"), "{}", server.log());
    limit_files(&server, before);
    kept.check_served(&client).await;
    unread.check_served(&client).await;
    refused.check_absent(&client).await;
    refused.store(&client).await;
    refused.check_served(&client).await;
    // Connections are taken again, too.
    eventually("a new client is served", async || {
        Response::try_of(server.client().request(reqwest::Method::GET, "/readyz"))
            .await
            .is_ok_and(|it| it.status == 200)
    })
    .await;
    assert_eq!(server.drafts(), 0);
}

/// Sets the number of files that a server may have open; returns what it was.
fn limit_files(server: &TestServer, limit: Option<u64>) -> Option<u64> {
    let pid = Pid::from_raw(i32::try_from(server.pid()).unwrap());
    let limits = Rlimit { current: limit, maximum: getrlimit(Resource::Nofile).maximum };
    prlimit(pid, Resource::Nofile, limits).expect("the server is a child of this process").current
}
