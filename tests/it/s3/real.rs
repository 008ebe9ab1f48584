//! What any S3 store must do. `tests/garage.sh` runs these tests with a real one.

use super::direct::public;
use super::{add, start, zorb};
use crate::cli::Directory;
use crate::support::backend::Backend;
use crate::support::{Xorb, read_file, rng, urls_of};

#[tokio::test]
async fn store_survives_restart_and_kill_and_is_checked_and_backed_up() {
    let (backend, directory) = (Backend::any().await, Directory::new());
    let data = directory.path("data");
    let dir = ["--data-dir", data.to_str().unwrap()];
    let server = start(&backend, &data);
    let ran = zorb(&public(backend.with("s3_public_endpoint", "")), &["check"]);
    assert_eq!(ran.code, Some(0), "{} {}", ran.stderr, String::from_utf8_lossy(&ran.stdout));
    let (mut rng, client) = (rng(), server.client());
    // The last one is sent to the S3 store in parts.
    let xorbs = [Xorb::mixed(&mut rng, 7), Xorb::mixed(&mut rng, 5), Xorb::incompressible(&mut rng, 20 << 20)];
    let mut files = Vec::new();
    for xorb in &xorbs {
        files.push(add(&client, xorb).await);
    }
    assert!(server.log().contains("created a new store") && server.log().contains("blobs=\"s3\""), "{}", server.log());
    server.terminate();
    assert!(server.wait().success());
    let server = start(&backend, &data);
    files.push(add(&server.client(), &Xorb::mixed(&mut rng, 4)).await);
    server.kill();
    let server = start(&backend, &data);
    let client = server.client();
    for (hash, contents) in &files {
        assert_eq!(&read_file(&client, "v1", hash, None).await.unwrap(), contents);
        assert_eq!(&read_file(&client, "v2", hash, None).await.unwrap(), contents);
    }
    // Also past the server.
    server.terminate();
    assert!(server.wait().success());
    let server = start(&public(backend.with("s3_public_endpoint", "")), &data);
    let client = server.client();
    for (hash, contents) in &files {
        let plan = client.get(&format!("/v2/reconstructions/{hash}")).await.json();
        assert!(urls_of(&plan).iter().all(|(url, _)| url.starts_with(backend.get("s3_endpoint"))), "{plan}");
        assert_eq!(&read_file(&client, "v2", hash, None).await.unwrap(), contents);
    }
    for xorb in &xorbs {
        let range = format!("{}?range=1-3", xorb.path());
        assert_eq!(client.get(&range).await.body, xorb.serialized(1, 3));
    }
    assert_eq!(client.get("/readyz").await.status, 200);
    assert_eq!(client.get("/metrics").await.status, 200);
    for name in ["xorbs", "shards", "store", "index.sqlite"] {
        assert!(!data.join(name).exists(), "{name} is not in the data directory");
    }
    assert_eq!(std::fs::read_dir(data.join("tmp")).unwrap().count(), 0, "no draft is left");

    let archive = directory.path("store.rca");
    for args in [&["fsck", "--deep"][..], &["backup", archive.to_str().unwrap()]] {
        let ran = zorb(&backend, &[args, &dir[..]].concat());
        assert_eq!(ran.code, Some(0), "{args:?}: {}", ran.stderr);
    }
    server.terminate();
    assert!(server.wait().success());
    for args in [&["gc", "--compact"][..], &["fsck", "--repair"]] {
        let ran = zorb(&backend, &[args, &dir[..]].concat());
        assert_eq!(ran.code, Some(0), "{args:?}: {}", ran.stderr);
    }

    // The archive restores to a data directory.
    let restored = directory.path("restored");
    let ran = directory.zorb(&["restore", archive.to_str().unwrap(), "--data-dir", restored.to_str().unwrap()]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let server = crate::support::Start::default().data_dir(&restored).start();
    for (hash, contents) in &files {
        assert_eq!(&read_file(&server.client(), "v1", hash, None).await.unwrap(), contents);
    }
}
