//! Files in the data directory that another user may have put there: keys, locks, and what is in `tmp`.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;

use crate::backup::text;
use crate::cli::{Directory, Ran};
use crate::support::{Start, TestServer};

/// A store that no server has.
struct Stopped {
    data_dir: PathBuf,
    directory: Directory,
}

impl Stopped {
    fn new() -> Self {
        let directory = Directory::new();
        let data_dir = directory.path("data");
        let server = Start::default().data_dir(&data_dir).start();
        server.terminate();
        assert!(server.wait().success());
        Self { data_dir, directory }
    }

    /// Starts a server that is refused.
    fn refused(&self, complaints: &[&str]) {
        let args = ["serve", "--listen", "127.0.0.1:0", "--data-dir", text(&self.data_dir)];
        let ran = self.directory.zorb(&args).failed(1, complaints);
        assert_eq!(ran.text(), "");
    }

    fn gc(&self) -> Ran {
        self.directory.zorb(&["gc", "--data-dir", text(&self.data_dir)])
    }

    fn start(&self) -> TestServer {
        Start::default().data_dir(&self.data_dir).start()
    }
}

#[tokio::test]
async fn keys_that_others_can_read_stop_the_start() {
    let store = Stopped::new();
    let keys = store.data_dir.join("keys");
    for mode in [0o640, 0o604, 0o620] {
        fs::set_permissions(&keys, Permissions::from_mode(mode)).unwrap();
        store.refused(&["data/keys", "chmod 600"]);
    }
    fs::set_permissions(&keys, Permissions::from_mode(0o600)).unwrap();
    assert_eq!(store.start().client().get("/readyz").await.status, 200);
}

#[tokio::test]
async fn links_in_the_place_of_keys_and_locks_are_not_followed() {
    let store = Stopped::new();
    let (elsewhere, keys) = (store.directory.path("elsewhere"), store.data_dir.join("keys"));
    fs::rename(&keys, &elsewhere).unwrap();
    let text = fs::read(&elsewhere).unwrap();
    symlink(&elsewhere, &keys).unwrap();
    store.refused(&["data/keys", "link"]);
    fs::remove_file(&keys).unwrap();
    fs::rename(&elsewhere, &keys).unwrap();
    fs::copy(&keys, &elsewhere).unwrap();
    for name in ["lock", "gc.lock", "keys.lock"] {
        let lock = store.data_dir.join(name);
        // One that was there is made anew by the next command.
        let _ = fs::remove_file(&lock);
        symlink(&elsewhere, &lock).unwrap();
        match name {
            "lock" => {
                store.refused(&["data/lock", "link"]);
                let args = ["fsck", "--repair", "--data-dir", store.data_dir.to_str().unwrap()];
                store.directory.zorb(&args).failed(2, &["cannot lock the data directory", "link"]);
            }
            "gc.lock" => drop(store.gc().failed(1, &["data/gc.lock", "link"])),
            _ => {
                let args = ["token", "rotate-key", "--data-dir", store.data_dir.to_str().unwrap()];
                store.directory.zorb(&args).failed(1, &["cannot lock the keys", "link"]);
            }
        }
        assert_eq!(fs::read(&elsewhere).unwrap(), text, "{name}");
        fs::remove_file(&lock).unwrap();
    }
    assert_eq!(store.start().client().get("/readyz").await.status, 200);
}

#[tokio::test]
async fn a_start_deletes_drafts_and_no_other_file_of_tmp() {
    let store = Stopped::new();
    let tmp = store.data_dir.join("tmp");
    let draft = tmp.join("0123456789abcdef0123456789abcdef");
    let others = ["notes.txt", "0123456789abcdef0123456789abcde", "0123456789ABCDEF0123456789ABCDEF"];
    for name in others {
        fs::write(tmp.join(name), "mine").unwrap();
    }
    fs::create_dir(tmp.join("fedcba9876543210fedcba9876543210")).unwrap();
    symlink("notes.txt", tmp.join("00000000000000000000000000000000")).unwrap();
    fs::write(&draft, "a draft").unwrap();
    assert_eq!(store.start().client().get("/readyz").await.status, 200);
    assert!(!draft.exists());
    assert_eq!(fs::read_dir(&tmp).unwrap().count(), others.len() + 2);
}
