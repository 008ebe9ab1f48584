//! What goes in comes out, and later runs cost what is new.

use reqwest::Method;

use super::{Backups, check_served, store, store_many, text};
use crate::support::{Start, TestServer, Xorb, read_file, register, rng, upload_shard};

#[tokio::test]
async fn a_restored_directory_serves_the_same_bytes_as_the_first_one() {
    let (server, backups, mut rng) = (TestServer::start(), Backups::new(), rng());
    let stored = store_many(&server, &mut rng, 6).await;
    let record = backups.back_up(server.data_dir());
    assert_eq!((record["xorbs"].as_u64(), record["files"].as_u64()), (Some(6), Some(6)), "{record}");
    assert_eq!(record["archive_len"].as_u64(), Some(backups.archive_len()));
    let proof = backups.verify();
    assert_eq!((proof["xorbs"].as_u64(), proof["files"].as_u64()), (Some(6), Some(6)), "{proof}");
    let raw_len: usize = stored.iter().map(|stored| stored.xorb.raw.len()).sum();
    assert_eq!(proof["raw_len"].as_u64(), Some(raw_len as u64));

    let (data_dir, record) = backups.restore("new/place");
    assert_eq!((record["xorbs"].as_u64(), record["keys"].as_bool()), (Some(6), Some(false)), "{record}");
    let copy = Start::default().data_dir(&data_dir).start();
    check_served(&copy, &stored).await;
    assert_eq!(copy.blobs(), server.blobs());
    // Serialized as they were: this compressor made them.
    let client = copy.client();
    for stored in &stored {
        assert_eq!(client.get(&stored.xorb.path()).await.body, stored.xorb.bytes);
    }
    // And it takes new ones.
    store_many(&copy, &mut rng, 1).await;
    assert_eq!(backups.directory.names(), ["b.rca", "new"]);
}

#[tokio::test]
async fn store_without_a_server_is_backed_up_even_after_a_crash() {
    let (server, backups, mut rng) = (TestServer::start(), Backups::new(), rng());
    let stored = store_many(&server, &mut rng, 2).await;
    let (directory, data_dir) = (server.directory(), server.data_dir().to_owned());
    server.kill();
    assert_eq!(backups.back_up(&data_dir)["files"], 2);
    let server = Start::default().data_dir(&data_dir).start();
    server.terminate();
    assert!(server.wait().success());
    assert_eq!(backups.back_up(&data_dir)["added_len"], 0);
    check_served(&Start::default().data_dir(&backups.restore("copy").0).start(), &stored).await;
    drop(directory);
}

#[tokio::test]
async fn a_second_run_costs_what_came_and_a_third_nothing() {
    let (server, backups, mut rng) = (TestServer::start(), Backups::new(), rng());
    let client = server.client();
    let mut stored = Vec::new();
    for _ in 0..6 {
        stored.push(store(&client, Xorb::incompressible(&mut rng, 10 << 20)).await);
    }
    let first = backups.back_up(server.data_dir());
    let first_len = backups.archive_len();
    assert!(first_len > 60 << 20);
    stored.push(store(&client, Xorb::incompressible(&mut rng, 3 << 20)).await);
    let second = backups.back_up(server.data_dir());
    assert_eq!((second["xorbs"].as_u64(), second["files"].as_u64()), (Some(1), Some(1)), "{second}");
    let added = second["added_len"].as_u64().unwrap();
    assert!(((3 << 20)..(3 << 20) + 50_000).contains(&added), "{added}");
    assert_eq!(backups.archive_len(), first_len + added);
    // What is read of the archive is a few KiB per blob and some per session, not what is in them.
    let read = second["archive_read_len"].as_u64().unwrap();
    assert!(read < 2 << 20, "{read} of {first_len}, {first}");
    let third = backups.directory.zorb(&["backup", "b.rca", "--data-dir", text(server.data_dir())]).ok().text();
    assert!(third.starts_with("b.rca is up to date; nothing was added"), "{third}");
    assert_eq!(backups.archive_len(), first_len + added);
    check_served(&Start::default().data_dir(&backups.restore("copy").0).start(), &stored).await;
}

#[tokio::test]
async fn keys_are_restored_only_if_both_commands_ask_for_them() {
    let (server, backups, mut rng) = (TestServer::start(), Backups::new(), rng());
    let stored = store_many(&server, &mut rng, 1).await;
    let plan = server.client().get(&format!("/v1/reconstructions/{}", stored[0].file)).await.json();
    let entry = &plan["fetch_info"][stored[0].xorb.hash()][0];
    let path = format!("/{}", entry["url"].as_str().unwrap().splitn(4, '/').nth(3).unwrap());
    let range = format!("bytes={}-{}", entry["url_range"]["start"], entry["url_range"]["end"]);
    let status = async |server: &TestServer| server.client().get_with(&path, &[("range", &range)]).await.status;
    assert_eq!(status(&server).await, 206);

    backups.back_up(server.data_dir());
    let (without, record) = backups.restore("without");
    assert_eq!(record["keys"], false);
    assert_eq!(status(&Start::default().data_dir(&without).start()).await, 403);
    let args = ["backup", "b.rca", "--include-keys", "--json", "--data-dir", text(server.data_dir())];
    assert_eq!(backups.directory.zorb(&args).ok().record()["keys"], true);
    assert_eq!(backups.verify()["keys"], true);
    // Who can write the archive must not be able to make tokens for a store that is made of it.
    let (left_out, record) = backups.restore_with("left-out", &[]);
    assert_eq!((&record["keys"], left_out.join("keys").exists()), (&false.into(), false));
    let (with, record) = backups.restore_with("with", &["--include-keys"]);
    assert_eq!(record["keys"], true);
    let key = |data_dir: &std::path::Path| std::fs::read(data_dir.join("keys")).unwrap();
    assert_eq!(key(&with), key(server.data_dir()));
    // The blobs are other ones, so clients ask for new URLs.
    assert_eq!(status(&Start::default().data_dir(&with).start()).await, 403);
    // Whoever can read the archive, or the keys, can sign.
    use std::os::unix::fs::PermissionsExt;
    for path in [backups.archive(), with.join("keys")] {
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{}", path.display());
    }
}

#[tokio::test]
async fn a_restore_into_an_empty_directory_keeps_its_mode() {
    use std::os::unix::fs::PermissionsExt;
    let (server, backups, mut rng) = (TestServer::start(), Backups::new(), rng());
    let stored = store_many(&server, &mut rng, 1).await;
    backups.back_up(server.data_dir());
    let place = backups.directory.path("place");
    std::fs::create_dir(&place).unwrap();
    std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o750)).unwrap();
    backups.restore("place");
    assert_eq!(place.metadata().unwrap().permissions().mode() & 0o777, 0o750);
    check_served(&Start::default().data_dir(&place).start(), &stored).await;
}

#[tokio::test]
async fn restored_store_is_whole_and_equal_with_a_rebuilt_index() {
    let (server, backups, mut rng) = (TestServer::start(), Backups::new(), rng());
    let mut stored = store_many(&server, &mut rng, 5).await;
    backups.back_up(server.data_dir());
    let (data_dir, _) = backups.restore("copy");
    let zorb = |args: &[&str]| backups.directory.zorb(&[args, &["--json", "--data-dir", text(&data_dir)]].concat());
    assert_eq!(zorb(&["fsck", "--deep"]).ok().record()["findings"], 0, "before anybody has started it");

    // The first start is killed as soon as it listens, the second one does the work of a day.
    Start::default().data_dir(&data_dir).start().kill();
    let copy = Start::default().data_dir(&data_dir).start();
    let client = copy.client();
    check_served(&copy, &stored).await;
    let removed = stored.remove(0);
    let path = format!("/v1/files/{}", removed.file);
    assert_eq!(client.request(Method::DELETE, &path).send().await.unwrap().status(), 200);
    // A file of what was restored, and one of what is new.
    let shard = upload_shard(&stored[0].xorb, 1, 5);
    register(&client, shard.bytes()).await;
    let fresh = store_many(&copy, &mut rng, 1).await;
    let usage = client.get("/v1/usage").await.json();
    stop(copy);
    assert_eq!(zorb(&["fsck", "--deep"]).ok().record()["findings"], 0);

    let rebuilt = zorb(&["index", "rebuild"]).ok().record();
    assert_eq!(
        (&rebuilt["xorbs"], &rebuilt["damaged_records"], &rebuilt["left_out"]),
        (&6.into(), &0.into(), &0.into())
    );
    let copy = Start::default().data_dir(&data_dir).start();
    check_served(&copy, &stored).await;
    check_served(&copy, &fresh).await;
    let client = copy.client();
    assert_eq!(client.head(&path).await.status, 404);
    assert_eq!(read_file(&client, "v2", &shard.file_hash(), None).await.unwrap(), stored[0].xorb.raw(1, 5));
    assert_eq!(client.get("/v1/usage").await.json(), usage);
    stop(copy);
    assert_eq!(zorb(&["fsck", "--deep"]).ok().record()["findings"], 0);
}

fn stop(server: TestServer) {
    server.terminate();
    assert!(server.wait().success());
}
