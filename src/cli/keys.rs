//! The signing keys, the revocations and the accounts. The first start of a server creates them.
//! They are in the file `keys` of the data directory, which only its owner can read, or, with a
//! bucket, sealed in the database ([`shared`]).
//!
//! Each write replaces the whole file, so that a reader sees either the keys before a rotation or
//! those after it. Concurrent writers wait for each other. A crash during a write leaves a
//! temporary file, which the next write removes.

mod shared;

use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

pub(super) use self::shared::SharedKeys;
use super::store::{StoreArgs, StoreIndex, StoreLocation, is_store};
use crate::http::{KeySource, Keys};
use crate::runtime::durable::{
    MAX_PRIVATE_LEN, TempFile, create_directory, open_lock, read_private, remove_leftovers, rename,
};
use crate::runtime::telemetry::chain;
use crate::service::access::{KeyRing, KeyRingError};

/// Name of the key file in the data directory.
const FILE_NAME: &str = "keys";

/// Its name when its keys were taken over into the database.
const ASIDE_NAME: &str = "keys.in-database";

/// Name of the file that writers lock. They cannot lock the key file itself, because each write
/// replaces it with a new file.
const LOCK_NAME: &str = "keys.lock";

/// Interval of the checks of the key file, so that a revocation takes effect within a second. A
/// token with an unknown key makes the server check at once.
const WATCH_PERIOD: Duration = Duration::from_millis(500);

/// Where the keys of a store are.
#[derive(Debug)]
pub(super) enum KeyPlace {
    /// In the data directory.
    Directory(PathBuf),
    /// In the database of several servers.
    Database(SharedKeys),
}

impl KeyPlace {
    /// The keys of the store at this location.
    ///
    /// Fails if the servers have their keys elsewhere, because the settings of the bucket are
    /// missing: keys of this directory would be those of no server.
    pub(super) fn of(location: &StoreLocation) -> anyhow::Result<Self> {
        Ok(match SharedKeys::of(location) {
            Some(shared) => Self::Database(shared),
            None => {
                location.check_blobs()?;
                Self::Directory(location.data_dir.clone())
            }
        })
    }

    /// The keys of an existing store. Fails in a directory without a store: keys that were created
    /// there would be those of no server.
    pub(super) fn of_store(args: StoreArgs) -> anyhow::Result<Self> {
        let place = Self::of(&args.location()?)?;
        if let Self::Directory(dir) = &place {
            let shown = dir.display();
            if !is_store(dir).with_context(|| format!("cannot read the data directory {shown}"))? {
                bail!("no store in {shown}; name its directory with --data-dir, or start zorb serve first");
            }
        }
        Ok(place)
    }

    /// Reads the key ring; `None` if there is none yet.
    pub(super) fn read(&self) -> anyhow::Result<Option<KeyRing>> {
        match self {
            Self::Directory(dir) => read(dir),
            Self::Database(shared) => shared.read(),
        }
    }

    /// Reads the key ring, which exists since the first start of a server.
    pub(super) fn read_existing(&self) -> anyhow::Result<KeyRing> {
        self.read()?.with_context(|| format!("no keys in {self}: no server has run there yet"))
    }

    /// Reads the key ring. Creates it if it is missing.
    pub(super) fn read_or_create(&self) -> anyhow::Result<KeyRing> {
        match self.read()? {
            Some(ring) => Ok(ring),
            // `change` reads it again under the lock, because another process may have created it
            // meanwhile.
            None => self.change(|ring| Ok(ring.unwrap_or_else(|| KeyRing::new(rand::random())))),
        }
    }

    /// Replaces the key ring, while no other process does. `make` gets the old one, if there is
    /// one, and returns the new one.
    pub(super) fn change(
        &self,
        make: impl FnOnce(Option<KeyRing>) -> anyhow::Result<KeyRing> + Send,
    ) -> anyhow::Result<KeyRing> {
        match self {
            Self::Directory(dir) => change(dir, make),
            Self::Database(shared) => shared.change(make),
        }
    }
}

impl fmt::Display for KeyPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(dir) => dir.display().fmt(f),
            Self::Database(shared) => shared.fmt(f),
        }
    }
}

/// Reads the keys for a server that reloads them when they change. Creates them if they are
/// missing. `index` is the open index of the server.
pub(super) async fn open(location: &StoreLocation, index: &StoreIndex) -> anyhow::Result<Keys> {
    if let Some(shared) = SharedKeys::of(location) {
        let old = read(&location.data_dir)?;
        let keys = shared.open(old.clone(), index).await?;
        if let Some(old) = old {
            if *keys.current() != old {
                tracing::warn!(
                    "the keys of the data directory differ from those in the database, and are not used; \
                    they are in the file {ASIDE_NAME}"
                );
            }
            // Otherwise a database without keys would get the old ones again, without what was
            // revoked since.
            set_aside(&location.data_dir)?;
        }
        return Ok(keys);
    }
    let path = location.data_dir.join(FILE_NAME);
    // The metadata is read before the file, so that any later change of the file is detected.
    let seen = Stamp::of(&path);
    let ring = KeyPlace::Directory(location.data_dir.clone()).read_or_create()?;
    Ok(Keys::new(ring, Arc::new(KeyFile { path, seen: Mutex::new(seen) })))
}

/// Renames the key file of a data directory whose keys are in the database.
fn set_aside(data_dir: &Path) -> anyhow::Result<()> {
    let (path, aside) = (data_dir.join(FILE_NAME), data_dir.join(ASIDE_NAME));
    rename(&path, &aside).with_context(|| format!("cannot rename the key file {}", path.display()))
}

/// Reads the key ring of a data directory; `None` if the file is missing.
fn read(data_dir: &Path) -> anyhow::Result<Option<KeyRing>> {
    let path = data_dir.join(FILE_NAME);
    let shown = path.display();
    match read_private(&path) {
        Ok(text) => KeyRing::parse(&text).map(Some).with_context(|| format!("the key file {shown} is damaged")),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read the key file {shown}")),
    }
}

/// Replaces the key ring of a data directory, under the lock of the writers. Creates the directory
/// if it is missing.
fn change(data_dir: &Path, make: impl FnOnce(Option<KeyRing>) -> anyhow::Result<KeyRing>) -> anyhow::Result<KeyRing> {
    let dir = data_dir.display();
    create_directory(data_dir).with_context(|| format!("cannot create the data directory {dir}"))?;
    let lock = open_lock(&data_dir.join(LOCK_NAME)).and_then(|lock| lock.lock().map(|()| lock));
    let _lock = lock.with_context(|| format!("cannot lock the keys in {dir}"))?;
    let ring = make(read(data_dir)?)?;
    write(data_dir, &ring)?;
    Ok(ring)
}

/// Writes the key ring of a data directory without the lock. Only for a directory to which no other
/// process writes; use [`KeyPlace::change`] for any other.
pub(super) fn write(data_dir: &Path, ring: &KeyRing) -> anyhow::Result<()> {
    let path = data_dir.join(FILE_NAME);
    publish(&path, ring).with_context(|| format!("cannot write the key file {}", path.display()))
}

/// Replaces the key file, readable by its owner only.
fn publish(path: &Path, ring: &KeyRing) -> std::io::Result<()> {
    remove_leftovers(path)?;
    let mut file = TempFile::create_beside(path)?;
    file.restrict_to_owner()?;
    let text = ring.to_file_text();
    if text.expose().len() as u64 > MAX_PRIVATE_LEN {
        let why = "it would have more than 64 MiB; revoked tokens leave it 30 days after they expire";
        return Err(std::io::Error::new(ErrorKind::FileTooLarge, why));
    }
    file.write(text.expose().as_bytes())?;
    file.publish(path)
}

/// Reloads changed keys at intervals, until `stop`.
pub(super) async fn watch(keys: Keys, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = sleep(WATCH_PERIOD) => keys.refresh().await,
            () = stop.cancelled() => return,
        }
    }
}

/// A key file, and its metadata when it was last read.
#[derive(Debug)]
struct KeyFile {
    path: PathBuf,
    seen: Mutex<Option<Stamp>>,
}

/// Metadata by which two versions of the key file differ. The inode is part of it, because every
/// write creates a new file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    len: u64,
    modified: (i64, i64),
}

impl Stamp {
    fn of(path: &Path) -> Option<Self> {
        let data = fs::symlink_metadata(path).ok()?;
        Some(Self { inode: data.ino(), len: data.len(), modified: (data.mtime(), data.mtime_nsec()) })
    }
}

impl KeySource for KeyFile {
    fn changed(&self) -> Option<KeyRing> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = Stamp::of(&self.path);
        if stamp == *seen {
            return None;
        }
        let directory = self.path.parent().unwrap_or(Path::new("."));
        // Whether to wait for the next change, or to read the file again at the next check.
        let (ring, is_settled) = match read(directory) {
            Ok(Some(ring)) => (Some(ring), true),
            Ok(None) => {
                tracing::warn!("key file deleted; using the keys in memory until the next start");
                (None, true)
            }
            // Waiting for the next change is right only if the contents are invalid. A file that
            // cannot be read now, for example because of too many open files, is read again at the
            // next check. Otherwise a key that was removed because a token leaked would stay in
            // use.
            Err(error) => {
                tracing::warn!(error = %chain(error.as_ref()), "invalid key file; keeping the previous keys");
                (None, error.downcast_ref::<KeyRingError>().is_some())
            }
        };
        if is_settled {
            *seen = stamp;
        }
        ring
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_key_file_is_read_again_even_if_unchanged() {
        let directory = tempfile::tempdir().unwrap();
        let before = KeyPlace::Directory(directory.path().to_owned()).read_or_create().unwrap();
        let path = directory.path().join(FILE_NAME);
        let file = KeyFile { seen: Mutex::new(Stamp::of(&path)), path };
        assert_eq!(file.changed(), None);
        let rotated = change(directory.path(), |ring| Ok(ring.unwrap().rotated([7; 32]).unwrap())).unwrap();
        // A directory at this path cannot be read as a file, not even by root.
        let aside = directory.path().join("aside");
        std::process::Command::new("mv").args([&file.path, &aside]).status().unwrap();
        create_directory(&file.path).unwrap();
        let seen = *file.seen.lock().unwrap();
        assert_eq!((file.changed(), *file.seen.lock().unwrap()), (None, seen));
        std::fs::remove_dir(&file.path).unwrap();
        std::process::Command::new("mv").args([&aside, &file.path]).status().unwrap();
        assert_eq!(file.changed(), Some(rotated));
        assert_ne!(file.changed(), Some(before));
    }
}
