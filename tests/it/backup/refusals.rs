//! What backups and restores do not do, and what they say then.

use std::fs::File;

use zorb::rca::Writer;

use super::{Backups, check_served, store_many, text};
use crate::support::{Start, TestServer, rng};

/// A server with one file, and an archive of it.
async fn backed_up() -> (TestServer, Backups) {
    let (server, backups, mut rng) = (TestServer::start(), Backups::new(), rng());
    store_many(&server, &mut rng, 1).await;
    backups.back_up(server.data_dir());
    (server, backups)
}

#[tokio::test]
async fn a_restore_never_touches_a_directory_that_is_not_empty() {
    let (server, backups) = backed_up().await;
    std::fs::create_dir(backups.directory.path("place")).unwrap();
    backups.directory.write("place/letter", b"mine");
    let args = ["restore", "b.rca", "--data-dir", "place"];
    backups.directory.zorb(&args).failed(1, &["place is not empty"]);
    assert_eq!(backups.directory.read("place/letter"), b"mine");
    let args = ["restore", "b.rca", "--data-dir", text(server.data_dir())];
    backups.directory.zorb(&args).failed(1, &["is not empty"]);
    let args = ["restore", "b.rca", "--data-dir", "b.rca"];
    backups.directory.zorb(&args).failed(1, &["b.rca"]);
    assert_eq!(backups.directory.names(), ["b.rca", "place"]);
}

#[tokio::test]
async fn damaged_archive_leaves_the_target_and_is_not_appended_to() {
    let (server, backups) = backed_up().await;
    let sound = backups.directory.read("b.rca");
    let (mut middle, mut end) = (sound.clone(), sound.clone());
    middle[sound.len() / 2] ^= 1;
    *end.last_mut().unwrap() ^= 1;
    for (bytes, is_end) in [(middle, false), (end, true)] {
        backups.directory.write("b.rca", &bytes);
        let place = ["--data-dir", "copy"];
        let expected = ["cannot restore b.rca: the archive is damaged", "damaged"];
        backups.directory.zorb(&[&["restore", "b.rca"], &place[..]].concat()).failed(1, &expected);
        let expected = ["b.rca is not a valid backup", "xorbs and", "files before the damage are valid"];
        backups.directory.zorb(&["backup", "b.rca", "--verify"]).failed(1, &expected);
        // Damage in front of the last catalog is for --verify to find: a run does not read that far back.
        if is_end {
            let args = ["backup", "b.rca", "--data-dir", text(server.data_dir())];
            backups.directory.zorb(&args).failed(1, &["cannot back up to b.rca", "damaged"]);
        }
        assert_eq!(backups.directory.read("b.rca"), bytes);
        assert_eq!(backups.directory.names(), ["b.rca"]);
    }
}

#[tokio::test]
async fn somebodys_file_is_never_written_to() {
    let (server, backups) = backed_up().await;
    let data_dir = text(server.data_dir());
    let mut other = Writer::open(std::io::Cursor::new(Vec::new())).unwrap();
    other.append("photo", &b"bytes"[..]).unwrap();
    let other = other.into_storage().into_inner();
    for (content, reason) in [
        (&[0; 3000][..], "it has no blob"),
        (b"\0\0 a picture that begins with zeros", "it has no blob"),
        (b"a letter that is no archive at all", "its first bytes are not those of an archive"),
        (&other, "it is an archive of something else"),
        (b"", "is empty"),
    ] {
        backups.directory.write("mine", content);
        backups.directory.zorb(&["backup", "mine", "--data-dir", data_dir]).failed(1, &[reason]);
        assert_eq!(backups.directory.read("mine"), content);
        if !content.is_empty() {
            backups.directory.zorb(&["restore", "mine", "--data-dir", "copy"]).failed(1, &[reason]);
            backups.directory.zorb(&["backup", "mine", "--verify"]).failed(1, &[reason]);
        }
    }
    assert_eq!(backups.directory.names(), ["b.rca", "mine"]);
}

#[tokio::test]
async fn archive_with_another_writer_is_left_alone_but_restorable() {
    let (server, backups) = backed_up().await;
    let file = File::options().read(true).write(true).open(backups.archive()).unwrap();
    let writer = Writer::open(file).unwrap();
    let args = ["backup", "b.rca", "--data-dir", text(server.data_dir())];
    backups.directory.zorb(&args).failed(1, &["another process is writing to it"]);
    backups.restore("copy");
    drop(writer);
    backups.directory.zorb(&args).ok();
}

/// However it is named.
#[tokio::test]
async fn archive_inside_the_data_directory_is_refused() {
    let (server, backups) = backed_up().await;
    let data_dir = text(server.data_dir()).to_owned();
    std::os::unix::fs::symlink(&data_dir, backups.directory.path("link")).unwrap();
    for archive in [format!("{data_dir}/b.rca"), format!("{data_dir}/xorbs/b.rca"), "link/b.rca".to_owned()] {
        let args = ["backup", &archive, "--data-dir", &data_dir];
        backups.directory.zorb(&args).failed(1, &["is inside the data directory"]);
    }
    assert!(!server.data_dir().join("b.rca").exists());
}

#[tokio::test]
async fn missing_store_or_other_version_is_reported() {
    let directory = crate::cli::Directory::new();
    directory.zorb(&["backup", "b.rca", "--data-dir", "nowhere"]).failed(1, &["no store in nowhere"]);
    directory.zorb(&["backup", "b.rca"]).failed(1, &["no store in ./zorb-data"]);
    std::fs::create_dir(directory.path("odd")).unwrap();
    directory.write("odd/index.sqlite", b"");
    directory
        .zorb(&["backup", "b.rca", "--data-dir", "odd"])
        .failed(1, &["the index of odd is empty", "zorb index rebuild"]);
    directory.write("odd/index.sqlite", b"no database");
    directory
        .zorb(&["backup", "b.rca", "--data-dir", "odd"])
        .failed(1, &["the index of odd is damaged", "zorb index rebuild"]);
    directory
        .zorb(&["backup", "no/directory/b.rca", "--data-dir", "odd"])
        .failed(1, &["cannot write no/directory/b.rca"]);
    directory.zorb(&["restore", "b.rca", "--data-dir", "copy"]).failed(1, &["cannot read b.rca"]);
    directory.zorb(&["backup", "b.rca", "--verify"]).failed(1, &["cannot read b.rca"]);
    directory.zorb(&["backup", "odd", "--verify"]).failed(1, &["odd is not a regular file"]);
    assert_eq!(directory.names(), ["odd"]);
    for args in [
        &["backup"][..],
        &["restore"],
        &["backup", "b.rca", "--verify", "--include-keys"],
        &["backup", "b.rca", "--verify", "--data-dir", "odd"],
        &["backup", "b.rca", "--json", "--quiet"],
    ] {
        directory.zorb(args).failed(2, &[]);
    }
}

#[tokio::test]
async fn damaged_blob_is_named_its_file_left_out_exit_code_1() {
    let (server, backups, mut rng) = (TestServer::start(), Backups::new(), rng());
    let stored = store_many(&server, &mut rng, 3).await;
    let hash = stored[0].xorb.hash();
    let path = server.blob(&hash);
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let gone = stored[1].xorb.hash();
    std::fs::remove_file(server.blob(&gone)).unwrap();
    let args = ["backup", "b.rca", "--data-dir", text(server.data_dir())];
    let expected = [hash.as_str(), &gone, "2 xorbs cannot be read, so 2 files are left out; everything else is in"];
    let ran = backups.directory.zorb(&args).failed(1, &expected);
    assert!(ran.text().starts_with("1 xorb, "), "{}", ran.text());
    check_served(&Start::default().data_dir(&backups.restore("copy").0).start(), &stored[2..]).await;
}

#[tokio::test]
async fn the_data_directory_is_found_as_the_server_finds_it() {
    let (server, backups, mut rng) = (TestServer::start(), Backups::new(), rng());
    store_many(&server, &mut rng, 1).await;
    backups.directory.write("zorb.toml", format!("data_dir = {:?}", text(server.data_dir())).as_bytes());
    let args = ["backup", "b.rca", "--json", "--config", "zorb.toml"];
    assert_eq!(backups.directory.zorb(&args).ok().record()["files"], 1);
    let args = ["backup", "b.rca", "--config", "zorb.toml", "--data-dir", "nowhere"];
    backups.directory.zorb(&args).failed(1, &["no store in nowhere"]);
}
