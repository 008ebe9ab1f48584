//! What is taken for a store and what is not, as the real binary says it.

use std::fs;
use std::path::Path;

use crate::cli::Directory;
use crate::support::Start;

#[tokio::test]
async fn a_new_store_is_logged_and_not_made_where_one_is_required() {
    let directory = Directory::new();
    let data = directory.path("data");
    let args = ["serve", "--listen", "127.0.0.1:0", "--data-dir", data.to_str().unwrap()];
    directory.write("zorb.toml", b"require_store = true\n");
    let required = [&args[..], &["--config", "zorb.toml"]].concat();
    directory.zorb(&required).failed(1, &["no store", "require_store", "mounted"]);
    assert!(!data.exists(), "a refused start makes nothing");
    // What a mount point has before anything is mounted there, or a start that was cut short has left.
    fs::create_dir_all(data.join("xorbs")).unwrap();
    directory.zorb(&required).failed(1, &["no store", "require_store"]);

    let server = Start::default().data_dir(&data).start();
    assert!(server.log().contains("created a new store"), "{}", server.log());
    drop(server);
    let server = Start::default().data_dir(&data).with("require_store", true).start();
    assert!(!server.log().contains("created a new store"), "{}", server.log());
    assert_eq!(server.client().get("/readyz").await.json()["store"], "ok");
}

#[test]
fn a_directory_with_something_else_in_it_is_no_store() {
    let directory = Directory::new();
    directory.write("letter.txt", b"dear reader");
    let here = directory.path("");
    let dir = ["--data-dir", here.to_str().unwrap()];
    let serve = [&["serve", "--listen", "127.0.0.1:0"], &dir[..]].concat();
    let before = directory.names();
    directory.zorb(&serve).failed(1, &["is not empty and is not a store", "--data-dir"]);
    for command in ["fsck", "gc"] {
        let code = if command == "fsck" { 2 } else { 1 };
        directory.zorb(&[&[command], &dir[..]].concat()).failed(code, &["no store"]);
    }
    let issue = [&["token", "issue", "--scope", "read", "--repo", "*"], &dir[..]].concat();
    directory.zorb(&issue).failed(1, &["no store", "zorb serve"]);
    assert_eq!(directory.names(), before, "nothing was made there");
}

#[tokio::test]
async fn a_store_below_its_low_water_mark_says_so_at_the_start() {
    let server = Start::default().with("min_free_space", i64::MAX).start();
    let log = server.log();
    let warning = log.lines().find(|line| line.contains("full for writes")).unwrap_or_else(|| panic!("{log}"));
    assert!(warning.contains("WARN") && warning.contains("free_bytes=") && warning.contains("min_free_space=9223"));
    let ready = server.client().get("/readyz").await;
    assert_eq!((ready.status, &ready.json()["store"]), (200, &"full".into()));
}

#[test]
fn the_unit_waits_for_the_mount_of_its_data_directory() {
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging");
    let [unit, settings] = ["zorb.service", "zorb.toml"].map(|name| fs::read_to_string(packaging.join(name)).unwrap());
    let environment = unit.lines().find_map(|line| line.strip_prefix("Environment=")).expect("the unit sets variables");
    let directory = environment.split(' ').find_map(|variable| variable.strip_prefix("ZORB_DATA_DIR="));
    let mount = unit.lines().find_map(|line| line.strip_prefix("RequiresMountsFor="));
    assert!(directory.is_some() && mount == directory, "{mount:?} and {directory:?}");
    assert!(settings.lines().any(|line| line == "#require_store = true"), "it is offered for after the first start");
}
